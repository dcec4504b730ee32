"""The post-mortem: what happened and why, what to do, what that saves, what is not known."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.facts import fact
from traceflops.findings.finding import Finding
from traceflops.reports.view.critical import critical_sentence
from traceflops.reports.view.figures import count, duration, kernel_label, percent
from traceflops.reports.view.findings import causes, title_sentence
from traceflops.reports.view.texts import words
from traceflops.reports.view.utilisation import why_not
from traceflops.reports.view.wording import basis, component_label, provenance, uneven_steps
from traceflops.units import capitalized

_MOST: Final = 5
_FROM_SUMMARIES: Final = "from-summaries"  # the note that the files have sums, no events
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
    times = [
        f"{component_label(name, total)} {duration(analysis.mean_ns(ns))}"
        f" ({percent(components.share(name))})"
        for name, ns in components.parts().items()
        if ns
    ]
    happened = (
        title_sentence(analysis),
        f"{' · '.join(provenance(analysis))}.",
        f"{basis(analysis)}: {', '.join(times)}." if times else "",
        uneven_steps(analysis),
    )
    shown = causes(analysis)[:_MOST]
    evidence, places, remedies, gains = [], [], [], []
    for cause in shown:
        title, confidence = cause.finding.title, cause.finding.confidence
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
        # The first reason for the confidence also says why a gain is unknown ("Unknown: ...").
        reasons = map(words, confidence.reasons[:1] if confidence else ())
        saved = capitalized(cause.saves) or ": ".join(("Unknown", *filter(None, reasons)))
        gains.append(f"{title}: {saved}{f', {cause.mfu}' if cause.mfu else ''}.")
    if sum(cause.finding.gain is not None for cause in shown) > 1:
        gains.append(ALONE)
    replay, reason = analysis.replay_or_reason
    evidence.append(critical_sentence(analysis))
    if replay is None:
        evidence.append(f"No critical path: {words(reason)}.")
    # Findings on the recording itself, whose only evidence is its notes.
    on_recording = [finding for finding in analysis.findings if finding.evidence == ("notes",)]
    ranges = [
        cause.finding.title
        for cause in shown
        if cause.finding.gain is not None and cause.finding.gain.point_ns is None
    ]
    return (
        Chapter("What happened", tuple(filter(None, happened))),
        Chapter("Evidence", tuple(filter(None, evidence))),
        Chapter("Cause", tuple(places) or (_HEALTHY,)),
        Chapter("Remedy", tuple(remedies) or ("None.",)),
        Chapter("Expected gain", tuple(gains) or ("None.",)),
        *_recordings(analysis, on_recording, ranges),
    )


def _recordings(
    analysis: Analysis, on_recording: list[Finding], ranges: list[str]
) -> tuple[Chapter, Chapter]:
    """Return a chapter on what this recording cannot tell, and one on what to record next.

    `on_recording` are the findings about the recording; `ranges` are titles of the causes whose
    gain has no single figure.
    """
    unknown = [finding.sentence for finding in on_recording]
    unknown += why_not(analysis.measured) if analysis.devices else ()
    # Other notes do not limit what the whole recording can tell.
    unknown += [note.text for note in analysis.notes if note.code == _FROM_SUMMARIES]
    if ranges:
        unknown.append(f"Gains known only as a range: {'; '.join(ranges)}.")
    advice = list(filter(None, dict.fromkeys(finding.remedy for finding in on_recording)))

    # Add what the trace lacks, unless it does not matter or a finding already says so.
    irrelevant = set() if analysis.steps.used else {"steps"}
    total = analysis.total
    communicates = total.components.communication_ns or total.hidden_communication_ns
    if len(analysis.devices) < 2 and not communicates:
        irrelevant.add("rank")
    said = {finding.claim.values.get("lack") for finding in on_recording}
    advised = {"", *(f.advice.values.get("option") for f in on_recording if f.advice)}
    for missing in analysis.missing:
        if missing.code not in irrelevant:
            what, cost = (words(fact(f"lack.{missing.code}.{part}")) for part in ("what", "cost"))
            if missing.code not in said:
                unknown.append(f"No {what}: {cost}.")
            if missing.how.text not in advised:
                advice.append(f"For {what}: {missing.how.text}.")
    advice.append(_AGAIN.format("steps" if analysis.steps.used else "work"))
    title = "What this recording cannot tell"
    return Chapter(title, tuple(unknown) or ("Nothing.",)), Chapter("Next recording", tuple(advice))
