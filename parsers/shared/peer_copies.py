"""Copies between devices whose records say that they are from or to the host.

Where two devices cannot reach each other's memory, the driver copies through the host: a call
leaves a record of each half.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Trace,
    codes,
    dictionary_column,
    first_match,
    is_one_of,
    matching,
    names,
    numbers,
    with_column,
)

_CALL: Final = re.compile(r"Memcpy|memory_(?:async_)?copy", re.I)
_PEER: Final = re.compile("Peer")
_BETWEEN: Final = "PtoP"
_HALVES: Final = ("DtoH", "HtoD")
_WAYS: Final = (*_HALVES, "DtoD", "HtoH")


def with_peer_copies(trace: Trace) -> Trace:
    """Return the trace with the copies as PtoP that were made by calls that copy between devices.

    Their names say so (`cudaMemcpyPeer`), or one call copied from a device and to another.
    """
    calls, work = trace.calls, trace.activities
    copying = np.flatnonzero(matching(calls["name"], _CALL.search))
    if not len(copying) or not work.num_rows:
        return trace
    rows = np.flatnonzero(is_one_of(work["kind"], "memcpy") & is_one_of(work["direction"], *_WAYS))
    call = first_match(
        *(numbers(calls[name], ABSENT)[copying] for name in ("process", "correlation", "start_ns")),
        *(numbers(work[name], ABSENT)[rows] for name in ("process", "correlation")),
    )
    rows, call = rows[call >= 0], call[call >= 0]
    of_peers = matching(calls["name"], _PEER.search)[copying]
    rows = rows[of_peers[call] | _are_halves(trace, rows, call, len(copying))]
    if not len(rows):
        return trace
    ways = [*names(work["direction"]), _BETWEEN]
    way = codes(work["direction"]).copy()
    way[rows] = ways.index(_BETWEEN)
    changed = with_column(work, "direction", dictionary_column(way, ways))
    return replace(trace, tables={**trace.tables, "activities": changed})


def _are_halves(trace: Trace, rows: IntArray, call: IntArray, count: int) -> BoolArray:
    """Return which copies are from or to a device where their call made both, on two of them."""
    work = trace.activities
    device = numbers(work["device"], ABSENT)[rows]
    ends = np.full((2, count), ABSENT)
    for end, way in zip(ends, _HALVES, strict=True):
        mine = is_one_of(work["direction"], way)[rows]
        end[call[mine]] = device[mine]
    found = (ends != ABSENT).all(axis=0) & (ends[0] != ends[1])
    return np.asarray(found[call])
