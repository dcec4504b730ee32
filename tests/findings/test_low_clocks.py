"""Clocks that were sampled beside a recording: what is found, and how they are shown."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.gpu_samples import SamplingOptions, write_gpu_samples
from sample_traces.simulate import simulate
from tests.build import launched, step_marks, trace_of
from tests.schemas import VALIDATORS
from traceflops.findings.finding import Finding
from traceflops.recording.inventory import missing_from
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal

MS = 10**6
SLOWLY: dict[str, Any] = {
    "peak_flops_per_s": 989_400_000_000,
    "hbm_bytes_per_s": 3_350_000_000,
    "link_bytes_per_s": 450_000_000,
}
"""A machine so slow that a small run lasts for seconds."""


@cache
def both(clock: int = 1_414) -> tuple[tf.Analysis, tf.Analysis]:
    """Return a run with samples, and the samples alone.

    Of four ranks the third has this clock of 1,980 MHz, and its kernels take 1.4 times as long.
    """
    slow = {"straggler_rank": 2, "straggler_percent": 140, **SLOWLY}
    run = simulate(RunConfig(ranks=4, layers=1, steps=6, sync_each_step=True, **slow))
    with TemporaryDirectory() as name:
        folder = Path(name)
        list(write_pytorch(run, folder / "ranks"))
        options = SamplingOptions(every_ns=200 * MS, zone_minutes=-330, more_gpus=4)
        smi = write_gpu_samples(run, folder / "smi.csv", options)
        smi.write_text(smi.read_text().replace("1414 MHz", f"{clock} MHz"))
        joined = tf.read(folder / "ranks", gpu_samples=smi)
        return tf.analyze(joined), tf.analyze(tf.read(smi))


def test_a_late_rank_is_explained_by_its_clock() -> None:
    analysis, _ = both()
    (late,) = (one for one in analysis.findings if one.rule == "late-rank")
    assert (
        "Its clock is 1,414 MHz while it works, 28.6 % below its maximum (hardware thermal "
        "slowdown); the others run at 1,980 MHz." in late.sentence
    )
    assert "cooling" in late.remedy
    assert not [one for one in analysis.findings if one.rule == "low-clock"]  # said once
    assert [(one.device, round(one.clock_mhz or 0)) for one in analysis.gpu_samples] == [
        *((0, 1980), (1, 1980), (2, 1414), (3, 1980))
    ]


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (1_900, "Its clock is no lower than theirs: 1,900 MHz while it works."),  # 4 %
        (1_870, "Its clock is 1,870 MHz while it works, 5.6 % below its maximum"),
    ],
)
def test_a_late_rank_of_nearly_the_same_clock_is_slow_for_another_reason(
    clock: int, said: str
) -> None:
    analysis, _ = both(clock)
    (late,) = (one for one in analysis.findings if one.rule == "late-rank")
    assert said in late.sentence


def test_redaction_keeps_the_samples() -> None:
    analysis, _ = both()
    redacted = tf.analyze(analysis.prepared.trace, redact=True)
    assert redacted.gpu_samples == analysis.gpu_samples
    assert not any("smi.csv" in note.text for note in redacted.notes)


def test_every_report_shows_the_samples() -> None:
    for analysis, name in zip(both(), ("rank 2 · gpu 2", "GPU 2"), strict=True):
        lines = [line.plain for line in render_terminal(analysis, Style(width=100))]
        (row,) = (line for line in lines if "1,414 MHz" in line and line.startswith(name))
        assert "1,980 MHz" in row
        assert "90 °C" in row
        assert f"  {name}: hardware thermal slowdown" in lines
        for text in (render_markdown(analysis), render_html(analysis)):
            assert "hardware thermal slowdown" in text
            assert "Throttled by" in text


def test_samples_alone_say_which_clock_is_low() -> None:
    _, alone = both()
    assert "No GPU operations" not in render_html(alone)
    assert missing_from(alone.prepared.trace) == ()  # nothing that a profiler would record
    assert alone.verdict.sentence == (
        "The GPUs are busy for 28.1 % of the 23.2 s sampled, from 0.0 % (GPU 4) to 56.3 % (GPU 2). "
        "Busy is when any kernel runs; how well it uses the GPU takes a recording. "
        "The clock of GPU 2, the slowest, is "
        "1,414 MHz while it works, 28.6 % below its maximum (hardware thermal slowdown)."
    )


CLOCKS = "timestamp, index, clocks.sm [MHz], clocks.max.sm [MHz]"
ROWS = ("0, 345 MHz, 1980 MHz", "1, 345 MHz, 1980 MHz", "0, 1410 MHz, 1980 MHz")


@pytest.mark.parametrize(
    ("reasons", "busy", "said"),
    [
        (
            ("0x1", "0x1", "0x4"),
            [1, 0],
            "The clock of GPU 0, the slowest, is 1,410 MHz while it works",
        ),
        (("0x0", "0x0", "0x4"), [0, 0], ""),  # idle is never told: it may be a tool without it
        ((), [0, 0], ""),
    ],
)
def test_a_gpu_is_said_to_work_only_where_something_tells_it(
    reasons: tuple[str, ...], busy: list[int], said: str, tmp_path: Path
) -> None:
    head = CLOCKS + ", clocks_event_reasons.active" * bool(reasons)
    cells = (f", {reason}" for reason in reasons or [""] * 3)
    cells = (cell if reasons else "" for cell in cells)
    rows = (
        f"2024/03/19 00:00:0{second}.000, {row}{cell}"
        for second, (row, cell) in enumerate(zip(ROWS, cells, strict=True))
    )
    (tmp_path / "smi.csv").write_text("\n".join((head, *rows)) + "\n")
    analysis = tf.analyze(tf.read(tmp_path / "smi.csv"))
    assert [one.busy for one in analysis.gpu_samples] == busy
    sentence = analysis.verdict.sentence
    assert said in sentence if said else "while it works" not in sentence
    assert ("no-utilisation" in [note.code for note in analysis.notes]) == (not reasons)
    lines = "\n".join(line.plain for line in render_terminal(analysis, Style(width=100)))
    assert ("Highest clock" in lines) == (not said)
    assert "1,410 MHz" in lines


def test_json_has_the_samples_with_units() -> None:
    for analysis in both():
        report = json.loads(analysis.to_json())
        VALIDATORS["traceflops.report/1"].validate(report)
        (row,) = (one for one in report["gpu_samples"] if one["local_id"] == 2)
        assert round(row["clock_mhz"]) == 1414
        assert row["max_clock_mhz"] == 1980
        assert row["reasons"] == {"hardware thermal slowdown": 1.0}
        assert row["values"]["temperature_c"]["most"] == 90
        assert row["busy_samples"] <= row["samples"]


def sampled(
    clocks: Sequence[float], masks: Sequence[float] = (), waits_ms: int = 0, **counters: float
) -> tf.Analysis:
    """Return six steps of 500 ms of one kernel with a sample each, a series per counter.

    The host is far ahead, or waits for so long before each launch, so that the GPU is idle.
    """
    works, marks = [], []
    for step in range(6):
        at = 500 * MS * step
        launch = at + waits_ms * MS if waits_ms else 10_000 * step + 5_000
        start = at + MS + waits_ms * MS
        works.append(("sm90_gemm_bf16", launch, start, (499 - waits_ms) * MS))
        begin = at if waits_ms else 10_000 * step
        marks.append((f"ProfilerStep#{step}", begin, 499 * MS if waits_ms else 9_000))
    told = {"sm_clock_mhz": clocks, "throttle_mask": masks}
    told |= {name: [value] * len(clocks) for name, value in counters.items()}
    rows = [
        {"device": 0, "name": f"gpu.{name}", "time_ns": (500 * at + 490) * MS, "value": value}
        for name, values in told.items()
        for at, value in enumerate(values)
    ]
    return tf.analyze(trace_of(**launched(*works), marks=step_marks(*marks), counters=rows))


def low(analysis: tf.Analysis) -> list[Finding]:
    return [one for one in analysis.findings if one.rule == "low-clock"]


def test_a_low_clock_gains_what_kernels_take_longer_for_it() -> None:
    (found,) = low(
        sampled([1500.0] * 6, [0x4, 0x4, 0x4, 0x24, 0x24, 0x24], max_sm_clock_mhz=2000.0)
    )
    assert found.sentence == (
        "The clock of the GPU is 1,500 MHz while it works, 25.0 % below its maximum (power limit, "
        "software thermal slowdown in 40.0 % of the samples)."
    )
    assert found.gain is not None
    assert found.gain.high_ns == pytest.approx(0.25 * 499 * MS, rel=0.01)
    assert found.share == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize(
    ("mask", "remedy", "of_amd"),
    [
        (0x40, "cooling", "cooling"),
        (0x80, "power supply", "power supply"),
        (0x4, "nvidia-smi -pl", "amd-smi set --power-cap"),
        (0x0, "-rgc", "amd-smi reset --clocks"),
        (0x1, "-rgc", "amd-smi reset --clocks"),
    ],
)
def test_the_remedy_is_that_of_the_reason_of_most_samples(
    mask: int, remedy: str, of_amd: str
) -> None:
    masks = [mask, mask, mask, 0x20 * bool(mask & ~1), mask, mask]
    analysis = sampled([1500.0] * 6, masks, max_sm_clock_mhz=2000.0)
    trace = analysis.prepared.trace
    wavefronts = trace_of(devices=[{"warp_size": 64}]).devices
    amd = tf.analyze(replace(trace, tables={**trace.tables, "devices": wavefronts}))
    for one, said in ((analysis, remedy), (amd, of_amd)):
        (found,) = low(one)
        assert said in found.remedy


def test_the_interval_of_a_low_clock_holds_what_the_full_clock_gains() -> None:
    """Of a simulated GPU at 1,414 of 1,980 MHz, but memory kernels take as long as before."""
    found, steps = [], []
    for percent in (140, 100):
        clock: dict[str, Any] = {"straggler_rank": 0, "straggler_percent": percent}
        clock["memory_percent"] = 80 * percent // 100
        run = simulate(RunConfig(layers=1, steps=6, **clock, **SLOWLY))
        with TemporaryDirectory() as name:
            list(write_pytorch(run, Path(name) / "ranks"))
            samples = SamplingOptions(every_ns=200 * MS)
            smi = write_gpu_samples(run, Path(name) / "smi.csv", samples)
            analysis = tf.analyze(tf.read(Path(name) / "ranks", gpu_samples=smi))
        found.append(low(analysis))
        steps.append(analysis.components.window_ns / analysis.windows_used)
    (slow,), others = found
    assert others == []
    assert slow.gain is not None
    assert slow.gain.low_ns <= steps[0] - steps[1] <= slow.gain.high_ns + 0.005 * steps[0]


@pytest.mark.parametrize(("least", "count"), [(0.25, 1), (0.2501, 0)])
def test_a_clock_as_low_as_the_threshold_is_low(least: float, count: int, tmp_path: Path) -> None:
    """1,500 of 2,000 MHz are 25 % below."""
    rules = tmp_path / "rules.toml"
    rules.write_text(f"[low-clock]\nleast_below = {least}\n")
    prepared = sampled([1500.0] * 6, max_sm_clock_mhz=2000.0).prepared
    assert len(low(tf.analyze(prepared.trace, finding_rules=rules))) == count


@pytest.mark.parametrize(
    "analysis",
    [
        sampled([1850.0] * 6, max_sm_clock_mhz=2000.0),  # 7.5 %
        sampled([1500.0] * 6),  # of an unknown maximum
        sampled([1500.0] * 2, max_sm_clock_mhz=2000.0),  # of two samples
        sampled([2000.0] * 6, [0x4] * 6, max_sm_clock_mhz=2000.0),
        sampled([1500.0] * 6, [0x4] * 6, waits_ms=400, max_sm_clock_mhz=2000.0),
    ],
    ids=["little", "unknown", "few", "not lower", "no work"],
)
def test_other_clocks_are_no_finding(analysis: tf.Analysis) -> None:
    assert low(analysis) == []
    assert len(analysis.gpu_samples) == 1
