"""What the host did in a report: calls of CUDA, waits, overheads, waits in the system."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch, Wanted, by_distinct
from traceflops.parsers.nsight.nsys.enums import (
    DRIVER,
    OF_THE_PROFILER,
    WAITING,
    WAITS,
    present,
    processes_of,
    threads_of,
)
from traceflops.parsers.nsight.nsys.reading import ReportReading
from traceflops.parsers.nsight.nsys.strings import Shown, texts_of
from traceflops.table import ABSENT, IntArray, distinct

UNNAMED: Final = "(unnamed)"

_CALL: Final = Wanted(
    integers=("start", "end", "eventClass", "globalTid", "correlationId", "nameId")
)
_PLACE: Final = ("deviceId", "contextId", "streamId", "correlationId", "globalPid")
_WAIT: Final = Wanted(integers=("start", "end", *_PLACE, "syncType"))
_EVENT: Final = Wanted(integers=("timestamp", *_PLACE))
_OVERHEAD: Final = Wanted(integers=("start", "end", "globalTid", "nameId", "overheadType"))
_OS_CALL: Final = Wanted(integers=("start", "end", "globalTid", "nameId"))
OF_PROFILER: Final = "profiler: "
"""How the name of an overhead begins that a program without a profiler would not have."""
_SHORTEST_WAIT_NS: Final = 100_000
"""Waits for the operating system that are shorter explain no gap, and there are very many."""
_API_VERSION: Final = re.compile(r"_v\d{4,6}$")


def call_name(text: str) -> str:
    """Return the name of a call without the version of its API: `cudaLaunchKernel_v7000`.

    The driver's own versions stay, since they are other functions: `cuMemAlloc_v2`.
    """
    return _API_VERSION.sub("", text)


def read_host(reading: ReportReading) -> None:
    """Add calls and waits; overheads and waits for the operating system once marks are read."""
    _read_calls(reading)
    _read_waits(reading)
    _read_events(reading)


def _read_calls(reading: ReportReading) -> None:
    calls = reading.gathered["calls"]

    def api(kind: int, _: int) -> int:
        return calls.names["api"]["driver" if kind == DRIVER else "runtime"]

    for batch in reading.tables.batches("CUPTI_ACTIVITY_KIND_RUNTIME", _CALL):
        reading.counts["RUNTIME"] += batch.count
        rows, start, dur = reading.timed(batch)
        if rows.count:
            reading.latest_ns = max(reading.latest_ns, int((start + dur).max()))
        reading.callers.append(distinct(rows["globalTid"]))
        reading.names.add(
            calls,
            rows["nameId"],
            UNNAMED,
            call_name,
            process=reading.people.processes(processes_of(rows["globalTid"])),
            thread=threads_of(rows["globalTid"]),
            start_ns=start,
            dur_ns=dur,
            correlation=present(rows["correlationId"]),
            api=by_distinct(rows["eventClass"], api),
        )


def _read_waits(reading: ReportReading) -> None:
    marks = reading.gathered["marks"]
    names, kinds = marks.names["name"], marks.names["sync_kind"]

    def wait(kind: int) -> str:
        return WAITS.get(kind, "Synchronize")

    for batch in reading.tables.batches("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _WAIT):
        reading.counts["SYNCHRONIZATION"] += batch.count
        rows, start, dur = reading.timed(batch)
        process = reading.people.processes(processes_of(rows["globalPid"]))
        marks.add(
            rows.count,
            process=process,
            **reading.people.place(process, rows["deviceId"], rows["contextId"], rows["streamId"]),
            kind=marks.names["kind"]["sync"],
            name=by_distinct(rows["syncType"], lambda kind, _: names[wait(kind)]),
            start_ns=start,
            dur_ns=dur,
            correlation=present(rows["correlationId"]),
            sync_kind=by_distinct(rows["syncType"], lambda kind, _: kinds[wait(kind)]),
        )


def _read_events(reading: ReportReading) -> None:
    """Add recorded events; most reports do not say when they were reached."""
    marks = reading.gathered["marks"]
    for batch in reading.tables.batches("CUPTI_ACTIVITY_KIND_CUDA_EVENT", _EVENT):
        reading.counts["CUDA_EVENT"] += batch.count
        rows, start, dur = reading.timed(
            batch.only(batch["timestamp"] > 0), "timestamp", "timestamp"
        )
        process = reading.people.processes(processes_of(rows["globalPid"]))
        marks.add(
            rows.count,
            process=process,
            **reading.people.place(process, rows["deviceId"], rows["contextId"], rows["streamId"]),
            kind=marks.names["kind"]["event"],
            name=marks.names["name"]["CUDA event"],
            start_ns=start,
            dur_ns=dur,
            correlation=present(rows["correlationId"]),
        )


def read_overheads(reading: ReportReading) -> None:
    """Add what the profiler and the driver did besides the program, of processes that have work."""
    for table in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        is_profiler = table == "PROFILER_OVERHEAD"
        for batch in reading.tables.batches(table, _OVERHEAD):
            reading.counts[table.removeprefix("CUPTI_ACTIVITY_KIND_")] += batch.count
            mine = reading.people.known(processes_of(batch["globalTid"]))
            rows, start, dur = reading.timed(batch.only(mine))
            profiler = np.isin(rows["overheadType"], OF_THE_PROFILER)
            # The table says whose its rows are where they have no type of their own.
            profiler |= (rows["overheadType"] == ABSENT) & is_profiler
            for chosen, shown in ((~profiler, None), (profiler, _of_profiler)):
                _add_overheads(reading, rows.only(chosen), start[chosen], dur[chosen], shown)


def _of_profiler(text: str) -> str:
    return f"{OF_PROFILER}{text}"


def _add_overheads(
    reading: ReportReading, rows: Batch, start: IntArray, dur: IntArray, shown: Shown | None
) -> None:
    marks = reading.gathered["marks"]
    reading.names.add(
        marks,
        rows["nameId"],
        UNNAMED if shown is None else shown(UNNAMED),
        shown,
        process=reading.people.processes(processes_of(rows["globalTid"])),
        thread=threads_of(rows["globalTid"]),
        kind=marks.names["kind"]["overhead"],
        start_ns=start,
        dur_ns=dur,
    )


def read_os_waits(reading: ReportReading) -> None:
    """Add the long waits for the operating system of threads that call CUDA."""
    callers = distinct(np.concatenate([np.empty(0, np.int64), *reading.callers]))
    long = []
    for batch in reading.tables.batches("OSRT_API", _OS_CALL):
        reading.counts["OSRT_API"] += batch.count
        lasts = batch["end"] - batch["start"] >= _SHORTEST_WAIT_NS
        long.append(batch.only(lasts & np.isin(batch["globalTid"], callers)))
    if not any(batch.count for batch in long):
        return
    texts = texts_of(reading.tables, [batch["nameId"] for batch in long])
    waits = [i for i, text in zip(texts.ids.tolist(), texts.texts, strict=True) if text in WAITING]
    marks, added = reading.gathered["marks"], 0
    for batch in long:
        rows, start, dur = reading.timed(batch.only(np.isin(batch["nameId"], waits)))
        added += rows.count
        reading.names.add(
            marks,
            rows["nameId"],
            UNNAMED,
            process=reading.people.processes(processes_of(rows["globalTid"])),
            thread=threads_of(rows["globalTid"]),
            kind=marks.names["kind"]["sync"],
            start_ns=start,
            dur_ns=dur,
        )
    reading.odd["os-waits"] += added
