"""Which rank the others wait for, if it is one or a few, and why it is late.

Ranks are blamed if their own time exceeds that of the others by more than chance gives one of so
many equal ranks; or if one delay of them alone costs much. Why is told by what the worst does
between the ends of steps: its kernels take longer, or it is idle for longer than the others.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb, log, log1p, prod
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from traceflops.attribution import Culprit, idle_culprits
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.cycles import Cycles
from traceflops.table import (
    IntArray,
    axes,
    codes,
    group_sums,
    names,
    numbers,
    product_of,
    ranked,
    taken,
)
from traceflops.timeline import is_top
from traceflops.units import kernel_name
from traceflops.windows import Prepared

UNKNOWN_CAUSE: Final = "unknown"
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
"""Share of each of several cycles that is no chance, few as they may be."""
_SCARCE: Final = 6
"""With so many cycles of other ranks to compare with, both must be twice as much."""
_ALIKE: Final = 0.7
"""Share of the time of kernels that is slower by about one factor where the clocks are low."""
_AT_LEAST: Final = 0.4
"""By so much of that factor a kernel must be slower to be one of them."""
_MOST_ELEMENTS: Final = 1 << 40
_ALL_TO_ALL: Final = re.compile(r"all_?to_?all", re.IGNORECASE)
_PIPELINE: Final = re.compile(r"(^|[^a-z])(pp|pipeline)([^a-z]|$)", re.IGNORECASE)
_PAUSES: Final = {
    "checkpoint": re.compile(
        r"torch[./]serialization|torch\.save|save_checkpoint|checkpoint_save|dist\w*[./]checkpoint"
        r"|safetensors|\bstate_dict|_write_bytes|(^|\W)(f?write|pwrite(64)?|fsync|fdatasync)($|\W)"
    ),
    "gc_pause": re.compile(r"(^|\W)gc(\.collect|\.py|_collect)|function collect>|of module gc"),
    "memory_pressure": re.compile(r"^memory_alloc "),
}
"""What idle time is due to by its class and the names in it, where that says more."""
_HOST: Final = frozenset({"host_code", "eager_overhead", "host_unrecorded", "optimizer_loop"})
"""Classes of idle time in which the host may stand still: in few steps that is a pause."""
Ratios = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SlowRank:
    """The rank that others wait for, the worst of `ranks` if several are late; times are per step.

    `cause` is `slow_clock` (all kernels are slower by one factor), `slow_kernel` (some are),
    `more_work` (more or larger launches), one of _PAUSES, a class of idle culprits or `unknown`;
    `label` names the kernel or the culprit. `lost_ns_per_step` is by how much own times exceed
    those of all ranks that are not late; `share` is its part of what is lost so to any rank.
    `own_ns`, `busy_ns` and `idle_ns` are what it has more of than the median of these. `position`
    says what several late ranks have in common. `sporadic` says that few steps have most of it:
    `steps`.
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


@dataclass(frozen=True, slots=True)
class Late:
    """The places of the ranks that are late, the worst first, and of those that are not.

    `lost_ns` is, by cycle, by how much the longest own time of the first exceeds that of the
    others, `gap_ns` the same of their means.
    """

    places: IntArray
    rest: IntArray
    lost_ns: Ratios
    gap_ns: Ratios


def late_ranks(cycles: Cycles) -> Late | None:
    """Return who is to blame for waiting, None where it is nobody."""
    own = (cycles.length_ns[:, None] - cycles.sure_ns).astype(np.float64)
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
    often = gap.sum() >= _WORTH * length and _is_more_than_chance(more, count, gap.mean())
    scarce = 1 + _SCARCE / more[:, rest].size
    alone = lost.max() >= scarce * max(_LONE * length, _OUTLIER * more[:, rest].max())
    always = len(lost) > 1 and bool((lost >= _EACH * cycles.length_ns).all())
    is_apart = apart[count - 1] >= _APART * mean[order[0]]
    return Late(late, rest, lost, gap) if is_apart and (often or always or alone) else None


def _is_more_than_chance(more: Ratios, late: int, gap_ns: float) -> bool:
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
    return score >= _DEVIATIONS**2 + 2 * log(comb(ranks, late))


def slow_rank(prepared: Prepared, cycles: Cycles, records: CommRecords) -> SlowRank | None:
    """Return the rank to blame and why, None where there is none."""
    late = late_ranks(cycles)
    if late is None:
        return None
    worst = int(late.places[0])
    own, busy = (
        round(
            float((values[:, worst] - np.median(values[:, late.rest], axis=1)).sum()) / cycles.count
        )
        for values in (cycles.own_ns, cycles.busy_ns)
    )
    lost, large = late.lost_ns.clip(0), _few(late.gap_ns)
    found = SlowRank(
        rank=records.ranks[worst],
        ranks=tuple(sorted(records.ranks[place] for place in late.places.tolist())),
        position=_position(prepared, records, late.places),
        cause=UNKNOWN_CAUSE,
        label="",
        factor=None,
        lost_ns_per_step=round(float(lost.sum()) / cycles.count),
        share=float(lost.sum() / max(1.0, np.abs(late.lost_ns).sum())),
        own_ns=own,
        busy_ns=busy,
        idle_ns=own - busy,
        sporadic=bool(len(large)),
        steps=tuple(
            step for step in (cycles.steps[at] for at in large.tolist()) if step is not None
        ),
    )
    if found.busy_ns >= found.idle_ns:
        prepared = _within(prepared, found.steps or cycles.steps)
        return _by_kernels(found, _kernel_sums(prepared, records, [worst, *late.rest.tolist()]))
    # What the host does before the first work of a step is in the window of the step before.
    few = [number for step in found.steps for number in (step - 1, step)]
    middle = late.rest[np.argsort(cycles.own_ns[:, late.rest].sum(axis=0), kind="stable")]
    pair = [records.devices[place] for place in (worst, middle[(len(middle) - 1) // 2])]
    return _by_idle(found, _within(prepared, few or cycles.steps), *pair)


def _few(gap_ns: Ratios) -> IntArray:
    """Return the cycles that have most of a gap if they are less than half of all."""
    large = np.flatnonzero(2 * gap_ns >= gap_ns.max())
    is_most = 2 * gap_ns[large].sum() > gap_ns.clip(0).sum()
    return large if is_most and 2 * len(large) < len(gap_ns) else large[:0]


def _within(prepared: Prepared, steps: Sequence[int | None]) -> Prepared:
    """Return the same with some steps chosen, if they are steps."""
    windows = {
        device: tuple(replace(one, used=one.step in steps) for one in several)
        for device, several in prepared.windows.items()
    }
    return prepared if None in steps else replace(prepared, windows=windows)


def _position(prepared: Prepared, records: CommRecords, late: IntArray) -> str:
    """Return what several late ranks are, and no other: a host, a pipeline stage, a local rank."""
    trace, mine = prepared.trace, set(late.tolist())
    device = trace.devices.take(list(records.devices))
    host = codes(trace.processes["host"])[numbers(device["process"])]
    labels = names(trace.processes["host"])
    words: list[tuple[int, list[str]]] = [
        (
            2,
            [
                f"host {labels[code].removeprefix('host ')}" if code >= 0 else ""
                for code in host.tolist()
            ],
        ),
        (1, _stages(records)),
        (2, [f"local rank {local}" for local in numbers(device["local_id"]).tolist()]),
    ]
    for least, of_rank in words:
        word = of_rank[int(late[0])]
        if (
            word
            and len(mine) >= least
            and mine == {at for at, one in enumerate(of_rank) if one == word}
        ):
            return word
    return ""


def _stages(records: CommRecords) -> list[str]:
    """Return the pipeline stage of each rank, "" where it is not known."""
    stage: dict[int, str] = {}
    for group in records.groups:
        members = group.ranks or () if _PIPELINE.search(group.name) else ()
        named = [f"pipeline stage {at}" for at in range(len(members))]
        named[:1], named[-1:] = ["first pipeline stage"], ["last pipeline stage"]
        stage |= zip(members, named, strict=False)
    return [stage.get(rank, "") for rank in records.ranks]


@dataclass(frozen=True, slots=True)
class _KernelSums:
    """Launches, their time and size by device (rows) and name of kernel (columns).

    The first device is the slow one. Sizes are threads and elements that launching operators are
    given; `received` is what each device got in all-to-alls.
    """

    names: tuple[str, ...]
    count: Ratios
    time_ns: Ratios
    sizes: tuple[Ratios, ...]
    received: Ratios


def _kernel_sums(prepared: Prepared, records: CommRecords, places: Sequence[int]) -> _KernelSums:
    activities, chosen = prepared.trace.activities, prepared.chosen
    is_comm = is_top(prepared.linked.categorised, "communication", chosen.row)
    devices = [records.devices[place] for place in places]
    place = np.full(max(records.devices) + 1, -1, dtype=np.int64)
    place[devices] = np.arange(len(devices))
    labels = names(activities["name"])

    def of(rows: IntArray, values: IntArray, column: IntArray, columns: int) -> Ratios:
        at = place[numbers(activities["device"])[rows]]
        key = np.where(at < 0, -1, at * columns + column)
        return group_sums(key, values, len(devices) * columns).reshape(-1, columns).astype(float)

    row, moved = chosen.row[~is_comm], _exchanges(prepared, chosen.row[is_comm])
    by_name = partial(of, row, column=codes(activities["name"])[row], columns=len(labels))
    grid, block = (product_of(axes(activities[name]))[row] for name in ("grid", "block"))
    got = numbers(activities["collective_out_elements"], 0)[moved]
    return _KernelSums(
        tuple(labels),
        by_name(np.ones_like(row)),
        by_name(numbers(activities["dur_ns"])[row]),
        (
            by_name(np.where((grid > 0) & (block > 0), grid * block, 0)),
            by_name(_given(prepared, row)),
        ),
        of(moved, got, np.zeros_like(moved), 1)[:, 0],
    )


def _exchanges(prepared: Prepared, row: IntArray) -> IntArray:
    """Return which kernels are all-to-alls, in which ranks get what they have to work on."""
    column = prepared.trace.activities["collective"]
    is_exchange = np.array(
        [*(_ALL_TO_ALL.search(name) is not None for name in names(column)), False]
    )
    return row[is_exchange[codes(column)[row]]]


def _given(prepared: Prepared, row: IntArray) -> IntArray:
    """Return how many elements the operators that launched some activities were given, or 0."""
    column = prepared.trace.ops["input_dims"]
    used, which = ranked(taken(codes(column), prepared.linked.links.op_of_activity[row]))
    texts = names(column)
    sizes = [_elements(msgspec.json.decode(texts[one])) if one >= 0 else 0 for one in used.tolist()]
    return np.array([*sizes, 0], dtype=np.int64)[which]


def _elements(dims: Any) -> int:
    """Return the elements of a tensor, or of several together; a scalar has none."""
    parts = dims if isinstance(dims, list) else []
    if parts and all(isinstance(one, int) for one in parts):
        return min(prod(parts), _MOST_ELEMENTS)
    return min(sum(map(_elements, parts)), _MOST_ELEMENTS)


def _by_kernels(found: SlowRank, sums: _KernelSums) -> SlowRank:
    """Return why the kernels of the first device take longer than those of the others."""
    count, usual_count = sums.count[0], np.median(sums.count[1:], axis=0)
    each, usual = _per(sums.time_ns, sums.count)
    both = np.flatnonzero((count > 0) & (usual_count > 0) & (usual > 0))
    slower = (each - usual)[both] * np.minimum(count, usual_count)[both]
    extra = (sums.time_ns[0] - np.median(sums.time_ns[1:], axis=0)).clip(0)
    if not len(both) or slower.clip(0).sum() < extra.sum() / 2:
        return replace(found, cause="more_work", label=_name(sums, int(extra.argmax())))
    top = int(both[slower.argmax()])
    sizes = [_ratio(*_per(size, sums.count))[top] for size in sums.sizes]
    received = _ratio(sums.received[:1], np.median(sums.received[1:], keepdims=True))[0]
    if max(*sizes, received) >= 1 + _AT_LEAST * (each[top] / usual[top] - 1):
        return replace(found, cause="more_work", label=_name(sums, top))
    time = (usual * usual_count)[both]
    factor = float((each[both] / usual[both] * time).sum() / time.sum())
    alike = each[both] / usual[both] >= 1 + _AT_LEAST * (factor - 1)
    others = np.where(both == top, 0, time)
    is_clock = 2 * others[alike].sum() >= others.sum()  # one large kernel is not all
    if factor > 1 and is_clock and time[alike].sum() >= _ALIKE * time.sum():
        return replace(found, cause="slow_clock", factor=factor)
    return replace(
        found, cause="slow_kernel", label=_name(sums, top), factor=float(each[top] / usual[top])
    )


def _per(sums: Ratios, count: Ratios) -> tuple[Ratios, Ratios]:
    """Return the mean of the first device by kernel, and that of the others."""
    return _ratio(sums[0], count[0]), _ratio(sums[1:].sum(axis=0), count[1:].sum(axis=0))


def _ratio(some: Ratios, of: Ratios) -> Ratios:
    return np.divide(some, of, out=np.zeros_like(some), where=of > 0)


def _name(sums: _KernelSums, place: int) -> str:
    return kernel_name(sums.names[place])


def _by_idle(found: SlowRank, prepared: Prepared, device: int, usual: int) -> SlowRank:
    """Return what the host of a rank does while it is idle, beyond what that of another does."""
    more = _idle_by_cause(prepared, device, found)
    for cause, labels in _idle_by_cause(prepared, usual, found).items():
        more[cause].subtract(labels)
    if not any(more.values()):
        return found
    cause, labels = max(more.items(), key=lambda one: one[1].total())
    return replace(found, cause=cause, label=max(labels, key=lambda label: labels[label]))


def _idle_by_cause(
    prepared: Prepared, device: int, found: SlowRank
) -> defaultdict[str, Counter[str]]:
    alone = replace(
        prepared,
        accounts={device: prepared.accounts[device]},
        windows={device: prepared.windows[device]},
    )
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for culprit in idle_culprits(alone, 0).culprits:
        sums[_idle_cause(culprit, found)][culprit.label] += culprit.idle_ns
    return sums


def _idle_cause(culprit: Culprit, found: SlowRank) -> str:
    """Return what idle time is due to: what the names in it say, else its class."""
    text = " ".join((culprit.kind, culprit.label, *culprit.evidence))
    told = (cause for cause, words in _PAUSES.items() if words.search(text))
    is_pause = found.sporadic and culprit.kind in _HOST
    return next(told, "gc_pause" if is_pause else culprit.kind)
