"""What the profiler's own rules say of counted kernels, in its words and shown as such."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.categories.kernel_names import from_own_word
from traceflops.findings.counted_kernels import estimated, gains_nothing, rule_name
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Name
from traceflops.reports.view.texts import words
from traceflops.units import capitalized

if TYPE_CHECKING:
    from traceflops.mfu.counted.kernel_speeds import KernelRule, KernelSpeed
    from traceflops.mfu.measurement import Measurement

SAYS: Final = "Nsight Compute says"
_NAME: Final = 46
_LONGEST: Final = 2_000
_BOTTLENECK: Final = "bottleneck"
_INFORMATION: Final = frozenset({"inf", "ok"})
"""Kinds of messages that advise nothing."""


@dataclass(frozen=True, slots=True)
class RuleShown:
    """One message: the rule with its estimate in words, and the profiler's text."""

    head: str
    text: str


@dataclass(frozen=True, slots=True)
class RulesOfKernel:
    """What is said of one kernel, that with the largest estimate first."""

    name: Name
    rules: tuple[RuleShown, ...]


def rules_said(measured: Measurement, most: int) -> list[RulesOfKernel]:
    """Return what rules advise for the first kernels of the table of speeds."""
    work = measured.executed.work
    rows = [row for row in (work.speeds if work is not None else ()) if row.rules][:most]
    labels = short_labels(from_own_word([row.name for row in rows]), _NAME)
    told = (
        RulesOfKernel(Name(label, row.name), tuple(map(_shown, _advising(row))))
        for label, row in zip(labels, rows, strict=True)
    )
    return [one for one in told if one.rules]


def _advising(row: KernelSpeed) -> Iterator[KernelRule]:
    """Yield what advises: that which names the bottleneck first, then by estimates.

    Not estimates of what gains nothing.
    """
    kept = [one for one in row.rules if not (one.speedup_share and gains_nothing(row, one))]
    advising = [rule for rule in kept if (rule.kind or "").lower() not in _INFORMATION]
    yield from sorted(advising, key=lambda rule: _BOTTLENECK not in rule_name(rule))


def _shown(rule: KernelRule) -> RuleShown:
    parts = (capitalized(rule_name(rule)), words(estimated(rule)))
    text = rule.text if len(rule.text) <= _LONGEST else f"{rule.text[:_LONGEST]}…"
    return RuleShown(", ".join(filter(None, parts)), text)
