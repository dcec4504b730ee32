"""Reads the API calls and marks of a rocpd database from its regions and samples, by category."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.parsers.io.database_query import Among, Batch, Coder, Lookup, Wanted, by_distinct
from traceflops.parsers.rocprof.rocpd_run import RunReading
from traceflops.parsers.shared import sinks
from traceflops.parsers.shared.sanity_checks import timed
from traceflops.parsers.shared.trace_builder import Gathered
from traceflops.table.columns import ABSENT, Array, IntArray, count_true

APIS: Final = ("hip", "hsa", "rccl", "rocdecode", "rocjpeg")
MARK: Final = "mark"
_MESSAGE: Final = "message"  # a mark whose text is not its name but the message of its event
_SAMPLED: Final = "sampled"  # a line of code that a sampling profiler saw: no mark
_SYSTEM: Final = "system"  # events of the driver: page faults, queue evictions
_KINDS: Final = (*APIS, MARK, _MESSAGE, _SAMPLED, _SYSTEM)
_CATEGORIES: Final = (
    (re.compile("MARKER|ROCTX"), _MESSAGE),
    (re.compile("SAMPLING"), _SAMPLED),
    (re.compile("KFD"), _SYSTEM),
    (re.compile("ROCDECODE"), "rocdecode"),
    (re.compile("ROCJPEG"), "rocjpeg"),
    (re.compile("RCCL"), "rccl"),
    (re.compile("HSA"), "hsa"),
    (re.compile("HIP"), "hip"),
)
_NAMES: Final = (
    (re.compile("_*hip[A-Z]"), "hip"),
    (re.compile("hsa_"), "hsa"),
    (re.compile("m?s?nccl"), "rccl"),
    (re.compile("roctx"), _MESSAGE),
)
_NO_KIND: Final = -1
_MOST_CATEGORIES: Final = 8  # categories of marks that are read; a real database has five at most
_REGION: Final = Wanted(integers=("pid", "tid", "start", "end", "name_id", "event_id"))
_SAMPLE: Final = Wanted(integers=("track_id", "timestamp", "event_id"))
_SCRATCH: Final = Wanted(
    integers=("pid", "tid", "agent_id", "queue_id", "start", "end"), texts=("type",)
)
_TRACK: Final = Wanted(integers=("id", "pid", "tid", "name_id"))


def kind_by_name(name: str | None) -> str:
    """Return the API of a call by its name, else what kind of mark it is."""
    return next((kind for sign, kind in _NAMES if sign.match(name or "")), MARK)


class HostReader:
    """Reads what happened on the host: calls and marks.

    `counter_events` are the ids of events with values of hardware counters. The samples of these
    events only state when a counter was read: they are no marks, but collected in
    `counter_samples`. `rccl` has, per batch, the event ids of RCCL calls and their rows in `calls`.
    """

    def __init__(self, reading: RunReading, counter_events: IntArray) -> None:
        self._reading = reading
        self._counter_events = counter_events
        self._call_name = reading.strings.coder(reading["calls"].names["name"], sinks.UNNAMED)
        self._mark_name = reading.strings.coder(reading["marks"].names["name"], sinks.UNNAMED)
        self._message_names: dict[int, Coder] = {}  # the messages of each category of marks
        self.counter_samples: list[Batch] = []
        self.rccl: list[tuple[IntArray, IntArray]] = []

    def read(self) -> None:
        """Add calls and marks: from regions, which have a duration, then samples, instants."""
        reading, run = self._reading, self._reading.run
        has_samples = run.has_rows("sample")
        region_events = [np.empty(0, np.int64)]
        for batch in run.batches("region", _REGION):
            reading.counts["region"] += batch.count
            rows = timed(batch, reading.odd)
            self._add(rows)
            if has_samples:
                region_events.append(rows["event_id"])

        # A sample has the process, thread and name of its track.
        tracks = run.whole("track", _TRACK)
        by_track = {name: Lookup(tracks["id"], tracks[name]) for name in ("pid", "tid", "name_id")}
        also_regions = np.concatenate(region_events)
        for batch in run.batches("sample", _SAMPLE):
            reading.counts["sample"] += batch.count
            columns = {name: lookup(batch["track_id"]) for name, lookup in by_track.items()}
            rows = batch.with_numbers(columns)
            is_counter = np.isin(rows["event_id"], self._counter_events)
            if is_counter.any():
                self.counter_samples.append(rows.only(is_counter))
            # rocprof-sys writes some events both as a region and as a sample: regions count.
            is_region = np.isin(rows["event_id"], also_regions)
            rows = rows.only(~is_counter & ~is_region)
            self._add(timed(rows, reading.odd, "timestamp", "timestamp"))

    def _add(self, rows: Batch) -> None:
        """Add records as calls or marks; count those that are neither."""
        reading = self._reading
        category = reading.categories(rows["event_id"])
        kind = self._kinds(rows, category)
        for left_out in (_SAMPLED, _SYSTEM):
            reading.odd[left_out] += count_true(kind == _KINDS.index(left_out))
        rows = rows.with_numbers({"category": category, "kind": kind})

        calls = self._on_threads(rows.only(kind < len(APIS)))  # _KINDS begins with the APIs
        is_rccl = calls["kind"] == APIS.index("rccl")
        if is_rccl.any():
            call_rows = reading["calls"].count + np.flatnonzero(is_rccl)
            self.rccl.append((calls["event_id"][is_rccl], call_rows))
        correlation = reading.correlations(calls["event_id"])
        add_calls_of(reading, calls, self._call_name(calls["name_id"]), correlation, APIS)

        is_mark = np.isin(kind, [_KINDS.index(MARK), _KINDS.index(_MESSAGE)])
        marks = self._on_threads(rows.only(is_mark))
        if marks.count:
            process, thread, name = marks["process"], marks["thread"], self._mark_names(marks)
            sinks.add_marks(reading, marks, process=process, thread=thread, name=name)

    def _kinds(self, rows: Batch, category: IntArray) -> IntArray:
        """Return the kind of each record, an index in _KINDS, by its category, else by its name."""
        strings = self._reading.strings

        def by_category(category_id: int, _row: int) -> int:
            word = "" if category_id == ABSENT else (strings[category_id] or "").upper()
            if not word:
                return _NO_KIND
            kind = next((kind for sign, kind in _CATEGORIES if sign.search(word)), MARK)
            return _KINDS.index(kind)

        def by_name(name_id: int, _row: int) -> int:
            return _KINDS.index(kind_by_name(strings[name_id]))

        kinds = by_distinct(category, by_category)
        has_no_kind = kinds == _NO_KIND
        if has_no_kind.any():
            kinds = kinds.copy()  # it may be a read-only broadcast
            kinds[has_no_kind] = by_distinct(rows["name_id"][has_no_kind], by_name)
        return kinds

    def _mark_names(self, marks: Batch) -> Array:
        """Return the code of each mark's name: the message of its event, else its own name."""
        name, names = self._mark_name(marks["name_id"]), self._reading["marks"].names["name"]
        has_message = marks["kind"] == _KINDS.index(_MESSAGE)
        category = np.where(has_message, marks["category"], ABSENT)
        # The messages of a category are read together. More than _MOST_CATEGORIES are not real.
        for key in np.unique(category[category != ABSENT]).tolist()[:_MOST_CATEGORIES]:
            if key not in self._message_names:
                self._message_names[key] = self._reading.messages(key).coder(names, None)
            of_category = category == key
            message = self._message_names[key](marks["event_id"][of_category])
            name[of_category] = np.where(message >= 0, message, name[of_category])
        return name

    def _on_threads(self, rows: Batch) -> Batch:
        process = self._reading.processes(rows["pid"])
        thread = self._reading.threads(rows["tid"])
        return rows.with_numbers({"process": process, "thread": thread})


def add_calls_of(
    recorded: Gathered, rows: Batch, name: Array, correlation: IntArray, apis: tuple[str, ...]
) -> None:
    """Add calls, which have columns process, thread and kind: the index of the API in `apis`."""
    codes = recorded["calls"].names["api"]
    sinks.add_calls(
        recorded,
        rows,
        process=rows["process"],
        thread=rows["thread"],
        name=name,
        correlation=correlation,
        api=by_distinct(rows["kind"], lambda kind, _: codes[apis[kind]]),
    )


def read_allocations(reading: RunReading) -> None:
    """Count allocations of memory; add allocations of scratch memory, for which a queue waits."""
    for batch in reading.run.batches("memory_allocate", Wanted()):
        reading.counts["memory_allocate"] += batch.count
    names = reading["marks"].names["name"]
    for batch in reading.run.batches("memory_allocate", _SCRATCH, Among("level", ("SCRATCH",))):
        rows = timed(batch, reading.odd)
        process = reading.processes(rows["pid"])
        device = reading.devices(rows["agent_id"], process)
        labels = [f"SCRATCH_MEMORY_{kind or 'NONE'}" for kind in rows.texts["type"]]
        sinks.add_overheads(
            reading,
            rows,
            process=process,
            thread=reading.threads(rows["tid"]),
            device=np.where(rows["agent_id"] == ABSENT, ABSENT, device),
            stream=rows["queue_id"],
            name=names.codes(labels),
        )
