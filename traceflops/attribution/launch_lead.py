"""How far the host is ahead of the device: the lead of each launch, and whether it is enough.

Also what launching takes: calls, their time, and the kernels too short to hide it.

The lead of a launch is the time from the start of its call to the start of its first activity. A
launch is starved where all earlier work of the device had ended when it was called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from operator import add
from typing import Any, Final, Literal

import numpy as np

from traceflops.attribution.scopes import PHASES, Phase, Phases, in_optimizer
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    group_rows,
    group_sums,
    is_one_of,
    numbers,
    taken,
)
from traceflops.timeline import DeviceAccount, Intervals, Window
from traceflops.windows import Prepared, chosen_time

_USUAL_FLOOR_NS: Final = 6_000
"""The floor where too few launches tell it."""
_ENOUGH: Final = 8
_LEAST_CAP_NS: Final = 20_000
_AHEAD_NS: Final = 1_000_000
_BUSY: Final = 0.05
"""Below so much idle time only looming is left to say."""
_SHORT_NS: Final = 10_000
_LONG_CALL_NS: Final = 20_000
_EXACT: Final = 1 << 14
_LEAD_BITS: Final = 11

Pace = Literal["host-bound", "partly host-bound", "looming", "not host-bound"]

PACES: Final[tuple[Pace, ...]] = ("host-bound", "partly host-bound", "looming", "not host-bound")
"""How far the host is ahead of the devices: the worst first."""
_OF_STEP: Final[dict[str, tuple[Phase, ...]]] = {
    "forward": ("forward",),
    "backward": ("backward", "recompute"),
    "optimizer": ("optimizer",),
}
_OPTIMIZER: Final = PHASES.index("optimizer")


@dataclass(frozen=True, slots=True)
class Leads:
    """The launches of a device in the order of their first activities; times in ns.

    `call` are rows of calls.
    """

    call: IntArray
    start_ns: IntArray
    lead_ns: IntArray
    is_starved: BoolArray

    @classmethod
    def joined(cls, several: Iterable[Leads]) -> Leads:
        """Return the launches of several devices."""
        every = (NO_LEADS, *several)
        columns = ([getattr(one, column.name) for one in every] for column in fields(cls))
        return cls(*map(np.concatenate, columns))

    @property
    def floor_ns(self) -> int:
        """Return how long a launch takes when nothing is before it: their lower quartile."""
        alone = self.lead_ns[self.is_starved]
        return int(np.quantile(alone, 0.25)) if len(alone) >= _ENOUGH else _USUAL_FLOOR_NS

    @property
    def cap_ns(self) -> int:
        """Return up to when a launch is called ordinary."""
        return max(3 * self.floor_ns, _LEAST_CAP_NS)

    def falls(self, window: Window) -> bool:
        """Return whether the lead of its last quarter is less than half of that of the first."""
        begin, stop = np.searchsorted(self.start_ns, (window.start_ns, window.end_ns)).tolist()
        quarter = (stop - begin) // 4
        if quarter < _ENOUGH:
            return False
        first, last = self.lead_ns[begin : begin + quarter], self.lead_ns[stop - quarter : stop]
        return bool(2 * np.median(last) < np.median(first))

    def within(self, chosen: Intervals) -> Leads:
        """Return the launches whose first activity starts at some instants."""
        mine = chosen.contains(self.start_ns)
        return Leads(*(getattr(self, one.name)[mine] for one in fields(self)))


_NONE: Final = np.empty(0, dtype=np.int64)
NO_LEADS: Final = Leads(_NONE, _NONE, _NONE, np.empty(0, dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class HostBound:
    """Whether the host is too slow for the device. Times in ns; shares 0 to 1.

    `looming` says that the device is busy and the host hardly ahead of it, or less and less through
    most steps: once the device is faster, it will wait. The verdict is None where the idle time is
    not known, or neither busy nor starved launches tell. `phases` is the same of the phases of a
    training step, with the floor of the whole.
    """

    verdict: Pace | None
    launches: int
    starved_share: float
    lead_median_ns: int
    lead_p10_ns: int
    floor_ns: int
    phases: Mapping[str, HostBound] = field(default_factory=dict)

    @property
    def is_bound(self) -> bool:
        """Return whether the host holds the device back already, at least in part."""
        return self.verdict in PACES[:2]

    @property
    def bound_in(self) -> tuple[str, ...]:
        """Return the phases that are at least as bad as the whole, where others are better."""
        worst = PACES[: PACES.index(self.verdict) + 1] if self.verdict else ()
        found = [name for name, one in self.phases.items() if one.verdict in worst]
        return tuple(found) if len(found) < len(self.phases) else ()


@dataclass(frozen=True, slots=True)
class LaunchSums:
    """The launches of a device whose work starts in the chosen windows, and what starts there.

    `call_ns` is the time of the calls, `long_calls` those of more than 20 us. `late_starts` began
    longer than an ordinary launch after their call, though all earlier work had ended.
    """

    launches: int = 0
    operations: int = 0
    call_ns: int = 0
    long_calls: int = 0
    long_call_ns: int = 0
    late_starts: int = 0
    kernels: int = 0
    short_kernels: int = 0
    short_kernel_ns: int = 0

    def __add__(self, other: LaunchSums) -> LaunchSums:
        """Return both together."""
        return LaunchSums(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class LeadCounts:
    """How many launches had which lead, by phase: a place in PHASES, -1 where nothing tells it.

    `steps` is how many steps there are, `falling` in how many of them the lead falls.
    """

    lead_ns: IntArray
    is_starved: BoolArray
    phase: IntArray
    count: IntArray
    floor_ns: int
    steps: int = 0
    falling: int = 0

    @classmethod
    def joined(cls, parts: Sequence[LeadCounts]) -> LeadCounts:
        """Return those of several recordings."""
        every: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _COUNTED
        }
        every |= {name: sum(getattr(one, name) for one in parts) for name in ("steps", "falling")}
        return cls(**every, floor_ns=min(part.floor_ns for part in parts))

    @property
    def compact(self) -> LeadCounts:
        """Return the same with a row for equal launches; of very many, leads within 0.1 %."""
        lead_ns = self.lead_ns
        if len(lead_ns) > _EXACT:
            rough = np.frexp(lead_ns.astype(np.float64))[1].clip(_LEAD_BITS) - _LEAD_BITS
            lead_ns = lead_ns >> rough << rough
        group, first = group_rows((self.phase, self.is_starved.astype(np.int64), lead_ns))
        return replace(
            self,
            lead_ns=lead_ns[first],
            is_starved=self.is_starved[first],
            phase=self.phase[first],
            count=group_sums(group, self.count, len(first)),
        )

    def of_phases(self, phases: Iterable[Phase]) -> LeadCounts:
        """Return those of some phases."""
        mine = np.isin(self.phase, [PHASES.index(one) for one in phases])
        return replace(self, **{name: getattr(self, name)[mine] for name in _COUNTED})


_COUNTED: Final = ("lead_ns", "is_starved", "phase", "count")


@dataclass(frozen=True, slots=True)
class Launches:
    """The launches by device. A kernel is short below `short_ns`: 10 us, or the floor if longer."""

    short_ns: int
    leads: LeadCounts
    devices: dict[int, LaunchSums] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[Launches]) -> Launches:
        """Return those of several recordings of other devices."""
        devices = {at: sums for part in parts for at, sums in part.devices.items()}
        short_ns = max(part.short_ns for part in parts)
        return cls(short_ns, LeadCounts.joined([part.leads for part in parts]), devices)

    @property
    def total(self) -> LaunchSums:
        """Return those of all devices; a call that launches on two counts at both."""
        return sum(self.devices.values(), LaunchSums())


def leads(account: DeviceAccount) -> Leads:
    """Return the launches of a device."""
    rows, call, called = account.rows, account.call, account.work.call_start_ns
    order = np.lexsort((rows.start_ns, call))
    order = order[called[order] != ABSENT]
    first = np.sort(order[np.append(True, call[order][1:] != call[order][:-1])[: len(order)]])
    before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(rows.end_ns)[:-1])
    lead = np.maximum(rows.start_ns[first] - called[first], 0)
    return Leads(call[first], rows.start_ns[first], lead, called[first] >= before[first])


def outstanding_launches(account: DeviceAccount) -> tuple[IntArray, IntArray]:
    """Return when the number of launches called and not yet started changes, and to what."""
    launched = leads(account)
    called = launched.start_ns - launched.lead_ns
    at, place = np.unique(np.append(called, launched.start_ns), return_inverse=True)
    begun, started = np.split(place, 2)
    change = np.bincount(begun, minlength=len(at)) - np.bincount(started, minlength=len(at))
    return at[change != 0], np.cumsum(change)[change != 0]


def launching(prepared: Prepared, phases: Phases) -> Launches | None:
    """Return the launches in the chosen windows, None without any.

    The floors are over all launches of a device; `phases` is by row of ops.
    """
    known = {device: leads(account) for device, account in prepared.accounts.items()}
    windows = prepared.windows
    chosen = {device: one.within(chosen_time(windows[device])) for device, one in known.items()}
    every = Leads.joined(chosen.values())
    if not len(every.call):
        return None
    falls = [
        one.falls(window)
        for device, one in known.items()
        for window in windows[device]
        if window.used and window.role == "step"
    ]
    counts = LeadCounts(
        every.lead_ns,
        every.is_starved,
        _phase_of_calls(prepared, phases)[every.call],
        np.ones_like(every.lead_ns),
        min(one.floor_ns for one in known.values()),
        len(falls),
        sum(falls),
    )
    short_ns = max(counts.floor_ns, _SHORT_NS)
    sums = {
        device: _sums(prepared, device, one, known[device].cap_ns, short_ns)
        for device, one in chosen.items()
    }
    return Launches(short_ns, counts, sums)


def _sums(prepared: Prepared, device: int, some: Leads, cap_ns: int, short_ns: int) -> LaunchSums:
    """Return the launches of a device in the chosen windows, and its kernels there."""
    activities, chosen = prepared.trace.activities, prepared.chosen
    mine = (numbers(activities["device"])[chosen.row] == device) & (chosen.starts_inside > 0)
    row = chosen.row[mine]
    is_kernel = is_one_of(activities["kind"], "kernel")[row]
    kernel_ns = numbers(activities["dur_ns"])[row[is_kernel]]
    short = kernel_ns < short_ns
    call_ns = numbers(prepared.trace.calls["dur_ns"])[some.call]
    is_long = call_ns > _LONG_CALL_NS
    return LaunchSums(
        launches=len(some.call),
        operations=int((prepared.linked.links.call_of_activity[row] >= 0).sum()),
        call_ns=int(call_ns.sum()),
        long_calls=int(is_long.sum()),
        long_call_ns=int(call_ns[is_long].sum()),
        late_starts=int((some.is_starved & (some.lead_ns > cap_ns)).sum()),
        kernels=len(kernel_ns),
        short_kernels=int(short.sum()),
        short_kernel_ns=int(kernel_ns[short].sum()),
    )


def host_bound(launches: Launches | None, idle: float | None) -> HostBound | None:
    """Return whether the host is fast enough for launches, None without any.

    `idle` is the share of idle time, None where it is not known.
    """
    if launches is None:
        return None
    known = launches.leads
    pace = _paced(known, idle)
    is_busy = idle is not None and idle < _BUSY
    if is_busy and pace.verdict == "not host-bound" and 2 * known.falling > known.steps:
        pace = replace(pace, verdict="looming")
    return replace(pace, phases=_by_phase(known, idle))


def _phase_of_calls(prepared: Prepared, phases: Phases) -> IntArray:
    """Return the place in PHASES of each call, -1 where no operator tells it."""
    phase = taken(phases.phase, prepared.linked.links.op_of_call).astype(np.int64)
    phase[(phase < 0) & in_optimizer(prepared.trace, prepared.trace.calls)] = _OPTIMIZER
    return phase


def _by_phase(known: LeadCounts, idle: float | None) -> Mapping[str, HostBound]:
    """Return the pace of each phase of a step; nothing where all that is known is one phase."""
    of_phase = ((name, known.of_phases(several)) for name, several in _OF_STEP.items())
    found = {name: _paced(some, idle) for name, some in of_phase if len(some.count)}
    return found if len(found) > 1 else {}


def _paced(some: LeadCounts, idle: float | None) -> HostBound:
    """Return the pace of some launches."""
    order = np.argsort(some.lead_ns, kind="stable")
    upto = np.cumsum(some.count[order])
    every = int(upto[-1])
    starved = int(some.count[some.is_starved].sum()) / every
    places = np.searchsorted(upto, [int((every - 1) * part) for part in (0.1, 0.5)], side="right")
    p10, median = some.lead_ns[order][places].tolist()
    floor_ns = some.floor_ns
    verdict = _verdict(starved, p10, median, floor_ns, idle) if idle is not None else None
    return HostBound(verdict, every, starved, median, p10, floor_ns)


def _verdict(
    starved: float, p10_ns: int, median_ns: int, floor_ns: int, idle: float
) -> Pace | None:
    if idle and starved >= 0.5 and median_ns <= 4 * floor_ns:
        return "host-bound"
    if idle and (starved >= 0.1 or (starved >= 0.05 and p10_ns < 3 * floor_ns)):
        return "partly host-bound"
    if p10_ns >= _AHEAD_NS:
        return "not host-bound"
    return "looming" if idle < _BUSY else None
