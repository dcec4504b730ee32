"""Facts of a report: versions, settings, clock, machine, GPUs; paths are not read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.parsers.io.database_query import Among, Wanted
from traceflops.parsers.nsight.nsys.enums import ERROR, THREAD_BITS, WARNING
from traceflops.parsers.nsight.nsys.tables import Tables, whole_number
from traceflops.parsers.shared.trace_builder import NOTHING_KNOWN, DeviceFacts
from traceflops.table.columns import ABSENT
from traceflops.table.trace import (
    CUDA_TRACE,
    CUPTI_ERROR,
    EVERYWHERE,
    NEW_DRIVER,
    UTC_OFFSET,
    Note,
)
from traceflops.units import several

_EXPORTS: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_MACHINE: Final = ("EXPORT_HOST", "EXPORT_USER")
_OF_ALL: Final = ("", *(f"PROCESS_{number}:" for number in range(8)))
"""Prefixes of a setting: of the whole recording, or of one process."""
_OF_EXPORT: Final = {
    "EXPORT_PRODUCT_VERSION": "tool_version",
    "EXPORT_SCHEMA_VERSION": "schema_version",
}
_OF_CAPTURE: Final = {
    **{f"{of}CUDA_GRAPH_TRACE_OPTIONS:MODE": "cuda_graph_trace" for of in _OF_ALL},
    **{f"{of}COLLECT_GPU_MEMORY_USAGE": "gpu_memory_usage" for of in _OF_ALL},
}
_CUDA_TRACED: Final = tuple(f"{of}COLLECT_CUDA_TRACE" for of in _OF_ALL)
_CONTEXTS: Final = "TARGET_INFO_CUDA_CONTEXT_INFO"
_SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
_SEVERITIES: Final = {WARNING: "warning", ERROR: "error"}
_MOST_QUOTED: Final = 5
_TRACED: Final = (
    "CUDA|CUDA API|CUPTI|NVTX|OS runtime libraries|OpenGL|Vulkan|OpenMP|OpenACC|MPI|UCX|NVSHMEM"
    "|OpenSHMEM|cuBLAS|cuDNN|cuSPARSE|cuSOLVER|TensorRT|NCCL|GPU metrics|GPU Metrics|NIC metrics"
    "|CPU|CPU IP|IP|scheduling|context switch|GPU context switch|Python|syscall"
)
_VERSION: Final = r"\d{1,4}(?:\.\d{1,4}){0,3}"
_QUOTED: Final = tuple(
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
"""Messages that are safe to quote: only numbers and what was traced vary in them."""
_CUPTI_ERROR: Final = re.compile(r"\bCUPTI_ERROR_[A-Z_]{1,40}\b")
_NEW_DRIVER: Final = re.compile(
    rf"^Installed CUDA driver version \S+ is not supported.* driver version ({_VERSION}?)\.?$"
)
_EMPTY_TABLE: Final = re.compile(
    rf"No (?:{_TRACED}) (?:events|samples) collected\."
    rf"(?: Does the process use (?:{_TRACED})\?)?"
)
"""Messages that there are no records of a kind; the tables show that themselves."""
_FACTS: Final = (
    *("totalMemory", "computeMajor", "computeMinor"),
    *("smCount", "threadsPerWarp", "clockRate"),
)
"""The numbers of a GPU that are read; exports of 2020 and 2021 have the names below for them."""
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
"""Every GPU has a faster clock; a smaller number is in kHz."""
_LEAST_BYTES: Final = 1 << 24
"""Every GPU has more memory; a smaller number is in MiB, as in 2021."""
_MOST: Final = 4_096
_MOST_SMALL: Final = 2**31
_FIELDS: Final = tuple(DeviceFacts.__struct_fields__)
_Key = TypeVar("_Key")
Diagnostics: TypeAlias = Sequence[tuple[int, str]]


def _pairs_of(tables: Tables, table: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (name, value) from a table of such pairs, of the given names that have a value."""
    wanted = Wanted(texts=("name", "value"))
    rows = tables.whole(table, wanted, (Among("name", tuple(names)),))
    pairs = zip(rows.texts["name"], rows.texts["value"], strict=True)
    return [(name, value) for name, value in pairs if name and value]


def facts_of(tables: Tables, diagnostics: Diagnostics) -> dict[str, str]:
    """Return the versions, settings and UTC offset of the recording, as far as they are known."""
    facts: dict[str, str] = {}
    asked_for = [(table, _OF_EXPORT) for table in _EXPORTS] + [("META_DATA_CAPTURE", _OF_CAPTURE)]
    for table, wanted in asked_for:
        for name, value in _pairs_of(tables, table, wanted):
            if value.isprintable():  # others are damaged
                facts.setdefault(wanted[name], value[:40])
    # The setting proves that CUDA was traced only where it is true: since 2025 it may be false
    # although CUDA was.
    asked = (value.lower() for _, value in _pairs_of(tables, "META_DATA_CAPTURE", _CUDA_TRACED))
    began = any(text.startswith("CUDA injection initialized") for _, text in diagnostics)
    if "true" in asked or began or tables.whole(_CONTEXTS, Wanted(integers=("contextId",))).count:
        facts[CUDA_TRACE] = "true"
    for severity, text in diagnostics:
        if severity == ERROR and (error := _CUPTI_ERROR.search(text)):
            facts.setdefault(CUPTI_ERROR, error[0])
        if known := _NEW_DRIVER.search(text):
            facts.setdefault(NEW_DRIVER, known[1])
    # The UTC offset: from the beginning of the recording in UTC and in local time.
    rows = tables.whole(_SESSION, Wanted(texts=("utcTime", "localTime")))
    for times in zip(rows.texts["utcTime"], rows.texts["localTime"], strict=True):
        with suppress(ValueError, TypeError):
            utc, local = (datetime.fromisoformat(text or "").replace(tzinfo=None) for text in times)
            minutes = round((local - utc).total_seconds() / 60)
            if abs(minutes) <= 14 * 60:  # no time zone is farther from UTC
                hours, rest = divmod(abs(minutes), 60)
                facts[UTC_OFFSET] = f"{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}"
                break
    return facts


def origin_of(tables: Tables) -> int | None:
    """Return the beginning of the session in ns since 1970, None if it is unknown."""
    rows = tables.whole(_SESSION, Wanted(integers=("utcEpochNs",)))
    return next((row for row in rows["utcEpochNs"].tolist() if 0 < row < (2**62)), None)


def host_of(tables: Tables) -> str | None:
    """Return the name of the machine on which the program ran."""
    hosts = _pairs_of(tables, "TARGET_INFO_SYSTEM_ENV", ("Hostname",))
    return hosts[0][1] if hosts else None


def identities_of(tables: Tables, host: str | None) -> tuple[str, ...]:
    """Return the names of machines and users, which are removed from what is shared."""
    values = [v for table in _EXPORTS for _, v in _pairs_of(tables, table, _MACHINE)]
    return tuple(dict.fromkeys(name for name in (host, *values) if name))


def ranks_of(tables: Tables) -> dict[int, int]:
    """Return the ranks of processes by their keys (`enums.processes_of`)."""
    rows = tables.whole("MPI_RANKS", Wanted(integers=("globalPid", "rank")))
    pairs = zip(rows["globalPid"].tolist(), rows["rank"].tolist(), strict=True)
    return {pid >> THREAD_BITS: rank for pid, rank in pairs if pid != ABSENT and 0 <= rank < 2**31}


def diagnostics_of(tables: Tables) -> Diagnostics:
    """Return the messages of the profiler, each with its severity."""
    rows = tables.whole("DIAGNOSTIC_EVENT", Wanted(integers=("severity",), texts=("text",)))
    plain = (" ".join((text or "")[:400].split()) for text in rows.texts["text"])
    return list(zip(rows["severity"].tolist(), plain, strict=True))


def warnings_of(diagnostics: Diagnostics, *, has_work: bool = True) -> Iterator[Note]:
    """Yield notes on the profiler's warnings and errors. Messages of a known form are quoted.

    Others may contain command lines, paths and variables of the environment: they are only counted.
    Where no GPU work is recorded, those on CUDA, which may say why, come first.
    """
    quoted: Counter[str] = Counter()
    others: Counter[int] = Counter()
    for severity, plain in diagnostics:
        if any(pattern.fullmatch(plain) for pattern in _QUOTED) and severity in _SEVERITIES:
            quoted[plain] += 1
        elif severity in _SEVERITIES and not _EMPTY_TABLE.fullmatch(plain):
            others[severity] += 1
    in_order = sorted(quoted, key=lambda text: not has_work and "CUDA" not in text)
    for text in in_order[_MOST_QUOTED:]:
        others[WARNING] += quoted.pop(text)
    for text in in_order[:_MOST_QUOTED]:
        yield Note("missing", "profiler-warning", f"Nsight Systems warned: {text}", quoted[text])
    if others:
        more = "further " if quoted else ""
        counted = [several(others[other], more + _SEVERITIES[other]) for other in sorted(others)]
        text = (
            f"Nsight Systems reported {' and '.join(counted)} that may name paths or settings. "
            "Open the report in Nsight Systems to see them."
        )
        yield Note("missing", "profiler-warnings", text, others.total())


class Devices(Struct):
    """The GPUs of a report by their numbers. An ordinal is the number of a GPU within a process."""

    by_gpu: dict[int, DeviceFacts] = field(default_factory=dict)
    by_ordinal: dict[tuple[int | None, int], DeviceFacts] = field(default_factory=dict)
    """By (pid, ordinal), or (None, ordinal)."""
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    """Numbers of GPUs by (pid, ordinal)."""
    by_cuda: dict[int, int] = field(default_factory=dict)
    """Numbers of GPUs by their ordinals in a process that sees all of them."""
    ambiguous: bool = False
    """Whether GPUs differ and it is unknown which one a process used."""
    by_number: bool = False
    """Whether a GPU was identified by the ordinal alone."""
    places: dict[int, str] = field(default_factory=dict)
    """What identifies each GPU in other reports, too (see `traceflops.table.trace.Trace`)."""
    only: int | None = None
    """The number of the GPU if the machine has only one."""

    def gpu_of(self, pid: int | None, ordinal: int) -> int | None:
        """Return the number of the GPU that a process calls `ordinal`, None if it is unknown.

        If the process is unknown (None), it is the GPU with this ordinal in all processes. If no
        ordinals are listed at all, ordinal 0 (or an unknown one) is the only GPU of the machine.
        """
        if not self.gpus and ordinal <= 0:
            return self.only
        if pid is not None:
            return self.gpus.get((pid, ordinal))
        candidates = {gpu for (_, other), gpu in self.gpus.items() if other == ordinal}
        return candidates.pop() if len(candidates) == 1 else None

    def facts_of(self, gpu: int | None, pid: int | None, ordinal: int) -> DeviceFacts:
        """Return the facts of a GPU or, if it is None, of the one that the process calls `ordinal`.

        Sets `ambiguous` or `by_number` if which GPU that is must be guessed.
        """
        keys = ((pid, ordinal), (None, ordinal))
        of_ordinal = [self.by_ordinal[key] for key in keys if key in self.by_ordinal]
        if gpu is not None and gpu in self.by_gpu:
            return _filled(self.by_gpu[gpu], *of_ordinal)
        if of_ordinal:
            return _filled(*of_ordinal)
        if not self.by_gpu:
            return NOTHING_KNOWN
        first, *others = self.by_gpu.values()
        if all(other == first for other in others):
            return first
        # Which GPU it is depends on CUDA_VISIBLE_DEVICES, which is not read. Take the GPU with that
        # number in the report, and the one with it in CUDA: use the facts that both share.
        numbers = (ordinal, self.by_cuda.get(ordinal, ABSENT))
        by_report, by_cuda = (self.by_gpu.get(number, NOTHING_KNOWN) for number in numbers)
        if by_report.product is None or by_report.product != by_cuda.product:
            self.ambiguous = True
            return NOTHING_KNOWN
        self.by_number = True
        differing = [f for f in _FIELDS if getattr(by_report, f) != getattr(by_cuda, f)]
        return replace(by_report, **dict.fromkeys(differing))


def devices_of(tables: Tables, host: str | None) -> Devices:
    """Return the GPUs of a report on the machine `host`; the first facts given for a GPU count."""
    devices = Devices()
    uuids: dict[str, int] = {}
    products: dict[int, str | None] = {}
    rows = _rows(tables, "TARGET_INFO_GPU", _GPU)
    if "id" in tables.columns("TARGET_INFO_GPU"):
        for row in rows:
            if row["id"] != ABSENT:
                _fill(devices.by_gpu, row["id"], _facts(row["name"], row, _FACTS))
                uuids.setdefault((row["uuid"] or "").lower(), row["id"])
        devices.places = _places(rows, host)
        times = Counter(row["cuDevice"] for row in rows)
        # A number in CUDA that several GPUs have identifies none of them.
        devices.by_cuda = {row["cuDevice"]: row["id"] for row in rows if times[row["cuDevice"]] < 2}
    else:
        products = {row["deviceId"]: row["name"] for row in rows}
    # If rows are lost, there may be others.
    if len(devices.by_gpu) == 1 and "TARGET_INFO_GPU" not in tables.lost:
        devices.only = next(iter(devices.by_gpu))
    # Exports of 2020 and 2021 list GPUs by pid and ordinal, or only names by ordinal.
    for row in _rows(tables, "TARGET_INFO_CUDA_GPU", _CUDA_GPU):
        ordinal = row["deviceId"]
        facts = _facts(row["name"] or products.get(ordinal), row, _OLD_FACTS)
        for pid in (_positive(row["pid"]), None):  # None: for processes without own facts
            _fill(devices.by_ordinal, (pid, ordinal), facts)
    for ordinal, product in products.items():
        _fill(devices.by_ordinal, (None, ordinal), DeviceFacts(product=product))
    for row in _rows(tables, "TARGET_INFO_CUDA_DEVICE", _CUDA_DEVICE):
        gpu = row["gpuId"]
        if gpu == ABSENT:
            # "?", since a GPU without a UUID has the key "".
            gpu = uuids.get((row["uuid"] or "?").lower(), ABSENT)
        if ABSENT not in (gpu, row["cudaId"], row["pid"]):
            devices.gpus.setdefault((row["pid"], row["cudaId"]), gpu)
    return devices


def _rows(tables: Tables, table: str, wanted: Wanted) -> list[dict[str, Any]]:
    """Return at most _MOST rows of a table, each as a dictionary of its columns."""
    rows = tables.whole(table, wanted)
    columns: dict[str, list[Any]] = {name: rows[name].tolist() for name in wanted.integers}
    columns |= rows.texts
    cells = islice(zip(*columns.values(), strict=True), _MOST)
    return [dict(zip(columns, row, strict=True)) for row in cells]


def _places(rows: Sequence[Mapping[str, Any]], host: str | None) -> dict[int, str]:
    """Return what alone identifies each GPU by number: its UUID, else machine and slot."""
    names: dict[int, list[str]] = {}
    for row in rows:
        uuid, bus = row["uuid"] or "", row["busLocation"]
        # A UUID of nothing but zeros is none.
        by_uuid = [f"{EVERYWHERE}{uuid.lower()}"] if uuid.strip("GPUgpu-0 ") else []
        by_slot = [f"{EVERYWHERE}{host} {bus}"] if host and bus else []
        names.setdefault(row["id"], by_uuid + by_slot)
    counts = Counter(name for of_gpu in names.values() for name in of_gpu)
    unique = {gpu: [n for n in of_gpu if counts[n] == 1] for gpu, of_gpu in names.items()}
    return {gpu: of_gpu[0] for gpu, of_gpu in unique.items() if of_gpu}


def _facts(product: Any, row: Mapping[str, Any], columns: Sequence[str]) -> DeviceFacts:
    """Return the facts in a row, with `columns` in the order of `_FACTS`; 0 is unknown."""
    memory, major, minor, *others, clock = (whole_number(row.get(column)) for column in columns)
    is_version = 0 < major < _MOST_SMALL and 0 <= minor < _MOST_SMALL
    first, second = (major, minor) if is_version else (None, None)
    units, warp = (value if 0 < value < _MOST_SMALL else None for value in others)
    memory_bytes, clock_hz = _positive(memory), _positive(clock)
    # Implausibly small numbers are of MiB, or of kHz.
    if memory_bytes is not None and memory_bytes < _LEAST_BYTES:
        memory_bytes <<= 20
    if clock_hz is not None and clock_hz < _SLOWEST_HZ:
        clock_hz *= 1_000
    name = product if isinstance(product, str) and product else None
    return DeviceFacts(name, memory_bytes, first, second, units, warp, clock_hz=clock_hz)


def _fill(facts: dict[_Key, DeviceFacts], key: _Key, more: DeviceFacts) -> None:
    """Add facts under a key, in place; facts that are there already stay."""
    facts[key] = _filled(facts[key], more) if key in facts else more


def _filled(facts: DeviceFacts, *others: DeviceFacts) -> DeviceFacts:
    """Return facts in which unknown ones are taken from others of the same product."""
    for other in others:
        if None in (facts.product, other.product) or facts.product == other.product:
            missing = (name for name in _FIELDS if getattr(facts, name) is None)
            facts = replace(facts, **{name: getattr(other, name) for name in missing})
    return facts


def _positive(value: int) -> int | None:
    return value if 0 < value < 2**62 else None
