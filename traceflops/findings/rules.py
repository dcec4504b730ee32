"""The rules as rows of `rules.toml`, which hold all of a finding but the figures of a recording.

    rules.toml:  [host-copies] owner, evidence, thresholds, remedies, edits, ...
    a function:  share of the time, values, rows, where                 -> cause(case, ...): Cause
    texts.toml:  host-copies.title, .claim, .remedy.NAME                 in reports/view

A new finding is a row, a function in RULES of `diagnosis` and its lines of text.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.attribution.culprits import BESIDE, CALLS_BESIDE
from traceflops.attribution.idle_classes import CLASSES
from traceflops.facts import Fact, Value, fact
from traceflops.findings.finding import Cause, Finding, Owner, severity_of

_HOST: Final = "host"  # stands for all of ON_HOST
ON_HOST: Final = frozenset({*CLASSES, BESIDE, CALLS_BESIDE}) - {
    *("graph_gaps", "launch_latency", "device_wait", "host_page_faults", "unexplained")
}
"""Classes of idle time that are work of the host."""


class Remedy(Struct, frozen=True):
    """What may help a program for which all facts of `fits` and none of `not_if` hold.

    `name` is that of its text; one with a dot is that of a text which several rules share. `edits`,
    `partly` and `doubts` replace those of the rule; None keeps them.
    """

    name: str
    fits: frozenset[str] = frozenset()
    not_if: frozenset[str] = frozenset()
    edits: tuple[str, ...] | None = None
    partly: tuple[str, ...] | None = None
    doubts: tuple[str, ...] | None = None


class RuleRow(Struct, frozen=True):
    """One rule: who mends its causes, where a report shows them, its thresholds and remedies.

    `when` says in words when it fires; {share} stands for `least_share`. `headline` is the class
    of a report that begins with it; `explained_by` are rules that say why work is slow where this
    one only says that it is. `edits`, `partly`, `on_path`, `frees` and `doubts` are those of a
    Cause; the first of the `remedies` that fits is told.
    """

    headline: str
    owner: Owner | None = None
    evidence: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    when: str = ""
    explained_by: frozenset[str] = frozenset()
    edits: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()
    on_path: frozenset[str] = frozenset()
    frees: bool = False
    doubts: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()


class Rules(Struct, frozen=True):
    """All rows by id, and thresholds that several rules share, by subject."""

    rules: Mapping[str, RuleRow]
    shared: Mapping[str, Mapping[str, float]]


@cache
def all_rules() -> Rules:
    """Return the table of rules."""
    table = tomllib.loads(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))
    shared = table.pop("shared")
    for row in table.values():
        path = row.get("on_path", [])
        row["on_path"] = [*path, *(ON_HOST if _HOST in path else ())]
    return msgspec.convert({"rules": table, "shared": shared}, Rules)


def rule_of(name: str) -> RuleRow:
    """Return the row of a rule."""
    return all_rules().rules[name]


@cache
def thresholds() -> Mapping[str, Mapping[str, float]]:
    """Return the thresholds by rule and name; those that several rules share, by subject."""
    defaults = {name: row.thresholds for name, row in all_rules().rules.items() if row.thresholds}
    return {**all_rules().shared, **defaults}


def cause_of(
    program: frozenset[str],
    rule: str,
    share: float,
    values: Mapping[str, Value] | None = None,
    details: tuple[Fact, ...] = (),
    **changes: Any,
) -> Cause:
    """Return a cause by the row of its rule; the facts of `program` choose its remedy.

    `values` and `share` fill its texts; `changes` are fields of the Cause that differ from the row.
    The owner is the framework only if the program uses PyTorch: else it is the user.
    """
    row, filled = rule_of(rule), {"share": share, **(values or {})}
    remedy = _first_that_fits(rule, program) or Remedy("")
    # A remedy may have edits and doubts instead of those of its rule.
    acts = {
        name: getattr(row, name) if (own := getattr(remedy, name)) is None else own
        for name in ("edits", "partly", "doubts")
    }
    made = Cause(
        rule,
        share,
        Fact(f"{rule}.title", filled),
        Fact(f"{rule}.claim", filled),
        details,
        advice_of(rule, program, filled),
        row.owner,
        row.evidence,
        edits=acts["edits"],
        on_path=row.on_path,
        frees=row.frees,
        partly=acts["partly"],
        doubts=tuple(fact(f"doubt.{name}") for name in acts["doubts"]),
    )
    made = replace(made, **changes)
    if made.owner == "framework" and "torch" not in program:
        return replace(made, owner="yours")
    return made


def statement(
    rule: str,
    share: float,
    values: Mapping[str, Value] | None = None,
    details: tuple[Fact, ...] = (),
    **changes: Any,
) -> Finding:
    """Return a finding without a gain, by the row of its rule; see `cause_of` for parameters.

    The severity is at least "low", however small the share is: callers decide what is told.
    """
    filled = {"share": share, **(values or {})}
    made = Finding(
        rule,
        severity_of(share) or "low",
        share,
        Fact(f"{rule}.title", filled),
        Fact(f"{rule}.claim", filled),
        details,
        owner=rule_of(rule).owner,
        evidence=rule_of(rule).evidence,
    )
    return replace(made, **changes)


def advice_of(
    rule: str, program: frozenset[str], values: Mapping[str, Value] | None = None
) -> Fact | None:
    """Return the first remedy of a rule that fits a program, None if none does."""
    remedy = _first_that_fits(rule, program)
    if remedy is None:
        return None
    logs = None if "one-region" in program else 'TORCH_LOGS="graph_breaks"'
    platform = "HIP" if "amd" in program else "CUDA"
    filled = {"platform": platform, "logs": logs, **(values or {})}
    is_shared = "." in remedy.name
    return Fact(remedy.name if is_shared else f"{rule}.remedy.{remedy.name}", filled)


def _first_that_fits(rule: str, program: frozenset[str]) -> Remedy | None:
    """Return the first remedy of a rule whose conditions the facts of a program meet."""
    fitting = (remedy for remedy in rule_of(rule).remedies if remedy.fits <= program)
    return next((remedy for remedy in fitting if not remedy.not_if & program), None)
