"""CPU samples of processes that call CUDA, and when no CPU ran the threads that call it."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.parsers.io.database_query import Among, Batch, Lookup, Wanted, by_distinct
from traceflops.parsers.nsight.nsys.enums import processes_of
from traceflops.parsers.nsight.nsys.reading import ReportReading, texts_of
from traceflops.table.grouping import distinct, group_rows

_CHAINS, _SAMPLES, _SWITCHES = "SAMPLING_CALLCHAINS", "COMPOSITE_EVENTS", "SCHED_EVENTS"
_FRAME: Final = Wanted(integers=("id", "symbol", "module"))
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_UNKNOWN: Final = "(unknown)"
_CUDA: Final = re.compile(r"\b(libcuda(rt)?\.so|nvcuda(64)?\.dll)\b")
_MOST: Final = 4_000_000
_MOST_OF_OTHERS: Final = 1_000_000
"""Samples of threads that do not call CUDA, which tell less."""


def read_samples(reading: ReportReading) -> bool:
    """Return whether samples lie in libraries of CUDA, so that the program used it.

    At most _MOST samples of the threads that call CUDA are added, named by their innermost frame.
    If the other threads of their processes have more samples, add at most _MOST_OF_OTHERS of these.
    """
    callers = reading.callers()
    processes = distinct(processes_of(callers))
    innermost = reading.tables.whole(_CHAINS, _FRAME, (Among("stackDepth", (0,)),))
    if not innermost.count:
        return False
    names = reading.builder["marks"].names
    columns = innermost["symbol"], innermost["module"]
    text_ids, texts = texts_of(reading.tables, columns)
    text_of_id = dict(zip(text_ids.tolist(), texts, strict=True))
    frame, first_row = group_rows(columns)  # frames with equal symbol and module share a name

    def name_code(frame: int, _: int) -> int:
        """Return the code of a frame's name: library!function, or the part that is known."""
        symbol, module = (text_of_id.get(int(ids[first_row[frame]])) or "" for ids in columns)
        function = "" if _ADDRESS.fullmatch(symbol) else symbol
        parts = module.rpartition("/")[2], function
        return names["name"]["!".join(filter(None, parts)) or _UNKNOWN]

    name_of_sample = Lookup(innermost["id"], by_distinct(frame, name_code))

    def add(rows: Batch) -> None:
        """Add samples with their names."""
        name = name_of_sample(rows["id"])
        name = np.where(name < 0, names["name"][_UNKNOWN], name)
        reading.add("marks", rows, name=name, kind=names["kind"]["sample"])

    count, others = 0, list[Batch]()
    for batch in reading.batches(_SAMPLES, ("id", "start", "globalTid")):
        rows = batch.only(np.isin(processes_of(batch["globalTid"]), processes))
        rows = reading.timed(rows.with_numbers({"end": rows["start"]}))  # a sample has no length
        is_caller = np.isin(rows["globalTid"], callers)
        own, rest = rows.only(is_caller), rows.only(~is_caller)
        own = own.only(np.arange(own.count) < _MOST - count)
        count += own.count
        add(own)
        left = _MOST_OF_OTHERS - sum(other.count for other in others)
        others.append(rest.only(np.arange(rest.count) < left))
    if sum(other.count for other in others) > count:
        for other in others:
            add(other)
    return any(text is not None and _CUDA.search(text) is not None for text in texts)


def read_switches(reading: ReportReading) -> None:
    """Add a mark for each time in which a thread that calls CUDA is off the CPU.

    A mark lasts from a switch-out to the same thread's next switch-in. Marks before the first CUDA
    call or after the last one are left out. A lost record hides a mark, or joins two.
    """
    callers, names = reading.callers(), reading.builder["marks"].names
    columns = ("start", "isSchedIn", "globalTid")
    batches = [
        batch.only(np.isin(batch["globalTid"], callers))
        for batch in reading.batches(_SWITCHES, columns)
    ]
    count = sum(batch.count for batch in batches)
    if not 0 < count <= _MOST:  # a part of the records would show threads wrongly off the CPU
        return
    time, is_in, thread = (np.concatenate([batch[name] for batch in batches]) for name in columns)
    # Look at each switch and the next one, in the order of threads and times.
    order = np.lexsort((time, thread))
    switch, following = order[:-1], order[1:]
    is_out_then_in = (is_in[switch] == 0) & (is_in[following] != 0)
    is_off_cpu = is_out_then_in & (thread[switch] == thread[following])
    switch_out, switch_in = switch[is_off_cpu], following[is_off_cpu]
    spans = {"start": time[switch_out], "end": time[switch_in], "globalTid": thread[switch_out]}
    rows = reading.timed(Batch(len(switch_out), spans, {}))
    call_starts = reading.builder["calls"].column("start_ns")  # not empty: there are callers
    is_within = (rows["start"] >= call_starts.min()) & (rows["end"] <= call_starts.max())
    name, kind = names["name"]["(off the CPU)"], names["kind"]["off_cpu"]
    reading.add("marks", rows.only(is_within), name=name, kind=kind)
