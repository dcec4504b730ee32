"""Rows of one table as numpy columns that arrive in pieces, and the texts behind their codes.

A column is int64 with ABSENT for null, or int32 codes of texts with a negative for null. Nothing
here knows Arrow, so that a process that only decodes starts quickly.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceflops.table.columns import dictionary_column

ABSENT: Final = -(2**63)
"""Stands for a missing integer in an int64 column."""

Array = npt.NDArray[Any]


class Names(dict[str, int]):
    """Distinct texts in the order in which they were first seen; `names[text]` is its code.

    Once there are `most` of them, all further texts count as `beyond`; as none where that is None.
    """

    most: int = sys.maxsize
    beyond: str | None = None
    overflowed: bool = False

    def __missing__(self, text: str) -> int:
        """Give a text that was not seen before the next code."""
        if len(self) < self.most:
            code = len(self)
            self[text] = code
            return code
        self.overflowed = True
        return -1 if self.beyond is None else self.setdefault(self.beyond, len(self))

    def codes(self, texts: Iterable[str]) -> npt.NDArray[np.int32]:
        """Return the code of each text."""
        return np.fromiter(map(self.__getitem__, texts), dtype=np.int32)


class Rows:
    """Collects rows; a column that a piece does not have is null in its rows.

    A text column holds codes of `names[column]`; a plain number stands in all rows of its piece.
    """

    def __init__(self) -> None:
        self.count = 0
        self.names: defaultdict[str, Names] = defaultdict(Names)
        self.pieces: list[tuple[int, dict[str, Array | int]]] = []

    def add(self, count: int, /, **columns: Array | int) -> None:
        """Append `count` rows."""
        if count:
            self.pieces.append((count, columns))
            self.count += count

    def absorb(self, other: Rows) -> None:
        """Append the rows of another collector, its texts recoded to the codes here."""
        code_here = {
            column: np.append(self.names[column].codes(names), np.int32(-1))  # -1 stays -1
            for column, names in other.names.items()
        }
        for count, columns in other.pieces:
            for column, code in code_here.items():
                if column in columns:
                    columns[column] = code[columns[column]]
            self.add(count, **columns)


def narrow(values: Array) -> Array:
    """Return int64 values as int32 where they fit: columns wait in memory until all is read."""
    is_whole = values.dtype == np.int64 and values.size > 0
    fits = is_whole and int(values.min()) >= -(2**31) and int(values.max()) < 2**31
    return values.astype(np.int32) if fits else values


def text_column(values: Sequence[str | None]) -> pa.DictionaryArray:
    """Return a dictionary column of texts, null where there is none."""
    names = Names()
    codes = [-1 if text is None else names[text] for text in values]
    return dictionary_column(np.array(codes, dtype=np.int32), list(names))
