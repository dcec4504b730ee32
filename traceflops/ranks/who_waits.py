"""Who waits for whom in a job of several ranks: what a report shows of its collectives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.ranks.clocks import Alignment, aligned
from traceflops.ranks.comm_records import KINDS, CommRecords, comm_records
from traceflops.ranks.cycles import Cycles, cycles
from traceflops.ranks.matching import Matches, matched
from traceflops.ranks.slow_rank import PreparedWork, RankWork, SlowRank, slow_rank
from traceflops.ranks.waits import Waits, waits
from traceflops.table import IntArray, exact_sums, group_rows, numbers
from traceflops.windows import Prepared, origins

_BUS: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Bus bandwidth by algorithm bandwidth is so often (n - 1) / n, as nccl-tests has it; else 1."""


@dataclass(frozen=True, slots=True)
class MatchedCollective:
    """One collective of all recorded ranks of its group; times are sums over these.

    `last_rank` started last; `tie` says that this is within twice the error of the clocks.
    """

    kind: str
    group: str
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
class LinkRate:
    """The bandwidth of collectives of one kind, group and size over their transfer alone.

    GB/s; `bus` is the rate of the links as nccl-tests defines it. `slowest` and `fastest` are the
    5th and 95th percentile over the calls of `bus`.
    """

    kind: str
    group: str
    ranks: int
    bytes: int
    count: int
    algorithm: float
    bus: float
    slowest: float
    fastest: float


@dataclass(frozen=True)
class RankReport:
    """The collectives of several ranks over everything recorded, and what waiting in them costs.

    `partial` says that ranks of the job are not here: then waits are at least, and transfers at
    most, what is said.
    """

    records: CommRecords
    matches: Matches
    alignment: Alignment
    waits: Waits
    cycles: Cycles
    slow: SlowRank | None
    partial: bool

    @property
    def unmatched(self) -> int:
        """Return how many kernels of communication have no match on the other ranks."""
        return int((self.matches.collective < 0).sum())

    def collectives(self) -> Iterator[MatchedCollective]:
        """Yield the matched collectives in the order of time."""
        records, found = self.records, self.waits
        sums = [
            exact_sums(found.collective, values, self.matches.count)
            for values in (found.wait_ns, found.transfer_ns)
        ]
        size = _message(records, found)
        first = found.row[found.first]
        for index, row in enumerate(first.tolist()):
            yield MatchedCollective(
                kind=_kind(records, row),
                group=records.groups[int(records.group[row])].name,
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
        sizes = np.diff(np.append(found.first, len(found.row)))
        caused = np.add.reduceat(found.wait_ns, found.first) if len(found.first) else found.first
        marginal = np.where(found.tie, 0, found.margin_ns * (sizes - 1))
        columns = [
            *(exact_sums(place, values, count) for values in (found.wait_ns, found.exposed_ns)),
            exact_sums(place, found.transfer_ns, count),
            *(exact_sums(found.last, values, count) for values in (caused, marginal)),
        ]
        return [
            RankWaits(rank, *values)
            for rank, *values in zip(self.records.ranks, *columns, strict=True)
        ]

    def rates(self) -> list[LinkRate]:
        """Return the bandwidths by kind, group and size; none where ranks are missing."""
        records, found = self.records, self.waits
        size, spent = _message(records, found), found.until_ns - found.from_ns
        known = np.flatnonzero((size > 0) & (spent > 0))
        if self.partial or not len(known):
            return []
        row = found.row[found.first]
        number, firsts = group_rows((records.kind[row], records.group[row], size))
        ranks = np.diff(np.append(found.first, len(found.row)))
        rates = []
        for code, at in enumerate(firsts.tolist()):
            mine = known[number[known] == code]
            if not len(mine):
                continue
            rate = size[mine] / spent[mine]
            kind, many = _kind(records, int(row[at])), int(ranks[at])
            factor = _BUS[kind] * (many - 1) / many if kind in _BUS else 1.0
            slowest, bus, fastest = (np.quantile(rate, [0.05, 0.5, 0.95]) * factor).tolist()
            group = records.groups[int(records.group[row[at]])].name
            total = float(size[mine].sum() / spent[mine].sum())
            rates.append(
                LinkRate(kind, group, many, int(size[at]), len(mine), total, bus, slowest, fastest)
            )
        return sorted(rates, key=lambda rate: -rate.bytes * rate.count)


def records_of(prepared: Prepared) -> CommRecords:
    """Return the kernels of communication over everything recorded."""
    return comm_records(prepared.linked, prepared.accounts, prepared.windows)


def rank_report(prepared: Prepared) -> RankReport | None:
    """Return who waits for whom, None where there is one rank only."""
    if len(prepared.accounts) < 2:
        return None
    records = records_of(prepared)
    world = int(numbers(prepared.trace.processes["world_size"], 0).max(initial=0))
    work = PreparedWork(prepared, records.devices)
    return report_of(records, work, world, comparable=origins(prepared).aligned)


def report_of(records: CommRecords, work: RankWork, world: int, *, comparable: bool) -> RankReport:
    """Return what records of ranks say; `world` is how many ranks the job is known to have.

    `comparable` says that their times compare also without a clock that collectives give.
    """
    matches = matched(records)
    alignment = aligned(records, matches)
    found = waits(records, matches, alignment, comparable=bool(alignment.basis) or comparable)
    steps = cycles(records, found)
    sizes = [world, *(group.size or 0 for group in records.groups)]
    is_partial = max(sizes) > len(records.ranks)
    slow = slow_rank(work, steps, records)
    return RankReport(records, matches, alignment, found, steps, slow, is_partial)


def _message(records: CommRecords, found: Waits) -> IntArray:
    """Return the bytes of each collective: the most that a rank has, as all move the same."""
    bytes_ = records.bytes[found.row]
    return np.maximum.reduceat(bytes_, found.first) if len(found.first) else found.first


def _kind(records: CommRecords, row: int) -> str:
    place = int(records.kind[row])
    return KINDS[place] if place >= 0 else "unknown"


def _known(number: int) -> int | None:
    return number if number >= 0 else None
