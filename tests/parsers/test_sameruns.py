"""Exports of one run by several writers count once; what only looks alike is left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import trace_of
from tests.conftest import SAMPLES, shared_file
from traceflops.parsers.shared.repeats import without_other_exports
from traceflops.table.trace import Trace

FIRST = ({"name": "a", "start_ns": 5, "dur_ns": 7}, {"name": "b", "start_ns": 20, "dur_ns": 3})
SECOND = ({"name": "a", "start_ns": 6, "dur_ns": 7},)


def export(tool: str, *processes: tuple[dict[str, object], ...], product: str = "") -> Trace:
    """Return a trace of some processes as one writer would give it."""
    rows = [row | {"process": n, "device": n} for n, mine in enumerate(processes) for row in mine]
    devices = [
        {"device": n, "process": n} | ({"product": product} if product else {})
        for n in range(len(processes))
    ]
    made = trace_of(
        activities=rows,
        devices=devices,
        processes=[{"process": n} for n in range(len(processes))],
    )
    return replace(made, source=replace(made.source, tool=tool))


def tools(*traces: Trace) -> list[str | None]:
    return [trace.source.tool for trace in without_other_exports(traces)]


def test_the_one_that_names_its_devices_is_kept() -> None:
    kept = without_other_exports([export("csv", FIRST), export("json", FIRST, product="MI300X")])
    assert [trace.source.tool for trace in kept] == ["json"]
    (note,) = [note for note in kept[0].notes if note.code == "same-run"]
    assert note.kind == "dropped"


def test_processes_may_be_together_in_one_and_apart_in_the_other() -> None:
    both = export("csv", FIRST, SECOND)
    assert tools(export("json", FIRST), export("json", SECOND), both) == ["csv"]
    assert tools(both, export("stats", (*FIRST, *SECOND))) == ["csv"]


def test_what_is_only_partly_the_same_stays() -> None:
    assert tools(export("csv", FIRST, SECOND), export("json", FIRST[:1])) == ["csv", "json"]
    assert tools(export("csv", FIRST), export("json", FIRST, SECOND)) == ["json"]


def test_copies_by_one_writer_are_ranks_that_clash() -> None:
    assert tools(export("csv", FIRST), export("csv", FIRST)) == ["csv", "csv"]


def test_traces_without_kernels_are_left_alone() -> None:
    assert tools(export("csv"), export("json")) == ["csv", "json"]


def test_two_bundled_exports_of_a_run(tmp_path: Path) -> None:
    """A database and its own kernels as a table."""
    (path,) = (SAMPLES / "rocpd").rglob("*.db")
    whole = tf.read(path)
    (tmp_path / "run.db").write_bytes(path.read_bytes())
    kernels = sqlite3.connect(path).execute("select start, end, name from kernels").fetchall()
    head = "Index,KernelName,gpu-id,queue-id,BeginNs,EndNs"
    rows = [f'{n},"{name}",2,0,{a},{b}' for n, (a, b, name) in enumerate(kernels)]
    (tmp_path / "results.csv").write_text("\n".join([head, *rows, ""]))
    both = tf.read(tmp_path)
    assert both.activities.num_rows == whole.activities.num_rows
    assert "same-run" in {note.code for note in both.notes}


def test_a_folder_of_rocprof_counts_its_run_once() -> None:
    folder = shared_file("traces/rocprof/v1_r9700_llamacpp/results.csv").parent
    trace = tf.read(folder)
    assert trace.activities.num_rows == 1963
    assert trace.devices["product"].to_pylist() == ["AMD Radeon AI PRO R9700"]


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_the_files_does_not_matter(order: int) -> None:
    traces = [export("csv", FIRST), export("json", FIRST, product="MI300X")][::order]
    assert tools(*traces) == ["json"]
