"""Attention on packed sequences whose lengths are in marks: counted exactly, not between bounds.

No profiler records the lengths s. A mark `traceflops.seqlens` has sum s and sum s^2, and these give
the (query, key) pairs: sum s^2 without a mask, (sum s^2 + sum s) / 2 under a causal one.

An operator belongs to the mark of its step with as many tokens and sequences. Where several have,
as with micro-batches of one size, each stands for as many operators, in order of time: their sum is
exact in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from traceflops.attribution.op_kernels import Attribution
from traceflops.flops.ops.count import OpWork
from traceflops.flops.ops.work import Core, FlopsPart, Signature, Work
from traceflops.mfu.checked.token_marks import Mark, run_marks
from traceflops.table.columns import IntArray, numbers
from traceflops.table.grouping import groups, joint_codes
from traceflops.table.trace import Note
from traceflops.units import several
from traceflops.windows.prepared import Prepared
from traceflops.windows.steps import FoundSteps, find_marked_steps

Exact = tuple[int, int, int]
"""A distinct work, and the most and the least pairs that marks say it has."""

_MISSED: Final = Note(
    "assumed",
    "lengths-of-marks-do-not-fit",
    "The lengths in annotations (traceflops.seqlens) match no attention operator of their step: "
    "token or sequence counts differ. Attention on packed sequences stays a range.",
)


def with_marked_lengths(
    prepared: Prepared, attribution: Attribution
) -> tuple[Attribution, tuple[Note, ...]]:
    """Return the attribution with attention counted by the lengths in marks, and notes on that."""
    work = attribution.work
    of_work = np.array([_is_open(core) for core in work.signatures], dtype=np.bool_)
    rows = np.flatnonzero(of_work[work.place] & attribution.has("executed"))
    if not len(rows):
        return attribution, ()
    steps = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    marks: defaultdict[tuple[int, int], list[Mark]] = defaultdict(list)
    for number, of_process in run_marks(prepared.trace)[0].items():
        start = np.array([mark.start_ns for mark in of_process], dtype=np.int64)
        for mark, index in zip(of_process, _step_at(steps, number, start).tolist(), strict=True):
            if index >= 0:
                marks[number, index].append(mark)
    if not any(mark.kind == "seqlens" for in_step in marks.values() for mark in in_step):
        return attribution, ()
    process = numbers(prepared.trace.ops["process"])[rows]
    start = numbers(prepared.trace.ops["start_ns"])[rows]
    step = np.full(len(rows), -1, dtype=np.int64)
    for number, at_process in groups(process):
        step[at_process] = _step_at(steps, number, start[at_process])
    exact: dict[int, Exact] = {}
    for _, alike in groups(joint_codes(joint_codes(process, step + 1), work.place[rows])):
        in_step = marks.get((int(process[alike[0]]), int(step[alike[0]])))
        if in_step is not None:
            in_order = alike[np.argsort(start[alike], kind="stable")]
            exact |= dict(_shared_out(work, rows[in_order], in_step))
    if not exact:
        return attribution, (_MISSED,)
    text = (
        "Annotations (traceflops.seqlens) give the lengths of packed sequences. "
        f"{several(len(exact), 'attention operator')} with the token and sequence counts of their "
        "step use them."
    )
    note = Note("assumed", "lengths-from-marks", text, len(exact))
    return replace(attribution, work=_recounted(work, exact)), (note,)


def _is_open(core: Signature | None) -> bool:
    """Return whether sums of lengths tell the pairs of an attention, and its shapes do not."""
    if not isinstance(core, Core) or core.documents is None or core.cut:
        return False
    return core.pairs_at_least < core.pairs and core.queries == core.keys


def _step_at(steps: FoundSteps | None, process: int, time_ns: IntArray) -> IntArray:
    """Return the index of the step around each time on the host, -1 outside of all.

    Without marked steps the recording of a process is one.
    """
    if steps is None or process not in steps.by_process:
        return np.zeros(len(time_ns), dtype=np.int64)
    return steps.by_process[process].at(time_ns)


def _shared_out(work: OpWork, rows: IntArray, in_step: list[Mark]) -> Iterator[tuple[int, Exact]]:
    """Yield what the marks of a step state of equal ops, which are in order of time."""
    index = int(work.place[rows[0]])
    core = work.signature(index)
    assert isinstance(core, Core)
    padded = {mark.values.get("padded") for mark in in_step if mark.kind == "tokens"}
    bounds, full = [], True
    for mark in sorted(in_step, key=lambda mark: mark.start_ns):
        if mark.kind != "seqlens":
            continue
        total, squares, count = (mark.values.get(key) for key in ("sum", "sumsq", "count"))
        assert total is not None
        assert squares is not None
        # Rows behind the last sequence are padding, which no sequence attends to.
        fits = count in (None, core.documents)
        if core.queries != total:
            fits = core.queries > total and core.queries in padded and count == core.documents
        if fits:
            full &= total == core.queries
            causal = (squares + total) // 2
            # Most and least pairs per head; they differ where the mask is not recorded.
            bounds.append(
                (causal if core.causal else squares, squares if core.causal is False else causal)
            )
    if not bounds or len(rows) % len(bounds):
        return
    if any(most > core.pairs for most, _ in bounds):
        return
    if full and any(least < core.pairs_at_least for _, least in bounds):
        return
    ops_of_mark = len(rows) // len(bounds)
    for number, row in enumerate(rows.tolist()):
        yield row, (index, *bounds[number // ops_of_mark])


def _recounted(work: OpWork, exact: dict[int, Exact]) -> OpWork:
    """Return the works with the attention of some ops counted by other pairs, as all parts grow."""
    indices = {
        key: len(work.works) + number for number, key in enumerate(dict.fromkeys(exact.values()))
    }
    works = list(work.works)
    for index, most, least in indices:
        op, core = work.works[index], work.signature(index)
        assert isinstance(op, Work)
        assert isinstance(core, Core)
        parts = tuple(
            FlopsPart(part.name, part.flops // core.pairs * most, part.flops // core.pairs * least)
            for part in op.parts
        )
        notes = op.notes if least < most else tuple(n for n in op.notes if n != "variable-lengths")
        core = replace(core, pairs=most, pairs_at_least=least)
        works.append(replace(op, parts=parts, signature=core, notes=notes))
    place = work.place.copy()
    place[list(exact)] = [indices[key] for key in exact.values()]
    rules = (*work.rules, *(work.rules[index] for index, _, _ in indices))
    return OpWork.of(place, works, rules)
