"""The oracle itself: properties, a count of single nanoseconds, and hand-made cases."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sample_traces.config import RunConfig
from sample_traces.records import (
    Activity,
    ActivityKind,
    Call,
    Cause,
    RankRun,
    Recorded,
    Run,
    Spent,
    Work,
)
from sample_traces.simulate import simulate
from sample_traces.truth import ALL_RECORDED, COMPONENTS, DeviceTruth, told, truth
from tests.conftest import examples
from tests.samples.strategies import run_configs

_few = settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])

_KIND: dict[str, ActivityKind] = {"graph": "graph", "memory": "memcpy"}


def activity(
    start_ns: int,
    dur_ns: int,
    top: str = "compute",
    *,
    stream: int = 7,
    call: int | None = None,
    step: int | None = None,
) -> Activity:
    work = Work("k", _KIND.get(top, "kernel"), top, "any", dur_ns)
    return Activity(start_ns, dur_ns, stream, work, 1, call, None, step, None, None)


def call(start_ns: int) -> Call:
    return Call(start_ns, 1, "cudaLaunchKernel", 1, "launch", 1, None, None, 7, None)


def device(activities: list[Activity], calls: list[Call], steps: int = 1) -> DeviceTruth:
    ordered = tuple(sorted(activities, key=lambda a: a.start_ns))
    rank = RankRun(0, 1, 1, 2, 0, 1000, ordered, tuple(calls), (), (), ())
    return truth(Run(RunConfig(steps=steps), (rank,))).ranks[0]


@_few
@given(run_configs(opaque_graphs=True))
def test_windows_tile_and_everything_adds_up(config: RunConfig) -> None:
    for one in truth(simulate(config)).ranks:
        windows = one.windows
        # A step that begins at its mark, before all GPU work, begins outside of the device's time.
        assume(windows[1].start_ns >= one.start_ns)
        assert (windows[0].start_ns, windows[-1].end_ns) == (one.start_ns, one.end_ns)
        assert all(a.end_ns == b.start_ns for a, b in pairwise(windows))
        assert all(window.length_ns >= 0 for window in windows)
        for window in windows:
            assert sum(window.components.values()) == window.length_ns
            assert sum(window.idle_causes.values()) == window.components["idle"]
        for name in COMPONENTS:
            assert sum(w.components[name] for w in windows) == one.components[name]
        assert sum(w.hidden_communication_ns for w in windows) == one.hidden_communication_ns
        assert sum(gap.end_ns - gap.start_ns for gap in one.gaps) == one.idle_ns
        assert one.busy_ns + one.idle_ns == one.span_ns
        assert sum(one.sum_by_category.values()) == sum(one.sum_by_kind.values())
        assert all(one.union_by_kind[k] <= total for k, total in one.sum_by_kind.items())
        assert one.busy_ns <= sum(one.union_by_kind.values())


_TOPS = st.sampled_from(["compute", "memory", "other", "graph", "communication"])


@st.composite
def _scattered(draw: st.DrawFn) -> list[Activity]:
    size = draw(st.integers(0, 12))
    return [
        activity(draw(st.integers(0, 80)), draw(st.integers(0, 30)), draw(_TOPS))
        for _ in range(size)
    ]


@settings(max_examples=examples(150))
@given(_scattered(), st.lists(st.integers(0, 80), min_size=1, max_size=3))
def test_components_equal_a_count_of_single_nanoseconds(
    scattered: list[Activity], step_starts: list[int]
) -> None:
    starts = sorted(step_starts)
    marked = [activity(start, 3, step=number) for number, start in enumerate(starts)]
    everything = scattered + marked
    for window in device(everything, [], len(starts)).windows:
        counted = dict.fromkeys(COMPONENTS, 0)
        hidden = 0
        for moment in range(window.start_ns, window.end_ns):
            running = {
                a.component for a in everything if a.start_ns <= moment < a.start_ns + a.dur_ns
            }
            first = min(running | {"idle"}, key=COMPONENTS.index)
            counted[first] += 1
            hidden += "communication" in running and first != "communication"
        assert (window.components, window.hidden_communication_ns) == (counted, hidden)


def test_components_stand_in_the_order_of_the_design() -> None:
    assert COMPONENTS == (
        "compute",
        "memory",
        "other",
        "graph",
        "communication",
        "start_up",
        "idle",
    )


def test_windows_reach_from_first_start_to_first_start() -> None:
    one = device(
        [
            activity(10, 5),
            activity(20, 10, call=0, step=0),
            activity(25, 30, stream=8, call=0, step=0),
            activity(40, 5, call=0, step=1),
            activity(50, 20, call=0, step=1),
            activity(90, 10),
        ],
        [call(0)],
        steps=2,
    )
    bounds = [(w.label, w.start_ns, w.end_ns, w.launched) for w in one.windows]
    assert bounds == [
        ("before", 10, 20, 0),
        ("step 0", 20, 40, 2),
        ("step 1", 40, 70, 2),
        ("after", 70, 100, 0),
    ]
    assert (one.count, one.unlinked, one.span_ns, one.busy_ns) == (6, 2, 90, 65)


def causes(late_call: int | None, *, stream: int = 7) -> dict[str, int]:
    """Return the non-zero causes of a gap 10..20, ended by work that `late_call` asked for."""
    calls = [call(0)] if late_call is None else [call(0), call(late_call)]
    asked_by = None if late_call is None else 1
    next_work = activity(20, 5, stream=stream, call=asked_by, step=0)
    one = device([activity(0, 10, call=0, step=0), next_work], calls)
    (gap,) = one.gaps
    assert (gap.start_ns, gap.end_ns, gap.activity) == (10, 20, 1)
    return {cause: dur_ns for cause, dur_ns in gap.causes.items() if dur_ns}


def test_a_gap_has_the_cause_of_the_work_that_ends_it() -> None:
    assert causes(17) == {"host_late": 7, "launch_latency": 3}
    assert causes(20) == {"host_late": 10}
    assert causes(10) == {"launch_latency": 10}
    # Launched in time, but its own stream was busy until the gap began.
    assert causes(4) == {"launch_latency": 10}
    # Launched in time, its own stream free: it waited for another stream.
    assert causes(4, stream=8) == {"queued": 10}
    assert causes(10, stream=8) == {"launch_latency": 10}
    assert causes(12, stream=8) == {"host_late": 2, "launch_latency": 8}
    assert causes(None) == {"unknown": 10}


def test_work_of_no_length_ends_a_gap() -> None:
    one = device(
        [activity(0, 10, call=0, step=0), activity(14, 0), activity(20, 5, call=1, step=0)],
        [call(0), call(18)],
    )
    assert [(gap.start_ns, gap.end_ns) for gap in one.gaps] == [(10, 14), (14, 20)]
    assert one.idle_causes == {"host_late": 4, "queued": 0, "launch_latency": 2, "unknown": 4}


def test_of_several_starts_at_once_the_earliest_call_ends_the_gap() -> None:
    one = device(
        [
            activity(0, 10, call=0, step=0),
            activity(20, 5, stream=9),
            activity(20, 5, stream=8, call=2, step=0),
            activity(20, 5, call=1, step=0),
        ],
        [call(0), call(15), call(18)],
    )
    assert one.idle_causes["host_late"] == 5


def test_sums_count_overlap_twice_and_unions_once() -> None:
    one = device([activity(0, 10, step=0), activity(4, 10), activity(2, 4, "memory")], [])
    assert one.sum_by_kind == {"kernel": 20, "memcpy": 4}
    assert one.union_by_kind == {"kernel": 14, "memcpy": 4, "memset": 0, "graph": 0}
    assert one.count_by_kind == {"kernel": 2, "memcpy": 1}
    assert one.sum_by_category == {("compute", "any"): 20, ("memory", "any"): 4}


ALLOCATES = Cause("memory_alloc", "f.py(1): f", "aten::empty")
READS = Cause("sync_call", "f.py(1): f", "aten::item")


@pytest.mark.parametrize(
    ("spent", "unseen", "expected"),
    [
        (Spent(5, 60, ALLOCATES, "call", "cudaMalloc"), set(), ("cudaMalloc in f.py(1): f", 50)),
        (Spent(5, 60, ALLOCATES, "op"), {"python"}, ("aten::empty", 50)),
        (Spent(50, 99, ALLOCATES, "python"), set(), ("f.py(1): f", 40)),
        (Spent(90, 95, ALLOCATES, "call", "cudaMalloc"), {"python", "op"}, ("cudaMalloc", 5)),
        (Spent(20, 60, ALLOCATES, "python"), {"python"}, None),
        (Spent(50, 99, ALLOCATES, "system", "poll"), {"python", "op"}, ("poll", 40)),
        (Spent(50, 99, ALLOCATES, "system", "poll"), {"system"}, ("f.py(1): f", 40)),
        (Spent(50, 99, ALLOCATES, "system", "poll"), {"python", "system"}, None),
        (Spent(0, 10, ALLOCATES, "op"), set(), None),
    ],
)
def test_what_is_told_of_a_gap(
    spent: Spent, unseen: set[Recorded], expected: tuple[str, int] | None
) -> None:
    """The device idles from 10 to 100; what ends this is launched at 90."""
    works = activity(0, 10, step=0), activity(100, 10, call=0, step=0)
    rank = RankRun(0, 1, 1, 2, 0, 1000, works, (call(90),), (), (), (), (spent,))
    (gap,) = truth(Run(RunConfig(steps=1), (rank,))).ranks[0].gaps
    known = told(gap, rank, ALL_RECORDED - unseen)
    if expected is None:
        assert known is None
        return
    assert known is not None
    name, ns = expected
    latency = 5 if spent.start_ns == 90 else 10
    assert known.idle_ns == {
        ("memory_alloc", name): ns,
        ("launch_latency", "cudaLaunchKernel"): latency,
    }


def test_without_its_operator_a_read_back_is_a_copy_and_without_a_call_nothing_is_known() -> None:
    copies = Spent(20, 60, READS, "call", "cudaMemcpyAsync")
    works = [activity(0, 10, step=0), activity(100, 10, call=0), activity(200, 10)]
    rank = RankRun(0, 1, 1, 2, 0, 1000, tuple(works), (call(90),), (), (), (), (copies,))
    first, second = truth(Run(RunConfig(steps=1), (rank,))).ranks[0].gaps
    known: dict[Any, Any] = {}
    for one in (told(first, rank, frozenset(("call",))), told(second, rank)):
        known |= one.idle_ns if one else {}
    assert known == {
        ("blocking_copy", "cudaMemcpyAsync"): 40,
        ("launch_latency", "cudaLaunchKernel"): 10,
        ("unexplained", ""): 90,
    }
