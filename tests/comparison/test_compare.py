"""Recordings compared: both sources of a side, samples and real traces, bad input, the command."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.cli.test_commands import SAMPLE, assert_refused, run
from tests.comparison import test_difference as made
from tests.conftest import SAMPLES, analysis_of_sample, shared_file
from tests.parsers.nsight.test_stats import SUMS
from tests.ranks.test_summaries import RANKS, added_up, sent
from tests.schemas import first_violation
from traceflops.comparison.report_side import side_of_report
from traceflops.comparison.result import Comparison, compare
from traceflops.comparison.side import Side, side_of
from traceflops.errors import InputError
from traceflops.facts import fact
from traceflops.reports.json.comparison import comparison_object
from traceflops.reports.markdown import render_comparison as markdown_of
from traceflops.reports.terminal.comparison import render_comparison, render_runs
from traceflops.reports.terminal.lines import Style
from traceflops.reports.view.texts import words

REAL = "traces/pytorch/v100_kineto_resnet50_nw{}.json.gz"
NAMES = (
    *("gpt_1rank.json.gz", "gpt_ddp_4rank", "torch_cpu_train.json.gz", "rocprofv3_csv"),
    "nsight_h100/run.sqlite",
)


def analysis_of(name: str) -> tf.Analysis:
    return analysis_of_sample(name)


@pytest.fixture(scope="module")
def one_rank() -> tf.Analysis:
    return analysis_of("gpt_1rank.json.gz")


def assert_exact(found: Comparison) -> None:
    """The components, the causes and their parts each sum to the difference of the mean times."""
    means = [one.mean_ns for one in (found.before, found.after)]
    assert abs(found.difference_ns - (means[1] - means[0])) < 1
    assert sum(cause.ns for cause in found.causes) == found.difference_ns
    assert sum(row["ns"] for row in found.part_rows()) == found.difference_ns
    mfu = found.mfu
    assert mfu is None or mfu.before + mfu.flops + mfu.time + mfu.peak == mfu.after


@pytest.mark.parametrize("name", NAMES)
def test_a_side_is_the_same_from_an_analysis_and_from_its_json(name: str) -> None:
    analysis = analysis_of(name)
    assert side_of_report(analysis.to_json().encode()) == replace(side_of(analysis), analysis=None)


def test_a_side_of_real_traces_is_the_same_from_json() -> None:
    for name in ("pytorch/mi300x_resnet18_ddp_train.json.gz", "nsight/nsys_h100x2_1s.sqlite"):
        analysis = tf.analyze(tf.read(shared_file(f"traces/{name}")))
        assert side_of_report(analysis.to_json().encode()) == replace(
            side_of(analysis), analysis=None
        )


@pytest.mark.parametrize("after", NAMES)
def test_recordings_of_all_formats_compare_exactly_or_say_why_not(
    one_rank: tf.Analysis, after: str
) -> None:
    found = compare(one_rank, analysis_of(after), ("old", "new"))
    if found.obstacle:
        assert found.sentence == f"Not compared: {words(found.obstacle)}."
        assert not found.causes and not found.components and found.interval is None
    else:
        assert_exact(found)
    assert first_violation(json.loads(found.to_json())) is None


def test_a_recording_with_itself_is_said_to_be_the_same(one_rank: tf.Analysis) -> None:
    found = compare(one_rank, side_of_report(one_rank.to_json().encode()))
    assert found.is_same
    assert found.sentence == "The two are the same recording: nothing differs."
    assert not found.causes and found.interval is None
    assert not found.unlike


def test_loading_data_in_the_training_process_is_what_changed_on_real_traces() -> None:
    before, after = (tf.analyze(tf.read(shared_file(REAL.format(count)))) for count in (0, 4))
    found = tf.compare(before, after, ("nw0", "nw4"))
    assert_exact(found)
    assert found.difference_ns == -41_248_767
    assert (found.causes[0].kind, found.causes[0].subject) == ("idle", "data_input")
    assert found.interval is not None and not found.interval.holds_zero
    assert found.sentence.startswith("Steps take 41.2 ms less (−23.2 %, 95 % interval ")
    assert "): 58.2 ms less idle time, loading data (enumerate(DataLoader)" in found.sentence
    # Launching takes 8.8 ms more, but idle time is spread by more than that from step to step.
    assert found.causes[-1].is_noise and "launching" not in found.sentence
    ways = {match.way for match in found.matches if match.before and match.after}
    assert {"name", "operator and shape"} <= ways
    assert found.mfu is not None and found.mfu.flops == found.mfu.peak == 0


def test_the_first_of_what_differs_is_the_work() -> None:
    before, after = (side_of(analysis_of(name)) for name in ("gpt_1rank.json.gz", "gpt_ddp_4rank"))
    found = compare(before, after)
    assert [one.what for one in found.unlike][:2] == ["model FLOPs of a step", "shape of an input"]
    assert {"ranks", "GPUs"} <= {one.what for one in found.unlike}
    assert found.sentence.startswith("The work differs, model FLOPs of a step ")
    assert " time per FLOP. Steps take " in found.sentence


def test_only_the_ranks_that_both_have_are_compared() -> None:
    whole = analysis_of("gpt_ddp_4rank")
    few = tf.analyze(tf.read(SAMPLES / "gpt_ddp_4rank"), tf.Selection(ranks=frozenset({1, 2})))
    found = compare(whole, few, ("whole", "few"))
    assert found.before.ranks == found.after.ranks == {1, 2}
    assert_exact(found)
    assert found.difference_ns == 0
    assert "whole: ranks 0, 3 left out, as the other recording has none" in found.notes
    # Of a report in JSON single ranks cannot be taken out: then all are compared, and that is said.
    other = compare(side_of_report(whole.to_json().encode()), few)
    assert [one.what for one in other.unlike] == ["ranks", "GPUs"]
    assert other.unlike[0].before == "4 (numbers 0, 1, 2, 3)"
    assert_exact(other)
    # Nor of an analysis that was added up from summaries.
    summed = added_up([sent(file) for file in sorted(RANKS.iterdir())])
    added = compare(summed, few)
    assert added.before.ranks == {0, 1, 2, 3}
    assert "ranks" in [one.what for one in added.unlike]
    assert not [note for note in added.notes if "left out, as the other" in note]


def test_steps_are_listed_only_where_all_windows_are_steps() -> None:
    side = side_of(analysis_of("gpt_1rank.json.gz"))
    of_none = replace(side.windows[0], rank=1, step=None)
    for windows, count in (
        (side.windows, len(side.windows)),
        ((*side.windows, of_none), 0),  # of another rank, in which no steps were found
    ):
        one = replace(side, windows=windows)
        assert len(comparison_object(compare(one, one))["before"]["steps"]) == count


def of_kernels(*names: str, first: int = 0, marked: bool = True, dur_ns: int = 50) -> tf.Analysis:
    works = [(name, 100 * at + 10, 100 * at + 20, dur_ns) for at, name in enumerate(names, first)]
    marks = [(f"ProfilerStep#{at}", 100 * at, 100) for at in range(first, first + len(names))]
    return tf.analyze(trace_of(**launched(*works), marks=step_marks(*marks) if marked else []))


def test_what_has_nothing_in_common_gets_no_figures() -> None:
    found = compare(of_kernels(*["alpha"] * 4), of_kernels(*["beta"] * 4), ("a", "b"))
    assert found.obstacle == fact("comparison.nothing-in-common")
    assert found.difference_ns == 0 and found.mfu is None


def test_one_kernel_in_common_by_chance_gets_no_figures() -> None:
    before, after = ["shared", *["alpha"] * 150], ["shared", *["beta"] * 150]
    assert compare(of_kernels(*before), of_kernels(*after)).obstacle
    assert not compare(of_kernels(*before[:50]), of_kernels(*after[:50])).obstacle


def test_that_most_kernels_are_of_one_side_alone_is_said_first() -> None:
    few, more = ["shared", *["alpha"] * 3], ["shared", *["beta"] * 3]
    found = compare(of_kernels(*few), of_kernels(*more), ("a", "b"))
    assert found.caveats == (fact("comparison.work-may-differ", first=1 / 4, second=1 / 4),)
    assert found.sentence.startswith("The work may differ: only 25.0 % and 25.0 % of kernel time")
    # It is enough that one side has most of its time in what both have: the other has more work.
    more = ["shared", "beta", "shared", "shared"]
    longer = compare(of_kernels(*few), of_kernels(*more), ("a", "b"))
    assert not longer.caveats and not longer.obstacle


def test_operators_without_shapes_are_those_of_any_model() -> None:
    def job(kernel: str) -> tf.Analysis:
        works = [(kernel, 100 * at + 10, 100 * at + 20, 50) for at in range(4)]
        ops = [{"name": "aten::mm", "start_ns": 100 * at, "dur_ns": 30} for at in range(4)]
        marks = [(f"ProfilerStep#{at}", 100 * at, 100) for at in range(4)]
        return tf.analyze(trace_of(**launched(*works), ops=ops, marks=step_marks(*marks)))

    found = compare(job("alpha"), job("beta"))
    assert found.caveats == (fact("comparison.work-may-differ", first=0.0, second=0.0),)
    assert {one.way for one in found.matches} == {"operator"}


def test_rows_of_different_work_are_different_at_any_width() -> None:
    names = [f"void cutlass::Kernel<{'gemm_' * 30}{end}>(P)" for end in "ab"] + ["same"] * 2

    def job(dur: int) -> tf.Analysis:
        works = [(name, 10 * n, 100 * n, dur) for name, n in zip(names * 2, range(8), strict=True)]
        ops = [{"name": f"aten::op{n % 4}", "start_ns": 10 * n, "dur_ns": 5} for n in range(8)]
        marks = step_marks(("ProfilerStep#0", 0, 39), ("ProfilerStep#1", 40, 39))
        return tf.analyze(trace_of(**launched(*works), ops=ops, marks=marks))

    found = compare(job(20), job(50))
    for width in (100, 160):
        lines = [line.plain for line in render_comparison(found, Style(width))]
        first = next(n for n, line in enumerate(lines) if line.startswith("What changed most"))
        rows = [line[: line.index("  ")] for line in lines[first + 1 :] if line.endswith("name")]
        assert len(rows) == len(set(rows)) == 4
        assert {row.split()[-1] for row in rows if row.startswith("same")} == {
            "aten::op2",
            "aten::op3",
        }
        assert (max(map(len, rows)) > 52) == (width == 160)


def test_totals_alone_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "x_cuda_gpu_kern_sum.csv"
    path.write_text(f"{SUMS}\n100.0,90,3,30.0,30.0,20,40,1.0,k\n")
    totals = tf.analyze(tf.read(path))
    told = "Not compared: a has only totals, no timeline."
    for side in (totals, side_of_report(totals.to_json().encode())):
        assert compare(side, of_kernels("k"), ("a", "b")).sentence == told


def test_what_is_missing_of_a_file_that_is_cut_off_is_said(tmp_path: Path) -> None:
    text = gzip.decompress((SAMPLES / "gpt_1rank.json.gz").read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(text[: len(text) * 3 // 4])
    whole = analysis_of("gpt_1rank.json.gz")
    found = compare(whole, tf.analyze(tf.read(cut)), ("whole", "cut"))
    assert [one[:46] for one in found.notes] == [
        "cut: The file ends within its event list. Ever",
        "cut: No device record for 618 of 750 launch ca",
    ]
    lead = "GPU records of cut are incomplete, so work and idle time are uncertain. "
    lacking = (fact("comparison.records-incomplete", sides=("cut",)),)
    assert found.caveats == lacking and found.sentence.startswith(f"{lead}Steps take ")
    again = side_of_report(tf.analyze(tf.read(cut)).to_json().encode(), "cut")
    assert compare(whole, again).caveats == lacking
    notes = json.loads(found.to_json())["after"]["notes"]
    assert [one["kind"] for one in notes if one["text"] in found.notes[0]] == ["dropped"]
    done = run("compare", SAMPLE, str(cut))
    assert "note cut: The file ends within its event list." in done.stdout


def test_a_step_is_not_compared_with_a_recording() -> None:
    found = compare(of_kernels(*"kkkk"), of_kernels("k", marked=False), ("a", "b"))
    assert found.obstacle == fact("comparison.steps-on-one-side", side="b")
    both = compare(of_kernels("k", marked=False), of_kernels("k", "k", marked=False), ("a", "b"))
    assert both.sentence.startswith("The recording takes 100 ns more (+200.0 %, one step each: ")


def test_what_is_not_compared_stands_not_beside_each_other() -> None:
    """Of three recordings one has no steps: its figures are not shown."""
    marked, more, bare = of_kernels(*"kkkk"), of_kernels(*"kkkkk"), of_kernels("k", marked=False)
    alone = compare(marked, bare, ("a", "b"))
    shown = "\n".join(line.plain for line in render_comparison(alone, Style()))
    assert shown.startswith("Not compared: no steps were found in b,")
    assert "█" not in shown and "Mean" not in shown and "Not alike" in shown
    assert "Mean" not in markdown_of(alone)
    both = [alone, compare(marked, more, ("a", "c"))]
    table = "\n".join(line.plain for line in render_runs(both, Style()))
    means = table.split("Share")[0].splitlines()
    assert [line.split()[0] for line in means if " ns " in line] == ["a", "c"]


def test_operators_on_the_cpu_are_not_compared_with_work_of_a_gpu(one_rank: tf.Analysis) -> None:
    on_host = analysis_of("torch_cpu_train.json.gz")
    for host in (on_host, side_of_report(on_host.to_json().encode())):
        found = compare(one_rank, host, ("gpu", "cpu"))
        assert found.obstacle == fact("comparison.only-on-cpu", side="cpu")
    assert not compare(on_host, on_host).obstacle


def test_a_side_without_gpu_time_is_named() -> None:
    found = compare(of_kernels(*"kkk"), tf.analyze(trace_of()), ("a", "b"))
    assert found.obstacle == fact("comparison.no-gpu-time", side="b")


def test_operations_without_duration_are_not_compared() -> None:
    """A kernel of unknown length was no faster than one of 50 ns."""
    unknown = of_kernels(*"kkk", dur_ns=0)
    for side in (unknown, side_of_report(unknown.to_json().encode())):
        found = compare(side, of_kernels(*"kkk"), ("a", "b"))
        assert found.obstacle == fact("comparison.no-durations", side="a")


def test_one_step_has_no_interval(one_rank: tf.Analysis) -> None:
    one = tf.analyze(tf.read(SAMPLES / "gpt_1rank.json.gz"), tf.Selection(steps=(11, 11)))
    found = compare(one_rank, one)
    assert found.interval is None
    assert "one step on one side: no interval" in found.sentence


def without(*keys: str) -> Callable[[Any], None]:
    def removed(report: Any) -> None:
        for kernel in report["kernels"]:
            for key in keys:
                del kernel[key]

    return removed


def test_a_report_of_an_older_version_is_compared_by_component(one_rank: tf.Analysis) -> None:
    report = json.loads(one_rank.to_json())
    without("charged_ns", "charged")(report)
    for name in ("memory", "ranks", "idle"):
        del report[name]
    old = side_of_report(json.dumps(report).encode())
    assert old.work is None
    found = compare(old, one_rank)
    assert_exact(found)
    assert {cause.kind for cause in found.causes} <= {"untold", "idle"}
    assert "single kernels" in {one.what for one in found.unlike}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"schema": "traceflops.report/2"}',
        b'{"schema": "traceflops.report/1"}',
        b'{"schema": "traceflops.report/1", "devices": 7}',
    ],
)
def test_what_is_no_report_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match=r"no report of traceflops\.report/1"):
        side_of_report(content)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("utilisation", "model_flops_text"), "1/0"),
        (("utilisation", "waterfall", "budget_text"), "x"),
        (("utilisation", "ops", 0, "flops_text"), "1e999999999"),
        (("kernels", 0, "top"), "idle"),
        (("kernels", 0, "charged", 0, "charged_ns"), 2**70),
        (("devices", 0, "windows", 1, "start_ns"), 2**70),
        (("devices", 0, "windows", 1, "components_ns", "idle"), -1),
        (("devices", 0, "windows", 1, "components_ns"), {}),
    ],
)
def test_a_report_that_cannot_be_true_is_refused(
    one_rank: tf.Analysis, where: tuple[Any, ...], value: object
) -> None:
    report = json.loads(one_rank.to_json())
    parent = report
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] = value
    with pytest.raises(InputError):
        compare(side_of_report(json.dumps(report).encode()), one_rank)


def test_the_tables_are_arrow_and_sum_to_the_difference(one_rank: tf.Analysis) -> None:
    found = tf.compare(one_rank, slower(one_rank))
    tables = found.tables()
    assert list(tables) == ["causes", "parts", "steps", "unlike", "memory"]
    assert all(isinstance(table, pa.Table) for table in tables.values())
    assert sum(tables["causes"]["ns"].to_pylist()) == found.difference_ns
    assert len(tables["steps"]) == 2 * len(found.before.steps)


def slower(analysis: tf.Analysis) -> Side:
    """Return a side whose longest kernel takes 20 times as long in each step."""
    found = side_of(analysis, "slower")
    assert found.work is not None
    first, *rest = found.work
    assert first.steps_ns is not None and first.top == "memory"
    windows = [
        replace(
            one, components=replace(one.components, memory_ns=one.components.memory_ns + 19 * ns)
        )
        for one, ns in zip(found.windows, first.steps_ns, strict=True)
    ]
    slow = replace(
        first,
        charged_ns=20 * first.charged_ns,
        steps_ns=tuple(20 * ns for ns in first.steps_ns),
    )
    return replace(found, windows=tuple(windows), work=(slow, *rest))


def test_a_comparison_is_saved_and_replaced(one_rank: tf.Analysis, tmp_path: Path) -> None:
    found = tf.compare(one_rank, slower(one_rank), ("old", "new"))
    for name in ("change.json", "change.md"):
        for _ in range(2):
            found.save(tmp_path / name)
    assert json.loads((tmp_path / "change.json").read_text())["sentence"] == found.sentence
    text = (tmp_path / "change.md").read_text()
    assert text.startswith("<!-- traceflops.comparison/1 -->\n## Steps take ")
    assert "| optimizer: time per call | memory | " in text
    with pytest.raises(tf.UsageError, match=r"cannot write a comparison as \.txt"):
        found.save(tmp_path / "change.txt")


def test_the_command_tells_the_sentence_the_causes_and_the_parts(tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    assert run("report", SAMPLE, "-o", str(base), "-q").exit_code == 0
    result = run("compare", str(base), SAMPLE, "--steps", "11:12", "--names", "main,branch")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    heads = [line.split("  ")[0] for line in lines]
    assert [head for head in heads if head in ("Recording", "Cause", "What changed most")] == [
        "Recording",
        "Cause",
        "What changed most",
    ]
    assert {"main", "branch"} <= {head.split(" ")[0] for head in heads}
    written = run("compare", str(base), SAMPLE, "--json", "-o", str(tmp_path / "c.md"))
    answer = json.loads(written.stdout)
    assert (answer["schema"], answer["same"]) == ("traceflops.comparison/1", True)
    assert (tmp_path / "c.md").exists()


def test_in_80_columns_all_words_of_causes_and_of_what_differs_are_there() -> None:
    found = compare(analysis_of("gpt_1rank.json.gz"), analysis_of("gpt_ddp_4rank"), ("a", "b"))
    lines = [line.plain for line in render_comparison(found, Style(width=80))]
    assert max(map(len, lines)) <= 80
    assert "█ compute  ▓ memory  ▒ exposed communication  ░ idle" in lines
    assert "  GPUs: 1 x H100 SXM 80 GB HBM3 → 4 x H100 SXM 80 GB HBM3" in lines
    assert "  recorded of a only: profile_memory 1, with_stack 1" in lines
    shown = next(line for line in lines if line.startswith("gemm: time per call "))
    assert shown.split("  ")[-1].strip() == "+4.00 ms +4.00 ms to +4.01 ms"


@pytest.mark.parametrize("width", [40, 60, 100])
def test_at_any_width_rows_of_one_kernel_are_told_apart_and_fit(width: int) -> None:
    found = compare(analysis_of("gpt_1rank.json.gz"), analysis_of("gpt_ddp_4rank"), ("a", "b"))
    lines = [line.plain for line in render_comparison(found, Style(width=width))]
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("multi_te")]
    assert {"calls" in row for row in rows} == {True, False}
    assert all(("calls" in row) != ("per call" in row) for row in rows)
    several = [line.plain for line in render_runs([found, found], Style(width=width))]
    assert max(map(len, several)) <= width


def test_of_two_long_names_both_are_seen() -> None:
    names = {"old": "before_" + "a" * 80, "new": "after_" + "b" * 80}
    launch: dict[str, Any] = {"op": "aten::mm", "shapes": "[[8,8]]"}
    before, after = (
        made.side(who, made.kernel(name, 1_000 * at, **launch))
        for at, (who, name) in enumerate(names.items(), 1)
    )
    lines = [line.plain for line in render_comparison(compare(before, after), Style())]
    row = next(line for line in lines if line.endswith("operator and shape"))
    assert row.startswith("before_a") and " → after_b" in row


def test_several_recordings_are_compared_with_the_one_that_is_named() -> None:
    runs = (SAMPLE, str(SAMPLES / "gpt_ddp_4rank"), SAMPLE)
    words = ("compare", *runs, "--names", "a,b,c", "--baseline", "b")
    result = run(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "Against b"
    answer = json.loads(run(*words, "--json").stdout)
    assert (answer["schema"], answer["baseline"]) == ("traceflops.comparisons/1", "b")
    assert [one["after"]["name"] for one in answer["comparisons"]] == ["a", "c"]
    assert first_violation(answer) is None


def test_traces_are_analyzed_and_what_is_no_recording_is_refused(one_rank: tf.Analysis) -> None:
    same = tf.compare(tf.read(SAMPLE), one_rank)
    assert same.is_same and not same.unlike
    with pytest.raises(tf.UsageError, match="traces, analyses or sides of reports, not str"):
        tf.compare(str(SAMPLE), one_rank)  # type: ignore[arg-type]


def test_names_are_two(one_rank: tf.Analysis) -> None:
    with pytest.raises(tf.UsageError, match="names needs 2 names, not 3"):
        tf.compare(one_rank, one_rank, ("a", "b", "c"))


def test_folders_are_called_by_their_names_unless_these_are_redacted(tmp_path: Path) -> None:
    for name in ("old_link", "new_link"):
        shutil.copytree(SAMPLES / "gpt_ddp_4rank", tmp_path / name)
    runs = (str(tmp_path / "old_link"), str(tmp_path / "new_link"), "--json")
    found = json.loads(run("compare", *runs).stdout)
    assert [found[side]["name"] for side in ("before", "after")] == ["old_link", "new_link"]
    assert "_link" not in run("compare", *runs, "--redact").stdout


def test_names_in_front_of_bars_are_told_apart() -> None:
    words = ("compare", SAMPLE, SAMPLE, "--names", f"{'long' * 10}_old,{'long' * 10}_new")
    bars = [line for line in run(*words).stdout.splitlines() if "██" in line]
    assert len({line.split()[0] for line in bars}) == 2
    assert all("…" in line.split()[0] for line in bars)


def test_files_of_one_name_are_called_by_their_folders_unless_redacted(tmp_path: Path) -> None:
    for name in ("old_link", "new_link"):
        (tmp_path / name).mkdir()
        shutil.copy(SAMPLE, tmp_path / name / "trace.json.gz")
    runs = [str(tmp_path / name / "trace.json.gz") for name in ("old_link", "new_link")]
    result = run("compare", *runs)
    assert "old_link/trace " in result.stdout and "new_link/trace " in result.stdout
    assert "_link" not in run("compare", *runs, "--redact").stdout


def test_runs_of_one_name_are_told_apart() -> None:
    result = run("compare", SAMPLE, SAMPLE, SAMPLE, "--baseline", "gpt_1rank (2)")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "Against gpt_1rank (2)"
    assert [f"gpt_1rank ({at})" in result.stdout for at in (1, 3)] == [True, True]
    assert "the same recording" in result.stdout and "one step each" not in result.stdout


def test_a_pattern_may_stand_for_a_report(tmp_path: Path) -> None:
    assert run("report", SAMPLE, "-o", str(tmp_path / "base.json"), "-q").exit_code == 0
    result = run("compare", str(tmp_path / "ba*.json"), SAMPLE)
    assert result.stdout.startswith("The two are the same recording: nothing differs.")


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    assert_refused(run("compare", SAMPLE), 2, "two recordings")
    assert_refused(run("compare", SAMPLE, SAMPLE, "--names", "a"), 2, "--names needs 2")
    assert_refused(run("compare", SAMPLE, SAMPLE, "--baseline", "x"), 2, "no recording is called")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty file: "),
        ('{"schema": "traceflops.report/1"}', "no report of traceflops.report/1 ("),
        ('{"schema": "traceflops.report/1", "sour', "no report of traceflops.report/1 ("),
        ('{"schema": "traceflops.report/2"}', "a result of traceflops, no recording: "),
        ('{\n "schema": "traceflops.comparison/1"}', "a result of traceflops, no recording: "),
        ('{"a": 1}', "no events: "),
    ],
)
def test_a_file_that_does_not_compare_is_named(tmp_path: Path, content: str, said: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    for files in ((SAMPLE, str(bad)), (str(bad), SAMPLE)):
        assert_refused(run("compare", *files), 3, said, "bad.json")
