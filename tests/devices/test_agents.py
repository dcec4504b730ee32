"""Agents of AMD as devices: partitions, single dies, and the clock as a check of the peak."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mfu.counting import BF16, MI300X, rocprof, timed
from traceflops.analysis.recipe import analyze
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import chosen
from traceflops.devices.matching import match as matched
from traceflops.mfu.budget import PeakOptions
from traceflops.mfu.measurement import Measurement


def seen(**other: Any) -> SeenDevice:
    return SeenDevice.of({**MI300X, **other})


def measured(device: dict[str, Any], **peaks: Any) -> Measurement:
    return analyze(rocprof(timed(3), device=device), peaks=PeakOptions(**peaks)).measured


def test_a_whole_mi300x_is_spx() -> None:
    found = matched(seen())
    assert found.confirmed
    assert found.confidence == "high"
    assert found.peak("bf16") == BF16
    assert "SPX, all 8 dies" in found.explanation
    assert "gfx942" in found.explanation


@pytest.mark.parametrize(
    ("dies", "mode", "bf16"),
    [(1, "CPX, 1 of 8 dies", 163_425), (2, "QPX, 2 of 8", 326_850), (4, "DPX, 4 of 8", 653_700)],
)
def test_a_partition_has_its_share_of_the_peak(dies: int, mode: str, bf16: int) -> None:
    """1,307.4 TFLOP/s of eight dies; the memory is shared, so its bandwidth is not known."""
    found = matched(seen(sm_count=38 * dies, dies=dies))
    assert found.confirmed
    assert mode in found.explanation
    assert found.peak("bf16") == bf16
    assert found.bandwidth is None


def test_units_that_dies_do_not_explain_are_asked_for() -> None:
    for wrong in ({"dies": 2}, {"dies": None}, {"architecture": "gfx950"}):
        found = matched(seen(sm_count=38, **{"dies": 1, **wrong}))
        assert not found.confirmed
        assert found.peak("bf16") is None


def test_a_partition_of_an_mi350() -> None:
    agent = {
        "product": "AMD Instinct MI355X",
        "architecture": "gfx950",
        "compute_minor": 5,
        "sm_count": 32,
        "dies": 1,
        "memory_bytes": None,
    }
    found = matched(seen(**agent))
    assert found.confirmed
    assert "CPX, 1 of 8 dies" in found.explanation
    assert found.peak("bf16") == 2_516_600 // 8


@pytest.mark.parametrize(
    ("name", "units", "bf16"),
    [("AMD Instinct MI250X", 110, 191_500), ("AMD Instinct MI250", 104, 181_050)],
)
def test_a_gfx90a_agent_is_one_die_and_never_doubled(name: str, units: int, bf16: int) -> None:
    agent = {
        "product": name,
        "architecture": "gfx90a",
        "compute_minor": 0,
        "sm_count": units,
        "dies": 1,
        "memory_bytes": 68_702_699_520,
        "clock_hz": 1_700_000_000,
    }
    found = matched(seen(**agent))
    assert found.confirmed
    assert found.peak("bf16") == bf16
    assert measured(dict(MI300X, **agent)).notes == ()


def test_another_architecture_than_the_name_says_is_no_agreement() -> None:
    found = matched(seen(architecture="gfx90a"))
    assert not found.confirmed
    assert "gfx90a (not gfx942)" in found.explanation


def test_features_behind_the_architecture_do_not_matter() -> None:
    assert matched(seen(architecture="gfx942:sramecc+:xnack-")).confirmed


def test_without_memory_the_architecture_tells_a_nameless_device() -> None:
    """MI300X and MI325X have 304 CUs and the same rates; their bandwidths differ."""
    found = matched(seen(product="", memory_bytes=None))
    assert found.confirmed
    assert found.peak("bf16") == BF16
    assert found.bandwidth is None
    assert not matched(seen(product="", memory_bytes=None, architecture=None)).confirmed


def test_a_clock_that_agrees_is_not_mentioned() -> None:
    """304 CUs x 2.1 GHz x 2,048 FLOP are 1,307.4 TFLOP/s."""
    assert "peak-by-clock-differs" not in {note.code for note in measured(MI300X).notes}
    near = {**MI300X, "clock_hz": 2_000_000_000}
    assert measured(near).notes == ()


def test_a_clock_that_differs_is_said_and_changes_nothing() -> None:
    capped = {**MI300X, "clock_hz": 1_700_000_000}
    found = measured(capped)
    assert found.notes == ()  # nothing was counted, so nothing is held against a peak
    note = found.devices[0].clock_note
    assert note is not None
    assert "304 CUs x 1.7 GHz" in note.text
    assert "x 2,048 FLOP per clock make 1,058.4 TFLOP/s (bf16), 19.0 % less" in note.text
    assert found.devices[0].rates["bf16"] == BF16
    assert measured(capped, tflops=1000.0).notes == ()


@pytest.mark.parametrize(
    ("mhz", "is_said"), [(1_890, True), (2_010, False), (2_600, False), (2_800, True)]
)
def test_a_clock_above_is_boost_and_one_below_a_limit(mhz: int, is_said: bool) -> None:
    """The table's rate is at 2,100 MHz: 5 % less is said, and only 30 % more."""
    note = measured({**MI300X, "clock_hz": mhz * 1_000_000}).devices[0].clock_note
    assert (note is not None) == is_said


def test_a_clock_alone_is_no_peak() -> None:
    strange = {**MI300X, "product": "AMD Instinct MI999", "architecture": "gfx999"}
    found = measured(strange)
    assert found.devices[0].rates == {}
    assert chosen(None, None, SeenDevice.of(strange)).by_clock is None
