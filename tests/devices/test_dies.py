"""Partitions of AMD devices, told by their dies."""

from typing import Any

import pytest

from tests.build import trace_of
from traceflops import analyze
from traceflops.devices.device_facts import by_name
from traceflops.devices.peaks import partition
from traceflops.mfu.budget import PeakOptions
from traceflops.recording.inventory import take_inventory
from traceflops.reports.terminal.info import render_info
from traceflops.reports.view.wording import products


@pytest.mark.parametrize(
    ("product", "architecture", "dies", "expected"),
    [
        ("AMD Instinct MI300X", "gfx942", 8, "SPX, all 8 dies"),
        ("AMD Instinct MI300X", "gfx942", 4, "DPX, 4 of 8 dies"),
        ("AMD Instinct MI300X", "gfx942", 2, "QPX, 2 of 8 dies"),
        ("AMD Instinct MI300X", "gfx942", 1, "CPX, 1 of 8 dies"),
        ("AMD Instinct MI300A", "gfx942", 6, "SPX, all 6 dies"),
        ("AMD Instinct MI300A", "gfx942", 2, "TPX, 2 of 6 dies"),
        ("AMD Instinct MI350X", "gfx950", 1, "CPX, 1 of 8 dies"),
        (None, "gfx942", 1, "CPX, 1 die"),
        (None, "gfx942", 8, "SPX, all 8 dies"),
        (None, "gfx950", 8, "SPX, all 8 dies"),
        (None, "gfx942", 2, None),
        ("AMD Instinct MI300X", "gfx942", 3, None),
        ("AMD Instinct MI300X", "gfx942", 16, None),
        ("AMD Instinct MI300X", "gfx942", None, None),
        ("AMD Instinct MI300X", "gfx942", 0, None),
        ("AMD Instinct MI250X", "gfx90a", 1, None),
        ("AMD Radeon AI PRO R9700", "gfx1201", 1, None),
        (None, "gfx9999", 1, None),
        (None, None, 1, None),
    ],
)
def test_partitions(
    product: str | None, architecture: str | None, dies: int | None, expected: str | None
) -> None:
    found = partition(by_name(product), architecture, dies)
    assert (found.text if found is not None else None) == expected


def test_a_partition_is_said_wherever_devices_are() -> None:
    device = {
        "product": "AMD Instinct MI300X",
        "architecture": "gfx942",
        "sm_count": 38,
        "dies": 1,
        "clock_hz": 2_100_000_000,
    }
    trace = trace_of(devices=[device], activities=[{"name": "k", "start_ns": 0}])
    analysis = analyze(trace)
    assert products(analysis) == "1 × AMD Instinct MI300X (CPX, 1 of 8 dies)"
    text = "\n".join(render_info(take_inventory(trace)))
    assert "gfx942, 38 CUs, partition CPX, 1 of 8 dies, 2,100 MHz" in text


def test_an_unknown_product_has_at_least_its_architecture() -> None:
    devices: list[dict[str, Any]] = [{"architecture": "gfx90a"}, {"device": 1, "local_id": 1}]
    rows = [{"name": "k", "start_ns": 0, "device": at} for at in (0, 1)]
    analysis = analyze(trace_of(devices=devices, activities=rows))
    assert products(analysis) == "1 × unknown gfx90a, 1 × unknown GPU (--device names it)"


def test_a_device_that_the_user_names_is_said() -> None:
    trace = trace_of(activities=[{"name": "k", "start_ns": 0}])
    analysis = analyze(trace, peaks=PeakOptions(device="h100-sxm"))
    assert products(analysis) == "1 × H100 SXM 80 GB HBM3 (given)"
    named = trace_of(
        activities=[{"name": "k", "start_ns": 0}], devices=[{"product": "NVIDIA H200"}]
    )
    for device, shown in (("h100-sxm", "H100 SXM 80 GB HBM3 (given)"), ("h200-sxm", "NVIDIA H200")):
        analysis = analyze(named, peaks=PeakOptions(device=device))
        assert products(analysis) == f"1 × {shown}"
