"""Reports of Nsight Systems as the profiler itself writes them (.nsys-rep): messages in blocks.

Beside what a reader wants they hold what none should take: command lines, folders, variables of the
environment. Here these are invented, and stand in all places where real files have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from msgspec import Struct

from sample_traces.messages import counted, number, part, varint
from sample_traces.nsight.nsys import stem_of, tables_of
from sample_traces.nsight.schema import Row, Tables, Value
from sample_traces.nsight.session import VM, NsightOptions, Session, sessions
from sample_traces.records import Run

Writer = Literal["2023", "2026"]
"""Which writer is imitated; they differ in the clocks and in where a wait says its kind."""

SECRET: Final = "sk-secret-of-the-environment"
"""Stands in the command line, the environment, folders and arguments."""
_VERSIONS: Final[Mapping[Writer, str]] = {"2023": "1.", "2026": "2026@1@3@425-261338888888v0."}
_PRIVATE: Final = f"python3 train.py --token {SECRET}\0API_TOKEN={SECRET}\0HOME=/home/{SECRET}\0"
_UPTIME_NS: Final = 28_254_349_605_000
_BLOCK_EVENTS: Final = 500
_WORK, _CALL, _NVTX, _PROCESS, _DIAGNOSTIC = 107, 108, 102, 113, 110

Numbers = Mapping[str, int]
_OF_WORK: Final[Numbers] = {
    "start": 1,
    "end": 2,
    "correlationId": 3,
    "deviceId": 4,
    "contextId": 5,
    "streamId": 6,
    "globalPid": 8,
}
_OF_KERNEL: Final[Numbers] = {
    "demangledName": 1,
    "shortName": 2,
    "mangledName": 3,
    **{
        f"{what}{axis}": 10 + n
        for n, (what, axis) in enumerate(
            (what, axis) for what in ("grid", "block") for axis in "XYZ"
        )
    },
    "staticSharedMemory": 16,
    "dynamicSharedMemory": 17,
    "localMemoryPerThread": 18,
    "localMemoryTotal": 19,
    "gridId": 20,
    "registersPerThread": 21,
    "sharedMemoryExecuted": 22,
    "cacheConfig": 23,
    "launchType": 24,
}
_OF_CALL: Final[Numbers] = {
    "start": 1,
    "end": 2,
    "correlationId": 3,
    "eventClass": 6,
    "nameId": 7,
    "returnValue": 8,
    "globalTid": 13,
}
_OF_RANGE: Final[Numbers] = {
    "eventType": 1,
    "start": 2,
    "color": 6,
    "text": 7,
    "globalTid": 9,
    "end": 10,
    "textId": 12,
    "domainId": 13,
}
_OF_GPU: Final[Numbers] = {
    "id": 1,
    "name": 2,
    "busLocation": 3,
    "isDiscrete": 4,
    "uuid": 5,
    "chipName": 7,
    "l2CacheSize": 10,
    "totalMemory": 11,
    "memoryBandwidth": 12,
    "clockRate": 13,
    "smCount": 14,
    "threadsPerWarp": 30,
    "maxWarpsPerSm": 32,
    "computeMajor": 41,
    "computeMinor": 42,
    "smMajor": 43,
    "smMinor": 44,
}


class _Kind(Struct, frozen=True):
    """Work on a device: type, kind as a number, number of its own part, the fields of that."""

    type: int
    kind: int
    part: int
    numbers: Numbers


_OF_SYNC: Final[Mapping[Writer, Numbers]] = {
    "2023": {"eventId": 1, "syncType": 2},
    "2026": {"eventId": 1, "eventSyncId": 3, "syncType": 4},
}
_WORKS: Final[Mapping[str, _Kind]] = {
    "KERNEL": _Kind(79, 3, 101, _OF_KERNEL),
    "MEMCPY": _Kind(80, 1, 102, {"bytes": 1, "copyKind": 2, "srcKind": 4, "dstKind": 5}),
    "MEMSET": _Kind(80, 2, 103, {"bytes": 1, "value": 2, "memKind": 4}),
    "SYNCHRONIZATION": _Kind(106, 5, 105, {}),
    "CUDA_EVENT": _Kind(127, 6, 106, {"eventId": 1}),
    "GRAPH_TRACE": _Kind(130, 7, 107, {"graphId": 1, "graphExecId": 2}),
}
_CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API")


def write_reports(
    run: Run,
    folder: Path,
    options: NsightOptions,
    writer: Writer = "2026",
    together: bool = False,
    stored: bool = False,
) -> list[Path]:
    """Write `run.rank<n>.nsys-rep` for each rank, or one `run.nsys-rep`; `stored`: not packed."""
    paths = []
    for session in sessions(run, options, together):
        path = folder / f"{stem_of(session, together)}.nsys-rep"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(report(session, writer, stored))
        paths.append(path)
    return paths


def report(session: Session, writer: Writer, stored: bool = False) -> bytes:
    """Return the report of a session."""
    tables = tables_of(session, "2026")
    events = [*_events(tables, writer), *_private_events(tables)]
    texts = [*session.texts, _PRIVATE]
    head, tail, clocks = _head(session, writer), _tail(tables), _clocks(session)
    return file_of(events, texts, head, tail, writer, clocks, stored)


def file_of(
    events: Sequence[bytes],
    texts: Sequence[str],
    head: bytes,
    tail: bytes,
    writer: Writer = "2026",
    clocks: bytes = b"",
    stored: bool = False,
    behind: bytes = b"",
    more: Mapping[str, bytes] | None = None,
    names_threads: bool = True,
) -> bytes:
    """Return a file that holds events and texts, and what stands around them.

    `behind` are the parts behind the tail, of which the first is that of schemas, and `more` are
    sections that no reader knows. Of a program without threads, their part is left out.
    """
    index = number(1, len(events)) + number(3, len(texts)) + number(5, 1) + part(9, b"lz4")
    places = range(0, len(events), _BLOCK_EVENTS)
    blocks = b"".join(block(events[at : at + _BLOCK_EVENTS], stored=stored) for at in places)
    threads = part(1, number(2, 0) + number(4, VM))
    begin = b"QDTEXT00" + counted(head) + counted(index)
    encoded = [text.encode() for text in texts]
    raw = begin + blocks + block(encoded, part(2, number(1, VM)), stored=stored)
    raw += (counted(threads) if names_threads else b"") + counted(tail)
    offsets = part(1, b"lz4") + number(2, len(begin) + len(blocks) - 8)
    sections = {
        "Analysis Options Data": part(1, _PRIVATE.encode()),
        **(more or {}),
        "Raw Sampling Data": raw + behind,
        "Sampling Data Offsets": offsets + (number(3, len(raw) - 8) if behind else b""),
        "Profiling Preset Data": b"",
    }
    if writer == "2026":
        sections["Time Conversion Data"] = clocks
    return _with_contents(f"NVIDIA Tegra Profiler Report {_VERSIONS[writer]}\n", sections)


def _with_contents(first: str, sections: Mapping[str, bytes]) -> bytes:
    data, contents = first.encode(), b""
    for name, section in sections.items():
        place = number(2, len(data)) + number(3, len(section))
        contents += part(1, part(1, name.encode()) + place)
        data += section
    return data + contents + len(data).to_bytes(8, "little") + b"U3w[END]"


def block(parts: Iterable[bytes], rest: bytes = b"", *, stored: bool = False) -> bytes:
    """Return a message that repeats one field, packed, behind its two lengths."""
    plain = counted(b"".join(part(1, one) for one in parts) + rest)
    codec = pa.Codec("lz4_raw")
    packed: bytes = _literal(plain) if stored else codec.compress(plain, asbytes=True)
    return varint(len(packed)) + varint(len(plain)) + packed


def _literal(plain: bytes) -> bytes:
    """Return bytes as LZ4 keeps what cannot be packed."""
    more, last = divmod(max(0, len(plain) - 15), 255)
    length = b"\xff" * more + bytes([last]) if len(plain) >= 15 else b""
    return bytes([min(15, len(plain)) << 4]) + length + plain


def message(row: Mapping[str, Value], numbers: Numbers, *, zeros: bool = True) -> bytes:
    """Return a row as a message; a value that is not there, or a 0, may be left out."""
    out = b""
    for name, field in numbers.items():
        value = row.get(name)
        if isinstance(value, str):
            out += part(field, value.encode())
        elif isinstance(value, int) and (value or zeros):
            out += number(field, value)
    return out


def event(type_: int, payload: int, content: bytes) -> bytes:
    """Return an event."""
    return number(1, type_) + part(payload, content)


def _events(tables: Tables, writer: Writer) -> Iterator[bytes]:
    """Give the events of a session; the newer writer leaves zeros out."""
    zeros = writer == "2023"
    for table, kind in _WORKS.items():
        numbers = kind.numbers or _OF_SYNC[writer]
        for row in tables.get(f"CUPTI_ACTIVITY_KIND_{table}", []):
            own = part(kind.part, message(row, numbers, zeros=zeros))
            place = message(row, _OF_WORK, zeros=zeros) + number(7, kind.kind)
            yield event(kind.type, _WORK, place + own)
    for row in (row for table in _CALLS for row in tables.get(table, [])):
        yield event(48, _CALL, message(row, _OF_CALL, zeros=zeros))
    for row in tables.get("NVTX_EVENTS", []):
        yield event(_integer(row["eventType"]), _NVTX, message(row, _OF_RANGE, zeros=zeros))
    for row in tables.get("DIAGNOSTIC_EVENT", []):
        content = part(1, number(1, 0)) + number(2, 3) + message(row, {"severity": 3, "text": 4})
        yield event(49, _DIAGNOSTIC, content)


def _private_events(tables: Tables) -> Iterator[bytes]:
    """Give the processes, with folders and arguments; and samples of the CPU."""
    for row in tables["PROCESSES"]:
        own = part(8, f"/home/{SECRET}".encode()) + part(9, _PRIVATE.encode())
        yield event(27, _PROCESS, message(row, {"globalPid": 2, "name": 5}) + own)
    yield event(31, 104, part(1, _PRIVATE.encode()))


def _integer(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _head(session: Session, writer: Writer) -> bytes:
    """Return what stands before the events: private texts, and the clocks of older writers."""
    private = part(2, _PRIVATE.encode())
    if writer == "2026":
        return private + number(17, _UPTIME_NS)
    ahead = (_UPTIME_NS - session.start_unix_ns) % 2**64
    edges = ((9, 10, 14_400_000_000_000), (7, 1, -_UPTIME_NS), (3, 9, ahead), (1, 3, 0))
    said = (number(1, a) + number(2, b) + part(5, str(n).encode()) for a, b, n in edges)
    return private + part(16, b"".join(part(1, one) for one in said)) + number(17, _UPTIME_NS)


def _clocks(session: Session) -> bytes:
    """Return the clocks of newer writers: the calendar, local time, a GPU's, the session's."""
    later_ns = 3_000_000_000
    unix_ns, up_ns = session.start_unix_ns + later_ns, _UPTIME_NS + later_ns
    calendar, local, up, device, mine, zero = (bytes([n]) * 16 for n in range(1, 7))
    edges = (
        (device, mine, unix_ns + 777, up_ns // 3),
        (calendar, up, unix_ns, up_ns),
        (local, calendar, unix_ns - 14_400_000_000_000, unix_ns),
        (up, zero, 0, 0),
        (zero, b"session clock 16", _UPTIME_NS, 0),
    )
    said = (_pair(first, second, *times) for first, second, *times in edges)
    return part(2, b"".join(part(1, one) for one in said))


def _pair(first: bytes, second: bytes, first_ns: int, second_ns: int) -> bytes:
    times = message(
        {"first": first_ns, "second": second_ns}, {"first": 1, "second": 2}, zeros=False
    )
    return part(1, first) + part(2, second) + part(3, part(1, times))


def _tail(tables: Tables) -> bytes:
    """Return what stands behind the texts: GPUs, their numbers, streams."""
    gpus = b"".join(part(7, message(row, _OF_GPU)) for row in tables["TARGET_INFO_GPU"])
    numbers = {"gpuId": 1, "cudaId": 2, "pid": 3, "numMultiprocessors": 6}
    known = tables["TARGET_INFO_CUDA_DEVICE"]
    ordinals = b"".join(part(9, message(row, numbers)) for row in known)
    machine = part(1, number(1, VM) + part(2, gpus + ordinals))
    return machine + part(24, number(3, 1)) + b"".join(_stream(row) for row in _streams(tables))


def _streams(tables: Tables) -> Sequence[Row]:
    return tables["TARGET_INFO_CUDA_STREAM"]


def _stream(row: Row) -> bytes:
    numbers = {"streamId": 1, "vmId": 3, "processId": 4, "contextId": 5, "priority": 6, "flag": 7}
    return part(15, message(row, numbers))
