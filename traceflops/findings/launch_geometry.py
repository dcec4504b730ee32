"""How launches of kernels fill the GPU, and rule `small-grid`: most lanes have no thread."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod
from typing import Final, NamedTuple

import numpy as np

from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.occupancy import Room, room
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import limit
from traceflops.findings.finding import Cause, short_name
from traceflops.findings.kernel_facts import PRODUCTS, KernelFacts, kernel_cause
from traceflops.table.columns import (
    BoolArray,
    FloatArray,
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
_WARP: Final = 32
"""Lanes of a warp if the device does not tell."""
_SCHEDULERS: Final = 4
"""Per multiprocessor, each of which runs one warp at a time."""


def small_grids(facts: KernelFacts) -> Iterator[Cause]:
    """Yield a cause of long kernels whose blocks leave most lanes of the GPU idle.

    Collectives leave room on purpose. Products have a rule of their own, and kernels beside others
    may fill the GPU together: of these only idle lanes of warps count.
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
        **_usual_blocks(grids.blocks[small & (facts.name == facts.name[largest])]),
        "threads": threads if threads > 0 else None,
        "units": units if units > 0 else None,
        "lanes": float(grids.lanes[largest]) if is_narrow else None,
    }
    # Facts that choose the remedy
    knows = {"narrow"} if is_narrow else set()
    knows |= {"serial"} if values["blocks"] == values["threads"] == 1 else set()
    knows |= {"latency"} if _is_latency(facts, grids, facts.name[largest]) else set()
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


class _Grids(NamedTuple):
    """Per kernel: blocks, threads of a block, multiprocessors of its device; unknown is negative.

    `lanes` is the part of the lanes of its warps that have a thread. `filled` is the smaller of two
    parts: of multiprocessors with a block, and of their schedulers with a warp. Unknown is 1.
    """

    blocks: IntArray
    threads: IntArray
    units: IntArray
    lanes: FloatArray
    filled: FloatArray


def _grids(facts: KernelFacts) -> _Grids:
    """Return blocks, threads and what they fill, per kernel; unknown counts as full (1.0)."""
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
    """Return whether launches of a name (its code) with many more blocks take hardly longer."""
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
    # With time reversed: another one begins before the end of this one, and not before it.
    later = latest_end_before(device, -end, -start) > -end
    return np.asarray(is_beside | later)


_WHOLE_REGISTERS: Final = (7, 0)
"""From here on no option of the compiler leaves blocks half of a multiprocessor."""
_SHAPE: Final = ["device", "grid", "block", "registers_per_thread", "shared_memory_bytes"]
_FEW_WAVES: Final = 2
"""Most full waves before a last wave that is told: with more it takes a quarter or less."""
_FEW: Final = 0.5
"""More than this part of the warps, or of the room for blocks, leaves little idle."""


class LaunchShape(NamedTuple):
    """What all launches of a kernel have in common: blocks, room for them, and the last wave.

    A fact is None if launches differ, if it is unknown, or if it leaves little idle. `limiters`
    say what limits the warps at once, `warps_share` how many there are of the most possible.
    """

    blocks: Fact | None = None
    room: Fact | None = None
    last_wave: Fact | None = None
    limiters: tuple[str, ...] = ()
    warps_share: float = 1.0

    def told(self) -> dict[str, Value]:
        """Return what texts say of it."""
        return {"blocks": self.blocks, "room": self.room, "last_wave": self.last_wave}

    @property
    def is_few(self) -> bool:
        """Return whether there are known to be blocks for at most half of the multiprocessors."""
        values = self.blocks.values if self.blocks is not None else {}
        blocks, units = values.get("blocks"), values.get("units")
        return isinstance(blocks, int) and isinstance(units, int) and blocks <= _FEW * units


def launch_shape(trace: Trace, name: str) -> LaunchShape:
    """Return what all launches of kernels of one name have in common."""
    rows = np.flatnonzero(matching(trace.activities["name"], name.__eq__))
    own = take_rows(trace.activities.select(_SHAPE), rows)
    block = _only(axes(own["block"]))
    if block is None:
        return LaunchShape()
    threads, grid = prod(block), _only(axes(own["grid"]))
    used = np.intersect1d(numbers(own["device"]), np.arange(trace.devices.num_rows))
    devices = {SeenDevice.of(row) for row in take_rows(trace.devices, used).to_pylist()}
    kinds = {(device.maker(), device.compute, device.units) for device in devices}
    maker, compute, units = kinds.pop() if len(kinds) == 1 else (None, None, None)
    blocks = prod(grid) if grid is not None else 0  # 0: unknown
    of_blocks = _blocks(grid, threads, units) if grid is not None else None
    registers, shared = (
        _only(numbers(own[column], -1)[:, np.newaxis])
        for column in ("registers_per_thread", "shared_memory_bytes")
    )
    if maker != "nvidia" or compute is None:  # `room` knows NVIDIA's multiprocessors
        return LaunchShape(of_blocks)
    fits = room(
        compute, threads, registers[0] if registers else None, shared[0] if shared else None
    )
    if fits is None:
        return LaunchShape(of_blocks)
    if blocks and units and blocks < fits.blocks * units:  # the grid leaves more idle
        warps = blocks * fits.warps / fits.blocks / units
        of_grid = fact("launch.room-grid", warps=warps, all=fits.all)
        share = warps / fits.all
        return LaunchShape(of_blocks, of_grid if share <= _FEW else None, None, ("grid",), share)
    # A last wave is told only where nothing but registers can limit blocks, and these are known.
    is_exact = registers is not None and shared == (0,) and compute >= _WHOLE_REGISTERS
    last_wave = _last_wave(fits, blocks, units) if is_exact and units else None
    is_one = units and blocks == fits.blocks * units  # the grid leaves no more either
    limiters = () if is_one else fits.limiters
    return LaunchShape(of_blocks, _room(fits), last_wave, limiters, fits.warps / fits.all)


def _blocks(grid: tuple[int, ...], threads: int, units: int | None) -> Fact:
    """Return the blocks of a launch, and the number of multiprocessors if blocks are fewer."""
    blocks, sizes = prod(grid), tuple(size for size in grid if size > 1) or (1,)
    more = units if units and blocks < units else None
    return fact("launch.blocks", sizes=sizes, blocks=blocks, threads=threads, units=more)


def few_blocks(trace: Trace, name: str) -> Fact | None:
    """Return the most blocks of the smallest launches that take half of the time of one name.

    None if that is more than half of the multiprocessors, or unknown.
    """
    activities = trace.activities
    rows = np.flatnonzero(matching(activities["name"], name.__eq__))
    blocks, ns = product_of(axes(activities["grid"]))[rows], numbers(activities["dur_ns"])[rows]
    units = _only(numbers(trace.devices["sm_count"], -1)[:, np.newaxis])
    if units is None or not ns.sum() or (blocks < 1).any():
        return None
    order = np.argsort(blocks, kind="stable")
    most = blocks[order][np.searchsorted(2 * np.cumsum(ns[order]), ns.sum())]
    if most > _FEW * units[0]:
        return None
    return fact("launch.few-blocks", blocks=int(most), units=units[0])


def full_grids(trace: Trace, kernels: Collection[str], many: float) -> Fact | None:
    """Return the fewest blocks of launches of these kernels, all but those of a tenth of the time.

    None if that is less than `many` times the multiprocessors, or unknown: a larger grid saves at
    most the part of a last wave.
    """
    activities = trace.activities
    rows = np.flatnonzero(matching(activities["name"], kernels.__contains__))
    blocks, ns = product_of(axes(activities["grid"]))[rows], numbers(activities["dur_ns"])[rows]
    units = _only(numbers(trace.devices["sm_count"], -1)[:, np.newaxis])
    if not (units and units[0] and ns.any()) or (blocks < 1).any():
        return None
    order = np.argsort(-blocks, kind="stable")
    fewest = blocks[order][np.searchsorted(np.cumsum(ns[order]), _NEARLY_ALL * ns.sum())]
    if fewest < many * units[0]:
        return None
    return fact("launch.full", blocks=int(fewest), units=units[0])


def _only(rows: IntArray) -> tuple[int, ...] | None:
    """Return the row that all rows are; None if they differ, are unknown (negative) or missing."""
    known = len(rows) > 0 and bool((rows == rows[0]).all() and (rows[0] >= 0).all())
    return tuple(rows[0].tolist()) if known else None


def _room(fits: Room) -> Fact | None:
    """Return for how few warps there is room, None where they are many: half, of large blocks."""
    share = fits.warps / fits.all
    if share > _FEW or (share == _FEW and "blocks" not in fits.limiters):
        return None
    return fact("launch.room", warps=fits.warps, all=fits.all, limiters=fits.limiters)


def _last_wave(fits: Room, blocks: int, units: int) -> Fact | None:
    """Return how few blocks run in the last wave; None if they are many, or after many waves."""
    at_once = fits.blocks * units
    waves, last = divmod(blocks, at_once)  # blocks are 0 if unknown: no waves
    if not 0 < waves <= _FEW_WAVES or not 0 < last <= _FEW * at_once:
        return None
    return fact("launch.last-wave", at_once=at_once, last=last)


def identical_launches(prepared: Prepared, row: IntArray) -> tuple[IntArray, BoolArray]:
    """Return, per activity of `row`, a number that identical launches share, and whether they are.

    They have the same kernel, device, grid, block and shapes of inputs. Without shapes only a grid
    larger than the GPU tells the size of the work: persistent kernels have a grid that just fills
    it, for any size.
    """
    table, op = prepared.trace.activities, prepared.linked.links.op_of_activity[row]
    shape = taken(codes(prepared.trace.ops["input_dims"]), op)
    grid, block = (axes(table[name])[row] for name in ("grid", "block"))
    device = numbers(table["device"])[row]
    units = numbers(prepared.trace.devices["sm_count"])[device]
    is_larger = (units > 0) & (product_of(grid) > units)
    group, _ = group_rows((codes(table["name"])[row], *grid.T, *block.T, shape, device))
    return group, (shape >= 0) | is_larger
