"""Turns what `nsys stats` prints into plain CSV: removes messages, converts console tables.

A line of dashes shows the columns of a console table; numbers are printed as in some country.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

import numpy as np
from msgspec import Struct, field

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
"""The first header must be in so many lines at the beginning."""
_RULE: Final = re.compile(
    r"[\s+|]*(?:-{2,}[\s+|]+)+-{2,}[\s+|]*\Z|[\s+|]*(?:={2,}[\s+|]+)+={2,}[\s+|]*\Z", re.ASCII
)
"""At least two runs of dashes; a pattern that matches a single run, too, takes quadratic time."""
_DASHES: Final = re.compile(r"[-=]+")
_TITLE: Final = re.compile(r"\s*\*\* ([^*]{1,200}?)\s*(?::\s*)?")
_TITLED: Final = re.compile(
    rb"(\((?:by )?\w{1,20} in \w{1,20}\)[^\n,;\t]{0,99}\n(?:[ \r]{0,9}\n)?)([^\r\n]{1,2000})", re.I
)
"""The part of a title that states a unit, and the line below it."""
_BETWEEN: Final = re.compile(r"[\s|;]+|,(?!\d)|(?<!\d),")
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
    """Return the source without what is before its first header, and without lines of ncu's log."""

    def blocks(inner: ByteSource) -> Iterator[bytes]:
        lines = whole_lines(inner)
        first = next(lines, b"").removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        header = first_header(first, tables) or 0
        for block in chain([first[header:]], lines):
            yield _without_messages(block, *_MARKED)

    return Filtered(source, blocks)


def whole_lines(source: ByteSource) -> Iterator[bytes]:
    """Yield the content in blocks of whole lines; the last line may lack its line end."""
    rest = b""
    for block in source.blocks():
        block = rest + block
        stop = block.rfind(b"\n") + 1
        if stop:
            yield block[:stop]
        rest = block[stop:]
        if len(rest) > (8 << 20):  # no line of a table is so long
            yield rest
            rest = b""
    if rest:
        yield rest


def plain_tables(blocks: Iterator[bytes], console: Console, _source: ByteSource) -> Iterator[bytes]:
    """Yield blocks of whole lines as CSV that has nothing but tables.

    The text is CSV if its beginning has a CSV header; else its tables are those of a console. The
    last parameter makes it a `Filter`: blocks are given instead of the source.
    """
    first = b""
    for block in blocks:
        first += block
        if len(first) >= (1 << 17):
            break
    first, blocks = _with_units(first), map(_with_units, blocks)
    header = first_header(first, console.tables)
    if header is not None:
        console.title = ""  # the table below the title is known: it is no unread one
    for block in chain([first[header:]], blocks):
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
        mark = next((mark for mark in _SEPARATORS if mark.encode() in match[2]), None)
        if unit is None or mark is None:
            return match[0]
        cells = [cell.strip('"') for cell in header.split(mark)]
        return match[1] + mark.join(with_unit(cells, unit)).encode()

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
    """Return the lines of `text` without messages.

    A message begins with one of `beginnings` (four bytes, compared in all lines at once, which is
    fast), matches the pattern `messages`, and is no row of a table.
    """
    data: Bytes = np.frombuffer(text, np.uint8)
    if not len(data):
        return text
    padded = np.append(data, np.frombuffer(b"\n\0\0\0", np.uint8))  # the last line may be short
    line_ends = np.flatnonzero(data == ord("\n"))
    starts = np.append(0, line_ends[line_ends < len(data) - 1] + 1)
    key = np.zeros(len(starts), np.int64)  # the first four bytes of each line as a number
    for byte in range(4):
        key = key << 8 | padded[starts + byte]
    candidates = np.isin(key, [int.from_bytes(beginning, "big") for beginning in beginnings])
    ends = np.append(starts[1:], len(text))
    parts, kept_from = [], 0
    for line in np.flatnonzero(candidates).tolist():
        begin, end = int(starts[line]), int(ends[line])
        if messages.match(text, begin, end) and not is_row(text[begin:end]):
            parts.append(text[kept_from:begin])
            kept_from = end
    return b"".join([*parts, text[kept_from:]]) if kept_from else text


def is_row(line: bytes) -> bool:
    """Return whether a line is a row of a table: at least two of its cells are numbers."""
    return len(list(islice(_NUMBER_CELL.finditer(line), 2))) == 2


class Console(Struct):
    """Turns console tables into rows of CSV, line by line.

    `unread` are the titles of tables that have rows but no known header. `columns` are begin and
    end of each column of the current table in a line, `line_before` is the last line that is no
    line of dashes. `mark` is the decimal mark, `unit` that of the last title.
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
        """Begin the part below a title ("" at the end of the text); note the last one if unread."""
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
                # Not in a table: two numbers show that the title has rows without known header.
                cells = _BETWEEN.split(line[:1000]) if self.title else ()
                has_numbers = sum(is_number(cell.strip('"')) for cell in cells) > 1
                self._has_rows = self._has_rows or has_numbers
            elif not line.strip():
                self.plan = None
            else:
                yield from self._row(line, self.plan)
            self.line_before = line

    def _header(self, rule: str) -> Iterator[bytes]:
        """Begin the table whose header is above a line of dashes, `rule`, if the table is known."""
        columns = tuple(dashes.span() for dashes in _DASHES.finditer(rule))
        if "|" in self.line_before:
            names = [cell.strip() for cell in self.line_before.strip().strip("|").split("|")]
        else:
            names = re.split(r"\s{2,}", self.line_before.strip())
            if len(names) != len(columns):  # close together, or missing: cut at the dashes
                names = [
                    self.line_before[begin : max(end, begin)].strip() for begin, end in columns
                ]
        names = with_unit(names, self.unit)
        self.unit = None  # a title is for one table
        plan = self.tables.of_header(names)
        self.line_before = ""
        if plan is not None:
            self.plan, self.columns, self.title = plan, columns, ""
            yield _csv_line(names)

    def _row(self, line: str, plan: Plan) -> Iterator[bytes]:
        """Yield a line of the current table as CSV; nothing if it is no row of it."""
        if line.lstrip().startswith("|"):
            columns = len(self.columns)
            cells = [cell.strip() for cell in line.strip().strip("|").split("|", columns - 1)]
        else:  # each cell goes up to the next column, the last to the end of the line
            ends = [*(begin for begin, _ in self.columns[1:]), len(line)]
            starts = [0, *ends[:-1]]
            cells = [line[begin:end].strip() for begin, end in zip(starts, ends, strict=True)]
        # Every row has a number; a title or a name that goes on does not begin with one.
        if len(cells) != plan.columns or not any(cell[:1].isdigit() for cell in cells):
            return
        for column in plan.fields.values():
            cell = cells[column.place]
            if column.kind == "integer" and is_number(cell):
                cells[column.place] = re.sub(r"[^\d-]", "", cell)
            elif column.kind == "number" and is_number(cell):
                cells[column.place] = plain_decimal(cell, comma=self.mark == ",")
        yield _csv_line(cells)


def _csv_line(cells: Sequence[str]) -> bytes:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells).encode() + b"\n"
