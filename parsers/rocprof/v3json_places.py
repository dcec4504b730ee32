"""Where things stand in rocprofv3's JSON, and what one process of it holds."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from traceflops.parsers.io import SKIPPED, UNDECODABLE, WHOLE, Elements, JsonPart, Members, Records
from traceflops.parsers.rocprof.agents import text_of
from traceflops.parsers.rocprof.notes import clock_of
from traceflops.parsers.rocprof.v3json_records import READERS, RecordBlock

T = TypeVar("T")

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

_LISTS: Final = {name: Records(reader) for name, reader in READERS.items()}
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


class Described:
    """What a process says of itself. Command, configuration and environment are never read."""

    def __init__(self, raw: msgspec.Raw | bytes = b"{}") -> None:
        metadata = _decoded(raw, _Metadata) or _Metadata()
        node, times = metadata.node or _Node(), (metadata.init_time, metadata.fini_time)
        self.has_node = metadata.node is not None
        self.machine, self.host = text_of(node.machine_id), text_of(node.hostname)
        self.clock = clock_of(self.machine, self.host)
        self.pid = metadata.pid if _is_number(metadata.pid, 0, 2**63) else None
        known = all(_is_number(time, 1, 2**61) for time in times) and times[0] <= times[1]
        self.lifetime_ns: tuple[int, int] | None = times if known else None


class ProcessRecords:
    """What the file holds of one process, until its end is reached: names may follow records."""

    def __init__(self) -> None:
        self.lists: defaultdict[str, list[RecordBlock]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.unreadable: Counter[str] = Counter()
        self.mended: Counter[str] = Counter()
        self.described = Described()
        self.kinds: list[_Operations] = []

    def absorb(self, item: JsonPart) -> None:
        """Add what stands at a place of this process."""
        place = ".".join(map(str, item.path[2:]))
        if isinstance(item.value, RecordBlock):
            block, name = item.value, str(item.path[-1])
            if len(item.path) == 4 and item.path[2] != "strings":
                self.counts[name] += block.records
            self.unreadable[name] += block.unreadable
            self.mended.update(block.mended)
            block.slim()
            self.lists[place].append(block)
        elif place == "metadata":
            self.described = Described(item.value)
        elif place == "strings.buffer_records":
            self.kinds = _decoded(item.value, list[_Operations]) or []

    def take(self, place: str) -> list[RecordBlock]:
        """Return the blocks of a list and forget them."""
        return self.lists.pop(place, [])

    def each(self, place: str) -> Iterator[RecordBlock]:
        """Yield the blocks of a list in order and forget each."""
        blocks = deque(self.take(place))
        while blocks:
            yield blocks.popleft()

    def operation(self, kind: int, number: int) -> str | None:
        """Return the name of an operation of a kind of records."""
        operations = self.kinds[kind].operations if 0 <= kind < len(self.kinds) else []
        return operations[number] or None if 0 <= number < len(operations) else None


def _decoded(raw: msgspec.Raw | bytes, form: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=form)
    except UNDECODABLE:
        return None


def _is_number(value: object, low: int, below: int) -> bool:
    return type(value) is int and low <= value < below
