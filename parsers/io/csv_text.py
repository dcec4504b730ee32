"""Reads tables of CSV in blocks, also with damaged quotes and line ends.

The caller says what a table is and which columns to read (`Tables`). A text may have several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from traceflops.parsers.io import csv_lines
from traceflops.parsers.io.csv_cells import Cells, Field, cells
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.table.trace import Note
from traceflops.units import capitalized, several

TEXT_BLOCK_BYTES: Final = 2 << 20
_MOST_HEADERS: Final = 1_000
_SEPARATORS: Final = (",", ";", "\t")
_LINES_BEFORE_HEADER: Final = 20
_NOTES: Final = NoteTable(
    repaired={
        "invalid-utf8": "Invalid UTF-8: {count} [character|characters] in {rows} became U+FFFD, "
        "the first at byte {first}.",
        "rows-repaired": "{n} [row has|rows have] an unescaped quote, comma or line break in a "
        "name. The name is what remains between the other fields; no number is affected.",
        "header-repeated": "The header is repeated {n} [time|times].",
    },
    dropped={
        "input-cut": "{how}: rows at the end are missing.",
        "text-cut": (
            "The file ends within a row.",
            "That row is ignored and later rows are missing.",
        ),
        "rows-lost": "{n} unreadable [row was|rows were] skipped.",
    },
)


class Plan(Struct, frozen=True):
    """What to read of a table with this number of columns: `fields`, by role.

    `free` is the index of the column that may have any text; `what` is data of the caller. Rows
    with at least `least` fields may lack the last ones.
    """

    columns: int
    fields: Mapping[str, Field]
    free: int | None = None
    what: Any = None
    least: int | None = None


class Tables(NamedTuple):
    """The tables that a caller reads.

    `beginnings` are the first characters of headers, four or more, without a leading quote.
    `of_header` returns the plan of the table with a header, None if no known table has this header.
    """

    beginnings: frozenset[str]
    of_header: Callable[[Sequence[str]], Plan | None]


class Start(Struct, frozen=True):
    """The beginning of a table: offset of its rows, plan, separator, header."""

    plan: Plan
    separator: str
    offset: int
    header: Sequence[str]


def find_start(text: bytes, tables: Tables) -> Start | None:
    """Return the start of a table whose header is in the first lines of a text."""
    end = 0
    for line in text.split(b"\n", _LINES_BEFORE_HEADER)[:_LINES_BEFORE_HEADER]:
        end += len(line) + 1
        start = header_in(line.removesuffix(b"\r"), tables, _SEPARATORS, min(end, len(text)))
        if start is not None:
            return start
    return None


def header_in(line: bytes, tables: Tables, separators: Sequence[str], offset: int) -> Start | None:
    """Return the start of the table with this header and rows at `offset`, None if it is none."""
    for separator in separators:
        row = csv_lines.strict_fields(line, separator.encode())  # None: quotes are not sound
        names = [cell.decode(errors="replace").strip() for cell in row or ()]
        plan = tables.of_header(names) if names else None
        if plan is not None:
            return Start(plan, separator, offset, names)
    return None


class CsvBlock(NamedTuple):
    """Rows of a table; `last_is_open`: the last row is the end of the text, without line end."""

    plan: Plan
    cells: Cells
    last_is_open: bool


class CsvText:
    """The tables in a source as blocks of columns; no blocks if no table is found.

    `plan` is the plan of the current table, None before the first; each header changes it.
    `damage` is complete after the last block; a given one is added to.
    """

    def __init__(
        self,
        source: ByteSource,
        tables: Tables,
        block_bytes: int = TEXT_BLOCK_BYTES,
        damage: csv_lines.Damage | None = None,
    ) -> None:
        """Prepare to read `source`, whose tables are among `tables`, in blocks of lines."""
        self.damage = csv_lines.Damage() if damage is None else damage
        self.plan: Plan | None = None
        self._text = csv_lines.line_blocks(source, block_bytes, self.damage)
        self._tables = tables
        self._separator = ","
        self._header: Sequence[str] | None = None
        self._headers = 0  # those behind the first
        self._joins = 0  # of lines, in all blocks (see `csv_lines.Mender`)
        # A quick search for lines that may be headers; the shortest beginnings have 4 characters.
        words = "|".join(sorted({re.escape(text[:4]) for text in tables.beginnings}))
        self._may_be_header = re.compile(rf'\n"?(?:{words})'.encode())

    def __iter__(self) -> Iterator[CsvBlock]:
        """Yield the rows."""
        for data, is_open in self._text:
            if self.plan is None:
                start = find_start(data, self._tables)
                if start is None:
                    return
                self.plan, self._separator, self._header = start.plan, start.separator, start.header
                data = data[start.offset :]
            if data:
                yield from self._blocks(data, is_last=is_open)

    def _blocks(self, data: bytes, *, is_last: bool) -> Iterator[CsvBlock]:
        """Yield the rows of whole lines; a header between them begins another table."""
        rows_begin = 0
        # A line that looks like a header is compared with all known tables, which takes time: limit
        # such lines per block, and headers per file. The pattern needs a line end before the first
        # line; prepended to `data`, it makes `match.start()` the offset of the line in `data`.
        for match in islice(self._may_be_header.finditer(b"\n" + data), _MOST_HEADERS):
            if self._headers >= _MOST_HEADERS:
                break
            begin = match.start()
            end = data.index(b"\n", begin) + 1
            start = header_in(data[begin : end - 1], self._tables, (self._separator,), end)
            if start is not None:
                yield from self._rows(data[rows_begin:begin], is_last=False)
                self._headers += 1
                self.damage.repeated_headers += start.header == self._header
                self.plan, self._separator, self._header = start.plan, start.separator, start.header
                rows_begin = end
        yield from self._rows(data[rows_begin:] if rows_begin else data, is_last=is_last)

    def _rows(self, text: bytes, *, is_last: bool) -> Iterator[CsvBlock]:
        """Yield the rows in some lines, if there are any."""
        plan, separator = self.plan, ord(self._separator)
        if plan is None or not text or text.isspace():
            return
        if plan.least is not None:
            # Append separators to sound rows that lack the last columns.
            data = np.frombuffer(text, np.uint8)
            lines = csv_lines.lines_of(data, separator)
            lacking = plan.columns - 1 - lines.separators
            is_short = lines.sound & (lacking > 0) & (lines.separators >= plan.least - 1)
            stops = np.repeat(lines.stop[is_short], lacking[is_short])
            text = np.insert(data, stops, separator).tobytes() if is_short.any() else text
        # Read all rows at once; if that skips rows, or quotes are irregular, mend lines and retry.
        data = np.frombuffer(text, np.uint8)
        rows, skipped, is_last_kept = None, 0, True
        layout = self._separator, plan.columns, plan.fields
        if csv_lines.is_regular(data, separator):
            rows, skipped, bad = cells(text, *layout)
        if rows is None or skipped:
            lines = csv_lines.lines_of(data, separator)
            fits = lines.sound & (lines.separators == plan.columns - 1)
            numbers = sorted({f.place for f in plan.fields.values() if f.kind != "text"})
            of_table = plan.columns, plan.free, self._separator.encode(), numbers
            mender = csv_lines.Mender(*of_table, self.damage, self._joins)
            text, is_last_kept, ends_inside = mender.mend(data, lines, fits)
            self._joins = mender.joins
            if is_last and not is_last_kept and lines.start[-1] < lines.stop[-1]:
                # The text ends within this line: count it as cut, not as dropped by the mender.
                self.damage.dropped_rows -= 1
                self.damage.cut_bytes = int(lines.stop[-1] - lines.start[-1])
            if not text or text.isspace():
                return
            rows, skipped, bad = cells(text, *layout, line_ends_inside=ends_inside)
            self.damage.dropped_rows += skipped
        self.damage.bad_cells.update(bad)
        if rows.count:
            yield CsvBlock(plan, rows, is_last and is_last_kept)


def text_notes(damage: csv_lines.Damage, cut: str | None) -> Iterator[Note]:
    """Yield the notes on damage of a text; `cut` says how its source ended too early, if so."""
    if cut:
        yield _NOTES.note("input-cut", how=capitalized(cut))
    elif damage.cut_bytes is not None:
        yield _NOTES.note("text-cut", 1)
    if damage.replaced_characters:
        rows, first = several(damage.rows_with_replacements, "row"), f"{damage.first_bad_byte:,}"
        yield _NOTES.note("invalid-utf8", damage.replaced_characters, rows=rows, first=first)
    counts = {
        "rows-repaired": damage.repaired_rows,
        "rows-lost": damage.dropped_rows,
        "header-repeated": damage.repeated_headers,
    }
    yield from _NOTES.counted(counts, *counts)
