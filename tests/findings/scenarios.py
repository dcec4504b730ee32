"""Planted bottlenecks and healthy runs: what is planted, how it is repaired, what must be found.

Everything is drawn from seeds, so that others can be tried that nobody has seen. A repaired run has
the same draws (`steady_draws`): the difference is exactly what the repair gains.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.nsight.formats import WRITERS as NSIGHT
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import RankRun, Run
from sample_traces.rocprof.formats import WRITERS as ROCPROF
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.truth import is_start_up, truth
from tests.findings.faults import FAULTS, PAIRS, STEPS, Settings, simulated, step_ns
from traceflops.findings.finding import Finding, Gain
from traceflops.findings.rules import all_rules
from traceflops.reports.view.findings import headline
from traceflops.timeline.start_up import KINDS
from traceflops.windows.selection import Selection, parse_steps

Write = Callable[[Run, Path], object]
_Options = TypeVar("_Options")
SEEDS, HEALTHY = 3, 60
"""So many of each fault, and healthy runs."""
LEAST_GAIN: Final = 0.10
"""Share of a step that the repair of a bottleneck gains at least."""
ROUNDING: Final = 0.005
"""Share of a step by which a gain may miss the truth: calls that cost next to nothing."""
_TRIES: Final = 40
_MOST_LOST: Final = 0.06
"""Share of its time that the GPU of a healthy run is idle or only communicates."""


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

    `said` is the class of the first statement, `twin` the rule of that of the repaired run, if it
    has one. `promise` is what a comparison with the repaired run says. Of what happens only once,
    `gained_ns` is the time that it takes, and `start_up_ns` what is told.
    """

    scenario: Scenario
    fault: str
    step_ns: float
    gained_ns: float
    finding: Finding | None
    first: str
    is_largest: bool
    said: str
    twin: str
    start_up_ns: int | None = None
    promise: str | None = None

    @property
    def is_missed(self) -> bool:
        """Return whether another finding is the first, which counts for the largest fault."""
        kind = FAULTS[self.fault]
        return self.first not in (*kind.rules, *kind.also)

    @property
    def is_said(self) -> bool:
        """Return whether the first statement is of a class that names the fault."""
        kind, rows = FAULTS[self.fault], all_rules().rules
        return self.said in {rows[one].headline for one in (*kind.rules, *kind.also)}

    @property
    def gain(self) -> Gain | None:
        """Return the gain of the finding."""
        return None if self.finding is None else self.finding.gain

    @property
    def is_held(self) -> bool:
        """Return whether the interval holds the true gain; a refusal does not."""
        gain, slack = self.gain, ROUNDING * self.step_ns
        if self.start_up_ns is not None:
            return abs(self.start_up_ns - self.gained_ns) <= slack
        return gain is not None and (
            gain.low_ns - slack <= self.gained_ns <= reach_ns(gain) + slack
        )

    @property
    def width(self) -> float | None:
        """Return the width of the interval as a share of the step, None without one."""
        gain = self.gain
        return None if gain is None else (gain.high_ns - gain.low_ns) / self.step_ns


def reach_ns(gain: Gain) -> int:
    """Return the most that a replay finds: the direct gain, and what other work then hides."""
    direct_ns = gain.high_ns if gain.most_ns is None else gain.most_ns
    return direct_ns + gain.further_ns


@cache
def is_known(fault: str) -> bool:
    """Return whether the rule that the fault is planted for is in the product."""
    return FAULTS[fault].rules[0] in all_rules().rules


def _is_healthy(config: RunConfig) -> bool:
    return all(_lost(one) < _MOST_LOST for one in simulated(config).ranks)


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
        config = (on_mi300x if tool == "rocprof" or tool in ROCPROF else RunConfig)(**settings)
        if (
            config.steps < 3
            or config.engine
            or config.tensor_ranks * config.expert_ranks * config.stages > 1
        ):
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
        before = step_ns(planted)
        if all(step_ns(one) < (1 - LEAST_GAIN) * before for one in repaired.values()):
            return Scenario(f"{' and '.join(faults)} {seed}", tool, planted, repaired)
    raise ValueError(f"no run of which {faults} cost enough")


def healthy(seed: int) -> tuple[str, RunConfig]:
    """Return a tool and a run without a fault."""
    random = Random(f"{seed}:healthy")
    tool = random.choice([*WAYS, *OTHER_WAYS])
    return tool, base_of(random, tool, {"jitter_permille": random.choice([0, 5])}, (1, 1, 2, 4, 8))


def _asked(write: Callable[[Run, Path, _Options], object], options: _Options) -> Write:
    return lambda run, to: write(run, to, options)


_KINETO: Final = KinetoOptions(python_functions=True, compression="none")
WAYS: Final[dict[str, Write]] = {
    "pytorch": lambda run, to: write_pytorch(run, to, _KINETO),
    "nsys": lambda run, to: NSIGHT["nsys 2026"](run, to, NsightOptions(ops=True, markers="all")),
    "rocprof": lambda run, to: ROCPROF["v3 csv"](run, to, RocprofOptions(markers="all")),
}
OTHER_WAYS: Final[dict[str, Write]] = {
    "pytorch without stacks": partial(write_pytorch, options=KinetoOptions(compression="none")),
    **{name: _asked(NSIGHT[name], NsightOptions()) for name in NSIGHT},
    **{name: _asked(ROCPROF[name], RocprofOptions()) for name in ROCPROF},
}
"""Formats in which healthy runs are tried, too."""


def is_loud(number: int) -> bool:
    """Return whether a healthy run has a finding of high priority."""
    tool, config = healthy(number)
    with TemporaryDirectory() as folder:
        (WAYS | OTHER_WAYS)[tool](simulated(config), Path(folder))
        return "high" in {one.priority for one in tf.analyze(tf.read(folder)).findings}


def analysis_of(config: RunConfig, write: Write) -> tf.Analysis:
    """Return the analysis of a run; of its inner steps, where nothing is done only once."""
    inner = Selection() if config.once else Selection(steps=parse_steps(f"1:{config.steps - 2}"))
    with TemporaryDirectory() as folder:
        write(simulated(config), Path(folder))
        return tf.analyze(tf.read(folder), inner)


def window_ns(analysis: tf.Analysis) -> float:
    """Return the mean of the chosen windows."""
    used = [one.dur_ns for each in analysis.devices for one in each.windows if one.used]
    return sum(used) / len(used)


def scores(one: Scenario) -> Iterator[Score]:
    """Yield what is found of each fault of a scenario."""
    write = WAYS[one.tool]
    analysis = analysis_of(one.planted, write)
    before, found = window_ns(analysis), analysis.findings
    twins = {fault: analysis_of(config, write) for fault, config in one.repaired.items()}
    gained = {fault: before - window_ns(twin) for fault, twin in twins.items()}
    first, said = found[0].rule if found else "", headline(analysis).cls
    for fault, gain in gained.items():
        mine = next((each for each in found if each.rule in FAULTS[fault].rules), None)
        is_largest, twin = gain == max(gained.values()), headline(twins[fault]).code
        score = Score(one, fault, before, gain, mine, first, is_largest, said, twin)
        if FAULTS[fault].once:
            yield _of_once(score, analysis)
        else:
            promise = tf.compare(analysis, twins[fault]).promise
            yield dataclasses.replace(score, promise=promise.outcome if promise else "")


def _of_once(score: Score, analysis: tf.Analysis) -> Score:
    """Return what is told of what happens only once: as long as it takes in the whole run."""
    devices = truth(simulated(score.scenario.planted)).ranks
    return dataclasses.replace(
        score,
        step_ns=analysis.components.window_ns,
        gained_ns=sum(one.components["start_up"] for one in devices),
        start_up_ns=analysis.components.start_up_ns,
    )


def start_up_of(config: RunConfig) -> str:
    """Return in words what most of the start-up of a run is."""
    sums = Counter[str]()
    for rank in simulated(config).ranks:
        for spent in filter(is_start_up, rank.spent):
            sums[spent.cause.function] += spent.end_ns - spent.start_ns
    return KINDS[max(sums, key=lambda kind: sums[kind])]


def table() -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield seed and faults of all scenarios: each fault alone, and in pairs."""
    for seed in range(SEEDS):
        yield from ((seed, (fault,)) for fault in FAULTS)
    for seed in range(SEEDS - 1):
        yield from ((seed, pair) for pair in PAIRS)


def unfit(faults: tuple[str, ...]) -> str:
    """Return why a scenario cannot be tried, "" where it can."""
    lacking = [FAULTS[one].rules[0] for one in faults if not is_known(one)]
    return f"no rule {' and '.join(lacking)} in the product" if lacking else ""
