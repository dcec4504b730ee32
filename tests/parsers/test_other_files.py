"""Files of other tools are refused by name with what to do; what is read is never taken for one."""

from __future__ import annotations

import cProfile
import gzip
import json
import pickle
import sqlite3
import struct
from pathlib import Path

import pytest

from tests.conftest import ROOT
from traceflops.errors import NotATrace
from traceflops.parsers.other_files import OTHER_FILES, other_file
from traceflops.parsers.reading import read
from traceflops.parsers.unknown_files import UNKNOWN_FILES

SECRET = "hunter2-token"


def meta(name: str) -> dict[str, object]:
    return {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": name}}


def call(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {}, **more}


def statistics(folder: Path) -> bytes:
    profile = cProfile.Profile()
    profile.runcall(sorted, [2, 1])
    profile.dump_stats(folder / "out.prof")
    return (folder / "out.prof").read_bytes()


HATCHET = [{"children": [{"children": [], "frame": {"name": "k"}, "metrics": {"count": 1}}]}]
FLIGHT = {"entries": [{"profiling_name": "nccl:all_reduce", "time_discovered_completed_ns": 0}]}
DETAILS = "Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n0,MatMul,A,B,1,2\n"
LOG = "12:00:01 step 3 loss 1.2\n"

FILES: dict[str, tuple[object, str]] = {
    "Ascend by its processes": ([meta("CANN"), call("aten::mm")], "Ascend NPU"),
    "Ascend hardware": ([meta("Ascend Hardware"), call("MatMul", ts="1699529623106750")], "Ascend"),
    "stream of Nsight Systems": (
        b"U3w[END]NVIDIA Nsight Systems Stream 2024.1!\n\0\x1a",
        "an unfinished stream of Nsight Systems",
    ),
    "Ascend before its processes": ([call("aten::mm", ts="1699529623106750.061")], "Ascend NPU"),
    "Ascend in one object": ({"traceEvents": [meta("Overlap Analysis")]}, "Ascend NPU"),
    "Ascend kernels": (DETAILS, "table or report of an Ascend NPU"),
    "Ascend operators": ("Device_id,OP Type,Core Type,Count\n0,MatMul,AI_CORE,1\n", "Ascend NPU"),
    "Proton": (HATCHET, "Triton's Proton"),
    "Proton without blanks": (json.dumps(HATCHET, separators=(",", ":")), "Triton's Proton"),
    "NCCL Inspector": (
        {"header": {"id": "0x1"}, "metadata": {"inspector_output_format_version": "v4.0"}},
        "NCCL Inspector",
    ),
    "flight recorder": (FLIGHT, "flight recorder"),
    "flight recorder pickle": (pickle.dumps({"version": "2.1", "pg_config": {}}, 2), "flight rec"),
    "unitrace": ({"traceEvents": [meta("HOST<node1>"), meta("DEVICE<node1>")]}, "unitrace"),
    "unitrace of a rank": ({"traceEvents": [meta("RANK 1 HOST<node1>")]}, "unitrace"),
    "unitrace with calls": (
        {"traceEvents": [call("zeInit") | {"cat": "cpu_op"}, call("mm") | {"cat": "gpu_op"}]},
        "unitrace",
    ),
    "times as texts": ([call("a", ts="10.5")], "whose times are texts"),
    "speedscope": (
        {"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []},
        "speedscope",
    ),
    "py-spy flame graph": ('<?xml version="1.0" standalone="no"?>\n<svg version="1.1">', "picture"),
    "flame graph with a type": ('<?xml version="1.0"?><!DOCTYPE svg PUBLIC "x"><svg>', "picture"),
    "screenshot": (b"\x89PNG\r\n\x1a\n" + bytes(96), "a picture"),
    "folded stacks": ("train (a.py:3);forward (b.py:9);mm 17\ntrain (a.py:3) 2\n", "their counts"),
    "stacks of PyTorch": ("a.py(1): f;b.py(2): _forward 5\na.py(1): f 2\n", "export_stacks"),
    "perf script": (
        "# captured on: x\n#\ntrain     9 198.478194:    1001001 cpu-clock: \n\t63c f\n",
        "perf script",
    ),
    "perf script of a CPU": ("a b 12/13 [002] 198.478194: cycles:ppp:  63c f (x)\n", "perf script"),
    "stack dump": ("Thread 0x00007f3e4ca64b80 (most recent call first):\n  File\n", "the stacks"),
    "py-spy dump": ("Process 1234: python train.py\nPython v3.11\n", "the stacks"),
    "perf": (b"PERFILE2" + bytes(96), "Linux perf"),
    "memray": (b"memray\0\x0c", "memray"),
    "pprof": (b"\n\x04\x08\x01\x10\x02\n\x04\x08\x03\x10\x04\x12", "a pprof profile"),
    "memory timeline page": (
        "<html>\n<head></head><body>\n<img src='data:image/png;base64,iVBOR'>",
        "memory timeline as a page",
    ),
    "memory page": ("<!DOCTYPE html><script>import 'MemoryViz.js'</script>", "memory timeline"),
    "TensorBoard": (
        struct.pack("<QI", 24, 7) + b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2" + bytes(4),
        "TensorBoard event file",
    ),
    "DevTools": ({"traceEvents": [meta("CrRendererMain")]}, "Chrome's own"),
    "TensorFlow 1": (
        {"traceEvents": [meta("Allocators"), meta("/device:GPU:0/stream:15 Compute")]},
        "timeline of TensorFlow 1 (RunMetadata), which is not read",
    ),
    "TensorFlow 1 on a CPU": (
        {"traceEvents": [meta("Allocators"), meta("/job:a/task:0/cpu:0 Compute")]},
        "timeline of TensorFlow 1 (RunMetadata) without GPU work",
    ),
    "VizTracer": ({"traceEvents": [call("f", cat="FEE")]}, "VizTracer"),
    "Triton Inference Server": ({"traceEvents": [call("REQUEST_START")]}, "Inference Server"),
    "Horovod": ([meta("grads"), call("NEGOTIATE_ALLREDUCE")], "timeline of Horovod"),
    "MXNet": (
        '{"traceEvents": [{"ph": "M", "args": {"name": "cpu/0"}, "pid": 0}]}',
        "MXNet's own profiler",
    ),
    "Tracy": (b"tlZ\x04" + bytes(9), "Tracy"),
    "nvprof before SQLite": (
        struct.pack("<5I", 0x400, 4, 0x401, 1, 7) + b"GK110 1" + bytes(9),
        "an old recording of nvprof",
    ),
    "nvprof": (f"{LOG}==71== NVPROF is profiling process 71\n", "console text of nvprof"),
    "nvprof's samples": (f"{LOG}======== CPU profiling result (bottom up):\n", "text of nvprof"),
    "nvprof text with metrics": (
        f"{LOG}==7== NVPROF is profiling\n==7== Metric result:\nInvocations  Metric Name\n",
        "with metrics or events by kernel",
    ),
    "summary of Nsight Compute": (
        f"{LOG}==PROF== x\n  k (1, 1, 1)x(8, 1, 1), Device 0, CC 8.9, Invocations 4\n"
        "    Section: Occupancy\n    Metric Name  Metric Unit Minimum Maximum Average\n",
        "a summary of Nsight Compute by kernel",
    ),
    "nvprof summary": (
        "Time(%),Time,Calls,Avg,Min,Max,Name\n9%,1ms,1,1ms,1ms,1ms,k",
        "a summary of nv",
    ),
    "nvprof summary with units": (
        f'{LOG}==7== Profiling result:\n"Type","Time(%)","Time","Calls","Avg"\n',
        "a summary of nvprof",
    ),
    "nvprof GPU trace": (
        f'{LOG}==7== Profiling result:\n"Start","Duration","Grid X","Grid Y"\nms,ms,,\n',
        "a GPU trace of nvprof",
    ),
    "nvprof metrics": (
        f'{LOG}==7== Metric result:\n"Device","Kernel","Invocations","Metric Name"\n',
        "metrics or events of nvprof",
    ),
    "torch table": (f"{LOG}  Name  Self CPU %  CUDA total  # of Calls\n", "printed table of torch"),
    "nvidia-smi": (f"{LOG}| NVIDIA-SMI 550.54  Driver Version |\n", "console text of nvidia-smi"),
    "rocm-smi": ("=== ROCm System Management Interface ===\n", "console text of rocm-smi"),
    "git-lfs": ("version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", "git-lfs pointer"),
}


def as_bytes(content: object) -> bytes:
    if isinstance(content, bytes):
        return content
    text = content if isinstance(content, str) else json.dumps(content)
    return text.encode()


def refused(path: Path) -> NotATrace:
    with pytest.raises(NotATrace) as caught:
        read(path)
    assert caught.value.hint
    assert SECRET not in caught.value.message + caught.value.hint
    return caught.value


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_another_tool_is_refused_by_name(kind: str, packed: bool, tmp_path: Path) -> None:
    content, what = FILES[kind]
    data = as_bytes(content) + SECRET.encode()
    path = tmp_path / ("trace.json.gz" if packed else "trace.json")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert what in refused(path).message


def test_a_few_times_as_texts_are_of_no_npu(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([call("a", ts=10), call("b", ts="10.5")]))
    assert "texts" not in refused(path).message


def test_statistics_of_cprofile_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(statistics(tmp_path))
    assert "cProfile" in refused(path).message


@pytest.mark.parametrize(
    "tables", [("STRING_IDS", "TASK"), ("STRING_IDS", "PYTORCH_API"), ("CommAnalyzerTime",)]
)
def test_a_database_of_an_npu_is_refused_by_name(tables: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "analysis.db"
    with sqlite3.connect(path) as database:
        for table in tables:
            database.execute(f"create table {table} (id integer)")
    database.close()
    assert "database of an Ascend NPU" in refused(path).message


def test_a_name_counts_where_content_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "profile.ntff"
    path.write_bytes(bytes(range(200, 256)))
    assert "Neuron" in refused(path).message


KINETO = {"schemaVersion": 1, "distributedInfo": {"pg_config": []}}


@pytest.mark.parametrize(
    "more",
    [call("f", cat="FEE"), meta("CrBrowserMain"), meta("HOST<a>"), call("REQUEST_START")],
)
def test_a_pytorch_trace_with_words_of_others_is_read(
    more: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    events = [more, call("mm", cat="kernel", args={"device": 0, "stream": 7})]
    path.write_text(json.dumps(KINETO | {"traceEvents": events}))
    assert read(path).activities.num_rows == 1


def test_no_recording_is_taken_for_a_file_of_another_tool() -> None:
    paths = [path for path in (ROOT / "tests" / "fixtures").rglob("*") if path.is_file()]
    assert len(paths) > 50
    taken = {path: other_file(path.read_bytes()[: 1 << 16]) for path in paths}
    assert {path: one for path, one in taken.items() if one is not None} == {}


def test_a_binary_recording_may_hold_words_of_tables() -> None:
    assert other_file(b"NVR\0\x01kernel\0Accelerator Core,") is None


def test_rows_say_what_a_file_is_and_what_to_do() -> None:
    for row in (*OTHER_FILES, *UNKNOWN_FILES):
        assert row.what and row.hint and row.what.isprintable() and row.hint.isprintable()
        assert row.begins or row.line or row.all_of or row.one_of or row.suffixes
