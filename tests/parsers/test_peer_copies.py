"""Copies between two GPUs are told as such, also where they go through the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.build import trace_of
from tests.parsers.nsight.nsysfile import NsysFile
from tests.parsers.nsight.test_nsys_quirks import made, rows
from traceflops.analysis.recipe import analyze
from traceflops.parsers.shared.repeats import with_peer_copies
from traceflops.parsers.shared.sinks import direction_named
from traceflops.reports.markdown import render_markdown
from traceflops.table.trace import Trace

PIECE_NS = 1_000_000


def copied(call: str, *ways: tuple[str, int], correlation: int | None = 1) -> Trace:
    """Return copies, one after the other, by way and device, and the call that made them."""
    copies = [
        {
            "kind": "memcpy",
            "name": f"Memcpy {way}",
            "direction": way,
            "device": device,
            "start_ns": 100 + at * PIECE_NS,
            "dur_ns": PIECE_NS,
            "bytes": 1 << 20,
            "correlation": correlation,
        }
        for at, (way, device) in enumerate(ways)
    ]
    calls = [{"name": call, "start_ns": 0, "dur_ns": 50, "correlation": 1}]
    devices = [{"device": 0, "local_id": 0}, {"device": 1, "local_id": 1}]
    return trace_of(activities=copies, calls=calls, devices=devices)


STAGED = (("DtoH", 0), ("HtoD", 1))


@pytest.mark.parametrize(
    ("call", "ways", "found"),
    [
        ("cudaMemcpyPeerAsync", STAGED, ["PtoP", "PtoP"]),
        ("cuMemcpy3DPeer", (("DtoD", 0),), ["PtoP"]),
        ("hipMemcpyPeer", (("DtoH", 0),), ["PtoP"]),
        ("cudaMemcpyAsync", STAGED, ["PtoP", "PtoP"]),
        ("cudaMemcpyAsync", (("DtoH", 0), ("HtoD", 0)), ["DtoH", "HtoD"]),
        ("cudaMemcpyAsync", (("DtoH", 0), ("DtoH", 1)), ["DtoH", "DtoH"]),
        ("cudaMemcpyPeerAsync", (("migration DtoH", 0),), ["migration DtoH"]),
        ("cudaGraphLaunch", STAGED, ["DtoH", "HtoD"]),
    ],
)
def test_the_call_tells(call: str, ways: Any, found: list[str]) -> None:
    assert with_peer_copies(copied(call, *ways)).activities["direction"].to_pylist() == found


def test_a_copy_without_a_call_stays_what_it_says() -> None:
    trace = copied("cudaMemcpyPeer", *STAGED, correlation=None)
    assert with_peer_copies(trace).activities["direction"].to_pylist() == ["DtoH", "HtoD"]


def test_they_are_communication_and_no_copies_between_cpu_and_gpu() -> None:
    as_recorded = analyze(copied("cudaMemcpyPeerAsync", *STAGED))
    told = analyze(with_peer_copies(copied("cudaMemcpyPeerAsync", *STAGED)))
    assert "between CPU and GPU" in render_markdown(as_recorded)
    assert "CPU and GPU" not in render_markdown(told)
    assert told.total.components.communication_ns > 0
    assert told.total.components.memory_ns == 0


@pytest.mark.parametrize(
    ("kind", "devices", "way"),
    [
        (8, (0, 1), "PtoP"),
        (1, (1, 0), "PtoP"),
        (8, (1, 1), "DtoD"),
        (8, (None, None), "DtoD"),
        (1, (-1, 0), "HtoD"),
        (10, (None, None), "PtoP"),
    ],
)
def test_the_devices_of_an_export_tell(
    tmp_path: Path, kind: int, devices: tuple[int | None, int | None], way: str
) -> None:
    export = NsysFile()
    export.copy(0, 10, kind, srcDeviceId=devices[0], dstDeviceId=devices[1])
    assert rows(made(tmp_path, export), "activities", "direction") == [way]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("MemcpyP2P", "PtoP"),
        ("[CUDA memcpy Peer-to-Peer]", "PtoP"),
        ("[CUDA memcpy P2P]", "PtoP"),
        ("Memcpy PtoP (Device -> Pinned)", "PtoP"),
        ("MemcpyD2H", "DtoH"),
        ("CopyDeviceToHost2D", "DtoH"),
        ("Memcpy2D", None),
    ],
)
def test_names_tell(name: str, way: str | None) -> None:
    assert direction_named(name) == way
