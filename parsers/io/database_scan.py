"""Rows of a table in two ways: through Arrow, or one by one around damage.

Arrow gives numpy columns three times as fast as rows of Python. Its driver takes the type of a
column by the first rows of it, so every expression must give one type in all rows, never null.
Around damage rows are read up to it; what lies behind it is halved until nothing more can be read.
The number of attempts is bounded, so the time is linear.
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
"""No text of a database that is longer is read. The driver has no limit: its queries keep this."""


class NotFast(Exception):
    """Reading through Arrow failed or is not possible here; the other way says why."""


def fast_columns(uri: str, queries: Sequence[str]) -> Iterator[tuple[int, list[Array]]]:
    """Give the columns of queries over integers and reals, a batch of rows of each in turn.

    They run side by side, one batch ahead of what uses them. With a batch comes the index of its
    query. Raises NotFast where the driver is missing or an error occurs; the batches before are
    valid.
    """
    has_failed = False
    with ExitStack() as open_queries, ThreadPoolExecutor(len(queries)) as threads:
        readers = [open_queries.enter_context(closing(_columns(uri, q))) for q in queries]
        ahead = {n: threads.submit(next, reader, None) for n, reader in enumerate(readers)}
        while ahead:
            for number in tuple(ahead):
                try:
                    columns = ahead.pop(number).result()
                except Exception:  # the careful way finds out what it was
                    has_failed, columns = True, None
                if columns is not None:
                    ahead[number] = threads.submit(next, readers[number], None)
                    yield number, columns
    if has_failed:
        raise NotFast


def _columns(uri: str, query: str) -> Generator[list[Array], None, None]:
    """Give the batches of a query as columns."""
    with closing(record_batches(uri, query)) as batches:
        for batch in batches:
            yield [_values(column) for column in batch.columns]


def record_batches(uri: str, query: str) -> Generator[Any, None, None]:
    """Give the rows of a query as Arrow record batches.

    Raises NotFast where the driver is missing or an error occurs; the batches before are valid.
    """
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


def _values(column: Any) -> Array:
    """Return a column as int64 or float64. Raises NotFast where it has nulls or is neither."""
    import pyarrow as pa

    if column.null_count == 0 and pa.types.is_int64(column.type):
        return numbers(column)
    if column.null_count == 0 and pa.types.is_float64(column.type):
        return floats(column)
    raise NotFast


Row = tuple[Any, ...]
"""A row as SQLite gives it, its row number first."""

Scan = Callable[[int, int], Iterator[list[Row]]]
"""Gives the rows whose numbers lie between two (inclusive), in order.

It raises Damaged, once it has given the rows before the damage.
"""

FAULTS: Final = (sqlite3.Error, MemoryError)
"""What a damaged file can bring: SQLite is out of memory where a length in it is nonsense."""

LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
_MOST_FAILURES: Final = 4_000
_FEW_ROWS: Final = 1 << 16


class Damaged(Exception):
    """The rows behind cannot be reached from here."""


class Salvage(Struct):
    """Reads a table around its damage.

    `last` is the highest row number by the database's own account, None where it keeps none.
    Afterwards `read` and `lost` are numbers of rows, of which `lost` is an upper bound, and None
    where there is none: also where pages refer to each other so that the gap cannot be seen.
    """

    scan: Scan
    last: int | None = None
    read: int = 0
    lost: int | None = 0
    failures: int = 0

    def rows(self, low: int, high: int) -> Iterator[list[Row]]:
        """Give the intact rows with numbers between two."""
        try:
            for rows in self.scan(low, high):
                self.read += len(rows)
                low = rows[-1][0] + 1
                yield rows
            return
        except Damaged:
            self.failures += 1
        # Between which numbers there may be rows behind the damage.
        if high == HIGHEST and self.last is not None:
            high = self.last
        elif high == HIGHEST:  # how many there were is not known: see whether there are some near
            self.lost = None
            high = 0 if low == LOWEST else low + self.read + _FEW_ROWS
        low = min(1, high) if low == LOWEST else low
        if low < high and self.failures < _MOST_FAILURES:
            middle = (low + high) // 2
            yield from self.rows(low, middle)
            yield from self.rows(middle + 1, high)
        elif self.lost is not None:
            self.lost += max(0, high - low + 1)

    def front(self) -> Iterator[list[Row]]:
        """Give the rows up to the damage, of a table whose rows have no numbers."""
        try:
            for rows in self.scan(LOWEST, HIGHEST):
                self.read += len(rows)
                yield rows
        except Damaged:
            self.lost = None
