"""How unevenly the tokens of mixtures of experts fall on the ranks of a group.

An all-to-all that brings each rank as many elements as it puts into the next one of its group is a
dispatch, the next one the combine, and what the rank computes between them is its experts' work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.waits import Waits
from traceflops.table import BoolArray, IntArray, group_sums, groups

_ALL_TO_ALL: Final = KINDS.index("all_to_all")


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """Ranks that share experts, over `dispatches`: what each received and computed, in all.

    Imbalances are the largest by the mean of the ranks; None where the mean is 0. `most_elements`
    and `most_compute` are the ranks with most. `lost_ns` is by how much the longest compute of each
    dispatch exceeds the mean, `moving_ns` by how much dispatch and combine take longer than if all
    ranks got as much as the mean.
    """

    group: str
    ranks: tuple[int, ...]
    dispatches: int
    elements: tuple[int, ...]
    elements_imbalance: float | None
    most_elements: int
    compute_ns: tuple[int, ...]
    compute_imbalance: float | None
    most_compute: int
    lost_ns: int
    moving_ns: int


def expert_groups(records: CommRecords, waits: Waits) -> list[ExpertGroup]:
    """Return the groups that exchange tokens, the most uneven first."""
    return sorted(_found(records, waits), key=lambda one: -(one.elements_imbalance or 0))


def _found(records: CommRecords, waits: Waits) -> Iterator[ExpertGroup]:
    if not len(waits.first):
        return
    first = waits.row[waits.first]
    size = waits.size
    asked = np.flatnonzero(records.kind[first] == _ALL_TO_ALL)
    for group, at in groups(records.group[first[asked]]):
        turns = asked[at]
        turns = turns[size[turns] == size[turns].max()]
        table = _by_rank(records, waits, turns)
        got, put = records.received[table], records.elements[table]
        fits = (got[:-1] >= 0).all(axis=1) & (got[:-1] == put[1:]).all(axis=1)
        dispatch = _alternate(fits, np.ptp(got[:-1], axis=1))
        if len(dispatch):
            busy = records.busy_ns[table[dispatch + 1]] - records.busy_ns[table[dispatch]]
            ranks = tuple(records.ranks[place] for place in records.place[table[0]].tolist())
            name = records.groups[group].name
            spent = (waits.until_ns - waits.from_ns)[turns]
            yield _group(name, ranks, got[dispatch], busy, spent[dispatch] + spent[dispatch + 1])


def _by_rank(records: CommRecords, waits: Waits, turns: IntArray) -> IntArray:
    """Return the records of some collectives, a row for each and a column per rank."""
    size = int((waits.collective == turns[0]).sum())
    rows = waits.row[waits.first[turns][:, None] + np.arange(size)]
    return np.take_along_axis(rows, np.argsort(records.place[rows], axis=1), axis=1)


def _alternate(fits: BoolArray, spread: IntArray) -> IntArray:
    """Return the places that fit, of each run of them every second: those with more spread.

    A dispatch spreads tokens, its combine brings them back.
    """
    place = np.arange(len(fits))
    before = np.maximum.accumulate(np.where(fits, -1, place)) + 1
    half = 2 * before + (place - before) % 2
    sums = group_sums(np.where(fits, half, -1), spread, 2 * len(fits) + 2)
    is_more = (sums[half] > sums[half ^ 1]) | ((sums[half] == sums[half ^ 1]) & (half % 2 == 0))
    return np.flatnonzero(fits & is_more)


def _group(
    name: str, ranks: tuple[int, ...], got: IntArray, busy: IntArray, moved_ns: IntArray
) -> ExpertGroup:
    """Return a group by what ranks get and work, by dispatch and rank, and the time of moving."""
    elements, compute_ns = got.sum(axis=0), busy.sum(axis=0)
    even = got.mean(axis=1) / np.maximum(got.max(axis=1), 1)
    return ExpertGroup(
        group=name,
        ranks=ranks,
        dispatches=len(busy),
        elements=tuple(elements.tolist()),
        elements_imbalance=_imbalance(elements),
        most_elements=ranks[int(elements.argmax())],
        compute_ns=tuple(compute_ns.tolist()),
        compute_imbalance=_imbalance(compute_ns),
        most_compute=ranks[int(compute_ns.argmax())],
        lost_ns=int((busy.max(axis=1) - busy.sum(axis=1) // len(ranks)).sum()),
        moving_ns=int((moved_ns * (1 - even)).sum()),
    )


def _imbalance(values: IntArray) -> float | None:
    """Return the largest by the mean."""
    mean = float(values.mean())
    return float(values.max()) / mean if mean > 0 else None
