"""Attention on packed sequences whose lengths marks tell: counted exactly, not between bounds.

No profiler records the lengths; a mark `traceflops.seqlens` has their sum and the sum of their
squares, and these say how many pairs a full or causal mask leaves. An operator is of a mark of its
step that has as many tokens and sequences. Where several have, as with micro-batches of one size,
each stands for as many operators, in order of time: their sum is exact in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution import Attribution
from traceflops.flops import Core, FlopsPart, OpWork, Signature, Work
from traceflops.mfu.checked.token_marks import Mark, run_marks
from traceflops.table import BoolArray, IntArray, Note, groups, joint_codes, numbers
from traceflops.units import several
from traceflops.windows import FoundSteps, Prepared, find_marked_steps

Exact = tuple[int, int, int]
"""A distinct work, and the most and the least pairs that marks say it has."""

_MISSED: Final = Note(
    "assumed",
    "lengths-of-marks-do-not-fit",
    "The lengths in annotations (traceflops.seqlens) match no attention operator of their step: "
    "token or sequence counts differ. Attention on packed sequences stays a range.",
)


def with_told_lengths(
    prepared: Prepared, attribution: Attribution
) -> tuple[Attribution, tuple[Note, ...]]:
    """Return the attribution with the work of attention as marks tell it, and what to say of it."""
    rows = np.flatnonzero(_open(attribution.work) & attribution.has("executed"))
    if not len(rows):
        return attribution, ()
    steps = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    marks = _lengths_told(prepared, steps)
    if not marks:
        return attribution, ()
    found = _found(prepared, attribution.work, rows, steps, marks)
    if not found:
        return attribution, (_MISSED,)
    told = several(len(found), "attention operator")
    text = (
        "Annotations (traceflops.seqlens) give the lengths of packed sequences. "
        f"{told} with the token and sequence counts of their step use them."
    )
    note = Note("assumed", "lengths-from-marks", text, len(found))
    return replace(attribution, work=_changed(attribution.work, found)), (note,)


def _open(work: OpWork) -> BoolArray:
    """Return, per op, whether it is an attention whose pairs sums of lengths would tell."""
    return np.array([_is_open(one) for one in work.signatures], dtype=np.bool_)[work.place]


def _is_open(core: Signature | None) -> bool:
    if not isinstance(core, Core) or core.documents is None or core.cut:
        return False
    return core.pairs_at_least < core.pairs and core.queries == core.keys


@dataclass(frozen=True, slots=True)
class _MarkedLengths:
    """The marks of one step of one process: of sequences, and how many tokens are computed."""

    lengths: list[Mark]
    computed: frozenset[int]

    def of(self, core: Core) -> list[Mark]:
        """Return the marks that may be of an attention."""
        return [mark for mark in self.lengths if self._fits(mark, core)]

    def _fits(self, mark: Mark, core: Core) -> bool:
        total, count = mark.values["sum"], mark.values.get("count")
        if core.queries == total:
            return count in (None, core.documents)
        # Rows behind the last sequence are padding, which no sequence attends to.
        return core.queries > total and core.queries in self.computed and count == core.documents


def _lengths_told(
    prepared: Prepared, steps: FoundSteps | None
) -> dict[tuple[int, int], _MarkedLengths]:
    """Return the marks that tell lengths, by process and place of the step."""
    found: defaultdict[tuple[int, int], list[Mark]] = defaultdict(list)
    for process, mine in run_marks(prepared.trace)[0].items():
        start = np.array([one.start_ns for one in mine], dtype=np.int64)
        for one, place in zip(mine, _step_at(steps, process, start).tolist(), strict=True):
            found[process, place].append(one)
    return {
        key: _MarkedLengths(
            sorted(
                (mark for mark in marks if mark.kind == "seqlens"), key=lambda one: one.start_ns
            ),
            frozenset(one.values.get("padded", -1) for one in marks if one.kind == "tokens"),
        )
        for key, marks in found.items()
        if key[1] >= 0 and any(one.kind == "seqlens" for one in marks)
    }


def _step_at(steps: FoundSteps | None, process: int, time_ns: IntArray) -> IntArray:
    """Return the place of the step around each time on the host, -1 outside of all.

    Without marked steps the recording of a process is one.
    """
    if steps is None or process not in steps.by_process:
        return np.zeros(len(time_ns), dtype=np.int64)
    return steps.by_process[process].at(time_ns)


def _found(
    prepared: Prepared,
    work: OpWork,
    rows: IntArray,
    steps: FoundSteps | None,
    marks: dict[tuple[int, int], _MarkedLengths],
) -> dict[int, Exact]:
    process = numbers(prepared.trace.ops["process"])[rows]
    start = numbers(prepared.trace.ops["start_ns"])[rows]
    place = np.full(len(rows), -1, dtype=np.int64)
    for one, at in groups(process):
        place[at] = _step_at(steps, one, start[at])
    found: dict[int, Exact] = {}
    for _, at in groups(joint_codes(joint_codes(process, place + 1), work.place[rows])):
        told = marks.get((int(process[at[0]]), int(place[at[0]])))
        if told is not None:
            mine = at[np.argsort(start[at], kind="stable")]
            found |= dict(_shared_out(work, rows[mine], told))
    return found


def _shared_out(work: OpWork, rows: IntArray, told: _MarkedLengths) -> Iterator[tuple[int, Exact]]:
    """Yield what the marks of a step say of equal ops, which are in order of time."""
    at = int(work.place[rows[0]])
    core = work.signature(at)
    if not isinstance(core, Core):
        return
    marks = told.of(core)
    if not marks or len(rows) % len(marks):
        return
    bounds = [_pairs(mark, core) for mark in marks]
    if any(most > core.pairs for most, _ in bounds):
        return
    full = all(mark.values["sum"] == core.queries for mark in marks)
    if full and any(least < core.pairs_at_least for _, least in bounds):
        return
    each = len(rows) // len(marks)
    for number, row in enumerate(rows.tolist()):
        yield row, (at, *bounds[number // each])


def _pairs(mark: Mark, core: Core) -> tuple[int, int]:
    """Return the most and the least pairs per head; they differ where the mask is not recorded."""
    full = mark.values["sumsq"]
    causal = (full + mark.values["sum"]) // 2
    if core.causal is None:
        return full, causal
    return (causal, causal) if core.causal else (full, full)


def _changed(work: OpWork, found: dict[int, Exact]) -> OpWork:
    """Return the works with those of some ops counted anew."""
    places = {one: len(work.works) + at for at, one in enumerate(dict.fromkeys(found.values()))}
    works = tuple(_counted(work.works[at], most, least) for at, most, least in places)
    place = work.place.copy()
    place[list(found)] = [places[one] for one in found.values()]
    rules = (*work.rules, *(work.rules[at] for at, _, _ in places))
    return OpWork.of(place, (*work.works, *works), rules)


def _counted(one: object, most: int, least: int) -> Work:
    """Return the work of an attention with other pairs; every part of it grows with these."""
    assert isinstance(one, Work)
    core = one.signature
    assert isinstance(core, Core)
    parts = tuple(
        FlopsPart(part.name, part.flops // core.pairs * most, part.flops // core.pairs * least)
        for part in one.parts
    )
    notes = one.notes if least < most else tuple(n for n in one.notes if n != "variable-lengths")
    return replace(
        one,
        parts=parts,
        signature=replace(core, pairs=most, pairs_at_least=least),
        notes=notes,
    )
