"""The blocks of long lists in a JSON text: decoded by workers, given in the order of the text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from traceflops.parsers.io.json_shapes import Boundaries, Elements, Members, Path, Records, Shape
from traceflops.parsers.io.json_window import Window
from traceflops.parsers.io.worker_pool import Crew

_SMALL_BLOCK: Final = 1 << 16
"""Of a block that does not decode, pieces of this size are tried before single objects."""
_COMMA: Final = re.compile(rb"\s*+,\s*+")


class JsonPart(NamedTuple):
    """A part of the document by its path: what a block of a list gives, or a value as raw JSON."""

    path: Path
    value: Any


@dataclass(eq=False)
class Frame:
    """An object or a list that was gone into; `count` is the number of its values so far.

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
        """Where this goes on behind damage."""
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
    """Blocks and values of a document on their way to whoever reads it.

    A block is cut where an object seems to begin, without a look at its text: a guess. One that
    does not decode rewinds the window, and is cut into small guesses, then into single objects.
    """

    def __init__(self, window: Window, crew: Crew, block_bytes: int) -> None:
        self._window = window
        self._crew = crew
        self._block_bytes = block_bytes
        self._waiting: deque[_Block | JsonPart] = deque()

    @property
    def may_rewind(self) -> bool:
        """Whether the last block is a guess: it must be settled before a closer look."""
        last = self._waiting[-1] if self._waiting else None
        return isinstance(last, _Block) and last.is_guess

    def put(self, part: JsonPart) -> None:
        """Add a value behind the blocks that stand before it."""
        self._waiting.append(part)

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
        """Have the text of objects decoded; of a guess so many bytes are objects."""
        assert isinstance(frame.shape, Records)
        result = self._crew.submit(frame.shape.reader, memoryview(text)[:guessed])
        self._waiting.append(_Block(frame, text, result, guessed is not None))

    def flush(self, frame: Frame) -> None:
        """Have decoded what was taken of a list."""
        if frame.pieces:
            self._submit(frame, b",".join(frame.pieces))
        frame.pieces, frame.pieces_bytes = [], 0

    def ready(self, ahead: int) -> Iterator[JsonPart]:
        """Yield results until only `ahead` blocks are waiting."""
        while len(self._waiting) > ahead:
            block = self._waiting.popleft()
            if isinstance(block, JsonPart):
                yield block
            elif (value := block.result()) is not None:
                yield JsonPart(block.frame.path, value)
            elif block.is_guess:  # go back; all that was submitted behind it is guessed again
                texts = [b.text for b in (block, *self._waiting) if isinstance(b, _Block)]
                self._waiting.clear()
                self._window.rewind(b"".join(texts))
                end = self._window.position + len(block.text)
                if len(block.text) > _SMALL_BLOCK:
                    block.frame.small_until = end
                else:
                    block.frame.single_until = end

    def accept(self, frame: Frame, value: bytes) -> None:
        """Take one object that was looked at."""
        frame.pieces.append(value)
        frame.pieces_bytes += len(value)
        if frame.pieces_bytes >= self._block_bytes // 2:  # many small ones are decoded together
            self.flush(frame)
