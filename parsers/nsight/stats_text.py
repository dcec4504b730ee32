"""Turns what `nsys stats` prints into plain CSV: removes messages, converts console tables.

A line of dashes shows where the columns of a console table are. Numbers have the marks for
decimals and thousands of the user's locale.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct, field

from traceflops.errors import InputError
from traceflops.parsers.io.csv_cells import decimal_mark, is_number, plain_decimal
from traceflops.parsers.io.csv_lines import Bytes
from traceflops.parsers.io.csv_text import Plan, Tables, header_in
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.nsight.stats_layouts import unit_in_title, with_unit

_MESSAGES: Final = re.compile(
    rb"(?:Processing \[|Generating |NOTICE: |NOTE: |WARNING: |ERROR: |SKIPPED: |Exporting \["
    rb"|Running \[|Using \S+ for SQL|Try |\s+It is assumed|\s+Consider using|\[\d+/\d+\]"
    rb"|\s*\*\* |==\w+==|Report |\s*\Z"
    rb"|\s*(?:CUDA (?:API|Kernel|Memory)|NVTX|Operating System) [^,;\t]*\Z)"
)
_BEGINNINGS: Final = (
    *(b"Proc", b"Gene", b"NOTI", b"NOTE", b"WARN", b"ERRO", b"SKIP", b"Expo", b"Runn", b"Usin"),
    *(b"Try ", b"Repo", b"    ", b" ** ", b"** C", b"** N", b"** O", b"==PR", b"==WA", b"==ER"),
    *(b"CUDA", b"NVTX", b"Oper", b"[1/1", b"[1/2", b"[2/2"),
)
_PRINTED: Final = _BEGINNINGS, _MESSAGES
"""Lines that nsys prints between its tables: their first four bytes, and their pattern."""
_MARKED: Final = (b"==PR", b"==WA", b"==ER", b"==LO", b"==IN"), re.compile(rb"==[A-Z]+==")
"""Lines that ncu prints between its tables."""
_NUMBER_CELL: Final = re.compile(rb'(?:^|[,;\t])"?-?\d[\d.]*"?(?=[,;\t\r\n]|\Z)')
_SEPARATORS: Final = (",", ";", "\t")
_HEADER_LINES: Final = 400
"""The first header must be in this many lines at the beginning."""
_RULE: Final = re.compile(
    r"[\s+|]*(?:-{2,}[\s+|]+)+-{2,}[\s+|]*\Z|[\s+|]*(?:={2,}[\s+|]+)+={2,}[\s+|]*\Z", re.ASCII
)
"""Lines of at least two runs of dashes. To allow a single run would take quadratic time."""
_DASHES: Final = re.compile(r"[-=]+")
_TITLE: Final = re.compile(r"\s*\*\* ([^*]{1,200}?)\s*(?::\s*)?")
_TITLED: Final = re.compile(
    rb"(\((?:by )?\w{1,20} in \w{1,20}\)[^\n,;\t]{0,99}\n(?:[ \r]{0,9}\n)?)([^\r\n]{1,2000})", re.I
)
"""The part of a title that states a unit, and the line below it."""
_BETWEEN: Final = re.compile(r"[\s|;]+|,(?!\d)|(?<!\d),")
"""Separates the cells of an unknown table; a comma between digits is part of a number."""
_OBJECTS: Final = re.compile(r"\s*\[\s*(?=\{)")
_Cell = str | int | float | None
Filter = Callable[[ByteSource], Iterator[bytes]]


class Filtered(ByteSource):
    """A source whose content passes through `filter` before it is read."""

    __slots__ = ("_filter", "_inner")

    def __init__(self, inner: ByteSource, filter_: Filter) -> None:
        super().__init__(inner.name, inner.opener, inner.stored_bytes, inner.path, inner.folder)
        self._inner, self._filter = inner, filter_

    def blocks(self) -> Iterator[bytes]:
        """Yield the filtered content."""
        yield from self._filter(self._inner)
        self.cut = self._inner.cut


def from_header(source: ByteSource, tables: Tables) -> Filtered:
    """Return the source from its first header on, without lines of ncu's log."""

    def blocks(inner: ByteSource) -> Iterator[bytes]:
        lines = whole_lines(inner)
        first = next(lines, b"").removeprefix(codecs.BOM_UTF8)
        header = first_header(first, tables) or 0
        for block in chain([first[header:]], lines):
            yield _without_messages(block, *_MARKED)

    return Filtered(source, blocks)


def json_header(head: bytes) -> bytes:
    """Return the header that the CSV of a report in JSON would have; b"" for other text."""
    text = head.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    if (begin := _OBJECTS.match(text)) is None:
        return b""
    try:
        first, _ = json.JSONDecoder().raw_decode(text, begin.end())
    except (ValueError, RecursionError):
        return b""
    return csv_line(list(first)) if first else b""


def _from_json(source: ByteSource) -> Iterator[bytes]:
    """Yield a report that nsys stats wrote as JSON, a list of objects, as CSV."""
    try:
        text = b"".join(source.blocks()).removeprefix(codecs.BOM_UTF8)
        rows = msgspec.json.decode(text, type=list[dict[str, _Cell]])
    except msgspec.DecodeError as error:
        raise InputError(
            f"damaged or cut off: {source.label} ({error})", "write it again, or as CSV"
        ) from None
    keys = list(rows[0]) if rows else []
    yield csv_line(keys)
    for row in rows:
        values = (row.get(key) for key in keys)
        yield csv_line(["" if value is None else str(value) for value in values])


def as_csv(source: ByteSource) -> ByteSource:
    """Return the source, of a report in JSON as CSV."""
    return Filtered(source, _from_json) if json_header(source.head()) else source


def whole_lines(source: ByteSource) -> Iterator[bytes]:
    """Yield the content in blocks of whole lines; the last line may lack its line end."""
    unfinished = b""  # a line whose end is in a later block
    for block in source.blocks():
        text = unfinished + block
        stop = text.rfind(b"\n") + 1
        if stop:
            yield text[:stop]
        unfinished = text[stop:]
        if len(unfinished) > (8 << 20):  # no line of a table is so long
            yield unfinished
            unfinished = b""
    if unfinished:
        yield unfinished


def plain_tables(blocks: Iterator[bytes], console: Console, _source: ByteSource) -> Iterator[bytes]:
    """Yield blocks of whole lines as CSV that has nothing but tables.

    A text with a CSV header near its beginning is CSV; any other has the tables of a console.
    """
    beginning = b""
    for block in blocks:
        beginning += block
        if len(beginning) >= (1 << 17):
            break
    beginning = _with_units(beginning)
    header = first_header(beginning, console.tables)
    if header is not None:
        console.title = ""  # the table below the title is known: it is no unread one
    for block in chain([beginning[header:]], map(_with_units, blocks)):
        if header is None:
            yield from console.rows(block)
        else:
            yield _without_messages(block, *_PRINTED)


def _with_units(text: bytes) -> bytes:
    """Return lines of CSV in which each header below a title gets the unit of that title."""

    def with_units_of(match: re.Match[bytes]) -> bytes:
        """Return a title and its header with units; both unchanged if it is no such header."""
        title, header = (part.decode(errors="replace") for part in match.groups())
        unit = unit_in_title(title)
        separator = next((mark for mark in _SEPARATORS if mark.encode() in match[2]), None)
        if unit is None or separator is None:
            return match[0]
        cells = [cell.strip('"') for cell in header.split(separator)]
        return match[1] + separator.join(with_unit(cells, unit)).encode()

    return _TITLED.sub(with_units_of, text) if b" in " in text else text  # all such titles have it


def first_header(text: bytes, tables: Tables) -> int | None:
    """Return the offset of the first CSV header of one of `tables`, None if there is none."""
    begin = 0
    for line in text.split(b"\n", _HEADER_LINES)[:_HEADER_LINES]:
        has_cells = any(mark.encode() in line for mark in _SEPARATORS)
        if has_cells and header_in(line.removesuffix(b"\r"), tables, _SEPARATORS, 0):
            return begin
        begin += len(line) + 1
    return None


def _without_messages(
    text: bytes, beginnings: Sequence[bytes], messages: re.Pattern[bytes]
) -> bytes:
    """Return the lines of `text` that are no messages.

    A message begins with one of `beginnings` (four bytes each), matches the pattern `messages` and
    is no row of a table. The four bytes are compared in all lines at once, as most lines are rows.
    """
    data: Bytes = np.frombuffer(text, np.uint8)
    if not len(data):
        return text
    padded = np.append(data, np.frombuffer(b"\n\0\0\0", np.uint8))  # the last line may be short
    line_ends = np.flatnonzero(data == ord("\n"))
    starts = np.append(0, line_ends[line_ends < len(data) - 1] + 1)
    first_four = np.zeros(len(starts), np.int64)  # of each line, as a number
    for byte in range(4):
        first_four = first_four << 8 | padded[starts + byte]
    may_be_message = np.isin(first_four, [int.from_bytes(four, "big") for four in beginnings])
    ends = np.append(starts[1:], len(text))
    kept, kept_from = [], 0
    for line in np.flatnonzero(may_be_message).tolist():
        begin, end = int(starts[line]), int(ends[line])
        if messages.match(text, begin, end) and not is_row(text[begin:end]):
            kept.append(text[kept_from:begin])
            kept_from = end
    return b"".join([*kept, text[kept_from:]]) if kept_from else text


def is_row(line: bytes) -> bool:
    """Return whether a line is a row of a table: at least two of its cells are numbers."""
    return len(list(islice(_NUMBER_CELL.finditer(line), 2))) == 2


class Console(Struct):
    """Turns console tables into rows of CSV, line by line.

    `unread` are the titles of tables that have rows but no known header. `plan` and `columns` are
    of the current table: what to read, and where in a line each column begins and ends.
    `line_before` is the last line that is no line of dashes, `mark` the decimal mark, `title` and
    `unit` those of the last title.
    """

    tables: Tables
    line_before: str = ""
    columns: tuple[tuple[int, int], ...] = ()
    plan: Plan | None = None
    mark: str | None = None
    title: str = ""
    unit: str | None = None
    unread: list[str] = field(default_factory=list)
    _has_rows: bool = False

    def begin(self, title: str) -> None:
        """Begin the part below a title ("" at the end); add the last title to `unread` if it is."""
        if self.title and self._has_rows and len(self.unread) < 100:
            self.unread.append(self.title)
        self.title, self._has_rows, self.plan, self.line_before = title, False, None, ""

    def rows(self, text: bytes) -> Iterator[bytes]:
        """Yield the tables in some lines as CSV: a header, then the rows."""
        lines = text.decode(errors="replace").splitlines()
        self.mark = self.mark or decimal_mark(cell for line in lines for cell in line.split())
        for line in lines:
            if _RULE.match(line):
                if self.line_before.strip():
                    yield from self._header(line)
                continue
            self.unit = unit_in_title(line) or self.unit
            title = _TITLE.fullmatch(line) if "**" in line else None
            if title is not None:
                self.begin(title[1])
            elif self.plan is None:
                # Outside of known tables, a line with two numbers is a row of an unknown one.
                cells = _BETWEEN.split(line[:1000]) if self.title else ()
                is_row_of_unknown = sum(is_number(cell.strip('"')) for cell in cells) > 1
                self._has_rows = self._has_rows or is_row_of_unknown
            elif not line.strip():
                self.plan = None
            else:
                yield from self._row(line, self.plan)
            self.line_before = line

    def _header(self, rule: str) -> Iterator[bytes]:
        """Begin the table whose header is above `rule`, a line of dashes, if known; yield it."""
        header = self.line_before
        columns = tuple(dashes.span() for dashes in _DASHES.finditer(rule))
        if "|" in header:
            names = [cell.strip() for cell in header.strip().strip("|").split("|")]
        else:
            names = re.split(r"\s{2,}", header.strip())
            if len(names) != len(columns):  # names close together, or missing: cut at the dashes
                names = [header[begin:end].strip() for begin, end in columns]
        names = with_unit(names, self.unit)
        self.unit = None  # a title is for one table
        plan = self.tables.of_header(names)
        self.line_before = ""
        if plan is not None:
            self.plan, self.columns, self.title = plan, columns, ""
            yield csv_line(names)

    def _row(self, line: str, plan: Plan) -> Iterator[bytes]:
        """Yield a line of the current table as CSV; nothing if it is no row of it."""
        if line.lstrip().startswith("|"):
            columns = len(self.columns)
            cells = [cell.strip() for cell in line.strip().strip("|").split("|", columns - 1)]
        else:  # each cell goes up to the next column, the last to the end of the line
            ends = [*(begin for begin, _ in self.columns[1:]), len(line)]
            starts = [0, *ends[:-1]]
            cells = [line[begin:end].strip() for begin, end in zip(starts, ends, strict=True)]
        # Every row has a cell that begins with a digit; a title or a continued name has none.
        if len(cells) != plan.columns or not any(cell[:1].isdigit() for cell in cells):
            return
        for column in plan.fields.values():
            cell = cells[column.place]
            if column.kind == "integer" and is_number(cell):
                cells[column.place] = re.sub(r"[^\d-]", "", cell)
            elif column.kind == "number" and is_number(cell):
                cells[column.place] = plain_decimal(cell, comma=self.mark == ",")
        yield csv_line(cells)


def csv_line(cells: Sequence[str]) -> bytes:
    """Return a line of CSV with all cells in quotes."""
    return (
        ",".join('"' + cell.replace('"', '""') + '"' for cell in cells).encode(errors="replace")
        + b"\n"
    )
