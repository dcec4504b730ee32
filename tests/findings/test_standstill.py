"""A GPU that stands still: gaps before queued work and one launch, all as long."""

import pytest

from tests.build import launched, trace_of
from traceflops import Analysis, analyze
from traceflops.reports.view.step_split import step_parts

US = 1_000


def stopped(*gaps_us: int, launch_us: int = 2_010, late_us: int = 0) -> Analysis:
    """Return a run of 20 equal kernels of 10 us, all launched at once, with gaps after the first.

    The last but one takes `launch_us`. Launches begin `late_us` after the first.
    """
    works: list[tuple[str, int, int, int]] = []
    at = 100 * US
    for number in range(20):
        dur = launch_us * US if number == 18 else 10 * US
        launch = number if number == 0 else late_us * US + number
        works.append(("gemm", launch, at, dur))
        at += dur + (gaps_us[number] * US if number < len(gaps_us) else 0)
    rows = launched(*works)
    for row in rows["activities"]:
        row |= {"grid": [1_000, 1, 1], "block": [256, 1, 1]}
    return analyze(trace_of(**rows, devices=[{"sm_count": 108}]))


def test_equal_gaps_and_a_launch_as_long_are_one_cause() -> None:
    """Of 6.2 ms, 3 x 2 ms are lost; the gaps are neither late starts, nor the launch slow."""
    found = stopped(2_000, 2_010)
    first = found.findings[0]
    assert first.sentence == (
        "The GPU stood still for 96.8 % of the time, 2.00 ms at a time: in 2 gaps before queued "
        "work and in 1 launch of gemm, of which identical ones take 10.0 µs."
    )
    assert first.share == pytest.approx(6_010 / 6_210)
    assert "another process" in first.remedy.lower()
    assert "device-wait" not in {one.rule for one in found.findings}
    assert sum(part.ns for part in step_parts(found)) == 6_210 * US


@pytest.mark.parametrize(
    "found",
    [
        stopped(2_000, launch_us=2_010),  # twice may be chance
        stopped(2_000, 1_000, 1_000, 1_000, 1_000),  # most gaps are of another length
        stopped(2_000, 2_000, launch_us=1_500),
        stopped(2_000, 2_000, late_us=200),  # the work was not yet launched in the first gap
    ],
)
def test_others_are_not_told(found: Analysis) -> None:
    assert "standstill" not in {one.rule for one in found.findings}


def test_a_stalled_launch_is_no_compute_as_well() -> None:
    """Of 6.2 ms the GPU computes for 0.2: the rest of the last but one launch is a stall."""
    parts = stopped(2_000, 2_010).verdict.parts
    shares = [part.values["share"] for part in parts if "share" in part.values]
    (compute,) = [part.values["share"] for part in parts if part.code.startswith("verdict.compute")]
    assert compute == pytest.approx(200 / 6_210)
    assert sum(share for share in shares if isinstance(share, float)) <= 1
