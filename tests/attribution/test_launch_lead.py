"""Whether the host is fast enough, phase by phase and through a step; what launching takes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.attribution.test_culprits import US, WORK, event
from tests.build import launched, trace_of
from tests.conftest import examples, shared_file
from traceflops import analyze, read
from traceflops.attribution.launch_lead import (
    HostBound,
    Launches,
    LaunchSums,
    Leads,
    _after_first,
)
from traceflops.reports.view.culprits import pace_sentence

NODE = "autograd::engine::evaluate_function: MmBackward0"
Tables = dict[str, list[dict[str, Any]]]


def pace_of(tables: Tables) -> HostBound:
    """Return the pace of a trace."""
    pace = analyze(trace_of(**tables)).host_bound
    assert pace is not None
    return pace


def queued(first_us: int, count: int, lead_us: int) -> list[tuple[str, int, int, int]]:
    """Return launches 100 us apart of kernels that fill the time, each so long before its work."""
    at = (first_us + 100 * n for n in range(count))
    return [("k", (us - lead_us) * US, us * US, 100 * US) for us in at]


def starved(first_us: int, count: int) -> list[tuple[str, int, int, int]]:
    """Return launches 100 us apart of kernels of 10 us, each 5 us before its work."""
    return [
        ("k", (first_us + 100 * n) * US, (first_us + 100 * n + 5) * US, 10 * US)
        for n in range(count)
    ]


def training(optimizer: dict[str, list[dict[str, Any]]]) -> Tables:
    """Return 20 launches of forward and of backward with work queued, and 20 starved ones."""
    works = [*queued(10_000, 20, 5_000), *queued(12_000, 20, 5_000), *starved(14_100, 20)]
    ops = [event("aten::mm", 5_000, 6_990), event(NODE, 7_000, 9_000)]
    return launched(*works) | {"ops": [*ops, *optimizer.pop("ops", [])], **optimizer}


STEP = event("Optimizer.step#SGD.step", 14_000, 17_000)
FRAME = event("torch/optim/sgd.py(9): step", 14_000, 17_000, kind="python")
OPTIMIZERS: dict[str, Tables] = {
    "by its mark around operators": {"marks": [STEP], "ops": [event("aten::add_", 14_050, 16_900)]},
    "by its mark around calls": {"marks": [STEP]},
    "by its frame": {
        "marks": [event("torch/optim/sgd.py(9): step", 14_000, 17_000, kind="python")]
    },
    "by an operator": {"ops": [STEP, event("aten::add_", 14_050, 16_900)]},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_phase_that_is_host_bound_is_named(name: str) -> None:
    analysis = analyze(trace_of(**training(dict(OPTIMIZERS[name]))))
    pace = analysis.host_bound
    assert pace is not None
    assert (pace.verdict, pace.launches, pace.starved_share) == ("partly host-bound", 60, 21 / 60)
    told = {
        phase: (one.verdict, one.launches, one.starved_share, one.lead_median_ns)
        for phase, one in pace.phases.items()
    }
    assert told == {
        "forward": ("not host-bound", 20, 1 / 20, 5_000 * US),
        "backward": ("not host-bound", 20, 0.0, 5_000 * US),
        "optimizer": ("host-bound", 20, 1.0, 5 * US),
    }
    assert pace_sentence(analysis).startswith("Partly host-bound (optimizer): GPU idle at 35.0 %")


def test_where_a_stall_leaves_the_gpu_idle_only_launches_keep_up() -> None:
    """Each launch comes 2 ms ahead, but the first one after a stall of 60 ms."""
    works = [(f"k{at}", at * US, (2_000 + 200 * at) * US, 200 * US) for at in range(200)]
    late = 102_000
    works += [
        (f"l{at}", (late + at) * US, (late + 2_000 + 200 * at) * US, 200 * US) for at in range(200)
    ]
    analysis = analyze(trace_of(**launched(*works)))
    assert analysis.host_bound is not None
    assert analysis.host_bound.verdict == "not host-bound"
    assert pace_sentence(analysis).startswith(
        "A few stalls aside, launches keep up: GPU idle at 0.5 %"
    )


def test_one_phase_alone_is_no_phase() -> None:
    tables = launched(*starved(0, 20)) | {"ops": [event("aten::mm", 0, 3_000)]}
    assert (pace_of(tables).verdict, pace_of(tables).phases) == ("host-bound", {})


@pytest.mark.parametrize("late_us", [0, 50])
def test_where_the_clock_of_the_gpu_is_late_leads_are_unknown(late_us: int) -> None:
    """Kernels start 5 us after their launch call, by a clock that may be 50 us late."""
    works = [(name, call, start - late_us * US, dur) for name, call, start, dur in starved(0, 20)]
    found = analyze(trace_of(**launched(*works)))
    assert pace_sentence(found).startswith("Host-bound: GPU idle at 100.0 % of 20 launches")
    assert ("median lead 5.00 µs" in pace_sentence(found)) == (not late_us)


def steps(*leads_us: int) -> Tables:
    """Return three steps of 40 launches, a quarter of each with each lead, and a long kernel."""
    works: list[tuple[str, int, int, int]] = []
    starts = (50_000, 60_000, 70_000)
    for start in starts:
        for quarter, lead_us in enumerate(leads_us):
            works += queued(start + 1_000 * quarter, 10, lead_us)
        works[-1] = (*works[-1][:3], 6_100 * US)
    marks = [event(f"ProfilerStep#{at}", at - 6_000, at + 4_000) for at in starts]
    return launched(*works) | {"marks": marks}


def test_a_lead_that_falls_through_the_steps_looms() -> None:
    assert pace_of(steps(6_000, 6_000, 6_000, 6_000)).verdict == "not host-bound"
    assert pace_of(steps(6_000, 5_500, 5_000, 3_100)).verdict == "not host-bound"
    assert pace_of(steps(6_000, 5_500, 5_000, 2_900)).verdict == "looming"
    assert pace_of(steps(2_900, 5_000, 5_500, 6_000)).verdict == "not host-bound"


def ahead(lead_us: int, gap_us: int, extra: int) -> Tables:
    """Return 40 launches of kernels with a gap before each, and some that are starved."""
    works = [
        ("k", at * US, (at + lead_us) * US, (100 - gap_us) * US) for at in range(0, 4_000, 100)
    ]
    return launched(*works, *starved(9_000, extra))


def test_a_short_lead_looms_only_where_the_gpu_is_busy() -> None:
    assert pace_of(ahead(500, 0, 0)).verdict == "looming"
    assert pace_of(ahead(500, 20, 0)).verdict is None
    assert pace_of(ahead(2_000, 20, 0)).verdict == "not host-bound"


def test_a_busy_gpu_that_waits_after_each_synchronize_alone_does_not_loom() -> None:
    """Of 40 launches after a wait, 2 find an idle GPU, 4 come 0.5 ms before their work, 34 4 ms."""
    leads_us = [5] * 2 + [500] * 4 + [4_000] * 34
    starts = [(step + 250 * at, lead) for step in (0, 10_000) for at, lead in enumerate(leads_us)]
    works = [("k", (at - lead) * US, at * US, 245 * US) for at, lead in starts]
    pace = pace_of(launched(*works))
    assert (pace.starved_share, pace.verdict) == (4 / 80, "not host-bound")


def test_without_idle_time_nothing_is_partly_host_bound() -> None:
    """The first launch of eight is starved, as nothing was before it; of four nothing is told."""
    us = US * 1_000
    works = [("k", 0, us // 2, us), *(("k", us // 2, us // 2 + n * us, us) for n in range(1, 8))]
    pace = pace_of(launched(*works))
    assert (pace.starved_share, pace.verdict) == (1 / 8, "not host-bound")
    assert pace_of(launched(*works[:4])).verdict is None


@pytest.mark.parametrize(("each_us", "verdict"), [(1_000, "partly host-bound"), (20_000, None)])
def test_starved_launches_of_long_kernels_between_few_long_gaps_are_not_slow(
    each_us: int, verdict: str | None
) -> None:
    """Each of 12 kernels waits 50 us for its launch; six of them, 5 ms more for something else."""
    works, at = list[tuple[str, int, int, int]](), 0
    for number in range(12):
        at += (5_000 if number % 2 and verdict is None else 0) + 50
        works.append(("k", (at - 10) * US, at * US, each_us * US))
        at += each_us
    assert pace_of(launched(*works)).verdict == verdict


def test_launches_are_counted_by_device() -> None:
    calls = [
        event("cudaLaunchKernel", 0, 5, correlation=1),
        event("cudaGraphLaunch", 16, 46, correlation=2),
        event("cudaLaunchKernel", 100, 104, correlation=3),
    ]
    work = [
        event("a", 10, 15, correlation=1),
        event("b", 50, 59, correlation=2),
        event("c", 60, 100, correlation=2),
        event("unlinked", 100, 120),
        event("Memset (Device)", 121, 125, kind="memset", correlation=2),
        event("late", 500, 512, correlation=3, device=1),
    ]
    devices = [{"device": 0}, {"device": 1, "local_id": 1}]
    found = analyze(trace_of(calls=calls, activities=work, devices=devices)).launches
    assert found is not None
    assert found.short_ns == 10 * US
    one = LaunchSums(2, 4, 35 * US, 1, 30 * US, 1, 4, 2, 14 * US)
    assert found.devices == {0: one, 1: LaunchSums(1, 1, 4 * US, 0, 0, 1, 1, 0, 0)}
    assert found.total == LaunchSums(3, 5, 39 * US, 1, 30 * US, 2, 5, 2, 14 * US)


@pytest.mark.parametrize(("called", "starved"), [(109, 1 / 2), (110, 1)])
def test_a_launch_when_earlier_work_ends_is_starved(called: int, starved: float) -> None:
    pace = pace_of(launched(("a", 0, 100, 10), ("b", called, 120, 10)))
    assert pace.starved_share == starved


def launching(*leads_us: tuple[int, ...]) -> Launches:
    """Return starved launches of several devices, each with these leads in turn."""
    run: Tables = {"activities": [], "calls": [], "devices": []}
    for device, leads in enumerate(leads_us):
        works = [("k", 100 * n * US, (100 * n + us) * US, 10 * US) for n, us in enumerate(leads)]
        rows = launched(*works, first=1_000 * (device + 1))
        run["activities"] += [{**row, "device": device} for row in rows["activities"]]
        run["calls"] += rows["calls"]
        run["devices"].append({"device": device, "local_id": device})
    found = analyze(trace_of(**run)).launches
    assert found is not None
    return found


def test_the_floor_is_the_lower_quartile_of_the_fastest_device() -> None:
    """Starved launches that took 12 to 20 us on one device, 30 us on the other."""
    quick, slow = (12, 14, 16, 18, 20) * 2, (30,) * 10
    assert launching(quick).leads.floor_ns == 14 * US
    both = launching(quick, slow)
    assert (both.leads.floor_ns, both.short_ns) == (14 * US, 14 * US)
    # What several recordings call short is below the floor of each.
    joined = Launches.joined([launching(quick), launching(slow)])
    assert (joined.leads.floor_ns, joined.short_ns) == (14 * US, 30 * US)


@settings(max_examples=examples(50), deadline=None)
@given(WORK)
def test_all_launches_and_kernels_are_counted(work: Tables) -> None:
    last = launched(("k", 1_000, 1_000, 10), first=100)
    tables = {name: [*rows, *last[name]] for name, rows in work.items()}
    found = analyze(trace_of(**tables)).launches
    assert found is not None
    total, count = found.total, len(tables["calls"])
    assert (total.launches, total.operations, total.kernels) == (count, count, count)
    assert total.call_ns == count  # each takes 1 ns
    assert total.short_kernel_ns == sum(one["dur_ns"] for one in tables["activities"])


def test_a_recorded_training_is_host_bound_in_its_forward_phase() -> None:
    trace = read(shared_file("traces/pytorch/v100_kineto_resnet50_nw0.json.gz"))
    pace = analyze(trace).host_bound
    assert pace is not None
    assert (pace.verdict, pace.bound_in) == ("partly host-bound", ("forward",))
    assert sum(one.launches for one in pace.phases.values()) == pace.launches


@pytest.mark.parametrize(("starved_by_step", "counted"), [((9, 1, 0), 20), ((9, 9, 9), 30)])
def test_starved_launches_of_the_first_step_alone_are_not_the_pace_of_the_rest(
    starved_by_step: tuple[int, ...], counted: int
) -> None:
    """Three steps of 10 launches, some of them starved."""
    starts = np.arange(30) * 10
    is_starved = np.concatenate([np.arange(10) < count for count in starved_by_step])
    own = Leads(np.arange(30), starts, np.full(30, 5), is_starved)
    steps: Any = [SimpleNamespace(start_ns=at, end_ns=at + 100) for at in (0, 100, 200)]
    assert len(_after_first(own, steps).call) == counted
    assert len(_after_first(own, steps[:2]).call) == 30
