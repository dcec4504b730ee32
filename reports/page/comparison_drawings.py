"""The drawings of a comparison: bars on one scale, their steps as dots, and the waterfall.

Places and widths are in percent of a drawing, so that it fits a page of any width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil
from statistics import median
from typing import Any, Final

from traceflops.attribution.idle_classes import CLASSES
from traceflops.comparison.difference import Cause, rounded, tell_culprits
from traceflops.comparison.result import Comparison
from traceflops.comparison.side import Side
from traceflops.comparison.spread import Interval
from traceflops.reports.page.axes import axis_ticks, round_above
from traceflops.reports.view.comparison import cause_label, changed_causes
from traceflops.reports.view.figures import apportioned, duration
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.step_split import CULPRIT, StepPart
from traceflops.timeline.records import COMPONENTS
from traceflops.units import capitalized, several

_MOST_CLASSES: Final = 3
_LEAST: Final = 0.02
"""Share of the longer step from which idle time of one class is a part of its own."""
_MOST_DOTS: Final = 300
_DENSE: Final = 40
_FAR: Final = 5  # so many times as far from the median as other steps, a step stands out
_FAR_SHARE: Final = 0.05
_MOST_ROWS: Final = 9  # causes that are rows of the waterfall
_EMPTY: Final = 0.4
"""Share of an axis without any end of a row from which on it does not begin at 0."""
_WHOLE: Final = 100.0
_LANES: Final = (50, 32, 68)  # heights of dots: neighbours lie beside each other


def bars(
    sides: Sequence[Side],
    names: Sequence[str],
    interval: Interval | None = None,
    *,
    is_joined: bool = False,
) -> dict[str, Any]:
    """Return the sides as bars on one scale that begins at 0; each side must have windows.

    `interval` is that of the difference: the end of the last bar lies in it, which is returned as
    place and width in percent. `changes` has each part's times on all sides, and the band that
    joins it on the first two. `is_joined`: whether the page draws these bands.
    """
    series = [side.series().tolist() for side in sides]
    ends = [rounded(sides[0].mean_ns) + round(end) for end in interval or ()]
    means = [rounded(side.mean_ns) for side in sides]
    scale_ns = ceil(max(*means, *ends, *map(max, series), 1))
    keys = _keys(sides)
    times = [_times(side, keys) for side in sides]
    roles = ("before", "after") if len(sides) == 2 else ("baseline", *[""] * (len(sides) - 1))
    shown = []
    for side, name, role, steps, parts in zip(sides, names, roles, series, times, strict=True):
        total, dots = sum(parts), _dots(side, steps, scale_ns)
        shown.append(
            {
                "name": name,
                "role": role,
                "ns": total,
                "width": _WHOLE * total / scale_ns,
                "parts": [_part(key, ns, total) for key, ns in zip(keys, parts, strict=True) if ns],
                "dots": dots,
                "is_dense": len(dots) > _DENSE,
                "left_out": max(len(steps) - _MOST_DOTS, 0),
            }
        )
    bands = _bands(times[0], times[:2][-1], scale_ns)  # to the second bar, or itself
    changes = [
        {"part": _part(key, max(all_sides), scale_ns), "times": all_sides, "band": band}
        for key, all_sides, band in zip(keys, zip(*times, strict=True), bands, strict=True)
        if any(all_sides)
    ]
    spread = None
    if ends:
        low, high = (max(_WHOLE * end / scale_ns, 0) for end in ends)
        spread = (round(low, 2), round(max(high - low, 0.2), 2))  # wide enough to be seen
    return {
        "sides": shown,
        "changes": changes,
        "ticks": axis_ticks(0, scale_ns),
        "interval": spread,
        "is_joined": is_joined,
    }


def _bands(first: Sequence[int], second: Sequence[int], scale_ns: int) -> list[str]:
    """Return per part the SVG path that joins it on two bars, in a drawing of 1000 by 1 units."""
    upper, lower = (
        pairwise(1000 * ns / scale_ns for ns in accumulate(parts, initial=0))
        for parts in (first, second)
    )
    edges = zip(upper, lower, strict=True)
    return [f"M{a:.1f} 0H{b:.1f}L{d:.1f} 1H{c:.1f}z" for (a, b), (c, d) in edges]


Key = tuple[str, str]
"""A part of a bar: its look, and for idle time the class of its culprits, else ""."""


def _keys(sides: Sequence[Side]) -> list[Key]:
    """Return components, then the largest classes of idle time, if known, then the rest of it."""
    longest = float(max(side.mean_ns for side in sides))
    mean_ns: dict[str, float] = {}  # of each class on the side where it is largest
    for side in sides:
        for kind, ns in idle_by_class(side).items():
            mean_ns[kind] = max(mean_ns.get(kind, 0.0), ns / len(side.windows))
    kinds = sorted((k for k in mean_ns if mean_ns[k] >= _LEAST * longest), key=mean_ns.__getitem__)
    shown = kinds[: -_MOST_CLASSES - 1 : -1] if tell_culprits(*sides) else []  # largest first
    work = [(name, "") for name in COMPONENTS if name != "idle"]
    return [*work, *((CULPRIT, kind) for kind in shown), ("idle", "other" if shown else "")]


def idle_by_class(side: Side) -> Counter[str]:
    """Return the idle time of a side in ns by class of culprits."""
    classes = Counter[str]()
    for culprit in side.idle:
        classes[culprit.kind] += culprit.idle_ns
    return classes


def _times(side: Side, keys: Sequence[Key]) -> list[int]:
    """Return the time of each part in whole ns; the sum is the mean step."""
    components, classes = side.components.parts(), idle_by_class(side)
    named = {kind: classes[kind] for name, kind in keys if name == CULPRIT}
    # Culprits explain some of the idle time, never more than there is.
    rest = components["idle"] - sum(named.values())
    amounts = [
        named[kind] if name == CULPRIT else rest if name == "idle" else components[name]
        for name, kind in keys
    ]
    # Means that were rounded apart may leave a rest just below 0.
    return apportioned([max(amount, 0) for amount in amounts], rounded(side.mean_ns))


def _part(key: Key, ns: int, total: int) -> StepPart:
    name, kind = key
    label = CLASSES.get(kind, kind) if name == CULPRIT else LINE_LOOKS[name].label
    return StepPart(name, f"{kind} {label}" if kind == "other" else label, ns, ns / max(total, 1))


def _dots(side: Side, steps: Sequence[float], scale_ns: int) -> list[dict[str, Any]]:
    """Return a dot per step (in ns), or evenly chosen ones; nothing if windows are not steps."""
    numbers = side.steps
    if len(numbers) != len(steps):  # windows without numbers
        return []
    order = sorted(range(len(steps)), key=steps.__getitem__)
    if len(order) > _MOST_DOTS:
        order = [order[at * (len(order) - 1) // (_MOST_DOTS - 1)] for at in range(_MOST_DOTS)]
    far = outstanding(side)
    return [
        {
            "x": round(_WHOLE * steps[at] / scale_ns, 2),
            "y": _LANES[turn % len(_LANES)],  # neighbours at different heights
            "text": f"step {numbers[at]}: {duration(steps[at])}",
            "label": f"step {numbers[at]}" if far is not None and far[0] == numbers[at] else "",
        }
        for turn, at in enumerate(order)
    ]


def cause_words(cause: Cause) -> tuple[str, str]:
    """Return what a cause concerns, and what of it changed."""
    label, _, detail = cause_label(cause).partition(": ")
    if cause.kind == "idle":  # labelled the other way round: what changed comes first
        label, detail = detail, label
    return capitalized(label), detail


def outstanding(side: Side) -> tuple[int, float] | None:
    """Return the step farthest from the median and its ns, or None if no step stands out."""
    steps = side.series().tolist()
    if len(side.steps) != len(steps):
        return None
    middle = median(steps)
    usual = median(abs(ns - middle) for ns in steps)  # the median absolute deviation
    step, ns = max(zip(side.steps, steps, strict=True), key=lambda one: abs(one[1] - middle))
    return (step, ns) if abs(ns - middle) > max(_FAR * usual, _FAR_SHARE * middle) else None


def _change(label: str, detail: str, look: str, ns: int, is_noise: bool = False) -> dict[str, Any]:
    """Return what a row of the waterfall says: a cause, several as one, or a whole step."""
    return {"label": label, "detail": detail, "look": look, "ns": ns, "is_noise": is_noise}


def waterfall(comparison: Comparison, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the rows that lead from one step time to the other, or None if nothing changed.

    Places are in percent of an axis that begins at `low_ns`. All ns add up to the difference.
    """
    causes = changed_causes(comparison)
    if not causes:
        return None
    start, end = rounded(comparison.before.mean_ns), rounded(comparison.after.mean_ns)
    # Causes are grouped by component; the one that changed most comes first.
    order = sorted(comparison.components, key=lambda name: -abs(comparison.components[name]))
    changes = []
    for cause in sorted(causes[:_MOST_ROWS], key=lambda cause: order.index(cause.component)):
        is_culprit = cause.kind == "idle" and cause.subject in CLASSES
        look = CULPRIT if is_culprit else cause.component
        changes.append(_change(*cause_words(cause), look, cause.ns, cause.is_noise))
    rest = sum(cause.ns for cause in causes[_MOST_ROWS:])
    if len(causes) > _MOST_ROWS:
        changes.append(_change(several(len(causes) - _MOST_ROWS, "other"), "together", "", rest))
    ends = list(accumulate((change["ns"] for change in changes), initial=start))
    # The axis begins at 0, or at a round time if most of it would be empty: below the lowest end,
    # with a quarter of the room that the changes take.
    room, low = max(ends) - min(ends), 0
    if min(ends) >= _EMPTY * max(ends):
        apart = round_above(max(room // 2, 1))
        low = max((min(ends) - room // 4) // apart * apart, 0)
    scale = _WHOLE / max(max(ends) - low, 1)

    def row(change: dict[str, Any], left: int, right: int) -> dict[str, Any]:
        """Return the box of a change that leads from `left` to `right`, both in ns."""
        return {
            **change,
            "x": round(scale * (min(left, right) - low), 3),
            "width": round(scale * abs(right - left), 3),
            "end": round(scale * (right - low), 3),
            "is_total": False,
        }

    def total(name: str, side: Side, ns: int) -> dict[str, Any]:
        steps = f"mean of {several(max(len(side.steps), 1), 'step')}"
        return row(_change(name, steps, "", ns), low, ns) | {"is_total": True}

    rows = [
        total(names[0], comparison.before, start),
        *(row(change, *edges) for change, edges in zip(changes, pairwise(ends), strict=True)),
        total(names[1], comparison.after, end),
    ]
    return {"rows": rows, "ticks": axis_ticks(low, max(ends)), "low_ns": low}
