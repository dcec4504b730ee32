"""What PyTorch's profiler calls accelerators, and what traces them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from traceflops.table.trace import Source

CUDA: Final = "CUDA"
"""What PyTorch calls the GPUs of NVIDIA, and those of AMD."""
ACTIVITIES: Final = "activities=[ProfilerActivity.CPU, ProfilerActivity.{accelerator}]"
_VERSIONS: Final = ("cuda_runtime_version", "cuda_driver_version")
"""Facts of Kineto's files: the runtime, and the latest one that the driver supports."""
_ACCELERATORS: Final = {
    "xpu_": "XPU",
    "mtia_": "MTIA",
    "hpu_": "HPU",
    "privateuse1_": "PrivateUse1",
}
"""Members of ProfilerActivity, by how Kineto's categories of their events begin."""


def accelerator(counts: Mapping[str, int]) -> str:
    """Return the member of ProfilerActivity of the events, CUDA unless a category shows another."""
    for prefix, name in _ACCELERATORS.items():
        if any(category.startswith(prefix) for category in counts):
            return name
    return CUDA


def with_activities(counts: Mapping[str, int]) -> str:
    """Return how torch.profiler records CPU and accelerator; `counts` are events by category."""
    return ACTIVITIES.format(accelerator=accelerator(counts))


def tracers(source: Source) -> tuple[str, str]:
    """Return what traces the GPUs for PyTorch, and what may be too old if nothing came of them."""
    either = "CUPTI" if "cupti_version" in source.facts else "CUPTI or roctracer"
    tracer = either if accelerator(source.event_counts) == CUDA else "the profiler"
    # If the file tells that the driver supports the runtime, the tracer may be too old.
    runtime, driver = (source.facts.get(key, "") for key in _VERSIONS)
    are_known = runtime.isdecimal() and driver.isdecimal()
    return tracer, tracer if are_known and int(runtime) <= int(driver) else "the driver"
