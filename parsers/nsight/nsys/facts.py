"""What a report says of itself: versions, switches, its clock, its machine.

Its environment, command lines and paths are never asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from traceflops.parsers.io import Among, Wanted
from traceflops.parsers.nsight.nsys.enums import ERROR, THREAD_BITS, WARNING
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table import ABSENT, CUDA_TRACE, Note
from traceflops.units import several

_EXPORTS: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_MACHINE: Final = ("EXPORT_HOST", "EXPORT_USER")


def _of_processes(name: str) -> tuple[str, ...]:
    """Return a switch as it is named of the whole recording, and of each process."""
    return (name, *(f"PROCESS_{number}:{name}" for number in range(8)))


_OF_EXPORT: Final = {
    "EXPORT_PRODUCT_VERSION": "tool_version",
    "EXPORT_SCHEMA_VERSION": "schema_version",
}
_OF_CAPTURE: Final = {
    **dict.fromkeys(_of_processes("CUDA_GRAPH_TRACE_OPTIONS:MODE"), "cuda_graph_trace"),
    **dict.fromkeys(_of_processes("COLLECT_GPU_MEMORY_USAGE"), "gpu_memory_usage"),
}
_CUDA_TRACED: Final = _of_processes("COLLECT_CUDA_TRACE")
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
        rf"No (?:{_TRACED}) (?:events|samples) collected\."
        rf"(?: Does the process use (?:{_TRACED})\?)?",
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


def pairs_of(tables: Tables, table: str, names: Iterable[str]) -> list[tuple[str, str]]:
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
        for name, value in pairs_of(tables, table, wanted):
            if value.isprintable():
                facts.setdefault(wanted[name], value[:_LONGEST_FACT])
    traced = {value.lower() for _, value in pairs_of(tables, "META_DATA_CAPTURE", _CUDA_TRACED)}
    if traced & {"true", "false"}:
        facts[CUDA_TRACE] = "true" if "true" in traced else "false"
    return facts


def origin_of(tables: Tables) -> int | None:
    """Return the beginning of the session in nanoseconds since 1970; None where it is not said."""
    rows = tables.whole("TARGET_INFO_SESSION_START_TIME", Wanted(integers=("utcEpochNs",)))
    known = [one for one in rows["utcEpochNs"].tolist() if 0 < one < _LATEST_UNIX_NS]
    return known[0] if known else None


def host_of(tables: Tables) -> str | None:
    """Return the name of the machine on which the program ran."""
    hosts = pairs_of(tables, "TARGET_INFO_SYSTEM_ENV", ("Hostname",))
    return hosts[0][1] if hosts else None


def identities_of(tables: Tables, host: str | None) -> tuple[str, ...]:
    """Return the names of machines and users, which are to be taken out of what is shared."""
    pairs = [pair for table in _EXPORTS for pair in pairs_of(tables, table, _MACHINE)]
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
        counted = [several(others[one], more + _SEVERITIES[one]) for one in sorted(others)]
        text = (
            f"Nsight Systems reported {' and '.join(counted)} that may name paths or settings. "
            "Open the report in Nsight Systems to see them."
        )
        yield Note("missing", "profiler-warnings", text, others.total())
