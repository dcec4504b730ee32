"""Pipelines, experts and links: jobs small enough to work out by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.build import trace_of
from tests.conftest import examples
from traceflops import analyze
from traceflops.analysis.preparation import prepare
from traceflops.mfu.budget import PeakOptions
from traceflops.ranks.link_rates import Links
from traceflops.ranks.who_waits import RankReport, rank_report
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.who_waits import limits_sentence, rates_table
from traceflops.table.trace import Trace
from traceflops.windows.selection import Selection

US = 1_000


@dataclass
class Job:
    """Kernels by rank, as rows of a trace; times are in microseconds."""

    ranks: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def add(
        self, rank: int, name: str, start: int, end: int, stream: int = 7, **facts: Any
    ) -> None:
        times = {"start_ns": US * start, "dur_ns": US * (end - start)}
        place = {"process": rank, "device": rank, "stream": stream}
        self.rows.append({"name": name, **place, **times, **facts})

    def send(self, source: int, target: int, sent: int, asked: int, takes: int, size: int) -> int:
        """Add a send and its receive in a group of all ranks, and return when both are over."""
        end = max(sent, asked) + takes
        facts = {
            "collective_group": "pp",
            "collective_group_size": self.ranks,
            "collective_group_ranks": str(list(range(self.ranks))),
            "collective_dtype": "Float",
            "collective_in_elements": size,
            "collective_out_elements": size,
        }
        name = "ncclDevKernel_SendRecv"
        self.add(
            source, name, sent, end, 20, collective="send", collective_destination=target, **facts
        )
        self.add(target, name, asked, end, 21, collective="recv", collective_source=source, **facts)
        return end

    def trace(self) -> Trace:
        """Return the trace of the job."""
        ranks = range(self.ranks)
        marks = [
            {
                "process": rank,
                "name": f"ProfilerStep#{at}",
                "start_ns": US * start,
                "dur_ns": US * (stop - start),
            }
            for at, (start, stop) in enumerate(pairwise(self.steps))
            for rank in ranks
        ]
        launches = [
            {"process": row["process"], "start_ns": row["start_ns"], "correlation": at}
            for at, row in enumerate(self.rows)
        ]
        return trace_of(
            marks=marks,
            calls=launches,
            processes=[{"process": rank, "rank": rank} for rank in ranks],
            devices=[{"device": r, "process": r, "local_id": r} for r in ranks],
            activities=[row | {"correlation": at} for at, row in enumerate(self.rows)],
        )

    def report(self, links: Links | None = None) -> RankReport:
        """Return what is found in it."""
        return rank_report(prepare(self.trace(), Selection()), links or Links())


def pipeline(stages: int, micro: int, forth: int, back: int, takes: int, steps: int = 1) -> Job:
    """Return a job that does all micro-batches forth, then back, in each step."""
    job, free = Job(stages, steps=[0]), [0] * stages
    for _ in range(steps):
        for way, order in ((forth, range(stages)), (back, range(stages)[::-1])):
            for _ in range(micro):
                ready = 0
                for before, stage in zip([None, *order], order, strict=False):
                    start = free[stage]
                    if before is not None:
                        start = job.send(before, stage, ready, start, takes, 1_000)
                    job.add(stage, "gemm", start, start + way)
                    free[stage] = ready = start + way
        free = [max(free)] * stages
        job.steps.append(free[0])
    return job


def idle_in(job: Job) -> list[tuple[int, ...]]:
    """Return by rank the microseconds without work and transfer: until its first message is over,
    from then on, and after its last one; of the first rank nothing is until its first.
    """
    ended = max(row["start_ns"] + row["dur_ns"] for row in job.rows) // US
    moves = [row for row in job.rows if "collective" in row]
    starts = [
        max(a["start_ns"], b["start_ns"]) for a, b in zip(moves[::2], moves[1::2], strict=True)
    ]
    begins = dict(zip(map(id, moves), np.repeat(starts, 2).tolist(), strict=True))
    idle = []
    for rank in range(job.ranks):
        free = np.ones(ended, dtype=np.bool_)
        mine = [row for row in job.rows if row["process"] == rank]
        for row in mine:
            end = row["start_ns"] + row["dur_ns"]
            free[begins.get(id(row), row["start_ns"]) // US : end // US] = False
        ends = sorted((r["start_ns"] + r["dur_ns"]) // US for r in mine if "collective" in r)
        borders = [ends[0] if rank else 0, ends[-1]]
        idle.append(tuple(int(part.sum()) for part in np.split(free, borders)))
    return idle


def found(report: RankReport) -> Any:
    """Return the bubbles of each stage in microseconds."""
    assert report.pipeline is not None
    return [
        (one.warm_up_ns // US, one.steady_ns // US, one.drain_ns // US)
        for one in report.pipeline.ranks
    ]


def test_the_bubbles_of_a_pipeline_are_those_of_its_schedule() -> None:
    # Transfers of 1 us beside work of 100: the bubble is (p - 1) (forth + back) of every stage.
    job = pipeline(stages=4, micro=8, forth=100, back=200, takes=1)
    report = job.report()
    assert report.pipeline is not None
    assert report.matches.count == 2 * 3 * 8
    assert (report.unmatched, report.matches.impossible) == (0, 0)
    assert (report.pipeline.stages, report.pipeline.micro_batches) == (4, 8)
    assert report.pipeline.ideal == 3 / 8
    assert report.pipeline.bubble == pytest.approx(3 / 8, rel=0.02)
    assert [one.stage for one in report.pipeline.ranks] == [0, 1, 2, 3]
    pairs = {rate.members: rate.count for rate in report.rates()}
    assert pairs == dict.fromkeys([(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)], 8)
    assert found(report) == idle_in(job)
    whole = {one.busy_ns + one.transfer_ns + one.bubble_ns for one in report.pipeline.ranks}
    assert len(whole) == 1


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(2, 5),
    st.integers(2, 6),
    st.integers(20, 300),
    st.integers(20, 300),
    st.integers(1, 10),
    st.integers(1, 3),
)
def test_bubbles_of_any_pipeline(
    stages: int, micro: int, forth: int, back: int, takes: int, steps: int
) -> None:
    job = pipeline(stages, micro, forth, back, takes, steps)
    report = job.report()
    assert report.pipeline is not None
    assert (report.pipeline.steps, report.pipeline.micro_batches) == (steps, micro)
    once = idle_in(pipeline(stages, micro, forth, back, takes))
    assert found(report) == [tuple(steps * idle for idle in rank) for rank in once]


def test_without_steps_nobody_knows_the_micro_batches() -> None:
    job = pipeline(stages=3, micro=4, forth=100, back=200, takes=1)
    job.steps.clear()
    report = job.report()
    assert report.pipeline is not None
    assert (report.pipeline.micro_batches, report.pipeline.ideal) == (None, None)
    assert found(report) == idle_in(job)


def test_sends_and_receives_of_a_stage_are_waiting_and_transfer() -> None:
    job = Job(2, steps=[0, 1_000, 2_000])
    for start in (0, 1_000):
        job.add(0, "gemm", start, start + 100)
        job.send(0, 1, sent=start + 100, asked=start + 40, takes=10, size=1_000)
        job.add(1, "gemm", start + 110, start + 200)
        job.send(1, 0, sent=start + 200, asked=start + 230, takes=10, size=1_000)
        job.add(0, "gemm", start + 240, start + 250)
    pipeline = job.report().pipeline
    assert pipeline is not None
    first, second = (
        tuple(
            ns // US
            for ns in (
                one.send_wait_ns,
                one.send_transfer_ns,
                one.receive_wait_ns,
                one.receive_transfer_ns,
            )
        )
        for one in pipeline.ranks
    )
    assert first == (0, 2 * 10, 0, 2 * 10)
    assert second == (2 * 30, 2 * 10, 2 * 60, 2 * 10)


def test_ranks_that_exchange_in_a_ring_are_no_pipeline() -> None:
    job = Job(2)
    for start in range(0, 1_000, 100):
        for rank in range(2):
            job.add(rank, "gemm", start, start + 80)
            job.send(rank, 1 - rank, start + 80, start + 80, 5, 1_000)
    report = job.report()
    assert (report.matches.count, report.pipeline) == (20, None)


def test_a_receiver_waits_until_the_send_starts_and_a_sender_for_the_receiver() -> None:
    job = Job(3)
    job.send(0, 1, sent=30, asked=0, takes=10, size=1_000)
    job.send(1, 2, sent=50, asked=70, takes=5, size=1_000)
    report = job.report()
    assert [one.wait_ns // US for one in report.by_rank()] == [0, 30 + 20, 0]
    assert [one.transfer_ns // US for one in report.by_rank()] == [10, 15, 5]
    assert [one.kind for one in report.collectives()] == ["send_recv"] * 2
    assert report.slow is None


def test_a_send_without_its_receive_moves_no_other_pair() -> None:
    job = Job(2)
    sizes = [1_000, 2_000, 3_000, 4_000, 5_000]
    for place, size in enumerate(sizes):
        job.send(0, 1, 100 * place, 100 * place, 10, size)
    del job.rows[5]  # the receive of the third
    report = job.report()
    assert (report.matches.count, report.unmatched) == (4, 1)
    assert [rate.bytes for rate in report.rates()] == [20_000, 16_000, 8_000, 4_000]


@pytest.mark.parametrize(("apart", "matches"), [(20, 5), (60, 0)])
def test_a_send_to_nobody_known_matches_what_ends_with_it(apart: int, matches: int) -> None:
    job = Job(3)
    for start in range(0, 500, 100):
        job.send(0, 1, start, start, 30, 1_000)
    for row in job.rows:
        row["collective_source"] = row["collective_destination"] = None
        row["start_ns"] += apart * US * (row["process"] == 1)
    report = job.report()
    # Only two of the ranks send or receive, but the group has three.
    assert (report.matches.count, report.unmatched) == (matches, 10 - 2 * matches)
    said = "Groups or peers that nothing names are those of kernels that end together."
    assert (said in limits_sentence(report)) == (matches > 0)


def test_the_one_slow_pair_shows() -> None:
    job = Job(5)
    for step in range(4):
        for source in range(4):
            takes = 200 if source == 2 else 50
            job.send(source, source + 1, 1_000 * step, 1_000 * step, takes, 10_000_000)
    rates = {rate.members: rate for rate in job.report(Links(given=1_000.0)).rates()}
    assert sorted(rates) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [members for members, rate in rates.items() if rate.slow] == [(2, 3)]
    slow = rates[2, 3]
    assert (slow.bus, slow.usual, slow.peak, slow.of_peak) == (200.0, 800.0, 1_000.0, 0.2)
    assert slow.lost_ns == 4 * (200 - 50) * US


def test_a_slow_pair_is_a_finding() -> None:
    job = Job(4)
    for step in range(4):
        for source in range(3):
            takes = 300 if source == 1 else 100
            job.send(source, source + 1, 1_000 * step, 1_000 * step, takes, 10_000_000)
    analysis = analyze(job.trace())
    said = "The link of ranks 1, 2 is slow: send-recv runs at 133 GB/s, elsewhere at 400 GB/s"
    head = [line.plain for line in render_terminal(analysis, Style(width=80))][:10]
    assert said in " ".join(head)
    (cause,) = (one for one in analysis.findings if one.rule == "slow-link")
    assert cause.remedy.startswith("Check whether only these ranks")
    first, *others = rates_table(analysis).rows
    assert (first[0], first[2]) == ("send-recv, slow", "1, 2")
    assert [row[0] for row in others] == ["send-recv"] * 2
    findings = {one.rule: one for one in analysis.losses}
    found = findings["slow-link"]
    assert found.sentence.startswith(
        "The link of ranks 1, 2 is slow: send-recv runs at 133 GB/s, elsewhere at 400 GB/s "
        "(3 times as fast). That costs 800 µs."
    )
    # From the first start to the last end it is 3.3 ms; 4 calls take 200 us longer.
    assert found.severity == "high"
    assert found.share == pytest.approx(800 / 3_300)


def all_reduce(job: Job, members: Sequence[int], takes: int) -> None:
    facts = {
        "collective": "allreduce",
        "collective_dtype": "Float",
        "collective_in_elements": 10_000_000,
        "collective_out_elements": 10_000_000,
        "collective_group": "dp",
        "collective_group_ranks": str(list(members)),
        "collective_group_size": len(members),
    }
    for turn in range(4):
        for rank in members:
            start = 2_000 * turn
            job.add(rank, "ncclDevKernel_AllReduce_Sum", start, start + takes, 20, **facts)


def test_the_one_slow_group_shows() -> None:
    job = Job(8)
    for first, takes in ((0, 200), (1, 400)):  # ranks 0, 2, 4, 6 and 1, 3, 5, 7
        all_reduce(job, range(first, 8, 2), takes)
    slow, usual = sorted(job.report().rates(), key=lambda rate: not rate.slow)
    assert (slow.members, slow.slow, usual.slow) == ((1, 3, 5, 7), True, False)
    assert (slow.bus, slow.usual) == (150.0, 300.0)  # 40 MB in 400 us, by 2 (n - 1) / n


def test_sends_align_the_clocks_of_stages_that_nothing_else_brings_together() -> None:
    job = Job(4)
    for members in ((0, 1), (2, 3)):
        all_reduce(job, members, 200)
    for turn in range(4):
        for source in (0, 1):
            job.send(source, source + 2, 2_000 * turn + 500, 2_000 * turn + 400, 10, 1_000)
    for row in job.rows:
        row["start_ns"] += 30_000 * US * (row["process"] > 1)
    report = job.report()
    offsets = report.alignment.offset_ns.tolist()
    assert offsets == pytest.approx([-15_000 * US] * 2 + [15_000 * US] * 2, abs=2)
    waits = [one.wait_ns for one in report.by_rank()]
    assert waits == pytest.approx([0, 0, 400 * US, 400 * US], abs=16)


@pytest.mark.parametrize("given", [None, 200.0])
@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [0, 0, 0, 0]])
def test_the_peak_is_half_of_both_directions_unless_given(
    given: float | None, numbers: list[int]
) -> None:
    job = Job(4)
    all_reduce(job, range(4), 200)
    trace = job.trace()
    at = trace.devices.schema.get_field_index("local_id")
    devices = trace.devices.set_column(at, trace.devices.field(at), [numbers])
    trace = replace(trace, tables={**trace.tables, "devices": devices})
    ranks = analyze(trace, peaks=PeakOptions("h100-sxm", link=given)).ranks
    (rate,) = ranks.rates()
    # An H100 SXM has 900 GB/s in both directions. One number on all: perhaps several nodes.
    expected = given or (450.0 if numbers[1] else None)
    assert rate.peak == expected
    assert rate.of_peak == (None if expected is None else 300 / expected)


@pytest.mark.parametrize(("calls", "takes"), [(2, 200), (4, 60)])
def test_no_pair_is_slow_by_few_calls_or_by_little(calls: int, takes: int) -> None:
    job = Job(4)
    for step in range(calls):
        for source in range(3):
            job.send(source, source + 1, 1_000 * step, 1_000 * step, takes if source else 50, 10**6)
    assert not any(rate.slow for rate in job.report().rates())


def all_to_all(job: Job, start: int, puts: Sequence[int], gets: Sequence[int]) -> None:
    for rank, (put, get) in enumerate(zip(puts, gets, strict=True)):
        facts = {
            "collective": "all_to_allv",
            "collective_group": "ep",
            "collective_in_elements": put,
            "collective_out_elements": get,
        }
        job.add(rank, "ncclDevKernel_SendRecv", start, start + 10, 20, **facts)


@pytest.mark.parametrize("begins_with_combine", [False, True])
def test_the_rank_with_most_tokens_shows(begins_with_combine: bool) -> None:
    job = Job(4)
    loads = [[100, 100, 300, 100], [120, 80, 320, 80], [110, 100, 280, 110]]
    if begins_with_combine:
        all_to_all(job, 0, loads[0], [150] * 4)
    for layer, load in enumerate(loads):
        start = 1_000 * (layer + 1)
        all_to_all(job, start, [150] * 4, load)
        for rank, tokens in enumerate(load):
            job.add(rank, "expert", start + 20, start + 20 + tokens)
        all_to_all(job, start + 400, load, [150] * 4)
        for rank in range(4):
            job.add(rank, "attention", start + 420, start + 620)
    (group,) = job.report().experts()
    assert (group.group, group.ranks, group.dispatches) == ("ep", (0, 1, 2, 3), 3)
    assert group.elements == (330, 280, 900, 290)
    assert group.compute_ns == (330 * US, 280 * US, 900 * US, 290 * US)
    assert (group.most_elements, group.most_compute) == (2, 2)
    assert group.elements_imbalance == group.compute_imbalance == pytest.approx(900 / 450)
    assert group.lost_ns == (150 + 170 + 130) * US  # 300, 320 and 280 less the mean of 150
    moved = [2 * 10 * (1 - 150 / most) for most in (300, 320, 280)]  # 10 us each way
    assert group.moving_ns == pytest.approx(sum(moved) * US, abs=1)
