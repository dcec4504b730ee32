"""What is known of memory that is allocated while the GPU is idle, to choose a remedy."""

from __future__ import annotations

import re
from typing import Final

from traceflops.attribution.culprits import Culprit, IdleClass
from traceflops.attribution.host_calls import memory_operations
from traceflops.facts import Value
from traceflops.findings.case import Case
from traceflops.findings.copy_sizes import PINNED
from traceflops.findings.device_memory import allocator_state

_PINS: Final = re.compile(r"HostAlloc|MallocHost|HostRegister|HostMalloc")


def of_allocations(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return facts on allocating: pinned memory, a call made once, the state of PyTorch's cache.

    `copied_ns` is how long copies from and to pinned memory take: pinning is dear ("dear-pin") if
    one call takes twice as long.
    """
    largest = idle.culprits[0]
    pins_ns = sum(own.idle_ns for own in idle.culprits if _PINS.search(_call_of(own)))
    knows = {"pinned"} if 2 * pins_ns >= idle.idle_ns else allocator_state(case)
    copies = memory_operations(case.prepared)
    copied_ns = sum(copy.sum_ns for copy in copies if copy.memory == PINNED)
    values: dict[str, Value] = {"copied_ns": copied_ns}
    if case.steps.used:
        return knows | {"steps"}, values
    is_once = 2 * largest.idle_ns >= idle.idle_ns  # a call that is made once has most of the time
    if is_once and memory_calls(case).get(_call_of(largest)) == 1:
        is_dear = _PINS.search(_call_of(largest)) and 0 < 2 * copied_ns < largest.idle_ns
        knows |= {"one-call", "dear-pin"} if is_dear else {"one-call"}
    return knows, values


def memory_calls(case: Case) -> dict[str, int]:
    """Return how often each call that allocates or frees memory is made in the chosen windows."""
    operations = memory_operations(case.prepared)
    return {call.name: call.count for call in operations if call.kind == "call"}


def _call_of(culprit: Culprit) -> str:
    """Return the innermost name of a culprit, "" for the sum of small ones, which has none."""
    return next(iter(culprit.evidence), "")
