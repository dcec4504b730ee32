"""Reports into files: whole or not there, links followed, rights kept, one error and one hint."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import SAMPLES, some
from tests.reports import factory
from traceflops.cli import app
from traceflops.errors import UsageError
from traceflops.reports.files import check_place, write_pieces, write_together
from traceflops.reports.tables import save_tables
from traceflops.reports.write import save

SAMPLE = SAMPLES / "gpt_1rank.json.gz"


def refused(*words: object, command: str | None = "report -q") -> str:
    """Return what a command that cannot write says; it is one error and one hint."""
    given = [*(command.split() if command else ()), *map(str, words), str(SAMPLE)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]
    assert result.stdout == ""
    return lines[0]


def test_members_of_an_archive_can_be_read_by_all(tmp_path: Path) -> None:
    save(factory.analysis(), tmp_path / "r.zip")
    with zipfile.ZipFile(tmp_path / "r.zip") as archive:
        rights = {one.filename: oct(one.external_attr >> 16) for one in archive.infolist()}
    assert rights == dict.fromkeys(("report.html", "report.json", "report.md"), "0o100644")
    unzip = [sys.executable, "-m", "zipfile", "-e", str(tmp_path / "r.zip"), str(tmp_path / "x")]
    subprocess.run(unzip, check=True)
    assert (tmp_path / "x" / "report.html").read_bytes()


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "r.md", tmp_path / "latest.md"
    save(factory.analysis(), real)
    link.symlink_to(real)
    save(factory.ranks(2), link)
    assert link.is_symlink()
    assert "rank1.json.gz" in real.read_text()
    assert [one.name for one in real.parent.iterdir()] == ["r.md"]


@pytest.mark.parametrize(
    ("words", "link"),
    [
        (("report", "-o", "latest.md"), "latest.md"),
        (("report", "--format", "csv", "-o", "."), "kernels.csv"),
        (("export", "--table", "calls", "--format", "csv", "-o", "."), "calls.csv"),
        (("perfetto", "-o", "latest.json"), "latest.json"),
    ],
)
def test_a_link_to_a_file_that_is_not_there_makes_it_only_if_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], link: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(link).symlink_to("new")
    assert "a link to a file that does not exist" in refused(*words, command=None)
    assert not Path("new").exists()
    assert CliRunner().invoke(app, [*words, str(SAMPLE), "-f"]).exit_code == 0
    assert Path("new").is_file()
    assert Path(link).is_symlink()


@pytest.mark.parametrize(
    ("words", "inputs"),
    [
        (("report", "-o", "t.json"), ["t.json"]),
        (("report", "-o", "link.json"), ["t.json"]),
        (("report", "-o", "t.json"), ["ranks"]),
        (("report", "-o", "ranks/rank0.json"), ["ranks"]),
        (("report", "-o", "t.json", "--pair", "t.json"), ["ranks"]),
        (("report", "-o", "notes.md", "--notes", "notes.md"), ["t.json"]),
        (("report", "--format", "csv", "-o", "ranks"), ["ranks/kernels.csv"]),
        (("perfetto", "-o", "t.json"), ["t.json"]),
        (("export", "-o", "ranks", "--format", "csv"), ["ranks"]),
        (("export", "-o", "ranks", "--format", "csv"), ["ranks/calls.csv"]),
    ],
)
def test_no_input_is_overwritten_even_if_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], inputs: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ranks").mkdir()
    Path("link.json").symlink_to("t.json")
    Path("t.json").write_text("a trace")
    os.link("t.json", "ranks/rank0.json")
    for name in ("notes.md", "ranks/calls.csv", "ranks/kernels.csv"):
        Path(name).write_text("mine")
    for force in ((), ("-f",)):
        result = CliRunner().invoke(app, [*words, *inputs, *force])
        assert result.exit_code == 2
        assert result.stderr.startswith("error: would overwrite its own input: ")
    kept = [*Path().glob("*.json"), *Path("ranks").iterdir(), Path("notes.md")]
    assert {one.read_text() for one in kept} == {"a trace", "mine"}


def test_standard_input_is_not_overwritten(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    trace.write_text("a trace")
    command = [sys.executable, "-m", "traceflops", "report", "-", "-f", "-o", str(trace)]
    with trace.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert (done.returncode, trace.read_text()) == (2, "a trace")
    assert "its own input" in done.stderr


def test_a_report_in_the_folder_of_its_traces_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(SAMPLE.read_bytes())
    report = tmp_path / "report.md"
    words = ["report", str(tmp_path), "-q", "-o", str(report)]
    assert CliRunner().invoke(app, words).exit_code == 0
    first = report.read_text()
    report.write_text(f"{first}of yesterday\n")
    assert CliRunner().invoke(app, words).exit_code == 0
    again = report.read_text()
    assert again[:1_000] == first[:1_000]
    assert "of yesterday" not in again


def test_a_link_to_a_strangers_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("mine")
    (tmp_path / "latest.md").symlink_to(tmp_path / "mine.md")
    assert "will not overwrite" in refused("-o", tmp_path / "latest.md")
    assert (tmp_path / "mine.md").read_text() == "mine"


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").symlink_to(tmp_path / "b.md")
    (tmp_path / "b.md").symlink_to(tmp_path / "a.md")
    refused("-o", tmp_path / "a.md")
    (tmp_path / "c.md").symlink_to(tmp_path / "no" / "c.md")
    assert "no such folder" in refused("-o", tmp_path / "c.md")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    assert "not a regular file" in refused("-o", tmp_path / "pipe.md")
    (tmp_path / "f.html").mkdir()
    with pytest.raises(UsageError, match="a folder, not a file"):
        check_place(tmp_path / "f.html")
    (tmp_path / "plain").write_text("")
    assert "no such folder" in refused("-o", tmp_path / "plain" / "r.html")
    assert "too long" in refused("-o", tmp_path / f"{'x' * 300}.html")


def test_a_folder_without_rights_is_refused_before_the_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(
        "traceflops.parsers.reading.read", lambda *_, **__: pytest.fail("it was read")
    )
    assert "no write permission" in refused("-o", tmp_path / "r.html")


def test_the_rights_of_a_report_stay(tmp_path: Path) -> None:
    target = tmp_path / "r.md"
    save(factory.analysis(), target)
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask
    target.chmod(0o640)
    save(factory.analysis(), target)
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", some(["r.html", "r.json", "r.md", "r.zip"], 3))
def test_a_full_disk_leaves_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target = tmp_path / name
    save(factory.analysis(), target)
    old = target.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "chmod", full)
    assert "No space left on device" in refused("-o", target)
    assert target.read_bytes() == old
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_a_disk_that_fills_up_while_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="No space left"):
        write_pieces(tmp_path / "p.json", pieces())
    with pytest.raises(UsageError, match="No space left"):
        write_together([(tmp_path / "a.csv", (b"whole",)), (tmp_path / "b.csv", pieces())])
    with pytest.raises(KeyboardInterrupt):
        write_pieces(tmp_path / "p.json", _interrupted())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_put_in_place_takes_back_the_new_ones(tmp_path: Path) -> None:
    (tmp_path / "b.csv").mkdir()
    (tmp_path / "b.csv" / "mine").write_text("mine")
    names = [tmp_path / f"{one}.csv" for one in "abc"]
    with pytest.raises(UsageError, match=r"cannot write: .*b\.csv"):
        write_together([(name, (b"whole",)) for name in names])
    assert [one.name for one in tmp_path.iterdir()] == ["b.csv"]


def test_an_export_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["export", str(SAMPLE), "--format", "csv", "-o", str(tmp_path / "new" / "tables")]
    rename, done = Path.chmod, []

    def full(self: Path, mode: int) -> None:
        done.append(self)
        if len(done) == 5:
            raise OSError(28, "No space left on device")
        rename(self, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", full)
        result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No space left on device" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no limit for the size of files")
def test_a_real_limit_of_size_stops_a_whole_export(tmp_path: Path) -> None:
    code = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))\n"
        "sys.argv[0] = 'traceflops'; runpy.run_module('traceflops', run_name='__main__')"
    )
    words = ["export", str(SAMPLE), "--format", "csv", "-o", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "File too large" in done.stderr
    assert "free some space" in done.stderr
    assert list(tmp_path.iterdir()) == []


def _interrupted() -> Iterator[bytes]:
    yield b"half"
    raise KeyboardInterrupt


def test_tables_are_all_there_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, done = Path.chmod, []

    def full(self: Path, mode: int) -> None:
        done.append(self)
        if len(done) == 3:
            raise OSError(28, "No space left on device")
        rename(self, mode)

    monkeypatch.setattr(Path, "chmod", full)
    with pytest.raises(UsageError, match="No space left"):
        save_tables(factory.analysis(), tmp_path / "t", "csv")
    assert not (tmp_path / "t").exists(), "no folder stays that was made for nothing"
    assert len(save_tables(factory.analysis(), tmp_path / "t", "csv")) > 5


def test_what_a_killed_run_left_goes_a_day_later(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from traceflops.reports.files import write_pieces\n"
        "def pieces():\n    yield b'x'\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_pieces(Path(sys.argv[1]), pieces())"
    )
    target = tmp_path / "r.md"
    subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".r.md.")
    assert left.name.endswith(".traceflops-part"), "so that all see what it is"
    write_pieces(target, [b"1"])
    assert left.exists(), "another run may be writing it"
    day_ago = time.time() - 90_000
    os.utime(left, (day_ago, day_ago))
    write_pieces(tmp_path / "other.md", [b"2"])
    assert left.exists(), "it is of another file"
    write_pieces(target, [b"3"])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other.md", "r.md"]


def test_a_long_name_of_wide_signs_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / ("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 80 + ".md")
    write_pieces(target, [b"1"])
    assert target.read_bytes() == b"1"
