"""Sizes of launches in pages of Nsight Compute."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from traceflops.table import ABSENT, BoolArray, IntArray, TableBuilder, joint_codes

_SIZES: Final = re.compile(r"\d{1,10}")
_UNKNOWN: Final = (ABSENT,) * 3


def product(text: str) -> int:
    """Return the product of sizes such as (224, 1, 1); -1 where there are none."""
    sizes = [int(one) for one in _SIZES.findall(text[:100])]
    found = 1
    for size in sizes:
        found *= size
    return found if sizes and len(sizes) <= 3 and 0 < found < 2**62 else -1


def triple(text: str) -> tuple[int, int, int]:
    """Return sizes by axis; ABSENT where there are not three."""
    sizes = [int(one) for one in _SIZES.findall(text[:100])]
    if len(sizes) != 3 or not all(0 < size < 2**31 for size in sizes):
        return _UNKNOWN
    return sizes[0], sizes[1], sizes[2]


_GRIDS: Final = ("Launch Statistics|Grid Size|", "launch__grid_size")
_BLOCKS: Final = ("Launch Statistics|Block Size|", "launch__block_size")


def fill_sizes(table: TableBuilder) -> None:
    """Fill in the sizes of launches that stand among the counters only, as in old pages."""
    threads = table.column("threads")
    lacking = threads == ABSENT
    if not lacking.any():
        return
    launch = joint_codes(table.column("process"), table.column("dispatch"))
    launch = np.unique(launch, return_inverse=True)[1].reshape(-1)
    grid, block = (_of_launch(table, launch, names) for names in (_GRIDS, _BLOCKS))
    known = lacking & (grid > 0) & (block > 0)
    table.replace("threads", np.where(known, grid * block, threads))
    own = table.column("block_threads")
    table.replace("block_threads", np.where((own == ABSENT) & (block > 0), block, own))


def _of_launch(table: TableBuilder, launch: IntArray, wanted: Iterable[str]) -> IntArray:
    """Return, per row, the value of a counter of its launch; 0 where it has none."""
    names = table.names["counter"]
    codes = [code for name, code in names.items() if name.startswith(tuple(wanted))]
    rows: BoolArray = np.isin(table.column("counter"), codes)
    found = np.zeros(int(launch.max(initial=0)) + 1)
    value = table.column("value")
    usable = rows & (value > 0) & (value < 2**31)
    found[launch[usable]] = value[usable]
    return found[launch].astype(np.int64)
