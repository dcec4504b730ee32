"""--jobs, --python-stacks, --strict, --no-limits, -v and --profile-self."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.benchmarks.tile import write
from tests.cli.test_commands import SAMPLE, assert_refused, run
from traceflops.parsers import reading
from traceflops.parsers.pytorch import reader as pytorch


def damaged(folder: Path, how: str) -> Path:
    text = gzip.decompress(SAMPLE.read_bytes())
    packed = gzip.compress(text)
    path = folder / "trace.json"
    path.write_bytes(
        {
            "whole": text,
            "cut": text[: len(text) // 2],
            "packed and cut": packed[: len(packed) // 2],
            "packed without its end": packed[:-8],
            "broken": text.replace(b'"cat": "kernel"', b'"cat" "kernel"', 1),
            "no time": text.replace(b'"dur": ', b'"ts": null, "dur": ', 1),
            "names not escaped": text.replace(b"aten::copy_", b'a "copy"', 1),
        }[how]
    )
    return path


@pytest.mark.parametrize(
    "how", ["cut", "packed and cut", "packed without its end", "broken", "no time"]
)
def test_strict_refuses_a_loss(how: str, tmp_path: Path) -> None:
    path = damaged(tmp_path, how)
    assert run("summary", path).exit_code == 0
    assert_refused(run("summary", path, "--strict"), 3, "damaged: trace.json", "without --strict")
    assert_refused(run("report", path, "--strict", "-o", tmp_path / "o.html"), 3, "damaged")
    assert not (tmp_path / "o.html").exists()


@pytest.mark.parametrize("how", ["whole", "names not escaped"])
def test_strict_takes_what_lost_nothing(how: str, tmp_path: Path) -> None:
    path = damaged(tmp_path, how)
    strict = run("summary", path, "--strict")
    assert (strict.exit_code, strict.stdout) == (0, run("summary", path).stdout)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty file"),
        (bytes(range(256)), "binary data"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
    ],
)
def test_strict_refuses_a_folder_in_which_a_trace_is_nothing(
    content: bytes, why: str, tmp_path: Path
) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(SAMPLE.read_bytes())
    (tmp_path / "output.log").write_bytes(content)
    (tmp_path / "config.json").write_text("{}")
    assert run("summary", tmp_path, "--strict").exit_code == 0
    (tmp_path / "rank1.json.gz").write_bytes(content)
    assert run("summary", tmp_path).exit_code == 0
    assert_refused(run("summary", tmp_path, "--strict"), 3, why, "without --strict")
    (tmp_path / "rank1.json.gz").rename(tmp_path / "rank1.JSON")
    assert_refused(run("summary", tmp_path, "--strict"), 3, why, "without --strict")


def test_the_result_does_not_depend_on_the_jobs(tmp_path: Path) -> None:
    """35 MB are enough for other processes to be started."""
    path = tmp_path / "trace.json"
    write(path, 35)
    alone = run("summary", path, "--json", "--jobs", "1")
    assert alone.exit_code == 0
    assert run("summary", path, "--json", "--jobs", "3").stdout == alone.stdout


@pytest.mark.parametrize("jobs", ["0", "-1", "many", "100000"])
def test_a_wrong_number_of_jobs_is_wrong_usage(jobs: str) -> None:
    done = run("summary", SAMPLE, "--jobs", jobs)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--jobs" in done.stderr


def test_python_frames_are_left_out_on_request() -> None:
    kept = reading.read(SAMPLE)
    left = reading.read(SAMPLE, python_stacks=False)
    kinds = kept.marks["kind"].to_pylist()
    frames = sum(kind in ("python", "module") for kind in kinds)
    assert frames > 0
    assert left.marks["kind"].to_pylist() == [k for k in kinds if k not in ("python", "module")]
    for table in ("activities", "calls", "ops", "counters"):
        assert left.table(table).equals(kept.table(table))
    assert left.source.event_counts == kept.source.event_counts
    notes = [note for note in left.notes if note.code == "python-stacks-left-out"]
    assert [note.count for note in notes] == [frames]
    assert f"{frames} Python frames were skipped" in run(
        "summary", SAMPLE, "--no-python-stacks"
    ).stdout.replace("\n     ", " ")


def test_python_frames_are_left_out_of_what_is_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_note(*words: str) -> bool:
        shown = json.loads(run("summary", SAMPLE, "--json", *words).stdout)
        return "python-stacks-left-out" in [note["code"] for note in shown["notes"]]

    assert not has_note()
    monkeypatch.setattr(pytorch, "_STACKS_BELOW_BYTES", 100_000)
    assert has_note()
    assert not has_note("--python-stacks")


@pytest.mark.parametrize("command", ["summary", "info"])
def test_phases_are_told_on_standard_error_only(command: str) -> None:
    quiet, told = run(command, SAMPLE), run(command, SAMPLE, "-v")
    assert told.stdout == quiet.stdout
    assert quiet.stderr == ""
    lines = [line.split() for line in told.stderr.splitlines()]
    assert lines[-1][0] == "all"
    assert ["read", "gpt_1rank.json.gz"] in [words[:2] for words in lines]
    seconds = [float(words[-2]) for words in lines]
    assert all(words[-1] == "s" for words in lines)
    assert 0 < sum(seconds[:-1]) <= seconds[-1] + 0.01  # each is rounded


def test_the_profile_names_functions() -> None:
    told = run("summary", SAMPLE, "--profile-self")
    assert told.exit_code == 0
    assert "total s" in told.stderr
    rows = re.findall(r"^ +\d+\.\d{3} +\d+\.\d{3} +[\d/]+  \S.* \(.+\)$", told.stderr, re.M)
    assert len(rows) > 10, "which ones depends on what is in caches"
    assert "reader processes" in told.stderr


def test_phases_are_told_also_of_a_run_that_fails(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_bytes(b"")
    told = run("summary", empty, "-v")
    assert told.exit_code == 3
    assert told.stderr.splitlines()[-2].startswith("error: empty file")
