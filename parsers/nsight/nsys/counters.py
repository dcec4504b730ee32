"""Values over time: allocations of device memory, and what the GPU measured of itself."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Wanted, by_distinct
from traceflops.parsers.nsight.nsys.enums import ALLOCATED, FREED, processes_of
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.table import ABSENT, IntArray

_MEMORY: Final = Wanted(
    integers=(
        *("start", "globalPid", "deviceId", "address"),
        *("bytes", "memKind", "memoryOperationType"),
    )
)
_METRIC: Final = Wanted(integers=("timestamp", "typeId", "metricId"), reals=("value",))
_METRIC_NAME: Final = Wanted(integers=("typeId", "metricId"), texts=("metricName", "typeName"))
_IN_NAME: Final = re.compile(r"\[(\d{1,4})\]$")
_ON_HOST: Final = (0, 1)
_MOST_KINDS: Final = 256
_MOST_VALUES: Final = 4_000_000


def read_memory(reading: ReportReading) -> None:
    """Add allocations and frees of processes that have work, as PyTorch's memory events."""
    counters = reading.gathered["counters"]
    names = counters.names["name"]
    for batch in reading.tables.batches("CUDA_GPU_MEMORY_USAGE_EVENTS", _MEMORY):
        reading.counts["MEMORY_USAGE"] += batch.count
        operation = batch["memoryOperationType"]
        usable = np.isin(operation, (ALLOCATED, FREED)) & (batch["bytes"] >= 0)
        usable &= batch["start"] != ABSENT
        rows = batch.only(usable)
        process = reading.people.processes(processes_of(rows["globalPid"]))
        on_host = np.isin(rows["memKind"], _ON_HOST)
        change = np.where(rows["memoryOperationType"] == ALLOCATED, rows["bytes"], -rows["bytes"])
        host, device = names["host_memory.change_bytes"], names["device_memory.change_bytes"]
        counters.add(
            rows.count,
            process=process,
            device=np.where(on_host, ABSENT, reading.people.of_devices(rows["deviceId"], process)),
            name=np.where(on_host, host, device),
            time_ns=rows["start"],
            value=change.astype(np.float64),
            address=rows["address"],
        )


def read_metrics(reading: ReportReading) -> None:
    """Add samples of the GPUs' own counters; they are of the whole machine, not of a process."""
    tables, counters = reading.tables, reading.gathered["counters"]
    known = tables.whole("TARGET_INFO_GPU_METRICS", _METRIC_NAME)
    if not known.count or not reading.people.keys:
        return
    metrics = _Metrics(reading, known)
    for batch in tables.batches("GPU_METRICS", _METRIC):
        reading.counts["GPU_METRICS"] += batch.count
        rows = batch.only((batch["timestamp"] != ABSENT) & ~np.isnan(batch["value"]))
        room = max(0, _MOST_VALUES - counters.count)
        reading.odd["metrics-left-out"] += max(0, rows.count - room)
        rows = rows.only(np.arange(rows.count) < room)
        kinds = metrics.known(rows["typeId"])
        for kind in np.unique(kinds).tolist():
            mine = rows.only(kinds == kind)
            process, device = metrics.places[kind]
            counters.add(
                mine.count,
                process=process,
                device=device,
                name=by_distinct(mine["metricId"], partial(metrics.label, kind)),
                time_ns=mine["timestamp"],
                value=mine["value"],
            )


class _Metrics:
    """What samples of GPUs are called, and of which GPU each kind of them is.

    `places` are the process and the device of each kind, ABSENT for a device without work.
    """

    def __init__(self, reading: ReportReading, known: Batch) -> None:
        kinds, metrics = known["typeId"].tolist(), known["metricId"].tolist()
        texts = known.texts["metricName"]
        self._labels = dict(zip(zip(kinds, metrics, strict=True), texts, strict=True))
        pairs = dict(zip(kinds, known.texts["typeName"], strict=True))
        self._gpus = {kind: _gpu_of(kind, pairs[kind]) for kind in list(pairs)[:_MOST_KINDS]}
        people = reading.people
        unknown = next(iter(people.keys.values())), ABSENT
        self.places = {
            kind: people.device_of_gpu(gpu) or unknown for kind, gpu in self._gpus.items()
        }
        self.places[ABSENT] = unknown
        self._names = reading.gathered["counters"].names["name"]

    def known(self, kinds: IntArray) -> IntArray:
        """Return kinds of samples, ABSENT for those that nothing is known of."""
        return np.where(np.isin(kinds, list(self._gpus)), kinds, ABSENT)

    def label(self, kind: int, metric: int, _: int) -> int:
        """Return the code of the name of a metric, with its GPU where that is no known device."""
        name = self._labels.get((kind, metric)) or f"metric {metric}"
        is_one = len(set(self._gpus.values())) <= 1
        if is_one or kind == ABSENT or self.places[kind][1] != ABSENT:
            return self._names[name]
        return self._names[f"{name} (GPU {self._gpus[kind]})"]


def _gpu_of(kind: int, text: str | None) -> int:
    """Return which GPU a kind of samples is of: as its name ends, else the lowest byte of it."""
    named = _IN_NAME.search(text or "")
    return int(named.group(1)) if named else kind & 0xFF
