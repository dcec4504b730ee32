"""Device work in the database of rocprof (v1): the tables KERN, OPS and COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Database, Wanted, by_distinct
from traceflops.parsers.rocprof.copies import direction_of
from traceflops.parsers.rocprof.layouts import counters_in
from traceflops.parsers.rocprof.rocpd.trace import Tallies
from traceflops.parsers.rocprof.tables.work import DISPATCH, UNNAMED
from traceflops.parsers.shared import Gathered, timed
from traceflops.table import ABSENT, Array, IntArray, Names

BEGIN, END = "BeginNs", "EndNs"
_WORK: Final = Wanted(integers=(BEGIN, END, "dev-id", "queue-id", "pid", "Index"), texts=("Name",))
_KERNEL: Final = (
    *("Index", "gpu-id", "queue-id", "pid", "tid", "grd", "wgr", "lds", "vgpr", "arch_vgpr"),
    *("DispatchNs", BEGIN, END),
)
_BARRIER: Final = "<barrier packet>"
_MOST_DEVICES: Final = 4_096
"""So many devices are told apart; a database with more has invented them."""
_OF_HSA: Final = 1 << 40
"""HIP and HSA number their calls each from 1; ids of HSA lie above this, so that all are unique."""

ProcessNumbers = Callable[[IntArray], IntArray]


def unquoted(text: str | None) -> str | None:
    """Return a name without the quotes that rocprof keeps around some."""
    if text is not None and len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return text or None


def codes(names: Names, texts: Iterable[str | None], unknown: str | None) -> Array:
    """Return the codes of texts; one that is missing has that of `unknown`, or -1."""
    found = (text or unknown for text in texts)
    return np.fromiter((-1 if text is None else names[text] for text in found), dtype=np.int32)


def of_hsa(ids: IntArray) -> IntArray:
    """Return ids of HSA's calls where those of HIP cannot be."""
    return np.where((ids >= 0) & (ids < _OF_HSA), ids + _OF_HSA, ABSENT)


class Work:
    """Adds device work to what is gathered."""

    def __init__(
        self, database: Database, gathered: Gathered, tallies: Tallies, processes: ProcessNumbers
    ) -> None:
        self._database = database
        self._gathered = gathered
        self._tallies = tallies
        self._processes = processes
        self._devices: set[int] = set()

    def add(self) -> None:
        """Add kernels, from OPS where HIP was traced and else from KERN, and copies."""
        self._add_operations("OPS")
        self._add_kernels(timed_elsewhere=self._gathered["activities"].count > 0)
        self._add_operations("COPY")

    def _add_operations(self, table: str) -> None:
        activities = self._gathered["activities"]
        # Copies that HSA was asked for do not say on which device they ran.
        is_of_hip = "dev-id" in self._database.columns(table)
        for batch in self._database.batches(table, _WORK):
            names = [unquoted(name) for name in batch.texts["Name"]]
            is_work = np.array([name != _BARRIER for name in names], dtype=np.bool_)
            self._tallies.counts["barrier"] += int(np.count_nonzero(~is_work))
            rows, start, dur = timed(batch.only(is_work), self._tallies.odd, BEGIN, END)
            names = [unquoted(name) for name in rows.texts["Name"]]
            kinds = [_kind(name) if table == "COPY" else "kernel" for name in names]
            self._tallies.counts.update(kinds)
            process = self._processes(rows["pid"])
            activities.add(
                rows.count,
                process=process,
                device=self._device_numbers(rows["dev-id"], process),
                stream=rows["queue-id"],
                kind=codes(activities.names["kind"], kinds, None),
                name=codes(activities.names["name"], names, UNNAMED),
                start_ns=start,
                dur_ns=dur,
                correlation=rows["Index"] if is_of_hip else of_hsa(rows["Index"]),
                direction=codes(activities.names["direction"], map(_direction, names), None),
            )

    def _add_kernels(self, *, timed_elsewhere: bool) -> None:
        """Add what results.csv holds; of kernels that OPS has only the counters."""
        columns = sorted(self._database.columns("KERN"))
        places = counters_in(columns)
        by_column = {columns[place]: counter for counter in places for place in places[counter]}
        wanted = Wanted(_KERNEL, reals=tuple(by_column), texts=("KernelName",))
        has_times = BEGIN in columns
        for batch in self._database.batches("KERN", wanted):
            self._tallies.counts["KERN"] += batch.count
            self._add_counters(batch, by_column)
            if has_times and not timed_elsewhere:
                self._add_dispatches(batch)

    def _add_dispatches(self, batch: Batch) -> None:
        rows, start, dur = timed(batch, self._tallies.odd, BEGIN, END)
        activities = self._gathered["activities"]
        process = self._processes(rows["pid"])
        registers = np.maximum(rows["arch_vgpr"], rows["vgpr"])
        activities.add(
            rows.count,
            process=process,
            device=self._device_numbers(rows["gpu-id"], process),
            stream=rows["queue-id"],
            kind=activities.names["kind"]["kernel"],
            name=codes(activities.names["name"], map(unquoted, rows.texts["KernelName"]), UNNAMED),
            start_ns=start,
            dur_ns=dur,
            correlation=rows["Index"],
            registers_per_thread=np.where(registers > 0, registers, ABSENT),
            shared_memory_bytes=np.where(rows["lds"] >= 0, rows["lds"], ABSENT),
        )
        queued = rows["DispatchNs"]
        known = queued > 0
        some, calls = rows.only(known), self._gathered["calls"]
        if some.count:  # the moments at which they were queued, as calls of no length
            calls.add(
                some.count,
                process=process[known],
                thread=some["tid"],
                name=calls.names["name"][DISPATCH],
                start_ns=queued[known],
                dur_ns=0,
                correlation=some["Index"],
                api=calls.names["api"]["hsa"],
            )

    def _add_counters(self, rows: Batch, by_column: dict[str, str]) -> None:
        table = self._gathered["kernel_counters"]
        for column, counter in by_column.items():
            known = np.isfinite(rows[column])
            some = rows.only(known)
            process = self._processes(some["pid"])
            table.add(
                some.count,
                process=process,
                device=self._device_numbers(some["gpu-id"], process),
                name=codes(table.names["name"], map(unquoted, some.texts["KernelName"]), UNNAMED),
                dispatch=some["Index"],
                correlation=some["Index"],
                threads=_above_zero(some["grd"]),
                block_threads=_above_zero(some["wgr"]),
                counter=table.names["counter"][counter],
                value=some[column],
            )

    def _device_numbers(self, ids: IntArray, process: IntArray) -> IntArray:
        return by_distinct(ids, lambda key, row: self._device(key, int(process[row])))

    def _device(self, key: int, process: int) -> int:
        """Return the number of a device; a copy that names none is of the only one, or of 0."""
        if key == ABSENT:
            self._tallies.odd["device-unknown"] += 1
            key = min(self._devices) if len(self._devices) == 1 else 0
        if key not in self._devices and len(self._devices) >= _MOST_DEVICES:
            key = -1
        self._devices.add(key)
        return self._gathered.device(key, process, key)


def _above_zero(values: IntArray) -> IntArray:
    return np.where(values > 0, values, ABSENT)


def _kind(name: str | None) -> str:
    return "memset" if "fill" in (name or "").lower() else "memcpy"


def _direction(name: str | None) -> str | None:
    return direction_of(name or "")
