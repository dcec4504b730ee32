"""The largest kernels of a busy GPU of which nothing tells how well they use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from traceflops.attribution.kernels import MOVES
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, share_of_window
from traceflops.findings.device_work import reached
from traceflops.findings.finding import Finding, function_of, short_name

UNJUDGED: Final = "kernels-unjudged"
_MOST_NAMES, _LEAST = 3, 0.05
_OVERLAP: Final = 1.01


def largest_unjudged(case: Case, busy_ns: int) -> tuple[Fact, ...]:
    """Return names and shares of the largest kernels whose distance from their roof is unknown.

    If kernels overlap, and take more than `busy_ns` in total, a share is told as an upper bound.
    """
    times, total_ns = Counter[str](), 0
    for row in case.measured.kernels:
        total_ns += row.sum_ns
        if row.category.sub not in MOVES and not reached(case, row):
            times[short_name(function_of(row.name))] += row.sum_ns
    code = f"{UNJUDGED}.kernel{'-overlapping' * (total_ns > _OVERLAP * busy_ns)}"
    most = times.most_common(_MOST_NAMES)
    shares = ((name, share_of_window(case, min(ns, busy_ns))) for name, ns in most)
    return tuple(fact(code, name=name, share=share) for name, share in shares if share >= _LEAST)


def told_first(findings: Sequence[Finding], said: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the largest of such kernels and how to profile them, if a finding names them.

    Kernels that are in what is `said` are not told again.
    """
    glosses = (part.values.get("gloss") for part in said)
    are_said = any(isinstance(gloss, Fact) and gloss.code == "loss.kernels" for gloss in glosses)
    for finding in findings:
        kernels = finding.claim.values.get("kernels")
        if finding.rule == UNJUDGED and isinstance(kernels, tuple) and kernels:
            largest = fact(f"{UNJUDGED}.largest", kernels=kernels, count=len(kernels))
            told = (largest,) * (not are_said)
            return (*told, *filter(None, [finding.advice]))
    return ()
