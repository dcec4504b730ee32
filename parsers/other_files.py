"""Files of other tools that users give us: how to recognise each, what it is, what to do instead.

A new kind is a row. It is recognised by bytes that its beginning matches or contains or, if its
content cannot tell, by the suffix of its name. Messages never show content of a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import PurePath
from typing import Final

from msgspec import Struct

_LINES_LOOKED_AT: Final = 20
_JSON: Final = rb"\s*[\[{]"
_PICKLE: Final = rb"\x80[\x02-\x05]"
_OF_KINETO: Final = (b'"schemaVersion"', b'"deviceProperties"')
_KINETO: Final = (*_OF_KINETO, b'"cpu_op"')
_TRACE: Final = (
    "record with torch.profiler (prof.export_chrome_trace), nsys or rocprofv3: traceflops recipe"
)
_SAME_RUN: Final = "give the profiler's trace of the same run (prof.export_chrome_trace)"
ASCEND: Final = "traceflops reads GPUs only; MindStudio Insight and msprof-analyze read Ascend NPUs"
_NSYS: Final = (
    "export the report as SQLite: nsys export --type sqlite --include-json=true REPORT.nsys-rep"
)
_UNPACK: Final = "unpack it and give the traces, or pack them with gzip, zstd, LZ4 or zip"


class OtherFile(Struct, frozen=True):
    """A kind of file that is not read: `what` it is, and a `hint` on what to do instead.

    A file is of this kind if its name has one of `suffixes` or, without any, if its head meets all
    conditions that are given: it matches the pattern `begins`; one of its first lines matches the
    pattern `line`; it contains all texts of `all_of`, at least one of `one_of`, none of `lacks`.
    """

    what: str
    hint: str
    begins: bytes = b""
    line: bytes = b""
    all_of: tuple[bytes, ...] = ()
    one_of: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = ()
    suffixes: tuple[str, ...] = ()

    def is_in(self, head: bytes, name: str) -> bool:
        """Return whether a file that begins with `head` and is called `name` is of this kind."""
        if self.suffixes:
            return PurePath(name).suffix.lower() in self.suffixes
        # What a trace has at its beginning is found sooner than what it lacks.
        if any(text in head for text in self.lacks):
            return False
        if self.begins and not re.match(self.begins, head):
            return False
        if self.line and not any(re.match(self.line, line) for line in first_lines(head)):
            return False
        if self.one_of and not any(text in head for text in self.one_of):
            return False
        return all(text in head for text in self.all_of)


@lru_cache(1)  # several kinds look at them
def first_lines(head: bytes) -> list[bytes]:
    """Return the first lines of a file."""
    return head.splitlines()[:_LINES_LOOKED_AT]


_TENSORFLOW_1: Final = (b'"traceEvents"', b'"Allocators"', b'"process_name"', b' Compute"')
_XPROF: Final = rb'\s*\{\s*"displayTimeUnit"\s*:\s*"ns"\s*,\s*"metadata"\s*:\s*\{\s*"highres-ticks"'
"""The beginning of JSON exports of TensorFlow's and JAX's profiler."""
_GPU_LINE: Final = (
    rb'"pid":(\d+),"name":"process_name","args":\{"name":"/device:GPU:[\s\S]*?"pid":\1,"tid":'
)
"""A GPU of such an export, and the name of one of its lines: without work it has none."""
_NO_GPU: Final = (
    "if a GPU should have worked, see whether the framework lists it, look for errors of CUPTI in "
    "the output of the run, or record with nsys profile"
)


def _times_with(quote: bytes) -> tuple[bytes, ...]:
    """Return how times of events begin that are texts (a quote) or numbers (none)."""
    return tuple(b'"ts":%b%b%d' % (gap, quote, n) for gap in (b"", b" ") for n in range(1, 10))


_PERF_TEXT: Final = (
    rb"(?:#[^\n]{0,4000}\n){0,60}\s*[^\s#][^\n]{0,40}?\s{1,9}\d{1,9}(?:/\d{1,9})?\s{1,9}"
    rb"(?:\[\d{1,5}\]\s{1,9})?\d{1,12}\.\d{6,9}:\s{1,9}(?:\d{1,15}\s{1,9})?[\w./:-]{1,60}:\s"
)
"""A sample: program, process or thread, CPU, seconds, period, event; comments may come first."""

LFS_POINTER: Final = OtherFile(
    "a git-lfs pointer, not the file itself",
    "run git lfs pull and try again",
    begins=rb"version https://git-lfs",
)
_JSON_FILE: Final = partial(OtherFile, begins=_JSON)
_JSON_TRACE: Final = partial(OtherFile, begins=_JSON, lacks=_KINETO)
"""JSON files, and those that are no traces of PyTorch."""
_CPU_TOOL: Final = partial(OtherFile, hint=_TRACE)
_PACKED: Final = partial(OtherFile, hint=_UNPACK)
OF_RUN: Final = partial(OtherFile, hint=_SAME_RUN)
_FLIGHT_RECORDER: Final = partial(
    OtherFile,
    "a dump of PyTorch's flight recorder, which has collectives without GPU times",
    "it tells which collective hung, not how time was spent: read it with torchfrtrace of PyTorch",
)
OTHER_FILES: Final[tuple[OtherFile, ...]] = (
    _JSON_FILE(
        "a trace of an Ascend NPU (trace_view.json or msprof)",
        ASCEND,
        one_of=(
            *(b'"Ascend Hardware"', b'"AI Core Freq"', b'"Overlap Analysis"', b"AscendCL@"),
            *(b'"name": "CANN"', b'"name":"CANN"', b'"torch_to_npu"', b'"async_npu"'),
        ),
    ),
    OtherFile(
        "a trace whose times are texts, as those of Ascend NPUs (trace_view.json or msprof)",
        ASCEND,
        begins=rb"\s*\[\s*\{",
        all_of=(b'"ph"',),
        one_of=_times_with(b'"'),
        lacks=_times_with(b""),
    ),
    OtherFile(
        "a table or report of an Ascend NPU",
        ASCEND,
        one_of=(
            *(b"Accelerator Core,", b"Task Start Time(us)", b"OP Type,Core Type"),
            *(b"Communication(Not Overlapped)", b"Device_id,Level,API Name", b"Device Total Dur"),
            b'"Communication Time Info"',
        ),
        lacks=(b"\0",),  # tables are texts; a binary recording may name anything
    ),
    _JSON_FILE(
        "a profile of Triton's Proton (hatchet), which has sums per kernel and no times",
        "record a timeline of the same run: torch.profiler, nsys or rocprofv3 (traceflops recipe)",
        all_of=(b'"frame"', b'"children"', b'"name"'),
        lacks=(b'"traceEvents"', b'"ph"', b'"segments"'),
    ),
    _JSON_FILE(
        "a log of NCCL Inspector, which has collectives without the work around them",
        "give the traces of all ranks (a folder): they tell who waits for whom",
        all_of=(b'"inspector_output_format_version"',),
    ),
    _FLIGHT_RECORDER(
        begins=_PICKLE,
        one_of=(b"pg_config", b"pg_status", b"nccl_comm_state", b"comm_lib_version"),
    ),
    _FLIGHT_RECORDER(
        begins=_JSON,
        one_of=(b'"pg_status"', b'"time_discovered_completed_ns"'),
        lacks=(*_KINETO, b'"traceEvents"'),
    ),
    _JSON_FILE(
        "a trace of Intel's unitrace",
        "record with torch.profiler on XPU (ProfilerActivity.XPU), whose traces are read",
        all_of=(b'"traceEvents"',),
        one_of=(
            *(b'"HOST<', b" HOST<", b'"DEVICE<', b" DEVICE<"),
            *(b'"cat": "gpu_op"', b'"cat": "Flow_H2D_', b'"cat": "Flow_D2H_'),
        ),
        lacks=_OF_KINETO,
    ),
    OtherFile(
        "a Perfetto trace that PyTorch's profiler wrote, which is not read",
        'give its JSON: prof.export_chrome_trace("trace.json")',
        begins=rb"\n",
        all_of=(b"Kineto events",),
    ),
    _JSON_FILE(
        "a speedscope profile of a CPU (py-spy, rbspy, or another sampler)",
        _TRACE,
        all_of=(b"speedscope.app/file-format-schema",),
    ),
    _CPU_TOOL(
        "a picture (SVG), such as a flame graph of py-spy or perf",
        begins=rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!DOCTYPE svg[^>]{0,300}>\s*)?<svg",
    ),
    _CPU_TOOL("a picture", begins=rb"\x89PNG|\xff\xd8\xff|GIF8"),
    _CPU_TOOL(
        "stacks and their counts (export_stacks of PyTorch, py-spy --format raw, folded by perf)",
        begins=rb"[^\n;,{}\[\]\"<]{1,300};[^\n,\"]{1,4000} \d{1,12}\r?\n",
    ),
    _CPU_TOOL(
        "the stacks of a Python process (faulthandler or py-spy dump), without times",
        begins=rb"(?:Current thread|Thread|Process) (?:0x)?[0-9a-f]{1,20}[ :]",
    ),
    _CPU_TOOL(
        "statistics of Python's cProfile, without GPU work", begins=rb"[\x7b\xfb][\x29\xa9]\x03"
    ),
    _CPU_TOOL("a recording of Linux perf, without GPU work", begins=rb"PERFILE2|PERFFILE"),
    _CPU_TOOL("samples of Linux perf as text (perf script), without GPU work", begins=_PERF_TEXT),
    _CPU_TOOL("a memray recording, without GPU work", begins=rb"memray\0"),
    _CPU_TOOL("a pprof profile, without GPU work", begins=rb"\n\x04\x08[\0-\x7f]\x10"),
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
    _JSON_TRACE(
        "a timeline of TensorFlow 1 (RunMetadata) without GPU work",
        _NO_GPU,
        all_of=_TENSORFLOW_1,
        lacks=(*_KINETO, b"GPU:", b"gpu:"),
    ),
    _JSON_TRACE(
        "a timeline of TensorFlow 1 (RunMetadata), which is not read",
        "record with nsys profile, or from TensorFlow 2.3 on with tf.profiler.experimental, whose "
        "HOST.xplane.pb is read",
        all_of=_TENSORFLOW_1,
    ),
    _JSON_TRACE(
        "a trace of Chrome's own (DevTools or chrome://tracing), not of a GPU program",
        _TRACE,
        one_of=(
            *(b'"CrRendererMain"', b'"CrBrowserMain"', b"devtools.timeline"),
            b'"source":"DevTools',
        ),
    ),
    _JSON_TRACE(
        "a trace of VizTracer, which has Python functions and no GPU work",
        _TRACE,
        one_of=(b'"viztracer_metadata"', b'"cat":"FEE"', b'"cat": "FEE"'),
    ),
    _JSON_TRACE(
        "a trace of Triton Inference Server's requests, without GPU work",
        "record the server with nsys profile, or its model with torch.profiler",
        one_of=(b'"REQUEST_START"', b'"HTTP_RECV_START"', b'"GRPC_WAITREAD_START"'),
    ),
    _JSON_TRACE(
        "a timeline of Horovod, which has collectives and no GPU work",
        "record the program with nsys profile, or with the profiler of its framework "
        "(torch.profiler, tf.profiler.experimental)",
        one_of=(b'"NEGOTIATE_ALLREDUCE"', b'"NEGOTIATE_BROADCAST"', b'"NEGOTIATE_ALLGATHER"'),
    ),
    OtherFile(
        "a trace of MXNet's own profiler, which is not read",
        "record the program with nsys profile",
        begins=(
            rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*"ph"\s*:\s*"M"\s*,'
            rb'\s*"args"\s*:\s*\{\s*"name"\s*:\s*"cpu/0"'
        ),
    ),
    _CPU_TOOL("a Tracy capture", begins=rb"tlZ\x04|tZst|tr\xfdP|tracy\0"),
    LFS_POINTER,
    _PACKED("a zip archive inside another archive, which is not read", begins=rb"PK\x03\x04"),
    _PACKED("a tar archive, which is not read", begins=rb"[\s\S]{257}ustar"),
    _PACKED("packed with bzip2, which is not read", begins=rb"BZh[1-9]"),
    _PACKED("packed with xz, which is not read", begins=rb"\xfd7zXZ\x00"),
    _PACKED("packed in LZ4's legacy format, which is not read", begins=rb"\x02\x21\x4c\x18"),
    _PACKED("a 7z or rar archive, which is not read", begins=rb"7z\xbc\xaf|Rar!"),
    OtherFile(
        "a session of the Visual Profiler (XML), which is not read",
        "give a recording that it names, or record again: nvprof --export-profile run.nvvp",
        begins=rb"\s*<\?xml[^>]*>\s*<session\b",
    ),
    OtherFile(
        "an old recording of nvprof in a binary format of its own, which is not read",
        "record again: nsys profile, or a newer nvprof --export-profile run.nvvp; the nvprof that "
        "wrote it prints it: nvprof --import-profile FILE --print-gpu-trace",
        begins=rb"\x00\x04\x00\x00[\x01-\x0f]\x00\x00\x00\x01\x04\x00\x00\x01\x00\x00\x00",
    ),
    OtherFile(
        "a web page (HTML), not a trace",
        "give the recording; if a server sent this page for it, download the file again",
        begins=(
            rb"(?i)\s*<(?:!doctype|html|\?xml|head|body)"
            rb'(?![\s\S]{0,4096}?name="generator" content="traceflops )'
        ),
    ),
    OtherFile(
        "a log of an SQLite database (-wal, -shm, -journal), not the database",
        "give the database beside it; its log is read too",
        begins=rb"\x37\x7f\x06[\x82\x83]|\xd9\xd5\x05\xf9\x20\xa1\x63\xd7|\x18\xe2\x2d\x00",
    ),
    OtherFile(
        "part of an OTF2 archive",
        "export the run again: rocprofv3 --output-format rocpd, or json, or csv",
        begins=rb"\x03[#B]",
    ),
    OtherFile(
        "a rocprof (v1) JSON export without its beginning, a known rocprof bug",
        "use results.csv or results.db of the same run",
        begins=rb'\s*,\s*\{\s*"(?:args|ph|ts)"\s*:',
    ),
    OtherFile(
        "rocprofv2 plugin JSON, whose times are truncated to microseconds and whose copies "
        "name no GPU",
        "give the tables of the same run (rocprofv2 --plugin file), or record with rocprofv3",
        begins=(
            rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*"args"\s*:\s*\{\s*'
            rb'(?:"cid"\s*:\s*\d|"name"\s*:\s*"CPU"\s*\}\s*,\s*"name"\s*:\s*"process_name"'
            rb'\s*,\s*"ph"\s*:\s*"M"\s*,\s*"pid"\s*:\s*1\s*,\s*"sort_index"\s*:\s*0)'
        ),
    ),
    OF_RUN(
        "a PyTorch execution trace (Chakra) without times",
        begins=rb'\s*\{(?=[^{}\[\]]*"schema"\s*:)[^{}\[\]]*"nodes"\s*:|\s*\{\s*"nodes"\s*:',
    ),
    OtherFile(
        "annotations of CUDA graph nodes without GPU times",
        "merge them into the trace: python -m torch.cuda._annotate_cuda_graph_trace TRACE",
        begins=rb'\s*\{\s*"\d{1,20}"\s*:\s*["\[]',
    ),
    OtherFile(
        "a map from Inductor's kernels to source lines, without GPU times",
        "record with TORCH_COMPILE_DEBUG_EXTEND=1 and torch._inductor.profiler."
        "inductor_trace_handler: then the trace has them",
        begins=(
            rb'\s*\{\s*"(?:preToPost|postToPre|cppCodeToPost|postToCppCode)"\s*:'
            rb'|\s*\{\s*"(?:triton_|extern_kernels\.)[\w.]{1,200}(?::\d{1,9})?"\s*:\s*\['
        ),
    ),
    OtherFile(
        "a JSON export of the profiler of TensorFlow and JAX, from a TPU",
        "traceflops reads GPUs only; XProf (TensorBoard's profile plugin) reads TPUs",
        begins=_XPROF,
        all_of=(b"/device:TPU",),
    ),
    OtherFile(
        "a JSON export of the profiler of TensorFlow and JAX without GPU work",
        "give HOST.xplane.pb of the same folder, whose operators of the CPU are read; " + _NO_GPU,
        begins=_XPROF + rb"(?![\s\S]*?" + _GPU_LINE + rb")",
        all_of=(b'"ph":"X"',),  # after all names of processes and threads
    ),
    OtherFile(
        "a JSON export of the profiler of TensorFlow and JAX, less complete than its own file",
        "give HOST.xplane.pb of the same folder if it was written (TensorFlow 2.3 or later), else "
        "record again with such a version",
        begins=_XPROF,
    ),
    OF_RUN("a memory timeline export without GPU times", begins=rb"\s*\[\s*\[\s*-?\d"),
    OtherFile(
        "a rocprofv2 text listing (ROCm 5.5 and 5.6), not a table",
        "record with rocprofv3 --kernel-trace, or with rocprofv2 --plugin file (ROCm 5.7 or later)",
        begins=rb"(?:[^\n]*\n){0,20}?(?:dispatch\[\d+\], gpu_id\(|Record\s*[(\[]\d+.{0,4}Domain)",
    ),
    OtherFile(
        "a summary of traceflops reduce, no recording",
        "give it to traceflops report or summary, or give the recording",
        begins=rb"ARROW1[\s\S]{1,400}?summary/\d{1,9}\0{1,4}\n\0{3}traceflops",
    ),
    OtherFile(
        "an unfinished stream of Nsight Systems (.qdstrm), no report yet",
        "convert it with QdstrmImporter of the same version (it lies beside nsys), or record again",
        begins=rb"[\s\S]{0,32}NVIDIA Nsight Systems Stream",
    ),
    OtherFile("an HDF5 file (nsys export --type hdf)", _NSYS, begins=rb"\x89HDF"),
    OtherFile(
        "an Nsight Systems JSON export, which is less complete than SQLite",
        _NSYS,
        begins=(
            rb'\s*\{\s*"(?:data"\s*:\s*\[|Type"\s*:\s*\d+\s*,\s*"\w+"\s*:\s*\{'
            rb'|(?:Cuda|Nvtx|TraceProcess|Uuid)Event"\s*:)'
        ),
    ),
    OtherFile(
        "an nsys stats report as JSON, in a layout that is not read",
        "write it as CSV: nsys stats --format csv",
        begins=rb'\s*[\[{]\s*(?:[{"]\s*)?"?(?:Time ?\(%\)|Start ?\(\w+\)|Total Time \(\w+\))"',
        lacks=(b'"Instances"', b'"Num Calls"', b'"Count"', b'"CorrId"'),
    ),
    OtherFile(
        "a Python pickle, which is unsafe to open",
        "export the trace as JSON; a memory snapshot of PyTorch is read as it is",
        begins=_PICKLE + rb"(?![\s\S]{0,50}(?:segments|device_traces|device[\s\S]{1,14}address))",
    ),
)
"""Kinds that are tried before any format, in this order; the first that fits counts."""


def other_file(
    head: bytes, name: str = "", rows: Iterable[OtherFile] = OTHER_FILES
) -> OtherFile | None:
    """Return the first of `rows` that fits a file's head or name, None if none does."""
    return next((row for row in rows if row.is_in(head, name)), None)
