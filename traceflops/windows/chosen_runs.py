"""Of which run the figures of a GPU are that did work of several, one after the other.

Each of its runs is a row of the devices table (see `sharedgpus`), but it is one GPU: figures of two
runs together would count it twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from traceflops.devices import called, clocks_of, device_name, lives, whose
from traceflops.errors import UsageError
from traceflops.table import IntArray, Note, Trace, distinct, numbers
from traceflops.timeline import DeviceAccount
from traceflops.units import several, time_amount
from traceflops.windows.selection import Selection

# Which stretch of each device `--from` and `--to` choose.


_TIME_RANGE_MOST_NAMED: Final = 5


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
        listed = ", ".join(
            device_name(trace, device) for device in without[:_TIME_RANGE_MOST_NAMED]
        )
        more = ", …" if len(without) > _TIME_RANGE_MOST_NAMED else ""
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


_MOST_NAMED: Final = 5
_Account = TypeVar("_Account")


def one_run_per_gpu(
    trace: Trace, accounts: Mapping[int, _Account], selection: Selection
) -> tuple[dict[int, _Account], tuple[Note, ...]]:
    """Return the devices without the runs that are left out, and what to say of these.

    Raises UsageError where no GPU has the run that is asked for.
    """
    _check(trace, selection)
    shown = _shown(trace, accounts, selection)
    chosen = {device: one for device, one in accounts.items() if device in shown}
    return chosen, tuple(_notes(trace, chosen, selection))


def of_other_runs(trace: Trace, selection: Selection) -> list[int]:
    """Return the devices that are other runs than the one asked for; none if none is.

    Raises UsageError where no GPU has that run.
    """
    _check(trace, selection)
    if selection.run is None:
        return []
    devices = range(len(trace.runs))
    return sorted(set(devices) - _shown(trace, devices, selection))


def _check(trace: Trace, selection: Selection) -> None:
    most = max((number for _, number in trace.runs), default=1)
    if selection.run is not None and selection.run > most:
        text = "one run" if most == 1 else f"{most} runs"
        raise UsageError(
            f"there is no run {selection.run}: no GPU has more than {text}",
            "traceflops info lists the runs",
        )


def _shown(trace: Trace, devices: Collection[int], selection: Selection) -> set[int]:
    """Return one device for each GPU.

    All GPUs are shown in the run of one number, where they have it: that asked for, else the one
    with most device time in all. A GPU without it is shown in its own run with most.
    """
    if not trace.runs:
        return set(devices)
    time = _device_time(trace, selection)
    of_gpu: defaultdict[int, list[int]] = defaultdict(list)
    for device in devices:
        of_gpu[trace.runs[device][0]].append(device)
    in_all: defaultdict[int, int] = defaultdict(int)
    for mine in of_gpu.values():
        for device in mine if len(mine) > 1 else ():
            in_all[trace.runs[device][1]] += time[device]
    wanted = selection.run or max(in_all, key=lambda run: (in_all[run], -run), default=1)
    return {
        max(mine, key=lambda one: (trace.runs[one][1] == wanted, time[one], -one))
        for mine in of_gpu.values()
    }


def _device_time(trace: Trace, selection: Selection) -> list[int]:
    """Return how long each device worked, in the chosen stretch of time where one is chosen."""
    table = trace.activities
    device, process = numbers(table["device"]), numbers(table["process"])
    start = numbers(table["start_ns"])
    end = start + numbers(table["dur_ns"])
    if selection.is_time_range:
        first = origins(trace)[process]
        low = first + (selection.from_ns or 0)
        high = end if selection.to_ns is None else first + selection.to_ns
        start, end = np.maximum(start, low), np.minimum(end, high)
    found = np.zeros(trace.devices.num_rows, dtype=np.int64)
    np.add.at(found, device, np.maximum(end - start, 0))
    return [int(one) for one in found]


def _notes(trace: Trace, chosen: Collection[int], selection: Selection) -> Iterator[Note]:
    """Say of which run the figures of a GPU are."""
    counts: defaultdict[int, int] = defaultdict(int)
    for gpu, _ in trace.runs:
        counts[gpu] += 1
    of_several = [device for device in chosen if trace.runs and counts[trace.runs[device][0]] > 1]
    if not of_several:
        return
    listed = ", ".join(_run(trace, device, counts) for device in of_several[:_MOST_NAMED])
    more = ", …" if len(of_several) > _MOST_NAMED else ""
    left = sum(counts[trace.runs[device][0]] - 1 for device in of_several)
    text = (
        f"Figures cover one run on {several(len(of_several), 'GPU')}: {listed}{more}. "
        f"{several(left, 'other run')} {'is' if left == 1 else 'are'} ignored."
    )
    yield Note("assumed", "one-run-of-several", text, left)


def _run(trace: Trace, device: int, counts: Mapping[int, int]) -> str:
    gpu, number = trace.runs[device]
    owner = whose(trace, trace.devices["process"][device].as_py(), with_file=True)
    return f"{called(trace, device)} run {number} of {counts[gpu]} ({owner})"


# What to say where a number that `--gpu` gives is that of several devices.


_CHOSEN_GPUS_MOST_NAMED = 5


def gpu_notes(trace: Trace, devices: Collection[int], selection: Selection) -> Iterator[Note]:
    """Say that a number chose a device of each machine, or of each process that counts its own."""
    if selection.gpus is None:
        return
    local = {device: int(trace.devices["local_id"][device].as_py()) for device in devices}
    alike = {number for number, count in Counter(local.values()).items() if count > 1}
    chosen = [device for device in devices if local[device] in alike]
    if not chosen:
        return
    given = ", ".join(map(str, sorted(alike)[:_CHOSEN_GPUS_MOST_NAMED]))
    listed = ", ".join(device_name(trace, device) for device in chosen[:_CHOSEN_GPUS_MOST_NAMED])
    more = ", …" if len(chosen) > _CHOSEN_GPUS_MOST_NAMED else ""
    text = (
        f"GPU numbers repeat across machines or processes: --gpu "
        f"{given} selects {several(len(chosen), 'GPU')} "
        f"({listed}{more}). Use --ranks, or one machine's files, to select among them."
    )
    yield Note("assumed", "gpu-number-repeats", text, len(chosen))
