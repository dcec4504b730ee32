"""The tables of a report as rows of plain cells, which a renderer lays out.

A cell is a text of ours, a name in the trace, or several of these, printed with spaces between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Self

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.characters import function_name
from traceflops.mfu.measurement import Measurement
from traceflops.reports.view import figures, wording
from traceflops.reports.view.culprits import (
    gap_cause,
    gap_culprits,
    length_label,
    pace_sentence,
    waited_for,
)
from traceflops.reports.view.palette import CAUSE_LABELS, category_label
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.utilisation import bounds_sentence, facts, parts, rates
from traceflops.table.schema import DEVICE_KINDS
from traceflops.timeline.aggregates import Untimed
from traceflops.timeline.records import COMPONENTS, Gap
from traceflops.units import capitalized
from traceflops.windows.records import DeviceReport

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
    """A name in the trace, shown as code; `whole` is the full name if the text is a shorter one."""

    __slots__ = ("whole",)
    whole: str

    def __new__(cls, shown: str, whole: str = "") -> Self:
        """Return a name; without `whole` it is not shortened."""
        name = super().__new__(cls, shown)
        name.whole = whole or shown
        return name


class Share(str):
    """A share as text, "53.5 %"; the page also draws a bar of its `value` (0 to 1)."""

    __slots__ = ("value",)
    value: float | None

    def __new__(cls, value: float | None) -> Self:
        """Return a share as text, a dash for None."""
        share = super().__new__(cls, figures.percent(value))
        share.value = value
        return share


Cell = str | tuple[str, ...]


class Column(Struct, frozen=True):
    """A column of a table: its head, and a function that returns the cell of a row."""

    head: str
    cell: Callable[[Any], Cell]
    is_number: bool = False

    @classmethod
    def number(cls, head: str, cell: Callable[[Any], Cell]) -> Self:
        """Return a column of numbers, which are aligned to the right."""
        return cls(head, cell, is_number=True)


class ReportTable(Struct, frozen=True):
    """The first rows of `total`, a remark below them, and the depth of each row in a tree."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    total: int
    remark: str = ""
    depths: Sequence[int] = ()

    @property
    def indents(self) -> Sequence[int]:
        """The depth of each row, 0 if the rows are no tree."""
        return self.depths or [0] * len(self.rows)


_SUMS: Final = (
    Column("Category", lambda row: spaced(row["sub"])),
    Column.number("Total time", lambda row: figures.duration(row["sum_ns"])),
    Column.number("Share", lambda row: figures.time_share(row["share"])),
)
_CATEGORY: Final = (Column("Part", lambda row: category_label(row["top"])), *_SUMS)
_COUNTED_SUMS: Final = (*_SUMS, Column.number("Count", lambda row: figures.count(row["count"])))
_COLLECTIVE: Final = (
    Column("Collective", wording.collective_label),
    Column.number("Count", lambda row: figures.count(row.count)),
    Column.number("Mean message", wording.mean_message),
    Column.number("Bytes", lambda row: figures.size(row.bytes)),
    Column.number("Total time", lambda row: figures.duration(row.sum_ns)),
    Column.number("Exposed", lambda row: figures.duration(row.exposed_ns)),
    Column.number("Rate with waiting", lambda row: figures.bandwidth(row.bytes_per_ns)),
)
_JOB: Final = (
    Column.number("Job", lambda job: str(job.number)),
    Column("Files", lambda job: Name(wording.job_files(job))),
    Column("Work", wording.job_size),
    Column("Result", lambda job: job.verdict or ""),
)
_WAITS: Final = (
    Column("GPU waits on", lambda row: row.words),
    Column("Largest part", lambda row: tuple(short_names(row.names))),
    Column.number("Time", lambda row: figures.duration(row.mean_ns)),
    Column.number("Of idle time", lambda row: figures.percent(row.share)),
    Column.number("Gaps", lambda row: figures.count(row.gaps)),
)
_LENGTHS: Final = (
    Column("Length of gap", length_label),
    Column.number("Gaps", lambda lengths: figures.count(lengths.gaps)),
    Column.number("Total time", lambda lengths: figures.duration(lengths.idle_ns)),
)
_SYNCHRONISATION: Final = (
    Column("Synchronizing call", lambda sync: Name(sync.call)),
    Column("Called in", lambda sync: short_names([sync.site])[0] or figures.UNKNOWN),
    Column.number("Count", lambda sync: figures.count(sync.count)),
    Column.number("Blocked", lambda sync: figures.duration(sync.blocked_ns)),
    Column.number("Idle after", lambda sync: figures.duration(sync.idle_after_ns)),
)
_WATERFALL: Final = (
    Column("Where the peak went", lambda part: part.label),
    Column.number("Share", lambda part: part.percent),
    Column("Meaning", lambda part: part.text),
)
_FACT: Final = (
    Column("Figure", lambda fact: fact.label),
    Column.number("Value", lambda fact: fact.value),
    Column("Remark", lambda fact: fact.remark),
)

_KINDS: Final = (
    ("totals", "Kernels and copies", DEVICE_KINDS),
    ("totals-domains", "Domains", ("domain",)),
    ("totals-calls", "CPU API calls", ("call",)),
    ("totals-marks", "Annotations", ("mark",)),
    ("totals-functions", "Python functions (own time)", ("python",)),
    ("totals-ranges", "GPU annotations", ("gpu_mark",)),
    ("totals-system", "System calls and waits", ("system",)),
)
"""Tables of sums: the id of the section, its title, and the kinds of events that are summed."""


def table_of(
    columns: Sequence[Column],
    rows: Iterable[Any],
    total: int | None = None,
    remark: str = "",
    depths: Sequence[int] = (),
) -> ReportTable:
    """Return a table with a cell per row and column; `total` rows exist, by default those given."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    return ReportTable(columns, cells, len(cells) if total is None else total, remark, depths)


def known_columns(columns: Iterable[Column], rows: Sequence[Any]) -> list[Column]:
    """Return the columns that have a value other than UNKNOWN in any of these rows."""
    return [
        column for column in columns if any(column.cell(row) != figures.UNKNOWN for row in rows)
    ]


def spaced(category: str | None) -> str:
    """Return the name of a category with spaces, "" for None."""
    return (category or "").replace("_", " ")


def jobs_table(analysis: Analysis) -> ReportTable:
    """Return the jobs that the files belong to; no row if the user has chosen one of them."""
    jobs = analysis.jobs if analysis.of_no_job else ()
    return table_of(_JOB, jobs[:_DEVICES], len(jobs))


def components_table(analysis: Analysis) -> ReportTable:
    """Return the mean time and share of each component; compute and idle are shown even if 0."""
    components, total = analysis.components, analysis.total
    rows = [
        (wording.component_label(name, total), ns, components.share(name))
        for name, ns in (components.parts().items() if components.window_ns else ())
        if ns or name in ("compute", "idle")
    ]
    return _means(analysis, "Component", "Share", rows)


def waits_table(analysis: Analysis) -> ReportTable:
    """Return what the GPUs mostly wait on, as mean times; the remark says if launches keep up."""
    return table_of(_WAITS, waited_for(analysis), remark=pace_sentence(analysis))


def synchronisations_table(analysis: Analysis) -> ReportTable:
    """Return the calls in which the CPU waited for a GPU; times are sums over all windows."""
    calls = analysis.synchronisations
    return table_of(_SYNCHRONISATION, calls[:_SYNCHRONISATIONS], len(calls), _BLOCKED)


def waterfall_table(measured: Measurement) -> ReportTable:
    """Return the lines of the MFU waterfall: the shares of the peak that were used or lost."""
    lines = parts(measured.waterfall) if measured.waterfall is not None else ()
    return table_of(_WATERFALL, lines, remark=bounds_sentence(measured))


def folded_tables(analysis: Analysis) -> Iterator[tuple[str, ReportTable]]:
    """Yield the tables behind the first figures, each after its title."""
    on_host, kernels = analysis.on_host, analysis.kernels
    yield "Figures behind it", table_of(_FACT, facts(analysis))

    # Kernels, with a column of rates if any is known.
    overlaps = f"{capitalized(wording.OVERLAPS)}." if wording.overlap(analysis) else ""
    rows = kernels.slice(0, _KERNELS).to_pylist()
    rate_of = {} if analysis.only_launches else rates(analysis.measured)
    sums = list(_COUNTED_SUMS)
    if any(row["name"] in rate_of for row in rows):
        sums.append(Column.number("Rate", lambda row: rate_of.get(row["name"], figures.UNKNOWN)))
    title = "Top operators" if on_host else "Top kernels and copies"
    yield title, _of_names("Name", rows, kernels.num_rows, sums, overlaps)
    categories = analysis.categories.to_pylist()
    yield "Categories", table_of(_CATEGORY, categories[:_CATEGORIES], len(categories), overlaps)

    collectives = analysis.collectives
    columns, remark = list(_COLLECTIVE), "Exposed: nothing else ran on the GPU."
    if not wording.knows_exposure(analysis):
        columns, remark = [column for column in columns if column.head != "Exposed"], ""
    shown = collectives[:_COLLECTIVES]
    yield "Communication", table_of(columns, shown, len(collectives), remark)

    # Causes say why a GPU waited for a launch; operators on a CPU are not launched.
    idle = analysis.total.idle_causes
    causes = [
        (CAUSE_LABELS[cause], ns, ns / idle.idle_ns)
        for cause, ns in idle.detailed().items()
        if ns and not on_host
    ]
    yield "Idle time by cause", _means(analysis, "Cause", "Of idle time", causes)
    yield "Gaps by length", table_of(_LENGTHS, () if on_host else analysis.idle.histogram)
    yield "Longest gaps", _gaps(analysis)
    yield "Synchronizing calls", synchronisations_table(analysis)
    yield "Processes" if on_host else "GPUs", _devices_table(analysis)


def _devices_table(analysis: Analysis) -> ReportTable:
    """Return the window and the share of each component per device; no row for a single device."""
    devices = analysis.devices if len(analysis.devices) > 1 else ()

    def share_of(component: str, device: DeviceReport) -> str:
        return figures.percent(device.chosen.components.share(component))

    labels = {name: wording.component_label(name, analysis.total) for name in COMPONENTS}
    columns = (
        Column(capitalized(wording.unit(analysis)), lambda device: device.label),
        Column.number("Window", lambda row: figures.duration(row.chosen.components.window_ns)),
        *(Column.number(head, partial(share_of, name)) for name, head in labels.items()),
    )
    return table_of(columns, devices[:_DEVICES], len(devices))


def _means(
    analysis: Analysis, head: str, share: str, rows: Iterable[tuple[str, int, float | None]]
) -> ReportTable:
    """Return parts of the time under the heads `head`, "Time" and `share`.

    A row is a name, its ns in all windows (printed as the mean per window), and a share.
    """
    columns = (
        Column(head, lambda row: row[0]),
        Column.number("Time", lambda row: figures.duration(analysis.mean_ns(row[1]))),
        Column.number(share, lambda row: figures.percent(row[2])),
    )
    return table_of(columns, rows, remark=f"{wording.basis(analysis)}.")


def _gaps(analysis: Analysis) -> ReportTable:
    """Return the longest gaps, each with its cause and the work that ended it."""
    device_labels = {device.device: device.label for device in analysis.devices}
    gaps = analysis.gaps(_GAPS)
    culprits = gap_culprits(gaps)
    ended_by, waited_for = [gap.op or gap.before for gap in gaps], [gap.waited_for for gap in gaps]
    label = _labels([*ended_by, *waited_for, *(name for _, name in culprits)])

    def cause(gap: Gap) -> Cell:
        """Return the class and name of the culprit; if it is unknown, the cause of idle time."""
        words, name = culprits[gaps.index(gap)]
        if words:
            return (words, label[name]) if name else words
        text = gap_cause(gap)
        return (f"{text} for", label[gap.waited_for]) if gap.waited_for else text

    columns = (
        Column.number("Duration", lambda gap: figures.duration(gap.dur_ns)),
        Column("Where", wording.gap_place),
        Column("GPU", lambda gap: device_labels[gap.device]),
        Column("Cause", cause),
        Column("Until", lambda gap: label[gap.op or gap.before]),
    )
    return table_of(columns, gaps)


def sums_by_kind(untimed: Untimed) -> list[dict[str, Any]]:
    """Return a section per kind of event: its first sums by name, of `total` sums."""
    sections = []
    for id_, title, kinds in _KINDS:
        table = untimed.of_kind(*kinds)
        if rows := table.slice(0, _MOST_SUMS).to_pylist():
            section = {"id": id_, "title": title, "rows": rows, "total": table.num_rows}
            has_bytes = any(row["bytes"] is not None for row in rows)
            sections.append(section | {"has_bytes": has_bytes})
    return sections


def untimed_tables(untimed: Untimed) -> Iterator[ReportTable]:
    """Yield a table of sums by name for each kind of event that has any."""
    for sums in sums_by_kind(untimed):
        yield _of_names(sums["title"], sums["rows"], sums["total"], _COUNTED_SUMS)


def _of_names(
    head: str,
    rows: Sequence[dict[str, Any]],
    total: int,
    columns: Sequence[Column],
    remark: str = "",
) -> ReportTable:
    """Return the first rows as a table whose first column, under `head`, has the names."""
    shown = rows[:_KERNELS]
    label = _labels([row["name"] for row in shown])
    names = Column(head, lambda row: label[row["name"]])
    return table_of((names, *columns), shown, total, remark)


def _labels(names: Sequence[str]) -> dict[str, Name]:
    """Return the short form of each name of one table, by name."""
    return dict(zip(names, short_names(names), strict=True))


def short_names(names: Sequence[str]) -> list[Name]:
    """Return the names of one table in a short form; different names stay different."""
    return list(map(Name, short_labels(list(map(function_name, names)), _NAME), names))
