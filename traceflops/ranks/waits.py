"""How much of each collective is waiting for the last rank, and how much is transfer.

A rank waits until the last one has started, on aligned clocks; a rank that leaves before that does
not wait. Wait and transfer add up to the duration. Also how unevenly the tokens of mixtures of
experts fall on the ranks of a group, and the cycles of steps.

The cycle of a step begins at the end of the last matched collective of the step before, and ends at
the end of the last matched collective of the step. A rank's own time is the cycle less its exposed
waiting. If no collective is of all ranks, each rank has its own last collective, of the largest
groups such that every rank is in one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.ranks.clocks import Alignment, medians
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.matching import Matches
from traceflops.table.columns import ABSENT, BoolArray, FloatArray, IntArray
from traceflops.table.grouping import differ_from_before, group_sums, groups, in_order, ranked


class Waits(Struct, frozen=True, dict=True):
    """Waiting by matched record and by collective. Times are in ns, ranks are places.

    By record: `row` is the matched record, in the order of collectives and then of starts;
    `collective` its collective. `exposed_ns` is waiting while the rank does nothing else. `held_ns`
    is how long a kernel runs while the rank only communicates; shared time counts for the first.

    By collective: `first` and `final` are its first and last record, as places in `row`. `last` is
    the rank that started last, `margin_ns` after the one before it; `tie`: within clock error. On
    aligned clocks `from_ns` is the last start, `ended_ns` the median, `until_ns` the last end.
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


def waits(
    records: CommRecords, matches: Matches, alignment: Alignment, *, comparable: bool = True
) -> Waits:
    """Return the waits of all matched records.

    If times are not `comparable` between ranks, all are taken to end together: a rank waits for as
    long as its kernel runs longer than the shortest one. Then all are ties: nobody is blamed.
    """
    matched = np.flatnonzero(matches.collective >= 0)
    offset = alignment.record_offset_ns
    # Sorted by collective and start, so that the last row of each collective starts last.
    start = (records.start_ns - offset if comparable else -records.dur_ns)[matched]
    order = np.lexsort((start, matches.collective[matched]))
    row, start = matched[order], start[order]
    collective = matches.collective[row]
    end = start + records.dur_ns[row]
    first = np.flatnonzero(differ_from_before(collective))
    final = np.append(first[1:], len(row))[: len(first)] - 1
    last_start, margin = start[final], start[final] - start[final - 1]
    # A rank that leaves before the last one starts does not wait.
    last_start_of_row = last_start[collective]
    waited = np.where(end >= last_start_of_row, last_start_of_row - start, 0)

    # The exposed part of each wait, and how long each kernel runs while the rank only communicates.
    # Time in which several of these kernels run counts for the one that started first.
    exposed, held = np.zeros((2, len(row)), dtype=np.int64)
    for place, of_rank in groups(records.place[row]):
        rows = of_rank[in_order(records.start_ns[row[of_rank]])]
        begin, stop = records.start_ns[row[rows]], records.end_ns[row[rows]]
        exposed[rows] = records.alone[place].length_within(begin, begin + waited[rows])
        last_end_before = np.maximum.accumulate(np.append(begin[:1], stop))[:-1]
        begin_alone = np.clip(last_end_before, begin, stop)
        work = records.work[place].length_within(begin_alone, stop) if records.work else 0
        held[rows] = stop - begin_alone - work
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
        from_ns=last_start,
        ended_ns=medians(collective, end),
        until_ns=np.maximum.reduceat(end, first) if len(row) else end,
    )


class ExpertGroup(Struct, frozen=True):
    """Ranks that share experts, over all `dispatches`: what each received and computed in total.

    An imbalance is the largest value divided by the mean of the ranks, None if the mean is 0.
    `most_elements` and `most_compute` are the ranks with most. `lost_ns` is by how much the longest
    compute of each dispatch exceeds the mean; `moving_ns` by how much dispatch and combine take
    longer than if all ranks got as much as the mean.
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
    """Return the groups of ranks that exchange tokens of experts, the most uneven first.

    In a dispatch, each rank receives as many elements as it sends in the next all-to-all of its
    group, the combine. The work of its device between the two is its experts.
    """
    if not len(waits.first):
        return []
    first_row, size = waits.row[waits.first], waits.size
    spent_ns = waits.until_ns - waits.from_ns
    all_to_all = np.flatnonzero(records.kind[first_row] == KINDS.index("all_to_all"))
    expert = []
    for group, own in groups(records.group[first_row[all_to_all]]):
        exchanges = all_to_all[own]
        # Only exchanges of the most ranks, so that all fit into one table.
        exchanges = exchanges[size[exchanges] == size[exchanges].max()]
        # The records of these exchanges: a row for each and a column per rank.
        rows = waits.row[waits.first[exchanges][:, None] + np.arange(size[exchanges[0]])]
        rows = np.take_along_axis(rows, np.argsort(records.place[rows], axis=1), axis=1)
        dispatch = _dispatches(records.received[rows], records.elements[rows])
        if not len(dispatch):
            continue
        moving_ns = spent_ns[exchanges][dispatch] + spent_ns[exchanges][dispatch + 1]
        received = records.received[rows[dispatch]]
        busy = records.busy_ns[rows[dispatch + 1]] - records.busy_ns[rows[dispatch]]
        ranks = tuple(records.ranks[place] for place in records.place[rows[0]].tolist())
        elements, compute_ns = received.sum(axis=0), busy.sum(axis=0)
        # All wait for the rank that works or receives most: lost is what even shares would save, of
        # work its largest less its mean, of the transfer the same part as of the elements.
        mean_by_largest = received.mean(axis=1) / np.maximum(received.max(axis=1), 1)
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
                moving_ns=int((moving_ns * (1 - mean_by_largest)).sum()),
            )
        )
    return sorted(expert, key=lambda group: -(group.elements_imbalance or 0))


def _dispatches(received: IntArray, sent: IntArray) -> IntArray:
    """Return which exchanges are dispatches; elements are by exchange (rows) and rank (columns).

    What ranks receive in a dispatch, they send in the next exchange, the combine. But what they
    receive in a combine may fit the next dispatch, too: in a run of exchanges that fit, dispatches
    and combines alternate. Dispatches are either its 1st, 3rd, ... exchanges or its 2nd, 4th, ...:
    those of which ranks receive more unevenly.
    """
    is_known = (received[:-1] >= 0).all(axis=1)
    fits = is_known & (received[:-1] == sent[1:]).all(axis=1)
    index = np.arange(len(fits))
    run_start = np.maximum.accumulate(np.where(fits, -1, index)) + 1
    # A number for each half of each run, odd or even exchanges; `^ 1` is the other half.
    half = 2 * run_start + (index - run_start) % 2
    spread = group_sums(np.where(fits, half, -1), np.ptp(received[:-1], axis=1), 2 * len(fits) + 2)
    own_spread, other_spread = spread[half], spread[half ^ 1]
    is_first_half = half % 2 == 0
    is_dispatch = (own_spread > other_spread) | ((own_spread == other_spread) & is_first_half)
    return np.flatnonzero(fits & is_dispatch)


def _imbalance(values: IntArray) -> float | None:
    """Return the largest value divided by the mean, None where the mean is 0."""
    mean = float(values.mean())
    return float(values.max()) / mean if mean > 0 else None


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
