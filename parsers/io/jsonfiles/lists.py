"""A JSON document with long lists deep in it, as a stream: no list is ever held as a whole.

The text is cut between the objects of a list at places that look like it. A cut is believed only
where the text up to it is a list by itself; so strings and lists inside an object cannot mislead.
Behind damage the text goes on with the next object or key that is known, whichever comes first.

Blocks are decoded by a crew, in the order of the text. What else is wanted is handed over as it
stands in the text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.jsonfiles.mend import mended
from traceflops.parsers.io.jsonfiles.objects import LONGEST_VALUE, ListObjects, Then, looked_at
from traceflops.parsers.io.jsonfiles.places import (
    Elements,
    Members,
    Path,
    Place,
    Records,
    Skipped,
    Whole,
)
from traceflops.parsers.io.jsonfiles.text import SPACE, STRING, UNDECODABLE
from traceflops.parsers.io.jsonfiles.walk import LONGEST_MENDED, Damage
from traceflops.parsers.io.jsonfiles.window import Window
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, Crew

_BOM: Final = b"\xef\xbb\xbf"
_LONGEST_KEY: Final = 1 << 16
_LOOK_BACK: Final = 1 << 10
_COMMAS: Final = "extra or missing commas ignored"
_EARLY_END: Final = "early closing brackets ignored"
_NO_END: Final = "missing closing brackets assumed"
_MEMBER: Final = re.compile(
    rb"([\s,]*+)(?:(?P<close>\})|(?P<key>" + STRING + rb")\s*+:)", re.DOTALL
)
_ELEMENT: Final = re.compile(rb"([\s,]*+)(?:(?P<close>\])|(?=[^\s,\]]))")
_NOTHING: Final = frozenset({b"null", b"{}", b"[]"})


class Found(NamedTuple):
    """Where something stands in the document, and what it is: a block's result or raw JSON."""

    path: Path
    value: Any


class _Frame:
    """An object or a list that was gone into; `count` is how many values of it were begun.

    Of a list in blocks `pieces` are texts of objects that are to be decoded together. `left` is
    what was last left inside this.
    """

    def __init__(self, place: Place, path: Path, block_bytes: int) -> None:
        self.place = place
        self.path = path
        self.count = 0
        self.objects = ListObjects(block_bytes)
        self.pieces: list[bytes] = []
        self.size = 0
        self.left: _Frame | None = None

    @property
    def resume(self) -> re.Pattern[bytes] | None:
        """Where this goes on behind damage."""
        if isinstance(self.place, Members):
            return self.place.resume if self.place.keys else None
        if isinstance(self.place, Elements):
            return self.place.each.begins
        return self.objects.boundaries.resume if self.objects.boundaries else None


class ListStream:
    """What a document holds at its places, read from one input.

    After iteration `damage` says what was mended, dropped or cut off, and `cut_in` where the text
    ended too early.
    """

    def __init__(
        self, source: ByteSource, root: Place, crew: Crew, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.damage = Damage()
        self.cut_in: Path | None = None
        self._source = source
        self._root = root
        self._crew = crew
        self._block_bytes = block_bytes
        self._frames: list[_Frame] = []
        self._waiting: deque[tuple[Path, Callable[[], Any]]] = deque()

    def __iter__(self) -> Iterator[Found]:
        """Yield what stands at the places, in the order of the text."""
        self._window = Window(iter(self._source.blocks()), self._block_bytes)
        self._window.ensure(len(_BOM))
        if self._window.text.startswith(_BOM):
            self._window.at = len(_BOM)
        self._begin(self._root, ())
        while self._frames:
            self._step(self._frames[-1])
            yield from self._ready(self._crew.ahead)
        yield from self._ready(0)
        if self.cut_in is None:
            self._count_rest()

    def _ready(self, ahead: int) -> Iterator[Found]:
        while len(self._waiting) > ahead:
            path, result = self._waiting.popleft()
            yield Found(path, result())

    def _step(self, frame: _Frame) -> None:
        if isinstance(frame.place, Members):
            self._member(frame, frame.place)
        elif isinstance(frame.place, Elements):
            self._element(frame, frame.place)
        else:
            self._objects(frame)

    # Objects, and lists whose elements are gone into

    def _begin(self, place: Place, path: Path) -> None:
        """Go into the value that comes next, hand it over, or pass it."""
        sign = self._window.sign()
        if isinstance(place, Elements) and sign == b"{":
            place, path = place.each, (*path, 0)
        goes_in = sign == (b"{" if isinstance(place, Members) else b"[")
        if goes_in and not isinstance(place, Whole):
            self._window.at += 1
            self._frames.append(_Frame(place, path, self._block_bytes))
        else:
            self._value(place, path)

    def _member(self, frame: _Frame, place: Members) -> None:
        found = self._token(_MEMBER, frame)
        if found is not None:
            try:
                key = msgspec.json.decode(found["key"], type=str)
            except UNDECODABLE:
                key = found["key"].decode(errors="replace")
            frame, place = self._owner(frame, place, key)
            self._begin(place.of(key), (*frame.path, key))

    def _owner(self, frame: _Frame, place: Members, key: str) -> tuple[_Frame, Members]:
        """Return the object that a key is of: this one, or one in it whose end came too early."""
        inside, left = [], None if key in place.keys else frame.left
        while left is not None:
            inside.append(left)
            if isinstance(left.place, Members) and key in left.place.keys:
                self.damage.repaired[_EARLY_END] += 1
                self._frames += inside
                return left, left.place
            left = left.left
        return frame, place

    def _leave(self) -> None:
        """Leave the innermost object or list."""
        frame = self._frames.pop()
        self._flush(frame)
        if self._frames:
            self._frames[-1].left = frame

    def _element(self, frame: _Frame, place: Elements) -> None:
        if self._token(_ELEMENT, frame) is not None:
            self._begin(place.each, (*frame.path, frame.count - 1))

    def _token(self, pattern: re.Pattern[bytes], frame: _Frame) -> re.Match[bytes] | None:
        """Pass what stands before the next value of an object or a list, or leave it.

        Returns None where no value follows.
        """
        window = self._window
        while (found := pattern.match(window.text, window.at)) is None:
            if window.available > _LONGEST_KEY or not window.more():
                self._no_token(frame)
                return None
        commas = found.group(1).count(b",")
        self.damage.repaired[_COMMAS] += commas != (frame.count > 0 and not found["close"])
        window.at = found.end()
        if found["close"]:
            self._leave()
            return None
        frame.count += 1
        return found

    def _no_token(self, frame: _Frame) -> None:
        """Leave everything where the text ends in the middle of a key; anything else is damage."""
        window = self._window
        opener = b"{" if isinstance(frame.place, Members) else b"["
        if window.ended and window.available <= _LONGEST_KEY:
            rest = opener + window.text[window.at :].strip(SPACE + b",")
            if looked_at(rest) == (False, len(rest)):
                self._cut(rest[1:])
                return
        self._lost(window.at)

    def _value(self, place: Place, path: Path) -> None:
        """Hand over a value that is kept whole; pass any other."""
        window = self._window
        while True:
            whole, length = looked_at(memoryview(window.text)[window.at :])
            # A number may go on behind the end of what was read.
            if length < window.available or (whole and window.ended):
                break
            if window.available > LONGEST_VALUE:
                whole = False
                break
            if not window.more():
                self._cut(window.text[window.at :])
                return
        if not whole:
            self._lost(window.at + length)
            return
        value = window.text[window.at : window.at + length].strip(SPACE)
        window.at += length
        if isinstance(place, Whole):
            self._waiting.append((path, lambda: msgspec.Raw(value)))
        elif not isinstance(place, Skipped) and value not in _NOTHING:
            self._drop(value)

    # Lists that are read in blocks

    def _objects(self, frame: _Frame) -> None:
        """Take the next objects of a list."""
        taken = frame.objects.take(self._window)
        self._accept(frame, taken.text)
        self.damage.repaired[_COMMAS] += taken.commas
        if taken.then == Then.THE_END:
            self._leave()
        elif taken.then == Then.DAMAGE:
            self._lost(taken.broken)
        elif taken.then == Then.A_CUT:
            self._cut(self._window.text[self._window.at :])

    def _accept(self, frame: _Frame, text: bytes) -> None:
        """Take the text of objects; many small ones are decoded together."""
        if text and not text.isspace():
            frame.pieces.append(text)
            frame.size += len(text)
            if frame.size >= self._block_bytes // 2:
                self._flush(frame)

    def _flush(self, frame: _Frame) -> None:
        """Have decoded what was taken of a list."""
        if frame.pieces and isinstance(frame.place, Records):
            text = frame.pieces[0] if len(frame.pieces) == 1 else b",".join(frame.pieces)
            result = self._crew.submit(frame.place.reader, memoryview(text))
            self._waiting.append((frame.path, result))
        frame.pieces, frame.size = [], 0

    # Damage

    def _lost(self, broken: int) -> None:
        """Go on behind damage, with the next object or key that is known."""
        window = self._window
        text, passed = window.text[window.at : broken], 0
        while (found := self._next_known(broken)) is None:
            # What cannot be told apart is passed, but for the end, where a sign may begin.
            window.at = max(window.at, broken)
            passed += window.forget(_LOOK_BACK)
            if not window.more():
                self._drop(text, passed)
                self._cut(window.text[window.at :])
                return
            broken = window.at
        place, depth = found
        goes_on = place.start("next")
        between = window.text[window.at : goes_on]
        text = text + window.text[broken:goes_on] if goes_on >= broken else between
        frame = self._frames[-1]
        if not text.strip(SPACE + b","):
            self.damage.repaired[_NO_END] += 1
        elif passed or not isinstance(frame.place, Records) or not self._mend(frame, text):
            self._drop(text, passed)
        while len(self._frames) > depth + 1:
            self._leave()
        window.at = goes_on

    def _next_known(self, at: int) -> tuple[re.Match[bytes], int] | None:
        """Return the first place at which one of the open objects and lists goes on; which one.

        Where the end of a list is missing, the key behind it stands before the place of damage.
        """
        best: tuple[re.Match[bytes], int] | None = None
        innermost = len(self._frames) - 1
        for depth in reversed(range(len(self._frames))):
            pattern = self._frames[depth].resume
            since = at if depth == innermost else max(0, self._window.at - 1)
            found = self._window.search(pattern, since) if pattern is not None else None
            if found is not None and (best is None or found.start() < best[0].start()):
                best = found, depth
        return best

    def _mend(self, frame: _Frame, text: bytes) -> bool:
        """Take the one object of a damaged text if it can be mended, and count how."""
        text = text.strip(SPACE + b",")
        done: list[str] = []
        for words, better in mended(text) if len(text) <= LONGEST_MENDED else ():
            done.append(words)
            whole, length = looked_at(better)
            ends_there = not better[length:].strip(SPACE + b",]}")
            if better.startswith(b"{") and whole and ends_there:
                self.damage.repaired.update(done)
                self._accept(frame, better[:length])
                return True
        return False

    def _drop(self, text: bytes, more: int = 0) -> None:
        """Count a text as lost, and so many bytes behind it."""
        lists = [f.objects.boundaries for f in self._frames if f.objects.boundaries is not None]
        self.damage.dropped_places += 1
        self.damage.dropped_events += sum(len(one.start.findall(text)) for one in lists)
        self.damage.dropped_bytes += len(text) + more

    def _cut(self, rest: bytes) -> None:
        """Remember that the text ends before the document does, and leave everything."""
        self.cut_in = self._frames[-1].path if self._frames else ()
        self.damage.cut_bytes = len(rest.strip(SPACE + b",]}"))
        while self._frames:
            self._leave()

    def _count_rest(self) -> None:
        """Count what follows the document, but for spaces."""
        self.damage.array_closed = True
        self.damage.another = self._window.sign() in (b"{", b"[")
        while self._window.available:
            self.damage.tail_bytes += len(self._window.text[self._window.at :].rstrip(SPACE))
            self._window.at = len(self._window.text)
            self._window.more()
