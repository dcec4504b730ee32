"""What the GPUs wait on: idle time by class of culprit and length of gap; the lead of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from traceflops.attribution.culprits import Culprit, IdleClass
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import GapLengths
from traceflops.characters import function_name
from traceflops.facts import Fact
from traceflops.remedies import advice
from traceflops.reports.view.figures import TIME_UNITS, duration, percent, unit_for
from traceflops.reports.view.texts import words
from traceflops.units import capitalized, several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceflops.analysis.result import Analysis
    from traceflops.timeline.records import Gap

WORTH_SHOWING: Final = 0.03
"""Share of the idle time from which a class is shown, and of the window from which any is."""
_ROOM: Final = 31
"""The most characters of two names around idle time."""
_NAMES: Final = 2
_MANY: Final = 0.5
_PACES: Final = {"looming": "Nearly host-bound"}
_STALLS: Final = "A few stalls aside, launches keep up"
_MUCH_IDLE: Final = 0.05
_SAMPLED: Final = ("host-unrecorded.claim-sampled", "host-unrecorded.claim-off-cpu")


class WaitedFor(Struct, frozen=True):
    """Idle time of one class of culprits; `share` is of all idle time, `names` the largest.

    `tails` say the time of each of these, or the gaps of the only one.

    `mean_ns` is per step or other window, `gaps` is how many there are, None where several names
    may share some.
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
    """Return what the GPUs wait on by class, the largest first."""
    return [_row(one, analysis) for one in analysis.idle.by_class()]


def waited_for(analysis: Analysis) -> list[WaitedFor]:
    """Return what the GPUs mostly wait on; nothing where idle time hardly matters."""
    if (analysis.components.share("idle") or 0) < WORTH_SHOWING or analysis.on_host:
        return []
    return [row for row in waits(analysis) if row.share >= WORTH_SHOWING]


def _row(one: IdleClass, analysis: Analysis) -> WaitedFor:
    """Return the row of one class of idle time, with the names of its largest culprits."""
    culprits = one.culprits
    sampled = _sampled(analysis) if one.is_nameless else ""
    named = [sampled] if sampled else [*map(_name, culprits)]
    names = named[:1] if 2 * culprits[0].idle_ns >= one.idle_ns else named[:_NAMES]
    how = advice(analysis, "host work") if one.is_nameless else ""
    return WaitedFor(
        CLASSES[one.kind],
        how or (words(Fact(one.remedy)) if one.remedy else ""),
        analysis.mean_ns(one.idle_ns),
        one.idle_ns / analysis.components.idle_ns,
        tuple(names),
        tuple(_tails(one, analysis))[: len(names)],
        culprits[0].gaps if len(culprits) == 1 else None,
        culprits,
    )


def _sampled(analysis: Analysis) -> str:
    """Return where the CPU was sampled most while nothing else of the host is recorded."""
    claims = (finding.claim for finding in analysis.findings)
    told = next((one.values for one in claims if one.code in _SAMPLED), {})
    functions = told.get("functions")
    first = functions[0] if isinstance(functions, tuple) else None
    return f"samples: {words(first)}" if isinstance(first, Fact) else ""


def _tails(one: IdleClass, analysis: Analysis) -> Iterator[str]:
    if len(one.culprits) == 1:
        yield f", {several(one.culprits[0].gaps, 'gap')}"
    for culprit in one.culprits:
        yield f" {duration(analysis.mean_ns(culprit.idle_ns))}"


def _name(culprit: Culprit) -> str:
    """Return the name of a culprit; of one without, what is around its longest part.

    Where that is the same on both sides, its length says more. Of two names that have no room the
    first stays whole.
    """
    if culprit.label:
        return function_name(culprit.label)
    before, _, after = culprit.evidence[0].removeprefix("between ").partition(" and ")
    if before == after:
        return f"longest {duration(culprit.longest_ns)}"
    both = culprit.evidence[0]
    return f"longest {both if len(both) <= _ROOM else f'after {before}'}"


def pace_sentence(analysis: Analysis) -> str:
    """Return whether the host is too slow for the GPUs, and by what that is known."""
    pace = analysis.host_bound
    if pace is None or pace.verdict is None:
        return ""
    words = _PACES.get(pace.verdict, capitalized(pace.verdict))
    is_idle = (analysis.components.share("idle") or 0) >= _MUCH_IDLE
    words = _STALLS if is_idle and pace.verdict == "not host-bound" else words
    where = f" ({', '.join(pace.bound_in)})" if pace.bound_in else ""
    return (
        f"{words}{where}: GPU idle at {percent(pace.starved_share)} of "
        f"{several(pace.launches, 'launch')}; median lead {duration(pace.lead_median_ns)}, "
        f"floor {duration(pace.floor_ns)}"
        f"{_short_kernels(analysis)}."
    )


def _short_kernels(analysis: Analysis) -> str:
    """Return how many kernels are too short to hide a launch, where that holds the GPU back."""
    assert analysis.host_bound is not None
    launches = analysis.launches
    if launches is None or not analysis.host_bound.is_bound:
        return ""
    share = launches.total.short_kernels / max(launches.total.kernels, 1)
    shown = f"; kernels below {duration(launches.short_ns)}: {percent(share)}"
    return shown if share >= _MANY else ""


def gap_culprits(gaps: Sequence[Gap]) -> list[tuple[str, str]]:
    """Return what the GPU waits on in each gap, and its name; "" where that is not known.

    Where a stream wait is known, the work that it waited for says more.
    """
    found = [() if gap.waited_for else gap.culprits[:1] for gap in gaps]
    return [
        (CLASSES[most[0].kind], function_name(most[0].label)) if most else ("", "")
        for most in found
    ]


def length_label(lengths: GapLengths) -> str:
    """Return the lengths of a decade in words."""
    return f"{_whole(lengths.from_ns)} to {_whole(lengths.to_ns)}"


def _whole(ns: int) -> str:
    unit = unit_for(ns)
    return f"{ns // TIME_UNITS[unit]:,} {unit}"
