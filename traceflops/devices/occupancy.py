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
    """A row of occupancy.toml."""

    warps: int
    blocks: int
    registers: int
    shared_kib: int
    parts: int
    shared_unit: int
    besides: int


def room(
    compute: tuple[int, int], threads: int, registers: int | None, shared_bytes: int | None
) -> Room | None:
    """Return how many blocks of `threads` threads fit on a multiprocessor, None if unknown.

    Also None if no block would fit: the launch ran, so some number must be wrong. `registers` are
    per thread, `shared_bytes` per block; an unknown one (None) limits nothing, so the result is an
    upper bound. Shared memory is assumed to have its largest share of L1.
    """
    table = _table()
    row, register_unit = table.limits.get(dotted(compute)), table.register_unit
    if row is None or threads < 1:
        return None
    warps = -(-threads // _WARP)
    fits = {"warps": row.warps // warps, "blocks": row.blocks}
    # Registers and shared memory are allocated in whole units: sizes are rounded up.
    if registers:  # each part of a multiprocessor has registers for whole warps
        per_warp = -(-registers * _WARP // register_unit) * register_unit
        fits["registers"] = row.registers // row.parts // per_warp * row.parts // warps
    if shared_bytes:
        per_block = -(-(shared_bytes + row.besides) // row.shared_unit) * row.shared_unit
        fits["shared memory"] = row.shared_kib * 1024 // per_block
    blocks = min(fits.values())
    limiters = tuple(name for name, most in fits.items() if most == blocks)
    return Room(blocks, blocks * warps, row.warps, limiters) if blocks > 0 else None


class _Table(Struct, frozen=True):
    """All of occupancy.toml: limits by compute capability, the unit of a warp's registers."""

    limits: dict[str, _Limits]
    register_unit: int


@cache
def _table() -> _Table:
    path = Path(__file__).with_name("occupancy.toml")
    return toml.decode(path.read_bytes(), type=_Table)
