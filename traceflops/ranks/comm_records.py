"""What each rank recorded of its communication: a row per kernel, with kind, group and size.

The kind is that of the kernel's own metadata or its launching operator, else of the annotation
around its launch, else of its name; sends and receives launched before the recording are as others
of their name, or as other sends and receives of their stream. Kernels of no named group form one
per stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.marks import host_marks, innermost_mark, instants
from traceflops.ranks.collectives import KINDS, Recorded, annotated_inputs, kinds_of, message_bytes
from traceflops.ranks.comm_groups import (
    NO_FACTS,
    POINT_TO_POINT,
    CommGroup,
    GroupFacts,
    joined_facts,
    of_streams,
    peers,
    rank_labels,
)
from traceflops.table.columns import ABSENT, BoolArray, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import group_rows
from traceflops.table.grouping import groups as groups_of
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Window

T = TypeVar("T")
_INPUT_IS_WHOLE: Final = frozenset(
    {"all_reduce", "reduce_scatter", "all_to_all", "broadcast", "reduce"}
)
"""Collectives whose message is what a rank puts in."""
_GROUP_TEXTS: Final = ("group", "group_ranks", "description")
SEND, RECV, EXCHANGE = (KINDS.index(kind) for kind in ("send", "recv", "send_recv"))
_SIDES: Final = (SEND, RECV)
_COLUMNS: Final = (
    *("row", "kind", "sequence", "elements", "received", "bytes", "step"),
    *("start_ns", "end_ns", "busy_ns"),
)
_RANGE: Final = re.compile(r"(?:nccl|rccl|c10d|gloo)::?(?=[a-z_])")
"""How frameworks begin the names of annotations and operators of a collective."""


class CommRecords(Struct, frozen=True, dict=True):
    """Kernels of communication of all ranks, by rank and start; numbers that are absent are ABSENT.

    `devices` are those of the ranks. `place` is the rank's place in `ranks`; `kind` is a place in
    KINDS or -1, `group` in `groups`; `peer` is the place of the rank that a send is to or a receive
    is from, -1 where it is not known, and for other kinds. `elements` are put in, `received` got.
    `busy_ns` is how long the device had worked (communication apart) before the end, counted from
    its first activity. `step` is the number of the step in which it starts. `alone` has, by
    rank, when exactly one activity ran on it, `work` when any did but communication. Where it has
    been made compact both are known during its own kernels only, `row` not at all; `lacks_work`
    says that work beside sends and receives is missing so.
    """

    ranks: tuple[int, ...]
    devices: tuple[int, ...]
    groups: tuple[CommGroup, ...]
    alone: tuple[Intervals, ...]
    place: IntArray
    row: IntArray
    kind: IntArray
    group: IntArray
    peer: IntArray
    sequence: IntArray
    elements: IntArray
    received: IntArray
    bytes: IntArray
    step: IntArray
    start_ns: IntArray
    end_ns: IntArray
    busy_ns: IntArray
    work: tuple[Intervals, ...] = ()
    told: GroupFacts = NO_FACTS
    lacks_work: bool = False

    @cached_property
    def dur_ns(self) -> IntArray:
        """Return how long each kernel ran."""
        return self.end_ns - self.start_ns

    @cached_property
    def is_pair(self) -> BoolArray:
        """Return which kernels are one side of a send and its receive."""
        return np.isin(self.kind, _SIDES)

    def __len__(self) -> int:
        return len(self.row)

    def first(self, most: int) -> CommRecords:
        """Return the records with only the first `most` kernels of each rank."""
        first = [own[:most] for _, own in groups_of(self.place)]
        rows = np.concatenate([np.empty(0, dtype=np.int64), *first])
        names = ("place", "group", "peer", *_COLUMNS)
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **columns, told=self.told.taken(rows))

    def compact(self, *, keeps_work: bool = False) -> CommRecords:
        """Return the records in less memory: `alone` and `work` cut to their kernels, without rows.

        Pipelines need all work of ranks that send. With `keeps_work` such records keep it; else
        they say that they lack it.
        """
        of_rank = [self.place == place for place in range(len(self.ranks))]
        running = [Intervals.of(self.start_ns[rows], self.end_ns[rows]) for rows in of_rank]
        alone, work = (
            tuple(spans.intersect(own) for spans, own in zip(by_rank, running, strict=False))
            for by_rank in (self.alone, self.work)
        )
        sends, row = bool(self.is_pair.any()), np.full_like(self.row, ABSENT)
        if sends and keeps_work:
            return replace(self, alone=alone, row=row)
        return replace(self, alone=alone, work=work, row=row, lacks_work=sends)

    def moved(self, by_ns: int, devices: int) -> CommRecords:
        """Return the records `by_ns` later, their device numbers raised by `devices`."""
        return replace(
            self,
            devices=tuple(device + devices for device in self.devices),
            alone=tuple(spans.moved(by_ns) for spans in self.alone),
            work=tuple(spans.moved(by_ns) for spans in self.work),
            start_ns=self.start_ns + by_ns,
            end_ns=self.end_ns + by_ns,
        )


def comm_records(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    windows: Mapping[int, tuple[Window, ...]],
) -> CommRecords:
    """Return the kernels of communication on all devices over everything recorded."""
    trace = linked.trace
    devices = sorted(accounts, key=lambda device: (_rank(trace, device), device))
    kernels = is_one_of(trace.activities["kind"], "kernel")
    work, worked = [], [accounts[device].rows for device in devices]
    parts = [np.empty((6, 0), np.int64)]
    for number, (device, rows) in enumerate(zip(devices, worked, strict=True)):
        is_comm = is_top(linked.categorised, "communication", rows.row)
        work.append(Intervals.of(rows.start_ns[~is_comm], rows.end_ns[~is_comm]))
        is_collective = is_comm & kernels[rows.row]
        start, end = rows.start_ns[is_collective], rows.end_ns[is_collective]
        steps = sorted(
            (w.start_ns, w.end_ns, w.step) for w in windows[device] if w.step is not None
        )
        starts, ends, step = np.array([*steps, (0, 0, 0)], dtype=np.int64).T
        last = np.searchsorted(starts[:-1], start, side="right") - 1
        step_of = np.where((last >= 0) & (start < ends[last]), step[last], ABSENT)
        busy = work[-1].covered_before(end)
        columns = (rows.row[is_collective], np.full_like(start, number), start, end, busy, step_of)
        parts.append(np.stack(columns))
    row, place, start, end, busy, step = np.concatenate(parts, axis=1)
    facts = _Facts(linked, row)
    ranks = rank_labels([_rank(trace, device) for device in devices])
    kind = facts.kind(place)
    elements, size = facts.sizes(kind)
    told = facts.groups(kind)
    return CommRecords(
        ranks=ranks,
        devices=tuple(devices),
        alone=tuple(alone(rows.start_ns, rows.end_ns) for rows in worked),
        place=place,
        row=row,
        kind=kind,
        sequence=facts.told.sequence(),
        elements=elements,
        received=facts.told.numbers("collective_out_elements"),
        bytes=size,
        step=step,
        start_ns=start,
        end_ns=end,
        busy_ns=busy,
        work=tuple(work),
        told=told,
        **_grouped(told, kind, place, ranks),
    )


def communication_kinds(linked: LinkedTrace) -> IntArray:
    """Return the kind of each activity's collective, a place in KINDS; -1: none or not known."""
    activities = linked.trace.activities
    rows = np.arange(activities.num_rows)
    is_communication = is_one_of(activities["kind"], "kernel") & is_top(
        linked.categorised, "communication", rows
    )
    row, kind = rows[is_communication], np.full(len(rows), -1, dtype=np.int64)
    kind[row] = _Facts(linked, row).kind(numbers(activities["device"], ABSENT)[row])
    return kind


def joined(parts: Sequence[CommRecords], trace: Trace) -> CommRecords:
    """Return the records of several recordings as one, by rank.

    The recordings share a clock and no device. `trace` holds all of them; it tells the ranks.
    """
    devices = [device for part in parts for device in part.devices]
    own = [rank for part in parts for rank in part.ranks]
    rank = [_rank(trace, device) for device in devices] if devices else own
    order = np.argsort(np.array(rank, dtype=np.int64), kind="stable")
    before = np.cumsum([0, *(len(part.ranks) for part in parts)]).tolist()
    turn = np.argsort(order)
    places = [turn[n + part.place] for part, n in zip(parts, before, strict=False)]
    place = np.concatenate(places)
    sort = np.argsort(place, kind="stable")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])[sort] for name in _COLUMNS
    }
    facts = joined_facts([part.told for part in parts]).taken(sort)

    def by_rank(values: Iterable[T]) -> tuple[T, ...]:
        """Return what the parts have by rank, in the order of all ranks; it may be nothing."""
        of_parts = list(values)
        return tuple(of_parts[number] for number in order.tolist()) if of_parts else ()

    ranks = rank_labels(by_rank(rank))
    return CommRecords(
        ranks=ranks,
        devices=by_rank(devices),
        alone=by_rank(spans for part in parts for spans in part.alone),
        place=place[sort],
        **columns,
        work=by_rank(spans for part in parts for spans in part.work),
        told=facts,
        lacks_work=any(part.lacks_work for part in parts),
        **_grouped(facts, columns["kind"], place[sort], ranks),
    )


def _grouped(
    facts: GroupFacts, kind: IntArray, place: IntArray, ranks: Sequence[int]
) -> dict[str, Any]:
    """Return the columns that only all ranks together tell: groups, and peers of sends."""
    group, of_job = facts.groups(place, ranks)
    peer, pairs = np.full(len(kind), -1, dtype=np.int64), np.flatnonzero(np.isin(kind, _SIDES))
    peer[pairs] = peers(facts.other_side[pairs], group[pairs], of_job, place[pairs], ranks)
    return {"group": group, "groups": of_job, "peer": peer}


def _rank(trace: Trace, device: int) -> int:
    rank = trace.ranks[int(numbers(trace.devices["process"])[device])]
    return device if rank is None else rank


def alone(start_ns: IntArray, end_ns: IntArray) -> Intervals:
    """Return when exactly one of the activities of a device ran."""
    time = np.concatenate([start_ns, end_ns])
    change = np.repeat(np.array([1, -1]), len(start_ns))
    order = np.argsort(time, kind="stable")
    time, running = time[order], np.cumsum(change[order])
    single = np.flatnonzero(running[:-1] == 1)
    return Intervals.of(time[single], time[single + 1])


class _Facts:
    """Reads the collective that each of some kernels ran: kind, sizes, group."""

    def __init__(self, linked: LinkedTrace, rows: IntArray) -> None:
        self._linked, self._rows = linked, rows
        self._activities, self._ops = linked.trace.activities, linked.trace.ops
        self._op = linked.links.op_of_activity[rows]
        self.told = Recorded(linked, rows)
        self.stream = numbers(self._activities["stream"], ABSENT)[rows]

    def kind(self, place: IntArray) -> IntArray:
        """Return the kind of each kernel as a place in KINDS, -1 where it is not known."""
        code, texts = self.told.texts("collective")
        kind = taken(kinds_of(texts, code), code)
        # What the annotation around each launch names, else the operator.
        marks, ops = self._linked.trace.marks["name"], names(self._ops["name"])
        mark, op = taken(codes(marks), self._range), taken(codes(self._ops["name"]), self._op)
        around = taken(kinds_of(names(marks), mark), mark)
        of_op = kinds_of([text if _RANGE.match(text) else "" for text in ops], op)
        around = np.where(around >= 0, around, taken(of_op, op))
        # Several kinds are made of sends and receives: what the framework calls it counts.
        parts = np.array([kind in POINT_TO_POINT for kind in KINDS] + [True])
        kind = np.where((around >= 0) & parts[kind], around, kind)
        label = codes(self._activities["name"])[self._rows]
        by_name = taken(kinds_of(names(self._activities["name"]), label), label)
        for rank in (place, np.zeros_like(place)):
            kind = np.where(kind >= 0, kind, of_streams(kind, rank, label))
        alike = of_streams(np.where(parts[by_name], kind, -1), place, self.stream)
        kind = np.where((kind >= 0) | ~parts[by_name], kind, alike)
        return np.where(kind >= 0, kind, by_name)

    @cached_property
    def _range(self) -> IntArray:
        """The annotation of a collective around each launch, as a row of marks, or -1."""
        trace, call = self._linked.trace, self._linked.links.call_of_activity[self._rows]
        label, labels = codes(trace.marks["name"]), names(trace.marks["name"])
        named = np.array([*(bool(_RANGE.match(text)) for text in labels), False])
        marks = host_marks(trace, "annotation")
        marks = marks[named[label[marks]]]
        mark = innermost_mark(trace, marks, instants(trace, call, np.full_like(call, -1)))
        return taken(marks, mark)

    def sizes(self, kind: IntArray) -> tuple[IntArray, IntArray]:
        """Return input elements and message bytes: from metadata, else from annotations."""
        elements = self.told.numbers("collective_in_elements")
        whole = message_bytes(self._linked, self._rows)
        counted, width = annotated_inputs(self._linked, self._range)
        is_whole = np.array([*(name in _INPUT_IS_WHOLE for name in KINDS), False])[kind]
        by_range = (elements == ABSENT) & is_whole & (counted >= 0) & (width > 0)
        whole = np.where(by_range, counted * np.where(by_range, width, 0), whole)
        elements = np.where(elements == ABSENT, counted, elements)
        received = self.told.numbers("collective_out_elements")
        return np.where(kind == RECV, np.maximum(elements, received), elements), whole

    def groups(self, kind: IntArray) -> GroupFacts:
        """Return what the kernels tell of their groups."""
        texts = [self.told.texts(f"collective_{what}") for what in _GROUP_TEXTS]
        size = self.told.numbers("collective_group_size")
        which, first = group_rows((*(code for code, _ in texts), size))
        words = [
            [labels[group] if group >= 0 else None for group in code[first].tolist()]
            for code, labels in texts
        ]
        source, destination = (
            self.told.numbers(f"collective_{side}") for side in ("source", "destination")
        )
        return GroupFacts(
            known=tuple(zip(*words, size[first].tolist(), strict=True)),
            which=which,
            call=self.told.numbers("collective_call"),
            stream=self.stream,
            other_side=np.where(kind == SEND, destination, source),
        )
