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
from traceflops.table.grouping import group_sums, groups, in_order, places_in_runs, ranked


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
    start = records.start_ns - alignment.record_offset_ns
    if not comparable:
        start = -records.dur_ns  # so all end at 0
    start = start[matched]
    # Sorted by collective and start, so that the last row of each collective starts last.
    order = np.lexsort((start, matches.collective[matched]))
    row, start = matched[order], start[order]
    collective = matches.collective[row]
    end = start + records.dur_ns[row]
    # collective [0 0 0 1 1]: size [3 2], first [0 3], final [2 4].
    size = np.bincount(collective)
    first = np.cumsum(size) - size
    final = first + size - 1
    last_start = start[final]
    margin = last_start - start[final - 1]
    # A rank that leaves before the last one starts does not wait.
    last_start_of_row = last_start[collective]
    waited = np.where(end >= last_start_of_row, last_start_of_row - start, 0)

    # The exposed part of each wait, and how long each kernel runs while the rank only communicates.
    exposed, held = np.zeros((2, len(row)), dtype=np.int64)
    for place, of_rank in groups(records.place[row]):
        rows = of_rank[in_order(records.start_ns[row[of_rank]])]
        begin, stop = records.start_ns[row[rows]], records.end_ns[row[rows]]
        exposed[rows] = records.alone[place].length_within(begin, begin + waited[rows])
        # Time in which several kernels run counts for the first one: so a kernel counts from the
        # end of all kernels that started before it. [0, 5) [2, 8) [9, 12) count from [0 5 9].
        ended_before = np.maximum.accumulate(np.append(begin[:1], stop[:-1]))
        counts_from = np.clip(ended_before, begin, stop)
        work = records.work[place].length_within(counts_from, stop) if records.work else 0
        held[rows] = stop - counts_from - work
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
    transfer_ns = waits.until_ns - waits.from_ns
    all_to_all = np.flatnonzero(records.kind[first_row] == KINDS.index("all_to_all"))
    expert = []
    for group, own in groups(records.group[first_row[all_to_all]]):
        exchanges = all_to_all[own]
        # Only exchanges of the most ranks count, so that all fit into one table.
        exchanges = exchanges[size[exchanges] == size[exchanges].max()]
        # The records of these exchanges: a row for each and a column per rank.
        rows = waits.row[waits.first[exchanges][:, None] + np.arange(size[exchanges[0]])]
        rows = np.take_along_axis(rows, np.argsort(records.place[rows], axis=1), axis=1)
        dispatch = _dispatches(records.received[rows], records.elements[rows])
        if not len(dispatch):
            continue
        combine = dispatch + 1
        ranks = tuple(records.ranks[place] for place in records.place[rows[0]].tolist())
        # By dispatch and rank: the elements received, and the computing until the combine.
        received = records.received[rows[dispatch]]
        busy_ns = records.busy_ns[rows[combine]] - records.busy_ns[rows[dispatch]]
        elements, compute_ns = received.sum(axis=0), busy_ns.sum(axis=0)
        # All ranks wait for the one that computes or receives most. If all had the mean of a
        # dispatch, its computing would take that mean, and its transfers would shrink in the ratio
        # of the mean number of elements to the largest.
        mean_by_largest = received.mean(axis=1) / np.maximum(received.max(axis=1), 1)
        moving_ns = transfer_ns[exchanges[dispatch]] + transfer_ns[exchanges[combine]]
        expert.append(
            ExpertGroup(
                group=records.groups[group].name,
                ranks=ranks,
                dispatches=len(dispatch),
                elements=tuple(elements.tolist()),
                elements_imbalance=_imbalance(elements),
                most_elements=ranks[int(elements.argmax())],
                compute_ns=tuple(compute_ns.tolist()),
                compute_imbalance=_imbalance(compute_ns),
                most_compute=ranks[int(compute_ns.argmax())],
                lost_ns=int((busy_ns.max(axis=1) - busy_ns.sum(axis=1) // len(ranks)).sum()),
                moving_ns=int((moving_ns * (1 - mean_by_largest)).sum()),
            )
        )
    return sorted(expert, key=lambda group: -(group.elements_imbalance or 0))


def _dispatches(received: IntArray, sent: IntArray) -> IntArray:
    """Return which exchanges are dispatches; elements are by exchange (rows) and rank (columns).

    What ranks receive in a dispatch, they send in the next exchange, the combine. But what they
    receive in a combine may fit the next dispatch, too: in a run of exchanges that fit, dispatches
    and combines alternate. Its 1st, 3rd, ... exchanges are one half, its 2nd, 4th, ... the other.
    The half in which ranks receive more unevenly are dispatches.
    """
    is_known = (received[:-1] >= 0).all(axis=1)
    fits = (is_known & (received[:-1] == sent[1:]).all(axis=1)).astype(np.int64)
    # fits [1 1 1 0 1]: fitting [0 1 2 4], is_second [0 1 0 0], run [1 1 1 3].
    fitting = np.flatnonzero(fits)
    is_second = places_in_runs(fits)[fitting] % 2 == 1  # the 2nd, 4th, ... exchange of its run
    run = np.cumsum(np.diff(fits, prepend=0) != 0)[fitting]
    # By run: how unevenly ranks receive in its 1st, 3rd, ... exchanges, and in its 2nd, 4th, ...
    spread = np.ptp(received[fitting], axis=1)
    runs = int(run.max(initial=0)) + 1
    spread_of_first = group_sums(run[~is_second], spread[~is_second], runs)
    spread_of_second = group_sums(run[is_second], spread[is_second], runs)
    are_second_dispatches = (spread_of_second > spread_of_first)[run]
    return np.asarray(fitting[is_second == are_second_dispatches])


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

    # Only collectives of so many ranks may close a step that each rank takes part in one of them.
    # Ranks 0 to 3 are in collectives of 2, ranks 0 and 1 also in one of 4: those of 2 may, too.
    # `closing` are their records, by end: indices of `waits.row`, as all indices below.
    size = waits.size[waits.collective]
    largest = np.zeros(ranks, dtype=np.int64)
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

    # A cycle lasts from the closing records of the step before to its own: [cycles, ranks].
    pairs = np.flatnonzero((np.diff(steps) == 1) & is_wanted[last[1:]].any(axis=1))
    before, after = last[pairs], last[pairs + 1]
    if not len(pairs):
        before, after = _parts(closing[is_wanted[closing]], place, ranks)
    ended = waits.ended_ns[waits.collective]
    begin, end = ended[before].max(axis=1), ended[after].max(axis=1)

    # The cycle in which each collective ends: the first one that ends at that time or later, if it
    # had begun before. Cycles (10, 20] and (30, 40], ends [15 20 25 45]: following [0 0 1 2],
    # cycle [0 0 -1 -1]. A cycle that never begins is added for ends after the last cycle.
    following = np.searchsorted(end, waits.ended_ns)
    has_begun = waits.ended_ns > np.append(begin, np.iinfo(np.int64).max)[following]
    cycle = np.where(has_begun, following, -1)
    of_row = cycle[waits.collective]
    busy = records.busy_ns[waits.row]
    # The collectives that begin and end cycles, by rank: if they are equal, each is of all ranks.
    edges = waits.collective[np.append(before, after, axis=0)]
    return Cycles(
        steps=tuple(steps[pairs + 1].tolist() or [None] * len(before)),
        length_ns=end - begin,
        exposed_ns=_sums(waits.exposed_ns, of_row, place, before.shape),
        held_ns=_sums(waits.held_ns, of_row, place, before.shape),
        busy_ns=busy[after] - busy[before],
        of_collective=cycle,
        is_joint=bool((np.ptp(edges, axis=1) == 0).all()),
    )


def _parts(rows: IntArray, place: IntArray, ranks: int) -> tuple[IntArray, IntArray]:
    """Return the rows at the begin and at the end of equal parts of a recording: [parts, ranks].

    Each rank's rows are cut into parts with equally many; there is no part if a rank has no row.
    """
    rows_of_rank = [rows[own] for _, own in groups(place[rows])]
    if not rows_of_rank or len(rows_of_rank) < ranks:
        return np.empty((0, ranks), dtype=np.int64), np.empty((0, ranks), dtype=np.int64)
    count = min(map(len, rows_of_rank))
    cuts = np.linspace(0, count - 1, min(count, _PARTS + 1)).astype(np.int64)
    edges = np.stack([own[cuts] for own in rows_of_rank], axis=1)
    return edges[:-1], edges[1:]


def _sums(values: IntArray, cycle: IntArray, place: IntArray, shape: tuple[int, ...]) -> IntArray:
    """Return the sums by cycle (rows) and rank (columns) of `shape`; cycle -1 is left out."""
    key = np.where(cycle >= 0, cycle * shape[1] + place, -1)
    return group_sums(key, values, shape[0] * shape[1]).reshape(shape)
