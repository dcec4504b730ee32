"""Any table of counters beside any launches: an answer, and one that adds up."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.build import trace_of
from tests.conftest import examples
from tests.mfu.counting import ADD, GEMM, MI300X, MOPS, TYPES
from traceflops.analysis.recipe import analyze
from traceflops.mfu.traced.coverage import HOW

NAMES = st.sampled_from([GEMM, f"{GEMM}.kd", ADD, "gemm", "_Z4gemmIfEvPf", "", "Cijk_\0"])
COUNTERS = st.sampled_from(
    [*(MOPS + name for name in TYPES), "FETCH_SIZE", "TCC_EA0_RDREQ", "GRBM_GUI_ACTIVE", "", "x"]
)
VALUES = st.one_of(
    st.integers(-1, 2**54).map(float),
    st.floats(allow_nan=True, allow_infinity=True),
    st.just(0.0),
)
SMALL = st.one_of(st.none(), st.integers(0, 3))
SIZES = st.one_of(st.none(), st.sampled_from([0, 1, 256, 65_536, 2**40, 2**62]))


@st.composite
def counter_rows(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "process": draw(st.integers(0, 1)),
        "device": draw(st.one_of(st.none(), st.integers(0, 1))),
        "name": draw(NAMES),
        "dispatch": draw(SMALL),
        "correlation": draw(SMALL),
        "repetition": draw(SMALL),
        "threads": draw(SIZES),
        "block_threads": draw(SIZES),
        "counter": draw(COUNTERS),
        "value": draw(VALUES),
    }


@st.composite
def kernels(draw: st.DrawFn) -> dict[str, Any]:
    sides = st.one_of(st.none(), st.lists(st.integers(-1, 2**31 - 1), min_size=3, max_size=3))
    device = draw(st.integers(0, 1))
    return {
        "process": device,
        "device": device,
        "name": draw(NAMES),
        "kind": draw(st.sampled_from(["kernel", "kernel", "memcpy"])),
        "start_ns": draw(st.integers(0, 10_000)),
        "dur_ns": draw(st.integers(0, 5_000)),
        "correlation": draw(SMALL),
        "grid": draw(sides),
        "block": draw(sides),
    }


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(st.lists(kernels(), max_size=12), st.lists(counter_rows(), max_size=25), st.booleans())
def test_whatever_was_counted_adds_up(
    works: list[dict[str, Any]], counters: list[dict[str, Any]], paired: bool
) -> None:
    tables = {
        "processes": [{"process": n} for n in range(2)],
        "devices": [{**MI300X, "device": n, "process": n} for n in range(2)],
    }
    trace = trace_of(activities=works, kernel_counters=counters, **tables)
    pair = trace if paired and counters else None
    analysis = analyze(trace, pair=pair)
    found = analysis.measured
    work = found.executed.work
    assert (work is None) == (not counters)
    json.loads(analysis.to_json())
    coverage = found.executed.coverage
    assert coverage is None or 0 <= coverage <= 1
    if found.waterfall is not None:
        assert sum(line.amount for line in found.waterfall.lines) == found.waterfall.budget
    if work is None:
        return
    assert found.mfu is None
    for join in work.joins:
        assert {part.how for part in join.parts} <= set(HOW)
        assert 0 <= join.known <= join.launches
    for row in work.counted:
        assert row.flops is None or row.flops >= 0
        assert row.busy is None or math.isfinite(row.busy)


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 2**30), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_rows_says_nothing(units: list[int], random: Any) -> None:
    """Only dispatch numbers tell which launch was first."""
    from tests.mfu.counting import counted, rocprof, timed

    rows = counted(len(units), units)
    straight = analyze(rocprof(timed(len(units)), rows)).measured
    random.shuffle(rows)
    shuffled = analyze(rocprof(timed(len(units)), rows)).measured
    assert straight.executed.executed_flops == shuffled.executed.executed_flops
    assert straight.executed.executed_flops == 512 * sum(units)
    assert straight.hfu == shuffled.hfu
