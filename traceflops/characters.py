"""Which characters a reader sees, and what stands for the others in all output.

Hidden are control, format and direction characters, private and unassigned code points, halves of
surrogate pairs, blanks that are no spaces, and letters and marks without a glyph of their own
(Unicode's Default_Ignorable_Code_Point: fillers, joiners, variation selectors, tags). With the
latter, bytes can be hidden from people and shown to a model.

Names that are too long are cut here, for all output, such that no bracket is left open.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_LINE_BREAKS: Final = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029")
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U00016fe4\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters without a glyph whose category is that of letters, marks or signs, in ranges."""
_NO_TEXT: Final = re.compile("[^\n -~]")


def is_visible(text: str) -> bool:
    """Return whether each character of a text is seen, or is a plain space."""
    return text.isprintable() and (text.isascii() or _UNSEEN.search(text) is None)


def visible(text: str) -> str:
    """Return a text with line breaks as spaces, and hidden characters as escapes.

    A text of nothing but blanks has these as escapes, too, so that there is something to see.
    """
    if not text.strip():
        return "".join(map(_escape, text))
    return text if is_visible(text) else text.translate(_AS_SHOWN)


def visible_json(text: str) -> str:
    """Return JSON with the same values, in which hidden characters are escapes of JSON."""
    return _NO_TEXT.sub(lambda match: _in_json(match.group()), text)


@cache
def _in_json(char: str) -> str:
    """Return JSON's escape (UTF-16) of a hidden character or line break, else the character."""
    if not _is_hidden(char) and char not in _LINE_BREAKS:
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN or _UNSEEN.match(char) is not None


class _Shown(dict[int, str]):
    """What stands for a character that is printed, by its code point."""

    def __missing__(self, code: int) -> str:
        """Return a space for a line break, an escape for a hidden character, else the character."""
        char = chr(code)
        self[code] = " " if char in _LINE_BREAKS else _escape(char) if _is_hidden(char) else char
        return self[code]


_AS_SHOWN: Final = _Shown()


def _escape(char: str) -> str:
    """Return a character as Python's literals escape it."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_CLOSING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
_QUOTED: Final = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")
_LONGEST_CUT_AT: Final = 4_000  # brackets of longer texts are not looked at


@lru_cache(maxsize=4_096, typed=True)  # the names of kernels are shortened again and again
def shortened(text: str, width: int) -> str:
    """Return at most `width` characters of a text: both its ends, each bracket closed.

    In brackets, whole arguments are left out ("MoE[experts=64, …]"); parts of an argument only in
    templates, or if less than half of the width would be left.
    """
    if len(text) <= width:
        return text
    name = _Bracketed.of(text)
    short = name.without_middle(width, whole=True)
    return short if 2 * len(short) > width else name.without_middle(width, whole=False)


def shortened_around(text: str, start: int, end: int, width: int) -> str:
    """Return up to `width` characters: a beginning of up to `end`, and those from `start` on."""
    if len(text) <= width:
        return text
    name = _Bracketed.of(text)
    head = max(index for index in range(min(end, start) + 1) if name.may_end(index))
    last = min(start + width, len(text))
    shown = text[:width]
    # First cut between arguments; if that leaves little or nothing, cut inside of one, too.
    for whole in (True, False):
        stops = (index for index in range(last, start, -1) if not whole or name.may_end(index))
        labels = (name.joined((0, head), (start, stop)) for stop in stops)
        shown = next((label for label in labels if len(label) <= width), shown)
        if 2 * len(shown) > width and shown != text[:width]:
            break
    return shown


class _Bracketed(NamedTuple):
    """A text with its brackets and quotes: `closes` is the index of the end by that of the start.

    `inner` and `depth` have an entry for the place before each character, and one for the end: the
    start of the innermost open bracket, -1 for none, and the number of open ones.
    """

    text: str
    closes: dict[int, int]
    inner: list[int]
    depth: list[int]

    @classmethod
    def of(cls, text: str) -> _Bracketed:
        """Return a text with its brackets; a very long one counts as having none."""
        closes = dict(_pairs(text)) if len(text) <= _LONGEST_CUT_AT else {}
        inner, depth = [-1], [0]
        for index in range(len(text)):
            opened, change = inner[index], 0
            if index in closes:
                opened, change = index, 1
            elif closes.get(opened) == index:
                opened, change = inner[opened], -1
            inner.append(opened)
            depth.append(depth[index] + change)
        return cls(text, closes, inner, depth)

    def without_middle(self, width: int, *, whole: bool) -> str:
        """Return both ends of the text in `width` characters, about 3/5 of them for the first.

        With `whole`, arguments are left out as a whole, else parts of them, too.
        """
        length, room = len(self.text), max(width - 1, 0)
        # Where the first end may stop, and where the second may start.
        heads = [index for index in range(width) if not whole or self.may_end(index)]
        nearest = range(max(length - width, 0), length + 1)
        tails = [index for index in nearest if not whole or self._may_begin(index)]
        for head in reversed([index for index in heads if index <= room - room * 2 // 5]):
            tail = next((t for t in tails if t >= head and self._fits(head, t, width)), None)
            if tail is not None:  # the first end may get the room that the second does not use
                longest = max(index for index in heads if self._fits(index, tail, width))
                return self.joined((0, longest), (tail, length))
        return "…"[:width]

    def joined(self, *kept: tuple[int, int]) -> str:
        """Return the stretches `kept` (start, end) of the text, with … for each omitted part.

        Brackets that open before an omitted part and close within it are closed after its ….
        """
        parts = []
        for (start, end), (following, _) in pairwise([*kept, (len(self.text), 0)]):
            part = self.text[start:end]
            if end < following:
                part += "…"
                opened = self.inner[end]
                while opened != -1 and self.closes[opened] < following:
                    part += self.text[self.closes[opened]]
                    opened = self.inner[opened]
            parts.append(part)
        return "".join(parts)

    def may_end(self, index: int) -> bool:
        """Return whether the text may be cut before an index: outside brackets, behind an argument.

        Template arguments may be cut anywhere: what tells kernels apart is in the long ones.
        """
        opened = self.inner[index]
        if opened in (-1, index - 1) or self.text[opened] == "<":
            return True
        # An argument ends after its comma and a space, if there is one.
        before, char = self.text[max(index - 2, 0) : index], self.text[index]
        return before.rstrip()[-1:] in {",", ";"} and char != " " and self.text[opened] in _CLOSING

    def _may_begin(self, index: int) -> bool:
        """Return whether the text may go on at an index: like `may_end`, but before a separator."""
        opened = self.inner[index]
        if opened == -1 or self.closes[opened] == index or self.text[opened] == "<":
            return True
        return self.text[index] in ",;" and self.text[opened] in _CLOSING

    def _fits(self, head: int, tail: int, width: int) -> bool:
        """Return whether `joined((0, head), (tail, end of text))` has at most `width` characters.

        Also no bracket may open in the part that is left out and close behind it.
        """
        closing = self.depth[head] - self.depth[tail]
        is_nested = self.inner[tail] < head <= tail
        return is_nested and head + 1 + closing + len(self.text) - tail <= width


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Yield the indices of each bracket or quote and of what closes it, if anything does."""
    quotes = {match.start(): match.end() - 1 for match in _QUOTED.finditer(text)}
    opened: list[int] = []
    quote_end = -1
    for index, char in enumerate(text):
        if index <= quote_end:
            continue
        if index in quotes:
            quote_end = quotes[index]
            yield index, quote_end
        elif char in _CLOSING:
            opened.append(index)
        elif char in _CLOSING.values() and text[index - 1 : index] != "-":  # "->" closes nothing
            while opened and char != ">" and text[opened[-1]] == "<":
                opened.pop()  # a "<" inside another bracket that closes first is "less than"
            if opened and _CLOSING[text[opened[-1]]] == char:
                yield opened.pop(), index


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
