"""The clocks of a Perfetto trace, by which the times of packets become ns since boot."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.io.database_query import Lookup
from traceflops.parsers.io.messages import fields, last_fields, signed
from traceflops.table.columns import ABSENT, IntArray

IDS: Final = 1 << 32
"""Ids in an era are smaller; `era * IDS + id` is a key for an id of an era."""
_BOOT_CLOCK: Final = 6
"""The clock that counts from the start of the machine; all others are converted to it."""
_FIRST_OWN_CLOCK: Final = 64  # the smallest number of a clock that belongs to a sequence
_CLOCK_NUMBER, _CLOCK_TIME, _CLOCK_COUNTS_ON, _CLOCK_UNIT = 1, 2, 3, 4


class Clocks:
    """The clocks of a trace. A sequence may have clocks of its own, each valid for one era.

    `_own` has, by era and number, their start in ns since boot, unit in ns, and whether times count
    from the packet before. `_ahead` is how many ns boot time is ahead of each builtin clock.
    """

    def __init__(self) -> None:
        self._own: dict[int, tuple[int, int, int]] = {}
        self._ahead: dict[int, int] = {_BOOT_CLOCK: 0}

    def add(self, era: int, snapshot: bytes) -> None:
        """Take a snapshot: what several clocks showed at the same time.

        It is dropped if none of them is a builtin clock. The first snapshot of a clock counts.
        """
        # Field 1 of a snapshot is a clock.
        clocks = [numbers_in(part) for number, part in fields(snapshot) if number == 1]
        shown = {clock.get(_CLOCK_NUMBER, 0): clock for clock in clocks}
        # A clock whose offset is known comes first, then any builtin one.
        builtin = [number for number in (*self._ahead, *shown) if number < _FIRST_OWN_CLOCK]
        base = next((number for number in builtin if number in shown), None)
        if base is None:
            return
        now = shown[base].get(_CLOCK_TIME, 0) + self._ahead.get(base, 0)
        for number, clock in shown.items():
            time, unit = clock.get(_CLOCK_TIME, 0), clock.get(_CLOCK_UNIT, 1)
            counts_on = clock.get(_CLOCK_COUNTS_ON, 0)
            if _FIRST_OWN_CLOCK <= number < IDS:
                start = signed((now if counts_on else now - time * unit) % 2**64)
                self._own.setdefault(era * IDS + number, (start, unit, counts_on))
            elif number < _FIRST_OWN_CLOCK:
                self._ahead.setdefault(number, signed((now - time) % 2**64))

    def times(self, time: IntArray, clock: IntArray, era: IntArray) -> IntArray:
        """Return packets' times in ns since boot, ABSENT if unknown; packets are in file order."""
        time = time.copy()
        for number, ahead in self._ahead.items():
            time[(clock == number) & (time != ABSENT)] += ahead
        rows = np.flatnonzero((clock >= _FIRST_OWN_CLOCK) & (clock < IDS))
        keys = np.array([*self._own], np.int64)
        own = Lookup(keys, np.arange(len(keys)))(era[rows] * IDS + clock[rows])
        time[rows[own == ABSENT]] = ABSENT
        rows, own = rows[own != ABSENT], own[own != ABSENT]
        # Packets clock by clock, so that clocks that count on are a sum of steps for each clock.
        order = np.argsort(own, kind="stable")
        rows, own = rows[order], own[order]
        step = np.where(time[rows] == ABSENT, 0, time[rows])
        passed = np.cumsum(step)
        passed -= (passed - step)[np.searchsorted(own, own)]  # without the clocks before
        start, unit, counts_on = np.array([*self._own.values()], np.int64).reshape(-1, 3)[own].T
        own_time = start + unit * np.where(counts_on == 1, passed, step)
        time[rows] = np.where(time[rows] == ABSENT, ABSENT, own_time)
        return time


def numbers_in(data: object) -> dict[int, int]:
    """Return the fields of a message that are numbers; none if `data` is no message."""
    parts = last_fields(data) if isinstance(data, bytes) else {}
    return {number: signed(value) for number, value in parts.items() if isinstance(value, int)}
