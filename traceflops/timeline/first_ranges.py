"""Operators and ranges in which a process does something for the first time.

Their calls do not show it: libraries load code inside them. See `timeline.start_up`.
"""

from __future__ import annotations

import numpy as np

from traceflops.table.columns import BoolArray, IntArray, codes, is_one_of, matching, numbers
from traceflops.table.grouping import distinct, group_rows, groups, lower_medians
from traceflops.table.nesting import OpTree
from traceflops.timeline.first_calls import (
    COPIES,
    FEW,
    LEAST_ALONE_NS,
    LEAST_NS,
    TIMES_USUAL,
    WAITS,
    Calls,
    Times,
    longer,
    times_of,
)
from traceflops.timeline.intervals import Intervals


def first_operators(calls: Calls) -> Times:
    """Return the time that the first operator of a name takes beyond usual, on GPU processes.

    (On a CPU its duration depends on its operands.) The same for operators that launch a kernel for
    the first time: usual is then the median of all that launch. Operators that spend half of this
    time in calls that launch, copy or wait are left out: these calls are judged by themselves.
    """
    ops, activities = calls.trace.ops, calls.trace.activities
    process, thread, start_ns, dur_ns = times_of(ops)
    launching = distinct(numbers(activities["process"])[calls.activity])
    fits = np.isin(process, launching) & (dur_ns >= LEAST_ALONE_NS)
    if not fits.any():
        return process[:0], thread[:0], start_ns[:0], dur_ns[:0]
    long = longer(process, codes(ops["name"]), start_ns, dur_ns, fits)
    is_first = (long.calls > FEW) & (long.number == 0)
    row, usual_ns = _first_to_launch(calls, process, dur_ns, fits)
    is_new = ~np.isin(row, long.row[is_first])
    row = np.append(long.row[is_first], row[is_new])
    usual_ns = np.append(long.usual_ns[is_first], usual_ns[is_new])
    begin_ns, end_ns = start_ns[row] + usual_ns, start_ns[row] + dur_ns[row]
    is_kept = np.zeros(len(row), dtype=np.bool_)
    is_judged = calls.launches | matching(
        calls.trace.calls["name"], lambda name: COPIES.search(name) or WAITS.search(name)
    )
    judged = np.flatnonzero(is_judged)
    judged_of = {number: judged[rows] for number, rows in groups(calls.process[judged])}
    for number, of_process in groups(process[row]):
        own = judged_of.get(number, judged[:0])
        in_calls = Intervals.of(calls.start_ns[own], calls.start_ns[own] + calls.dur_ns[own])
        inside_ns = in_calls.length_within(begin_ns[of_process], end_ns[of_process])
        is_kept[of_process] = 2 * inside_ns < (end_ns - begin_ns)[of_process]
    return process[row][is_kept], thread[row][is_kept], begin_ns[is_kept], end_ns[is_kept]


def _first_to_launch(
    calls: Calls, process: IntArray, dur_ns: IntArray, fits: BoolArray
) -> tuple[IntArray, IntArray]:
    """Return the rows of long operators that launch a kernel for the first time, and the usual ns.

    Operators that contain others of LEAST_NS are left out: they may take long for these. `process`,
    `dur_ns` and `fits` (may be long) are per operator.
    """
    launch = np.flatnonzero(calls.launches & (calls.links.op_of_call >= 0))
    launcher, first = group_rows((calls.links.op_of_call[launch],))
    ops = calls.links.op_of_call[launch][first]
    owner, _ = group_rows((process[ops],))
    usual_ns = lower_medians(owner, dur_ns[ops])[owner]
    is_long = fits[ops] & (dur_ns[ops] > TIMES_USUAL * usual_ns)
    if is_long.any():  # what follows takes longer to find out
        is_long &= OpTree.of(calls.trace.ops).below(dur_ns >= LEAST_NS)[ops] == 0
        is_long &= np.bincount(launcher, weights=calls.uses_first(launch)) > 0
    return ops[is_long], usual_ns[is_long]


def first_ranges(calls: Calls) -> Times:
    """Return the time that the first range of a name takes beyond usual, if no other is so long."""
    marks = calls.trace.marks
    process, thread, start_ns, dur_ns = times_of(marks)
    name, is_range = codes(marks["name"]), is_one_of(marks["kind"], "annotation")
    long = longer(process, name, start_ns, dur_ns, is_range & (dur_ns >= LEAST_ALONE_NS))
    is_first = (long.calls > FEW) & (long.number == 0)
    row, usual_ns = long.row[is_first], long.usual_ns[is_first]
    # By group and duration, the second from the end of a group is its second longest range.
    same = np.flatnonzero(np.isin(name, distinct(name[row])))
    group, _ = group_rows((process[same], name[same]))
    order = np.lexsort((dur_ns[same], group))
    second_ns = dur_ns[same][order][np.cumsum(np.bincount(group)) - 2][group]
    is_alone = dur_ns[row] > TIMES_USUAL * second_ns[np.searchsorted(same, row)]
    row, usual_ns = row[is_alone], usual_ns[is_alone]
    return process[row], thread[row], start_ns[row] + usual_ns, start_ns[row] + dur_ns[row]
