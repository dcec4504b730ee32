"""What figures of any stretch of the timeline are made of, beside its boxes.

Idle time comes slice by slice, with what the host did. Where boxes do not tell each event of the
devices, sums of bins of equal length do instead: their figures are exact from edge to edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.culprits import NamedIdle, named_idle
from traceflops.attribution.idle_classes import CLASSES
from traceflops.characters import function_name
from traceflops.table.columns import IntArray, codes, names, numbers
from traceflops.table.grouping import group_sums, runs
from traceflops.timeline.records import WORK

if TYPE_CHECKING:
    from traceflops.drawing.timeline import Level, Timeline
    from traceflops.windows.prepared import Prepared

_MOST_BINS: Final = 1_000
"""Of all devices together."""
_MOST_NAMES: Final = 20
_REST: Final = "(others)"
_LONGEST_PATH: Final = 1_000


class Pieces(Struct, frozen=True, eq=False):
    """Times in the order of their starts: of `key`, a place in names, so many ns from then on.

    In a bin they are a sum, and `start_ns` is the start of the bin.
    """

    start_ns: IntArray
    ns: IntArray
    key: IntArray

    def within(self, start_ns: int, end_ns: int) -> Pieces:
        """Return the pieces that overlap a stretch of time."""
        some = slice(
            int(np.searchsorted(self.start_ns + self.ns, start_ns, side="right")),
            int(np.searchsorted(self.start_ns, end_ns, side="left")),
        )
        return Pieces(self.start_ns[some], self.ns[some], self.key[some])


class Figures(Struct, frozen=True):
    """What is known of a level by device; `bin_ns` is 0 where boxes tell of each event.

    `kernels` and `parts` are there with bins alone: sums of kernels by name, and of components.
    `flops` are FLOPs in place of ns, those of a kernel at its start.
    """

    bin_ns: int
    idle: Mapping[int, Pieces]
    kernels: Mapping[int, Pieces]
    parts: Mapping[int, Pieces]
    flops: Mapping[int, Pieces]


class Known:
    """The idle time of the devices drawn and their kernels, from which any figures are made."""

    def __init__(self, prepared: Prepared, timeline: Timeline, flops: IntArray) -> None:
        process = numbers(prepared.trace.devices["process"])
        self._prepared = prepared
        self._origin = {d: timeline.origin_ns[int(process[d])] for d in timeline.chosen.devices}
        self._names: dict[tuple[str, str], int] = {}
        found = named_idle(prepared, [*self._origin])
        self._idle = {device: self._idle_of(device, one) for device, one in found.items()}
        self._flops = {device: self._flops_of(device, flops) for device in self._origin}

    @property
    def names(self) -> list[tuple[str, str]]:
        """Return the name of each key, and the class of what the host did."""
        return list(self._names)

    def of(self, level: Level, *, complete: bool) -> Figures:
        """Return the figures of a level; `complete` says whether lanes have all work of devices."""
        if complete and level.is_single:
            some = [level.span.start_ns, level.span.end_ns]
            idle = {device: one.within(*some) for device, one in self._idle.items()}
            begun = {device: _begun(one, some) for device, one in self._flops.items()}
            return Figures(0, idle, {}, {}, begun)
        # Bins of a round length: 1, 2 or 5 of a decade.
        span = level.span
        least = max((span.end_ns - span.start_ns) * len(self._origin) // _MOST_BINS, 1)
        decade = 10 ** (len(str(least)) - 1)
        length = next(by * decade for by in (1, 2, 5, 10) if by * decade >= least)
        numbers = np.arange(span.start_ns // length, -(-span.end_ns // length) + 1, dtype=np.int64)
        edges: IntArray = numbers * length
        return Figures(
            int(edges[1] - edges[0]),
            {device: _in_bins(self._few(one), edges) for device, one in self._idle.items()},
            {device: _in_bins(self._kernels_of(device), edges) for device in self._origin},
            {device: self._parts_of(device, edges) for device in self._origin},
            {device: _sums_begun(one, edges) for device, one in self._flops.items()},
        )

    def _places(self, called: list[tuple[str, str]]) -> IntArray:
        found = [self._names.setdefault(one, len(self._names)) for one in called]
        return np.array(found, dtype=np.int64)

    def _idle_of(self, device: int, found: NamedIdle) -> Pieces:
        called = [(CLASSES[kind], _short(name)) for kind, name in found.names]
        start, ns = found.start_ns - self._origin[device], found.end_ns - found.start_ns
        return Pieces(start, ns, self._places(called)[found.name])

    def _flops_of(self, device: int, flops: IntArray) -> Pieces:
        """Return the FLOPs of the activities of a device that have any."""
        rows = self._prepared.accounts[device].rows
        some = np.flatnonzero(flops[rows.row] > 0)
        start = rows.start_ns[some] - self._origin[device]
        return Pieces(start, flops[rows.row[some]], np.zeros(len(some), dtype=np.int64))

    def _kernels_of(self, device: int) -> Pieces:
        """Return the activities of a device; names beyond the longest ones are one."""
        rows = self._prepared.accounts[device].rows
        column = self._prepared.trace.activities["name"]
        texts, ns = names(column), rows.end_ns - rows.start_ns
        longest, which = _longest(codes(column)[rows.row], ns, len(texts))
        keys = self._places([*(("", texts[one]) for one in longest), ("", _REST)])
        return Pieces(rows.start_ns - self._origin[device], ns, keys[which])

    def _few(self, idle: Pieces) -> Pieces:
        """Return idle time whose names beyond the longest ones are one."""
        longest, which = _longest(idle.key, idle.ns, len(self._names))
        keys = np.append(np.array(longest, dtype=np.int64), self._places([("", _REST)]))
        return Pieces(idle.start_ns, idle.ns, keys[which])

    def _parts_of(self, device: int, edges: IntArray) -> Pieces:
        """Return the components of each bin; their keys are places in WORK."""
        at = edges + self._origin[device]
        parts = self._prepared.accounts[device].timeline.parts
        sums = np.stack([parts[name].length_within(at[:-1], at[1:]) for name in WORK])
        key, place = np.nonzero(sums)
        order = np.argsort(place, kind="stable")
        return Pieces(edges[place[order]], sums[key, place][order], key[order])


@lru_cache(maxsize=1 << 16)
def _short(name: str) -> str:
    """Return a function without its path; what is longer than any of those stays as it is."""
    return name if len(name) > _LONGEST_PATH else function_name(name)


def _longest(key: IntArray, ns: IntArray, keys: int) -> tuple[list[int], IntArray]:
    """Return the keys with most time, and of each time the place of its key there, or behind."""
    longest = np.argsort(-group_sums(key, ns, keys), kind="stable")[:_MOST_NAMES]
    place = np.full(keys, len(longest), dtype=np.int64)
    place[longest] = np.arange(len(longest))
    return longest.tolist(), place[key]


def _begun(pieces: Pieces, edges: Sequence[int] | IntArray) -> Pieces:
    """Return what begins between the first and the last edge."""
    some = slice(*np.searchsorted(pieces.start_ns, [edges[0], edges[-1]]).tolist())
    return Pieces(pieces.start_ns[some], pieces.ns[some], pieces.key[some])


def _sums_begun(pieces: Pieces, edges: IntArray) -> Pieces:
    """Return the sums of what begins in each bin."""
    begun = _begun(pieces, edges)
    place = np.searchsorted(edges, begun.start_ns, side="right") - 1
    bins, group = np.unique(place, return_inverse=True)
    return Pieces(edges[bins], group_sums(group, begun.ns, len(bins)), np.zeros_like(bins))


def _in_bins(pieces: Pieces, edges: IntArray) -> Pieces:
    """Return the sums of each key in each bin."""
    start, end = (
        np.clip(at, *edges[[0, -1]]) for at in (pieces.start_ns, pieces.start_ns + pieces.ns)
    )
    first = np.searchsorted(edges, start, side="right") - 1
    place, which = runs(first, np.searchsorted(edges, end, side="left"))
    ns = np.minimum(end[which], edges[place + 1]) - np.maximum(start[which], edges[place])
    keys = int(pieces.key.max(initial=0)) + 1
    both, group = np.unique(place * keys + pieces.key[which], return_inverse=True)
    return Pieces(edges[both // keys], group_sums(group, ns, len(both)), both % keys)
