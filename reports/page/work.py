"""The counted work of kernels and operators: each figure in words and as a number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.mfu import KernelRow, OpRow
from traceflops.reports.view import (
    ABOVE,
    AT_MOST,
    SLOW,
    THOUSAND,
    UNKNOWN,
    bound_word,
    count,
    flops,
    listed,
    percent,
    rate_words,
    roof,
    roofline,
    share_of_bandwidth,
    share_of_link,
)

if TYPE_CHECKING:
    from fractions import Fraction

    from traceflops.flops import Measured
    from traceflops.mfu import Measurement

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traceflops.attribution import operators
from traceflops.reports.page.deeplinks import DeepLinks
from traceflops.reports.view import Label, labels

if TYPE_CHECKING:
    from traceflops.analysis import Analysis


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as it is read, and the number that sorts its column and goes into a CSV.

    The number is None where it is not known; with `at_most` it is the upper of two bounds.
    """

    text: str
    value: float | None
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class WorkShown:
    """The work of all kernels or operators of one name, of those launches where it is known.

    `bound` is what limits it, or that it is slow; `by` says what tells the limit. Empty: unknown.
    """

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


def kernel_work(measured: Measurement, names: Iterable[str]) -> dict[str, WorkShown]:
    """Return the work of kernels of some names; empty where no work of any is counted."""
    return _of_names(measured, measured.kernels, set(names))


def op_work(measured: Measurement, names: Iterable[str]) -> dict[str, WorkShown]:
    """Return the work of operators of some names; empty where no work of any is counted."""
    return _of_names(measured, measured.ops, set(names))


@dataclass(frozen=True, slots=True)
class WorkColumns:
    """Which columns of work any row of a table fills, and if any is above its peak."""

    flops: bool
    rate: bool
    of_peak: bool
    bytes_rate: bool
    of_bandwidth: bool
    bound: bool
    above: bool

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)

    @property
    def remark(self) -> str:
        """Return what is said of the columns: which are left out, and what shares above 1 are."""
        lacks = [text for name, text in _COLUMNS.items() if not getattr(self, name)]
        texts = (f"Unknown: {listed(lacks)}." if lacks else "", ABOVE if self.above else "")
        return " ".join(text for text in texts if text)


_COLUMNS: Final = {
    "flops": "FLOPs",
    "rate": "TFLOP/s",
    "of_peak": "share of peak",
    "bytes_rate": "GB/s",
    "of_bandwidth": "share of bandwidth",
    "bound": "compute or memory bound",
}


def work_columns(works: Iterable[WorkShown | None]) -> WorkColumns:
    """Return which columns any of some rows fills."""
    known = [one for one in works if one is not None]
    return WorkColumns(
        flops=any(one.flops.value is not None for one in known),
        rate=any(one.rate.value is not None for one in known),
        of_peak=any(one.of_peak.value is not None for one in known),
        bytes_rate=any(one.bytes_rate.value is not None for one in known),
        of_bandwidth=any(one.of_bandwidth.value is not None for one in known),
        bound=any(one.bound for one in known),
        above=any((one.of_peak.value or 0) > 1 for one in known),
    )


def counted_at(measured: Measurement) -> str:
    """Return where the bytes of kernels were counted; empty where no work is by counters."""
    work = measured.executed.work
    return work.bytes_at if work is not None and is_by_counters(measured) else ""


def rates_sentence(measured: Measurement) -> str:
    """Return what FLOPs and rates of a table are of."""
    at = counted_at(measured)
    moved = f"counted at {at}" if at else "minimum traffic"
    sentence = f"Rates cover launches with known work; bytes are {moved}."
    if not any(row.path == "host" for row in measured.kernels):
        return sentence
    return f"{sentence} Host copies are compared with the host link, not the memory."


def is_by_counters(measured: Measurement) -> bool:
    """Return whether the work of any kernel is known from hardware counters."""
    return any(row.basis == "counters" for row in measured.kernels)


def _of_names(
    measured: Measurement, rows: Iterable[KernelRow | OpRow], names: set[str]
) -> dict[str, WorkShown]:
    mine = [row for row in rows if row.name in names]
    if not any(row.measured.flops or row.measured.min_bytes for row in mine):
        return {}
    return {row.name: _shown(measured, row) for row in mine}


def _shown(measured: Measurement, row: KernelRow | OpRow) -> WorkShown:
    work, bound = row.measured, bound_word(measured, row)
    nearer = roofline(measured, row.measured, row)
    peak, _ = roof(measured, row.dtypes)
    rate, share, intensity = rate_words(work, peak)
    per_ns, upper = work.flops_per_ns, not work.is_exact
    in_tera = per_ns / THOUSAND if per_ns else None
    # Kernels that only help another one move bytes, too; theirs are counted with the other's.
    used = work.bytes_per_ns or None
    of_memory, of_link = share_of_bandwidth(measured, row), share_of_link(measured, row)
    of_bandwidth = (of_memory if of_memory is not None else of_link) if used else None
    return WorkShown(
        name=row.name,
        time_ns=work.time_ns,
        count=row.counted if isinstance(row, KernelRow) else row.count,
        flops=_flops(work),
        rate=_figure(rate, in_tera, upper),
        of_peak=_figure(share, work.share_of_peak(peak) if per_ns else None, upper),
        bytes_rate=_figure(count(round(used)) if used is not None else UNKNOWN, used),
        of_bandwidth=_figure(_percent(of_bandwidth), of_bandwidth),
        intensity=_figure(intensity, work.intensity or None, upper),
        bound=bound,
        by=nearer.basis if nearer is not None and bound not in ("", SLOW) else "",
    )


def _flops(work: Measured) -> Figure:
    if not work.flops:
        return Figure(UNKNOWN, None)
    text = flops(work.flops) if work.is_exact else f"{AT_MOST}{flops(work.flops)}"
    return Figure(text, work.flops, not work.is_exact)


def _figure(text: str, value: Fraction | None, at_most: bool = False) -> Figure:
    return Figure(text, float(value) if value is not None else None, at_most)


def _percent(share: Fraction | None) -> str:
    return percent(float(share)) if share is not None else UNKNOWN


# The table of operators: device time of what they launched, and their counted work.


MOST_OPERATORS: Final = 100


@dataclass(frozen=True, slots=True)
class OperatorShown:
    """A row of the table; `link` is what follows # in a link to it."""

    row: Mapping[str, Any]
    label: Label
    link: str
    work: WorkShown | None


@dataclass(frozen=True, slots=True)
class OperatorsPage:
    """The operators that are shown, what is not, and the time of which no operator is known.

    `rest` are those of which other operators launched all that they are for: no time is their own.
    Shares of operators are of the device time; `unknown_share` is of the kernels' time, `all_ns`.
    """

    rows: list[OperatorShown]
    rest: list[OperatorShown]
    hidden: int
    hidden_ns: int
    unknown_activities: int
    unknown_ns: int
    unknown_share: float | None
    all_ns: int
    rates: str
    counted: WorkColumns
    counted_of_rest: WorkColumns
    has_host: bool


def operators_page(analysis: Analysis) -> OperatorsPage | None:
    """Return the operators with the most device time, None where the trace has none."""
    if analysis.prepared is None:
        return None
    found = operators(analysis.prepared)
    table = found.table.slice(0, MOST_OPERATORS)
    if not table.num_rows:
        return None
    rows, links = table.to_pylist(), DeepLinks("op")
    work = op_work(analysis.measured, [row["name"] for row in rows])
    all_ns = sum(found.table["sum_ns"].to_pylist()) + found.left_ns + found.unknown_ns
    named = labels([row["name"] for row in rows])
    shown = [
        OperatorShown(row, label, links.of(row["name"]), work.get(row["name"]))
        for row, label in zip(rows, named, strict=True)
    ]
    own = [one for one in shown if one.row["sum_ns"]] or shown
    rest = shown[len(own) :] if own[-1] is not shown[-1] else []
    counted = work_columns(one.work for one in own)
    return OperatorsPage(
        rows=own,
        rest=rest,
        hidden=found.table.num_rows - len(rows) + found.left,
        hidden_ns=all_ns - found.unknown_ns - sum(row["sum_ns"] for row in rows),
        unknown_activities=found.unknown_activities,
        unknown_ns=found.unknown_ns,
        unknown_share=found.unknown_ns / all_ns if all_ns else None,
        all_ns=all_ns,
        rates=rates_sentence(analysis.measured) if counted else "",
        counted=counted,
        counted_of_rest=work_columns(one.work for one in rest),
        has_host=any(row["host_ns"] is not None for row in rows),
    )
