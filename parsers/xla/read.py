"""Reads XPlane files (`*.xplane.pb`), which JAX, TensorFlow and PyTorch/XLA write.

docs/parsers/xla.md says what goes where.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import Batch, ByteSource, NoteTable, by_distinct, rank_in_name
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
from traceflops.parsers.xla.planes import Events, Plane, Space, Stats, space_of
from traceflops.table import ABSENT, Array, IntArray, Names, Note, Source, SourceFile, Trace

XPLANE_HEAD: Final = (
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
    rb"\x12[\x01-\x7f](?:/host:|/device:|Task Environment)"
)
"""The first plane: its length, maybe its number, its name."""
_GPU: Final = re.compile(r"/device:GPU:(\d{1,9})")
_HOST: Final = re.compile(r"/host:(?!metadata)")
_STREAM: Final = re.compile(r"Stream #(\d{1,18})")
_MARKED: Final = ("Steps", "XLA Modules")
"""Of the lines that are derived from others those that become marks."""
_CALENDAR: Final = "Task Environment"
_RECENT_NS: Final = 10**18
"""Since 2001 the nanoseconds since 1970 are more than that; no recording lasts so long."""
_MOST_REGISTERS: Final = 1024
_MOST_SHARED: Final = 1 << 22
"""More registers, and more bytes of shared memory, no GPU has; AMD's recorder writes such."""
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
_FRAMES, _MARK = len(_APIS), len(_APIS) + 1
_FRAME: Final = re.compile(r"\$(?:(.+\.py):(\d+) |(\S+) )(.+)")
Values = Array | int
Sizes = tuple[IntArray, list[dict[str, list[int]]]]
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": "The file is cut off: whole planes (devices and hosts) before the cut are "
        "used.",
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
    others = [p.name for p in space.planes if _is_other_device(p) and p.has_events]
    if not tables.gathered["activities"].count and (others or not tables.counts):
        raise _nothing_read(source, space, others)
    finished = tables.gathered.finish()
    overflowed = overflow_notes(tables.gathered.overflowed, source.label)
    return Trace(
        Source(
            format="xplane",
            files=(SourceFile(source.label, source.stored_bytes, source.text_bytes),),
            tool="XLA profiler",
            origin_unix_ns=tables.origin_unix_ns,
            event_counts=dict(sorted(tables.counts.items())),
            identities=(space.host,) if space.host else (),
        ),
        finished,
        (*_notes(space, tables, others), *overflowed),
        tables.gathered.places,
    )


def _is_other_device(plane: Plane) -> bool:
    return plane.name.startswith("/device:") and _GPU.match(plane.name) is None


def _nothing_read(source: ByteSource, space: Space, others: list[str]) -> InputError:
    place = source.path or source.label
    if space.is_cut:
        return InputError(f"cut off before its first whole plane: {place}", "copy it again")
    if others:
        return NotATrace(
            f"{place} is an XPlane file of another device than a GPU ({_listed(others)}), whose "
            "nested ops are not read",
            "open it in XProf (TensorBoard)",
        )
    return NotATrace(f"{place} is an XPlane file without events", "record while the GPU works")


def _listed(planes: list[str]) -> str:
    return ", ".join(re.sub(r"[^\w:/# .-]", "?", name)[:40] for name in planes[:4])


def _notes(space: Space, tables: _XplaneTables, others: list[str]) -> Iterator[Note]:
    lost = sum(plane.lost for plane in space.planes)
    if space.is_cut:
        yield _NOTES.note("input-cut")
    if lost:
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
        self._space = space
        self._python_stacks = python_stacks
        about = ProcessFacts(source.label, rank_in_name(source.name), host=space.host)
        self._process = self.gathered.process(0, about)

    def read(self) -> None:
        """Read all planes."""
        self._set_origin()
        for plane in self._space.planes:
            if gpu := _GPU.match(plane.name):
                self._add_gpu(plane, int(gpu[1]))
            elif _HOST.match(plane.name):
                for events in plane.events(plane.lines):
                    self._add_host(plane, events)

    def _set_origin(self) -> None:
        """Find when the recording began: older files count from 1970 in all times."""
        starts = [line.start_ns for plane in self._space.planes for line in plane.lines]
        known = [start for start in starts if start > _RECENT_NS]
        if known:
            self.origin_unix_ns = 0
        for plane in self._space.planes:
            if plane.name == _CALENDAR and not known:
                began = int(plane.about().numbers("profile_start_time")[0])
                self.origin_unix_ns = began if began > _RECENT_NS else None

    def _add_gpu(self, plane: Plane, number: int) -> None:
        device = self.gathered.device(number, self._process, number, _facts(plane.about()))
        lines = [line for line in plane.lines if _STREAM.match(line.name)]
        streams = np.array([int(_STREAM.findall(line.name)[0]) for line in lines], np.int64)
        for events in plane.events(lines):
            rows, stats = timed(events.rows, self.odd), events.stats
            kind = _kinds(plane, events)[rows["row"]]
            self.counts.update(
                {word: int(np.count_nonzero(kind == n)) for n, word in _WORK.items()}
            )
            for one in _WORK:
                work = rows.only(kind == one)
                place = self._place(plane, work, stats) | {"device": device}
                self._add_work(one, work, stats, place | {"stream": streams[work["line"]]})
        self.counts["derived"] += sum(len(x.begin) for x in plane.lines if x not in lines)
        for events in plane.events([line for line in plane.lines if line.name in _MARKED]):
            self._mark("gpu_annotation", plane, timed(events.rows, self.odd), device=device)

    def _place(self, plane: Plane, rows: Batch, stats: Stats) -> dict[str, Values]:
        """Return what all work has: process, name, launch, graph, the op of XLA."""
        row = rows["row"]
        numbers = ("correlation_id", "cuda_graph_id")
        correlation, graph = (stats.numbers(name)[row] for name in numbers)
        names = self.gathered["activities"].names["name"]
        return {
            "process": self._process,
            "name": _named(plane, rows, names),
            "correlation": correlation,
            "graph": graph,
            "annotation": self._ops(stats)[row],
        }

    def _ops(self, stats: Stats) -> IntArray:
        """Return the op of XLA that each event is of: module, op, and its path in the program."""
        columns = [stats.texts(name) for name in ("hlo_module", "hlo_op", "name")]
        found = np.stack([codes for codes, _ in columns], axis=1)
        distinct, place = np.unique(found, axis=0, return_inverse=True)
        names = self.gathered["activities"].names["annotation"]
        known = [[*texts, ""] for _, texts in columns]
        texts = [_op(*(known[n][code] for n, code in enumerate(row))) for row in distinct.tolist()]
        return np.array([names[text] if text else -1 for text in texts], np.int64)[
            place.reshape(-1)
        ]

    def _add_work(self, kind: int, rows: Batch, stats: Stats, place: dict[str, Values]) -> None:
        if kind == _GRAPH:
            Graphs(rows=rows, **place).add_to(self.gathered)
        elif kind == _KERNEL:
            sizes = _sizes(stats, "kernel_details", rows)
            Kernels(rows=rows, **place, **_launch(sizes)).add_to(self.gathered)
        else:
            word = _WORK[kind]
            names = [*self.gathered["activities"].names["name"]]
            Copies(
                rows=rows,
                **place,
                kind=word,
                way=by_distinct(place["name"], lambda code, _: _way(names[code])),
                bytes=_number(_sizes(stats, f"{word}_details", rows), "size"),
            ).add_to(self.gathered)

    def _add_host(self, plane: Plane, events: Events) -> None:
        rows = timed(events.rows, self.odd)
        thread = np.array([line.id for line in plane.lines], np.int64)
        kind = by_distinct(
            rows["name"], lambda key, _: _host_kind(plane.event_names.get(key, UNNAMED))
        )
        step = events.stats.numbers("step_num")[rows["row"]]
        is_step = (kind == _MARK) & (step != ABSENT)
        calls, frames, marks, steps = (
            rows.only(some)
            for some in (kind < _FRAMES, kind == _FRAMES, (kind == _MARK) & ~is_step, is_step)
        )
        self.counts.update(call=calls.count, python=frames.count, mark=marks.count + steps.count)
        table = self.gathered["calls"]
        Calls(
            rows=calls,
            process=self._process,
            thread=thread[calls["line"]],
            name=_named(plane, calls, table.names["name"]),
            correlation=events.stats.numbers("correlation_id")[calls["row"]],
            api=table.names["api"].codes(word for _, word in _APIS)[kind[kind < _FRAMES]],
        ).add_to(self.gathered)
        names = self.gathered["marks"].names["name"]
        if self._python_stacks:
            self._mark("python", plane, frames, thread=thread[frames["line"]])
        for some, name in (
            (marks, _named(plane, marks, names)),
            (steps, names.codes(_steps(plane, steps, step[is_step]))),
        ):
            place = {"process": self._process, "thread": thread[some["line"]]}
            Marks(rows=some, name=name, **place).add_to(self.gathered)

    def _mark(self, kind: str, plane: Plane, rows: Batch, **place: Values) -> None:
        table = self.gathered["marks"]
        table.add(
            rows.count,
            process=self._process,
            kind=table.names["kind"][kind],
            name=_named(plane, rows, table.names["name"]),
            start_ns=rows["start_ns"],
            dur_ns=rows["dur_ns"],
            **place,
        )


def _facts(about: Stats) -> DeviceFacts:
    """Return what a plane says of its GPU."""

    def number(name: str, factor: int = 1, most: int = 2**31) -> int | None:
        value = int(about.numbers(name)[0])
        return value * factor if 0 < value < most else None

    (code,), names = about.texts("gpu_device_name")
    return DeviceFacts(
        product=names[code] if code >= 0 else None,
        memory_bytes=number("memory_size", most=2**53),
        compute_major=number("compute_cap_major"),
        compute_minor=number("compute_cap_minor"),
        sm_count=number("core_count"),
        clock_hz=number("clock_rate", 1000),
    )


def _kinds(plane: Plane, events: Events) -> IntArray:
    """Return what the events of streams are: by their details, else by their names."""
    named = by_distinct(
        events.rows["name"],
        lambda key, _: next(
            (kind for sign, kind in _BY_NAME if sign.match(plane.event_names.get(key, ""))), _KERNEL
        ),
    )
    details = [(events.stats.has(name), kind) for name, kind in _BY_DETAILS]
    return np.select([has for has, _ in details], [kind for _, kind in details], named)


def _named(plane: Plane, rows: Batch, names: Names) -> IntArray:
    """Return the codes of the names of events."""
    known = plane.event_names
    return by_distinct(rows["name"], lambda key, _: names[_readable(known.get(key) or UNNAMED)])


def _readable(name: str) -> str:
    """Return a name; of a Python function, `$file.py:12 f` or `$module f`, as PyTorch writes it."""
    frame = _FRAME.match(name)
    if frame is None:
        return name
    file, line, _, function = frame.groups()
    return f"{file}({line}): {function}" if file else f"<built-in function {function}>"


def _steps(plane: Plane, rows: Batch, numbers: IntArray) -> Iterator[str]:
    """Give the names of steps, which were marked with a number (StepTraceAnnotation)."""
    for key, number in zip(rows["name"].tolist(), numbers.tolist(), strict=True):
        word = re.sub("[^A-Za-z]|step", "", plane.event_names.get(key, "")[:40], flags=re.I)
        yield f"{word} step {number}".strip()


def _host_kind(name: str) -> int:
    """Return the place of a call's API, else whether it is a Python function or a mark."""
    apis = (place for place, (sign, _) in enumerate(_APIS) if sign.match(name))
    return next(apis, _FRAMES if _FRAME.match(name) else _MARK)


def _op(module: str, op: str, path: str) -> str:
    named = "/".join(filter(None, (module, op)))
    return f"{named} ({path})" if named and path else named or path


def _way(name: str) -> int:
    """Return the place in WAYS of the direction of a copy: MemcpyH2D."""
    way = way_named(re.sub("(?<=[HDP])2(?=[HDP])", "to", name))
    return WAYS.index(way) if way in WAYS else -1


def _sizes(stats: Stats, name: str, rows: Batch) -> Sizes:
    """Return the numbers in a text of details: places of each event, numbers by name."""
    codes, texts = stats.texts(name)
    said = [
        {key: [int(one) for one in value.split(",")] for key, value in _DETAIL.findall(text[:1000])}
        for text in texts
    ]
    return codes[rows["row"]], [*said, {}]


def _number(sizes: Sizes, *names: str, most: int = 2**62) -> IntArray:
    """Return the sum of some of the numbers, ABSENT where there is none or it cannot be."""
    place, said = sizes
    sums = [sum(one[name][0] for name in names if name in one) for one in said]
    known = [any(name in one for name in names) for one in said]
    fits = zip(sums, known, strict=True)
    return np.array([n if is_known and n <= most else ABSENT for n, is_known in fits])[place]


def _launch(sizes: Sizes) -> dict[str, IntArray]:
    """Return the sizes of launches, in blocks and threads."""
    place, said = sizes
    found = {
        name: np.array(
            [one[name] if len(one.get(name, ())) == 3 else [ABSENT] * 3 for one in said]
        )[place]
        for name in ("grid", "block")
    }
    shared = ("static_shared", "dynamic_shared", "group_mem")
    return found | {
        "registers_per_thread": _number(sizes, "regs", most=_MOST_REGISTERS),
        "shared_memory_bytes": _number(sizes, *shared, most=_MOST_SHARED),
    }
