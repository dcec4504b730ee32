"""Which rank the others wait for, if it is one, and why it is late.

A rank is blamed if most of the time lost to late ranks is due to it, more than chance gives one of
so many equal ranks; or if one delay of it alone costs much. Why is told by what it does between
the ends of steps: its kernels take longer, or it is idle for longer than the median of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from traceflops.attribution import Culprit, IdleCulprits, idle_culprits
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.cycles import Cycles
from traceflops.table import IntArray, axes, codes, group_sums, names, numbers, product_of
from traceflops.timeline import is_top
from traceflops.units import kernel_name
from traceflops.windows import Prepared

UNKNOWN_CAUSE: Final = "unknown"
_WORTH: Final = 0.01
"""Share of the time of the steps that is worth blaming somebody for."""
_MOST: Final = 0.5
_DEVIATIONS: Final = 3.0
"""By so many standard deviations a rank is late more often than one of equal ranks."""
_LONE: Final = 0.05
"""Share of the time that one delay must cost to be blamed though it is the only one."""
_ALIKE: Final = 0.7
"""Share of the time of kernels that is slower by about one factor where the clocks are low."""
_AT_LEAST: Final = 0.4
"""By so much of that factor a kernel must be slower to be one of them."""
Ratios = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SlowRank:
    """The rank that others wait for; times in ns per step.

    `cause` is `slow_clock` (all kernels are slower by one factor), `slow_kernel` (some are),
    `more_work` (more or larger launches), a class of idle culprits, or `unknown`; `label` names the
    kernel or the culprit. `own_ns`, `busy_ns` and `idle_ns` are what it has more of than the median
    of the others. `share` is its part of all time lost to late ranks, `sporadic` says that most of
    that is one step.
    """

    rank: int
    cause: str
    label: str
    factor: float | None
    lost_ns_per_step: int
    share: float
    own_ns: int
    busy_ns: int
    idle_ns: int
    sporadic: bool


def blamed(cycles: Cycles) -> int | None:
    """Return the place of the rank that is to blame for waiting, None where it is none."""
    lost = cycles.lost_ns.astype(np.float64)
    total, length = lost.sum(), float(cycles.length_ns.sum())
    if not total or not length:
        return None
    of_rank = lost.sum(axis=0)
    worst = int(of_rank.argmax())
    if of_rank[worst] < _WORTH * length:
        return None
    fair = 1 / lost.shape[1]
    spread = np.sqrt((lost.sum(axis=1) ** 2).sum() / total**2 * fair * (1 - fair))
    is_often = of_rank[worst] / total >= max(_MOST, fair + _DEVIATIONS * spread)
    return worst if is_often or lost[:, worst].max() >= _LONE * length else None


def slow_rank(work: RankWork, cycles: Cycles, records: CommRecords) -> SlowRank | None:
    """Return the rank to blame and why, None where there is none."""
    worst = blamed(cycles)
    if worst is None:
        return None
    own, busy = (_more(values.mean(axis=0), worst) for values in (cycles.own_ns, cycles.busy_ns))
    lost = cycles.lost_ns[:, worst]
    found = SlowRank(
        rank=records.ranks[worst],
        cause=UNKNOWN_CAUSE,
        label="",
        factor=None,
        lost_ns_per_step=round(int(lost.sum()) / len(lost)),
        share=float(lost.sum() / cycles.lost_ns.sum()),
        own_ns=own,
        busy_ns=busy,
        idle_ns=own - busy,
        sporadic=bool(2 * lost.max() > lost.sum() and len(lost) > 2),
    )
    if found.busy_ns >= found.idle_ns:
        return _by_kernels(found, work.kernels(), worst)
    usual = int(np.argsort(cycles.own_ns.sum(axis=0), kind="stable")[(len(records.ranks) - 1) // 2])
    return _by_idle(found, work.idle(worst), work.idle(usual))


def _more(values: Ratios, place: int) -> int:
    """Return what a rank has more of than the median of the others."""
    return round(float(values[place] - np.median(np.delete(values, place))))


@dataclass(frozen=True, slots=True)
class KernelSums:
    """Launches, their time and their threads by rank (rows) and name of kernel (columns)."""

    names: tuple[str, ...]
    count: IntArray
    time_ns: IntArray
    threads: IntArray

    @classmethod
    def joined(cls, parts: Sequence[KernelSums]) -> KernelSums:
        """Return those of all ranks, one below the other."""
        every = dict.fromkeys(name for part in parts for name in part.names)
        place = {name: at for at, name in enumerate(every)}

        def of(column: str) -> IntArray:
            rows = []
            for part in parts:
                values = getattr(part, column)
                row = np.zeros((len(values), len(place)), dtype=np.int64)
                row[:, [place[name] for name in part.names]] = values
                rows.append(row)
            return np.concatenate(rows)

        return cls(tuple(place), of("count"), of("time_ns"), of("threads"))

    @property
    def used(self) -> KernelSums:
        """Return the same without names that no rank launched."""
        mine = np.flatnonzero(self.count.sum(axis=0))
        names = tuple(self.names[at] for at in mine.tolist())
        return KernelSums(names, self.count[:, mine], self.time_ns[:, mine], self.threads[:, mine])


class RankWork(Protocol):
    """What the ranks did in the chosen windows; ranks are places."""

    def kernels(self) -> KernelSums:
        """Return what kernels ran, communication apart."""

    def idle(self, place: int) -> Mapping[tuple[str, str], int]:
        """Return the idle time of a rank by class and name of what its host did."""


@dataclass(frozen=True, slots=True)
class PreparedWork:
    """The work of the ranks of a prepared trace, one by device."""

    prepared: Prepared
    devices: tuple[int, ...]

    def kernels(self) -> KernelSums:
        """Return what kernels ran, communication apart."""
        return kernel_sums(self.prepared, self.devices)

    def idle(self, place: int) -> dict[tuple[str, str], int]:
        """Return the idle time of a rank by class and name of what its host did."""
        return idle_by_owner(idle_of_device(self.prepared, self.devices[place]).culprits)


def kernel_sums(prepared: Prepared, devices: Sequence[int]) -> KernelSums:
    """Return what kernels ran on some devices in the chosen windows, communication apart."""
    activities, chosen = prepared.trace.activities, prepared.chosen
    row = chosen.row[~is_top(prepared.linked.categorised, "communication", chosen.row)]
    name, labels = codes(activities["name"])[row], names(activities["name"])
    place = np.full(max(devices, default=-1) + 1, -1, dtype=np.int64)
    place[list(devices)] = np.arange(len(devices))
    key = place[numbers(activities["device"])[row]] * len(labels) + name
    shape = (len(devices), len(labels))
    grid, block = (product_of(axes(activities[name]))[row] for name in ("grid", "block"))
    threads = np.where((grid > 0) & (block > 0), grid * block, 0)

    def of(values: IntArray) -> IntArray:
        return group_sums(key, values, shape[0] * shape[1]).reshape(shape)

    durations = numbers(activities["dur_ns"])[row]
    return KernelSums(tuple(labels), of(np.ones_like(row)), of(durations), of(threads))


def _by_kernels(found: SlowRank, sums: KernelSums, worst: int) -> SlowRank:
    """Return why the kernels of a rank take longer than the median of the others."""
    others = np.delete(np.arange(len(sums.count)), worst)
    count, usual_count = sums.count[worst], np.median(sums.count[others], axis=0)
    each = _ratio(sums.time_ns[worst], count)
    usual = _ratio(sums.time_ns[others].sum(axis=0), sums.count[others].sum(axis=0))
    both = np.flatnonzero((count > 0) & (usual_count > 0) & (usual > 0))
    slower = (each - usual)[both] * np.minimum(count, usual_count)[both]
    extra = (sums.time_ns[worst] - np.median(sums.time_ns[others], axis=0)).clip(0)
    threads = _ratio(sums.threads[others].sum(axis=0), sums.count[others].sum(axis=0))
    larger = _ratio(_ratio(sums.threads[worst], count), threads)
    if not len(both) or slower.clip(0).sum() < extra.sum() / 2:
        return replace(found, cause="more_work", label=_name(sums, int(extra.argmax())))
    top = int(both[slower.argmax()])
    if larger[top] >= 1 + _AT_LEAST * (each[top] / usual[top] - 1):
        return replace(found, cause="more_work", label=_name(sums, top))
    time = (usual * usual_count)[both]
    factor = float((each[both] / usual[both] * time).sum() / time.sum())
    alike = each[both] / usual[both] >= 1 + _AT_LEAST * (factor - 1)
    if factor > 1 and time[alike].sum() >= _ALIKE * time.sum():
        return replace(found, cause="slow_clock", factor=factor)
    return replace(
        found, cause="slow_kernel", label=_name(sums, top), factor=float(each[top] / usual[top])
    )


def _ratio(some: Ratios | IntArray, of: Ratios | IntArray) -> Ratios:
    return np.divide(some, of, out=np.zeros(some.shape), where=of > 0)


def _name(sums: KernelSums, place: int) -> str:
    return kernel_name(sums.names[place])


def _by_idle(
    found: SlowRank, mine: Mapping[tuple[str, str], int], theirs: Mapping[tuple[str, str], int]
) -> SlowRank:
    """Return what the host of a rank does while it is idle, beyond what that of another does."""
    more = {owner: ns - theirs.get(owner, 0) for owner, ns in mine.items()}
    of_class: defaultdict[str, int] = defaultdict(int)
    for (kind, _), ns in more.items():
        of_class[kind] += ns
    if not of_class:
        return found
    cause = max(of_class, key=lambda kind: of_class[kind])
    label = max((owner for owner in more if owner[0] == cause), key=lambda owner: more[owner])[1]
    return replace(found, cause=cause, label=label)


def idle_by_owner(culprits: Iterable[Culprit]) -> dict[tuple[str, str], int]:
    """Return the idle time by class and name."""
    return {(culprit.kind, culprit.label): culprit.idle_ns for culprit in culprits}


def idle_of_device(prepared: Prepared, device: int) -> IdleCulprits:
    """Return what the host did while one device was idle."""
    alone = replace(
        prepared,
        accounts={device: prepared.accounts[device]},
        windows={device: prepared.windows[device]},
    )
    return idle_culprits(alone, 0)
