"""What is known of processes: what each is called, when it lived; whose work a shared GPU did.

Every trace goes through here once all its files are together, so that it makes no difference
whether the processes have a file each, or which tool wrote them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, filterfalse
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from traceflops.table import (
    ABSENT,
    IntArray,
    Note,
    Trace,
    codes,
    counted_note,
    distinct,
    group_rows,
    number_column,
    numbers,
    of_noun,
    with_numbers,
)
from traceflops.units import listed, several, time_amount

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


_STARTING_NS: Final = 10**6
"""A process takes longer than this to start: what is nearer lived side by side."""
_TIMED: Final = {"activities": "start_ns", "marks": "start_ns", "counters": "time_ns"}
_STREAMS: Final = (("activities", "stream"), ("marks", "stream"), ("marks", "wait_stream"))

_LARGE: Final = 1 << 60
"""Numbers beyond are no counts: behind them there may be no room in an int64."""
_Key = TypeVar("_Key", bound=Hashable)

Users = Mapping[int, list[int]]
"""The processes with work on each device that several have work on, in order."""
Stream = tuple[int, int, int]
"""A stream as its process counts it: device, process, number."""


def settle_shared(trace: Trace) -> Trace:
    """Return the trace in which each device is of one run, and each stream of one process.

    `Trace.runs` tell which devices are one GPU (see `windows.chosen_runs`).
    """
    users = _shared(trace)
    if not users:
        return trace
    by_run = _with_runs_apart(trace, users)
    users = _shared(by_run) if by_run is not trace else users
    return _with_own_streams(_noted(by_run, users), users) if users else by_run


def _shared(trace: Trace) -> Users:
    users = enumerate(users_of_devices(trace)) if trace.processes.num_rows > 1 else ()
    return {device: mine for device, mine in users if len(mine) > 1}


def _noted(trace: Trace, users: Users) -> Trace:

    def text_of(device: int) -> str:
        return f"{called(trace, device)} ({listed(users[device], partial(whose, trace))})"

    text = (
        f"{several(len(users), 'GPU')} ran work of several processes: "
        f"{listed(users, text_of, '; ')}. Each GPU's figures cover all its processes."
    )
    note = Note("assumed", "device-shared", text, len(users))
    return replace(trace, notes=(*trace.notes, note))


def _with_runs_apart(trace: Trace, users: Users) -> Trace:
    """Return the trace with a device for each run of those that ran one after the other on a GPU.

    So the time between two runs is no idle time of any. Runs are one after the other where of
    the processes of one nothing at all was recorded in the time of the other's.
    """
    nameless = unnamed_processes(trace)
    alive = lives(trace)
    runs = {
        device: _runs([one for one in mine if one not in nameless], alive)
        for device, mine in users.items()
    }
    split = {device: mine for device, mine in runs.items() if len(mine) > 1}
    if not split:
        return trace
    rows = np.repeat(
        np.arange(trace.devices.num_rows),
        [len(split.get(device, "1")) for device in range(trace.devices.num_rows)],
    )
    first = np.searchsorted(rows, np.arange(trace.devices.num_rows))
    tables = dict(trace.tables)
    for name in ("activities", "marks", "counters", "kernel_counters", "kernel_rules"):
        table = trace.table(name)
        device = numbers(table["device"], ABSENT)
        place = first[np.maximum(device, 0)] + _places(name, table, split, alive[0])
        moved = np.where(device == ABSENT, ABSENT, place)
        tables[name] = with_numbers(table, "device", moved)
    tables["devices"] = _devices(trace.devices, rows, first, split)
    places = tuple(trace.places[row] for row in rows.tolist()) if trace.places else ()
    notes = (*trace.notes, _run_note(trace, split, alive))
    numbered = zip(rows.tolist(), (np.arange(len(rows)) - first[rows] + 1).tolist(), strict=True)
    return replace(trace, tables=tables, places=places, notes=notes, runs=tuple(numbered))


def _runs(processes: Sequence[int], alive: tuple[IntArray, IntArray]) -> list[list[int]]:
    """Return the processes of each run on a device, in order of time."""
    begin, end = alive
    order = np.array(sorted(processes, key=lambda process: int(begin[process])), dtype=np.int64)
    pause = begin[order[1:]] - np.maximum.accumulate(end[order])[:-1]
    parts = np.split(order, np.flatnonzero(pause > _STARTING_NS) + 1)
    return [part.tolist() for part in parts]


def _places(
    name: str, table: pa.Table, split: Mapping[int, list[list[int]]], begin: IntArray
) -> IntArray:
    """Return the place of the run of each row on its device.

    It is the last that had begun, of a row without a time that of its process.
    """
    device, process = numbers(table["device"], ABSENT), numbers(table["process"])
    place = np.zeros(len(device), dtype=np.int64)
    for one, runs in split.items():
        mine = np.flatnonzero(device == one)
        if name in _TIMED:
            starts = np.array([begin[members].min() for members in runs])
            time = numbers(table[_TIMED[name]])[mine]
            place[mine] = np.maximum(np.searchsorted(starts, time, side="right") - 1, 0)
        for at, members in enumerate(runs if name not in _TIMED else ()):
            place[mine[np.isin(process[mine], members)]] = at
    return place


def _devices(
    table: pa.Table, rows: IntArray, first: IntArray, split: Mapping[int, list[list[int]]]
) -> pa.Table:
    """Return the devices of all runs, each of the first process of its run."""
    owner = numbers(table["process"])[rows]
    for device, runs in split.items():
        for at, members in enumerate(runs):
            row = int(first[device]) + at
            owner[row] = owner[row] if owner[row] in members else min(members)
    taken = table.take(number_column(rows, pa.int64()))
    numbered = with_numbers(taken, "device", np.arange(len(rows)))
    return with_numbers(numbered, "process", owner)


def _run_note(
    trace: Trace, split: Mapping[int, list[list[int]]], alive: tuple[IntArray, IntArray]
) -> Note:
    begin, end = alive

    def run_text(device: int, place: int) -> str:
        runs = split[device]
        run = f"run {place + 1} {whose(trace, runs[place][0], with_file=True)}"
        if not place:
            return run
        pause = int(begin[runs[place]].min()) - int(end[runs[place - 1]].max())
        return f"{time_amount(pause)} later {run}"

    def gpu_text(device: int) -> str:
        runs = listed(range(len(split[device])), partial(run_text, device))
        return f"{called(trace, device)} ({runs})"

    text = (
        f"{several(len(split), 'GPU')} ran several runs in sequence: "
        f"{listed(split, gpu_text, '; ')}. The time between runs is not idle time. Figures cover "
        "one run per GPU; --run N selects it."
    )
    return Note("assumed", "runs-on-one-gpu", text, len(split))


def _with_own_streams(trace: Trace, users: Users) -> Trace:
    """Return the trace in which a number stands for one stream of a device.

    Processes count their streams for themselves. A row of an unknown process is on the stream of
    the first that has its number.
    """
    new = _stream_numbers(trace, users)
    moved = {key: number for key, number in new.items() if number != key[2]}
    if not moved:
        return trace
    tables = dict(trace.tables)
    for name, column in _STREAMS:
        table = tables.get(name, trace.table(name))
        streams, which = _streams(table, column)
        if moved.keys() & set(streams):
            values = np.array([moved.get(key, key[2]) for key in streams])[which]
            tables[name] = with_numbers(table, column, values)
    count = len({(key[0], number) for key, number in moved.items()})
    note = renumbered_note(count, "process")
    return replace(trace, tables=tables, notes=(*trace.notes, note))


def _streams(table: pa.Table, column: str) -> tuple[list[Stream], IntArray]:
    """Return the streams that are in a column, and which of them each row has."""
    columns = [numbers(table[name], ABSENT) for name in ("device", "process", column)]
    which, first = group_rows(columns)
    device, process, stream = (values[first].tolist() for values in columns)
    return list(zip(device, process, stream, strict=True)), which


def _stream_numbers(trace: Trace, users: Users) -> dict[Stream, int]:
    nameless = unnamed_processes(trace)
    streams, _ = _streams(trace.activities, "stream")
    holders: defaultdict[int, defaultdict[int, list[list[Stream]]]]
    holders = defaultdict(lambda: defaultdict(list))
    for key in sorted(streams, key=lambda key: (key[1] in nameless, key)):
        device, process, number = key
        if device in users and number != ABSENT:
            alike = holders[device][number]
            if process in nameless and alike:
                alike[0].append(key)
            else:
                alike.append([key])
    return {key: number for mine in holders.values() for key, number in apart(mine).items()}


def apart(holders: Mapping[int, Sequence[Sequence[_Key]]]) -> dict[_Key, int]:
    """Return the number of each stream of a device; the further ones of a number get free ones.

    `holders` are the streams that have each number, in the order in which they have a right to it;
    what stands together is one stream.
    """
    highest = max(holders, default=-1)
    free = filterfalse(holders.__contains__, count(highest + 1 if highest < _LARGE else 0))
    found: dict[_Key, int] = {}
    for number, streams in sorted(holders.items()):
        for place, members in enumerate(streams):
            found |= dict.fromkeys(members, next(free) if place else number)
    return found


def renumbered_note(moved: int, of_what: str) -> Note:
    """Return that streams are shown under another number than their own."""
    sentence = (
        f"of another {of_what} on the same GPU [reuses|reuse] a number; [it is|they are] "
        "renumbered."
    )
    return counted_note("assumed", "streams-renumbered", of_noun("stream", sentence), moved)
