"""Which stretch of each device `--from` and `--to` choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.devices import clocks_of, device_name, lives
from traceflops.errors import UsageError
from traceflops.table import IntArray, Note, Trace, distinct, numbers
from traceflops.timeline import DeviceAccount
from traceflops.units import several, time_amount
from traceflops.windows.selection import Selection

_MOST_NAMED: Final = 5
_CLIPPED: Final = Note(
    "assumed", "range-clipped", "--to is after the last GPU operation; the window ends there."
)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The chosen stretch of each device that was recorded in it, and what to say of that."""

    of_device: Mapping[int, tuple[int, int]]
    notes: tuple[Note, ...] = ()


def origins(trace: Trace) -> IntArray:
    """Return, by process, from where `--from` and `--to` count: the first activity on its clock.

    It is that of the trace, whichever devices are chosen; the first op where there is no activity.
    """
    clock = clocks_of(trace)
    table = trace.activities if trace.activities.num_rows else trace.ops
    unset = np.iinfo(np.int64).max
    first = np.full(int(clock.max(initial=0)) + 1, unset)
    np.minimum.at(first, clock[numbers(table["process"])], numbers(table["start_ns"]))
    return np.where(first == unset, 0, first)[clock]


def chosen_range(
    trace: Trace, accounts: Mapping[int, DeviceAccount], selection: Selection
) -> TimeRange | None:
    """Return the stretch of each device. Raises UsageError where no device has any.

    A stretch reaches to the last activity on its clock, and no further than what was recorded of
    the processes of its device: beyond that it is not known whether the device was idle.
    """
    if not selection.is_time_range or not accounts:
        return None
    own = numbers(trace.devices["process"])
    process = {device: int(own[device]) for device in accounts}
    clock, first = clocks_of(trace), origins(trace)
    last: dict[int, int] = {}
    for device, account in accounts.items():
        mine = int(clock[process[device]])
        last[mine] = max(last.get(mine, account.rows.span[1]), account.rows.span[1])
    known = _recorded(trace, accounts)
    found, asked = {}, {}
    for device in accounts:
        begin, latest = int(first[process[device]]), last[int(clock[process[device]])]
        end = latest if selection.to_ns is None else min(latest, begin + selection.to_ns)
        asked[device] = (begin + (selection.from_ns or 0), end)
        start, end = max(asked[device][0], known[device][0]), min(end, known[device][1])
        if start < end:
            found[device] = (start, end)
    if not found:
        spans = (last[int(clock[one])] - int(first[one]) for one in process.values())
        raise UsageError(
            "--from/--to lie outside the trace", f"its GPU operations span {max(spans):,} ns"
        )
    notes = (
        *_clipped(selection, {first[process[d]]: last[int(clock[process[d]])] for d in accounts}),
        *_clock_notes(clock[list(process.values())]),
        *_unrecorded(trace, asked, found),
    )
    return TimeRange(found, notes)


def _recorded(trace: Trace, accounts: Mapping[int, DeviceAccount]) -> dict[int, tuple[int, int]]:
    """Return when anything was recorded of the processes of each device."""
    begin, end = lives(trace)
    process = numbers(trace.activities["process"])
    found = {}
    for device, account in accounts.items():
        users = distinct(process[account.rows.row])
        found[device] = int(begin[users].min()), int(end[users].max())
    return found


def _clipped(selection: Selection, reach: Mapping[int, int]) -> Iterator[Note]:
    if selection.to_ns is not None and any(
        last < first + selection.to_ns for first, last in reach.items()
    ):
        yield _CLIPPED


def _clock_notes(clock: IntArray) -> Iterator[Note]:
    """Say that the stretch is held against each clock alone."""
    count = len(distinct(clock))
    if count > 1:
        text = (
            f"The devices have {count} clocks (different machines or files) that cannot be "
            "compared. --from and --to count from the first GPU operation on each."
        )
        yield Note("assumed", "range-by-clock", text, count)


def _unrecorded(
    trace: Trace, asked: Mapping[int, tuple[int, int]], found: Mapping[int, tuple[int, int]]
) -> Iterator[Note]:
    """Say of which devices nothing was recorded in the stretch, or in a part of it."""
    without = [device for device in asked if device not in found]
    if without:
        listed = ", ".join(device_name(trace, device) for device in without[:_MOST_NAMED])
        more = ", …" if len(without) > _MOST_NAMED else ""
        text = (
            f"{several(len(without), 'device')} {'has' if len(without) == 1 else 'have'} no "
            f"records in the selected time range and {'is' if len(without) == 1 else 'are'} "
            f"ignored: {listed}{more}."
        )
        yield Note("missing", "devices-outside-range", text, len(without))
    short = [
        asked[device][1] - asked[device][0] - (end - start)
        for device, (start, end) in found.items()
    ]
    cut = [one for one in short if one > 0]
    if cut:
        text = (
            f"On {several(len(cut), 'device')} the selected time range is shorter, by up to "
            f"{time_amount(max(cut))}: nothing was recorded there, so idle time is unknown."
        )
        yield Note("assumed", "range-not-recorded", text, len(cut))
