"""The categories, and rules as data: read from a file, checked, matched on a text."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from msgspec import Struct

from traceflops.errors import UsageError
from traceflops.plugins import loaded

CONTAINS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    tomllib.loads(Path(__file__).with_name("subs.toml").read_text(encoding="utf-8"))
)
"""What each sub-category contains, by top category."""
SUBS: Mapping[str, frozenset[str]] = MappingProxyType(
    {top: frozenset(subs) for top, subs in CONTAINS.items()}
)
"""The sub-categories allowed under each top category."""


class Category(Struct, frozen=True):
    """The kind of work that a kernel does."""

    top: str  # compute, memory, communication or other
    sub: str  # one of `SUBS[top]`


class Decision(Struct, frozen=True):
    """A category and how it was found."""

    category: Category
    rule: str  # id of the rule, or "none" where no rule applied
    because: str  # the rule's one-line reason
    looked_at: str  # the text that the rule matched against, such as the head identifier
    source: str
    """"built-in", the base name of the user's rule file, or the package that the rule is of"""


BUILT_IN = "built-in"
NO_RULE = "none"
PLACES = ("head", "namespace", "arguments", "name", "op")
REQUIRED = ("id", "top", "sub", "because")
KEYS = frozenset({*PLACES, *REQUIRED, "case"})
LARGEST_FILE = 256 * 1024
LONGEST_PATTERN = 1000
LONGEST_MESSAGE = 400
MOST_REPEATS = 2
MOST_OPTIONAL = 8
HINT = "see docs/categories.md for the format of a rule file"

_ANY = "[a-z0-9]*"
_CAPITAL = re.compile("[A-Z]")
_ESCAPE = re.compile(r"\\.")
_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_OPTIONAL = re.compile(r"(?<![(*+?}])\?")
_NAMED = re.compile(r"\(\?(?:P|\()")
_REPEAT = re.compile(r"[*+]|\{\d*(?:,\d*)?\}")
_NOT_AS_WRITTEN = re.compile(r"\(\?[^:=!<]|\\[xuUN0]")
_INNERMOST = re.compile(r"\([^()]*\)")
_LEFT_OUT = re.compile(r".(?:[?*]|\{[^}]*\})", re.DOTALL)
_PLAIN = re.compile("[a-z0-9_ ]+")
_SEPARATED = "[^A-Za-z0-9](?:"
_SEARCHES_BEFORE_COMPILING = 100


class Rule(Struct, frozen=True, dict=True):
    """One entry of a rule file: the category of names in which all conditions are found."""

    id: str
    category: Category
    because: str
    source: str
    conditions: Mapping[str, tuple[str, ...]]
    """by place of a name: the alternatives of which one must be found; all must hold"""
    case: bool = False

    def search(self, place: str, text: str) -> re.Match[str] | None:
        """Return the match of this rule's condition on `place`, which it must have."""
        search = self._searches.get(place)
        if search is None:
            search = self._searches[place] = Search(self.patterns(place), self.case)
        return search(text)

    def patterns(self, place: str) -> tuple[str, ...]:
        """Return the alternatives that the rule looks for in a place; () if it has no condition."""
        return self.conditions.get(place, ())

    @cached_property
    def _searches(self) -> dict[str, Search]:
        """The searches by place, filled when first needed: most never are."""
        return {}


class Search:
    """Finds one of several alternatives in texts, as `compiled` does.

    Compiling takes far longer than a search: of the first texts, only those alternatives are looked
    for that may match. Nearly all need a text that stands in them.
    """

    def __init__(self, alternatives: tuple[str, ...], case: bool = False) -> None:
        self._alternatives, self._case = alternatives, case
        self._left = _SEARCHES_BEFORE_COMPILING
        self._search: Callable[[str], re.Match[str] | None] = self._among_few

    def __call__(self, text: str) -> re.Match[str] | None:
        """Return the first match in a text."""
        return self._search("\n" + text)

    def _among_few(self, text: str) -> re.Match[str] | None:
        self._left -= 1
        if not self._left:
            self._search = compiled(self._alternatives, self._case).search
        shortlist = [each for needed, each in _needed(self._alternatives) if needed in text]
        found = (compiled((pattern,), self._case).search(text) for pattern in shortlist)
        # As in one expression, the first in the text counts, then what begins at a word.
        return min(
            (match for match in found if match is not None),
            key=lambda match: (match.start(), not match.re.pattern.startswith(_SEPARATED)),
            default=None,
        )


@cache
def _needed(alternatives: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return each alternative behind the text that it needs.

    `_?add_(a|b)x*` needs `add_`: neither a choice, nor what may be left out, has to be there.
    """
    return tuple((_needed_by(pattern), pattern) for pattern in alternatives)


def _needed_by(pattern: str) -> str:
    """Return the longest lower-case text that is in all that a pattern matches, "" for none."""
    if _CAPITAL.search(_ESCAPE.sub("", pattern)) or _NOT_AS_WRITTEN.search(pattern):
        return ""
    plain, before = _ESCAPE_OR_CLASS.sub("\0", pattern), ""
    while plain != before:
        plain, before = _INNERMOST.sub("\0", plain), plain
    if "|" in plain or "(" in plain:
        return ""
    return max(_PLAIN.findall(_LEFT_OUT.sub("\0", plain)), key=len, default="")


@cache
def compiled(alternatives: tuple[str, ...], case: bool = False) -> re.Pattern[str]:
    """Return one expression that finds any alternative as a whole word.

    The searched text must begin with a newline, so that a separator precedes each word, and must be
    in lower case unless `case`. An alternative with capitals is found in any case, which is slow.

    For speed, `[a-z0-9]*` at an end of an alternative is removed: the rest may then begin or end
    inside of a word. And the separator before a word is matched, not looked behind for, since `re`
    skips quickly to characters of a set.
    """
    bounded: list[str] = []  # these must begin at a word
    anywhere: list[str] = []
    for pattern in alternatives:
        any_start = pattern.startswith(_ANY) and _is_single(pattern)
        core = pattern.removeprefix(_ANY) if any_start else pattern
        any_end = core.endswith(_ANY) and _is_single(core)
        core = core.removesuffix(_ANY) if any_end else core
        if not case and _CAPITAL.search(_ESCAPE.sub("", core)):
            core = f"(?i:{core})"
        core = core if any_end else rf"(?:{core})(?![A-Za-z])"
        (anywhere if any_start else bounded).append(core)
    groups = [f"{_SEPARATED}{'|'.join(bounded)})"] if bounded else []
    return re.compile("|".join(groups + anywhere), re.MULTILINE)


def _is_single(pattern: str) -> bool:
    """Return whether a pattern is one alternative: it has no `|` outside parentheses."""
    depth = 0
    for sign in _ESCAPE_OR_CLASS.sub("x", pattern):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "|" and depth == 0:
            return False
    return pattern != _ANY  # `compiled` would remove all of it


@cache
def built_in() -> tuple[Rule, ...]:
    """Return the rules that come with traceflops."""
    text = Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
    return tuple(_rule(table, BUILT_IN) for table in tomllib.loads(text)["rule"])


def read(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a user's file, all checked. Raises UsageError for an error in it."""
    where = f"rule file {path.name!r}"
    return _checked(toml_of(path, where), where, path.name)


@cache
def installed() -> tuple[Rule, ...]:
    """Return the rules of installed packages, checked like those of a user's file."""

    def rules(given: Any, where: str, package: str) -> tuple[Rule, ...]:
        return _checked(toml_given(given, where), where, f"package {package}")

    return tuple(chain.from_iterable(loaded("categories", rules)))


def _checked(document: dict[str, Any], where: str, source: str) -> tuple[Rule, ...]:
    """Return the checked rules of a document. Raises UsageError whose text begins with `where`."""
    tables = document.get("rule")
    if document.keys() != {"rule"} or not isinstance(tables, list):
        unknown = sorted(document.keys() - {"rule"})
        _refuse(where, f"unknown key {unknown[0]!r}" if unknown else "it has no [[rule]] table")
    rules: dict[str, Rule] = {}
    for number, table in enumerate(tables, 1):
        of_rule = f"{where}, rule {number}"
        if not isinstance(table, dict):
            _refuse(of_rule, "a rule must be a table")
        for problem in chain(_problems(table), _problems_of_patterns(table)):
            _refuse(of_rule, problem)
        rule = _rule(table, source)
        if rules.setdefault(rule.id, rule) is not rule:
            _refuse(where, f"two rules have the id {rule.id!r}")
    return tuple(rules.values())


def toml_of(path: Path, where: str) -> dict[str, object]:
    """Return the content of a user's TOML file. Raises UsageError if it cannot be read."""
    return _document(_text(path, where), where)


def toml_given(given: Any, where: str) -> dict[str, Any]:
    """Return the content of a plug-in: TOML text, a Path, or a callable that returns either.

    Numbers with a decimal point are Decimals. Raises UsageError if it cannot be read.
    """
    given = given() if callable(given) else given
    if not isinstance(given, str | Path):
        _refuse(where, f"it is neither TOML nor a Path, but {type(given).__name__}")
    text = _text(given, where) if isinstance(given, Path) else given
    return _document(text, where, parse_float=Decimal)


def check_pattern(pattern: str) -> str | None:
    """Return what is wrong with a regular expression, or None.

    `re` has no time limit, so forms that can take exponential time on a hostile name are refused:
    `(a|a)*`, `(a+)+` and long rows of optional parts. So are back-references and named groups: they
    would mean another group in the one expression that `compiled` makes of several patterns.
    """
    if not pattern or len(pattern) > LONGEST_PATTERN:
        return f"a pattern must have 1 to {LONGEST_PATTERN} characters"
    # `compiled` removes [a-z0-9]* from both ends, so there it costs nothing. An escape or a class
    # such as [*+] counts as one letter: the signs in it do not repeat anything.
    plain = _ESCAPE_OR_CLASS.sub("x", pattern.removeprefix(_ANY).removesuffix(_ANY))
    repeats = [repeat.start() for repeat in _REPEAT.finditer(plain)]
    if any(plain[:start].endswith(")") for start in repeats):
        return "a repeat (*, + or {}) may not follow a group"
    if len(repeats) > MOST_REPEATS:
        return f"more than {MOST_REPEATS} repeats in one pattern"
    if len(_OPTIONAL.findall(plain)) > MOST_OPTIONAL:
        return f"more than {MOST_OPTIONAL} optional parts in one pattern"
    has_back_reference = any(text[1] in "123456789" for text in _ESCAPE.findall(pattern))
    if has_back_reference or _NAMED.search(plain):
        return "back-references and named groups are not supported"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
            compiled((pattern,))
    except (re.error, RecursionError, OverflowError, Warning) as error:
        return f"bad regular expression: {_one_line(str(error))}"
    return None


def _text(path: Path, where: str) -> str:
    """Return the text of a file. Raises UsageError if it is not readable or too large."""
    try:
        if not path.is_file():
            where = where.replace(repr(path.name), repr(str(path)))  # show the whole path
            _refuse(where, "it is not a file" if path.exists() else "it does not exist")
        if path.stat().st_size > LARGEST_FILE:
            _refuse(where, f"it is larger than {LARGEST_FILE // 1024} KiB")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(where, f"it is not UTF-8 text (byte {error.start})")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(where, f"it cannot be read: {reason}")


def _document(
    text: str, where: str, parse_float: Callable[[str], object] = float
) -> dict[str, object]:
    """Return the content of TOML. Raises UsageError whose text begins with `where`."""
    try:
        return tomllib.loads(text, parse_float=parse_float)
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        _refuse(where, f"bad TOML: {_one_line(str(error))}")
    except RecursionError:
        _refuse(where, "bad TOML: nested too deeply")


def _problems(table: dict[str, object]) -> Iterator[str]:
    """Yield what is wrong with a rule's table; later checks rely on earlier ones."""
    for key in sorted(table.keys() - KEYS):
        yield f"unknown key {key!r}; known: {', '.join(sorted(KEYS))}"
    for key in REQUIRED:
        if not isinstance(table.get(key), str):
            yield f"{key!r} is missing or not text"
    rule, because, top, sub = (str(table[key]) for key in ("id", "because", "top", "sub"))
    if not isinstance(table.get("case", False), bool):
        yield "'case' must be true or false"
    if not _ID.fullmatch(rule):
        yield f"id {rule!r} must be a short word of a-z, 0-9, '.', '_' and '-'"
    if not because.isprintable() or not 0 < len(because) <= 200:
        yield "'because' must be one line of 1 to 200 characters"
    if rule == NO_RULE:
        yield f"id {NO_RULE!r} is reserved: it means that no rule applied"
    if top not in SUBS:
        yield f"unknown top {top!r}; known: {', '.join(SUBS)}"
    if sub not in SUBS[top]:
        yield f"unknown sub {sub!r} under {top}; known: {', '.join(sorted(SUBS[top]))}"


def _problems_of_patterns(table: dict[str, object]) -> Iterator[str]:
    """Yield what is wrong with the patterns of a rule's table."""
    places = [place for place in PLACES if place in table]
    if not places:
        yield f"it has no pattern; give one of {', '.join(PLACES)}"
    if "op" in places and len(places) > 1:
        yield "'op' matches CPU operators and cannot be combined"
    for place in places:
        value = table[place]
        patterns = value if isinstance(value, list) else [value]
        if not patterns:
            yield f"{place!r} is an empty list"
        for pattern in patterns:
            if not isinstance(pattern, str):
                yield f"{place} must be a regular expression or a list of them"
            elif (problem := check_pattern(pattern)) is not None:
                yield f"{place} {pattern[:80]!r}: {problem}"


def _rule(table: dict[str, Any], source: str) -> Rule:
    """Return the rule of a checked table; a pattern may stand alone or in a list."""
    given = ((place, table[place]) for place in PLACES if place in table)
    return Rule(
        id=table["id"],
        category=Category(table["top"], table["sub"]),
        because=table["because"],
        source=source,
        conditions={key: tuple(v) if isinstance(v, list) else (v,) for key, v in given},
        case=table.get("case", False),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_MESSAGE]


def _refuse(where: str, problem: str) -> NoReturn:
    raise UsageError(_one_line(f"{where}: {problem}"), HINT)
