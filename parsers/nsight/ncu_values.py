"""Converts values of Nsight Compute to base units: bytes, ns, Hz, instructions, cycles ...

Each row has its own unit prefix (Mbyte, us, Ghz). A file's decimal mark is known only at its end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from traceflops.parsers.io.csv_cells import clear_mark, is_ambiguous
from traceflops.parsers.nsight.stats_layouts import TIME_UNITS
from traceflops.table.columns import (
    Array,
    BoolArray,
    IntArray,
    count_true,
    flag_column,
    flags,
    floats,
    number_column,
    numbers,
    only_where,
    string_column,
)
from traceflops.table.grouping import ranked

WHATS: Final = ("number", "not-available", "instances-unread", "no-number")
"""Kinds of cells: numbers, and the codes of the notes on all other kinds."""
_NUMBER, _NOT_AVAILABLE, _INSTANCES, _TEXT = range(len(WHATS))
_PREFIXES: Final = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12, "p": 15}
_SCALED: Final = re.compile(r"([KMGTP]?)(byte|bit|hz|inst|cycle|sector|request|op|flop)s?", re.I)
LONGEST: Final = 60
"""The most characters of a unit or a number."""
_MOST_DIGITS: Final = 250
"""A number with a smaller exponent fits a double, even in its base unit."""
_NUMBER_TEXT: Final = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d{1,3})?|[-+]?inf|nan", re.I)
_LIST: Final = re.compile(r"^([^(]*)\(.*\)?$", re.S)
_COUNTS: Final = re.compile(r"__\w*?(?:inst_|ops_)")
_AMBIGUOUS: Final = r"^-?[0-9]{1,3}[.,][0-9]{3}$"
_LESS_THAN_ONE: Final = r"^0[.,]"
_CLEAR: Final = {
    mark: rf"^-?[0-9]+[{mark}][0-9]*$"
    rf"|^-?[0-9][0-9{other}]*[{other}][0-9{other}]*[{mark}][0-9]*$"
    rf"|^-?[0-9]{{1,3}}(?:[{other}][0-9]{{3}}){{2,}}$"
    for mark, other in (".,", ",.")
}
"""By decimal mark, the numbers that show that the file uses it: with only this mark (1.5), with it
after thousands marks (1,234.5), or with two thousands marks and no decimal mark (1,234,567)."""


class Unit(NamedTuple):
    """A unit of 10^power times its base unit."""

    base: str
    power: int


@cache
def unit_of(text: str) -> Unit:
    """Return the unit of a text: Gbyte/s is 10^9 byte/s. An unknown text is its own base unit."""
    top, _, bottom = text.strip()[:LONGEST].partition("/")
    base, power = top, 0
    if top.lower() in TIME_UNITS:
        base, power = "ns", TIME_UNITS[top.lower()]
    elif match := _SCALED.fullmatch(top):
        word = match[2].lower()
        base, power = "Hz" if word == "hz" else word, _PREFIXES[match[1].lower()]
    if not bottom:
        return Unit(base, power)
    if bottom.lower() in TIME_UNITS:
        # Per ns is 10^9 times per second.
        power += 9 - TIME_UNITS[bottom.lower()]
        return Unit("Hz" if base == "cycle" else f"{base}/s", power)
    return Unit(f"{base}/{bottom}", power)


def fits(counter: str, unit: Unit) -> bool:
    """Return whether a counter can have a unit, by what the counter's name says it counts.

    A value whose unit does not fit is unknown: its factor to the base unit is not known.
    """
    name, _, rollup = counter.partition(".")
    # The unit is part of a label's name. Percentages and ratios are printed in only one unit.
    if "__" not in name or ".pct" in counter or rollup.endswith(".ratio"):
        return True
    top, _, bottom = unit.base.partition("/")
    if rollup.endswith("per_second"):
        return unit.base == "Hz" or bottom in TIME_UNITS
    if "__time_duration" in name:
        return unit.base == "ns"
    if "__bytes" in name or "_t_bytes" in name:
        return top == "byte"
    # Instructions and operations have a unit of such things or none; other counters may have any.
    return _COUNTS.search(name) is None or top in ("", "inst", "op", "flop", "thread", "warp")


class Marks(Struct):
    """How many numbers of a file clearly use each decimal mark, and the first ambiguous number."""

    counts: Counter[str] = field(default_factory=Counter)
    ambiguous: str = ""

    def see(self, texts: Sequence[str]) -> None:
        """Count the decimal marks of printed numbers."""
        # Patterns on all cells at once decide plain numbers; other texts follow one by one.
        cells = string_column(texts)
        is_plain = _is_plain(cells)
        # In 1.234 the mark may separate thousands; in 0.234 it cannot.
        may_be_thousands = _matches(cells, _AMBIGUOUS) & ~_matches(cells, _LESS_THAN_ONE)
        is_unclear = is_plain & may_be_thousands
        for mark, pattern in _CLEAR.items():
            shows_mark = is_plain & ~is_unclear & _matches(cells, pattern)
            self.counts[mark] += count_true(shows_mark)
        examples = [texts[row] for row in np.flatnonzero(is_unclear)[:1].tolist()]
        for row in np.flatnonzero(~is_plain).tolist():
            text = texts[row].strip()
            if (mark_of_text := clear_mark(text)) is not None:
                self.counts[mark_of_text] += 1
            elif is_ambiguous(text):
                examples.append(text)
        self.ambiguous = self.ambiguous or next(iter(examples), "")

    @property
    def comma(self) -> bool:
        """Whether the comma is the decimal mark; where numbers do not tell, the point is."""
        return self.counts[","] > self.counts["."]

    @property
    def is_open(self) -> bool:
        """Whether a number is ambiguous and no other number shows the decimal mark."""
        return bool(self.ambiguous) and not self.counts.total()


def values_of(
    texts: Sequence[str],
    text: IntArray,
    counters: Sequence[tuple[str, str]],
    counter: IntArray,
    odd: Counter[str],
    *,
    comma: bool,
) -> Array:
    """Return the value of each row in base units, NaN if it is no number or its unit is unknown.

    Row i has the text `texts[text[i]]` of the counter `counters[counter[i]]`, a name and a unit.
    Counts odd rows in `odd` by the code of their note. `comma`: the comma is the decimal mark.
    """
    units = [unit_of(unit) for _, unit in counters]
    fitting = [fits(name, unit) for (name, _), unit in zip(counters, units, strict=True)]
    has_unit = np.array(fitting, np.bool_)[counter]
    power = np.array([unit.power for unit in units], np.int64)[counter]
    # Append the power to the text ("1.5e9") and convert that: exact, unlike a multiplication.
    powers, index = ranked(power)
    exponents = string_column([f"e{n}" for n in powers.tolist()]).take(number_column(index))
    plain, what_of_text = plain_numbers(texts, comma=comma)
    joined = pc.binary_join_element_wise(
        plain.take(number_column(text)), exponents, string_column([""])[0]
    )
    values = floats(pc.cast(joined, pa.float64()))
    what = what_of_text[text]
    is_number = what == _NUMBER
    # ncu rounds values of prefixed units to a few digits; a 0 is exact.
    is_rounded = is_number & has_unit & (power != 0) & (values != 0)
    odd_rows = {"unit-unknown": is_number & ~has_unit, "values-rounded": is_rounded}
    odd_rows |= {code: what == kind for kind, code in enumerate(WHATS) if kind != _NUMBER}
    odd.update({code: count_true(rows) for code, rows in odd_rows.items()})
    return np.where(has_unit, values, np.nan)


def plain_numbers(texts: Sequence[str], *, comma: bool) -> tuple[pa.Array, IntArray]:
    """Return each text as a number with a decimal point, null if it is none, and its kind.

    Kinds are indices in WHATS. `comma`: the comma is the decimal mark of the texts.
    """
    cells = string_column(texts)
    thousands = "." if comma else ","
    pointed = pc.replace_substring(pc.replace_substring(cells, thousands, ""), ",", ".")
    is_plain = _is_plain(cells)  # patterns decide all of these at once
    is_number = is_plain & _matches(pointed, r"^-?[0-9]+(?:\.[0-9]+)?$")
    is_text = is_plain & (numbers(pc.count_substring(pointed, ".")) > 1)  # such as a version
    what = np.where(is_number, _NUMBER, _TEXT)
    values = only_where(flag_column(is_number), pointed)
    is_other = ~(is_number | is_text)  # n/a, lists, exponents: read one by one
    if not is_other.any():
        return values, what
    other_values: list[str | None] = []
    for row in np.flatnonzero(is_other).tolist():
        text, value = texts[row].strip(), None
        listed = _LIST.match(text)  # the total of all instances, then a list of them in brackets
        number = listed[1].strip() if listed else text
        what[row] = _INSTANCES if listed else _TEXT
        if not text or text.lower() in ("n/a", "nan", "-", "none"):
            what[row] = _NOT_AVAILABLE
        elif len(number) <= LONGEST and _NUMBER_TEXT.fullmatch(number):
            with suppress(InvalidOperation):
                decimal = Decimal(number.replace(thousands, "").replace(",", "."))
                if decimal.is_finite() and abs(decimal.adjusted()) < _MOST_DIGITS:
                    what[row], value = _NUMBER, f"{decimal:f}"
        other_values.append(value)
    values = pc.replace_with_mask(values, flag_column(is_other), string_column(other_values))
    return values, what


def _is_plain(cells: pa.Array) -> BoolArray:
    """Return which cells are at most LONGEST digits, points and commas, maybe after a minus."""
    return _matches(cells, r"^-?[0-9][0-9.,]*$") & (numbers(pc.binary_length(cells)) <= LONGEST)


def _matches(cells: pa.Array, pattern: str) -> BoolArray:
    return flags(pc.match_substring_regex(cells, pattern))
