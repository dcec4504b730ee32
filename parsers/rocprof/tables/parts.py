"""The rows of one CSV file of rocprof by process, and the meaning of its path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from traceflops.parsers.io.csv_cells import Cells, Texts
from traceflops.parsers.io.csv_lines import Damage
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.places import rank_in_name
from traceflops.parsers.rocprof.layouts import Layout, RocprofTable
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, LIMIT_NS, Array, IntArray, Names, count_true
from traceflops.table.grouping import distinct, groups, ranked

COUNTERS: Final = "kernel_counters"
_MOST_PROCESSES: Final = 4_096  # processes of a file; a file with more is damaged
_DIGITS_OF_INT64: Final = 19
BUILT_AS: Final = {"copies": "activities", "graphs": "activities", "domains": "totals"}
_WORDS: Final = (
    *("kernel", "memory_copy", "memory_allocation", "scratch_memory", "graph_launch", "hip_event"),
    *("hip_runtime_api", "hip_compiler_api", "hip_api", "hip", "hsa_api", "hsa", "marker_api"),
    *("marker", "rccl_api", "rccl", "rocdecode_api", "rocjpeg_api", "ompt", "regions"),
    *("async_copy", "hcc_ops", "roctx", "domain", "hip_domain", "copy", "kernels", "markers"),
    *("memory_copies", "memory_allocations"),
)
_WHOLE: Final = ("counter_collection", "agent_info", "domain_stats", "results", "pmc_perf")
_WHAT: Final = re.compile(
    rf"(?:^|(?<=[_.-]))(?:(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})"
    r"_(trace|stats|summary)"
    rf"|{'|'.join(_WHOLE)})(?=$|[_.-])",
    re.IGNORECASE,
)
_ENDINGS: Final = re.compile(
    r"(?:\.(?:(?:hip|hsa|copy|kfd)_)?stats)?(?:\.(?:csv|txt|gz|zst))*$", re.IGNORECASE
)
PASS: Final = re.compile(r"(?:pmc|pass)[_-]?(\d{1,6})", re.IGNORECASE)


class OutputPlace(NamedTuple):
    """What the path of a file tells: files of one run have the same root.

    `key` is the file name without the part that names the table. A pass repeats a run for more
    counters.
    """

    root: str
    key: str
    run_pass: int | None
    rank: int | None

    @property
    def pid(self) -> int | None:
        """The process id, if rocprof named the file by it."""
        return int(self.key) if self.key.isascii() and self.key.isdecimal() else None


def place_of(folder: str, name: str) -> OutputPlace:
    """Return what the path of a file tells: its root, key, pass (pmc_1) and rank.

    The rank is in the name, else in one of the last three folders: folders further up are the
    user's, and a number there may mean anything. The root has all folders except those of passes
    and ranks, but with the last one, which names the machine or the run.
    """
    folders = list(PurePath(folder).parts)
    passes = [int(match[1]) for part in folders if (match := PASS.fullmatch(part))]
    folders = [part for part in folders if not PASS.fullmatch(part)]
    key, near = key_of(name), folders[-3:]
    ranks = map(rank_in_name, [key, *reversed(near)])
    rank = next((rank for rank in ranks if rank is not None), None)
    above = [part for part in folders[:-1] if rank_in_name(part) is None or part not in near]
    root = PurePath(*above, *folders[-1:])
    # The last pass counts, as the innermost folder; a name in an archive may be long.
    return OutputPlace(str(root), key[:200], passes[-1] if passes else None, rank)


def key_of(name: str) -> str:
    """Return the name of a file without its endings and the part that names the table."""
    stem = _ENDINGS.sub("", name)
    return _WHAT.sub("", stem, count=1).strip("_.-") if _WHAT.search(stem) else stem


def hosts(places: Iterable[OutputPlace]) -> dict[str, str]:
    """Return the host name of each root that is the folder of a host.

    rocprof makes a folder per host and names the files in it by process. A single folder of such
    files may have any name; several side by side are assumed to have the names of hosts.
    """
    named = {PurePath(output.root) for output in places if output.pid is not None}
    leaves = [root for root in named if root.name and rank_in_name(root.name) is None]  # no ranks
    siblings = Counter(root.parent for root in leaves)
    return {str(root): root.name for root in leaves if siblings[root.parent] > 1}


def same_run(names: Iterable[str], key: str) -> list[str]:
    """Return the file names of tables (sums of durations excepted) of the process with this key."""
    tables = (name for name in names if ".csv" in name.lower() and "stats" not in name.lower())
    of_run = (name for name in tables if key_of(name) == key)
    return sorted(name for name in of_run if _WHAT.search(_ENDINGS.sub("", name)))


class Stretch(Struct):
    """The stretch of time in which rows begin: the first and last start in ns; false if none."""

    low: int = LIMIT_NS
    high: int = -LIMIT_NS

    def __bool__(self) -> bool:
        return self.low <= self.high

    def cover(self, start: IntArray) -> None:
        """Widen the stretch, in place, to rows that begin at these times in ns."""
        if len(start):
            self.join(Stretch(int(start.min()), int(start.max())))

    def join(self, other: Stretch) -> None:
        """Widen the stretch, in place, to cover another one."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def is_apart(self, other: Stretch, by_ns: int) -> bool:
        """Return whether both have rows, and more than `by_ns` lies between them."""
        gap = max(self.low - other.high, other.low - self.high)
        return bool(self) and bool(other) and gap > by_ns


class ProcessPart(Struct, eq=False):
    """The rows of one process in one file.

    `guid` and `pid` are None if the file lacks them. The column `device` has indices in `agents`,
    the texts by which the file names devices; `ends` has the indices of source and target for each
    piece of the copies. `stretch` is when the rows begin; `records` counts rows that go into no
    table; `pushes` are rows of beginnings and ends of ranges until they are paired.

    `counting` is when counters were read; `is_wide`: each counter is a column. Rows of such a
    table also have the times of kernels: `beside` keeps them until it is known whether to use them.
    `dispatches` are the numbers of its kernels.
    """

    file: TableFile
    guid: str | None
    pid: int | None
    tables: dict[str, TableBuilder] = field(default_factory=dict)
    agents: Names = field(default_factory=Names)
    ends: list[tuple[Array, Array]] = field(default_factory=list)
    pushes: list[Cells] = field(default_factory=list)
    stretch: Stretch = field(default_factory=Stretch)
    counting: Stretch = field(default_factory=Stretch)
    is_wide: bool = False
    records: int = 0
    beside: ProcessPart | None = None
    dispatches: list[IntArray] = field(default_factory=list)

    @property
    def skipped(self) -> int:
        """How many numbers of dispatches are missing; 0 if that is more than can have run.

        A row whose number was not read may have any of the missing numbers.
        """
        number = np.concatenate([np.empty(0, np.int64), *self.dispatches])
        given = distinct(number[number >= 0])
        if not len(given):
            return 0
        missing = int(given[-1] - given[0]) + 1 - len(given) - count_true(number < 0)
        # No GPU starts a kernel each nanosecond: one of these numbers was damaged.
        return max(missing, 0) if missing <= self.stretch.high - self.stretch.low else 0

    def __getitem__(self, name: str) -> TableBuilder:
        """Return the builder of a table; copies and graphs stay apart until they are resolved."""
        if name not in self.tables:
            self.tables[name] = TableBuilder(BUILT_AS.get(name, name))
        return self.tables[name]

    def has(self, *names: str) -> bool:
        """Return whether the part has rows of one of these tables."""
        return any(name in self.tables and self.tables[name].count > 0 for name in names)

    def times_beside(self) -> ProcessPart:
        """Return the part with the times of kernels beside counters; its odd rows are apart."""
        if self.beside is None:
            file = TableFile(self.file.source, self.file.place)
            self.beside = ProcessPart(file, self.guid, self.pid, agents=self.agents)
        return self.beside

    def use_times_beside(self) -> bool:
        """Move the times beside counters into this part; return whether there are any."""
        beside, self.beside = self.beside, None
        if beside is not None:
            self.file.odd.update(beside.file.odd)
            self.stretch.join(beside.stretch)
            for name, table in beside.tables.items():
                self[name].absorb(table)
        return beside is not None


class TableFile(Struct, eq=False):
    """One file as it was read.

    `parts` are its rows by (guid, pid). `odd` counts odd rows by kind, `events` records by table,
    `domains` calls by domain. `agents` are rows of agent_info.csv, `system` that of sysinfo.csv.
    """

    source: ByteSource
    place: OutputPlace
    damage: Damage = field(default_factory=Damage)
    layouts: list[Layout] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    parts: dict[Hashable, ProcessPart] = field(default_factory=dict)
    odd: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    domains: Counter[str] = field(default_factory=Counter)
    agents: list[dict[str, str]] = field(default_factory=list)
    system: dict[str, str] = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        """How many numbers of dispatches are missing between the first and last of a process."""
        return sum(part.skipped for part in self.parts.values())

    def note(self, table: RocprofTable) -> None:
        """Add a table's layout and kind to those of the file."""
        if table.layout not in self.layouts:
            self.layouts.append(table.layout)
        self.kinds.add(table.what)

    def part(self, guid: str | None, pid: int | None) -> ProcessPart:
        """Return the part of a process; beyond _MOST_PROCESSES new ones share a nameless part."""
        if (guid, pid) not in self.parts and len(self.parts) >= _MOST_PROCESSES:
            guid = pid = None
        return self.parts.setdefault((guid, pid), ProcessPart(self, guid, pid))

    def cuts(self, rows: Cells) -> Iterator[tuple[ProcessPart, Cells]]:
        """Yield the part of each process that has some of the rows, with these rows."""
        # The key of a row is (index of its guid) * len(pids) + (index of its pid).
        guid, pid = rows.columns.get("guid"), rows.columns.get("pid")
        key = np.zeros(rows.count, np.int64)
        pids, guids = [ABSENT], [""]
        if pid is not None and not isinstance(pid, Texts):
            numbers, key = ranked(pid)
            pids = numbers.tolist()
        if isinstance(guid, Texts):
            guids = guid.values
            key = guid.codes * len(pids) + key
        for number, of_process in groups(key):
            text, process_id = guids[number // len(pids)], pids[number % len(pids)]
            if text.isascii() and text.isdecimal() and len(text) < _DIGITS_OF_INT64:
                # A decimal number is no guid but a process id (see `_table_of` of layouts).
                process_id = int(text) if process_id == ABSENT else process_id
                text = ""
            part = self.part(text or None, None if process_id == ABSENT else process_id)
            yield part, rows if len(of_process) == rows.count else rows.only(of_process)
