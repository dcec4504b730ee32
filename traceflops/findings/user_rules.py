"""What users change of findings: thresholds, rules that stay silent, and rules of their own.

A file of rules does so without code. Packages may install functions as entry points
`traceflops.findings`: each takes a Case and gives Candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.metadata import EntryPoint
from itertools import compress
from pathlib import Path
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import asdict, fields, replace

from traceflops.categories.rules import toml_of
from traceflops.errors import UsageError
from traceflops.findings.case import NO_RULES, Case, FindingRules, Rule, share_of_window
from traceflops.findings.finding import MOST_ROWS, Candidate, Owner, Row
from traceflops.findings.rules import all_rules, thresholds
from traceflops.plugins import blamed, package_of, plugins
from traceflops.replay.edits import parse_edit
from traceflops.table.patterns import matches
from traceflops.units import percent

GROUP: Final = "findings"
_HINT: Final = "see docs/findings.md for the format of a file of finding rules"
_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST: Final = 500
_TOO_LARGE: Final = 1e12  # thresholds must be below this, which refuses infinity
_USUAL: Final = "Kernels of this rule take {share} of the time."


class KernelRule(Struct, frozen=True):
    """A rule of a file: kernels whose names match a pattern take at least a share of the time.

    Their share replaces {share} in `sentence`. `edits` stand for the remedy in what-if.
    """

    id: str
    kernels: str
    title: str
    remedy: str
    least_share: float = 0.03
    sentence: str = _USUAL
    owner: Owner = "yours"
    edits: tuple[str, ...] = ()

    def __call__(self, case: Case) -> Iterator[Candidate]:
        """Give a candidate if the kernels take enough time."""
        names = [row.name for row in case.measured.kernels]
        is_matched = matches(self.kernels, names, ignore_case=True).tolist()
        rows = [*compress(case.measured.kernels, is_matched)]
        share = share_of_window(case, sum(row.sum_ns for row in rows))
        if not rows or share < self.least_share:
            return
        yield Candidate(
            rule=self.id,
            title=self.title,
            sentence=self.sentence.replace("{share}", percent(share)),
            share=share,
            owner=self.owner,
            remedy=self.remedy,
            evidence=("kernels",),
            rows=tuple(Row(row.name, row.sum_ns, row.count) for row in rows[:MOST_ROWS]),
            edits=self.edits,
            on_path=frozenset(row.category.top for row in rows),
            frees=True,  # a finding even if the gain is small
        )


def read_finding_rules(path: Path | None, *, redact: bool = False) -> FindingRules:
    """Return what a file of rules changes; `redact` leaves out the words of its rules.

    Raises UsageError if something is wrong with the file.
    """
    if path is None:
        return NO_RULES
    where = f"finding rules {path.name!r}"
    try:
        document = toml_of(path, where)
    except UsageError as error:  # with the hint for this kind of file
        raise UsageError(error.message, _HINT) from None
    try:
        tables = document.pop("rule", [])
        if not isinstance(tables, list):
            raise ValueError("'rule' must be [[rule]] tables")
        own = tuple(_own(table, number) for number, table in enumerate(tables, 1))
        silent = _texts(document.pop("silent", []), "silent")
        installed = (plugin.name for plugin in plugins(GROUP))
        rule_ids = {*all_rules().rules, *(rule.id for rule in own), *installed}
        unknown = next((rule_id for rule_id in silent if rule_id not in rule_ids), None)
        if unknown is not None:
            near = get_close_matches(unknown, rule_ids, 1, 0)[0]
            raise ValueError(f"silent: no rule {unknown!r}; there is {near!r}")
        limits = {rule: _limits(rule, given) for rule, given in document.items()}
    except ValueError as error:
        raise UsageError(f"{where}: {error}", _HINT) from None
    own = tuple(rule for rule in own if rule.id not in silent)
    if redact:  # rules are told by numbers, without any words of their author
        own = tuple(
            replace(
                rule,
                id=f"own-{number}",
                title=f"Rule {number} of a file of rules",
                sentence=_USUAL,
                remedy="See the file of rules.",
            )
            for number, rule in enumerate(own, 1)
        )
    return FindingRules(limits, frozenset(silent), own)


def more_rules(rules: FindingRules) -> Iterator[Rule]:
    """Yield the rules of a user's file and those installed."""
    yield from rules.own
    for number, point in enumerate(plugins(GROUP), 1):
        if point.name not in rules.silent:
            yield _installed(point, number)


def _installed(point: EntryPoint, number: int) -> Rule:
    """Return an installed rule, which is loaded when it runs, and raises UsageError if it fails.

    For a redacted recording its candidates tell only the package of the rule, and the share.
    """

    def rule(case: Case) -> Iterator[Candidate]:
        """Give the candidates of the installed rule, without its author's words if redacted."""
        import msgspec

        with blamed(GROUP, point):
            for given in point.load()(case):
                candidate = msgspec.convert(asdict(given), Candidate)  # checks the types
                if any(note.code == "redacted" for note in case.notes):
                    package, share = package_of(point), percent(candidate.share)
                    candidate = replace(
                        candidate,
                        rule=f"installed-{number}",
                        title=f"Rule {number} of installed packages",
                        sentence=f"A rule of the package {package} finds {share} of the time.",
                        remedy=f"See the package {package}.",
                        doubts=(),
                    )
                yield candidate

    return rule


def _limits(rule: str, given: object) -> dict[str, float]:
    """Return the thresholds that a file gives for a rule. Raises ValueError if one is wrong."""
    limits = thresholds().get(rule)
    if limits is None or not isinstance(given, dict):
        raise ValueError(f"unknown rule {rule!r}; with thresholds: {', '.join(thresholds())}")
    for name, value in given.items():
        if name not in limits:
            raise ValueError(f"[{rule}] has no {name!r}; it has {', '.join(limits)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < _TOO_LARGE:
            raise ValueError(f"[{rule}] {name} must be a number, 0 or more")
    return given


def _own(table: object, number: int) -> KernelRule:
    """Return the rule of a [[rule]] table of the file. Raises ValueError if the table is wrong."""
    if not isinstance(table, dict):
        raise ValueError("a rule must be a [[rule]] table")
    names = [field.name for field in fields(KernelRule)]
    unknown = next((name for name in table if name not in names), None)
    if unknown is not None:
        raise ValueError(f"rule {number}: unknown key {unknown!r}; known: {', '.join(names)}")
    for name in ("id", "kernels", "title", "remedy", *table.keys() & {"sentence", "owner"}):
        text = table.get(name)
        if not isinstance(text, str) or not text.isprintable() or not 0 < len(text) <= _LONGEST:
            raise ValueError(f"rule {number}: {name!r} must be one line of 1 to {_LONGEST} signs")
    rule = KernelRule(**table | {"edits": _texts(table.get("edits", []), "edits")})
    problem = None  # the last one that is found
    try:
        matches(rule.kernels, ("",))
    except ValueError as error:
        problem = f"bad regular expression: {error}"
    if not _ID.fullmatch(rule.id) or rule.id in {*all_rules().rules, *thresholds()}:
        problem = f"id {rule.id!r} must be words of a-z and 0-9 with - between, and its own"
    if rule.owner not in get_args(Owner):
        problem = f"owner must be one of {', '.join(get_args(Owner))}"
    if not isinstance(rule.least_share, int | float) or not 0 <= rule.least_share <= 1:
        problem = "least_share must be from 0 to 1"
    for edit in rule.edits:
        try:
            parse_edit(edit)
        except UsageError as error:
            problem = error.message
    if problem:
        raise ValueError(f"rule {number}: {problem}")
    return rule


def _texts(value: object, name: str) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises ValueError, with its `name`, if it is none."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{name!r} must be a list of texts")
    return tuple(value)
