"""The events of rocprof's (v1) JSON, of all blocks together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceflops.parsers.rocprof.v1.block import V1Rows
from traceflops.parsers.shared import Spans, spans
from traceflops.table import ABSENT, Array, IntArray, Names

_UNNAMED = "(unnamed)"


class AllRows:
    """Rows by kind, in the order of the text."""

    def __init__(self) -> None:
        self._pieces: defaultdict[str, list[V1Rows]] = defaultdict(list)
        self._rows: dict[str, V1Rows] = {}

    def absorb(self, rows: Mapping[str, V1Rows]) -> None:
        """Add what one block gives; blocks are added in the order of the text."""
        for kind, piece in rows.items():
            self._pieces[kind].append(piece)

    def join(self) -> None:
        """Put the blocks together: all are known."""
        self._rows = {kind: _joined(pieces) for kind, pieces in self._pieces.items()}
        self._pieces.clear()

    def __contains__(self, kind: str) -> bool:
        """Return whether there are rows of a kind."""
        return kind in self._rows

    def __getitem__(self, kind: str) -> V1Rows:
        """Return the rows of a kind."""
        return self._rows[kind]

    def column(self, kind: str, name: str) -> IntArray:
        """Return a column, ABSENT in all rows where the file has none."""
        rows = self._rows.get(kind) or V1Rows()
        return rows.columns.get(name, np.full(rows.count, ABSENT, dtype=np.int64))

    def names(self, kind: str, names: Names) -> Array:
        """Return the codes of the names of rows in a table."""
        rows = self._rows[kind]
        return names.codes(name or _UNNAMED for name in rows.names)[rows.columns["name"]]

    def spans(self, kind: str, odd: Counter[str]) -> Spans:
        """Return the starts and durations of rows that have a time."""
        return spans(self.column(kind, "start"), self.column(kind, "end"), odd)

    def together(self, kinds: Sequence[str], columns: Sequence[str]) -> dict[str, IntArray]:
        """Return columns of several kinds, one behind the other."""
        nothing = np.empty(0, dtype=np.int64)
        return {
            name: np.concatenate([nothing, *(self.column(kind, name) for kind in kinds)])
            for name in columns
        }


def _joined(pieces: Sequence[V1Rows]) -> V1Rows:
    whole = V1Rows(sum(piece.count for piece in pieces))
    for piece in pieces:
        codes = whole.names.codes(piece.names)
        if "name" in piece.columns:
            piece.columns["name"] = codes[piece.columns["name"]]
    for name in dict.fromkeys(name for piece in pieces for name in piece.columns):
        whole.columns[name] = np.concatenate(
            [p.columns.get(name, np.full(p.count, ABSENT, dtype=np.int64)) for p in pieces]
        )
    for counter in dict.fromkeys(name for piece in pieces for name in piece.counters):
        whole.counters[counter] = np.concatenate(
            [p.counters.get(counter, np.full(p.count, np.nan)) for p in pieces]
        )
    return whole
