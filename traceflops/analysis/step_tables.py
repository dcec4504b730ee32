"""The steps of each device with their components, and its idle time gap by gap, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from traceflops.analysis.activity_table import known_numbers, names_of, windows_at
from traceflops.attribution import GapParts, gap_parts, main_culprits
from traceflops.table import ABSENT, NAME_TYPE, Column, merged_column, number_column
from traceflops.timeline import COMPONENTS
from traceflops.windows import chosen_time

if TYPE_CHECKING:
    from traceflops.table import IntArray
    from traceflops.windows import DeviceReport, Prepared

_RANK: Final = Column("rank", pa.int64(), "rank of the device's process")
_DEVICE: Final = Column("device", pa.int32(), "row of the devices table")
_COMPONENTS: Final = {
    "compute": "time in which a compute kernel runs",
    "memory": "time in which memory work runs, and no compute",
    "other": "time in which other work runs, and none of the former",
    "graph": "time in which a graph of unknown kernels runs, and none of the former",
    "communication": "exposed communication: time in which nothing else runs",
    "idle": "time in which nothing runs; the six sum to dur_ns",
}


def _schema(*columns: Column) -> pa.Schema:
    return pa.schema([column.field() for column in columns])


STEPS: Final = _schema(
    _RANK,
    _DEVICE,
    Column("step", pa.int64(), "number of the step"),
    Column("start_ns", pa.int64(), "start of its window on the trace's clock", "ns"),
    Column("dur_ns", pa.int64(), "duration of its window", "ns"),
    Column("used", pa.bool_(), "whether the step is part of the report"),
    *(Column(f"{name}_ns", pa.int64(), _COMPONENTS[name], "ns") for name in COMPONENTS),
)
GAPS: Final = _schema(
    _RANK,
    _DEVICE,
    Column("step", pa.int64(), "step of the window that it starts in"),
    Column("start_ns", pa.int64(), "start on the trace's clock", "ns"),
    Column("dur_ns", pa.int64(), "idle time in the windows used", "ns"),
    Column("class", NAME_TYPE, "what the host did for most of it, see culprits.md; null: unknown"),
    Column("culprit", NAME_TYPE, "function, operator, annotation or call that has most of that"),
    Column("kernel_before", NAME_TYPE, "name of the activity whose end began it"),
    Column("kernel_after", NAME_TYPE, "name of the activity whose start ended it"),
)


def step_table(devices: Sequence[DeviceReport]) -> pa.Table:
    """Return a row per device and step, also of steps that are not used."""
    rows = [
        {
            "rank": device.rank,
            "device": device.device,
            "step": step.step,
            "start_ns": step.start_ns,
            "dur_ns": step.dur_ns,
            "used": step.used,
            **{f"{name}_ns": ns for name, ns in step.account.components.parts().items()},
        }
        for device in devices
        for step in device.steps
    ]
    return pa.Table.from_pylist(rows, STEPS)


def gap_table(prepared: Prepared, devices: Sequence[DeviceReport]) -> pa.Table:
    """Return a row per gap between the activities of a device, in the windows that are used."""
    ranks = {one.device: ABSENT if one.rank is None else one.rank for one in devices}
    parts: list[GapParts] = []
    found: list[IntArray] = []
    for device, account in prepared.accounts.items():
        windows = prepared.windows[device]
        mine = gap_parts(account, chosen_time(windows))
        before = account.rows.row[account.first_ending(mine.gap_start_ns)]
        device_of, rank_of = (np.full_like(before, one) for one in (device, ranks[device]))
        parts.append(mine)
        found.append(np.stack([rank_of, device_of, windows_at(windows, mine.start_ns)[0], before]))
    if not parts:
        return GAPS.empty_table()
    gaps, activities = GapParts.joined(parts), prepared.trace.activities
    rank_of, device_of, step, before = np.concatenate(found, axis=1)
    culprit, names = main_culprits(prepared, gaps)
    is_named = np.array([*(label != "" for _, label in names), False])
    columns = [
        known_numbers(rank_of),
        number_column(device_of, pa.int32()),
        known_numbers(step),
        known_numbers(gaps.start_ns),
        known_numbers(gaps.end_ns - gaps.start_ns),
        merged_column(culprit, [kind for kind, _ in names]),
        merged_column(np.where(is_named[culprit], culprit, -1), [label for _, label in names]),
        names_of(activities, before),
        names_of(activities, gaps.activity),
    ]
    return pa.Table.from_arrays(columns, schema=GAPS)
