"""Causes of idle time that the simulator plants are found, to the nanosecond, in every format."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sample_traces.config import MachineName, RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.nsight.formats import WRITERS as NSIGHT
from sample_traces.nsight.session import NsightOptions
from sample_traces.once import BY_NAME
from sample_traces.plants import PLANTS, REPAIRED
from sample_traces.records import Recorded, Run
from sample_traces.rocprof.formats import CARRIES
from sample_traces.rocprof.formats import WRITERS as ROCPROF
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from sample_traces.truth import ALL_RECORDED, is_start_up, told, truth
from tests.conftest import examples, some
from tests.samples.strategies import run_configs
from traceflops import Intervals, Trace, read
from traceflops.analysis.preparation import prepare
from traceflops.attribution.culprits import culprits_of, gap_parts
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import GapParts
from traceflops.attribution.launch_lead import leads
from traceflops.timeline.start_up import GAPS, KINDS

Sums = Counter[tuple[str, str]]
Gaps = list[tuple[int, int, int]]
"""Place of the device, start and end since its first work: some formats have no common clock."""

USUAL = (
    *("other_calls", "eager_overhead", "host_code", "optimizer_loop", "thread_handover"),
    "host_unrecorded",
)
"""Every run has some of these between what is planted."""
PLAIN: dict[str, Any] = {"steps": 3, "layers": 1, "hidden": 64, "sequence": 128, "vocab": 100}
COPY = "Memcpy HtoD (Pinned -> Device)"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to record a run, what it records, and what it calls differently."""

    write: Callable[[Run, Path], object]
    recorded: frozenset[Recorded]
    machine: MachineName = "h100"
    names: Mapping[str, str] = field(default_factory=dict)

    def trace(self, run: Run) -> Trace:
        """Return the run as it is read."""
        with TemporaryDirectory() as folder:
            self.write(run, Path(folder))
            return read(folder)


def pytorch(frames: bool, machine: MachineName = "h100") -> Way:
    options = KinetoOptions(python_functions=frames, compression="none", cuda_sync=True)
    unseen: set[Recorded] = {"system"} if frames else {"system", "python"}
    return Way(partial(write_pytorch, options=options), ALL_RECORDED - unseen, machine)


def nsight(name: str, ops: bool) -> Way:
    options = NsightOptions(markers="all", ops=ops)
    unseen: set[Recorded] = {"python"} if ops else {"python", "op"}
    return Way(lambda run, folder: NSIGHT[name](run, folder, options), ALL_RECORDED - unseen)


def rocprof(name: str) -> Way:
    options = RocprofOptions(markers="all")
    copy = "CopyHostToDevice" if name.startswith("v1") else "MEMORY_COPY_HOST_TO_DEVICE"
    return Way(
        lambda run, folder: ROCPROF[name](run, folder, options),
        ALL_RECORDED - {"python", "op", "system"},
        "mi300x",
        {COPY: copy},
    )


WAYS: Mapping[str, Way] = {
    "PyTorch": pytorch(frames=False),
    "PyTorch with stacks": pytorch(frames=True),
    "PyTorch on AMD": pytorch(frames=True, machine="mi300x"),
    **{name: nsight(name, ops=True) for name in NSIGHT if name.startswith("nsys")},
    "nsys without operators": nsight("nsys 2026", ops=False),
    **{name: rocprof(name) for name, has in CARRIES.items() if has.calls and has.threads},
}


def planted(run: Run, recorded: frozenset[Recorded]) -> tuple[Sums, Sums, Gaps]:
    """Return idle time by culprit, that after a wait, and the gaps, in ns; and start-up by kind."""
    idle, blocked, gaps = Sums(), Sums(), Gaps()
    for place, (rank, device) in enumerate(zip(run.ranks, truth(run).ranks, strict=True)):
        for spent in filter(is_start_up, rank.spent):
            idle["start_up", spent.cause.function] += spent.end_ns - spent.start_ns
        for gap in device.gaps:
            known = told(gap, rank, recorded)
            if known:
                idle.update(known.idle_ns)
                blocked.update({key: ns * known.is_blocked for key, ns in known.idle_ns.items()})
                first_ns = device.start_ns
                gaps.append((place, gap.start_ns - first_ns, gap.end_ns - first_ns))
    return idle, blocked, gaps


def found(trace: Trace, gaps: Gaps) -> tuple[Sums, Sums]:
    """Return what traceflops tells of some gaps; and that after a wait."""
    chosen, idle = [], Sums()
    for place, account in enumerate(prepare(trace).accounts.values()):
        first_ns, end_ns = account.rows.span
        idle.update({("start_up", k): s.length_ns for k, s in account.start_up_by_kind.items()})
        parts = gap_parts(account, Intervals.one(first_ns, end_ns))
        at = zip(
            (parts.start_ns - first_ns).tolist(), (parts.end_ns - first_ns).tolist(), strict=True
        )
        mine = np.array([(place, *gap) in set(gaps) for gap in at], dtype=np.bool_)
        chosen.append(
            GapParts(*(getattr(parts, name)[mine] for name in GapParts.__struct_fields__))
        )
    assert sum(len(parts.start_ns) for parts in chosen) == len(gaps)
    known = culprits_of(GapParts.joined(chosen), trace)
    blocked = {(one.kind, one.label): one.blocked_before_ns for one in known.culprits}
    idle.update({(one.kind, one.label): one.idle_ns for one in known.culprits})
    idle["unexplained", ""] = known.unexplained_ns
    return idle, Sums(blocked)


def wrong(run: Run, way: Way) -> dict[tuple[str, str], Any]:
    """Return what is found and not planted, or not as much: (planted, found) in ns."""
    idle, blocked, gaps = planted(run, way.recorded)
    idle_found, blocked_found = found(way.trace(run), gaps)
    given = {(kind, way.names.get(name, name)): (kind, name) for kind, name in idle}
    keys = given.keys() | {key for key in idle_found if key[0] not in USUAL}
    both = {
        key: (
            (idle[given.get(key, key)], blocked[given.get(key, key)]),
            (idle_found[key], blocked_found[key]),
        )
        for key in keys
    }
    return {key: pair for key, pair in both.items() if pair[0] != pair[1]}


@st.composite
def planted_configs(draw: st.DrawFn, machine: MachineName) -> RunConfig:
    """Draw a run with some plants; launches are over before their work begins.

    None is in the first step, where what takes long for the first time is start-up.
    """
    steps = draw(st.integers(2, 5))
    plants = draw(st.lists(st.sampled_from(sorted(PLANTS)), max_size=8, unique=True))
    # A call that takes long stands out only where others do not, for want of a place in the queue.
    limits = st.just(None) if "first_launch" in plants else st.sampled_from([None, 1, 3, 100])
    fixed: dict[str, Any] = {
        "machine": machine,
        "ranks": draw(st.integers(1, 2)),
        "steps": steps,
        "plants": tuple(
            one
            for at in range(0, len(plants), steps - 1)
            for one in (REPAIRED, *plants[at : at + steps - 1])
        ),
        "plant_ns": draw(st.sampled_from([300_000, 1_700_000])),
        "launch_latency_ns": 4_000,
        "launch_limit": draw(limits),
    }
    return draw(run_configs(**fixed))


IS_NIGHT = examples(1) > 0


@settings(
    max_examples=examples(300) if IS_NIGHT else 10,
    derandomize=not IS_NIGHT,
    phases=(Phase.explicit, Phase.reuse, Phase.generate) if IS_NIGHT else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), name=st.sampled_from(sorted(WAYS)))
def test_what_is_planted_in_random_runs_is_found(data: st.DataObject, name: str) -> None:
    way = WAYS[name]
    assert wrong(simulate(data.draw(planted_configs(way.machine))), way) == {}


@pytest.mark.parametrize(
    ("name", "unseen"),
    [
        ("PyTorch", {"external_wait"}),
        ("PyTorch with stacks", {"host_unrecorded"}),
        ("PyTorch on AMD", {"host_unrecorded"}),
        ("nsys 2020", set()),
        ("nsys 2026", set()),
        ("nsys without operators", {"compiled_runtime", "host_code", "eager_overhead"}),
        *(
            (name, {"external_wait", "compiled_runtime", "host_code", "eager_overhead"})
            for name in ("v1 json of calls", "v3 csv", "rocpd 3.0.3")
        ),
    ],
)
def test_every_class_that_is_recorded_is_found(name: str, unseen: set[str]) -> None:
    way = WAYS[name]
    run = simulate(RunConfig(machine=way.machine, lead_in=True, plants=tuple(PLANTS), **PLAIN))
    assert wrong(run, way) == {}
    found = {kind for kind, _ in planted(run, way.recorded)[0]}
    # No plant sleeps, calls often, touches unified memory or replays graphs; nor is start-up idle.
    never = {"graph_gaps", "own_sleep", "other_calls", "host_page_faults", "start_up"}
    assert set(CLASSES) - found == {*unseen, *never}


@pytest.mark.parametrize("name", some(WAYS, 3))
def test_what_is_done_only_once_is_start_up(name: str) -> None:
    way = WAYS[name]
    # What a first call takes beyond the usual is exact where all others take the same.
    config = RunConfig(machine=way.machine, once=tuple(BY_NAME), noise_permille=0, **PLAIN)
    run = simulate(config)
    assert wrong(run, way) == {}
    sums, _, _ = planted(run, way.recorded)
    first = {name: ns for (kind, name), ns in sums.items() if kind == "start_up"}
    assert set(first) == {*KINDS} - {*GAPS, "workers", "children", "communicator"}
    assert truth(run).ranks[0].components["start_up"] == sum(first.values())


@settings(max_examples=examples(50), suppress_health_check=list(HealthCheck))
@given(run_configs(ranks=1, launch_limit=1) | run_configs(ranks=1, launch_limit=3))
def test_the_lead_of_every_launch_is_that_of_the_run(config: RunConfig) -> None:
    run = simulate(config)
    (rank,) = run.ranks
    seen: set[int | None] = {None}
    starts = Counter(activity.start_ns for activity in rank.activities)
    expected, ended = [], 0
    for activity in rank.activities:
        if activity.call not in seen:
            seen.add(activity.call)
            called_ns = rank.calls[activity.call or 0].start_ns
            # What starts together with other work has no order among it.
            starved = called_ns >= ended if starts[activity.start_ns] == 1 else None
            expected.append((activity.start_ns - called_ns, starved))
        ended = max(ended, activity.end_ns)
    (account,) = prepare(WAYS["PyTorch"].trace(run)).accounts.values()
    one = leads(account)
    zero = int(account.rows.start_ns[0]) - rank.activities[0].start_ns
    alone = [starts[start_ns - zero] == 1 for start_ns in one.start_ns.tolist()]
    known = [
        (lead_ns, starved if is_alone else None)
        for lead_ns, starved, is_alone in zip(
            one.lead_ns.tolist(), one.is_starved.tolist(), alone, strict=True
        )
    ]
    assert sorted(known, key=str) == sorted(expected, key=str)
