"""Which rank the others wait for, if it is one or a few, and why it is late.

Ranks are blamed if their own time exceeds that of the others by more than chance gives one of so
many equal ranks; or if one delay of them alone costs much. Why is told by what the worst does
between the ends of steps: its kernels take longer, or it is idle for longer than the others. Where
ranks send to each other in a chain, all wait in turn for the host of each, by its place: there a
rank is blamed for what stalls its host, not for launching.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb, log, log1p
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import Culprit, IdleCulprits, culprits_of_devices
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.cycles import Cycles
from traceflops.ranks.late_causes import (
    SLOW_HOST,
    STALLS,
    UNKNOWN,
    KernelSums,
    LateCause,
    by_idle,
    by_kernels,
    kernel_sums,
    takes_longer,
)
from traceflops.table.columns import FloatArray, IntArray, codes, names, numbers
from traceflops.table.trace import Trace
from traceflops.timeline.records import Window
from traceflops.windows.periodicity import LAST_STEP
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_activities, chosen_time

_WORTH: Final = 0.01
"""Share of the time of the steps that is worth blaming somebody for."""
_APART: Final = 1 / 3
"""By so much of its own lateness a rank is apart from those that are not late."""
_DEVIATIONS: Final = 2.6
"""So many standard deviations are no chance where nobody chose which ranks to look at."""
_LONE: Final = 0.02
"""Share of the time that one delay must cost to be blamed though it is the only one."""
_OUTLIER: Final = 3
"""So many times as long as any delay of the others it must be."""
_EACH: Final = 0.04
"""Share of each of several cycles lost to a single rank that is no chance, few as they may be."""
_SCARCE: Final = 6
"""With so many cycles of other ranks to compare with, both must be twice as much."""
_LONG: Final = 2
"""Of so many steps a summary tells by itself what their time went to."""
_PIPELINE: Final = re.compile(r"(^|[^a-z])(pp|pipeline)([^a-z]|$)", re.IGNORECASE)


class SlowRank(Struct, frozen=True):
    """The rank that others wait for, the worst of `ranks` if several are late; times are per step.

    `cause` is `slow_clock` (all kernels are slower by one factor), `slow_kernel` (some are),
    `more_work` (more or larger launches), `checkpoint`,
    `gc_pause`, `memory_pressure`, a class of idle culprits, `slow_host` (no name takes longer than
    on the others) or `unknown`;
    `label` names the kernel or the culprit. `lost_ns_per_step` is by how much own times exceed
    those of all ranks that are not late; `share` is its part of what is lost so to any rank.
    `own_ns`, `busy_ns` and `idle_ns` are what it has more of than the median of these. `position`
    says what several late ranks have in common. `sporadic` says that few steps have most of it,
    `steps`, or that only one delay tells of it.
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
    """The places of the ranks that are late, the worst first, and of those that are not.

    `lost_ns` is, by cycle, by how much the longest own time of the first exceeds that of the
    others, `gap_ns` the same of their means. `once` says that only a single delay tells so.
    """

    places: IntArray
    rest: IntArray
    lost_ns: FloatArray
    gap_ns: FloatArray
    once: bool = False


def late_ranks(cycles: Cycles) -> Late | None:
    """Return who is to blame for waiting, None where it is nobody."""
    own = (cycles.length_ns[:, None] - cycles.held_ns).astype(np.float64)
    if not own.size or own.shape[1] < 2:
        return None
    more = own - np.median(own, axis=1, keepdims=True)
    mean = more.mean(axis=0)
    order = np.argsort(-mean, kind="stable")
    apart = -np.diff(mean[order])[: max(1, len(order) // 2)]
    count = int(apart.argmax()) + 1
    late, rest = order[:count], order[count:]
    gap = own[:, late].mean(axis=1) - own[:, rest].mean(axis=1)
    lost = own[:, late].max(axis=1) - own[:, rest].max(axis=1)
    length = float(cycles.length_ns.sum())
    often = lost.sum() >= _WORTH * length and _is_more_than_chance(more, count, gap.mean())
    scarce = 1 + _SCARCE / more[:, rest].size
    alone = lost.max() >= scarce * max(_LONE * length, _OUTLIER * more[:, rest].max())
    always = count == 1 < len(lost) and bool((lost >= _EACH * cycles.length_ns).all())
    is_apart = apart[count - 1] >= _APART * mean[order[0]]
    lasts = often or always
    return Late(late, rest, lost, gap, once=not lasts) if is_apart and (lasts or alone) else None


def _is_more_than_chance(more: FloatArray, late: int, gap_ns: float) -> bool:
    """Return whether equal ranks would hardly ever have such a mean gap between some and the rest.

    That is t of Student, by what each rank varies from cycle to cycle, as z by Wallace (1959). The
    more ways there are to take so many of the ranks, the more it must be.
    """
    count, ranks = more.shape
    free = (count - 1) * (ranks - 1)
    if not free or gap_ns <= 0:
        return False
    square = float(((more - more.mean(axis=0)) ** 2).sum())
    error = max(1.0, square / free * (1 / late + 1 / (ranks - late)) / count)
    score = ((8 * free + 1) / (8 * free + 3)) ** 2 * free * log1p(gap_ns**2 / error / free)
    return bool(score >= _DEVIATIONS**2 + 2 * log(comb(ranks, late)))


class RankWork(Protocol):
    """What the devices of the ranks did; `trace` describes them."""

    @property
    def trace(self) -> Trace:
        """Return a trace of the same processes and devices."""

    @property
    def windows(self) -> Mapping[int, tuple[Window, ...]]:
        """Return the windows by device."""

    def kernels(self, devices: Sequence[int], steps: Sequence[int | None]) -> KernelSums:
        """Return what ran on devices in some steps, if they are known apart."""

    def idle(
        self, devices: Sequence[int], steps: Sequence[int | None]
    ) -> Sequence[Sequence[Culprit]]:
        """Return what the host of each device did while that was idle, in such steps."""


class PreparedWork(Struct, frozen=True):
    """The work that a prepared trace tells."""

    prepared: Prepared

    @property
    def trace(self) -> Trace:
        """Return the trace."""
        return self.prepared.trace

    @property
    def windows(self) -> Mapping[int, tuple[Window, ...]]:
        """Return the windows by device."""
        return self.prepared.windows

    def kernels(self, devices: Sequence[int], steps: Sequence[int | None]) -> KernelSums:
        """Return what ran on devices in some steps; where these are none, in chosen windows."""
        return self.kernels_of_each(devices, [steps])[0]

    def kernels_of_each(
        self, devices: Sequence[int], choices: Sequence[Sequence[int | None]]
    ) -> list[KernelSums]:
        """Return the kernel sums for each choice of steps."""
        accounts, chosen = {device: self.prepared.accounts[device] for device in devices}, []
        for steps in choices:
            windows = {device: self._windows(device, steps) for device in devices}
            chosen.append(chosen_activities(accounts, windows))
        return kernel_sums(self.prepared, chosen, devices)

    def idle(
        self, devices: Sequence[int], steps: Sequence[int | None]
    ) -> list[tuple[Culprit, ...]]:
        """Return what the host of each device did while that was idle, in such steps."""
        asked = [{device: chosen_time(self._windows(device, steps))} for device in devices]
        return [culprits.culprits for culprits in culprits_of_devices(self.prepared, asked)]

    def idle_of_each(
        self, devices: Sequence[int], choices: Sequence[Sequence[int | None]]
    ) -> tuple[IdleCulprits, list[list[tuple[Culprit, ...]]]]:
        """Return the culprits of all devices, and those per choice of steps and device."""
        chosen = {device: chosen_time(self.windows[device]) for device in self.prepared.accounts}
        of_each = [
            {device: chosen_time(self._windows(device, steps))}
            for steps in choices
            for device in devices
        ]
        whole, *each = culprits_of_devices(self.prepared, [chosen, *of_each])
        culprits = iter(each)
        return whole, [[next(culprits).culprits for _ in devices] for _ in choices]

    def _windows(self, device: int, steps: Sequence[int | None]) -> tuple[Window, ...]:
        """Return the windows of a device with some steps chosen, if they are steps."""
        windows, wanted = self.windows[device], set(steps)
        if None in wanted or not wanted:
            return windows
        return tuple(replace(window, used=True) for window in windows if window.step in wanted)

    def long_steps(self) -> tuple[int, ...]:
        """Return the longest usual steps and their neighbours, which other ranks may number so."""
        length_ns: Counter[int | None] = Counter()
        for window in itertools.chain(*self.windows.values()):
            length_ns[window.step] += window.end_ns - window.start_ns
        usual = sorted(self.usual_steps(), key=lambda step: -length_ns[step])
        return tuple(sorted({near for step in usual[:_LONG] for near in range(step - 1, step + 2)}))

    def usual_steps(self) -> tuple[int, ...]:
        """Return the steps that are compared: chosen ones, and the last, that follow another."""
        windows = [*itertools.chain(*self.windows.values())]
        wanted = {window.step for window in windows if window.used or window.left_out == LAST_STEP}
        seen = {window.step for window in windows}
        return tuple(sorted(step for step in wanted if step is not None and step - 1 in seen))


def slow_rank(work: RankWork, cycles: Cycles, records: CommRecords) -> SlowRank | None:
    """Return the rank to blame and why, None where there is none."""
    late = late_ranks(cycles)
    if late is None:
        return None
    # What the worst has more of per step than the median of those that are not late.
    worst = int(late.places[0])
    more = [
        float((ns[:, worst] - np.median(ns[:, late.rest], axis=1)).sum())
        for ns in (-cycles.held_ns, cycles.busy_ns)
    ]
    own, busy = (round(ns / cycles.count) for ns in more)
    lost = late.lost_ns.clip(0)
    # The cycles that have most of the gap if they are less than half of all.
    few = np.flatnonzero(2 * late.gap_ns >= late.gap_ns.max())
    is_most = 2 * late.gap_ns[few].sum() > late.gap_ns.clip(0).sum()
    if not is_most or 2 * len(few) >= len(late.gap_ns):
        few = few[:0]
    steps = tuple(step for cycle in few.tolist() if (step := cycles.steps[cycle]) is not None)
    usual = late.rest[np.argsort(-cycles.held_ns[:, late.rest].sum(axis=0), kind="stable")]
    ordered = [worst, *usual.tolist()]
    cause = _cause(work, records, ordered, steps, cycles.steps, busier=busy >= own - busy)
    position = _position(work.trace, records, late.places)
    # Ranks of a single delay have something in common. Where nothing but parts of steps can be
    # compared, each of other collectives, the cause must be known.
    is_sure = cycles.has_steps or cycles.is_joint
    alike = len(late.places) == 1 or position or (is_sure and not late.once)
    if cause is None or not alike or not (is_sure or cause != UNKNOWN):
        return None
    return SlowRank(
        rank=records.ranks[worst],
        ranks=tuple(sorted(records.ranks[place] for place in late.places.tolist())),
        position=position,
        lost_ns_per_step=round(float(lost.sum()) / cycles.count),
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
    """Return why the first of the ranks is late; `few` are the steps in which it is, if not all.

    None if that is its place in a chain.
    """
    if not records.devices:
        return UNKNOWN
    worst, *others = (records.devices[place] for place in ordered)
    if busier:
        return by_kernels(work.kernels([worst, *others], few or steps))
    # What the host does before the first work of a step is in the window of the step before.
    wider = [number for step in few for number in (step - 1, step)]
    middle = others[(len(others) - 1) // 2]
    own, usual = work.idle((worst, middle), wider or steps)
    in_chain = bool(records.is_pair.any())
    cause = by_idle(own, usual, sporadic=len(few) > 0 and not in_chain)
    if in_chain and cause.cause not in STALLS:
        return None
    process = numbers(work.trace.devices["process"])[[worst, *others]].tolist()
    is_named = cause.label and takes_longer(work.trace, cause.label, process)
    return cause if is_named or not cause.label else SLOW_HOST


def _position(trace: Trace, records: CommRecords, late: IntArray) -> str:
    """Return what several late ranks are, and no other: a host, a pipeline stage, a local rank."""
    if not records.devices:
        return ""
    late_places, rows = set(late.tolist()), list(records.devices)
    process, local_id = (numbers(trace.devices[name])[rows] for name in ("process", "local_id"))
    host = codes(trace.processes["host"])[process]
    hosts = [f"host {name.removeprefix('host ')}" for name in names(trace.processes["host"])]
    stage: dict[int, str] = {}
    for group in records.groups:
        members = group.ranks or () if _PIPELINE.search(group.name) else ()
        stages = [f"pipeline stage {number}" for number in range(len(members))]
        stages[:1], stages[-1:] = ["first pipeline stage"], ["last pipeline stage"]
        stage |= zip(members, stages, strict=False)
    words: list[tuple[int, list[str]]] = [
        (2, [[*hosts, ""][code] for code in host.tolist()]),
        (1, [stage.get(rank, "") for rank in records.ranks]),
        (2, [f"local rank {local}" for local in local_id.tolist()]),
    ]
    for least, of_rank in words:
        word = of_rank[int(late[0])]
        alike = {place for place, other in enumerate(of_rank) if other == word}
        if word and len(late_places) >= least and late_places == alike:
            return word
    return ""
