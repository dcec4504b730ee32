"""Regions and samples of a rocpd database: calls of APIs, and marks."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.io import Among, Batch, Coder, Lookup, Wanted, by_distinct
from traceflops.parsers.rocprof.rocpd.categories import (
    APIS,
    MARK,
    MESSAGE,
    SAMPLED,
    SYSTEM,
    kind_of,
)
from traceflops.parsers.rocprof.rocpd.counters import Samples
from traceflops.parsers.rocprof.rocpd.reading import RunReading
from traceflops.parsers.shared import UNNAMED, Calls, Marks, Overheads, timed
from traceflops.table import ABSENT, Array, IntArray

_REGION: Final = Wanted(integers=("pid", "tid", "start", "end", "name_id", "event_id"))
_SAMPLE: Final = Wanted(integers=("track_id", "timestamp", "event_id"))
_SCRATCH: Final = Wanted(
    integers=("pid", "tid", "agent_id", "queue_id", "start", "end"), texts=("type",)
)
_TRACK: Final = Wanted(integers=("id", "pid", "tid", "name_id"))
_KINDS: Final = (*APIS, MARK, MESSAGE, SAMPLED, SYSTEM)
_NO_KIND: Final = -1
_MOST_CATEGORIES: Final = 8
"""Categories of marks in a database; a real one has five at most."""


class HostReader:
    """Reads what happened on the host.

    Samples of the events `values` are no marks; they become `measured`. `rccl` are the events of
    RCCL's calls with their rows among the calls.
    """

    def __init__(self, reading: RunReading, values: IntArray) -> None:
        self._reading = reading
        self._values = values
        gathered, strings = reading.gathered, reading.facts.strings
        self._call_name = strings.coder(gathered["calls"].names["name"], UNNAMED)
        self._mark_name = strings.coder(gathered["marks"].names["name"], UNNAMED)
        self._message_names: dict[int, Coder] = {}
        self._events_of_regions: list[IntArray] = []
        self.measured: list[Samples] = []
        self.rccl: list[tuple[IntArray, IntArray]] = []

    def read_regions(self) -> None:
        """Add everything that has a beginning and an end."""
        with_samples = self._reading.run.has_rows("sample")
        for batch in self._reading.run.batches("region", _REGION):
            self._reading.counts["region"] += batch.count
            rows = timed(batch, self._reading.odd)
            self._add(rows)
            if with_samples:
                self._events_of_regions.append(rows["event_id"])

    def read_samples(self) -> None:
        """Add instants: marks, and calls that took no time."""
        run = self._reading.run
        tracks = run.whole("track", _TRACK)
        of_track = {name: Lookup(tracks["id"], tracks[name]) for name in ("pid", "tid", "name_id")}
        seen = np.concatenate([*self._events_of_regions, np.empty(0, np.int64)])
        for batch in run.batches("sample", _SAMPLE):
            self._reading.counts["sample"] += batch.count
            is_value = np.isin(batch["event_id"], self._values)
            columns = {name: find(batch["track_id"]) for name, find in of_track.items()}
            batch = Batch(batch.count, {**batch.numbers, **columns}, {})
            values = batch.only(is_value)
            if values.count:
                process = self._reading.facts.processes(values["pid"])
                self.measured.append(Samples(values["event_id"], values["timestamp"], process))
            # rocprof-sys writes a region and a sample for one thing.
            rows = batch.only(~is_value & ~np.isin(batch["event_id"], seen))
            self._add(timed(rows, self._reading.odd, "timestamp", "timestamp"))

    def _add(self, rows: Batch) -> None:
        category = self._reading.events.categories(rows["event_id"])
        kind = self._kinds(rows, category)
        for left_out in (SAMPLED, SYSTEM):
            self._reading.odd[left_out] += int(np.count_nonzero(kind == _KINDS.index(left_out)))
        self._add_calls(rows, kind)
        self._add_marks(rows, kind, category)

    def _kinds(self, rows: Batch, category: IntArray) -> IntArray:
        """Return the place of each record's kind in the list of kinds."""
        strings = self._reading.facts.strings

        def by_category(key: int, _: int) -> int:
            text = None if key == ABSENT else strings[key]
            return _KINDS.index(kind_of(text, None)) if text else _NO_KIND

        def by_name(key: int, _: int) -> int:
            return _KINDS.index(kind_of(None, strings[key]))

        kind = by_distinct(category, by_category)
        unsaid = kind == _NO_KIND
        if unsaid.any():
            kind = kind.copy()
            kind[unsaid] = by_distinct(rows["name_id"][unsaid], by_name)
        return kind

    def _add_calls(self, rows: Batch, kind: IntArray) -> None:
        calls = self._reading.gathered["calls"]
        is_call = kind < len(APIS)
        rows, kind = rows.only(is_call), kind[is_call]
        is_rccl = kind == APIS.index("rccl")
        if is_rccl.any():
            self.rccl.append((rows["event_id"][is_rccl], calls.count + np.flatnonzero(is_rccl)))
        Calls(
            rows=rows,
            **self._place(rows),
            name=self._call_name(rows["name_id"]),
            correlation=self._reading.events.correlations(rows["event_id"]),
            api=by_distinct(kind, lambda place, _: calls.names["api"][APIS[place]]),
        ).add_to(self._reading.gathered)

    def _add_marks(self, rows: Batch, kind: IntArray, category: IntArray) -> None:
        has_message = kind == _KINDS.index(MESSAGE)
        is_mark = (kind == _KINDS.index(MARK)) | has_message
        if is_mark.any():
            rows, category = rows.only(is_mark), np.where(has_message, category, ABSENT)[is_mark]
            place, name = self._place(rows), self._mark_names(rows, category)
            marks = Marks(rows=rows, process=place["process"], thread=place["thread"], name=name)
            marks.add_to(self._reading.gathered)

    def _mark_names(self, rows: Batch, category: IntArray) -> Array:
        """Return the codes of the marks' names: the message of the event, where it has one."""
        codes = self._mark_name(rows["name_id"])
        for key in np.unique(category[category != ABSENT]).tolist()[:_MOST_CATEGORIES]:
            mine = category == key
            message = self._message_name(key)(rows["event_id"][mine])
            codes[mine] = np.where(message >= 0, message, codes[mine])
        return codes

    def _message_name(self, category: int) -> Coder:
        if category not in self._message_names:
            names = self._reading.gathered["marks"].names["name"]
            messages = self._reading.events.messages(category)
            self._message_names[category] = messages.coder(names, None)
        return self._message_names[category]

    def _place(self, rows: Batch) -> dict[str, IntArray]:
        facts = self._reading.facts
        return {"process": facts.processes(rows["pid"]), "thread": facts.threads(rows["tid"])}


def read_allocations(reading: RunReading) -> None:
    """Count allocations; the making of scratch memory, for which a queue waits, is overhead."""
    for batch in reading.run.batches("memory_allocate", Wanted()):
        reading.counts["memory_allocate"] += batch.count
    names = reading.gathered["marks"].names["name"]
    for batch in reading.run.batches("memory_allocate", _SCRATCH, Among("level", ("SCRATCH",))):
        rows = timed(batch, reading.odd)
        process = reading.facts.processes(rows["pid"])
        device = reading.facts.devices(rows["agent_id"], process)
        labels = [f"SCRATCH_MEMORY_{kind or 'NONE'}" for kind in rows.texts["type"]]
        Overheads(
            rows=rows,
            process=process,
            thread=reading.facts.threads(rows["tid"]),
            device=np.where(rows["agent_id"] == ABSENT, ABSENT, device),
            stream=rows["queue_id"],
            name=names.codes(labels),
        ).add_to(reading.gathered)
