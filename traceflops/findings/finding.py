"""One statement of a report: its size, evidence, remedy and gain; and what rules say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import fields

from traceflops.categories.classify import clean
from traceflops.categories.kernel_names import without_return_type
from traceflops.characters import function_name, shortened
from traceflops.facts import Fact, in_words, quoted

Owner = Literal["yours", "framework", "library", "input pipeline", "configuration", "cluster"]
"""Who can mend what a finding says; `configuration` are options of an engine or launcher."""
Level = Literal["high", "medium", "low"]
Severity = Literal["high", "medium", "low"]


class Verdict(Struct, frozen=True):
    """The statements with which a report begins: what the chosen windows lose most time to.

    `headline` is the class of such a report, `loss` the rule of the largest loss.
    """

    parts: tuple[Fact, ...]
    headline: str
    loss: str | None = None
    share: float | None = None

    @property
    def sentence(self) -> str:
        """Return the statements in words."""
        return in_words(*self.parts)


_LEAST: Final[dict[Severity, float]] = {"high": 0.20, "medium": 0.10, "low": 0.03}
"""The share of the device time from which a finding has a severity."""

_WIDEST: Final = 4  # a range is told only if its upper end is at most this many times the lower one
_LONGEST_NAME, _ROW_NAME = 64, 160  # most characters of a name in a sentence, and in a row
_SIGNATURE: Final = re.compile(r"(?<=>)\([^()]*\)$")
"""The parameters behind the template arguments of a demangled kernel."""

MOST_ROWS: Final = 3  # rows of evidence of a finding
WORTH_SAYING: Final = _LEAST["low"]
"""What takes a smaller share is neither listed nor named in the verdict."""


class Gain(Struct, frozen=True):
    """By how much a remedy shortens a step, in ns; `point_ns` is None if no single figure is sure.

    The bounds are at most the time of the cause itself; `further_ns` is the most that replay gains
    beyond. If the gain `may_be_more`, only the lower bound is told: `low_ns` and `high_ns` are
    both that bound, and `most_ns` is the real upper bound.
    """

    low_ns: int
    high_ns: int
    point_ns: int | None
    may_be_more: bool = False
    most_ns: int | None = None
    further_ns: int = 0

    @property
    def expected_ns(self) -> int:
        """Return the gain that order and priority go by: the single figure, else the middle."""
        if self.point_ns is not None:
            return self.point_ns
        if self.most_ns is not None:  # only the lower bound is told: take half of the upper one
            return max(self.low_ns, self.most_ns // 2)
        return (self.low_ns + self.high_ns) // 2

    def capped(self, most_ns: int) -> Gain:
        """Return the gain with nothing above `most_ns`."""
        point = None if self.point_ns is None else min(self.point_ns, most_ns)
        return Gain(min(self.low_ns, most_ns), min(self.high_ns, most_ns), point)

    def narrowed(self, least_ns: float) -> Gain:
        """Return the gain with one bound only if its ends are too far apart to be told as a range.

        The lower bound is kept if it is at least `least_ns`, else the upper one.
        """
        if self.high_ns <= _WIDEST * self.low_ns or self.low_ns <= 0:
            return self
        if self.low_ns >= least_ns:
            return Gain(self.low_ns, self.low_ns, None, may_be_more=True, most_ns=self.high_ns)
        return Gain(0, self.high_ns, None)


class MfuRange(Struct, frozen=True):
    """MFU after a remedy, 0 to 1."""

    low: float
    high: float


class Confidence(Struct, frozen=True):
    """How sure a finding is, and why."""

    level: Level
    reasons: tuple[Fact, ...]


class Row(Struct, frozen=True):
    """One line of evidence: a kernel, function or call, with its time in all chosen windows."""

    name: str
    time_ns: int
    count: int | None = None


class Where(Struct, frozen=True):
    """Where a cause shows: in code, on a rank, in a stretch of time. `line`: of the `def`."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    rank: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None


class Remedied(Struct, frozen=True, kw_only=True):
    """Where a cause shows, and what its remedy changes in a replay of the recording.

    edits      edits of what-if that stand for the remedy; the first is dropped if the recording
               cannot answer all of them
    partly     edits of a lesser remedy: the gain is between those of both
    on_path    components of the critical path that the cause is part of; the gain is at most their
               time there
    kernels    the share of time that the remedy leaves, by name, if the cause is in some kernels
    frees      the remedy frees work from waiting: `on_path` does not bound its gain
    gain       per step, if a formula gives it instead of a replay
    direct_ns  time of the cause in all windows, the most that its remedy gains directly; by
               default that of its share
    joins      other rules of idle time that this cause covers as well
    """

    rows: tuple[Row, ...] = ()
    where: Where = Where()
    edits: tuple[str, ...] = ()
    on_path: frozenset[str] = frozenset()
    kernels: Mapping[str, float] = field(default_factory=dict)
    frees: bool = False
    partly: tuple[str, ...] = ()
    gain: Gain | None = None
    direct_ns: int | None = None
    joins: frozenset[str] = frozenset()


class Cause(Remedied, frozen=True):
    """What a rule finds in a recording, before its gain is known; see `RuleRow` for its defaults.

    `claim` is the statement, `details` are its reasons and figures, `doubts` reasons against it.
    """

    rule: str
    share: float
    name: Fact
    claim: Fact
    details: tuple[Fact, ...] = ()
    advice: Fact | None = None
    owner: Owner | None = None
    evidence: tuple[str, ...] = ()
    doubts: tuple[Fact, ...] = ()

    def as_finding(self) -> Finding:
        """Return the cause as a finding on what it costs, without owner and gain."""
        return Finding(
            self.rule,
            severity_of(self.share) or "low",
            self.share,
            self.name,
            self.claim,
            self.details,
            self.advice,
            evidence=self.evidence,
        )


class Candidate(Remedied, frozen=True):
    """A Cause as a rule of a user states it, in plain texts; `remedy` may be ""."""

    rule: str
    title: str
    sentence: str
    share: float
    owner: Owner | None
    remedy: str
    evidence: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    def as_cause(self) -> Cause:
        """Return the candidate as a cause, its plain texts as facts."""
        return Cause(
            self.rule,
            self.share,
            quoted(self.title),
            quoted(self.sentence),
            advice=quoted(self.remedy) if self.remedy else None,
            owner=self.owner,
            evidence=self.evidence,
            doubts=tuple(map(quoted, self.doubts)),
            **{shared.name: getattr(self, shared.name) for shared in fields(Remedied)},
        )


class Finding(Struct, frozen=True):
    """One statement about a recording, by the rule that made it.

    `claim` is the statement, `details` its reasons and figures, `advice` what to do; `title`,
    `sentence` and `remedy` are these in words. `share` is the part of the device time it is about.
    `mfu_without` is the MFU if that time were not spent, the most that a remedy can reach; None if
    MFU is not known exactly. `evidence` names the sections of a report that show the finding, the
    best first.

    A finding with a cause also has an owner, and per step the gain of its remedy alone: None if the
    recording cannot tell, for the reasons in `confidence`. `edits` are those of what-if that were
    replayed for the whole remedy, if they are short enough to show.
    """

    rule: str
    severity: Severity
    share: float
    name: Fact
    claim: Fact
    details: tuple[Fact, ...] = ()
    advice: Fact | None = None
    mfu_without: float | None = None
    evidence: tuple[str, ...] = ()
    priority: Severity = "low"
    owner: Owner | None = None
    gain: Gain | None = None
    mfu_after: MfuRange | None = None
    confidence: Confidence | None = None
    rows: tuple[Row, ...] = ()
    where: Where = Where()
    edits: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return its name in words."""
        return in_words(self.name)

    @property
    def sentence(self) -> str:
        """Return the statement and its details in words."""
        return in_words(self.claim, *self.details)

    @property
    def remedy(self) -> str:
        """Return what to do in words, "" if nothing is known."""
        return in_words(self.advice)


@lru_cache(maxsize=10_000)
def row_name(label: str) -> str:
    """Return a name as a row of evidence shows it."""
    return shortened(without_return_type(label), _ROW_NAME)


def ids_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return an id per finding: its rule, from the second of a rule on with a number."""
    rules = [finding.rule for finding in findings]
    earlier = [rules[:at].count(rule) for at, rule in enumerate(rules)]
    return tuple(
        f"{rule}-{before + 1}" if before else rule
        for rule, before in zip(rules, earlier, strict=True)
    )


def as_loss(cause: Cause) -> Finding | None:
    """Return a cause as a finding on what it costs, without a replay; None if it costs little."""
    return cause.as_finding() if severity_of(cause.share) is not None else None


_FUNCTION: Final = re.compile(r"(?:void )?([^<(\[]+)")


@lru_cache(maxsize=10_000)
def short_name(label: str) -> str:
    """Return the name of a function, kernel or range as a sentence shows it.

    The file and line of a Python function come last and tell most: they are seldom elided.
    """
    function = function_name(label)
    width = _LONGEST_NAME if function == label else _ROW_NAME
    return shortened(_SIGNATURE.sub("", without_return_type(function)), width)


def function_of(name: str) -> str:
    """Return the name of a kernel without return type and arguments."""
    name = without_return_type(clean(name))
    words = _FUNCTION.match(name)
    return (words[1] if words else name).strip()


def severity_of(share: float) -> Severity | None:
    """Return how much a share of the device time matters, None if hardly at all."""
    return next((name for name, least in _LEAST.items() if share >= least), None)
