"""Kinds of bottlenecks: how each is planted in a run and repaired, and which rule names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, Final

from sample_traces.config import RunConfig
from sample_traces.plants import REPAIRED
from sample_traces.records import Run
from sample_traces.simulate import simulate

Settings = Mapping[str, Any]
Draw = Callable[[Random, RunConfig], Settings]
STEPS: Final = 6
_TOOLS: Final = ("pytorch", "nsys", "rocprof")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of bottleneck: how it is planted and repaired, the rules that name it, and where.

    `base` are settings that it needs, in the repaired run, too. `tools` tell it from others. Where
    it `keeps_busy`, the host is fast enough for it. Rules of `also` name what else is planted. What
    happens only `once` has no gain: how long it takes is told.
    """

    plant: Draw
    repair: Settings
    rules: tuple[str, ...]
    base: Settings = field(default_factory=dict)
    tools: tuple[str, ...] = _TOOLS
    needs_many: bool = False
    keeps_busy: bool = False
    also: tuple[str, ...] = ()
    once: bool = False


def _of_hosts(*names: str) -> Draw:
    """Return what draws a plant that wastes time in each step."""

    def draw(random: Random, base: RunConfig) -> Settings:
        return {
            "plants": (random.choice(names),) * base.steps,
            "plant_ns": random.randint(20, 60) * step_ns(base) // 100,
        }

    return draw


def _percent(name: str, low: int, high: int, **more: Any) -> Draw:
    return lambda random, base: {name: random.randint(low, high), **more}


def _with(**settings: Any) -> Draw:
    return lambda random, base: settings


def _stalls(random: Random, base: RunConfig) -> Settings:
    length = random.randint(90, 200) * step_ns(base) // 100  # the host is ahead by a step
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
    first = random.randint(2, base.steps // 2)
    slow = random.randint(130, 170)
    return {"throttled_steps": tuple(base.step_numbers[first:]), "throttled_percent": slow}


def _sporadic(random: Random, base: RunConfig) -> Settings:
    step = random.choice(base.step_numbers[1:-1])
    return {"data_stall_steps": (step,), "data_stall_ns": random.randint(2, 4) * step_ns(base)}


def _heavy_expert(random: Random, base: RunConfig) -> Settings:
    return {"on_rank": {random.randrange(base.ranks): {"expert_percent": 700}}}


def _once(*names: tuple[str, ...]) -> Draw:
    """Return what draws things that are done only once, and take most of the recording."""

    def draw(random: Random, base: RunConfig) -> Settings:
        length = random.randint(120, 400) * step_ns(base) // 100
        return {"once": random.choice(names), "once_ns": length}

    return draw


def _start_up(*names: tuple[str, ...], tools: tuple[str, ...] = _TOOLS, **base: Any) -> Fault:
    """Return a fault of short runs that is none of their work."""
    base = {"steps": 1} | base
    return Fault(_once(*names), {"once_ns": 1_000}, ("start-up",), base, tools, once=True)


def step_ns(config: RunConfig) -> int:
    """Return how long a step takes, the first and last apart; of two at most, how long all do."""
    (first, *_) = simulated(config).ranks
    if config.steps < 3:
        works = first.activities
        return max(one.end_ns for one in works) - min(one.start_ns for one in works)
    begun = {one.step: one.start_ns for one in reversed(first.activities)}
    return (begun[config.steps - 1] - begun[1]) // (config.steps - 2)


@lru_cache(maxsize=4)
def simulated(config: RunConfig) -> Run:
    return simulate(config)


_TORCH: Final = ("pytorch",)
_NOTHING: Final = {"plant_ns": 1_000}
_CALLS: Final = ("blocking_copy", "pageable_copy")
_MEMORY: Final = ("allocate", "free")
_SLOW_MEMORY: Final = ("norm", "elementwise", "softmax")
DRAINED: Final[Settings] = {
    "layers": 2,
    "hidden": 2_048,
    "heads": 32,
    "batch": 2,
    "sequence": 512,
    "vocab": 16_384,
    "ranks": 1,
}
"""A model whose head keeps the GPU busy while the host launches the layers of the next step."""
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
    "device queries": Fault(_of_hosts("query"), _NOTHING, ("device-queries",), tools=("rocprof",)),
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
        also=("slow-collectives",),
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
    "slow attention": Fault(
        _percent("attention_percent", 5, 12),
        {"attention_percent": 45},
        ("attention-rate",),
        base={"sequence": 4_096, "hidden": 1_024, "heads": 16, "vocab": 4_096},
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
    "casts of weights": Fault(
        _with(eager=("casts",)),
        {"eager": ()},
        ("casts",),
        base={
            "layers": 6,
            "hidden": 2_048,
            "heads": 32,
            "sequence": 1_024,
            "batch": 2,
            "vocab": 4_096,
        },
        tools=_TORCH,
        keeps_busy=True,
    ),
    "recompilation": Fault(_of_hosts("recompile"), _NOTHING, ("recompilation",), tools=_TORCH),
    "loading of code": Fault(_of_hosts("load_module"), _NOTHING, ("code-loading",), tools=_TORCH),
    "allocator churn": Fault(_of_hosts("churn"), _NOTHING, ("memory-alloc",), tools=_TORCH),
    "contention": Fault(
        _percent("contention_percent", 160, 200),
        {"contention_percent": 100},
        ("beside-communication",),
        base={
            "layers": 4,
            "hidden": 2_048,
            "heads": 32,
            "batch": 4,
            "sequence": 1_024,
            "vocab": 4_096,
            "gradient_buckets": 16,
            "link_bytes_per_s": 120_000_000_000,
            "contention_percent": 100,
        },
        tools=_TORCH,
        needs_many=True,
    ),
    "falling clock": Fault(_throttled, {"throttled_percent": 100}, ("clocks",), tools=_TORCH),
    "sporadic stalls": Fault(
        _sporadic, {"data_stall_ns": 1}, ("data-input", "uneven-steps"), tools=_TORCH
    ),
    "gaps of decoding": Fault(
        lambda random, base: {"pass_gap_ns": random.randint(30, 80) * step_ns(base) // 100},
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
        {"on_rank": {}, "expert_percent": 250},
        ("expert-imbalance",),
        base={"ranks": 4, "expert_ranks": 4},
        tools=_TORCH,
        needs_many=True,
    ),
    "host prefix": Fault(
        lambda random, base: {"prefix_ns": random.randint(120, 250) * step_ns(base) // 100},
        {"prefix_ns": 0},
        ("host-code",),
        tools=_TORCH,
    ),
    "drained queue": Fault(
        _percent("host_op_ns", 7_000, 10_000, sync_each_step=True),
        {"sync_each_step": False},
        ("sync-call", "host-waits"),
        base=DRAINED,
        tools=("pytorch", "nsys"),
    ),
    "free behind a wait": Fault(
        _percent("host_op_ns", 7_000, 10_000, sync_each_step=True, free_each_step=True),
        {"sync_each_step": False, "free_each_step": False},
        ("sync-call", "host-waits"),
        base=DRAINED,
        tools=("pytorch", "nsys"),
    ),
    "one block": Fault(_of_hosts("one_block"), {"plants": ("full_grid",) * STEPS}, ("small-grid",)),
    "start-up": _start_up(("load_code",), ("first_launch",), ("allocate",), ("compile",)),
    "first copies": _start_up(("first_copy",)),
    "graph capture": _start_up(("capture",)),
    "engine warm-up": _start_up(
        ("allocate", "read_weights", "capture"),
        tools=("nsys", "rocprof"),
        steps=2,
        engine="vLLM",
        passes=("prefill", "decode"),
        hidden=4_096,
        heads=32,
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
    ("slow products", "slow functions"),
    ("slow products", "guards"),
    ("slow memory kernels", "slow products"),
    ("slow memory kernels", "waits"),
    ("slow memory kernels", "queue"),
    ("slow rank", "slow functions"),
    ("slow rank", "allocation"),
    ("no overlap", "slow products"),
    ("no overlap", "allocation"),
    ("no overlap", "queue"),
    ("unfused attention", "allocation"),
    ("misaligned sizes", "unfused optimizer"),
)
"""Two of which none hides the other."""
