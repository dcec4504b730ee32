"""Calls that start work on a GPU or wait for all of it, known by their names."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from traceflops.table.grouping import used_names

LAUNCH: Final = re.compile(
    r"(cuda|cu|hip)(?!\w*HostFunc)\w*Launch(?!Attribute)|(ze|ur|sycl)\w*(LaunchKernel|KernelLaunch)"
)
"""Calls that launch kernels or graphs."""
GRAPH_LAUNCH: Final = re.compile(r"\w*GraphLaunch")
ASYNC_COPY: Final = re.compile(r"(cuda|cu|hip)Memcpy\w*Async")
ASYNC_FILL: Final = re.compile(r"(cuda|cu|hip)Memset\w*Async")
WAITS_FOR_DEVICE: Final = re.compile(r"(cuda|cu|hip)(DeviceSynchronize|CtxSynchronize)")
"""Calls that return after all work of the GPU that was launched before."""
_STARTS: Final = re.compile(
    f"{LAUNCH.pattern}|(cuda|cu|hip)(Mem(cpy|set|Prefetch)|DeviceGraph|StreamBatchMem)"
)
_KNOWN: Final = re.compile(r"(cuda|cu|hip)[A-Z]")
"""Calls of these interfaces that start work are known by their names."""


def launches_nothing(calls: pa.Table) -> bool:
    """Return whether calls of CUDA or HIP are recorded, and none of them starts work on a GPU.

    Then no record can be lost: queries, allocations and synchronisations start nothing.
    """
    called = used_names(calls["name"])
    return bool(called) and all(_KNOWN.match(name) and not _STARTS.match(name) for name in called)
