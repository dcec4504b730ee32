"""Which tables of a rocpd database belong together, and whether this version can read them.

A database holds the tables of one run or, where databases were merged, of several: each run has
its own, whose names end in its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.databases.query import Batch, Condition, Wanted
from traceflops.parsers.databases.rows import Database
from traceflops.trace import Note

_PREFIX: Final = "rocpd_"
_TELLING: Final = ("metadata", "string", "kernel_dispatch", "memory_copy", "region", "pmc_event")
_WORK: Final = frozenset(_TELLING[2:])
_NEWEST_MAJOR: Final = 3
_NEWEST_MINOR: Final = 0
_MOST_FACTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Run:
    """The tables of one run: `tables()` without their endings are those of all runs."""

    database: Database
    ending: str

    def name(self, table: str) -> str:
        """Return the name that a table has in the database."""
        return f"{_PREFIX}{table}{self.ending}"

    def has(self, table: str, column: str) -> bool:
        """Return whether there is such a table and it has such a column."""
        return column in self.database.columns(self.name(table))

    def has_rows(self, table: str) -> bool:
        """Return whether there is such a table and it has rows."""
        return self.database.has_rows(self.name(table))

    def batches(self, table: str, wanted: Wanted, *conditions: Condition) -> Iterator[Batch]:
        """Give the rows of a table, some at a time."""
        return self.database.batches(self.name(table), wanted, conditions)

    def whole(self, table: str, wanted: Wanted, *conditions: Condition) -> Batch:
        """Return the rows of a table at once."""
        return self.database.whole(self.name(table), wanted, conditions)


def label(table: str) -> str:
    """Return the name of a table without prefix and the id of its run."""
    return re.sub(r"_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}$", "", table.removeprefix(_PREFIX))


def runs_of(database: Database) -> list[Run]:
    """Return the runs in a database. Raises InputError where there is none that can be read."""
    found = [
        (base, table[len(_PREFIX + base) :])
        for table in database.tables
        for base in _TELLING
        if table.startswith(_PREFIX + base)
    ]
    endings = {ending for base, ending in found if base in _WORK and ending[:1] in ("", "_")}
    if not endings:
        raise NotATrace(
            f"a rocpd database without any record of work: {database.source.name}",
            "record with rocprofv3 --kernel-trace --output-format rocpd",
        )
    return [Run(database, ending) for ending in sorted(endings)]


def version_of(run: Run) -> tuple[str | None, tuple[Note, ...]]:
    """Return the version of the schema as it is written, and what to say of it.

    Raises InputError where it is newer than what this version understands.
    """
    rows = run.whole("metadata", Wanted(texts=("tag", "value")))
    words = {
        tag: value
        for tag, value in zip(rows.texts["tag"][:_MOST_FACTS], rows.texts["value"], strict=False)
        if tag is not None and value is not None
    }
    version = words.get("schema_version")
    numbers = [int(part[:6]) for part in re.findall(r"\d+", version or "")]
    by_track = run.has("kernel_dispatch", "track_id") and not run.has("kernel_dispatch", "agent_id")
    if (numbers and numbers[0] > _NEWEST_MAJOR) or by_track or "compression" in words:
        raise _too_new(run, version)
    if len(numbers) > 1 and numbers[1] > _NEWEST_MINOR:
        text = (
            f"The database has the schema {version[:20] if version else ''}, which is newer than "
            "this version knows; its columns were read by their names."
        )
        return version, (Note("assumed", "schema-newer", text),)
    return version, ()


def _too_new(run: Run, version: str | None) -> InputError:
    found = "".join(c if c.isprintable() else "?" for c in (version or "4 (by its columns)")[:20])
    return InputError(
        f"rocpd schema {found}: {run.database.source.name} (understood is schema 3)",
        "export it with rocpd convert to CSV, or record with a ROCm 7 rocprofv3",
    )
