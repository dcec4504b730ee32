"""Which call asked for which work, by the arrows that rocprof (v1) draws between them.

Its JSON has no ids of calls. An arrow leads from the middle of a call, or from the beginning of the
work if that was sooner, to the beginning of the work; both in whole microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.table import ABSENT, Array, BoolArray, IntArray, joint_codes

Columns = Mapping[str, Array]

_ASKING: Final = re.compile(
    "Launch|Memcpy|Memset|WaitEvent|Synchronize|Stream(?:Wait|Write)Value|async_copy"
)
"""Calls from which arrows lead."""

_PLACE: Final = ("section", "lane", "shown_us")
_NONE: Final = -1
_SPREAD: Final = 1 << 32
"""More than the distinct times of one file: lanes lie so far apart."""


@dataclass(frozen=True, slots=True)
class V1Links:
    """The row of the call that asked for each piece of work or -1; how many arrows lead nowhere."""

    call: IntArray
    loose: int


def links(
    begins: Columns, ends: Columns, work: Columns, calls: Columns, names: Sequence[str]
) -> V1Links:
    """Return what asked for each piece of work; `names` are the names of the calls, by code.

    Where several arrows meet in one microsecond, the first leads to what comes first. If these are
    not as many as what they could lead to, they lead to nothing.
    """
    start, end = _paired(begins["id"], ends["id"])
    origin = {name: begins[name][start] for name in _PLACE}
    goal = {name: ends[name][end] for name in _PLACE}
    to = _in_order(goal, origin["shown_us"], work)
    may_ask = np.array([_ASKING.search(name) is not None for name in names], dtype=np.bool_)
    asking = np.flatnonzero(may_ask[calls["name"]])
    chosen = {name: calls[name][asking] for name in (*_PLACE, "start", "end")}
    took_us = (chosen["end"] - chosen["start"]) // 1000
    middle = chosen | {"shown_us": chosen["shown_us"] + took_us // 2}
    source = _in_order(origin, goal["shown_us"], middle)
    if len(asking):
        early = (source == _NONE) & (origin["shown_us"] == goal["shown_us"])
        to_come = _not_yet_in_the_middle(_at(origin, early), chosen, took_us, source)
        source[early] = to_come
        other = source == _NONE
        source[other] = _around(_at(origin, other), chosen, took_us)
    known = (to != _NONE) & (source != _NONE)
    call = np.full(len(work["start"]), _NONE, dtype=np.int64)
    call[to[known]] = asking[source[known]]
    return V1Links(call, int(np.count_nonzero(~known)))


def _paired(begins: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows of beginnings and ends of arrows with one id; ids used twice are left out."""
    sides = []
    for ids in (begins, ends):
        distinct, row, count = np.unique(ids, return_index=True, return_counts=True)
        once = (count == 1) & (distinct != ABSENT)
        sides.append((distinct[once], row[once]))
    (first, first_row), (last, last_row) = sides
    _, mine, theirs = np.intersect1d(first, last, assume_unique=True, return_indices=True)
    return first_row[mine], last_row[theirs]


def _in_order(arrows: Columns, order: Array, targets: Columns) -> IntArray:
    """Return the row of the target of each arrow: same place and time, and the same rank there."""
    count = len(order)
    lanes = _codes(*(np.append(arrows[name], targets[name]) for name in _PLACE[:2]))
    keys = _codes(lanes, np.append(arrows["shown_us"], targets["shown_us"]))
    mine, theirs = keys[:count], keys[count:]
    size = int(keys.max(initial=0)) + 1
    fits = np.bincount(mine, minlength=size) == np.bincount(theirs, minlength=size)
    by_arrow = np.lexsort((order, mine))
    by_target = np.lexsort((targets["start"], theirs))
    found = np.full(count, _NONE, dtype=np.int64)
    found[by_arrow[fits[mine[by_arrow]]]] = by_target[fits[theirs[by_target]]]
    return found


def _not_yet_in_the_middle(
    arrows: Columns, calls: Columns, took_us: IntArray, taken: IntArray
) -> IntArray:
    """Return, for arrows that begin with their work, the call whose middle was still to come.

    Of a call before, such an arrow would begin in the middle. If that call is yet to begin, the
    clocks of host and device disagree; then it is told only if no other arrow leads from it.
    """
    middle = calls["shown_us"] + took_us // 2
    here, there, order = _places(arrows, calls, middle)
    after = np.searchsorted(there[order], here)
    known = after < len(order)
    found = np.where(known, order[np.minimum(after, len(order) - 1)], 0)
    known &= there[found] // _SPREAD == here // _SPREAD
    often = np.bincount(np.append(found[known], taken[taken != _NONE]), minlength=len(order))
    runs = calls["shown_us"][found] <= arrows["shown_us"]
    return np.where(known & (runs | (often[found] == 1)), found, _NONE)


def _around(arrows: Columns, calls: Columns, took_us: IntArray) -> IntArray:
    """Return the latest call of the same lane that runs where each arrow begins."""
    here, there, order = _places(arrows, calls, calls["shown_us"])
    before = np.searchsorted(there[order], here, side="right") - 1
    found = order[np.maximum(before, 0)]
    runs = (before >= 0) & (there[found] // _SPREAD == here // _SPREAD)
    runs &= arrows["shown_us"] <= calls["shown_us"][found] + took_us[found]
    return np.where(runs, found, _NONE)


def _places(
    arrows: Columns, calls: Columns, at_us: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return where arrows begin and calls are, lane by lane in order of time, and that order."""
    count = len(arrows["lane"])
    lanes = _codes(*(np.append(arrows[name], calls[name]) for name in _PLACE[:2]))
    _, times = np.unique(np.append(arrows["shown_us"], at_us), return_inverse=True)
    places = lanes * _SPREAD + times
    return places[:count], places[count:], np.lexsort((calls["start"], places[count:]))


def _at(columns: Columns, rows: BoolArray) -> Columns:
    """Return some rows of columns."""
    return {name: column[rows] for name, column in columns.items()}


def _codes(first: IntArray, second: IntArray) -> IntArray:
    """Return one small number per distinct pair."""
    _, place = np.unique(first, return_inverse=True)
    _, codes = np.unique(joint_codes(place, second), return_inverse=True)
    return codes
