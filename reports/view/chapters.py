"""The post-mortem: what happened and why, what to do, what that saves, what is not known.

Every sentence follows from the analysis, so the same recording gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.facts import fact
from traceflops.findings.finding import Finding
from traceflops.recording.capture_gaps import Missing, missing_from
from traceflops.reports.view.critical import critical_sentence
from traceflops.reports.view.figures import count, duration, kernel_label, percent
from traceflops.reports.view.findings import FindingWords, causes, title_sentence
from traceflops.reports.view.texts import words
from traceflops.reports.view.utilisation import why_not
from traceflops.reports.view.wording import basis, component_label, provenance, uneven_steps
from traceflops.units import capitalized

_MOST: Final = 5
_FROM_SUMMARIES: Final = "from-summaries"
_NAME: Final = 100
_OF_MISSING: Final = ("what", "cost")
ALONE: Final = "Gains are of one remedy alone; they do not add up."
_AGAIN: Final = "After the change, record the same {} with the same options and compare."
_HEALTHY: Final = "No cause stands out; see where the time goes in the report."


class Chapter(Struct, frozen=True):
    """A heading of a post-mortem and its sentences."""

    title: str
    sentences: tuple[str, ...]


def post_mortem(analysis: Analysis) -> tuple[Chapter, ...]:
    """Return the chapters; those on causes have the first _MOST of them."""
    found = causes(analysis)[:_MOST]
    places, remedies, gains = [], [], []
    for cause in found:
        title, sure = cause.finding.title, cause.finding.confidence
        where = ", ".join(kernel_label(name, _NAME) for name in cause.where) or "no single place"
        places.append(f"{title}: {where} ({cause.owner}). Sure: {cause.sure}.")
        remedies.append(f"{title}: {cause.finding.remedy}")
        # The first reason for the confidence also tells why a gain is unknown ("Unknown: ...").
        reasons = map(words, sure.reasons[:1] if sure else ())
        saved = capitalized(cause.saves) or ": ".join(("Unknown", *filter(None, reasons)))
        gains.append(f"{title}: {saved}{f', {cause.mfu}' if cause.mfu else ''}.")
    if sum(cause.finding.gain is not None for cause in found) > 1:
        gains.append(ALONE)
    return (
        Chapter("What happened", tuple(_happened(analysis))),
        Chapter("Evidence", tuple(_evidence(analysis, found))),
        Chapter("Cause", tuple(places) or (_HEALTHY,)),
        Chapter("Remedy", tuple(remedies) or ("None.",)),
        Chapter("Expected gain", tuple(gains) or ("None.",)),
        Chapter("What this recording cannot tell", tuple(_unknown(analysis)) or ("Nothing.",)),
        Chapter("Next recording", tuple(_next(analysis))),
    )


def _happened(analysis: Analysis) -> Iterator[str]:
    """Yield the verdict, the origin of the trace, its time by component, and uneven steps."""
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
    if uneven := uneven_steps(analysis):
        yield uneven


def _evidence(analysis: Analysis, found: list[FindingWords]) -> Iterator[str]:
    """Yield the claim and the rows of each cause, then the critical path."""
    for cause in found:
        rows = [
            f"{kernel_label(row.name, _NAME)} {duration(row.time_ns)}"
            + (f" ({count(row.count)} ×)" if row.count is not None else "")
            for row in cause.finding.rows
            if row.name
        ]
        yield cause.finding.sentence + (f" In all: {', '.join(rows)}." if rows else "")
    replay, reason = analysis.replay_or_reason
    yield from filter(None, [critical_sentence(analysis)])
    yield from [f"No critical path: {words(reason)}."] if replay is None else []


def _unknown(analysis: Analysis) -> Iterator[str]:
    """Yield what is not known, and what of it would take another recording."""
    on_notes = _findings_on_notes(analysis)
    yield from (finding.sentence for finding in on_notes)
    yield from why_not(analysis.measured) if analysis.devices else ()
    # The other notes are no limits of the whole recording.
    yield from (note.text for note in analysis.notes if note.code == _FROM_SUMMARIES)
    ranges = [
        cause.finding.title
        for cause in causes(analysis)[:_MOST]
        if cause.finding.gain is not None and cause.finding.gain.point_ns is None
    ]
    if ranges:
        yield f"Gains known only as a range: {'; '.join(ranges)}."
    said = {finding.claim.values.get("lack") for finding in on_notes}
    for missing in _missing(analysis):
        if missing.code not in said:
            what, cost = (words(fact(f"lack.{missing.code}.{part}")) for part in _OF_MISSING)
            yield f"No {what}: {cost}."


def _findings_on_notes(analysis: Analysis) -> list[Finding]:
    """Return the findings on the recording itself, whose only evidence is its notes."""
    return [finding for finding in analysis.findings if finding.evidence == ("notes",)]


def _missing(analysis: Analysis) -> Iterator[Missing]:
    """Yield what the recording lacks and could matter, if nothing else says it."""
    # The rank of a single device that does not communicate does not matter.
    total = analysis.total
    communicates = total.components.communication_ns or total.hidden_communication_ns
    is_alone = len(analysis.devices) < 2 and not communicates
    skipped = {"rank"} if is_alone else set()
    skipped |= set() if analysis.steps.used else {"steps"}  # which the window says
    if analysis.prepared is not None:
        every = missing_from(analysis.prepared.trace)
        yield from (missing for missing in every if missing.code not in skipped)


def _next(analysis: Analysis) -> Iterator[str]:
    """Yield what to record next time, each option once."""
    on_notes = _findings_on_notes(analysis)
    yield from filter(None, dict.fromkeys(finding.remedy for finding in on_notes))
    said = {"", *(one.advice.values.get("option") for one in on_notes if one.advice)}
    for missing in _missing(analysis):
        if missing.how.text not in said:
            yield f"For {words(fact(f'lack.{missing.code}.what'))}: {missing.how.text}."
    yield _AGAIN.format("steps" if analysis.steps.used else "work")
