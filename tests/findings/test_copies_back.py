"""Copies within the GPU between launches of one kernel, which two swapped buffers save."""

from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of

US = 1_000
COPY = "Memcpy DtoD (Device -> Device)"


def said(
    rounds: int = 30,
    copy_us: int = 20,
    copies: int = 1,
    every: int = 1,
    direction: str = "DtoD",
    other: str = "relax",
    by: str = "nsys",
) -> Any:
    """Return the finding on rounds of a kernel of 80 us and a copy, every second of `other`."""
    works, start = [], 0
    for turn in range(rounds):
        kernel = other if turn % 2 else "relax"
        times = 0 if turn % every else copies
        for name, length in ((kernel, 80), *[(COPY, copy_us)] * times):
            works.append((name, start * US, (start + 5) * US, length * US))
            start += length
    rows = launched(*works)
    for row in rows["activities"]:
        if row["name"] == COPY:
            row |= {"kind": "memcpy", "direction": direction, "bytes": 131_072}
    trace = trace_of(**rows)
    analysis = tf.analyze(replace(trace, source=replace(trace.source, format=by)))
    return next((one for one in analysis.findings if one.rule == "copy-back"), None)


def test_copies_between_launches_of_one_kernel_are_told() -> None:
    found = said()
    assert found.title == "Each launch is followed by a copy within the GPU"
    assert "29 of 131 kB, each between two launches of relax." in found.sentence
    assert found.remedy.endswith("swap the pointers of the two buffers instead.")
    assert found.share == pytest.approx(0.2, abs=0.01)
    assert (found.gain.low_ns, found.gain.high_ns) == (0, 29 * 20 * US)


@pytest.mark.parametrize(
    "more",
    [
        {"rounds": 20},  # too few copies
        {"copy_us": 3},  # too little time
        {"copies": 2},  # what is copied twice is not swapped
        {"rounds": 120, "every": 4, "copy_us": 90},  # some results are kept
        {"direction": "DtoH"},
        {"other": "prolong"},  # a kernel of its own reads the copy
        {"by": "pytorch"},
    ],
)
def test_other_copies_are_not(more: dict[str, Any]) -> None:
    assert said(**more) is None
