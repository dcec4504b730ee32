"""Values of Nsight Compute in base units: bytes, ns, Hz, and whatever is counted.

Units are scaled row by row to print short numbers (Mbyte, us, Ghz); old releases spell them out.
Which decimal mark a file has is known at its end.
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
"""What a cell is: a number, or the code of the note on what is none."""
_NUMBER, _NOT_AVAILABLE, _INSTANCES, _TEXT = range(len(WHATS))
_PREFIXES: Final = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12, "p": 15}
_SCALED: Final = re.compile(r"([KMGTP]?)(byte|bit|hz|inst|cycle|sector|request|op|flop)s?", re.I)
LONGEST: Final = 60
"""Characters of a unit or a number."""
_NUMBER_TEXT: Final = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d{1,3})?|[-+]?inf|nan", re.I)
_LIST: Final = re.compile(r"^([^(]*)\(.*\)?$", re.S)
_COUNTS: Final = re.compile(r"__\w*?(?:inst_|ops_)")
_COUNTED: Final = ("", "inst", "op", "flop", "thread", "warp")
_DIGITS_AND_MARKS: Final = r"^-?[0-9][0-9.,]*$"
_PLAIN: Final = r"^-?[0-9]+(?:\.[0-9]+)?$"
_AMBIGUOUS: Final = r"^-?[0-9]{1,3}[.,][0-9]{3}$"
_LESS_THAN_ONE: Final = r"^0[.,]"
_CLEAR: Final = {
    mark: rf"^-?[0-9]+[{mark}][0-9]*$"
    rf"|^-?[0-9][0-9{other}]*[{other}][0-9{other}]*[{mark}][0-9]*$"
    rf"|^-?[0-9]{{1,3}}(?:[{other}][0-9]{{3}}){{2,}}$"
    for mark, other in (".,", ",.")
}
"""Numbers with a decimal mark alone, behind marks of thousands, and with two of those alone."""


class Unit(NamedTuple):
    """A unit: its base unit, and of how many of those one is, as a power of ten."""

    base: str
    power: int


@cache
def unit_of(text: str) -> Unit:
    """Return a unit, such as Gbyte/s: 10^9 byte/s. An unknown one is a base unit itself."""
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
    """Return whether a unit may be that of a counter, by what the counter's name says it counts.

    Bytes and times have a unit, which is scaled from page to page: without it, or with one that is
    not known, their values are of any size.
    """
    name, _, rollup = counter.partition(".")
    if "__" not in name or ".pct" in counter or rollup.endswith((".pct", ".ratio")):
        return True
    top, _, bottom = unit.base.partition("/")
    if rollup.endswith("per_second"):
        return unit.base == "Hz" or (bottom == "s" and top != "") or bottom in TIME_UNITS
    if "__time_duration" in name:
        return unit.base == "ns"
    if "__bytes" in name or "_t_bytes" in name:
        return top == "byte"
    return _COUNTS.search(name) is None or top in _COUNTED


class Marks(Struct):
    """How often numbers of a file clearly have each decimal mark, and an ambiguous number."""

    counts: Counter[str] = field(default_factory=Counter)
    ambiguous: str = ""

    def see(self, texts: Sequence[str]) -> None:
        """Count the marks of some numbers."""
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
        """Whether the comma is the decimal mark; without evidence it is the point."""
        return self.counts[","] > self.counts["."]

    @property
    def is_open(self) -> bool:
        """Whether a number has a mark and there is no evidence which it is."""
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
    """Return values in base units per row, NaN for what is no number.

    Row i is `texts[text[i]]` of `counters[counter[i]]`: the name of a counter and its unit. `odd`
    counts what is odd; `comma` says that the comma is the decimal mark.
    """
    units = [unit_of(unit) for _, unit in counters]
    fitting = [fits(name, unit) for (name, _), unit in zip(counters, units, strict=True)]
    has_unit = np.array(fitting, np.bool_)[counter]
    power = np.array([unit.power for unit in units], np.int64)[counter]
    powers, index = ranked(power)
    exponents = pa.array([f"e{p}" for p in powers.tolist()]).take(pa.array(index))
    plain, what = plain_numbers(texts, comma=comma)
    what = what[text]
    # As a text, so that a value is the one nearest to what is printed, its power included.
    joined = pc.binary_join_element_wise(plain.take(pa.array(text)), exponents, "")
    values = decimals(pa.chunked_array([pc.cast(joined, pa.float64())]))
    is_number = what == _NUMBER
    is_rounded = is_number & has_unit & (power != 0) & (values != 0)
    rows = {"unit-unknown": is_number & ~has_unit, "values-rounded": is_rounded}
    rows |= {code: what == kind for kind, code in enumerate(WHATS) if kind != _NUMBER}
    odd.update({code: count_true(of_code) for code, of_code in rows.items()})
    return np.where(has_unit, values, np.nan)


def plain_numbers(texts: Sequence[str], *, comma: bool) -> tuple[pa.Array, IntArray]:
    """Return numbers as texts with a decimal point, null for what is none; and indices in WHATS.

    `comma`: the comma is the decimal mark, not the mark of thousands. What is not printed plainly
    is read one by one.
    """
    cells = pa.array(texts, pa.string())
    thousands = "." if comma else ","
    plain = pc.replace_substring(pc.replace_substring(cells, thousands, ""), ",", ".")
    easy = _is_easy(cells)
    is_number = easy & _matches(plain, _PLAIN)
    is_text = easy & (np.asarray(pc.count_substring(plain, ".")) > 1)
    what = np.where(is_number, _NUMBER, _TEXT)
    values = pc.if_else(pa.array(is_number), plain, None)
    others = ~(is_number | is_text)
    if not others.any():
        return values, what
    read: list[str | None] = []
    for row in np.flatnonzero(others).tolist():
        text, value = texts[row].strip(), None
        listed = _LIST.match(text)  # a number before a list in brackets is of all instances
        number = listed[1].strip() if listed else text
        what[row] = _INSTANCES if listed else _TEXT
        if not text or text.lower() in ("n/a", "nan", "-", "none"):
            what[row] = _NOT_AVAILABLE
        elif len(number) <= LONGEST and _NUMBER_TEXT.fullmatch(number):
            with suppress(InvalidOperation):
                decimal = Decimal(number.replace(thousands, "").replace(",", "."))
                if decimal.is_finite() and abs(decimal.adjusted()) < 250:
                    what[row], value = _NUMBER, f"{decimal:f}"
        read.append(value)
    read_values = pa.array(read, pa.string())
    return pc.replace_with_mask(values, pa.array(others), read_values), what


def _is_easy(cells: pa.Array) -> BoolArray:
    """Return which cells are nothing but digits and marks, and no longer than a number is."""
    return _matches(cells, _DIGITS_AND_MARKS) & (np.asarray(pc.binary_length(cells)) <= LONGEST)


def _matches(cells: pa.Array, pattern: str) -> BoolArray:
    return np.asarray(pc.match_substring_regex(cells, pattern), np.bool_)
