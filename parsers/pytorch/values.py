"""Converts lists of decoded JSON values to numpy columns, exactly, most by one numpy call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from traceflops.parsers.io.json_window import UNDECODABLE
from traceflops.table.columns import ABSENT, LIMIT_NS, BoolArray, IntArray, Names

_FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}), in (\S{1,200})')
_OF_TORCH = re.compile(r"(?:^|/)torch/")
_EXACT_BELOW_US = 2**43
_INT64_MAX = 2**63 - 1
_NONE = type(None)
_THOUSANDTHS = re.compile(rb"(?:-?[0-9]+\.[0-9]{3}(?:,|$))+")


class DigitsLost(Exception):
    """A time with decimals is beyond 2^43 microseconds, where a double is not exact to the ns."""


def as_text(value: object) -> str:
    """Return a name as text, whatever JSON type the writer used."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def optional_codes(names: Names, values: Iterable[Any]) -> npt.NDArray[np.int32]:
    """Return the codes in `names` of texts, -1 for None."""
    codes = (-1 if value is None else names[as_text(value)] for value in values)
    return np.fromiter(codes, dtype=np.int32)


def json_codes(names: Names, texts: Sequence[msgspec.Raw]) -> npt.NDArray[np.int32]:
    """Return the codes in `names` of JSON lists, reformatted compactly; -1 for other texts."""
    given = [bytes(text) for text in texts]
    codes = [names[_compact(text)] if text.startswith(b"[") else -1 for text in given]
    return np.array(codes, dtype=np.int32)


@lru_cache(1 << 14)
def _compact(text: bytes) -> str:
    with suppress(*UNDECODABLE):
        text = msgspec.json.format(text, indent=-1)
    return text.decode(errors="replace")


def integers(values: Sequence[Any]) -> IntArray:
    """Return values as int64, ABSENT for those that are no integers (see `integer`)."""
    kinds = set(map(type, values))
    if kinds == {int, _NONE}:
        values = [ABSENT if value is None else value for value in values]
    elif not kinds <= {int}:
        return _narrowed(values)
    return typed_integers(values)


def typed_integers(values: Sequence[int]) -> IntArray:
    """Return values that are known to be integers as int64; 2^63 and above wraps around."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return _narrowed(values)


def _narrowed(values: Sequence[Any]) -> IntArray:
    return np.fromiter(map(integer, values), dtype=np.int64, count=len(values))


def integer(value: object) -> int:
    """Return an integer, also of text or float, as int64 (2^63 wraps around), else ABSENT."""
    if isinstance(value, str):
        text = value.strip()
        # An int64 has 19 digits: 40 leave room for zeros and are parsed quickly.
        if not text.removeprefix("-").isdecimal() or len(text) > 40:
            return ABSENT
        value = int(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ABSENT
    if isinstance(value, float):
        if not value.is_integer() or abs(value) > _INT64_MAX:
            return ABSENT
        value = int(value)
    wrapped = value & (2**64 - 1)
    return wrapped - 2**64 if wrapped > _INT64_MAX else wrapped


def trailing_integer(value: object) -> int:
    """Return a number, or the one at the end of a text such as `stream 7`, else ABSENT."""
    if isinstance(value, str) and " " in value:
        value = value.rsplit(" ", 1)[1]
    return integer(value)


def trailing_integers(values: Sequence[Any]) -> IntArray:
    """Return thread, process or stream ids as int64, ABSENT for those without a number."""
    if set(map(type, values)) <= {int}:
        return typed_integers(values)
    return np.fromiter(map(trailing_integer, values), dtype=np.int64, count=len(values))


def nanoseconds(values: Sequence[Any]) -> tuple[IntArray, BoolArray]:
    """Return microsecond times as integer nanoseconds, and which of the values are valid times.

    Raises DigitsLost if a time was decoded as a double that is not exact to the ns.
    """
    kinds = set(map(type, values))
    if kinds == {_NONE}:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.bool_)
    # Usual lists at once: of integers, of numbers, of raw texts with three decimals. If that cannot
    # be exact, an error leads to the slow way at the end.
    if kinds <= {int}:
        with suppress(OverflowError):
            whole = np.fromiter(values, np.int64, len(values))
            if len(whole) and max(int(whole.max()), -int(whole.min())) > LIMIT_NS // 1000:
                raise OverflowError
            return whole * 1000, np.ones(len(values), dtype=np.bool_)
    elif kinds <= {int, float}:
        with suppress(OverflowError):
            micros = np.array(values, dtype=np.float64)
            if np.abs(micros).max() < _EXACT_BELOW_US:
                return _rounded_nanoseconds(micros), np.ones(len(values), dtype=np.bool_)
    elif kinds == {msgspec.Raw}:
        with suppress(ValueError, OverflowError):
            text = b",".join(map(bytes, values))
            if not _THOUSANDTHS.fullmatch(text):
                raise ValueError
            digits = text.replace(b".", b"").split(b",")
            printed = np.fromiter(map(int, digits), np.int64, len(digits))
            if max(int(printed.max()), -int(printed.min())) > LIMIT_NS:
                raise OverflowError
            return printed, np.ones(len(values), dtype=np.bool_)
    if any(value.__class__ is float and abs(value) >= _EXACT_BELOW_US for value in values):
        raise DigitsLost
    times = [exact_nanoseconds(value) for value in values]
    is_time = np.array([time is not None for time in times], np.bool_)
    return np.array([time or 0 for time in times], np.int64), is_time


def _rounded_nanoseconds(micros: npt.NDArray[np.float64]) -> IntArray:
    """Return times below 2^43 microseconds in nanoseconds.

    A decimal of at most three places is at most 2^-11 away from its double there, and its
    fraction times 1000 at most 0.49: rounding gives back the exact thousandths.
    """
    floor = np.floor(micros)
    return floor.astype(np.int64) * 1000 + np.rint((micros - floor) * 1000).astype(np.int64)


def exact_nanoseconds(value: object) -> int | None:
    """Return one time in microseconds (number, text or raw JSON) as nanoseconds, or None."""
    if isinstance(value, msgspec.Raw):
        value = bytes(value).decode(errors="replace")
    text = str(value).strip().strip('"').strip()
    try:
        micros = Decimal(text)
    except (ArithmeticError, ValueError):
        return None
    if not micros.is_finite() or micros.copy_abs() > LIMIT_NS // 1000:
        return None
    scaled = micros.scaleb(3)
    whole = scaled.to_integral_value()
    if scaled != whole and micros.copy_abs() < _EXACT_BELOW_US:
        # Round as `nanoseconds` does: the result must not depend on how the block was decoded.
        return int(_rounded_nanoseconds(np.array([float(micros)]))[0])
    return int(whole)


def triples(values: Sequence[Any]) -> IntArray:
    """Return lists [x, y, z] as an (n, 3) array; values that are no such list are ABSENT."""
    if set(map(type, values)) == {tuple}:  # decoded as three integers
        return typed_integers([*chain.from_iterable(values)]).reshape(-1, 3)
    out = np.full((len(values), 3), ABSENT, dtype=np.int64)
    rows = [n for n, v in enumerate(values) if isinstance(v, list | tuple) and len(v) == 3]
    flat = [item for row in rows for item in values[row]]
    out[rows] = integers(flat).reshape(-1, 3)
    return out


def source_lines(stack: object) -> str | None:
    """Return the lines of code that a fused kernel came from, one per text in a list of stacks.

    It is the innermost frame outside PyTorch, else the innermost one. None if there is no frame.
    """
    lines: dict[str, None] = {}
    for text in stack[:100] if isinstance(stack, list) else ():
        frames = ["{}({}): {}".format(*frame) for frame in _FRAME.findall(as_text(text))]
        own = [frame for frame in frames if not _OF_TORCH.search(frame)]
        lines |= dict.fromkeys((own or frames)[-1:])
    return ", ".join(lines) or None


def first_known(first: IntArray, *others: IntArray) -> IntArray:
    """Return, per row, the first value that is not ABSENT."""
    for other in others:
        first = np.where(first == ABSENT, other, first)
    return first
