"""Repairs of text that is nearly JSON, in the ways in which profilers break it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from traceflops.parsers.io.jsonfiles.text import STRING

INVALID_UTF8: Final = "invalid UTF-8 read as U+FFFD"

_TO_STRAY_QUOTE = re.compile(
    rb'((?:\A\s*+"|[^"\\{\[,:]++|\\.|[{\[,:]\s*+"|[{\[,:]|"(?=\s*(?:[,:}\]]|\Z)))*+)'
    rb'("|\\?\Z)',
    re.DOTALL,
)
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_SURROGATES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_STRING_TOKEN = re.compile(STRING, re.DOTALL)
_BARE = rb"[-+]?(?:NaN|nan|Infinity|inf|N/A)(?=\s*[,}\]])"
_BARE_TOKEN = re.compile(STRING + rb"|(?<=[:\[,\s])" + _BARE, re.DOTALL)
_COMMA_TOKEN = re.compile(rb"(" + STRING + rb")|,(?=\s*[}\]])", re.DOTALL)
_CONTROL_TO_SPACE = bytes(32 if code < 32 else code for code in range(256))


def _with_escaped_quotes(text: bytes) -> bytes:
    """Escape each quote that can neither open nor close a string where it stands."""
    return _TO_STRAY_QUOTE.sub(lambda run: run[1] + (b'\\"' if run[2] == b'"' else run[2]), text)


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


class Repair(NamedTuple):
    """A change of what cannot be JSON: the words of its note, and a sign that it may be needed."""

    words: str
    sign: re.Pattern[bytes]
    change: Callable[[bytes], bytes]


REPAIRS: Final = (
    Repair("unescaped quotes kept as text", re.compile(rb'"'), _with_escaped_quotes),
    Repair(
        "unescaped backslashes kept as text",
        re.compile(rb"\\"),
        _with_escaped_backslashes,
    ),
    Repair(
        "non-JSON values such as NaN read as missing",
        re.compile(_BARE),
        _without_bare_values,
    ),
    Repair(
        "commas before a closing bracket ignored", re.compile(rb",\s*[}\]]"), _without_last_commas
    ),
    Repair("raw control characters read as spaces", re.compile(rb"[\0-\x1f]"), _without_control),
    Repair(INVALID_UTF8, re.compile(rb"[\x80-\xff]"), valid_utf8),
    Repair("lone surrogates read as U+FFFD", re.compile(rb"\\u[dD]"), _without_lone_surrogates),
)
"""What is tried on damaged text, in order and added up.

Each changes only what cannot be JSON, so text that is changed was damaged.
"""


def mended(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the words of each repair that changes a text, and the text with it and those before."""
    for repair in REPAIRS:
        if repair.sign.search(text) is None:
            continue
        before, text = text, repair.change(text)
        if text != before:
            yield repair.words, text
