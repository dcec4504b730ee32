"""Chrome trace-event JSON as a stream of decoded events.

The text is never held as a whole. It is cut into blocks at places that look like the boundary
between two events, and a block is believed only when it decodes as a list of complete values:
a cut inside a string or a nested list leaves it open, so `[` + block + `]` is valid JSON exactly
when the cut lies between two values of the array. No layout of the writer is assumed.

A block that does not decode is walked value by value: what is whole is used, a damaged event is
mended or dropped by itself and counted, and what is not complete yet waits for the next block.

Blocks are decoded by a crew, which may be ahead of the block whose result is looked at. Those
that were cut behind a block that turns out damaged are cut again where they began wrongly, so the
result is the same however far ahead the crew is.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TypeVar

import msgspec

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.jsonfiles.mend import mended
from traceflops.parsers.io.jsonfiles.rescue import EVENT_START, events_begun
from traceflops.parsers.io.jsonfiles.text import (
    SPACE,
    Split,
    as_object,
    first_value,
    last_boundary,
    nested_too_deep,
    split,
    violation,
)
from traceflops.parsers.io.jsonfiles.walk import (
    EVENT_BOUNDARY,
    EVENTS_KEY,
    LONGEST_MENDED,
    SECOND_LIST,
    Damage,
    Walker,
)
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, BlockReader, Crew

B = TypeVar("B")

_HEAD_BYTES = 1 << 16
_HEADER_LIMIT = 1 << 28
_KEYS_TRIED = 100
_LONGEST_EVENT = 1 << 25
"""No event is longer. Its beginning would otherwise wait, ever growing, for an end."""
_LOOK_BACK = 1 << 10
_FLAT = rb"(?:[^][{}]|\{[^][{}]*+\}|\[[^][{}]*+\])*+"
_END_OF_ALL = re.compile(rb"\}\s*(?=\](?:\s*," + _FLAT + rb")?\s*\}\s*\Z)")
"""The end of an event, of the list, and of an object in which not much follows the list."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class _Block:
    """A text that was cut at what looks like its last event boundary, if it has one.

    `read` is what was read for it (the rest was left over by the block before it), `rest` what it
    leaves to the next, and `ended` whether the input ends with it.
    """

    text: bytes
    read: list[bytes]
    ended: bool
    cut: tuple[int, int] | None

    @property
    def rest(self) -> bytes:
        return self.text[self.cut[1] :] if self.cut else self.text


class EventStream(Generic[B]):
    """The events of one input, read block by block, each of about BLOCK_BYTES of text.

    After iteration `header` holds the raw JSON of every other top-level key (those before and
    those after the events) and `damage` says what was mended, dropped or cut off.
    Raises InputError where the text has no events in it.
    """

    def __init__(
        self,
        source: ByteSource,
        reader: BlockReader[B],
        crew: Crew,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.source = source
        self.header: dict[str, msgspec.Raw] = {}
        self._reader = reader
        self._crew = crew
        self._block_bytes = block_bytes
        self._in_object = True
        self._in_list = True
        self._skipped = 0  # bytes of an endless event behind which none was found yet
        self._walker = Walker(reader.check)

    @property
    def damage(self) -> Damage:
        """Return what was wrong with the text so far."""
        return self._walker.damage

    def __iter__(self) -> Iterator[B]:
        """Yield what the blocks give, in the order of the text."""
        self._blocks: Iterator[bytes] = iter(self.source.blocks())
        text = yield from self._read_ahead(self._open_array())
        if self._walker.tail is None:
            text = self._walker.walk(text)
        if self._walker.tail is None:
            self._end_without_bracket(text)
        else:
            self._read_tail(self._walker.tail)
        yield from self._flush()

    # The beginning

    def _open_array(self) -> bytes:
        """Read up to the first event; keep what stood before the array as header."""
        text, ended = b"", False
        while not ended and len(text) < _HEADER_LIMIT:
            size = max(min(self._block_bytes, _HEAD_BYTES), len(text))
            more, ended = _gather(self._blocks, size)
            text = b"".join((text, *more))
            body = text.removeprefix(_BOM).lstrip(SPACE)
            if body.startswith(b"["):
                self._in_object = False
                return body[1:]
            if _begins_with_event(body):
                self._in_object, self._in_list = False, False
                self.damage.repaired["events outside a list read as a list"] += 1
                return body
            events = self._after_header(body)
            if events is not None:
                return events
        raise self._no_events(text.removeprefix(_BOM))

    def _after_header(self, body: bytes) -> bytes | None:
        """Return what stands behind the bracket of the events, None if it is not there yet."""
        for key in islice(EVENTS_KEY.finditer(body), _KEYS_TRIED):
            if key.end() == len(body):
                return None
            header = self._read_header(body[: key.start()])
            if header is None:
                continue  # the key stands in another object
            if body[key.end() : key.end() + 1] != b"[":
                raise InputError(
                    f"traceEvents is not a list: {self.source.label}",
                    "another tool changed the file; export the trace again",
                )
            self.header.update(header)
            return body[key.end() + 1 :]
        return None

    def _read_header(self, text: bytes) -> dict[str, msgspec.Raw] | None:
        """Return the keys before the events, {} where they are damaged, None if inside another."""
        header = as_object(text)
        if header is not None or (violation(text) is None and not nested_too_deep(text)):
            return header
        for words, better in mended(text) if len(text) <= LONGEST_MENDED else ():
            self.damage.repaired[words] += 1
            header = as_object(better)
            if header is not None:
                return header
        self._walker.drop(text)
        return {}

    def _no_events(self, text: bytes) -> InputError:
        whole, _ = first_value(memoryview(text))
        if self.source.cut or (not whole and violation(text) is None):
            return InputError(
                f"cut off before its first complete event: {self.source.label}",
                "nothing can be recovered; record or copy the trace again",
            )
        return NotATrace(
            f"no events: {self.source.label} (JSON without a traceEvents list)",
            "give a torch.profiler trace (prof.export_chrome_trace)",
        )

    # The events

    def _read_ahead(self, text: bytes) -> Generator[B, None, bytes]:
        """Yield what whole blocks give; return what is left when the input has ended."""
        waiting: deque[tuple[_Block, Callable[[], B | None]]] = deque()
        while self._walker.tail is None:
            while self._wants_more(waiting):
                block = self._next_block(text)
                waiting.append((block, self._submit(block)))
                text = block.rest
            if not waiting:
                return text
            block, result = waiting.popleft()
            read = result()
            if read is not None:
                self._walker.some = True
                yield read
                continue
            later = [one for one, _ in waiting]
            left = self._walk_block(block, later)
            yield from self._flush()
            if left is not None:
                text = self._skip(left) if len(left) > _LONGEST_EVENT else left
                waiting.clear()
        return b""

    def _skip(self, text: bytes) -> bytes:
        """Leave out a value that is longer than any event, up to what looks like its end."""
        self._walker.guess()
        begin = text[:_LOOK_BACK]
        while (end := EVENT_BOUNDARY.search(text)) is None and not self._walker.ended:
            self._skipped += len(text) - _LOOK_BACK
            read, self._walker.ended = _gather(self._blocks, self._block_bytes)
            text = b"".join((text[-_LOOK_BACK:], *read))
        if end is None:
            self._walker.some = False
            end = _END_OF_ALL.search(text)
        if end is None:
            self._skipped += len(text)
            return b""
        self._walker.drop(begin + text[: end.start() + 1])
        self.damage.dropped_bytes += self._skipped - len(begin)
        self._skipped = 0
        return text[end.end() :]

    def _wants_more(self, waiting: deque[tuple[_Block, Callable[[], B | None]]]) -> bool:
        """Return whether to read on; behind a block without a boundary nothing can be cut yet."""
        if self._walker.ended or len(waiting) > self._crew.ahead:
            return False
        return not waiting or waiting[-1][0].cut is not None

    def _submit(self, block: _Block) -> Callable[[], B | None]:
        if block.cut is None:
            return _nothing
        return self._crew.submit(self._reader, memoryview(block.text)[: block.cut[0]])

    def _next_block(self, text: bytes) -> _Block:
        # Reading as much again as is waiting keeps a giant event from costing its square.
        read, self._walker.ended = _gather(self._blocks, max(self._block_bytes, len(text)))
        text = b"".join((text, *read))
        return _Block(text, read, self._walker.ended, last_boundary(text))

    def _walk_block(self, block: _Block, later: list[_Block]) -> bytes | None:
        """Read a block that does not decode; return where to go on, None if as was guessed."""
        ended, self._walker.ended = self._walker.ended, block.ended
        left = self._walker.walk(block.text)
        if self._walker.tail is not None:
            self._walker.tail += b"".join(chain.from_iterable(one.read for one in later))
        elif block.cut and len(left) == len(block.rest):
            self._walker.ended = ended
            return None
        else:
            self._blocks = chain(*(one.read for one in later), self._blocks)
        return left

    def _flush(self) -> Iterator[B]:
        """Yield what the accepted texts give together."""
        accepted = self._walker.take_accepted()
        if accepted:
            read = self._reader.read(b"[" + b",".join(accepted) + b"]")
            assert read is not None, "each text was checked"
            yield read

    # The end

    def _end_without_bracket(self, rest: bytes) -> None:
        """Take the last event if it is complete, and remember that the list was not."""
        last = rest.strip(SPACE)
        whole = self._walker.accept(last) or (
            bool(split(last + b",", 0, len(last) + 1).commas) and self._walker.mend(last)
        )
        behind = 0 if whole else self._walker.rescue(last, sound=violation(last) is None)
        unfinished = b"" if whole else last[behind:].strip(SPACE + b",]}")
        lost = self._skipped + len(unfinished)
        self.damage.cut_events = events_begun(unfinished)
        self.damage.cut_bytes = lost if lost or self._in_list else None

    def _read_tail(self, tail: bytes) -> None:
        """Read the keys that stand after the events, up to where they are cut off."""
        rest = tail
        if self._in_object:
            rest, parts = self._split_tail(tail)
            self.damage.tail_cut = parts.close is None and parts.too_deep is None
            end = len(rest) if parts.close is None else parts.close
            if self.damage.tail_cut and not rest.endswith((b'"', b"]", b"}")):
                end = parts.commas[-1] if parts.commas else 0  # half a number looks like a number
            used, header = _longest_object(rest, (end, *reversed(parts.commas)))
            self._later_events(header)
            self.header.update(header)
            rest = rest[end + 1 if used == end else used :]
        self._leave(rest)

    def _split_tail(self, text: bytes) -> tuple[bytes, Split]:
        """Read on until the object ends that the events stand in; what follows it may be long."""
        while True:
            rest = text.lstrip(SPACE).removeprefix(b",")
            parts = split(rest, 0, len(rest))
            known = parts.close is not None or parts.too_deep is not None
            if known or len(text) > _HEADER_LIMIT:
                return rest, parts
            read, _ = _gather(self._blocks, max(_HEAD_BYTES, len(text)))
            if not read:
                return rest.rstrip(SPACE), parts
            text = b"".join((text, *read))

    def _leave(self, rest: bytes) -> None:
        """Count what is not read, but for the spaces around it."""
        read, ended = _gather(self._blocks, _HEAD_BYTES)
        rest = b"".join((rest, *read)).strip(SPACE)
        self.damage.another = rest.startswith((b"{", b"["))
        self.damage.tail_bytes, self.damage.tail_events = len(rest), events_begun(rest)
        for block in () if ended else self._blocks:
            self.damage.tail_bytes += len(block)
            self.damage.tail_events += events_begun(block)

    def _later_events(self, header: dict[str, msgspec.Raw]) -> None:
        """Take the events of a second list under the same key."""
        again = bytes(header.pop("traceEvents", b"")).strip(SPACE)
        if again.startswith(b"["):
            self.damage.repaired[SECOND_LIST] += 1
            self._walker.tail = None
            self._walker.walk(again[1:])


def _nothing() -> None:
    return None


def _begins_with_event(text: bytes) -> bool:
    """Return whether a text begins with a whole event that stands in no list."""
    if EVENT_START.match(text) is None:
        return False
    whole, length = first_value(memoryview(text))
    return whole and "ph" in (as_object(text[:length].rstrip(SPACE)[:-1]) or {})


def _longest_object(text: bytes, ends: Iterable[int]) -> tuple[int, dict[str, msgspec.Raw]]:
    """Return the first end up to which the text is the inside of an object, and its keys."""
    for end in ends:
        header = as_object(b"{" + text[:end])
        if header is not None:
            return end, header
    return 0, {}


def _gather(blocks: Iterator[bytes], size: int) -> tuple[list[bytes], bool]:
    """Return at least `size` bytes of the blocks, or all that is left and True."""
    parts: list[bytes] = []
    length = 0
    for block in blocks:
        parts.append(block)
        length += len(block)
        if length >= size:
            return parts, False
    return parts, True
