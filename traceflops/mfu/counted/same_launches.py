"""Which launches are the same: of the passes of a counted run, and of two runs.

Hardware counts only so much at once, so a run is repeated with other counters. The n-th launch of
a kernel in one pass is that in another where all passes launch it equally often and in equal size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.devices.counter_formulas import (
    counters_used,
    plain_counter,
    tells_speed,
    with_sums,
)
from traceflops.mfu.counted.launches import Launches, LaunchWork, rank_in_group
from traceflops.table.columns import (
    ABSENT,
    UNKNOWN_SIZE,
    BoolArray,
    FloatArray,
    IntArray,
    axes,
    codes,
    floats,
    names,
    numbers,
)
from traceflops.table.grouping import distinct, extremes, group_rows
from traceflops.table.trace import Trace

FEW: Final = 4
"""So many counters of a recording are kept, whatever they count, if their names are plain."""
_PLAIN: Final = re.compile(r"[A-Za-z]\w{0,39}(?:\.\w{1,40}){0,3}", re.ASCII)
LARGEST_EXACT: Final = 2.0**53
"""From here on a counter as a double may not be the integer that was counted."""


class CountedLaunches(Struct, frozen=True):
    """Launches with their counters by plain name; NaN where one was not read, or is impossible.

    Where passes give several values of a counter, `values` has the mean, and `spread` by how much
    they differ, as a share of the largest. `dur_ns` is how long each ran while counted, the mean of
    passes, NaN where that is not known. `device` is the row of the devices table, -1 for null.
    `correlation` is ABSENT where it is not known. `uneven` are the names of kernels that the
    passes do not launch equally often: of those one pass stands.
    """

    launches: Launches
    device: IntArray
    correlation: IntArray
    values: Mapping[str, FloatArray]
    spread: Mapping[str, FloatArray]
    dur_ns: FloatArray
    uneven: tuple[str, ...]


def counted_launches(trace: Trace) -> CountedLaunches | None:
    """Return the launches of the table of kernel counters, None where it is empty."""
    table = trace.kernel_counters
    if not table.num_rows:
        return None
    process, ranks = _processes(trace)
    # Launches are numbered in order of dispatch; `first` is a row of each.
    order = numbers(table["dispatch"], ABSENT)
    order = np.where(order == ABSENT, numbers(table["correlation"], ABSENT), order)
    order = np.where(order == ABSENT, np.arange(len(order)), order)
    passes = numbers(table["repetition"])
    launch, first = group_rows([process, passes, order, codes(table["name"])])
    kept, merged, uneven = _merged(table, process, launch, first)
    values, spread = _values(table, kept[launch], len(merged))
    rows = first[merged]
    count = len(rows)
    # How long each ran while it was counted: the mean of the passes that tell it.
    slot, dur_ns = kept[launch], numbers(table["dur_ns"], ABSENT)
    timed = np.flatnonzero((slot >= 0) & (dur_ns > 0))
    ran = np.bincount(slot[timed], minlength=count)
    sums = np.bincount(slot[timed], weights=dur_ns[timed], minlength=count)
    block = numbers(table["block_threads"], UNKNOWN_SIZE)[rows]
    threads = numbers(table["threads"], UNKNOWN_SIZE)[rows]
    blocks = -(-threads // np.maximum(block, 1))
    launches = Launches(
        row=rows,
        process=process[rows],
        name=codes(table["name"])[rows],
        names=names(table["name"]),
        threads=np.where((threads > 0) & (block > 0), blocks * block, UNKNOWN_SIZE),
        block=np.where(block > 0, block, UNKNOWN_SIZE),
        grid=np.full(count, UNKNOWN_SIZE, dtype=np.int64),
        grid_axes=axes(table["grid"])[rows],
        block_axes=axes(table["block"])[rows],
        window=np.full(count, -1, dtype=np.int64),
        used=np.ones(count, dtype=np.bool_),
        ranks=ranks,
    )
    return CountedLaunches(
        launches,
        numbers(table["device"])[rows],
        numbers(table["correlation"], ABSENT)[rows],
        values,
        spread,
        np.where(ran > 0, sums / np.maximum(ran, 1), np.nan),
        uneven,
    )


def _processes(trace: Trace) -> tuple[IntArray, dict[int, int | None]]:
    """Return the process of each row of kernel counters, and the rank of each process.

    The same process in every pass has one number, that of its rank, else of its place in the pass:
    its row of the processes table in the first pass that has it.
    """
    table = trace.kernel_counters
    repetition, process = numbers(table["repetition"]), numbers(table["process"])
    pair, first = group_rows([repetition, process])
    number_of: dict[tuple[str, int], int] = {}
    taken: set[int] = set()
    places: Counter[int] = Counter()
    numbered, ranks = [], {}
    for number, row in zip(repetition[first].tolist(), process[first].tolist(), strict=True):
        rank = trace.ranks[row] if 0 <= row < len(trace.ranks) else None
        identity = ("rank", rank) if rank is not None else ("place", places[number])
        places[number] += 1
        if identity not in number_of:
            number_of[identity] = row
            if row in taken:
                number_of[identity] = trace.processes.num_rows + len(taken)
            taken.add(number_of[identity])
        numbered.append(number_of[identity])
        ranks[numbered[-1]] = rank
    return np.array(numbered, dtype=np.int64)[pair], ranks


def _merged(
    table: pa.Table, process: IntArray, launch: IntArray, first: IntArray
) -> tuple[IntArray, IntArray, tuple[str, ...]]:
    """Return the merged index of each launch over all passes, and a launch per index.

    Places are in the order of the first pass; -1 for launches of a pass that does not fit.
    """
    name = codes(table["name"])[first]
    process, repetition = process[first], numbers(table["repetition"])[first]
    of_kernel, _ = group_rows([process, name])
    of_pass, one_of_pass = group_rows([of_kernel, repetition])
    nth = rank_in_group(of_pass)
    sizes = np.bincount(of_pass, minlength=len(one_of_pass))
    pass_kernel = of_kernel[one_of_pass]
    most, least = extremes(pass_kernel, sizes, int(of_kernel.max(initial=-1)) + 1)
    even = most == least
    together, representative = group_rows([of_kernel, nth])
    sizes_of = [numbers(table[name], UNKNOWN_SIZE) for name in ("threads", "block_threads")]
    sizes_of += [side for name in ("grid", "block") for side in axes(table[name]).T]
    for size in sizes_of:
        size = size[first]
        differs = size != size[representative][together]
        even[of_kernel[differs]] = False
    _, keeper = extremes(pass_kernel, repetition[one_of_pass], len(even))
    fits = even[of_kernel] | (repetition == keeper[of_kernel])
    # In the order of the launches themselves, which is that of dispatch in the first pass.
    lowest = np.full(len(representative), len(launch), dtype=np.int64)
    np.minimum.at(lowest, together[fits], np.flatnonzero(fits))
    places = distinct(lowest[lowest < len(launch)])
    slot = np.searchsorted(places, lowest[together])
    slot = np.where(fits, slot, -1)
    labels = names(table["name"])
    uneven = tuple(sorted({labels[code] for code in name[~even[of_kernel]].tolist()}))
    return slot, places, uneven


def _values(
    table: pa.Table, slot: IntArray, count: int
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return the value of each counter that is used, by place, and its spread."""
    counter, value = codes(table["counter"]), floats(table["value"])
    wanted: dict[str, list[int]] = {}
    labels = names(table["counter"])
    for code, label in enumerate(labels):
        is_used = (plain := plain_counter(label)) in counters_used() or tells_speed(plain)
        if is_used or (len(labels) <= FEW and _PLAIN.fullmatch(plain)):
            wanted.setdefault(plain, []).append(code)
    values, spread = {}, {}
    for name, spellings in wanted.items():
        rows = np.flatnonzero(np.isin(counter, spellings) & (slot >= 0))
        # The mean at each place, exact where all samples are one, and their spread.
        places, samples = slot[rows], value[rows]
        possible = np.isfinite(samples) & (samples >= 0) & (samples <= LARGEST_EXACT)
        bad = np.zeros(count, dtype=np.bool_)
        bad[places[~possible]] = True
        places, samples = places[possible], samples[possible]
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, places, samples)
        np.maximum.at(high, places, samples)
        times = np.bincount(places, minlength=count)
        is_known: BoolArray = (times > 0) & ~bad
        sums = np.bincount(places, weights=samples, minlength=count)
        means = np.where(
            is_known & (low < high), sums / np.maximum(times, 1), np.where(is_known, high, 0.0)
        )
        differences = np.where(
            is_known & (high > 0), (high - low) / np.where(high > 0, high, 1.0), 0.0
        )
        values[name] = np.where(is_known, means, np.nan)
        spread[name] = np.where(is_known, differences, 0.0)
    values = with_sums(values)
    nothing = np.zeros(count)
    return values, {name: spread.get(name, nothing) for name in values}


_Columns = tuple[IntArray, IntArray]


class Pair(Struct, frozen=True):
    """Codes of the same thing in two runs, equal where it is the same; below `count`."""

    ours: IntArray
    theirs: IntArray
    count: int


def joined(*columns: _Columns) -> Pair:
    """Return a number for each distinct row of some columns of two runs."""
    group, first = group_rows([np.concatenate(both) for both in columns])
    here = len(columns[0][0])
    return Pair(group[:here], group[here:], len(first))


def keys_of(kernels: Pair, target: Launches, source: Launches) -> Pair:
    """Return a code per kernel and size; per kernel where one run lacks the size.

    Where both runs tell the sizes x y z of all launches of a kernel, each axis counts. Some tools
    write a grid in threads and some in blocks: the grid of a kernel that would have no size of the
    other run is read as threads if that gives it one.
    """
    name = (kernels.ours, kernels.theirs)
    bare = np.zeros(kernels.count, dtype=np.bool_)
    for run, code in ((target, kernels.ours), (source, kernels.theirs)):
        bare[code[((run.grid_axes < 0) | (run.block_axes < 0)).any(axis=1)]] = True
    runs = [(target, ~bare[kernels.ours]), (source, ~bare[kernels.theirs])]
    extents = []
    for run, is_sized in runs:
        # A grid may be in threads where its blocks fit into it, on each axis that is known.
        is_whole = (run.grid > 0) & (run.block > 0) & (run.grid % np.maximum(run.block, 1) == 0)
        is_complete = (run.grid_axes > 0).all(axis=1) & (run.block_axes > 0).all(axis=1)
        uneven = (run.grid_axes % np.maximum(run.block_axes, 1) != 0).any(axis=1)
        in_threads = np.where(is_whole & ~(is_complete & uneven), run.grid, UNKNOWN_SIZE)
        extents.append((run.threads, run.grid_axes * run.block_axes, is_sized))
        extents.append((in_threads, run.grid_axes, is_sized))
    ours, in_threads, theirs, their_threads = _numbered(extents)
    block_ours, block_theirs = _numbered(
        [(run.block, run.block_axes, sized) for run, sized in runs]
    )
    block = (block_ours, block_theirs)
    keys = joined(name, (ours, theirs), block)
    all_sized = ours.min(initial=0) >= 0 and theirs.min(initial=0) >= 0
    if all_sized and _shared(kernels, keys)[kernels.ours].all():
        return keys
    plain = (ours, theirs)
    for other in ((in_threads, theirs), (ours, their_threads)):
        better = _shared(kernels, joined(name, other, block))
        better &= ~_shared(kernels, joined(name, plain, block))
        ours = np.where(better[kernels.ours], other[0], ours)
        theirs = np.where(better[kernels.theirs], other[1], theirs)
    lacking = np.zeros(kernels.count, dtype=np.bool_)
    lacking[kernels.ours[ours < 0]] = True
    lacking[kernels.theirs[theirs < 0]] = True
    sized = (
        (
            np.where(lacking[kernels.ours], UNKNOWN_SIZE, own),
            np.where(lacking[kernels.theirs], UNKNOWN_SIZE, other),
        )
        for own, other in ((ours, theirs), block)
    )
    return joined(name, *sized)


def _numbered(parts: Sequence[tuple[IntArray, IntArray, BoolArray]]) -> list[IntArray]:
    """Return numbers for sizes: products, and their axes where these are known."""
    columns = [
        np.concatenate([np.where(sized, axes[:, axis], whole) for whole, axes, sized in parts])
        for axis in range(3)
    ]
    group, _ = group_rows(columns)
    ends = np.cumsum([len(whole) for whole, _, _ in parts])[:-1]
    numbered = zip(parts, np.split(group, ends), strict=True)
    return [np.where(whole >= 0, number, UNKNOWN_SIZE) for (whole, _, _), number in numbered]


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
    launched = np.bincount(here, minlength=len(first))
    other = np.bincount(group.theirs, minlength=group.count)
    order = np.argsort(group.theirs, kind="stable")
    position = (np.cumsum(other) - other)[group.ours] + rank_in_group(here)
    row = order[np.minimum(position, len(order) - 1)]
    even = np.ones(len(first), dtype=np.bool_)
    even[here[(launched[here] != other[group.ours]) | (keys.theirs[row] != keys.ours)]] = False
    return np.where(even[here], row, -1)


def in_steps(target: Launches, work: LaunchWork, keys: Pair) -> IntArray:
    """Return a launch of the other run that is the same in order in each of its steps, else -1.

    Only where each of these launches a kernel in a size equally often, so often as the step here,
    and the n-th always does the same. Steps of a run of one process that has none are whole rounds
    of so many launches as each step here has.
    """
    source = work.launches
    none = np.full(target.count, -1, dtype=np.int64)
    here = (target.window >= 0) & target.used
    rows = np.flatnonzero((source.window >= 0) & source.used)
    # `nth` is the place of a launch in its step, `size` how many of its key a step has: 0 where
    # that differs from step to step.
    if len(rows):
        often, nth = _in_window(source.window[rows], keys.theirs[rows])
        most, least = extremes(keys.theirs[rows], often, keys.count)
        size = np.where(most == least, most, 0)
    elif here.any() and len(np.unique(source.process)) == 1 and not (source.window >= 0).any():
        often, _ = _in_window(target.window[here], keys.ours[here])
        most, least = extremes(keys.ours[here], often, keys.count)
        size = np.where(most == least, most, 0)
        rows = np.arange(source.count)
        nth = rank_in_group(keys.theirs) % np.maximum(size, 1)[keys.theirs]
        launched = np.bincount(keys.theirs, minlength=keys.count)
        size = np.where((size > 1) & (launched % np.maximum(size, 1) == 0), size, 0)
    if not len(rows) or not (target.window >= 0).any():
        return none
    key, kind = keys.theirs[rows], work.kind[rows]
    often, own_nth = _in_window(target.window, keys.ours)
    position = joined((keys.ours, key), (own_nth, nth))
    high, low = extremes(position.theirs, kind, position.count)
    steady = size > 0
    steady[key[(high != low)[position.theirs] | (kind < 0)]] = False
    row_at = np.full(position.count, -1, dtype=np.int64)
    row_at[position.theirs[::-1]] = rows[::-1]
    fits = steady[keys.ours] & (often == size[keys.ours]) & (target.window >= 0)
    return np.where(fits, row_at[position.ours], none)


def _in_window(window: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Return, per launch, how often its key occurs in its window, and its rank there."""
    group, first = group_rows([window, key])
    return np.bincount(group, minlength=len(first))[group], rank_in_group(group)
