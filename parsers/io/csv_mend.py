"""Mends rows of CSV text that do not fit their table, one by one: those with stray quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.parsers.io.csv_lines import Bytes, Lines
from traceflops.table.columns import BoolArray, IntArray

_MOST_LINES_OF_A_ROW: Final = 50
_LONGEST_MENDED: Final = 1 << 20
_MOST_JOINS: Final = 5_000
_NUMBER: Final = re.compile(
    rb"\s*+(?:[-+]?\d+(?:[.,]\d*)?(?:e[-+]?\d+)?|0x[0-9a-f]+|none|null|nan|n/a|na|-|)\s*",
    re.IGNORECASE,
)
_STRICT: Final = rb'(?:"((?:[^"]|"")*+)"|([^"%b]*+))(%b|\Z)'
"""A field whose quotes, if it has any, are around it and doubled inside, and what is behind it."""
_LOOSE: Final = rb'"(.*?)"%b|(?!")([^%b]*+)%b'
"""A field up to the separator behind it: of a quoted one to the first separator behind a quote."""


def strict_fields(line: bytes, separator: bytes) -> list[bytes] | None:
    """Return the fields of a line whose quotes are doubled inside quoted fields, else None."""
    pattern, fields, offset = re.compile(_STRICT % (separator, separator)), list[bytes](), 0
    while (match := pattern.match(line, offset)) is not None:
        fields.append(match[2] if match[1] is None else match[1].replace(b'""', b'"'))
        offset = match.end()
        if not match[3]:
            return fields
    return None


def _loose_fields(line: bytes, count: int, separator: bytes) -> tuple[list[bytes], int] | None:
    """Return the first fields of a line and the offset behind them; None where it has fewer."""
    pattern = re.compile(_LOOSE % (separator, separator, separator), re.DOTALL)
    fields, offset = [], 0
    for _ in range(count):
        if (match := pattern.match(line, offset)) is None:
            return None
        fields.append(match[1] or match[2] or b"")
        offset = match.end()
    return fields, offset


def _quoted(field: bytes) -> bytes:
    return b'"' + field.replace(b'"', b'""') + b'"'


@dataclass(frozen=True, slots=True)
class Mended:
    """Rows in which every field is sound; `repaired` of them were told from the ends of their line.

    `last_kept` says whether the last line is a row of it, `ends_inside` whether a name in it holds
    line ends.
    """

    text: bytes
    repaired: int
    dropped: int
    last_kept: bool
    ends_inside: bool


@dataclass(slots=True)
class Mender:
    """Takes apart lines that do not fit a table of `columns` fields.

    `free` is the field that may hold anything, such as a name; `numbers` are those of numbers.
    Joins of lines are counted, so that they stay few.
    """

    columns: int
    free: int | None
    separator: bytes
    numbers: Sequence[int]
    joins: int = 0

    def mend(self, data: Bytes, lines: Lines, fits: BoolArray) -> Mended:
        """Return lines, of which some fit their table, with the others mended or left out.

        `fits` has a flag per line.
        """
        empty = lines.start == lines.stop
        wrong = ~fits & ~empty
        enough = lines.separators >= self.columns - 1
        rows: list[tuple[int, bytes]] = []
        used, repaired, ends_inside = -1, 0, False
        for line in np.flatnonzero(wrong & (enough | lines.open)).tolist():
            if line <= used or (not enough[line] and self.joins >= _MOST_JOINS):
                continue
            row, used = self._row_from(data, lines, wrong, line)
            if row is not None:
                rows.append((line, row[0]))
                repaired += row[1]
                ends_inside |= used > line
                wrong[line : used + 1] = False
        # The lines that fit, with rows in the places of lines that did not.
        length = lines.after - lines.start
        kept = data[lines.start[0] : lines.after[-1]][np.repeat(fits, length)].tobytes()
        before: IntArray = np.cumsum(np.where(fits, length, 0))
        pieces, offset = [], 0
        for line, text in rows:
            pieces += [kept[offset : before[line]], text]
            offset = int(before[line])
        return Mended(
            b"".join([*pieces, kept[offset:]]),
            repaired=repaired,
            dropped=int(wrong.sum()),
            last_kept=bool(not wrong[-1] and not empty[-1]),
            ends_inside=ends_inside,
        )

    def _row_from(
        self, data: Bytes, lines: Lines, wrong: BoolArray, line: int
    ) -> tuple[tuple[bytes, bool] | None, int]:
        """Return the row that begins with a line, as `row` does, and its last line."""
        begin = int(lines.start[line])
        if lines.separators[line] >= self.columns - 1 or lines.sound[line]:
            row = self.row(data[begin : lines.stop[line]].tobytes())
            if row is not None:
                return row, line
        if not lines.open[line] or self.joins >= _MOST_JOINS:
            return None, line
        self.joins += 1
        for last in range(line + 1, min(line + _MOST_LINES_OF_A_ROW, len(lines))):
            if not wrong[last] and lines.start[last] < lines.stop[last]:
                break
            # An odd number of quotes may close what the first line opened.
            row = self.row(data[begin : lines.stop[last]].tobytes()) if lines.open[last] else None
            if row is not None:
                return row, last
        return None, line

    def row(self, line: bytes) -> tuple[bytes, bool] | None:
        """Return a line as a sound row, and whether its fields had to be told from its ends.

        None where it cannot be told what they are.
        """
        if len(line) > _LONGEST_MENDED:
            return None
        may_be_sound = b'""' in line or b"\n" in line or line.endswith(self.separator)
        fields = strict_fields(line, self.separator) if may_be_sound else None
        if fields is not None and len(fields) == self.columns + 1 and not fields[-1]:
            fields.pop()  # a separator behind the last field
        if fields is not None and len(fields) == self.columns:
            row = self.separator.join(map(_quoted, fields)) + b"\n"
            return (row, False) if self._is_sound(fields) else None
        if self.free is None:
            return None
        # The free field is what stands between the fields at both ends; those behind it are read
        # from the end of the line.
        first = _loose_fields(line, self.free, self.separator)
        last = _loose_fields(line[::-1], self.columns - 1 - self.free, self.separator)
        if first is None or last is None or first[1] + last[1] > len(line):
            return None
        low, high = first[1], len(line) - last[1]
        middle = line[low:high]
        if middle.startswith(b'"'):
            if len(middle) < 2 or not middle.endswith(b'"'):
                return None
            middle = middle[1:-1]
        if not self._is_sound([*first[0], middle, *(field[::-1] for field in reversed(last[0]))]):
            return None
        return b"".join((line[:low], _quoted(middle), line[high:], b"\n")), True

    def _is_sound(self, row: Sequence[bytes]) -> bool:
        """Return whether the cells of numbers are numbers (decimal commas, too) or say none."""
        cells = (row[column] for column in self.numbers)
        return all(cell.isdigit() or _NUMBER.fullmatch(cell) for cell in cells)
