"""Numbers as people write them, exactly: counts, times, rates, percentages, lists of lengths.

All have one grammar: digits with a decimal point, thousands set off by commas or underscores, an
exponent, a unit. A comma that sets off no thousands is refused, because it may be meant as a point.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from traceflops.errors import UsageError

_NUMBER = re.compile(
    r"(?P<whole>[0-9]{1,30}|[1-9][0-9]{0,2}(?:(?:,[0-9]{3}){1,9}|(?:_[0-9]{3}){1,9}))"
    r"(?:\.(?P<decimals>[0-9]{0,30}))?(?:[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
    r"\s*(?P<unit>[a-zA-Zµ%]*)"
)
_LENGTH = re.compile(r"(?:([1-9][0-9]{0,11})x)?(0|[1-9][0-9]{0,11})")
_POINT = re.compile(r"([0-9]+),([0-9]+)([^0-9,]*|[eE][+-]?[0-9]+[^0-9,]*)")

_SCALES = {
    **{unit: Fraction(10**power) for unit, power in zip("kmbt", (3, 6, 9, 12), strict=True)},
    **{unit: Fraction(1024**power) for unit, power in (("ki", 1), ("mi", 2), ("gi", 3))},
    "": Fraction(1),
}
_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_SHARES = {"": Fraction(1), "%": Fraction(1, 100)}
MOST_LENGTHS = 10_000_000
LONGEST_SHARE = 12
LARGEST, LARGEST_RATE, LONGEST_SECONDS = 10**18, 10**24, 10**9
"""Above every count, rate and time that can be meant: a billion seconds are 31 years."""

_TOKENS = ("8192", "8Ki")
_EXAMPLES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("params", "lora-params"), ("8e9", "8.03B")),
    **dict.fromkeys(("seq", "encoder-seq", "cached"), _TOKENS),
    **dict.fromkeys(("tokens", "real-tokens", "seq-sum"), ("1024", "4e6")),
    **dict.fromkeys(("gpus", "mtp", "frozen-layers"), ("8",)),
    "lora-rank": ("16",),
    "padded-vocab": ("128256",),
}
"""What the counts of some options look like; others are like 1024."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A number and how it was written."""

    value: Fraction
    decimals: int
    unit: str


def parse_count(option: str, text: str) -> int:
    """Return a whole number such as `1024`, `405e9`, `8.03B`, `16k` (decimal) or `16Ki`."""
    found = _read(text, _SCALES)
    if found is None or found.value.denominator != 1 or not 1 <= found.value <= LARGEST:
        examples = _EXAMPLES.get(option.lstrip("-").replace("_", "-"), ("1024",))
        example = " or ".join(f"{option} {a_example}" for a_example in examples)
        raise _bad(option, text, "a whole number from 1 to 1e18", example)
    return int(found.value)


def parse_seconds(option: str, text: str) -> Fraction:
    """Return a time such as `30`, `30s` or `820ms` in seconds; without a unit it is seconds."""
    found = _read(text, _SECONDS)
    if found is None or not 0 < found.value <= LONGEST_SECONDS:
        raise _bad(option, text, "a time above 0", f"{option} 0.82, {option} 820ms or {option} 30s")
    return found.value


def parse_rate(option: str, text: str, example: str = "14079") -> Fraction:
    """Return a positive number such as `14079`, `1300`, `989.5` or `1.2e6`."""
    found = _read(text, _SCALES)
    if found is None or not 0 < found.value <= LARGEST_RATE:
        raise _bad(option, text, "a number above 0", f"{option} {example}")
    return found.value


def parse_lengths(option: str, text: str) -> tuple[int, ...]:
    """Return document lengths such as `512,1024,3x4096`."""
    lengths: list[int] = []
    for part in text.replace(";", ",").split(","):
        match = _LENGTH.fullmatch(part.strip())
        if match is None:
            raise _bad(option, text, "a list of lengths", f"{option} 512,1024,3x4096", comma=True)
        many, length = int(match[1] or 1), int(match[2])
        if len(lengths) + many > MOST_LENGTHS:
            raise UsageError(f"{option} lists more than {MOST_LENGTHS} documents", "give fewer")
        lengths += [length] * many
    return tuple(lengths)


@dataclass(frozen=True, slots=True)
class Reported:
    """A share as somebody printed it: its value, and half a unit of its last digit.

    `percent` is the same figure read as a percentage, where it may be meant as one; then either is
    `ambiguous`.
    """

    value: Fraction
    half_unit: Fraction
    text: str
    percent: Reported | None = None
    ambiguous: bool = False

    @property
    def digits(self) -> int:
        """Return the decimals that it has as a percentage."""
        digits, unit = 0, Fraction(1, 100)
        while self.half_unit * 2 < unit and digits < LONGEST_SHARE:
            digits, unit = digits + 1, unit / 10
        return digits


def parse_reported(option: str, text: str) -> Reported:
    """Return a printed share: `46.2%`, `46.2` (percent, as it is above 1) or `0.462`.

    What has no sign and is 1 at most may be either; then it is a share, and `percent` the other.
    """
    found = _read(text, _SHARES)
    if found is None or found.value <= 0:
        raise _bad(option, text, "a percentage above 0", f"{option} 46.2%")
    unit = Fraction(10) ** -found.decimals
    if found.unit or found.value > 1:
        scale = Fraction(1) if found.unit else Fraction(1, 100)
        return Reported(found.value * scale, unit / 200, text.strip())
    other = Reported(found.value / 100, unit / 200, text.strip(), ambiguous=True)
    return Reported(found.value, unit / 2, text.strip(), other, ambiguous=True)


def parse_share(text: str) -> Fraction | None:
    """Return a plain number such as `0.75`, `1` or `75%`; None for what is none."""
    found = _read(text, _SHARES)
    return found.value if found is not None else None


def decimal_thousands(text: str) -> int | None:
    """Return the number before a `k` that is often meant as 1,024: of `8k` it is 8."""
    match = re.fullmatch(r"([0-9]{1,4})[kK]", text.strip())
    number = int(match[1]) if match else 0
    return number if number & (number - 1) == 0 and number else None


def _read(text: str, units: Mapping[str, Fraction]) -> _Read | None:
    """Return a number with one of some units; None for what is none."""
    match = _NUMBER.fullmatch(text.strip())
    unit = match["unit"] if match is not None else ""
    unit = unit if unit in units else unit.lower()
    if match is None or unit not in units:
        return None
    whole, decimals = re.sub("[,_]", "", match["whole"]), match["decimals"] or ""
    digits = len(decimals) - int(match["exponent"] or 0)
    value = Fraction(int(whole + decimals)) * Fraction(10) ** -digits
    return _Read(value * units[unit], digits, unit)


def _bad(option: str, text: str, what: str, example: str, *, comma: bool = False) -> UsageError:
    """Return the error for what is no such number; a decimal comma is told from other slips."""
    match = None if comma else _POINT.fullmatch(text.strip())
    if match is None:
        return UsageError(f"{option} is not {what}: {text[:60]!r}", f"example: {example}")
    meant = f"{match[1]}.{match[2]}{match[3]}"
    return UsageError(
        f"{option} has a misplaced thousands separator: {text[:60]!r}",
        f"write {option} {meant[:60]} with a decimal point",
    )
