"""Nsight Systems: real exports meet every figure that was computed independently."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

import traceflops as tf
from tests.conftest import shared_file
from tests.timeline.test_expected import Device, assert_launched, expected_figures, report_of
from traceflops.parsers.reading import read
from traceflops.table.links import link
from traceflops.windows.records import DeviceReport

FILES = (
    "nsys_h100x2_mfu_before",
    "nsys_h100x2_1s",
    "nsys_rtx3060_graph",
    "nsys_t4_power_iteration",
)
SECRET = "env-value-removed"


@cache
def real(name: str) -> tuple[tf.Trace, tf.Analysis, dict[str, Any]]:
    key = f"nsight/{name}.sqlite"
    trace = read(shared_file(f"traces/{key}"))
    return trace, tf.analyze(trace), expected_figures()[key]


def devices(name: str) -> list[tuple[tf.Trace, DeviceReport, dict[str, Any]]]:
    trace, analysis, expected = real(name)
    return [(trace, report_of(analysis, k), f) for k, f in expected["devices"].items()]


@pytest.mark.parametrize("name", FILES)
def test_what_is_in_the_file(name: str) -> None:
    trace, _, expected = real(name)
    meta = expected["meta"]
    assert trace.source.format == expected["format"]
    assert trace.source.tool == "Nsight Systems"
    assert trace.source.facts["tool_version"] == meta["EXPORT_PRODUCT_VERSION"]
    assert trace.source.facts["schema_version"] == meta["EXPORT_SCHEMA_VERSION"]
    assert trace.source.facts["cuda_graph_trace"] == meta["cuda_graph_trace_mode"]
    assert [str(n) for n in trace.devices["local_id"].to_pylist()] == list(expected["devices"])
    assert [n for n in trace.devices["product"].to_pylist() if n] == meta["gpu_names"]
    assert set(meta["kernel_pids"]) <= set(trace.processes["pid"].to_pylist())
    assert Counter(trace.activities["kind"].to_pylist()) == expected["activities_total"]
    rows = meta["row_counts"]
    assert trace.calls.num_rows == rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    kinds = Counter(trace.marks["kind"].to_pylist())
    ranges = sum(n for kind, n in meta["nvtx_event_types"].items() if kind in ("59", "60"))
    assert trace.ops.num_rows + kinds["annotation"] == ranges
    tables = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
    assert kinds["overhead"] == sum(rows.get(table, 0) for table in tables)


@pytest.mark.parametrize("name", FILES)
def test_figures_of_time(name: str) -> None:
    for _, report, figures in devices(name):
        whole = report.whole
        assert {kind: s.count for kind, s in whole.kinds.items()} == figures["activities"]
        assert whole.streams == figures["streams"]
        assert whole.start_ns == figures["first_start_ns"]
        assert whole.end_ns == figures["last_end_ns"]
        assert whole.span_ns == figures["span_ns"]
        assert whole.busy_ns == figures["busy_ns"]
        assert whole.idle_ns == figures["idle_ns"]
        assert whole.sum_ns == figures["sum_of_durations_ns"]
        assert whole.zero_length == figures["zero_duration"]
        assert {k: s.sum_ns for k, s in whole.kinds.items()} == figures["sum_by_kind_ns"]
        assert {k: s.union_ns for k, s in whole.kinds.items()} == figures["union_by_kind_ns"]
        overlaps = figures["same_stream_overlaps"]
        assert whole.same_stream_overlaps == overlaps["n"]
        assert whole.same_stream_overlap_max_ns == overlaps["max_ns"]


@pytest.mark.parametrize("name", FILES)
def test_communication_and_components(name: str) -> None:
    for trace, report, figures in devices(name):
        whole, comm = report.whole, figures["comm"]
        assert whole.communication.count == comm["n"]
        assert whole.communication.sum_ns == comm["sum_ns"]
        assert whole.communication.union_ns == comm["union_ns"]
        assert whole.exposed_communication_ns == comm["exposed_ns"]
        assert whole.hidden_communication_ns == comm["overlapped_ns"]
        device = Device(trace, report.device)
        everything = np.ones(len(device.row), dtype=np.bool_)
        parts = device.parts(everything)
        compute_only = parts["communication"].subtract(parts["compute"]).length_ns
        assert compute_only == comm["exposed_vs_compute_ns"]
        compute = (device.kind == "kernel") & ~device.is_comm
        lengths = device.end - device.start
        assert int(compute.sum()) == figures["compute"]["n"]
        assert int(lengths[compute].sum()) == figures["compute"]["sum_ns"]
        assert parts["compute"].length_ns == figures["compute"]["union_ns"]
        assert parts["memory"].length_ns == figures["memory"]["union_ns"]
        names = np.array(trace.activities["name"].to_pylist())[device.row]
        assert Counter(names[device.is_comm].tolist()) == comm["names"]
        graph = device.union(device.kind == "graph")
        found = {
            "compute": parts["compute"].length_ns,
            "memory": parts["memory"].subtract(parts["compute"]).length_ns,
            "graph": graph.subtract(parts["compute"].union(parts["memory"])).length_ns,
            "communication": whole.exposed_communication_ns,
            "idle": whole.idle_ns,
        }
        assert found == figures["partition_comm_last_ns"]
        assert sum(found.values()) == whole.span_ns


@pytest.mark.parametrize("name", FILES)
def test_names_links_and_copies(name: str) -> None:
    for trace, report, figures in devices(name):
        device = Device(trace, report.device)
        kernels = device.kind == "kernel"
        labels = np.array(trace.activities["name"].to_pylist())[device.row][kernels]
        lengths = (device.end - device.start)[kernels]
        sums: Counter[str] = Counter()
        for label, length in zip(labels.tolist(), lengths.tolist(), strict=True):
            sums[label] += length
        counts = Counter(labels.tolist())
        assert len(counts) == figures["distinct_kernel_names"]
        found = {n: (counts[n], sums[n]) for n, _ in sums.most_common(10)}
        assert found == {t["name"]: (t["n"], t["sum_ns"]) for t in figures["top_kernels"]}
        assert report.whole.unlinked == figures["unlinked"]
        call = link(trace).call_of_activity[device.row]
        called = np.array(trace.calls["name"].to_pylist())[call[call >= 0]]
        apis: Counter[str] = Counter()
        for api, count in figures["launch_api"].items():
            apis[re.sub(r"_v\d{4,}$", "", api)] += count
        assert Counter(called.tolist()) == apis
        if "linked_only" in figures:
            assert_launched(device, call >= 0, figures["linked_only"])
        assert report.whole.copies.keys() == figures["copies"].keys()
        for way, copies in figures["copies"].items():
            ours = report.whole.copies[way]
            assert (ours.count, ours.bytes, ours.sum_ns) == (
                copies["n"],
                copies["bytes"],
                copies["sum_ns"],
            )


def test_correlation_ids_of_two_processes_are_kept_apart() -> None:
    trace, _, expected = real("nsys_h100x2_mfu_before")
    rows = trace.calls.to_pylist()
    by_process = [{r["correlation"] for r in rows if r["process"] == p} for p in (0, 1)]
    shared = len(by_process[0] & by_process[1])
    assert shared == expected["meta"]["correlation_ids_used_by_several_processes"]
    kernels = [k == "kernel" for k in trace.activities["kind"].to_pylist()]
    linked = link(trace).call_of_activity >= 0
    assert int((linked & np.array(kernels)).sum()) == 3986


def test_operators_of_pytorch_have_names_and_ids() -> None:
    trace, _, _ = real("nsys_h100x2_mfu_before")
    names = set(trace.ops["name"].to_pylist())
    assert {"aten::copy_", "aten::mul"} <= names
    assert not any(", op_id" in name or ", seq" in name for name in names)
    assert trace.ops["external_id"].null_count == 0
    assert any(number is not None for number in trace.ops["sequence"].to_pylist())


def test_collectives_are_known_by_the_ranges_around_their_launches() -> None:
    trace, _, _ = real("nsys_h100x2_mfu_before")
    told = Counter(trace.activities["collective"].to_pylist())
    assert told["sendrecv"] > 0
    assert set(told) == {None, "sendrecv"}
    note = next(note for note in trace.notes if note.code == "nccl-sizes")
    assert "--include-json=true" in note.text


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_the_environment_is_in_the_trace(name: str) -> None:
    trace, _, _ = real(name)
    tables = {table: rows.to_pylist() for table, rows in trace.tables.items()}
    everything = repr((tables, trace.source, trace.notes))
    assert SECRET not in everything
    assert "/tmp/" not in everything
    assert "/home/" not in everything
    assert "WORKING_DIR" not in everything
