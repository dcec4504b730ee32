"""Facts: what is known of a recording, as a code with values and without words.

    Fact("host-copies", {"share": 0.31, "room": 0.02})      findings and other rooms of the core
      -> "Only copies between CPU and GPU run for 31.0 % of the time."         reports.view.words

`reports/view/texts.toml` has a line of text for each code; values are numbers in ns, bytes or
shares (0 to 1), names from the recording, or facts in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeAlias

Value: TypeAlias = "int | float | Fraction | str | Fact | tuple[Value, ...] | None"


class Fact:
    """A code and its values by name; the text leaves out what a value of None would say.

    No dataclass: msgspec would look into it, and cannot read a union of all kinds of values.
    """

    __slots__ = ("code", "values")

    def __init__(self, code: str, values: Mapping[str, Value] | None = None) -> None:
        self.code = code
        self.values: Mapping[str, Value] = values or {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fact):
            return NotImplemented
        return (self.code, self.values) == (other.code, other.values)

    def __hash__(self) -> int:
        return hash((self.code, frozenset(self.values.items())))

    def __repr__(self) -> str:
        return f"Fact({self.code!r}, {self.values!r})"


def fact(code: str, /, **values: Value) -> Fact:
    """Return a fact with these values."""
    return Fact(code, values)


def quoted(text: str) -> Fact:
    """Return a text that is not ours as a fact: a user's rule, or what another profiler says."""
    return Fact("quoted", {"text": text})


def in_words(*facts: Fact | str | None) -> str:
    """Return facts in words, by the one table of texts; "" for None, a text as it is."""
    from traceflops.reports import words

    return " ".join(map(words, facts))
