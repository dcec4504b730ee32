"""The text of many events of rocprof's (v1) JSON into columns, and columns into rows of a trace.

Times are those in the arguments: the event's own are cut to microseconds, and some are made up.
The database of v1 gives the same columns, called as in NUMBERS; `index` is the id that links work
and calls, `name` has places among `labels`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io import UNDECODABLE, Batch, by_distinct
from traceflops.parsers.pytorch import as_text, integer, integers
from traceflops.parsers.rocprof.copies import ways_named
from traceflops.parsers.rocprof.layouts import counters_in
from traceflops.parsers.rocprof.tables.counters import summed_instances
from traceflops.parsers.rocprof.trace import Recorded
from traceflops.parsers.rocprof.v1_processes import Owners
from traceflops.parsers.shared import (
    DISPATCH,
    NOTHING_KNOWN,
    Calls,
    Copies,
    DeviceFacts,
    Kernels,
    Marks,
    ProcessIds,
    add_queueing,
    at_least,
    timed,
    told_apart,
)
from traceflops.table import ABSENT, Array, IntArray, Rows

KERNEL: Final = "kernel"
"""A row of results.csv."""
WORK: Final = "operation"
COPY: Final = "copy"
FILL: Final = "fill"
BARRIER: Final = "barrier"
BARRIER_NAME: Final = "<barrier packet>"
UNKNOWN_COMMAND: Final = "Unknown command type"
"""What the HIP runtime calls a marker in a queue; it lasts 0 ns and runs nothing."""
MARK: Final = "roctx"
CALLS: Final[Mapping[int, str]] = {2: "hip_api", 3: "hsa_api"}
ARROW_FROM: Final = "flow from"
ARROW_TO: Final = "flow to"
OTHER: Final = "other"
COUNTERS: Final = "counters"
"""What was counted while the kernels of results.csv ran, in rows of their own."""

_MARKS: Final = 0
_COPIES: Final = 1
_FIRST_GPU: Final = 6
_COPY_NAME: Final = re.compile("Copy|async-copy")
_SIZE: Final = re.compile(r"(?:,Size=|sizeBytes\()(\d{1,18})\b")

NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "start": ("BeginNs",),
    "end": ("EndNs",),
    "queued": ("DispatchNs",),
    "gpu": ("gpu-id", "dev-id"),
    "queue": ("queue-id",),
    "pid": ("proc-id", "pid"),
    "thread": ("tid",),
    "threads": ("grd",),
    "block_threads": ("wgr",),
    "registers": ("arch_vgpr", "vgpr"),
    "shared": ("lds",),
}
"""What is read of the arguments, and under which names it stands there."""

_NAMES: Final = ("KernelName", "Name")


class V1Event(msgspec.Struct, gc=False):
    """One element of traceEvents; the first has nothing in it."""

    ph: Any = None
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    id: Any = None
    args: dict[str, Any] | None = None


class EventRows(Rows):
    """Events of one kind; their names are codes of `names["name"]`.

    `section`, `lane` and `shown_us` are where and when the viewer shows them; arrows lead there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.joined: dict[str, Array] = {}

    def join(self, null: float = ABSENT) -> None:
        """Put the pieces together; a column that one does not have is `null` there."""
        for name in dict.fromkeys(name for _, columns in self.pieces for name in columns):
            self.joined[name] = np.concatenate(
                [np.broadcast_to(columns.get(name, null), count) for count, columns in self.pieces]
            )
        self.pieces = []

    def column(self, name: str) -> Array:
        """Return a column of joined rows, ABSENT in all where the text has none."""
        return self.joined[name] if name in self.joined else np.full(self.count, ABSENT)

    def columns(self, names: Iterable[str]) -> dict[str, Array]:
        """Return several columns."""
        return {name: self.column(name) for name in names}


class V1Reader:
    """Reads blocks of text; this is what a process that helps with reading is given."""

    def check(self, text: bytes) -> int | None:
        """Return how many events a JSON list holds, None where it cannot be decoded."""
        try:
            return len(_DECODER.decode(text))
        except UNDECODABLE:
            return None

    def read(self, text: bytes | memoryview) -> dict[str, EventRows] | None:
        """Return the rows of a JSON list of events by kind, None where it cannot be decoded."""
        try:
            events = _DECODER.decode(text)
        except UNDECODABLE:
            return None
        groups: defaultdict[str, list[V1Event]] = defaultdict(list)
        for event in events:
            groups[_kind(event)].append(event)
        groups.pop(OTHER, None)
        rows = {kind: EventRows() for kind in groups}
        for kind, group in groups.items():
            _fill(rows[kind], kind, group)
        if KERNEL in groups:
            rows[COUNTERS] = EventRows()
            rows[COUNTERS].add(len(groups[KERNEL]), **_counters(groups[KERNEL]))
        return rows


_DECODER: Final = msgspec.json.Decoder(list[V1Event])


def _kind(event: V1Event) -> str:
    """Return what an event is: told by its arguments and by the section it is shown in."""
    args, section = event.args, integer(event.pid)
    if event.ph != "X" or args is None:
        is_arrow = event.cat == "DataFlow" and event.ph in ("s", "t", "f")
        return (ARROW_FROM if event.ph == "s" else ARROW_TO) if is_arrow else OTHER
    if "BeginNs" not in args:
        return OTHER
    if "KernelName" in args:
        return KERNEL
    if section in CALLS:
        return CALLS[section]
    name = as_text(args.get("Name"))
    if section == _COPIES:
        return COPY if _COPY_NAME.search(name) else FILL
    if section == _MARKS:
        return MARK
    if section >= _FIRST_GPU:
        return BARRIER if name.strip('"') == BARRIER_NAME else WORK
    return OTHER


def _fill(rows: EventRows, kind: str, events: Sequence[V1Event]) -> None:
    columns: dict[str, Array | int] = {}
    if kind != BARRIER:
        columns["section"] = integers([event.pid for event in events])
        columns["lane"] = integers([event.tid for event in events])
        columns["shown_us"] = _whole([event.ts for event in events])
    if kind in (ARROW_FROM, ARROW_TO):
        columns["id"] = integers([event.id for event in events])
    elif kind != BARRIER:
        columns |= _described(rows, [event.args or {} for event in events])
        if "pid" in columns:  # in ROCm 3 and 4, the number of the section
            columns["pid"] = np.where(columns["pid"] == columns["section"], ABSENT, columns["pid"])
    rows.add(len(events), **columns)


def _described(rows: EventRows, args: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Return what the arguments say."""
    first, columns = args[0], dict[str, Array]()
    for column, keys in NUMBERS.items():
        key = next((key for key in keys if key in first), keys[0])
        values = [words.get(key) for words in args]
        if values.count(None) < len(values):
            columns[column] = integers(values)
    columns["bytes"] = integers([_size(words) for words in args])
    key = next(key for key in _NAMES if key in first or key == _NAMES[-1])
    names = [unquoted(as_text(words.get(key))) for words in args]
    return columns | {"name": rows.names["name"].codes(names)}


def _whole(values: Sequence[Any]) -> IntArray:
    """Return times in whole microseconds, as numbers or text."""
    return integers([int(v) if v.__class__ is float and v == v // 1 else v for v in values])


def _size(args: Mapping[str, Any]) -> int | None:
    """Return the bytes of a copy, which are said by it or by the call that asked for it."""
    for key in ("Data", "args"):
        text = args.get(key)
        size = _SIZE.search(text) if isinstance(text, str) and text else None
        if size:
            return int(size[1])
    return None


def unquoted(name: str) -> str:
    """Return a name without the quotes that rocprof keeps around some."""
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name


def _counters(events: Sequence[V1Event]) -> dict[str, Array]:
    """Return the values of each counter by its name, with that of its instance; NaN for none."""
    args = [event.args or {} for event in events]
    keys = list(dict.fromkeys(chain.from_iterable(args)))
    counters = [keys[place] for places in counters_in(keys).values() for place in places]
    return {
        key: np.array([_value(words.get(key)) for words in args], dtype=np.float64)
        for key in counters
    }


def _value(value: object) -> float:
    try:
        return float(value) if isinstance(value, str | int | float) else np.nan
    except ValueError:
        return np.nan


_QUEUED: Final = "hsa_dispatch"
"""Not a call but the moment at which a kernel of results.csv was queued."""
_MARK_NS: Final = 1
"""rocprof writes an instant as a range of so much."""

Labels = Sequence[str]


class V1Tables(Recorded):
    """What is recorded of a file, on a machine with `listed` GPUs by their numbers.

    `gpus` are the numbers that are used; which of those listed `open_devices` are is open.
    """

    def __init__(self, file: str, listed: Mapping[int, DeviceFacts]) -> None:
        super().__init__()
        self._pids = ProcessIds(self, file)
        self._listed = listed
        self.gpus: set[int] = set()
        self.open_devices: set[int] = set()
        self.owners = Owners(np.empty(0, np.int64))

    def add_kernels(self, rows: Batch, labels: Labels) -> Batch:
        """Add kernels and the moments at which they were queued; return those with a time."""
        rows = timed(rows, self.odd)
        Kernels(
            rows=rows,
            **self._place(rows),
            stream=rows["queue"],
            name=self._names("activities", rows, labels),
            correlation=rows["index"],
            registers_per_thread=rows["registers"],
            shared_memory_bytes=rows["shared"],
        ).add_to(self)
        some = rows.only(rows["queued"] > 0)
        process = self._process(some)
        add_queueing(self, some["queued"], some["thread"], some["index"], process)
        return rows

    def add_copies(self, rows: Batch, labels: Labels, kind: Callable[[str], str]) -> Batch:
        """Add copies and fills, whose names tell the kind; return those with a time."""
        rows = timed(rows, self.odd)
        kinds = self["activities"].names["kind"].codes(map(kind, labels))
        Copies(
            rows=rows,
            **self._place(rows),
            stream=rows["queue"],
            kind=kinds[rows["name"]],
            name=self._names("activities", rows, labels),
            correlation=rows["index"],
            bytes=rows["bytes"],
            way=ways_named(labels)[rows["name"]],
        ).add_to(self)
        return rows

    def add_calls(self, rows: Batch, labels: Labels, api: str) -> Batch:
        """Add calls of an API, except for queueing that is known already; return what is used."""
        if DISPATCH in self["calls"].names["name"]:
            rows = without(_QUEUED, rows, labels)
        timed_rows = timed(rows, self.odd)
        Calls(
            rows=timed_rows,
            process=self._process(timed_rows),
            thread=timed_rows["thread"],
            name=self._names("calls", timed_rows, labels),
            correlation=timed_rows["index"],
            api=api,
        ).add_to(self)
        return rows

    def add_marks(self, rows: Batch, labels: Labels) -> None:
        """Add ranges and marks of the program."""
        rows = timed(rows, self.odd)
        Marks(
            rows=rows,
            process=self._process(rows),
            thread=rows["thread"],
            name=self._names("marks", rows, labels),
            instant_ns=_MARK_NS,
        ).add_to(self)

    def add_counters(self, rows: Batch, labels: Labels, counters: Mapping[str, Array]) -> None:
        """Add counters; of one whose instances have columns of their own, under its name."""
        table = self["kernel_counters"]
        for counter, values in counters.items():
            known = np.isfinite(values)
            some = rows.only(known)
            table.add(
                some.count,
                **self._place(some),
                name=self._names("kernel_counters", some, labels),
                dispatch=some["index"],
                correlation=some["index"],
                threads=at_least(1, some["threads"]),
                block_threads=at_least(1, some["block_threads"]),
                counter=table.names["counter"][counter.split("[")[0]],
                value=values[known],
            )

    def sum_instances(self) -> None:
        """Add up the counters of instances: all are known."""
        table = self["kernel_counters"]
        self.tables["kernel_counters"], self.odd["instances"] = summed_instances(table)

    def _place(self, rows: Batch) -> dict[str, IntArray]:
        process = self._process(rows)
        device = by_distinct(rows["gpu"], lambda gpu, row: self._gpu(gpu, int(process[row])))
        return {"process": process, "device": device}

    def _process(self, rows: Batch) -> IntArray:
        return self._pids.numbers(self.owners.named(rows["pid"], rows["thread"]))

    def _gpu(self, gpu: int, process: int) -> int:
        """Return the number of a device; work that names none is of the only one, or of 0."""
        if gpu == ABSENT:
            self.odd["device-unknown"] += 1
            gpu = min(self.gpus) if len(self.gpus) == 1 else 0
        gpu = told_apart(self.gpus, gpu, -1)
        # A number that is no GPU's is one of them, and they may be all alike.
        alike = {self._listed[gpu]} if gpu in self._listed else set(self._listed.values())
        if len(alike) > 1:
            self.open_devices.add(gpu)
        return self.device(gpu, process, gpu, alike.pop() if len(alike) == 1 else NOTHING_KNOWN)

    def _names(self, table: str, rows: Batch, labels: Labels) -> Array:
        return self[table].names["name"].codes(labels)[rows["name"]]


def without(name: str, rows: Batch, labels: Labels) -> Batch:
    """Return the rows of other names."""
    return rows.only(rows["name"] != labels.index(name)) if name in labels else rows


def without_markers(rows: Batch, labels: Labels) -> Batch:
    """Return the operations that ran something: no barriers and no markers of 0 ns."""
    rows = without(BARRIER_NAME, rows, labels)
    if UNKNOWN_COMMAND not in labels:
        return rows
    named = rows["name"] == labels.index(UNKNOWN_COMMAND)
    return rows.only(~named | (rows["start"] != rows["end"]))
