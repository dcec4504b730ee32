"""Who waits for whom in a job of several ranks: what a report shows of its collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.charged import RankTimes
from traceflops.ranks.clocks import Alignment, aligned
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.link_rates import LinkRate, Links, kind_name, link_rates
from traceflops.ranks.matching import Matches
from traceflops.ranks.partners import with_partners
from traceflops.ranks.pipelines import Pipelines, pipelines
from traceflops.ranks.recorded import records_of
from traceflops.ranks.slow_rank import PreparedWork, RankWork, SlowRank, slow_rank
from traceflops.ranks.waits import Cycles, ExpertGroup, Waits, cycles, expert_groups, waits
from traceflops.table.columns import ABSENT, BoolArray, IntArray, numbers
from traceflops.table.grouping import exact_sums, group_sums, groups
from traceflops.windows.periodicity import LAST_STEP
from traceflops.windows.prepared import Prepared, origins
from traceflops.windows.records import chosen_time

_NO_LINKS: Final = Links()


class MatchedCollective(Struct, frozen=True):
    """One collective of all recorded ranks of its group; times are sums over these.

    `role` is what the group is for (dp, tp, pp, ep or cp). `last_rank` started last,
    `margin_ns` after the one before it; `tie`: this is within twice the error of the clocks.
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


class RankWaits(Struct, frozen=True):
    """What one rank waited in matched collectives; exposed is waiting while it did nothing else.

    `caused_wait_ns` is the waiting of others in collectives that this rank entered last,
    `marginal_ns` the part of it that would go if it had come as early as the second last.
    """

    rank: int
    wait_ns: int
    exposed_wait_ns: int
    transfer_ns: int
    caused_wait_ns: int
    marginal_ns: int


class Turn(Struct, frozen=True):
    """How one rank takes part in a collective: it starts, waits for the last, and transfers.

    `from_ns` counts from the first start of all, on aligned clocks.
    """

    rank: int
    from_ns: int
    wait_ns: int
    transfer_ns: int


class RankReport(Struct, frozen=True, dict=True):
    """The collectives of several ranks over everything recorded, and what waiting in them costs.

    `partial` says that ranks of the job are missing: then waits are lower bounds and transfers
    upper bounds. If clocks are not `comparable`, only durations are compared. `recorded_ns` is the
    chosen time per rank on average. `by_ends`: groups or peers were inferred from ends of kernels.
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
    def are_several(self) -> bool:
        """Return whether there are ranks to compare; of one rank, nothing waits."""
        return len(self.records.ranks) > 1

    @property
    def unmatched(self) -> int:
        """Return how many kernels of communication have no match on the other ranks."""
        return int((self.matches.collective < 0).sum())

    @property
    def span_ns(self) -> int:
        """Return the time from the first to the last matched collective."""
        waited = self.waits
        return int(waited.until_ns.max()) - int(waited.from_ns.min()) if len(waited.first) else 0

    def collectives(self) -> Iterator[MatchedCollective]:
        """Yield the matched collectives in the order of time."""
        records, waited = self.records, self.waits
        count = self.matches.count
        wait_ns = exact_sums(waited.collective, waited.wait_ns, count)
        transfer_ns = exact_sums(waited.collective, waited.transfer_ns, count)
        first = waited.row[waited.first].tolist()
        steps = records.step[first].tolist()
        sizes = waited.largest(records.bytes).tolist()
        for index, (row, step, size_bytes) in enumerate(zip(first, steps, sizes, strict=True)):
            group = records.groups[int(records.group[row])]
            yield MatchedCollective(
                kind=kind_name(records, row),
                group=group.name,
                role=group.role,
                index=index,
                step=step if step >= 0 else None,
                last_rank=records.ranks[int(waited.last[index])],
                tie=bool(waited.tie[index]),
                margin_ns=int(waited.margin_ns[index]),
                wait_ns=wait_ns[index],
                transfer_ns=transfer_ns[index],
                bytes=size_bytes if size_bytes >= 0 else None,
            )

    def by_rank(self) -> list[RankWaits]:
        """Return what each rank waited, in the order of the ranks."""
        waited, count = self.waits, len(self.records.ranks)
        place = self.records.place[waited.row]
        # If the last rank had come as early as the second last, each other rank would have waited
        # less by the margin. In a tie it is not sure which rank was the last.
        marginal_ns = np.where(waited.tie, 0, waited.margin_ns * (waited.size - 1))
        by_record = (waited.wait_ns, waited.exposed_ns, waited.transfer_ns)
        by_last = (waited.caused_ns, marginal_ns)
        columns = [exact_sums(place, values, count) for values in by_record]
        columns += [exact_sums(waited.last, values, count) for values in by_last]
        return [RankWaits(*row) for row in zip(self.records.ranks, *columns, strict=True)]

    def in_cycles(self) -> RankReport:
        """Return the report with only the waits inside cycles; unchanged without cycles."""
        waited, inside = self.waits, self.cycles.of_collective >= 0
        if not inside.any():
            return self
        by_record = ("wait_ns", "transfer_ns", "exposed_ns")
        times = {name: getattr(waited, name) * inside[waited.collective] for name in by_record}
        return replace(self, waits=replace(waited, **times, margin_ns=waited.margin_ns * inside))

    def farthest(self) -> list[int]:
        """Return the places of the ranks, those farthest from the median own time first.

        Of equally far ranks the slower comes first, then the one that others wait longer for.
        """
        own_ns = self.cycles.own_ns.sum(axis=0)
        awaited_ns = np.array([rank.marginal_ns for rank in self.by_rank()], dtype=np.int64)
        distance_ns = np.abs(own_ns - np.median(own_ns))
        # lexsort sorts by its last key first.
        places: list[int] = np.lexsort((-awaited_ns, -own_ns, -distance_ns)).tolist()
        return places

    def waited_for(self, rows: IntArray, columns: IntArray) -> IntArray:
        """Return a table of how long ranks (rows) waited for the rank that came last (columns).

        `rows` and `columns` are places of ranks; one more row and column sum up all others. In ns.
        """
        # rows [3 1] of 4 ranks: row_of_place [2 1 2 0]; all others are in the last row, 2.
        count = len(self.records.ranks)
        row_of_place = np.full(count, len(rows))
        row_of_place[rows] = np.arange(len(rows))
        column_of_place = np.full(count, len(columns))
        column_of_place[columns] = np.arange(len(columns))
        height, width = len(rows) + 1, len(columns) + 1
        waiting = self.records.place[self.waits.row]
        last = self.waits.last[self.waits.collective]
        cell = row_of_place[waiting] * width + column_of_place[last]
        return group_sums(cell, self.waits.wait_ns, height * width).reshape(height, width)

    def most_awaited(self) -> IntArray:
        """Return the most awaited collective of each cycle (row) and rank (column), by its number.

        It is the collective of the rank with most waiting, summed over all ranks that take part; of
        several, the first. -1 if no collective of the rank is awaited in the cycle. Without cycles
        there is one row, for all collectives.
        """
        waited, cycle_of = self.waits, self.cycles.of_collective
        if not (cycle_of >= 0).any():
            cycle_of = np.zeros_like(cycle_of)
        # `waited` has a row per collective and rank: the four arrays below have one value per row.
        collective, place = waited.collective, self.records.place[waited.row]
        cycle, waiting_ns = cycle_of[collective], waited.caused_ns[collective]
        most_awaited = np.full((max(len(self.cycles.steps), 1), len(self.records.ranks)), -1)
        # numpy keeps the last of several values that are written to one cell. So write first those
        # that are awaited least; of equally awaited ones, first the later collective.
        rows = np.flatnonzero((waiting_ns > 0) & (cycle >= 0))
        rows = rows[np.lexsort((-collective[rows], waiting_ns[rows]))]
        most_awaited[cycle[rows], place[rows]] = collective[rows]
        return most_awaited

    def turns(self, collective: int) -> list[Turn]:
        """Return what each rank did in one collective, in the order of their starts."""
        waited, records = self.waits, self.records
        rows = np.flatnonzero(waited.collective == collective)
        ranks = [records.ranks[place] for place in records.place[waited.row[rows]].tolist()]
        start = (records.start_ns - self.alignment.record_offset_ns)[waited.row[rows]]
        columns = (start - start.min(), waited.wait_ns[rows], waited.transfer_ns[rows])
        return list(map(Turn, ranks, *(column.tolist() for column in columns)))

    def by_activity(self, count: int) -> RankTimes | None:
        """Return the wait and the group of each of `count` activities, -1 for none.

        None for summaries and for collectives that are ranges: these have no activities.
        """
        records, waited = self.records, self.waits
        if not records.devices or (records.row == ABSENT).any():
            return None
        wait_ns, group = np.full((2, count), -1, dtype=np.int64)
        wait_ns[records.row[waited.row]] = waited.wait_ns
        group[records.row] = records.group
        return RankTimes(wait_ns, group, [group.role or group.name for group in records.groups])

    def rates(self) -> list[LinkRate]:
        """Return the bandwidths by kind, group and size; none where ranks are missing."""
        if self.partial:
            return []
        error = 2 * (self.alignment.residual_p95_ns or 0)
        return link_rates(self.records, self.waits, self.links, error)

    def experts(self) -> list[ExpertGroup]:
        """Return the groups that exchange tokens of experts, the most uneven first."""
        return expert_groups(self.records, self.waits)


_NO: Final[Any] = np.empty(0, dtype=np.int64)
_NO_TABLE: Final = np.empty((0, 0), dtype=np.int64)
NO_RANKS: Final = RankReport(
    records=CommRecords((), (), (), (), *[_NO] * 13),
    matches=Matches(_NO, 0, 0),
    alignment=Alignment("", _NO, _NO, None, None, _NO, _NO),
    waits=Waits(*[_NO] * 14),
    cycles=Cycles((), _NO, _NO_TABLE, _NO_TABLE, _NO_TABLE, _NO, is_joint=False),
    slow=None,
    partial=False,
    comparable=False,
    recorded_ns=0,
)
"""The report on a single rank, or on ranks that cannot be told apart."""


def rank_report(prepared: Prepared, links: Links = _NO_LINKS) -> RankReport:
    """Return who waits for whom; NO_RANKS for a single rank, or if they cannot be told apart."""
    is_aligned = bool(prepared.accounts) and origins(prepared).aligned
    work = PreparedWork(prepared)
    return report_of(records_of(prepared), work, is_aligned=is_aligned, links=links)


def report_of(
    records: CommRecords, work: RankWork, *, is_aligned: bool, links: Links = _NO_LINKS
) -> RankReport:
    """Return the report on the records; NO_RANKS for one rank, or ranks not told apart.

    `is_aligned` says that the recorded clocks are one clock, even if no collectives align them.
    """
    # "repeated-launches": devices of one process may be those of several ranks.
    if len(records.ranks) < 2 or any(n.code == "repeated-launches" for n in work.trace.notes):
        return NO_RANKS
    recorded = records
    records, matches, alignment = with_partners(recorded)
    if not alignment.basis and not is_aligned:
        alignment = aligned(records, matches, is_common=False)
    comparable = bool(alignment.basis) or (is_aligned and alignment.is_possible)
    waited = waits(records, matches, alignment, comparable=comparable)
    # If times are not comparable, no record is chosen: there are no cycles.
    nothing = np.zeros(len(records), dtype=np.bool_)
    steps = cycles(records, waited, _is_chosen(records, work) if comparable else nothing)
    # The size of the job: as recorded, else at least of each group, and above the highest rank.
    world = max(numbers(work.trace.processes["world_size"], 0).tolist(), default=0)
    sizes = [world or max(records.ranks) + 1, *(group.size or 0 for group in records.groups)]
    chosen_ns = [chosen_time(work.windows[device]).length_ns for device in records.devices]
    has_work = comparable and records.devices and not records.lacks_work
    return RankReport(
        records=records,
        matches=matches,
        alignment=alignment,
        waits=waited,
        cycles=steps,
        slow=slow_rank(work, steps, records) if comparable else None,
        partial=bool(max(sizes) > len(records.ranks)),
        comparable=comparable,
        recorded_ns=sum(chosen_ns) // max(len(chosen_ns), 1),
        links=links,
        pipeline=pipelines(work.windows, records, waited, alignment) if has_work else None,
        by_ends=records is not recorded,
    )


def _is_chosen(records: CommRecords, work: RankWork) -> BoolArray | None:
    """Return, per record, whether it starts in the chosen windows or in the last step.

    The last step is left out elsewhere as its window may be cut, but a cycle ends with its last
    collective. None, for all records, without devices: these are projected ranges.
    """
    if not records.devices:
        return None
    is_chosen = np.zeros(len(records), dtype=np.bool_)
    for place, rows in groups(records.place):
        windows = work.windows[records.devices[place]]
        wanted = (replace(w, used=w.used or w.left_out == LAST_STEP) for w in windows)
        is_chosen[rows] = chosen_time(tuple(wanted)).contains(records.start_ns[rows])
    return is_chosen
