"""What each rank recorded of its communication: a row per kernel, with kind, group and size.

The kind is that of the kernel's own metadata or its launching operator, else of the annotation
around its launch, else of its name; work launched before the recording is as the rest of its
stream. Kernels of no named group form one per stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from traceflops.attribution import host_marks, innermost_mark, instants
from traceflops.ranks.collectives import message_bytes
from traceflops.table import (
    ABSENT,
    IntArray,
    codes,
    group_rows,
    groups,
    is_one_of,
    joint_codes,
    names,
    numbers,
    ranked,
    taken,
)
from traceflops.timeline import DeviceAccount, Intervals, LinkedTrace, Window, is_top

_KINDS: Final = {
    "all_reduce": "allreduce|crossdevicereduce",
    "reduce_scatter": "reducescatter",
    "all_gather": "allgather",
    "all_to_all": "alltoall|all2all",
    "broadcast": "broadcast|bcast",
    "barrier": "barrier",
    "send_recv": "sendrecv",
    "send": "send",
    "recv": "recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
"""Words of the kinds, letters only; the first that is found counts."""
KINDS: Final = tuple(_KINDS)
POINT_TO_POINT: Final = frozenset({"send", "recv", "send_recv"})
_COLUMNS: Final = (
    *("place", "row", "kind", "group", "sequence", "elements", "bytes", "step"),
    *("start_ns", "end_ns", "busy_ns"),
)
_RANGE: Final = re.compile(r"(?:nccl|rccl|c10d|gloo)::?(?=[a-z_])")
"""How frameworks begin the names of annotations and operators of a collective."""


@dataclass(frozen=True, slots=True)
class CommGroup:
    """Who communicates: `ranks` as the trace lists them, None where it does not.

    `size` is None where it is not known. `name` is the framework's, or the stream.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int | None


@dataclass(frozen=True)
class CommRecords:
    """Kernels of communication of all ranks, by rank and start; numbers that are absent are ABSENT.

    `devices` are those of the ranks. `place` is the rank's place in `ranks`; `kind` is a place in
    KINDS or -1, `group` in `groups`.
    `busy_ns` is how long the device had worked (communication apart) before the end, counted from
    its first activity. `step` is the number of the step in which it starts. `alone` has, by
    rank, when exactly one activity ran on it.
    """

    ranks: tuple[int, ...]
    devices: tuple[int, ...]
    groups: tuple[CommGroup, ...]
    alone: tuple[Intervals, ...]
    place: IntArray
    row: IntArray
    kind: IntArray
    group: IntArray
    sequence: IntArray
    elements: IntArray
    bytes: IntArray
    step: IntArray
    start_ns: IntArray
    end_ns: IntArray
    busy_ns: IntArray

    @cached_property
    def dur_ns(self) -> IntArray:
        """Return how long each kernel ran."""
        return self.end_ns - self.start_ns

    def __len__(self) -> int:
        return len(self.row)

    @property
    def compact(self) -> CommRecords:
        """Return the same without what is not about its own kernels."""
        alone = []
        for place, one in enumerate(self.alone):
            mine = self.place == place
            alone.append(one.intersect(Intervals.of(self.start_ns[mine], self.end_ns[mine])))
        return replace(self, alone=tuple(alone), row=np.zeros_like(self.row))

    def shifted(self, by_ns: int) -> CommRecords:
        """Return the same on a clock that is behind by so much."""
        alone = tuple(Intervals(one.start_ns + by_ns, one.end_ns + by_ns) for one in self.alone)
        start, end = self.start_ns + by_ns, self.end_ns + by_ns
        return replace(self, alone=alone, start_ns=start, end_ns=end)

    def members(self, group: int) -> list[IntArray]:
        """Return the rows of a group by rank, without ranks that have none."""
        mine = np.flatnonzero(self.group == group)
        return [mine[places] for _, places in groups(self.place[mine])]


def comm_records(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    windows: Mapping[int, tuple[Window, ...]],
) -> CommRecords:
    """Return the kernels of communication on all devices over everything recorded."""
    devices = sorted(accounts, key=lambda device: (_rank(linked, device), device))
    parts = [_of_device(linked, accounts[device], windows[device]) for device in devices]
    row = np.concatenate([part["row"] for part in parts] or [np.empty(0, np.int64)])
    place = np.repeat(np.arange(len(parts)), [len(part["row"]) for part in parts])
    columns = {
        name: np.concatenate([part[name] for part in parts] or [np.empty(0, np.int64)])
        for name in ("start_ns", "end_ns", "busy_ns", "step")
    }
    facts = _Facts(linked, row)
    group, known = facts.groups(place)
    return CommRecords(
        ranks=_labels([_rank(linked, device) for device in devices]),
        devices=tuple(devices),
        groups=known,
        alone=tuple(_alone(accounts[device]) for device in devices),
        place=place,
        row=row,
        kind=facts.kind(place),
        group=group,
        sequence=facts.sequence(),
        elements=numbers(linked.trace.activities["collective_in_elements"], ABSENT)[row],
        bytes=message_bytes(linked, row),
        **columns,
    )


def joined(parts: Sequence[CommRecords]) -> CommRecords:
    """Return the records of several recordings of one clock, each of other ranks, as one."""
    count = [len(part.ranks) for part in parts]
    rank = np.array([rank for part in parts for rank in part.ranks], dtype=np.int64)
    order = np.argsort(rank, kind="stable")
    known: dict[CommGroup, int] = {}
    renumbered = []
    for part, before in zip(parts, np.cumsum([0, *count]).tolist(), strict=False):
        group = np.array([known.setdefault(one, len(known)) for one in part.groups] or [0])
        place = np.argsort(order)[before + part.place]
        renumbered.append({"place": place, "group": group[part.group]})
    columns = {
        name: np.concatenate(
            [
                mine.get(name, getattr(part, name))
                for part, mine in zip(parts, renumbered, strict=True)
            ]
        )
        for name in _COLUMNS
    }
    sort = np.argsort(columns["place"], kind="stable")
    alone = [one for part in parts for one in part.alone]
    return CommRecords(
        ranks=_labels(rank[order].tolist()),
        devices=tuple(order.tolist()),
        groups=tuple(known),
        alone=tuple(alone[at] for at in order.tolist()),
        **{name: column[sort] for name, column in columns.items()},
    )


def _rank(linked: LinkedTrace, device: int) -> int:
    trace = linked.trace
    rank = trace.ranks[int(numbers(trace.devices["process"])[device])]
    return device if rank is None else rank


def _labels(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks, or the numbers of the devices where these do not tell them apart."""
    return tuple(ranks) if len(set(ranks)) == len(ranks) else tuple(range(len(ranks)))


def _of_device(
    linked: LinkedTrace, account: DeviceAccount, windows: Sequence[Window]
) -> dict[str, IntArray]:
    rows = account.rows
    mine = is_top(linked.categorised, "communication", rows.row)
    mine &= is_one_of(linked.trace.activities["kind"], "kernel")[rows.row]
    start, end = rows.start_ns[mine], rows.end_ns[mine]
    work = ~is_top(linked.categorised, "communication", rows.row)
    busy = Intervals.of(rows.start_ns[work], rows.end_ns[work])
    return {
        "row": rows.row[mine],
        "start_ns": start,
        "end_ns": end,
        "busy_ns": busy.covered_before(end),
        "step": _step_at(start, windows),
    }


def _step_at(time_ns: IntArray, windows: Sequence[Window]) -> IntArray:
    """Return the number of the step in which each time lies, ABSENT outside steps."""
    steps = sorted((one.start_ns, one.end_ns, one.step) for one in windows if one.step is not None)
    starts, ends, number = np.array([*steps, (0, 0, 0)], dtype=np.int64).T
    at = np.searchsorted(starts[:-1], time_ns, side="right") - 1
    return np.where((at >= 0) & (time_ns < ends[at]), number[at], ABSENT)


def _alone(account: DeviceAccount) -> Intervals:
    """Return when exactly one activity ran on a device."""
    rows = account.rows
    time = np.concatenate([rows.start_ns, rows.end_ns])
    change = np.repeat(np.array([1, -1]), len(rows.start_ns))
    order = np.argsort(time, kind="stable")
    time, running = time[order], np.cumsum(change[order])
    single = np.flatnonzero(running[:-1] == 1)
    return Intervals.of(time[single], time[single + 1])


class _Facts:
    """What is known of the collective that each of some kernels ran."""

    def __init__(self, linked: LinkedTrace, rows: IntArray) -> None:
        self._linked, self._rows = linked, rows
        self._activities, self._ops = linked.trace.activities, linked.trace.ops
        self._op = linked.links.op_of_activity[rows]
        self.stream = numbers(self._activities["stream"], ABSENT)[rows]

    def kind(self, place: IntArray) -> IntArray:
        """Return the kind of each kernel as a place in KINDS, -1 where it is not known."""
        own = self._named(self._activities, self._rows)
        of_op = self._named(self._ops, self._op)
        told = np.where(own >= 0, own, of_op)
        around = self._around()
        # Several kinds are made of sends and receives: what the framework calls it counts.
        parts = np.array([kind in POINT_TO_POINT for kind in KINDS] + [True])
        told = np.where((around >= 0) & parts[told], around, told)
        told = np.where(told >= 0, told, _of_streams(told, place, self.stream))
        label = codes(self._activities["name"])[self._rows]
        by_name = taken(_kinds(names(self._activities["name"]), label), label)
        return np.where(told >= 0, told, by_name)

    def _named(self, table: pa.Table, rows: IntArray) -> IntArray:
        column = table["collective"]
        code = taken(codes(column), rows)
        return taken(_kinds(names(column), code), code)

    def _around(self) -> IntArray:
        """Return the kind that the annotation around each launch names."""
        trace, call = self._linked.trace, self._linked.links.call_of_activity[self._rows]
        label, labels = codes(trace.marks["name"]), names(trace.marks["name"])
        named = np.array([*(bool(_RANGE.match(text)) for text in labels), False])
        marks = host_marks(trace, "annotation")
        marks = marks[named[label[marks]]]
        mark = innermost_mark(trace, marks, instants(trace, call, np.full_like(call, -1)))
        code = taken(label, taken(marks, mark))
        by_op = taken(codes(self._ops["name"]), self._op)
        ops = names(self._ops["name"])
        of_op = _kinds([text if _RANGE.match(text) else "" for text in ops], by_op)
        found = taken(_kinds(labels, code), code)
        return np.where(found >= 0, found, taken(of_op, by_op))

    def groups(self, place: IntArray) -> tuple[IntArray, tuple[CommGroup, ...]]:
        """Return the group of each kernel, and the groups."""
        columns = ("collective_group", "collective_group_ranks")
        code = [codes(self._activities[name])[self._rows] for name in columns]
        texts = [names(self._activities[name]) for name in columns]
        size = numbers(self._activities["collective_group_size"], ABSENT)[self._rows]
        facts = np.stack([*code, size], axis=1)
        named, first = group_rows((*code, size))
        told = np.where(code[0] >= 0, named, -1)
        told = np.where(told >= 0, told, _of_streams(told, place, self.stream))
        streams, at = ranked(_same_streams(place, self.stream))
        known, number = ranked(np.where(told >= 0, told, len(first) + at))
        return number, tuple(
            _named_group(facts[first[one]].tolist(), texts)
            if one < len(first)
            else CommGroup(f"stream {streams[one - len(first)]}", None, None)
            for one in known.tolist()
        )

    def sequence(self) -> IntArray:
        """Return the sequence number that the operator of each collective was given, or ABSENT."""
        column = self._ops["concrete_inputs"]
        code = taken(codes(column), self._op)
        is_comm = taken(codes(self._ops["collective"]), self._op) >= 0
        used, which = ranked(np.where(is_comm, code, -1))
        texts = names(column)
        number = [_second(texts[one]) if one >= 0 else ABSENT for one in used.tolist()]
        return np.array([*number, ABSENT], dtype=np.int64)[which]


def _kinds(labels: Sequence[str], used: IntArray) -> IntArray:
    """Return the kind that each used label names, -1 for none, and one more for no label."""
    kinds = np.full(len(labels) + 1, -1, dtype=np.int64)
    for code in np.unique(used[used >= 0]).tolist():
        kinds[code] = kind_of(labels[code])
    return kinds


def kind_of(label: str) -> int:
    """Return the place in KINDS of the collective that a label names, -1 for none."""
    letters = re.sub(r"[^a-z0-9]", "", label.lower())
    found = (at for at, words in enumerate(_KINDS.values()) if re.search(words, letters))
    return next(found, -1)


def _of_streams(told: IntArray, place: IntArray, stream: IntArray) -> IntArray:
    """Return the one code that is told of the kernels of each one's stream, -1 for none or more."""
    found = np.full_like(told, -1)
    for _, mine in groups(joint_codes(place, stream)):
        known = np.unique(told[mine][told[mine] >= 0])
        if len(known) == 1:
            found[mine] = known[0]
    return found


def _same_streams(place: IntArray, stream: IntArray) -> IntArray:
    """Return a number per stream that is the same for the streams of one group on all ranks.

    That is the stream's own where all ranks have the same; else that of the stream of the first
    rank that began communicating as early in turn.
    """
    turns = [_in_turn(stream[mine]) for _, mine in groups(place)]
    if len({frozenset(turn) for turn in turns}) <= 1:
        return stream
    longest = max(turns, key=len)
    same = np.full_like(stream, ABSENT)
    for (_, mine), turn in zip(groups(place), turns, strict=True):
        for number, own in zip(longest, turn, strict=False):
            same[mine[stream[mine] == own]] = number
    return same


def _in_turn(stream: IntArray) -> list[int]:
    return list(dict.fromkeys(stream.tolist()))


def _named_group(facts: Sequence[int], texts: Sequence[Sequence[str]]) -> CommGroup:
    name, ranks, size = facts
    listed = _ranks_in(texts[1][ranks]) if ranks >= 0 else None
    return CommGroup(texts[0][name], listed, size if size > 0 else None)


def _ranks_in(text: str) -> tuple[int, ...] | None:
    """Return the ranks that a text lists; None where it is empty or shortened."""
    try:
        return msgspec.json.decode(text, type=tuple[int, ...]) or None
    except msgspec.DecodeError:
        return None


def _second(text: str) -> int:
    """Return the second input of a collective's operator: its sequence number, or ABSENT."""
    try:
        inputs = msgspec.json.decode(text, type=list[object])
        return int(str(inputs[1]))
    except (msgspec.DecodeError, IndexError, ValueError):
        return ABSENT
