"""Files of other tools that no format of traceflops fits: what each is, what to do instead."""

from __future__ import annotations

from functools import partial
from typing import Final

from traceflops.parsers.other_files import OF_RUN, OtherFile

_NVPROF: Final = "record again: nsys profile, or nvprof --export-profile run.nvvp"
_NEURON: Final = "traceflops reads GPUs only; neuron-profile and Neuron Explorer read it"
_NVPROF_TEXT: Final = partial(OtherFile, hint=_NVPROF)
_NVPROF_COUNTERS: Final = partial(
    OtherFile,
    hint="nvprof's counters are not read; its times are (nvprof --export-profile run.nvvp), and, "
    "from Volta on, counters of Nsight Compute (ncu --set full -o run)",
)

UNKNOWN_FILES: Final = (
    _NVPROF_TEXT(
        "a summary of nvprof as CSV (totals by kernel and call), not its recording",
        line=rb'\s*"?(?:Type"?,"?)?Time\(%\)"?,"?Time"?,"?Calls"?,',
    ),
    _NVPROF_TEXT(
        "a GPU trace of nvprof as CSV (--print-gpu-trace), not its recording",
        line=rb'\s*"?Start"?,"?Duration"?,"?Grid X"?,',
    ),
    _NVPROF_COUNTERS(
        "metrics or events of nvprof as CSV, not its recording",
        line=rb'\s*"?Device"?,"?(?:Context"?,"?Stream"?,"?)?Kernel"?,"?(?:Invocations|Correlation_ID)"?,',
    ),
    _NVPROF_COUNTERS(
        "console text of nvprof with metrics or events by kernel, without times",
        one_of=(b"== Metric result:", b"== Event result:"),
        lacks=(b"Time(%)",),
    ),
    _NVPROF_TEXT(
        "console text of nvprof, not its recording",
        one_of=(
            *(b"== NVPROF is profiling", b"== Profiling application"),
            *(b"== Profiling result", b"== CPU profiling result"),
        ),
    ),
    OF_RUN(
        "a printed table of torch.profiler (key_averages().table()), not the trace",
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
    OtherFile("a Neuron executable or profile (NEFF, NTFF)", _NEURON, suffixes=(".neff", ".ntff")),
    OtherFile(
        "a rocprof table that lacks columns or its header",
        "give the table as rocprof wrote it, or the whole folder",
        line=(
            rb'(?i)\s*"?(?:Kind|Domain|Index|Guid|Node_Id|Dispatch_Id|Correlation_Id)"?,'
            rb'|\s*"?Name"?,"?Calls"?,"?TotalDurationNs"?'
            rb'|\d+,"[^\n]{1,4000}\.kd\]?",\d+,\d+,'
            rb'|\s*"?(?:KERNEL_DISPATCH|MEMORY_COPY|(?:HIP|HSA|MARKER|RCCL)_[A-Z_]{0,40}API(?:_EXT)?)"?,'
        ),
    ),
    OtherFile(
        "an Nsight Systems table without CUDA work",
        "give cuda_gpu_trace or cuda_gpu_kern_sum of the same report, or export it: nsys "
        "export --type sqlite",
        line=rb'(?i)\s*"?(?:Time ?\(%\)|Start ?\(\w+\)|Total ?\(\w+\))"?\s*[,;\t]',
    ),
    OtherFile(
        "an Nsight Compute table without metrics",
        "export again: ncu --import FILE --csv --page raw",
        line=rb'(?i)\s*"?ID"?,"?Process ID"?,',
    ),
    OtherFile(
        "samples of nvidia-smi without the column timestamp",
        "add it to --query-gpu: nvidia-smi --query-gpu=timestamp,index,... --format=csv -lms 100",
        line=(
            rb"(?:name, )?(?:utilization\.(?:gpu|memory)|memory\.(?:used|free|total)"
            rb"|temperature\.gpu|power\.draw(?:\.average|\.instant)?"
            rb"|clocks\.(?:current\.)?(?:sm|mem|memory|gr|graphics|video))"
            rb"(?: \[[^]\n]{1,5}\])? ?(?:,|$)"
        ),
    ),
    OtherFile(
        "samples of nvidia-smi without a header",
        "record them with their header: --format=csv alone",
        line=rb"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, ",
    ),
    OtherFile(
        "a summary of Nsight Compute by kernel (--print-summary), not its single launches",
        "give the .ncu-rep, or its launches: ncu --import FILE --csv --page raw",
        all_of=(b", Invocations ", b"Metric Name ", b" Minimum ", b" Maximum ", b" Average"),
    ),
    OtherFile(
        "Nsight Compute console output without a table of launches",
        "profile with ncu --set full -o kernels, and give kernels.ncu-rep",
        line=rb"==PROF==|  Section: ",
    ),
)
"""Kinds that are tried last, if no format fits: some logs contain a table that a format reads."""
