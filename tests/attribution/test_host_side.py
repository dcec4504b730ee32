"""Operators by host time; copies, fills and allocations of the chosen windows."""

from collections import Counter
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attribution.test_culprits import US, WORK, event, host_rows, made
from tests.build import launched, trace_of
from tests.conftest import examples
from traceflops import analyze
from traceflops.attribution import host_calls as operators_on_host
from traceflops.attribution.host_calls import HostOperator, MemoryOperation
from traceflops.attribution.marks import numbered
from traceflops.cli.common import print_summary
from traceflops.reports.markdown import render_markdown
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal
from traceflops.table.patterns import matches

MIB = 1 << 20


def operators(**host: list[dict[str, Any]]) -> tuple[HostOperator, ...]:
    """Return the operators of a host, between 10 and 1,020 us."""
    return analyze(made(**host)).host_operators


def test_self_time_is_that_of_the_innermost_operator() -> None:
    ops = [
        event("aten::linear", 100, 200),
        event("aten::addmm", 120, 180),
        event("aten::empty", 130, 140),
        event("aten::linear", 300, 350),
        event("aten::linear", 310, 330),
    ]
    assert operators(ops=ops) == (
        HostOperator("aten::linear", 3, 90 * US, 150 * US),
        HostOperator("aten::addmm", 1, 50 * US, 60 * US),
        HostOperator("aten::empty", 1, 10 * US, 10 * US),
    )


def test_only_launching_threads_and_chosen_windows_count() -> None:
    ops = [
        event("aten::add", 0, 15),
        event("ProfilerStep#3", 0, 2_000),
        event("aten::mul", 1_015, 1_500),
        event("aten::decode", 100, 900, thread=2),
        event("aten::after", 3_000, 4_000),
    ]
    assert operators(ops=ops) == (
        HostOperator("aten::add", 1, 5 * US, 5 * US),
        HostOperator("aten::mul", 1, 5 * US, 5 * US),
    )


def test_operators_are_shown_by_cpu_time() -> None:
    ops = [event("aten::linear", 100, 200), event("aten::addmm", 120, 180)]
    analysis = analyze(made(ops=ops))
    lines = [line.plain for line in render_terminal(analysis, Style(width=80), "host-op")]
    at = next(place for place, line in enumerate(lines) if line.startswith("Operator "))
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["aten::addmm", "1", "60.0", "µs", "5.9", "%", "60.0", "µs"],
        ["aten::linear", "1", "40.0", "µs", "4.0", "%", "100", "µs"],
    ]
    assert "| `aten::linear` | 1 | 40.0 µs | 4.0 % | 100 µs |" in render_markdown(analysis)


def test_each_process_has_the_windows_of_its_devices() -> None:
    tables = launched(("a", 0, 10 * US, 90 * US), ("b", 500 * US, 510 * US, 90 * US))
    for rows in tables.values():
        rows[1]["process"] = 1
    tables["activities"][1]["device"] = 1
    both = [event("aten::add", 0, 1_000, process=process) for process in (0, 1)]
    devices = [{"device": at, "process": at, "local_id": at} for at in (0, 1)]
    processes = [{"process": at, "rank": at} for at in (0, 1)]
    trace = trace_of(ops=both, devices=devices, processes=processes, **tables)
    assert analyze(trace).host_operators == (HostOperator("aten::add", 2, 180 * US, 180 * US),)


def test_beyond_a_hundred_names_the_rest_is_one() -> None:
    ops = [event(f"aten::op{at}", at, at + 1) for at in range(100, 203)]
    found = operators(ops=ops)
    assert len(found) == 101
    assert found[-1] == HostOperator("(others)", 3, 3 * US, None)


@settings(max_examples=examples(200), deadline=None)
@given(host_rows(("ops",), ("aten::a", "aten::b", "aten::c")), WORK, st.sampled_from((1, 3, 100)))
def test_self_times_sum_to_the_time_in_which_launching_threads_run_operators(
    host: list[tuple[str, dict[str, Any]]], work: dict[str, list[dict[str, Any]]], at_once: int
) -> None:
    with patch.object(operators_on_host, "_AT_ONCE", at_once):
        analysis = analyze(trace_of(ops=[row for _, row in host], **work))
    device = analysis.devices[0].whole
    runs: Counter[int] = Counter()
    named: dict[str, set[int]] = {}
    for _, row in host:
        if row["thread"] == 1:
            inside = range(
                max(row["start_ns"], device.start_ns),
                min(row["start_ns"] + row["dur_ns"], device.end_ns),
            )
            runs.update(inside)
            named.setdefault(row["name"], set()).update(inside)
    found = analysis.host_operators
    assert sum(one.self_ns for one in found) == len(runs)
    assert {one.name: one.total_ns for one in found} == {
        name: len(instants) for name, instants in named.items() if instants
    }


def copied(start_us: int, end_us: int, name: str, size: int | None) -> dict[str, Any]:
    """Return a copy or fill of so many bytes."""
    direction = next((way for way in ("HtoD", "DtoH", "DtoD") if way in name), None)
    kind = "memset" if name.startswith("Memset") else "memcpy"
    return event(name, start_us, end_us, kind=kind, direction=direction, bytes=size)


def test_copies_and_fills_are_told_by_direction_and_memory() -> None:
    work = [
        event("k", 0, 10),
        copied(10, 20, "Memcpy HtoD (Pageable -> Device)", 10 * MIB),
        copied(20, 60, "Memcpy HtoD (Pageable -> Device)", 30 * MIB),
        copied(70, 75, "Memcpy HtoD (Pinned -> Device)", 10 * MIB),
        copied(80, 83, "MEMORY_COPY_DEVICE_TO_HOST DtoH", None),
        copied(90, 92, "Memset (Device)", 0),
        event("k", 95, 100),
    ]
    analysis = analyze(trace_of(activities=work))
    row = "| Copy HtoD (pageable) | 2 | 50.0 µs | 41.9 MB | 31.5 MB | 839 GB/s |"
    assert row in render_markdown(analysis)
    assert analysis.memory_operations == (
        MemoryOperation(
            "memcpy", "HtoD", "pageable", 2, 50 * US, 40 * MIB, 30 * MIB, 40 * MIB / (50 * US)
        ),
        MemoryOperation(
            "memcpy", "HtoD", "pinned", 1, 5 * US, 10 * MIB, 10 * MIB, 10 * MIB / (5 * US)
        ),
        MemoryOperation("memcpy", "DtoH", None, 1, 3 * US),
        MemoryOperation("memset", "", None, 1, 2 * US, 0, 0, 0.0),
    )


def test_calls_that_allocate_are_told_by_name() -> None:
    calls = [
        event("hipMalloc", 30, 90),
        event("hsa_amd_memory_pool_allocate", 40, 80),
        event("hipMalloc", 100, 110),
        event("hipFree", 1_010, 1_100),
        event("cudaMalloc", 2_000, 3_000),
    ]
    assert analyze(made(calls=calls)).memory_operations == (
        MemoryOperation("call", "hipMalloc", None, 2, 70 * US),
        MemoryOperation("call", "hipFree", None, 1, 10 * US),
    )


COPIES = {"Memcpy HtoD (Pinned -> Device)": 5, "Memcpy DtoH": None, "Memset (Device)": 7, "k": None}


@settings(max_examples=examples(100), deadline=None)
@given(host_rows(("activities",), tuple(COPIES)))
def test_memory_operations_sum_to_those_of_the_windows(
    rows: list[tuple[str, dict[str, Any]]],
) -> None:
    work = [event("k", 1, 2)]
    for _, row in rows:
        copy = copied(0, 0, row["name"], COPIES[row["name"]])
        kind = "kernel" if row["name"] == "k" else copy["kind"]
        times = {"start_ns": row["start_ns"], "dur_ns": row["dur_ns"]}
        work.append(copy | times | {"kind": kind})
    found = analyze(trace_of(activities=work)).memory_operations
    copies = [row for _, row in rows if row["name"] != "k"]
    assert sum(one.count for one in found) == len(copies)
    assert sum(one.sum_ns for one in found) == sum(row["dur_ns"] for row in copies)
    assert sum(one.bytes or 0 for one in found) == sum(COPIES[row["name"]] or 0 for row in copies)


def test_what_only_long_reports_show_is_not_computed_for_a_summary() -> None:
    analysis = analyze(made(calls=[event("cudaMalloc", 0, 10)]))
    print_summary(analysis)
    later = {"host_operators", "memory_operations", "attribution"}
    assert not later & vars(analysis).keys()
    analysis.to_json()
    assert later <= vars(analysis).keys()


def test_the_labels_that_get_a_name_are_told_in_the_language_of_edits() -> None:
    """RE2 has no look-ahead; "fc10" is another name than "fc1"."""
    labels = ("fc1", "fc1.25", "fc1 (3)", "fc10", "fc2")
    found = matches(f"^{numbered('fc1')}$", labels)
    assert found.tolist() == [True, True, True, False, False]
