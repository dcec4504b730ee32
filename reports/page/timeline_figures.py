"""Numbers from which the page's scripts compute figures of any range of the timeline.

They are idle time with what the host did, kernels, components and FLOPs. Where each box is one
event, the scripts count kernels and components from the boxes. Elsewhere they get sums per bin (of
equal length), so that figures between edges of bins are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
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
    """Pieces of time in order of start, or sums per bin; `key` is an index of `Known.names`."""

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
    """The figures of a level by device; `bin_ns` is 0 if they are not sums per bin.

    `kernels` and `parts` exist only as sums: the time of kernels by name, and of components, whose
    keys are indices of WORK. `flops` have FLOPs in `ns`, all of a kernel at its start.
    """

    bin_ns: int
    idle: Mapping[int, Pieces]
    kernels: Mapping[int, Pieces]
    parts: Mapping[int, Pieces]
    flops: Mapping[int, Pieces]


class Known:
    """Idle time and FLOPs of the devices drawn, from which it makes the figures of any level."""

    def __init__(self, prepared: Prepared, timeline: Timeline, flops: IntArray) -> None:
        """Collect idle time and FLOPs (`flops` per activity); times count as in the timeline.

        `keys` has the key of each pair of a class of what the host did ("" for kernels) and a name;
        a new pair gets the next key.
        """
        process = numbers(prepared.trace.devices["process"])
        self._prepared = prepared
        self._origin = {d: timeline.origin_ns[int(process[d])] for d in timeline.chosen.devices}
        self.keys: defaultdict[tuple[str, str], int] = defaultdict(count().__next__)
        self._idle, self._flops = {}, {}
        for device, idle in named_idle(prepared, [*self._origin]).items():
            keys = [self.keys[CLASSES[kind], _short(name)] for kind, name in idle.names]
            start_ns, ns = idle.start_ns - self._origin[device], idle.end_ns - idle.start_ns
            key_of_name = np.array(keys, dtype=np.int64)
            self._idle[device] = Pieces(start_ns, ns, key_of_name[idle.name])
        for device, origin_ns in self._origin.items():
            rows = prepared.accounts[device].rows
            counted = np.flatnonzero(flops[rows.row] > 0)
            key = np.zeros(len(counted), dtype=np.int64)
            start_ns = rows.start_ns[counted] - origin_ns
            self._flops[device] = Pieces(start_ns, flops[rows.row[counted]], key)

    def of(self, level: Level, *, complete: bool) -> Figures:
        """Return the figures of a level; `complete`: its lanes show all work of the devices.

        If each box is one event, too, the scripts count kernels and components from the boxes; then
        idle time and FLOPs are not summed.
        """
        span = level.span
        if complete and level.is_single:
            ends = (span.start_ns, span.end_ns)
            idle = {device: pieces.within(*ends) for device, pieces in self._idle.items()}
            flops = {device: _begun(pieces, ends) for device, pieces in self._flops.items()}
            return Figures(0, idle, {}, {}, flops)
        # Bins are 1, 2 or 5 times a power of ten ns long, and begin at multiples of that.
        bin_ns = round_above((span.end_ns - span.start_ns) * len(self._origin) // _MOST_BINS)
        first, end = span.start_ns // bin_ns, -(-span.end_ns // bin_ns)
        edges: IntArray = np.arange(first, end + 1, dtype=np.int64) * bin_ns
        idle = {}
        for device, pieces in self._idle.items():
            longest, place = _longest(pieces.key, pieces.ns, len(self.keys))
            keys = np.array([*longest, self.keys["", _REST]], dtype=np.int64)
            idle[device] = _in_bins(Pieces(pieces.start_ns, pieces.ns, keys[place]), edges)
        column = self._prepared.trace.activities["name"]
        code, texts = codes(column), names(column)
        kernels = {device: self._kernels(device, edges, code, texts) for device in self._origin}
        parts = {device: self._components(device, edges) for device in self._origin}
        flops = {}
        for device, pieces in self._flops.items():
            inside = _begun(pieces, edges)
            bin_of_piece = np.searchsorted(edges, inside.start_ns, side="right") - 1
            bins, group = np.unique(bin_of_piece, return_inverse=True)
            sums = group_sums(group, inside.ns, len(bins))
            flops[device] = Pieces(edges[bins], sums, np.zeros_like(bins))
        return Figures(bin_ns, idle, kernels, parts, flops)

    def _kernels(
        self, device: int, edges: IntArray, code: IntArray, texts: Sequence[str]
    ) -> Pieces:
        """Return the time of each kernel per bin, and of all but the longest together.

        `code` is the name of each activity, as an index of `texts`.
        """
        rows = self._prepared.accounts[device].rows
        ns = rows.end_ns - rows.start_ns
        longest, place = _longest(code[rows.row], ns, len(texts))
        shown = [*(texts[name] for name in longest), _REST]
        keys = np.array([self.keys["", name] for name in shown], dtype=np.int64)
        return _in_bins(Pieces(rows.start_ns - self._origin[device], ns, keys[place]), edges)

    def _components(self, device: int, edges: IntArray) -> Pieces:
        """Return the time of each component per bin."""
        parts = self._prepared.accounts[device].timeline.parts
        low_ns, high_ns = edges[:-1] + self._origin[device], edges[1:] + self._origin[device]
        sums = np.stack([parts[name].length_within(low_ns, high_ns) for name in WORK])
        bins, component = np.nonzero(sums.T)  # in order of bins
        return Pieces(edges[bins], sums[component, bins], component)


@lru_cache(maxsize=1 << 16)
def _short(name: str) -> str:
    """Return a function name without its path; a name too long for one is unchanged."""
    return name if len(name) > _LONGEST_PATH else function_name(name)


def _longest(key: IntArray, ns: IntArray, keys: int) -> tuple[list[int], IntArray]:
    """Return the keys with most time, and per time the index of its key there, or their number."""
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
    start = np.clip(pieces.start_ns, edges[0], edges[-1])
    end = np.clip(pieces.start_ns + pieces.ns, edges[0], edges[-1])
    # Make every pair of a piece and a bin that it overlaps.
    first = np.searchsorted(edges, start, side="right") - 1
    bins, piece = runs(first, np.searchsorted(edges, end, side="left"))
    ns = np.minimum(end[piece], edges[bins + 1]) - np.maximum(start[piece], edges[bins])
    # Sum by bin and key, as one number.
    keys = int(pieces.key.max(initial=0)) + 1
    bin_and_key, group = np.unique(bins * keys + pieces.key[piece], return_inverse=True)
    sums = group_sums(group, ns, len(bin_and_key))
    return Pieces(edges[bin_and_key // keys], sums, bin_and_key % keys)
