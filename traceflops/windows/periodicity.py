"""Steps of a trace without markers, from what repeats on the device.

Three things mark an iteration of a user's loop and not, say, a layer of the model: the optimizer's
kernels, which run once at the end of a training step; a copy between host and device, which brings
a batch in or a result out; and a round of kernels that holds rounds of its own (see `repetition`).
A repetition counts only if it is regular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import numpy as np

from traceflops.table import BoolArray, IntArray, names
from traceflops.timeline import DeviceAccount, LinkedTrace
from traceflops.windows.repetition import (
    FEWEST_ACTIVITIES,
    FEWEST_ROUNDS,
    REGULAR_SHARE,
    TOLERANCE,
    Order,
    repeated_signature,
)
from traceflops.windows.stretches import Stretch


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """The activities of one device in the order of their starts, and which of them are special."""

    order: Order
    is_optimizer: BoolArray
    is_host_copy: BoolArray


@dataclass(frozen=True, slots=True)
class Periods:
    """Periods as boundaries: period i is the activities [boundary[i], boundary[i+1]).

    The last boundary may be the number of activities. `text` says in words what they were seen by.
    """

    boundary: IntArray
    text: str


def _by_optimizer(device: DeviceOrder) -> Periods | None:
    ends = _clusters(device.is_optimizer)[1] + 1
    boundary = ends[ends < len(device.order)]
    if not _is_regular(boundary, device.order.name, by_names=False):
        return None
    return Periods(boundary, "repetition on the GPU: each ends with its optimizer kernels")


def _by_copies(device: DeviceOrder) -> Periods | None:
    boundary = _clusters(device.is_host_copy)[0]
    if not _is_regular(boundary, device.order.name, by_names=True):
        return None
    text = "repetition on the GPU: each step begins with a copy between CPU and GPU"
    return Periods(boundary, text)


def _by_signature(device: DeviceOrder) -> Periods | None:
    rounds = repeated_signature(device.order)
    if rounds is None:
        return None
    return Periods(
        rounds.place,
        f"repetition on the GPU: each step is one round, typically {rounds.length:,} GPU "
        "operations",
    )


SOURCES: Final[Mapping[str, Callable[[DeviceOrder], Periods | None]]] = {
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
    splits = np.flatnonzero(apart * 2 >= max(int(apart.max()), FEWEST_ACTIVITIES))
    return places[np.append(0, splits + 1)], places[np.append(splits, len(places) - 1)]


def _is_regular(boundary: IntArray, name: IntArray, by_names: bool) -> bool:
    if len(boundary) <= FEWEST_ROUNDS:
        return False
    counts = np.diff(boundary)
    usual = float(np.median(counts))
    if usual < FEWEST_ACTIVITIES:
        return False
    alike = np.abs(counts - usual) <= TOLERANCE * usual
    if by_names:
        alike &= _same_names(boundary, name)
    return bool(alike.mean() >= REGULAR_SHARE)


def _same_names(boundary: IntArray, name: IntArray) -> BoolArray:
    """Return which periods hold the same multiset of names as the most frequent one.

    Multisets are compared by the sum of a pseudo-random number per name.
    """
    weights = np.random.default_rng(0).integers(1, 2**40, int(name.max()) + 1)
    sums = np.add.reduceat(weights[name], boundary)[:-1]
    _, inverse, counts = np.unique(sums, return_inverse=True, return_counts=True)
    return np.asarray(inverse == np.argmax(counts))


@dataclass(frozen=True, slots=True)
class InferredSteps:
    """The stretches of each device, what they were found by, and that in words."""

    stretches: Mapping[int, list[Stretch]]
    source: str
    text: str


def inferred_steps(
    linked: LinkedTrace, accounts: Mapping[int, DeviceAccount]
) -> InferredSteps | None:
    """Return the steps by the surest thing that repeats on every device; None without any."""
    orders = [_order(linked, account) for account in accounts.values()]
    for source, find in SOURCES.items():
        periods = [one for one in takewhile(bool, map(find, orders)) if one is not None]
        if periods and len(periods) == len(orders):
            pairs = zip(accounts.items(), periods, strict=True)
            stretches = {device: _stretches(account, one) for (device, account), one in pairs}
            return InferredSteps(stretches, source, periods[0].text)
    return None


def _order(linked: LinkedTrace, account: DeviceAccount) -> DeviceOrder:
    mine, rows = account.rows, account.rows.row
    call = linked.links.call_of_activity[rows]
    order = Order(linked.columns.name[rows], mine.start_ns, mine.end_ns, call)
    categories = enumerate(linked.categorised.categories)
    optimizer = [place for place, category in categories if category.sub == "optimizer"]
    is_optimizer = np.isin(linked.categorised.category[rows], optimizer)
    directions = enumerate(names(linked.trace.activities["direction"]))
    copies = [code for code, direction in directions if direction in ("HtoD", "DtoH")]
    return DeviceOrder(order, is_optimizer, np.isin(linked.columns.direction[rows], copies))


def _stretches(account: DeviceAccount, periods: Periods) -> list[Stretch]:
    """Return the periods as steps; what lies before and after them completes the span."""
    low, high = account.rows.span
    starts = np.append(account.rows.start_ns, high)[periods.boundary]
    steps = [
        Stretch("step", place, int(start), int(end), int(count))
        for place, (start, end, count) in enumerate(
            zip(starts[:-1], starts[1:], np.diff(periods.boundary), strict=True)
        )
    ]
    before = [Stretch("before", None, low, int(starts[0]), None)] if starts[0] > low else []
    after = [Stretch("after", None, int(starts[-1]), high, None)] if high > starts[-1] else []
    return [*before, *steps, *after]
