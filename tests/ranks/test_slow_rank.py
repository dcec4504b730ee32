"""Who is blamed in random jobs, and why in jobs small enough to work out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.conftest import examples
from traceflops.ranks.clocks import aligned
from traceflops.ranks.comm_records import KINDS, CommGroup, CommRecords
from traceflops.ranks.cycles import Cycles, cycles
from traceflops.ranks.matching import matched
from traceflops.ranks.slow_rank import late_ranks
from traceflops.ranks.waits import waits
from traceflops.table import ABSENT
from traceflops.timeline import Intervals

TRANSFER_NS = 40_000


@dataclass(frozen=True)
class Layout:
    """A job: its groups of ranks by name of the parallelism, and what a step is made of."""

    ranks: int
    tensor: int = 1
    steps: int = 6
    segments: int = 6
    overlap: bool = False

    def groups(self, name: str) -> list[list[int]]:
        """Return the ranks of each group of tensor or data parallelism."""
        of = np.arange(self.ranks).reshape(-1, self.tensor)
        return (of if name == "tp" else of.T).tolist()


class Rank:
    """One rank while it runs; its two streams, and what it recorded."""

    def __init__(self) -> None:
        self.compute_ns = self.comm_ns = 10**9
        self.work: list[tuple[int, int]] = []
        self.comm: list[tuple[int, int, int, int]] = []

    def compute(self, length_ns: float) -> None:
        """Run a segment."""
        begun, self.compute_ns = self.compute_ns, self.compute_ns + int(length_ns)
        self.work.append((begun, self.compute_ns))

    def join(self) -> None:
        """Wait for the collectives."""
        self.compute_ns = self.comm_ns = max(self.compute_ns, self.comm_ns)


def run(layout: Layout, compute_ns: Any) -> Cycles:
    """Return the cycles of a job whose segments take so long, by step, segment and rank."""
    ranks = [Rank() for _ in range(layout.ranks)]
    tensor, data = layout.groups("tp"), layout.groups("dp")
    for step, segments in enumerate(compute_ns):
        for segment in segments:
            for rank, length in zip(ranks, segment, strict=True):
                rank.compute(length)
            if layout.tensor > 1:
                talk(ranks, tensor, step, 0)
                join(ranks)
            if layout.overlap:
                talk(ranks, data, step, len(tensor))
        if not layout.overlap:
            talk(ranks, data, step, len(tensor))
        join(ranks)
    return cycles_of(ranks, [CommGroup("", tuple(one), len(one)) for one in (*tensor, *data)])


def talk(ranks: Sequence[Rank], groups: Sequence[Sequence[int]], step: int, first: int) -> None:
    """Run a collective in each of some groups, which are numbered from `first` on."""
    for number, group in enumerate(groups, first):
        members = [ranks[one] for one in group]
        starts = [max(one.compute_ns, one.comm_ns) for one in members]
        for one, start in zip(members, starts, strict=True):
            one.comm_ns = max(starts) + TRANSFER_NS
            one.comm.append((start, one.comm_ns, step, number))


def join(ranks: Sequence[Rank]) -> None:
    """Let all ranks wait for their collectives."""
    for rank in ranks:
        rank.join()


def cycles_of(ranks: Sequence[Rank], groups: Sequence[CommGroup]) -> Cycles:
    """Return the cycles of what ranks recorded."""
    start, end, step, group = np.array([one for rank in ranks for one in rank.comm]).T
    place = np.repeat(np.arange(len(ranks)), [len(rank.comm) for rank in ranks])
    work = [Intervals.of(*np.array(rank.work).T) for rank in ranks]
    comm = [Intervals.of(start[place == at], end[place == at]) for at in range(len(ranks))]
    unknown = np.full(len(place), ABSENT)
    records = CommRecords(
        ranks=tuple(range(len(ranks))),
        devices=tuple(range(len(ranks))),
        groups=tuple(groups),
        alone=tuple(c.subtract(w) for c, w in zip(comm, work, strict=True)),
        place=place,
        row=np.arange(len(place)),
        kind=np.full(len(place), KINDS.index("all_reduce")),
        group=group,
        sequence=unknown,
        elements=unknown,
        bytes=unknown,
        step=step,
        start_ns=start,
        end_ns=end,
        busy_ns=np.concatenate(
            [work[at].covered_before(end[place == at]) for at in range(len(ranks))]
        ),
    )
    matches = matched(records)
    return cycles(records, waits(records, matches, aligned(records, matches)))


def random_job(random: np.random.Generator) -> tuple[Layout, Any]:
    """Return a layout and healthy times of its segments."""
    ranks = int(random.integers(2, 17))
    tensor = int(random.choice([1, 2])) if ranks % 4 == 0 else 1
    steps, segments = int(random.integers(5, 12)), int(random.integers(2, 8))
    layout = Layout(ranks, tensor, steps, segments, bool(random.random() < 0.5))
    return layout, random.normal(1_000_000, 10_000, (steps, segments, ranks))


def blamed(layout: Layout, compute_ns: Any) -> list[int]:
    """Return the ranks that are blamed, in order."""
    late = late_ranks(run(layout, compute_ns))
    return sorted(late.places.tolist()) if late is not None else []


def test_nobody_is_blamed_in_98_of_100_healthy_jobs() -> None:
    random = np.random.default_rng(18)
    found = 0
    for turn in range(examples(500)):
        layout, compute_ns = random_job(random)
        shape = (layout.steps, 1, layout.ranks)
        uneven = random.normal(1, (0, 0.02, 0.1)[turn % 3], shape).clip(0.3)
        found += blamed(layout, compute_ns * uneven) != []
    assert found <= 0.02 * examples(500)


def test_the_slow_rank_is_named_in_95_of_100_jobs() -> None:
    random = np.random.default_rng(19)
    found = 0
    for _ in range(examples(500)):
        layout, compute_ns = random_job(random)
        slow = int(random.integers(layout.ranks))
        compute_ns[:, :, slow] *= random.uniform(1.03, 1.3)
        found += blamed(layout, compute_ns) == [slow]
    assert found >= 0.95 * examples(500)


def test_several_slow_ranks_are_named_together() -> None:
    random = np.random.default_rng(20)
    compute_ns = random.normal(1_000_000, 10_000, (8, 4, 16))
    compute_ns[:, :, 8:] *= 1.06
    assert blamed(Layout(16, steps=8, segments=4), compute_ns) == list(range(8, 16))


def test_one_long_pause_is_blamed_and_told_from_lasting_slowness() -> None:
    random = np.random.default_rng(21)
    compute_ns = random.normal(1_000_000, 10_000, (8, 4, 4))
    compute_ns[5, 0, 1] += 3_000_000
    late = late_ranks(run(Layout(4, steps=8, segments=4), compute_ns))
    assert late is not None and late.places.tolist() == [1]
    # The gap of the means, ns: 3 ms against nothing. Cycles begin with the second step.
    assert np.flatnonzero(late.gap_ns > 1_000_000).tolist() == [4]


def test_what_overlaps_compute_is_lost_only_at_the_last_bucket() -> None:
    """All of the delay of a slow rank is lost, though most buckets hide behind compute."""
    compute_ns = np.full((6, 5, 4), 1_000_000.0)
    compute_ns[:, :, 2] = 1_100_000
    late = late_ranks(run(Layout(4, steps=6, segments=5, overlap=True), compute_ns))
    assert late is not None and late.places.tolist() == [2]
    assert late.lost_ns.tolist() == [500_000] * 5
