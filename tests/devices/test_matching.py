"""Which row a device is: names, fingerprints, parts, options; never a silent default."""

import csv
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.conftest import shared_file, some
from traceflops.devices.device_facts import LONGEST_NAME, SeenDevice, by_name
from traceflops.devices.matching import by_fingerprint, chosen, match
from traceflops.devices.missing_input import GIVE_PEAK, MissingInput
from traceflops.devices.peaks import DTYPES, load_devices
from traceflops.devices.user_rate import given_rate
from traceflops.errors import UsageError
from traceflops.facts import fact

GIB = 1 << 30
IDS = [spec.id for spec in load_devices()]


def seen(
    name: str | None = None,
    compute: str | None = None,
    units: int | None = None,
    warp: int | None = None,
    memory: int | None = None,
) -> SeenDevice:
    major, minor = map(int, compute.split(".")) if compute else (None, None)
    return SeenDevice(name, major, minor, units, warp, memory)


ROW = "h100-sxm (H100 SXM 80 GB HBM3)"
H100 = seen("NVIDIA H100 80GB HBM3", "9.0", 132, 32, 85_024_243_712)
CPX = seen("AMD Instinct MI300X", "9.4", 38, 64, 206_141_652_992)
MIG = seen("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "8.0", 14, 32, 10 * GIB)


def device_names() -> list[dict[str, str]]:
    with shared_file("mfu/device_names.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def of_reference(row: dict[str, str]) -> SeenDevice:
    numbers = {k: int(row[k]) if row[k] else None for k in ("units", "warp_size", "mem_bytes")}
    return seen(
        row["name"],
        row["compute_capability"] or None,
        numbers["units"],
        numbers["warp_size"],
        numbers["mem_bytes"],
    )


def names_of_recordings() -> list[dict[str, str]]:
    """Names in public recordings and logs, the row of each (with ? if it needs confirmation)."""
    path = Path(__file__).with_name("device_names.csv")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def found_for(row: dict[str, str]) -> str:
    memory = int(float(row["memory_gib"]) * GIB) if row["memory_gib"] else None
    units = int(row["units"]) if row["units"] else None
    found = match(seen(row["name"], row["compute"] or None, units, None, memory))
    return found.spec.id + " ?" * (not found.confirmed) if found.spec is not None else ""


def test_names_of_recordings_select_their_row_or_none() -> None:
    rows = names_of_recordings()
    assert [(row["name"], found_for(row)) for row in rows] == [
        (row["name"], row["row"]) for row in rows
    ]
    known = [row for row in rows if row["row"]]
    assert len(rows) > 200
    assert len(known) >= 0.95 * len(rows)


def test_no_row_takes_the_name_of_one_after_it() -> None:
    for spec in load_devices():
        name = f"{spec.product} GPU" if spec.product.endswith("Laptop") else spec.product
        found = by_name(name)
        assert found is None or found.id == spec.id, f"{found.id} must stand after {spec.id}"


def test_names_of_the_reference_select_their_row_or_one_that_is_newer() -> None:
    reference = {row["peak_id"] for row in device_names()}
    for row in device_names():
        found = by_name(row["name"])
        if row["peak_id"] or (found is not None and found.id in reference):
            assert found is not None and found.id == row["peak_id"], row["name"]


def test_fingerprints_of_the_reference_fit_their_rows() -> None:
    reference = {one for row in device_names() for one in row["peak_ids_by_fingerprint"].split(";")}
    for row in device_names():
        fitting = {spec.id for spec in by_fingerprint(of_reference(row))} & reference
        assert fitting == {one for one in row["peak_ids_by_fingerprint"].split(";") if one}


def test_devices_of_the_reference_are_matched_or_explained() -> None:
    for row in device_names():
        found = match(of_reference(row))
        if row["peak_id"]:
            assert found.spec is not None and found.confirmed
            assert (found.spec.id, found.how) == (row["peak_id"], "name")
            assert found.confidence == ("high" if found.candidates else "medium")
        elif row["name"] in ("", "AMD Radeon Graphics"):
            assert (found.how, found.confidence, found.confirmed) == ("fingerprint", "medium", True)
        elif by_name(row["name"]) is None and not of_reference(row).sharing:
            assert (found.spec, found.how, found.confirmed) == (None, None, False)
            assert row["name"] in found.explanation


def test_patterns_are_tried_in_order() -> None:
    for name, expected in [
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A10", "a10"),
        ("Tesla V100S-PCIE-32GB", "v100s-pcie"),
        ("Tesla V100-PCIE-16GB", "v100-pcie"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("AMD Instinct MI250", "mi250-gcd"),
        ("NVIDIA H100", "h100-96-hbm2e"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER Laptop GPU", None),
        ("NVIDIA GeForce RTX 407", None),
        ("NVIDIA GeForce RTX 40700", None),
        ("A NVIDIA GeForce RTX 4070", None),
        ("NVIDIA RTX A5000-12Q", "rtx-a5000"),
        ("nvidia h100 pcie", None),
        ("", None),
        (None, None),
    ]:
        found = by_name(name)
        assert (found.id if found is not None else None) == expected, name


def test_name_and_properties_agree() -> None:
    found = match(H100)
    assert found.explanation == (
        "The name matches h100-sxm (H100 SXM 80 GB HBM3), and the trace agrees: "
        "compute capability 9.0, 132 SMs, warp size 32, 79.2 GiB."
    )
    assert (found.how, found.confidence, found.confirmed) == ("name", "high", True)
    assert (found.peak("bf16"), found.bandwidth) == (989_400, 3350)
    assert found.why_no_peak("bf16") is None
    lack = found.why_no_peak("fp4")
    assert lack == MissingInput(fact("device.rate-unknown", dtype="fp4", row=ROW), GIVE_PEAK)


@pytest.mark.parametrize(
    ("device", "objection"),
    [
        (seen("NVIDIA H100 80GB HBM3", "9.0", 114, 32, 80 * GIB), "114 SMs (not 132)"),
        (seen("NVIDIA H100 80GB HBM3", "8.0", 132, 32, 80 * GIB), "capability 8.0 (not 9.0)"),
        (seen("NVIDIA H100 80GB HBM3", "9.0", 132, 64, 80 * GIB), "warp size 64 (not 32)"),
        (seen("NVIDIA H100 80GB HBM3", "9.0", 132, 32, 71 * GIB), "71 GiB (not 80 GB)"),
        (seen("AMD Instinct MI300X", "9.4", 300, 64), "300 CUs (not 304)"),
        (seen("AMD Instinct MI210", "9.0", 52, 64, 64 * GIB), "52 CUs (not 104)"),
        (seen("NVIDIA H20", "9.0", 78, 32, 140 * GIB), "140 GiB (not 96 GB)"),
        (seen("NVIDIA H100 PCIe Laptop GPU"), "the laptop version"),
        (seen("NVIDIA H100 NVL Max-Q"), "less power"),
        (seen("NVIDIA A10-24Q", "8.6", 72, 32, 24 * GIB), "a virtual GPU"),
        (seen("NVIDIA H800 NVL"), "another version"),
        (seen("A100-SXM-64GB"), "a custom board"),
        (seen("NVIDIA A100-SXM4-80GB MIG 3g.40gb"), "a MIG slice"),
        (seen("TPU v7"), "2 cores"),
    ],
)
def test_a_name_alone_is_no_proof(device: SeenDevice, objection: str) -> None:
    found = match(device)
    assert found.spec is not None
    assert (found.how, found.confidence, found.confirmed) == ("name", "low", False)
    assert objection in found.explanation
    assert f"--device {found.spec.id}" in found.explanation
    assert [found.peak(dtype) for dtype in DTYPES] == [None] * len(DTYPES)
    assert found.bandwidth is None
    assert found.why_no_peak("bf16") == found.lack
    assert found.lack.what == found.why and found.lack.how == found.options is not None


@pytest.mark.parametrize(
    ("device", "whole", "share", "bf16"),
    [
        (CPX, "mi300x", "a partition with 38 of 304 CUs", 163_425),
        (seen("AMD Instinct MI300X", "9.4", 76, 64), "mi300x", "76 of 304 CUs", 326_850),
        (seen("AMD Instinct MI300A", "9.4", 38, 64), "mi300a", "38 of 228 CUs", 163_433),
        (seen("AMD Instinct MI355X", "9.5", 32, 64), "mi355x", "32 of 256 CUs", 314_575),
        (MIG, "a100-sxm-80", "a MIG slice with 14 of 108 SMs", 40_444),
    ],
)
def test_a_part_is_scaled_and_needs_confirmation(
    device: SeenDevice, whole: str, share: str, bf16: int
) -> None:
    found = match(device)
    assert (found.how, found.confirmed, found.peak("bf16")) == ("name", False, None)
    assert share in found.explanation
    assert found.spec is not None and found.spec.peak("bf16") == bf16
    confirmed = chosen(whole, None, device)
    assert (confirmed.how, confirmed.peak("bf16"), confirmed.bandwidth) == ("given", bf16, None)
    assert "present" in confirmed.explanation


@pytest.mark.parametrize(
    ("units", "device_id", "bf16"), [(104, "mi250-gcd", 181_050), (110, "mi250x-gcd", 191_500)]
)
def test_of_a_name_that_two_products_have_the_units_decide(
    units: int, device_id: str, bf16: int
) -> None:
    for name in ("AMD Instinct MI250X/MI250", "AMD Instinct MI250X / MI250"):
        found = match(seen(name, "9.0", units, 64, 64 * GIB))
        assert found.spec is not None
        assert (found.spec.id, found.confirmed, found.peak("bf16")) == (device_id, True, bf16)
        assert "is shared by mi250x-gcd and mi250-gcd, but" in found.explanation
        unknown = match(seen(name))
        assert (unknown.spec, unknown.confirmed) == (None, False)
        assert "--device selects a row" in unknown.explanation


def test_another_version_of_a_product_needs_confirmation() -> None:
    found = match(seen("NVIDIA H800 NVL", "9.0", 132, 32, 79 * GIB))
    assert (found.confirmed, found.peak("bf16")) == (False, None)
    assert "it is another version of the H800" in found.explanation


def test_a_row_of_that_very_version_needs_none() -> None:
    for name in ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 2060 with Max-Q Design"):
        assert match(seen(name)).confirmed
    assert not match(seen("NVIDIA RTX A5000-12Q")).confirmed


@pytest.mark.parametrize("units", [48, 96])
def test_a_driver_may_count_pairs_of_cus(units: int) -> None:
    device = seen("AMD Radeon RX 7900 XTX", "11.0", units, 32, 24 * GIB - 2**24)
    found = match(replace(device, clock_hz=2_498_000_000))
    assert (found.confidence, found.confirmed) == ("high", True)
    assert found.by_clock == Fraction(96 * 512 * 2498, 1000)


def test_memory_of_the_machine_has_any_size() -> None:
    for memory in (31 * GIB, 119 * GIB):
        found = match(seen("NVIDIA GB10", "12.1", 48, 32, memory))
        assert (found.confidence, found.bandwidth) == ("high", 273)


def test_a_generic_name_says_its_maker() -> None:
    nvidia = seen("", "12.0", 36, 32, 16 * GIB - 2**26)
    assert [spec.id for spec in by_fingerprint(nvidia)] == ["rtx-5060-ti"]
    assert by_fingerprint(replace(nvidia, name="AMD Radeon Graphics")) == ()


def test_a_mig_slice_of_a_name_without_a_row_says_so() -> None:
    found = match(seen("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "9.0", 16, 32, 10 * GIB))
    assert "which is a MIG slice" in found.explanation


def test_a_mig_slice_of_a_name_without_a_row_can_be_given() -> None:
    device = seen("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "9.0", 16, 32, 10 * GIB)
    assert match(device).spec is None
    assert chosen("h100-sxm", None, device).peak("bf16") == 989_400 * 16 // 132


def test_without_a_name_the_only_row_that_fits_is_taken() -> None:
    found = match(seen("", "9.4", 304, 64, 206_141_652_992))
    assert found.spec is not None and found.spec.id == "mi300x"
    assert (found.how, found.confirmed, found.peak("bf16")) == ("fingerprint", True, 1_307_400)
    assert found.explanation == (
        "The trace has no GPU name, but compute capability 9.4, 304 CUs, 192 GiB match only mi300x."
    )


def test_rows_of_one_peak_are_taken_together() -> None:
    found = match(seen("AMD Radeon Graphics", "9.0", 104, 64, 68_702_699_520))
    assert [spec.id for spec in found.candidates] == ["mi210", "mi250-gcd"]
    assert (found.peak("bf16"), found.bandwidth, found.confirmed) == (181_000, 1638, True)
    assert found.spec is not None
    assert found.spec.product == "Instinct MI210 or Instinct MI250 (one GCD)"
    assert found.spec.one_device_is == "GPU or GCD"
    assert "'AMD Radeon Graphics' identifies no product" in found.explanation
    assert "mi210 and mi250-gcd, which have equal rates" in found.explanation


@pytest.mark.parametrize(
    ("units", "ids"), [(104, ["mi210", "mi250-gcd"]), (110, ["mi250x-gcd"]), (60, [])]
)
def test_the_name_of_a_series_leaves_its_products_to_the_units(units: int, ids: list[str]) -> None:
    found = match(replace(seen("mi200", "9.0", units, 64, None), architecture="gfx90a"))
    assert [spec.id for spec in found.candidates] == ids
    assert found.bandwidth == (1638 if ids else None)


def test_a_bandwidth_on_which_candidates_differ_is_unknown() -> None:
    found = match(seen(None, "8.0", 108, 32, 84_990_623_744))
    assert [spec.id for spec in found.candidates] == [
        *("a100-pcie-80", "a100-sxm-80", "a800-pcie-80", "a800-sxm-80")
    ]
    assert (found.peak("bf16"), found.bandwidth) == (312_000, None)


def test_rows_of_several_peaks_are_only_offered() -> None:
    found = match(seen("", "7.0", 80, 32, 34_087_305_216))
    assert (found.spec, found.confirmed, found.how) == (None, False, "fingerprint")
    ids = ["quadro-gv100", "v100s-pcie", "v100-pcie", "v100-sxm2"]
    assert [spec.id for spec in found.candidates] == ids
    assert "v100s-pcie, v100-pcie and v100-sxm2 with different rates" in found.explanation


def test_the_clock_parts_rows_of_several_peaks() -> None:
    v100 = seen("", "7.0", 80, 32, 34_087_305_216)
    found = match(replace(v100, clock_hz=1_380_000_000))
    assert found.spec is not None
    assert (found.spec.id, found.confidence, found.how) == ("v100-pcie", "medium", "fingerprint")
    assert "31.7 GiB, 1,380 MHz match only v100-pcie." in found.explanation
    for unlike in (1_379_000_000, None, -1):
        assert match(replace(v100, clock_hz=unlike)).spec is None


def test_warp_size_parts_hopper_from_gfx90a() -> None:
    assert by_fingerprint(seen("", "9.0", 104, 32, 64 * GIB)) == ()
    assert len(by_fingerprint(seen("", "9.0", 104, 64, 64 * GIB))) == 2


@pytest.mark.parametrize(
    ("device", "words", "candidates"),
    [
        (seen(), "no GPU name and no other", []),
        (
            seen("ip discovery", units=304, warp=64),
            "'ip discovery' identifies no product, and 304 CUs",
            [],
        ),
        (seen("", "9.4", 38, 64, 48 * GIB), "may be a partition", ["mi300a", "mi300x", "mi325x"]),
        (seen("NVIDIA GeForce RTX 3080", "8.6", 68, None, 20 * GIB), "8.6, 68 SMs", []),
        (
            seen("NVIDIA RTX PRO 4500 Blackwell Server Edition", "12.0", 82, 32, 31 * GIB),
            "match rtx-pro-4500, but it may be another product",
            ["rtx-pro-4500"],
        ),
        (
            seen("NVIDIA A100X", "8.0", 108, 32, 39 * GIB),
            "match a100-pcie-40, a100-sxm-40 and a800-40, but",
            ["a100-pcie-40", "a100-sxm-40", "a800-40"],
        ),
    ],
)
def test_unknown_stays_unknown(device: SeenDevice, words: str, candidates: list[str]) -> None:
    found = match(device)
    assert (found.spec, found.how, found.confidence) == (None, None, "none")
    assert words in found.explanation
    assert "--device" in found.explanation and "--peak" in found.explanation
    assert [spec.id for spec in found.candidates] == candidates


def test_a_device_without_public_rates_says_so() -> None:
    found = match(seen("AMD Instinct MI308X", "9.4", 80, 64, 192 * GIB))
    assert (found.confirmed, found.peak("bf16"), found.bandwidth) == (True, None, 5300)
    assert "its rates are not public" in found.explanation
    assert chosen(None, 100, found.seen).peak("bf16") == 100_000


def test_what_is_not_positive_is_not_known() -> None:
    found = match(SeenDevice("AMD Instinct MI350X", 0, 0, 256, 0, 0))
    assert (found.confirmed, found.confidence) == (True, "medium")
    assert found.explanation.endswith("and the trace agrees: 256 CUs.")


def test_the_row_of_a_trace() -> None:
    row = {"product": "Tesla T4", "compute_major": 7, "compute_minor": 5, "sm_count": 40}
    device = SeenDevice.of(row | {"memory_bytes": 15_828_320_256, "warp_size": None, "device": 0})
    assert device == SeenDevice("Tesla T4", 7, 5, 40, None, 15_828_320_256)
    assert match(device).confidence == "high"


def test_a_given_device_is_taken() -> None:
    found = chosen("a100-sxm-80", None, seen())
    assert (found.how, found.confirmed, found.peak("bf16")) == ("given", True, 312_000)
    assert found.explanation == "--device selects a100-sxm-80 (A100 SXM 80 GB)."
    assert chosen(" A100-SXM-80 ", None, seen()).spec == found.spec
    despite = chosen("a100-sxm-80", None, H100)
    assert despite.peak("bf16") == 312_000
    assert despite.why == despite.contradicts
    assert despite.explanation == (
        "--device selects a100-sxm-80 (A100 SXM 80 GB), although the trace says "
        "'NVIDIA H100 80GB HBM3'."
    )
    unnamed = chosen("a100-sxm-80", None, replace(H100, name=None))
    assert "although the trace says compute capability 9.0 (not 8.0), 132 SMs" in (
        unnamed.explanation
    )
    assert found.contradicts is chosen("h100-sxm", None, H100).contradicts is None


def test_a_given_device_is_held_against_the_product_that_the_properties_tell() -> None:
    mi300x = SeenDevice(None, 9, 4, 304, 64, 192 * 2**30)
    by_properties = fact("device.product-by-properties", product="Instinct MI300X")
    assert chosen("h100-sxm", None, mi300x).contradicts == (
        fact("device.contradicted", row=ROW, seen=(by_properties,))
    )


def test_nothing_given_is_the_match() -> None:
    assert chosen(None, None, H100) == match(H100)


def test_a_given_rate_is_taken_for_every_type() -> None:
    unknown = chosen(None, 100.5, seen("Some GPU", "8.6", 20))
    assert {unknown.peak(dtype) for dtype in DTYPES} == {100_500}
    assert unknown.spec is not None
    assert (unknown.spec.product, unknown.spec.source) == ("Some GPU", "--peak")
    assert (unknown.spec.confidence, unknown.bandwidth, unknown.how) == ("U", None, "given")
    known = chosen(None, 800, H100)
    assert (known.peak("bf16"), known.peak("fp4"), known.bandwidth) == (800_000, 800_000, 3350)
    assert "--peak sets 800 TFLOP/s, and the rest is h100-sxm" in known.explanation
    unconfirmed = chosen(None, 800, CPX)
    assert (unconfirmed.peak("bf16"), unconfirmed.bandwidth) == (800_000, None)
    both = chosen("h200-sxm", 800, seen())
    assert (both.peak("bf16"), both.bandwidth) == (800_000, 4800)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("H100 SXM", "h100-sxm"),
        ("h100_pcie", "h100-pcie"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("nvidia geforce rtx 4090", "rtx-4090"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("NVIDIA A10", "a10"),
        ("amd mi300x", "mi300x"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("Gaudi 3", "gaudi3"),
        ("R9700", "ai-pro-r9700"),
        ("google tpu v5e", "tpu-v5e"),
    ],
)
def test_a_device_may_be_given_in_any_spelling(text: str, expected: str) -> None:
    assert chosen(text, None, seen()).spec == chosen(expected, None, seen()).spec


def test_every_id_and_product_names_its_own_row_in_any_spelling() -> None:
    for spec in some(load_devices(), 3):
        for text in (spec.id, spec.id.replace("-", " ").upper(), f"{spec.vendor} {spec.product}"):
            found = chosen(text, None, seen()).spec
            assert found is not None and found.id == spec.id, text


@pytest.mark.parametrize(
    ("given_id", "near"),
    [
        ("h100", "h100-nvl, h100-pcie, h100-sxm, h100-96-hbm2e"),
        ("NVIDIA H100", "similar: h100-96-hbm2e, h100-nvl, h100-pcie, h100-sxm"),
        (" nvidia h100 ", "h100-nvl, h100-pcie, h100-sxm"),
        ("H200", "similar: h200-sxm, gh200, h200-nvl"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "similar: a100-sxm-80"),
        ("AMD Instinct MI250X/MI250", "mi250-gcd, mi250x-gcd"),
        ("rtx 4090 x", "rtx-4090"),
        ("NVIDIA", "nothing"),
        ("mi300", "mi300a, mi300x"),
        ("64GB", "agx-orin-64gb"),
        ("mi250x", "mi250x-gcd"),
        ("a100-sxm-81", "a100-sxm-80"),
        ("zzz", "nothing"),
        ("", "nothing"),
        ("x\x1b[31m\n" * 10_000, "nothing"),
    ],
)
def test_an_unknown_id_is_refused_with_near_ones(given_id: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(given_id, None, seen())
    assert near in caught.value.message
    assert caught.value.message.isprintable() and len(caught.value.message) < 300
    assert "traceflops devices" in caught.value.hint


@pytest.mark.parametrize(
    ("peak", "message", "hint"),
    [
        (989e12, "too large", "for FLOP/s, use --peak 989"),
        (312e12, "too large", "for FLOP/s, use --peak 312"),
        (989_400, "too large", "for GFLOP/s, use --peak 989.4"),
        (312e6, "too large", "for MFLOP/s, use --peak 312"),
        (0.9, "too small", "for PFLOP/s, use --peak 900"),
        (0.312, "too small", "for PFLOP/s, use --peak 312"),
        (1e30, "too large", "such as --peak 989.4"),
        (1e-9, "too small", "such as --peak 989.4"),
        (0, "not a rate", "such as --peak 989.4"),
        (-312, "not a rate", "such as --peak 989.4"),
        (float("nan"), "not a rate", "such as --peak 989.4"),
        (float("inf"), "not a rate", "such as --peak 989.4"),
    ],
)
def test_a_rate_that_cannot_be_meant_is_refused(peak: float, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        given_rate(peak)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("tflops", "rate"), [(1, 1000), (989.4, 989_400), (181.05, 181_050), (100_000, 100_000_000)]
)
def test_a_given_rate_is_whole_flops_per_nanosecond(tflops: float, rate: int) -> None:
    assert given_rate(tflops) == rate


@pytest.mark.parametrize(
    "name",
    [
        "A100" * 300_000,
        "A100" * 60,
        "x" * 1_000_000,
        "NVIDIA H100 PCIe" + " " * LONGEST_NAME,
        "\x00\x1b[2J\r\n\u202e",
        "[/red][bold]{}<script>%s",
        "\ud800 MI210"[:1],
        " ",
        "((((((((((",
    ],
)
def test_hostile_names_are_unknown_quickly(name: str) -> None:
    began = time.process_time()
    found = match(seen(name, "9.0", 132, 32, 80 * GIB))
    assert time.process_time() - began < 0.5
    assert (found.spec, found.confirmed) == (None, False)
    assert found.explanation.isprintable()
    assert len(found.explanation) < 400


NAMES = st.one_of(
    st.none(),
    st.text(),
    st.builds(
        lambda *parts: "".join(parts),
        st.sampled_from(["", "NVIDIA ", "AMD Instinct ", "Tesla ", "\x1b["]),
        st.sampled_from(["A100-SXM4-80GB", "H100 80GB HBM3", "MI300X", "A10", "T4", "", "GB200"]),
        st.one_of(st.sampled_from(["", " MIG 1g.10gb", "-24Q", " Laptop GPU", " D"]), st.text()),
    ),
)
NUMBERS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 4, 8, 9, 14, 32, 38, 64, 104, 108, 132, 304, 80 * GIB, 64 * GIB]),
)
SEEN = st.builds(SeenDevice, NAMES, *[NUMBERS for _ in range(5)])


@given(SEEN)
def test_there_is_a_row_or_an_explanation(device: SeenDevice) -> None:
    found = match(device)
    assert found.explanation.endswith(".") and found.explanation.isprintable()
    assert found == match(device)
    if found.confirmed:
        assert found.spec is not None and found.how is not None
        assert found.spec.part == 1
    else:
        assert found.confidence in ("low", "none")
        assert "--device" in found.explanation
        assert all(found.peak(dtype) is None for dtype in DTYPES)
    for dtype in (*DTYPES, "unheard of"):
        assert (found.peak(dtype) is None) == (found.why_no_peak(dtype) is not None)


@given(SEEN, st.sampled_from(IDS), st.floats(1, 100_000))
def test_options_always_win(device: SeenDevice, device_id: str, peak: float) -> None:
    by_id = chosen(device_id, None, device)
    assert by_id.confirmed and by_id.spec is not None and by_id.spec.id == device_id
    by_rate = chosen(None, peak, device)
    assert by_rate.peak("bf16") == round(peak * 1000)
    assert by_rate.explanation.isprintable()


@given(NUMBERS, NUMBERS)
def test_a_mig_slice_is_never_confirmed(units: int | None, memory: int | None) -> None:
    device = SeenDevice("NVIDIA A100-SXM4-80GB MIG 7g.80gb", 8, 0, units, 32, memory)
    assert not match(device).confirmed
