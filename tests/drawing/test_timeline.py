"""What a timeline draws of small traces: lanes, levels, steps, gaps, what it leaves out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import launched, step_marks, trace_of
from traceflops.analysis.preparation import prepare
from traceflops.drawing import lanes
from traceflops.drawing.timeline import Budget, Drawable, Span, Timeline, drawable, parts_ns
from traceflops.table.trace import Note, Trace
from traceflops.timeline.records import Gap, IdleCauses
from traceflops.windows.prepared import Prepared


def drawn(trace: Trace, gaps: tuple[Gap, ...] = ()) -> tuple[Prepared, Drawable]:
    prepared = prepare(trace)
    found = drawable(prepared, gaps)
    assert found is not None
    return prepared, found


def gap(device: int, start: int, length: int) -> Gap:
    return Gap(device, start, length, None, "", "", "", "", IdleCauses(0, 0, 0, length))


def kernels(*works: tuple[int, int], **more: Any) -> list[dict[str, Any]]:
    return [{"name": "k", "start_ns": s, "dur_ns": d, **more} for s, d in works]


def boxes_of(timeline: Timeline, level: int = 0) -> list[tuple[str, int, int, int, int]]:
    """Return kind, depth, start, end and count of each box of a level."""
    boxes = timeline.levels[level].boxes
    found = zip(
        *(getattr(boxes, n).tolist() for n in ("lane", "start_ns", "end_ns", "count")), strict=True
    )
    of = timeline.lanes
    return [(of[lane].kind, of[lane].depth, s, e, n) for lane, s, e, n in found]


def steps(count: int, length: int = 100) -> dict[str, list[dict[str, Any]]]:
    """Return steps with ten kernels each, the step at place 4 twice as long."""
    works, marks, at = [], [], 0
    for step in range(count):
        lasts = length * (2 if step == 4 else 1)
        marks.append((f"ProfilerStep#{step}", at, lasts))
        works += [("k", at + i, at + i * lasts // 10 + 1, lasts // 20) for i in range(10)]
        at += lasts
    return launched(*works) | {"marks": step_marks(*marks)}


def test_a_stream_a_lane_and_host_tables_below_one_another() -> None:
    trace = trace_of(
        activities=[*kernels((100, 10), (120, 30)), *kernels((105, 50), stream=9)],
        calls=[{"start_ns": 92, "dur_ns": 3}],
        ops=[
            {"name": "outer", "start_ns": 90, "dur_ns": 20},
            {"name": "inner", "start_ns": 91, "dur_ns": 5},
        ],
        marks=[
            {"name": "phase", "start_ns": 80, "dur_ns": 100},
            {"name": "<built-in sum>", "kind": "python", "start_ns": 80, "dur_ns": 100},
        ],
    )
    _, found = drawn(trace)
    timeline = found.within(Budget())
    assert boxes_of(timeline) == [
        ("stream", 0, 0, 10, 1),
        ("stream", 0, 20, 50, 1),
        ("stream", 0, 5, 55, 1),
        ("range", 0, -20, 80, 1),
        ("op", 0, -10, 10, 1),
        ("op", 1, -9, -4, 1),
        ("call", 0, -8, -5, 1),
    ]
    assert [lane.track for lane in timeline.lanes] == [7, 9, 1, 1, 1, 1]
    assert timeline.left_out.marks == {"python": 1}
    assert timeline.levels[0].boxes.events == 7


def frame(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    row = {"name": name, "kind": "python", "start_ns": start, "dur_ns": end - start}
    return row | more


def test_functions_of_users_and_modules_are_frames_of_a_lane_of_their_own() -> None:
    trace = trace_of(
        activities=kernels((0, 10), (990, 10)),
        calls=[{"start_ns": 980, "dur_ns": 3}],
        marks=[
            frame("train.py(1): main", 0, 1_000),  # little but a call
            frame("train.py(9): run", 0, 950),
            frame("nn.Module: Model_0", 100, 900, kind="module"),
            frame("model.py(5): forward", 100, 900),
            frame("torch/nn/functional.py(7): linear", 110, 200),
            frame("model.py(8): norm", 150, 160),
            frame("worker.py(8): loop", 0, 1_000, thread=2),  # a thread of nothing else
        ],
    )
    _, found = drawn(trace)
    frames = [one for one in boxes_of(found.within(Budget())) if one[0] == "frame"]
    assert frames == [
        ("frame", 0, 0, 950, 1),
        ("frame", 1, 100, 900, 1),
        ("frame", 2, 100, 900, 1),
        ("frame", 3, 150, 160, 1),
    ]
    assert found.outline.left_out.marks == {"python": 3}


def test_of_many_frames_those_near_gaps_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "activities": kernels((0, 10), (100, 10), (400, 10), (5_000, 10)),
        "calls": [{"start_ns": 2, "dur_ns": 3}],
        "marks": [
            *(frame(f"train.py({t}): step", t, t + 9) for t in range(0, 5_000, 10)),
            frame("nn.Module: Model_0", 5_000, 5_010, kind="module"),
        ],
    }
    near = (gap(0, 110, 290),)

    def starts() -> list[int]:
        _, found = drawn(trace_of(**rows), near)
        return [s for kind, _, s, _, _ in boxes_of(found.within(Budget())) if kind == "frame"]

    assert starts() == list(range(0, 5_010, 10))
    monkeypatch.setattr(lanes, "_MOST_FRAMES", 500)
    assert starts() == [*range(0, 690, 10), 5_000]  # as much again on both sides: -180 to 690


def test_outstanding_launches_are_counted_in_each_level() -> None:
    works = [("k", 10 * i, 1_000 + 10 * i, 5) for i in range(50)]
    _, found = drawn(trace_of(**launched(*works)))
    exact = found.within(Budget()).levels[0].counters[0, "outstanding"]
    # The first activity is the time 0: one launch more every 10 ns, then one less.
    at = [*range(-1_000, -500, 10), *range(0, 490, 10)]
    assert exact.start_ns.tolist() == at
    assert exact.end_ns.tolist() == [*at[1:], 490]
    assert exact.most.tolist() == exact.least.tolist() == [*range(1, 51), *range(49, 0, -1)]
    few = found.within(Budget(all=90, overview=90, step=90, gap=9, counts=9))
    coarse = few.levels[0].counters[0, "outstanding"]
    assert 1 < len(coarse.most) <= 9
    assert (coarse.most.max(), coarse.least.min()) == (50, 1)
    assert coarse.end_ns[:-1].tolist() == coarse.start_ns[1:].tolist()


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(0, 40)),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 30),
)
def test_merged_and_single_are_all_events(works: list[tuple[int, int, int]], most: int) -> None:
    rows = [{"name": "k", "stream": s, "start_ns": t, "dur_ns": d} for s, t, d in sorted(works)]
    _, found = drawn(trace_of(activities=rows))
    timeline = found.within(Budget(most, most, most, most))
    deep = timeline.left_out.deep
    assert timeline.levels[0].boxes.events + deep == len(works)
    assert len(timeline.levels[0].boxes) <= max(most, len(timeline.lanes))
    for level in timeline.levels:
        boxes = level.boxes
        same = boxes.lane[1:] == boxes.lane[:-1]
        assert (boxes.start_ns[1:][same] >= boxes.end_ns[:-1][same]).all()
    whole = found.within(Budget())
    if not deep:
        origin = min(t for _, t, _ in works)
        wanted = sorted((t - origin, t - origin + d) for _, t, d in works)
        assert sorted((s, e) for _, _, s, e, _ in boxes_of(whole)) == wanted
    rows_drawn = whole.levels[0].boxes.row
    assert len(np.unique(rows_drawn)) == len(rows_drawn)


def test_the_median_and_the_longest_step_used_are_there_in_detail() -> None:
    _, found = drawn(trace_of(**steps(8)))
    steps_found = found.outline.representative
    assert steps_found is not None
    # By length and number 0, 1, 2, 3, 5, 6, 4 are used; the last one is not.
    assert (steps_found.median, steps_found.worst) == (3, 4)
    timeline = found.within(Budget(all=20, overview=10, step=60, gap=5))
    assert [level.is_single for level in timeline.levels] == [False, True, True]
    assert timeline.levels[0].boxes.events == sum(map(len, found.lanes))
    assert timeline.steps[4] == Span(400, 600)
    assert timeline.levels[2].span == Span(396, 604)
    inside = [one for one in boxes_of(timeline, 2) if one[0] == "stream"]
    assert inside == [("stream", 0, 400 + 20 * i, 410 + 20 * i, 1) for i in range(10)] + [
        ("stream", 0, 600, 605, 1)
    ]


def test_the_surroundings_of_a_gap_are_there_in_detail() -> None:
    rows = kernels(*((10 * i, 5) for i in range(50)), *((1000 + 10 * i, 5) for i in range(50)))
    _, found = drawn(trace_of(activities=rows), (gap(0, 495, 505), gap(7, 0, 5)))
    assert found.outline.gaps == (Span(495, 1000), None)
    timeline = found.within(Budget(all=10, overview=10, step=5, gap=1000))
    last = timeline.levels[-1]
    assert last.span == Span(-10, 1505)
    assert last.is_single
    assert len(last.boxes) == 100


def test_many_devices_are_represented_by_some() -> None:
    count = 20
    rows = [
        row
        for device in range(count)
        for row in kernels((0, 100 + device), (500, 10), device=device, process=device)
    ]
    trace = trace_of(
        processes=[{"process": i, "rank": i} for i in range(count)],
        devices=[{"device": i, "process": i} for i in range(count)],
        activities=rows,
    )
    _, found = drawn(trace, (gap(3, 103, 397),))
    chosen = found.outline.chosen
    assert (chosen.busiest, chosen.median, chosen.of) == (19, 9, 20)
    assert chosen.devices == (0, 3, 9, 19)
    assert found.outline.left_out.devices == 16


def test_clocks_that_cannot_be_compared_begin_with_each_process() -> None:
    trace = trace_of(
        processes=[{"process": 0}, {"process": 1}],
        devices=[{"device": 0}, {"device": 1, "process": 1}],
        activities=[*kernels((50, 10)), *kernels((9_000, 10), device=1, process=1)],
    )
    note = Note("assumed", "clocks-not-aligned", "")
    _, found = drawn(Trace(trace.source, trace.tables, (note,)))
    timeline = found.within(Budget())
    assert not timeline.aligned
    assert [(s, e) for _, _, s, e, _ in boxes_of(timeline)] == [(0, 10), (0, 10)]


def test_lanes_are_limited_and_what_they_lack_is_counted() -> None:
    streams = [row for s in range(40) for row in kernels((0, s + 1), stream=s)]
    _, found = drawn(trace_of(activities=streams))
    left = found.outline.left_out
    assert (len(found.outline.lanes), left.tracks, left.events_of_tracks) == (32, 8, 8)
    assert min(lane.track or 0 for lane in found.outline.lanes) == 8
    _, deep = drawn(trace_of(activities=kernels(*((i, 1000) for i in range(40)))))
    assert (len(deep.outline.lanes), deep.outline.left_out.deep) == (32, 8)


def test_the_strip_holds_the_components_exactly() -> None:
    rows = [
        {"name": "ncclDevKernel_AllReduce", "start_ns": 0, "dur_ns": 30},
        {"name": "sm90_xmma_gemm_bf16", "start_ns": 20, "dur_ns": 40},
        {"name": "Memset", "kind": "memset", "start_ns": 90, "dur_ns": 10},
    ]
    prepared, found = drawn(trace_of(activities=rows))
    parts = parts_ns(prepared, found.outline, found.whole, 4)
    assert parts["compute"].tolist() == [5, 25, 10, 0]
    assert parts["communication"].tolist() == [20, 0, 0, 0]
    assert parts["memory"].tolist() == [0, 0, 0, 10]


def test_a_trace_without_any_length_has_a_box() -> None:
    _, found = drawn(trace_of(activities=kernels((5, 0))))
    assert boxes_of(found.within(Budget())) == [("stream", 0, 0, 0, 1)]
    assert found.outline.window == Span(0, 0)


def test_a_run_on_the_host_alone_is_drawn() -> None:
    trace = trace_of(devices=[], ops=[{"name": "aten::mm", "start_ns": 7, "dur_ns": 9}])
    _, found = drawn(trace)
    assert boxes_of(found.within(Budget())) == [("stream", 0, 0, 9, 1), ("op", 0, 0, 9, 1)]


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawable(prepare(trace_of())) is None
    assert drawable(prepare(trace_of(calls=[{"start_ns": 1}]))) is None


def test_what_a_profiler_sampled_of_a_device_is_counted_clocks_first() -> None:
    rows = [
        {"device": 0, "name": name, "time_ns": at, "value": value}
        for name, values in (("SM Active [%]", (10.4, 90.0)), ("Clock [MHz]", (1410.0, 1200.0)))
        for at, value in zip((0, 50), values, strict=True)
    ]
    rows += [{"device": 0, "name": "never changes", "time_ns": at, "value": 1.0} for at in (0, 50)]
    trace = trace_of(**launched(("k", 0, 10, 90)), counters=rows)
    found = drawable(prepare(trace))
    assert found is not None
    assert list(found.counters) == [(0, "outstanding"), (0, "Clock [MHz]"), (0, "SM Active [%]")]
    assert found.counters[0, "SM Active [%]"].count.tolist() == [10]
