"""Work whose times say less: coarse times of devices, and work recorded on the host alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from traceflops.facts import fact
from traceflops.remedies import advice
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    is_one_of,
    matching,
    names,
    number_column,
    numbers,
    with_column,
)
from traceflops.table.grouping import (
    distinct,
    group_rows,
    group_sums,
    groups,
    joint_codes,
    runs,
    used_names,
)
from traceflops.table.nesting import innermost_pieces
from traceflops.table.schema import empty_table
from traceflops.table.trace import Note, Trace, note_of
from traceflops.units import time_amount

if TYPE_CHECKING:
    from traceflops.timeline.start_up import StartUp

_COPIES: Final = frozenset({"memcpy", "memset"})
_LAUNCH: Final = re.compile(r"(?i)launch(?!HostFunc)")
_COPY: Final = re.compile(r"(?i)copy|cpy")
_OF_GRAPHICS: Final = re.compile(r"(?:cuda|cu|hip)Graphics")

COPIES_MISSING: Final = "copies-missing"
"""The note that says that idle time may include copies."""


def with_known_idle(trace: Trace) -> Trace:
    """Return the trace, its device work as sums where only copies are recorded.

    Idle time is known where kernels are recorded, or would be: by a tool that records both at once,
    or with calls that show that none was launched. Kernels alone keep their timeline, with a note.
    """
    if lacks_copies(trace):
        how = fact("advice.copies-missing", how=advice(trace, "copies"))
        note = note_of("missing", COPIES_MISSING, advice=how)
        return trace if note in trace.notes else replace(trace, notes=(*trace.notes, note))
    kinds = _kinds(trace)
    if not kinds or not kinds <= _COPIES or trace.ops.num_rows:
        return trace
    calls = used_names(trace.calls["name"])
    if calls and not any(map(_LAUNCH.search, calls)):
        return trace
    return _as_sums(trace, note_of("missing", "copies-only", advice=fact("advice.copies-only")))


def draws(trace: Trace) -> bool:
    """Return whether the program shares memory with graphics, whose work on the GPU is not here."""
    return bool(matching(trace.calls["name"], _OF_GRAPHICS.match).any())


def lacks_copies(trace: Trace) -> bool:
    """Return whether kernels are recorded, and copies may have run that are not.

    Calls show that there were none if they launch kernels and copy nothing.
    """
    kinds = _kinds(trace)
    if not kinds - _COPIES or "memcpy" in kinds:
        return False
    calls = used_names(trace.calls["name"])
    return any(map(_COPY.search, calls)) or not any(map(_LAUNCH.search, calls))


def _kinds(trace: Trace) -> set[str]:
    """Return the kinds of device work, of sources where a kind can be missing."""
    return used_names(trace.activities["kind"]) if trace.source.kinds_apart else set()


def with_fine_times(trace: Trace) -> Trace:
    """Return the trace, its device work as sums where half of it is below the resolution."""
    resolution, activities = trace.source.resolution_ns, trace.activities
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
    """Return a trace with sums of its device work by process, kind and name; graphs are kernels."""
    activities, table = trace.activities, TableBuilder("totals")
    process, kind, name = (
        numbers(activities["process"]),
        codes(activities["kind"]),
        codes(activities["name"]),
    )
    length, size = numbers(activities["dur_ns"]), numbers(activities["bytes"], ABSENT)
    kinds, labels = names(activities["kind"]), names(activities["name"])
    for _, rows in groups(joint_codes(joint_codes(process, kind), name)):
        first = rows[0]
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


_KIND = "op"


@dataclass(frozen=True, slots=True)
class SplitWork:
    """How parts of one operator belong together, per activity.

    `first` is 1 for the first part of an operator and 0 for its later parts, `whole_ns` the time
    of all its parts. Anything else is one part: 1 and its duration.
    """

    first: IntArray
    whole_ns: IntArray


def split_work(activities: pa.Table) -> SplitWork:
    """Return which activities begin a piece of work, and the time of each piece."""
    duration = numbers(activities["dur_ns"])
    first = np.ones(activities.num_rows, dtype=np.int64)
    if _KIND not in names(activities["kind"]):
        return SplitWork(first, duration)
    rows = np.flatnonzero(is_one_of(activities["kind"], _KIND))
    operator, begins = group_rows((numbers(activities["correlation"], ABSENT)[rows],))
    first[rows] = 0
    first[rows[begins]] = 1
    whole_ns = duration.copy()
    whole_ns[rows] = group_sums(operator, duration[rows], len(begins))[operator]
    return SplitWork(first, whole_ns)


def with_host_activities(trace: Trace) -> Trace:
    """Return the trace with its operators as activities of a CPU, if it has no device work."""
    if trace.activities.num_rows or not trace.ops.num_rows:
        return trace
    ops = trace.ops
    process, thread = numbers(ops["process"]), numbers(ops["thread"], ABSENT)
    processes, begins = distinct(process), numbers(ops["start_ns"])
    op, start, end = innermost_pieces(
        joint_codes(process, thread), begins, begins + numbers(ops["dur_ns"])
    )
    devices, activities = TableBuilder("devices"), TableBuilder("activities")
    devices.add(
        len(processes),
        device=np.arange(len(processes)),
        process=processes,
        local_id=0,
        type=np.full(len(processes), devices.names["type"]["cpu"]),
    )
    recode = activities.names["name"].codes(names(ops["name"]))
    activities.add(
        len(op),
        process=process[op],
        device=np.searchsorted(processes, process[op]),
        stream=thread[op],
        kind=np.full(len(op), activities.names["kind"][_KIND]),
        name=recode[codes(ops["name"])[op]],
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
    """Return the trace, its operators on CPUs without the time in which their thread starts up."""
    activities, on_cpu = trace.activities, ran_on_cpu(trace)
    process, thread = numbers(activities["process"]), numbers(activities["stream"], ABSENT)
    begins = numbers(activities["start_ns"])
    ends = begins + numbers(activities["dur_ns"])
    whole, none = np.ones(len(begins), dtype=np.bool_), np.empty(0, dtype=np.int64)
    row, start, end = [none], [none], [none]
    for number, own in start_up.items():
        for name, times in own.by_thread.items():
            mine = np.flatnonzero(on_cpu & (process == number) & (thread == name))
            mine = mine[times.length_within(begins[mine], ends[mine]) > 0]
            whole[mine] = False
            left = times.complement(int(begins.min()), int(ends.max()))
            first = np.searchsorted(left.end_ns, begins[mine], side="right")
            place, which = runs(first, np.searchsorted(left.start_ns, ends[mine], side="left"))
            row.append(mine[which])
            start.append(np.maximum(begins[mine[which]], left.start_ns[place]))
            end.append(np.minimum(ends[mine[which]], left.end_ns[place]))
    if whole.all():
        return trace
    rows = np.concatenate([np.flatnonzero(whole), *row])
    from_ns, to_ns = np.concatenate([begins[whole], *start]), np.concatenate([ends[whole], *end])
    order = np.argsort(from_ns, kind="stable")
    kept = activities.take(rows[order]).combine_chunks()
    for column, values in (("start_ns", from_ns), ("dur_ns", to_ns - from_ns)):
        kept = with_column(kept, column, number_column(values[order], pa.int64()))
    return replace(trace, tables={**trace.tables, "activities": kept})


def ran_on_cpu(trace: Trace) -> BoolArray:
    """Return, per activity, whether it ran on a CPU; operators that CUDA events timed did not."""
    is_cpu = is_one_of(trace.devices["type"], "cpu")
    return np.append(is_cpu, False)[numbers(trace.activities["device"])]
