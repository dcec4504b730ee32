"""The bytes that ops and copies moved, and over what.

A copy's own record says how many bytes it moved. Between host and device they cross the host link
once; within a device they are read and written, so its memory moves them twice. The shapes of an
op that launched nothing but copies and fills count operands on both sides, so the records win.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from traceflops.attribution import Attribution
from traceflops.flops import UNKNOWN
from traceflops.mfu.traced.uncounted import vector_ops
from traceflops.table import BoolArray, IntArray, SmallArray, codes, names, numbers, taken
from traceflops.windows import Prepared

Path = Literal["memory", "host", "peer"]
"""What bytes move over: the device's memory, the link to the host, or one to another device."""

PATHS: Final[tuple[Path, ...]] = ("memory", "host", "peer")

_WAYS: Final[dict[str, tuple[Path, int]]] = {
    "HtoD": ("host", 1),
    "DtoH": ("host", 1),
    "DtoD": ("memory", 2),
    "PtoP": ("peer", 1),
    "migration HtoD": ("host", 1),
    "migration DtoH": ("host", 1),
    "migration DtoD": ("peer", 1),
}
"""By the direction of a copy: its path, and how often each byte moves over it."""

_KINDS: Final = ("memcpy", "memset")
_NONE: Final = -2
"""The code of no kind."""

_MOST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """What each op and each activity moved, UNKNOWN where nothing says.

    `unit` is, per activity, the executed op it worked for, else one that moves known bytes, -1 for
    none. `is_copy` tells copies and fills; `size` are their bytes, by their records alone, and
    `path` places in PATHS, memory for all else. `op_size` and `op_path` are the same per op; the
    path of an op that copies over several is UNKNOWN. `recorded` tells the copies whose records
    count, and not the shapes of an op.
    """

    attribution: Attribution
    unit: IntArray
    is_copy: BoolArray
    recorded: BoolArray
    size: IntArray
    path: SmallArray
    op_size: IntArray
    op_path: SmallArray


def moved_bytes(prepared: Prepared, attribution: Attribution) -> MovedBytes:
    """Return the bytes that the ops and copies of a prepared trace moved."""
    unit = _units(prepared, attribution)
    is_copy, size, path = _copies(prepared)
    op_size = attribution.work.of_ops(attribution.work.min_bytes).copy()
    has_op = unit >= 0
    every, copied = (
        np.bincount(unit[rows], minlength=len(op_size)) for rows in (has_op, has_op & is_copy)
    )
    only_copies: BoolArray = (every > 0) & (every == copied)
    mine = is_copy & (taken(only_copies.view(np.int8), unit, missing=0) > 0)
    op_path = _common(unit[mine], path[mine], len(op_size))
    told, least = np.zeros_like(op_size), np.full_like(op_size, _MOST)
    np.add.at(told, unit[mine], np.maximum(size[mine], 0))
    np.minimum.at(least, unit[mine], size[mine])
    # Within a device shapes say the same as records; over a link they count both sides.
    by_records = only_copies & ((op_path != PATHS.index("memory")) | (least != UNKNOWN))
    op_size[by_records] = np.where(least == UNKNOWN, UNKNOWN, told)[by_records]
    recorded = is_copy & (taken(by_records.view(np.int8), unit, missing=1) > 0)
    return MovedBytes(attribution, unit, is_copy, recorded, size, path, op_size, op_path)


def common_paths(group: IntArray, path: SmallArray, count: int) -> list[Path | None]:
    """Return the path that all of each group take, None for several and where one is unknown."""
    return [PATHS[one] if one != UNKNOWN else None for one in _common(group, path, count).tolist()]


def _common(group: IntArray, path: SmallArray, count: int) -> SmallArray:
    """Return the path that all of each group take, UNKNOWN for several; memory for none."""
    least, most = np.full(count, len(PATHS), dtype=np.int8), np.full(count, -1, dtype=np.int8)
    np.minimum.at(least, group, path)
    np.maximum.at(most, group, path)
    found: SmallArray = np.where(least == most, least, UNKNOWN).astype(np.int8)
    found[most < least] = PATHS.index("memory")
    return found


def _units(prepared: Prepared, attribution: Attribution) -> IntArray:
    """Return, per activity, the executed op it worked for; else one that moves known bytes."""
    moving = vector_ops(prepared, attribution)
    moving &= attribution.work.of_ops(attribution.work.min_bytes) > 0
    around = taken(attribution.tree.nearest(moving), attribution.op)
    return np.where(attribution.owner >= 0, attribution.owner, around)


def _copies(prepared: Prepared) -> tuple[BoolArray, IntArray, SmallArray]:
    """Return which activities are copies or fills, their bytes and their paths."""
    activities = prepared.trace.activities
    kind, kinds = codes(activities["kind"]), names(activities["kind"])
    copy, fill = (kind == (kinds.index(one) if one in kinds else _NONE) for one in _KINDS)
    way, ways = codes(activities["direction"]), names(activities["direction"])
    known = [_WAYS.get(one, (None, 0)) for one in ways]
    times = taken(np.array([often for _, often in known], dtype=np.int64), way, missing=0)
    over = [UNKNOWN if one is None else PATHS.index(one) for one, _ in known]
    path = taken(np.array(over, dtype=np.int8), way)
    times[fill] = 1
    size = numbers(activities["bytes"], UNKNOWN)
    told = (copy | fill) & (times > 0) & (size >= 0)
    paths: SmallArray = np.where(copy, path, PATHS.index("memory")).astype(np.int8)
    return copy | fill, np.where(told, size * times, UNKNOWN), paths
