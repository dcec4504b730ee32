"""Reads the database that rocprof (v1) leaves: results.db.

Tables: KERN (what results.csv holds; A before ROCm 4.3), OPS and COPY (device work), HIP and HSA
(calls), rocTX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.errors import NotATrace
from traceflops.parsers.io.database_query import Batch, Wanted
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.rocprof.layouts import counters_in
from traceflops.parsers.rocprof.trace import trace_of, with_losses
from traceflops.parsers.rocprof.v1_events import NUMBERS, unquoted
from traceflops.parsers.rocprof.v1_tables import Owners, V1Tables, without_markers
from traceflops.parsers.shared.sinks import UNNAMED, UNNAMED_KERNEL
from traceflops.table.columns import ABSENT, Array, BoolArray, IntArray, Names
from traceflops.table.grouping import distinct
from traceflops.table.trace import Source, Trace

_BEGIN: Final = "BeginNs"
_KERNELS: Final = ("KERN", "A")
_TELLING: Final = {
    **dict.fromkeys(_KERNELS, "KernelName"),
    **dict.fromkeys(("OPS", "COPY", "HIP", "HSA", "rocTX"), _BEGIN),
}
"""A column of each table that other tools' tables of the name lack."""
_UNNAMED: Final = dict.fromkeys((*_KERNELS, "OPS", "COPY"), UNNAMED_KERNEL)
_OF_HSA: Final = 1 << 40
"""HIP and HSA both number their calls from 1; ids of HSA lie above this: all are unique."""


def read_v1_database(database: Database) -> Sequence[Trace]:
    """Return the trace in a results.db. Raises InputError if none can be read."""
    file = database.source
    if not any(column in database.columns(table) for table, column in _TELLING.items()):
        named = ", ".join(table for table in _TELLING if table in database.tables)
        raise NotATrace(
            f"{file.path or file.label} is an SQLite database with "
            f"rocprof's table names ({named}) but other columns",
            "give results.db as rocprof wrote it",
        )
    reading = _V1Reading(database)
    reading.read()
    about = Source("rocprof-v1-db", (), "rocprof", facts={"generation": "v1"})
    return [with_losses(database, trace_of(reading, file, about, "database"))]


class _V1Reading(V1Tables):
    """The rows of one database. `_tracks` says that `pid` is a track of the viewer."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.source.label, {})
        self._database = database
        self._tracks = not any("__section" in database.columns(table) for table in _TELLING)

    def read(self) -> None:
        """Add what the tables hold."""
        if self._tracks:
            self.owners = self._owners()
        self._add_operations("OPS")
        timed_elsewhere = self["activities"].count > 0
        for table in _KERNELS:
            self._add_kernels(table, timed_elsewhere)
        self._add_operations("COPY")
        for table in ("HIP", "HSA"):
            for rows, labels in self._batches(table):
                rows = rows if table == "HIP" else _of_hsa(rows)
                self.counts[table] += self.add_calls(rows, labels, table.lower()).count
        for rows, labels in self._batches("rocTX"):
            self.counts["rocTX"] += rows.count
            self.add_marks(rows, labels)
        self.sum_instances()

    def _batches(self, table: str, reals: Sequence[str] = ()) -> Iterator[tuple[Batch, list[str]]]:
        """Yield the rows of a table with the columns that `V1Tables` takes, and their labels."""
        integers = ("Index", *(spelling for words in NUMBERS.values() for spelling in words))
        name = "KernelName" if table in _KERNELS else "Name"
        for batch in self._database.batches(table, Wanted(integers, tuple(reals), (name,))):
            labels = Names()
            texts = (unquoted(text or "") for text in batch.texts[name])
            numbers = {"index": batch["Index"], "bytes": np.full(batch.count, ABSENT)}
            for column, spellings in NUMBERS.items():
                # ABSENT is the smallest of all.
                numbers[column] = np.maximum.reduce([batch[word] for word in spellings])
            numbers["pid"] = self._pid(table, batch)
            numbers |= {column: batch[column] for column in reals}
            numbers["name"] = labels.codes(text or _UNNAMED.get(table, UNNAMED) for text in texts)
            yield Batch(batch.count, numbers, {}), list(labels)

    def _pid(self, table: str, batch: Batch) -> Array:
        """Return the process ids of rows, ABSENT where `pid` is a track."""
        if "proc-id" in self._database.columns(table):
            return batch["proc-id"]
        has_pid = table in _KERNELS or not self._tracks
        return batch["pid"] if has_pid else np.full(batch.count, ABSENT)

    def _owners(self) -> Owners:
        """Return the processes of the file, and to which its threads belong."""
        work = self._columns(("OPS", "COPY"))
        kernels = self._columns(_KERNELS)
        pids = np.concatenate([work["pid"], kernels["pid"]])
        if len(distinct(pids[pids != ABSENT])) < 2:
            return Owners(pids)
        # A call launched the first operation with its number that begins after it: numbers are
        # unique within a process only.
        calls, order = self._columns(("HIP",)), np.lexsort((work["start"], work["index"]))
        index, start = work["index"][order], work["start"][order]
        _, number = np.unique(np.concatenate([index, calls["index"]]), return_inverse=True)
        times, rank = np.unique(np.concatenate([start, calls["start"]]), return_inverse=True)
        key = number * len(times) + rank
        after = np.searchsorted(key[: len(index)], key[len(index) :])
        launched: BoolArray = after < len(index)
        launched[launched] = index[after[launched]] == calls["index"][launched]
        launches = calls["thread"][launched], work["pid"][order][after[launched]]
        return Owners(pids, (launches, (kernels["thread"], kernels["pid"])))

    def _columns(self, tables: Sequence[str]) -> dict[str, Array]:
        """Return process, thread, number and start of the rows of some tables."""
        words = {"pid": "pid", "thread": "tid", "index": "Index", "start": _BEGIN}
        wanted = Wanted((*words.values(), "proc-id"))
        parts = [(t, batch) for t in tables for batch in self._database.batches(t, wanted)]
        columns = {name: [batch[word] for _, batch in parts] for name, word in words.items()}
        columns["pid"] = [self._pid(table, batch) for table, batch in parts]
        none = np.empty(0, dtype=np.int64)
        return {name: np.concatenate([none, *pieces]) for name, pieces in columns.items()}

    def _add_operations(self, table: str) -> None:
        """Add kernels, or copies and fills; copies by HSA do not name their device."""
        is_of_hip = "dev-id" in self._database.columns(table)
        for batch, labels in self._batches(table):
            rows = without_markers(batch, labels)
            self.counts["barrier"] += batch.count - rows.count
            rows = rows if is_of_hip else _of_hsa(rows, have_calls=not self._tracks)
            if table == "COPY":
                kinds = ["memset" if "fill" in name.lower() else "memcpy" for name in labels]
                rows = self.add_copies(rows, labels, kinds)
                self.counts.update(kinds[code] for code in rows["name"].tolist())
            else:
                self.counts["kernel"] += self.add_kernels(rows, labels).count

    def _add_kernels(self, table: str, timed_elsewhere: bool) -> None:
        """Add what results.csv holds; of kernels that OPS has only the counters."""
        columns = sorted(self._database.columns(table))
        counters = [columns[i] for indices in counters_in(columns).values() for i in indices]
        for rows, labels in self._batches(table, counters):
            self.counts["KERN"] += rows.count
            self.add_counters(rows, labels, {name: rows[name] for name in counters})
            if _BEGIN in columns and not timed_elsewhere:
                self.add_kernels(rows, labels)


def _of_hsa(rows: Batch, *, have_calls: bool = True) -> Batch:
    """Return rows with the ids of HSA moved above those of HIP.

    In ROCm 3 and 4 copies are numbered on their own: no call has these numbers.
    """
    ids = rows["index"]
    apart: IntArray = np.where(have_calls & (ids >= 0) & (ids < _OF_HSA), ids + _OF_HSA, ABSENT)
    return rows.with_numbers({"index": apart})
