"""Removes what cannot be true of a recording: impossible times, ends and amounts.

The rules are in docs/damage.md. They apply to the trace of every reader; the only thing that
depends on the format is whether a stream works in order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.errors import InputError
from traceflops.parsers.io.database_query import Batch
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.shared import amounts
from traceflops.parsers.shared.repeats import with_peer_copies, without_repeats
from traceflops.table.columns import ABSENT, LIMIT_NS, BoolArray, IntArray, matching, numbers
from traceflops.table.grouping import distinct, groups, joint_codes
from traceflops.table.links import first_of_same, recorded_calls
from traceflops.table.patterns import WAITS_FOR_DEVICE
from traceflops.table.trace import Note, Trace
from traceflops.units import time_amount

_CLOCKS_NS: Final = 50_000  # times of one GPU are inconsistent by less than this
_HOST_NS: Final = 10_000_000
"""Clocks of GPU and host differ by less than this, if they agree at all."""
_LATER: Final = 3
"""With programmatic early launch, one or two later activities may end first; this many cannot."""
_SLIP: Final = 0.05
_CUDA: Final = re.compile(r"cu(da)?[A-Z]")


def overrunning(trace: Trace) -> BoolArray:
    """Return which activities end impossibly late: after later work, or after a wait for them.

    A stream works in order, so no activity ends after three later ones have ended. A call that
    waits for the whole GPU returns after everything launched before it has ended. If more than one
    activity and more than 5 % are late, streams or clocks are not what they seem: return none.
    """
    late = _after_later_work(trace) | _after_waits(trace)
    is_slip = int(late.sum()) <= max(1, _SLIP * len(late))
    return late if is_slip else np.zeros_like(late)


def _after_later_work(trace: Trace) -> BoolArray:
    """Return which activities end after _LATER later ones of their stream have ended.

    None does if streams are not those of the program, or if many activities of a stream overlap.
    """
    activities = trace.activities
    late = np.zeros(activities.num_rows, dtype=np.bool_)
    # Elsewhere, and in PyTorch without CUDA, a stream may be a queue that several streams share.
    if trace.source.format == "pytorch":
        has_streams = bool(matching(trace.calls["name"], _CUDA.match).any())
    else:
        has_streams = trace.source.format.startswith("nsys")
    if not has_streams:
        return late
    start, stream = (numbers(activities[name], ABSENT) for name in ("start_ns", "stream"))
    end = start + numbers(activities["dur_ns"])
    process, device = (numbers(activities[name]) for name in ("process", "device"))

    # Only work with a launch of its own: nodes of a graph run side by side.
    correlation = numbers(activities["correlation"], ABSENT)
    key = joint_codes(process, correlation)
    _, code, count = np.unique(key, return_inverse=True, return_counts=True)
    has_own_launch = (stream != ABSENT) & (correlation != ABSENT) & (count[code] == 1)
    for name in ("graph", "graph_node"):
        has_own_launch &= numbers(activities[name], ABSENT) == ABSENT
    rows = np.flatnonzero(has_own_launch)
    queue = joint_codes(joint_codes(process[rows], device[rows]), stream[rows])
    order = np.lexsort((end[rows], start[rows], queue))
    rows, queue = rows[order], queue[order]
    overlaps = (queue[1:] == queue[:-1]) & (start[rows[1:]] < end[rows[:-1]] - _CLOCKS_NS)
    if np.count_nonzero(overlaps) > max(1, _SLIP * len(late)):  # fewer are recording errors
        return late
    for _, members in groups(queue):
        ended = end[rows[members]]
        late[rows[members]] = _end_of_later(ended) < ended - _CLOCKS_NS
    return late


def _end_of_later(end: IntArray) -> IntArray:
    """Return the `_LATER`th earliest end of the rows behind each row, else the largest int."""
    never = np.iinfo(np.int64).max
    candidates = end
    for _ in range(_LATER):  # round n finds the nth earliest end
        # The minimum of all later rows: a suffix minimum, shifted by one row.
        least = np.append(np.minimum.accumulate(candidates[::-1])[::-1], never)[1:]
        # Each row passes on the larger of its value and `least`: the smaller one was its minimum.
        candidates = np.maximum(candidates, least)
    return least


def _after_waits(trace: Trace) -> BoolArray:
    """Return which activities end more than _HOST_NS after a call that waited for them returned."""
    activities, calls = trace.activities, trace.calls
    late = np.zeros(activities.num_rows, dtype=np.bool_)
    waits = np.flatnonzero(matching(calls["name"], WAITS_FOR_DEVICE.match))
    if not len(waits) or not len(late):
        return late
    called, process = numbers(calls["start_ns"]), numbers(activities["process"])
    returned, caller = called + numbers(calls["dur_ns"]), numbers(calls["process"])
    call, device = first_of_same(calls, "correlation", activities), numbers(activities["device"])
    end = numbers(activities["start_ns"]) + numbers(activities["dur_ns"])
    launched = np.flatnonzero(call >= 0)
    rows_of = {number: launched[members] for number, members in groups(process[launched])}
    for number, members in groups(caller[waits]):
        rows = rows_of.get(number, launched[:0])
        if len(distinct(device[rows])) != 1:  # with several, it is unknown which a call waits for
            continue
        # Work has ended when any wait returns that began after its launch: take the first return.
        wait = waits[members][np.argsort(called[waits[members]], kind="stable")]
        next_wait = np.searchsorted(called[wait], called[call[rows]], side="right")
        first_return = np.minimum.accumulate(returned[wait][::-1])[::-1]
        latest_end = np.append(first_return, np.iinfo(np.int64).max)[next_wait]
        late[rows] = latest_end < end[rows] - _HOST_NS
    return late


COUNTED_WHILE_TIMED: Final = Note(
    "assumed",
    "counted-while-timed",
    "Hardware counters were recorded in the timed run, which serializes kernels: idle time and "
    "overlap are not those of a normal run.",
)
"""A note of readers of all tools that count and time in one run."""
DAY_NS: Final = 86_400 * 10**9
_UNSET_AWAY_NS: Final = 600 * 10**9
_LONGEST_NS: Final = 2**53  # 104 days; sums of times below it fit an int64
_RANGES: Final = ("activities", "calls", "ops", "marks")
_MINUTE_NS: Final = 60 * 10**9
_LONGEST_SHOWN: Final = 120
_A_SLIP: Final = 0.1  # a larger share of the records than this is no recording error
_NOTES: Final = NoteTable(
    repaired={
        "no-duration": "{n} [record|records] without an end: counted as 0 ns.",
        "negative-duration": "{n} [record|records] with negative duration: counted as 0 ns.",
    },
    dropped={
        "no-time": "{n} [record|records] skipped: no valid start time.",
        "set-aside": "{count} [record|records] with impossible times ignored: {parts} ({time} of "
        "GPU time).",
    },
    assumed={
        "times-apart": "{count} [record starts|records start] at least a day from the others: the "
        "recording paused or a clock was wrong. Spans and idle time may include that gap; select a "
        "part with --from and --to.",
        "very-long": "One GPU operation takes {time}, longer than all others of its GPU together: "
        "{name}. It counts in full; if it is a fault, exclude it with --from and --to.",
    },
)


def plausible(trace: Trace) -> Trace:
    """Return the trace without impossible and repeated records, with notes that count them.

    Raises InputError if the times add up to more than _LONGEST_NS: they are in another unit.
    """
    trace = amounts.without_impossible_amounts(_without_impossible_times(trace))
    for name in _RANGES:
        table = trace.table(name)
        if not table.num_rows:
            continue
        start, length = numbers(table["start_ns"]), numbers(table["dur_ns"])
        span_ns = int(start.max()) - int(start.min())
        # Only of work: nested calls and ranges add up to far more than the recording.
        work_ns = float(length.sum(dtype=np.float64)) if name == "activities" else 0.0
        if max(span_ns, int(length.max()), work_ns) > _LONGEST_NS:
            raise InputError(
                f"times add up to more than 104 days: {trace.source.files[0].name}",
                "ts and dur must be in microseconds; convert other units",
            )
    trace = with_peer_copies(without_repeats(trace))
    notes = (*amounts.counter_notes(trace), *amounts.lifetime_notes(trace), *_long_notes(trace))
    return amounts.with_notes(trace, notes)


def _without_impossible_times(trace: Trace) -> Trace:
    """Return the trace without records that are far from the others in time, or far too long.

    Records that are too many for recording errors stay.
    """
    # The records of all tables, one table after the other, those of the device first.
    tables = [trace.table(name) for name in _RANGES]
    edges = np.cumsum([0, *(table.num_rows for table in tables)])  # of each table in `start`
    if not edges[-1]:
        return trace
    start, length = (
        np.concatenate([numbers(table[name]) for table in tables])
        for name in ("start_ns", "dur_ns")
    )
    of_device = slice(0, trace.activities.num_rows)

    low, high = _main_stretch(start)
    is_far = (start < low) | (start > high)
    if not _is_slip(is_far, of_device):
        # If all of the device is far from all of the host, their clocks differ: no gap to report.
        device, host = is_far[of_device], is_far[of_device.stop :]
        far_side, near_side = (device, host) if device.any() else (host, device)
        is_by_clocks = bool(len(near_side)) and far_side.all() and not near_side.any()
        # Calls with records of the device prove that both are of one recording.
        if is_by_clocks and recorded_calls(trace).any():
            return trace
        return amounts.with_notes(trace, [_NOTES.note("times-apart", int(is_far.sum()))])
    is_too_long = ~is_far & (length > max(DAY_NS, high - low))
    if not _is_slip(is_too_long, of_device):
        is_too_long[:] = False
    kept = ~(is_far | is_too_long)
    is_overrun = kept[of_device] & overrunning(trace)
    kept[of_device] &= ~is_overrun

    device_ns = sum(length[of_device][~kept[of_device]].tolist())
    keep = dict(zip(_RANGES, np.split(kept, edges[1:-1]), strict=True))
    times = numbers(trace.counters["time_ns"])
    keep["counters"] = (times >= low - DAY_NS) & (times <= high + DAY_NS)
    reasons = {
        "more than a day from the others or at an unset time": int(is_far.sum()),
        "longer than the recording": int(is_too_long.sum()),
        "running on after later work of the stream or a wait for it": int(is_overrun.sum()),
    }
    parts = "; ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    time, count = time_amount(device_ns), sum(reasons.values())
    notes = [_NOTES.note("set-aside", count, parts=parts, time=time)] if count else []
    return amounts.with_notes(trace, notes, amounts.only_rows(trace.tables, keep))


def _is_slip(rows: BoolArray, of_device: slice) -> bool:
    """Return whether marked rows are few enough for recording errors, and not all of the device."""
    is_whole_device = bool(of_device.stop) and bool(rows[of_device].all())
    return int(rows.sum()) <= max(1, len(rows) * _A_SLIP) and not is_whole_device


def _main_stretch(starts: IntArray) -> tuple[int, int]:
    """Return the first and the last start, in ns, of the stretch of time with the most records.

    A day in which nothing begins separates two stretches. Profilers write 0 for an unknown start:
    starts of 0 are a stretch of their own if nothing else begins in the first 10 minutes.
    """
    first, last = int(starts.min()), int(starts.max())
    if last - first <= (_UNSET_AWAY_NS if first == 0 else DAY_NS):
        return first, last
    starts = np.sort(starts)
    breaks = np.diff(starts) > DAY_NS
    zeros = int(np.searchsorted(starts, 0, side="right"))
    if first == 0 and zeros < len(starts):
        breaks[zeros - 1] |= starts[zeros] > _UNSET_AWAY_NS
    edges = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(starts)]])
    largest = int(np.argmax(np.diff(edges)))
    return int(starts[edges[largest]]), int(starts[edges[largest + 1] - 1])


def _long_notes(trace: Trace) -> Iterator[Note]:
    """Yield notes on activities longer than a minute and all others of their GPU; at most three."""
    activities = trace.activities
    if activities.num_rows < 2:
        return
    length, device = numbers(activities["dur_ns"]), numbers(activities["device"])
    if int(length.max()) <= _MINUTE_NS:
        return
    work = np.bincount(device, weights=length)
    for row in np.flatnonzero((length > _MINUTE_NS) & (2 * length > work[device]))[:3].tolist():
        name = str(activities["name"][row].as_py())[:_LONGEST_SHOWN]
        yield _NOTES.note("very-long", 1, time=time_amount(int(length[row])), name=name)


def spans(
    start: IntArray, end: IntArray, odd: Counter[str]
) -> tuple[BoolArray, IntArray, IntArray]:
    """Return which records have a valid start, then start and duration in ns of these records.

    A record without a valid end, or with an end before its start, lasts 0 ns. `odd` counts such
    records and those without a valid start, by the codes of notes.
    """
    is_time = (start >= 0) & (start < LIMIT_NS)
    if not is_time.all():
        odd["no-time"] += int(np.count_nonzero(~is_time))
        start, end = start[is_time], end[is_time]
    is_end = (end > 0) & (end < LIMIT_NS)  # 0: the end was never written
    is_negative = is_end & (end < start)
    if is_negative.any() or not is_end.all():
        odd["no-duration"] += int(np.count_nonzero(~is_end))
        odd["negative-duration"] += int(np.count_nonzero(is_negative))
        end = np.where(is_end & ~is_negative, end, start)
    return is_time, start, end - start


def span_notes(odd: Counter[str]) -> Iterator[Note]:
    """Yield the notes on records with odd times."""
    return _NOTES.counted(odd, "no-time", "no-duration", "negative-duration")


def timed(rows: Batch, odd: Counter[str], start: str = "start", end: str = "end") -> Batch:
    """Return the rows with a valid start, with `start_ns` and `dur_ns` (see `spans`)."""
    is_time, start_ns, dur_ns = spans(rows[start], rows[end], odd)
    kept = rows.only(is_time)
    return Batch(kept.count, {**kept.numbers, "start_ns": start_ns, "dur_ns": dur_ns}, kept.texts)
