"""The counted work of kernels and operators, and the table of operators.

Each figure of work stands in words and as a number; operators have the device time of what they
launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from fractions import Fraction
from typing import Any, Final

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.attribution.kernels import operators
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.work_tables import KernelRow, OpRow
from traceflops.reports.page.section import DeepLinks
from traceflops.reports.view import utilisation
from traceflops.reports.view.figures import UNKNOWN, as_float, duration, flops, percent, significant
from traceflops.reports.view.ledger import is_unsplit, ledger_cells, ledger_rows, mean_ledger
from traceflops.reports.view.short_names import labels
from traceflops.reports.view.utilisation import bounds_sentence, facts, parts, why_not
from traceflops.reports.view.wording import listed, unit, window
from traceflops.units import several

_MOST_OPERATORS: Final = 100
_COLUMNS: Final = {
    "flops": "FLOPs",
    "rate": "TFLOP/s",
    "of_peak": "share of peak",
    "bytes_rate": "GB/s",
    "of_bandwidth": "share of bandwidth",
    "bound": "compute or memory bound",
}


class Figure(Struct, frozen=True):
    """A figure as text, and the number (None: unknown) that sorts its column and is in a CSV."""

    text: str
    value: float | None
    at_most: bool = False


class WorkShown(Struct, frozen=True):
    """The work of a kernel or operator over launches with known work; `by` tells its `bound`."""

    name: str
    time_ns: int
    count: int
    flops: Figure
    rate: Figure
    of_peak: Figure
    bytes_rate: Figure
    of_bandwidth: Figure
    intensity: Figure
    bound: str
    by: str
    of_roof: Figure
    recoverable_ns: int | None

    def has(self, column: str) -> bool:
        """Return whether a column is known."""
        value = getattr(self, column)
        return value.value is not None if isinstance(value, Figure) else bool(value)


def work_of(
    measured: Measurement, rows: Iterable[KernelRow | OpRow], names: Iterable[str]
) -> dict[str, WorkShown]:
    """Return the work of the rows with these names, {} if no FLOPs or bytes of any are known."""
    wanted = set(names)
    rows = [row for row in rows if row.name in wanted]
    if not any(row.measured.flops or row.measured.min_bytes for row in rows):
        return {}
    shown = {}
    for row in rows:
        work, bound = row.measured, utilisation.bound_word(measured, row)
        nearer = utilisation.roofline(measured, row)
        # What bounds it has a source only if a roof bounds it: what is slow is far below any.
        is_bound = nearer is not None and bound not in ("", utilisation.SLOW)
        peak, _ = utilisation.roof(measured, row.dtypes)
        rate, share, intensity = utilisation.rate_words(work, peak)
        per_ns, upper = work.flops_per_ns, not work.is_exact
        mark = utilisation.AT_MOST if work.flops and upper else ""
        amount = flops(work.flops) if work.flops else UNKNOWN
        # A kernel that helps another has no bytes of its own: they are counted with the other.
        used = work.bytes_per_ns or None
        of_roof = utilisation.share_of_roof(measured, row)
        of_memory = utilisation.share_of_bandwidth(measured, row)
        of_link = utilisation.share_of_link(measured, row)
        of_bandwidth = (of_memory if of_memory is not None else of_link) if used else None
        saved = utilisation.recoverable_ns(measured, row) if isinstance(row, KernelRow) else None
        shown[row.name] = WorkShown(
            name=row.name,
            time_ns=work.time_ns,
            count=row.counted if isinstance(row, KernelRow) else row.count,
            flops=Figure(f"{mark}{amount}", work.flops or None, bool(mark)),
            rate=_figure(rate, per_ns / utilisation.THOUSAND if per_ns else None, upper),
            of_peak=_figure(share, work.share_of_peak(peak) if per_ns else None, upper),
            bytes_rate=_figure(significant(used, zeros=True) if used else UNKNOWN, used),
            of_bandwidth=_figure(percent(as_float(of_bandwidth)), of_bandwidth),
            intensity=_figure(intensity, work.intensity or None, upper),
            bound=bound,
            by=nearer.basis if nearer is not None and is_bound else "",
            of_roof=_figure(percent(as_float(of_roof)), of_roof, upper),
            recoverable_ns=saved,
        )
    return shown


def work_columns(works: Iterable[WorkShown | None]) -> Set[str]:
    """Return the columns of work that any of these rows fills."""
    known = [work for work in works if work is not None]
    return {column for column in _COLUMNS if any(work.has(column) for work in known)}


def columns_remark(columns: Set[str], works: Iterable[WorkShown | None]) -> str:
    """Return a remark: which columns are unknown, and why a share of the peak can exceed 100 %."""
    lacks = [text for name, text in _COLUMNS.items() if name not in columns]
    above = any((work.of_peak.value or 0) > 1 for work in works if work is not None)
    texts = (f"Unknown: {listed(lacks)}." if lacks else "", utilisation.ABOVE if above else "")
    return " ".join(filter(None, texts))


def counted_at(measured: Measurement) -> str:
    """Return the memory level at which bytes were counted, "" if no work is from counters."""
    work = measured.executed.work
    by_counters = any(row.basis == "counters" for row in measured.kernels)
    return work.bytes_at if work is not None and by_counters else ""


def rates_sentence(measured: Measurement) -> str:
    """Return a sentence on what the FLOPs and rates of a table cover."""
    at = counted_at(measured)
    moved = f"counted at {at}" if at else "minimum traffic"
    sentence = f"Rates cover launches with known work; bytes are {moved}."
    if not any(row.path == "host" for row in measured.kernels):
        return sentence
    return f"{sentence} Host copies are compared with the host link, not the memory."


def _figure(text: str, value: Fraction | None, at_most: bool = False) -> Figure:
    return Figure(text, as_float(value), at_most)


def operators_page(analysis: Analysis) -> dict[str, Any] | None:
    """Return the table of operators by device time, or None if the trace has none.

    `rest` are operators all of whose kernels were launched by operators inside them, so no device
    time is their own. `unknown_share` is the share of `all_ns`, the time of all kernels.
    """
    if analysis.prepared is None:
        return None
    known = operators(analysis.prepared)
    rows, links = known.table.slice(0, _MOST_OPERATORS).to_pylist(), DeepLinks("op")
    if not rows:
        return None
    names = [row["name"] for row in rows]
    work = work_of(analysis.measured, analysis.measured.ops, names)
    all_ns = sum(known.table["sum_ns"].to_pylist()) + known.left_ns + known.unknown_ns
    shown = [
        {"row": row, "label": label, "link": links.of(row["name"]), "work": work.get(row["name"])}
        for row, label in zip(rows, labels(names), strict=True)
    ]
    # Rows are ordered by their own time, so those without any come last. If none has any, all are
    # in one table.
    own = [operator for operator in shown if operator["row"]["sum_ns"]] or shown
    rest = shown[len(own) :] if own[-1] is not shown[-1] else []
    counted = work_columns(operator["work"] for operator in own)
    return {
        "rows": own,
        "rest": rest,
        "hidden": known.table.num_rows - len(rows) + known.left,
        "hidden_ns": all_ns - known.unknown_ns - sum(row["sum_ns"] for row in rows),
        "unknown_activities": known.unknown_activities,
        "unknown_ns": known.unknown_ns,
        "unknown_share": known.unknown_ns / all_ns if all_ns else None,
        "all_ns": all_ns,
        "rates": rates_sentence(analysis.measured) if counted else "",
        "remark": columns_remark(counted, [operator["work"] for operator in own]),
        "counted": counted,
        "counted_of_rest": work_columns(operator["work"] for operator in rest),
        "has_host": any(row["host_ns"] is not None for row in rows),
    }


_ONE_TYPE: Final = "FLOP"


def peak_page(analysis: Analysis) -> dict[str, Any]:
    """Return the values of the section; `lines` of the waterfall have mean times and FLOPs."""
    measured, fall = analysis.measured, analysis.measured.waterfall
    window_ns, windows = analysis.components.window_ns, max(analysis.windows_used, 1)

    def mean_flops(amount: int) -> str:
        """Return FLOPs per window and device; unknown if the peaks of several types are mixed."""
        is_one = fall is not None and fall.unit == _ONE_TYPE
        return flops(Fraction(amount, windows)) if is_one else UNKNOWN

    ledger = mean_ledger(analysis)
    rows = ledger_rows(ledger)
    total = " total" if len(analysis.devices_used) > 1 else ""
    lines = (
        []
        if fall is None
        else [
            (
                part,
                analysis.mean_ns(round(part.share * window_ns)),
                mean_flops(fall.amount(part.name)),
            )
            for part in parts(fall)
        ]
    )
    devices = several(len(analysis.devices_used), unit(analysis))
    return {
        "figure": measured.figure or "",
        "basis": measured.basis if fall is not None else "",
        "whole": f"peak of {devices} over {duration(window_ns)}{total}",
        "bounds": bounds_sentence(measured),
        "why_not": why_not(measured),
        "lines": lines,
        "budget": mean_flops(fall.budget) if fall is not None else "",
        "facts": list(facts(analysis)),
        "ledger": ledger_cells(rows) if rows and not is_unsplit(ledger) else None,
        "window": f"{window(analysis)} and {unit(analysis)}",
    }
