"""Real CSV of rocprof: every figure that was computed independently is met exactly."""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.errors import NotATrace
from traceflops.table.columns import ABSENT, IntArray, codes, names, numbers
from traceflops.table.links import link
from traceflops.timeline.intervals import Intervals, latest_end_before

DOCS = "v3_csv_docs_rocm7"
WITH_WORK = {
    "v1_r9700_llamacpp/results.csv": "v1_r9700_llamacpp/results.csv",
    "v3_csv_rdna35_llamacpp/decode_*": "v3_csv_rdna35_llamacpp",
    f"{DOCS}/kernel_trace.csv": f"{DOCS}/kernel_trace.csv",
    f"{DOCS}/kernel_trace_truncated.csv": f"{DOCS}/kernel_trace_truncated.csv",
    f"{DOCS}/memory_copy_trace.csv": f"{DOCS}/memory_copy_trace.csv",
}
TOTALS = ("v1_r9700_llamacpp/results.stats.csv", f"{DOCS}/hip_api_stats.csv")
COUNTED = {
    f"{DOCS}/counter_collection.csv": (f"{DOCS}/counter_collection.csv", "counter_collection.csv"),
    "v3_csv_rdna35_llamacpp/decode_*": (
        "v3_csv_rdna35_llamacpp",
        "decode_fetch_counter_collection.csv",
        "decode_stall_counter_collection.csv",
    ),
}
CALLS = {"hip_trace": "hip", "hsa_api_trace": "hsa", "rccl_trace": "rccl", "rocpd-to-csv": "hip"}


@cache
def figures(name: str) -> dict[str, Any]:
    expected = json.loads(shared_file("traces/expected.json").read_text())["traces"]
    return expected[f"rocprof/{name}"]  # type: ignore[no-any-return]


@cache
def trace_of(name: str) -> tf.Trace:
    return tf.read(shared_file(f"traces/rocprof/{name}"))


class Work:
    """The work of the only device of a trace."""

    def __init__(self, trace: tf.Trace) -> None:
        activities = trace.activities
        assert set(numbers(activities["device"]).tolist()) == {0}
        self.start = numbers(activities["start_ns"])
        self.end = self.start + numbers(activities["dur_ns"])
        self.stream = numbers(activities["stream"], ABSENT)
        self.kind = np.array(names(activities["kind"]))[codes(activities["kind"])]
        self.name = np.array(names(activities["name"]))[codes(activities["name"])]

    def union_ns(self, rows: Any = slice(None)) -> int:
        return Intervals.of(self.start[rows], self.end[rows]).length_ns

    def sum_ns(self, rows: Any = slice(None)) -> int:
        return int((self.end - self.start)[rows].sum())


def overlaps(work: Work) -> IntArray:
    """Return by how much work begins before an earlier one of its stream ends."""
    order = np.lexsort((work.end, work.start))
    start, end = work.start[order], work.end[order]
    before = latest_end_before(work.stream[order], start, end)
    return np.where(before > start, before - start, 0)


@pytest.mark.parametrize("name", WITH_WORK)
def test_device_work_meets_every_figure(name: str) -> None:
    trace = trace_of(WITH_WORK[name])
    ((device, expected),) = figures(name)["devices"].items()
    work = Work(trace)
    assert trace.devices["local_id"].to_pylist() == [int(device.rpartition(" ")[2])]
    assert trace.devices["type"].to_pylist() == ["gpu"]
    assert dict(Counter(work.kind.tolist())) == expected["activities"]
    assert len(np.unique(work.stream)) == expected["streams"]
    assert int(work.start.min()) == expected["first_start_ns"]
    assert int(work.end.max()) == expected["last_end_ns"]
    assert int(work.end.max() - work.start.min()) == expected["span_ns"]
    assert work.union_ns() == expected["busy_ns"]
    assert work.sum_ns() == expected["sum_of_durations_ns"]
    for kind, value in expected["sum_by_kind_ns"].items():
        assert work.sum_ns(work.kind == kind) == value
        assert work.union_ns(work.kind == kind) == expected["union_by_kind_ns"][kind]
    assert int((work.end == work.start).sum()) == expected["zero_duration"]
    assert expected["negative_duration"] == 0
    late = overlaps(work)
    assert int((late > 0).sum()) == expected["same_stream_overlaps"]["n"]
    assert int(late.max()) == expected["same_stream_overlaps"]["max_ns"]


@pytest.mark.parametrize("name", WITH_WORK)
def test_kernels_have_their_names_and_sums(name: str) -> None:
    work = Work(trace_of(WITH_WORK[name]))
    ((_, expected),) = figures(name)["devices"].items()
    kernels = work.name[work.kind == "kernel"]
    assert len(set(kernels.tolist())) == expected["distinct_kernel_names"]
    for top in expected["top_kernels"]:
        rows = work.name == top["name"]
        assert (int(rows.sum()), work.sum_ns(rows)) == (top["n"], top["sum_ns"])
    if "blit_kernels" in expected:
        blits = np.array([one.startswith("__amd_rocclr_") for one in work.name.tolist()])
        assert int(blits.sum()) == expected["blit_kernels"]["n"]
        assert work.sum_ns(blits) == expected["blit_kernels"]["sum_ns"]


@pytest.mark.parametrize("name", [name for name in WITH_WORK if "memory_copy" not in name])
def test_the_accounting_adds_up_to_the_figures(name: str) -> None:
    whole = tf.analyze(trace_of(WITH_WORK[name])).devices[0].whole
    ((_, expected),) = figures(name)["devices"].items()
    assert whole.streams == expected["streams"]
    assert (whole.span_ns, whole.busy_ns) == (expected["span_ns"], expected["busy_ns"])
    assert whole.idle_ns == expected["partition_comm_last_ns"]["idle"]
    assert whole.communication.union_ns == expected["comm"]["union_ns"]
    assert whole.same_stream_overlaps == expected["same_stream_overlaps"]["n"]


def test_links_of_a_thinned_trace() -> None:
    trace = trace_of("v3_csv_rdna35_llamacpp")
    expected = figures("v3_csv_rdna35_llamacpp/decode_*")["devices"]["Agent 1"]
    call = link(trace).call_of_activity
    assert int((call < 0).sum()) == expected["unlinked"]["kernel"]
    labels, of = names(trace.calls["name"]), codes(trace.calls["name"])
    found = Counter(labels[of[row]] for row in call[call >= 0].tolist())
    assert found == expected["launch_api"]
    work = Work(trace)
    linked = call >= 0
    assert work.union_ns(linked) == expected["linked_only"]["busy_ns"]
    (note,) = [note for note in trace.notes if note.code == "calls-missing"]
    assert note.count == expected["unlinked"]["kernel"]
    assert "(18.8 %)" in note.text


def test_the_queue_delay_of_v1_is_from_call_to_kernel() -> None:
    trace = trace_of("v1_r9700_llamacpp/results.csv")
    call = link(trace).call_of_activity
    start = numbers(trace.activities["start_ns"])
    queued = numbers(trace.calls["start_ns"])[call]
    expected = figures("v1_r9700_llamacpp/results.csv")["meta"]
    assert int((start - queued).sum()) == expected["queue_delay_ns_sum"]
    assert set(trace.calls["dur_ns"].to_pylist()) == {0}
    assert set(trace.calls["api"].to_pylist()) == {"hsa"}


@pytest.mark.parametrize("name", TOTALS)
def test_totals_meet_the_sums(name: str) -> None:
    trace, expected = trace_of(name), figures(name)
    assert trace.totals.num_rows == expected["rows"]
    assert sum(trace.totals["total_ns"].to_pylist()) == int(expected["sum TotalDurationNs"])
    assert sum(trace.totals["count"].to_pylist()) == int(expected["sum Calls"])
    assert trace.activities.num_rows == 0
    assert "no-timeline" in [note.code for note in trace.notes]


def test_the_sum_of_a_domain_stands_where_nothing_else_does() -> None:
    trace, expected = (
        trace_of(f"{DOCS}/hip_domain_stats.csv"),
        figures(f"{DOCS}/hip_domain_stats.csv"),
    )
    (row,) = trace.totals.to_pylist()
    assert (row["kind"], row["name"]) == ("domain", "HIP_API")
    assert row["count"] == int(expected["sum Calls"])
    assert row["total_ns"] == int(expected["sum TotalDurationNs"])


@pytest.mark.parametrize("name", COUNTED)
def test_counters_meet_the_sums(name: str) -> None:
    place, *files = COUNTED[name]
    trace = trace_of(place)
    expected: dict[str, float] = {}
    for file in files:
        found = figures(name)["meta"]["files"][file]
        expected |= {key: float(value) for key, value in found["counter_sums"].items()}
    table = trace.kernel_counters.to_pylist()
    sums: dict[str, float] = {}
    for row in table:
        sums[row["counter"]] = sums.get(row["counter"], 0.0) + row["value"]
    assert sums.keys() == expected.keys()
    assert sums == pytest.approx(expected, rel=1e-12, abs=1e-6)
    dispatches = figures(name)["meta"]["files"][files[0]]["dispatches"]
    assert len({row["dispatch"] for row in table}) == dispatches


def test_counter_runs_beside_a_timing_run_are_its_repetitions() -> None:
    trace = trace_of("v3_csv_rdna35_llamacpp")
    assert trace.processes.num_rows == 1
    table = trace.kernel_counters.to_pylist()
    assert {row["repetition"] for row in table} == {1, 2}
    assert {row["correlation"] for row in table} == {None}
    assert len({row["repetition"] for row in table if row["counter"] == "FETCH_SIZE"}) == 1


@pytest.mark.parametrize("name", CALLS)
def test_calls_alone_are_read(name: str) -> None:
    trace = trace_of(f"{DOCS}/{name}.csv")
    expected = figures(f"{DOCS}/{name}.csv")
    rows = expected.get("rows") or expected["meta"]["files"][f"{name}.csv"]["rows"]
    assert trace.calls.num_rows == rows
    assert set(trace.calls["api"].to_pylist()) == {CALLS[name]}
    assert trace.activities.num_rows == trace.devices.num_rows == 0


def test_markers_are_ranges_and_instants() -> None:
    marks = trace_of(f"{DOCS}/marker_api_trace.csv").marks.to_pylist()
    assert [(m["kind"], m["name"], m["dur_ns"]) for m in marks] == [
        ("instant", "before hipLaunchKernel", 0),
        ("annotation", "hipLaunchKernel range", 1813674),
        ("annotation", "hipLaunchKernel", 1806657),
        ("instant", "after hipLaunchKernel", 0),
        ("annotation", "hipMemcpy", 1342308),
    ]
    assert [m["thread"] for m in marks] == [717, None, 717, 717, 717]


def test_allocations_and_scratch_memory_are_counted() -> None:
    allocations = trace_of(f"{DOCS}/memory_allocation_trace.csv")
    assert allocations.source.event_counts == {"memory_allocation": 4}
    scratch = trace_of(f"{DOCS}/scratch_memory_trace.csv")
    assert scratch.source.event_counts == {"scratch_memory": 2}
    assert set(scratch.marks["kind"].to_pylist()) == {"overhead"}


def test_a_list_of_agents_alone_is_no_trace() -> None:
    with pytest.raises(NotATrace, match="only a list of the machine's GPUs"):
        trace_of(f"{DOCS}/agent_info.csv")


def test_a_folder_of_different_runs_shows_them_apart() -> None:
    trace = trace_of(DOCS)
    by_process = Counter(numbers(trace.activities["process"]).tolist())
    assert sorted(by_process.values()) == [4, 4, 9]
    assert trace.calls.num_rows == 17 + 10 + 21 + 13
    assert trace.kernel_counters.num_rows == 4
    assert len(trace.source.files) == 14
    assert "runs-apart" in [note.code for note in trace.notes]
    starts = numbers(trace.activities["start_ns"])
    assert int(starts.min()) == 1057963336487172, "nothing was set aside as impossible"


def every_table() -> list[Path]:
    folder = shared_file("traces/rocprof")
    return sorted(folder.rglob("*.csv"))


def test_every_table_says_what_it_is() -> None:
    paths = every_table()
    assert len(paths) > 15
    for path in paths:
        if path.name == "agent_info.csv":
            continue
        trace = tf.read(path)
        assert trace.source.format == "rocprof"
        assert trace.source.facts["generation"] == ("v1" if "v1_" in str(path) else "v3")
        assert sum(trace.source.event_counts.values()) > 0
        assert not {"rows-lost", "rows-repaired"} & {note.code for note in trace.notes}
