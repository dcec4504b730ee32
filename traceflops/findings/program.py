"""Facts of the program that choose a remedy: its framework, its GPUs, what kind of program it is.

torch      it runs PyTorch: by the profiler, else by its kernels
ml         a framework, engine or library of machine learning runs
amd        the GPUs are AMD's: by the profiler, themselves, or the calls
nvidia     the GPUs are NVIDIA's
other-gpu  the accelerators are neither's (XPU, MTIA, HPU)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceflops.categories.programs import of_ml, of_pytorch
from traceflops.remedies import CUDA, NSIGHT, PYTORCH, ROCPROF, accelerator, family
from traceflops.table.columns import names

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.table.trace import Trace

_AMD_WARP: Final = 64


def program_of(case: Case) -> frozenset[str]:
    """Return what is known of the program of a recording or of its summary."""
    if case.prepared is not None:
        return program_of_trace(case.prepared.trace)
    tool = family(case.source.format)
    return frozenset({PYTORCH: ["torch", "ml"], ROCPROF: ["amd"]}.get(tool, []))


def program_of_trace(trace: Trace) -> frozenset[str]:
    """Return what is known of the program of a trace."""
    known = {"torch": of_pytorch(trace), "ml": of_ml(trace)}
    return frozenset({*(name for name, holds in known.items() if holds), gpus_of(trace)} - {""})


def gpus_of(trace: Trace) -> str:
    """Return who made the GPUs: amd, nvidia, other-gpu, or "" where nothing tells."""
    tool, calls = family(trace.source.format), names(trace.calls["name"])
    if accelerator(trace.source.event_counts) != CUDA:
        return "other-gpu"
    if (
        tool == ROCPROF
        or _AMD_WARP in trace.devices["warp_size"].to_pylist()
        or any(name.startswith("gfx") for name in names(trace.devices["architecture"]))
        or any(name.startswith("hip") for name in calls)
    ):
        return "amd"
    return "nvidia" if tool == NSIGHT or any(name.startswith("cu") for name in calls) else ""
