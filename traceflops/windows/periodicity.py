"""Steps of a trace without markers, from what repeats on the device.

Three things mark an iteration of a user's loop and not, say, a layer of the model: the optimizer's
kernels, which run once at the end of a training step; a copy between host and device, which brings
a batch in or a result out; and a round of kernels that holds rounds of its own (see `repetition`).
A repetition counts only if it is regular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from typing import Final

import numpy as np

from traceflops.table import BoolArray, IntArray, names
from traceflops.timeline import DeviceAccount, DeviceRows, LinkedTrace
from traceflops.windows.repetition import (
    FEWEST_ACTIVITIES,
    FEWEST_ROUNDS,
    REGULAR_SHARE,
    TOLERANCE,
    Order,
    contents,
    repeated_signature,
)
from traceflops.windows.stretches import Stretch, with_rest

_Periods = tuple[IntArray, str]
"""Boundaries, and in words what they were seen by: period i is [boundary[i], boundary[i+1]).

The last boundary may be the number of activities.
"""


def _by_optimizer(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    categories = enumerate(linked.categorised.categories)
    optimizer = [place for place, category in categories if category.sub == "optimizer"]
    ends = _clusters(np.isin(linked.categorised.category[rows.row], optimizer))[1] + 1
    boundary = ends[ends < len(rows.row)]
    if _alike(boundary).mean() < REGULAR_SHARE:
        return None
    return boundary, "repetition on the GPU: each ends with its optimizer kernels"


def _by_copies(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    directions = enumerate(names(linked.trace.activities["direction"]))
    copies = [code for code, direction in directions if direction in ("HtoD", "DtoH")]
    boundary = _clusters(np.isin(linked.columns.direction[rows.row], copies))[0]
    alike = _alike(boundary)
    if not alike.any():
        return None
    content = contents(linked.columns.name[rows.row], boundary)
    _, kind, counts = np.unique(content, return_inverse=True, return_counts=True)
    alike &= kind == np.argmax(counts)
    text = "repetition on the GPU: each step begins with a copy between CPU and GPU"
    return (boundary, text) if alike.mean() >= REGULAR_SHARE else None


def _by_signature(linked: LinkedTrace, rows: DeviceRows) -> _Periods | None:
    name, call = linked.columns.name[rows.row], linked.links.call_of_activity[rows.row]
    rounds = repeated_signature(Order(name, rows.start_ns, rows.end_ns, call))
    if rounds is None:
        return None
    usual = f"{rounds.length:,} GPU operations"
    return rounds.place, f"repetition on the GPU: each step is one round, typically {usual}"


SOURCES: Final[Mapping[str, Callable[[LinkedTrace, DeviceRows], _Periods | None]]] = {
    "optimizer": _by_optimizer,
    "copies": _by_copies,
    "signature": _by_signature,
}
"""What finds the periods of one device, the surest first."""


def _clusters(which: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the first and last place of each run of marked activities.

    Activities belong to one run unless at least half as many others lie between them as between
    the two that are farthest apart.
    """
    places = np.flatnonzero(which)
    if len(places) < 2:
        return places, places
    apart = np.diff(places)
    splits = apart * 2 >= max(int(apart.max()), FEWEST_ACTIVITIES)
    return places[np.append(True, splits)], places[np.append(splits, True)]


def _alike(boundary: IntArray) -> BoolArray:
    """Return which periods have about as many activities as most; of too few or short ones none."""
    counts = np.diff(boundary)
    usual = float(np.median(counts)) if len(counts) >= FEWEST_ROUNDS else 0.0
    if usual < FEWEST_ACTIVITIES:
        return np.zeros(1, dtype=np.bool_)
    return np.abs(counts - usual) <= TOLERANCE * usual


def inferred_steps(
    linked: LinkedTrace, accounts: Mapping[int, DeviceAccount]
) -> tuple[dict[int, list[Stretch]], str, str] | None:
    """Return the steps of each device, what they were found by, and that in words.

    It is the surest thing that repeats on every device; None without any.
    """
    rows = [account.rows for account in accounts.values()]
    for source, find in SOURCES.items():
        periods = [one for one in takewhile(bool, map(partial(find, linked), rows)) if one]
        if periods and len(periods) == len(rows):
            stretches = map(_stretches, rows, periods)
            return dict(zip(accounts, stretches, strict=True)), source, periods[0][1]
    return None


def _stretches(rows: DeviceRows, periods: _Periods) -> list[Stretch]:
    """Return the periods as steps; what lies before and after them completes the span."""
    boundary, _ = periods
    starts = np.append(rows.start_ns, rows.span[1])[boundary]
    counts = np.diff(boundary)
    return with_rest(rows.span, np.arange(len(counts)), starts[:-1], starts[1:], counts)
