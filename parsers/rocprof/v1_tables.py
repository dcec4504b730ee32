"""Adds the rows of rocprof v1 to the tables of a trace, and reads its database (results.db).

Its JSON (v1_read) gives rows of the same columns. Tables of the database: KERN (the rows of
results.csv; named A before ROCm 4.3), OPS and COPY (device work), HIP and HSA (calls), rocTX.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceflops.errors import NotATrace
from traceflops.parsers.io.database_query import Batch, Wanted, by_distinct
from traceflops.parsers.io.database_rows import Database
from traceflops.parsers.rocprof import v1_events
from traceflops.parsers.rocprof.copies import directions_named
from traceflops.parsers.rocprof.layouts import counters_in
from traceflops.parsers.rocprof.tables.counters import summed_instances
from traceflops.parsers.rocprof.trace import trace_of, with_losses
from traceflops.parsers.shared import sinks, trace_builder
from traceflops.parsers.shared.sanity_checks import timed
from traceflops.table.columns import ABSENT, Array, IntArray, Names, count_true
from traceflops.table.grouping import distinct
from traceflops.table.trace import Source, Trace

_QUEUED: Final = "hsa_dispatch"  # not a call but when a kernel of results.csv was queued
_MARK_NS: Final = 1  # the length of the range as which rocprof writes an instant
_BEGIN: Final = "BeginNs"
_KERNELS: Final = ("KERN", "A")
_TELLING: Final = {
    **dict.fromkeys(_KERNELS, "KernelName"),
    **dict.fromkeys(("OPS", "COPY", "HIP", "HSA", "rocTX"), _BEGIN),
}
"""A column of each table that tables of the same name by other tools lack."""
_UNNAMED: Final = dict.fromkeys((*_KERNELS, "OPS", "COPY"), sinks.UNNAMED_KERNEL)
_OF_HSA: Final = 1 << 40  # added to ids of HSA, since HIP and HSA both number their calls from 1


def only_process(pids: IntArray) -> int:
    """Return the only pid in `pids`, ABSENT if there are several or none.

    Rows without a process are given to it. In ROCm 3 and 4 `pid` is a track of the viewer
    (ROCm/rocprofiler, bin/tblextr.py of rocm-3.10.x and rocm-4.2.x): GPU operations name their
    process as `proc-id` (from 3.7), calls and ranges only their thread. Later releases put the
    track into `__section`, the process into `pid`.
    """
    named = distinct(pids[pids != ABSENT])
    return int(named[0]) if len(named) == 1 else ABSENT


class V1Tables(trace_builder.Gathered):
    """The rows of a file of rocprof v1, JSON or database.

    `listed` has the facts of the machine's GPUs by number. Methods take rows with the columns of
    NUMBERS, `index` (the id that links work and calls) and `name` (codes of `labels`). `gpus` are
    the numbers in use; `open_devices` are those that may be any of several listed GPUs.
    """

    def __init__(
        self, file: str, listed: Mapping[int, trace_builder.DeviceFacts], labels: Names
    ) -> None:
        super().__init__()
        self.labels = labels
        self._pids = trace_builder.ProcessIds(self, file)
        self._listed = listed
        self.gpus: set[int] = set()
        self.open_devices: set[int] = set()
        self.only_pid = ABSENT  # the process of rows that name none

    def add_kernels(self, rows: Batch) -> Batch:
        """Add kernels, and the times at which they were queued; return the kernels with a time."""
        rows = timed(rows, self.odd)
        sinks.add_work(
            self,
            kind="kernel",
            **self._of_gpu(rows),
            registers_per_thread=rows["registers"],
            shared_memory_bytes=rows["shared"],
            scratch_bytes=rows["private"],
        )
        queued = rows.only(rows["queued"] > 0)
        process = self._process(queued)
        sinks.add_queueing(self, queued["queued"], queued["thread"], queued["index"], process)
        return rows

    def add_copies(self, rows: Batch, kinds: Iterable[str]) -> Batch:
        """Add copies and fills (`kinds` has the kind of each label); return those with a time."""
        rows = timed(rows, self.odd)
        kind = self["activities"].names["kind"].codes(kinds)[rows["name"]]
        direction = directions_named(self.labels)[rows["name"]]
        common = self._of_gpu(rows)
        sinks.add_work(self, **common, kind=kind, bytes=rows["bytes"], direction=direction)
        return rows

    def add_calls(self, rows: Batch, api: str) -> Batch:
        """Add calls of an API that have a time; return all calls, also those without."""
        if sinks.DISPATCH in self["calls"].names["name"]:  # queueing is known from the kernels
            rows = self._without(_QUEUED, rows)
        calls = timed(rows, self.odd)
        common = self._of_host("calls", calls)
        sinks.add_calls(self, **common, correlation=calls["index"], api=api)
        return rows

    def add_marks(self, rows: Batch) -> None:
        """Add ranges and marks of the program."""
        rows = timed(rows, self.odd)
        sinks.add_marks(self, **self._of_host("marks", rows), instant_ns=_MARK_NS)

    def add_counters(self, rows: Batch, counters: Mapping[str, Array]) -> None:
        """Add the counters of kernels, a column each; TCC_HIT[3] is an instance of TCC_HIT."""
        table = self["kernel_counters"]
        for counter, values in counters.items():
            is_value = np.isfinite(values)
            counted = rows.only(is_value)
            table.add(
                counted.count,
                **self._on_gpus(counted),
                name=self._names("kernel_counters", counted),
                dispatch=counted["index"],
                correlation=counted["index"],
                threads=sinks.at_least(1, counted["threads"]),
                block_threads=sinks.at_least(1, counted["block_threads"]),
                counter=table.names["counter"][counter.split("[")[0]],
                value=values[is_value],
            )

    def sum_instances(self) -> None:
        """Add up the counters of instances. Call it after all counters are added."""
        table = self["kernel_counters"]
        self.tables["kernel_counters"], self.odd["instances-summed"] = summed_instances(table)

    def _on_gpus(self, rows: Batch) -> dict[str, IntArray]:
        """Return the columns process and device; a row without a GPU gets the only GPU, else 0."""
        process = self._process(rows)

        def device(gpu: int, row: int) -> int:
            """Return the device of a GPU, which `row` names first; ABSENT is an unknown GPU."""
            if gpu == ABSENT:
                self.odd["device-unknown"] += 1
                gpu = min(self.gpus) if len(self.gpus) == 1 else 0
            gpu = trace_builder.within_limit(self.gpus, gpu, -1)
            # An unlisted number means one of the listed GPUs: if they are alike, use their facts.
            possible = {self._listed[gpu]} if gpu in self._listed else set(self._listed.values())
            if len(possible) > 1:
                self.open_devices.add(gpu)
            facts = possible.pop() if len(possible) == 1 else trace_builder.NOTHING_KNOWN
            return self.device(gpu, int(process[row]), gpu, facts)

        return {"process": process, "device": by_distinct(rows["gpu"], device)}

    def _process(self, rows: Batch) -> IntArray:
        pid = rows["pid"]
        return self._pids.numbers(np.where(pid == ABSENT, self.only_pid, pid))

    def _of_host(self, table: str, rows: Batch) -> dict[str, Any]:
        process, name = self._process(rows), self._names(table, rows)
        return {"rows": rows, "process": process, "thread": rows["thread"], "name": name}

    def _of_gpu(self, rows: Batch) -> dict[str, Any]:
        common = {"rows": rows, **self._on_gpus(rows), "name": self._names("activities", rows)}
        return common | {"stream": rows["queue"], "correlation": rows["index"]}

    def _names(self, table: str, rows: Batch) -> Array:
        names, texts = self[table].names["name"], [*self.labels]
        return by_distinct(rows["name"], lambda code, _: names[texts[code] or sinks.UNNAMED])

    def _without(self, name: str, rows: Batch) -> Batch:
        return rows.only(rows["name"] != self.labels.get(name, ABSENT))

    def without_markers(self, rows: Batch) -> Batch:
        """Return the operations that ran something, neither barriers nor markers of 0 ns."""
        rows = self._without(v1_events.BARRIER_NAME, rows)
        is_marker = rows["name"] == self.labels.get(v1_events.UNKNOWN_COMMAND, ABSENT)
        return rows.only(~is_marker | (rows["start"] != rows["end"]))


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
    """The rows of one database. `_tracks`: its column `pid` is a track of the viewer."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.source.label, {}, Names())
        self._database = database
        self._tracks = not any("__section" in database.columns(table) for table in _TELLING)

    def read(self) -> None:
        """Add the rows of all tables. Kernels come from OPS or, if OPS has none, from KERN."""
        if self._tracks:  # then calls and ranges name no process: see `only_process`
            pids, wanted = [np.empty(0, np.int64)], Wanted(("pid", "proc-id"))
            for table in (*_KERNELS, "OPS", "COPY"):
                pids += [self._pid(table, rows) for rows in self._database.batches(table, wanted)]
            self.only_pid = only_process(np.concatenate(pids))
        self._add_operations("OPS")
        has_operations = self["activities"].count > 0
        for table in _KERNELS:
            columns = sorted(self._database.columns(table))
            counters = [columns[i] for indices in counters_in(columns).values() for i in indices]
            for rows in self._batches(table, counters):
                self.counts["KERN"] += rows.count
                self.add_counters(rows, {name: rows[name] for name in counters})
                if _BEGIN in columns and not has_operations:
                    self.add_kernels(rows)
        self._add_operations("COPY")
        for table in ("HIP", "HSA"):
            for rows in self._batches(table):
                rows = rows if table == "HIP" else _of_hsa(rows)
                self.counts[table] += self.add_calls(rows, table.lower()).count
        for rows in self._batches("rocTX"):
            self.counts["rocTX"] += rows.count
            self.add_marks(rows)
        self.sum_instances()

    def _batches(self, table: str, reals: Sequence[str] = ()) -> Iterator[Batch]:
        """Yield rows of a table, with `reals` as columns; each batch has `labels` of its own."""
        integers = (
            "Index",
            *(spelling for words in v1_events.NUMBERS.values() for spelling in words),
        )
        name = "KernelName" if table in _KERNELS else "Name"
        for batch in self._database.batches(table, Wanted(integers, tuple(reals), (name,))):
            self.labels = Names()
            texts = (v1_events.unquoted(text or "") for text in batch.texts[name])
            numbers = {"index": batch["Index"], "bytes": np.full(batch.count, ABSENT)}
            for column, spellings in v1_events.NUMBERS.items():
                # Of the spellings a table has one: the others are ABSENT, the smallest number.
                numbers[column] = np.maximum.reduce([batch[word] for word in spellings])
            numbers["pid"] = self._pid(table, batch)
            numbers |= {column: batch[column] for column in reals}
            numbers["name"] = self.labels.codes(
                text or _UNNAMED.get(table, sinks.UNNAMED) for text in texts
            )
            yield Batch(batch.count, numbers, {})

    def _pid(self, table: str, batch: Batch) -> Array:
        """Return the process ids of rows, ABSENT where `pid` is a track."""
        if "proc-id" in self._database.columns(table):
            return batch["proc-id"]
        has_pid = table in _KERNELS or not self._tracks
        return batch["pid"] if has_pid else np.full(batch.count, ABSENT)

    def _add_operations(self, table: str) -> None:
        """Add kernels (of OPS), or copies and fills (of COPY), without barriers and doubles."""
        is_of_hip = "dev-id" in self._database.columns(table)  # HSA's copies name no device
        for batch in self._batches(table):
            is_double = v1_events.doubles(batch.numbers)
            self.odd["empty-doubles"] += count_true(is_double)
            batch = batch.only(~is_double)
            rows = self.without_markers(batch)
            self.counts["barrier"] += batch.count - rows.count
            rows = rows if is_of_hip else _of_hsa(rows, have_calls=not self._tracks)
            if table == "COPY":
                kinds = ["memset" if "fill" in name.lower() else "memcpy" for name in self.labels]
                rows = self.add_copies(rows, kinds)
                self.counts.update(kinds[code] for code in rows["name"].tolist())
            else:
                self.counts["kernel"] += self.add_kernels(rows).count


def _of_hsa(rows: Batch, *, have_calls: bool = True) -> Batch:
    """Return rows with the ids of HSA moved above those of HIP, so that both are unique.

    Without `have_calls` ids become ABSENT: in ROCm 3 and 4 no call has the numbers of copies.
    """
    ids = rows["index"]
    is_id = have_calls & (ids >= 0) & (ids < _OF_HSA)
    moved: IntArray = np.where(is_id, ids + _OF_HSA, ABSENT)
    return rows.with_numbers({"index": moved})
