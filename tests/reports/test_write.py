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

from tests.conftest import SAMPLES
from tests.reports import factory
from traceflops.cli import app
from traceflops.errors import UsageError
from traceflops.reports.reporttables import save_tables
from traceflops.reports.write import check_place, save, write_pieces, write_together

SAMPLE = SAMPLES / "gpt_1rank.json.gz"


def refused(*words: object) -> str:
    """Return what a command that cannot write says; it is one error and one hint."""
    result = CliRunner().invoke(app, ["report", str(SAMPLE), "-q", *map(str, words)])
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


def test_a_link_to_a_file_that_is_not_there_makes_it(tmp_path: Path) -> None:
    (tmp_path / "latest.md").symlink_to(tmp_path / "new.md")
    save(factory.analysis(), tmp_path / "latest.md")
    assert (tmp_path / "new.md").is_file()
    assert (tmp_path / "latest.md").is_symlink()


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
    assert "is no file" in refused("-o", tmp_path / "pipe.md")
    (tmp_path / "f.html").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        check_place(tmp_path / "f.html")
    (tmp_path / "plain").write_text("")
    assert "no such folder" in refused("-o", tmp_path / "plain" / "r.html")
    assert "too long" in refused("-o", tmp_path / f"{'x' * 300}.html")


def test_a_folder_without_rights_is_refused_before_the_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("traceflops.parsers.read", lambda *_, **__: pytest.fail("it was read"))
    assert "no right" in refused("-o", tmp_path / "r.html")


def test_the_rights_of_a_report_stay(tmp_path: Path) -> None:
    target = tmp_path / "r.md"
    save(factory.analysis(), target)
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask
    target.chmod(0o640)
    save(factory.analysis(), target)
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["r.html", "r.json", "r.md", "r.zip"])
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
        "from traceflops.reports.write import write_pieces\n"
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
