"""The truth about modules: what each launched, that of replayed graphs by a run that captures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from sample_traces.records import Activity, Call, Mark, Op, RankRun

_MODULE: Final = "nn.Module: "


class ModuleTruth(Struct):
    """What a module and its backward launched, without modules inside it; times in ns."""

    count: int = 0
    device_ns: int = 0
    flops: int = 0


def module_truth(
    rank: RankRun, steps: Collection[int], capture: RankRun | None = None
) -> dict[str, ModuleTruth]:
    """Return, by path, what modules launched in some steps.

    Which kernels are nodes of a graph only a run that captures it tells: `capture`.
    """
    found: defaultdict[str, ModuleTruth] = defaultdict(ModuleTruth)
    for one in rank.activities:
        path = _path(one, rank, capture) if one.step in steps else ""
        if path:
            found[path].count += 1
            found[path].device_ns += one.dur_ns
            found[path].flops += one.work.flops
    return dict(found)


def _path(one: Activity, rank: RankRun, capture: RankRun | None) -> str:
    if one.call is None:
        return ""
    if one.graph_node is None:
        return _around(rank.calls[one.call], rank)
    if capture is None or one.work.kind != "kernel":
        return ""
    captured = [call for call in capture.calls if call.is_captured and call.work]
    return _around(captured[one.graph_node - 1], capture)


def _around(call: Call, rank: RankRun) -> str:
    """Return the modules around a call, or else around the op that it is the backward of."""
    own = _modules(call.thread, call.start_ns, rank.marks)
    forward = None if own or call.op is None else _forward(call.op, rank)
    return _modules(forward.thread, forward.start_ns, rank.marks) if forward else own


def _forward(place: int, rank: RankRun) -> Op | None:
    """Return the last op before whose gradient an op, or one around it, computes."""
    op: Op | None = rank.ops[place]
    while op and not op.is_backward:
        op = None if op.parent is None else rank.ops[op.parent]
    if op is None or op.sequence is None:
        return None
    alike = [one for one in rank.ops if one.sequence == op.sequence and not one.is_backward]
    return [one for one in alike if one.start_ns < op.start_ns][-1]


def _modules(thread: int, at_ns: int, marks: Collection[Mark]) -> str:
    around = (
        mark.name.removeprefix(_MODULE)
        for mark in marks
        if mark.name.startswith(_MODULE) and mark.thread == thread
        if mark.start_ns <= at_ns < mark.end_ns
    )
    return "/".join(around)
