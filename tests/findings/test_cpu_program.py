"""What helps programs on CPUs: facts of their operators choose it."""

from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import trace_of

MS = 1_000_000
LOADER = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"
ADAM = "Optimizer.step#Adam.step"


def op(name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    return {"name": f"aten::{name}", "start_ns": start, "dur_ns": dur, **more}


def said(
    *ops: dict[str, Any], marks: list[dict[str, Any]] | None = None, by: str = "pytorch"
) -> str:
    work = sorted(ops, key=lambda row: row["start_ns"])
    trace = trace_of(devices=[], ops=work, marks=marks or [])
    return tf.analyze(replace(trace, source=replace(trace.source, format=by))).verdict.sentence


BETWEEN = "time between operators (nothing recorded)"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("tokenizer.py(9): pad", "host code in pad (tokenizer.py:9)"),
        ("<built-in method run_backward of torch._C._EngineBase object at 0x7f>", BETWEEN),
        ("PjRtFuture::BlockHostUntilReady", BETWEEN),
        ("queue.py(154): get", "waiting for others in get (queue.py:154)"),
    ],
)
@pytest.mark.parametrize("has_monitor", [False, True])
def test_a_function_that_waits_for_operators_does_not_explain_the_time_between_them(
    function: str, told: str, *, has_monitor: bool
) -> None:
    """Another thread runs operators of 5 ms each, 6 ms apart, while the function runs.

    A third one waits all the time, as progress bars do.
    """
    ops = [op("mm", at * MS, 5 * MS, thread=2) for at in range(0, 110, 11)]
    python = {"kind": "python", "start_ns": 0, "dur_ns": 110 * MS}
    marks: list[dict[str, Any]] = [{"name": function, **python}]
    for depth, name in enumerate(("threading.py(870): run", "threading.py(302): wait")):
        marks += [{"name": name, **python, "start_ns": depth, "thread": 3}] * has_monitor
    assert f"{told} takes 51.9 %" in said(*ops, marks=marks)


@pytest.mark.parametrize(("kind", "told"), [("double", "float32"), ("float", "torch.set_num_th")])
def test_products_in_float64_are_to_be_in_float32(kind: str, told: str) -> None:
    types = f'["{kind}","{kind}"]'
    sentence = said(*(op("mm", at * 5 * MS, 5 * MS, input_types=types) for at in range(3)))
    assert ["float32" in sentence, "torch.set_num_threads" in sentence] == [
        told == "float32",
        told != "float32",
    ]


@pytest.mark.parametrize(("read", "is_coo"), [("_indices", True), ("crow_indices", False)])
def test_products_with_sparse_matrices_need_no_gpu_and_may_be_in_csr(
    read: str, *, is_coo: bool
) -> None:
    works = []
    for start in range(0, 40 * MS, 10 * MS):
        works += [op("_sparse_mm", start, 9 * MS), op("addmm", start + 10, 8 * MS)]
        works.append(op(read, start + 20, 10))
    sentence = said(*works)
    assert "torch.set_num_threads" not in sentence
    assert ("to_sparse_csr" in sentence) == is_coo


@pytest.mark.parametrize("outer", ["contiguous", "clone"])
def test_copies_for_contiguous_change_the_layout(outer: str) -> None:
    works = []
    for start in range(0, 40 * MS, 10 * MS):
        works += [op(outer, start, 9 * MS), op("copy_", start + 10, 8 * MS)]
    assert ("channels_last" in said(*works)) == (outer == "contiguous")


@pytest.mark.parametrize(
    ("used", "is_sparse"),
    [("512", True), ("100000", False), ("16, 512", True), ("64,512", False)],
)
def test_an_optimizer_of_tables_with_few_rows_in_use_may_be_sparse(
    used: str, *, is_sparse: bool
) -> None:
    """A table of 200,000 rows, and a batch of sequences of words or of words alone."""
    gradient = op(
        *("embedding_dense_backward", 0, MS),
        input_dims=f"[[{used},32],[{used}],[],[],[]]",
        concrete_inputs='["","","200000","-1","False"]',
    )
    updates = [op("sqrt", at * MS, MS, input_dims="[[200000,32]]") for at in range(2, 9)]
    marks = [{"name": ADAM, "start_ns": 2 * MS, "dur_ns": 8 * MS}]
    sentence = said(gradient, *updates, op("mm", 11 * MS, 10), marks=marks)
    assert ("sparse=True in nn.Embedding" in sentence) == is_sparse
    assert ("one tensor after the other" in sentence) != is_sparse


@pytest.mark.parametrize(("kind", "told"), [("_MultiProcessing", "use more of them"), ("_Own", "")])
def test_a_program_that_waits_for_workers_may_use_more(kind: str, told: str) -> None:
    work = [op("mm", 0, MS), op("mm", 9 * MS, MS)]
    marks = [{"name": LOADER.format(kind), "start_ns": MS, "dur_ns": 8 * MS}]
    sentence = said(*work, marks=marks)
    assert told in sentence and ("num_workers" in sentence) == bool(told)


@pytest.mark.parametrize(
    ("gap_ns", "kind", "is_told"), [(MS, "", True), (MS, "python", False), (5_000, "", False)]
)
def test_stacks_tell_what_runs_in_long_gaps(gap_ns: int, kind: str, *, is_told: bool) -> None:
    work = [op("mul", at * (gap_ns + 1_000), 1_000) for at in range(20)]
    frames = [{"name": "a.py(1): f", "start_ns": 0, "dur_ns": 500, "kind": kind}] if kind else []
    assert ("with_stack=True" in said(*work, marks=frames)) == is_told


@pytest.mark.parametrize(
    ("count", "dur_ns", "is_told"),
    [(3_000, 2_000, True), (900, 2_000, False), (3_000, 20_000, False)],
)
def test_thousands_of_small_operators_are_overhead(
    count: int, dur_ns: int, *, is_told: bool
) -> None:
    names = ("mul", "add", "sub")
    work = [op(names[at * at % 7 % 3], at * (dur_ns + 1_000), dur_ns) for at in range(count)]
    steps = [
        {"name": f"ProfilerStep#{at}", "start_ns": at * MS, "dur_ns": MS} for at in range(1, 9)
    ]
    sentence = said(*work, marks=steps)
    told = f"runs {count:,} operators, one in 3.00 µs on average, so most time is overhead"
    assert (told in sentence) == is_told


def test_an_operator_that_is_called_once_may_set_up() -> None:
    once = said(op("mm", 0, 20 * MS), op("relu", 20 * MS, MS))
    assert "aten::mm is recorded only once, perhaps with the set-up of a first call" in once
    assert "set_num_threads" not in once


@pytest.mark.parametrize(("after_ns", "is_told"), [(3 * MS, True), (30 * MS, False)])
def test_a_recording_of_compiling_is_called_so(after_ns: int, *, is_told: bool) -> None:
    marks = [
        {"name": "_compile.compile_inner (dynamo_timed)", "start_ns": 0, "dur_ns": 6 * MS},
        {"name": "dynamo_data: compile_id=0/1", "start_ns": 0, "dur_ns": 10},
    ]
    timed = {**op("", MS, 8 * MS), "name": "GraphLowering.run (dynamo_timed)"}
    sentence = said(timed, op("mm", 9 * MS, after_ns), marks=marks)
    told = "torch.compile compiles for 9.00 ms, 75.0 % of the recording: record after a warm-up."
    assert (told in sentence, "TORCH_LOGS=recompiles" in sentence) == (is_told, is_told)


@pytest.mark.parametrize(
    ("functions", "told"),
    [
        (["loss", "loss"], ": record after a warm-up."),
        (["zeros", "add", "loss"], ": record after a warm-up."),
        (["loss", "loss", "loss", "add"], ", loss 3 times: jax.jit compiles again for each new"),
        ([None] * 3, ": record after a warm-up."),
    ],
)
def test_a_recording_of_xla_that_compiles_is_called_so(
    functions: list[str | None], told: str
) -> None:
    """Compilations of 2 ms each, with ranges of others in them, then an operation of 1 ms."""
    marks, count = list[dict[str, Any]](), len(functions)
    for start, function in zip(range(0, 3 * count, 3), functions, strict=True):
        call = {"start_ns": start * MS - 10, "dur_ns": 2 * MS + 20}
        traced = {"name": "PjitFunction(multiply)", "start_ns": start * MS - 5, "dur_ns": 2}
        marks += [{"name": f"PjitFunction({function})", **call}, traced] if function else []
        marks.append({"name": "backend_compile_and_load", "start_ns": start * MS, "dur_ns": 2 * MS})
        inner = {"name": "PjRtCpuClient::Compile", "start_ns": start * MS + 10, "dur_ns": MS}
        marks.append({**inner, "thread": 9})
    sentence = said({**op("", 3 * count * MS, MS // 2), "name": "dot.2"}, marks=marks)
    assert sentence.startswith("XLA compiles for ") and f"of the recording{told}" in sentence


@pytest.mark.parametrize(
    ("runs", "dur_ns", "by", "is_told"),
    [
        (300, 2, "xplane", 1),
        (300, 90, "xplane", 0),
        (30, 2, "xplane", 0),
        (300, 2, "pytorch", 0),
    ],
)
def test_many_short_functions_of_jax_belong_in_one(
    runs: int, dur_ns: int, by: str, is_told: int
) -> None:
    """Each runs on two devices at once."""
    name = "CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice"
    starts = range(0, 100 * runs, 100)
    marks = [
        {"name": name, "start_ns": at + device, "dur_ns": 5, "thread": device}
        for at in starts
        for device in (0, 1)
    ]
    works = ({**op("", at + 6, dur_ns), "name": "add.1"} for at in starts)
    sentence = said(*works, marks=marks, by=by)
    told = "JAX runs compiled functions 300 times, one in 100 ns on average, and computes for only"
    assert (told in sentence) == bool(is_told)


@pytest.mark.parametrize(("slow", "is_told"), [(0, True), (1, False)])
def test_first_calls_that_take_much_longer_are_told(slow: int, *, is_told: bool) -> None:
    """Three rounds of 12 operators with sizes of their own; one round takes three times as long."""
    works, now = [], 0
    for turn in range(3):
        for size in range(12):
            length = MS * (3 if turn == slow else 1)
            works.append(op("sort", now, length, input_dims=f"[[{size + 1},9]]"))
            now += length
    told = "First calls of operators take 24.0 ms (40.0 % of the time) more than later ones"
    assert (told in said(*works)) == is_told


def test_first_calls_beside_each_other_take_no_more_than_all_time() -> None:
    """In each of four threads a call takes 30 ms, a later one 1 ms."""
    works = [
        op("sort", start, length, thread=thread, input_dims=f"[[{thread},9]]")
        for thread in range(1, 5)
        for start, length in ((0, 30 * MS), (30 * MS, MS))
    ]
    assert "First calls of operators take 116 ms (93.5 % of the time) more" in said(*works)
