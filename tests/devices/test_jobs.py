"""Files of one job are taken together, files of several are not: nobody gets a mean of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import SAMPLES, shared_file
from tests.reports.test_json_schema import errors
from traceflops.cli import app
from traceflops.devices.jobs import _Member, merge_jobs, split
from traceflops.devices.merging import merge
from traceflops.errors import UsageError
from traceflops.reports.page.html import render_html
from traceflops.reports.view.wording import job_size
from traceflops.table.trace import Note, SourceFile, Trace
from traceflops.windows.selection import Selection

SECOND = 10**9
SUMMARY = "These files are from 2 jobs; choose one with --job N."


def made(
    name: str, origin: int | None = 0, work: int = 10, format_: str = "pytorch", **process: Any
) -> Trace:
    """Return the trace of a file: one kernel of so many ns, and its launch."""
    trace = trace_of(
        **launched(("k", 95, 100, work)), processes=[{"file": name, "pid": 1} | process]
    )
    files = (SourceFile(name, None, None),)
    source = replace(trace.source, origin_unix_ns=origin, files=files, format=format_)
    return replace(trace, source=source)


def jobs(*traces: Trace) -> list[list[str]]:
    return [[trace.source.files[0].name for trace in job] for job in split(traces)[0]]


def codes(trace: Trace) -> list[str]:
    return [note.code for note in trace.notes]


def kineto(path: Path, rank: int, start_us: int, base_ns: int = SECOND) -> Path:
    """Write a trace of two kernels of 10 µs with a pause between them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 7, "ts": ts, "dur": 10}
        | {"args": {"correlation": number, "device": 0, "stream": 7}}
        for number, at in enumerate((start_us, start_us + 40), 1)
        for cat, name, pid, ts in (
            ("cuda_runtime", "cudaLaunchKernel", 5, at - 11),
            ("kernel", "k", 0, at),
        )
    ]
    about = {"baseTimeNanoseconds": base_ns, "distributedInfo": {"rank": rank, "world_size": 2}}
    path.write_text(json.dumps(about | {"traceEvents": events}))
    return path


@pytest.mark.parametrize(
    "other",
    [
        made("b", rank=1, world_size=2),
        made("b", rank=1),
        made("b", origin=None, rank=1, world_size=2),
        made("b", origin=1800 * SECOND, rank=1, world_size=2),  # recorded later, of the same world
        made("b", rank=1, origin=SECOND // 2),  # clocks of machines differ
    ],
)
def test_what_does_not_contradict_is_one_job(other: Trace) -> None:
    assert jobs(made("a", rank=0, world_size=2), other) == [["a", "b"]]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (made("b", rank=1, world_size=4), "they differ in world size"),
        (made("b", rank=0, world_size=2), "two claim the same rank"),
        (made("b", rank=1, origin=60 * SECOND), "they were recorded at different times"),
        (
            made("b", rank=1, world_size=2, origin=3 * 86_400 * SECOND),
            "they were recorded at different times",
        ),
        (made("b", rank=1, world_size=2, format_="other"), "they differ in tool"),
        (made("b"), "some have a rank and a world size, others have no rank"),
        (made("b", world_size=2), "some have a rank and a world size, others have no rank"),
    ],
)
def test_what_contradicts_is_two_jobs_and_the_note_says_why(other: Trace, why: str) -> None:
    first = made("a", rank=0, world_size=2)
    assert jobs(first, other) == jobs(other, first) == [["a"], ["b"]]
    assert why_apart(first, other) == f"These files belong to 2 jobs: {why}"


def why_apart(*traces: Trace) -> str:
    (note,) = [one for one in merge_jobs(traces).notes if one.code == "several-jobs"]
    return note.text.removesuffix(". Use --job N, or give one job's files.")


def test_files_are_compared_with_those_that_can_contradict_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = Mock(return_value=None)
    monkeypatch.setattr(_Member, "contradiction", compared)
    world = [made(f"{rank:03}", rank=rank % 50, world_size=100) for rank in range(100)]
    assert jobs(*world) == [[f"{rank:03}" for rank in range(100)]]
    assert compared.call_count == 99 + 50  # with one like it, and with the one of its rank


def test_a_file_without_a_rank_is_of_no_world() -> None:
    world = [made(f"w{rank}", rank=rank, world_size=4, origin=rank) for rank in range(4)]
    for origin in (-1, 2, 9):
        found = jobs(*world, made("a", origin=origin))
        assert found == [["a"], ["w0", "w1", "w2", "w3"]]


def test_recordings_one_after_the_other_are_jobs() -> None:
    """They last from 95 to 110; nothing but their time is known of them."""
    first, later = made("a", pid=1), made("b", origin=16, pid=2)
    assert jobs(first, later) == [["a"], ["b"]]
    assert why_apart(first, later).endswith("recorded at different times")
    assert jobs(first, made("b", origin=14)) == [["a", "b"]]
    on_two_hosts = [made("a", host="x"), made("b", origin=16, host="y")]
    assert jobs(*on_two_hosts) == [["a", "b"]]  # clocks of machines differ
    assert "one-job-assumed" in codes(merge_jobs(on_two_hosts))


def test_recordings_that_a_longer_one_overlaps_are_one_job() -> None:
    assert jobs(made("a", work=100), made("b"), made("c", origin=50)) == [["a", "b", "c"]]


def test_ranks_go_with_the_files_of_their_folder_and_time() -> None:
    files = [
        made(f"{folder}/rank{rank}", rank=rank, world_size=4, origin=origin)
        for folder, origin, ranks in (("x", 0, (0, 1, 3)), ("y", 600 * SECOND, (0, 1, 2)))
        for rank in ranks
    ]
    expected = [["x/rank0", "x/rank1", "x/rank3"], ["y/rank0", "y/rank1", "y/rank2"]]
    assert jobs(*files) == expected


def test_local_ranks_of_two_machines_at_one_time_are_one_job() -> None:
    both = [made(name, rank=0, host=name) for name in ("a", "b")]
    assert jobs(*both) == [["a", "b"]]


def test_runs_on_one_gpu_are_one_job_in_which_a_run_is_chosen() -> None:
    first, second = (
        replace(made(name, origin, pid=pid), places=("everywhere GPU-1",))
        for name, origin, pid in (("a", 0, 1), ("b", 60 * SECOND, 2))
    )
    trace = merge_jobs([first, second])
    assert not trace.jobs
    assert "runs-on-one-gpu" in codes(trace)


def test_runs_that_a_reader_tells_apart_are_jobs() -> None:
    note = Note("assumed", "several-profiles", "Several profiles.")
    runs = [replace(made(name, origin=None), notes=(note,)) for name in ("a", "b")]
    assert jobs(*runs) == [["a"], ["b"]]


def test_counters_are_no_job_of_their_own() -> None:
    counters = replace(trace_of(processes=[{"file": "c", "rank": 0}]), notes=())
    assert len(jobs(made("a", rank=0), made("b", rank=1), counters)) == 1


def sums(name: str, format_: str, kernel: str, product: str | None = None) -> Trace:
    """Return the trace of a file without a timeline, of one kernel and an API call."""
    trace = trace_of(
        totals=[{"name": kernel}, {"name": "launch", "kind": "call"}],
        devices=[] if product is None else [{"product": product}],
    )
    source = replace(trace.source, files=(SourceFile(name, None, None),), format=format_)
    return replace(trace, source=source)


def on(product: str, format_: str = "pytorch") -> Trace:
    trace = made("a", format_=format_)
    devices = trace_of(devices=[{"product": product}]).devices
    return replace(trace, tables={**trace.tables, "devices": devices})


@pytest.mark.parametrize(
    ("trace", "other", "expected"),
    [
        (on("AMD Instinct MI210"), sums("b", "nsys stats", "k"), 2),
        (on("NVIDIA H100 80GB HBM3"), sums("b", "nsys stats", "k"), 1),
        (on("NVIDIA H100 80GB HBM3"), sums("b", "nsys stats", "void k(int*)"), 1),
        (on("NVIDIA H100 80GB HBM3"), sums("b", "nsys stats", "other"), 2),
        (on("NVIDIA H100 80GB HBM3", "nsys-sqlite"), sums("b", "nsys stats", "other"), 1),
        (on("Tesla T4", "nsys-sqlite"), sums("b", "ncu CSV", "k", "NVIDIA H200"), 2),
        (made("a"), sums("b", "nsys stats", "k"), 1),
        (sums("a", "rocprof", "k"), sums("b", "nsys stats", "k"), 2),
    ],
    ids=[
        "makers",
        "kernels by name",
        "kernels in another spelling",
        "nothing in common",
        "tools of one family",
        "GPUs of one maker",
        "unknown GPU",
        "no timeline at all",
    ],
)
def test_sums_go_with_a_trace_that_they_may_be_of(
    trace: Trace, other: Trace, expected: int
) -> None:
    assert len(jobs(trace, other)) == expected


def test_a_memory_snapshot_given_beside_its_trace_is_sent_to_its_option() -> None:
    snapshot = replace(made("b", format_="PyTorch memory snapshot"), tables={})
    assert "--memory FILE reads a memory snapshot" in why_apart(made("a"), snapshot)


def test_sums_without_kernels_follow_those_of_their_tool() -> None:
    calls = replace(sums("b", "nsys stats", "k"), tables={})
    kernels = sums("c", "nsys stats", "k")
    assert jobs(on("NVIDIA H100 80GB HBM3"), calls, kernels) == [["a", "b", "c"]]


def test_a_job_has_the_format_of_its_timeline() -> None:
    assert merge_jobs([sums("A", "nsys stats", "k"), made("a")]).source.format == "pytorch"


def test_files_of_which_nothing_says_that_they_belong_together_are_one_job_with_a_note() -> None:
    assert "one-job-assumed" in codes(merge_jobs([made("a", None), made("b", None)]))
    assert "one-job-assumed" not in codes(merge_jobs([made("a", rank=0), made("b", rank=1)]))


def test_equal_names_without_ranks_may_be_runs_whose_times_overlap_by_chance() -> None:
    """As before/trace.json and after/trace.json: their mean would be of nothing."""
    merged = merge_jobs([made("before/t.json", pid=1), made("after/t.json", pid=2)])
    assert [note.share for note in merged.notes if note.code == "one-job-assumed"] == [1.0]
    for one, other in (("a/t.json", "a/u.json"), ("t.json", "u.json")):
        assert "one-job-assumed" not in codes(merge_jobs([made(one, pid=1), made(other, pid=2)]))
    # Two that belong together say nothing of a third.
    three = [made(name, pid=at) for at, name in enumerate(("a/t.json", "a/u.json", "b/t.json"))]
    assert "one-job-assumed" not in codes(merge_jobs(three))  # a/u.json is of both others' job
    apart = [made("a", rank=0), made("b", rank=1), made("c", None)]
    assert "one-job-assumed" in codes(merge_jobs(apart))
    ranked = [made("a/t.json", rank=0), made("b/t.json", rank=1)]
    assert "one-job-assumed" not in codes(merge_jobs(ranked))


def test_where_no_job_is_chosen_each_has_its_own_figures() -> None:
    first, second = made("a", work=10), made("b", work=70, origin=60 * SECOND)
    note = Note("missing", "graphs-opaque", "Kernels of graphs were not recorded.")
    analysis = tf.analyze(merge_jobs([replace(first, notes=(note,)), second]))
    assert analysis.verdict.sentence == SUMMARY
    assert (analysis.total.components.window_ns, analysis.devices, analysis.losses) == (0, (), ())
    assert analysis.findings == ()
    assert "one GPU, 10\xa0ns, 0.0\xa0% idle" in render_html(analysis)  # units stay at numbers
    assert [(job.number, job.files, job.chosen) for job in analysis.jobs] == [
        (1, ("a",), False),
        (2, ("b",), False),
    ]
    assert [job.total for job in analysis.jobs] == [
        tf.analyze(one).total for one in (first, second)
    ]
    assert [job.verdict for job in analysis.jobs] == [
        tf.analyze(one).verdict.sentence for one in (first, second)
    ]


def test_a_chosen_job_is_its_files_alone() -> None:
    ranks = [made(f"b{rank}", rank=rank, origin=60 * SECOND) for rank in (0, 1)]
    trace = merge_jobs([made("a", rank=0), *ranks])
    chosen, alone = tf.analyze(trace, Selection(job=2)), tf.analyze(merge(ranks))
    assert chosen.total == alone.total
    assert chosen.devices == alone.devices
    assert chosen.notes == alone.notes
    assert [job.chosen for job in chosen.jobs] == [False, True]
    with pytest.raises(UsageError, match="there is no job 3"):
        tf.analyze(trace, Selection(job=3))
    with pytest.raises(UsageError, match="counts from 1"):
        Selection(job=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs of rank 0, a minute apart, under one name."""
    kineto(tmp_path / "runs" / "first" / "trace.json", 0, 100)
    kineto(tmp_path / "runs" / "second" / "trace.json", 0, 100, 61 * SECOND)
    return tmp_path / "runs"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(map(str, words)))


def test_files_of_one_name_are_told_apart_by_folder(folder: Path) -> None:
    trace = tf.read(folder)
    names = ["first/trace.json", "second/trace.json"]
    assert [file.name for file in trace.source.files] == names
    assert trace.processes["file"].to_pylist() == names
    assert [file.name for file in tf.read(folder / "first").source.files] == ["trace.json"]


def test_the_commands_say_which_jobs_there_are(folder: Path, run: Callable[..., Any]) -> None:
    told = run("summary", folder)
    assert told.stdout.startswith(f"{SUMMARY}\n")
    for number, name in ((1, "first"), (2, "second")):
        assert f"Job {number}  {name}/trace.json (one GPU, 50.0 µs, 60.0 % idle)" in told.stdout
    assert "idle                  " not in told.stdout  # no bar and no parts of all together
    listed = run("info", folder).stdout.splitlines()
    assert listed[0].split() == ["job", "1", "first/trace.json", "(pytorch,", "rank", "0)"]
    assert [job["chosen"] for job in json.loads(run("info", folder, "--json").stdout)["jobs"]] == [
        False,
        False,
    ]


def test_info_has_steps_and_ranks_of_each_job_by_themselves(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    for number, step in ((0, 3), (1, 8)):
        path = kineto(tmp_path / "runs" / f"{number}.json", number, 100, SECOND * 10**5 * number)
        trace = json.loads(path.read_text())
        step_mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        trace["traceEvents"].append(step_mark | {"pid": 5, "tid": 7, "ts": 80, "dur": 90})
        path.write_text(json.dumps(trace))
    told = run("info", "runs").stdout.splitlines()
    starts = ("job", "ranks", "steps")
    assert [line for line in told if line.startswith(starts)] == [
        "job 1       0.json (pytorch, rank 0)",
        "ranks       0 of 2",
        "steps       3 to 3 (1), ProfilerStep markers",
        "job 2       1.json (pytorch, rank 1)",
        "ranks       1 of 2",
        "steps       8 to 8 (1), ProfilerStep markers",
    ]
    found = json.loads(run("info", "runs", "--json").stdout)
    assert (found["ranks"], found["steps"], found["devices"]) == ([], [], [])
    assert [(job["steps"], job["rows"]["activities"]) for job in found["jobs"]] == [
        ([3], 2),
        ([8], 2),
    ]
    assert "nothing of it is selected" in run("info", "runs", "--ranks", 1).stdout
    assert run("info", "runs", "--ranks", 7).exit_code == 2


def test_the_commands_take_a_job(folder: Path, run: Callable[..., Any]) -> None:
    chosen = json.loads(run("summary", folder, "--job", 2, "--json").stdout)
    alone = json.loads(run("summary", folder / "second", "--json").stdout)
    assert chosen["selection"]["job"] == 2
    assert chosen["total"] == alone["total"]
    assert [job["chosen"] for job in chosen["jobs"]] == [False, True]
    assert "job 2 of 2" in run("summary", folder, "--job", 2).stdout
    assert len(json.loads(run("info", folder, "--job", 1, "--json").stdout)["files"]) == 1
    for words in (["mfu"], ["perfetto"]):
        refused = run(*words, folder)
        assert refused.exit_code == 2
        assert "choose one with --job N" in refused.stderr
    assert run("perfetto", folder, "--job", 1).exit_code == 0
    exported = run("export", folder, "--job", 1, "--table", "activities", "-o", "out")
    assert "2 rows" in exported.stdout


@pytest.mark.parametrize("suffix", ["html", "md", "json"])
def test_reports_of_several_jobs_are_written(
    folder: Path, run: Callable[..., Any], suffix: str, tmp_path: Path
) -> None:
    assert run("report", folder, "-o", f"x.{suffix}", "-q").exit_code == 0
    text = (tmp_path / f"x.{suffix}").read_text()
    assert SUMMARY in re.sub("</?span[^>]*>", "", text)
    assert "second/trace.json" in text


@pytest.mark.parametrize("selection", [Selection(), Selection(job=2)])
def test_json_of_jobs_follows_the_schema(folder: Path, selection: Selection) -> None:
    report = json.loads(tf.analyze(tf.read(folder), selection).to_json())
    assert errors(report) == []
    assert len(report["jobs"]) == 2


def test_names_of_files_of_other_jobs_are_redacted(folder: Path, run: Callable[..., Any]) -> None:
    for words in (["info"], ["summary"], ["summary", "--json"], ["info", "--job", 1]):
        shown = run(words[0], folder, *words[1:], "--redact").stdout
        assert "second" not in shown


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["mi300x_sglang_qwen3_decode_capture", "mi300x_sglang_qwen3_decode_graph"], 2),
        (["hta_sampled_rank0", "hta_sampled_rank1"], 0),
        (["h100_qwen15_infer", "a100_hta_nccl_rank0"], 2),
        (["mi210_gpu_only", "nsys_stats_rtx5090_prefill_cuda_gpu_kern_sum.csv"], 2),
        (["mi210_gpu_only", "ncu_rtx5090_kernel0001_details.csv"], 2),
        (["h100_qwen15_infer", "jax_nvtx_gpu_proj_trace.parquet"], 2),
        (["nsys_t4_power_iteration.sqlite", "ncu_rtx5090_kernel0001_details.csv"], 2),
    ],
)
def test_public_traces(names: list[str], expected: int) -> None:
    files = [
        shared_file(f"traces/nsight/{name}" if "." in name else f"traces/pytorch/{name}.json.gz")
        for name in names
    ]
    assert len(tf.read(files).jobs) == expected


def test_a_capture_names_the_command_that_pairs_it() -> None:
    name = "mi300x_sglang_qwen3_decode_{}.json.gz"
    files = [shared_file(f"traces/pytorch/{name.format(one)}") for one in ("capture", "graph")]
    capture, graph = tf.analyze(tf.read(files)).jobs
    command = f"traceflops summary {name.format('graph')} --pair {name.format('capture')}"
    assert capture.verdict is not None
    assert capture.verdict.endswith(command)
    assert job_size(capture) == "no GPU work with known times"
    assert command not in (graph.verdict or "")


def test_a_run_and_a_world_are_two_jobs() -> None:
    """Also the same run a little later, which has as little to say of its rank."""
    world = sorted((SAMPLES / "gpt_ddp_4rank").glob("*.gz"))
    run = SAMPLES / "gpt_1rank.json.gz"
    first, second = tf.read([*world, run]).jobs
    assert [len(first.traces), len(second.traces)] == [1, 4]
    alone = tf.read(run)
    later = replace(alone.source, origin_unix_ns=(alone.source.origin_unix_ns or 0) + 70_000_000)
    assert len(split([alone, replace(alone, source=later)])[0]) == 2
