"""Every way to read and to print a time, a share or a count, and the words around them.

Numbers that people write are read exactly: counts, times, rates, percentages, lists of lengths. All
have one grammar: digits with a decimal point, thousands set off by commas or underscores, an
exponent, a unit. A comma that sets off no thousands is refused, because it may be meant as a point.

What is printed are integers (ns, bytes, FLOPs) and exact shares (0 to 1), in one spelling.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Final, TypeVar

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
_BYTES = {
    "b": Fraction(1),
    **{f"{unit}b": Fraction(1000**power) for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}ib": Fraction(1024**power) for power, unit in enumerate("kmgt", 1)},
}
MOST_LENGTHS, LONGEST_SHARE = 10_000_000, 12
LARGEST, LARGEST_RATE, LONGEST_SECONDS = 10**18, 10**24, 10**9
"""Above every count, rate and time that can be meant: a billion seconds are 31 years."""

_EXAMPLES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("params", "lora-params"), ("8e9", "8.03B")),
    **dict.fromkeys(("seq", "encoder-seq", "cached"), ("8192", "8Ki")),
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
    number = _read(text, _SCALES)
    if number is None or number.value.denominator != 1 or not 1 <= number.value <= LARGEST:
        examples = _EXAMPLES.get(option.lstrip("-").replace("_", "-"), ("1024",))
        example = " or ".join(f"{option} {a_example}" for a_example in examples)
        raise _bad(option, text, "a whole number from 1 to 1e18", example)
    return int(number.value)


def parse_seconds(option: str, text: str) -> Fraction:
    """Return a time such as `30`, `30s` or `820ms` in seconds; without a unit it is seconds."""
    number = _read(text, _SECONDS)
    if number is None or not 0 < number.value <= LONGEST_SECONDS:
        raise _bad(option, text, "a time above 0", f"{option} 0.82, {option} 820ms or {option} 30s")
    return number.value


def parse_rate(option: str, text: str, example: str = "14079") -> Fraction:
    """Return a positive number such as `14079`, `1300`, `989.5` or `1.2e6`."""
    number = _read(text, _SCALES)
    if number is None or not 0 < number.value <= LARGEST_RATE:
        raise _bad(option, text, "a number above 0", f"{option} {example}")
    return number.value


def parse_bytes(option: str, text: str) -> Fraction:
    """Return an amount of memory such as `70GB` (decimal) or `64GiB`; the unit is required."""
    number = _read(text, _BYTES)
    if number is None or not 0 < number.value <= LARGEST_RATE:
        raise _bad(option, text, "bytes with a unit", f"{option} 70GB or {option} 64GiB")
    return number.value


def parse_limit(option: str, text: str) -> Fraction:
    """Return a share from 0 to 1, `0.35` or `35%`; what is above 1 was meant as a percentage."""
    number = _read(text, _SHARES)
    if number is None or number.value > 1:
        raise _bad(option, text, "a share from 0 to 1", f"{option} 0.35 or {option} 35%")
    return number.value


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

    `percent` is the same figure read as a percentage, if it may be meant as one; then both are
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

    A number up to 1 without a sign may be either: it is taken as a share, with `percent` set.
    """
    number = _read(text, _SHARES)
    if number is None or number.value <= 0:
        raise _bad(option, text, "a percentage above 0", f"{option} 46.2%")
    unit = Fraction(10) ** -number.decimals
    if number.unit or number.value > 1:
        scale = Fraction(1) if number.unit else Fraction(1, 100)
        return Reported(number.value * scale, unit / 200, text.strip())
    other = Reported(number.value / 100, unit / 200, text.strip(), ambiguous=True)
    return Reported(number.value, unit / 2, text.strip(), other, ambiguous=True)


def parse_share(text: str) -> Fraction | None:
    """Return a plain number such as `0.75`, `1` or `75%`; None for what is none."""
    number = _read(text, _SHARES)
    return number.value if number is not None else None


def decimal_thousands(text: str) -> int | None:
    """Return the number before a `k` that may mean 1,024: 8 for `8k`; None for others.

    Only powers of two may mean that.
    """
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
    """Return the error for a text that is not `what`; for a decimal comma it has its own words.

    Unless commas separate the entries of a list (`comma`).
    """
    match = None if comma else _POINT.fullmatch(text.strip())
    if match is None:
        return UsageError(f"{option} is not {what}: {text[:60]!r}", f"example: {example}")
    meant = f"{match[1]}.{match[2]}{match[3]}"
    return UsageError(
        f"{option} has a misplaced thousands separator: {text[:60]!r}",
        f"write {option} {meant[:60]} with a decimal point",
    )


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
    "start_up": "start-up",
    "idle": "idle time",
}
"""The names of the components of device time and of the lines of a waterfall in all reports."""

_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_OF_ONE: Final = {"have": "has", "are": "is"}
_MOST_LISTED: Final = 5
_T = TypeVar("_T")
_UNITS: Final = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))


def several(number: int, noun: str, more: str = "") -> str:
    """Return a number with its noun, in the plural (`more`: irregular) unless it is one."""
    return f"{number:,} {noun if number == 1 else more or plural(noun)}"


def does(number: int, verb: str) -> str:
    """Return a verb in the form for a number of things: "1 of 5 has", "2 of 5 have"."""
    return verb if number != 1 else _OF_ONE.get(verb, f"{verb}s")


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def listed(
    things: Collection[_T],
    text: Callable[[_T], str] = str,
    between: str = ", ",
    most: int = _MOST_LISTED,
) -> str:
    """Return the first `most` of some things in words, and an ellipsis if there are more."""
    more = ["…"] if len(things) > most else []
    return between.join([*map(text, islice(things, most)), *more])


def capitalized(text: str) -> str:
    """Return a text with its first letter in upper case and the rest as it is."""
    return f"{text[:1].upper()}{text[1:]}"


def uncapitalized(text: str) -> str:
    """Return a text as part of a sentence: its first letter in lower case, but not that of GPU."""
    return text if text[1:2].isupper() else f"{text[:1].lower()}{text[1:]}"


def command_lines(command: str, width: int) -> list[str]:
    """Return a command in indented lines of at most `width`, which a shell reads as one command."""
    whole = _QUOTED.sub(lambda quoted: quoted.group().replace(" ", "\xa0"), command)
    wrapper = textwrap.TextWrapper(width - 2, initial_indent="  ", subsequent_indent=" " * 4)
    wrapper.break_on_hyphens = wrapper.break_long_words = False
    *first, last = (line.replace("\xa0", " ") for line in wrapper.wrap(whole))
    return [*(f"{line} \\" for line in first), last]


def time_amount(ns: int) -> str:
    """Return a time in the largest unit that it is at least one of: "1.500 ms"."""
    unit, size = next((unit for unit in _UNITS if ns >= unit[1]), _UNITS[-1])
    return f"{ns:,} ns" if size == 1 else f"{ns / size:,.3f} {unit}"


def percent(share: float) -> str:
    """Return a share (0 to 1) as "53.5 %"; a share above zero never prints as zero.

    Each share is rounded on its own, so that it has the same digits everywhere.
    """
    text = f"{100 * share:.1f}"
    return "<0.1 %" if text == "0.0" and share > 0 else f"{text} %"


def time_share(share: float, most: str = "up to ") -> str:
    """Return a sum of durations as a share of the time: at most 100 %, since they may overlap."""
    return percent(share) if share <= 1 else f"{most}100 %"


def one_of(options: Mapping[str, object | None]) -> None:
    """Raise UsageError if two of some options, which exclude each other, have a value."""
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
    digits = 0 if unit == "ns" and value == int(value) else max(0, 3 - whole_digits(value))
    return f"{value:,.{digits}f} {unit}"


def unit_for(ns: float) -> str:
    """Return the unit in which a time has one to three digits before the point."""
    # 999.5 would be printed as 1000, which is 1 of the next unit.
    return next((unit for unit, size in reversed(_UNITS) if abs(ns) < 999.5 * size), "s")


def whole_digits(value: float) -> int:
    """Return how many digits stand before the point once a value is rounded to three."""
    value = abs(value)
    return 1 if value < 9.995 else 2 if value < 99.95 else 3


def exact_percent(value: Fraction, digits: int | None = None) -> str:
    """Return a share as `38.2 %`: one decimal from 10 % up, else two; more for tiny ones."""
    hundred = value * 100
    if digits is not None:
        return f"{_rounded(hundred, digits)} %"
    digits = 1 if hundred >= 10 else 2
    # More decimals, at most 12, where these would round to 0.
    while 0 < hundred < Fraction(5, 10 ** (digits + 1)) and digits < 12:
        digits += 1
    return f"{_rounded(hundred, digits)} %"


def significant(value: float | Fraction, digits: int = 4, *, zeros: bool = False) -> str:
    """Return a number with so many significant digits: "51.47", "2,488", "0.03521".

    Zeros at the end of a fraction are left out unless `zeros` keeps them, as columns need.
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
    return _rounded(value, digits).rstrip("0").rstrip(".") if digits else _rounded(value, 0)


def _rounded(value: Fraction, digits: int) -> str:
    """Return a number with exactly so many decimals, thousands separated."""
    scaled = round(value * 10**digits)
    whole, rest = divmod(abs(scaled), 10**digits)
    sign = "-" if scaled < 0 else ""
    return f"{sign}{whole:,}.{rest:0{digits}d}" if digits else f"{sign}{whole:,}"
