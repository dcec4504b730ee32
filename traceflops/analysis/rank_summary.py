"""The summary of a rank, small enough to be sent: a report without what needs single events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.notes import OF_DEVICES
from traceflops.analysis.preparation import prepare
from traceflops.analysis.recipe import GAPS_OF_SUMMARY, analysis_of
from traceflops.analysis.result import Analysis
from traceflops.attribution.culprits import Culprit, IdleCulprits
from traceflops.attribution.host_calls import HostOperator, Synchronisation
from traceflops.attribution.kernels import kernel_totals, memory_times
from traceflops.attribution.launch_lead import Launches
from traceflops.devices.missing_input import MissingInput
from traceflops.flops.mfu_waterfall import DeviceBudget
from traceflops.mfu.budget import DevicePeaks, PeakOptions, device_budgets
from traceflops.mfu.measurement import why_no_figure
from traceflops.mfu.roof_times import Measured, RoofTimes
from traceflops.mfu.traced.cells import Cell
from traceflops.mfu.traced.coverage import ComputeTime
from traceflops.mfu.traced.executed import Outside
from traceflops.mfu.traced.work_tables import KernelRow, OpRow
from traceflops.ranks.collectives import Collective
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.late_causes import KernelSums
from traceflops.ranks.recorded import records_of
from traceflops.ranks.slow_rank import PreparedWork
from traceflops.table.columns import dictionary_column, number_column, numbers
from traceflops.table.grouping import group_rows
from traceflops.table.schema import arrow_schema
from traceflops.table.trace import Note, Trace, counted_note
from traceflops.windows.device_records import LaunchRecords
from traceflops.windows.records import DeviceReport, StepChoice
from traceflops.windows.selection import Selection

_MOST_ROWS: Final = 1_000  # rows of each of the tables of kernels and operators
_MOST_WINDOWS: Final = 1 << 14
_STEPS_CUT: Final = (
    "{n} [step|steps] at the end [is|are] not in the summaries; all figures are without [it|them]."
)
_CUT: Final = (
    "{n} [collective|collectives] at the end [is|are] not in the summaries; waits are told without "
    "[it|them]."
)
T = TypeVar("T")


class RankSummary(Struct, frozen=True, dict=True):
    """The figures of recordings in their chosen windows; fields are those of `Analysis`.

    `trace` has no events except one activity per device and process. `notes` are those that only
    the analysis makes, `codes` the codes of all notes in the order shown. `idle_of` has the
    culprits by device, `work` the kernels by device: first of all steps in which ranks are
    compared, then of each of `long_steps`. `moved` is the time of memory work.
    """

    trace: Trace
    notes: tuple[Note, ...]
    codes: tuple[str, ...]
    choice: StepChoice
    launch_records: LaunchRecords
    reports: tuple[DeviceReport, ...]
    kernels: pa.Table
    moved: dict[str, int]
    idle: IdleCulprits
    long_steps: tuple[int, ...]
    idle_of: tuple[tuple[tuple[Culprit, ...], ...], ...]
    records: CommRecords
    work: tuple[KernelSums, ...]
    peaks: tuple[DevicePeaks, ...]
    budgets: tuple[DeviceBudget, ...]
    lacks: tuple[MissingInput, ...]
    cells: tuple[Cell, ...]
    times: tuple[ComputeTime, ...]
    outside: Outside
    kernel_rows: tuple[KernelRow, ...]
    op_rows: tuple[OpRow, ...]
    roofs: RoofTimes
    collectives: tuple[Collective, ...]
    launches: Launches | None
    host_operators: tuple[HostOperator, ...]
    synchronisations: tuple[Synchronisation, ...]

    @property
    def has_timeline(self) -> bool:
        """Return whether the recordings have device work or launches."""
        return bool(self.reports or self.launch_records.calls or self.launch_records.captured)

    def compact(self, most: int, *, keeps_work: bool) -> RankSummary:
        """Return a smaller summary, with at most `most` collectives of each rank."""
        launches = self.launches and replace(self.launches, leads=self.launches.leads.compact)
        records = self.records.first(most)
        cut = len(self.records) - len(records)
        notes = (*self.notes, counted_note("dropped", "collectives-cut", _CUT, cut))
        notes, records = notes if cut else self.notes, records.compact(keeps_work=keeps_work)
        return replace(self, records=records, launches=launches, notes=notes)


def summarised(trace: Trace, selection: Selection, peaks: PeakOptions, **asked: Any) -> RankSummary:
    """Return the summary of a trace; beyond _MOST_WINDOWS windows the last steps are left out."""
    whole = analysis_of(prepare(trace, selection, **asked), peaks, is_summarised=True)
    used = whole.steps.used
    if whole.windows_used <= _MOST_WINDOWS or not used:
        return summary_of(whole)
    first = used[: max(1, _MOST_WINDOWS // len(whole.devices_used))]
    selection = replace(selection, steps=(first[0], first[-1]), from_ns=None, to_ns=None)
    some = analysis_of(prepare(trace, selection, **asked), peaks, is_summarised=True)
    note = counted_note("dropped", "steps-cut", _STEPS_CUT, len(used) - len(some.steps.used))
    return summary_of(replace(some, notes=(*some.notes, note)))


def summary_of(analysis: Analysis) -> RankSummary:
    """Return the summary of an analysis that has events."""
    prepared, measured = analysis.prepared, analysis.measured
    trace, linked, executed = prepared.trace, prepared.linked, measured.executed
    records, work = records_of(prepared), PreparedWork(prepared)
    long = work.long_steps()
    # Sums are made of all steps in which ranks are compared, and of each long step.
    choices = [work.usual_steps(), *((step,) for step in long)]
    idle, idle_of = work.idle_of_each(records.devices, choices)
    explained_ns = sum(culprit.idle_ns for culprit in idle.culprits)
    unexplained_ns = analysis.total.components.idle_ns - explained_ns
    is_unknown = any(why_no_figure(prepared, executed, measured.devices))
    launches = analysis.launches
    # Not in `notes`: those of `trace`, and those of the measurement, made anew for all ranks.
    elsewhere = {*linked.trace.notes, *measured.notes} - set(executed.notes)

    def longest(rows: Sequence[T]) -> tuple[T, ...]:
        return tuple(sorted(rows, key=attrgetter("measured.time_ns"), reverse=True)[:_MOST_ROWS])

    tables = {"processes": trace.processes, "devices": trace.devices}
    tables["activities"] = _outline(trace.activities)
    reports = []  # only the longest gaps; if windows are very many, only the chosen ones
    for device in analysis.devices:
        gaps = nlargest(GAPS_OF_SUMMARY, device.gaps, key=attrgetter("dur_ns"))
        is_long = len(device.windows) > _MOST_WINDOWS
        windows = [window for window in device.windows if window.used or not is_long]
        reports.append(replace(device, gaps=tuple(gaps), windows=tuple(windows)))
    return RankSummary(
        trace=replace(trace, tables=tables, jobs=(), job=None, places=()),
        notes=tuple(
            note for note in analysis.notes if note.code not in OF_DEVICES and note not in elsewhere
        ),
        codes=tuple(note.code for note in analysis.notes),
        choice=analysis.steps,
        launch_records=prepared.launch_records,
        reports=tuple(reports),
        kernels=kernel_totals(prepared),
        moved=memory_times(prepared),
        idle=replace(idle, unexplained_ns=unexplained_ns),
        long_steps=long,
        idle_of=tuple(map(tuple, idle_of)),
        records=records.compact(keeps_work=True),
        work=tuple(sums.used for sums in work.kernels_of_each(records.devices, choices)),
        peaks=measured.devices,
        budgets=() if is_unknown else device_budgets(prepared, executed, measured.rates),
        lacks=measured.lacks,
        cells=_of_all_windows(executed.used_cells, *_OF_A_CELL),
        times=_of_all_windows((time for time in executed.times if time.used), *_OF_A_TIME),
        outside=executed.outside,
        kernel_rows=longest(measured.kernels),
        op_rows=longest(measured.ops),
        roofs=measured.roofs,
        collectives=analysis.collectives,
        launches=launches and replace(launches, leads=launches.leads.compact),
        host_operators=analysis.host_operators,
        synchronisations=analysis.synchronisations,
    )


_OF_A_TIME: Final = ("device", "used")
_OF_A_CELL: Final = (*_OF_A_TIME, "component", "dtype", "line", "rule")


def _outline(activities: pa.Table) -> pa.Table:
    """Return activities with one row per device and process, which spans all of theirs."""
    names = ("device", "process", "start_ns", "dur_ns")
    device, process, start, length = (numbers(activities[name]) for name in names)
    group, first = group_rows((device, process))
    begin, end = start[first], (start + length)[first]
    np.minimum.at(begin, group, start)
    np.maximum.at(end, group, start + length)
    schema = arrow_schema("activities")
    values = zip(names, (device[first], process[first], begin, end - begin), strict=True)
    columns = {name: number_column(value, schema.field(name).type) for name, value in values}
    columns["kind"] = dictionary_column(np.zeros(len(first), dtype=np.int32), ["kernel"])
    arrays = [columns.get(field.name, pa.nulls(len(first), field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _of_all_windows(rows: Iterable[T], *keys: str) -> tuple[T, ...]:
    """Return the sums of rows over all windows, as rows of window 0; `keys` tell rows apart."""
    return tuple(replace(row, window=0) for row in summed(rows, *keys))  # type: ignore[type-var]


def summed(rows: Iterable[T], *keys: str) -> tuple[T, ...]:
    """Return one row for all rows of equal keys, in which integers and `Measured` are added up.

    Other fields are those of the first row; None in any row gives None, except for flags.
    """
    key = attrgetter(*keys)
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    total_rows: list[T] = []
    for members in groups.values():
        sums: dict[str, Any] = {}
        for name in members[0].__struct_fields__ if len(members) > 1 else ():
            first, *others = map(attrgetter(name), members)
            if name in keys or isinstance(first, bool):
                continue
            if first is None or None in others:
                sums[name] = None
            elif isinstance(first, int | Measured):
                sums[name] = sum(others, first)
        total_rows.append(replace(members[0], **sums) if sums else members[0])
    return tuple(total_rows)
