"""The one check for tables and traces of untrusted origin: nothing of them is used before.

Arrow trusts the offsets, codes and nulls that it reads, and so does all code on its columns here.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceflops.table.columns import numbers
from traceflops.table.schema import TABLES
from traceflops.table.trace import Trace

ARROW_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError)
"""What reading a damaged Arrow or Parquet file may raise, and what is raised here."""
LARGEST: Final = 2**62
LIMIT_NS: Final = 2**61
"""Sums of times below this stay in an int64."""
_SIGNED: Final = frozenset({"start_ns", "time_ns"})


def column_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of columns. Raises ValueError where one is no text, or is there twice."""
    names = tuple(schema.names)
    if len(set(names)) < len(names):
        raise ValueError("a column is there twice")
    return names


def checked(table: Any, schema: pa.Schema | None = None) -> Any:
    """Return a table once all of it was checked: names, offsets, codes, texts.

    With a `schema` also types and nulls. Raises one of ARROW_UNREADABLE where something is wrong.
    """
    column_names(table.schema)
    table.validate(full=True)
    if schema is not None and not table.schema.equals(schema):
        raise ValueError("the columns are others")
    for field in schema or ():
        if not field.nullable and table[field.name].null_count:
            raise ValueError(f"a row without {field.name}")
    return table


def check_trace(trace: Trace) -> None:
    """Raise ValueError where the fields of a trace contradict each other or its rows.

    Such as a row of a process or device that is not there, or one that ends before it begins.
    """
    processes, devices = trace.processes.num_rows, trace.devices.num_rows
    for per_row, count in ((trace.places, devices), (trace.clocks, processes)):
        require(len(per_row) in (0, count))
    require(len(trace.runs) in (0, devices))
    source = trace.source
    require(source.files and source.resolution_ns > 0)
    require(abs(source.origin_unix_ns or 0) < LARGEST)
    require(all(0 <= count < LARGEST for count in source.event_counts.values()))
    require(all(-LIMIT_NS < begin <= end < LIMIT_NS for begin, end in source.lifetimes))
    require(all(min(f.bytes or 0, f.text_bytes or 0) >= 0 for f in source.files))
    for name, table in trace.tables.items():
        for row, count in (("process", processes), ("device", devices)):
            if row in table.column_names:
                _check_range(table[row], 0, count - 1)
        for column in TABLES[name]:
            if column.unit and pa.types.is_int64(column.type):
                most = LIMIT_NS if column.name.endswith("_ns") else LARGEST
                _check_range(table[column.name], -most if column.name in _SIGNED else 0, most)
        if "dur_ns" in table.column_names and table.num_rows:  # sums of times fit in an int64
            start, length = numbers(table["start_ns"]), numbers(table["dur_ns"])
            span = int(start.max()) - int(start.min())
            require(max(span, int(length.max()), float(length.sum(dtype=np.float64))) < LIMIT_NS)
    for name, table in (("process", trace.processes), ("device", trace.devices)):
        require(np.array_equal(numbers(table[name]), np.arange(table.num_rows)))


def require(is_so: object) -> None:
    """Raise ValueError unless something is so."""
    if not is_so:
        raise ValueError("figures that contradict each other")


def _check_range(column: pa.ChunkedArray, least: int, most: int) -> None:
    ends = pc.min_max(column).as_py()
    if ends["min"] is not None and not least <= ends["min"] <= ends["max"] <= most:
        raise ValueError("a number that cannot be")
