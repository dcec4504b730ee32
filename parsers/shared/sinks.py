"""Functions with which readers add rows of one kind to the tables of a trace.

A column is an array with a value per row, or one value for all rows. Times are the columns
`start_ns` and `dur_ns` of `rows`. Texts are codes. ABSENT is unknown, as are impossible sizes.
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
"""The name of the calls that stand for the times at which rocprof v1 queued dispatches."""
DIRECTIONS: Final = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")
"""The directions of copies; rows of copies have an index in it, -1 for unknown."""
_END: Final = "((?i:host|device|peer|array))"
_WAY: Final = re.compile(
    rf"{_END}[ _-]?(?i:to)[ _-]?{_END}|([HDPA])(?:[ -]?to[ -]?|2)([HDPA])(?![a-z])"
)
_INT31: Final = 2**31
_LEAST: Final = {
    "registers_per_thread": 1,
    "shared_memory_bytes": 0,
    "scratch_bytes": 0,
    "bytes": 0,
}
"""The smallest possible value of each column of sizes; smaller ones become ABSENT."""
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
    """Add device work (kernels, copies, fills, whole graphs) to the table `into`.

    `columns` are columns of that table: `grid` in blocks and `block` in threads have the shape
    (rows, 3). `direction` is an index in DIRECTIONS per row.
    """
    table = tables[into]
    for name in {"grid", "block"} & columns.keys():
        sizes = columns[name]
        if not isinstance(sizes, int):
            columns[name] = np.where(_are_sizes(sizes)[:, None], sizes, ABSENT)
    for name in _LEAST.keys() & columns.keys():
        columns[name] = at_least(_LEAST[name], columns[name])
    if direction is not None:
        # The appended -1 (null) is what the index -1 selects.
        codes = np.append(table.names["direction"].codes(DIRECTIONS), np.int32(-1))
        columns["direction"] = codes[direction]
    _add(table, rows, kind=_coded(table, "kind", kind), **columns)


def add_calls(
    tables: Builders, rows: Batch | Cells, *, api: Array | str, **columns: Values
) -> None:
    """Add calls to the table of calls; `api` is the name of their API, or a code per call."""
    _add(tables["calls"], rows, api=_coded(tables["calls"], "api", api), **columns)


def add_marks(
    tables: Builders, rows: Batch | Cells, *, instant_ns: int = 0, **columns: Values
) -> None:
    """Add ranges to the marks; those no longer than `instant_ns` become instants of 0 ns."""
    annotation, instant = tables["marks"].names["kind"].codes(("annotation", "instant"))
    is_range = rows["dur_ns"] > instant_ns
    dur_ns = np.where(is_range, rows["dur_ns"], 0)
    kind = np.where(is_range, annotation, instant)
    _add(tables["marks"], rows, kind=kind, dur_ns=dur_ns, **columns)


def add_overheads(tables: Builders, rows: Batch | Cells, **columns: Values) -> None:
    """Add overheads of the tool or the runtime to the marks; `device` is one that waits for it."""
    _add(tables["marks"], rows, kind=_coded(tables["marks"], "kind", "overhead"), **columns)


def _add(table: TableBuilder, rows: Batch | Cells, **columns: Values) -> None:
    """Add rows with their times and `columns`, without columns that are ABSENT in all rows."""
    times = {name: rows[name] for name in ("start_ns", "dur_ns")}
    known = {n: v for n, v in columns.items() if not isinstance(v, int) or v != ABSENT}
    table.add(rows.count, **(times | known))


def direction_named(name: str) -> str | None:
    """Return the direction (of DIRECTIONS) that the name of a copy states, None if none."""
    match = _WAY.search(name)
    if match is None:
        return "PtoP" if "peer" in name.lower() else None
    # CUDA arrays ("A") are device memory.
    source, target = (end[0].upper().replace("A", "D") for end in match.groups() if end)
    return "PtoP" if "P" in source + target else f"{source}to{target}"


def add_queueing(
    tables: Builders, queued: IntArray, thread: IntArray, correlation: IntArray, process: Values
) -> None:
    """Add a call of 0 ns, named DISPATCH, for each time in ns at which a kernel was queued."""
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
    """Return the values with ABSENT in place of those below `least`."""
    return values if isinstance(values, int) else np.where(values >= least, values, ABSENT)


def blocks_of(threads: IntArray, block: IntArray) -> IntArray:
    """Return the number of blocks per axis, rounded up, of grids given in threads (rows, 3)."""
    is_size = (_are_sizes(threads) & _are_sizes(block))[:, None]
    return np.where(is_size, -(-threads // np.where(is_size, block, 1)), ABSENT)


def product_of(axes: Array) -> IntArray:
    """Return the product of each row of axes (rows, 3), ABSENT if one is below 1, or if >= 2^62."""
    wide = axes.astype(np.int64, copy=False)
    # The product as floats cannot overflow, so it tells whether the product as int64 does.
    fits = (wide > 0).all(axis=1) & (wide.prod(axis=1, dtype=np.float64) < 2**62)
    return np.where(fits, wide.prod(axis=1), ABSENT)


def _are_sizes(sizes: Array) -> BoolArray:
    return np.asarray(((sizes > 0) & (sizes < _INT31)).all(axis=1))
