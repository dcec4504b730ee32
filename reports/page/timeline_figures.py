"""What figures of any stretch of the timeline are made of, beside its boxes.

Idle time comes slice by slice, with what the host did. Where boxes do not tell each event of the
devices, sums of bins of equal length do instead: their figures are exact from edge to edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.culprits import named_idle
from traceflops.attribution.idle_classes import CLASSES
from traceflops.characters import function_name
from traceflops.drawing.timeline import Level, Timeline
from traceflops.reports.page.axes import round_above
from traceflops.table.columns import IntArray, codes, names, numbers
from traceflops.table.grouping import group_sums, runs
from traceflops.timeline.records import WORK
from traceflops.windows.prepared import Prepared

_MOST_BINS: Final = 1_000  # of all devices together
_MOST_NAMES: Final = 20
_REST: Final = "(others)"
_LONGEST_PATH: Final = 1_000


class Pieces(Struct, frozen=True, eq=False):
    """Pieces of time in order of start, or sums in bins; `key` is a place in `Known.names`."""

    start_ns: IntArray
    ns: IntArray
    key: IntArray

    def within(self, start_ns: int, end_ns: int) -> Pieces:
        """Return the pieces that overlap a range of time."""
        inside = slice(
            int(np.searchsorted(self.start_ns + self.ns, start_ns, side="right")),
            int(np.searchsorted(self.start_ns, end_ns, side="left")),
        )
        return Pieces(self.start_ns[inside], self.ns[inside], self.key[inside])


class Figures(Struct, frozen=True):
    """The figures of a level by device; `bin_ns` is 0 if they are not summed in bins.

    `kernels` and `parts` exist only in bins: the time of kernels by name, and of components.
    `flops` have FLOPs in `ns`, all of a kernel at its start.
    """

    bin_ns: int
    idle: Mapping[int, Pieces]
    kernels: Mapping[int, Pieces]
    parts: Mapping[int, Pieces]
    flops: Mapping[int, Pieces]


class Known:
    """Makes the figures of any level, from the idle time and the FLOPs of the devices drawn."""

    def __init__(self, prepared: Prepared, timeline: Timeline, flops: IntArray) -> None:
        """Take the idle time and the FLOPs per activity, in times of the timeline."""
        process = numbers(prepared.trace.devices["process"])
        self._prepared = prepared
        self._origin = {d: timeline.origin_ns[int(process[d])] for d in timeline.chosen.devices}
        self._names: dict[tuple[str, str], int] = {}
        self._idle, self._flops = {}, {}
        for device, idle in named_idle(prepared, [*self._origin]).items():
            keys = self._keys([(CLASSES[kind], _short(name)) for kind, name in idle.names])
            start_ns, ns = idle.start_ns - self._origin[device], idle.end_ns - idle.start_ns
            self._idle[device] = Pieces(start_ns, ns, keys[idle.name])
        for device, origin_ns in self._origin.items():
            rows = prepared.accounts[device].rows
            counted = np.flatnonzero(flops[rows.row] > 0)
            key = np.zeros(len(counted), dtype=np.int64)
            start_ns = rows.start_ns[counted] - origin_ns
            self._flops[device] = Pieces(start_ns, flops[rows.row[counted]], key)

    @property
    def names(self) -> list[tuple[str, str]]:
        """Return the name of each key, and the class of what the host did."""
        return list(self._names)

    def of(self, level: Level, *, complete: bool) -> Figures:
        """Return the figures of a level; `complete`: its lanes show all work of the devices.

        If also each box is one event, kernels and components are counted from the boxes instead;
        then idle time and FLOPs are given piece by piece, in bins of no length (0).
        """
        span = level.span
        if complete and level.is_single:
            ends = (span.start_ns, span.end_ns)
            idle = {device: one.within(*ends) for device, one in self._idle.items()}
            begun = {device: _begun(one, ends) for device, one in self._flops.items()}
            return Figures(0, idle, {}, {}, begun)
        # The edges of bins; their length is 1, 2 or 5 of a decade of ns.
        length = round_above((span.end_ns - span.start_ns) * len(self._origin) // _MOST_BINS)
        first, end = span.start_ns // length, -(-span.end_ns // length)
        edges: IntArray = np.arange(first, end + 1, dtype=np.int64) * length
        idle, kernels, parts = {}, {}, {}
        for device, pieces in self._idle.items():
            longest, which = _longest(pieces.key, pieces.ns, len(self._names))
            keys = np.append(np.array(longest, dtype=np.int64), self._keys([("", _REST)]))
            idle[device] = _in_bins(Pieces(pieces.start_ns, pieces.ns, keys[which]), edges)
        column = self._prepared.trace.activities["name"]
        code, texts = codes(column), names(column)
        for device, origin_ns in self._origin.items():
            account = self._prepared.accounts[device]
            rows, times = account.rows, account.timeline.parts
            ns = rows.end_ns - rows.start_ns
            longest, which = _longest(code[rows.row], ns, len(texts))
            keys = self._keys([*(("", texts[name]) for name in longest), ("", _REST)])
            pieces = Pieces(rows.start_ns - origin_ns, ns, keys[which])
            kernels[device] = _in_bins(pieces, edges)
            # Components by bin; a key is a place in WORK.
            low, high = edges[:-1] + origin_ns, edges[1:] + origin_ns
            sums = np.stack([times[name].length_within(low, high) for name in WORK])
            bins, component = np.nonzero(sums.T)
            parts[device] = Pieces(edges[bins], sums[component, bins], component)
        flops = {}  # the sum of those that begin in each bin
        for device, pieces in self._flops.items():
            inside = _begun(pieces, edges)
            place = np.searchsorted(edges, inside.start_ns, side="right") - 1
            bins, group = np.unique(place, return_inverse=True)
            sums = group_sums(group, inside.ns, len(bins))
            flops[device] = Pieces(edges[bins], sums, np.zeros_like(bins))
        return Figures(length, idle, kernels, parts, flops)

    def _keys(self, called: list[tuple[str, str]]) -> IntArray:
        """Return the keys of classes and names; new ones get the next keys."""
        keys = [self._names.setdefault(one, len(self._names)) for one in called]
        return np.array(keys, dtype=np.int64)


@lru_cache(maxsize=1 << 16)
def _short(name: str) -> str:
    """Return a function name without its path; a name too long for one is left as it is."""
    return name if len(name) > _LONGEST_PATH else function_name(name)


def _longest(key: IntArray, ns: IntArray, keys: int) -> tuple[list[int], IntArray]:
    """Return the keys with most time, and per time the place of its key there, or behind them."""
    longest = np.argsort(-group_sums(key, ns, keys), kind="stable")[:_MOST_NAMES]
    place = np.full(keys, len(longest), dtype=np.int64)
    place[longest] = np.arange(len(longest))
    return longest.tolist(), place[key]


def _begun(pieces: Pieces, edges: Sequence[int] | IntArray) -> Pieces:
    """Return the pieces that begin between the first and the last edge."""
    begun = slice(*np.searchsorted(pieces.start_ns, [edges[0], edges[-1]]).tolist())
    return Pieces(pieces.start_ns[begun], pieces.ns[begun], pieces.key[begun])


def _in_bins(pieces: Pieces, edges: IntArray) -> Pieces:
    """Return one piece per bin and key: the time of the pieces inside the bin."""
    start, end = (
        np.clip(at, *edges[[0, -1]]) for at in (pieces.start_ns, pieces.start_ns + pieces.ns)
    )
    # Every pair of a piece and a bin that it overlaps.
    first = np.searchsorted(edges, start, side="right") - 1
    bins, piece = runs(first, np.searchsorted(edges, end, side="left"))
    ns = np.minimum(end[piece], edges[bins + 1]) - np.maximum(start[piece], edges[bins])
    keys = int(pieces.key.max(initial=0)) + 1
    both, group = np.unique(bins * keys + pieces.key[piece], return_inverse=True)
    return Pieces(edges[both // keys], group_sums(group, ns, len(both)), both % keys)
