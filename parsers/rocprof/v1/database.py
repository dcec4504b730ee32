"""Reads the database that rocprof (v1) leaves: results.db.

Tables: KERN (what results.csv holds), OPS and COPY (device work), HIP and HSA (calls), rocTX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.errors import NotATrace
from traceflops.parsers.io import Batch, Database, Wanted
from traceflops.parsers.rocprof.layouts import counters_in
from traceflops.parsers.rocprof.rocpd.trace import Origin, Tallies, trace_of, with_losses
from traceflops.parsers.rocprof.v1.block import NUMBERS, unquoted
from traceflops.parsers.rocprof.v1.tables import QUEUED, V1Tables
from traceflops.parsers.shared import (
    DISPATCH,
    UNNAMED,
    UNNAMED_KERNEL,
    Gathered,
    ProcessIds,
    told_apart,
)
from traceflops.table import ABSENT, IntArray, Names, Trace

_BEGIN: Final = "BeginNs"
_NAMES: Final = {"KERN": "KernelName"}
"""The column of names, where it is not Name."""
_UNNAMED: Final = {"KERN": UNNAMED_KERNEL, "OPS": UNNAMED_KERNEL, "COPY": UNNAMED_KERNEL}
_TELLING: Final = {
    "KERN": "KernelName",
    **dict.fromkeys(("OPS", "COPY", "HIP", "HSA", "rocTX"), _BEGIN),
}
"""A column of each table, of which a database of rocprof has one."""
_BARRIER: Final = "<barrier packet>"
_OF_HSA: Final = 1 << 40
"""HIP and HSA number their calls each from 1; ids of HSA lie above this, so that all are unique."""


def read_v1_database(database: Database) -> Sequence[Trace]:
    """Return the trace in a results.db. Raises InputError where there is none to be read."""
    if not any(column in database.columns(table) for table, column in _TELLING.items()):
        named = ", ".join(table for table in _TELLING if table in database.tables)
        raise NotATrace(
            f"{database.source.path or database.source.label} is an SQLite database with "
            f"rocprof's table names ({named}) but other columns",
            "give results.db as rocprof wrote it",
        )
    return [with_losses(database, _V1DatabaseReader(database).trace())]


class _V1DatabaseReader:
    """Reads one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gathered = Gathered()
        self._tallies = Tallies()
        self._gpus: set[int] = set()
        processes = ProcessIds(self._gathered, database.source.label)
        self._tables = V1Tables(self._gathered, self._tallies.odd, processes, self._device)

    def trace(self) -> Trace:
        """Return the trace."""
        self._add_operations("OPS")
        self._add_kernels(timed_elsewhere=self._gathered["activities"].count > 0)
        self._add_operations("COPY")
        was_queued = DISPATCH in self._gathered["calls"].names["name"]
        self._add_calls("HIP")
        self._add_calls("HSA", without=QUEUED if was_queued else None)
        for rows, labels in self._batches("rocTX"):
            self._tallies.counts["rocTX"] += rows.count
            self._tables.add_marks(rows, labels)
        self._tables.sum_instances()
        origin = Origin("rocprof-v1-db", "rocprof", {"generation": "v1"})
        return trace_of(self._database, self._gathered, self._tallies, origin)

    def _batches(self, table: str, reals: Sequence[str] = ()) -> Iterator[tuple[Batch, list[str]]]:
        """Yield the rows of a table under the names of `V1Tables`, and the names of records."""
        integers = ("Index", *(spelling for words in NUMBERS.values() for spelling in words))
        name = _NAMES.get(table, "Name")
        for batch in self._database.batches(table, Wanted(integers, tuple(reals), (name,))):
            labels = Names()
            texts = (unquoted(text or "") for text in batch.texts[name])
            numbers = {"index": batch["Index"], "bytes": np.full(batch.count, ABSENT)}
            for column, spellings in NUMBERS.items():
                # ABSENT is the smallest of all.
                numbers[column] = np.maximum.reduce([batch[word] for word in spellings])
            numbers |= {column: batch[column] for column in reals}
            numbers["name"] = labels.codes(text or _UNNAMED.get(table, UNNAMED) for text in texts)
            yield Batch(batch.count, numbers, {}), list(labels)

    def _add_operations(self, table: str) -> None:
        # Copies that HSA was asked for do not say on which device they ran.
        is_of_hip = "dev-id" in self._database.columns(table)
        for batch, labels in self._batches(table):
            rows, barriers = _without(_BARRIER, batch, labels)
            self._tallies.counts["barrier"] += barriers
            rows = rows if is_of_hip else _of_hsa(rows)
            if table == "COPY":
                rows = self._tables.add_copies(rows, labels, _kind)
                self._tallies.counts.update(_kind(labels[code]) for code in rows["name"].tolist())
            else:
                self._tallies.counts["kernel"] += self._tables.add_kernels(rows, labels).count

    def _add_kernels(self, *, timed_elsewhere: bool) -> None:
        """Add what results.csv holds; of kernels that OPS has only the counters."""
        columns = sorted(self._database.columns("KERN"))
        places = counters_in(columns)
        by_column = {columns[place]: counter for counter in places for place in places[counter]}
        for rows, labels in self._batches("KERN", tuple(by_column)):
            self._tallies.counts["KERN"] += rows.count
            self._tables.add_counters(rows, labels, {c: rows[c] for c in by_column})
            if _BEGIN in columns and not timed_elsewhere:
                self._tables.add_kernels(rows, labels)

    def _add_calls(self, table: str, without: str | None = None) -> None:
        for batch, labels in self._batches(table):
            rows, _ = _without(without, batch, labels)
            self._tallies.counts[table] += rows.count
            rows = rows if table == "HIP" else _of_hsa(rows)
            self._tables.add_calls(rows, labels, table.lower())

    def _device(self, gpu: int, process: int) -> int:
        """Return the number of a device; work that names none is of the only one, or of 0."""
        if gpu == ABSENT:
            self._tallies.odd["device-unknown"] += 1
            gpu = min(self._gpus) if len(self._gpus) == 1 else 0
        gpu = told_apart(self._gpus, gpu, -1)
        return self._gathered.device(gpu, process, gpu)


def _without(name: str | None, rows: Batch, labels: Sequence[str]) -> tuple[Batch, int]:
    """Return the rows of other names, and how many are left out."""
    place = labels.index(name) if name in labels else -1
    others = rows.only(rows["name"] != place)
    return others, rows.count - others.count


def _of_hsa(rows: Batch) -> Batch:
    """Return rows with ids of HSA where those of HIP cannot be."""
    ids = rows["index"]
    apart: IntArray = np.where((ids >= 0) & (ids < _OF_HSA), ids + _OF_HSA, ABSENT)
    return Batch(rows.count, {**rows.numbers, "index": apart}, {})


def _kind(name: str) -> str:
    return "memset" if "fill" in name.lower() else "memcpy"
