"""How unevenly the tokens of mixtures of experts fall on the ranks of a group.

An all-to-all that brings each rank as many elements as it puts into the next one of its group is a
dispatch, the next one the combine, and what the rank computes between them is its experts' work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.waits import Waits
from traceflops.table.columns import BoolArray, IntArray
from traceflops.table.grouping import group_sums, groups

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
    if not len(waits.first):
        return []
    first, size = waits.row[waits.first], waits.size
    spent = waits.until_ns - waits.from_ns
    exchanges = np.flatnonzero(records.kind[first] == _ALL_TO_ALL)
    expert = []
    for group, at in groups(records.group[first[exchanges]]):
        turns = exchanges[at]
        turns = turns[size[turns] == size[turns].max()]
        # The records of these collectives: a row for each and a column per rank.
        rows = waits.row[waits.first[turns][:, None] + np.arange(size[turns[0]])]
        rows = np.take_along_axis(rows, np.argsort(records.place[rows], axis=1), axis=1)
        got, put = records.received[rows], records.elements[rows]
        fits = (got[:-1] >= 0).all(axis=1) & (got[:-1] == put[1:]).all(axis=1)
        dispatch = _alternate(fits, np.ptp(got[:-1], axis=1))
        if not len(dispatch):
            continue
        # Per dispatch and rank: what each receives and works; and how long moving takes.
        got, moved_ns = got[dispatch], spent[turns][dispatch] + spent[turns][dispatch + 1]
        busy = records.busy_ns[rows[dispatch + 1]] - records.busy_ns[rows[dispatch]]
        ranks = tuple(records.ranks[place] for place in records.place[rows[0]].tolist())
        elements, compute_ns = got.sum(axis=0), busy.sum(axis=0)
        even = got.mean(axis=1) / np.maximum(got.max(axis=1), 1)
        expert.append(
            ExpertGroup(
                group=records.groups[group].name,
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
        )
    return sorted(expert, key=lambda one: -(one.elements_imbalance or 0))


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


def _imbalance(values: IntArray) -> float | None:
    """Return the largest by the mean."""
    mean = float(values.mean())
    return float(values.max()) / mean if mean > 0 else None
