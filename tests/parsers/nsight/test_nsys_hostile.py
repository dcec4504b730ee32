"""Nsight Systems: whatever is in a file, reading it gives a trace or says what is wrong."""

from __future__ import annotations

import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traceflops as tf
from tests.conftest import examples
from tests.parsers.nsight.nsysfile import SECRET, NsysFile, process, small, thread
from tests.parsers.nsight.test_nsys_folders import content
from traceflops.errors import InputError
from traceflops.parsers.io.database_scan import LONGEST_VALUE, NotFast, record_batches
from traceflops.parsers.nsight.nsys import nvtx as texts
from traceflops.parsers.nsight.nsys.nvtx import op_texts
from traceflops.parsers.reading import read
from traceflops.table.columns import ABSENT, string_column

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.sampled_from([0, -1, 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, -(2**63), 7]),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.just("9" * 30),
    st.just("aten::mm, seq = 99999999999999999999, op_id = x, sizes = [[[[["),
)


def read_or_refuse(path: Path) -> tf.Trace | None:
    try:
        trace = read(path)
    except InputError as error:
        assert error.message
        assert error.hint
        return None
    assert SECRET not in repr([table.to_pylist() for table in trace.tables.values()])
    tf.analyze(trace)
    return trace


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_cell(tmp_path: Path, data: st.DataObject) -> None:
    export = small(data.draw(st.sampled_from(["2020", "2022", "2026"])))
    export.graph(8_000, 9_000, 3, correlationId=9)
    export.row("PROFILER_OVERHEAD", start=1, end=2, globalTid=thread(), nameId=0)
    export.row("MPI_RANKS", globalPid=process(), rank=0)
    for _ in range(data.draw(st.integers(1, 6))):
        table = data.draw(st.sampled_from(sorted(export.rows)))
        column = data.draw(st.sampled_from(export.columns_of(table)))
        row = data.draw(st.sampled_from(export.rows[table]))
        row[column] = data.draw(ODD)
    path = tmp_path / "run.sqlite"
    path.unlink(missing_ok=True)
    try:
        export.save(path)
    except (sqlite3.Error, OverflowError, UnicodeEncodeError):
        return
    read_or_refuse(path)


@pytest.mark.parametrize("seed", range(12))
def test_bytes_that_were_changed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = bytearray(small().save(tmp_path / "whole.sqlite").read_bytes())
    for _ in range(chance.choice((1, 5, 50))):
        whole[chance.randrange(len(whole))] = chance.randrange(256)
    path = tmp_path / "changed.sqlite"
    path.write_bytes(whole)
    read_or_refuse(path)


@pytest.mark.parametrize("tenth", range(10))
def test_a_database_that_was_cut(tmp_path: Path, tenth: int) -> None:
    whole = small().save(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: len(whole) * tenth // 10])
    trace = read_or_refuse(path)
    if trace is not None:
        assert {"input-cut", "rows-lost"} & {note.code for note in trace.notes}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_files_of_tables_that_were_changed(tmp_path: Path, seed: int, kind: str) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "folder"
    small().save_parquet(folder) if kind == "parquet" else small().save_arrow(folder)
    for path in sorted(folder.iterdir()):
        whole = bytearray(path.read_bytes())
        if chance.random() < 0.3:
            whole = whole[: chance.randrange(len(whole))]
        for _ in range(chance.choice((0, 0, 1, 20))):
            if whole:
                whole[chance.randrange(len(whole))] = chance.randrange(256)
        path.write_bytes(whole)
    read_or_refuse(folder)


def test_a_database_that_a_program_is_writing(tmp_path: Path) -> None:
    path = small().save(tmp_path / "run.sqlite")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    assert read(path).activities.num_rows == 4
    writer.execute("ROLLBACK")
    writer.close()


def test_thousands_of_processes(tmp_path: Path) -> None:
    export = NsysFile()
    for pid in range(1, 3_001):
        export.kernel(pid * 10, pid * 10 + 5, globalPid=process(pid))
    trace = read(export.save(tmp_path / "run.sqlite"))
    assert trace.processes["pid"].to_pylist() == list(range(1, 3_001))
    assert trace.devices.num_rows == 3_000


@pytest.mark.parametrize("era", ["2020", "2026"])
def test_without_the_driver_everything_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    export = small(era)
    for at in range(50):
        export.range(at, at + 1, f"aten::mm, seq = {at}, op_id = {at}, sizes = [[{at}]]")
        export.range(at, at + 2, None if at % 3 else "é" * at)
    path = export.save(tmp_path / "run.sqlite")
    expected = content(read(path))
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)
    assert content(read(path)) == expected


def test_reading_goes_on_where_the_driver_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = NsysFile()
    for at in range(100):
        export.range(at, at + 1, f"range {at}")
    path = export.save(tmp_path / "run.sqlite")
    expected = content(read(path))
    whole = record_batches

    def failing(uri: str, query: str) -> Any:
        for batch in whole(uri, query):
            yield batch.slice(0, 40)
            raise NotFast

    monkeypatch.setattr(texts, "record_batches", failing)
    assert content(read(path)) == expected


def test_the_quick_way_reads_no_text_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = NsysFile()
    for at, text in enumerate(("short", "x" * 300, "é")):
        export.range(at, at + 1, text)
    query = "SELECT {} FROM NVTX_EVENTS"
    columns = ", ".join(one.format(c="text") for one in (texts._HAS_TEXT, texts._TEXT))
    limited = query.format(columns.replace(str(LONGEST_VALUE), "100"))
    (batch,) = record_batches(f"{export.save(tmp_path / 'a.db').as_uri()}?mode=ro", limited)
    has_text, values = (column.to_pylist() for column in batch.columns)
    assert (has_text, values) == ([1, None, 1], ["short", "", "é"])


TEXT = st.text(alphabet="aé, =[]0123seqopid_sz", max_size=30)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["aten::mm", "a, b", "é::x", ""]),
            st.one_of(st.none(), st.integers(0, 10**12)),
            st.one_of(st.none(), st.integers(0, 10**12)),
            st.one_of(st.none(), st.lists(st.lists(st.integers(0, 99), max_size=3), max_size=3)),
        )
    )
)
def test_texts_are_taken_apart_as_they_were_put_together(rows: list[Any]) -> None:
    made = []
    for name, sequence, op_id, sizes in rows:
        text = name
        text += "" if sequence is None else f", seq = {sequence}"
        text += "" if op_id is None else f", op_id = {op_id}"
        text += "" if sizes is None else f", sizes = {sizes}"
        made.append(text)
    found = op_texts(string_column(made))
    for at, (name, sequence, op_id, sizes) in enumerate(rows):
        assert found.names[found.name[at]] == name
        assert found.sequence[at] == (ABSENT if sequence is None else sequence)
        assert found.op_id[at] == (ABSENT if op_id is None else op_id)
        place = found.sizes[at]
        assert (found.all_sizes[place] if place >= 0 else None) == (
            None if sizes is None else str(sizes)
        )


@given(st.lists(TEXT))
def test_any_text_is_a_name_and_perhaps_more(made: list[str]) -> None:
    found = op_texts(string_column(made))
    assert len(found.name) == len(made)
    for text, place in zip(made, found.name.tolist(), strict=True):
        assert text.startswith(found.names[place])
