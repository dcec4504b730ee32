"""The roofline: which roof is nearer, the bytes moved, and how much of the time both roofs need.

Arithmetic intensity is FLOPs per byte. A device of P FLOP per ns and B bytes per ns reaches P only
at intensities of at least P / B, its balance; below, at most B x intensity (Williams et al., 2009).
Bytes by shapes are lower bounds, so the intensity is an upper bound: the verdict "memory" is
certain, and "compute" holds if nothing is moved twice. Counters see bytes that a cache behind the
fabric may have served, so by counters "compute" is certain.

A kernel needs the longer of two times: its FLOPs at the peak rate, and its bytes at the peak
bandwidth. Bytes served by caches may need more time than the kernel took; then all of its time
counts as needed. Kernels that run at once share the time in proportion to their durations. Bytes of
lists of tensors, whose types are not recorded, are too rough and count as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from operator import add
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple, replace

from traceflops.attribution.datatypes import types_of_ops
from traceflops.attribution.op_kernels import Attribution
from traceflops.categories.rules import Category
from traceflops.flops.ops.count import UNKNOWN
from traceflops.flops.ops.work import Work, known_sum
from traceflops.mfu.budget import DevicePeaks
from traceflops.mfu.counted.joins import MeasuredWork
from traceflops.mfu.traced.executed import vector_ops
from traceflops.table import columns
from traceflops.table.columns import BoolArray, FloatArray, IntArray, SmallArray, numbers
from traceflops.table.grouping import extremes, group_least, group_sums, ranked
from traceflops.table.nesting import taken
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

Bound = Literal["compute", "memory", "interconnect"]
WorkBasis = Literal["shapes", "pair", "counters", "record"]
"""The source of FLOPs and bytes: shapes, a paired run's shapes, counters, the record of a copy."""
BOUND_FROM: Final = Fraction(1, 2)
"""At this share of the nearer roof or more, work is bound by it: it takes most of the time."""


class NearerRoof(Struct, frozen=True):
    """The nearer roof, and the source of that: of FLOPs and bytes, or the kernel's category."""

    bound: Bound
    basis: Literal[WorkBasis, "category"]


class Measured(Struct, frozen=True):
    """FLOPs, least bytes and time (ns) of some work; FLOPs and bytes are None if not known.

    If the FLOPs lie between two bounds, `flops` is the upper one and `least_flops` the lower.
    """

    flops: int | None
    min_bytes: int | None
    time_ns: int
    least_flops: int | None = None

    def __add__(self, other: Measured) -> Measured:
        """Return the sum; a value that is unknown in one of them is None."""
        return Measured(
            known_sum(self.flops, other.flops),
            known_sum(self.min_bytes, other.min_bytes),
            self.time_ns + other.time_ns,
            known_sum(self.at_least, other.at_least),
        )

    @property
    def at_least(self) -> int | None:
        """Return the least that the FLOPs can be, None where they are not known."""
        return self.flops if self.least_flops is None else self.least_flops

    @property
    def is_exact(self) -> bool:
        """Return whether the FLOPs are not between two bounds."""
        return self.at_least == self.flops

    @property
    def flops_per_ns(self) -> Fraction | None:
        """Return the rate in FLOP per ns (1,000 are a TFLOP/s); None where it is not known."""
        return _ratio(self.flops, self.time_ns)

    @property
    def bytes_per_ns(self) -> Fraction | None:
        """Return the least bandwidth used in bytes per ns (1 is a GB/s)."""
        return _ratio(self.min_bytes, self.time_ns)

    @property
    def intensity(self) -> Fraction | None:
        """Return FLOPs per byte, an upper bound; None if either is unknown or no byte moved."""
        return _ratio(self.flops, self.min_bytes)

    def share_of_peak(self, peak: int | None) -> Fraction | None:
        """Return the rate as a share of a peak in FLOP per ns."""
        return self.flops_per_ns / peak if self.flops_per_ns is not None and peak else None

    def share_of_bandwidth(self, bandwidth: int | Fraction | None) -> Fraction | None:
        """Return the least bandwidth used as a share of a device's, in bytes per ns."""
        used = self.bytes_per_ns
        return used / bandwidth if used is not None and bandwidth else None


def verdict(
    measured: Measured,
    peak: int | None,
    bandwidth: int | None,
    category: Category | None = None,
    basis: WorkBasis = "shapes",
) -> NearerRoof | None:
    """Return which roof is nearer: by the intensity, else by the category, else None.

    `peak` is in FLOP per ns, `bandwidth` in bytes per ns. `basis` is the source of the work.
    """
    intensity = measured.intensity
    if intensity is not None and peak and bandwidth:
        return NearerRoof("compute" if intensity > Fraction(peak, bandwidth) else "memory", basis)
    if category is not None and category.top in ("compute", "memory"):
        return NearerRoof("compute" if category.top == "compute" else "memory", "category")
    return None


def _ratio(amount: int | None, per: int | None) -> Fraction | None:
    return Fraction(amount, per) if amount is not None and per else None


Path = Literal["memory", "host", "peer"]
"""What bytes move over: the device's memory, the link to the host, or one to another device."""
PATHS: Final[tuple[Path, ...]] = ("memory", "host", "peer")
_ROUTES: Final[dict[str, tuple[Path, int]]] = {
    "HtoD": ("host", 1),
    "DtoH": ("host", 1),
    "DtoD": ("memory", 2),
    "PtoP": ("peer", 1),
    "migration HtoD": ("host", 1),
    "migration DtoH": ("host", 1),
    "migration DtoD": ("peer", 1),
}
"""By the direction of a copy: its path, and how often each byte moves over it."""


class MovedBytes(Struct, frozen=True):
    """The bytes that each op and each activity moved; UNKNOWN if they are not known.

    Per activity: `unit` is the op that it worked for, or -1; `is_copy` is True for copies and
    fills; `size` is the bytes by its own record; `path` is an index of PATHS (memory for kernels);
    `recorded` is whether `size` counts instead of the shapes of the op. Per op: `op_size`, and
    `op_path`, UNKNOWN if it copies over several paths.
    """

    attribution: Attribution
    unit: IntArray
    is_copy: BoolArray
    recorded: BoolArray
    size: IntArray
    path: SmallArray
    op_size: IntArray
    op_path: SmallArray

    def with_work(self, work: MeasuredWork | None) -> MovedBytes:
        """Return the bytes, with those that `work` has for kernels without an op."""
        if work is None:
            return self
        by_work = (self.unit < 0) & (work.size >= 0)
        size = np.where(by_work, work.size, self.size)
        return replace(self, size=size, recorded=self.recorded | by_work)


def moved_bytes(prepared: Prepared, attribution: Attribution) -> MovedBytes:
    """Return the bytes that the ops and copies of a prepared trace moved.

    1. An op that launched nothing but copies and fills has the bytes of their records: its shapes
       count those over a link twice, as operands on both sides. If a record has none, it has none.
    2. If these copies are within the memory of a device, and a record has none, shapes count.
    3. Another op has the bytes of its shapes.
    4. A copy without an op has those of its own record.
    """
    work = attribution.work
    is_copy, path, size = _copied_bytes(prepared.trace.activities)
    # The op that each activity worked for: the executed one, else one that moves known bytes.
    op_size = work.of_ops(work.min_bytes).copy()
    moves_known = vector_ops(prepared, attribution) & (op_size > 0)
    around = taken(attribution.tree.nearest(moves_known), attribution.op)
    unit = np.where(attribution.owner >= 0, attribution.owner, around)
    # Of ops that launched nothing but copies: the path of the copies, and the sum of their bytes.
    has_op, ops = unit >= 0, len(op_size)
    launched = np.bincount(unit[has_op], minlength=ops)
    copied = np.bincount(unit[has_op & is_copy], minlength=ops)
    only_copies = (launched > 0) & (launched == copied)
    copies = np.flatnonzero(is_copy & np.isin(unit, np.flatnonzero(only_copies)))
    op_path = _common(unit[copies], path[copies], ops)
    total = group_sums(unit[copies], np.maximum(size[copies], 0), ops)
    least = group_least(unit[copies], size[copies], ops)
    is_complete = least != UNKNOWN  # which is below all sizes
    is_within_device = op_path == PATHS.index("memory")
    by_records = only_copies & (is_complete | ~is_within_device)
    op_size[by_records] = np.where(is_complete, total, UNKNOWN)[by_records]
    recorded = is_copy & (~has_op | np.isin(unit, np.flatnonzero(by_records)))
    return MovedBytes(attribution, unit, is_copy, recorded, size, path, op_size, op_path)


def _copied_bytes(activities: pa.Table) -> tuple[BoolArray, SmallArray, IntArray]:
    """Return, per activity, whether it is a copy or fill, its path and the bytes by its record."""
    is_memcpy = columns.is_one_of(activities["kind"], "memcpy")
    is_fill = columns.is_one_of(activities["kind"], "memset")
    direction = columns.codes(activities["direction"])
    # By code of a direction: the path (UNKNOWN if there is none) and the crossings of a byte.
    routes = [_ROUTES.get(name) for name in columns.names(activities["direction"])]
    paths = [UNKNOWN if route is None else PATHS.index(route[0]) for route in routes]
    times = [0 if route is None else route[1] for route in routes]
    by_direction = taken(np.array(paths, dtype=np.int8), direction)
    path: SmallArray = np.where(is_memcpy, by_direction, PATHS.index("memory")).astype(np.int8)
    crossings = taken(np.array(times, dtype=np.int64), direction, missing=0)
    crossings[is_fill] = 1  # written, not read
    size, is_copy = numbers(activities["bytes"], UNKNOWN), is_memcpy | is_fill
    is_sized = is_copy & (crossings > 0) & (size >= 0)
    return is_copy, path, np.where(is_sized, size * crossings, UNKNOWN)


def common_paths(group: IntArray, path: SmallArray, count: int) -> list[Path | None]:
    """Return the path that all rows of each group take, None if it is unknown or differs."""
    common = _common(group, path, count).tolist()
    return [PATHS[index] if index != UNKNOWN else None for index in common]


def _common(group: IntArray, path: SmallArray, count: int) -> SmallArray:
    """Return the index in PATHS that all rows of each group have; UNKNOWN if they differ."""
    most, least = extremes(group, path, count)
    common: SmallArray = np.where(least == most, least, UNKNOWN).astype(np.int8)
    common[most < least] = PATHS.index("memory")  # a group without rows
    return common


class RoofTime(Struct, frozen=True):
    """Time of compute or of memory work in the chosen windows of all devices, in ns.

    `time_ns` of compute is the part with counted FLOPs; of memory work, all of it: its FLOPs are
    ignored. `known_ns` is the part whose work and peaks are known: its FLOPs need `flops_ns` at the
    peak, and its FLOPs and bytes together `needed_ns`.
    """

    time_ns: int
    known_ns: int
    flops_ns: int
    needed_ns: int

    def __add__(self, other: RoofTime) -> RoofTime:
        return RoofTime(*map(add, astuple(self), astuple(other)))

    @property
    def excess_ns(self) -> int:
        """Return the known time beyond what its FLOPs and bytes need."""
        return self.known_ns - self.needed_ns

    @property
    def bytes_ns(self) -> int:
        """Return the time that the bytes need beyond that of the FLOPs."""
        return self.needed_ns - self.flops_ns


class RoofTimes(Struct, frozen=True):
    """The times of memory work and of compute."""

    memory: RoofTime
    compute: RoofTime


_NO_TIME: Final = RoofTime(0, 0, 0, 0)
NO_ROOFS: Final = RoofTimes(_NO_TIME, _NO_TIME)


def roof_times(
    prepared: Prepared, moved: MovedBytes, devices: Sequence[DevicePeaks], work: MeasuredWork | None
) -> RoofTimes:
    """Return the time that FLOPs and bytes of the chosen windows need at the roofs of devices."""
    items = _Items(prepared, moved, work)
    memory = (items.time(peaks, "memory") for peaks in devices)
    compute = (items.time(peaks, "compute") for peaks in devices)
    return RoofTimes(sum(memory, _NO_TIME), sum(compute, _NO_TIME))


class _Items:
    """What roofs are computed for: an item is an op with its activities, or one without an op."""

    def __init__(self, prepared: Prepared, moved: MovedBytes, work: MeasuredWork | None) -> None:
        """Number the items: ops first, then activities, of which those without an op are items.

        `_item` and `_top` are per activity, the other arrays per item (`_dtype`: per op). `_size`
        and `_flops` are UNKNOWN if they are not known. `_mixed` items do not only memory work.
        """
        self._prepared, self._work = prepared, work
        self._ops, activities = len(moved.op_size), len(moved.unit)
        own_item = self._ops + np.arange(activities)
        self._item: IntArray = np.where(moved.unit >= 0, moved.unit, own_item)
        op_work = moved.attribution.work
        # Bytes of lists of tensors assume a data type: they are a guess, so take them as unknown.
        note = "list-types-not-recorded"
        guessed = [isinstance(work, Work) and note in work.notes for work in op_work.works]
        is_guess = np.array(guessed, dtype=np.bool_)[op_work.place]
        self._size = np.concatenate([np.where(is_guess, UNKNOWN, moved.op_size), moved.size])
        self._path = np.concatenate([moved.op_path, moved.path])
        is_executed = moved.attribution.has("executed")
        op_flops = np.where(is_executed, op_work.of_ops(op_work.flops), UNKNOWN)
        self._flops = np.concatenate([op_flops, np.full(activities, UNKNOWN)])
        self._dtype, self._dtypes = types_of_ops(prepared, moved.attribution)
        categorised = prepared.linked.categorised
        self._top = np.array(categorised.top(), dtype=np.str_)[categorised.category]
        self._mixed = np.zeros(len(self._size), dtype=np.bool_)
        self._mixed[self._item[self._top != "memory"]] = True

    def time(self, peaks: DevicePeaks, component: Literal["memory", "compute"]) -> RoofTime:
        """Return the time of a component on one device in its chosen windows."""
        account = self._prepared.accounts[peaks.device]
        rows = account.rows
        chosen = chosen_time(self._prepared.windows[peaks.device])
        chosen = account.timeline.parts[component].intersect(chosen)
        of_component = np.flatnonzero(self._top[rows.row] == component)
        start_ns, end_ns = rows.start_ns[of_component], rows.end_ns[of_component]
        # Per item: all its time, and its part of the chosen time, which activities at once share.
        # Two kernels take 0-10 and 5-15, all chosen: covered_ns [10 10], but only 15 ns are chosen
        # -> share_of_each 0.75, inside_ns [7.5 7.5]
        item, place = ranked(self._item[rows.row[of_component]])
        whole_ns = np.bincount(place, end_ns - start_ns, len(item))
        covered_ns = chosen.length_within(start_ns, end_ns)
        share_of_each = chosen.length_ns / max(1, int(covered_ns.sum()))
        inside_ns = np.bincount(place, covered_ns, len(item)) * share_of_each
        flops_ns = np.zeros(len(item))
        if component == "compute":
            flops_ns = np.minimum(self._flops_ns(item, peaks), whole_ns)
        needed_ns = np.minimum(np.maximum(flops_ns, self._bytes_ns(item, peaks)), whole_ns)
        if component == "memory":  # nothing tells which bytes a mixed item's memory work moved
            needed_ns[self._mixed[item]] = np.nan
        is_known = np.isfinite(needed_ns) & (whole_ns > 0)
        inside_share = inside_ns[is_known] / whole_ns[is_known]
        times = {
            "time_ns": inside_ns[np.isfinite(flops_ns)],
            "known_ns": inside_ns[is_known],
            "flops_ns": flops_ns[is_known] * inside_share,
            "needed_ns": needed_ns[is_known] * inside_share,
        }
        return RoofTime(**{name: round(float(time.sum())) for name, time in times.items()})

    def _bytes_ns(self, item: IntArray, peaks: DevicePeaks) -> FloatArray:
        """Return the ns that each item's bytes need on their path, NaN if either is unknown."""
        bandwidths = {"memory": peaks.bandwidth, "host": peaks.host_bandwidth}
        rates = [float(bandwidths.get(path) or np.nan) for path in PATHS]
        rate = np.array([*rates, np.nan])[self._path[item]]  # the last one is for path UNKNOWN
        size = self._size[item]
        return np.where(size == UNKNOWN, np.nan, size / rate)

    def _flops_ns(self, item: IntArray, peaks: DevicePeaks) -> FloatArray:
        """Return the ns that each item's FLOPs need at the peak of their type, NaN if unknown."""
        peak_of = [float(peaks.rates.get(dtype) or np.nan) for dtype in self._dtypes]
        flops, needed_ns = self._flops[item], np.full(len(item), np.nan)
        has_flops = flops != UNKNOWN
        peak = np.array(peak_of)[self._dtype[item[has_flops]]]
        needed_ns[has_flops] = flops[has_flops] / peak
        if self._work is None:
            return needed_ns
        # Items without an op do a kind of work whose FLOPs counters or a paired run tell.
        kind_ns = np.zeros(len(self._work.kinds))
        for _, dtype, kind_flops, _ in self._work.columns():
            type_peak = float(peaks.rates.get(dtype) or np.nan)
            kind_ns += np.where(kind_flops > 0, kind_flops / type_peak, 0)
        without_op = item >= self._ops
        kind = self._work.kind[item[without_op] - self._ops]
        needed_ns[without_op] = np.append(kind_ns, np.nan)[kind]  # the last one is for UNKNOWN
        return needed_ns
