"""Pairs of simulated runs with fresh noise and one planted change: it must be the first named.

And the interval of the difference must hold that of the simulator, whose steps never end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.simulate import simulate
from tests.comparison.test_compare import assert_exact
from tests.conftest import by_night, some
from tests.findings.faults import step_ns
from traceflops.comparison.result import Comparison
from traceflops.comparison.spread import interval
from traceflops.table.columns import FloatArray

STEPS: Final = 12
PAIRS: Final = 2_000
ENDLESS: Final = 1_000
"""So many steps have a mean with a tenth of the error of those compared."""
_KINETO: Final = KinetoOptions(python_functions=True, compression="none")
_TILE: Final = ("128x256", "64x128")
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plant:
    """A change: what is drawn for the run before and after, and how the first reason begins."""

    draw: Callable[[Random, RunConfig], tuple[Settings, Settings]]
    named: Callable[[Comparison], bool]
    ranks: int = 1
    rename: bool = False


def _first(kind: str, *subjects: str) -> Callable[[Comparison], bool]:
    def is_first(found: Comparison) -> bool:
        if not found.reasons:
            return False
        cause = found.reasons[0].causes[0]
        return cause.kind == kind and (not subjects or cause.subject in subjects)

    return is_first


def _slow(random: Random, base: RunConfig) -> tuple[Settings, Settings]:
    slow = {"slow_category": random.choice(["norm", "elementwise", "softmax"])}
    return {}, {**slow, "slow_category_percent": random.randint(130, 300)}


def _stalls(random: Random, base: RunConfig) -> tuple[Settings, Settings]:
    length = random.randint(90, 200) * step_ns(base) // 100
    return {}, {"data_stall_steps": tuple(base.step_numbers), "data_stall_ns": length}


def _link(random: Random, base: RunConfig) -> tuple[Settings, Settings]:
    alone = {"overlap": False, "link_bytes_per_s": 200_000_000_000}
    return alone, {**alone, "link_bytes_per_s": random.randint(50, 100) * 10**9}


def _rank(random: Random, base: RunConfig) -> tuple[Settings, Settings]:
    slow = {"straggler_rank": random.randrange(base.ranks)}
    return {}, {**slow, "straggler_percent": random.randint(120, 150)}


def _batch(random: Random, base: RunConfig) -> tuple[Settings, Settings]:
    return {}, {"batch": base.batch * random.choice([2, 3, 4])}


def _waits_for_slow_rank(found: Comparison) -> bool:
    late = found.after.late
    slow = max(late, key=lambda rank: late[rank])
    return _first("wait")(found) and f"waiting for rank {slow} in" in found.sentence


PLANTS: Final[Mapping[str, Plant]] = {
    "kernel slower": Plant(_slow, _first("pace", "norm", "elementwise", "softmax")),
    "products slower": Plant(
        lambda random, base: ({}, {"gemm_percent": random.randint(35, 50)}), _first("pace", "gemm")
    ),
    "more kernels": Plant(lambda *_: ({}, {"eager": ("gelu",)}), _first("replaced")),
    "fusion": Plant(lambda *_: ({"eager": ("attention",)}, {}), _first("replaced")),
    "another tile": Plant(
        lambda random, base: ({}, {"gemm_percent": random.randint(35, 50)}),
        _first("replaced", "gemm"),
        rename=True,
    ),
    "loader stalls": Plant(_stalls, _first("idle", "data_input")),
    "slower link": Plant(_link, _first("pace", "all_reduce of group 0"), ranks=2),
    "slow rank": Plant(_rank, _waits_for_slow_rank, ranks=4),
    "other batch": Plant(_batch, lambda found: found.sentence.startswith("The work differs, ")),
}


def base_of(random: Random, ranks: int, steps: int = STEPS) -> RunConfig:
    """Return a run that keeps its GPUs busy, all kernels of a step a little longer or shorter."""
    return RunConfig(
        seed=random.randrange(10**6),
        steps=steps,
        ranks=ranks,
        layers=random.randint(1, 2),
        hidden=1_024,
        heads=16,
        sequence=random.choice([1_024, 2_048]),
        batch=random.choice([4, 8]),
        vocab=8_192,
        jitter_permille=random.choice([0, 3]),
    )


def analysis_of(config: RunConfig, *, rename: bool = False) -> tf.Analysis:
    with TemporaryDirectory() as folder:
        write_pytorch(simulate(config), Path(folder), _KINETO)
        if rename:
            for file in Path(folder).glob("*.json"):
                file.write_text(file.read_text().replace(*_TILE))
        return tf.analyze(tf.read(folder))


def runs_of(seed: int, plant: Plant | None, steps: int = STEPS) -> tuple[RunConfig, RunConfig]:
    """Return a run, and another one of other noise in which something is planted."""
    random = Random(seed)
    base = base_of(random, plant.ranks if plant is not None else random.choice([1, 1, 2]), steps)
    old, new = plant.draw(random, base) if plant is not None else ({}, {})
    return replace(base, **old), replace(base, seed=base.seed + 1, **new)


def pair_of(seed: int, plant: Plant | None) -> Comparison:
    """Return the comparison of two such runs."""
    before, after = runs_of(seed, plant)
    rename = plant is not None and plant.rename
    return tf.compare(analysis_of(before), analysis_of(after, rename=rename), ("before", "after"))


def steps_of(config: RunConfig) -> FloatArray:
    """Return the time of each step but the last, from its first work to that of the next; ns."""
    each = []
    for rank in simulate(config).ranks:
        starts: dict[int, int] = {}
        for one in rank.activities:
            if one.step is not None:
                starts[one.step] = min(one.start_ns, starts.get(one.step, one.start_ns))
        each.append(np.diff([starts[step] for step in config.step_numbers]))
    return np.asarray(np.mean(each, axis=0))


@pytest.mark.parametrize("name", some(PLANTS, 3))
def test_the_planted_change_is_the_first_that_is_named(name: str) -> None:
    found = pair_of(3, PLANTS[name])
    assert_exact(found)
    assert found.interval is not None and not found.interval.holds_zero, found.sentence
    assert PLANTS[name].named(found), found.sentence


def test_two_runs_of_one_program_do_not_differ() -> None:
    found = pair_of(3, None)
    assert_exact(found)
    assert found.sentence.startswith("No difference beyond the spread between steps (")


def scores(pairs: int) -> Iterator[tuple[str, bool, Comparison]]:
    """Yield many pairs: what was planted, and whether that is what is said."""
    kinds = [*PLANTS, "nothing"]
    for seed in range(pairs):
        name = kinds[seed % len(kinds)]
        found = pair_of(1_000 + seed, PLANTS.get(name))
        is_noise = found.interval is not None and found.interval.holds_zero
        yield name, PLANTS[name].named(found) if name in PLANTS else is_noise, found


def test_steps_are_those_of_the_simulator() -> None:
    before, after = runs_of(3, PLANTS["slower link"])
    found = pair_of(3, PLANTS["slower link"])
    assert found.before.series().tolist() == steps_of(before).tolist()
    assert found.after.series().tolist() == steps_of(after).tolist()


def of_kind(name: str, pairs: int) -> Iterator[tuple[FloatArray, FloatArray, float]]:
    """Yield the steps of pairs of runs, and the difference of their means were they endless."""
    long = runs_of(sum(map(ord, name)), PLANTS.get(name), ENDLESS)
    means = [steps_of(one).mean() for one in long]
    short = [
        replace(one, steps=STEPS, data_stall_steps=one.data_stall_steps[:STEPS]) for one in long
    ]
    for seed in range(0, 2 * pairs, 2):
        before, after = (steps_of(replace(one, seed=seed + at)) for at, one in enumerate(short))
        yield before, after, float(means[1] - means[0])


@by_night()
def test_the_interval_holds_the_difference_of_the_simulator() -> None:
    """And a change by five standard errors is seen, where all else is as it was."""
    held, missed = [], []
    for name in (*PLANTS, "nothing"):
        pairs = list(of_kind(name, PAIRS // 10))
        error = np.std([after.mean() - before.mean() for before, after, _ in pairs], ddof=1)
        for before, after, truth in pairs:
            found, alike = interval(before, after), after - truth
            changed = interval(before, alike + 5 * error)
            assert found is not None and changed is not None
            held.append(found.low_ns <= truth <= found.high_ns)
            missed.append(changed.holds_zero)
    assert 0.93 <= np.mean(held) <= 0.97
    assert np.mean(missed) <= 0.05


@by_night()
def test_planted_changes_are_named_and_nothing_is_called_nothing() -> None:
    told, every, wrong = Counter[str](), Counter[str](), []
    for name, is_told, found in scores(PAIRS):
        assert_exact(found)
        told[name] += is_told
        every[name] += 1
        wrong += [] if is_told else [f"{name}: {found.sentence}"]
    planted = sum(told[name] for name in PLANTS) / sum(every[name] for name in PLANTS)
    assert planted >= 0.95, wrong
    assert told["nothing"] >= 0.95 * every["nothing"], wrong
