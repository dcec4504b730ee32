"""Reads one PyTorch profiler trace (Kineto JSON) into a Trace.

Format: the trace-event JSON that torch.profiler writes through Kineto, from 2020 to PyTorch 2.13.
What the categories mean and where they go stands in docs/parsers/pytorch.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import BLOCK_BYTES, ByteSource, Crew, EventStream
from traceflops.parsers.pytorch.assemble import Collected, assemble
from traceflops.parsers.pytorch.block import KinetoBlock, KinetoReader
from traceflops.parsers.pytorch.events import KNOWN_CATEGORIES
from traceflops.parsers.pytorch.metadata import HEADER_KEYS
from traceflops.parsers.pytorch.values import printable
from traceflops.parsers.shared import Format, Reading
from traceflops.table import ABSENT, IntArray, TableBuilder, Trace
from traceflops.units import several

_STACKS_BELOW_BYTES: Final = 4 * 10**9
_JSON_START: Final = re.compile(rb"\s*[\[{]")


def read_pytorch(
    source: ByteSource,
    crew: Crew | None = None,
    block_bytes: int = BLOCK_BYTES,
    *,
    python_stacks: bool = True,
) -> Trace:
    """Return the trace in `source`. Raises InputError where it is not a PyTorch trace."""
    reader = KinetoReader(python_stacks)
    stream = EventStream[KinetoBlock](source, reader, crew or Crew(), HEADER_KEYS, block_bytes)
    collected = Collected(python_stacks)
    for block in stream:
        collected.absorb(block)
    _refuse_foreign(source, stream, collected)
    _refuse_timeless(source, collected)
    _lend_correlations(collected.flows, collected.activities, collected.calls)
    return assemble(source, stream, collected)


def _refuse_foreign(
    source: ByteSource, stream: EventStream[KinetoBlock], collected: Collected
) -> None:
    counts, damage = collected.counts, stream.damage
    whole = damage.array_closed and not damage.dropped_places
    is_empty_kineto = not counts and "schemaVersion" in stream.header and whole
    if KNOWN_CATEGORIES & counts.keys() or is_empty_kineto:
        return
    if not counts and damage.dropped_places and "schemaVersion" in stream.header:
        raise InputError(
            f"no readable event: {source.label} "
            f"({several(damage.dropped_places, 'damaged place')})",
            "its JSON is broken; export the trace again",
        )
    if not counts and (source.cut or damage.cut_bytes is not None):
        raise InputError(
            f"cut off before its first complete event: {source.label}",
            "nothing can be recovered; record or copy the trace again",
        )
    seen = ", ".join(printable(name) for name in sorted(counts)[:8]) or "none"
    raise NotATrace(
        f"not a PyTorch trace: {source.label} (event categories: {seen[:200]})",
        "give a torch.profiler trace (prof.export_chrome_trace)",
    )


def _refuse_timeless(source: ByteSource, collected: Collected) -> None:
    """Raise InputError where events have times and none of them can be one."""
    tables = (collected.activities, collected.calls, collected.ops, collected.marks)
    if collected.odd["no-time"] and not any(table.count for table in tables):
        raise InputError(
            f"no event has a valid time: {source.label}",
            "ts and dur must be in microseconds; convert other units",
        )


def _lend_correlations(flows: list[IntArray], *tables: TableBuilder) -> None:
    """Give rows without correlation the id of the arrow that starts or ends at their time.

    An instant at which several arrows begin lends nothing: times could meet by chance.
    """
    if not flows:
        return
    ids, times = np.concatenate(flows, axis=1)
    instants, first, counts = np.unique(times, return_index=True, return_counts=True)
    instants, ids = instants[counts == 1], ids[first[counts == 1]]
    if not len(instants):
        return
    for table in tables:
        correlation, start = table.column("correlation"), table.column("start_ns")
        at = np.minimum(np.searchsorted(instants, start), len(instants) - 1)
        lends = (correlation == ABSENT) & (instants[at] == start)
        if lends.any():
            table.replace("correlation", np.where(lends, ids[at], correlation))


def _read(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    return [_read_one(source, reading) for source in sources]


def _read_one(source: ByteSource, reading: Reading) -> Trace:
    expected = source.expected_text_bytes
    reading.crew.expect(expected)
    keep = reading.python_stacks
    stacks = expected <= _STACKS_BELOW_BYTES if keep is None else keep
    return read_pytorch(source, reading.crew, python_stacks=stacks)


PYTORCH: Final = Format("PyTorch", lambda head: _JSON_START.match(head) is not None, _read)
"""Any JSON may be one: asked last."""
