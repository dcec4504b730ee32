"""Idle time after a graph launch without a record is unknown: how long the graph ran is, too."""

from collections.abc import Sequence
from typing import Any

import pytest

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import shared_file
from traceflops import analyze
from traceflops.analysis.preparation import prepare
from traceflops.reports.terminal.summary import render_terminal

Row = dict[str, Any]
MS = 1_000_000


def run(*calls: Row, works: Sequence[Row] = ()) -> dict[str, list[Row]]:
    """Return `a` from 100 to 150 and `b`, launched at 1,000, from 1,100 on, with more rows."""
    both = launched(("a", 0, 100, 50), ("b", 1_000, 1_100, 50))
    late = {"name": "cudaFree", "start_ns": 5 * MS}
    return {
        "activities": sorted([*both["activities"], *works], key=lambda one: one["start_ns"]),
        "calls": [*both["calls"], *calls, late],
    }


def graph(at: int = 200, name: str = "cudaGraphLaunch", correlation: int = 90) -> Row:
    return {"name": name, "start_ns": at, "dur_ns": 5, "correlation": correlation}


SYNC = {"start_ns": 300, "dur_ns": 200, "correlation": 95}
LATER = {"start_ns": 300, "dur_ns": 5, "correlation": 96}
WORK = {"name": "c", "start_ns": 400, "dur_ns": 10, "stream": 8}


@pytest.mark.parametrize(
    ("tables", "unseen"),
    [
        pytest.param(run(graph()), (200, 1_100), id="until later work"),
        pytest.param(run(graph(name="hipGraphLaunch")), (200, 1_100), id="HIP"),
        pytest.param(run(graph(name="cuGraphLaunch_ptsz")), (200, 1_100), id="driver"),
        pytest.param(run(graph(), graph(600)), (200, 1_100), id="two of them"),
        pytest.param(
            run(graph(), SYNC | {"name": "cudaDeviceSynchronize"}), (200, 500), id="a wait for all"
        ),
        pytest.param(
            run(graph(), SYNC | {"name": "cudaStreamSynchronize"}),
            (200, 1_100),
            id="a wait for a stream that may be another",
        ),
        pytest.param(
            run(graph(), LATER, works=[WORK | {"correlation": 96}]),
            (200, 1_090),
            id="other streams go on",
        ),
        pytest.param(run(), None, id="no graph"),
        pytest.param(
            run(graph(), works=[WORK | {"correlation": 90}]), None, id="its kernels are there"
        ),
        pytest.param(
            run(graph(), works=[WORK | {"correlation": 70}]),
            None,
            id="kernels that may be its own",
        ),
    ],
)
def test_where_a_replay_may_have_run_idle_time_is_unknown(
    tables: dict[str, list[Row]], unseen: tuple[int, int] | None
) -> None:
    (account,) = prepare(trace_of(**tables)).accounts.values()
    causes = account.account(*account.rows.span).idle_causes
    found = account.idle.unseen
    expected = unseen[1] - unseen[0] if unseen is not None else 0
    assert causes.unrecorded_ns == found.length_ns == expected
    if unseen is not None:
        assert found.start_ns.min() == unseen[0]
        assert causes.host_late_ns + causes.launch_latency_ns == causes.idle_ns - expected


def test_a_lost_replay_of_one_process_leaves_the_devices_of_others_as_they_are() -> None:
    tables: dict[str, list[Row]] = {"activities": [], "calls": []}
    for process, some in enumerate((run(), run(graph()))):
        tables["calls"] += [{**row, "process": process} for row in some["calls"]]
        own = {"process": process, "device": process}
        tables["activities"] += [{**row, **own} for row in some["activities"]]
    both = [{"process": 0}, {"process": 1}]
    owners = [{"device": place, **one} for place, one in enumerate(both)]
    accounts = prepare(trace_of(**tables, processes=both, devices=owners)).accounts
    assert {at: one.idle.unseen.length_ns for at, one in accounts.items()} == {0: 0, 1: 900}


def test_nobody_is_blamed_for_what_a_lost_replay_may_have_done() -> None:
    """One of 100 launches is lost: all else is judged as before."""
    works = [("a", 1_000 * at, 1_000 * at + 100, 500) for at in range(50)]
    works += [("a", 10 * MS + 1_000 * at, 10 * MS + 1_000 * at + 100, 500) for at in range(50)]
    tables = launched(*works)
    for call in tables["calls"]:
        call["name"] = "cudaLaunchKernel"
    alone = analyze(trace_of(**tables))
    at = 60_000
    tables["calls"].append(graph(at, correlation=900))
    lost = analyze(trace_of(**tables))
    unseen_ns = 10 * MS + 100 - at
    assert lost.recorded == "few missing"
    assert lost.total.idle_causes.unrecorded_ns == unseen_ns
    assert lost.total.idle_causes.idle_ns == alone.total.idle_causes.idle_ns
    assert lost.idle.unexplained_ns == alone.idle.unexplained_ns + unseen_ns
    assert max(one.idle_ns for one in lost.idle.culprits) < 100_000
    assert "busy at least" in lost.verdict.sentence
    (gap,) = [one for one in lost.devices[0].gaps if one.dur_ns > MS]
    assert sum(one.idle_ns for one in gap.culprits) == gap.dur_ns - unseen_ns
    (note,) = [one for one in lost.notes if one.code == "replays-unrecorded"]
    assert "up to 9.940 ms of the idle time" in note.text
    assert "earlier-work-missing" not in {one.code for one in lost.notes}


def test_a_public_kind_of_export_without_rows_of_graphs() -> None:
    """In truth the GPU is busy for 99.4 % of the time: 20 replays took 240 ms."""
    path = shared_file("cases/nsight/nsysrep_graph_replays/export_without_graph_rows.sqlite")
    analysis = analyze(tf.read(path))
    assert not analysis.total.knows_idle
    assert analysis.recorded == "few missing"
    lead, busy, *_ = analysis.verdict.sentence.split(". ")
    assert lead == "20 of 20 graph launches have no GPU record"
    assert busy == "The GPU is busy at least 29.2 % of the total time"
    (lack,) = analysis.measured.lacks
    assert lack.problem == "graph launches have no GPU records"
    shown = "\n".join(line.plain for line in render_terminal(analysis))
    assert "starts late" not in shown
    assert "idle for" not in shown
