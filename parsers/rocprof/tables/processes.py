"""Which rows of rocprof's tables are of one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.rocprof.tables.names import OutputPlace
from traceflops.parsers.shared import ProcessPart, Stretch, TableFile
from traceflops.units import kernel_name

_DAY_NS: Final = 86_400 * 10**9
_STARTING_NS: Final = 10**6
"""A process takes longer than this to start: so far from its times nothing of it was recorded."""
_COUNTERS: Final = "kernel_counters"
_WORK: Final = ("activities", "copies", "graphs")
_TELLING: Final = ("activities", "copies", "calls", "marks", _COUNTERS, "totals")


@dataclass(frozen=True, slots=True)
class Placed:
    """A file and what its place tells."""

    file: TableFile
    place: OutputPlace


@dataclass(slots=True, eq=False)
class Process:
    """The rows of one process.

    `counted` are its counters: the repetition (None where there is but one), whether that is the
    run whose times are used, the rows. `others` are the processes it was in other repetitions;
    `names` those of its files, with their rank.
    """

    place: OutputPlace
    guid: str | None = None
    pid: int | None = None
    members: list[tuple[TableFile, ProcessPart]] = field(default_factory=list)
    counted: list[tuple[int | None, bool, ProcessPart]] = field(default_factory=list)
    others: list[Process] = field(default_factory=list)
    names: set[tuple[str, int | None]] = field(default_factory=set)

    @property
    def parts(self) -> list[ProcessPart]:
        """Return its rows in each file."""
        return [part for _, part in self.members]

    @property
    def all_parts(self) -> list[ProcessPart]:
        """Return its rows in each file, those counted in other repetitions last."""
        again = [part for other in self.others for part in other.all_parts]
        return [*self.parts, *(part for part in again if part.has(_COUNTERS))]

    def files(self) -> Iterator[TableFile]:
        """Yield the files with rows of it, those of other repetitions last."""
        for file, _ in self.members:
            yield file
        for other in self.others:
            yield from other.files()

    @property
    def main_file(self) -> TableFile:
        """Return the file to name it by: that with its work, else with what comes next to it."""
        for table in (*_TELLING, None):
            for file, part in self.members:
                if table is None or part.has(table):
                    return file
        return next(self.files())

    @property
    def stretch(self) -> Stretch:
        """Return when its first and its last record begin."""
        return stretch_of(part.stretch for part in self.parts)

    @property
    def order(self) -> tuple[int, int, str]:
        """Return what processes of a run are sorted by."""
        rank = self.place.rank
        return (2**31 if rank is None else rank, self.pid or 0, self.place.key)

    def has(self, *tables: str) -> bool:
        """Return whether it has rows in one of these tables."""
        return any(part.has(*tables) for part in self.parts)

    @property
    def has_work(self) -> bool:
        """Return whether it has times of device work."""
        return self.has(*_WORK)

    @property
    def kernel_agents(self) -> frozenset[str]:
        """Return how its files name the devices that ran kernels, or counted."""
        found: set[str] = set()
        for part in self.all_parts:
            texts = list(part.agents)
            for name in ("activities", _COUNTERS):
                codes = np.unique(part[name].column("device")) if part.has(name) else ()
                found.update(texts[code] for code in codes if 0 <= code < len(texts))
        return frozenset(found - {""})

    def count_own(self, repetition: int | None) -> None:
        """Take its own counters for those of a repetition."""
        self.counted = [
            (repetition, not self._is_other_run(part), part)
            for part in self.parts
            if part.has(_COUNTERS)
        ]

    def _is_other_run(self, part: ProcessPart) -> bool:
        """Return whether counters are of another run than the times: ids of processes come again.

        Counters in columns are of a table that has the times of its own run, or none.
        """
        if not self.has_work:
            return False
        if part.beside is not None or part.is_wide:
            return True
        return part.counting.is_apart(self.stretch, by_ns=_STARTING_NS)

    def use_times_beside(self) -> None:
        """Take times that stand beside its own counters for its own; of several files the first."""
        for file, part in self.members:
            if part.beside is not None:
                file.tally.odd.update(part.use_times_beside())
                return

    def number_counted(self, repetition: int) -> None:
        """Say which repetition its own counters are of."""
        self.counted = [(repetition, own, part) for _, own, part in self.counted]

    def drop(self, *tables: str) -> None:
        """Leave out tables of it."""
        for part in self.parts:
            part.beside = None
            for table in tables:
                part.tables.pop(table, None)

    def kernels(self) -> set[str]:
        """Return the names of kernels that ran or were counted, without what marks a descriptor."""
        return set(map(kernel_name, self._names("name")))

    def counters(self) -> set[str]:
        """Return the names of its counters."""
        return self._names("counter")

    def _names(self, column: str) -> set[str]:
        tables = [
            table
            for part in self.all_parts
            for key, table in part.tables.items()
            if key in (_COUNTERS, "activities")
        ]
        return {text for table in tables if column in table.names for text in table.names[column]}


def processes_of(placed: Sequence[Placed]) -> list[Process]:
    """Return the processes that some files of one pass are of, in order."""
    found: dict[Hashable, Process] = {}
    unnamed: list[tuple[Placed, ProcessPart]] = []
    for one in placed:
        for part in one.file.parts.values():
            if part.is_empty:
                continue
            pid = part.pid if part.pid is not None else one.place.pid
            if part.guid is None and pid is None:
                unnamed.append((one, part))
                continue
            key = ("guid", part.guid) if part.guid else ("pid", one.place.rank, pid)
            process = found.setdefault(key, Process(one.place))
            process.guid, process.pid = part.guid, process.pid if pid is None else pid
            process.members.append((one.file, part))
            process.names.add((one.place.key, one.place.rank))
    _join_by_pid(found)
    _place_unnamed(found, unnamed)
    return sorted(found.values(), key=lambda process: process.order)


def _join_by_pid(found: dict[Hashable, Process]) -> None:
    """Give rows with only the id of a process to the only run of that id that has a name."""
    of_pid: defaultdict[int | None, list[Process]] = defaultdict(list)
    for process in found.values():
        of_pid[process.pid].append(process)
    for key, process in list(found.items()):
        named = [one for one in of_pid[process.pid] if one.guid is not None]
        if process.guid is None and process.pid is not None and len(named) == 1:
            named[0].members += process.members
            named[0].names |= process.names
            del found[key]


def _place_unnamed(
    found: dict[Hashable, Process], unnamed: Sequence[tuple[Placed, ProcessPart]]
) -> None:
    """Give rows that do not say their process to the one that files of the same name are of.

    Where these name several, or are of another day, the rows are of a process without a number.
    """
    named = list(found.values())
    by_key: defaultdict[tuple[str, int | None], list[tuple[Placed, ProcessPart]]] = defaultdict(
        list
    )
    for one, part in unnamed:
        by_key[one.place.key, one.place.rank].append((one, part))
    for (key, rank), members in by_key.items():
        alike = [process for process in named if (key, rank) in process.names]
        members.sort(key=lambda member: -1 if (low := member[1].stretch.low) is None else low)
        of_day: Process | None = None
        for one, part in members:
            if len(alike) == 1 and _same_day(alike[0], part):
                alike[0].members.append((one.file, part))
                continue
            if of_day is None or not _same_day(of_day, part):
                of_day = found.setdefault((key, rank, len(found)), Process(one.place))
                of_day.names.add((key, rank))
            of_day.members.append((one.file, part))


def _same_day(process: Process, part: ProcessPart) -> bool:
    return not process.stretch.is_apart(part.stretch, by_ns=_DAY_NS)


def stretch_of(stretches: Iterable[Stretch]) -> Stretch:
    """Return from when to when several stretches reach."""
    whole = Stretch()
    for one in stretches:
        whole.join(one)
    return whole
