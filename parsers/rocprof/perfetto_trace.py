"""Reads Perfetto traces of rocprofv3, rocpd convert and rocprof-sys (omnitrace).

What an event is, its category tells. Annotations have its times as they were recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from traceflops.errors import NotATrace
from traceflops.parsers.io import Batch, ByteSource, NoteTable, by_distinct
from traceflops.parsers.rocprof.agents import GAUGES
from traceflops.parsers.rocprof.copies import GPU, HOST, UNKNOWN, ends_of, ways_between, ways_named
from traceflops.parsers.rocprof.notes import clock_of_folder
from traceflops.parsers.rocprof.perfetto_packets import TEXT, Packets, Track
from traceflops.parsers.rocprof.tables.parts import place_of
from traceflops.parsers.rocprof.trace import Recorded, trace_of
from traceflops.parsers.shared import (
    UNNAMED,
    UNNAMED_COPY,
    UNNAMED_KERNEL,
    Calls,
    Copies,
    Kernels,
    Marks,
    Overheads,
    ProcessIds,
    blocks_of,
    fill_collectives,
    timed,
    told_apart,
)
from traceflops.table import ABSENT, Array, IntArray, Note, Source, Trace
from traceflops.units import time_amount

_WANTED: Final = (
    *("begin_ns", "end_ns", "corr_id", "tid", "agent", "device", "queue"),
    *("group_segment_size", "workgroup_size", "grid_size", "copy_bytes", "bytes"),
    *("src_agent", "dst_agent", "src_agent_id", "dst_agent_id"),
)
_KEPT: Final = (
    *("category", "name", "value", "start", "track"),
    *("group_segment_size", "workgroup_size", "grid_size"),
)
_OF_SYSTEMS_PROFILER: Final = "rocm_"
_APIS: Final = ("hip", "hsa", "rccl", "rocdecode", "rocjpeg")
_MARK, _OF_STREAM, _SAMPLED = "mark", "of a stream", "sampled"
_UNREAD: Final = ("system", "streamed-counter", _SAMPLED)
_KINDS: Final[Mapping[str, str]] = {
    **{f"{api}_api": api for api in _APIS},
    "kernel_dispatch": "kernel",
    "memory_copy": "memcpy",
    "hip_stream": _OF_STREAM,
    "rccl": "rccl",
    "marker_api": _MARK,
    "roctx": _MARK,
    "scratch_memory": "scratch",
    **dict.fromkeys(("memory_allocation", "memory_allocate"), "allocation"),
    "kfd_events": "system",
    "counter_collection": "streamed-counter",
}
"""What an event is by its category, before which rocprof-sys writes rocm_; else a mark."""
_WORDS: Final = (*dict.fromkeys(_KINDS.values()), _SAMPLED)
_STREAM: Final = re.compile(r'(?:STREAM|QUEUE) ?\[?"? ?(\d{1,18})', re.IGNORECASE)
_GPU: Final = re.compile(r"(?:COMPUTE .*?|GPU [\w. ]*)\[(\d{1,9})\]|Device (\d{1,9})")
_THREAD: Final = re.compile(r"THREAD \d+ \((\d{1,18})\)")
_AGENT: Final = re.compile(r"(?:CPU|GPU|Agent)?[ _-]*(\d{1,9})", re.IGNORECASE)
_AXES: Final = tuple(
    re.compile(sign) for sign in (r"^\((\d{1,9}),", r",(\d{1,9}),", r",(\d{1,9})\)$")
)
_ENDS: Final = {"CPU": HOST, "GPU": GPU}
_NO_TRACK: Final = Track()
_MOST_PARENTS: Final = 8
_MOST_NAME: Final = 200
"""So long is what numbers are looked for in."""
_STOPPED_SHARE: Final = 0.1
_STOPPED_NS: Final = 10**7
_FULLER: Final = "The SQLite (rocpd) or JSON output of the same run"
_FOREIGN: Final = (
    "a Perfetto trace without GPU work of rocprof",
    "give one of rocprofv3 --output-format pftrace or of rocprof-sys; no other Perfetto traces are "
    "read",
)
_DROPPED: Final = ("rows-lost", "packets-packed", "packets-dropped", "unpaired-ends")
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": "The trace is cut off or damaged after {bytes} bytes; the rest could not "
        "be read.",
        "rows-lost": "{n} damaged [packet|packets] of the trace skipped.",
        "packets-packed": "{n} compressed [packet|packets] skipped: not supported.",
        "packets-dropped": "Perfetto's buffer was full {n} [time|times]: records are missing. Set "
        "a larger one (rocprofv3 --perfetto-buffer-size).",
        "unpaired-ends": "{n} [end|ends] of ranges without a start skipped.",
    },
    assumed={
        "overlaps-trimmed": "{n} [kernel starts|kernels start] exactly where another in the same "
        "queue ends. In Perfetto traces rocprofv3 writes overlapping kernels in this way: whether "
        f"they overlap is unknown. {_FULLER} has their times.",
    },
    missing={
        "perfetto-lacks": "Perfetto traces hold no GPU model and no host name{more}. "
        f"{_FULLER} has them.",
        "device-stopped": "The last GPU operation ends {time} before the last API call: if the "
        "program still used the GPU, Perfetto's buffer was full and the rest is missing. Set a "
        "larger one (rocprofv3 --perfetto-buffer-size).",
    },
)


def read_perfetto(source: ByteSource) -> Trace:
    """Return the trace in a file. Raises InputError where it holds nothing of rocprof."""
    reading = _Reading(source)
    reading.read()
    return reading.trace()


class _Reading(Recorded):
    """Adds up the rows of a file."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source
        self._packets = Packets(source, _WANTED, self.odd)
        self._pids = ProcessIds(self, source.label)
        self._known_gpus: set[int] = set()
        self._gpus = np.empty(0, np.int64)
        self._any_pid = ABSENT
        self._is_sys = False

    def read(self) -> None:
        """Read the file and add its rows. Raises InputError where none is rocprof's."""
        slices, values = self._packets.read()
        pids = (track.pid for track in self._packets.tracks.values() if track.pid is not None)
        self._any_pid = next(pids, ABSENT)
        categories = [*self._packets.categories]
        bare = [text.removeprefix(_OF_SYSTEMS_PROFILER) for text in categories]
        if _KINDS.keys().isdisjoint(bare):
            raise NotATrace(
                f"{self._source.path or self._source.label} is {_FOREIGN[0]}", _FOREIGN[1]
            )
        self._is_sys = any(text.startswith(_OF_SYSTEMS_PROFILER) for text in categories)
        kinds = np.array([*(_WORDS.index(_kind(text)) for text in bare), _WORDS.index(_MARK)])
        if values:
            self._add_counters(self._placed(values), kinds)
        if slices:
            self._add_slices(self._placed(slices), kinds)
        fill_collectives(self, {})

    def _add_slices(self, rows: Batch, kinds: IntArray) -> None:
        kernel = _WORDS.index("kernel")
        named = [_WORDS.index(_work(name)) for name in self._packets.names]
        kind = kinds[rows["category"]]
        of_stream = kind == _WORDS.index(_OF_STREAM)
        kind = np.where(of_stream, np.array([*named, kernel])[rows["name"]], kind)
        if (known := rows["gpu"][(kind == kernel) & (rows["gpu"] != ABSENT)]).size:
            self._gpus = np.unique(known)
        for place, word in enumerate(_WORDS):
            part = rows.only(kind == place)
            self.counts[word] += part.count
            if word in _UNREAD:
                self.odd[word] += part.count
            elif word in _ADD and part.count:
                _ADD[word](self, timed(part, self.odd), word)

    def _placed(self, rows: dict[str, Array]) -> Batch:
        """Return rows with what their tracks and their annotations say."""
        track = rows["track"]
        placed: dict[str, Array] = {name: rows[name] for name in _KEPT if name in rows}
        stream = by_distinct(track, lambda uuid, _: _number(_STREAM, self._track(uuid).name))
        gpu = by_distinct(track, lambda uuid, _: _number(_GPU, self._track(uuid).name))
        placed |= {"gpu": gpu, "process": self._pids.numbers(by_distinct(track, self._pid))}
        if "begin_ns" not in rows:
            return Batch(len(track), placed, {})
        placed |= {
            "start": _first(rows["begin_ns"], rows["start"]),
            "end": _first(rows["end_ns"], rows["end"]),
            "stream": _first(rows["queue"], stream),
            "gpu": _first(self._agents(rows["agent"]), rows["device"], gpu),
            "thread": _first(rows["tid"], by_distinct(track, self._thread)),
            "correlation": np.where(rows["corr_id"] == 0, ABSENT, rows["corr_id"]),
            "bytes": _first(rows["copy_bytes"], rows["bytes"]),
        }
        for end in ("src", "dst"):
            placed[end] = _first(rows[f"{end}_agent"], rows[f"{end}_agent_id"])
        return Batch(len(track), placed, {})

    def _in_texts(self, values: IntArray, told: Callable[[str], int], other: int) -> IntArray:
        """Return what is told by the texts of annotations; where there is none the other."""
        found = np.array([*map(told, self._packets.texts), other])
        last = len(found) - 1
        return found[np.where((values >= TEXT) & (values < TEXT + last), values - TEXT, last)]

    def _agents(self, values: IntArray) -> IntArray:
        """Return the numbers of agents, which stand as such or in a text."""
        in_texts = self._in_texts(values, partial(_number, _AGENT), ABSENT)
        return np.where(values < TEXT, values, in_texts)

    def _ends(self, values: IntArray) -> IntArray:
        """Return what the agents at the ends of copies are: by their text, or as kernels ran."""
        said = self._in_texts(values, lambda text: _ENDS.get(text[:3].upper(), UNKNOWN), UNKNOWN)
        return np.where(np.isin(values, self._gpus) & (not self._is_sys), GPU, said)

    def _track(self, uuid: int) -> Track:
        return self._packets.tracks.get(uuid, _NO_TRACK)

    def _pid(self, uuid: int, _: int) -> int:
        """Return the process of a track, its own or that above it; else the first of the file."""
        track = self._track(uuid)
        for _ in range(_MOST_PARENTS):
            if track.pid is None and track.parent is not None:
                track = self._track(track.parent)
        return self._any_pid if track.pid is None else track.pid

    def _thread(self, uuid: int, _: int) -> int:
        track = self._track(uuid)
        return _number(_THREAD, track.name) if track.tid is None else track.tid

    def _on_gpus(self, rows: Batch) -> IntArray:
        """Return the devices of rows; of an unknown GPU the only one, or the first."""
        gpu, process = rows["gpu"], rows["process"]
        gpu = np.where(gpu == ABSENT, self._gpus[0] if len(self._gpus) == 1 else ABSENT, gpu)
        self.odd["device-unknown json"] += int(np.count_nonzero(gpu == ABSENT))

        def device(number: int, row: int) -> int:
            number = told_apart(self._known_gpus, max(number, -1), -1)
            return self.device(number, int(process[row]), number)

        return by_distinct(np.where(gpu == ABSENT, 0, gpu), device)

    def _names(self, table: str, rows: Batch, unnamed: str) -> Array:
        """Return the codes that the names of slices have in a table."""
        names, texts = self[table].names["name"], [*self._packets.names, ""]
        return by_distinct(rows["name"], lambda code, _: names[texts[code] or unnamed])

    def _of_host(self, rows: Batch, table: str) -> dict[str, Any]:
        own = {name: rows[name] for name in ("process", "thread")}
        return {"rows": rows, "name": self._names(table, rows, UNNAMED), **own}

    def _of_gpu(self, rows: Batch, unnamed: str) -> dict[str, Any]:
        own = {name: rows[name] for name in ("process", "correlation")}
        name = self._names("activities", rows, unnamed)
        return {"rows": rows, "name": name, "device": self._on_gpus(rows), **own}

    def _add_calls(self, rows: Batch, api: str) -> None:
        own = self._of_host(rows, "calls")
        Calls(**own, correlation=rows["correlation"], api=api).add_to(self)

    def _add_marks(self, rows: Batch, _: str) -> None:
        Marks(**self._of_host(rows, "marks")).add_to(self)

    def _add_scratch(self, rows: Batch, _: str) -> None:
        """Add the making of scratch memory, for which a queue waits, as overhead of the device."""
        own, device = self._of_host(rows, "marks"), self._on_gpus(rows)
        Overheads(**own, device=device, stream=rows["stream"]).add_to(self)

    def _add_kernels(self, rows: Batch, _: str) -> None:
        """Add kernels; rocprofv3 writes only the products of their sizes, which tell no axis."""
        signs = [partial(_number, axis) for axis in _AXES]
        block, grid = (
            np.stack([self._in_texts(rows[name], sign, ABSENT) for sign in signs], axis=1)
            for name in ("workgroup_size", "grid_size")
        )
        Kernels(
            **self._of_gpu(rows, UNNAMED_KERNEL),
            stream=rows["stream"],
            grid=blocks_of(grid, block),
            block=block,
            shared_memory_bytes=rows["group_segment_size"],
        ).add_to(self)

    def _add_copies(self, rows: Batch, _: str) -> None:
        """Add copies. The ends that rocprof-sys writes are other numbers than those of kernels."""
        way = np.append(ways_named(self._packets.names), UNKNOWN)[rows["name"]]
        source, target = (self._agents(rows[end]) for end in ("src", "dst"))
        by_way = dict(zip(("src", "dst"), ends_of(way), strict=True))
        first, last = (
            np.where(by_way[end] == UNKNOWN, self._ends(rows[end]), by_way[end]) for end in by_way
        )
        gpu = np.where(last == GPU, target, source)
        own = {"gpu": np.full_like(gpu, ABSENT) if self._is_sys else gpu}
        own["way"] = ways_between(way, first, last, source != target)
        on_device = (first != HOST) | (last != HOST)
        self.odd["host-copies json"] += int(np.count_nonzero(~on_device))
        rows = Batch(rows.count, {**rows.numbers, **own}, {}).only(on_device)
        # An engine for copies works it off: neither a queue nor a stream is its place.
        common = self._of_gpu(rows, UNNAMED_COPY)
        Copies(**common, bytes=rows["bytes"], way=rows["way"]).add_to(self)

    def _add_counters(self, rows: Batch, kinds: IntArray) -> None:
        """Add values over time. Those of rocprofv3 only sum up records that are read."""
        table, texts = self["counters"], [*self._packets.categories, ""]
        kind, counted = kinds[rows["category"]], _WORDS.index("streamed-counter")
        self.odd["streamed-counter"] += int(np.count_nonzero(kind == counted))
        known = (rows["start"] >= 0) & np.isfinite(rows["value"])
        rows = rows.only(known & (kind == _WORDS.index(_MARK)))
        track, category, of_gpu = rows["track"], rows["category"], rows["gpu"] != ABSENT
        self._gpus = np.unique(rows["gpu"][of_gpu])
        device = np.full(rows.count, ABSENT, np.int64)
        device[of_gpu] = self._on_gpus(rows.only(of_gpu))
        names, gauges = table.names["name"], [GAUGES.get(text) for text in texts]
        gauge = np.array([names[one[0]] if one else ABSENT for one in gauges])[category]
        other = by_distinct(track, lambda uuid, _: names[self._track(uuid).name or UNNAMED])
        unit = np.array([one[1] if one else 1.0 for one in gauges])[category]
        factor = unit * by_distinct(track, lambda uuid, _: self._track(uuid).factor)
        name = np.where(gauge == ABSENT, other, gauge).astype(np.int32)
        columns = {"process": rows["process"], "device": device, "time_ns": rows["start"]}
        table.add(rows.count, **columns, name=name, value=rows["value"] * factor)

    def trace(self) -> Trace:
        """Return the trace of what was added."""
        source = self._source
        tool = "rocprof-sys" if self._is_sys else "rocprofv3"
        about = Source(
            format="rocprof",
            files=(),
            tool=f"{tool} Perfetto trace",
            clock=clock_of_folder(place_of(source.folder, source.name).root),
            facts={} if self._is_sys else {"generation": "v3"},
        )
        return trace_of(self, source, about, "file", notes=[*self._notes()])

    def _notes(self) -> Iterator[Note]:
        packets, work = self._packets, self["activities"]
        if packets.is_cut or self._source.cut:
            yield _NOTES.note("input-cut", bytes=f"{packets.read_bytes:,}")
        yield from _NOTES.counted(self.odd, *_DROPPED)
        if not work.count:
            return
        start, end = work.column("start_ns"), work.column("start_ns") + work.column("dur_ns")
        trimmed = {"overlaps-trimmed": 0 if self._is_sys else self._touching(start, end)}
        yield from _NOTES.counted(trimmed, *trimmed)
        more = "" if (work.column("grid") != ABSENT).any() else ", and no grid of a launch"
        yield _NOTES.note("perfetto-lacks", more=more)
        called = self["calls"].column("start_ns")
        gap = int(called.max(initial=0) - end.max())
        if gap > max(_STOPPED_NS, _STOPPED_SHARE * np.ptp(called) if len(called) else 0):
            yield _NOTES.note("device-stopped", time=time_amount(gap))

    def _touching(self, start: IntArray, end: IntArray) -> int:
        """Return how many kernels start exactly where another in their queue ends."""
        device, stream = (self["activities"].column(name) for name in ("device", "stream"))
        rows = np.flatnonzero((stream != ABSENT) & (end > start))
        rows = rows[np.lexsort((start[rows], stream[rows], device[rows]))]
        first, second = rows[:-1], rows[1:]
        same = (device[first] == device[second]) & (stream[first] == stream[second])
        return int(np.count_nonzero(same & (end[first] == start[second])))


_ADD: Final[Mapping[str, Callable[[_Reading, Batch, str], None]]] = {
    **dict.fromkeys(_APIS, _Reading._add_calls),
    "kernel": _Reading._add_kernels,
    "memcpy": _Reading._add_copies,
    _MARK: _Reading._add_marks,
    "scratch": _Reading._add_scratch,
}


def _kind(category: str) -> str:
    return _SAMPLED if category.endswith("_sampling") else _KINDS.get(category, _MARK)


def _work(name: str) -> str:
    """Return what work of a stream is, of which no category tells it."""
    words = {"MEMORY_COPY": "memcpy", "SCRATCH_MEM": "scratch"}
    return words.get(name[: len("MEMORY_COPY")], "kernel")


def _first(*columns: IntArray) -> IntArray:
    """Return the first value that is known."""
    found = columns[0]
    for column in columns[1:]:
        found = np.where(found == ABSENT, column, found)
    return found


def _number(sign: re.Pattern[str], text: str) -> int:
    found = sign.search(text[:_MOST_NAME])
    return ABSENT if found is None else int(next(filter(None, found.groups())))
