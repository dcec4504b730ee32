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

from traceflops.devices.counter_formulas import counters_used, plain_counter, tells_speed, with_sums
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
    """Launches with their counters by plain name; NaN if one was not read, or is impossible.

    If passes give several values of a counter, `values` is the mean and `spread` the difference as
    a share of the largest. `dur_ns` is how long each ran while counted, the mean of passes, or NaN.
    `device` is the row of the table of devices, -1 for null. `correlation` may be ABSENT. `uneven`
    are kernels that the passes do not launch equally often: of these only one pass counts.
    """

    launches: Launches
    device: IntArray
    correlation: IntArray
    values: Mapping[str, FloatArray]
    spread: Mapping[str, FloatArray]
    dur_ns: FloatArray
    uneven: tuple[str, ...]


def counted_launches(trace: Trace) -> CountedLaunches | None:
    """Return the launches of the table of kernel counters, those of all passes merged; or None."""
    table = trace.kernel_counters
    if not table.num_rows:
        return None
    process, ranks = _processes(trace)
    # The table has a row per launch and counter. Launches are numbered by dispatch, else by
    # correlation, else by row; `first` is a row of each.
    order = numbers(table["dispatch"], ABSENT)
    order = np.where(order == ABSENT, numbers(table["correlation"], ABSENT), order)
    order = np.where(order == ABSENT, np.arange(len(order)), order)
    passes = numbers(table["repetition"])
    launch, first = group_rows([process, passes, order, codes(table["name"])])
    slot_of, merged, uneven = _merged(table, process, launch, first)
    slot = slot_of[launch]
    values, spread = _values(table, slot, len(merged))
    rows = first[merged]
    count = len(rows)
    # The mean duration over the passes that tell it.
    dur_ns = numbers(table["dur_ns"], ABSENT)
    timed = np.flatnonzero((slot >= 0) & (dur_ns > 0))
    times = np.bincount(slot[timed], minlength=count)
    sum_ns = np.bincount(slot[timed], weights=dur_ns[timed], minlength=count)
    block = numbers(table["block_threads"], UNKNOWN_SIZE)[rows]
    threads = numbers(table["threads"], UNKNOWN_SIZE)[rows]
    blocks = -(-threads // np.maximum(block, 1))  # the last one may be partly filled
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
        np.where(times > 0, sum_ns / np.maximum(times, 1), np.nan),
        uneven,
    )


def _processes(trace: Trace) -> tuple[IntArray, dict[int, int | None]]:
    """Return the process of each row of kernel counters, and the rank of each process.

    Each pass has processes of its own. The same process in every pass (the same rank, or without
    ranks the same place in the pass) gets one number: its row in the table of processes in the
    first pass that has it.
    """
    table = trace.kernel_counters
    repetition, process = numbers(table["repetition"]), numbers(table["process"])
    pair, first = group_rows([repetition, process])
    number_of: dict[tuple[str, int], int] = {}
    used: set[int] = set()
    places: Counter[int] = Counter()
    numbered, ranks = [], {}
    for pass_number, row in zip(repetition[first].tolist(), process[first].tolist(), strict=True):
        rank = trace.ranks[row] if 0 <= row < len(trace.ranks) else None
        identity = ("rank", rank) if rank is not None else ("place", places[pass_number])
        places[pass_number] += 1
        if identity not in number_of:
            # A row that already stands for another process: take a number beyond all rows.
            number_of[identity] = trace.processes.num_rows + len(used) if row in used else row
            used.add(number_of[identity])
        numbered.append(number_of[identity])
        ranks[numbered[-1]] = rank
    return np.array(numbered, dtype=np.int64)[pair], ranks


def _merged(
    table: pa.Table, process: IntArray, launch: IntArray, first: IntArray
) -> tuple[IntArray, IntArray, tuple[str, ...]]:
    """Return the slot of each launch, a launch of each slot, and the names of uneven kernels.

    The n-th launch of a kernel in each pass has one slot. If passes launch a kernel not equally
    often, or in other sizes, it is uneven: only its first pass counts, the others have slot -1.
    `first` is a row of each launch.
    """
    name = codes(table["name"])[first]
    process, repetition = process[first], numbers(table["repetition"])[first]
    of_kernel, _ = group_rows([process, name])
    of_pass, one_of_pass = group_rows([of_kernel, repetition])
    nth = rank_in_group(of_pass)
    launch_count = np.bincount(of_pass, minlength=len(one_of_pass))
    kernel_of_pass = of_kernel[one_of_pass]
    most, least = extremes(kernel_of_pass, launch_count, int(of_kernel.max(initial=-1)) + 1)
    is_even = most == least
    together, representative = group_rows([of_kernel, nth])
    sizes = [numbers(table[name], UNKNOWN_SIZE) for name in ("threads", "block_threads")]
    sizes += [side for name in ("grid", "block") for side in axes(table[name]).T]
    for size in sizes:
        size = size[first]
        differs = size != size[representative][together]
        is_even[of_kernel[differs]] = False
    _, first_pass = extremes(kernel_of_pass, repetition[one_of_pass], len(is_even))
    counts = is_even[of_kernel] | (repetition == first_pass[of_kernel])
    # Slots are in the order of the launches, which is that of dispatch in the first pass.
    lowest = np.full(len(representative), len(launch), dtype=np.int64)
    np.minimum.at(lowest, together[counts], np.flatnonzero(counts))
    launch_of_slot = distinct(lowest[lowest < len(launch)])
    slot = np.searchsorted(launch_of_slot, lowest[together])
    slot = np.where(counts, slot, -1)
    labels = names(table["name"])
    uneven = tuple(sorted({labels[code] for code in name[~is_even[of_kernel]].tolist()}))
    return slot, launch_of_slot, uneven


def _values(
    table: pa.Table, slot: IntArray, count: int
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return the value of each used counter by slot, and its spread; `slot` is by row, or -1."""
    counter, value = codes(table["counter"]), floats(table["value"])
    spellings_of: dict[str, list[int]] = {}
    labels = names(table["counter"])
    for code, label in enumerate(labels):
        is_used = (plain := plain_counter(label)) in counters_used() or tells_speed(plain)
        if is_used or (len(labels) <= FEW and _PLAIN.fullmatch(plain)):  # few are shown as read
            spellings_of.setdefault(plain, []).append(code)
    values, spread = {}, {}
    for name, spellings in spellings_of.items():
        rows = np.flatnonzero(np.isin(counter, spellings) & (slot >= 0))
        # One impossible sample makes the value unknown.
        slots, samples = slot[rows], value[rows]
        possible = np.isfinite(samples) & (samples >= 0) & (samples <= LARGEST_EXACT)
        is_bad = np.zeros(count, dtype=np.bool_)
        is_bad[slots[~possible]] = True
        slots, samples = slots[possible], samples[possible]
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, slots, samples)
        np.maximum.at(high, slots, samples)
        times = np.bincount(slots, minlength=count)
        is_known: BoolArray = (times > 0) & ~is_bad
        sums = np.bincount(slots, weights=samples, minlength=count)
        # Equal samples are taken as they are: their mean might be rounded.
        means = np.where(is_known & (low < high), sums / np.maximum(times, 1), high)
        values[name] = np.where(is_known, means, np.nan)
        has_size = is_known & (high > 0)
        spread[name] = np.where(has_size, (high - low) / np.where(high > 0, high, 1.0), 0.0)
    values = with_sums(values)
    no_spread = np.zeros(count)
    return values, {name: spread.get(name, no_spread) for name in values}


_Columns = tuple[IntArray, IntArray]


class Pair(Struct, frozen=True):
    """Codes of things in two runs: equal codes are the same thing. All are below `count`."""

    ours: IntArray
    theirs: IntArray
    count: int


def joined(*columns: _Columns) -> Pair:
    """Return codes of the rows of two runs; `columns` are pairs: our column and theirs."""
    group, first = group_rows([np.concatenate(both) for both in columns])
    here = len(columns[0][0])
    return Pair(group[:here], group[here:], len(first))


def keys_of(kernels: Pair, target: Launches, source: Launches) -> Pair:
    """Return a code per kernel and size of launches; per kernel alone if one run lacks its sizes.

    If both runs tell the sizes x y z of all launches of a kernel, each axis counts. Some tools
    write a grid in threads, others in blocks. If that leaves a kernel without a common size, its
    grids in one of the runs are read as threads.
    """
    name = (kernels.ours, kernels.theirs)
    lacks_axes = np.zeros(kernels.count, dtype=np.bool_)
    for run, code in ((target, kernels.ours), (source, kernels.theirs)):
        lacks_axes[code[((run.grid_axes < 0) | (run.block_axes < 0)).any(axis=1)]] = True
    runs = [(target, ~lacks_axes[kernels.ours]), (source, ~lacks_axes[kernels.theirs])]
    extents = []
    for run, has_axes in runs:
        # A grid may be in threads if whole blocks fit into it, on each axis that is known.
        is_whole = (run.grid > 0) & (run.block > 0) & (run.grid % np.maximum(run.block, 1) == 0)
        is_complete = (run.grid_axes > 0).all(axis=1) & (run.block_axes > 0).all(axis=1)
        is_uneven = (run.grid_axes % np.maximum(run.block_axes, 1) != 0).any(axis=1)
        in_threads = np.where(is_whole & ~(is_complete & is_uneven), run.grid, UNKNOWN_SIZE)
        extents.append((run.threads, run.grid_axes * run.block_axes, has_axes))
        extents.append((in_threads, run.grid_axes, has_axes))
    ours, ours_in_threads, theirs, theirs_in_threads = _numbered(extents)
    our_block, their_block = _numbered([(run.block, run.block_axes, known) for run, known in runs])
    block = (our_block, their_block)
    keys = joined(name, (ours, theirs), block)
    all_sized = ours.min(initial=0) >= 0 and theirs.min(initial=0) >= 0
    if all_sized and _shared(kernels, keys)[kernels.ours].all():  # all sizes fit as they are
        return keys
    as_blocks = (ours, theirs)
    for as_threads in ((ours_in_threads, theirs), (ours, theirs_in_threads)):
        is_better = _shared(kernels, joined(name, as_threads, block))
        is_better &= ~_shared(kernels, joined(name, as_blocks, block))
        ours = np.where(is_better[kernels.ours], as_threads[0], ours)
        theirs = np.where(is_better[kernels.theirs], as_threads[1], theirs)
    # Drop the sizes of kernels that lack one in either run.
    lacks_size = np.zeros(kernels.count, dtype=np.bool_)
    lacks_size[kernels.ours[ours < 0]] = True
    lacks_size[kernels.theirs[theirs < 0]] = True
    we_lack, they_lack = lacks_size[kernels.ours], lacks_size[kernels.theirs]
    sizes = (
        (np.where(we_lack, UNKNOWN_SIZE, own), np.where(they_lack, UNKNOWN_SIZE, other))
        for own, other in ((ours, theirs), block)
    )
    return joined(name, *sizes)


def _numbered(parts: Sequence[tuple[IntArray, IntArray, BoolArray]]) -> list[IntArray]:
    """Return a number for each distinct size, in one numbering for all parts.

    A part is (products of the axes, the axes, whether the axes count); without these the product
    alone counts. Sizes whose product is unknown are UNKNOWN_SIZE.
    """
    columns = [
        np.concatenate([np.where(sized, axes[:, axis], whole) for whole, axes, sized in parts])
        for axis in range(3)
    ]
    group, _ = group_rows(columns)
    ends = np.cumsum([len(whole) for whole, _, _ in parts])[:-1]
    numbered = zip(parts, np.split(group, ends), strict=True)
    return [np.where(whole >= 0, number, UNKNOWN_SIZE) for (whole, _, _), number in numbered]


def _shared(names: Pair, keys: Pair) -> BoolArray:
    """Return, per kernel name, whether both runs have it in a common size."""
    shared = np.zeros(names.count, dtype=np.bool_)
    shared[names.ours[np.isin(keys.ours, keys.theirs)]] = True
    return shared


# Which launch of another run is the same in order: of the whole run, of a step, of a round.


def processes_of(target: Launches, source: Launches, *, is_own: bool) -> IntArray:
    """Return, per launch, the process of the other run that is the same, -1 if that is unclear.

    It is the one of the same rank. Without a rank it is: in one trace (`is_own`) that of the same
    number; if no process of either run has one and both have as many, that of the same place; or
    the only process that was counted.
    """
    here, there = distinct(target.process).tolist(), distinct(source.process).tolist()
    by_rank: dict[int | None, list[int]] = {}
    for process in there:
        by_rank.setdefault(source.ranks.get(process), []).append(process)
    all_ranks = (*map(target.ranks.get, here), *map(source.ranks.get, there))
    has_no_rank = all(rank is None for rank in all_ranks)
    has_places = has_no_rank and len(here) == len(there)
    by_place = dict(zip(here, there, strict=True)) if has_places else {}
    # A counted process with a rank stands for one process here, one without a rank for any.
    is_only = len(there) == 1 and (source.ranks.get(there[0]) is None or len(here) == 1)
    same = np.full(max(here, default=0) + 1, -1, dtype=np.int64)
    for process in here:
        rank = target.ranks.get(process)
        of_rank = by_rank.get(rank, []) if rank is not None else []
        if len(of_rank) == 1:
            same[process] = of_rank[0]
        elif rank is None and is_own and process in there:
            same[process] = process
        elif process in by_place and not is_own:
            same[process] = by_place[process]
        elif is_only and not is_own and None in (rank, source.ranks.get(there[0])):
            same[process] = there[0]
    return same[target.process]


def in_order(
    target: Launches, source: Launches, process: IntArray, of: Pair, keys: Pair
) -> IntArray:
    """Return the launch of the other run that is the n-th of its kernel, too; else -1.

    `process` is each launch's process in the other run, `of` are codes of kernels, `keys` codes of
    kernels and sizes. Both processes must launch the kernel equally often, and each two launches in
    the same size.
    """
    if not source.count:
        return np.full(target.count, -1, dtype=np.int64)
    group = joined((process, source.process), (of.ours, of.theirs))
    here, first = group_rows([target.process, of.ours])
    our_count = np.bincount(here, minlength=len(first))
    their_count = np.bincount(group.theirs, minlength=group.count)
    # Sorted by group, the n-th launch of a group stands n places after its begin.
    order = np.argsort(group.theirs, kind="stable")
    begin = np.cumsum(their_count) - their_count
    position = begin[group.ours] + rank_in_group(here)
    row = order[np.minimum(position, len(order) - 1)]
    differs = (our_count[here] != their_count[group.ours]) | (keys.theirs[row] != keys.ours)
    is_even = np.ones(len(first), dtype=np.bool_)
    is_even[here[differs]] = False
    return np.where(is_even[here], row, -1)


def in_steps(target: Launches, work: LaunchWork, keys: Pair) -> IntArray:
    """Return a launch of the other run that is the n-th of its kernel and size in a step, or -1.

    All steps of the other run must launch these equally often, and as often as the step here; and
    the n-th must always do the same. If that run has one process and no steps, whole rounds of as
    many launches as each step here has are taken as steps.
    """
    source = work.launches
    in_step = (target.window >= 0) & target.used
    rows = np.flatnonzero((source.window >= 0) & source.used)
    # `nth` is the place of a launch in its step, `size` how many launches of its key each step has,
    # 0 if steps differ.
    if len(rows):
        per_step, nth = _in_window(source.window[rows], keys.theirs[rows])
        most, least = extremes(keys.theirs[rows], per_step, keys.count)
        size = np.where(most == least, most, 0)
    elif in_step.any() and len(distinct(source.process)) == 1 and not (source.window >= 0).any():
        per_step, _ = _in_window(target.window[in_step], keys.ours[in_step])
        most, least = extremes(keys.ours[in_step], per_step, keys.count)
        size = np.where(most == least, most, 0)
        rows = np.arange(source.count)
        nth = rank_in_group(keys.theirs) % np.maximum(size, 1)[keys.theirs]
        launched = np.bincount(keys.theirs, minlength=keys.count)
        # Any number of launches would be whole rounds of one: that tells nothing.
        size = np.where((size > 1) & (launched % np.maximum(size, 1) == 0), size, 0)
    if not len(rows) or not (target.window >= 0).any():
        return np.full(target.count, -1, dtype=np.int64)
    key, kind = keys.theirs[rows], work.kind[rows]
    our_per_step, our_nth = _in_window(target.window, keys.ours)
    position = joined((keys.ours, key), (our_nth, nth))
    high, low = extremes(position.theirs, kind, position.count)
    is_steady = size > 0
    is_steady[key[(high != low)[position.theirs] | (kind < 0)]] = False
    row_at = np.full(position.count, -1, dtype=np.int64)
    row_at[position.theirs[::-1]] = rows[::-1]  # the first one is written last, and stays
    fits = is_steady[keys.ours] & (our_per_step == size[keys.ours]) & (target.window >= 0)
    return np.where(fits, row_at[position.ours], -1)


def _in_window(window: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Return how often the key of each launch occurs in its window, and its rank among these."""
    group, first = group_rows([window, key])
    return np.bincount(group, minlength=len(first))[group], rank_in_group(group)
