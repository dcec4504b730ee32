"""Values of a page while it is not known yet which mark is that of decimals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from traceflops.columns import IntArray
from traceflops.groups import joint_codes
from traceflops.parsers.csvfiles.marks import clear_mark, is_ambiguous
from traceflops.parsers.nsight.ncu.units import fits, unit_of, value_of
from traceflops.rows import Array

_BOTH = (False, True)


@dataclass(slots=True)
class Marks:
    """How often numbers of a file clearly have which decimal mark, and one that may have any."""

    told: Counter[str] = field(default_factory=Counter)
    ambiguous: str = ""

    def see(self, text: str) -> None:
        """Look at a number."""
        mark = clear_mark(text)
        if mark is not None:
            self.told[mark] += 1
        elif not self.ambiguous and is_ambiguous(text):
            self.ambiguous = text

    @property
    def comma(self) -> bool:
        """Return whether the comma is the decimal mark; where nothing tells it is the point."""
        return self.told[","] > self.told["."]

    @property
    def is_open(self) -> bool:
        """Return whether a number has a mark and nothing tells which it is."""
        return bool(self.ambiguous) and not self.told


@dataclass(slots=True)
class Values:
    """Values read with the point for decimals and with the comma, and what was odd either way."""

    pieces: list[Array] = field(default_factory=list)
    odd: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))

    def add(self, values: Array) -> None:
        """Append some, a row for either mark."""
        same = np.array_equal(values[0], values[1], equal_nan=True)
        self.pieces.append(values[:1] if same else values)

    def read(self, *, comma: bool) -> tuple[Array, Counter[str]]:
        """Return all values as they read with one of the marks, and what is odd then."""
        parts = [piece[-1] if comma else piece[0] for piece in self.pieces]
        return np.concatenate(parts) if parts else np.empty(0), self.odd[comma]


def values_of(
    texts: Sequence[str],
    text: IntArray,
    counters: Sequence[tuple[str, str]],
    counter: IntArray,
    into: Values,
    marks: Marks,
) -> Array:
    """Return values in base units for either decimal mark, NaN for what is no number.

    `counters` are names of counters with the unit in which each row is. What is odd is counted.
    """
    for one in texts:
        marks.see(one.strip())
    pairs, place, times = np.unique(
        joint_codes(text, counter), return_inverse=True, return_counts=True
    )
    width = int(counter.max(initial=0)) + 1
    found = np.full((2, len(pairs)), np.nan)
    known = [fits(name, unit_of(unit)) for name, unit in counters]
    powers = [unit_of(unit).power for _, unit in counters]
    for at, (pair, count) in enumerate(zip(pairs.tolist(), times.tolist(), strict=True)):
        of = pair % width
        for comma in _BOTH:
            what, value = value_of(texts[pair // width], comma=comma)
            if value is None or not known[of]:
                into.odd[comma][what if value is None else "unit"] += count
            else:
                found[int(comma), at] = float(value.scaleb(powers[of]))
                into.odd[comma]["scaled"] += count if powers[of] and value else 0
    return found[:, place.reshape(-1)]
