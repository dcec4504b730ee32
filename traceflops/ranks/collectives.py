"""What the kernels of collectives moved: kind, ranks, bytes, time and how much of it is exposed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.flops.ops.arguments import element_type, read_types, read_values
from traceflops.table.columns import ABSENT, IntArray, Names, codes, is_one_of, names, numbers
from traceflops.table.grouping import group_rows, groups, joint_codes, ranked
from traceflops.table.nesting import taken
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.records import Window
from traceflops.windows.records import chosen_activities, chosen_time

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
_SIZES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("byte", "char", "bool"), 1),
    **dict.fromkeys(("short", "half", "bfloat16", "uint16"), 2),
    **dict.fromkeys(("int", "float", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("long", "double", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
}
"""Bytes of an element by the name of its type in lower case."""
_EIGHT_BITS: Final = "float8_"
_SHAPE: Final = re.compile(r"\[[\d,\s]*\d[\d,\s]*\]")
"""The dimensions of one tensor; tensors may be in lists of lists."""
_NUMBER: Final = re.compile(r"\d{1,18}")
_MOST_ELEMENTS: Final = 2**58
_ONE_SIDE_TELLS: Final = frozenset({"broadcast", "reduce", "send", "recv"})
"""Collectives that put in as much as they get out, on the ranks that do both."""


def kinds_of(labels: Sequence[str], used: IntArray) -> IntArray:
    """Return the kind of each used label, -1 for none; the last entry is for no label."""
    kinds = np.full(len(labels) + 1, -1, dtype=np.int64)
    for code in np.unique(used[used >= 0]).tolist():
        kinds[code] = kind_of(labels[code])
    return kinds


def kind_of(label: str) -> int:
    """Return the place in KINDS of the collective that a label names, -1 for none."""
    letters = re.sub(r"[^a-z0-9]", "", label.lower())
    matching = (code for code, words in enumerate(_KINDS.values()) if re.search(words, letters))
    return next(matching, -1)


class Collective(Struct, frozen=True):
    """Kernels of one kind of collective among so many ranks, in the chosen windows.

    `sum_ns` is their time inside the windows and `exposed_ns` the part in which nothing else ran
    on their device; collectives that run at the same time count each. `bytes` are those of the
    messages of `sized` of them, whose durations are `sized_ns`. Unknown is None.
    """

    collective: str | None
    ranks: int | None
    count: int
    sum_ns: int
    exposed_ns: int
    sized: int
    bytes: int | None
    sized_ns: int

    @property
    def bytes_per_ns(self) -> float | None:
        """Return the algorithm bandwidth (NCCL's algbw) in GB/s; None if bytes are unknown."""
        return self.bytes / self.sized_ns if self.bytes is not None and self.sized_ns else None


def collective_work(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    windows: Mapping[int, tuple[Window, ...]],
) -> tuple[Collective, ...]:
    """Return a row per kind of collective and number of ranks, the longest first.

    Of kernels in the chosen windows; empty where of none the trace says which collective it ran.
    The name of a kernel tells where nothing else does.
    """
    activities = linked.trace.activities
    chosen = chosen_activities(accounts, windows)
    is_comm = is_one_of(activities["kind"], "kernel")[chosen.row]
    is_comm &= is_top(linked.categorised, "communication", chosen.row)
    row, inside_ns = chosen.row[is_comm], chosen.inside_ns[is_comm]
    starts_inside = chosen.starts_inside[is_comm]
    kind = codes(activities["collective"])[row]
    if not (kind >= 0).any():
        return ()
    labels, name = names(activities["collective"]), codes(activities["name"])[row]
    by_name = taken(kinds_of(names(activities["name"]), name), name)
    kind = np.where((kind < 0) & (by_name >= 0), len(labels) + by_name, kind)
    labels = [*labels, *KINDS]
    ranks = numbers(activities["collective_group_size"], ABSENT)[row]
    # For how much of each kernel its device did nothing else.
    device, start = numbers(activities["device"])[row], numbers(activities["start_ns"])[row]
    end = start + numbers(activities["dur_ns"])[row]
    exposed = np.zeros(len(row), dtype=np.int64)
    for number, account in accounts.items():
        own = device == number
        alone = account.timeline.parts["communication"].intersect(chosen_time(windows[number]))
        exposed[own] = alone.length_within(start[own], end[own])
    size, whole = message_bytes(linked, row), linked.split.whole_ns[row]
    sized = (size != ABSENT) & (starts_inside == 1)
    group, first = group_rows((kind, ranks))
    collectives = []
    for (_, rows), kind_, many in zip(
        groups(group), kind[first].tolist(), ranks[first].tolist(), strict=True
    ):
        of_size = rows[sized[rows]]
        collectives.append(
            Collective(
                collective=labels[kind_] if kind_ >= 0 else None,
                ranks=many if many > 0 else None,
                count=int(starts_inside[rows].sum()),
                sum_ns=int(inside_ns[rows].sum()),
                exposed_ns=int(exposed[rows].sum()),
                sized=len(of_size),
                bytes=sum(size[of_size].tolist()) if len(of_size) else None,
                sized_ns=int(whole[of_size].sum()),
            )
        )
    return tuple(sorted(collectives, key=lambda c: (-c.sum_ns, c.collective or "", c.ranks or 0)))


class Recorded:
    """Metadata of the collectives of some activities: their own, else their operators'."""

    def __init__(self, linked: LinkedTrace, rows: IntArray) -> None:
        of_op = linked.links.op_of_activity[rows]
        self._sides = ((linked.trace.activities, rows), (linked.trace.ops, of_op))

    def numbers(self, column: str) -> IntArray:
        """Return the number of each activity, ABSENT where there is none."""
        own, of_op = (
            taken(numbers(table[column], ABSENT), rows, ABSENT) for table, rows in self._sides
        )
        return np.where(own != ABSENT, own, of_op)

    def texts(self, column: str) -> tuple[IntArray, list[str]]:
        """Return the code of each activity, -1 where there is none, and the text of each code."""
        pool = Names()
        own, of_op = (
            taken(pool.codes(names(table[column])), taken(codes(table[column]), rows))
            for table, rows in self._sides
        )
        return np.where(own >= 0, own, of_op).astype(np.int64), list(pool)

    def sequence(self) -> IntArray:
        """Return the number that each collective has in its group, or ABSENT.

        That is the framework's, else the one that the operator was given as its second input.
        """
        own = self.numbers("collective_sequence")
        ops, of_op = self._sides[1]
        column = ops["concrete_inputs"]
        is_comm = taken(codes(ops["collective"]), of_op) >= 0
        used, which = ranked(np.where(is_comm, taken(codes(column), of_op), -1))
        texts, given = names(column), []
        for code in used.tolist():
            values = read_values(texts[code]) if code >= 0 else ()
            second = values[1] if len(values) > 1 else None
            given.append(second if type(second) is int and 0 <= second < 2**63 else ABSENT)
        return np.where(own >= 0, own, np.array([*given, ABSENT], dtype=np.int64)[which])


def message_bytes(linked: LinkedTrace, rows: IntArray) -> IntArray:
    """Return the bytes of each message: the larger of what a rank puts in and gets out.

    ABSENT where it is not known: how much each kernel moved of several that an op launched.
    """
    recorded = Recorded(linked, rows)
    put, get = (recorded.numbers(f"collective_{side}_elements") for side in ("in", "out"))
    kind, kinds = recorded.texts("collective")
    one_tells = np.array([*(name in _ONE_SIDE_TELLS for name in kinds), False])[kind]
    elements = np.where((put >= 0) & (get >= 0) | one_tells, np.maximum(put, get), ABSENT)
    data_type, types = recorded.texts("collective_dtype")
    # Bytes of an element, 0 for a type that is not known.
    sizes = (1 if t.startswith(_EIGHT_BITS) else _SIZES.get(t, 0) for t in map(str.lower, types))
    width = np.array([*sizes, 0], dtype=np.int64)[data_type]
    activities, linked_op = linked.trace.activities, linked.links.op_of_activity[rows]
    op = numbers(activities["external_id"], ABSENT)[rows]
    op = np.where((op == ABSENT) & (linked_op >= 0), -1 - linked_op, op)
    key = joint_codes(numbers(activities["process"])[rows], op)
    _, group, counts = np.unique(key, return_inverse=True, return_counts=True)
    is_alone = (op == ABSENT) | (counts[group] == 1)
    is_told = (elements >= 0) & (elements < _MOST_ELEMENTS) & (width > 0) & is_alone
    return np.where(is_told, np.where(is_told, elements, 0) * width, ABSENT)


def annotated_inputs(linked: LinkedTrace, marks: IntArray) -> tuple[IntArray, IntArray]:
    """Return the element count and element size of annotated inputs, per activity.

    ABSENT elements and 0 bytes where they are not known, such as of several kernels of one.
    """
    _, group, counts = np.unique(marks, return_inverse=True, return_counts=True)
    alone = np.where(counts[group] == 1, marks, -1)
    dims, types = (linked.trace.marks[name] for name in ("input_dims", "input_types"))
    elements = np.array([*map(_elements, names(dims)), ABSENT], dtype=np.int64)
    width = np.array([*map(_common_width, names(types)), 0], dtype=np.int64)
    return elements[taken(codes(dims), alone)], width[taken(codes(types), alone)]


def _elements(dims: str) -> int:
    """Return the elements of tensors by their shapes as JSON, ABSENT where they are not known."""
    shapes = [map(int, _NUMBER.findall(shape)) for shape in _SHAPE.findall(dims)]
    count = sum(map(prod, shapes))
    return count if 0 < count < _MOST_ELEMENTS else ABSENT


def _common_width(types: str) -> int:
    """Return the bytes of an element of tensors by their types as JSON, 0 where they differ."""
    types_ = set(read_types(types)) - {""}
    element = element_type(types_.pop()) if len(types_) == 1 else None
    return element.bytes if element is not None else 0
