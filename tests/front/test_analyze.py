"""`tf.analyze` as it is guessed: paths, words of the command line, tables by name."""

from __future__ import annotations

import json
import shutil
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import SAMPLES, shared_file, some
from traceflops.cli import app
from traceflops.windows.selection import Selection

RANKS = SAMPLES / "gpt_ddp_4rank"
ONE = SAMPLES / "gpt_1rank.json.gz"


def test_a_path_is_read_and_words_are_those_of_the_command_line() -> None:
    words = ["--steps", "21:23", "--ranks", "0,2", "--device", "h100-sxm"]
    said = CliRunner().invoke(app, ["summary", str(RANKS), *words, "--json"]).stdout
    found = tf.analyze(RANKS, steps="21:23", ranks=[0, 2], device="h100-sxm")
    assert json.loads(found.to_json()) == json.loads(said)


@cache
def ranks() -> tf.Trace:
    return tf.read(RANKS)


@pytest.mark.parametrize(
    ("words", "selection"),
    [
        ({"steps": 21}, Selection(steps=(21, 21))),
        ({"steps": (21, None)}, Selection(steps=(21, None))),
        ({"ranks": 0}, Selection(ranks=frozenset({0}))),
        ({"ranks": np.array([1, 2])}, Selection(ranks=frozenset({1, 2}))),
        ({"gpus": "0-1"}, Selection(gpus=frozenset({0, 1}))),
        ({"from_": "1ms", "to": 5_000_000}, Selection(from_ns=1_000_000, to_ns=5_000_000)),
    ],
)
def test_what_words_mean(words: dict[str, Any], selection: Selection) -> None:
    assert tf.analyze(ranks(), **words).selection == selection


def test_words_say_what_a_selection_says() -> None:
    by_words = tf.analyze(ranks(), steps=21, ranks="0-1")
    selection = Selection(steps=(21, 21), ranks=frozenset({0, 1}))
    assert by_words.to_json() == tf.analyze(ranks(), selection).to_json()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ({"steps": (1, 2, 3)}, '"10:20", 10 or (10, 20)'),
        ({"ranks": 1.5}, '"0,2,4-7", 0 or [0, 2]'),
        ({"ranks": ["0"]}, '"0,2,4-7", 0 or [0, 2]'),
        ({"device": "abacus"}, "traceflops devices"),
        ({"steps": 1, "selection": Selection(steps=(1, 2))}, "give a Selection, or steps"),
    ],
)
def test_errors_say_what_to_give(words: dict[str, Any], hint: str) -> None:
    with pytest.raises(tf.UsageError) as error:
        tf.analyze(ONE, **words)
    assert hint in error.value.hint


@pytest.mark.parametrize("kind", some(["large", "summaries", "some reduced"], 2))
def test_a_folder_of_many_files_is_analysed_as_the_report_analyses_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ranks"
    shutil.copytree(RANKS, folder)
    if kind == "large":
        monkeypatch.setattr("traceflops.front.reduction._MANY", 4)
        monkeypatch.setattr("traceflops.front.reduction._LARGE_BYTES", 1)
    else:
        reduced = sorted(folder.iterdir())[: 4 if kind == "summaries" else 2]
        made = CliRunner().invoke(app, ["reduce", *map(str, reduced), "-o", str(folder)])
        assert made.exit_code == 0, made.output
        for file in reduced:
            file.unlink()
    shown = CliRunner().invoke(app, ["summary", str(folder), "--json"]).stdout
    analysis = tf.analyze(folder)
    assert not analysis.has_events
    assert "from-summaries" in {note.code for note in analysis.notes}
    assert json.loads(analysis.to_json()) == json.loads(shown)


def test_what_summaries_do_not_have_is_empty_wherever_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traceflops.front.reduction._MANY", 4)
    monkeypatch.setattr("traceflops.front.reduction._LARGE_BYTES", 1)
    analysis = tf.analyze(RANKS)
    assert analysis.prepared.trace.activities.num_rows == 0
    assert (analysis.memory_operations, analysis.gpu_samples, analysis.modules) == ((), (), ())
    assert (analysis.missing, analysis.step_counts) == ((), {})
    assert [analysis.charged, analysis.attribution, analysis.replay] == [None] * 3
    assert analysis.host_operators and analysis.synchronisations
    assert list(analysis.tables) == ["kernels", "categories", "steps"]


def test_a_capture_beside_a_trace_is_its_pair(tmp_path: Path) -> None:
    trace = tmp_path / "decode.json.gz"
    (tmp_path / "capture_traces").mkdir()
    for link, name in ((trace, "graph"), (tmp_path / "capture_traces" / "c.json.gz", "capture")):
        link.symlink_to(shared_file(f"traces/pytorch/mi300x_sglang_qwen3_decode_{name}.json.gz"))
    assert "paired-found" in {note.code for note in tf.analyze(trace).notes}


def test_a_result_is_no_recording(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    tf.analyze(ONE).save(file)
    with pytest.raises(tf.InputError, match="a result of traceflops, no recording"):
        tf.analyze(file)
    with pytest.raises(tf.UsageError, match="--pair names the same trace"):
        tf.analyze(ONE, pair=ONE)


def test_a_traceback_shows_the_hint_and_the_command_line_once() -> None:
    with pytest.raises(tf.UsageError) as error:
        tf.analyze(ONE, device="abacus")
    message, hint = error.value.message, error.value.hint
    assert str(error.value) == message
    assert "".join(traceback.format_exception(error.value)).endswith(f"{message}\nhint: {hint}\n")
    said = CliRunner().invoke(app, ["summary", str(ONE), "--device", "abacus"]).stderr
    assert said == f"error: {message}\nhint: {hint}\n"


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "rocpd", "nsight_h100"])
def test_activities_add_up_to_kernels(name: str) -> None:
    analysis = tf.analyze(SAMPLES / name)
    activities = analysis.to_pandas("activities")
    mine = activities[activities.used].groupby("top", observed=True).dur_ns.sum()
    kernels = analysis.to_pandas().groupby("top", observed=True).sum_ns.sum()
    assert mine.to_dict() == kernels.to_dict()


def test_steps_and_modules_of_activities_are_those_of_the_report() -> None:
    analysis = tf.analyze(ONE)
    activities = analysis.to_pandas("activities")
    for window in analysis.devices[0].steps:
        inside = activities.start_ns.between(window.start_ns, window.end_ns, inclusive="left")
        assert set(activities[inside].step) == {window.step}
    used = activities[activities.used]
    blocks = sum(one.device_ns for one in analysis.modules if "Block" in one.path)
    assert used[used.module == "GPT/Block"].dur_ns.sum() == blocks
    of_op = used[used.op == "aten::mm"].iloc[0]
    ops = analysis.to_pandas("ops")
    assert ops.name[ops.op_row == of_op.op_row].tolist() == ["aten::mm"]


def test_collectives_without_a_record_are_told_by_their_annotation_or_name() -> None:
    exchange = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"
    gather = "ncclKernel_AllGather_RING_LL_Sum_int8_t"
    works = [(exchange, 2, 100, 9), (gather, 22, 110, 9), (exchange, 24, 120, 9), ("k", 3, 130, 9)]
    tables = launched(*works)
    tables["activities"][2]["collective"] = "alltoallv"
    mark = {"name": "nccl:all_to_all", "start_ns": 0, "dur_ns": 10}
    found = tf.analyze(trace_of(**tables, marks=[mark])).tables["activities"]
    assert found["collective"].to_pylist() == ["all_to_all", "all_gather", "alltoallv", None]


def test_what_is_asked_most_has_a_name() -> None:
    analysis = tf.analyze(ONE)
    report = json.loads(analysis.to_json())
    assert analysis.mfu == pytest.approx(report["utilisation"]["mfu"])
    assert analysis.step_time_ns == report["steps"]["typical_ns"]
    assert analysis.culprits[0].label == report["idle"]["culprits"][0]["label"]
    with pytest.raises(tf.UsageError, match="no table 'kernel'") as error:
        analysis.to_pandas("kernel")
    assert "kernels" in error.value.hint


def test_the_schema_names_every_column() -> None:
    listed = {(row["table"], row["column"]) for row in tf.schema().to_pylist()}
    trace = tf.read(ONE)
    assert listed == {(n, c) for n, t in trace.to_arrow().items() for c in t.column_names}
    more = tf.schema(tf.analyze(trace)).to_pylist()
    assert {"kernels", "categories", "activities"} <= {row["table"] for row in more}
    assert all(row["meaning"] for row in more)
    assert {row["unit"] for row in more if row["column"].endswith("_ns")} == {"ns"}
