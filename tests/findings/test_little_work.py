"""A recording of hardly any GPU work tells nothing of how the program runs."""

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.findings import headline, opening

US, MS = 1_000, 1_000_000
BEFORE = 300 * MS


def run(
    kernels: int, *, kernel_ns: int = 10 * US, gap_ns: int = 100 * US, steps: int = 0
) -> tf.Analysis:
    """Return a run that allocates for 300 ms and then launches some kernels, idle between them."""
    starts = [BEFORE + number * (kernel_ns + gap_ns) for number in range(kernels)]
    rows = launched(*(("saxpy", at - 5 * US, at, kernel_ns) for at in starts))
    rows["calls"].append({"name": "cudaMalloc", "start_ns": 0, "dur_ns": BEFORE - 50 * US})
    marks = [(f"ProfilerStep#{n}", at - 6 * US, 100 * US) for n, at in enumerate(starts[:steps])]
    return tf.analyze(trace_of(**rows, marks=step_marks(*marks)))


def test_start_up_with_hardly_any_work_behind_it_is_all_that_is_said() -> None:
    analysis = run(20)
    said = headline(analysis)
    assert said.cls == "start-up"
    assert said.sentence.startswith(
        "The recording holds 200 µs of GPU work, within 2.10 ms, after 300 ms of start-up"
    )
    assert [one for one in analysis.findings if one.gain is not None] == []
    assert analysis.losses == ()
    printed = "\n".join(line.plain for line in render_terminal(analysis))
    assert "Critical path" not in printed  # nor a bar


def test_beside_nothing_but_start_up_the_rest_is_not_split() -> None:
    """Of 512 ms, 500 ms are start-up before a kernel of its own; the figures are of all."""
    works = launched(("a", 0, 6 * US, MS), ("b", 502 * MS, 503 * MS, 8 * MS))
    works["calls"].append({"name": "cudaMalloc", "start_ns": 2 * MS, "dur_ns": 499 * MS})
    opened = opening(tf.analyze(trace_of(**works)))
    assert opened.title.startswith("Start-up takes 50")
    assert "the figures are of" not in opened.title
    assert opened.rest == ""


@pytest.mark.parametrize(
    "more",
    [
        {"kernels": 200},  # a window of 22 ms
        {"kernels": 2, "kernel_ns": 2 * MS},
        {"kernels": 20, "steps": 20},
        {"kernels": 300, "kernel_ns": 5 * MS},  # a server: 300 ms of loading, then 1.5 s of work
    ],
)
def test_longer_work_is_judged_whatever_comes_before(more: dict[str, int]) -> None:
    assert "The recording holds" not in headline(run(**more)).sentence


@pytest.mark.parametrize(
    ("names", "launch_ns", "is_told"),
    [("abcd", 400 * US, True), ("abca", 400 * US, False), ("abcd", 20 * US, False)],
)
def test_kernels_that_run_once_each_behind_slow_launches_are_one_cold_call(
    names: str, launch_ns: int, is_told: bool
) -> None:
    works = launched(*((one, at * MS, at * MS + 500 * US, 10 * US) for at, one in enumerate(names)))
    for call in works["calls"]:
        call["dur_ns"] = launch_ns
    analysis = tf.analyze(trace_of(**works))
    # 4 x 400 us of launching; 40 us of work from 0.5 ms to 3.51 ms.
    said = (
        "This is one cold call, all start-up: each of 4 kernels runs once, and launching them for "
        "the first time takes 1.60 ms, beside 40.0 µs of GPU work within 3.01 ms."
    )
    assert headline(analysis).sentence.startswith(said) == is_told
    if is_told:
        assert [one for one in analysis.findings if one.gain is not None] == []
