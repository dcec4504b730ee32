"""A stretch of time: from where it counts, and what was not recorded in it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from traceflops import Analysis, Selection, Trace, UsageError, analyze
from traceflops.devices.merging import merge
from traceflops.windows.chosen_runs import restrict


def machine(clock: str | None, *works: tuple[int, int], file: str = "a", **more: Any) -> Trace:
    """Return a trace with a device of its own that works (start, length) on a clock."""
    rows = [{"name": "k", "start_ns": start, "dur_ns": dur} for start, dur in works]
    trace = trace_of(activities=rows, processes=[{"file": file}], **more)
    return replace(trace, source=replace(trace.source, clock=clock))


def chosen(found: Analysis) -> list[tuple[int, int]]:
    """Return length and idle time of the chosen window of each device."""
    parts = [device.chosen.components for device in found.devices]
    return [(part.window_ns, part.idle_ns) for part in parts]


def codes(found: Analysis) -> set[str]:
    return {note.code for note in found.notes}


FAR = 10**15


@pytest.mark.parametrize("clocks", [("machine a", "machine b"), (None, None)])
def test_clocks_that_cannot_be_compared_each_count_from_their_own_first_activity(
    clocks: tuple[str | None, str | None],
) -> None:
    """One machine was booted 11 days before the other."""
    merged = merge(
        [
            machine(clocks[0], (1_000, 100), (1_150, 50), file="a"),
            machine(clocks[1], (FAR, 60), (FAR + 100, 100), file="b"),
        ]
    )
    stretch = Selection(from_ns=50, to_ns=180)
    found = analyze(merged, stretch)
    # [1050, 1180): idle [1100, 1150). [FAR+50, FAR+180): idle [FAR+60, FAR+100).
    assert chosen(found) == [(130, 50), (130, 40)]
    assert "range-by-clock" in codes(found)
    assert restrict(merged, stretch).activities.num_rows == 4
    last = Selection(from_ns=120)
    assert restrict(merged, last).activities["start_ns"].to_pylist() == [1_150, FAR + 100]


def test_one_clock_has_one_origin() -> None:
    merged = merge(
        [
            machine("machine a", (1_000, 100), file="a"),
            machine("machine a", (1_050, 100), file="b"),
        ]
    )
    found = analyze(merged, Selection(from_ns=60, to_ns=80))
    assert chosen(found) == [(20, 0), (20, 0)]
    assert "range-by-clock" not in codes(found)


def test_time_in_which_a_process_was_not_recorded_is_not_idle() -> None:
    """The second began 600 ns after the first, and there is no record of it before."""
    merged = merge(
        [
            machine("machine a", (0, 1_000), file="a"),
            machine("machine a", (600, 100), (800, 200), file="b"),
        ]
    )
    found = analyze(merged, Selection(from_ns=500, to_ns=900))
    assert chosen(found) == [(400, 0), (300, 100)]
    (note,) = [one for one in found.notes if one.code == "range-not-recorded"]
    assert (note.count, "up to 100 ns" in note.text) == (1, True)


def test_a_device_of_whose_process_nothing_was_recorded_is_in_no_figure() -> None:
    merged = merge(
        [
            machine("machine a", (0, 100), file="a"),
            machine("machine a", (600, 100), file="b"),
        ]
    )
    found = analyze(merged, Selection(from_ns=0, to_ns=100))
    assert chosen(found) == [(100, 0), (0, 0)]
    assert "devices-outside-range" in codes(found)
    assert found.categories.num_rows == 1
    with pytest.raises(UsageError, match="outside the trace"):
        analyze(merged, Selection(from_ns=100, to_ns=500))


def test_a_device_that_waits_while_its_process_is_recorded_is_idle() -> None:
    trace = machine(
        "machine a",
        (0, 100),
        (900, 100),
        calls=[{"start_ns": 0, "dur_ns": 1_200, "correlation": 1}],
    )
    assert chosen(analyze(trace, Selection(from_ns=200, to_ns=700))) == [(500, 500)]


def test_clocks_stay_apart_in_what_is_merged_again() -> None:
    first = merge([machine("machine a", (0, 10)), machine("machine b", (FAR, 10))])
    whole = merge([first, machine("machine c", (2 * FAR, 10))])
    assert chosen(analyze(whole, Selection(from_ns=0, to_ns=10))) == [(10, 0)] * 3


def test_samples_of_gpus_have_nothing_from_which_a_time_range_counts() -> None:
    samples = [{"device": 0, "name": "gpu.power_w", "time_ns": at, "value": 22.0} for at in (0, 9)]
    with pytest.raises(UsageError, match="could count") as refused:
        analyze(trace_of(counters=samples), Selection(to_ns=5))
    assert "the report then says what the recording lacks" in refused.value.hint
