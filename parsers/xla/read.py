"""Reads XPlane files (`*.xplane.pb`), which JAX, TensorFlow and PyTorch/XLA write.

docs/parsers/xla.md says what goes where.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import Batch, ByteSource, NoteTable, rank_in_name
from traceflops.parsers.shared import (
    UNNAMED,
    WAYS,
    Calls,
    Copies,
    DeviceFacts,
    Format,
    Gathered,
    Graphs,
    Kernels,
    Marks,
    ProcessFacts,
    Reading,
    overflow_notes,
    span_notes,
    timed,
    way_named,
)
from traceflops.parsers.xla.planes import Plane, Space, Stats, space_of
from traceflops.parsers.xla.threads import threads_of
from traceflops.table import ABSENT, Array, IntArray, Names, Note, Source, SourceFile, Trace

XPLANE_HEAD: Final = (
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
    rb"\x12[\x01-\x7f](?:/host:|/device:|Task Environment)"
)
"""The first plane: its length, maybe its number, its name."""
_GPU: Final = re.compile(r"/device:GPU:(\d{1,9})")
_HOST: Final = re.compile(r"/host:(?!metadata)")
_STREAM: Final = re.compile(r"Stream #(\d{1,18})")
_MARKED: Final = {"Steps": "gpu_step", "XLA Modules": "gpu_annotation"}
"""Of the lines that are derived from others those that become marks, of which kind."""
_CALENDAR: Final = "Task Environment"
_RECENT_NS: Final = 10**18
"""Since 2001 the nanoseconds since 1970 are more than that; no recording lasts so long."""
_MOST_REGISTERS: Final = 1024
_MOST_SHARED: Final = 1 << 22
"""More registers, and more bytes of shared memory, no GPU has."""
_WITH_REGISTERS: Final = ("regs", "static_shared", "dynamic_shared")
_DETAIL: Final = re.compile(r"(\w+):(\d{1,18}(?:,\d{1,18}){0,2})(?!\d)")
_KERNEL, _MEMCPY, _MEMSET, _GRAPH, _NO_WORK = range(5)
_WORK: Final = {_KERNEL: "kernel", _MEMCPY: "memcpy", _MEMSET: "memset", _GRAPH: "graph"}
_BY_DETAILS: Final = (
    ("memset_details", _MEMSET),
    ("memcpy_details", _MEMCPY),
    ("kernel_details", _KERNEL),
)
_BY_NAME: Final = (
    (re.compile("Memcpy[DHPO]"), _MEMCPY),
    (re.compile("Memset$"), _MEMSET),
    (re.compile("CudaGraph"), _GRAPH),
    (
        re.compile(
            "(Memory(Alloc|Free|Residency)|Host(R|Unr)egister|Overhead|Synchroni[sz]ation)$"
        ),
        _NO_WORK,
    ),
)
"""What events of a stream are that have no details, in the recorder's words; others are kernels."""
_APIS: Final = (
    (re.compile("cuda[A-Z]"), "runtime"),
    (re.compile("cu[A-Z]"), "driver"),
    (re.compile("hip[A-Z]"), "hip"),
    (re.compile("hsa_"), "hsa"),
)
_DRIVER: Final = 1
_FRAMES, _MARK, _MEMORY = range(len(_APIS), len(_APIS) + 3)
_ALLOCATOR: Final = re.compile(r"GPU_(\d{1,9})_")
_FRAME: Final = re.compile(r"\$(?:(.+\.py):(\d+) |\S+ )(.+)")
_HOST_KINDS: Final = (
    *((sign, place) for place, (sign, _) in enumerate(_APIS)),
    (_FRAME, _FRAMES),
    (re.compile("Memory(Dea|A)llocation$"), _MEMORY),
)
"""What events of the host are by their names; others are marks."""
Values = Array | int
Place = dict[str, Values]
Sizes = tuple[IntArray, list[dict[str, list[int]]]]
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": "The file is cut off: the devices that are whole before the cut are used.",
        "rows-lost": "The file is damaged: {n} [event or list|events or lists] of events could "
        "not be read.",
        "planes-unread": "{count} [device|devices] not read, only GPUs are: {listed}.",
    }
)


def read_xplanes(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the traces in some files. Raises InputError where one has nothing that is read."""
    return [_trace(source, reading.python_stacks is not False) for source in sources]


XPLANE: Final = Format("XPlane", lambda head: re.match(XPLANE_HEAD, head) is not None, read_xplanes)


def _trace(source: ByteSource, python_stacks: bool) -> Trace:
    space = space_of(source)
    tables = _XplaneTables(source, space, python_stacks)
    tables.read()
    is_other = [p.name.startswith("/device:") and not _GPU.match(p.name) for p in space.planes]
    others = [p.name for p, other in zip(space.planes, is_other, strict=True) if other and p.lines]
    if not tables.gathered["activities"].count and (others or not tables.counts):
        raise _nothing_read(source, space, others)
    finished = tables.gathered.finish()
    overflowed = overflow_notes(tables.gathered.overflowed, source.label)
    about = Source(
        format="xplane",
        files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
        tool="XLA profiler",
        origin_unix_ns=tables.origin_unix_ns,
        event_counts=dict(sorted((+tables.counts).items())),
        identities=_host_names(space.host or ""),
    )
    notes = (replace(note, file=source.label) for note in _notes(space, tables, others))
    return Trace(about, finished, (*notes, *overflowed), tables.gathered.places)


def _nothing_read(source: ByteSource, space: Space, others: list[str]) -> InputError:
    place = source.path or source.label
    if space.is_cut:
        return InputError(f"cut off or damaged before its first GPU: {place}", "copy it again")
    of_other = f"of another device than a GPU ({_listed(others)}), whose ops are not read"
    what = of_other if others else "without events"
    return NotATrace(f"{place} is an XPlane file {what}", "XProf reads it")


def _host_names(host: str) -> tuple[str, ...]:
    """Return the host as it is written, and without the port that TensorFlow adds."""
    return tuple(filter(None, dict.fromkeys((host, host.partition(":")[0]))))


def _listed(planes: list[str]) -> str:
    return ", ".join(re.sub(r"[^\w:/# .-]", "?", name)[:40] for name in planes[:4])


def _notes(space: Space, tables: _XplaneTables, others: list[str]) -> Iterator[Note]:
    if space.is_cut:
        yield _NOTES.note("input-cut")
    if lost := sum(plane.lost for plane in space.planes):
        yield _NOTES.note("rows-lost", lost)
    if others:
        yield _NOTES.note("planes-unread", len(others), listed=_listed(others))
    yield from span_notes(tables.odd)


class _XplaneTables:
    """What is read of one file: all of it is one process."""

    def __init__(self, source: ByteSource, space: Space, python_stacks: bool) -> None:
        self.gathered = Gathered()
        self.counts: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.origin_unix_ns: int | None = None
        self._planes = space.planes
        self._python_stacks = python_stacks
        about = ProcessFacts(source.label, rank_in_name(source.name), host=space.host)
        self._process = self.gathered.process(0, about)
        self._devices: dict[int, int] = {}

    def read(self) -> None:
        """Read all planes."""
        self._set_origin()
        # Devices first: what the host says of their memory refers to them.
        for plane in sorted(self._planes, key=lambda plane: _GPU.match(plane.name) is None):
            if gpu := _GPU.match(plane.name):
                self._add_gpu(plane, int(gpu[1]))
            elif _HOST.match(plane.name):
                thread = threads_of(plane)
                for rows, stats in plane.events():
                    self._add_host(plane, timed(rows, self.odd), stats, thread)

    def _set_origin(self) -> None:
        """Find when the recording began, from which times count; in older files from 1970."""
        starts = [line.start_ns for plane in self._planes for line in plane.lines]
        began = min((start for start in starts if start > _RECENT_NS), default=0)
        for plane in self._planes:
            plane.zero_ns = began
            if plane.name == _CALENDAR:
                said = int(plane.about().numbers("profile_start_time")[0])
                self.origin_unix_ns = said if said > _RECENT_NS else None
        self.origin_unix_ns = began or self.origin_unix_ns

    def _add_gpu(self, plane: Plane, number: int) -> None:
        device = self.gathered.device(number, self._process, number, _facts(plane.about()))
        self._devices[number] = device
        numbers = [_STREAM.match(line.name) for line in plane.lines]
        stream = np.array([int(found[1]) if found else ABSENT for found in numbers], np.int64)
        lines = np.array([line.name for line in plane.lines], np.str_)
        for found, stats in plane.events():
            rows = timed(found, self.odd)
            is_work = stream[rows["line"]] != ABSENT
            kind = np.where(is_work, _kinds(plane, found, stats)[rows["row"]], _NO_WORK)
            for one, word in _WORK.items():
                work = rows.only(kind == one)
                self.counts[word] += work.count
                if work.count:
                    place = self._place(plane, work, stats)
                    place |= {"device": device, "stream": stream[work["line"]]}
                    self._add_work(one, plane, work, stats, place)
            self.counts["no work"] += int(np.count_nonzero(kind == _NO_WORK))
            for line, word in _MARKED.items():
                self._mark(word, plane, rows.only((lines == line)[rows["line"]]), device=device)

    def _place(self, plane: Plane, rows: Batch, stats: Stats) -> Place:
        """Return what all work has: process, name, launch, graph, the op of XLA."""
        row, names = rows["row"], self.gathered["activities"].names
        return {
            "process": self._process,
            "name": plane.by_name(rows, lambda name: names["name"][name or UNNAMED]),
            "correlation": stats.numbers("correlation_id")[row],
            "graph": stats.numbers("cuda_graph_id")[row],
            "annotation": _ops(stats, names["annotation"])[row],
        }

    def _add_work(self, kind: int, plane: Plane, rows: Batch, stats: Stats, place: Place) -> None:
        if kind == _GRAPH:
            Graphs(rows=rows, **place).add_to(self.gathered)
        elif kind == _KERNEL:
            Kernels(rows=rows, **place, **_launch(stats, rows)).add_to(self.gathered)
        else:
            size = _sum(_sizes(stats, f"{_WORK[kind]}_details", rows), "size")
            way = plane.by_name(rows, _way)
            Copies(rows=rows, **place, kind=_WORK[kind], way=way, bytes=size).add_to(self.gathered)

    def _add_host(self, plane: Plane, rows: Batch, stats: Stats, thread: IntArray) -> None:
        tables, process = self.gathered, self._process
        kind = plane.by_name(rows, _host_kind)
        said = {name: stats.numbers(name)[rows["row"]] for name in ("correlation_id", "step_num")}
        rows = Batch(rows.count, {**rows.numbers, **said}, {})
        kind = np.where((kind == _MARK) & (said["correlation_id"] > 0), _DRIVER, kind)
        calls, frames, marks = (
            rows.only(some) for some in (kind < _FRAMES, kind == _FRAMES, kind == _MARK)
        )
        self.counts.update(call=calls.count, python=frames.count, mark=marks.count)
        names = tables["calls"].names
        Calls(
            rows=calls,
            process=process,
            thread=thread[calls["line"]],
            name=plane.by_name(calls, lambda name: names["name"][name or UNNAMED]),
            correlation=calls["correlation_id"],
            api=names["api"].codes(word for _, word in _APIS)[kind[kind < _FRAMES]],
        ).add_to(tables)
        if self._python_stacks:
            self._mark("python", plane, frames, thread=thread[frames["line"]])
        names = tables["marks"].names
        name = np.array(plane.by_name(marks, lambda text: names["name"][text or UNNAMED]))
        is_step = marks["step_num"] != ABSENT
        name[is_step] = names["name"].codes(_steps(plane, marks.only(is_step)))
        on = thread[marks["line"]]
        Marks(rows=marks, process=process, thread=on, name=name).add_to(tables)
        self._add_memory(rows.only(kind == _MEMORY), stats)

    def _add_memory(self, rows: Batch, stats: Stats) -> None:
        """Add what the allocators of GPUs hold after each allocation and release."""
        code, texts = stats.texts("allocator_name")
        gpus = [*map(_ALLOCATOR.match, texts), None]
        of_text = [self._devices.get(int(gpu[1]), ABSENT) if gpu else ABSENT for gpu in gpus]
        device = np.array(of_text, np.int64)[code[rows["row"]]]
        held = stats.numbers("bytes_allocated")[rows["row"]]
        known = (device != ABSENT) & (held >= 0)
        table, count = self.gathered["counters"], int(np.count_nonzero(known))
        columns = {"device": device[known], "time_ns": rows["start_ns"][known]}
        label = table.names["name"]["device_memory.allocated_bytes"]
        table.add(count, process=self._process, name=label, value=held[known] * 1.0, **columns)
        self.counts["memory"] += count

    def _mark(self, kind: str, plane: Plane, rows: Batch, **place: Values) -> None:
        table = self.gathered["marks"]
        times = {name: rows[name] for name in ("start_ns", "dur_ns")}
        name = plane.by_name(rows, lambda text: table.names["name"][_readable(text)])
        place |= {"process": self._process, "kind": table.names["kind"][kind], "name": name}
        table.add(rows.count, **times, **place)


def _facts(about: Stats) -> DeviceFacts:
    """Return what a plane says of its GPU."""

    def number(name: str, factor: int = 1, least: int = 1) -> int | None:
        value = int(about.numbers(name)[0])
        return value * factor if least <= value < 2**50 else None

    (code,), names = about.texts("gpu_device_name")
    return DeviceFacts(
        product=names[code] if code >= 0 else None,
        memory_bytes=number("memory_size"),
        compute_major=number("compute_cap_major"),
        compute_minor=number("compute_cap_minor", least=0),
        sm_count=number("core_count"),
        clock_hz=number("clock_rate", 1000),
    )


def _kinds(plane: Plane, rows: Batch, stats: Stats) -> IntArray:
    """Return what the events of streams are: by their details, else by their names."""
    kinds = plane.by_name(rows, lambda name: next((k for s, k in _BY_NAME if s.match(name)), 0))
    for name, kind in _BY_DETAILS:
        kinds = np.where(stats.has(name), kind, kinds)
    return kinds


def _ops(stats: Stats, names: Names) -> IntArray:
    """Return the op of XLA that each event is of: module, op, and its path in the program.

    Else that of TensorFlow, whose arguments follow after a #.
    """
    columns = [stats.texts(name) for name in ("hlo_module", "hlo_op", "name", "annotation")]
    found = np.stack([codes for codes, _ in columns], axis=1)
    distinct, place = np.unique(found, axis=0, return_inverse=True)
    known = [[*texts, ""] for _, texts in columns]
    said = ([known[n][code] for n, code in enumerate(row)] for row in distinct.tolist())
    texts = (
        ": ".join(filter(None, (module + "/" * bool(module and op) + op, path)))
        or of_tensorflow.partition("#")[0]
        for module, op, path, of_tensorflow in said
    )
    return np.array([names[text] if text else -1 for text in texts], np.int64)[place.reshape(-1)]


def _readable(name: str) -> str:
    """Return a name; of a Python function, `$file.py:12 f` or `$module f`, as PyTorch writes it."""
    frame = _FRAME.match(name)
    if frame is None:
        return name or UNNAMED
    file, line, function = frame.groups()
    return f"{file}({line}): {function}" if file else f"<built-in function {function}>"


def _steps(plane: Plane, rows: Batch) -> Iterator[str]:
    """Give the names of steps, which were marked with a number (StepTraceAnnotation)."""
    for key, number in zip(rows["name"].tolist(), rows["step_num"].tolist(), strict=True):
        word = re.sub("(?i)[^a-z]|step", "", plane.event_names.get(key, "")[:40])
        yield f"{word} step {number}".strip()


def _host_kind(name: str) -> int:
    """Return the place of a call's API, else what else it is."""
    return next((kind for sign, kind in _HOST_KINDS if sign.match(name)), _MARK)


def _way(name: str) -> int:
    """Return the place in WAYS of the direction of a copy: MemcpyH2D."""
    way = way_named(name)
    return WAYS.index(way) if way in WAYS else -1


def _sizes(stats: Stats, name: str, rows: Batch) -> Sizes:
    """Return the numbers in texts of details: the place of each event's, numbers by name."""
    codes, texts = stats.texts(name)
    return codes[rows["row"]], [*map(_numbers_in, texts), {}]


def _numbers_in(text: str) -> dict[str, list[int]]:
    found = _DETAIL.findall(text[:1000])
    said = {key: [int(one) for one in value.split(",")] for key, value in found}
    # Where AMD's recorder did not know them, both are halves of an address.
    is_known = said.get("regs", [0])[0] <= _MOST_REGISTERS
    return said if is_known else {key: said[key] for key in said if key not in _WITH_REGISTERS}


def _sum(sizes: Sizes, *names: str) -> IntArray:
    """Return the sum of some numbers of each event, ABSENT where it has none."""
    place, said = sizes
    values = ([one[name][0] for name in names if name in one] for one in said)
    return np.array([sum(some) if some else ABSENT for some in values], np.int64)[place]


def _launch(stats: Stats, rows: Batch) -> Place:
    """Return the sizes of launches, in blocks and threads."""
    place, said = sizes = _sizes(stats, "kernel_details", rows)
    shared = _sum(sizes, "static_shared", "dynamic_shared", "group_mem")

    def triple(name: str) -> IntArray:
        found = [one.get(name, []) for one in said]
        return np.array([one if len(one) == 3 else [ABSENT] * 3 for one in found])[place]

    return {
        "grid": triple("grid"),
        "block": triple("block"),
        "registers_per_thread": _sum(sizes, "regs"),
        "shared_memory_bytes": np.where(shared <= _MOST_SHARED, shared, ABSENT),
    }
