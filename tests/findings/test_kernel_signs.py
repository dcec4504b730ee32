"""What the signature and the launches of a main kernel tell: FP64 on a slow GPU, less work."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from traceflops.findings.finding import Finding

US = 1_000
ADA = {"product": "NVIDIA GeForce RTX 4090", "sm_count": 128}
VOLTA = {"product": "Tesla V100-SXM2-16GB", "sm_count": 80}


def main_kernel(
    lengths_us: list[int],
    name: str = "sweep",
    device: dict[str, object] = ADA,
    grid: int = 9_000,
    rules: Path | None = None,
) -> Finding:
    """Return the finding on a kernel whose launches take so long, beside a short one of another."""
    works, start = [("start", 0, 5 * US, 10 * US)], 20 * US
    for length in lengths_us:
        works.append((name, start - 5 * US, start, length * US))
        start += length * US
    rows = launched(*works)
    for number, row in enumerate(rows["activities"]):
        row |= {"grid": [grid if number % 2 else 9_000, 1, 1], "block": [256, 1, 1]}
    trace = trace_of(**rows, devices=[device])
    trace = replace(trace, source=replace(trace.source, format="nsys"))
    analysis = tf.analyze(trace, finding_rules=rules)
    return next(one for one in analysis.losses if one.rule == "main-kernel")


@pytest.mark.parametrize(
    ("signature", "device", "is_told"),
    [
        ("sweep(double const*, double *, int)", ADA, True),
        ("sweep(Vec3<Float64>, CuDeviceArray<Int64, (int)1>)", ADA, True),
        ("void sweep<double>(int)", ADA, True),
        ("sweep(double const*, double *, int)", VOLTA, False),  # half the rate of FP32
        ("sweep(double, float *)", ADA, False),  # a scalar alone
        ("sweep(double *, float *)", ADA, False),
        ("void sweep<c10::BFloat16, double>(int)", ADA, False),
        ("sweep(double *, __half const *)", ADA, False),
        ("sweep(doubled *, int)", ADA, False),
    ],
)
def test_fp64_is_told_where_the_gpu_is_slow_at_it(
    signature: str, device: dict[str, object], *, is_told: bool
) -> None:
    found = main_kernel([900] * 4, signature, device)
    assert found.remedy.startswith("It works on FP64, at which this GPU is 64 times") == is_told


@pytest.mark.parametrize(("length_us", "is_told"), [(9, True), (11, False)])
def test_short_launches_are_not_to_be_profiled(length_us: int, *, is_told: bool) -> None:
    found = main_kernel([length_us] * 20)
    assert found.remedy.startswith("Much of so short a launch is its start:") == is_told
