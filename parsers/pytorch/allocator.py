"""What PyTorch's allocator held over time: the events of one GPU, and its state at their end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from traceflops.table.columns import Array, BoolArray, IntArray

ALLOC, FREE = 1, 2
SEGMENTS: Final = {3: "segment_alloc", 4: "segment_free", 5: "segment_map", 6: "segment_unmap"}
"""Actions by their codes: what changes allocated memory, and what changes reserved."""
_SIGNS: Final = np.array([0, 1, -1, 1, -1, 1, -1, 0])
_WHOLE: Final = (3, 4)
"""Segments of their own, of which no block reaches into the next."""
_ROUNDED: Final = 512
"""Blocks are multiples of this."""


class Blocks(NamedTuple):
    """Blocks or segments: where they are, how large, and the code of a stack (or a flag)."""

    address: IntArray
    size: IntArray
    code: IntArray


@dataclass(frozen=True)
class History:
    """The events of one device in order, and what it `held` in its `segments` at their end."""

    action: IntArray
    time_ns: IntArray
    address: IntArray
    size: IntArray
    stack: IntArray
    held: Blocks
    segments: Blocks

    @cached_property
    def _rows(self) -> IntArray:
        """The events that allocate and release."""
        return np.flatnonzero((self.action == ALLOC) | (self.action == FREE))

    @cached_property
    def _change(self) -> IntArray:
        change: IntArray = self.size * _SIGNS[self.action]
        return change

    @property
    def moved(self) -> float:
        """Return the sum of all sizes; what exceeds 2^60 adds up to no size."""
        columns = (self.size, self.held.size, self.segments.size)
        return float(sum(sizes.sum(dtype=np.float64) for sizes in columns))

    @cached_property
    def _by_address(self) -> IntArray:
        """The rows of allocations and releases by address, in order within each."""
        return self._rows[np.argsort(self.address[self._rows], kind="stable")]

    @cached_property
    def _opens(self) -> BoolArray:
        """Which of these are the first at their address."""
        address = self.address[self._by_address]
        return np.append(True, address[1:] != address[:-1])[: len(address)]

    @property
    def contradictions(self) -> int:
        """Return how many events allocate what is allocated, or release what is not."""
        action = self.action[self._by_address]
        same = np.append(False, action[1:] == action[:-1])[: len(action)]
        return int(np.count_nonzero(same & ~self._opens))

    @cached_property
    def before(self) -> Blocks:
        """What was held before the first event: what is released first, and what has no event.

        Of what is released it is not known who allocated it.
        """
        first = self._by_address[self._opens]
        freed = first[self.action[first] == FREE]
        quiet = ~np.isin(self.held.address, self.address[self._rows])
        return Blocks(
            np.append(self.held.address[quiet], self.address[freed]),
            np.append(self.held.size[quiet], self.size[freed]),
            np.append(self.held.code[quiet], np.full(len(freed), -1)),
        )

    @cached_property
    def _all(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Time, change, address and stack: what was held before, then what events change."""
        rows, before = self._rows, self.before
        stack = np.where(self.action[rows] == ALLOC, self.stack[rows], -1)
        return (
            np.append(np.full(len(before.size), self._start_ns), self.time_ns[rows]),
            np.append(before.size, self._change[rows]),
            np.append(before.address, self.address[rows]),
            np.append(before.code, stack),
        )

    @property
    def _start_ns(self) -> int:
        return int(self.time_ns[0]) if len(self.time_ns) else 0

    @cached_property
    def _allocated(self) -> IntArray:
        """The total after each change; what was held before counts as a whole from its first."""
        total = np.cumsum(self._all[1])
        known = len(self.before.size)
        total[:known] = total[known - 1] if known else 0
        return total

    @property
    def missing(self) -> int:
        """Return by how much the state at the snapshot exceeds what events lead to."""
        last = int(self._allocated[-1]) if len(self._allocated) else 0
        return int(self.held.size.sum()) - last

    def series(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """Give the columns of each counter: changes, allocated, reserved, the largest free block.

        Reserved memory is left out where undoing the events leads below 0.
        """
        time, change, address, stack = self._all
        has_row = np.arange(len(time)) >= len(self.before.size)
        has_row |= stack >= 0  # who allocated the others is not known: together they are one row
        head = [] if len(has_row) and has_row.all() else [self._start_ns]
        nothing = [0] * len(head)
        where = {
            "time_ns": np.append(np.array(head, np.int64), time[has_row]),
            "address": np.append(np.array(nothing, np.int64), address[has_row]),
        }
        value = np.append(np.array(nothing, np.float64), change[has_row])
        named = np.append(np.full(len(head), -1, np.int32), stack[has_row].astype(np.int32))
        yield "change", {**where, "value": value, "stack": named}
        before = np.full(len(head), self.before.size.sum(), np.float64)
        yield "allocated", {**where, "value": np.append(before, self._allocated[has_row])}
        rows = np.flatnonzero(np.isin(self.action, list(SEGMENTS)))
        grown = np.cumsum(self._change[rows])
        first = int(self.segments.size.sum()) - int(grown[-1] if len(rows) else 0)
        reserved = np.append(first, first + grown)
        if len(self.segments.size) + len(rows) == 0 or int(reserved.min()) < 0:
            return
        times, asked = (
            np.append(self._start_ns, self.time_ns[rows]),
            np.append(-1, self.stack[rows]),
        )
        called = {"time_ns": times, "stack": asked.astype(np.int32)}
        yield "reserved", {**called, "value": reserved.astype(np.float64)}
        # The last change of the instant in which most was allocated first, and what was held then,
        # by the last change at each address.
        peak, total = -1, self._allocated
        if len(total):
            highest = int(np.argmax(total))
            is_peak = (total == total[highest]) & (time == time[highest])
            peak = int(np.flatnonzero(is_peak)[-1])
        last = peak - np.unique(address[: peak + 1][::-1], return_index=True)[1]
        last = last[change[last] > 0]
        held = Blocks(address[last], change[last], stack[last])
        largest = np.array([_largest_gap(*self._segments_after(peak), held)])
        when = time[peak : peak + 1] if len(time) else times[:1]
        yield "largest_free", {"time_ns": when, "value": largest.astype(np.float64)}

    def _segments_after(self, row: int) -> tuple[Blocks, IntArray]:
        """Return the segments after a change as ranges with a count, and where pieces begin.

        They are those of the snapshot, with later events undone.
        """
        known = len(self.before.size)
        since = self._rows[row - known] if row >= known else -1
        later = np.flatnonzero(np.isin(self.action, list(SEGMENTS)))
        later = later[later > since]
        ranges = Blocks(
            np.append(self.segments.address, self.address[later]),
            np.append(self.segments.size, self.size[later]),
            np.append(np.ones(len(self.segments.size)), -_SIGNS[self.action[later]]),
        )
        own = np.isin(self.action[later], _WHOLE)
        return ranges, np.append(
            self.segments.address[self.segments.code == 0], self.address[later[own]]
        )


def _largest_gap(segments: Blocks, begins: IntArray, held: Blocks) -> int:
    """Return the longest stretch of segments that nothing is held in."""
    rounded = -(-held.size // _ROUNDED) * _ROUNDED
    address = np.concatenate([segments.address, held.address])
    ends = address + np.concatenate([segments.size, rounded])
    there = np.concatenate([segments.code, np.zeros(len(held.size))])
    taken = np.concatenate([np.zeros(len(segments.size)), np.ones(len(held.size))])
    edges = np.concatenate([address, ends])
    order = np.argsort(edges, kind="stable")
    edges, width = edges[order], np.diff(edges[order], append=edges[order][-1:])
    is_free = np.cumsum(np.append(there, -there)[order]) > 0
    is_free &= np.cumsum(np.append(taken, -taken)[order]) <= 0
    piece = np.cumsum((~is_free & (width > 0)) | np.isin(edges, begins))
    sizes = np.bincount(piece, weights=np.where(is_free, width, 0))
    return int(sizes.max(initial=0))
