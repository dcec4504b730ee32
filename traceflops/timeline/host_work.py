"""The work of a run recorded without device work: operators on the device `cpu`.

At each instant the innermost operator of a thread is what that thread does. A leaf operator is
thus one activity; an operator that calls others is an activity wherever none of them runs, since
the work of, say, `aten::addmm` is done between the views it takes of its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from traceflops.table import (
    ABSENT,
    IntArray,
    TableBuilder,
    Trace,
    codes,
    distinct,
    group_sums,
    innermost,
    is_one_of,
    joint_codes,
    names,
    numbers,
)

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


def innermost_pieces(
    group: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the stretches in which one interval is the innermost of its group: row and times."""
    edge_group, edge = _edges(group, start, end)
    inner = innermost(group, start, end, edge_group, edge)
    follows = np.flatnonzero((inner[:-1] >= 0) & (edge_group[:-1] == edge_group[1:]))
    begins = np.append(True, (np.diff(inner[follows]) != 0) | (np.diff(follows) != 1))
    first = follows[begins[: len(follows)]]
    last = follows[np.append(begins[1 : len(follows)], True)] if len(follows) else follows
    instants = np.flatnonzero(start == end)
    return (
        np.concatenate([inner[first], instants]),
        np.concatenate([edge[first], start[instants]]),
        np.concatenate([edge[last + 1], end[instants]]),
    )


def _edges(group: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return the times at which something begins or ends, by group: between two nothing does."""
    groups, times = np.concatenate([group, group]), np.concatenate([start, end])
    order = np.lexsort((times, groups))
    groups, times = groups[order], times[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (groups[1:] != groups[:-1]) | (times[1:] != times[:-1])
    return groups[new], times[new]


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
