"""A step in disjoint parts that sum to it exactly, and how long it is once a cause is mended.

The parts are those of the waterfall if all devices have the same peak, else the components; idle
time is split by what the GPUs wait on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.attribution.idle_classes import CLASSES
from traceflops.characters import shortened
from traceflops.facts import fact
from traceflops.findings.finding import Finding
from traceflops.findings.host_samples import outside_samples
from traceflops.findings.standstill import STANDSTILL
from traceflops.findings.start_up import START_UP
from traceflops.findings.unevenness import UNEVEN_STEPS
from traceflops.flops.mfu_waterfall import UNSPLIT
from traceflops.reports.view.figures import apportioned, kernel_label, percent
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.texts import words
from traceflops.reports.view.wording import component_label
from traceflops.table.patterns import LOADS_DATA
from traceflops.units import capitalized
from traceflops.windows.device_records import launch_calls

CULPRIT: Final = "culprit"  # the look of idle time with a known cause
_NO_LOSS: Final = frozenset(
    {"useful", UNSPLIT, "compute", "unattributed", "other", "graph", "start_up"}
)
_LATE: Final = "device_wait"  # the class of idle time before work that was queued but started late
_MISSING: Final = "no recorded work"
_UNEXPLAINED: Final = "idle for an unknown reason"
_USUAL_CULPRITS, _MOST_CULPRITS = 3, 5
"""More than the usual ones are shown while the rest is larger than the smallest of them."""
_NAME: Final = 40
_COMPUTE: Final = ("inefficiency", "unattributed", "compute", UNSPLIT, "useful")
"""The parts that a finding about compute may be of: what is lost, then what is not known."""
_PARTLY: Final = 10
"""Time before or after the work is told if it is at least this fraction (1/10) of it all."""
_NEARLY_ALL: Final = 0.8
"""Of a recording: so much that is left out says more than the figures of the rest."""
_MOVES: Final = frozenset({"memcpy", "memset"})
_LEAST: Final = 0.02  # share of a step from which a culprit is a part of its own
_SHORT: Final = {
    "inefficiency": "slow kernels",
    "unattributed": "FLOPs unknown",
    "communication": "communication",
    "other": "uncategorized",
}
_OTHER_OPERATORS: Final = "dispatch, uncategorized"
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
    """A part of the mean step of a device; `own` labels a part of a part, `name` is its look."""

    name: str
    label: str
    ns: int
    share: float
    own: str = ""
    is_told: bool = False

    @property
    def short(self) -> str:
        """Return its label where room is scarce."""
        return self.own or _SHORT.get(self.name, self.label)

    @property
    def title(self) -> str:
        """Return its short label at the beginning of a line; one that is told may be a name."""
        return self.own if self.own and self.is_told else capitalized(self.short)

    @property
    def sections(self) -> tuple[str, ...]:
        """Return the sections of a report that show more of it, the best first."""
        return _SECTIONS.get(self.name, _OF_COMPUTE)

    @property
    def is_loss(self) -> bool:
        """Return whether it is known to be lost: neither useful nor unknown."""
        return self.name not in _NO_LOSS and self.label != _MISSING


def step_parts(analysis: Analysis) -> tuple[StepPart, ...]:
    """Return the parts that are not 0; their times in ns sum to the mean step."""
    step_ns = round(analysis.mean_ns(analysis.components.window_ns))
    amounts = _amounts(analysis)
    times = dict(zip(amounts, apportioned(list(amounts.values()), step_ns), strict=True))
    named = [
        *((name, LINE_LOOKS[name].label, ns) for name, ns in times.items() if name != "idle"),
        *_idle(analysis, times.get("idle", 0)),
    ]
    own = {"other": _OTHER_OPERATORS} if analysis.on_host else {}
    # Launches in which the GPU stood still are a part apart from slow kernels.
    still = next((one for one in analysis.findings if one.rule == STANDSTILL), None)
    stalled_ns = 0 if still is None else round(analysis.mean_ns(still.rows[0].time_ns))
    parts = []
    for name, label, ns in named:
        if name == "inefficiency" and 0 < stalled_ns < ns:
            text = words(fact("standstill.part"))
            parts.append(StepPart(name, label, stalled_ns, stalled_ns / step_ns, text))
            ns -= stalled_ns
        if ns:
            parts.append(StepPart(name, label, ns, ns / step_ns, own.get(name, "")))
    return tuple(parts)


def _amounts(analysis: Analysis) -> dict[str, int]:
    """Return the lines of the waterfall if their shares are shares of time, else the components."""
    fall, components = analysis.measured.waterfall, analysis.components
    # A line below 0 (`errors`) cannot be a share of time.
    if fall is None or fall.errors or not components.window_ns:
        return components.parts()
    # If devices have different peaks, the time of a faster one weighs more in the waterfall.
    for name in ("idle", "communication"):
        if fall.share(name) != Fraction(components.parts()[name], components.window_ns):
            return components.parts()
    return {line.name: line.amount for line in fall.lines}


def _idle(analysis: Analysis, idle_ns: int) -> Iterator[tuple[str, str, int]]:
    """Yield the parts of idle time as (look, label, ns), the largest first; sum is `idle_ns`."""
    on_host, idle = analysis.on_host, analysis.idle
    # By class of culprits, in ns of all windows.
    times = {one.kind: one.idle_ns for one in idle.by_class()}
    # What started late may have waited for work that was not recorded.
    missing_ns = min(times.get(_LATE, 0), analysis.total.idle_causes.unrecorded_ns)
    if missing_ns:
        times |= {_LATE: times[_LATE] - missing_ns, _MISSING: missing_ns}
    # Without culprits "unexplained" would tell nothing; a CPU has another word, see `rest`.
    if times and analysis.total.knows_idle and not on_host:
        times[_UNEXPLAINED] = idle.unexplained_ns
    # The largest that matter; `others_ns` is all that is not shown.
    least_ns = _LEAST * analysis.components.window_ns
    shown: list[str] = []
    others_ns = analysis.components.idle_ns
    for kind in sorted(times, key=lambda kind: -times[kind])[:_MOST_CULPRITS]:
        # The rest may not be larger than a part that is shown, unless _MOST_CULPRITS are.
        is_enough = len(shown) >= _USUAL_CULPRITS and others_ns < times[shown[-1]]
        if times[kind] < least_ns or is_enough:
            break
        shown.append(kind)
        others_ns -= times[kind]
    *parts, rest_ns = apportioned([*(times[kind] for kind in shown), others_ns], idle_ns)
    for kind, ns in zip(shown, parts, strict=True):
        yield (CULPRIT if kind in CLASSES else "idle", CLASSES.get(kind, kind), ns)
    rest = "time between operators" if on_host else component_label("idle", analysis.total)
    yield "idle", f"other {rest}" if shown and not on_host else rest, rest_ns


def told_parts(analysis: Analysis, finding: Finding | None, component: str) -> tuple[StepPart, ...]:
    """Return the parts of a step, with `is_told` set for those that the title is about.

    None is the largest loss. A finding on less than a part makes two: its own share, and the rest.
    """
    parts = step_parts(analysis)
    if finding is None:
        loss = analysis.verdict.loss
        # Idle time of any class, but not what may be missing work: that is no loss.
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
    """Return the first part of a component that can hold a finding, else its largest, or None."""
    if (kind := finding.rule.replace("-", "_")) in CLASSES:  # the rule of a class of idle time
        # Work that started late may have waited for missing work: `_idle` makes that another part.
        labels = (CLASSES[kind], _MISSING) if kind == _LATE else (CLASSES[kind],)
        return next((part for part in parts if part.label in labels), None)
    if component == "idle":  # of which class is not known
        return None
    names = _COMPUTE if component == "compute" else (component,)
    found = [part for part in parts if part.name in names]
    enough = (part for part in found if part.share >= finding.share)
    return next(enough, None) or max(found, key=lambda part: part.share, default=None)


def _split(analysis: Analysis, part: StepPart, finding: Finding) -> Iterator[StepPart]:
    """Yield what of a part a finding is about, and the rest; only one if that is all of it."""
    # The name of the only row, if it has all the time of the finding.
    shares = [percent(row.time_ns / analysis.components.window_ns) for row in finding.rows]
    is_single = shares == [percent(finding.share)]
    name = kernel_label(finding.rows[0].name, _NAME) if is_single else ""
    # Uneven steps are about how much longer some are, which is no share of the mean step. Shares
    # that are printed alike are one: a rest would be printed as 0 %.
    is_all = finding.rule == UNEVEN_STEPS or percent(finding.share) == percent(part.share)
    own_ns = round(part.ns * finding.share / part.share)
    if is_all or own_ns >= part.ns:
        is_idle = part.name in ("idle", CULPRIT)  # which keeps its class as label
        yield replace(part, own="" if is_idle else name, is_told=True)
        return
    own = name or words(finding.name)
    yield replace(part, ns=own_ns, share=finding.share, own=own, is_told=True)
    rest = part.share - finding.share
    yield replace(part, ns=part.ns - own_ns, share=rest, own=f"Other {part.short}")


def outside(analysis: Analysis) -> str:
    """Return which recorded time is in no figure, "" if little: around GPU work, in unused steps.

    Start-up in unused steps is named if it is at least half of them, and so is a call or annotation
    before or after the work; with its time if that is a large part.
    """
    rest = analysis.outside
    if rest is None:
        return ""
    facts = []
    work: str | None = "operator" if analysis.on_host else "GPU operation"
    if _PARTLY * rest.before_ns >= rest.ns:
        share = _share_before(analysis)
        facts.append(fact("outside.before", before_ns=rest.before_ns, work=work, share=share))
        work = None  # said once
    if _PARTLY * rest.after_ns >= rest.ns:
        facts.append(fact("outside.after", after_ns=rest.after_ns, work=work))
    if _PARTLY * rest.unused_ns >= rest.ns:
        once_ns = rest.once_ns if 2 * rest.once_ns >= rest.unused_ns else None
        facts.append(fact("outside.unused", unused_ns=rest.unused_ns, once_ns=once_ns))
    call = shortened(rest.call, _NAME)
    is_loading = _PARTLY * rest.call_ns >= rest.ns and LOADS_DATA.search(rest.call)
    return words(
        fact(
            "outside.claim",
            recorded_ns=rest.recorded_ns,
            first=tuple(facts[:-1]) or None,
            last=facts[-1],  # one of three has at least a third
            call=call if 2 * rest.call_ns >= rest.ns else None,
            some=call if _PARTLY * rest.call_ns >= rest.ns > 2 * rest.call_ns else None,
            some_ns=rest.call_ns,
            loads=fact("outside.loads") if is_loading and not analysis.steps.used else None,
        )
    )


def _share_before(analysis: Analysis) -> float | None:
    """Return the share of a recording without steps before GPU work, if that is most of it."""
    rest = analysis.outside
    if rest is None or analysis.on_host or analysis.steps.used:
        return None
    return rest.before_ns / rest.recorded_ns if 2 * rest.before_ns > rest.recorded_ns else None


def begins_late(analysis: Analysis) -> bool:
    """Return whether nearly all of a recording without steps is before GPU work: then it leads."""
    return (_share_before(analysis) or 0) >= _NEARLY_ALL


def scope(analysis: Analysis) -> list[str]:
    """Return sentences on what the figures leave out: kernels, start-up, most of a recording."""
    sentences = []
    kinds = {kind for device in analysis.devices for kind in device.whole.kinds}
    # Nothing but copies and fills, although no record is missing: is there no kernel at all?
    if analysis.recorded == "complete" and kinds and kinds <= _MOVES:
        launches = launch_calls(analysis.prepared.trace) if analysis.prepared is not None else 0
        code = "scope.no-kernel-of-launches" if launches else "scope.no-kernel"
        sentences.append(words(fact(code, launches=launches)))
    if analysis.steps.after_start_up:
        # The first finding is the title, which says it already.
        starts = [finding for finding in analysis.findings[1:] if finding.rule == START_UP]
        sentences += [words(finding.claim) for finding in starts]
    rest = analysis.outside
    if rest is not None and rest.is_most:
        sentences += [] if begins_late(analysis) else [outside(analysis)]  # else said first
        samples = outside_samples(analysis)
        # Samples are of the time before and after the work, not of unused steps.
        sentences += [words(samples)] if samples is not None and not rest.unused_ns else []
    return sentences
