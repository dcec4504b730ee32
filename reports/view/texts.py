"""Words of facts: `texts.toml` has a text per code, and a fact's values fill it.

`{share:percent}` prints the value `share` as a percentage; `_PRINTED` has all formats, and several
apply one after the other. `{count:launch|launches}` prints a number and its noun, `{count:?is|are}`
only the word that fits the number. A part in brackets is left out if a value in it is missing:
`takes {share:percent}[ of {of}]`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any, Final

from traceflops import units
from traceflops.devices.device_facts import gib
from traceflops.facts import Fact, Value
from traceflops.reports.view import figures

_OPTIONAL: Final = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")
_PRINTED: Final[Mapping[str, Callable[[Any], str]]] = {
    "percent": lambda share: units.percent(float(share)),
    "whole_percent": lambda share: ">99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %",
    "time_share": units.time_share,
    "exact_percent": units.exact_percent,
    "percents": lambda ends: _percents(ends, " % to "),
    "short_percents": lambda ends: _percents(ends, figures.UNKNOWN),
    "duration": units.duration,
    "time_amount": units.time_amount,
    "mhz": lambda clock: f"{clock:,.0f} MHz",
    "bytes": figures.size,
    "gib": lambda size: gib(int(size)),
    "count": lambda number: f"{number:,}",
    "signed_duration": figures.signed_duration,
    "signed_percent": figures.signed_percent,
    "span": figures.time_span,
    "sides": lambda sizes: " × ".join(f"{size:,}" for size in sizes),
    "fixed2": lambda number: f"{number:.2f}",
    "digits2": lambda number: units.significant(number, 2),
    "digits3": lambda number: units.significant(number, 3),
    "capital": units.capitalized,
    "small": units.uncapitalized,
    "short": lambda name: figures.shorten_middle(name, _LONGEST_IN_SENTENCE),
    "unended": lambda sentence: sentence.removesuffix("."),
}

_LONGEST_IN_SENTENCE: Final = 120  # characters of a name; rows and JSON have all of it
_SENTENCE_END: Final = re.compile(r"(?<=[^.][.!?]) (?=\S)")  # no name that ends in "..."
_BETWEEN: Final = {"commas": ", ", "and": " and ", "semicolons": "; ", "arrow": " → "}


def words(fact: Fact | str | None) -> str:
    """Return the text of a fact, "" for None; a string is returned as it is."""
    if fact is None or isinstance(fact, str):
        return fact or ""
    values = fact.values
    known = {name for name, value in values.items() if value not in (None, "", ())}
    # `split` returns plain and bracketed pieces in turn: those at odd places were in brackets.
    pieces = _OPTIONAL.split(all_texts()[fact.code])
    return "".join(
        _FILLED.vformat(piece, (), values)
        for place, piece in enumerate(pieces)
        if place % 2 == 0 or fields_of(piece) <= known
    )


def sentences(*texts: str) -> list[str]:
    """Return the sentences of texts."""
    return [sentence for text in texts for sentence in _SENTENCE_END.split(text)]


@cache
def all_texts() -> Mapping[str, str]:
    """Return all texts of `texts.toml` by code, such as "idle.share" for `share` in `[idle]`."""
    table = files(__package__).joinpath("texts.toml").read_text(encoding="utf-8")
    return dict(_lines(tomllib.loads(table), ""))


def fields_of(text: str) -> set[str]:
    """Return the names of the values in a text, optional ones included."""
    return {name for _, name, _, _ in Formatter().parse(text.replace("[", "")) if name}


def _lines(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield codes and texts of a TOML table; a line named `text` has the code of its table."""
    for name, value in table.items():
        if isinstance(value, str):
            yield (prefix + name).removesuffix(".text"), value
        else:
            yield from _lines(value, f"{prefix}{name}.")


def _percents(ends: tuple[Fraction, Fraction], between: str) -> str:
    """Return a range of shares as text, with `between`; a single one if both ends look alike."""
    least, most = map(units.exact_percent, ends)
    return least if least == most else f"{least.removesuffix(' %')}{between}{most}"


class _Filled(Formatter):
    """Fills a text with values: facts become their words, items of a tuple are joined by blanks."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Value]) -> Value:
        return kwargs[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value as text, formatted by each word of its format; `_` stands for a blank."""
        for word in format_spec.split():
            if word in _PRINTED:
                value = _PRINTED[word](words(value) if isinstance(value, Fact) else value)
            elif word.startswith("?"):  # `?is|are`: singular or plural, without the number
                singular, plural = word[1:].replace("_", " ").split("|")
                value = singular if value == 1 else plural
            elif word in _BETWEEN:
                value = _BETWEEN[word].join(map(_text, value))
            else:  # `launch|launches`: the number and its noun
                singular, _, plural = word.replace("_", " ").partition("|")
                value = units.several(value, singular, plural)
        return _text(value)


def _text(value: Value) -> str:
    """Return a value as text; facts in it become their words."""
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return words(value) if isinstance(value, Fact) else str(value)


_FILLED: Final = _Filled()
