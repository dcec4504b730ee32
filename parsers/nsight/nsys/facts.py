"""What a report says of itself: versions, switches, its clock, its machine and the GPUs of that.

Its environment, command lines and paths are never asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from traceflops.parsers.io import UNDECODABLE, Among, Wanted
from traceflops.parsers.nsight.nsys.enums import ERROR, THREAD_BITS, WARNING
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.parsers.shared import NOTHING_KNOWN, DeviceFacts
from traceflops.table import ABSENT, CUDA_TRACE, EVERYWHERE, UTC_OFFSET, Note
from traceflops.units import several

_EXPORTS: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_MACHINE: Final = ("EXPORT_HOST", "EXPORT_USER")
_OF_ALL: Final = ("", *(f"PROCESS_{number}:" for number in range(8)))
"""What stands before a switch of the whole recording, and of each process."""
_OF_EXPORT: Final = {
    "EXPORT_PRODUCT_VERSION": "tool_version",
    "EXPORT_SCHEMA_VERSION": "schema_version",
}
_OF_CAPTURE: Final = {
    **{f"{of}CUDA_GRAPH_TRACE_OPTIONS:MODE": "cuda_graph_trace" for of in _OF_ALL},
    **{f"{of}COLLECT_GPU_MEMORY_USAGE": "gpu_memory_usage" for of in _OF_ALL},
}
_CUDA_TRACED: Final = tuple(f"{of}COLLECT_CUDA_TRACE" for of in _OF_ALL)
_SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
_FARTHEST_MINUTES: Final = 14 * 60
"""No time zone is farther from UTC."""
_LONGEST_FACT: Final = 40
_LATEST_UNIX_NS: Final = 2**62
_SEVERITIES: Final = {WARNING: "warning", ERROR: "error"}
_MOST_QUOTED: Final = 5
_LONGEST: Final = 400
_TRACED: Final = (
    "CUDA|CUDA API|CUPTI|NVTX|OS runtime libraries|OpenGL|Vulkan|OpenMP|OpenACC|MPI|UCX|NVSHMEM"
    "|OpenSHMEM|cuBLAS|cuDNN|cuSPARSE|cuSOLVER|TensorRT|NCCL|GPU metrics|GPU Metrics|NIC metrics"
    "|CPU|CPU IP|IP|scheduling|context switch|GPU context switch|Python|syscall"
)
_VERSION: Final = r"\d{1,4}(?:\.\d{1,4}){0,3}"
_KNOWN: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"Not all (?:{_TRACED}) (?:events|samples) might have been collected\.?",
        rf"Number of (?:{_TRACED}) (?:events|samples) (?:lost|dropped): \d{{1,15}}\.?",
        rf"Installed CUDA driver version \({_VERSION}\) is not supported by this build of Nsight "
        rf"Systems\. CUDA trace will be collected using libraries for driver version {_VERSION}\.?",
        r"Scheduling information is absent\. The thread activity is deduced based on OS runtime "
        r"libraries traces\. This is inaccurate and does not take into account asynchronous "
        r"interrupts and exception faults\.?",
        r"CUDA profiling might have not been started correctly\.?",
        r"CUDA device \d{1,4}: Unified Memory trace is not supported on this device\.?",
        r"The target application terminated\. One or more processes it created re-parented\.?",
    )
)
"""Messages of which nothing differs but numbers and what was traced."""
_EMPTY_TABLE: Final = re.compile(
    rf"No (?:{_TRACED}) (?:events|samples) collected\."
    rf"(?: Does the process use (?:{_TRACED})\?)?"
)
"""Says of each kind of record that there is none, which the tables say themselves."""
_FACTS: Final = (
    *("totalMemory", "computeMajor", "computeMinor"),
    *("smCount", "threadsPerWarp", "clockRate"),
)
"""The numbers that are known of a GPU; exports of 2020 and 2021 have the next names for them."""
_OLD_FACTS: Final = (
    *("globalMemorySize", "computeCapabilityMajor", "computeCapabilityMinor"),
    *("numMultiprocessors", "numThreadsPerWarp", "coreClockRate"),
)
_GPU: Final = Wanted(
    integers=("id", "deviceId", "cuDevice", *_FACTS), texts=("name", "uuid", "busLocation")
)
_CUDA_GPU: Final = Wanted(integers=("deviceId", "pid", *_OLD_FACTS), texts=("name",))
_CUDA_DEVICE: Final = Wanted(integers=("gpuId", "cudaId", "pid"), texts=("uuid",))
_SLOWEST_HZ: Final = 10**8
"""No GPU is clocked as slowly as that; a smaller number is in kHz."""
_LEAST_BYTES: Final = 1 << 24
"""No GPU has so little memory; a smaller number is in MiB, as in 2021."""
_MOST: Final = 4_096
_MOST_SMALL: Final = 2**31
_FIELDS: Final = tuple(DeviceFacts.__dataclass_fields__)
_Key = TypeVar("_Key")


def _pairs_of(tables: Tables, table: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return names with their values, of those in a table that are asked for and have one."""
    wanted = Wanted(texts=("name", "value"))
    rows = tables.whole(table, wanted, (Among("name", tuple(names)),))
    pairs = zip(rows.texts["name"], rows.texts["value"], strict=True)
    return [(name, value) for name, value in pairs if name and value]


def facts_of(tables: Tables) -> dict[str, str]:
    """Return the versions and switches that are known, none where there is no such table."""
    facts: dict[str, str] = {}
    asked_for = [(table, _OF_EXPORT) for table in _EXPORTS] + [("META_DATA_CAPTURE", _OF_CAPTURE)]
    for table, wanted in asked_for:
        for name, value in _pairs_of(tables, table, wanted):
            if value.isprintable():
                facts.setdefault(wanted[name], value[:_LONGEST_FACT])
    traced = {value.lower() for _, value in _pairs_of(tables, "META_DATA_CAPTURE", _CUDA_TRACED)}
    if traced & {"true", "false"}:
        facts[CUDA_TRACE] = "true" if "true" in traced else "false"
    if (offset := _utc_offset(tables)) is not None:
        facts[UTC_OFFSET] = offset
    return facts


def _utc_offset(tables: Tables) -> str | None:
    """Return the time zone in which a recording began, where it is said in local time, too."""
    rows = tables.whole(_SESSION, Wanted(texts=("utcTime", "localTime")))
    for said in zip(rows.texts["utcTime"], rows.texts["localTime"], strict=True):
        with suppress(ValueError, TypeError):
            utc, local = (datetime.fromisoformat(text or "").replace(tzinfo=None) for text in said)
            minutes = round((local - utc).total_seconds() / 60)
            if abs(minutes) <= _FARTHEST_MINUTES:
                return (
                    f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
                )
    return None


def origin_of(tables: Tables) -> int | None:
    """Return the beginning of the session in nanoseconds since 1970; None where it is not said."""
    rows = tables.whole(_SESSION, Wanted(integers=("utcEpochNs",)))
    known = [row for row in rows["utcEpochNs"].tolist() if 0 < row < _LATEST_UNIX_NS]
    return known[0] if known else None


def host_of(tables: Tables) -> str | None:
    """Return the name of the machine on which the program ran."""
    hosts = _pairs_of(tables, "TARGET_INFO_SYSTEM_ENV", ("Hostname",))
    return hosts[0][1] if hosts else None


def identities_of(tables: Tables, host: str | None) -> tuple[str, ...]:
    """Return the names of machines and users, which are to be taken out of what is shared."""
    pairs = [pair for table in _EXPORTS for pair in _pairs_of(tables, table, _MACHINE)]
    return tuple(dict.fromkeys(one for one in (host, *(value for _, value in pairs)) if one))


def ranks_of(tables: Tables) -> dict[int, int]:
    """Return the ranks of processes by the ids of these."""
    rows = tables.whole("MPI_RANKS", Wanted(integers=("globalPid", "rank")))
    pairs = zip(rows["globalPid"].tolist(), rows["rank"].tolist(), strict=True)
    return {pid >> THREAD_BITS: rank for pid, rank in pairs if pid != ABSENT and 0 <= rank < 2**31}


def warnings_of(tables: Tables) -> Iterator[Note]:
    """Give what the profiler warned of, the messages that are known in its words.

    Others may hold command lines, paths and settings of the environment in any form: these are only
    counted.
    """
    wanted = Wanted(integers=("severity",), texts=("text",))
    rows = tables.whole("DIAGNOSTIC_EVENT", wanted, (Among("severity", tuple(_SEVERITIES)),))
    quoted: Counter[str] = Counter()
    others: Counter[int] = Counter()
    for severity, text in zip(rows["severity"].tolist(), rows.texts["text"], strict=True):
        plain = " ".join((text or "")[:_LONGEST].split())
        if _EMPTY_TABLE.fullmatch(plain):
            continue
        if any(one.fullmatch(plain) for one in _KNOWN):
            quoted[plain] += 1
        else:
            others[severity] += 1
    for text in list(quoted)[_MOST_QUOTED:]:
        others[WARNING] += quoted.pop(text)
    for text, count in quoted.items():
        yield Note("missing", "profiler-warning", f"Nsight Systems warned: {text}", count)
    if others:
        more = "further " if quoted else ""
        counted = [several(others[other], more + _SEVERITIES[other]) for other in sorted(others)]
        text = (
            f"Nsight Systems reported {' and '.join(counted)} that may name paths or settings. "
            "Open the report in Nsight Systems to see them."
        )
        yield Note("missing", "profiler-warnings", text, others.total())


@dataclass(slots=True)
class Devices:
    """The GPUs of a report, by their numbers, and the numbers that processes have for them."""

    by_gpu: dict[int, DeviceFacts] = field(default_factory=dict)
    by_ordinal: dict[tuple[int | None, int], DeviceFacts] = field(default_factory=dict)
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    by_cuda: dict[int, int] = field(default_factory=dict)
    """The GPUs by the numbers that CUDA has for them where it hides none."""
    ambiguous: bool = False
    """Whether the GPUs differ and which one a process used is not said."""
    by_number: bool = False
    """Whether which one it used is said by nothing but the number that it has for it."""
    places: dict[int, str] = field(default_factory=dict)
    """What names each GPU in other reports, too (see `traceflops.table.trace.Trace`)."""
    only: int | None = None
    """The number of the GPU of a machine that has no other."""

    def gpu_of(self, pid: int | None, ordinal: int) -> int | None:
        """Return the number of the GPU that a process calls so; None where that is not said.

        Of an unknown process (None) it is what all processes call so, if that is one GPU. Where no
        number of any process is said, the first of a machine with one GPU is that one.
        """
        if not self.gpus and ordinal <= 0:
            return self.only
        if pid is not None:
            return self.gpus.get((pid, ordinal))
        called_so = {gpu for (_, own), gpu in self.gpus.items() if own == ordinal}
        return called_so.pop() if len(called_so) == 1 else None

    def facts_of(self, gpu: int | None, pid: int | None, ordinal: int) -> DeviceFacts:
        """Return what is known of a GPU, or else of the one that a process calls so."""
        keys = ((pid, ordinal), (None, ordinal))
        called_so = [self.by_ordinal[key] for key in keys if key in self.by_ordinal]
        if gpu is not None and gpu in self.by_gpu:
            return _filled(self.by_gpu[gpu], *called_so)
        if called_so:
            return _filled(*called_so)
        # Which of several it is depends on CUDA_VISIBLE_DEVICES, which is not read.
        if not self.by_gpu:
            return NOTHING_KNOWN
        first, *others = self.by_gpu.values()
        return self._by_both_numbers(ordinal) if any(one != first for one in others) else first

    def _by_both_numbers(self, ordinal: int) -> DeviceFacts:
        """Return what the GPUs of a number have in common, by the report's number and by CUDA's."""
        numbers = (ordinal, self.by_cuda.get(ordinal, ABSENT))
        one, other = (self.by_gpu.get(number, NOTHING_KNOWN) for number in numbers)
        if one.product is None or one.product != other.product:
            self.ambiguous = True
            return NOTHING_KNOWN
        self.by_number = True
        alike = {name for name in _FIELDS if getattr(one, name) == getattr(other, name)}
        return replace(one, **dict.fromkeys(set(_FIELDS) - alike))


def devices_of(tables: Tables, host: str | None = None) -> Devices:
    """Return what a report of a machine says of its GPUs."""
    devices = Devices()
    uuids: dict[str, int] = {}
    products: dict[int, str | None] = {}
    rows = _rows(tables, "TARGET_INFO_GPU", _GPU)
    if "id" in tables.columns("TARGET_INFO_GPU"):
        for row in rows:
            if row["id"] != ABSENT:
                _fill(devices.by_gpu, row["id"], _facts(row["name"], row, _FACTS))
                uuids.setdefault((row["uuid"] or "").lower(), row["id"])
        devices.places = dict(_places(rows, host))
        times = Counter(row["cuDevice"] for row in rows)
        devices.by_cuda = {row["cuDevice"]: row["id"] for row in rows if times[row["cuDevice"]] < 2}
    else:
        products = {row["deviceId"]: row["name"] for row in rows}
    if len(devices.by_gpu) == 1 and "TARGET_INFO_GPU" not in tables.lost:
        devices.only = next(iter(devices.by_gpu))
    _read_old(tables, products, devices)
    if not devices.by_gpu and not devices.by_ordinal:
        devices.by_gpu = _of_text(tables)
    _read_numbers(tables, uuids, devices)
    return devices


def _rows(tables: Tables, table: str, wanted: Wanted) -> list[dict[str, Any]]:
    """Return the first rows of a table, each by the names of its columns."""
    rows = tables.whole(table, wanted)
    columns: dict[str, list[Any]] = {name: rows[name].tolist() for name in wanted.integers}
    columns |= rows.texts
    cells = islice(zip(*columns.values(), strict=True), _MOST)
    return [dict(zip(columns, row, strict=True)) for row in cells]


def _places(rows: Sequence[Mapping[str, Any]], host: str | None) -> Iterator[tuple[int, str]]:
    """Give the places of GPUs, by number: by what each is called everywhere, else by its slot.

    What several GPUs of the report share, as parts of one may, names none of them.
    """
    known: dict[int, list[str]] = {}
    for row in rows:
        uuid, bus = row["uuid"] or "", row["busLocation"]
        called = [f"{EVERYWHERE}{uuid.lower()}"] if uuid.strip("GPUgpu-0 ") else []
        slot = [f"{EVERYWHERE}{host} {bus}"] if host and bus else []
        known.setdefault(row["id"], called + slot)
    counts = Counter(text for texts in known.values() for text in texts)
    for number, texts in known.items():
        text = next((text for text in texts if counts[text] == 1), None)
        if text is not None:
            yield number, text


def _read_numbers(tables: Tables, uuids: Mapping[str, int], devices: Devices) -> None:
    """Note which GPU each process means by its numbers; what is said first counts."""
    for row in _rows(tables, "TARGET_INFO_CUDA_DEVICE", _CUDA_DEVICE):
        gpu = row["gpuId"]
        if gpu == ABSENT:
            gpu = uuids.get((row["uuid"] or "?").lower(), ABSENT)
        if ABSENT not in (gpu, row["cudaId"], row["pid"]):
            devices.gpus.setdefault((row["pid"], row["cudaId"]), gpu)


def _read_old(tables: Tables, products: Mapping[int, str | None], devices: Devices) -> None:
    """Note the GPUs as exports of 2020 and 2021 list them, by process and its number for each."""
    for row in _rows(tables, "TARGET_INFO_CUDA_GPU", _CUDA_GPU):
        ordinal = row["deviceId"]
        facts = _facts(row["name"] or products.get(ordinal), row, _OLD_FACTS)
        for pid in (_known(row["pid"]), None):
            _fill(devices.by_ordinal, (pid, ordinal), facts)
    for ordinal, product in products.items():
        _fill(devices.by_ordinal, (None, ordinal), DeviceFacts(product=product))


def _facts(product: Any, row: Mapping[str, Any], columns: Sequence[str]) -> DeviceFacts:
    """Return the facts of a GPU, which stand in columns in the order of `_FACTS`.

    What a writer does not know is 0, which none of them can be but the minor of a version.
    """
    memory, major, minor, *others, clock = (_integer(row.get(column)) for column in columns)
    units, warp = map(_small, others)
    is_version = _small(major) is not None and 0 <= minor < _MOST_SMALL
    first, second = (major, minor) if is_version else (None, None)
    name = product if isinstance(product, str) and product else None
    return DeviceFacts(name, _bytes(memory), first, second, units, warp, clock_hz=_hertz(clock))


def _fill(known: dict[_Key, DeviceFacts], key: _Key, facts: DeviceFacts) -> None:
    """Note the facts of a GPU; what was said first counts."""
    known[key] = _filled(known[key], facts) if key in known else facts


def _filled(facts: DeviceFacts, *others: DeviceFacts) -> DeviceFacts:
    """Return facts with what only others of the same product say."""
    for other in others:
        if None in (facts.product, other.product) or facts.product == other.product:
            missing = (name for name in _FIELDS if getattr(facts, name) is None)
            facts = replace(facts, **{name: getattr(other, name) for name in missing})
    return facts


def _of_text(tables: Tables) -> dict[int, DeviceFacts]:
    """Return the GPUs that a text of JSON lists; it may be there where the table is not."""
    words = [name[0].upper() + name[1:] for name in _FACTS]
    gpus: dict[int, DeviceFacts] = {}
    for _, text in _pairs_of(tables, "TARGET_INFO_SYSTEM_ENV", ("GpuInfo",))[:1]:
        for place, entry in enumerate(_listed(text)):
            if isinstance(entry, dict):
                number = entry.get("Id")
                number = number if type(number) is int else place
                gpus[number] = _facts(entry.get("Name"), entry, words)
    return gpus


def _listed(text: str) -> list[Any]:
    try:
        decoded = msgspec.json.decode(text)
    except UNDECODABLE:
        return []
    gpus = decoded.get("Gpus") if isinstance(decoded, dict) else None
    return gpus[:_MOST] if isinstance(gpus, list) else []


def _integer(value: Any) -> int:
    """Return a number that may be written as a text, ABSENT where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if type(value) is int else ABSENT


def _known(value: int) -> int | None:
    return value if 0 < value < 2**62 else None


def _small(value: int) -> int | None:
    return value if 0 < value < _MOST_SMALL else None


def _bytes(value: int) -> int | None:
    known = _known(value)
    return known << 20 if known is not None and known < _LEAST_BYTES else known


def _hertz(value: int) -> int | None:
    known = _known(value)
    return known * 1_000 if known is not None and known < _SLOWEST_HZ else known
