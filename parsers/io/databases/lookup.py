"""Values and texts of other tables, found by the ids that a column holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from traceflops.table.columns import IntArray
from traceflops.table.rows import ABSENT, Array, Names

Coder = Callable[[IntArray], Array]
"""Gives the codes of the texts that ids stand for."""

_GAPS: Final = 4
_FEW: Final = 1 << 16
_OPEN: Final = -2


class Lookup:
    """Values by their keys; of two with one key the later counts. Other keys give ABSENT."""

    def __init__(self, keys: IntArray, values: IntArray) -> None:
        known = keys != ABSENT
        if not known.all():
            keys, values = keys[known], values[known]
        self._low = int(keys.min()) if len(keys) else 0
        span = int(keys.max()) - self._low + 1 if len(keys) else 0
        self._dense = span <= _GAPS * len(keys) + _FEW
        if self._dense:  # ids that count up: the last place is for the others
            self._values = np.full(span + 1, ABSENT, dtype=np.int64)
            self._values[keys - self._low] = values
        else:
            order = np.argsort(keys, kind="stable")
            self._keys, self._values = keys[order], values[order]

    def __call__(self, keys: IntArray) -> IntArray:
        """Return the value of each key."""
        if self._dense:
            last = len(self._values) - 1
            inside = (keys >= self._low) & (keys < self._low + last)
            return self._values[np.where(inside, keys - self._low, last)]
        place = np.searchsorted(self._keys, keys, side="right") - 1
        found = (place >= 0) & (self._keys[place] == keys)
        return np.where(found, self._values[place], ABSENT)


class TextsById:
    """Texts by their ids."""

    def __init__(self, ids: IntArray, texts: Sequence[str | None]) -> None:
        self.texts = texts
        self._row = Lookup(ids, np.arange(len(ids)))

    def __getitem__(self, key: int) -> str | None:
        """Return one text; None where there is none."""
        row = int(self._row(np.array([key]))[0])
        return None if row == ABSENT else self.texts[row]

    def coder(self, names: Names, unknown: str | None) -> Coder:
        """Return what gives the codes that the texts of ids have among names.

        An id without a text has the code of `unknown`, -1 where that is None.
        """
        codes = np.full(len(self.texts) + 1, _OPEN, dtype=np.int32)

        def code(ids: IntArray) -> Array:
            row = self._row(ids)
            row = np.where(row == ABSENT, len(self.texts), row)
            found = codes[row]
            for new in np.unique(row[found == _OPEN]).tolist():
                text = (self.texts[new] if new < len(self.texts) else None) or unknown
                codes[new] = -1 if text is None else names[text]
            return codes[row]

        return code


def by_distinct(values: IntArray, number: Callable[[int, int], int]) -> IntArray:
    """Return what a function gives for each value, not to be written to.

    It is asked once for each distinct one, with the first of its rows.
    """
    if not len(values):
        return np.empty(0, dtype=np.int64)
    if (values == values[0]).all():  # takes no memory however many there are
        return np.broadcast_to(np.int64(number(int(values[0]), 0)), len(values))
    distinct, first, place = np.unique(values, return_index=True, return_inverse=True)
    pairs = zip(distinct.tolist(), first.tolist(), strict=True)
    return np.array([number(value, row) for value, row in pairs], dtype=np.int64)[place]
