"""How much of each collective is waiting for the last rank, and how much is transfer.

A rank waits until the last one has started, on aligned clocks; a rank that leaves before that does
not wait. Wait and transfer add up to the duration. Also how unevenly the tokens of mixtures of
experts fall on the ranks of a group.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.ranks.clocks import Alignment, medians
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.matching import Matches
from traceflops.table.columns import BoolArray, IntArray
from traceflops.table.grouping import differ_from_before, group_sums, groups, in_order


class Waits(Struct, frozen=True, dict=True):
    """Waiting by matched record and by collective. Times are in ns, ranks are places.

    `row` are the matched records in the order of their collectives, `wait_ns`, `transfer_ns` and
    `exposed_ns` (waiting while the rank does nothing else) theirs. `held_ns` is how
    long each kernel runs while the rank has no work but communication, of several at a time the
    first. By collective: `last` is the rank that started last, `margin_ns` by how much, `tie`
    whether that is within the error of the clocks; `from_ns` is its start, `ended_ns` the median
    end, `until_ns` the last end, on aligned clocks. `first` and `final` are its first and last
    record by start, as places in `row`.
    """

    row: IntArray
    collective: IntArray
    wait_ns: IntArray
    transfer_ns: IntArray
    exposed_ns: IntArray
    held_ns: IntArray
    first: IntArray
    final: IntArray
    last: IntArray
    margin_ns: IntArray
    tie: BoolArray
    from_ns: IntArray
    ended_ns: IntArray
    until_ns: IntArray

    @property
    def size(self) -> IntArray:
        """Return the number of ranks of each collective."""
        return self.final - self.first + 1

    def largest(self, values: IntArray) -> IntArray:
        """Return the largest value of the records of each collective."""
        rows = values[self.row]
        return np.maximum.reduceat(rows, self.first) if len(self.first) else self.first

    @property
    def caused_ns(self) -> IntArray:
        """Return the waiting of all ranks in each collective: for the last one."""
        return np.add.reduceat(self.wait_ns, self.first) if len(self.first) else self.first

    def within(self, chosen: BoolArray) -> Waits:
        """Return the waits with the times of other collectives set to 0."""
        is_chosen, by_record = chosen[self.collective], ("wait_ns", "transfer_ns", "exposed_ns")
        times = {name: getattr(self, name) * is_chosen for name in by_record}
        return replace(self, **times, margin_ns=self.margin_ns * chosen)


def waits(
    records: CommRecords, matches: Matches, alignment: Alignment, *, comparable: bool = True
) -> Waits:
    """Return the waits of all matched records.

    Where times are not `comparable` between ranks all are taken to end together, so that a rank
    waits for as long as its kernel runs longer than the shortest; then nobody is blamed.
    """
    matched = np.flatnonzero(matches.collective >= 0)
    offset = alignment.record_offset_ns
    start = (records.start_ns - offset if comparable else -records.dur_ns)[matched]
    order = np.lexsort((start, matches.collective[matched]))
    row, start = matched[order], start[order]
    collective = matches.collective[row]
    end = start + records.dur_ns[row]
    first = np.flatnonzero(differ_from_before(collective))
    final = np.append(first[1:], len(row))[: len(first)] - 1
    latest, margin = start[final], start[final] - start[final - 1]
    waited = np.where(end >= latest[collective], latest[collective] - start, 0)
    exposed, held = np.zeros((2, len(row)), dtype=np.int64)
    for place, of_rank in groups(records.place[row]):
        rows = of_rank[in_order(records.start_ns[row[of_rank]])]
        begun, ended = records.start_ns[row[rows]], records.end_ns[row[rows]]
        exposed[rows] = records.alone[place].length_within(begun, begun + waited[rows])
        before = np.maximum.accumulate(np.append(begun[:1], ended))[:-1]
        free = np.clip(before, begun, ended)
        work = records.work[place].length_within(free, ended) if records.work else 0
        held[rows] = ended - free - work
    return Waits(
        row=row,
        collective=collective,
        wait_ns=waited,
        transfer_ns=records.dur_ns[row] - waited,
        exposed_ns=exposed,
        held_ns=held if records.work else exposed,
        first=first,
        final=final,
        last=records.place[row[final]],
        margin_ns=margin,
        tie=(margin <= 2 * (alignment.residual_p95_ns or 0)) | (not comparable),
        from_ns=latest,
        ended_ns=medians(collective, end),
        until_ns=np.maximum.reduceat(end, first) if len(row) else end,
    )


_ALL_TO_ALL: Final = KINDS.index("all_to_all")


class ExpertGroup(Struct, frozen=True):
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
    """Return the groups that exchange tokens, the most uneven first.

    An all-to-all that brings each rank as many elements as it puts into the next one of its group
    is a dispatch, the next one the combine, and what the rank computes between them is the work of
    its experts.
    """
    if not len(waits.first):
        return []
    first, size = waits.row[waits.first], waits.size
    spent = waits.until_ns - waits.from_ns
    exchanges = np.flatnonzero(records.kind[first] == _ALL_TO_ALL)
    expert = []
    for group, exchange in groups(records.group[first[exchanges]]):
        turns = exchanges[exchange]
        turns = turns[size[turns] == size[turns].max()]
        # The records of these collectives: a row for each and a column per rank.
        rows = waits.row[waits.first[turns][:, None] + np.arange(size[turns[0]])]
        rows = np.take_along_axis(rows, np.argsort(records.place[rows], axis=1), axis=1)
        got, put = records.received[rows], records.elements[rows]
        fits = (got[:-1] >= 0).all(axis=1) & (got[:-1] == put[1:]).all(axis=1)
        # Dispatch and combine take turns, and a combine fits the dispatch after it, too. In each
        # run of exchanges that fit, either the even or the odd ones are dispatches: those that are
        # more uneven between ranks.
        turn = np.arange(len(fits))
        before = np.maximum.accumulate(np.where(fits, -1, turn)) + 1
        half = 2 * before + (turn - before) % 2
        sums = group_sums(np.where(fits, half, -1), np.ptp(got[:-1], axis=1), 2 * len(fits) + 2)
        is_more = (sums[half] > sums[half ^ 1]) | ((sums[half] == sums[half ^ 1]) & (half % 2 == 0))
        dispatch = np.flatnonzero(fits & is_more)
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
    return sorted(expert, key=lambda group: -(group.elements_imbalance or 0))


def _imbalance(values: IntArray) -> float | None:
    """Return the largest value divided by the mean, None where the mean is 0."""
    mean = float(values.mean())
    return float(values.max()) / mean if mean > 0 else None
