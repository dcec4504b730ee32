"""Who waits for whom in a job of several ranks: what a report shows of its collectives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution import RankTimes
from traceflops.ranks.clocks import Alignment, aligned
from traceflops.ranks.comm_records import CommRecords, comm_records
from traceflops.ranks.cycles import Cycles, cycles
from traceflops.ranks.experts import ExpertGroup, expert_groups
from traceflops.ranks.link_rates import LinkRate, Links, kind_name, link_rates
from traceflops.ranks.matching import Matches
from traceflops.ranks.partners import with_partners
from traceflops.ranks.pipelines import Pipelines, pipelines
from traceflops.ranks.projected_records import projected_records
from traceflops.ranks.slow_rank import PreparedWork, RankWork, SlowRank, slow_rank
from traceflops.ranks.waits import Waits, waits
from traceflops.table import ABSENT, BoolArray, IntArray, exact_sums, group_sums, groups, numbers
from traceflops.windows import LAST_STEP, Prepared, chosen_time, origins

_NO_LINKS: Final = Links()
_MIXED: Final = "repeated-launches"
"""The code of the note that devices of one process may be those of several ranks."""


@dataclass(frozen=True, slots=True)
class MatchedCollective:
    """One collective of all recorded ranks of its group; times are sums over these.

    `role` is what the group is for: dp, tp, pp, ep or cp, None where that is not known.
    `last_rank` started last; `tie` says that this is within twice the error of the clocks.
    """

    kind: str
    group: str
    role: str | None
    index: int
    step: int | None
    last_rank: int
    tie: bool
    margin_ns: int
    wait_ns: int
    transfer_ns: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class RankWaits:
    """What one rank waited in matched collectives, exposed where it did nothing else meanwhile.

    `caused_wait_ns` is the waiting of others in collectives to which it came last,
    `marginal_ns` what of it would go if it had come as early as the second latest.
    """

    rank: int
    wait_ns: int
    exposed_wait_ns: int
    transfer_ns: int
    caused_wait_ns: int
    marginal_ns: int


@dataclass(frozen=True, slots=True)
class Turn:
    """How one rank takes part in a collective: it starts, waits for the last, and transfers.

    `from_ns` counts from the first start of all, on aligned clocks.
    """

    rank: int
    from_ns: int
    wait_ns: int
    transfer_ns: int


@dataclass(frozen=True)
class RankReport:
    """The collectives of several ranks over everything recorded, and what waiting in them costs.

    `partial` says that ranks of the job are not here: then waits are at least, and transfers at
    most, what is said. Where clocks are not `comparable`, only durations are compared.
    `recorded_ns` is the mean of the chosen time of the ranks. `by_ends` says that some groups or
    peers are those of kernels that end together, as nothing names them.
    """

    records: CommRecords
    matches: Matches
    alignment: Alignment
    waits: Waits
    cycles: Cycles
    slow: SlowRank | None
    partial: bool
    comparable: bool
    recorded_ns: int
    links: Links = _NO_LINKS
    pipeline: Pipelines | None = None
    by_ends: bool = False

    @property
    def unmatched(self) -> int:
        """Return how many kernels of communication have no match on the other ranks."""
        return int((self.matches.collective < 0).sum())

    @property
    def span_ns(self) -> int:
        """Return the time from the first to the last matched collective."""
        found = self.waits
        return int(found.until_ns.max()) - int(found.from_ns.min()) if len(found.first) else 0

    def collectives(self) -> Iterator[MatchedCollective]:
        """Yield the matched collectives in the order of time."""
        records, found = self.records, self.waits
        sums = [
            exact_sums(found.collective, values, self.matches.count)
            for values in (found.wait_ns, found.transfer_ns)
        ]
        size = found.largest(records.bytes)
        first = found.row[found.first]
        for index, row in enumerate(first.tolist()):
            yield MatchedCollective(
                kind=kind_name(records, row),
                group=records.groups[int(records.group[row])].name,
                role=records.groups[int(records.group[row])].role,
                index=index,
                step=_known(int(records.step[row])),
                last_rank=records.ranks[int(found.last[index])],
                tie=bool(found.tie[index]),
                margin_ns=int(found.margin_ns[index]),
                wait_ns=sums[0][index],
                transfer_ns=sums[1][index],
                bytes=_known(int(size[index])),
            )

    def by_rank(self) -> list[RankWaits]:
        """Return what each rank waited, in the order of the ranks."""
        found, count = self.waits, len(self.records.ranks)
        place = self.records.place[found.row]
        caused = np.add.reduceat(found.wait_ns, found.first) if len(found.first) else found.first
        marginal = np.where(found.tie, 0, found.margin_ns * (found.size - 1))
        columns = [
            *(exact_sums(place, values, count) for values in (found.wait_ns, found.exposed_ns)),
            exact_sums(place, found.transfer_ns, count),
            *(exact_sums(found.last, values, count) for values in (caused, marginal)),
        ]
        return [
            RankWaits(rank, *values)
            for rank, *values in zip(self.records.ranks, *columns, strict=True)
        ]

    def in_cycles(self) -> RankReport:
        """Return the same with the waits in its cycles only, with all where it has none."""
        inside = self.cycles.of_collective >= 0
        return replace(self, waits=self.waits.within(inside)) if inside.any() else self

    def farthest(self) -> list[int]:
        """Return the places of the ranks, those farthest from the median own time first.

        Of equally far ones that is first which is slower, or for which the others wait longer.
        """
        own = self.cycles.own_ns.sum(axis=0)
        awaited = np.array([one.marginal_ns for one in self.by_rank()], dtype=np.int64)
        order: list[int] = np.lexsort((-awaited, -own, -np.abs(own - np.median(own)))).tolist()
        return order

    def waited_for(self, rows: IntArray, columns: IntArray) -> IntArray:
        """Return how long ranks (rows) waited for the last one (columns), both by place.

        The last row and the last column are of all other ranks together.
        """
        count, width = len(self.records.ranks), len(columns) + 1
        row, column = (_turn_of(places, count) for places in (rows, columns))
        found = self.waits
        key = row[self.records.place[found.row]] * width + column[found.last[found.collective]]
        sums = group_sums(key, found.wait_ns, (len(rows) + 1) * width)
        return sums.reshape(len(rows) + 1, width)

    def most_awaited(self) -> IntArray:
        """Return by cycle and rank the collective with most waiting that the rank is in, else -1.

        Where collectives are in no cycle, there is one row for all of them.
        """
        found, cycle = self.waits, self.cycles.of_collective
        cycle = cycle if (cycle >= 0).any() else np.zeros_like(cycle)
        total = np.add.reduceat(found.wait_ns, found.first) if len(found.first) else found.first
        rows = np.flatnonzero((total > 0)[found.collective] & (cycle >= 0)[found.collective])
        rows = rows[np.lexsort((-found.collective[rows], total[found.collective[rows]]))]
        worst = np.full((max(len(self.cycles.steps), 1), len(self.records.ranks)), -1)
        of = found.collective[rows]
        worst[cycle[of], self.records.place[found.row[rows]]] = of  # what is written last stays
        return worst

    def turns(self, collective: int) -> list[Turn]:
        """Return what each rank did in one collective, in the order of their starts."""
        found, records = self.waits, self.records
        mine = np.flatnonzero(found.collective == collective)
        place = records.place[found.row[mine]]
        start = (records.start_ns - self.alignment.record_offset_ns)[found.row[mine]]
        columns = (start - start.min(), found.wait_ns[mine], found.transfer_ns[mine])
        times = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Turn(records.ranks[at], *each) for at, each in zip(place.tolist(), times, strict=True)
        ]

    def by_activity(self, count: int) -> RankTimes | None:
        """Return waits and groups by row of so many activities.

        None of summaries, and where collectives are ranges projected onto the GPU.
        """
        records, found = self.records, self.waits
        if not records.devices or (records.row == ABSENT).any():
            return None
        wait_ns, group = np.full((2, count), -1, dtype=np.int64)
        wait_ns[records.row[found.row]] = found.wait_ns
        group[records.row] = records.group
        return RankTimes(wait_ns, group, [one.role or one.name for one in records.groups])

    def rates(self) -> list[LinkRate]:
        """Return the bandwidths by kind, group and size; none where ranks are missing."""
        if self.partial:
            return []
        error = 2 * (self.alignment.residual_p95_ns or 0)
        return link_rates(self.records, self.waits, self.links, error)

    def experts(self) -> list[ExpertGroup]:
        """Return the groups that exchange tokens of experts, the most uneven first."""
        return expert_groups(self.records, self.waits)


def rank_report(prepared: Prepared, links: Links = _NO_LINKS) -> RankReport | None:
    """Return who waits for whom, None where there is one rank only or nothing tells them apart."""
    is_aligned = bool(prepared.accounts) and origins(prepared).aligned
    work = PreparedWork(prepared)
    return report_of(records_of(prepared), work, is_aligned=is_aligned, links=links)


def report_of(
    records: CommRecords, work: RankWork, *, is_aligned: bool, links: Links = _NO_LINKS
) -> RankReport | None:
    """Return what records of ranks say, None of one rank and where nothing tells them apart.

    `is_aligned` says that their clocks are one also without collectives that align them.
    """
    if len(records.ranks) < 2 or any(note.code == _MIXED for note in work.trace.notes):
        return None
    recorded = records
    records, matches, alignment = with_partners(recorded)
    if not (alignment.basis or is_aligned):
        alignment = aligned(records, matches, is_common=False)
    comparable = bool(alignment.basis) or (is_aligned and alignment.is_possible)
    found = waits(records, matches, alignment, comparable=comparable)
    chosen = _chosen(work, records) if records.devices else None
    steps = cycles(records, found, chosen if comparable else np.zeros(len(records), dtype=np.bool_))
    return RankReport(
        records,
        matches,
        alignment,
        found,
        steps,
        slow_rank(work, steps, records) if comparable else None,
        _is_partial(work, records),
        comparable,
        _recorded_ns(work, records),
        links,
        pipelines(work.windows, records, found, alignment)
        if comparable and records.devices and not records.lacks_work
        else None,
        by_ends=records is not recorded,
    )


def records_of(prepared: Prepared) -> CommRecords:
    """Return the collectives over everything recorded."""
    if not prepared.accounts:
        return projected_records(prepared.trace)
    return comm_records(prepared.linked, prepared.accounts, prepared.windows)


def _chosen(work: RankWork, records: CommRecords) -> BoolArray:
    """Return which records start in the chosen windows; the last step counts."""
    found = np.zeros(len(records), dtype=np.bool_)
    for place, rows in groups(records.place):
        windows = work.windows[records.devices[place]]
        wanted = (replace(one, used=one.used or one.left_out == LAST_STEP) for one in windows)
        found[rows] = chosen_time(tuple(wanted)).contains(records.start_ns[rows])
    return found


def _recorded_ns(work: RankWork, records: CommRecords) -> int:
    """Return how long the chosen windows of a rank are, the mean of all."""
    chosen = [chosen_time(work.windows[device]).length_ns for device in records.devices]
    return sum(chosen) // max(len(chosen), 1)


def _is_partial(work: RankWork, records: CommRecords) -> bool:
    told = max(numbers(work.trace.processes["world_size"], 0).tolist(), default=0)
    sizes = [told or max(records.ranks) + 1, *(group.size or 0 for group in records.groups)]
    return bool(max(sizes) > len(records.ranks))


def _turn_of(places: IntArray, count: int) -> IntArray:
    """Return which of some places each of so many is, behind the last one for none of them."""
    turn = np.full(count, len(places), dtype=np.int64)
    turn[places] = np.arange(len(places))
    return turn


def _known(number: int) -> int | None:
    return number if number >= 0 else None
