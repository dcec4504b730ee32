"""Accounts of windows: launches that several activities share, and edges that two windows share."""

import pytest

from tests.build import launched, step_marks, trace_of
from traceflops import analyze
from traceflops.timeline.idle import IdleTime
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Account, Components, IdleCauses


def test_a_call_that_launches_several_counts_once_in_each_window() -> None:
    """A graph of three nodes, one of which runs in the second step, and a kernel alone."""
    run = launched(("graph", 10, 100, 10), ("alone", 1_010, 1_000, 20))
    for start in (120, 1_040):
        run["activities"].append({**run["activities"][0], "start_ns": start})
    marks = step_marks(("ProfilerStep#0", 0, 900), ("ProfilerStep#1", 1_000, 900))
    (device,) = analyze(trace_of(**run, marks=marks)).devices
    counts = [
        (one.account.activities, one.account.launched_activities, one.account.launches)
        for one in device.windows
    ]
    # The steps, each up to the first work that was launched in another, and what is after them.
    assert counts == [(2, 2, 1), (1, 1, 1), (1, 1, 1)]
    whole = device.whole.account
    assert (whole.launched_activities, whole.launches) == (4, 2)


def test_a_gap_up_to_a_step_is_of_the_step_in_which_it_begins_and_delays_the_next() -> None:
    """What begins as a step ends is of the next."""
    run = launched(("a", 10, 100, 50), ("b", 1_010, 1_300, 700), ("c", 2_010, 2_300, 50))
    marks = step_marks(*((f"ProfilerStep#{at}", 1_000 * at, 900) for at in range(3)))
    (device,) = analyze(trace_of(**run, marks=marks)).devices
    gaps = sorted((one.start_ns, one.dur_ns, one.step, one.before_step) for one in device.gaps)
    assert gaps == [(0, 100, 0, None), (150, 1_150, 0, 1), (2_000, 300, 2, None)]


@pytest.mark.parametrize(("unrecorded_ns", "knows"), [(0, True), (50, True), (51, False)])
def test_idle_time_is_known_where_half_of_it_is(unrecorded_ns: int, knows: bool) -> None:
    parts = Components(compute_ns=900, idle_ns=100)
    causes = IdleCauses(
        host_late_ns=100 - unrecorded_ns, unknown_ns=unrecorded_ns, unrecorded_ns=unrecorded_ns
    )
    assert Account(parts, causes, 0, 1, 1, 1).knows_idle is knows


@pytest.mark.parametrize(
    ("starts", "overlaps"),
    [
        ((100, 400), (0, 0)),
        ((100, 110), (1, 10)),
        ((-(2**60), 2**60), (0, 0)),
        ((-(2**60), 5 - 2**60), (1, 15)),
    ],
)
def test_the_first_work_of_a_stream_overlaps_with_nothing(
    starts: tuple[int, int], overlaps: tuple[int, int]
) -> None:
    """Two kernels of 20 ns on one stream, and one at the same time alone on another."""
    run = launched(*(("k", start - 10, start, 20) for start in (*starts, starts[1])))
    for activity, stream in zip(run["activities"], (7, 7, 8), strict=True):
        activity["stream"] = stream
    (device,) = analyze(trace_of(**run)).devices
    found = (device.whole.same_stream_overlaps, device.whole.same_stream_overlap_max_ns)
    assert found == overlaps


def test_a_device_asks_only_threads_that_launch_its_work_for_allocations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three processes, each allocates memory and has a GPU: one question per GPU, not nine."""
    asked = list[int]()

    def explained_by(idle: IdleTime, times: Intervals) -> IdleTime:
        asked.append(times.length_ns)
        return idle

    monkeypatch.setattr(IdleTime, "explained_by", explained_by)
    activities, calls = [], []
    for rank in range(3):
        run = launched(("k", 0, 10, 10), ("k", 25, 90, 10))
        run["calls"].append({"name": "cudaMalloc", "start_ns": 40, "dur_ns": 30 + rank})
        calls += [one | {"process": rank} for one in run["calls"]]
        activities += [one | {"process": rank, "device": rank} for one in run["activities"]]
    processes = [{"rank": rank} for rank in range(3)]
    devices = [{"device": rank, "process": rank} for rank in range(3)]
    made = trace_of(processes=processes, devices=devices, activities=activities, calls=calls)
    analyze(made)
    assert asked == [30, 31, 32]
