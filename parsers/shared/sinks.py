"""The sinks of the timeline: a reader gives rows of one kind, which become rows of tables here.

A column is a value per row, or one for all of them. Times are `start_ns` and `dur_ns` of `rows`;
names are codes of the table's; what is ABSENT is unknown, and so are sizes that cannot be.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

import numpy as np

from traceflops.parsers.io.csv_cells import Cells
from traceflops.parsers.io.database_query import Batch
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, Array, BoolArray, IntArray

UNNAMED: Final = "(unnamed)"
UNNAMED_KERNEL: Final = "(unnamed kernel)"
UNNAMED_COPY: Final = "(unnamed copy)"
DISPATCH: Final = "dispatch"
"""The name of the calls that are made of the moments at which rocprof v1 queued dispatches."""
DIRECTIONS: Final = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")
"""The directions of copies; a batch of copies has their indexes, -1 for unknown."""
_END: Final = "((?i:host|device|peer|array))"
_WAY: Final = re.compile(
    rf"{_END}[ _-]?(?i:to)[ _-]?{_END}|([HDPA])(?:[ -]?to[ -]?|2)([HDPA])(?![a-z])"
)
_PEER: Final = re.compile("peer", re.I)
_INT31: Final = 2**31
_SIZES: Final = frozenset({"grid", "block"})
_LEAST: Final = {"registers_per_thread": 1, "shared_memory_bytes": 0, "bytes": 0}
"""Columns of sizes, and the smallest that each can have: others are unknown."""

Values = Array | int


class Builders(Protocol):
    """The builders of tables, by name."""

    def __getitem__(self, table: str) -> TableBuilder:
        """Return the builder of a table."""


def add_work(
    tables: Builders,
    rows: Batch | Cells,
    kind: Array | str,
    *,
    direction: Array | None = None,
    into: str = "activities",
    **columns: Values,
) -> None:
    """Add work of devices: kernels, copies and fills, launches of graphs without their kernels.

    `grid` is in blocks and `block` in threads, by axis (rows, 3); `direction` is an index in
    DIRECTIONS per row.
    """
    table = tables[into]
    for name in _SIZES & columns.keys():
        columns[name] = _sized(columns[name])
    for name in _LEAST.keys() & columns.keys():
        columns[name] = at_least(_LEAST[name], columns[name])
    if direction is not None:
        columns["direction"] = np.append(table.names["direction"].codes(DIRECTIONS), np.int32(-1))[
            direction
        ]
    _add(table, rows, kind=_coded(table, "kind", kind), **columns)


def add_calls(
    tables: Builders, rows: Batch | Cells, *, api: Array | str, **columns: Values
) -> None:
    """Add calls of an API, or of several by their codes."""
    _add(tables["calls"], rows, api=_coded(tables["calls"], "api", api), **columns)


def add_marks(
    tables: Builders, rows: Batch | Cells, *, instant_ns: int = 0, **columns: Values
) -> None:
    """Add ranges and instants; what lasts no longer than `instant_ns` is an instant."""
    kinds = tables["marks"].names["kind"].codes(("annotation", "instant"))
    lasts = rows["dur_ns"] > instant_ns
    dur = np.where(lasts, rows["dur_ns"], 0)
    kind = np.where(lasts, kinds[0], kinds[1])
    _add(tables["marks"], rows, kind=kind, dur_ns=dur, **columns)


def add_overheads(tables: Builders, rows: Batch | Cells, **columns: Values) -> None:
    """Add what the tool or the runtime did; of a device where that waits for it."""
    _add(tables["marks"], rows, kind=_coded(tables["marks"], "kind", "overhead"), **columns)


def _add(table: TableBuilder, rows: Batch | Cells, **columns: Values) -> None:
    """Add rows with their times, without the columns of which nothing is known."""
    times = {name: rows[name] for name in ("start_ns", "dur_ns")}
    known = {n: v for n, v in columns.items() if not isinstance(v, int) or v != ABSENT}
    table.add(rows.count, **(times | known))


def direction_named(name: str) -> str | None:
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
        add_calls(
            tables,
            Batch(len(queued), times, {}),
            process=process,
            thread=thread,
            name=tables["calls"].names["name"][DISPATCH],
            correlation=correlation,
            api="hsa",
        )


def _coded(table: TableBuilder, column: str, value: Array | str) -> Values:
    return table.names[column][value] if isinstance(value, str) else value


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
