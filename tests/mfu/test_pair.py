"""`--pair`: FLOPs of a PyTorch trace, or counters, given to the launches of another recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import table_of, trace_of
from tests.cli.test_commands import run
from tests.conftest import SAMPLES, shared_file
from tests.mfu.counting import BF16, GEMM, MI300X, UNITS, counted, part_of, rocprof, timed
from tests.mfu.counting import FLOPS as COUNTED
from traceflops.analysis.preparation import prepare
from traceflops.analysis.recipe import analyze
from traceflops.errors import UsageError
from traceflops.front.files import captures_beside
from traceflops.mfu.measurement import Measurement, measure
from traceflops.mfu.traced.executed import executed
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

SQUARE = 2 * 1000**3
SIZE = {"grid": [256, 1, 1], "block": [256, 1, 1]}


def mm(rows: int, inner: int, columns: int, start_ns: int, **more: Any) -> dict[str, Any]:
    """Return an op: a product in bf16."""
    return {
        "name": "aten::mm",
        "start_ns": start_ns,
        "dur_ns": 50,
        "input_dims": json.dumps([[rows, inner], [inner, columns]]),
        "input_types": '["c10::BFloat16","c10::BFloat16"]',
        **more,
    }


def pytorch(
    products: Sequence[tuple[int, int, int]], *, every_ns: int = 5_000, **kernel: Any
) -> Trace:
    """Return a PyTorch trace of some products, each by one kernel."""
    tables: dict[str, list[dict[str, Any]]] = {"activities": [], "calls": [], "ops": []}
    for number, sizes in enumerate(products):
        at = number * every_ns
        tables["ops"].append(mm(*sizes, at))
        tables["calls"].append({"start_ns": at + 10, "correlation": number + 1})
        tables["activities"].append(
            {"name": GEMM, "start_ns": at + 100, "dur_ns": 4_000, "correlation": number + 1}
            | SIZE
            | kernel
        )
    return trace_of(**tables, devices=[MI300X])


def launches(count: int, **more: Any) -> Trace:
    """Return a rocprof trace of one kernel, so many times."""
    return rocprof([{**row, **more} for row in timed(count) if row["name"] == GEMM])


def measured(trace: Trace, pair: Trace | None = None) -> Measurement:
    return analyze(trace, pair=pair).measured


def ways(found: Measurement, place: int = 0) -> dict[str, int]:
    assert found.executed.work is not None
    return {part.how: part.launches for part in found.executed.work.joins[place].parts}


def test_launches_get_the_flops_of_those_alike() -> None:
    found = measured(launches(10), pytorch([(1000, 1000, 1000)] * 3))
    assert ways(found) == {"alike": 10}
    assert found.executed.executed_flops == found.executed.model_flops == 10 * SQUARE
    window = 10 * 4_000 + 9 * 2_000
    assert found.mfu == found.hfu == Fraction(10 * SQUARE, window * BF16)
    assert found.basis == "from the paired trace, bf16 dense 1,307.4 TFLOP/s"
    assert found.lacks == ()
    (row,) = found.kernels
    assert (row.basis, row.measured.min_bytes) == ("pair", 10 * 3 * 2 * 1000**2)


def test_launches_alike_that_differ_stay_unknown() -> None:
    found = measured(launches(10), pytorch([(1000, 1000, 1000), (1000, 2000, 1000)]))
    assert ways(found) == {"ambiguous": 10}
    assert found.mfu is None
    assert "equal launches did different work" in found.lacks[0].remedy
    assert "pair-ambiguous" in {note.code for note in found.notes}


def test_in_one_order_each_is_its_own() -> None:
    found = measured(launches(2), pytorch([(1000, 1000, 1000), (1000, 2000, 1000)]))
    assert ways(found) == {"order": 2}
    assert found.executed.executed_flops == 3 * SQUARE


def test_steps_tell_which_launch_is_which() -> None:
    """Each step is a product and one of twice its size: of ten steps as of three."""
    products = [(1000, 1000, 1000), (1000, 2000, 1000)]
    pair, timed_run = with_steps(pytorch(products * 3), 3), with_steps(pytorch(products * 10), 10)
    found = measured(without_ops(timed_run), pair)
    assert set(ways(found)) == {"step"}
    assert found.executed.executed_flops == 3 * SQUARE * len(used(found))
    swapped = pytorch([*products, *products[::-1], *products])
    assert set(ways(measured(without_ops(timed_run), with_steps(swapped, 3)))) == {"ambiguous"}


def with_steps(trace: Trace, count: int) -> Trace:
    marks = [
        {"name": f"ProfilerStep#{n}", "start_ns": n * 10_000 - 5, "dur_ns": 9_995}
        for n in range(count)
    ]
    return replace(trace, tables={**trace.tables, "marks": table_of("marks", marks)})


def without_ops(trace: Trace) -> Trace:
    tables = {name: table for name, table in trace.tables.items() if name != "ops"}
    return replace(trace, tables=tables)


def used(found: Measurement) -> set[int]:
    return {time.window for time in found.executed.times if time.used}


def test_equal_work_for_several_ends_is_known_as_far_as_it_goes() -> None:
    """A forward product and its recomputation by one kernel: executed, but not what for."""
    pair = pytorch([(1000, 1000, 1000)] * 2)
    ops = pair.table("ops").to_pylist()
    root = {
        "name": "autograd::engine::evaluate_function: CheckpointFunctionBackward",
        "start_ns": 4_990,
        "dur_ns": 200,
        "thread": 1,
    }
    again = mm(1000, 1000, 1000, 5_000, sequence=7)
    first = {key: value for key, value in ops[0].items() if value is not None}
    tables = {**pair.tables, "ops": table_of("ops", [first, root, again])}
    pair = replace(pair, tables=tables)
    lines = {line.name: line.flops for line in executed(prepare(pair)).ledger().lines}
    assert lines == {"model.matmul.forward": SQUARE, "recompute.matmul": SQUARE}
    found = measured(launches(10), pair)
    assert ways(found) == {"alike": 10}
    assert (found.executed.unsplit_flops, found.executed.model_flops) == (10 * SQUARE, 0)
    assert (found.mfu, found.figure) == (None, f"HFU {_percent(found)}")


def _percent(found: Measurement) -> str:
    assert found.hfu_range is not None
    return found.hfu_range.text


def test_what_is_not_told_apart_widens_the_figure() -> None:
    """One kernel is forward for sure, of another it is open: MFU lies between."""
    other = f"{GEMM}_other"
    own = pytorch([(1000, 1000, 1000)])
    more = [
        {"name": other, "start_ns": 6_000, "dur_ns": 4_000, "correlation": 9, **SIZE},
    ]
    rows = [*own.activities.to_pylist(), *more]
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    trace = replace(own, tables={**own.tables, "activities": table_of("activities", rows)})
    counters = [{**row, "name": other} for row in counted(1) if row["name"] == GEMM]
    found = measured(trace, rocprof((), counters, file="counters.csv"))
    assert found.sources == ("trace", "counters")
    assert (found.executed.model_flops, found.executed.unsplit_flops) == (SQUARE, COUNTED)
    assert found.mfu_range is not None
    budget = (4_000 + 4_000 + 1_900) * BF16
    assert found.mfu_range.least == found.mfu == Fraction(SQUARE, budget)
    assert found.mfu_range.most == found.hfu == Fraction(SQUARE + COUNTED, budget)


def test_kernels_that_help_a_product_do_none_of_it() -> None:
    pair = pytorch([(1000, 1000, 1000)])
    helper = "splitKreduce_kernel<float>"
    more = {"name": helper, "start_ns": 4_200, "dur_ns": 9_000, "correlation": 2, **SIZE}
    rows = [{k: v for k, v in row.items() if v is not None} for row in pair.activities.to_pylist()]
    calls = [{"start_ns": 10, "correlation": 1}, {"start_ns": 20, "correlation": 2}]
    pair = replace(
        pair,
        tables={
            **pair.tables,
            "activities": table_of("activities", [*rows, more]),
            "calls": table_of("calls", calls),
        },
    )
    both = rocprof([{**row, "device": 0} for row in (rows[0], more)])
    found = measured(both, pair)
    assert found.executed.executed_flops == SQUARE
    assert found.executed.coverage == 1


@pytest.mark.parametrize(
    "size",
    [
        {"grid": [256 * 256, 1, 1], "block": [256, 1, 1]},
        {"grid": None, "block": None},
    ],
    ids=["in-threads", "not-recorded"],
)
def test_grids_are_compared_as_they_were_meant(size: dict[str, Any]) -> None:
    """Some launches of ROCm have their grid in threads in a PyTorch trace, or none at all."""
    found = measured(launches(10), pytorch([(1000, 1000, 1000)] * 3, **size))
    assert ways(found) == {"alike": 10}


@pytest.mark.parametrize(
    ("grid", "block", "way"),
    [
        ([16, 16, 1], [16, 16, 1], "alike"),
        ([256, 256, 1], [16, 16, 1], "alike"),  # in threads
        ([256, 1, 1], [16, 16, 1], "absent"),
        ([16, 16, 1], [256, 1, 1], "absent"),
        ([16, 1, 16], [16, 16, 1], "absent"),
        ([128, 512, 1], [16, 16, 1], "absent"),  # in threads: 8 x 32 blocks
    ],
)
def test_each_axis_of_a_size_counts(grid: list[int], block: list[int], way: str) -> None:
    """As many threads in another shape are another launch, where both runs tell the shape."""
    size = {"grid": [16, 16, 1], "block": [16, 16, 1]}
    pair = pytorch([(1000, 1000, 1000)] * 3, grid=grid, block=block)
    assert ways(measured(launches(10, **size), pair)) == {way: 10}


def test_other_sizes_are_other_launches() -> None:
    other: dict[str, Any] = {"grid": [128, 1, 1], "block": [256, 1, 1]}
    found = measured(launches(10), pytorch([(1000, 1000, 1000)] * 3, **other))
    assert ways(found) == {"absent": 10}
    assert {"pair-absent", "pair-unlike"} <= {note.code for note in found.notes}


def test_a_recording_of_some_of_the_kernels_matches() -> None:
    """Counters are often read of a few kernels only."""
    alone = [row for row in timed(5) if row["name"] == GEMM]
    rest = [
        {**alone[0], "name": f"Cijk_{number}", "start_ns": 10**6 * (number + 1)}
        for number in range(3)
    ]
    found = measured(rocprof([alone[0], *rest]), pytorch([(1000, 1000, 1000)]))
    assert ways(found)["absent"] == 3
    assert "pair-unlike" not in {note.code for note in found.notes}


def test_a_kernel_that_ops_without_shapes_launch_too_is_not_certain() -> None:
    pair = pytorch([(1000, 1000, 1000)] * 2)
    ops = [{k: v for k, v in row.items() if v is not None} for row in pair.ops.to_pylist()]
    del ops[1]["input_dims"]
    pair = replace(pair, tables={**pair.tables, "ops": table_of("ops", ops)})
    assert ways(measured(launches(10), pair)) == {"ambiguous": 10}


def test_counters_check_shapes() -> None:
    """The product of a trace with shapes, and what hardware counted of it: 7.4 % more."""
    trace = pytorch([(1000, 1000, 1000)] * 3)
    rows = [row for row in counted(3) if row["name"] == GEMM]
    found = measured(trace, rocprof((), rows, file="counters.csv"))
    assert (found.executed.model_flops, found.executed.unsplit_flops) == (3 * SQUARE, 0)
    assert found.mfu == found.hfu
    assert found.executed.work is not None
    check = found.executed.work.check
    assert check is not None
    assert (check.launches, check.counted, check.least) == (3, 3 * COUNTED, 3 * SQUARE)
    assert check.difference == Fraction(COUNTED - SQUARE, SQUARE)
    (note,) = [one for one in found.notes if one.code == "counters-differ-from-shapes"]
    assert "7.37 % more FLOPs than shapes" in note.text
    rows = [row for row in counted(3, [SQUARE // 512] * 3) if row["name"] == GEMM]
    found = measured(trace, rocprof((), rows, file="counters.csv"))
    assert found.executed.work is not None
    assert found.executed.work.check is not None
    assert abs(found.executed.work.check.difference) <= Fraction(2, 100)
    assert "counters-differ-from-shapes" not in {one.code for one in found.notes}


def test_shapes_come_before_counters() -> None:
    """Both tell the FLOPs of the timed run: the pair's ledger counts, the counters check it."""
    own = rocprof(
        [row for row in timed(10) if row["name"] == GEMM],
        [row for row in counted(10) if row["name"] == GEMM],
    )
    found = measured(own, pytorch([(1000, 1000, 1000)] * 3))
    assert found.executed.executed_flops == found.executed.model_flops == 10 * SQUARE
    assert found.sources == ("the paired trace", "counters")
    assert found.executed.work is not None
    assert found.executed.work.check is not None
    assert found.executed.work.check.counted == 10 * COUNTED


def test_a_pair_that_tells_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="neither operator shapes nor kernel counters"):
        analyze(launches(3), pair=launches(3))


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "gpt_ddp_4rank"])
def test_a_sample_as_its_own_pair_says_what_it_says(name: str) -> None:
    """Without its operators the trace gets every FLOP back, line by line."""
    trace = read([SAMPLES / name])
    bare = without_ops(trace)
    assert_same_ledger(trace, bare)


PUBLIC = ("h100_qwen15_infer", "a100_hta_control_rank3", "mi300x_torch_compile")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_trace_as_its_own_pair_says_what_it_says(name: str) -> None:
    trace = read([shared_file(f"traces/pytorch/{name}.json.gz")])
    assert_same_ledger(trace, without_ops(trace))


def assert_same_ledger(trace: Trace, bare: Trace) -> None:
    own, other = prepare(trace), prepare(bare)
    direct = part_of(executed(own), used=False).ledger()
    found = measure(other, pair=own)
    paired = part_of(found.executed, used=False).ledger()
    assert paired.executed == direct.executed > 0
    assert {line.name: line.flops for line in paired.lines} == {
        line.name: line.flops for line in direct.lines
    }
    assert found.executed.work is not None
    (join,) = found.executed.work.joins
    assert join.count("order") == join.launches - join.count("uncounted") > 0


def capture(products: Sequence[tuple[int, int, int]], **call: Any) -> Trace:
    """Return a PyTorch trace of a graph's capture: calls that launch products, and no kernel."""
    ran = pytorch(products)
    names = ("start_ns", "correlation")
    calls = [{name: row[name] for name in names} | call for row in ran.calls.to_pylist()]
    none = ran.activities.slice(0, 0)
    tables = {**ran.tables, "activities": none, "calls": table_of("calls", calls)}
    return replace(ran, tables=tables)


def test_the_launch_calls_of_a_capture_tell_what_the_replay_does() -> None:
    """The second product is half of the first; replayed kernels have no size."""
    replay = launches(2, grid=None, block=None)
    captured = capture([(1000, 2000, 1000), (1000, 1000, 1000)], kernel=GEMM, **SIZE)
    found = measured(replay, captured)
    assert ways(found) == {"order": 2}
    assert found.executed.executed_flops == 3 * SQUARE
    assert [row.measured.flops for row in found.kernels] == [3 * SQUARE]
    (note,) = [one for one in found.notes if one.code == "paired-captured-launches"]
    assert note.text.startswith("Paired recording: 2 launch calls without a kernel record")


def test_launches_that_were_recorded_are_not_counted_again() -> None:
    pair = pytorch([(1000, 1000, 1000)] * 2)
    calls = [{"start_ns": 10 + 5_000 * n, "correlation": n + 1, "kernel": GEMM} for n in (0, 1)]
    tables = {**pair.tables, "calls": table_of("calls", calls)}
    assert ways(measured(launches(2), replace(pair, tables=tables))) == {"order": 2}


def test_a_capture_whose_calls_name_no_kernel_is_refused_with_the_reason() -> None:
    """As CUDA's: which of the kernels each operator launched is not in the trace."""
    with pytest.raises(UsageError, match=r"2 operators with shapes.*calls name none"):
        measured(launches(2), capture([(1000, 1000, 1000)] * 2))


def test_the_command_reads_a_pair(tmp_path: Path) -> None:
    sample = SAMPLES / "gpt_1rank.json.gz"
    for command in ("summary", "mfu"):
        done = run(command, SAMPLES / "gpt_ddp_4rank", "--pair", sample)
        assert done.exit_code == 0, done.output
    target = tmp_path / "page.html"
    done = run("report", SAMPLES / "gpt_ddp_4rank", "--pair", sample, "-o", target)
    assert done.exit_code == 0, done.output
    assert "--pair gpt_1rank.json.gz" in target.read_text(encoding="utf-8")


def test_the_capture_beside_a_replay_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "capture_traces"
    folder.mkdir()
    trace = tmp_path / "decode.json.gz"
    for place, one in ((trace, "graph"), (folder / "bs_32.json.gz", "capture")):
        place.symlink_to(shared_file(f"traces/pytorch/mi300x_sglang_qwen3_decode_{one}.json.gz"))
    for command in ("summary", "mfu"):
        done = run(command, trace, "--json")
        assert done.exit_code == 0, done.output
        assert {"replays-paired", "paired-found"} <= {
            note["code"] for note in json.loads(done.stdout)["notes"]
        }
    assert captures_beside([str(folder / "bs_32.json.gz")]) is None


@pytest.mark.parametrize("named", [True, False])
def test_of_several_captures_each_replay_takes_the_one_that_fits(
    named: bool, tmp_path: Path
) -> None:
    """One of another model is there, too, as captures of other batch sizes are."""
    folder = tmp_path / "capture_traces"
    folder.mkdir()
    captures = [folder / f"{one}.json.gz" for one in ("vllm_gptoss", "sglang_qwen3")]
    for place in captures:
        model = place.name.partition(".")[0]
        place.symlink_to(shared_file(f"traces/pytorch/mi300x_{model}_decode_capture.json.gz"))
    trace = tmp_path / "decode.json.gz"
    trace.symlink_to(shared_file("traces/pytorch/mi300x_sglang_qwen3_decode_graph.json.gz"))
    given = [word for one in captures for word in ("--pair", one)] if named else []
    done = run("mfu", trace, *given, "--json")
    assert done.exit_code == 0, done.output
    notes = {note["code"]: note["text"] for note in json.loads(done.stdout)["notes"]}
    assert notes["replays-paired"].startswith("544 kernels of 1 graph replay")
    assert notes["replays-paired"].endswith(": sglang_qwen3.json.gz.")
    assert "replays-not-paired" not in notes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("summary", "{sample}", "--pair", "{sample}"), "--pair names the same trace"),
        (("summary", "-", "--pair", "-"), "--pair names the same trace: standard input"),
        (("mfu", "--pair", "{sample}"), "--pair needs a trace"),
        (("mfu", "{sample}", "--pair", "{cpu}"), "neither operator shapes nor kernel counters"),
        (("report", "{sample}", "--pair", "{nothing}", "-o", "{page}"), "no such file"),
    ],
)
def test_what_is_no_pair_is_said_in_two_lines(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    places = {
        "sample": SAMPLES / "gpt_1rank.json.gz",
        "cpu": _without_shapes(tmp_path),
        "nothing": tmp_path / "nothing.json",
        "page": tmp_path / "page.html",
    }
    done = run(*(word.format(**places) for word in words))
    assert done.exit_code in (2, 3)
    error, hint = done.stderr.splitlines()
    assert message in error
    assert hint.startswith("hint: ")


def _without_shapes(folder: Path) -> Path:
    """Return a trace with one kernel and no operators."""
    events = [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}]
    path = folder / "bare.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_units_of_the_oracle() -> None:
    assert COUNTED == 512 * UNITS
