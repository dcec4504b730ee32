"""The drawings of a comparison: bars on one scale, their steps as dots, and the waterfall.

Positions and widths are in percent of a drawing, so that it fits a page of any width.
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
_FAR: Final = 5
"""A step stands out if it is so many times as far from the median as steps usually are."""
_FAR_SHARE: Final = 0.05  # and by this share of the median
_MOST_ROWS: Final = 9  # causes that are rows of the waterfall
_EMPTY: Final = 0.4
"""An axis does not begin at 0 if at least this share of it would be empty."""
_WHOLE: Final = 100.0
_HEIGHTS: Final = (50, 32, 68)  # of dots in turn, so that neighbours do not overlap


def bars(
    sides: Sequence[Side],
    names: Sequence[str],
    interval: Interval | None = None,
    *,
    is_joined: bool = False,
) -> dict[str, Any]:
    """Return the sides as bars on one scale that begins at 0; each side must have windows.

    `interval` is that of the difference; the interval in which the last bar ends is returned as
    its begin and width in percent. `changes` has the times of each part on all sides, and the band
    that joins it on the first two bars, which the page draws if `is_joined`.
    """
    series_ns = [side.series().tolist() for side in sides]
    ends_ns = [rounded(sides[0].mean_ns) + round(end) for end in interval or ()]
    means_ns = [rounded(side.mean_ns) for side in sides]
    scale_ns = ceil(max(*means_ns, *ends_ns, *map(max, series_ns), 1))
    keys = _keys(sides)
    times_ns = [_times(side, keys) for side in sides]
    roles = ("before", "after") if len(sides) == 2 else ("baseline", *[""] * (len(sides) - 1))
    shown = []
    rows = zip(sides, names, roles, series_ns, times_ns, strict=True)
    for side, name, role, steps_ns, parts_ns in rows:
        total_ns, dots = sum(parts_ns), _dots(side, steps_ns, scale_ns)
        parts = [_part(k, ns, total_ns) for k, ns in zip(keys, parts_ns, strict=True) if ns]
        bar = {
            "name": name,
            "role": role,
            "ns": total_ns,
            "width": _WHOLE * total_ns / scale_ns,
            "parts": parts,
            "dots": dots,
            "is_dense": len(dots) > _DENSE,
            "left_out": max(len(steps_ns) - _MOST_DOTS, 0),
        }
        shown.append(bar)
    bands = _bands(times_ns[0], times_ns[:2][-1], scale_ns)  # of a single bar: to itself
    changes = [
        {"part": _part(key, max(on_sides), scale_ns), "times": on_sides, "band": band}
        for key, on_sides, band in zip(keys, zip(*times_ns, strict=True), bands, strict=True)
        if any(on_sides)
    ]
    begin_and_width = None
    if ends_ns:
        low, high = (max(_WHOLE * end / scale_ns, 0) for end in ends_ns)
        begin_and_width = (round(low, 2), round(max(high - low, 0.2), 2))  # wide enough to be seen
    return {
        "sides": shown,
        "changes": changes,
        "ticks": axis_ticks(0, scale_ns),
        "interval": begin_and_width,
        "is_joined": is_joined,
    }


def _bands(first_ns: Sequence[int], second_ns: Sequence[int], scale_ns: int) -> list[str]:
    """Return per part the SVG path that joins it on two bars, in a drawing of 1000 by 1 units."""
    upper, lower = (
        pairwise(1000 * ns / scale_ns for ns in accumulate(parts_ns, initial=0))
        for parts_ns in (first_ns, second_ns)
    )
    edges = zip(upper, lower, strict=True)
    return [
        f"M{left:.1f} 0H{right:.1f}L{low_right:.1f} 1H{low_left:.1f}z"
        for (left, right), (low_left, low_right) in edges
    ]


Key = tuple[str, str]
"""A part of a bar: its look, and for idle time the class of its culprits, else ""."""


def _keys(sides: Sequence[Side]) -> list[Key]:
    """Return the parts of bars: components, the largest classes of idle time, other idle time."""
    longest_ns = float(max(side.mean_ns for side in sides))
    mean_ns: dict[str, float] = {}  # of each class on the side where it is largest
    for side in sides:
        for kind, ns in idle_by_class(side).items():
            mean_ns[kind] = max(mean_ns.get(kind, 0.0), ns / len(side.windows))
    large = (kind for kind in mean_ns if mean_ns[kind] >= _LEAST * longest_ns)
    ascending = sorted(large, key=mean_ns.__getitem__)
    shown = ascending[::-1][:_MOST_CLASSES] if tell_culprits(*sides) else []
    work = [(name, "") for name in COMPONENTS if name != "idle"]
    return [*work, *((CULPRIT, kind) for kind in shown), ("idle", "other" if shown else "")]


def idle_by_class(side: Side) -> Counter[str]:
    """Return the idle time of a side in ns by class of culprits."""
    classes = Counter[str]()
    for culprit in side.idle:
        classes[culprit.kind] += culprit.idle_ns
    return classes


def _times(side: Side, keys: Sequence[Key]) -> list[int]:
    """Return the time of each part in whole ns; they sum to the mean step."""
    components, classes = side.components.parts(), idle_by_class(side)
    culprits_ns = sum(classes[kind] for name, kind in keys if name == CULPRIT)
    amounts_ns = []
    for name, kind in keys:
        ns = classes[kind] if name == CULPRIT else components[name]
        amounts_ns.append(ns - culprits_ns if name == "idle" else ns)
    # Times were rounded one by one, so that the rest of idle time may be just below 0.
    return apportioned([max(ns, 0) for ns in amounts_ns], rounded(side.mean_ns))


def _part(key: Key, ns: int, total_ns: int) -> StepPart:
    name, kind = key
    label = CLASSES.get(kind, kind) if name == CULPRIT else LINE_LOOKS[name].label
    label = f"{kind} {label}" if kind == "other" else label
    return StepPart(name, label, ns, ns / max(total_ns, 1))


def _dots(side: Side, steps_ns: Sequence[float], scale_ns: int) -> list[dict[str, Any]]:
    """Return a dot per step, or of some evenly chosen by time; none if windows are not steps."""
    numbers = side.steps
    if len(numbers) != len(steps_ns):  # windows without numbers
        return []
    order = sorted(range(len(steps_ns)), key=steps_ns.__getitem__)
    if len(order) > _MOST_DOTS:
        last = len(order) - 1
        order = [order[dot * last // (_MOST_DOTS - 1)] for dot in range(_MOST_DOTS)]
    step_and_ns = outstanding(side)
    labelled = step_and_ns[0] if step_and_ns is not None else None
    return [
        {
            "x": round(_WHOLE * steps_ns[step] / scale_ns, 2),
            "y": _HEIGHTS[dot % len(_HEIGHTS)],
            "text": f"step {numbers[step]}: {duration(steps_ns[step])}",
            "label": f"step {numbers[step]}" if numbers[step] == labelled else "",
        }
        for dot, step in enumerate(order)
    ]


def cause_words(cause: Cause) -> tuple[str, str]:
    """Return the subject of a cause, such as "Gemm", and what of it changed: "time per call"."""
    label, _, detail = cause_label(cause).partition(": ")
    if cause.kind == "idle":  # "idle: loading data" begins with what changed
        label, detail = detail, label
    return capitalized(label), detail


def outstanding(side: Side) -> tuple[int, float] | None:
    """Return the step farthest from the median and its ns, or None if no step stands out."""
    steps_ns = side.series().tolist()
    if len(side.steps) != len(steps_ns):
        return None
    median_ns = median(steps_ns)
    usual_ns = median(abs(ns - median_ns) for ns in steps_ns)  # the median absolute deviation
    pairs = zip(side.steps, steps_ns, strict=True)
    step, ns = max(pairs, key=lambda pair: abs(pair[1] - median_ns))
    stands_out = abs(ns - median_ns) > max(_FAR * usual_ns, _FAR_SHARE * median_ns)
    return (step, ns) if stands_out else None


def _change(label: str, detail: str, look: str, ns: int, is_noise: bool = False) -> dict[str, Any]:
    """Return a row of the waterfall without its box: a cause, several causes, or a whole step."""
    return {"label": label, "detail": detail, "look": look, "ns": ns, "is_noise": is_noise}


def waterfall(comparison: Comparison, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the rows that lead from one step time to the other, or None if nothing changed.

    Positions are in percent of an axis that begins at `low_ns`. All ns add up to the difference.
    """
    causes = changed_causes(comparison)
    if not causes:
        return None
    start_ns, end_ns = rounded(comparison.before.mean_ns), rounded(comparison.after.mean_ns)
    # Causes are grouped by component; the component that changed most comes first.
    order = sorted(comparison.components, key=lambda name: -abs(comparison.components[name]))
    changes = []
    for cause in sorted(causes[:_MOST_ROWS], key=lambda cause: order.index(cause.component)):
        is_culprit = cause.kind == "idle" and cause.subject in CLASSES
        look = CULPRIT if is_culprit else cause.component
        changes.append(_change(*cause_words(cause), look, cause.ns, cause.is_noise))
    if len(causes) > _MOST_ROWS:
        others_ns = sum(cause.ns for cause in causes[_MOST_ROWS:])
        others = several(len(causes) - _MOST_ROWS, "other")
        changes.append(_change(others, "together", "", others_ns))
    ends_ns = list(accumulate((change["ns"] for change in changes), initial=start_ns))
    # The axis begins at 0. If much of it would be empty, it begins at a round time at least a
    # quarter of the range of all ends below the lowest end.
    lowest_ns, highest_ns, low_ns = min(ends_ns), max(ends_ns), 0
    if lowest_ns >= _EMPTY * highest_ns:
        range_ns = highest_ns - lowest_ns
        round_ns = round_above(max(range_ns // 2, 1))
        low_ns = max((lowest_ns - range_ns // 4) // round_ns * round_ns, 0)
    scale = _WHOLE / max(highest_ns - low_ns, 1)

    def row(change: dict[str, Any], left: int, right: int) -> dict[str, Any]:
        """Return a row with its box, which leads from `left` to `right`, both in ns."""
        return {
            **change,
            "x": round(scale * (min(left, right) - low_ns), 3),
            "width": round(scale * abs(right - left), 3),
            "end": round(scale * (right - low_ns), 3),
            "is_total": False,
        }

    def total(name: str, side: Side, ns: int) -> dict[str, Any]:
        steps = f"mean of {several(max(len(side.steps), 1), 'step')}"
        return row(_change(name, steps, "", ns), low_ns, ns) | {"is_total": True}

    rows = [
        total(names[0], comparison.before, start_ns),
        *(row(change, *edges) for change, edges in zip(changes, pairwise(ends_ns), strict=True)),
        total(names[1], comparison.after, end_ns),
    ]
    return {"rows": rows, "ticks": axis_ticks(low_ns, highest_ns), "low_ns": low_ns}
