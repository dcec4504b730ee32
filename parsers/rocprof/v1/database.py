"""Reads the database that rocprof (v1) leaves: results.db.

Tables: KERN (what results.csv holds), OPS and COPY (device work), HIP and HSA (calls), rocTX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.errors import NotATrace
from traceflops.parsers.io import Database, Wanted, by_distinct
from traceflops.parsers.rocprof.rocpd.trace import Origin, Tallies, trace_of, with_losses
from traceflops.parsers.rocprof.tables.sums import summed_instances
from traceflops.parsers.rocprof.tables.work import DISPATCH
from traceflops.parsers.rocprof.v1.database_work import BEGIN, END, Work, codes, of_hsa, unquoted
from traceflops.parsers.shared import Gathered, ProcessFacts, timed
from traceflops.table import ABSENT, IntArray, Trace

_RECORD: Final = Wanted(integers=(BEGIN, END, "pid", "tid", "Index"), texts=("Name",))
_QUEUED: Final = "hsa_dispatch"
"""Not a call but the moment at which a kernel of KERN was queued."""
_UNNAMED: Final = "(unnamed)"
_TELLING: Final = {"KERN": "KernelName", "OPS": BEGIN, "COPY": BEGIN, "HIP": BEGIN, "HSA": BEGIN}
_MOST_PROCESSES: Final = 4_096


def read_v1_database(database: Database) -> Sequence[Trace]:
    """Return the trace in a results.db. Raises InputError where there is none to be read."""
    telling = {**_TELLING, "rocTX": BEGIN}
    if not any(column in database.columns(table) for table, column in telling.items()):
        named = ", ".join(table for table in telling if table in database.tables)
        raise NotATrace(
            f"{database.source.path or database.source.label} is an SQLite database with "
            f"rocprof's table names ({named}) but other columns",
            "give results.db as rocprof wrote it",
        )
    return [with_losses(database, _Reader(database).trace())]


class _Reader:
    """Reads one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gathered = Gathered()
        self._tallies = Tallies()
        self._pids: set[int] = set()

    def trace(self) -> Trace:
        """Return the trace."""
        gathered = self._gathered
        Work(self._database, gathered, self._tallies, self._processes).add()
        was_queued = DISPATCH in gathered["calls"].names["name"]
        self._add_calls("HIP")
        self._add_calls("HSA", without=_QUEUED if was_queued else None)
        self._add_marks()
        gathered.tables["kernel_counters"], merged = summed_instances(gathered["kernel_counters"])
        self._tallies.odd["instances"] += merged
        origin = Origin("rocprof-v1-db", "rocprof", {"generation": "v1"})
        return trace_of(self._database, gathered, self._tallies, origin)

    def _processes(self, pids: IntArray) -> IntArray:
        return by_distinct(pids, lambda pid, _: self._process(pid))

    def _process(self, pid: int) -> int:
        pid = pid if pid in self._pids or len(self._pids) < _MOST_PROCESSES else ABSENT
        self._pids.add(pid)
        facts = ProcessFacts(self._database.source.label, pid=None if pid == ABSENT else pid)
        return self._gathered.process(pid, facts)

    def _add_calls(self, table: str, without: str | None = None) -> None:
        calls = self._gathered["calls"]
        for batch in self._database.batches(table, _RECORD):
            wanted = [name is None or name != without for name in batch.texts["Name"]]
            batch = batch.only(np.array(wanted, dtype=np.bool_))
            self._tallies.counts[table] += batch.count
            rows, start, dur = timed(batch, self._tallies.odd, BEGIN, END)
            calls.add(
                rows.count,
                process=self._processes(rows["pid"]),
                thread=rows["tid"],
                name=codes(calls.names["name"], map(unquoted, rows.texts["Name"]), _UNNAMED),
                start_ns=start,
                dur_ns=dur,
                correlation=rows["Index"] if table == "HIP" else of_hsa(rows["Index"]),
                api=calls.names["api"][table.lower()],
            )

    def _add_marks(self) -> None:
        marks = self._gathered["marks"]
        for batch in self._database.batches("rocTX", _RECORD):
            self._tallies.counts["rocTX"] += batch.count
            rows, start, dur = timed(batch, self._tallies.odd, BEGIN, END)
            kinds = marks.names["kind"]
            is_range = dur > 1  # a mark is written as 1 ns long
            marks.add(
                rows.count,
                process=self._processes(rows["pid"]),
                thread=rows["tid"],
                kind=np.where(is_range, kinds["annotation"], kinds["instant"]),
                name=codes(marks.names["name"], map(unquoted, rows.texts["Name"]), _UNNAMED),
                start_ns=start,
                dur_ns=np.where(is_range, dur, 0),
            )
