"""JSON text before it is decoded: where its values end, and where it breaks.

Everything here works on bytes and knows nothing of traces.
"""

from __future__ import annotations

import re

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that it does not decode."""

SPACE = b" \t\r\n"
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""A whole string, as the source of a regular expression."""

_FLAT = rb'\{(?:[^][{}"]++|' + STRING + rb')*+\}|\[(?:[^][{}"]++|' + STRING + rb")*+\]"
_AT_TOP = re.compile(rb'(?:[^][{}",]++|' + STRING + rb"|" + _FLAT + rb")*+", re.DOTALL)
_INSIDE = re.compile(rb'(?:[^][{}"]++|' + STRING + rb"|" + _FLAT + rb")*+", re.DOTALL)
_CLOSER = {b"[": b"]", b"{": b"}"}
_DEEPEST = 5000
_BYTE = re.compile(r"\(byte (\d+)\)")

_GRAMMAR = msgspec.json.Decoder(msgspec.Raw)


def commas(text: bytes, start: int, stop: int) -> list[int]:
    """Return the commas between values of a list in text[start:stop], which begins between two.

    It ends where the list does, where a string does not end, and at damage.
    """
    between: list[int] = []
    closers = bytearray()
    at = start
    while True:
        run = (_INSIDE if closers else _AT_TOP).match(text, at, stop)
        at = run.end() if run else stop
        sign = text[at : at + 1]
        if at >= stop:
            return between
        if sign == b",":
            between.append(at)
        elif sign in _CLOSER and len(closers) <= _DEEPEST:  # deeper no decoder goes
            closers += _CLOSER[sign]
        elif not closers or closers.pop() != sign[0]:
            return between
        at += 1


def first_value(text: bytes | memoryview) -> tuple[bool, int]:
    """Return whether the value with which a text begins is whole, and how many bytes it has.

    Of one that is not whole it is how far it was looked at, at least 1.
    """
    try:
        _GRAMMAR.decode(text)
    except msgspec.DecodeError as error:
        place = _BYTE.search(str(error))
        at = int(place.group(1)) if place else len(text)
        whole = "trailing characters" in str(error)  # it names the byte behind the one too many
        return whole, max(1, at - whole)
    except UNDECODABLE:
        return False, min(len(text), _DEEPEST)
    return True, len(text)


def is_whole(text: bytes) -> bool:
    """Return whether a text is one value and nothing else."""
    return first_value(text) == (True, len(text))
