"""How far the host is ahead of the device: the lead of each launch, and whether it is enough.

The lead of a launch is the time from the start of its call to the start of its first activity. A
launch is starved where all earlier work of the device had ended when it was called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from traceflops.table import ABSENT, BoolArray, IntArray
from traceflops.timeline import DeviceAccount, Intervals
from traceflops.windows import Prepared, chosen_time

_USUAL_FLOOR_NS: Final = 6_000
"""The floor where too few launches tell it."""
_ENOUGH: Final = 8
_LEAST_CAP_NS: Final = 20_000
_AHEAD_NS: Final = 1_000_000

Pace = Literal["host-bound", "partly host-bound", "looming", "not host-bound"]


@dataclass(frozen=True, slots=True)
class Leads:
    """The launches of a device in the order of their first activities; times in ns."""

    start_ns: IntArray
    lead_ns: IntArray
    is_starved: BoolArray

    @property
    def floor_ns(self) -> int:
        """Return how long a launch takes when nothing is before it: their lower quartile."""
        alone = self.lead_ns[self.is_starved]
        return int(np.quantile(alone, 0.25)) if len(alone) >= _ENOUGH else _USUAL_FLOOR_NS

    @property
    def cap_ns(self) -> int:
        """Return up to when a launch is called ordinary."""
        return max(3 * self.floor_ns, _LEAST_CAP_NS)

    def within(self, chosen: Intervals) -> Leads:
        """Return the launches whose first activity starts at some instants."""
        mine = chosen.contains(self.start_ns)
        return Leads(self.start_ns[mine], self.lead_ns[mine], self.is_starved[mine])


@dataclass(frozen=True, slots=True)
class HostBound:
    """Whether the host is too slow for the device. Times in ns; shares 0 to 1.

    `looming` says that the device is busy and the host hardly ahead of it: once the device is
    faster, it will wait.
    """

    verdict: Pace
    launches: int
    starved_share: float
    lead_median_ns: int
    lead_p10_ns: int
    floor_ns: int


def leads(account: DeviceAccount) -> Leads:
    """Return the launches of a device."""
    rows, call, called = account.rows, account.call, account.work.call_start_ns
    order = np.lexsort((rows.start_ns, call))
    order = order[called[order] != ABSENT]
    first = np.sort(order[np.append(True, call[order][1:] != call[order][:-1])[: len(order)]])
    before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(rows.end_ns)[:-1])
    lead = np.maximum(rows.start_ns[first] - called[first], 0)
    return Leads(rows.start_ns[first], lead, called[first] >= before[first])


def outstanding_launches(account: DeviceAccount) -> tuple[IntArray, IntArray]:
    """Return when the number of launches called and not yet started changes, and to what."""
    launched = leads(account)
    called = launched.start_ns - launched.lead_ns
    at, place = np.unique(np.append(called, launched.start_ns), return_inverse=True)
    begun, started = np.split(place, 2)
    change = np.bincount(begun, minlength=len(at)) - np.bincount(started, minlength=len(at))
    return at[change != 0], np.cumsum(change)[change != 0]


def host_bound(prepared: Prepared) -> HostBound | None:
    """Return whether the host holds the devices back in the chosen windows; None without launches.

    The floors are over all launches of a device.
    """
    known = [(device, leads(account)) for device, account in prepared.accounts.items()]
    chosen = [one.within(chosen_time(prepared.windows[device])) for device, one in known]
    lead = np.concatenate([one.lead_ns for one in chosen] or [np.empty(0, np.int64)])
    if not len(lead):
        return None
    starved = float(np.concatenate([one.is_starved for one in chosen]).mean())
    p10, median = (int(value) for value in np.quantile(lead, (0.1, 0.5), method="lower"))
    floor = min(one.floor_ns for _, one in known)
    return HostBound(_pace(starved, p10, median, floor), len(lead), starved, median, p10, floor)


def _pace(starved: float, p10_ns: int, median_ns: int, floor_ns: int) -> Pace:
    if starved >= 0.5 and median_ns <= 4 * floor_ns:
        return "host-bound"
    if starved >= 0.1 or (starved >= 0.05 and p10_ns < 3 * floor_ns):
        return "partly host-bound"
    return "looming" if p10_ns < _AHEAD_NS else "not host-bound"
