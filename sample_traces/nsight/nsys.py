"""Exports of Nsight Systems: a database in SQLite, or a folder with a file for each table."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from sample_traces.nsight.devicerows import device_rows
from sample_traces.nsight.hostrows import host_rows
from sample_traces.nsight.schema import Column, Era, Row, Tables, enums, of_era
from sample_traces.nsight.session import NsightOptions, Session, Visible, sessions
from sample_traces.nsight.targetrows import target_rows
from sample_traces.records import Run

_ARROW: Final = {"INTEGER": pa.int64(), "TEXT": pa.string(), "REAL": pa.float64()}


def write_sqlite(
    run: Run,
    folder: Path,
    options: NsightOptions,
    era: Era = "2026",
    together: bool = False,
    visible: Visible = "all",
    page_bytes: int = 4096,
) -> list[Path]:
    """Write `run.rank<n>.sqlite` for each rank, or one `run.sqlite`."""
    paths = []
    for session in sessions(run, options, together, visible):
        path = folder / f"{stem_of(session, together)}.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        _save(path, tables_of(session, era), era, page_bytes)
        paths.append(path)
    return paths


def write_folders(
    run: Run, folder: Path, options: NsightOptions, form: Literal["parquet", "arrow"] = "parquet"
) -> list[Path]:
    """Write a folder with a file for each table, for each rank."""
    save = _FORMS[form]
    paths = []
    for session in sessions(run, options, together=False):
        place = folder / f"{stem_of(session, together=False)}_{_ENDINGS[form]}"
        place.mkdir(parents=True, exist_ok=True)
        for name, columns, rows in of_era(tables_of(session, "2026"), "2026"):
            path = place / f"{name}.{form}"
            save(_table(columns, rows), path)
            paths.append(path)
    return paths


def stem_of(session: Session, together: bool) -> str:
    """Return the name of a report: a report of one rank says which."""
    return "run" if together else f"run.rank{session.ranks[0].rank}"


def tables_of(session: Session, era: Era) -> Tables:
    """Return all rows of an export by table. Raises ValueError where the era cannot hold a run."""
    if era == "2020" and session.run.config.opaque_graph:
        raise ValueError("exports of 2020 have no record of a whole graph")
    rows: Tables = {"StringIds": []}
    rows |= target_rows(session, era) | device_rows(session) | host_rows(session) | enums(era)
    rows["StringIds"] = [{"id": number, "value": text} for text, number in session.texts.items()]
    return rows


def _save(path: Path, tables: Tables, era: Era, page_bytes: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        for name, columns, rows in of_era(tables, era):
            declared = ", ".join(_declared(name, column) for column in columns)
            connection.execute(f'CREATE TABLE "{name}" ({declared})')
            places = ", ".join("?" * len(columns))
            connection.executemany(
                f'INSERT INTO "{name}" VALUES ({places})',
                [tuple(row.get(column.name) for column in columns) for row in rows],
            )
        connection.commit()


def _declared(table: str, column: Column) -> str:
    is_key = column.name == "id" and (table == "StringIds" or table.startswith("ENUM_"))
    required = " NOT NULL" if column.required else ""
    return f'"{column.name}" {column.kind}{required}' + (" PRIMARY KEY" if is_key else "")


def _table(columns: list[Column], rows: list[Row]) -> pa.Table:
    return pa.table(
        {
            one.name: pa.array([row.get(one.name) for row in rows], _ARROW[one.kind])
            for one in columns
        }
    )


def _save_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def _save_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


_FORMS: Final[dict[str, Callable[[pa.Table, Path], None]]] = {
    "parquet": _save_parquet,
    "arrow": _save_arrow,
}
_ENDINGS: Final = {"parquet": "pqtdir", "arrow": "arwdir"}
