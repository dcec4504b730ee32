"""Whose steps a device has that several processes used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.devices.processes import called, whose
from traceflops.table.columns import BoolArray, IntArray
from traceflops.table.grouping import ranked
from traceflops.table.trace import Note, Trace
from traceflops.units.words import percent, several

_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Owners:
    """The process whose steps a device has, and the device time of it and of the `others`.

    `others` are how many other processes worked there. Times of work that overlaps count each.
    """

    owner: int
    own_ns: int
    total_ns: int
    others: int


def owners_of(
    process: IntArray, dur_ns: IntArray, in_step: BoolArray, first: int, marking: Collection[int]
) -> Owners:
    """Return whose steps a device has: those that hold most of its device time.

    `process` did each of its activities, which are `in_step` where it launched them in one of its
    own; `first` is the process that the device is listed for, `marking` are those with steps.
    """
    users, place = ranked(process)
    total, held = (np.zeros(len(users), dtype=np.int64) for _ in range(2))
    np.add.at(total, place, dur_ns)
    np.add.at(held, place, np.where(in_step, dur_ns, 0))
    known = [at for at, user in enumerate(users.tolist()) if user in marking]
    if known:
        best = max(known, key=lambda at: (held[at], users[at] == first, -at))
        owner = int(users[best])
        own_ns = int(total[best])
    else:
        owner, own_ns = first, 0
    return Owners(owner, own_ns, int(total.sum()), len(users) - 1 if known else 0)


def shared_steps_note(trace: Trace, shared: Mapping[int, Owners]) -> Note:
    """Return whose steps the devices have on which several processes worked."""
    listed = []
    for device, one in list(shared.items())[:_MOST_NAMED]:
        others = (one.total_ns - one.own_ns) / one.total_ns if one.total_ns else 0.0
        owner = whose(trace, one.owner)
        listed.append(f"{called(trace, device)} {owner} (others {percent(others)})")
    more = "; …" if len(shared) > _MOST_NAMED else ""
    text = (
        f"{several(len(shared), 'GPU')} ran work of several processes. Steps are those of the "
        f"process whose steps hold the most GPU time: {'; '.join(listed)}{more}. Work of other "
        "processes counts in the step during which it ran."
    )
    return Note("assumed", "steps-of-one-process", text, len(shared))
