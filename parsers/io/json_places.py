"""JSON before it is decoded: where values end, and which are gone into, kept or left out.

A document is described by one Place for its outermost value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from traceflops.parsers.io.worker_pool import BlockReader

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that it does not decode."""

SPACE = b" \t\r\n"
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""A whole string, as the source of a regular expression."""

_FLAT = rb'\{(?:[^][{}"]++|' + STRING + rb')*+\}|\[(?:[^][{}"]++|' + STRING + rb")*+\]"
_AT_TOP = re.compile(rb'(?:[^][{}",]++|' + STRING + rb"|" + _FLAT + rb")*+", re.DOTALL)
_INSIDE = re.compile(rb'(?:[^][{}"]++|' + STRING + rb"|" + _FLAT + rb")*+", re.DOTALL)
_CLOSER = {b"[": b"]", b"{": b"}"}
_DEEPEST = 5000
_BYTE = re.compile(r"\(byte (\d+)\)")

_GRAMMAR = msgspec.json.Decoder(msgspec.Raw)


def commas(text: bytes, start: int, stop: int) -> list[int]:
    """Return the commas between values of a list in text[start:stop], which begins between two.

    It ends where the list does, where a string does not end, and at damage.
    """
    between: list[int] = []
    closers = bytearray()
    at = start
    while True:
        run = (_INSIDE if closers else _AT_TOP).match(text, at, stop)
        at = run.end() if run else stop
        sign = text[at : at + 1]
        if at >= stop:
            return between
        if sign == b",":
            between.append(at)
        elif sign in _CLOSER and len(closers) <= _DEEPEST:  # deeper no decoder goes
            closers += _CLOSER[sign]
        elif not closers or closers.pop() != sign[0]:
            return between
        at += 1


def first_value(text: bytes | memoryview) -> tuple[bool, int]:
    """Return whether the value with which a text begins is whole, and how many bytes it has.

    Of one that is not whole it is how far it was looked at, at least 1.
    """
    try:
        _GRAMMAR.decode(text)
    except msgspec.DecodeError as error:
        place = _BYTE.search(str(error))
        at = int(place.group(1)) if place else len(text)
        whole = "trailing characters" in str(error)  # it names the byte behind the one too many
        return whole, max(1, at - whole)
    except UNDECODABLE:
        return False, min(len(text), _DEEPEST)
    return True, len(text)


def is_whole(text: bytes) -> bool:
    """Return whether a text is one value and nothing else."""
    return first_value(text) == (True, len(text))


@dataclass(frozen=True)
class Skipped:
    """A value that is not needed."""


SKIPPED: Final = Skipped()


@dataclass(frozen=True)
class Whole:
    """A value that is kept as it stands: one that is never long."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """How the objects of a list begin: all with the same keys, and seldom does another object.

    `end` is how the list ends, where all of its objects are known to begin so.
    """

    start: re.Pattern[bytes]
    resume: re.Pattern[bytes]
    end: re.Pattern[bytes] | None = None


@dataclass(frozen=True)
class Records:
    """A list that may be long: it is read in blocks.

    `boundaries` say how its objects begin, None: as the first does. `rescue` gives where whole ones
    begin and end in a text that is damaged, or whose values are sound and no records.
    """

    reader: BlockReader[Any]
    boundaries: Boundaries | None = None
    rescue: Callable[..., Iterator[tuple[int, int]]] | None = None


@dataclass(frozen=True)
class Members:
    """An object that is gone into; `other` is what is done with a key that is not named."""

    keys: Mapping[str, Place]
    other: Place = SKIPPED

    def of(self, key: str) -> Place:
        """Return what is done with the value of a key."""
        return self.keys.get(key, self.other)

    @cached_property
    def resume(self) -> re.Pattern[bytes]:
        """Where, behind damage, this object goes on: before one of its keys."""
        return re.compile(rb"(?P<next>,\s*+" + self._key + rb")")

    @cached_property
    def begins(self) -> re.Pattern[bytes]:
        """How, in a list, the next object like this begins."""
        return re.compile(rb"\}\s*+(?P<next>,\s*+\{\s*+" + self._key + rb")")

    @property
    def _key(self) -> bytes:
        names = b"|".join(re.escape(key.encode()) for key in self.keys)
        return rb'"(?:' + names + rb')"\s*+:'


@dataclass(frozen=True)
class Elements:
    """A list whose objects are each gone into; where there is one object instead, it is that."""

    each: Members


Place = Skipped | Whole | Records | Members | Elements
Path = tuple[str | int, ...]
"""The keys and the places in lists that lead to a value."""

WHOLE: Final = Whole()

_FIRST_KEYS: Final = re.compile(
    rb"\s*+\{\s*+("
    + STRING
    + rb")\s*+:\s*+(?:([^][{}\",\s]++|"
    + STRING
    + rb")\s*+,\s*+("
    + STRING
    + rb")\s*+:)?+",
    re.DOTALL,
)
"""The first key of an object; where its value is no object and no list the second, too."""
_VALUE: Final = rb"(?:[^][{}\",\s]++|" + STRING + rb")"


def boundaries_of(text: bytes, begin: int) -> Boundaries | None:
    """Return how the objects of a list begin, told by its first; None where that is no object."""
    found = _FIRST_KEYS.match(text, begin)
    if found is None:
        return None
    opening = rb"\{\s*+" + re.escape(found[1]) + rb"\s*+:"
    if found[3] is not None:
        opening += rb"\s*+" + _VALUE + rb"\s*+,\s*+" + re.escape(found[3]) + rb"\s*+:"
    return Boundaries(
        re.compile(opening, re.DOTALL),
        re.compile(rb"\}\s*+(?:,\s*+)?(?P<next>" + opening + rb")", re.DOTALL),
    )
