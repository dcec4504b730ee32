"""Start-up on a device: time in which nothing runs there while its processes start up.

Of a process of whose host nothing is recorded, only gaps tell that it starts up. Start-up is a gap

* before the first kernel, while the device copies or fills;
* that is odd and rare, before the first of many of a name;
* that is long before the first run of a name, but short before each later one, if at least two gaps
  are so, and all others are much shorter: code is loaded for what runs for the first time. After
  the last of them the program goes on with what ran before; else it does one thing after another,
  and what it does between them is no start-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.table.arrays import BoolArray, IntArray
from traceflops.table.grouping import group_rows, groups, lower_medians
from traceflops.timeline.first_calls import FEW, LEAST_ALONE_NS
from traceflops.timeline.intervals import NEVER, Intervals
from traceflops.timeline.long_calls import LEAST_NS, TIMES_USUAL
from traceflops.timeline.start_up import KINDS, StartUp, count_at_least_half

_MOST: Final = 0.5


def device_start_up(
    by_process: Mapping[int, StartUp],
    is_unseen: BoolArray,
    work: tuple[IntArray, IntArray],
    next_row: IntArray,
    gaps_ns: tuple[IntArray, IntArray],
    first_kernel_ns: int = NEVER,
) -> dict[str, Intervals]:
    """Return when processes start up while nothing runs on a device, by kind.

    `is_unseen` is, per process, whether no host work is recorded. `work` are process and name of
    what runs on the device, by start; `next_row` is, per gap, the place of the work that ends it;
    `gaps_ns` are the starts and ends of the gaps. Until `first_kernel_ns` the device only copies
    and fills.
    """
    start_ns, end_ns = gaps_ns
    owner, name = work
    by_kind: dict[str, Intervals] = {}
    work_of_process = dict(groups(owner)) if is_unseen.any() else {}
    for number, gaps in groups(owner[next_row]):
        start, end = start_ns[gaps], end_ns[gaps]
        length_ns = end - start
        group, first = group_rows((name[next_row[gaps]],))
        usual_ns = lower_medians(group, length_ns)[group]
        count = np.bincount(group)[group]
        # Odd: long, and much longer than usual before work of this name, or too few to tell.
        is_odd = (length_ns > TIMES_USUAL * usual_ns) | (count <= FEW)
        is_odd &= length_ns >= LEAST_NS
        of_process: dict[str, Intervals] = {}
        if number in by_process:
            of_process = by_process[number].within_gaps(start, end, is_odd, first_kernel_ns)
        elif is_unseen[number]:
            is_rare = count_at_least_half(length_ns, length_ns) <= FEW
            is_first_of_many = np.zeros(len(gaps), dtype=np.bool_)
            is_first_of_many[first] = np.bincount(group) > FEW
            before_kernels = (end <= first_kernel_ns) & (length_ns >= LEAST_NS)
            is_hole = (is_odd & is_rare & is_first_of_many) | before_kernels
            own = work_of_process[number]
            ends = np.searchsorted(own, next_row[gaps])
            is_hole |= _before_first_uses(name[own], ends, length_ns, is_hole)
            of_process = {"hole": Intervals.of(start[is_hole], end[is_hole])}
        for kind, times in of_process.items():
            by_kind[kind] = by_kind.get(kind, Intervals.empty()).union(times)
    covered = Intervals.empty()
    for kind in KINDS:  # kinds of several processes may overlap: the first one counts
        if kind in by_kind:
            times = by_kind[kind]
            by_kind[kind] = times.subtract(covered)
            covered = covered.union(times)
    return by_kind


def _before_first_uses(
    name: IntArray, next_row: IntArray, length_ns: IntArray, is_known: BoolArray
) -> BoolArray:
    """Return, per gap, whether code is loaded in it, seen from the names of a process's work.

    `name` is of all its work by start, `next_row` the place there of what ends each gap. Gaps that
    are start-up for other reasons (`is_known`) are not compared with.
    """
    number, first = group_rows((name,))
    runs_again = np.bincount(number)[number] > 1
    is_new = (first[number] == np.arange(len(name))) & runs_again
    of_gap = number[next_row]
    later_ns = np.zeros(len(first), dtype=np.int64)
    is_later = ~is_new[next_row]
    np.maximum.at(later_ns, of_gap[is_later], length_ns[is_later])
    is_use = is_new[next_row] & (length_ns >= LEAST_ALONE_NS)
    is_use &= length_ns > TIMES_USUAL * later_ns[of_gap]
    others_ns = length_ns[~is_use & ~is_known].max(initial=0)
    is_clear = is_use.sum() >= FEW and length_ns[is_use].min() > TIMES_USUAL * others_ns
    if is_clear:
        last = next_row[is_use].max()
        is_clear = (first[number[last + 1 :]] < last).mean() > _MOST
    return is_use if is_clear else np.zeros_like(is_use)
