"""Reads tables of comma-separated text in blocks, whatever became of their quotes and line ends.

What a table is and which of its columns are wanted is the caller's to say (`Tables`); nothing here
knows who wrote it. Several tables in one text, one after the other, are read as that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from traceflops.parsers.io.csvfiles.cells import Column, Field, cells
from traceflops.parsers.io.csvfiles.lines import (
    Bytes,
    LineBlocks,
    is_regular,
    line_starts,
    lines_of,
)
from traceflops.parsers.io.csvfiles.mend import Mended, Mender, mend, strict_fields
from traceflops.parsers.io.inputs import ByteSource
from traceflops.table import IntArray, Note, NoteKind, counted_note
from traceflops.units import several

TEXT_BLOCK_BYTES: Final = 2 << 20
_MOST_HEADERS: Final = 1_000
_NUMBER: Final = re.compile(
    rb"\s*(?:[-+]?\d+(?:[.,]\d*)?(?:e[-+]?\d+)?|0x[0-9a-f]+|none|null|nan|n/a|na|-|)\s*",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Damage:
    """What was wrong with a text: rows and bytes, `bad_cells` by the caller's words."""

    repaired_rows: int = 0
    dropped_rows: int = 0
    cut_bytes: int | None = None
    replaced_characters: int = 0
    rows_with_replacements: int = 0
    first_bad_byte: int | None = None
    repeated_headers: int = 0
    without_header: bool = False
    bad_cells: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class CsvBlock:
    """Some rows of a table; `last_is_open` says that the text ended behind the last without end."""

    plan: Plan
    rows: int
    columns: Mapping[str, Column]
    last_is_open: bool


class CsvText:
    """The tables in a source as blocks of columns; nothing is yielded where none is known.

    `plan` is that of the table being read, None until one was found, and another one behind each
    header; `damage` is complete behind the last block, and may be one that goes on from before.
    """

    def __init__(
        self,
        source: ByteSource,
        tables: Tables,
        block_bytes: int = TEXT_BLOCK_BYTES,
        damage: Damage | None = None,
    ) -> None:
        self.damage = Damage() if damage is None else damage
        self.plan: Plan | None = None
        self._text = LineBlocks(source, block_bytes, self.damage)
        self._tables = tables
        self._separator = ","
        self._header: Sequence[str] = ()
        self._headers = 0
        self._joins = 0
        self._keys = np.array([_key(text.encode()) for text in tables.beginnings], np.uint32)

    def __iter__(self) -> Iterator[CsvBlock]:
        """Yield the rows."""
        for data in self._text:
            if self.plan is None:
                start = find_start(data, self._tables)
                if start is None:
                    return
                self.damage.without_header = start.header is None
                self._take(start)
                data = data[start.at :]
            if data:
                yield from self._blocks(data, is_last=self._text.ended_open)

    def _take(self, start: Start) -> None:
        """Read on as the table that begins here."""
        self.plan, self._separator = start.plan, start.separator
        self._header = start.header or ()

    def _blocks(self, data: bytes, *, is_last: bool) -> Iterator[CsvBlock]:
        """Yield the rows in whole lines, those of different tables apart."""
        array = np.frombuffer(data, np.uint8)
        starts = line_starts(array)
        first = 0
        for begin in starts[self._possible_headers(array, starts)].tolist():
            if self._headers >= _MOST_HEADERS:
                break
            end = data.index(b"\n", begin) + 1
            found = header_in(data[begin : end - 1], self._tables, (self._separator,), end)
            if found is None:
                continue
            yield from self._rows(data[first:begin], is_last=False)
            self._headers += 1
            self.damage.repeated_headers += found.header == self._header
            self._take(found)
            first = end
        yield from self._rows(data[first:] if first else data, is_last=is_last)

    def _possible_headers(self, data: Bytes, starts: IntArray) -> IntArray:
        """Return the lines that begin like a header."""
        padded = np.append(data, np.zeros(5, np.uint8))
        begin = starts + (data[starts] == ord('"'))
        key = np.zeros(len(starts), np.uint32)
        for place in range(4):
            key = key << 8 | padded[begin + place]
        return np.flatnonzero(np.isin(key, self._keys))[:_MOST_HEADERS]

    def _rows(self, text: bytes, *, is_last: bool) -> Iterator[CsvBlock]:
        """Yield the rows in some lines, if there are any."""
        plan = self.plan
        if plan is None or not text or text.isspace():
            return
        if plan.least is not None:
            text = filled(text, self._separator, plan.columns, plan.least)
        read = partial(cells, separator=self._separator, width=plan.columns, fields=plan.fields)
        last_kept = True
        found = None
        if is_regular(np.frombuffer(text, np.uint8), ord(self._separator)):
            found = read(text)
        if found is None or found.skipped:
            mended = self._mended(plan, text, is_last=is_last)
            last_kept = mended.last_kept
            if not mended.text or mended.text.isspace():
                return
            found = read(mended.text, line_ends_inside=mended.ends_inside)
            self.damage.dropped_rows += found.skipped
        self.damage.bad_cells.update(found.bad)
        if found.rows:
            yield CsvBlock(plan, found.rows, found.columns, is_last and last_kept)

    def _mended(self, plan: Plan, text: bytes, *, is_last: bool) -> Mended:
        """Return the rows of some lines as sound ones, what was done to them counted."""
        array = np.frombuffer(text, np.uint8)
        lines = lines_of(array, ord(self._separator))
        fits = lines.sound & (lines.separators == plan.columns - 1)
        separator = self._separator.encode()
        places = sorted({one.place for one in plan.fields.values() if one.kind != "text"})
        has_numbers = partial(_has_numbers, places)
        mender = Mender(plan.columns, plan.free, separator, has_numbers, self._joins)
        found = mend(array, lines, fits, mender)
        self._joins = mender.joins
        self.damage.repaired_rows += found.repaired
        self.damage.dropped_rows += found.dropped
        if is_last and not found.last_kept and lines.start[-1] < lines.stop[-1]:
            self.damage.dropped_rows -= 1
            self.damage.cut_bytes = int(lines.stop[-1] - lines.start[-1])
        return found


def _has_numbers(places: Sequence[int], row: Sequence[bytes]) -> bool:
    """Return whether cells may be numbers, or say that there is none; with decimal commas, too."""
    for place in places:
        cell = row[place]
        if not cell.isdigit() and not _NUMBER.fullmatch(cell):
            return False
    return True


def _key(text: bytes) -> int:
    return int.from_bytes(text[:4], "big")


# Rows of CSV that end before their table does, filled up with empty fields.


def filled(text: bytes, separator: str, columns: int, least: int) -> bytes:
    """Return lines of CSV in which sound rows of `least` fields or more have all `columns`."""
    data = np.frombuffer(text, np.uint8)
    lines = lines_of(data, ord(separator))
    lacking = columns - 1 - lines.separators
    short = lines.sound & (lacking > 0) & (lines.separators >= least - 1)
    if not short.any():
        return text
    places = np.repeat(lines.stop[short], lacking[short])
    return np.insert(data, places, ord(separator)).tobytes()


# What to say of a text whose tables were read although it was damaged.


_CUT: Final = "The file ends within a row. That row is ignored and later rows are missing."


_REPAIRED: Final = (
    "{n} [row has|rows have] an unescaped quote, comma or line break in a name. The name is what "
    "remains between the other fields; no number is affected."
)


_LOST: Final = "{n} unreadable [row was|rows were] skipped."


_REPEATED: Final = "The header is repeated {n} [time|times]."


_NO_HEADER: Final = "The file has no header: columns are identified from the rows."


def text_notes(damage: Damage, cut: str | None) -> Iterator[Note]:
    """Give what is to be said of a text; `cut` says how its source ended too early."""
    if cut:
        text = f"{cut[0].upper()}{cut[1:]}: rows at the end are missing."
        yield Note("dropped", "input-cut", text)
    elif damage.cut_bytes is not None:
        yield Note("dropped", "text-cut", _CUT, 1)
    if damage.replaced_characters:
        text = (
            f"Invalid UTF-8: {several(damage.replaced_characters, 'character')} in "
            f"{several(damage.rows_with_replacements, 'row')} became U+FFFD, the first at byte "
            f"{damage.first_bad_byte:,}."
        )
        yield Note("repaired", "invalid-utf8", text, damage.replaced_characters)
    counted: tuple[tuple[NoteKind, str, str, int], ...] = (
        ("repaired", "rows-repaired", _REPAIRED, damage.repaired_rows),
        ("dropped", "rows-lost", _LOST, damage.dropped_rows),
        ("repaired", "header-repeated", _REPEATED, damage.repeated_headers),
    )
    for kind, code, wording, count in counted:
        if count:
            yield counted_note(kind, code, wording, count)
    if damage.without_header:
        yield Note("assumed", "header-missing", _NO_HEADER)


# Finds where a table of CSV text begins and which of its columns are wanted.


_SEPARATORS: Final = (",", ";", "\t")


_LINES_BEFORE_HEADER: Final = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read of a table: so many columns, and of these `fields`, by the caller's words.

    `free` is the place of the column that may hold any text; `what` is the caller's own. Rows of
    `least` fields or more may end before the last columns, which are then empty.
    """

    columns: int
    fields: Mapping[str, Field]
    free: int | None = None
    what: Any = None
    least: int | None = None


class Tables(Protocol):
    """What the caller knows of the tables that it reads."""

    @property
    def beginnings(self) -> frozenset[str]:
        """Return how headers begin, behind a quote or not: texts of four characters or more."""

    def of_header(self, names: Sequence[str]) -> Plan | None:
        """Return what to read of the table with this header; None if it is none."""

    def of_row(self, row: Sequence[str]) -> Plan | None:
        """Return what to read of the table without header that has this row; None if unknown."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the rows of a table begin, and what they are. `header` is None where it was lost."""

    plan: Plan
    separator: str
    at: int
    header: Sequence[str] | None


def find_start(text: bytes, tables: Tables) -> Start | None:
    """Return where a table begins in the first lines of a text, by its header or else by a row."""
    lines = list(_first_lines(text))
    for _, end, line in lines:
        found = header_in(line, tables, _SEPARATORS, end)
        if found is not None:
            return found
    for begin, _, line in lines:
        for separator in _SEPARATORS:
            row = split(line, separator)
            plan = tables.of_row(row) if row else None
            if plan is not None:
                return Start(plan, separator, begin, None)
    return None


def _first_lines(text: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield where each line begins, where the next does, and the line."""
    begin = 0
    for line in text.split(b"\n", _LINES_BEFORE_HEADER)[:_LINES_BEFORE_HEADER]:
        end = begin + len(line) + 1
        if line.strip():
            yield begin, min(end, len(text)), line.removesuffix(b"\r")
        begin = end


def header_in(line: bytes, tables: Tables, separators: Sequence[str], at: int) -> Start | None:
    """Return the table whose header a line is, its rows beginning at `at`; None if it is none."""
    for separator in separators:
        names = split(line, separator)
        plan = tables.of_header(names) if names else None
        if names and plan is not None:
            return Start(plan, separator, at, names)
    return None


def split(line: bytes, separator: str) -> list[str] | None:
    """Return the cells of a line, None where its quotes are not sound."""
    found = strict_fields(line, separator.encode())
    return None if found is None else [cell.decode(errors="replace").strip() for cell in found]
