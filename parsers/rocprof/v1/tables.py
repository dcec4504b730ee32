"""What rocprof (v1) recorded as rows of a trace, be it from its JSON or from its database.

The columns of rows are called as in `block.NUMBERS`; `index` is the id that links work and calls,
`name` has places among `labels`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, by_distinct
from traceflops.parsers.rocprof.copies import ways_named
from traceflops.parsers.rocprof.tables.counters import summed_instances
from traceflops.parsers.shared import (
    Calls,
    Copies,
    Gathered,
    Kernels,
    Marks,
    ProcessIds,
    add_queueing,
    at_least,
    timed,
)
from traceflops.table import Array, IntArray

QUEUED: Final = "hsa_dispatch"
"""Not a call but the moment at which a kernel of results.csv was queued."""
_MARK_NS: Final = 1
"""rocprof writes an instant as a range of so much."""

Labels = Sequence[str]


class V1Tables:
    """Adds rows to what is gathered; `device` numbers the GPU of a process."""

    def __init__(
        self,
        gathered: Gathered,
        odd: Counter[str],
        processes: ProcessIds,
        device: Callable[[int, int], int],
    ) -> None:
        self._gathered = gathered
        self._odd = odd
        self._processes = processes
        self._device = device

    def add_kernels(self, rows: Batch, labels: Labels) -> Batch:
        """Add kernels and the moments at which they were queued; return those with a time."""
        rows = timed(rows, self._odd)
        Kernels(
            rows=rows,
            **self._place(rows),
            stream=rows["queue"],
            name=self._names("activities", rows, labels),
            correlation=rows["index"],
            registers_per_thread=rows["registers"],
            shared_memory_bytes=rows["shared"],
        ).add_to(self._gathered)
        some = rows.only(rows["queued"] > 0)
        process = self._processes.numbers(some["pid"])
        add_queueing(self._gathered, some["queued"], some["thread"], some["index"], process)
        return rows

    def add_copies(self, rows: Batch, labels: Labels, kind: Callable[[str], str]) -> Batch:
        """Add copies and fills, whose names tell the kind; return those with a time."""
        rows = timed(rows, self._odd)
        kinds = self._gathered["activities"].names["kind"].codes(map(kind, labels))
        Copies(
            rows=rows,
            **self._place(rows),
            stream=rows["queue"],
            kind=kinds[rows["name"]],
            name=self._names("activities", rows, labels),
            correlation=rows["index"],
            bytes=rows["bytes"],
            way=ways_named(labels)[rows["name"]],
        ).add_to(self._gathered)
        return rows

    def add_calls(self, rows: Batch, labels: Labels, api: str) -> None:
        """Add calls of an API."""
        rows = timed(rows, self._odd)
        Calls(
            rows=rows,
            process=self._processes.numbers(rows["pid"]),
            thread=rows["thread"],
            name=self._names("calls", rows, labels),
            correlation=rows["index"],
            api=api,
        ).add_to(self._gathered)

    def add_marks(self, rows: Batch, labels: Labels) -> None:
        """Add ranges and marks of the program."""
        rows = timed(rows, self._odd)
        Marks(
            rows=rows,
            process=self._processes.numbers(rows["pid"]),
            thread=rows["thread"],
            name=self._names("marks", rows, labels),
            instant_ns=_MARK_NS,
        ).add_to(self._gathered)

    def add_counters(self, rows: Batch, labels: Labels, counters: Mapping[str, Array]) -> None:
        """Add counters; of one whose instances have columns of their own, under its name."""
        table = self._gathered["kernel_counters"]
        for counter, values in counters.items():
            known = np.isfinite(values)
            some = rows.only(known)
            table.add(
                some.count,
                **self._place(some),
                name=self._names("kernel_counters", some, labels),
                dispatch=some["index"],
                correlation=some["index"],
                threads=at_least(1, some["threads"]),
                block_threads=at_least(1, some["block_threads"]),
                counter=table.names["counter"][counter.split("[")[0]],
                value=values[known],
            )

    def sum_instances(self) -> None:
        """Add up the counters of instances: all are known."""
        table = self._gathered["kernel_counters"]
        self._gathered.tables["kernel_counters"], merged = summed_instances(table)
        self._odd["instances"] += merged

    def _place(self, rows: Batch) -> dict[str, IntArray]:
        process = self._processes.numbers(rows["pid"])
        device = by_distinct(rows["gpu"], lambda gpu, row: self._device(gpu, int(process[row])))
        return {"process": process, "device": device}

    def _names(self, table: str, rows: Batch, labels: Labels) -> Array:
        return self._gathered[table].names["name"].codes(labels)[rows["name"]]
