"""What each rank does between the collectives that end the steps, and how much waiting costs.

A cycle of a step is from the end of the last matched collective of the step before to that of the
step, the same for all ranks. A rank's own time is the cycle less its exposed waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.waits import Waits
from traceflops.table import ABSENT, IntArray, group_sums

Ratios = npt.NDArray[np.float64]
_Cycle = tuple[int | None, int, int]
"""A step, and the collectives that its cycle is between."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """Times in ns by step (rows) and rank (columns); `length_ns` by step.

    A recording without steps is one cycle, whose step is None.
    `busy_ns` is work of the device other than communication, `exposed_ns` exposed waiting.
    `lost_ns` is by how much the step would be shorter, at most, if this rank had come to every
    collective as early as the second latest; nothing for ties. `of_collective` is the cycle in
    which each collective ends, -1 for none.
    """

    steps: tuple[int | None, ...]
    length_ns: IntArray
    exposed_ns: IntArray
    busy_ns: IntArray
    lost_ns: IntArray
    of_collective: IntArray

    @property
    def own_ns(self) -> IntArray:
        """Return the time of each cycle that is not exposed waiting."""
        return np.asarray(self.length_ns[:, None] - self.exposed_ns)

    @property
    def slowdown(self) -> Ratios:
        """Return S of each step: its length by the mean of the ranks' own times."""
        return np.asarray(self.length_ns / self.own_ns.mean(axis=1))

    @property
    def overall(self) -> float | None:
        """Return S of all steps together, None without any."""
        own = float(self.own_ns.mean(axis=1).sum()) if len(self.steps) else 0.0
        return float(self.length_ns.sum()) / own if own > 0 else None


def cycles(records: CommRecords, waits: Waits, *, comparable: bool = True) -> Cycles:
    """Return the cycles of all steps that follow another one with a collective of all ranks.

    There are none where times are not `comparable` between ranks.
    """
    ranks, row = len(records.ranks), waits.row
    size = np.bincount(waits.collective, minlength=len(waits.first))
    step = records.step[row[waits.first + size - 1]]
    whole = (size == ranks) & comparable
    closing = _closing(np.where(whole, step, ABSENT), waits.ended_ns)
    pairs: list[_Cycle] = [
        (number, closing[number - 1], after)
        for number, after in closing.items()
        if number - 1 in closing
    ] or _whole_recording(np.flatnonzero(whole))
    before, after = (np.array([pair[at] for pair in pairs], dtype=np.int64) for at in (1, 2))
    place = records.place[row]
    busy = _at(waits, before, after, place, records.busy_ns[row], ranks)
    cycle = _cycle_of(waits.ended_ns, before, after)
    lost = np.zeros(len(row), dtype=np.int64)
    lost[waits.first + size - 1] = waits.lost_ns
    return Cycles(
        tuple(number for number, *_ in pairs),
        waits.ended_ns[after] - waits.ended_ns[before],
        _sums(waits.exposed_ns, cycle[waits.collective], place, (len(pairs), ranks)),
        busy,
        _sums(lost, cycle[waits.collective], place, (len(pairs), ranks)),
        cycle,
    )


def _whole_recording(whole: IntArray) -> list[_Cycle]:
    """Return one cycle from the first to the last collective of all ranks, if there are two."""
    return [(None, int(whole[0]), int(whole[-1]))] if len(whole) > 1 else []


def _closing(step: IntArray, ended_ns: IntArray) -> dict[int, int]:
    """Return the collective of each step that ends last."""
    order = np.lexsort((ended_ns, step))
    return {int(step[at]): at for at in order.tolist() if step[at] != ABSENT}


def _at(
    waits: Waits,
    before: IntArray,
    after: IntArray,
    place: IntArray,
    values: IntArray,
    ranks: int,
) -> IntArray:
    """Return by how much a value of each rank grows between two collectives of all ranks."""

    def of(collectives: IntArray) -> IntArray:
        rows = waits.first[collectives][:, None] + np.arange(ranks)
        found = np.empty((len(collectives), ranks), dtype=np.int64)
        np.put_along_axis(found, place[rows], values[rows], axis=1)
        return found

    return of(after) - of(before)


def _cycle_of(ended_ns: IntArray, before: IntArray, after: IntArray) -> IntArray:
    """Return the cycle in which each collective ends, -1 for none."""
    if not len(after):
        return np.full(len(ended_ns), -1, dtype=np.int64)
    at = np.searchsorted(ended_ns[after], ended_ns)
    inside = np.minimum(at, len(after) - 1)
    is_in = (at < len(after)) & (ended_ns > ended_ns[before[inside]])
    return np.where(is_in, inside, -1)


def _sums(values: IntArray, cycle: IntArray, place: IntArray, shape: tuple[int, int]) -> IntArray:
    known = cycle >= 0
    key = cycle[known] * shape[1] + place[known]
    return group_sums(key, values[known], shape[0] * shape[1]).reshape(shape)
