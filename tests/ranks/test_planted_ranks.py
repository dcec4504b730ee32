"""What ranks wait and which one is to blame, as the simulator knows it, in random jobs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from msgspec.structs import replace

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.nsight.formats import WRITERS as NSIGHT
from sample_traces.nsight.session import NsightOptions
from sample_traces.parallel import all_groups
from sample_traces.records import RankRun, Run
from sample_traces.rocprof.formats import WRITERS as ROCPROF
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from sample_traces.truth import planted, waits_of
from tests.conftest import by_night
from traceflops import read
from traceflops.analysis.preparation import prepare
from traceflops.findings.late_rank import late_rank_findings
from traceflops.ranks.who_waits import RankReport, rank_report
from traceflops.windows.selection import Selection

Write = Callable[[Run, Path], object]
_PYTORCH = KinetoOptions(python_functions=True, compression="none", flows=False)
WAYS: Final[Mapping[str, Write]] = {
    "pytorch": partial(write_pytorch, options=_PYTORCH),
    "nsys": lambda run, to: NSIGHT["nsys 2026"](run, to, NsightOptions(ops=True, markers="all")),
    "rocprof": lambda run, to: ROCPROF["v3 csv"](run, to, RocprofOptions(markers="all")),
}
DRIFT_PPB: Final = 20_000


def report_of(run: Run, way: str) -> RankReport:
    return report_with(run, WAYS[way])


def report_with(run: Run, write: Write) -> RankReport:
    with TemporaryDirectory() as folder:
        write(run, Path(folder))
        return rank_report(prepare(read(folder), Selection()))


Pair = tuple[int, int]
UNMATCHED: Final = (-1, -1)


def planted_waits(run: Run) -> list[list[Pair]]:
    """Return the wait and transfer of all collectives of each rank, in the order of its starts.

    Ranks that have no recording are nobody's last.
    """
    recorded = {(rank.rank, one.correlation) for rank in run.ranks for one in rank.activities}
    here = {rank.rank for rank in run.ranks}
    found: defaultdict[int, list[tuple[int, Pair]]] = defaultdict(list)
    for meeting in run.meetings:
        present = tuple(one for one in meeting.present if one.rank in here)
        waits = waits_of(replace(meeting, present=present))
        for one in present:
            key = one.rank, one.correlation
            pair = (waits[key].wait_ns, waits[key].transfer_ns)
            if key in recorded:
                known = waits.keys() <= recorded
                found[one.rank].append((one.start_ns, pair if known else UNMATCHED))
    return [[pair for _, pair in sorted(found[rank])] for rank in sorted(found)]


def found_waits(report: RankReport) -> list[list[Pair]]:
    """Return the same as it is reported."""
    waits = [UNMATCHED] * len(report.records)
    found = report.waits
    rows = zip(found.row.tolist(), found.wait_ns.tolist(), found.transfer_ns.tolist(), strict=True)
    for row, *pair in rows:
        waits[row] = (pair[0], pair[1])
    of_rank: defaultdict[int, list[tuple[int, Pair]]] = defaultdict(list)
    starts = report.records.start_ns.tolist()
    for place, *one in zip(report.records.place.tolist(), starts, waits, strict=True):
        of_rank[place].append((one[0], one[1]))
    return [[pair for _, pair in sorted(of_rank[place])] for place in sorted(of_rank)]


_BATCH: Final = 4


_PLANTS: Final = {
    "host_code": "python",
    "gc_pause": "collector",
    "checkpoint": "checkpoint",
    "memory_pressure": "allocate",
}
_OF_PYTHON: Final = frozenset({"host_code", "gc_pause", "checkpoint"})
"""Causes that only a recording with Python's stacks tells apart."""


def _plant(name: str, random: Random, steps: int) -> dict[str, Any]:
    return {"plants": (name,) * steps, "plant_ns": random.randint(300_000, 900_000)}


CAUSES: Final[Mapping[str, Callable[[Random, int], dict[str, Any]]]] = {
    "healthy": lambda random, steps: {},
    "more_work": lambda random, steps: random.choice(
        [{"batch": _BATCH + random.randint(1, 2)}, {"sequence": 1_280, "positions": 1_024}]
    ),
    "data_input": lambda random, steps: {
        "data_stall_steps": tuple(range(steps)),
        "data_stall_ns": random.randint(1_500_000, 4_000_000),
    },
    **{cause: partial(_plant, plant) for cause, plant in _PLANTS.items()},
}
"""By cause, what is otherwise on the slow rank."""


def random_run(seed: int, way: str) -> Run:
    """Return a job of a few ranks: one of them maybe slow, clocks seldom right."""
    random = Random(seed)
    is_lossy = random.random() < 0.4
    ranks, steps = random.randint(3, 5), random.randint(4, 6)
    slow, cause = random.randrange(ranks), random.choice(["slow_clock", "healthy", *CAUSES])
    # Only PyTorch tells groups apart; ranks that share a tensor have the same tokens.
    pairs = ranks == 4 and way == "pytorch" and cause != "more_work"
    own: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for rank in range(ranks):
        own[rank]["clock_offset_ns"] = random.choice([0, 900, 50_000_000])
        own[rank]["clock_drift_ppb"] = random.choice([0, 0, DRIFT_PPB])
    own[random.randrange(ranks)]["unrecorded"] = (4,) if is_lossy else ()
    own[slow] |= CAUSES[cause](random, steps) if cause in CAUSES else {}
    of_machine = on_mi300x if way == "rocprof" else RunConfig
    config = of_machine(
        seed=seed,
        ranks=ranks,
        steps=steps,
        batch=_BATCH,
        layers=random.randint(1, 2),
        gradient_buckets=random.randint(2, 4),
        overlap=random.random() < 0.5,
        tensor_ranks=2 if pairs else 1,
        expert_ranks=ranks if random.random() < 0.2 and not pairs else 1,
        exit_jitter_ns=random.choice([300, 1_000, 4_000]),
        jitter_permille=random.choice([0, 5]),
        straggler_rank=slow if cause == "slow_clock" else None,
        straggler_percent=random.randint(108, 140),
        on_rank=own,
    )
    return simulate(config)


def worst_error(run: Run, report: RankReport) -> int:
    """Return by how much a wait or transfer is off at most."""
    return max(
        abs(known - found)
        for of_rank, found_of in zip(planted_waits(run), found_waits(report), strict=True)
        for pair, found_pair in zip(of_rank, found_of, strict=True)
        for known, found in zip(pair, found_pair, strict=True)
    )


def planted_as(run: Run, way: str) -> tuple[int, str] | None:
    """Return the slow rank and why, as far as a way of recording tells."""
    known = planted(run.config)
    if known and known[1] in _OF_PYTHON and way != "pytorch":
        return known[0], "host_unrecorded"
    return known


def outcome(seed: int, way: str) -> tuple[float, str, bool]:
    """Return the worst error in residuals, the planted cause, and whether that is what is named."""
    run = random_run(seed, way)
    report = report_of(run, way)
    error = worst_error(run, report) / (report.alignment.residual_p95_ns or 1)
    known = planted_as(run, way)
    return error, known[1] if known else "healthy", named(report) == known


def named(report: RankReport) -> tuple[int, str] | None:
    """Return the rank that is blamed, and why."""
    return (report.slow.rank, report.slow.cause) if report.slow else None


def healthy_pipeline(seed: int, way: str) -> Run:
    """Return a job of four to eight stages, maybe beside tensors and data in parallel."""
    random = Random(seed)
    stages, tensor, data = random.randint(4, 8), random.choice([1, 1, 2]), random.choice([1, 1, 2])
    of_machine = on_mi300x if way == "rocprof" else RunConfig
    return simulate(
        of_machine(
            seed=seed,
            ranks=stages * tensor * data,
            stages=stages,
            tensor_ranks=tensor,
            microbatches=random.randint(2, 6),
            steps=random.randint(3, 5),
            layers=1,
            hidden=random.choice([256, 1024]),
            batch=random.choice([1, 4]),
            gradient_buckets=2,
            exit_jitter_ns=random.choice([0, 300, 1000]),
            jitter_permille=random.choice([0, 5]),
            overlap=random.random() < 0.5,
        )
    )


@by_night()
def test_of_many_healthy_pipelines_nearly_none_blames_anybody() -> None:
    ways = [list(WAYS)[seed % len(WAYS)] for seed in range(100)]
    blamed = [report_of(healthy_pipeline(*one), one[1]).slow for one in enumerate(ways)]
    assert sum(one is not None for one in blamed) <= 2


@pytest.mark.parametrize("seed", range(0, 200, 50))
def test_waits_and_culprits_are_those_of_the_simulator(seed: int) -> None:
    error, cause, named = outcome(seed, list(WAYS)[seed % len(WAYS)])
    assert error <= 2
    assert named, cause


@by_night()
def test_of_many_random_jobs_nearly_all_are_right() -> None:
    errors, causes = [], defaultdict[bool, list[bool]](list)
    for seed in range(200):
        error, cause, named = outcome(seed, list(WAYS)[seed % len(WAYS)])
        errors.append(error)
        causes[cause == "healthy"].append(named)
    # One in twenty ends is farther off than the residual says; a job has some hundred of them.
    assert sum(error <= 2 for error in errors) >= 0.99 * len(errors)
    assert max(errors) <= 3
    assert sum(causes[False]) >= 0.95 * len(causes[False])
    assert sum(causes[True]) >= 0.98 * len(causes[True])


_SMALL: Final[dict[str, Any]] = {
    "ranks": 4,
    "steps": 4,
    "layers": 1,
    "hidden": 256,
    "gradient_buckets": 2,
}


def test_what_a_late_rank_costs_is_what_the_job_is_shorter_without_it() -> None:
    job = RunConfig(**_SMALL | {"hidden": 2_048, "batch": 2, "gradient_buckets": 5})
    late, even = (
        report_of(simulate(replace(job, straggler_rank=2, straggler_percent=percent)), "pytorch")
        for percent in (115, 100)
    )
    assert late.slow is not None
    shorter = (late.cycles.length_ns.sum() - even.cycles.length_ns.sum()) / late.cycles.count
    assert late.slow.lost_ns_per_step == pytest.approx(shorter, rel=0.05)


def test_what_a_late_rank_costs_is_a_share_of_the_one_step_that_was_recorded() -> None:
    big = {"hidden": 2_048, "batch": 2, "gradient_buckets": 5, "steps": 1}
    job = RunConfig(**_SMALL | big)
    late = simulate(replace(job, straggler_rank=2, straggler_percent=115))
    (finding,) = late_rank_findings(report_of(late, "pytorch"), frozenset())
    took, even_ns = (
        max(one.end_ns for rank in run.ranks for one in rank.activities)
        for run in (late, simulate(job))
    )
    assert finding.share == pytest.approx((took - even_ns) / took, rel=0.15)


_GROUPS: Final[Mapping[str, Any]] = {"ranks": 8, "vocab": 4096, "sync_each_step": True}
_ONE_STEP: Final = {**_GROUPS} | {"steps": 1, "noise_permille": 50, "exit_jitter_ns": 3_000}
_ONE_CYCLE: Final = {**_GROUPS} | {"steps": 2, "overlap": False, "noise_permille": 300, "layers": 4}


@pytest.mark.parametrize(
    "settings",
    [
        _ONE_STEP | {"seed": 900, "tensor_ranks": 4, "layers": 1, "jitter_permille": 30},
        _ONE_STEP | {"seed": 921, "tensor_ranks": 2, "layers": 4},
        _ONE_CYCLE | {"seed": 980, "tensor_ranks": 2, "hidden": 512, "jitter_permille": 10},
    ],
)
def test_one_step_of_several_groups_blames_no_other_rank(settings: Mapping[str, Any]) -> None:
    slow = {900: (3, 130), 921: (5, 130), 980: (2, 115)}[settings["seed"]]
    host = {} if settings["steps"] > 1 else {"host_op_ns": 1_000}
    late = {"straggler_rank": slow[0], "straggler_percent": slow[1]}
    report = report_of(simulate(RunConfig(**{**settings, **host, **late})), "pytorch")
    assert report.slow is None or report.slow.ranks == slow[:1]


def test_clocks_of_ranks_that_meet_in_pairs_only() -> None:
    offsets = (0, 50_000_000, 900, 25_000_000)
    own = {rank: {"clock_offset_ns": ns} for rank, ns in enumerate(offsets)}
    run = simulate(RunConfig(**_SMALL, tensor_ranks=2, on_rank=own))
    report = report_of(run, "pytorch")
    middle = sum(offsets) // 4
    assert report.alignment.offset_ns.tolist() == [ns - middle for ns in offsets]
    assert worst_error(run, report) == 0


def test_clocks_far_apart_where_nothing_names_collectives() -> None:
    own = {rank: {"clock_offset_ns": ns} for rank, ns in enumerate((0, 50_000_000, 900))}
    job = on_mi300x(**_SMALL | _WORK, straggler_rank=2, straggler_percent=130, on_rank=own)
    of_own_clocks = report_with(
        simulate(replace(job, on_rank={})),
        lambda run, to: ROCPROF["v1 csv"](run, to, RocprofOptions()),
    )
    assert named(of_own_clocks) == (2, "slow_clock")
    drifts = replace(job, on_rank=own | {3: {"clock_drift_ppb": DRIFT_PPB}})
    for run in (simulate(job), simulate(drifts)):
        report = report_with(run, lambda run, to: ROCPROF["v3 csv"](run, to, RocprofOptions()))
        assert set(report.records.kind.tolist()) == {-1}
        assert worst_error(run, report) <= 2 * (report.alignment.residual_p95_ns or 0) < 1_000
        assert named(report) == (2, "slow_clock")


MORE_WAYS: Final[Mapping[str, Write]] = {
    **WAYS,
    "nsys with sizes": lambda run, to: NSIGHT["nsys 2026"](
        run, to, NsightOptions(markers="all", nccl="payloads")
    ),
    "rocpd": lambda run, to: ROCPROF["rocpd 3.0.3"](
        run, to, RocprofOptions(markers="all", collectives=True)
    ),
}


def without_rank(run: Run) -> Run:
    return replace(run, ranks=tuple(one for one in run.ranks if one.rank != 2))


def cut_off(run: Run) -> Run:
    def half(rank: RankRun) -> RankRun:
        return replace(rank, activities=rank.activities[: len(rank.activities) // 2])

    return replace(run, ranks=tuple(half(one) if one.rank == 2 else one for one in run.ranks))


@dataclass(frozen=True)
class Plant:
    """What is planted, what of it is recorded, and the ways that are tried by day."""

    settings: Mapping[str, Any]
    recorded: Callable[[Run], Run] = lambda run: run
    by_day: tuple[str, ...] = ("pytorch",)
    ways: tuple[str, ...] = tuple(MORE_WAYS)
    """Those that tell what the simulator knows."""
    judged: Callable[[Run], Run] = lambda run: run
    """What of it takes part: not a rank of which launches have no records."""


def _on(rank: int, **settings: Any) -> dict[str, Any]:
    return {"on_rank": {rank: settings}}


_WORK: Final = {"hidden": 1_024, "exit_jitter_ns": 300, "jitter_permille": 5}
_FEW: Final = {"steps": 3}
_STAGES: Final = {"stages": 4, "microbatches": 3, "hidden": 1_024}
_OFF: Final = {"exit_jitter_ns": 300, "clock_skew_ns": 900}
PLANTS: Final[Mapping[str, Plant]] = {
    "pipeline of 2": Plant({"ranks": 2, "stages": 2, "microbatches": 4}, by_day=("rocprof",)),
    "pipeline of 4": Plant(_FEW | {"stages": 4, "microbatches": 4}, by_day=("nsys",)),
    "host of a pipeline": Plant({"stages": 4, "microbatches": 3, "batch": 1}),
    "slow stage": Plant(_STAGES | {"straggler_rank": 2, "straggler_percent": 125}, by_day=()),
    "loader of a stage": Plant(
        _STAGES | {"hidden": 256} | _on(1, data_stall_steps=(0, 1, 2, 3), data_stall_ns=3_000_000)
    ),
    "pipelines in step": Plant(
        _FEW | {"ranks": 8, "stages": 4, "microbatches": 2}, by_day=("rocprof",)
    ),
    "pipelines of tensors": Plant(
        _WORK | _FEW | {"ranks": 8, "stages": 2, "tensor_ranks": 2, "microbatches": 2},
        by_day=("nsys",),
    ),
    "tensors in pairs": Plant(
        {"tensor_ranks": 2, "hidden": 1_024, "straggler_rank": 2, "straggler_percent": 130},
        by_day=("nsys",),
    ),
    "overlapping": Plant(_WORK | {"tensor_ranks": 2, "link_percent": 15}, ways=("pytorch",)),
    "slow link": Plant(
        {"tensor_ranks": 2, "hidden": 1_024, "slow_group": "3", "slow_group_percent": 300},
        by_day=("nsys with sizes",),
        ways=("pytorch", "nsys with sizes", "rocpd"),
    ),
    "slow clock": Plant(_WORK | {"straggler_rank": 1, "straggler_percent": 130}, by_day=()),
    "loader": Plant(_OFF | _on(1, data_stall_steps=(0, 1, 2, 3), data_stall_ns=3_000_000)),
    "collector": Plant(_OFF | _on(3, plants=("collector",) * 4, plant_ns=900_000)),
    "uneven experts": Plant(_WORK | {"expert_ranks": 4} | _on(2, expert_percent=300)),
    "uneven sequences": Plant(_WORK | _on(1, sequence=1_280, positions=1_024)),
    "missing collective": Plant(_WORK | _on(1, unrecorded=(4,))),
    "extra collective": Plant(_WORK | {"on_rank": {r: {"unrecorded": (4,)} for r in (0, 1, 3)}}),
    "truncated rank": Plant(_WORK, cut_off, ways=("pytorch", "nsys", "nsys with sizes")),
    "rank without records": Plant(
        _WORK, cut_off, ("rocprof",), ways=("rocprof", "rocpd"), judged=without_rank
    ),
    "missing rank": Plant(_WORK, without_rank),
}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=() if way in plant.by_day else by_night())
        for name, plant in PLANTS.items()
        for way in plant.ways
    ],
)
def test_what_is_planted_is_found(name: str, way: str) -> None:
    plant, make = PLANTS[name], on_mi300x if way.startswith("roc") else RunConfig
    run = plant.recorded(simulate(make(**{**_SMALL, **plant.settings})))
    report = report_with(run, MORE_WAYS[way])
    run = plant.judged(run)
    known = [pair for of_rank in planted_waits(run) for pair in of_rank]
    assert report.unmatched == known.count(UNMATCHED)
    assert worst_error(run, report) <= 2 * (report.alignment.residual_p95_ns or 0)
    slow = {rate.members for rate in report.rates() if rate.slow}
    assert slow == {
        one.ranks for one in all_groups(run.config) if one.name == run.config.slow_group
    }
    assert report.partial == (len(run.ranks) < run.config.ranks) or way != "pytorch"
    assert named(report) == planted_as(run, way)
    found = report.pipeline.ranks if report.pipeline else ()
    error = 2 * run.config.steps * run.config.microbatches * run.config.exit_jitter_ns
    for stage, bubbles in zip(found, planted_bubbles(run), strict=True):
        assert (stage.warm_up_ns, stage.steady_ns, stage.drain_ns) == pytest.approx(
            bubbles, abs=error
        )
    if report.pipeline is not None:
        assert report.pipeline.micro_batches == run.config.microbatches


def planted_bubbles(run: Run) -> list[tuple[int, ...]]:
    """Return warm-up, steady and drain of each stage of each pipeline, over all steps."""
    chains = [one.ranks for one in all_groups(run.config) if one.description == "mesh_pp"]
    if run.config.stages == run.config.ranks > 1:
        chains = [tuple(range(run.config.ranks))]
    return [bubbles for chain in chains for bubbles in _bubbles_of(run, chain)]


def _bubbles_of(run: Run, chain: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    work = {
        rank: [one for one in run.ranks[rank].activities if one.component != "communication"]
        for rank in chain
    }
    moves, ends = defaultdict[int, list[Pair]](list), defaultdict[Pair, list[int]](list)
    for meeting in run.meetings:
        last_ns = max(one.start_ns for one in meeting.present)
        for one in meeting.present:
            moves[one.rank].append((last_ns, one.end_ns))
            if meeting.name in ("send", "recv") and meeting.step is not None:
                ends[one.rank, meeting.step].append(one.end_ns)
    for at, rank in enumerate(chain):
        busy = [*((one.start_ns, one.end_ns) for one in work[rank]), *moves[rank]]
        sums = [0, 0, 0]
        for step in run.config.step_numbers:
            start = min(one.start_ns for one in work[chain[0]] if one.step == step)
            stop = max(one.end_ns for of in chain for one in work[of] if one.step == step)
            mine = ends[rank, step]
            borders = [start, min(mine) if at else start, max(mine), stop]
            for part, (low, high) in enumerate(pairwise(borders)):
                sums[part] += high - low - _covered(busy, low, high)
        yield tuple(sums)


def _covered(spans: Iterable[Pair], low: int, high: int) -> int:
    """Return how much of a stretch some spans cover."""
    covered = 0
    for start, end in sorted(spans):
        start, end = max(start, low), min(end, high)
        covered, low = covered + max(end - start, 0), max(low, end)
    return covered


_IN_SUITE: Final = {"nsys 2020", "nsys 2023 together", "stats", "v2 csv", "v3 json", "v3 csv"}
_FORMATS: Final = [
    pytest.param(writers, name, options, marks=() if name in _IN_SUITE else by_night(), id=name)
    for writers, options in (
        (NSIGHT, NsightOptions(markers="all")),
        (ROCPROF, RocprofOptions(markers="all")),
    )
    for name in writers
]


@pytest.mark.parametrize(("writers", "name", "options"), _FORMATS)
def test_other_formats_say_the_same(writers: Any, name: str, options: Any) -> None:
    slow = {"hidden": 1_024, "straggler_rank": 2, "straggler_percent": 130, "exit_jitter_ns": 300}
    make = on_mi300x if writers is ROCPROF else RunConfig
    run = simulate(make(**_SMALL | slow))
    report = report_with(run, partial(writers[name], options=options))
    assert (report.matches.count, report.unmatched) == (len(run.meetings), 0)
    assert worst_error(run, report) <= 2 * (report.alignment.residual_p95_ns or 0)
    assert report.slow is not None
    assert (report.slow.rank, report.slow.cause) == (2, "slow_clock")
