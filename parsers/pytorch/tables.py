"""Adds Kineto events to rows of the tables of a trace, one function per kind of event."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from traceflops.parsers.pytorch import values as convert
from traceflops.parsers.pytorch.events import CollectiveArgs
from traceflops.parsers.pytorch.merged_ranks import owner_codes
from traceflops.parsers.shared.sinks import direction_named
from traceflops.table.columns import ABSENT, Array, IntArray, Rows, narrow

_JSON_COLUMNS = ("input_dims", "input_types", "input_strides", "concrete_inputs")
_GENERATED = ("kernel_backend", "kernel_hash", "kernel_kwargs", "num_warps", "num_stages")
_OF_KERNELS = ("registers_per_thread", "shared_memory_bytes", "occupancy_percent")
_UNFINISHED = (False, "false", "False", 0)
_COLLECTIVE_TEXTS = (
    *("collective", "collective_dtype", "collective_group", "collective_group_ranks"),
    "collective_description",
)
_COLLECTIVE_NUMBERS = (
    *("collective_in_elements", "collective_out_elements", "collective_group_size"),
    *("collective_sequence", "collective_call", "collective_source", "collective_destination"),
)
"""The columns of a collective, which `CollectiveArgs` has."""


class Group(Struct):
    """Events of one category and phase, and the arguments of each."""

    events: list[Any]
    args: list[Any]

    def __len__(self) -> int:
        return len(self.events)

    def where(self, wanted: Sequence[bool]) -> Group:
        """Return the events for which `wanted` is true."""
        return Group(list(compress(self.events, wanted)), list(compress(self.args, wanted)))

    def parted(self, wanted: Sequence[bool]) -> tuple[Group, Group]:
        """Return the events for which `wanted` is true, and the others."""
        return self.where(wanted), self.where([not is_wanted for is_wanted in wanted])


class KinetoRows:
    """The rows of all tables of a block, and counts of odd events."""

    def __init__(self) -> None:
        """Begin without rows."""
        self.activities = Rows()
        self.calls = Rows()
        self.ops = Rows()
        self.marks = Rows()
        self.counters = Rows()
        self.odd: Counter[str] = Counter()
        """How many events were odd, by the code of the note on them."""

    def add_activities(self, group: Group, kind: str) -> None:
        """Add device work of one kind; the direction of copies follows from their texts."""
        timed, times = self._timed(group)
        args, table = timed.args, self.activities
        columns: dict[str, Array] = {}
        if kind == "memcpy":
            texts = [
                (convert.as_text(event.name), convert.as_text(a.kind))
                for event, a in zip(timed.events, args, strict=True)
            ]
            directions = [direction_named(name) or direction_named(text) for name, text in texts]
            columns["direction"] = convert.optional_codes(table.names["direction"], directions)
        sizes = _numbers(args, "bytes")
        is_negative = (sizes < 0) & (sizes != ABSENT)
        self.odd["negative-size"] += int(is_negative.sum())
        if not _all_none([a.name for a in args]):
            # Only nodes of graphs are annotated in this argument.
            labels = [a.name if a.graph_node > 0 else None for a in args]
            columns["annotation"] = convert.optional_codes(table.names["annotation"], labels)
        if not _all_none(stacks := [a.stack for a in args]):
            lines = map(convert.source_lines, stacks)
            columns["source"] = convert.optional_codes(table.names["source"], lines)
        stream, queue = _numbers(args, "stream"), _numbers(args, "queue")
        _add_named(
            table,
            timed,
            **times,
            device=_devices(timed),
            stream=convert.first_known(stream, _tids(timed), queue),
            kind=table.names["kind"][kind],
            external_id=_external_ids(args),
            bytes=np.where(is_negative, ABSENT, sizes),
            grid=convert.triples([a.grid for a in args]),
            block=convert.triples([a.block for a in args]),
            **_same_numbers(args, "correlation", "graph", "graph_node", *_OF_KERNELS),
            **columns,
            **_collective(table, args),
        )

    def add_calls(self, group: Group, api: str) -> None:
        """Add runtime or driver calls; those of HIP have their kernel's name and sizes."""
        timed, times = self._timed(group)
        table, args = self.calls, timed.args
        columns: dict[str, Array] = {}
        if not _all_none(kernels := [a.kernel for a in args]):
            sizes = [(None, None) if a.kernel is None else (a.grid, a.block) for a in args]
            columns["grid"], columns["block"] = map(convert.triples, zip(*sizes, strict=True))
            columns["kernel"] = convert.optional_codes(table.names["kernel"], kernels)
        _add_named(
            table,
            timed,
            **times,
            thread=_tids(timed),
            external_id=_external_ids(args),
            api=table.names["api"][api],
            **_same_numbers(args, "correlation"),
            **columns,
        )

    def add_ops(self, group: Group) -> None:
        """Add framework operators; their shapes and types stay JSON as recorded."""
        timed, times = self._timed(group)
        table, args = self.ops, timed.args
        flags, columns = [a.finished for a in args], dict[str, Array]()
        if not _all_none(flags):
            columns["finished"] = convert.integers(
                [None if flag is None else int(flag not in _UNFINISHED) for flag in flags]
            )
        for a in args:
            if a.old_input_dims:  # old files spell it so, and write [] for unknown sizes
                old = (a.old_input_dims, a.input_types)
                a.input_dims, a.input_types = (
                    text if bytes(text).strip(b"[] ") else msgspec.Raw(b"") for text in old
                )
        # Many operators have the same shapes: encode each distinct set of inputs only once. The
        # dictionary gives a new key the next number: inputs [A B A] -> input_number [0 1 0], so
        # first_row is [0 1]: `examples` has the arguments of one operator per number.
        number_of: defaultdict[bytes, int] = defaultdict()
        number_of.default_factory = number_of.__len__
        inputs = [
            b"\0".join((a.input_dims, a.input_types, a.input_strides, a.concrete_inputs))
            for a in args
        ]
        input_number = np.fromiter(map(number_of.__getitem__, inputs), np.int32, len(args))
        _, first_row = np.unique(input_number, return_index=True)
        examples = [args[row] for row in first_row.tolist()]
        for name in _JSON_COLUMNS:
            codes = convert.json_codes(table.names[name], [getattr(a, name) for a in examples])
            columns[name] = codes[input_number]
        if not _all_none([a.kernel_backend for a in args]):
            facts = map(_generated_kernel, args)
            names = table.names["generated_kernel"]
            columns["generated_kernel"] = convert.optional_codes(names, facts)
        _add_named(
            table,
            timed,
            **times,
            thread=_tids(timed),
            **_same_numbers(args, "external_id", "sequence", "forward_thread"),
            **columns,
            **_collective(table, args),
        )

    def add_host_marks(self, group: Group, kind: str) -> None:
        """Add named ranges of the host."""
        timed, times = self._timed(group)
        names, columns = self.marks.names, dict[str, Array]()
        if timed.args and hasattr(timed.args[0], "input_dims"):
            for name in ("input_dims", "input_types"):
                texts = [getattr(a, name) for a in timed.args]
                columns[name] = convert.json_codes(names[name], texts)
        _add_named(
            self.marks, timed, **times, kind=names["kind"][kind], thread=_tids(timed), **columns
        )

    def add_instants(self, group: Group) -> None:
        """Add instants: marks that are 0 ns long."""
        timed, times = self._timed(group, instant=True)
        kind = self.marks.names["kind"]["instant"]
        start = times["start_ns"]
        _add_named(self.marks, timed, start_ns=start, dur_ns=0, kind=kind, thread=_tids(timed))

    def add_device_marks(self, group: Group, kind: str) -> None:
        """Add annotations and waits on the device timeline; they are not work."""
        timed, times = self._timed(group)
        args, names = timed.args, self.marks.names
        _add_named(
            self.marks,
            timed,
            **times,
            kind=names["kind"][kind],
            device=_devices(timed),
            stream=convert.first_known(_numbers(args, "stream"), _tids(timed)),
            sync_kind=convert.optional_codes(names["sync_kind"], [a.sync_kind for a in args]),
            **_same_numbers(args, "correlation", "wait_stream", "wait_correlation"),
        )

    def add_python(self, group: Group) -> None:
        """Add python frames; those of an nn.Module are marks of kind module."""
        timed, times = self._timed(group)
        modules = _numbers(timed.args, "module")
        python, module = self.marks.names["kind"].codes(("python", "module"))
        _add_named(
            self.marks,
            timed,
            **times,
            kind=np.where(modules == ABSENT, python, module),
            thread=_tids(timed),
            python_id=_numbers(timed.args, "python_id"),
            python_parent=convert.integers([a.parent for a in timed.args]),
            python_module=modules,
        )

    def add_memory(self, group: Group) -> None:
        """Add changes and recorded totals of memory, in bytes, of the device or the host."""
        timed, times = self._timed(group, instant=True)
        args = timed.args
        is_on_device = _numbers(args, "device_type") > 0  # 0 is the CPU
        names = self.counters.names["name"]
        columns = {
            "process": _owners(self.counters, timed),
            "device": np.where(is_on_device, _numbers(args, "device"), ABSENT),
            "time_ns": times["start_ns"],
            "address": _numbers(args, "address"),
        }
        quantity_of = {"bytes": "change", "allocated": "allocated", "reserved": "reserved"}
        for field, quantity in quantity_of.items():
            values = _numbers(args, field)
            is_given = values != ABSENT
            places = {True: "device", False: "host"}  # by `is_on_device`
            label_of = {on: f"{place}_memory.{quantity}_bytes" for on, place in places.items()}
            _add(
                self.counters,
                int(is_given.sum()),
                **{n: c if isinstance(c, int) else c[is_given] for n, c in columns.items()},
                name=names.codes(map(label_of.__getitem__, is_on_device[is_given].tolist())),
                value=values[is_given].astype(np.float64),
            )

    def _timed(self, group: Group, instant: bool = False) -> tuple[Group, dict[str, IntArray]]:
        """Return the events with a valid start, and start_ns and dur_ns; count odd ones."""
        timed = group
        start_ns, has_start = convert.nanoseconds([event.ts for event in group.events])
        if not has_start.all():
            self.odd["no-time"] += int(np.count_nonzero(~has_start))
            timed, start_ns = group.where(has_start.tolist()), start_ns[has_start]
        dur_ns, has_dur = convert.nanoseconds([event.dur for event in timed.events])
        if not has_dur.all():
            self.odd["no-duration"] += 0 if instant else int(np.count_nonzero(~has_dur))
            dur_ns = np.where(has_dur, dur_ns, 0)
        if len(dur_ns) and int(dur_ns.min()) < 0:
            self.odd["negative-duration"] += int((dur_ns < 0).sum())
            dur_ns = np.maximum(dur_ns, 0)
        return timed, {"start_ns": start_ns, "dur_ns": dur_ns}


def _add(table: Rows, count: int, **columns: Array | int) -> None:
    """Add rows, without the columns that are null in all rows, which saves memory."""
    given: dict[str, Array | int] = {}
    for name, values in columns.items():
        if isinstance(values, int):
            given[name] = values
            continue
        null = -1 if values.dtype == np.int32 else ABSENT  # codes are int32
        if not len(values) or (values != null).any():
            given[name] = narrow(values)
    table.add(count, **given)


def _generated_kernel(args: Any) -> str | None:
    """Return the facts of a kernel that Inductor generated as JSON, None for other operators."""
    if args.kernel_backend is None:
        return None
    facts = {field: getattr(args, field) for field in _GENERATED}
    given = {field: value for field, value in facts.items() if value is not None}
    return msgspec.json.encode(given).decode()


def _add_named(table: Rows, group: Group, **columns: Array | int) -> None:
    """Add a row per event, with its name and owner."""
    names = [event.name for event in group.events]
    texts = names if set(map(type, names)) <= {str} else map(convert.as_text, names)
    name = table.names["name"].codes(texts)
    _add(table, len(group), process=_owners(table, group), name=name, **columns)


def _owners(table: Rows, group: Group) -> Array | int:
    """Return the codes of the owners of events (see `owner_codes`)."""
    ranks = _numbers(group.args, "rank")
    return owner_codes(table.names["process"], [event.pid for event in group.events], ranks)


def _numbers(args: Sequence[Any], field: str) -> IntArray:
    """Return a field of the arguments of each event as int64."""
    values = [*map(attrgetter(field), args)]
    # Fast: a default is the same object in all, so `count` only compares identities.
    if values[:1] == [ABSENT] and values.count(ABSENT) == len(values):
        return np.full(len(values), ABSENT, np.int64)
    return convert.typed_integers(values)


def _same_numbers(args: Sequence[Any], *fields: str) -> dict[str, IntArray]:
    """Return columns that have the same names as the arguments that fill them."""
    return {field: _numbers(args, field) for field in fields}


def _devices(group: Group) -> IntArray:
    """Return the device number of each event: its pid, else the argument `device`.

    With a rank in the arguments the argument comes first: the pid may be something else.
    """
    rank, device = _numbers(group.args, "rank"), _numbers(group.args, "device")
    pid = convert.trailing_integers([event.pid for event in group.events])
    return np.where(rank >= 0, convert.first_known(device, pid), convert.first_known(pid, device))


def _tids(group: Group) -> IntArray:
    return convert.trailing_integers([event.tid for event in group.events])


def _external_ids(args: Sequence[Any]) -> IntArray:
    return convert.first_known(_numbers(args, "external_id"), _numbers(args, "old_external_id"))


def _all_none(values: Sequence[object]) -> bool:
    return values.count(None) == len(values)


def _collective(table: Rows, args: Sequence[CollectiveArgs]) -> dict[str, Array]:
    """Return the columns of collectives; {} if no event of the group is a collective."""
    rows = [row for row, a in enumerate(args) if a.collective is not None]
    if not rows:
        return {}
    collectives = [args[row] for row in rows]
    columns: dict[str, Array] = {}
    for column in _COLLECTIVE_TEXTS:
        columns[column] = np.full(len(args), -1, np.int32)
        texts = [getattr(a, column) for a in collectives]
        columns[column][rows] = convert.optional_codes(table.names[column], texts)
    for column in _COLLECTIVE_NUMBERS:
        columns[column] = np.full(len(args), ABSENT)
        columns[column][rows] = _numbers(collectives, column)
    return columns
