"""Which characters a reader sees, and what stands for the others in all output.

Hidden are control, format and direction characters, private and unassigned code points, halves of
surrogate pairs, and letters and marks without a glyph of their own: those that may be ignored where
they cannot be drawn (Unicode's Default_Ignorable_Code_Point: fillers, joiners, variation selectors,
tags), with which bytes can be hidden from people and shown to a model, and blanks that are no
spaces.

A name that is too long is cut here only, for all output: no bracket that it closes is left open.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
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


_CLOSING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
_QUOTED: Final = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")
_LONGEST_CUT_AT: Final = 4_000
"""Brackets of longer texts are not looked at."""


def shortened(text: str, width: int) -> str:
    """Return at most `width` characters of a text: both its ends, each bracket closed.

    Of what stands in brackets whole arguments are left out ("MoE[experts=64, …]"), parts of one
    only of templates and where little else would stay.
    """
    if len(text) <= width:
        return text
    name = _Bracketed.of(text)
    whole = name.middle_left_out(width, whole=True)
    return whole if 2 * len(whole) > width else name.middle_left_out(width, whole=False)


def shortened_around(text: str, start: int, end: int, width: int) -> str:
    """Return at most `width` characters of a text: its beginning, and what is from `start` on.

    What follows `start` has the room from `end` on, the number of characters before it.
    """
    if len(text) <= width:
        return text
    name = _Bracketed.of(text)
    head = max(place for place in range(min(end, start) + 1) if name.may_end(place))
    shown = text[:width]
    for whole in (True, False):
        last = min(start + width, len(text))
        ends = (place for place in range(last, start, -1) if not whole or name.may_end(place))
        labels = (name.joined((0, head), (start, place)) for place in ends)
        shown = next((label for label in labels if len(label) <= width), shown)
        if 2 * len(shown) > width and shown != text[:width]:
            break
    return shown


@dataclass(frozen=True, slots=True)
class _Bracketed:
    """A text, and where its brackets and quotes close.

    Before each character: the innermost that is open, -1 for none, and how many are.
    """

    text: str
    closes: dict[int, int]
    inner: list[int]
    depth: list[int]

    @classmethod
    def of(cls, text: str) -> _Bracketed:
        closes = dict(_pairs(text)) if len(text) <= _LONGEST_CUT_AT else {}
        inner, depth = [-1], [0]
        for place in range(len(text)):
            mine, change = inner[place], 0
            if place in closes:
                mine, change = place, 1
            elif closes.get(mine) == place:
                mine, change = inner[mine], -1
            inner.append(mine)
            depth.append(depth[place] + change)
        return cls(text, closes, inner, depth)

    def middle_left_out(self, width: int, *, whole: bool) -> str:
        """Return the ends of the text, the first of about 3/5 of the width."""
        length = len(self.text)
        heads = [place for place in range(width) if not whole or self.may_end(place)]
        nearest = range(max(length - width, 0), length + 1)
        tails = [place for place in nearest if not whole or self._may_begin(place)]
        most = max(width - 1, 0) - max(width - 1, 0) * 2 // 5
        for head in reversed([place for place in heads if place <= most]):
            tail = next((t for t in tails if t >= head and self._fits(head, t, width)), None)
            if tail is not None:
                last = max(place for place in heads if self._fits(place, tail, width))
                return self.joined((0, last), (tail, length))
        return "…"[:width]

    def joined(self, *kept: tuple[int, int]) -> str:
        """Return stretches of the text; brackets that one leaves open are closed behind it."""
        parts = []
        for (start, end), (following, _) in pairwise([*kept, (len(self.text), 0)]):
            mark = "…" + self._closing(end, following) if end < following else ""
            parts.append(self.text[start:end] + mark)
        return "".join(parts)

    def may_end(self, place: int) -> bool:
        """Return whether what is before a place ends outside brackets or with an argument.

        Template arguments may be cut: what tells kernels apart is in the long ones.
        """
        mine = self.inner[place]
        if mine in (-1, place - 1) or self.text[mine] == "<":
            return True
        before, here = self.text[max(place - 2, 0) : place], self.text[place]
        return before.rstrip()[-1:] in {",", ";"} and here != " " and self.text[mine] in _CLOSING

    def _may_begin(self, place: int) -> bool:
        mine = self.inner[place]
        if mine == -1 or self.closes[mine] == place or self.text[mine] == "<":
            return True
        return self.text[place] in ",;" and self.text[mine] in _CLOSING

    def _fits(self, head: int, tail: int, width: int) -> bool:
        closing = self.depth[head] - self.depth[tail]
        is_nested = self.inner[tail] < head <= tail
        return is_nested and head + 1 + closing + len(self.text) - tail <= width

    def _closing(self, end: int, following: int) -> str:
        """Return what closes the brackets open at one place and not at a later one."""
        mine, closing = self.inner[end], ""
        while mine != -1 and self.closes[mine] < following:
            closing += self.text[self.closes[mine]]
            mine = self.inner[mine]
        return closing


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the places of brackets and quotes and of what closes them; others are text."""
    quoted = {found.start(): found.end() - 1 for found in _QUOTED.finditer(text)}
    opened: list[int] = []
    behind = 0
    for place, char in enumerate(text):
        if place < behind:
            continue
        if place in quoted:
            behind = quoted[place] + 1
            yield place, quoted[place]
        elif char in _CLOSING:
            opened.append(place)
        elif char in _CLOSING.values() and text[place - 1 : place] != "-":
            while opened and char != ">" and text[opened[-1]] == "<":
                opened.pop()  # "less than"
            if opened and _CLOSING[text[opened[-1]]] == char:
                yield opened.pop(), place


_DESCRIPTOR: Final = re.compile(r"( ?\[clone \.kd\]| \(\.kd\)|\.kd)\Z")
_FOLDER: Final = r"(?<![^\s()])(?:[^\s()]*[/\\])?"
_FUNCTION: Final = r"(<[\w :]+>(?!\S)|\S+)"
_FRAME: Final = re.compile(rf"{_FOLDER}([^\s/\\()]+\.py|<[\w .-]+>)\((\d+)\): {_FUNCTION}")
_CELL: Final = re.compile(
    rf"{_FOLDER}(?:(?:ipykernel_\d+\W\d+|\d{{6,}})\.py|<ipython-input-(\d+)-\w*>)(?=\()"
)


def kernel_name(text: str) -> str:
    """Return the name of a kernel without the ending that marks its descriptor (.kd)."""
    return _DESCRIPTOR.sub("", text)


def function_name(text: str) -> str:
    """Return a name in which a Python frame, "path/file.py(12): f", reads "f (file.py:12)"."""
    text = _CELL.sub(lambda cell: f"<notebook cell{f' {cell[1]}' if cell[1] else ''}>", text)
    return _FRAME.sub(r"\3 (\1:\2)", text)
