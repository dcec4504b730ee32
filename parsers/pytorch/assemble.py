"""Collected events and metadata of one file into a Trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import ByteSource, EventStream
from traceflops.parsers.pytorch.block import KinetoBlock
from traceflops.parsers.pytorch.metadata import Metadata, read_metadata
from traceflops.parsers.pytorch.notes import reading_notes
from traceflops.parsers.shared import (
    NOTHING_KNOWN,
    DeviceFacts,
    ProcessFacts,
    devices_table,
    in_order_of_time,
    overflow_notes,
    overflowed,
    processes_table,
    renumber_devices,
)
from traceflops.table import ABSENT, IntArray, Source, SourceFile, TableBuilder, Trace, distinct

_UNKNOWN_DEVICE = -1
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
        timed = (self.activities, self.calls, self.ops, self.marks, self.counters)
        self.tables = {table.table: table for table in timed}
        self.counts: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.pids: Counter[int] = Counter()
        self.flows: list[IntArray] = []

    @property
    def overflowed(self) -> list[str]:
        """Return the columns that had more distinct texts than are kept."""
        return overflowed(self.tables.values())

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
        "processes": processes_table([_process(metadata, collected.pids, source.label)]),
        "devices": devices_table(_devices(metadata, devices)),
        **{name: in_order_of_time(table) for name, table in collected.tables.items()},
    }
    return Trace(
        source=Source(
            format="pytorch",
            files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
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
            *overflow_notes(collected.overflowed, source.label),
        ),
    )


def _number_devices(collected: Collected) -> IntArray:
    """Replace device numbers of the file by rows of `devices`; return the numbers, row by row."""
    local = collected.activities.column("device")
    local = np.where(local == ABSENT, _UNKNOWN_DEVICE, local)
    used = distinct(local)
    collected.activities.replace("device", np.searchsorted(used, local))
    for table in (collected.marks, collected.counters):
        renumber_devices(table, used)
    return used


def _process(metadata: Metadata, pids: Mapping[int, int], file_name: str) -> ProcessFacts:
    known = {pid: count for pid, count in pids.items() if pid != ABSENT}
    return ProcessFacts(
        file_name,
        metadata.rank,
        metadata.world_size,
        metadata.host,
        max(known, key=lambda pid: known[pid]) if known else None,
    )


def _devices(metadata: Metadata, local_ids: IntArray) -> list[tuple[int, int, DeviceFacts]]:
    return [(0, one, metadata.facts_of(one) or NOTHING_KNOWN) for one in local_ids.tolist()]


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
