"""One statement of a report: its size, evidence, remedy and gain; and what rules say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import fields

from traceflops.categories.kernel_names import without_return_type
from traceflops.characters import function_name, shortened
from traceflops.facts import Fact, in_words, quoted

Owner = Literal["yours", "framework", "library", "input pipeline", "configuration", "cluster"]
"""Who mends it; `configuration` are the options of an engine or launcher."""
Level = Literal["high", "medium", "low"]


class Verdict(Struct, frozen=True):
    """What the chosen windows lose most time to: statements, the largest loss and its share.

    `headline` is the class of a report that begins with it.
    """

    parts: tuple[Fact, ...]
    headline: str
    loss: str | None = None
    share: float | None = None

    @property
    def sentence(self) -> str:
        """Return the statements in words."""
        return in_words(*self.parts)


Severity = Literal["high", "medium", "low"]

_LEAST: Final[dict[Severity, float]] = {"high": 0.20, "medium": 0.10, "low": 0.03}
"""The share of the device time from which a finding has a severity."""

_WIDEST: Final = 4
"""No range is told whose upper end is more than so many times the lower one."""
_LONGEST_NAME, _ROW_NAME = 100, 160
"""Characters of a name in a sentence, of those the first ones of one that is cut; and in a row."""
_SIGNATURE: Final = re.compile(r"(?<=>)\([^()]*\)$")
"""What a demangled kernel has around its name."""

WORTH_SAYING: Final = _LEAST["low"]
"""What takes a smaller share is neither listed nor named in the verdict."""


class Gain(Struct, frozen=True):
    """By how much a step gets shorter, in ns; `point_ns` is None where no single figure is sure.

    It is at most the time of the cause itself; `further_ns` is what replay adds at most, where
    other work hides then. Where it `may_be_more`, only the lower bound is told, and the upper one
    is the same; `most_ns` is what it is at most then.
    """

    low_ns: int
    high_ns: int
    point_ns: int | None
    may_be_more: bool = False
    most_ns: int | None = None
    further_ns: int = 0

    @property
    def expected_ns(self) -> int:
        """Return what order and priority are by: the point, the middle, or half of a bound."""
        if self.point_ns is not None:
            return self.point_ns
        if self.most_ns is not None:
            return max(self.low_ns, self.most_ns // 2)
        return (self.low_ns + self.high_ns) // 2

    def capped(self, most_ns: int) -> Gain:
        """Return the gain where it cannot be more than so much."""
        point = None if self.point_ns is None else min(self.point_ns, most_ns)
        return Gain(min(self.low_ns, most_ns), min(self.high_ns, most_ns), point)

    def narrowed(self, least_ns: float) -> Gain:
        """Return a bound where the ends are too far apart: the lower one if that is enough."""
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
    """One line of evidence: a kernel, function or call, its time in all chosen windows, its count.

    The count is None where it is not known.
    """

    name: str
    time_ns: int
    count: int | None = None


class Where(Struct, frozen=True):
    """Where a cause shows: in code, on a rank, in a stretch of time. None where it does not.

    `line` is where the function begins.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    rank: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None


class Remedied(Struct, frozen=True, kw_only=True):
    """Where a cause shows, and what of the recording its remedy changes.

    `edits` are those of what-if that stand for the remedy: all together, or without the first where
    the recording cannot answer that. `on_path` are the components of the critical path that the
    cause is part of; where it is of some kernels alone, `kernels` is what the remedy leaves of them
    by name. The gain is at most their time there, unless the remedy `frees` work from waiting.
    `partly` stands for a remedy that does less: the gain is between both. `gain` is per step, where
    a formula tells it and no replay. `direct_ns` is the time of the cause itself in all windows,
    the most that its remedy gains directly: by default that of its share. `joins` are other rules
    of idle time that it tells as well.
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

    `claim` is the statement, `details` what stands behind it, `advice` what to do. `doubts` are
    reasons to be less sure.
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


class Candidate(Remedied, frozen=True):
    """A Cause as rules of users state it: with a title, a sentence and a remedy in their words."""

    rule: str
    title: str
    sentence: str
    share: float
    owner: Owner | None
    remedy: str
    evidence: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    def as_cause(self) -> Cause:
        """Return the same with its words as facts."""
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
    """One statement, by the rule that made it.

    `claim` is the statement, `details` what stands behind it, `advice` what to do; `title`,
    `sentence` and `remedy` are these in words. `share` is the part of the device time it is about.
    `mfu_without` is what MFU would be if that time were not spent: the most that mending it can
    gain; None where MFU is not known exactly. `evidence` names the sections of a report that show
    it, the best first.

    A finding with a cause also says whose it is and, by replay, what the remedy alone gains per
    step: None where the recording cannot tell, for the reasons of its confidence. `edits` are those
    of what-if that were replayed for the whole of it, if these are short.
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
        """Return the statement and what stands behind it in words."""
        return in_words(self.claim, *self.details)

    @property
    def remedy(self) -> str:
        """Return what to do in words, "" where nothing is known."""
        return in_words(self.advice)


@lru_cache(maxsize=10_000)
def row_name(label: str) -> str:
    """Return a name as rows have it."""
    return shortened(without_return_type(label), _ROW_NAME)


def as_loss(cause: Cause) -> Finding | None:
    """Return what a cause costs where nothing is replayed, None where that is little."""
    severity = severity_of(cause.share)
    if severity is None:
        return None
    return Finding(
        cause.rule,
        severity,
        cause.share,
        cause.name,
        cause.claim,
        cause.details,
        cause.advice,
        evidence=cause.evidence,
    )


@lru_cache(maxsize=10_000)
def short_name(label: str) -> str:
    """Return the name of a function, kernel or range as a sentence has it."""
    name = _SIGNATURE.sub("", without_return_type(function_name(label)))
    return shortened(name, _LONGEST_NAME)


def severity_of(share: float) -> Severity | None:
    """Return how much a share of the device time matters, None for one below all of them."""
    return next((name for name, least in _LEAST.items() if share >= least), None)
