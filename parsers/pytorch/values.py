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

from traceflops.parsers.io.json_text import UNDECODABLE
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
    """Return a name as text, whatever JSON type the writer used; "" for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)


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
    """Return an integer, also of text or whole float, as int64 (2^63 wraps around), else ABSENT."""
    if isinstance(value, str):
        text = value.strip()
        # An int64 has 19 digits: 40 leave room for zeros and are parsed quickly.
        if not text.removeprefix("-").isdecimal() or len(text) > 40:
            return ABSENT
        number = int(text)
    elif isinstance(value, float):
        if not value.is_integer() or abs(value) > _INT64_MAX:
            return ABSENT
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        return ABSENT
    wrapped = number & (2**64 - 1)
    return wrapped - 2**64 if wrapped > _INT64_MAX else wrapped


def trailing_integer(value: object) -> int:
    """Return an integer, or the one at the end of a text such as `stream 7`, else ABSENT."""
    return integer(value.rsplit(" ", 1)[-1] if isinstance(value, str) else value)


def trailing_integers(values: Sequence[Any]) -> IntArray:
    """Return thread, process or stream ids as int64, ABSENT for those without a number."""
    if set(map(type, values)) <= {int}:
        return typed_integers(values)
    return np.fromiter(map(trailing_integer, values), dtype=np.int64, count=len(values))


def nanoseconds(values: Sequence[Any]) -> tuple[IntArray, BoolArray]:
    """Return times in microseconds as whole nanoseconds, and which of the values are valid times.

    Raises DigitsLost if a time was decoded as a double that is not exact to the ns.
    """
    kinds = set(map(type, values))
    if kinds == {_NONE}:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.bool_)
    times = _nanoseconds_at_once(values, kinds)
    if times is not None:
        return times, np.ones(len(values), dtype=np.bool_)
    if any(value.__class__ is float and abs(value) >= _EXACT_BELOW_US for value in values):
        raise DigitsLost
    exact = [exact_nanoseconds(value) for value in values]
    is_time = np.array([time is not None for time in exact], np.bool_)
    return np.array([time or 0 for time in exact], np.int64), is_time


def _nanoseconds_at_once(values: Sequence[Any], kinds: set[type]) -> IntArray | None:
    """Return times in ns if values of these types can be converted at once and exactly, or None."""
    with suppress(OverflowError, ValueError):  # too large for 64 bits, or for `int`
        if kinds <= {int}:
            whole = np.fromiter(values, np.int64, len(values))
            is_small = not len(whole) or _largest(whole) <= LIMIT_NS // 1000
            return whole * 1000 if is_small else None
        if kinds <= {int, float}:
            micros = np.array(values, dtype=np.float64)
            is_exact = np.abs(micros).max() < _EXACT_BELOW_US
            return _rounded_nanoseconds(micros) if is_exact else None
        text = b",".join(map(bytes, values)) if kinds == {msgspec.Raw} else b""
        if _THOUSANDTHS.fullmatch(text):  # b"1.250,12.500" -> 1250, 12500
            digits = text.replace(b".", b"").split(b",")
            thousandths = np.fromiter(map(int, digits), np.int64, len(digits))
            return thousandths if _largest(thousandths) <= LIMIT_NS else None
    return None


def _largest(values: IntArray) -> int:
    """Return the largest absolute value."""
    return max(int(values.max()), -int(values.min()))


def _rounded_nanoseconds(micros: npt.NDArray[np.float64]) -> IntArray:
    """Return times below 2^43 microseconds in nanoseconds.

    Doubles there are at most 2^-11 us apart from the decimal of three places that they stand for,
    which is less than half a nanosecond: rounding gives back the exact thousandths.
    """
    floor = np.floor(micros)
    return floor.astype(np.int64) * 1000 + np.rint((micros - floor) * 1000).astype(np.int64)


def exact_nanoseconds(value: object) -> int | None:
    """Return one time in microseconds (number, text or raw JSON) as nanoseconds, or None."""
    if isinstance(value, msgspec.Raw):
        value = bytes(value).decode(errors="replace")
    try:
        micros = Decimal(str(value).strip().strip('"').strip())
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
    array = np.full((len(values), 3), ABSENT, dtype=np.int64)
    rows = [n for n, v in enumerate(values) if isinstance(v, list | tuple) and len(v) == 3]
    flat = [item for row in rows for item in values[row]]  # of [None, [4, 1, 2]]: [4, 1, 2]
    array[rows] = integers(flat).reshape(-1, 3)
    return array


def source_lines(stacks: object) -> str | None:
    """Return the lines of code that a fused kernel came from, one per stack; None without frames.

    It is the innermost frame outside PyTorch, else the innermost one.
    """
    lines: dict[str, None] = {}
    for text in stacks[:100] if isinstance(stacks, list) else ():
        frames = ["{}({}): {}".format(*frame) for frame in _FRAME.findall(as_text(text))]
        program_frames = [frame for frame in frames if not _OF_TORCH.search(frame)]
        lines |= dict.fromkeys((program_frames or frames)[-1:])
    return ", ".join(lines) or None


def first_known(first: IntArray, *others: IntArray) -> IntArray:
    """Return, per row, the first value that is not ABSENT: [ABSENT 1], [2 3] -> [2 1]."""
    known = first
    for other in others:
        known = np.where(known == ABSENT, other, known)
    return known
