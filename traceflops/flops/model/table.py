"""Checked access to the tables of a card: errors are one line that names table and key."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from traceflops.errors import UsageError

LARGEST_COUNT = 10**18
LONGEST_EXPONENT = 30
LONGEST_SHOWN = 24
LONGEST_TEXT = 400
HINT = "see docs/mfu.md for the keys of a model card"
Part = TypeVar("Part", bound=Struct)


class TomlTable:
    """One table of a card: typed values by key, or a UsageError that names table and key."""

    def __init__(
        self,
        values: Mapping[str, object],
        where: str,
        keys: Iterable[str],
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Take the values of the table at `where`. Raises UsageError for a key not in `keys`.

        `names` has, for messages, the names of our keys in a config.json.
        """
        self.values, self.where, self.names = values, where, names or {}
        self.foreign = names is not None
        allowed = tuple(keys)
        for key in values:
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(allowed)}"
                self.refuse(f"unknown key {key[:60]!r}", hint)

    def __contains__(self, key: str) -> bool:
        """Return whether the key is given; null counts as not given."""
        return self.values.get(key) is not None

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number of at least `least`, such as 405e9; required without a default."""
        value = self.values.get(key)
        if value is None:
            return default if default is not None else self.lacks(key)  # raises
        number, name, text = _finite(value), self.called(key), str(value)
        start = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        if number is not None and number > LARGEST_COUNT:
            self.refuse(f"{name!r} is {start}, which is too large", HINT)
        if number is None or number != number.to_integral_value():
            self.refuse(f"{name!r} is not a whole number: {text[:40]!r}", HINT)
        if number < least:
            self.refuse(f"{name!r} is {start}, but must be at least {least}", HINT)
        return int(number)

    def called(self, key: str) -> str:
        """Return the name of a key in the source of the values."""
        return self.names.get(key, key)

    def maybe(self, key: str) -> int | None:
        """Return a whole number, or None where the key is not given."""
        return self.count(key) if key in self else None

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false. Required if no default."""
        value = self.values.get(key)
        if value is None:
            return default if default is not None else bool(self.lacks(key))  # raises
        if not isinstance(value, bool):
            problem = f"{self.called(key)!r} must be true or false, not {str(value)[:40]!r}"
            self.refuse(problem, HINT)
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return a text of one line."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
            self.refuse(f"{self.called(key)!r} must be one line of text", HINT)
        return value

    def choice(self, key: str, allowed: Iterable[str], default: str) -> str:
        """Return one of the allowed words."""
        value, words = self.text(key, default), tuple(allowed)
        if value not in words:
            self.refuse(f"{self.called(key)!r} is {value[:40]!r}", f"use one of {', '.join(words)}")
        return value

    def ratio(self, key: str, default: Fraction) -> Fraction:
        """Return a number, exactly as written."""
        value = self.values.get(key)
        if value is None:
            return default
        number = _finite(value)
        if number is None or abs(number.adjusted()) > LONGEST_EXPONENT:  # too long as a fraction
            self.refuse(f"{self.called(key)!r} is not a number: {str(value)[:40]!r}", HINT)
        return Fraction(number)

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers from 0 (a single number is a list of one), or None."""
        value = self.values.get(key)
        if value is None:
            return None
        listed = value if isinstance(value, list) else [value]
        if not all(type(number) is int and number >= 0 for number in listed):
            self.refuse(f"{self.called(key)!r} is not a list of whole numbers", HINT)
        return tuple(listed)

    def words(self, key: str, allowed: Iterable[str]) -> tuple[str, ...]:
        """Return a list of allowed words; empty if the key is not given."""
        value, choices = self.values.get(key), tuple(allowed)
        if value is None:
            return ()
        if not isinstance(value, list) or any(word not in choices for word in value):
            self.refuse(f"{self.called(key)!r} is not a list of {', '.join(choices)}", HINT)
        return tuple(value)

    def table(self, key: str, keys: Iterable[str]) -> TomlTable | None:
        """Return a table inside this one."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(f"{self.called(key)!r} is not a table", HINT)
        return TomlTable(value, f"{self.where}, {key}", keys)

    def part(self, kind: type[Part], **made: object) -> Part:
        """Return a struct: fields in `made` as given, all others read from this table by type."""
        unmade = (field for field in fields(kind) if field.name not in made)
        read = {one.name: _READERS[one.type](self, one.name, one.default) for one in unmade}
        return kind(**read, **made)

    def tables(self, key: str, keys: Iterable[str]) -> tuple[TomlTable, ...]:
        """Return a list of tables inside this one."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(values, Mapping) for values in value):
            self.refuse(f"{self.called(key)!r} is not a list of tables", HINT)
        allowed, where = tuple(keys), f"{self.where}, {key}"
        return tuple(TomlTable(row, f"{where} {n}", allowed) for n, row in enumerate(value, 1))

    def lacks(self, key: str) -> NoReturn:
        """Refuse a table that lacks a key."""
        name = self.called(key)
        alone = "" if self.foreign else ", or give params alone"
        self.refuse(f"{name!r} is missing", f"add {name}{alone}; {HINT}")

    def refuse(self, problem: str, hint: str) -> NoReturn:
        """Raise the UsageError that names this table."""
        raise UsageError(" ".join(f"{self.where}: {problem}".split()), hint)


_READERS: Mapping[Any, Callable[[TomlTable, str, Any], object]] = {
    int: lambda table, key, default: (
        table.count(key)
        if default is NODEFAULT
        else table.count(key, default, least=min(default, 1))
    ),
    int | None: lambda table, key, _: table.maybe(key),
    bool: TomlTable.flag,
    str: TomlTable.text,
    Fraction: TomlTable.ratio,
}
"""The function that reads a field of a struct, by its type; an integer with default 0 may be 0."""


def _finite(value: object) -> Decimal | None:
    """Return a finite number exactly, None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(value)
    return number if number.is_finite() else None
