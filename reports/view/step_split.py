"""The parts of a mean step, which are disjoint and sum to it exactly, and what the step leaves out.

The parts are the lines of the MFU waterfall if all devices have the same peak, else the components;
idle time is split by what the GPUs wait on.
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
from traceflops.facts import Fact, fact
from traceflops.findings.finding import Finding
from traceflops.findings.host_samples import outside_samples
from traceflops.findings.little_work import UPLOADS_ALONE
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
_USUAL_CLASSES, _MOST_CLASSES = 3, 5
"""More classes of idle time than usual are shown while the others sum to more than the smallest."""
_LEAST: Final = 0.02  # share of the window from which a class of idle time is a part of its own
_NAME: Final = 40
_COMPUTE: Final = ("inefficiency", "unattributed", "compute", UNSPLIT, "useful")
"""Parts that may contain the time of a finding on compute: known losses first."""
_PARTLY: Final = 10
"""One in so many: time outside the figures is only mentioned if it is at least 1/10 of all that."""
_NEARLY_ALL: Final = 0.8
"""Share of a recording: if so much is left out, that comes before the figures of the rest."""
_MOVES: Final = frozenset({"memcpy", "memset"})
_SHORT: Final = {
    "inefficiency": "slow kernels",
    "unattributed": "FLOPs unknown",
    "communication": "communication",
    "other": "uncategorized",
}
"""Labels of parts where room is scarce."""
_SECTIONS: Final = {
    "inefficiency": ("kernels", "roofline"),
    "memory": ("kernels", "categories"),
    "graph": ("kernels",),
    "communication": ("communication", "kernels"),
    **dict.fromkeys(("start_up", "idle"), ("idle",)),
    CULPRIT: ("idle",),
}
"""Sections of a report that show more of a part; _OF_COMPUTE for the others."""
_OF_COMPUTE: Final = ("attribution", "kernels")


class StepPart(Struct, frozen=True):
    """A part of the mean step of a device.

    `name` is the key of its look (colour, texture); `own` is its label if it is only some of what
    `label` says; `is_told` if the title of the report is about it.
    """

    name: str
    label: str
    ns: int
    share: float
    own: str = ""
    is_told: bool = False

    @property
    def short(self) -> str:
        """The label where room is scarce."""
        return self.own or _SHORT.get(self.name, self.label)

    @property
    def title(self) -> str:
        """The short label at the beginning of a line; a kernel's name keeps its first letter."""
        return self.own if self.own and self.is_told else capitalized(self.short)

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections of a report that show more of the part, the best first."""
        return _SECTIONS.get(self.name, _OF_COMPUTE)

    @property
    def is_loss(self) -> bool:
        """Whether the time of the part is known to be lost: neither useful nor unknown."""
        return self.name not in _NO_LOSS and self.label != _MISSING


def step_parts(analysis: Analysis) -> tuple[StepPart, ...]:
    """Return the parts that are not 0; their times in ns sum to the mean step."""
    step_ns = round(analysis.mean_ns(analysis.components.window_ns))
    amounts = _amounts(analysis)
    times_ns = dict(zip(amounts, apportioned(list(amounts.values()), step_ns), strict=True))
    split = [
        *((name, LINE_LOOKS[name].label, ns) for name, ns in times_ns.items() if name != "idle"),
        *_idle(analysis, times_ns.get("idle", 0)),
    ]
    # Launches during which the GPU stood still are listed apart from slow kernels.
    standstill = next((f for f in analysis.findings if f.rule == STANDSTILL), None)
    still_ns = 0 if standstill is None else round(analysis.mean_ns(standstill.rows[0].time_ns))
    parts = []
    for name, label, ns in split:
        own = "dispatch, uncategorized" if name == "other" and analysis.on_host else ""
        if name == "inefficiency" and 0 < still_ns < ns:
            text = words(fact("standstill.part"))
            parts.append(StepPart(name, label, still_ns, still_ns / step_ns, text))
            ns -= still_ns
        if ns:
            parts.append(StepPart(name, label, ns, ns / step_ns, own))
    return tuple(parts)


def _amounts(analysis: Analysis) -> dict[str, int]:
    """Return amounts in proportion to time, by line of the waterfall if possible, else component.

    Amounts of the waterfall are FLOPs at peak: they are in proportion to time if no line is below 0
    (`errors`) and all devices have the same peak. Otherwise a faster device weighs more, and idle
    time and communication have other shares than by time.
    """
    fall, components = analysis.measured.waterfall, analysis.components
    times_ns = components.parts()
    if fall is None or fall.errors or not components.window_ns:
        return times_ns
    for name in ("idle", "communication"):
        if fall.share(name) != Fraction(times_ns[name], components.window_ns):
            return times_ns
    return {line.name: line.amount for line in fall.lines}


def _idle(analysis: Analysis, idle_ns: int) -> Iterator[tuple[str, str, int]]:
    """Yield the parts of idle time as (look, label, ns), largest first; they sum to `idle_ns`."""
    on_host, total = analysis.on_host, analysis.total
    all_ns = {row.kind: row.idle_ns for row in analysis.idle.by_class()}  # over all windows
    # Work that started late may have waited for work that was not recorded.
    missing_ns = min(all_ns.get(_LATE, 0), total.idle_causes.unrecorded_ns)
    if missing_ns:
        all_ns |= {_LATE: all_ns[_LATE] - missing_ns, _MISSING: missing_ns}
    # Without any class, "unexplained" would say no more than "idle".
    if all_ns and total.knows_idle and not on_host:
        all_ns[_UNEXPLAINED] = analysis.idle.unexplained_ns

    # Choose the largest classes; `others_ns` is the time of all that are not shown.
    shown: list[str] = []
    others_ns = analysis.components.idle_ns
    for kind in sorted(all_ns, key=lambda kind: -all_ns[kind])[:_MOST_CLASSES]:
        is_enough = len(shown) >= _USUAL_CLASSES and others_ns < all_ns[shown[-1]]
        if is_enough or all_ns[kind] < _LEAST * analysis.components.window_ns:
            break
        shown.append(kind)
        others_ns -= all_ns[kind]

    # Print them in proportion.
    *parts_ns, rest_ns = apportioned([*(all_ns[kind] for kind in shown), others_ns], idle_ns)
    for kind, ns in zip(shown, parts_ns, strict=True):
        yield (CULPRIT if kind in CLASSES else "idle", CLASSES.get(kind, kind), ns)
    if on_host:
        yield "idle", "time between operators", rest_ns
    else:
        label = component_label("idle", total)
        yield "idle", f"other {label}" if shown else label, rest_ns


def told_parts(analysis: Analysis, finding: Finding | None, component: str) -> tuple[StepPart, ...]:
    """Return the parts of a step, with `is_told` set for those that the title is about.

    The title is about `finding`, in time of `component`; None: about the largest loss. If a finding
    is about less than a part, the part is split into the finding's share and the rest.
    """
    parts = step_parts(analysis)
    if finding is None:
        loss = analysis.verdict.loss
        # A loss of idle time is all idle time but what may be missing work.
        names = (loss, CULPRIT) if loss == "idle" else (loss,)
        return tuple(
            replace(part, is_told=part.name in names and part.label != _MISSING) for part in parts
        )
    claimed = finding.claim.values.get("parts")
    if finding.claim.code == "launching.claim" and isinstance(claimed, tuple):
        # It is about several classes of idle time.
        kinds = {part.values["kind"] for part in claimed if isinstance(part, Fact)}
        return tuple(replace(part, is_told=part.label in kinds) for part in parts)
    told = _part_of_finding(parts, finding, component)
    if told is None:
        return parts
    place = parts.index(told)
    return (*parts[:place], *_split(analysis, told, finding), *parts[place + 1 :])


def _part_of_finding(
    parts: Sequence[StepPart], finding: Finding, component: str
) -> StepPart | None:
    """Return the part that a finding is about: the first large enough, else the largest, or None.

    Only parts of the component are considered, or of the class of idle time that the rule is for.
    """
    kind = finding.rule.replace("-", "_")
    if kind in CLASSES:
        # `_idle` may have moved all time of late starts to missing work.
        labels = (CLASSES[kind], _MISSING) if kind == _LATE else (CLASSES[kind],)
        return next((part for part in parts if part.label in labels), None)
    if component == "idle":  # a rule that is for no class of idle time
        return None
    names = _COMPUTE if component == "compute" else (component,)
    candidates = [part for part in parts if part.name in names]
    large_enough = (part for part in candidates if part.share >= finding.share)
    return next(large_enough, None) or max(candidates, key=lambda part: part.share, default=None)


def _split(analysis: Analysis, part: StepPart, finding: Finding) -> Iterator[StepPart]:
    """Yield the share of a part that a finding is about, then the rest of the part, if any."""
    # If a single row has all the time of the finding, its name is the label.
    shares = [percent(row.time_ns / analysis.components.window_ns) for row in finding.rows]
    is_single = shares == [percent(finding.share)]
    name = kernel_label(finding.rows[0].name, _NAME) if is_single else ""
    # A finding on uneven steps has no share of the mean step. If two shares are printed alike, the
    # rest would be printed as 0 %.
    is_all = finding.rule == UNEVEN_STEPS or percent(finding.share) == percent(part.share)
    own_ns = round(part.ns * finding.share / part.share)
    if is_all or own_ns >= part.ns:
        is_idle = part.name in ("idle", CULPRIT)  # labelled by its class
        yield replace(part, own="" if is_idle else name, is_told=True)
        return
    own = name or words(finding.name)
    yield replace(part, ns=own_ns, share=finding.share, own=own, is_told=True)
    rest_share = part.share - finding.share
    yield replace(part, ns=part.ns - own_ns, share=rest_share, own=f"Other {part.short}")


def outside(analysis: Analysis) -> str:
    """Return a sentence on the recorded time that is in no figure, "" if there is little.

    That is time before and after the GPU work and in unused steps. Start-up in unused steps, and a
    call or annotation outside the work, are named if they are at least half of that time; a call
    from 1/10 on, with its time.
    """
    rest = analysis.outside
    if rest is None:
        return ""
    facts = []
    work: str | None = "operator" if analysis.on_host else "GPU operation"
    if _PARTLY * rest.before_ns >= rest.ns:
        share = _share_if_most(analysis, rest.before_ns)
        facts.append(fact("outside.before", before_ns=rest.before_ns, work=work, share=share))
        work = None  # a second part does not repeat the noun
    if _PARTLY * rest.after_ns >= rest.ns:
        share = _share_if_most(analysis, rest.after_ns)
        facts.append(fact("outside.after", after_ns=rest.after_ns, work=work, share=share))
    if _PARTLY * rest.unused_ns >= rest.ns:
        once_ns = rest.once_ns if 2 * rest.once_ns >= rest.unused_ns else None
        facts.append(fact("outside.unused", unused_ns=rest.unused_ns, once_ns=once_ns))
    call = shortened(rest.call, _NAME)
    is_call_half = 2 * rest.call_ns >= rest.ns
    is_call_large = _PARTLY * rest.call_ns >= rest.ns
    is_loading = is_call_large and LOADS_DATA.search(rest.call) and not analysis.steps.used
    return words(
        fact(
            "outside.claim",
            recorded_ns=rest.recorded_ns,
            first=tuple(facts[:-1]) or None,
            last=facts[-1],  # there is one: the largest of the three parts has at least 1/3
            call=call if is_call_half else None,
            some=call if is_call_large and not is_call_half else None,
            some_ns=rest.call_ns,
            loads=fact("outside.loads") if is_loading else None,
        )
    )


def _share_if_most(analysis: Analysis, part_ns: int) -> float | None:
    """Return a part as a share of a recording without steps, None if it is less than half."""
    rest = analysis.outside
    if rest is None or analysis.on_host or analysis.steps.used:
        return None
    return part_ns / rest.recorded_ns if 2 * part_ns > rest.recorded_ns else None


def is_mostly_outside(analysis: Analysis) -> bool:
    """Return whether GPU work is a small part of a recording without steps: then that leads."""
    rest = analysis.outside
    if rest is None or analysis.on_host or analysis.steps.used:
        return False
    return rest.before_ns + rest.after_ns >= _NEARLY_ALL * rest.recorded_ns


def scope(analysis: Analysis) -> list[str]:
    """Return sentences on what the figures leave out: kernels, start-up, most of a recording."""
    sentences = []
    kinds = {kind for device in analysis.devices for kind in device.whole.kinds}
    # Although no record seems to be missing, there are only copies and fills.
    is_told = any(part.code == UPLOADS_ALONE for part in analysis.verdict.parts)
    if analysis.recorded == "complete" and kinds and kinds <= _MOVES and not is_told:
        launches = launch_calls(analysis.prepared.trace)
        code = "scope.no-kernel-of-launches" if launches else "scope.no-kernel"
        sentences.append(words(fact(code, launches=launches)))
    # The title already states the first finding.
    starts = [finding.claim for finding in analysis.findings[1:] if finding.rule == START_UP]
    if analysis.steps.after_start_up or any(claim.values.get("kernels_ns") for claim in starts):
        sentences += map(words, starts)
    rest = analysis.outside
    if rest is not None and rest.is_most:
        if not is_mostly_outside(analysis):  # else the report begins with that sentence
            sentences.append(outside(analysis))
        samples = outside_samples(analysis)
        # Samples are of the time before and after the work, not of unused steps.
        if samples is not None and not rest.unused_ns:
            sentences.append(words(samples))
    return sentences
