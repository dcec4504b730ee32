"""Two ways to read the rows of a table: through Arrow, or one by one around damage.

Arrow is three times as fast. It takes a column's type from the first rows, so every expression must
have one type in all rows, never null. The other way halves the range of row numbers behind damage
until nothing more can be read, in a limited number of attempts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any, Final

from msgspec import Struct

from traceflops.table.columns import Array, floats, numbers

BATCH_ROWS: Final = 1 << 15
LONGEST_VALUE: Final = 64 << 20
"""The longest text that is read. Arrow's driver has no limit, so its queries must keep this one."""
Row = tuple[Any, ...]
"""A row as SQLite returns it, with its row number first."""
Scan = Callable[[int, int], Iterator[list[Row]]]
"""Yields the rows with numbers from one to another (inclusive), in order.

At damage it raises Damaged, after it has yielded the rows before.
"""
FAULTS: Final = (sqlite3.Error, MemoryError)
"""Errors that a damaged file can cause; a wrong length in it makes SQLite run out of memory."""
LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
_MOST_FAILURES: Final = 4_000  # each costs a query; after so many the rest counts as lost


class NotFast(Exception):
    """Reading through Arrow failed or is not possible here; the other way finds out why."""


def fast_columns(uri: str, queries: Sequence[str]) -> Iterator[tuple[int, list[Array]]]:
    """Yield batches of the columns of queries over integers and reals, each with its query's index.

    Queries run in parallel, one batch ahead. Raises NotFast at an error, after the valid
    batches.
    """
    has_failed = False
    with ExitStack() as open_queries, ThreadPoolExecutor(len(queries)) as threads:
        readers = [open_queries.enter_context(closing(_columns(uri, q))) for q in queries]
        ahead = {n: threads.submit(next, reader, None) for n, reader in enumerate(readers)}
        while ahead:
            for number in tuple(ahead):
                try:
                    columns = ahead.pop(number).result()
                except Exception:  # the other way finds out what it was
                    has_failed, columns = True, None
                if columns is not None:
                    ahead[number] = threads.submit(next, readers[number], None)
                    yield number, columns
    if has_failed:
        raise NotFast


def _columns(uri: str, query: str) -> Generator[list[Array], None, None]:
    """Yield the batches of a query as columns: int64 or float64, else it raises NotFast."""
    readers: dict[str, Callable[[Any], Array]] = {"int64": numbers, "double": floats}
    with closing(record_batches(uri, query)) as batches:
        for batch in batches:
            types = [str(column.type) for column in batch.columns]
            if not readers.keys() >= {*types} or any(c.null_count for c in batch.columns):
                raise NotFast
            yield [readers[kind](c) for kind, c in zip(types, batch.columns, strict=True)]


def record_batches(uri: str, query: str) -> Generator[Any, None, None]:
    """Yield a query's rows as Arrow batches. Raises NotFast without the driver, or at an error."""
    try:
        import adbc_driver_manager as manager
        import adbc_driver_sqlite as driver
        import pyarrow as pa
    except ImportError:
        raise NotFast from None
    try:
        with (
            driver.connect(uri) as database,
            manager.AdbcConnection(database) as connection,
            manager.AdbcStatement(connection) as setting,
            manager.AdbcStatement(connection) as statement,
        ):
            setting.set_sql_query("PRAGMA trusted_schema=OFF")
            setting.execute_update()
            batch_rows: dict[str, Any] = {driver.StatementOptions.BATCH_ROWS.value: str(BATCH_ROWS)}
            statement.set_options(**batch_rows)
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield from reader
    except (manager.Error, pa.ArrowException, OSError):
        raise NotFast from None


class Damaged(Exception):
    """The rows from here on cannot be reached."""


class Salvage(Struct):
    """Reads a table around its damage.

    `last` is the highest row number according to the database, None if it does not record it.
    Afterwards `read` rows were read and at most `lost` rows lost (None: unknown).
    """

    scan: Scan
    last: int | None = None
    is_numbered: bool = True
    read: int = 0
    lost: int | None = 0
    failures: int = 0

    def rows(self, low: int, high: int) -> Iterator[list[Row]]:
        """Yield the intact rows with numbers from `low` to `high`."""
        try:
            for rows in self.scan(low, high):
                self.read += len(rows)
                low = rows[-1][0] + 1
                yield rows
            return
        except Damaged:
            self.failures += 1
        if not self.is_numbered:  # nothing behind the damage can be reached
            self.lost = None
            return
        # Limit the range in which there may be rows behind the damage, then try both its halves.
        if high == HIGHEST and self.last is not None:
            high = self.last
        elif high == HIGHEST:  # the number of rows is unknown: try some row numbers behind
            self.lost = None
            # As many again as were read, and some more; none if not even one row was read.
            high = 0 if low == LOWEST else low + self.read + (1 << 16)
        low = min(1, high) if low == LOWEST else low  # SQLite numbers rows from 1
        if low < high and self.failures < _MOST_FAILURES:
            middle = (low + high) // 2
            yield from self.rows(low, middle)
            yield from self.rows(middle + 1, high)
        elif self.lost is not None:
            self.lost += max(0, high - low + 1)
