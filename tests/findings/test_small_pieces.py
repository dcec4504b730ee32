"""Data that goes to the GPU in many small pieces, each with calls of its own."""

from typing import Any

import pytest

import traceflops as tf
from tests.build import trace_of
from traceflops.findings.finding import Finding

US = 1_000
CALLS = ("cudaMalloc", "cudaMemcpyAsync", "cudaStreamSynchronize")


def found(
    count: int, *, size: int = 1_000, last: str = "memcpy", pause_us: int = 0
) -> Finding | None:
    """Return the finding on pieces of 50 us with calls of 10, 15 and 5 us, and a copy of 2 us.

    The last work is of the kind `last`, 1 us after the wait of the last piece. After each ten
    pieces the thread pauses for `pause_us`.
    """
    calls: list[dict[str, Any]] = []
    activities: list[dict[str, Any]] = []
    for number in range(count):
        for place, dur_us in enumerate((10, 15, 5)):
            start_ns = (50 * number + number // 10 * pause_us + 16 * place) * US
            one = {"name": CALLS[place], "start_ns": start_ns, "dur_ns": dur_us * US, "thread": 1}
            calls.append(one | ({"correlation": number} if place == 1 else {}))
        start_ns = (50 * number + number // 10 * pause_us + 33) * US
        copy = {"kind": "memcpy", "direction": "HtoD", "name": "Memcpy HtoD", "bytes": size}
        activities.append({**copy, "start_ns": start_ns, "dur_ns": 2 * US, "correlation": number})
    activities[-1] |= {"kind": last, "name": "saxpy"} if last == "kernel" else {}
    trace = trace_of(calls=calls, activities=activities)
    return next((one for one in tf.analyze(trace).findings if one.rule == "small-pieces"), None)


def test_pieces_are_told_as_a_unit_with_its_calls_and_their_time() -> None:
    """The window begins with the first copy: 199 pieces begin in it, 198 of them before another."""
    one = found(200)
    assert one is not None
    assert one.sentence.startswith(f"{', '.join(CALLS)} follow each other 198 times, every 50.0 µs")
    assert one.gain is not None
    assert (one.gain.low_ns, one.gain.high_ns) == (197 * 30 * US, 198 * 50 * US)


@pytest.mark.parametrize(
    "more",
    [
        {"count": 90},
        {"count": 200, "size": 1 << 20},
        {"count": 200, "last": "kernel"},
        {"count": 200, "pause_us": 1_000},  # pieces take 10 of 29 ms
    ],
)
def test_few_or_large_pieces_those_of_kernels_and_pauses_are_none(more: dict[str, Any]) -> None:
    assert found(**more) is None
