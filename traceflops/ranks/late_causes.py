"""Why a rank is late: what its kernels take longer for, or what its host does meanwhile.

Kernels are compared by name with those of the other ranks, idle time by what it is due to.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import fsum, prod
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import Culprit
from traceflops.characters import kernel_name
from traceflops.flops.ops.arguments import Shapes, read_shapes
from traceflops.table import columns
from traceflops.table.columns import FloatArray, IntArray, codes, names, numbers
from traceflops.table.grouping import group_sums, ranked
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.device_span import is_top
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import InWindows

_ALIKE: Final = 0.7
"""Where clocks are low, at least this share of the kernel time is slower by about one factor."""
_AT_LEAST: Final = 0.4  # such kernels have at least this share of the factor's slowdown
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
    {"data_input", "host_code", "memory_alloc", "slow_driver_call", "own_sleep", "external_wait"}
    | _PAUSES.keys()
)
"""Causes of which one name holds up the host."""
_HOST: Final = frozenset(
    {"host_code", "other_calls", "eager_overhead", "host_unrecorded", "optimizer_loop"}
)
"""Classes of idle time in which the host may stand still: in few steps that is a pause."""
_BY_NAME: Final = ("count", "time_ns", "threads", "given")
_FIGURES: Final = (*_BY_NAME, "received")


class LateCause(NamedTuple):
    """Why a rank is late: a code, the kernel or culprit, and by which factor kernels are slower."""

    cause: str
    label: str
    factor: float | None = None


UNKNOWN: Final = LateCause("unknown", "")
SLOW_HOST: Final = LateCause("slow_host", "")
"""Its device is idle longer, but what its host does meanwhile takes no longer than elsewhere."""


class KernelSums(Struct, frozen=True):
    """Launches of kernels, their time and size by device (rows) and name of kernel (columns).

    Sizes are `threads` and `given`, the elements of the inputs of the launching operators.
    `received` is per device only: the elements that it received in all-to-alls.
    """

    names: tuple[str, ...]
    count: IntArray
    time_ns: IntArray
    threads: IntArray
    given: IntArray
    received: IntArray

    @classmethod
    def joined(cls, parts: Sequence[KernelSums]) -> KernelSums:
        """Return one table of all parts: their devices one below the other, a column per name."""
        labels = dict.fromkeys(name for part in parts for name in part.names)  # each once
        column_of = {name: column for column, name in enumerate(labels)}
        shape = (sum(len(part.count) for part in parts), len(column_of))
        sums: dict[str, Any] = {name: np.zeros(shape, dtype=np.int64) for name in _BY_NAME}
        begin = 0
        for part in parts:
            stop = begin + len(part.count)
            columns_of_part = [column_of[name] for name in part.names]
            for name, table in sums.items():
                table[begin:stop, columns_of_part] = getattr(part, name)
            begin = stop
        received = np.concatenate([part.received for part in parts])
        return cls(tuple(column_of), received=received, **sums)

    @classmethod
    def added(cls, several: Sequence[KernelSums]) -> KernelSums:
        """Return the sum of several tables, each of the same devices."""
        joined = cls.joined(several)
        parts = {name: np.split(getattr(joined, name), len(several)) for name in _FIGURES}
        sums: dict[str, Any] = {name: sum(tables) for name, tables in parts.items()}
        return replace(joined, **sums)

    def of(self, rows: Sequence[int]) -> KernelSums:
        """Return the rows of the chosen devices."""
        return replace(self, **{name: getattr(self, name)[list(rows)] for name in _FIGURES})

    @property
    def used(self) -> KernelSums:
        """Return the table without the kernels that no device launched."""
        rows = np.flatnonzero(self.count.sum(axis=0))
        labels = tuple(self.names[column] for column in rows.tolist())
        return replace(self, names=labels, **{n: getattr(self, n)[:, rows] for n in _BY_NAME})


def kernel_sums(
    prepared: Prepared, choices: Sequence[InWindows], devices: Sequence[int]
) -> list[KernelSums]:
    """Return the kernel sums of some devices for each choice of activities.

    Of kernels of communication only the elements count that ranks receive in all-to-alls.
    """
    activities = prepared.trace.activities
    # All chosen activities, one choice after the other, so that each sum is computed once.
    choice = np.repeat(np.arange(len(choices)), [len(chosen.row) for chosen in choices])
    row = np.concatenate([np.empty(0, np.int64), *(chosen.row for chosen in choices)])
    is_comm = is_top(prepared.linked.categorised, "communication", row)
    place = np.full(1 + prepared.trace.devices.num_rows, -1, dtype=np.int64)  # in `devices`
    place[[*devices]] = np.arange(len(devices))
    choice_and_device = choice * len(devices) + place[numbers(activities["device"])[row]]
    labels = names(activities["name"])
    label = codes(activities["name"])[row]

    def by_name(values: IntArray) -> list[IntArray]:
        """Return the sums of values [devices, names] for each choice, without communication."""
        # Cell (choice, device, label) of 2 x 3 x 10: 1, 2, 7 is (1 * 3 + 2) * 10 + 7 = 57.
        shape = (len(choices), len(devices), len(labels))
        key = choice_and_device * len(labels) + label
        sums = group_sums(np.where(is_comm | (label < 0), -1, key), values, prod(shape))
        return [*sums.reshape(shape)]

    grid, block = (
        columns.product_of(columns.axes(activities[name]))[row] for name in ("grid", "block")
    )
    # The elements of the inputs of the operator that launched each activity.
    dims = prepared.trace.ops["input_dims"]
    used, used_index = ranked(taken(codes(dims), prepared.linked.links.op_of_activity[row]))
    texts = names(dims)
    sizes = [_elements_of(texts[code]) if code >= 0 else 0 for code in used.tolist()]
    # What a rank receives in an all-to-all is what it works on next.
    is_exchange = columns.matching(activities["collective"], _ALL_TO_ALL.search)[row]
    output = numbers(activities["collective_out_elements"], 0)[row]
    shape = (len(choices), len(devices))
    exchange_key = np.where(is_comm & is_exchange, choice_and_device, -1)
    tables = (
        by_name(np.ones_like(row)),
        by_name(numbers(activities["dur_ns"])[row]),
        by_name(np.where((grid > 0) & (block > 0), grid * block, 0)),
        by_name(np.array([*sizes, 0], dtype=np.int64)[used_index]),
        group_sums(exchange_key, output, prod(shape)).reshape(shape),
    )
    return [KernelSums(tuple(labels), *sums) for sums in zip(*tables, strict=True)]


@lru_cache(maxsize=10_000)
def _elements_of(text: str) -> int:
    """Return how many elements the tensors of recorded shapes have in total; scalars count as 0."""
    inputs = read_shapes(text) or ()
    lists = [shapes if isinstance(shapes, Shapes) else (shapes,) for shapes in inputs]
    return min(sum(prod(shape) for shapes in lists for shape in shapes if shape), _MOST_ELEMENTS)


def by_kernels(sums: KernelSums) -> LateCause:
    """Return why the kernels of the first device take longer than those of the others.

    The first of these that applies:
    `more_work`: less than half of the extra time is due to slower launches: the rest are more;
    `more_work`: at least half of the time lost by slower launches is in kernels that are larger;
    `slow_clock`: nearly all time is in kernels that are slower by one factor;
    `slow_kernel`: the kernel that loses most is slower.
    """
    count, usual_count = sums.count[0], np.median(sums.count[1:], axis=0)
    total = sums.count[1:].sum(axis=0)

    def label(kernel: int) -> str:
        return kernel_name(sums.names[kernel])

    def means(values: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return, by kernel, the mean per launch of the first device and of the others."""
        return _ratio(values[0], count), _ratio(values[1:].sum(axis=0), total)

    # `slower_ns` is the time lost, by kernel that both have, because each launch takes longer: 100
    # launches of 12 instead of 10 us lose 200 us.
    mean_ns, usual_ns = means(sums.time_ns)
    both = np.flatnonzero((count > 0) & (usual_count > 0) & (usual_ns > 0))
    slower_ns = (mean_ns - usual_ns)[both] * np.minimum(count, usual_count)[both]
    extra_ns = (sums.time_ns[0] - np.median(sums.time_ns[1:], axis=0)).clip(0)
    if not len(both) or slower_ns.clip(0).sum() < extra_ns.sum() / 2:
        return LateCause("more_work", label(int(extra_ns.argmax())))

    # A kernel is larger if its size grew about as much as its time: 2 times slower, at least 1.4
    # times larger. Where the device received more in all-to-alls, all kernels may have grown.
    slowdown = mean_ns[both] / usual_ns[both]
    top = int(both[slower_ns.argmax()])  # the kernel that lost most
    growth = [_ratio(*means(size))[both] for size in (sums.threads, sums.given)]
    received = _ratio(sums.received[:1], np.median(sums.received[1:], keepdims=True))
    has_grown = np.maximum(received, np.max(growth, axis=0)) >= 1 + _AT_LEAST * (slowdown - 1)
    by_size_ns = np.where(has_grown, slower_ns, 0).clip(0)  # a faster kernel makes up for none
    if 2 * by_size_ns.sum() >= slower_ns.clip(0).sum():
        return LateCause("more_work", label(int(both[by_size_ns.argmax()])))

    # Nearly all time must be in kernels that are slower, and half of the time of the kernels other
    # than `top`: a single large kernel does not show that all are slower.
    time_ns = (usual_ns * usual_count)[both]
    factor = fsum(slowdown * time_ns) / fsum(time_ns)  # fsum: the same in any order of names
    is_slower = slowdown >= 1 + _AT_LEAST * (factor - 1)
    others_ns = np.where(both == top, 0, time_ns)
    are_others_slower = 2 * others_ns[is_slower].sum() >= others_ns.sum()
    are_nearly_all = time_ns[is_slower].sum() >= _ALIKE * time_ns.sum()
    if factor > 1 and are_others_slower and are_nearly_all:
        return LateCause("slow_clock", "", factor)
    return LateCause("slow_kernel", label(top), float(mean_ns[top] / usual_ns[top]))


def _ratio(some: FloatArray | IntArray, of: FloatArray | IntArray) -> FloatArray:
    """Return `some / of`, 0 where `of` is 0."""
    return np.divide(some, of, out=np.zeros(some.shape), where=of > 0)


def by_idle(own: Sequence[Culprit], usual: Sequence[Culprit], *, sporadic: bool) -> LateCause:
    """Return the cause of idle time by which a device exceeds a usual device most.

    `sporadic`: only few steps are late. Then a host that stands still is in garbage collection.
    """
    # Idle time beyond the usual device's: by cause, then by label.
    excess: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for culprits, sign in ((own, 1), (usual, -1)):
        for culprit in culprits:
            excess[_cause_of(culprit, sporadic=sporadic)][culprit.label] += sign * culprit.idle_ns
    cause = max(excess, key=lambda cause: excess[cause].total(), default="")
    labels = excess[cause]
    if labels.total() <= 0:
        return UNKNOWN
    return LateCause(cause, max(labels, key=lambda label: labels[label]))


def _cause_of(culprit: Culprit, *, sporadic: bool) -> str:
    """Return the pause that a culprit's names tell, else its class; see `by_idle`."""
    text = " ".join((culprit.kind, culprit.label, *culprit.evidence))
    for cause, words in _PAUSES.items():
        if words.search(text):
            return cause
    return "gc_pause" if sporadic and culprit.kind in _HOST else culprit.kind


def takes_longer(trace: Trace, label: str, processes: Sequence[int]) -> bool:
    """Return whether a named event takes longer on average in the first process than in each other.

    The event is an annotation, operator or call whose name is `label` up to " in ", which the name
    of its owner may follow. True also if the first process has no such event: it cannot be judged.
    """
    name, number = label.partition(" in ")[0], trace.processes.num_rows
    count, sums_ns = np.zeros((2, number), dtype=np.int64)  # by process
    for table in (trace.marks, trace.ops, trace.calls):
        rows = np.flatnonzero(columns.matching(table["name"], lambda text: text == name))
        process, dur_ns = numbers(table["process"])[rows], numbers(table["dur_ns"], 0)[rows]
        count += group_sums(process, np.ones_like(rows), number)
        sums_ns += group_sums(process, dur_ns, number)
    own, *others = _ratio(sums_ns, count)[[*processes]].tolist()
    return not own or own > max(others)
