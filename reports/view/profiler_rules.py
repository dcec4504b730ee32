"""What the profiler's own rules say of counted kernels, in its words and shown as such."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from traceflops.categories.kernel_names import from_own_word
from traceflops.findings.counted_estimates import estimated, gains_nothing, rule_name
from traceflops.mfu.measurement import Measurement
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Name
from traceflops.reports.view.texts import words
from traceflops.units import capitalized

SAYS: Final = "Nsight Compute says"
_NAME: Final = 46
_LONGEST: Final = 2_000
_BOTTLENECK: Final = "bottleneck"
_INFORMATION: Final = frozenset({"inf", "ok"})  # kinds of messages that advise nothing


class RuleShown(Struct, frozen=True):
    """One message: the rule with its estimate in words, and the profiler's text."""

    head: str
    text: str


class RulesOfKernel(Struct, frozen=True):
    """What rules say of one kernel: the bottleneck, then the others, largest estimate first."""

    name: Name
    rules: tuple[RuleShown, ...]


def rules_said(measured: Measurement, most: int) -> list[RulesOfKernel]:
    """Return what rules advise for the first `most` kernels with rules, those with most time."""
    work = measured.executed.work
    rows = [row for row in (work.speeds if work is not None else ()) if row.rules][:most]
    labels = short_labels(from_own_word([row.name for row in rows]), _NAME)
    kernels = []
    for label, row in zip(labels, rows, strict=True):
        # A rule that names the bottleneck comes first; the others keep the order of estimates.
        rules = sorted(row.rules, key=lambda rule: _BOTTLENECK not in rule_name(rule))
        shown = []
        for rule in rules:
            is_advice = (rule.kind or "").lower() not in _INFORMATION
            # A speed-up that this kernel cannot gain is not told.
            if is_advice and not (rule.speedup_share and gains_nothing(row, rule)):
                head = filter(None, (capitalized(rule_name(rule)), words(estimated(rule))))
                text = rule.text if len(rule.text) <= _LONGEST else f"{rule.text[:_LONGEST]}…"
                shown.append(RuleShown(", ".join(head), text))
        if shown:
            kernels.append(RulesOfKernel(Name(label, row.name), tuple(shown)))
    return kernels
