"""Loops at a fixed rate: what they wait for is no loss."""

import itertools
import random

import pytest

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from traceflops.findings.finding import Finding

MS = 1_000_000


def found(rule: str, name: str, *, is_late_for_good: bool) -> Finding:
    """Return what is found of 64 steps of 40 ms, in which a kernel runs for 5 ms.

    A step begins up to 2 ms late; where `is_late_for_good`, all that follow as well.
    """
    late, random_ns = 0, random.Random(5).choices(range(2 * MS), k=65)
    begins = []
    for number, own in enumerate(random_ns):
        begins.append(40 * MS * number + late + own)
        late += own if is_late_for_good else 0
    works = launched(*(("k", at, at + 10_000, 5 * MS) for at in begins[:-1]))
    spans = itertools.pairwise(begins)
    marks = [*step_marks(*((f"step {n}", *span) for n, span in enumerate(spans)))]
    waits = [
        {"name": name, "kind": "system", "start_ns": at + 6 * MS, "dur_ns": end - at - 7 * MS}
        for at, end in itertools.pairwise(begins)
    ]
    findings = tf.analyze(trace_of(**works, marks=[*marks, *waits])).findings
    return next(one for one in findings if one.rule == rule)


@pytest.mark.parametrize(
    ("rule", "name", "is_late_for_good", "said"),
    [
        ("external-wait", "poll", False, "a late one delays none of those after it"),
        ("external-wait", "poll", True, None),
        ("external-wait", "sem_wait", False, None),  # another thread's work
        ("own-sleep", "usleep", True, "If the sleep sets the rate on purpose, that is no loss."),
    ],
)
def test_waiting_for_the_next_turn_is_no_loss(
    rule: str, name: str, is_late_for_good: bool, said: str | None
) -> None:
    finding = found(rule, name, is_late_for_good=is_late_for_good)
    assert (finding.gain is None) == bool(said)
    assert (finding.title == "The loop keeps a fixed rate") == bool(said)
    assert (said or "The GPU is idle") in finding.sentence


def test_steps_that_the_gpu_fills_have_no_clock() -> None:
    """Every eighth step takes 28 % longer, so that eight together are always equally long."""
    lengths = [12_800 if number % 8 == 7 else 10_000 for number in range(64)]
    begins = [0, *itertools.accumulate(lengths)]
    works = launched(*(("k", at, at, ns) for at, ns in zip(begins, lengths, strict=False)))
    marks = step_marks(*((f"step {n}", *span) for n, span in enumerate(itertools.pairwise(begins))))
    findings = tf.analyze(trace_of(**works, marks=marks)).findings
    (uneven,) = [finding for finding in findings if finding.rule == "uneven-steps"]
    assert uneven.gain is not None
