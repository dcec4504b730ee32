"""Launches without a record of their kernel, as those that a graph captures: nothing runs yet.

Calls of HIP name the kernel they launch. So a trace of a capture tells which operator launched
which kernel, and its shapes tell what the kernels of the replayed graph do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from traceflops.mfu.counted.launches import axes
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import IntArray, codes, names, numbers
from traceflops.table.grouping import distinct
from traceflops.table.links import recorded_calls
from traceflops.table.rows import ABSENT
from traceflops.table.trace import Note, Trace
from traceflops.units.words import several


def with_captured_launches(trace: Trace) -> Trace:
    """Return the trace with the kernels that calls name and no record shows; they take no time."""
    rows = _unrecorded(trace)
    if not len(rows):
        return trace
    devices = _with_devices(trace, distinct(numbers(trace.calls["process"])[rows]))
    added = (trace.activities, _kernels(trace, devices, rows))
    activities = pa.concat_tables(added).unify_dictionaries().combine_chunks()
    activities = activities.take(np.argsort(numbers(activities["start_ns"]), kind="stable"))
    text = (
        f"{several(len(rows), 'launch call')} without a kernel record (graph capture, "
        "for example): the kernel named by the call counts."
    )
    note = Note("assumed", "captured-launches", text, len(rows))
    tables = {**trace.tables, "devices": devices, "activities": activities}
    return replace(trace, tables=tables, notes=(*trace.notes, note))


def _unrecorded(trace: Trace) -> IntArray:
    """Return the calls that name a kernel, in order, where nothing has their correlation."""
    calls = trace.calls
    named = (codes(calls["kernel"]) >= 0) & (numbers(calls["correlation"], ABSENT) != ABSENT)
    return np.flatnonzero(named & ~recorded_calls(trace))


def _with_devices(trace: Trace, processes: IntArray) -> pa.Table:
    """Return the devices, and one more for each of these processes that has none."""
    devices = trace.devices
    without = np.setdiff1d(processes, numbers(devices["process"]))
    if not len(without):
        return devices
    table, place = TableBuilder("devices"), devices.num_rows + np.arange(len(without))
    gpu = np.full(len(without), table.names["type"]["gpu"])
    table.add(len(without), device=place, process=without, local_id=0, type=gpu)
    return pa.concat_tables([devices, table.finish()]).unify_dictionaries().combine_chunks()


def _kernels(trace: Trace, devices: pa.Table, rows: IntArray) -> pa.Table:
    """Return the kernels that some calls name, each on the first device of its process."""
    calls, table = trace.calls, TableBuilder("activities")
    process = numbers(calls["process"])[rows]
    owner, first = np.unique(numbers(devices["process"]), return_index=True)
    table.add(
        len(rows),
        process=process,
        device=first[np.searchsorted(owner, process)],
        kind=np.full(len(rows), table.names["kind"]["kernel"]),
        name=table.names["name"].codes(names(calls["kernel"]))[codes(calls["kernel"])[rows]],
        start_ns=numbers(calls["start_ns"])[rows],
        dur_ns=0,
        **{name: numbers(calls[name], ABSENT)[rows] for name in ("correlation", "external_id")},
        **{name: _sides(calls[name])[rows] for name in ("grid", "block")},
    )
    return table.finish()


def _sides(column: pa.ChunkedArray) -> IntArray:
    sides = axes(column)
    return np.where(sides > 0, sides, ABSENT)
