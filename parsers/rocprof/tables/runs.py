"""Which tables of rocprof belong together: those of a process, of the passes of a run, of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import PurePath
from typing import Final

import numpy as np

from traceflops.characters import kernel_name
from traceflops.parsers.rocprof.tables.parts import COUNTERS, TableFile
from traceflops.parsers.rocprof.tables.processes import AgentLists, Process, names_in, processes_of
from traceflops.parsers.shared import chosen

_TIMELINE: Final = ("activities", "copies", "graphs", "calls", "marks")
_DAY_NS: Final = 86_400 * 10**9
_APART_NS: Final = 10 * 10**9
"""Processes of one run overlap; with a pause of so much between them they are of several."""
_ORDER: Final = attrgetter("order")


@dataclass(slots=True)
class TableRun:
    """Processes whose times compare, and the files they are from.

    `passes_left_out` are those of which only the counters are used. `number` counts the runs of a
    folder, whose times lie apart. `is_one_clock` says that the times of all of them compare. `odd`
    counts by the codes of notes.
    """

    root: str
    processes: list[Process]
    agents: AgentLists
    system: dict[str, str]
    is_one_clock: bool
    files: list[TableFile]
    number: int = 0
    passes_left_out: list[int] = field(default_factory=list)
    odd: Counter[str] = field(default_factory=Counter)


def runs_of(files: Sequence[TableFile]) -> list[TableRun]:
    """Return the runs that files are of. Every file is in one; a run may be without any row."""
    folders: defaultdict[str, list[TableFile]] = defaultdict(list)
    for file in files:
        folders[file.place.root].append(file)
    _take_in_single_passes(folders)
    return [run for root in sorted(folders) for run in _in_folder(root, folders[root])]


def _take_in_single_passes(folders: dict[str, list[TableFile]]) -> None:
    """Put tables of counters in folders within that of a workload of rocprof-compute to it.

    It keeps what rocprof wrote for each pass (out/pmc_1) below its own tables, of which one
    describes the system.
    """
    workloads = {PurePath(root) for root, files in folders.items() if _is_workload(files)}
    for root in sorted(folders):
        above = [folder for folder in PurePath(root).parents if folder in workloads]
        if above and PurePath(root) not in workloads and _only_count(folders[root]):
            folders[str(above[0])] += folders.pop(root)


def _is_workload(files: Iterable[TableFile]) -> bool:
    return any(file.system for file in files)


def _only_count(files: Iterable[TableFile]) -> bool:
    parts = [part for file in files for part in file.parts.values()]
    return any(part.has(COUNTERS) for part in parts) and not any(p.has(*_TIMELINE) for p in parts)


def _in_folder(root: str, files: Sequence[TableFile]) -> list[TableRun]:
    """Return the runs in a folder: its passes put together, then parted where time stands still."""
    by_pass: defaultdict[int | None, list[TableFile]] = defaultdict(list)
    for file in files:
        by_pass[file.place.run_pass].append(file)
    is_workload = _is_workload(files)
    odd = Counter({"launcher": _launchers(files)})
    if is_workload:
        odd["merged-passes"] = _leave_out_merged(files)
    in_order = sorted(by_pass, key=lambda number: -1 if number is None else number)
    passes = {number: processes_of(by_pass[number]) for number in in_order}
    main = _main_pass(passes)
    processes = passes.pop(main)
    for process in processes:
        process.count_own(main if passes else None)
    found_once = [p for n, others in passes.items() for p in _counted_again(processes, others, n)]
    processes = _without_repetitions([*processes, *found_once])
    times_are_beside = not is_workload and not any(process.has_work for process in processes)
    repeated = [n for n, others in passes.items() if _have_timeline(others, times_are_beside)]
    if times_are_beside:
        for process in processes:
            any(part.use_times_beside() for part in process.parts)  # of several files the first
    runs = _parted(root, processes, files)
    used = {file for run in runs for file in run.files}
    runs[0].files += [file for file in files if file not in used]
    runs[0].passes_left_out = [number for number in repeated if number is not None]
    runs[0].odd = odd
    return runs


def _launchers(files: Sequence[TableFile]) -> int:
    """Return how many processes left nothing but their list of agents."""
    kinds: defaultdict[Hashable, set[str]] = defaultdict(set)
    for file in files:
        if file.place.pid is not None:
            kinds[file.place.key, file.place.run_pass] |= file.kinds
    return sum(found == {"agents"} for found in kinds.values())


def _main_pass(passes: dict[int | None, list[Process]]) -> int | None:
    """Return the pass whose times count: the first that counted nothing, else the first timed."""
    timed = [number for number, processes in passes.items() if _have_timeline(processes)]
    free = [n for n in timed if not any(process.has(COUNTERS) for process in passes[n])]
    return next(iter([*free, *timed, *passes]))


def _have_timeline(processes: Iterable[Process], beside: bool = False) -> bool:
    return any(
        process.has(*_TIMELINE) or (beside and any(part.beside for part in process.parts))
        for process in processes
    )


def _counted_again(
    main: Sequence[Process], others: Sequence[Process], number: int | None
) -> Iterator[Process]:
    """Give processes the counters that they had in another pass; yield those found only there."""
    for process, other in _paired(main, others):
        if process is not None:
            process.join(other, number)
        elif other.has(COUNTERS):
            other.count_own(number)
            for part in other.parts:
                part.beside = None
                for table in _TIMELINE:
                    part.tables.pop(table, None)
            yield other


def _paired(
    main: Sequence[Process], others: Sequence[Process]
) -> Iterator[tuple[Process | None, Process]]:
    """Yield each of the other processes with the one of which it is a repetition, None if of none.

    A process has another id each time. It is told by its rank; else by its devices, if no two
    processes share these; else the first is taken for the first, and so on.
    """
    by_rank = _by_key([p.place.rank for p in main], [p.place.rank for p in others])
    by_agents = _by_key([p.kernel_agents for p in main], [p.kernel_agents for p in others])
    in_order = [place if place < len(main) else None for place in range(len(others))]
    for place, other in zip(by_rank or by_agents or in_order, others, strict=True):
        yield None if place is None else main[place], other


def _by_key(keys: Sequence[object], theirs: Sequence[object]) -> list[int | None] | None:
    """Return the place of each other's key among those of the main ones; None if it is not plain.

    It is where all have a key, no two the same, and both the same ones.
    """
    known = len(set(keys)) == len(keys) == len(theirs) and set(keys) == set(theirs)
    return [keys.index(key) for key in theirs] if known and None not in keys else None


def _without_repetitions(processes: Sequence[Process]) -> list[Process]:
    """Return processes without those that only repeated others to count more.

    Nothing but counters is there of these, as many as have times or, where none has, as the first;
    each is joined to the one that it repeats.
    """
    timed = [process for process in processes if process.has(*_TIMELINE)]
    counting = [process for process in processes if process not in timed and process.counted]
    main = timed or counting[:1]
    others = [process for process in counting if process not in main]
    joined: list[Process] = []
    for at in range(0, len(others), len(main)) if main and len(others) % len(main) == 0 else ():
        pairs = [(p, o) for p, o in _paired(main, others[at : at + len(main)]) if p is not None]
        if all(_repeats(process, other) for process, other in pairs):
            _join(pairs)
            joined += [other for _, other in pairs]
    return [process for process in processes if process not in joined]


def _repeats(process: Process, other: Process) -> bool:
    """Return whether counters are of a run of the same kernels; without times, if they are new."""
    is_timed_or_new = process.has(*_TIMELINE) or other.counters() - process.counters()
    return bool(process.kernels() & other.kernels() and is_timed_or_new)


def _join(pairs: Sequence[tuple[Process, Process]]) -> None:
    """Give processes the counters of those that repeat them, as another repetition."""
    if not any(process.last_repetition for process, _ in pairs):
        for process, _ in pairs:
            process.counted = [(1, is_own, part) for _, is_own, part in process.counted]
    number = max(process.last_repetition for process, _ in pairs) + 1
    for process, other in pairs:
        process.join(other, number)


def _parted(root: str, processes: Sequence[Process], files: Sequence[TableFile]) -> list[TableRun]:
    """Return the runs that processes are of, by their times; those without any are of the first."""
    timed = sorted((p for p in processes if p.stretch.low is not None), key=_by_start)
    groups: list[list[Process]] = []
    reach = 0
    for process in timed:
        low, high = process.stretch.low or 0, process.stretch.high or 0
        if not groups or low > reach + _APART_NS:
            groups.append([])
            reach = high
        groups[-1].append(process)
        reach = max(reach, high)
    untimed = [process for process in processes if process.stretch.low is None]
    if len(groups) == 1:
        groups[0] += untimed
    elif untimed or not groups:
        groups.append(untimed)
    is_one_clock = not timed or reach - (timed[0].stretch.low or 0) <= _DAY_NS
    system = next((file.system for file in files if file.system), {})
    agents = AgentLists(files, system)
    return [
        TableRun(root, sorted(group, key=_ORDER), agents, system, is_one_clock, _files(group), n)
        for n, group in enumerate(groups)
    ]


def _by_start(process: Process) -> tuple[int, tuple[int, int, str]]:
    return process.stretch.low or 0, process.order


def _files(processes: Iterable[Process]) -> list[TableFile]:
    every = (one for process in processes for one in process.all())
    return list(dict.fromkeys(part.file for one in every for part in one.parts))


def _leave_out_merged(files: Sequence[TableFile]) -> int:
    """Leave out counters that the merged table of a workload holds, too; return of how many files.

    It is the one with the most counters; one that has some of them, of the same kernels, is a pass.
    """
    by_rank: defaultdict[int | None, list[TableFile]] = defaultdict(list)
    for file in files:
        if _names(file, "counter"):
            by_rank[file.place.rank].append(file)
    left_out = 0
    for of_rank in by_rank.values():
        merged = max(of_rank, key=lambda file: len(_names(file, "counter")))
        known, kernels = _names(merged, "counter"), _names(merged, "name")
        for file in of_rank:
            mine = _names(file, "counter")
            if mine != known and mine & known and _names(file, "name") <= kernels:
                _drop(file, known)
                left_out += 1
    return left_out


def _names(file: TableFile, column: str) -> set[str]:
    return set(map(kernel_name, names_in(file.parts.values(), column, COUNTERS)))


def _drop(file: TableFile, counters: set[str]) -> None:
    """Leave out the rows of some counters."""
    for part in file.parts.values():
        if part.has(COUNTERS):
            table = part[COUNTERS]
            wanted = np.array([name not in counters for name in table.names["counter"]])
            part.tables[COUNTERS] = chosen(table, wanted[table.column("counter")])
