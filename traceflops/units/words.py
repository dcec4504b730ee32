"""Words and numbers in the sentences of notes and errors."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Final, TypeVar

from traceflops.errors import UsageError

DESCRIPTION_WORDS: Final = (
    *("model", "params", "mtp", "padded_vocab", "expert_capacity"),
    *("batch", "seq", "tokens", "real_tokens", "documents", "seq_sum", "seq_square_sum"),
    *("sequences", "encoder_seq", "forward_only", "cached", "gpus", "dtype"),
    *("lora", "lora_rank", "lora_targets", "lora_params", "frozen", "frozen_layers"),
    *("checkpointing", "attention_kernel"),
)
"""What a trace may say of its own run: options of `traceflops mfu`, without the dashes."""

PART_NAMES: Final = {
    "executed": "executed",
    "useful": "useful work",
    "recompute": "recomputation",
    "algorithmic": "attention recomputation",
    "overcompute": "masks and padding",
    "unattributed": "compute, FLOPs unknown",
    "inefficiency": "compute below peak",
    "compute": "compute",
    "memory": "memory work",
    "other": "uncategorized kernels",
    "graph": "graph launches",
    "communication": "exposed communication",
    "idle": "idle time",
}
"""What the components of the device time and the lines of a waterfall are called, everywhere."""

_DESCRIPTOR: Final = re.compile(r"(?: ?\[clone \.kd\]| \(\.kd\)|\.kd)$")
_FRAME: Final = re.compile(r"(?:[^\s()]*/)?([^\s/()]+\.py|<\w+>)\((\d+)\): (\S+)")
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_OF_ONE: Final = {"have": "has", "are": "is"}
_MOST_LISTED: Final = 5
_T = TypeVar("_T")
_UNITS: Final = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))


def several(number: int, noun: str, more: str = "") -> str:
    """Return a number with its noun, in the plural where it is not one: "1 event", "2 copies".

    `more` is the plural of what has none by the rules of `plural`.
    """
    return f"{number:,} {noun if number == 1 else more or plural(noun)}"


def does(number: int, verb: str) -> str:
    """Return a verb as it follows so many things: "1 of 5 has", "2 of 5 have"."""
    return verb if number != 1 else _OF_ONE.get(verb, f"{verb}s")


def some_of(number: int, total: int, noun: str, verb: str) -> str:
    """Return how many of all, and the verb that follows: "2 of 5 events have"."""
    return f"{number:,} of {several(total, noun)} {does(number, verb)}"


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def listed(things: Collection[_T], text: Callable[[_T], str] = str, between: str = ", ") -> str:
    """Return the first five of some things in words, and an ellipsis where there are more."""
    more = ["…"] if len(things) > _MOST_LISTED else []
    return between.join([*map(text, islice(things, _MOST_LISTED)), *more])


def capitalized(text: str) -> str:
    """Return a text with its first letter in upper case and the rest as it is."""
    return f"{text[:1].upper()}{text[1:]}"


def uncapitalized(text: str) -> str:
    """Return a text with its first letter in lower case and the rest as it is."""
    return f"{text[:1].lower()}{text[1:]}"


def command_lines(command: str, width: int) -> list[str]:
    """Return a command line, indented, in lines that a shell takes for one."""
    whole = _QUOTED.sub(lambda quoted: quoted.group().replace(" ", "\xa0"), command)
    wrapper = textwrap.TextWrapper(
        width - 2,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    *first, last = (line.replace("\xa0", " ") for line in wrapper.wrap(whole))
    return [*(f"{line} \\" for line in first), last]


def kernel_name(text: str) -> str:
    """Return the name of a kernel without the ending that marks its descriptor (.kd)."""
    return _DESCRIPTOR.sub("", text)


def function_name(text: str) -> str:
    """Return a name in which a Python frame, "path/file.py(12): f", reads "f (file.py:12)"."""
    return _FRAME.sub(r"\3 (\1:\2)", text)


def time_amount(ns: int) -> str:
    """Return a time in the largest unit of which it holds one."""
    unit, size = next((unit for unit in _UNITS if ns >= unit[1]), _UNITS[-1])
    return f"{ns:,} ns" if size == 1 else f"{ns / size:,.3f} {unit}"


def percent(share: float) -> str:
    """Return a share (0 to 1) as "53.5 %"; what is not zero never prints as zero.

    Each share is rounded on its own, wherever it stands: one thing has the same digits everywhere.
    """
    text = f"{100 * share:.1f}"
    return "<0.1 %" if text == "0.0" and share > 0 else f"{text} %"


def one_of(options: Mapping[str, object | None]) -> None:
    """Refuse options that exclude each other: raise UsageError where two of them have a value."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} are mutually exclusive", "give one of them")


def duration(ns: float) -> str:
    """Return a time in the unit that suits it, with three significant digits: "4.12 ms".

    Zeros stay, so that times below each other line up ("4.10 ms"); whole ns have no fraction, and
    from 1000 s on, seconds are whole.
    """
    unit = unit_for(ns)
    value = ns / dict(_UNITS)[unit]
    is_whole = unit == "ns" and value == int(value)
    return f"{value:,.{0 if is_whole else max(0, 3 - whole_digits(value))}f} {unit}"


def unit_for(ns: float) -> str:
    """Return the unit in which a time has one to three digits before the point."""
    # 999.5 would be printed as 1000, which is 1 of the next unit.
    return next((unit for unit, size in reversed(_UNITS) if abs(ns) < 999.5 * size), "s")


def whole_digits(value: float) -> int:
    """Return how many digits stand before the point once a value is rounded to three."""
    value = abs(value)
    return 1 if value < 9.995 else 2 if value < 99.95 else 3


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


def significant(value: float | Fraction, digits: int = 4, *, zeros: bool = False) -> str:
    """Return a number with so many digits, thousands separated: "51.47", "2,488", "0.03521".

    Zeros at the end of a fraction are left out unless `zeros` keeps them, as a column needs them.
    """
    if not value:
        return "0"
    exact = Fraction(value)
    rounded = round(exact, digits - 1 - _magnitude(exact))
    places = digits - 1 - _magnitude(rounded)
    text = f"{Decimal(rounded.numerator) / rounded.denominator:,.{max(places, 0)}f}"
    return text if zeros or "." not in text else text.rstrip("0").rstrip(".")


def _magnitude(value: Fraction) -> int:
    """Return the power of ten of a number's first digit."""
    return (Decimal(value.numerator) / Decimal(value.denominator)).adjusted()


def decimal(value: Fraction, digits: int) -> str:
    """Return a number with at most so many decimals, thousands separated."""
    text = _rounded(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _rounded(value: Fraction, digits: int) -> str:
    scaled = round(value * 10**digits)
    whole, rest = divmod(abs(scaled), 10**digits)
    sign = "-" if scaled < 0 else ""
    return f"{sign}{whole:,}.{rest:0{digits}d}" if digits else f"{sign}{whole:,}"
