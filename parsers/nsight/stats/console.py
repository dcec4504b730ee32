"""Console tables of `nsys stats`, made into rows of CSV.

They stand between rules of dashes, which say where each column begins and ends; their numbers have
separators of thousands, and the decimal mark of the country they were printed in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from traceflops.parsers.io import Plan, Tables, decimal_mark, is_number, plain_decimal

_RULE: Final = re.compile(
    rb"[\s+|]*(?:-{2,}[\s+|]+)+-{2,}[\s+|]*\Z|[\s+|]*(?:={2,}[\s+|]+)+={2,}[\s+|]*\Z"
)
"""Runs of dashes with something between them: a run alone would be looked at in ever more parts."""
_DASHES: Final = re.compile(rb"[-=]+")
_TITLE: Final = re.compile(r"\s*\*\* ([^*]{1,200}?)\s*:?\s*")
_BETWEEN: Final = re.compile(r"[\s|;]+|,(?!\d)|(?<!\d),")
_LOOKED_AT: Final = 400
"""So many lines are looked at for the first header."""
_MOST_TITLES: Final = 100
_MOST_NUMBERS: Final = 1000


def _row(cells: Sequence[str]) -> bytes:
    quoted = ('"' + cell.replace('"', '""') + '"' for cell in cells)
    return ",".join(quoted).encode() + b"\n"


def console_header(text: bytes, tables: Tables) -> Plan | None:
    """Return what to read of the first console table in a text, None where it has none."""
    before = b""
    for line in text.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]:
        if _RULE.match(line) and before.strip():
            plan = tables.of_header(_names(before, _columns(line)))
            if plan is not None:
                return plan
        if not _RULE.match(line):
            before = line
    return None


@dataclass(slots=True)
class Console:
    """Makes rows of CSV of console tables, line by line.

    `unread` are the titles of tables of which there are rows and no header that is known.
    """

    tables: Tables
    before: bytes = b""
    columns: tuple[tuple[int, int], ...] = ()
    plan: Plan | None = None
    comma: bool | None = None
    title: str = ""
    unread: list[str] = field(default_factory=list)
    _has_rows: bool = False

    def begin(self, title: str) -> None:
        """Go on to what stands below a title, or to the end."""
        if self.title and self._has_rows and len(self.unread) < _MOST_TITLES:
            self.unread.append(self.title)
        self.title, self._has_rows, self.plan, self.before = title, False, None, b""

    def rows(self, text: bytes) -> Iterator[bytes]:
        """Yield the rows in some lines, each table behind its header."""
        lines = text.decode(errors="replace").splitlines()
        self._tell_decimal_mark(lines)
        for line in lines:
            if _RULE.match(line.encode()):
                if self.before.strip():
                    yield from self._table(line)
                continue
            title = _TITLE.fullmatch(line) if "**" in line else None
            if title is not None:
                self.begin(title[1])
            elif self.plan is None:
                self._has_rows = self._has_rows or (bool(self.title) and _has_numbers(line))
            elif not line.strip():
                self.plan = None
            else:
                cells = _cells(line, self.columns)
                if len(cells) == self.plan.columns and _has_digit(cells):
                    yield _row([self._plain(cell, at) for at, cell in enumerate(cells)])
            self.before = line.encode()

    def _table(self, rule: str) -> Iterator[bytes]:
        columns = _columns(rule.encode())
        names = _names(self.before, columns)
        plan = self.tables.of_header(names)
        self.before = b""
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
        return plain_decimal(cell, comma=bool(self.comma))

    def _tell_decimal_mark(self, lines: Sequence[str]) -> None:
        """Find out from numbers of which it is clear whether a comma is the decimal mark."""
        if self.comma is None:
            told = decimal_mark(cell for line in lines for cell in line.split())
            self.comma = None if told is None else told == ","


def _has_numbers(line: str) -> bool:
    """Return whether a line has two numbers, as rows of all reports have."""
    found = 0
    for cell in _BETWEEN.split(line[:_MOST_NUMBERS]):
        found += is_number(cell.strip('"'))
        if found == 2:
            return True
    return False


def _columns(rule: bytes) -> tuple[tuple[int, int], ...]:
    return tuple(found.span() for found in _DASHES.finditer(rule))


def _names(line: bytes, columns: Sequence[tuple[int, int]]) -> list[str]:
    text = line.decode(errors="replace")
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


def _has_digit(cells: Sequence[str]) -> bool:
    return any(cell[:1].isdigit() for cell in cells)
