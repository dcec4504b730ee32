"""How to record what a trace lacks, in the words of the tool that recorded it.

A line of advice is one cell of the table. Options are those of rocprofv3 (rocprofiler-sdk's
documentation, "Using rocprofv3"), which also replaces rocprof and rocprofv2; of nsys; and the
arguments of torch.profiler and jax.profiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

PYTORCH, ROCPROF, NSIGHT, XLA = "pytorch", "rocprof", "nsight", "xla"

_FAMILIES: Final = {
    "rocprof": ROCPROF,
    "rocpd": ROCPROF,
    "rpd": ROCPROF,
    "nsight": NSIGHT,
    "nsys": NSIGHT,
    "ncu": NSIGHT,
    "xplane": XLA,
}
"""The tools whose formats are named so; all others are read as PyTorch's."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """How one tool records something: in words, and its options for it."""

    text: str
    options: tuple[str, ...] = ()


_WITH_CUDA: Final = Remedy("activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
_KERNELS: Final = Remedy("--kernel-trace", ("--kernel-trace",))
_CUDA: Final = Remedy("nsys profile --trace=cuda,nvtx", ("--trace=cuda,nvtx",))
_NOT_SHAPES: Final = Remedy(
    "no option records operators: describe the model with traceflops mfu --model, or give a "
    "torch.profiler trace of the same run with --pair"
)

_WITH_XLA: Final = Remedy("jax.profiler.trace(FOLDER) around work of the GPU")
_TRACE_ANNOTATION: Final = Remedy("jax.profiler.TraceAnnotation()")

_RECORDS: Final = Remedy(
    "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] without profiler_metrics (CUPTI "
    "counters replace kernel records)"
)
_SHORTER: Final = "record fewer steps, since full buffers drop records"
_EMIT_NVTX: Final = Remedy("torch.autograd.profiler.emit_nvtx(record_shapes=True) around the steps")

_TABLE: Final[Mapping[str, Mapping[str, Remedy]]] = {
    "device work": {PYTORCH: _WITH_CUDA, ROCPROF: _KERNELS, NSIGHT: _CUDA, XLA: _WITH_XLA},
    "device records": {
        PYTORCH: _RECORDS,
        ROCPROF: _KERNELS,
        NSIGHT: Remedy(
            "nsys profile --trace=cuda,nvtx; if it was set, the report's diagnostics say why "
            "CUDA recorded nothing",
            ("--trace=cuda,nvtx",),
        ),
        XLA: _WITH_XLA,
    },
    "all device records": {
        PYTORCH: Remedy(f"{_SHORTER} (active=1 in torch.profiler.schedule)"),
        ROCPROF: Remedy(f"{_SHORTER} (--collection-period)"),
        NSIGHT: Remedy(f"{_SHORTER} (nsys profile --duration or --capture-range)"),
        XLA: Remedy(_SHORTER),
    },
    "timeline": {
        PYTORCH: _WITH_CUDA,
        ROCPROF: Remedy(
            "--kernel-trace --memory-copy-trace, without --pmc",
            ("--kernel-trace", "--memory-copy-trace"),
        ),
        NSIGHT: _CUDA,
        XLA: _WITH_XLA,
    },
    "copies": {
        ROCPROF: Remedy("--memory-copy-trace", ("--memory-copy-trace",)),
        NSIGHT: _CUDA,
    },
    "sizes of copies": {
        ROCPROF: Remedy("--output-format rocpd; CSV has no sizes"),
    },
    "calls": {
        PYTORCH: _WITH_CUDA,
        ROCPROF: Remedy("--hip-trace, or --runtime-trace for everything but HSA", ("--hip-trace",)),
        NSIGHT: _CUDA,
        XLA: _WITH_XLA,
    },
    "collectives": {
        ROCPROF: Remedy("--rccl-trace", ("--rccl-trace",)),
    },
    "operators": {
        PYTORCH: Remedy("activities=[ProfilerActivity.CPU, ...]"),
        ROCPROF: _NOT_SHAPES,
        NSIGHT: _EMIT_NVTX,
        XLA: _NOT_SHAPES,
    },
    "shapes": {
        PYTORCH: Remedy("record_shapes=True"),
        NSIGHT: _EMIT_NVTX,
    },
    "kernel counters": {
        ROCPROF: Remedy(
            "--pmc SQ_INSTS_VALU_MFMA_MOPS_BF16 etc. for FLOPs, --pmc FETCH_SIZE and --pmc "
            "WRITE_SIZE for bytes, in separate runs"
        ),
        NSIGHT: Remedy(
            "ncu --csv --page raw --metrics (docs/counters.md lists them by device) in a separate "
            "run, given with --pair"
        ),
    },
    "steps": {
        PYTORCH: Remedy("call prof.step() once per iteration"),
        ROCPROF: Remedy(
            'put roctxRangePush("step 12") and roctxRangePop() around each iteration and add '
            "--marker-trace",
            ("--marker-trace",),
        ),
        NSIGHT: Remedy(
            'put nvtxRangePush("step 12") and nvtxRangePop() around each iteration and add '
            "--trace=nvtx",
            ("--trace=cuda,nvtx",),
        ),
        XLA: Remedy(
            'put jax.profiler.StepTraceAnnotation("train", step_num=12) around each iteration'
        ),
    },
    "stacks": {
        PYTORCH: Remedy("with_stack=True (large traces)"),
        XLA: Remedy("python_tracer_level=1 in jax.profiler.ProfileOptions"),
    },
    "host work": {
        PYTORCH: Remedy("with_stack=True, or record_function() around code between operators"),
        ROCPROF: Remedy("rocprofv3 --sys-trace, and roctx ranges around the code"),
        NSIGHT: Remedy("nsys profile --trace=cuda,nvtx,osrt, and NVTX ranges around the code"),
        XLA: Remedy("jax.profiler.TraceAnnotation() around the code"),
    },
    "ranges": {
        PYTORCH: Remedy("record_function()"),
        ROCPROF: Remedy("roctxRangePush() and roctxRangePop()"),
        NSIGHT: Remedy("nvtxRangePush() and nvtxRangePop()"),
        XLA: _TRACE_ANNOTATION,
    },
    "first work": {
        PYTORCH: Remedy(
            "call torch.cuda.synchronize() before recording begins, and use "
            "torch.profiler.schedule(wait=1, warmup=1, active=3)"
        ),
        ROCPROF: Remedy(
            "call hipDeviceSynchronize() before roctxProfilerResume(), and use rocprofv3 "
            "--selected-regions"
        ),
        NSIGHT: Remedy(
            "call cudaDeviceSynchronize() before cudaProfilerStart(), and use nsys profile "
            "--capture-range=cudaProfilerApi"
        ),
    },
    "kernels of graphs": {
        NSIGHT: Remedy("nsys profile --trace=cuda,nvtx --cuda-graph-trace=node"),
    },
    "annotations": {
        PYTORCH: Remedy("torch.profiler.record_function"),
        ROCPROF: Remedy("roctxRangePush and --marker-trace", ("--marker-trace",)),
        NSIGHT: Remedy("nvtxRangePush and --trace=nvtx", ("--trace=cuda,nvtx",)),
        XLA: _TRACE_ANNOTATION,
    },
    "device": {
        PYTORCH: Remedy("name the device to get MFU"),
        ROCPROF: Remedy(
            "use rocprofv3 (rocpd, JSON, agent_info.csv) instead of rocprof, or name the device "
            "with --device"
        ),
        NSIGHT: Remedy("name the device with --device"),
        XLA: Remedy("name the device with --device"),
    },
    "rank": {
        PYTORCH: Remedy(
            "initialise torch.distributed before profiling, or put rankN in the file name"
        ),
        ROCPROF: Remedy("put rankN in the file name: --output-file rank%rank%"),
        NSIGHT: Remedy("put rankN in the file name: --output=rank%q{RANK}"),
        XLA: Remedy("put rankN in the file name"),
    },
    "memory": {
        PYTORCH: Remedy("profile_memory=True"),
    },
}

_COMMANDS: Final = {
    ROCPROF: ("rocprofv3", "--output-format rocpd -- COMMAND"),
    NSIGHT: ("nsys profile", "COMMAND"),
}


def family(format_: str) -> str:
    """Return the tool that writes a format: pytorch, rocprof, nsight or xla."""
    return next((one for start, one in _FAMILIES.items() if format_.startswith(start)), PYTORCH)


def remedy(format_: str, lack: str) -> str | None:
    """Return how a trace of this format would have what it lacks; None where it never has it."""
    found = _TABLE[lack].get(family(format_))
    return found.text if found is not None else None


def command(format_: str, lacks: Iterable[str]) -> str | None:
    """Return the command line that records what is lacking; None where there is none."""
    tool = family(format_)
    if tool not in _COMMANDS:
        return None
    remedies = [_TABLE[lack][tool] for lack in lacks if tool in _TABLE[lack]]
    options = dict.fromkeys(option for one in remedies for option in one.options)
    before, after = _COMMANDS[tool]
    return " ".join([before, *options, after])


def sentence(format_: str, lack: str) -> str:
    """Return how to record something as the beginning of a sentence; "" where nothing does."""
    text = remedy(format_, lack) or ""
    return text[:1].upper() + text[1:]
