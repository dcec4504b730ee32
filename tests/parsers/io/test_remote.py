"""Traces in a store: only what the user names is asked for, and what fails is said."""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from typer.testing import CliRunner

from tests.conftest import SAMPLES, some
from tests.store import Store, serving
from traceflops.cli import app
from traceflops.parsers.io import remote

RANKS = "gpt_ddp_4rank"
PACKED = ("rocpd", "rocprofv3_csv", "nsight_h100")
"""What needs a file, and what is a set of tables."""
CLI = CliRunner()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    folder = tmp_path / "store"
    for name in (RANKS, *PACKED):
        shutil.copytree(SAMPLES / name, folder / name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    remote._store.cache_clear()
    with serving(folder) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        yield found
    remote._store.cache_clear()


def told(*arguments: str) -> str:
    done = CLI.invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: str) -> str:
    done = CLI.invoke(app, list(arguments))
    assert done.exit_code == 3, done.output
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")
    return error


@pytest.mark.parametrize("name", [RANKS, f"{RANKS}/rank1.json.gz", *PACKED])
def test_a_trace_in_a_store_says_what_it_says_here(store: Store, name: str) -> None:
    there, here = told("summary", f"s3://bucket/{name}", "--json"), SAMPLES / name
    assert json.loads(there) == json.loads(told("summary", str(here), "--json"))


def test_all_files_that_match_are_read_and_no_others(store: Store) -> None:
    report = json.loads(told("summary", f"s3://bucket/{RANKS}/*2.json.gz", "--json"))
    assert [device["rank"] for device in report["devices"]] == [2]
    assert {Path(key).name for key in store.requests} <= {RANKS, "rank2.json.gz"}


def test_what_is_made_of_a_trace_in_a_store_lies_here(store: Store) -> None:
    place = f"s3://bucket/{RANKS}"
    told("report", f"{place}/*", "-q")
    told("reduce", place, "-o", "summaries")
    assert sorted(path.name for path in Path().iterdir()) == [f"{RANKS}.report.html", "summaries"]
    done = CLI.invoke(app, ["reduce", place, "-o", place])
    assert done.exit_code == 2 and "cannot write to a store" in done.stderr
    shutil.copytree("summaries", store.folder / "summaries")
    assert "made from summaries of 4 files" in told("summary", "s3://bucket/summaries", "--json")


def test_what_cannot_be_read_is_one_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file: s3://bucket/none.json" in refused("summary", "s3://bucket/none.json")
    store.denied.add(f"{RANKS}/rank1.json.gz")
    assert "ACCESS_DENIED" in refused("info", f"s3://bucket/{RANKS}/rank1.json.gz")
    assert "secret" not in refused("mfu", "s3://me:secret@bucket/x.json")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    remote._store.cache_clear()
    assert "connect" in refused("export", "s3://bucket/x.json", "-o", "tables")


def test_a_rank_that_cannot_be_read_to_its_end_costs_no_other(store: Store) -> None:
    packed = store.folder / RANKS / "rank1.json.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    store.lost.add(f"{RANKS}/rank1.json")
    store.denied.add(f"{RANKS}/rank3.json.gz")
    told("reduce", f"s3://bucket/{RANKS}", "-o", "summaries")
    report = json.loads(told("summary", "summaries", "--json"))
    notes = {note["code"]: note["text"] for note in report["notes"]}
    assert "rank3.json.gz" in notes["file-not-read"]
    assert [device["rank"] for device in report["devices"]] == [0, 2]
    assert "rank1.json" in json.dumps(report["source"])  # without GPU records in what was read
    assert "ACCESS_DENIED" in notes["input-cut"]
    assert not [word for word in ("s3:", "bucket/", "'bucket'") if word in json.dumps(report)]


def test_other_stores_are_refused_in_one_line_where_they_are_not_there() -> None:
    uri = "hdfs://127.0.0.1:9/x.json"
    assert f"cannot read: {uri}" in refused("summary", uri)
    done = CLI.invoke(app, ["summary", uri])
    assert "JAVA_HOME" in done.stderr and "AWS" not in done.stderr


@pytest.mark.parametrize("start", some(["gs://bucket", "hdfs://host:9"], 2))
def test_other_stores_are_read_as_any(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of a URI is one of pyarrow: here a folder, whose paths begin as those of each."""
    shutil.copytree(SAMPLES / RANKS, tmp_path / "bucket" / "run")
    here = fs.LocalFileSystem()
    place, root = {
        "gs://bucket": (fs.SubTreeFileSystem(str(tmp_path), here), "bucket"),
        "hdfs://host:9": (here, str(tmp_path / "bucket")),
    }[start]
    monkeypatch.setattr(remote, "_store", {f"{start}/": (place, root)}.__getitem__)
    told_here = json.loads(told("summary", str(SAMPLES / RANKS), "--json"))
    assert json.loads(told("summary", f"{start}/run", "--json")) == told_here
    report = json.loads(told("summary", f"{start}/run/*2.json.gz", "--json"))
    assert [device["rank"] for device in report["devices"]] == [2]
    assert f"no such file: {start}/none.json" in refused("summary", f"{start}/none.json")
