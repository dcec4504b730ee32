"""The text of JSON: the part that is in memory, where a value ends in it, and repairs of damage."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field

from traceflops.parsers.io.inputs import GZIP_CUT, ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.table.trace import Note
from traceflops.units import capitalized, several

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for text that it cannot decode."""
LONGEST_VALUE: Final = 1 << 26
"""The longest object of a list, or value that is kept whole."""
SPACE: Final = b" \t\r\n"
BETWEEN: Final = SPACE + b","
STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""The regular expression for a whole string."""
_DEEPEST: Final = 5000
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_SPACES: Final = re.compile(rb"[ \t\r\n]*+")
_GRAMMAR: Final = msgspec.json.Decoder(msgspec.Raw)
T = TypeVar("T")


def decoded(text: bytes | str | msgspec.Raw, form: type[T]) -> T | None:
    """Return JSON as a value of the type `form`, None if it is no such value."""
    try:
        return msgspec.json.decode(text, type=form)
    except UNDECODABLE:
        return None


@cache
def list_decoder(element: Any, strict: bool = True) -> msgspec.json.Decoder[list[Any]]:
    """Return the decoder of a list of such elements; if not strict, it accepts numbers as texts."""
    return msgspec.json.Decoder(list.__class_getitem__(element), strict=strict)


def first_value(text: bytes | memoryview) -> tuple[bool, int]:
    """Return whether a text's first JSON value is whole and valid, and its valid length, from 1."""
    try:
        _GRAMMAR.decode(text)
    except msgspec.DecodeError as error:
        byte = _BYTE.search(str(error))
        offset = int(byte[1]) if byte else len(text)
        # If only more text follows the value, the error names the byte one behind its end.
        whole = "trailing characters" in str(error)
        return whole, max(1, offset - whole)
    except UNDECODABLE:
        return False, min(len(text), _DEEPEST)
    return True, len(text)


class Window:
    """A text whose blocks are read when they are needed; `text[at:]` is still to be parsed.

    Offsets into `text` change whenever more is read. `ended` says that no more text follows.
    """

    def __init__(self, blocks: Iterator[bytes], block_bytes: int) -> None:
        """Begin before the first of the blocks; `block_bytes` is how much is read at a time."""
        self.text = b""
        self.at = 0
        self.ended = False
        self._before = 0  # bytes of the input before `text`
        self._blocks = blocks
        self._block_bytes = block_bytes
        # Per pattern: from where on this text was searched, and the first match from there.
        self._matches: dict[re.Pattern[bytes], tuple[int, re.Match[bytes] | None]] = {}

    @property
    def available(self) -> int:
        """Number of bytes in memory that are still to be parsed."""
        return len(self.text) - self.at

    @property
    def position(self) -> int:
        """Number of bytes of the whole input before `at`."""
        return self._before + self.at

    def rewind(self, text: bytes) -> None:
        """Go back to the beginning of `text`, which was consumed last."""
        if len(text) <= self.at:
            self.at -= len(text)
        else:
            self._replace(text + self.text[self.at :], -len(text))

    def more(self, least: int = 0) -> bool:
        """Read on, dropping consumed text; return whether there was more.

        Read at least `least` bytes (0: a block), and at least as much as is available: the text is
        doubled each time, so that a long value takes linear time.
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
        """Read on until `size` bytes are available or the text has ended."""
        while self.available < size and self.more():
            pass

    def sign(self) -> bytes:
        """Skip spaces and return the next byte without consuming it; b"" at the end."""
        while True:
            spaces = _SPACES.match(self.text, self.at)
            self.at = spaces.end() if spaces else self.at
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def search(self, pattern: re.Pattern[bytes], offset: int) -> re.Match[bytes] | None:
        """Return the first match from an offset on; results are cached to search text only once."""
        since, match = self._matches.get(pattern, (len(self.text) + 1, None))
        if offset < since or (match is not None and match.start() < offset):
            match = pattern.search(self.text, offset)
            self._matches[pattern] = (offset, match)
        return match

    def last(self, pattern: re.Pattern[bytes], stop: int) -> re.Match[bytes] | None:
        """Return the last match that ends before `stop`, or None. It searches near `stop` first."""
        first = self.search(pattern, self.at)
        if first is None or first.end() > stop:
            return None
        near = max(first.start(), stop - (1 << 16))
        matches = deque(pattern.finditer(self.text, near, stop), 1)
        return (matches or deque(pattern.finditer(self.text, first.start(), stop), 1))[0]

    def _replace(self, text: bytes, further: int = 0) -> None:
        self._before += self.at + further
        self.text, self.at = text, 0
        self._matches.clear()


EVENT_START: Final = re.compile(rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:')
"""The beginning of an object that may be an event."""
PHASE: Final = re.compile(rb'"ph"\s*:')
LONGEST_MENDED: Final = 1 << 20
INVALID_UTF8: Final = "invalid UTF-8 read as U+FFFD"
# What follows the run always matches, so it never goes back. A possessive run (*+) would say so,
# but Python 3.11.2 matches such a group wrongly.
_TO_STRAY_QUOTE = re.compile(
    rb'((?:\A\s*+"|[^"\\{\[,:]++|\\.|[{\[,:]\s*+"|[{\[,:]|"(?=\s*(?:[,:}\]]|\Z)))*)'
    rb'("|\\?\Z)',
    re.DOTALL,
)
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_SURROGATES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
# A string without an end goes to the end of the text, so that it is scanned only once.
_STRING_OR_REST = STRING.removesuffix(b'"') + rb'(?:"|\\?+\Z)'
_STRING_TOKEN = re.compile(_STRING_OR_REST, re.DOTALL)
_BARE = rb"[-+]?(?:NaN|nan|Infinity|inf|N/A)(?=\s*[,}\]])"
_BARE_TOKEN = re.compile(rb"(" + _STRING_OR_REST + rb")|(?<=[:\[,\s])" + _BARE, re.DOTALL)
_COMMA_TOKEN = re.compile(rb"(" + _STRING_OR_REST + rb")|,(?=\s*[}\]])", re.DOTALL)
_CONTROL_TO_SPACE = bytes(32 if code < 32 else code for code in range(256))


class Damage(Struct):
    """What was wrong with the text: repairs by kind, and what had to be dropped.

    `cut_bytes` are the bytes after the last complete event of a list without an end, `tail_bytes`
    those that could not be read after a complete list; `another`: they look like another trace.
    `dropped_events`, `cut_events` and `tail_events` are how many events seem to begin in these.
    """

    repaired: Counter[str] = field(default_factory=Counter)
    dropped_places: int = 0
    dropped_events: int = 0
    dropped_bytes: int = 0
    cut_bytes: int | None = None
    cut_events: int = 0
    tail_bytes: int = 0
    tail_events: int = 0
    tail_cut: bool = False
    another: bool = False
    array_closed: bool = False


def valid_utf8(text: bytes) -> bytes:
    """Return the text with U+FFFD instead of bytes that are not UTF-8."""
    return text.decode(errors="replace").encode()


class Repair(NamedTuple):
    """A change of text that cannot be JSON: words for the note, a sign that it may be needed."""

    words: str
    sign: re.Pattern[bytes]
    change: Callable[[bytes], bytes]


REPAIRS: Final = (
    Repair(
        "unescaped quotes kept as text",
        re.compile(rb'"'),
        # Escape each quote that can neither open nor close a string at its place.
        partial(_TO_STRAY_QUOTE.sub, lambda run: run[1] + (b'\\"' if run[2] == b'"' else run[2])),
    ),
    Repair(
        "unescaped backslashes kept as text",
        re.compile(rb"\\"),
        partial(_ESCAPE.sub, lambda escape: escape[0] if len(escape[0]) > 1 else b"\\\\"),
    ),
    Repair(
        "non-JSON values such as NaN read as missing",
        re.compile(_BARE),
        partial(_BARE_TOKEN.sub, lambda token: token[1] or b"null"),
    ),
    Repair(
        "commas before a closing bracket ignored",
        re.compile(rb",\s*[}\]]"),
        partial(_COMMA_TOKEN.sub, lambda token: token[1] or b""),
    ),
    Repair(
        "raw control characters read as spaces",
        re.compile(rb"[\0-\x1f]"),
        partial(_STRING_TOKEN.sub, lambda token: token[0].translate(_CONTROL_TO_SPACE)),
    ),
    Repair(INVALID_UTF8, re.compile(rb"[\x80-\xff]"), valid_utf8),
    Repair(
        "lone surrogates read as U+FFFD",
        re.compile(rb"\\u[dD]"),
        partial(_SURROGATES.sub, lambda token: rb"\ufffd" if token[1] else token[0]),
    ),
)
"""Repairs of damaged text, which are applied one after the other.

Each changes only what cannot be JSON, so text that it changes was damaged.
"""


def mended(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the words of each repair that changes a text, and the text after all repairs so far."""
    for repair in REPAIRS:
        if repair.sign.search(text) is None:
            continue
        before, text = text, repair.change(text)
        if text != before:
            yield repair.words, text


_NOTES: Final = NoteTable(
    assumed={
        "no-checksum": "The gzip stream has no checksum. The trace is complete, but cannot be "
        "verified."
    },
    repaired={"json-repaired": "Damaged JSON: {what} ({count})."},
    dropped={
        "input-cut": "{cut}: later times may be missing and the last step may be incomplete.",
        "text-cut": (
            "The file ends within its event list.",
            "Every complete event is used. {what}Later times and what is written last ({at_end}) "
            "are missing.",
        ),
        "json-dropped": "Damaged JSON: {what} could not be read ({where}).",
        "json-dropped none": "Damaged JSON: {where} without a complete {noun} skipped.",
        "second-trace": "The file seems to hold a second trace, which was not read: "
        "{size}. Split the file to see it.",
        "tail-cut": "The file ends early after the event list: {size} not read; {at_end} may be "
        "missing.",
        "tail-unread": "Extra text after the event list: {size} not read; {at_end} may be missing.",
    },
)


def event_text_notes(source: ByteSource, damage: Damage, at_end: str) -> Iterator[Note]:
    """Yield the notes on the text of a list of events; `at_end` is what writers put at the end."""
    if source.cut:
        yield input_cut(source.cut, damage)
    if damage.cut_bytes is not None:
        size, begun = several(damage.cut_bytes, "byte"), damage.cut_events
        lost = f"{size} of an incomplete event lost. " if damage.cut_bytes else ""
        if begun > 1:
            lost = f"The last {size}, in which {begun:,} events begin, are unreadable. "
        yield _NOTES.note("text-cut", damage.cut_bytes, what=lost, at_end=at_end)
    yield from repairs_and_losses(damage, "event")
    if damage.another or damage.tail_cut or damage.tail_bytes:
        cut = "tail-cut" if damage.tail_cut else "tail-unread"
        events = f" ({several(damage.tail_events, 'event')})" if damage.tail_events else ""
        size = f"{several(damage.tail_bytes, 'byte')}{events}"
        code = "second-trace" if damage.another else cut
        yield _NOTES.note(code, damage.tail_bytes, size=size, at_end=at_end)


def input_cut(cut: str, damage: Damage) -> Note:
    """Return the note on an input that could not be read to its end; `cut` says how it ended."""
    if cut == GZIP_CUT and damage.array_closed and not damage.tail_cut:
        return _NOTES.note("no-checksum")
    return _NOTES.note("input-cut", cut=capitalized(cut))


def repairs_and_losses(damage: Damage, noun: str) -> Iterator[Note]:
    """Yield the notes on repairs and on dropped text; `noun` names what lists contain."""
    for what, count in sorted((+damage.repaired).items()):
        yield _NOTES.note("json-repaired", count, what=what)
    places = damage.dropped_places
    if places:
        where = f"{several(damage.dropped_bytes, 'byte')} in {several(places, 'place')}"
        what = several(damage.dropped_events, noun)
        key = "json-dropped" if damage.dropped_events else "json-dropped none"
        yield _NOTES.note(key, places, what=what, where=where, noun=noun)
