"""NVTX ranges and marks of a report: operators of PyTorch, and ranges of the program itself.

There are millions of texts and nearly all differ: they come through Arrow and stay bytes, since
Python strings would take most of the reading time. An operator's text is
`aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4]]`, as torch.autograd.profiler.emit_nvtx
writes it; the texts of a batch are parsed as bytes, all at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from traceflops.parsers.io.csv_lines import Bytes
from traceflops.parsers.io.database_query import Batch, Lookup, Table, Wanted, quoted, select
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.database_scan import LONGEST_VALUE, NotFast, record_batches
from traceflops.parsers.io.json_window import UNDECODABLE
from traceflops.parsers.nsight.nsys.enums import MARK, RANGES, STACKED
from traceflops.parsers.nsight.nsys.reading import ReportReading, texts_of
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table.columns import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    Names,
    number_column,
    numbers,
    string_column,
)
from traceflops.table.grouping import runs

_SEQUENCE: Final = b", seq = "
_ID: Final = b", op_id = "
_SIZES: Final = b", sizes = "
_INPUTS: Final = b", input_op_ids = "
_MOST_DIGITS: Final = 18
_OPERATOR: Final = re.compile(r"[\w.]+::|\w*Backward\d*$")
"""Names of operators. What a program itself marks (`record_function`) is written the same way."""
_BARE: Final = re.compile(r"[a-z_]\w*")
_SIZES_TEXT: Final = re.compile(r"\[[\[\]\d, -]*\]")


_UNNAMED: Final = "(unnamed range)"
_TABLE: Final = "NVTX_EVENTS"
_COLUMNS: Final = ("start", "end", "eventType", "globalTid", "textId", "domainId")
_NCCL: Final = re.compile(r"p?nccl[A-Z]")
"""Functions of NCCL; PyTorch's own ranges around them are named `nccl:all_reduce`."""
_FITS: Final = f"octet_length({{c}}) <= {LONGEST_VALUE}"
_HAS_TEXT: Final = f"CASE WHEN typeof({{c}}) <> 'text' THEN 0 WHEN {_FITS} THEN 1 END"
"""Null of a text that is too long, which the careful way then reads."""
_TEXT: Final = f"CASE WHEN typeof({{c}}) = 'text' AND {_FITS} THEN {{c}} ELSE '' END"


@dataclass(frozen=True, slots=True)
class OpTexts:
    """Parsed texts, per text. `name` and `sizes` are indices of `names` and `all_sizes`.

    `sizes` is -1 where there are none; `sequence` and `op_id` are ABSENT where the text does not
    have them. A text that is no operator is all name.
    """

    name: IntArray
    names: list[str]
    is_op: BoolArray
    sequence: IntArray
    op_id: IntArray
    sizes: IntArray
    all_sizes: list[str | None]


def op_texts(column: pa.Array) -> OpTexts:
    """Return a column of texts, parsed."""
    data: Bytes = np.empty(0, np.uint8)
    offsets = np.zeros(len(column) + 1, np.int64)
    _, places, content = column.buffers()
    if len(column) and content is not None:
        data = np.frombuffer(content, dtype=np.uint8)
        small = np.frombuffer(places, dtype=np.int32)[column.offset :][: len(column) + 1]
        offsets = small.astype(np.int64)
    commas = np.flatnonzero(data == ord(","))
    begin, end = offsets[:-1], offsets[1:]
    at = {word: _first(data, commas, word, offsets) for word in (_SEQUENCE, _ID, _SIZES, _INPUTS)}
    name_end = end
    for offset in at.values():
        name_end = np.where((offset >= 0) & (offset < name_end), offset, name_end)
    name, names = _distinct(data, begin, name_end)
    sequence = _number(data, at[_SEQUENCE], len(_SEQUENCE), end)
    op_id = _number(data, at[_ID], len(_ID), end)
    # Before PyTorch 1.7 an operator had no namespace (`mm, seq = 12`), nor an id.
    is_old = (op_id == ABSENT) & ((sequence != ABSENT) | (at[_SIZES] >= 0))
    with_namespace = np.arange(len(names))
    for index in np.unique(name[is_old]).tolist():
        if _BARE.fullmatch(names[index]):
            with_namespace[index] = len(names)
            names.append(f"aten::{names[index]}")
    if len(names) > len(with_namespace):
        name = np.where(is_old, with_namespace[name], name)
    rows = np.flatnonzero(at[_SIZES] >= 0)
    sizes_at, inputs_at = at[_SIZES][rows], at[_INPUTS][rows]
    sizes_end = np.where(inputs_at > sizes_at, inputs_at, end[rows])
    codes, texts = _distinct(data, sizes_at + len(_SIZES), sizes_end)
    sizes = np.full(len(begin), -1, dtype=np.int64)
    sizes[rows] = codes
    is_op = (sequence != ABSENT) | (sizes >= 0)
    if len(names):
        like_op = np.array([bool(_OPERATOR.match(text)) for text in names], dtype=np.bool_)
        is_op |= (op_id != ABSENT) & like_op[name]
    all_sizes = [text if _is_sizes(text) else None for text in texts]
    return OpTexts(name, names, is_op, sequence, op_id, sizes, all_sizes)


def _first(data: Bytes, commas: IntArray, word: bytes, offsets: IntArray) -> IntArray:
    """Return the offset at which a word first stands in each text, -1 where it does not."""
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
    """Return the number behind each offset, ABSENT where there is none."""
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


def _is_sizes(text: str) -> bool:
    if not _SIZES_TEXT.fullmatch(text):
        return False
    try:
        msgspec.json.decode(text)
    except UNDECODABLE:
        return False
    return True


def _distinct(data: Bytes, begin: IntArray, end: IntArray) -> tuple[IntArray, list[str]]:
    """Return parts of the bytes as indices of a list of the distinct ones."""
    if not len(begin):
        return np.empty(0, np.int64), []
    places, _ = runs(begin, end)
    ends = np.append(0, np.cumsum(end - begin))
    if int(ends[-1]) >= 2**31:
        raise ValueError("a batch of texts is too large")
    content = pa.py_buffer(np.ascontiguousarray(data[places]))
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), content]
    # As bytes, since a file may hold invalid UTF-8; it is replaced when it is decoded.
    column = pa.Array.from_buffers(pa.binary(), len(begin), buffers).dictionary_encode()
    texts = [text.decode(errors="replace") for text in column.dictionary.to_pylist()]
    return numbers(column.indices), texts


def read_nvtx(reading: ReportReading) -> list[Batch]:
    """Add operators and marks; return the ranges of NCCL, with their names as texts `name`.

    They are among the marks, too.
    """
    registered: list[Batch] = []
    nccl: list[Batch] = []
    for batch in text_rows(reading.tables):
        reading.counts["NVTX"] += batch.rows.count
        is_used = np.isin(batch.rows["eventType"], (*RANGES, MARK))
        own = batch.only(is_used & batch.has_text)
        if own.rows.count:
            nccl += _add(reading, own.rows, np.arange(own.rows.count), op_texts(own.texts))
        others = batch.rows.only(is_used & ~batch.has_text)
        registered += [others] if others.count else []
    if registered:
        # Their texts stand in the table of texts; some may not be there.
        ids, texts = texts_of(reading.tables, [batch["textId"] for batch in registered])
        shown = [_UNNAMED if text is None else text for text in texts]
        parsed = op_texts(string_column([*shown, _UNNAMED]))
        row_of = Lookup(ids, np.arange(len(ids)))
        for rows in registered:
            row = row_of(rows["textId"])
            reading.odd["unnamed"] += int(np.count_nonzero(row == ABSENT))
            nccl += _add(reading, rows, np.where(row == ABSENT, len(ids), row), parsed)
    return nccl


def _add(reading: ReportReading, batch: Batch, text: IntArray, texts: OpTexts) -> Iterator[Batch]:
    """Add rows to operators and marks; yield the ranges of NCCL. Row i has text `text[i]`."""
    start, end = batch["start"], batch["end"]
    is_open = end == ABSENT
    if is_open.any():
        # Marks end where they begin, open ranges at the latest time known.
        is_range = np.isin(batch["eventType"], RANGES)
        reading.odd["open-range"] += int(np.count_nonzero(is_open & is_range))
        last = np.where(is_range, np.maximum(start, reading.latest_ns), start)
        end = np.where(is_open, last, end)
    own = {"end": end, "text": text, "name": texts.name[text]}
    rows = reading.timed(batch.with_numbers(own))
    # PyTorch marks its operators in the default domain.
    is_default = (rows["domainId"] == 0) | (rows["domainId"] == ABSENT)
    is_op = texts.is_op[rows["text"]] & np.isin(rows["eventType"], STACKED) & is_default
    ops, marks = rows.only(is_op), rows.only(~is_op)
    names, sizes = reading.gathered["ops"].names, texts.sizes[ops["text"]]
    columns: dict[str, Array] = {}
    if (sizes >= 0).any():
        columns["input_dims"] = _codes(names["input_dims"], texts.all_sizes, sizes)
    reading.add(
        "ops",
        ops,
        name=_codes(names["name"], texts.names, ops["name"]),
        external_id=texts.op_id[ops["text"]],
        sequence=texts.sequence[ops["text"]],
        **columns,
    )
    names = reading.gathered["marks"].names
    kinds = names["kind"]
    reading.add(
        "marks",
        marks,
        kind=np.where(marks["eventType"] == MARK, kinds["instant"], kinds["annotation"]),
        name=_codes(names["name"], texts.names, marks["name"]),
    )
    is_nccl = np.array([bool(_NCCL.match(name)) for name in texts.names], dtype=np.bool_)
    if is_nccl.any():
        ranges = marks.only(is_nccl[marks["name"]])
        range_names: list[str | None] = [texts.names[name] for name in ranges["name"].tolist()]
        yield Batch(ranges.count, ranges.numbers, {"name": range_names})


def _codes(names: Names, texts: Sequence[str | None], indices: IntArray) -> Array:
    """Return codes of texts in a column's names, given their indices; -1 where there is none."""
    codes = np.full(len(texts) + 1, -1, dtype=np.int32)
    for index in np.unique(indices[indices >= 0]).tolist():
        text = texts[index]
        if text is not None:
            codes[index] = names[text or _UNNAMED]
    return codes[indices]


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


def text_rows(tables: Tables) -> Iterator[TextRows]:
    """Yield the ranges and marks some at a time, with their own texts."""
    done = 0
    tables.asked.add(_TABLE)
    if isinstance(tables, Database) and "text" in tables.columns(_TABLE):
        try:
            # The next rows are read while these are used.
            with ThreadPoolExecutor(1) as pool:
                batches = _fast(tables)
                coming = pool.submit(next, batches, None)
                while (batch := coming.result()) is not None:
                    coming = pool.submit(next, batches, None)
                    done += batch.rows.count
                    yield batch
            return
        except NotFast:
            pass  # the careful way goes on behind the last rows
    for rows in tables.batches(_TABLE, Wanted(integers=_COLUMNS, texts=("text",))):
        skipped = min(done, rows.count)
        done -= skipped
        rest = rows.only(np.arange(rows.count) >= skipped)
        if rest.count:
            texts = rest.texts["text"]
            has_text = np.array([value is not None for value in texts], dtype=np.bool_)
            column = string_column([value or "" for value in texts])
            yield TextRows(Batch(rest.count, rest.numbers, {}), column, has_text)


def _fast(database: Database) -> Iterator[TextRows]:
    """Yield rows as the driver gives them. Raises NotFast where it is missing or fails."""
    present = [name for name in _COLUMNS if name in database.columns(_TABLE)]
    table = Table(_TABLE, dict.fromkeys(present, "INTEGER"))
    plain = select(table, Wanted(integers=_COLUMNS), quick=True)
    columns, _, rest = plain.rpartition(" FROM ")
    own = ", ".join(sql.format(c=quoted("text")) for sql in (_HAS_TEXT, _TEXT))
    for batch in record_batches(database.file.uri, f"{columns}, {own} FROM {rest}"):
        _, *read, texts = batch.columns
        if texts.null_count or not pa.types.is_string(texts.type):
            raise NotFast
        if any(column.null_count or not pa.types.is_int64(column.type) for column in read):
            raise NotFast
        *values, has_text = map(numbers, read)
        rows = Batch(batch.num_rows, dict(zip(_COLUMNS, values, strict=True)), {})
        yield TextRows(rows, texts, has_text == 1)
