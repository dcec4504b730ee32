"""What cannot be true is set aside and said; what could be true is left alone."""

import json
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.build import trace_of as made_of
from tests.parsers.documents import read_one, source_of
from traceflops.analysis.preparation import prepare
from traceflops.errors import InputError
from traceflops.memory.usage import memory_use
from traceflops.parsers.shared.sanity_checks import _end_of_later, plausible
from traceflops.table.trace import Trace

DAY_US = 86_400 * 10**6


def kernel(ts: float, dur: float, number: int = 1, **more: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": number}
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": dur, "args": args} | more


def trace_of(*events: dict[str, Any]) -> Trace:
    return read_one(source_of(json.dumps({"traceEvents": events}).encode()))


def notes_of(trace: Trace) -> dict[str, int | None]:
    return {n.code: n.count for n in trace.notes if n.code in ("set-aside", "written-twice")}


def starts_of(trace: Trace, table: str = "activities") -> list[int]:
    starts: list[int] = trace.table(table)["start_ns"].to_pylist()
    return starts


TEN_SECONDS = [kernel(n * 10**6, 900_000, n) for n in range(10)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (kernel(3 * 10**6, 7 * DAY_US, 99), "604,800.000 s"),
        (kernel(-17e14, 5, 99), "5.000 µs"),
        (kernel(4 * DAY_US, 2_000_000, 99), "2.000 s"),
    ],
    ids=["a week long", "before 1970", "days later"],
)
def test_one_impossible_record_does_not_change_the_rest(wrong: dict[str, Any], said: str) -> None:
    right, found = trace_of(*TEN_SECONDS), trace_of(*TEN_SECONDS[:5], wrong, *TEN_SECONDS[5:])
    assert found.activities.equals(right.activities)
    assert notes_of(found) == {"set-aside": 1}
    assert said in next(n.text for n in found.notes if n.code == "set-aside")


def test_a_start_of_zero_is_a_time_only_where_others_are_near() -> None:
    late = [kernel(36_000_000_000 + n * 100, 50, n) for n in range(3)]
    found = trace_of(kernel(0, 5, 99), *late)
    assert starts_of(found) == starts_of(trace_of(*late))
    assert notes_of(found) == {"set-aside": 1}
    near = trace_of(kernel(0, 5, 99), kernel(599_000_000, 5, 1), kernel(599_000_010, 5, 2))
    assert (len(starts_of(near)), notes_of(near)) == (3, {})


def test_long_records_of_long_recordings_are_kept() -> None:
    hours = [kernel(1 + n * DAY_US / 2, 100, n) for n in range(8)]
    found = trace_of(*hours, kernel(1, 3 * DAY_US, 99))
    assert (len(starts_of(found)), notes_of(found)) == (9, {})


@pytest.mark.parametrize("length", [3_599_000_000, DAY_US])
def test_a_hang_is_not_taken_for_a_fault(length: float) -> None:
    """A collective may hang for hours after everything else has ended."""
    found = trace_of(*TEN_SECONDS, kernel(10**7, length, 99))
    assert (len(starts_of(found)), notes_of(found)) == (11, {})


def test_a_large_part_is_never_set_aside() -> None:
    """A pause of a day, captures one after the other, or a device clock of its own."""
    shift = 25 * 3600 * 10**6
    later = [kernel(shift + n * 1000, 900, 100 + n) for n in range(10)]
    found = trace_of(*TEN_SECONDS, *later)
    assert (len(starts_of(found)), notes_of(found)) == (20, {})
    assert [n.count for n in found.notes if n.code == "times-apart"] == [10]
    calls = [kernel(n, 5, n, cat="cuda_runtime", tid=1) for n in range(50)]
    found = trace_of(*calls, *later[:2])
    assert len(starts_of(found)) == 2
    assert [n.count for n in found.notes if n.code == "times-apart"] == [2]


def test_records_of_the_host_are_set_aside_too() -> None:
    ops = [kernel(n, 5, cat="cpu_op", tid=1) for n in range(4)]
    mark = kernel(1, 30 * DAY_US, cat="user_annotation", tid=1)
    call = kernel(2 * DAY_US, 3, cat="cuda_runtime", tid=1)
    found = trace_of(*ops, mark, call)
    assert (len(starts_of(found, "ops")), starts_of(found, "marks")) == (4, [])
    assert (starts_of(found, "calls"), notes_of(found)) == ([], {"set-aside": 2})


@pytest.mark.parametrize("count", [1, 3, 5000])
def test_times_that_are_no_times_are_refused(count: int) -> None:
    """Their sums would leave 64 bits, and no recording is that long."""
    events = [kernel(n * DAY_US * 0.9, 1, n) for n in range(200 if count == 1 else 2)]
    events += [kernel(n, 0.9 * DAY_US, n) for n in range(count)]
    if count == 3:
        assert notes_of(trace_of(*events)) == {}
    else:
        with pytest.raises(InputError, match="more than 104 days"):
            trace_of(*events)


def test_records_written_twice_count_once() -> None:
    calls = [kernel(n * 100 - 50, 10, n, cat="cuda_runtime", tid=1) for n in range(5)]
    kernels = [kernel(n * 100, 40, n) for n in range(5)] + [kernel(700, 1, 8)]
    once = trace_of(*calls, *kernels)
    twice = trace_of(*calls, *kernels, *calls, *kernels)
    assert twice.activities.equals(once.activities)
    assert twice.calls.equals(once.calls)
    assert notes_of(twice) == {"written-twice": 11}
    text = next(n.text for n in twice.notes if n.code == "written-twice")
    assert "Ignored: 6 GPU records, 5 calls (201.000 µs of GPU time)." in text


def test_of_a_repeated_file_everything_counts_once() -> None:
    host = {"tid": 1, "pid": 1}
    events = [
        kernel(100, 40, 1),
        kernel(200, 1, 2),
        kernel(90, 5, 1, cat="cuda_runtime", **host),
        kernel(80, 20, cat="cpu_op", args={"External id": 4}, **host),
        kernel(70, 400, cat="user_annotation", args={}, **host),
    ]
    once, twice = trace_of(*events), trace_of(*events, *events)
    for table in ("activities", "calls", "ops", "marks"):
        assert twice.table(table).equals(once.table(table)), table
    assert notes_of(twice) == {"written-twice": 5}
    # Without an id that proves it, the same mark twice may be two marks.
    assert len(starts_of(trace_of(*events, events[4]), "marks")) == 2


def test_long_work_within_a_day_is_kept_and_named() -> None:
    """It may be a hang, even with work behind it."""
    events = [kernel(n * 1000, 900, 10 + n) for n in range(4)]
    found = trace_of(*events, kernel(4_000, 23 * 3600 * 10**6, 4), kernel(8_000, 5, 5))
    assert len(starts_of(found)) == 6
    assert "very-long" in [note.code for note in found.notes]


def launch(
    number: int, ts: float, name: str = "cudaLaunchKernel", dur: float = 1
) -> dict[str, Any]:
    args = {"correlation": number}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": ts, "dur": dur, "args": args}


def loop(name: str = "cudaLaunchKernel", wait: str = "cudaDeviceSynchronize") -> list[Any]:
    """Return 40 launches 1 ms apart, each of a kernel of 0.9 ms, and a wait for all of them."""
    api = [launch(n, 1000 * n, name) for n in range(40)]
    work = [kernel(1000 * n + 10, 900, n) for n in range(40)]
    return [*api, launch(99, 39_100, wait, 900), *work]


@pytest.mark.parametrize(
    ("row", "length_us", "more", "kept"),
    [
        pytest.param(3, 5_000, {}, False, id="longer than its step: four later ones ended"),
        pytest.param(3, 2_000, {}, True, id="one later one: launched early"),
        pytest.param(39, 60_000, {}, False, id="ended after the host had waited for it"),
        pytest.param(39, 9_000, {}, True, id="clocks may be so far apart"),
        pytest.param(3, 5_000, {"graph node id": 7}, True, id="nodes of a graph"),
        pytest.param(3, 5_000, {"stream": 8}, True, id="another stream"),
    ],
)
def test_what_had_ended_by_other_records_cannot_run_on(
    row: int, length_us: int, more: dict[str, Any], kept: bool
) -> None:
    events = loop()
    events[41 + row] = kernel(1000 * row + 10, length_us, row)
    events[41 + row]["args"] |= more
    found = trace_of(*events)
    assert len(starts_of(found)) == 39 + kept
    assert notes_of(found) == ({} if kept else {"set-aside": 1})


@given(end=st.lists(st.integers(0, 9), max_size=12))
def test_the_third_earliest_end_behind_each_row(end: list[int]) -> None:
    """So few rows can be sorted anew for each."""
    never = np.iinfo(np.int64).max
    behind = [sorted([*end[place:], never, never, never])[2] for place in range(1, len(end) + 1)]
    assert _end_of_later(np.array(end, dtype=np.int64)).tolist() == behind


def test_much_work_that_runs_on_tells_of_streams_that_are_none() -> None:
    events = loop()
    for row in range(0, 30, 5):
        events[41 + row] = kernel(1000 * row + 10, 4_500, row)
    assert len(starts_of(trace_of(*events))) == 40


def test_queues_that_several_streams_share_are_no_streams() -> None:
    events = loop("hipLaunchKernel", "hipStreamSynchronize")
    events[44] = kernel(3_010, 5_000, 3)
    assert len(starts_of(trace_of(*events))) == 40


def test_work_of_a_queue_of_the_hardware_is_shown_and_named() -> None:
    """Queues of rocprof may run several things at once: work behind one proves no fault."""
    rows = [{"name": f"k{n}", "start_ns": n * 1000, "dur_ns": 900, "stream": 1} for n in range(5)]
    long = {"name": "slow", "start_ns": 2_500, "dur_ns": 331_000_000_000, "stream": 1}
    made = made_of(activities=[*rows[:3], long, *rows[3:]])
    trace = plausible(replace(made, source=replace(made.source, format="rocprof")))
    assert trace.activities.num_rows == 6
    (note,) = trace.notes
    assert (note.code, note.count) == ("very-long", 1)
    assert "331.000 s" in note.text
    assert "slow" in note.text


def test_a_long_kernel_among_long_ones_is_nothing_to_name() -> None:
    long = 70 * 10**6
    notes = trace_of(*[kernel(n * long, long, n) for n in range(3)]).notes
    assert "very-long" not in [note.code for note in notes]


def test_whole_microseconds_prove_no_repeat_of_device_work() -> None:
    """Two branches of a graph may begin and end in the same ticks; ids of 0 are none."""
    found = trace_of(kernel(100, 40, 3), kernel(100, 40, 3))
    assert (len(starts_of(found)), notes_of(found)) == (2, {})
    call = kernel(100, 40, 0, cat="cuda_runtime", tid=1)
    assert len(starts_of(trace_of(call, call), "calls")) == 2
    exact = [kernel(100.001, 40, 3)] * 2
    assert notes_of(trace_of(*exact)) == {"written-twice": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"name": "other"},
        {"dur": 41},
        {"args": {"device": 0, "stream": 8, "correlation": 1}},
        {"args": {"device": 0, "stream": 7, "correlation": 2}},
        {"args": {"device": 0, "stream": 7, "correlation": 1, "graph node id": 4}},
        {"args": {"device": 0, "stream": 7, "correlation": 1, "grid": [2, 1, 1]}},
        {"args": {"device": 0, "stream": 7, "correlation": 1, "bytes": 8}},
    ],
)
def test_what_differs_is_not_a_repeat(other: dict[str, Any]) -> None:
    found = trace_of(kernel(100, 40), kernel(100, 40) | other)
    assert (len(starts_of(found)), notes_of(found)) == (2, {})


def test_short_repeats_alone_may_be_a_coarse_clock() -> None:
    """Nodes of a graph share their launch, and old files count whole microseconds."""
    found = trace_of(kernel(100, 1), kernel(100, 1), kernel(101, 2), kernel(101, 2))
    assert (len(starts_of(found)), notes_of(found)) == (4, {})


def test_without_a_launch_nothing_is_a_repeat() -> None:
    nameless = kernel(100, 40, args={"device": 0, "stream": 7})
    assert len(starts_of(trace_of(nameless, nameless))) == 2


def memory(ts: float, **args: object) -> dict[str, Any]:
    args = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": 8} | args
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args}


@pytest.mark.parametrize("total", [-5, -(2**63) + 1, 2**63 - 1, 2**53])
def test_impossible_amounts_of_memory_are_set_aside(total: int) -> None:
    said = {"Total Allocated": 40, "Total Reserved": 60}
    wrong = {"Total Allocated": total, "Total Reserved": 60}
    trace = trace_of(kernel(0, 5), memory(1, **said), memory(2, **wrong))
    rows = zip(*(trace.counters[name].to_pylist() for name in ("name", "value")), strict=True)
    assert sorted(rows) == [
        ("device_memory.allocated_bytes", 40.0),
        *[("device_memory.change_bytes", 8.0)] * 2,
        *[("device_memory.reserved_bytes", 60.0)] * 2,
    ]
    (note,) = [note for note in trace.notes if note.code == "impossible-amounts"]
    assert (note.kind, note.count) == ("dropped", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (use,) = memory_use(prepare(trace))
    assert (use.allocated.peak, use.unused_at_peak) == (40, 20)


def test_more_allocated_than_reserved_leaves_the_spare_memory_unknown() -> None:
    trace = trace_of(kernel(0, 5), memory(1, **{"Total Allocated": 90, "Total Reserved": 60}))
    (use,) = memory_use(prepare(trace))
    assert (use.allocated.peak, use.unused_at_peak) == (90, None)


def test_impossible_amounts_in_any_table_become_unknown() -> None:
    right = {"kind": "kernel", "name": "a", "count": 3, "total_ns": 9, "min_ns": 1, "max_ns": 5}
    wrong = {"name": "b", "count": -3, "total_ns": 9, "min_ns": -1, "max_ns": 5, "bytes": 2**60}
    trace = plausible(made_of(totals=[right, right | wrong]))
    rows = trace.totals.select(["count", "total_ns", "min_ns", "max_ns", "bytes"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(3, 9, 1, 5, None), (None, 9, None, 5, None)]
    assert {n.code: n.count for n in trace.notes} == {"impossible-amounts": 3}


@pytest.mark.parametrize(
    ("key", "right", "wrong", "column"),
    [
        ("grid", [4, 1, 1], [4, -1, 1], "grid"),
        ("block", [32, 1, 1], [-32, 1, 1], "block"),
        ("registers per thread", 3, -3, "registers_per_thread"),
        ("shared memory", 64, -64, "shared_memory_bytes"),
    ],
)
def test_impossible_sizes_of_a_launch_become_unknown(
    key: str, right: object, wrong: object, column: str
) -> None:
    said = [{key: right}, {key: wrong}, {}]
    trace = trace_of(*(kernel(10 * n, 5, args=one) for n, one in enumerate(said)))
    assert trace.activities[column].to_pylist() == [right, None, None]
    (note,) = [note for note in trace.notes if note.code == "impossible-amounts"]
    assert note.text.endswith(f": 1 {column} of activities.")


def test_values_of_no_unit_and_times_may_be_negative() -> None:
    values = [{"name": "temperature", "time_ns": -5, "value": -3.5}]
    trace = made_of(
        counters=values, activities=[{"kind": "kernel", "name": "k", "start_ns": -9, "dur_ns": 4}]
    )
    found = plausible(trace)
    assert found.counters.equals(trace.counters)
    assert found.activities["start_ns"].to_pylist() == [-9]
    assert [n.code for n in found.notes] == []
