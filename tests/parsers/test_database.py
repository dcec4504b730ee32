"""The layer over SQLite: what it reads, what it never does, and what it makes of damage."""

from __future__ import annotations

import gzip
import io
import math
import os
import sqlite3
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples, some
from tests.parsers.rocprof.rocpdfile import rocpd
from traceflops.errors import InputError
from traceflops.parsers.io import database_file as file
from traceflops.parsers.io import database_scan as fast
from traceflops.parsers.io.database_file import placed
from traceflops.parsers.io.database_query import (
    Among,
    Batch,
    Lookup,
    Present,
    Table,
    TextsById,
    Wanted,
    by_distinct,
    select,
)
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.database_scan import (
    HIGHEST,
    LOWEST,
    Damaged,
    NotFast,
    Row,
    Salvage,
    fast_columns,
)
from traceflops.parsers.io.places import find_inputs
from traceflops.parsers.reading import read
from traceflops.table.columns import ABSENT, Names

T = 168_853_321_180_888
PAGE = 4096


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    (source,), _ = find_inputs(str(path))
    with placed(source) as place, Database(source, place) as database:
        yield database


def made(path: Path, statement: str, rows: list[tuple[Any, ...]] | None = None) -> Path:
    """Make a database of one table; a question mark stands for each of its values."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        if rows:
            table = statement.split("(")[0].split()[2]
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        connection.commit()
    return path


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return what is in a folder: sizes, times of change and content."""
    return {
        path.name: (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.iterdir()
    }


# Values

NUMBERS: list[tuple[Any, Any]] = [
    (7, 7),
    (-1, -1),
    (2**53 + 1, 2**53 + 1),
    (2**63 - 1, 2**63 - 1),
    (-(2**63) + 1, -(2**63) + 1),
    (3.0, 3),
    (3.5, ABSENT),
    (1e300, ABSENT),
    (2.0**63, ABSENT),
    ("12", 12),
    ("-12", -12),
    (" 12", ABSENT),
    ("12.0", ABSENT),
    ("0x1f", ABSENT),
    ("99999999999999999999", ABSENT),
    ("", ABSENT),
    (None, ABSENT),
    (b"12", ABSENT),
]


def test_what_is_no_integer_is_unknown_and_never_zero(tmp_path: Path) -> None:
    path = made(tmp_path / "a.db", "CREATE TABLE t (a)", [(v,) for v, _ in NUMBERS])
    with opened(path) as database:
        found = database.whole("t", Wanted(integers=("a",)))["a"].tolist()
    assert found == [expected for _, expected in NUMBERS]


def test_reals_and_texts(tmp_path: Path) -> None:
    rows = [(1.5, "a"), (2, 5), (None, None), ("x", b"raw"), (float("inf"), "ü\x00b")]
    path = made(tmp_path / "a.db", "CREATE TABLE t (a, b)", rows)
    with opened(path) as database:
        batch = database.whole("t", Wanted(reals=("a",), texts=("b",)))
    assert np.array_equal(batch["a"], [1.5, 2.0, np.nan, np.nan, np.nan], equal_nan=True)
    assert batch.texts["b"] == ["a", "5", None, None, "ü\x00b"]


def test_columns_and_tables_that_are_not_there(tmp_path: Path) -> None:
    path = made(tmp_path / "a.db", "CREATE TABLE t (a)", [(1,), (2,)])
    wanted = Wanted(integers=("a", "b"), reals=("c",), texts=("d",))
    with opened(path) as database:
        batch = database.whole("t", wanted)
        none = database.whole("nope", wanted)
        assert not database.has_rows("nope")
        assert database.has_rows("t")
    assert batch["b"].tolist() == [ABSENT, ABSENT]
    assert np.isnan(batch["c"]).all()
    assert batch.texts["d"] == [None, None]
    assert none.count == 0
    assert set(none.numbers) == {"a", "b", "c"}


def test_conditions(tmp_path: Path) -> None:
    rows = [(number, f"n{number % 3}") for number in range(10)]
    path = made(tmp_path / "a.db", "CREATE TABLE t (a, b)", rows)
    with opened(path) as database:
        wanted = Wanted(integers=("a",))
        among = database.whole("t", wanted, (Among("b", ("n0", "n1")), Among("a", (2, 3, 4, 5, 6))))
        none = database.whole("t", wanted, (Among("nope", (1,)),))
    assert among["a"].tolist() == [3, 4, 6]
    assert none.count == 0


values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from(["12", "-7", "1e3", "9" * 30]),
)
names = st.sampled_from(['a"b', "end", "gpu-id", "select", "ä%#?"])


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.tuples(values, values, values), max_size=40),
    declared=st.tuples(*[st.sampled_from(["", "INTEGER", "BIGINT", "TEXT", "REAL", "BLOB"])] * 3),
    columns=st.lists(names, min_size=3, max_size=3, unique=True),
    batch_rows=st.sampled_from([1, 3, 1 << 15]),
)
def test_reading_through_arrow_gives_what_reading_rows_gives(
    rows: list[tuple[Any, ...]],
    declared: tuple[str, ...],
    columns: list[str],
    batch_rows: int,
) -> None:
    """Also where a column begins with nulls or changes its type later."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "a.db"
        quoted = [column.replace('"', '""') for column in columns]
        spelled = ", ".join(f'"{n}" {d}' for n, d in zip(quoted, declared, strict=True))
        made(path, f"CREATE TABLE t ({spelled})", rows)
        wanted = Wanted(integers=(columns[0], columns[1]), reals=(columns[2],))
        patch.setattr("traceflops.parsers.io.database_scan.BATCH_ROWS", batch_rows)
        with opened(path) as database:
            fast = database.whole("t", wanted)
        patch.setattr("traceflops.parsers.io.database_scan.fast_columns", not_fast)
        with opened(path) as database:
            careful = database.whole("t", wanted)
    assert fast.count == careful.count == len(rows)
    for name in wanted.integers:
        assert fast[name].tolist() == careful[name].tolist()
    assert np.array_equal(fast[columns[2]], careful[columns[2]], equal_nan=True)


def not_fast(*_: object) -> Iterator[Any]:
    raise NotFast


def test_whole_numbers_are_read_through_arrow(tmp_path: Path, monkeypatch: Any) -> None:
    """Else the test above compares the careful way with itself."""
    path = made(tmp_path / "a.db", "CREATE TABLE t (a INTEGER)", [(None,), (5,), (None,)])
    monkeypatch.setattr("traceflops.parsers.io.database_scan.Salvage", None)
    with opened(path) as database:
        assert database.whole("t", Wanted(integers=("a",)))["a"].tolist() == [ABSENT, 5, ABSENT]


def test_a_large_table_is_read_in_two_parts(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("traceflops.parsers.io.database_rows._LARGE", 100)
    monkeypatch.setattr(fast, "BATCH_ROWS", 64)
    rows = [(number * 3, number) for number in range(1000)]
    path = made(tmp_path / "a.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, a)", rows)
    with opened(path) as database:
        found = database.whole("t", Wanted(integers=("id", "a")))
    assert sorted(zip(found["id"].tolist(), found["a"].tolist(), strict=True)) == rows


def test_without_the_driver_rows_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)
    path = made(tmp_path / "a.db", "CREATE TABLE t (a)", [(1,), (2,)])
    with opened(path) as database:
        assert database.whole("t", Wanted(integers=("a",)))["a"].tolist() == [1, 2]


def test_whatever_fails_while_reading_ahead_nobody_waits_for_ever(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def failing(*_: object) -> Iterator[Any]:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(fast, "record_batches", failing)
    path = made(tmp_path / "a.db", "CREATE TABLE t (a)", [(1,), (2,)])
    with opened(path) as database:
        assert database.whole("t", Wanted(integers=("a",)))["a"].tolist() == [1, 2]


def test_the_quick_way_trusts_no_schema_either(tmp_path: Path) -> None:
    path = made(tmp_path / "a.db", "CREATE TABLE t (a)", [(1,)])
    uri = f"{path.as_uri()}?mode=ro"
    (batch,) = fast.record_batches(uri, "SELECT trusted_schema FROM pragma_trusted_schema")
    assert batch.column(0).to_pylist() == [0]


def test_a_reader_that_leaves_early_ends_what_reads_ahead(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(fast, "BATCH_ROWS", 10)
    path = made(tmp_path / "a.db", "CREATE TABLE t (a)", [(n,) for n in range(5000)])
    query = select(Table("t", {"a": ""}, "rowid"), Wanted(integers=("a",)))
    batches = fast_columns(f"{path.as_uri()}?mode=ro", [query, query])
    next(batches)
    batches.close()  # type: ignore[attr-defined]


def test_rows_of_a_table_without_numbers_or_with_columns_of_their_names(tmp_path: Path) -> None:
    statement = "CREATE TABLE t (a INTEGER, b INTEGER, PRIMARY KEY (b, a)) WITHOUT ROWID"
    path = made(tmp_path / "a.db", statement, [(5, 1), (3, 2)])
    with opened(path) as database:
        assert database.whole("t", Wanted(integers=("a",)))["a"].tolist() == [5, 3]
    rows = [("x", 9), ("y", 8)]
    path = made(tmp_path / "b.db", "CREATE TABLE t (_rowid_, oid)", rows)
    with opened(path) as database:
        assert database.whole("t", Wanted(integers=("oid",)))["oid"].tolist() == [9, 8]


def test_texts_of_a_database_in_utf16(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16le'")
        connection.execute("CREATE TABLE t (a, b)")
        connection.execute("INSERT INTO t VALUES ('grün', '17')")
        connection.commit()
    with opened(path) as database:
        batch = database.whole("t", Wanted(integers=("b",), texts=("a",)))
    assert (batch.texts["a"], batch["b"].tolist()) == (["grün"], [17])


def test_progress_is_told_and_ends_at_the_size(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for place in range(50):
            file.dispatch(kernel, T + place, T + place + 1)
    told: list[int] = []
    read(path, watch=lambda source, *_: setattr(source, "progress", told.append))
    assert told[1:] == sorted(told[1:])  # the first is that of the look at what it is
    assert told[-1] == path.stat().st_size


# Ids


@given(
    st.dictionaries(st.one_of(st.integers(0, 50), st.integers(-(2**62), 2**62)), st.integers(0, 9)),
    st.lists(st.one_of(st.integers(-2, 60), st.integers(-(2**62), 2**62)), max_size=20),
)
def test_a_lookup_is_a_dictionary(pairs: dict[int, int], keys: list[int]) -> None:
    find = Lookup(
        np.array([*pairs, ABSENT], dtype=np.int64), np.array([*pairs.values(), 5], dtype=np.int64)
    )
    wanted = np.array([*keys, *pairs, ABSENT], dtype=np.int64)
    assert find(wanted).tolist() == [pairs.get(key, ABSENT) for key in wanted.tolist()]


def test_codes_of_texts_by_ids() -> None:
    texts = TextsById(np.array([3, 9, 4]), ["c", None, "d"])
    names = Names()
    code = texts.coder(names, "?")
    ids = np.array([4, 3, 9, 7, 4])
    assert [list(names)[place] for place in code(ids)] == ["d", "c", "?", "?", "d"]
    assert TextsById(np.array([1]), [None]).coder(names, None)(np.array([1, 2])).tolist() == [
        -1,
        -1,
    ]
    assert (texts[3], texts[9], texts[1]) == ("c", None, None)


def test_by_distinct_asks_once_for_each() -> None:
    asked: list[tuple[int, int]] = []

    def number(value: int, row: int) -> int:
        asked.append((value, row))
        return value * 2

    assert by_distinct(np.array([5, 3, 5, 3]), number).tolist() == [10, 6, 10, 6]
    assert by_distinct(np.array([4, 4, 4]), number).tolist() == [8, 8, 8]
    assert by_distinct(np.empty(0, np.int64), number).tolist() == []
    assert sorted(asked) == [(3, 1), (4, 0), (5, 0)]


def test_some_rows_of_a_batch() -> None:
    batch = Batch(3, {"a": np.array([1, 2, 3])}, {"b": ["x", "y", None]})
    some = batch.only(np.array([True, False, True]))
    assert (some.count, some["a"].tolist(), some.texts["b"]) == (2, [1, 3], ["x", None])


# Where it lies


@pytest.mark.parametrize("name", ["with space.db", "50%.db", "a#b.db", "what?.db", "ü&=;.db"])
def test_any_name_and_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with rocpd(folder / name) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
    assert read(folder / name).activities.num_rows == 1


def test_nothing_is_changed_and_nothing_is_written_beside(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with rocpd(path) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
    before = state(tmp_path)
    read(path)
    assert state(tmp_path) == before


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have other rights here")
def test_a_folder_that_may_only_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    path = folder / "a.db"
    in_wal_mode(path, 1).close()
    path.chmod(stat.S_IRUSR)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        before = state(folder)
        assert read(path).activities.num_rows == 1
        assert state(folder) == before
    finally:
        folder.chmod(stat.S_IRWXU)


def test_packed_databases_are_unpacked_for_as_long_as_they_are_read(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    plain = tmp_path / "a.db"
    with rocpd(plain) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
    packed = tmp_path / "a.db.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    other = tmp_path / "b.db"
    with rocpd(other) as file:
        file.dispatch(file.symbol("k"), T + 9, T + 12)
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as members:
        members.write(plain, "host/1_results.db")
        members.write(other, "host/2_results.db")
    expected = read(plain).activities.to_pylist()
    assert read(packed).activities.to_pylist() == expected
    assert read(archive).activities.num_rows == 2
    assert read(packed).source.files[0].text_bytes == plain.stat().st_size
    assert list((tmp_path / "tmp").iterdir()) == []


def test_standard_input(tmp_path: Path, monkeypatch: Any) -> None:
    with rocpd(tmp_path / "a.db") as file:
        file.dispatch(file.symbol("k"), T, T + 7)

    class Stdin:
        buffer = io.BytesIO((tmp_path / "a.db").read_bytes())

    monkeypatch.setattr("sys.stdin", Stdin)
    assert read("-").activities.num_rows == 1


def test_a_packed_database_that_is_cut_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for place in range(2000):
            file.dispatch(kernel, T + 10 * place, T + 10 * place + 5)
    packed = tmp_path / "a.db.gz"
    data = gzip.compress(path.read_bytes())
    packed.write_bytes(data[: len(data) * 3 // 4])
    trace = read(packed)
    assert 0 < trace.activities.num_rows < 2000
    assert {"input-cut", "rows-lost"} <= {note.code for note in trace.notes}


def test_no_room_to_unpack_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    packed = tmp_path / "a.db.gz"
    with rocpd(tmp_path / "a.db"):
        pass
    packed.write_bytes(gzip.compress((tmp_path / "a.db").read_bytes()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"cannot unpack: a\.db\.gz") as caught:
        read(packed)
    assert "TMPDIR" in caught.value.hint


# Logs beside it


def in_wal_mode(path: Path, rows: int) -> sqlite3.Connection:
    """Return the connection of a writer that has rows in its log only."""
    with rocpd(path) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    table = next(
        name
        for (name,) in writer.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        if name.startswith("rocpd_kernel_dispatch_")
    )
    for place in range(1, rows):
        writer.execute(
            f'INSERT INTO "{table}" (pid, agent_id, kernel_id, start, "end")'
            " VALUES (4242, 1, 1, ?, ?)",
            (T + 10 * place, T + 10 * place + 7),
        )
    writer.commit()
    return writer


def test_rows_that_are_still_in_the_log_are_read(tmp_path: Path) -> None:
    """Quirk 47: the writer is still open, and nothing of its files changes."""
    path = tmp_path / "a.db"
    with closing(in_wal_mode(path, 50)):
        assert (tmp_path / "a.db-wal").stat().st_size > 0
        before = state(tmp_path)
        trace = read(path)
        assert state(tmp_path) == before
    assert trace.activities.num_rows == 50
    (note,) = [note for note in trace.notes if note.code == "log-applied"]
    assert (note.kind, note.file) == ("repaired", "a.db")


@pytest.mark.parametrize("end", [-1, -4096, -5000])
def test_a_log_that_is_cut_is_said_to_be(tmp_path: Path, end: int) -> None:
    path = tmp_path / "a.db"
    with closing(in_wal_mode(path, 5000)):
        whole = (tmp_path / "a.db-wal").read_bytes()
        database = path.read_bytes()
    for name in ("b.db", "c.db"):
        (tmp_path / name).write_bytes(database)
    (tmp_path / "b.db-wal").write_bytes(whole[:end])
    trace = read(tmp_path / "b.db")
    # All rows are of one transaction, whose last page is the one that finishes it.
    assert trace.activities.num_rows == 1
    (note,) = [note for note in trace.notes if note.code == "log-cut"]
    pages = math.ceil((len(whole) + end - 32) / (24 + PAGE))
    assert (note.kind, note.count) == ("dropped", pages)
    with pytest.raises(InputError, match="damaged"):
        read(tmp_path / "b.db", strict=True)
    (tmp_path / "c.db-wal").write_bytes(whole)
    whole_trace = read(tmp_path / "c.db")
    assert whole_trace.activities.num_rows == 5000
    assert "log-cut" not in {note.code for note in whole_trace.notes}


@pytest.mark.parametrize("log", [None, b"x" * 5000])
def test_a_database_whose_all_was_in_a_log_is_called_that(
    tmp_path: Path, log: bytes | None
) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE rocpd_string (string TEXT)")
        writer.commit()
        database = path.read_bytes()
    (tmp_path / "b.db").write_bytes(database)
    if log is not None:
        (tmp_path / "b.db-wal").write_bytes(log)
    with pytest.raises(InputError, match="in the write-ahead log") as caught:
        read(tmp_path / "b.db")
    assert "b.db-wal" in caught.value.hint


def test_of_a_database_that_is_all_in_a_cut_log_it_is_said_where_the_rest_is(
    tmp_path: Path,
) -> None:
    """The log holds the tables in one transaction, and the rows in another, which is cut."""
    path = tmp_path / "a.db"
    with closing(in_wal_mode(path, 1)) as writer:
        table = next(
            name
            for (name,) in writer.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if name.startswith("rocpd_kernel_dispatch_")
        )
        writer.execute(f'DELETE FROM "{table}"')
        writer.commit()
        emptied = (tmp_path / "a.db-wal").read_bytes()
        for place in range(2000):
            writer.execute(
                f'INSERT INTO "{table}" (pid, agent_id, kernel_id, start, "end")'
                " VALUES (4242, 1, 1, ?, ?)",
                (T + 10 * place, T + 10 * place + 7),
            )
        writer.commit()
        whole = (tmp_path / "a.db-wal").read_bytes()
        (tmp_path / "b.db").write_bytes(path.read_bytes())
    assert len(emptied) < len(whole) - 10 * PAGE
    (tmp_path / "b.db-wal").write_bytes(whole[: -2 * PAGE])
    with pytest.raises(InputError, match="that holds them is cut") as caught:
        read(tmp_path / "b.db")
    assert "nothing can be recovered" not in caught.value.hint
    assert "copy b.db and b.db-wal again" in caught.value.hint
    assert "sqlite3 b.db 'PRAGMA wal_checkpoint(TRUNCATE)'" in caught.value.hint


def test_the_first_bytes_of_a_database_are_called_that(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"SQLite for")
    with pytest.raises(InputError, match="the first 10 bytes of an SQLite database"):
        read(tmp_path / "a.db")


def test_a_log_that_cannot_be_copied_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setattr(file, "_SPARE_BYTES", 2**62)
    with closing(in_wal_mode(path, 50)):
        trace = read(path)
    assert trace.activities.num_rows == 1
    (note,) = [note for note in trace.notes if note.code == "log-unread"]
    assert note.kind == "missing"
    assert "wal_checkpoint" in note.text
    with pytest.raises(InputError), closing(in_wal_mode(tmp_path / "b.db", 50)):
        read(tmp_path / "b.db", strict=True)


def test_a_log_of_rubbish_or_of_nothing_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(in_wal_mode(path, 1)):
        pass
    for content in (b"", bytes(32), b"rubbish" * 5000):
        (tmp_path / "a.db-wal").write_bytes(content)
        trace = read(path)
        assert trace.activities.num_rows == 1
        assert not {"log-applied", "log-unread"} & {note.code for note in trace.notes}


def test_the_files_beside_a_database_are_called_by_their_name(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(in_wal_mode(path, 50)):
        for end in ("-wal", "-shm"):
            with pytest.raises(InputError, match="a log of an SQLite database"):
                read(tmp_path / f"a.db{end}")
        assert read(tmp_path).activities.num_rows == 50


def test_a_database_that_is_locked_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with rocpd(path) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert read(path).activities.num_rows == 1
        writer.execute("ROLLBACK")


def with_journal(folder: Path, rows: int) -> Path:
    """Make a database whose writer stopped within a transaction that had reached the disk."""
    path, taken = folder / "writing.db", folder / "a.db"
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for place in range(rows):
            file.dispatch(kernel, T + 10 * place, T + 10 * place + 7)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN")
        for (table,) in writer.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'rocpd_kernel_d%'"
        ).fetchall():
            writer.execute(f'UPDATE "{table}" SET start = start + 1, queue_id = 99')
        taken.write_bytes(path.read_bytes())
        (folder / "a.db-journal").write_bytes((folder / "writing.db-journal").read_bytes())
        writer.execute("ROLLBACK")
    path.unlink()
    return taken


def test_a_transaction_that_was_not_finished_is_taken_back_in_a_copy(tmp_path: Path) -> None:
    path = with_journal(tmp_path, 3000)
    before = state(tmp_path)
    trace = read(path)
    assert state(tmp_path) == before
    assert trace.activities["start_ns"].to_pylist() == [T + 10 * n for n in range(3000)]
    assert set(trace.activities["stream"].to_pylist()) == {1}
    (note,) = [note for note in trace.notes if note.code == "journal-applied"]
    assert note.kind == "repaired"


def test_a_journal_never_leads_to_another_file(tmp_path: Path) -> None:
    """A journal can name a further file, which SQLite would open, and then delete."""
    path = with_journal(tmp_path, 3000)
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    name = str(victim).encode()
    tail = name + len(name).to_bytes(4, "big") + (sum(name) & 0xFFFFFFFF).to_bytes(4, "big")
    journal = tmp_path / "a.db-journal"
    magic = file._JOURNAL_MAGIC
    journal.write_bytes(
        journal.read_bytes() + (2**30 // PAGE + 1).to_bytes(4, "big") + tail + magic
    )
    before = state(tmp_path)
    trace = read(path)
    assert state(tmp_path) == before
    assert {note.code for note in trace.notes} & {"journal-applied", "journal-unread"}


# Damage


def many(path: Path, rows: int = 5000) -> Path:
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for place in range(rows):
            file.dispatch(kernel, T + 10 * place, T + 10 * place + 7, dispatch_id=place)
    return path


def pages_of(path: Path, table: str) -> list[int]:
    """Return the pages of the leaves of a table, by the header of each page and its rows."""
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name LIKE ?", (f"{table}%",)
        ).fetchone()
    data = path.read_bytes()

    def page(number: int) -> bytes:
        return data[(number - 1) * PAGE : number * PAGE]

    def leaves(number: int) -> list[int]:
        content = page(number)
        if content[0] == 13:
            return [number]
        cells = int.from_bytes(content[3:5], "big")
        places = [int.from_bytes(content[12 + 2 * n : 14 + 2 * n], "big") for n in range(cells)]
        children = [int.from_bytes(content[at : at + 4], "big") for at in places]
        children.append(int.from_bytes(content[8:12], "big"))
        return [leaf for child in children for leaf in leaves(child)]

    return leaves(root)


@pytest.mark.parametrize("broken", [[0], [-1], [7], [3, 4, 5], [2, 20, 40], [0, 10, -1]], ids=str)
def test_every_intact_row_around_damage_is_read(tmp_path: Path, broken: list[int]) -> None:
    path = many(tmp_path / "a.db")
    leaves = pages_of(path, "rocpd_kernel_dispatch")
    data = bytearray(path.read_bytes())
    lost = 0
    for place in broken:
        at = (leaves[place] - 1) * PAGE
        lost += int.from_bytes(data[at + 3 : at + 5], "big")
        data[at : at + PAGE] = b"\xa5" * PAGE
    path.write_bytes(data)
    trace = read(path)
    assert trace.activities.num_rows == 5000 - lost
    (note,) = [note for note in trace.notes if note.code == "rows-lost"]
    assert note.kind == "dropped"
    assert "kernel_dispatch" in note.text
    assert "00000a10" not in note.text
    if broken[-1] != -1 and 0 not in broken:
        assert note.count == lost


def numbered(path: Path) -> Path:
    """Make a database of rows that all hold the number of the row."""
    rows = [(number, "x" * 50) for number in range(1, 2_001)]
    return made(path, "CREATE TABLE t (a INTEGER, b TEXT)", rows)


@pytest.mark.parametrize("behind", [1, 100, 2_048, PAGE - 1])
@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_a_page_that_is_not_wholly_there_are_lost(
    tmp_path: Path, behind: int, packed: bool
) -> None:
    """SQLite takes what lacks of a page for zeros, and rows of it for rows of zeros."""
    data = numbered(tmp_path / "whole.db").read_bytes()[: 20 * PAGE + behind]
    path = tmp_path / ("a.db.gz" if packed else "a.db")
    path.write_bytes(gzip.compress(data) if packed else data)
    before = state(tmp_path)
    with opened(path) as database:
        batch = database.whole("t", Wanted(integers=("a",), texts=("b",)))
        assert database.lost == {"t"}
        assert database.damaged
    assert sorted(batch["a"].tolist()) == list(range(1, batch.count + 1))
    assert 0 < batch.count < 2_000
    assert set(batch.texts["b"]) == {"x" * 50}
    assert state(tmp_path) == before


def test_bytes_behind_the_last_page_cost_nothing(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.db")
    path.write_bytes(path.read_bytes() + b"more")
    with opened(path) as database:
        assert database.whole("t", Wanted(integers=("a",))).count == 2_000
        assert not database.damaged
        assert database.file.path == path.resolve()


def test_where_there_is_no_room_for_a_copy_of_a_cut_file_that_is_said(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = numbered(tmp_path / "a.db")
    path.write_bytes(path.read_bytes()[: 20 * PAGE + 100])
    monkeypatch.setattr(file, "_SPARE_BYTES", 2**62)
    with pytest.raises(InputError, match=r"a\.db .*No space left"), opened(path):
        pass


def test_rows_where_a_column_holds_anything(tmp_path: Path) -> None:
    path = made(tmp_path / "a.db", "CREATE TABLE t (a, b)", [(1, b"x"), (2, None), (3, "y")])
    with opened(path) as database:
        wanted = Wanted(integers=("a",))
        assert database.whole("t", wanted, (Present("b"),))["a"].tolist() == [1, 3]
        assert database.whole("t", wanted, (Present("nope"),)).count == 0


@pytest.mark.parametrize("eighths", some(range(1, 8), 4))
def test_a_database_that_is_cut_gives_what_is_left(tmp_path: Path, eighths: int) -> None:
    path = many(tmp_path / "a.db")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * eighths // 8 + 17])
    try:
        trace = read(path)
    except InputError as error:
        assert eighths == 1
        assert "a.db" in error.message
        return
    assert 0 < trace.activities.num_rows < 5000
    assert {"input-cut", "rows-lost"} <= {note.code for note in trace.notes}
    starts = trace.activities["start_ns"].to_pylist()
    assert len(set(starts)) == len(starts)
    with pytest.raises(InputError, match="damaged"):
        read(path, strict=True)


def test_a_database_without_its_list_of_tables_is_refused(tmp_path: Path) -> None:
    path = many(tmp_path / "a.db", 100)
    data = bytearray(path.read_bytes())
    data[100:PAGE] = bytes(PAGE - 100)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"damaged beyond reading: a\.db") as caught:
        read(path)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("size", [16, 17, 99, 100, 101, 511, 512, 4095, 4096, 4097, 8191, 8192])
def test_a_database_of_which_only_the_beginning_is_left_is_refused(
    tmp_path: Path, size: int
) -> None:
    path = many(tmp_path / "a.db", 100)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.message.isprintable()
    assert caught.value.hint


class Content(bytes):
    """The content of a file, which a failing test does not print."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Content:
    path = tmp_path_factory.mktemp("small") / "a.db"
    with rocpd(path, newer=True, version="3.0.4") as file:
        kernel = file.symbol("k")
        for stack in range(1, 60):
            at = T + 100 * stack
            file.region("HIP_RUNTIME_API", "hipLaunchKernel", at, at + 5, stack=stack)
            event = file.dispatch(kernel, at + 10, at + 60, stack=stack, dispatch_id=stack)
            file.counter(event, "SQ_WAVES", 1.0)
            file.copy("MEMORY_COPY_HOST_TO_DEVICE", 0, 1, at + 60, at + 70, stack=stack)
            file.region("MARKER_CORE_RANGE_API", "roctxMarkA", at, at, text='{"message": "m"}')
            call = file.region("RCCL_API", "ncclAllReduce", at + 5, at + 9, stack=900 + stack)
            file.add("arg", event_id=call, name="count", value="5")
    return Content(path.read_bytes())


def is_trace_or_refusal(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.db"
        path.write_bytes(data)
        try:
            trace = read(path)
        except InputError as error:
            assert error.message.isprintable()
            assert error.hint
        else:
            assert trace.activities.num_rows <= 10_000
        assert path.read_bytes() == data
        assert [one.name for one in Path(folder).iterdir()] == ["a.db"]


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(share=st.floats(0, 1))
def test_cut_anywhere(small: Content, share: float) -> None:
    is_trace_or_refusal(small[: max(16, int(len(small) * share))])


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(
    changes=st.lists(
        st.tuples(
            st.one_of(st.floats(0, 1), st.floats(0, 0.1)),
            st.one_of(
                st.binary(min_size=1, max_size=8), st.just(bytes(PAGE)), st.just(b"\xff" * 40)
            ),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_changed_anywhere(small: Content, changes: list[tuple[float, bytes]]) -> None:
    data = bytearray(small)
    for share, content in changes:
        at = 16 + int((len(data) - 16) * share)
        data[at : at + len(content)] = content[: len(data) - at]
    is_trace_or_refusal(bytes(data))


@given(
    numbers=st.sets(st.integers(-40, 300)),
    damage=st.lists(st.tuples(st.integers(-50, 310), st.integers(0, 25)), max_size=5),
    size=st.integers(1, 9),
)
def test_salvage_finds_each_intact_row_once(
    numbers: set[int], damage: list[tuple[int, int]], size: int
) -> None:
    broken = {number for first, length in damage for number in range(first, first + length)}
    rows = sorted(numbers)

    def scan(low: int, high: int) -> Iterator[list[Row]]:
        batch: list[Row] = []
        for number in [number for number in rows if low <= number <= high]:
            if number in broken:
                if batch:
                    yield batch
                raise Damaged
            batch.append((number,))
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    salvage = Salvage(scan, max(rows, default=0))
    found = [number for batch in salvage.rows(LOWEST, HIGHEST) for (number,) in batch]
    assert len(found) == len(set(found)) == salvage.read
    positive = {number for number in rows if number > 0}
    assert set(found) >= positive - broken
    assert set(found) <= set(rows) - broken
    if positive & broken and salvage.lost is not None:
        assert salvage.lost >= len(positive & broken)
    if not broken:
        assert salvage.lost == 0


# Hostile databases


def test_views_and_triggers_of_the_file_are_never_run(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with rocpd(path, views=False) as file:
        file.dispatch(file.symbol("k"), T, T + 7)
        run = file.connection.execute
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
        for view in ("rocpd_kernel_dispatch", "rocpd_region_9", "kernels", "rocpd_op"):
            run(f"CREATE VIEW {view} AS {endless}")
        run(
            'CREATE TRIGGER t INSTEAD OF INSERT ON "kernels"'
            " BEGIN SELECT load_extension('/tmp/evil.so'); END"
        )
    assert read(path).activities.num_rows == 1


def test_columns_that_are_computed_and_tables_that_are_programs_are_not_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a, b INTEGER AS (a + 41) VIRTUAL)")
        connection.execute("INSERT INTO t (a) VALUES (1)")
        connection.execute("CREATE VIRTUAL TABLE v USING fts5(body)")
        connection.commit()
    with opened(path) as database:
        batch = database.whole("t", Wanted(integers=("a", "b")))
        assert "v" not in database.tables
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([1], [ABSENT])


def test_identifiers_are_quoted(tmp_path: Path) -> None:
    name = 't"; DROP TABLE x; --'
    path = tmp_path / "a.db"
    column = "a\" FROM x; ATTACH 'y' AS z; --"
    table, of = (text.replace('"', '""') for text in (name, column))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'CREATE TABLE "{table}" ("{of}")')
        connection.execute(f'INSERT INTO "{table}" VALUES (4)')
        connection.commit()
    with opened(path) as database:
        assert database.whole(name, Wanted(integers=(column,)))[column].tolist() == [4]
    assert [one.name for one in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize("fast", [True, False])
def test_pages_that_refer_to_each_other_have_an_end(
    tmp_path: Path, fast: bool, monkeypatch: Any
) -> None:
    """Each inner page names the same page many times: rows without end, were they all read."""
    if not fast:
        monkeypatch.setattr("traceflops.parsers.io.database_scan.fast_columns", not_fast)
    path = tmp_path / "a.db"
    rows = [(number, "x" * 300) for number in range(20_000)]
    made(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a)", rows)
    data = bytearray(path.read_bytes())
    inner = [at for at in range(PAGE, len(data), PAGE) if data[at] == 5]
    for at in inner:
        cells = int.from_bytes(data[at + 3 : at + 5], "big")
        places = [
            int.from_bytes(data[at + 12 + 2 * n : at + 14 + 2 * n], "big") for n in range(cells)
        ]
        for place in places[1:]:
            data[at + place : at + place + 4] = data[at + places[0] : at + places[0] + 4]
    path.write_bytes(data)
    with opened(path) as database:
        found = database.whole("t", Wanted(integers=("id",)))["id"].tolist()
        assert database.damaged
    assert len(found) == len(set(found)) <= 20_000


def test_very_many_and_very_long_names_of_tables(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN")
        for number in range(300):
            connection.execute(f'CREATE TABLE "\x1b[31m{number}\n{"n" * 500}" (a)')
        connection.commit()
    with pytest.raises(InputError, match="an unknown SQLite database") as caught:
        read(path)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) - len(str(tmp_path)) < 300
    assert "300 total" in caught.value.message


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (("people", "orders"), r"unknown SQLite database \(tables: orders, people\)"),
        ((), "an SQLite database without tables"),
        (("compute_workload", "compute_metric_definition"), "rocprof-compute analysis database"),
        (("KERN", "OPS"), "rocprof's table names"),
    ],
)
def test_other_databases_are_called_by_their_name(
    tmp_path: Path, tables: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "trace.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (a)")
        connection.commit()
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    assert "trace.db" in caught.value.message
    assert caught.value.hint


def test_rows_are_not_said_to_be_lost_by_the_billion(tmp_path: Path) -> None:
    """Numbers of rows may be any: what lies between two of them need not have been there."""
    path = tmp_path / "a.db"
    with rocpd(path) as file:
        kernel = file.symbol("k")
        for place in range(300):
            file.add("info_node", id=1 + place * 10**7, hostname=f"host {place} " + "x" * 60)
        file.dispatch(kernel, T, T + 7)
    broken = pages_of(path, "rocpd_info_node")
    data = bytearray(path.read_bytes())
    data[(broken[2] - 1) * PAGE : broken[2] * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    (note,) = [note for note in read(path).notes if note.code == "rows-lost"]
    assert note.count is None
    assert "info_node (an unknown number)" in note.text
