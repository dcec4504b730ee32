"""Files of other tools that people hand in: how they are known, what they are, what to do instead.

A new kind is a row. Its signs are bytes that its beginning matches or holds, tables of a database,
or, where content cannot tell, the suffix of its name. Nothing of a file is ever shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

_JSON: Final = rb"\s*[\[{]"
_PICKLE: Final = rb"\x80[\x02-\x05]"
_OF_KINETO: Final = (b'"schemaVersion"', b'"deviceProperties"')
_KINETO: Final = (*_OF_KINETO, b'"cpu_op"')

_TRACE: Final = (
    "record with torch.profiler (prof.export_chrome_trace), nsys or rocprofv3: traceflops recipe"
)
_SAME_RUN: Final = "give the profiler's trace of the same run (prof.export_chrome_trace)"
_ASCEND: Final = (
    "traceflops reads GPUs only; MindStudio Insight and msprof-analyze read Ascend NPUs"
)
_HANG: Final = (
    "it tells which collective hung, not how time was spent: read it with torchfrtrace of PyTorch"
)
_NEURON: Final = "traceflops reads GPUs only; neuron-profile and Neuron Explorer read it"


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A kind of file that is not read: `what` it is, and a `hint` what to do.

    Its beginning matches `begins` and holds `all_of` some bytes, `one_of` others (if any are
    given) and none of `lacks`. A database has all of `tables`; `suffixes` count last.
    """

    what: str
    hint: str
    begins: bytes = b""
    all_of: tuple[bytes, ...] = ()
    one_of: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = ()
    tables: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()

    def is_in(self, head: bytes) -> bool:
        """Return whether the first bytes of a file are of this kind."""
        return bool(
            (self.begins or self.all_of or self.one_of)
            and (not self.begins or re.match(self.begins, head))
            and all(sign in head for sign in self.all_of)
            and (not self.one_of or any(sign in head for sign in self.one_of))
            and not any(sign in head for sign in self.lacks)
        )


OTHER_FILES: Final = (
    OtherFile(
        "a trace of an Ascend NPU (trace_view.json or msprof)",
        _ASCEND,
        begins=_JSON,
        one_of=(
            *(b'"Ascend Hardware"', b'"AI Core Freq"', b'"Overlap Analysis"', b"AscendCL@"),
            *(b'"name": "CANN"', b'"name":"CANN"', b'"torch_to_npu"', b'"async_npu"'),
        ),
    ),
    OtherFile(
        "a trace whose times are texts, as those of Ascend NPUs (trace_view.json or msprof)",
        _ASCEND,
        begins=rb"\s*\[\s*\{",
        all_of=(b'"ph"',),
        one_of=tuple(b'"ts":%b"%d' % (gap, n) for gap in (b"", b" ") for n in range(1, 10)),
    ),
    OtherFile(
        "a table or report of an Ascend NPU",
        _ASCEND,
        one_of=(
            *(b"Accelerator Core,", b"Task Start Time(us)", b"OP Type,Core Type"),
            *(b"Communication(Not Overlapped)", b"Device_id,Level,API Name", b"Device Total Dur"),
            b'"Communication Time Info"',
        ),
    ),
    OtherFile("a database of an Ascend NPU", _ASCEND, tables=frozenset({"STRING_IDS"})),
    OtherFile("a database of an Ascend NPU", _ASCEND, tables=frozenset({"CommAnalyzerTime"})),
    OtherFile("a database of an Ascend NPU", _ASCEND, tables=frozenset({"ClusterStepTraceTime"})),
    OtherFile(
        "a profile of Triton's Proton (hatchet), which has sums per kernel and no times",
        "record a timeline of the same run: torch.profiler, nsys or rocprofv3 (traceflops recipe)",
        begins=_JSON,
        all_of=(b'"frame"', b'"children"', b'"name"'),
        lacks=(b'"traceEvents"', b'"ph"', b'"segments"'),
    ),
    OtherFile(
        "a log of NCCL Inspector, which has collectives without the work around them",
        "give the traces of all ranks (a folder): traceflops ranks their collectives",
        begins=_JSON,
        all_of=(b'"inspector_output_format_version"',),
    ),
    OtherFile(
        "a dump of PyTorch's flight recorder, which has collectives without GPU times",
        _HANG,
        begins=_PICKLE,
        one_of=(b"pg_config", b"pg_status", b"nccl_comm_state", b"comm_lib_version"),
    ),
    OtherFile(
        "a dump of PyTorch's flight recorder, which has collectives without GPU times",
        _HANG,
        begins=_JSON,
        one_of=(b'"pg_status"', b'"time_discovered_completed_ns"'),
        lacks=(*_KINETO, b'"traceEvents"'),
    ),
    OtherFile(
        "a trace of Intel's unitrace",
        "record with torch.profiler on XPU (ProfilerActivity.XPU), whose traces are read",
        begins=_JSON,
        all_of=(b'"traceEvents"',),
        one_of=(
            *(b'"HOST<', b" HOST<", b'"DEVICE<', b" DEVICE<"),
            *(b'"cat": "gpu_op"', b'"cat": "Flow_H2D_', b'"cat": "Flow_D2H_'),
        ),
        lacks=_OF_KINETO,
    ),
    OtherFile(
        "a speedscope profile of a CPU (py-spy, rbspy, or another sampler)",
        _TRACE,
        begins=_JSON,
        all_of=(b"speedscope.app/file-format-schema",),
    ),
    OtherFile(
        "a picture (SVG), such as a flame graph of py-spy or perf",
        _TRACE,
        begins=rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!DOCTYPE svg[^>]{0,300}>\s*)?<svg",
    ),
    OtherFile(
        "stacks and their counts (py-spy --format raw, or folded stacks of perf)",
        _TRACE,
        begins=rb"[^\n;,{}\[\]\"<]{1,300};[^\n,\"]{1,4000} \d{1,12}\r?\n",
    ),
    OtherFile(
        "the stacks of a Python process (faulthandler or py-spy dump), without times",
        _TRACE,
        begins=rb"(?:Current thread|Thread|Process) (?:0x)?[0-9a-f]{1,20}[ :]",
    ),
    OtherFile(
        "statistics of Python's cProfile, without GPU work",
        _TRACE,
        begins=rb"[\x7b\xfb][\x29\xa9]\x03",
    ),
    OtherFile("a recording of Linux perf, without GPU work", _TRACE, begins=rb"PERFILE2|PERFFILE"),
    OtherFile("a memray recording, without GPU work", _TRACE, begins=rb"memray\0"),
    OtherFile(
        "PyTorch's memory timeline as a page, without GPU times",
        f"{_SAME_RUN}, or a memory snapshot (torch.cuda.memory._dump_snapshot)",
        begins=rb"(?i)\s*<(?:!doctype|html)",
        one_of=(b"<img src='data:image/png;base64,", b"MemoryViz.js"),
        lacks=(b'content="traceflops ',),
    ),
    OtherFile(
        "a TensorBoard event file of scalars, without a timeline",
        "give the trace beside it: NAME.pt.trace.json, or plugins/profile/TIME/HOST.xplane.pb",
        begins=rb"[\s\S]{12}\x09[\s\S]{8,12}\x1a.brain\.Event:",
    ),
    OtherFile(
        "a trace of Chrome's own (DevTools or chrome://tracing), not of a GPU program",
        _TRACE,
        begins=_JSON,
        one_of=(
            b'"CrRendererMain"',
            b'"CrBrowserMain"',
            b"devtools.timeline",
            b'"source":"DevTools',
        ),
        lacks=_KINETO,
    ),
    OtherFile(
        "a trace of VizTracer, which has Python functions and no GPU work",
        _TRACE,
        begins=_JSON,
        one_of=(b'"viztracer_metadata"', b'"cat":"FEE"', b'"cat": "FEE"'),
        lacks=_KINETO,
    ),
    OtherFile(
        "a trace of Triton Inference Server's requests, without GPU work",
        "record the server with nsys profile, or its model with torch.profiler",
        begins=_JSON,
        one_of=(b'"REQUEST_START"', b'"HTTP_RECV_START"', b'"GRPC_WAITREAD_START"'),
        lacks=_KINETO,
    ),
    OtherFile("a Tracy capture", _TRACE, begins=rb"tlZ\x04|tZst|tr\xfdP|tracy\0"),
    OtherFile("a Neuron executable or profile (NEFF, NTFF)", _NEURON, suffixes=(".neff", ".ntff")),
)
"""What is asked before any format, in this order; the first that fits counts."""

CONSOLE_TEXTS: Final = (
    OtherFile(
        "console text of nvprof, not its recording",
        "record again: nsys profile, or nvprof --export-profile run.nvvp",
        one_of=(b"== NVPROF is profiling", b"== Profiling result", b"== Profiling application"),
    ),
    OtherFile(
        "a printed table of torch.profiler (key_averages().table()), not the trace",
        _SAME_RUN,
        all_of=(b"# of Calls",),
        one_of=(b"Self CPU", b"Self CUDA"),
    ),
    OtherFile(
        "console text of nvidia-smi, without a recording",
        "samples are read as CSV: nvidia-smi --query-gpu=timestamp,... --format=csv -lms 100",
        one_of=(b"NVIDIA-SMI ", b"==============NVSMI LOG=============="),
    ),
    OtherFile(
        "console text of rocm-smi or amd-smi, without a recording",
        "samples are read as CSV: amd-smi metric --csv -w 1",
        one_of=(b"ROCm System Management Interface", b"ROCm SMI", b"AMD-SMI "),
    ),
)
"""What is asked of text that no format takes: a log may hold a table that one does."""


def other_file(head: bytes) -> OtherFile | None:
    """Return which kind of other tools' files begins so, None where none is known."""
    return _first(OTHER_FILES, head)


def console_text(head: bytes) -> OtherFile | None:
    """Return which tool printed a text that is no recording, None where none is known."""
    return _first(CONSOLE_TEXTS, head)


def other_database(tables: Collection[str]) -> OtherFile | None:
    """Return which tool's database has these tables, None where none is known."""
    return next((one for one in OTHER_FILES if one.tables and one.tables <= {*tables}), None)


def other_name(name: str) -> OtherFile | None:
    """Return which kind a file is by its name alone, None where that tells nothing."""
    suffix = PurePath(name).suffix.lower()
    return next((one for one in OTHER_FILES if suffix in one.suffixes), None)


def _first(rows: Iterable[OtherFile], head: bytes) -> OtherFile | None:
    return next((one for one in rows if one.is_in(head)), None)
