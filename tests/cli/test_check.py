"""`traceflops check`: each gate passes, fails or is unknown; where the result goes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest
from typer.testing import Result

import traceflops as tf
from tests.cli.test_commands import SAMPLE, assert_refused, run, shell
from tests.conftest import ROOT, SAMPLES
from traceflops.cli.gates import Gate
from traceflops.units import exact_percent, parse_limit

STEPS_US = (1000, 1010, 990, 1005, 995, 1000, 1000)
"""The last of these steps is not used; the others take 1 ms on average."""
GATE = ("--max-step-time", "1.0ms")


def written(path: Path, steps_us: Sequence[int] = STEPS_US, kernel: str = "k") -> Path:
    """Write a trace of steps so long, with one kernel that takes all but 100 us of each."""
    events, at = [], 0
    for step, dur in enumerate(steps_us, 1):
        host = {"ph": "X", "pid": 1, "tid": 1}
        launch = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": at, "dur": 2}
        work = {"name": kernel, "cat": "kernel", "ts": at + 2, "dur": dur - 100}
        mark = {"name": f"ProfilerStep#{step}", "cat": "user_annotation", "ts": at, "dur": dur}
        device = {"ph": "X", "pid": 0, "tid": 7}
        events += [
            host | mark,
            host | launch | {"args": {"correlation": step}},
            device | work | {"args": {"correlation": step, "device": 0, "stream": 7}},
        ]
        at += dur
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return written(tmp_path / "now.json")


def told(result: Result) -> tuple[int, str]:
    assert result.stderr == ""
    return result.exit_code, result.stdout


def test_what_the_input_lacks_is_said_beside_the_gates(tmp_path: Path) -> None:
    for rank in (0, 1):
        source = SAMPLES / f"gpt_ddp_4rank/rank{rank}.json.gz"
        (tmp_path / source.name).symlink_to(source)
    (tmp_path / "rank2.json.gz").touch()
    result = run("check", tmp_path, "--min-mfu", "30%")
    assert result.exit_code == 0
    skipped, missing = result.stderr.splitlines()
    assert skipped.startswith("warning: 1 file in the folder skipped")
    assert missing.startswith("warning: 2 of the job's 4 ranks are here")


@pytest.mark.parametrize(
    ("words", "bad", "good", "found"),
    [
        (("--min-mfu",), "31%", "0.30", "MFU 30.4 %"),
        (("--max-step-time",), "4.7ms", "4800us", "mean step 4.71 ms"),
        (("--max-share",), "idle=20%", "idle=0.21", "idle time 20.8 %"),
        (("--max-exposed-communication",), "", "0", "exposed communication 0.00 %"),
        (("--max-memory",), "0.8GB", "1GiB", "peak memory 805 MB"),
    ],
)
def test_a_gate_passes_and_fails(words: tuple[str, ...], bad: str, good: str, found: str) -> None:
    name = " ".join(words)
    assert told(run("check", SAMPLE, *words, good)) == (0, f"passed  {name} {good}: {found}\n")
    if bad:
        assert told(run("check", SAMPLE, *words, bad)) == (4, f"failed  {name} {bad}: {found}\n")


@pytest.mark.parametrize(
    ("words", "verdict", "found"),
    [
        (("--max-share", "idle=0.2076"), "failed", "idle time 20.8 %, just above the limit"),
        (("--max-share", "idle=0.2080"), "passed", "idle time 20.8 %, just below the limit"),
    ],
)
def test_a_value_that_prints_like_its_limit_says_on_which_side_it_is(
    words: tuple[str, ...], verdict: str, found: str
) -> None:
    idle = tf.analyze(tf.read(SAMPLE)).components
    assert Fraction("0.2076") < Fraction(idle.idle_ns, idle.window_ns) < Fraction("0.2080")
    assert run("check", SAMPLE, *words).stdout == f"{verdict}  {' '.join(words)}: {found}\n"


def test_times_of_operators_that_only_launch_are_no_idle_time_and_no_rates(tmp_path: Path) -> None:
    """GPU records are missing: the time between operators is not that of the GPU."""
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    where = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": shapes}
    rows = [
        {**where, "name": name, "ts": at, "dur": 40}
        for at, name in ((0, "aten::mm"), (90, "aten::cudnn_convolution"))
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    expected = "unknown --max-share idle=0.1: GPU records are missing\n"
    assert told(run("check", path, "--max-share", "idle=0.1")) == (4, expected)
    printed = run("mfu", path).stdout
    assert "executed" in printed and "TFLOP/s" not in printed


def test_exposed_communication_of_a_job() -> None:
    job = SAMPLES / "gpt_ddp_4rank"
    words = ("check", job, "--max-exposed-communication")
    assert run(*words, "0.14").exit_code == 0
    expected = "failed  --max-exposed-communication 0.13: exposed communication 13.7 %\n"
    assert told(run(*words, "0.13")) == (4, expected)


def test_the_limit_itself_passes(trace: Path) -> None:
    assert told(run("check", trace, *GATE)) == (
        0,
        "passed  --max-step-time 1.0ms: mean step 1.00 ms\n",
    )
    longer = run("check", trace, "--max-step-time", "999999ns")
    assert longer.exit_code == 4


def test_no_finding_is_by_priority(trace: Path) -> None:
    code, text = told(run("check", SAMPLE, "--no-finding", "high"))
    assert (code, text.startswith("failed  --no-finding high: ")) == (4, True)
    assert "(data-input, priority high)" in text and "loss-memory" not in text  # a loss is no cause
    assert told(run("check", trace, "--no-finding", "high")) == (
        0,
        "passed  --no-finding high: none\n",
    )


@pytest.mark.parametrize(
    ("name", "words", "why"),
    [
        ("torch_cpu_train.json.gz", ("--min-mfu", "0"), "no MFU: aten::_scaled_dot_product"),
        ("torch_cpu_train.json.gz", ("--no-finding", "high"), "causes are not looked for on the"),
        ("rocprofv3_csv", ("--max-memory", "1TB"), "no memory of a GPU was recorded"),
    ],
)
def test_what_is_unknown_has_not_passed(name: str, words: tuple[str, ...], why: str) -> None:
    code, text = told(run("check", SAMPLES / name, *words))
    assert code == 4
    assert text.startswith(f"unknown {' '.join(words)}: {why}")


@pytest.mark.parametrize(
    ("kept", "why"),
    [("kernel", "no steps were found"), ("cuda_runtime", "no GPU time in the selected windows")],
)
def test_a_recording_without_steps_or_gpu_time_has_no_step_time(
    kept: str, why: str, trace: Path
) -> None:
    content = json.loads(trace.read_text())
    content["traceEvents"] = [one for one in content["traceEvents"] if one["cat"] == kept][:1]
    trace.write_text(json.dumps(content))
    assert told(run("check", trace, *GATE)) == (4, f"unknown --max-step-time 1.0ms: {why}\n")
    update = run("check", trace, "--baseline", "base.json", "--update-baseline")
    assert update.exit_code == (4 if kept == "cuda_runtime" else 0)
    assert Path("base.json").exists() == (kept == "kernel")


@pytest.mark.parametrize(
    ("limit", "verdict"), [("0.25", "passed"), ("0.26", "unknown"), ("51%", "failed")]
)
def test_a_value_between_two_bounds_may_be_unknown(limit: str, verdict: str) -> None:
    bounds = Fraction(1, 4), Fraction(1, 2)
    gate = Gate("MFU", parse_limit, exact_percent, lambda _: bounds, is_least=True)
    _, judge = gate.check("--min-mfu", limit)
    found, said = judge(None)  # type: ignore[arg-type]
    assert (found, said[:20]) == (verdict, "MFU 25.0 % to 50.0 %")


def baseline_of(trace: Path, name: str = "base.json") -> None:
    assert run("check", trace, "--baseline", name, "--update-baseline").exit_code == 0


def against_base(trace: Path, *words: str) -> tuple[int, str]:
    code, text = told(run("check", trace, "--baseline", "base.json", *words))
    return code, text.split(" ")[0]


def test_the_baseline_fails_only_beyond_the_tolerance_and_the_spread(trace: Path) -> None:
    baseline_of(trace)
    assert against_base(trace) == (0, "passed")
    longer = [dur + 100 for dur in STEPS_US]
    slower = written(Path("slower.json"), longer)
    assert against_base(slower) == (4, "failed")  # 10 % more, each step within 1 %
    assert against_base(slower, "--tolerance", "12%") == (0, "passed")
    wild = written(Path("wild.json"), [700, 1550, 750, 1600, 800, 1500, 1000])
    assert against_base(wild) == (0, "passed")  # 15 % more on average, within the spread
    assert against_base(wild, "--strict-tolerance") == (4, "failed")
    assert against_base(trace, "--steps", "2") == (4, "unknown")  # no interval
    assert against_base(trace, "--steps", "2", "--strict-tolerance", "--tolerance", "2%")[0] == 0


def test_a_baseline_whose_records_are_incomplete_judges_nothing(trace: Path) -> None:
    events = json.loads(trace.read_text())["traceEvents"]
    is_lost = [one["cat"] == "kernel" and one["args"]["correlation"] == 3 for one in events]
    kept = [one for one, lost in zip(events, is_lost, strict=True) if not lost]
    Path("base.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": kept}))
    code, text = told(run("check", trace, "--baseline", "base.json", "--strict-tolerance"))
    assert (code, text.split(": ")[-1]) == (4, "GPU records of the baseline are incomplete\n")


def test_a_baseline_of_other_work_judges_nothing(trace: Path) -> None:
    baseline_of(trace)
    assert against_base(written(Path("other.json"), kernel="unlike")) == (4, "unknown")
    result = run("check", SAMPLES / "gpt_ddp_4rank", "--baseline", SAMPLE)
    assert "the baseline is of other work, update it: model FLOPs of a step" in result.stdout
    assert result.exit_code == 4


def test_the_baseline_is_written_whole_and_only_where_all_gates_pass(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline_of(trace)
    old = Path("base.json").read_bytes()
    assert json.loads(old)["schema"] == "traceflops.report/1"
    slower = written(Path("slower.json"), [dur + 100 for dur in STEPS_US])
    update = ("check", slower, "--baseline", "base.json", "--update-baseline")
    code, text = told(run(*update, *GATE))
    assert "failed  --max-step-time 1.0ms: mean step 1.10 ms\n" in text
    assert (code, "unknown --update-baseline: not written" in text) == (4, True)
    assert Path("base.json").read_bytes() == old
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        assert_refused(run(*update), 2, "cannot write: ", "base.json (full)")
    assert Path("base.json").read_bytes() == old
    assert sorted(os.listdir()) == ["base.json", "now.json", "slower.json"]
    assert run(*update).exit_code == 0
    assert Path("base.json").read_bytes() != old


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "no gate to check"),
        (("--min-mfu", "35"), "not a share from 0 to 1"),
        (("--min-mfu", "", *GATE), "not a share from 0 to 1"),
        (("--baseline", "now.json", "--tolerance", ""), "not a share from 0 to 1"),
        (("--max-step-time", "410"), "not a time with a unit"),
        (("--max-memory", "70"), "not bytes with a unit"),
        (("--max-share", "idel=0.1"), "no share of a component"),
        (("--max-share", "idle"), "not a share from 0 to 1"),
        (("--no-finding", "urgent"), "no priority"),
        (("--baseline", "gone.json"), "no such baseline"),
        (("--baseline", "now.json", "--update-baseline"), "will not overwrite"),
        (("--update-baseline", *GATE), "--update-baseline needs --baseline"),
        (("--update-baseline",), "--update-baseline needs --baseline"),
        (("--max-share", "idle=x"), "example: --max-share idle=0.35"),
        (("--junit", "out.txt", *GATE), "does not end in .xml"),
        (("--config", "gone.toml"), "it does not exist"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(words: tuple[str, ...], why: str, trace: Path) -> None:
    assert_refused(run("check", trace, *words), 2, why)


@pytest.mark.parametrize(
    ("name", "table"),
    [("traceflops.toml", "check"), ("pyproject.toml", "tool.traceflops.check")],
)
def test_gates_stand_in_a_file_and_options_come_first(name: str, table: str, trace: Path) -> None:
    lines = ('max-step-time = "990us"', 'max-share = { idle = 0.2, compute = "0%" }')
    Path(name).write_text("\n".join((f"[{table}]", *lines)))
    result = run("check", trace)
    assert (result.exit_code, result.stderr) == (
        *(4, f"defaults from {name}: max-step-time, max-share\n"),
    )
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
        "failed  --max-step-time 990us",
        "passed  --max-share idle=0.2",
        "passed  --max-share compute=0%",
    ]
    assert run("check", trace, *GATE).exit_code == 0


def test_a_file_of_gates_says_where_its_baseline_lies(trace: Path) -> None:
    baseline_of(trace)
    Path("ci").mkdir()
    Path("base.json").rename("ci/base.json")
    Path("ci/gates.toml").write_text(
        '[check]\nbaseline = "base.json"\nstrict-tolerance = true\ntolerance = 0.01'
    )
    assert run("check", trace, "--config", "ci/gates.toml").exit_code == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[check]\nmin-mfo = 0.3", "no option 'min-mfo'"),
        ("[check]\nmin-mfu = true", "min-mfu cannot be 'True'"),
        ("[check]\nmax-share = 0.1", "max-share cannot be '0.1'"),
        ("[check]\nstrict-tolerance = 1", "strict-tolerance cannot be '1'"),
        ("check = 1", "check is no table"),
        ("[check", "bad TOML"),
        ("[checks]\nmin-mfu = 0.3", "no table 'checks'"),
    ],
)
def test_a_file_of_gates_that_is_wrong_is_refused(text: str, why: str, trace: Path) -> None:
    Path("traceflops.toml").write_text(text)
    assert_refused(run("check", trace), 2, why)


HOSTILE = "a\x1b[31m]]>&<\"'\n::error::\x00\udcff\ufffe|*_`@everyone"


def test_junit_is_xml_whatever_the_names_are(trace: Path) -> None:
    written(trace, kernel=HOSTILE)
    baseline_of(trace, hostile := "b<&\x1b\n]]>\udcff.json")
    slower = written(Path("slower.json"), [dur + 100 for dur in STEPS_US], kernel=HOSTILE)
    words = ("--baseline", hostile, "--max-memory", "1GB", "--max-share", "idle=1")
    for _ in range(2):  # its own file is replaced
        result = run("check", slower, *words, "--junit", "gates.xml", "--github")
        assert result.exit_code == 4
    begins = ["failed ", "unknown", "passed ", "::error", "::error"]
    assert [line[:7] for line in result.stdout.splitlines()] == begins
    suite = ElementTree.parse("gates.xml").getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    found = {case.get("name"): [(one.tag, one.get("message")) for one in case] for case in suite}
    ((tag, message),) = found.pop("--baseline b<&\\x1b ]]>\\udcff.json --tolerance 3%")
    assert tag == "failure" and message is not None and "]]>&" in message
    assert found == {
        "--max-memory 1GB": [("error", "no memory of a GPU was recorded")],
        "--max-share idle=1": [],
    }
    assert_refused(
        run("check", trace, *GATE, "--junit", written(Path("their.xml"))), 2, "will not overwrite"
    )


def test_github_gets_an_annotation_a_line_and_a_summary(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(trace, kernel=HOSTILE)
    baseline_of(trace)
    slower = written(Path("slower.json"), [dur + 100 for dur in STEPS_US], kernel=HOSTILE)
    Path("summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    result = run("check", slower, "--baseline", "base.json", "--max-share", "idle=1", "--github")
    lines = result.stdout.splitlines()
    assert [line[:7] for line in lines] == ["failed ", "passed ", "::error"]
    # Of a message GitHub reads %25 and line breaks alone; of a title also ":" and ",".
    assert lines[0].partition(": ")[2].replace("%", "%25") == lines[2].partition("3%25::")[2]
    assert lines[2].startswith(
        "::error title=traceflops --baseline base.json --tolerance 3%25::Steps take "
    )
    assert "%25" in lines[2] and not set("\x1b\x00") & set(result.stdout)
    text = Path("summary.md").read_text()
    assert text.startswith("before\n### traceflops check: 1 of 2 gates not passed\n")
    assert "<!-- traceflops.comparison/1 -->" in text and "@everyone" not in text


def test_a_closed_pipe_passes_no_gate(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("traceflops.cli.check.say", closed)
    assert run("check", trace, "--max-step-time", "1ns").exit_code == 4


def steps_of_the_action() -> dict[str, str]:
    """Return the scripts of the action by the names of their steps."""
    steps = (ROOT / "action" / "action.yml").read_text().split("- name: ")[1:]
    return {one.splitlines()[0]: dedent(one.partition("run: |\n")[2].rstrip("\n")) for one in steps}


def test_the_action_comments_what_changed_and_checks(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "traceflops" / "bin").mkdir(parents=True)
    programs = {
        "traceflops/bin/traceflops": 'printf "%s\\n" "$@" | tee "$RUNNER_TEMP/asked"',
        "gh": 'case "$*" in *--jq*) echo "$OLD";; *) printf "%s\\n" "$@";; esac; exit $REFUSED',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)

    def lines(step: str, **more: str) -> list[str]:
        values = {
            "TRACE": "the trace.json",
            "BASELINE": str(trace),
            "GATES": "--tolerance 1%",
            "JUNIT": "",
        }
        values |= {
            "COMMENTS": "repos/a/b/issues",
            "PULL": "3",
            "RUNNER_TEMP": str(tmp_path),
            "OLD": "",
            "REFUSED": "0",
        }
        values |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", **more}
        done = shell(f"set -eo pipefail\n{steps[step]}", **values)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    steps, change = steps_of_the_action(), str(tmp_path / "change.md")
    assert list(steps) == ["Install", "Comment", "Check"]
    compared = [
        "compare",
        str(trace),
        "the trace.json",
        "--names",
        "baseline,now",
        "-o",
        change,
        "--force",
    ]
    end = ["--field", f"body=@{change}", "--silent"]
    new = ["api", "repos/a/b/issues/3/comments", *end]
    assert lines("Comment") == new
    assert (tmp_path / "asked").read_text().splitlines() == compared
    again = ["api", "--method", "PATCH", "repos/a/b/issues/comments/7", *end]
    assert lines("Comment", OLD="7\n8") == again
    (told,) = lines("Comment", REFUSED="1")
    assert told.startswith("::warning::traceflops could not comment")
    assert lines("Comment", BASELINE="gone.json") == []
    checked = ["check", "the trace.json", "--tolerance", "1%"]
    assert lines("Check", BASELINE="") == [*checked, "--github"]
    both = ["--baseline", str(trace), "--junit", "a b.xml", "--github"]
    assert lines("Check", JUNIT="a b.xml") == [*checked, *both]


def test_the_steps_of_the_action_work_in_order_as_on_a_runner(tmp_path: Path) -> None:
    """The program is ours, installed already; `gh` keeps what it is to post."""
    programs = {
        "traceflops/bin/traceflops": f'exec "{sys.executable}" -m traceflops "$@"',
        "gh": 'for one; do [ "${one#body=@}" = "$one" ] || cat "${one#body=@}" > "$POSTED"; done',
    }
    for name, script in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    run_of = SAMPLES / "tutorials" / "training"
    summary, report = tmp_path / "summary.md", tmp_path / "base.json"
    assert run("report", run_of / "before", "-o", report, "-q").exit_code == 0
    values = {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    values |= {"RUNNER_TEMP": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    values |= {"TRACE": str(run_of / "after"), "BASELINE": str(report)}
    values |= {"JUNIT": f"{tmp_path}/a.xml", "POSTED": f"{tmp_path}/posted"}
    values |= {"COMMENTS": "repos/a/b/issues", "PULL": "3", "GH_TOKEN": "none"}
    steps = steps_of_the_action()
    for gates, code in (("--promised data-input", 0), ("--max-share idle=0.001", 4)):
        for step, expected in (("Comment", 0), ("Check", code)):
            done = shell(f"set -eo pipefail\n{steps[step]}", **values, GATES=gates)
            assert (done.returncode, done.stderr) == (expected, "")
    posted = (tmp_path / "posted").read_text(encoding="utf-8")
    assert posted.startswith("<!-- traceflops.comparison/1 -->")
    assert "Promise kept: " in posted
    assert "all gates passed" in summary.read_text(encoding="utf-8")
    assert (tmp_path / "a.xml").exists()


def test_a_report_is_no_trace_to_check(tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    assert run("report", SAMPLE, "-o", str(base), "-q").exit_code == 0
    result = run("check", str(base), "--max-share", "idle=0.5")
    assert_refused(result, 3, "a result of traceflops, no recording", "check --baseline also read")
