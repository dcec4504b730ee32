"""Values over time: allocations of device memory, and what the GPU measured of itself."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from traceflops.parsers.databases.lookup import by_distinct
from traceflops.parsers.databases.query import Wanted
from traceflops.parsers.nsight.nsys.enums import ALLOCATED, FREED
from traceflops.parsers.nsight.nsys.ids import processes_of
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.rows import ABSENT

_MEMORY: Final = Wanted(
    integers=(
        *("start", "globalPid", "deviceId", "address"),
        *("bytes", "memKind", "memoryOperationType"),
    )
)
_METRIC: Final = Wanted(integers=("timestamp", "typeId", "metricId"), reals=("value",))
_METRIC_NAME: Final = Wanted(integers=("typeId", "metricId"), texts=("metricName",))
_ON_HOST: Final = (0, 1)
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
    """Add samples of the GPU's own counters; they are of the whole machine, not of a process."""
    tables, counters = reading.tables, reading.gathered["counters"]
    known = tables.whole("TARGET_INFO_GPU_METRICS", _METRIC_NAME)
    if not known.count or not reading.people.keys:
        return
    labels = dict(
        zip(
            zip(known["typeId"].tolist(), known["metricId"].tolist(), strict=True),
            known.texts["metricName"],
            strict=True,
        )
    )
    names = counters.names["name"]
    owner = next(iter(reading.people.keys.values()))

    def label(kind: int, metric: int, _: int) -> int:
        return names[labels.get((kind, metric)) or f"metric {metric}"]

    for batch in tables.batches("GPU_METRICS", _METRIC):
        reading.counts["GPU_METRICS"] += batch.count
        rows = batch.only((batch["timestamp"] != ABSENT) & ~np.isnan(batch["value"]))
        room = max(0, _MOST_VALUES - counters.count)
        reading.odd["metrics-left-out"] += max(0, rows.count - room)
        rows = rows.only(np.arange(rows.count) < room)
        name = np.full(rows.count, -1, dtype=np.int64)
        for kind in np.unique(rows["typeId"]).tolist():
            mine = rows["typeId"] == kind
            name[mine] = by_distinct(rows["metricId"][mine], partial(label, kind))
        counters.add(
            rows.count,
            process=np.broadcast_to(np.int64(owner), rows.count),
            name=name,
            time_ns=rows["timestamp"],
            value=rows["value"],
        )
