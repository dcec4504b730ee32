"""JSON text before it is decoded: where its values end, and where it breaks.

Everything here works on bytes and knows nothing of traces.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that it does not decode."""

SPACE = b" \t\r\n"
BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
"""Where one object of a list seems to end and the next to begin."""

_NEAR_END = 1 << 16
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""A whole string, as the source of a regular expression."""

_FLAT = rb'\{(?:[^][{}"]++|' + STRING + rb')*+\}|\[(?:[^][{}"]++|' + STRING + rb")*+\]"
_AT_TOP = re.compile(rb'(?:[^][{}",]++|' + STRING + rb"|" + _FLAT + rb")*+", re.DOTALL)
_INSIDE = re.compile(rb'(?:[^][{}"]++|' + STRING + rb"|" + _FLAT + rb")*+", re.DOTALL)
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


def split(text: bytes, start: int, stop: int, most: int | None = None) -> Split:
    """Return where the values of a list end in text[start:stop], which begins between values.

    No more than so many commas are looked for.
    """
    commas: list[int] = []
    closers = bytearray()
    at = start
    while True:
        run = (_INSIDE if closers else _AT_TOP).match(text, at, stop)
        at = run.end() if run else stop
        sign = text[at : at + 1]
        if (
            at >= stop or sign == b'"' or len(commas) == most
        ):  # the end, or a string that does not end
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


def first_value(text: memoryview, *, strict: bool = False) -> tuple[bool, int]:
    """Return whether the value with which a text begins is whole, and how many bytes it has.

    Of one that is not whole it is how far it was looked at, at least 1. Where it is `strict` a
    value with a comma before a closing bracket is not whole.
    """
    too_much = "trailing characters" if strict else "trailing"
    try:
        _GRAMMAR.decode(text)
    except msgspec.DecodeError as error:
        found = _BYTE.search(str(error))
        at = int(found.group(1)) if found else len(text)
        whole = too_much in str(error)  # of which the byte behind the one too many is said
        return whole, max(1, at - whole)
    except UNDECODABLE:
        return False, min(len(text), _DEEPEST)
    return True, len(text)
