"""The work of launches of one run by those of another run of the same program.

A launch is joined in the first of these ways that applies:

    dispatch   both runs are recordings of the same launch
    replay     a graph replays the other run's launch (attribution/graph_replays.py)
    order      the n-th launch of a kernel is the n-th of the other run, which launches it equally
               often; all of them in the same size
    step       the n-th launch of a kernel in a size in each step; if the other run has no steps,
               rounds of as many launches as a step has
    alike, between, ambiguous, uncounted, absent: see `_alike`, by all launches in the size
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.op_kernels import Attribution
from traceflops.categories.kernel_names import same_kernels
from traceflops.devices.counter_formulas import Family
from traceflops.mfu.counted import launches, same_launches
from traceflops.mfu.counted.counter_work import CountedKernel
from traceflops.mfu.counted.kernel_speeds import KernelSpeed
from traceflops.mfu.counted.launches import ORIGINS, UNKNOWN, Kind, Launches, LaunchWork, Origin
from traceflops.mfu.traced.coverage import HOW, How, on_chosen_device
from traceflops.table.columns import IntArray, codes, is_one_of, texts_of
from traceflops.table.grouping import exact_sum, exact_sums, extremes, group_rows
from traceflops.table.nesting import taken
from traceflops.table.trace import Note
from traceflops.windows.prepared import Prepared

KNOWN: Final[tuple[How, ...]] = HOW[: HOW.index("ambiguous")]
"""Ways in which the FLOPs of a launch are known."""
SIZES_AGREE: Final = 0.02
"""Bytes of equal launches may differ by this share, as caches do; all get the mean."""
_COUNTED_AT: Final = {"rocprofv3": "the fabric", "ncu": "the memory"}
Shaped = tuple[IntArray, IntArray]
"""The most and the least FLOPs of each activity by shapes, -1 if unknown."""


class Matched(Struct, frozen=True):
    """The work of each launch, and `how` (an index of HOW) it was joined.

    `kind` is an index of `kinds`, `size` is bytes, `vector` FLOPs of vector units, or UNKNOWN.
    `found` is the share of the other run's launches that this run has, too.
    """

    how: IntArray
    kind: IntArray
    kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray
    found: float = 1.0


def match(
    target: Launches, work: LaunchWork, same: IntArray | None = None, *, is_own: bool = False
) -> Matched:
    """Return the work of the launches of a run by that of another run of the same program.

    `same` is, per launch, the row in `work` that records the same launch, or its capture, else -1.
    `is_own` is whether both runs are of one trace: then processes with equal numbers are the same.
    """
    source = work.launches
    # Codes that are equal for the same kernel in both runs; then for the same kernel and size.
    our_names, their_names = same_kernels(target.names, source.names)
    kernels = same_launches.joined((taken(our_names, target.name), taken(their_names, source.name)))
    keys = same_launches.keys_of(kernels, target, source)
    processes = _processes_of(target, source, is_own=is_own)
    row = np.full(target.count, -1, dtype=np.int64) if same is None else same
    how = np.full(target.count, HOW.index("dispatch" if is_own else "replay"), dtype=np.int64)
    # Each further way is for launches that are not joined yet: the n-th of the kernel, the n-th of
    # the kernel and size, the n-th of these in a step.
    for next_how, same_row in (
        ("order", same_launches.in_order(target, source, processes, kernels, keys)),
        ("order", same_launches.in_order(target, source, processes, keys, keys)),
        ("step", same_launches.in_steps(target, work, keys)),
    ):
        how = np.where(row < 0, HOW.index(next_how), how)
        row = np.where(row < 0, same_row, row)
    # If the work of the joined launch is unknown: what all launches of that kernel and size did.
    alike = _alike(work, target, keys)
    kind, size, vector = (taken(column, row) for column in (work.kind, work.size, work.vector))
    how_alike = alike.how[keys.ours]
    # A kernel of another size was joined: it is not absent.
    how_alike[(how_alike == HOW.index("absent")) & (row >= 0)] = HOW.index("uncounted")
    return Matched(
        how=np.where(kind >= 0, how, how_alike),
        kind=np.where(kind >= 0, kind, alike.kind[keys.ours]),
        kinds=(*work.kinds, *alike.kinds),
        size=np.where(size >= 0, size, alike.size[keys.ours]),
        vector=np.where(vector >= 0, vector, alike.vector[keys.ours]),
        found=float(np.isin(keys.theirs, keys.ours).mean()) if len(keys.theirs) else 1.0,
    )


def _processes_of(target: Launches, source: Launches, *, is_own: bool) -> IntArray:
    """Return, per launch, the process of the other run that is the same, -1 if that is unclear.

    1. It is the only process there of the same rank.
    2. Else, in one trace (`is_own`), a process without a rank is the one of the same number.
    3. Else, if neither run has ranks and both have as many processes, it is the one at the same
       place: 30 and 31 here are 7 and 8 there.
    4. Else it is the only process there, if that or the only process here has no rank.
    """
    ours, theirs = np.unique(target.process).tolist(), np.unique(source.process).tolist()
    our_ranks = [target.ranks.get(process) for process in ours]
    their_ranks = [source.ranks.get(process) for process in theirs]
    times_used = Counter(their_ranks)
    of_rank = {r: p for r, p in zip(their_ranks, theirs, strict=True) if times_used[r] == 1}
    has_places = {*our_ranks, *their_ranks} <= {None} and len(ours) == len(theirs)
    of_place = dict(zip(ours, theirs, strict=True)) if has_places else {}
    is_only = len(theirs) == 1 and [None] in (their_ranks, our_ranks)
    same = np.full(max(ours, default=0) + 1, -1, dtype=np.int64)
    for process, rank in zip(ours, our_ranks, strict=True):
        if rank is not None and rank in of_rank:
            same[process] = of_rank[rank]
        elif is_own:
            same[process] = process if rank is None and process in theirs else -1
        elif process in of_place:
            same[process] = of_place[process]
        elif is_only:
            same[process] = theirs[0]
    return same[target.process]


def _alike(work: LaunchWork, target: Launches, keys: same_launches.Pair) -> Matched:
    """Return, per kernel and size (a key), the work that all its launches share.

    `how` is by the launches of the key in the other run, the first of these:

        absent     there are none
        uncounted  the work of none is known
        ambiguous  in a paired run, the work of some is unknown
        alike      all known work is the same
        alike      in a paired run, work differs, but FLOPs are equal (see `launches.common`)
        between    by counters, work differs; no process here has more launches than were counted
        ambiguous  work differs otherwise
    """
    key, has_kind = keys.theirs, work.kind >= 0
    # Per key: whether the other run launches it, with known work, with unknown work.
    is_launched = np.bincount(key, minlength=keys.count) > 0
    has_known = np.bincount(key[has_kind], minlength=keys.count) > 0
    has_unknown = np.bincount(key[~has_kind], minlength=keys.count) > 0
    most, least = extremes(key[has_kind], work.kind[has_kind], keys.count)
    # In a pair, launches of unknown work may have done other work than the known ones. With
    # counters, a launch that was not counted is assumed to be like those that were.
    is_pair = work.origin == "pair"
    is_unclear = has_known & has_unknown if is_pair else np.zeros(keys.count, dtype=np.bool_)
    kind = np.where(has_known & (most == least) & ~is_unclear, most, UNKNOWN)
    how = np.full(keys.count, HOW.index("absent"), dtype=np.int64)
    how[is_launched] = HOW.index("uncounted")
    how[has_known] = HOW.index("ambiguous")
    how[kind >= 0] = HOW.index("alike")
    # Keys whose launches did different work get the part that all share, or a range.
    differs = has_known & (kind < 0) & ~is_unclear
    if work.origin == "counters":
        # 5 launches here, 4 counted: the fifth may have done less than the least of these.
        group, first = group_rows([target.process, keys.ours])
        launches_here = np.bincount(group, minlength=len(first))
        most_here, _ = extremes(keys.ours[first], launches_here, keys.count)
        differs &= most_here <= np.bincount(key, minlength=keys.count)
    rows = np.flatnonzero(differs[key] & has_kind)
    _, first = group_rows([key[rows], work.kind[rows]])
    kinds_of_key: dict[int, list[Kind]] = {}
    for row in rows[first].tolist():
        kinds_of_key.setdefault(int(key[row]), []).append(work.kinds[int(work.kind[row])])
    new_kinds: list[Kind] = []
    for number, kinds in kinds_of_key.items():
        shared = launches.common(kinds) if is_pair else launches.between(kinds)
        if shared is not None:
            kind[number] = len(work.kinds) + len(new_kinds)
            how[number] = HOW.index("alike" if is_pair else "between")
            new_kinds.append(shared)
    size = _mean(key, work.size, keys.count, SIZES_AGREE)
    vector = _mean(key, work.vector, keys.count, 0.0)
    return Matched(how, kind, tuple(new_kinds), size, vector)


def _mean(key: IntArray, values: IntArray, count: int, agree: float) -> IntArray:
    """Return the mean of each key; UNKNOWN if a value is, or if they differ by over `agree`."""
    most, least = extremes(key, values, count)
    is_known = (least >= 0) & (most >= 0)
    agrees = is_known & (most - np.maximum(least, 0) <= agree * most)
    times = np.maximum(np.bincount(key, minlength=count), 1)
    # The least plus the mean excess: floats are exact for small excesses.
    # values [100 102] of one key -> excess 0 + 2, mean 1 -> 101
    excess = np.bincount(key, weights=(values - least[key]).astype(np.float64), minlength=count)
    return np.where(agrees, least + np.rint(excess / times).astype(np.int64), UNKNOWN)


class JoinedPart(Struct, frozen=True):
    """Launches that were joined in one way, or not for one reason; `time_ns` is their sum."""

    how: How
    launches: int
    time_ns: int


class Join(Struct, frozen=True):
    """The compute kernels of the chosen windows, by how another recording tells their FLOPs.

    `file` is that recording, None for own counters; this run has `found` (a share) of its launches.
    """

    origin: Origin
    file: str | None
    parts: tuple[JoinedPart, ...]
    found: float = 1.0

    @property
    def launches(self) -> int:
        """Return the number of launches."""
        return self.count(*HOW)

    @property
    def known(self) -> int:
        """Return the number of launches whose FLOPs are known."""
        return self.count(*KNOWN)

    @property
    def share(self) -> Fraction | None:
        """Return the share of time with known FLOPs, None without any time."""
        total_ns = sum(part.time_ns for part in self.parts)
        known_ns = sum(part.time_ns for part in self.parts if part.how in KNOWN)
        return Fraction(known_ns, total_ns) if total_ns else None

    def count(self, *how: How) -> int:
        """Return the number of launches joined in one of these ways."""
        return sum(part.launches for part in self.parts if part.how in how)


# FLOPs by counters compared with FLOPs by shapes, where both are known.


class CrossCheck(Struct, frozen=True):
    """FLOPs of launches by counters and by shapes, and the `kernel` in which these differ most."""

    launches: int
    counted: int
    least: int
    most: int
    kernel: str

    @property
    def difference(self) -> Fraction:
        """Return the share by which counters exceed the range of shapes; negative if below it."""
        # Counted 110, by shapes 80 to 100: 0.1. Counted 90: 0. Counted 72: -0.1.
        bound = min(max(self.counted, self.least), self.most)
        return Fraction(self.counted - bound, bound) if bound else Fraction(0)


class MeasuredWork(Struct, frozen=True):
    """The work of each activity by counters or a paired run; UNKNOWN if they do not tell it.

    By activity: `kind` is an index of `kinds`, UNKNOWN if an op's shapes tell the FLOPs. `size` is
    bytes, `vector` FLOPs of vector units. `how` is an index of HOW, -1 for activities that are no
    launch; `origin` is an index of ORIGINS, -1 if nothing is known.

    `counted` are the kernels of counted runs, with or without times here; `speeds` compares them
    with their limits; `families` are their hardware; `missing` the counters that a total of their
    FLOPs needs. `bandwidth` is that of the memory in bytes per ns, None if devices differ.
    """

    kind: IntArray
    kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray
    how: IntArray
    origin: IntArray
    joins: tuple[Join, ...]
    counted: tuple[CountedKernel, ...]
    speeds: tuple[KernelSpeed, ...]
    families: tuple[Family | None, ...]
    missing: tuple[str, ...]
    check: CrossCheck | None
    bandwidth: int | None
    notes: tuple[Note, ...]

    @property
    def has_throughputs(self) -> bool:
        """Return whether a throughput of a kernel was counted."""
        return any(speed.throughputs for speed in self.speeds)

    @property
    def bytes_at(self) -> str:
        """Return where bytes were counted: the memory (NVIDIA's devices) or the fabric (AMD's)."""
        tools = {family.tool for family in self.families if family is not None}
        places = [word for tool, word in _COUNTED_AT.items() if tool in tools]
        return " or ".join(places) or _COUNTED_AT["rocprofv3"]

    def columns(self) -> Iterator[tuple[str, str, IntArray, IntArray]]:
        """Yield (line, data type, most FLOPs by kind, least FLOPs by kind)."""
        shape = 2, len(self.kinds)
        sums = defaultdict[tuple[str, str], IntArray](lambda: np.zeros(shape, np.int64))
        for index, kind in enumerate(self.kinds):
            for part in kind:
                sums[part.line, part.dtype][:, index] += (part.flops, part.at_least)
        for (line, dtype), (most, least) in sums.items():
            yield line, dtype, most, least

    @property
    def flops(self) -> IntArray:
        """Return the FLOPs of each activity, the most if they are not exact, or UNKNOWN."""
        none = np.zeros(len(self.kinds), np.int64)
        return taken(sum((most for _, _, most, _ in self.columns()), none), self.kind, UNKNOWN)

    def basis(self, rows: IntArray) -> Origin:
        """Return the source of the work of most of some activities (rows)."""
        return ORIGINS[int(np.argmax(np.bincount(self.origin[rows], minlength=len(ORIGINS))))]


def by_own_shapes(prepared: Prepared, attribution: Attribution, counted: IntArray) -> Shaped:
    """Return the FLOPs of each activity by the op that launched it: all at the op's main kernel.

    It is unknown how an op's FLOPs are shared by its kernels, so only ops count whose kernels all
    have counters (`counted` is the FLOPs of each activity by counters, or -1).
    """
    owner, work = attribution.owner, attribution.work
    is_owned = is_one_of(prepared.trace.activities["kind"], "kernel") & (owner >= 0)
    is_counted = is_owned & ~np.isin(owner, owner[is_owned & (counted < 0)])
    is_main = taken(attribution.main, owner) == np.arange(len(owner))
    most, least = (taken(work.of_ops(column), owner) for column in (work.flops, work.at_least))
    # Kernels beside the main one have 0.
    most, least = np.where(is_main, most, 0), np.where(is_main, least, 0)
    return np.where(is_counted, most, -1), np.where(is_counted, least, -1)


def cross_check(prepared: Prepared, shapes: Shaped, counted: IntArray) -> CrossCheck | None:
    """Return how FLOPs of activities by counters (-1: unknown) and by shapes compare.

    None if no activity has both, or if all are 0.
    """
    most, least = shapes
    rows = np.flatnonzero((most >= 0) & (counted >= 0) & on_chosen_device(prepared))
    if not len(rows) or not (most[rows].any() or counted[rows].any()):
        return None
    # The sums of each kernel, and the kernel whose sums differ most.
    name = prepared.trace.activities["name"]
    kernel, first = group_rows([codes(name)[rows]])
    by_counters = exact_sums(kernel, counted[rows], len(first))
    by_shapes = exact_sums(kernel, most[rows], len(first))
    differences = [abs(a - b) for a, b in zip(by_counters, by_shapes, strict=True)]
    worst = rows[first[[differences.index(max(differences))]]]
    counted_sum, least_sum, most_sum = sum(by_counters), exact_sum(least[rows]), sum(by_shapes)
    return CrossCheck(len(rows), counted_sum, least_sum, most_sum, texts_of(name, worst)[0])
