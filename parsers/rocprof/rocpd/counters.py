"""Measurements in a rocpd database: hardware counters of kernels, and values over time."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from traceflops.parsers.io import Batch, Lookup, TextsById, Wanted
from traceflops.parsers.rocprof.rocpd.reading import RunReading
from traceflops.parsers.rocprof.rocpd.work import Dispatches, KernelNames
from traceflops.parsers.rocprof.tables.counters import summed_instances
from traceflops.parsers.shared import UNNAMED_KERNEL
from traceflops.table import ABSENT, IntArray

_UNNAMED: Final = "(unnamed counter)"
_EVENT: Final = Wanted(integers=("event_id", "pmc_id", "sample_id"), reals=("value",))
_TABLE: Final = "kernel_counters"


_TRACED: Final = ("region", "sample", "memory_copy", "graph_launch", "memory_allocate")


def only_counted(reading: RunReading, dispatches: Dispatches | None) -> bool:
    """Return whether a run traced nothing: rocprofv3 then writes what it counted as dispatches.

    Their times are those of kernels that ran one by one, while they were counted.
    """
    if dispatches is None or not dispatches.count or any(map(reading.run.has_rows, _TRACED)):
        return False
    counted = np.setdiff1d(reading.gathered[_TABLE].column("dispatch"), [ABSENT])
    return bool(np.isin(dispatches.column("dispatch"), counted).all())


class Samples(NamedTuple):
    """Which events are samples: when, and of which process."""

    event: IntArray
    time_ns: IntArray
    process: IntArray


class Measurements:
    """The measurements of a run: those of dispatches are added to its counters of kernels.

    There are several of a dispatch and a counter where the counter has instances. All others stay
    as they are until it is known when they were taken.
    """

    def __init__(self, reading: RunReading, kernels: KernelNames, dispatches: Dispatches) -> None:
        self._reading = reading
        self._dispatches = {name: dispatches.column(name) for name in dispatches.pieces}
        self._dispatch = Lookup(dispatches.column("event"), np.arange(dispatches.count))
        rows = reading.run.whole("info_pmc", Wanted(integers=("id", "agent_id"), texts=("name",)))
        self._counters = TextsById(rows["id"], rows.texts["name"])
        self._agent = Lookup(rows["id"], rows["agent_id"])
        self._others: list[Batch] = []
        table = reading.gathered[_TABLE]
        self._kernel = kernels.names.coder(table.names["name"], UNNAMED_KERNEL)
        self._counter = self._counters.coder(table.names["counter"], _UNNAMED)
        self._read()
        reading.gathered.tables[_TABLE], reading.odd["instances"] = summed_instances(table)

    @property
    def other_events(self) -> IntArray:
        """Return the events with a measurement that are not dispatches."""
        events = [batch["event_id"] for batch in self._others]
        return np.unique(np.concatenate([np.empty(0, np.int64), *events]))

    def add_values_over_time(self, samples: list[Samples]) -> None:
        """Add the measurements that were taken at some time, not of a dispatch."""
        if not samples:
            return
        event, time_ns, process = (
            np.concatenate(columns) for columns in zip(*samples, strict=True)
        )
        time_of, process_of = Lookup(event, time_ns), Lookup(event, process)
        table, facts = self._reading.gathered["counters"], self._reading.facts
        name = self._counters.coder(table.names["name"], _UNNAMED)
        for batch in self._others:
            rows = batch.only(time_of(batch["event_id"]) != ABSENT)
            agent, processes = self._agent(rows["pmc_id"]), process_of(rows["event_id"])
            device = facts.devices(agent, processes)
            table.add(
                rows.count,
                process=processes,
                device=np.where(facts.are_gpus(agent), device, ABSENT),
                name=name(rows["pmc_id"]),
                time_ns=time_of(rows["event_id"]),
                value=rows["value"],
            )

    def _read(self) -> None:
        odd = self._reading.odd
        for batch in self._reading.run.batches("pmc_event", _EVENT):
            self._reading.counts["pmc_event"] += batch.count
            streamed = batch["sample_id"] != ABSENT  # sampled while kernels ran, of no single one
            unknown = np.isnan(batch["value"])
            odd["streamed-counter"] += int(np.count_nonzero(streamed))
            odd["no-value"] += int(np.count_nonzero(unknown & ~streamed))
            rows = batch.only(~streamed & ~unknown)
            of_kernel = self._dispatch(rows["event_id"]) != ABSENT
            self._add(rows.only(of_kernel))
            if not of_kernel.all():
                self._others.append(rows.only(~of_kernel))

    def _add(self, rows: Batch) -> None:
        """Add counters of dispatches."""
        if not rows.count:
            return
        row = self._dispatch(rows["event_id"])
        column = {name: values[row] for name, values in self._dispatches.items()}
        self._reading.gathered[_TABLE].add(
            rows.count,
            process=column["process"],
            device=column["device"],
            name=self._kernel(column["kernel"]),
            dispatch=column["dispatch"],
            correlation=column["correlation"],
            threads=column["threads"],
            block_threads=column["block_threads"],
            counter=self._counter(rows["pmc_id"]),
            value=rows["value"],
        )
