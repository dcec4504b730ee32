"""Numbers and names as people read them, the same in the terminal and on the page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

import msgspec

from traceflops import units
from traceflops.categories.kernel_names import without_return_type
from traceflops.characters import kernel_name, shortened
from traceflops.characters import visible as visible
from traceflops.flops.mfu_waterfall import Count
from traceflops.units import significant as significant

UNKNOWN = "\N{EN DASH}"  # what stands where a value is not known

TIME_UNITS = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_SHORT_NS = 10_000
_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FLOP_UNITS = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_ELLIPSIS = "…"
_ELLIPSES = re.compile(f"{_ELLIPSIS}{{2,}}")
_LONGEST_NAME = 10_000  # characters up to which a name is searched by regular expressions
_FUNCTOR = re.compile(
    r"\b(?!(?:[AB]?[UB]n|Bin)aryFunctor)\w+(?:Functor\w*|Op|_kernel_cuda|_kernel_impl|_cuda)\b|"
    r"\b\w+_kernel(?=\()"
)
"""The functor of an element-wise kernel: a name ending like one, or any _kernel with parameters."""
_AT_LINE = re.compile(r" \([^()\s]+\.py:\d+\)$")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[nµm]?s|[kMGTPE]?i?B|[kMGTPEZY]?FLOPs?)\b)| (?=%)")
_LINE_ENDS = tuple(re.compile(f"[^{ends}]*[{ends}]+|[^{ends}]+") for ends in (",", ")#/:", "."))
"""Pieces into which a word longer than a line is split, by kind of punctuation, the best first."""
_BRACKET = re.compile("[()]")
_QUALIFIER = re.compile(r"(?:\b\w+|<unnamed>)::(?=[\w~(<{])")  # a namespace or class before a name


def duration(ns: float | None) -> str:
    """Return a duration in the unit that suits it, "4.12 ms"; a dash for None."""
    return UNKNOWN if ns is None else units.duration(ns)


def place(ns: int, length_ns: int | None = None) -> str:
    """Return a position in time with the digits needed to find it: "30.235 ms", "12.345678 s".

    It is rounded to a microsecond; to a nanosecond below a millisecond, or if what begins there
    (`length_ns` long) is shorter than ten microseconds. Trailing zeros stay, so that the positions
    in a column line up.
    """
    sign = "\N{MINUS SIGN}" if ns < 0 else ""
    is_short = length_ns is not None and length_ns < _SHORT_NS
    finest_ns = 1 if is_short or abs(ns) < TIME_UNITS["ms"] else 1_000
    rounded_ns = (abs(ns) + finest_ns // 2) // finest_ns * finest_ns
    # The largest unit that is not larger than the time, at least a nanosecond.
    units_down = reversed(TIME_UNITS.items())
    unit, unit_ns = next((u, size) for u, size in units_down if rounded_ns >= size or size == 1)
    whole, rest_ns = divmod(rounded_ns, unit_ns)
    digits = len(str(unit_ns // min(finest_ns, unit_ns))) - 1  # 6 for 1 s and a finest of 1 µs
    fraction = f".{rest_ns // finest_ns:0{digits}d}" if digits else ""
    return f"{sign}{whole:,}{fraction} {unit}"


def percent(share: float | None) -> str:
    """Return a share (0 to 1) as "53.5 %", a dash for None."""
    return UNKNOWN if share is None else units.percent(share)


def time_share(share: float | None) -> str:
    """Return a sum of durations as a share of the time, "≤ 100 %" if overlaps make it more."""
    return UNKNOWN if share is None else units.time_share(share, "≤ ")


def unbroken(text: str) -> str:
    """Return a sentence in which no line ends between a number and its unit."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text)


class _Wrapper(textwrap.TextWrapper):
    """Breaks text into lines; a word longer than a line is broken at punctuation if possible."""

    def _split(self, text: str) -> list[str]:
        """Return the pieces between which a line may end."""
        pieces = super()._split(text)
        for line_end in _LINE_ENDS:
            splits = (line_end.findall(p) if len(p) > self.width else [p] for p in pieces)
            pieces = [*chain.from_iterable(splits)]
        return pieces


def wrapped(text: str, width: int) -> list[str]:
    """Return text in lines of at most `width` characters; numbers and their units stay together."""
    lines = _Wrapper(width, break_on_hyphens=False).wrap(unbroken(text))
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def count(number: int | None) -> str:
    """Return a whole number with thousands separators."""
    return UNKNOWN if number is None else f"{number:,}"


def and_more(text: str, more: int) -> str:
    """Return a list in words and how many more items there are, if any: "a, b and 3 more"."""
    return f"{text} and {count(more)} more" if more > 0 else text


def mean_count(number: float) -> str:
    """Return a mean number of things as a whole number; with two digits if it is below 1."""
    return count(round(number)) if number >= 1 else significant(number, 2)


def ratio(value: float | None) -> str:
    """Return a ratio with three digits and at most two decimals, a dash for None."""
    if value is None:
        return UNKNOWN
    digits = max(0, 3 - units.whole_digits(value))
    return f"{value:,.{min(digits, 2)}f}"


def size(number: int | None, *, binary: bool = False) -> str:
    """Return a number of bytes as "1.77 MB", or as "79.1 GiB" where `binary` is set."""
    if number is None:
        return UNKNOWN
    base, names = (1024, _BINARY_UNITS) if binary else (1000, _SIZE_UNITS)
    power = 0
    # From 999.5 on, a number would be printed as 1000, which is 1 of the next unit.
    while power < len(names) - 1 and abs(number) >= 999.5 * base**power:
        power += 1
    value = number / base**power
    decimals = max(0, 3 - units.whole_digits(value)) if power else 0  # bytes are whole numbers
    return f"{value:,.{decimals}f} {names[power]}"


def bandwidth(bytes_per_ns: float | Fraction | None) -> str:
    """Return a rate as "5.2 GB/s" (a byte per ns is 1 GB/s), a dash for None."""
    return UNKNOWN if bytes_per_ns is None else f"{significant(bytes_per_ns, 3)} GB/s"


def flops(number: float | Fraction) -> str:
    """Return a number of FLOPs with four digits and a prefix: "2.488 PFLOP"."""
    scale, prefix = flop_scale(number)
    return f"{significant(Fraction(number) / scale, zeros=True)} {prefix}FLOP"


def flop_scale(number: float | Fraction) -> tuple[int, str]:
    """Return the power of 1000 by which to divide FLOPs to print them, and its prefix."""
    power = 0
    # From 999.95 on, a number would be printed as 1000, which is 1 of the next unit.
    while power < len(_FLOP_UNITS) - 1 and abs(Fraction(number)) * 100 >= 99_995 * 1000**power:
        power += 1
    return 1000**power, _FLOP_UNITS[power]


def shorten_middle(text: str, width: int) -> str:
    """Return text of at most `width` characters that keeps both ends; see `visible`."""
    # `visible` never makes text shorter, so `width` characters of each end are enough. A name of
    # megabytes then costs no more than a short one.
    if len(text) > max(2 * width + 1, _LONGEST_NAME):
        return shortened(f"{visible(text[:width])}{visible(text[len(text) - width :])}", width)
    # The text may have an ellipsis where it is cut: one is enough.
    return _ELLIPSES.sub(_ELLIPSIS, shortened(visible(text), max(width, 0)))


def kernel_label(name: str, width: int) -> str:
    """Return a kernel's name in at most `width` characters, keeping what distinguishes kernels.

    The return type and the suffix of a kernel descriptor (.kd) are always removed. If the rest is
    too long, these are removed until it fits: `(anonymous namespace)::`, the parameter list, other
    namespaces (or all but the functor of an element-wise kernel), the middle. The function's own
    name is kept whole if there is room. Of an extremely long name only the middle is removed.
    """
    name = without_return_type(kernel_name(name))
    if len(name) <= width or len(name) > _LONGEST_NAME:
        return shorten_middle(name, width)
    if at_line := _AT_LINE.search(name):  # a Python function: keep its file and line whole
        file_and_line = at_line[0] if width > len(at_line[0]) + len(_ELLIPSIS) else ""
        function = name.removesuffix(file_and_line)
        return shorten_middle(function, width - len(file_and_line)) + file_and_line
    label = _unreturned(name)
    if len(label) > width and label.endswith(")"):
        label = label[: _opening(label)] or label
    if len(label) > width:
        label = visible(_by_functor(label) or unqualified(label))
    # `shorten_middle` keeps 3/5 of the width at the front, which would cut a longer own name.
    own_length = label.find("<") + 1
    tail = width - own_length - 1
    if len(label) > width and own_length > width - 1 - (width - 1) * 2 // 5 and tail > 0:
        return f"{label[:own_length]}{_ELLIPSIS}{label[-tail:]}"
    return shorten_middle(label, width)


def kernel_text(name: str) -> str:
    """Return a kernel's name without namespaces and parameters, an element-wise one by functor."""
    if len(name) > _LONGEST_NAME:
        return name
    label = _unreturned(kernel_name(name))
    opening = _opening(label) if label.endswith(")") else 0
    # Brackets behind a blank are no parameters: "Memcpy HtoD (Pinned -> Device)".
    if opening and label[opening - 1] != " ":
        label = label[:opening]
    return _by_functor(label) or unqualified(label) or name


def unqualified(name: str) -> str:
    """Return a name without all namespaces in it; an extremely long one unchanged."""
    return _QUALIFIER.sub("", _unreturned(name)) if len(name) <= _LONGEST_NAME else name


def _unreturned(name: str) -> str:
    """Return a name without its return type and anonymous namespaces."""
    return without_return_type(name).replace("(anonymous namespace)::", "")


def _by_functor(label: str) -> str:
    """Return an element-wise kernel by the functor that distinguishes it, "" for other kernels."""
    functor, head = _FUNCTOR.search(label), label[: label.find("<")]
    if functor is None or "elementwise" not in head:
        return ""
    return f"{head.rpartition('::')[2]}<{_ELLIPSIS}{functor.group()}{_ELLIPSIS}>"


def _opening(text: str) -> int:
    """Return the index of the bracket that the last one closes, 0 if there is none."""
    depth = 0
    for bracket in reversed([*_BRACKET.finditer(text)]):
        depth += 1 if bracket.group() == ")" else -1
        if depth == 0:
            return bracket.start()
    return 0


def apportioned(parts: Sequence[int], whole: int) -> list[int]:
    """Return integers in proportion to parts that sum to `whole` (largest remainder), or all 0."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    shares = [part * whole // total for part in parts]
    # What rounding down left over goes, one by one, to the parts that lost most by it.
    by_remainder = sorted(range(len(parts)), key=lambda i: -(parts[i] * whole % total))
    for i in by_remainder[: whole - sum(shares)]:
        shares[i] += 1
    return shares


def flop_count(name: str, value: Count | None) -> dict[str, Any]:
    """Return a count as JSON: a number under `name`, and its exact text under `name_text`."""
    if value is None:
        return {name: None, f"{name}_text": None}
    # The encoder refuses integers of more than 64 bits, so their digits are given as raw JSON.
    is_whole = value.denominator == 1
    number = msgspec.Raw(str(int(value)).encode()) if is_whole else float(value)
    return {name: number, f"{name}_text": str(value)}


def as_float(value: Fraction | None) -> float | None:
    """Return a fraction as a float, None for None."""
    return float(value) if value is not None else None


def fields(record: object, *names: str) -> dict[str, Any]:
    """Return these fields of a record by name for JSON: fractions as floats, tuples as lists."""

    def for_json(value: Any) -> Any:
        if isinstance(value, Fraction):
            return float(value)
        return list(value) if isinstance(value, tuple) else value

    return {name: for_json(getattr(record, name)) for name in names}


def with_sign(text: str, value: float | Fraction) -> str:
    """Return the text of an amount after the sign of its value, no sign for 0: "+39.4 ms"."""
    sign = "\N{MINUS SIGN}" if value < 0 else "+" if value > 0 else ""
    return f"{sign}{text}"


def signed_duration(ns: float) -> str:
    """Return a difference of times with its sign: "+39.4 ms"."""
    return with_sign(duration(abs(ns)), ns)


def signed_percent(share: float | Fraction) -> str:
    """Return a difference of shares with its sign: "+8.1 %"."""
    return with_sign(percent(abs(float(share))), share)


def times_between(times_ns: Sequence[float | Fraction], between: str) -> str:
    """Return times joined by `between`, all in the unit of the longest: "11.4 → 67.5 ms"."""
    unit = units.unit_for(float(max(times_ns)))
    values = (significant(ns / TIME_UNITS[unit], 3, zeros=True) for ns in times_ns)
    return f"{between.join(values)} {unit}"


def time_span(ends_ns: Sequence[float | Fraction]) -> str:
    """Return a range of times, a single time if both ends look alike: "11.4 to 67.5 ms"."""
    unit = units.unit_for(float(max(ends_ns)))
    values = (significant(ns / TIME_UNITS[unit], 3, zeros=True) for ns in ends_ns)
    return f"{' to '.join(dict.fromkeys(values))} {unit}"
