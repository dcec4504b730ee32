"""Which launches are the same: in the passes of a counted run, and in two runs.

Hardware reads few counters at once, so a run is repeated with others: each time is a pass. The n-th
launches of a kernel are the same if all passes launch it equally often and in equal sizes.
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
from traceflops.table.arrays import ABSENT, BoolArray, FloatArray, IntArray
from traceflops.table.columns import UNKNOWN_SIZE, axes, codes, floats, names, numbers
from traceflops.table.grouping import distinct, extremes, first_rows, group_least, group_rows
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace

FEW: Final = 4
"""If a recording has at most this many counters, all with plain names are kept and shown."""
_PLAIN: Final = re.compile(r"[A-Za-z]\w{0,39}(?:\.\w{1,40}){0,3}", re.ASCII)
LARGEST_EXACT: Final = 2.0**53
"""Above it, a double may differ from the integer that was counted."""


class CountedLaunches(Struct, frozen=True):
    """Launches with their counters by plain name; NaN if not read or impossible.

    If passes give several values of a counter, `values` is the mean, and `spread` the range as a
    share of the largest. `dur_ns` is the mean duration over the passes, or NaN. `device` is the row
    of the table of devices, -1 for null. `correlation` may be ABSENT. `uneven` are the names of
    kernels that passes do not launch equally often: only their first pass counts.
    """

    launches: Launches
    device: IntArray
    correlation: IntArray
    values: Mapping[str, FloatArray]
    spread: Mapping[str, FloatArray]
    dur_ns: FloatArray
    uneven: tuple[str, ...]


def counted_launches(trace: Trace) -> CountedLaunches | None:
    """Return the launches of the table of kernel counters, passes merged; None if it is empty."""
    table = trace.kernel_counters
    if not table.num_rows:
        return None
    process, ranks = _processes(trace)
    # The table has a row per launch and counter. Launches are numbered by dispatch, else by
    # correlation, else by row; `first` is a row of each. Rows of dispatch 7 7 8 (two counters of 7)
    # -> launch [0 0 1], first [0 2]
    order = numbers(table["dispatch"], ABSENT)
    order = np.where(order == ABSENT, numbers(table["correlation"], ABSENT), order)
    order = np.where(order == ABSENT, np.arange(len(order)), order)
    passes = numbers(table["repetition"])
    launch, first = group_rows([process, passes, order, codes(table["name"])])
    # Launches that are the same in several passes share a slot: `slot` is by row of the table.
    slot_of_launch, launch_of_slot, uneven = _merged(table, process, first)
    slot, rows, count = slot_of_launch[launch], first[launch_of_slot], len(launch_of_slot)
    values, spread = _values(table, slot, count)
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
        launches=launches,
        device=numbers(table["device"])[rows],
        correlation=numbers(table["correlation"], ABSENT)[rows],
        values=values,
        spread=spread,
        dur_ns=np.where(times > 0, sum_ns / np.maximum(times, 1), np.nan),
        uneven=uneven,
    )


def _processes(trace: Trace) -> tuple[IntArray, dict[int, int | None]]:
    """Return the process of each row of kernel counters, and the rank of each process.

    Each pass has its own processes. Those of the same rank (without ranks: of the same place in
    their pass) are the same and get one number: the row of the first in the table of processes.
    Pass 0 has processes 0 and 1 of ranks 0 and 1, pass 1 has 2 and 3 of ranks 1 and 0: process 2
    becomes 1, and 3 becomes 0.
    """
    table = trace.kernel_counters
    repetition, process = numbers(table["repetition"]), numbers(table["process"])
    group, first = group_rows([repetition, process])
    number_of: dict[tuple[str, int], int] = {}
    used: set[int] = set()
    seen_in_pass: Counter[int] = Counter()
    new_numbers, ranks = [], {}
    for pass_number, row in zip(repetition[first].tolist(), process[first].tolist(), strict=True):
        rank = trace.ranks[row] if 0 <= row < len(trace.ranks) else None
        identity = ("rank", rank) if rank is not None else ("place", seen_in_pass[pass_number])
        seen_in_pass[pass_number] += 1
        if identity not in number_of:
            # If that row is the number of another process, take a number beyond all rows.
            number_of[identity] = trace.processes.num_rows + len(used) if row in used else row
            used.add(number_of[identity])
        new_numbers.append(number_of[identity])
        ranks[number_of[identity]] = rank
    return np.array(new_numbers, dtype=np.int64)[group], ranks


def _merged(
    table: pa.Table, process: IntArray, first: IntArray
) -> tuple[IntArray, IntArray, tuple[str, ...]]:
    """Return the slot of each launch, a launch of each slot, and the names of uneven kernels.

    A slot is shared by the n-th launches of a kernel in all passes. A kernel is uneven if passes
    launch it not equally often or in other sizes: only its first pass counts, launches of other
    passes have slot -1. `process` is by row of the table, `first` is a row of each launch.

    Pass 0 launches a b a, pass 1 a a b b: `a` is even, `b` is not. Slots [0 1 2] and [0 2 -1 -1].
    """
    name = codes(table["name"])[first]
    process, repetition = process[first], numbers(table["repetition"])[first]
    kernel, launch_of_kernel = group_rows([process, name])
    kernel_in_pass, one_launch = group_rows([kernel, repetition])
    # A kernel is even if it has as many launches in each pass that has any ...
    launch_count = np.bincount(kernel_in_pass, minlength=len(one_launch))
    most, least = extremes(kernel[one_launch], launch_count, len(launch_of_kernel))
    is_even = most == least
    # ... and if its n-th launches (those that are the `same`) have equal sizes in all passes.
    same, representative = group_rows([kernel, rank_in_group(kernel_in_pass)])
    sizes = [numbers(table[column], UNKNOWN_SIZE) for column in ("threads", "block_threads")]
    sizes += [side for column in ("grid", "block") for side in axes(table[column]).T]
    for size in sizes:
        launch_size = size[first]
        differs = launch_size != launch_size[representative][same]
        is_even[kernel[differs]] = False
    _, first_pass = extremes(kernel[one_launch], repetition[one_launch], len(is_even))
    is_used = is_even[kernel] | (repetition == first_pass[kernel])
    # Slots are in the order of their first used launches, which is that of dispatch in a pass.
    # same [1 0 1 0], all used -> first_used [1 0], launch_of_slot [0 1], slot [0 1 0 1]
    first_used = group_least(same[is_used], np.flatnonzero(is_used), len(representative))
    launch_of_slot = distinct(first_used[same[is_used]])
    slot = np.where(is_used, np.searchsorted(launch_of_slot, first_used[same]), -1)
    labels = names(table["name"])
    uneven = tuple(sorted({labels[code] for code in name[~is_even[kernel]].tolist()}))
    return slot, launch_of_slot, uneven


def _values(
    table: pa.Table, slot: IntArray, count: int
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return the value of each used counter by slot, and its spread; `slot` is by row, or -1."""
    # Three passes read 90, 95 and 100 for a slot: its value is 95, its spread 0.1.
    counter, value = codes(table["counter"]), floats(table["value"])
    spellings_of: dict[str, list[int]] = {}
    labels = names(table["counter"])
    for code, label in enumerate(labels):
        plain = plain_counter(label)
        is_used = plain in counters_used() or tells_speed(plain)
        if is_used or (len(labels) <= FEW and _PLAIN.fullmatch(plain)):
            spellings_of.setdefault(plain, []).append(code)
    values, spread = {}, {}
    for name, spellings in spellings_of.items():
        rows = np.flatnonzero(np.isin(counter, spellings) & (slot >= 0))
        slots, samples = slot[rows], value[rows]
        times = np.bincount(slots, minlength=count)
        # A slot without samples, or with an impossible one, has no known value.
        is_possible = np.isfinite(samples) & (samples >= 0) & (samples <= LARGEST_EXACT)
        is_known: BoolArray = times > 0
        is_known[slots[~is_possible]] = False
        samples = np.where(is_possible, samples, 0.0)
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, slots, samples)
        np.maximum.at(high, slots, samples)
        sums = np.bincount(slots, weights=samples, minlength=count)
        # Equal samples are taken as they are: their mean might be rounded.
        means = np.where(low < high, sums / np.maximum(times, 1), high)
        values[name] = np.where(is_known, means, np.nan)
        has_size = is_known & (high > 0)
        spread[name] = np.where(has_size, (high - low) / np.where(high > 0, high, 1.0), 0.0)
    values = with_sums(values)
    no_spread = np.zeros(count)
    return values, {name: spread.get(name, no_spread) for name in values}


_Columns = tuple[IntArray, IntArray]
_Part = tuple[IntArray, IntArray, BoolArray]
"""Sizes of launches: products, sizes x y z, and whether x y z count or only the product."""


class Pair(Struct, frozen=True):
    """Codes of launches in two runs: equal codes mean the same key. All are below `count`."""

    ours: IntArray
    theirs: IntArray
    count: int


def joined(*columns: _Columns) -> Pair:
    """Return codes of the rows of two runs; each of `columns` is (our values, their values)."""
    group, first = group_rows([np.concatenate(both) for both in columns])
    our_count = len(columns[0][0])
    return Pair(group[:our_count], group[our_count:], len(first))


def keys_of(kernels: Pair, target: Launches, source: Launches) -> Pair:
    """Return a code per kernel and size of launches.

    1. If both runs have the sizes x y z of all launches of a kernel, each axis counts, else the
       product of the axes.
    2. Some tools write a grid in threads, others in blocks: 1024 threads here are 4 blocks of 256
       there. If a kernel has no common size when both grids are read as blocks, those of the other
       run are read as threads; if that gives no common size, ours are.
    3. If one run lacks a size of a kernel, only the kernel counts.
    """
    our_kernel, their_kernel = kernels.ours, kernels.theirs
    kernel = (our_kernel, their_kernel)
    has_axes = np.ones(kernels.count, dtype=np.bool_)
    for run, code in ((target, our_kernel), (source, their_kernel)):
        has_axes[code[((run.grid_axes < 0) | (run.block_axes < 0)).any(axis=1)]] = False
    we_have, they_have = has_axes[our_kernel], has_axes[their_kernel]
    # Codes of the threads of launches by both readings of their grids, and of their blocks.
    readings = [*_readings(target, we_have), *_readings(source, they_have)]
    ours, ours_in_threads, theirs, theirs_in_threads = _numbered(readings)
    our_block, their_block = _numbered(
        [(target.block, target.block_axes, we_have), (source.block, source.block_axes, they_have)]
    )
    # Read as blocks, each kernel may have a common size already.
    as_blocks = joined(kernel, (ours, theirs), (our_block, their_block))
    fits_as_blocks = _has_common_size(kernels, as_blocks)
    all_sized = ours.min(initial=0) >= 0 and theirs.min(initial=0) >= 0
    if all_sized and fits_as_blocks[our_kernel].all():
        return as_blocks
    # Else read the grids of one run as threads, for kernels that then have a common size.
    for our_reading, their_reading in ((ours_in_threads, theirs), (ours, theirs_in_threads)):
        keys = joined(kernel, (our_reading, their_reading), (our_block, their_block))
        is_better = _has_common_size(kernels, keys) & ~fits_as_blocks
        ours = np.where(is_better[our_kernel], our_reading, ours)
        theirs = np.where(is_better[their_kernel], their_reading, theirs)
    # Drop the sizes of kernels that lack one in either run.
    lacks_size = np.zeros(kernels.count, dtype=np.bool_)
    lacks_size[our_kernel[ours < 0]] = True
    lacks_size[their_kernel[theirs < 0]] = True
    we_lack, they_lack = lacks_size[our_kernel], lacks_size[their_kernel]
    ours, our_block = (np.where(we_lack, UNKNOWN_SIZE, s) for s in (ours, our_block))
    theirs, their_block = (np.where(they_lack, UNKNOWN_SIZE, s) for s in (theirs, their_block))
    return joined(kernel, (ours, theirs), (our_block, their_block))


def _readings(run: Launches, has_axes: BoolArray) -> tuple[_Part, _Part]:
    """Return the threads of launches if their grids are in blocks, and if they are in threads."""
    # A grid may be in threads if whole blocks fit into it, on each axis that is known.
    is_whole = (run.grid > 0) & (run.block > 0) & (run.grid % np.maximum(run.block, 1) == 0)
    is_complete = (run.grid_axes > 0).all(axis=1) & (run.block_axes > 0).all(axis=1)
    is_uneven = (run.grid_axes % np.maximum(run.block_axes, 1) != 0).any(axis=1)
    in_threads = np.where(is_whole & ~(is_complete & is_uneven), run.grid, UNKNOWN_SIZE)
    as_blocks = (run.threads, run.grid_axes * run.block_axes, has_axes)
    return as_blocks, (in_threads, run.grid_axes, has_axes)


def _numbered(parts: Sequence[_Part]) -> list[IntArray]:
    """Return numbers of the sizes of each part, equal for equal sizes; unknown: UNKNOWN_SIZE."""
    # Parts of the products [256 512] and [512 -1] get [1 2] and [2 UNKNOWN_SIZE].
    columns = []
    for axis in range(3):
        sides = [np.where(has_axes, axes[:, axis], product) for product, axes, has_axes in parts]
        columns.append(np.concatenate(sides))
    group, _ = group_rows(columns)
    ends = np.cumsum([len(product) for product, _, _ in parts])[:-1]
    split = zip(parts, np.split(group, ends), strict=True)
    return [np.where(product >= 0, number, UNKNOWN_SIZE) for (product, _, _), number in split]


def _has_common_size(kernels: Pair, keys: Pair) -> BoolArray:
    """Return, per kernel, whether both runs launch it in a common size (an equal key)."""
    is_common = np.zeros(kernels.count, dtype=np.bool_)
    is_common[kernels.ours[np.isin(keys.ours, keys.theirs)]] = True
    return is_common


# Which launch of another run is the same: by its order in the whole run, or in a step.


def in_order(
    target: Launches, source: Launches, process: IntArray, counted: Pair, keys: Pair
) -> IntArray:
    """Return, for the n-th launch of a kernel, the n-th of the other run, else -1.

    `process` is each launch's process in the other run. Launches are numbered by their code in
    `counted` (of kernels, or of kernels and sizes); `keys` are codes of kernels and sizes. Both
    processes must have equally many launches of a code, and n-th launches of the same size.
    """
    if not source.count:
        return np.full(target.count, -1, dtype=np.int64)
    # A group is a process there and a code; `group.ours` is that of our launches. Several processes
    # here may be the same one there, so our launches are numbered by `our_group`.
    group = joined((process, source.process), (counted.ours, counted.theirs))
    our_group, first = group_rows([target.process, counted.ours])
    our_count = np.bincount(our_group, minlength=len(first))
    their_count = np.bincount(group.theirs, minlength=group.count)
    # Sorted by group, the n-th launch of a group there is n places after the first.
    # groups there [1 0 1] -> their_order [1 0 2], begin [0 1]: launch 1 of group 1 is at place 2
    their_order = np.argsort(group.theirs, kind="stable")
    begin = np.cumsum(their_count) - their_count
    place = begin[group.ours] + rank_in_group(our_group)
    row = their_order[np.minimum(place, source.count - 1)]
    # All launches of a group must fit, else none is joined.
    differs = our_count[our_group] != their_count[group.ours]
    differs |= keys.theirs[row] != keys.ours
    return np.where(np.isin(our_group, our_group[differs]), -1, row)


def in_steps(target: Launches, work: LaunchWork, keys: Pair) -> IntArray:
    """Return, for the n-th launch of a key in a step, an n-th one of the other run, else -1.

    1. All steps of the other run must launch the key equally often, and as often as the step here.
    2. All n-th launches there must do the same work.
    3. If that run has one process and no steps, rounds count as steps: 2 launches per step here and
       6 there are 3 rounds. Rounds of one launch do not count, and all rounds must be whole.
    """
    source, in_step = work.launches, target.window >= 0
    chosen = in_step & target.used
    rows = np.flatnonzero((source.window >= 0) & source.used)
    # Of the other run, by key: the launches per step. By launch in `rows`: which it is (n).
    if len(rows):
        per_step, nth = _by_step(source.window[rows], keys.theirs[rows], keys.count)
    elif chosen.any() and len(distinct(source.process)) == 1 and not (source.window >= 0).any():
        per_step, _ = _by_step(target.window[chosen], keys.ours[chosen], keys.count)
        rows, divisor = np.arange(source.count), np.maximum(per_step, 1)
        nth = rank_in_group(keys.theirs) % divisor[keys.theirs]
        launched = np.bincount(keys.theirs, minlength=keys.count)
        is_whole = (per_step > 1) & (launched % divisor == 0)
        per_step = np.where(is_whole, per_step, 0)
    if not len(rows) or not in_step.any():
        return np.full(target.count, -1, dtype=np.int64)
    key, kind = keys.theirs[rows], work.kind[rows]
    key_in_step, first = group_rows([target.window, keys.ours])
    our_per_step = np.bincount(key_in_step, minlength=len(first))[key_in_step]
    key_and_nth = joined((keys.ours, key), (rank_in_group(key_in_step), nth))
    # A key is steady if all its n-th launches have the same known kind of work.
    most, least = extremes(key_and_nth.theirs, kind, key_and_nth.count)
    is_steady = per_step > 0
    has_other_work = (most != least)[key_and_nth.theirs]
    is_steady[key[has_other_work | (kind < 0)]] = False
    # The first launch of the other run with each key and n.
    launch = taken(rows, first_rows(key_and_nth.theirs, key_and_nth.count))
    fits = in_step & is_steady[keys.ours] & (our_per_step == per_step[keys.ours])
    return np.where(fits, launch[key_and_nth.ours], -1)


def _by_step(step: IntArray, key: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Return the launches of each key per step (0 if steps differ), and n of each n-th launch."""
    # Steps [0 0 1 1 1] launch the keys [0 0 0 0 1]: per step [2 1], n [0 1 0 1 0].
    group, first = group_rows([step, key])
    per_step = np.bincount(group, minlength=len(first))[group]
    most, least = extremes(key, per_step, count)
    return np.where(most == least, most, 0), rank_in_group(group)
