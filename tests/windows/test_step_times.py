"""How long steps are: the mean over the devices, and how far they are from the median."""

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from traceflops.analysis.preparation import prepare
from traceflops.drawing.timeline import representative_steps
from traceflops.table.trace import Trace
from traceflops.timeline.records import Components
from traceflops.windows.step_times import StepSpread, StepTime, spread_of

GEMM = "sm90_gemm_bf16"
TWO_RANKS = ((10_000, 10_000), (12_000, 16_000), (11_000, 11_000), (9_000, 11_000), (5, 5))
"""The lengths of five steps on two ranks; the last step is not used."""


def ranks(*lengths: tuple[int, ...]) -> Trace:
    """Return a run of a rank per column, whose steps last so long; each rank on its own."""
    activities, calls, marks = [], [], []
    columns = list(zip(*lengths, strict=True))
    for rank, steps in enumerate(columns):
        at = 1_000
        for number, length in enumerate(steps):
            link = rank * 1_000 + number
            calls.append({"process": rank, "start_ns": at - 5, "correlation": link})
            marks.append(
                {
                    "process": rank,
                    "name": f"ProfilerStep#{number}",
                    "start_ns": at - 9,
                    "dur_ns": 8,
                }
            )
            activities.append(
                {
                    "name": GEMM,
                    "process": rank,
                    "device": rank,
                    "start_ns": at,
                    "dur_ns": length,
                    "correlation": link,
                }
            )
            at += length
    number = len(columns)
    return trace_of(
        processes=[{"process": rank, "rank": rank} for rank in range(number)],
        devices=[{"device": rank, "process": rank} for rank in range(number)],
        activities=activities,
        calls=calls,
        marks=marks,
    )


def alone(*lengths: int) -> tf.Analysis:
    """Return a run of one device whose steps last so long, and one more that is not used."""
    return tf.analyze(ranks(*((length,) for length in (*lengths, 5))))


def test_a_step_of_two_devices_is_the_mean_of_both_everywhere() -> None:
    trace = ranks(*TWO_RANKS)
    analysis = tf.analyze(trace)
    spread = spread_of(analysis.devices)
    assert spread is not None
    found = {one.step: one.ns for one in spread.used}
    assert found == {0: 10_000, 1: 14_000, 2: 11_000, 3: 10_000}
    # 10, 10, 11 and 14: the median is 10.5, of the two in the middle the shorter one stands for it.
    assert analysis.steps.typical_ns == spread.median_ns == 10_500
    assert spread.mean_ns == (10 + 12 + 11 + 9 + 10 + 16 + 11 + 11) * 1_000 // 8
    assert (spread.longest.step, spread.longest.ns) == (1, 14_000)
    drawn = representative_steps(prepare(trace))
    assert drawn is not None
    assert (drawn.median, drawn.median_ns, drawn.worst, drawn.worst_ns) == (3, 10_000, 1, 14_000)


def test_a_step_counts_on_the_devices_that_use_it() -> None:
    """Rank 1 ends with step 3, which no successor bounds there: its window of 3 is left out."""
    works = [(GEMM, 995 + 100 * k, 1_000 + 100 * k, 100) for k in range(6)]
    one = launched(*works)
    marks = step_marks(*((f"ProfilerStep#{k}", 991 + 100 * k, 8) for k in range(6)))
    other = launched(*((name, call, at, 60) for name, call, at, _ in works[:4]), first=100)
    for table in other.values():
        for row in table:
            row["process"] = 1
    for row in other["activities"]:
        row["device"] = 1
    analysis = tf.analyze(
        trace_of(
            processes=[{"process": rank, "rank": rank} for rank in range(2)],
            devices=[{"device": rank, "process": rank} for rank in range(2)],
            activities=one["activities"] + other["activities"],
            calls=one["calls"] + other["calls"],
            marks=marks + [mark | {"process": 1} for mark in marks[:4]],
        )
    )
    last = analysis.devices[1].steps[-1]
    assert (last.step, last.used, last.dur_ns) == (3, False, 69)
    spread = spread_of(analysis.devices)
    assert spread is not None
    assert {one.step: one.ns for one in spread.used}[3] == 100


@pytest.mark.parametrize(("steps", "p95"), [(19, None), (20, 1_018), (40, 1_037), (41, 1_038)])
def test_ninety_five_percent_are_within_p95(steps: int, p95: int | None) -> None:
    """Of times 1000, 1001, … the smallest within which at least 95 % are; too few tell none."""
    spread = spread_of(alone(*range(1_000, 1_000 + steps)).devices)
    assert spread is not None
    assert len(spread.used) == steps
    assert spread.p95_ns == p95


@pytest.mark.parametrize(
    ("lengths", "outstanding"),
    [((100, 100, 125), 0), ((100, 100, 126), 1), ((100, 126), 0), ((100, 100, 100, 200, 300), 2)],
)
def test_a_step_stands_out_beyond_a_quarter_more_than_the_median(
    lengths: tuple[int, ...], outstanding: int
) -> None:
    spread = spread_of(alone(*lengths).devices)
    assert spread is not None
    assert spread.outstanding == outstanding


@pytest.mark.parametrize(
    ("lengths", "growth"),
    [
        ((190, 218, 288, 277, 316, 331), (0, 5, 204, 323)),  # a correlation of 0.94
        ((190, 218, 288, 277, 316, 331, 274, 260), (0, 5, 204, 323)),  # all but a quarter
        ((331, 316, 277, 288, 218, 190), (0, 5, 323, 204)),  # they shrink
        ((300, 190, 331, 218, 277, 316, 288), None),  # not steady
        ((300, 301, 302, 303, 304, 305), None),  # not much
        ((10, 10, 10, 20, 20, 20, 30, 30, 30), (0, 8, 10, 30)),  # a correlation of 0.95
        ((100, 100, 100, 100, 100, 100, 200, 200, 200), None),  # one jump: a correlation of 0.87
        ((0, 0, 0, 0, 0, 0), None),
        ((100, 200, 300, 400), None),  # too few
    ],
)
def test_steps_that_grow_or_shrink_steadily_are_told(
    lengths: tuple[int, ...], growth: tuple[int, ...] | None
) -> None:
    used = tuple(StepTime(at, Components(compute_ns=ns)) for at, ns in enumerate(lengths))
    assert StepSpread(used, 0).growth == growth


def test_steps_of_different_devices_do_not_grow() -> None:
    lengths = (190, 218, 288, 277, 316, 331)
    used = tuple(
        StepTime(at, Components(compute_ns=ns), frozenset({at // 3}))
        for at, ns in enumerate(lengths)
    )
    assert StepSpread(used, 0).growth is None


def test_what_is_beyond_the_median_is_of_the_longer_steps_alone() -> None:
    spread = spread_of(alone(100, 90, 130, 105, 100).devices)
    assert spread is not None
    assert (spread.median_ns, spread.beyond_median_ns) == (100, 30 + 5)


def test_without_steps_there_is_nothing_to_compare() -> None:
    analysis = tf.analyze(trace_of(**launched((GEMM, 0, 10, 50))))
    assert spread_of(analysis.devices) is None
    assert analysis.steps.typical_ns is None
