"""Planted bottlenecks and healthy runs: what is planted, how it is repaired, what must be found.

Everything is drawn from seeds, so that others can be tried that nobody has seen. A repaired run has
the same draws (`steady_draws`): the difference is exactly what the repair gains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import traceflops as tf
from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_options import KinetoOptions
from sample_traces.nsight.formats import WRITERS as NSIGHT
from sample_traces.nsight.options import NsightOptions
from sample_traces.plants import REPAIRED
from sample_traces.records import RankRun, Run
from sample_traces.rocprof.formats import WRITERS as ROCPROF
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from tests.conftest import ROOT
from traceflops.findings.finding import Finding, Gain
from traceflops.windows import Selection, parse_steps

Settings = Mapping[str, Any]
Draw = Callable[[Random, RunConfig], Settings]
STEPS: Final = 6
SEEDS, HEALTHY = 3, 48
"""So many of each fault, and healthy runs."""
LEAST_GAIN: Final = 0.10
"""Share of a step that the repair of a bottleneck gains at least."""
ROUNDING: Final = 0.005
"""Share of a step by which a gain may miss the truth: calls that cost next to nothing."""
_TRIES: Final = 40
_MOST_LOST: Final = 0.06
"""Share of its time that the GPU of a healthy run is idle or only communicates."""
_ROWS: Final = re.compile(r"(?m)^\| (`[^|]+) \|")
_PAGE: Final = ROOT / "docs" / "findings.md"
_OUTSIDE: Final = {"unrecorded", "held", "thread_handover"}
"""Plants in calls that a profiler does not show or the user cannot change."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of bottleneck: how it is planted and repaired, the rules that name it, and where.

    `base` are settings that it needs, in the repaired run, too. `tools` tell it from others. Where
    it `keeps_busy`, the host is fast enough for it.
    """

    plant: Draw
    repair: Settings
    rules: tuple[str, ...]
    base: Settings = field(default_factory=dict)
    tools: tuple[str, ...] = ("pytorch", "nsys", "rocprof")
    needs_many: bool = False
    keeps_busy: bool = False


def _of_hosts(*names: str) -> Draw:
    """Return what draws a plant that wastes time in each step."""

    def draw(random: Random, base: RunConfig) -> Settings:
        return {
            "plants": (random.choice(names),) * base.steps,
            "plant_ns": random.randint(20, 60) * _step_ns(base) // 100,
        }

    return draw


def _percent(name: str, low: int, high: int, **more: Any) -> Draw:
    return lambda random, base: {name: random.randint(low, high), **more}


def _with(**settings: Any) -> Draw:
    return lambda random, base: settings


def _stalls(random: Random, base: RunConfig) -> Settings:
    length = random.randint(90, 200) * _step_ns(base) // 100  # the host is ahead by a step
    return {"data_stall_steps": tuple(base.step_numbers), "data_stall_ns": length}


def _slow_rank(random: Random, base: RunConfig) -> Settings:
    rank = random.randrange(base.ranks)
    return {"straggler_rank": rank, "straggler_percent": random.randint(130, 190)}


def _rank_with_stalls(random: Random, base: RunConfig) -> Settings:
    return {"on_rank": {random.randrange(base.ranks): _stalls(random, base)}}


def _misaligned(random: Random, base: RunConfig) -> Settings:
    odd = {"vocab": base.vocab * random.randint(2, 4) - random.choice([1, 3, 7])}
    return {**odd, "misaligned_percent": random.randint(20, 40)}


def _throttled(random: Random, base: RunConfig) -> Settings:
    first = random.randint(1, base.steps // 2)
    slow = random.randint(130, 170)
    return {"throttled_steps": tuple(base.step_numbers[first:]), "throttled_percent": slow}


def _sporadic(random: Random, base: RunConfig) -> Settings:
    step = random.choice(base.step_numbers[1:-1])
    return {"data_stall_steps": (step,), "data_stall_ns": random.randint(2, 4) * _step_ns(base)}


def _heavy_expert(random: Random, base: RunConfig) -> Settings:
    return {"on_rank": {random.randrange(base.ranks): {"expert_percent": random.randint(600, 900)}}}


_TORCH: Final = ("pytorch",)
_NOTHING: Final = {"plant_ns": 1_000}
_CALLS: Final = ("blocking_copy", "pageable_copy")
_MEMORY: Final = ("allocate", "free")
_SLOW_MEMORY: Final = ("norm", "elementwise", "softmax")
_FP32: Final = {"dtype": "fp32", "fp32_permille": 68}
FAULTS: Final[Mapping[str, Fault]] = {
    "loader": Fault(_stalls, {"data_stall_ns": 1}, ("data-input",), tools=("pytorch", "nsys")),
    "slow operators": Fault(
        _percent("host_op_ns", 30_000, 60_000),
        {"host_op_ns": 4_000},
        ("eager-overhead",),
        tools=("pytorch", "nsys"),
    ),
    "waits": Fault(
        _of_hosts("read_back", "device_sync", "event_sync"),
        {"plants": (REPAIRED,) * STEPS},
        ("sync-call", "blocking-copy"),
        tools=("pytorch", "nsys"),
    ),
    "blocking copies": Fault(_of_hosts(*_CALLS), _NOTHING, ("blocking-copy",)),
    "allocation": Fault(_of_hosts(*_MEMORY), _NOTHING, ("memory-alloc",)),
    "slow functions": Fault(
        _of_hosts("python", "collector", "checkpoint", "long_op"),
        _NOTHING,
        ("host-code",),
        tools=_TORCH,
    ),
    "queue": Fault(_of_hosts("queue"), _NOTHING, ("external-wait", "host-code"), tools=_TORCH),
    "guards": Fault(_of_hosts("cache_lookup"), _NOTHING, ("compiled-runtime",), tools=_TORCH),
    "slow optimizer": Fault(_of_hosts("optimizer"), _NOTHING, ("optimizer-loop",), tools=_TORCH),
    "slow rank": Fault(_slow_rank, {"straggler_percent": 100}, ("late-rank",), needs_many=True),
    "rank with slow loader": Fault(
        _rank_with_stalls, {"on_rank": {}}, ("late-rank",), tools=_TORCH, needs_many=True
    ),
    "no overlap": Fault(
        _percent("link_bytes_per_s", 20_000_000_000, 60_000_000_000, overlap=False),
        {"overlap": True},
        ("exposed-communication",),
        needs_many=True,
    ),
    "slow link": Fault(
        _percent("slow_group_percent", 500, 900, slow_group="1", ranks=4, tensor_ranks=2),
        {"slow_group_percent": 100},
        ("slow-link",),
        base={"ranks": 4, "tensor_ranks": 2},
        tools=_TORCH,
        needs_many=True,
    ),
    "slow products": Fault(
        _percent("gemm_percent", 12, 25), {"gemm_percent": 62}, ("matrix-rate",), tools=_TORCH
    ),
    "slow memory kernels": Fault(
        lambda random, base: {
            "slow_category": random.choice(_SLOW_MEMORY),
            "slow_category_percent": random.randint(400, 1_200),
        },
        {"slow_category_percent": 100},
        ("memory-bandwidth", "norm-bandwidth", "softmax-bandwidth"),
        tools=_TORCH,
    ),
    "misaligned sizes": Fault(
        _misaligned, {"misaligned_percent": 100}, ("misaligned-product",), tools=_TORCH
    ),
    "products in fp32": Fault(
        _with(**_FP32), {"tf32": True}, ("tf32-off", "single-precision"), tools=_TORCH
    ),
    "unfused attention": Fault(
        _with(eager=("attention",)), {"eager": ()}, ("unfused-attention",), tools=_TORCH
    ),
    "unfused optimizer": Fault(
        _with(eager=("optimizer",)),
        {"eager": ()},
        ("unfused-optimizer", "optimizer-loop"),
        tools=_TORCH,
    ),
    "GELU by hand": Fault(
        _with(eager=("gelu",)), {"eager": ()}, ("fusable-kernels",), tools=_TORCH, keeps_busy=True
    ),
    "checkpointing": Fault(
        _with(eager=("checkpoint",)), {"eager": ()}, ("recompute",), tools=_TORCH
    ),
    "copies of layout": Fault(
        _with(eager=("layout",)),
        {"eager": ()},
        ("layout-copies",),
        base={"hidden": 512, "heads": 8, "layers": 4, "batch": 8, "vocab": 4_096},
        tools=_TORCH,
        keeps_busy=True,
    ),
    "recompilation": Fault(_of_hosts("recompile"), _NOTHING, ("recompilation",), tools=_TORCH),
    "allocator churn": Fault(_of_hosts("churn"), _NOTHING, ("memory-alloc",), tools=_TORCH),
    "falling clock": Fault(_throttled, {"throttled_percent": 100}, ("clocks",), tools=_TORCH),
    "sporadic stalls": Fault(
        _sporadic, {"data_stall_ns": 1}, ("data-input", "uneven-steps"), tools=_TORCH
    ),
    "gaps of decoding": Fault(
        lambda random, base: {"pass_gap_ns": random.randint(30, 80) * _step_ns(base) // 100},
        {"pass_gap_ns": 0},
        ("host-code", "between-passes"),
        base={
            "engine": "vLLM",
            "passes": ("decode",),
            "sync_each_step": True,
            "hidden": 4_096,
            "heads": 32,
        },
        tools=_TORCH,
    ),
    "heavy expert": Fault(
        _heavy_expert,
        {"on_rank": {}},
        ("expert-imbalance",),
        base={"ranks": 4, "expert_ranks": 4},
        tools=_TORCH,
        needs_many=True,
    ),
    "pipeline bubbles": Fault(
        _with(microbatches=1, batch=8),
        {"microbatches": 4, "batch": 2},
        ("pipeline-bubble",),
        base={"ranks": 2, "stages": 2},
        tools=_TORCH,
        needs_many=True,
    ),
}
PAIRS: Final = (
    ("slow products", "loader"),
    ("slow memory kernels", "slow products"),
    ("slow products", "slow functions"),
    ("slow rank", "loader"),
    ("no overlap", "slow products"),
    ("slow operators", "slow rank"),
    ("slow memory kernels", "waits"),
    ("slow rank", "blocking copies"),
    ("no overlap", "allocation"),
    ("no overlap", "loader"),
    ("unfused attention", "loader"),
    ("misaligned sizes", "unfused optimizer"),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run with faults, how each of these alone is repaired, and the tool that records it."""

    name: str
    tool: str
    planted: RunConfig
    repaired: Mapping[str, RunConfig]


@dataclass(frozen=True, slots=True)
class Score:
    """What is found of a fault: the step, the true gain, the finding of its rules, and if first.

    A fault of which no rule is in the product has no finding, and `skipped` says so.
    """

    scenario: Scenario
    fault: str
    step_ns: float
    gained_ns: float
    finding: Finding | None
    first: str
    is_largest: bool

    @property
    def is_missed(self) -> bool:
        """Return whether another finding is the first, which counts for the largest fault."""
        return self.first not in FAULTS[self.fault].rules

    @property
    def gain(self) -> Gain | None:
        """Return the gain of the finding."""
        return None if self.finding is None else self.finding.gain

    @property
    def is_held(self) -> bool:
        """Return whether the interval holds the true gain; a refusal does not."""
        gain, slack = self.gain, ROUNDING * self.step_ns
        return gain is not None and (gain.low_ns - slack <= self.gained_ns <= gain.high_ns + slack)

    @property
    def width(self) -> float | None:
        """Return the width of the interval as a share of the step, None without one."""
        gain = self.gain
        return None if gain is None else (gain.high_ns - gain.low_ns) / self.step_ns


@cache
def known_rules() -> frozenset[str]:
    """Return the rules of the product: those with a row of their own on their page."""
    text = _PAGE.read_text(encoding="utf-8").split("<!-- scoreboard -->")[0]
    return frozenset(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", "".join(_ROWS.findall(text))))


def is_known(fault: str) -> bool:
    """Return whether the rule that the fault is planted for is in the product."""
    return FAULTS[fault].rules[0] in known_rules()


def _step_ns(config: RunConfig) -> int:
    """Return how long a step takes."""
    (first, *_) = _simulated(config).ranks
    begun = {step: one.start_ns for one in reversed(first.activities) if (step := one.step)}
    return (max(one.end_ns for one in first.activities) - begun[1]) // (config.steps - 1)


@cache
def _simulated(config: RunConfig) -> Run:
    return simulate(config)


def _is_healthy(config: RunConfig) -> bool:
    return all(_lost(one) < _MOST_LOST for one in _simulated(config).ranks)


def _lost(rank: RankRun) -> float:
    """Return the share of its time in which a GPU is idle or only communicates."""
    first = min(one.start_ns for one in rank.activities if one.step is not None)
    worked_ns, ended_ns = 0, first
    for one in rank.activities:
        if not one.collective:
            worked_ns += max(one.end_ns - max(one.start_ns, ended_ns), 0)
            ended_ns = max(ended_ns, one.end_ns)
    return 1 - worked_ns / (ended_ns - first)


def base_of(random: Random, tool: str, needs: Settings, ranks: tuple[int, ...]) -> RunConfig:
    """Return a healthy run of some model and size."""
    for _ in range(_TRIES):
        hidden = random.choice([512, 768, 1_024, 1_536, 2_048])
        count = random.choice(ranks)
        settings: dict[str, Any] = {
            "seed": random.randrange(10**6),
            "steps": STEPS,
            "steady_draws": True,
            "ranks": count,
            "layers": random.randint(1, 6 if count == 1 else 2),
            "hidden": hidden,
            "heads": hidden // 64,
            "sequence": random.choice([512, 1_024, 2_048]),
            "batch": random.choice([2, 4, 8]),
            "vocab": random.choice([4_096, 8_192, 16_384]),
            "launch_limit": random.choice([None, 1_024]),
            "lead_in": random.random() < 0.3,
            "contention_percent": random.choice([100, 100, 115]),
            **needs,
        }
        config = (on_mi300x if tool == "rocprof" else RunConfig)(**settings)
        if config.engine or config.tensor_ranks * config.expert_ranks * config.stages > 1:
            return config
        if _is_healthy(config):
            return config
    raise ValueError(f"no healthy run with {needs}")


def scenario(seed: int, *faults: str) -> Scenario:
    """Return a run with these faults, each of which costs enough."""
    random, kinds = Random(f"{seed}:{faults}"), [FAULTS[one] for one in faults]
    tools = [t for t in kinds[0].tools if all(t in kind.tools for kind in kinds)]
    many = any(kind.needs_many for kind in kinds)
    for _ in range(_TRIES):
        tool = random.choice(tools)
        needs = {key: value for kind in kinds for key, value in kind.base.items()}
        base = base_of(random, tool, needs, (2, 2, 4, 4, 8, 16) if many else (1, 1, 2, 4))
        planted = base
        for kind in kinds:
            planted = replace(planted, **kind.plant(random, planted))
        repaired = {
            one: replace(planted, **kind.repair) for one, kind in zip(faults, kinds, strict=True)
        }
        if any(kind.keeps_busy for kind in kinds) and not _is_healthy(planted):
            continue
        before = _step_ns(planted)
        if all(_step_ns(one) < (1 - LEAST_GAIN) * before for one in repaired.values()):
            return Scenario(f"{' and '.join(faults)} {seed}", tool, planted, repaired)
    raise ValueError(f"no run of which {faults} cost enough")


def healthy(seed: int) -> tuple[str, RunConfig]:
    """Return a tool and a run without a fault."""
    random = Random(f"{seed}:healthy")
    tool = random.choice(list(WAYS))
    return tool, base_of(random, tool, {"jitter_permille": random.choice([0, 5])}, (1, 1, 2, 4, 8))


_KINETO: Final = KinetoOptions(python_functions=True, compression="none")
WAYS: Final[Mapping[str, Callable[[Run, Path], object]]] = {
    "pytorch": lambda run, to: write_pytorch(run, to, _KINETO),
    "nsys": lambda run, to: NSIGHT["nsys 2026"](run, to, NsightOptions(ops=True, markers="all")),
    "rocprof": lambda run, to: ROCPROF["v3 csv"](run, to, RocprofOptions(markers="all")),
}


def analysis_of(config: RunConfig, write: Callable[[Run, Path], object]) -> tf.Analysis:
    """Return the analysis of a run."""
    with TemporaryDirectory() as folder:
        write(_simulated(config), Path(folder))
        return tf.analyze(tf.read(folder), Selection(steps=parse_steps(f"1:{config.steps - 2}")))


def window_ns(analysis: tf.Analysis) -> float:
    """Return the mean of the chosen windows."""
    used = [one.dur_ns for each in analysis.devices for one in each.windows if one.used]
    return sum(used) / len(used)


def scores(one: Scenario) -> Iterator[Score]:
    """Yield what is found of each fault of a scenario."""
    write = WAYS[one.tool]
    analysis = analysis_of(one.planted, write)
    before, found = window_ns(analysis), analysis.diagnosis
    gained = {
        fault: before - window_ns(analysis_of(config, write))
        for fault, config in one.repaired.items()
    }
    for fault, gain in gained.items():
        mine = next((each for each in found if each.rule in FAULTS[fault].rules), None)
        first = found[0].rule if found else ""
        yield Score(one, fault, before, gain, mine, first, gain == max(gained.values()))


def table() -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield seed and faults of all scenarios: each fault alone, and in pairs."""
    for seed in range(SEEDS):
        yield from ((seed, (fault,)) for fault in FAULTS)
    for seed in range(SEEDS - 1):
        yield from ((seed, pair) for pair in PAIRS)


def unfit(faults: tuple[str, ...]) -> str:
    """Return why a scenario cannot be tried, "" where it can."""
    lacking = [FAULTS[one].rules[0] for one in faults if not is_known(one)]
    return f"no rule {' and '.join(lacking)} in the product yet" if lacking else ""
