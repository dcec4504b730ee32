"""Summaries of `reduce` whose content is false are refused before anything of them is used."""

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.attribution.test_graph_replays import captured
from tests.conftest import ROOT, SAMPLES, shared_file
from tests.parsers.nsight.nsysfile import small
from traceflops import read
from traceflops.analysis.rank_summary import RankSummary, summary_of
from traceflops.analysis.recipe import analyze
from traceflops.analysis.summary_files import _file, decoded, encoded, packed, unpacked
from traceflops.cli import app
from traceflops.devices.missing_input import MissingInput
from traceflops.errors import InputError
from traceflops.facts import fact
from traceflops.table.trace import Trace
from traceflops.windows.device_records import CallRecords

CLI = CliRunner()
Change = Callable[[RankSummary], RankSummary]


@cache
def sound() -> RankSummary:
    return summary_of(analyze(read(SAMPLES / "gpt_ddp_4rank" / "rank0.json.gz")))


def with_table(summary: RankSummary, name: str, column: str, values: pa.Array) -> RankSummary:
    trace: Trace = summary.trace
    table = trace.table(name)
    at = table.schema.get_field_index(column)
    table = table.set_column(at, table.schema.field(at), values)
    return replace(summary, trace=replace(trace, tables={**trace.tables, name: table}))


def file_code(summary: RankSummary) -> RankSummary:
    codes = pa.array([7], pa.int32())
    return with_table(
        summary, "processes", "file", pa.DictionaryArray.from_arrays(codes, ["a"], safe=False)
    )


def file_text(summary: RankSummary) -> RankSummary:
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    text = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff"))
    codes = pa.array([0], pa.int32())
    return with_table(summary, "processes", "file", pa.DictionaryArray.from_arrays(codes, text))


def of_device(**figures: Any) -> Change:
    return lambda one: replace(one, reports=(replace(one.reports[0], **figures),))


def of_records(**columns: Any) -> Change:
    return lambda one: replace(one, records=replace(one.records, **columns))


def of_groups(*runs: tuple[int, int, int]) -> Change:
    told = sound().records.told
    first, *others = told.known
    known = ((first[0], runs, *first[2:]), *others)
    return of_records(told=replace(told, known=known))


def of_work(**columns: Any) -> Change:
    return lambda one: replace(one, work=(replace(one.work[0], **columns), *one.work[1:]))


def lacking(what: Any) -> Change:
    return lambda one: replace(one, lacks=(MissingInput(what),))


def first_window(summary: RankSummary, **figures: Any) -> RankSummary:
    (device,) = summary.reports
    windows = (replace(device.windows[0], **figures), *device.windows[1:])
    return of_device(windows=windows)(summary)


FALSE: dict[str, Change] = {
    "a code beyond its texts": file_code,
    "a text that is no UTF-8": file_text,
    "a device beyond its table": of_device(device=3),
    "a process beyond its table": of_device(process=1),
    "null where the schema has none": lambda one: with_table(
        one,
        "devices",
        "type",
        pa.array([None], pa.string())
        .dictionary_encode()
        .cast(pa.dictionary(pa.int32(), pa.string())),
    ),
    "a column of the kernels is away": lambda one: replace(
        one, kernels=one.kernels.drop_columns(["rule"])
    ),
    "a column of the kernels is there twice": lambda one: replace(
        one, kernels=one.kernels.append_column("rule", one.kernels["rule"])
    ),
    "counts of other kernels": lambda one: replace(one, kernels=one.kernels.slice(1)),
    "a kernel without a time": lambda one: replace(
        one,
        kernels=one.kernels.set_column(
            6,
            one.kernels.schema.field(6).with_nullable(True),
            pa.nulls(len(one.kernels), pa.int64()),
        ),
    ),
    "fewer collectives than their times": of_records(kind=np.zeros(1, np.int64)),
    "a rank beyond the ranks": of_records(place=sound().records.place + 1),
    "a kind that is none": of_records(kind=sound().records.kind + 99),
    "more ranks in a group than there can be": of_groups((0, 2**61, 1)),
    "a run of ranks without a step": of_groups((0, 4, 0)),
    "a run of ranks below 0": of_groups((-5, 3, 1)),
    "a run of no ranks": of_groups((5, 5, 1)),
    "work of no rank": of_records(work=()),
    "a number for a fact": lacking(5),
    "no table": lambda one: replace(one, kernels=None),
    "an end before its start": of_records(end_ns=sound().records.start_ns - 1),
    "sums of other kernels": of_work(count=np.zeros((1, 1), np.int64)),
    "sums of other shape": of_work(count=sound().work[0].count.reshape(-1)),
    "negative sums": of_work(time_ns=-sound().work[0].time_ns),
    "steps without their sums": lambda one: replace(one, work=()),
    "a window beyond its device": lambda one: first_window(one, end_ns=2**60),
    "a window of another length": lambda one: first_window(
        one, start_ns=one.reports[0].windows[0].start_ns + 1
    ),
    "a negative count": lambda one: replace(
        one, launch_records=replace(one.launch_records, kernel=CallRecords(-1))
    ),
    "a fact without a text": lacking(fact("missing.nonsense")),
    "a fact without its value": lacking(fact("missing.next-time")),
    "a fact with a value of another kind": lacking(fact("missing.known-too-little", known="a")),
    "numbers that are no integers": of_records(kind=sound().records.kind.astype(np.float64)),
}


def test_the_summary_is_sound_before_it_is_changed() -> None:
    assert isinstance(decoded(encoded(sound()), "a.summary"), RankSummary)


def test_facts_are_the_same_in_a_summary() -> None:
    share, inner = Fraction(1, 3), fact("utilisation.hfu", share=(Fraction(1, 7), Fraction(1, 3)))
    lacks = (
        MissingInput(fact("missing.known-too-little", known=share)),
        MissingInput(fact("missing.inconsistent", against=None, error=inner), fact("missing.pair")),
    )
    assert unpacked(packed(replace(sound(), lacks=lacks))).lacks == lacks


def test_the_summary_of_a_graph_capture_is_sound() -> None:
    """Nothing ran; its operators are start-up."""
    summary = summary_of(analyze(captured(("a", "b"))))
    assert not summary.reports
    assert isinstance(decoded(encoded(summary), "a.summary"), RankSummary)


def test_a_summary_with_other_runs_of_ranks_is_sound() -> None:
    summary = of_groups((0, 4, 1), (9, 3, -2))(sound())
    assert isinstance(decoded(_file(summary), "a.summary"), RankSummary)


@pytest.mark.parametrize("kind", FALSE)
def test_a_false_summary_is_refused(kind: str) -> None:
    content = _file(FALSE[kind](sound()))
    with pytest.raises(InputError, match=r"damaged summary: a\.summary"):
        decoded(content, "a.summary")


@pytest.mark.parametrize(
    "name",
    [
        "summary-out-of-bounds/segv.summary",
        "summary-out-of-bounds/negative.summary",
        "summary-inconsistent/s_np_80_work_0_count/rank0.summary",
    ],
)
def test_false_summaries_that_crashed_are_refused(name: str) -> None:
    path = shared_file(f"cases/hostile/{name}")
    for command in ("summary", "query"):
        made = CLI.invoke(app, [command, str(path)])
        assert (made.exit_code, made.stderr) == (
            3,
            f"error: summary written by another version of traceflops: {path.name}\n"
            "hint: write it again with traceflops reduce\n",
        )


def test_a_summary_of_another_version_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "rank0.summary"
    for version in (b"summary/1", b"summary/4", b"summary/10"):
        table = pa.ipc.open_file(pa.py_buffer(encoded(sound()))).read_all()
        table = table.replace_schema_metadata({b"traceflops": version})
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        made = CLI.invoke(app, ["report", str(path), "-o", str(tmp_path / "page.html")])
        assert (made.exit_code, made.stderr) == (
            3,
            f"error: summary written by another version of traceflops: {path.name}\n"
            "hint: write it again with traceflops reduce\n",
        )
        assert not (tmp_path / "page.html").exists()


def test_among_other_ranks_a_false_summary_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "rank0.summary").write_bytes(encoded(sound()))
    (tmp_path / "rank1.summary").write_bytes(_file(FALSE["negative sums"](sound())))
    report = json.loads(CLI.invoke(app, ["summary", str(tmp_path), "--json"]).stdout)
    notes = {note["code"]: note["text"] for note in report["notes"]}
    assert "rank1.summary" in notes["file-not-read"]


def test_a_command_that_needs_the_recording_says_what_a_summary_is(tmp_path: Path) -> None:
    path = tmp_path / "rank0.summary"
    path.write_bytes(encoded(sound()))
    made = CLI.invoke(app, ["mfu", str(path)])
    assert made.exit_code == 3
    assert f"{path} is a summary of traceflops reduce, no recording" in made.stderr


def test_a_summary_beside_another_recording_is_added_up(tmp_path: Path) -> None:
    cpu = read(ROOT / "tests" / "fixtures" / "pytorch" / "q12_cpu_only.json")
    (tmp_path / "cpu.summary").write_bytes(encoded(summary_of(analyze(cpu))))
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL.arrow"
    shutil.copy(small("2026").save_arrow(tmp_path.parent / "arrow") / kernels, tmp_path)
    made = CLI.invoke(app, ["summary", str(tmp_path), "--json"])
    assert made.exit_code in (0, 2), made.output  # 2: of two jobs
    assert "internal error" not in made.stderr


SUMS = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    "100.0,3000,3,1000.0,1000.0,1000,1000,0.0,gemm\n"
)


def test_what_no_summary_holds_is_refused_when_it_is_reduced(tmp_path: Path) -> None:
    sums, folder = tmp_path / "run_cuda_gpu_kern_sum.csv", tmp_path / "summaries"
    sums.write_text(SUMS, encoding="utf-8")
    made = CLI.invoke(app, ["reduce", str(sums), "-o", str(folder)])
    assert made.exit_code == 3 and "without a timeline" in made.stderr
    assert not list(folder.iterdir())
    (folder / "old.summary").write_bytes(encoded(summary_of(analyze(read(sums)))))
    report = json.loads(CLI.invoke(app, ["summary", str(folder), "--json"]).stdout)
    assert (report["devices"], report["ranks"]) == ([], None)
