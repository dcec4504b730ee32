"""Start-up: exact times of each kind, and what only looks like it."""

from typing import Any

import pytest

from tests.build import launched, trace_of
from traceflops import analyze, what_if
from traceflops.analysis.preparation import prepare
from traceflops.timeline.records import COMPONENTS
from traceflops.windows.selection import Selection

US, MS = 1_000, 1_000_000


def run(
    *calls: dict[str, Any],
    gap_us: int = 10_000,
    first: str = "new",
    launch_us: int = 5,
    **tables: list[dict[str, Any]],
) -> dict[str, int]:
    """Return start-up by kind in us, of ten short kernels and one a gap later, and ten more.

    The kernel after the gap is launched by a call of `launch_us` that ends with the gap.
    """
    works = [("k", 20 * US * n, (20 * n + 6) * US, 10 * US) for n in range(10)]
    begin = works[-1][2] + works[-1][3]
    late = begin + gap_us * US
    works.append((first, late - launch_us * US, late, 10 * US))
    works += [("k", late + 20 * US * n, late + (20 * n + 6) * US, 10 * US) for n in range(1, 11)]
    made = launched(*works)
    for call in made["calls"]:
        call["dur_ns"] = 5 * US
    made["calls"][10]["dur_ns"] = launch_us * US
    placed = [{**call, "start_ns": begin + call["start_ns"]} for call in calls]
    made["calls"] += placed
    tables = {
        name: [{**row, "start_ns": begin + row["start_ns"]} for row in rows]
        for name, rows in tables.items()
    }
    trace = trace_of(**made, **tables)
    [account] = prepare(trace, Selection()).accounts.values()
    parts = analyze(trace).components
    assert sum(parts.parts().values()) == parts.window_ns
    assert [*parts.parts()] == [*COMPONENTS]
    times = {kind: part.length_ns for kind, part in account.start_up_by_kind.items()}
    assert parts.start_up_ns == sum(times.values())
    return {kind: ns // US for kind, ns in times.items() if ns}


def call(name: str, start_us: int, end_us: int, **more: Any) -> dict[str, Any]:
    """Return a call, in us after the gap has begun."""
    return {"name": name, "start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, **more}


def test_the_first_launch_of_a_kernel_takes_what_later_ones_do_not() -> None:
    assert run(launch_us=9_000, gap_us=9_000) == {"first-launch": 8_995}


def test_a_slow_launch_of_a_known_kernel_is_none() -> None:
    assert run(launch_us=9_000, gap_us=9_000, first="k") == {}


def test_a_first_launch_that_waits_for_a_place_in_the_queue_is_none() -> None:
    """While it waits, the device works, with short gaps."""
    works = [("k", 20 * US * n, (20 * n + 6) * US, 10 * US) for n in range(30)]
    made = launched(*works, ("new", 100 * US, 606 * US, 10 * US))
    for row in made["calls"]:
        row["dur_ns"] = 5 * US
    made["calls"][-1]["dur_ns"] = 400 * US
    [account] = prepare(trace_of(**made), Selection()).accounts.values()
    assert not any(part.length_ns for part in account.start_up_by_kind.values())


@pytest.mark.parametrize(
    ("name", "first", "kinds"),
    [
        ("cuModuleLoadData", "new", {"load": 3_000, "hole": 6_995}),
        ("cuLibraryLoadData", "k", {}),  # loaded again for what ran before
        ("cudaMalloc", "new", {"first-call": 3_000, "hole": 6_995}),
        ("cudaMalloc", "k", {"first-call": 3_000, "hole": 6_995}),
        ("cudaDeviceSynchronize", "new", {}),
        ("cudaMemcpy", "new", {}),  # nothing to compare it with
    ],
)
def test_a_call_of_which_there_is_no_other(name: str, first: str, kinds: dict[str, int]) -> None:
    assert run(call(name, 0, 3_000), first=first) == kinds


def test_calls_that_take_as_long_again_are_none() -> None:
    often = [call("cudaMalloc", 1_000 * n, 1_000 * n + 900) for n in range(9)]
    assert run(*often) == {}
    often[0]["dur_ns"] = 300 * US
    assert run(*often) == {}


def test_the_first_of_many_calls_takes_longer() -> None:
    often = [call("cudaMalloc", 0, 3_000)]
    often += [call("cudaMalloc", 3_000 + 100 * n, 3_010 + 100 * n) for n in range(5)]
    assert run(*often)["first-call"] == 2_990


@pytest.mark.parametrize(("count", "all_us"), [(2, 2 * 55_000), (3, 0)])
def test_two_calls_of_50_ms_set_up_and_more_are_work(count: int, all_us: int) -> None:
    often = [call("cudaHostAlloc", 60_000 * n, 60_000 * n + 55_000) for n in range(count)]
    short = [call("cudaHostAlloc", 200_000 + 100 * n, 200_010 + 100 * n) for n in range(2)]
    times = run(*often, *short, gap_us=240_000)
    assert times.get("first-call", 0) == all_us


def test_what_is_recorded_is_no_hole() -> None:
    marks = [{"name": "a.py(1): f", "kind": "python", "start_ns": 4 * MS, "dur_ns": 6 * MS}]
    assert run(call("cudaMalloc", 0, 3_000), marks=marks) == {"first-call": 3_000, "hole": 1_000}


def test_a_stretch_without_a_record_is_none_where_nothing_starts_up() -> None:
    assert run() == {}


def test_capture_before_the_first_graph() -> None:
    capture = [call("cudaStreamBeginCapture", 0, 10), call("cudaStreamEndCapture", 2_990, 3_000)]
    assert run(*capture)["capture"] == 3_000
    launched_before = [call("cudaGraphLaunch", -100, -90)]
    assert "capture" not in run(*launched_before, *capture)


def test_first_copies_take_more_than_later_ones_of_as_many_bytes() -> None:
    def copies(*sizes: int) -> dict[str, int]:
        works = [("k", 20 * US * n, (20 * n + 6) * US, 10 * US) for n in range(10)]
        made, at = launched(*works), works[-1][2] + 10 * US
        for place, size in enumerate(sizes):
            took = 5 * MS if place == 0 else 100 * US
            made["calls"].append(
                {"name": "cudaMemcpy", "start_ns": at, "dur_ns": took, "correlation": 100 + place}
            )
            made["activities"].append(
                {
                    "kind": "memcpy",
                    "direction": "HtoD",
                    "bytes": size,
                    "name": "Memcpy HtoD",
                    "start_ns": at + took - 10 * US,
                    "dur_ns": 10 * US,
                    "correlation": 100 + place,
                }
            )
            at += took
        [account] = prepare(trace_of(**made), Selection()).accounts.values()
        return {k: part.length_ns // US for k, part in account.start_up_by_kind.items() if part}

    assert copies(1_000, 1_000, 8_000)["first-copy"] == 4_890
    assert "first-copy" not in copies(9_000, 1_000, 8_000)


def test_without_start_up_a_run_is_shorter_by_it() -> None:
    works = launched(*(("k", 20 * US * n, (20 * n + 6) * US, 10 * US) for n in range(30)))
    late = works["calls"][20:]
    for row in (*late, *works["activities"][20:]):
        row["start_ns"] += 5 * MS
    begin = works["activities"][19]["start_ns"] + 10 * US
    works["calls"].append(
        {"name": "cudaMalloc", "start_ns": begin, "dur_ns": 4 * MS, "correlation": 99}
    )
    analysis = analyze(trace_of(**works))
    assert analysis.components.start_up_ns >= 4 * MS
    asked = what_if(analysis, "start_up=0").together
    assert asked.before_ns - asked.most_ns >= 0.9 * analysis.components.start_up_ns
