"""The blocks of long lists in a JSON text: decoded by workers, given in the order of the text.

A document is described by one Shape, that of its outermost value: which values are parsed, read in
blocks, kept or left out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from traceflops.parsers.io.json_window import STRING, Window
from traceflops.parsers.io.worker_pool import BlockReader, WorkerPool


class Boundaries(Struct, frozen=True):
    """Where the objects of a list begin, since all of them begin with the same keys.

    `start` is such a beginning, `resume` one behind the end of another object, `end` the end of
    the list, given where every object of it is known to begin so.
    """

    start: re.Pattern[bytes]
    resume: re.Pattern[bytes]
    end: re.Pattern[bytes] | None = None


class Records(Struct, frozen=True, dict=True):
    """A list that may be long: its objects are read in blocks.

    Without `boundaries` its objects are taken to begin as the first one does.
    """

    reader: BlockReader[Any]
    boundaries: Boundaries | None = None


class Kept(Enum):
    """What becomes of a value that is not parsed: it is left out, or kept as raw JSON.

    One that is kept is never long.
    """

    NOTHING = 0
    WHOLE = 1


SKIPPED: Final = Kept.NOTHING
WHOLE: Final = Kept.WHOLE


class Members(Struct, frozen=True, dict=True):
    """An object whose members are read; `other` is the shape of keys that are not named."""

    keys: Mapping[str, Shape]
    other: Shape = SKIPPED

    @cached_property
    def resume(self) -> re.Pattern[bytes]:
        """Pattern for where this object continues after damage: before one of its keys."""
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


_SMALL_BLOCK: Final = 1 << 16
"""Of a block that does not decode, pieces of this size are tried before single objects."""
_COMMA: Final = re.compile(rb"\s*+,\s*+")


class JsonPart(NamedTuple):
    """A part of the document by its path: what a block of a list gives, or a value as raw JSON."""

    path: Path
    value: Any


class Frame(Struct, eq=False):
    """An open object or list; `count` is the number of its values so far.

    `pieces` are texts of objects of a list that are to be decoded together. Before
    `small_until` and `single_until`, positions in the input, large and any guesses failed.
    `unmendable_until` is the end of the last text that could not be mended.
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
        """Pattern for where this object or list continues after damage."""
        if isinstance(self.shape, Members):
            return self.shape.resume if self.shape.keys else None
        if isinstance(self.shape, Elements):
            return self.shape.each.begins
        return self.boundaries.resume if self.boundaries else None

    def begun(self, text: bytes) -> int:
        """Number of objects of the list that seem to begin in a text."""
        return len(self.boundaries.start.findall(text)) if self.boundaries else 0


class _Block(NamedTuple):
    """Text of a list that is being decoded; that of a guess includes the comma behind it."""

    frame: Frame
    text: bytes
    result: Callable[[], Any]
    is_guess: bool


class BlockQueue:
    """Blocks and values of a document, in order: `waiting` until they are read.

    A block is cut where an object seems to begin, without a look at its text: a guess. One that
    does not decode rewinds the window, and is cut into small guesses, then into single objects.
    """

    def __init__(self, window: Window, pool: WorkerPool, block_bytes: int) -> None:
        self._window = window
        self._pool = pool
        self._block_bytes = block_bytes
        self.waiting: deque[_Block | JsonPart] = deque()

    @property
    def may_rewind(self) -> bool:
        """Whether the last block is a guess: it must be settled before a closer look."""
        last = self.waiting[-1] if self.waiting else None
        return isinstance(last, _Block) and last.is_guess

    def guess(self, frame: Frame) -> bool:
        """Submit what looks like whole objects of a list; return whether there were any.

        Nobody looked at this text: the decoder says whether it was cut between objects. The list
        may be short, so its first objects are taken singly, unless each is known by its beginning.
        """
        window, boundaries = self._window, frame.boundaries
        if not isinstance(frame.shape, Records) or boundaries is None:
            return False
        if window.position < frame.single_until or not (
            boundaries.end or frame.looked_at >= min(_SMALL_BLOCK, self._block_bytes)
        ):
            return False
        is_small = window.position < frame.small_until
        window.ensure(min(_SMALL_BLOCK, self._block_bytes) if is_small else self._block_bytes)
        comma = _COMMA.match(window.text, window.at) if frame.needs_comma else None
        if frame.needs_comma and comma is None:
            return False
        begin = comma.end() if comma else window.at
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
        """Have the text of objects decoded; of a guess the first `guessed` bytes."""
        assert isinstance(frame.shape, Records)
        result = self._pool.submit(frame.shape.reader, memoryview(text)[:guessed])
        self.waiting.append(_Block(frame, text, result, guessed is not None))

    def flush(self, frame: Frame) -> None:
        """Submit the objects of a list that were taken so far."""
        if frame.pieces:
            self._submit(frame, b",".join(frame.pieces))
        frame.pieces, frame.pieces_bytes = [], 0

    def ready(self, ahead: int) -> Iterator[JsonPart]:
        """Yield decoded parts in order until only `ahead` blocks are waiting.

        A guess that does not decode ends this: the queue is emptied and the window is rewound to
        the beginning of the guess, so that the caller reads its text again, in smaller pieces.
        Other blocks that do not decode are passed over.
        """
        while len(self.waiting) > ahead:
            block = self.waiting.popleft()
            if isinstance(block, JsonPart):
                yield block
            elif (value := block.result()) is not None:
                yield JsonPart(block.frame.path, value)
            elif block.is_guess:
                self._rewind_to(block)

    def _rewind_to(self, guess: _Block) -> None:
        """Rewind the window to a guess and drop all blocks after it; next time cut it smaller."""
        texts = [b.text for b in (guess, *self.waiting) if isinstance(b, _Block)]
        self.waiting.clear()
        self._window.rewind(b"".join(texts))
        end = self._window.position + len(guess.text)
        if len(guess.text) > _SMALL_BLOCK:
            guess.frame.small_until = end
        else:
            guess.frame.single_until = end

    def accept(self, frame: Frame, value: bytes) -> None:
        """Take one object that is known to decode."""
        frame.pieces.append(value)
        frame.pieces_bytes += len(value)
        if frame.pieces_bytes >= self._block_bytes // 2:  # many small ones are decoded together
            self.flush(frame)
