"""How many blocks of a launch a multiprocessor of NVIDIA's GPUs has room for at once."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from traceflops.devices.device_facts import dotted

_WARP: Final = 32


class Room(NamedTuple):
    """How many blocks of a launch, and warps of these, run on a multiprocessor at once at most.

    `all` is its room for warps of any launch. `limiters` are what leaves room for no more blocks:
    registers, shared memory, warps, blocks.
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
    """Return how many blocks of so many threads a multiprocessor has room for, None if unknown.

    Also None if no block would fit: it ran, so what is known of it or of the device is wrong.
    `registers` are those of a thread, `shared_bytes` are of a block. If one is None it limits
    nothing, so there may be room for less. Shared memory is taken to have its largest share of L1.
    """
    limits, register_unit = _document()
    row = limits.get(dotted(compute))
    if row is None or threads < 1:
        return None
    warps = -(-threads // _WARP)
    fits = {"warps": row.warps // warps, "blocks": row.blocks}
    # Registers and shared memory are given in whole units: sizes are rounded up.
    if registers:  # each part of a multiprocessor has registers for whole warps
        of_warp = -(-registers * _WARP // register_unit) * register_unit
        fits["registers"] = row.registers // row.parts // of_warp * row.parts // warps
    if shared_bytes:
        of_block = -(-(shared_bytes + row.besides) // row.shared_unit) * row.shared_unit
        fits["shared memory"] = row.shared_kib * 1024 // of_block
    blocks = min(fits.values())
    limiters = tuple(name for name, most in fits.items() if most == blocks)
    return Room(blocks, blocks * warps, row.warps, limiters) if blocks > 0 else None


@cache
def _document() -> tuple[dict[str, _Limits], int]:
    """Return the limits by compute capability, and the unit in which a warp gets registers."""
    text = files(__package__).joinpath("occupancy.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return {name: _Limits(*row) for name, row in table["limits"].items()}, table["register_unit"]
