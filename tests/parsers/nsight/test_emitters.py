"""What the readers take from every format of a simulated run, beside the figures of a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.kineto_host import ExternalIds
from sample_traces.nsight.formats import CARRIES, SUMS, WRITERS, part_of
from sample_traces.nsight.hostrows import COMMUNICATOR, message_bytes
from sample_traces.nsight.names import demangled
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import Activity, Run
from sample_traces.simulate import simulate
from tests.conftest import some

FORMATS = sorted(WRITERS)
EXPORTS = [name for name in FORMATS if name.startswith("nsys")]
OF_OP = ("process", "thread", "name", "dur_ns", "sequence", "external_id", "input_dims")
OF_TOTAL = ("count", "total_ns", "min_ns", "max_ns")
H100 = "NVIDIA H100 80GB HBM3"


@cache
def run_of(ranks: int = 2, *, graph: bool = False) -> Run:
    return simulate(
        RunConfig(
            layers=1,
            steps=2,
            ranks=ranks,
            vocab=1024,
            copy_stream=True,
            sync_each_step=True,
            lead_in=True,
            cuda_graph=graph,
            clock_skew_ns=777,
        )
    )


@cache
def read(name: str, run: Run, **options: Any) -> tf.Trace:
    with TemporaryDirectory() as folder:
        {**WRITERS, **SUMS}[name](run, Path(folder), NsightOptions(**options))
        return tf.read(folder)


def named(name: str) -> list[str]:
    """Return the formats whose table says that they carry something."""
    return [one for one in FORMATS if getattr(CARRIES[one], name)]


def works(run: Run) -> Iterator[tuple[int, Activity]]:
    for rank in part_of(run, CARRIES["nsys 2026"]).ranks:
        for activity in rank.activities:
            yield rank.rank, activity


def rows(trace: tf.Trace, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.table(table).to_pylist()
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_names_sizes_and_streams_of_kernels(name: str) -> None:
    kernels = [row for row in rows(read(name, run_of()), "activities") if row["kind"] == "kernel"]
    assert Counter(
        (
            *(row["name"], tuple(row["grid"]), tuple(row["block"]), row["registers_per_thread"]),
            *(row["stream"], row["dur_ns"]),
        )
        for row in kernels
    ) == Counter(
        (one.work.name, one.work.grid, one.work.block, one.work.registers, one.stream, one.dur_ns)
        for _, one in works(run_of())
        if one.work.kind == "kernel"
    )


@pytest.mark.parametrize("name", FORMATS)
def test_what_moved_and_which_way(name: str) -> None:
    exact = CARRIES[name].bytes
    found = Counter(
        (row["kind"], row["direction"], row["bytes"] if exact else None)
        for row in rows(read(name, run_of()), "activities")
        if row["kind"] in ("memcpy", "memset")
    )
    assert found == Counter(
        (one.work.kind, one.work.direction, one.work.bytes if exact else None)
        for _, one in works(run_of())
        if one.work.kind in ("memcpy", "memset")
    )


@pytest.mark.parametrize("name", [name for name in FORMATS if not CARRIES[name].bytes])
def test_rounded_bytes_are_as_exact_as_printed(name: str) -> None:
    found = sorted(
        row["bytes"] or 0
        for row in rows(read(name, run_of(ranks=1)), "activities")
        if row["kind"] in ("memcpy", "memset")
    )
    true = [one.work.bytes for _, one in works(run_of(1)) if one.work.kind in ("memcpy", "memset")]
    assert found == [size // 1000 * 1000 for size in sorted(true)]


@pytest.mark.parametrize("name", EXPORTS)
def test_processes_and_devices(name: str) -> None:
    trace, carries = read(name, run_of()), CARRIES[name]
    processes, devices = rows(trace, "processes"), rows(trace, "devices")
    assert [row["pid"] for row in processes] == [4100, 4300]
    assert {row["host"] for row in processes} == ({"sim-node-0"} if carries.host else {None})
    assert [row["process"] for row in devices] == [0, 1]
    assert [row["local_id"] for row in devices] == [0, 1]
    facts = [(r["product"], r["sm_count"], r["memory_bytes"], r["compute_major"]) for r in devices]
    assert facts == [(H100, 132, 85_017_624_576, 9)] * 2


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in EXPORTS])
def test_devices_of_reports(name: str) -> None:
    devices = rows(read(name, run_of()), "devices")
    assert {row["product"] for row in devices} == {H100}
    assert [row["local_id"] for row in devices] == [0, 1]


@pytest.mark.parametrize(
    ("name", "lead_ns"), some(product(named("anchor"), [0, 10_000_000_000, -3_000_000]), 2)
)
def test_the_time_of_day_of_every_record(name: str, lead_ns: int) -> None:
    run = run_of()
    trace = read(name, run, lead_ns=lead_ns)
    origin_ns = trace.source.origin_unix_ns or 0
    assert Counter(
        (row["process"], origin_ns + row["start_ns"]) for row in rows(trace, "activities")
    ) == Counter(
        (rank.rank, rank.origin_unix_ns + one.start_ns)
        for rank in run.ranks
        for one in rank.activities
    )


@pytest.mark.parametrize(("name", "markers"), some(product(FORMATS, ["steps", "all"]), 3))
def test_ranges_are_annotations(name: str, markers: str) -> None:
    run = run_of()
    marks = [
        row
        for row in rows(read(name, run, markers=markers), "marks")
        if row["kind"] == "annotation"
    ]
    kinds = ("step", "annotation") if markers == "all" else ("step",)
    assert Counter(
        (row["process"] if CARRIES[name].links else None, row["thread"], row["name"], row["dur_ns"])
        for row in marks
    ) == Counter(
        (rank.rank if CARRIES[name].links else None, mark.thread, mark.name, mark.dur_ns)
        for rank in run.ranks
        for mark in rank.marks
        if mark.kind in kinds
    )


@pytest.mark.parametrize("name", FORMATS)
def test_calls_without_the_version_of_the_api(name: str) -> None:
    calls = rows(read(name, run_of()), "calls")
    assert Counter((row["name"], row["thread"], row["dur_ns"]) for row in calls) == Counter(
        (call.name, call.thread, call.dur_ns) for rank in run_of().ranks for call in rank.calls
    )
    assert {row["api"] for row in calls} == {"runtime"}


@pytest.mark.parametrize("name", EXPORTS)
def test_waits_are_marks_and_no_work(name: str) -> None:
    run = run_of()
    marks = Counter(row["kind"] for row in rows(read(name, run), "marks"))
    calls = Counter(call.kind for rank in run.ranks for call in rank.calls)
    assert marks["sync"] == calls["sync"] + calls["wait"]


@pytest.mark.parametrize("name", named("graph_nodes"))
def test_kernels_of_a_graph_say_their_node(name: str) -> None:
    run = run_of(1, graph=True)
    found = Counter(row["graph_node"] for row in rows(read(name, run), "activities"))
    expected = Counter(one.graph_node for _, one in works(run))
    assert sorted(found.values()) == sorted(expected.values())
    assert found[None] == expected[None] < expected.total()


@pytest.mark.parametrize(
    ("name", "nccl"), some(product(named("payloads"), ["none", "ranges", "payloads"]), 2)
)
def test_what_nccl_exchanged(name: str, nccl: str) -> None:
    run = run_of()
    trace = read(name, run, nccl=nccl)
    told = nccl == "payloads"
    found = Counter(
        (row["process"], row["collective"], row["collective_in_elements"])
        for row in rows(trace, "activities")
        if row["collective"] is not None
    )
    exchanged = [(r, one.collective) for r, one in works(run) if one.call is not None]
    assert found == Counter(
        (rank, "allreduce", message_bytes(one) if told else None)
        for rank, one in exchanged
        if one is not None and nccl != "none"
    )
    by_name = "together" not in name and "own" not in name
    known = [0, 1] if told or by_name else [None, None]
    assert [row["rank"] for row in rows(trace, "processes")] == known
    if told:
        groups = {row["collective_group_size"] for row in rows(trace, "activities")}
        assert groups == {None, 2}
    assert str(COMMUNICATOR) not in json.dumps([note.text for note in trace.notes])


@pytest.mark.parametrize("name", named("ops"))
def test_operators_and_the_sizes_of_their_inputs(name: str) -> None:
    run = run_of()
    ops = rows(read(name, run, ops=True), "ops")
    expected: Counter[tuple[Any, ...]] = Counter()
    for rank in run.ranks:
        ids = ExternalIds.of(rank)
        for place, op in enumerate(rank.ops):
            if _is_operator(op.name, op.sequence is not None or bool(op.inputs)):
                times = op.thread, op.name, op.dur_ns
                own = op.sequence, ids.ops[place], _sizes(op.inputs)
                expected[(rank.rank, *times, *own)] += 1
    assert expected == Counter(tuple(row[column] for column in OF_OP) for row in ops)


def _is_operator(name: str, told: bool) -> bool:
    """Return whether PyTorch's text of an op can be told from that of what a program marks."""
    return told or "::" in name


def _sizes(inputs: tuple[Any, ...]) -> str | None:
    return (
        json.dumps([list(() if one.members else one.shape) for one in inputs]) if inputs else None
    )


@pytest.mark.parametrize("name", sorted(SUMS))
def test_sums_are_those_of_the_run(name: str) -> None:
    run = run_of()
    totals = rows(read(name, run, markers="all"), "totals")
    expected: dict[tuple[str, str], list[int]] = {}
    for rank in run.ranks:
        for one in rank.activities:
            expected.setdefault(_key(one, name), []).append(one.dur_ns)
        for call in rank.calls:
            expected.setdefault(("call", call.name), []).append(call.dur_ns)
        for mark in rank.marks:
            if mark.kind != "python":
                expected.setdefault(("mark", mark.name), []).append(mark.dur_ns)
    figures = {key: (len(one), sum(one), min(one), max(one)) for key, one in expected.items()}
    assert {
        (row["kind"], row["name"].removeprefix(":")): tuple(row[column] for column in OF_TOTAL)
        for row in totals
    } == figures


def _key(activity: Activity, name: str) -> tuple[str, str]:
    work = activity.work
    if work.kind != "memcpy":
        text = "[CUDA memset]" if work.kind == "memset" else demangled(work.name)
        return work.kind, text
    old = {"HtoD": "HtoD", "DtoH": "DtoH"}
    new = {"HtoD": "Host-to-Device", "DtoH": "Device-to-Host"}
    return "memcpy", f"[CUDA memcpy {(old if '2021' in name else new)[work.direction or '']}]"


@pytest.mark.parametrize("name", sorted(SUMS))
def test_sums_have_no_timeline(name: str) -> None:
    run = run_of()
    trace = read(name, run)
    assert trace.activities.num_rows == 0
    assert "no-timeline" in {note.code for note in trace.notes}
    device = sum(
        row["total_ns"]
        for row in rows(trace, "totals")
        if row["kind"] in ("kernel", "memcpy", "memset")
    )
    assert device == sum(one.dur_ns for rank in run.ranks for one in rank.activities)
