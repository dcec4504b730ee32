"""What the GPUs wait on: idle time by class of culprit and length of gap; the lead of the host."""

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
from traceflops.reports.view.texts import words
from traceflops.timeline.records import Gap
from traceflops.units import capitalized, several, unit_for

WORTH_SHOWING: Final = 0.03
"""Share of the idle time from which a class is shown, and of the window from which any is."""
_NAMES: Final = 2
_MANY: Final = 0.5
_PACES: Final = {"looming": "Nearly host-bound"}
_STALLS: Final = "A few stalls aside, launches keep up"
_MUCH_IDLE: Final = 0.05
_SAMPLED: Final = ("host-unrecorded.claim-sampled", "host-unrecorded.claim-off-cpu")


class WaitedFor(Struct, frozen=True):
    """Idle time of one class of culprits; `share` is of all idle time, `mean_ns` per window.

    `names` are the largest culprits; `tails` go behind them: the time of each, or the number of
    gaps of an only one. `gaps` is None if there are several culprits, which may share gaps.
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
    """Return what the GPUs wait on, the largest class first; one culprit of most is told alone."""
    rows = []
    for one in analysis.idle.by_class():
        culprits, names, tails = one.culprits, [], []
        if len(culprits) == 1:
            tails.append(f", {several(culprits[0].gaps, 'gap')}")
        for culprit in culprits:
            longest = f"longest {duration(culprit.longest_ns)}"
            nameless = longest if len(culprits) == 1 else "outside ranges"
            names.append(function_name(culprit.label) if culprit.label else nameless)
            time = duration(analysis.mean_ns(culprit.idle_ns))
            tails.append(f" {time}" if culprit.label else f" {time} ({longest})")
        # Of host time without events or ranges, samples of the CPU may still tell what ran; how to
        # record names comes before the remedy of the class.
        sampled, how = "", ""
        if one.is_nameless:
            claims = (finding.claim for finding in analysis.findings)
            values = next((claim.values for claim in claims if claim.code in _SAMPLED), {})
            functions = values.get("functions")
            first = functions[0] if isinstance(functions, tuple) else None
            sampled = f"samples: {words(first)}" if isinstance(first, Fact) else ""
            how = advice(analysis, "host work")
        names = [sampled] if sampled else names
        most = 1 if 2 * culprits[0].idle_ns >= one.idle_ns else _NAMES
        row = WaitedFor(
            CLASSES[one.kind],
            how or (words(Fact(one.remedy)) if one.remedy else ""),
            analysis.mean_ns(one.idle_ns),
            one.idle_ns / analysis.components.idle_ns,
            tuple(names[:most]),
            tuple(tails[: len(names[:most])]),
            culprits[0].gaps if len(culprits) == 1 else None,
            culprits,
        )
        rows.append(row)
    return rows


def waited_for(analysis: Analysis) -> list[WaitedFor]:
    """Return the classes with most idle time, none if idle time hardly matters."""
    if (analysis.components.share("idle") or 0) < WORTH_SHOWING or analysis.on_host:
        return []
    return [row for row in waits(analysis) if row.share >= WORTH_SHOWING]


def pace_sentence(analysis: Analysis) -> str:
    """Return whether the host is too slow for the GPUs, with figures; "" if that is unknown."""
    pace, launches = analysis.host_bound, analysis.launches
    if pace is None or pace.verdict is None:
        return ""
    verdict = _PACES.get(pace.verdict, capitalized(pace.verdict))
    # Although launches are fast enough, the GPU is often idle: a few long gaps must be the reason.
    is_idle = (analysis.components.share("idle") or 0) >= _MUCH_IDLE
    if is_idle and pace.verdict == "not host-bound":
        verdict = _STALLS
    short = ""  # many kernels that are too short to hide a launch
    if launches is not None and pace.is_bound:
        share = launches.total.short_kernels / max(launches.total.kernels, 1)
        if share >= _MANY:
            short = f"; kernels below {duration(launches.short_ns)}: {percent(share)}"
    where = f" ({', '.join(pace.bound_in)})" if pace.bound_in else ""
    return (
        f"{verdict}{where}: GPU idle at {percent(pace.starved_share)} of "
        f"{several(pace.launches, 'launch')}; median lead {duration(pace.lead_median_ns)}, "
        f"floor {duration(pace.floor_ns)}{short}."
    )


def gap_culprits(gaps: Sequence[Gap]) -> list[tuple[str, str]]:
    """Return class and name of the largest culprit; "" of stream waits, which say more."""
    largest = [() if gap.waited_for else gap.culprits[:1] for gap in gaps]
    return [
        (CLASSES[culprit[0].kind], function_name(culprit[0].label)) if culprit else ("", "")
        for culprit in largest
    ]


def length_label(lengths: GapLengths) -> str:
    """Return the range of lengths in words: "10 µs to 100 µs"."""
    units = {ns: unit_for(ns) for ns in (lengths.from_ns, lengths.to_ns)}
    return " to ".join(f"{ns // TIME_UNITS[unit]:,} {unit}" for ns, unit in units.items())
