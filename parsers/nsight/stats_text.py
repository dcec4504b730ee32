"""What `nsys stats` prints, made into plain CSV: without its messages, console tables as rows.

Console tables stand between rules of dashes, which say where each column begins and ends; their
numbers have separators of thousands, and the decimal mark of the country they were printed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

import numpy as np

from traceflops.parsers.io import (
    Bytes,
    ByteSource,
    Plan,
    Tables,
    decimal_mark,
    header_in,
    is_number,
    line_starts,
    plain_decimal,
)
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
_MARKED: Final = (b"==PR", b"==WA", b"==ER", b"==LO", b"==IN"), re.compile(rb"==[A-Z]+==")
"""What ncu prints between its tables."""
_NUMBER_CELL: Final = re.compile(rb'(?:^|[,;\t])"?-?\d[\d.]*"?(?=[,;\t\r\n]|\Z)')
_SEPARATORS: Final = (",", ";", "\t")
_LOOKED_AT: Final = 400
"""So many lines are looked at for the first header."""
_LEAST_BYTES: Final = 1 << 17
_RULE: Final = re.compile(
    r"[\s+|]*(?:-{2,}[\s+|]+)+-{2,}[\s+|]*\Z|[\s+|]*(?:={2,}[\s+|]+)+={2,}[\s+|]*\Z", re.ASCII
)
"""Runs of dashes with something between them: a run alone would be looked at in ever more parts."""
_DASHES: Final = re.compile(r"[-=]+")
_TITLE: Final = re.compile(r"\s*\*\* ([^*]{1,200}?)\s*(?::\s*)?")
_TITLED: Final = re.compile(
    rb"(\((?:by )?\w{1,20} in \w{1,20}\)[^\n,;\t]{0,99}\n(?:[ \r]{0,9}\n)?)([^\r\n]{1,2000})", re.I
)
"""What stands in a title of its unit, and the line below it."""
_BETWEEN: Final = re.compile(r"[\s|;]+|,(?!\d)|(?<!\d),")
_MOST_TITLES: Final = 100
_MOST_NUMBERS: Final = 1000

Filter = Callable[[ByteSource], Iterator[bytes]]


class Filtered(ByteSource):
    """A source of which something else is read than what it holds: `filter` makes it."""

    __slots__ = ("_filter", "_inner")

    def __init__(self, inner: ByteSource, filter_: Filter) -> None:
        super().__init__(inner.name, inner.opener, inner.stored_bytes, inner.path, inner.folder)
        self._inner, self._filter = inner, filter_

    def blocks(self) -> Iterator[bytes]:
        """Yield what the filter makes of the content."""
        yield from self._filter(self._inner)
        self.cut = self._inner.cut


def from_header(source: ByteSource, tables: Tables) -> Filtered:
    """Return the source from its first header on, without messages such as ==PROF==."""

    def blocks(inner: ByteSource) -> Iterator[bytes]:
        lines = whole_lines(inner)
        first = next(lines, b"").removeprefix(b"\xef\xbb\xbf")
        at = first_header(first, tables) or 0
        for block in chain([first[at:]], lines):
            yield _without_messages(block, *_MARKED)

    return Filtered(source, blocks)


def whole_lines(source: ByteSource) -> Iterator[bytes]:
    """Yield the content in blocks of whole lines; the last may lack its end."""
    rest = b""
    for block in source.blocks():
        block = rest + block
        stop = block.rfind(b"\n") + 1
        if stop:
            yield block[:stop]
        rest = block[stop:]
        if len(rest) > 8 << 20:  # no line of a table is so long
            yield rest
            rest = b""
    if rest:
        yield rest


def plain_tables(blocks: Iterator[bytes], console: Console, _source: ByteSource) -> Iterator[bytes]:
    """Yield blocks of whole lines, which are of a source, as CSV that has nothing but tables."""
    first = _beginning(blocks)
    if b"\r" in first and b"\n" not in first:
        first = first.replace(b"\r", b"\n")
    first, blocks = _with_units(first), map(_with_units, blocks)
    at = first_header(first, console.tables)
    if at is not None:
        console.title = ""
    for block in chain([first[at:]], blocks):
        if at is None:
            yield from console.rows(block)
        else:
            yield _without_messages(block, *_PRINTED)


def _with_units(text: bytes) -> bytes:
    """Return lines of CSV, each header with the unit that stands in the title above it."""
    return _TITLED.sub(_with_unit, text) if b" in " in text else text


def _with_unit(found: re.Match[bytes]) -> bytes:
    title, header = found[1].decode(errors="replace"), found[2]
    unit = unit_in_title(title)
    mark = next((one for one in _SEPARATORS if one.encode() in header), None)
    if unit is None or mark is None:
        return found[0]
    cells = [cell.strip('"') for cell in header.decode(errors="replace").split(mark)]
    return found[1] + mark.join(with_unit(cells, unit)).encode()


def _beginning(blocks: Iterator[bytes]) -> bytes:
    """Return so many blocks that a header is among them where there is one."""
    beginning = b""
    for block in blocks:
        beginning += block
        if len(beginning) >= _LEAST_BYTES:
            break
    return beginning


def first_header(text: bytes, tables: Tables) -> int | None:
    """Return where the first header of CSV begins, None where there is none."""
    begin = 0
    for line in text.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]:
        has_cells = any(mark.encode() in line for mark in _SEPARATORS)
        if has_cells and header_in(line.removesuffix(b"\r"), tables, _SEPARATORS, 0):
            return begin
        begin += len(line) + 1
    return None


def _without_messages(
    text: bytes, beginnings: Sequence[bytes], messages: re.Pattern[bytes]
) -> bytes:
    """Return lines without those that are messages, by their first four bytes and a pattern."""
    data: Bytes = np.frombuffer(text, np.uint8)
    if not len(data):
        return text
    padded = np.append(data, np.frombuffer(b"\n\0\0\0", np.uint8))
    starts = line_starts(data if text.endswith(b"\n") else padded[: len(data) + 1])
    key = np.zeros(len(starts), np.int64)
    for place in range(4):
        key = key << 8 | padded[starts + place]
    wanted = np.isin(key, [int.from_bytes(beginning, "big") for beginning in beginnings])
    ends = np.append(starts[1:], len(text))
    parts, at = [], 0
    for line in np.flatnonzero(wanted).tolist():
        begin, end = int(starts[line]), int(ends[line])
        if messages.match(text, begin, end) and not is_row(text[begin:end]):
            parts.append(text[at:begin])
            at = end
    return b"".join([*parts, text[at:]]) if at else text


def is_row(line: bytes) -> bool:
    """Return whether a line is a row of a table, whatever its first cell reads: it has numbers."""
    return len(list(islice(_NUMBER_CELL.finditer(line), 2))) == 2


def _row(cells: Sequence[str]) -> bytes:
    quoted = ('"' + cell.replace('"', '""') + '"' for cell in cells)
    return ",".join(quoted).encode() + b"\n"


@dataclass(slots=True)
class Console:
    """Makes rows of CSV of console tables, line by line.

    `unread` are the titles of tables of which there are rows and no header that is known.
    """

    tables: Tables
    before: str = ""
    columns: tuple[tuple[int, int], ...] = ()
    plan: Plan | None = None
    mark: str | None = None
    title: str = ""
    unit: str | None = None
    unread: list[str] = field(default_factory=list)
    _has_rows: bool = False

    def begin(self, title: str) -> None:
        """Go on to what stands below a title, or to the end."""
        if self.title and self._has_rows and len(self.unread) < _MOST_TITLES:
            self.unread.append(self.title)
        self.title, self._has_rows, self.plan, self.before = title, False, None, ""

    def rows(self, text: bytes) -> Iterator[bytes]:
        """Yield the rows in some lines, each table behind its header."""
        lines = text.decode(errors="replace").splitlines()
        self.mark = self.mark or decimal_mark(cell for line in lines for cell in line.split())
        for line in lines:
            if _RULE.match(line):
                if self.before.strip():
                    yield from self._table(line)
                continue
            self.unit = unit_in_title(line) or self.unit
            title = _TITLE.fullmatch(line) if "**" in line else None
            if title is not None:
                self.begin(title[1])
            elif self.plan is None:
                self._has_rows = self._has_rows or (bool(self.title) and _has_numbers(line))
            elif not line.strip():
                self.plan = None
            else:
                cells = _cells(line, self.columns)
                has_number = any(cell[:1].isdigit() for cell in cells)
                if has_number and len(cells) == self.plan.columns:
                    yield _row([self._plain(cell, at) for at, cell in enumerate(cells)])
            self.before = line

    def _table(self, rule: str) -> Iterator[bytes]:
        columns = tuple(dashes.span() for dashes in _DASHES.finditer(rule))
        names = with_unit(_names(self.before, columns), self.unit)
        self.unit = None
        plan = self.tables.of_header(names)
        self.before = ""
        if plan is not None:
            self.plan, self.columns, self.title = plan, columns, ""
            yield _row(names)

    def _plain(self, cell: str, place: int) -> str:
        """Return a cell as CSV has it: a number without separators, its decimal mark a point."""
        assert self.plan is not None
        kinds = {field.place: field.kind for field in self.plan.fields.values()}
        kind = kinds.get(place)
        if kind in (None, "text") or not is_number(cell):
            return cell
        if kind == "integer":
            return re.sub(r"[^\d-]", "", cell)
        return plain_decimal(cell, comma=self.mark == ",")


def _has_numbers(line: str) -> bool:
    """Return whether a line has two numbers, as rows of all reports have."""
    return sum(is_number(cell.strip('"')) for cell in _BETWEEN.split(line[:_MOST_NUMBERS])) > 1


def _names(text: str, columns: Sequence[tuple[int, int]]) -> list[str]:
    if "|" in text:
        return [cell.strip() for cell in text.strip().strip("|").split("|")]
    cells = [text[begin : max(end, begin)].strip() for begin, end in columns]
    spaced = re.split(r"\s{2,}", text.strip())
    return spaced if len(spaced) == len(columns) else cells


def _cells(line: str, columns: Sequence[tuple[int, int]]) -> list[str]:
    """Return the cells of a row; the last column goes on to the end of the line."""
    if line.lstrip().startswith("|"):
        return [cell.strip() for cell in line.strip().strip("|").split("|", len(columns) - 1)]
    ends = [*(begin for begin, _ in columns[1:]), len(line)]
    starts = [0, *ends[:-1]]
    return [line[begin:end].strip() for begin, end in zip(starts, ends, strict=True)]
