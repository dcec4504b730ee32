"""The objects of one long list of JSON, some at a time: whole ones, up to where the text breaks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from traceflops.parsers.io.jsonfiles.places import Boundaries, boundaries_of
from traceflops.parsers.io.jsonfiles.text import SPACE, first_value, split
from traceflops.parsers.io.jsonfiles.window import Window

LONGEST_VALUE: Final = 1 << 26
"""No object of a list is longer, nor a value that is kept whole."""

_STRIDE: Final = 1 << 10


class Then(Enum):
    """What stands behind the objects that were taken."""

    MORE = auto()
    THE_END = auto()
    DAMAGE = auto()
    A_CUT = auto()


@dataclass(frozen=True, slots=True)
class Taken:
    """The text of whole objects of a list, and what follows them.

    Where damage follows, `broken` is where the text breaks in an object that begins at the place
    of the window. `commas` says that a comma was too many, or missing.
    """

    text: bytes
    then: Then = Then.MORE
    broken: int = 0
    commas: bool = False


class ListObjects:
    """Takes the objects of one list from a window, `most_bytes` or a little more at a time."""

    def __init__(self, most_bytes: int) -> None:
        self.boundaries: Boundaries | None = None
        self._most_bytes = most_bytes
        self._stride = _STRIDE
        self._begun = False

    def take(self, window: Window) -> Taken:
        """Return the next objects; the window is then behind them."""
        window.ensure(self._stride)
        sign = window.sign()
        if sign == b"]":
            window.at += 1
            return Taken(b"", Then.THE_END)
        if not sign:
            return Taken(b"", Then.A_CUT)
        if not self._begun:
            self._begun = True
            self.boundaries = boundaries_of(window.text, window.at)
        stop = min(window.at + self._stride, len(window.text))
        return self._to_boundary(window, stop) or self._up_to(window, stop)

    def _to_boundary(self, window: Window, stop: int) -> Taken | None:
        """Take what stands before the last boundary; None where it is none of this list."""
        cut = self.boundaries and self.boundaries.last(window.text, window.at, stop)
        if not cut:
            return None
        objects = memoryview(window.text)[window.at : cut[0]]
        if not is_whole(b"".join((b"[", objects, b"]"))):
            return None
        window.at = cut[1]
        self._stride = min(2 * self._stride, self._most_bytes)
        return Taken(bytes(objects))

    def _up_to(self, window: Window, stop: int) -> Taken:
        """Take what is whole before the end of the list, the place where it breaks, or the stop."""
        begin = window.at
        listed = b"".join((b"[", memoryview(window.text)[begin:stop]))
        whole, length = looked_at(listed)
        if whole:
            end = begin + len(listed[:length].rstrip(SPACE)) - 2
            window.at = end + 1
            return Taken(window.text[begin:end], Then.THE_END)
        if length < len(listed):
            return self._up_to_damage(window, begin + length - 1)
        commas = split(window.text, begin, stop).commas
        if commas:
            window.at = commas[-1] + 1
            self._stride = min(2 * self._stride, self._most_bytes)
            return Taken(window.text[begin : commas[-1]])
        if stop < len(window.text) or window.more():
            return self._look_further(window)
        last = window.text[begin:].strip(SPACE)
        if last.endswith(b"}") and is_whole(last):
            window.at = len(window.text)
            return Taken(last, Then.A_CUT)
        return Taken(b"", Then.A_CUT)

    def _look_further(self, window: Window) -> Taken:
        """Look at more next time: there is no whole object in what was looked at."""
        self._stride *= 2
        if self._stride <= LONGEST_VALUE:
            return Taken(b"")
        self._stride = _STRIDE
        return Taken(b"", Then.DAMAGE, len(window.text))

    def _up_to_damage(self, window: Window, broken: int) -> Taken:
        """Take the objects before the place where the list breaks."""
        self._stride = _STRIDE
        text, begin = window.text, window.at
        commas = split(text, begin, broken).commas
        before = text[begin : commas[-1]] if commas else b""
        window.at = commas[-1] + 1 if commas else begin
        last = text[window.at : broken].strip(SPACE)
        sign = text[broken : broken + 1]
        if not last and sign in (b"]", b","):
            window.at = broken + (sign == b",")
            return Taken(before, commas=True)
        if last.endswith(b"}") and is_whole(last):
            window.at = broken
            return Taken(b",".join(filter(None, (before, last))), commas=sign == b"{")
        return Taken(before, Then.DAMAGE, broken)


def looked_at(text: bytes | memoryview) -> tuple[bool, int]:
    """Return whether a text begins with a whole value, and how much of it is sound."""
    return first_value(memoryview(text), strict=True)


def is_whole(text: bytes) -> bool:
    """Return whether a text is one value and nothing else."""
    return looked_at(text) == (True, len(text))
