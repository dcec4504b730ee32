"""Numbers as people write them, exactly: counts, times, rates, percentages, lists of lengths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from traceflops.errors import UsageError

_NUMBER = r"([0-9]{1,30})(?:\.([0-9]{0,30}))?(?:[eE]([+-]?[0-9]{1,2}))?"
_COUNT = re.compile(_NUMBER + r"\s*([kKmMbBtT]?)")
_TIME = re.compile(_NUMBER + r"\s*(ns|us|µs|ms|s|min|h)?")
_LENGTH = re.compile(r"(?:([0-9]{1,12})x)?([0-9]{1,12})")
_SHARE = re.compile(_NUMBER + r"\s*(%?)")
_SCALES = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}
_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
MOST_LENGTHS = 10_000_000
LARGEST, LARGEST_RATE, LONGEST_SECONDS = 10**18, 10**24, 10**9
"""Above every count, rate and time that can be meant: a billion seconds are 31 years."""


def parse_count(option: str, text: str) -> int:
    """Return a whole number such as `1024`, `405e9`, `8.03B` or `16k` (decimal thousands)."""
    match = _COUNT.fullmatch(text.strip().replace("_", "").replace(",", ""))
    value = _decimal(match) * 10 ** _SCALES[match[4].lower()] if match else Fraction(0)
    if value.denominator != 1 or not 1 <= value <= LARGEST:
        what = "a whole number from 1 to 1e18"
        raise _bad(option, text, what, f"{option} 1024, {option} 16k or {option} 8e9")
    return int(value)


def parse_seconds(option: str, text: str) -> Fraction:
    """Return a time such as `30`, `30s` or `820ms` in seconds; without a unit it is seconds."""
    match = _TIME.fullmatch(text.strip())
    value = _decimal(match) * _SECONDS[match[4] or "s"] if match else Fraction(0)
    if not 0 < value <= LONGEST_SECONDS:
        raise _bad(option, text, "a time above 0", f"{option} 0.82, {option} 820ms or {option} 30s")
    return value


def parse_rate(option: str, text: str, example: str = "14079") -> Fraction:
    """Return a positive number such as `14079`, `1300`, `989.5` or `1.2e6`."""
    match = _COUNT.fullmatch(text.strip().replace("_", "").replace(",", ""))
    value = _decimal(match) * 10 ** _SCALES[match[4].lower()] if match else Fraction(0)
    if not 0 < value <= LARGEST_RATE:
        raise _bad(option, text, "a number above 0", f"{option} {example}")
    return value


def parse_lengths(option: str, text: str) -> tuple[int, ...]:
    """Return document lengths such as `512,1024,3x4096`."""
    lengths: list[int] = []
    for part in text.replace(";", ",").split(","):
        match = _LENGTH.fullmatch(part.strip())
        if match is None:
            raise _bad(option, text, "a list of lengths", f"{option} 512,1024,3x4096")
        many, length = int(match[1] or 1), int(match[2])
        if len(lengths) + many > MOST_LENGTHS:
            raise UsageError(f"{option} names more than {MOST_LENGTHS} documents", "give fewer")
        lengths += [length] * many
    return tuple(lengths)


@dataclass(frozen=True, slots=True)
class Reported:
    """A share as somebody printed it: its value, and half a unit of its last digit."""

    value: Fraction
    half_unit: Fraction
    text: str


def parse_reported(option: str, text: str) -> Reported:
    """Return a printed share: `46.2%`, `46.2` (percent, as it is above 1) or `0.462`."""
    match = _SHARE.fullmatch(text.strip())
    value = _decimal(match) if match else Fraction(0)
    if match is None or value <= 0:
        raise _bad(option, text, "a percentage above 0", f"{option} 46.2%")
    scale = Fraction(1, 100) if match[4] or value > 1 else Fraction(1)
    digits = len(match[2] or "") - int(match[3] or 0)
    return Reported(value * scale, Fraction(10) ** -digits * scale / 2, text.strip())


def parse_share(text: str) -> Fraction | None:
    """Return a plain number such as `0.75`, `1` or `75%`; None for what is none."""
    match = _SHARE.fullmatch(text.strip())
    return _decimal(match) / (100 if match[4] else 1) if match else None


def _decimal(match: re.Match[str]) -> Fraction:
    whole, decimals, exponent = match[1], match[2] or "", int(match[3] or 0)
    return Fraction(int(whole + decimals)) * Fraction(10) ** (exponent - len(decimals))


def _bad(option: str, text: str, what: str, example: str) -> UsageError:
    return UsageError(f"{option} is not {what}: {text[:60]!r}", f"write e.g. {example}")
