"""Ranges that look like steps although nothing says so: their names differ at most in numbers.

token_0_processing      token_1_processing       consecutive numbers: steps, if they hold
|layer|layer|...|layer| |layer|layer|...|layer|   rounds of the GPU, such as layers

warm-up     forward     forward     forward       so are equal names after a range named warm-up
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Final

import numpy as np

from traceflops.facts import fact
from traceflops.table.arrays import ABSENT, IntArray
from traceflops.table.columns import codes, is_one_of, matching, names, numbers, thread_columns
from traceflops.table.grouping import distinct, group_rows, shared_codes
from traceflops.table.links import recorded_calls
from traceflops.table.trace import Trace
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.intervals import NEVER
from traceflops.windows import repetition
from traceflops.windows.periodicity import SIGNATURE, order_of
from traceflops.windows.records import Accounts
from traceflops.windows.started_up import WARM_UP
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
"""Finds names of parts of a step, of ranks, of many steps at once, and redacted names."""
_CALL: Final = re.compile(r"P?MPI_|p?(?:nccl|rccl)[A-Z]")
"""Finds ranges of which each is one call of a library that communicates."""
_NONE_LIKELY: Final = re.compile(f"{WARM_UP.pattern}|backward|optimi[sz]er|compile", re.IGNORECASE)
"""Finds names of warm-up, and of parts that a step also has others of."""
_LEAST_MEASURED: Final = 0.1  # ranges after a warm-up launch at least this share of all work
_NUMBERED, _MEASURED = fact("steps-by.numbered"), fact("steps-by.measured")


def likely_step_mark(trace: Trace) -> str | None:
    """Return a pattern of the ranges that look like steps, not like warm-up or parts, else None."""
    labels, code = names(trace.marks["name"]), codes(trace.marks["name"])
    loops = (rows for rows in _loops(trace) if not _NONE_LIKELY.search(labels[code[rows[0]]]))
    if (ranges := next(loops, None)) is None:
        return None
    return _pattern_of([labels[range_code] for range_code in distinct(code[ranges])])


def numbered_steps(
    linked: LinkedTrace, accounts: Accounts, inferred: str | None
) -> FoundSteps | None:
    """Return the ranges with consecutive numbers that hold rounds of work on the GPU, or None.

    They hold most of the work of each device and are alike. After a range named warm-up, ranges of
    one name count, too. Ranges named after layers and other parts of a step, or after epochs and
    runs, do not count. `inferred` is the source of the steps that repeat on the device: None is
    returned if it is more reliable than a signature.
    """
    if inferred not in (None, SIGNATURE) or not accounts:
        return None
    trace = linked.trace
    labels, code = names(trace.marks["name"]), codes(trace.marks["name"])
    for rows in _loops(trace):
        number, how = _consecutive([labels[n] for n in code[rows].tolist()]), _NUMBERED
        if number is None and _follow_warm_up(trace, rows):
            number, how = np.arange(len(rows)), _MEASURED
        if number is None:
            continue
        steps = steps_by_process(trace, rows, number, "annotation", how)
        if _are_rounds_inside(linked, accounts, steps):
            # If steps were inferred from a repeated signature, and its rounds contain layers on any
            # device, these rounds are the steps, not the ranges.
            orders = (order_of(linked, account.rows) for account in accounts.values())
            return None if inferred and any(map(repetition.has_layers, orders)) else steps
    return None


def _consecutive(labels: Sequence[str]) -> IntArray | None:
    """Return the step number in each label: the one that grows by 1 from label to label.

    "gpu 0 token 7", "gpu 0 token 8" -> [7 8]. "gpu 0 token 7", "gpu 1 token 8" -> None: two numbers
    grow. None also if another number changes. A number of more than 18 digits, which does not fit
    into an int64, is counted from 0.
    """
    if _NO_STEP.search(labels[0]):
        return None
    digits = [DIGITS.findall(name) for name in labels]
    # A row per label, a column per number in it: [[0 7] [0 8] [0 9]]
    table = np.array([[int(number[-_MOST_DIGITS:]) for number in row] for row in digits])
    grows = (np.diff(table, axis=0) == 1).all(axis=0)
    stays = (table == table[0]).all(axis=0)
    if grows.sum() != 1 or not (grows | stays).all():
        return None
    column = int(np.argmax(grows))
    number: IntArray = table[:, column].astype(np.int64)
    return number - number[0] if len(digits[0][column]) > _MOST_DIGITS else number


def _follow_warm_up(trace: Trace, rows: IntArray) -> bool:
    """Return whether ranges have one name, of a step, and begin after a range named warm-up."""
    label, *others = distinct(codes(trace.marks["name"])[rows])
    is_of_part = _NO_STEP.search(names(trace.marks["name"])[label])
    begin_ns = numbers(trace.marks["start_ns"])[rows[0]]
    return not others and not is_of_part and NEVER < _warmed_up_ns(trace) <= begin_ns


def _warmed_up_ns(trace: Trace) -> int:
    """Return when the last range named warm-up ends, NEVER without any."""
    marks = trace.marks
    rows = np.flatnonzero(matching(marks["name"], WARM_UP.search))
    end_ns = numbers(marks["start_ns"])[rows] + numbers(marks["dur_ns"], 0)[rows]
    return int(end_ns.max(initial=NEVER))


def _are_rounds_inside(linked: LinkedTrace, accounts: Accounts, found: FoundSteps) -> bool:
    """Return whether steps hold most work of each device, are alike, and have rounds inside."""
    step_of = step_of_activity(linked.trace, linked.links, found)
    for account in accounts.values():
        step = step_of[account.rows.row]
        inside = np.flatnonzero(step >= 0)
        if not len(inside):
            return False
        # A step begins with its first activity after all earlier steps have begun; it lasts until
        # the next one begins, the last step until its last activity.
        # step [-1 0 0 1 0 1 -1]  ->  latest_step [-1 0 0 1 1 1 1], first [1 3], begin [1 3 6]
        latest_step = np.maximum.accumulate(step)
        first = np.flatnonzero(np.diff(latest_step, prepend=-1))
        begin = np.append(first, inside[-1] + 1)
        if len(first) < repetition.FEWEST_ROUNDS:
            return False
        # Ranges that follow a warm-up need hold only half of the work from then on.
        since = int(first[0]) if found.how == _MEASURED else 0
        if (begin[-1] - since) < _LEAST_MEASURED * len(step):
            return False
        if not repetition.hold_rounds(order_of(linked, account.rows, since), begin - since):
            return False
    return True


def _loops(trace: Trace) -> Iterator[IntArray]:
    """Yield the marks of each loop, in order: ranges of a thread that look like its steps.

    The loops with most time come first. The ranges of a loop have the same name apart from numbers,
    do not overlap, mostly have the same length, and take more than half of the time from the first
    GPU work, or from the end of warm-up, to the last. Work is launched in most of them, if launches
    are recorded: callbacks of a runtime launch nothing. Ranges with long or unprintable names, and
    calls of MPI and NCCL, are not used.
    """
    marks, work, labels = trace.marks, trace.activities, names(trace.marks["name"])
    without_numbers = [DIGITS.sub("0", label) for label in labels]
    code_of = {label: code for code, label in enumerate(without_numbers)}
    name_code = np.array([code_of[label] for label in without_numbers], dtype=np.int64)
    name = name_code[codes(marks["name"])]
    start_ns, dur_ns = numbers(marks["start_ns"]), numbers(marks["dur_ns"], ABSENT)
    rows = np.flatnonzero(is_one_of(marks["kind"], "annotation") & (dur_ns > 0))
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    columns = (name, numbers(marks["process"]), numbers(marks["thread"], ABSENT))
    group_of_row, _ = group_rows(tuple(column[rows] for column in columns))
    sums_ns = np.bincount(group_of_row, weights=dur_ns[rows])
    work_start_ns = numbers(work["start_ns"])
    begin_ns = max(int(work_start_ns.min()), _warmed_up_ns(trace))
    span_ns = (work_start_ns + numbers(work["dur_ns"])).max() - begin_ns
    for group in np.argsort(-sums_ns)[:_KINDS_TRIED]:
        ranges = rows[group_of_row == group]
        label = without_numbers[name[ranges[0]]]
        if not label.isprintable() or not 0 < len(label) <= LONGEST_MARK or _CALL.match(label):
            continue
        if 2 * sums_ns[group] <= span_ns or len(ranges) < repetition.FEWEST_ROUNDS:
            continue
        begin_ns, length_ns = start_ns[ranges], dur_ns[ranges]
        usual_ns = float(np.median(length_ns))
        is_usual = np.abs(length_ns - usual_ns) <= repetition.TOLERANCE * usual_ns
        is_disjoint = (begin_ns + length_ns)[:-1] <= begin_ns[1:]
        if is_usual.mean() < repetition.REGULAR_SHARE or not is_disjoint.all():
            continue
        if _launch(trace, ranges):
            yield ranges


def _pattern_of(labels: Sequence[str]) -> str:
    r"""Return an expression that matches labels which differ only in some of their numbers.

    "gpu 0 token 7" and "gpu 0 token 8" are matched by `gpu 0 token \d+`.
    """
    numbers_by_place = [{*texts} for texts in zip(*map(DIGITS.findall, labels), strict=True)]
    patterns = (next(iter(texts)) if len(texts) == 1 else r"\d+" for texts in numbers_by_place)
    between = (_SPECIAL.sub(r"\\\g<0>", piece) for piece in DIGITS.split(labels[0]))
    return "".join(chain.from_iterable(zip_longest(between, patterns, fillvalue="")))


def _launch(trace: Trace, ranges: IntArray) -> bool:
    """Return whether work is launched in most ranges of one thread, or no launch is recorded."""
    launches = np.flatnonzero(recorded_calls(trace))
    if not len(launches):
        return True
    range_thread, launch_thread = shared_codes(
        thread_columns(trace.marks, ranges), thread_columns(trace.calls, launches)
    )
    own_launches = launches[launch_thread == range_thread[0]]  # all ranges are of one thread
    launched_ns = np.sort(numbers(trace.calls["start_ns"])[own_launches])
    start_ns = numbers(trace.marks["start_ns"])[ranges]
    end_ns = start_ns + numbers(trace.marks["dur_ns"])[ranges]
    # A range has launches if fewer launches precede its start than its end.
    # launched_ns [3 4 15], ranges 0..10 and 20..30  ->  before_start [0 3], before_end [2 3]
    before_start = np.searchsorted(launched_ns, start_ns)
    before_end = np.searchsorted(launched_ns, end_ns)
    return 2 * int((before_start < before_end).sum()) > len(ranges)
