"""What a comparison says of the gain that a finding promised."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from tests.conftest import SAMPLES, analysis_of_sample
from tests.findings.faults import simulated, step_ns
from tests.findings.scenarios import WAYS, analysis_of
from traceflops.cli import app
from traceflops.comparison.promise import Promise, promise_of
from traceflops.comparison.report_side import side_of_report
from traceflops.comparison.side import Told, side_of
from traceflops.comparison.spread import Interval
from traceflops.errors import UsageError
from traceflops.reports.view.comparison import more_sentences
from traceflops.reports.view.texts import words

STALL_NS = 4_000_000
RUN = RunConfig(seed=3, steps=6, steady_draws=True, layers=2, hidden=1_024, heads=16)
"""A run without a fault; every step of SLOW waits so much longer for data."""
SLOW = replace(RUN, data_stall_steps=tuple(RUN.step_numbers), data_stall_ns=STALL_NS)


@cache
def analysis(run: RunConfig) -> tf.Analysis:
    return analysis_of(run, WAYS["pytorch"])


def promise(before: RunConfig, after: RunConfig, fix: str | None = None) -> Promise | None:
    return tf.compare(analysis(before), analysis(after), fix=fix).promise


def of(outcome: Promise | None) -> tuple[Any, ...]:
    assert outcome is not None
    return outcome.outcome, [finding.rule for finding in outcome.findings]


def test_a_repair_gains_what_was_promised() -> None:
    kept = promise(SLOW, RUN)
    assert kept is not None
    assert of(kept) == ("as-promised", ["data-input"])
    gained_ns = step_ns(SLOW) - step_ns(RUN)  # by the simulator
    assert abs(kept.gained_ns - gained_ns) <= 0.01 * step_ns(SLOW)
    assert kept.low_ns <= gained_ns * 1.01
    assert gained_ns * 0.99 <= kept.high_ns


def test_steps_that_got_longer_keep_no_promise_even_if_their_spread_meets_it() -> None:
    before = side_of(analysis(SLOW), "before")
    after = replace(before, findings=())
    found = promise_of(before, after, 1_000_000, Interval(-9e6, 11e6))
    assert found is not None and found.outcome == "other"
    assert "1.00 ms longer" in found.sentence and "may also be chance" in found.sentence
    nearly = Promise("as-promised", found.findings, 0, 9, -1, Interval(-5, 3), None)
    assert "0 ns came (95 % interval −5 ns to +3 ns" in nearly.sentence


def test_half_a_repair_gains_less() -> None:
    half = replace(SLOW, data_stall_ns=3 * STALL_NS // 4)
    assert of(promise(SLOW, half)) == ("less", ["data-input"])


def test_a_regression_is_no_fix() -> None:
    change = tf.compare(analysis(RUN), analysis(SLOW))
    assert of(change.promise) == ("other", [])
    assert not any("promise" in sentence for sentence in more_sentences(change))


def test_what_should_have_been_fixed_is_still_there() -> None:
    again = replace(SLOW, seed=4)
    assert of(promise(SLOW, again, "data-input")) == ("still-there", ["data-input"])


def test_another_batch_is_not_judged() -> None:
    assert promise(SLOW, replace(RUN, batch=RUN.batch * 2)) is None
    other = promise(SLOW, replace(RUN, batch=RUN.batch * 2), "data-input")
    assert of(other)[0] == "not-judged"
    assert other is not None
    assert other.unlike == "model FLOPs of a step"


def test_programs_whose_flops_are_unknown_are_told_apart_by_calls_of_kernels() -> None:
    before, after = (SAMPLES / "tutorials" / name for name in ("training/before", "serving/after"))
    analyses = tf.analyze(before), tf.analyze(after)
    assert tf.compare(*analyses).promise is None
    other = tf.compare(*analyses, fix="data-input").promise
    assert of(other)[0] == "not-judged"
    assert other is not None
    assert other.unlike == "most kernels"


def test_a_finding_that_promised_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="is called slow-link"):
        promise(SLOW, RUN, "slow-link")


def test_a_gate_fails_where_a_promise_is_not_kept(tmp_path: Path) -> None:
    runs = {"slow": SLOW, "half": replace(SLOW, data_stall_ns=3 * STALL_NS // 4), "fixed": RUN}
    for name, run in runs.items():
        write_pytorch(simulated(run), tmp_path / name, KinetoOptions(compression="none"))

    tf.analyze(tmp_path / "slow").save(tmp_path / "slow.json")

    def check(after: str, baseline: str | Path) -> tuple[int, str]:
        given = ["check", str(tmp_path / after), "--baseline", str(tmp_path / baseline)]
        result = CliRunner().invoke(app, [*given, "--promised", "data-input"])
        return result.exit_code, result.output

    for baseline in ("slow", "slow.json"):
        assert [check(after, baseline)[0] for after in ("fixed", "half")] == [0, 4]
    code, said = check("fixed", SAMPLES / "torch_cpu_train.json.gz")
    assert (code, said.count("only operators on the CPU")) == (4, 2)


UNFUSED = replace(RUN, eager=("attention",), sequence=1_024)


def test_a_repair_by_an_operator_for_several_is_judged_if_all_others_do_the_same() -> None:
    """Fused attention leaves out masked pairs, so a step has fewer FLOPs."""
    fused = replace(UNFUSED, eager=())
    kept = promise(UNFUSED, fused)
    assert of(kept) == ("as-promised", ["unfused-attention"])
    assert kept is not None
    assert abs(kept.gained_ns - (step_ns(UNFUSED) - step_ns(fused))) <= 0.01 * step_ns(UNFUSED)
    for other in ({"batch": RUN.batch * 2}, {"hidden": 2_048, "heads": 32}):
        assert promise(UNFUSED, replace(fused, **other)) is None
        told = promise(UNFUSED, replace(fused, **other), "unfused-attention")
        assert of(told)[0] == "not-judged"


def test_the_same_work_in_smaller_pieces_is_judged() -> None:
    bubbles = replace(RUN, ranks=2, stages=2, microbatches=1, batch=8)
    pieces = replace(bubbles, microbatches=4, batch=2)
    assert of(promise(bubbles, pieces)) == ("as-promised", ["pipeline-bubble"])
    assert promise(bubbles, replace(pieces, batch=1)) is None


def test_a_report_promises_what_its_recording_does() -> None:
    before, after = analysis(SLOW), analysis(RUN)
    written = side_of_report(before.to_json().encode())
    by_report, by_trace = tf.compare(written, after).promise, tf.compare(before, after).promise
    assert of(by_report) == ("as-promised", ["data-input"])
    assert by_report is not None
    assert by_trace is not None
    assert words(by_report.fact) == words(by_trace.fact)
    both = tf.compare(written, side_of_report(after.to_json().encode())).promise
    assert both is not None
    assert words(both.fact) == words(by_trace.fact)


def test_nothing_is_said_of_equal_runs() -> None:
    assert promise(RUN, replace(RUN, seed=5)) is None


def test_recordings_of_the_cpu_alone_promise_nothing_and_say_so() -> None:
    trained = analysis_of_sample("torch_cpu_train.json.gz")
    other = tf.analyze(SAMPLES / "torch_cpu_train.json.gz", steps="3:4")
    assert tf.compare(trained, other).promise is None
    with pytest.raises(UsageError) as refused:
        assert tf.compare(trained, other, fix="data-input").promise
    assert "gains of operators on the CPU are not estimated" in refused.value.hint


@pytest.mark.parametrize(
    ("gained_ns", "ends_ns", "steps", "said"),
    [
        (
            7,
            (5, 9),
            True,
            "5.00 to 9.00 ns per step, and 7 ns came (95 % interval 5.00 to 9.00 ns)",
        ),
        (7, (-1, 9), True, "(95 % interval −1 ns to +9 ns, so the change may also be chance)"),
        (7, None, False, "5.00 to 9.00 ns, and 7 ns came."),
        (4, (1, 8), True, "Promise perhaps kept: “Slow” promised 5.00 to 9.00 ns per step"),
    ],
)
def test_a_kept_promise_says_how_sure_it_is(
    gained_ns: int, ends_ns: tuple[int, int] | None, steps: bool, said: str
) -> None:
    told = Told("data-input", "Slow", 0.5, None, (), ())
    interval = Interval(*ends_ns) if ends_ns is not None else None
    kept = Promise("as-promised", (told,), 5, 9, gained_ns, interval, None, has_steps=steps)
    assert said in kept.sentence
