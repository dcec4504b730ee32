"""What each rank recorded of its communication: a row per kernel, with kind, group and size.

The kind is that of the kernel's own metadata or its launching operator, else of the annotation
around its launch, else of its name; sends and receives launched before the recording are as others
of their name or stream. Kernels of no named group form one per stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from traceflops.attribution import host_marks, innermost_mark, instants
from traceflops.ranks.collectives import Told, annotated_inputs, message_bytes
from traceflops.ranks.group_roles import POINT_TO_POINT, CommGroup, role_in, with_roles
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    distinct,
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
_INPUT_IS_WHOLE: Final = frozenset(
    {"all_reduce", "reduce_scatter", "all_to_all", "broadcast", "reduce"}
)
"""Collectives whose message is what a rank puts in."""
_GROUP_TEXTS: Final = ("group", "group_ranks", "description")
SEND, RECV, EXCHANGE = (KINDS.index(kind) for kind in ("send", "recv", "send_recv"))
_SIDES: Final = (SEND, RECV)
_RANGE: Final = re.compile(r"(?:nccl|rccl|c10d|gloo)::?(?=[a-z_])")
"""How frameworks begin the names of annotations and operators of a collective."""


@dataclass(frozen=True)
class CommRecords:
    """Kernels of communication of all ranks, by rank and start; numbers that are absent are ABSENT.

    `devices` are those of the ranks. `place` is the rank's place in `ranks`; `kind` is a place in
    KINDS or -1, `group` in `groups`; `peer` is the place of the rank that a send is to or a receive
    is from, -1 where it is not known, and for other kinds. `elements` are put in, `received` got.
    `busy_ns` is how long the device had worked (communication apart) before the end, counted from
    its first activity. `step` is the number of the step in which it starts. `alone` has, by
    rank, when exactly one activity ran on it, `work` when any did but communication.
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


def comm_records(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    windows: Mapping[int, tuple[Window, ...]],
) -> CommRecords:
    """Return the kernels of communication on all devices over everything recorded."""
    devices = sorted(accounts, key=lambda device: (_rank(linked, device), device))
    kernels = is_one_of(linked.trace.activities["kind"], "kernel")
    work = tuple(_work(linked, accounts[device]) for device in devices)
    parts = [
        _of_device(linked, kernels, accounts[device], windows[device], busy)
        for device, busy in zip(devices, work, strict=True)
    ]
    row = np.concatenate([part["row"] for part in parts] or [np.empty(0, np.int64)])
    place = np.repeat(np.arange(len(parts)), [len(part["row"]) for part in parts])
    columns = {
        name: np.concatenate([part[name] for part in parts] or [np.empty(0, np.int64)])
        for name in ("start_ns", "end_ns", "busy_ns", "step")
    }
    facts = _Facts(linked, row)
    ranks = rank_labels([_rank(linked, device) for device in devices])
    worked = [accounts[device].rows for device in devices]
    kind = facts.kind(place)
    group, known = facts.groups(place, ranks)
    elements, size = facts.sizes(kind)
    peer, pairs = np.full(len(row), -1, dtype=np.int64), np.flatnonzero(np.isin(kind, _SIDES))
    peer[pairs] = _peers(facts.other_side(kind)[pairs], group[pairs], known, place[pairs], ranks)
    return CommRecords(
        ranks=ranks,
        devices=tuple(devices),
        groups=with_roles(known, _kinds_of(kind, group, len(known))),
        alone=tuple(alone(rows.start_ns, rows.end_ns) for rows in worked),
        place=place,
        row=row,
        kind=kind,
        group=group,
        peer=peer,
        sequence=facts.sequence(),
        elements=elements,
        received=facts.told.numbers("collective_out_elements"),
        bytes=size,
        **columns,
        work=work,
    )


def _kinds_of(kind: IntArray, group: IntArray, count: int) -> list[frozenset[str]]:
    """Return the kinds of collective that each group ran."""
    known = kind >= 0
    ran = _places(group[known], kind[known], count)
    return [frozenset(KINDS[one] for one in mine) for mine in ran]


def _rank(linked: LinkedTrace, device: int) -> int:
    trace = linked.trace
    rank = trace.ranks[int(numbers(trace.devices["process"])[device])]
    return device if rank is None else rank


def rank_labels(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks, or the numbers of the devices where these do not tell them apart."""
    return tuple(ranks) if len(set(ranks)) == len(ranks) else tuple(range(len(ranks)))


def _work(linked: LinkedTrace, account: DeviceAccount) -> Intervals:
    """Return when a device worked, communication apart."""
    work = ~is_top(linked.categorised, "communication", account.rows.row)
    return Intervals.of(account.rows.start_ns[work], account.rows.end_ns[work])


def _peers(
    number: IntArray,
    group: IntArray,
    known: Sequence[CommGroup],
    place: IntArray,
    ranks: Sequence[int],
) -> IntArray:
    """Return the place of the rank with a number in its group, -1 where that is not known."""
    found = np.full(len(number), -1, dtype=np.int64)
    for one, mine in groups(group):
        members = _members(known[one], ranks)
        inside = (number[mine] >= 0) & (number[mine] < len(members) - 1)
        peer = members[np.where(inside, number[mine], -1)]
        peer[peer == place[mine]] = -1
        two = np.unique(place[mine])
        is_pair = len(two) == 2 and known[one].size in (None, 2)
        found[mine] = np.where((peer < 0) & is_pair, two.sum() - place[mine], peer)
    return found


def _members(group: CommGroup, ranks: Sequence[int]) -> IntArray:
    """Return the places of the ranks of a group, and -1 behind them.

    A group that lists none is taken for all ranks where it is as large.
    """
    is_all = group.size in (None, len(ranks))
    listed = group.ranks or (range(max(ranks) + 1) if is_all else ())
    place_of = {rank: at for at, rank in enumerate(ranks)}
    return np.array([*(place_of.get(rank, -1) for rank in listed), -1], dtype=np.int64)


def _of_device(
    linked: LinkedTrace,
    kernels: BoolArray,
    account: DeviceAccount,
    windows: Sequence[Window],
    busy: Intervals,
) -> dict[str, IntArray]:
    rows = account.rows
    mine = is_top(linked.categorised, "communication", rows.row)
    mine &= kernels[rows.row]
    start, end = rows.start_ns[mine], rows.end_ns[mine]
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


def alone(start_ns: IntArray, end_ns: IntArray) -> Intervals:
    """Return when exactly one of the activities of a device ran."""
    time = np.concatenate([start_ns, end_ns])
    change = np.repeat(np.array([1, -1]), len(start_ns))
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
        self.told = Told(linked, rows)
        self.stream = numbers(self._activities["stream"], ABSENT)[rows]

    def kind(self, place: IntArray) -> IntArray:
        """Return the kind of each kernel as a place in KINDS, -1 where it is not known."""
        code, texts = self.told.texts("collective")
        told = taken(_kinds(texts, code), code)
        around = self._around()
        # Several kinds are made of sends and receives: what the framework calls it counts.
        parts = np.array([kind in POINT_TO_POINT for kind in KINDS] + [True])
        told = np.where((around >= 0) & parts[told], around, told)
        label = codes(self._activities["name"])[self._rows]
        by_name = taken(_kinds(names(self._activities["name"]), label), label)
        told = np.where(told >= 0, told, _of_streams(told, place, label))
        told = np.where((told >= 0) | parts[by_name], told, by_name)
        told = np.where(told >= 0, told, _of_streams(told, place, self.stream))
        return np.where(told >= 0, told, by_name)

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

    def _around(self) -> IntArray:
        """Return the kind that the annotation around each launch names."""
        column = self._linked.trace.marks["name"]
        code = taken(codes(column), self._range)
        by_op = taken(codes(self._ops["name"]), self._op)
        ops = names(self._ops["name"])
        of_op = _kinds([text if _RANGE.match(text) else "" for text in ops], by_op)
        found = taken(_kinds(names(column), code), code)
        return np.where(found >= 0, found, taken(of_op, by_op))

    def other_side(self, kind: IntArray) -> IntArray:
        """Return the number in its group of the rank that each sends to, or else receives from."""
        source, destination = (
            self.told.numbers(f"collective_{way}") for way in ("source", "destination")
        )
        return np.where(kind == SEND, destination, source)

    def sizes(self, kind: IntArray) -> tuple[IntArray, IntArray]:
        """Return elements that go in and bytes of each message: as told, else as annotated."""
        elements = self.told.numbers("collective_in_elements")
        whole = message_bytes(self._linked, self._rows)
        counted, width = annotated_inputs(self._linked, self._range)
        is_whole = np.array([*(name in _INPUT_IS_WHOLE for name in KINDS), False])[kind]
        known = (elements == ABSENT) & is_whole & (counted >= 0) & (width > 0)
        whole = np.where(known, counted * np.where(known, width, 0), whole)
        elements = np.where(elements == ABSENT, counted, elements)
        received = self.told.numbers("collective_out_elements")
        return np.where(kind == RECV, np.maximum(elements, received), elements), whole

    def groups(
        self, place: IntArray, ranks: Sequence[int]
    ) -> tuple[IntArray, tuple[CommGroup, ...]]:
        """Return the group of each kernel, and the groups; `ranks` are those of the places."""
        texts = [self.told.texts(f"collective_{what}") for what in _GROUP_TEXTS]
        size = self.told.numbers("collective_group_size")
        named, _ = group_rows((texts[0][0], texts[1][0], size))
        apart = _apart(named, place, size, self.told.numbers("collective_call"))
        named, first = group_rows((named, apart))
        told = np.where(texts[0][0] >= 0, named, -1)
        told = np.where(told >= 0, told, _of_streams(told, place, self.stream))
        streams, at = ranked(_same_streams(place, self.stream))
        known, number = ranked(np.where(told >= 0, told, len(first) + at))
        members = _places(number, place, len(known))
        found = []
        for one, mine in zip(known.tolist(), members, strict=True):
            if one >= len(first):
                found.append(CommGroup(f"stream {streams[one - len(first)]}", None, None))
                continue
            row = first[one]
            words = [
                known_texts[code[row]] if code[row] >= 0 else "" for code, known_texts in texts
            ]
            found.append(_named_group(words, int(size[row]), [ranks[place] for place in mine]))
        return number, tuple(found)

    def sequence(self) -> IntArray:
        """Return the number that each collective has in its group, or ABSENT.

        That is the framework's, else the one that the operator was given.
        """
        own = self.told.numbers("collective_sequence")
        return np.where(own >= 0, own, self._given())

    def _given(self) -> IntArray:
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


def _apart(named: IntArray, place: IntArray, size: IntArray, call: IntArray) -> IntArray:
    """Return a number by which groups are apart that are called alike on different ranks.

    More ranks than a group has are of several: of one are those that have calls in common.
    """
    apart = np.zeros_like(named)
    for _, mine in groups(named):
        members = len(distinct(place[mine]))
        if 0 < size[mine[0]] < members:
            apart[mine] = _together(place[mine], call[mine])
    return apart


def _together(place: IntArray, call: IntArray) -> IntArray:
    """Return the first place of all that have calls in common with each one's, directly or not."""
    _, call = ranked(np.where(call == ABSENT, -1 - place, call))
    label = np.arange(int(place.max()) + 1)
    while True:
        lowest = np.full(int(call.max()) + 1, len(label))
        np.minimum.at(lowest, call, label[place])
        new = label.copy()
        np.minimum.at(new, place, lowest[call])
        if (new == label).all():
            return label[place]
        label = new


def _places(number: IntArray, place: IntArray, count: int) -> list[list[int]]:
    """Return the places that have kernels of each group."""
    places: list[list[int]] = [[] for _ in range(count)]
    many = int(place.max(initial=0)) + 1
    for pair in distinct(number * many + place).tolist():
        places[pair // many].append(pair % many)
    return places


def _named_group(words: Sequence[str], size: int, recorded: Sequence[int]) -> CommGroup:
    """Return a group by its name, listed ranks and description; some of its ranks are recorded."""
    name, listed, description = words
    ranks = _ranks_in(listed) or (tuple(recorded) if len(recorded) == size else None)
    role = role_in(description) or role_in(name)
    return CommGroup(name, ranks, size if size > 0 else None, role)


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
