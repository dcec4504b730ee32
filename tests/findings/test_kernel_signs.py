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


FALLING = [1_100 - n // 2 * 10 for n in range(200)]


@pytest.mark.parametrize(
    ("lengths_us", "grid", "is_told"),
    [
        (FALLING, 9_000, True),
        (FALLING, 8_000, False),  # the grid changes
        (FALLING[::-1], 9_000, False),
        (FALLING[::3], 9_000, False),  # too few launches
        (FALLING[:100] * 2, 9_000, False),  # it begins anew
        ([*FALLING[:150], *[500] * 50], 9_000, False),
        ([9_000, *[100] * 199], 9_000, False),  # one slow launch
    ],
)
def test_launches_of_one_grid_that_take_less_and_less_are_told(
    lengths_us: list[int], grid: int, *, is_told: bool
) -> None:
    found = main_kernel(lengths_us, grid=grid)
    assert found.remedy.startswith("If the work shrinks from launch to launch") == is_told
    told = "All have one grid, yet their time falls from 1.05 ms in the first tenth"
    assert (told in found.sentence) == is_told


def test_fewer_launches_than_parts_have_no_course(tmp_path: Path) -> None:
    """A user may ask for the course of few launches."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[main-kernel]\nleast_course = 5\n")
    assert "first tenth" not in main_kernel(FALLING[::40], rules=rules).sentence
    assert "first tenth" in main_kernel(FALLING[::18], rules=rules).sentence


@pytest.mark.parametrize(("length_us", "is_told"), [(9, True), (11, False)])
def test_short_launches_are_not_to_be_profiled(length_us: int, *, is_told: bool) -> None:
    found = main_kernel([length_us] * 20)
    assert found.remedy.startswith("Much of so short a launch is its start:") == is_told
