"""No pattern of the program takes more than linear work: no two repeats can share a text.

Where two repeats that are one behind the other can match the same characters, a text of these takes
time that grows with its square, or worse, before the pattern fails.
"""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from tests.conftest import ROOT
from traceflops.parsers import other_files, unknown_files

Chars = frozenset[int]
ALPHABET = frozenset(range(256))
_CATEGORIES = {
    c.CATEGORY_DIGIT: r"\d",
    c.CATEGORY_NOT_DIGIT: r"\D",
    c.CATEGORY_SPACE: r"\s",
    c.CATEGORY_NOT_SPACE: r"\S",
    c.CATEGORY_WORD: r"\w",
    c.CATEGORY_NOT_WORD: r"\W",
}
MANY = 256
"""A repeat of at least so much counts as one without end."""


def chars_of(node: tuple[Any, Any], flags: int) -> Chars | None:
    """Return which characters a node that takes exactly one can take, None of other nodes."""
    kind, said = node
    if kind is c.LITERAL:
        found = frozenset({said})
    elif kind is c.NOT_LITERAL:
        found = ALPHABET - {said}
    elif kind is c.ANY:
        found = ALPHABET if flags & re.DOTALL else ALPHABET - {ord("\n")}
    elif kind is c.IN:
        found = frozenset().union(*(_in_class(one) for one in said if one[0] is not c.NEGATE))
        found = ALPHABET - found if said[0][0] is c.NEGATE else found
    else:
        return None
    texts = map(chr, found) if flags & re.IGNORECASE else ()
    return found | {ord(one) for t in texts for one in (t.lower()[:1], t.upper()[:1])}


def _in_class(node: tuple[Any, Any]) -> Chars:
    kind, said = node
    if kind is c.RANGE:
        return frozenset(range(said[0], min(said[1], 255) + 1))
    return _of_category(_CATEGORIES[said]) if kind is c.CATEGORY else frozenset({said})


@cache
def _of_category(pattern: str) -> Chars:
    return frozenset(code for code in ALPHABET if re.match(pattern, chr(code)))


class Walk:
    """Walks over a pattern with the repeats that could still take the characters to come."""

    def __init__(self, flags: int) -> None:
        self.flags, self.shared = flags, False

    def over(self, nodes: Any, before: Chars) -> tuple[Chars, bool]:
        """Return what repeats at the end can take, and whether the nodes can take nothing at all.

        `before` is what repeats that end right before the nodes can take.
        """
        open_, is_empty = before, True
        for node in nodes:
            taken, may_be_empty = self.step(node, open_)
            open_ = taken | open_ if may_be_empty else taken
            is_empty &= may_be_empty
        return open_, is_empty

    def step(self, node: tuple[Any, Any], before: Chars) -> tuple[Chars, bool]:
        kind, said = node
        if chars_of(node, self.flags) is not None or kind in (c.GROUPREF, c.FAILURE):
            return frozenset(), False
        if kind is c.AT:
            return frozenset(), True
        if kind in (c.ASSERT, c.ASSERT_NOT):
            self.over(said[1], frozenset())
            return frozenset(), True
        if kind is c.SUBPATTERN:
            return self.over(said[3], before)
        if kind is c.ATOMIC_GROUP:
            return frozenset(), self.over(said, before)[1]
        if kind is c.BRANCH:
            ways = [self.over(way, before) for way in said[1]]
            return frozenset().union(*(end for end, _ in ways)), any(empty for _, empty in ways)
        if kind is c.GROUPREF_EXISTS:
            ways = [self.over(way or [], before) for way in said[1:]]
            return frozenset().union(*(end for end, _ in ways)), any(empty for _, empty in ways)
        return self._repeat(kind, said, before)

    def _repeat(self, kind: Any, said: Any, before: Chars) -> tuple[Chars, bool]:
        least, most, body = said
        one = chars_of(body[0], self.flags) if len(body) == 1 else None
        is_kept = kind is c.POSSESSIVE_REPEAT  # gives nothing back
        if one is None:
            end, is_empty = self.over(body, before)
            if most >= MANY:
                end, _ = self.over(body, end)
            return (frozenset() if is_kept else end), least == 0 or is_empty
        if most < MANY:
            return frozenset(), least == 0
        self.shared |= bool(one & before)
        return (frozenset() if is_kept else one), least == 0


def shares(pattern: str | bytes, flags: int = 0) -> bool:
    """Return whether two repeats of a pattern can match the same text."""
    parsed = parser.parse(pattern, flags)
    walk = Walk(parsed.state.flags | flags)
    walk.over(parsed, frozenset())
    return walk.shared


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\s*\s*", r"\s*(?:x\s*)?\s+y", r"a*[^b]*", r"(?:a*)*", r"(?:\w+\s?)*", r"(\s*)x?\s*"),
        *(r"\s*[\[{]\s*[{\"]?\s*\"?x", r"(?i)A+(?:b|)a*", r"(?:\s*x?)+", r"[\s\S]{0,4096}?.*"),
    ],
)
def test_repeats_that_share_text_are_found(pattern: str) -> None:
    assert shares(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"\s*x\s*", r"\s*[\[{]\s*(?:[{]\s*)?x", r"\s*+\s*", r"(?:\w+,)*", r"\d*[a-z]*", r"a{0,9}a*"],
)
def test_other_repeats_are_not(pattern: str) -> None:
    assert not shares(pattern)


def modules() -> Iterator[Any]:
    """Yield the modules of the program that use `re`."""
    for folder in ("traceflops", "parsers", "reports"):
        for path in (ROOT / folder).rglob("*.py"):
            if re.search(r"^import re$", path.read_text(encoding="utf-8"), re.MULTILINE):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                prefix = "" if folder == "traceflops" else "traceflops."
                yield importlib.import_module(prefix + name.removesuffix(".__init__"))


def within(value: Any, depth: int = 4) -> Iterator[tuple[str | bytes, int]]:
    """Yield the patterns in a value of a module."""
    if isinstance(value, re.Pattern):
        yield value.pattern, value.flags & ~re.UNICODE
    elif depth and isinstance(value, dict):
        yield from (one for inner in value.values() for one in within(inner, depth - 1))
    elif depth and isinstance(value, (tuple, list)):
        yield from (one for inner in value for one in within(inner, depth - 1))


def in_calls(path: Path) -> Iterator[tuple[str | bytes, int]]:
    """Yield the patterns that a file gives to functions of `re` as they are."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            is_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            first = node.args[0]
            if is_re and isinstance(first, ast.Constant) and isinstance(first.value, str | bytes):
                yield first.value, 0


def in_toml(value: Any) -> Iterator[str]:
    """Yield the texts in a file of rules, patterns among them."""
    if isinstance(value, str):
        with suppress(re.error):
            re.compile(value)
            yield value
    for inner in value.values() if isinstance(value, dict) else ():
        yield from in_toml(inner)
    for inner in value if isinstance(value, list) else ():
        yield from in_toml(inner)


def every_pattern() -> set[tuple[str | bytes, int]]:
    rows = (*other_files.OTHER_FILES, *unknown_files.UNKNOWN_FILES)
    found: set[tuple[str | bytes, int]] = set()
    found |= {(sign, 0) for row in rows for sign in (row.begins, row.line)}
    for module in modules():
        found |= {one for value in vars(module).values() for one in within(value)}
    for folder in ("traceflops", "parsers", "reports"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(in_calls(path))
        for path in (ROOT / folder).rglob("*.toml"):
            rules = tomllib.loads(path.read_text(encoding="utf-8"))
            found |= {(pattern, 0) for pattern in in_toml(rules)}
    return found


def test_no_pattern_of_the_program_has_repeats_that_share_text() -> None:
    patterns = every_pattern()
    assert len(patterns) > 300
    assert [pattern for pattern, flags in patterns if shares(pattern, flags)] == []
