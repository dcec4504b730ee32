"""NVTX ranges and marks of a report: operators of PyTorch, and what the program itself marked.

There are millions of texts and nearly all differ: they come through Arrow and stay bytes, since as
texts of Python they would take most of all the time. An operator's text is
`aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4]]` as torch.autograd.profiler.emit_nvtx has
it: they are taken apart as bytes, all of a batch at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from traceflops.parsers.io import (
    LONGEST_VALUE,
    UNDECODABLE,
    Batch,
    Bytes,
    Database,
    Lookup,
    NotFast,
    Table,
    Wanted,
    quoted,
    record_batches,
    select,
)
from traceflops.parsers.nsight.nsys.enums import MARK, RANGES, STACKED
from traceflops.parsers.nsight.nsys.reading import ReportReading, texts_of
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    Names,
    number_column,
    numbers,
    runs,
    string_column,
)

_SEQUENCE: Final = b", seq = "
_ID: Final = b", op_id = "
_SIZES: Final = b", sizes = "
_INPUTS: Final = b", input_op_ids = "
_MOST_DIGITS: Final = 18
_OPERATOR: Final = re.compile(r"[\w.]+::|\w*Backward\d*$")
"""Names of operators. What a program itself marks (`record_function`) is written the same way."""
_BARE: Final = re.compile(r"[a-z_]\w*")
_SIZES_TEXT: Final = re.compile(r"\[[\[\]\d, -]*\]")


@dataclass(frozen=True, slots=True)
class OpTexts:
    """Texts taken apart. `name` and `sizes` are places in lists, `sizes` -1 where there are none.

    `sequence` and `op_id` are ABSENT where the text does not have them; a text that is no operator
    is all name.
    """

    name: IntArray
    names: list[str]
    is_op: BoolArray
    sequence: IntArray
    op_id: IntArray
    sizes: IntArray
    all_sizes: list[str | None]


def op_texts(column: pa.Array) -> OpTexts:
    """Return a column of texts taken apart."""
    data, offsets = _bytes(column)
    commas = np.flatnonzero(data == ord(","))
    begin, end = offsets[:-1], offsets[1:]
    at = {word: _first(data, commas, word, offsets) for word in (_SEQUENCE, _ID, _SIZES, _INPUTS)}
    name_end = end
    for place in at.values():
        name_end = np.where((place >= 0) & (place < name_end), place, name_end)
    name, names = _texts(data, begin, name_end)
    sizes, all_sizes = _sizes(data, at[_SIZES], at[_INPUTS], end)
    sequence = _number(data, at[_SEQUENCE], len(_SEQUENCE), end)
    op_id = _number(data, at[_ID], len(_ID), end)
    of_op = (op_id == ABSENT) & ((sequence != ABSENT) | (at[_SIZES] >= 0))
    name = _in_namespace(name, names, of_op)
    like_op = np.array([bool(_OPERATOR.match(a_name)) for a_name in names], dtype=np.bool_)
    is_op = (sequence != ABSENT) | (sizes >= 0)
    if len(names):
        is_op |= (op_id != ABSENT) & like_op[name]
    return OpTexts(name, names, is_op, sequence, op_id, sizes, all_sizes)


def _in_namespace(name: IntArray, names: list[str], of_op: BoolArray) -> IntArray:
    """Return the names with those of operators as all versions but the oldest write them.

    Before PyTorch 1.7 an operator had no namespace (`mm, seq = 12`), nor an id.
    """
    table = np.arange(len(names))
    for place in np.unique(name[of_op]).tolist():
        if _BARE.fullmatch(names[place]):
            table[place] = len(names)
            names.append(f"aten::{names[place]}")
    return np.where(of_op, table[name], name) if len(names) > len(table) else name


def _bytes(column: pa.Array) -> tuple[Bytes, IntArray]:
    """Return the bytes of all texts, and where each begins and the last ends."""
    _, places, content = column.buffers()
    if not len(column) or content is None:
        return np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    offsets = np.frombuffer(places, dtype=np.int32)[column.offset :][: len(column) + 1]
    return np.frombuffer(content, dtype=np.uint8), offsets.astype(np.int64)


def _first(data: Bytes, commas: IntArray, word: bytes, offsets: IntArray) -> IntArray:
    """Return where a word first stands in each text, -1 where it does not."""
    first = np.full(len(offsets) - 1, -1, dtype=np.int64)
    places = commas[commas + len(word) <= len(data)]
    for step in range(1, len(word)):
        places = places[data[places + step] == word[step]]
    text = np.searchsorted(offsets, places, side="right") - 1
    inside = (text >= 0) & (text < len(first))
    places, text = places[inside], text[inside]
    fits = places + len(word) <= offsets[text + 1]
    first[text[fits][::-1]] = places[fits][::-1]  # the first of a text is written last
    return first


def _number(data: Bytes, at: IntArray, skipped: int, end: IntArray) -> IntArray:
    """Return the number behind each place, ABSENT where there is none."""
    value = np.zeros(len(at), dtype=np.int64)
    digits = np.zeros(len(at), dtype=np.int64)
    going = np.flatnonzero(at >= 0)
    for step in range(_MOST_DIGITS):
        place = at[going] + skipped + step
        inside = place < end[going]
        going, place = going[inside], place[inside]
        digit = data[place].astype(np.int64) - ord("0")
        is_digit = (digit >= 0) & (digit <= 9)
        going = going[is_digit]
        if not len(going):
            break
        value[going] = value[going] * 10 + digit[is_digit]
        digits[going] += 1
    return np.where(digits > 0, value, ABSENT)


def _sizes(
    data: Bytes, at: IntArray, behind: IntArray, end: IntArray
) -> tuple[IntArray, list[str | None]]:
    """Return the sizes of each text, as places in a list of the JSON that they are."""
    rows = np.flatnonzero(at >= 0)
    stop = np.where(behind[rows] > at[rows], behind[rows], end[rows])
    codes, texts = _texts(data, at[rows] + len(_SIZES), stop)
    places = np.full(len(at), -1, dtype=np.int64)
    places[rows] = codes
    return places, [text if _is_sizes(text) else None for text in texts]


def _is_sizes(text: str) -> bool:
    if not _SIZES_TEXT.fullmatch(text):
        return False
    try:
        msgspec.json.decode(text)
    except UNDECODABLE:
        return False
    return True


def _texts(data: Bytes, begin: IntArray, end: IntArray) -> tuple[IntArray, list[str]]:
    """Return parts of the bytes as places in a list of the distinct ones."""
    if not len(begin):
        return np.empty(0, np.int64), []
    places, _ = runs(begin, end)
    ends = np.append(0, np.cumsum(end - begin))
    if int(ends[-1]) >= 2**31:
        raise ValueError("a batch of texts is too large")
    content = pa.py_buffer(np.ascontiguousarray(data[places]))
    parts = [None, pa.py_buffer(ends.astype(np.int32)), content]
    # As bytes, since not every text in a file is one; what is none is mended when it is decoded.
    column = pa.Array.from_buffers(pa.binary(), len(begin), parts).dictionary_encode()
    return numbers(column.indices), [
        one.decode(errors="replace") for one in column.dictionary.to_pylist()
    ]


_UNNAMED: Final = "(unnamed range)"
_TABLE: Final = "NVTX_EVENTS"
_COLUMNS: Final = ("start", "end", "eventType", "globalTid", "textId", "domainId")
_NCCL: Final = re.compile(r"p?nccl[A-Z]")
"""Functions of NCCL; PyTorch's own ranges around them are named `nccl:all_reduce`."""
T = TypeVar("T")
_FITS: Final = f"octet_length({{c}}) <= {LONGEST_VALUE}"
_HAS_TEXT: Final = f"CASE WHEN typeof({{c}}) <> 'text' THEN 0 WHEN {_FITS} THEN 1 END"
"""Null of a text that is too long, which the careful way then deals with."""
_TEXT: Final = f"CASE WHEN typeof({{c}}) = 'text' AND {_FITS} THEN {{c}} ELSE '' END"


def read_nvtx(reading: ReportReading) -> list[Batch]:
    """Add operators and marks; return the ranges of NCCL, which are among the marks.

    Their names are the texts `name`.
    """
    registered: list[Batch] = []
    nccl: list[Batch] = []
    for batch in text_rows(reading.tables, _TABLE, _COLUMNS, "text"):
        reading.counts["NVTX"] += batch.rows.count
        known = np.isin(batch.rows["eventType"], (*RANGES, MARK))
        own = batch.only(known & batch.has_text)
        if own.rows.count:
            nccl += _add(reading, own.rows, np.arange(own.rows.count), op_texts(own.texts))
        others = batch.rows.only(known & ~batch.has_text)
        registered += [others] if others.count else []
    if registered:
        nccl += _add_registered(reading, registered)
    return nccl


def _add_registered(reading: ReportReading, batches: Sequence[Batch]) -> Iterator[Batch]:
    """Add rows whose texts stand in the table of texts; of some the text is not there."""
    ids, texts = texts_of(reading.tables, [batch["textId"] for batch in batches])
    shown = [_UNNAMED if text is None else text for text in texts]
    parsed = op_texts(string_column([*shown, _UNNAMED]))
    place = Lookup(ids, np.arange(len(ids)))
    for batch in batches:
        row = place(batch["textId"])
        reading.odd["unnamed"] += int(np.count_nonzero(row == ABSENT))
        yield from _add(reading, batch, np.where(row == ABSENT, len(ids), row), parsed)


def _add(reading: ReportReading, batch: Batch, text: IntArray, texts: OpTexts) -> Iterator[Batch]:
    """Add rows by the places of their texts, which were taken apart; give the ranges of NCCL."""
    own = {"end": _ends(reading, batch), "text": text, "name": texts.name[text]}
    rows = reading.timed(Batch(batch.count, {**batch.numbers, **own}, {}))
    # A domain of its own is not PyTorch's: it marks its operators in the default one.
    default = (rows["domainId"] == 0) | (rows["domainId"] == ABSENT)
    is_op = texts.is_op[rows["text"]] & np.isin(rows["eventType"], STACKED) & default
    _add_ops(reading, rows.only(is_op), texts)
    _add_marks(reading, rows.only(~is_op), texts)
    nccl = np.array([bool(_NCCL.match(name)) for name in texts.names], dtype=np.bool_)
    if nccl.any():
        mine = rows.only(~is_op & nccl[rows["name"]])
        names: list[str | None] = [texts.names[place] for place in mine["name"].tolist()]
        yield Batch(mine.count, mine.numbers, {"name": names})


def _ends(reading: ReportReading, batch: Batch) -> IntArray:
    """Return where rows end: marks where they begin, open ranges at the latest time known."""
    start, end = batch["start"], batch["end"]
    is_open = end == ABSENT
    if not is_open.any():
        return end
    is_range = np.isin(batch["eventType"], RANGES)
    reading.odd["open-range"] += int(np.count_nonzero(is_open & is_range))
    last = np.where(is_range, np.maximum(start, reading.latest_ns), start)
    return np.where(is_open, last, end)


def _add_ops(reading: ReportReading, rows: Batch, texts: OpTexts) -> None:
    names, text = reading.gathered["ops"].names, rows["text"]
    sizes = texts.sizes[text]
    columns: dict[str, Array] = {}
    if (sizes >= 0).any():
        columns["input_dims"] = _codes(names["input_dims"], texts.all_sizes, sizes)
    reading.add(
        "ops",
        rows,
        name=_codes(names["name"], texts.names, rows["name"]),
        external_id=texts.op_id[text],
        sequence=texts.sequence[text],
        **columns,
    )


def _add_marks(reading: ReportReading, rows: Batch, texts: OpTexts) -> None:
    names = reading.gathered["marks"].names
    kinds = names["kind"]
    is_mark = rows["eventType"] == MARK
    reading.add(
        "marks",
        rows,
        kind=np.where(is_mark, kinds["instant"], kinds["annotation"]),
        name=_codes(names["name"], texts.names, rows["name"]),
    )


def _codes(names: Names, texts: Sequence[str | None], places: IntArray) -> Array:
    """Return the codes of texts among names, given by their places; -1 where there is none."""
    table = np.full(len(texts) + 1, -1, dtype=np.int32)
    for place in np.unique(places[places >= 0]).tolist():
        text = texts[place]
        if text is not None:
            table[place] = names[text or _UNNAMED]
    return table[places]


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows as numbers, and their texts: an Arrow column, "" where there is none."""

    rows: Batch
    texts: pa.Array
    has_text: BoolArray

    def only(self, chosen: BoolArray) -> TextRows:
        """Return some of the rows."""
        if chosen.all():
            return self
        places = number_column(np.flatnonzero(chosen), pa.int64())
        return TextRows(self.rows.only(chosen), self.texts.take(places), self.has_text[chosen])


def text_rows(
    tables: Tables, table: str, integers: tuple[str, ...], text: str
) -> Iterator[TextRows]:
    """Give the rows of a table some at a time, with some of its columns and one text."""
    done = 0
    tables.asked.add(table)
    if isinstance(tables, Database) and text in tables.columns(table):
        try:
            for some in _ahead(_fast(tables, table, integers, text)):
                done += some.rows.count
                yield some
            return
        except NotFast:
            pass  # the careful way goes on behind the last rows
    for batch in tables.batches(table, Wanted(integers=integers, texts=(text,))):
        skipped = min(done, batch.count)
        done -= skipped
        rows = batch.only(np.arange(batch.count) >= skipped)
        if rows.count:
            texts = rows.texts[text]
            has_text = np.array([a_text is not None for a_text in texts], dtype=np.bool_)
            column = string_column([a_text or "" for a_text in texts])
            yield TextRows(Batch(rows.count, rows.numbers, {}), column, has_text)


def _fast(
    database: Database, table: str, integers: tuple[str, ...], text: str
) -> Iterator[TextRows]:
    """Give rows as the driver does. Raises NotFast where it is missing or an error occurs."""
    there = database.columns(table)
    known = Table(table, {name: "INTEGER" for name in integers if name in there})
    plain = select(known, Wanted(integers=integers), quick=True)
    columns, _, rest = plain.rpartition(" FROM ")
    own = ", ".join(one.format(c=quoted(text)) for one in (_HAS_TEXT, _TEXT))
    for batch in record_batches(database.place.uri, f"{columns}, {own} FROM {rest}"):
        _, *read, texts = batch.columns
        if texts.null_count or not pa.types.is_string(texts.type):
            raise NotFast
        *values, has_text = map(_integers, read)
        rows = Batch(batch.num_rows, dict(zip(integers, values, strict=True)), {})
        yield TextRows(rows, texts, has_text == 1)


def _integers(column: pa.Array) -> Any:
    if column.null_count or not pa.types.is_int64(column.type):
        raise NotFast
    return numbers(column)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Give what an iterator gives, of which the next is made while one is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
