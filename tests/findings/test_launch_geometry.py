"""Kernels whose blocks leave most of the multiprocessors without work."""

from typing import Any

import pytest

from tests.build import launched, trace_of
from traceflops import analyze

US = 1_000


def said(blocks: int, dur_us: int = 1_000, name: str = "saxpy", units: int | None = 100) -> Any:
    """Return the finding on the grid of ten kernels, None where there is none."""
    works = launched(
        *((name, 1_100 * US * n, (1_100 * n + 5) * US, dur_us * US) for n in range(10))
    )
    for row in works["activities"]:
        row |= {"grid": [blocks, 1, 1], "block": [256, 1, 1]}
    trace = trace_of(**works, devices=[{"sm_count": units}])
    return next((one for one in analyze(trace).findings if one.rule == "small-grid"), None)


def test_a_small_grid_is_told_with_its_blocks_and_multiprocessors() -> None:
    found = said(10)
    assert found.sentence.startswith(
        "saxpy launches 10 blocks of 256 threads on 100 multiprocessors;"
    )
    assert found.share == pytest.approx(10_000 / 10_900)
    assert found.gain is not None and found.gain.low_ns > 0
    assert found.gain.high_ns <= 9_000 * US  # a tenth of the time is left where all are busy


@pytest.mark.parametrize(
    ("blocks", "more"),
    [
        (51, {}),  # more than half
        (10, {"dur_us": 49}),  # too short for a wave to matter
        (10, {"units": None}),
        (10, {"name": "ncclDevKernel_AllReduce_Sum_f32"}),  # leaves room on purpose
    ],
)
def test_others_are_not_told(blocks: int, more: dict[str, Any]) -> None:
    assert said(blocks, **more) is None
    assert said(50) is not None
