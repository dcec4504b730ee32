"""A step in disjoint parts that sum to it exactly, and how long it is once a cause is mended.

The parts are those of the waterfall where its peak is one for all devices, else the components;
idle time is split by what the GPUs wait on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from traceflops.attribution.idle_classes import CLASSES
from traceflops.flops.mfu_waterfall import UNSPLIT
from traceflops.reports.view.figures import apportioned
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.wording import component_label

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
_MOST_CULPRITS: Final = 3
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


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of the mean step or window of a device; `name` is its look.

    `short` is its label where room is scarce; `sections` show more of it, the best first.
    """

    name: str
    label: str
    ns: int
    share: float

    @property
    def short(self) -> str:
        """Return its label in few letters."""
        return _SHORT.get(self.name, self.label)

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

    Where a late start may be that of work which was not recorded, that is a part of its own.
    """
    rest = component_label("idle", analysis.total)
    rest = "time between operators" if analysis.on_host else rest
    times = {one.kind: one.idle_ns for one in analysis.idle.by_class()}
    missing_ns = min(times.get(_LATE, 0), analysis.total.idle_causes.unrecorded_ns)
    if missing_ns:
        times |= {_LATE: times[_LATE] - missing_ns, "": missing_ns}
    least_ns = _LEAST * analysis.components.window_ns
    largest = sorted(times, key=lambda kind: -times[kind])[:_MOST_CULPRITS]
    shown = [kind for kind in largest if times[kind] >= least_ns]
    others = analysis.components.idle_ns - sum(times[kind] for kind in shown)
    *parts, rest_ns = apportioned([*(times[kind] for kind in shown), others], idle_ns)
    for kind, ns in zip(shown, parts, strict=True):
        yield (CULPRIT, CLASSES[kind], ns) if kind else ("idle", _MISSING, ns)
    yield "idle", f"other {rest}" if shown and not analysis.on_host else rest, rest_ns


def blamed(parts: Iterable[StepPart], finding: Finding, component: str) -> StepPart | None:
    """Return the part that a finding about a component is of; idle time only by its class."""
    names = {"compute": "inefficiency", "idle": ""}
    kind = CLASSES.get(finding.rule.replace("-", "_"), "")
    name = names.get(component, component)
    return next((part for part in parts if kind and part.label == kind), None) or next(
        (part for part in parts if not kind and part.name == name), None
    )


@dataclass(frozen=True, slots=True)
class StepAfter:
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
