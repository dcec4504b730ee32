"""Ranges around nearly all that a program does: their names tell no place in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution.host_events import host_span
from traceflops.attribution.marks import names_by_process
from traceflops.table.columns import codes, is_one_of, names, numbers
from traceflops.table.grouping import group_rows, groups
from traceflops.timeline.intervals import Intervals

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.table.columns import BoolArray
    from traceflops.windows.prepared import Prepared

_NEARLY_ALL: Final = 0.9
"""Of the chosen time."""


def ranges_around_all(case: Case, label: str) -> int:
    """Return how many ranges called `label` enclose nearly all chosen time and launch most work.

    0 where they do not: a range beside most launches is a place, however long it is, since it is
    what they wait for.
    """
    if case.prepared is None or not label:
        return 0
    prepared = case.prepared
    called, row = _called(prepared, label), prepared.chosen.row
    process, start, end = (column[called] for column in host_span(prepared.trace.marks))
    ranges = {number: Intervals.of(start[own], end[own]) for number, own in groups(process)}
    chosen_ns = enclosed_ns = launched_ns = 0
    for number, chosen in prepared.windows_of_process.items():
        chosen_ns += chosen.length_ns
        enclosed_ns += ranges.get(number, Intervals.empty()).intersect(chosen).length_ns
    call = prepared.linked.links.call_of_activity[row]
    row, call = row[call >= 0], call[call >= 0]
    work_ns = numbers(prepared.trace.activities["dur_ns"])[row]
    callers, called_ns, _ = (column[call] for column in host_span(prepared.trace.calls))
    for number, own in groups(callers):
        is_inside = ranges.get(number, Intervals.empty()).contains(called_ns[own])
        launched_ns += int(work_ns[own[is_inside]].sum())
    is_all = enclosed_ns >= _NEARLY_ALL * chosen_ns > 0 and 2 * launched_ns > int(work_ns.sum())
    return len(process) if is_all else 0


def _called(prepared: Prepared, label: str) -> BoolArray:
    """Return which marks are ranges that get this name: numbers of steps are no part of it."""
    marks, name_of = prepared.trace.marks, names_by_process(prepared.trace)
    process, _, _ = host_span(marks)
    code, texts = codes(marks["name"]), (*names(marks["name"]), "")
    group, first = group_rows((code, process))
    pairs = zip(code[first].tolist(), process[first].tolist(), strict=True)
    is_called = np.array(
        [name_of(texts[name], own) == label for name, own in pairs], dtype=np.bool_
    )
    return np.asarray(is_one_of(marks["kind"], "annotation") & is_called[group])
