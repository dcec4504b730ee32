"""Copies in the tables of work: bytes by their records, held against what they move over."""

from fractions import Fraction
from typing import Any

import pytest

from tests.build import launched, trace_of
from tests.mfu.test_measurement import H100
from traceflops import analyze
from traceflops.reports.json.measured import measured_object
from traceflops.table.trace import Trace

SIZE = 4_000_000
COPY = {"name": "aten::copy_", "dur_ns": 8, "input_dims": "[[1000000],[1000000],[]]"}
FLOATS = {"input_types": '["float","float","Scalar"]'}


def copies(*ways: str | None, shapes: bool = True, **device: Any) -> Trace:
    """Return copies of 4 MB in 100 us each, all under one name, one after the other."""
    works = [("CopyData", 10 * n + 2, 100 + 100_000 * n, 100_000) for n in range(len(ways))]
    tables = launched(*works)
    for row, way in zip(tables["activities"], ways, strict=True):
        row |= {"kind": "memcpy", "direction": way, "bytes": SIZE}
    ops = [COPY | FLOATS | {"start_ns": 10 * n} for n in range(len(ways))]
    return trace_of(**tables, ops=ops if shapes else [], devices=[H100 | device])


def rows(trace: Trace) -> list[dict[str, Any]]:
    """Return the row of the copies, and that of their operators where there are any."""
    found = measured_object(analyze(trace).measured)
    return [*found["kernels"], *found["ops"]]


def figures(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return bytes, GB/s, shares of memory and link, and what bounds a row."""
    names = ("min_bytes", "bytes_per_ns", "share_of_bandwidth", "share_of_link", "bound")
    return tuple(row[name] for name in names)


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("way", ["HtoD", "DtoH", "migration HtoD"])
def test_a_copy_from_or_to_the_host_crosses_the_link_once(way: str, shapes: bool) -> None:
    """40 GB/s of the 63.015 that 16 lanes of PCIe 5 carry in one direction."""
    for row in rows(copies(way, way, shapes=shapes)):
        assert figures(row) == (2 * SIZE, 40, None, pytest.approx(40 / 63.015), "interconnect")
        assert row["bound_by"] == "record"


@pytest.mark.parametrize("shapes", [True, False])
def test_a_copy_within_a_device_is_read_and_written(shapes: bool) -> None:
    for row in rows(copies("DtoD", shapes=shapes)):
        share = pytest.approx(float(Fraction(80, 3350)))
        assert figures(row) == (2 * SIZE, 80, share, None, "memory")


def test_a_copy_between_devices_goes_over_a_link_of_which_the_rate_is_not_known() -> None:
    for row in rows(copies("PtoP")):
        assert figures(row) == (SIZE, 40, None, None, "interconnect")


def test_copies_over_several_ways_under_one_name_are_held_against_none() -> None:
    for row in rows(copies("HtoD", "DtoD")):
        assert figures(row) == (3 * SIZE, 60, None, None, None)


def test_a_copy_of_unknown_direction_has_unknown_bytes() -> None:
    (row, *_) = rows(copies(None, shapes=False))
    assert figures(row) == (None, None, None, None, None)


def test_a_link_that_depends_on_the_machine_is_unknown() -> None:
    """A V100 of the SXM2 form sits on PCIe or, beside POWER9, on NVLink."""
    v100: dict[str, Any] = {"product": "Tesla V100-SXM2-16GB", "compute_major": 7, "sm_count": 80}
    for row in rows(copies("HtoD", **v100, memory_bytes=16_945_512_448)):
        assert figures(row) == (SIZE, 40, None, None, "interconnect")


def test_a_fill_is_written_once() -> None:
    tables = launched(("Memset (Device)", 2, 100, 100_000))
    tables["activities"][0] |= {"kind": "memset", "bytes": SIZE}
    (row,) = rows(trace_of(**tables, devices=[H100]))
    assert figures(row) == (SIZE, 40, pytest.approx(40 / 3350), None, "memory")
