"""What replays predict: the recording itself, what is simulated with the change, a real pair."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traceflops
from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.nsight.formats import WRITERS as NSIGHT
from sample_traces.nsight.session import NsightOptions
from sample_traces.rocprof.formats import WRITERS as ROCPROF
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from tests.build import launched, trace_of
from tests.conftest import analysis_of_sample, examples, shared_file, some
from tests.samples.strategies import run_configs
from traceflops import Analysis, UsageError, analyze, read, what_if
from traceflops.analysis.preparation import prepare
from traceflops.ranks.who_waits import rank_report
from traceflops.replay.changes import matches_of
from traceflops.replay.critical_path import WORK, path
from traceflops.replay.edits import parse_edit
from traceflops.replay.recorded_edges import recorded_graph
from traceflops.replay.recorded_graph import RecordedGraph, World
from traceflops.replay.spans import PACED, Candidates, Instants, Spans
from traceflops.replay.what_if import Replay
from traceflops.reports.view.critical import sums_by_component
from traceflops.table.columns import numbers
from traceflops.windows.selection import Selection, parse_steps

SMALL: Mapping[str, Any] = {"seed": 3, "steps": 4, "layers": 1, "vocab": 4096}
STALL: Mapping[str, Any] = {"data_stall_steps": (1, 2), "data_stall_ns": 3_000_000}
NONE: Mapping[str, Any] = {"data_stall_ns": 1}
"""Config of a recording, what is otherwise in the truth, and the edit that asks for it."""
CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "loader": (STALL, NONE, "data_input=0"),
    "loader, read": ({**STALL, "sync_each_step": True}, NONE, "data_input=0"),
    "loader, slow host": (
        {**STALL, "sync_each_step": True, "host_op_ns": 20_000},
        NONE,
        "data_input=0",
    ),
    "loader, copies": (
        {**STALL, "copy_stream": True, "sync_each_step": True},
        NONE,
        "data_input=0",
    ),
    "half a loader": (STALL, {"data_stall_ns": 1_500_000}, "data_input/2"),
    "loader of ranks": ({**STALL, "ranks": 2, "sync_each_step": True}, NONE, "data_input=0"),
    "products": (
        {"gemm_percent": 31, "sync_each_step": True},
        {"gemm_percent": 62},
        "kernel:compute/gemm/2",
    ),
    "products, calls that wait for other": (
        {"gemm_percent": 12, "plants": ("device_sync",) * 4, "plant_ns": 2_000_000},
        {"gemm_percent": 60},
        "kernel:compute/gemm/5",
    ),
    "launches": (
        {"launch_latency_ns": 40_000, "sync_each_step": True, "host_op_ns": 20_000},
        {"launch_latency_ns": 4_000},
        "launch_latency=4us",
    ),
    "full queue": (
        {"gemm_percent": 31, "launch_limit": 64, "host_op_ns": 1_000, "layers": 4},
        {"gemm_percent": 62},
        "kernel:compute/gemm/2",
    ),
    "slow rank": (
        {"ranks": 3, "straggler_rank": 1, "straggler_percent": 130, "sync_each_step": True},
        {"straggler_percent": 100},
        "rank 1=median",
    ),
    "slow rank of two": (
        {"ranks": 2, "straggler_rank": 1, "straggler_percent": 130, "noise_permille": 0},
        {"straggler_percent": 100},
        "rank 1=median",
    ),
}


def analysis_of(config: RunConfig, *, cuda_sync: bool = False) -> Analysis:
    """Return the analysis of a simulated run."""
    with TemporaryDirectory() as folder:
        options = KinetoOptions(cuda_sync=cuda_sync)
        write_pytorch(simulate(config), Path(folder), options, "rank{rank}")
        return analyze(read([folder]), Selection(steps=parse_steps("1:2")))


def graph_of(config: RunConfig) -> tuple[RecordedGraph, np.ndarray]:
    """Return the graph of a run, and when its activities ended by their table."""
    with TemporaryDirectory() as folder:
        write_pytorch(simulate(config), Path(folder), KinetoOptions(), "rank{rank}")
        prepared = prepare(read([folder]), Selection())
    table = prepared.trace.activities
    graph = recorded_graph(prepared, rank_report(prepared))
    return graph, numbers(table["start_ns"]) + numbers(table["dur_ns"])


def used_ns(analysis: Analysis) -> int:
    return sum(one.dur_ns for device in analysis.devices for one in device.windows if one.used)


@cache
def loading() -> Analysis:
    """Return a job of two ranks that waits for its loader."""
    config = {**SMALL, **STALL, "ranks": 2, "sync_each_step": True}
    return analysis_of(RunConfig(**config))


@settings(max_examples=examples(30))
@given(run_configs(steps=2))
def test_a_replay_without_a_change_is_the_recording(config: RunConfig) -> None:
    graph, ends = graph_of(config)
    row = graph.nodes.row
    graphs = graph, graph.without_inferred()
    worlds = [(one, one.as_recorded(pinned=pinned)) for one in graphs for pinned in (False, True)]
    shared = graph.visits(np.logical_or.reduce([world.is_pinned for _, world in worlds]))
    for one, world in worlds:
        for visits in (None, shared):
            times = one.times(world, visits)
            of_work = times[row >= 0]
            offset = of_work - ends[row[row >= 0]]
            assert len(np.unique(offset[np.argsort(row[row >= 0])])) <= config.ranks
            assert np.array_equal(times, graph.nodes.time_ns)


@settings(max_examples=examples(30))
@given(run_configs(ranks=2, steps=1), st.data())
def test_less_work_and_shorter_lags_end_nothing_later(
    config: RunConfig, data: st.DataObject
) -> None:
    graph, _ = graph_of(config)
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    for pinned in (False, True):
        world = graph.as_recorded(pinned=pinned)
        less = world.dur_ns - (world.dur_ns * random.random(len(world.dur_ns))).astype(np.int64)
        lag = world.lag_ns - random.integers(0, 5_000, len(world.lag_ns))
        shorter = replace(world, dur_ns=less, lag_ns=lag)
        assert (graph.times(shorter) <= graph.nodes.time_ns).all()


def halved(replay: Replay, edit: str) -> tuple[int, int, float, int]:
    """Return bounds of what half a class gains at the end of the recording, the lower first.

    The gain is between them, and last by how much rounding may move it.
    """
    one = replay.replayed(replay.readings[0], [parse_edit(edit)])
    graph, base, world = one.reading.graph, one.reading.base, one.changed.world
    mine, times = base.dur_ns != world.dur_ns, graph.nodes.time_ns
    device = int(graph.nodes.device[np.argmax(np.where(graph.nodes.row >= 0, times, 0))])
    none, zero = np.empty(0, np.int64), np.array([0])
    begin = Candidates(zero, zero, zero + PACED, zero + 10**15)
    end = Candidates(none, none, none, none)
    whole = Spans(*(Instants(zero + device, zero - 1, edge) for edge in (begin, end)))

    def on_path(some: World, ends: Any) -> int:
        pieces = path(graph, whole, some, ends)
        return int(pieces.ns[(pieces.kind == WORK) & mine[pieces.node]].sum())

    (before,), (after,) = (
        whole.lengths(graph, some, ends) for some, ends in ((base, times), (world, one.time_ns))
    )
    gain = before - after
    return on_path(world, one.time_ns), gain, on_path(base, times) / 2, int(mine.sum())


@pytest.mark.parametrize(
    "edit", ["kernel:gemm|nvjet|sm90/2", "kernel:elementwise|norm/2", "communication/2"]
)
def test_half_the_work_gains_between_its_shares_of_the_new_and_the_old_path(edit: str) -> None:
    config = {**SMALL, "ranks": 2, "host_op_ns": 1_000}
    analysis = analysis_of(RunConfig(**config))
    replay = Replay(analysis.prepared, analysis.ranks, None, None)
    low, gain, high, rounding = halved(replay, edit)
    assert low - rounding <= gain <= high + rounding


@pytest.mark.parametrize(("name", "cuda_sync"), some(product(CASES, [False, True]), 5))
def test_what_is_predicted_is_what_is_simulated(name: str, cuda_sync: bool) -> None:
    recorded, change, edit = CASES[name]
    config = RunConfig(**{**SMALL, **recorded})
    analysis = analysis_of(config, cuda_sync=cuda_sync)
    truth = analysis_of(replace(config, **change), cuda_sync=cuda_sync)
    outcome = what_if(analysis, edit).together
    assert outcome.before_ns == used_ns(analysis)
    assert outcome.windows == truth.windows_used
    assert outcome.after_ns == pytest.approx(used_ns(truth), rel=1e-3)
    assert abs(used_ns(truth) - outcome.before_ns) > 5e-3 * outcome.before_ns  # there is a change
    assert not outcome.doubts


WRITERS: Mapping[str, tuple[Callable[..., object], Any, Callable[..., RunConfig]]] = {
    "nsys 2026": (NSIGHT["nsys 2026"], NsightOptions(markers="all"), RunConfig),
    "v2 csv": (ROCPROF["v2 csv"], RocprofOptions(markers="all"), on_mi300x),
    "v3 json": (ROCPROF["v3 json"], RocprofOptions(markers="all"), on_mi300x),
    "v1 csv": (ROCPROF["v1 csv"], RocprofOptions(), on_mi300x),
}


def as_written(name: str, **settings: Any) -> Analysis:
    """Return the analysis of a run in another format."""
    write, options, config = WRITERS[name]
    with TemporaryDirectory() as folder:
        write(simulate(config(**{**SMALL, **STALL, **settings})), Path(folder), options)
        steps = parse_steps("1:2") if settings else None
        return analyze(read([folder]), Selection(steps=steps))


def test_copies_that_run_ahead_leave_the_pace_to_the_kernels() -> None:
    config = RunConfig(**{**SMALL, **STALL, "copy_stream": True})
    analysis = analysis_of(config)
    truth_ns = used_ns(analysis_of(replace(config, **NONE)))
    after_ns = what_if(analysis, "data_input=601ns").together.after_ns
    assert after_ns == pytest.approx(truth_ns, abs=1)


@pytest.mark.parametrize("name", ["nsys 2026", "v2 csv", "v3 json"])
def test_other_formats_tell_enough(name: str) -> None:
    settings: dict[str, Any] = {"copy_stream": True, "sync_each_step": True}
    outcome = what_if(as_written(name, **settings), "data_input=601ns").together
    truth = as_written(name, **settings, data_stall_ns=1)  # 600 ns are its range's own
    assert outcome.windows == truth.windows_used
    assert outcome.after_ns == pytest.approx(used_ns(truth), rel=1e-3)


def test_moments_of_launches_are_too_little() -> None:
    with pytest.raises(UsageError, match="only their moments"):
        what_if(as_written("v1 csv"), "kernel:./2")


def test_the_parts_of_a_path_add_up() -> None:
    answer = what_if(loading(), "data_input=0", "kernel:gemm|nvjet/2", "sync=0")
    assert sum(part.ns for part in answer.critical) == answer.together.before_ns
    for one in (*answer.alone, answer.together):
        assert sum(part.ns for part in one.critical) == one.after_ns
        assert all(part.ns > 0 for part in one.critical)
    assert sum(answer.ranks.values()) == answer.together.before_ns
    assert answer.critical[0].component == "data_input"
    assert "data_input" not in {part.component for part in answer.together.critical}


def test_the_path_goes_through_the_slow_rank() -> None:
    slow = {"ranks": 3, "straggler_rank": 1, "straggler_percent": 150, "sync_each_step": True}
    answer = what_if(analysis_of(RunConfig(**{**SMALL, **slow})))
    (rank, ns), *_ = answer.ranks.items()
    assert rank == 1
    assert ns > 0.6 * answer.together.before_ns
    assert answer.together.after_ns == answer.together.before_ns  # nothing is changed


def test_edits_together_gain_more_than_any_alone() -> None:
    answer = what_if(loading(), "data_input=0", "communication=hidden")
    assert answer.together.after_ns is not None
    assert answer.together.after_ns < min(one.after_ns or 0 for one in answer.alone)
    assert answer.together.edits == ("data_input=0", "communication=hidden")


def test_mfu_grows_as_the_time_shrinks() -> None:
    outcome = what_if(loading(), "data_input=0").together
    assert outcome.mfu is not None and outcome.after_ns is not None
    factor = Fraction(outcome.before_ns, outcome.after_ns)
    after = outcome.mfu_after(outcome.after_ns, outcome.after_ns)
    assert after is not None
    assert (after.least, after.most) == (outcome.mfu.least * factor, outcome.mfu.most * factor)


def test_a_trace_worked_out_by_hand() -> None:
    """Two kernels in a queue, then one that the host launches late."""
    works = (
        ("a", 0, 5_000, 100_000),
        ("b", 10_000, 106_000, 50_000),
        ("c", 400_000, 405_000, 20_000),
    )
    analysis = analyze(trace_of(**launched(*works)))
    half = what_if(analysis, "kernel:a|b/2").together
    assert (half.before_ns, half.after_ns) == (420_000, 420_000)  # the host decides
    shorter = what_if(analysis, "kernel:c/2").together
    assert (shorter.before_ns, shorter.after_ns) == (420_000, 410_000)
    longer = what_if(analysis, "kernel:a*5").together
    assert longer.after_ns == 500_000 + 1_000 + 50_000 + 1_000 + 20_000  # 1 us apart, as b was


def test_work_starts_a_while_after_its_call_returns() -> None:
    """Calls of 4 us and one, the last, of 300 us: all kernels begin 2 us after the return."""
    works = launched(*(("a", at, at + 6_000, 3_000) for at in range(0, 400_000, 40_000)))
    works["activities"][-1]["start_ns"] += 296_000
    for call in works["calls"]:
        call |= {"name": "cudaLaunchKernel", "dur_ns": 4_000}
    works["calls"][-1] |= {"name": "cudaLaunchKernelExC", "dur_ns": 300_000}
    analysis = analyze(trace_of(**works))
    cold = what_if(analysis, "host:ExC=4us").together
    assert (cold.before_ns, cold.after_ns) == (659_000, 363_000)
    assert not cold.doubts
    assert analysis.replay is not None
    assert not analysis.replay.graph.is_unexplained.any()


def test_what_waits_for_another_queue_tells_nothing_of_launches() -> None:
    """Kernels b, launched by a call of their own, wait for a: no record says so, but times do."""
    rounds = range(0, 10_000_000, 1_000_000)
    works = launched(
        *(("a", at, at + 5_000, 500_000) for at in rounds),
        *(("b", at + 9_000, at + 506_000, 400_000) for at in rounds),
    )
    for place in range(10, 20):
        works["activities"][place]["stream"] = 9
        works["calls"][place]["name"] = "hipExtLaunchKernel"
    analysis = analyze(trace_of(**works))
    assert analysis.replay is not None
    assert sum(one.ns for one in analysis.replay.critical if "launch" in one.component) < 100_000
    outcome = what_if(analysis, "kernel:a/2").together  # of the last round; it is one window
    assert outcome.before_ns - outcome.least_ns == 250_000


def test_a_copy_that_holds_up_its_call_follows_what_it_waited_for() -> None:
    """The call of a copy lasts as long as the kernel before, of 5 ms: it is not slow by itself."""
    warm = [("warm", at, at + 6_000, 2_000) for at in range(0, 360_000, 40_000)]
    works = launched(*warm, ("long", 400_000, 406_000, 5_000_000), ("", 410_000, 5_407_000, 1_000))
    for call in works["calls"]:
        call |= {"name": "cudaLaunchKernel", "dur_ns": 4_000}
    works["calls"][-1] |= {"name": "cudaMemcpyAsync", "dur_ns": 5_000_000}
    works["activities"][-1]["kind"] = "memcpy"
    outcome = what_if(analyze(trace_of(**works)), "kernel:long/2").together
    assert (outcome.before_ns, outcome.after_ns) == (5_402_000, 2_902_000)


def test_work_behind_what_is_not_recorded_keeps_its_time() -> None:
    """The first kernel begins 8 ms after its launch: there, as in the second, waits no launch."""
    works = (("a", 0, 8_000_000, 5_000), ("a", 10_000, 8_006_000, 5_000))
    later = [("a", at, at + 6_000, 5_000) for at in range(8_100_000, 8_400_000, 30_000)]
    analysis = analyze(trace_of(**launched(*works, *later)))
    outcome = what_if(analysis, "launch_latency=1us").together
    assert (outcome.before_ns, outcome.after_ns) == (381_000, 376_000)


def test_no_gain_is_not_sure_where_another_reading_has_one() -> None:
    """Kernel b, of another stream, begins as a ends: it waited for a, or was merely late."""
    warm = [("warm", at, at + 5_000, 2_000) for at in range(0, 180_000, 20_000)]
    works = launched(*warm, ("a", 200_000, 205_000, 500_000), ("b", 600_000, 707_000, 90_000))
    works["activities"][-1]["stream"] = 9
    ops = [{"name": "slow", "start_ns": 250_000, "dur_ns": 300_000}]
    outcome = what_if(analyze(trace_of(**works, ops=ops)), "host:slow=0").together
    assert outcome.most_ns == outcome.before_ns
    assert outcome.least_ns < outcome.before_ns
    assert outcome.after_ns is None


def stalled() -> Analysis:
    """Return 9 s between launches, of which 8 s are in a call of an operator."""
    works = launched(("a", 0, 5_000, 10_000), ("b", 9_000_020_000, 9_000_025_000, 10_000))
    free = {"name": "cudaFree", "start_ns": 500_000_000, "dur_ns": 8_000_000_000}
    works["calls"].append(free)
    ops = [{"name": "init", "start_ns": 400_000_000, "dur_ns": 8_200_000_000}]
    return analyze(trace_of(**works, ops=ops))


def test_seconds_on_the_host_are_taken_out_and_once_only() -> None:
    answer = what_if(stalled(), "memory_alloc=0", "host:init=0")
    saved = [one.before_ns - one.most_ns for one in (*answer.alone, answer.together)]
    assert saved == [8_000_000_000, 8_200_000_000, 8_200_000_000]


def test_a_share_with_many_digits_is_that_share() -> None:
    works = launched(("a", 0, 5_000, 2_000_000), ("b", 10_000, 2_005_000, 2_000_000))
    outcome = what_if(analyze(trace_of(**works)), "kernel:.*/3.14159265358979").together
    assert outcome.after_ns == pytest.approx(4_000_000 / 3.14159265358979, rel=1e-5)


def test_a_recomputation_that_is_off_takes_neither_kernels_nor_operators() -> None:
    """A backward pass forms its input again for 40 us, which keeps its thread for 30 us."""
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    works = launched(("again", 20_000, 25_000, 40_000), ("gradient", 50_000, 66_000, 100_000))
    ops = [
        {"name": node, "start_ns": 10_000, "dur_ns": 60_000},
        {"name": node.split()[-1], "start_ns": 11_000, "dur_ns": 58_000},
        {"name": "aten::linear", "start_ns": 15_000, "dur_ns": 30_000, "sequence": 7},
    ]
    works["calls"].insert(0, {"start_ns": 0, "correlation": 9})
    works["activities"].insert(0, {"name": "x", "start_ns": 5_000, "correlation": 9})
    outcome = what_if(analyze(trace_of(**works, ops=ops)), "recompute=off").together
    assert outcome.before_ns == 166_000 - 5_000
    # The second launch comes 30 us earlier and takes 5 us, as the first two did.
    assert outcome.after_ns == 20_000 + 5_000 + 100_000 - 5_000


def test_work_beside_waiting_communication_is_as_fast_as_on_the_late_rank() -> None:
    slow = {"straggler_rank": 1, "straggler_percent": 140, "contention_percent": 115}
    config = RunConfig(**{**SMALL, **slow, "ranks": 2, "layers": 3, "noise_permille": 0})
    outcome = what_if(analysis_of(config), "rank 1=median").together
    truth = used_ns(analysis_of(replace(config, straggler_percent=100)))
    assert outcome.after_ns == pytest.approx(truth, rel=5e-3)


def test_a_real_pair_with_and_without_loader_workers() -> None:
    slow, fast = (
        analyze(read([str(shared_file(f"traces/pytorch/v100_kineto_resnet50_{name}.json.gz"))]))
        for name in ("nw0", "nw4")
    )
    outcome = what_if(slow, "data_input=838us").together  # their mean with four workers
    after, measured = outcome.step_ns(outcome.after_ns), fast.steps.typical_ns
    before = outcome.step_ns(outcome.before_ns)
    assert after is not None and measured is not None and before is not None
    error = abs(after - measured)
    subtracted = before - 69_297_600 + 838_000  # less what the loader took
    assert error <= 0.075 * measured
    assert error <= abs(subtracted - measured) / 2


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("nonsense", "no edit"),
        ("kernel:gemm/x", "no number"),
        ("kernel:gemm/0", "divided by 0"),
        ("kernel:=0", "no name"),
        ("host=0", "no name"),
        ("data_input:read=0", "nothing is called 'data_input:read'"),
        ("rank 1=mean", "rank 1 cannot be 'mean'"),
        ("recompute=0", "recompute cannot be '0'"),
        ("communication=none", "communication cannot be 'none'"),
        ("kernel:(/2", "no regular expression"),
        ("kernel:(?=a)/2", "no regular expression"),
        ("host:a(b=0", "no regular expression"),
        ("sync:[=0", "no regular expression"),
        ("kernel:gemm/1e999999999", "no number"),
        ("kernel:nowhere/2", "no kernel or copy"),
        ("host:nowhere=0", "no call, operator"),
        ("sync=5us", "can only go"),
        ("speed=0", "nothing is called 'speed'"),
        ("recompute=off", "no work of a recomputation"),
        ("rank 7=median", "is missing"),
        ("speed=1", "nothing is called 'speed'"),
        ("data_input=soon", "not a time"),
        ("data_input=99999999999s", "out of range"),
        ("kernel:gemm*1e12", "out of range"),
        ("kernel:gemm*-1", "out of range"),
    ],
)
def test_what_cannot_be_asked_is_refused(edit: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        what_if(loading(), edit)


def test_a_list_of_names_means_these_calls_and_no_longer_ones() -> None:
    texts = ["cudaFree", "CUDAMALLOC", "cudaFreeHost", "my cudaFree", "cudaFree\n"]
    expected = [True, True, False, False, False]
    assert matches_of("sync:^(cudaFree|cudaMalloc)$", texts).tolist() == expected
    as_expression = "sync:^(?:cudaFree|cudaMalloc)$"
    assert matches_of(as_expression, texts).tolist() == expected


@pytest.mark.parametrize(
    ("name", "reason"),
    [("torch.relu", "recorded outside ranges"), ("train", r"operator was recorded\n")],
)
def test_operators_in_ranges_are_not_said_to_be_missing(name: str, reason: str) -> None:
    rows = launched(("add", 0, 100, 10), ("add", 200, 300, 10))
    ranges = [{"name": name, "start_ns": 190, "dur_ns": 20}]
    with pytest.raises(UsageError, match=reason):
        what_if(analyze(trace_of(**rows, marks=ranges)), "eager_overhead=0")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("launching operators=0", "eager_overhead"),
        ("Launching_Operators/2", "eager_overhead"),
        ("eager-overhead=0", "eager_overhead"),
        ("loading data=1ms", "data_input"),
        ("launch latency=0", "launch_latency"),
        ("the optimizer=0", "optimizer_loop"),
        ("waiting for the GPU=0", "sync"),
        ("kernel:launching operators=0", "kernel:launching operators"),
    ],
)
def test_what_the_gpu_waits_on_is_asked_in_the_words_of_the_report(text: str, target: str) -> None:
    assert (parse_edit(text).text, parse_edit(text).target) == (text, target)


@pytest.mark.parametrize("word", ["launch", "launching operator", "eager"])
def test_who_misses_a_name_is_told_those_of_reports(word: str) -> None:
    with pytest.raises(UsageError, match="nothing is called") as found:
        parse_edit(f"{word}=0")
    assert "'eager_overhead=0'" in found.value.hint
    assert "'launching operators=0'" in found.value.hint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("launching operators=0", "eager_overhead/2"),
        ("kernel:softmax=0", "kernel:softmax/2"),
        ("communication=0", "communication/2"),
        ("communication=hidden", "communication=hidden"),
        ("sync=0", "sync=0"),
    ],
)
def test_a_target_has_one_edit(one: str, other: str) -> None:
    with pytest.raises(UsageError, match="two edits of one target"):
        what_if(loading(), one, "data_input=0", other)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("pytorch/hta_rank_non_gpu.json.gz", "no work of a GPU"),
        ("pytorch/hta_sampled_rank0.json.gz", "follows from nothing recorded"),
        ("rocprof/v3_json_mi350x_ddp_train.json.gz", "no recorded launch"),
    ],
)
def test_recordings_without_the_facts_are_refused(path: str, reason: str) -> None:
    analysis = analyze(read([str(shared_file(f"traces/{path}"))]))
    with pytest.raises(UsageError, match=reason):
        what_if(analysis, "kernel:./2")


def test_queues_of_mtia_are_not_understood() -> None:
    works = launched(*(("fc", at, at + 5_000, 9_000) for at in range(0, 90_000, 10_000)))
    for call in works["calls"]:
        call |= {"name": "runFunction - job_prep_and_submit_for_execution", "dur_ns": 3_000}
    with pytest.raises(UsageError, match="MTIA"):
        what_if(analyze(trace_of(**works)), "kernel:./2")


def test_ranks_that_are_not_recorded_leave_a_range() -> None:
    path = shared_file("traces/pytorch/mi300x_resnet18_ddp_train.json.gz")
    analysis = analyze(read([str(path)]))
    assert analysis.replay is not None
    assert len(analysis.replay.readings) == 4
    for way in analysis.replay.readings:
        assert np.array_equal(way.graph.times(way.base), way.graph.nodes.time_ns)
    outcome = what_if(analysis, "kernel:batch_norm/2").together
    assert outcome.after_ns is None
    assert outcome.least_ns < outcome.most_ns
    assert "doubt.ranks-missing" in {doubt.code for doubt in outcome.doubts}


def test_ranks_that_are_left_out_leave_a_range_too() -> None:
    config = {**SMALL, **STALL, "ranks": 3}
    with TemporaryDirectory() as folder:
        paths = list(write_pytorch(simulate(RunConfig(**config)), Path(folder), stem="r{rank}"))
        analysis = analyze(read([str(path) for path in paths[:2]]))
    outcome = what_if(analysis, "data_input=0").together
    assert outcome.after_ns is None
    assert outcome.least_ns < outcome.before_ns
    assert "doubt.ranks-missing" in {doubt.code for doubt in outcome.doubts}
    same = what_if(analysis, "kernel:.*1").together
    assert same.least_ns == same.most_ns
    assert same.after_ns is None  # when they arrive in the next step is unknown


AWAITING = ("doubt.ranks-missing", "doubt.collectives-apart")


@pytest.mark.parametrize("left_out", [0, 1])
def test_ranks_are_said_to_be_missing_only_where_they_are(left_out: int) -> None:
    """A broadcast of which the root leaves early meets on no rank, whoever is recorded."""
    folder = shared_file("cases/pytorch_amd_jax/all-ranks-said-missing/rank0.json").parent
    analysis = analyze(read([str(folder / f"rank{rank}.json") for rank in range(2 - left_out)]))
    doubts = what_if(analysis, "eager_overhead=0").together.doubts
    assert [one.code for one in doubts if one.code in AWAITING] == [AWAITING[not left_out]]


def test_the_name_is_offered() -> None:
    assert traceflops.what_if is what_if


def test_a_queue_that_runs_ahead_makes_no_step_shorter() -> None:
    """Without waits the copies of later steps start early; the kernels still take their time."""
    analysis = analysis_of_sample("gpt_ddp_4rank")
    (answer,) = what_if(analysis, "sync=0").alone
    parts = analysis.components
    assert answer.after_ns is not None
    assert answer.after_ns >= parts.window_ns - parts.idle_ns - parts.communication_ns
    assert answer.after_ns <= parts.window_ns


def test_no_mfu_is_beyond_the_peak() -> None:
    analysis = analysis_of_sample("gpt_1rank.json.gz")
    answer = what_if(analysis, "kernel:.*=0", "host:.*=0").together
    assert answer.after_ns is not None
    before, after = answer.before_ns, answer.after_ns
    assert answer.mfu_after(before, before) == answer.mfu
    assert answer.mfu_after(after, after) is None


def test_pages_that_migrate_inside_a_kernel_are_part_of_it() -> None:
    run = launched(("sgemm", 0, 10_000, 1_000_000), ("sgemm", 5_000, 1_010_000, 1_000_000))
    pages = [
        {"name": "Unified memory HtoD", "kind": "memcpy", "direction": "migration HtoD"}
        | {"start_ns": start, "dur_ns": 1_000, "stream": 9}
        for start in range(20_000, 2_000_000, 10_000)
    ]
    analysis = analyze(trace_of(**run | {"activities": run["activities"] + pages}))
    outcome = what_if(analysis, "kernel:sgemm/2").together
    assert (outcome.before_ns, outcome.after_ns) == (2_000_000, 1_000_000)


@pytest.mark.parametrize(("took_ns", "share"), [(90_000, 0.9), (10_000, 0.0)])
def test_host_time_beside_work_of_the_gpu_is_not_called_host_work(
    took_ns: int, share: float
) -> None:
    """The host launches as each kernel ends: it may wait without a record. Long after, it works."""
    starts = range(0, 2_000_000, 100_000)
    works = launched(*(("k", at, at + 6_000, took_ns) for at in starts))
    for call in works["calls"]:
        call |= {"name": "cudaLaunchKernel", "dur_ns": 4_000}
    analysis = analyze(trace_of(**works))
    assert analysis.replay is not None
    sums = dict(sums_by_component(analysis.replay.critical))
    assert sum(sums.values()) == analysis.replay.before_ns
    beside_ns = sums.get("host_beside_gpu", 0)
    unrecorded_ns = beside_ns + sums["host_unrecorded"]
    assert unrecorded_ns > 1_700_000
    assert beside_ns / unrecorded_ns == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize(("took_ns", "share"), [(90_000, 0.9), (10_000, 0.1)])
def test_a_call_beside_work_of_the_gpu_is_not_called_allocating(took_ns: int, share: float) -> None:
    """Each kernel is launched, then memory allocated until the next launch, mostly beside it."""
    starts = range(0, 2_000_000, 100_000)
    works = launched(*(("k", at, at + 6_000, took_ns) for at in starts))
    for call in works["calls"]:
        call |= {"name": "cudaLaunchKernel", "dur_ns": 4_000}
    works["calls"] += [
        {"name": "cudaMalloc", "start_ns": at + 5_000, "dur_ns": 94_000} for at in starts
    ]
    analysis = analyze(trace_of(**works))
    assert analysis.replay is not None
    sums = dict(sums_by_component(analysis.replay.critical))
    assert sum(sums.values()) == analysis.replay.before_ns
    call_ns = sums["calls_beside_gpu"] + sums["memory_alloc"]
    assert call_ns > 1_700_000
    assert sums["calls_beside_gpu"] / call_ns == pytest.approx(share, abs=0.06)


def test_start_up_after_work_of_another_thread_is_start_up_on_the_path() -> None:
    """Thread 2 launches last; thread 1 compiles from 2 to 10 ms, and launches at 11 ms."""
    works = [("k", at, at + 6_000, 90_000) for at in range(0, 1_000_000, 100_000)]
    run = launched(*works, ("new", 11_000_000, 11_006_000, 90_000))
    for call in run["calls"]:
        call["thread"] = 2 if 500_000 <= call["start_ns"] < 1_000_000 else 1
    backward = {"name": "autograd::engine::evaluate_function: MmBackward0", "thread": 2}
    compiling = {"name": "FusionKernelRuntime::compileKernel", "thread": 1}
    ops = [backward | {"start_ns": 495_000, "dur_ns": 500_000}]
    marks = [compiling | {"start_ns": 2_000_000, "dur_ns": 8_000_000}]
    analysis = analyze(trace_of(**run, ops=ops, marks=marks))
    assert analysis.replay is not None
    assert dict(sums_by_component(analysis.replay.critical))["start_up"] == 10_010_000
    assert analysis.components.start_up_ns == 10_010_000
