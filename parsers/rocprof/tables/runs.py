"""Which tables of rocprof belong together: those of a process, of the passes of a run, of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

import numpy as np

from traceflops.parsers.rocprof.tables.devices import AgentLists
from traceflops.parsers.rocprof.tables.processes import Placed, Process, processes_of
from traceflops.parsers.rocprof.tables.repetitions import (
    COUNTERS,
    TIMELINE,
    paired,
    with_counting_runs,
)
from traceflops.parsers.shared import TableFile, chosen
from traceflops.units import kernel_name

_DAY_NS: Final = 86_400 * 10**9
_APART_NS: Final = 10 * 10**9
"""Processes of one run overlap; with a pause of so much between them they are of several."""


@dataclass(slots=True)
class TableRun:
    """Processes whose times compare, and the files they are from.

    `passes_left_out` are those of which only the counters are used, `merged_passes` tables of
    single passes that another one holds, too; `launchers` processes that did nothing. `number`
    counts the runs of a folder, whose times lie apart. `is_one_clock` says that the times of all of
    them compare.
    """

    root: str
    processes: list[Process]
    agents: AgentLists
    system: dict[str, str]
    is_one_clock: bool
    files: list[TableFile] = field(default_factory=list)
    number: int = 0
    passes_left_out: list[int] = field(default_factory=list)
    merged_passes: int = 0
    launchers: int = 0


def runs_of(placed: Sequence[Placed]) -> list[TableRun]:
    """Return the runs that files are of. Every file is in one; a run may be without any row."""
    folders: defaultdict[str, list[Placed]] = defaultdict(list)
    for one in placed:
        folders[one.place.root].append(one)
    _take_in_single_passes(folders)
    return [run for root in sorted(folders) for run in _in_folder(root, folders[root])]


def _take_in_single_passes(folders: dict[str, list[Placed]]) -> None:
    """Put tables of counters in folders within that of a workload of rocprof-compute to it.

    It keeps what rocprof wrote for each pass (out/pmc_1) below its own tables, of which one
    describes the system.
    """
    workloads = {PurePath(root) for root, files in folders.items() if _is_workload(files)}
    for root in sorted(folders):
        above = [one for one in PurePath(root).parents if one in workloads]
        if above and PurePath(root) not in workloads and _only_count(folders[root]):
            folders[str(above[0])] += folders.pop(root)


def _is_workload(placed: Iterable[Placed]) -> bool:
    return any(one.file.system for one in placed)


def _only_count(placed: Iterable[Placed]) -> bool:
    parts = [part for one in placed for part in one.file.parts.values()]
    return any(part.has(COUNTERS) for part in parts) and not any(p.has(*TIMELINE) for p in parts)


def _in_folder(root: str, placed: Sequence[Placed]) -> list[TableRun]:
    """Return the runs in a folder: its passes put together, then parted where time stands still."""
    by_pass: defaultdict[int | None, list[Placed]] = defaultdict(list)
    for one in placed:
        by_pass[one.place.run_pass].append(one)
    is_workload = _is_workload(placed)
    merged = leave_out_merged(placed) if is_workload else 0
    passes = {number: processes_of(by_pass[number]) for number in sorted(by_pass, key=_pass_order)}
    main = _main_pass(passes)
    processes = passes[main]
    for process in processes:
        process.count_own(main if len(passes) > 1 else None)
    for number, others in passes.items():
        if number != main:
            processes = [*processes, *_counted_again(passes[main], others, number)]
    processes = with_counting_runs(processes)
    times_are_beside = not is_workload and not any(process.has_work for process in processes)
    repeated = [
        number
        for number, others in passes.items()
        if number not in (None, main) and _have_timeline(others, beside=times_are_beside)
    ]
    if times_are_beside:
        for process in processes:
            process.use_times_beside()
    runs = _parted(root, processes, placed)
    runs[0].passes_left_out = [number for number in repeated if number is not None]
    runs[0].merged_passes = merged
    used = {id(file) for run in runs for file in run.files}
    unused = [one for one in placed if id(one.file) not in used]
    runs[0].files += [one.file for one in unused]
    runs[0].launchers = _launchers(placed)
    return runs


def _launchers(placed: Sequence[Placed]) -> int:
    """Return how many processes left nothing but their list of agents."""
    kinds: defaultdict[Hashable, set[str]] = defaultdict(set)
    for one in placed:
        if one.place.pid is not None:
            kinds[one.place.key, one.place.run_pass] |= one.file.kinds
    return sum(found == {"agents"} for found in kinds.values())


def _pass_order(number: int | None) -> int:
    return -1 if number is None else number


def _main_pass(passes: dict[int | None, list[Process]]) -> int | None:
    """Return the pass whose times count: the first that counted nothing, else the first timed."""
    timed = [number for number, processes in passes.items() if _have_timeline(processes)]
    free = [n for n in timed if not any(process.has(COUNTERS) for process in passes[n])]
    return next(iter([*free, *timed, *passes]))


def _have_timeline(processes: Iterable[Process], *, beside: bool = False) -> bool:
    return any(
        process.has(*TIMELINE) or (beside and any(part.beside for part in process.parts))
        for process in processes
    )


def _counted_again(
    main: Sequence[Process], others: Sequence[Process], number: int | None
) -> Iterator[Process]:
    """Give processes the counters that they had in another pass; yield those found only there."""
    for process, other in paired(main, others):
        counted = [part for part in other.parts if part.has(COUNTERS)]
        if process is not None:
            process.counted += [(number, False, part) for part in counted]
            process.others.append(other)
        elif counted:
            other.count_own(number)
            other.drop(*TIMELINE)
            yield other


def _parted(root: str, processes: Sequence[Process], placed: Sequence[Placed]) -> list[TableRun]:
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
    system = next((one.file.system for one in placed if one.file.system), {})
    agents = AgentLists(placed, system)
    return [
        TableRun(
            root,
            sorted(group, key=lambda p: p.order),
            agents,
            system,
            is_one_clock,
            _files(group),
            number,
        )
        for number, group in enumerate(groups)
    ]


def _by_start(process: Process) -> tuple[int, tuple[int, int, str]]:
    return process.stretch.low or 0, process.order


def _files(processes: Iterable[Process]) -> list[TableFile]:
    found: dict[Hashable, TableFile] = {}
    for process in processes:
        for file in process.files():
            found.setdefault(id(file), file)
    return list(found.values())


# Tables of single passes beside the one into which rocprof-compute merged them.


_COUNTERS = "kernel_counters"


def leave_out_merged(placed: Sequence[Placed]) -> int:
    """Leave out counters that the merged table of a workload holds, too; return of how many files.

    It is the one with the most counters; one that has some of them, of the same kernels, is a pass.
    """
    by_rank: defaultdict[int | None, list[TableFile]] = defaultdict(list)
    for one in placed:
        if any(part.has(_COUNTERS) for part in one.file.parts.values()):
            by_rank[one.place.rank].append(one.file)
    left_out = 0
    for files in by_rank.values():
        merged = max(files, key=lambda file: len(_names(file, "counter")))
        known, kernels = _names(merged, "counter"), _kernels(merged)
        for file in files:
            mine = _names(file, "counter")
            if file is merged or mine == known or not _kernels(file) <= kernels:
                continue
            if mine & known:
                _drop(file, known)
                left_out += 1
    return left_out


def _names(file: TableFile, column: str) -> set[str]:
    tables = [part[_COUNTERS] for part in file.parts.values() if part.has(_COUNTERS)]
    return {name for table in tables for name in table.names[column]}


def _kernels(file: TableFile) -> set[str]:
    return set(map(kernel_name, _names(file, "name")))


def _drop(file: TableFile, counters: set[str]) -> None:
    """Leave out the rows of some counters."""
    for part in file.parts.values():
        if part.has(_COUNTERS):
            table = part[_COUNTERS]
            names = list(table.names["counter"])
            wanted = np.array([name not in counters for name in names], dtype=np.bool_)
            rows = wanted[table.column("counter")]
            ends = np.cumsum([len(instance) for instance, _ in part.origins])[:-1]
            part.origins = [
                (instance[kept], section)
                for (instance, section), kept in zip(
                    part.origins, np.split(rows, ends), strict=True
                )
            ]
            part.tables[_COUNTERS] = chosen(table, rows)
