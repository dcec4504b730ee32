"""All intact rows of a table of a database that is damaged somewhere, each of them once.

Rows are read up to the damage; what lies behind it is halved until nothing more can be read. The
number of attempts is bounded, so the time is linear.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

Row = tuple[Any, ...]
"""A row as SQLite gives it, its row number first."""

Scan = Callable[[int, int], Iterator[list[Row]]]
"""Gives the rows whose numbers lie between two (inclusive), in order.

It raises Damaged, once it has given the rows before the damage.
"""

FAULTS: Final = (sqlite3.Error, MemoryError)
"""What a damaged file can bring: SQLite is out of memory where a length in it is nonsense."""

LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
_MOST_FAILURES: Final = 4_000
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
    failures: int = 0

    def rows(self, low: int, high: int) -> Iterator[list[Row]]:
        """Give the intact rows with numbers between two."""
        try:
            for rows in self.scan(low, high):
                self.read += len(rows)
                low = rows[-1][0] + 1
                yield rows
            return
        except Damaged:
            self.failures += 1
        low, high = self._bounds(low, high)
        if low < high and self.failures < _MOST_FAILURES:
            middle = (low + high) // 2
            yield from self.rows(low, middle)
            yield from self.rows(middle + 1, high)
        elif self.lost is not None:
            self.lost += max(0, high - low + 1)

    def front(self) -> Iterator[list[Row]]:
        """Give the rows up to the damage, of a table whose rows have no numbers."""
        try:
            for rows in self.scan(LOWEST, HIGHEST):
                self.read += len(rows)
                yield rows
        except Damaged:
            self.lost = None

    def _bounds(self, low: int, high: int) -> tuple[int, int]:
        """Return between which numbers there may be rows behind damage."""
        if high == HIGHEST and self.last is not None:
            high = self.last
        elif high == HIGHEST:  # how many there were is not known: see whether there are some near
            self.lost = None
            high = 0 if low == LOWEST else low + self.read + _FEW_ROWS
        return min(1, high) if low == LOWEST else low, high
