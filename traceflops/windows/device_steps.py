"""Steps that the tool itself marks on the devices, as XLA's profiler does on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table import ABSENT, IntArray, Trace, codes, distinct, is_one_of, names, numbers
from traceflops.timeline import DeviceAccount
from traceflops.windows.periodicity import Stretch, paced, tile
from traceflops.windows.step_times import Steps

DEVICE_STEPS: Final = "steps that the profiler marks on the GPU"
_NUMBER: Final = re.compile(r"\d{1,18}(?=\D{0,99}$)")


def device_steps(
    trace: Trace, accounts: Mapping[int, DeviceAccount]
) -> tuple[dict[int, list[Stretch]], dict[int, IntArray]] | None:
    """Return stretches and step numbers by device; None where no work starts in a step.

    Work is of the step in which it starts on its device.
    """
    steps = _marked(trace)
    kernels = is_one_of(trace.activities["kind"], "kernel")
    stream = numbers(trace.activities["stream"], ABSENT)
    repeated = any(len(distinct(one.number)) < len(one) for one in steps.values())
    stretches, numbered = {}, {}
    for device, account in accounts.items():
        mine = steps.get(device, Steps(*[np.empty(0, dtype=np.int64)] * 3))
        rows = account.rows
        place = mine.at(rows.start_ns)
        is_paced = paced(place, stream[rows.row], kernels[rows.row])
        stretches[device] = tile(rows.start_ns, rows.end_ns, place, rows.span, None, is_paced)
        numbered[device] = np.arange(len(mine)) if repeated else mine.number
    known = any(one.role == "step" for each in stretches.values() for one in each)
    return (stretches, numbered) if known else None


def _marked(trace: Trace) -> dict[int, Steps]:
    """Return the marked steps of each device, by start."""
    marks = trace.marks
    rows = np.flatnonzero(is_one_of(marks["kind"], "gpu_step"))
    start = numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"], ABSENT)[rows]
    told = [_NUMBER.search(label[-100:]) for label in names(marks["name"])]
    number_of = np.array([int(one[0]) if one else ABSENT for one in told], dtype=np.int64)
    device, number = numbers(marks["device"], ABSENT)[rows], number_of[codes(marks["name"])[rows]]
    found = {}
    for one in distinct(device).tolist():
        mine = np.flatnonzero(device == one)
        mine = mine[np.argsort(start[mine], kind="stable")]
        known = (number[mine] != ABSENT).all()
        found[one] = Steps(number[mine] if known else np.arange(len(mine)), start[mine], end[mine])
    return found
