"""Which rank the others wait for, if it is one or a few, and why it is late.

Ranks are blamed if their own time exceeds that of the others by more than equal ranks would differ
by chance, or if a single delay costs much. The reason is what the worst of them does between the
ends of steps: its kernels take longer, or it is idle for longer than the others. Where ranks send
to each other in a chain, each waits for the hosts of those before it: there a rank is blamed only
for what stalls its host, not for launching.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from math import comb, log, log1p
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import Culprit, IdleCulprits, culprits_of_devices
from traceflops.ranks import late_causes
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.late_causes import KernelSums, LateCause
from traceflops.ranks.waits import Cycles
from traceflops.table.columns import FloatArray, IntArray, codes, names, numbers
from traceflops.table.trace import Trace
from traceflops.timeline.records import Window
from traceflops.windows.periodicity import LAST_STEP
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import Windows, chosen_activities, chosen_time

_WORTH: Final = 0.01  # the share of the time of the steps that is worth blaming a rank for
_APART: Final = 1 / 3  # the gap between late ranks and others, as a share of the worst lateness
_DEVIATIONS: Final = 2.6  # standard deviations beyond chance, for ranks that were not selected
_LONE: Final = 0.02  # the share of the time that a single delay must cost to be blamed
_OUTLIER: Final = 3  # and how many times as long as any delay of the other ranks it must be
_EACH: Final = 0.04  # the share of each cycle lost to one rank that is blamed even for few cycles
_SCARCE: Final = 6  # with so many cycles of other ranks to compare with, both limits are doubled
_LONG: Final = 2  # the number of longest steps for which a summary has sums of their own
_PIPELINE: Final = re.compile(r"(^|[^a-z])(pp|pipeline)([^a-z]|$)", re.IGNORECASE)


class SlowRank(Struct, frozen=True):
    """The rank that others wait for, the worst of `ranks` if several are late; times are per step.

    `cause` is `slow_clock` (all kernels are slower by one factor), `slow_kernel` (some are),
    `more_work` (more or larger launches), `checkpoint`, `gc_pause`, `memory_pressure`, a class of
    idle culprits, `slow_host` (no name takes longer than on the others) or `unknown`; `label` names
    the kernel or the culprit. `lost_ns_per_step` is by how much own times exceed those of all ranks
    that are not late; `share` is its part of what is lost to any rank. `own_ns`, `busy_ns` and
    `idle_ns` are the excess over the median of the ranks that are not late. `position` says what
    late ranks have in common, `sporadic` that a few `steps`, or a single delay, have most of it.
    """

    rank: int
    ranks: tuple[int, ...]
    position: str
    cause: str
    label: str
    factor: float | None
    lost_ns_per_step: int
    share: float
    own_ns: int
    busy_ns: int
    idle_ns: int
    sporadic: bool
    steps: tuple[int, ...]


class Late(Struct, frozen=True):
    """The late ranks, the worst first, and the `rest`, as places.

    By cycle: `lost_ns` is the longest own time of the late ranks minus the longest of the rest,
    `gap_ns` the difference of the means. `once` says that only a single delay shows it.
    """

    places: IntArray
    rest: IntArray
    lost_ns: FloatArray
    gap_ns: FloatArray
    once: bool = False


def late_ranks(cycles: Cycles) -> Late | None:
    """Return which ranks the others wait for, None if no rank stands out.

    Late ranks clearly exceed the own time of the rest, and do so more often than by chance, or (one
    rank) in every cycle, or by a single very long delay.
    """
    own = (cycles.length_ns[:, None] - cycles.held_ns).astype(np.float64)
    if not own.size or own.shape[1] < 2:
        return None
    # Sort the ranks by their mean excess over the median rank, and cut them where neighbours lie
    # farthest apart: those before the cut may be late, at most half of all ([9 8 2 1]: two).
    excess = own - np.median(own, axis=1, keepdims=True)
    mean = excess.mean(axis=0)
    order = np.argsort(-mean, kind="stable")
    gaps = -np.diff(mean[order])[: max(1, len(order) // 2)]
    count = int(gaps.argmax()) + 1
    late, rest = order[:count], order[count:]
    if gaps[count - 1] < _APART * mean[order[0]]:
        return None

    # Per cycle: how much longer the late ranks take, in the mean, and the worst of both sides.
    gap = own[:, late].mean(axis=1) - own[:, rest].mean(axis=1)
    lost = own[:, late].max(axis=1) - own[:, rest].max(axis=1)
    length = float(cycles.length_ns.sum())
    is_often = lost.sum() >= _WORTH * length and _is_more_than_chance(excess, count, gap.mean())
    is_each = bool((lost >= _EACH * cycles.length_ns).all())
    is_always = is_each and count == 1 and len(lost) > 1
    # The fewer cycles of other ranks there are to compare with, the longer a delay must be.
    others = excess[:, rest]
    least_delay = max(_LONE * length, _OUTLIER * others.max()) * (1 + _SCARCE / others.size)
    if is_often or is_always:
        return Late(late, rest, lost, gap)
    return Late(late, rest, lost, gap, once=True) if lost.max() >= least_delay else None


def _is_more_than_chance(excess: FloatArray, late: int, gap_ns: float) -> bool:
    """Return whether equal ranks would hardly ever show such a mean gap between two sets of them.

    `excess` is by cycle and rank, `late` the number of ranks in the first set. This is Student's t,
    with the variation of each rank from cycle to cycle, turned into a z-score by Wallace (1959).
    """
    cycles, ranks = excess.shape
    free = (cycles - 1) * (ranks - 1)  # degrees of freedom
    if not free or gap_ns <= 0:
        return False
    squares = float(((excess - excess.mean(axis=0)) ** 2).sum())
    variance = max(1.0, squares / free * (1 / late + 1 / (ranks - late)) / cycles)
    t_square = gap_ns**2 / variance
    z_square = ((8 * free + 1) / (8 * free + 3)) ** 2 * free * log1p(t_square / free)
    # The late ranks were picked as the worst of all sets of their size: demand more.
    return bool(z_square >= _DEVIATIONS**2 + 2 * log(comb(ranks, late)))


class RankWork(Protocol):
    """What the devices of the ranks did in given steps; `trace` describes them."""

    @property
    def trace(self) -> Trace:
        """Return a trace of the same processes and devices."""

    @property
    def windows(self) -> Windows:
        """Return the windows by device."""

    def kernels(self, devices: Sequence[int], steps: Sequence[int | None]) -> KernelSums:
        """Return the kernel sums of devices in some steps, if steps are known apart."""

    def idle(
        self, devices: Sequence[int], steps: Sequence[int | None]
    ) -> Sequence[Sequence[Culprit]]:
        """Return the culprits of each device's idle time in such steps."""


class PreparedWork(Struct, frozen=True):
    """The work that a prepared trace tells."""

    prepared: Prepared

    @property
    def trace(self) -> Trace:
        """Return the trace."""
        return self.prepared.trace

    @property
    def windows(self) -> Windows:
        """Return the windows by device."""
        return self.prepared.windows

    def kernels(self, devices: Sequence[int], steps: Sequence[int | None]) -> KernelSums:
        """Return the kernel sums of devices in some steps; in chosen windows if these are none."""
        return self.kernels_of_each(devices, [steps])[0]

    def kernels_of_each(
        self, devices: Sequence[int], choices: Sequence[Sequence[int | None]]
    ) -> list[KernelSums]:
        """Return the kernel sums for each choice of steps."""
        accounts = {device: self.prepared.accounts[device] for device in devices}
        chosen = []
        for steps in choices:
            windows = {device: self._windows(device, steps) for device in devices}
            chosen.append(chosen_activities(accounts, windows))
        return late_causes.kernel_sums(self.prepared, chosen, devices)

    def idle(
        self, devices: Sequence[int], steps: Sequence[int | None]
    ) -> list[tuple[Culprit, ...]]:
        """Return the culprits of each device's idle time in such steps."""
        asked = [{device: chosen_time(self._windows(device, steps))} for device in devices]
        return [culprits.culprits for culprits in culprits_of_devices(self.prepared, asked)]

    def idle_of_each(
        self, devices: Sequence[int], choices: Sequence[Sequence[int | None]]
    ) -> tuple[IdleCulprits, list[list[tuple[Culprit, ...]]]]:
        """Return the culprits of all devices in chosen time, and by choice of steps and device."""
        chosen = {device: chosen_time(self.windows[device]) for device in self.prepared.accounts}
        pairs = itertools.product(choices, devices)
        of_each = [{device: chosen_time(self._windows(device, steps))} for steps, device in pairs]
        # One pass computes all; then the flat list is cut by choice again.
        whole, *each = culprits_of_devices(self.prepared, [chosen, *of_each])
        culprits = iter(each)
        return whole, [[next(culprits).culprits for _ in devices] for _ in choices]

    def _windows(self, device: int, steps: Sequence[int | None]) -> tuple[Window, ...]:
        """Return a device's windows of given steps, marked as used; all windows without steps."""
        windows, wanted = self.windows[device], set(steps)
        if None in wanted or not wanted:
            return windows
        return tuple(replace(window, used=True) for window in windows if window.step in wanted)

    def long_steps(self) -> tuple[int, ...]:
        """Return the longest compared steps and their neighbours, as others may number them."""
        length_ns: Counter[int | None] = Counter()
        for window in itertools.chain(*self.windows.values()):
            length_ns[window.step] += window.end_ns - window.start_ns
        longest = sorted(self.usual_steps(), key=lambda step: -length_ns[step])[:_LONG]
        return tuple(sorted({near for step in longest for near in range(step - 1, step + 2)}))

    def usual_steps(self) -> tuple[int, ...]:
        """Return the steps to compare: chosen ones and the last one, if they follow another."""
        windows = [*itertools.chain(*self.windows.values())]
        wanted = {window.step for window in windows if window.used or window.left_out == LAST_STEP}
        seen = {window.step for window in windows}
        return tuple(sorted(step for step in wanted if step is not None and step - 1 in seen))


def slow_rank(work: RankWork, cycles: Cycles, records: CommRecords) -> SlowRank | None:
    """Return the rank to blame and why, None where there is none."""
    late = late_ranks(cycles)
    if late is None:
        return None
    worst = int(late.places[0])

    def excess_ns(times_ns: IntArray) -> int:
        """Return by how much the worst rank exceeds the median of those not late, ns per step."""
        excess = times_ns[:, worst] - np.median(times_ns[:, late.rest], axis=1)
        return round(float(excess.sum()) / cycles.count)

    # Own time is the cycle less `held_ns`, and the cycle is equal for all ranks.
    own, busy = excess_ns(-cycles.held_ns), excess_ns(cycles.busy_ns)
    # The cycles with the largest gaps (half of the very largest, or more) are named if they have
    # most of the gap in all, and are less than half of the cycles ([1 9 1 5 1]: the 9 and the 5).
    few = np.flatnonzero(2 * late.gap_ns >= late.gap_ns.max())
    has_most = 2 * late.gap_ns[few].sum() > late.gap_ns.clip(0).sum()
    if not has_most or 2 * len(few) >= len(late.gap_ns):
        few = few[:0]
    steps = tuple(step for cycle in few.tolist() if (step := cycles.steps[cycle]) is not None)
    # The worst rank, then those to compare it with, the shortest own time first.
    usual = late.rest[np.argsort(-cycles.held_ns[:, late.rest].sum(axis=0), kind="stable")]
    ordered = [worst, *usual.tolist()]
    # Own time is work or idle time: the larger excess of the two is to be explained.
    cause = _cause(work, records, ordered, steps, cycles.steps, busier=busy >= own - busy)
    position = _position(work.trace, records, late.places)
    if cause is None:
        return None
    # Parts of a recording that end with different collectives compare badly (not `is_sure`): then
    # the cause must be known.
    is_sure = cycles.has_steps or cycles.is_joint
    if not is_sure and cause == late_causes.UNKNOWN:
        return None
    # Several ranks with nothing in common are not blamed for a single delay, nor if not sure.
    if len(late.places) > 1 and not position and (late.once or not is_sure):
        return None
    lost = late.lost_ns.clip(0)
    return SlowRank(
        rank=records.ranks[worst],
        ranks=tuple(sorted(records.ranks[place] for place in late.places.tolist())),
        position=position,
        lost_ns_per_step=round(float(lost.sum()) / cycles.count),
        # In cycles of negative `lost_ns` the rest lost time, too; 1.0 avoids a division by 0.
        share=float(lost.sum() / max(1.0, np.abs(late.lost_ns).sum())),
        own_ns=own,
        busy_ns=busy,
        idle_ns=own - busy,
        sporadic=late.once or len(few) > 0,
        steps=steps,
        **cause._asdict(),
    )


def _cause(
    work: RankWork,
    records: CommRecords,
    ordered: Sequence[int],
    few: Sequence[int],
    steps: Sequence[int | None],
    *,
    busier: bool,
) -> LateCause | None:
    """Return why the first of the `ordered` places is late, compared with the others.

    None if it is late only by its place in a chain of sends. It is late in `few` of the `steps`; if
    `few` is empty, in all. `busier` says that it works longer; else its device is idle longer.
    """
    if not records.devices:
        return late_causes.UNKNOWN
    worst, *others = (records.devices[place] for place in ordered)
    if busier:
        return late_causes.by_kernels(work.kernels([worst, *others], few or steps))
    # What the host does before the first work of a step is in the window of the step before.
    with_previous = [number for step in few for number in (step - 1, step)]
    median = others[(len(others) - 1) // 2]  # the rank with the median own time
    own, usual = work.idle((worst, median), with_previous or steps)
    is_in_chain = bool(records.is_pair.any())
    cause = late_causes.by_idle(own, usual, sporadic=len(few) > 0 and not is_in_chain)
    # In a chain all ranks wait for the host of each: only what stalls a host is a cause.
    if is_in_chain and cause.cause not in late_causes.STALLS:
        return None
    if not cause.label:
        return cause
    processes = numbers(work.trace.devices["process"])[[worst, *others]].tolist()
    is_longer = late_causes.takes_longer(work.trace, cause.label, processes)
    return cause if is_longer else late_causes.SLOW_HOST


def _position(trace: Trace, records: CommRecords, late: IntArray) -> str:
    """Return what the late ranks, and no others, have in common, in words; else "".

    That is a host, a pipeline stage or a local rank. `late` are places, the worst first.
    """
    if not records.devices:
        return ""
    late_places, rows = set(late.tolist()), list(records.devices)
    process, local_id = (numbers(trace.devices[name])[rows] for name in ("process", "local_id"))
    host = codes(trace.processes["host"])[process]
    hosts = [f"host {name.removeprefix('host ')}" for name in names(trace.processes["host"])]
    stage_of_rank: dict[int, str] = {}
    for group in records.groups:
        if group.ranks and _PIPELINE.search(group.name):
            stages = [f"pipeline stage {number}" for number in range(len(group.ranks))]
            stages[0], stages[-1] = "first pipeline stage", "last pipeline stage"
            stage_of_rank |= zip(group.ranks, stages, strict=True)
    # How many late ranks must share a position for it to be named, and the position of each rank,
    # "" if unknown. A single rank may be the only one on its host: that says nothing.
    positions: list[tuple[int, list[str]]] = [
        (2, [[*hosts, ""][code] for code in host.tolist()]),
        (1, [stage_of_rank.get(rank, "") for rank in records.ranks]),
        (2, [f"local rank {local}" for local in local_id.tolist()]),
    ]
    for least, position_of_place in positions:
        position = position_of_place[int(late[0])]
        same = {place for place, other in enumerate(position_of_place) if other == position}
        if position and len(late_places) >= least and late_places == same:
            return position
    return ""
