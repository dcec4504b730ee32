"""`traceflops query` and `analysis.sql`: right figures, and nothing but the tables in reach."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import traceflops as tf
from tests.cli.test_interrupt import errors_until
from tests.conftest import ROOT, SAMPLES, analysis_of_sample
from traceflops.cli import app

ONE = SAMPLES / "gpt_1rank.json.gz"
DOCUMENT = ROOT / "docs/query.md"


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["query", *map(str, words)])


def questions() -> list[str]:
    found = re.search(r"<!-- queries -->\n```sql\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert found is not None
    return [one.strip() for one in found[1].split(";\n") if one.strip()]


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "gpt_ddp_4rank", "rocpd"])
def test_the_questions_of_the_document_are_answered(name: str) -> None:
    analysis = analysis_of_sample(name)
    answers = [analysis.sql(one) for one in questions()]
    assert len(answers) == 12
    kernels = analysis.to_pandas()
    work = kernels[kernels.kind == "kernel"]
    assert answers[6].to_pylist()[0]["n"] == work["count"].sum()
    by_name = kernels.groupby("name", observed=True).sum_ns.sum()
    assert answers[0].to_pylist()[0]["ns"] == by_name.max()


def test_pandas_gives_the_same_answers() -> None:
    *_, code = re.findall(r"<!-- runs -->\n```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    asked = re.findall(r"^/\* (\d+)\. .* \*/$", DOCUMENT.read_text(), re.M)
    assert re.findall(r"^# (\d+)$", code, re.M) == asked
    code = code.replace('"sample_traces/gpt_ddp_4rank", steps="21:23"', repr(str(ONE)))
    said: list[Any] = []
    exec(code, {"print": lambda *words: said.append(words)})
    names = {"sum": "ns", "count": "n", "max": "longest_ns", "value": "bytes", 0: "ns"}
    for number, (words, sql) in enumerate(zip(said, questions(), strict=True), 1):
        rows = analysis_of_sample(ONE.name).sql(sql).to_pandas()
        if number == 7:
            assert words == tuple(rows.iloc[0])
            continue
        frame = pd.DataFrame(words[0]).rename(columns=names)
        if "ns" in rows:
            frame = frame.rename(columns={"dur_ns": "ns"})
        shared = {*frame.select_dtypes("number").columns} & {*rows.columns}
        assert shared, number
        for name in shared:
            assert sorted(frame[name].dropna()) == sorted(rows[name].dropna()), (number, name)


@pytest.mark.parametrize("name", ["gpt_1rank.json.gz", "nsight_h100", "rocprofv3_json"])
@pytest.mark.parametrize("by", [["name", "kind"], ["top", "sub"]])
def test_sums_over_activities_are_those_of_the_report(name: str, by: list[str]) -> None:
    analysis = analysis_of_sample(name)
    used = analysis.to_pandas("activities").query("used").groupby(by, observed=True).dur_ns.sum()
    table = analysis.to_pandas("kernels" if "name" in by else "categories")
    assert used.to_dict() == table.set_index(by).sum_ns.to_dict()


def test_rows_are_printed_in_three_forms() -> None:
    sql = "select name, sum_ns from kernels order by sum_ns desc limit 3"
    rows = analysis_of_sample(ONE.name).sql(sql).to_pylist()
    assert json.loads(run(ONE, sql, "--format", "json").stdout)["rows"] == rows
    listed = list(csv.DictReader(io.StringIO(run(ONE, sql, "--format", "csv").stdout)))
    assert [int(one["sum_ns"]) for one in listed] == [one["sum_ns"] for one in rows]
    first, *lines = run(ONE, sql).stdout.splitlines()
    assert first.split() == ["name", "sum_ns"]
    assert [int(one.rsplit(maxsplit=1)[1].replace(",", "")) for one in lines] == [
        one["sum_ns"] for one in rows
    ]


def test_without_a_query_columns_are_listed() -> None:
    said = run(ONE).stdout
    assert re.search(r"activities +dur_ns +int64 +ns +duration", said)
    assert re.search(r"activities +module +text", said)


def test_a_selection_applies() -> None:
    said = run(ONE, "select distinct step from activities where used", "--steps", "11")
    assert said.stdout.split() == ["step", "11"]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('{file}')",
        "select * from '{file}'",
        "copy activities to '{folder}/x.csv'",
        "attach '{folder}/x.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "select * from glob('{folder}/*')",
        "select * from analysis",
        "select * from duckdb_settings()",
        "with s as (select 1 a) select (select max(value) from duckdb_settings()) from s",
        "select list_transform(['home_directory'], lambda x: current_setting(x))",
        "select 'home_directory'.\"Current_Setting\"()",
        "select * from pg_catalog.pg_settings",
        "select * from pg_settings",
        "select * from information_schema.tables",
        "select * from duckdb_secrets()",
        "select * from query('select * from duckdb_settings()')",
        "select * from json_execute_serialized_sql(json_serialize_sql('select 1'))",
        "describe from duckdb_settings()",
        "show all tables",
        "pragma version",
        "call duckdb_settings()",
        "explain select current_setting('home_directory')",
        "select * from kernels order by sleep_ms(1)",
        "from histogram_values(pg_settings, setting, technique := 'sample', bin_count := 999)",
    ],
)
def test_a_query_reaches_nothing_but_the_tables(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    analysis = analysis_of_sample(ONE.name)
    with pytest.raises(tf.UsageError) as caught:
        analysis.sql(sql.format(file=file, folder=tmp_path))
    assert re.search("out of reach|only a SELECT|does not exist|disabled", caught.value.message)
    assert str(Path.home()) not in str(caught.value)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "sql", ["select nme from activities", "select * from kernel_s", "select ("]
)
def test_a_wrong_query_is_one_error_and_a_hint(sql: str) -> None:
    result = run(ONE, sql)
    assert result.exit_code == 2
    assert re.fullmatch(r"error: SQL: .*\nhint: .*tables: kernels, .*\n", result.stderr)


def test_no_folder_is_in_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp/secret").write_text("a")
    monkeypatch.chdir(tmp_path)
    analysis = tf.analyze(ONE)
    for sql in ("select * from read_text('.tmp/secret')", "copy kernels to '.tmp/x'"):
        with pytest.raises(tf.UsageError, match=r"out of reach|only a SELECT"):
            analysis.sql(sql)
    assert [one.name for one in tmp_path.glob("**/*")] == [".tmp", "secret"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selct name from kernels", "syntax error"),
        ("select 1; select 2", "2 queries at once"),
        ("select name from kernles", 'hint: Did you mean "kernels"'),
        ("select sum_n from kernels", '"sum_ns"'),
        ("copy kernels to '/dev/stdout'", "only a SELECT is answered"),
    ],
)
def test_what_is_wrong_with_a_query_is_said(sql: str, said: str) -> None:
    result = run(ONE, sql)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    "before", ["-- 1. which = that?\n", "/* c */ ", "", "\n ", "with a as (select 1) "]
)
def test_a_query_is_one_however_it_begins(before: str) -> None:
    """Behind `--` a word is no option, as in every command."""
    assert run("--", ONE, f"{before}select count(*) from kernels").exit_code == 0


def test_the_questions_can_be_pasted_as_they_stand() -> None:
    for question in questions():
        done = run(ONE, question)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.strip(), question  # its columns at least


def test_a_file_named_like_a_query_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("select x.json.gz").write_bytes(ONE.read_bytes())
    assert run("select x.json.gz").stdout == run(ONE).stdout
    assert run("select x.json.gz", "select 7 a;").stdout.split() == ["a", "7"]
    assert "no trace is given" in run("select 7 a").stderr


def test_columns_of_one_name_are_numbered() -> None:
    rows = analysis_of_sample(ONE.name).sql("select 1 a, 2 a, 3 a_1, 4 b").to_pylist()
    assert rows == [{"a": 1, "a_1": 2, "a_1_1": 3, "b": 4}]


def test_values_of_any_type_are_printed() -> None:
    sql = (
        "select {'x': 1} s, [1] l, map {'k': 1} m, interval 1 day i, -1.5 d, '=1+1' t, null n, "
        "timestamptz '2026-01-01 00:00:00+00' z, 'b'::blob b, 1 \"=2\", 'inf'::double f"
    )
    for form in ("table", "csv", "json"):
        assert run(ONE, sql, "--format", form).exit_code == 0
    assert run(ONE, "select 1234 n, true t").stdout.split() == ["n", "t", "1,234", "True"]
    row = next(csv.DictReader(io.StringIO(run(ONE, sql, "--format", "csv").stdout)))
    assert (row["d"], row["t"], row["n"], row["'=2"]) == ("-1.5", "'=1+1", "", "1")
    assert row["s"] == "{'x': 1}"


def test_tables_are_of_one_job() -> None:
    both = [ONE, SAMPLES / "rocpd"]
    analysis = tf.analyze(both)
    assert len(analysis.jobs) == 2
    for ask in (lambda: analysis.sql("select 1"), analysis.to_pandas):
        with pytest.raises(tf.UsageError, match="2 jobs; choose one"):
            ask()
    assert tf.analyze(both, job=1).sql("select count(*) n from activities").num_rows == 1


def test_ctrl_c_ends_a_long_query() -> None:
    pairs = ", ".join(f"activities a{n}" for n in range(6))
    sql = f"select count(*) from {pairs} where hash(a0.dur_ns + a5.dur_ns) = 3"
    command = [sys.executable, "-m", "traceflops", "query", str(ONE), sql, "-v"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        errors_until("kernel tables", process)  # the last before the query
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (-signal.SIGINT, 130)


def test_names_in_the_recording_do_nothing_in_a_terminal() -> None:
    said = run(ONE, "select chr(27) || '[31mred' x, 'a' || chr(10) || 'b' y").stdout
    assert "\x1b" not in said
    assert len(said.splitlines()) == 2
