"""Collects the rows of a reader and makes the tables of a trace, with one order and numbering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from traceflops.parsers.io.database_query import by_distinct
from traceflops.table.builder import BEYOND, MOST_TEXTS, TableBuilder
from traceflops.table.columns import ABSENT, BoolArray, IntArray
from traceflops.table.grouping import distinct
from traceflops.table.trace import Note

_HOST_ORDER = ("start_ns", "thread", "dur_ns")
_ORDERS: Mapping[str, tuple[str, ...]] = {
    "activities": ("start_ns", "device", "stream", "dur_ns", "correlation"),
    "calls": (*_HOST_ORDER, "correlation"),
    "ops": (*_HOST_ORDER, "external_id"),
    "marks": (*_HOST_ORDER, "python_id"),
    "counters": ("time_ns",),
}
"""The columns by which each table is sorted: its time, then others, so that ties are settled."""
_MOST_TOLD_APART = 4_096  # the most processes or devices that are distinguished in a file
_UNORDERED = ("kernel_counters", "kernel_rules", "totals")


class DeviceFacts(Struct, frozen=True):
    """What a file says about a device, as columns of the devices table; None: unknown."""

    product: str | None = None
    memory_bytes: int | None = None
    compute_major: int | None = None
    compute_minor: int | None = None
    sm_count: int | None = None
    warp_size: int | None = None
    architecture: str | None = None
    clock_hz: int | None = None
    dies: int | None = None


NOTHING_KNOWN = DeviceFacts()


class ProcessFacts(Struct, frozen=True):
    """What a file says about a process; None: unknown. `file` is a base name."""

    file: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None


class Gathered:  # a stable name, see docs/extend.md
    """The rows of a trace while it is read, and the processes and devices they belong to.

    `process()` and `device()` return numbers for the columns process and device. `counts` is how
    many records of each kind were read, `odd` how many were odd, by the key of the note on them.
    """

    def __init__(self) -> None:
        self.tables = {name: TableBuilder(name) for name in (*_ORDERS, *_UNORDERED)}
        self._processes: dict[Hashable, int] = {}
        self._process_facts: list[ProcessFacts] = []
        self._devices: dict[Hashable, int] = {}
        # By number of the device: its first process, its number in the file, facts, place.
        self._device_rows: list[tuple[int, int, DeviceFacts, str | None]] = []
        self.counts: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.places: tuple[str | None, ...] = ()
        """The places of the devices of the finished tables, row by row."""

    def __getitem__(self, table: str) -> TableBuilder:
        return self.tables[table]

    def process(self, key: Hashable, facts: ProcessFacts) -> int:
        """Return the number of the process `key`; the first facts given for a key are kept."""
        if key not in self._processes:
            self._processes[key] = len(self._process_facts)
            self._process_facts.append(facts)
        return self._processes[key]

    def device(
        self,
        key: Hashable,
        process: int,
        local_id: int,
        facts: DeviceFacts = NOTHING_KNOWN,
        place: str | None = None,
    ) -> int:
        """Return the number of the device `key`, such as (host, agent); add it if it is new.

        `process` uses the device and calls it `local_id`. `place` identifies it in all files of its
        machine; see `traceflops.table.trace.Trace`. The first facts given for a key are kept.
        """
        if key not in self._devices:
            self._devices[key] = len(self._device_rows)
            self._device_rows.append((process, local_id, facts, place))
        return self._devices[key]

    def finish(self) -> dict[str, pa.Table]:
        """Return all tables by name, with only the devices in use, numbered anew.

        A device is in use if it has work, or if it has hardware counters and its facts are known.
        """
        working = distinct(self["activities"].column("device"))
        counted = set(distinct(self["kernel_counters"].column("device")).tolist())
        only_counted = counted - {*working.tolist(), ABSENT}
        described = [row for row in only_counted if self._device_rows[row][2] != NOTHING_KNOWN]
        used = np.sort(np.append(working, np.array(described, dtype=np.int64)))
        if len(used) < len(self._device_rows):
            for name in ("activities", "marks", "counters", "kernel_counters", "kernel_rules"):
                renumber_devices(self[name], used)
        devices = [self._device_rows[row] for row in used.tolist()]
        self.places = tuple(place for *_, place in devices)
        return {
            "processes": processes_table(self._process_facts),
            "devices": devices_table([device[:3] for device in devices]),
            **{name: in_order_of_time(self.tables[name]) for name in _ORDERS},
            **{name: self.tables[name].finish() for name in _UNORDERED},
        }


class ProcessIds:
    """The processes of one file by pid; the pid ABSENT stands for a process with unknown pid."""

    def __init__(self, builder: Gathered, file: str) -> None:
        self._builder = builder
        self._file = file
        self._pids: set[int] = set()

    def numbers(self, pids: IntArray) -> IntArray:
        """Return the numbers of processes in the trace."""
        return by_distinct(pids, lambda pid, _: self.number(pid))

    def number(self, pid: int) -> int:
        """Return the number of a process in the trace."""
        pid = within_limit(self._pids, pid, ABSENT)
        facts = ProcessFacts(self._file, pid=pid if pid >= 0 else None)
        return self._builder.process(pid, facts)


def within_limit(keys: set[int], key: int, other: int) -> int:
    """Return `key`, or `other` if `key` is new and `keys` is full; add the result to `keys`.

    Only a damaged file has more keys (of processes or devices) than the limit.
    """
    key = key if key in keys or len(keys) < _MOST_TOLD_APART else other
    keys.add(key)
    return key


def renumber_devices(table: TableBuilder, used: IntArray) -> None:
    """Replace, in place, each device by its index in `used` (sorted); other devices by null."""
    column = table.column("device")
    index = np.searchsorted(used, column)
    table.replace("device", np.where(np.isin(column, used), index, ABSENT))


def in_order_of_time(table: TableBuilder) -> pa.Table:
    """Return the table sorted by the columns in _ORDERS, however the file was read in blocks."""
    keys = _ORDERS[table.table]
    table.put_in_order(keys[0])
    time = table.column(keys[0])
    if (time[1:] > time[:-1]).all():
        return table.finish()
    # Sort by time alone, then only the tied rows by all keys: ties are few.
    order = np.argsort(time, kind="stable")
    ordered = time[order]
    same_as_before = np.append(False, ordered[1:] == ordered[:-1])[: len(order)]
    same_as_next = np.append(same_as_before[1:], False)[: len(order)]
    tied = np.flatnonzero(same_as_before | same_as_next)
    rows = order[tied]
    columns = [table.column(key)[rows] for key in reversed(keys)]  # lexsort: the last is primary
    order[tied] = rows[np.lexsort(columns)]
    return table.finish(order)


def chosen(table: TableBuilder, rows: BoolArray) -> TableBuilder:
    """Keep only the marked rows of a table, in place, and return it; codes of texts stay valid."""
    if rows.all():
        return table
    first = 0
    pieces = []
    for count, columns in table.pieces:
        kept = rows[first : first + count]
        first += count
        if kept.any():
            kept_columns = {  # a column may be one value for all rows
                name: column if isinstance(column, int) or column.ndim == 0 else column[kept]
                for name, column in columns.items()
            }
            pieces.append((int(kept.sum()), kept_columns))
    table.pieces = pieces
    table.count = int(rows.sum())
    return table


def processes_table(facts: Sequence[ProcessFacts]) -> pa.Table:
    """Return the processes table; a process's number is its index in `facts`."""
    rows = [{"process": number, **asdict(process)} for number, process in enumerate(facts)]
    return _table_of("processes", rows)


def devices_table(devices: Sequence[tuple[int, int, DeviceFacts]]) -> pa.Table:
    """Return the devices table, a row per (process, local_id, facts); indices are the numbers."""
    rows = [
        {"device": n, "process": process, "local_id": local_id, "type": "gpu", **asdict(facts)}
        for n, (process, local_id, facts) in enumerate(devices)
    ]
    return _table_of("devices", rows)


def _table_of(name: str, rows: Sequence[Mapping[str, str | int | None]]) -> pa.Table:
    """Return the table `name` with these rows; None and empty texts become null."""
    table = TableBuilder(name)
    for row in rows:
        cells = {
            column: table.names[column][value] if isinstance(value, str) else value
            for column, value in row.items()
            if value is not None and value != ""
        }
        table.add(1, **cells)
    return table.finish()


def overflow_notes(tables: Iterable[TableBuilder], file: str) -> tuple[Note, ...]:
    """Return the note on columns that had more distinct texts than are kept."""
    columns = [f"{table.table}.{name}" for table in tables for name in table.overflowed]
    if not columns:
        return ()
    text = (
        f"{', '.join(columns)}: more than {MOST_TEXTS:,} distinct texts. Later names read "
        f"{BEYOND!r}; other texts are ignored."
    )
    return (Note("dropped", "names-left-out", text, None, file),)
