"""Steps are those of the thread that launches the main part of the device work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.build import trace_of
from traceflops import Analysis, analyze

LOOP, LOADER, OTHER = 1, 2, 3
Marks = list[tuple[str, int, int, int]]
Works = list[tuple[int, int, int]]


def run(marks: Marks, works: Works) -> Analysis:
    """Return the analysis of marks (name, thread, start, length) and launches.

    A launch (thread, start, length) makes a kernel that begins 10 ns later.
    """
    tables: dict[str, list[dict[str, Any]]] = {
        "marks": [
            {"name": name, "thread": thread, "start_ns": start, "dur_ns": dur}
            for name, thread, start, dur in sorted(marks, key=lambda mark: mark[2])
        ],
        "calls": [],
        "activities": [],
    }
    for at, (thread, start, dur) in enumerate(sorted(works, key=lambda work: work[1]), 1):
        tables["calls"].append({"thread": thread, "start_ns": start, "correlation": at})
        kernel = {"name": "k", "start_ns": start + 10, "dur_ns": dur, "correlation": at}
        tables["activities"].append(kernel)
    return analyze(trace_of(**tables))


def steps(name: str, thread: int, count: int, every: int, lasting: int, first: int = 0) -> Marks:
    return [(f"{name} {n}", thread, first + n * every, lasting) for n in range(count)]


def launches(thread: int, count: int, every: int, work: int, first: int = 5) -> Works:
    return [(thread, first + n * every, work) for n in range(count)]


LOOP_STEPS = steps("step", LOOP, 5, 400, 399)


def test_a_loader_that_launches_copies_and_has_more_steps_does_not_win() -> None:
    found = run(
        LOOP_STEPS + steps("loader step", LOADER, 20, 100, 90),
        launches(LOOP, 20, 100, 50) + launches(LOADER, 20, 100, 7, first=20),
    )
    assert found.steps.seen == (0, 1, 2, 3, 4)
    (note,) = [one for one in found.notes if one.code == "steps-on-other-threads"]
    assert note.count == 20
    assert "--step-mark" not in note.text


def test_of_threads_that_launch_as_much_it_is_the_one_whose_steps_hold_the_work() -> None:
    """A thread for the backward pass launches half, and between its own marks."""
    found = run(
        LOOP_STEPS + steps("backward step", OTHER, 20, 100, 80, first=10),
        launches(LOOP, 10, 100, 50) + launches(OTHER, 10, 100, 50, first=1_005),
    )
    assert found.steps.seen == (0, 1, 2, 3, 4)


def test_where_no_thread_with_steps_launches_it_is_the_one_in_whose_steps_work_is_launched() -> (
    None
):
    found = run(
        LOOP_STEPS + steps("loader step", LOADER, 20, 100, 80, first=10),
        launches(OTHER, 20, 100, 50),
    )
    assert found.steps.seen == (0, 1, 2, 3, 4)
    assert "markers-without-work" not in {note.code for note in found.notes}


def test_a_doubt_is_said() -> None:
    """Another thread launches more than half as much, and its steps hold its own work."""
    found = run(
        LOOP_STEPS + steps("other step", OTHER, 10, 200, 150, first=20),
        launches(LOOP, 20, 100, 50) + launches(OTHER, 10, 200, 70, first=40),
    )
    # The loop launches 1,000 ns and its steps hold all 1,700; the other's hold 700, and 1,000 more
    # that the loop launches at 105 of each 200.
    assert found.steps.seen == (0, 1, 2, 3, 4)
    (note,) = [one for one in found.notes if one.code == "steps-on-other-threads"]
    assert "--step-mark" in note.text


@pytest.mark.parametrize("threads", [3, 100])
def test_many_threads_with_steps_do_not_hide_that_of_the_loop(threads: int) -> None:
    marks = [one for n in range(threads) for one in steps("step", 10 + n, 9, 100, 3, first=50 + n)]
    found = run(LOOP_STEPS + marks, launches(LOOP, 20, 100, 30))
    assert found.steps.seen == (0, 1, 2, 3, 4)


def test_markers_that_hold_no_work_are_counted_with_those_of_other_threads() -> None:
    found = run(
        steps("step", LOOP, 4, 100, 3, first=50) + steps("step", LOADER, 2, 100, 3, first=60),
        launches(OTHER, 1, 100, 30, first=500),
    )
    notes = {note.code: note for note in found.notes}
    assert notes["markers-without-work"].count == 4
    assert notes["steps-on-other-threads"].count == 2
    assert found.steps.seen == ()
