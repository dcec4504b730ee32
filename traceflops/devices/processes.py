"""Processes: what each is called, when it lived, and whose work a shared GPU did.

Every trace comes here once its files are together, so it makes no difference which tool wrote them
or whether each process has its own file.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count, filterfalse
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, IntArray, codes, numbers, take_rows
from traceflops.table.grouping import distinct, group_rows
from traceflops.table.trace import Note, Trace, counted_note, note_of, of_noun
from traceflops.timeline.intervals import ENDLESS, NEVER
from traceflops.units import listed, time_amount

_MOST_RANKS = 4
_HOST = ("ops", "marks")
"""Tables of ranges, which tools close with the last record of the file if they are still open."""


def whose(trace: Trace, process: int, *, with_file: bool = False) -> str:
    """Return what to call a process in a sentence; `with_file`, by its file if it has no rank."""
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
    ranks_of_users = ({ranks[user] for user in users} for users in users_of_devices(trace))
    return [tuple(sorted(rank for rank in of if rank is not None)) for of in ranks_of_users]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks in words, "" where none is known."""
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else ""
    if len(ranks) > _MOST_RANKS:
        return f"ranks {', '.join(map(str, ranks[:_MOST_RANKS]))}, …"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def unnamed_processes(trace: Trace) -> frozenset[int]:
    """Return the processes that stand for rows of an unknown one: without ID or rank.

    In a file in which no process has an ID, such a process is a real one.
    """
    rows = trace.processes.to_pylist()
    numbered = {row["file"] for row in rows if row["pid"] is not None}
    return frozenset(
        number
        for number, row in enumerate(rows)
        if row["pid"] is None and row["rank"] is None and row["file"] in numbered
    )


def lives(trace: Trace) -> tuple[IntArray, IntArray]:
    """Return the first and the last recorded moment of each process, in ns, per process.

    Without any record these are ENDLESS and NEVER. Tools end a range that is still open with the
    last activity or call of the file, of any process: only its start counts.
    """
    begin, end = (np.full(trace.processes.num_rows, unset) for unset in (ENDLESS, NEVER))

    def add(name: str, open_until: IntArray | None = None) -> None:
        """Take in a table; rows that end at `open_until` (per process) count with their start."""
        table = trace.table(name)
        process, start = numbers(table["process"]), numbers(table["start_ns"])
        last = start + np.maximum(numbers(table["dur_ns"], ABSENT), 0)
        if open_until is not None:
            last = np.where(last == open_until[process], start, last)
        np.minimum.at(begin, process, start)
        np.maximum.at(end, process, last)

    for name in ("activities", "calls"):
        add(name)
    file = codes(trace.processes["file"])
    last_of_file = np.full(int(file.max(initial=0)) + 1, NEVER)
    np.maximum.at(last_of_file, file, end)
    for name in _HOST:
        add(name, open_until=last_of_file[file])
    return begin, end


def clocks_of(trace: Trace) -> IntArray:
    """Return the number of each process's clock: times on the same clock can be compared."""
    if not trace.clocks:
        return np.zeros(trace.processes.num_rows, dtype=np.int64)
    clocks = {name: number for number, name in enumerate(dict.fromkeys(trace.clocks))}
    return np.array([clocks[name] for name in trace.clocks], dtype=np.int64)


_STARTING_NS: Final = 10**6
"""A process takes longer than this to start: with a shorter pause they lived side by side."""
_TIMED: Final = {"activities": "start_ns", "marks": "start_ns", "counters": "time_ns"}
_STREAMS: Final = (("activities", "stream"), ("marks", "stream"), ("marks", "wait_stream"))
_LARGE: Final = 1 << 60
"""Larger stream numbers are no counts; numbers above them might not fit in an int64."""
_Key = TypeVar("_Key", bound=Hashable)
Users = Mapping[int, list[int]]
"""The processes with work on each device that several have work on, in order."""
Runs = dict[int, list[list[int]]]  # the processes of each run on a device, in order of time
Stream = tuple[int, int, int]  # a stream as its process counts it: device, process, number


def settle_shared(trace: Trace) -> Trace:
    """Return the trace in which each device is of one run, and each stream of one process.

    `Trace.runs` tell which devices are one GPU (see `windows.chosen_runs`).
    """
    users = _shared(trace)
    if not users:
        return trace
    by_run = _with_runs_apart(trace, users)
    # What is left was used by several processes at once.
    users = _shared(by_run) if by_run is not trace else users
    if not users:
        return by_run

    gpus = []
    for device, processes in users.items():
        names = [whose(by_run, process) for process in processes]
        gpus.append(f"{called(by_run, device)} ({listed(names)})")
    shown = listed(gpus, str, "; ")
    note = note_of("assumed", "device-shared", count=len(users), gpus=shown)
    return _with_own_streams(replace(by_run, notes=(*by_run.notes, note)), users)


def _shared(trace: Trace) -> Users:
    """Return the users of each device that several processes have work on."""
    users = enumerate(users_of_devices(trace)) if trace.processes.num_rows > 1 else ()
    return {device: processes for device, processes in users if len(processes) > 1}


def _with_runs_apart(trace: Trace, users: Users) -> Trace:
    """Return the trace with a device for each run of those that ran one after the other on a GPU.

    Time between runs is then nobody's idle time. Runs are one after the other if nothing of the
    processes of one was recorded during the other. A device stays with its process if that is of
    its run, else it is of the first process of the run.
    """
    begin, end = lives(trace)
    # The runs of each device with more than one. A new run begins with a process that began after
    # all before it had ended, by more than it takes to start one. Processes that stand for rows of
    # an unknown one are in no run.
    split: Runs = {}
    nameless = unnamed_processes(trace)
    for device, processes in users.items():
        named = [process for process in processes if process not in nameless]
        order = np.array(sorted(named, key=lambda process: int(begin[process])), dtype=np.int64)
        pause = begin[order[1:]] - np.maximum.accumulate(end[order])[:-1]
        new_runs = np.flatnonzero(pause > _STARTING_NS) + 1
        if len(new_runs):
            split[device] = [run.tolist() for run in np.split(order, new_runs)]
    if not split:
        return trace
    # Runs of a GPU are neighbours: per new row its old one, per old row the first new one.
    count = [len(split.get(device, [[]])) for device in range(trace.devices.num_rows)]
    rows = np.repeat(np.arange(trace.devices.num_rows), count)
    first = np.searchsorted(rows, np.arange(trace.devices.num_rows))
    tables = dict(trace.tables)
    for name in ("activities", "marks", "counters", "kernel_counters", "kernel_rules"):
        table = trace.table(name)
        own, process = numbers(table["device"], ABSENT), numbers(table["process"])
        moved = np.where(own == ABSENT, ABSENT, first[np.maximum(own, 0)])
        for device, runs in split.items():
            of_device = np.flatnonzero(own == device)
            if name in _TIMED:  # of the last run that had begun; without times, of the process's
                starts = np.array([begin[members].min() for members in runs])
                time = numbers(table[_TIMED[name]])[of_device]
                run = np.maximum(np.searchsorted(starts, time, side="right") - 1, 0)
            else:
                run = np.zeros(len(of_device), dtype=np.int64)
                for number, members in enumerate(runs):
                    run[np.isin(process[of_device], members)] = number
            moved[of_device] += run
        tables[name] = with_numbers(table, "device", moved)
    owner = numbers(trace.devices["process"])[rows]
    for device, runs in split.items():
        for row, members in enumerate(runs, int(first[device])):
            owner[row] = owner[row] if owner[row] in members else min(members)
    devices = take_rows(trace.devices, rows)
    devices = with_numbers(devices, "device", np.arange(len(rows)))
    tables["devices"] = with_numbers(devices, "process", owner)
    places = tuple(trace.places[row] for row in rows.tolist()) if trace.places else ()
    run_number = (np.arange(len(rows)) - first[rows] + 1).tolist()
    return replace(
        trace,
        tables=tables,
        places=places,
        notes=(*trace.notes, _run_note(trace, split, begin, end)),
        runs=tuple(zip(rows.tolist(), run_number, strict=True)),
    )


def _run_note(trace: Trace, split: Runs, begin: IntArray, end: IntArray) -> Note:
    """Return the note on GPUs with several runs: which, whose, and how long apart."""
    gpus = []
    for device, runs in split.items():
        texts = []
        for number, members in enumerate(runs):
            text = f"run {number + 1} {whose(trace, members[0], with_file=True)}"
            if number:
                pause = int(begin[members].min()) - int(end[runs[number - 1]].max())
                text = f"{time_amount(pause)} later {text}"
            texts.append(text)
        gpus.append(f"{called(trace, device)} ({listed(texts)})")
    shown = listed(gpus, str, "; ")
    return note_of("assumed", "runs-on-one-gpu", count=len(split), gpus=shown)


def _with_own_streams(trace: Trace, users: Users) -> Trace:
    """Return the trace in which a number stands for one stream of a device.

    Each process counts its own. Rows of an unknown process are on the first stream of a number.
    """
    nameless = unnamed_processes(trace)
    streams, _ = _streams(trace.activities, "stream")
    # By device and number, the streams with that number; named processes come first.
    holders: dict[int, dict[int, list[list[Stream]]]] = {device: {} for device in users}
    for key in sorted(streams, key=lambda key: (key[1] in nameless, key)):
        device, process, number = key
        if device in users and number != ABSENT:
            alike = holders[device].setdefault(number, [])
            if process in nameless and alike:
                alike[0].append(key)
            else:
                alike.append([key])
    new = {key: number for of_gpu in holders.values() for key, number in apart(of_gpu).items()}
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
    note = renumbered_note(len({(key[0], number) for key, number in moved.items()}), "process")
    return replace(trace, tables=tables, notes=(*trace.notes, note))


def _streams(table: pa.Table, column: str) -> tuple[list[Stream], IntArray]:
    """Return the streams that are in a column, and which of them each row has."""
    columns = [numbers(table[name], ABSENT) for name in ("device", "process", column)]
    which, first = group_rows(columns)
    device, process, stream = (values[first].tolist() for values in columns)
    return list(zip(device, process, stream, strict=True)), which


def apart(holders: Mapping[int, Sequence[Sequence[_Key]]]) -> dict[_Key, int]:
    """Return the number of each stream: its own for the first holder, free ones for others.

    `holders` are, by number, the streams in order; those in one sequence are one stream.
    """
    highest = max(holders, default=-1)
    # Numbers above all others, unless these are so large (handles) that more might not fit.
    free = filterfalse(holders.__contains__, count(highest + 1 if highest < _LARGE else 0))
    numbered: dict[_Key, int] = {}
    for number, streams in sorted(holders.items()):
        for rank, members in enumerate(streams):
            numbered |= dict.fromkeys(members, next(free) if rank else number)
    return numbered


def renumbered_note(moved: int, of_what: str) -> Note:
    """Return the note that streams are shown under other numbers; `of_what` reuses their own."""
    sentence = (
        f"of another {of_what} on the same GPU [reuses|reuse] a number; [it is|they are] "
        "renumbered."
    )
    return counted_note("assumed", "streams-renumbered", of_noun("stream", sentence), moved)
