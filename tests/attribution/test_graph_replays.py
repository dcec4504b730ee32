"""Kernels of replayed graphs and the captured launches that they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sample_traces.modules import ModuleTruth, module_truth
from sample_traces.simulate import simulate
from tests.attribution.test_planted_culprits import WAYS
from tests.build import launched, table_of, trace_of
from tests.conftest import examples, shared_file
from tests.samples.strategies import run_configs
from traceflops.analysis.preparation import prepare, prepare_pair
from traceflops.analysis.recipe import analyze
from traceflops.attribution.graph_replays import replays
from traceflops.attribution.launching_ops import launchers
from traceflops.devices.merging import merge
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

GRAPH = ("gemm", "norm", "gemm", "add")


def captured(*graphs: tuple[str, ...], grids: tuple[int, ...] = ()) -> Trace:
    """Return captures one after the other; each kernel has an op of its own, in a module."""
    tables: dict[str, list[dict[str, Any]]] = {"calls": [], "ops": [], "marks": []}
    at = 0
    for number, names in enumerate(graphs):
        tables["calls"].append({"name": "hipStreamBeginCapture", "start_ns": at})
        for nth, name in enumerate(names):
            at += 100
            tables["marks"].append(
                {"name": f"nn.Module: M{nth}_0", "start_ns": at, "dur_ns": 90, "kind": "module"}
            )
            tables["ops"].append({"name": f"op{number}.{nth}", "start_ns": at + 10, "dur_ns": 70})
            size = {"grid": [grids[number], 1, 1], "block": [64, 1, 1]} if grids else {}
            tables["calls"].append(
                {"start_ns": at + 20, "correlation": at, "kernel": name, "name": "hipLaunchKernel"}
                | size
            )
        at += 100
        tables["calls"].append({"name": "hipStreamEndCapture", "start_ns": at})
        # Launched after the capture, and not recorded: no kernel of the graph.
        at += 100
        tables["calls"].append({"start_ns": at, "correlation": at, "kernel": "gemm"})
        at += 100
    return trace_of(**tables)


def replayed(
    *names: str, times: int = 1, streams: tuple[int, ...] = (), grid: int | None = None
) -> Trace:
    """Return a trace of so many replays of a graph, and of one kernel beside each."""
    calls, activities, at = [], [], 0
    size = {"grid": [grid, 1, 1], "block": [64, 1, 1]} if grid else {}
    for nth in range(times):
        graph, alone = 2 * nth + 1, 2 * nth + 2
        calls += [
            {"name": "hipGraphLaunch", "start_ns": at, "correlation": graph},
            {"name": "hipLaunchKernel", "start_ns": at + 2, "correlation": alone},
        ]
        for place, name in enumerate(names):
            at += 100
            stream = streams[place] if streams else 7
            activities.append(
                {"name": name, "start_ns": at, "correlation": graph, "stream": stream} | size
            )
        at += 100
        activities.append({"name": "gemm", "start_ns": at, "correlation": alone})
        at += 100
    return trace_of(calls=calls, activities=activities)


def paired(timed: Trace, capture: Trace) -> tuple[list[str | None], list[str]]:
    """Return the captured op of each kernel, and the texts of the notes."""
    ours, theirs = prepare(timed).linked, prepare_pair(capture).linked
    found = replays(ours, theirs)
    assert found is not None
    op = [theirs.links.op_of_activity[row] if row >= 0 else -1 for row in found.captured]
    names = theirs.trace.ops["name"].to_pylist()
    return [names[row] if row >= 0 else None for row in op], [note.text for note in found.notes]


PRODUCT = {
    "name": "aten::mm",
    "input_dims": "[[8,8],[8,8]]",
    "input_types": '["float","float"]',
}
OPS = ["op0.0", "op0.1", "op0.2", "op0.3", None]


def test_kernels_of_a_replay_are_the_captured_launches_in_order() -> None:
    ops, notes = paired(replayed(*GRAPH), captured(GRAPH))
    assert ops == OPS
    assert [text.split(" are ")[0] for text in notes] == ["4 kernels of 1 graph replay"]


def test_each_replay_is_paired_with_the_capture() -> None:
    ops, _ = paired(replayed(*GRAPH, times=3), captured(GRAPH))
    assert ops == OPS * 3


def test_of_several_captured_graphs_the_one_with_these_kernels_counts() -> None:
    ops, _ = paired(replayed(*GRAPH), captured(GRAPH[:3], ("gemm", "add", "gemm", "norm"), GRAPH))
    assert ops == ["op2.0", "op2.1", "op2.2", "op2.3", None]


def test_graphs_of_the_same_kernels_are_told_apart_by_their_sizes() -> None:
    ops, _ = paired(replayed(*GRAPH, grid=16), captured(GRAPH, GRAPH, grids=(8, 16)))
    assert ops == ["op1.0", "op1.1", "op1.2", "op1.3", None]


def of_rank(trace: Trace, rank: int) -> Trace:
    tables = {**trace.tables, "processes": trace_of(processes=[{"rank": rank}]).processes}
    return replace(trace, tables=tables)


def test_captures_of_several_files_are_told_apart_by_kernels_and_ranks() -> None:
    """The last begins inside the capture: all that its calls launch is one graph."""
    last = captured(GRAPH)
    inside = [call for call in last.calls.to_pylist() if call["name"] == "hipLaunchKernel"]
    last = replace(last, tables={**last.tables, "calls": table_of("calls", inside)})
    parts = zip((captured(GRAPH[:3]), captured(GRAPH), last), (0, 0, 1), strict=True)
    capture = prepare_pair(merge([of_rank(part, rank) for part, rank in parts])).linked
    for rank in (0, 1):
        found = replays(prepare(of_rank(replayed(*GRAPH), rank)).linked, capture)
        assert found is not None
        launches = capture.trace.activities.take(found.captured[:4])
        assert launches["name"].to_pylist() == [*GRAPH]
        assert {capture.trace.ranks[one] for one in launches["process"].to_pylist()} == {rank}


@pytest.mark.parametrize(
    ("names", "graphs", "why"),
    [
        (GRAPH[:3], (GRAPH,), "a replay has 3 kernels, the capture 4"),
        (("gemm", "norm", "gemm", "mul"), (GRAPH,), "kernel 4 of a replay has another name"),
        (("gemm", "gemm", "norm", "add"), (GRAPH,), "its kernels are in another order"),
        (GRAPH, (GRAPH, GRAPH), "several captured graphs have them"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    names: tuple[str, ...], graphs: tuple[tuple[str, ...], ...], why: str
) -> None:
    ops, notes = paired(replayed(*names), captured(*graphs))
    assert set(ops) == {None}
    (note,) = notes
    assert why in note


def test_on_several_streams_only_kernels_of_one_stream_have_an_order() -> None:
    """Which of the two products is which, no captured launch tells."""
    swapped = replayed("gemm", "add", "gemm", "norm", streams=(1, 1, 2, 2))
    ops, notes = paired(swapped, captured(GRAPH))
    assert ops == [None, "op0.3", None, "op0.1", None]
    assert notes[0].startswith("2 kernels of 1 graph replay")
    ops, _ = paired(replayed("norm", "add", "gemm", "gemm", streams=(1, 1, 2, 2)), captured(GRAPH))
    assert ops == ["op0.1", "op0.3", "op0.0", "op0.2", None]


def test_nothing_is_paired_without_replays_or_without_captured_launches() -> None:
    alone = trace_of(**launched(("gemm", 1, 10, 20)))
    replay, capture = replayed(*GRAPH), captured(GRAPH)
    for timed, other in ((alone, capture), (replay, alone)):
        assert replays(prepare(timed).linked, prepare_pair(other).linked) is None


def test_reports_name_what_launched_the_captured_kernels() -> None:
    found = analyze(replayed(*GRAPH), pair=with_shapes(captured(GRAPH))).prepared
    assert found is not None
    rows = launchers(found.as_launched).to_pylist()
    assert {(row["name"], row["op"], row["scope"]) for row in rows} == {
        ("gemm", "aten::mm", "M0"),
        ("gemm", "op0.2", "M2"),
        ("gemm", None, None),
        ("norm", "op0.1", "M1"),
        ("add", "op0.3", "M3"),
    }
    assert np.array_equal(found.linked.links.call_of_activity, [0, 0, 0, 0, 1])


def modules(trace: Trace, pair: Trace | None = None) -> tuple[dict[str, ModuleTruth], list[int]]:
    """Return what is told of modules, and the steps that it is told of."""
    analysis = analyze(trace, pair=pair)
    assert analysis.attribution is not None
    (windows,) = analysis.prepared.windows.values()
    found = analysis.attribution.modules
    told = {one.path: ModuleTruth(one.count, one.device_ns, one.flops or 0) for one in found}
    return told, [one.step for one in windows if one.used and one.step is not None]


@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_modules_of_random_runs_are_those_of_the_run(data: st.DataObject) -> None:
    """Runs that launch every kernel, and runs that replay what another run captured.

    The window of a step has all that the step launched: no step begins while another works.
    """
    way = WAYS["PyTorch on AMD"]
    overlaps = dict.fromkeys(("programmatic_launch", "copy_stream"), False)
    fixed: dict[str, Any] = {"machine": way.machine, "ranks": 1, **overlaps}
    steps = data.draw(st.integers(3, 4))
    config = data.draw(run_configs(**fixed, steps=steps, first_step=0, data_stall_steps=()))
    run = simulate(config)
    capture = simulate(replace(config, seed=config.seed + 1, steps=1, capture=config.cuda_graph))
    told, known = modules(way.trace(run), way.trace(capture) if config.cuda_graph else None)
    truth = module_truth(run.ranks[0], known, capture.ranks[0])
    assert told == truth
    assert truth.keys() == {"GPT_0", *(f"GPT_0/Block_{layer}" for layer in range(config.layers))}


def with_shapes(trace: Trace) -> Trace:
    """Return the capture with a product as its first op, so that it tells FLOPs."""
    ops = trace.ops.to_pylist()
    product = ops[0] | PRODUCT | {"start_ns": ops[0]["start_ns"] + 1, "dur_ns": 60}
    return replace(trace, tables={**trace.tables, "ops": trace_of(ops=[*ops, product]).ops})


@pytest.mark.parametrize(("name", "count"), [("sglang_qwen3", 544), ("vllm_gptoss", 421)])
def test_public_replays_are_paired_in_full(name: str, count: int) -> None:
    """As shared/diagnosis/ATTRIBUTION.md counted them: all by their full name, in order."""
    graph, capture = (
        read([shared_file(f"traces/pytorch/mi300x_{name}_decode_{one}.json.gz")])
        for one in ("graph", "capture")
    )
    ours, theirs = prepare(graph).linked, prepare_pair(capture).linked
    found = replays(ours, theirs)
    assert found is not None
    rows = np.flatnonzero(found.captured >= 0)
    assert len(rows) == len(set(found.captured[rows].tolist())) == count
    mine, other = (linked.trace.activities["name"].to_pylist() for linked in (ours, theirs))
    assert [mine[row] for row in rows] == [other[found.captured[row]] for row in rows]


@pytest.mark.parametrize(
    ("graph", "unlinked", "problem"),
    [
        (
            4,
            0,
            "FLOPs are known for only 20.0 % of the compute time, because 80.0 % of it runs in ",
        ),
        (1, 3, "only 20.0 % of the compute time has known FLOPs"),
    ],
)
def test_replays_are_why_there_is_no_mfu_where_they_have_most_of_the_unknown_time(
    graph: int, unlinked: int, problem: str
) -> None:
    """Of five equal products one is launched by an operator with shapes."""
    trace = replayed(*["gemm"] * graph)
    others = [{"name": "gemm", "start_ns": 1_000 + 100 * nth} for nth in range(unlinked)]
    tables = {
        "ops": trace_of(ops=[PRODUCT | {"start_ns": 1, "dur_ns": 5}]).ops,
        "activities": pa.concat_tables(
            [trace.activities, table_of("activities", others)]
        ).unify_dictionaries(),
    }
    (lack,) = analyze(replace(trace, tables={**trace.tables, **tables})).measured.lacks
    assert lack.problem.startswith(problem)
    assert ("capture with --pair" in lack.remedy) == (not unlinked)
