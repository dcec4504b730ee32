"""Reads Perfetto traces of rocprofv3, rocpd convert and rocprof-sys, by category of events."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from traceflops.errors import NotATrace
from traceflops.parsers.io.database_query import Batch, by_distinct
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.pytorch.values import first_known
from traceflops.parsers.rocprof import copies
from traceflops.parsers.rocprof.agents import GAUGES
from traceflops.parsers.rocprof.perfetto_packets import TEXT, Packets, Track
from traceflops.parsers.rocprof.trace import trace_of
from traceflops.parsers.shared import sinks
from traceflops.parsers.shared.collectives import fill_collectives
from traceflops.parsers.shared.sanity_checks import timed
from traceflops.parsers.shared.trace_builder import Gathered, ProcessIds, within_limit
from traceflops.table.columns import ABSENT, Array, IntArray, count_true
from traceflops.table.grouping import distinct
from traceflops.table.trace import Note, Source, Trace
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
_MARK, _OF_STREAM, _SAMPLED = "mark", "of a stream", "sampled"
_UNREAD: Final = ("system", "streamed-counter", _SAMPLED)
_KINDS: Final[Mapping[str, str]] = {
    **{f"{api}_api": api for api in ("hip", "hsa", "rccl", "rocdecode", "rocjpeg")},
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
"""The kind of an event by its category, without the rocm_ of rocprof-sys; others are marks."""
_WORDS: Final = (*dict.fromkeys(_KINDS.values()), _SAMPLED)
_STREAM_WORK: Final = {"MEMORY_COPY": "memcpy", "SCRATCH_MEM": "scratch"}
"""The kind of a stream's work by the first 11 letters of its name; other names are kernels."""
_STREAM: Final = re.compile(r'(?:STREAM|QUEUE) ?\[?"? ?(\d{1,18})', re.IGNORECASE)
_GPU: Final = re.compile(r"(?:COMPUTE .*?|GPU [\w. ]*)\[(\d{1,9})\]|Device (\d{1,9})")
_THREAD: Final = re.compile(r"THREAD \d+ \((\d{1,18})\)")
_AGENT: Final = re.compile(r"(?:CPU|GPU|Agent)?[ _-]*(\d{1,9})", re.IGNORECASE)
_AXES: Final = tuple(
    re.compile(sign) for sign in (r"^\((\d{1,9}),", r",(\d{1,9}),", r",(\d{1,9})\)$")
)
_ENDS: Final = {"CPU": copies.HOST, "GPU": copies.GPU}
_NO_TRACK: Final = Track()
_MOST_PARENTS: Final = 8
_MOST_NAME: Final = 200  # the length of a text up to which a number is looked for in it
_STOPPED_SHARE: Final = 0.1
_STOPPED_NS: Final = 10**7
_FULLER: Final = "The SQLite (rocpd) or JSON output of the same run"
_FOREIGN: Final = (
    "a Perfetto trace or another protobuf file, without GPU work of rocprof",
    "give one of rocprofv3 --output-format pftrace or of rocprof-sys; of another profiler its own "
    "file: prof.export_chrome_trace, .nsys-rep, HOST.xplane.pb",
)
_DROPPED: Final = ("rows-lost", "packets-packed", "packets-dropped", "unpaired-ends")
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": "The trace is cut off or damaged after {bytes} bytes; the rest could not "
        "be read.",
        "rows-lost": "{n} damaged [packet|packets] of the trace skipped.",
        "packets-packed": "{n} compressed [packet|packets] skipped: not supported.",
        "packets-dropped": "Perfetto lost records, since its buffer was full. Set a larger one "
        "(rocprofv3 --perfetto-buffer-size).",
        "unpaired-ends": "{n} [end|ends] of ranges without a start skipped.",
    },
    assumed={
        "overlaps-trimmed": "{n} [kernel starts|kernels start] exactly where another in the same "
        "queue ends. In Perfetto traces rocprofv3 writes overlapping kernels in this way: whether "
        f"they overlap is unknown. {_FULLER} has their times."
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
    """Return the trace in a file. Raises NotATrace if rocprof wrote none of its events."""
    recording = _Recording(source)
    recording.read()
    facts = {} if recording.is_sys else {"generation": "v3"}
    about = Source(
        format="rocprof",
        files=(),
        tool=f"{'rocprof-sys' if recording.is_sys else 'rocprofv3'} Perfetto trace",
        facts=facts,
    )
    return trace_of(recording, source, about, "file", notes=[*recording.notes()])


class _Recording(Gathered):
    """The rows of a file. `is_sys` says that rocprof-sys wrote it."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self.is_sys = False
        self._source = source
        self._packets = Packets(source, _WANTED, self.odd)
        self._pids = ProcessIds(self, source.label)
        self._known_gpus: set[int] = set()  # all numbers that became devices
        self._gpus = np.empty(0, np.int64)  # those of the kernels, in ascending order

    def read(self) -> None:
        """Read the file and add its rows. Raises NotATrace if rocprof wrote none of its events."""
        slices, values = self._packets.read()
        categories = [*self._packets.categories]
        bare = [text.removeprefix(_OF_SYSTEMS_PROFILER) for text in categories]
        if _KINDS.keys().isdisjoint(bare):
            raise NotATrace(
                f"{self._source.path or self._source.label} is {_FOREIGN[0]}", _FOREIGN[1]
            )
        self.is_sys = any(text.startswith(_OF_SYSTEMS_PROFILER) for text in categories)
        kinds = [_SAMPLED if t.endswith("_sampling") else _KINDS.get(t, _MARK) for t in bare]
        # The kind of each category, an index in _WORDS; the last is for code -1: no category.
        kind_of = np.array([_WORDS.index(kind) for kind in (*kinds, _MARK)])
        if values:
            self._add_counters(self._with_tracks(values), kind_of)
        if slices:
            self._add_slices(self._with_tracks(slices), kind_of)
        fill_collectives(self, {})

    def _add_slices(self, rows: Batch, kind_of: IntArray) -> None:
        """Add slices to the tables of their kinds. `kind_of` is the kind of each category."""
        kernel, kind = _WORDS.index("kernel"), kind_of[rows["category"]]
        # The category of a stream's work does not tell its kind, but its name does.
        # 11: the length of the beginnings in _STREAM_WORK.
        words = [_STREAM_WORK.get(name[:11], "kernel") for name in self._packets.names]
        by_name = np.array([*map(_WORDS.index, words), kernel])  # the last is for code -1: no name
        kind = np.where(kind == _WORDS.index(_OF_STREAM), by_name[rows["name"]], kind)
        # The GPUs are known from kernels: copies name agents, which may be CPUs.
        gpus = rows["gpu"][(kind == kernel) & (rows["gpu"] != ABSENT)]
        self._gpus = distinct(gpus) if gpus.size else self._gpus
        for number, word in enumerate(_WORDS):
            part = rows.only(kind == number)
            self.counts[word] += part.count
            if word in _UNREAD:
                self.odd[word] += part.count
            if word in (*_UNREAD, "allocation") or not part.count:
                continue
            part = timed(part, self.odd)
            if word == "kernel":
                self._add_kernels(part)
            elif word == "memcpy":
                self._add_copies(part)
            elif word == _MARK:
                sinks.add_marks(self, **self._common("marks", part, sinks.UNNAMED, "thread"))
            elif word == "scratch":  # its allocation is overhead: a queue waits for it
                common = self._common("marks", part, sinks.UNNAMED, "thread", "stream")
                sinks.add_overheads(self, **common, device=self._on_gpus(part))
            else:
                common = self._common("calls", part, sinks.UNNAMED, "thread", "correlation")
                sinks.add_calls(self, **common, api=word)

    def _with_tracks(self, rows: dict[str, Array]) -> Batch:
        """Return rows with process, thread, GPU and stream, of annotations, else of the track."""
        tracks = self._packets.tracks
        first_pid = next((track.pid for track in tracks.values() if track.pid is not None), ABSENT)
        of_tracks = []  # of each track: pid (else of the nearest parent with one), tid, stream, GPU
        uuids, index = np.unique(rows["track"], return_inverse=True)
        for track in (tracks.get(uuid, _NO_TRACK) for uuid in uuids.tolist()):
            owner = track
            for _ in range(_MOST_PARENTS):  # a limit, since damaged parents may form a circle
                if owner.pid is None and owner.parent is not None:
                    owner = tracks.get(owner.parent, _NO_TRACK)
            pid = first_pid if owner.pid is None else owner.pid
            tid = _number(_THREAD, track.name) if track.tid is None else track.tid
            of_tracks.append((pid, tid, *(_number(sign, track.name) for sign in (_STREAM, _GPU))))
        pids, tids, stream, gpu = np.array(of_tracks, np.int64).reshape(-1, 4)[index].T
        columns: dict[str, Array] = {name: rows[name] for name in _KEPT if name in rows}
        columns |= {"gpu": gpu, "process": self._pids.numbers(pids)}
        if "begin_ns" not in rows:
            return Batch(len(index), columns, {})
        columns |= {
            "start": first_known(rows["begin_ns"], rows["start"]),
            "end": first_known(rows["end_ns"], rows["end"]),
            "stream": first_known(rows["queue"], stream),
            "gpu": first_known(self._agents(rows["agent"]), rows["device"], gpu),
            "thread": first_known(rows["tid"], tids),
            # 0 is the id of records without a call.
            "correlation": np.where(rows["corr_id"] == 0, ABSENT, rows["corr_id"]),
            "bytes": first_known(rows["copy_bytes"], rows["bytes"]),
            "src": first_known(rows["src_agent"], rows["src_agent_id"]),
            "dst": first_known(rows["dst_agent"], rows["dst_agent_id"]),
        }
        return Batch(len(index), columns, {})

    def _in_texts(self, values: IntArray, number: Callable[[str], int], other: int) -> IntArray:
        """Return `number` of each annotation's text, `other` for annotations that are no text."""
        numbers = np.array([*map(number, self._packets.texts), other])
        last = len(numbers) - 1
        is_text = (values >= TEXT) & (values < TEXT + last)
        return numbers[np.where(is_text, values - TEXT, last)]

    def _agents(self, values: IntArray) -> IntArray:
        """Return the numbers of agents; annotations give them as numbers or in a text."""
        in_texts = self._in_texts(values, partial(_number, _AGENT), ABSENT)
        return np.where(values < TEXT, values, in_texts)

    def _on_gpus(self, rows: Batch) -> IntArray:
        """Return the device of each row; for an unknown GPU the file's only GPU, else GPU 0."""
        gpu, process = rows["gpu"], rows["process"]
        if len(self._gpus) == 1:
            gpu = np.where(gpu == ABSENT, self._gpus[0], gpu)
        self.odd["device-unknown json"] += count_true(gpu == ABSENT)

        def device(number: int, row: int) -> int:
            number = within_limit(self._known_gpus, max(number, -1), -1)
            return self.device(number, int(process[row]), number)

        return by_distinct(np.where(gpu == ABSENT, 0, gpu), device)

    def _common(self, table: str, rows: Batch, unnamed: str, *columns: str) -> dict[str, Any]:
        """Return keyword arguments of a sink: `rows`, and its columns name, process, `columns`."""
        names, texts = self[table].names["name"], [*self._packets.names, ""]
        name = by_distinct(rows["name"], lambda code, _: names[texts[code] or unnamed])
        return {"rows": rows, "name": name, **{c: rows[c] for c in ("process", *columns)}}

    def _add_kernels(self, rows: Batch) -> None:
        """Add kernels; rocprof-sys writes block and grid as (64,1,1), rocprofv3 only products."""
        block, grid = (
            np.stack(
                [self._in_texts(rows[name], partial(_number, axis), ABSENT) for axis in _AXES],
                axis=1,
            )
            for name in ("workgroup_size", "grid_size")
        )
        sinks.add_work(
            self,
            kind="kernel",
            **self._common("activities", rows, sinks.UNNAMED_KERNEL, "stream", "correlation"),
            device=self._on_gpus(rows),
            grid=sinks.blocks_of(grid, block),
            block=block,
            shared_memory_bytes=rows["group_segment_size"],
        )

    def _add_copies(self, rows: Batch) -> None:
        """Add copies, except those within host memory, which are only counted."""
        named = copies.directions_named(self._packets.names)
        named = np.append(named, copies.UNKNOWN)[rows["name"]]  # the last is for code -1: no name
        source, target = (self._agents(rows[end]) for end in ("src", "dst"))

        def end_in(text: str) -> int:
            return _ENDS.get(text[:3].upper(), copies.UNKNOWN)

        kinds = []  # of source and target, HOST or GPU: by the direction, else by the agent
        for end, by_direction in zip(("src", "dst"), copies.ends_of(named), strict=True):
            by_agent = self._in_texts(rows[end], end_in, copies.UNKNOWN)
            if not self.is_sys:
                by_agent = np.where(np.isin(rows[end], self._gpus), copies.GPU, by_agent)
            kinds.append(np.where(by_direction == copies.UNKNOWN, by_agent, by_direction))
        source_kind, target_kind = kinds
        gpu = np.where(target_kind == copies.GPU, target, source)
        direction = copies.directions_between(named, source_kind, target_kind, source != target)
        # Agents of rocprof-sys's copies have other numbers than kernels': their GPU is unknown.
        columns = {"gpu": np.full_like(gpu, ABSENT) if self.is_sys else gpu, "direction": direction}
        on_device = (source_kind != copies.HOST) | (target_kind != copies.HOST)
        self.odd["host-copies"] += count_true(~on_device)
        rows = rows.with_numbers(columns).only(on_device)
        # A copy engine executes it: it belongs to no queue or stream.
        common = self._common(
            "activities", rows, sinks.UNNAMED_COPY, "correlation", "bytes", "direction"
        )
        sinks.add_work(self, kind="memcpy", **common, device=self._on_gpus(rows))

    def _add_counters(self, rows: Batch, kind_of: IntArray) -> None:
        """Add the values of counters over time, as device gauges or under their track's name.

        `kind_of` is the kind of each category. rocprofv3 also writes counters that sum up records
        of a category; these are left out. The others are of kind _MARK.
        """
        table, tracks = self["counters"], self._packets.tracks
        kind, streamed = kind_of[rows["category"]], _WORDS.index("streamed-counter")
        self.odd["streamed-counter"] += count_true(kind == streamed)
        is_value = (rows["start"] >= 0) & np.isfinite(rows["value"])
        rows = rows.only(is_value & (kind == _WORDS.index(_MARK)))
        uuid, category, of_gpu = rows["track"], rows["category"], rows["gpu"] != ABSENT
        self._gpus = distinct(rows["gpu"][of_gpu])  # unless `_add_slices` finds those of kernels
        device = np.full(rows.count, ABSENT, np.int64)
        device[of_gpu] = self._on_gpus(rows.only(of_gpu))

        # The name and the factor to its unit: of the gauge that the category is, else of the track.
        names = table.names["name"]
        gauges = [GAUGES.get(text) for text in (*self._packets.categories, "")]
        by_gauge = np.array([names[gauge[0]] if gauge else ABSENT for gauge in gauges])[category]
        by_track = by_distinct(
            uuid, lambda key, _: names[tracks.get(key, _NO_TRACK).name or sinks.UNNAMED]
        )
        name = np.where(by_gauge == ABSENT, by_track, by_gauge).astype(np.int32)
        factor = np.array([gauge[1] if gauge else 1.0 for gauge in gauges])[category]
        factor *= by_distinct(uuid, lambda key, _: tracks.get(key, _NO_TRACK).factor)
        columns = {"process": rows["process"], "device": device, "time_ns": rows["start"]}
        table.add(rows.count, **columns, name=name, value=rows["value"] * factor)

    def notes(self) -> Iterator[Note]:
        """Yield notes on the file as a whole."""
        packets, work = self._packets, self["activities"]
        if packets.is_cut or self._source.cut:
            yield _NOTES.note("input-cut", bytes=f"{packets.read_bytes:,}")
        yield from _NOTES.counted(self.odd, *_DROPPED)
        if not work.count:
            return
        start, end = work.column("start_ns"), work.column("start_ns") + work.column("dur_ns")
        if not self.is_sys:
            # rocprofv3 ends a kernel when the next one in its queue starts, so a kernel that starts
            # exactly at the end of the one before may have overlapped with it.
            device, stream = work.column("device"), work.column("stream")
            rows = np.flatnonzero((stream != ABSENT) & (end > start))
            rows = rows[np.lexsort((start[rows], stream[rows], device[rows]))]
            first, second = rows[:-1], rows[1:]
            same_queue = (device[first] == device[second]) & (stream[first] == stream[second])
            touching = same_queue & (end[first] == start[second])
            trimmed = {"overlaps-trimmed": count_true(touching)}
            yield from _NOTES.counted(trimmed, *trimmed)
        more = "" if (work.column("grid") != ABSENT).any() else ", and no grid of a launch"
        yield _NOTES.note("perfetto-lacks", more=more)
        called = self["calls"].column("start_ns")
        gap_ns = int(called.max(initial=0) - end.max())
        # A program may end with some calls that launch nothing: only a long gap is a loss.
        if gap_ns > max(_STOPPED_NS, _STOPPED_SHARE * np.ptp(called) if len(called) else 0):
            yield _NOTES.note("device-stopped", time=time_amount(gap_ns))


def _number(sign: re.Pattern[str], text: str) -> int:
    """Return the number that `sign` captures in a text, ABSENT if it does not match."""
    match = sign.search(text[:_MOST_NAME])
    return ABSENT if match is None else int(next(filter(None, match.groups())))
