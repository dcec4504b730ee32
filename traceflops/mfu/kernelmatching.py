"""What launches of one run did by what those of another run of the same program did.

The first of these that holds, per launch:

    dispatch   both are records of the same launch
    order      the n-th launch of a kernel is the n-th of the other run, which launches it equally
               often; all of them in the same size
    step       the n-th launch of a kernel in a size in each step
    alike      all launches of a kernel in a size did the same
    between    they did not: FLOPs lie between those of the least and of the most (counters only)
    ambiguous  they did not, so FLOPs are unknown
    uncounted  the other run has the kernel in that size, and no FLOPs of it
    absent     the other run has no such launch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from traceflops.columns import BoolArray, IntArray
from traceflops.groups import group_rows
from traceflops.mfu.kernelnames import same_kernels
from traceflops.mfu.launches import UNKNOWN_SIZE, Launches, rank_in_group
from traceflops.mfu.launchwork import UNKNOWN, Kind, LaunchWork, between, common
from traceflops.mfu.optree import taken

How = Literal["dispatch", "order", "step", "alike", "between", "ambiguous", "uncounted", "absent"]
HOW: Final[tuple[How, ...]] = (
    *("dispatch", "order", "step", "alike", "between", "ambiguous", "uncounted", "absent"),
)
KNOWN: Final[tuple[How, ...]] = HOW[: HOW.index("ambiguous")]
"""Ways in which the FLOPs of a launch are known."""

SIZES_AGREE: Final = 0.02
"""Bytes of launches alike may differ by so much, with what the caches hold; they get the mean."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What each launch did, as in LaunchWork, and by which way of HOW that is known."""

    how: IntArray
    kind: IntArray
    kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray

    def has(self, *how: How) -> BoolArray:
        """Return, per launch, whether it was matched in one of these ways."""
        return np.isin(self.how, [HOW.index(one) for one in how])


def match(
    target: Launches, work: LaunchWork, same: IntArray | None = None, *, is_own: bool = False
) -> Matched:
    """Return what the launches of a run did by the work of another.

    `same` is, per launch, the row in `work` that is a record of the same launch, else -1. `is_own`
    says that both are of one trace, so that processes of one number are the same.
    """
    source = work.launches
    names = _joint_names(target, source)
    keys = _keys(names, target, source)
    processes = _process_of(target, source, is_own=is_own)
    row = np.full(target.count, -1, dtype=np.int64) if same is None else same
    how = np.full(target.count, HOW.index("dispatch"), dtype=np.int64)
    for way, found in (
        ("order", _in_order(target, source, processes, names, keys)),
        ("order", _in_order(target, source, processes, keys, keys)),
        ("step", _in_steps(target, work, keys)),
    ):
        how = np.where(row < 0, HOW.index(way), how)
        row = np.where(row < 0, found, row)
    return _filled(work, row, how, keys)


def _filled(work: LaunchWork, row: IntArray, how: IntArray, keys: _Pair) -> Matched:
    """Return what is known of matched launches; of the others by what launches alike did."""
    alike = _alike(work, keys)
    kind, size, vector = (
        taken(values, row, UNKNOWN) for values in (work.kind, work.size, work.vector)
    )
    told = kind >= 0
    by_key = alike.how[keys.ours]
    by_key = np.where((by_key == HOW.index("absent")) & (row >= 0), HOW.index("uncounted"), by_key)
    return Matched(
        np.where(told, how, by_key),
        np.where(told, kind, alike.kind[keys.ours]),
        (*work.kinds, *alike.more_kinds),
        np.where(size >= 0, size, alike.size[keys.ours]),
        np.where(vector >= 0, vector, alike.vector[keys.ours]),
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Numbers of a thing in two runs, equal where it is the same; all below `count`."""

    ours: IntArray
    theirs: IntArray
    count: int


_Columns = tuple[IntArray, IntArray]


def _joined(*columns: _Columns) -> _Pair:
    """Return a number for each distinct row of some columns of two runs."""
    group, first = group_rows([np.concatenate(both) for both in columns])
    here = len(columns[0][0])
    return _Pair(group[:here], group[here:], len(first))


def _joint_names(target: Launches, source: Launches) -> _Pair:
    ours, theirs = same_kernels(target.names, source.names)
    return _joined((taken(ours, target.name), taken(theirs, source.name)))


def _keys(names: _Pair, target: Launches, source: Launches) -> _Pair:
    """Return numbers of kernels in a size; of those whose size one run lacks, of kernels alone.

    Some tools write a grid in threads and some in blocks: the grid of a kernel that would have no
    size of the other run is read as threads if that gives it one.
    """
    name, block = (names.ours, names.theirs), (target.block, source.block)
    ours, theirs = target.threads, source.threads
    keys = _joined(name, (ours, theirs), block)
    if _shared(names, keys)[names.ours].all() and min(_least(ours), _least(theirs)) >= 0:
        return keys
    for other in ((_grid_in_threads(target), theirs), (ours, _grid_in_threads(source))):
        better = _shared(names, _joined(name, other, block))
        better &= ~_shared(names, _joined(name, (ours, theirs), block))
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
    return _joined(name, *sized)


def _least(sizes: IntArray) -> int:
    return int(sizes.min(initial=0))


def _grid_in_threads(launches: Launches) -> IntArray:
    grid, block = launches.grid, launches.block
    whole = (grid > 0) & (block > 0) & (grid % np.maximum(block, 1) == 0)
    return np.where(whole, grid, UNKNOWN_SIZE)


def _shared(names: _Pair, keys: _Pair) -> BoolArray:
    """Return, per name, whether both runs have it in one size."""
    found = np.zeros(names.count, dtype=np.bool_)
    found[names.ours[np.isin(keys.ours, keys.theirs)]] = True
    return found


def _process_of(target: Launches, source: Launches, *, is_own: bool) -> IntArray:
    """Return, per launch, the process of the other run that is its own, -1 where none is for sure.

    That of the same rank; of the same number, in one trace; the first of the first and so on, if
    both runs have as many and none says its rank; or the only one, of the only one.
    """
    here = np.unique(target.process).tolist()
    there = np.unique(source.process).tolist()
    by_rank: dict[int | None, list[int]] = {}
    for one in there:
        by_rank.setdefault(source.ranks.get(one), []).append(one)
    found = np.full(max(here, default=0) + 1, -1, dtype=np.int64)
    nobody_says = not by_rank.keys() - {None} and not any(target.ranks.get(one) for one in here)
    for place, one in enumerate(here):
        rank = target.ranks.get(one)
        alike = by_rank.get(rank, []) if rank is not None else []
        alone = len(here) == len(there) == 1
        if len(alike) == 1:
            found[one] = alike[0]
        elif rank is None and is_own and one in there:
            found[one] = one
        elif rank is None and nobody_says and len(here) == len(there):
            found[one] = there[place]
        elif alone and None in (rank, source.ranks.get(there[0])):
            found[one] = there[0]
    return found[target.process]


def _in_order(
    target: Launches, source: Launches, process: IntArray, of: _Pair, keys: _Pair
) -> IntArray:
    """Return the launch of the other run that is the same in order among those alike, else -1.

    Only where both runs launch a kernel equally often, and each two in the same size.
    """
    group = _joined((process, source.process), (of.ours, of.theirs))
    mine, other = (
        np.bincount(numbers, minlength=group.count) for numbers in (group.ours, group.theirs)
    )
    if not source.count:
        return np.full(target.count, -1, dtype=np.int64)
    order = np.argsort(group.theirs, kind="stable")
    at = (np.cumsum(other) - other)[group.ours] + rank_in_group(group.ours)
    row = order[np.minimum(at, len(order) - 1)]
    even = mine == other
    even[group.ours[keys.theirs[row] != keys.ours]] = False
    return np.where(even[group.ours], row, -1)


def _in_steps(target: Launches, work: LaunchWork, keys: _Pair) -> IntArray:
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
    most, least = _extremes(key, often, keys.count)
    ours_often, ours_nth = _in_window(target.window, keys.ours)
    place = _joined((keys.ours, key), (ours_nth, nth))
    high, low = _extremes(place.theirs, kind, place.count)
    steady = np.ones(keys.count, dtype=np.bool_)
    steady[key[(high != low)[place.theirs] | (kind < 0)]] = False
    row_at = np.full(place.count, -1, dtype=np.int64)
    row_at[place.theirs[::-1]] = rows[::-1]
    fits = steady & (most == least)
    fits = fits[keys.ours] & (ours_often == most[keys.ours]) & (target.window >= 0)
    return np.where(fits, row_at[place.ours], none)


def _in_window(window: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Return, per launch, how many of its kernel and size its window has, and the which it is."""
    group, first = group_rows([window, key])
    return np.bincount(group, minlength=len(first))[group], rank_in_group(group)


def _extremes(group: IntArray, values: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Return the largest and the smallest value of each group; of an empty one -1 and 2^63 - 1."""
    most = np.full(count, -1, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    np.maximum.at(most, group, values)
    np.minimum.at(least, group, values)
    return most, least


@dataclass(frozen=True, slots=True)
class _Alike:
    """What all launches of a kernel in a size did, by key; `more_kinds` follow the work's own."""

    how: IntArray
    kind: IntArray
    more_kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray


def _alike(work: LaunchWork, keys: _Pair) -> _Alike:
    key, known = keys.theirs, work.kind >= 0
    there, told, untold = (
        np.bincount(key[rows], minlength=keys.count) > 0 for rows in (slice(None), known, ~known)
    )
    most, least = _extremes(key[known], work.kind[known], keys.count)
    # Launches by operators of unknown work may have done anything; counters that were not read
    # of a launch say nothing against those that were.
    open_keys = told & untold if work.origin == "pair" else np.zeros(keys.count, dtype=np.bool_)
    kind = np.where(told & (most == least) & ~open_keys, most, UNKNOWN)
    how = np.full(keys.count, HOW.index("absent"), dtype=np.int64)
    how[there] = HOW.index("uncounted")
    how[told] = HOW.index("ambiguous")
    how[kind >= 0] = HOW.index("alike")
    more = _of_several(work, key, told & (kind < 0) & ~open_keys, kind, how)
    size = _mean(key, work.size, keys.count, SIZES_AGREE)
    return _Alike(how, kind, more, size, _mean(key, work.vector, keys.count, 0.0))


def _of_several(
    work: LaunchWork, key: IntArray, wanted: BoolArray, kind: IntArray, how: IntArray
) -> tuple[Kind, ...]:
    """Return a kind for each wanted key whose launches differ; put it into `kind` and `how`."""
    rows = np.flatnonzero(wanted[key] & (work.kind >= 0))
    _, first = group_rows([key[rows], work.kind[rows]])
    seen: dict[int, list[Kind]] = {}
    for row in rows[first].tolist():
        seen.setdefault(int(key[row]), []).append(work.kinds[int(work.kind[row])])
    more: list[Kind] = []
    for one, kinds in seen.items():
        found = common(kinds) if work.origin == "pair" else between(kinds)
        if found is not None:
            kind[one] = len(work.kinds) + len(more)
            how[one] = HOW.index("alike" if work.origin == "pair" else "between")
            more.append(found)
    return tuple(more)


def _mean(key: IntArray, values: IntArray, count: int, agree: float) -> IntArray:
    """Return the mean of each key whose values are known and differ by no more than a share."""
    most, least = _extremes(key, values, count)
    known = (least >= 0) & (most >= 0) & (most - np.maximum(least, 0) <= agree * most)
    times = np.maximum(np.bincount(key, minlength=count), 1)
    above = np.bincount(key, weights=(values - least[key]).astype(np.float64), minlength=count)
    return np.where(known, least + np.rint(above / times).astype(np.int64), UNKNOWN)
