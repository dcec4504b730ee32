"""Of which kernel most of a component is: its time in which nothing that comes before it ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from traceflops.table.columns import IntArray, codes, names
from traceflops.timeline.intervals import Intervals
from traceflops.units.words import kernel_name
from traceflops.windows.chosen import chosen_time

if TYPE_CHECKING:
    from traceflops.timeline.account import DeviceAccount
    from traceflops.windows.prepared import Prepared

_Pieces = dict[str, dict[int, IntArray]]
"""Places of activities in the rows of a device, by name and device."""


def most_exposed(
    prepared: Prepared, component: str, wanted: Collection[str]
) -> tuple[str, int] | None:
    """Return the kernel with most time of a component in the chosen windows, and that time.

    It is time of the devices: of a kernel that runs twice at once it counts once. Only kernels
    `wanted` are looked at; None where none of them has any.
    """
    alone = {
        device: account.timeline.parts[component].intersect(chosen_time(prepared.windows[device]))
        for device, account in prepared.accounts.items()
    }
    pieces: _Pieces = defaultdict(dict)
    most: defaultdict[str, int] = defaultdict(int)
    for device, account in prepared.accounts.items():
        for name, places in _by_name(prepared, account, component, wanted):
            pieces[name][device] = places
            rows = account.rows
            inside = alone[device].length_within(rows.start_ns[places], rows.end_ns[places])
            most[name] += int(inside.sum())
    # A sum counts overlaps twice, so it is the most there can be: once it is less, so are others.
    best: tuple[str, int] | None = None
    for name in sorted(most, key=lambda one: (-most[one], one)):
        if most[name] <= (best[1] if best is not None else 0):
            break
        ns = sum(
            _union(prepared.accounts[device], places).intersect(alone[device]).length_ns
            for device, places in pieces[name].items()
        )
        if best is None or ns > best[1]:
            best = (name, ns)
    return best


def _by_name(
    prepared: Prepared, account: DeviceAccount, component: str, wanted: Collection[str]
) -> list[tuple[str, IntArray]]:
    """Return the wanted activities of a category of one device by their names."""
    linked = prepared.linked
    tops = np.array([top == component for top in linked.categorised.top()], dtype=np.bool_)
    labels = names(linked.trace.activities["name"])
    code = codes(linked.trace.activities["name"])[account.rows.row]
    mine = np.flatnonzero(tops[linked.categorised.category[account.rows.row]])
    if not len(mine):
        return []
    places: defaultdict[str, list[IntArray]] = defaultdict(list)
    order = mine[np.argsort(code[mine], kind="stable")]
    found, first = np.unique(code[order], return_index=True)
    for one, part in zip(found.tolist(), np.split(order, first[1:]), strict=True):
        name = kernel_name(labels[one]) if one >= 0 else ""
        if name in wanted:
            places[name].append(part)
    return [(name, np.concatenate(parts)) for name, parts in places.items()]


def _union(account: DeviceAccount, places: IntArray) -> Intervals:
    return Intervals.of(account.rows.start_ns[places], account.rows.end_ns[places])
