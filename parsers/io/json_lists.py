"""Reads a JSON document with long lists deep in it as a stream, never holding a whole list.

    blocks of text --> Window --guess--> text up to the last object in sight --> workers --> rows
                         ^                                                          |
                         +--------- it does not decode: look at each object --------+

The text of a list is cut where an object seems to begin; workers decode it, in order. If the cut
was wrong (in a string or an inner list), the block does not decode: its objects are taken one by
one. After a damaged object, reading goes on at the next one or the next key of an object around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.json_blocks import (
    SKIPPED,
    WHOLE,
    BlockQueue,
    Boundaries,
    Elements,
    Frame,
    JsonPart,
    Members,
    Path,
    Records,
    Shape,
    boundaries_of,
)
from traceflops.parsers.io.json_text import (
    BETWEEN,
    LONGEST_MENDED,
    LONGEST_VALUE,
    PHASE,
    SPACE,
    STRING,
    UNDECODABLE,
    Damage,
    Window,
    decoded,
    first_value,
    list_decoder,
    mended,
)
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, BlockReader, WorkerPool

_BOM: Final = b"\xef\xbb\xbf"
_LONGEST_KEY: Final = 1 << 16
_LOOK_BACK: Final = 1 << 10
_COMMAS: Final = "extra or missing commas ignored"
_UNUSED: Final = "damage in fields that are not used"
_NO_END: Final = "missing closing brackets assumed"
_MEMBER: Final = re.compile(
    rb"([\s,]*+)(?:(?P<close>\})|(?P<key>" + STRING + rb")\s*+:)", re.DOTALL
)
_ELEMENT: Final = re.compile(rb"([\s,]*+)(?:(?P<close>\])|(?=[^\s,\]]))")


class Document:
    """The parts of a document that its shape asks for, read from one input.

    Afterwards `damage` says what was mended, dropped or cut off, `lists` how many lists were
    read in blocks, and `cut_in` is the path of the value in which the text ended too early, if
    it did.
    """

    def __init__(
        self, source: ByteSource, root: Shape, pool: WorkerPool, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """Prepare to read a document of the shape `root`, in blocks that the pool decodes."""
        self.source = source
        self.damage = Damage()
        self.cut_in: Path | None = None
        self.lists = 0
        self._broken = False
        self._root = root
        self._pool = pool
        self._block_bytes = block_bytes
        self._frames: list[Frame] = []

    def parts(self) -> Iterator[JsonPart]:
        """Yield the parts in the order of the text."""
        self._window = Window(iter(self.source.blocks()), self._block_bytes)
        self._window.more(len(_BOM))
        if self._window.text.startswith(_BOM):
            self._window.at = len(_BOM)
        blocks = self._blocks = BlockQueue(self._window, self._pool, self._block_bytes)
        self._begin_document()
        while self._frames:
            if not blocks.guess(self._frames[-1]):
                # A guess may fail, which rewinds the text: wait for it before parsing on.
                yield from blocks.ready(0 if blocks.may_rewind else self._pool.ahead)
                self._step(self._frames[-1])
            yield from blocks.ready(self._pool.ahead)
        yield from blocks.ready(0)
        if self.cut_in is None:
            # Count what follows the document, except spaces.
            self.damage.array_closed = True
            self.damage.another = self._window.sign() in (b"{", b"[")
            while self._window.available:
                tail = self._window.text[self._window.at :].rstrip(SPACE)
                self.damage.tail_bytes += len(tail)
                self.damage.tail_events += len(PHASE.findall(tail))
                self._window.at = len(self._window.text)
                self._window.more()

    def _begin_document(self) -> None:
        self._begin(self._root, ())

    def _has_ended(self) -> bool:
        """Return whether a list really ends at its closing bracket."""
        return True

    # Values, one by one

    def _step(self, frame: Frame) -> None:
        """Take the next value of the innermost object or list, or leave it at its end."""
        if isinstance(frame.shape, Records | str):
            self._record(frame)
        elif (token := self._token(frame)) is not None:
            if isinstance(frame.shape, Members):
                key = decoded(token["key"], str)
                key = token["key"].decode(errors="replace") if key is None else key
                self._begin(frame.shape.keys.get(key, frame.shape.other), (*frame.path, key))
            elif isinstance(frame.shape, Elements):
                self._begin(frame.shape.each, (*frame.path, frame.count - 1))

    def _token(self, frame: Frame) -> re.Match[bytes] | None:
        """Consume commas and key before the next value and return their match.

        At the end of the object or list, and at damage, leave it or go on behind; return None.
        """
        window = self._window
        is_object = isinstance(frame.shape, Members)
        pattern = _MEMBER if is_object else _ELEMENT
        while (token := pattern.match(window.text, window.at)) is None:
            if window.available <= _LONGEST_KEY and window.more():
                continue  # what is read so far may end within a key
            rest = (b"{" if is_object else b"[") + window.text[window.at :].strip(BETWEEN)
            # The text ends in the middle of a key; anything else is damage.
            if window.available <= _LONGEST_KEY and first_value(rest) == (False, len(rest)):
                self._cut(rest[1:])
            else:
                self._lost(window.at)
            return None
        # Count a wrong number of commas, except for a missing comma before anything but an object
        # in a list: that is damage, which is counted elsewhere.
        extra = token[1].count(b",") - (frame.needs_comma and not token["close"])
        window.at = token.end()
        is_value = is_object or window.text.startswith(b"{", window.at)
        self.damage.repaired[_COMMAS] += extra > 0 or (extra < 0 and is_value)
        if token["close"] and isinstance(frame.shape, Records) and not self._has_ended():
            # A stray bracket: more records follow. Drop it like damage.
            frame.needs_comma = False
            window.at -= 1
            self._lost(window.at)
        elif token["close"]:
            self.damage.array_closed |= isinstance(frame.shape, Records)
            self._blocks.flush(self._frames.pop())
        else:
            frame.count += 1
            frame.needs_comma = True
            return token
        return None

    def _begin(self, shape: Shape, path: Path) -> None:
        """Enter the next value, or pass it on as a whole, or skip it, as its shape says."""
        sign = self._window.sign()
        if isinstance(shape, Elements) and sign == b"{":
            shape, path = shape.each, (*path, 0)
        goes_in = sign == (b"{" if isinstance(shape, Members) else b"[")
        if shape is not WHOLE and (goes_in or not self._frames):
            self._window.at += goes_in  # a document of another type counts as damaged
            boundaries = shape.boundaries if isinstance(shape, Records) else None
            self._frames.append(Frame(shape, path, boundaries))
            self.lists += isinstance(shape, Records)
        else:
            self._value(shape, path)

    def _value(self, shape: Shape, path: Path) -> None:
        """Pass on a value that is kept whole; skip any other, counting unexpected ones as lost."""
        value = self._pass_value(unused=shape is SKIPPED)
        if value is None:
            return
        if shape is WHOLE:
            self._blocks.waiting.append(JsonPart(path, msgspec.Raw(value)))
        elif shape is not SKIPPED and value not in frozenset({b"null", b"{}", b"[]"}):
            self._drop(value)

    def _record(self, frame: Frame) -> None:
        """Take the next object of a list."""
        window = self._window
        if self._token(frame) is None:
            return
        if frame.boundaries is None and frame.count == 1:
            # How the first object begins is how the others are expected to begin.
            window.ensure(_LOOK_BACK)
            frame.boundaries = boundaries_of(window.text, window.at)
        if window.sign() == b'"':
            window.ensure(_LOOK_BACK)
            if _MEMBER.match(window.text, window.at):  # a key: the list lacks its end
                self._lost(window.at)
                return
        if window.sign() == b"[" and frame.boundaries is not None:
            window.ensure(_LOOK_BACK)
            inner = window.text[window.at : window.at + _LOOK_BACK].lstrip(BETWEEN + b"[")
            if frame.boundaries.start.match(inner):  # a stray bracket: go on with this object
                self._lost(window.at + 1, unused=frame.shape is SKIPPED)
                return
        value = self._pass_value(unused=frame.shape is SKIPPED)
        if value is None or not isinstance(frame.shape, Records):
            return
        frame.looked_at += len(value)
        if _records_in(frame.shape.reader, value) is not None:
            self._blocks.accept(frame, value)
        elif not self._mends(frame, value):
            self._drop(value)

    def _pass_value(self, *, unused: bool = False) -> bytes | None:
        """Consume and return the next value; None if it is damaged or cut off."""
        window = self._window
        while True:
            whole, length = first_value(memoryview(window.text)[window.at :])
            # At the end of what was read, only a string, list or object is surely complete.
            is_closed = window.ended and window.text.rstrip(SPACE).endswith((b'"', b"]", b"}"))
            if length < window.available or (whole and is_closed):
                break
            if window.available > LONGEST_VALUE:
                break
            if not window.more():
                self._cut(window.text[window.at :])
                return None
        if not whole or length > LONGEST_VALUE:
            # A stray brace may be the end of an object, behind which reading goes on.
            is_stray = window.text.startswith(b"}", window.at)
            self._lost(window.at if is_stray else window.at + length, unused=unused)
            return None
        value = window.text[window.at : window.at + length].strip(SPACE)
        window.at += length
        return value

    # Damage

    def _mends(self, frame: Frame, text: bytes) -> bool:
        """Take the one object in a damaged text if a repair makes it decode; count the repairs."""
        if not isinstance(frame.shape, Records) or len(text) > LONGEST_MENDED:
            return False
        repairs: list[str] = []
        for words, better in mended(text):
            repairs.append(words)
            whole, length = first_value(better)
            value, behind = better[:length], better[length:].strip(BETWEEN + b"]}")
            is_record = whole and value.startswith(b"{") and not behind
            if is_record and _records_in(frame.shape.reader, value) == 1:
                self.damage.repaired.update(repairs)
                self._blocks.accept(frame, value)
                return True
        return False

    def _drop(self, text: bytes, more: int = 0) -> None:
        """Count a text as lost, and `more` bytes that are no longer in memory."""
        self.damage.dropped_places += 1
        self.damage.dropped_events += self._frames[-1].begun(text)
        self.damage.dropped_bytes += len(text) + more

    def _lost(self, broken: int, *, unused: bool = False) -> None:
        """Mend or drop the damaged value at the window's position, and go on behind it.

        `broken` is the offset of the damage. An `unused` value would be skipped: it is not lost.
        """
        window, frame = self._window, self._frames[-1]
        offset, depth, passed = self._resumption(broken)
        is_mended = False
        is_object = window.text.startswith(b"{", window.at)
        # Text up to `unmendable_until` was tried before: do not try again.
        if is_object and not passed and window.position >= frame.unmendable_until:
            is_mended = self._mends(frame, window.text[window.at : offset].strip(BETWEEN))
            frame.unmendable_until = window.position + offset - window.at
        if not is_mended and not passed and frame.boundaries is not None:
            # Another object that begins before `offset` may be whole: go on with that one.
            start = self._next_object(frame.boundaries, offset)
            if start is not None:
                offset, depth = start, len(self._frames) - 1
        text = window.text[window.at : offset].strip(BETWEEN)
        if depth < 0:
            self._cut(b"" if is_mended else text, passed, is_broken=True)
            return
        if not text or unused or frame.shape is SKIPPED:
            self.damage.repaired[_UNUSED if text else _NO_END] += 1
        elif not is_mended:
            self._drop(text, passed)
        frame.needs_comma = window.text.startswith(b",", offset)
        while len(self._frames) > depth + 1:
            self._blocks.flush(self._frames.pop())
        window.at = offset

    def _next_object(self, boundaries: Boundaries, stop: int) -> int | None:
        """Return the offset of the next object after the damaged one and before `stop`, or None.

        An inner object (after a colon or in an inner list) does not count, unless it is a record.
        """
        window, begin, inner_end = self._window, self._window.at + 1, -1
        while (match := window.search(boundaries.start, begin)) and match.start() < stop:
            begin = match.start()
            before = window.text[max(window.at, begin - _LOOK_BACK) : begin].rstrip(SPACE)
            # What follows an inner object and a comma is in the same inner list.
            is_next = inner_end >= 0 and window.text[inner_end:begin].strip(SPACE) == b","
            if not is_next and not before.endswith((b":", b"[")):
                return begin
            whole, length = first_value(memoryview(window.text)[begin:stop])
            value, least = window.text[begin : begin + length], boundaries.least
            if whole and (least is None or decoded(value, least) is not None):
                return begin
            begin += length if whole else 1
            inner_end = begin if whole else -1
        return None

    def _resumption(self, broken: int) -> tuple[int, int, int]:
        """Return the offset where an open object or list goes on after damage, and its depth.

        If none goes on, return the end of the text and depth -1. Also return how many bytes
        were too many to keep and are discarded.
        """
        window, passed = self._window, 0
        ahead = broken - window.at  # unlike an offset it stays valid when more text is read
        while not (matches := self._resumptions(window.at + ahead)):
            if window.available > LONGEST_VALUE:
                passed += window.available - _LOOK_BACK  # a match may begin in what is kept
                window.at = len(window.text) - _LOOK_BACK
                ahead = 0
            if not window.more():
                return len(window.text), -1, passed
        match, depth = min(matches, key=lambda pair: pair[0].start())
        return match.start("next"), depth, passed

    def _resumptions(self, broken: int) -> list[tuple[re.Match[bytes], int]]:
        """Return matches where open objects and lists may go on after damage, with their depths.

        If boundaries include the end of a list, values around it are tried only at the text's end.
        """
        window, frame = self._window, self._frames[-1]
        depth = len(self._frames) - 1
        match = window.search(frame.resume, broken) if frame.resume else None
        matches = [(match, depth)] if match else []
        if frame.boundaries is not None and frame.boundaries.end is not None:
            if not matches and window.ended:
                match = window.search(frame.boundaries.end, broken)
                matches = [(match, depth)] if match else []
            if matches or not window.ended:
                return matches
        # If a list lacks its closing bracket, the key that follows it is before the damage.
        before = window.text[max(0, window.at - _LOOK_BACK) : window.at]
        since = window.at - len(before) + len(before.rstrip(BETWEEN))
        # Innermost first: if several have the same key, the innermost goes on.
        for depth, outer in reversed([*enumerate(self._frames[:-1])]):
            if outer.resume and (match := window.search(outer.resume, since)):
                matches.append((match, depth))
        return matches

    def _cut(self, rest: bytes, more: int = 0, *, is_broken: bool = False) -> None:
        """Note that the text ends before the document does, and leave all open values.

        `rest` is the unreadable end, after `more` discarded bytes; `is_broken`: because of damage.
        """
        self.cut_in, self._broken = (), is_broken
        if self._frames:
            self.cut_in = self._frames[-1].path
            self.damage.cut_events = self._frames[-1].begun(rest)
        self.damage.tail_cut = not is_broken
        # Brackets that close the document lose nothing.
        self.damage.cut_bytes = len(rest.strip(BETWEEN + b"]}")) + more
        while self._frames:
            self._blocks.flush(self._frames.pop())


def _records_in(reader: BlockReader[Any], text: bytes) -> int | None:
    """Return how many records are in the text between the brackets of a list; None if invalid."""
    try:
        return len(list_decoder(reader.element).decode(b"[" + text + b"]"))
    except UNDECODABLE:
        return None
