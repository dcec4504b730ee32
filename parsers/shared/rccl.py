"""RCCL's calls in plain data: what each moves, by the arguments that rocprofiler-sdk names.

Sources: rocprofiler-sdk's rccl.def.cpp (argument names) and RCCL's nccl.h (data types).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ONE, RANKS = "one", "ranks"


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """What a call does: its name as frameworks write it, and what one rank puts in and gets out.

    `count` is the argument that counts elements; `puts` and `gets` say how many times that:
    ONE, RANKS (once per rank), 0, or None where it depends on who the root is.
    """

    name: str
    count: str | None
    puts: str | int | None
    gets: str | int | None

    def elements(self, times: str | int | None, count: int | None, ranks: int | None) -> int | None:
        """Return `times` the count; None where that is not known."""
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

MAKE_MANY: Final = ("ncclCommInitAll",)
"""Those that make a communicator for each rank."""

MADE: Final = ("newcomm", "comm", "comms")
"""The arguments of those calls that hold the communicator; the first there is counts."""

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
    """Return a count of elements or ranks; None for what is none."""
    text = "" if text is None else text.strip()
    small = text.isascii() and text.isdecimal() and len(text) < 19
    return int(text) if small else None
