"""When the packets of a Perfetto trace were, on the clock of the machine; which events are a pair.

A sequence of packets may have clocks of its own, which count on from packet to packet.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.io import Lookup, fields, last_fields, signed
from traceflops.table import ABSENT, BoolArray, IntArray

IDS: Final = 1 << 32
"""More than there are ids in an era."""
_BOOT: Final = 6
"""The clock that counts from the start of the machine, which all others are led back to."""
_FIRST_OWN: Final = 64
_NUMBER, _TIME, _IS_STEP, _UNIT = 1, 2, 3, 4


class Clocks:
    """The clocks of a trace; those of a sequence by their era."""

    def __init__(self) -> None:
        self._own: dict[int, tuple[int, int, int]] = {}
        self._ahead: dict[int, int] = {_BOOT: 0}

    def add(self, era: int, snapshot: bytes) -> None:
        """Take what several clocks showed at the same time."""
        clocks = [numbers_in(part) for number, part in fields(snapshot) if number == 1]
        shown = {clock.get(_NUMBER, 0): clock for clock in clocks}
        builtin = [number for number in (*self._ahead, *shown) if number < _FIRST_OWN]
        base = next((number for number in builtin if number in shown), None)
        if base is None:
            return
        now = shown[base].get(_TIME, 0) + self._ahead.get(base, 0)
        for number, clock in shown.items():
            time, unit, is_step = (clock.get(*of) for of in ((_TIME, 0), (_UNIT, 1), (_IS_STEP, 0)))
            if _FIRST_OWN <= number < IDS:
                start = now if is_step else now - time * unit
                self._own.setdefault(era * IDS + number, (signed(start % 2**64), unit, is_step))
            elif number < _FIRST_OWN:
                self._ahead.setdefault(number, signed((now - time) % 2**64))

    def times(self, time: IntArray, clock: IntArray, era: IntArray) -> IntArray:
        """Return the times of packets in the order of the file; ABSENT where they are unknown."""
        time = time.copy()
        for number, ahead in self._ahead.items():
            time[(clock == number) & (time != ABSENT)] += ahead
        rows = np.flatnonzero((clock >= _FIRST_OWN) & (clock < IDS))
        keys = np.array([*self._own], np.int64)
        place = Lookup(keys, np.arange(len(keys)))(era[rows] * IDS + clock[rows])
        time[rows[place == ABSENT]] = ABSENT
        rows, place = rows[place != ABSENT], place[place != ABSENT]
        order = np.argsort(place, kind="stable")
        rows, place = rows[order], place[order]
        step = np.where(time[rows] == ABSENT, 0, time[rows])
        passed = np.cumsum(step)
        passed -= (passed - step)[np.searchsorted(place, place)]
        start, unit, is_step = np.array([*self._own.values()], np.int64).reshape(-1, 3)[place].T
        found = start + unit * np.where(is_step == 1, passed, step)
        time[rows] = np.where(time[rows] == ABSENT, ABSENT, found)
        return time


def numbers_in(data: object) -> dict[int, int]:
    """Return the fields of a message that are numbers."""
    said = last_fields(data) if isinstance(data, bytes) else {}
    return {number: signed(value) for number, value in said.items() if isinstance(value, int)}


def pairs(is_begin: BoolArray, whose: IntArray) -> tuple[IntArray, IntArray, int]:
    """Return which begins and ends are pairs, and how many ends have no begin.

    An end goes with the last begin before it that is still open, of those that are `whose`.
    """
    order = np.argsort(whose, kind="stable")
    begins, whose = is_begin[order], whose[order]
    step = np.where(begins, 1, -1)
    depth = np.cumsum(step)
    depth -= (depth - step)[np.searchsorted(whose, whose)]
    # An end that leads below the lowest depth so far has no begin: it does not count.
    apart = whose * (len(whose) + 1)
    lowest = np.minimum.accumulate(np.minimum(depth, 0) - apart) + apart
    before = np.append(0, lowest[:-1])[: len(lowest)]
    before[np.flatnonzero(np.diff(whose)) + 1] = 0
    alone = lowest < before
    level = depth - lowest + ~begins
    rows = np.flatnonzero(~alone)
    rows = rows[np.lexsort((level[rows], whose[rows]))]
    first, second = rows[:-1], rows[1:]
    fits = begins[first] & ~begins[second]
    fits &= (level[first] == level[second]) & (whose[first] == whose[second])
    return order[first[fits]], order[second[fits]], int(np.count_nonzero(alone))
