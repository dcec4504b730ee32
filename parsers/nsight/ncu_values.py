"""Converts values of Nsight Compute to base units: bytes, ns, Hz, and what else is counted.

Units have prefixes (Mbyte, us, Ghz) row by row. A file's decimal mark is known only at its end.
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

from traceflops.parsers.io.csv_cells import clear_mark, decimals, is_ambiguous
from traceflops.parsers.nsight.stats_layouts import TIME_UNITS
from traceflops.table.columns import Array, BoolArray, IntArray, count_true
from traceflops.table.grouping import ranked

WHATS: Final = ("number", "not-available", "instances-unread", "no-number")
"""What a cell is: a number, or the code of the note on cells that are not."""
_NUMBER, _NOT_AVAILABLE, _INSTANCES, _TEXT = range(len(WHATS))
_PREFIXES: Final = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12, "p": 15}
_SCALED: Final = re.compile(r"([KMGTP]?)(byte|bit|hz|inst|cycle|sector|request|op|flop)s?", re.I)
LONGEST: Final = 60
"""The most characters of a unit or a number."""
_MOST_DIGITS: Final = 250
"""A number with fewer digits is a double, also in the base unit, and short when written out."""
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
"""Numbers that tell the decimal mark: with it alone at an unusual place, behind marks of thousands,
and with two or more marks of thousands (the other mark)."""


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
    """Return whether a unit fits a counter, by what the counter's name says it counts.

    Bytes and times are printed in different units: without a known unit their value is unknown.
    """
    name, _, rollup = counter.partition(".")
    # A label has its unit in it; percentages and ratios have none that is printed in several ways.
    if "__" not in name or ".pct" in counter or rollup.endswith(".ratio"):
        return True
    top, _, bottom = unit.base.partition("/")
    if rollup.endswith("per_second"):
        return unit.base == "Hz" or bottom in TIME_UNITS
    if "__time_duration" in name:
        return unit.base == "ns"
    if "__bytes" in name or "_t_bytes" in name:
        return top == "byte"
    # Instructions and operations have a unit that counts such things, or none; others have any.
    return _COUNTS.search(name) is None or top in ("", "inst", "op", "flop", "thread", "warp")


class Marks(Struct):
    """How many numbers of a file clearly have each decimal mark, and one that is ambiguous."""

    counts: Counter[str] = field(default_factory=Counter)
    ambiguous: str = ""

    def see(self, texts: Sequence[str]) -> None:
        """Count the marks of some numbers."""
        # Patterns on all cells at once decide the easy ones; the others follow one by one.
        cells = pa.array(texts, pa.string())
        easy = _is_easy(cells)
        unclear = easy & _matches(cells, _AMBIGUOUS) & ~_matches(cells, _LESS_THAN_ONE)
        for mark, pattern in _CLEAR.items():
            clear = easy & ~unclear & _matches(cells, pattern)
            self.counts[mark] += count_true(clear)
        examples = [texts[row] for row in np.flatnonzero(unclear)[:1].tolist()]
        for row in np.flatnonzero(~easy).tolist():
            text = texts[row].strip()
            if (mark_of_text := clear_mark(text)) is not None:
                self.counts[mark_of_text] += 1
            elif is_ambiguous(text):
                examples.append(text)
        self.ambiguous = self.ambiguous or next(iter(examples), "")

    @property
    def comma(self) -> bool:
        """Whether the comma is the decimal mark; if that is unclear, it is the point."""
        return self.counts[","] > self.counts["."]

    @property
    def is_open(self) -> bool:
        """Whether a number is ambiguous and no number tells the decimal mark."""
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

    Row i is the number `texts[text[i]]` of `counters[counter[i]]`, which is a counter's name and
    unit. `odd` counts cells by the codes of notes. `comma`: the comma is the decimal mark.
    """
    units = [unit_of(unit) for _, unit in counters]
    fitting = [fits(name, unit) for (name, _), unit in zip(counters, units, strict=True)]
    has_unit = np.array(fitting, np.bool_)[counter]
    power = np.array([unit.power for unit in units], np.int64)[counter]
    powers, index = ranked(power)
    exponents = pa.array([f"e{p}" for p in powers.tolist()]).take(pa.array(index))
    plain, what = plain_numbers(texts, comma=comma)
    what = what[text]
    # Append the power to the text ("1.5e9") and convert that: exact, unlike a multiplication.
    joined = pc.binary_join_element_wise(plain.take(pa.array(text)), exponents, "")
    values = decimals(pa.chunked_array([pc.cast(joined, pa.float64())]))
    is_number = what == _NUMBER
    # Only a unit with a prefix leaves a few digits; a 0 is not counted.
    is_rounded = is_number & has_unit & (power != 0) & (values != 0)
    rows = {"unit-unknown": is_number & ~has_unit, "values-rounded": is_rounded}
    rows |= {code: what == kind for kind, code in enumerate(WHATS) if kind != _NUMBER}
    odd.update({code: count_true(of_code) for code, of_code in rows.items()})
    return np.where(has_unit, values, np.nan)


def plain_numbers(texts: Sequence[str], *, comma: bool) -> tuple[pa.Array, IntArray]:
    """Return numbers with a decimal point, null for other texts; and indices in WHATS."""
    cells = pa.array(texts, pa.string())
    thousands = "." if comma else ","
    plain = pc.replace_substring(pc.replace_substring(cells, thousands, ""), ",", ".")
    easy = _is_easy(cells)  # digits and marks: patterns decide all of them at once
    is_number = easy & _matches(plain, r"^-?[0-9]+(?:\.[0-9]+)?$")
    is_text = easy & (np.asarray(pc.count_substring(plain, ".")) > 1)  # such as a version
    what = np.where(is_number, _NUMBER, _TEXT)
    values = pc.if_else(pa.array(is_number), plain, None)
    others = ~(is_number | is_text)  # n/a, lists, exponents: read one by one
    if not others.any():
        return values, what
    read: list[str | None] = []
    for row in np.flatnonzero(others).tolist():
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
        read.append(value)
    read_values = pa.array(read, pa.string())
    return pc.replace_with_mask(values, pa.array(others), read_values), what


def _is_easy(cells: pa.Array) -> BoolArray:
    """Return which cells are at most LONGEST digits, points and commas, with a sign or not."""
    return _matches(cells, r"^-?[0-9][0-9.,]*$") & (np.asarray(pc.binary_length(cells)) <= LONGEST)


def _matches(cells: pa.Array, pattern: str) -> BoolArray:
    return np.asarray(pc.match_substring_regex(cells, pattern), np.bool_)
