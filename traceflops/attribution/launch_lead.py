"""How far the host is ahead of the device: the lead of each launch, and whether it is enough.

Also the cost of launching: calls, their time, and the kernels too short to hide it.

The lead of a launch is the time from the start of its call to the start of its first activity. A
launch is starved if all earlier work of the device had ended when its call began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.attribution.scopes import PHASES, Phase, Phases, in_optimizer
from traceflops.table.columns import (
    ABSENT,
    Additive,
    BoolArray,
    Columns,
    IntArray,
    count_true,
    is_one_of,
    numbers,
)
from traceflops.table.grouping import (
    differ_from_before,
    group_rows,
    group_sums,
    lower_medians,
    runs,
)
from traceflops.table.nesting import taken
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.idle import LONGEST_START_NS
from traceflops.timeline.records import Window
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

_USUAL_FLOOR_NS: Final = 6_000
"""The floor if fewer than _ENOUGH launches are starved, too few to measure it."""
_ENOUGH: Final = 8
_STEPS: Final = 3  # with fewer steps, the first one is too much to leave out
_CAP_TIMES, _LEAST_CAP_NS = 3, 20_000
"""The longest lead of an ordinary launch: so many floors, at least so many ns."""
_AHEAD_NS: Final = 1_000_000
"""A host that is so far ahead with nearly all launches does not hold the device back; if the device
is busy, with most of them: others may just follow a wait for it."""
_MOST, _MANY, _SOME = 0.5, 0.1, 0.05
"""Shares of starved launches: most of them, enough to tell alone, enough if leads are short."""
_SHORT, _SHORTEST = 4, 3
"""Leads are short: the median is up to so many floors, or the 10th percentile below so many."""
_BUSY: Final = 0.05  # below this share of idle time the verdict is at worst "looming"
_MUCH: Final = 0.2  # from this share of idle time on, the host alone may hold the device back
_SLIGHT: Final = 0.01  # less of the time in short gaps is no sign of slow launching
_SHORT_NS: Final = 10_000
_LONG_CALL_NS: Final = 20_000
_EXACT: Final = 1 << 14
_LEAD_BITS: Final = 11
Pace = Literal["host-bound", "partly host-bound", "looming", "not host-bound"]
PACES: Final[tuple[Pace, ...]] = ("host-bound", "partly host-bound", "looming", "not host-bound")
"""How far the host is ahead of the devices, from the worst on."""
_OF_STEP: Final[dict[str, tuple[Phase, ...]]] = {
    "forward": ("forward",),
    "backward": ("backward", "recompute"),
    "optimizer": ("optimizer",),
}
_OPTIMIZER: Final = PHASES.index("optimizer")


class Leads(Columns, frozen=True):
    """The launches of a device in the order of their first activities, a row each; times in ns.

    `call` is the row of the launch call, `start_ns` the start of the first activity.
    """

    call: IntArray
    start_ns: IntArray
    lead_ns: IntArray
    is_starved: BoolArray

    @property
    def floor_ns(self) -> int:
        """The lead of a launch that waits for nothing: the lower quartile of the starved ones."""
        alone = self.lead_ns[self.is_starved]
        if len(alone) < _ENOUGH:
            return _USUAL_FLOOR_NS
        place = (len(alone) - 1) / 4  # np.quantile would load masked arrays, for 10 ms
        low, high = np.sort(alone)[[int(place), ceil(place)]].tolist()
        return int(low + (high - low) * (place % 1))

    @property
    def cap_ns(self) -> int:
        """The longest lead of an ordinary launch."""
        return min(max(_CAP_TIMES * self.floor_ns, _LEAST_CAP_NS), LONGEST_START_NS)

    def falls(self, windows: Sequence[Window]) -> int:
        """Return in how many windows the median lead halves from the first to the last quarter."""
        edges = np.array([(window.start_ns, window.end_ns) for window in windows], dtype=np.int64)
        begin, stop = np.searchsorted(self.start_ns, edges.reshape(-1, 2)).T
        is_enough = stop - begin >= 4 * _ENOUGH
        if not is_enough.any():
            return 0
        begin, stop = begin[is_enough], stop[is_enough]
        quarter = (stop - begin) // 4
        first = self._twice_medians(begin, begin + quarter)
        last = self._twice_medians(stop - quarter, stop)
        return count_true(2 * last < first)

    def _twice_medians(self, first: IntArray, stop: IntArray) -> IntArray:
        """Return the sum of the lower and upper median lead of each run of launches."""
        row, run = runs(first, stop)
        lead_ns = self.lead_ns[row]
        return lower_medians(run, lead_ns) - lower_medians(run, -lead_ns)


class HostBound(Struct, frozen=True):
    """Whether the host is too slow for the device. Times in ns; shares 0 to 1.

    `looming`: the device is busy, but the host is hardly ahead of it, or its lead shrinks in most
    steps, so a faster device would wait. The verdict is None if the idle time is unknown, or if
    idle time and starved launches fit no verdict. `phases` has the same figures for the phases of a
    training step, with the same floor.
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
        """Whether the host already holds the device back, at least in part."""
        return self.verdict in PACES[:2]

    @property
    def has_leads(self) -> bool:
        """Whether leads are known: many of 0 ns are those of clocks that disagree."""
        return self.lead_p10_ns > 0

    @property
    def bound_in(self) -> tuple[str, ...]:
        """The phases with a verdict at least as bad as that of the step; none if all have one."""
        worst = PACES[: PACES.index(self.verdict) + 1] if self.verdict else ()
        bound = [name for name, phase in self.phases.items() if phase.verdict in worst]
        return tuple(bound) if len(bound) < len(self.phases) else ()


class LaunchSums(Additive, frozen=True):
    """Counts of launches and operations of a device that start in the chosen windows; times in ns.

    `call_ns` is the time of the launch calls, `long_calls` counts those of more than 20 us.
    `late_starts` counts launches that had no earlier work to wait for, but whose work began later
    than that of an ordinary one.
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


class LeadCounts(Struct, frozen=True):
    """Numbers of launches (`count`), a row per lead, starvation and phase.

    `phase` is an index into PHASES, -1 if unknown. The lead falls in `falling` of `steps` steps.
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
        """Add up the counts of several recordings: one row for equal launches."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _COUNTED
        }
        sums = {name: sum(getattr(part, name) for part in parts) for name in ("steps", "falling")}
        return cls(**columns, **sums, floor_ns=min(part.floor_ns for part in parts)).grouped

    @property
    def compact(self) -> LeadCounts:
        """The same with one row for equal launches; very many leads are cut to 11 bits (0.1 %)."""
        lead_ns = self.lead_ns
        if len(lead_ns) > _EXACT:  # of a lead of 23 bits, the lower 12 become 0
            lower_bits = np.frexp(lead_ns.astype(np.float64))[1].clip(_LEAD_BITS) - _LEAD_BITS
            lead_ns = lead_ns >> lower_bits << lower_bits
        return replace(self, lead_ns=lead_ns).grouped

    @property
    def grouped(self) -> LeadCounts:
        """The same with one row for equal launches."""
        lead_ns = self.lead_ns
        group, first = group_rows((self.phase, self.is_starved.astype(np.int64), lead_ns))
        count = group_sums(group, self.count, len(first))
        starved, phase = self.is_starved[first], self.phase[first]
        return replace(self, lead_ns=lead_ns[first], is_starved=starved, phase=phase, count=count)


_COUNTED: Final = ("lead_ns", "is_starved", "phase", "count")


class Launches(Struct, frozen=True):
    """Sums of launches by device; kernels below `short_ns` (10 us, or the floor) are short."""

    short_ns: int
    leads: LeadCounts
    devices: dict[int, LaunchSums] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[Launches]) -> Launches:
        """Add up the launches of several recordings with different devices."""
        devices = {device: sums for part in parts for device, sums in part.devices.items()}
        short_ns = max(part.short_ns for part in parts)
        return cls(short_ns, LeadCounts.joined([part.leads for part in parts]), devices)

    @property
    def total(self) -> LaunchSums:
        """The sums over all devices; a call that launches on two devices counts for both."""
        return sum(self.devices.values(), LaunchSums())


def leads(account: DeviceAccount) -> Leads:
    """Return the launches of a device, with the lead of each and whether it is starved."""
    rows, call, called = account.rows, account.call, account.work.call_start_ns
    # The first activity of each call, in the order of the activities.
    order = np.argsort(call, kind="stable")
    order = order[called[order] != ABSENT]
    first = np.sort(order[differ_from_before(call[order])])
    # Per activity, when all earlier ones had ended: end [8 5 12]  ->  [-2^63 8 8].
    ended_before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(rows.end_ns)[:-1])
    lead = np.maximum(rows.start_ns[first] - called[first], 0)
    return Leads(call[first], rows.start_ns[first], lead, called[first] >= ended_before[first])


def outstanding_launches(account: DeviceAccount) -> tuple[IntArray, IntArray]:
    """Return when the number of launches from call to first activity changes, and the numbers."""
    # called [0 1], started [5 6]  ->  time [0 1 5 6], change [1 1 -1 -1], numbers [1 2 1 0]
    launched = leads(account)
    called = launched.start_ns - launched.lead_ns
    time_ns, index = np.unique(np.append(called, launched.start_ns), return_inverse=True)
    call_index, start_index = np.split(index, 2)
    change = np.bincount(call_index, minlength=len(time_ns))
    change -= np.bincount(start_index, minlength=len(time_ns))
    return time_ns[change != 0], np.cumsum(change)[change != 0]


def launching(prepared: Prepared, phases: Phases) -> Launches | None:
    """Count launches in the chosen windows by device, lead and phase (per op); None without any."""
    trace, windows = prepared.trace, prepared.windows
    all_leads = {device: leads(account) for device, account in prepared.accounts.items()}
    chosen_leads = {
        device: launches.only(chosen_time(windows[device]).contains(launches.start_ns))
        for device, launches in all_leads.items()
    }
    if not any(len(chosen.call) for chosen in chosen_leads.values()):
        return None
    steps = {
        device: [window for window in windows[device] if window.used and window.role == "step"]
        for device in all_leads
    }
    falls = sum(launches.falls(steps[device]) for device, launches in all_leads.items())
    # The phase of each call is that of its op; calls in the optimizer may have no op.
    phase = taken(phases.phase, prepared.linked.links.op_of_call).astype(np.int64)
    phase[(phase < 0) & in_optimizer(trace, trace.calls)] = _OPTIMIZER
    chosen = Leads.joined(_after_first(own, steps[d]) for d, own in chosen_leads.items())
    floor_ns = min(launches.floor_ns for launches in all_leads.values())
    ones, counted = np.ones_like(chosen.call), (sum(map(len, steps.values())), falls)
    of_launch = chosen.lead_ns, chosen.is_starved, phase[chosen.call], ones
    counts = LeadCounts(*of_launch, floor_ns, *counted)
    short_ns = max(counts.floor_ns, _SHORT_NS)
    sums = {
        device: _sums(prepared, device, own, all_leads[device].cap_ns, short_ns)
        for device, own in chosen_leads.items()
    }
    return Launches(short_ns, counts, sums)


def _after_first(own: Leads, steps: Sequence[Window]) -> Leads:
    """Return the launches of a device, without the first step if it has most of the starved ones.

    The first launches of a recording count as starved, since work queued before it is not recorded.
    """
    if len(steps) < _STEPS:
        return own
    later = own.only((own.start_ns < steps[0].start_ns) | (own.start_ns >= steps[0].end_ns))
    first_has_most = own.is_starved.sum() > 2 * later.is_starved.sum()
    return later if first_has_most and len(later.call) else own


def _sums(prepared: Prepared, device: int, own: Leads, cap_ns: int, short_ns: int) -> LaunchSums:
    """Return the sums of a device's `own` launches and of its work in the chosen windows.

    A start is late if it had no earlier work to wait for, and still came more than `cap_ns` after
    its launch. Kernels below `short_ns` are short.
    """
    activities, chosen = prepared.trace.activities, prepared.chosen
    starts = (numbers(activities["device"])[chosen.row] == device) & (chosen.starts_inside > 0)
    row = chosen.row[starts]
    is_kernel = is_one_of(activities["kind"], "kernel")[row]
    kernel_ns = numbers(activities["dur_ns"])[row[is_kernel]]
    short = kernel_ns < short_ns
    call_ns = numbers(prepared.trace.calls["dur_ns"])[own.call]
    is_long = call_ns > _LONG_CALL_NS
    return LaunchSums(
        launches=len(own.call),
        operations=int((prepared.linked.links.call_of_activity[row] >= 0).sum()),
        call_ns=int(call_ns.sum()),
        long_calls=int(is_long.sum()),
        long_call_ns=int(call_ns[is_long].sum()),
        late_starts=int((own.is_starved & (own.lead_ns > cap_ns)).sum()),
        kernels=len(kernel_ns),
        short_kernels=int(short.sum()),
        short_kernel_ns=int(kernel_ns[short].sum()),
    )


def host_bound(
    launches: Launches | None, idle: float | None, short_idle: float = 1.0
) -> HostBound | None:
    """Return whether the host launches fast enough; None without launches.

    `idle` is the share of idle time (0 to 1), None if unknown; `short_idle` that of idle time in
    short gaps.
    """
    if launches is None:
        return None
    counts = launches.leads
    pace = _paced(counts, idle, short_idle)
    is_busy = idle is not None and idle < _BUSY
    # A lead that falls in most steps is used up sooner or later: the host is slower.
    if is_busy and pace.verdict == "not host-bound" and 2 * counts.falling > counts.steps:
        pace = replace(pace, verdict="looming")
    paces = {}  # of each phase of a step
    for name, phases in _OF_STEP.items():
        is_in = np.isin(counts.phase, [PHASES.index(phase) for phase in phases])
        if is_in.any():
            columns = {column: getattr(counts, column)[is_in] for column in _COUNTED}
            paces[name] = _paced(replace(counts, **columns), idle, short_idle)
    return replace(pace, phases=paces if len(paces) > 1 else {})


def _paced(counts: LeadCounts, idle: float | None, short_idle: float) -> HostBound:
    """Judge launches by starved ones, leads and the share of idle time; without phases."""
    by_lead = np.argsort(counts.lead_ns, kind="stable")
    count_up_to = np.cumsum(counts.count[by_lead])
    launches, floor_ns = int(count_up_to[-1]), counts.floor_ns
    starved = int(counts.count[counts.is_starved].sum()) / launches
    # The 10th percentile and the median: leads [1 2 5] with counts [3 3 5]  ->  1 and 2.
    positions = [int((launches - 1) * part) for part in (0.1, 0.5)]
    index = np.searchsorted(count_up_to, positions, side="right")
    p10_ns, median_ns = counts.lead_ns[by_lead][index].tolist()
    pace = HostBound(None, launches, starved, median_ns, p10_ns, floor_ns)
    return replace(pace, verdict=_verdict(pace, idle, short_idle))


def _verdict(pace: HostBound, idle: float | None, short_idle: float) -> Pace | None:
    """Return the verdict of the first rule that fits; `pace` is still without one."""
    if pace.launches < _ENOUGH or idle is None:
        return None  # a share of a few launches tells nothing
    starved, floor_ns = pace.starved_share, pace.floor_ns
    has_short_leads = pace.lead_median_ns <= _SHORT * floor_ns
    if idle >= _MUCH and starved >= _MOST and has_short_leads:
        return "host-bound"
    # Many starved launches matter little if a few long gaps are nearly all of the idle time.
    shortest_are_short = pace.lead_p10_ns < _SHORTEST * floor_ns
    many_are_starved = starved >= _MANY or (starved >= _SOME and shortest_are_short)
    if idle > 0 and short_idle >= _SLIGHT and many_are_starved:
        return "partly host-bound"
    is_usually_ahead = idle < _BUSY and pace.lead_median_ns >= _AHEAD_NS
    if pace.lead_p10_ns >= _AHEAD_NS or is_usually_ahead:
        return "not host-bound"
    return "looming" if idle < _BUSY else None
