"""Regular expressions on the texts of a recording: those for names of calls, and those of users.

Expressions of users have the syntax of RE2, without look-around and back-references: the time to
match is linear in the length of the text, whatever the expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table.columns import BoolArray, matching, numbers, string_column
from traceflops.table.grouping import used_names


def matches(pattern: str, texts: Sequence[str], *, ignore_case: bool = False) -> BoolArray:
    """Return, per text, whether the pattern matches a part of it. Raises ValueError if invalid."""
    from pyarrow import compute

    matched = compute.match_substring_regex(string_column(texts), pattern, ignore_case=ignore_case)
    return np.array(matched.to_pylist(), dtype=np.bool_)


def matched_groups(pattern: str, texts: Sequence[str]) -> list[str | None]:
    """Return, per text, what the first group of an expression matches that matches all the text.

    None for a text that the expression does not match as a whole, "" if the expression has no
    group. Raises ValueError if the expression is invalid.
    """
    from pyarrow import compute

    matches(pattern, ("",))  # checked alone, so that its brackets cannot close those added below
    anchored = rf"\A(?:{pattern})\z"
    is_match = matches(anchored, texts).tolist()
    matched = string_column([text for text, fits in zip(texts, is_match, strict=True) if fits])
    try:
        groups = iter(compute.replace_substring_regex(matched, anchored, r"\1").to_pylist())
    except pa.ArrowInvalid:  # the expression has no group
        return ["" if fits else None for fits in is_match]
    return [next(groups) if fits else None for fits in is_match]


LAUNCH: Final = re.compile(
    r"(cuda|cu|hip)(?!\w*HostFunc)\w*Launch(?!Attribute)|(ze|ur|sycl)\w*(LaunchKernel|KernelLaunch)"
)
"""Calls that launch kernels or graphs."""
GRAPH_LAUNCH: Final = re.compile(r"\w*GraphLaunch")
ANY_FREE: Final = re.compile(r"Free(?!ze)")
"""Calls that free memory, at once or later."""
ASYNC_COPY: Final = re.compile(r"(cuda|cu|hip)Memcpy\w*Async")
ASYNC_FILL: Final = re.compile(r"(cuda|cu|hip)Memset\w*Async")
LOADS_DATA: Final = re.compile(
    r"^enumerate\(DataLoader\)#|DataLoader\S*__next__|/dataloader\.py\(\d+\): __next__$"
    r"|^\[DALI\]\["
)
"""Annotations and functions in which a data loader gets the next batch."""
WAITS_FOR_DEVICE: Final = re.compile(r"(cuda|cu|hip)(DeviceSynchronize|CtxSynchronize)")
"""Calls that return when all work of the GPU launched before has ended."""
FREES: Final = re.compile(r"(cuda|hip)Free(Host)?|(cuda|hip)HostUnregister|cuMemFree(Host)?(_v2)?")
"""Calls that free memory once all work is done."""
BEGINS_PROGRAM: Final = re.compile(r"(cu|hip)Init$|cu(CtxCreate|DevicePrimaryCtxRetain)(_v\d)?$")
"""Calls that a program makes before its first GPU work, and no more."""
LOADS: Final = re.compile(
    r"(cu|hip)((Module|Library)Load|Link(Create|Add|Complete))"
    r"|hsa_(executable_(load|freeze)|code_object)"
)
"""Calls that load code, or link it when it was compiled at run time."""
COMPILES: Final = re.compile(
    r"\(dynamo_timed\)$|/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py\("
    r"|/_inductor/(graph|scheduler|async_compile)\.py\("
    r"|/_inductor/compile_fx\.py\(\d+\): (\w*compile\w*|\w+_passes|partition_fn)$"
    r"|(^|/)triton/(compiler|backends/\w+)/\w+\.py\(\d+\): (compile|make_\w+)$"
    r"|(^|/)triton/runtime/autotuner\.py\(\d+\): (_bench|check_disk_cache)$"
)
"""Functions and ranges that compile or tune."""
ALLOCATES: Final = re.compile(r"Malloc|MemAlloc|Host(Alloc|Register)|MemCreate")
"""Calls that allocate memory."""
STARTS: Final = re.compile(
    f"{LAUNCH.pattern}|(cuda|cu|hip)(Mem(cpy|set|Prefetch)|DeviceGraph|StreamBatchMem)"
)
"""Calls that start any work of a GPU."""
_RUNS: Final = re.compile(f"{LAUNCH.pattern}|(cuda|cu|hip)DeviceGraph")
_KNOWN: Final = re.compile(r"(cuda|cu|hip)[A-Z]")
"""Calls of these interfaces; their names tell whether they start work."""
_USES: Final = re.compile(
    r"(cuda|cu|hip)(Ipc|(Stream|Event)(Wait|Synchronize|Query)|CtxSynchronize)"
)
_MAKES: Final = re.compile(
    r"(cuda|cu|hip)(Malloc|Host(Alloc|Register)|Mem\w*Alloc|(Stream|Event)Create)"
)
"""Calls that use memory, streams and events, and calls that make them."""


_OF_CPUS: Final = re.compile(r"aten::(_?mkldnn_|\w+_for_cpu$)")
_OF_LINEAR, _OF_NESTED = "aten::linear_backward", "aten::_nested_"
_OF_MPS: Final = re.compile(rf"aten::(_?mps_\w+|_?lstm_mps\w*|_\w+_for_mps)$|{_OF_LINEAR}$")
_OF_GPUS: Final = re.compile(
    r"^aten::(_?(cudnn|miopen)_(?!is_acceptable)|_scaled_dot_product_(flash|efficient|cudnn)"
    r"_attention(?!_for_cpu)|_(flash|efficient|cudnn)_attention)|^nccl:"
)


def operator_of_gpus(operators: Iterable[str]) -> str | None:
    """Return an operator that PyTorch has only for GPUs of CUDA and ROCm, or None."""
    return min(filter(_OF_GPUS.match, operators), default=None)


def operator_of_cpus(operators: Iterable[str]) -> str | None:
    """Return an operator that PyTorch has only for CPUs, or None."""
    return min(filter(_OF_CPUS.match, operators), default=None)


def operator_of_mps(operators: Collection[str]) -> str | None:
    """Return an operator that PyTorch has only for Apple's GPUs (MPS), or None.

    The gradient of a linear layer is one operator only there and for nested tensors.
    """
    is_nested = any(name.startswith(_OF_NESTED) for name in operators)
    names_of_mps = {*filter(_OF_MPS.match, operators)} - ({_OF_LINEAR} if is_nested else set())
    return min(names_of_mps, default=None)


FUNCTION_WAITS: Final = re.compile(
    r"<built-in (method|function) (poll|select|get|acquire|sleep|accept|recv\w*|wait\w*|control)\b"
    r"|(^|/)(selectors\.py\(\d+\): select|asyncio/runners\.py\(\d+\): run)$"
    r"|(^|/)asyncio/base_events\.py\(\d+\): (run_forever|run_until_complete|_run_once)$"
)
"""Functions that only wait, and those that run an event loop, which waits most of the time."""


def started(
    calls: pa.Table, pattern: re.Pattern[str] = LAUNCH, *, failed: bool = False
) -> BoolArray:
    """Return, per call, whether it started work of a GPU: by its name, and as no error is recorded.

    With `failed`, whether it is recorded that the call returned an error, and so started nothing.
    """
    has_failed = numbers(calls["error_code"], 0) > 0
    return np.asarray(matching(calls["name"], pattern.match) & (has_failed == failed))


def launches_nothing(calls: pa.Table, starts: re.Pattern[str] = STARTS) -> bool:
    """Return whether calls are recorded, all of CUDA or HIP, and none of them starts GPU work.

    Calls that use what no recorded call has made are only a part of the program's calls, which
    tells nothing. Calls that failed count: the program does start work.
    """
    called = used_names(calls["name"])
    is_part = any(map(_USES.match, called)) and not any(map(_MAKES.match, called))
    starts_none = all(_KNOWN.match(name) and not starts.match(name) for name in called)
    return bool(called) and starts_none and not is_part


def launches_no_kernel(calls: pa.Table) -> bool:
    """Return whether calls are recorded, all of CUDA or HIP, and none of them starts a kernel."""
    return launches_nothing(calls, _RUNS)
