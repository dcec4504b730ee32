"""Steps as stretches of device time.

The device window of step k runs from the start of the earliest activity launched in step k to the
start of the earliest one launched in step k+1; the last ends at the latest end of an activity
launched in it. `before` and `after` complete the span, so the windows tile the device's time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflops.columns import BoolArray, IntArray
from traceflops.groups import distinct
from traceflops.results import WindowRole

_WARM_UP_FACTOR = (5, 4)
"""A leading step longer than 5/4 of the median is warm-up."""

KEEP_LAST_UP_TO = 2
"""With at least three steady steps the last is left out: no successor bounds it."""

LAST_STEP = "last step: no following step bounds it"


@dataclass(frozen=True, slots=True)
class Stretch:
    """One window of one device before it is accounted for. `place` is the step's place."""

    role: WindowRole
    place: int | None
    start_ns: int
    end_ns: int
    launched: int | None

    @property
    def dur_ns(self) -> int:
        """Return the length."""
        return self.end_ns - self.start_ns


def tile(
    start_ns: IntArray, end_ns: IntArray, place: IntArray, span: tuple[int, int]
) -> list[Stretch]:
    """Return the windows of one device in order; together they are exactly its span.

    `place` is the step in which each activity was launched (-1: unknown). A step that launched
    nothing on this device has no window. Without any step the span is the only window.
    """
    low, high = span
    launched = place >= 0
    if not launched.any():
        return [Stretch("span", None, low, high, None)]
    places = distinct(place[launched])
    starts = _first_starts(start_ns[launched], place[launched], places)
    last_end = int(end_ns[place == places[-1]].max())
    ends = np.append(starts[1:], max(last_end, int(starts[-1])))
    counts = np.bincount(np.searchsorted(places, place[launched]))
    steps = [
        Stretch("step", int(p), int(s), int(e), int(n))
        for p, s, e, n in zip(places, starts, ends, counts, strict=True)
    ]
    before = Stretch("before", None, low, steps[0].start_ns, None)
    after = Stretch("after", None, steps[-1].end_ns, high, None)
    return [*_if_long(before), *steps, *_if_long(after)]


def _first_starts(start: IntArray, place: IntArray, places: IntArray) -> IntArray:
    """Return the earliest start of each step; a later step never begins before an earlier one."""
    first = np.full(len(places), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(first, np.searchsorted(places, place), start)
    return np.maximum.accumulate(first)


def _if_long(stretch: Stretch) -> list[Stretch]:
    return [stretch] if stretch.dur_ns > 0 else []


def steady(
    durations_ns: IntArray, *, may_warm_up: bool = True
) -> tuple[BoolArray, list[str | None]]:
    """Return which steps are steady, and why each other one is not.

    Leading steps longer than 1.25 times the median are warm-up, where steps do the same; where at
    least three remain the last is left out, since no successor bounds it. A lone step is used.
    """
    count = len(durations_ns)
    reasons: list[str | None] = [None] * count
    if count < 2:
        return np.ones(count, dtype=np.bool_), reasons
    times, over = _WARM_UP_FACTOR
    limit = float(np.median(durations_ns)) * times / over
    slow = (durations_ns > limit) & may_warm_up
    leading = int(np.argmin(slow)) if not slow.all() else 0
    reasons[:leading] = [f"warm-up: over {times / over:g} times the median"] * leading
    if count - leading > KEEP_LAST_UP_TO:
        reasons[-1] = LAST_STEP
    return np.array([reason is None for reason in reasons], dtype=np.bool_), reasons
