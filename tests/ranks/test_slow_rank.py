"""Who is blamed in random jobs, and why in jobs small enough to work out."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.build import trace_of
from tests.conftest import examples
from traceflops import analyze
from traceflops.analysis.preparation import prepare
from traceflops.facts import in_words
from traceflops.findings.late_rank import late_rank_fact, late_rank_findings
from traceflops.ranks.clocks import aligned
from traceflops.ranks.comm_records import KINDS, CommGroup, CommRecords
from traceflops.ranks.late_causes import KernelSums, by_kernels, takes_longer
from traceflops.ranks.matching import matched
from traceflops.ranks.slow_rank import SlowRank, late_ranks
from traceflops.ranks.waits import Cycles, cycles, waits
from traceflops.ranks.who_waits import RankReport, rank_report
from traceflops.table.columns import ABSENT
from traceflops.timeline.intervals import Intervals
from traceflops.windows.selection import Selection

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
        peer=np.full(len(place), -1),
        sequence=unknown,
        elements=unknown,
        received=unknown,
        bytes=unknown,
        step=step,
        start_ns=start,
        end_ns=end,
        busy_ns=np.concatenate(
            [work[at].covered_before(end[place == at]) for at in range(len(ranks))]
        ),
        work=tuple(work),
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


def piped(factor: Sequence[float], microbatches: int = 4) -> Cycles:
    """Return the cycles of two stages of two ranks; forward passes, then backward passes."""
    ranks, random = [Rank() for _ in range(4)], np.random.default_rng(22)
    pairs, stages = [[0, 2], [1, 3]], [[0, 1], [2, 3]]
    for step in range(8):
        for first, second, length in ((0, 1, 200_000), (1, 0, 400_000)):
            for _ in range(microbatches):
                for stage in (first, second):
                    for one in stages[stage]:
                        ranks[one].compute(length * factor[one] * random.normal(1, 0.01))
                    if stage == first:
                        talk(ranks, pairs, step, 0)
                        join([ranks[one] for one in stages[second]])
        talk(ranks, stages, step, 2)
        join(ranks)
    groups = [CommGroup("", tuple(one), 2) for one in (*pairs, *stages)]
    return cycles_of(ranks, groups)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [((1, 1, 1, 1), None), ((1, 1, 1.1, 1.1), [2, 3]), ((1, 1.1, 1, 1), [1])],
    ids=["healthy", "last stage", "one rank"],
)
def test_a_slow_stage_of_a_pipeline_is_named_and_its_bubbles_are_not(
    factor: Sequence[float], expected: list[int] | None
) -> None:
    late = late_ranks(piped(factor))
    assert (None if late is None else sorted(late.places.tolist())) == expected


GEMM, ADD, REDUCE = "ampere_sgemm_128x64_nt", "vectorized_elementwise_kernel", "ncclAllReduce"
EXCHANGE = "ncclDevKernel_SendRecv"
US = 1_000
STEPS = range(10, 16)
Row = dict[str, Any]


class Made:
    """A job of four ranks, of which rank 2 may have other kernels and a host that does more.

    A step: a GEMM of 500 us and an addition of 200, on `facts` of kernels, then an all-reduce.
    """

    def __init__(self, **late: Any) -> None:
        self.late = late
        self.tables: defaultdict[str, list[Row]] = defaultdict(list)
        hosts = late.get("hosts", [None] * 4)
        self.tables["processes"] = [
            {"process": rank, "rank": rank, "host": host} for rank, host in enumerate(hosts)
        ]
        self.tables["devices"] = [{"device": rank, "process": rank} for rank in range(4)]
        now, steps, who = US, late.get("steps", STEPS), late.get("who", {2})
        for step in STEPS:
            ready = [self.compute(rank, now, rank in who and step in steps) for rank in range(4)]
            end = max(ready) + 50 * US
            for rank, start in enumerate(ready):
                self.kernel(rank, start - 5 * US, start, late.get("talk", REDUCE), end - start)
                if late.get("pipeline"):
                    self.kernel(rank, end - US, end, EXCHANGE, US, **in_stages(rank))
                self.host("marks", rank, f"ProfilerStep#{step}", now, end)
            now = end + 2 * US
        for row in chain(*(self.tables[name] for name in ("activities", "calls", "marks", "ops"))):
            row["start_ns"] += row["process"] * late.get("apart_ns", 0)

    def host(self, table: str, rank: int, name: str, start: int, end: int, **more: Any) -> None:
        row = {"process": rank, "name": name, "start_ns": start, "dur_ns": end - start}
        self.tables[table].append(row | more)

    def kernel(self, rank: int, launch: int, start: int, name: str, dur: int, **more: Any) -> int:
        number = len(self.tables["calls"])
        self.host("calls", rank, "cudaLaunchKernel", launch, launch + US, correlation=number)
        stream = 20 if name.startswith("nccl") else 7
        facts = {"device": rank, "stream": stream, "correlation": number}
        self.host("activities", rank, name, start, start + dur, **facts, **more)
        return start + dur

    def compute(self, rank: int, now: int, is_late: bool) -> int:
        late = self.late if is_late else {}
        at = now + 2 * US
        for table, name, kind in late.get("pause", ()):
            self.host(table, rank, name, at, at + 300 * US, **({"kind": kind} if kind else {}))
            at += 301 * US if table == "calls" else 0
        at += late.get("pause_us", 0) * US
        facts, factor = late.get("facts", {}), late.get("factor", {})
        dims = late.get("dims", "[[64, 32], [32, 32]]")
        self.host("ops", rank, "aten::mm", at, at + 3 * US, input_dims=dims)
        end = at + 5 * US
        if "tokens" in self.late:
            tokens = {"collective": "all_to_allv", "collective_out_elements": self.late["tokens"]}
            tokens["collective_out_elements"] *= 1.5 if is_late else 1
            self.kernel(rank, at, at + 4 * US, EXCHANGE, US, **tokens)
        for _ in range(late.get("launches", 1)):
            dur = int(500 * US * factor.get(GEMM, 1))
            grid = {"grid": [8, 8, 1], "block": [128, 1, 1]}
            end = self.kernel(rank, at + US, end, GEMM, dur, **grid | facts)
        return self.kernel(rank, at + 4 * US, end, ADD, int(200 * US * factor.get(ADD, 1)))

    def report(self, **asked: Any) -> RankReport:
        return rank_report(prepare(trace_of(**self.tables), Selection(**asked)))

    def slow(self, **asked: Any) -> SlowRank | None:
        return self.report(**asked).slow


def in_stages(rank: int) -> Row:
    """Return the facts of a kernel between two stages of two ranks."""
    ranks = f"[{rank % 2}, {rank % 2 + 2}]"
    return {"collective_group": f"mesh_pp {ranks}", "collective_group_ranks": ranks}


def paused(name: str, cause: str, kind: str = "annotation") -> tuple[Row, str, str]:
    """Return a pause of the host with a mark over it, its cause and label."""
    return {"pause": [("marks", name, kind)], "pause_us": 300}, cause, name


LOADER = "enumerate(DataLoader)#_SingleProcess.__next__"
CAUSES: dict[str, tuple[Row, str, str]] = {
    "clocks": ({"factor": {GEMM: 1.2, ADD: 1.2}}, "slow_clock", ""),
    "one kernel": ({"factor": {GEMM: 1.4}}, "slow_kernel", GEMM),
    "more launches": ({"launches": 2}, "more_work", GEMM),
    "a larger grid": ({"factor": {GEMM: 1.5}, "facts": {"grid": [8, 12, 1]}}, "more_work", GEMM),
    "larger inputs": (
        {"factor": {GEMM: 1.5}, "dims": "[[112, 32], [32, 32]]"},
        "more_work",
        GEMM,
    ),
    "more tokens": ({"factor": {GEMM: 1.5}, "tokens": 1000}, "more_work", GEMM),
    "a loader": paused(LOADER, "data_input"),
    "a checkpoint": paused("torch/serialization.py(850): save", "checkpoint", "python"),
    "a checkpoint's file": paused("pwrite64", "checkpoint", "system"),
    "activation checkpoints": paused(
        "torch/utils/checkpoint.py(230): forward", "host_code", "python"
    ),
    "a collection": paused("<built-in function collect>", "gc_pause", "python"),
    "a log": paused("train.py(20): log", "host_code", "python"),
    "memory": (
        {"pause": [("calls", "cudaFree", ""), ("calls", "cudaMalloc", "")]},
        "memory_pressure",
        "cudaFree",
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_why_a_rank_is_late(name: str) -> None:
    late, cause, label = CAUSES[name]
    slow = Made(**late).slow()
    assert slow is not None
    assert (slow.rank, slow.ranks, slow.sporadic, slow.steps) == (2, (2,), False, ())
    assert (slow.cause, slow.label) == (cause, label)


def test_a_pause_in_few_steps_is_looked_at_there() -> None:
    pause = {"pause": [("marks", "train.py(20): log", "python")], "pause_us": 300}
    slow = Made(**pause, steps=[13]).slow()
    assert slow is not None
    assert (slow.rank, slow.sporadic, slow.steps, slow.cause) == (2, True, (13,), "gc_pause")
    # A cycle has 757 us, and 300 of one of the five are lost.
    assert slow.lost_ns_per_step == 300 * US // 5


@pytest.mark.parametrize("steps", [[13], [11, 12, 13, 14, 15]])
def test_one_delay_is_a_finding_and_not_the_verdict(steps: list[int]) -> None:
    made = Made(pause=[("marks", "train.py(20): log", "python")], pause_us=300, steps=steps)
    analysis = analyze(trace_of(**made.tables))
    (finding,) = (one for one in analysis.losses if one.rule == "late-rank")
    assert "rank 2" in finding.sentence
    lasts = len(steps) > 1
    assert ("rank 2" in analysis.verdict.sentence) == lasts


def test_only_chosen_steps_blame_somebody() -> None:
    late = Made(factor={GEMM: 2, ADD: 2}, steps=[10, 11])
    assert late.slow() is None  # warm-up
    found = late.slow(steps=(10, 12))
    assert found is not None and (found.rank, found.cause) == (2, "slow_clock")
    assert late.slow(steps=(13, 15)) is None
    alone = late.slow(steps=(11, 11))
    assert alone is not None and alone.lost_ns_per_step == 700 * US
    assert alone.sporadic, "one delay is not a rank that is always late"
    said = sentence_of(late.report(steps=(11, 11)))
    assert said.startswith("In step 11 the other ranks waited long for rank 2: ")


def sentence_of(report: RankReport) -> str:
    late = late_rank_fact(report)
    return in_words(late) if late is not None else ""


def test_nobody_is_blamed_where_clocks_cannot_be_compared() -> None:
    late = {"factor": {GEMM: 1.5}, "talk": "ncclDevKernel_Broadcast"}
    blamed = Made(**late).slow()
    assert blamed is not None and blamed.rank == 2
    assert Made(**late, apart_ns=10**9).slow() is None


SLOW = {"factor": {GEMM: 1.2, ADD: 1.2}}
CLOCKS = (
    "All its kernels take 1.20 times as long as on the others. Check clocks, power and temperature "
    "of that GPU; exclude its node from the job."
)
OF_TWO = (
    "All their kernels take 1.20 times as long as on the others. Check clocks, power and "
    "temperature of those GPUs; exclude their nodes from the job."
)
SENTENCES: dict[str, tuple[Row, str]] = {
    "one rank": (SLOW, f"The other ranks wait for rank 2: 140 µs of each step (15.6 %). {CLOCKS}"),
    "a host": (
        SLOW | {"who": {2, 3}, "hosts": ["a", "a", "b", "b"]},
        f"The other ranks wait for ranks 2, 3 (host 2): 140 µs of each step (15.6 %). {OF_TWO}",
    ),
    "two ranks of two hosts": (
        SLOW | {"who": {1, 2}, "hosts": ["a", "a", "b", "b"]},
        f"The other ranks wait for ranks 1, 2: 140 µs of each step (15.6 %). {OF_TWO}",
    ),
    "a pipeline stage": (
        SLOW | {"who": {2, 3}, "pipeline": True},
        "The other ranks wait for ranks 2, 3 (last pipeline stage): 140 µs of each step (15.6 %). "
        f"{OF_TWO}",
    ),
    "one kernel": (
        {"factor": {GEMM: 1.4}},
        "The other ranks wait for rank 2: 200 µs of each step (20.9 %). The kernel "
        f"{GEMM} takes 1.40 times as long as on the others. Compare its inputs and library "
        "versions on that rank.",
    ),
    "one step": (
        {"pause_us": 300, "steps": [13]},
        "In 1 of 5 steps (13) the other ranks waited long for rank 2: 7.3 % of the time. Its host "
        "stops for a while, as garbage collection does. Turn that off with gc.disable(), and "
        "collect on all ranks every N steps.",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_the_finding_says_who_why_and_when(name: str) -> None:
    late, sentence = SENTENCES[name]
    (finding,) = late_rank_findings(Made(**late).report(), frozenset())
    assert f"{finding.sentence} {finding.remedy}" == sentence


def test_what_is_said_of_several_ranks_says_how_far_their_clocks_agree() -> None:
    made = Made(**SLOW)
    talks = [row for row in made.tables["activities"] if row["name"] == REDUCE]
    for row in talks[::3]:  # of the ranks in turn, so that no offset of a clock explains it
        row["dur_ns"] += 6 * US
    report = made.report()
    error = report.alignment.residual_p95_ns
    assert error is not None and 3 * US <= error <= 6 * US
    assert f"%); clocks agree to {error / US:.2f} µs." in sentence_of(report)


def test_more_work_shows_where_the_largest_kernel_has_no_larger_grid() -> None:
    # A sum over more tokens, as of a weight's gradient, is no larger itself.
    time = np.array([[150, 140, 140], [100, 95, 95], [100, 95, 95]])
    threads = np.array([[64, 96, 96], [64, 64, 64], [64, 64, 64]])
    none, ones = np.zeros((3, 3), dtype=np.int64), np.ones((3, 3), dtype=np.int64)
    sums = KernelSums(("wgrad", "fwd", "dgrad"), ones, time, threads, none, none[:, 0])
    assert by_kernels(sums) == ("more_work", "fwd", None)
    assert by_kernels(replace(sums, threads=64 * ones)).cause == "slow_clock"


@pytest.mark.parametrize(("gap_us", "places"), [(45, None), (60, [1])])
def test_a_rank_is_blamed_only_for_more_than_chance(gap_us: int, places: list[int] | None) -> None:
    """Ten steps of two ranks, one later by 45 or 60 us with 40 more or less: t = 3.4 and 4.5.

    A tail of 0.4 % for either of both ranks begins at 3.8.
    """
    own_us = [[1_000, 1_000 + gap_us + noise] for noise in (40, -40) * 5]
    length = np.full(10, 2_000_000)
    held = length[:, None] - 1_000 * np.array(own_us)
    each = np.full(0, -1)
    late = late_ranks(Cycles(tuple(range(10)), length, held, held, 0 * held, each, is_joint=True))
    assert (None if late is None else late.places.tolist()) == places


@pytest.mark.parametrize(("others_ns", "longer"), [((50, 60), True), ((50, 120), False)])
def test_a_name_tells_why_a_rank_is_late_only_if_it_takes_longer_there(
    others_ns: tuple[int, ...], *, longer: bool
) -> None:
    marks = [
        {"name": "forward", "kind": "annotation", "process": at, "start_ns": 9, "dur_ns": dur_ns}
        for at, dur_ns in enumerate((100, *others_ns))
    ]
    trace = trace_of(marks=marks, processes=[{"process": at} for at in range(3)])
    assert takes_longer(trace, "forward in train", range(3)) == longer
    assert takes_longer(trace, "not recorded", range(3))
