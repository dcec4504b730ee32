"""Which launches of two runs are of one kernel in one size, and which are the same in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceflops.categories import same_kernels
from traceflops.mfu.counted.launches import (
    Launches,
    LaunchWork,
    extremes,
    rank_in_group,
)
from traceflops.table import UNKNOWN_SIZE, BoolArray, IntArray, group_rows, taken

_Columns = tuple[IntArray, IntArray]


@dataclass(frozen=True, slots=True)
class Pair:
    """Numbers of a thing in two runs, equal where it is the same; all below `count`."""

    ours: IntArray
    theirs: IntArray
    count: int


def joined(*columns: _Columns) -> Pair:
    """Return a number for each distinct row of some columns of two runs."""
    group, first = group_rows([np.concatenate(both) for both in columns])
    here = len(columns[0][0])
    return Pair(group[:here], group[here:], len(first))


def joint_names(target: Launches, source: Launches) -> Pair:
    """Return the kernel of each launch, one number for what is one kernel in both runs."""
    ours, theirs = same_kernels(target.names, source.names)
    return joined((taken(ours, target.name), taken(theirs, source.name)))


def keys_of(names: Pair, target: Launches, source: Launches) -> Pair:
    """Return numbers of kernels in a size; of those whose size one run lacks, of kernels alone.

    Where both runs tell the sizes x y z of all launches of a kernel, each axis counts. Some tools
    write a grid in threads and some in blocks: the grid of a kernel that would have no size of the
    other run is read as threads if that gives it one.
    """
    name = (names.ours, names.theirs)
    (ours, in_threads), (theirs, their_threads), block = _sizes(names, target, source)
    keys = joined(name, (ours, theirs), block)
    if _shared(names, keys)[names.ours].all() and min(_least(ours), _least(theirs)) >= 0:
        return keys
    plain = (ours, theirs)
    for other in ((in_threads, theirs), (ours, their_threads)):
        better = _shared(names, joined(name, other, block))
        better &= ~_shared(names, joined(name, plain, block))
        ours = np.where(better[names.ours], other[0], ours)
        theirs = np.where(better[names.theirs], other[1], theirs)
    lacking = np.zeros(names.count, dtype=np.bool_)
    lacking[names.ours[ours < 0]] = True
    lacking[names.theirs[theirs < 0]] = True
    sized = tuple(
        (
            np.where(lacking[names.ours], UNKNOWN_SIZE, mine),
            np.where(lacking[names.theirs], UNKNOWN_SIZE, other),
        )
        for mine, other in ((ours, theirs), block)
    )
    return joined(name, *sized)


def _least(sizes: IntArray) -> int:
    return int(sizes.min(initial=0))


def _sizes(names: Pair, target: Launches, source: Launches) -> tuple[_Columns, _Columns, _Columns]:
    """Return numbers of sizes, equal where the sizes are; UNKNOWN_SIZE where one is not known.

    Those of the launches of each run, with the grid read as blocks and as threads; and those of
    the blocks of both.
    """
    bare = np.zeros(names.count, dtype=np.bool_)
    for launches, code in ((target, names.ours), (source, names.theirs)):
        open_axes = (launches.grid_axes < 0) | (launches.block_axes < 0)
        bare[code[open_axes.any(axis=1)]] = True
    runs = [(target, ~bare[names.ours]), (source, ~bare[names.theirs])]
    extents = [
        part
        for run, sized in runs
        for part in (
            (run.threads, run.grid_axes * run.block_axes, sized),
            (_grid_in_threads(run), run.grid_axes, sized),
        )
    ]
    ours, in_threads, theirs, their_threads = _numbered(extents)
    first, second = _numbered([(run.block, run.block_axes, sized) for run, sized in runs])
    return (ours, in_threads), (theirs, their_threads), (first, second)


def _numbered(parts: Sequence[tuple[IntArray, IntArray, BoolArray]]) -> list[IntArray]:
    """Return numbers for sizes: products, and their axes where these are known."""
    columns = [
        np.concatenate([np.where(sized, axes[:, axis], whole) for whole, axes, sized in parts])
        for axis in range(3)
    ]
    group, _ = group_rows(columns)
    ends = np.cumsum([len(whole) for whole, _, _ in parts])[:-1]
    mine = zip(parts, np.split(group, ends), strict=True)
    return [np.where(whole >= 0, number, UNKNOWN_SIZE) for (whole, _, _), number in mine]


def _grid_in_threads(launches: Launches) -> IntArray:
    """Return the threads of launches whose grid is in threads; UNKNOWN_SIZE where it cannot be."""
    grid, block = launches.grid, launches.block
    whole = (grid > 0) & (block > 0) & (grid % np.maximum(block, 1) == 0)
    known = (launches.grid_axes > 0).all(axis=1) & (launches.block_axes > 0).all(axis=1)
    uneven = (launches.grid_axes % np.maximum(launches.block_axes, 1) != 0).any(axis=1)
    return np.where(whole & ~(known & uneven), grid, UNKNOWN_SIZE)


def _shared(names: Pair, keys: Pair) -> BoolArray:
    """Return, per name, whether both runs have it in one size."""
    shared = np.zeros(names.count, dtype=np.bool_)
    shared[names.ours[np.isin(keys.ours, keys.theirs)]] = True
    return shared


# Which launch of another run is the same in order: of the whole run, of a step, of a round.


def processes_of(target: Launches, source: Launches, *, is_own: bool) -> IntArray:
    """Return, per launch, the process of the other run that is its own, -1 where none is for sure.

    That of the same rank; of the same number, in one trace; where neither run says of any rank and
    both have as many processes, the first is the first; or the only one, where that says of none:
    processes of one program, of which one was counted.
    """
    here = np.unique(target.process).tolist()
    there = np.unique(source.process).tolist()
    by_rank: dict[int | None, list[int]] = {}
    for process in there:
        by_rank.setdefault(source.ranks.get(process), []).append(process)
    nameless = all(r is None for r in (*map(target.ranks.get, here), *map(source.ranks.get, there)))
    nth = dict(zip(here, there, strict=True)) if nameless and len(here) == len(there) else {}
    alone = len(there) == 1 and (source.ranks.get(there[0]) is None or len(here) == 1)
    own = np.full(max(here, default=0) + 1, -1, dtype=np.int64)
    for process in here:
        rank = target.ranks.get(process)
        alike = by_rank.get(rank, []) if rank is not None else []
        if len(alike) == 1:
            own[process] = alike[0]
        elif rank is None and is_own and process in there:
            own[process] = process
        elif process in nth and not is_own:
            own[process] = nth[process]
        elif alone and not is_own and None in (rank, source.ranks.get(there[0])):
            own[process] = there[0]
    return own[target.process]


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

    Only where each of these launches a kernel in a size equally often, so often as the step here,
    and the n-th always does the same. Steps of a run of one process that has none are whole rounds
    of so many launches as each step here has.
    """
    rounds = _own_steps(work.launches, keys)
    if rounds is None:
        rounds = _rounds(target, work.launches, keys)
    none = np.full(target.count, -1, dtype=np.int64)
    if rounds is None or not (target.window >= 0).any():
        return none
    key, kind = keys.theirs[rounds.rows], work.kind[rounds.rows]
    often, nth = _in_window(target.window, keys.ours)
    place = joined((keys.ours, key), (nth, rounds.nth))
    high, low = extremes(place.theirs, kind, place.count)
    steady = rounds.often > 0
    steady[key[(high != low)[place.theirs] | (kind < 0)]] = False
    row_at = np.full(place.count, -1, dtype=np.int64)
    row_at[place.theirs[::-1]] = rounds.rows[::-1]
    fits = steady[keys.ours] & (often == rounds.often[keys.ours]) & (target.window >= 0)
    return np.where(fits, row_at[place.ours], none)


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Launches that steps repeat, and which of its kernel and size each is in its step.

    `often` is, by key, how many a step has, 0 where that differs from step to step.
    """

    rows: IntArray
    nth: IntArray
    often: IntArray


def _own_steps(source: Launches, keys: Pair) -> _Rounds | None:
    """Return the used steps of a run; None where it has none."""
    rows = np.flatnonzero((source.window >= 0) & source.used)
    if not len(rows):
        return None
    often, nth = _in_window(source.window[rows], keys.theirs[rows])
    return _Rounds(rows, nth, _evenly(keys.theirs[rows], often, keys.count))


def _rounds(target: Launches, source: Launches, keys: Pair) -> _Rounds | None:
    """Return the rounds of a run without steps, of the size of the steps of the target."""
    here = np.flatnonzero((target.window >= 0) & target.used)
    processes = len(np.unique(source.process))
    if not len(here) or processes != 1 or (source.window >= 0).any():
        return None
    often, _ = _in_window(target.window[here], keys.ours[here])
    size = _evenly(keys.ours[here], often, keys.count)
    there = np.bincount(keys.theirs, minlength=keys.count)
    nth = rank_in_group(keys.theirs) % np.maximum(size, 1)[keys.theirs]
    whole = (size > 1) & (there % np.maximum(size, 1) == 0)
    return _Rounds(np.arange(source.count), nth, np.where(whole, size, 0))


def _evenly(key: IntArray, often: IntArray, count: int) -> IntArray:
    """Return how often each key is launched in a step, 0 where that differs."""
    most, least = extremes(key, often, count)
    return np.where(most == least, most, 0)


def _in_window(window: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Return, per launch, how many of its kernel and size its window has, and the which it is."""
    group, first = group_rows([window, key])
    return np.bincount(group, minlength=len(first))[group], rank_in_group(group)
