"""Real public traces: every figure that was computed independently is met exactly.

`expected.json` of the shared folder defines each figure. Its `compute` is a split by name (every
kernel that is not communication), so partitions are computed here from the tables by that
definition; launched, started and clipped figures use the host windows of the steps.
"""

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.table.columns import ABSENT, IntArray, codes, names, numbers
from traceflops.table.links import link
from traceflops.timeline.intervals import Intervals
from traceflops.windows.records import DeviceReport

TRACES = (
    "h100_qwen15_infer",
    "mi300x_resnet18_ddp_train",
    "b200_vllm_gptoss_prefill",
    "mi210_gpu_only",
    "mi300x_torch_compile",
    "mi300x_sglang_qwen3_decode_graph",
    "a100_hta_control_rank3",
    "a100_hta_nccl_rank0",
    "hta_sampled_rank0",
    "hta_sampled_rank1",
    "hta_rank_non_gpu",
    "v100_kineto_resnet50_nw4",
)
COMM = re.compile(
    "nccl|rccl|msccl|oneRankReduce|cross_device_reduce|multimem|nvshmem|rocshmem|deep_ep|"
    "(one|two)_?shot_?all_?reduce|allreduce_fusion|quick_reduce|userbuffers_",
    re.IGNORECASE,
)
NOT_COMM = re.compile("triton_(poi|red|per|tem|for|mm|bmm)_")


@cache
def expected_figures() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(shared_file("traces/expected.json").read_text())
    return figures["traces"]  # type: ignore[no-any-return]


@cache
def read_shared(name: str) -> tuple[tf.Trace, tf.Analysis, dict[str, Any]]:
    trace = tf.read(shared_file(f"traces/pytorch/{name}.json.gz"))
    return trace, tf.analyze(trace), expected_figures()[f"pytorch/{name}.json.gz"]


class Device:
    """One device's activities as the definitions of expected.json see them."""

    def __init__(self, trace: tf.Trace, device: int) -> None:
        activities = trace.activities
        mine = np.flatnonzero(numbers(activities["device"]) == device)
        self.row = mine
        self.start = numbers(activities["start_ns"])[mine]
        self.end = self.start + numbers(activities["dur_ns"])[mine]
        kinds, labels = names(activities["kind"]), names(activities["name"])
        self.kind = np.array(kinds)[codes(activities["kind"])[mine]]
        named = [bool(COMM.search(n)) and not NOT_COMM.match(n) for n in labels]
        self.is_comm = np.array(named)[codes(activities["name"])[mine]] & (self.kind == "kernel")
        directions = np.array([*names(activities["direction"]), ""])
        self.peer = directions[codes(activities["direction"])[mine]] == "PtoP"

    def union(self, which: Any) -> Intervals:
        return Intervals.of(self.start[which], self.end[which])

    def parts(self, rows: Any) -> dict[str, Intervals]:
        """Return compute, memory, communication and all of some rows as sets of instants."""
        comm = (self.is_comm | self.peer) & rows
        copies = np.isin(self.kind, ["memcpy", "memset"])
        return {
            "compute": self.union((self.kind == "kernel") & ~self.is_comm & rows),
            "memory": self.union(copies & ~self.peer & rows),
            "communication": self.union(comm),
            "all": self.union(rows),
        }

    def partition_comm_last(self, rows: Any, window: tuple[int, int]) -> dict[str, int]:
        parts = {name: part.within(*window) for name, part in self.parts(rows).items()}
        memory = parts["memory"].subtract(parts["compute"])
        work = parts["compute"].union(memory)
        comm = parts["communication"].subtract(work)
        busy = work.union(comm)
        return {
            "compute": parts["compute"].length_ns,
            "memory": memory.length_ns,
            "graph": 0,
            "communication": comm.length_ns,
            "idle": window[1] - window[0] - busy.length_ns,
        }

    def counts(self, rows: Any) -> dict[str, int]:
        return {k: int(((self.kind == k) & rows).sum()) for k in ("kernel", "memcpy", "memset")}


def report_of(analysis: tf.Analysis, local_id: str) -> DeviceReport:
    (report,) = [d for d in analysis.devices if str(d.local_id) == local_id and d.type == "gpu"]
    return report


@pytest.mark.parametrize("name", TRACES)
def test_what_is_in_the_file(name: str) -> None:
    trace, analysis, expected = read_shared(name)
    meta = expected["meta"]
    assert trace.ranks == (meta["rank"],)
    assert trace.processes["world_size"].to_pylist() == [meta["world_size"]]
    base = meta["baseTimeNanoseconds"]
    assert trace.source.origin_unix_ns == (0 if base is None else base)
    accelerators = [d for d in analysis.devices if d.type == "gpu"]
    assert [str(d.local_id) for d in accelerators] == meta["devices_used"]
    products = {d.product for d in accelerators if d.product}
    assert products == (set(meta["device_names"]) if accelerators else set())
    assert sum(trace.source.event_counts.values()) == meta["events"]
    by_category = meta["complete_events_by_cat"]
    steps_as_ops = (
        sum(n.startswith("ProfilerStep") for n in trace.marks["name"].to_pylist())
        if "Operator" in by_category
        else 0
    )
    ops = by_category.get("cpu_op", by_category.get("Operator", 0)) - steps_as_ops
    assert trace.ops.num_rows == ops
    calls = sum(by_category.get(c, 0) for c in ("cuda_runtime", "cuda_driver", "Runtime"))
    assert trace.calls.num_rows == calls


@pytest.mark.parametrize("name", TRACES)
def test_whole_span_figures(name: str) -> None:
    _, analysis, expected = read_shared(name)
    for local_id, figures in expected["devices"].items():
        whole = report_of(analysis, local_id).whole
        counts = {kind: n for kind, n in figures["activities"].items() if n}
        assert {kind: sums.count for kind, sums in whole.kinds.items()} == counts
        assert whole.streams == figures["streams"]
        assert whole.start_ns == figures["first_start_ns"]
        assert whole.end_ns == figures["last_end_ns"]
        assert whole.span_ns == figures["span_ns"]
        assert whole.busy_ns == figures["busy_ns"]
        assert whole.idle_ns == figures["idle_ns"]
        assert whole.sum_ns == figures["sum_of_durations_ns"]
        for key, what in (("sum_by_kind_ns", "sum_ns"), ("union_by_kind_ns", "union_ns")):
            found = {kind: getattr(sums, what) for kind, sums in whole.kinds.items()}
            assert found == {kind: n for kind, n in figures[key].items() if kind in found}
        if "zero_duration" in figures:
            assert whole.zero_length == figures["zero_duration"]
        if "same_stream_overlaps" in figures:
            overlaps = figures["same_stream_overlaps"]
            assert whole.same_stream_overlaps == overlaps["n"]
            assert whole.same_stream_overlap_max_ns == overlaps["max_ns"]


@pytest.mark.parametrize("name", TRACES)
def test_communication_exposed_and_hidden(name: str) -> None:
    trace, analysis, expected = read_shared(name)
    for local_id, figures in expected["devices"].items():
        report = report_of(analysis, local_id)
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
        found = device.partition_comm_last(everything, (whole.start_ns, whole.end_ns))
        assert found == figures["partition_comm_last_ns"]


@pytest.mark.parametrize("name", TRACES)
def test_links_and_copies(name: str) -> None:
    trace, analysis, expected = read_shared(name)
    links = link(trace)
    for local_id, figures in expected["devices"].items():
        report = report_of(analysis, local_id)
        unlinked = figures.get("unlinked")
        if unlinked is not None:
            assert report.whole.unlinked == {
                k: n for k, n in unlinked.items() if k in (report.whole.unlinked or {})
            }
        device = Device(trace, report.device)
        call = links.call_of_activity[device.row]
        if "launch_api" in figures:
            labels = np.array(trace.calls["name"].to_pylist())[call[call >= 0]]
            found = dict(zip(*np.unique(labels, return_counts=True), strict=True))
            assert {str(k): int(v) for k, v in found.items()} == figures["launch_api"]
        if "linked_only" in figures:
            assert_launched(device, call >= 0, figures["linked_only"])
        for direction, copies in figures.get("copies", {}).items():
            found_copies = report.whole.copies[direction]
            assert (found_copies.count, found_copies.sum_ns) == (copies["n"], copies["sum_ns"])
            if copies.get("bytes") is not None:
                assert (found_copies.bytes or 0) == copies["bytes"]


def assert_launched(device: Device, rows: Any, figures: dict[str, Any]) -> None:
    start, end = device.start[rows], device.end[rows]
    assert device.counts(rows) == {
        kind: figures["activities"].get(kind, 0) for kind in ("kernel", "memcpy", "memset")
    }
    assert int(start.min()) == figures["first_start_ns"]
    assert int(end.max()) == figures["last_end_ns"]
    assert int(end.max() - start.min()) == figures["span_ns"]
    assert int((end - start).sum()) == figures["sum_of_durations_ns"]
    parts = device.parts(rows)
    assert parts["all"].length_ns == figures["busy_ns"]
    assert parts["communication"].length_ns == figures["comm_union_ns"]
    assert parts["memory"].length_ns == figures["memory_union_ns"]
    others = parts["compute"].union(parts["memory"])
    assert parts["communication"].subtract(others).length_ns == figures["comm_exposed_ns"]
    window = (int(start.min()), int(end.max()))
    found = device.partition_comm_last(rows, window)
    assert found == figures["partition_comm_last_ns"]


def steps_of(trace: tf.Trace) -> list[tuple[int, int, int]]:
    """Return number, start and duration of the ProfilerStep marks of the host."""
    marks = trace.marks
    found = []
    for label, kind, start, dur in zip(
        *(marks[column].to_pylist() for column in ("name", "kind", "start_ns", "dur_ns")),
        strict=True,
    ):
        if kind == "annotation" and label.startswith("ProfilerStep#"):
            found.append((int(label.removeprefix("ProfilerStep#")), start, dur))
    return found


@pytest.mark.parametrize("name", TRACES)
def test_steps_by_host_window(name: str) -> None:
    trace, analysis, expected = read_shared(name)
    steps = steps_of(trace)
    assert steps == [(s["step"], s["start_ns"], s["dur_ns"]) for s in expected.get("steps", [])]
    call = link(trace).call_of_activity
    call_start = numbers(trace.calls["start_ns"])
    for (_, low, length), step in zip(steps, expected.get("steps", []), strict=True):
        for local_id, figures in step["devices"].items():
            device = Device(trace, report_of(analysis, local_id).device)
            launched = _starts_in(call_start, call[device.row], low, low + length)
            assert_launched(device, launched, figures["launched"])
            started = (device.start >= low) & (device.start < low + length)
            assert device.counts(started) == {
                k: figures["started"].get(k, 0) for k in ("kernel", "memcpy", "memset")
            }
            assert_clipped(device, (low, low + length), figures["clipped"])


def _starts_in(call_start: IntArray, call: IntArray, low: int, high: int) -> Any:
    begun = np.full(len(call), ABSENT, dtype=np.int64)
    begun[call >= 0] = call_start[call[call >= 0]]
    return (begun >= low) & (begun < high)


def assert_clipped(device: Device, window: tuple[int, int], figures: dict[str, Any]) -> None:
    everything = np.ones(len(device.row), dtype=np.bool_)
    parts = {k: p.within(*window) for k, p in device.parts(everything).items()}
    assert window[1] - window[0] == figures["window_ns"]
    assert parts["all"].length_ns == figures["busy_ns"]
    assert parts["communication"].length_ns == figures["comm_union_ns"]


@pytest.mark.parametrize("name", TRACES)
def test_device_windows_tile_the_span_and_steps_start_with_their_mark_or_work(name: str) -> None:
    trace, analysis, expected = read_shared(name)
    for report in analysis.devices:
        edges = [report.windows[0].start_ns, *(w.end_ns for w in report.windows)]
        assert edges[0] <= report.whole.start_ns
        assert edges[0] == report.whole.start_ns or report.windows[0].role == "step"
        assert edges[-1] == report.whole.end_ns
        assert [w.start_ns for w in report.windows] == edges[:-1]
        total = sum(w.account.components.window_ns for w in report.windows)
        assert total == report.whole.end_ns - edges[0]
        marked = report.steps if analysis.steps.source == "markers" else ()
        for window in marked:
            (step,) = [s for s in expected["steps"] if s["step"] == window.step]
            if step["devices"]:
                launched = step["devices"][str(report.local_id)]["launched"]
                first_ns = launched["first_start_ns"]
                work = Device(trace, report.device)
                ended_ns = work.end[work.start < first_ns].max(initial=0)
                assert window.start_ns in (first_ns, max(step["start_ns"], ended_ns))
                assert window.launched == sum(launched["activities"].values())


@pytest.mark.parametrize("name", TRACES)
def test_device_annotations(name: str) -> None:
    trace, _, expected = read_shared(name)
    marks = trace.marks.to_pylist()
    found = [
        (int(m["name"].removeprefix("ProfilerStep#")), m["start_ns"], m["dur_ns"])
        for m in marks
        if m["kind"] == "gpu_annotation" and m["name"].startswith("ProfilerStep#")
    ]
    steps = [(s["step"], s["start_ns"], s["dur_ns"]) for s in expected.get("gpu_steps", [])]
    assert sorted(found) == sorted(steps)
