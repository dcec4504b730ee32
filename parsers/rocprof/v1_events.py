"""Turns blocks of the text of rocprof's (v1) JSON into columns, by kind of event.

Times come from the arguments of events: their own `ts` is cut to microseconds, or even made up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, product
from typing import Any, Final

import msgspec
import numpy as np

from traceflops.parsers.io.json_text import UNDECODABLE, list_decoder
from traceflops.parsers.pytorch.values import as_text, integer, integers
from traceflops.parsers.rocprof.layouts import counters_in
from traceflops.table.columns import ABSENT, Array, BoolArray, Rows
from traceflops.table.grouping import group_rows

KERNEL: Final = "kernel"
"""A row of results.csv."""
WORK: Final = "operation"
COPY: Final = "copy"
FILL: Final = "fill"
BARRIER: Final = "barrier"
BARRIER_NAME: Final = "<barrier packet>"
UNKNOWN_COMMAND: Final = "Unknown command type"
"""The HIP runtime's name for a marker in a queue, which lasts 0 ns and runs nothing."""
MARK: Final = "roctx"
CALLS: Final[Mapping[int, str]] = {2: "hip_api", 3: "hsa_api"}
ARROW_FROM: Final = "flow from"
ARROW_TO: Final = "flow to"
OTHER: Final = "other"
COUNTERS: Final = "counters"
"""Counters of the kernels of results.csv, in rows of their own: one per kernel."""
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
    "private": ("scr",),
}
"""The columns of numbers, and the arguments that have them in the various releases."""
_NAMES: Final = ("KernelName", "Name")


class V1Event(msgspec.Struct, gc=False):
    """One element of traceEvents; rocprof writes an empty one first."""

    ph: Any = None
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    id: Any = None
    args: dict[str, Any] | None = None


def doubles(rows: Mapping[str, Array]) -> BoolArray:
    """Return which operations to drop because the tracer wrote two records for one launch.

    The record to drop lasts 0 ns; another with the same GPU, queue, name and start does not.
    """
    is_empty: BoolArray = rows["start"] == rows["end"]
    if not is_empty.any():
        return is_empty
    group, first = group_rows([rows[name] for name in ("gpu", "queue", "name", "start")])
    has_duration = np.zeros(len(first), np.bool_)  # per group
    has_duration[group[~is_empty]] = True
    return np.asarray(is_empty & has_duration[group])


class V1Reader:
    """Reads blocks of text, also in worker processes.

    The columns section, lane and shown_us say where and when a viewer shows an event; arrows refer
    to these. Names are codes of `names["name"]`.
    """

    element = V1Event

    def read(self, text: bytes | memoryview) -> dict[str, Rows] | None:
        """Return the rows of a JSON list of events by kind, None if it cannot be decoded."""
        try:
            events: list[V1Event] = list_decoder(V1Event).decode(text)
        except UNDECODABLE:
            return None
        groups: defaultdict[str, list[V1Event]] = defaultdict(list)
        for event in events:
            groups[_kind(event)].append(event)
        groups.pop(OTHER, None)
        rows = {kind: Rows() for kind in groups}
        for kind, group in groups.items():
            columns: dict[str, Array] = {}
            if kind != BARRIER:  # barriers are only counted
                columns["section"] = integers([event.pid for event in group])
                columns["lane"] = integers([event.tid for event in group])
                # Times are whole microseconds, but some are written as floats: 1.0.
                times = [event.ts for event in group]
                times = [int(t) if t.__class__ is float and t == t // 1 else t for t in times]
                columns["shown_us"] = integers(times)
            if kind in (ARROW_FROM, ARROW_TO):
                columns["id"] = integers([event.id for event in group])
            elif kind != BARRIER:
                columns |= _arguments(rows[kind], [event.args or {} for event in group])
                if "pid" in columns:  # in ROCm 3 and 4, the number of the section
                    is_section = columns["pid"] == columns["section"]
                    columns["pid"] = np.where(is_section, ABSENT, columns["pid"])
            rows[kind].add(len(group), **columns)
        if KERNEL in groups:  # the other arguments of a kernel are its counters
            rows[COUNTERS] = Rows()
            args = [event.args or {} for event in groups[KERNEL]]
            rows[COUNTERS].add(len(args), **_counters(args))
        return rows


def _counters(args: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Return a column per counter and instance in the arguments of kernels; NaN for no value."""
    keys = list(dict.fromkeys(chain.from_iterable(args)))
    counters = [keys[index] for indices in counters_in(keys).values() for index in indices]
    values = {key: np.full(len(args), np.nan) for key in counters}
    for key, (row, words) in product(counters, enumerate(args)):
        if isinstance(value := words.get(key), str | int | float):
            with suppress(ValueError):
                values[key][row] = float(value)
    return values


def _kind(event: V1Event) -> str:
    """Return the kind of an event, by its arguments and its section, which its pid states."""
    args, section = event.args, integer(event.pid)
    if event.ph != "X" or args is None:
        # An arrow starts ("s") at a call, and steps ("t") or finishes ("f") at the work.
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


def _arguments(rows: Rows, args: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Return the columns of the arguments of events; names become codes of `rows`.

    A file is of one release: the first event tells which spelling of a key it uses.
    """
    first, columns = args[0], dict[str, Array]()
    for column, keys in NUMBERS.items():
        key = next((key for key in keys if key in first), keys[0])
        values = [words.get(key) for words in args]
        if values.count(None) < len(values):
            columns[column] = integers(values)
    columns["bytes"] = integers([_size(words) for words in args])
    key = next((key for key in _NAMES if key in first), _NAMES[-1])
    names = [unquoted(as_text(words.get(key))) for words in args]
    return columns | {"name": rows.names["name"].codes(names)}


def _size(args: Mapping[str, Any]) -> int | None:
    """Return the bytes of a copy from the text of an argument, None if no argument states them."""
    for key in ("Data", "args"):
        text = args.get(key)
        size = _SIZE.search(text) if isinstance(text, str) and text else None
        if size:
            return int(size[1])
    return None


def unquoted(name: str) -> str:
    """Return a name without the quotes that rocprof keeps around some."""
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name
