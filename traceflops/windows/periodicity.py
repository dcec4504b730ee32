"""Steps as stretches of device time: marked on the device, or inferred from what repeats there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.facts import Fact, fact
from traceflops.table.columns import ABSENT, BoolArray, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct, group_sums, groups, joint_codes
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.device_span import DeviceRows
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import WindowRole
from traceflops.windows.records import device_words
from traceflops.windows.repetition import (
    FEWEST_ACTIVITIES,
    FEWEST_ROUNDS,
    MOST_LAYERS,
    REGULAR_SHARE,
    TOLERANCE,
    Order,
    contents,
    repeated_signature,
)
from traceflops.windows.step_times import Steps

_WARM_UP_FACTOR = (5, 4)
"""A leading step longer than 5/4 of the median is warm-up."""
_RARE = 10
"""Fewer than one in so many of the steps that follow take as long."""

TRIFLE: Final = 100
"""Less than 1/100 of the work is not worth a note, nor an edge of a window."""

_NEVER: Final = np.iinfo(np.int64).max

KEEP_LAST_UP_TO = 2
"""Of more steady steps the last is left out: no successor bounds it."""

LAST_STEP, _CUT = fact("left-out.last-step"), fact("left-out.cut")
_FEWEST_TO_CUT: Final = 3
"""Of fewer steps none is usual."""


class Stretch(Struct, frozen=True):
    """A window of one device before it has an account; `place` is the index of its step."""

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
    """Per activity, its name and the last pass annotated before its launch (`place`, else -1).

    `unrecorded` is the time in which launched work waited for something not in the trace.
    """

    place: IntArray
    name: IntArray
    unrecorded: Intervals = field(default_factory=Intervals.empty)


def tile(
    start_ns: IntArray,
    end_ns: IntArray,
    launched_in: IntArray,
    span: tuple[int, int],
    behind: Behind | None = None,
    is_paced: BoolArray | None = None,
) -> list[Stretch]:
    """Divide the span of one device into windows in order: steps and the time between them.

    All arrays are per activity. `launched_in` is the step that launched it (-1: unknown). A
    step that launched nothing on this device has no window; without any step the span is the only
    window. Steps that are passes (`behind` is given) may end before the next begins. Activities
    that are not `is_paced` do not begin their step if they start before the step before has ended.
    """
    launched = launched_in >= 0
    if not launched.any():
        return [Stretch("span", None, *span, None)]
    present = distinct(launched_in[launched])
    step = np.searchsorted(present, launched_in[launched])
    start, end = start_ns[launched], end_ns[launched]
    begins = np.ones(len(step), dtype=np.bool_)
    if is_paced is not None:
        is_tied = is_paced[launched]
        over_ns = -_earliest(-end[is_tied], step[is_tied], len(present))
        begins = is_tied | (start >= np.append(-_NEVER, over_ns)[step])
    starts = _earliest(start[begins], step[begins], len(present))
    if behind is not None:
        # The first pass begins after time without recorded work, if it did only a trifle before.
        in_first = launched_in == present[0]
        done = np.append(0, np.cumsum((end_ns - start_ns)[in_first]))
        resumed = np.searchsorted(start_ns[in_first], behind.unrecorded.end_ns)
        resumed = resumed[(resumed < len(done) - 1) & (done[resumed] * TRIFLE <= done[-1])]
        starts[0] = start_ns[in_first][resumed.max(initial=0)]
    starts = np.maximum.accumulate(starts)
    ends = np.append(
        starts[1:], max(int(end_ns[launched_in == present[-1]].max()), int(starts[-1]))
    )
    if behind is not None:
        own_ends = -_earliest(-end, step, len(present))
        # A pass ends where work of no pass begins behind it. Work with a name that runs behind more
        # than half of the passes belongs to the passes, unless all work behind a pass takes longer
        # than its own.
        passes, name = len(present), behind.name
        pass_before = np.searchsorted(present, behind.place, side="right") - 1
        is_own, late = launched_in >= 0, (launched_in < 0) & (pass_before >= 0)
        pairs = distinct(name[late] * passes + pass_before[late])
        passes_of_name = np.bincount(pairs // passes, minlength=int(name.max(initial=0)) + 1)
        odd = late & ~(2 * passes_of_name[name] > passes)
        own_ns, late_ns, odd_ns = (
            group_sums(pass_before[c], (end_ns - start_ns)[c], passes) for c in (is_own, late, odd)
        )
        first_odd, first_late = (
            _earliest(start_ns[c], pass_before[c], passes) for c in (odd, late)
        )
        if_long = np.where(late_ns >= own_ns, first_late, _NEVER)
        other = np.where(odd_ns * TRIFLE > own_ns, first_odd, if_long)
        ends = np.maximum(starts, np.minimum(ends, np.maximum(own_ends, other)))
    return with_rest(span, present, starts, ends, np.bincount(step))


def paced(step: IntArray, stream: IntArray, is_kernel: BoolArray) -> BoolArray:
    """Return, per activity, whether its step has kernels in the same queue, or none at all.

    Other queues have only copies, which may run ahead: they say nothing on the length of steps.
    """
    queue = joint_codes(step, stream)
    return np.isin(queue, queue[is_kernel]) | ~np.isin(step, step[is_kernel])


def with_rest(
    span: tuple[int, int], place: IntArray, start_ns: IntArray, end_ns: IntArray, count: IntArray
) -> list[Stretch]:
    """Return steps, and the rest of the span before, between and after them, in order.

    The arrays are per step; `count` is the number of activities launched in it.
    """
    columns = (column.tolist() for column in (place, start_ns, end_ns, count))
    steps = [Stretch("step", *values) for values in zip(*columns, strict=True)]
    begins = [step.start_ns for step in steps[1:]] + [span[1]]
    tiled = [Stretch("before", None, span[0], steps[0].start_ns, None)]
    for step, begin in zip(steps, begins, strict=True):
        tiled += [step, Stretch("between", None, step.end_ns, begin, None)]
    tiled[-1] = replace(tiled[-1], role="after")
    return [stretch for stretch in tiled if stretch.role == "step" or stretch.dur_ns > 0]


def before_first(stretches: Iterable[Sequence[Stretch]]) -> int:
    """Return the longest time, in ns, that a device works before its first step."""
    firsts = (tiled[0] for tiled in stretches)
    return max((first.dur_ns for first in firsts if first.role == "before"), default=0)


def _earliest(start: IntArray, step: IntArray, steps: int) -> IntArray:
    """Return the earliest start in each step, _NEVER without any."""
    first = np.full(steps, _NEVER, dtype=np.int64)
    np.minimum.at(first, step, start)
    return first


def steady(
    durations_ns: IntArray,
    before_ns: int = 0,
    *,
    may_warm_up: bool = True,
    has_end: bool = False,
) -> list[Fact | None]:
    """Return, per step, the reason why it is not steady, None for steady steps.

    Leading steps longer than 1.25 times the median are warm-up (if `may_warm_up`: steps all do the
    same), unless a tenth of those that follow take as long. Of three or more that remain the last
    is left out, unless it `has_end`, one of its own and not that of the recording. A single step is
    always used. Of three or more the first is cut off if it is much shorter than the others and
    `before_ns`, the time with work of no step before it, is at least half of what it lacks.
    """
    count = len(durations_ns)
    reasons: list[Fact | None] = [None] * count
    if count < 2:
        return reasons
    times, over = _WARM_UP_FACTOR
    limit = float(np.median(durations_ns)) * times / over
    slow = (durations_ns > limit) & may_warm_up
    leading = int(np.argmin(slow)) if not slow.all() else 0
    later_ns = np.sort(durations_ns[leading:])
    as_long = len(later_ns) - np.searchsorted(later_ns, durations_ns[:leading])
    leading = int(np.argmin(np.append(_RARE * as_long < len(later_ns), False)))
    reasons[:leading] = [fact("left-out.warm-up", times=times / over)] * leading
    usual_ns, first_ns = float(np.median(durations_ns[1:])), float(durations_ns[0])
    is_short = 4 * first_ns < 3 * usual_ns <= 3 * (first_ns + 2 * before_ns)
    if may_warm_up and count >= _FEWEST_TO_CUT and is_short:
        reasons[0] = _CUT
    if count - leading > KEEP_LAST_UP_TO and not has_end:
        reasons[-1] = LAST_STEP
    return reasons


_Periods = tuple[IntArray, Fact]
"""Boundaries of periods, and how they were found; period i is [boundary[i], boundary[i+1]).

Boundaries are indices of activities; the last may be the number of activities.
"""


def _by_optimizer(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    """Return periods that end with the kernels of an optimizer, None if they are irregular."""
    categories = enumerate(linked.categorised.categories)
    codes_of_optimizer = [code for code, category in categories if category.sub == "optimizer"]
    ends = _clusters(np.isin(linked.categorised.category[rows.row], codes_of_optimizer))[1] + 1
    boundary = ends[ends < len(rows.row)]
    if _alike(boundary).mean() < REGULAR_SHARE:
        return None
    return boundary, fact("steps-by.optimizer", optimizer=device_words(linked.trace).optimizer)


def _by_copies(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    """Return periods that begin with copies from or to the host, None if they are irregular."""
    directions = enumerate(names(linked.trace.activities["direction"]))
    copies = [code for code, direction in directions if direction in ("HtoD", "DtoH")]
    boundary = _clusters(np.isin(linked.columns.direction[rows.row], copies))[0]
    alike = _alike(boundary)
    if not alike.any():
        return None
    content = contents(linked.columns.name[rows.row], boundary)
    _, kind, counts = np.unique(content, return_inverse=True, return_counts=True)
    alike &= kind == np.argmax(counts)
    return (boundary, fact("steps-by.copies")) if alike.mean() >= REGULAR_SHARE else None


def _by_signature(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    """Return the longest rounds of activities that repeat, None without any."""
    name, call = linked.columns.name[rows.row], linked.links.call_of_activity[rows.row]
    rounds = repeated_signature(Order(name, rows.start_ns, rows.end_ns, call))
    if rounds is None:
        return None
    what = device_words(linked.trace).operation
    return rounds.begin, fact("steps-by.rounds", count=rounds.length, what=what)


SOURCES: Final[Mapping[str, Callable[[LinkedTrace, DeviceRows], _Periods | None]]] = {
    "optimizer": _by_optimizer,
    "copies": _by_copies,
    "signature": _by_signature,
}
"""Functions that find the periods of a device, the most reliable first, by `StepChoice.source`."""


def _clusters(is_marked: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the first and the last index of each run of marked activities.

    Two neighbours belong to different runs if they are at least half as far apart as the two that
    are farthest apart.
    """
    index = np.flatnonzero(is_marked)
    if len(index) < 2:
        return index, index
    distance = np.diff(index)
    is_edge = distance * 2 >= max(int(distance.max()), FEWEST_ACTIVITIES)
    return index[np.append(True, is_edge)], index[np.append(is_edge, True)]


def _alike(boundary: IntArray) -> BoolArray:
    """Return, per period, whether its number of activities is usual; never if it is too small."""
    counts = np.diff(boundary)
    usual = float(np.median(counts)) if len(counts) >= FEWEST_ROUNDS else 0.0
    if usual < FEWEST_ACTIVITIES:
        return np.zeros(1, dtype=np.bool_)
    return np.abs(counts - usual) <= TOLERANCE * usual


def inferred_steps(
    linked: LinkedTrace, accounts: Mapping[int, DeviceAccount]
) -> tuple[dict[int, list[Stretch]], str, Fact] | None:
    """Return the windows of each device by what repeats, the source (of SOURCES), and how.

    The first source that finds steps on every device is used; None without any.
    """
    rows = [account.rows for account in accounts.values()]
    for source, find in SOURCES.items():
        periods = [p for p in takewhile(bool, map(partial(find, linked), rows)) if p]
        if not periods or len(periods) < len(rows):
            continue
        if source != "optimizer" and not all(
            _are_iterations(linked, account, boundary)
            for account, (boundary, _) in zip(accounts.values(), periods, strict=True)
        ):
            continue
        stretches = {}
        for (device, account), (boundary, _) in zip(accounts.items(), periods, strict=True):
            work, counts = account.rows, np.diff(boundary)
            edges = np.append(work.start_ns, work.span[1])[boundary]
            numbers = np.arange(len(counts))
            stretches[device] = with_rest(work.span, numbers, edges[:-1], edges[1:], counts)
        where = device_words(linked.trace).device
        return stretches, source, fact("steps-by.repetition", device=where, how=periods[0][1])
    return None


def _are_iterations(linked: LinkedTrace, account: DeviceAccount, boundary: IntArray) -> bool:
    """Return whether rounds are iterations, and not the layers of one pass, a sweep, or set-up.

    Iterations are most of the work and alike in time. A recording ends in its loop, or soon after.
    Few rounds, followed by kernels that no round has, are the layers of a pass that ends there.
    """
    rows, busy = account.rows, account.timeline.busy
    edges = np.append(rows.start_ns, rows.span[1])[boundary]
    round_ns = busy.length_within(edges[:-1], edges[1:])
    if 2 * round_ns.sum() < busy.length_ns:
        return False
    usual_ns = np.median(round_ns)
    alike = (2 * round_ns >= usual_ns) & (round_ns <= 2 * usual_ns)
    if alike.mean() < REGULAR_SHARE:
        return False
    is_kernel = is_one_of(linked.trace.activities["kind"], "kernel")[rows.row]
    name = linked.columns.name[rows.row]
    inside = is_kernel & (rows.start_ns >= edges[0]) & (rows.start_ns < edges[-1])
    after = is_kernel & (rows.start_ns >= edges[-1])
    is_new = ~np.isin(name[after], distinct(name[inside]))
    return len(boundary) > MOST_LAYERS or not is_new.any()


_NUMBER: Final = re.compile(r"\d{1,18}(?=\D{0,99}$)")


def device_steps(
    trace: Trace, accounts: Mapping[int, DeviceAccount]
) -> tuple[dict[int, list[Stretch]], dict[int, IntArray]] | None:
    """Return windows and step numbers by device from marks on devices, None if work is in none.

    Work belongs to the step in which it starts on its device.
    """
    marks = trace.marks
    rows = np.flatnonzero(is_one_of(marks["kind"], "gpu_step"))
    start = numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"], ABSENT)[rows]
    matches = [_NUMBER.search(label[-100:]) for label in names(marks["name"])]
    number_of = np.array([int(match[0]) if match else ABSENT for match in matches], dtype=np.int64)
    number = number_of[codes(marks["name"])[rows]]
    steps: dict[int, Steps] = {}
    for device, on_device in groups(numbers(marks["device"], ABSENT)[rows]):
        on_device = on_device[np.argsort(start[on_device], kind="stable")]
        is_numbered = (number[on_device] != ABSENT).all()
        own_number = number[on_device] if is_numbered else np.arange(len(on_device))
        steps[device] = Steps(own_number, start[on_device], end[on_device])
    repeated = any(len(distinct(marked.number)) < len(marked) for marked in steps.values())

    is_kernel = is_one_of(trace.activities["kind"], "kernel")
    stream = numbers(trace.activities["stream"], ABSENT)
    stretches, numbered = {}, {}
    for device, account in accounts.items():
        marked = steps.get(device, Steps(*[np.empty(0, dtype=np.int64)] * 3))
        row, work = account.rows.row, account.rows
        step = marked.at(work.start_ns)
        is_paced = paced(step, stream[row], is_kernel[row])
        stretches[device] = tile(work.start_ns, work.end_ns, step, work.span, None, is_paced)
        numbered[device] = np.arange(len(marked)) if repeated else marked.number
    is_any = any(stretch.role == "step" for tiled in stretches.values() for stretch in tiled)
    return (stretches, numbered) if is_any else None
