"""SQL over the tables of an analysis, by DuckDB (extra `sql`): a query can read nothing else.

It can read neither files nor the network, nor settings of DuckDB: these tell of the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count, islice
from threading import Timer
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from traceflops.analysis.tables import OnDemand
from traceflops.errors import MORE_MEMORY, UsageError, lacks

_ALONE: Final = """
    set enable_external_access = false;
    set autoinstall_known_extensions = false;
    set autoload_known_extensions = false;
    set python_enable_replacements = false;
    set lock_configuration = true
"""
"""Settings that restrict a query to the tables: no files, extensions, or variables of Python."""
_NO_FOLDER: Final = {"temp_directory": ""}
"""No folder for temporary files, which a query could read."""
_MODEST: Final = {"threads": "1", "memory_limit": "4GB"}
"""Limits of `first_rows`. A single thread returns rows in a fixed order."""
_FROM: Final = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}
)
"""The table functions that are allowed. Others read files, DuckDB's settings and secrets, or a
table or query that an argument names."""
_CLOSED: Final = re.compile(
    r"current_setting|get(env|variable)|json_(de)?serialize_\w+|sleep_ms|write_log|\w+_secret|"
    r"(duckdb|pragma|read|sqlite|inet|pg)_(?!typeof$|size_pretty$)\w+"
)
"""Functions and built-in tables of DuckDB that tell something about it or the machine."""
_BATCH_ROWS: Final = 10_000
_LEAST_VERSION: Final = 2  # earlier versions crash on lists of a fixed size
_NEEDED: Final = (f"SQL needs DuckDB {_LEAST_VERSION} or newer", "pip install 'traceflops[sql]'")


def run_sql(tables: Mapping[str, pa.Table | OnDemand], query: str) -> pa.Table:
    """Return the result of a query, whole sums as int64 if they fit. Raises UsageError."""
    with _asked(tables, query) as result:
        return _tidied(result.to_arrow_table())


def first_rows(
    tables: Mapping[str, pa.Table | OnDemand], query: str, most: int, seconds: float
) -> tuple[pa.Table, int]:
    """Return the first `most` rows of a query's result, always the same, and the number of rows.

    Other rows are not kept in memory. Raises UsageError as `run_sql` does, and for a query that
    takes more than `seconds` or too much memory.
    """
    kept, rows = [], 0
    with _asked(tables, query, seconds, _MODEST) as result:
        reader = result.to_arrow_reader(_BATCH_ROWS)
        for batch in reader:
            if rows < most:
                kept.append(batch.slice(0, most - rows))
            rows += batch.num_rows
        return _tidied(pa.Table.from_batches(kept, reader.schema)), rows


@contextmanager
def _asked(
    tables: Mapping[str, pa.Table | OnDemand],
    query: str,
    seconds: float | None = None,
    limits: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Any]:
    """Yield the result of a query, not fetched yet. Raises UsageError for a wrong query."""
    try:
        import duckdb
    except ImportError as error:
        raise lacks(error, *_NEEDED) from None
    if int(duckdb.__version__.partition(".")[0]) < _LEAST_VERSION:
        raise UsageError(*_NEEDED)
    with duckdb.connect(":memory:", config={**_NO_FOLDER, **limits}) as connection:
        connection.execute(_ALONE)
        for name, source in tables.items():
            connection.register(name, source)
        timer = Timer(seconds or 0, connection.interrupt)
        if seconds is not None:
            timer.start()
        try:
            if (queries := len(connection.extract_statements(query))) != 1:
                raise UsageError(f"SQL: {queries} queries at once", "give one")
            _check_reach(connection, query)
            yield connection.sql(query)
        except duckdb.OutOfMemoryException:
            raise UsageError("SQL: out of memory", f"ask for less, or {MORE_MEMORY}") from None
        except (duckdb.Error, OSError, RuntimeError, ValueError) as error:
            message = str(error)
            if "Query interrupted" in message:  # DuckDB's text after Ctrl-C
                raise KeyboardInterrupt from None
            if message.startswith("INTERRUPT"):  # by the timer
                raise UsageError(f"SQL: it took more than {seconds:g} s", "ask for less") from None
            first, *more = message.strip().splitlines() or ["the query failed"]
            suggestions = (line for line in more if line.startswith(("Did you", "Candidate")))
            near = "".join(f"{line.rstrip('.?')}; " for line in islice(suggestions, 1))
            hint = f"{near}tables: {', '.join(tables)}; columns: traceflops query TRACE"
            raise UsageError(f"SQL: {first}", hint) from None
        finally:
            timer.cancel()


def _check_reach(connection: Any, query: str) -> None:
    """Raise UsageError if a query reads anything except the tables."""
    parsed = connection.execute("select json_serialize_sql($1::varchar)", [query])
    tree = json.loads(parsed.fetchall()[0][0])
    if tree["error"]:
        raise UsageError("SQL: only a SELECT is answered", "write a SELECT")
    for node in _nodes(tree):
        kind, schema = node.get("type"), str(node.get("schema_name") or "main").lower()
        function = str(node.get("function_name") or "").lower()
        table = str(node.get("table_name") or "").lower() * (kind in ("BASE_TABLE", "SHOW_REF"))
        source = kind == "TABLE_FUNCTION" and str(node["function"].get("function_name")).lower()
        is_closed = _CLOSED.fullmatch(function) or _CLOSED.fullmatch(table) or schema != "main"
        # SHOW NAME may list something of DuckDB's; DESCRIBE is a SHOW_REF with a query, no name.
        is_show = table and kind == "SHOW_REF"
        if is_closed or is_show or (source and source not in _FROM):
            raise UsageError(
                f"SQL: {source or function or table} is out of reach",
                "a query reads the tables of the recording; traceflops query TRACE lists them",
            )


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a value of JSON, from outside to inside."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _nodes(inner)


def _tidied(result: pa.Table) -> pa.Table:
    """Return a result with distinct names of columns, and sums of whole numbers as int64."""
    names: list[str] = []
    for name in result.column_names:
        numbered = chain((name,), (f"{name}_{number}" for number in count(1)))
        names.append(next(free for free in numbered if free not in names))
    table = result.rename_columns(names)
    for index, field in enumerate(table.schema):
        if kinds.is_decimal(field.type) and field.type.scale == 0:
            with suppress(pa.ArrowInvalid):  # too large
                column = table.column(index).cast(pa.int64())
                table = table.set_column(index, field.with_type(pa.int64()), column)
    return table
