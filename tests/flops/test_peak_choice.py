"""The peak that options ask for: never a default, never a sparse figure."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.conftest import some
from traceflops.devices.peaks import load_devices
from traceflops.errors import UsageError
from traceflops.facts import fact
from traceflops.flops.analytic.run_utilisation import choose_peak, other_peaks, plain_dtype


@pytest.mark.parametrize(
    ("device", "tflops", "dtype", "text"),
    [
        ("h100-sxm", None, "bf16", "bf16 dense 989.4 TFLOP/s"),
        ("H100-SXM", None, "torch.float8", "fp8 dense 1,978.9 TFLOP/s"),
        (None, Fraction(1300), None, "given 1,300 TFLOP/s"),
        (None, Fraction("989.5"), "bf16", "bf16 given 989.5 TFLOP/s"),
        ("h100-sxm", Fraction(900), "bf16", "bf16 given 900 TFLOP/s"),
        ("h100-sxm", Fraction(900), "zz", "given 900 TFLOP/s"),
    ],
)
def test_a_peak(device: str | None, tflops: Fraction | None, dtype: str | None, text: str) -> None:
    found = choose_peak(device, tflops, dtype)
    assert found.peak is not None
    assert (found.peak.text, found.lack) == (text, None)


def test_no_row_and_type_has_a_peak_that_the_table_lacks() -> None:
    for spec in some(load_devices(), 10):
        for dtype in ("bf16", "fp16", "fp8", "fp4", "tf32", "int8", "nf4"):
            rate = None if dtype == "int8" else spec.peak(dtype)
            found = choose_peak(spec.id, None, dtype)
            assert (found.peak.flops_per_ns if found.peak else None) == rate
            assert (found.peak is None) == (found.lack is not None)


def test_notes_on_what_was_given() -> None:
    (doubt,) = choose_peak("h100-sxm", Fraction(1979), "bf16").notes
    assert doubt.code == "peak-doubt.sparse"
    assert choose_peak("h100-sxm", Fraction(1979), "fp8").notes == ()
    assert choose_peak(None, Fraction(1979), "bf16").notes == ()
    (note,) = choose_peak(None, Fraction(900), "zz").notes
    assert note == fact("described.unknown-dtype", dtype="'zz'")
    for tflops in (None, Fraction(9)):
        with pytest.raises(
            UsageError,
            match="does not match exactly one row of the device table; similar: h100-sxm",
        ):
            choose_peak("h100-sxmm", tflops, "fp8")
    with pytest.raises(UsageError, match="too large"):
        choose_peak(None, Fraction(10**9), None)


def test_data_types_as_people_write_them() -> None:
    assert [plain_dtype(text) for text in ("BF16", "torch.float16", "fp8", " half ")] == [
        *("bf16", "fp16", "fp8", "fp16")
    ]


def test_other_peaks_are_of_the_device_or_of_devices_alike() -> None:
    labels = {one.label for one in other_peaks(choose_peak("h100-sxm", None, "bf16"))}
    assert {"fp8 dense", "tf32 dense", "bf16 dense (h100-pcie)"} <= labels
    assert any("a100" in label for label in labels)
    assert not [one for one in labels if "rtx-4090" in one or "mi300" in one or "int8" in one]
    assert other_peaks(choose_peak(None, Fraction(900), "bf16")) == ()
