"""CPU samples of the threads that call CUDA: functions that ran, and when no CPU ran them."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.parsers.io.database_query import Among, Batch, Lookup, Wanted, by_distinct
from traceflops.parsers.nsight.nsys.reading import ReportReading, texts_of
from traceflops.table.grouping import group_rows

_CHAINS, _SAMPLES, _SWITCHES = "SAMPLING_CALLCHAINS", "COMPOSITE_EVENTS", "SCHED_EVENTS"
_FRAME: Final = Wanted(integers=("id", "symbol", "module"))
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_UNKNOWN: Final = "(unknown)"
_MOST: Final = 4_000_000


def read_samples(reading: ReportReading) -> None:
    """Add at most _MOST samples of the threads that call CUDA, named by their innermost frame."""
    callers = reading.callers()
    innermost = reading.tables.whole(_CHAINS, _FRAME, (Among("stackDepth", (0,)),))
    if not innermost.count:
        return
    names = reading.builder["marks"].names
    # The name of a frame: library!function, or the part that is known.
    columns = innermost["symbol"], innermost["module"]
    text_ids, texts = texts_of(reading.tables, columns)
    text_of = dict(zip(text_ids.tolist(), texts, strict=True))
    group, first = group_rows(columns)

    def named(frame: int, _: int) -> int:
        symbol, module = (text_of.get(int(ids[first[frame]])) or "" for ids in columns)
        function = "" if _ADDRESS.fullmatch(symbol) else symbol
        parts = module.rpartition("/")[2], function
        return names["name"]["!".join(filter(None, parts)) or _UNKNOWN]

    name_of = Lookup(innermost["id"], by_distinct(group, named))
    count = 0
    for batch in reading.batches(_SAMPLES, ("id", "start", "globalTid")):
        rows = batch.only(np.isin(batch["globalTid"], callers))
        rows = reading.timed(rows.with_numbers({"end": rows["start"]}))  # a sample has no length
        rows = rows.only(np.arange(rows.count) < _MOST - count)
        count += rows.count
        name = name_of(rows["id"])
        name = np.where(name < 0, names["name"][_UNKNOWN], name)
        reading.add("marks", rows, name=name, kind=names["kind"]["sample"])


def read_switches(reading: ReportReading) -> None:
    """Add a mark for each time in which a thread that calls CUDA is off the CPU.

    It lasts from the record of a switch-out to the thread's next switch-in, and counts between the
    first call and the last. A lost record hides such a time, or makes one of two.
    """
    callers, names = reading.callers(), reading.builder["marks"].names
    kept = [
        rows.only(np.isin(rows["globalTid"], callers))
        for rows in reading.batches(_SWITCHES, ("start", "isSchedIn", "globalTid"))
    ]
    count = sum(rows.count for rows in kept)
    if not 0 < count <= _MOST:  # a part of the records would show threads wrongly off the CPU
        return
    start, is_in, thread = (
        np.concatenate([rows[name] for rows in kept])
        for name in ("start", "isSchedIn", "globalTid")
    )
    order = np.lexsort((start, thread))
    begin, end = order[:-1], order[1:]
    off = (is_in[begin] == 0) & (is_in[end] != 0) & (thread[begin] == thread[end])
    begin, end = begin[off], end[off]
    columns = {"start": start[begin], "end": start[end], "globalTid": thread[begin]}
    rows = reading.timed(Batch(len(begin), columns, {}))
    called = reading.builder["calls"].column("start_ns")  # not empty: these threads have called
    rows = rows.only((rows["start"] >= called.min()) & (rows["end"] <= called.max()))
    reading.add("marks", rows, name=names["name"]["(off the CPU)"], kind=names["kind"]["off_cpu"])
