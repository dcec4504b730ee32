"""Tells which collective each RCCL kernel ran, by the RCCL call that launched it.

A HIP call, the one with the correlation of the kernel, launched it; the kernel belongs to the RCCL
call of the same thread during which it was launched. A group's calls are launched by its end call.

Tables below say what each RCCL call moves, by the names of arguments in rocprofiler-sdk.
Sources: rocprofiler-sdk's rccl.def.cpp (argument names) and RCCL's nccl.h (data types).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct, field

from traceflops.parsers.shared.trace_builder import Gathered
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, IntArray
from traceflops.table.grouping import groups, joint_codes
from traceflops.table.links import first_match

ONE, RANKS = "one", "ranks"
T = TypeVar("T")
Arguments = Mapping[int, Mapping[str, str]]
"""By row of the calls: the text of each argument by its name."""
_TEXTS: Final = ("collective", "collective_dtype", "collective_group")
_RCCL_KERNEL: Final = re.compile(r"nccl|rccl|msccl|onerank", re.IGNORECASE)


class CollectiveCall(Struct, frozen=True):
    """The collective of a call: its name as frameworks write it, and what one rank moves.

    `count` is the name of the argument that counts elements. A rank sends that count `puts` times
    and receives it `gets` times: ONE, RANKS (once per rank), 0, or None if it depends on the root.
    """

    name: str
    count: str | None
    puts: str | int | None
    gets: str | int | None

    def elements(self, times: str | int | None, count: int | None, ranks: int | None) -> int | None:
        """Return `times` (ONE, RANKS, 0 or None) the count of elements; None if unknown."""
        if times == 0:
            return 0
        if times is None or count is None:
            return None
        if times == ONE:
            return count
        return count * ranks if ranks is not None and count * ranks < 2**63 else None


COLLECTIVES: Final[Mapping[str, CollectiveCall]] = {
    "ncclAllReduce": CollectiveCall("allreduce", "count", ONE, ONE),
    "ncclAllReduceWithBias": CollectiveCall("allreduce", "count", ONE, ONE),
    "ncclReduce": CollectiveCall("reduce", "count", ONE, None),
    "ncclBroadcast": CollectiveCall("broadcast", "count", None, ONE),
    "ncclBcast": CollectiveCall("broadcast", "count", None, ONE),
    "ncclReduceScatter": CollectiveCall("reduce_scatter", "recvcount", RANKS, ONE),
    "ncclAllGather": CollectiveCall("allgather", "sendcount", ONE, RANKS),
    "ncclGather": CollectiveCall("gather", "sendcount", ONE, None),
    "ncclScatter": CollectiveCall("scatter", "recvcount", None, ONE),
    "ncclAllToAll": CollectiveCall("all_to_all", "count", RANKS, RANKS),
    "ncclAllToAllv": CollectiveCall("all_to_allv", None, None, None),
    "ncclSend": CollectiveCall("send", "count", ONE, 0),
    "ncclRecv": CollectiveCall("recv", "count", 0, ONE),
}
EXCHANGE: Final = "sendrecv"
"""Sends and receives of one group, which run as one kernel."""
GROUP_START, GROUP_END = "ncclGroupStart", "ncclGroupEnd"
SIZES: Final[Mapping[str, str | None]] = {
    "ncclCommInitRank": "nranks",
    "ncclCommInitRankConfig": "nranks",
    "ncclCommInitAll": "ndev",
    "ncclCommSplit": None,
    "ncclCommShrink": None,
}
"""Calls that make a communicator, and the argument that says how many ranks it has."""
MADE: Final = ("newcomm", "comm", "comms")
"""The arguments of those calls that name the new communicator; the first one present counts."""
_DATA_TYPES: Final = (
    ("Char", "ncclInt8", "ncclChar"),
    ("Byte", "ncclUint8"),
    ("Int", "ncclInt32", "ncclInt"),
    ("UInt32", "ncclUint32"),
    ("Long", "ncclInt64"),
    ("UInt64", "ncclUint64"),
    ("Half", "ncclFloat16", "ncclHalf"),
    ("Float", "ncclFloat32", "ncclFloat"),
    ("Double", "ncclFloat64", "ncclDouble"),
    ("BFloat16", "ncclBfloat16"),
    ("Float8_e4m3", "ncclFloat8e4m3", "ncclFp8E4M3"),
    ("Float8_e5m2", "ncclFloat8e5m2", "ncclFp8E5M2"),
)
"""In the order of RCCL's numbers: the name that frameworks use, then RCCL's own."""
DATA_TYPES: Final[Mapping[str, str]] = {
    spelling: names[0]
    for number, names in enumerate(_DATA_TYPES)
    for spelling in (str(number), *(name.lower() for name in names[1:]))
}


def data_type(text: str | None) -> str | None:
    """Return the element type that an argument names, by its name or its number."""
    return None if text is None else DATA_TYPES.get(text.strip().rpartition("::")[2].lower())


def amount(text: str | None) -> int | None:
    """Return the count of elements or ranks in the text of an argument, None if it is no count."""
    text = "" if text is None else text.strip()
    is_count = text.isascii() and text.isdecimal() and len(text) < 19
    return int(text) if is_count else None


class _Facts(Struct, frozen=True):
    """What is known of a collective (of one call, or of a kernel), as columns of activities."""

    collective: str
    collective_dtype: str | None = None
    collective_in_elements: int | None = None
    collective_out_elements: int | None = None
    collective_group_size: int | None = None
    collective_group: str | None = None


def fill_collectives(builder: Gathered, arguments: Arguments) -> int:
    """Fill in the columns of collectives, in place, for kernels that RCCL launched.

    Return the number of these kernels. `arguments` is empty for a format without any: then only the
    kind is known. The argument `group` is an id of the communicator that is the same on all ranks,
    unlike its address, `comm`. If a group of calls ran several kinds of collectives, the columns of
    its kernels stay null: which kernel ran which kind is unknown.
    """
    call_table, activities = builder["calls"], builder["activities"]
    kinds, names = activities.names["kind"], activities.names["name"]
    rccl_names = [code for name, code in names.items() if _RCCL_KERNEL.search(name)]
    if not rccl_names or "kernel" not in kinds or "rccl" not in call_table.names["api"]:
        return 0
    # RCCL's kernels that carry the id of a call.
    is_rccl = np.isin(activities.column("name"), rccl_names)
    is_rccl &= activities.column("kind") == kinds["kernel"]
    kernels = np.flatnonzero(is_rccl & (activities.column("correlation") != ABSENT))
    if not len(kernels):
        return 0
    # The row of the call that launched each kernel (the earliest of its process), or -1.
    launch_ids = activities.column("correlation")[kernels]
    rows = np.flatnonzero(np.isin(call_table.column("correlation"), launch_ids))
    process, ids, start = (
        call_table.column(name)[rows] for name in ("process", "correlation", "start_ns")
    )
    first = first_match(process, ids, start, activities.column("process")[kernels], launch_ids)
    launch = np.append(rows, -1)[first]

    # The collective of each scope (calls that launch together) that has kernels.
    calls = _Calls(call_table, launch, arguments)
    scope = calls.scope_of(launch)
    facts = {number: calls.facts_of(number, len(launched)) for number, launched in groups(scope)}
    facts_of_scope = {number: fact for number, fact in facts.items() if fact is not None}
    known = np.flatnonzero(np.isin(scope, list(facts_of_scope)))
    if not len(known):
        return 0
    facts_of_kernels = [facts_of_scope[number] for number in scope[known].tolist()]
    for name in _Facts.__struct_fields__:
        values = [getattr(fact, name) for fact in facts_of_kernels]
        if name in _TEXTS:
            codes = activities.names[name]
            values = [-1 if value is None else codes[value] for value in values]
        column = activities.column(name)
        column[kernels[known]] = [ABSENT if value is None else value for value in values]
        activities.replace(name, column)
    return len(known)


class _Calls:
    """The outermost RCCL calls of each thread, and the scope of each.

    The calls of a scope launch together: a collective alone, or all collectives of a group. The
    number of a scope is the row of the collective, or of the call that ends the group. `_members`
    has the rows of the collectives of each scope.
    """

    def __init__(self, table: TableBuilder, launch: IntArray, arguments: Arguments) -> None:
        """Find the RCCL calls in a table of calls, the scopes of its threads, the communicators.

        `launch` are the rows of the calls that launched kernels, -1 for unknown.
        """
        rows = np.flatnonzero(table.column("api") == table.names["api"]["rccl"])
        self._arguments, self._process = arguments, table.column("process")
        self._thread = np.full(table.count, -1, dtype=np.int64)
        needed = np.union1d(rows, launch[launch >= 0])
        self._thread[needed] = joint_codes(self._process[needed], table.column("thread")[needed])
        self._start = table.column("start_ns")
        self._end = self._start + table.column("dur_ns")
        labels, name = list(table.names["name"]), table.column("name")
        self._label = {row: labels[name[row]] for row in rows.tolist()}

        # By thread: the rows of its outermost RCCL calls, and the scope of each.
        self._by_thread: dict[int, tuple[IntArray, IntArray]] = {}
        self._members: defaultdict[int, list[int]] = defaultdict(list)
        for thread, members in groups(self._thread[rows]):
            calls = rows[members]
            calls = calls[np.lexsort((-self._end[calls], self._start[calls]))]
            # An outermost call ends after all calls that began before it.
            latest_end = np.maximum.accumulate(self._end[calls])
            outer = calls[np.append(True, self._end[calls][1:] > latest_end[:-1])]
            scope = self._scopes(outer)
            self._by_thread[thread] = outer, scope
            for row, number in zip(outer.tolist(), scope.tolist(), strict=True):
                if number >= 0 and self._label[row] in COLLECTIVES:
                    self._members[number].append(row)

        # The communicators of each process: those that calls make, and those that calls use.
        self._communicators: defaultdict[int, _Communicators] = defaultdict(_Communicators)
        for row, label in self._label.items():
            given, own = arguments.get(row, {}), self._communicators[int(self._process[row])]
            if label in SIZES:
                size_argument = SIZES[label]
                size = amount(given.get(size_argument)) if size_argument is not None else None
                handle = next((given[made] for made in MADE if made in given), None)
                own.sizes.setdefault(handle, set()).add(size)
                # ncclCommInitAll makes a communicator for each rank.
                own.made += (size or 1) if label == "ncclCommInitAll" else 1
            elif label in COLLECTIVES and given.get("comm"):
                own.used.add(given["comm"])

    def _scopes(self, outer: IntArray) -> IntArray:
        """Return the scope of each outermost call of a thread, -1 for none; `outer` has rows."""
        labels = [self._label[row] for row in outer.tolist()]
        opens = np.array([name == GROUP_START for name in labels], dtype=np.int64)
        ends = np.array([name == GROUP_END for name in labels], dtype=np.int64)
        depth = np.cumsum(opens - ends)
        # Groups nest. The end of a group whose start was not recorded must not count below 0.
        depth -= np.minimum(np.minimum.accumulate(depth), 0)
        depth_before = np.append(0, depth[:-1])
        # A call in a group belongs to the next end of an outermost group, if that was recorded.
        closing = np.flatnonzero((ends == 1) & (depth == 0) & (depth_before > 0))
        group = np.append(outer[closing], -1)[np.searchsorted(closing, np.arange(len(outer)))]
        alone = np.where(ends == 1, -1, outer)
        return np.where(depth_before > 0, group, alone)

    def scope_of(self, launch: IntArray) -> IntArray:
        """Return, per launch (a row of calls), the scope of the RCCL call around it, or -1."""
        scopes = np.full(len(launch), -1, dtype=np.int64)
        known = np.flatnonzero(launch >= 0)
        for thread, members in groups(self._thread[launch[known]]):
            if thread in self._by_thread:
                calls, scope = self._by_thread[thread]
                start = self._start[launch[known[members]]]
                # The last outermost call that began before the launch; -1 for none.
                last = np.searchsorted(self._start[calls], start, side="right") - 1
                is_inside = (last >= 0) & (start <= self._end[calls[last]])
                scopes[known[members]] = np.where(is_inside, scope[last], -1)
        return scopes

    def facts_of(self, scope: int, kernels: int) -> _Facts | None:
        """Return what is known of each of a scope's kernels, None if its collective is unknown.

        A single kernel ran all calls of the scope; as many kernels as calls ran one call
        each; otherwise the amounts are unknown.
        """
        calls = []
        for row in self._members[scope]:
            kind, given = COLLECTIVES[self._label[row]], self._arguments.get(row, {})
            size = self._communicators[int(self._process[row])].ranks(given.get("comm"))
            count = amount(given.get(kind.count)) if kind.count is not None else None
            sent, received = (kind.elements(n, count, size) for n in (kind.puts, kind.gets))
            dtype, group = data_type(given.get("datatype")), given.get("group") or None
            calls.append(_Facts(kind.name, dtype, sent, received, size, group))
        kinds = {call.collective for call in calls}
        if len(kinds) != 1 and kinds != {"send", "recv"}:
            return None
        puts = [call.collective_in_elements for call in calls]
        gets = [call.collective_out_elements for call in calls]
        if kernels == 1:
            put, got = _sum(puts), _sum(gets)
        else:
            put, got = (_common(puts), _common(gets)) if kernels == len(calls) else (None, None)
        return _Facts(
            kinds.pop() if len(kinds) == 1 else EXCHANGE,
            _common(call.collective_dtype for call in calls),
            put,
            got,
            _common(call.collective_group_size for call in calls),
            _common(call.collective_group for call in calls),
        )


class _Communicators(Struct):
    """The communicators of one process.

    `sizes` has their possible numbers of ranks, by the handle in the arguments of the call that
    made them. `used` are the handles in the arguments of collectives; `made` counts communicators.
    """

    sizes: dict[str | None, set[int | None]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    made: int = 0

    def ranks(self, communicator: str | None) -> int | None:
        """Return how many ranks a communicator has, None if unknown.

        The call that makes a communicator may name the address of its handle, which matches no
        handle in use. Then the size is known only if all communicators of the process have one
        size, and collectives use no more communicators than were made.
        """
        if communicator is not None and communicator in self.sizes:
            return _common(self.sizes[communicator])
        if not self.used.isdisjoint(self.sizes) or len(self.used) > self.made:
            return None
        return _common(size for sizes in self.sizes.values() for size in sizes)


def _common(values: Iterable[T | None]) -> T | None:
    """Return the value that all have, None if they differ or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _sum(values: Sequence[int | None]) -> int | None:
    """Return the sum, None if a value is unknown or the sum does not fit an int64."""
    given = [value for value in values if value is not None]
    return sum(given) if len(given) == len(values) and sum(given) < 2**63 else None
