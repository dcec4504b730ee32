"""How launches of kernels fill the GPU, and rule `small-grid`: most lanes have no thread."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod
from typing import Final, NamedTuple

import numpy as np

from traceflops.characters import kernel_name
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.occupancy import room
from traceflops.facts import Fact, Value, fact
from traceflops.findings.finding import Cause, short_name
from traceflops.findings.kernel_facts import PRODUCTS, KernelFacts, kernel_cause
from traceflops.table.columns import (
    BoolArray,
    IntArray,
    axes,
    codes,
    matching,
    names,
    numbers,
    product_of,
    take_rows,
)
from traceflops.table.grouping import group_rows
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import latest_end_before
from traceflops.windows.prepared import Prepared

_NEARLY_ALL: Final = 0.9
_WARP: Final = 32  # lanes of a warp if the device does not tell
_SCHEDULERS: Final = 4  # schedulers of a multiprocessor; each issues for one warp at a time


def small_grids(facts: KernelFacts) -> Iterator[Cause]:
    """Yield a cause of long kernels whose blocks leave most lanes of the GPU idle.

    Collectives leave room on purpose. Products have a rule of their own, and kernels beside others
    may fill the GPU together: for both only the idle lanes of their warps count.
    """
    limits = facts.case.finding_rules.limits("small-grid")
    activities, devices = facts.prepared.trace.activities, facts.prepared.trace.devices
    # Numbers per kernel; unknown ones are not positive.
    device = numbers(activities["device"])[facts.row]
    units, warp = numbers(devices["sm_count"])[device], numbers(devices["warp_size"], _WARP)[device]
    blocks, threads = (product_of(axes(activities[c]))[facts.row] for c in ("grid", "block"))
    warps = -(-np.maximum(threads, 1) // np.maximum(warp, 1))  # of a block
    # Three parts that are in use: lanes in warps, multiprocessors, schedulers; 1.0 if unknown
    is_known = (blocks > 0) & (threads > 0)
    lanes = np.where(is_known, threads / (warps * np.maximum(warp, 1)), 1.0)
    schedulers = _SCHEDULERS * np.maximum(units, 1)
    of_schedulers = np.where(is_known, blocks.astype(np.float64) * warps / schedulers, 1.0)
    of_units = np.minimum(np.minimum(blocks / np.maximum(units, 1), of_schedulers), 1.0)
    of_units = np.where((units > 0) & (blocks > 0), of_units, 1.0)
    is_alone = ~facts.is_sub(*PRODUCTS) & ~_overlaps(facts)
    filled = np.where(is_alone, of_units * lanes, lanes)
    communicates = is_top(facts.prepared.linked.categorised, "communication", facts.row)
    is_long = facts.ns >= limits["least_ns"]
    small = (filled <= limits["most_filled"]) & is_long & ~communicates
    if not small.any():
        return
    largest = int(np.argmax(np.where(small, facts.ns, 0)))
    of_name = facts.name == facts.name[largest]
    is_narrow = lanes[largest] <= limits["most_filled"]
    values: dict[str, Value] = {
        "name": short_name(names(activities["name"])[facts.name[largest]]),
        **_usual_blocks(blocks[small & of_name]),
        "threads": int(threads[largest]) if threads[largest] > 0 else None,
        "units": int(units[largest]) if units[largest] > 0 else None,
        "lanes": float(lanes[largest]) if is_narrow else None,
    }
    # Launches with many more blocks may take hardly longer: then latency limits them.
    own_blocks, own_ns = blocks[of_name & (blocks > 0)], facts.ns[of_name & (blocks > 0)]
    least, most = own_blocks.min(), own_blocks.max()
    least_ns, most_ns = (np.median(own_ns[own_blocks == size]) for size in (least, most))
    is_latency = most >= limits["more_blocks"] * least and most_ns <= limits["longer"] * least_ns
    # Facts that choose the remedy
    knows = {"narrow"} if is_narrow else set()
    knows |= {"serial"} if values["blocks"] == values["threads"] == 1 else set()
    knows |= {"latency"} if is_latency else set()
    yield from kernel_cause(
        facts, "small-grid", small, filled, knows=frozenset(knows), values=values
    )


def _usual_blocks(blocks: IntArray) -> dict[str, Value]:
    """Return the blocks that nearly all launches have, else the least, the most and the median."""
    sizes, launches = np.unique(blocks, return_counts=True)
    if launches.max() >= _NEARLY_ALL * len(blocks):
        return {"blocks": int(sizes[launches.argmax()])}
    median = int(np.median(blocks))
    return {"blocks": None, "least": int(sizes[0]), "most": int(sizes[-1]), "median": median}


def _overlaps(facts: KernelFacts) -> BoolArray:
    """Return which kernels run beside another one of their device for some time."""
    activities = facts.prepared.trace.activities
    device, start = (numbers(activities[name])[facts.row] for name in ("device", "start_ns"))
    end = start + numbers(activities["dur_ns"])[facts.row]
    is_beside = latest_end_before(device, start, end) > start
    # In reversed time, kernels "begin" at their end: this finds those that others begin beside.
    is_joined = latest_end_before(device, -end, -start) > -end
    return np.asarray(is_beside | is_joined)


_WHOLE_REGISTERS: Final = (7, 0)
"""From this compute capability on, no compiler option leaves blocks half of a multiprocessor."""
_SHAPE: Final = ["device", "grid", "block", "registers_per_thread", "shared_memory_bytes"]
_FEW_WAVES: Final = 2
"""A last wave is told after at most so many full waves: with more it takes a quarter or less."""
_FEW: Final = 0.5  # a larger part of the warps, or of the room for blocks, leaves little idle


_LARGE: Final = 512
"""Blocks of so many threads may be split into such as still have several warps."""
_REACHES: Final = 0.75  # a larger part of the multiprocessors with a block leaves few without


class LaunchShape(NamedTuple):
    """What all launches of a kernel have in common: blocks, room for them, and the last wave.

    A fact is None if launches differ, if it is unknown, or if little is idle. `limiters` say what
    limits the warps that run at once, `warps_share` is their share of the most possible.
    """

    blocks: Fact | None = None
    room: Fact | None = None
    last_wave: Fact | None = None
    limiters: tuple[str, ...] = ()
    warps_share: float = 1.0

    def told(self) -> dict[str, Value]:
        """Return the facts as values of texts."""
        return {"blocks": self.blocks, "room": self.room, "last_wave": self.last_wave}

    @property
    def spare(self) -> int | None:
        """Return how many multiprocessors get no block of a grid of large blocks, None if few.

        Small blocks, of products too, may leave room on purpose.
        """
        values = self.blocks.values if self.blocks is not None else {}
        blocks, units, threads = (values.get(name) for name in ("blocks", "units", "threads"))
        if not (isinstance(blocks, int) and isinstance(units, int) and isinstance(threads, int)):
            return None
        is_large = self.limiters == ("grid",) and threads >= _LARGE
        return units - blocks if is_large and blocks <= _REACHES * units else None

    @property
    def is_few(self) -> bool:
        """Return whether the blocks are known to reach at most half of the multiprocessors."""
        values = self.blocks.values if self.blocks is not None else {}
        blocks, units = values.get("blocks"), values.get("units")
        return isinstance(blocks, int) and isinstance(units, int) and blocks <= _FEW * units


def launch_shape(trace: Trace, name: str) -> LaunchShape:
    """Return what all launches of kernels of one name have in common."""
    is_own = matching(trace.activities["name"], lambda text: kernel_name(text) == name)
    own = take_rows(trace.activities.select(_SHAPE), np.flatnonzero(is_own))
    block = _only(axes(own["block"]))
    if block is None:
        return LaunchShape()
    # The maker, compute capability and multiprocessors of the devices, if all are of one kind
    threads, grid = prod(block), _only(axes(own["grid"]))
    used = np.intersect1d(numbers(own["device"]), np.arange(trace.devices.num_rows))
    devices = {SeenDevice.of(row) for row in take_rows(trace.devices, used).to_pylist()}
    kinds = {(device.maker(), device.compute, device.units) for device in devices}
    maker, compute, units = kinds.pop() if len(kinds) == 1 else (None, None, None)
    blocks, of_blocks = 0, None
    if grid is not None:
        blocks, sizes = prod(grid), tuple(size for size in grid if size > 1) or (1,)
        fewer = units if units and blocks < units else None
        of_blocks = fact("launch.blocks", sizes=sizes, blocks=blocks, threads=threads, units=fewer)
    # The blocks that a multiprocessor has room for; `room` only knows those of NVIDIA.
    registers, shared = (_only(numbers(own[column], -1)[:, np.newaxis]) for column in _SHAPE[-2:])
    fits = None
    if maker == "nvidia" and compute is not None:
        fits = room(compute, threads, *(size[0] if size else None for size in (registers, shared)))
    if fits is None or compute is None:
        return LaunchShape(of_blocks)
    if blocks and units and blocks < fits.blocks * units:  # the grid leaves more idle
        warps = blocks * fits.warps / fits.blocks / units
        of_grid = fact("launch.room-grid", warps=warps, all=fits.all)
        share = warps / fits.all
        return LaunchShape(of_blocks, of_grid if share <= _FEW else None, None, ("grid",), share)
    share, at_once = fits.warps / fits.all, fits.blocks * (units or 0)
    # Half of the warps is few only if large blocks are the reason.
    is_few = share < _FEW or (share == _FEW and "blocks" in fits.limiters)
    of_room = fact("launch.room", warps=fits.warps, all=fits.all, limiters=fits.limiters)
    # A last wave is told only if registers alone can limit blocks, and are known.
    is_exact = registers is not None and shared == (0,) and compute >= _WHOLE_REGISTERS
    waves, last = divmod(blocks, at_once) if is_exact and at_once else (0, 0)
    is_told = 0 < waves <= _FEW_WAVES and 0 < last <= _FEW * at_once
    wave = fact("launch.last-wave", at_once=at_once, last=last) if is_told else None
    # A grid that just fits has no blocks that anything could limit.
    limiters = () if units and blocks == at_once else fits.limiters
    return LaunchShape(of_blocks, of_room if is_few else None, wave, limiters, share)


def few_blocks(trace: Trace, name: str) -> Fact | None:
    """Return the most blocks of a kernel's smallest launches that have half of its time or more.

    Also the share of its time in launches of so few. None if there are more than half as many
    blocks as multiprocessors, or if that is unknown.
    """
    blocks, ns, units = _launches_by_blocks(trace, {name})
    if not len(blocks):
        return None
    most = int(blocks[np.searchsorted(2 * np.cumsum(ns), ns.sum())])
    share = int(ns[blocks <= most].sum()) / int(ns.sum())
    few = fact("launch.few-blocks", share=share, blocks=most, units=units)
    return few if most <= _FEW * units else None


def full_grids(trace: Trace, kernels: Collection[str], many: float) -> Fact | None:
    """Return the fewest blocks of these kernels' launches, small ones of a tenth of the time apart.

    None if that is less than `many` times the multiprocessors, or unknown. From there on, a larger
    grid saves no more than a part of the last wave.
    """
    blocks, ns, units = _launches_by_blocks(trace, kernels)
    if not len(blocks):
        return None
    fewest = int(blocks[::-1][np.searchsorted(np.cumsum(ns[::-1]), _NEARLY_ALL * ns.sum())])
    return fact("launch.full", blocks=fewest, units=units) if fewest >= many * units else None


def _launches_by_blocks(trace: Trace, kernels: Collection[str]) -> tuple[IntArray, IntArray, int]:
    """Return blocks and ns of launches of kernels, the smallest first, and the multiprocessors.

    The arrays are empty if blocks, time or multiprocessors are unknown.
    """
    activities = trace.activities
    rows = np.flatnonzero(matching(activities["name"], kernels.__contains__))
    blocks, ns = product_of(axes(activities["grid"]))[rows], numbers(activities["dur_ns"])[rows]
    units = _only(numbers(trace.devices["sm_count"], -1)[:, np.newaxis])
    if not (units and units[0] and ns.any()) or (blocks < 1).any():
        return rows[:0], rows[:0], 0
    order = np.argsort(blocks, kind="stable")
    return blocks[order], ns[order], units[0]


def _only(rows: IntArray) -> tuple[int, ...] | None:
    """Return the row that all rows are; None if they differ, are unknown (negative) or missing."""
    are_same = len(rows) > 0 and bool((rows == rows[0]).all() and (rows[0] >= 0).all())
    return tuple(rows[0].tolist()) if are_same else None


def identical_launches(prepared: Prepared, row: IntArray) -> tuple[IntArray, BoolArray]:
    """Return, per activity of `row`, a number that identical launches share, and if it is sure.

    Identical launches have the same kernel, device, grid, block and shapes of inputs. Without
    shapes only a grid larger than the GPU tells the size of the work: the grid of a persistent
    kernel just fills the GPU, for work of any size.
    """
    table, op = prepared.trace.activities, prepared.linked.links.op_of_activity[row]
    shape = taken(codes(prepared.trace.ops["input_dims"]), op)
    grid, block = (axes(table[name])[row] for name in ("grid", "block"))
    device = numbers(table["device"])[row]
    units = numbers(prepared.trace.devices["sm_count"])[device]
    is_larger = (units > 0) & (product_of(grid) > units)
    group, _ = group_rows((codes(table["name"])[row], *grid.T, *block.T, shape, device))
    return group, (shape >= 0) | is_larger
