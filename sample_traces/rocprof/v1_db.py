"""rocprof v1: `results.db`, the database from which its other files are made."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from sample_traces.records import Run
from sample_traces.rocprof.capture import Capture, captures
from sample_traces.rocprof.names import Cell, written
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.v1_csv import duration, kernel_rows
from sample_traces.rocprof.v1_json import (
    CALLS,
    COPIES,
    EXTERNAL,
    FILL_NAME,
    call_args,
    copy_args,
    host_args,
    section_of,
    work_args,
)

Row = dict[str, Cell]

_TEXTS: Final = ("KernelName", "Name", "args", "Data", "roctx-range")


def write_v1_db(run: Run, folder: Path, options: RocprofOptions) -> list[Path]:
    """Write one folder per rank: the database of a run that traced only kernels."""
    return _write(run, folder, options, calls=False)


def write_v1_api_db(run: Run, folder: Path, options: RocprofOptions) -> list[Path]:
    """Write one folder per rank: the database of a run with --hip-trace (and --roctx-trace)."""
    return _write(run, folder, options, calls=True)


def _write(run: Run, folder: Path, options: RocprofOptions, calls: bool) -> list[Path]:
    paths = []
    for one in captures(run, options):
        path = folder / f"rank{one.rank}" / "results.db"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        tables = _traced(one, options) if calls else {"KERN": _kernels(one, options)}
        with closing(sqlite3.connect(path)) as connection:
            for table, rows in tables.items():
                _fill(connection, table, rows)
            connection.commit()
        paths.append(path)
    return paths


def _fill(connection: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    """Make a table with the columns of its rows; without rows there is none."""
    if not rows:
        return
    # As the tool declares them: counters have decimals and pointers letters all the same.
    columns = ", ".join(f'"{name}" {"TEXT" if name in _TEXTS else "INTEGER"}' for name in rows[0])
    connection.execute(f"CREATE TABLE {table} ({columns})")
    places = ", ".join("?" * len(rows[0]))
    connection.executemany(
        f"INSERT INTO {table} VALUES ({places})", [tuple(row.values()) for row in rows]
    )


def _kernels(capture: Capture, options: RocprofOptions) -> list[Row]:
    """Return the rows of the CSV file, the names in quotes as there."""
    rows = []
    for row in kernel_rows(capture, options, "arch_vgpr"):
        row["KernelName"] = f'"{row["KernelName"]}"'
        rows.append(row | ({"DurationNs": duration(row)} if options.times else {}))
    return rows


def _traced(capture: Capture, options: RocprofOptions) -> Mapping[str, list[Row]]:
    copies = [
        _device_row(copy_args(capture, one), one.correlation, COPIES, one.stream)
        for one in capture.transfers
    ]
    kernels: list[Row] = []
    for one in capture.in_order_of_dispatch():
        section = section_of(capture, one)
        fill = section == COPIES
        name = FILL_NAME if fill else written(one.kernel.name, options.names)
        row = _device_row(work_args(capture, one, name), one.correlation, section, one.stream)
        (copies if fill else kernels).append(row)
    calls = (
        _ended(call_args(capture, one), one.correlation, CALLS, one.thread)
        for one in capture.of("hip")
    )
    marks = (
        host_args(capture, one) | {"Index": number, "__section": EXTERNAL, "__lane": one.thread}
        for number, one in enumerate(capture.of("marker"))
    )
    return {"rocTX": list(marks), "HIP": list(calls), "OPS": kernels, "COPY": copies}


def _device_row(args: Row, correlation: int, section: int, stream: int) -> Row:
    return _ended(_with_range(args.items()), correlation, section, stream)


def _with_range(values: Iterable[tuple[str, Cell]]) -> Row:
    """Return a row with the range's name, which is that of the work where there is none."""
    row: Row = {}
    for name, value in values:
        if name == "stream-id":
            row["roctx-range"] = row["Name"]
        row[name] = value
    return row


def _ended(args: Row, correlation: int, section: int, lane: int) -> Row:
    """Return a row with its index, which is the correlation id, and its place in the picture."""
    row: Row = {}
    for name, value in args.items():
        if name == "Data":
            row["Index"] = correlation
        if name == "DurationNs":
            row |= {"__section": section, "__lane": lane}
        row[name] = value
    return row
