"""Planted bottlenecks are the first finding and gain what their repair does; healthy runs none."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from sample_traces.config import RunConfig
from sample_traces.simulate import simulate
from tests.conftest import by_night, some
from tests.findings.faults import FAULTS
from tests.findings.scenarios import (
    HEALTHY,
    WAYS,
    Score,
    analysis_of,
    healthy,
    is_known,
    is_loud,
    scenario,
    scores,
    start_up_of,
    table,
    unfit,
)
from tests.trust.page import part
from tests.trust.recordings import SIMULATED
from traceflops.findings.rules import all_rules

SAMPLE = (
    (7, ("loader",)),
    (4, ("slow products",)),
    (3, ("no overlap",)),
    (5, ("slow rank",)),
    (0, ("slow memory kernels", "queue")),
    (1, ("one block",)),
    (3, ("start-up",)),
    (0, ("gaps of decoding",)),
    (3, ("graph capture",)),
    (1, ("host prefix",)),
    (1, ("engine warm-up",)),
    (2, ("first copies",)),
    (5, ("waits",)),
    (0, ("drained queue",)),
    (1, ("free behind a wait",)),
)
"""Small runs, of all tools."""


def _scored(rows: Iterable[tuple[int, tuple[str, ...]]]) -> Iterator[Score]:
    for seed, faults in rows:
        if not unfit(faults):
            yield from scores(scenario(seed, *faults))


@pytest.mark.parametrize(("seed", "faults"), some(SAMPLE, 3), ids=lambda one: str(one))
def test_what_is_planted_is_found_first_and_gains_what_its_repair_does(
    seed: int, faults: tuple[str, ...]
) -> None:
    for score in scores(scenario(seed, *faults)):
        assert score.is_held, score.fault
        assert score.finding is not None
        assert score.twin not in FAULTS[score.fault].rules or score.fault == "no overlap"
        if score.is_largest:
            assert not score.is_missed, score.first
            assert score.is_said or (score.gain and not score.gain.low_ns), score.said
            assert score.finding.remedy.endswith(".")
            assert score.finding.evidence
        if FAULTS[score.fault].once:
            kind = score.finding.claim.values["kind"]
            assert kind == start_up_of(score.scenario.planted)
        elif score.is_largest:
            assert score.finding.priority != "low"  # it is by the direct part of the gain
            assert score.finding.owner
            assert score.finding.rows


def test_a_step_begins_at_its_mark_on_the_cpu() -> None:
    """Nothing of an earlier step is left on the GPU when the host begins to decode."""
    run = simulate(RunConfig(prefix_ns=2_000_000, sync_each_step=True, layers=1, vocab=256))
    [device] = analysis_of(run.config, WAYS["pytorch"]).devices
    [rank] = run.ranks
    first_ns = rank.activities[0].start_ns - device.whole.start_ns
    begun_ns = [one.start_ns + first_ns for one in device.windows if one.role == "step"]
    assert begun_ns == [one.start_ns for one in rank.marks if one.kind == "step"]


def test_a_repair_leaves_the_rest_as_it_was() -> None:
    one = scenario(1, "slow memory kernels")
    (repaired,) = one.repaired.values()
    slow = one.planted.slow_category
    kernels = [
        {
            (work.correlation, work.dur_ns)
            for work in simulate(config).ranks[0].activities
            if work.work.sub != slow
        }
        for config in (one.planted, repaired)
    ]
    assert kernels[0] == kernels[1]


def test_a_rule_is_in_the_product_for_each_fault() -> None:
    for fault in FAULTS:
        assert is_known(fault), fault


def test_each_rule_is_proven_by_a_recording_or_a_simulated_run() -> None:
    recorded, simulated = re.findall(r"(?m)^(?:Public recordings|Simulated).*$", part("proofs"))
    proven = [re.findall(r"`([a-z0-9-]+)`", rules) for rules in (recorded, simulated)]
    listed = "name it in SIMULATED of tests/trust/recordings.py; run tests.trust --only proofs"
    assert {*proven[0], *proven[1]} == {*all_rules().rules}, listed
    assert proven[1] == [rule for rule in all_rules().rules if rule in SIMULATED], listed


@pytest.mark.parametrize("seed", (1, 3))
def test_nothing_of_high_priority_is_said_of_a_healthy_run(seed: int) -> None:
    assert not is_loud(seed)


@by_night()
def test_of_all_scenarios_nearly_all_are_found() -> None:
    found = list(_scored(table()))
    first = [not one.is_missed for one in found if one.is_largest]
    missed = Counter(one.fault for one in found if not one.is_held)
    assert len({one.scenario.name for one in found}) >= 60
    assert sum(first) >= 0.95 * len(first)
    assert missed.total() <= 0.05 * len(found), missed


@by_night()
def test_nearly_no_healthy_run_has_a_finding_of_high_priority() -> None:
    loud = [healthy(seed) for seed in range(HEALTHY) if is_loud(seed)]
    assert len(loud) <= 0.02 * HEALTHY, loud
