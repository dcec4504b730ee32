"""What is collected in pieces is what the table holds, however the pieces were packed."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflops.table.builder import BEYOND, TableBuilder, compact
from traceflops.table.columns import (
    ABSENT,
    batch_of,
    flag_column,
    flags,
    floats,
    numbers,
    only_where,
)
from traceflops.table.schema import TABLES, Column, arrow_schema

MOST = 2**63 - 1
EDGES = (ABSENT, ABSENT + 1, -(2**31) - 1, -(2**31), -1, 0, 1, 2**31 - 1, 2**31, MOST)
WHOLE = st.one_of(st.sampled_from(EDGES), st.integers(ABSENT, MOST), st.integers(-3, 3))
NARROW = st.one_of(st.sampled_from((-(2**31), 2**31 - 1)), st.integers(-3, 3))
TEXTS = ("aten::mm", "", "größer", "x" * 50)

Value = Any
Piece = tuple[int, dict[str, tuple[list[Value], Any]]]
"""Rows, and per column what each row holds, as a reader knows it and as it hands it in."""


def ints(values: list[Any]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def handed_in(values: list[Any], draw: st.DrawFn) -> Any:
    """Return numbers as a reader may have them: one for all, narrow, or part of something."""
    if len(set(values)) == 1 and draw(st.booleans()):
        return values[0]
    if all(-(2**31) <= one < 2**31 for one in values) and draw(st.booleans()):
        return np.array(values, dtype=np.int32)
    wide = ints([7, *values, 7])
    return wide[1:-1] if draw(st.booleans()) else ints(values)


def codes_of(column: Column, count: int, draw: st.DrawFn) -> tuple[list[Value], Any]:
    least = -1 if column.nullable else 0
    codes = draw(st.lists(st.integers(least, len(TEXTS) - 1), min_size=count, max_size=count))
    return [None if one < 0 else TEXTS[one] for one in codes], handed_in(codes, draw)


def triples_of(count: int, draw: st.DrawFn) -> tuple[list[Value], Any]:
    rows = draw(st.lists(st.tuples(WHOLE, WHOLE, WHOLE), min_size=count, max_size=count))
    fits = [all(-(2**31) <= one < 2**31 for one in row) for row in rows]
    return [list(row) if fit else None for row, fit in zip(rows, fits, strict=True)], ints(rows)


def numbers_of(column: Column, count: int, draw: st.DrawFn) -> tuple[list[Value], Any]:
    if pa.types.is_floating(column.type):
        decimals = st.floats(allow_nan=False)
        decimals = st.one_of(st.none(), decimals) if column.nullable else decimals
        values: list[Any] = draw(st.lists(decimals, min_size=count, max_size=count))
        return values, np.array(values, np.float64)
    if pa.types.is_boolean(column.type):
        of, least = st.sampled_from((0, 1, ABSENT)), 0
    elif column.type == pa.int32() and not column.nullable:
        of, least = NARROW, -(2**31)
    else:
        of, least = WHOLE, ABSENT + 1
    same = draw(st.booleans())
    many = st.lists(of, min_size=1 if same else count, max_size=1 if same else count)
    values = draw(many) * (count if same else 1)
    if not column.nullable:
        values = [max(one, least) for one in values]
    most = 2**31 - 1 if column.type == pa.int32() else MOST
    known = [one if one > ABSENT and -most - 1 <= one <= most else None for one in values]
    if pa.types.is_boolean(column.type):
        return [None if one is None else bool(one) for one in known], handed_in(values, draw)
    return known, handed_in(values, draw)


@st.composite
def collected(draw: st.DrawFn) -> tuple[str, list[Piece]]:
    """Draw a table and pieces of it, from which columns that may be null can be missing."""
    table = draw(st.sampled_from(("activities", "ops", "marks", "kernel_counters", "kernel_rules")))
    missing = draw(st.sets(st.sampled_from([c.name for c in TABLES[table] if c.nullable])))
    pieces = []
    for count in draw(st.lists(st.integers(1, 4), max_size=4)):
        columns: dict[str, tuple[list[Value], Any]] = {}
        for column in TABLES[table]:
            if column.name in missing and draw(st.integers(0, 3)):
                continue
            if pa.types.is_dictionary(column.type):
                columns[column.name] = codes_of(column, count, draw)
            elif pa.types.is_fixed_size_list(column.type):
                columns[column.name] = triples_of(count, draw)
            else:
                columns[column.name] = numbers_of(column, count, draw)
        pieces.append((count, columns))
    return table, pieces


def builder_of(table: str, pieces: list[Piece]) -> TableBuilder:
    builder = TableBuilder(table)
    for column in TABLES[table]:
        if pa.types.is_dictionary(column.type):
            builder.names[column.name].codes(TEXTS)
    for count, columns in pieces:
        builder.add(count, **{name: given for name, (_, given) in columns.items()})
    return builder


def rows_of(table: str, pieces: list[Piece]) -> list[dict[str, Value]]:
    return [
        {c.name: columns[c.name][0][row] if c.name in columns else None for c in TABLES[table]}
        for count, columns in pieces
        for row in range(count)
    ]


@given(collected(), st.randoms())
def test_a_table_holds_what_its_pieces_held(given_pieces: Any, random: Any) -> None:
    table, pieces = given_pieces
    expected = rows_of(table, pieces)
    builder = builder_of(table, pieces)
    order = random.choice([None, random.sample(range(len(expected)), len(expected))])
    found = builder.finish(None if order is None else ints(order))
    found.validate(full=True)
    assert found.schema == arrow_schema(table)
    assert found.to_pylist() == (expected if order is None else [expected[row] for row in order])


@given(collected())
def test_nulls_are_counted(given_pieces: Any) -> None:
    table, pieces = given_pieces
    found = builder_of(table, pieces).finish()
    for name in found.column_names:
        nulls = sum(row[name] is None for row in rows_of(table, pieces))
        assert found[name].null_count == nulls


@given(collected())
def test_a_column_is_as_it_was_collected(given_pieces: Any) -> None:
    table, pieces = given_pieces
    builder = builder_of(table, pieces)
    for column in TABLES[table]:
        if column.type != pa.int64():
            continue
        rows = [row[column.name] for row in rows_of(table, pieces)]
        found = builder.column(column.name)
        assert found.dtype == np.int64
        assert found.tolist() == [ABSENT if one is None else one for one in rows]


@given(collected(), st.data())
def test_a_replaced_column_is_the_new_one(given_pieces: Any, data: st.DataObject) -> None:
    table, pieces = given_pieces
    count = sum(rows for rows, _ in pieces)
    known = st.one_of(st.none(), st.integers(ABSENT + 1, MOST))
    values = data.draw(st.lists(known, min_size=count, max_size=count))
    builder = builder_of(table, pieces)
    name = next(c.name for c in TABLES[table] if c.nullable and c.type == pa.int64())
    builder.replace(name, ints([ABSENT if one is None else one for one in values]))
    assert builder.finish()[name].to_pylist() == values


@given(st.lists(WHOLE, min_size=1, max_size=9))
def test_what_is_compact_says_the_same(values: list[int]) -> None:
    packed = compact(ints(values))
    assert np.broadcast_to(packed, len(values)).tolist() == values
    if len(set(values)) == 1:
        assert packed == values[0]
        return
    assert isinstance(packed, np.ndarray)
    fits = all(-(2**31) <= one < 2**31 for one in values)
    assert packed.dtype == (np.int32 if fits else np.int64)


@pytest.mark.parametrize("values", [ints([2**40, 1, 2]), ints([1, 2, 3]), np.array([0.5, 1, 2])])
def test_what_is_compact_holds_nothing_larger(values: np.ndarray) -> None:
    packed = compact(values[:2])
    assert isinstance(packed, np.ndarray)
    assert packed.base is None


def test_rows_of_several_numbers_stay_rows() -> None:
    packed = compact(np.full((2, 3), 5, dtype=np.int64))
    assert isinstance(packed, np.ndarray)
    assert packed.tolist() == [[5, 5, 5], [5, 5, 5]]
    empty = compact(ints([]))
    assert isinstance(empty, np.ndarray)
    assert len(empty) == 0


@given(st.lists(st.lists(st.integers(-20, 20), min_size=1, max_size=4), max_size=6))
def test_pieces_are_put_in_order_where_no_two_overlap(times: list[list[int]]) -> None:
    builder = TableBuilder("calls")
    for piece in times:
        builder.add(len(piece), process=0, start_ns=ints(piece), dur_ns=0)
    builder.put_in_order("start_ns")
    found = builder.column("start_ns").tolist()
    ordered = sorted(times, key=min)
    overlap = any(max(one) >= min(two) for one, two in pairwise(ordered))
    assert found == [one for piece in (times if overlap else ordered) for one in piece]


def test_pieces_stay_where_one_does_not_have_the_column() -> None:
    builder = TableBuilder("calls")
    builder.add(1, start_ns=ints([9]), correlation=1)
    builder.add(1, correlation=2)
    builder.add(1, start_ns=ints([3]), correlation=3)
    builder.put_in_order("start_ns")
    assert builder.column("correlation").tolist() == [1, 2, 3]


def test_pieces_take_their_other_columns_with_them() -> None:
    builder = TableBuilder("calls")
    builder.add(2, start_ns=ints([MOST - 1, MOST]), correlation=ints([1, 2]))
    builder.add(1, start_ns=ints([ABSENT + 1]), correlation=3)
    builder.put_in_order("start_ns")
    assert builder.column("correlation").tolist() == [3, 1, 2]


def test_many_pieces_make_one_table() -> None:
    builder = TableBuilder("counters")
    for piece in range(2_000):
        builder.add(2, process=0, time_ns=ints([2 * piece, 2 * piece + 1]), value=piece, name=0)
    builder.names["name"].codes(["x"])
    found = builder.finish()
    assert found["time_ns"].to_pylist() == list(range(4_000))
    assert found["value"].to_pylist() == [row // 2 for row in range(4_000)]
    assert found["time_ns"].num_chunks == 1


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_table_without_rows_has_all_its_columns(table: str) -> None:
    found = TableBuilder(table).finish()
    found.validate(full=True)
    assert found.num_rows == 0
    assert found.schema == arrow_schema(table)


def test_a_finished_builder_has_given_its_columns_up() -> None:
    builder = TableBuilder("counters")
    builder.add(1, process=0, name=builder.names["name"].codes(["x"]), time_ns=5, value=1)
    builder.finish()
    assert [columns for _, columns in builder.pieces] == [{}]


def test_columns_that_hold_nothing_cannot_be_written_to() -> None:
    builder = TableBuilder("calls")
    builder.names["name"].codes(["launch"])
    builder.names["api"].codes(["runtime"])
    builder.add(3, process=0, name=0, start_ns=ints([1, 2, 3]), dur_ns=0, api=0)
    table = builder.finish()
    for name in ("thread", "dur_ns"):
        with pytest.raises(ValueError, match="read-only"):
            numbers(table[name])[0] = 1
    assert numbers(table["thread"], ABSENT).tolist() == [ABSENT] * 3
    assert numbers(table["dur_ns"]).tolist() == [0] * 3


@pytest.mark.parametrize("null", [-1, 0, ABSENT])
@pytest.mark.parametrize("arrow_type", [pa.int64(), pa.int32()])
def test_numbers_of_nulls_are_the_number_for_null(arrow_type: pa.DataType, null: int) -> None:
    column = pa.nulls(3, arrow_type)
    found = numbers(column, null)
    assert found.dtype == np.int64
    assert found.tolist() == [null] * 3
    assert not found.flags.writeable
    assert numbers(column.slice(1, 1), null).tolist() == [null]
    assert numbers(pa.chunked_array([column, column]), null).tolist() == [null] * 6
    assert numbers(column.slice(0, 0), null).tolist() == []


def test_texts_beyond_the_most_are_one_text_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceflops.table.builder.MOST_TEXTS", 1)
    builder = TableBuilder("ops")
    texts = {name: builder.names[name].codes(["a", "b", "c"]) for name in ("name", "input_dims")}
    builder.add(3, process=0, start_ns=0, dur_ns=0, **texts)
    found = builder.finish()
    assert found["name"].to_pylist() == ["a", BEYOND, BEYOND]
    assert found["input_dims"].to_pylist() == ["a", None, None]
    assert builder.overflowed == ["name", "input_dims"]


def test_a_column_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="has no column"):
        TableBuilder("calls").add(1, nonsense=1)


def test_columns_of_flags_numbers_and_texts_keep_nulls_and_slices() -> None:
    flags_and_null = pa.array([True, False, None, True] * 3)
    assert flags(flags_and_null.slice(2, 6)).tolist() == [0, 1, 1, 0, 0, 1]
    assert flags(flags_and_null.slice(0, 0)).tolist() == []
    written = flag_column(np.array([True, False] * 5))
    assert written.to_pylist() == [True, False] * 5
    rates = floats(pa.array([1.5, None, 3.0]).slice(1)).tolist()
    assert np.isnan(rates[0]) and rates[1:] == [3.0]
    kept = only_where(flag_column(np.array([False, True])), pa.array(["a", "b"]))
    assert kept.to_pylist() == [None, "b"]
    first: dict[str, int | str | None] = {"id": 2, "name": "ü", "no": None}
    rows = [first, dict.fromkeys(first)]
    assert batch_of(rows).to_pylist() == rows
