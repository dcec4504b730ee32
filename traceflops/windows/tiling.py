"""The windows of one device: stretches of its time, in order, from the steps of its activities."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.table.columns import ABSENT, BoolArray, IntArray
from traceflops.table.grouping import distinct, group_least, group_most, group_sums, joint_codes
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.idle import LONGEST_START_NS
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.timeline.records import WindowRole

TRIFLE: Final = 100
"""Less than 1/100 of the work is not worth a note, nor an edge of a window."""
_SMALL_PART: Final = 20
"""Latency of less than 1/20 of the time of the steps does not move their edges."""


class Stretch(Struct, frozen=True):
    """A window of one device before it has an account.

    For role `step`, `place` is the index of the step and `launched` the number of activities that
    were launched in it; None for other roles.
    """

    role: WindowRole
    place: int | None
    start_ns: int
    end_ns: int
    launched: int | None

    @property
    def dur_ns(self) -> int:
        """Return the length in ns."""
        return self.end_ns - self.start_ns


class Behind(Struct, frozen=True):
    """What tells where passes of a serving engine end.

    Per activity: its `name`, and `place`, the last pass annotated before its launch (-1: none).
    `unrecorded` is the time in which launched work waited for something not in the trace.
    """

    place: IntArray
    name: IntArray
    unrecorded: Intervals


def tile(
    start_ns: IntArray,
    end_ns: IntArray,
    launched_in: IntArray,
    span: tuple[int, int],
    is_paced: BoolArray,
    behind: Behind | None = None,
) -> list[Stretch]:
    """Divide the span of one device into windows in order: steps and the time between them.

    All arrays are per activity. `launched_in` is the step that launched it (-1: unknown). A
    step that launched nothing on this device has no window; without any step the span is the only
    window. A step lasts until the next begins, but a pass (`behind` is given) may end before.
    `is_paced` is as `paced` returns it.
    """
    is_launched = launched_in >= 0
    if not is_launched.any():
        return [Stretch("span", None, *span, None)]
    present = distinct(launched_in[is_launched])
    step, steps = np.searchsorted(present, launched_in[is_launched]), len(present)
    start, end, begins = start_ns[is_launched], end_ns[is_launched], is_paced[is_launched]
    # Work that may run ahead begins its step only if it starts after the step before ended.
    paced_end = group_most(step[begins], end[begins], steps)
    begins = begins | (start >= np.append(NEVER, paced_end)[step])
    starts = group_least(step[begins], start[begins], steps)
    if behind is not None:
        in_first = launched_in == present[0]
        starts[0] = _first_pass_start(start_ns[in_first], end_ns[in_first], behind.unrecorded)
    starts = np.maximum.accumulate(starts)
    own_ends = group_most(step, end, steps)
    ends = np.append(starts[1:], np.maximum(own_ends[-1], starts[-1]))
    if behind is not None:
        pass_before = np.searchsorted(present, behind.place, side="right") - 1
        # Work that belongs to no pass, but begins behind it, ends the pass. An engine launches some
        # work of a pass after the annotation: work with a name that runs behind more than half of
        # the passes is such. Only if all work behind a pass takes longer than the pass itself, none
        # of it is its own.
        is_late = ~is_launched & (pass_before >= 0)
        pairs = distinct(behind.name[is_late] * steps + pass_before[is_late])
        passes_of_name = np.bincount(pairs // steps, minlength=int(behind.name.max(initial=0)) + 1)
        is_odd = is_late & ~(2 * passes_of_name[behind.name] > steps)
        own_ns, late_ns, odd_ns = (
            group_sums(pass_before[mask], (end_ns - start_ns)[mask], steps)
            for mask in (is_launched, is_late, is_odd)
        )
        first_odd, first_late = (
            group_least(pass_before[mask], start_ns[mask], steps) for mask in (is_odd, is_late)
        )
        if_long = np.where(late_ns >= own_ns, first_late, ENDLESS)
        others = np.where(odd_ns * TRIFLE > own_ns, first_odd, if_long)
        ends = np.maximum(starts, np.minimum(ends, np.maximum(own_ends, others)))
    return with_rest(span, present, starts, ends, np.bincount(step))


def _first_pass_start(start_ns: IntArray, end_ns: IntArray, unrecorded: Intervals) -> int:
    """Return when the first pass begins, from the times of its activities.

    If it did only a trifle before a time in which nothing was recorded, it begins after that time.
    """
    work_before = np.append(0, np.cumsum(end_ns - start_ns))
    resumed = np.searchsorted(start_ns, unrecorded.end_ns)  # the first activity after each time
    resumed = resumed[resumed < len(start_ns)]
    resumed = resumed[work_before[resumed] * TRIFLE <= work_before[-1]]
    return int(start_ns[resumed.max(initial=0)])


def paced(step: IntArray, stream: IntArray, is_kernel: BoolArray) -> BoolArray:
    """Return, per activity, whether its step has kernels in the same queue, or none at all.

    Other queues have only copies, which may run ahead: they say nothing on the length of steps.
    """
    queue = joint_codes(step, stream)
    return np.isin(queue, queue[is_kernel]) | ~np.isin(step, step[is_kernel])


def with_rest(
    span: tuple[int, int], place: IntArray, start_ns: IntArray, end_ns: IntArray, count: IntArray
) -> list[Stretch]:
    """Return steps, with `count` activities launched in each, and the rest of the span."""
    columns = (column.tolist() for column in (place, start_ns, end_ns, count))
    steps = [Stretch("step", *values) for values in zip(*columns, strict=True)]
    next_begins = [step.start_ns for step in steps[1:]] + [span[1]]
    tiled = [Stretch("before", None, span[0], steps[0].start_ns, None)]
    for step, next_begin in zip(steps, next_begins, strict=True):
        tiled += [step, Stretch("between", None, step.end_ns, next_begin, None)]
    tiled[-1] = replace(tiled[-1], role="after")
    return [stretch for stretch in tiled if stretch.role == "step" or stretch.dur_ns > 0]


def from_the_marks(
    tiled: list[Stretch], marked_ns: IntArray, account: DeviceAccount
) -> list[Stretch]:
    """Return the windows of a device with steps that begin at their mark, not their first work.

    A step begins at its mark on the host (`marked_ns`, per place), or when the work before it ends
    if that is later. If its first work waited long after the launch, for work that is not recorded,
    it begins with that work. So do all steps if the difference is small.
    """
    steps = [stretch for stretch in tiled if stretch.role == "step"]
    if not steps or not all(step.dur_ns for step in steps):
        return tiled  # windows that start together could not be moved apart
    first_ns, work = np.array([step.start_ns for step in steps]), account.work
    first = np.searchsorted(work.start_ns, first_ns)
    ended_ns = np.append(NEVER, np.maximum.accumulate(work.end_ns))[first]
    marks = np.maximum(marked_ns[[step.place or 0 for step in steps]], ended_ns)
    called_ns = work.call_start_ns[np.minimum(first, len(work.start_ns) - 1)]
    waits = (called_ns != ABSENT) & (first_ns - called_ns > LONGEST_START_NS)
    begin_ns = np.maximum.accumulate(np.where(waits, first_ns, np.minimum(first_ns, marks)))
    if (first_ns - begin_ns).sum() * _SMALL_PART < steps[-1].end_ns - begin_ns[0]:
        return tiled
    # What ends with the start of a step moves with it: the step or the stretch before.
    moved = dict(zip(first_ns.tolist(), begin_ns.tolist(), strict=True))
    windows = [
        replace(
            stretch,
            start_ns=moved.get(stretch.start_ns, stretch.start_ns),
            end_ns=moved.get(stretch.end_ns, stretch.end_ns),
        )
        for stretch in tiled
    ]
    return [window for window in windows if window.role == "step" or window.dur_ns > 0]
