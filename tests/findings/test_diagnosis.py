"""Causes planted in the simulator: the first finding is theirs, and its gain that of the repair."""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.plants import PLANTS, REPAIRED, cause_of
from sample_traces.simulate import simulate
from tests.build import launched, step_marks, trace_of
from tests.cli.test_commands import SAMPLE, assert_refused, run
from tests.conftest import examples, shared_file, some
from tests.findings.scenarios import WAYS, reach_ns
from tests.samples.strategies import run_configs
from tests.schemas import first_violation
from traceflops.attribution.culprits import BESIDE
from traceflops.errors import InputError
from traceflops.facts import Fact, fact
from traceflops.findings import diagnosis, gains
from traceflops.findings.diagnosis import longest_first, reasons_first, sold_once
from traceflops.findings.finding import (
    Cause,
    Confidence,
    Finding,
    Gain,
    Level,
    Row,
    Severity,
    Where,
)
from traceflops.findings.rules import thresholds
from traceflops.replay.what_if import Outcome
from traceflops.reports.json.brief import fitted
from traceflops.reports.json.report import findings_object
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.findings import opening
from traceflops.windows.selection import Selection, parse_steps

SMALL: Mapping[str, Any] = {"seed": 3, "steps": 4, "layers": 1, "vocab": 4096}
SLOW_RANK = {"ranks": 4, "layers": 2, "straggler_rank": 2, "straggler_percent": 160}
OF_PLANT = {"unrecorded": "host-code", "load_module": "code-loading"}
"""Plants that names tell more of than the class that is planted."""
LEVELS: tuple[Level, ...] = ("high", "medium", "low")
ROUNDING = 0.015
"""Share of a step by which a repair may differ: the call that wasted time is still made."""


@lru_cache(maxsize=8)
def analysis_of(config: RunConfig, steps: str = "0:3") -> tf.Analysis:
    with TemporaryDirectory() as folder:
        options = KinetoOptions(python_functions=True)
        write_pytorch(simulate(config), Path(folder), options, "rank{rank}")
        return tf.analyze(tf.read(folder), Selection(steps=parse_steps(steps)))


def step_ns(analysis: tf.Analysis) -> float:
    used = [one.dur_ns for each in analysis.devices for one in each.windows if one.used]
    return sum(used) / len(used)


def check(planted: RunConfig, repaired: RunConfig, rule: str) -> None:
    """Check that the first finding is of a rule, of high priority, and gains what a repair does."""
    analysis = analysis_of(planted)
    first, before = analysis.findings[0], step_ns(analysis)
    gained = before - step_ns(analysis_of(repaired))
    assert gained > 0.1 * before  # there is something to find
    assert (first.rule, first.priority) == (rule, "high")
    assert first.gain is not None
    assert first.confidence is not None
    assert first.gain.low_ns - ROUNDING * before <= gained
    assert reach_ns(first.gain) + ROUNDING * before >= gained
    assert first.remedy.endswith(".") == (rule != "slow-driver-call")  # no recording tells why
    assert (first.owner is None) == (rule == "device-wait")  # nothing recorded tells whose it is
    assert first.evidence
    assert first.rows


def test_the_first_finding_of_a_slow_host_is_that() -> None:
    config = RunConfig(**SMALL, host_op_ns=40_000)
    check(config, replace(config, host_op_ns=4_000), "eager-overhead")


@pytest.mark.parametrize("name", some(PLANTS, 3))
def test_the_first_finding_is_what_the_host_wasted_time_with(name: str) -> None:
    # In the second step: in the first, what is used for the first time is start-up.
    # After more than 1 ms nothing connects two threads: several handovers instead of one.
    times, plant_ns = (2, 950_000) if name == "thread_handover" else (1, 2_000_000)
    config = RunConfig(**SMALL, plants=(REPAIRED, *[name] * times), plant_ns=plant_ns)
    rule = OF_PLANT.get(name, cause_of(name, config).replace("_", "-"))
    check(config, replace(config, plant_ns=1_000), rule)


@pytest.mark.parametrize("config", [{"layers": 4}, {"layers": 3, "ranks": 2, "hidden": 2048}])
def test_nothing_stands_out_of_a_healthy_run(config: Mapping[str, Any]) -> None:
    analysis = analysis_of(RunConfig(**{**SMALL, **config}))
    first, *others = analysis.findings
    components = analysis.components
    lost = (components.idle_ns + components.communication_ns) / components.window_ns
    assert first.rule == "nothing-stands-out"
    assert first.share == lost < thresholds()["nothing-stands-out"]["most_share"]
    assert {one.priority for one in others} == {"low"}


def test_what_speaks_for_a_finding_is_no_reason_to_doubt_it() -> None:
    found = analysis_of(RunConfig(**SMALL, plants=("python", "allocate"), plant_ns=2_000_000))
    said = [one.confidence for one in found.findings if one.confidence is not None]
    assert said
    speaks = [any(why.code.startswith("strength.") for why in one.reasons) for one in said]
    assert any(speaks)
    pairs = zip(said, speaks, strict=True)
    assert all(one.level == "high" for one, speaks_for_it in pairs if speaks_for_it)


def test_a_wide_range_and_the_reason_for_it_are_one_doubt() -> None:
    first = analysis_of(RunConfig(**SMALL, host_op_ns=40_000)).findings[0]
    assert first.confidence == Confidence("medium", (fact("doubt.half"),))
    levels = dict.fromkeys(LEVELS, 0.1)
    stacks = (fact("strength.stacks"),)
    scales = gains.GainBasis(None, fact("x"), 100.0, 1, 0.02, 0, 0, None, (), stacks, levels)
    one = Cause("x", 0.1, fact("x"), fact("x"))
    expected: tuple[tuple[Gain, Level], ...] = (
        (Gain(20, 22, None), "high"),
        (Gain(10, 22, None), "medium"),
    )
    for gain, level in expected:
        found = gains._finding(one, scales, gains.GainEstimate(gain, ()))
        assert found.confidence == Confidence(level, stacks)


def test_how_well_kernels_of_unknown_flops_use_the_gpu_is_not_claimed() -> None:
    works = [{"name": "gemm", "start_ns": at} for at in (5, 6)]
    first, *_ = tf.analyze(trace_of(activities=works)).findings
    assert first.sentence.startswith(
        "The GPU is busy; how well its kernels use it is not recorded."
    )
    assert first.remedy


@pytest.mark.parametrize(
    ("prefix", "kernel_ns", "told"),
    [
        ("gemm_", 2_500, "Largest kernels: gemm_a (25.0 %), gemm_b (25.0 %), gemm_c (25.0 %). Rec"),
        ("solve_", 2_500, "Uncategorized kernels (solve_a 25.0 %, solve_b 25.0 %, solve_c 25.0 %)"),
        ("gemm_", 400, "Memory work (device-to-device copies) takes 84.0 %"),
    ],
    ids=["of unknown use", "named elsewhere", "beside copies"],
)
def test_the_largest_kernels_of_a_busy_gpu_are_said_first_once(
    prefix: str, kernel_ns: int, told: str
) -> None:
    works, copies = list[dict[str, Any]](), list[dict[str, Any]]()
    for at in range(20):
        own = {"name": prefix + "abcd"[at % 4], "start_ns": 2_500 * at, "dur_ns": kernel_ns}
        copy = {"name": "Memcpy DtoD", "kind": "memcpy", "direction": "DtoD", "bytes": 2_000}
        works.append(own)
        if kernel_ns < 2_500:
            end_ns = 2_500 * at + kernel_ns
            copies.append(copy | {"start_ns": end_ns, "dur_ns": 2_500 - kernel_ns})
    opened = opening(tf.analyze(trace_of(activities=[*works, *copies])))
    said = f"{opened.title} {opened.rest}"
    assert told in said
    assert said.count("_a (") + said.count("_a 25") == (kernel_ns == 2_500)
    assert "Memcpy" not in said


def test_gains_are_sorted_and_a_cause_says_where_it_is() -> None:
    found = analysis_of(RunConfig(**SMALL, plants=("python", "allocate"), plant_ns=2_000_000))
    causes = [one for one in found.findings if one.gain is not None]
    for first, later in pairwise(causes):
        assert first.gain and later.gain and first.confidence and later.confidence
        is_surer = LEVELS.index(later.confidence.level) <= LEVELS.index(first.confidence.level)
        assert first.gain.expected_ns >= later.gain.expected_ns or not is_surer
    assert {"host-code", "memory-alloc"} <= {one.rule for one in causes}
    (code,) = (one for one in causes if one.rule == "host-code")
    assert (code.where.file, code.where.line) == ("metrics.py", 9)
    assert code.where.start_ns is not None
    assert code.where.end_ns is not None
    assert code.where.end_ns - code.where.start_ns >= 1_900_000  # the last work ran into it


def test_waiting_for_a_slow_rank_is_no_fault_of_communication() -> None:
    analysis = analysis_of(RunConfig(**{**SMALL, **SLOW_RANK}))
    found = analysis.findings
    rank, communication = (of_rule(found, one) for one in ("late-rank", "exposed-communication"))
    assert rank.where.rank == 2
    assert rank.gain is not None
    assert communication.gain is not None
    assert communication.gain.high_ns < rank.gain.low_ns / 5
    alone = tf.what_if(analysis, "communication=hidden").together
    assert communication.gain.high_ns == -(-(alone.before_ns - alone.least_ns) // alone.windows)


def made(rule: str, **fields: Any) -> Finding:
    return Finding(rule, "low", 0.1, Fact("x"), Fact("x"), **fields)


def test_steps_are_replayed_as_graphs_once() -> None:
    launches, code, other = (
        made(rule, gain=Gain(ns, ns, ns), advice=Fact(advice))
        for rule, ns, advice in (
            ("eager-overhead", 100, "launching.graph"),
            ("host-code", 200, "launching.graph-without-waits"),
            ("sync-call", 10, "sync-call.remedy.keep"),
        )
    )
    assert sold_once([launches, code, other]) == [code, other]
    assert sold_once([launches, other]) == [launches, other]


def of_rule(found: tuple[Finding, ...], rule: str) -> Finding:
    (one,) = (one for one in found if one.rule == rule)
    return one


def test_what_says_why_work_is_slow_comes_before_what_says_that_it_is() -> None:
    def found(rule: str, gain_ns: int) -> Finding:
        return made(rule, gain=Gain(0, 2 * gain_ns, gain_ns))

    slow, late = found("exposed-communication", 50), found("late-rank", 30)
    other = found("data-input", 40)
    assert reasons_first([slow, other, late]) == [other, late, slow]
    little = found("late-rank", 20)
    assert reasons_first([little, slow, other]) == [slow, other, little]


def test_what_gains_more_and_is_surer_comes_first() -> None:
    """A wait of 14.6 ms that is sure, and a type of numbers that may gain 6.2 to 12.4 ms."""

    def found(rule: str, gain: Gain, level: Level) -> Finding:
        return made(rule, gain=gain, confidence=Confidence(level, ()))

    waits = found("host-waits", Gain(14_600, 14_600, 14_600), "medium")
    unsure = found("double-precision", Gain(6_200, 12_400, None), "low")
    assert reasons_first([unsure, waits]) == [waits, unsure]
    as_sure = found("data-input", Gain(8_300, 8_300, 8_300), "medium")
    assert reasons_first([waits, as_sure]) == [as_sure, waits]
    sure = found("host-code", Gain(14_000, 14_000, 14_000), "high")
    may_be = found("data-input", Gain(0, 25_000, None), "low")
    assert reasons_first([may_be, sure]) == [sure, may_be]
    much_larger = found("data-input", Gain(0, 45_000, None), "low")
    assert reasons_first([sure, much_larger]) == [much_larger, sure]


def test_what_holds_three_times_as_much_comes_first_without_a_gain() -> None:
    """Allocation takes 68 % of the time, copies that gain something 12.5 %, or 23 %.

    Of these 23 %, the remedy gains all or 100 of 1,000 ns.
    """
    holds = replace(made("memory-alloc"), severity="high", share=0.68, gain=None)
    little, more = (
        replace(made("host-copies", gain=Gain(50, 100, None)), share=share)
        for share in (0.125, 0.23)
    )
    assert longest_first([little, holds], 400) == [holds, little]
    assert longest_first([more, holds], 400) == [more, holds]
    assert longest_first([more, holds], 1_000) == [holds, more]


def test_before_gains_without_a_lower_bound_comes_what_holds_more() -> None:
    """Unrecorded host time takes 29 % of the time; launching may gain up to 20 %, or 35 %."""
    holds = replace(made("host-unrecorded"), severity="high", share=0.29, gain=None)
    less, more = (
        replace(made("eager-overhead", gain=Gain(0, high, None)), share=0.4) for high in (20, 35)
    )
    assert longest_first([less, holds], 100) == [holds, less]
    assert longest_first([more, holds], 100) == [more, holds]


def test_waiting_for_input_comes_first_and_gains_nothing() -> None:
    """A person answers after 60 % of the time; no remedy is told with a gain."""
    copies = made("pageable-copies", gain=Gain(0, 300, None))
    waits = replace(made("input-wait"), severity="high", gain=None)
    assert reasons_first([copies, waits]) == [waits, copies]
    # Nor does more time of which no gain is known come before that.
    longer = replace(made("host-unrecorded"), severity="high", gain=None, share=waits.share + 0.1)
    assert longest_first(reasons_first([longer, waits]), 1_000) == [waits, longer]


def test_what_is_said_of_a_rank_comes_before_the_same_of_any() -> None:
    def found(rule: str, name: str, gain_ns: int, rank: int | None = None) -> Finding:
        gain, rows = Gain(gain_ns, gain_ns, gain_ns), (Row(name, 9, 1),)
        where = Where(rank=rank)
        return made(rule, gain=gain, rows=rows, where=where)

    loads, late = found("data-input", "__next__", 50), found("late-rank", "__next__", 49, 2)
    other = found("host-code", "collect", 60)
    assert reasons_first([other, loads, late]) == [other, late, loads]
    of_other = found("late-rank", "collect", 49, 2)
    assert reasons_first([loads, of_other]) == [loads, of_other]


def test_without_calls_no_gain_is_told_but_why() -> None:
    marks = step_marks(*((f"ProfilerStep#{at}", 1_000 * at, 990) for at in range(4)))
    works = launched(*(("sm90_gemm", 1_000 * at + 5, 1_000 * at + 10, 400) for at in range(4)))
    works["calls"] = []
    found = tf.analyze(trace_of(**works, marks=marks)).findings
    assert all(one.gain is None for one in found)


def test_the_middle_of_a_range_counts_where_no_figure_is_sure() -> None:
    assert Gain(10, 30, None).expected_ns == 20
    assert Gain(10, 30, 28).expected_ns == 28
    assert Gain(10, 10, None, may_be_more=True, most_ns=60).expected_ns == 30


def test_a_sure_gain_comes_before_one_that_may_be_nothing() -> None:
    sure, unsure, far_larger = Gain(20, 22, None), Gain(0, 40, None), Gain(0, 44, None)
    assert unsure.expected_ns < sure.expected_ns < far_larger.expected_ns


def test_no_remedy_makes_a_step_longer() -> None:
    """Of what is not certain, one way has the step end later than it did."""

    class Told:
        windows = 2
        critical = ()

        def outcome(self, edits: object) -> Outcome:
            assert edits
            return Outcome((), 1_000, 900, 880, 1_020, 2, None, (), (fact("x"),))

    one = Cause("x", 0.1, fact("x"), fact("x"), edits=("sync=0",))
    found = gains._edited(one, Told(), 0)  # type: ignore[arg-type]
    assert found.gain == Gain(0, 60, 50)


def scales_with(replay: object, idle_ns: int) -> gains.GainBasis:
    """Return scales of one window of 1,000 ns, of which the busiest stream idles for `idle_ns`."""
    levels: dict[Severity, float] = {"high": 0.1, "medium": 0.05, "low": 0.01}
    return gains.GainBasis(
        replay,  # type: ignore[arg-type]
        fact("x"),
        step_ns=1_000,
        windows=1,
        least_sure=0.02,
        idle_ns=idle_ns,
        alone_ns=0,
        mfu=None,
        doubts=(),
        strengths=(),
        levels=levels,
    )


@pytest.mark.parametrize(("why", "most"), [("unexplained", 700), ("pinned", 60)])
def test_what_unexplained_work_hides_may_be_gained_too(why: str, most: int) -> None:
    """Of 1,000 ns the cause has 700 on the critical path, and what-if gains 50 to 60."""
    path = (SimpleNamespace(ns=700, component="host_code", name="f"),)
    outcome = Outcome((), 1_000, None, 940, 950, 1, None, (), (fact(f"doubt.{why}"),))
    replay = SimpleNamespace(before_ns=1_000, critical=path, windows=1, outcome=lambda _: outcome)
    one = Cause("x", 0.7, fact("x"), fact("x"), edits=("sync=0",), on_path=frozenset(["host_code"]))
    found = gains.weighed(one, scales_with(replay, idle_ns=900))
    assert found is not None and found.gain is not None
    assert max(found.gain.high_ns, found.gain.most_ns or 0) == most


@pytest.mark.parametrize(
    ("idle_ns", "component", "most"),
    [(50, "host_code", 300), (200, "host_code", None), (200, BESIDE, 300)],
)
def test_kernels_off_the_path_gain_where_the_gpu_is_hardly_idle(
    idle_ns: int, component: str, most: int | None
) -> None:
    """The host has the critical path alone; the kernels would take 300 ns less."""
    path = (SimpleNamespace(ns=1_000, component=component, name="f"),)
    replay = SimpleNamespace(before_ns=1_000, critical=path, windows=1)
    one = Cause(
        *("x", 0.3, fact("x"), fact("x")),
        on_path=frozenset(["compute"]),
        kernels={"k": 0.5},
        direct_ns=300,
    )
    found = gains.weighed(one, scales_with(replay, idle_ns))
    assert (found and found.gain) == (Gain(0, 300, None) if most else None)


def test_the_memory_of_the_same_copies_is_pinned_once() -> None:
    def copies(rule: str, high_ns: int) -> Finding:
        return made(rule, gain=Gain(0, high_ns, None))

    small, large = copies("blocking-copy", 10), copies("pageable-copies", 30)
    other = copies("host-copies", 5)
    assert sold_once([small, other, large]) == [other, large]
    assert sold_once([small, other]) == [small, other]


def test_a_loss_repeats_no_remedy_of_its_cause() -> None:
    found = analysis_of(RunConfig(**{**SMALL, "host_op_ns": 40_000}))
    (before,) = (one for one in found.losses if one.rule == "loss-idle")
    (after,) = (one for one in found.findings if one.rule == "loss-idle")
    assert before.sentence.startswith(f"{after.sentence} Of that, ")
    assert "launching" in before.sentence
    assert after.title == "Idle time"


def test_the_loader_of_a_real_recording() -> None:
    """Measured with 4 workers instead: a step takes 39 ms less by means, 48 by medians."""
    path = shared_file("traces/pytorch/v100_kineto_resnet50_nw0.json.gz")
    first = tf.analyze(tf.read(path)).findings[0]
    assert (first.rule, first.priority, first.owner) == ("data-input", "high", "input pipeline")
    assert first.gain is not None
    assert first.gain.low_ns <= 39_000_000
    assert first.gain.high_ns >= 48_000_000
    assert first.gain.high_ns - first.gain.low_ns < 0.13 * 176_000_000
    assert "num_workers" in first.remedy
    assert first.confidence is not None
    assert fact("doubt.workers") in first.confidence.reasons


def test_late_work_that_nothing_explains_is_nobodys_fault() -> None:
    """Of 1.22 s, work that the CPU had launched starts 389 ms late on an idle GPU."""
    path = shared_file("traces/pytorch/hta_sampled_rank0.json.gz")
    found = of_rule(tf.analyze(tf.read(path)).findings, "device-wait")
    assert found.share == pytest.approx(389_221_000 / 1_222_846_928, abs=1e-4)
    assert "no recorded wait explains it" in found.sentence
    assert found.owner is None
    assert "record the program alone, with all GPU work" in found.remedy


def test_the_blas_library_of_amd_is_tuned_by_its_own_option() -> None:
    path = shared_file("traces/pytorch/mi300x_torch_compile.json.gz")
    found = of_rule(tf.analyze(tf.read(path)).findings, "matrix-rate")
    assert "PYTORCH_TUNABLEOP_ENABLED=1" in found.remedy


@pytest.mark.parametrize(
    ("gain", "priority", "level", "leads"),
    [
        (Gain(0, 190, None), "medium", "low", True),
        (Gain(0, 210, None), "high", "low", False),  # a third of its 600 ns
        (Gain(150, 150, 150), "high", "high", False),
        (Gain(60, 60, 60), "medium", "high", True),
    ],
)
def test_a_kernel_with_much_of_the_time_comes_before_what_gains_little(
    gain: Gain, priority: Level, level: Level, leads: bool
) -> None:
    main = replace(made("main-kernel", rows=(Row("k", 600, 1),)), share=0.6)
    one = made("sync-call", gain=gain, priority=priority, confidence=Confidence(level, ()))
    total = SimpleNamespace(components=SimpleNamespace(window_ns=1_000))
    case = SimpleNamespace(losses=(main,), total=total, windows_used=1)
    found = diagnosis._with_main_kernel(case, [one])
    assert found == ([main, one] if leads else [one, main])


def test_a_kernel_that_takes_more_than_the_title_is_named_below_it() -> None:
    analysis = analysis_of(RunConfig(**SMALL, plants=("python",), plant_ns=2_000_000))
    first, *others = analysis.findings
    kernel = replace(first, rule="main-kernel", share=0.99, claim=fact("quoted", text="k takes it"))
    analysis.__dict__["findings"] = (first, kernel, *others)
    assert opening(analysis).rest == "k takes it"
    analysis.__dict__["findings"] = (first, replace(kernel, share=0.01), *others)
    assert opening(analysis).rest == ""


@pytest.mark.parametrize(("low_ns", "is_told"), [(900_000, True), (0, False)])
def test_below_a_kernel_of_unknown_gain_stands_what_surely_gains(
    low_ns: int, *, is_told: bool
) -> None:
    analysis = analysis_of(RunConfig(**SMALL, plants=("python",), plant_ns=2_000_000))
    cause = replace(analysis.findings[0], gain=Gain(low_ns, 1_000_000, None), priority="medium")
    told = {"advice": fact("quoted", text="profile"), "severity": "high", "gain": None}
    kernel = replace(cause, rule="main-kernel", share=0.6, confidence=None, **told)
    analysis.__dict__["findings"] = (kernel, cause)
    assert ("What is known to save time" in opening(analysis).rest) == is_told


def test_the_main_kernel_is_told_once() -> None:
    analysis = tf.analyze(tf.read(shared_file("traces/nsight/nsys_t4_power_iteration.sqlite")))
    (main,) = (one for one in analysis.losses if one.rule == "main-kernel")
    kernel = main.rows[0].name
    assert kernel == "gemv2T_kernel_val"
    told = [one.rule for one in analysis.findings if one.rows and kernel in one.rows[0].name]
    assert told == ["double-precision"]


def test_a_kernel_for_which_the_gpu_only_waits_is_not_told_by_that() -> None:
    kernel = made("main-kernel", rows=(Row("k", 600, 1),))
    waits, slow = (replace(kernel, rule=rule) for rule in ("launch-latency", "double-precision"))
    waits = replace(waits, evidence=("idle",))
    assert [diagnosis._is_told(kernel, [one]) for one in (waits, slow)] == [False, True]


def test_below_start_up_stands_the_kernel_of_the_rest_and_what_to_do() -> None:
    analysis = analysis_of(RunConfig(**SMALL, plants=("python",), plant_ns=2_000_000))
    told = {"advice": fact("quoted", text="profile it"), "severity": "high", "gain": None}
    starts = replace(analysis.findings[0], rule="start-up", share=0.9, confidence=None, **told)
    said = {"claim": fact("quoted", text="k takes it"), "details": ()}
    kernel = replace(starts, rule="main-kernel", share=0.7, **said)
    analysis.__dict__["findings"] = (starts, kernel)
    assert opening(analysis).rest.startswith("k takes it profile it ")
    assert sum("k takes it" in line.plain for line in render_terminal(analysis)) == 1


def test_what_holds_up_the_gpu_comes_before_the_wait_that_follows() -> None:
    """Between its steps this program writes a file, in ranges that are called IO 0, IO 1, ..."""
    analysis = tf.analyze(tf.read(shared_file("traces/nsight/nsys_t4_power_iteration.sqlite")))
    first = analysis.findings[0]
    assert (first.rule, first.rows[0].name) == ("host-unrecorded", "IO")


def test_few_tokens_are_judged_by_the_bits_of_the_weights() -> None:
    """Weights of 4 bits are read in a quarter of the time: 32 tokens are not few for them."""
    path = shared_file("traces/pytorch/mi300x_vllm_gptoss_decode_graph.json.gz")
    analysis = tf.analyze(tf.read(path))
    (main,) = (one for one in analysis.losses if one.rule == "main-kernel")
    assert (main.rows[0].name, main.rows[0].time_ns) == ("_matmul_ogs", 7_034_595)
    assert "limited by reading weights" in main.remedy
    assert "quantize" not in main.remedy
    assert not {"decode-batch", "nothing-stands-out"} & {one.rule for one in analysis.findings}


def test_what_saves_nothing_is_only_a_loss() -> None:
    """All exposed all-reduces of this rank end before the host, on which all else waits."""
    path = shared_file("traces/pytorch/a100_hta_nccl_rank0.json.gz")
    found = tf.analyze(tf.read(path)).findings
    assert "exposed-communication" not in [one.rule for one in found]
    assert "loss-communication" in [one.rule for one in found]


def test_findings_on_their_own_are_short_whatever_they_are() -> None:
    analysis = analysis_of(RunConfig(**{**SMALL, **SLOW_RANK}))
    whole = findings_object(analysis)
    assert (whole["left_out"], len(whole["findings"])) == (0, len(analysis.findings))
    analysis.__dict__["findings"] = analysis.findings * 9
    some = findings_object(analysis)
    assert some["left_out"] + len(some["findings"]) == len(analysis.findings)
    assert some["left_out"] > 0
    assert some["findings"][0] == whole["findings"][0]
    printed = fitted(some)
    assert first_violation(json.loads(printed)) is None
    assert len(json.loads(printed)["findings"]) == len(some["findings"])
    assert len(printed.encode()) <= 8_192


def test_only_the_findings_are_printed() -> None:
    printed = json.loads(run("summary", SAMPLE, "--json", "--only", "findings").stdout)
    assert printed["schema"] == "traceflops.findings/1"
    assert printed["findings"][0]["rule"] == "data-input"
    for wrong in (["--only", "findings"], ["--json", "--only", "kernels"]):
        assert_refused(run("summary", SAMPLE, *wrong), 2, "cannot be printed")


@pytest.mark.parametrize(("last", "has_ranks"), [("c", False), ("ncclDevKernel_AllReduce", True)])
def test_one_process_is_not_asked_for_its_ranks(last: str, *, has_ranks: bool) -> None:
    """Work starts 400 ms after its launch on an idle GPU, and no recorded wait explains it."""
    works = [
        ("a", 0, 100, 10**6),
        ("b", 1_000, 4 * 10**8, 10**6),
        (last, 401_000_000, 401_100_000, 9),
    ]
    found = of_rule(tf.analyze(trace_of(**launched(*works))).findings, "device-wait")
    assert found.remedy.startswith("Another process")
    assert ("on all ranks" in found.remedy) == has_ranks


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (30, 100, (30, 100, False)),
        (20, 100, (20, 20, True)),  # more than four times as much: what is sure, if it is enough
        (1, 100, (0, 100, False)),
        (0, 100, (0, 100, False)),
    ],
)
def test_no_range_is_wider_than_four_times(
    low: int, high: int, told: tuple[int, int, bool]
) -> None:
    gain = Gain(low, high, None).narrowed(2)
    assert (gain.low_ns, gain.high_ns, gain.may_be_more) == told


@pytest.mark.parametrize("section", ["idle", "ranks"])
@pytest.mark.parametrize("direct_ns", [None, 300, 900])
def test_a_gain_is_at_most_the_part_of_its_cause_and_the_rest_is_told_apart(
    section: str, direct_ns: int | None
) -> None:
    """The cause has 300 of 1,000 ns, whatever its remedy frees besides."""
    claims = ("x", 0.3, fact("x"), fact("x"))
    one = Cause(*claims, evidence=(section,), gain=Gain(200, 800, 700), direct_ns=direct_ns)
    found = gains.weighed(one, scales_with(None, idle_ns=0))
    assert found is not None
    assert found.gain == Gain(200, 300, 300, further_ns=500)


def assert_bounded(analysis: tf.Analysis, name: str) -> None:
    """Check that no gain exceeds the time that the bar shows for its cause, or is a wide range."""
    parts, windows = analysis.components, max(analysis.windows_used, 1)
    shown = {"idle": parts.idle_ns, "communication": parts.communication_ns}
    for one in analysis.findings:
        if one.gain is None:
            continue
        component_ns = shown.get(next(iter(one.evidence), ""), parts.window_ns)
        most_ns = min(one.share * parts.window_ns, component_ns) / windows
        case = f"{name}: {one.rule} has {most_ns} ns, gains {one.gain}"
        assert max(one.gain.high_ns, one.gain.most_ns or 0) <= most_ns + 1, case
        assert one.gain.high_ns <= 4 * one.gain.low_ns or one.gain.low_ns == 0, case


@settings(max_examples=examples(40))
@given(st.data())
def test_no_gain_of_a_planted_cause_exceeds_its_part_of_the_bar(data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(sorted(WAYS)))
    plants = tuple(data.draw(st.lists(st.sampled_from(sorted(PLANTS)), max_size=4)))
    machine: dict[str, Any] = {"machine": "mi300x"} if tool == "rocprof" else {}
    plant_ns = data.draw(st.integers(1_000, 2_000_000))
    config = data.draw(run_configs(plants=plants, plant_ns=plant_ns, **machine))
    with TemporaryDirectory() as folder:
        WAYS[tool](simulate(config), Path(folder))
        assert_bounded(tf.analyze(tf.read(folder)), tool)


def test_no_gain_in_a_recording_exceeds_its_part_of_the_bar() -> None:
    """Of the public traces and cases; by day, a part of them."""
    files = [file for of in ("cases", "traces") for file in sorted(shared_file(of).rglob("*.*"))]
    for file in some((file for file in files if file.is_file()), 12):
        with suppress(InputError):
            assert_bounded(tf.analyze(file), file.name)


def test_what_is_gained_beyond_the_time_of_a_cause_is_told_apart() -> None:
    first = analysis_of(RunConfig(**SMALL, host_op_ns=40_000)).findings[0]
    assert first.gain is not None
    further = [one for one in first.details if one.code == "finding.further"]
    assert [one.values["further_ns"] for one in further] == [first.gain.further_ns]
