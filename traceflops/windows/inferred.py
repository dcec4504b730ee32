"""Steps that no marker names: the periods of every device as stretches of its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from traceflops.table.columns import names
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.windows.periodicity import SOURCES, DeviceOrder, Periods
from traceflops.windows.repetition import Order
from traceflops.windows.stretches import Stretch


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
    orders = {device: _order(linked, account) for device, account in accounts.items()}
    for source, find in SOURCES.items():
        periods = _of_all(orders, find)
        if periods:
            stretches = {d: _stretches(accounts[d], one) for d, one in periods.items()}
            return InferredSteps(stretches, source, next(iter(periods.values())).text)
    return None


def _of_all(
    orders: Mapping[int, DeviceOrder], find: Callable[[DeviceOrder], Periods | None]
) -> dict[int, Periods] | None:
    """Return the periods of every device, None where one has none."""
    found: dict[int, Periods] = {}
    for device, order in orders.items():
        periods = find(order)
        if periods is None:
            return None
        found[device] = periods
    return found


def _order(linked: LinkedTrace, account: DeviceAccount) -> DeviceOrder:
    columns, rows = linked.columns, account.rows.row
    subs = [category.sub for category in linked.categorised.categories]
    optimizer = [place for place, sub in enumerate(subs) if sub == "optimizer"]
    directions = names(linked.trace.activities["direction"])
    host = [d for d, name in enumerate(directions) if name in ("HtoD", "DtoH")]
    return DeviceOrder(
        Order(
            columns.name[rows],
            account.rows.start_ns,
            account.rows.end_ns,
            linked.links.call_of_activity[rows],
        ),
        np.isin(linked.categorised.category[rows], optimizer),
        np.isin(columns.direction[rows], host),
    )


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
