"""Nsight Systems: whose the work is that does not say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.parsers.nsight.nsysfile import NsysFile, process, thread
from tests.parsers.nsight.test_nsys_processes import worker
from tests.parsers.nsight.test_nsys_quirks import codes, made, note, rows
from traceflops.table.links import link


def helper(export: NsysFile, pid: int) -> None:
    """Add a process that only asks how many GPUs there are."""
    export.call(1, 2, 1, globalTid=thread(1, pid), name="cudaGetDeviceCount")


@pytest.mark.parametrize("nobody", [None, 0, process(0)])
def test_a_process_that_only_calls_made_none_of_it(tmp_path: Path, nobody: Any) -> None:
    export = NsysFile()
    export.row("TARGET_INFO_CUDA_DEVICE", gpuId=3, cudaId=0, pid=100)
    worker(export, 100)
    helper(export, 200)
    export.call(21, 22, 2, globalTid=thread(1, 100), name="cudaMemcpyAsync")
    export.copy(30, 40, 1, globalPid=nobody, correlationId=2)
    trace = made(tmp_path, export, "rank3.sqlite")
    assert rows(trace, "processes", "pid", "rank") == [(100, 3), (200, None)]
    assert rows(trace, "devices", "local_id") == [3]
    assert rows(trace, "activities", "process", "stream") == [(0, 7), (0, 7)]
    assert trace.calls["start_ns"].take(link(trace).call_of_activity).to_pylist() == [1, 21]
    assert codes(trace).isdisjoint({"calls-of-unknown-process", "streams-renumbered"})
    analysis = tf.analyze(trace)
    (device,) = analysis.devices
    assert (device.label, device.whole.idle_ns) == ("GPU 3", 10)
    assert "no-calls" not in {one.code for one in analysis.notes}


def test_of_several_workers_it_is_the_one_that_used_that_gpu(tmp_path: Path) -> None:
    export = NsysFile()
    worker(export, 100, deviceId=0)
    worker(export, 200, deviceId=1)
    export.copy(30, 40, 1, globalPid=None, deviceId=1)
    export.copy(50, 60, 1, globalPid=None, deviceId=0)
    trace = made(tmp_path, export)
    assert rows(trace, "processes", "pid") == [100, 200]
    assert sorted(rows(trace, "activities", "process", "device")) == [(0, 0)] * 2 + [(1, 1)] * 2
    assert "calls-of-unknown-process" not in codes(trace)


def test_where_two_used_gpus_that_they_call_the_same_it_stays_unknown(tmp_path: Path) -> None:
    export = NsysFile()
    for gpu, pid in enumerate((100, 200)):
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        worker(export, pid)
    export.copy(30, 40, 1, globalPid=None)
    trace = made(tmp_path, export)
    assert rows(trace, "processes", "pid") == [100, 200, None]
    assert note(trace, "rank-unknown").count == 2
    text = note(trace, "calls-of-unknown-process").text
    assert "appear as 1 device of an unknown process" in text
    labels = [device.label for device in tf.analyze(trace).devices]
    assert labels == ["process 100 · gpu 0", "process 200 · gpu 1", "process unknown · gpu 0"]


def test_on_a_shared_gpu_it_is_on_the_stream_of_that_number(tmp_path: Path) -> None:
    export = NsysFile()
    for pid in (100, 200):
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=pid)
        worker(export, pid)
    export.copy(30, 40, 1, globalPid=None)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "local_id") == [0]
    assert sorted(rows(trace, "activities", "stream")) == [7, 7, 8]
    assert note(trace, "streams-renumbered").count == 1
    assert "of 2 processes" in note(trace, "calls-of-unknown-process").text
