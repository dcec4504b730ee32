"""Of which run the figures of a GPU are that did work of several, one after the other.

Each of its runs is a row of the devices table (see `sharedgpus`), but it is one GPU: figures of two
runs together would count it twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeVar

import numpy as np

from traceflops.devices import called, device_name, whose
from traceflops.errors import UsageError
from traceflops.table import Note, Trace, numbers
from traceflops.units import several
from traceflops.windows.selection import Selection
from traceflops.windows.time_range import origins

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
