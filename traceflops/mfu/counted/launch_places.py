"""Which launch of another run is the same in order: of the whole run, of a step, of a round."""

from __future__ import annotations

import numpy as np

from traceflops.mfu.counted.launch_keys import Pair, joined
from traceflops.mfu.counted.launch_work import LaunchWork
from traceflops.mfu.counted.launches import Launches, rank_in_group
from traceflops.table import IntArray, group_rows


def processes_of(target: Launches, source: Launches, *, is_own: bool) -> IntArray:
    """Return, per launch, the process of the other run that is its own, -1 where none is for sure.

    That of the same rank; of the same number, in one trace; where neither run says of any rank and
    both have as many processes, the first is the first; or the only one, where that says of none:
    processes of one program, of which one was counted.
    """
    here = np.unique(target.process).tolist()
    there = np.unique(source.process).tolist()
    by_rank: dict[int | None, list[int]] = {}
    for one in there:
        by_rank.setdefault(source.ranks.get(one), []).append(one)
    nameless = all(r is None for r in (*map(target.ranks.get, here), *map(source.ranks.get, there)))
    nth = dict(zip(here, there, strict=True)) if nameless and len(here) == len(there) else {}
    alone = len(there) == 1 and (source.ranks.get(there[0]) is None or len(here) == 1)
    found = np.full(max(here, default=0) + 1, -1, dtype=np.int64)
    for one in here:
        rank = target.ranks.get(one)
        alike = by_rank.get(rank, []) if rank is not None else []
        if len(alike) == 1:
            found[one] = alike[0]
        elif rank is None and is_own and one in there:
            found[one] = one
        elif one in nth and not is_own:
            found[one] = nth[one]
        elif alone and not is_own and None in (rank, source.ranks.get(there[0])):
            found[one] = there[0]
    return found[target.process]


def in_order(
    target: Launches, source: Launches, process: IntArray, of: Pair, keys: Pair
) -> IntArray:
    """Return the launch of the other run that is the same in order among those alike, else -1.

    Only where a process here launches a kernel as often as `process`, its own one there, and each
    two in the same size.
    """
    if not source.count:
        return np.full(target.count, -1, dtype=np.int64)
    group = joined((process, source.process), (of.ours, of.theirs))
    here, first = group_rows([target.process, of.ours])
    mine = np.bincount(here, minlength=len(first))
    other = np.bincount(group.theirs, minlength=group.count)
    order = np.argsort(group.theirs, kind="stable")
    at = (np.cumsum(other) - other)[group.ours] + rank_in_group(here)
    row = order[np.minimum(at, len(order) - 1)]
    even = np.ones(len(first), dtype=np.bool_)
    even[here[(mine[here] != other[group.ours]) | (keys.theirs[row] != keys.ours)]] = False
    return np.where(even[here], row, -1)


def in_steps(target: Launches, work: LaunchWork, keys: Pair) -> IntArray:
    """Return a launch of the other run that is the same in order in each of its steps, else -1.

    Only where every step of the other run launches a kernel in a size equally often, so often as
    the step here, and the n-th always does the same.
    """
    source = work.launches
    rows = np.flatnonzero((source.window >= 0) & source.used)
    none = np.full(target.count, -1, dtype=np.int64)
    if not len(rows) or not (target.window >= 0).any():
        return none
    key, kind = keys.theirs[rows], work.kind[rows]
    often, nth = _in_window(source.window[rows], key)
    most, least = extremes(key, often, keys.count)
    ours_often, ours_nth = _in_window(target.window, keys.ours)
    place = joined((keys.ours, key), (ours_nth, nth))
    high, low = extremes(place.theirs, kind, place.count)
    steady = np.ones(keys.count, dtype=np.bool_)
    steady[key[(high != low)[place.theirs] | (kind < 0)]] = False
    row_at = np.full(place.count, -1, dtype=np.int64)
    row_at[place.theirs[::-1]] = rows[::-1]
    fits = steady & (most == least)
    fits = fits[keys.ours] & (ours_often == most[keys.ours]) & (target.window >= 0)
    return np.where(fits, row_at[place.ours], none)


def in_rounds(target: Launches, work: LaunchWork, keys: Pair) -> IntArray:
    """Return a launch of a run without steps that is the same in order in a step here, else -1.

    Only where every step here launches a kernel in a size equally often, and the other run, which
    counted one process, does so in whole rounds of that number, the n-th of each doing the same.
    """
    source = work.launches
    none = np.full(target.count, -1, dtype=np.int64)
    here = np.flatnonzero((target.window >= 0) & target.used)
    if not len(here) or not source.count or (source.window >= 0).any():
        return none
    if (source.process != source.process[0]).any():
        return none
    often, _ = _in_window(target.window[here], keys.ours[here])
    most, least = extremes(keys.ours[here], often, keys.count)
    there = np.bincount(keys.theirs, minlength=keys.count)
    size = np.maximum(most, 1)
    place, first = group_rows([keys.theirs, rank_in_group(keys.theirs) % size[keys.theirs]])
    high, low = extremes(place, work.kind, len(first))
    steady = (most > 1) & (most == least) & (there > 0) & (there % size == 0)
    steady[keys.theirs[(high != low)[place] | (work.kind < 0)]] = False
    ours_often, ours_nth = _in_window(target.window, keys.ours)
    fits = steady[keys.ours] & (ours_often == most[keys.ours]) & (target.window >= 0)
    order = np.argsort(keys.theirs, kind="stable")
    begin = np.cumsum(there) - there
    row = order[np.minimum(begin[keys.ours] + ours_nth, len(order) - 1)]
    return np.where(fits, row, none)


def _in_window(window: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Return, per launch, how many of its kernel and size its window has, and the which it is."""
    group, first = group_rows([window, key])
    return np.bincount(group, minlength=len(first))[group], rank_in_group(group)


def extremes(group: IntArray, values: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Return the largest and the smallest value of each group; of an empty one -1 and 2^63 - 1."""
    most = np.full(count, -1, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    np.maximum.at(most, group, values)
    np.minimum.at(least, group, values)
    return most, least
