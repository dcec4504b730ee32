"""Which tables of rocprof belong to one run, and which passes only repeated it for counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Final

import numpy as np
from msgspec import Struct, field

from traceflops.parsers.rocprof.agents import Agents
from traceflops.parsers.rocprof.tables.parts import COUNTERS, TableFile
from traceflops.parsers.rocprof.tables.processes import (
    Process,
    agents_listed,
    names_in,
    processes_of,
)
from traceflops.parsers.shared.sanity_checks import DAY_NS
from traceflops.parsers.shared.trace_builder import chosen

_TIMELINE: Final = ("activities", "copies", "graphs", "calls", "marks")
_APART_NS: Final = 10 * 10**9
"""Processes of one run overlap; a longer pause between them separates runs."""


class TableRun(Struct):
    """The processes of one run, and their files.

    `number` counts the runs of a folder, which are far apart in time. `is_one_clock` says that the
    times of all runs of the folder are of one clock. `agents` is what `agents_listed` returns. Of
    `passes_left_out` only the counters are used. `odd` counts by the codes of notes.
    """

    root: str
    processes: list[Process]
    agents: Mapping[Hashable | None, Agents]
    system: dict[str, str]
    is_one_clock: bool
    files: list[TableFile]
    number: int = 0
    passes_left_out: list[int] = field(default_factory=list)
    odd: Counter[str] = field(default_factory=Counter)


def runs_of(files: Sequence[TableFile]) -> list[TableRun]:
    """Return the runs that the files belong to. Every file is in a run; a run may have no rows."""
    folders: defaultdict[str, list[TableFile]] = defaultdict(list)
    for file in files:
        folders[file.place.root].append(file)
    # rocprof-compute puts the files of each pass (out/pmc_1) below the folder of its own tables,
    # one of which describes the system: counters there belong to the run of that folder.
    workloads = {
        PurePath(root) for root, of_root in folders.items() if any(file.system for file in of_root)
    }
    for root in sorted(folders):
        above = [folder for folder in PurePath(root).parents if folder in workloads]
        parts = [part for file in folders[root] for part in file.parts.values()]
        are_timed = any(part.has(*_TIMELINE) for part in parts)
        only_count = any(part.has(COUNTERS) for part in parts) and not are_timed
        if above and PurePath(root) not in workloads and only_count:
            folders[str(above[0])] += folders.pop(root)
    return [run for root in sorted(folders) for run in _in_folder(root, folders[root])]


def _in_folder(root: str, files: Sequence[TableFile]) -> list[TableRun]:
    """Return the runs in a folder: join its passes, then separate runs by long pauses."""
    by_pass: defaultdict[int | None, list[TableFile]] = defaultdict(list)
    kinds: defaultdict[Hashable, set[str]] = defaultdict(set)
    for file in files:
        by_pass[file.place.run_pass].append(file)
        if file.place.pid is not None:
            kinds[file.place.key, file.place.run_pass] |= file.kinds
    is_workload = any(file.system for file in files)  # of rocprof-compute
    # A process whose files only list agents launched the program and did nothing on a GPU.
    odd = Counter({"launcher": sum(of_process == {"agents"} for of_process in kinds.values())})
    if is_workload:
        odd["merged-passes"] = _leave_out_merged(files)
    in_order = sorted(by_pass, key=lambda number: -1 if number is None else number)
    passes = {number: processes_of(by_pass[number]) for number in in_order}
    processes = _joined_passes(passes)
    # Without other times, use those in the rows of counters; rocprof-compute's are only means.
    use_beside = not is_workload and not any(process.has_work for process in processes)
    repeated = [n for n, others in passes.items() if _have_timeline(others, use_beside)]
    for process in processes if use_beside else ():
        any(part.use_times_beside() for part in process.parts)  # `any` stops at the first with some
    runs = _separated(root, processes, files)
    used = {file for run in runs for file in run.files}
    runs[0].files += [file for file in files if file not in used]  # so that every file is in a run
    runs[0].passes_left_out = [number for number in repeated if number is not None]
    runs[0].odd = odd
    return runs


def _joined_passes(passes: dict[int | None, list[Process]]) -> list[Process]:
    """Return the processes of all passes; remove from `passes` the one whose times are used.

    That is the first pass with times and without counters, else the first with times. Of the other
    passes only the counters are used: they are added to the process that each repeats.
    """
    timed = [number for number, processes in passes.items() if _have_timeline(processes)]
    uncounted = [n for n in timed if not any(process.has(COUNTERS) for process in passes[n])]
    main = next(iter([*uncounted, *timed, *passes]))
    processes = passes.pop(main)
    for process in processes:
        process.count_own(main if passes else None)
    only_there: list[Process] = []
    for number, others in passes.items():
        for same, other in _paired(processes, others):
            if same is not None:
                same.join(other, number)
            elif other.has(COUNTERS):
                other.count_own(number)
                for part in other.parts:
                    part.beside = None  # times in the rows of counters
                    for table in _TIMELINE:
                        part.tables.pop(table, None)
                only_there.append(other)
    return _without_repetitions([*processes, *only_there])


def _have_timeline(processes: Iterable[Process], beside: bool = False) -> bool:
    """Return whether any process has times; with `beside`, those in rows of counters count, too."""
    return any(
        process.has(*_TIMELINE) or (beside and any(part.beside for part in process.parts))
        for process in processes
    )


def _paired(
    main: Sequence[Process], others: Sequence[Process]
) -> Iterator[tuple[Process | None, Process]]:
    """Yield each of the other processes with the process of `main` that it repeats, or None.

    A process has another pid in each repetition, so processes are paired by rank, else by the
    devices of their kernels, else by position. Ranks or devices pair them only if `main` and
    `others` have the same ones, each once.
    """
    indices: list[int | None] = [i if i < len(main) else None for i in range(len(others))]
    candidates: tuple[tuple[Sequence[object], Sequence[object]], ...] = (
        ([p.kernel_agents for p in main], [p.kernel_agents for p in others]),
        ([p.place.rank for p in main], [p.place.rank for p in others]),
    )
    for keys, other_keys in candidates:  # the last that pairs them counts: ranks
        are_unique = len(set(keys)) == len(keys) == len(other_keys)
        if are_unique and set(keys) == set(other_keys) and None not in keys:
            indices = [keys.index(key) for key in other_keys]
    for index, other in zip(indices, others, strict=True):
        yield None if index is None else main[index], other


def _without_repetitions(processes: Sequence[Process]) -> list[Process]:
    """Return processes without those that only repeat others for more counters.

    The main processes are those with times or, if none has, the first with counters. The other
    processes with counters may repeat them. They are compared in groups that have as many processes
    as there are main ones. A group is joined to these if each of its processes repeats its partner.
    """
    timed = [process for process in processes if process.has(*_TIMELINE)]
    counting = [process for process in processes if process not in timed and process.counted]
    main = timed or counting[:1]
    others = [process for process in counting if process not in main]
    if not main or len(others) % len(main):
        return list(processes)
    joined: list[Process] = []
    for i in range(0, len(others), len(main)):
        # A group is as large as `main`: each process has a partner, so none is None.
        pairs = [(p, o) for p, o in _paired(main, others[i : i + len(main)]) if p is not None]
        if not all(_repeats(other, process) for process, other in pairs):
            continue
        # `counted` has triples: the repetition, whether it is this run's own, and its part.
        repetitions = [n or 0 for process, _ in pairs for n, _, _ in process.counted]
        if not any(repetitions):  # the main run has no number yet: it is 1
            repetitions = [1] * len(repetitions)
            for process, _ in pairs:
                process.counted = [(1, is_own, part) for _, is_own, part in process.counted]
        for process, other in pairs:
            process.join(other, max(repetitions, default=0) + 1)
            joined.append(other)
    return [process for process in processes if process not in joined]


def _repeats(other: Process, process: Process) -> bool:
    """Return whether `other` ran a kernel of `process` and has counters that it lacks or times."""
    kernels, other_kernels = (
        names_in(p.all_parts, "name", "activities", COUNTERS) for p in (process, other)
    )
    if kernels.isdisjoint(other_kernels):
        return False
    counters, other_counters = (
        names_in(p.all_parts, "counter", COUNTERS) for p in (process, other)
    )
    return process.has(*_TIMELINE) or not other_counters <= counters


def _separated(
    root: str, processes: Sequence[Process], files: Sequence[TableFile]
) -> list[TableRun]:
    """Return the runs of processes, which are separated by pauses of more than _APART_NS.

    Processes without times belong to the only run; with several runs, they are a last one apart.
    """
    timed = sorted((p for p in processes if p.stretch), key=lambda p: (p.stretch.low, p.order))
    groups: list[list[Process]] = []
    last_ns = 0  # the last time in the last group
    for process in timed:
        if not groups or process.stretch.low > last_ns + _APART_NS:
            groups.append([])
            last_ns = process.stretch.high
        groups[-1].append(process)
        last_ns = max(last_ns, process.stretch.high)
    untimed = [process for process in processes if not process.stretch]
    if len(groups) == 1:
        groups[0] += untimed
    elif untimed or not groups:
        groups.append(untimed)
    # Clocks count from the start of a machine: in more than a day it may have started again.
    is_one_clock = not timed or last_ns - timed[0].stretch.low <= DAY_NS
    system = next((file.system for file in files if file.system), {})
    agents = agents_listed(files, system)
    runs = []
    for number, group in enumerate(groups):
        parts = (part for process in group for member in process.all() for part in member.parts)
        of_group = list(dict.fromkeys(part.file for part in parts))
        in_order = sorted(group, key=lambda process: process.order)
        runs.append(TableRun(root, in_order, agents, system, is_one_clock, of_group, number))
    return runs


def _leave_out_merged(files: Sequence[TableFile]) -> int:
    """Drop, in place, the counters of single passes that the merged table also has.

    Return the number of files from which counters were dropped. The merged table of a rank is the
    one with the most counters. A table is of a single pass if it shares counters with the merged
    table, but not all, and has only kernels of the merged table.
    """
    by_rank: defaultdict[int | None, list[tuple[TableFile, set[str], set[str]]]]
    by_rank = defaultdict(list)  # files with the names of their counters and kernels
    for file in files:
        own_counters, own_kernels = (
            names_in(file.parts.values(), column, COUNTERS) for column in ("counter", "name")
        )
        if own_counters:
            by_rank[file.place.rank].append((file, own_counters, own_kernels))
    left_out = 0
    for of_rank in by_rank.values():
        _, counters, kernels = max(of_rank, key=lambda entry: len(entry[1]))
        for file, own_counters, own_kernels in of_rank:
            is_of_pass = own_counters != counters and own_counters & counters
            if not is_of_pass or not own_kernels <= kernels:
                continue
            left_out += 1
            for part in (part for part in file.parts.values() if part.has(COUNTERS)):
                table = part[COUNTERS]
                wanted = np.array([name not in counters for name in table.names["counter"]])
                part.tables[COUNTERS] = chosen(table, wanted[table.column("counter")])
    return left_out
