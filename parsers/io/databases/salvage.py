"""All intact rows of a table of a database that is damaged somewhere, each of them once.

Rows are read from the front up to the damage, then from the back down to it; what lies between is
halved until nothing more can be read. The number of attempts is bounded, so the time is linear.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

Row = tuple[Any, ...]
"""A row as SQLite gives it, its row number first."""

Scan = Callable[[int, int, bool], Iterator[list[Row]]]
"""Gives the rows whose numbers lie between two (inclusive), in order or, if True, in reverse order.

It raises Damaged, once it has given the rows before the damage.
"""

FAULTS: Final = (sqlite3.Error, MemoryError)
"""What a damaged file can bring: SQLite is out of memory where a length in it is nonsense."""

LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
_MOST_FAILURES: Final = 1_000
_FEW_ROWS: Final = 1 << 16


class Damaged(Exception):
    """Rows behind this place cannot be reached from before it."""


@dataclass(slots=True)
class Salvage:
    """Reads a table around its damage.

    `last` is the highest row number by the database's own account, None where it keeps none.
    Afterwards `read` and `lost` are numbers of rows, of which `lost` is an upper bound, and None
    where there is none: also where pages refer to each other so that the gap cannot be seen.
    """

    scan: Scan
    last: int | None = None
    read: int = 0
    lost: int | None = 0
    _failures: int = 0

    def rows(self, parts: Sequence[tuple[int, int]]) -> Iterator[list[Row]]:
        """Give the intact rows with numbers between some, in no particular order."""
        pending = deque(parts)
        while pending:
            gap = yield from self._from_both_ends(*pending.popleft())
            if gap is not None:
                pending.extend(self._halves(*gap))
        if self._failures and self.lost == 0:
            self.lost = None

    def front(self) -> Iterator[list[Row]]:
        """Give the rows up to the damage, of a table whose rows have no numbers."""
        try:
            for rows in self.scan(LOWEST, HIGHEST, False):
                self.read += len(rows)
                yield rows
        except Damaged:
            self.lost = None

    def _from_both_ends(
        self, low: int, high: int
    ) -> Generator[list[Row], None, tuple[int, int] | None]:
        """Give the rows of an interval; return the part of it that could not be read, if any."""
        try:
            for rows in self.scan(low, high, False):
                self.read += len(rows)
                low = rows[-1][0] + 1
                yield rows
            return None
        except Damaged:
            self._failures += 1
        try:
            for rows in self.scan(low, high, True):
                self.read += len(rows)
                high = rows[-1][0] - 1
                yield rows
            return None
        except Damaged:
            self._failures += 1
        return (low, high) if low <= high else None

    def _halves(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return what to try next of an interval that cannot be read from either end."""
        if high == HIGHEST and self.last is not None:
            high = self.last
        elif high == HIGHEST:  # how many there were is not known: see whether there are some near
            self.lost = None
            high = 0 if low == LOWEST else low + self.read + _FEW_ROWS
        if low == LOWEST:
            low = min(1, high)
        if low > high:
            return []
        if low == high or self._failures >= _MOST_FAILURES:
            if self.lost is not None:
                self.lost += high - low + 1
            return []
        middle = (low + high) // 2
        return [(low, middle), (middle + 1, high)]
