"""Expressions on the texts of a recording: names of calls, and those that users write.

The latter are those of RE2, without look-around and back-references: the time to match grows with
the length of a text and no faster, whatever the expression and whoever wrote the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceflops.table.columns import BoolArray, string_column
from traceflops.table.grouping import used_names


def matches(pattern: str, texts: Sequence[str], *, ignore_case: bool = False) -> BoolArray:
    """Return, per text, whether the expression is found in it. Raises ValueError if invalid."""
    matched = pc.match_substring_regex(string_column(texts), pattern, ignore_case=ignore_case)
    return np.array(matched.to_pylist(), dtype=np.bool_)


def matched_groups(pattern: str, texts: Sequence[str]) -> list[str | None]:
    """Return what the first group of an expression matched in texts that it matches entirely.

    That is "" where it has no group, and None for the other texts. Raises ValueError where the
    expression is invalid.
    """
    matches(pattern, ("",))  # alone, so that no bracket of it closes one of ours
    anchored = rf"\A(?:{pattern})\z"
    is_match = matches(anchored, texts).tolist()
    matched = string_column([text for text, is_one in zip(texts, is_match, strict=True) if is_one])
    try:
        groups = iter(pc.replace_substring_regex(matched, anchored, r"\1").to_pylist())
    except pa.ArrowInvalid:  # it has no group
        return ["" if is_one else None for is_one in is_match]
    return [next(groups) if is_one else None for is_one in is_match]


LAUNCH: Final = re.compile(
    r"(cuda|cu|hip)(?!\w*HostFunc)\w*Launch(?!Attribute)|(ze|ur|sycl)\w*(LaunchKernel|KernelLaunch)"
)
"""Calls that launch kernels or graphs."""
GRAPH_LAUNCH: Final = re.compile(r"\w*GraphLaunch")
ASYNC_COPY: Final = re.compile(r"(cuda|cu|hip)Memcpy\w*Async")
ASYNC_FILL: Final = re.compile(r"(cuda|cu|hip)Memset\w*Async")
WAITS_FOR_DEVICE: Final = re.compile(r"(cuda|cu|hip)(DeviceSynchronize|CtxSynchronize)")
"""Calls that return after all work of the GPU that was launched before."""
LOADS: Final = re.compile(r"(cu|hip)(Module|Library)Load")
"""Calls that load code."""
COMPILES: Final = re.compile(
    r"\(dynamo_timed\)$|/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py\("
    r"|/_inductor/(graph|scheduler|async_compile)\.py\("
    r"|/_inductor/compile_fx\.py\(\d+\): (\w*compile\w*|\w+_passes|partition_fn)$"
    r"|(^|/)triton/(compiler|backends/\w+)/\w+\.py\(\d+\): (compile|make_\w+)$"
    r"|(^|/)triton/runtime/autotuner\.py\(\d+\): (_bench|check_disk_cache)$"
)
"""Functions and ranges that compile or tune."""
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
