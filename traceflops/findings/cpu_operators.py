"""Operators that launch nothing while the GPU waits: work of the CPU, whatever their class."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import numpy as np

from traceflops.attribution.culprits import Culprit
from traceflops.findings.case import Case
from traceflops.flops.ops.table import RULES
from traceflops.table.columns import codes, names, numbers, thread_columns
from traceflops.table.grouping import group_sums, shared_codes
from traceflops.table.trace import Trace

CPU_OPERATORS: Final = "cpu-operators"
_OF_TENSORS: Final = re.compile(r"(?!(autograd|c10d?|gloo|nccl|prims?|profiler)::)\w+::\w+")
_KINDS: Final = ("host_code", "eager_overhead")


def on_cpu(case: Case) -> frozenset[Culprit]:
    """Return the operators that hold up the GPU in long gaps and mostly launch nothing."""
    culprits = [one for one in case.idle.culprits if _is_long(one)]
    if case.prepared is None or not culprits:
        return frozenset()
    found = _launching_nothing(case.prepared.trace, {one.label for one in culprits})
    return frozenset(one for one in culprits if one.label in found)


def _is_long(culprit: Culprit) -> bool:
    is_operator = culprit.kind in _KINDS and _OF_TENSORS.fullmatch(culprit.label) is not None
    return is_operator and 2 * culprit.short_ns <= culprit.idle_ns


def are_views(culprits: Collection[Culprit]) -> bool:
    """Return whether most of the time is in operators that only make views of tensors."""
    total_ns = sum(one.idle_ns for one in culprits)
    rules = ((RULES.get(one.label), one.idle_ns) for one in culprits)
    return 2 * sum(ns for rule, ns in rules if rule and rule.kind == "view") >= total_ns


def _launching_nothing(trace: Trace, labels: Collection[str]) -> frozenset[str]:
    """Return operators that call nothing of the GPU on their thread for most of their time."""
    ops, calls = trace.ops, trace.calls
    used = [code for code, name in enumerate(names(ops["name"])) if name in labels]
    row = np.flatnonzero(np.isin(codes(ops["name"]), used))
    start, dur_ns = numbers(ops["start_ns"])[row], numbers(ops["dur_ns"])[row]
    # In this order: what begins with a call has it, and what ends with one.
    parts = ((ops, row), (calls, np.arange(calls.num_rows)), (ops, row))
    thread = np.concatenate(shared_codes(*(thread_columns(table, some) for table, some in parts)))
    times = np.concatenate([start, numbers(calls["start_ns"]), start + dur_ns])
    order, count = np.lexsort((times, thread)), len(row)
    before = np.empty(len(order), dtype=np.int64)
    before[order] = np.cumsum((order >= count) & (order < count + calls.num_rows))
    begun, ended = before[:count], before[count + calls.num_rows :]
    name, is_idle = codes(ops["name"])[row], begun == ended
    labels = names(ops["name"])
    sums = group_sums(name, dur_ns, len(labels))
    idle = group_sums(name, np.where(is_idle, dur_ns, 0), len(labels))
    return frozenset(labels[code] for code in used if 2 * idle[code] >= sums[code])
