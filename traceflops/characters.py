"""Which characters a reader sees, and what stands for the others in all output.

Hidden are control, format and direction characters, private and unassigned code points, halves of
surrogate pairs, and letters and marks without a glyph of their own: those that may be ignored where
they cannot be drawn (Unicode's Default_Ignorable_Code_Point: fillers, joiners, variation selectors,
tags), with which bytes can be hidden from people and shown to a model, and blanks that are no
spaces.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_LINE_BREAKS: Final = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029")
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U00016fe4\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""What has no glyph although its category is that of letters, marks or signs, in whole ranges."""
_NO_TEXT: Final = re.compile("[^\n -~]")


def is_visible(text: str) -> bool:
    """Return whether each character of a text is seen, or is a plain space."""
    return text.isprintable() and (text.isascii() or _UNSEEN.search(text) is None)


def visible(text: str) -> str:
    """Return text in which nothing acts: line breaks are spaces, hidden characters escapes.

    Of a text that is all blanks, the blanks are escapes, too, so that there is something to see.
    """
    if not text.strip():
        return "".join(map(_escape, text))
    return text if is_visible(text) else text.translate(_AS_SHOWN)


def visible_json(text: str) -> str:
    """Return JSON with the same values, in which hidden characters are escapes of JSON."""
    return _NO_TEXT.sub(lambda found: _IN_JSON[ord(found.group())], text)


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN or _UNSEEN.match(char) is not None


class _Shown(dict[int, str]):
    """What stands for a character that is printed, by its code point."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        shown = " " if char in _LINE_BREAKS else _escape(char) if _is_hidden(char) else char
        self[code] = shown
        return shown


class _ShownInJson(dict[int, str]):
    """What stands for a character in JSON, by its code point."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        units = char.encode("utf-16-be", "surrogatepass").hex()
        escapes = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        acts = _is_hidden(char) or char in _LINE_BREAKS
        shown = self[code] = escapes if acts else char
        return shown


_AS_SHOWN: Final = _Shown()
_IN_JSON: Final = _ShownInJson()


def _escape(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )
