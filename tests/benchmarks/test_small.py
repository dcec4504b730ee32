"""The benchmarks work: their traces are what they say, and the smallest table comes out."""

import json
import subprocess
import sys
from pathlib import Path

import traceflops as tf
from tests.benchmarks.tile import SAMPLE, tiled, write
from tests.conftest import ROOT


def test_a_tiled_trace_is_the_sample_several_times(tmp_path: Path) -> None:
    once = tf.read(SAMPLE)
    events = len(json.loads("".join(tiled(0.001)))["traceEvents"])
    assert events == sum(once.source.event_counts.values())
    text = "".join(tiled(8, "compact"))
    (tmp_path / "tiled.json").write_text(text)
    several = tf.read(tmp_path / "tiled.json")
    copies, rest = divmod(several.activities.num_rows, once.activities.num_rows)
    assert (rest, copies > 2) == (0, True)
    one, many = tf.analyze(once), tf.analyze(several)
    assert len(many.steps.seen) == copies * len(one.steps.seen)
    busy, sum_ns = one.devices[0].whole.busy_ns, one.devices[0].whole.sum_ns
    assert many.devices[0].whole.busy_ns == copies * busy
    assert many.devices[0].whole.sum_ns == copies * sum_ns


def test_layouts_hold_the_same(tmp_path: Path) -> None:
    traces = [
        tf.read(write(tmp_path / "pretty.json", 3)),
        tf.read(write(tmp_path / "packed.json.gz", 3)),
    ]
    assert traces[0].activities.equals(traces[1].activities)


def test_the_small_table(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.benchmarks", "--mb", "2", "--runs", "1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:9]] == [
        "| decode only (the floor)",
        "| gunzip only",
        "| read into Arrow, pretty",
        "| read into Arrow, compact",
        "| summary",
        "| summary, gzip",
        "| report",
    ]
