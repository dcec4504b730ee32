"""Uneven steps: when they are a finding, its share, what it says and where it leads."""

from collections.abc import Sequence
from statistics import median
from typing import Any
from unittest.mock import Mock

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from traceflops.facts import fact
from traceflops.findings.finding import Finding, Gain
from traceflops.reports.page.evidence import Place, findings_shown
from traceflops.reports.view.wording import step_times
from traceflops.windows import step_times as step_times_of
from traceflops.windows.selection import Selection

GEMM = "sm90_gemm_bf16"


def run(
    *steps: tuple[int, int],
    more: Sequence[dict[str, Any]] = (),
    selection: Selection | None = None,
) -> tf.Analysis:
    """Return a run whose steps have so much compute and then idle time; one more is not used.

    `more` are other marks. The first work begins at 1,000 ns.
    """
    works, marks, at = [], [], 1_000
    for number, (busy, idle) in enumerate((*steps, (5, 0))):
        works.append((GEMM, at - 5, at, busy))
        marks.append((f"ProfilerStep#{number}", at - 9, 8))
        at += busy + idle
    return tf.analyze(trace_of(**launched(*works), marks=[*step_marks(*marks), *more]), selection)


def diagnosed(analysis: tf.Analysis) -> list[Finding]:
    return [one for one in analysis.findings if one.rule == "uneven-steps"]


@pytest.mark.parametrize("part", ((900, 700), (1_600, 0)), ids=("idle", "kernels"))
def test_more_steps_take_no_more_medians_of_all(
    part: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each median takes a look at all steps: one per slow step would be quadratic."""
    counted: list[int] = []
    for times in (1, 10):
        analysis = run(*([(900, 100)] * 4 + [part]) * times)
        called = Mock(wraps=median)
        monkeypatch.setattr(step_times_of, "median_of", called)
        assert diagnosed(analysis)
        counted.append(called.call_count)
        monkeypatch.undo()
    assert counted[0] == counted[1]


def uneven(analysis: tf.Analysis) -> list[Finding]:
    return [one for one in analysis.losses if one.rule == "uneven-steps"]


def places_of(analysis: tf.Analysis, rule: str) -> tuple[Place, ...]:
    shown = findings_shown(analysis)
    causes = ((one.words.finding, one.places) for one in shown.causes.rows)
    return next(places for one, places in (*causes, *shown.others) if one.rule == rule)


@pytest.mark.parametrize(("others", "is_sweep"), [(3, False), (4, True)])
def test_steps_of_other_sizes_are_no_slow_steps(others: int, *, is_sweep: bool) -> None:
    """Of seven steps of one kernel, so many launch other grids."""
    works, marks, at = [], [], 1_000
    for number in range(8):
        busy = 900 + 700 * (number % 3 == 1)
        works.append((GEMM, at - 5, at, busy))
        marks.append((f"ProfilerStep#{number}", at - 9, 8))
        at += busy + 100
    made = launched(*works)
    for number, row in enumerate(made["activities"]):
        row["grid"] = [10 + 2 * number if 0 < number <= others else 10, 2, 1]
    analysis = tf.analyze(trace_of(**made, marks=step_marks(*marks)))
    assert len(analysis.steps.used) == 7
    assert (diagnosed(analysis) == []) == is_sweep


def test_one_long_step_is_a_finding_with_its_size_and_its_cause() -> None:
    """Steps of 1000, 1000, 1600, 1000 and 1000 ns: 600 of 5600 are beyond the median of 1000."""
    analysis = run((900, 100), (900, 100), (900, 700), (900, 100), (900, 100))
    (found,) = uneven(analysis)
    assert found.share == 600 / 5_600
    assert (found.severity, found.mfu_without, found.evidence) == ("medium", None, ("steps",))
    assert found.sentence == (
        "Steps slower than the median cost 10.7 % of the step time. "
        "Step 2 took 600 ns longer than the median, mostly idle time before step 3."
    )
    assert [(one.link, one.text) for one in places_of(analysis, "uneven-steps")] == [
        ("step=2", "step 2: 1.60 µs")
    ]


def test_slow_steps_gain_at_most_what_they_take_beyond_the_median() -> None:
    """Of 600 ns that step 2 takes longer, all are idle: half of it or more, in the mean of five."""
    (found,) = diagnosed(run((900, 100), (900, 100), (900, 700), (900, 100), (900, 100)))
    assert found.gain == Gain(60, 120, None)
    (found,) = diagnosed(run((900, 100), (900, 100), (1_500, 100), (900, 100), (900, 100)))
    assert found.gain == Gain(0, 120, None)
    assert found.confidence is not None
    assert fact("doubt.longer-step") in found.confidence.reasons


@pytest.mark.parametrize(("grid", "advice"), [(10, "All steps launch the same"), (11, "larger")])
def test_slow_steps_of_the_same_launches_are_of_the_gpu(grid: int, advice: str) -> None:
    busy, works, marks, at = (900, 900, 1_600, 900, 900, 5), [], [], 1_000
    for number, ns in enumerate(busy):
        works.append((GEMM, at - 5, at, ns))
        marks.append((f"ProfilerStep#{number}", at - 9, 8))
        at += ns + 100
    made = launched(*works)
    for number, row in enumerate(made["activities"]):
        row["grid"] = [grid if number == 2 else 10, 2, 1]
    (found,) = diagnosed(tf.analyze(trace_of(**made, marks=step_marks(*marks))))
    assert advice in found.remedy
    assert found.owner == ("yours" if grid == 11 else None)


def test_every_place_names_the_step_that_came_late() -> None:
    """Step 2 idles 700 of its 1,600 ns, all of them before step 3."""
    analysis = run((900, 100), (900, 100), (900, 700), (900, 100), (900, 100))
    words = "longest 1.60 µs (step 2, 1.60 × the median, idle before step 3)"
    assert step_times(analysis)[-1] == words
    idle = places_of(analysis, "loss-idle")
    assert ("step=2", "most before step 3: 700 ns") in [(one.link, one.text) for one in idle]


def test_idle_time_inside_the_longest_step_is_not_laid_to_the_next_step() -> None:
    """Step 2 idles 600 ns between two kernels, and 100 ns before step 3 as every step does."""
    starts = (1_000, 2_000, 3_000, 4_600, 5_600)
    works = [(GEMM, at - 5, at, 900 if at != 3_000 else 400) for at in starts]
    works.insert(3, (GEMM, 3_990, 4_000, 500))
    marks = [(f"ProfilerStep#{n}", at - 9, 8) for n, at in enumerate(starts)]
    marks[2] = ("ProfilerStep#2", 2_991, 1_005)
    analysis = tf.analyze(trace_of(**launched(*works), marks=step_marks(*marks)))
    assert uneven(analysis)[0].sentence.endswith("the median, mostly idle time.")
    assert "before" not in step_times(analysis)[-1]
    assert "most in step 2: 700 ns" in [one.text for one in places_of(analysis, "loss-idle")]
    assert [(gap.step, gap.before_step) for gap in analysis.gaps(2)] == [(2, None), (0, 1)]


def test_findings_stand_by_their_share_whatever_their_rule() -> None:
    analysis = run((900, 100), (900, 100), (900, 700), (900, 100), (900, 100))
    assert [one.rule for one in analysis.losses] == ["loss-idle", "uneven-steps"]
    more = run((990, 10), (990, 10), (1_980, 20), (990, 10), (990, 10))
    assert [one.rule for one in more.losses] == ["uneven-steps"]


def test_the_cause_is_told_only_where_it_has_more_than_half() -> None:
    analysis = run((900, 100), (900, 100), (1_200, 400), (900, 100), (900, 100))
    assert uneven(analysis)[0].sentence.endswith("600 ns longer than the median.")
    analysis = run((900, 100), (900, 100), (1_400, 200), (900, 100), (900, 100))
    assert uneven(analysis)[0].sentence.endswith("the median, mostly compute.")


@pytest.mark.parametrize(
    ("longest", "is_found"),
    [
        (1_093, True),  # 93 of 3093 are 3.007 %
        (1_092, False),  # 92 of 3092 are 2.975 %
    ],
)
def test_it_is_a_finding_from_three_percent_on(longest: int, *, is_found: bool) -> None:
    assert bool(uneven(run((1_000, 0), (1_000, 0), (longest, 0)))) == is_found


def test_two_steps_are_not_compared() -> None:
    """Their median is their mean: one of them is always longer."""
    assert uneven(run((1_000, 0), (1_200, 0))) == []


def test_steps_that_are_alike_are_no_finding() -> None:
    assert uneven(run((1_000, 0), (1_010, 0), (990, 0), (1_000, 0))) == []


CHECKPOINT = (900, 100), (900, 100), (900, 700), (900, 100), (900, 100)


def saving(name: str, *times: tuple[int, int]) -> list[dict[str, Any]]:
    marks = [{"kind": "python", "name": name, "start_ns": at, "dur_ns": ns} for at, ns in times]
    loop = {"kind": "python", "name": "train.py(3): main", "start_ns": 900, "dur_ns": 5_800}
    return [loop, *marks]


def test_a_function_that_only_slow_steps_call_is_named() -> None:
    """Step 2 works from 3,000 to 3,900 and idles until 4,600, saving for 600 ns of that."""
    marks = saving("torch/serialization.py(944): save", (3_950, 600))
    (found,) = diagnosed(run(*CHECKPOINT, more=marks))
    assert (found.title, found.owner) == ("Checkpoints hold up some steps", "yours")
    assert found.sentence.endswith(
        "1 of 5 steps takes over 1.25 times the median (2): save (serialization.py:944) runs in no "
        "other step."
    )
    assert "async_save" in found.remedy
    assert "--steps 0:1 leaves them out." in found.remedy
    assert [(row.time_ns, row.count) for row in found.rows] == [(600, 1)]
    assert (found.where.start_ns, found.where.end_ns) == (3_000, 4_600)


def test_a_function_that_all_steps_call_is_not_named() -> None:
    marks = saving("log.py(9): log", *((at, 90) for at in (1_905, 2_905, 3_905, 5_505, 6_505)))
    (found,) = diagnosed(run(*CHECKPOINT, more=marks))
    assert found.title == "Some steps are slow"
    assert "log" not in found.sentence


def test_a_thread_that_waits_for_a_slow_step_is_not_its_cause() -> None:
    lock = "<built-in method acquire of _thread.lock object at 0x7f>"
    (found,) = diagnosed(run(*CHECKPOINT, more=saving(lock, (3_950, 600))))
    assert "acquire" not in found.sentence


def test_the_kernel_that_slow_steps_have_more_of_is_named() -> None:
    (found,) = diagnosed(run((900, 100), (900, 100), (1_400, 200), (900, 100), (900, 100)))
    assert found.sentence.endswith(f"{GEMM} takes 500 ns longer there.")
    assert [(row.name, row.time_ns) for row in found.rows] == [(GEMM, 500)]


def test_chosen_warm_up_steps_are_named_with_those_that_are_steady() -> None:
    chosen = Selection(steps=(0, 4))
    (found,) = diagnosed(run((900, 900), *((900, 100),) * 4, selection=chosen))
    assert found.title == "Warm-up steps are chosen"
    assert found.gain is None
    assert found.confidence is not None
    assert found.confidence.reasons[0] == fact("doubt.leaving-out")
    assert found.remedy == "--steps 1:4 leaves them out."
    (other,) = diagnosed(run((1_700, 100), *((900, 100),) * 4, selection=chosen))
    assert other.title == "Some steps are slow"  # it had more to compute


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("checkpoint 12", "Checkpoints hold up some steps"),
        ("<built-in function collect>", "Garbage collection holds up some steps"),
        ("train.py(44): evaluate", "Evaluation runs inside some steps"),
        ("Activity Buffer Request", "The profiler holds up some steps"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "Some steps are slow"),
        ("FSDP::pre_forward (blocks.9._checkpoint_wrapped_module)", "Some steps are slow"),
    ],
)
def test_what_only_slow_steps_do_is_told_by_its_name(name: str, title: str) -> None:
    (found,) = diagnosed(run(*CHECKPOINT, more=saving(name, (3_950, 600))))
    assert found.title == title
    assert "runs in no other step" in found.sentence
    assert len(found.remedy) > len("--steps 0:1 leaves them out.")
