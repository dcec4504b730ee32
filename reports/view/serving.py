"""The passes of a serving engine: a row per kind, and what the GPU waits on after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from traceflops.analysis.result import Analysis
from traceflops.attribution.idle_classes import CLASSES
from traceflops.mfu.serving_passes import PassKind
from traceflops.reports.view import tables
from traceflops.reports.view.figures import UNKNOWN, as_float, count, duration, percent, significant

WAITS_ON: Final = "Waits on"
_REMARK: Final = "Means per pass; idle until the next. Tokens per second and GPU."


def serving_table(analysis: Analysis) -> tables.ReportTable:
    """Return a row per kind of annotated passes, with the columns known for any of them."""
    kinds, inference = analysis.serving.kinds, analysis.measured.inference

    def mbu(row: PassKind) -> str:
        phase = inference.phase(row.kind) if inference is not None else None
        return percent(as_float(phase.mbu)) if phase is not None else UNKNOWN

    def largest_wait(row: PassKind) -> tables.Cell:
        """Return the class, share and name of what takes most of the idle time after passes."""
        if not row.waits.culprits:
            return UNKNOWN
        most = row.waits.culprits[0]
        words = f"{CLASSES[most.kind]} {percent(most.idle_ns / row.between_ns)}"
        return (words, *tables.short_names([most.label])) if most.label else words

    columns = (
        tables.Column("Serving pass", lambda row: row.kind or "unknown kind"),
        *(tables.Column.number(head, cell) for head, cell in _NUMBERS.items()),
        tables.Column.number("MBU", mbu),
        tables.Column(WAITS_ON, largest_wait),
    )
    return tables.table_of(tables.known_columns(columns, kinds), kinds, remark=_REMARK)


def _mean(total_ns: int, number: int) -> str:
    return duration(total_ns / number) if total_ns else UNKNOWN


_NUMBERS: Final[dict[str, Callable[[PassKind], str]]] = {
    "Count": lambda row: count(row.passes),
    "Tokens": lambda row: count(row.tokens),
    "p50": lambda row: duration(row.p50_ns),
    "p99": lambda row: duration(row.p99_ns),
    "Tokens/s": lambda row: significant(row.tokens_per_s, 3) if row.tokens_per_s else UNKNOWN,
    "Idle after": lambda row: _mean(row.between_ns, row.followed),
    "Comm": lambda row: _mean(row.communication_ns, row.passes),
    "Exposed": lambda row: _mean(row.exposed_ns, row.passes),
}
