"""Shares and numbers as text, exact until they are rounded."""

from __future__ import annotations

from fractions import Fraction


def exact_percent(value: Fraction, digits: int | None = None) -> str:
    """Return a share as `38.2 %`: one decimal from 10 % up, else two, more only for tiny ones.

    `digits` asks for another number of decimals.
    """
    hundred = value * 100
    if digits is not None:
        return f"{_rounded(hundred, digits)} %"
    digits = 1 if hundred >= 10 else 2
    while 0 < hundred < Fraction(5, 10 ** (digits + 1)) and digits < 12:
        digits += 1
    return f"{_rounded(hundred, digits)} %"


def decimal(value: Fraction, digits: int) -> str:
    """Return a number with at most so many decimals, thousands separated."""
    text = _rounded(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _rounded(value: Fraction, digits: int) -> str:
    scaled = round(value * 10**digits)
    whole, rest = divmod(abs(scaled), 10**digits)
    sign = "-" if scaled < 0 else ""
    return f"{sign}{whole:,}.{rest:0{digits}d}" if digits else f"{sign}{whole:,}"
