"""A step in disjoint parts that sum to it exactly, and how long it is once a cause is mended.

The parts are those of the waterfall where its peak is one for all devices, else the components;
idle time is split by what the GPUs wait on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.idle_classes import CLASSES
from traceflops.characters import shortened
from traceflops.facts import Value, fact
from traceflops.findings.host_samples import outside_samples
from traceflops.findings.start_up import START_UP
from traceflops.findings.unevenness import UNEVEN_STEPS
from traceflops.flops.mfu_waterfall import UNSPLIT
from traceflops.reports.view.figures import apportioned, kernel_label, percent
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.texts import words
from traceflops.reports.view.wording import component_label
from traceflops.units import capitalized
from traceflops.windows.device_records import launch_calls

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.findings.finding import Finding

CULPRIT: Final = "culprit"
"""The look of idle time of which it is known what it is due to."""
_NO_LOSS: Final = frozenset(
    {"useful", UNSPLIT, "compute", "unattributed", "other", "graph", "start_up"}
)
_LATE: Final = "device_wait"
_MISSING: Final = "no recorded work"
_UNEXPLAINED: Final = "idle for an unknown reason"
_USUAL_CULPRITS, _MOST_CULPRITS = 3, 5
"""More than the usual are told while the rest is larger than the smallest of them."""
_NAME: Final = 40
_COMPUTE: Final = ("inefficiency", "unattributed", "compute", UNSPLIT, "useful")
"""The parts that a finding about compute may be of: what is lost, then what is not known."""
_PARTLY: Final = 10
"""Time before or after the work is told from one part in so many on."""
_MOVES: Final = frozenset({"memcpy", "memset"})
_LEAST: Final = 0.02
"""Share of a step from which a culprit is a part of its own."""
_SHORT: Final = {
    "inefficiency": "slow kernels",
    "unattributed": "FLOPs unknown",
    "communication": "communication",
    "other": "uncategorized",
}
_SECTIONS: Final = {
    "inefficiency": ("kernels", "roofline"),
    "memory": ("kernels", "categories"),
    "graph": ("kernels",),
    "communication": ("communication", "kernels"),
    **dict.fromkeys(("start_up", "idle"), ("idle",)),
    CULPRIT: ("idle",),
}
_OF_COMPUTE: Final = ("attribution", "kernels")


class StepPart(Struct, frozen=True):
    """A part of the mean step or window of a device; `name` is its look.

    `short` is its label where room is scarce; `sections` show more of it, the best first. A part of
    a part has words of its own; `is_told` is what the title is about.
    """

    name: str
    label: str
    ns: int
    share: float
    own: str = ""
    is_told: bool = False

    @property
    def short(self) -> str:
        """Return its label in few letters."""
        return self.own or _SHORT.get(self.name, self.label)

    @property
    def title(self) -> str:
        """Return its label in few letters as it begins a line: names as they are written."""
        return self.own or capitalized(self.short)

    @property
    def sections(self) -> tuple[str, ...]:
        """Return the sections of a report that show it."""
        return _SECTIONS.get(self.name, _OF_COMPUTE)

    @property
    def is_loss(self) -> bool:
        """Return whether it is known to be lost: neither useful nor unknown."""
        return self.name not in _NO_LOSS and self.label != _MISSING


def step_parts(analysis: Analysis) -> tuple[StepPart, ...]:
    """Return the parts that are not 0; their times sum to the mean step, rounded to a ns."""
    step_ns = round(analysis.mean_ns(analysis.components.window_ns))
    amounts = _amounts(analysis)
    times = dict(zip(amounts, apportioned(list(amounts.values()), step_ns), strict=True))
    named = [
        *((name, LINE_LOOKS[name].label, ns) for name, ns in times.items() if name != "idle"),
        *_idle(analysis, times.get("idle", 0)),
    ]
    return tuple(StepPart(*part, part[2] / step_ns) for part in named if part[2])


def _amounts(analysis: Analysis) -> dict[str, int]:
    """Return the lines of the waterfall where they split time, else the components."""
    fall, components = analysis.measured.waterfall, analysis.components
    if fall is None or fall.errors or not components.window_ns:
        return components.parts()
    # Peaks that differ between devices would weigh their time.
    for name in ("idle", "communication"):
        if fall.share(name) != Fraction(components.parts()[name], components.window_ns):
            return components.parts()
    return {line.name: line.amount for line in fall.lines}


def _idle(analysis: Analysis, idle_ns: int) -> Iterator[tuple[str, str, int]]:
    """Yield idle time by what the GPUs wait on, the largest first, and what is left of it.

    Where a late start may be that of work which was not recorded, that is a part of its own, as is
    what nothing explains.
    """
    rest = component_label("idle", analysis.total)
    rest = "time between operators" if analysis.on_host else rest
    times = {one.kind: one.idle_ns for one in analysis.idle.by_class()}
    missing_ns = min(times.get(_LATE, 0), analysis.total.idle_causes.unrecorded_ns)
    if missing_ns:
        times |= {_LATE: times[_LATE] - missing_ns, "": missing_ns}
    labels = CLASSES | {"": _MISSING}
    if times and analysis.total.knows_idle and not analysis.on_host:
        times[_UNEXPLAINED] = analysis.idle.unexplained_ns
        labels |= {_UNEXPLAINED: _UNEXPLAINED}
    least_ns = _LEAST * analysis.components.window_ns
    shown: list[str] = []
    others = analysis.components.idle_ns
    for kind in sorted(times, key=lambda kind: -times[kind])[:_MOST_CULPRITS]:
        if times[kind] < least_ns or (len(shown) >= _USUAL_CULPRITS and others < times[shown[-1]]):
            break
        shown.append(kind)
        others -= times[kind]
    *parts, rest_ns = apportioned([*(times[kind] for kind in shown), others], idle_ns)
    for kind, ns in zip(shown, parts, strict=True):
        yield (CULPRIT if kind in CLASSES else "idle", labels[kind], ns)
    yield "idle", f"other {rest}" if shown and not analysis.on_host else rest, rest_ns


def told_parts(analysis: Analysis, finding: Finding | None, component: str) -> tuple[StepPart, ...]:
    """Return the parts of a step; those that the title is about are told.

    That is a finding about a component, None where the largest loss is the title. Where it is about
    less than a part, that is a part of its own, in the words and with the share of the finding.
    """
    parts = step_parts(analysis)
    if finding is None:
        loss = analysis.verdict.loss
        names = (loss, CULPRIT) if loss == "idle" else (loss,)
        return tuple(
            replace(part, is_told=part.name in names and part.label != _MISSING) for part in parts
        )
    told = _told(parts, finding, component)
    if told is None:
        return parts
    at = parts.index(told)
    return (*parts[:at], *_split(analysis, told, finding), *parts[at + 1 :])


def _told(parts: Sequence[StepPart], finding: Finding, component: str) -> StepPart | None:
    """Return the part that a finding about a component is of; idle time only by its class."""
    if (kind := finding.rule.replace("-", "_")) in CLASSES:
        labels = (CLASSES[kind], *((_MISSING,) if kind == _LATE else ()))
        return next((part for part in parts if part.label in labels), None)
    names = _COMPUTE if component == "compute" else (component,) * (component != "idle")
    found = [part for part in parts if part.name in names]
    enough = (part for part in found if part.share >= finding.share)
    return next(enough, None) or max(found, key=lambda part: part.share, default=None)


def _split(analysis: Analysis, part: StepPart, finding: Finding) -> Iterator[StepPart]:
    """Yield the part of a part that a finding is about, then the rest; all of it in one."""
    name = _kernel(analysis, finding)
    is_all = finding.rule == UNEVEN_STEPS or percent(finding.share) == percent(part.share)
    own_ns = round(part.ns * finding.share / part.share)
    if is_all or own_ns >= part.ns:
        yield replace(part, own="" if part.name in ("idle", CULPRIT) else name, is_told=True)
        return
    own = name or words(finding.name)
    yield replace(part, ns=own_ns, share=finding.share, own=own, is_told=True)
    rest = part.share - finding.share
    yield replace(part, ns=part.ns - own_ns, share=rest, own=f"Other {part.short}")


def _kernel(analysis: Analysis, finding: Finding) -> str:
    """Return the one kernel or kind of copies that has all the time of a finding, "" for none."""
    shares = [row.time_ns / analysis.components.window_ns for row in finding.rows]
    is_one = [*map(percent, shares)] == [percent(finding.share)]
    return kernel_label(finding.rows[0].name, _NAME) if is_one else ""


class StepAfter(Struct, frozen=True):
    """The length of a step now, and the bounds of that once a cause is mended."""

    now_ns: int
    least_ns: int
    most_ns: int


def step_after(analysis: Analysis, finding: Finding) -> StepAfter | None:
    """Return what mending one cause makes of a step, None where its gain is unknown."""
    gain = finding.gain
    now_ns = round(analysis.mean_ns(analysis.components.window_ns))
    if gain is None or gain.high_ns <= 0 or not now_ns:
        return None
    least, most = (max(now_ns - max(ns, 0), 0) for ns in (gain.high_ns, gain.low_ns))
    return StepAfter(now_ns, least, most)


def outside(analysis: Analysis) -> str:
    """Return what is recorded and in no figure: before and after the GPU's work, in no used step.

    It is "" if that is little.
    """
    rest = analysis.outside
    if rest is None:
        return ""
    share = rest.before_ns / rest.recorded_ns if begins_late(analysis) else None
    work, total_ns = "operator" if analysis.on_host else "GPU operation", rest.ns
    parts: list[tuple[str, int, dict[str, Value]]] = [
        ("before", rest.before_ns, {"work": work, "share": share}),
        ("after", rest.after_ns, {"work": None if _PARTLY * rest.before_ns >= total_ns else work}),
        (
            "unused",
            rest.unused_ns,
            {"once_ns": rest.once_ns if 2 * rest.once_ns >= rest.unused_ns else None},
        ),
    ]
    *first, last = (
        fact(f"outside.{code}", **{f"{code}_ns": ns} | more)
        for code, ns, more in parts
        if _PARTLY * ns >= total_ns
    )
    call = shortened(rest.call, _NAME) if 2 * rest.call_ns >= total_ns else None
    values: dict[str, Value] = {
        "recorded_ns": rest.recorded_ns,
        "first": tuple(first) or None,
        "last": last,
    }
    return words(fact("outside.claim", **values, call=call))


def begins_late(analysis: Analysis) -> bool:
    """Return whether most of a recording without steps is over before the first GPU operation.

    Then that is said first.
    """
    rest = analysis.outside
    is_most = rest is not None and 2 * rest.before_ns > rest.recorded_ns
    return is_most and not (analysis.on_host or analysis.steps.used)


def scope(analysis: Analysis) -> list[str]:
    """Return what the reader must know of the figures: no kernel, or little of the recording.

    Also what start-up is left out, where that is not said first.
    """
    kinds = {kind for device in analysis.devices for kind in device.whole.kinds}
    is_whole = analysis.recorded == "complete" and bool(kinds)
    launches = launch_calls(analysis.prepared.trace) if analysis.prepared is not None else 0
    code = "scope.no-kernel-of-launches" if launches else "scope.no-kernel"
    said = [words(fact(code, launches=launches))] if is_whole and kinds <= _MOVES else []
    starts = [one for one in analysis.findings[1:] if one.rule == START_UP]
    said += [words(one.claim) for one in starts if analysis.steps.after_start_up]
    rest = analysis.outside
    if rest is not None and rest.is_most:
        said += [] if begins_late(analysis) else [outside(analysis)]
        samples = outside_samples(analysis)
        said += [words(samples)] if samples is not None and not rest.unused_ns else []
    return said
