"""What PyTorch's allocator held over time: the events of one GPU, and its state at their end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

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


class _Changes(NamedTuple):
    """Changes of allocated memory: a row for the start, one per block held then, one per event.

    `total` is what is allocated after the change; what was held at the start counts from its row.
    """

    time_ns: IntArray
    change: IntArray
    address: IntArray
    stack: IntArray
    total: IntArray


class History(Struct, frozen=True, dict=True):
    """The events of one device in order, and what it `held` in its `segments` at their end."""

    action: IntArray
    time_ns: IntArray
    address: IntArray
    size: IntArray
    stack: IntArray
    held: Blocks
    segments: Blocks

    @property
    def moved(self) -> float:
        """Return the sum of all sizes; what exceeds 2^60 adds up to no size."""
        columns = (self.size, self.held.size, self.segments.size)
        return float(sum(sizes.sum(dtype=np.float64) for sizes in columns))

    @cached_property
    def _rows(self) -> IntArray:
        """The events that allocate and release."""
        return np.flatnonzero((self.action == ALLOC) | (self.action == FREE))

    @cached_property
    def _by_address(self) -> tuple[IntArray, BoolArray]:
        """These events by address, in order within each, and which are the first at theirs."""
        rows = self._rows[np.argsort(self.address[self._rows], kind="stable")]
        address = self.address[rows]
        return rows, np.append(True, address[1:] != address[:-1])[: len(address)]

    @property
    def contradictions(self) -> int:
        """Return how many events allocate what is allocated, or release what is not."""
        rows, is_first = self._by_address
        action = self.action[rows]
        same = np.append(False, action[1:] == action[:-1])[: len(action)]
        return int(np.count_nonzero(same & ~is_first))

    @cached_property
    def before(self) -> Blocks:
        """What was held before the first event: what is released first, and what has no event.

        Of what is released it is not known who allocated it.
        """
        rows, is_first = self._by_address
        freed = rows[is_first & (self.action[rows] == FREE)]
        quiet = ~np.isin(self.held.address, self.address[self._rows])
        return Blocks(
            np.append(self.held.address[quiet], self.address[freed]),
            np.append(self.held.size[quiet], self.size[freed]),
            np.append(self.held.code[quiet], np.full(len(freed), -1)),
        )

    @cached_property
    def _changes(self) -> _Changes:
        """The changes of allocated memory, from the first event on."""
        rows, before = self._rows, self.before
        start = np.full(1 + len(before.size), self.time_ns[0] if len(self.time_ns) else 0)
        stack = np.where(self.action[rows] == ALLOC, self.stack[rows], -1)
        change = np.concatenate([[0], before.size, self.size[rows] * _SIGNS[self.action[rows]]])
        total = np.cumsum(change)
        total[: len(start)] = before.size.sum()
        return _Changes(
            np.append(start, self.time_ns[rows]),
            change,
            np.concatenate([[0], before.address, self.address[rows]]),
            np.concatenate([[-1], before.code, stack]),
            total,
        )

    @property
    def missing(self) -> int:
        """Return by how much the state at the snapshot exceeds what events lead to."""
        return int(self.held.size.sum()) - int(self._changes.total[-1])

    def series(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """Give the columns of each counter: changes, allocated, reserved, the largest free block.

        Reserved memory is left out where undoing the events leads below 0.
        """
        time, change, address, stack, total = self._changes
        is_row = np.arange(len(time)) > len(self.before.size)
        is_row |= stack >= 0  # who allocated the others is not known: together they are one row
        is_row[0] = not is_row[1:].all() or len(time) == 1
        where = {"time_ns": time[is_row], "address": address[is_row]}
        allocator = {"stack": stack[is_row].astype(np.int32)}
        yield "change", {**where, **allocator, "value": change[is_row].astype(np.float64)}
        yield "allocated", {**where, "value": total[is_row].astype(np.float64)}
        rows = np.flatnonzero(np.isin(self.action, list(SEGMENTS)))
        grown = np.cumsum(np.append(0, self.size[rows] * _SIGNS[self.action[rows]]))
        reserved = int(self.segments.size.sum()) - int(grown[-1]) + grown
        if len(self.segments.size) + len(rows) == 0 or int(reserved.min()) < 0:
            return
        yield (
            "reserved",
            {
                "time_ns": np.append(time[0], self.time_ns[rows]),
                "stack": np.append(-1, self.stack[rows]).astype(np.int32),
                "value": reserved.astype(np.float64),
            },
        )
        # The last change of the instant in which most was allocated first, and what was held then,
        # by the last change at each address.
        highest = int(np.argmax(total))
        peak = int(np.flatnonzero((total == total[highest]) & (time == time[highest]))[-1])
        last = peak - np.unique(address[: peak + 1][::-1], return_index=True)[1]
        last = last[change[last] > 0]
        held = Blocks(address[last], change[last], stack[last])
        largest = np.array([_largest_gap(*self._segments_after(peak), held)], np.float64)
        yield "largest_free", {"time_ns": time[peak : peak + 1], "value": largest}

    def _segments_after(self, row: int) -> tuple[Blocks, IntArray]:
        """Return the segments after a change as ranges with a count, and where pieces begin.

        They are those of the snapshot, with later events undone.
        """
        first = 1 + len(self.before.size)
        since = self._rows[row - first] if row >= first else -1
        later = np.flatnonzero(np.isin(self.action, list(SEGMENTS)))
        later = later[later > since]
        ranges = Blocks(
            np.append(self.segments.address, self.address[later]),
            np.append(self.segments.size, self.size[later]),
            np.append(np.ones(len(self.segments.size)), -_SIGNS[self.action[later]]),
        )
        begins = self.address[later[np.isin(self.action[later], _WHOLE)]]
        return ranges, np.append(self.segments.address[self.segments.code == 0], begins)


def _largest_gap(segments: Blocks, begins: IntArray, held: Blocks) -> int:
    """Return the longest stretch of segments that nothing is held in."""
    rounded = -(-held.size // _ROUNDED) * _ROUNDED
    address = np.concatenate([segments.address, held.address])
    ends = address + np.concatenate([segments.size, rounded])
    exists = np.concatenate([segments.code, np.zeros(len(held.size))])
    taken = np.concatenate([np.zeros(len(segments.size)), np.ones(len(held.size))])
    edges = np.concatenate([address, ends])
    order = np.argsort(edges, kind="stable")
    edges, width = edges[order], np.diff(edges[order], append=edges[order][-1:])
    is_free = np.cumsum(np.append(exists, -exists)[order]) > 0
    is_free &= np.cumsum(np.append(taken, -taken)[order]) <= 0
    piece = np.cumsum((~is_free & (width > 0)) | np.isin(edges, begins))
    sizes = np.bincount(piece, weights=np.where(is_free, width, 0))
    return int(sizes.max(initial=0))
