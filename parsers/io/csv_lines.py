"""Reads a source as lines of valid UTF-8, finds which are sound CSV, and mends the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from traceflops.parsers.io.inputs import ByteSource
from traceflops.table.columns import BoolArray, IntArray

Bytes = npt.NDArray[np.uint8]
QUOTE: Final = 34
_LINE_END: Final = 10
_LONGEST_LINE: Final = 4 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_REPLACEMENT: Final = "\ufffd"
_MOST_LINES_OF_A_ROW: Final = 50
_LONGEST_MENDED: Final = 1 << 20
_MOST_JOINS: Final = 5_000
_NUMBER: Final = re.compile(
    rb"\s*+(?:[-+]?\d+(?:[.,]\d*)?(?:e[-+]?\d+)?|0x[0-9a-f]+|none|null|nan|n/a|na|-|)\s*",
    re.IGNORECASE,
)
_STRICT: Final = rb'(?:"((?:[^"]|"")*+)"|([^"%b]*+))(%b|\Z)'
"""A field, plain or quoted with doubled quotes inside, and the separator or end behind it."""
_LOOSE: Final = rb'"(.*?)"%b|(?!")([^%b]*+)%b'
"""A field and its separator; a quoted one ends at the first quote followed by a separator."""


class Damage(Struct):
    """Damage of a text: counts of rows, bytes and characters; `bad_cells` counts by column role."""

    repaired_rows: int = 0
    dropped_rows: int = 0
    cut_bytes: int | None = None
    replaced_characters: int = 0
    rows_with_replacements: int = 0
    first_bad_byte: int | None = None
    repeated_headers: int = 0
    bad_cells: Counter[str] = field(default_factory=Counter)


def line_blocks(
    source: ByteSource, block_bytes: int, damage: Damage
) -> Iterator[tuple[bytes, bool]]:
    """Yield blocks of whole lines, of about `block_bytes`, and whether the last line end was added.

    Invalid UTF-8 and NUL become U+FFFD. A line of more than 4 MB is dropped, and so is a last
    line without line end of a source that was cut off.
    """
    parts: list[bytes] = []
    size = offset = 0  # the bytes of `parts`, and the offset in the file at which they begin
    in_long_line = False  # whether the rest of a line that is too long is being skipped
    for number, chunk in enumerate(source.blocks()):
        if number == 0 and chunk.startswith(_BYTE_ORDER_MARK):
            offset = len(_BYTE_ORDER_MARK)
            chunk = chunk[offset:]
        if in_long_line:
            end = chunk.find(b"\n") + 1
            in_long_line = end == 0
            offset += end or len(chunk)
            chunk = chunk[end:] if end else b""
        parts.append(chunk)
        size += len(chunk)
        if size < block_bytes:
            continue
        text = b"".join(parts)
        stop = text.rfind(b"\n") + 1
        if stop:
            yield _valid(text[:stop], offset, damage), False
        elif size > _LONGEST_LINE:
            in_long_line, stop = True, size
            damage.dropped_rows += 1
        parts, size, offset = [text[stop:]], size - stop, offset + stop
    text = b"".join(parts)
    stop = text.rfind(b"\n") + 1
    has_tail = bool(text[stop:].strip(b"\0 \t\r"))  # not only spaces or padding
    if has_tail and source.cut:
        damage.cut_bytes = len(text) - stop
    elif has_tail:
        text, stop = text + b"\n", len(text) + 1
    if stop:
        yield _valid(text[:stop], offset, damage), has_tail and not source.cut


def _valid(text: bytes, offset: int, damage: Damage) -> bytes:
    """Return text with plain line ends; NUL and invalid UTF-8 are replaced and counted."""
    bad = text.find(b"\0")  # the offset of the first invalid byte, -1 for none
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            bad = error.start if bad < 0 else min(error.start, bad)
    if bad >= 0:
        before = text.count(_REPLACEMENT.encode())
        decoded = text.decode(errors="replace").replace("\0", _REPLACEMENT)
        damage.replaced_characters += decoded.count(_REPLACEMENT) - before
        damage.rows_with_replacements += sum(_REPLACEMENT in r for r in decoded.split("\n"))
        if damage.first_bad_byte is None:
            damage.first_bad_byte = offset + bad
        text = decoded.encode()
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text


class Lines(Struct, frozen=True):
    """The lines of a block, in order.

    A line is data[start:stop] without its line end; the next line begins at `after`. `sound`: each
    quote opens or closes a whole field. `open`: the last quote is not closed. `separators` counts
    separators outside quotes; in a line that is not sound it counts all separators.
    """

    start: IntArray
    stop: IntArray
    after: IntArray
    separators: IntArray
    sound: BoolArray
    open: BoolArray


def is_regular(data: Bytes, separator: int) -> bool:
    """Return whether the quotes of a block alternately open and close whole fields."""
    quotes = np.flatnonzero(data == QUOTE)
    if len(quotes) % 2:
        return False
    opens, closes = quotes[::2], quotes[1::2]
    return bool(_opens(data, opens, separator).all() and _closes(data, closes, separator).all())


def lines_of(data: Bytes, separator: int) -> Lines:
    """Return the lines of a block that ends with a line end."""
    # All separators, quotes and line ends; for each the line, and whether it is inside quotes.
    special = np.flatnonzero((data == separator) | (data == QUOTE) | (data == _LINE_END))
    offsets = special.astype(np.int32)
    byte = data[offsets]
    ends = np.flatnonzero(byte == _LINE_END)
    is_quote = byte == QUOTE
    line = np.repeat(np.arange(len(ends), dtype=np.int32), np.diff(ends, prepend=-1))
    quotes_so_far = np.cumsum(is_quote, dtype=np.int32)
    before_line = np.append(np.int32(0), quotes_so_far[ends[:-1]])
    quotes_before = quotes_so_far - is_quote - before_line[line]  # in the same line
    inside = (quotes_before & 1).astype(np.bool_)
    is_separator = byte == separator
    separators = np.bincount(line[is_separator & ~inside], minlength=len(ends))
    is_open = inside[ends]

    # A line is sound if all its quotes are at the edges of fields, and the last one is closed.
    opening, closing = np.flatnonzero(is_quote & ~inside), np.flatnonzero(is_quote & inside)
    sound = ~is_open
    sound[line[opening][~_opens(data, offsets[opening], separator)]] = False
    sound[line[closing][~_closes(data, offsets[closing], separator)]] = False
    if not sound.all():  # what is inside quotes is unknown there: count all separators
        all_separators = np.bincount(line[is_separator], minlength=len(ends))
        separators = np.where(sound, separators, all_separators)
    after = offsets[ends].astype(np.int64) + 1
    start = np.append(np.int64(0), after[:-1])
    return Lines(start, after - 1, after, separators.astype(np.int64), sound, is_open)


def _opens(data: Bytes, offsets: npt.NDArray[np.integer[Any]], separator: int) -> BoolArray:
    """Return, per offset of a quote, whether it follows a separator or a line end."""
    before = data[offsets - 1]
    opens = (before == separator) | (before == _LINE_END)
    opens[: np.searchsorted(offsets, 1)] = True  # a quote at offset 0 follows nothing
    return np.asarray(opens)


def _closes(data: Bytes, offsets: npt.NDArray[np.integer[Any]], separator: int) -> BoolArray:
    """Return, per offset of a quote, whether it precedes a separator or a line end."""
    behind = data[offsets + 1]  # exists, since a block ends with a line end
    return np.asarray((behind == separator) | (behind == _LINE_END))


def strict_fields(line: bytes, separator: bytes) -> list[bytes] | None:
    """Return the fields of a line, None if its quotes are not those of proper CSV."""
    pattern, fields, offset = re.compile(_STRICT % (separator, separator)), list[bytes](), 0
    while (match := pattern.match(line, offset)) is not None:
        fields.append(match[2] if match[1] is None else match[1].replace(b'""', b'"'))
        offset = match.end()
        if not match[3]:
            return fields
    return None


def _loose_fields(line: bytes, count: int, separator: bytes) -> tuple[list[bytes], int] | None:
    """Return the first `count` fields of a line and the offset behind them; None if too few."""
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


class Mender(Struct):
    """Mends lines that do not fit a table of `columns` fields; counts them in `damage`.

    `free` is the index of the field that may have any text, such as a name; `numbers` are the
    indices of fields of numbers. `joins` counts attempts to join lines, which are limited.
    """

    columns: int
    free: int | None
    separator: bytes
    numbers: Sequence[int]
    damage: Damage
    joins: int = 0

    def mend(self, data: Bytes, lines: Lines, fits: BoolArray) -> tuple[bytes, bool, bool]:
        """Return sound CSV of all lines, whether the last line is kept, and if a row has line ends.

        Lines that fit (`fits` is per line) stay as they are; others are mended or dropped.
        """
        is_empty = lines.start == lines.stop
        is_wrong = ~fits & ~is_empty
        has_all_fields = lines.separators >= self.columns - 1
        # The text of lines that fit, and the offset in it behind each line, where mended rows go.
        length = lines.after - lines.start
        kept = data[lines.start[0] : lines.after[-1]][np.repeat(fits, length)].tobytes()
        kept_up_to: IntArray = np.cumsum(np.where(fits, length, 0))
        pieces, offset, last_used, ends_inside = list[bytes](), 0, -1, False
        # A line with too few fields can only begin a row, if a quote is left open at its end.
        for line in np.flatnonzero(is_wrong & (has_all_fields | lines.open)).tolist():
            is_joined = line <= last_used  # to the row before
            may_join = self.joins < _MOST_JOINS  # joining lines is slow
            if is_joined or not (has_all_fields[line] or may_join):
                continue
            mended, last_used = self._row_from(data, lines, is_wrong, line)
            if mended is not None:
                text, was_repaired = mended  # not repaired if it only looked wrong
                pieces += [kept[offset : kept_up_to[line]], text]
                offset = int(kept_up_to[line])
                self.damage.repaired_rows += was_repaired
                ends_inside |= last_used > line
                is_wrong[line : last_used + 1] = False
        self.damage.dropped_rows += int(is_wrong.sum())
        is_last_kept = bool(not is_wrong[-1] and not is_empty[-1])
        return b"".join([*pieces, kept[offset:]]), is_last_kept, ends_inside

    def _row_from(
        self, data: Bytes, lines: Lines, wrong: BoolArray, line: int
    ) -> tuple[tuple[bytes, bool] | None, int]:
        """Return the mended row that begins with a line (see `row`), and its last line.

        If there is none, return None and the line itself. A row with an open quote may go
        on up to another line with an odd number of quotes.
        """
        begin = int(lines.start[line])
        # With fewer separators it can only be the beginning of a row.
        if lines.separators[line] >= self.columns - 1:
            row = self.row(data[begin : lines.stop[line]].tobytes())
            if row is not None:
                return row, line
        if not lines.open[line] or self.joins >= _MOST_JOINS:
            return None, line
        self.joins += 1
        for last in range(line + 1, min(line + _MOST_LINES_OF_A_ROW, len(lines.start))):
            is_empty = lines.start[last] == lines.stop[last]
            if not (wrong[last] or is_empty):
                break  # a whole row: the open quote is damage
            row = self.row(data[begin : lines.stop[last]].tobytes()) if lines.open[last] else None
            if row is not None:
                return row, last
        return None, line

    def row(self, line: bytes) -> tuple[bytes, bool] | None:
        """Return a line as sound CSV, and whether it was repaired; None if that is impossible."""
        if len(line) > _LONGEST_MENDED:
            return None
        # `lines_of` does not know doubled quotes, line ends inside quotes and a separator too many
        # at the end: only lines with these can be sound.
        may_be_sound = b'""' in line or b"\n" in line or line.endswith(self.separator)
        fields = strict_fields(line, self.separator) if may_be_sound else None
        if fields is not None and len(fields) == self.columns + 1 and not fields[-1]:
            fields.pop()  # a separator behind the last field
        if fields is not None and len(fields) == self.columns:
            row = self.separator.join(map(_quoted, fields)) + b"\n"
            return (row, False) if self._is_sound(fields) else None
        if self.free is None:
            return None
        # The free field is what remains between the fields before it, read from the beginning of
        # the line, and the fields after it, read backwards from the end of the line.
        before = _loose_fields(line, self.free, self.separator)
        after = _loose_fields(line[::-1], self.columns - 1 - self.free, self.separator)
        if before is None or after is None or before[1] + after[1] > len(line):
            return None
        low, high = before[1], len(line) - after[1]
        free = line[low:high]
        if free.startswith(b'"'):
            if len(free) < 2 or not free.endswith(b'"'):
                return None
            free = free[1:-1]
        if not self._is_sound([*before[0], free, *(field[::-1] for field in reversed(after[0]))]):
            return None
        return b"".join((line[:low], _quoted(free), line[high:], b"\n")), True

    def _is_sound(self, row: Sequence[bytes]) -> bool:
        """Return whether all cells of number columns are numbers or words for missing ones."""
        cells = (row[column] for column in self.numbers)
        return all(cell.isdigit() or _NUMBER.fullmatch(cell) for cell in cells)
