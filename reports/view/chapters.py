"""The post-mortem: what happened and why, what to do, what that saves, what is not known.

Every sentence follows from the analysis, so the same recording gives the same text.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.facts import fact
from traceflops.recording.capture_gaps import missing_from
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
ALONE: Final = "Gains are of one remedy alone; they do not add up."
_AGAIN: Final = "After the change, record the same {} with the same options and compare."
_HEALTHY: Final = "No cause stands out; see where the time goes in the report."


class Chapter(Struct, frozen=True):
    """A heading of a post-mortem and its sentences."""

    title: str
    sentences: tuple[str, ...]


def post_mortem(analysis: Analysis) -> tuple[Chapter, ...]:
    """Return the chapters; those on causes have the first _MOST of them."""
    components, total = analysis.components, analysis.total
    happened = [title_sentence(analysis), f"{' · '.join(provenance(analysis))}."]
    times = [
        f"{component_label(name, total)} {duration(analysis.mean_ns(ns))}"
        f" ({percent(components.share(name))})"
        for name, ns in components.parts().items()
        if ns
    ]
    happened += [f"{basis(analysis)}: {', '.join(times)}."] if times else []
    happened.append(uneven_steps(analysis))
    shown = causes(analysis)[:_MOST]
    evidence, places, remedies, gains = [], [], [], []
    for cause in shown:
        title, sure = cause.finding.title, cause.finding.confidence
        rows = [
            f"{kernel_label(row.name, _NAME)} {duration(row.time_ns)}"
            + (f" ({count(row.count)} ×)" if row.count is not None else "")
            for row in cause.finding.rows
            if row.name
        ]
        evidence.append(cause.finding.sentence + (f" In all: {', '.join(rows)}." if rows else ""))
        where = ", ".join(kernel_label(name, _NAME) for name in cause.where) or "no single place"
        places.append(f"{title}: {where} ({cause.owner}). Sure: {cause.sure}.")
        remedies.append(f"{title}: {cause.finding.remedy}")
        # The first reason for the confidence also tells why a gain is unknown ("Unknown: ...").
        reasons = map(words, sure.reasons[:1] if sure else ())
        saved = capitalized(cause.saves) or ": ".join(("Unknown", *filter(None, reasons)))
        gains.append(f"{title}: {saved}{f', {cause.mfu}' if cause.mfu else ''}.")
    if sum(cause.finding.gain is not None for cause in shown) > 1:
        gains.append(ALONE)
    replay, reason = analysis.replay_or_reason
    evidence.append(critical_sentence(analysis))
    evidence += [f"No critical path: {words(reason)}."] if replay is None else []
    return (
        Chapter("What happened", tuple(filter(None, happened))),
        Chapter("Evidence", tuple(filter(None, evidence))),
        Chapter("Cause", tuple(places) or (_HEALTHY,)),
        Chapter("Remedy", tuple(remedies) or ("None.",)),
        Chapter("Expected gain", tuple(gains) or ("None.",)),
        *_recordings(analysis, shown),
    )


def _recordings(analysis: Analysis, shown: list[FindingWords]) -> tuple[Chapter, Chapter]:
    """Return what this recording does not tell, and what the next one should record."""
    # Findings on the recording itself, whose only evidence is its notes.
    on_notes = [finding for finding in analysis.findings if finding.evidence == ("notes",)]
    unknown = [finding.sentence for finding in on_notes]
    unknown += why_not(analysis.measured) if analysis.devices else ()
    # The other notes are no limits of the whole recording.
    unknown += [note.text for note in analysis.notes if note.code == _FROM_SUMMARIES]
    ranges = [
        cause.finding.title
        for cause in shown
        if cause.finding.gain is not None and cause.finding.gain.point_ns is None
    ]
    unknown += [f"Gains known only as a range: {'; '.join(ranges)}."] if ranges else []
    advice = list(filter(None, dict.fromkeys(finding.remedy for finding in on_notes)))
    # What the recording lacks, unless a finding or the window says it already. The rank of a single
    # device that does not communicate does not matter.
    total = analysis.total
    communicates = total.components.communication_ns or total.hidden_communication_ns
    is_alone = len(analysis.devices) < 2 and not communicates
    skipped = {"rank"} if is_alone else set()
    skipped |= set() if analysis.steps.used else {"steps"}
    lacks = {finding.claim.values.get("lack") for finding in on_notes}
    options = {"", *(one.advice.values.get("option") for one in on_notes if one.advice)}
    every = missing_from(analysis.prepared.trace) if analysis.prepared is not None else ()
    for missing in every:
        if missing.code not in skipped:
            what, cost = (words(fact(f"lack.{missing.code}.{part}")) for part in ("what", "cost"))
            unknown += [f"No {what}: {cost}."] if missing.code not in lacks else []
            advice += (
                [f"For {what}: {missing.how.text}."] if missing.how.text not in options else []
            )
    advice.append(_AGAIN.format("steps" if analysis.steps.used else "work"))
    title = "What this recording cannot tell"
    return Chapter(title, tuple(unknown) or ("Nothing.",)), Chapter("Next recording", tuple(advice))
