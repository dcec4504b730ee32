"""What nested operators and ranges of a program on CPUs tell: broken graphs, work done again.

```text
Torch-Compiled Region: 0/1   |-----------------------------|
Torch-Compiled Region: 1/0       |-----|   |-----|            # graphs between breaks
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from traceflops.attribution.host_events import has_fact
from traceflops.facts import Fact, fact
from traceflops.findings.finding import short_name
from traceflops.findings.many_operators import op_of
from traceflops.table.columns import (
    ABSENT,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
    span_columns,
)
from traceflops.table.grouping import group_rows, groups, joint_codes
from traceflops.table.nesting import OpTree, taken
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.windows.records import DeviceReport
from traceflops.windows.steps import is_step_label

_REGION: Final = re.compile("Torch-Compiled Region")
_BACKWARD: Final = re.compile("autograd::engine::evaluate_function: ")
_FORWARD: Final = re.compile(
    r"aten::(linear|conv[123]d|layer_norm|batch_norm|embedding|scaled_dot_product_attention)$"
)
"""Operators that a forward pass calls; backward passes call others."""
_WORTH, _LARGE = 0.1, 0.3
_EDGE: Final = 0.01  # of a step: less of a range at its edge is of another step
_EDGES: Final = ("start_ns", "end_ns")
_FEW_STEPS, _SELDOM = 3, 0.7
"""Ranges in at most this part of the steps are seldom, if there are so many steps."""


def broken_graphs(trace: Trace) -> tuple[Fact, ...]:
    """Return a statement if compiled regions with much of the time have others inside."""
    marks = trace.marks
    row = np.flatnonzero(matching(marks["name"], _REGION.match))
    start, end = (edge[row] for edge in span_columns(marks))
    thread = joint_codes(numbers(marks["process"]), numbers(marks["thread"], ABSENT))[row]
    tree = OpTree.nested(thread, start, end)
    inner = int((tree.parent >= 0).sum())
    if not inner:
        return ()
    ops_start, ops_end = span_columns(trace.ops)
    span_ns = max(end.max(), ops_end.max(initial=0)) - min(start.min(), *ops_start[:1])
    if Intervals.of(start, end).length_ns < _LARGE * span_ns:
        return ()
    return (fact("verdict.cpu-broken-graphs", count=inner, calls=len(row) - inner),)


def recomputed(trace: Trace) -> tuple[Fact, ...]:
    """Return a statement if operators of a forward pass take much of the time of backward passes.

    Checkpointed layers compute their forward pass again there, from the same inputs; the backward
    pass of an own layer may call such operators, too, mostly with other inputs.
    """
    ops, op, tree = trace.ops, op_of(trace), OpTree.of(trace.ops)
    in_backward = tree.nearest(matching(ops["name"], _BACKWARD.match)) >= 0
    is_forward = matching(ops["name"], _FORWARD.match)
    alike, _ = group_rows([codes(ops[column]) for column in ("name", "input_dims")])
    is_known = np.isin(alike, alike[is_forward & ~in_backward])
    again = tree.nearest(in_backward & is_forward & is_known) >= 0
    dur_ns = numbers(trace.activities["dur_ns"])
    again_ns = int(dur_ns[taken(again.astype(np.int8), op, 0) > 0].sum())
    if again_ns <= _WORTH * dur_ns.sum():
        return ()
    return (fact("verdict.cpu-recomputes", share=again_ns / int(dur_ns.sum())),)


def seldom(trace: Trace, devices: Sequence[DeviceReport]) -> tuple[Fact, ...]:
    """Return a statement on the range that takes most time of some steps, and is in no others."""
    steps = [window for window in devices[0].windows if window.used] if len(devices) == 1 else []
    marks = trace.marks
    is_label = is_one_of(marks["kind"], "annotation") & (numbers(marks["dur_ns"]) > 0)
    is_label &= ~matching(marks["name"], lambda name: is_step_label(name, None))
    is_label &= ~has_fact(marks["name"], "is_work")  # labels of libraries
    row, label = np.flatnonzero(is_label), names(marks["name"])
    start, end = (edge[row] for edge in span_columns(marks))
    begin, stop = (np.array([getattr(step, edge) for step in steps]) for edge in _EDGES)
    all_ns = int((stop - begin).sum())
    told = list[tuple[int, str, int]]()
    for code, own in groups(codes(marks["name"])[row]) if len(steps) >= _FEW_STEPS else ():
        inside_ns = Intervals.of(start[own], end[own]).length_within(begin, stop)
        holds = inside_ns > _EDGE * (stop - begin)
        count, time_ns = int(holds.sum()), int(inside_ns.sum())
        if time_ns >= _LARGE * all_ns and count <= _SELDOM * len(steps):
            told.append((time_ns, label[code], count))
    if not told:
        return ()
    time_ns, name, count = max(told)
    values = {"share": time_ns / all_ns, "count": count, "all": len(steps)}
    return (fact("verdict.cpu-seldom", name=short_name(name), **values),)
