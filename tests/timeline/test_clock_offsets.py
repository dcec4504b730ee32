"""Clocks of CPU and GPU that disagree: said, and no cause of idle time is made of it."""

from typing import Any

import pytest

import traceflops as tf
from tests.build import trace_of
from tests.conftest import shared_file
from traceflops import Analysis, analyze

MS = 1_000_000
SECOND = 1_000 * MS


def apart(
    offset_ns: int, *, gap_ns: int = 50_000, wait: bool = False, late_ns: int = 0
) -> Analysis:
    """Return 20 kernels of 150 us, 17 us after their launches by a clock that is ahead.

    `late_ns` is how much later than the one before each starts, as behind a queue that grows.
    """
    step = 150_000 + gap_ns
    api: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []
    for at in range(20):
        api.append({"name": "hipLaunchKernel", "start_ns": at * step, "correlation": at})
        begin = at * (step + late_ns) + 17_000 + offset_ns
        work.append({"name": "k", "start_ns": begin, "dur_ns": 150_000, "correlation": at})
    if wait:
        length = 200_000 + 20 * late_ns
        sync = {"name": "hipDeviceSynchronize", "start_ns": 20 * step, "dur_ns": length}
        api.append({**sync, "correlation": 99})
    low = min(0, *(one["start_ns"] for one in work))
    shifted = [[one | {"start_ns": one["start_ns"] - low} for one in rows] for rows in (api, work)]
    return analyze(trace_of(calls=shifted[0], activities=shifted[1]))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            {"offset_ns": 172_800 * SECOND},
            "by 2.0 days or more: all GPU work starts that long after",
        ),
        ({"offset_ns": 3 * SECOND}, "by 3.000 s or more: all GPU work starts that long after"),
        ({"offset_ns": 300 * MS}, "by 300.017 ms or more: all GPU work starts that long after"),
        ({"offset_ns": 30 * MS, "wait": True, "gap_ns": 5_000}, "by 30.017 ms or more: all"),
        ({"offset_ns": -1 * SECOND}, "by 999.983 ms or more: all GPU work starts that long before"),
        ({"offset_ns": -10_080 * SECOND}, "by 10,080.000 s or more: all GPU work starts"),
    ],
    ids=str,
)
def test_clocks_that_are_apart_leave_causes_unknown(case: dict[str, Any], said: str) -> None:
    found = apart(**case)
    (note,) = (one for one in found.notes if one.code == "clocks-apart")
    assert said in note.text
    assert not {"device-before-launch", "times-apart"} & {one.code for one in found.notes}
    causes = found.total.idle_causes
    assert causes.unknown_ns == found.components.idle_ns == 19 * case.get("gap_ns", 50_000)
    assert found.components.compute_ns + found.components.other_ns == 20 * 150_000
    assert found.host_bound is None or found.host_bound.verdict is None
    with pytest.raises(tf.errors.UsageError, match="clocks disagree"):
        tf.what_if(found, "eager_overhead=0")


@pytest.mark.parametrize(
    "case",
    [
        {"offset_ns": 0},
        {"offset_ns": -20_000},
        {"offset_ns": 300 * MS, "gap_ns": 1_000},
        {"offset_ns": 0, "late_ns": 400 * MS, "wait": True},
        {"offset_ns": 20 * MS, "late_ns": 20 * MS},
    ],
    ids=str,
)
def test_queues_and_small_differences_are_no_clocks_apart(case: dict[str, Any]) -> None:
    assert "clocks-apart" not in {one.code for one in apart(**case).notes}


@pytest.mark.parametrize(("ahead_ns", "is_said"), [(0, False), (19 * MS, True)])
def test_copies_that_end_after_their_calls_tell_of_clocks(ahead_ns: int, *, is_said: bool) -> None:
    """20 rounds of a kernel of 900 us and a copy that returns with it; the GPU is hardly idle."""
    calls: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []
    read = {"name": "Memcpy DtoH (Device -> Pageable)", "kind": "memcpy", "direction": "DtoH"}
    for at in range(0, 20 * MS, MS):
        calls.append({"name": "cudaLaunchKernel", "start_ns": at, "correlation": at})
        work.append({"name": "k", "start_ns": at + 10_000, "dur_ns": 975_000, "correlation": at})
        ask = {"name": "cudaMemcpyAsync", "start_ns": at + 5_000, "dur_ns": 990_000}
        calls.append(ask | {"correlation": at + 1})
        work.append(read | {"start_ns": at + 986_000, "dur_ns": 2_000, "correlation": at + 1})
    later = [one | {"start_ns": one["start_ns"] + ahead_ns} for one in work]
    found = analyze(trace_of(calls=calls, activities=later))
    assert ("clocks-apart" in {one.code for one in found.notes}) == is_said


def test_a_public_report_of_two_days() -> None:
    found = analyze(tf.read(shared_file("cases/pytorch_amd_jax/clocks-two-days-apart/trace.json")))
    assert found.components.share("idle") == 0.25
    assert {one.kind for one in found.idle.culprits} <= {"no_launch"}
    assert "late" not in found.verdict.sentence
