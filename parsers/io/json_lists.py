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
from traceflops.parsers.io.json_mend import Damage
from traceflops.parsers.io.json_objects import BETWEEN, LONGEST_VALUE, Frame, Then, Window
from traceflops.parsers.io.json_places import (
    SPACE,
    STRING,
    UNDECODABLE,
    Elements,
    Members,
    Path,
    Place,
    Skipped,
    Whole,
    commas,
    first_value,
)
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, Crew

_BOM: Final = b"\xef\xbb\xbf"
_LONGEST_KEY: Final = 1 << 16
_LOOK_BACK: Final = 1 << 10
_COMMAS: Final = "extra or missing commas ignored"
_EARLY_END: Final = "early closing brackets ignored"
_UNUSED: Final = "damage in fields that are not used"
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


class _Submitted(NamedTuple):
    """Text of a list, or for a guess all that was passed for it, which is being decoded."""

    frame: Frame
    text: bytes
    result: Callable[[], Any]
    is_guess: bool


class Document:
    """What a document holds at its places, read from one input.

    Afterwards `damage` says what was mended, dropped or cut off, and `cut_in` where the text
    ended too early.
    """

    def __init__(
        self, source: ByteSource, root: Place, crew: Crew, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.source = source
        self.damage = Damage()
        self.cut_in: Path | None = None
        self._broken = False
        self._root = root
        self._crew = crew
        self._block_bytes = block_bytes
        self._frames: list[Frame] = []
        self._waiting: deque[_Submitted | Found] = deque()

    def found(self) -> Iterator[Found]:
        """Yield what stands at the places, in the order of the text."""
        self._window = Window(iter(self.source.blocks()), self._block_bytes)
        self._window.more(len(_BOM))
        if self._window.text.startswith(_BOM):
            self._window.at = len(_BOM)
        self._begin_document()
        while self._frames:
            if not self._guess(self._frames[-1]):
                yield from self._ready(0 if self._guessed else self._crew.ahead)
                self._step(self._frames[-1])
            yield from self._ready(self._crew.ahead)
        yield from self._ready(0)
        if self.cut_in is None:
            self._count_rest()

    def _begin_document(self) -> None:
        self._begin(self._root, ())

    def _has_ended(self) -> bool:
        """Return whether a list ends where it seems to."""
        return True

    # Blocks that are decoded

    @property
    def _guessed(self) -> bool:
        last = self._waiting[-1] if self._waiting else None
        return isinstance(last, _Submitted) and last.is_guess

    def _guess(self, frame: Frame) -> bool:
        """Have decoded what looks like objects of a list; return whether there was any."""
        guess = frame.objects.guess(self._window) if frame.records else None
        if guess is not None:
            self._flush(frame)
            self._submit(frame, guess.text, guess.objects)
        return guess is not None

    def _submit(self, frame: Frame, text: bytes, guessed: int | None = None) -> None:
        if frame.records is not None:
            result = self._crew.submit(frame.records.reader, memoryview(text)[:guessed])
            self._waiting.append(_Submitted(frame, text, result, guessed is not None))

    def _ready(self, ahead: int) -> Iterator[Found]:
        while len(self._waiting) > ahead:
            block = self._waiting.popleft()
            if isinstance(block, Found):
                yield block
            elif (value := block.result()) is not None:
                yield Found(block.frame.path, value)
            elif block.is_guess:
                self._go_back(block)
            else:
                yield from self._one_by_one(block)

    def _go_back(self, wrong: _Submitted) -> None:
        """Look closely at what does not decode; what follows it is guessed again."""
        texts = [b.text for b in (wrong, *self._waiting) if isinstance(b, _Submitted)]
        self._waiting.clear()
        self._window.back(b"".join(texts))
        wrong.frame.objects.doubtful_until = self._window.position + len(texts[0])

    def _one_by_one(self, block: _Submitted) -> Iterator[Found]:
        """Give what is good of sound values of which one cannot be decoded."""
        place, text = block.frame.records, block.text
        assert place is not None
        good = Frame(place, block.frame.path, self._block_bytes, self.damage)
        between = commas(text, 0, len(text))
        for begin, end in zip([0, *(at + 1 for at in between)], [*between, len(text)], strict=True):
            if place.reader.check(b"[" + text[begin:end] + b"]") is None:
                good.salvage(text[begin:end], sound=True)
            else:
                good.accept(text[begin:end])
        value = place.reader.read(b"[" + b",".join(good.pieces) + b"]") if good.pieces else None
        if value is not None:
            yield Found(good.path, value)

    def _step(self, frame: Frame) -> None:
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
        if not isinstance(place, Whole) and (goes_in or not self._frames):
            self._window.at += goes_in  # a document that is nothing of the kind is damaged
            self._enter(place, path)
        else:
            self._value(place, path)

    def _enter(self, place: Place, path: Path) -> None:
        self._frames.append(Frame(place, path, self._block_bytes, self.damage))

    def _member(self, frame: Frame, place: Members) -> None:
        found = self._token(_MEMBER, frame)
        if found is not None:
            try:
                key = msgspec.json.decode(found["key"], type=str)
            except UNDECODABLE:
                key = found["key"].decode(errors="replace")
            frame, place = self._owner(frame, place, key)
            self._begin(place.of(key), (*frame.path, key))

    def _owner(self, frame: Frame, place: Members, key: str) -> tuple[Frame, Members]:
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

    def _element(self, frame: Frame, place: Elements) -> None:
        if self._token(_ELEMENT, frame) is not None:
            self._begin(place.each, (*frame.path, frame.count - 1))

    def _token(self, pattern: re.Pattern[bytes], frame: Frame) -> re.Match[bytes] | None:
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

    def _no_token(self, frame: Frame) -> None:
        """Leave everything where the text ends in the middle of a key; anything else is damage."""
        window = self._window
        opener = b"{" if isinstance(frame.place, Members) else b"["
        if window.ended and window.available <= _LONGEST_KEY:
            rest = opener + window.text[window.at :].strip(SPACE + b",")
            if first_value(rest) == (False, len(rest)):
                self._cut(rest[1:])
                return
        self._lost(window.at)

    def _value(self, place: Place, path: Path) -> None:
        """Hand over a value that is kept whole; pass any other."""
        window = self._window
        while True:
            whole, length = first_value(memoryview(window.text)[window.at :])
            # A number may go on behind the end of what was read.
            if length < window.available or (whole and window.closed):
                break
            if window.available > LONGEST_VALUE:
                whole = False
                break
            if not window.more():
                self._cut(window.text[window.at :])
                return
        if not whole:
            self._lost(window.at + length, unused=isinstance(place, Skipped))
            return
        value = window.text[window.at : window.at + length].strip(SPACE)
        window.at += length
        if isinstance(place, Whole):
            self._waiting.append(Found(path, msgspec.Raw(value)))
        elif not isinstance(place, Skipped) and value not in _NOTHING:
            self._frames[-1].drop(value)

    # Lists that are read in blocks

    def _objects(self, frame: Frame) -> None:
        """Take the next objects of a list."""
        taken = frame.objects.take(self._window)
        frame.accept(taken.text)
        if frame.size >= self._block_bytes // 2:  # many small ones are decoded together
            self._flush(frame)
        self.damage.repaired[_COMMAS] += taken.commas
        if taken.then == Then.THE_END and not self._has_ended():
            self._window.at -= 1
            self._lost(self._window.at)
        elif taken.then == Then.THE_END:
            self.damage.array_closed = True
            self._leave()
        elif taken.then == Then.DAMAGE:
            self._lost(taken.broken)
        elif taken.then == Then.A_CUT:
            self._cut(self._window.text[self._window.at :])

    def _flush(self, frame: Frame) -> None:
        """Have decoded what was taken of a list."""
        if frame.pieces:
            self._submit(frame, b",".join(frame.pieces))
        frame.pieces, frame.size = [], 0

    # Damage

    def _lost(self, broken: int, *, unused: bool = False) -> None:
        """Go on behind damage, with the next object or key that is known.

        Before that stands nothing that is needed where the damage is in an `unused` value.
        """
        window, passed = self._window, 0
        unused = unused or isinstance(self._frames[-1].place, Skipped)
        ahead = broken - window.at
        while (known := self._next_known(window.at + ahead)) is None:
            if window.available > LONGEST_VALUE:
                passed += window.forget(_LOOK_BACK)
                ahead = 0
            if not window.more():
                self._cut(window.text[window.at :], passed, is_broken=True)
                return
        place, depth = known
        goes_on = place.start("next")
        text = window.text[window.at : goes_on].strip(BETWEEN)
        if not text:
            self.damage.repaired[_NO_END] += 1
        elif unused:
            self.damage.repaired[_UNUSED] += 1
        elif passed or len(text) > LONGEST_VALUE:
            self._frames[-1].drop(text, passed)
        else:
            self._frames[-1].salvage(text)
        while len(self._frames) > depth + 1:
            self._leave()
        window.at = goes_on

    def _next_known(self, at: int) -> tuple[re.Match[bytes], int] | None:
        """Return the first place at which one of the open objects and lists goes on; which one.

        Where the end of a list is missing, the key behind it stands before the place of damage.
        """
        places: list[tuple[re.Match[bytes], int]] = []
        innermost = len(self._frames) - 1
        for depth, frame in reversed([*enumerate(self._frames)]):
            since = at if depth == innermost else max(0, self._window.at - 1)
            place = self._window.search(frame.resume, since) if frame.resume else None
            if depth == innermost and frame.end and not place and self._window.ended:
                place = self._window.search(frame.end, since)
            places += [(place, depth)] if place else []
            if depth == innermost and frame.end and (place or not self._window.ended):
                break
        return min(places, key=lambda known: known[0].start(), default=None)

    def _cut(self, rest: bytes, more: int = 0, *, is_broken: bool = False) -> None:
        """Remember that the text ends before the document does, and leave everything."""
        self.cut_in, self._broken = (), is_broken
        if self._frames:
            frame = self._frames[-1]
            self.cut_in = frame.path
            rest = rest if more else frame.unfinished(rest, sound=not is_broken)
            self.damage.cut_events = frame.begun(rest)
        self.damage.tail_cut = not is_broken
        self.damage.cut_bytes = len(rest.strip(BETWEEN + b"]}")) + more
        while self._frames:
            self._leave()

    def _count_rest(self) -> None:
        """Count what follows the document, but for spaces."""
        self.damage.array_closed = True
        self.damage.another = self._window.sign() in (b"{", b"[")
        while self._window.available:
            self._count_tail(self._window.text[self._window.at :].rstrip(SPACE))
            self._window.at = len(self._window.text)
            self._window.more()

    def _count_tail(self, text: bytes) -> None:
        self.damage.tail_bytes += len(text)


class ListStream(Document):
    """A document whose finds are taken as they come."""

    def __iter__(self) -> Iterator[Found]:
        """Yield what stands at the places, in the order of the text."""
        return self.found()
