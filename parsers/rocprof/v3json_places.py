"""The paths of lists in rocprofv3's JSON, and the lists of one process."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from traceflops.parsers.io.json_blocks import SKIPPED, WHOLE, Elements, JsonPart, Members, Records
from traceflops.parsers.io.json_window import UNDECODABLE
from traceflops.parsers.rocprof.agents import text_of
from traceflops.parsers.rocprof.notes import clock_of
from traceflops.parsers.rocprof.v3json_records import READERS, RecordBlock
from traceflops.table.columns import LIMIT_NS

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
_PROCESS: Final = Members(
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
ROOT: Final = Members({ROOT_KEY: Elements(_PROCESS)})


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


class Metadata:
    """The metadata of a process. Command, configuration and environment are never read."""

    def __init__(self, raw: msgspec.Raw | bytes = b"{}") -> None:
        """Decode the metadata; values that cannot be are None."""
        metadata = _decoded(raw, _Metadata) or _Metadata()
        node, times = metadata.node or _Node(), (metadata.init_time, metadata.fini_time)
        self.has_node = metadata.node is not None
        self.host = text_of(node.hostname)
        self.clock = clock_of(text_of(node.machine_id), self.host)
        pid, are_ints = metadata.pid, all(type(time) is int for time in times)
        self.pid = pid if type(pid) is int and 0 <= pid < 2**63 else None
        fits = are_ints and 1 <= times[0] <= times[1] < LIMIT_NS
        self.lifetime_ns: tuple[int, int] | None = times if fits else None


class ProcessRecords:
    """The lists of one process, held until its end: names may follow the records that use them.

    `counts` are the records of each list, `unreadable` those left out, `mended` repairs by kind.
    """

    def __init__(self) -> None:
        self.lists: defaultdict[str, list[RecordBlock]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.unreadable: Counter[str] = Counter()
        self.mended: Counter[str] = Counter()
        self.metadata = Metadata()
        self.kinds: list[_Operations] = []

    def absorb(self, item: JsonPart) -> None:
        """Add a value of this process; its path is root, process, list."""
        path = ".".join(map(str, item.path[2:]))
        if isinstance(item.value, RecordBlock):
            block, name = item.value, str(item.path[-1])
            if len(item.path) == 4 and item.path[2] != "strings":
                self.counts[name] += block.records
            self.unreadable[name] += block.unreadable
            self.mended.update(block.mended)
            block.slim()
            self.lists[path].append(block)
        elif path == "metadata":
            self.metadata = Metadata(item.value)
        elif path == "strings.buffer_records":
            self.kinds = _decoded(item.value, list[_Operations]) or []

    def take(self, path: str) -> list[RecordBlock]:
        """Return the blocks of a list and forget them."""
        return self.lists.pop(path, [])

    def each(self, path: str) -> Iterator[RecordBlock]:
        """Yield the blocks of a list in order and forget each."""
        blocks = deque(self.take(path))
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
