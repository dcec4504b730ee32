"""The clocks of a Perfetto trace, which convert the times of packets to ns since boot.

The numbers below are those of Perfetto's .proto files. An era is a part of the packets of one
writer, until it clears its state; it may define clocks of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.io.database_query import Lookup
from traceflops.parsers.io.messages import fields, last_fields, signed
from traceflops.table.columns import ABSENT, IntArray

IDS: Final = 1 << 32
"""All ids are smaller than this: `era * IDS + id` is a unique key for an id of an era."""
_BOOT_CLOCK: Final = 6
"""The clock that counts from the start of the machine; all others are converted to it."""
_FIRST_OWN_CLOCK: Final = 64  # the smallest number of a clock that belongs to a sequence
_CLOCK_NUMBER, _CLOCK_TIME, _CLOCK_COUNTS_ON, _CLOCK_UNIT = 1, 2, 3, 4


class Clocks:
    """The clocks of a trace: builtin ones, and clocks of a sequence, each valid for one era."""

    def __init__(self) -> None:
        # By `era * IDS + number`: time 0 (ns since boot), unit (ns), 1 if times are differences.
        self._own: dict[int, tuple[int, int, int]] = {}
        # By number of a builtin clock: the ns to add to its time.
        self._ahead: dict[int, int] = {_BOOT_CLOCK: 0}

    def add(self, era: int, snapshot: bytes) -> None:
        """Take a snapshot: the times that several clocks showed at the same moment.

        A snapshot without a builtin clock is dropped. The first snapshot of each clock counts.
        """
        # Field 1 of a snapshot is a clock.
        clocks = [numbers_in(part) for number, part in fields(snapshot) if number == 1]
        shown = {clock.get(_CLOCK_NUMBER, 0): clock for clock in clocks}
        # The moment comes from a clock whose offset is known, else from any builtin clock.
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
        """Return the time of each packet, in file order, in ns since boot, ABSENT if unknown."""
        boot_ns = time.copy()
        for number, ahead in self._ahead.items():
            boot_ns[(clock == number) & (time != ABSENT)] += ahead

        # Packets with clocks of a sequence; `own` is the index of the clock in `_own`.
        rows = np.flatnonzero((clock >= _FIRST_OWN_CLOCK) & (clock < IDS))
        keys = np.array([*self._own], np.int64)
        own = Lookup(keys, np.arange(len(keys)))(era[rows] * IDS + clock[rows])
        boot_ns[rows[own == ABSENT]] = ABSENT
        rows, own = rows[own != ABSENT], own[own != ABSENT]

        # Sorted by clock, one cumulative sum adds up the steps of every clock that counts on.
        order = np.argsort(own, kind="stable")
        rows, own = rows[order], own[order]
        step = np.where(time[rows] == ABSENT, 0, time[rows])
        passed = np.cumsum(step)
        passed -= (passed - step)[np.searchsorted(own, own)]  # minus the sum of earlier clocks
        start, unit, counts_on = np.array([*self._own.values()], np.int64).reshape(-1, 3)[own].T
        own_ns = start + unit * np.where(counts_on == 1, passed, step)
        boot_ns[rows] = np.where(time[rows] == ABSENT, ABSENT, own_ns)
        return boot_ns


def numbers_in(data: object) -> dict[int, int]:
    """Return the numeric fields of a message by field number, {} if `data` is not bytes."""
    parts = last_fields(data) if isinstance(data, bytes) else {}
    return {number: signed(value) for number, value in parts.items() if isinstance(value, int)}
