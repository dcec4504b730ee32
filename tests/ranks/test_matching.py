"""Collectives of random jobs, whose clocks are apart and of which kernels are missing."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from traceflops.ranks.clocks import Alignment, aligned
from traceflops.ranks.comm_records import KINDS, CommGroup, CommRecords
from traceflops.ranks.matching import Matches, matched
from traceflops.ranks.waits import Waits, waits
from traceflops.table.columns import ABSENT
from traceflops.timeline.intervals import Intervals


@dataclass(frozen=True)
class Job:
    """True times in ns by collective (rows) and rank (columns), and what the files have of them."""

    start_ns: Any
    end_ns: Any
    elements: Any
    recorded: Any
    offset_ns: Any

    def found(self) -> tuple[CommRecords, Matches, Alignment, Waits]:
        """Return what is found in the files."""
        ranks = self.start_ns.shape[1]
        turn, place = np.nonzero(self.recorded)
        order = np.lexsort((turn, place))
        turn, place = turn[order], place[order]
        start, end = (
            ns[turn, place] + self.offset_ns[place] for ns in (self.start_ns, self.end_ns)
        )
        unknown = np.full(len(turn), ABSENT)
        records = CommRecords(
            ranks=tuple(range(ranks)),
            devices=tuple(range(ranks)),
            groups=(CommGroup("dp", None, ranks),),
            alone=tuple(
                Intervals.of(start[place == one], end[place == one]) for one in range(ranks)
            ),
            place=place,
            row=np.arange(len(turn)),
            kind=np.full(len(turn), KINDS.index("all_reduce")),
            group=np.zeros(len(turn), dtype=np.int64),
            peer=unknown,
            sequence=unknown,
            elements=self.elements[turn],
            received=unknown,
            bytes=unknown,
            step=unknown,
            start_ns=start,
            end_ns=end,
            busy_ns=np.zeros(len(turn), dtype=np.int64),
        )
        matches = matched(records)
        alignment = aligned(records, matches)
        return records, matches, alignment, waits(records, matches, alignment)


@st.composite
def jobs(draw: st.DrawFn, apart_ns: int = 0, missing: int = 0) -> Job:
    """Draw a job of ranks that compute for random times between all-reduces."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    ranks, count = draw(st.integers(2, 6)), draw(st.integers(20, 40))
    slow = random.uniform(1, 1.3, ranks)
    start, end = (np.zeros((count, ranks), dtype=np.int64) for _ in range(2))
    ready = np.full(ranks, 10**12)
    sizes = random.choice([1_000, 50_000, 400_000], count)
    for turn in range(count):
        start[turn] = ready + (random.uniform(0.8, 1, ranks) * slow * 500_000).astype(np.int64)
        end[turn] = start[turn].max() + 5_000 + sizes[turn] // 10
        ready = end[turn]
    recorded = np.ones((count, ranks), dtype=np.bool_)
    for _ in range(missing):
        recorded[random.integers(count), random.integers(ranks)] = False
    offset = random.integers(-apart_ns, apart_ns + 1, ranks)
    return Job(start, end, sizes, recorded, offset)


def check(job: Job) -> None:
    records, matches, alignment, found = job.found()
    whole = job.recorded.all(axis=1)
    assert matches.count == whole.sum()
    assert (matches.collective < 0).sum() == job.recorded[~whole].sum()
    error = 2 * (alignment.residual_p95_ns or 0) + 2
    if alignment.basis:
        offset = job.offset_ns - job.offset_ns.mean()
        assert np.abs(alignment.offset_ns - offset).max() <= error
    latest = job.start_ns[whole].max(axis=1, keepdims=True)
    expected = np.zeros((matches.count, len(records.ranks)), dtype=np.int64)
    expected[found.collective, records.place[found.row]] = found.wait_ns
    assert np.abs(expected - (latest - job.start_ns[whole])).max(initial=0) <= error
    assert (found.wait_ns + found.transfer_ns == records.dur_ns[found.row]).all()


@settings(max_examples=examples(60), deadline=None)
@given(jobs())
def test_waits_are_those_of_the_job(job: Job) -> None:
    check(job)


@settings(max_examples=examples(60), deadline=None)
@given(jobs(apart_ns=50_000_000))
def test_waits_are_those_of_the_job_whatever_the_clocks_say(job: Job) -> None:
    check(job)


@settings(max_examples=examples(60), deadline=None)
@given(jobs(missing=3))
def test_kernels_that_are_missing_on_one_rank_have_no_match_and_move_no_other(job: Job) -> None:
    check(job)


@settings(max_examples=examples(60), deadline=None)
@given(jobs(apart_ns=50_000_000, missing=2))
def test_kernels_that_are_missing_are_found_on_clocks_that_are_apart(job: Job) -> None:
    check(job)


def test_kernels_of_unrelated_times_are_no_failure() -> None:
    """In each candidate pairing, most pairs are impossible."""
    for seed in range(100):
        random = np.random.default_rng(seed)
        start = np.sort(random.integers(0, 10**9, (5, 2)), axis=0)
        end = start + random.integers(1, 10**8, (5, 2))
        job = Job(start, end, np.full(5, ABSENT), np.ones((5, 2), np.bool_), np.zeros(2, int))
        _, matches, _, _ = job.found()
        assert matches.count + matches.impossible <= 5
