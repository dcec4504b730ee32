"""The benchmarks work: their traces are what they say, and the smallest tables come out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import traceflops as tf
from tests.benchmarks import programs, ratios
from tests.benchmarks.cost import run
from tests.benchmarks.growth import print_growth
from tests.benchmarks.pages import print_pages
from tests.benchmarks.peers import PEERS, is_installed
from tests.benchmarks.ranks import Job, print_ranks
from tests.benchmarks.tile import LAYOUTS, SAMPLE, tiled, write
from tests.benchmarks.worst import case_named
from tests.benchmarks.worstcost import print_worst
from tests.conftest import ROOT, by_night

pytestmark = pytest.mark.slow


def test_a_tiled_trace_is_the_sample_several_times(tmp_path: Path) -> None:
    once = tf.read(SAMPLE)
    several = tf.read(write(tmp_path / "tiled.json", 8, "compact").path)
    copies, rest = divmod(several.activities.num_rows, once.activities.num_rows)
    assert (rest, copies > 2) == (0, True)
    one, many = tf.analyze(once), tf.analyze(several)
    assert len(many.steps.seen) == copies * len(one.steps.seen)
    busy, sum_ns = one.devices[0].whole.busy_ns, one.devices[0].whole.sum_ns
    assert many.devices[0].whole.busy_ns == copies * busy
    assert many.devices[0].whole.sum_ns == copies * sum_ns


def test_the_first_repetition_is_the_sample() -> None:
    events = json.loads("".join(tiled(0.001)))["traceEvents"]
    sample = _events_of(tf.read(SAMPLE))
    assert Counter(event.get("cat") for event in events if "cat" in event) == sample


def _events_of(trace: tf.Trace) -> Counter[str]:
    counts = trace.source.event_counts.items()
    return Counter({name: n for name, n in counts if not name.startswith("phase ")})


def test_repetitions_share_no_id_and_no_time() -> None:
    events = json.loads("".join(tiled(3)))["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    for value in ("correlation", "ts"):
        seen = Counter(event.get(value, event["args"].get(value)) for event in kernels)
        assert len(seen) > 1000
        assert max(seen.values()) == 1
    frames = [event["args"] for event in events if event.get("cat") == "python_function"]
    ids = {args["Python id"] for args in frames}
    assert len(ids) == len(frames)
    assert {args["Python parent id"] for args in frames} <= {None, *ids}


def test_layouts_and_packed_files_hold_the_same(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{layout}.json", 0.001, layout) for layout in LAYOUTS]
    files.append(write(tmp_path / "packed.json.gz", 0.001))
    traces = [tf.read(file.path) for file in files]
    for file, trace in zip(files, traces, strict=True):
        assert trace.to_arrow() | {"processes": None} == traces[0].to_arrow() | {"processes": None}
        assert sum(trace.source.event_counts.values()) == file.events
        assert trace.source.files[0].text_bytes == round(file.mb * 1e6)


def test_the_cost_of_a_command_counts_its_children(tmp_path: Path) -> None:
    inner = "x = bytearray(60_000_000); sum(range(3_000_000)); import time; time.sleep(0.3)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}]); print(1)"
    alone, both = run([sys.executable, "-c", inner]), run([sys.executable, "-c", outer])
    assert both.output == "1\n"
    assert min(alone.peak_mb, both.peak_mb) > 60
    assert min(alone.cpu_s, both.cpu_s) > 0
    assert min(alone.wall_s, both.wall_s) > 0.3


@by_night()
def test_the_usual_table() -> None:
    words = ["-m", "tests.benchmarks", "--mb", "1", "--runs", "1", "--jobs", "1"]
    words += ["--peers", sys.executable]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [
        line.removeprefix("| ").split(" | ") for line in done.stdout.split("\n\n")[0].split("\n")
    ]
    assert [row[0] for row in rows[2:]] == [
        "profiler: decode only",
        "profiler: read into Arrow, 1 process",
        "profiler: summary, 1 process",
        "profiler: report, 1 process",
        "HolisticTraceAnalysis, temporal breakdown",
        "TraceLens, GPU timeline",
        *(
            f"{layout}: {what}"
            for layout in ("indented", "compact", "lines")
            for what in ("decode only", "read into Arrow, 1 process")
        ),
        "gzip: gunzip only",
        "gzip: summary, 1 process",
    ]
    assert {len(row) for row in rows} == {8}


def test_a_peer_that_is_not_there_is_not_installed() -> None:
    assert not is_installed(replace(PEERS[0], imports="import no_such_peer"), sys.executable)
    assert is_installed(replace(PEERS[0], imports="import json"), sys.executable)


@by_night()
def test_the_tables_of_growth_and_of_worst_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # That the report's command works is seen in the usual table; starting it takes long.
    monkeypatch.setattr(programs, "report", programs.summary)
    monkeypatch.setattr(programs, "CASES", {"read into Arrow": programs.read})
    print_growth(tmp_path, [1, 2], runs=1, jobs=1)
    grown = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert [row.split(" | ")[0] for row in grown[2:]] == ["| read into Arrow, 1 process"] * 2
    assert grown[2].split(" | ")[5] == "1.00"
    print_worst(tmp_path, [case_named("many ranks")], 0.002, runs=1, jobs=1)
    worst = capsys.readouterr().out.splitlines()
    assert worst[2].startswith("| many ranks | 2 files | 366 | ")
    assert not list(tmp_path.glob("rank*"))


def test_the_table_of_many_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_ranks(tmp_path, [Job(9, 2, short=True)], 1, runs=1, most=1)
    row = capsys.readouterr().out.splitlines()[2].strip("| ").split(" | ")
    assert (row[0], row[3], row[6]) == ("9", "1", "1.00")
    (job,) = tmp_path.iterdir()
    trace = tf.read(job)
    assert (sorted(map(str, trace.ranks)), trace.jobs) == ([*map(str, range(9))], ())
    assert set(trace.processes["world_size"].to_pylist()) == {9}
    ranks = tf.analyze(trace).ranks
    assert {group.ranks for group in ranks.records.groups} == {tuple(range(9))}


@by_night()
def test_the_table_of_pages(capsys: pytest.CaptureFixture[str]) -> None:
    print_pages(["512 ranks of 100 steps"], 0.01, 1)
    row = capsys.readouterr().out.splitlines()[2].strip("| ").split(" | ")
    # A call and a kernel in three ops, 20 to each of the 512, a marker and one module.
    assert row[:2] == ["512 ranks of 100 steps", f"{512 * (5 * 20 + 2):,}"]
    assert 0.3 < float(row[4]) < 3


def test_a_ratio_that_grew_by_15_percent_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratios, "kept_ratios", lambda: {"read": 4.0, "summary": 10.0})
    now = [("read", 4.5), ("summary", 11.5), ("report", 30.0)]
    monkeypatch.setattr(ratios, "measured", lambda *_: iter(now))
    assert ratios.print_ratios(tmp_path, 1, 1) == ["summary"]
    rows = capsys.readouterr().out.splitlines()[2:5]
    assert rows == [
        "| read | 4.50 | 4.00 | +12% |",
        "| summary | 11.50 | 10.00 | +15% |",
        "| report | 30.00 |  |  |",
    ]


def test_every_kept_ratio_is_measured() -> None:
    assert [*ratios.kept_ratios()] == [*ratios.LARGE, *ratios.SMALL]
