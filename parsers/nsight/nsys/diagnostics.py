"""What the profiler warned of: in its own words where those are known, else only how often.

Its messages may hold command lines, paths and settings of the environment in any form, so nothing
of one is shown that is not known word by word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from traceflops.parsers.io.databases.query import Among, Wanted
from traceflops.parsers.nsight.nsys.enums import ERROR, WARNING
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.table.trace import Note
from traceflops.units.words import several

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


def warnings_of(tables: Tables) -> Iterator[Note]:
    """Give what the profiler warned of, the messages that are known in its words."""
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
