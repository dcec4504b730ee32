"""The command line as a user meets it: results, files, errors, exit codes."""

import gzip
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tests.conftest import ROOT, SAMPLES, analysis_of_sample
from traceflops.cli import app
from traceflops.cli.report import target_of

SAMPLE = SAMPLES / "gpt_1rank.json.gz"
JOB = SAMPLES / "gpt_ddp_4rank"
TINY = ROOT / "tests" / "fixtures" / "pytorch" / "q24_waits_are_not_work.json"


def run(*words: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which $TF is traceflops, $SAMPLE the sample and $TINY a small trace."""
    variables = {"TF": f"{sys.executable} -m traceflops", "SAMPLE": str(SAMPLE), "TINY": str(TINY)}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, **variables, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(result: Result, code: int, *words: str) -> None:
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], result.output
    assert result.exit_code == code
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def test_summary_prints_the_verdict_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("summary", SAMPLE)
    assert result.exit_code == 0
    assert result.stdout.startswith("The input pipeline is too slow: 702 µs of each 4.71 ms step")
    assert "\nMFU 30.4 % · 1 × NVIDIA H100" in result.stdout
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_closing_line_has_an_arrow_that_the_terminal_can_show(tmp_path: Path) -> None:
    done = shell(f"$TF report $TINY -o {tmp_path}/a.json", PYTHONIOENCODING="ascii")
    assert done.stdout.splitlines()[-1].startswith(f"-> {tmp_path}/a.json (")
    assert "--open" not in done.stdout


def test_report_writes_the_page_here_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("report", SAMPLE)
    assert result.exit_code == 0, result.output
    assert [p.name for p in tmp_path.iterdir()] == ["gpt_1rank.report.html"]
    last = result.stdout.splitlines()[-1]
    assert re.fullmatch(r"→ gpt_1rank\.report\.html \(\d+ kB\)  open with --open", last)
    assert (tmp_path / "gpt_1rank.report.html").read_text().startswith("<!doctype html>")
    again = run("report", SAMPLE, "-q")
    assert (again.exit_code, again.stdout) == (0, "gpt_1rank.report.html\n")


def test_no_page_replaces_that_of_another_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "before").mkdir(parents=True)
        (tmp_path / name / "before" / "trace.json").write_bytes(TINY.read_bytes())
    monkeypatch.chdir(tmp_path)

    def page(recording: str) -> str:
        return run("report", recording, "-q").stdout.strip()

    names = ["before.report.html", "before-2.report.html"]
    assert [page("a/before"), page("b/before")] == names
    assert [page(f"{tmp_path}/b/before"), page("b/../a/before/")] == names[::-1]
    assert page(names[1]) == "before-2.report.html.report.html"  # which is read as ever
    Path(names[0]).write_text("<p>my notes</p>")
    assert_refused(run("report", "a/before"), 2, "will not overwrite")


def test_json_is_one_object_and_nothing_else() -> None:
    report = json.loads(run("summary", JOB, "--json").stdout)
    assert report["schema"] == "traceflops.report/1"
    assert [device["rank"] for device in report["devices"]] == [0, 1, 2, 3]
    assert json.loads(run("info", SAMPLE, "--json").stdout)["schema"] == "traceflops.info/1"
    why = json.loads(run("why", "ampere_sgemm_128x64_nt", "--json").stdout)
    assert why["category"] == "compute/gemm"


def test_output_by_suffix(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    assert run("report", SAMPLE, "-o", target).exit_code == 0
    assert json.loads(target.read_text())["schema"] == "traceflops.report/1"
    assert_refused(run("report", SAMPLE, "-o", tmp_path / "out.pdf"), 2, ".html, .json, .md, .zip")
    assert_refused(run("report", SAMPLE, "-o", tmp_path / "no" / "out.html"), 2, "no such folder")
    assert_refused(run("report", SAMPLE, "-o", tmp_path / "x.html" / ".."), 2)


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (("report", "-q", "-o", "r.html"), "r.html"),
        (("report", "-q", "-o", "T/"), "T/kernels.csv"),
        (("report", "-q", "--format", "parquet", "-o", "T/"), "T/kernels.parquet"),
        (("report", "-q", "--format", "arrow", "-o", "T/"), "T/kernels.arrow"),
        (("export", "--format", "parquet", "-o", "T"), "T/calls.parquet"),
        (("export", "--format", "arrow", "-o", "T"), "T/calls.arrow"),
        (("export", "--format", "csv", "-o", "T"), "T/calls.csv"),
        (("perfetto", "-o", "p.json"), "p.json"),
        (("perfetto", "-o", "p.json.gz"), "p.json.gz"),
    ],
)
def test_what_may_be_overwritten_is_the_same_for_all_that_is_written(
    words: tuple[str, ...], target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of traceflops may, files of others if forced."""
    monkeypatch.chdir(tmp_path)
    Path("T").mkdir()
    for _ in range(2):
        assert run(*words, TINY).exit_code == 0
    for strange in (b"Kind,Agent_Id\n1,2\n", b'{"traceEvents": []}', b"", b"\x1f\x8b no gzip"):
        Path(target).write_bytes(strange)
        assert_refused(run(*words, TINY), 2, "will not overwrite", target)
        assert Path(target).read_bytes() == strange
    assert run(*words, TINY, "-f").exit_code == 0
    assert Path(target).read_bytes() != strange


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("export", "--format", "csv", "-o", "ranks"), "ranks"),
        (("export", "--format", "csv", "-o", "ranks"), "ranks/kernel_trace.csv"),
        (("export", "-o", "ranks/new/tables"), "ranks"),
        (("export", "-o", "ranks/new/tables"), "."),
        (("report", "--format", "csv", "-o", "link"), "ranks"),
        (("perfetto", "-o", "ranks/p.json.gz"), "ranks"),
    ],
)
def test_nothing_is_written_that_a_later_run_takes_for_input(
    words: tuple[str, ...], given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ranks").mkdir()
    Path("link").symlink_to("ranks")
    Path("ranks/kernel_trace.csv").write_text("not read")
    for force in ((), ("-f",)):
        assert_refused(run(*words, given, *force), 2, "would write among its own input", "-o")
    assert [one.name for one in Path("ranks").iterdir()] == ["kernel_trace.csv"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert_refused(run("report", SAMPLE, "-q", "-o", tmp_path / "o.html"), 2, "No space left")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format_", ["parquet", "arrow", "csv"])
def test_export(tmp_path: Path, format_: str) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    result = run("export", SAMPLE, "-o", tmp_path, "--format", format_, "--table", "activities")
    assert result.exit_code == 0, result.output
    path = tmp_path / f"activities.{format_}"
    readers = {
        "parquet": pyarrow.parquet.read_table,
        "arrow": lambda p: pa.ipc.open_file(p).read_all(),
        "csv": pyarrow.csv.read_csv,
    }
    table = readers[format_](path)
    whole = analysis_of_sample(SAMPLE.name).devices[0].whole
    assert table.num_rows == sum(kind.count for kind in whole.kinds.values())
    assert sum(table["dur_ns"].to_pylist()) == whole.sum_ns
    assert set(table["top"].to_pylist()) <= {"compute", "memory", "communication", "other"}
    words = ("export", SAMPLE, "-o", tmp_path, "--format", format_, "--table", "activities")
    listed = json.loads(run(*words, "--json").stdout)
    assert listed["files"] == [{"table": "activities", "path": str(path), "rows": table.num_rows}]


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_export_keeps_lists_and_their_nulls(tmp_path: Path, format_: str) -> None:
    """Arrow before 25 writes no null of a list of a fixed size to Parquet."""
    import pyarrow as pa
    import pyarrow.parquet

    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}
    shapes = [None, [7, 1, 2], None, [3, 4, 5]]
    events = [
        kernel | ({} if shape is None else {"args": {"grid": shape, "block": shape}})
        for shape in shapes
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    result = run("export", path, "-o", tmp_path, "--format", format_, "--table", "activities")
    assert result.exit_code == 0, result.output
    written = tmp_path / f"activities.{format_}"
    table = (
        pyarrow.parquet.read_table(written)
        if format_ == "parquet"
        else pa.ipc.open_file(written).read_all()
    )
    assert table["grid"].to_pylist() == shapes
    assert table["block"].to_pylist() == shapes
    fixed = {pa.types.is_fixed_size_list(column.type) for column in (table["grid"], table["block"])}
    assert fixed == {format_ == "arrow"}


def test_export_refuses_what_there_is_not(tmp_path: Path) -> None:
    assert_refused(run("export", SAMPLE, "-o", tmp_path, "--table", "users"), 2, "activities")
    assert_refused(run("export", SAMPLE, "-o", tmp_path, "--format", "xls"), 2, "parquet")
    assert_refused(run("export", SAMPLE, "-o", SAMPLE), 2, "not a folder")


def test_escape_sequences_do_not_reach_a_csv(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "a\x1b[31mb\x07", "ts": 1, "dur": 2}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    run("export", path, "-o", tmp_path, "--format", "csv", "--table", "activities")
    text = (tmp_path / "activities.csv").read_text()
    assert "a [31mb " in text
    assert text.replace("\n", "").isprintable()


def test_a_spreadsheet_formula_in_a_name_is_text_in_csv(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "=cmd|' /C calc'!A0", "pid": 0, "tid": 1}
    trace = {"schemaVersion": 1, "traceEvents": [event | {"ts": 1, "dur": 1}]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace))
    run("export", path, "-o", tmp_path, "--format", "csv", "--table", "activities")
    assert "\"'=cmd|' /C calc'!A0\"" in (tmp_path / "activities.csv").read_text()


def test_choosing_what_to_analyse() -> None:
    report = json.loads(run("summary", JOB, "--json", "--ranks", "1,3", "--steps", "21:22").stdout)
    assert [device["rank"] for device in report["devices"]] == [1, 3]
    assert report["steps"]["used"] == [21, 22]
    some = json.loads(
        run("summary", SAMPLE, "--json", "--from", "1ms", "--to", "3ms", "--gpu", "0").stdout
    )
    assert some["total"]["window_ns"] == 2_000_000
    assert_refused(run("summary", JOB, "--ranks", "9"), 2, "ranks in the trace: 0, 1, 2, 3;")
    assert_refused(run("summary", SAMPLE, "--steps", "99:"), 2, "10 to 15")
    assert_refused(run("summary", SAMPLE, "--from", "1"), 2, "1.5s")
    assert_refused(run("info", SAMPLE, "--step-mark", "("), 2, "regular expression")
    assert_refused(run("info", SAMPLE, "--step-mark", "nothing"), 2, "no annotation matches")


def test_rules_change_a_category(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(
        '[[rule]]\nid = "mine"\nhead = "special_kernel"\ntop = "compute"\nsub = "gemm"\n'
        'because = "ours"\n'
    )
    plain = run("why", "special_kernel<int>(float*)")
    mine = run("why", "special_kernel<int>(float*)", "--rules", rules)
    assert "other/other" in plain.stdout
    assert "compute/gemm" in mine.stdout
    assert "mine.toml" in mine.stdout
    assert_refused(run("summary", SAMPLE, "--rules", tmp_path / "absent.toml"), 2)


# Without a time of day: every process must see the same tests.
CUT_GZIP = gzip.compress(b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat"', mtime=0)[:30]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty file"),
        (b"   \n", "empty file"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"hello", "not a known trace"),
        (b'{"a": 1}', "no events"),
        (b'{"schemaVersion": 1, "traceEvents": {}}', "not a list"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "blink", "name": "x", "ts": 1, "dur": 1}]}',
            "blink",
        ),
        (CUT_GZIP, "cut off"),
        (b"SQLite format 3\x00" + bytes(100), "SQLite"),
        (b'{"rocprofiler-sdk-tool": [{}]}', "rocprofv3"),
        (b'"Kind","Agent_Id","Queue_Id","Kernel_Name"\n', "rocprof"),
        (b"\x80\x04\x95", "pickle"),
    ],
)
def test_what_is_no_trace_gets_two_lines_and_exit_code_3(
    content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "input"
    path.write_bytes(content)
    for command in ("summary", "report", "info"):
        assert_refused(run(command, path), 3, words)
    assert_refused(run("export", path, "-o", tmp_path / "tables"), 3, words)
    assert [p.name for p in tmp_path.iterdir()] == ["input"]


def test_missing_things(tmp_path: Path) -> None:
    assert_refused(run("summary", tmp_path / "absent.json"), 3, "no such file")
    assert_refused(run("summary", tmp_path), 3, "no traces in ")
    assert_refused(run("summary", SAMPLE, ""), 3, "empty name", "shell variable")
    for name in ("n" * 300, "d/" * 3000):
        assert_refused(run("summary", tmp_path / name), 3, "cannot read: ", "too long")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("{}")
    path.chmod(0)
    assert_refused(run("summary", path), 3, "permission")


def test_a_hostile_path_is_one_inert_line(tmp_path: Path) -> None:
    result = run("summary", tmp_path / "a\x1b[31m\nhint: fake")
    assert_refused(result, 3)
    assert "\x1b" not in result.stderr


def test_without_arguments_it_helps() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Usage" in result.output
    assert run("summary").exit_code == 2
    assert run("nonsense").exit_code == 2


def test_help_and_version_are_words_too() -> None:
    assert run("help").stdout == run("--help").stdout
    assert run("help", "compare").stdout == run("compare", "--help").stdout
    assert run("version").stdout == run("-V").stdout == run("--version").stdout
    assert_refused(run("diff", "a", "b"), 2, "no such command 'diff'", "use traceflops compare")


def test_a_trace_without_a_command_gets_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(SAMPLE).stdout == run("summary", SAMPLE).stdout
    assert json.loads(run(JOB, "--ranks", "1", "--json").stdout)["devices"][0]["rank"] == 1
    for absent in (tmp_path / "absent", "absent.json"):
        assert_refused(run(absent), 3, "no such file")
    assert_refused(run("sumary"), 2, "no such command 'sumary'")
    assert_refused(run("--json", SAMPLE), 2, "--json", "write traceflops summary --json FILE")
    assert run("-", stdin=SAMPLE.read_bytes()).stdout.startswith("The input pipeline")
    assert_refused(run(SAMPLE, "--stpes", "1"), 2, "--steps", "traceflops summary --help")
    assert_refused(
        run(SAMPLE, "--by", "ops"), 2, "--by ops", "did you mean op? choose one of module"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("-x.json.gz", "--json"):
        Path(name).write_bytes(SAMPLE.read_bytes())
        assert run("--", name).stdout.startswith("The input pipeline")
        assert run("summary", "--", name).stdout.startswith("The input pipeline")
    assert_refused(run("summary", "-x.json.gz"), 2, "-x", "write ./-NAME")
    (tmp_path / "why").write_bytes(b"")
    assert run("why", "ampere_sgemm_128x64_nt").stdout.startswith("category"), "a command"


@pytest.mark.parametrize(
    ("typed", "code", "hint"),
    [
        (f"check {SAMPLE} --json", 2, "--junit FILE"),
        (f"compare {SAMPLE} {SAMPLE} --markdown", 2, "write -o FILE.md"),
        (f"report {SAMPLE} --csv", 2, "write -o FOLDER --format csv"),
        (f"compare {SAMPLE} {SAMPLE} --csv", 2, "use traceflops report FILE -o FOLDER"),
        (f"perfetto {SAMPLE} --html", 2, "use traceflops report FILE -o FILE.html"),
        (f"summary {SAMPLE} --html", 2, "use traceflops report FILE -o FILE.html"),
        ("what-if TRACE data_input=0", 3, "TRACE stands for"),
        ("report https://host/trace.json", 3, "no such file: https://host/trace.json\nhint: downl"),
        (f"summary {SAMPLE} --device 0", 2, "--gpu selects"),
        (f"devices {SAMPLE}", 2, "--trace FILE"),
        (f"export {SAMPLE}", 2, "add -o FOLDER"),
        (f"summary {SAMPLE} --from 5s", 2, "GPU operations span 28.3 ms"),
    ],
)
def test_what_strangers_type_gets_the_hint_that_helps(typed: str, code: int, hint: str) -> None:
    assert_refused(run(*typed.split()), code, hint)


def test_a_part_of_the_ranks_is_said_beside_the_gpus(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        (tmp_path / f"rank{rank}.json.gz").symlink_to(JOB / f"rank{rank}.json.gz")
    assert "· ranks 0–1, 3 of 4 · 3 files" in run(tmp_path).stdout
    assert "· rank 0 of 4 · rank0.json.gz" in run(tmp_path / "rank0.json.gz").stdout
    assert " of 4 ·" not in run(JOB).stdout


def test_a_fault_of_ours_is_said_in_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("secret\nline")

    monkeypatch.setattr("traceflops.analysis.recipe.analyze", broken)
    assert_refused(run("summary", SAMPLE), 1, "TRACEFLOPS_DEBUG=1")


@pytest.mark.parametrize(
    "shortage",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc"),
        OSError(12, "Cannot allocate memory"),
        ImportError("libarrow.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        pa.ArrowException("Failed to launch worker thread: Resource temporarily unavailable"),
        type("OutOfMemoryException", (Exception,), {})("Allocation failure"),
    ],
)
def test_no_room_in_memory_is_no_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch, shortage: Exception
) -> None:
    def short(*_: object, **__: object) -> None:
        raise shortage

    monkeypatch.setattr("traceflops.analysis.recipe.analyze", short)
    assert_refused(run("summary", SAMPLE), 2, "more memory", "--ranks")


def test_no_room_in_memory_while_libraries_load() -> None:
    """Where OpenBLAS or Arrow has no room as it is loaded, it may end, hang or crash."""
    done = shell("ulimit -v 60000; $TF summary $SAMPLE")
    lines = done.stderr.splitlines()
    assert (done.returncode, lines[0]) == (2, "error: out of memory")
    assert len(lines) == 2


def test_libraries_reserve_little() -> None:
    """Arrow's allocator takes a GiB of addresses at once where it is let."""
    program = (
        "import sys\n"
        "from traceflops.__main__ import run\n"
        "try: run()\n"
        "finally: print(open('/proc/self/status').read(), file=sys.stderr)"
    )
    done = shell(f'{sys.executable} -c "$PROGRAM" summary $TINY', PROGRAM=program)
    (peak,) = re.findall(r"VmPeak:\s*(\d+) kB", done.stderr)
    assert int(peak) < 1 << 20


def test_a_named_pipe_that_nobody_writes_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceflops.parsers.io.places.PIPE_PATIENCE_S", 0)
    os.mkfifo(tmp_path / "pipe")
    assert_refused(run("summary", tmp_path / "pipe"), 3, "no program is writing to the pipe")


@pytest.mark.parametrize("patience", [0, 60])
def test_a_named_pipe_is_read_once_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    """Without patience, what writes has the pipe open already; with it, it may come later."""
    monkeypatch.setattr("traceflops.parsers.io.places.PIPE_PATIENCE_S", patience)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR) if patience == 0 else None
    with ThreadPoolExecutor() as pool:
        written = pool.submit(written_to, pipe, handle)
        assert run("summary", pipe, "--json").exit_code == 0
        written.result()


def written_to(pipe: Path, handle: int | None) -> None:
    """Write the sample to a pipe, opened here unless it is open."""
    with open(pipe if handle is None else handle, "wb") as file:
        file.write(SAMPLE.read_bytes())


def test_pipes() -> None:
    from_pipe = shell("set -o pipefail; cat $SAMPLE | $TF summary - --json | head -c 10")
    assert (from_pipe.returncode, from_pipe.stderr) == (0, "")
    substituted = shell("$TF summary <(cat $TINY)")
    assert substituted.returncode == 0, substituted.stderr


def test_the_file_is_written_though_nobody_reads_the_summary(tmp_path: Path) -> None:
    target = tmp_path / "o.json"
    done = shell(f"set -o pipefail; $TF report $TINY --json -o {target} | head -c 1")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(target.read_text())["schema"] == "traceflops.report/1"


def test_what_a_folder_holds_beside_traces_is_said(tmp_path: Path) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(SAMPLE.read_bytes())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("hello")
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 not an archive")
    report = json.loads(run("summary", tmp_path, "--json").stdout)
    (note,) = [note for note in report["notes"] if note["code"] == "not-a-trace"]
    assert note["count"] == 3
    assert "broken.zip" in note["text"]


def test_time_counts_from_the_first_activity_whichever_rank_is_chosen() -> None:
    chosen = ("summary", JOB, "--json", "--from", "2ms", "--to", "5ms")
    every = json.loads(run(*chosen).stdout)["devices"][3]["windows"][-1]
    alone = json.loads(run(*chosen, "--ranks", "3").stdout)["devices"][0]["windows"][-1]
    assert (alone["start_ns"], alone["end_ns"]) == (every["start_ns"], every["end_ns"])


@pytest.mark.parametrize("words", ["summary $TINY", "--help", "--show-completion bash"])
def test_output_that_cannot_be_written(words: str) -> None:
    full = shell(f"$TF {words} > /dev/full")
    assert full.returncode == 2
    assert [line.split(":")[0] for line in full.stderr.splitlines()] == ["error", "hint"]


@pytest.mark.parametrize(
    ("words", "code"),
    [("summary --absent 2>/dev/full", 2), ("summary $TINY -v 2>&-", 0)],
)
def test_errors_that_cannot_be_written_change_no_exit_code(words: str, code: int) -> None:
    assert shell(f"$TF {words}").returncode == code


def test_standard_output_may_be_closed() -> None:
    assert shell("$TF summary $TINY >&-").returncode == 0


def test_plain_terminals() -> None:
    ascii_only = shell("$TF summary $SAMPLE", PYTHONIOENCODING="ascii", COLUMNS="80")
    assert ascii_only.returncode == 0, ascii_only.stderr
    assert ascii_only.stdout.isascii()
    assert "\x1b[" not in ascii_only.stdout
    assert "####" in ascii_only.stdout
    assert max(len(line) for line in ascii_only.stdout.splitlines()) <= 80
    colour = shell("$TF summary $TINY", FORCE_COLOR="1", NO_COLOR="", COLUMNS="0")
    assert "\x1b[" in colour.stdout
    assert "GPU work" in colour.stdout, "a width of zero is no width"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a/b/run.json.gz", "run.report.html"),
        ("host_1.170.pt.trace.json", "host_1.170.report.html"),
        ("-", "trace.report.html"),
        ("ranks/", "ranks.report.html"),
        (".json", ".json.report.html"),
    ],
)
def test_default_target(given: str, expected: str) -> None:
    assert target_of(None, None, [given]).path == Path(expected)


def test_closed_standard_input_is_said() -> None:
    done = shell("$TF summary - <&-")
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "error: standard input is closed")
