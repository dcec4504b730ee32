"""Launching as one cause: a launch costs an operator, its latency, a handover to another thread.

What launches less often saves all of these, so they are told and weighed together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from traceflops.attribution.culprits import Culprit, IdleClass
from traceflops.attribution.idle_classes import CLASSES
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, share_of_window
from traceflops.findings.launching import LATENCY
from traceflops.findings.owners import only_launches

LAUNCHING: Final = ("eager-overhead", "other-calls", LATENCY)
"""Rules whose remedy is to launch less often; others are joined to them."""
_BESIDE: Final = ("optimizer-loop", "thread-handover", "host-code")
"""Rules that have a remedy of their own where they take more than launching itself."""

_REPLAYS: Final = re.compile("GraphLaunch")

Culprits = Mapping[str, Sequence["Culprit"]]


def joined(by_rule: Culprits, least_ns: float) -> dict[str, list[Culprit]]:
    """Return culprits by rule, those of launching as one rule.

    Parts below `least_ns` are not joined, nor is the latency of launches after a wait, which has
    drained the queue, or that of graphs. Of host code only functions that only call operators are.
    """
    parts = {rule: list(by_rule.get(rule, ())) for rule in (*LAUNCHING, *_BESIDE)}
    parts["host-code"] = [one for one in parts["host-code"] if only_launches(one.label)]
    parts[LATENCY] = [one for one in parts[LATENCY] if not _REPLAYS.search(one.label)]
    sums = {rule: sum(one.idle_ns for one in some) for rule, some in parts.items()}
    if 2 * sum(one.blocked_before_ns for one in parts[LATENCY]) > sums[LATENCY]:
        sums[LATENCY] = 0
    large = {rule for rule, idle_ns in sums.items() if idle_ns >= least_ns > 0}
    launch_ns = sum(sums[rule] for rule in LAUNCHING if rule in large)
    # What is no launching joins it only if it is the lesser part.
    chosen = {rule for rule in large if rule in LAUNCHING or sums[rule] <= launch_ns}
    lead = next((rule for rule in LAUNCHING if rule in large), None)
    if lead is None or len(chosen) < 2:
        return {rule: list(some) for rule, some in by_rule.items()}
    taken = [one for rule in (lead, *sorted(chosen - {lead})) for one in parts[rule]]
    left = {rule: [one for one in some if one not in taken] for rule, some in by_rule.items()}
    return {rule: some for rule, some in {**left, lead: taken}.items() if some}


def parts_of(rule: str, idle: IdleClass) -> dict[str, IdleClass]:
    """Return the idle time of a cause by rule: of launching that may be several."""
    if rule not in LAUNCHING:
        return {rule: idle}
    by_kind: defaultdict[str, list[Culprit]] = defaultdict(list)
    for culprit in idle.culprits:
        by_kind[culprit.kind].append(culprit)
    return {kind.replace("_", "-"): IdleClass(kind, tuple(some)) for kind, some in by_kind.items()}


def claim_of_parts(case: Case, share: float, parts: Mapping[str, IdleClass]) -> Fact:
    """Return how long the GPU is idle while work is launched, and how much of it each part is."""
    shares = (
        fact("launching.part", kind=CLASSES[part.kind], share=share_of_window(case, part.idle_ns))
        for part in sorted(parts.values(), key=lambda part: -part.idle_ns)
    )
    return fact("launching.claim", share=share, parts=tuple(shares))
