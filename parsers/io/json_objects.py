"""The objects of one long list of JSON, some at a time; of damaged ones what is good."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from traceflops.parsers.io.json_mend import LONGEST_MENDED, Damage, mended
from traceflops.parsers.io.json_places import (
    SPACE,
    Boundaries,
    Elements,
    Members,
    Path,
    Place,
    Records,
    boundaries_of,
    commas,
    first_value,
    is_whole,
)

LONGEST_VALUE: Final = 1 << 26
"""No object of a list is longer, nor a value that is kept whole."""

_STRIDE: Final = 1 << 10
_NEAR_END: Final = 1 << 16
_SPACES: Final = re.compile(rb"[ \t\r\n]*+")


class Window:
    """Text from `at` on; `text` also holds what was looked at since it was last read on.

    `ended` says that no more follows.
    """

    def __init__(self, blocks: Iterator[bytes], block_bytes: int) -> None:
        self.text = b""
        self.at = 0
        self.ended = False
        self._before = 0
        self._blocks = blocks
        self._block_bytes = block_bytes
        # Of the text as it is: from where on a sign was searched, and what was found first.
        self._found: dict[re.Pattern[bytes], tuple[int, re.Match[bytes] | None]] = {}

    @property
    def available(self) -> int:
        """How many bytes can be looked at."""
        return len(self.text) - self.at

    @property
    def position(self) -> int:
        """How many bytes of the whole text were passed."""
        return self._before + self.at

    @property
    def closed(self) -> bool:
        """Whether what ends with the text has ended: half a number looks like a number."""
        return self.ended and self.text.rstrip(SPACE).endswith((b'"', b"]", b"}"))

    def back(self, text: bytes) -> None:
        """Go back before a text that was passed last."""
        self._replace(b"".join((text, self.text[self.at :])), -len(text))

    def more(self, least: int = 0) -> bool:
        """Read on and return whether there was more; offsets into the text change.

        At least a block is read, unless `least` is given, and as much again as is there, so that a
        long value does not cost its square.
        """
        if self.ended:
            return False
        wanted = max(least or self._block_bytes, self.available)
        parts, length = [self.text[self.at :]], 0
        for block in self._blocks:
            parts.append(block)
            length += len(block)
            if length >= wanted:
                break
        else:
            self.ended = True
        self._replace(b"".join(parts))
        return length > 0

    def ensure(self, size: int) -> None:
        """Read on until so many bytes are there or none follow."""
        while self.available < size and self.more():
            pass

    def sign(self) -> bytes:
        """Return the next byte that is no space, b"" at the end; it is not passed."""
        while True:
            spaces = _SPACES.match(self.text, self.at)
            self.at = spaces.end() if spaces else self.at
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def search(self, pattern: re.Pattern[bytes], at: int) -> re.Match[bytes] | None:
        """Return the first place of a sign from `at` on; no part of the text is searched twice."""
        since, found = self._found.get(pattern, (len(self.text) + 1, None))
        if at < since or (found is not None and found.start() < at):
            found = pattern.search(self.text, at)
            self._found[pattern] = (at, found)
        return found

    def last(self, pattern: re.Pattern[bytes], stop: int) -> re.Match[bytes] | None:
        """Return the last place of a sign before a stop; where there is none, it costs nothing."""
        first = self.search(pattern, self.at)
        if first is None or first.end() > stop:
            return None
        found = deque(pattern.finditer(self.text, max(first.start(), stop - _NEAR_END), stop), 1)
        return found[0] if found else deque(pattern.finditer(self.text, first.start(), stop), 1)[0]

    def forget(self, keep: int) -> int:
        """Pass all but the last bytes; return how many were passed."""
        passed = max(0, self.available - keep)
        self.at += passed
        return passed

    def _replace(self, text: bytes, further: int = 0) -> None:
        self._before += self.at + further
        self.text, self.at = text, 0
        self._found.clear()


@dataclass(frozen=True, slots=True)
class Guess:
    """A text that begins with so many bytes of what look like whole objects of a list."""

    text: bytes
    objects: int


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

    def __init__(self, boundaries: Boundaries | None, most_bytes: int) -> None:
        self.boundaries = boundaries
        self.doubtful_until = 0
        """Up to this position of the window nothing is guessed."""
        self._objects_only = boundaries is not None
        self._most_bytes = most_bytes
        self._stride = _STRIDE
        self._begun = False

    def guess(self, window: Window) -> Guess | None:
        """Return what look like whole objects; the window is then behind them.

        None where it pays to look closely.
        """
        size, doubtful = self._most_bytes, window.position < self.doubtful_until
        grown = self._stride >= size or self._objects_only
        if doubtful or not grown or self.boundaries is None:
            return None
        window.ensure(size)
        begin = window.at
        cut = window.last(self.boundaries.resume, len(window.text))
        if cut is None:
            return None
        window.at = cut.start("next")
        return Guess(window.text[begin : window.at], cut.start() + 1 - begin)

    def take(self, window: Window) -> Taken:
        """Return the next objects; the window is then behind them."""
        window.ensure(self._stride)
        sign = window.sign()
        if sign == b"]":
            window.at += 1
            return Taken(b"", Then.THE_END)
        if not sign:
            return Taken(b"", Then.A_CUT)
        if self._objects_only and sign == b"[":
            return Taken(b"", Then.DAMAGE, window.at + 1)
        if not self._begun:
            self._begun = True
            self.boundaries = self.boundaries or boundaries_of(window.text, window.at)
        stop = min(window.at + self._stride, len(window.text))
        return self._to_boundary(window, stop) or self._up_to(window, stop)

    def _to_boundary(self, window: Window, stop: int) -> Taken | None:
        """Take what stands before the last boundary; None where it is none of this list."""
        cut = window.last(self.boundaries.resume, stop) if self.boundaries else None
        if cut is None:
            return None
        objects = window.text[window.at : cut.start() + 1]
        if not is_whole(b"".join((b"[", objects, b"]"))):
            return None
        return self._taken(window, cut.start("next"), objects)

    def _taken(self, window: Window, behind: int, objects: bytes) -> Taken:
        window.at = behind
        self._stride = min(2 * self._stride, self._most_bytes)
        return Taken(objects)

    def _up_to(self, window: Window, stop: int) -> Taken:
        """Take what is whole before the end of the list, the place where it breaks, or the stop."""
        begin = window.at
        listed = b"".join((b"[", memoryview(window.text)[begin:stop]))
        whole, length = first_value(listed)
        if whole:
            end = begin + len(listed[:length].rstrip(SPACE)) - 2
            window.at = end + 1
            return Taken(window.text[begin:end], Then.THE_END)
        if length < len(listed):
            return self._up_to_damage(window, begin + length - 1)
        between = commas(window.text, begin, stop)
        if between:
            return self._taken(window, between[-1] + 1, window.text[begin : between[-1]])
        if stop < len(window.text) or window.more():
            return self._look_further(window)
        last = window.text[begin:].strip(SPACE)
        if not (last.endswith(b"}") and is_whole(last)):
            return Taken(b"", Then.A_CUT)
        window.at = len(window.text)
        return Taken(last, Then.A_CUT)

    def _look_further(self, window: Window) -> Taken:
        """Look at more next time: there is no whole object in what was looked at."""
        self._stride *= 2
        if self._stride <= LONGEST_VALUE:
            return Taken(b"")
        self._stride = _STRIDE
        return Taken(b"", Then.DAMAGE, window.at + 1)

    def _up_to_damage(self, window: Window, broken: int) -> Taken:
        """Take the objects before the place where the list breaks."""
        self._stride = _STRIDE
        text, begin = window.text, window.at
        between = commas(text, begin, broken)
        before = text[begin : between[-1]] if between else b""
        window.at = between[-1] + 1 if between else begin
        last = text[window.at : broken].strip(SPACE)
        sign = text[broken : broken + 1]
        if not last and sign in (b"]", b","):
            window.at = broken + (sign == b",")
            return Taken(before, commas=True)
        if last.endswith(b"}") and is_whole(last):
            window.at = broken
            return Taken(b",".join(filter(None, (before, last))), commas=sign == b"{")
        return Taken(before, Then.DAMAGE, broken)


BETWEEN: Final = SPACE + b","


class Frame:
    """An object or a list that was gone into; `count` is how many values of it were begun.

    Of a list in blocks `pieces` are texts of objects that are to be decoded together. `left` is
    what was last left inside this.
    """

    def __init__(self, place: Place, path: Path, block_bytes: int, damage: Damage) -> None:
        self.place = place
        self.path = path
        self.count = 0
        self.records = place if isinstance(place, Records) else None
        self.objects = ListObjects(self.records.boundaries if self.records else None, block_bytes)
        self.pieces: list[bytes] = []
        self.size = 0
        self.left: Frame | None = None
        self._damage = damage

    @property
    def end(self) -> re.Pattern[bytes] | None:
        """The end of a list of which every object is known by how it begins."""
        return self.objects.boundaries.end if self.objects.boundaries else None

    @property
    def resume(self) -> re.Pattern[bytes] | None:
        """Where this goes on behind damage."""
        if isinstance(self.place, Members):
            return self.place.resume if self.place.keys else None
        if isinstance(self.place, Elements):
            return self.place.each.begins
        return self.objects.boundaries.resume if self.objects.boundaries else None

    def accept(self, text: bytes) -> None:
        """Take the text of objects."""
        if text and not text.isspace():
            self.pieces.append(text)
            self.size += len(text)

    def begun(self, text: bytes) -> int:
        """Return how many objects of the list begin in a text, by the look of it."""
        boundaries = self.objects.boundaries
        return len(boundaries.start.findall(text)) if boundaries else 0

    def drop(self, text: bytes, more: int = 0) -> None:
        """Count a text as lost, and so many bytes before it."""
        self._damage.dropped_places += 1
        self._damage.dropped_events += self.begun(text)
        self._damage.dropped_bytes += len(text) + more

    def salvage(self, text: bytes, *, sound: bool = False) -> None:
        """Take what is good of a text that is damaged, or `sound` but no record; drop the rest."""
        text = text.strip(BETWEEN)
        if not self._mend(text):
            rest = text[self._rescue(text, sound=sound) :].strip(BETWEEN)
            if rest and (rest == text or not self._mend(rest)):
                self.drop(rest)

    def unfinished(self, text: bytes, *, sound: bool) -> bytes:
        """Take what is good of the last text there is, and return what is behind that."""
        if self._mend(text.strip(BETWEEN)):
            return b""
        return text[self._rescue(text, sound=sound) :]

    def _rescue(self, text: bytes, *, sound: bool) -> int:
        """Take the whole objects in a damaged text; return where the last of them ends."""
        done = 0
        rescue = self.records.rescue if self.records else None
        for begin, end in rescue(text, sound=sound) if rescue else ():
            between = text[done:begin].strip(BETWEEN)
            if between and not self._mend(between):
                self.drop(between)
            self.accept(text[begin:end])
            done = end
        return done

    def _mend(self, text: bytes) -> bool:
        """Take the one object of a damaged text if it can be mended, and count how."""
        done: list[str] = []
        for words, better in mended(text) if self.records and len(text) <= LONGEST_MENDED else ():
            done.append(words)
            whole, length = first_value(better)
            value, behind = better[:length], better[length:].strip(BETWEEN + b"]}")
            if whole and value.startswith(b"{") and not behind and self._decodes(value):
                self._damage.repaired.update(done)
                self.accept(value)
                return True
        return False

    def _decodes(self, value: bytes) -> bool:
        return self.records is not None and self.records.reader.check(b"[" + value + b"]") == 1
