"""What each rank recorded of its communication: a row per kernel, with kind, group and size.

The kind is that of the kernel's own metadata or its launching operator, else of the annotation
around its launch, else of its name; sends and receives launched before the recording are as others
of their name or their stream. Kernels without a named group form one group per stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.marks import host_marks, innermost_mark, instants
from traceflops.ranks import comm_groups
from traceflops.ranks.collectives import KINDS, Recorded, annotated_inputs, kinds_of, message_bytes
from traceflops.ranks.comm_groups import NO_FACTS, CommGroup, GroupFacts, of_streams, rank_labels
from traceflops.table.columns import ABSENT, BoolArray, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import group_rows
from traceflops.table.grouping import groups as groups_of
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import Intervals
from traceflops.windows.records import Accounts, Windows
from traceflops.windows.step_times import Steps

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
    """A row per kernel of communication, by rank and start; unknown numbers are ABSENT.

    `ranks`, their `devices`, `alone` (when exactly one activity ran) and `work` (when anything but
    communication ran) are by place, the number of a rank from 0.

    By row: `place` is the place of the rank, `row` the row of the kernel among the activities.
    `kind` is a place in KINDS or -1, `group` a place in `groups`. `peer` is the place of the rank
    that a send is to or a receive is from; -1 if unknown and for other kinds. `elements` are a
    rank's input, `received` its output. `step` is the number of the step in which the kernel
    starts. `busy_ns` is the time, up to the end of the kernel, in which the device did other work
    than communication. `told` is the recorded metadata of groups.

    Compact records (see `compact`) lack rows, groups and peers; `grouped` finds the latter again.
    `lacks_work` says that they also lack work beside sends and receives, which pipelines need.
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
        """Return smaller records for a summary of one rank.

        `row`, which numbers the rows of a table that a summary lacks, and the groups, which only
        all ranks together tell, are left out. `alone` and `work` are kept only while kernels of
        communication run; with `keeps_work`, all `work` is kept if there are sends or receives.
        """
        of_rank = [self.place == place for place in range(len(self.ranks))]
        running = [Intervals.of(self.start_ns[rows], self.end_ns[rows]) for rows in of_rank]

        def while_running(by_rank: Sequence[Intervals]) -> tuple[Intervals, ...]:
            """Return intervals of each rank while its kernels run; no intervals stay none."""
            return tuple(map(Intervals.intersect, by_rank, running))

        none = np.full_like(self.row, ABSENT)
        has_pairs = bool(self.is_pair.any())
        keeps_work = keeps_work and has_pairs
        return replace(
            self,
            alone=while_running(self.alone),
            row=none,
            groups=(),
            group=none,
            peer=none,
            work=self.work if keeps_work else while_running(self.work),
            lacks_work=self.lacks_work if keeps_work else has_pairs,
        )

    def moved(self, by_ns: int, devices: int) -> CommRecords:
        """Return the records moved by `by_ns`, with `devices` added to their device numbers."""
        return replace(
            self,
            devices=tuple(device + devices for device in self.devices),
            alone=tuple(spans.moved(by_ns) for spans in self.alone),
            work=tuple(spans.moved(by_ns) for spans in self.work),
            start_ns=self.start_ns + by_ns,
            end_ns=self.end_ns + by_ns,
        )


def comm_records(linked: LinkedTrace, accounts: Accounts, windows: Windows) -> CommRecords:
    """Return the kernels of communication on all devices (by rank), over the whole recording."""
    trace = linked.trace
    devices = [device for _, device in sorted(zip(_ranks(trace, accounts), accounts, strict=True))]
    is_kernel = is_one_of(trace.activities["kind"], "kernel")
    work = []
    activities = [accounts[device].rows for device in devices]
    parts = [np.empty((6, 0), np.int64)]  # the columns that are unpacked below, for each device
    for place, (device, rows) in enumerate(zip(devices, activities, strict=True)):
        is_comm = is_top(linked.categorised, "communication", rows.row)
        work.append(Intervals.of(rows.start_ns[~is_comm], rows.end_ns[~is_comm]))
        is_collective = is_comm & is_kernel[rows.row]  # copies between GPUs match nothing
        row = rows.row[is_collective]
        start, end = rows.start_ns[is_collective], rows.end_ns[is_collective]
        busy = work[-1].covered_before(end)
        # The step in which each kernel starts.
        spans = [(w.step, w.start_ns, w.end_ns) for w in windows[device] if w.step is not None]
        steps = Steps(*np.array(spans, dtype=np.int64).reshape(-1, 3).T)
        step = taken(steps.number, steps.at(start), ABSENT)
        parts.append(np.stack((row, np.full_like(start, place), start, end, busy, step)))
    row, place, start, end, busy, step = np.concatenate(parts, axis=1)
    facts = _Facts(linked, row)
    ranks = rank_labels(_ranks(trace, devices))
    kind = facts.kind(place)
    elements, size = facts.sizes(kind)
    group_facts = facts.groups(kind)
    return CommRecords(
        ranks=ranks,
        devices=tuple(devices),
        alone=tuple(alone(rows.start_ns, rows.end_ns) for rows in activities),
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
        told=group_facts,
        **_grouped(group_facts, kind, place, ranks),
    )


def communication_kinds(linked: LinkedTrace) -> IntArray:
    """Return the kind of each activity's collective, as an index of KINDS; -1: none, or unknown."""
    activities = linked.trace.activities
    kind = np.full(activities.num_rows, -1, dtype=np.int64)
    rows = np.flatnonzero(is_one_of(activities["kind"], "kernel"))
    rows = rows[is_top(linked.categorised, "communication", rows)]
    # `_Facts.kind` asks for the rank of each kernel only to tell ranks apart: devices do that, too.
    kind[rows] = _Facts(linked, rows).kind(numbers(activities["device"], ABSENT)[rows])
    return kind


def chained(parts: Sequence[CommRecords]) -> CommRecords:
    """Return the records of recordings that share a clock, one after the other, without groups."""
    first_places = np.cumsum([0, *(len(part.ranks) for part in parts)]).tolist()
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS
    }
    none = np.full_like(columns["row"], ABSENT)
    return CommRecords(
        ranks=tuple(rank for part in parts for rank in part.ranks),
        devices=tuple(device for part in parts for device in part.devices),
        groups=(),
        alone=tuple(spans for part in parts for spans in part.alone),
        place=np.concatenate([n + p.place for p, n in zip(parts, first_places, strict=False)]),
        group=none,
        peer=none,
        **columns,
        work=tuple(spans for part in parts for spans in part.work),
        told=comm_groups.joined_facts([part.told for part in parts]),
        lacks_work=any(part.lacks_work for part in parts),
    )


def grouped(records: CommRecords, trace: Trace) -> CommRecords:
    """Return chained records in the order of ranks, with their groups; `trace` is of all ranks."""
    # Records of ranges have no devices.
    rank = _ranks(trace, records.devices) or records.ranks
    # Ranks [3 1 2] by old place: order [1 2 0] has the old places in new order, new_place [2 0 1].
    order = np.argsort(np.array(rank, dtype=np.int64), kind="stable")
    new_place = np.argsort(order)
    place = new_place[records.place]
    by_place = np.argsort(place, kind="stable")
    columns: dict[str, Any] = {name: getattr(records, name)[by_place] for name in _COLUMNS}
    facts = records.told.taken(by_place)

    def by_rank(values: Sequence[T]) -> tuple[T, ...]:
        """Return values by old place in the order of the ranks; no values stay none."""
        return tuple(values[number] for number in order.tolist()) if values else ()

    ranks = rank_labels(by_rank(rank))
    return replace(
        records,
        ranks=ranks,
        devices=by_rank(records.devices),
        alone=by_rank(records.alone),
        place=place[by_place],
        **columns,
        work=by_rank(records.work),
        told=facts,
        **_grouped(facts, columns["kind"], place[by_place], ranks),
    )


def _grouped(
    facts: GroupFacts, kind: IntArray, place: IntArray, ranks: Sequence[int]
) -> dict[str, Any]:
    """Return the columns that need all ranks: each kernel's group, the groups, the peers."""
    group, groups_of_job = facts.groups(place, ranks)
    pairs = np.flatnonzero(np.isin(kind, _SIDES))  # sends and receives
    peer = np.full(len(kind), -1, dtype=np.int64)
    peer[pairs] = comm_groups.peers(
        facts.other_side[pairs], group[pairs], groups_of_job, place[pairs], ranks
    )
    return {"group": group, "groups": groups_of_job, "peer": peer}


def _ranks(trace: Trace, devices: Iterable[int]) -> list[int]:
    """Return the rank of the process of each device, else the number of the device."""
    process_of_device = numbers(trace.devices["process"]).tolist()
    rank_of_process = trace.ranks
    pairs = ((device, rank_of_process[process_of_device[device]]) for device in devices)
    return [device if rank is None else rank for device, rank in pairs]


def alone(start_ns: IntArray, end_ns: IntArray) -> Intervals:
    """Return when exactly one of the activities of a device ran."""
    time = np.concatenate([start_ns, end_ns])
    change = np.repeat(np.array([1, -1]), len(start_ns))
    order = np.argsort(time, kind="stable")
    # [0, 5) and [3, 8): time [0 3 5 8], running [1 2 1 0], single [0 2]: [0, 3) and [5, 8).
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
        """Return the kind of each kernel as a place in KINDS, -1 where it is not known.

        The first source that knows it counts. `place` is the place of the rank of each kernel.
        """
        # 1. The recorded metadata.
        code, texts = self.told.texts("collective")
        kind = taken(kinds_of(texts, code), code)
        # 2. The annotation around the launch, else the name of the operator. These also override a
        # recorded send or receive: several collectives are made of these ("SendRecv": all-to-all).
        # `is_part` is by kind: whether it is one of these, or unknown (-1, the last entry).
        is_part = np.array([*(kind in comm_groups.POINT_TO_POINT for kind in KINDS), True])
        marks, ops = self._linked.trace.marks["name"], names(self._ops["name"])
        mark, op = taken(codes(marks), self._range), taken(codes(self._ops["name"]), self._op)
        by_mark = taken(kinds_of(names(marks), mark), mark)
        of_op = kinds_of([text if _RANGE.match(text) else "" for text in ops], op)
        by_framework = np.where(by_mark >= 0, by_mark, taken(of_op, op))
        kind = np.where((by_framework >= 0) & is_part[kind], by_framework, kind)
        # 3. The kind that other kernels of the same name have, on the same rank, else on all.
        label = codes(self._activities["name"])[self._rows]
        for rank in (place, np.zeros_like(place)):
            kind = np.where(kind >= 0, kind, of_streams(kind, rank, label))
        # 4. If the kernel's name tells a send, a receive or nothing: the kind of such kernels on
        # its stream, if all of them have one kind. 5. The kind in the kernel's name.
        by_name = taken(kinds_of(names(self._activities["name"]), label), label)
        on_stream = of_streams(np.where(is_part[by_name], kind, -1), place, self.stream)
        kind = np.where((kind >= 0) | ~is_part[by_name], kind, on_stream)
        return np.where(kind >= 0, kind, by_name)

    @cached_property
    def _range(self) -> IntArray:
        """Return the row of marks of the innermost collective around each launch, or -1."""
        trace, call = self._linked.trace, self._linked.links.call_of_activity[self._rows]
        label, labels = codes(trace.marks["name"]), names(trace.marks["name"])
        names_collective = np.array([*(bool(_RANGE.match(text)) for text in labels), False])
        marks = host_marks(trace, "annotation")
        marks = marks[names_collective[label[marks]]]
        mark = innermost_mark(trace, marks, instants(trace, call, np.full_like(call, -1)))
        return taken(marks, mark)

    def sizes(self, kind: IntArray) -> tuple[IntArray, IntArray]:
        """Return each kernel's elements and message bytes, from metadata, else annotations.

        Elements are a rank's input; of a receive, the larger of input and output.
        """
        elements = self.told.numbers("collective_in_elements")
        message = message_bytes(self._linked, self._rows)
        counted, width = annotated_inputs(self._linked, self._range)
        # The annotated input tells the message only of kinds whose message is the input.
        is_whole = np.array([*(name in _INPUT_IS_WHOLE for name in KINDS), False])[kind]
        uses_annotation = (elements == ABSENT) & is_whole & (counted >= 0) & (width > 0)
        known_width = np.where(uses_annotation, width, 0)  # a product with ABSENT would overflow
        message = np.where(uses_annotation, counted * known_width, message)
        elements = np.where(elements == ABSENT, counted, elements)
        received = self.told.numbers("collective_out_elements")
        return np.where(kind == RECV, np.maximum(elements, received), elements), message

    def groups(self, kind: IntArray) -> GroupFacts:
        """Return what the trace says about the group of each kernel.

        `kind` tells which rank is the other side: a send's destination, else the source.
        """
        texts = [self.told.texts(f"collective_{what}") for what in _GROUP_TEXTS]
        size = self.told.numbers("collective_group_size")
        # Kernels with equal metadata have one number in `which`: texts are read once per number.
        which, first = group_rows((*(code for code, _ in texts), size))
        name, listed, description = (
            [labels[text] if text >= 0 else None for text in code[first].tolist()]
            for code, labels in texts
        )
        runs = {text: comm_groups.runs_in(text) for text in set(listed) if text is not None}
        ranks = [runs.get(text) for text in listed]
        source = self.told.numbers("collective_source")
        destination = self.told.numbers("collective_destination")
        return GroupFacts(
            known=tuple(zip(name, ranks, description, size[first].tolist(), strict=True)),
            which=which,
            call=self.told.numbers("collective_call"),
            stream=self.stream,
            other_side=np.where(kind == SEND, destination, source),
        )
