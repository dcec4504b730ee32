"""Ranges that look like steps although nothing says so: their names differ only in numbers.

token_0_processing      token_1_processing       consecutive numbers: steps, if they hold
|layer|layer|...|layer| |layer|layer|...|layer|   rounds of the GPU, such as layers
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final

import numpy as np

from traceflops.facts import fact
from traceflops.table.arrays import ABSENT, IntArray
from traceflops.table.columns import codes, is_one_of, names, numbers, thread_columns
from traceflops.table.grouping import distinct, group_rows, shared_codes
from traceflops.table.links import recorded_calls
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.windows.periodicity import SIGNATURE, order_of
from traceflops.windows.repetition import (
    FEWEST_ROUNDS,
    REGULAR_SHARE,
    TOLERANCE,
    has_layers,
    hold_rounds,
)
from traceflops.windows.steps import (
    DIGITS,
    LONGEST_MARK,
    FoundSteps,
    step_of_activity,
    steps_by_process,
)

_SPECIAL: Final = re.compile(r"[\\^$.|?*+(){}\[\]]")
_KINDS_TRIED: Final = 16
_MOST_DIGITS: Final = 18
_NO_STEP: Final = re.compile(
    r"layer|block|expert|head|stage|chunk|bucket|shard|rank|worker|epoch|run|trial|fold"
    r"|^annotation \d",
    re.IGNORECASE,
)
"""What names of parts of a step, of threads and of many steps have; and placeholders of names."""
_NUMBERED: Final = fact("steps-by.numbered")


def likely_step_mark(trace: Trace) -> str | None:
    """Return a pattern of the ranges that look like steps, None without any."""
    labels, code = names(trace.marks["name"]), codes(trace.marks["name"])
    ranges = next(_loops(trace), None)
    if ranges is None:
        return None
    return _pattern_of([labels[own] for own in distinct(code[ranges])])


def numbered_steps(
    linked: LinkedTrace, accounts: Mapping[int, DeviceAccount], inferred: str | None
) -> FoundSteps | None:
    """Return the ranges with consecutive numbers in which rounds of the GPU repeat, or None.

    They hold most of the work of each device and are alike. Names of layers and other parts, and of
    epochs and runs, are no steps. None where steps are `inferred` from a source that is surer.
    """
    if inferred not in (None, SIGNATURE) or not accounts:
        return None
    trace = linked.trace
    labels, code = names(trace.marks["name"]), codes(trace.marks["name"])
    for rows in _loops(trace):
        number = _consecutive([labels[own] for own in code[rows].tolist()])
        if number is None:
            continue
        steps = steps_by_process(trace, rows, number, "annotation", _NUMBERED)
        if _are_rounds_inside(linked, accounts, steps):
            # If the rounds of any device's signature have layers, they are the steps.
            orders = (order_of(linked, account.rows) for account in accounts.values())
            return None if inferred and any(map(has_layers, orders)) else steps
    return None


def _consecutive(labels: Sequence[str]) -> IntArray | None:
    """Return the number of each label, None unless it grows by one and nothing else differs.

    Numbers that do not fit into 18 digits are counted from 0.
    """
    if _NO_STEP.search(labels[0]):
        return None
    digits = [DIGITS.findall(name) for name in labels]
    places = np.array([[int(number[-_MOST_DIGITS:]) for number in row] for row in digits])
    grows = (np.diff(places, axis=0) == 1).all(axis=0)
    stays = (places == places[0]).all(axis=0)
    if grows.sum() != 1 or not (grows | stays).all():
        return None
    position = int(np.argmax(grows))
    number: IntArray = places[:, position].astype(np.int64)
    return number - number[0] if len(digits[0][position]) > _MOST_DIGITS else number


def _are_rounds_inside(
    linked: LinkedTrace, accounts: Mapping[int, DeviceAccount], found: FoundSteps
) -> bool:
    """Return whether steps hold most work of each device, are alike, and have rounds inside."""
    step_of = step_of_activity(linked.trace, linked.links, found)
    for account in accounts.values():
        row = account.rows.row
        step = np.maximum.accumulate(step_of[row])
        inside = np.flatnonzero(step_of[row] >= 0)
        if not len(inside):
            return False
        first = np.flatnonzero(np.diff(step, prepend=-1))
        begin = np.append(first, inside[-1] + 1)
        if len(first) < FEWEST_ROUNDS or not hold_rounds(order_of(linked, account.rows), begin):
            return False
    return True


def _loops(trace: Trace) -> Iterator[IntArray]:
    """Yield the ranges that look like the steps of a loop, in order, those with most time first.

    Such ranges have the same name apart from numbers, follow each other on a thread, mostly have
    the same length, and take more than half of the time from the first GPU work to the last. Work
    is launched in most of them, where launches are recorded: callbacks of a runtime launch nothing.
    Long and unprintable names are not used.
    """
    marks, work, labels = trace.marks, trace.activities, names(trace.marks["name"])
    without_numbers = [DIGITS.sub("0", label) for label in labels]
    code_of = {label: code for code, label in enumerate(without_numbers)}
    code = codes(marks["name"])
    kind = np.array([code_of[label] for label in without_numbers], dtype=np.int64)[code]
    start, dur = numbers(marks["start_ns"]), numbers(marks["dur_ns"], ABSENT)
    rows = np.flatnonzero(is_one_of(marks["kind"], "annotation") & (dur > 0))
    rows = rows[np.argsort(start[rows], kind="stable")]
    columns = (kind, numbers(marks["process"]), numbers(marks["thread"], ABSENT))
    group, _ = group_rows(tuple(column[rows] for column in columns))
    sums_ns = np.bincount(group, weights=dur[rows])
    begun = numbers(work["start_ns"])
    span_ns = (begun + numbers(work["dur_ns"])).max() - begun.min()
    for number in np.argsort(-sums_ns)[:_KINDS_TRIED]:
        of_name = rows[group == number]
        name, length = without_numbers[kind[of_name[0]]], dur[of_name]
        if not name.isprintable() or not 0 < len(name) <= LONGEST_MARK:
            continue
        usual = float(np.median(length))
        regular = np.abs(length - usual) <= TOLERANCE * usual
        is_disjoint = ((start[of_name] + length)[:-1] <= start[of_name][1:]).all()
        is_loop = len(of_name) >= FEWEST_ROUNDS and is_disjoint and regular.mean() >= REGULAR_SHARE
        if 2 * sums_ns[number] > span_ns and is_loop and _launch(trace, of_name):
            yield of_name


def _pattern_of(labels: Sequence[str]) -> str:
    """Return an expression that matches labels which differ only in some of their numbers."""
    numbers_by_place = [{*texts} for texts in zip(*map(DIGITS.findall, labels), strict=True)]
    patterns = (next(iter(texts)) if len(texts) == 1 else r"\d+" for texts in numbers_by_place)
    between = (_SPECIAL.sub(r"\\\g<0>", piece) for piece in DIGITS.split(labels[0]))
    return "".join(chain.from_iterable(zip_longest(between, patterns, fillvalue="")))


def _launch(trace: Trace, ranges: IntArray) -> bool:
    """Return whether work is launched in most ranges of one thread, or no launch is recorded."""
    launches = np.flatnonzero(recorded_calls(trace))
    if not len(launches):
        return True
    thread_of_range, thread = shared_codes(
        thread_columns(trace.marks, ranges), thread_columns(trace.calls, launches)
    )
    launched_ns = np.sort(numbers(trace.calls["start_ns"])[launches[thread == thread_of_range[0]]])
    start, dur = (numbers(trace.marks[name])[ranges] for name in ("start_ns", "dur_ns"))
    has_one = np.searchsorted(launched_ns, start) < np.searchsorted(launched_ns, start + dur)
    return 2 * int(has_one.sum()) > len(ranges)
