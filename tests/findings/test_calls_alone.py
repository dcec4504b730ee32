"""What takes the time of the thread that launches, where no GPU work is recorded."""

from typing import Any

import pytest

import traceflops as tf
from tests.build import trace_of

MS = 1_000_000


def rounds(**spent_ms: int) -> list[dict[str, Any]]:
    """Return ten rounds of calls, 1 ms of own code after each; a first cudaMalloc takes 500 ms."""
    calls, at = [], 0
    for number in range(10):
        for name, dur_ms in spent_ms.items():
            dur_ns = (500 if name == "cudaMalloc" and not number else dur_ms) * MS
            calls.append({"name": name, "start_ns": at, "dur_ns": dur_ns})
            at += dur_ns + MS
    return calls


def said(calls: list[dict[str, Any]], **tables: Any) -> str:
    return tf.analyze(trace_of(devices=[], calls=calls, **tables)).verdict.sentence


@pytest.mark.parametrize(
    ("spent_ms", "lead"),
    [
        (
            {"cudaMalloc": 6, "cudaLaunchKernel": 1, "cudaFree": 5},
            "Calls that allocate or free memory (cudaMalloc, cudaFree) take 73.8 % of the 149 ms",
        ),
        ({"cudaMemcpy": 8, "cudaLaunchKernel": 1}, "Calls that copy (cudaMemcpy) take 73.4 %"),
        (
            {"cudaLaunchKernel": 1, "cudaDeviceSynchronize": 8},
            "Calls that wait for the GPU (cudaDeviceSynchronize) take 73.4 %",
        ),
    ],
)
def test_the_kind_of_call_that_takes_most_follows_what_is_missing(
    spent_ms: dict[str, int], lead: str
) -> None:
    sentence = said(rounds(**spent_ms))
    assert sentence.startswith("GPU records are missing: the trace has 10 launch calls")
    assert lead in sentence


def test_reading_between_calls_counts_and_inside_them_does_not() -> None:
    calls = rounds(cudaMemcpy=1, cudaLaunchKernel=1)
    read = {"name": "read", "kind": "system", "start_ns": 100 * MS, "dur_ns": 300 * MS}
    later = [{**one, "start_ns": one["start_ns"] + 400 * MS} for one in calls]
    assert "Calls that read or write files take 6" in said([*calls, *later], marks=[read])
    inside = [{**read, "start_ns": one["start_ns"], "dur_ns": MS} for one in calls]
    assert "read or write" not in said(calls, marks=inside)


@pytest.mark.parametrize(
    ("one_round", "advice"),
    [
        (
            ("cudaMalloc 6", "cudaMalloc 6", "cudaMemcpy 1", "cudaLaunchKernel 1", "cudaFree 5"),
            "For 10 launches there are 20 allocations and 10 frees: allocate the buffers once and "
            "reuse them; 10 of the allocations are never freed.",
        ),
        (
            ("cudaMemcpy 1",) * 100 + ("cudaLaunchKernel 1",),
            "For 10 launches there are 1,000 copies: put the data into one buffer, and copy it",
        ),
        (
            ("cudaMemcpy 1", "cudaLaunchKernel 1", "cudaMemcpy 9"),
            "10 copies right after launches typically take more than twice as long as the others, "
            "90.0 ms in all: they probably wait for the kernels. Read results back less often.",
        ),
        (("cudaMemcpyAsync 1", "cudaLaunchKernel 1", "cudaMemcpyAsync 9"), ""),
        (("cudaMalloc 1", "cudaFree 1", "cudaLaunchKernel 40"), ""),
    ],
)
def test_what_each_round_does_again_has_a_remedy(one_round: tuple[str, ...], advice: str) -> None:
    calls, at = [], 0
    for text in one_round * 10:
        name, dur_ms = text.split()
        calls.append({"name": name, "start_ns": at, "dur_ns": int(dur_ms) * MS})
        at += int(dur_ms) * MS
    sentence = said(calls)
    assert advice in sentence
    remedies = ("reuse them", "one buffer", "less often")
    assert any(remedy in sentence for remedy in remedies) == bool(advice)


@pytest.mark.parametrize(
    ("allocations", "share"), [(1, "60.0 % of the 10.0"), (2, "46.2 % of the 13.0")]
)
def test_the_allocation_that_creates_the_context_is_set_up(allocations: int, share: str) -> None:
    """It takes 240 ms; a second one 1 ms, two copies 3 ms each, a launch 1 ms, each 1 ms apart."""
    took_ms = [240, 1][:allocations]
    names = ["cudaMalloc"] * allocations + ["cudaMemcpy", "cudaLaunchKernel", "cudaMemcpy"]
    calls, at = [], 0
    for name, dur_ms in zip(names, [*took_ms, 3, 1, 3], strict=True):
        calls.append({"name": name, "start_ns": at, "dur_ns": dur_ms * MS})
        at += (dur_ms + 1) * MS
    assert f"Calls that copy (cudaMemcpy) take {share} ms" in said(calls)
