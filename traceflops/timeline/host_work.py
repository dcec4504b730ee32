"""Traces that are less exact: with coarse device times, without copies, or with CPUs only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.facts import fact
from traceflops.remedies import advice
from traceflops.table import grouping
from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import (
    appended,
    codes,
    is_one_of,
    matching,
    names,
    number_column,
    numbers,
    span_columns,
    take_rows,
    thread_columns,
    with_column,
)
from traceflops.table.nesting import innermost_pieces
from traceflops.table.patterns import started
from traceflops.table.schema import empty_table
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.start_up import StartUp
from traceflops.units import time_amount

_COPIES: Final = frozenset({"memcpy", "memset"})
_LAUNCH: Final = re.compile(r"(?i).*launch(?!HostFunc)")
_COPY: Final = re.compile(r"(?i)copy|cpy")
_OF_GRAPHICS: Final = re.compile(r"(?:cuda|cu|hip)Graphics")
_MAPS: Final = re.compile(r"(?:cuda|cu|hip)GraphicsMapResources")  # once per frame
_REFRESH_HERTZ: Final = (24, 25, 30, 50, 60, 72, 75, 90, 100, 120, 144, 165, 240)
_FEWEST_FRAMES, _STEADY, _NEAR = 32, 0.05, 0.01
COPIES_MISSING: Final = "copies-missing"
"""The code of the note that idle time may include copies."""


def with_known_idle(trace: Trace) -> Trace:
    """Return the trace, with sums by name instead of device work if only copies are recorded.

    For then idle time is unknown. If calls show that no kernel was launched, it is known: the trace
    stays. If copies may be missing beside kernels, the device work stays, with a note.
    """
    if lacks_copies(trace):
        note = _without_copies(trace)
        return trace if note in trace.notes else replace(trace, notes=(*trace.notes, note))
    kinds = _kinds(trace)
    has_only_copies = bool(kinds) and kinds <= _COPIES and not trace.ops.num_rows
    launches_none = trace.calls.num_rows > 0 and not started(trace.calls, _LAUNCH).any()
    if not has_only_copies or launches_none:
        return trace
    return _as_sums(trace, note_of("missing", "copies-only", advice=fact("advice.copies-only")))


def _without_copies(trace: Trace) -> Note:
    """Return the note that idle time may include copies: none are recorded, or only their sums."""
    are_copies = is_one_of(trace.totals["kind"], "memcpy")
    count, ns = (
        int(numbers(trace.totals[name], 0)[are_copies].sum()) for name in ("count", "total_ns")
    )
    if not count:
        how = fact("advice.copies-missing", how=advice(trace, "copies"))
        return note_of("missing", COPIES_MISSING, advice=how)
    advised = fact("advice.copies-untimed")
    return note_of("missing", f"{COPIES_MISSING}.untimed", count=count, sum_ns=ns, advice=advised)


def draws(trace: Trace) -> bool:
    """Return whether the program shares memory with graphics, whose GPU work is not recorded."""
    return bool(matching(trace.calls["name"], _OF_GRAPHICS.match).any())


def frame_ns(trace: Trace) -> int | None:
    """Return the time from frame to frame of a program that draws, None if no display sets it.

    A display sets it if frames come steadily, and as often as a display shows them (60 per second).
    """
    start_ns = np.sort(numbers(trace.calls["start_ns"])[matching(trace.calls["name"], _MAPS.match)])
    if len(start_ns) <= _FEWEST_FRAMES:
        return None
    early_ns, each_ns, late_ns = np.percentile(np.diff(start_ns), (10, 50, 90))
    is_steady = late_ns - early_ns <= _STEADY * each_ns
    is_shown = any(abs(each_ns * hertz - 1e9) <= _NEAR * 1e9 for hertz in _REFRESH_HERTZ)
    return round(each_ns) if is_steady and is_shown else None


def lacks_copies(trace: Trace) -> bool:
    """Return whether kernels are recorded and no copies, although calls do not rule copies out."""
    kinds = _kinds(trace)
    if not kinds - _COPIES or "memcpy" in kinds:
        return False
    copies = matching(trace.calls["name"], _COPY.search).any()
    return bool(copies) or not started(trace.calls, _LAUNCH).any()


def _kinds(trace: Trace) -> set[str]:
    """Return the kinds of device work if the tool may record some kinds only; else none."""
    return grouping.used_names(trace.activities["kind"]) if trace.source.kinds_apart else set()


def with_fine_times(trace: Trace) -> Trace:
    """Return the trace, with sums for device work if most of it is shorter than the resolution."""
    resolution, activities = trace.source.resolution_ns, trace.activities
    # Times are exact to the ns, or a single activity may be short by chance.
    if resolution == 1 or activities.num_rows < 2:
        return trace
    if np.median(numbers(activities["dur_ns"])) >= resolution:
        return trace
    count, step = activities.num_rows, time_amount(resolution).replace(".000", "")
    how = fact("advice.times-too-coarse")
    return _as_sums(
        trace, note_of("missing", "times-too-coarse", count=count, step=step, advice=how)
    )


def _as_sums(trace: Trace, note: Note) -> Trace:
    """Return the trace with a note, its device work summed by process, kind and name."""
    activities, table = trace.activities, TableBuilder("totals")
    process, kind = numbers(activities["process"]), codes(activities["kind"])
    name = codes(activities["name"])
    length, size = numbers(activities["dur_ns"]), numbers(activities["bytes"], ABSENT)
    kinds, labels = names(activities["kind"]), names(activities["name"])
    for _, rows in grouping.groups(grouping.joint_codes(grouping.joint_codes(process, kind), name)):
        first = rows[0]
        # The totals table knows device work as copies, fills and kernels only.
        label = kinds[kind[first]] if kinds[kind[first]] in _COPIES else "kernel"
        table.add(
            1,
            process=int(process[first]),
            kind=np.array([table.names["kind"][label]]),
            name=np.array([table.names["name"][labels[name[first]]]]),
            count=len(rows),
            total_ns=int(length[rows].sum()),
            min_ns=int(length[rows].min()),
            max_ns=int(length[rows].max()),
            bytes=ABSENT if (size[rows] == ABSENT).any() else int(size[rows].sum()),
        )
    totals = appended(trace.totals, table.finish())
    tables = {**trace.tables, "totals": totals, "activities": empty_table("activities")}
    return replace(trace, tables=tables, notes=(*trace.notes, note))


_EXCHANGE: Final = re.compile(r"(gloo|mpi):[a-z]")
_KIND = "op"  # the kind of activities that are parts of operators on a CPU


class SplitWork(Struct, frozen=True):
    """Per activity, whether it begins a piece of work, and the time of the whole piece.

    A piece is an operator of a CPU, split into several activities (`with_host_activities`), or any
    other activity. `first` is 1 for the first part and 0 for later ones; `whole_ns` is the sum of
    all parts.
    """

    first: IntArray
    whole_ns: IntArray


def split_work(activities: pa.Table) -> SplitWork:
    """Return the split work of a table of activities."""
    duration = numbers(activities["dur_ns"])
    first = np.ones(activities.num_rows, dtype=np.int64)
    if _KIND not in names(activities["kind"]):
        return SplitWork(first, duration)
    rows = np.flatnonzero(is_one_of(activities["kind"], _KIND))
    # The parts of an operator have the same correlation: see `with_host_activities`.
    operator, first_part = grouping.group_rows((numbers(activities["correlation"], ABSENT)[rows],))
    first[rows] = 0
    first[rows[first_part]] = 1
    whole_ns = duration.copy()
    whole_ns[rows] = grouping.group_sums(operator, duration[rows], len(first_part))[operator]
    return SplitWork(first, whole_ns)


def with_host_activities(trace: Trace) -> Trace:
    """Return the trace with its operators as activities of CPUs, if it has no device work.

    Each time without a break in which an operator is the innermost of its thread becomes an
    activity; the thread is its stream. Ranges of exchanges between processes are operators here.
    """
    if trace.activities.num_rows or not trace.ops.num_rows:
        return trace
    trace = _with_exchanges(trace)
    ops = trace.ops
    process, thread = thread_columns(ops)
    processes = grouping.distinct(process)
    op, start, end = innermost_pieces(grouping.joint_codes(process, thread), *span_columns(ops))
    devices, activities = TableBuilder("devices"), TableBuilder("activities")
    devices.add(
        len(processes),
        device=np.arange(len(processes)),
        process=processes,
        local_id=0,
        type=np.full(len(processes), devices.names["type"]["cpu"]),
    )
    code_of_name = activities.names["name"].codes(names(ops["name"]))
    activities.add(
        len(op),
        process=process[op],
        device=np.searchsorted(processes, process[op]),
        stream=thread[op],
        kind=np.full(len(op), activities.names["kind"][_KIND]),
        name=code_of_name[codes(ops["name"])[op]],
        start_ns=start,
        dur_ns=end - start,
        # Profilers count correlations up from 0, so the parts link to each other and no call.
        correlation=-1 - op,
        external_id=numbers(ops["external_id"], ABSENT)[op],
    )
    ordered = activities.finish(np.argsort(start, kind="stable"))
    tables = {**trace.tables, "devices": devices.finish(), "activities": ordered}
    return replace(trace, tables=tables)


def _with_exchanges(trace: Trace) -> Trace:
    """Return the trace, the ranges of exchanges that the CPU carries out as operators.

    Some versions of PyTorch record what threads of Gloo or MPI do as operators, others as ranges.
    """
    marks = trace.marks
    is_exchange = matching(marks["name"], _EXCHANGE.match) & (numbers(marks["dur_ns"]) > 0)
    if not is_exchange.any():
        return trace
    found, table = take_rows(marks, np.flatnonzero(is_exchange)), TableBuilder("ops")
    texts = ("name", "input_dims", "input_types")
    table.add(
        found.num_rows,
        **{column: numbers(found[column], ABSENT) for column in ("process", "thread")},
        **{column: numbers(found[column]) for column in ("start_ns", "dur_ns")},
        **{
            # The last code is that of no text, which -1 finds.
            column: np.append(table.names[column].codes(names(found[column])), -1)[
                codes(found[column])
            ]
            for column in texts
        },
    )
    ops = appended(trace.ops, table.finish())
    ops = take_rows(ops, np.argsort(numbers(ops["start_ns"]), kind="stable"))
    left = take_rows(marks, np.flatnonzero(~is_exchange))
    tables = {"ops": ops.combine_chunks(), "marks": left.combine_chunks()}
    return replace(trace, tables={**trace.tables, **tables})


def without_start_up(trace: Trace, start_up: Mapping[int, StartUp]) -> Trace:
    """Return the trace, its activities of CPUs without the time in which their thread starts up."""
    activities, on_cpu = trace.activities, ran_on_cpu(trace)
    process, thread = numbers(activities["process"]), numbers(activities["stream"], ABSENT)
    start, end = span_columns(activities)
    # Activities that meet no start-up stay whole; the others leave the parts outside of it.
    is_whole = np.ones(len(start), dtype=np.bool_)
    part_rows, part_starts, part_ends = list[IntArray](), list[IntArray](), list[IntArray]()
    for number, of_process in start_up.items():
        for tid, times in of_process.by_thread.items():
            cut = np.flatnonzero(on_cpu & (process == number) & (thread == tid))
            cut = cut[times.length_within(start[cut], end[cut]) > 0]
            is_whole[cut] = False
            # Each activity meets consecutive ranges outside of start-up.
            outside = times.complement(int(start.min()), int(end.max()))
            first = np.searchsorted(outside.end_ns, start[cut], side="right")
            stop = np.searchsorted(outside.start_ns, end[cut], side="left")
            range_index, cut_index = grouping.runs(first, stop)
            row = cut[cut_index]
            part_rows.append(row)
            part_starts.append(np.maximum(start[row], outside.start_ns[range_index]))
            part_ends.append(np.minimum(end[row], outside.end_ns[range_index]))
    if is_whole.all():
        return trace
    rows = np.concatenate([np.flatnonzero(is_whole), *part_rows])
    start_ns = np.concatenate([start[is_whole], *part_starts])
    end_ns = np.concatenate([end[is_whole], *part_ends])
    order = np.argsort(start_ns, kind="stable")
    kept = take_rows(activities, rows[order]).combine_chunks()
    for column, values in (("start_ns", start_ns), ("dur_ns", end_ns - start_ns)):
        kept = with_column(kept, column, number_column(values[order]))
    return replace(trace, tables={**trace.tables, "activities": kept})


def ran_on_cpu(trace: Trace) -> BoolArray:
    """Return, per activity, whether it ran on a CPU (operators that CUDA events timed did not)."""
    is_cpu = is_one_of(trace.devices["type"], "cpu")
    return np.append(is_cpu, False)[numbers(trace.activities["device"])]  # False for no device
