"""What rocprof (v1) recorded as rows of a trace, be it from its JSON or from its database.

The columns of rows are called as in `events.NUMBERS`; `index` is the id that links work and calls,
`name` has places among `labels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, by_distinct
from traceflops.parsers.rocprof.copies import ways_named
from traceflops.parsers.rocprof.tables.counters import summed_instances
from traceflops.parsers.rocprof.trace import Recorded
from traceflops.parsers.shared import (
    DISPATCH,
    NOTHING_KNOWN,
    Calls,
    Copies,
    DeviceFacts,
    Kernels,
    Marks,
    ProcessIds,
    add_queueing,
    at_least,
    timed,
    told_apart,
)
from traceflops.table import ABSENT, Array, IntArray

_QUEUED: Final = "hsa_dispatch"
"""Not a call but the moment at which a kernel of results.csv was queued."""
_MARK_NS: Final = 1
"""rocprof writes an instant as a range of so much."""

Labels = Sequence[str]


class V1Tables(Recorded):
    """What is recorded of a file, on a machine with `listed` GPUs by their numbers.

    `gpus` are the numbers that are used; which of those listed `open_devices` are is open.
    """

    def __init__(self, file: str, listed: Mapping[int, DeviceFacts]) -> None:
        super().__init__()
        self._pids = ProcessIds(self, file)
        self._listed = listed
        self.gpus: set[int] = set()
        self.open_devices: set[int] = set()

    def add_kernels(self, rows: Batch, labels: Labels) -> Batch:
        """Add kernels and the moments at which they were queued; return those with a time."""
        rows = timed(rows, self.odd)
        Kernels(
            rows=rows,
            **self._place(rows),
            stream=rows["queue"],
            name=self._names("activities", rows, labels),
            correlation=rows["index"],
            registers_per_thread=rows["registers"],
            shared_memory_bytes=rows["shared"],
        ).add_to(self)
        some = rows.only(rows["queued"] > 0)
        process = self._pids.numbers(some["pid"])
        add_queueing(self, some["queued"], some["thread"], some["index"], process)
        return rows

    def add_copies(self, rows: Batch, labels: Labels, kind: Callable[[str], str]) -> Batch:
        """Add copies and fills, whose names tell the kind; return those with a time."""
        rows = timed(rows, self.odd)
        kinds = self["activities"].names["kind"].codes(map(kind, labels))
        Copies(
            rows=rows,
            **self._place(rows),
            stream=rows["queue"],
            kind=kinds[rows["name"]],
            name=self._names("activities", rows, labels),
            correlation=rows["index"],
            bytes=rows["bytes"],
            way=ways_named(labels)[rows["name"]],
        ).add_to(self)
        return rows

    def add_calls(self, rows: Batch, labels: Labels, api: str) -> Batch:
        """Add calls of an API, except for queueing that is known already; return what is used."""
        if DISPATCH in self["calls"].names["name"]:
            rows = without(_QUEUED, rows, labels)
        timed_rows = timed(rows, self.odd)
        Calls(
            rows=timed_rows,
            process=self._pids.numbers(timed_rows["pid"]),
            thread=timed_rows["thread"],
            name=self._names("calls", timed_rows, labels),
            correlation=timed_rows["index"],
            api=api,
        ).add_to(self)
        return rows

    def add_marks(self, rows: Batch, labels: Labels) -> None:
        """Add ranges and marks of the program."""
        rows = timed(rows, self.odd)
        Marks(
            rows=rows,
            process=self._pids.numbers(rows["pid"]),
            thread=rows["thread"],
            name=self._names("marks", rows, labels),
            instant_ns=_MARK_NS,
        ).add_to(self)

    def add_counters(self, rows: Batch, labels: Labels, counters: Mapping[str, Array]) -> None:
        """Add counters; of one whose instances have columns of their own, under its name."""
        table = self["kernel_counters"]
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
        table = self["kernel_counters"]
        self.tables["kernel_counters"], self.odd["instances"] = summed_instances(table)

    def _place(self, rows: Batch) -> dict[str, IntArray]:
        process = self._pids.numbers(rows["pid"])
        device = by_distinct(rows["gpu"], lambda gpu, row: self._gpu(gpu, int(process[row])))
        return {"process": process, "device": device}

    def _gpu(self, gpu: int, process: int) -> int:
        """Return the number of a device; work that names none is of the only one, or of 0."""
        if gpu == ABSENT:
            self.odd["device-unknown"] += 1
            gpu = min(self.gpus) if len(self.gpus) == 1 else 0
        gpu = told_apart(self.gpus, gpu, -1)
        # A number that is no GPU's is one of them, and they may be all alike.
        alike = {self._listed[gpu]} if gpu in self._listed else set(self._listed.values())
        if len(alike) > 1:
            self.open_devices.add(gpu)
        return self.device(gpu, process, gpu, alike.pop() if len(alike) == 1 else NOTHING_KNOWN)

    def _names(self, table: str, rows: Batch, labels: Labels) -> Array:
        return self[table].names["name"].codes(labels)[rows["name"]]


def without(name: str, rows: Batch, labels: Labels) -> Batch:
    """Return the rows of other names."""
    return rows.only(rows["name"] != labels.index(name)) if name in labels else rows
