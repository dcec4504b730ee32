"""Ranges of the program that old files write as operators, and what the header tells of GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

import traceflops as tf
from tests.parsers.rocprof.jsonfile import source
from traceflops.parsers.pytorch.reader import read_pytorch
from traceflops.table.columns import names


def op(name: str, start: float, took: float, **args: Any) -> dict[str, Any]:
    times = {"ts": start, "dur": took, "pid": 1, "tid": 1}
    return {"ph": "X", "cat": "cpu_op", "name": name, "args": args} | times


def trace_of(*events: dict[str, Any], **header: Any) -> tf.Trace:
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": events})
    return read_pytorch(source(text.encode()))


@pytest.mark.parametrize(
    ("args", "inside", "is_range"),
    [
        ({}, "aten::add", True),
        ({"Sequence number": 3}, "aten::add", False),
        ({"Input Dims": [[2]]}, "aten::add", False),
    ],
)
def test_a_range_that_is_written_as_an_operator(
    args: dict[str, Any], inside: str, is_range: bool
) -> None:
    trace = trace_of(
        op("model_inference", 0, 100, **args), op(inside, 10, 20), op("detach_", 40, 5)
    )
    kept = ["aten::add", "detach_"]
    assert trace.ops["name"].to_pylist() == (kept if is_range else ["model_inference", *kept])
    assert [*names(trace.marks["name"])] == ["model_inference"] * is_range
    if is_range:
        assert trace.marks["dur_ns"].to_pylist() == [100_000]
        [between] = tf.analyze(trace).idle.by_class()
        # 5 us from the first operator to the end of the last are of the range: 30 to 40.
        assert (between.kind, between.idle_ns) == ("host_code", 10_000)


def test_a_profiler_that_lists_no_gpu_is_not_told_to_record_one() -> None:
    listed, unlisted = (
        tf.analyze(trace_of(op("aten::add", 0, 5), deviceProperties=gpus))
        for gpus in ([{"id": 0, "name": "NVIDIA GeForce GTX 1060"}], [])
    )
    assert "ProfilerActivity.CUDA" in listed.measured.lacks[0].remedy
    assert unlisted.measured.lacks[0].remedy == ""
    assert [note.text for note in unlisted.notes if note.code == "no-device-work"] == [
        "The file has no GPU operations, and the profiler lists no GPU."
    ]


def test_a_profiler_that_never_became_active_is_told() -> None:
    span = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": 0}
    end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1_000}
    trace = trace_of(span | {"ts": 0, "dur": 1_000, "args": {"Op count": 0}}, end)
    (note,) = trace.notes
    assert "prof.step()" in note.text
    verdict = tf.analyze(trace).verdict
    assert verdict is not None and verdict.sentence.startswith("Nothing of the program is recorded")
