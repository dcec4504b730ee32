"""Which rows of rocprof's tables are of one process."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from traceflops.parsers.csvfiles.parts import Part, TableFile
from traceflops.parsers.rocprof.tables.names import Place

_DAY_NS: Final = 86_400 * 10**9
_COUNTERS: Final = "kernel_counters"
_DESCRIPTOR: Final = re.compile(r"(?: \[clone \.kd\]| \(\.kd\)|\.kd)$")
_TELLING: Final = ("activities", "copies", "calls", "marks", _COUNTERS, "totals")


@dataclass(frozen=True, slots=True)
class Placed:
    """A file and what its place tells."""

    file: TableFile
    place: Place


@dataclass(slots=True, eq=False)
class Process:
    """The rows of one process.

    `counted` are its counters: the repetition (None where there is but one), whether that is the
    run whose times are used, the rows. `others` are the processes it was in other repetitions.
    """

    place: Place
    pid: int | None = None
    members: list[tuple[TableFile, Part]] = field(default_factory=list)
    counted: list[tuple[int | None, bool, Part]] = field(default_factory=list)
    others: list[Process] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        """Return its rows in each file."""
        return [part for _, part in self.members]

    @property
    def all_parts(self) -> list[Part]:
        """Return its rows in each file, those counted in other repetitions last."""
        return [*self.parts, *(part for _, is_own, part in self.counted if not is_own)]

    @property
    def counted_while_timed(self) -> bool:
        """Return whether counters were read in the run whose times are used."""
        return any(is_own for _, is_own, _ in self.counted)

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
    def low(self) -> int | None:
        """Return when its first record begins."""
        return min((part.low for part in self.parts if part.low is not None), default=None)

    @property
    def high(self) -> int | None:
        """Return when its last record begins."""
        return max((part.high for part in self.parts if part.high is not None), default=None)

    @property
    def order(self) -> tuple[int, int, str]:
        """Return what processes of a run are sorted by."""
        rank = self.place.rank
        return (2**31 if rank is None else rank, self.pid or 0, self.place.key)

    def has(self, *tables: str) -> bool:
        """Return whether it has rows in one of these tables."""
        return any(part.has(*tables) for part in self.parts)

    def count_own(self, repetition: int | None) -> None:
        """Take its own counters for those of a repetition."""
        self.counted = [(repetition, True, part) for part in self.parts if part.has(_COUNTERS)]

    def number_counted(self, repetition: int) -> None:
        """Say which repetition its own counters are of."""
        self.counted = [(repetition, own, part) for _, own, part in self.counted]

    def drop(self, *tables: str) -> None:
        """Leave out tables of it."""
        for part in self.parts:
            for table in tables:
                part.tables.pop(table, None)

    def kernels(self) -> set[str]:
        """Return the names of kernels that ran or were counted, without what marks a descriptor."""
        return {_DESCRIPTOR.sub("", name) for name in self._names("name")}

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
    unnamed: list[tuple[Placed, Part]] = []
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
            process.pid = process.pid if pid is None else pid
            process.members.append((one.file, part))
    _place_unnamed(found, unnamed)
    return sorted(found.values(), key=lambda process: process.order)


def _place_unnamed(found: dict[Hashable, Process], unnamed: Sequence[tuple[Placed, Part]]) -> None:
    """Give rows that do not say their process to the one that files of the same name are of.

    Where these name several, or are of another day, the rows are of a process without a number.
    """
    named = list(found.values())
    by_key: defaultdict[tuple[str, int | None], list[tuple[Placed, Part]]] = defaultdict(list)
    for one, part in unnamed:
        by_key[one.place.key, one.place.rank].append((one, part))
    for (key, rank), members in by_key.items():
        alike = [p for p in named if (p.place.key, p.place.rank) == (key, rank)]
        members.sort(key=lambda member: -1 if member[1].low is None else member[1].low)
        stretch: Process | None = None
        for one, part in members:
            if len(alike) == 1 and _same_day(alike[0], part):
                alike[0].members.append((one.file, part))
                continue
            if stretch is None or not _same_day(stretch, part):
                stretch = found.setdefault((key, rank, len(found)), Process(one.place))
            stretch.members.append((one.file, part))


def _same_day(process: Process, part: Part) -> bool:
    low, high = process.low, process.high
    if low is None or high is None or part.low is None or part.high is None:
        return True
    return part.low <= high + _DAY_NS and low <= part.high + _DAY_NS
