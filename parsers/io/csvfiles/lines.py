"""The lines of a block of CSV text and which are sound, found for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceflops.table import BoolArray, IntArray

Bytes = npt.NDArray[np.uint8]

QUOTE: Final = 34
_LINE_END: Final = 10


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a block, in order.

    A line is data[start:stop] without its end, and the next begins at `after`. `separators` counts
    those outside quotes; of a line that is not sound all of them. `sound` says that each quote
    opens or closes a whole field, `open` that the last one does not close.
    """

    start: IntArray
    stop: IntArray
    after: IntArray
    separators: IntArray
    sound: BoolArray
    open: BoolArray

    def __len__(self) -> int:
        return len(self.start)


def line_starts(data: Bytes) -> IntArray:
    """Return where the lines of a block begin that ends with a line end."""
    return np.append(np.int64(0), np.flatnonzero(data == _LINE_END)[:-1] + 1)


def is_regular(data: Bytes, separator: int) -> bool:
    """Return whether the quotes of a block open and close whole fields in turn.

    Then a reader that finds no row with more or fewer fields than it should has read it right.
    """
    quotes = np.flatnonzero(data == QUOTE)
    if len(quotes) % 2:
        return False
    opens, closes = quotes[::2], quotes[1::2]
    return bool(_opens(data, opens, separator).all() and _closes(data, closes, separator).all())


def lines_of(data: Bytes, separator: int) -> Lines:
    """Return the lines of a block that ends with a line end."""
    special = np.flatnonzero((data == separator) | (data == QUOTE) | (data == _LINE_END))
    at = special.astype(np.int32)
    byte = data[at]
    ends = np.flatnonzero(byte == _LINE_END)
    is_quote = byte == QUOTE
    line = np.repeat(np.arange(len(ends), dtype=np.int32), np.diff(ends, prepend=-1))
    so_far = np.cumsum(is_quote, dtype=np.int32)
    before_line = np.append(np.int32(0), so_far[ends[:-1]])
    rank = so_far - is_quote - before_line[line]  # quotes that precede it in its line
    inside = (rank & 1).astype(np.bool_)
    is_separator = byte == separator
    separators = np.bincount(line[is_separator & ~inside], minlength=len(ends))
    odd = inside[ends]
    wrong = np.concatenate(
        [
            line[is_quote & ~inside][~_opens(data, at[is_quote & ~inside], separator)],
            line[is_quote & inside][~_closes(data, at[is_quote & inside], separator)],
        ]
    )
    sound = ~odd
    sound[wrong] = False
    if not sound.all():
        every = np.bincount(line[is_separator], minlength=len(ends))
        separators = np.where(sound, separators, every)
    after = at[ends].astype(np.int64) + 1
    start = np.append(np.int64(0), after[:-1])
    return Lines(start, after - 1, after, separators.astype(np.int64), sound, odd)


def _opens(data: Bytes, at: npt.NDArray[np.integer[Any]], separator: int) -> BoolArray:
    before = data[at - 1]
    found = (before == separator) | (before == _LINE_END)
    found[: np.searchsorted(at, 1)] = True  # the very first byte
    return np.asarray(found)


def _closes(data: Bytes, at: npt.NDArray[np.integer[Any]], separator: int) -> BoolArray:
    behind = data[at + 1]  # a block ends with a line end, so there is one
    return np.asarray((behind == separator) | (behind == _LINE_END))
