"""What is known of the processes of a trace: what each is called, when it lived, on which clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceflops.table import ABSENT, IntArray, Trace, codes, distinct, numbers

_MOST_RANKS = 4
_HOST = ("ops", "marks")
"""Tables whose rows may have got their end from the last record, though not ended then."""


def whose(trace: Trace, process: int, *, with_file: bool = False) -> str:
    """Return what to call a process in a sentence."""
    row = trace.processes.slice(process, 1).to_pylist()[0]
    if row["rank"] is not None:
        return f"rank {row['rank']}"
    if with_file and len(set(trace.processes["file"].to_pylist())) > 1:
        return str(row["file"])
    return f"process {row['pid']}" if row["pid"] is not None else "a process without an ID"


def device_name(trace: Trace, device: int) -> str:
    """Return what to call a device in a sentence: whose it is, and its number there."""
    return f"{whose(trace, trace.devices['process'][device].as_py())} ({called(trace, device)})"


def called(trace: Trace, device: int) -> str:
    """Return what to call a device where it does not matter whose it is."""
    rows = trace.devices
    return f"{rows['type'][device].as_py()} {rows['local_id'][device].as_py()}"


def users_of_devices(trace: Trace) -> list[list[int]]:
    """Return the processes that worked on each device, in order."""
    count = max(1, trace.processes.num_rows)
    device, process = (numbers(trace.activities[name]) for name in ("device", "process"))
    users: list[list[int]] = [[] for _ in range(trace.devices.num_rows)]
    for pair in distinct(device * count + process).tolist():
        users[pair // count].append(pair % count)
    return users


def ranks_of_devices(trace: Trace) -> list[tuple[int, ...]]:
    """Return the known ranks of the processes that worked on each device, in order."""
    ranks = trace.ranks
    known = ({ranks[user] for user in users} for users in users_of_devices(trace))
    return [tuple(sorted(rank for rank in mine if rank is not None)) for mine in known]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks in words, "" where none is known."""
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else ""
    if len(ranks) > _MOST_RANKS:
        return f"ranks {', '.join(map(str, ranks[:_MOST_RANKS]))}, …"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def unnamed_processes(trace: Trace) -> frozenset[int]:
    """Return the processes that only stand for rows that do not say whose they are."""
    rows = trace.processes.to_pylist()
    numbered = {row["file"] for row in rows if row["pid"] is not None}
    return frozenset(
        place
        for place, row in enumerate(rows)
        if row["pid"] is None and row["rank"] is None and row["file"] in numbered
    )


def lives(trace: Trace) -> tuple[IntArray, IntArray]:
    """Return the first and the last moment of which anything was recorded, by process.

    A process without any record lives from the largest number to the smallest. A range that was
    still open when the recording stopped ends with the last call or work of its file: such an end
    says nothing of its process.
    """
    count = trace.processes.num_rows
    limits = np.iinfo(np.int64)
    begin, end = np.full(count, limits.max), np.full(count, limits.min)
    latest = end.copy()
    for name in ("activities", "calls", *_HOST):
        table = trace.table(name)
        process, start = numbers(table["process"]), numbers(table["start_ns"])
        last = start + np.maximum(numbers(table["dur_ns"], ABSENT), 0)
        if name in _HOST:
            last = np.where(last == latest[process], start, last)
        np.minimum.at(begin, process, start)
        np.maximum.at(end, process, last)
        if name == "calls":
            latest = _latest_of_files(trace, end)
    return begin, end


def _latest_of_files(trace: Trace, end: IntArray) -> IntArray:
    """Return, by process, the latest of the given ends of all processes of its file."""
    file = codes(trace.processes["file"])
    latest = np.full(int(file.max(initial=0)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, file, end)
    return latest[file]


def clocks_of(trace: Trace) -> IntArray:
    """Return the clock of each process: times of equal ones can be compared."""
    if not trace.clocks:
        return np.zeros(trace.processes.num_rows, dtype=np.int64)
    known = {name: place for place, name in enumerate(dict.fromkeys(trace.clocks))}
    return np.array([known[name] for name in trace.clocks], dtype=np.int64)
