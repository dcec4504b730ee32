"""`traceflops report`: folders of tables, the author's title and notes, and opening the page."""

from __future__ import annotations

import csv
import json
import webbrowser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.test_commands import SAMPLE, assert_refused, run
from traceflops.cli.report import target_of
from traceflops.errors import UsageError


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_folder_gets_the_tables_of_the_report(tmp_path: Path) -> None:
    result = run("report", SAMPLE, "-o", f"{tmp_path}/tables/", "--format", "csv")
    assert result.exit_code == 0, result.output
    assert "tables to" in result.stdout
    report = json.loads(run("summary", SAMPLE, "--json").stdout)
    folder = tmp_path / "tables"
    kernels = rows_of(folder / "kernels.csv")
    assert [row["name"] for row in kernels] == [row["name"] for row in report["kernels"]]
    assert [int(row["sum_ns"]) for row in kernels] == [row["sum_ns"] for row in report["kernels"]]
    steps = rows_of(folder / "steps.csv")
    compute = [w["components_ns"]["compute"] for w in report["devices"][0]["windows"]]
    assert [int(row["compute_ns"]) for row in steps] == compute
    assert [row["used"] for row in steps if row["role"] == "step"].count("yes") == 6
    lines = rows_of(folder / "waterfall.csv")
    exact = [line["amount_text"] for line in report["utilisation"]["waterfall"]["lines"]]
    assert [row["amount_text"] for row in lines] == exact
    for name in ("categories", "devices", "gaps", "notes", "operator_work", "kernel_work"):
        assert rows_of(folder / f"{name}.csv")


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_other_formats(tmp_path: Path, format_: str) -> None:
    result = run("report", SAMPLE, "-o", tmp_path / "t", "--format", format_, "-q")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 't'}\n")
    if format_ == "parquet":
        assert pq.read_table(tmp_path / "t" / "kernels.parquet").num_rows > 10


def test_tables_that_are_empty_now_do_not_stay_from_an_earlier_report(tmp_path: Path) -> None:
    for name in ("gaps.csv", "mine.csv"):
        (tmp_path / name).write_text('"device","start_ns"\n0,1\n')
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 3}
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [kernel]}))
    assert run("report", tmp_path / "t.json", "-o", tmp_path, "-q").exit_code == 0
    assert (tmp_path / "kernels.csv").exists()
    assert (tmp_path / "mine.csv").exists()
    assert not (tmp_path / "gaps.csv").exists()


def test_a_formula_in_a_name_is_text_in_the_tables(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": 1, "dur": 3}
    kernel |= {"name": "=HYPERLINK(1)", "args": {"device": 0, "stream": 7, "correlation": 1}}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [kernel]}))
    assert run("report", path, "-o", f"{tmp_path}/out/").exit_code == 0
    assert rows_of(tmp_path / "out" / "kernels.csv")[0]["name"] == "'=HYPERLINK(1)"


@pytest.mark.parametrize(
    ("output", "format_", "expected"),
    [
        (None, None, ("run.report.html", None)),
        (None, "parquet", ("run.report", "parquet")),
        ("x.md", None, ("x.md", None)),
        ("x/", None, ("x", "csv")),
        ("x.y/", "arrow", ("x.y", "arrow")),
        ("x", "csv", ("x", "csv")),
    ],
)
def test_where_the_report_goes(
    output: str | None, format_: str | None, expected: tuple[str, str | None]
) -> None:
    target = target_of(output, format_, ["a/run.json.gz"])
    assert (str(target.path), target.format) == expected


def test_a_format_and_a_file_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="to a folder, but this is a file name"):
        target_of("x.html", "csv", ["a"])
    wrong = run("report", SAMPLE, "-o", tmp_path / "t", "--format", "xlsx")
    assert_refused(wrong, 2, "no such format: xlsx", "parquet, arrow, csv")


def test_title_and_notes_are_in_what_people_read(tmp_path: Path) -> None:
    notes = tmp_path / "my notes.txt"
    notes.write_text("Since *Tuesday*.\n- <b>\n")
    given = ("--title", "Slow / odd", "--notes", notes, "-q")
    for name in ("a.html", "a.md", "a.json"):
        assert run("report", SAMPLE, "-o", tmp_path / name, *given).exit_code == 0
    page, text = (tmp_path / "a.html").read_text(), (tmp_path / "a.md").read_text()
    assert "<title>Slow / odd · MFU 30.4 %" in page
    assert "<p>Since *Tuesday*.</p>" in page
    assert "<li>&lt;b&gt;</li>" in page
    assert "--title &#39;Slow / odd&#39; --notes &#39;my notes.txt&#39;" in page
    assert "# Slow / odd\n" in text
    assert "> Since &#42;Tuesday&#42;." in text
    assert "Tuesday" not in (tmp_path / "a.json").read_text(), "JSON is of the trace alone"


def test_notes_that_cannot_be_read_stop_it_before_the_trace_is_read(tmp_path: Path) -> None:
    result = run("report", tmp_path / "no.json", "--notes", tmp_path / "no.txt")
    assert_refused(result, 2, "cannot read the notes", "UTF-8")


def test_open_shows_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def opened(url: str) -> bool:
        shown.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", opened)
    target = tmp_path / "a b.html"
    result = run("report", SAMPLE, "-o", target, "--open")
    assert (result.exit_code, result.stderr) == (0, "")
    assert shown == [target.as_uri()]


def test_no_browser_is_a_note_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    result = run("report", SAMPLE, "-o", tmp_path / "a.html", "--open")
    assert result.exit_code == 0
    assert result.stderr == "note: no browser could be started; open the file yourself\n"


@pytest.mark.parametrize("more", [("-o", "a.json"), ("-o", "t/"), ("-q",), ("--json",)])
def test_open_needs_a_page_and_a_reader(more: tuple[str, ...]) -> None:
    assert_refused(run("report", SAMPLE, "--open", *more), 2, "--open")


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_writes_nothing_here(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("report",), ("report", "--format", "csv"), ("export",), ("perfetto",)):
        assert_refused(run(*words, SAMPLE, "-o", name), 2, "-o has an empty name", "variable")
    assert list(tmp_path.iterdir()) == []


def test_a_table_as_a_file_is_told_how_to_get_tables(tmp_path: Path) -> None:
    for suffix in ("csv", "parquet"):
        wrong = run("report", SAMPLE, "-o", tmp_path / f"r.{suffix}")
        assert_refused(wrong, 2, f"-o r/ --format {suffix}")
    assert "--format" not in run("report", SAMPLE, "-o", tmp_path / "r.txt").stderr


def test_a_name_that_is_too_long_needs_a_shorter_one(tmp_path: Path) -> None:
    for words in (("report",), ("perfetto",)):
        wrong = run(*words, SAMPLE, "-o", tmp_path / f"{'x' * 300}.json")
        assert_refused(wrong, 2, "too long", "xxx.json", "shorter name")
        assert "room" not in wrong.stderr


def test_the_phases_of_a_redacted_report_name_no_file(tmp_path: Path) -> None:
    path = tmp_path / "zebrafish.json.gz"
    path.write_bytes(SAMPLE.read_bytes())
    assert "read zebrafish.json.gz" in run("summary", path, "-v").stderr
    told = run("summary", path, "-v", "--redact").stderr
    assert "zebrafish" not in told
    assert "read file 1" in told
