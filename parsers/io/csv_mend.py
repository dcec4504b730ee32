"""Mends rows of CSV text that do not fit their table, one by one: those with stray quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.parsers.io.csv_lines import QUOTE, Bytes, Lines
from traceflops.table import BoolArray, IntArray

_MOST_LINES_OF_A_ROW: Final = 50
_LONGEST_MENDED: Final = 1 << 20
_MOST_JOINS: Final = 5_000
_NUMBER: Final = re.compile(
    rb"\s*+(?:[-+]?\d+(?:[.,]\d*)?(?:e[-+]?\d+)?|0x[0-9a-f]+|none|null|nan|n/a|na|-|)\s*",
    re.IGNORECASE,
)


def strict_fields(line: bytes, separator: bytes) -> list[bytes] | None:
    """Return the fields of a line whose quotes are doubled inside quoted fields, else None."""
    fields = []
    at = 0
    while True:
        if line.startswith(b'"', at):
            end = _closing(line, at + 1, separator)
            if end is None:
                return None
            fields.append(line[at + 1 : end].replace(b'""', b'"'))
            end += 1
        else:
            end = line.find(separator, at)
            end = len(line) if end < 0 else end
            if line.find(b'"', at, end) >= 0:
                return None
            fields.append(line[at:end])
        if end == len(line):
            return fields
        at = end + 1


def _closing(line: bytes, at: int, separator: bytes) -> int | None:
    """Return where the quote is that closes a field; quotes before it are doubled."""
    while (end := line.find(b'"', at)) >= 0:
        behind = line[end + 1 : end + 2]
        if behind in (b"", separator):
            return end
        if behind != b'"':
            return None
        at = end + 2
    return None


def _quoted(field: bytes) -> bytes:
    return b'"' + field.replace(b'"', b'""') + b'"'


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

    def row(self, line: bytes) -> tuple[bytes, bool] | None:
        """Return a line as a sound row, and whether its fields had to be told from its ends.

        None where it cannot be told what they are.
        """
        if len(line) > _LONGEST_MENDED:
            return None
        may_be_sound = b'""' in line or b"\n" in line or line.endswith(self.separator)
        found = strict_fields(line, self.separator) if may_be_sound else None
        if found is not None and len(found) == self.columns + 1 and not found[-1]:
            found.pop()  # a separator behind the last field
        if found is not None and len(found) == self.columns:
            row = self.separator.join(map(_quoted, found)) + b"\n"
            return (row, False) if self._is_sound(found) else None
        told = self._from_both_ends(line)
        return None if told is None else (told, True)

    def _is_sound(self, row: Sequence[bytes]) -> bool:
        """Return whether the cells of numbers are some, with decimal commas, too, or say none."""
        cells = (row[place] for place in self.numbers)
        return all(cell.isdigit() or _NUMBER.fullmatch(cell) for cell in cells)

    def _from_both_ends(self, line: bytes) -> bytes | None:
        """Return the row in which the free field is what stands between those at its ends."""
        if self.free is None:
            return None
        first, low = _fields_before(line, self.free, self.separator)
        if low < 0:
            return None
        last, high = _fields_behind(line, low, self.columns - 1 - self.free, self.separator)
        if high < 0:
            return None
        middle = line[low:high]
        if middle.startswith(b'"'):
            if len(middle) < 2 or not middle.endswith(b'"'):
                return None
            middle = middle[1:-1]
        if not self._is_sound([*first, middle, *last]):
            return None
        return b"".join((line[:low], _quoted(middle), line[high:], b"\n"))


def _fields_before(line: bytes, count: int, separator: bytes) -> tuple[list[bytes], int]:
    """Return so many fields from the beginning, and where the next begins (-1: there are fewer)."""
    found = []
    at = 0
    for _ in range(count):
        field, at = _leading(line, at, separator)
        if at < 0:
            break
        found.append(field)
    return found, at


def _fields_behind(line: bytes, low: int, count: int, separator: bytes) -> tuple[list[bytes], int]:
    """Return so many fields from the end, and where the one before them ends (-1: there are fewer).

    All fields lie behind `low`.
    """
    plain = line[low:].rsplit(separator, count)
    if len(plain) == count + 1 and b'"' not in line[low + len(plain[0]) :]:
        return plain[1:], low + len(plain[0])
    found: list[bytes] = []
    at = len(line)
    for _ in range(count):
        field, at = _trailing(line, low, at, separator)
        if at < 0:
            break
        found.append(field)
    return found[::-1], at


def _leading(line: bytes, at: int, separator: bytes) -> tuple[bytes, int]:
    """Return the field that begins there and where the next does (-1: nowhere)."""
    quoted = line.startswith(b'"', at)
    end = line.find(b'"' + separator, at + 1) if quoted else line.find(separator, at)
    if end < 0:
        return b"", -1
    return line[at + quoted : end], end + quoted + 1


def _trailing(line: bytes, low: int, high: int, separator: bytes) -> tuple[bytes, int]:
    """Return the field that ends there and where the one before it does (-1: nowhere)."""
    quoted = high > low and line[high - 1] == QUOTE
    end = high - quoted
    begin = line.rfind(separator + b'"' if quoted else separator, low, end)
    if begin < 0:
        return b"", -1
    return line[begin + 1 + quoted : end], begin


@dataclass(frozen=True, slots=True)
class Mended:
    """Rows in which every field is sound, so many of them told from the ends of their lines.

    `last_kept` says whether the last line is a row of it, `ends_inside` whether a name in it holds
    line ends.
    """

    text: bytes
    repaired: int
    dropped: int
    last_kept: bool
    ends_inside: bool


def mend(data: Bytes, lines: Lines, fits: BoolArray, mender: Mender) -> Mended:
    """Return lines, of which some fit their table, with the others mended or left out."""
    empty = lines.start == lines.stop
    wrong = ~fits & ~empty
    enough = lines.separators >= mender.columns - 1
    joinable = lines.open & (mender.joins < _MOST_JOINS)
    hopeful = np.flatnonzero(wrong & (enough | joinable))
    rows: list[tuple[int, bytes]] = []
    used = -1
    repaired = 0
    ends_inside = False
    for line in hopeful.tolist():
        if line <= used or (not enough[line] and mender.joins >= _MOST_JOINS):
            continue
        found, last = _row(data, lines, wrong, line, mender)
        if found is not None:
            row, was_repaired = found
            rows.append((line, row))
            repaired += was_repaired
            ends_inside |= last > line
            wrong[line : last + 1] = False
            used = last
    return Mended(
        _spliced(data, lines, fits, rows),
        repaired=repaired,
        dropped=int(wrong.sum()),
        last_kept=bool(not wrong[-1] and not empty[-1]),
        ends_inside=ends_inside,
    )


def _row(
    data: Bytes, lines: Lines, wrong: BoolArray, line: int, mender: Mender
) -> tuple[tuple[bytes, bool] | None, int]:
    """Return what is told of the row that begins with a line, and its last line."""
    begin = int(lines.start[line])
    if lines.separators[line] >= mender.columns - 1 or lines.sound[line]:
        found = mender.row(data[begin : lines.stop[line]].tobytes())
        if found is not None:
            return found, line
    if not lines.open[line] or mender.joins >= _MOST_JOINS:
        return None, line
    mender.joins += 1
    for last in range(line + 1, min(line + _MOST_LINES_OF_A_ROW, len(lines))):
        if not wrong[last] and lines.start[last] < lines.stop[last]:
            break
        if lines.open[last]:  # an odd number of quotes: it may close what the first one opened
            found = mender.row(data[begin : lines.stop[last]].tobytes())
            if found is not None:
                return found, last
    return None, line


def _spliced(
    data: Bytes, lines: Lines, fits: BoolArray, rows: Sequence[tuple[int, bytes]]
) -> bytes:
    """Return the lines that fit, with rows in the places of lines that did not."""
    length = lines.after - lines.start
    kept = data[lines.start[0] : lines.after[-1]][np.repeat(fits, length)].tobytes()
    if not rows:
        return kept
    before: IntArray = np.cumsum(np.where(fits, length, 0))
    parts = []
    at = 0
    for line, row in rows:
        parts += [kept[at : before[line]], row]
        at = int(before[line])
    return b"".join([*parts, kept[at:]])
