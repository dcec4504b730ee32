"""Lists of torch.autograd.profiler (PyTorch 0.4 to 1.8), and the first spellings of Kineto."""

from __future__ import annotations

import json
from typing import Any

import pytest

import traceflops as tf
from tests.conftest import shared_file
from tests.parsers.rocprof.jsonfile import rows, source
from traceflops.parsers.pytorch.reader import read_pytorch
from traceflops.remedies import advice

Event = dict[str, Any]


def event(name: str, start: float, took: float, tid: int, pid: str = "CPU functions") -> Event:
    return {"name": name, "ph": "X", "ts": start, "dur": took, "tid": tid, "pid": pid, "args": {}}


def work(
    op: Event, start: float, took: float, number: int, gpu: int = 0, kind: str = "CUDA"
) -> list[Event]:
    """Return what is written behind an operator: its arrow, and its time on a device."""
    arrow = {"name": op["name"], "id": number, "cat": f"cpu_to_{kind.lower()}", "args": {}}
    begin = {**arrow, "ph": "s", "ts": op["ts"], "tid": op["tid"], "pid": "CPU functions"}
    end = {**arrow, "ph": "f", "ts": start, "tid": gpu, "pid": f"{kind} functions"}
    return [begin, end, event(op["name"], start, took, gpu, f"{kind} functions")]


def read(events: list[Event], block_bytes: int = 1 << 22) -> tf.Trace:
    data = json.dumps(events).encode()
    return read_pytorch(source(data, "trace.json"), block_bytes=block_bytes)


def nested(kind: str = "CUDA") -> list[Event]:
    """Return a range around two operators, one in the other, and one on a second device."""
    around, outer = event("forward", 0.0, 90.5, 1), event("aten::linear", 1.25, 50.0, 1)
    inner, other = event("aten::addmm", 2.0, 30.0, 1), event("aten::relu", 60, 10, 1)
    return [
        *(around, *work(around, 5.5, 100.0, 0, kind=kind)),
        *(outer, *work(outer, 10.0, 60.0, 1, kind=kind)),
        *(inner, *work(inner, 20.0, 40.125, 2, kind=kind)),
        *(other, *work(other, 63, 7, 3, gpu=1, kind=kind)),
    ]


def names_of_ops(trace: tf.Trace) -> list[str | None]:
    ops = trace.ops["name"].to_pylist()
    return [
        ops[-1 - c] if c is not None else None for c in rows(trace, "activities", "correlation")
    ]


@pytest.mark.parametrize("kind", ["CUDA", "XPU", "GPU"])
@pytest.mark.parametrize("block_bytes", [1 << 22, 300, 150])
def test_work_belongs_to_the_innermost_operator(kind: str, block_bytes: int) -> None:
    trace = read(nested(kind), block_bytes)
    assert rows(trace, "ops", "name", "start_ns", "dur_ns", "thread") == [
        ("forward", 0, 90_500, 1),
        ("aten::linear", 1_250, 50_000, 1),
        ("aten::addmm", 2_000, 30_000, 1),
        ("aten::relu", 60_000, 10_000, 1),
    ]
    assert rows(trace, "activities", "device", "kind", "name", "start_ns", "dur_ns") == [
        (0, "op", "forward", 5_500, 4_500),
        (0, "op", "aten::linear", 10_000, 10_000),
        (0, "op", "aten::addmm", 20_000, 40_125),
        (0, "op", "aten::linear", 60_125, 9_875),
        (1, "op", "aten::relu", 63_000, 7_000),
        (0, "op", "forward", 70_000, 35_500),
    ]
    assert names_of_ops(trace) == rows(trace, "activities", "name")
    assert rows(trace, "devices", "local_id", "type") == [(0, "gpu"), (1, "gpu")]
    codes = {note.code for note in trace.notes}
    assert codes == {"operator-times", "no-calls", "no-shapes"}


def test_a_list_in_order_of_time_does_not_say_whose_all_work_is() -> None:
    trace = read(sorted(nested(), key=lambda one: float(one["ts"])))
    known = {"aten::addmm", "aten::relu"}  # their arrows are still beside them
    labels = rows(trace, "activities", "name")
    assert names_of_ops(trace) == [label if label in known else None for label in labels]
    assert set(rows(trace, "activities", "kind")) == {"kernel", "op"}


@pytest.mark.parametrize(
    ("kept", "said"),
    [(("X", "s"), "launched 4 GPU operations, whose times are not"), ("X", "no GPU operations")],
)
def test_operators_alone(kept: tuple[str, ...], said: str) -> None:
    """Without use_cuda; later versions leave out times of devices, too."""
    on_cpu = [one for one in nested() if one["pid"] == "CPU functions" and one["ph"] in kept]
    trace = read(on_cpu)
    assert trace.ops.num_rows == 3  # and the range around them
    assert trace.activities.num_rows == 0
    (note,) = [note for note in trace.notes if note.code.startswith("no-device-work")]
    assert said in note.text


def test_what_the_format_never_has_is_not_asked_of_its_options() -> None:
    trace = read(nested())
    assert advice(trace, "shapes").startswith("record with torch.profiler ")
    assert advice(trace, "ranges") == "record with record_function()"


def test_the_case() -> None:
    trace = tf.read(shared_file("cases/pytorch_amd_jax/legacy-autograd-trace/trace.json"))
    assert [trace.ops.num_rows, trace.activities.num_rows] == [30, 30]
    assert set(rows(trace, "activities", "dur_ns")) == {70_000}
    assert set(rows(trace, "ops", "dur_ns")) == {60_000}


def test_shapes_as_kineto_spelled_them_first() -> None:
    """Files of 2020 and early 2021 write `Input dims`, and empty lists of what was not recorded."""
    said = {"Input dims": [[2, 3], [3, 4]], "Input type": [], "Output dims": [], "External id": 1}
    mm = {"cat": "Operator", "args": said, **event("aten::mm", 1, 2, 7, "9")}
    trace = read([mm | {"args": said}])
    assert rows(trace, "ops", "input_dims", "external_id") == [("[[2,3],[3,4]]", 1)]
    assert "no-shapes" not in {note.code for note in trace.notes}


def test_ranges_among_operators_are_annotations() -> None:
    # `MulBackward0` is a node of autograd and `detach` has no operator in it: only ranges move.
    trace = read(
        [
            *(event("predict", 0, 100, 1), event("aten::linear", 10, 30, 1)),
            *(event("detach", 45, 2, 1), event("MulBackward0", 50, 20, 1)),
            *(event("aten::mul", 55, 10, 1), event("predict", 100, 50, 1)),
        ]
    )
    assert rows(trace, "marks", "name") == ["predict", "predict"]
    assert rows(trace, "marks", "dur_ns") == [100_000, 50_000]
    assert rows(trace, "marks", "kind") == ["annotation", "annotation"]
    named = ["aten::linear", "detach", "MulBackward0", "aten::mul"]
    assert rows(trace, "ops", "name") == named
    # Before PyTorch 1.6 no operator has a namespace: nothing tells ranges from these.
    old = read([event("predict", 0, 100, 1), event("addmm", 10, 30, 1)])
    assert rows(old, "ops", "name") == ["predict", "addmm"]
