"""Steps as stretches of device time: marked on the device, or inferred from what repeats there."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise, takewhile
from typing import Final

import numpy as np

from traceflops.facts import Fact, fact
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
)
from traceflops.table.grouping import differ_from_before, distinct, groups
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.device_span import DeviceRows
from traceflops.windows import repetition
from traceflops.windows.device_records import MATERIAL
from traceflops.windows.records import Accounts, device_words
from traceflops.windows.step_times import Steps
from traceflops.windows.tiling import Stretch, paced, tile, with_rest

_WARM_UP_FACTOR = 1.25  # a leading step that takes longer than so many medians is warm-up
_RARE = 10  # warm-up ends where at least one in so many of the later steps takes as long
KEEP_LAST_UP_TO = 2
"""With more steady steps than this, the last is left out: no successor bounds it."""
LAST_STEP, _CUT = fact("left-out.last-step"), fact("left-out.cut")
LOSSY: Final = fact("left-out.lossy")
_LAYERS: Final = 2  # rounds that hold so many periods have these as layers
_FEWEST_TO_CUT: Final = 3  # with fewer steps, none tells the usual length


def steady(
    durations_ns: IntArray, before_ns: int = 0, *, may_warm_up: bool = True, has_end: bool = False
) -> list[Fact | None]:
    """Return, per step, the reason why it is not steady, None for steady steps.

    * Warm-up: leading steps longer than 1.25 times the median (see `_warm_up_count`).
    * Cut off: the first of three or more, if it takes less than 3/4 of the usual time, and work of
      no step before it (`before_ns`) takes at least half of what it lacks. The first step takes
      20, others 100; it lacks 80, and the work before it takes 50: it began before the recording.
    * Last: the last of three or more that remain. But if it `has_end`, it is steady: then its end
      is known, and is not just the end of the recording.

    Without `may_warm_up` steps do different work: no length shows warm-up, or a step cut off.
    """
    count = len(durations_ns)
    reasons: list[Fact | None] = [None] * count
    if count < 2:
        return reasons
    warm_up_count = _warm_up_count(durations_ns) if may_warm_up else 0
    reasons[:warm_up_count] = [fact("left-out.warm-up", times=_WARM_UP_FACTOR)] * warm_up_count
    if may_warm_up and count >= _FEWEST_TO_CUT:
        usual_ns, first_ns = float(np.median(durations_ns[1:])), float(durations_ns[0])
        is_much_shorter = 4 * first_ns < 3 * usual_ns
        is_rest_before = 2 * before_ns >= usual_ns - first_ns
        if is_much_shorter and is_rest_before:
            reasons[0] = _CUT
    if count - warm_up_count > KEEP_LAST_UP_TO and not has_end:
        reasons[-1] = LAST_STEP
    return reasons


def _warm_up_count(durations_ns: IntArray) -> int:
    """Return how many leading steps are warm-up, from the durations of all steps.

    They are longer than 1.25 medians. Warm-up ends at a step that a tenth of the later steps take
    as long as: [90 20 10 10 20 10 10] has one step of warm-up, as 20 comes again.
    """
    times_ns: list[int] = durations_ns.tolist()
    long_ns = _WARM_UP_FACTOR * float(np.median(durations_ns))
    slow_ns = [*takewhile(lambda ns: ns > long_ns, times_ns)]
    later_ns = sorted(times_ns[len(slow_ns) :])
    for index, ns in enumerate(slow_ns):
        later_as_long = len(later_ns) - bisect_left(later_ns, ns)
        if _RARE * later_as_long >= len(later_ns):
            return index
    return len(slow_ns)


def lossy(
    launched: IntArray, late_ns: IntArray, ended_ns: IntArray, durations_ns: IntArray
) -> BoolArray:
    """Return, per step, whether records of GPU work are lost in its time, along with their calls.

    launched [40 40 40 38 12], late_ns [0 0 0 9 30]: in the last two, work starts late, though
    nothing recorded held it back, and they have fewer launches than any step in time. Both are
    lossy. But if most late steps have as many launches as others, none is lossy.

    Late time counts for the step that it is in (`late_ns`), and for the step in which it ends
    (`ended_ns`), as a step may begin only with its late work. The step that holds the late time
    before a lossy step lacks records, too.
    """
    least_ns = np.maximum(MATERIAL * durations_ns, 1)
    holds, is_late = late_ns >= least_ns, np.maximum(late_ns, ended_ns) >= least_ns
    whole = launched[~is_late]
    if len(whole) < _FEWEST_TO_CUT:
        return np.zeros(len(launched), dtype=np.bool_)
    is_lossy = is_late & (launched < whole.min())
    if 2 * is_lossy.sum() < is_late.sum():
        return np.zeros_like(is_lossy)
    return np.asarray(is_lossy | (holds & np.append(is_lossy[1:], False)))


_Periods = tuple[IntArray, Fact]
"""Boundaries of periods, and how they were found; period i is [boundary[i], boundary[i+1]).

Boundaries are indices of activities; the last may be the number of activities.
"""


def _by_optimizer(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    """Return periods that end with the kernels of an optimizer, None if they are irregular."""
    categories = enumerate(linked.categorised.categories)
    codes_of_optimizer = [code for code, category in categories if category.sub == "optimizer"]
    _, last = _clusters(np.isin(linked.categorised.category[rows.row], codes_of_optimizer))
    boundary = last[last + 1 < len(rows.row)] + 1  # no period begins behind the last activity
    if _alike(boundary).mean() < repetition.REGULAR_SHARE:
        return None
    return boundary, fact("steps-by.optimizer", optimizer=device_words(linked.trace).optimizer)


def _between_copies(linked: LinkedTrace, rows: DeviceRows) -> IntArray | None:
    """Return the boundaries of periods that begin with copies from or to the host.

    None if they are irregular.
    """
    directions = enumerate(names(linked.trace.activities["direction"]))
    copies = [code for code, direction in directions if direction in ("HtoD", "DtoH")]
    boundary, _ = _clusters(np.isin(linked.columns.direction[rows.row], copies))
    is_regular = _alike(boundary)
    if not is_regular.any():
        return None
    # Copies also occur at random: only periods with the most common content count.
    content = repetition.contents(linked.columns.name[rows.row], boundary)
    _, content_index, counts = np.unique(content, return_inverse=True, return_counts=True)
    is_regular &= content_index == np.argmax(counts)
    return None if is_regular.mean() < repetition.REGULAR_SHARE else boundary


def _by_copies(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    """Return periods that begin with copies, None if they are irregular or parts of longer ones."""
    boundary = _between_copies(linked, rows)
    if boundary is None:
        return None
    # Copies that come several times in longer equal rounds are of their layers: weights
    # that the GPU does not keep.
    order = order_of(linked, rows)
    longer = repetition.repeated_signature(order)
    if longer is not None and _LAYERS * len(longer) <= len(boundary):
        return None
    is_part = repetition.longer_rounds(order, boundary) is not None
    return None if is_part else (boundary, fact("steps-by.copies"))


def _by_methods(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    """Return periods that begin with calls of a TorchScript model, None if they are irregular."""
    tree = linked.op_tree
    is_called = is_one_of(linked.trace.ops["name"], _METHOD) & (tree.parent < 0)
    call = taken(tree.nearest(is_called), _ops_of(linked, rows), -1)
    # call [-1 7 7 7 9 9 -1]  ->  inside [1 2 3 4 5], boundary [1 4 6]
    inside = np.flatnonzero(call >= 0)
    if not len(inside):
        return None
    boundary = np.append(inside[differ_from_before(call[inside])], inside[-1] + 1)
    if _alike(boundary).mean() < repetition.REGULAR_SHARE:
        return None
    return boundary, fact("steps-by.methods", method=_METHOD)


def _ops_of(linked: LinkedTrace, rows: DeviceRows) -> IntArray:
    """Return the operator of each activity, -1 without one."""
    activities = linked.trace.activities
    # On a CPU, the operator is in the correlation (see `with_host_activities`).
    on_cpu = is_one_of(activities["kind"], "op")[rows.row]
    own = -1 - numbers(activities["correlation"], ABSENT)[rows.row]
    return np.where(on_cpu, own, linked.links.op_of_activity[rows.row])


def _are_of_backward(linked: LinkedTrace, rows: DeviceRows, boundary: IntArray) -> bool:
    """Return whether rounds are only of a backward pass, and much other work is outside of them.

    Steps would hold the forward pass, too: these are layers, or steps in time of a sequence.
    """
    ran_by = linked.op_tree.nearest(matching(linked.trace.ops["name"], _BACKWARD.match))
    op = _ops_of(linked, rows)
    is_backward = taken(ran_by, op, -1) >= 0
    inside = slice(boundary[0], boundary[-1])
    others = np.count_nonzero(~is_backward & (op >= 0))
    in_rounds = np.count_nonzero(~is_backward[inside])
    is_much = others >= _MUCH * len(op)
    return bool(is_much and in_rounds <= _FEW * len(is_backward[inside]))


def order_of(linked: LinkedTrace, rows: DeviceRows, since: int = 0) -> repetition.Order:
    """Return the activities of a device in order, without the first `since` ones."""
    row = rows.row[since:]
    name, call = linked.columns.name[row], linked.links.call_of_activity[row]
    return repetition.Order(name, rows.start_ns[since:], rows.end_ns[since:], call)


def _by_signature(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    """Return the longest rounds of activities that repeat, None without any."""
    order = order_of(linked, rows)
    rounds = repetition.repeated_signature(order)
    if rounds is None and (parts := _between_copies(linked, rows)) is not None:
        rounds = repetition.longer_rounds(order, parts)
    if rounds is None:
        return None
    begin, kind = rounds.begin, linked.trace.activities["kind"]
    if is_one_of(kind, "op")[rows.row].all():  # on a CPU nothing is queued when recording begins
        begin = _with_ends(order.name, begin)
    what = device_words(linked.trace).operation
    return begin, fact("steps-by.rounds", count=rounds.length, what=what)


def _with_ends(name: IntArray, begin: IntArray) -> IntArray:
    """Return boundaries of rounds with those at both ends of the work that are whole, too.

    |a b c|a b c|a b c|a b        # the first round is whole, the last is not
    """
    edges = begin[:_ROUNDS_COMPARED].tolist()
    count = partial(np.bincount, minlength=int(name.max()) + 1)
    usual = np.median([count(name[low:high]) for low, high in pairwise(edges)], axis=0)
    ends = {0: name[: begin[0]], len(name): name[begin[-1] :]}
    unlike = {edge: np.abs(count(own) - usual).sum() for edge, own in ends.items()}
    whole = [edge for edge, few in unlike.items() if few <= _UNLIKE * usual.sum()]
    return np.sort(np.append(begin, whole)).astype(np.int64)


_BACKWARD: Final = re.compile("autograd::engine::evaluate_function")
_MUCH, _FEW = 0.1, 0.02
"""Shares of activities outside of a backward pass: of all, and of those in rounds within it."""
_ROUNDS_COMPARED, _UNLIKE = 32, 0.05
_METHOD: Final = "forward"
SIGNATURE: Final = "signature"
SOURCES: Final[Mapping[str, Callable[[LinkedTrace, DeviceRows], _Periods | None]]] = {
    "optimizer": _by_optimizer,
    "copies": _by_copies,
    "methods": _by_methods,
    SIGNATURE: _by_signature,
}
"""Functions that find the periods of a device, the most reliable first, by `StepChoice.source`."""


def _clusters(is_marked: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the first and the last index of each cluster of marked activities.

    A cluster ends where the next marked activity is at least half as far away as in the widest gap.
    """
    index = np.flatnonzero(is_marked)
    if len(index) < 2:
        return index, index
    # index [3 4 20 21 40], gap [1 16 1 19]  ->  is_edge [0 1 0 1], first [3 20 40], last [4 21 40]
    gap = np.diff(index)
    is_edge = gap * 2 >= max(int(gap.max()), repetition.FEWEST_ACTIVITIES)
    return index[np.append(True, is_edge)], index[np.append(is_edge, True)]


def _alike(boundary: IntArray) -> BoolArray:
    """Return, per period, whether it has about the usual (median) number of activities.

    A single False if there are few periods, or if they are small.
    """
    counts = np.diff(boundary)
    usual = float(np.median(counts)) if len(counts) >= repetition.FEWEST_ROUNDS else 0.0
    if usual < repetition.FEWEST_ACTIVITIES:
        return np.zeros(1, dtype=np.bool_)
    return np.abs(counts - usual) <= repetition.TOLERANCE * usual


def inferred_steps(
    linked: LinkedTrace, accounts: Accounts
) -> tuple[dict[int, list[Stretch]], str, Fact] | None:
    """Return windows by device, their source and how it finds steps; None without any.

    The source is the first of SOURCES that finds iterations on every device.
    """
    if not accounts:
        return None
    for source in SOURCES:
        found = _on_every_device(linked, accounts, source)
        if found is not None:
            stretches, how = found
            where = device_words(linked.trace).device
            return stretches, source, fact("steps-by.repetition", device=where, how=how)
    return None


def _on_every_device(
    linked: LinkedTrace, accounts: Accounts, source: str
) -> tuple[dict[int, list[Stretch]], Fact] | None:
    """Return windows by device and how a source finds them; None if any device has none."""
    stretches = {}
    for device, account in accounts.items():
        periods = SOURCES[source](linked, account.rows)
        if periods is None:
            return None
        boundary, how = periods
        # An optimizer runs once per iteration; whatever else repeats may do so inside of one.
        if source != "optimizer" and not _are_iterations(linked, account, boundary):
            return None
        work, counts = account.rows, np.diff(boundary)
        edges = np.append(work.start_ns, work.span[1])[boundary]
        number = np.arange(len(counts))
        stretches[device] = with_rest(work.span, number, edges[:-1], edges[1:], counts)
    return stretches, how


def _are_iterations(linked: LinkedTrace, account: DeviceAccount, boundary: IntArray) -> bool:
    """Return whether the rounds between boundaries are iterations of the program's loop.

    If not, they may be the layers of one pass, a sweep over sizes, or set-up. Iterations are most
    of the work, the last up to twice its usual time, and take similar times. A recording ends in
    the loop, or soon after it. 32 rounds are followed by kernels with names that no round has:
    these are the last part of a pass, and the rounds are its layers. But 256 rounds or more are no
    layers, unless they are all of a backward pass.
    """
    rows, busy = account.rows, account.timeline.busy
    if _are_of_backward(linked, rows, boundary):
        return False
    edges = np.append(rows.start_ns, rows.span[1])[boundary]
    round_ns = busy.length_within(edges[:-1], edges[1:])
    usual_ns = np.median(round_ns)
    # Before the last boundary, such as a copy of the result, the program may do its main work.
    round_ns[-1] = min(round_ns[-1], 2 * usual_ns)
    if 2 * round_ns.sum() < busy.length_ns:
        return False
    is_alike = (2 * round_ns >= usual_ns) & (round_ns <= 2 * usual_ns)
    if is_alike.mean() < repetition.REGULAR_SHARE:
        return False
    if len(boundary) > repetition.MOST_LAYERS:
        return True
    is_kernel = is_one_of(linked.trace.activities["kind"], "kernel")[rows.row]
    name = linked.columns.name[rows.row]
    inside = is_kernel & (rows.start_ns >= edges[0]) & (rows.start_ns < edges[-1])
    after = is_kernel & (rows.start_ns >= edges[-1])
    return bool(np.isin(name[after], distinct(name[inside])).all())


_NUMBER: Final = re.compile(r"\d{1,18}(?=\D{0,99}$)")  # the last number in a name
_END_OF_NAME: Final = 100  # so many last characters are searched for it: names may be very long


def device_steps(
    trace: Trace, accounts: Accounts
) -> tuple[dict[int, list[Stretch]], dict[int, IntArray]] | None:
    """Return windows and step numbers by device from marks on it, None if work is in none."""
    steps = _steps_of_tool(trace)
    # Numbers that repeat do not tell steps apart: then all devices count from 0.
    has_repeats = any(len(distinct(marked.number)) < len(marked) for marked in steps.values())
    is_kernel = is_one_of(trace.activities["kind"], "kernel")
    stream = numbers(trace.activities["stream"], ABSENT)
    stretches, step_numbers = {}, {}
    for device, account in accounts.items():
        marked = steps.get(device, Steps.none())
        row, work = account.rows.row, account.rows
        step = marked.at(work.start_ns)  # work belongs to the step in which it starts
        is_paced = paced(step, stream[row], is_kernel[row])
        stretches[device] = tile(work.start_ns, work.end_ns, step, work.span, is_paced)
        step_numbers[device] = np.arange(len(marked)) if has_repeats else marked.number
    has_steps = any(stretch.role == "step" for tiled in stretches.values() for stretch in tiled)
    return (stretches, step_numbers) if has_steps else None


def _steps_of_tool(trace: Trace) -> dict[int, Steps]:
    """Return the steps that the tool marks on each device, numbered as it names them, or from 0."""
    marks = trace.marks
    rows = np.flatnonzero(is_one_of(marks["kind"], "gpu_step"))
    start = numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"], ABSENT)[rows]
    matches = [_NUMBER.search(label[-_END_OF_NAME:]) for label in names(marks["name"])]
    number_of = np.array([int(match[0]) if match else ABSENT for match in matches], dtype=np.int64)
    number = number_of[codes(marks["name"])[rows]]
    steps: dict[int, Steps] = {}
    for device, on_device in groups(numbers(marks["device"], ABSENT)[rows]):
        on_device = on_device[np.argsort(start[on_device], kind="stable")]
        is_numbered = (number[on_device] != ABSENT).all()
        own_number = number[on_device] if is_numbered else np.arange(len(on_device))
        steps[device] = Steps(own_number, start[on_device], end[on_device])
    return steps
