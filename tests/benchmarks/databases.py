"""The table of databases: what `summary` costs on exports of Nsight Systems and rocpd."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks import programs
from tests.benchmarks.cost import MEMORY, best
from tests.benchmarks.table import Table, legend
from tests.conftest import SAMPLES

_HEADS: Final = ("database", "kernels", "MB", "wall s", "CPU s", "peak MB")
_TIMES: Final = ("start", "end")


@dataclass(frozen=True, slots=True)
class Database:
    """A sample that is repeated: its file, the table of kernels, and columns of identifiers."""

    name: str
    file: str
    kernels: str
    identifiers: tuple[str, ...]


DATABASES: Final = (
    Database(
        "nsys SQLite", "nsight_h100/run.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL", ("correlationId",)
    ),
    Database(
        "rocpd",
        "rocpd/sim-node-0/4100_results.db",
        "rocpd_kernel_dispatch",
        ("id", "event_id", "correlation_id", "dispatch_id"),
    ),
)
KERNELS: Final = 2_000_000


def print_databases(folder: Path, scale: float, runs: int) -> None:
    """Measure and print the table; `scale` is that of the number of kernels."""
    table = Table(*_HEADS)
    for database in DATABASES:
        path = folder / Path(database.file).name
        kernels = write_repeated(database, path, round(KERNELS * scale))
        cost = best(programs.summary(path, 1), runs)
        table.print(
            database.name,
            f"{kernels:,}",
            f"{path.stat().st_size / 1e6:.0f}",
            f"{cost.wall_s:.2f}",
            f"{cost.cpu_s:.2f}",
            f"{cost.peak_mb:.0f}",
        )
    legend(
        [
            "Bundled samples, repeated end to end.",
            f"peak MB: {MEMORY}, in the first run.",
            f"Times are the best of {runs} runs.",
        ]
    )


def write_repeated(database: Database, path: Path, kernels: int) -> int:
    """Write a sample, repeated until it has at least so many kernels; return how many it has."""
    shutil.copyfile(SAMPLES / database.file, path)
    with sqlite3.connect(path) as connection:
        tables = {
            name: [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')]
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
        timed = [
            name for name, columns in tables.items() if "start" in columns and "end" in columns
        ]
        timed += [name for name in tables if name.startswith("rocpd_event")]
        timed = [
            name
            for name, columns in tables.items()
            if name.startswith("rocpd_event") or ({*_TIMES} <= {*columns} and "info" not in name)
        ]
        of_kernels = next(name for name in tables if name.startswith(database.kernels))
        (count,) = connection.execute(f'SELECT count(*) FROM "{of_kernels}"').fetchone()
        # Identifiers move on by the largest one, times by the length of the sample.
        bounds: dict[str, list[int]] = {}
        for name in timed:
            for column in {*_TIMES, *database.identifiers} & {*tables[name]}:
                query = f'SELECT min("{column}"), max("{column}") FROM "{name}"'
                (found,) = connection.execute(query)
                bounds.setdefault(column, []).extend(value for value in found if value is not None)
        shifts = {column: max(values) + 1 for column, values in bounds.items()}
        shifts |= dict.fromkeys(_TIMES, shifts["end"] - min(bounds["start"]))
        times = -(-kernels // count)
        for name in timed:
            moved = ", ".join(
                f'"{column}" + number * {shifts[column]}' if column in shifts else f'"{column}"'
                for column in tables[name]
            )
            connection.execute(
                f"WITH RECURSIVE repeats(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM "
                f'repeats WHERE number < {times - 1}) INSERT INTO "{name}" SELECT {moved} '
                f'FROM repeats, (SELECT * FROM "{name}")'
            )
    return int(times * count)
