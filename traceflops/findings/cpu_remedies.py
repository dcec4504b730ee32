"""Facts of a program whose only recorded work is on CPUs: they choose what would help it.

    randn    |--------|                      # made on the CPU,
    to                |---cudaMemcpy---|     # and copied to the GPU at once: `copied`
    cudaFree                              |---|    # in no operator: `emptied`, by empty_cache()

The remedies are those of the rule `on-cpu`.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.table.columns import ABSENT, matching, numbers
from traceflops.table.grouping import joint_codes
from traceflops.table.patterns import LAUNCH
from traceflops.timeline.first_calls import COPIES
from traceflops.windows.prepared import Prepared

RULE: Final = "on-cpu"
GPU_FREES: Final = re.compile(r"(cuda|hip)Free$|cuMemFree(_v2)?$")
"""Calls that give memory back once the GPU has done all its work."""
_DRAWS: Final = re.compile(r"aten::(normal|uniform|random|exponential|bernoulli)_?$")
"""Operators that fill tensors with random numbers."""


def cpu_facts(prepared: Prepared) -> frozenset[str]:
    """Return the facts of a program on CPUs.

    gpu      it launches work on a GPU that is not recorded
    copied   most random numbers are copied to the GPU as soon as they are made
    emptied  most time of calls that free memory of a GPU is in no operator
    """
    trace = prepared.trace
    holds = {
        "gpu": matching(trace.calls["name"], LAUNCH.match).any(),
        "copied": _are_copied(prepared),
        "emptied": _are_emptied(prepared),
    }
    return frozenset(name for name, is_so in holds.items() if is_so)


def _are_copied(prepared: Prepared) -> bool:
    """Return whether the operator after most of those that draw numbers copies to the GPU."""
    ops, calls, tree = prepared.trace.ops, prepared.trace.calls, prepared.linked.op_tree
    draws = matching(ops["name"], _DRAWS.match)
    if not draws.any():
        return False
    outermost = tree.order[tree.parent[tree.order] < 0]
    is_random = (draws | (tree.below(draws) > 0))[outermost]
    start, dur_ns = (numbers(ops[name])[outermost] for name in ("start_ns", "dur_ns"))
    copied_ns = np.sort(numbers(calls["start_ns"])[matching(calls["name"], COPIES.search)])
    until, since = np.searchsorted(copied_ns, start + dur_ns), np.searchsorted(copied_ns, start)
    thread = joint_codes(numbers(ops["process"]), numbers(ops["thread"], ABSENT))[outermost]
    # What follows the last operator of a thread is of another thread.
    follows = np.append((until > since)[1:] & (thread[1:] == thread[:-1]), False)
    return bool(2 * dur_ns[is_random & follows].sum() > dur_ns[is_random].sum())


def _are_emptied(prepared: Prepared) -> bool:
    """Return whether memory is mostly freed outside of operators: none asks for memory after it."""
    calls = prepared.trace.calls
    row = np.flatnonzero(matching(calls["name"], GPU_FREES.match))
    dur_ns = numbers(calls["dur_ns"])[row]
    is_alone = prepared.linked.links.op_of_call[row] < 0
    return bool(2 * dur_ns[is_alone].sum() > dur_ns.sum())
