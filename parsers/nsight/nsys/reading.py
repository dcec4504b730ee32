"""A report while it is read: the rows so far, counts, and names that are still ids of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct, field

from traceflops.parsers.io.database_query import Batch, Coder, TextsById, Wanted
from traceflops.parsers.nsight.nsys.enums import present, processes_of, threads_of
from traceflops.parsers.nsight.nsys.process_registry import ProcessRegistry
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.parsers.shared.trace_builder import Gathered
from traceflops.table.builder import TableBuilder, compact
from traceflops.table.columns import ABSENT, LIMIT_NS, Array, IntArray, count_true
from traceflops.table.grouping import distinct

CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
PAGE_FAULTS: Final = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
_IDS: Final = {"correlation": "correlationId", "graph": "graphId", "graph_node": "graphNodeId"}
"""Columns of a trace, and the columns of a report for them, in which 0 and below mean "none"."""
Columns: TypeAlias = dict[str, Array | int]
Shown = Callable[[str], str]
"""Returns the name that a text becomes."""


class ReportReading(Struct):
    """A report, the rows read so far (`builder`), and counts of records by kind (`counts`).

    `odd` counts odd records by the code of their note. `calling` has the ids of threads that call
    CUDA, an array per batch of calls. `latest_ns` is the latest end of GPU work or a call.
    """

    tables: Tables
    registry: ProcessRegistry
    builder: Gathered = field(default_factory=Gathered)
    odd: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    calling: list[IntArray] = field(default_factory=list)
    latest_ns: int = ABSENT
    _unresolved: list[tuple[TableBuilder, Columns, str, Shown | None]] = field(default_factory=list)

    def batches(self, table: str, integers: tuple[str, ...]) -> Iterator[Batch]:
        """Yield the rows of a table in batches, and count them."""
        for batch in self.tables.batches(table, Wanted(integers=integers)):
            self.counts[table.removeprefix(CUPTI)] += batch.count
            yield batch

    def callers(self) -> IntArray:
        """Return the ids of the threads that call CUDA."""
        return distinct(np.concatenate([np.empty(0, np.int64), *self.calling]))

    def timed(self, batch: Batch) -> Batch:
        """Return the rows that have a start, with columns `start_ns` and `dur_ns`; count odd ones.

        A row without an end, or with an end before its start, gets the duration 0.
        """
        is_time = np.abs(batch["start"]) < LIMIT_NS
        is_time &= batch["start"] != ABSENT  # abs(ABSENT), the smallest int64, is itself
        self.odd["no-time"] += batch.count - count_true(is_time)
        rows = batch.only(is_time)
        start, end = rows["start"], rows["end"]
        has_end = (np.abs(end) < LIMIT_NS) & (end != ABSENT)
        is_before_start = has_end & (end < start)
        self.odd["no-duration"] += count_true(~has_end)
        self.odd["negative-duration"] += count_true(is_before_start)
        dur_ns = np.where(has_end & ~is_before_start, end, start) - start
        return rows.with_numbers({"start_ns": start, "dur_ns": dur_ns})

    def add(
        self,
        table: str,
        rows: Batch,
        unnamed: str | None = None,
        shown: Shown | None = None,
        /,
        **columns: Array | int,
    ) -> None:
        """Append timed rows to a table: `columns`, and process, thread, device, stream and times.

        If `unnamed` is given, the column `name` has ids of texts. `resolve_names` replaces them by
        codes of the names that `shown` makes of the texts, or of `unnamed` for ids without a text.
        """
        given = rows.numbers
        owner = rows["globalTid" if "globalTid" in given else "globalPid"]
        process = self.registry.processes(processes_of(owner))
        common: Columns = {"process": process}
        if "globalTid" in given:
            common["thread"] = threads_of(owner)
        if "deviceId" in given:
            ids = (rows[name] for name in ("deviceId", "contextId", "streamId"))
            common |= self.registry.place(process, *ids)
        common |= {column: present(rows[own]) for column, own in _IDS.items() if own in given}
        common |= {name: rows[name] for name in ("start_ns", "dur_ns")}
        builder = self.builder[table]
        builder.add(rows.count, **common, **columns)
        if unnamed is not None and rows.count:
            columns_added = builder.pieces[-1][1]
            self._unresolved.append((builder, columns_added, unnamed, shown))

    def resolve_names(self, others: IntArray) -> Mapping[int, str | None]:
        """Replace, in place, ids in columns `name` by codes of their names, once all rows are read.

        Returns the texts by id of `others`, ids of texts that are not names.
        """
        ids = [np.atleast_1d(columns["name"]) for _, columns, _, _ in self._unresolved]
        text_ids, texts = texts_of(self.tables, [*ids, others])
        coders: dict[tuple[str, str, Shown | None], Coder] = {}
        for (table, columns, unnamed, shown), name_ids in zip(self._unresolved, ids, strict=True):
            key = table.table, unnamed, shown
            if key not in coders:
                shown_texts = [shown(text) if shown and text else text for text in texts]
                coders[key] = TextsById(text_ids, shown_texts).coder(table.names["name"], unnamed)
            columns["name"] = compact(coders[key](name_ids))
        self._unresolved.clear()
        indices = np.flatnonzero(np.isin(text_ids, others)).tolist()
        return {int(text_ids[index]): texts[index] for index in indices}


def texts_of(tables: Tables, ids: Sequence[IntArray]) -> tuple[IntArray, list[str | None]]:
    """Return the distinct ids that have a text in the report, and the text of each.

    A text with a NUL becomes None: it is the environment of the process, which is private.
    """
    wanted = distinct(np.concatenate([np.empty(0, np.int64), *map(distinct, ids)]))
    wanted = wanted[wanted != ABSENT]
    text_ids: list[IntArray] = [np.empty(0, np.int64)]
    texts: list[str | None] = []
    columns = Wanted(integers=("id",), texts=("value",))
    for batch in tables.batches("StringIds", columns) if len(wanted) else ():
        rows = batch.only(np.isin(batch["id"], wanted))
        text_ids.append(rows["id"])
        texts += [None if text and "\0" in text else text for text in rows.texts["value"]]
    return np.concatenate(text_ids), texts
