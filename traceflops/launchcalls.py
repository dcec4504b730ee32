"""Calls that launch work on a GPU, known by their names: what they launched may not be recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.columns import codes, names

if TYPE_CHECKING:
    from traceflops.trace import Trace
    from traceflops.untimed import Untimed

_LAUNCH: Final = re.compile(
    r"(cuda|cu|hip)(?!\w*HostFunc)\w*Launch(?!Attribute)|(ze|ur|sycl)\w*(LaunchKernel|KernelLaunch)"
)
_GPU: Final = "gpu"
NO_DEVICE_RECORDS: Final = "device-records-missing"
"""The code of the note on launch calls without any record of a device."""


def launch_calls(trace: Trace) -> int:
    """Return how many calls of a trace launch kernels or graphs on a GPU."""
    calls = trace.calls["name"]
    launching = [at for at, name in enumerate(names(calls)) if _LAUNCH.match(name)]
    return int(np.isin(codes(calls), launching).sum())


def unrecorded_launches(trace: Trace, untimed: Untimed | None = None) -> int:
    """Return how many launch calls there are in a trace without any record of a device, else 0.

    `untimed` has the calls of a trace that only counts them.
    """
    if untimed is None:
        kinds = trace.devices["type"].to_pylist() if trace.activities.num_rows else []
        return 0 if _GPU in kinds else launch_calls(trace)
    rows = untimed.of_kind("call")
    if untimed.categories.num_rows or untimed.launches:
        return 0
    pairs = zip(rows["name"].to_pylist(), rows["count"].to_pylist(), strict=True)
    return sum(count or 0 for name, count in pairs if _LAUNCH.match(name))
