"""Rule `small-grid`: kernels whose blocks leave most lanes of the GPU without a thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from traceflops.findings.case import limit
from traceflops.findings.finding import short_name
from traceflops.findings.kernel_facts import PRODUCTS, KernelFacts, kernel_cause
from traceflops.table.columns import (
    BoolArray,
    FloatArray,
    IntArray,
    axes,
    names,
    numbers,
    product_of,
)
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import latest_end_before

if TYPE_CHECKING:
    from traceflops.facts import Value
    from traceflops.findings.finding import Cause

_WARP: Final = 32
"""Lanes of a warp where the device does not tell."""
_SCHEDULERS: Final = 4
"""Of a multiprocessor: so many warps run at once."""


def small_grids(facts: KernelFacts) -> Iterator[Cause]:
    """Yield a cause of long kernels whose blocks leave most lanes of the GPU idle.

    Products have a rule of their own, collectives leave room on purpose, and kernels that run
    beside others may fill the GPU together: of these only what their warps leave idle counts.
    """
    grids = _grids(facts)
    most, shortest = (limit(facts.case, "small-grid", name) for name in ("most_filled", "least_ns"))
    is_alone = ~facts.is_sub(*PRODUCTS) & ~_overlaps(facts)
    filled = np.where(is_alone, grids.filled * grids.lanes, grids.lanes)
    small = (filled <= most) & (facts.ns >= shortest)
    small &= ~is_top(facts.prepared.linked.categorised, "communication", facts.row)
    if not small.any():
        return
    largest = int(np.argmax(np.where(small, facts.ns, 0)))
    name = names(facts.prepared.trace.activities["name"])[facts.name[largest]]
    threads, units = int(grids.threads[largest]), int(grids.units[largest])
    is_narrow = grids.lanes[largest] <= most
    values: dict[str, Value] = {
        "name": short_name(name),
        "blocks": int(grids.blocks[largest]),
        "threads": threads if threads > 0 else None,
        "units": units if units > 0 else None,
        "lanes": float(grids.lanes[largest]) if is_narrow else None,
    }
    knows = {"narrow"} if is_narrow else set()
    knows |= {"serial"} if values["blocks"] == values["threads"] == 1 else set()
    knows |= {"latency"} if _is_latency(facts, grids, facts.name[largest]) else set()
    yield from kernel_cause(
        facts, "small-grid", small, filled, knows=frozenset(knows), values=values
    )


class _Grids(NamedTuple):
    """Blocks of each kernel, threads of one, and multiprocessors of its device; -1 for unknown.

    `lanes` is the part of the lanes of its warps that have a thread, `filled` the part of the
    multiprocessors that have a block, or of their schedulers that have a warp; 1 where unknown.
    """

    blocks: IntArray
    threads: IntArray
    units: IntArray
    lanes: FloatArray
    filled: FloatArray


def _grids(facts: KernelFacts) -> _Grids:
    """Return blocks, threads and warps of the launches of kernels, per kernel."""
    activities, devices = facts.prepared.trace.activities, facts.prepared.trace.devices
    device = numbers(activities["device"])[facts.row]
    units, warp = numbers(devices["sm_count"])[device], numbers(devices["warp_size"], _WARP)[device]
    blocks = product_of(axes(activities["grid"]))[facts.row]
    threads = product_of(axes(activities["block"]))[facts.row]
    warps = -(-np.maximum(threads, 1) // np.maximum(warp, 1))
    is_known = (blocks > 0) & (threads > 0)
    lanes = np.where(is_known, threads / (warps * np.maximum(warp, 1)), 1.0)
    schedulers = _SCHEDULERS * np.maximum(units, 1)
    of_warps = np.where(is_known, blocks.astype(np.float64) * warps / schedulers, 1.0)
    filled = np.minimum(blocks / np.maximum(units, 1), of_warps)
    filled = np.where((units > 0) & (blocks > 0), np.minimum(filled, 1.0), 1.0)
    return _Grids(blocks, threads, units, lanes, filled)


def _is_latency(facts: KernelFacts, grids: _Grids, name: int) -> bool:
    """Return whether launches of a kernel with most blocks take as long as those with fewest."""
    own = (facts.name == name) & (grids.blocks > 0)
    blocks, ns = grids.blocks[own], facts.ns[own]
    least, most = blocks.min(), blocks.max()
    times = np.median(ns[blocks == least]), np.median(ns[blocks == most])
    more, longer = (limit(facts.case, "small-grid", each) for each in ("more_blocks", "longer"))
    return bool(most >= more * least and times[1] <= longer * times[0])


def _overlaps(facts: KernelFacts) -> BoolArray:
    """Return which kernels run beside another one of their device for some time."""
    activities = facts.prepared.trace.activities
    device, start = (numbers(activities[name])[facts.row] for name in ("device", "start_ns"))
    end = start + numbers(activities["dur_ns"])[facts.row]
    is_beside = latest_end_before(device, start, end) > start
    later = latest_end_before(device, -end, -start) > -end
    return np.asarray(is_beside | later)
