"""The shape of a JSON document: which values are gone into, read in blocks, kept or left out.

A document is described by one Shape, that of its outermost value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from traceflops.parsers.io.json_window import STRING
from traceflops.parsers.io.worker_pool import BlockReader


@dataclass(frozen=True)
class Skipped:
    """A value that is not needed."""


@dataclass(frozen=True)
class Whole:
    """A value that is kept as raw JSON: one that is never long."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where the objects of a list begin, since all of them begin with the same keys.

    `start` is such a beginning, `resume` one behind the end of another object, `end` the end of
    the list, given where every object of it is known to begin so.
    """

    start: re.Pattern[bytes]
    resume: re.Pattern[bytes]
    end: re.Pattern[bytes] | None = None


@dataclass(frozen=True)
class Records:
    """A list that may be long: its objects are read in blocks.

    Without `boundaries` its objects are taken to begin as the first one does.
    """

    reader: BlockReader[Any]
    boundaries: Boundaries | None = None


SKIPPED: Final = Skipped()
WHOLE: Final = Whole()


@dataclass(frozen=True)
class Members:
    """An object that is gone into; `other` is what becomes of a key that is not named."""

    keys: Mapping[str, Shape]
    other: Shape = SKIPPED

    @cached_property
    def resume(self) -> re.Pattern[bytes]:
        """Where this object goes on behind damage: before one of its keys."""
        return re.compile(rb"(?P<next>,\s*+" + self._key + rb")")

    @cached_property
    def begins(self) -> re.Pattern[bytes]:
        """Where, in a list, the next object like this begins."""
        return re.compile(rb"\}\s*+(?P<next>,\s*+\{\s*+" + self._key + rb")")

    @property
    def _key(self) -> bytes:
        names = b"|".join(re.escape(key.encode()) for key in self.keys)
        return rb'"(?:' + names + rb')"\s*+:'


@dataclass(frozen=True)
class Elements:
    """A list whose objects are each gone into; a single object counts as a list of one."""

    each: Members


Shape = Skipped | Whole | Records | Members | Elements
Path = tuple[str | int, ...]
"""The keys and list indexes that lead to a value."""

_SCALAR: Final = rb"(?:[^][{}\",\s]++|" + STRING + rb")"
_FIRST_KEYS: Final = re.compile(
    rb"\s*+\{\s*+(%b)\s*+:\s*+(?:%b\s*+,\s*+(%b)\s*+:)?+" % (STRING, _SCALAR, STRING), re.DOTALL
)
"""The first key of an object, and the second where the value of the first is a scalar."""


def boundaries_of(text: bytes, begin: int) -> Boundaries | None:
    """Return how objects of a list begin, judged by its first; None where that is no object."""
    keys = _FIRST_KEYS.match(text, begin)
    if keys is None:
        return None
    opening = rb"\{\s*+" + re.escape(keys[1]) + rb"\s*+:"
    if keys[2] is not None:
        opening += rb"\s*+" + _SCALAR + rb"\s*+,\s*+" + re.escape(keys[2]) + rb"\s*+:"
    return Boundaries(
        re.compile(opening, re.DOTALL),
        re.compile(rb"\}\s*+(?:,\s*+)?(?P<next>" + opening + rb")", re.DOTALL),
    )
