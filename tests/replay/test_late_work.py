"""Work that begins later than anything explains: from when on, and what becomes of it."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.build import launched, trace_of
from traceflops import analyze, what_if
from traceflops.replay.recorded_graph import Edges, Nodes, RecordedGraph
from traceflops.replay.what_if import Replay


def test_work_that_is_gone_takes_its_late_start_along() -> None:
    """The second kernel starts 15 us after the first, the third 1 us after it."""
    run = launched(("a", 0, 10_000, 50_000), ("b", 1_000, 75_000, 20_000), ("c", 2_000, 96_000, 10))
    outcome = what_if(analyze(trace_of(**run)), "kernel:^b$=0").together
    assert (outcome.before_ns, outcome.doubts) == (86_010, ())
    # Then the third one starts 1 us after the first.
    assert outcome.after_ns == 50_000 + 1_000 + 10


@pytest.mark.parametrize(("late_ns", "unexplained"), [(400, False), (401, True)])
def test_a_delay_up_to_its_cap_is_explained(late_ns: int, unexplained: bool) -> None:
    """Work of 10 ns, ready 5 ns after what it waits for ended at 100 ns."""
    none, each = np.full(2, -1), np.arange(2)
    nodes = Nodes(
        time_ns=np.array([100, 115 + late_ns]),
        dur_ns=np.array([100, 10]),
        process=0 * each,
        row=each,
        device=0 * each,
        thread=none,
        at_ns=none,
        call=none,
        cap_ns=np.full(2, 400),
    )
    edge = np.zeros(1, np.int64)
    edges = Edges(edge, edge + 1, edge + 5, edge.astype(np.int8), edge > 0)
    graph = RecordedGraph(nodes, edges, each, each)
    assert graph.delay_ns.tolist() == [0, late_ns]
    assert graph.is_unexplained.tolist() == [False, unexplained]


def test_a_wait_that_was_over_at_once_takes_no_longer_than_others_once_it_waits() -> None:
    """Work of 100 us had ended 390 us before the call that waits for it.

    Six times as long it ends at 610 us; then the call returns in the usual 6 us.
    """
    us = 1_000
    run = launched(("a", 0, 10 * us, 100 * us), ("b", 510 * us, 516 * us, 50 * us))
    run["calls"].append({"name": "cudaDeviceSynchronize", "start_ns": 500 * us, "dur_ns": 2 * us})
    outcome = what_if(analyze(trace_of(**run)), "kernel:^a$*6").together
    assert outcome.before_ns == 556 * us
    assert outcome.after_ns == (600 + 6 + 8 + 6 + 50) * us


def test_hidden_communication_takes_as_long_as_the_queue_with_most_of_it() -> None:
    """Two queues of 50 us each, of which all but 10 us lies side by side."""
    us = 1_000
    run = launched(
        ("gemm", 0, 10 * us, 10 * us),
        ("ncclDevKernel_AllReduce_Sum", us, 20 * us, 50 * us),
        ("ncclDevKernel_AllGather", 2 * us, 30 * us, 50 * us),
    )
    for activity, stream in zip(run["activities"], (7, 8, 9), strict=True):
        activity["stream"] = stream
    outcome = what_if(analyze(trace_of(**run)), "communication=hidden").together
    assert (outcome.before_ns, outcome.least_ns) == (70 * us, 50 * us)


@pytest.mark.parametrize(("other", "doubted"), [(75, False), (76, True)])
def test_readings_that_differ_by_more_than_half_the_gain_are_a_doubt(
    other: int, doubted: bool
) -> None:
    readings = [SimpleNamespace(unlike=frozenset(one)) for one in ((), ("doubt.pinned",))]
    replay = SimpleNamespace(readings=readings, awaits_others=False, critical=())
    doubts = [one.code for one in Replay._doubts(replay, 100, [50, other])]  # type: ignore[arg-type]
    assert doubts == ["doubt.pinned"] * doubted
