"""Reads XPlane files (`*.xplane.pb`) of JAX, TensorFlow, PyTorch/XLA: see docs/parsers/xla.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.database_query import Batch
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.parsers.io.places import rank_in_name
from traceflops.parsers.shared import sinks, trace_builder
from traceflops.parsers.shared.formats import Format
from traceflops.parsers.shared.sanity_checks import span_notes, timed
from traceflops.parsers.xla.planes import Plane, Stats, planes_of
from traceflops.remedies import FRAMEWORK, JAX, TENSORFLOW
from traceflops.table.columns import ABSENT, Array, IntArray, Names, count_true, names
from traceflops.table.trace import NO_CUPTI, Source, SourceFile, Trace

XPLANE_HEAD: Final = (
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
    rb"\x12[\x01-\x7f](?:/host:|/device:|Task Environment)"
)
"""The first plane: its length, perhaps its number, its name."""
_GPU: Final = re.compile(r"/device:GPU:(\d{1,9})")
_HOST: Final = re.compile(r"/host:(?!metadata)")
_STREAM: Final = re.compile(r"Stream #(\d{1,18})")
_MARKED: Final = {"Steps": "gpu_step", "XLA Modules": "gpu_annotation"}
"""Derived lines that become marks, and the kind of the marks."""
_CALENDAR: Final = "Task Environment"
_RECENT_NS: Final = 10**18
"""Larger times count from 1970 (they are after 2001), others from the start of the recording."""
_MOST_REGISTERS, _MOST_SHARED = 1024, 1 << 22
"""The latter in bytes. No GPU has more registers per thread, or more shared memory per block."""
_WITH_REGISTERS: Final = ("regs", "static_shared", "dynamic_shared")
_LONGEST, _LONGEST_NAME, _MOST_NAMED, _MOST_FACT = 1_000, 40, 4, 2**50
_DETAIL: Final = re.compile(r"(\w+):(\d{1,18}(?:,\d{1,18}){0,2})(?!\d)")
_KERNEL, _MEMCPY, _MEMSET, _GRAPH, _NO_WORK = range(5)
"""Kinds of events of a stream."""
_DIRECTION_CODES: Final[Mapping[str | None, int]] = {None: -1} | dict(
    zip(sinks.DIRECTIONS, range(5), strict=True)
)
_WORK: Final = ("kernel", "memcpy", "memset", "graph")
_BY_DETAILS: Final = (
    ("memset_details", _MEMSET),
    ("memcpy_details", _MEMCPY),
    ("kernel_details", _KERNEL),
)
"""A stat that an event of a stream may have, and the kind that it shows."""
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
"""Kinds of events of a stream that have no details, by name; all others are kernels."""
_APIS: Final = (
    (re.compile("cuda[A-Z]"), "runtime"),
    (re.compile("cu[A-Z]"), "driver"),
    (re.compile("hip[A-Z]"), "hip"),
    (re.compile("hsa_"), "hsa"),
)
_DRIVER: Final = 1
_FRAMES, _MARK, _MEMORY, _OPERATOR = range(len(_APIS), len(_APIS) + 4)
"""Kinds of events of the host; the kind of a call is the index of its API in _APIS."""
_ALLOCATOR: Final = re.compile(r"GPU_(\d{1,9})_")
_FRAME: Final = re.compile(r"\$(?:(.+\.py):(\d+) |\S+ )(.+)")
_HOST_KINDS: Final = (
    *((pattern, api) for api, (pattern, _) in enumerate(_APIS)),
    (_FRAME, _FRAMES),
    (re.compile("Memory(Dea|A)llocation$"), _MEMORY),
)
"""Kinds of events of the host by name; all others are marks."""
_OF_FRAMEWORK: Final = {
    JAX: re.compile(r"PjitFunction\("),
    TENSORFLOW: re.compile(r"Eager(Kernel|Local)?Execute|ExecutorState::|TFE_Py_"),
}
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": "The file is cut off: the devices that are whole before the cut are used.",
        "rows-lost": "The file is damaged: {n} [event or list|events or lists] of events could "
        "not be read.",
        "planes-unread": "{count} [device|devices] not read, only GPUs are: {listed}.",
    },
    missing={
        NO_CUPTI: (
            "The profiler could not load or use CUPTI, so GPU work is not recorded.",
            "Put libcupti on the library path, and record again.",
        ),
    },
)


def _trace(source: ByteSource, python_stacks: bool) -> Trace:
    """Return the trace in a file. Raises InputError if it has neither GPU work nor other events."""
    planes, host, error, is_cut = planes_of(source)
    recording = _XlaRecording(source, planes, host, python_stacks)
    # Devices that are not GPUs are only named.
    devices = [plane.name for plane in planes if plane.name.startswith("/device:") and plane.lines]
    others = [name for name in devices if not _GPU.match(name)]
    listed = ", ".join(
        re.sub(r"[^\w:/# .-]", "?", name)[:_LONGEST_NAME] for name in others[:_MOST_NAMED]
    )
    if not recording["activities"].count and (others or not recording.counts):
        path = source.path or source.label
        if is_cut:
            raise InputError(f"cut off or damaged before its first GPU: {path}", "copy it again")
        other_device = f"of another device than a GPU ({listed}), whose ops are not read"
        what = other_device if others else "without events"
        raise NotATrace(f"{path} is an XPlane file {what}", "XProf reads it")
    notes = [_NOTES.note("input-cut")] if is_cut else []
    if lost := sum(plane.lost for plane in planes):
        notes.append(_NOTES.note("rows-lost", lost))
    if not recording["activities"].count and "cupti" in error.lower():
        notes.append(_NOTES.note(NO_CUPTI))
    if others:
        notes.append(_NOTES.note("planes-unread", len(others), listed=listed))
    notes = [replace(n, file=source.label) for n in (*notes, *span_notes(recording.odd))]
    tables = recording.finish()
    # Each framework has ranges that only it writes.
    labels = names(tables["marks"]["name"])
    frameworks = [name for name, range_ in _OF_FRAMEWORK.items() if any(map(range_.match, labels))]
    about = Source(
        format="xplane",
        files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
        tool="XLA profiler",
        origin_unix_ns=recording.origin_unix_ns,
        event_counts=dict(sorted((+recording.counts).items())),
        facts={FRAMEWORK: frameworks[0]} if len(frameworks) == 1 else {},
        # TensorFlow adds a port; the host is hidden in both spellings.
        identities=tuple(filter(None, dict.fromkeys((host, (host or "").partition(":")[0])))),
    )
    overflowed = trace_builder.overflow_notes(recording.tables.values(), source.label)
    return Trace(about, tables, (*notes, *overflowed), recording.places)


class _XlaRecording(trace_builder.Gathered):
    """The rows of one file, which is one process."""

    def __init__(
        self, source: ByteSource, planes: Sequence[Plane], host: str | None, python_stacks: bool
    ) -> None:
        """Read all planes: set the zero of their times, then add GPUs, then hosts."""
        super().__init__()
        self._python_stacks = python_stacks
        facts = trace_builder.ProcessFacts(source.label, rank_in_name(source.name), host=host)
        self._process = self.process(0, facts)
        self._gpus: dict[int, int] = {}
        # Older files: times count from 1970; make them count from the first line.
        # Newer files: times count from the start of the recording, which a stat of a plane tells.
        starts = [line.start_ns for plane in planes for line in plane.lines]
        first_unix_ns = min((start for start in starts if start > _RECENT_NS), default=0)
        self.origin_unix_ns = first_unix_ns or None
        for plane in planes:
            plane.zero_ns = first_unix_ns
            if plane.name == _CALENDAR and not first_unix_ns:
                unix_ns = int(plane.about().numbers("profile_start_time")[0])
                self.origin_unix_ns = unix_ns if unix_ns > _RECENT_NS else None
        # Operators are of the CPU if no GPU is used, recorded or not.
        places = ((plane.name, *(line.name for line in plane.lines)) for plane in planes)
        self._is_of_cpu = not any("gpu" in name.lower() for some in places for name in some)
        # GPUs first: the host's records of memory refer to them.
        for plane in sorted(planes, key=lambda plane: _GPU.match(plane.name) is None):
            if gpu := _GPU.match(plane.name):
                self._add_gpu(plane, int(gpu[1]))
            elif _HOST.match(plane.name):
                thread = plane.threads()
                for rows, stats in plane.events():
                    self._add_host(plane, timed(rows, self.odd), stats, thread)

    def _add_gpu(self, plane: Plane, number: int) -> None:
        """Add the work on the streams of GPU `number`, and marks from its derived lines."""
        device = self.device(number, self._process, number, _facts(plane.about()))
        self._gpus[number] = device
        streams = [_STREAM.match(line.name) for line in plane.lines]
        stream_of = np.array([int(match[1]) if match else ABSENT for match in streams], np.int64)
        line_names = np.array([line.name for line in plane.lines], np.str_)
        for events, stats in plane.events():
            # The kind of an event follows from its details, else from its name.
            kind_of_event = plane.by_name(events, partial(_kind_of, _BY_NAME, _KERNEL))
            for detail, kind_with_detail in _BY_DETAILS:
                kind_of_event = np.where(stats.has(detail), kind_with_detail, kind_of_event)
            rows = timed(events, self.odd)  # those with a valid time; "row" counts all events
            # Work is what lies on a line of a stream; all other lines are derived from these.
            stream = stream_of[rows["line"]]
            kind = np.where(stream != ABSENT, kind_of_event[rows["row"]], _NO_WORK)
            self.counts["no work"] += count_true(kind == _NO_WORK)
            rows_with_stream = rows.with_numbers({"stream": stream})
            for work_kind, word in enumerate(_WORK):
                work = rows_with_stream.only(kind == work_kind)
                self.counts[word] += work.count
                if work.count:
                    self._add_work(word, plane, work, stats, device)
            for line, mark_kind in _MARKED.items():  # the derived lines, such as "Steps"
                marks = rows.only((line_names == line)[rows["line"]])
                self._add_marks(mark_kind, plane, marks, device=device)

    def _add_work(self, kind: str, plane: Plane, work: Batch, stats: Stats, device: int) -> None:
        """Add device work of one kind, with its details."""
        row = work["row"]  # the index of each event of `work` in arrays of `stats`
        name_codes = self["activities"].names["name"]  # gives each text a code
        annotation = _annotation_codes(stats, self["activities"].names["annotation"])
        columns: dict[str, Any] = {
            "process": self._process,
            "device": device,
            "stream": work["stream"],
            "name": plane.by_name(work, lambda name: name_codes[name or sinks.UNNAMED]),
            "correlation": stats.numbers("correlation_id")[row],
            "graph": stats.numbers("cuda_graph_id")[row],
            "annotation": annotation[row],
        }
        details = _Details(stats, f"{kind}_details", row)
        if kind == "kernel":
            shared = details.sum("static_shared", "dynamic_shared", "group_mem")
            columns |= {
                "grid": details.triple("grid"),
                "block": details.triple("block"),
                "registers_per_thread": details.sum("regs"),
                "shared_memory_bytes": np.where(shared <= _MOST_SHARED, shared, ABSENT),
            }
        elif kind != "graph":
            columns["bytes"] = details.sum("size")
            columns["direction"] = plane.by_name(
                work, lambda name: _DIRECTION_CODES[sinks.direction_named(name)]
            )
        sinks.add_work(self, kind=kind, rows=work, **columns)

    def _add_host(self, plane: Plane, events: Batch, stats: Stats, thread: IntArray) -> None:
        """Add calls, Python frames, marks and allocated memory; `thread` has a value per line."""
        row = events["row"]  # of each event in arrays of `stats`
        columns = {name: stats.numbers(name)[row] for name in ("correlation_id", "step_num")}
        rows = events.with_numbers({**columns, "thread": thread[events["line"]]})
        kind = plane.by_name(rows, partial(_kind_of, _HOST_KINDS, _MARK))
        # A mark with a correlation is a call of the driver; others may be operators of the CPU.
        kind = np.where((kind == _MARK) & (rows["correlation_id"] > 0), _DRIVER, kind)
        are_operators = plane.are_operators(rows) | stats.has("hlo_op")[row]
        kind[(kind == _MARK) & are_operators & self._is_of_cpu] = _OPERATOR
        is_call = kind < _FRAMES  # smaller kinds are the APIs of calls
        calls = rows.only(is_call)
        frames, marks = rows.only(kind == _FRAMES), rows.only(kind == _MARK)
        memory, ops = rows.only(kind == _MEMORY), rows.only(kind == _OPERATOR)
        self.counts.update(call=calls.count, python=frames.count, mark=marks.count, op=ops.count)
        self._add_named("ops", plane, ops, thread=ops["thread"])
        call_names, apis = self["calls"].names["name"], self["calls"].names["api"]
        sinks.add_calls(
            self,
            calls,
            process=self._process,
            thread=calls["thread"],
            name=plane.by_name(calls, lambda name: call_names[name or sinks.UNNAMED]),
            correlation=calls["correlation_id"],
            api=apis.codes(api for _, api in _APIS)[kind[is_call]],
        )
        if self._python_stacks:
            self._add_marks("python", plane, frames, thread=frames["thread"])
        # StepTraceAnnotation("train_step", step_num=7) marks a step. It becomes "train step 7": the
        # letters of its name without "step", and its `step_num`.
        mark_names = self["marks"].names["name"]
        name = np.array(plane.by_name(marks, lambda text: mark_names[text or sinks.UNNAMED]))
        is_step = marks["step_num"] != ABSENT
        keys, step_numbers = (marks[column][is_step].tolist() for column in ("name", "step_num"))
        step_names = (plane.event_names.get(key, "")[:_LONGEST_NAME] for key in keys)
        words = (re.sub("(?i)[^a-z]|step", "", step_name) for step_name in step_names)
        pairs = zip(words, step_numbers, strict=True)
        name[is_step] = mark_names.codes(f"{word} step {number}".strip() for word, number in pairs)
        sinks.add_marks(self, marks, process=self._process, thread=marks["thread"], name=name)
        self._add_memory(memory, stats)

    def _add_memory(self, rows: Batch, stats: Stats) -> None:
        """Add how much memory is allocated on GPUs; the name of an allocator tells its GPU."""
        code, texts = stats.texts("allocator_name")
        allocators = [*map(_ALLOCATOR.match, texts), None]  # the last: no name, code -1
        devices = [self._gpus.get(int(gpu[1]), ABSENT) if gpu else ABSENT for gpu in allocators]
        device = np.array(devices, np.int64)[code[rows["row"]]]
        allocated_bytes = stats.numbers("bytes_allocated")[rows["row"]]
        is_known = (device != ABSENT) & (allocated_bytes >= 0)
        self["counters"].add(
            count_true(is_known),
            process=self._process,
            device=device[is_known],
            name=self["counters"].names["name"]["device_memory.allocated_bytes"],
            time_ns=rows["start_ns"][is_known],
            value=allocated_bytes[is_known] * 1.0,
        )
        self.counts["memory"] += count_true(is_known)

    def _add_marks(self, kind: str, plane: Plane, rows: Batch, **columns: Array | int) -> None:
        """Add marks of one kind, with readable names; `columns` are further columns."""
        self._add_named("marks", plane, rows, kind=self["marks"].names["kind"][kind], **columns)

    def _add_named(self, to: str, plane: Plane, rows: Batch, **columns: Array | int) -> None:
        """Add rows to a table, with their times and readable names."""
        table, times = self[to], {name: rows[name] for name in ("start_ns", "dur_ns")}
        name = plane.by_name(rows, lambda text: table.names["name"][_readable(text)])
        table.add(rows.count, process=self._process, name=name, **times, **columns)


def _facts(about: Stats) -> trace_builder.DeviceFacts:
    """Return the facts of a GPU, from the stats of its plane."""

    def number(name: str, factor: int = 1, least: int = 1) -> int | None:
        value = int(about.numbers(name)[0])
        # Numbers below `least` are unknown, very large ones damaged.
        return value * factor if least <= value < _MOST_FACT else None

    (code,), names = about.texts("gpu_device_name")
    return trace_builder.DeviceFacts(
        product=names[code] if code >= 0 else None,
        memory_bytes=number("memory_size"),
        compute_major=number("compute_cap_major"),
        compute_minor=number("compute_cap_minor", least=0),
        sm_count=number("core_count"),
        clock_hz=number("clock_rate", 1000),  # in kHz
    )


def _annotation_codes(stats: Stats, names: Names) -> IntArray:
    """Return, per event, the code in `names` of its annotation ("module/op: path"), -1 without one.

    Without these (TensorFlow) it is the stat "annotation" up to a #: "MatMul#id=3#" -> "MatMul".
    """
    columns = [stats.texts(name) for name in ("hlo_module", "hlo_op", "name", "annotation")]
    rows = np.stack([codes for codes, _ in columns], axis=1)
    # rows [[0 1], [0 2], [0 1]]  ->  distinct_rows [[0 1], [0 2]], inverse [0 1 0]
    distinct_rows, inverse = np.unique(rows, axis=0, return_inverse=True)
    texts_of = [[*texts, ""] for _, texts in columns]  # the last: for the code -1
    codes = []
    for row in distinct_rows.tolist():
        module, op, path, annotation = (texts[i] for texts, i in zip(texts_of, row, strict=True))
        module_op = "/".join(filter(None, (module, op)))
        label = ": ".join(filter(None, (module_op, path))) or annotation.partition("#")[0]
        codes.append(names[label] if label else -1)
    return np.array(codes, np.int64)[inverse.reshape(-1)]


def _readable(name: str) -> str:
    """Return a name; a Python function, recorded as `$file.py:12 f`, as PyTorch writes it."""
    frame = _FRAME.match(name)
    if frame is None:
        return name or sinks.UNNAMED
    file, line, function = frame.groups()
    return f"{file}({line}): {function}" if file else f"<built-in function {function}>"


def _kind_of(kinds: Iterable[tuple[re.Pattern[str], int]], other: int, name: str) -> int:
    """Return the first kind whose pattern matches the beginning of a name, else `other`."""
    return next((kind for pattern, kind in kinds if pattern.match(name)), other)


class _Details:
    """The numbers in the text of a stat, such as `regs:32 grid:128,1,1`, of the events `row`."""

    def __init__(self, stats: Stats, name: str, row: IntArray) -> None:
        """Parse each distinct text once."""
        codes, texts = stats.texts(name)
        self._code = codes[row]
        self._numbers: list[dict[str, list[int]]] = []  # by code
        for text in texts:
            numbers = {
                key: [int(digits) for digits in value.split(",")]
                for key, value in _DETAIL.findall(text[:_LONGEST])
            }
            # If AMD's recorder does not know these, it writes parts of an address.
            if numbers.get("regs", [0])[0] > _MOST_REGISTERS:
                for key in _WITH_REGISTERS:
                    numbers.pop(key, None)
            self._numbers.append(numbers)
        self._numbers.append({})  # for the code -1: no text

    def sum(self, *names: str) -> IntArray:
        """Return the sum of the named numbers per event, ABSENT if it has none of them."""
        sums = []
        for numbers in self._numbers:
            values = [numbers[name][0] for name in names if name in numbers]
            sums.append(sum(values) if values else ABSENT)
        return np.array(sums, np.int64)[self._code]

    def triple(self, name: str) -> IntArray:
        """Return the three numbers of `name` as [events, 3]; all ABSENT if there are not three."""
        lists = (numbers.get(name, []) for numbers in self._numbers)
        triples = [sizes if len(sizes) == 3 else [ABSENT] * 3 for sizes in lists]
        return np.array(triples)[self._code]


XPLANE: Final = Format(
    "XPlane",
    lambda head: re.match(XPLANE_HEAD, head) is not None,
    lambda sources, reading: [_trace(s, reading.python_stacks is not False) for s in sources],
)
