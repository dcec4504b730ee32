"""The text of many events of rocprof's (v1) JSON into columns: what is done block by block.

Times are those in the arguments: the event's own are cut to microseconds, and some are made up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io import UNDECODABLE
from traceflops.parsers.pytorch import as_text, integer, integers
from traceflops.parsers.rocprof.layouts import counters_in
from traceflops.table import ABSENT, Array, IntArray, Rows

KERNEL: Final = "kernel"
"""A row of results.csv."""
WORK: Final = "operation"
COPY: Final = "copy"
FILL: Final = "fill"
BARRIER: Final = "barrier"
BARRIER_NAME: Final = "<barrier packet>"
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
    "pid": ("pid",),
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
