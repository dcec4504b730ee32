"""Nsight Systems: one small export for each thing that differs between versions and machines."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.parsers.nsight.nsysfile import (
    HOST,
    PID,
    SECRET,
    TID,
    USER,
    NsysFile,
    nsys,
    process,
    small,
    thread,
)
from traceflops.analysis.preparation import prepare
from traceflops.attribution.device_work import WorkSum
from traceflops.attribution.device_work_tables import BY
from traceflops.errors import InputError
from traceflops.parsers.nsight.nsys.enums import COPIES
from traceflops.parsers.reading import read
from traceflops.table.links import link
from traceflops.table.trace import Note, Trace


def rows(trace: Trace, table: str, *columns: str) -> list[Any]:
    """Return some columns of a table as tuples, or one column as values."""
    found = [trace.table(table)[column].to_pylist() for column in columns]
    return found[0] if len(columns) == 1 else list(zip(*found, strict=True))


def codes(trace: Trace) -> set[str]:
    return {note.code for note in trace.notes}


def note(trace: Trace, code: str) -> Note:
    (found,) = [one for one in trace.notes if one.code == code]
    return found


def made(tmp_path: Path, export: NsysFile, name: str = "run.sqlite") -> Trace:
    return read(export.save(tmp_path / name))


ERAS = ("2020", "2022", "2023", "2026")


@pytest.mark.parametrize("era", ERAS)
def test_every_era_gives_the_same_work(tmp_path: Path, era: str) -> None:
    trace = made(tmp_path, small(era))
    columns = ("kind", "name", "start_ns", "dur_ns", "stream", "correlation", "bytes", "direction")
    assert rows(trace, "activities", *columns) == [
        ("kernel", "void gemm<float>(float*)", 2_000, 1_000, 7, 1, None, None),
        ("memcpy", "Memcpy HtoD (Pinned -> Device)", 4_000, 500, 7, 2, 4096, "HtoD"),
        ("memset", "Memset (Device)", 5_000, 100, 7, 3, 512, None),
        ("kernel", "relu(float*)", 6_000, 1_000, 7, 4, None, None),
    ]
    assert rows(trace, "activities", "grid", "block", "registers_per_thread") == [
        ([4, 2, 1], [128, 1, 1], 32),
        (None, None, None),
        (None, None, None),
        ([4, 2, 1], [128, 1, 1], 32),
    ]
    assert rows(trace, "activities", "shared_memory_bytes") == [48, None, None, 48]
    assert rows(trace, "calls", "name", "api", "thread", "correlation") == [
        ("cudaLaunchKernel", "runtime", TID, 1),
        ("cudaMemcpyAsync", "runtime", TID, 2),
        ("cudaMemsetAsync", "runtime", TID, 3),
        ("cuLaunchKernel", "driver", TID, 4),
    ]
    assert rows(trace, "marks", "kind", "name", "start_ns", "dur_ns") == [
        ("annotation", "step 1", 900, 4_500),
        ("instant", "a mark", 5_000, 0),
    ]
    (device,) = trace.devices.to_pylist()
    assert device["product"] == "NVIDIA H100 80GB HBM3"
    assert (device["sm_count"], device["clock_hz"]) == (132, 1_980_000_000)
    assert (device["compute_major"], device["memory_bytes"]) == (9, 85_899_345_920)
    assert rows(trace, "processes", "pid") == [PID]
    assert link(trace).call_of_activity.tolist() == [0, 1, 2, 3]


def test_the_shapes_of_metadata_give_version_clock_and_identities(tmp_path: Path) -> None:
    versions = {"2020": None, "2022": "2.9.1", "2023": "3.4.0", "2026": "3.25.0"}
    for era, version in versions.items():
        trace = made(tmp_path, small(era), f"{era}.sqlite")
        assert trace.source.facts.get("schema_version") == version
        if version is not None:
            assert trace.source.origin_unix_ns == 1_700_000_000_000_000_000
            assert set(trace.source.identities) == {HOST, USER}


@pytest.mark.parametrize("era", ERAS)
def test_environment_command_and_paths_stay_in_the_file(tmp_path: Path, era: str) -> None:
    trace = made(tmp_path, small(era))
    tables = {name: table.to_pylist() for name, table in trace.tables.items()}
    assert SECRET not in repr((tables, trace.source, trace.notes))
    del tables["processes"]
    assert USER not in repr((tables, trace.source.facts, trace.notes))


TABLES = sorted(small("2026").rows)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_table_that_is_not_there_or_empty_costs_only_what_it_held(
    tmp_path: Path, table: str, how: str
) -> None:
    export = small("2026")
    if how == "missing":
        del export.rows[table]
    else:
        export.rows[table].clear()
    trace = made(tmp_path, export)
    lost = {"KERNEL": 2, "MEMCPY": 1, "MEMSET": 1}
    gone = lost.get(table.removeprefix("CUPTI_ACTIVITY_KIND_"), 0)
    assert trace.activities.num_rows == 4 - gone
    if table == "StringIds":
        assert "(unnamed kernel)" in rows(trace, "activities", "name")


def test_a_report_without_gpus_says_so(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "product") == [None]
    assert "--device" in note(trace, "gpu-unknown").text


def test_two_processes_may_call_different_gpus_by_one_number(tmp_path: Path) -> None:
    export = NsysFile()
    for pid, gpu in ((100, 3), (200, 5)):
        export.kernel(10, 20, globalPid=process(pid))
        export.gpu(gpu)
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "process", "local_id") == [(0, 3), (1, 5)]
    assert rows(trace, "processes", "pid") == [100, 200]


def test_without_that_table_they_stay_two_devices_as_well(tmp_path: Path) -> None:
    export = NsysFile()
    for pid in (100, 200):
        export.kernel(10, 20, globalPid=process(pid))
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "process", "local_id") == [(0, 0), (1, 0)]
    assert "rank-unknown" in codes(trace)


def test_two_processes_on_one_gpu_share_a_device(tmp_path: Path) -> None:
    export = NsysFile()
    export.gpu(2)
    export.kernel(10, 30, globalPid=process(100))
    export.kernel(20, 40, globalPid=process(200), deviceId=1)
    export.row("TARGET_INFO_CUDA_DEVICE", gpuId=2, cudaId=0, pid=100)
    export.row("TARGET_INFO_CUDA_DEVICE", gpuId=2, cudaId=1, pid=200)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "local_id") == [2]
    (device,) = tf.analyze(trace).devices
    assert device.whole.busy_ns == 30


def test_a_gpu_is_found_by_its_uuid_where_its_number_is_missing(tmp_path: Path) -> None:
    export = NsysFile()
    export.gpu(0, "Tesla T4", uuid="AAAA")
    export.gpu(1, "NVIDIA A100-SXM4-40GB", uuid="BBBB")
    export.kernel(10, 30)
    export.row("TARGET_INFO_CUDA_DEVICE", cudaId=0, pid=PID, uuid="bbbb")
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "product") == ["NVIDIA A100-SXM4-40GB"]


def test_of_several_kinds_of_gpus_none_is_guessed(tmp_path: Path) -> None:
    export = NsysFile()
    export.gpu(0, "Tesla T4")
    export.gpu(1, "NVIDIA A100-SXM4-40GB")
    export.kernel(10, 30)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "product") == [None]
    assert "different GPUs" in note(trace, "gpu-unknown").text


def test_of_several_equal_gpus_the_facts_are_known(tmp_path: Path) -> None:
    export = NsysFile()
    for number in range(8):
        export.gpu(number)
    export.kernel(10, 30, deviceId=5)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "local_id", "sm_count") == [(5, 132)]


def test_equal_correlation_ids_of_two_processes_find_their_own_calls(tmp_path: Path) -> None:
    export = NsysFile()
    for pid, at in ((100, 10), (200, 12)):
        export.call(at, at + 1, 7, globalTid=thread(1, pid))
        export.kernel(at + 10, at + 20, globalPid=process(pid), correlationId=7)
    trace = made(tmp_path, export)
    processes = rows(trace, "calls", "process")
    of_call = [processes[call] for call in link(trace).call_of_activity.tolist()]
    assert of_call == rows(trace, "activities", "process")


def test_the_earlier_of_a_runtime_and_a_driver_row_is_the_launch(tmp_path: Path) -> None:
    export = NsysFile()
    export.call(12, 14, 7, name="cuLaunchKernel", eventClass=1)
    export.call(10, 15, 7)
    export.kernel(20, 30, correlationId=7)
    trace = made(tmp_path, export)
    (call,) = link(trace).call_of_activity.tolist()
    assert rows(trace, "calls", "name")[call] == "cudaLaunchKernel"


def test_kernels_without_calls_and_calls_without_kernels(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(20, 30, correlationId=7)
    export.call(1, 2, 8)
    report = tf.analyze(made(tmp_path, export)).devices[0]
    assert report.whole.unlinked == {"kernel": 1}


def test_ends_that_are_missing_equal_or_before_the_start(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(-500, -400)
    export.kernel(100, 200)
    export.range(-50, None, "open")
    export.range(10, None, "a mark", eventType=34)
    export.range(20, 20, "nothing")
    export.range(40, 30, "backwards")
    trace = made(tmp_path, export)
    assert rows(trace, "marks", "name", "kind", "start_ns", "dur_ns") == [
        ("open", "annotation", -50, 250),
        ("a mark", "instant", 10, 0),
        ("nothing", "annotation", 20, 0),
        ("backwards", "annotation", 40, 0),
    ]
    assert rows(trace, "activities", "start_ns") == [-500, 100]
    assert note(trace, "open-range").count == 1
    assert note(trace, "negative-duration").count == 1


def test_texts_of_ranges_stand_in_the_row_in_the_table_of_texts_or_nowhere(tmp_path: Path) -> None:
    export = NsysFile()
    export.range(1, 2, "in the row")
    export.range(3, 4, None, textId=export.string("registered"))
    export.range(5, 6, None, textId=99)
    export.range(7, 8, None)
    trace = made(tmp_path, export)
    unnamed = "(unnamed range)"
    assert rows(trace, "marks", "name") == ["in the row", "registered", unnamed, unnamed]
    assert note(trace, "unnamed").count == 2


def test_only_ranges_and_marks_are_taken_of_nvtx(tmp_path: Path) -> None:
    export = NsysFile()
    for at, kind in enumerate((34, 59, 60, 70, 71, 75, 39, 97, 98, 99)):
        export.range(at, at + 1, f"type {kind}", eventType=kind, domainId=3)
    trace = made(tmp_path, export)
    assert rows(trace, "marks", "name") == [f"type {kind}" for kind in (34, 59, 60, 70, 71)]


def test_operators_of_emit_nvtx_are_grouped_and_keep_sequence_and_sizes(tmp_path: Path) -> None:
    export = NsysFile()
    texts = (
        "aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4]]",
        "aten::mm, seq = 13, op_id = 35, sizes = [[2, 3], [3, 4]], input_op_ids = [(1,0), (2,0)]",
        "aten::mul, op_id = 36",
        "MulBackward0, seq = 12, op_id = 37, sizes = [[], [2]]",
        "autograd::engine::evaluate_function: MulBackward0, op_id = 38",
        "aten::add, sizes = [[2], []",
        "Optimizer.step#SGD.step, op_id = 39",
        "forward, with, commas",
        "aten::relu",
    )
    for at, text in enumerate(texts):
        export.range(at, at + 1, text)
    export.range(90, 91, None, textId=export.string("aten::mm, seq = 14"))
    export.range(92, 93, "aten::mm, seq = 15", domainId=4)
    trace = made(tmp_path, export)
    columns = ("name", "sequence", "external_id", "input_dims")
    assert rows(trace, "ops", *columns) == [
        ("aten::mm", 12, 34, "[[2, 3], [3, 4]]"),
        ("aten::mm", 13, 35, "[[2, 3], [3, 4]]"),
        ("aten::mul", None, 36, None),
        ("MulBackward0", 12, 37, "[[], [2]]"),
        ("autograd::engine::evaluate_function: MulBackward0", None, 38, None),
        ("aten::add", None, None, None),
        ("aten::mm", 14, None, None),
    ]
    assert rows(trace, "marks", "name") == [
        "Optimizer.step#SGD.step",
        "forward, with, commas",
        "aten::relu",
        "aten::mm",
    ]


def test_replays_of_graphs_are_busy_time_of_their_own(tmp_path: Path) -> None:
    export = NsysFile()
    export.call(1, 2, 1)
    export.kernel(10, 20, correlationId=1)
    for at, correlation in ((30, 2), (50, 3)):
        export.call(at - 5, at - 4, correlation, name="cudaGraphLaunch_v10000")
        export.graph(at, at + 10, 5, correlationId=correlation)
    trace = made(tmp_path, export)
    parts = tf.analyze(trace).devices[0].whole.account.components
    assert (parts.graph_ns, parts.idle_ns) == (20, 20)
    assert rows(trace, "activities", "name", "graph") == [
        ("k(int)", None),
        ("graph 5", 5),
        ("graph 5", 5),
    ]
    found = note(trace, "graphs-opaque")
    assert found.count == 2
    assert "--cuda-graph-trace=node" in found.text


def test_kernels_of_a_graph_share_its_launch(tmp_path: Path) -> None:
    export = NsysFile()
    export.call(1, 2, 9, name="cudaGraphLaunch_v10000")
    for node in (1, 2):
        at = node * 10
        export.kernel(at, at + 5, correlationId=9, graphNodeId=node, graphId=4)
    trace = made(tmp_path, export)
    assert rows(trace, "activities", "kind", "graph", "graph_node") == [
        ("kernel", 4, 1),
        ("kernel", 4, 2),
    ]
    assert link(trace).call_of_activity.tolist() == [0, 0]
    assert "graphs-opaque" not in codes(trace)


def test_kernels_of_a_graph_have_the_range_in_which_their_node_was_made(tmp_path: Path) -> None:
    """A graph runs copies of its nodes, here copies of copies; the last was made by hand."""
    export = NsysFile()
    export.call(1_000, 1_010, 9, name="cudaGraphLaunch_v10000")
    export.range(100, 200, "encoder")
    export.range(200, 300, "decoder")
    export.range(400, 500, "instantiate")
    export.range(900, 1_100, "replay")
    for at, node, original in (
        *((110, 1, None), (120, 2, None), (210, 3, None)),
        *((410, 11, 1), (420, 12, 2), (430, 13, 3)),
        *((440, 21, 11), (450, 22, 12), (460, 23, 13)),
    ):
        ids = {"graphNodeId": node, "originalGraphNodeId": original, "globalTid": thread()}
        export.row("CUDA_GRAPH_NODE_EVENTS", start=at, end=at, **ids)
    for nth, node in enumerate((21, 22, 23, 99)):
        at = 1_100 + 10 * nth
        export.kernel(at, at + nth + 1, correlationId=9, graphNodeId=node, graphId=4)
    prepared = prepare(made(tmp_path, export))
    assert prepared.linked.links.call_of_activity.tolist() == [0] * 4
    found = BY["range"](prepared.as_launched)
    ranges = {owner.label: owner.work for owner in found.owners}
    expected = {"replay": (1, 4), "decoder": (1, 3), "encoder": (2, 3)}
    assert ranges == {label: WorkSum(*work) for label, work in expected.items()}


def test_launches_of_graphs_that_left_nothing_are_said_without_those_that_failed(
    tmp_path: Path,
) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    for number, returned in ((7, 700), (8, None), (9, 0)):
        values = {"name": "cudaGraphLaunch_v10000", "returnValue": returned}
        export.call(number, number + 1, number, **values)
    trace = made(tmp_path, export)
    assert note(trace, "graph-launches-lost").count == 2
    assert rows(trace, "calls", "name", "error_code") == [
        ("cudaGraphLaunch", 700),
        ("cudaGraphLaunch", None),
        ("cudaGraphLaunch", 0),
    ]


def test_waits_and_events_are_no_work(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    place = {"deviceId": 0, "globalPid": process()}
    for kind in (1, 2, 3, 4):
        export.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            **place,
            start=kind * 100,
            end=kind * 100 + 50,
            streamId=7 if kind == 3 else 4294967295,
            syncType=kind,
            correlationId=kind,
        )
    export.row("CUPTI_ACTIVITY_KIND_CUDA_EVENT", **place, timestamp=0, streamId=7)
    export.row("CUPTI_ACTIVITY_KIND_CUDA_EVENT", **place, timestamp=900, streamId=7)
    trace = made(tmp_path, export)
    assert trace.activities.num_rows == 1
    assert rows(trace, "marks", "kind", "sync_kind", "start_ns", "stream", "device") == [
        ("sync", "Event Synchronize", 100, None, 0),
        ("sync", "Stream Wait Event", 200, None, 0),
        ("sync", "Stream Synchronize", 300, 7, 0),
        ("sync", "Context Synchronize", 400, None, 0),
        ("event", None, 900, 7, 0),
    ]
    assert tf.analyze(trace).devices[0].whole.busy_ns == 10


OF_DEVICE, OF_EVENT, OF_STREAM, OF_WAIT = (
    *("Context Synchronize", "Event Synchronize"),
    *("Stream Synchronize", "Stream Wait Event"),
)


@pytest.mark.parametrize(
    ("calls", "kinds"),
    [
        ([(1, "cudaDeviceSynchronize_v3020"), (1, "cuCtxSynchronize")], [OF_DEVICE] * 2),
        ([(2, "cudaEventSynchronize_v3020"), (2, "cuEventSynchronize")], [OF_EVENT] * 2),
        ([(3, "cuStreamSynchronize"), (3, "cuStreamWaitEvent")], [OF_STREAM, OF_WAIT]),
        ([(2, "cudaStreamSynchronize_v3020"), (2, "cudaEventQuery_v3020")], [OF_STREAM, OF_EVENT]),
        ([(3, "cudaStreamWaitEvent_ptsz_v7000"), (9, "cuCtxSynchronize_v2")], [OF_WAIT, OF_DEVICE]),
        ([(4, "cudaMemcpy_v3020"), (3, None)], [OF_DEVICE, OF_STREAM]),
        (
            [(1, "cuCtxSynchronize"), (1, "cudaMemcpy_v3020"), (4, None)],
            [OF_DEVICE, "Synchronize", OF_DEVICE],
        ),
    ],
)
def test_a_wait_is_of_the_kind_of_its_call(
    tmp_path: Path, calls: list[tuple[int, str | None]], kinds: list[str]
) -> None:
    """Codes of some versions contradict it; another process has the same correlations."""
    export = NsysFile()
    export.kernel(10, 20)
    export.kernel(10, 20, globalPid=process(77))
    for at, (code, name) in enumerate(calls, 1):
        times = {"start": at * 100, "end": at * 100 + 50}
        if name is not None:
            export.call(at * 100, at * 100 + 50, at, name=name)
        export.call(at * 100, at * 100 + 50, at, name="cudaFree_v3020", globalTid=thread(pid=77))
        export.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            **times,
            globalPid=process(),
            syncType=code,
            correlationId=at,
        )
    trace = made(tmp_path, export)
    assert rows(trace, "marks", "name", "sync_kind") == [(kind, kind) for kind in kinds]


@pytest.mark.parametrize(
    ("gpus", "product"),
    [
        ([(0, 1, "A100"), (1, 0, "A100"), (2, 3, "A40"), (3, 2, "A40")], "A100"),
        ([(3, 2, "A40"), (0, 0, "A100"), (1, 1, "A40"), (2, 3, "A40")], "A100"),
        ([(0, 1, "A100"), (1, 0, "A40")], None),
        ([(0, None, "A100"), (1, None, "A40")], None),
        ([(0, 0, "A100"), (1, 0, "A40")], None),
    ],
)
def test_a_gpu_is_known_where_both_of_its_numbers_agree(
    tmp_path: Path, gpus: list[tuple[int, int | None, str]], product: str | None
) -> None:
    """One number is the report's, the other CUDA's; no table says what processes call them."""
    export = NsysFile()
    export.kernel(10, 20)
    for number, of_cuda, name in gpus:
        export.gpu(number, name, cuDevice=of_cuda, totalMemory=85_899_345_920 + (number << 20))
    trace = made(tmp_path, export)
    (device,) = trace.devices.to_pylist()
    assert device["product"] == product
    assert device["sm_count"] == (132 if product else None)
    code = "gpu-by-number" if product else "gpu-unknown"
    assert {"gpu-by-number", "gpu-unknown"} & codes(trace) == {code}


def test_overheads_explain_idle_time_and_are_no_work(tmp_path: Path) -> None:
    export = NsysFile()
    export.call(1, 2, 1)
    export.kernel(100, 200, correlationId=1)
    export.kernel(1_000, 1_100)
    flush = export.string("CUPTI Buffer flush")
    export.row("PROFILER_OVERHEAD", start=150, end=500, globalTid=thread(), nameId=flush)
    for start, kind in ((300, 4), (400, 8)):
        export.row(
            "CUPTI_ACTIVITY_KIND_OVERHEAD",
            start=start,
            end=start + 300,
            globalTid=thread(),
            nameId=export.string(f"type {kind}"),
            overheadType=kind,
        )
    export.row("PROFILER_OVERHEAD", start=0, end=9, globalTid=thread(1, 999), nameId=flush)
    trace = made(tmp_path, export)
    assert rows(trace, "marks", "kind", "name") == [
        ("overhead", "profiler: CUPTI Buffer flush"),
        ("overhead", "profiler: type 4"),
        ("overhead", "type 8"),
    ]
    analysis = tf.analyze(trace)
    assert analysis.devices[0].whole.busy_ns == 200
    (said,) = [one for one in analysis.notes if one.code == "profiler-overhead"]
    # The profiler worked from 150 to 600; the device was idle from 200 on.
    assert "450 ns total" in said.text
    assert "400 ns of that" in said.text


def test_system_calls_of_threads_that_call_cuda_are_kept(tmp_path: Path) -> None:
    export = NsysFile()
    export.call(1, 2, 1)
    export.kernel(10, 20, correlationId=1)
    for at, (name, length, tid) in enumerate(
        (("poll", 200_000, TID), ("poll", 50, TID), ("fopen", 300_000, TID), ("poll", 400_000, 5))
    ):
        start = at * 10**6
        export.row(
            "OSRT_API",
            start=start,
            end=start + length,
            globalTid=thread(tid),
            nameId=export.string(name),
        )
    trace = made(tmp_path, export)
    assert rows(trace, "marks", "kind", "name", "dur_ns") == [
        ("system", "poll", 200_000),
        ("system", "poll", 50),
        ("system", "fopen", 300_000),
    ]
    assert trace.source.event_counts["OSRT_API"] == 4


def test_what_openacc_does_is_kept_as_system_calls_are(tmp_path: Path) -> None:
    export = NsysFile()
    export.call(1, 2, 1)
    export.kernel(10, 20, correlationId=1)
    own = {"globalTid": thread(TID), "nameId": export.string("Enter Data")}
    export.row("CUPTI_ACTIVITY_KIND_OPENACC_DATA", start=30, end=45, **own)
    found = rows(made(tmp_path, export), "marks", "kind", "name", "dur_ns")
    assert found == [("system", "Enter Data", 15)]


@pytest.mark.parametrize("others", [1, 4])
def test_samples_of_processes_that_call_cuda_are_named_by_their_innermost_function(
    tmp_path: Path, others: int
) -> None:
    """Three are of a thread that calls CUDA; others of its process are read if they are more."""
    export = NsysFile()
    export.call(1, 2, 1)
    export.kernel(10, 20, correlationId=1)
    frames = (("zlib", "/opt/lib/png.so"), ("0x7f00aa", "/opt/lib/png.so"), ("main", "/home/x/app"))
    owners = (*map(thread, (TID, TID, TID, *[5] * others)), thread(5, 999))
    for at, owner in enumerate(owners):
        export.row("COMPOSITE_EVENTS", id=at, start=100 + at, globalTid=owner)
        for depth, place in enumerate((at % 3, 2)):
            symbol, module = map(export.string, frames[place])
            chain = {"id": at, "symbol": symbol, "module": module, "stackDepth": depth}
            export.row("SAMPLING_CALLCHAINS", **chain)
    trace = made(tmp_path, export)
    more = range(3, 7) if others == 4 else ()
    assert rows(trace, "marks", "kind", "name", "start_ns", "dur_ns") == [
        ("sample", "png.so!zlib", 100, 0),
        ("sample", "png.so", 101, 0),
        ("sample", "app!main", 102, 0),
        *(("sample", ("png.so!zlib", "png.so", "app!main")[at % 3], 100 + at, 0) for at in more),
    ]


def test_threads_that_call_cuda_are_off_the_cpu_from_a_switch_to_the_next(tmp_path: Path) -> None:
    export = NsysFile()
    export.call(100, 200, 1)
    export.kernel(210, 220, correlationId=1)
    export.call(900, 950, 2)
    switches = (
        *((50, 1, TID), (60, 0, TID), (90, 1, TID)),  # before the first call
        *((250, 0, TID), (300, 0, 5), (400, 1, TID), (450, 1, 5)),
        *((500, 0, TID), (600, 0, TID), (700, 1, TID)),  # one of them is lost
        (800, 0, TID),
    )
    for start, is_in, tid in switches:
        export.row("SCHED_EVENTS", start=start, isSchedIn=is_in, globalTid=thread(tid), cpu=0)
    trace = made(tmp_path, export)
    assert rows(trace, "marks", "kind", "start_ns", "dur_ns") == [
        ("off_cpu", 250, 150),
        ("off_cpu", 600, 100),
    ]


def test_concurrent_kernels_count_once(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(0, 100, streamId=7)
    export.kernel(50, 150, streamId=8)
    assert tf.analyze(made(tmp_path, export)).devices[0].whole.busy_ns == 150


def test_copies_fill_the_timeline(tmp_path: Path) -> None:
    export = NsysFile()
    for at in range(10):
        export.kernel(at * 100, at * 100 + 2)
        export.copy(at * 100 + 2, at * 100 + 99, 1)
    parts = tf.analyze(made(tmp_path, export)).devices[0].whole.account.components
    assert parts.memory_ns == 970
    assert parts.idle_ns == 9


def test_migrations_of_unified_memory_are_their_own_kind_of_memory(tmp_path: Path) -> None:
    export = NsysFile()
    for at, kind in enumerate((11, 12, 13)):
        export.copy(at * 10, at * 10 + 5, kind, correlationId=0, streamId=None)
    trace = made(tmp_path, export)
    assert rows(trace, "activities", "direction", "correlation", "stream") == [
        ("migration HtoD", None, None),
        ("migration DtoH", None, None),
        ("migration DtoD", None, None),
    ]
    table = tf.analyze(trace).categories.to_pylist()
    assert {(row["top"], row["sub"]) for row in table if row["sub"]} >= {("memory", "migration")}


def test_copies_of_different_ways_stay_apart(tmp_path: Path) -> None:
    export = NsysFile()
    ways = {1: "HtoD", 2: "DtoH", 3: "HtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
    for at, kind in enumerate((*ways, 77)):
        export.copy(at * 10, at * 10 + 5, kind)
    trace = made(tmp_path, export)
    assert rows(trace, "activities", "direction") == [*ways.values(), None]
    assert note(trace, "copy-kind").count == 1
    parts = tf.analyze(trace).devices[0].whole.account.components
    assert (parts.memory_ns, parts.communication_ns) == (30, 5)


def test_one_file_per_rank_and_one_for_all_give_the_same_figures(tmp_path: Path) -> None:
    together, apart = NsysFile(), [NsysFile(), NsysFile()]
    for rank, alone in enumerate(apart):
        for export in (together, alone):
            export.call(rank + 1, rank + 2, 1, globalTid=thread(1, 100 + rank))
            export.kernel(
                10 * rank + 10, 10 * rank + 25, globalPid=process(100 + rank), correlationId=1
            )
            export.row("MPI_RANKS", globalPid=process(100 + rank), rank=rank)
            export.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=10**18)
    paths = [one.save(tmp_path / f"r{n}.sqlite") for n, one in enumerate(apart)]
    one, several = made(tmp_path, together), read(paths)
    assert one.ranks == several.ranks == (0, 1)
    for table in ("activities", "calls"):
        columns = ("process", "start_ns", "dur_ns", "correlation")
        assert rows(one, table, *columns) == rows(several, table, *columns)


def test_reports_of_several_ranks_align_on_the_calendar(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        export = NsysFile()
        export.kernel(100, 200)
        export.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=10**18 + rank * 1_000)
        paths.append(export.save(tmp_path / f"run.rank{rank}.sqlite"))
    trace = read(paths)
    assert trace.ranks == (0, 1)
    assert rows(trace, "activities", "start_ns") == [100, 1_100]
    assert trace.source.origin_unix_ns == 10**18


def test_the_window_is_that_of_the_rows(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(1_000, 2_000)
    export.row("ANALYSIS_DETAILS", duration=10**12, startTime=0, stopTime=10**12)
    assert tf.analyze(made(tmp_path, export)).devices[0].whole.span_ns == 1_000


def test_ids_of_texts_are_sparse_missing_or_null(tmp_path: Path) -> None:
    export = NsysFile()
    export.row("StringIds", id=10**9, value="far")
    export.kernel(1, 2, demangledName=10**9)
    export.kernel(3, 4, demangledName=77, shortName=None)
    export.kernel(5, 6, demangledName=None, shortName=10**9)
    export.kernel(7, 8, demangledName=None, shortName=None)
    unnamed = "(unnamed kernel)"
    assert rows(made(tmp_path, export), "activities", "name") == ["far", unnamed, "far", unnamed]


def test_columns_that_are_missing_are_unknown(tmp_path: Path) -> None:
    export = NsysFile()
    export.columns["CUPTI_ACTIVITY_KIND_KERNEL"] = ("start", "end", "demangledName", "streamId")
    export.kernel(10, 20, "k")
    export.call(1, 2, 5)
    trace = made(tmp_path, export)
    assert rows(trace, "activities", "name", "correlation", "grid") == [("k", None, None)]
    assert rows(trace, "processes", "pid") == [PID]
    assert "device-unknown" in codes(trace)


def test_a_host_only_report_and_one_of_calls_alone_say_what_is_missing(tmp_path: Path) -> None:
    ranges, calls = NsysFile(), NsysFile()
    ranges.range(1, 2, "work")
    calls.call(1, 2, 1)
    assert "--trace=cuda" in note(made(tmp_path, ranges, "a.sqlite"), "no-device-work").text
    assert "the driver lost" in note(made(tmp_path, calls, "b.sqlite"), "no-device-work").text


def test_a_report_with_fills_alone(tmp_path: Path) -> None:
    export = NsysFile()
    export.fill(10, 20)
    trace = made(tmp_path, export)
    assert rows(trace, "activities", "kind", "bytes") == [("memset", 64)]
    assert "no-calls" in codes(trace)


def test_of_warnings_only_known_words_are_quoted(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    unknown = (
        f"Process launched: python {SECRET}.py --key {SECRET}",
        f"Cannot read /{SECRET} and C:\\Users\\{USER}",
        f"Env http_proxy=http://u:{SECRET}@p",
        f"Cannot read '/data/{SECRET}/run 1/file.py'",
        f"Not all CUDA events might have been collected. {SECRET}",
        f"No {SECRET} events collected.",
    )
    for text in unknown:
        export.row("DIAGNOSTIC_EVENT", severity=2, text=text)
    export.row("DIAGNOSTIC_EVENT", severity=3, text=SECRET)
    export.row("DIAGNOSTIC_EVENT", severity=3, text=None)
    for severity in (1, 4):
        export.row("DIAGNOSTIC_EVENT", severity=severity, text="No NVTX events collected.")
    for traced in ("NVTX", "OpenGL"):
        nothing = f"No {traced} events collected. Does the process use {traced}?"
        export.row("DIAGNOSTIC_EVENT", severity=2, text=nothing)
    known = "Not all OS runtime libraries events might have been collected."
    for _ in range(2):
        export.row("DIAGNOSTIC_EVENT", severity=2, text=known)
    trace = made(tmp_path, export)
    quoted = note(trace, "profiler-warning")
    assert (quoted.text, quoted.count) == (f"Nsight Systems warned: {known}", 2)
    others = note(trace, "profiler-warnings")
    assert others.count == 8
    assert "6 further warnings and 2 further errors" in others.text
    assert SECRET not in repr(trace.notes)
    assert USER not in repr(trace.notes)


def test_names_of_any_length_and_with_markup_stay_as_they_are(tmp_path: Path) -> None:
    names = ("<b>k</b>", "[red]k[/red]", "x" * 5_000)
    export = NsysFile()
    for at, name in enumerate(names):
        export.kernel(at * 10, at * 10 + 5, name)
    assert rows(made(tmp_path, export), "activities", "name") == list(names)


def test_a_log_beside_the_file_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    path = small().save(tmp_path / "run.sqlite")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, globalPid, bytes) "
        f"VALUES (9000, 9100, 0, {process()}, 1)"
    )
    writer.commit()
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir() if "-shm" not in one.name}
    trace = read(path)
    after = {one.name: one.read_bytes() for one in tmp_path.iterdir() if "-shm" not in one.name}
    writer.close()
    assert trace.activities.num_rows == 5
    assert before == after


def test_allocations_and_metrics_are_counters(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    for at, operation in ((5, 0), (25, 1)):
        export.row(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            start=at,
            globalPid=process(),
            deviceId=0,
            address=4096,
            bytes=100,
            memKind=2,
            memoryOperationType=operation,
        )
    export.row("TARGET_INFO_GPU_METRICS", typeId=3, metricId=1, metricName="SMs Active [%]")
    export.row("GPU_METRICS", timestamp=12, typeId=3, metricId=1, value=55)
    trace = made(tmp_path, export)
    assert rows(trace, "counters", "name", "time_ns", "value", "device", "address") == [
        ("device_memory.change_bytes", 5, 100.0, 0, 4096),
        ("SMs Active [%]", 12, 55.0, None, None),
        ("device_memory.change_bytes", 25, -100.0, 0, 4096),
    ]


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    export = NsysFile()
    export.row("songs", start=1)
    with pytest.raises(InputError, match="unknown"):
        made(tmp_path, export)


def test_the_rank_in_a_file_name_counts_where_there_is_one_process(tmp_path: Path) -> None:
    with nsys(tmp_path / "job_rank12.sqlite") as export:
        export.kernel(10, 20)
    assert read(tmp_path / "job_rank12.sqlite").ranks == (12,)


@pytest.mark.parametrize("redact", [False, True])
def test_copies_of_every_kind_keep_to_the_schema(tmp_path: Path, redact: bool) -> None:
    export = NsysFile()
    for kind in COPIES:
        export.copy(kind * 10, kind * 10 + 5, kind)
    analysis = tf.analyze(read(export.save(tmp_path / "run.sqlite")), redact=redact)
    report = json.loads(analysis.to_json())  # which all tests hold against the schema
    assert set(report["devices"][0]["whole"]["copies"]) == {way for way, _ in COPIES.values()}


@pytest.mark.parametrize("has_work", [False, True])
def test_without_gpu_work_warnings_on_cuda_come_first(tmp_path: Path, *, has_work: bool) -> None:
    export = NsysFile()
    export.range(1, 2, "setup")
    if has_work:
        export.kernel(10, 20)
    of_others = "Not all OS runtime libraries events might have been collected."
    of_cuda = "CUDA profiling might have not been started correctly."
    for text in (of_others, of_cuda):
        export.row("DIAGNOSTIC_EVENT", severity=2, text=text)
    trace = made(tmp_path, export)
    texts = [one.text for one in trace.notes if one.code == "profiler-warning"]
    shown = [of_others, of_cuda] if has_work else [of_cuda, of_others]
    assert texts == [f"Nsight Systems warned: {text}" for text in shown]
