"""Which tables of a rocpd database belong together, and whether this version can read them.

A database holds the tables of one run or, where databases were merged, of several: each run has
its own, whose names end in its id, or its rows are those with its id. Ids of rows count from 1 in
every run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import Among, Batch, Condition, Database, Wanted
from traceflops.table import Note

_PREFIX: Final = "rocpd_"
_TELLING: Final = ("metadata", "string", "kernel_dispatch", "memory_copy", "region", "pmc_event")
_WORK: Final = frozenset(_TELLING[2:])
_NEWEST_MAJOR: Final = 3
_NEWEST_MINOR: Final = 0
_MOST_FACTS: Final = 1_000
_GUID: Final = "guid"
_DESCRIBING: Final = ("info_node", "info_process", "info_agent")
"""Small tables in which every run has a row."""
_MOST_RUNS: Final = 64
"""So many runs may share tables, which are read once for each."""


@dataclass(frozen=True, slots=True)
class RocpdRun:
    """The rows of one run: of tables whose names end so, and if several share them with that id."""

    database: Database
    ending: str
    guid: str | None = None

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
        return self.database.batches(self.name(table), wanted, self._mine(table, conditions))

    def whole(self, table: str, wanted: Wanted, *conditions: Condition) -> Batch:
        """Return the rows of a table at once."""
        return self.database.whole(self.name(table), wanted, self._mine(table, conditions))

    def _mine(self, table: str, conditions: Sequence[Condition]) -> Sequence[Condition]:
        """Return the conditions for rows of this run; a table without ids is of all runs."""
        if self.guid is None or not self.has(table, _GUID):
            return conditions
        return (*conditions, Among(_GUID, (self.guid,)))


def label(table: str) -> str:
    """Return the name of a table without prefix and the id of its run."""
    return re.sub(r"_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}$", "", table.removeprefix(_PREFIX))


def runs_of(database: Database) -> list[RocpdRun]:
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
            f"rocpd database without records of GPU operations or calls: {database.source.label}",
            "record with rocprofv3 --kernel-trace --output-format rocpd",
        )
    return [
        run
        for ending in sorted(endings)
        for run in _runs_in_tables(RocpdRun(database, ending), found)
    ]


def _runs_in_tables(whole: RocpdRun, found: Sequence[tuple[str, str]]) -> Iterator[RocpdRun]:
    """Yield the runs in tables with one ending, which are several where they hold several ids."""
    guids = _guids(whole, _DESCRIBING)
    if len(guids) > 1:
        guids |= _guids(whole, [base for base, ending in found if ending == whole.ending])
    if len(guids) > _MOST_RUNS:
        raise InputError(
            f"rocpd database of {len(guids):,} runs: {whole.database.source.label}",
            f"give at most {_MOST_RUNS} runs per file; rocpd can write separate files",
        )
    for guid in sorted(guids) if len(guids) > 1 else [None]:
        yield RocpdRun(whole.database, whole.ending, guid)


def _guids(run: RocpdRun, tables: Iterable[str]) -> set[str]:
    """Return the ids of runs in some tables."""
    wanted = Wanted(texts=(_GUID,))
    return {
        guid
        for table in tables
        if run.has(table, _GUID)
        for batch in run.batches(table, wanted)
        for guid in batch.texts[_GUID]
        if guid is not None
    }


def version_of(run: RocpdRun) -> tuple[str | None, tuple[Note, ...]]:
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
            f"The database has rocpd schema {version[:20] if version else ''}, which is newer "
            "than this version supports. Columns were read by name."
        )
        return version, (Note("assumed", "schema-newer", text),)
    return version, ()


def _too_new(run: RocpdRun, version: str | None) -> InputError:
    found = "".join(c if c.isprintable() else "?" for c in (version or "4 (from its columns)")[:20])
    return InputError(
        f"unsupported rocpd schema {found}: {run.database.source.label} (supported: schema 3)",
        "convert it to CSV with rocpd convert, or record with rocprofv3 of ROCm 7",
    )
