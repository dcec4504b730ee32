"""Whose work it is that does not say so: that of the only process that can have made it.

Exports of some versions leave the process of copies and fills empty. Processes that only call, as
a launcher that asks how many GPUs there are, made none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceflops.parsers.shared.trace_builder import Gathered
from traceflops.table.columns import IntArray
from traceflops.table.grouping import distinct, joint_codes

_TABLES: Final = ("activities", "marks", "counters")


def adopted(
    gathered: Gathered, nobody: int | None, ordinals: Mapping[tuple[int, int], int]
) -> dict[int, int]:
    """Return the process of the devices that rows of no process have, where it can be but one.

    The rows become rows of that process. `ordinals` are the devices by process and by the number
    that the process has for them; `nobody` stands for the process of rows that do not name it.
    """
    if nobody is None:
        return {}
    users = _users(gathered, nobody)
    by_ordinal: dict[int, set[int]] = {}
    workers: set[int] = set()
    for (process, ordinal), local in ordinals.items():
        if process != nobody and local in users.get(process, ()):
            workers.add(process)
            by_ordinal.setdefault(ordinal, set()).add(process)
    found = {}
    for (process, ordinal), local in ordinals.items():
        can_be = by_ordinal.get(ordinal) or workers
        if process == nobody and len(can_be) == 1:
            found[local] = next(iter(can_be))
    _rewrite(gathered, nobody, found)
    return found


def _users(gathered: Gathered, nobody: int) -> dict[int, set[int]]:
    """Return the devices on which each process did work."""
    found: dict[int, set[int]] = {}
    for count, piece in gathered["activities"].pieces:
        process, device = (np.broadcast_to(piece[name], count) for name in ("process", "device"))
        named = np.flatnonzero(process != nobody)
        _, first = np.unique(joint_codes(process[named], device[named]), return_index=True)
        one = named[first]
        for user, used in zip(process[one].tolist(), device[one].tolist(), strict=True):
            found.setdefault(user, set()).add(used)
    return found


def _rewrite(gathered: Gathered, nobody: int, found: Mapping[int, int]) -> None:
    for name in _TABLES if found else ():
        for count, piece in gathered[name].pieces:
            if "device" not in piece:
                continue
            process = np.array(np.broadcast_to(piece["process"], count))
            device = np.broadcast_to(piece["device"], count)
            mine: IntArray = np.flatnonzero(process == nobody)
            for local in distinct(device[mine]).tolist() if len(mine) else ():
                if local in found:
                    process[mine[device[mine] == local]] = found[local]
            if len(mine):
                piece["process"] = process
