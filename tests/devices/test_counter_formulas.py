"""Formulas over hardware counters: FLOPs and bytes of one launch, exactly or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import trace_of
from tests.conftest import ROOT
from tests.mfu.counting import FLOPS, MOPS, UNITS, launch, matrix
from traceflops.devices.counter_formulas import (
    counter_table,
    family_by_counters,
    family_of,
    plain_counter,
)
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import chosen
from traceflops.devices.peaks import load_devices
from traceflops.mfu.budget import peaks_of
from traceflops.mfu.counted.counter_work import CounterWork, counter_work
from traceflops.mfu.counted.same_launches import counted_launches

AMD = [one for one in counter_table().family if one.tool == "rocprofv3"]
PAGE = (ROOT / "docs" / "counters.md").read_text(encoding="utf-8")


def work_of(
    values: Mapping[str, float], architecture: str | None = "gfx942", **more: Any
) -> CounterWork:
    """Return what the counters of one launch say."""
    rows = [{**row, **more} for row in launch(1, "k", 4, values)]
    trace = trace_of(kernel_counters=rows, devices=[])
    counted = counted_launches(trace)
    assert counted is not None
    found = family_of(architecture) if architecture else None
    return counter_work(counted, (found,), np.zeros(1, dtype=np.int64))


def one(column: Any) -> int:
    """Return the value of the only launch."""
    (value,) = column.tolist()
    return int(value)


def test_the_oracle_of_an_mi300x() -> None:
    """4,194,304 units of 512 operations are 2 M N K of 128 products of 128 x 512 by 512 x 128."""
    found = work_of(matrix(UNITS))
    assert one(found.matrix_flops) == one(found.matrix["bf16"]) == 2_147_483_648 == FLOPS
    (kind,) = found.launch_work().kinds
    assert [(part.line, part.dtype, part.flops, part.at_least) for part in kind] == [
        ("executed.matrix", "bf16", FLOPS, FLOPS)
    ]


@pytest.mark.parametrize(
    ("architecture", "types"),
    [
        ("gfx90a", {"F16": "fp16", "BF16": "bf16", "F32": "fp32", "F64": "fp64"}),
        ("gfx942", {"F16": "fp16", "BF16": "bf16", "F32": "fp32", "F64": "fp64", "F8": "fp8"}),
        (
            "gfx950",
            {
                "F16": "fp16",
                "BF16": "bf16",
                "F32": "fp32",
                "F64": "fp64",
                "F8": "fp8",
                "F6F4": "fp6-or-fp4",
            },
        ),
    ],
)
def test_each_type_is_counted_by_its_own_counter(architecture: str, types: dict[str, str]) -> None:
    values = {MOPS + name: 10.0 ** (place + 1) for place, name in enumerate(types)}
    found = work_of(values, architecture)
    for place, dtype in enumerate(types.values()):
        assert one(found.matrix[dtype]) == 512 * 10 ** (place + 1)
    assert one(found.matrix_flops) == sum(512 * 10 ** (at + 1) for at in range(len(types)))
    for left_out in values:
        less = work_of({k: v for k, v in values.items() if k != left_out}, architecture)
        assert one(less.matrix_flops) == -1, "a part of a sum stands for the whole"
        assert less.partial.all()
        assert less.launch_work().kind.tolist() == [-1]


@pytest.mark.parametrize(("others", "flops"), [(0, 512 * 30), (5, -1)])
def test_fp8_is_none_where_all_matrix_instructions_are_of_counted_types(
    others: int, flops: int
) -> None:
    counted = ("F16", "BF16", "F32", "F64", "I8")
    values = {MOPS + name: 10.0 * (name == "F16") + 20.0 * (name == "BF16") for name in counted}
    values |= {f"SQ_INSTS_VALU_MFMA_{name}": 3.0 * (name in counted[:2]) for name in counted}
    found = work_of(values | {"SQ_INSTS_MFMA": 6.0 + others})
    assert one(found.matrix_flops) == flops
    assert one(work_of(values).matrix_flops) == -1


def test_a_kernel_in_xf32_needs_the_counter_of_xf32() -> None:
    """No total asks for it, as older releases of the tool do not have it; a name may."""
    name = "Cijk_Ailk_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x32_MI16x16x1"
    found = work_of(matrix(0), name=name)
    assert (one(found.matrix_flops), found.uncounted.tolist()) == (-1, [True])
    assert one(work_of({**matrix(0), f"{MOPS}XF32": 2.0}, name=name).matrix_flops) == 1024


def test_types_beside_the_total_count_where_they_were_read() -> None:
    found = work_of({**matrix(1), f"{MOPS}XF32": 2.0, f"{MOPS}I8": 4.0})
    assert one(found.matrix["tf32"]) == 1024
    assert one(found.matrix["int8"]) == 2048
    assert one(found.matrix_flops) == 512 * 7


@pytest.mark.parametrize("architecture", ["gfx908", "gfx906", "gfx1100", "gfx1201", "sm90", None])
def test_hardware_that_does_not_count_matrix_work_has_no_flops(architecture: str | None) -> None:
    """Also not 0: the counters of another device may have got there by mistake."""
    found = work_of(matrix(UNITS), architecture)
    assert one(found.matrix_flops) == one(found.vector_flops) == -1
    assert found.launch_work().kind.tolist() == [-1]


def test_vector_work_is_apart_from_matrix_work() -> None:
    """64 x (ADD + MUL + TRANS + 2 FMA), of three data types."""
    values = {
        f"SQ_INSTS_VALU_{what}_{dtype}": float(number * 10**place)
        for place, dtype in enumerate(("F16", "F32", "F64"))
        for what, number in (("ADD", 1), ("MUL", 2), ("TRANS", 3), ("FMA", 4))
    }
    found = work_of({**values, **matrix(7)})
    assert one(found.vector_flops) == 64 * 14 * 111
    assert one(found.matrix_flops) == 512 * 7
    del values["SQ_INSTS_VALU_TRANS_F64"]
    assert one(work_of(values).vector_flops) == -1


BYTES = [
    (
        "gfx90a",
        {"TCC_EA_RDREQ": 1000, "TCC_EA_RDREQ_32B": 100},
        {"TCC_EA_WRREQ": 500, "TCC_EA_WRREQ_64B": 400},
        32 * 100 + 64 * 900,
        64 * 400 + 32 * 100,
    ),
    (
        "gfx942",
        {"TCC_BUBBLE_sum": 10, "TCC_EA0_RDREQ_sum": 1000, "TCC_EA0_RDREQ_32B_sum": 100},
        {"TCC_EA0_WRREQ_sum": 500, "TCC_EA0_WRREQ_64B_sum": 400},
        128 * 10 + 64 * (1000 - 10 - 100) + 32 * 100,
        64 * 400 + 32 * 100,
    ),
    (
        "gfx950",
        {"TCC_EA0_RDREQ_32B": 1, "TCC_EA0_RDREQ_64B": 2, "TCC_EA0_RDREQ_128B": 3},
        {"WRITE_SIZE": 1.5},
        32 + 128 + 384,
        1536,
    ),
    (
        "gfx1100",
        {f"GL2C_EA_RDREQ_{size}B": n for n, size in enumerate((32, 64, 96, 128), 1)},
        {"GL2C_MC_WRREQ": 7, "GL2C_EA_WRREQ_64B": 3},
        32 + 2 * 64 + 3 * 96 + 4 * 128,
        3 * 64 + 4 * 32,
    ),
    ("gfx1151", {"FETCH_SIZE": 10.625}, {"WRITE_SIZE": 1}, 10_880, 1024),
    (None, {"FETCH_SIZE": 2}, {"WRITE_SIZE": 1}, 2048, 1024),
]


@pytest.mark.parametrize(("architecture", "reads", "writes", "read", "written"), BYTES)
def test_bytes_at_the_fabric(
    architecture: str | None,
    reads: dict[str, float],
    writes: dict[str, float],
    read: int,
    written: int,
) -> None:
    both = work_of({**reads, **writes}, architecture)
    assert (one(both.read), one(both.written), one(both.launch_work().size)) == (
        read,
        written,
        read + written,
    )
    alone = work_of(reads, architecture)
    assert (one(alone.read), one(alone.written), one(alone.launch_work().size)) == (read, -1, -1)


@pytest.mark.parametrize(
    "reads",
    [
        {"TCC_BUBBLE_sum": 0, "TCC_EA0_RDREQ_sum": 65_612, "TCC_EA0_RDREQ_32B_sum": 0},
        {"FETCH_SIZE": 4100.75},
    ],
)
def test_reads_of_mi350_by_counters_that_miss_wide_requests_are_unknown(
    reads: dict[str, float],
) -> None:
    """What an MI350 counts for a copy of 8 MiB: half of it, if requests had 64 bytes."""
    writes = {"TCC_EA0_WRREQ_sum": 131_072, "TCC_EA0_WRREQ_64B_sum": 131_072}
    found = work_of({**reads, **writes}, "gfx950")
    assert (one(found.read), one(found.written), one(found.launch_work().size)) == (
        -1,
        8 * 2**20,
        -1,
    )


def test_an_mi350_that_requests_nothing_reads_nothing() -> None:
    assert one(work_of({"TCC_EA0_RDREQ_sum": 0}, "gfx950").read) == 0


def test_a_counter_alone_of_several_says_nothing() -> None:
    for name in ("TCC_EA0_RDREQ", "TCC_EA0_WRREQ", "TCC_BUBBLE"):
        found = work_of({name: 1000})
        assert (one(found.read), one(found.written)) == (-1, -1)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 2.0**54, 1e300])
def test_what_no_counter_can_say_is_unknown(value: float) -> None:
    assert one(work_of(matrix(value)).matrix_flops) == -1
    assert one(work_of({"FETCH_SIZE": value}).read) == -1


def test_more_than_an_integer_holds_is_unknown_not_wrapped() -> None:
    values = {MOPS + name: 2.0**53 for name in ("F16", "BF16", "F32", "F64", "F8")}
    found = work_of(values)
    assert one(found.matrix["bf16"]) == one(found.matrix_flops) == -1
    large = {MOPS + name: 2.0**51 for name in ("F16", "BF16", "F32", "F64", "F8")}
    assert one(work_of(large).matrix["bf16"]) == 2**60
    assert one(work_of(large).matrix_flops) == -1


def test_means_with_decimals_are_rounded_and_said() -> None:
    found = work_of(matrix(1365.333333))
    assert one(found.matrix_flops) == round(512 * 1365.333333)
    assert found.rounded.all()
    assert one(work_of(matrix(1365.5)).matrix_flops) == 512 * 1365 + 256
    assert not work_of(matrix(1365)).rounded.any()


def test_use_of_matrix_units_counts_cycles() -> None:
    found = work_of({"SQ_VALU_MFMA_BUSY_CYCLES": 608_000, "GRBM_GUI_ACTIVE": 1000})
    assert (one(found.busy), one(found.active)) == (608_000, 1000)


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_sum_is_that_of_its_parts(bf16: int, fp8: int, fp64: int) -> None:
    values = {**matrix(bf16), f"{MOPS}F8": float(fp8), f"{MOPS}F64": float(fp64)}
    assert one(work_of(values).matrix_flops) == 512 * (bf16 + fp8 + fp64)


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        *((f"gfx94{n}", "gfx94") for n in range(3)),
        *(("gfx90a", "gfx90a"), ("gfx90a:sramecc+:xnack-", "gfx90a"), ("GFX950", "gfx950")),
        *(("gfx908", "gfx908"), ("gfx1030", "rdna"), ("gfx1151", "rdna"), ("gfx1201", "rdna4")),
    ],
)
def test_architectures_have_families(architecture: str, family: str) -> None:
    found = family_of(architecture)
    assert found is not None
    assert found.id == family


def test_an_unknown_device_is_told_by_its_counters_where_only_one_has_them() -> None:
    def told(*names: str) -> str | None:
        found = family_by_counters(names)
        return found.id if found is not None else None

    assert told("TCC_EA_RDREQ_sum") == "gfx90a"
    assert told("GL2C_EA_RDREQ_96B", "FETCH_SIZE") == "rdna"
    assert told(f"{MOPS}F6F4", f"{MOPS}BF16") == "gfx950"
    assert told(f"{MOPS}BF16") is told(f"{MOPS}F8") is told() is told("TCC_EA0_RDREQ") is None
    assert told("TCC_EA_RDREQ", "GL2C_MC_WRREQ") is None
    assert told("TCC_BUBBLE_sum") is None
    found = family_by_counters(["TCC_BUBBLE_sum"], above_0=["TCC_BUBBLE_sum"])
    assert found is not None
    assert found.id == "gfx94"


def test_names_of_counters_have_one_form() -> None:
    assert plain_counter("TCC_EA0_RDREQ_32B_sum") == "TCC_EA0_RDREQ_32B"
    assert plain_counter(" GRBM_GUI_ACTIVE_max") == "GRBM_GUI_ACTIVE"
    assert plain_counter("FETCH_SIZE") == "FETCH_SIZE"


def test_the_table_is_whole() -> None:
    """Every type that a total needs has a formula, and every formula a family."""
    ids = {one.id for one in counter_table().family}
    for formula in counter_table().formula:
        assert set(formula.families) <= ids
        assert formula.terms
        assert all(isinstance(factor, int) for factor in formula.terms.values())
    for family in AMD:
        named = {f.quantity for f in counter_table().formula if f.holds_for(family)}
        assert {f"matrix.{one}" for one in family.matrix} <= named
        assert {f"vector.{one}" for one in family.vector} <= named
        used = {name for f in counter_table().formula if f.holds_for(family) for name in f.terms}
        assert {name for line in family.passes for name in line} <= used
        assert re.compile(family.pattern)


def test_every_type_of_a_total_has_a_rate_on_the_devices_of_the_family() -> None:
    """Where hardware counts a type that it cannot compute, it counts 0."""
    for spec in load_devices():
        family = family_of(spec.arch)
        if family not in AMD or not family.matrix or not spec.dense:
            continue
        rates = peaks_of(chosen(spec.id, None, SeenDevice(spec.product)))
        assert set(family.matrix) <= rates.keys(), spec.id
        if "fp6-or-fp4" in family.matrix and spec.peak("fp6") is not None:
            assert spec.peak("fp6") == spec.peak("fp4"), "they are counted together"


def test_the_page_has_every_line_to_record() -> None:
    for family in AMD:
        for options in family.options:
            assert options in PAGE, family.id
        assert family.hardware in PAGE
