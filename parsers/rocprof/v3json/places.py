"""Where things stand in rocprofv3's JSON, and what one process of it holds."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from traceflops.parsers.io import SKIPPED, UNDECODABLE, WHOLE, Elements, Found, Members, Records
from traceflops.parsers.rocprof.v3json.block import RecordBlock, RecordReader
from traceflops.parsers.rocprof.v3json.records import KINDS

ROOT_KEY: Final = "rocprofiler-sdk-tool"

APIS: Final = {
    "hip_api": "hip",
    "hsa_api": "hsa",
    "rccl_api": "rccl",
    "rocdecode_api": "rocdecode",
    "rocjpeg_api": "rocjpeg",
    "hipfile_api": "hipfile",
    "rocshmem_api": "rocshmem",
}
"""The lists of API calls, and the API of each."""

_LISTS: Final = {name: Records(RecordReader(name)) for name in KINDS}
_BUFFERED: Final = {
    "kernel_dispatch": _LISTS["dispatch"],
    "memory_copy": _LISTS["copy"],
    "scratch_memory": _LISTS["scratch"],
    "marker_api": _LISTS["call"],
    **dict.fromkeys(APIS, _LISTS["call"]),
    "hip_api": _LISTS["hip call"],
    "rccl_api": _LISTS["collective"],
}

PROCESS: Final = Members(
    {
        "metadata": WHOLE,
        "agents": _LISTS["agent"],
        "counters": _LISTS["counter"],
        "strings": Members({"buffer_records": WHOLE, "marker_api": _LISTS["message"]}),
        "code_objects": SKIPPED,
        "kernel_symbols": _LISTS["symbol"],
        "host_functions": SKIPPED,
        "summary": SKIPPED,
        "callback_records": Members({"counter_collection": _LISTS["counting"]}, _LISTS["other"]),
        "buffer_records": Members(_BUFFERED, _LISTS["other"]),
    }
)
ROOT: Final = Members({ROOT_KEY: Elements(PROCESS)})


class _Node(msgspec.Struct):
    machine_id: Any = None
    hostname: Any = None


class _Metadata(msgspec.Struct):
    node: _Node | None = None
    pid: Any = None
    init_time: Any = None
    fini_time: Any = None


class _Operations(msgspec.Struct):
    kind: str = ""
    operations: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Described:
    """What a process says of itself. Command, configuration and environment are never read."""

    machine: str | None = None
    host: str | None = None
    pid: int | None = None
    lifetime_ns: tuple[int, int] | None = None
    has_node: bool = False


class ProcessRecords:
    """What the file holds of one process, until its end is reached: names may follow records."""

    def __init__(self) -> None:
        self.lists: defaultdict[str, list[RecordBlock]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.unreadable: Counter[str] = Counter()
        self.mended: Counter[str] = Counter()
        self.described = Described()
        self.kinds: list[_Operations] = []

    def absorb(self, found: Found) -> None:
        """Add what was found at a place of this process."""
        place = ".".join(map(str, found.path[2:]))
        if isinstance(found.value, RecordBlock):
            block = found.value
            name = str(found.path[-1])
            if len(found.path) == 4 and found.path[2] != "strings":
                self.counts[name] += block.records
            self.unreadable[name] += block.unreadable
            self.mended.update(block.mended)
            block.slim()
            self.lists[place].append(block)
        elif place == "metadata":
            self.described = _described(found.value)
        elif place == "strings.buffer_records":
            self.kinds = _operations(found.value)

    def take(self, place: str) -> list[RecordBlock]:
        """Return the blocks of a list and forget them."""
        return self.lists.pop(place, [])

    def each(self, place: str) -> Iterator[RecordBlock]:
        """Yield the blocks of a list in order and forget each."""
        blocks = deque(self.take(place))
        while blocks:
            yield blocks.popleft()

    def kind(self, number: int) -> str | None:
        """Return the name of a kind of records."""
        return self.kinds[number].kind or None if 0 <= number < len(self.kinds) else None

    def operation(self, kind: int, number: int) -> str | None:
        """Return the name of an operation of a kind of records."""
        if not 0 <= kind < len(self.kinds):
            return None
        operations = self.kinds[kind].operations
        return operations[number] or None if 0 <= number < len(operations) else None


def _described(raw: msgspec.Raw) -> Described:
    try:
        found = msgspec.json.decode(raw, type=_Metadata)
    except UNDECODABLE:
        return Described()
    times = (found.init_time, found.fini_time)
    known = all(type(time) is int and 0 < time < 2**61 for time in times)
    node = found.node or _Node()
    return Described(
        _text(node.machine_id),
        _text(node.hostname),
        found.pid if type(found.pid) is int and 0 <= found.pid < 2**63 else None,
        times if known and times[0] <= times[1] else None,
        found.node is not None,
    )


def _operations(raw: msgspec.Raw) -> list[_Operations]:
    try:
        return msgspec.json.decode(raw, type=list[_Operations])
    except UNDECODABLE:
        return []


def _text(value: object) -> str | None:
    return value.strip()[:256] or None if isinstance(value, str) else None
