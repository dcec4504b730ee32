"""The simulator spells rocprof's formats as real files do: columns, keys, words, quoting."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sample_traces.config import on_mi300x
from sample_traces.rocprof.formats import WRITERS
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from tests.conftest import shared_file

REAL = "traces/rocprof"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a folder for each format."""
    folder = tmp_path_factory.mktemp("written")
    run = simulate(on_mi300x(layers=1, steps=1, ranks=2))
    options = RocprofOptions(collectives=True, counters=True)
    for name, write in WRITERS.items():
        write(run, folder / name, options)
    return folder


def first_lines(path: Path) -> tuple[str, str]:
    header, row = path.read_text(encoding="utf-8").splitlines()[:2]
    return header, row


def shape(row: str) -> str:
    """Return which cells of a row are quoted and which are numbers."""
    cells = re.findall(r'"(?:[^"])*"|[^,]*', row)
    return "".join('"' if cell.startswith('"') else "0" for cell in cells if cell)


@pytest.mark.parametrize(
    ("real", "made"),
    [
        ("kernel_trace.csv", "kernel_trace.csv"),
        ("memory_copy_trace.csv", "memory_copy_trace.csv"),
        ("hip_trace.csv", "hip_api_trace.csv"),
        ("marker_api_trace.csv", "marker_api_trace.csv"),
        ("rccl_trace.csv", "rccl_api_trace.csv"),
        ("counter_collection.csv", "counter_collection.csv"),
        ("agent_info.csv", "agent_info.csv"),
    ],
)
def test_tables_of_rocm_7(real: str, made: str, written: Path) -> None:
    (path, *_) = sorted((written / "v3 csv").rglob(f"*{made}"))
    header, row = first_lines(shared_file(f"{REAL}/v3_csv_docs_rocm7/{real}"))
    own_header, own_row = first_lines(path)
    assert own_header == header
    assert shape(own_row) == shape(row)


def test_a_converted_table(written: Path) -> None:
    header, row = first_lines(shared_file(f"{REAL}/v3_csv_docs_rocm7/rocpd-to-csv.csv"))
    (path,) = (written / "v3 csv converted").rglob("*hip_api_trace.csv")
    own_header, own_row = first_lines(path)
    assert (own_header, shape(own_row)) == (header, shape(row))


def test_the_words_of_rocm_7(written: Path) -> None:
    docs = shared_file(f"{REAL}/v3_csv_docs_rocm7")
    for real, made, column in (
        ("kernel_trace.csv", "kernel_trace.csv", "Kind"),
        ("memory_copy_trace.csv", "memory_copy_trace.csv", "Direction"),
        ("rccl_trace.csv", "rccl_api_trace.csv", "Domain"),
    ):
        (path, *_) = sorted((written / "v3 csv").rglob(f"*{made}"))
        assert column_of(path, column) <= column_of(docs / real, column)


def column_of(path: Path, name: str) -> set[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row[name] for row in csv.DictReader(file)}


def test_the_table_and_sums_of_v1(written: Path) -> None:
    real = shared_file(f"{REAL}/v1_r9700_llamacpp")
    header, row = first_lines(real / "results.csv")
    own_header, own_row = first_lines(written / "v1 csv with sums" / "rank0" / "results.csv")
    counters = [name for name in own_header.split(",") if name.startswith(('"SQ_', '"TCC_'))]
    assert [name for name in own_header.split(",") if name not in counters] == header.split(",")
    cells, own_cells = shape(row), shape(own_row)
    assert own_cells == cells[:17] + "0" * len(counters) + cells[17:]
    assert (
        first_lines(written / "v1 csv with sums" / "rank0" / "results.stats.csv")[0]
        == (first_lines(real / "results.stats.csv")[0])
    )


def test_the_chrome_trace_of_v1(written: Path) -> None:
    real = shared_file(f"{REAL}/v1_r9700_llamacpp/results.json").read_text()
    own = (written / "v1 json" / "rank0" / "results.json").read_text()
    # Everything up to the value of the first kernel's name stands as in the real file.
    assert own.splitlines()[:2] == real.splitlines()[:2]
    theirs, ours = (
        next(line for line in text.splitlines() if '"X"' in line) for text in (real, own)
    )
    pattern = r',\{"ph":"X","name":"[^"]+","pid":\d+,"tid":\d+,"ts":"\d+","dur":"\d+",'
    assert re.fullmatch(pattern, theirs)
    assert re.fullmatch(pattern, ours)
    kernel, own_kernel = (
        next(event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X")
        for text in (real, own)
    )
    counters = [name for name in own_kernel["args"] if name.startswith(("SQ_", "TCC_"))]
    assert [name for name in own_kernel["args"] if name not in counters] == list(kernel["args"])
    node, own_node = (json.loads(text)["otherData"] for text in (real, own))
    assert {re.sub(r"\d+", "", key) for key in own_node} <= {
        re.sub(r"\d+", "", key) for key in node
    }


def paths_of(value: Any, at: str = "") -> Iterable[str]:
    """Yield the path of every key; of a list only its elements' keys, joined."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{at}.{key}"
            yield from paths_of(inner, f"{at}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from paths_of(inner, at)


def test_the_keys_of_v3_json(written: Path) -> None:
    packed = shared_file(f"{REAL}/v3_json_mi350x_ddp_train.json.gz")
    real = json.loads(gzip.decompress(packed.read_bytes()))
    (path, _) = sorted((written / "v3 json").rglob("*results.json"))
    own = json.loads(path.read_text())
    # The real capture traced kernels only: of other records only that they are kept is known.
    beyond = (
        *(".hip_api.", ".marker_api.", ".rccl_api.", ".memory_copy.", ".counter_collection."),
        *(".counters.", ".capability."),
    )
    unknown = set(paths_of(own)) - set(paths_of(real))
    assert [key for key in unknown if not any(part in key for part in beyond)] == []
    kernel = own["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][0]
    real_kernel = real["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][0]
    assert list(kernel) == list(real_kernel)
    assert list(kernel["dispatch_info"]) == list(real_kernel["dispatch_info"])


def columns_of(database: sqlite3.Connection) -> dict[str, list[tuple[str, str]]]:
    """Return name and type of the columns of each table, the tables without their suffix."""
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        re.sub(r"_[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}$", "", table): [
            (name, type_)
            for _, name, type_, *_ in database.execute(f"PRAGMA table_info(`{table}`)")
        ]
        for (table,) in tables
    }


def test_the_tables_of_rocpd(written: Path) -> None:
    real = shared_file(f"{REAL}/rocpd_r9700_llamacpp.db")
    (path, _) = sorted((written / "rocpd 3.0.0").rglob("*.db"))
    with (
        closing(sqlite3.connect(f"file:{real}?mode=ro&immutable=1", uri=True)) as theirs,
        closing(sqlite3.connect(path)) as ours,
    ):
        assert columns_of(ours) == columns_of(theirs)
        query = "SELECT tag, value FROM rocpd_metadata WHERE tag = 'schema_version'"
        assert ours.execute(query).fetchall() == theirs.execute(query).fetchall()
        views = "SELECT name FROM sqlite_master WHERE type = 'view'"
        assert set(ours.execute(views)) <= set(theirs.execute(views))
