"""The post-mortem: what happened and why, what to do, what that saves, what is not known.

Every sentence follows from the analysis, so the same recording gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.recording import missing_from
from traceflops.reports.view.critical import critical_sentence
from traceflops.reports.view.figures import count, duration, percent, shorten_middle
from traceflops.reports.view.findings import FindingWords, causes, title_sentence
from traceflops.reports.view.utilisation import why_not
from traceflops.reports.view.wording import basis, component_label, provenance, uneven_steps
from traceflops.units import capitalized

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

_MOST: Final = 5
_FROM_SUMMARIES: Final = "from-summaries"
_NAME: Final = 100
_ALONE: Final = "Gains are of one remedy alone; they do not add up."
_AGAIN: Final = "After the change, record the same steps with the same options and compare."
_HEALTHY: Final = "No cause stands out; see where the time goes in the report."


@dataclass(frozen=True, slots=True)
class Chapter:
    """A heading of a post-mortem and its sentences."""

    title: str
    sentences: tuple[str, ...]


def post_mortem(analysis: Analysis) -> tuple[Chapter, ...]:
    """Return the chapters, at most the first five causes in each."""
    found = causes(analysis)[:_MOST]
    return (
        Chapter("What happened", tuple(_happened(analysis))),
        Chapter("Evidence", tuple(_evidence(analysis, found))),
        Chapter("Cause", tuple(map(_cause, found)) or (_HEALTHY,)),
        Chapter("Remedy", tuple(_of(one, one.finding.remedy) for one in found) or ("None.",)),
        Chapter("Expected gain", (*map(_gain, found), _ALONE) if found else ("None.",)),
        Chapter("What this recording cannot tell", tuple(_unknown(analysis)) or ("Nothing.",)),
        Chapter("Next recording", tuple(_next(analysis))),
    )


def _of(one: FindingWords, text: str) -> str:
    return f"{one.finding.title}: {text}"


def _happened(analysis: Analysis) -> Iterator[str]:
    yield title_sentence(analysis)
    yield f"{' · '.join(provenance(analysis))}."
    components, total = analysis.components, analysis.total
    parts = [
        f"{component_label(name, total)} {duration(analysis.mean_ns(ns))}"
        f" ({percent(components.share(name))})"
        for name, ns in components.parts().items()
        if ns
    ]
    if parts:
        yield f"{basis(analysis)}: {', '.join(parts)}."
    yield from filter(None, (uneven_steps(analysis),))


def _evidence(analysis: Analysis, found: list[FindingWords]) -> Iterator[str]:
    for one in found:
        rows = [
            f"{shorten_middle(row.name, _NAME) or 'unnamed'} {duration(row.time_ns)}"
            + (f" ({count(row.count)} ×)" if row.count is not None else "")  # noqa: RUF001
            for row in one.finding.rows
        ]
        yield one.finding.sentence + (f" In all: {', '.join(rows)}." if rows else "")
    yield critical_sentence(analysis) or f"No critical path: {analysis.replay_or_reason[1]}."


def _cause(one: FindingWords) -> str:
    where = ", ".join(shorten_middle(name, _NAME) for name in one.where)
    return _of(one, f"{where or 'no single place'} ({one.owner}). Sure: {one.sure}.")


def _gain(one: FindingWords) -> str:
    saved = capitalized(one.saves) or "Unknown"
    return _of(one, f"{saved}{f', {one.mfu}' if one.mfu else ''}.")


def _unknown(analysis: Analysis) -> Iterator[str]:
    """Yield what is not known, and what it takes to know it."""
    health = [one for one in analysis.diagnosis if one.evidence == ("notes",)]
    yield from (one.sentence for one in health)
    yield from why_not(analysis.measured) if analysis.devices else ()
    yield from (note.text for note in analysis.notes if note.code == _FROM_SUMMARIES)
    for one in causes(analysis)[:_MOST]:
        gain = one.finding.gain
        if gain is not None and gain.point_ns is None:
            yield _of(one, "its gain is a range.")
    if analysis.prepared is not None:
        told = " ".join(one.sentence for one in health)
        for missing in missing_from(analysis.prepared.trace):
            if missing.cost not in told:
                yield f"No {missing.what}: {missing.cost}."


def _next(analysis: Analysis) -> Iterator[str]:
    health = {one.remedy: None for one in analysis.diagnosis if one.evidence == ("notes",)}
    yield from health
    if analysis.prepared is not None:
        said = " ".join(health).lower()
        for one in missing_from(analysis.prepared.trace):
            if one.remedy.lower() not in said:
                yield f"For {one.what}: {one.remedy}."
    yield _AGAIN
