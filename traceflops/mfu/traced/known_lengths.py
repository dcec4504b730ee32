"""Attention on packed sequences whose lengths marks tell: counted exactly, not between bounds.

No profiler records the lengths; a mark `traceflops.seqlens` has their sum and the sum of their
squares, and these say how many pairs a full or causal mask leaves. An operator is of a mark of its
step that has as many tokens and sequences. Where several have, as with micro-batches of one size,
each stands for as many operators, in order of time: their sum is exact in any order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution import Attribution
from traceflops.flops import Core, FlopsPart, OpWork, Work
from traceflops.mfu.checked.token_marks import Mark, run_marks
from traceflops.table import IntArray, Note, groups, joint_codes, numbers
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
    work = attribution.work
    # Attention whose pairs sums of lengths would tell.
    is_open = [
        isinstance(core, Core)
        and core.documents is not None
        and not core.cut
        and core.pairs_at_least < core.pairs
        and core.queries == core.keys
        for core in work.signatures
    ]
    of_ops = np.array(is_open, dtype=np.bool_)[work.place]
    rows = np.flatnonzero(of_ops & attribution.has("executed"))
    if not len(rows):
        return attribution, ()
    steps = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    marks = _lengths_marked(prepared, steps)
    if not marks:
        return attribution, ()
    exact = _exact(prepared, work, rows, steps, marks)
    if not exact:
        return attribution, (_MISSED,)
    text = (
        "Annotations (traceflops.seqlens) give the lengths of packed sequences. "
        f"{several(len(exact), 'attention operator')} with the token and sequence counts of their "
        "step use them."
    )
    note = Note("assumed", "lengths-from-marks", text, len(exact))
    return replace(attribution, work=_changed(work, exact)), (note,)


@dataclass(frozen=True, slots=True)
class _MarkedLengths:
    """The marks of one step of one process: of sequences, and how many tokens are computed."""

    lengths: list[Mark]
    computed: frozenset[int]

    def of(self, core: Core) -> list[Mark]:
        """Return the marks that may be of an attention."""
        fitting = []
        for mark in self.lengths:
            total, count = mark.values["sum"], mark.values.get("count")
            # Rows behind the last sequence are padding, which no sequence attends to.
            is_padded = core.queries > total and core.queries in self.computed
            is_whole = core.queries == total and count is None
            if is_whole or (count == core.documents and (is_padded or core.queries == total)):
                fitting.append(mark)
        return fitting


def _lengths_marked(
    prepared: Prepared, steps: FoundSteps | None
) -> dict[tuple[int, int], _MarkedLengths]:
    """Return the marks that tell lengths, by process and place of the step."""
    of_step: defaultdict[tuple[int, int], list[Mark]] = defaultdict(list)
    for process, marks in run_marks(prepared.trace)[0].items():
        start = np.array([mark.start_ns for mark in marks], dtype=np.int64)
        for mark, place in zip(marks, _step_at(steps, process, start).tolist(), strict=True):
            of_step[process, place].append(mark)
    lengths = {}
    for key, marks in of_step.items():
        sequences = [mark for mark in marks if mark.kind == "seqlens"]
        if key[1] >= 0 and sequences:
            sequences.sort(key=lambda mark: mark.start_ns)
            padded = (mark.values.get("padded", -1) for mark in marks if mark.kind == "tokens")
            lengths[key] = _MarkedLengths(sequences, frozenset(padded))
    return lengths


def _step_at(steps: FoundSteps | None, process: int, time_ns: IntArray) -> IntArray:
    """Return the place of the step around each time on the host, -1 outside of all.

    Without marked steps the recording of a process is one.
    """
    if steps is None or process not in steps.by_process:
        return np.zeros(len(time_ns), dtype=np.int64)
    return steps.by_process[process].at(time_ns)


def _exact(
    prepared: Prepared,
    work: OpWork,
    rows: IntArray,
    steps: FoundSteps | None,
    marks: dict[tuple[int, int], _MarkedLengths],
) -> dict[int, Exact]:
    """Return what marks say of ops, by row; of each step, equal ops in order of time."""
    process = numbers(prepared.trace.ops["process"])[rows]
    start = numbers(prepared.trace.ops["start_ns"])[rows]
    step = np.full(len(rows), -1, dtype=np.int64)
    for number, mine in groups(process):
        step[mine] = _step_at(steps, number, start[mine])
    exact: dict[int, Exact] = {}
    for _, same in groups(joint_codes(joint_codes(process, step + 1), work.place[rows])):
        lengths = marks.get((int(process[same[0]]), int(step[same[0]])))
        place = int(work.place[rows[same[0]]])
        core = work.signature(place)
        fitting = lengths.of(core) if lengths is not None and isinstance(core, Core) else []
        if not fitting or not isinstance(core, Core) or len(same) % len(fitting):
            continue
        bounds = []
        for mark in fitting:
            # Pairs per head, the most and the least: they differ where no mask is recorded.
            full = mark.values["sumsq"]
            causal = (full + mark.values["sum"]) // 2
            bounds.append(
                (causal if core.causal else full, full if core.causal is False else causal)
            )
        is_whole = all(mark.values["sum"] == core.queries for mark in fitting)
        too_few = is_whole and any(least < core.pairs_at_least for _, least in bounds)
        if too_few or any(most > core.pairs for most, _ in bounds):
            continue
        each = len(same) // len(fitting)
        in_time = same[np.argsort(start[same], kind="stable")]
        for number, row in enumerate(rows[in_time].tolist()):
            exact[row] = (place, *bounds[number // each])
    return exact


def _changed(work: OpWork, exact: dict[int, Exact]) -> OpWork:
    """Return the works with those of some ops counted anew; every part grows with the pairs."""
    places = {one: len(work.works) + at for at, one in enumerate(dict.fromkeys(exact.values()))}
    works = []
    for at, most, least in places:
        old = work.works[at]
        assert isinstance(old, Work)
        core = old.signature
        assert isinstance(core, Core)
        parts = (
            FlopsPart(part.name, part.flops // core.pairs * most, part.flops // core.pairs * least)
            for part in old.parts
        )
        notes = (
            old.notes if least < most else tuple(n for n in old.notes if n != "variable-lengths")
        )
        signature = replace(core, pairs=most, pairs_at_least=least)
        works.append(replace(old, parts=tuple(parts), signature=signature, notes=notes))
    place = work.place.copy()
    place[list(exact)] = [places[one] for one in exact.values()]
    rules = (*work.rules, *(work.rules[at] for at, _, _ in places))
    return OpWork.of(place, (*work.works, *works), rules)
