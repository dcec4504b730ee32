"""What is no trace is refused in one line that says what it is; nothing else is ever raised."""

import gzip
import io
import json
import os
import pickle
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples, some
from tests.parsers.documents import LAYOUTS, METADATA, anchored, printed, read_one, source_of
from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

PRETTY_CHAKRA = json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]})
OTHER_CHROME = '[{"ph":"X","cat":"toplevel","name":"a","ts":1,"dur":1},{"ph":"B","cat":"blink"}]'
XLA_NAME = (
    b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":['
    b'{"pid":7,"name":"process_name","args":{"name":'
)

FOREIGN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty file"),
    "only space": (b" \n\t\r\n" * 9, "empty file"),
    "only a byte order mark": (b"\xef\xbb\xbf", "not a known trace|empty file"),
    "web page": (b"<!DOCTYPE html>\n<html><body>404</body></html>", "a web page"),
    "web page in capitals": (b"\n\n<HTML><HEAD>", "a web page"),
    "XML error page": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>', "a web page"),
    "git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "a git-lfs pointer",
    ),
    "text": (b"hello, this is a log\n", r"is not a known trace \(text\)\n"),
    "binary": (bytes(range(128, 256)) * 4, r"is not a known trace \(binary data\)\n"),
    "a variable of the environment": (
        b"_TOKEN=hf_x\0HOME=",
        r"is not a known trace \(binary data\)\n",
    ),
    "zeros": (bytes(5000), "not a known trace"),
    "a number": (b"42", "not a known trace"),
    "UTF-16": ('{"name": "package"}'.encode("utf-16"), "no events"),
    "JSON of another kind": (b'{"name": "package", "version": "1.0"}', "no events"),
    "an empty object": (b"{}", "no events"),
    "an empty list": (b"[]", "not a PyTorch trace"),
    "a list of numbers": (b"[1, 2, 3]", "not a PyTorch trace"),
    "events of another tool": (OTHER_CHROME.encode(), "not a PyTorch trace.*blink, toplevel"),
    "no events and no header": (b'{"traceEvents": []}', "not a PyTorch trace"),
    "events that are an object": (b'{"traceEvents": {"a": 1}}', "traceEvents is not a list"),
    "events that are null": (b'{"traceEvents": null}', "traceEvents is not a list"),
    "events in another object": (b'{"data": {"traceEvents": [{"cat": "kernel"}]}}', "no events"),
    "events in a string": (rb'{"log": "{\"traceEvents\": [{}]"}', "no events"),
    "execution trace": (PRETTY_CHAKRA.encode(), "an execution trace|execution trace"),
    "execution trace, nodes first": (b'{"nodes": [{"id": 1}], "schema": "1"}', "execution trace"),
    "graph annotations": (b'{"8589934593": [{"name": "encoder"}]}', "annotations of CUDA graph"),
    "graph stacks": (b'{"8589934593": "model.py:3:forward"}', "annotations of CUDA graph"),
    "node mappings": (b'{"preToPost": {"a": ["b"]}, "version": 2.0}', "a map from Inductor's"),
    "kernel stacks": (b'{"triton_poi_fused_add_0:1": ["  File"]}', "a map from Inductor's"),
    "XLA's JSON": (
        b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{}]}',
        "a JSON export of the profiler of TensorFlow and JAX",
    ),
    "XLA's JSON of a TPU": (XLA_NAME + b'"/device:TPU:0"}}]}', "TensorFlow and JAX, from a TPU"),
    "XLA's JSON of a GPU": (
        XLA_NAME + b'"/device:GPU:0"}},{"pid":7,"tid":1,"name":"thread_name"},{"ph":"X"}]}',
        "less complete than its own file",
    ),
    "XLA's JSON of a GPU without work": (
        XLA_NAME + b'"/device:GPU:0"}},{"pid":8,"tid":1,"name":"thread_name"},{"ph":"X"}]}',
        "TensorFlow and JAX without GPU work",
    ),
    "memory timeline": (b"[[1704067200, [1, 2, 3]], [5]]", "a memory timeline"),
    "memory timeline of rows": (b'[\n [-1, "create", 512, "PARAMETER"]]', "a memory timeline"),
    "SQLite": (b"SQLite format 3\x00" + bytes(84), "SQLite database"),
    "Parquet": (b"PAR1\x15\x04", "damaged or cut Parquet file"),
    "Perfetto": (b"\n\x08\x40\x80\x80\x80\x80\x01\x50\x02", "a Perfetto trace or another"),
    "Perfetto of Kineto": (
        b"\n\x17\xe2\x03\x14\x08\x01\x1a\x102\x0eKineto events",
        "a Perfetto trace that PyTorch's profiler wrote",
    ),
    "OTF2": (b"\x03#\x00\x00", "part of an OTF2 archive"),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    "pickle": (pickle.dumps({"traceEvents": []}), "a Python pickle, which is unsafe to open"),
    "rocprof CSV": (b'"Kind","Agent_Id","Queue_Id"\n"KERNEL_DISPATCH",1,1\n', "rocprof table"),
    "rocprof results CSV": (b'Index,KernelName,gpu-id\n0,"k",1\n', "rocprof table"),
    "rocprof rows without header": (
        b'156,"void fill(int) [clone .kd]",0,0,557,15982,80384,128,0,0,4,24,0x0,2841,2842,2843,1\n',
        "rocprof table",
    ),
    "rocprof stats CSV": (b'"Name","Calls","TotalDurationNs"\n"k",1,2\n', "rocprof table"),
    "nsys CSV": (b"Time (%),Total Time (ns),Instances\n50.0,1,1\n", "Nsight Systems table"),
    "nsys stats with a title": (
        b"\n ** CUDA GPU Kernel Summary:\n\nTime (%),Total Time (ns)\n",
        "Nsight Systems table",
    ),
    "ncu CSV": (b'"ID","Process ID","Process Name"\n"0","1","a"\n', "Nsight Compute table"),
    "rocprofv3 agents CSV": (b'"Node_Id","Logical_Node_Id"\n0,0\n', "rocprof table"),
    "rocprofv3 API CSV": (b'"Domain","Function","Process_Id"\n"HIP",1,1\n', "rocprof table"),
    "broken rocprof v1": (
        b',{"args":{"name":"COPY"},"ph":"M","pid":1}',
        "rocprof .v1. JSON export without its beginning",
    ),
    "nsys report": (b"NVIDIA Tegra Profiler Report\x001.2", r"Nsight Systems report \(\.nsys-rep"),
    "ncu report": (b"NVR\x00\x08\x00", r"Nsight Compute report \(\.ncu-rep\)"),
    "cut in the header": (b'{"schemaVersion": 1, "devicePro', "cut off before its first"),
    "cut behind the key": (b'{"schemaVersion": 1, "traceEvents":', "cut off|not a list"),
    "cut in the first event": (b'{"traceEvents": [{"ph": "X", "cat": "ker', "cut off before its"),
    "gzip of nothing": (gzip.compress(b""), "empty file"),
    "gzip of a web page": (gzip.compress(b"<html></html>"), "a web page"),
}


def refused(data: bytes, name: str = "trace.json") -> InputError:
    with pytest.raises(InputError) as caught:
        read_one(source_of(data, name=name))
    return caught.value


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_trace_is_called_by_its_name(kind: str, tmp_path: Path) -> None:
    data, message = FOREIGN[kind]
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    assert "trace.json" in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.hint.isprintable()
    assert len(caught.value.message) - len(str(tmp_path)) < 300


def test_a_real_database_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with sqlite3.connect(path) as database:
        database.execute("create table kernels (start integer)")
    database.close()
    with pytest.raises(InputError, match="SQLite database"):
        read(path)


def test_categories_in_a_message_are_printable_and_short() -> None:
    nasty = [{"ph": "X", "cat": f"\x1b[31m\n{n}{'x' * 500}"} for n in range(20)]
    message = refused(json.dumps(nasty).encode()).message
    assert message.isprintable()
    assert len(message) < 300


@pytest.mark.parametrize(
    "events",
    [
        [],
        [
            {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "ts": 0, "args": {"name": "t"}},
            {"ph": "i", "name": "Record Window End", "s": "g", "pid": "", "tid": "", "ts": 9},
        ],
    ],
    ids=["no events", "names and the end of the recording"],
)
def test_an_empty_kineto_trace_is_a_trace(events: list[dict[str, object]]) -> None:
    document = {"schemaVersion": 1, "traceEvents": events}
    trace = read_one(source_of(json.dumps(document).encode()))
    assert trace.activities.num_rows == 0
    assert "no-device-work" in {note.code for note in trace.notes}


# Real files of other tools


def shared(folder: str) -> list[Path]:
    root = os.environ.get("TRACEFLOPS_SHARED")
    if root is None:
        return []
    return sorted(p for p in (Path(root) / "traces" / folder).rglob("*") if p.is_file())


@pytest.mark.skipif("TRACEFLOPS_SHARED" not in os.environ, reason="TRACEFLOPS_SHARED is not set")
@pytest.mark.parametrize("folder", ["rocprof", "nsight"])
def test_real_files_of_other_tools_are_read_or_say_why_not(folder: str) -> None:
    paths = shared(folder)
    assert paths
    for path in paths:
        try:
            trace = read(path)
        except InputError as error:
            assert error.message.isprintable(), path
            assert error.hint, path
        else:
            assert any(table.num_rows for table in trace.tables.values()), path


# Noise

SMALL = tuple(
    printed(
        anchored(
            [
                {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2},
                {"ph": "X", "cat": "cuda_runtime", "name": '"l"', "ts": 4, "dur": 1, "args": {}},
                {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 4, "args": {}},
            ]
        ),
        layout,
        METADATA,
    ).data
    for layout in LAYOUTS
)
PIECES = (
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"\n",
    b"null",
    b"NaN",
    b"1e999",
    b"-",
    b"9" * 30,
    b'"\\ud800"',
    b"}, {",
    b'}, {"ph":',
    b"]}",
    b'"traceEvents": [',
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\x1f\x8b",
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a small document that was cut, flipped, stuffed, doubled and spliced."""
    data = bytearray(draw(st.sampled_from(SMALL)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["cut", "drop", "flip", "insert", "double", "splice"])):
            case "cut":
                del data[at:]
            case "drop":
                del data[at:end]
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                data[at:at] = draw(st.sampled_from(PIECES))
            case "double":
                data[at:at] = data[at:end] * draw(st.integers(1, 3))
            case "splice":
                other = draw(st.sampled_from(SMALL))
                data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)


def attempt(data: bytes, size: int) -> Trace | None:
    """Return the trace, or None where it was refused properly; anything else is a failure."""
    try:
        return read_one(source_of(data, size))
    except InputError as error:
        assert error.message.isprintable()
        assert error.hint.isprintable()
        return None


noisy = settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))


@noisy
@given(mutated(), st.sampled_from([3, 50, 1 << 20]))
def test_a_mutated_trace_is_read_or_refused(data: bytes, size: int) -> None:
    trace = attempt(data, size)
    starts = [] if trace is None else trace.activities["start_ns"].to_pylist()
    assert starts == sorted(starts)


@noisy
@given(mutated(), st.integers(0, 400), st.integers(0, 255))
def test_a_mutated_gzip_is_read_or_refused(data: bytes, at: int, value: int) -> None:
    packed = bytearray(gzip.compress(data, mtime=0))
    packed[at % len(packed)] = value
    trace = attempt(bytes(packed), 1 << 20)
    assert trace is None or trace.source.files[0].bytes == len(packed)


@noisy
@given(st.sampled_from(SMALL), st.integers(0, 2000), st.integers(0, 255), st.booleans())
def test_a_mutated_zip_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int, value: int, cut: bool
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.json", data)
    packed = bytearray(buffer.getvalue())
    packed[at % len(packed)] = value
    path = tmp_path_factory.getbasetemp() / "mutated.zip"
    path.write_bytes(packed[: at % len(packed)] if cut else packed)
    try:
        trace = read(path)
    except InputError as error:
        assert "\n" not in error.message
        assert error.hint
    else:
        assert trace.processes.num_rows == 1


@noisy
@given(
    st.sampled_from([b"", b"{", b"[", b'{"traceEvents":[', b'[{"ph":"X"},', b"\x1f\x8b\x08"])
    | st.sampled_from([b"\x28\xb5\x2f\xfd", b"PK\x03\x04"]),
    st.binary(max_size=300),
)
def test_random_bytes_are_refused(head: bytes, noise: bytes) -> None:
    trace = attempt(head + noise, 64)
    assert trace is None or trace.activities.num_rows == 0


@pytest.mark.parametrize("opening", some([b"[", b'{"a":', b'{"args":', b'[{"args":'], 3))
def test_deep_nesting_is_refused(opening: bytes) -> None:
    for start in (b"", b'{"traceEvents":['):
        assert attempt(start + opening * 30_000, 1 << 20) is None


def test_deep_nesting_in_one_event_costs_only_that_event() -> None:
    deep: Any = b'{"ph":"X","cat":"kernel","ts":1,"args":' + b'{"a":' * 5000 + b"5" + b"}" * 5001
    good = b'{"ph":"X","cat":"kernel","name":"good","ts":2}'
    trace = attempt(b'{"traceEvents":[' + good + b"," + deep + b"," + good + b"]}", 1 << 20)
    assert trace is not None
    assert trace.activities["name"].to_pylist() == ["good", "good"]
    assert [note.count for note in trace.notes if note.code == "json-dropped"] == [1]
