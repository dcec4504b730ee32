"""Reports of Nsight Compute as the profiler itself writes them (.ncu-rep): blocks of messages.

Beside what a reader wants they hold what none should take: command lines, environment, hosts,
folders. Here these are invented, and stand in all places where real files have them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Final, Literal

from sample_traces.machines import MACHINES
from sample_traces.messages import number, part
from sample_traces.nsight.ncu import Launch, launches, metrics_of
from sample_traces.nsight.report import SECRET
from sample_traces.records import Run, Triple

Writer = Literal["2019", "2025"]
"""Which writer is imitated: of 2019 is one that has threads for blocks, and says no version."""

Value = int | float | str | None
VERSION: Final = "2025.1.0.0"
RULE: Final = "TheoreticalOccupancy"
RULE_TEXT: Final = (
    "Occupancy is limited by registers. See Occupancy and the Guide (https://x.org/a)."
)
_RULE_SAID: Final = (
    "Occupancy is limited by registers. See @section:Occupancy:Occupancy@ and the "
    "@url:Guide:https://x.org/a@."
)
_INSTANCES: Final = "sass__inst_executed_per_opcode"


def write_report(
    run: Run, path: Path, counted: Sequence[Launch] | None = None, writer: Writer = "2025"
) -> Path:
    """Write a report of the launches that were counted; by default all of the first rank."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(report(run, launches(run) if counted is None else counted, writer))
    return path


def report(run: Run, counted: Sequence[Launch], writer: Writer = "2025") -> bytes:
    """Return a report of some launches, one in each block, with the texts in the first."""
    texts: dict[str, int] = {}
    results = [_result(run, launch, texts, writer) for launch in counted]
    process = counted[0].rank.process
    named = block(process, results=results[:1], texts=list(texts))
    blocks = [named, *(block(process, results=[one]) for one in results[1:])]
    about = [block(process, session=one) for one in _session(run, counted, writer)]
    source = part(4, SECRET.encode()) + number(1, 77)
    return file_of([about[0], block(process, sources=[source]), *blocks, *about[1:]])


def file_of(blocks: Iterable[bytes], version: int = 7) -> bytes:
    """Return a file of some blocks."""
    return b"NVR\0" + counted(number(1, version)) + b"".join(blocks)


def counted(message: bytes) -> bytes:
    """Return a message behind its length."""
    return len(message).to_bytes(4, "little") + message


def block(
    process: int = 1,
    *,
    sources: Sequence[bytes] = (),
    results: Sequence[bytes] = (),
    ranges: Sequence[bytes] = (),
    texts: Sequence[str] = (),
    session: bytes = b"",
) -> bytes:
    """Return a block: its header and what stands behind that."""
    payload = b"".join(map(counted, (*sources, *results, *ranges)))
    head = number(1, len(sources)) + number(2, len(results)) + part(3, session)
    head += part(4, b"".join(part(1, text.encode()) for text in texts))
    private = part(2, SECRET.encode()) + part(3, f"/home/{SECRET}".encode())
    head += number(5, len(payload)) + part(6, number(1, process) + private)
    return counted(head + number(7, len(ranges))) + payload


def value_of(value: Value) -> bytes:
    """Return a value as a message."""
    if value is None:
        return b""
    if isinstance(value, str):
        return part(1, value.encode())
    if isinstance(value, int):
        return number(5, value)
    return b"\x19" + struct.pack("<d", value)


def metric(index: int, value: Value, instances: Sequence[tuple[Value, Value]] = ()) -> bytes:
    """Return a metric: the number of its name, its value, and that of each instance."""
    each = (part(1, value_of(of)) + part(2, value_of(one)) for of, one in instances)
    return number(1, index) + part(2, value_of(value)) + b"".join(part(3, one) for one in each)


def triple(size: Triple) -> bytes:
    """Return a size by axis."""
    return b"".join(number(axis, one) for axis, one in enumerate(size, 1))


def rule(id_: str, text: str, kind: int = 4, speedup: tuple[int, float] | None = None) -> bytes:
    """Return what a rule says."""
    item = part(1, part(1, text.encode()) + number(2, kind))
    if speedup is not None:
        item += part(10, number(1, speedup[0]) + b"\x11" + struct.pack("<d", speedup[1]))
    return part(1, id_.encode()) + part(3, part(1, item)) + part(4, b"Occupancy")


def _metrics(run: Run, launch: Launch, writer: Writer) -> Iterator[tuple[str, Value]]:
    """Give the metrics of a launch; what is measured twice is right the second time."""
    work = launch.activity.work
    yield "gpu__time_duration.sum", 1.0
    for at, one in enumerate(metrics_of(work, run.config.dtype)):
        yield one.name, float(one.value) if at % 2 else one.value
    yield "launch__func_cache_config", "CachePreferNone"
    yield "nvlink__source_ports", None
    yield "launch__grid_size", prod(work.grid)
    yield "launch__block_size", prod(work.block)
    yield "launch__thread_count", float(prod(work.grid) * prod(work.block))
    if writer == "2025":
        yield "launch__device_id", launch.rank.rank


def _result(run: Run, launch: Launch, texts: dict[str, int], writer: Writer) -> bytes:
    work = launch.activity.work
    grid = work.grid
    if writer == "2019":
        grid = (grid[0] * work.block[0], grid[1] * work.block[1], grid[2] * work.block[2])
    metrics = [(name, metric(_index(texts, name), v)) for name, v in _metrics(run, launch, writer)]
    opcodes = [("IMMA.16832.S8.S8.SAT", 5), ("FFMA", 7.0)]
    of_opcodes = metric(_index(texts, _INSTANCES), None, opcodes)
    said = rule(RULE, _RULE_SAID, 4, (2, 80.34)) + number(5, 0)
    return (
        number(1, launch.rank.process)
        + part(5, b"_Z4gemm")
        + part(6, b"gemm")
        + part(7, launch.name.encode())
        + part(10, triple(grid))
        + part(11, triple(work.block))
        + part(12, SECRET.encode())
        + b"".join(part(13, one) for _, one in metrics)
        + part(13, of_opcodes)
        + part(19, said)
        + part(28, f"/home/{SECRET}/train.py".encode())
    )


def _index(texts: dict[str, int], name: str) -> int:
    return texts.setdefault(name, len(texts))


def _session(run: Run, counted: Sequence[Launch], writer: Writer) -> Iterator[bytes]:
    """Give what blocks without results say, one thing each."""
    private = part(3, part(5, SECRET.encode())) + part(9, f"train --token {SECRET}".encode())
    created = number(2, counted[0].rank.origin_unix_ns // 10**9)
    yield created + private + part(10, f"API_TOKEN={SECRET}".encode())
    known = MACHINES[run.config.machine].properties
    facts: Mapping[str, Value] = {
        "display_name": str(known["name"]),
        "multiprocessor_count": MACHINES[run.config.machine].units,
        "compute_capability_major": int(known["computeMajor"]),
        "compute_capability_minor": int(known["computeMinor"]),
        "uuid": SECRET,
    }
    attributes = (
        part(1, f"device__attribute_{name}".encode()) + part(2, value_of(value))
        for name, value in facts.items()
    )
    gpu = number(1, counted[0].rank.rank) + b"".join(part(3, one) for one in attributes)
    yield part(6, gpu)
    yield part(8, part(1, b"CUDA Version") + part(2, b"12.8"))
    if writer == "2025":
        yield part(8, part(1, b"Nsight Compute Target") + part(2, f"{VERSION} (build 1)".encode()))
    yield part(4, part(5, SECRET.encode()) + part(7, SECRET.encode())) + part(11, SECRET.encode())
