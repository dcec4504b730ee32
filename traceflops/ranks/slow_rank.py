"""Which rank the others wait for, if it is one, and why it is late.

A rank is blamed if most of the time lost to late ranks is due to it, more than chance gives one of
so many equal ranks; or if one delay of it alone costs much. Why is told by what it does between
the ends of steps: its kernels take longer, or it is idle for longer than the median of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

import numpy as np
import numpy.typing as npt

from traceflops.attribution import idle_culprits
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


def slow_rank(prepared: Prepared, cycles: Cycles, records: CommRecords) -> SlowRank | None:
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
    if not records.devices:
        return found
    if found.busy_ns >= found.idle_ns:
        return _by_kernels(found, _kernel_sums(prepared, records.devices), worst)
    usual = int(np.argsort(cycles.own_ns.sum(axis=0), kind="stable")[(len(records.ranks) - 1) // 2])
    return _by_idle(found, prepared, records.devices[worst], records.devices[usual])


def _more(values: Ratios, place: int) -> int:
    """Return what a rank has more of than the median of the others."""
    return round(float(values[place] - np.median(np.delete(values, place))))


@dataclass(frozen=True, slots=True)
class _KernelSums:
    """Launches, their time and their threads by device (rows) and name of kernel (columns)."""

    names: tuple[str, ...]
    count: Ratios
    time_ns: Ratios
    threads: Ratios


def _kernel_sums(prepared: Prepared, devices: Sequence[int]) -> _KernelSums:
    activities, chosen = prepared.trace.activities, prepared.chosen
    row = chosen.row[~is_top(prepared.linked.categorised, "communication", chosen.row)]
    name, labels = codes(activities["name"])[row], names(activities["name"])
    place = np.full(max(devices) + 1, -1, dtype=np.int64)
    place[list(devices)] = np.arange(len(devices))
    key = place[numbers(activities["device"])[row]] * len(labels) + name
    shape = (len(devices), len(labels))
    grid, block = (product_of(axes(activities[name]))[row] for name in ("grid", "block"))
    threads = np.where((grid > 0) & (block > 0), grid * block, 0)

    def of(values: IntArray) -> Ratios:
        return group_sums(key, values, shape[0] * shape[1]).reshape(shape).astype(np.float64)

    durations = numbers(activities["dur_ns"])[row]
    return _KernelSums(tuple(labels), of(np.ones_like(row)), of(durations), of(threads))


def _by_kernels(found: SlowRank, sums: _KernelSums, worst: int) -> SlowRank:
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
    factor = fsum(each[both] / usual[both] * time) / fsum(time)  # whatever the order of names
    alike = each[both] / usual[both] >= 1 + _AT_LEAST * (factor - 1)
    if factor > 1 and time[alike].sum() >= _ALIKE * time.sum():
        return replace(found, cause="slow_clock", factor=factor)
    return replace(
        found, cause="slow_kernel", label=_name(sums, top), factor=float(each[top] / usual[top])
    )


def _ratio(some: Ratios, of: Ratios) -> Ratios:
    return np.divide(some, of, out=np.zeros_like(some), where=of > 0)


def _name(sums: _KernelSums, place: int) -> str:
    return kernel_name(sums.names[place])


def _by_idle(found: SlowRank, prepared: Prepared, device: int, usual: int) -> SlowRank:
    """Return what the host of a rank does while it is idle, beyond what that of another does."""
    mine, theirs = (_idle_by_owner(prepared, one) for one in (device, usual))
    more = {owner: ns - theirs.get(owner, 0) for owner, ns in mine.items()}
    of_class: defaultdict[str, int] = defaultdict(int)
    for (kind, _), ns in more.items():
        of_class[kind] += ns
    if not of_class:
        return found
    cause = max(of_class, key=lambda kind: of_class[kind])
    label = max((owner for owner in more if owner[0] == cause), key=lambda owner: more[owner])[1]
    return replace(found, cause=cause, label=label)


def _idle_by_owner(prepared: Prepared, device: int) -> dict[tuple[str, str], int]:
    alone = replace(
        prepared,
        accounts={device: prepared.accounts[device]},
        windows={device: prepared.windows[device]},
    )
    idle = idle_culprits(alone, 0)
    return {(culprit.kind, culprit.label): culprit.idle_ns for culprit in idle.culprits}
