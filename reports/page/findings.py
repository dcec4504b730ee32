"""What the page says first: findings, the largest first."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from traceflops.reports.page.evidence import Place, places, step_rows
from traceflops.units.exact import exact_percent

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.findings.finding import Finding


@dataclass(frozen=True, slots=True)
class FindingShown:
    """A finding in words; `evidence` are the sections that show it, the best first.

    `places` are the rows and times in them that it is about.
    """

    rule: str
    severity: str
    sentence: str
    gain: str
    evidence: tuple[str, ...]
    places: tuple[Place, ...]


def findings_shown(analysis: Analysis) -> list[FindingShown]:
    """Return the findings in words."""
    steps = step_rows(analysis)
    return [
        FindingShown(
            one.rule,
            one.severity,
            one.sentence,
            _gain(analysis, one),
            one.evidence,
            tuple(places(analysis, one, steps)),
        )
        for one in analysis.findings
    ]


def _gain(analysis: Analysis, found: Finding) -> str:
    """Return what MFU would be if the time were not spent, "" where it is not one figure."""
    if found.mfu_without is None or analysis.measured.figure is None:
        return ""
    without = exact_percent(Fraction(found.mfu_without))
    return f"{analysis.measured.figure} now, at most {without} without it"
