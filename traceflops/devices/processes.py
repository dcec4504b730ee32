"""Processes: their names, their lifetimes, and whose work a shared GPU did.

This runs after files are merged: it does not matter whether each process has its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count, filterfalse
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.table.builder import with_numbers
from traceflops.table.columns import ABSENT, IntArray, codes, numbers, take_rows
from traceflops.table.grouping import distinct, group_rows
from traceflops.table.nesting import taken
from traceflops.table.trace import Note, Trace, counted_note, note_of, of_noun
from traceflops.timeline.intervals import ENDLESS, NEVER
from traceflops.units import listed, time_amount

_MOST_RANKS = 4
_HOST = ("ops", "marks")
"""Tables of ranges; tools end a range that is still open with the last record of the file."""


def whose(trace: Trace, process: int, *, with_file: bool = False) -> str:
    """Return the name of a process in a sentence: its rank, else (`with_file`) its file, or PID."""
    row = trace.processes.slice(process, 1).to_pylist()[0]
    if row["rank"] is not None:
        return f"rank {row['rank']}"
    if with_file and len(set(trace.processes["file"].to_pylist())) > 1:
        return str(row["file"])
    return f"process {row['pid']}" if row["pid"] is not None else "a process without an ID"


def device_name(trace: Trace, device: int) -> str:
    """Return the name of a device in a sentence: its process, and its number there."""
    return f"{whose(trace, trace.devices['process'][device].as_py())} ({called(trace, device)})"


def called(trace: Trace, device: int) -> str:
    """Return the name of a device without its process, such as "gpu 0"."""
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
    of_devices = ({ranks[user] for user in users} for users in users_of_devices(trace))
    return [tuple(sorted(rank for rank in own if rank is not None)) for own in of_devices]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks in words, "" if there are none."""
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else ""
    if len(ranks) > _MOST_RANKS:
        return f"ranks {', '.join(map(str, ranks[:_MOST_RANKS]))}, …"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def unnamed_processes(trace: Trace) -> frozenset[int]:
    """Return the processes that stand for unknown ones: without ID and rank, beside named ones.

    If no process of a file has an ID, its processes are real ones whose IDs the tool left out.
    """
    rows = trace.processes.to_pylist()
    files_with_ids = {row["file"] for row in rows if row["pid"] is not None}
    return frozenset(
        process
        for process, row in enumerate(rows)
        if row["pid"] is None and row["rank"] is None and row["file"] in files_with_ids
    )


def lives(trace: Trace) -> tuple[IntArray, IntArray]:
    """Return the start of the first record and the end of the last one of each process, in ns.

    They are ENDLESS and NEVER for a process without records. Of ranges that end with the last
    activity or call of their file, of any process, only the start counts: they were still open.
    """
    begin, end = (np.full(trace.processes.num_rows, unset) for unset in (ENDLESS, NEVER))

    def add(name: str, open_until: IntArray | None = None) -> None:
        """Add the rows of a table; of rows that end at `open_until` (per process), the start."""
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
"""Starting a process takes longer: after a shorter pause, the next one had already been started."""
_TIMED: Final = {"activities": "start_ns", "marks": "start_ns", "counters": "time_ns"}
_STREAMS: Final = (("activities", "stream"), ("marks", "stream"), ("marks", "wait_stream"))
_LARGE: Final = 1 << 60
"""Larger stream numbers are handles; numbers above them might not fit in an int64."""
_Key = TypeVar("_Key", bound=Hashable)
Users = Mapping[int, list[int]]
"""By device on which several processes worked: these processes, in order."""
Runs = dict[int, list[list[int]]]  # by device: its runs in order of time, each a list of processes


class Stream(NamedTuple):
    """A stream of a process on a device; `number` is its number in this process."""

    device: int
    process: int
    number: int


def settle_shared(trace: Trace) -> Trace:
    """Return the trace in which each device is of one run, and each stream of one process.

    `Trace.runs` tells which devices are one GPU (see `windows.chosen_runs`).
    """
    users = _shared(trace)
    if not users:
        return trace
    by_run = _with_runs_apart(trace, users)
    # The devices that several processes used at once.
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
    """Return the processes of each device on which several worked."""
    users = enumerate(users_of_devices(trace)) if trace.processes.num_rows > 1 else ()
    return {device: processes for device, processes in users if len(processes) > 1}


def _with_runs_apart(trace: Trace, users: Users) -> Trace:
    """Return the trace with a device for each of the runs that followed each other on a GPU.

    Time between runs is then no idle time of any run. A device stays with its process if that is
    part of the run, else the device gets the first process of the run.
    """
    begin, end = lives(trace)
    split = _consecutive_runs(trace, users, begin, end)
    if not split:
        return trace
    # The runs of a GPU get neighbouring rows. `old_row` has, by new row, the device that it was;
    # `first_row` has, by that device, the first new row.
    device_rows = np.arange(trace.devices.num_rows)
    old_row = np.repeat(device_rows, [len(split.get(row, [[]])) for row in device_rows.tolist()])
    first_row = np.searchsorted(old_row, device_rows)
    tables = dict(trace.tables)
    for name in ("activities", "marks", "counters", "kernel_counters", "kernel_rules"):
        table = trace.table(name)
        device_of = numbers(table["device"], ABSENT)
        moved = taken(first_row, device_of, ABSENT)
        for device, runs in split.items():
            on_device = np.flatnonzero(device_of == device)
            moved[on_device] += _run_of(take_rows(table, on_device), _TIMED.get(name), runs, begin)
        tables[name] = with_numbers(table, "device", moved)
    owner = numbers(trace.devices["process"])[old_row]
    for device, runs in split.items():
        for row, members in enumerate(runs, int(first_row[device])):
            owner[row] = owner[row] if owner[row] in members else min(members)
    devices = take_rows(trace.devices, old_row)
    devices = with_numbers(devices, "device", np.arange(len(old_row)))
    tables["devices"] = with_numbers(devices, "process", owner)
    places = tuple(trace.places[row] for row in old_row.tolist()) if trace.places else ()
    run_number = (np.arange(len(old_row)) - first_row[old_row] + 1).tolist()
    return replace(
        trace,
        tables=tables,
        places=places,
        notes=(*trace.notes, _run_note(trace, split, begin, end)),
        runs=tuple(zip(old_row.tolist(), run_number, strict=True)),
    )


def _consecutive_runs(trace: Trace, users: Users, begin: IntArray, end: IntArray) -> Runs:
    """Return the runs of each device with more than one; `begin` and `end` are of `lives`.

    A new run begins with a process that began after all earlier ones had ended, by more than the
    time to start a process. Processes that stand for rows of an unknown one are in no run.
    """
    runs_of: Runs = {}
    nameless = unnamed_processes(trace)
    for device, processes in users.items():
        named = [process for process in processes if process not in nameless]
        order = np.array(sorted(named, key=lambda process: int(begin[process])), dtype=np.int64)
        pause = begin[order[1:]] - np.maximum.accumulate(end[order])[:-1]
        new_runs = np.flatnonzero(pause > _STARTING_NS) + 1
        if len(new_runs):
            runs_of[device] = [run.tolist() for run in np.split(order, new_runs)]
    return runs_of


def _run_of(rows: pa.Table, time: str | None, runs: list[list[int]], begin: IntArray) -> IntArray:
    """Return the index of the run of each row: the last one that had begun at its `time`.

    Rows without a column of times are of the run of their process.
    """
    if time is not None:
        starts = np.array([begin[members].min() for members in runs])
        return np.maximum(np.searchsorted(starts, numbers(rows[time]), side="right") - 1, 0)
    run = np.zeros(rows.num_rows, dtype=np.int64)
    for number, members in enumerate(runs):
        run[np.isin(numbers(rows["process"]), members)] = number
    return run


def _run_note(trace: Trace, split: Runs, begin: IntArray, end: IntArray) -> Note:
    """Return the note on GPUs with several runs: their processes, and the pauses between them."""
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
    """Return the trace in which each number of a device stands for one stream.

    Several processes may use one number. Rows of an unknown process are on its first stream.
    """
    nameless = unnamed_processes(trace)
    streams, _ = _streams(trace.activities, "stream")
    # By device and number: the streams with that number, each as a list of its rows of `Stream`.
    holders: dict[int, dict[int, list[list[Stream]]]] = {device: {} for device in users}
    for stream in sorted(streams, key=lambda stream: (stream.process in nameless, stream)):
        if stream.device in users and stream.number != ABSENT:
            same_number = holders[stream.device].setdefault(stream.number, [])
            # Named processes come first, so the first stream is one of theirs if there is any.
            if stream.process in nameless and same_number:
                same_number[0].append(stream)
            else:
                same_number.append([stream])
    moved: dict[Stream, int] = {}
    for of_device in holders.values():
        moved |= {key: number for key, number in apart(of_device).items() if number != key.number}
    if not moved:
        return trace
    tables = dict(trace.tables)
    for name, column in _STREAMS:
        table = tables.get(name, trace.table(name))
        streams, index = _streams(table, column)
        if moved.keys() & set(streams):
            values = np.array([moved.get(stream, stream.number) for stream in streams])[index]
            tables[name] = with_numbers(table, column, values)
    new_numbers = {(stream.device, number) for stream, number in moved.items()}
    note = renumbered_note(len(new_numbers), "process")
    return replace(trace, tables=tables, notes=(*trace.notes, note))


def _streams(table: pa.Table, column: str) -> tuple[list[Stream], IntArray]:
    """Return the distinct streams in a column, and the index of that of each row."""
    columns = [numbers(table[name], ABSENT) for name in ("device", "process", column)]
    index, first = group_rows(columns)
    return list(map(Stream, *(values[first].tolist() for values in columns))), index


def apart(streams_of: Mapping[int, Sequence[Sequence[_Key]]]) -> dict[_Key, int]:
    """Return new numbers of streams, by key: different streams get different numbers.

    `streams_of` has, by number, the streams that use it, each as a list of its keys. The first of
    them keeps the number; each other gets a free one.
    """
    highest = max(streams_of, default=-1)
    # Numbers above all others, unless these are so large (handles) that more might not fit.
    free = filterfalse(streams_of.__contains__, count(highest + 1 if highest < _LARGE else 0))
    new_number: dict[_Key, int] = {}
    for number, (first_stream, *others) in sorted(streams_of.items()):
        new_number |= dict.fromkeys(first_stream, number)
        for stream in others:
            new_number |= dict.fromkeys(stream, next(free))
    return new_number


def renumbered_note(moved: int, of_what: str) -> Note:
    """Return the note on `moved` renumbered streams; another `of_what` uses their numbers, too."""
    sentence = (
        f"of another {of_what} on the same GPU [reuses|reuse] a number; [it is|they are] "
        "renumbered."
    )
    return counted_note("assumed", "streams-renumbered", of_noun("stream", sentence), moved)
