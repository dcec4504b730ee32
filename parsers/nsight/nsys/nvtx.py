"""NVTX ranges and marks of a report: operators of PyTorch, and ranges of the program itself.

There are millions of texts and nearly all differ. Python strings of them would take most of the
reading time, so texts come through Arrow, stay bytes and are parsed a batch at a time. The text of
an operator (emit_nvtx) is `aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4]]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceflops.parsers.io.database_query import Batch, Lookup, Table, Wanted, quoted, select
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.io.database_scan import LONGEST_VALUE, NotFast, record_batches
from traceflops.parsers.io.json_text import UNDECODABLE
from traceflops.parsers.nsight.nsys.enums import MARK, RANGES, STACKED
from traceflops.parsers.nsight.nsys.reading import ReportReading, texts_of
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table.columns import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    Names,
    count_true,
    number_column,
    numbers,
    only_where,
    string_column,
)
from traceflops.table.grouping import distinct

_NAME: Final = "^(?P<name>.*?)(?:, (?:seq|op_id|sizes|input_op_ids) = |$)"
_SIZES: Final = ", sizes = (?P<sizes>.*?)(?:, input_op_ids = |$)"
_SEQUENCE: Final = ", seq = (?P<digits>[0-9]{1,18})"
_ID: Final = ", op_id = (?P<digits>[0-9]{1,18})"
_OPERATOR: Final = re.compile(r"[\w.]+::|\w*Backward\d*$")
"""Names of operators. Ranges of the program (`record_function`) have an op_id, too."""
_BARE: Final = re.compile(r"[a-z_]\w*")
_SIZES_TEXT: Final = re.compile(r"\[[\[\]\d, -]*\]")
_UNNAMED: Final = "(unnamed range)"
_TABLE: Final = "NVTX_EVENTS"
_COLUMNS: Final = ("start", "end", "eventType", "globalTid", "textId", "domainId")
_NCCL: Final = re.compile(r"p?nccl[A-Z]")
"""Functions of NCCL; PyTorch's own ranges around them are named `nccl:all_reduce`."""
_FITS: Final = f"octet_length({{c}}) <= {LONGEST_VALUE}"
_HAS_TEXT: Final = f"CASE WHEN typeof({{c}}) <> 'text' THEN 0 WHEN {_FITS} THEN 1 END"
"""1 if there is a text, 0 if not, null if it is too long: then `text_rows` reads row by row."""
_TEXT: Final = f"CASE WHEN typeof({{c}}) = 'text' AND {_FITS} THEN {{c}} ELSE '' END"


class OpTexts(NamedTuple):
    """Parsed texts of ranges; arrays have a value per text.

    `name` is an index in `names`, `sizes` one in `all_sizes` (-1 if a text has no sizes). A text
    without `sequence` or `op_id` has ABSENT. `is_op`: the text is that of a PyTorch operator; the
    name of any other text is the whole text.
    """

    name: IntArray
    names: list[str]
    is_op: BoolArray
    sequence: IntArray
    op_id: IntArray
    sizes: IntArray
    all_sizes: list[str | None]


def op_texts(column: pa.Array) -> OpTexts:
    """Return the parsed texts of a column."""
    column = column.cast(pa.binary())  # a file may contain invalid UTF-8
    name, names = _coded(_group(column, _NAME))
    sizes, size_texts = _coded(_group(column, _SIZES))
    sequence, op_id = _number(column, _SEQUENCE), _number(column, _ID)
    # Only operators have a sequence number or sizes. An id alone is no proof: ranges of the program
    # (`record_function`) have one, too.
    is_op = (sequence != ABSENT) | (sizes >= 0)
    # Before PyTorch 1.7 operators had no namespace (`mm, seq = 12`) and no id: add `aten::`.
    is_old = is_op & (op_id == ABSENT)
    with_namespace = np.arange(len(names))
    for index in distinct(name[is_old]).tolist():
        if _BARE.fullmatch(names[index]):
            with_namespace[index] = len(names)
            names.append(f"aten::{names[index]}")
    if len(names) > len(with_namespace):
        name = np.where(is_old, with_namespace[name], name)
    if len(names):
        is_op_name = np.array([bool(_OPERATOR.match(text)) for text in names], np.bool_)
        is_op |= (op_id != ABSENT) & is_op_name[name]
    all_sizes: list[str | None] = []
    for text in size_texts:
        try:
            is_list = _SIZES_TEXT.fullmatch(text) and msgspec.json.decode(text) is not None
        except UNDECODABLE:
            is_list = False
        all_sizes.append(text if is_list else None)
    return OpTexts(name, names, is_op, sequence, op_id, sizes, all_sizes)


def _group(column: pa.Array, pattern: str) -> pa.Array:
    """Return what the pattern's only group matches in each text, null if nothing matches."""
    match = pc.extract_regex(column, f"(?s){pattern}")
    return only_where(match.is_valid(), match.field(0))


def _number(column: pa.Array, pattern: str) -> IntArray:
    """Return the number that the pattern's group matches in each text, ABSENT if there is none."""
    digits = _group(column, pattern)
    return numbers(digits.cast(pa.string()).cast(pa.int64()), ABSENT)


def _coded(column: pa.Array) -> tuple[IntArray, list[str]]:
    """Return per row the index of its text, -1 for null, and the list of distinct texts."""
    coded = column.dictionary_encode()
    texts = [text.decode(errors="replace") for text in coded.dictionary.to_pylist()]
    return numbers(coded.indices, -1).astype(np.int64), texts


def read_nvtx(reading: ReportReading) -> list[Batch]:
    """Add operators and marks; return the marks that are ranges of NCCL, with the texts `name`."""
    registered: list[Batch] = []  # rows with the id of a text (a registered string), not a text
    nccl: list[Batch] = []
    for batch in text_rows(reading.tables):
        reading.counts["NVTX"] += batch.rows.count
        is_used = np.isin(batch.rows["eventType"], (*RANGES, MARK))
        own = batch.only(is_used & batch.has_text)
        if own.rows.count:
            nccl += _add(reading, own.rows, np.arange(own.rows.count), op_texts(own.texts))
        without_text = batch.rows.only(is_used & ~batch.has_text)
        if without_text.count:
            registered.append(without_text)
    if registered:
        ids, texts = texts_of(reading.tables, [rows["textId"] for rows in registered])
        shown = [_UNNAMED if text is None else text for text in texts]
        parsed = op_texts(string_column([*shown, _UNNAMED]))  # the last one: for ids without a text
        index_of_id = Lookup(ids, np.arange(len(ids)))
        for rows in registered:
            index = index_of_id(rows["textId"])
            reading.odd["unnamed"] += count_true(index == ABSENT)
            nccl += _add(reading, rows, np.where(index == ABSENT, len(ids), index), parsed)
    return nccl


def _add(reading: ReportReading, batch: Batch, text: IntArray, texts: OpTexts) -> Iterator[Batch]:
    """Add rows to operators and marks; yield NCCL's ranges. Row i has text `text[i]` of `texts`."""
    # Marks end when they begin, ranges that are still open with the last record.
    start, end = batch["start"], batch["end"]
    is_open = end == ABSENT
    if is_open.any():
        is_range = np.isin(batch["eventType"], RANGES)
        reading.odd["open-range"] += count_true(is_open & is_range)
        assumed_end = np.where(is_range, np.maximum(start, reading.latest_ns), start)
        end = np.where(is_open, assumed_end, end)
    columns = {"end": end, "text": text, "name": texts.name[text]}
    rows = reading.timed(batch.with_numbers(columns))
    # PyTorch's ranges of operators nest and are in the default domain.
    is_default = (rows["domainId"] == 0) | (rows["domainId"] == ABSENT)
    is_op = texts.is_op[rows["text"]] & np.isin(rows["eventType"], STACKED) & is_default
    ops, marks = rows.only(is_op), rows.only(~is_op)
    op_names, sizes = reading.builder["ops"].names, texts.sizes[ops["text"]]
    dims: dict[str, Array] = {}
    if (sizes >= 0).any():
        dims["input_dims"] = _codes(op_names["input_dims"], texts.all_sizes, sizes)
    reading.add(
        "ops",
        ops,
        name=_codes(op_names["name"], texts.names, ops["name"]),
        external_id=texts.op_id[ops["text"]],
        sequence=texts.sequence[ops["text"]],
        **dims,
    )
    mark_names = reading.builder["marks"].names
    kinds = mark_names["kind"]
    reading.add(
        "marks",
        marks,
        kind=np.where(marks["eventType"] == MARK, kinds["instant"], kinds["annotation"]),
        name=_codes(mark_names["name"], texts.names, marks["name"]),
    )
    is_nccl = np.array([bool(_NCCL.match(name)) for name in texts.names], np.bool_)
    if is_nccl.any():
        ranges = marks.only(is_nccl[marks["name"]])
        range_names: list[str | None] = [texts.names[name] for name in ranges["name"].tolist()]
        yield Batch(ranges.count, ranges.numbers, {"name": range_names})


def _codes(names: Names, texts: Sequence[str | None], indices: IntArray) -> Array:
    """Return the code in `names` of each index's text; -1 for the index -1 and the text None."""
    codes = np.full(len(texts) + 1, -1, np.int32)  # the last one, at index -1, stays -1
    for index in distinct(indices[indices >= 0]).tolist():
        text = texts[index]
        if text is not None:
            codes[index] = names[text or _UNNAMED]
    return codes[indices]


class TextRows(NamedTuple):
    """Rows of NVTX_EVENTS: the columns of numbers, and the texts, "" for a row without one."""

    rows: Batch
    texts: pa.Array
    has_text: BoolArray

    def only(self, chosen: BoolArray) -> TextRows:
        """Return the chosen rows."""
        if chosen.all():
            return self
        indices = number_column(np.flatnonzero(chosen), pa.int64())
        return TextRows(self.rows.only(chosen), self.texts.take(indices), self.has_text[chosen])


def text_rows(tables: Tables) -> Iterator[TextRows]:
    """Yield the rows of NVTX_EVENTS through Arrow while that works, and the others row by row."""
    rows_done = 0
    tables.asked.add(_TABLE)
    if isinstance(tables, Database) and "text" in tables.columns(_TABLE):
        try:
            # Read the next batch in a thread while the caller uses this one.
            with ThreadPoolExecutor(1) as pool:
                batches = _arrow_rows(tables)
                coming = pool.submit(next, batches, None)
                while (batch := coming.result()) is not None:
                    coming = pool.submit(next, batches, None)
                    rows_done += batch.rows.count
                    yield batch
            return
        except NotFast:
            pass  # read the rows after these below
    for batch_rows in tables.batches(_TABLE, Wanted(integers=_COLUMNS, texts=("text",))):
        skipped = min(rows_done, batch_rows.count)
        rows_done -= skipped
        rows = batch_rows.only(np.arange(batch_rows.count) >= skipped)
        if rows.count:
            texts = rows.texts["text"]
            has_text = np.array([text is not None for text in texts], np.bool_)
            column = string_column([text or "" for text in texts])
            yield TextRows(Batch(rows.count, rows.numbers, {}), column, has_text)


def _arrow_rows(database: Database) -> Iterator[TextRows]:
    """Yield rows through a database driver for Arrow. Raises NotFast if it is missing or fails."""
    present = [name for name in _COLUMNS if name in database.columns(_TABLE)]
    table = Table(_TABLE, dict.fromkeys(present, "INTEGER"))
    query = select(table, Wanted(integers=_COLUMNS), quick=True)
    columns, _, source = query.rpartition(" FROM ")
    text_columns = ", ".join(sql.format(c=quoted("text")) for sql in (_HAS_TEXT, _TEXT))
    for batch in record_batches(database.file.uri, f"{columns}, {text_columns} FROM {source}"):
        _, *integers, texts = batch.columns  # the first is the row number
        if texts.null_count or not pa.types.is_string(texts.type):
            raise NotFast
        if any(column.null_count or not pa.types.is_int64(column.type) for column in integers):
            raise NotFast
        *values, has_text = map(numbers, integers)
        rows = Batch(batch.num_rows, dict(zip(_COLUMNS, values, strict=True)), {})
        yield TextRows(rows, texts, has_text == 1)
