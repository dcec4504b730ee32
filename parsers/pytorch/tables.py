"""Kineto events into the declared tables, one method per kind of event."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from traceflops.builder import ABSENT, Array, TableBuilder
from traceflops.columns import IntArray
from traceflops.parsers.jsontext import UNDECODABLE, valid_utf8
from traceflops.parsers.pytorch.events import (
    CallArgs,
    CollectiveArgs,
    DeviceArgs,
    Event,
    ExactEvent,
    MemoryArgs,
    OpArgs,
    PythonArgs,
)
from traceflops.parsers.pytorch.values import (
    JsonTexts,
    as_text,
    integers,
    name_codes,
    nanoseconds,
    optional_codes,
    trailing_integers,
    triples,
)

A = TypeVar("A", bound=msgspec.Struct)
Events = Sequence[Event | ExactEvent]

_JSON_COLUMNS = ("input_dims", "input_types", "input_strides", "concrete_inputs")
_GENERATED = ("kernel_backend", "kernel_hash", "kernel_kwargs", "num_warps", "num_stages")
_DIRECTIONS = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")
_ROCM_DIRECTIONS = {
    "CopyHostToDevice": "HtoD",
    "HostToDevice": "HtoD",
    "CopyDeviceToHost": "DtoH",
    "DeviceToHost": "DtoH",
    "CopyDeviceToDevice": "DtoD",
    "DeviceToDevice": "DtoD",
}


class ArgsReader:
    """Decodes the arguments of many events in one call; counts those that are no object."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.mended = 0
        self._decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}

    def read(self, events: Events, args_type: type[A]) -> list[A]:
        """Return the arguments of each event; an event without any has all of them absent."""
        texts = [bytes(event.args) or b"{}" for event in events]
        try:
            decoded: list[A] = self._decoder(args_type).decode(b"[" + b",".join(texts) + b"]")
            return decoded
        except UNDECODABLE:
            return [self._one(text, args_type) for text in texts]

    def _decoder(self, args_type: type[A]) -> msgspec.json.Decoder[list[A]]:
        if args_type not in self._decoders:
            list_type: Any = list.__class_getitem__(args_type)
            self._decoders[args_type] = msgspec.json.Decoder(list_type)
        return self._decoders[args_type]

    def _one(self, text: bytes, args_type: type[A]) -> A:
        if text == b"null":
            return args_type()
        # The decoder checks UTF-8 only in the fields that it builds, so it may fail only here.
        for candidate in (text, valid_utf8(text)):
            try:
                args: A = self._decoder(args_type).decode(b"[" + candidate + b"]")[0]
            except UNDECODABLE:
                continue
            self.mended += candidate != text
            return args
        self.unreadable += 1
        return args_type()


class KinetoTables:
    """Collects the rows of all tables of one file (one process)."""

    def __init__(self) -> None:
        self.activities = TableBuilder("activities")
        self.calls = TableBuilder("calls")
        self.ops = TableBuilder("ops")
        self.marks = TableBuilder("marks")
        self.counters = TableBuilder("counters")
        self.args = ArgsReader()
        self._json = {name: JsonTexts(self.ops.names[name]) for name in _JSON_COLUMNS}
        self.timeless = 0
        self.unended = 0
        self.negative = 0
        self.pids: dict[int, int] = {}

    def add_activities(self, kind: str, events: Events) -> None:
        """Add device work of one kind."""
        events, start, dur = self._timed(events)
        args = self.args.read(events, DeviceArgs)
        table = self.activities
        code = table.names["kind"][kind]
        names = [as_text(event.name) for event in events]
        table.add(
            len(events),
            process=0,
            device=_first_known(_pids(events), _ints(args, "device")),
            stream=_first_known(_ints(args, "stream"), _tids(events), _ints(args, "queue")),
            kind=np.full(len(events), code, np.int32),
            name=table.names["name"].codes(names),
            start_ns=start,
            dur_ns=dur,
            correlation=_ints(args, "correlation"),
            external_id=_first_known(_ints(args, "external_id"), _ints(args, "old_external_id")),
            graph=_ints(args, "graph"),
            graph_node=_ints(args, "graph_node"),
            bytes=_ints(args, "bytes"),
            direction=optional_codes(
                table.names["direction"],
                [_direction(kind, n, a.kind) for n, a in zip(names, args, strict=True)],
            ),
            grid=triples([a.grid for a in args]),
            block=triples([a.block for a in args]),
            registers_per_thread=_ints(args, "registers"),
            shared_memory_bytes=_ints(args, "shared_memory"),
            occupancy_percent=_ints(args, "occupancy"),
            **_collective(table, args),
        )

    def add_calls(self, api: str, events: Events) -> None:
        """Add runtime or driver calls."""
        events, start, dur = self._timed(events)
        args = self.args.read(events, CallArgs)
        table = self.calls
        self._count_pids(events)
        table.add(
            len(events),
            process=0,
            thread=_tids(events),
            name=name_codes(table.names["name"], [e.name for e in events]),
            start_ns=start,
            dur_ns=dur,
            correlation=_ints(args, "correlation"),
            external_id=_first_known(_ints(args, "external_id"), _ints(args, "old_external_id")),
            api=np.full(len(events), table.names["api"][api], np.int32),
        )

    def add_ops(self, events: Events) -> None:
        """Add framework operators with their shapes as recorded."""
        events, start, dur = self._timed(events)
        args = self.args.read(events, OpArgs)
        table, json = self.ops, self._json
        self._count_pids(events)
        table.add(
            len(events),
            process=0,
            thread=_tids(events),
            name=name_codes(table.names["name"], [e.name for e in events]),
            start_ns=start,
            dur_ns=dur,
            external_id=_ints(args, "external_id"),
            sequence=_ints(args, "sequence"),
            forward_thread=_ints(args, "forward_thread"),
            input_dims=json["input_dims"].codes([a.input_dims for a in args]),
            input_types=json["input_types"].codes([a.input_types for a in args]),
            input_strides=json["input_strides"].codes([a.input_strides for a in args]),
            concrete_inputs=json["concrete_inputs"].codes([a.concrete_inputs for a in args]),
            finished=_flags([a.finished for a in args]),
            generated_kernel=optional_codes(
                table.names["generated_kernel"], [_generated(a) for a in args]
            ),
            **_collective(table, args),
        )

    def add_host_marks(self, kind: str, events: Events) -> None:
        """Add named ranges of the host."""
        events, start, dur = self._timed(events)
        self._add_marks(kind, events, start, dur)

    def add_instants(self, events: Events) -> None:
        """Add instants: marks that are 0 ns long."""
        events, start, _ = self._timed(events, instant=True)
        self._add_marks("instant", events, start, np.zeros(len(events), np.int64))

    def add_device_marks(self, kind: str, events: Events) -> None:
        """Add annotations and waits on the device timeline; they are never work."""
        events, start, dur = self._timed(events)
        args = self.args.read(events, DeviceArgs)
        self._add_marks(
            kind,
            events,
            start,
            dur,
            device=_first_known(_pids(events), _ints(args, "device")),
            stream=_first_known(_ints(args, "stream"), _tids(events)),
            correlation=_ints(args, "correlation"),
            sync_kind=optional_codes(self.marks.names["sync_kind"], [a.sync_kind for a in args]),
            wait_stream=_ints(args, "wait_stream"),
            wait_correlation=_ints(args, "wait_correlation"),
        )

    def add_python(self, events: Events) -> None:
        """Add python frames; those of an nn.Module are marks of kind module."""
        events, start, dur = self._timed(events)
        args = self.args.read(events, PythonArgs)
        modules = _ints(args, "module")
        kinds = self.marks.names["kind"]
        python, module = kinds["python"], kinds["module"]
        self._add_marks(
            "python",
            events,
            start,
            dur,
            kind_codes=np.where(modules == ABSENT, python, module).astype(np.int32),
            python_id=_ints(args, "python_id"),
            python_parent=_ints(args, "parent"),
            python_module=modules,
        )

    def add_memory(self, events: Events) -> None:
        """Add allocations and releases: the change and, where recorded, the running totals."""
        events, start, _ = self._timed(events, instant=True)
        args = self.args.read(events, MemoryArgs)
        on_device = _ints(args, "device_type") > 0
        device = np.where(on_device, _ints(args, "device"), ABSENT)
        address = _ints(args, "address")
        names = self.counters.names["name"]
        for field, what in (
            ("bytes", "change_bytes"),
            ("allocated", "allocated_bytes"),
            ("reserved", "reserved_bytes"),
        ):
            values = _ints(args, field)
            known = values != ABSENT
            of_device = [f"{'device' if on else 'host'}_memory.{what}" for on in on_device[known]]
            self.counters.add(
                int(known.sum()),
                process=0,
                device=device[known],
                name=names.codes(of_device),
                time_ns=start[known],
                value=values[known].astype(np.float64),
                address=address[known],
            )

    def _add_marks(
        self, kind: str, events: Events, start: IntArray, dur: IntArray, **columns: Array
    ) -> None:
        table = self.marks
        rows: dict[str, Array] = {
            "kind": np.full(len(events), table.names["kind"][kind], np.int32),
            "thread": _tids(events),
            "name": name_codes(table.names["name"], [e.name for e in events]),
            "start_ns": start,
            "dur_ns": dur,
        }
        if "kind_codes" in columns:
            rows["kind"] = columns.pop("kind_codes")
        if "device" in columns:
            rows["thread"] = np.full(len(events), ABSENT, np.int64)
        table.add(len(events), process=0, **(rows | columns))

    def _timed(self, events: Events, instant: bool = False) -> tuple[Events, IntArray, IntArray]:
        """Return the events that have a time, their starts and durations."""
        start, known = nanoseconds([event.ts for event in events])
        if not known.all():
            self.timeless += int(len(known) - known.sum())
            events = [event for event, ok in zip(events, known, strict=True) if ok]
            start = start[known]
        dur, has_dur = nanoseconds([event.dur for event in events])
        if not has_dur.all():
            self.unended += 0 if instant else int(len(has_dur) - has_dur.sum())
            dur = np.where(has_dur, dur, 0)
        if len(dur) and int(dur.min()) < 0:
            self.negative += int((dur < 0).sum())
            dur = np.maximum(dur, 0)
        return events, start, dur

    def _count_pids(self, events: Events) -> None:
        for pid, count in zip(*np.unique(_pids(events), return_counts=True), strict=True):
            self.pids[int(pid)] = self.pids.get(int(pid), 0) + int(count)


def _pids(events: Events) -> IntArray:
    return trailing_integers([event.pid for event in events])


def _tids(events: Events) -> IntArray:
    return trailing_integers([event.tid for event in events])


def _ints(args: Sequence[msgspec.Struct], field: str) -> IntArray:
    return integers(list(map(attrgetter(field), args)))


def _first_known(first: IntArray, *others: IntArray) -> IntArray:
    """Return, row by row, the first value that is not ABSENT."""
    for other in others:
        first = np.where(first == ABSENT, other, first)
    return first


def _flags(values: Sequence[object]) -> IntArray:
    if not any(value is not None for value in values):
        return np.full(len(values), ABSENT, np.int64)
    flags = [ABSENT if v is None else int(v not in (False, "false", "False", 0)) for v in values]
    return np.array(flags, dtype=np.int64)


def _collective(table: TableBuilder, args: Sequence[CollectiveArgs]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of collective metadata; {} where no event of the block has any."""
    if not any(a.collective is not None for a in args):
        return {}
    real = [a if a.collective is not None else _NO_COLLECTIVE for a in args]

    def texts(field: str, column: str) -> npt.NDArray[np.int32]:
        return optional_codes(table.names[column], [getattr(a, field) for a in real])

    return {
        "collective": texts("collective", "collective"),
        "collective_dtype": texts("dtype", "collective_dtype"),
        "collective_in_elements": _ints(real, "in_elements"),
        "collective_out_elements": _ints(real, "out_elements"),
        "collective_group": texts("group", "collective_group"),
        "collective_group_size": _ints(real, "group_size"),
        "collective_group_ranks": texts("group_ranks", "collective_group_ranks"),
    }


_NO_COLLECTIVE = CollectiveArgs()


def _generated(args: OpArgs) -> str | None:
    if args.kernel_backend is None:
        return None
    facts = {field: getattr(args, field) for field in _GENERATED}
    return msgspec.json.encode({k: v for k, v in facts.items() if v is not None}).decode()


def _direction(kind: str, name: str, rocm_kind: object) -> str | None:
    """Return the direction of a copy from its name or from what ROCm says."""
    if kind != "memcpy":
        return None
    for word in _DIRECTIONS:
        if word in name:
            return word
    for text in (name, str(rocm_kind)):
        if text in _ROCM_DIRECTIONS:
            return _ROCM_DIRECTIONS[text]
    return None
