"""Copies between devices whose records say that they are from or to the host.

Where two devices cannot reach each other's memory, the driver copies through the host: a call
leaves a record of each half.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from traceflops.table.columns import (
    codes,
    dictionary_column,
    is_one_of,
    matching,
    names,
    numbers,
    with_column,
)
from traceflops.table.nesting import first_match
from traceflops.table.rows import ABSENT
from traceflops.table.trace import Trace

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
    # Per call the device that it copied from and the one that it copied to.
    device, ends = numbers(work["device"], ABSENT)[rows], np.full((2, len(copying)), ABSENT)
    for end, direction in zip(ends, _HALVES, strict=True):
        is_half = is_one_of(work["direction"], direction)[rows]
        end[call[is_half]] = device[is_half]
    of_peers |= (ends != ABSENT).all(axis=0) & (ends[0] != ends[1])
    rows = rows[of_peers[call]]
    if not len(rows):
        return trace
    directions = [*names(work["direction"]), _BETWEEN]
    code = codes(work["direction"]).copy()
    code[rows] = directions.index(_BETWEEN)
    changed = with_column(work, "direction", dictionary_column(code, directions))
    return replace(trace, tables={**trace.tables, "activities": changed})
