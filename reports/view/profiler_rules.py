"""What the profiler's own rules say of counted kernels, in its words and shown as such."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from traceflops.categories.kernel_names import from_own_word
from traceflops.findings.counted_estimates import estimated, gains_nothing, rule_name
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Name
from traceflops.reports.view.texts import words
from traceflops.units import capitalized

if TYPE_CHECKING:
    from traceflops.mfu.measurement import Measurement

SAYS: Final = "Nsight Compute says"
_NAME: Final = 46
_LONGEST: Final = 2_000
_BOTTLENECK: Final = "bottleneck"
_INFORMATION: Final = frozenset({"inf", "ok"})
"""Kinds of messages that advise nothing."""


class RuleShown(Struct, frozen=True):
    """One message: the rule with its estimate in words, and the profiler's text."""

    head: str
    text: str


class RulesOfKernel(Struct, frozen=True):
    """What is said of one kernel, that with the largest estimate first."""

    name: Name
    rules: tuple[RuleShown, ...]


def rules_said(measured: Measurement, most: int) -> list[RulesOfKernel]:
    """Return what rules advise for the first kernels of the table of speeds."""
    work = measured.executed.work
    rows = [row for row in (work.speeds if work is not None else ()) if row.rules][:most]
    labels = short_labels(from_own_word([row.name for row in rows]), _NAME)
    told = []
    for label, row in zip(labels, rows, strict=True):
        advising = [
            rule
            for rule in row.rules
            if (rule.kind or "").lower() not in _INFORMATION
            and not (rule.speedup_share and gains_nothing(row, rule))
        ]
        # That which names the bottleneck comes first, the others by their estimates.
        advising.sort(key=lambda rule: _BOTTLENECK not in rule_name(rule))
        shown = []
        for rule in advising:
            parts = (capitalized(rule_name(rule)), words(estimated(rule)))
            text = rule.text if len(rule.text) <= _LONGEST else f"{rule.text[:_LONGEST]}…"
            shown.append(RuleShown(", ".join(filter(None, parts)), text))
        if shown:
            told.append(RulesOfKernel(Name(label, row.name), tuple(shown)))
    return told
