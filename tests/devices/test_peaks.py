"""The device table: equal to the shared reference, dense, and consistent with itself."""

import copy
import csv
import datetime
import re
import tomllib
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from importlib import resources
from itertools import combinations

import pytest

from tests.conftest import shared_file
from traceflops.devices.peaks import (
    DTYPES,
    DeviceSpec,
    Memory,
    find,
    load_devices,
    rate_text,
    unclear_names,
)

DEVICES = load_devices()

OUTSIDE_THE_FORMULA = {"b200": 0.0588, "gb200": 0.0270, "gaudi3": -0.0857, "l40s": 0.0121}
"""Parts that are rated at another clock than their maximum: (formula - rate) / rate."""

MULTIPLES = {
    "fp64": Fraction(1, 2),
    "fp64_matrix": Fraction(1, 2),
    "fp32": Fraction(1, 2),
    "fp32_matrix": Fraction(1, 2),
    "tf32": Fraction(1, 2),
    "fp16": Fraction(1),
    "bf16": Fraction(1),
    "fp8": Fraction(2),
    "fp6": Fraction(4),
    "fp4": Fraction(4),
    "int8": Fraction(2),
}
"""The most that a data type's dense rate can be, as a multiple of that of bf16 (or fp16)."""
GEFORCE: dict[str, int | Fraction] = {"int8": 4, "fp4": 8}
"""fp32 accumulation halves bf16 and fp8 only."""
MORE: dict[tuple[str, str], int | Fraction] = {
    ("b300", "fp4"): Fraction(14000, 2250),  # more fp4 units than a B200
    ("gb300", "fp4"): 6,
    ("mi100", "fp16"): 2,  # the first with bf16, at half the rate of fp16
    ("trn2", "tf32"): 1,
    ("gaudi3", "bf16"): Fraction(1835, 1677),  # rated at 1.75 GHz and not at its clock
    ("gaudi3", "fp8"): Fraction(1835, 1677),
}


def reference() -> list[dict[str, str]]:
    with shared_file("mfu/peaks.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return sorted(rows, key=lambda row: int(row["match_order"]))


def or_blank(value: object) -> str:
    return "" if value is None else str(value)


def as_reference(spec: DeviceSpec) -> dict[str, str | Decimal | None]:
    """Return a row of ours with the columns of the reference, numbers as numbers."""
    rates = {dtype: spec.peak(dtype) for dtype in DTYPES if dtype != "fp32_matrix"}
    return {
        "id": spec.id,
        "vendor": spec.vendor,
        "product": spec.product,
        "arch": spec.arch,
        "compute_capability": ".".join(map(str, spec.compute or ())),
        "units": or_blank(spec.units),
        "match_regex": spec.pattern,
        "boost_mhz": or_blank(spec.clock_mhz),
        "flops_per_clk_per_unit": or_blank(spec.flops_per_clock),
        "mem_gb": str(spec.memories[0].gb),
        "mem_gb_other": "".join(str(memory.gb) for memory in spec.memories[1:]),
        "mem_bw_gbps": str(spec.memories[0].bandwidth),
        "link_gbps": None if spec.link is None else Decimal(float(spec.link)),
        "one_device_is": spec.one_device_is,
        "confidence": spec.confidence,
        **{k: None if rate is None else Decimal(rate) / 1000 for k, rate in rates.items()},
    }


def test_the_table_is_the_reference_row_by_row() -> None:
    numbers = {*DTYPES, "link_gbps"}
    expected = [
        {
            key: (Decimal(row[key]) if row[key] else None) if key in numbers else row[key]
            for key in as_reference(DEVICES[-1])
        }
        for row in reference()
    ]
    ids = [row["id"] for row in expected]
    assert [as_reference(spec) for spec in DEVICES if spec.id in ids] == expected


def test_the_architecture_of_an_amd_device_is_its_gfx() -> None:
    for row in reference():
        assert row["gfx"] == (row["arch"] if row["vendor"] == "amd" else "")


def test_memory_seen_in_traces_fits() -> None:
    seen = [(r["id"], int(n)) for r in reference() for n in r["mem_bytes_seen"].split(";") if n]
    assert len(seen) > 15
    specs = {spec.id: spec for spec in DEVICES}
    for device, seen_bytes in seen:
        assert any(memory.fits(seen_bytes) for memory in specs[device].memories), device


def test_a_row_is_whole() -> None:
    for spec in DEVICES:
        assert re.fullmatch(r"[a-z0-9-]+", spec.id)
        assert re.compile(spec.pattern)
        assert spec.source
        assert isinstance(spec.date, datetime.date)
        assert set(spec.dense) <= set(DTYPES)
        assert spec.confidence in ("A", "B") if spec.dense else spec.confidence == "D"
        assert all(type(rate) is int and rate > 0 for rate in spec.dense.values())
        assert all(memory.gb != 0 and memory.bandwidth > 0 for memory in spec.memories)
        assert spec.one_device_is in ("GPU", "GCD", "chip", "card")
        assert all(text.isprintable() for text in (spec.product, spec.source, spec.note)), spec.id


def test_ids_are_unique() -> None:
    assert len({spec.id for spec in DEVICES}) == len(DEVICES) > 200


def test_rates_follow_from_units_and_clock() -> None:
    """Those of bf16 (fp16) are units x clock_mhz x flops_per_clock."""
    for spec in DEVICES:
        if spec.formula is None:
            continue
        rate = spec.peak("bf16") or spec.peak("fp16")
        assert rate is not None, spec.id
        difference = float(spec.formula / rate - 1)
        expected = OUTSIDE_THE_FORMULA.get(spec.id, 0)
        assert difference == pytest.approx(expected, abs=1e-4 if expected else 0.012), spec.id


def base(spec: DeviceSpec) -> Fraction | None:
    rate = spec.peak("bf16") or spec.peak("fp16")
    return spec.formula if spec.formula is not None else None if rate is None else Fraction(rate)


def test_no_rate_is_sparse() -> None:
    """A figure with 2:4 sparsity would be twice what the units can do."""
    for spec in DEVICES:
        reference_rate = base(spec)
        assert (reference_rate is not None) == bool(spec.has_matrix_units), spec.id
        more = GEFORCE if spec.product.startswith("GeForce") else {}
        for dtype, rate in spec.dense.items():
            if reference_rate is None:
                continue
            most = MORE.get((spec.id, dtype), more.get(dtype, MULTIPLES[dtype]))
            assert rate <= Fraction(108, 100) * most * reference_rate, f"{spec.id} {dtype}: sparse?"


def test_headline_figures_that_are_sparse_are_nowhere() -> None:
    sparse: dict[str, tuple[float, float]] = {
        "h100-sxm": (1979, 3958),
        "h100-pcie": (1513, 3026),
        "l4": (242, 485),
    }
    sparse |= {"a100-sxm-80": (624, 1248), "rtx-a6000": (309.7, 619), "mi300x": (2614.9, 5229.8)}
    for device_id, (bf16, byte) in sparse.items():
        spec = find(device_id)
        assert spec is not None
        assert bf16 * 1000 not in {spec.peak("bf16"), spec.peak("fp16")}
        assert byte * 1000 not in spec.dense.values()


@pytest.mark.parametrize(
    ("device_id", "dtype", "tflops"),
    [
        ("h100-sxm", "bf16", "989.4"),
        ("h100-pcie", "bf16", "756"),
        ("a100-sxm-80", "bf16", "312"),
        ("a10g", "bf16", "70"),
        ("v100-sxm2", "fp16", "125"),
        ("v100-sxm2", "bf16", None),
        ("v100-sxm2", "tf32", None),
        ("mi300x", "fp8", "2614.9"),
        ("mi250x-gcd", "bf16", "191.5"),
        ("mi210", "fp32", "22.6"),
        ("mi210", "fp32_matrix", "45.3"),
        ("t4", "fp64", "0.25"),
        ("mi308x", "bf16", None),
        ("h100-sxm", "fp4", None),
        ("h100-sxm", "no such type", None),
        # dense figures of NVIDIA's whitepapers and datasheets, half of sparse ones; AMD's pages
        ("rtx-5080", "bf16", "112.6"),
        ("rtx-5080", "fp4", "900.4"),
        ("rtx-5070-ti", "fp16", "87.9"),
        ("rtx-5070", "fp16", "61.7"),
        ("rtx-4080", "fp16", "97.5"),
        ("rtx-4080", "fp8", "194.9"),
        ("rtx-3080-10gb", "fp16", "59.5"),
        ("rtx-3080-10gb", "int8", "238.1"),
        ("rtx-3070", "fp16", "40.6"),
        ("rtx-2080-ti", "fp16", "53.8"),
        ("rtx-2080-ti", "int8", "215.2"),
        ("rtx-2080-ti", "bf16", None),
        ("rtx-a5000", "bf16", "111.1"),
        ("rtx-a4000", "fp16", "76.7"),
        ("rtx-5000-ada", "fp8", "522.2"),
        ("rtx-4000-ada", "fp8", "213.8"),
        ("quadro-rtx-6000", "fp16", "130.5"),
        ("quadro-gv100", "fp16", "118.5"),
        ("titan-v", "fp16", "110"),
        ("l20", "bf16", "119.5"),
        ("a800-sxm-80", "bf16", "312"),
        ("a16", "int8", "35.9"),
        ("p100-sxm2-16gb", "fp64", "5.3"),
        ("p100-sxm2-16gb", "fp16", None),
        ("k80", "fp32", "4.37"),
        ("rx-7900-xtx", "fp16", "122.8"),
        ("rx-9070-xt", "fp8", "389.3"),
        ("ai-pro-r9700", "fp16", "191.4"),
        ("arc-b580", "int8", "233.5"),
        # half of NVIDIA's 770 sparse fp4 TOPS, a quarter of that for bf16
        ("rtx-pro-4000-sff", "fp4", "385.1"),
        ("rtx-pro-4000-sff", "bf16", "96.3"),
        # rates below 1 TFLOP/s have three digits, too: 4 FLOP x 6 SMs x 1762 MHz
        ("rtx-a400", "fp64", "0.042"),
        ("rx-9070-xt", "fp64", None),
    ],
)
def test_peaks(device_id: str, dtype: str, tflops: str | None) -> None:
    spec = find(device_id)
    assert spec is not None
    peak = spec.peak(dtype)
    assert (None if peak is None else rate_text(peak)) == tflops


def test_matrix_units_are_known_where_rates_are() -> None:
    expected = {"h100-sxm": True, "gtx-1660-ti": False, "p100-pcie-16gb": False, "mi308x": None}
    assert {one: find(one).has_matrix_units for one in expected} == expected  # type: ignore[union-attr]


def test_bandwidth_is_known_where_the_memory_is() -> None:
    v100, gh200, h100 = find("v100-sxm2"), find("gh200"), find("h100-sxm")
    assert v100 is not None and gh200 is not None and h100 is not None
    assert v100.memories == (Memory(32, 900), Memory(16, 900))
    assert v100.bandwidth == 900
    assert gh200.bandwidth is None
    assert gh200.with_memory(95 << 30).bandwidth == 4000
    assert gh200.with_memory(143 << 30).bandwidth == 4900
    assert gh200.with_memory(10 << 30) == gh200.with_memory(None) == gh200
    assert h100.balance("bf16") == Fraction(989_400, 3350)
    assert h100.balance("fp4") is None
    max_q = find("gtx-1650-max-q")
    assert max_q is not None and max_q.bandwidth is None  # sold with GDDR5 and GDDR6
    assert gh200.balance("bf16") is None


@pytest.mark.parametrize(
    ("device_id", "units", "bf16"),
    [
        ("mi300x", 38, 163_425),
        ("mi300x", 76, 326_850),
        ("mi300x", 304, 1_307_400),
        ("mi300a", 38, 163_433),
        ("a100-sxm-80", 14, 40_444),
    ],
)
def test_a_part_has_a_share_of_the_rate(device_id: str, units: int, bf16: int) -> None:
    spec = find(device_id)
    assert spec is not None and spec.units is not None
    part = spec.with_units(units)
    assert part.peak("bf16") == bf16
    assert part.part == Fraction(units, spec.units)
    assert (part.bandwidth, part.link, part.units) == (None, None, units)


def test_each_series_is_told_apart() -> None:
    text = resources.files("traceflops.devices").joinpath("series.toml").read_text("utf-8")
    tables = tomllib.loads(text)["series"]
    models = Counter(spec.series for spec in DEVICES if spec.series)
    assert sorted(models.values()) == sorted(len(table["models"]) for table in tables)


def test_partitions_divide_the_device() -> None:
    divided = {s.id: (s.units or 0) / s.partition_units for s in DEVICES if s.partition_units}
    assert divided == {"mi300a": 6, "mi300x": 8, "mi325x": 8, "mi350x": 8, "mi355x": 8}


def test_generic_names_are_in_lower_case() -> None:
    generic_names = unclear_names().generic_names
    assert "" in generic_names
    assert all(name == name.strip().lower() for name in generic_names)


def test_rows_can_be_copied_and_compared() -> None:
    assert copy.deepcopy(DEVICES) == DEVICES
    assert all(one != other for one, other in combinations(DEVICES, 2))
