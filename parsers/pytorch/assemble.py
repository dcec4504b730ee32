"""Collected events and metadata of one file into a Trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from traceflops.builder import TableBuilder
from traceflops.columns import IntArray
from traceflops.parsers.inputs import ByteSource
from traceflops.parsers.jsonevents import EventStream
from traceflops.parsers.pytorch.block import KinetoBlock
from traceflops.parsers.pytorch.metadata import DeviceProperties, Metadata, read_metadata
from traceflops.parsers.pytorch.notes import overflow_notes, reading_notes
from traceflops.rows import ABSENT
from traceflops.trace import Source, SourceFile, Trace

_UNKNOWN_DEVICE = -1
_ACTIVITY_ORDER = ("start_ns", "device", "stream", "dur_ns", "correlation")
_HOST_ORDER = ("start_ns", "thread", "dur_ns")
_EPOCH_NS = 10**17
"""Times beyond this (1973) are since 1970; times counted from a capture's base never get there."""


class Collected:
    """What all blocks of one file give together."""

    def __init__(self, python_stacks: bool) -> None:
        self.python_stacks = python_stacks
        self.activities = TableBuilder("activities")
        self.calls = TableBuilder("calls")
        self.ops = TableBuilder("ops")
        self.marks = TableBuilder("marks")
        self.counters = TableBuilder("counters")
        self.counts: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.pids: Counter[int] = Counter()
        self.flows: list[IntArray] = []

    @property
    def overflowed(self) -> list[str]:
        """Return the columns that had more distinct texts than are kept."""
        tables = (self.activities, self.calls, self.ops, self.marks, self.counters)
        return [f"{table.table}.{name}" for table in tables for name in table.overflowed]

    def absorb(self, block: KinetoBlock) -> None:
        """Add what one block gives; blocks are added in the order of the text."""
        rows = block.rows
        self.activities.absorb(rows.activities)
        self.calls.absorb(rows.calls)
        self.ops.absorb(rows.ops)
        self.marks.absorb(rows.marks)
        self.counters.absorb(rows.counters)
        self.counts.update(block.counts)
        self.odd.update(block.odd)
        self.pids.update(rows.pids)
        self.flows.extend(block.flows)


def assemble(source: ByteSource, stream: EventStream[KinetoBlock], collected: Collected) -> Trace:
    """Return the trace of one file whose events are collected, as one process."""
    metadata = read_metadata(stream.header, source.name)
    devices = _number_devices(collected)
    tables = {
        "processes": _processes(metadata, collected.pids, source.name),
        "devices": _devices(metadata, devices),
        "activities": _by_time(collected.activities, *_ACTIVITY_ORDER),
        "calls": _by_time(collected.calls, *_HOST_ORDER, "correlation"),
        "ops": _by_time(collected.ops, *_HOST_ORDER, "external_id"),
        "marks": _by_time(collected.marks, *_HOST_ORDER, "python_id"),
        "counters": _by_time(collected.counters, "time_ns"),
    }
    return Trace(
        source=Source(
            format="pytorch",
            files=(SourceFile(source.name, source.stored_bytes, source.text_bytes),),
            tool="PyTorch profiler (Kineto)",
            origin_unix_ns=_origin(metadata, tables),
            facts=metadata.facts,
            event_counts=dict(sorted(collected.counts.items())),
            identities=metadata.identities,
            description=metadata.described.words,
        ),
        tables=tables,
        notes=(
            *reading_notes(
                source,
                stream,
                collected.counts,
                collected.odd,
                metadata,
                tables,
                devices.tolist(),
                python_stacks=collected.python_stacks,
            ),
            *overflow_notes(collected.overflowed, source.name),
        ),
    )


def _number_devices(collected: Collected) -> IntArray:
    """Replace device numbers of the file by rows of `devices`; return the numbers, row by row."""
    local = collected.activities.column("device")
    local = np.where(local == ABSENT, _UNKNOWN_DEVICE, local)
    used = np.unique(local)
    collected.activities.replace("device", np.searchsorted(used, local))
    for table in (collected.marks, collected.counters):
        local = table.column("device")
        known = np.isin(local, used)
        table.replace("device", np.where(known, np.searchsorted(used, local), ABSENT))
    return used


def _by_time(table: TableBuilder, *keys: str) -> pa.Table:
    """Return the table in the order of `keys`, the first of which is its time.

    The others make the order one of the content, not of how the file was cut into blocks.
    """
    time = table.column(keys[0])
    order = np.argsort(time, kind="stable")
    ordered = time[order]
    same = np.append(False, ordered[1:] == ordered[:-1])[: len(order)]
    tied = np.flatnonzero(same | np.append(same[1:], False)[: len(order)])
    rows = order[tied]
    columns = [table.column(key)[rows] for key in reversed(keys)]
    order[tied] = rows[np.lexsort(columns)]
    return table.finish(order)


def _processes(metadata: Metadata, pids: Mapping[int, int], file_name: str) -> pa.Table:
    table = TableBuilder("processes")
    known = {pid: count for pid, count in pids.items() if pid != ABSENT}
    names = table.names
    table.add(
        1,
        process=0,
        rank=_or_absent(metadata.rank),
        world_size=_or_absent(metadata.world_size),
        host=np.array([names["host"][metadata.host] if metadata.host else -1]),
        pid=max(known, key=lambda pid: known[pid]) if known else ABSENT,
        file=np.array([names["file"][file_name]]),
    )
    return table.finish()


def _devices(metadata: Metadata, local_ids: IntArray) -> pa.Table:
    table = TableBuilder("devices")
    nothing = DeviceProperties(None, None, None, None, None, None, None)
    for row, local_id in enumerate(local_ids.tolist()):
        known = metadata.properties_of(local_id) or nothing
        product = table.names["product"][known.product] if known.product else -1
        table.add(
            1,
            device=row,
            process=0,
            local_id=local_id,
            type=np.array([table.names["type"]["gpu"]]),
            product=np.array([product]),
            memory_bytes=_or_absent(known.memory_bytes),
            compute_major=_or_absent(known.compute_major),
            compute_minor=_or_absent(known.compute_minor),
            sm_count=_or_absent(known.sm_count),
            warp_size=_or_absent(known.warp_size),
        )
    return table.finish()


def _or_absent(value: int | None) -> int:
    return ABSENT if value is None else value


def _origin(metadata: Metadata, tables: Mapping[str, pa.Table]) -> int | None:
    """Return what to add to the times to get Unix time: the base, 0 for epoch times, or None."""
    if metadata.base_ns is not None:
        return metadata.base_ns
    starts = [
        int(tables[name]["start_ns"][0].as_py())
        for name in ("activities", "calls", "ops", "marks")
        if tables[name].num_rows
    ]
    return 0 if starts and max(starts) > _EPOCH_NS else None
