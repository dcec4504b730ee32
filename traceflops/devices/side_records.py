"""Side records: records of an allocator or a GPU made at the same time as a trace.

They are a Trace whose counters and marks are added to those of the trace, by calendar time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.errors import InputError
from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, matching, numbers, take_rows
from traceflops.table.merged_notes import named
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace

MEMORY_SNAPSHOT: Final = "PyTorch memory snapshot"
GPU_SAMPLES: Final = "GPU samples"
SIDE_FORMATS: Final = (MEMORY_SNAPSHOT, GPU_SAMPLES)  # the formats of such records
_TIMES: Final = {"counters": "time_ns", "marks": "start_ns"}


def check_side(records: Trace, format_: str) -> None:
    """Raise InputError for records of another format than the requested one."""
    if records.source.format != format_:
        name = records.source.files[0].name
        raise InputError(
            f"wrong kind of file: {name} ({records.source.format}, not {format_})",
            "give a memory snapshot with --memory, samples of GPUs with --gpu-samples, and the "
            "recording itself as TRACE",
        )


def calendar_shift(trace: Trace, records: Trace) -> int:
    """Return the ns to add to records' times for a trace's clock. InputError if one is unknown."""
    origins = (records.source.origin_unix_ns, trace.source.origin_unix_ns)
    if origins[0] is None or origins[1] is None:
        whose = (records if origins[0] is None else trace).source.files[0].name
        problem = f"cannot join {records.source.files[0].name}: no calendar time in {whose}"
        raise InputError(problem, "show each by itself")
    return origins[0] - origins[1]


def same_devices(trace: Trace, records: Trace) -> dict[int, int]:
    """Return, for rows of the records' devices, the row of the same device in the trace.

    Its number is the same, and its process has the same rank. If the records or processes have no
    rank, only one process may have GPUs. Raises InputError if no device or several processes fit.
    """
    rank, name = records.ranks[0], records.source.files[0].name  # records are of one process
    gpus = [row for row in trace.devices.to_pylist() if row["type"] == "gpu"]
    owners = {gpu["process"] for gpu in gpus}
    of_rank = {owner for owner in owners if rank is not None and trace.ranks[owner] == rank}
    fitting = of_rank or {owner for owner in owners if None in (rank, trace.ranks[owner])}
    if len(fitting) > 1:
        hint = (
            "give the trace of its rank alone, or name the file after its rank, e.g. rank3.pickle"
        )
        raise InputError(f"unknown rank: {name}", hint)
    row_of = {gpu["local_id"]: gpu["device"] for gpu in gpus if gpu["process"] in fitting}
    sampled = [row for row in records.devices.to_pylist() if row["local_id"] in row_of]
    same = {row["device"]: row_of[row["local_id"]] for row in sampled}
    if not same:
        whose = f"rank {rank}" if not fitting and rank is not None else "its GPU"
        raise InputError(f"{whose} is not in the trace: {name}", "give the trace of its rank")
    return same


def is_apart(trace: Trace, records: Trace, shift_ns: int) -> bool:
    """Return whether all records were made before a trace began, or after it ended."""
    times = numbers(records.counters["time_ns"]) + shift_ns
    starts = [numbers(trace.table(name)["start_ns"]) for name in ("activities", "ops")]
    trace_starts = np.concatenate(starts)
    if not len(times) or not len(trace_starts):
        return False
    return bool(times.max() < trace_starts.min() or times.min() > trace_starts.max())


def without_counters(trace: Trace, prefix: str, devices: Collection[int]) -> Trace:
    """Return a trace without the counters of some devices whose names begin with the prefix."""
    table = trace.counters
    named = matching(table["name"], lambda name: name.startswith(prefix))
    rows = named & np.isin(numbers(table["device"], ABSENT), list(devices))
    kept = take_rows(table, np.flatnonzero(~rows)) if rows.any() else table
    return replace(trace, tables={**trace.tables, "counters": kept})


def with_records(
    trace: Trace, records: Trace, shift_ns: int, device_of: Mapping[int, int]
) -> Trace:
    """Return a trace with the counters, marks, notes and files of records added.

    `device_of` maps rows of the records' devices to the trace's; other rows lose their device. Rows
    without a device get the process of the first of these devices.
    """
    new_device = np.full(records.devices.num_rows, ABSENT)
    new_device[list(device_of)] = list(device_of.values())
    owner = numbers(trace.devices["process"])  # per device of the trace
    usual_process = int(owner[min(device_of.values())]) if device_of else 0
    tables = dict(trace.tables)
    for name, time in _TIMES.items():
        added = records.table(name)
        if added.num_rows:
            device = taken(new_device, numbers(added["device"], ABSENT), ABSENT)
            added = with_numbers(added, time, numbers(added[time]) + shift_ns)
            added = with_numbers(added, "device", device)
            added = with_numbers(added, "process", taken(owner, device, usual_process))
            both = pa.concat_tables([trace.table(name), added])
            both = both.unify_dictionaries().combine_chunks()
            tables[name] = take_rows(both, np.argsort(numbers(both[time]), kind="stable"))
    files = (*trace.source.files, *records.source.files)
    notes = (*trace.notes, *map(named, records.notes))
    return replace(trace, source=replace(trace.source, files=files), tables=tables, notes=notes)
