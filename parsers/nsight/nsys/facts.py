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
    CUDA_END,
    CUDA_TRACE,
    CUPTI_ERROR,
    EVERYWHERE,
    NEW_DRIVER,
    TRACED,
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
    "TRACED": TRACED,  # of reports that are no exports
    **{f"{of}COLLECT_GPU_MEMORY_USAGE": "gpu_memory_usage" for of in _OF_ALL},
}
"""Names of settings in a report, and the names of the facts that they become."""
_CUDA_TRACED: Final = tuple(f"{of}COLLECT_CUDA_TRACE" for of in _OF_ALL)
_CONTEXTS: Final = "TARGET_INFO_CUDA_CONTEXT_INFO"
_SYSTEM: Final = "TARGET_INFO_SYSTEM_ENV"
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
        r"The system is running in Protected Memory mode\. CUDA tracing data was not collected\.?",
        r"The target application terminated\. One or more processes it created re-parented\.?",
    )
)
"""Messages that are safe to quote: only numbers and what was traced vary in them."""
_NOT_BEGUN: Final = "CUDA injection initialization failed"
"""A message on the profiler itself, written as a warning."""
_CUPTI_ERROR: Final = re.compile(
    rf"\bCUPTI_ERROR_[A-Z_]{{1,40}}\b|\bProtected Memory mode\b|^{_NOT_BEGUN}"
)
_NEW_DRIVER: Final = re.compile(
    rf"^Installed CUDA driver version \S+ is not supported.* driver version ({_VERSION}?)\.?$"
)
_CUDA_ASKED: Final = re.compile(r"(?:No|Not all|Number of) CUDA events |CUDA profiling might ")
"""Messages about CUDA that are written only if it was to be traced."""
_NOT_STARTED: Final = "CUDA profiling might have not been started"
_STILL_RUNNING: Final = re.compile(r"Timeout while waiting\b.{1,40}\bstop recording")
_LOST: Final = re.compile(rf"Not all ({_TRACED}) events might have been collected")
"""A message on each kind of event that was to be traced, if a process ended without a farewell."""
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
    """Return the (name, value) rows of a table of settings with one of `names` and a value."""
    rows = tables.whole(table, Wanted(texts=("name", "value")), (Among("name", tuple(names)),))
    pairs = zip(rows.texts["name"], rows.texts["value"], strict=True)
    return [(name, value) for name, value in pairs if name and value]


def facts_of(tables: Tables, diagnostics: Diagnostics) -> dict[str, str]:
    """Return the known facts of the recording by name: versions, settings, UTC offset."""
    facts: dict[str, str] = {}
    for table, known in (*((t, _OF_EXPORT) for t in _EXPORTS), ("META_DATA_CAPTURE", _OF_CAPTURE)):
        for name, value in _pairs_of(tables, table, known):
            if value.isprintable():  # others are damaged
                facts.setdefault(known[name], value[:40])
    # Was CUDA traced? Only "true" counts: since 2025 the setting may be false although it was.
    is_on = (value.lower() for _, value in _pairs_of(tables, "META_DATA_CAPTURE", _CUDA_TRACED))
    has_begun = any(text.startswith("CUDA injection initialized") for _, text in diagnostics)
    if (
        "true" in is_on
        or "cuda" in facts.get(TRACED, "")
        or has_begun
        or any(_CUDA_ASKED.match(text) for _, text in diagnostics)
        or tables.whole(_CONTEXTS, Wanted(integers=("contextId",))).count
    ):
        facts[CUDA_TRACE] = "true"
        if end := _end_of_cuda([text for _, text in diagnostics], has_begun=has_begun):
            facts[CUDA_END] = end
    drivers = {version for _, version in _pairs_of(tables, _SYSTEM, ("CudaDriverVersion",))}
    if drivers == {"0"} and not _rows(tables, "TARGET_INFO_GPU", _GPU):
        facts.setdefault(CUDA_END, "no-driver")
    for severity, text in diagnostics:
        is_error = severity == ERROR or text.startswith(_NOT_BEGUN)
        if is_error and (error := _CUPTI_ERROR.search(text)):
            facts.setdefault(CUPTI_ERROR, error[0])
        if newest := _NEW_DRIVER.search(text):
            facts.setdefault(NEW_DRIVER, newest[1])
    # The UTC offset is the start of the recording in local time minus that in UTC.
    rows = tables.whole(_SESSION, Wanted(texts=("utcTime", "localTime")))
    for times in zip(rows.texts["utcTime"], rows.texts["localTime"], strict=True):
        with suppress(ValueError, TypeError):
            utc, local = (datetime.fromisoformat(text or "").replace(tzinfo=None) for text in times)
            offset_minutes = round((local - utc).total_seconds() / 60)
            if abs(offset_minutes) <= 14 * 60:  # no time zone is farther from UTC
                hours, minutes = divmod(abs(offset_minutes), 60)
                facts[UTC_OFFSET] = f"{'-' if offset_minutes < 0 else '+'}{hours:02}:{minutes:02}"
                break
    return facts


def _end_of_cuda(texts: Sequence[str], *, has_begun: bool) -> str | None:
    """Return how the tracing of CUDA ended (see CUDA_END), None if in order or unknown."""
    if not has_begun:
        return "unused" if any(text.startswith(_NOT_STARTED) for text in texts) else None
    if any(_STILL_RUNNING.match(text) for text in texts):
        return "running"
    # If only events of CUDA are lacking, the process may have ended in order.
    lost = {match[1] for match in map(_LOST.match, texts) if match}
    return "unflushed" if "CUDA" in lost and len(lost) > 1 else None


def origin_of(tables: Tables) -> int | None:
    """Return when the session began, in ns since 1970; None if it is unknown."""
    times = tables.whole(_SESSION, Wanted(integers=("utcEpochNs",)))["utcEpochNs"].tolist()
    return next((time for time in times if 0 < time < 2**62), None)


def host_of(tables: Tables) -> str | None:
    """Return the name of the machine on which the program ran, None if it is unknown."""
    return next((name for _, name in _pairs_of(tables, _SYSTEM, ("Hostname",))), None)


def identities_of(tables: Tables, host: str | None) -> tuple[str, ...]:
    """Return the distinct names of machines and users, which redaction removes."""
    names = [name for table in _EXPORTS for _, name in _pairs_of(tables, table, _MACHINE)]
    return tuple(dict.fromkeys(name for name in (host, *names) if name))


def ranks_of(tables: Tables) -> dict[int, int]:
    """Return the MPI rank of each process by its key (`enums.processes_of`)."""
    rows = tables.whole("MPI_RANKS", Wanted(integers=("globalPid", "rank")))
    pairs = zip(rows["globalPid"].tolist(), rows["rank"].tolist(), strict=True)
    return {pid >> THREAD_BITS: rank for pid, rank in pairs if pid != ABSENT and 0 <= rank < 2**31}


def diagnostics_of(tables: Tables) -> Diagnostics:
    """Return (severity, first 400 characters) of the profiler's messages, each on one line."""
    rows = tables.whole("DIAGNOSTIC_EVENT", Wanted(integers=("severity",), texts=("text",)))
    lines = (" ".join((text or "")[:400].split()) for text in rows.texts["text"])
    return list(zip(rows["severity"].tolist(), lines, strict=True))


def warnings_of(diagnostics: Diagnostics, *, has_work: bool = True) -> Iterator[Note]:
    """Yield notes on the profiler's warnings and errors; messages of a known form are quoted.

    Others may contain command lines, paths or environment variables, so they are only counted. If
    no GPU work was recorded, messages about CUDA come first: they may say why.
    """
    quoted: Counter[str] = Counter()
    unquoted: Counter[int] = Counter()  # by severity
    for severity, message in diagnostics:
        if any(pattern.fullmatch(message) for pattern in _QUOTED) and severity in _SEVERITIES:
            quoted[message] += 1
        elif severity in _SEVERITIES and not _EMPTY_TABLE.fullmatch(message):
            unquoted[severity] += 1
    in_order = sorted(quoted, key=lambda message: not has_work and "CUDA" not in message)
    for message in in_order[:_MOST_QUOTED]:
        text = f"Nsight Systems warned: {message}"
        yield Note("missing", "profiler-warning", text, quoted[message])
    unquoted += Counter({WARNING: sum(quoted[message] for message in in_order[_MOST_QUOTED:])})
    if unquoted:
        further = "further " if quoted else ""
        counts = (several(unquoted[key], further + _SEVERITIES[key]) for key in sorted(unquoted))
        text = (
            f"Nsight Systems reported {' and '.join(counts)} that may name paths or settings. "
            "Open the report in Nsight Systems to see them."
        )
        yield Note("missing", "profiler-warnings", text, unquoted.total())


class Devices(Struct):
    """The GPUs of a report by their numbers in it. An ordinal is a process's number for a GPU."""

    by_gpu: dict[int, DeviceFacts] = field(default_factory=dict)
    by_ordinal: dict[tuple[int | None, int], DeviceFacts] = field(default_factory=dict)
    """Facts by (pid, ordinal); by (None, ordinal) for processes without facts of their own."""
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

        For an unknown process (`pid` None), all processes must call the same GPU by this ordinal.
        If the report lists no ordinals, ordinal 0 or -1 (unknown) is the machine's only GPU.
        """
        if not self.gpus and ordinal <= 0:
            return self.only
        if pid is not None:
            return self.gpus.get((pid, ordinal))
        candidates = {gpu for (_, other), gpu in self.gpus.items() if other == ordinal}
        return candidates.pop() if len(candidates) == 1 else None

    def facts_of(self, gpu: int | None, pid: int | None, ordinal: int) -> DeviceFacts:
        """Return the facts of GPU number `gpu`; if None, of the GPU a process calls `ordinal`.

        If that GPU must be guessed, sets `by_number`, or `ambiguous` if a guess is not safe.
        """
        keys = ((pid, ordinal), (None, ordinal))
        facts_of_ordinal = [self.by_ordinal[key] for key in keys if key in self.by_ordinal]
        if gpu is not None and gpu in self.by_gpu:
            return _filled(self.by_gpu[gpu], *facts_of_ordinal)
        if facts_of_ordinal:
            return _filled(*facts_of_ordinal)
        if not self.by_gpu:
            return NOTHING_KNOWN
        first, *others = self.by_gpu.values()
        if all(other == first for other in others):
            return first
        # Which GPU has the ordinal depends on CUDA_VISIBLE_DEVICES, which is not read. Look at the
        # GPU with this number in the report and at the one with it in CUDA: if they are of one
        # product, use the facts in which they agree.
        numbers = (ordinal, self.by_cuda.get(ordinal, ABSENT))
        in_report, in_cuda = (self.by_gpu.get(number, NOTHING_KNOWN) for number in numbers)
        if in_report.product is None or in_report.product != in_cuda.product:
            self.ambiguous = True
            return NOTHING_KNOWN
        self.by_number = True
        differing = [f for f in _FIELDS if getattr(in_report, f) != getattr(in_cuda, f)]
        return replace(in_report, **dict.fromkeys(differing))


def devices_of(tables: Tables, host: str | None) -> Devices:
    """Return the GPUs of a report on the machine `host`; of repeated facts the first ones count."""
    devices = Devices()
    gpu_of_uuid: dict[str, int] = {}
    product_of_ordinal: dict[int, str | None] = {}
    # The GPUs of the machine. Old exports have only their names here, by ordinal.
    rows = _rows(tables, "TARGET_INFO_GPU", _GPU)
    if "id" in tables.columns("TARGET_INFO_GPU"):
        for row in rows:
            if row["id"] != ABSENT:
                _fill(devices.by_gpu, row["id"], _facts(row["name"], row, _FACTS))
                gpu_of_uuid.setdefault((row["uuid"] or "").lower(), row["id"])
        devices.places = _places(rows, host)
        # A number in CUDA that several GPUs have identifies none of them.
        times = Counter(row["cuDevice"] for row in rows)
        devices.by_cuda = {r["cuDevice"]: r["id"] for r in rows if times[r["cuDevice"]] == 1}
    else:
        product_of_ordinal = {row["deviceId"]: row["name"] for row in rows}
    # If rows of the table are lost, the machine may have more GPUs.
    if len(devices.by_gpu) == 1 and "TARGET_INFO_GPU" not in tables.lost:
        devices.only = next(iter(devices.by_gpu))
    # Exports of 2020 and 2021 list the facts by pid and ordinal.
    for row in _rows(tables, "TARGET_INFO_CUDA_GPU", _CUDA_GPU):
        ordinal = row["deviceId"]
        facts = _facts(row["name"] or product_of_ordinal.get(ordinal), row, _OLD_FACTS)
        for pid in (_positive(row["pid"]), None):  # None: for processes without own facts
            _fill(devices.by_ordinal, (pid, ordinal), facts)
    for ordinal, product in product_of_ordinal.items():
        _fill(devices.by_ordinal, (None, ordinal), DeviceFacts(product=product))
    # Newer ones list which GPU each process calls by which ordinal.
    for row in _rows(tables, "TARGET_INFO_CUDA_DEVICE", _CUDA_DEVICE):
        gpu = row["gpuId"]
        if gpu == ABSENT:  # "?": GPUs without a UUID have the key ""
            gpu = gpu_of_uuid.get((row["uuid"] or "?").lower(), ABSENT)
        if ABSENT not in (gpu, row["cudaId"], row["pid"]):
            devices.gpus.setdefault((row["pid"], row["cudaId"]), gpu)
    return devices


def _rows(tables: Tables, table: str, wanted: Wanted) -> list[dict[str, Any]]:
    """Return at most _MOST rows of a table, each as a dictionary of its columns."""
    rows = tables.whole(table, wanted)
    columns: dict[str, Any] = {**{n: rows[n].tolist() for n in wanted.integers}, **rows.texts}
    cells = islice(zip(*columns.values(), strict=True), _MOST)
    return [dict(zip(columns, row, strict=True)) for row in cells]


def _places(rows: Sequence[Mapping[str, Any]], host: str | None) -> dict[int, str]:
    """Return, by GPU number, what identifies the GPU in all reports: its UUID, else host and slot.

    A text that several GPUs have is not used; a GPU without any is left out.
    """
    texts_of_gpu: dict[int, list[str]] = {}
    for row in rows:
        uuid, slot = row["uuid"] or "", row["busLocation"]
        has_uuid = bool(uuid.strip("GPUgpu-0 "))  # a UUID of nothing but zeros is none
        texts = [f"{EVERYWHERE}{uuid.lower()}"] if has_uuid else []
        texts += [f"{EVERYWHERE}{host} {slot}"] if host and slot else []
        texts_of_gpu.setdefault(row["id"], texts)
    counts = Counter(text for texts in texts_of_gpu.values() for text in texts)
    unique = {gpu: [t for t in texts if counts[t] == 1] for gpu, texts in texts_of_gpu.items()}
    return {gpu: texts[0] for gpu, texts in unique.items() if texts}


def _facts(product: Any, row: Mapping[str, Any], columns: Sequence[str]) -> DeviceFacts:
    """Return the facts in a row; `columns` are its columns for `_FACTS`, in the same order."""
    memory, major, minor, *units, clock = (whole_number(row.get(column)) for column in columns)
    is_version = 0 < major < _MOST_SMALL and 0 <= minor < _MOST_SMALL
    sm_count, warp_size = (count if 0 < count < _MOST_SMALL else None for count in units)
    memory_bytes, clock_hz = _positive(memory), _positive(clock)
    if memory_bytes is not None and memory_bytes < _LEAST_BYTES:  # the number is in MiB
        memory_bytes <<= 20
    if clock_hz is not None and clock_hz < _SLOWEST_HZ:  # the number is in kHz
        clock_hz *= 1_000
    return DeviceFacts(
        product=product if isinstance(product, str) and product else None,
        memory_bytes=memory_bytes,
        compute_major=major if is_version else None,
        compute_minor=minor if is_version else None,
        sm_count=sm_count,
        warp_size=warp_size,
        clock_hz=clock_hz,
    )


def _fill(facts: dict[_Key, DeviceFacts], key: _Key, more: DeviceFacts) -> None:
    """Add facts under a key, in place; facts that are already known under it stay."""
    facts[key] = _filled(facts[key], more) if key in facts else more


def _filled(facts: DeviceFacts, *others: DeviceFacts) -> DeviceFacts:
    """Return `facts` with unknown ones filled in from `others` that name no other product."""
    for other in others:
        if None in (facts.product, other.product) or facts.product == other.product:
            unknown = (name for name in _FIELDS if getattr(facts, name) is None)
            facts = replace(facts, **{name: getattr(other, name) for name in unknown})
    return facts


def _positive(value: int) -> int | None:
    return value if 0 < value < 2**62 else None
