"""What one CSV of rocprof says, the rows of each process apart, before runs are put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.io import ByteSource, Column, CsvBlock, Damage, Texts
from traceflops.parsers.shared.sanity_checks import spans
from traceflops.table import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    Names,
    TableBuilder,
    distinct,
    groups,
)

_MOST_PROCESSES: Final = 4_096
"""So many processes of a file are told apart; one that has more has invented them."""

_DIGITS_OF_INT64: Final = 19
_BUILT_AS: Final = {"copies": "activities", "graphs": "activities", "domains": "totals"}


@dataclass(slots=True)
class Tally:
    """What was odd about the rows of a file, how many records of what it has, calls by domain."""

    odd: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    domains: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Stretch:
    """The first and the last moment of some rows, None without any."""

    low: int | None = None
    high: int | None = None

    def cover(self, start: IntArray) -> None:
        """Widen it to rows that begin then."""
        if len(start):
            self.join(Stretch(int(start.min()), int(start.max())))

    def join(self, other: Stretch) -> None:
        """Widen it to another one."""
        if other.low is not None and other.high is not None:
            self.low = other.low if self.low is None else min(self.low, other.low)
            self.high = other.high if self.high is None else max(self.high, other.high)

    def is_apart(self, other: Stretch, by_ns: int = 0) -> bool:
        """Return whether both are known, and more than so much lies between them."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return False
        return self.low > other.high + by_ns or other.low > self.high + by_ns


class ProcessPart:
    """The rows of one process in one file.

    `guid` and `pid` are None where the file does not say them. The column `device` holds places in
    `agents`, the texts by which the file names them; `ends` are those of source and target of each
    piece of the copies. `stretch` is that in which the rows begin; `records` counts rows that are
    of no table.

    Of counters, `origins` has for each piece the instance of each row, where the file numbers them,
    and how many headers stand before it (`section` counts those so far); `counting` is the stretch
    in which they were read, `is_wide` says that they stand in columns, and `beside` holds times
    that stand in the same rows, until it is known whether these are used.
    """

    def __init__(self, guid: str | None = None, pid: int | None = None) -> None:
        self.guid = guid
        self.pid = pid
        self.tables: dict[str, TableBuilder] = {}
        self.agents = Names()
        self.ends: list[tuple[Array, Array]] = []
        self.origins: list[tuple[IntArray, int]] = []
        self.section = 0
        self.stretch = Stretch()
        self.counting = Stretch()
        self.is_wide = False
        self.records = 0
        self.beside: Beside | None = None

    def __getitem__(self, name: str) -> TableBuilder:
        """Return the collector of a table; copies and graphs are activities to be decided on."""
        if name not in self.tables:
            self.tables[name] = TableBuilder(_BUILT_AS.get(name, name))
        return self.tables[name]

    def has(self, *names: str) -> bool:
        """Return whether it has rows of one of these tables."""
        return any(name in self.tables and self.tables[name].count > 0 for name in names)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was recorded of the process."""
        return self.records == 0 and not self.has(*self.tables)

    def cover(self, start: IntArray) -> None:
        """Widen the stretch of time in which its rows begin."""
        self.stretch.cover(start)

    def times_beside(self) -> Beside:
        """Return the collector of times that stand beside counters."""
        if self.beside is None:
            self.beside = Beside(ProcessPart(self.guid, self.pid))
            self.beside.part.agents = self.agents
        return self.beside

    def use_times_beside(self) -> Counter[str]:
        """Take the times beside the counters for those of the process; return what was odd."""
        if self.beside is None:
            return Counter()
        part, odd = self.beside.part, self.beside.tally.odd
        self.beside = None
        for name, table in part.tables.items():
            self[name].absorb(table)
        self.stretch.join(part.stretch)
        return odd


@dataclass(slots=True)
class Beside:
    """Times that stand beside counters: the rows, and what is odd about them."""

    part: ProcessPart
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True, slots=True)
class Cut:
    """Some rows of a block."""

    count: int
    columns: Mapping[str, Column]

    def has(self, role: str) -> bool:
        """Return whether the file has such a column."""
        return role in self.columns

    def numbers(self, role: str) -> IntArray:
        """Return a column of whole numbers; ABSENT where the file has none."""
        column = self.columns.get(role)
        if column is None or isinstance(column, Texts):
            return np.full(self.count, ABSENT, np.int64)
        return column

    __getitem__ = numbers

    def codes(self, role: str, names: Names, otherwise: str | None = None) -> Array:
        """Return a column of texts as codes of `names`; `otherwise` stands for an empty one."""
        column = self.columns.get(role)
        if not isinstance(column, Texts):
            code = -1 if otherwise is None else names[otherwise]
            return np.full(self.count, code, np.int32)
        used = distinct(column.codes)
        table = np.full(len(column.values) + 1, -1, np.int32)
        texts = (column.values[code] or otherwise for code in used.tolist())
        table[used] = [-1 if text is None else names[text] for text in texts]
        return table[column.codes]

    def timed(self, odd: Counter[str]) -> Cut:
        """Return the rows that have a time, with `start_ns` and `dur_ns`; odd ones are counted."""
        is_time, start, dur = spans(self["start"], self["end"], odd)
        kept = self.only(is_time)
        return Cut(kept.count, {**kept.columns, "start_ns": start, "dur_ns": dur})

    def only(self, rows: BoolArray | IntArray) -> Cut:
        """Return the chosen rows."""
        if rows.dtype == np.bool_ and rows.all():
            return self
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64)
        taken = {
            role: column.taken(places) if isinstance(column, Texts) else column[places]
            for role, column in self.columns.items()
        }
        return Cut(len(places), taken)


@dataclass(slots=True)
class TableFile:
    """One file as it was read. `layouts` are those of its tables, in the order of the file."""

    source: ByteSource
    layouts: list[Layout] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    parts: dict[Hashable, ProcessPart] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    agents: list[dict[str, str]] = field(default_factory=list)
    system: dict[str, str] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)

    def part(self, guid: str | None, pid: int | None) -> ProcessPart:
        """Return the rows of a process."""
        key = (guid, pid)
        if key not in self.parts:
            if len(self.parts) >= _MOST_PROCESSES:
                guid = pid = None
                key = (None, None)
            self.parts.setdefault(key, ProcessPart(guid, pid))
        return self.parts[key]

    def cuts(self, block: CsvBlock) -> Iterator[tuple[ProcessPart, Cut]]:
        """Yield the rows of a block by process."""
        guid, pid = block.columns.get("guid"), block.columns.get("pid")
        whole = Cut(block.rows, block.columns)
        key = np.zeros(block.rows, np.int64)
        pids = [ABSENT]
        if pid is not None and not isinstance(pid, Texts):
            distinct, key = np.unique(pid, return_inverse=True)
            pids = distinct.tolist()
        texts: list[str] = [""]
        if isinstance(guid, Texts):
            texts = guid.values
            key = guid.codes * len(pids) + key
        if block.rows and (key == key[0]).all():
            yield self._named(int(key[0]), texts, pids), whole
            return
        for number, rows in groups(key):
            yield self._named(number, texts, pids), whole.only(rows)

    def _named(self, key: int, guids: list[str], pids: list[int]) -> ProcessPart:
        pid = pids[key % len(pids)]
        guid = guids[key // len(pids)]
        if guid.isascii() and guid.isdecimal() and len(guid) < _DIGITS_OF_INT64:
            # The id of a process stands where others have that of the run.
            guid, pid = "", int(guid) if pid == ABSENT else pid
        return self.part(guid or None, None if pid == ABSENT else pid)


def compact(column: Array) -> Array | int:
    """Return a column, or its value where all rows have one."""
    if len(column) and bool((column == column[0]).all()):
        return int(column[0])
    return column


def chosen(table: TableBuilder, rows: BoolArray) -> TableBuilder:
    """Return the chosen rows of a table, under the same codes of texts."""
    if rows.all():
        return table
    start = 0
    pieces = []
    for count, columns in table.pieces:
        kept = rows[start : start + count]
        start += count
        number = int(np.count_nonzero(kept))
        if number:
            cut = {
                k: c if isinstance(c, int) or np.ndim(c) == 0 else c[kept]
                for k, c in columns.items()
            }
            pieces.append((number, cut))
    table.pieces = pieces
    table.count = int(np.count_nonzero(rows))
    return table


V1: Final = "v1"


V2: Final = "v2"


V3: Final = "v3"


COMPUTE: Final = "compute"


@dataclass(frozen=True, slots=True)
class Layout:
    """One table of one generation: the columns that it must have, all others are optional.

    `what` says how it is read, `name` what rocprof calls it, `release` what the columns tell.
    """

    what: str
    name: str
    generation: str
    release: str
    needs: frozenset[str]
    lacks: frozenset[str] = frozenset()

    @property
    def may_be_wide(self) -> bool:
        """Return whether further columns of it may be counters: rocprofv3 has a table for these."""
        return self.what in ("kernels", "untimed") and self.generation != V3

    def has(self, columns: frozenset[str]) -> bool:
        """Return whether these are the columns of such a table."""
        return self.needs <= columns and not self.lacks & columns
