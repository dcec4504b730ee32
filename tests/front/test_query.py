"""`traceflops query` and `analysis.sql`: right figures, and nothing but the tables in reach."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import traceflops as tf
from tests.conftest import ROOT, SAMPLES
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
    analysis = tf.analyze(SAMPLES / name)
    answers = [analysis.sql(one) for one in questions()]
    assert len(answers) == 12
    kernels = analysis.to_pandas()
    work = kernels[kernels.kind == "kernel"]
    assert answers[6].to_pylist()[0]["n"] == work["count"].sum()
    by_name = kernels.groupby("name", observed=True).sum_ns.sum()
    assert answers[0].to_pylist()[0]["ns"] == by_name.max()


def test_rows_are_printed_in_three_forms() -> None:
    sql = "select name, sum_ns from kernels order by sum_ns desc limit 3"
    rows = tf.analyze(ONE).sql(sql).to_pylist()
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
    ],
)
def test_a_query_reaches_nothing_but_the_tables(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    analysis = tf.analyze(ONE)
    with pytest.raises(tf.UsageError):
        analysis.sql(sql.format(file=file, folder=tmp_path))
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "sql", ["select nme from activities", "select * from kernel_s", "select ("]
)
def test_a_wrong_query_is_one_error_and_a_hint(sql: str) -> None:
    result = run(ONE, sql)
    assert result.exit_code == 2
    assert re.fullmatch(r"error: SQL: .*\nhint: tables: kernels, .*\n", result.stderr)


def test_names_in_the_recording_do_nothing_in_a_terminal() -> None:
    said = run(ONE, "select chr(27) || '[31mred' x, 'a' || chr(10) || 'b' y").stdout
    assert "\x1b" not in said
    assert len(said.splitlines()) == 2
