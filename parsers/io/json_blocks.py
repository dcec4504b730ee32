"""Blocks of long lists in a JSON text: decoded by workers, returned in the order of the text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, field

from traceflops.parsers.io.json_text import STRING, Window
from traceflops.parsers.io.worker_pool import BlockReader, WorkerPool

_SMALL_BLOCK: Final = 1 << 16  # bytes of the small guesses (see BlockQueue)
_COMMA: Final = re.compile(rb"\s*+,\s*+")


class Boundaries(Struct, frozen=True):
    """Patterns for where the objects of a list begin, since all begin with the same keys.

    `start` matches the beginning of an object, `resume` the end of an object and the beginning of
    the next, `end` the end of the list. `end` is given only if every object is known to begin so.
    `least` are the fields that every object has and no value inside one, if there are any.
    """

    start: re.Pattern[bytes]
    resume: re.Pattern[bytes]
    end: re.Pattern[bytes] | None = None
    least: type[Struct] | None = None


class Records(Struct, frozen=True, dict=True):
    """A list read in blocks. Without `boundaries` all objects begin as the first one does."""

    reader: BlockReader[Any]
    boundaries: Boundaries | None = None


Kept = Literal["skipped", "whole"]
SKIPPED: Final = "skipped"
WHOLE: Final = "whole"
"""Values that are not parsed: they are skipped, or kept as raw JSON if they are short."""


class Members(Struct, frozen=True, dict=True):
    """An object whose members are read; `other` is the shape of the members not in `keys`."""

    keys: Mapping[str, Shape]
    other: Shape = SKIPPED

    @cached_property
    def resume(self) -> re.Pattern[bytes]:
        """Pattern for where this object goes on after damage: before one of its keys."""
        return re.compile(rb"(?P<next>,\s*+" + self._key + rb")")

    @cached_property
    def begins(self) -> re.Pattern[bytes]:
        """Pattern for the beginning of the next object like this in a list."""
        return re.compile(rb"\}\s*+(?P<next>,\s*+\{\s*+" + self._key + rb")")

    @property
    def _key(self) -> bytes:
        names = b"|".join(re.escape(key.encode()) for key in self.keys)
        return rb'"(?:' + names + rb')"\s*+:'


class Elements(Struct, frozen=True, dict=True):
    """A list whose objects are read member by member; a single object is a list of one."""

    each: Members


Shape = Kept | Records | Members | Elements
Path = tuple[str | int, ...]
"""The keys and list indexes that lead to a value."""
_SCALAR: Final = rb"(?:[^][{}\",\s]++|" + STRING + rb")"
_FIRST_KEYS: Final = re.compile(
    rb"\s*+\{\s*+(%b)\s*+:\s*+(?:%b\s*+,\s*+(%b)\s*+:)?+" % (STRING, _SCALAR, STRING), re.DOTALL
)
"""The first key of an object, and the second if the value of the first is a scalar."""


def boundaries_of(text: bytes, begin: int) -> Boundaries | None:
    """Return how the objects of a list begin, as the first does at `begin`; None without object."""
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


class JsonPart(NamedTuple):
    """A part of the document by its path: the decoded block of a list, or a value as raw JSON."""

    path: Path
    value: Any


class Frame(Struct, eq=False):
    """An open object or list; `count` is the number of its values so far.

    `pieces` are texts of single objects of a list that will be decoded together. Up to the position
    `small_until` in the input only small guesses are made (see BlockQueue), since a large one
    failed there; up to `single_until` none are. `unmendable_until` is the end of the last text that
    could not be mended. `looked_at` counts bytes of objects that were taken one by one.
    """

    shape: Shape
    path: Path
    boundaries: Boundaries | None = None
    count: int = 0
    needs_comma: bool = False
    pieces: list[bytes] = field(default_factory=list)
    pieces_bytes: int = 0
    looked_at: int = 0
    small_until: int = 0
    single_until: int = 0
    unmendable_until: int = 0

    @property
    def resume(self) -> re.Pattern[bytes] | None:
        """Pattern for where this object or list goes on after damage, None if unknown."""
        if isinstance(self.shape, Members):
            return self.shape.resume if self.shape.keys else None
        if isinstance(self.shape, Elements):
            return self.shape.each.begins
        return self.boundaries.resume if self.boundaries else None

    def begun(self, text: bytes) -> int:
        """Number of objects of the list that seem to begin in a text."""
        return len(self.boundaries.start.findall(text)) if self.boundaries else 0


class _TextBlock(NamedTuple):
    """Text of a list that is being decoded; the text of a guess includes the comma behind it."""

    frame: Frame
    text: bytes
    result: Callable[[], Any]
    is_guess: bool


class BlockQueue:
    """Blocks and values of a document, in order: `waiting` until they are read.

    A guess is a block that is cut where an object seems to begin, without parsing its text. If it
    does not decode, the window is rewound; the text becomes small guesses, then single objects.
    """

    def __init__(self, window: Window, pool: WorkerPool, block_bytes: int) -> None:
        self._window = window
        self._pool = pool
        self._block_bytes = block_bytes
        self.waiting: deque[_TextBlock | JsonPart] = deque()

    @property
    def may_rewind(self) -> bool:
        """Whether the last block is a guess: its result must be known before objects are parsed."""
        last = self.waiting[-1] if self.waiting else None
        return isinstance(last, _TextBlock) and last.is_guess

    def guess(self, frame: Frame) -> bool:
        """Submit text that looks like whole objects of a list; return whether there was any.

        Decoding shows whether the text was really cut between objects. The first objects of a list
        are taken one by one, since it may be short, unless boundaries include its end. After a
        guess has failed, `single_until` and `small_until` forbid or limit guesses for a while.
        """
        window, boundaries = self._window, frame.boundaries
        if not isinstance(frame.shape, Records) or boundaries is None:
            return False
        small_bytes = min(_SMALL_BLOCK, self._block_bytes)
        may_be_short = boundaries.end is None and frame.looked_at < small_bytes
        if window.position < frame.single_until or may_be_short:
            return False
        is_small = window.position < frame.small_until
        window.ensure(small_bytes if is_small else self._block_bytes)
        comma = _COMMA.match(window.text, window.at) if frame.needs_comma else None
        if frame.needs_comma and comma is None:
            return False
        begin = comma.end() if comma else window.at
        # Cut at the last place in the block at which an object seems to begin.
        stop = min(begin + _SMALL_BLOCK, len(window.text)) if is_small else len(window.text)
        cut = window.last(boundaries.resume, stop)
        if cut is None or cut.start() < begin:
            return False
        window.at = cut.start("next")
        frame.needs_comma = False
        self.flush(frame)
        self._submit(frame, window.text[begin : window.at], cut.start() + 1 - begin)
        return True

    def _submit(self, frame: Frame, text: bytes, guessed: int | None = None) -> None:
        """Submit the text of objects to the pool; of a guess, only the first `guessed` bytes."""
        assert isinstance(frame.shape, Records)
        result = self._pool.submit(frame.shape.reader, memoryview(text)[:guessed])
        self.waiting.append(_TextBlock(frame, text, result, guessed is not None))

    def flush(self, frame: Frame) -> None:
        """Submit the objects of a list that were taken so far."""
        if frame.pieces:
            self._submit(frame, b",".join(frame.pieces))
        frame.pieces, frame.pieces_bytes = [], 0

    def ready(self, ahead: int) -> Iterator[JsonPart]:
        """Yield decoded parts in order until only `ahead` blocks are waiting.

        If a guess does not decode, rewind the window to it, so that the caller reads it
        again in smaller pieces. Other blocks that do not decode are skipped.
        """
        while len(self.waiting) > ahead:
            block = self.waiting.popleft()
            if isinstance(block, JsonPart):
                yield block
            elif (value := block.result()) is not None:
                yield JsonPart(block.frame.path, value)
            elif block.is_guess:
                texts = [b.text for b in (block, *self.waiting) if isinstance(b, _TextBlock)]
                self.waiting.clear()
                self._window.rewind(b"".join(texts))
                end = self._window.position + len(block.text)
                if len(block.text) > _SMALL_BLOCK:
                    block.frame.small_until = end
                else:
                    block.frame.single_until = end

    def accept(self, frame: Frame, value: bytes) -> None:
        """Take one object that is known to decode."""
        frame.pieces.append(value)
        frame.pieces_bytes += len(value)
        if frame.pieces_bytes >= self._block_bytes // 2:  # many small ones are decoded together
            self.flush(frame)
