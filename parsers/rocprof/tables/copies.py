"""Which device a copy belongs to, and which way it went, by what its ends are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.parsers.rocprof.tables.agents import Agent
from traceflops.parsers.shared.csv_parts import Part, chosen
from traceflops.table.columns import IntArray
from traceflops.table.rows import Array

_WAYS: Final = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")
_UNKNOWN: Final = -1
_HOST: Final = 0
_GPU: Final = 1
_ENDS: Final = {"HtoD": (_HOST, _GPU), "DtoH": (_GPU, _HOST), "HtoH": (_HOST, _HOST)}
_KINDS: Final = {None: _UNKNOWN, False: _HOST, True: _GPU}


def resolve_copies(part: Part, agents: Sequence[Agent], devices: Array) -> int:
    """Give the copies of a part their device and way; return how many were left out.

    A copy belongs to its GPU, the target's if both ends are GPUs; one within the host is no work of
    a device. `agents` and `devices` are by the texts of agents, the last device for none.
    """
    table = part["copies"]
    if not table.count:
        return 0
    kinds = np.array([*(_KINDS[agent.is_gpu] for agent in agents), _UNKNOWN])
    known = list(table.names["direction"])
    table.names["direction"].codes(_WAYS)
    code_of = np.array([table.names["direction"][way] for way in _WAYS])
    for (count, columns), (source, target) in zip(table.pieces, part.ends, strict=True):
        way = _ways(np.broadcast_to(columns["direction"], count), known)
        ends = [_ends(kinds[end], way, place) for place, end in enumerate((source, target))]
        way = _told(way, ends[0], ends[1], devices[source] == devices[target])
        columns["device"] = np.where(
            (ends[1] != _GPU) & (ends[0] == _GPU), devices[source], devices[target]
        )
        columns["direction"] = np.where(way >= 0, code_of[way], -1).astype(np.int32)
    on_host = table.column("direction") == table.names["direction"]["HtoH"]
    part.tables["copies"] = chosen(table, ~on_host)
    return int(on_host.sum())


def _ways(codes: Array, known: Sequence[str]) -> IntArray:
    """Return places in _WAYS by what the names of copies say."""
    return np.array([*(_WAYS.index(text) for text in known), _UNKNOWN], np.int64)[codes]


def _ends(kind: IntArray, way: IntArray, place: int) -> IntArray:
    """Return what ends are: by the list of agents, else by the way."""
    by_way = [_ENDS.get(text, (_GPU, _GPU))[place] for text in _WAYS]
    return np.where(kind == _UNKNOWN, np.array([*by_way, _UNKNOWN])[way], kind)


def _told(way: IntArray, source: IntArray, target: IntArray, same: Array) -> IntArray:
    """Return the way of each copy; between two GPUs it is from one to another, or within one."""
    by_ends = np.full(len(way), _UNKNOWN)
    for text, (first, last) in _ENDS.items():
        by_ends = np.where((source == first) & (target == last), _WAYS.index(text), by_ends)
    found = np.where(way == _UNKNOWN, by_ends, way)
    both = (source == _GPU) & (target == _GPU)
    between = np.where(same, _WAYS.index("DtoD"), _WAYS.index("PtoP"))
    of_device = (found == _UNKNOWN) | np.isin(found, [_WAYS.index("DtoD"), _WAYS.index("PtoP")])
    return np.where(both & of_device, between, found)
