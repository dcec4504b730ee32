"""What the GPUs wait on: idle time by class of culprit and length of gap, and the host's pace.

A culprit is what the host did during idle time, such as an operator or a call; classes are kinds
of culprits, such as loading data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.attribution.culprits import Culprit
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import GapLengths
from traceflops.characters import function_name
from traceflops.facts import Fact
from traceflops.remedies import advice
from traceflops.reports.view.figures import TIME_UNITS, duration, percent
from traceflops.reports.view.palette import CAUSE_LABELS, LOOKS
from traceflops.reports.view.texts import words
from traceflops.timeline.records import Gap
from traceflops.units import capitalized, several, unit_for

WORTH_SHOWING: Final = 0.03
"""Least share of idle time in the window so that classes are shown, and of a class in idle time."""
_NAMES: Final = 2  # named culprits of a class
_MANY: Final = 0.5  # share of kernels
_PACES: Final = {"looming": "Nearly host-bound"}
_STALLS: Final = "A few stalls aside, launches keep up"
_MUCH_IDLE: Final = 0.05  # share of the window
_SAMPLED: Final = ("host-unrecorded.claim-sampled", "host-unrecorded.claim-off-cpu")
"""Claims with the functions that CPU samples found in host time without events."""


class WaitedFor(Struct, frozen=True):
    """Idle time of one class of culprits; `share` is of all idle time, `mean_ns` per window.

    `names` are the largest culprits; `tails` are printed behind each: its time, or the number of
    gaps of a single culprit. `gaps` is None for several culprits: they may share gaps.
    """

    words: str
    remedy: str
    mean_ns: float
    share: float
    names: tuple[str, ...]
    tails: tuple[str, ...]
    gaps: int | None
    culprits: tuple[Culprit, ...]


def waits(analysis: Analysis) -> list[WaitedFor]:
    """Return the idle time of each class, largest first; a culprit of half of it is named alone."""
    rows = []
    for idle_class in analysis.idle.by_class():
        culprits, names, tails = idle_class.culprits, [], []
        is_single = len(culprits) == 1
        if is_single:
            tails.append(f", {several(culprits[0].gaps, 'gap')}")
        for culprit in culprits:
            longest = f"longest {duration(culprit.longest_ns)}"
            nameless = longest if is_single else "outside ranges"
            names.append(function_name(culprit.label) if culprit.label else nameless)
            time = duration(analysis.mean_ns(culprit.idle_ns))
            tails.append(f" {time}" if culprit.label else f" {time} ({longest})")
        remedy = words(Fact(idle_class.remedy)) if idle_class.remedy else ""
        if idle_class.is_nameless:  # host time without events and ranges
            if sampled := _sampled_function(analysis):
                names = [sampled]
            # To record names is more useful than the remedy of the class.
            remedy = advice(analysis, "host work") or remedy
        is_most = 2 * culprits[0].idle_ns >= idle_class.idle_ns
        shown = names[: 1 if is_most else _NAMES]
        row = WaitedFor(
            CLASSES[idle_class.kind],
            remedy,
            analysis.mean_ns(idle_class.idle_ns),
            idle_class.idle_ns / analysis.components.idle_ns,
            tuple(shown),
            tuple(tails[: len(shown)]),
            culprits[0].gaps if is_single else None,
            culprits,
        )
        rows.append(row)
    return rows


def _sampled_function(analysis: Analysis) -> str:
    """Return the first function that CPU samples found in host time without events, else ""."""
    claims = (finding.claim for finding in analysis.findings)
    values = next((claim.values for claim in claims if claim.code in _SAMPLED), {})
    functions = values.get("functions")
    # Samples of a library without names of functions have none.
    first = functions[0] if isinstance(functions, tuple) and functions else None
    return f"samples: {words(first)}" if isinstance(first, Fact) else ""


def waited_for(analysis: Analysis) -> list[WaitedFor]:
    """Return the classes that are WORTH_SHOWING, largest first; none if idle time is short."""
    if (analysis.components.share("idle") or 0) < WORTH_SHOWING or analysis.on_host:
        return []
    return [row for row in waits(analysis) if row.share >= WORTH_SHOWING]


def pace_sentence(analysis: Analysis) -> str:
    """Return a sentence on whether launches keep up with the GPUs; "" if that is unknown."""
    pace, launches = analysis.host_bound, analysis.launches
    if pace is None or pace.verdict is None:
        return ""
    verdict = _PACES.get(pace.verdict, capitalized(pace.verdict))
    # If launches keep up and the GPU is still often idle, a few long gaps must be the reason.
    is_idle = (analysis.components.share("idle") or 0) >= _MUCH_IDLE
    if is_idle and pace.verdict == "not host-bound":
        verdict = _STALLS
    short = ""  # kernels that end before the next launch, if they are many
    if launches is not None and pace.is_bound:
        share = launches.total.short_kernels / max(launches.total.kernels, 1)
        if share >= _MANY:
            short = f"; kernels below {duration(launches.short_ns)}: {percent(share)}"
    where = f" ({', '.join(pace.bound_in)})" if pace.bound_in else ""
    lead = f"; median lead {duration(pace.lead_median_ns)}, floor {duration(pace.floor_ns)}"
    return (
        f"{verdict}{where}: GPU idle at {percent(pace.starved_share)} of "
        f"{several(pace.launches, 'launch')}{lead if pace.has_leads else ''}{short}."
    )


def gap_culprits(gaps: Sequence[Gap]) -> list[tuple[str, str]]:
    """Return the class and name of each gap's largest culprit, ("", "") if it has none.

    Gaps in which the stream waited for known work have none here: that work says more. Nor has a
    gap of which a longer part has no culprit than its largest class of culprits.
    """
    pairs = []
    for gap in gaps:
        kind = gap.culprits[0].kind if gap.culprits else None
        of_class_ns = sum(own.idle_ns for own in gap.culprits if own.kind == kind)
        unknown_ns = gap.dur_ns - sum(own.idle_ns for own in gap.culprits)
        has_culprit = kind is not None and of_class_ns >= unknown_ns and not gap.waited_for
        largest = gap.culprits[0] if has_culprit else None
        pairs.append((CLASSES[largest.kind], function_name(largest.label)) if largest else ("", ""))
    return pairs


def gap_cause(gap: Gap) -> str:
    """Return what most of a gap is, in words: start-up, or what the GPU waited for."""
    is_start_up = 2 * gap.start_up_ns > gap.dur_ns
    return LOOKS["start_up"].label if is_start_up else CAUSE_LABELS[gap.causes.largest]


def length_label(lengths: GapLengths) -> str:
    """Return the range of lengths in words: "10 µs to 100 µs"."""
    ends_ns = (lengths.from_ns, lengths.to_ns)
    return " to ".join(f"{ns // TIME_UNITS[unit_for(ns)]:,} {unit_for(ns)}" for ns in ends_ns)
