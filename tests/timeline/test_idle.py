"""Idle time split by cause, and the gaps it is made of."""

from typing import Any

from msgspec.structs import replace

from tests.build import launched, step_marks, trace_of
from traceflops import analyze
from traceflops.timeline.records import IdleCauses


def causes(**tables: Any) -> IdleCauses:
    """Return the causes without the parts of the launch latency (see test_streamwaits.py)."""
    return replace(analyze(trace_of(**tables)).total.idle_causes, in_launch_call_ns=0)


def test_nothing_launched_yet_is_host_late_and_the_rest_launch_latency() -> None:
    found = causes(**launched(("a", 0, 100, 50), ("b", 180, 200, 10)))
    assert found == IdleCauses(host_late_ns=30, launch_latency_ns=20)


def test_launched_long_before_on_the_same_stream_is_launch_latency() -> None:
    found = causes(**launched(("a", 0, 100, 50), ("b", 10, 160, 10)))
    assert found == IdleCauses(launch_latency_ns=10)


def test_launched_before_on_a_stream_that_was_free_is_queued() -> None:
    run = launched(("a", 0, 100, 50), ("b", 10, 160, 10))
    run["activities"][1]["stream"] = 8
    assert causes(**run) == IdleCauses(queued_ns=10)


def test_without_a_launch_the_cause_is_unknown() -> None:
    run = launched(("a", 0, 100, 50), ("b", 10, 160, 10))
    run["activities"][1]["correlation"] = None
    assert causes(**run) == IdleCauses(unknown_ns=10)


def test_an_activity_without_length_ends_a_gap() -> None:
    found = causes(**launched(("a", 0, 100, 50), ("zero", 170, 180, 0), ("b", 195, 200, 10)))
    assert found == IdleCauses(host_late_ns=20 + 15, launch_latency_ns=10 + 5)


def test_gaps_name_what_ended_what_began_and_who_launched_it() -> None:
    run = launched(("first", 0, 100, 50), ("second", 180, 200, 10), ("third", 190, 215, 5))
    ops = [
        {"name": "outer", "start_ns": 170, "dur_ns": 100},
        {"name": "inner", "start_ns": 175, "dur_ns": 10},
    ]
    marks = step_marks(("ProfilerStep#3", 40, 300))
    analysis = analyze(trace_of(**run, ops=ops, marks=marks))
    longest, shorter = analysis.gaps()
    assert (longest.after, longest.before, longest.op, longest.call) == (
        "first",
        "second",
        "inner",
        "launch",
    )
    assert (longest.start_ns, longest.dur_ns, longest.step) == (150, 50, 3)
    assert shorter.op == "outer"
    assert sum(gap.causes.idle_ns for gap in analysis.gaps()) == analysis.components.idle_ns
