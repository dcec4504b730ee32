"""SQL over the tables of an analysis, by DuckDB (extra `sql`): no file, no network is in reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from traceflops.errors import UsageError

_ALONE: Final[Mapping[str, str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}
"""What keeps a query to the tables: files, extensions, and Python's variables are out of reach."""

_LEAST_VERSION: Final = 2
"""Earlier versions crash on lists of a fixed size."""
_NEEDED: Final = UsageError("SQL needs DuckDB 2 or newer", "pip install 'traceflops[sql]'")


def run_sql(tables: Mapping[str, pa.Table], query: str) -> pa.Table:
    """Return what a query gives. Raises UsageError where it is wrong, or DuckDB is not installed.

    Sums of whole numbers are whole numbers again, where int64 holds them.
    """
    try:
        import duckdb
    except ImportError:
        raise _NEEDED from None
    if int(duckdb.__version__.partition(".")[0]) < _LEAST_VERSION:
        raise _NEEDED
    with duckdb.connect(":memory:", config=dict(_ALONE)) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        try:
            found = connection.sql(query)
            result = found.to_arrow_table() if found is not None else None
        except (duckdb.Error, RuntimeError, ValueError) as error:
            said = str(error).strip().splitlines() or ["the query failed"]
            hint = f"tables: {', '.join(tables)}; columns: traceflops query TRACE"
            raise UsageError(f"SQL: {said[0]}", hint) from None
    if result is None:
        raise UsageError("SQL: the query gives no rows", "write a SELECT")
    return _with_whole_numbers(result)


def _with_whole_numbers(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        if kinds.is_decimal(field.type) and field.type.scale == 0:
            table = _as_int64(table, place, field)
    return table


def _as_int64(table: pa.Table, place: int, field: Any) -> pa.Table:
    try:
        column = table.column(place).cast(pa.int64())
    except pa.ArrowInvalid:
        return table
    return table.set_column(place, field.with_type(pa.int64()), column)
