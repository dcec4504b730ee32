"""Traces with less exact times: coarse device times, missing copies, work of CPUs only."""

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
    codes,
    is_one_of,
    matching,
    names,
    number_column,
    numbers,
    take_rows,
    with_column,
)
from traceflops.table.nesting import innermost_pieces
from traceflops.table.schema import empty_table
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.start_up import StartUp
from traceflops.units import time_amount

_COPIES: Final = frozenset({"memcpy", "memset"})
_LAUNCH: Final = re.compile(r"(?i)launch(?!HostFunc)")
_COPY: Final = re.compile(r"(?i)copy|cpy")
_OF_GRAPHICS: Final = re.compile(r"(?:cuda|cu|hip)Graphics")
COPIES_MISSING: Final = "copies-missing"
"""The code of the note that idle time may include copies."""


def with_known_idle(trace: Trace) -> Trace:
    """Return the trace, with sums instead of device work if only copies are recorded.

    Idle time is unknown then, unless calls show that no kernel was launched. If only kernels are
    recorded, the timeline stays, with a note.
    """
    if lacks_copies(trace):
        how = fact("advice.copies-missing", how=advice(trace, "copies"))
        note = note_of("missing", COPIES_MISSING, advice=how)
        return trace if note in trace.notes else replace(trace, notes=(*trace.notes, note))
    kinds = _kinds(trace)
    has_only_copies = bool(kinds) and kinds <= _COPIES and not trace.ops.num_rows
    calls = grouping.used_names(trace.calls["name"])
    launches_none = bool(calls) and not any(map(_LAUNCH.search, calls))
    if not has_only_copies or launches_none:
        return trace
    return _as_sums(trace, note_of("missing", "copies-only", advice=fact("advice.copies-only")))


def draws(trace: Trace) -> bool:
    """Return whether the program shares memory with graphics, whose work on the GPU is not here."""
    return bool(matching(trace.calls["name"], _OF_GRAPHICS.match).any())


def lacks_copies(trace: Trace) -> bool:
    """Return whether kernels are recorded and copies may be missing: calls do not rule it out."""
    kinds = _kinds(trace)
    if not kinds - _COPIES or "memcpy" in kinds:
        return False
    calls = grouping.used_names(trace.calls["name"])
    return any(map(_COPY.search, calls)) or not any(map(_LAUNCH.search, calls))


def _kinds(trace: Trace) -> set[str]:
    """Return the kinds of device work, if the tool may record one without the other; else none."""
    return grouping.used_names(trace.activities["kind"]) if trace.source.kinds_apart else set()


def with_fine_times(trace: Trace) -> Trace:
    """Return the trace, with sums instead of device work if its median is below the resolution."""
    resolution, activities = trace.source.resolution_ns, trace.activities
    # Times are exact, or so few are recorded that they may be short by chance.
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
    totals = pa.concat_tables([trace.totals, table.finish()])
    tables = {
        **trace.tables,
        "totals": totals.unify_dictionaries().combine_chunks(),
        "activities": empty_table("activities"),
    }
    return replace(trace, tables=tables, notes=(*trace.notes, note))


_KIND = "op"  # the kind of activities that are parts of operators on a CPU


class SplitWork(Struct, frozen=True):
    """Per activity, whether it begins a piece of work, and the time of the whole piece.

    A piece is an operator of a CPU in parts, or any other activity. `first` is 1 for the first part
    and 0 for later ones, `whole_ns` the time of all parts.
    """

    first: IntArray
    whole_ns: IntArray


def split_work(activities: pa.Table) -> SplitWork:
    """Return, per activity, 1 if it is the first part of an operator, and the ns of all parts.

    Others than operators have one part, themselves: 1 and their own duration.
    """
    duration = numbers(activities["dur_ns"])
    first = np.ones(activities.num_rows, dtype=np.int64)
    if _KIND not in names(activities["kind"]):
        return SplitWork(first, duration)
    rows = np.flatnonzero(is_one_of(activities["kind"], _KIND))
    # The parts of an operator have the same correlation: see `with_host_activities`.
    operator, begins = grouping.group_rows((numbers(activities["correlation"], ABSENT)[rows],))
    first[rows] = 0
    first[rows[begins]] = 1
    whole_ns = duration.copy()
    whole_ns[rows] = grouping.group_sums(operator, duration[rows], len(begins))[operator]
    return SplitWork(first, whole_ns)


def with_host_activities(trace: Trace) -> Trace:
    """Return the trace with its operators as activities of CPUs, if it has no device work.

    An operator becomes an activity per stretch in which it is the innermost of its thread (stream).
    """
    if trace.activities.num_rows or not trace.ops.num_rows:
        return trace
    ops = trace.ops
    process, thread = numbers(ops["process"]), numbers(ops["thread"], ABSENT)
    processes, begins = grouping.distinct(process), numbers(ops["start_ns"])
    op, start, end = innermost_pieces(
        grouping.joint_codes(process, thread), begins, begins + numbers(ops["dur_ns"])
    )
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


def without_start_up(trace: Trace, start_up: Mapping[int, StartUp]) -> Trace:
    """Return the trace, its activities of CPUs without the time in which their thread starts up."""
    activities, on_cpu = trace.activities, ran_on_cpu(trace)
    process, thread = numbers(activities["process"]), numbers(activities["stream"], ABSENT)
    begins = numbers(activities["start_ns"])
    ends = begins + numbers(activities["dur_ns"])
    is_whole = np.ones(len(begins), dtype=np.bool_)
    row, start, end = list[IntArray](), list[IntArray](), list[IntArray]()
    for number, of_process in start_up.items():
        for tid, times in of_process.by_thread.items():
            work = np.flatnonzero(on_cpu & (process == number) & (thread == tid))
            work = work[times.length_within(begins[work], ends[work]) > 0]
            is_whole[work] = False
            # Each activity meets a run of the stretches outside of start-up.
            outside = times.complement(int(begins.min()), int(ends.max()))
            first = np.searchsorted(outside.end_ns, begins[work], side="right")
            stop = np.searchsorted(outside.start_ns, ends[work], side="left")
            stretch, part = grouping.runs(first, stop)
            row.append(work[part])
            start.append(np.maximum(begins[work[part]], outside.start_ns[stretch]))
            end.append(np.minimum(ends[work[part]], outside.end_ns[stretch]))
    if is_whole.all():
        return trace
    rows = np.concatenate([np.flatnonzero(is_whole), *row])
    from_ns = np.concatenate([begins[is_whole], *start])
    to_ns = np.concatenate([ends[is_whole], *end])
    order = np.argsort(from_ns, kind="stable")
    kept = take_rows(activities, rows[order]).combine_chunks()
    for column, values in (("start_ns", from_ns), ("dur_ns", to_ns - from_ns)):
        kept = with_column(kept, column, number_column(values[order], pa.int64()))
    return replace(trace, tables={**trace.tables, "activities": kept})


def ran_on_cpu(trace: Trace) -> BoolArray:
    """Return, per activity, whether it ran on a CPU (operators that CUDA events timed did not)."""
    is_cpu = is_one_of(trace.devices["type"], "cpu")
    return np.append(is_cpu, False)[numbers(trace.activities["device"])]  # False for no device
