"""JSON text before it is decoded: where its values end, where it breaks, what can be mended.

Everything here works on bytes and knows nothing of traces.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that it does not decode."""

SPACE = b" \t\r\n"
BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
"""Where one object of a list seems to end and the next to begin."""

_NEAR_END = 1 << 16
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'\{(?:[^][{}"]++|' + _STRING + rb')*+\}|\[(?:[^][{}"]++|' + _STRING + rb")*+\]"
_AT_TOP = re.compile(rb'(?:[^][{}",]++|' + _STRING + rb"|" + _FLAT + rb")*+", re.DOTALL)
_INSIDE = re.compile(rb'(?:[^][{}"]++|' + _STRING + rb"|" + _FLAT + rb")*+", re.DOTALL)
_CLOSER = {b"[": b"]", b"{": b"}"}
_DEEPEST = 5000
_BYTE = re.compile(r"\(byte (\d+)\)")

_GRAMMAR = msgspec.json.Decoder(msgspec.Raw)
_OBJECT: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Split:
    """The commas between the values of a list, and the bracket that closes the list, if any.

    `too_deep` is where nesting went deeper than anything decodes, and looking on was given up.
    """

    commas: list[int]
    close: int | None
    too_deep: int | None = None


def split(text: bytes, start: int, stop: int) -> Split:
    """Return where the values of a list end in text[start:stop], which begins between values."""
    commas: list[int] = []
    closers = bytearray()
    at = start
    while True:
        run = (_INSIDE if closers else _AT_TOP).match(text, at, stop)
        at = run.end() if run else stop
        sign = text[at : at + 1]
        if at >= stop or sign == b'"':  # the end, or a string that does not end
            return Split(commas, None)
        if sign == b",":
            commas.append(at)
        elif len(closers) > _DEEPEST:  # no decoder takes it, and each level costs a look
            return Split(commas, None, at)
        elif sign in _CLOSER:
            closers += _CLOSER[sign]
        elif not closers:
            return Split(commas, at)
        elif closers.pop() != sign[0]:  # damaged: what follows cannot be told apart
            return Split(commas, None)
        at += 1


def last_boundary(text: bytes) -> tuple[int, int] | None:
    """Return where the last event boundary ends the block and where the next event begins."""
    for window in (_NEAR_END, len(text)):
        found = deque(BOUNDARY.finditer(text, max(0, len(text) - window)), maxlen=1)
        if found:
            return found[0].start() + 1, found[0].end()
    return None


def violation(text: bytes) -> int | None:
    """Return where text that begins between the values of a list breaks the grammar of JSON.

    None where it is the beginning of a list that could go on well.
    """
    try:
        _GRAMMAR.decode(b"[" + text)
    except msgspec.DecodeError as error:
        found = _BYTE.search(str(error))
        # A number that is cut off is called malformed at the end of the text.
        return int(found.group(1)) - 1 if found and int(found.group(1)) <= len(text) else None
    except UNDECODABLE:
        return None
    return None


def nested_too_deep(text: bytes) -> bool:
    """Return whether text is nested deeper than can be decoded."""
    try:
        _GRAMMAR.decode(text)
    except RecursionError:
        return True
    except UNDECODABLE:
        return False
    return False


def as_object(text: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the keys of an object whose text was cut before its end, None if it is no object."""
    body = text.strip(SPACE).removesuffix(b",").rstrip(SPACE)
    try:
        decoded: dict[str, msgspec.Raw] = _OBJECT.decode(body + b"}")
    except UNDECODABLE:
        return None
    return {key: value.copy() for key, value in decoded.items()}


_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_SURROGATES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_STRING_TOKEN = re.compile(_STRING, re.DOTALL)
_BARE_TOKEN = re.compile(
    _STRING + rb"|(?<=[:\[,\s])[-+]?(?:NaN|nan|Infinity|inf|N/A)(?=\s*[,}\]])", re.DOTALL
)
_COMMA_TOKEN = re.compile(rb"(" + _STRING + rb")|,(?=\s*[}\]])", re.DOTALL)
_CONTROL_TO_SPACE = bytes(32 if code < 32 else code for code in range(256))


def _with_escaped_quotes(text: bytes) -> bytes:
    """Escape each quote that can neither open nor close a string where it stands."""

    def escaped(found: re.Match[bytes]) -> bytes:
        at = found.start()
        if found.group() != b'"' or _neighbour(text, at, -1) in b"{[,:":
            return found.group()
        return b'"' if _neighbour(text, at, 1) in b",:}]" else b'\\"'

    return _QUOTE.sub(escaped, text)


def _neighbour(text: bytes, at: int, step: int) -> bytes:
    """Return the nearest character before or after that is no space; empty at the ends."""
    at += step
    while 0 <= at < len(text) and text[at] in SPACE:
        at += step
    return text[at : at + 1] if at >= 0 else b""


def _with_escaped_backslashes(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: found.group() if len(found.group()) > 1 else b"\\\\", text)


def _without_bare_values(text: bytes) -> bytes:
    return _BARE_TOKEN.sub(
        lambda found: found.group() if found.group().startswith(b'"') else b"null", text
    )


def _without_last_commas(text: bytes) -> bytes:
    return _COMMA_TOKEN.sub(lambda found: found.group(1) or b"", text)


def _without_control(text: bytes) -> bytes:
    return _STRING_TOKEN.sub(lambda found: found.group().translate(_CONTROL_TO_SPACE), text)


def valid_utf8(text: bytes) -> bytes:
    """Return the text with U+FFFD in the place of bytes that are not UTF-8."""
    return text.decode(errors="replace").encode()


def _without_lone_surrogates(text: bytes) -> bytes:
    return _SURROGATES.sub(lambda found: rb"\ufffd" if found.group(1) else found.group(), text)


INVALID_UTF8 = "invalid UTF-8 read as U+FFFD"

REPAIRS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("quotes that were not escaped kept as text", _with_escaped_quotes),
    ("backslashes that were not escaped kept as text", _with_escaped_backslashes),
    ("values that are not JSON, such as NaN, read as missing", _without_bare_values),
    ("commas before a closing bracket left out", _without_last_commas),
    ("raw control characters read as spaces", _without_control),
    (INVALID_UTF8, valid_utf8),
    ("half surrogate pairs read as U+FFFD", _without_lone_surrogates),
)
"""What is tried on damaged text, in order and added up, with the words of the note.

Each changes only what cannot be JSON, so text that is changed was damaged.
"""
