"""Memory of PyTorch's allocator over time: the events of one GPU, and its state at their end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from traceflops.table.columns import Array, BoolArray, IntArray

ALLOC, FREE = 1, 2
SEGMENTS: Final = {3: "segment_alloc", 4: "segment_free", 5: "segment_map", 6: "segment_unmap"}
"""Codes of actions: ALLOC and FREE change allocated memory, SEGMENTS reserved memory."""
_SIGNS: Final = np.array([0, 1, -1, 1, -1, 1, -1, 0])
"""The sign of the change of memory, by the code of the action."""
_WHOLE: Final = (3, 4)
"""Actions on whole segments; a block never reaches from one segment into the next."""
_ROUNDED: Final = 512
"""Sizes of blocks are multiples of this."""


class Blocks(NamedTuple):
    """Blocks or segments: address, size in bytes, and the code of a stack (or a flag)."""

    address: IntArray
    size: IntArray
    code: IntArray


class _Changes(NamedTuple):
    """Changes of allocated memory in bytes.

    Row 0 is the start; it stands for all blocks held then whose stack is unknown. Then come a row
    per block held at the start, and a row per event. `total` is what is allocated after a change;
    up to the first event it is all that was held at the start. `stack` is -1 for unknown.
    """

    time_ns: IntArray
    change: IntArray
    address: IntArray
    stack: IntArray
    total: IntArray


class History(Struct, frozen=True, dict=True):
    """The events of one device in order of time; `held` and `segments` are its state at the end."""

    action: IntArray
    time_ns: IntArray
    address: IntArray
    size: IntArray
    stack: IntArray
    held: Blocks
    segments: Blocks

    @property
    def moved(self) -> float:
        """The sum of all sizes as a float, with which to check that sums of integers fit."""
        columns = (self.size, self.held.size, self.segments.size)
        return float(sum(sizes.sum(dtype=np.float64) for sizes in columns))

    @cached_property
    def _rows(self) -> IntArray:
        """The indices of the events that allocate or free."""
        return np.flatnonzero((self.action == ALLOC) | (self.action == FREE))

    @cached_property
    def _by_address(self) -> tuple[IntArray, BoolArray]:
        """These indices by address, in order of time for each, and which are the first there."""
        rows = self._rows[np.argsort(self.address[self._rows], kind="stable")]
        address = self.address[rows]
        return rows, np.append(True, address[1:] != address[:-1])[: len(address)]

    @property
    def contradictions(self) -> int:
        """Number of events that allocate what is allocated already, or free what is free."""
        rows, is_first = self._by_address
        action = self.action[rows]
        same = np.append(False, action[1:] == action[:-1])[: len(action)]
        return int(np.count_nonzero(same & ~is_first))

    @cached_property
    def held_at_start(self) -> Blocks:
        """Blocks held before the first event: without events, or first freed (stack -1)."""
        rows, is_first = self._by_address
        freed = rows[is_first & (self.action[rows] == FREE)]
        without_events = ~np.isin(self.held.address, self.address[self._rows])
        return Blocks(
            np.append(self.held.address[without_events], self.address[freed]),
            np.append(self.held.size[without_events], self.size[freed]),
            np.append(self.held.code[without_events], np.full(len(freed), -1)),
        )

    @cached_property
    def _changes(self) -> _Changes:
        """All changes of allocated memory; rows of the start have its total."""
        rows, held = self._rows, self.held_at_start
        start = np.full(1 + len(held.size), self.time_ns[0] if len(self.time_ns) else 0)
        stack = np.where(self.action[rows] == ALLOC, self.stack[rows], -1)
        change = np.concatenate([[0], held.size, self.size[rows] * _SIGNS[self.action[rows]]])
        total = np.cumsum(change)
        total[: len(start)] = held.size.sum()
        return _Changes(
            np.append(start, self.time_ns[rows]),
            change,
            np.concatenate([[0], held.address, self.address[rows]]),
            np.concatenate([[-1], held.code, stack]),
            total,
        )

    @property
    def missing(self) -> int:
        """How many bytes more are held at the snapshot than the events add up to."""
        return int(self.held.size.sum()) - int(self._changes.total[-1])

    def series(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """Yield the name and the columns of each counter of memory, in bytes.

        They are change, allocated, reserved, largest_free (one row: the largest free range at the
        peak of allocated memory). The last two are left out if reserved memory is unknown.
        """
        time, change, address, stack, total = self._changes
        # Row 0 stands for all blocks of the start without a known stack, if there are any, or for
        # the lack of any change.
        is_shown = (np.arange(len(time)) > len(self.held_at_start.size)) | (stack >= 0)
        is_shown[0] = not is_shown[1:].all() or len(time) == 1
        common = {"time_ns": time[is_shown], "address": address[is_shown]}
        shown_stack = stack[is_shown].astype(np.int32)
        value = change[is_shown].astype(np.float64)
        yield "change", {**common, "stack": shown_stack, "value": value}
        yield "allocated", {**common, "value": total[is_shown].astype(np.float64)}
        # Reserved memory is the size of the segments at the end, with events undone: unknown if
        # that is below 0.
        rows = np.flatnonzero(np.isin(self.action, list(SEGMENTS)))
        grown = np.cumsum(np.append(0, self.size[rows] * _SIGNS[self.action[rows]]))
        reserved = int(self.segments.size.sum()) - int(grown[-1]) + grown
        if len(self.segments.size) + len(rows) == 0 or int(reserved.min()) < 0:
            return
        reserved_stack = np.append(-1, self.stack[rows]).astype(np.int32)
        of_segments = {"time_ns": np.append(time[0], self.time_ns[rows]), "stack": reserved_stack}
        yield "reserved", {**of_segments, "value": reserved.astype(np.float64)}
        # The peak: the last change at the first time at which the total is highest.
        highest = int(np.argmax(total))
        peak = int(np.flatnonzero((total == total[highest]) & (time == time[highest]))[-1])
        # Held at the peak is what the last change at each address, up to it, allocated.
        last = peak - np.unique(address[: peak + 1][::-1], return_index=True)[1]
        last = last[change[last] > 0]
        held = Blocks(address[last], change[last], stack[last])
        largest = np.array([_largest_gap(*self._segments_after(peak), held)], np.float64)
        yield "largest_free", {"time_ns": time[peak : peak + 1], "value": largest}

    def _segments_after(self, row: int) -> tuple[Blocks, IntArray]:
        """Return the segments after a change (a row of `_changes`), and where whole ones begin.

        They are the segments at the end with code 1, and those of later events, which are undone: 1
        for one that was freed, -1 for one that was taken. The sum of codes at an address tells
        whether it was reserved.
        """
        first = 1 + len(self.held_at_start.size)
        event = self._rows[row - first] if row >= first else -1  # -1: before all events
        later = np.flatnonzero(np.isin(self.action, list(SEGMENTS)))
        later = later[later > event]
        ranges = Blocks(
            np.append(self.segments.address, self.address[later]),
            np.append(self.segments.size, self.size[later]),
            np.append(np.ones(len(self.segments.size)), -_SIGNS[self.action[later]]),
        )
        begins = self.address[later[np.isin(self.action[later], _WHOLE)]]
        # The code of `segments` says whether one is expandable: it may be a part of a longer one.
        return ranges, np.append(self.segments.address[self.segments.code == 0], begins)


def _largest_gap(segments: Blocks, begins: IntArray, held: Blocks) -> int:
    """Return the size of the largest free range in segments, within one segment.

    Memory is reserved where the codes of `segments` that cover it (1 or -1) add up to more than 0;
    `begins` are the addresses at which segments begin (see `_segments_after`).
    """
    rounded = -(-held.size // _ROUNDED) * _ROUNDED
    address = np.concatenate([segments.address, held.address])
    ends = address + np.concatenate([segments.size, rounded])
    exists = np.concatenate([segments.code, np.zeros(len(held.size))])
    taken = np.concatenate([np.zeros(len(segments.size)), np.ones(len(held.size))])
    edges = np.concatenate([address, ends])
    order = np.argsort(edges, kind="stable")
    edges, width = edges[order], np.diff(edges[order], append=edges[order][-1:])
    # Between two edges memory is free if a segment covers it and no block does.
    is_free = np.cumsum(np.append(exists, -exists)[order]) > 0
    is_free &= np.cumsum(np.append(taken, -taken)[order]) <= 0
    # Join adjacent free ranges: a used range, or the begin of a segment, starts a new piece.
    piece = np.cumsum((~is_free & (width > 0)) | np.isin(edges, begins))
    sizes = np.bincount(piece, weights=np.where(is_free, width, 0))
    return int(sizes.max(initial=0))
