"""Identical launches with very different times: the first statement, and no advice on kernels."""

import pytest
from msgspec.structs import replace

from tests.build import launched, trace_of
from traceflops import analyze
from traceflops.findings.finding import Finding
from traceflops.findings.main_kernel import MAIN_KERNEL

US = 1_000


def said(
    slow_us: int = 2_100,
    kernels: int = 5,
    blocks: int = 1_000,
    name: str = "gemm",
    units: int | None = 108,
    facts: dict[str, str] | None = None,
) -> Finding | None:
    """Return the first finding of so many kernels that run 10 times each: 4 times for 100 us."""
    works: list[tuple[str, int, int, int]] = []
    at = 0
    for step in range(10):
        for kernel in range(kernels):
            dur = (100 if step < 4 else slow_us) * US
            works.append((f"{name}_{kernel}", 10 * US * len(works), at + 50 * US, dur))
            at += dur
    rows = launched(*works)
    for row in rows["activities"]:
        row |= {"grid": [blocks, 1, 1], "block": [256, 1, 1]}
    trace = trace_of(**rows, devices=[{"sm_count": units}])
    trace = replace(trace, source=replace(trace.source, facts=facts or {}))
    found = [one for one in analyze(trace).findings if one.rule == MAIN_KERNEL]
    return next((one for one in found if "uneven" in one.name.code), None)


def test_it_is_told_with_its_part_of_the_time() -> None:
    """Of 65 ms, 63 are in launches that take 21 times as long as the fastest tenth."""
    found = said()
    assert found is not None
    assert found.sentence == (
        "Launches of 5 kernels take over 10 times as long as the fastest tenth of those with the "
        "same grid and block: 96.9 % of the time. The largest part is in gemm_0, up to 21 times as "
        "long."
    )
    assert found.share == pytest.approx(63 / 65)
    assert "memory of the host" in found.remedy


def test_others_are_not_told() -> None:
    assert said(slow_us=1_000) is None  # ten times, not more
    assert said(kernels=4) is None
    assert said(blocks=108) is None  # persistent kernels have that grid for all sizes
    assert said(units=None) is None  # nor is any larger than a GPU of unknown size
    assert said(name="ncclDevKernel_AllReduce") is None  # they wait for one another


@pytest.mark.parametrize(
    ("held", "is_known"), [("16000 8000", True), ("7000 8000", False), ("16000", False)]
)
def test_an_error_of_memory_tells_why(held: str, *, is_known: bool) -> None:
    found = said(facts={"program_error": "memory", "memory_held": held})
    assert found is not None
    assert found.remedy.startswith("The memory that the GPU does not have") == is_known
