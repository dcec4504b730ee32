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
"""Blocks take multiples of this many bytes."""


class Blocks(NamedTuple):
    """Blocks or segments: address, size in bytes, and a code of each.

    The code of a block is that of its stack, -1 if unknown. The code of a segment is 1 if it is
    expandable, else 0; `_segments_after` gives it another meaning.
    """

    address: IntArray
    size: IntArray
    code: IntArray


class _Changes(NamedTuple):
    """Changes of allocated memory in bytes, in order of time.

    Row 0 is the start, without a change. Then come a row per block that was held at the start, and
    a row per event. `total` is the memory allocated after a change; in all rows of the start it is
    the sum of the blocks held then. `stack` is -1 if unknown.
    """

    time_ns: IntArray
    change: IntArray
    address: IntArray
    stack: IntArray
    total: IntArray


class History(Struct, frozen=True, dict=True):
    """The allocator's events on a GPU by time; `held` and `segments` are the state at the end."""

    action: IntArray
    time_ns: IntArray
    address: IntArray
    size: IntArray
    stack: IntArray
    held: Blocks
    segments: Blocks

    @property
    def moved(self) -> float:
        """The sum of all sizes, as a float that cannot overflow."""
        columns = (self.size, self.held.size, self.segments.size)
        return float(sum(sizes.sum(dtype=np.float64) for sizes in columns))

    @cached_property
    def _rows(self) -> IntArray:
        """The indices of the events that allocate or free."""
        return np.flatnonzero((self.action == ALLOC) | (self.action == FREE))

    @cached_property
    def _by_address(self) -> tuple[IntArray, BoolArray]:
        """`_rows` sorted by address, then time; and which of them are first at their address."""
        rows = self._rows[np.argsort(self.address[self._rows], kind="stable")]
        address = self.address[rows]
        # address [5 5 9]  ->  is_first [1 0 1]; without events (no address) it is empty, too
        is_first = np.append(True, address[1:] != address[:-1])[: len(address)]
        return rows, is_first

    @property
    def contradictions(self) -> int:
        """Number of events that allocate what is allocated already, or free what is free."""
        rows, is_first = self._by_address
        action = self.action[rows]
        # address [5 5 9], all alloc: repeats_action [0 1 1], is_first [1 0 1]  ->  1 contradicts
        repeats_action = np.append(False, action[1:] == action[:-1])[: len(action)]
        return int(np.count_nonzero(repeats_action & ~is_first))

    @cached_property
    def held_at_start(self) -> Blocks:
        """Blocks that were held before the first event.

        They have no event, or the first one at their address frees them: then the stack is unknown.
        """
        rows, is_first = self._by_address
        freed = rows[is_first & (self.action[rows] == FREE)]
        without_events = ~np.isin(self.held.address, self.address[self._rows])
        return Blocks(
            address=np.append(self.held.address[without_events], self.address[freed]),
            size=np.append(self.held.size[without_events], self.size[freed]),
            code=np.append(self.held.code[without_events], np.full(len(freed), -1)),
        )

    @cached_property
    def _changes(self) -> _Changes:
        """Allocated bytes over time: what is held at the start, then an entry per event."""
        rows, held = self._rows, self.held_at_start
        start = np.full(1 + len(held.size), self.time_ns[0] if len(self.time_ns) else 0)
        stack = np.where(self.action[rows] == ALLOC, self.stack[rows], -1)
        # Held at the start [512 1024], then alloc 256, free 512:
        # change [0 512 1024 256 -512]  ->  total [1536 1536 1536 1792 1280]
        change = np.concatenate([[0], held.size, self.size[rows] * _SIGNS[self.action[rows]]])
        total = np.cumsum(change)
        total[: len(start)] = held.size.sum()
        return _Changes(
            time_ns=np.append(start, self.time_ns[rows]),
            change=change,
            address=np.concatenate([[0], held.address, self.address[rows]]),
            stack=np.concatenate([[-1], held.code, stack]),
            total=total,
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
        # Show all events. Show blocks held at the start if their stack is known. Row 0 stands for
        # the other blocks: show it if there are any, or if it is the only row.
        is_shown = stack >= 0
        is_shown[1 + len(self.held_at_start.size) :] = True
        is_shown[0] = not is_shown[1:].all() or len(time) == 1
        common = {"time_ns": time[is_shown], "address": address[is_shown]}
        shown_stack = stack[is_shown].astype(np.int32)
        value = change[is_shown].astype(np.float64)
        yield "change", {**common, "stack": shown_stack, "value": value}
        yield "allocated", {**common, "value": total[is_shown].astype(np.float64)}
        # Reserved memory at the start is that at the end minus the growth by all events. If it is
        # ever below 0, events are missing and reserved memory is unknown.
        # 30 at the end, events [+20 -10]: growth [0 20 10]  ->  reserved [20 40 30]
        rows = np.flatnonzero(np.isin(self.action, list(SEGMENTS)))
        growth = np.cumsum(np.append(0, self.size[rows] * _SIGNS[self.action[rows]]))
        reserved = int(self.segments.size.sum()) - int(growth[-1]) + growth
        if len(self.segments.size) + len(rows) == 0 or int(reserved.min()) < 0:
            return
        reserved_stack = np.append(-1, self.stack[rows]).astype(np.int32)
        reserved_time = np.append(time[0], self.time_ns[rows])
        values = reserved.astype(np.float64)
        yield "reserved", {"time_ns": reserved_time, "stack": reserved_stack, "value": values}
        # The peak is the last row with the highest total at the first time that has this total:
        # total [5 9 9 9], time [1 2 2 3]  ->  peak 2
        highest = int(np.argmax(total))
        peak = int(np.flatnonzero((total == total[highest]) & (time == time[highest]))[-1])
        # A block is held then if the last change at its address up to the peak allocated it.
        # `unique` finds first rows, so reverse: address [7 8 7 9], peak 3 -> [9 7 8 7]; the first
        # rows of 7, 8, 9 there are [1 2 0] -> their last rows are 3 - [1 2 0] = [2 1 3]
        last = peak - np.unique(address[: peak + 1][::-1], return_index=True)[1]
        allocating = last[change[last] > 0]
        held = Blocks(address[allocating], change[allocating], stack[allocating])
        largest = np.array([_largest_gap(*self._segments_after(peak), held)], np.float64)
        yield "largest_free", {"time_ns": time[peak : peak + 1], "value": largest}

    def _segments_after(self, row: int) -> tuple[Blocks, IntArray]:
        """Return the segments after a change (a row of `_changes`), and where whole ones begin.

        An address was reserved then if the codes of the returned blocks that cover it add up to
        more than 0. Segments at the end have the code 1. Later events are undone: they have 1 for
        memory that was given back, -1 for memory that was taken.
        """
        first = 1 + len(self.held_at_start.size)
        event = self._rows[row - first] if row >= first else -1  # -1: before all events
        segment_events = np.flatnonzero(np.isin(self.action, list(SEGMENTS)))
        later = segment_events[segment_events > event]
        ranges = Blocks(
            np.append(self.segments.address, self.address[later]),
            np.append(self.segments.size, self.size[later]),
            np.append(np.ones(len(self.segments.size)), -_SIGNS[self.action[later]]),
        )
        begins = self.address[later[np.isin(self.action[later], _WHOLE)]]
        # An expandable segment (code 1) is left out: it may be a part of a longer one.
        return ranges, np.append(self.segments.address[self.segments.code == 0], begins)


def _largest_gap(segments: Blocks, begins: IntArray, held: Blocks) -> int:
    """Return the size of the largest free range within one segment, in bytes.

    `segments` and `begins` are as `_segments_after` returns them, `held` the allocated blocks.
    """
    held_sizes = -(-held.size // _ROUNDED) * _ROUNDED  # rounded up: 513 -> 1024
    address = np.concatenate([segments.address, held.address])
    ends = address + np.concatenate([segments.size, held_sizes])
    edges = np.concatenate([address, ends])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    width = np.diff(edges, append=edges[-1:])
    # Between an edge and the next: how many segments, and how many blocks, cover the memory? Each
    # counts + from its begin and - from its end. Segment 0-10, block 2-4, in units of 512:
    # edges [0 2 4 10], width [2 2 6 0], reserved [1 1 1 0], allocated [0 1 0 0], free [1 0 1 0]
    segment_codes = np.concatenate([segments.code, np.zeros(len(held.size))])
    block_codes = np.concatenate([np.zeros(len(segments.size)), np.ones(len(held.size))])
    is_reserved = np.cumsum(np.append(segment_codes, -segment_codes)[order]) > 0
    is_allocated = np.cumsum(np.append(block_codes, -block_codes)[order]) > 0
    is_free = is_reserved & ~is_allocated
    # Join adjacent free ranges: a used range, or the begin of a segment, starts a new piece.
    # begins [0]: is_new_piece [1 1 0 0]  ->  piece [1 2 2 2]  ->  piece_sizes [0 2 6]
    is_new_piece = (~is_free & (width > 0)) | np.isin(edges, begins)
    piece_sizes = np.bincount(np.cumsum(is_new_piece), weights=np.where(is_free, width, 0))
    return int(piece_sizes.max(initial=0))
