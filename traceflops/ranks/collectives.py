"""What the kernels of collectives moved: kind, ranks, bytes, time and how much of it is exposed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.flops.ops.arguments import element_type, read_types, read_values
from traceflops.table.arrays import BoolArray
from traceflops.table.columns import ABSENT, IntArray, Names, codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct, group_rows, groups, joint_codes, ranked
from traceflops.table.nesting import taken
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.windows.records import Accounts, Windows, chosen_activities, chosen_time

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
_SHAPE: Final = re.compile(r"\[[\d,\s]*\d[\d,\s]*\]")
"""The dimensions of one tensor; tensors may be in lists of lists."""
_NUMBER: Final = re.compile(r"\d{1,18}")
_MOST_ELEMENTS: Final = 2**58  # the bytes of more elements might not fit into 64 bits
_ONE_SIDE_TELLS: Final = frozenset({"broadcast", "reduce", "send", "recv"})
"""Collectives whose input and output are of one size, on ranks that have both."""


def kinds_of(labels: Sequence[str], used: IntArray) -> IntArray:
    """Return, by code of `labels`, the place in KINDS of the label's kind, -1 for none.

    Only labels with a code in `used` are read. One entry more, the last, is for code -1: no label.
    """
    kinds = np.full(len(labels) + 1, -1, dtype=np.int64)
    for code in distinct(used[used >= 0]).tolist():
        kinds[code] = kind_of(labels[code])
    return kinds


def kind_of(label: str) -> int:
    """Return the place in KINDS of the first kind whose words are in a label, -1 if none is."""
    letters = re.sub(r"[^a-z0-9]", "", label.lower())
    for code, words in enumerate(_KINDS.values()):
        if re.search(words, letters):
            return code
    return -1


class Collective(Struct, frozen=True):
    """Kernels of one kind of collective and one number of ranks, in the chosen windows.

    `sum_ns` is their time inside the windows; `exposed_ns` is the part of it in which nothing else
    ran on their device. Collectives that run at the same time are counted separately. The size of
    `sized` kernels is known: `bytes` and `sized_ns` sum their sizes and durations. None: unknown.
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
    linked: LinkedTrace, accounts: Accounts, windows: Windows
) -> tuple[Collective, ...]:
    """Return a row per kind of collective and number of ranks, the longest first.

    Rows sum the kernels in the chosen windows. The kind is the recorded one, else the one in the
    name of the kernel. There are no rows if no kernel has a recorded kind.
    """
    activities = linked.trace.activities
    chosen = chosen_activities(accounts, windows)
    is_comm = is_one_of(activities["kind"], "kernel")[chosen.row]
    is_comm &= is_top(linked.categorised, "communication", chosen.row)
    row, inside_ns = chosen.row[is_comm], chosen.inside_ns[is_comm]
    starts_inside = chosen.starts_inside[is_comm]
    recorded_kind = codes(activities["collective"])[row]
    if not (recorded_kind >= 0).any():
        return ()
    # `kind` is a place in `labels`: the recorded labels, then KINDS for those that a name tells.
    recorded_labels = names(activities["collective"])
    labels = [*recorded_labels, *KINDS]
    name = codes(activities["name"])[row]
    by_name = taken(kinds_of(names(activities["name"]), name), name)
    uses_name = (recorded_kind < 0) & (by_name >= 0)
    kind = np.where(uses_name, len(recorded_labels) + by_name, recorded_kind)
    ranks = numbers(activities["collective_group_size"], ABSENT)[row]
    exposed = _exposed_ns(linked, accounts, windows, row)
    message = message_bytes(linked, row)
    whole_ns = linked.split.whole_ns[row]
    # Sizes are of whole kernels: they count for those that start in the windows.
    is_sized = (message != ABSENT) & (starts_inside == 1)
    collectives = []
    for _, rows in groups(group_rows((kind, ranks))[0]):
        group_kind, group_ranks = int(kind[rows[0]]), int(ranks[rows[0]])
        sized = rows[is_sized[rows]]
        collectives.append(
            Collective(
                collective=labels[group_kind] if group_kind >= 0 else None,
                ranks=group_ranks if group_ranks > 0 else None,
                count=int(starts_inside[rows].sum()),
                sum_ns=int(inside_ns[rows].sum()),
                exposed_ns=int(exposed[rows].sum()),
                sized=len(sized),
                bytes=sum(message[sized].tolist()) if len(sized) else None,
                sized_ns=int(whole_ns[sized].sum()),
            )
        )
    return tuple(sorted(collectives, key=lambda c: (-c.sum_ns, c.collective or "", c.ranks or 0)))


def _exposed_ns(
    linked: LinkedTrace, accounts: Accounts, windows: Windows, row: IntArray
) -> IntArray:
    """Return, per kernel, for how long in the chosen windows its device did nothing else."""
    activities = linked.trace.activities
    device, start = numbers(activities["device"])[row], numbers(activities["start_ns"])[row]
    end = start + numbers(activities["dur_ns"])[row]
    exposed = np.zeros(len(row), dtype=np.int64)
    for number, account in accounts.items():
        own = device == number
        # The part of communication is the time in which a device does nothing else.
        alone = account.timeline.parts["communication"].intersect(chosen_time(windows[number]))
        exposed[own] = alone.length_within(start[own], end[own])
    return exposed


class Recorded:
    """Metadata of the collectives of some activities: the activity's own, else its operator's."""

    def __init__(self, linked: LinkedTrace, rows: IntArray) -> None:
        of_op = linked.links.op_of_activity[rows]
        self._sides = ((linked.trace.activities, rows), (linked.trace.ops, of_op))

    def numbers(self, column: str) -> IntArray:
        """Return the value of a numeric column for each activity, ABSENT if it has none."""
        sides = [taken(numbers(table[column], ABSENT), rows, ABSENT) for table, rows in self._sides]
        own, of_op = sides
        return np.where(own != ABSENT, own, of_op)

    def texts(self, column: str) -> tuple[IntArray, list[str]]:
        """Return the code of each activity's text in a column (-1: none), and the text by code."""
        # Activities and operators have codes of their own; the pool gives both the same codes.
        pool = Names()
        own, of_op = (
            taken(pool.codes(names(table[column])), taken(codes(table[column]), rows))
            for table, rows in self._sides
        )
        return np.where(own >= 0, own, of_op).astype(np.int64), list(pool)

    def sequence(self) -> IntArray:
        """Return the sequence number of each activity's collective in its group, or ABSENT.

        It is the number that the framework gives, else the second input of the launching operator.
        """
        by_framework = self.numbers("collective_sequence")
        _, (ops, op_row) = self._sides
        inputs = ops["concrete_inputs"]
        # The second input of an operator that is no collective means something else.
        is_collective = taken(codes(ops["collective"]), op_row) >= 0
        # Each text of inputs is read once. Codes [5 -1 5]: used [-1 5], which [1 0 1].
        used, which = ranked(np.where(is_collective, taken(codes(inputs), op_row), -1))
        texts = names(inputs)
        second_inputs = np.full(len(used), ABSENT)
        for index, code in enumerate(used.tolist()):
            values = read_values(texts[code]) if code >= 0 else ()
            second = values[1] if len(values) > 1 else None
            if type(second) is int and 0 <= second < 2**63:
                second_inputs[index] = second
        return np.where(by_framework >= 0, by_framework, second_inputs[which])


def message_bytes(linked: LinkedTrace, rows: IntArray) -> IntArray:
    """Return the bytes of the message of each activity: the larger of a rank's input and output.

    It is ABSENT if a size or the data type is not known. It is ABSENT, too, if one operator
    launched several kernels: then nothing says how much each of them moved.
    """
    recorded = Recorded(linked, rows)
    given = recorded.numbers("collective_in_elements")
    received = recorded.numbers("collective_out_elements")
    kind, kinds = recorded.texts("collective")
    one_suffices = np.array([*(name in _ONE_SIDE_TELLS for name in kinds), False])[kind]
    has_both = (given >= 0) & (received >= 0)
    elements = np.where(has_both | one_suffices, np.maximum(given, received), ABSENT)
    # Bytes of an element by data type, 0 for one that is not known, and for -1, no data type.
    data_type, types = recorded.texts("collective_dtype")
    sizes = (1 if t.startswith("float8_") else _SIZES.get(t, 0) for t in map(str.lower, types))
    width = np.array([*sizes, 0], dtype=np.int64)[data_type]
    is_sized = (elements >= 0) & (elements < _MOST_ELEMENTS) & (width > 0)
    is_known = is_sized & _is_only_kernel(linked, rows)
    known_elements = np.where(is_known, elements, 0)  # so that no product overflows
    return np.where(is_known, known_elements * width, ABSENT)


def _is_only_kernel(linked: LinkedTrace, rows: IntArray) -> BoolArray:
    """Return, per activity, whether its operator launched no other of them; True without one."""
    activities, op_row = linked.trace.activities, linked.links.op_of_activity[rows]
    op = numbers(activities["external_id"], ABSENT)[rows]
    # An operator without a recorded number gets a negative one from its row (ABSENT is lower).
    op = np.where((op == ABSENT) & (op_row >= 0), -1 - op_row, op)
    # An operator is known by its process and number. Keys [8 9 8]: counts[group] is [2 1 2].
    key = joint_codes(numbers(activities["process"])[rows], op)
    _, group, counts = np.unique(key, return_inverse=True, return_counts=True)
    return np.asarray((op == ABSENT) | (counts[group] == 1))


def annotated_inputs(linked: LinkedTrace, marks: IntArray) -> tuple[IntArray, IntArray]:
    """Return the element count and the element size in bytes of the inputs of annotations.

    `marks` has, per activity, the row of the annotation around its launch, or -1. Where the inputs
    are not known, or several activities share one annotation, they are ABSENT elements of 0 bytes.
    """
    # marks [5 5 8 -1]: counts[group] is [2 2 1 1], only_mark [-1 -1 8 -1].
    _, group, counts = np.unique(marks, return_inverse=True, return_counts=True)
    only_mark = np.where(counts[group] == 1, marks, -1)
    dims, types = (linked.trace.marks[name] for name in ("input_dims", "input_types"))
    elements = np.array([*map(elements_of, names(dims)), ABSENT], dtype=np.int64)
    widths = []
    for text in names(types):
        distinct_types = set(read_types(text)) - {""}
        element = element_type(distinct_types.pop()) if len(distinct_types) == 1 else None
        widths.append(element.bytes if element is not None else 0)
    width = np.array([*widths, 0], dtype=np.int64)
    return elements[taken(codes(dims), only_mark)], width[taken(codes(types), only_mark)]


def elements_of(dims: str) -> int:
    """Return how many elements the tensors of a JSON list of shapes have, ABSENT if not known."""
    shapes = [map(int, _NUMBER.findall(shape)) for shape in _SHAPE.findall(dims)]
    count = sum(map(prod, shapes))
    return count if 0 < count < _MOST_ELEMENTS else ABSENT
