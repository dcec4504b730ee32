"""Parsing of kernel names, and the rules applied in order to them and to host operators.

Names may come from anybody and be a megabyte long, so only the first `LONGEST` characters are read,
and every expression here runs in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from traceflops.categories import rules as rule_files
from traceflops.categories.mangled import CONDITIONS_END, OFFLOADED, mangled_parts
from traceflops.categories.rules import Category, Decision, Rule, Search
from traceflops.characters import kernel_name

LONGEST = 4096
LONGEST_HEAD = 1000
LONGEST_ARGUMENTS = 2000

_ANONYMOUS = ("(anonymous namespace)", "<unnamed>", "{anonymous}", "`anonymous namespace'")
_RETURN_TYPE = re.compile(
    r"(?:(?:void|static|inline|extern|typename|const|unsigned|bool|int|float|double|auto|__global__)\s+)+"
)
_CONDITIONAL_TYPES = ("enable_if", "enable_if_t", "conditional", "conditional_t")
_AFTER_RETURN_TYPE = re.compile(r"(?:::type)?[\s&*]+(?=[A-Za-z_])")
_OPENING = re.compile(r"[<(]")
_BRACKET = re.compile(r"->|[<>()]")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")
_ARGUMENT = re.compile(r"([A-Za-z_]\w*)(?:\)(\d+))?", re.ASCII)


class Parts(Struct, frozen=True):
    """The parts of a kernel name; `head` is the function's own name."""

    name: str
    head: str
    namespace: str
    arguments: str  # the identifiers in both spellings, separated by spaces

    def lower(self) -> Parts:
        """Return the parts in lower case."""
        return Parts(
            *(text.lower() for text in (self.name, self.head, self.namespace, self.arguments))
        )


def parse(name: str) -> Parts:
    """Return the parts of a kernel name, mangled or not."""
    text = OFFLOADED.sub(r"\1", clean(name))
    path, arguments = (mangled_parts if text.startswith("_Z") else _demangled)(text)
    # _GLOBAL__N_1 is an anonymous namespace.
    path = [part for part in path if part and not part.startswith("_GLOBAL__N")]
    head = path[-1].strip()[:LONGEST_HEAD] if path else ""
    spellings = dict.fromkeys(chain.from_iterable((words(name), name) for name in arguments))
    namespace = "::".join(path[:-1])[:LONGEST_HEAD]
    return Parts(text, head, namespace, " ".join(spellings)[:LONGEST_ARGUMENTS])


def clean(name: str) -> str:
    """Return the name without quotes, clone suffixes, return type and anonymous namespaces."""
    text = kernel_name(name[:LONGEST].strip().strip("\"'").strip())
    for spelling in _ANONYMOUS:
        text = text.replace(spelling + "::", "")
    returned = _RETURN_TYPE.match(text)
    return text[returned.end() :] if returned else text


@lru_cache(maxsize=50_000)
def words(identifier: str) -> str:
    """Return an identifier in snake case: `cunn_SoftMaxForward` is `cunn_soft_max_forward`."""
    return _CAMEL.sub("_", identifier).lower().lstrip("_")


def both_spellings(identifier: str) -> str:
    """Return an identifier in snake case and, if that differs, as written; one per line."""
    snake = words(identifier)
    return snake if snake == identifier else f"{snake}\n{identifier}"


def _demangled(text: str) -> tuple[list[str], list[str]]:
    """Return namespaces and name of a demangled function, and the identifiers in its arguments.

    A cast such as `(Kind)3` becomes "Kind=3". A conditional return type before it is skipped.
    """
    path = _OPENING.split(text, 1)[0]
    if path.rpartition("::")[2] in _CONDITIONAL_TYPES:
        # Skip the template arguments: they end when all angle brackets are closed. A `>` inside
        # parentheses, as in `(8 > 0)`, is no bracket.
        end, angles, parentheses = len(text), 0, 0
        for bracket in _BRACKET.finditer(text, len(path)):
            parentheses += {"(": 1, ")": -1}.get(bracket.group(), 0)
            angles += {"<": 1, ">": -1}.get(bracket.group(), 0) if parentheses == 0 else 0
            if angles == 0:
                end = bracket.end()
                break
        after = _AFTER_RETURN_TYPE.match(text, end) or CONDITIONS_END.search(text, end)
        text = text[after.end() :] if after else text
        path = _OPENING.split(text, 1)[0]
    arguments = [
        f"{argument[1]}={argument[2]}" if argument[2] else argument[1]
        for argument in _ARGUMENT.finditer(text[len(path) :])
    ]
    return path.split("::"), arguments


UNKNOWN = Category("other", "other")
_NOTHING = Rule(
    rule_files.NO_RULE, UNKNOWN, "no rule matches this name", rule_files.BUILT_IN, conditions={}
)

BY_WORDS = frozenset({"reduction", "sort-scan"})
"""Rules that hold for a library's kernels, but not for a program's own: a reduction of points of an
elliptic curve, or a scan whose blocks wait for each other, is no memory work."""
_BLOCK = 6
_LONGEST_NAME = 1000
_LONGEST_SHOWN = 200
_BACKWARD = re.compile(r"_backward[0-9]*$")
_ENGINE_PREFIX = "autograd::engine::evaluate_function: "


class Classifier:
    """Decides the category of a kernel or a host operator, and by which rule.

    Results are cached by name, and possible rules by head, which many names share.
    """

    def __init__(
        self,
        built_in: tuple[Rule, ...],
        own: tuple[Rule, ...] = (),
        known: Mapping[str, Rule] = MappingProxyType({}),
        *,
        by_words: bool = True,
    ) -> None:
        """Prepare rules: first `own`, then `known` (recorded, by kernel), then `built_in`.

        Without `by_words`, the rules BY_WORDS do not hold.
        """
        self._rules, self._known, self._by_words = (built_in, own), known, by_words
        self._blocks = (*_blocks(own, 1), *_blocks(built_in, _BLOCK))
        self._op_rules = tuple(rule for rule in (*own, *built_in) if rule.patterns("op"))
        self._open_rules = cache(lambda head: tuple(self._left_open(head)))
        self.kernel = cache(self._kernel)
        self.op = cache(self._op)

    def knowing(self, rules: Mapping[str, str], *, by_words: bool = True) -> Classifier:
        """Return a classifier with recorded rules (id by kernel), tried after the user's."""
        by_id = {rule.id: rule for rule in (*self._rules[0], _NOTHING)}
        known = {name: by_id[rule] for name, rule in rules.items() if rule in by_id}
        is_same = by_words and not known
        return self if is_same else Classifier(*self._rules, known, by_words=by_words)

    def _kernel(self, name: str) -> Decision:
        """Return the decision for the device kernel of this name."""
        parts, recorded = parse(name), self._known.get(name)
        lower = parts.lower()
        for rule in self._open_rules(parts.head):
            if recorded is not None and rule.source == rule_files.BUILT_IN:
                break  # the recorded rule replaces the built-in ones
            looked_at = _looked_at(rule, parts if rule.case else lower)
            if looked_at is not None:
                is_word = rule.id in BY_WORDS and rule.source == rule_files.BUILT_IN
                applied = _NOTHING if is_word and not self._by_words else rule
                return _decision(applied, looked_at or parts.head)
        return _decision(recorded or _NOTHING, parts.head or parts.name)

    def _left_open(self, head: str) -> Iterator[Rule]:
        """Yield the rules that may apply to a head, up to the first that must apply."""
        text = both_spellings(head)
        lower = text.lower()
        for block in self._blocks:
            # One search per block: usually none of its rules matches the head.
            if block.head_patterns and block.search(lower) is None:
                yield from block.headless
                continue
            for rule in block.rules:
                if rule.patterns("head") and not rule.search("head", text if rule.case else lower):
                    continue
                yield rule
                if rule.conditions.keys() == {"head"}:
                    return  # the rule has no other condition, so it applies

    def _op(self, name: str) -> Decision:
        """Return the decision for the host operator of this name: `aten::mm`, `AddmmBackward0`."""
        text = clean(name).removeprefix(_ENGINE_PREFIX)[:_LONGEST_NAME]
        # `add` for `aten::add_.Tensor` and `AddBackward0`; "" for operators of other libraries.
        bare = words(text.removeprefix("aten::").partition(".")[0]).strip("_")
        bare = "" if ":" in bare else _BACKWARD.sub("", bare).strip("_")
        both = f"{bare}\n{both_spellings(text)}"
        lower = both.lower()
        for rule in self._op_rules:
            if rule.search("op", both if rule.case else lower):
                return _decision(rule, text)
        return _decision(_NOTHING, text)


def load(user_rules: Path | None = None, *, bare: bool = False) -> Classifier:
    """Return a classifier with the user's rules, if any, those of packages, and the built-in ones.

    Rules are tried in this order. With `bare`, those of packages are left out.
    """
    own = rule_files.read(user_rules) if user_rules is not None else ()
    return Classifier(rule_files.built_in(), own if bare else (*own, *rule_files.installed()))


class _RuleBlock(Struct, frozen=True, dict=True):
    """Neighbouring rules; one search of all `head_patterns` tells whether a head matches none."""

    rules: tuple[Rule, ...]
    headless: tuple[Rule, ...]  # the rules of the block that do not look at the head
    head_patterns: tuple[str, ...]

    @cached_property
    def search(self) -> Search:
        """Return the search for what any of the rules looks for in a head."""
        return Search(self.head_patterns)


def _blocks(rules: tuple[Rule, ...], size: int) -> Iterator[_RuleBlock]:
    """Yield kernel rules in blocks of `size`; a block of one rule needs no common search."""
    kernel_rules = [rule for rule in rules if not rule.patterns("op")]
    for first in range(0, len(kernel_rules), size):
        block = tuple(kernel_rules[first : first + size])
        headless = tuple(rule for rule in block if not rule.patterns("head"))
        patterns = chain.from_iterable(rule.patterns("head") for rule in block)
        yield _RuleBlock(block, headless, tuple(patterns) if len(block) > 1 else ())


def _looked_at(rule: Rule, parts: Parts) -> str | None:
    """Return the text to show as what the rule matched, None if a condition fails.

    That is the word that met the last condition other than that on the head, or a namespace if the
    rule has no condition on the head. "" means the head, whose match the caller has tested.
    """
    shown = ""
    for field in rule.conditions:
        if field == "head":
            continue
        text = parts.name[:_LONGEST_NAME] if field == "name" else getattr(parts, field)
        match = rule.search(field, text)
        if match is None:
            return None
        if field != "namespace":
            # Show the whole word. The match may begin with the separator before the word.
            text = match.string
            start = text.rfind(" ", 0, match.start() + 1) + 1
            end = text.find(" ", max(start, match.end()))
            shown = text[start : end if end >= 0 else len(text)].strip()
        elif not rule.patterns("head"):
            shown = text
    return shown


def _decision(rule: Rule, looked_at: str) -> Decision:
    return Decision(rule.category, rule.id, rule.because, looked_at[:_LONGEST_SHOWN], rule.source)
