"""What each rank does between the collectives that end the steps.

The cycle of a step begins at the end of the last matched collective of the step before, and ends at
the end of the last matched collective of the step. A rank's own time is the cycle less its exposed
waiting. If no collective is of all ranks, each rank has its own last collective, of the largest
groups such that every rank is in one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.waits import Waits
from traceflops.table.columns import ABSENT, BoolArray, FloatArray, IntArray
from traceflops.table.grouping import group_sums, groups, ranked

_PARTS: Final = 5  # the most cycles into which a recording without steps is cut


class Cycles(Struct, frozen=True):
    """Times in ns by cycle (rows) and rank (columns); `length_ns` is by cycle.

    A cycle is a step. A recording without steps is cut into parts between collectives: then `steps`
    are None. `busy_ns` is work of the device other than communication, `exposed_ns` exposed
    waiting. `held_ns` is communication without other work (see Waits): waiting and transfer.
    `of_collective` is the cycle in which each collective ends, -1 for none. `is_joint` says that
    each cycle begins and ends with a collective of all ranks.
    """

    steps: tuple[int | None, ...]
    length_ns: IntArray
    exposed_ns: IntArray
    held_ns: IntArray
    busy_ns: IntArray
    of_collective: IntArray
    is_joint: bool

    @property
    def own_ns(self) -> IntArray:
        """Return the time of each cycle that is not exposed waiting."""
        return np.asarray(self.length_ns[:, None] - self.exposed_ns)

    @property
    def slowdown(self) -> FloatArray:
        """Return the slowdown of each step: its length by the ranks' mean own time."""
        return np.asarray(self.length_ns / self.own_ns.mean(axis=1))

    @property
    def overall(self) -> float | None:
        """Return the slowdown of all steps together, None without steps."""
        own = float(self.own_ns.mean(axis=1).sum()) if len(self.steps) else 0.0
        return float(self.length_ns.sum()) / own if own > 0 else None

    @property
    def has_steps(self) -> bool:
        """Return whether the cycles are steps, not parts of a recording."""
        return bool(self.steps) and self.steps[0] is not None

    @property
    def count(self) -> int:
        """Return the number of steps, 1 for a recording without."""
        return sum(step is not None for step in self.steps) or 1


def cycles(records: CommRecords, waits: Waits, chosen: BoolArray | None = None) -> Cycles:
    """Return the cycles of all steps that follow another one.

    Only cycles that end with a chosen record on any rank count; `chosen` is per record, None means
    all. Without such steps, the recording is cut into equal parts.
    """
    ranks, place = len(records.ranks), records.place[waits.row]
    is_wanted = np.ones(len(waits.row), dtype=np.bool_) if chosen is None else chosen[waits.row]

    # Steps may close with the largest collectives: as large as the smallest, over all ranks, of the
    # largest collective of a rank. `closing` are their records (places in `waits.row`) by end.
    size, largest = waits.size[waits.collective], np.zeros(ranks, dtype=np.int64)
    np.maximum.at(largest, place, size)
    closing = np.flatnonzero(size >= largest.min())
    closing = closing[np.argsort(waits.ended_ns[waits.collective[closing]], kind="stable")]
    # A collective is in the step of the rank that started last: others may have come early.
    step = records.step[waits.row[waits.final]][waits.collective]
    in_step = closing[step[closing] != ABSENT]
    steps, step_index = ranked(step[in_step])
    # The last closing record by step and rank, of steps that all ranks close.
    last = np.full((len(steps), ranks), -1, dtype=np.int64)
    last[step_index, place[in_step]] = in_step  # the last one written stays
    is_complete = (last >= 0).all(axis=1)
    steps, last = steps[is_complete], last[is_complete]

    # A cycle begins and ends with closing records: those of the step just before, and its own.
    pairs = np.flatnonzero((np.diff(steps) == 1) & is_wanted[last[1:]].any(axis=1))
    before, after = last[pairs], last[pairs + 1]
    if not len(pairs):
        before, after = _parts(closing[is_wanted[closing]], place, ranks)
    ended = waits.ended_ns[waits.collective]
    begin, end = ended[before].max(axis=1), ended[after].max(axis=1)

    # The cycle in which each collective ends: the first one that ends at that time or later.
    # Between cycles that are no neighbours, a collective is in none.
    cycle = np.full(len(waits.ended_ns), -1, dtype=np.int64)
    if len(end):
        following = np.searchsorted(end, waits.ended_ns)
        candidate = np.minimum(following, len(end) - 1)
        is_inside = (following < len(end)) & (waits.ended_ns > begin[candidate])
        cycle = np.where(is_inside, candidate, -1)
    of_row = cycle[waits.collective]
    busy = records.busy_ns[waits.row]
    # The collectives that begin and end cycles, by rank: if all are alike, each is of all ranks.
    edges = waits.collective[np.append(before, after, axis=0)]
    return Cycles(
        tuple(steps[pairs + 1].tolist() or [None] * len(before)),
        end - begin,
        _sums(waits.exposed_ns, of_row, place, before.shape),
        _sums(waits.held_ns, of_row, place, before.shape),
        busy[after] - busy[before],
        cycle,
        is_joint=bool((np.ptp(edges, axis=1) == 0).all()),
    )


def _parts(rows: IntArray, place: IntArray, ranks: int) -> tuple[IntArray, IntArray]:
    """Return the rows at the begin and at the end of equal parts of a recording, per part and rank.

    Each rank's rows are cut into parts with equally many; there is no part if a rank has no row.
    """
    rows_of_rank = [rows[own] for _, own in groups(place[rows])]
    count = min(map(len, rows_of_rank), default=0) if len(rows_of_rank) == ranks else 0
    cuts = np.linspace(0, count - 1, min(count, _PARTS + 1)).astype(np.int64)
    edges = np.array([own[cuts] for own in rows_of_rank] if count else [], dtype=np.int64)
    # Without parts the table is empty, but still has a column per rank.
    edges = edges.reshape(-1 if count else ranks, len(cuts)).T
    return edges[:-1], edges[1:]


def _sums(values: IntArray, cycle: IntArray, place: IntArray, shape: tuple[int, ...]) -> IntArray:
    """Return the sums by cycle (rows) and rank (columns) of `shape`; cycle -1 is left out."""
    key = np.where(cycle >= 0, cycle * shape[1] + place, -1)
    return group_sums(key, values, shape[0] * shape[1]).reshape(shape)
