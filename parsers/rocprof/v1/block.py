"""The text of many events of rocprof's (v1) JSON into columns: what is done block by block.

Times are those in the arguments: the event's own are cut to microseconds, and some are made up.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io import UNDECODABLE
from traceflops.parsers.pytorch import as_text, integer, integers
from traceflops.parsers.rocprof.layouts import counters_in
from traceflops.table import Array, IntArray, Names

KERNEL: Final = "kernel"
"""A row of results.csv."""
WORK: Final = "operation"
COPY: Final = "copy"
FILL: Final = "fill"
BARRIER: Final = "barrier"
MARK: Final = "roctx"
CALLS: Final[Mapping[int, str]] = {2: "hip_api", 3: "hsa_api"}
ARROW_FROM: Final = "flow from"
ARROW_TO: Final = "flow to"
OTHER: Final = "other"

_MARKS: Final = 0
_COPIES: Final = 1
_FIRST_GPU: Final = 6
_COPY_NAME: Final = re.compile("Copy|async-copy")
_BARRIER_NAME: Final = "<barrier packet>"
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


@dataclass(slots=True)
class V1Rows:
    """Events of one kind: numbers by column, and codes of their names.

    `section`, `lane` and `shown_us` are where and when the viewer shows them; arrows lead there.
    """

    count: int = 0
    columns: dict[str, Array] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    counters: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class V1Block:
    """What a block of events gives."""

    rows: dict[str, V1Rows] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class V1Reader:
    """Reads blocks of text; this is what a process that helps with reading is given."""

    def check(self, text: bytes) -> int | None:
        """Return how many events a JSON list holds, None where it cannot be decoded."""
        try:
            return len(_DECODER.decode(text))
        except UNDECODABLE:
            return None

    def read(self, text: bytes | memoryview) -> V1Block | None:
        """Return the rows of a JSON list of events, None where it cannot be decoded."""
        try:
            events = _DECODER.decode(text)
        except UNDECODABLE:
            return None
        groups: defaultdict[str, list[V1Event]] = defaultdict(list)
        for event in events:
            groups[_kind(event)].append(event)
        block = V1Block()
        for kind, group in groups.items():
            block.counts[kind] += len(group)
            if kind in (ARROW_FROM, ARROW_TO):
                block.rows[kind] = V1Rows(len(group), _places(group, with_ids=True))
            elif kind not in (BARRIER, OTHER):
                block.rows[kind] = _rows(group)
        del block.counts[OTHER]
        return block


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
        return BARRIER if name.strip('"') == _BARRIER_NAME else WORK
    return OTHER


def _rows(events: Sequence[V1Event]) -> V1Rows:
    args = [event.args or {} for event in events]
    rows = V1Rows(len(events), _places(events))
    first = args[0]
    for column, keys in NUMBERS.items():
        key = next((key for key in keys if key in first), keys[0])
        values = [one.get(key) for one in args]
        if values.count(None) < len(values):
            rows.columns[column] = integers(values)
    rows.columns["bytes"] = integers([_size(one) for one in args])
    key = _NAMES[0] if _NAMES[0] in first else _NAMES[1]
    rows.columns["name"] = rows.names.codes([unquoted(as_text(one.get(key))) for one in args])
    if key == _NAMES[0]:
        rows.counters = _counters(args)
    return rows


def _places(events: Sequence[V1Event], *, with_ids: bool = False) -> dict[str, Array]:
    columns: dict[str, Array] = {
        "section": integers([event.pid for event in events]),
        "lane": integers([event.tid for event in events]),
        "shown_us": _whole([event.ts for event in events]),
    }
    return columns | ({"id": integers([event.id for event in events])} if with_ids else {})


def _whole(values: Sequence[Any]) -> IntArray:
    """Return times in whole microseconds, as numbers or text."""
    return integers(
        [int(one) if one.__class__ is float and one == one // 1 else one for one in values]
    )


def _size(args: Mapping[str, Any]) -> int | None:
    """Return the bytes of a copy, which are said by it or by the call that asked for it."""
    for key in ("Data", "args"):
        text = args.get(key)
        found = _SIZE.search(text) if isinstance(text, str) and text else None
        if found:
            return int(found[1])
    return None


def unquoted(name: str) -> str:
    """Return a name without the quotes that rocprof keeps around some."""
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name


def _counters(args: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Return the values of each counter by its name, with that of its instance; NaN for none."""
    keys = list(dict.fromkeys(chain.from_iterable(args)))
    places = chain.from_iterable(counters_in(keys).values())
    return {
        keys[place]: np.array([_value(one.get(keys[place])) for one in args], dtype=np.float64)
        for place in places
    }


def _value(value: object) -> float:
    try:
        return float(value) if isinstance(value, str | int | float) else np.nan
    except ValueError:
        return np.nan
