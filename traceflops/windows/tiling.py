"""The windows of one device: stretches of its time, in order, from the steps of its activities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.table.columns import ABSENT, BoolArray, IntArray
from traceflops.table.grouping import distinct, group_least, group_most, group_sums, joint_codes
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.idle import LONGEST_START_NS
from traceflops.timeline.intervals import ENDLESS, NEVER, Intervals
from traceflops.timeline.records import WindowRole
from traceflops.windows.records import Accounts, device_words

TRIFLE: Final = 100
"""Less than 1/100 of the work is not worth a note, nor an edge of a window."""
_SMALL_PART: Final = 20
"""Latency of less than 1/20 of the time of the steps does not move their edges."""


class Stretch(Struct, frozen=True):
    """A window of one device before it has an account.

    For role `step`, `place` is the index of the step (among those of a process) and `launched` the
    number of activities that were launched in it; None for other roles.
    """

    role: WindowRole
    start_ns: int
    end_ns: int
    place: int | None = None
    launched: int | None = None

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
    """Return the windows of one device in order: its steps and the time between them.

    All arrays are per activity. `launched_in` is the step that launched it (-1: unknown),
    `is_paced` tells whether it shows where its step begins (`paced`). A step that launched nothing
    on this device has no window; without any step the span is the only window. A step lasts until
    the next begins. If `behind` is given, the steps are passes, which may end before that.
    """
    is_launched = launched_in >= 0
    if not is_launched.any():
        return [Stretch("span", *span)]
    start, end, is_paced = start_ns[is_launched], end_ns[is_launched], is_paced[is_launched]
    # Steps with work on this device are numbered 0, 1, ...; `step` is that number per activity.
    # launched_in [2 2 5 5]  ->  present [2 5], step [0 0 1 1]
    present = distinct(launched_in[is_launched])
    step = np.searchsorted(present, launched_in[is_launched])
    steps = len(present)
    # A step begins with its first paced work. Other work, such as a copy, may run ahead of its
    # step: it counts only if it starts after all paced work of the step before has ended.
    # The last paced end of each step [8 18]  ->  of the step before [NEVER 8]
    paced_end = group_most(step[is_paced], end[is_paced], steps)
    paced_end_before = np.append(NEVER, paced_end[:-1])
    may_begin = is_paced | (start >= paced_end_before[step])
    starts = group_least(step[may_begin], start[may_begin], steps)
    if behind is not None:
        in_first = launched_in == present[0]  # the work of the first pass
        starts[0] = _first_pass_start(start_ns[in_first], end_ns[in_first], behind.unrecorded)
    starts = np.maximum.accumulate(starts)  # no step begins before the one before it
    # starts [0 9], ends of own work [8 18]: a step lasts until the next begins  ->  ends [9 18]
    own_ends = group_most(step, end, steps)
    ends = np.append(starts[1:], np.maximum(own_ends[-1], starts[-1]))
    if behind is not None:
        # A pass ends where work that is not its own begins, but not before its own work ends.
        # present [2 5], place [-1 2 3 5]  ->  last_pass [-1 0 0 1]
        last_pass = np.searchsorted(present, behind.place, side="right") - 1
        dur_ns = end_ns - start_ns
        foreign = _foreign_start(start_ns, dur_ns, behind.name, is_launched, last_pass, steps)
        ends = np.maximum(starts, np.minimum(ends, np.maximum(own_ends, foreign)))
    return with_rest(span, present, starts, ends, np.bincount(step))


def _foreign_start(
    start_ns: IntArray,
    dur_ns: IntArray,
    name: IntArray,
    is_launched: BoolArray,
    last_pass: IntArray,
    passes: int,
) -> IntArray:
    """Return, per pass, when work after it begins that is not its own; ENDLESS without any.

    The arrays are per activity: its start, duration and name, whether it was launched during the
    annotation of a pass, and the last pass annotated before its launch (-1: none).

    An engine also launches work of a pass after its annotation, such as sampling a token. Such
    work has a name that runs after more than half of the passes. Any other name is foreign.
    If the work after a pass takes at least as long as the pass itself, all of it is foreign.
    """
    is_after = ~is_launched & (last_pass >= 0)
    # The number of passes after which each name runs, from the distinct pairs of name and pass.
    # Of 4 passes: pairs (name 0, pass 0), (0, 1), (2, 1) are [0 1 9]  ->  // 4 = [0 0 2]: 2, 0, 1
    name_and_pass = distinct(name[is_after] * passes + last_pass[is_after])
    passes_of_name = np.bincount(name_and_pass // passes, minlength=int(name.max(initial=0)) + 1)
    is_usual = 2 * passes_of_name[name] > passes
    is_foreign = is_after & ~is_usual
    own_ns = group_sums(last_pass[is_launched], dur_ns[is_launched], passes)
    after_ns = group_sums(last_pass[is_after], dur_ns[is_after], passes)
    foreign_ns = group_sums(last_pass[is_foreign], dur_ns[is_foreign], passes)
    first_after = group_least(last_pass[is_after], start_ns[is_after], passes)
    first_foreign = group_least(last_pass[is_foreign], start_ns[is_foreign], passes)
    has_foreign, is_all_foreign = foreign_ns * TRIFLE > own_ns, after_ns >= own_ns
    return np.select([has_foreign, is_all_foreign], [first_foreign, first_after], ENDLESS)


def _first_pass_start(start_ns: IntArray, end_ns: IntArray, unrecorded: Intervals) -> int:
    """Return the time in ns when the first pass begins, from the times of its activities.

    If it did only a trifle of its work before a time in `unrecorded`, it begins after that time.
    """
    # lengths [1 30 30]  ->  work before each activity, and in all [0 1 31 61]
    work_before_ns = np.append(0, np.cumsum(end_ns - start_ns))
    first_after = np.searchsorted(start_ns, unrecorded.end_ns)  # an activity per unrecorded time
    first_after = first_after[first_after < len(start_ns)]
    is_trifle = work_before_ns[first_after] * TRIFLE <= work_before_ns[-1]
    return int(start_ns[first_after[is_trifle].max(initial=0)])


def paced(step: IntArray, stream: IntArray, is_kernel: BoolArray) -> BoolArray:
    """Return, per activity, whether its queue runs kernels in its step, or the step has no kernel.

    Other queues have only copies, which may run ahead: they do not show when a step begins or ends.
    """
    queue = joint_codes(step, stream)  # a number for each pair of step and stream
    return np.isin(queue, queue[is_kernel]) | ~np.isin(step, step[is_kernel])


def with_rest(
    span: tuple[int, int], place: IntArray, start_ns: IntArray, end_ns: IntArray, count: IntArray
) -> list[Stretch]:
    """Return steps, with `count` activities launched in each, and the rest of the span."""
    columns = (column.tolist() for column in (start_ns, end_ns, place, count))
    steps = [
        Stretch("step", begin, end, place=index, launched=launched)
        for begin, end, index, launched in zip(*columns, strict=True)
    ]
    tiled = [Stretch("before", span[0], steps[0].start_ns)]
    for step, following in pairwise(steps):
        tiled += [step, Stretch("between", step.end_ns, following.start_ns)]
    tiled += [steps[-1], Stretch("after", steps[-1].end_ns, span[1])]
    return [stretch for stretch in tiled if stretch.role == "step" or stretch.dur_ns > 0]


def outside_notes(
    trace: Trace, accounts: Accounts, windows: Mapping[int, Sequence[Stretch]], *, are_passes: bool
) -> Iterator[Note]:
    """Yield notes on work outside of steps, and on idle time before the first pass.

    There is no note if the trace has no steps, or if the time is a trifle (see TRIFLE).
    """
    steps_ns = [s.dur_ns for of_gpu in windows.values() for s in of_gpu if s.role == "step"]
    if not steps_ns:
        return
    outside_ns = total_ns = unrecorded_ns = 0
    for device, of_device in windows.items():
        busy = accounts[device].timeline.busy
        edges = [(s.start_ns, s.end_ns) for s in of_device if s.role != "step"]
        starts, ends = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        outside_ns += int(busy.length_within(starts, ends).sum())
        total_ns += busy.length_ns
        # Idle time of unrecorded cause before the first pass (see `tile`) belongs to no step.
        first = of_device[0]
        if are_passes and first.role == "before":
            unrecorded = accounts[device].idle.by_cause["unrecorded"]
            before_ns = unrecorded.within(first.start_ns, first.end_ns).length_ns
            unrecorded_ns = max(unrecorded_ns, before_ns)
    if outside_ns * TRIFLE > total_ns:
        share, work = outside_ns / total_ns, device_words(trace).work
        yield note_of("dropped", "work-outside-steps", ns=outside_ns, work=work, share=share)
    if unrecorded_ns * TRIFLE > sum(steps_ns):
        share = unrecorded_ns / (unrecorded_ns + sum(steps_ns))
        yield note_of("missing", "head-left-out", ns=unrecorded_ns, share=share)


def from_the_marks(
    tiled: list[Stretch], marked_ns: IntArray, account: DeviceAccount
) -> list[Stretch]:
    """Return the windows `tiled` of a device with each step begun at its mark, not its first work.

    The mark is on the host (`marked_ns`, per place). A step begins no earlier than the work before
    it ends. If the first work started long after its launch, it waited for work that is not
    recorded: then the step still begins with it. If little time is moved, no step is moved at all.
    Mark at 10, end of the work before at 12, first work at 15: the step begins at 12.
    """
    steps = [stretch for stretch in tiled if stretch.role == "step"]
    if not steps or not all(step.dur_ns for step in steps):
        return tiled  # windows that start together could not be moved apart
    work = account.work  # sorted by start
    first_ns = np.array([step.start_ns for step in steps])
    first = np.searchsorted(work.start_ns, first_ns)  # the first activity of each step
    # Ends of work [4 3 8]  ->  the latest end before each activity [NEVER 4 4], and of all, 8.
    latest_end_before_ns = np.append(NEVER, np.maximum.accumulate(work.end_ns))
    work_before_ended_ns = latest_end_before_ns[first]
    mark_ns = marked_ns[[step.place or 0 for step in steps]]
    earliest_ns = np.maximum(mark_ns, work_before_ended_ns)
    launched_ns = work.call_start_ns[np.minimum(first, len(work.start_ns) - 1)]
    has_waited = (launched_ns != ABSENT) & (first_ns - launched_ns > LONGEST_START_NS)
    begin_ns = np.where(has_waited, first_ns, np.minimum(first_ns, earliest_ns))
    begin_ns = np.maximum.accumulate(begin_ns)
    moved_ns = (first_ns - begin_ns).sum()
    if moved_ns * _SMALL_PART < steps[-1].end_ns - begin_ns[0]:
        return tiled
    # The window before a step ends where the step begins, so it is moved, too.
    moved = dict(zip(first_ns.tolist(), begin_ns.tolist(), strict=True))
    windows = []
    for stretch in tiled:
        start_ns, end_ns = (moved.get(ns, ns) for ns in (stretch.start_ns, stretch.end_ns))
        windows.append(replace(stretch, start_ns=start_ns, end_ns=end_ns))
    return [window for window in windows if window.role == "step" or window.dur_ns > 0]
