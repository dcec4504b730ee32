"""Why a rank is late: what its kernels take longer for, or what its host does meanwhile.

Kernels are compared by name with those of the other ranks, idle time by what it is due to.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import fsum, prod
from typing import Any, Final, NamedTuple

import numpy as np

from traceflops.attribution import Culprit
from traceflops.characters import kernel_name
from traceflops.flops import Shapes, read_shapes
from traceflops.table import (
    BoolArray,
    FloatArray,
    IntArray,
    axes,
    codes,
    group_sums,
    matching,
    names,
    numbers,
    product_of,
    ranked,
    taken,
)
from traceflops.timeline import is_top
from traceflops.windows import InWindows, Prepared

_ALIKE: Final = 0.7
"""Share of the time of kernels that is slower by about one factor where the clocks are low."""
_AT_LEAST: Final = 0.4
"""By so much of that factor a kernel must be slower to be one of them."""
_MOST_ELEMENTS: Final = 1 << 40
_ALL_TO_ALL: Final = re.compile(r"all_?to_?all", re.IGNORECASE)
_PAUSES: Final = {
    "checkpoint": re.compile(
        r"torch[./]serialization|torch\.save|save_checkpoint|checkpoint_save|dist\w*[./]checkpoint"
        r"|safetensors|\bstate_dict|_write_bytes|(^|\W)(f?write|pwrite(64)?|fsync|fdatasync)($|\W)"
    ),
    "gc_pause": re.compile(r"(^|\W)gc(\.collect|\.py|_collect)|function collect>|of module gc"),
    "memory_pressure": re.compile(r"^memory_alloc "),
}
"""What idle time is due to by its class and the names in it, where that says more."""
STALLS: Final = frozenset(
    {
        "data_input",
        "host_code",
        "memory_alloc",
        "slow_driver_call",
        "own_sleep",
        "external_wait",
        *_PAUSES,
    }
)
"""Causes of which one name holds up the host."""
_HOST: Final = frozenset({"host_code", "eager_overhead", "host_unrecorded", "optimizer_loop"})
"""Classes of idle time in which the host may stand still: in few steps that is a pause."""


class LateCause(NamedTuple):
    """Why a rank is late: a name, the kernel or culprit, and by which factor kernels are slower."""

    cause: str
    label: str
    factor: float | None = None


UNKNOWN: Final = LateCause("unknown", "")


@dataclass(frozen=True, slots=True)
class KernelSums:
    """Launches, their time and size by device (rows) and name of kernel (columns).

    Sizes are the threads, and the elements that launching operators are given; `received` is what
    each device got in all-to-alls.
    """

    names: tuple[str, ...]
    count: IntArray
    time_ns: IntArray
    threads: IntArray
    given: IntArray
    received: IntArray

    @classmethod
    def joined(cls, parts: Sequence[KernelSums]) -> KernelSums:
        """Return those of all devices, one below the other."""
        every = dict.fromkeys(name for part in parts for name in part.names)
        place = {name: at for at, name in enumerate(every)}

        def of(column: str) -> IntArray:
            found = np.zeros((sum(len(part.count) for part in parts), len(place)), dtype=np.int64)
            begin = 0
            for part in parts:
                rows = slice(begin, begin := begin + len(part.count))
                found[rows, [place[name] for name in part.names]] = getattr(part, column)
            return found

        columns = {name: of(name) for name in _BY_NAME}
        received = np.concatenate([part.received for part in parts])
        return cls(tuple(place), received=received, **columns)

    @classmethod
    def added(cls, several: Sequence[KernelSums]) -> KernelSums:
        """Return the sums of several of the same devices."""
        every = cls.joined(several)
        sums: dict[str, Any] = {
            name: sum(np.split(getattr(every, name), len(several)))
            for name in (*_BY_NAME, "received")
        }
        return replace(every, **sums)

    def of(self, rows: Sequence[int]) -> KernelSums:
        """Return those of some devices."""
        some = {name: getattr(self, name)[list(rows)] for name in (*_BY_NAME, "received")}
        return replace(self, **some)

    @property
    def used(self) -> KernelSums:
        """Return the same without names that no device launched."""
        mine = np.flatnonzero(self.count.sum(axis=0))
        labels = tuple(self.names[at] for at in mine.tolist())
        return replace(self, names=labels, **{n: getattr(self, n)[:, mine] for n in _BY_NAME})


_BY_NAME: Final = ("count", "time_ns", "threads", "given")


def kernel_sums(
    prepared: Prepared, choices: Sequence[InWindows], devices: Sequence[int]
) -> list[KernelSums]:
    """Return what ran on some devices, communication apart, by choice of activities of these."""
    activities = prepared.trace.activities
    choice = np.repeat(np.arange(len(choices)), [len(chosen.row) for chosen in choices])
    row = np.concatenate([np.empty(0, np.int64), *(chosen.row for chosen in choices)])
    is_comm = is_top(prepared.linked.categorised, "communication", row)
    place = np.full(1 + prepared.trace.devices.num_rows, -1, dtype=np.int64)
    place[[*devices]] = np.arange(len(devices))
    of_row = choice * len(devices) + place[numbers(activities["device"])[row]]
    labels = names(activities["name"])
    label = codes(activities["name"])[row]

    def by_name(values: IntArray) -> list[IntArray]:
        shape = (len(choices), len(devices), len(labels))
        key = np.where(is_comm | (label < 0), -1, of_row * len(labels) + label)
        return [*group_sums(key, values, prod(shape)).reshape(shape)]

    grid, block = (product_of(axes(activities[name]))[row] for name in ("grid", "block"))
    got = numbers(activities["collective_out_elements"], 0)[row]
    shape = (len(choices), len(devices))
    moved = np.where(is_comm & _is_exchange(prepared)[row], of_row, -1)
    columns = (
        by_name(np.ones_like(row)),
        by_name(numbers(activities["dur_ns"])[row]),
        by_name(np.where((grid > 0) & (block > 0), grid * block, 0)),
        by_name(_given(prepared, row)),
        group_sums(moved, got, prod(shape)).reshape(shape),
    )
    return [KernelSums(tuple(labels), *each) for each in zip(*columns, strict=True)]


def _is_exchange(prepared: Prepared) -> BoolArray:
    """Return which kernels are all-to-alls, in which ranks get what they have to work on."""
    return matching(prepared.trace.activities["collective"], _ALL_TO_ALL.search)


def _given(prepared: Prepared, row: IntArray) -> IntArray:
    """Return how many elements the operators that launched some activities were given, or 0."""
    column = prepared.trace.ops["input_dims"]
    used, which = ranked(taken(codes(column), prepared.linked.links.op_of_activity[row]))
    texts = names(column)
    sizes = [_elements_of(texts[one]) if one >= 0 else 0 for one in used.tolist()]
    return np.array([*sizes, 0], dtype=np.int64)[which]


@lru_cache(maxsize=10_000)
def _elements_of(text: str) -> int:
    """Return the elements of the tensors of recorded shapes together; a scalar has none."""
    shapes = read_shapes(text) or ()
    several = [one if isinstance(one, Shapes) else (one,) for one in shapes]
    return min(sum(prod(one) for some in several for one in some if one), _MOST_ELEMENTS)


def by_kernels(sums: KernelSums) -> LateCause:
    """Return why the kernels of the first device take longer than those of the others."""
    count, usual_count = sums.count[0], np.median(sums.count[1:], axis=0)
    each, usual = _per(sums.time_ns, sums.count)
    both = np.flatnonzero((count > 0) & (usual_count > 0) & (usual > 0))
    slower = (each - usual)[both] * np.minimum(count, usual_count)[both]
    extra = (sums.time_ns[0] - np.median(sums.time_ns[1:], axis=0)).clip(0)
    if not len(both) or slower.clip(0).sum() < extra.sum() / 2:
        return LateCause("more_work", _name(sums, int(extra.argmax())))
    ratio, top = each[both] / usual[both], int(both[slower.argmax()])
    sizes = [_ratio(*_per(size, sums.count))[both] for size in (sums.threads, sums.given)]
    received = _ratio(sums.received[:1], np.median(sums.received[1:], keepdims=True))
    grown = np.maximum(received, np.max(sizes, axis=0)) >= 1 + _AT_LEAST * (ratio - 1)
    by_size = np.where(grown, slower, 0).clip(0)  # a sum over more is no larger itself
    if 2 * by_size.sum() >= slower.clip(0).sum():
        return LateCause("more_work", _name(sums, int(both[by_size.argmax()])))
    time = (usual * usual_count)[both]
    factor = fsum(ratio * time) / fsum(time)  # whatever the order of names
    alike = ratio >= 1 + _AT_LEAST * (factor - 1)
    others = np.where(both == top, 0, time)
    is_clock = 2 * others[alike].sum() >= others.sum()  # one large kernel is not all
    if factor > 1 and is_clock and time[alike].sum() >= _ALIKE * time.sum():
        return LateCause("slow_clock", "", factor)
    return LateCause("slow_kernel", _name(sums, top), float(each[top] / usual[top]))


def _per(sums: IntArray, count: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean of the first device by kernel, and that of the others."""
    return _ratio(sums[0], count[0]), _ratio(sums[1:].sum(axis=0), count[1:].sum(axis=0))


def _ratio(some: FloatArray | IntArray, of: FloatArray | IntArray) -> FloatArray:
    return np.divide(some, of, out=np.zeros(some.shape), where=of > 0)


def _name(sums: KernelSums, place: int) -> str:
    return kernel_name(sums.names[place])


def by_idle(mine: Sequence[Culprit], usual: Sequence[Culprit], *, sporadic: bool) -> LateCause:
    """Return what the host of a device does while it is idle, beyond what that of another does."""
    more = _idle_by_cause(mine, sporadic)
    for cause, labels in _idle_by_cause(usual, sporadic).items():
        more[cause].subtract(labels)
    cause, labels = max(more.items(), key=lambda one: one[1].total(), default=("", Counter()))
    if labels.total() <= 0:
        return UNKNOWN
    return LateCause(cause, max(labels, key=lambda label: labels[label]))


def _idle_by_cause(culprits: Sequence[Culprit], sporadic: bool) -> defaultdict[str, Counter[str]]:
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for culprit in culprits:
        sums[_idle_cause(culprit, sporadic)][culprit.label] += culprit.idle_ns
    return sums


def _idle_cause(culprit: Culprit, sporadic: bool) -> str:
    """Return what idle time is due to: what the names in it say, else its class."""
    text = " ".join((culprit.kind, culprit.label, *culprit.evidence))
    told = (cause for cause, words in _PAUSES.items() if words.search(text))
    return next(told, "gc_pause" if sporadic and culprit.kind in _HOST else culprit.kind)
