"""What the readers take from every format of a simulated run, beside the figures of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import traceflops as tf
from sample_traces.config import on_mi300x
from sample_traces.records import Activity, Run
from sample_traces.rocprof.capture import counted_bytes, counted_flops, counters_of
from sample_traces.rocprof.formats import CARRIES, WRITERS, part_of
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate

FORMATS = sorted(WRITERS)
Figure = tuple[Any, ...]


@cache
def run_of(ranks: int = 2, *, graph: bool = False) -> Run:
    return simulate(
        on_mi300x(
            layers=1,
            steps=2,
            ranks=ranks,
            vocab=1024,
            copy_stream=True,
            sync_each_step=True,
            lead_in=True,
            cuda_graph=graph,
        )
    )


@cache
def read(name: str, run: Run, **options: Any) -> tf.Trace:
    with TemporaryDirectory() as folder:
        WRITERS[name](run, Path(folder), RocprofOptions(**options))
        return tf.read(folder)


def named(name: str) -> list[str]:
    """Return the formats whose table says that they carry something."""
    return [one for one in FORMATS if getattr(CARRIES[one], name)]


def works(name: str, run: Run) -> Iterator[tuple[int, Activity]]:
    """Yield the work of each rank as the format holds it."""
    for rank in part_of(run, CARRIES[name]).ranks:
        for activity in rank.activities:
            yield rank.rank, activity


def rows(trace: tf.Trace, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.table(table).to_pylist()
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_the_geometry_of_kernels(name: str) -> None:
    run = run_of()
    kernels = [row for row in rows(read(name, run), "activities") if row["kind"] == "kernel"]
    expected = [one.work for _, one in works(name, run) if one.work.kind == "kernel"]
    if not CARRIES[name].geometry:
        assert all(row["grid"] is row["block"] is None for row in kernels)
        return
    assert Counter(
        (row["name"], tuple(row["grid"]), tuple(row["block"])) for row in kernels
    ) == Counter((work.name, work.grid, work.block) for work in expected)


@pytest.mark.parametrize("name", FORMATS)
def test_what_moved_and_which_way(name: str) -> None:
    run, carries = run_of(), CARRIES[name]
    found = Counter(
        (row["direction"], row["bytes"])
        for row in rows(read(name, run), "activities")
        if row["kind"] == "memcpy"
    )
    expected = Counter(
        (one.work.direction, one.work.bytes if carries.bytes else None)
        for _, one in works(name, run)
        if one.work.kind == "memcpy"
    )
    assert found == expected


@pytest.mark.parametrize("name", FORMATS)
def test_processes_and_devices(name: str) -> None:
    trace, carries = read(name, run_of()), CARRIES[name]
    processes, devices = rows(trace, "processes"), rows(trace, "devices")
    assert len(processes) == len(devices) == 2
    assert [row["pid"] for row in processes] == [4100, 4300]
    product = "AMD Instinct MI300X" if carries.product else None
    assert {row["product"] for row in devices} == {product}
    assert {row["sm_count"] for row in devices} == ({304} if carries.product else {None})
    assert {row["memory_bytes"] for row in devices} == (
        {206_141_652_992} if carries.memory else {None}
    )
    assert [row["process"] for row in devices] == [0, 1]


@pytest.mark.parametrize("name", named("markers"))
def test_markers_are_annotations_of_the_host(name: str) -> None:
    run = run_of()
    marks = rows(read(name, run, markers="all"), "marks")
    expected = Counter(
        (rank.rank, mark.name, mark.dur_ns)
        for rank in run.ranks
        for mark in rank.marks
        if mark.kind != "python"
    )
    assert Counter((row["process"], row["name"], row["dur_ns"]) for row in marks) == expected
    assert {row["kind"] for row in marks} == {"annotation"}
    threads = {rank.main_thread for rank in run.ranks}
    if CARRIES[name].threads:
        assert threads <= {row["thread"] for row in marks}


@pytest.mark.parametrize("name", named("calls"))
def test_calls_of_the_runtime(name: str) -> None:
    run = run_of()
    calls = rows(read(name, run), "calls")
    expected = Counter(
        (rank.rank, call.name, call.dur_ns) for rank in run.ranks for call in rank.calls
    )
    assert Counter((row["process"], row["name"], row["dur_ns"]) for row in calls) == expected
    assert {row["api"] for row in calls} == {"hip"}


@pytest.mark.parametrize("name", named("collectives"))
def test_what_rccl_exchanged(name: str) -> None:
    run, carries = run_of(), CARRIES[name]
    trace = read(name, run, collectives=True)
    found = Counter(
        (row["process"], row["collective"], row["collective_in_elements"])
        for row in rows(trace, "activities")
        if row["collective"] is not None
    )
    expected = Counter(
        (rank, "allreduce", one.collective.elements if carries.sizes else None)
        for rank, one in works(name, run)
        if one.collective is not None and one.call is not None
    )
    assert found == expected
    without = rows(read(name, run), "activities")
    assert {row["collective"] for row in without} == {None}


@pytest.mark.parametrize("name", named("counters"))
def test_counters_add_up_to_the_work(name: str) -> None:
    run = run_of(ranks=1)
    trace = read(name, run, counters=True)
    found: dict[str, Counter[str]] = {}
    for row in rows(trace, "kernel_counters"):
        found.setdefault(row["name"], Counter())[row["counter"]] += row["value"]
    expected: dict[str, Counter[str]] = {}
    for _, one in works(name, run):
        if one.work.kind == "kernel":
            expected.setdefault(one.work.name, Counter()).update(
                counters_of(one.work, run.config.dtype)
            )
    assert {kernel: dict(counts) for kernel, counts in found.items()} == {
        kernel: dict(counts) for kernel, counts in expected.items()
    }
    kernels = [one.work for _, one in works(name, run) if one.work.kind == "kernel"]
    matrix = sum(counts["SQ_INSTS_VALU_MFMA_MOPS_BF16"] for counts in found.values())
    assert matrix * 512 == sum(map(counted_flops, kernels))
    read_, written = (
        sum(counts[f"TCC_EA0_{way}"] for counts in found.values())
        for way in ("RDREQ_sum", "WRREQ_sum")
    )
    assert 0 < read_ * 32 + written * 32 < sum(map(counted_bytes, kernels))


@pytest.mark.parametrize("name", ["v1 csv", "v1 database", "v3 csv", "v3 json"])
def test_counters_without_times_are_no_timeline(name: str) -> None:
    trace = read(name, run_of(ranks=1), counters=True, times=False, copies=False)
    assert trace.activities.num_rows == 0
    assert trace.kernel_counters.num_rows > 0


@pytest.mark.parametrize("name", named("graph_nodes"))
def test_kernels_of_a_graph_say_their_node(name: str) -> None:
    run = run_of(ranks=1, graph=True)
    found = Counter(
        row["graph_node"]
        for row in rows(read(name, run), "activities")
        if row["graph_node"] is not None
    )
    expected = Counter(
        one.graph_node for rank in run.ranks for one in rank.activities if one.graph_node
    )
    assert found == expected
