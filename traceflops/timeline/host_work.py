"""Work whose times tell less: coarse times of devices, and work recorded on the host alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.remedies import advice
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Note,
    TableBuilder,
    Trace,
    codes,
    distinct,
    empty_table,
    group_sums,
    groups,
    innermost_pieces,
    is_one_of,
    joint_codes,
    names,
    numbers,
    used_names,
)
from traceflops.units import time_amount

_COPIES: Final = frozenset({"memcpy", "memset"})
_LAUNCH: Final = re.compile(r"(?i)launch(?!HostFunc)")
_COPY: Final = re.compile(r"(?i)copy|cpy")

_COPIES_ONLY: Final = (
    "Only copies are recorded, no kernels: idle time is unknown and only totals are shown. Add "
    "the table of kernels."
)
_NO_COPIES: Final = (
    "No memory copies are in the trace, so idle time may include copies. Add the table of copies"
)
COPIES_MISSING: Final = "copies-missing"
"""The note that says that idle time may include copies."""


def with_known_idle(trace: Trace) -> Trace:
    """Return the trace, its device work as sums where that is copies alone.

    Idle time is known where kernels are recorded, or would be: by a tool that records both at once,
    or with calls that show that none was launched. Kernels alone keep their timeline, with a note.
    """
    if lacks_copies(trace):
        how = advice(trace, "copies")
        text = f"{_NO_COPIES}, or {how}." if how else f"{_NO_COPIES}."
        note = Note("missing", COPIES_MISSING, text)
        return trace if note in trace.notes else replace(trace, notes=(*trace.notes, note))
    kinds = _kinds(trace)
    if not kinds or not kinds <= _COPIES or trace.ops.num_rows:
        return trace
    calls = used_names(trace.calls["name"])
    if calls and not any(map(_LAUNCH.search, calls)):
        return trace
    return _as_sums(trace, Note("missing", "copies-only", _COPIES_ONLY))


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
    """Return the kinds of device work, where those that are missing could have been recorded."""
    return used_names(trace.activities["kind"]) if trace.source.kinds_apart else set()


def with_fine_times(trace: Trace) -> Trace:
    """Return the trace, its device work as sums where its times are too coarse for it.

    That is so where half of the work is shorter than the steps in which its starts are written.
    """
    resolution, activities = trace.source.resolution_ns, trace.activities
    if resolution == 1 or activities.num_rows < 2:
        return trace
    if np.median(numbers(activities["dur_ns"])) >= resolution:
        return trace
    step = time_amount(resolution).replace(".000", "")
    text = (
        f"Start times have a resolution of {step}, longer than the median GPU "
        "operation: idle time is unknown and only totals are shown. Export the times in ns."
    )
    return _as_sums(trace, Note("missing", "times-too-coarse", text, activities.num_rows))


def _as_sums(trace: Trace, note: Note) -> Trace:
    sums = pa.concat_tables([trace.totals, _sums(trace.activities)])
    tables = {
        **trace.tables,
        "totals": sums.unify_dictionaries().combine_chunks(),
        "activities": empty_table("activities"),
    }
    return replace(trace, tables=tables, notes=(*trace.notes, note))


def _sums(activities: pa.Table) -> pa.Table:
    """Return the sums of device work by process, kind and name, a graph as one kernel."""
    table = TableBuilder("totals")
    process = numbers(activities["process"])
    kind, name = codes(activities["kind"]), codes(activities["name"])
    length, size = numbers(activities["dur_ns"]), numbers(activities["bytes"], ABSENT)
    kinds, labels = names(activities["kind"]), names(activities["name"])
    for _, rows in groups(joint_codes(joint_codes(process, kind), name)):
        first = rows[0]
        known = kinds[kind[first]]
        table.add(
            1,
            process=int(process[first]),
            kind=np.array([table.names["kind"][known if known in _COPIES else "kernel"]]),
            name=np.array([table.names["name"][labels[name[first]]]]),
            count=len(rows),
            total_ns=int(length[rows].sum()),
            min_ns=int(length[rows].min()),
            max_ns=int(length[rows].max()),
            bytes=ABSENT if (size[rows] == ABSENT).any() else int(size[rows].sum()),
        )
    return table.finish()


_KIND = "op"


@dataclass(frozen=True, slots=True)
class Whole:
    """What the parts of one piece of work are together, per activity.

    `first` is 1 for the first part of an operator and 0 for its later parts, `whole_ns` the time
    of all its parts. Anything else is one part: 1 and its duration.
    """

    first: IntArray
    whole_ns: IntArray


def whole_work(activities: pa.Table) -> Whole:
    """Return which activities begin a piece of work and how long that is as a whole."""
    duration = numbers(activities["dur_ns"])
    first = np.ones(activities.num_rows, dtype=np.int64)
    if _KIND not in names(activities["kind"]):
        return Whole(first, duration)
    rows = np.flatnonzero(is_one_of(activities["kind"], _KIND))
    _, begins, op = np.unique(
        numbers(activities["correlation"], ABSENT)[rows], return_index=True, return_inverse=True
    )
    sums = group_sums(op, duration[rows], len(begins))
    first[rows] = 0
    first[rows[begins]] = 1
    whole = duration.copy()
    whole[rows] = sums[op]
    return Whole(first, whole)


def with_host_activities(trace: Trace) -> Trace:
    """Return the trace with its operators as activities, if it has no device work at all."""
    if trace.activities.num_rows or not trace.ops.num_rows:
        return trace
    process = numbers(trace.ops["process"])
    processes = distinct(process)
    thread = joint_codes(process, numbers(trace.ops["thread"], ABSENT))
    begins = numbers(trace.ops["start_ns"])
    op, start, end = innermost_pieces(thread, begins, begins + numbers(trace.ops["dur_ns"]))
    device = np.searchsorted(processes, process[op])
    tables = {
        **trace.tables,
        "devices": _cpu_devices(processes),
        "activities": _activities(trace, op, start, end, device),
    }
    return replace(trace, tables=tables)


def ran_on_cpu(trace: Trace) -> BoolArray:
    """Return, per activity, whether it ran on a CPU; operators that CUDA events timed did not."""
    is_cpu = is_one_of(trace.devices["type"], "cpu")
    return np.append(is_cpu, False)[numbers(trace.activities["device"])]


def _cpu_devices(processes: IntArray) -> pa.Table:
    table = TableBuilder("devices")
    count = len(processes)
    table.add(
        count,
        device=np.arange(count),
        process=processes,
        local_id=0,
        type=np.full(count, table.names["type"]["cpu"]),
    )
    return table.finish()


def _activities(
    trace: Trace, op: IntArray, start_ns: IntArray, end_ns: IntArray, device: IntArray
) -> pa.Table:
    table = TableBuilder("activities")
    ops, count = trace.ops, len(op)
    recode = table.names["name"].codes(names(ops["name"]))
    table.add(
        count,
        process=numbers(ops["process"])[op],
        device=device,
        stream=numbers(ops["thread"], ABSENT)[op],
        kind=np.full(count, table.names["kind"][_KIND]),
        name=recode[codes(ops["name"])[op]],
        start_ns=start_ns,
        dur_ns=end_ns - start_ns,
        # Profilers count correlations up from 0, so the parts link to each other and no call.
        correlation=-1 - op,
        external_id=numbers(ops["external_id"], ABSENT)[op],
    )
    return table.finish(np.argsort(start_ns, kind="stable"))
