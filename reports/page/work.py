"""The work of kernels and operators (FLOPs, bytes, rates), and the table of operators.

Each figure is a text and a number; operators have the device time of what they launched.
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
    """A figure as text, and the number (None: unknown) by which the page sorts and exports it."""

    text: str
    value: float | None
    at_most: bool = False


class WorkShown(Struct, frozen=True):
    """Known work of a kernel or operator; `bound` is its nearest roof, `by` the source of that."""

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
        """Return whether the value of a column is known."""
        value = getattr(self, column)
        return value.value is not None if isinstance(value, Figure) else bool(value)


def work_of(
    measured: Measurement, rows: Iterable[KernelRow | OpRow], names: Iterable[str]
) -> dict[str, WorkShown]:
    """Return the work of rows with these names, by name; {} if all FLOPs and bytes are unknown."""
    wanted = set(names)
    chosen = [row for row in rows if row.name in wanted]
    if not any(row.measured.flops or row.measured.min_bytes for row in chosen):
        return {}
    return {row.name: _work(measured, row) for row in chosen}


def _work(measured: Measurement, row: KernelRow | OpRow) -> WorkShown:
    """Return the work of a row: amounts, rates and shares of roofs, as far as they are known."""
    work, bound = row.measured, utilisation.bound_word(measured, row)
    nearer = utilisation.roofline(measured, row)
    # A slow kernel is far below all roofs: none of them bounds it.
    is_bound = bound not in ("", utilisation.SLOW)
    peak, _ = utilisation.roof(measured, row.dtypes)
    rate, share, intensity = utilisation.rate_words(work, peak)
    flops_per_ns, is_upper = work.flops_per_ns, not work.is_exact
    mark = utilisation.AT_MOST if work.flops and is_upper else ""
    amount = flops(work.flops) if work.flops else UNKNOWN
    # A kernel that helps another one has no bytes (0): they are counted with the other.
    bytes_per_ns, of_bandwidth = work.bytes_per_ns or None, None
    if bytes_per_ns:
        of_bandwidth = utilisation.share_of_bandwidth(measured, row)
        if of_bandwidth is None:
            of_bandwidth = utilisation.share_of_link(measured, row)
    bytes_rate = significant(bytes_per_ns, zeros=True) if bytes_per_ns else UNKNOWN
    of_roof = utilisation.share_of_roof(measured, row)
    saved_ns = utilisation.recoverable_ns(measured, row) if isinstance(row, KernelRow) else None
    return WorkShown(
        name=row.name,
        time_ns=work.time_ns,
        count=row.counted if isinstance(row, KernelRow) else row.count,
        flops=Figure(f"{mark}{amount}", work.flops or None, bool(mark)),
        rate=_figure(rate, flops_per_ns / utilisation.THOUSAND if flops_per_ns else None, is_upper),
        of_peak=_figure(share, work.share_of_peak(peak) if flops_per_ns else None, is_upper),
        bytes_rate=_figure(bytes_rate, bytes_per_ns),
        of_bandwidth=_figure(percent(as_float(of_bandwidth)), of_bandwidth),
        intensity=_figure(intensity, work.intensity or None, is_upper),
        bound=bound,
        by=nearer.basis if nearer is not None and is_bound else "",
        of_roof=_figure(percent(as_float(of_roof)), of_roof, is_upper),
        recoverable_ns=saved_ns,
    )


def work_columns(works: Iterable[WorkShown | None]) -> Set[str]:
    """Return the columns of work that are known for any of these rows."""
    known = [work for work in works if work is not None]
    return {column for column in _COLUMNS if any(work.has(column) for work in known)}


def columns_remark(columns: Set[str], works: Iterable[WorkShown | None]) -> str:
    """Return a remark on the unknown columns, and on shares of the peak above 100 %, if any."""
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
    level = counted_at(measured)
    counted = f"counted at {level}" if level else "minimum traffic"
    sentence = f"Rates cover launches with known work; bytes are {counted}."
    if not any(row.path == "host" for row in measured.kernels):
        return sentence
    return f"{sentence} Host copies are compared with the host link, not the memory."


def _figure(text: str, value: Fraction | None, at_most: bool = False) -> Figure:
    return Figure(text, as_float(value), at_most)


def operators_page(analysis: Analysis) -> dict[str, Any] | None:
    """Return the table of operators by device time, or None if the trace has none.

    `rest` are operators without own device time: operators inside them launch all their kernels.
    `unknown_share` is the share of `all_ns`, the time of all kernels, that has no operator.
    """
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
    # Rows are ordered by their own time: those without any come last. If no row has any, all are in
    # the first table.
    own = [operator for operator in shown if operator["row"]["sum_ns"]] or shown
    rest = shown[len(own) :]
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
        is_one_type = fall is not None and fall.unit == _ONE_TYPE
        return flops(Fraction(amount, windows)) if is_one_type else UNKNOWN

    ledger = mean_ledger(analysis)
    rows = ledger_rows(ledger)
    total = " total" if len(analysis.devices_used) > 1 else ""
    lines = []
    if fall is not None:
        for part in parts(fall):
            mean_ns = analysis.mean_ns(round(part.share * window_ns))
            lines.append((part, mean_ns, mean_flops(fall.amount(part.name))))
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
