"""What the page says first: findings, the largest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceflops.reports.units import percent

if TYPE_CHECKING:
    from traceflops.findings.finding import Finding
    from traceflops.results import Analysis


@dataclass(frozen=True, slots=True)
class FindingShown:
    """A finding in words; `evidence` are the sections that show it, the best first."""

    rule: str
    severity: str
    sentence: str
    gain: str
    evidence: tuple[str, ...]


def findings_shown(analysis: Analysis) -> list[FindingShown]:
    """Return the findings in words."""
    return [
        FindingShown(one.rule, one.severity, one.sentence, _gain(analysis, one), one.evidence)
        for one in analysis.findings
    ]


def _gain(analysis: Analysis, found: Finding) -> str:
    """Return what MFU would be if the time were not spent, "" where it is not one figure."""
    if found.mfu_without is None or analysis.measured.figure is None:
        return ""
    return f"{analysis.measured.figure} now, at most {percent(found.mfu_without)} without it"
