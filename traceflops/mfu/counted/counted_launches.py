"""Launches whose counters were read, one row each, the passes of a repeated run put together.

Hardware counts only so much at once, so a run is repeated with other counters. The n-th launch of
a kernel in one pass is that in another where all passes launch it equally often and in equal size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.devices.counter_formulas import counters_used, plain_counter, tells_speed, with_sums
from traceflops.mfu.counted.launches import Launches, rank_in_group
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

LARGEST_EXACT: Final = 2.0**53
"""From here on a counter as a double may not be the integer that was counted."""


@dataclass(frozen=True, slots=True)
class CountedLaunches:
    """Launches with their counters by plain name; NaN where one was not read, or is impossible.

    Where passes give several values of a counter, `values` has the mean, and `spread` by how much
    they differ, as a share of the largest. `device` is the row of the devices table, -1 for null.
    `correlation` is ABSENT where it is not known. `uneven` are the names of kernels that the
    passes do not launch equally often: of those one pass stands.
    """

    launches: Launches
    device: IntArray
    correlation: IntArray
    values: Mapping[str, FloatArray] = field(hash=False)
    spread: Mapping[str, FloatArray] = field(hash=False)
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
    """Return the place of each launch when passes are put together, and the launch at each place.

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
    place = np.searchsorted(places, lowest[together])
    place = np.where(fits, place, -1)
    labels = names(table["name"])
    uneven = tuple(sorted({labels[code] for code in name[~even[of_kernel]].tolist()}))
    return place, places, uneven


def _values(
    table: pa.Table, place: IntArray, count: int
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return the value of each counter that is used, by place, and its spread."""
    counter, value = codes(table["counter"]), floats(table["value"])
    wanted: dict[str, list[int]] = {}
    for code, label in enumerate(names(table["counter"])):
        if (plain := plain_counter(label)) in counters_used() or tells_speed(plain):
            wanted.setdefault(plain, []).append(code)
    values, spread = {}, {}
    for name, known in wanted.items():
        rows = np.flatnonzero(np.isin(counter, known) & (place >= 0))
        # The mean at each place, exact where all samples are one, and their spread.
        places, samples = place[rows], value[rows]
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
