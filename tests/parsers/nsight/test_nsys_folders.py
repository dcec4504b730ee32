"""Folders of tables (parquetdir, arrowdir) give the trace that the SQLite export gives."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import shared_file, some
from tests.parsers.nsight.nsysfile import SECRET, NsysFile, small
from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace


def content(trace: Trace) -> dict[str, Any]:
    """Return everything of a trace but what names its file."""
    tables = {name: table.to_pylist() for name, table in trace.tables.items()}
    for row in tables["processes"]:
        del row["file"]
    source = trace.source
    notes = [(note.kind, note.code, note.text, note.count) for note in trace.notes]
    about = (source.tool, source.origin_unix_ns, dict(source.facts), dict(source.event_counts))
    return {**tables, "about": (*about, source.identities), "notes": notes}


@pytest.mark.parametrize("era", ["2020", "2022", "2023", "2026"])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
def test_a_folder_gives_what_the_database_gives(tmp_path: Path, era: str, kind: str) -> None:
    export = small(era)
    expected = content(read(export.save(tmp_path / "run.sqlite")))
    folder = tmp_path / "any_name"
    if kind == "parquet":
        export.save_parquet(folder)
    else:
        export.save_arrow(folder, stream=kind == "arrow stream")
    trace = read(folder)
    assert content(trace) == expected
    assert trace.source.format == f"nsys-{kind.partition(' ')[0]}"
    assert SECRET not in repr((content(trace), trace.source))


def test_real_tables_as_parquet_give_the_same(tmp_path: Path) -> None:
    path = shared_file("traces/nsight/nsys_h100x2_mfu_before.sqlite")
    folder = tmp_path / "tables"
    folder.mkdir()
    with sqlite3.connect(f"file:{path}?immutable=1", uri=True) as database:
        names = [
            n for (n,) in database.execute("SELECT name FROM sqlite_schema WHERE type='table'")
        ]
        for name in names:
            found = database.execute(f'SELECT * FROM "{name}"')
            columns = [column[0] for column in found.description]
            rows = found.fetchall()
            if not rows or name.startswith("ENUM"):
                continue
            arrays = [pa.array([row[at] for row in rows]) for at in range(len(columns))]
            pq.write_table(pa.table(arrays, names=columns), folder / f"{name}.parquet")
    assert content(read(folder)) == content(read(path))


def test_integers_may_be_stored_as_doubles(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20, correlationId=None)
    export.kernel(30, 40, correlationId=5)
    expected = content(read(export.save(tmp_path / "run.sqlite")))
    folder = export.save_parquet(tmp_path / "folder")
    path = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pq.read_table(path)
    doubles = [
        pa.array([float(v) if v is not None else float("nan") for v in column.to_pylist()])
        if name not in ("start", "end", "globalPid")
        else column.combine_chunks()
        for name, column in zip(table.schema.names, table.columns, strict=True)
    ]
    pq.write_table(pa.table(doubles, names=table.schema.names), path)
    assert content(read(folder)) == expected


def test_several_folders_are_several_reports(tmp_path: Path) -> None:
    for rank in (0, 1):
        export = NsysFile()
        export.kernel(10, 20)
        export.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=10**18 + rank)
        export.save_parquet(tmp_path / "all" / f"report_rank{rank}_pqtdir")
    trace = read(tmp_path / "all")
    assert trace.ranks == (0, 1)
    assert trace.activities["start_ns"].to_pylist() == [10, 11]


def test_a_table_is_known_by_its_columns_too(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    folder = export.save_parquet(tmp_path / "folder")
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").rename(tmp_path / "kernels.parquet")
    assert read(tmp_path / "kernels.parquet").activities.num_rows == 1


def test_files_that_are_no_table_and_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    folder = small().save_parquet(tmp_path / "folder")
    pq.write_table(pa.table({"a": [1]}), folder / "other.parquet")
    cut = folder / "CUPTI_ACTIVITY_KIND_MEMSET.parquet"
    cut.write_bytes(cut.read_bytes()[:100])
    trace = read(folder)
    assert trace.activities.num_rows == 3
    said = {note.code: note.text for note in trace.notes}
    assert "CUPTI_ACTIVITY_KIND_MEMSET.parquet" in said["set-aside"]
    assert "other.parquet" in said["not-a-trace"]


def test_the_folder_of_a_table_is_named_only_if_it_was_given(tmp_path: Path) -> None:
    folder = small().save_parquet(tmp_path / "customer" / "acme_rank3")
    files = sorted(folder.iterdir())
    (alone,) = (file for file in files if file.name.startswith("CUPTI_ACTIVITY_KIND_KERNEL"))
    for given in ([alone], files):
        trace = read(given)
        shown = repr((trace.source, trace.notes, trace.processes.to_pylist()))
        assert "acme" not in shown and "customer" not in shown
        assert trace.ranks == (3,)
    assert {note.file for note in read(folder).notes} == {"acme_rank3"}
    assert {note.file for note in read(tmp_path / "customer").notes} == {"customer"}


def test_one_table_alone_is_read_or_refused(tmp_path: Path) -> None:
    folder = small().save_parquet(tmp_path / "folder")
    alone = tmp_path / "StringIds.parquet"
    shutil.copy(folder / "StringIds.parquet", alone)
    with pytest.raises(InputError, match="no table of GPU operations"):
        read(alone)
    shutil.copy(folder / "NVTX_EVENTS.parquet", tmp_path / "NVTX_EVENTS.parquet")
    assert read(tmp_path / "NVTX_EVENTS.parquet").marks.num_rows == 2


def test_an_arrow_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    whole = pa.table({"a": [1]})
    with pa.ipc.new_file(str(path), whole.schema) as writer:
        writer.write_table(whole)
    with pytest.raises(InputError, match="unknown Arrow file"):
        read(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match="damaged or cut Arrow file"):
        read(path)


ODD: dict[str, Any] = {
    "nulls": pa.nulls(2),
    "booleans": pa.array([True, None]),
    "halves": pa.array(np.array([1.5, np.nan], np.float16)),
    "reals": pa.array([1e300, float("-inf")]),
    "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
    "decimals": pa.array([1, 2], pa.decimal256(60, 3)),
    "moments": pa.array([-(2**62), 5], pa.int64()).cast(pa.timestamp("ns")),
    "bytes": pa.array([b"\xff\x00", None]),
    "views of texts": pa.array(["7", "x" * 99], pa.string_view()),
    "lists": pa.array([[[1]], None]),
    "structs": pa.array([{"a": [1]}, {"a": None}]),
    "maps": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([9])),
    "union": pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([5, 5]), pa.nulls(2)]
    ),
    "coded nulls": pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.nulls(1)),
}


@pytest.mark.parametrize("kind", some(ODD, 2))
def test_columns_of_any_type_are_read_or_refused(tmp_path: Path, kind: str) -> None:
    path = small("2026").save_arrow(tmp_path / "folder") / "CUPTI_ACTIVITY_KIND_KERNEL.arrow"
    with pa.ipc.open_file(str(path)) as file:
        kernels = file.read_all()
    assert kernels.num_rows == 2
    counts = set()
    for name in ("start", "end", "globalPid", "demangledName", "correlationId", "gridX"):
        odd = kernels.set_column(kernels.schema.names.index(name), name, ODD[kind])
        with pa.ipc.new_file(str(path), odd.schema) as file:
            file.write_table(odd)
        counts.add(read(path.parent).activities.num_rows)
    assert counts <= {2, 3, 4}  # a copy and a memset are in other files


BAD_OFFSETS = {
    "negative": [0, -5, 3, 3, 3],
    "falling": [0, 9, 3, 3, 3],
    "far behind the end": [0, 2**30, 1, 2, 3],
}
READING = "import sys; from traceflops.parsers.reading import read; print(read(sys.argv[1]).notes)"


def with_bad_texts(offsets: list[int]) -> pa.RecordBatch:
    """Return a table of texts of which an Arrow file holds offsets that point elsewhere."""
    count = len(offsets) - 1
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abc")]
    texts = pa.Array.from_buffers(pa.string(), count, buffers)
    return pa.record_batch([pa.array(range(1, count + 1)), texts], names=["id", "value"])


def write_arrow(path: Path, batch: pa.RecordBatch) -> None:
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    with pa.ipc.new_file(str(path), batch.schema, options=options) as writer:
        writer.write_batch(batch)


@pytest.mark.parametrize("kind", BAD_OFFSETS)
def test_bad_offsets_are_damage_and_nothing_reads_them(tmp_path: Path, kind: str) -> None:
    folder = small("2026").save_arrow(tmp_path / "folder")
    write_arrow(folder / "StringIds.arrow", with_bad_texts(BAD_OFFSETS[kind]))
    # In a process of its own: what once read them did not always survive.
    words = [sys.executable, "-c", READING, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rows are missing from StringIds" in done.stdout


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_what_compressed_columns_claim_is_refused_before_it_is_unpacked(
    tmp_path: Path, make: Any, coded: bool
) -> None:
    folder = small("2026").save_arrow(tmp_path / "folder")
    texts = pa.array([f"{number:09}" for number in range(1_000)])
    table = pa.table({"id": range(1_000), "value": texts.dictionary_encode() if coded else texts})
    path = folder / "StringIds.arrow"
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)
    written = path.read_bytes()
    claim = (9_000).to_bytes(8, "little")  # of the bytes of the texts
    assert written.count(claim) == 1
    assert "set-aside" not in {note.code for note in read(folder).notes}
    path.write_bytes(written.replace(claim, (1 << 50).to_bytes(8, "little")))
    with pytest.raises(InputError, match="unpacks to more than 300 times its size: StringIds"):
        read(path)


def test_what_parquet_claims_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "StringIds.parquet"
    zeros = pa.table({"id": np.zeros(1_000_000, np.int64)})
    pq.write_table(zeros, path, compression="zstd", use_dictionary=False)
    monkeypatch.setattr("traceflops.parsers.io.inputs._BOMB_BYTES", 1_000_000)
    with pytest.raises(InputError, match="unpacks to more than 300 times its size: StringIds"):
        read(path)


def test_rows_without_bytes_are_refused(tmp_path: Path) -> None:
    folder = small("2026").save_arrow(tmp_path / "folder")
    nothing = pa.Array.from_buffers(pa.null(), 2**40, [None])
    write_arrow(folder / "StringIds.arrow", pa.record_batch([nothing], names=["id"]))
    with pytest.raises(InputError, match="unpacks to more than 300 times its size: StringIds"):
        read(folder, strict=True)
