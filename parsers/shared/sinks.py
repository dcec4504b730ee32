"""The sinks of the timeline: a reader gives typed batches, which become rows of tables here.

A batch is rows of one kind, a field per column: a value per row, or one for all of them. Times are
`start_ns` and `dur_ns` of `rows`; names are codes of the table's; what is ABSENT is unknown.
Sizes that cannot be are unknown, whichever format has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final, Protocol

import numpy as np

from traceflops.parsers.io.csv_text import Cut
from traceflops.parsers.io.database_query import Batch
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, Array, BoolArray, IntArray

UNNAMED: Final = "(unnamed)"
UNNAMED_KERNEL: Final = "(unnamed kernel)"
UNNAMED_COPY: Final = "(unnamed copy)"
DISPATCH: Final = "dispatch"
"""The name of the calls that are made of the moments at which rocprof v1 queued dispatches."""
WAYS: Final = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")
"""The directions of copies; a batch of copies has their indexes, -1 for unknown."""
_END: Final = "((?i:host|device|peer|array))"
_WAY: Final = re.compile(
    rf"{_END}[ _-]?(?i:to)[ _-]?{_END}|([HDPA])(?:[ -]?to[ -]?|2)([HDPA])(?![a-z])"
)
_PEER: Final = re.compile("peer", re.I)
_INT31: Final = 2**31

Values = Array | int


class Builders(Protocol):
    """The builders of tables, by name."""

    def __getitem__(self, table: str) -> TableBuilder:
        """Return the builder of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedBatch:
    rows: Batch | Cut
    name: Values
    process: Values = ABSENT

    def _add(self, table: TableBuilder, **columns: Values) -> None:
        types = table.types
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name in types}
        times = {name: self.rows[name] for name in ("start_ns", "dur_ns")}
        given = {
            name: values
            for name, values in (own | times | columns).items()
            if not isinstance(values, int) or values != ABSENT
        }
        table.add(self.rows.count, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Activities(_TimedBatch):
    device: Values = ABSENT
    stream: Values = ABSENT
    correlation: Values = ABSENT
    graph: Values = ABSENT
    graph_node: Values = ABSENT
    annotation: Values = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels(_Activities):
    """Kernels: `grid` in blocks and `block` in threads, by axis."""

    grid: Values = ABSENT
    block: Values = ABSENT
    registers_per_thread: Values = ABSENT
    shared_memory_bytes: Values = ABSENT

    def add_to(self, tables: Builders) -> None:
        """Add them to the activities."""
        table = tables["activities"]
        self._add(
            table,
            kind=table.names["kind"]["kernel"],
            grid=_sized(self.grid),
            block=_sized(self.block),
            registers_per_thread=at_least(1, self.registers_per_thread),
            shared_memory_bytes=at_least(0, self.shared_memory_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies(_Activities):
    """Copies and fills: `way` are indexes in WAYS."""

    kind: Array | str = "memcpy"
    bytes: Values = ABSENT
    way: Array

    def add_to(self, tables: Builders, into: str = "activities") -> None:
        """Add them to a builder of activities."""
        table = tables[into]
        ways = np.append(table.names["direction"].codes(WAYS), np.int32(-1))
        self._add(
            table,
            kind=_coded(table, "kind", self.kind),
            bytes=at_least(0, self.bytes),
            direction=ways[self.way],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs(_Activities):
    """Launches of graphs whose kernels were not recorded one by one."""

    def add_to(self, tables: Builders, into: str = "activities") -> None:
        """Add them to a builder of activities."""
        table = tables[into]
        self._add(table, kind=table.names["kind"]["graph"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(_TimedBatch):
    """Calls of an API, or of several by their codes."""

    thread: Values
    correlation: Values
    api: Array | str

    def add_to(self, tables: Builders) -> None:
        """Add them to the calls."""
        table = tables["calls"]
        self._add(table, api=_coded(table, "api", self.api))


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks(_TimedBatch):
    """Ranges and instants; one that lasts no longer than `instant_ns` is an instant."""

    thread: Values
    instant_ns: int = 0

    def add_to(self, tables: Builders) -> None:
        """Add them to the marks."""
        table = tables["marks"]
        kinds = table.names["kind"].codes(("annotation", "instant"))
        dur = self.rows["dur_ns"]
        lasts = dur > self.instant_ns
        self._add(table, kind=np.where(lasts, kinds[0], kinds[1]), dur_ns=np.where(lasts, dur, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads(_TimedBatch):
    """What the tool or the runtime did besides the program; of a device where that waits for it."""

    thread: Values
    device: Values = ABSENT
    stream: Values = ABSENT

    def add_to(self, tables: Builders) -> None:
        """Add them to the marks."""
        table = tables["marks"]
        self._add(table, kind=table.names["kind"]["overhead"])


def way_named(name: str) -> str | None:
    """Return the direction that the name of a copy says, in any spelling; arrays lie on devices."""
    match = _WAY.search(name)
    if match is None:
        return "PtoP" if _PEER.search(name) else None
    source, target = (end[0].upper().replace("A", "D") for end in match.groups() if end)
    return "PtoP" if "P" in source + target else f"{source}to{target}"


def add_queueing(
    tables: Builders, queued: IntArray, thread: IntArray, correlation: IntArray, process: Values
) -> None:
    """Add the moments at which kernels were put into their queues, as calls of no length."""
    if len(queued):
        times = {"start_ns": queued, "dur_ns": np.zeros(len(queued), np.int64)}
        Calls(
            rows=Batch(len(queued), times, {}),
            process=process,
            thread=thread,
            name=tables["calls"].names["name"][DISPATCH],
            correlation=correlation,
            api="hsa",
        ).add_to(tables)


def _coded(table: TableBuilder, column: str, value: Array | str) -> Values:
    return table.names[column][value] if isinstance(value, str) else value


# Sizes, of which those that cannot be are unknown.


def at_least(least: int, values: Values) -> Values:
    """Return the values that are no smaller, ABSENT for the others."""
    return values if isinstance(values, int) else np.where(values >= least, values, ABSENT)


def blocks_of(threads: IntArray, block: IntArray) -> IntArray:
    """Return the blocks of grids of threads (rows, 3), rounded up, by axis."""
    is_size = (_are_sizes(threads) & _are_sizes(block))[:, None]
    return np.where(is_size, -(-threads // np.where(is_size, block, 1)), ABSENT)


def product_of(axes: Array) -> IntArray:
    """Return the product of the axes (rows, 3), ABSENT where it is unknown or above an int64."""
    wide = axes.astype(np.int64, copy=False)
    fits = (wide > 0).all(axis=1) & (wide.prod(axis=1, dtype=np.float64) < 2**62)
    return np.where(fits, wide.prod(axis=1), ABSENT)


def _sized(sizes: Values) -> Values:
    if isinstance(sizes, int) or (is_size := _are_sizes(sizes)).all():
        return sizes
    return np.where(is_size[:, None], sizes, ABSENT)


def _are_sizes(sizes: Array) -> BoolArray:
    return np.asarray(((sizes > 0) & (sizes < _INT31)).all(axis=1))
