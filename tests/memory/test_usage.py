"""Memory over time: totals and changes, steps, peaks, and curves that lose no extreme."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import launched, step_marks, trace_of
from tests.conftest import SAMPLES, shared_file, some
from traceflops import read
from traceflops.analysis.preparation import prepare
from traceflops.memory.usage import MOST_POINTS, Holder, MemoryUse, StepUse, holders, memory_use
from traceflops.windows.selection import Selection


def counter(name: str, time_ns: int, value: int, device: int | None = 0) -> dict[str, Any]:
    return {"name": name, "time_ns": time_ns, "value": float(value), "device": device}


def used(*counters: dict[str, Any], **more: Any) -> tuple[MemoryUse, ...]:
    work = launched(("k", 100, 100, 100), ("k", 200, 200, 100), ("k", 300, 300, 50))
    marks = step_marks(("ProfilerStep#4", 90, 100), ("ProfilerStep#5", 190, 100))
    selection = more.pop("selection", None)
    return memory_use(
        prepare(trace_of(**(work | {"marks": marks} | more), counters=counters), selection)
    )


def totals(*values: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Return allocated and reserved bytes at some times."""
    return [
        one
        for time, allocated, reserved in values
        for one in (
            counter("device_memory.allocated_bytes", time, allocated),
            counter("device_memory.reserved_bytes", time, reserved),
        )
    ]


def test_a_trace_without_memory_has_none() -> None:
    assert used() == ()
    assert used(counter("GR Active", 5, 3)) == ()


def test_totals_are_taken_as_they_are() -> None:
    devices = [{"memory_bytes": 1_000}]
    rows = totals((80, 100, 400), (110, 300, 400), (150, 120, 500), (220, 150, 500))
    (one,) = used(*rows, devices=devices)
    assert (one.is_total, one.on_host, one.device, one.device_bytes) == (True, False, 0, 1_000)
    allocated = one.allocated
    assert (allocated.first, allocated.peak, allocated.last) == (100, 300, 150)
    assert (allocated.peak_ns, allocated.peak_step) == (110, 4)
    assert allocated.steps == (StepUse(4, 90, 300, 120), StepUse(5, 190, 150, 150))
    assert allocated.growth == 30
    assert one.reserved is not None
    assert one.reserved.peak == 500
    assert one.unused_at_peak == 100, "what was reserved at the time of the peak"
    assert one.share_of_device == 0.5


def test_changes_alone_add_up_from_0() -> None:
    values = [(95, 40), (120, 60), (130, -90), (210, 5)]
    (one,) = used(*(counter("device_memory.change_bytes", *value) for value in values))
    assert one.allocated.curve.value.tolist() == np.cumsum([40, 60, -90, 5]).tolist()
    assert (one.is_total, one.reserved, one.share_of_device) == (False, None, None)
    assert (one.allocated.peak, one.allocated.peak_ns) == (100, 120)


def test_what_the_host_reserves_is_not_known() -> None:
    rows = [counter("host_memory.allocated_bytes", 100, 8, None)]
    rows.append(counter("host_memory.reserved_bytes", 100, 0, None))
    (one,) = used(*rows)
    assert (one.on_host, one.device, one.is_total, one.reserved) == (True, None, False, None)


def test_devices_come_first_and_those_not_chosen_are_left_out() -> None:
    rows = [
        counter("host_memory.allocated_bytes", 100, 8, None),
        counter("device_memory.allocated_bytes", 100, 5),
        counter("device_memory.allocated_bytes", 100, 7, None),
    ]
    assert [(one.on_host, one.device) for one in used(*rows)] == [
        (False, 0), (False, None), (True, None)
    ]  # fmt: skip
    only = used(*rows, selection=Selection(gpus=frozenset({0})))
    assert (False, 0) in [(one.on_host, one.device) for one in only]


def test_a_peak_outside_the_steps_has_no_step() -> None:
    (one,) = used(*totals((10, 900, 900), (120, 1, 900)))
    assert one.allocated.peak_step is None
    assert one.allocated.steps[0].most == 900, "it still holds when the step begins"


def test_steps_before_the_first_record_have_no_value() -> None:
    (one,) = used(*totals((205, 3, 3)))
    assert one.allocated.steps == (StepUse(5, 190, 3, 3),)
    assert one.allocated.growth is None


def test_numbers_that_repeat_are_counted_as_in_the_report() -> None:
    marks = step_marks(("ProfilerStep#4", 90, 100), ("ProfilerStep#4", 190, 100))
    (one,) = used(*totals((100, 3, 3), (200, 4, 4)), marks=marks)
    assert [each.step for each in one.allocated.steps] == [0, 1]


@pytest.mark.parametrize("seed", some(range(5), 3))
def test_a_long_curve_keeps_its_extremes(seed: int) -> None:
    random = np.random.default_rng(seed)
    time = np.sort(random.integers(0, 10**6, 20_000))
    value = random.integers(0, 10**12, 20_000)
    rows = zip(time.tolist(), value.tolist(), strict=True)
    (one,) = used(*(counter("device_memory.allocated_bytes", *row) for row in rows))
    curve = one.allocated.curve
    assert curve.changes == 20_000
    assert len(curve.value) <= MOST_POINTS
    assert (curve.value.max(), curve.value.min()) == (value.max(), value.min())
    assert (np.diff(curve.time_ns) >= 0).all()
    assert (curve.value[0], curve.value[-1]) == (value[0], value[-1])
    assert one.allocated.peak == value.max()
    # Nothing is made up: every point is one of the recorded.
    known = set(zip(time.tolist(), value.tolist(), strict=True))
    assert set(zip(curve.time_ns.tolist(), curve.value.tolist(), strict=True)) <= known


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(-(2**50), 2**50)), min_size=1))
def test_steps_hold_what_a_walk_through_the_changes_says(values: list[tuple[int, int]]) -> None:
    values = sorted(values, key=lambda one: one[0])
    (one,) = used(*(counter("device_memory.allocated_bytes", *value) for value in values))
    for low, high, number in ((90, 190, 4), (190, 290, 5)):
        before = [value for time, value in values if time < low][-1:]
        held = before + [value for time, value in values if low <= time < high]
        found = [each for each in one.allocated.steps if each.step == number]
        assert [(each.most, each.at_end) for each in found] == (
            [(max(held), held[-1])] if held else []
        )


def blocks(*rows: tuple[int, int, int | None, int]) -> list[dict[str, Any]]:
    """Return changes at a time, of an address, and the total after each."""
    return [
        counter(f"device_memory.{part}_bytes", time, value) | {"address": address}
        for time, change, address, total in rows
        for part, value in (("change", change), ("allocated", total))
    ]


def held(*rows: tuple[int, int, int | None, int], **more: Any) -> tuple[Holder, ...]:
    work = launched(("k", 100, 100, 100), ("k", 200, 200, 100), ("k", 300, 300, 50))
    ops = [
        {"name": "aten::linear", "thread": 1, "start_ns": 1_000, "dur_ns": 100},
        {"name": "aten::empty", "thread": 1, "start_ns": 1_010, "dur_ns": 20},
        {"name": "aten::add", "thread": 1, "start_ns": 1_200, "dur_ns": 100},
        {"name": "aten::copy_", "thread": 2, "start_ns": 1_250, "dur_ns": 200},
    ]
    marks = [
        {"name": "nn.Module: Net_0", "kind": "module", "thread": 1, "start_ns": 900, "dur_ns": 250}
    ]
    tables = work | {"ops": ops, "marks": marks}
    made = prepare(trace_of(**(tables | more), counters=blocks(*rows)))
    (use,) = memory_use(made)
    return holders(made, use)


def test_what_is_held_at_the_peak_has_its_operator_and_module() -> None:
    assert held(
        (1_015, 50, 1, 150),  # in linear; 100 bytes are there from before
        (1_020, 30, 2, 180),  # freed before the peak
        (1_060, 70, 3, 250),
        (1_150, -30, 2, 220),
        (1_210, 20, 2, 240),  # the address again, in add
        (1_260, 40, 4, 280),  # two threads have operators here
        (1_500, 5, 5, 285),  # in no operator; the peak
        (1_600, -50, 1, 235),
    ) == (
        Holder("aten::linear", "Net", 120, 2),
        Holder("", "", 100, 0, recorded=False),
        Holder("", "", 45, 2),
        Holder("aten::add", "", 20, 1),
    )


def test_without_addresses_nobody_is_said_to_hold_memory() -> None:
    assert held((1_015, 50, None, 150), (1_060, 70, None, 220)) == ()


def test_blocks_that_contradict_the_total_are_not_split() -> None:
    assert held((1_015, 50, 1, 40), (1_060, 70, 2, 90)) == ()


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "h100_qwen15_infer.json.gz"])
def test_holders_of_a_recording_are_as_worked_out_block_by_block(name: str) -> None:
    path = SAMPLES / name if name.startswith("gpt") else shared_file(f"traces/pytorch/{name}")
    made = prepare(read(path))
    use = memory_use(made)[0]
    live: dict[int, int] = {}
    best: tuple[int, dict[int, int]] = (-1, {})
    for row in made.trace.counters.to_pylist():
        if row["name"] == "device_memory.change_bytes":
            if row["value"] > 0:
                live[row["address"]] = int(row["value"])
            else:
                live.pop(row["address"], None)
        elif row["name"] == "device_memory.allocated_bytes" and row["value"] > best[0]:
            best = (int(row["value"]), dict(live))
    found = holders(made, use)
    assert sum(one.bytes for one in found) == use.allocated.peak == best[0]
    known = [one for one in found if one.recorded]
    assert sum(one.bytes for one in known) == sum(best[1].values())
    assert sum(one.blocks for one in known) == len(best[1])
