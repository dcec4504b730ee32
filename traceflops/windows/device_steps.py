"""Steps that the tool itself marks on the devices, as XLA's profiler does on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table.columns import IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct, groups
from traceflops.table.rows import ABSENT
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
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
    marks = trace.marks
    rows = np.flatnonzero(is_one_of(marks["kind"], "gpu_step"))
    start = numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"], ABSENT)[rows]
    matches = [_NUMBER.search(label[-100:]) for label in names(marks["name"])]
    number_of = np.array([int(match[0]) if match else ABSENT for match in matches], dtype=np.int64)
    number = number_of[codes(marks["name"])[rows]]
    steps: dict[int, Steps] = {}
    for device, mine in groups(numbers(marks["device"], ABSENT)[rows]):
        mine = mine[np.argsort(start[mine], kind="stable")]
        is_numbered = (number[mine] != ABSENT).all()
        own_number = number[mine] if is_numbered else np.arange(len(mine))
        steps[device] = Steps(own_number, start[mine], end[mine])
    repeated = any(len(distinct(own.number)) < len(own) for own in steps.values())

    is_kernel = is_one_of(trace.activities["kind"], "kernel")
    stream = numbers(trace.activities["stream"], ABSENT)
    stretches, numbered = {}, {}
    for device, account in accounts.items():
        own = steps.get(device, Steps(*[np.empty(0, dtype=np.int64)] * 3))
        row, work = account.rows.row, account.rows
        place = own.at(work.start_ns)
        is_paced = paced(place, stream[row], is_kernel[row])
        stretches[device] = tile(work.start_ns, work.end_ns, place, work.span, None, is_paced)
        numbered[device] = np.arange(len(own)) if repeated else own.number
    is_any = any(stretch.role == "step" for tiled in stretches.values() for stretch in tiled)
    return (stretches, numbered) if is_any else None
