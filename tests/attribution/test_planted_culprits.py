"""Causes of idle time that a simulator plants are found, to the nanosecond, in every format."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_options import KinetoOptions
from sample_traces.plants import PLANTS
from sample_traces.records import Recorded, Run
from sample_traces.simulate import simulate
from sample_traces.truth import ALL_RECORDED, told, truth
from tests.conftest import examples
from tests.samples.strategies import run_configs
from traceflops import Trace, read
from traceflops.analysis.preparation import prepare
from traceflops.attribution.culprits import culprits_of, gap_parts
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import GapParts
from traceflops.timeline import Intervals

Sums = Counter[tuple[str, str]]


def planted(run: Run, recorded: frozenset[Recorded]) -> tuple[Sums, Sums, list[tuple[int, int]]]:
    """Return idle time by culprit, that after a wait, and the gaps since the first work, in ns."""
    idle, blocked, gaps = Counter(), Counter(), []
    devices = list(zip(run.ranks, truth(run).ranks, strict=True))
    zero = min(rank.origin_unix_ns + device.start_ns for rank, device in devices)
    for rank, device in devices:
        for gap in device.gaps:
            known = told(gap, rank, recorded)
            if known:
                idle.update(known.idle_ns)
                blocked.update({key: ns * known.is_blocked for key, ns in known.idle_ns.items()})
                since = rank.origin_unix_ns - zero
                gaps.append((gap.start_ns + since, gap.end_ns + since))
    return idle, blocked, gaps


def found(trace: Trace, gaps: list[tuple[int, int]]) -> tuple[Sums, Sums]:
    """Return what traceflops tells of some gaps; and that after a wait."""
    accounts = prepare(trace).accounts.values()
    zero = min(account.rows.span[0] for account in accounts)
    parts = GapParts.joined(gap_parts(one, Intervals.one(*one.rows.span)) for one in accounts)
    at = zip((parts.start_ns - zero).tolist(), (parts.end_ns - zero).tolist(), strict=True)
    mine = np.array([gap in set(gaps) for gap in at])
    assert mine.sum() == len(gaps)
    chosen = GapParts(*(getattr(parts, name)[mine] for name in GapParts.__dataclass_fields__))
    known = culprits_of(chosen, trace)
    idle = Counter({(one.kind, one.label): one.idle_ns for one in known.culprits})
    idle["unexplained", ""] = known.unexplained_ns
    blocked = {(one.kind, one.label): one.blocked_before_ns for one in known.culprits}
    return idle, Counter(blocked)


def wrong(run: Run, trace: Trace, recorded: frozenset[Recorded]) -> dict[tuple[str, str], Any]:
    """Return what is found and not planted, or not as much: (planted, found) in ns."""
    idle, blocked, gaps = planted(run, recorded)
    idle_found, blocked_found = found(trace, gaps)
    pairs = {key: (idle[key], blocked[key]) for key in idle}
    mine = {key: (idle_found[key], blocked_found[key]) for key in idle_found}
    usual = {key for key in mine if key[0] in USUAL}
    keys = pairs.keys() | (mine.keys() - usual)
    zero = (0, 0)
    told_wrong = ((key, (pairs.get(key, zero), mine.get(key, zero))) for key in keys)
    return {key: pair for key, pair in told_wrong if pair[0] != pair[1]}


USUAL = ("eager_overhead", "host_code", "optimizer_loop", "thread_handover", "host_unrecorded")
"""Every run has some of these between what is planted."""
IS_NIGHT = examples(1) > 0
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
PLAIN: dict[str, Any] = {"steps": 3, "layers": 1, "hidden": 64, "sequence": 128, "vocab": 100}


def pytorch_trace(run: Run, frames: bool) -> Trace:
    """Return the run as read from PyTorch's files."""
    with TemporaryDirectory() as folder:
        options = KinetoOptions(python_functions=frames, compression="none")
        write_pytorch(run, Path(folder), options)
        return read(folder)


@st.composite
def planted_configs(draw: st.DrawFn) -> RunConfig:
    """Draw a run with some plants; launches take long enough to be over before the work is."""
    plants = draw(st.lists(st.sampled_from(sorted(PLANTS)), max_size=8, unique=True))
    plant_ns = draw(st.sampled_from([300_000, 1_700_000]))
    ranks, steps = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    return draw(
        run_configs(
            ranks=ranks,
            steps=steps,
            launch_latency_ns=4_000,
            plants=tuple(plants),
            # What comes before the first call counts as a handover, too.
            lead_in="thread_handover" not in plants,
            plant_ns=plant_ns,
        )
    )


@settings(
    max_examples=examples(300) if IS_NIGHT else 10,
    derandomize=not IS_NIGHT,
    phases=UNSHRUNK,
    suppress_health_check=list(HealthCheck),
)
@given(config=planted_configs(), frames=st.booleans())
def test_what_is_planted_in_random_runs_is_found(config: RunConfig, frames: bool) -> None:
    run = simulate(config)
    recorded = ALL_RECORDED if frames else ALL_RECORDED - {"python"}
    assert wrong(run, pytorch_trace(run, frames), recorded) == {}


@pytest.mark.parametrize("frames", [False, True])
def test_every_class_is_planted_and_found(frames: bool) -> None:
    run = simulate(RunConfig(plants=tuple(PLANTS), **PLAIN))
    recorded = ALL_RECORDED if frames else ALL_RECORDED - {"python"}
    assert wrong(run, pytorch_trace(run, frames), recorded) == {}
    kinds = {kind for kind, _ in planted(run, recorded)[0]}
    unseen = {"host_unrecorded"} if frames else {"external_wait"}
    assert set(CLASSES) - kinds == {"unexplained"} | unseen
