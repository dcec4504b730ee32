"""The window of a program without steps: what follows start-up, where that is steady work."""

import re
from typing import Final

import pytest

from tests.build import launched, trace_of
from traceflops import Analysis, Selection, analyze
from traceflops.reports.view.findings import headline

US, MS = 1_000, 1_000_000
_GAP_NS: Final = 50 * MS


def run(
    kernels: int, *, kinds: int = 3, every_ns: int = 20 * US, first_ns: int = 4 * US
) -> Analysis:
    """Return a fill, 50 ms in which cudaMalloc takes 40, then kernels that run half of the time."""
    begin = _GAP_NS + 10 * US
    works = [("fill", 0, 10 * US - first_ns, first_ns)]
    for number in range(kernels):
        start = begin + every_ns * number
        works.append((f"k{number % kinds}", start - 5 * US, start, every_ns // 2))
    made = launched(*works)
    made["calls"].append({"name": "cudaMalloc", "start_ns": 20 * US, "dur_ns": 40 * MS})
    return analyze(trace_of(**made))


def test_the_window_begins_where_start_up_is_over() -> None:
    analysis = run(160)
    before, span = analysis.devices[0].windows
    assert (before.role, before.used) == ("before", False)
    assert (span.role, span.used) == ("span", True)
    assert (before.start_ns, span.start_ns) == (6 * US, _GAP_NS + 5 * US)
    assert span.end_ns - span.start_ns == 5 * US + 160 * 20 * US - 10 * US
    assert analysis.steps.after_start_up
    # Shares and gains are of the window; start-up is said first, and of all of the time.
    assert analysis.components.other_ns == 160 * 10 * US
    assert analysis.components.start_up_ns == 0
    said = headline(analysis)
    assert said.cls == "start-up"
    assert said.sentence.startswith("Start-up takes 50.0 ms of the 53.2 ms from the first GPU op")
    assert re.search(r"the figures are of the 3\.(19|20) ms after it\.$", said.sentence)  # 3.195
    assert "(mostly launch latency) takes 49.9 %" in analysis.verdict.sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"kernels": 7},  # too few to tell
        {"kernels": 160, "kinds": 160},  # nothing repeats
        {"kernels": 70},  # less than 3 % of the time is left
        {"kernels": 12, "every_ns": 25 * MS},  # start-up is a small part
        {"kernels": 8, "every_ns": 1 * US, "first_ns": 9 * US},  # little work follows
    ],
)
def test_else_the_window_is_the_whole_span(changes: dict[str, int]) -> None:
    analysis = run(**changes)
    assert [window.role for window in analysis.devices[0].windows] == ["span"]
    assert not analysis.steps.after_start_up


def test_a_chosen_time_is_what_was_chosen() -> None:
    made = launched(
        *(("k", t - 5 * US, t, 10 * US) for t in (6 * US, *range(50 * MS, 53 * MS, 20 * US)))
    )
    made["calls"].append({"name": "cudaMalloc", "start_ns": 20 * US, "dur_ns": 40 * MS})
    trace = trace_of(**made)
    assert analyze(trace).steps.after_start_up
    chosen = analyze(trace, Selection(from_ns=0))
    assert not chosen.steps.after_start_up
    assert chosen.components.start_up_ns >= 40 * MS


def uploaded(*, back: int = 0) -> Analysis:
    """Return 40 ms of copies HtoD of 4 ms each, 1 ms apart; then 10 ms of kernels, half the time.

    `back` of the last kernels are copies DtoH of 4 ms instead.
    """
    works = [("copy", t, t + US, 4 * MS) for t in range(0, 50 * MS, 5 * MS)]
    works += [(f"k{t % 3}", t, t + 5 * US, 10 * US) for t in range(50 * MS, 60 * MS, 20 * US)]
    works += [("copy", t * MS, t * MS + US, 4 * MS) for t in range(70, 70 + 5 * back, 5)]
    made = launched(*works)
    for number, row in enumerate(made["activities"]):
        if row["name"] == "copy":
            way = "HtoD" if number < 10 else "DtoH"
            row |= {"kind": "memcpy", "name": f"Memcpy {way}", "direction": way, "bytes": 40 * MS}
    return analyze(trace_of(**made))


def test_data_that_are_uploaded_once_are_start_up() -> None:
    analysis = uploaded()
    before, span = analysis.devices[0].windows
    assert (before.role, before.used, span.used) == ("before", False, True)
    assert span.start_ns == 50 * MS + 5 * US
    assert headline(analysis).cls == "start-up"
    assert "mostly copies to the GPU that do not recur" in headline(analysis).sentence


def test_data_that_come_back_are_work() -> None:
    analysis = uploaded(back=2)
    assert [window.role for window in analysis.devices[0].windows] == ["span"]
