"""The tables of a report as rows of plain cells, which a renderer lays out.

A cell is a text of ours, a name in the trace, or several of these, with spaces between them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from traceflops.characters import function_name
from traceflops.reports.view.culprits import gap_culprits, length_label, pace_sentence, waited_for
from traceflops.reports.view.figures import (
    UNKNOWN,
    count,
    duration,
    percent,
    size,
    time_share,
)
from traceflops.reports.view.palette import CAUSE_LABELS, category_label
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.utilisation import bounds_sentence, facts, parts, rates
from traceflops.reports.view.wording import (
    OVERLAPS,
    basis,
    collective_label,
    collective_rate,
    component_label,
    gap_place,
    job_files,
    job_size,
    knows_exposure,
    mean_message,
    overlap,
    unit,
)
from traceflops.table.schema import DEVICE_KINDS
from traceflops.timeline.records import COMPONENTS
from traceflops.units import capitalized

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.mfu.measurement import Measurement
    from traceflops.timeline.aggregates import Untimed
    from traceflops.timeline.records import Gap

_MOST_SUMS: Final = 100
_KERNELS: Final = 10
_CATEGORIES: Final = 12
_COLLECTIVES: Final = 8
_GAPS: Final = 5
_DEVICES: Final = 32
_SYNCHRONISATIONS: Final = 10
_BLOCKED: Final = "Totals. Idle after: idle GPU time that began during the call."
_NAME: Final = 90


class Name(str):
    """A name in the trace, which is shown as code; `whole` is what it is short for."""

    __slots__ = ("whole",)
    whole: str

    def __new__(cls, shown: str, whole: str = "") -> Self:
        """Return a name; without another it is whole."""
        made = super().__new__(cls, shown)
        made.whole = whole or shown
        return made


class Share(str):
    """A share in words, of which the page draws a bar."""

    __slots__ = ("value",)
    value: float | None

    def __new__(cls, value: float | None) -> Self:
        """Return a share in words."""
        made = super().__new__(cls, percent(value))
        made.value = value
        return made


Cell = str | tuple[str, ...]


class Column(Struct, frozen=True):
    """A column of a table: its head, what a row has there, and what is said of it below."""

    head: str
    cell: Callable[[Any], Cell]
    is_number: bool = False
    remark: str = ""


class ReportTable(Struct, frozen=True):
    """The rows that are shown of `total`, a cell per column, and what is said below them.

    Of a tree `depths` says how deep each row is.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    total: int
    remark: str = ""
    depths: Sequence[int] = ()

    def said(self, heads: Container[str] | None = None) -> str:
        """Return what is said below the table, if not all columns are shown of those that are."""
        shown = (column for column in self.columns if heads is None or column.head in heads)
        return " ".join(filter(None, (self.remark, *(one.remark for one in shown))))

    @property
    def indents(self) -> Sequence[int]:
        """Return how deep each row is, 0 in what is no tree."""
        return self.depths or [0] * len(self.rows)


_number = partial(Column, is_number=True)
_SUMS: Final = (
    Column("Category", lambda row: spaced(row["sub"])),
    _number("Total time", lambda row: duration(row["sum_ns"])),
    _number("Share", lambda row: time_share(row["share"])),
)
_CATEGORY: Final = (Column("Part", lambda row: category_label(row["top"])), *_SUMS)
_COUNTED_SUMS: Final = (*_SUMS, _number("Count", lambda row: count(row["count"])))
_COLLECTIVE: Final = (
    Column("Collective", collective_label),
    _number("Count", lambda row: count(row.count)),
    _number("Mean message", mean_message),
    _number("Bytes", lambda row: size(row.bytes)),
    _number("Total time", lambda row: duration(row.sum_ns)),
    _number("Exposed", lambda row: duration(row.exposed_ns)),
    _number("Rate with waiting", collective_rate),
)
_JOB: Final = (
    _number("Job", lambda job: str(job.number)),
    Column("Files", lambda job: Name(job_files(job))),
    Column("Work", job_size),
    Column("Result", lambda job: job.verdict or ""),
)
_WAITS: Final = (
    Column("GPU waits on", lambda row: row.words),
    Column("Largest part", lambda row: tuple(short_names(row.names))),
    _number("Time", lambda row: duration(row.mean_ns)),
    _number("Of idle time", lambda row: percent(row.share)),
    _number("Gaps", lambda row: count(row.gaps)),
)
_LENGTHS: Final = (
    Column("Length of gap", length_label),
    _number("Gaps", lambda lengths: count(lengths.gaps)),
    _number("Total time", lambda lengths: duration(lengths.idle_ns)),
)
_SYNCHRONISATION: Final = (
    Column("Synchronizing call", lambda one: Name(one.call)),
    Column("Called in", lambda one: short_names([one.site])[0] or UNKNOWN),
    _number("Count", lambda one: count(one.count)),
    _number("Blocked", lambda one: duration(one.blocked_ns)),
    _number("Idle after", lambda one: duration(one.idle_after_ns)),
)
_WATERFALL: Final = (
    Column("Where the peak went", lambda part: part.label),
    _number("Share", lambda part: part.percent),
    Column("Meaning", lambda part: part.text),
)
_FACT: Final = (
    Column("Figure", lambda fact: fact.label),
    _number("Value", lambda fact: fact.value),
    Column("Remark", lambda fact: fact.remark),
)

_KINDS: Final = (
    ("totals", "Kernels and copies", DEVICE_KINDS),
    ("totals-calls", "CPU API calls", ("call",)),
    ("totals-marks", "Annotations", ("mark",)),
    ("totals-functions", "Python functions (own time)", ("python",)),
    ("totals-ranges", "GPU annotations", ("gpu_mark",)),
)


def table_of(
    columns: Sequence[Column],
    rows: Iterable[Any],
    total: int | None = None,
    remark: str = "",
    depths: Sequence[int] = (),
) -> ReportTable:
    """Return a table of some rows; they are all that there are unless `total` says otherwise."""
    shown = [[column.cell(row) for column in columns] for row in rows]
    return ReportTable(columns, shown, len(shown) if total is None else total, remark, depths)


def known_columns(columns: Iterable[Column], rows: Sequence[Any]) -> list[Column]:
    """Return the columns in which anything is known of some rows."""
    return [column for column in columns if any(column.cell(row) != UNKNOWN for row in rows)]


def spaced(category: str | None) -> str:
    """Return the name of a category in words."""
    return (category or "").replace("_", " ")


def jobs_table(analysis: Analysis) -> ReportTable:
    """Return the jobs that the files are of, none where one of them is chosen."""
    jobs = analysis.jobs if analysis.of_no_job else ()
    return table_of(_JOB, jobs[:_DEVICES], len(jobs))


def components_table(analysis: Analysis) -> ReportTable:
    """Return the components as means; those that GPUs always have stand there even if 0."""
    shares, total = analysis.components, analysis.total
    rows = [
        (component_label(name, total), ns, shares.share(name))
        for name, ns in (shares.parts().items() if shares.window_ns else ())
        if ns or name in ("compute", "idle")
    ]
    return _means(analysis, "Component", "Share", rows)


def waits_table(analysis: Analysis) -> ReportTable:
    """Return what the GPUs mostly wait on, as means, and whether the CPU is fast enough."""
    return table_of(_WAITS, waited_for(analysis), remark=pace_sentence(analysis))


def synchronisations_table(analysis: Analysis) -> ReportTable:
    """Return the calls in which the CPU waited for a GPU, sums over the chosen windows."""
    found = analysis.synchronisations
    return table_of(_SYNCHRONISATION, found[:_SYNCHRONISATIONS], len(found), _BLOCKED)


def waterfall_table(measured: Measurement) -> ReportTable:
    """Return where the peak went."""
    lines = parts(measured.waterfall) if measured.waterfall is not None else ()
    return table_of(_WATERFALL, lines, remark=bounds_sentence(measured))


def folded_tables(analysis: Analysis) -> Iterator[tuple[str, ReportTable]]:
    """Yield the tables behind the first figures, each after its title."""
    kernels, categories = analysis.kernels, analysis.categories.to_pylist()
    first, moved = kernels.slice(0, _KERNELS).to_pylist(), analysis.collectives
    exposed = "Exposed: nothing else ran on the GPU."
    on_host = analysis.on_host
    yield "Figures behind it", table_of(_FACT, facts(analysis))
    work = "operators" if on_host else "kernels and copies"
    twice = f"{capitalized(OVERLAPS)}." * overlap(analysis)
    known = {} if analysis.only_launches else rates(analysis.measured)
    fast = _number("Rate", lambda row: known.get(row["name"], UNKNOWN))
    sums = (*_COUNTED_SUMS, fast) if any(row["name"] in known for row in first) else _COUNTED_SUMS
    top = _of_names("Name", first, kernels.num_rows, sums)
    yield f"Top {work}", replace(top, remark=twice)
    yield "Categories", table_of(_CATEGORY, categories[:_CATEGORIES], len(categories), twice)
    columns: tuple[Column, ...] = _COLLECTIVE
    if not knows_exposure(analysis):
        columns, exposed = tuple(column for column in columns if column.head != "Exposed"), ""
    yield "Communication", table_of(columns, moved[:_COLLECTIVES], len(moved), exposed)
    idle = analysis.total.idle_causes
    rows = [
        (CAUSE_LABELS[cause], ns, ns / idle.idle_ns)
        for cause, ns in idle.detailed().items()
        if ns and not analysis.on_host
    ]
    yield "Idle time by cause", _means(analysis, "Cause", "Of idle time", rows)
    yield "Gaps by length", table_of(_LENGTHS, analysis.idle.histogram if not on_host else ())
    yield "Longest gaps", _gaps(analysis)
    yield "Synchronizing calls", synchronisations_table(analysis)
    yield "Processes" if on_host else "GPUs", _devices(analysis)


def _means(
    analysis: Analysis, head: str, share: str, rows: Iterable[tuple[str, int, float | None]]
) -> ReportTable:
    """Return parts of the time as means, each with its share."""
    columns = (
        Column(head, lambda row: row[0]),
        _number("Time", lambda row: duration(analysis.mean_ns(row[1]))),
        _number(share, lambda row: percent(row[2])),
    )
    return table_of(columns, rows, remark=f"{basis(analysis)}.")


def _gaps(analysis: Analysis) -> ReportTable:
    """Return the longest gaps, each with its cause and the work that ended it."""
    devices = {device.device: device.label for device in analysis.devices}
    gaps = analysis.gaps(_GAPS)
    culprits = gap_culprits(gaps)
    untils, waits = [gap.op or gap.before for gap in gaps], [gap.waited_for for gap in gaps]
    label = _labels([*untils, *waits, *(name for _, name in culprits)])

    def cause(gap: Gap) -> Cell:
        words, name = culprits[gaps.index(gap)]
        if words:
            return (words, label[name]) if name else words
        text = CAUSE_LABELS[gap.causes.largest]
        return (f"{text} for", label[gap.waited_for]) if gap.waited_for else text

    columns = (
        _number("Duration", lambda gap: duration(gap.dur_ns)),
        Column("Where", gap_place),
        Column("GPU", lambda gap: devices[gap.device]),
        Column("Cause", cause),
        Column("Until", lambda gap: label[gap.op or gap.before]),
    )
    return table_of(columns, gaps)


def _devices(analysis: Analysis) -> ReportTable:
    """Return the shares of each device, where there are several."""

    def share_of(component: str) -> Column:
        head = component_label(component, analysis.total)
        return _number(head, lambda one: percent(one.chosen.components.share(component)))

    devices = analysis.devices if len(analysis.devices) > 1 else ()
    columns = (
        Column(capitalized(unit(analysis)), lambda device: device.label),
        _number("Window", lambda device: duration(device.chosen.components.window_ns)),
        *map(share_of, COMPONENTS),
    )
    return table_of(columns, devices[:_DEVICES], len(devices))


class SumsOfKind(Struct, frozen=True):
    """The sums of one kind of event: the rows that are shown, and how many there are."""

    id: str
    title: str
    rows: list[dict[str, Any]]
    total: int

    @property
    def has_bytes(self) -> bool:
        """Return whether a size is known of any row."""
        return any(row["bytes"] is not None for row in self.rows)


def sums_by_kind(untimed: Untimed) -> list[SumsOfKind]:
    """Return the tables of sums that have rows."""
    return [
        SumsOfKind(id_, title, table.slice(0, _MOST_SUMS).to_pylist(), table.num_rows)
        for id_, title, kinds in _KINDS
        if (table := untimed.of_kind(*kinds)).num_rows
    ]


def untimed_tables(untimed: Untimed) -> Iterator[ReportTable]:
    """Yield the sums of each kind of event."""
    for sums in sums_by_kind(untimed):
        yield _of_names(sums.title, sums.rows, sums.total, _COUNTED_SUMS)


def _of_names(
    head: str, rows: Sequence[dict[str, Any]], total: int, columns: Sequence[Column]
) -> ReportTable:
    """Return the first rows of a table, their names before the other columns."""
    shown = rows[:_KERNELS]
    label = _labels([row["name"] for row in shown])
    names = Column(head, lambda row: label[row["name"]])
    return table_of((names, *columns), shown, total)


def _labels(names: Sequence[str]) -> dict[str, Name]:
    """Return what is shown of the names of one table, by name."""
    return dict(zip(names, short_names(names), strict=True))


def short_names(names: Sequence[str]) -> list[Name]:
    """Return the names of one table, short and told apart."""
    return list(map(Name, short_labels(list(map(function_name, names)), _NAME), names))
