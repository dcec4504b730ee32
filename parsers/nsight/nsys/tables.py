"""The tables of a report of Nsight Systems, wherever they lie: a database or a folder of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from traceflops.parsers.io import Batch, ByteSource, Condition, Wanted
from traceflops.table import Note


class Tables(Protocol):
    """Tables whose columns are asked for by name; what is not there is absent in all rows."""

    source: ByteSource

    @property
    def tables(self) -> frozenset[str]:
        """Return the names of the tables."""

    @property
    def damaged(self) -> bool:
        """Return whether something of them is lost."""

    @property
    def lost(self) -> frozenset[str]:
        """Return the tables of which rows are lost, among those that were asked for so far."""

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; none where there is no such table."""

    def whole(self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()) -> Batch:
        """Return the rows of a table at once."""

    def batches(
        self, table: str, wanted: Wanted, conditions: Sequence[Condition] = ()
    ) -> Iterator[Batch]:
        """Give the rows of a table some at a time."""

    def notes(self, label: Callable[[str], str] = str) -> tuple[Note, ...]:
        """Return what was lost and mended so far."""
