"""The work of a run recorded without device work: leaf operators on the device `cpu`.

An operator that calls no other operator is the activity; its caller would count the time twice.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from traceflops.builder import ABSENT, TableBuilder
from traceflops.columns import IntArray, codes, names, numbers
from traceflops.nesting import parents
from traceflops.trace import Trace


def with_host_activities(trace: Trace) -> Trace:
    """Return the trace with its leaf operators as activities, if it has no device work at all."""
    if trace.activities.num_rows or not trace.ops.num_rows:
        return trace
    process = numbers(trace.ops["process"])
    leaves = _leaves(trace, process)
    processes = np.unique(process)
    tables = {
        **trace.tables,
        "devices": _cpu_devices(processes),
        "activities": _activities(trace, leaves, np.searchsorted(processes, process[leaves])),
    }
    return replace(trace, tables=tables)


def _leaves(trace: Trace, process: IntArray) -> IntArray:
    ops = trace.ops
    thread = numbers(ops["thread"], ABSENT)
    _, group = np.unique(np.stack([process, thread]), axis=1, return_inverse=True)
    start = numbers(ops["start_ns"])
    parent = parents(group.reshape(-1), start, start + numbers(ops["dur_ns"]))
    is_parent = np.zeros(ops.num_rows, dtype=np.bool_)
    is_parent[parent[parent >= 0]] = True
    return np.flatnonzero(~is_parent)


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


def _activities(trace: Trace, leaves: IntArray, device: IntArray) -> pa.Table:
    table = TableBuilder("activities")
    ops = trace.ops
    for label in names(ops["name"]):
        _ = table.names["name"][label]
    table.add(
        len(leaves),
        process=numbers(ops["process"])[leaves],
        device=device,
        stream=numbers(ops["thread"], ABSENT)[leaves],
        kind=np.full(len(leaves), table.names["kind"]["op"]),
        name=codes(ops["name"])[leaves],
        start_ns=numbers(ops["start_ns"])[leaves],
        dur_ns=numbers(ops["dur_ns"])[leaves],
        external_id=numbers(ops["external_id"], ABSENT)[leaves],
    )
    return table.finish()
