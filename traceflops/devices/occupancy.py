"""Occupancy: how many blocks of a launch fit on a multiprocessor of NVIDIA's GPUs at once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct, toml

from traceflops.devices.device_facts import dotted

_WARP: Final = 32


class Room(NamedTuple):
    """The most blocks of a launch, and their warps, that run on a multiprocessor at once.

    `all` is the most warps of any launch. `limiters` are the resources that allow no more blocks.
    """

    blocks: int
    warps: int
    all: int
    limiters: tuple[str, ...]


class _Limits(NamedTuple):
    """A row of occupancy.toml: what a multiprocessor has, with its registers in `partitions`."""

    warps: int
    blocks: int
    registers: int
    shared_kib: int
    partitions: int
    shared_unit_bytes: int
    reserved_bytes: int


def room(
    compute: tuple[int, int], threads: int, registers: int | None, shared_bytes: int | None
) -> Room | None:
    """Return how many blocks of `threads` threads fit on a multiprocessor, None if unknown.

    Also None if no block would fit: the launch ran, so some number must be wrong. `registers` are
    per thread, `shared_bytes` per block; an unknown one (None) limits nothing, so the result is an
    upper bound. Shared memory is assumed to have its largest share of L1.
    """
    limits = _table().limits.get(dotted(compute))
    if limits is None or threads < 1:
        return None
    warps = _rounded_up(threads, _WARP) // _WARP
    fits = {"warps": limits.warps // warps, "blocks": limits.blocks}
    # Registers and shared memory are allocated in whole units.
    if registers:
        per_warp = _rounded_up(registers * _WARP, _table().register_unit)
        # A warp has all its registers in one partition.
        warps_per_partition = limits.registers // limits.partitions // per_warp
        fits["registers"] = warps_per_partition * limits.partitions // warps
    if shared_bytes:
        per_block = _rounded_up(shared_bytes + limits.reserved_bytes, limits.shared_unit_bytes)
        fits["shared memory"] = limits.shared_kib * 1024 // per_block
    blocks = min(fits.values())
    limiters = tuple(name for name, most in fits.items() if most == blocks)
    return Room(blocks, blocks * warps, limits.warps, limiters) if blocks > 0 else None


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class _Table(Struct, frozen=True):
    """All of occupancy.toml: limits by compute capability, the unit of a warp's registers."""

    limits: dict[str, _Limits]
    register_unit: int


@cache
def _table() -> _Table:
    path = Path(__file__).with_name("occupancy.toml")
    return toml.decode(path.read_bytes(), type=_Table)
