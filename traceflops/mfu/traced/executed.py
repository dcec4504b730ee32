"""Executed FLOPs of a trace: its ledger by device, window, component and data type.

`executed(prepare(trace))` attributes every op to its kernels, finds its phase and adds up FLOPs.
The lines of a ledger sum exactly to what was executed. `Outside` has what the ledger does not:
ghosts, duplicates, vector work and the time of kernels without counted FLOPs.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from traceflops.attribution.op_kernels import Attribution, Fate, attribute, named
from traceflops.attribution.products import product_roles
from traceflops.attribution.scopes import Phases, phases
from traceflops.flops.mfu_waterfall import UNSPLIT, Ledger, Line
from traceflops.flops.ops.arguments import Shape, Shapes, read_shapes
from traceflops.flops.ops.count import UNKNOWN
from traceflops.flops.ops.work import Product
from traceflops.mfu.counted.joins import MeasuredWork
from traceflops.mfu.traced.cells import Cell, PartTable, cells_of, cells_of_kinds, part_table
from traceflops.mfu.traced.coverage import (
    HOW,
    ComputeTime,
    chosen_activities,
    compute_kernels,
    compute_times,
    on_chosen_device,
    window_of_activity,
)
from traceflops.table.columns import BoolArray, codes, is_one_of, names, numbers, texts_of
from traceflops.table.grouping import distinct, exact_sum, exact_sums, group_rows, groups
from traceflops.table.nesting import taken
from traceflops.table.patterns import GRAPH_LAUNCH, started
from traceflops.table.trace import Note, Trace, note_of
from traceflops.windows.prepared import Prepared

_LOSSES: Final = frozenset({"aten::cross_entropy_loss", "aten::_log_softmax"})
"""Ops whose first argument is logits: rows x classes."""
LINE_ORDER: Final = ("model", "recompute", "algorithmic", "overcompute", UNSPLIT)
"""Families of lines: `model` is F_model of the trace, all families together are F_executed.

FLOPs of the last family are of unknown purpose: they may belong to any other.
"""
_UNTOLD: Final = Note(
    "assumed",
    "ghosts-not-told",
    "The trace has no GPU operations, and no product calls aten::resolve_conj, so "
    "unexecuted operators cannot be detected: all operators are counted.",
)

_NO_MODELLED_OP: Final = "no-modelled-op"
REPLAYED: Final = "replayed"


class NotCounted(Struct, frozen=True):
    """Ops of one name that are not counted, why (their fate), and the FLOPs by their shapes."""

    why: Fate
    op: str
    count: int
    flops: int


class Unattributed(Struct, frozen=True):
    """Compute kernels of one name without counted FLOPs, and why.

    `why` is `no-op` (no launch record, or launched by no op), `no-modelled-op`, `replayed` (by a
    graph whose capture is not known), or the reason why the work of the op is unknown. With
    counters or a paired run, it is why the join with these failed: `ambiguous`, `uncounted` or
    `absent` (see counted/joins.py).
    """

    kernel: str
    why: str
    count: int
    sum_ns: int


class Outside(Struct, frozen=True):
    """What the ledger does not count, in the whole recording of the chosen devices.

    Only `unattributed` is of the chosen windows. Ghosts have no device, so those of all processes
    count. `vector_flops` are FLOPs without matrix work, which enter no utilisation: of the ops that
    ran, where known; without such ops by counters if these have all kernels, else None.
    """

    not_counted: tuple[NotCounted, ...]
    unattributed: tuple[Unattributed, ...]
    vector_flops: int | None

    def count(self, *why: Fate) -> int:
        """Return how many ops have one of these fates."""
        return sum(row.count for row in self.not_counted if row.why in why)


def outside(prepared: Prepared, attribution: Attribution, work: MeasuredWork | None) -> Outside:
    """Return what the ledger does not count; `work` is that of kernels by counters or a pair."""
    name, op_work = prepared.trace.ops["name"], attribution.work
    not_counted: list[NotCounted] = []
    fates: tuple[Fate, ...] = ("cached", "ghost", "lost", "duplicate")
    for fate in fates:
        rows = np.flatnonzero(attribution.has(fate))
        # Ops of one name are a group.
        group, first = group_rows([codes(name)[rows]])
        labels, counts = texts_of(name, rows[first]), np.bincount(group, minlength=len(first))
        flops = exact_sums(group, op_work.of_ops(op_work.flops)[rows], len(first))
        for label, count, flops_of_name in zip(labels, counts.tolist(), flops, strict=True):
            not_counted.append(NotCounted(fate, label, count, flops_of_name))
    # Vector FLOPs are known by shapes of ops; else by `work`, if it knows those of all kernels.
    vector_flops = None
    if (op_work.of_ops(op_work.vector_flops) != UNKNOWN).any():
        vector_flops = op_work.total(op_work.vector_flops, vector_ops(prepared, attribution))
    elif work is not None:
        is_kernel = is_one_of(prepared.trace.activities["kind"], "kernel")
        counted = work.vector[is_kernel & on_chosen_device(prepared)]
        vector_flops = exact_sum(counted) if len(counted) and (counted >= 0).all() else None
    unattributed = _unattributed(prepared, attribution, work)
    return Outside(tuple(not_counted), tuple(unattributed), vector_flops)


def vector_ops(prepared: Prepared, attribution: Attribution) -> BoolArray:
    """Return, per op, whether it is the innermost with known vector work around an activity.

    An op around such an op is none: its work includes that of the inner one.
    """
    work, tree = attribution.work, attribution.tree
    is_vector = (work.of_ops(work.vector_flops) != UNKNOWN) & ~work.matrix
    vector_op = taken(tree.nearest(is_vector), attribution.op[on_chosen_device(prepared)])
    ran = np.zeros(len(is_vector), dtype=np.bool_)
    ran[vector_op[vector_op >= 0]] = True
    has_none_inside: BoolArray = tree.below(ran) == 0
    return ran & has_none_inside


def _unattributed(
    prepared: Prepared, attribution: Attribution, work: MeasuredWork | None
) -> list[Unattributed]:
    """Return the chosen compute kernels without counted FLOPs, by name and reason.

    The reasons are in `Unattributed`. If several hold, it is the first in the table at `np.select`.
    """
    activities, op_work = prepared.trace.activities, attribution.work
    uncounted = chosen_activities(prepared) & compute_kernels(prepared) & (attribution.owner < 0)
    if work is not None:
        uncounted &= work.kind < 0
    rows = np.flatnonzero(uncounted)
    # Per kernel in `rows`, `reason` is an index of `reasons`. The first ones are of the works of
    # ops, in their order, which `op_work.place` points to.
    of_works = [getattr(done, "reason", _NO_MODELLED_OP) for done in op_work.works]
    reasons = [*of_works, _NO_MODELLED_OP, "no-op", REPLAYED, *HOW]
    no_modelled_op, no_op, replayed, first_how = range(len(of_works), len(of_works) + 4)
    op = attribution.op[rows]
    modelled_op = taken(attribution.tree.nearest(op_work.matrix), op)
    call = prepared.linked.links.call_of_activity[rows]
    is_replayed = taken(started(prepared.trace.calls, GRAPH_LAUNCH).astype(np.int64), call) > 0
    if prepared.replays is not None:
        is_replayed &= prepared.replays.captured[rows] < 0
    how = work.how[rows] if work is not None else np.full(len(rows), UNKNOWN)
    reason = np.select(
        [how >= 0, is_replayed, op < 0, modelled_op >= 0],
        [first_how + how, replayed, no_op, taken(op_work.place, modelled_op)],
        default=no_modelled_op,
    )
    group, first = group_rows([codes(activities["name"])[rows], reason])
    counts = np.bincount(group, minlength=len(first)).tolist()
    sums = exact_sums(group, numbers(activities["dur_ns"])[rows], len(first))
    kernels = texts_of(activities["name"], rows[first])
    whys = [reasons[code] for code in reason[first].tolist()]
    return sorted(map(Unattributed, kernels, whys, counts, sums), key=lambda row: -row.sum_ns)


class Executed(Struct, frozen=True, dict=True):
    """The executed work of a trace.

    `cells` hold all FLOPs of the devices, `times` the compute times of every device and window; the
    properties below are sums over the chosen windows (`used`). `outside` is what the ledger does
    not count. `attribution` has the FLOPs by op, `work` those by counters or a paired run, or None.
    """

    cells: tuple[Cell, ...]
    times: tuple[ComputeTime, ...]
    outside: Outside
    notes: tuple[Note, ...]
    attribution: Attribution
    phases: Phases
    work: MeasuredWork | None = None

    @cached_property
    def used_cells(self) -> tuple[Cell, ...]:
        """Return the cells of the chosen windows."""
        return tuple(cell for cell in self.cells if cell.used)

    @cached_property
    def flops_by_type(self) -> Counter[str]:
        """Return the FLOPs of the chosen windows by data type, without types that have none."""
        flops: Counter[str] = Counter()
        for cell in self.used_cells:
            flops[cell.dtype] += cell.flops
        return +flops

    @property
    def dtypes(self) -> frozenset[str]:
        """Return the data types of the FLOPs of the chosen windows."""
        return frozenset(self.flops_by_type)

    def ledger(self) -> Ledger:
        """Return the ledger in LINE_ORDER; its lines sum to F_executed of the chosen windows."""
        sums: Counter[str] = Counter()
        for cell in self.used_cells:
            sums[cell.line] += cell.flops
        order = sorted(sums, key=lambda name: (LINE_ORDER.index(name.split(".")[0]), name))
        return Ledger("trace", tuple(Line(name, sums[name]) for name in order if sums[name]))

    @property
    def model_flops(self) -> int:
        """Return F_model of the chosen windows: the sum of the model lines, upper bounds."""
        return int(self.ledger().total("model"))

    @property
    def model_at_least(self) -> int:
        """Return the least that F_model of the chosen windows can be."""
        return sum(cell.at_least for cell in self.used_cells if cell.line.startswith("model."))

    @property
    def executed_flops(self) -> int:
        """Return F_executed of the chosen windows; the most where counts are not exact."""
        return sum(cell.flops for cell in self.used_cells)

    @property
    def unsplit_flops(self) -> int:
        """Return the executed FLOPs of unknown purpose in the chosen windows."""
        return int(self.ledger().total(UNSPLIT))

    @property
    def executed_at_least(self) -> int:
        """Return the least that F_executed of the chosen windows can be."""
        return sum(cell.at_least for cell in self.used_cells)

    @cached_property
    def coverage(self) -> Fraction | None:
        """Return the share of compute-kernel time with counted FLOPs; None without any."""
        total = sum(time.kernels_ns for time in self.times if time.used)
        counted = sum(time.counted_kernels_ns for time in self.times if time.used)
        return Fraction(counted, total) if total else None

    def rules(self, family: str) -> dict[str, tuple[int, int]]:
        """Return (parts of ops, FLOPs) by rule that decided the line, of the lines of a family."""
        by_rule: dict[str, tuple[int, int]] = {}
        for cell in self.used_cells:
            if f"{cell.line}.".startswith(f"{family}."):
                ops, flops = by_rule.get(cell.rule, (0, 0))
                by_rule[cell.rule] = (ops + cell.ops, flops + cell.flops)
        return by_rule


def executed(
    prepared: Prepared, attributed: Attribution | None = None, work: MeasuredWork | None = None
) -> Executed:
    """Return the executed work; `work` is that of kernels without shapes, `attributed` of ops."""
    attribution = attributed or attribute(prepared.linked)
    parts, phase = parts_of(prepared, attribution)
    windows = window_of_activity(prepared)
    cells = cells_of(prepared, attribution, parts, windows)
    # Check: all FLOPs of executed ops on the chosen devices are in the cells.
    rows, flops = attribution.executed, attribution.work.flops
    device = taken(numbers(prepared.trace.activities["device"]), attribution.main[rows])
    total = attribution.work.total(flops, rows[np.isin(device, list(prepared.accounts))])
    assert sum(cell.flops for cell in cells) == total
    counted = attribution.owner >= 0
    if work is not None:
        cells = (*cells, *cells_of_kinds(prepared, work, windows))
        counted = counted | (work.kind >= 0)
    notes = [_UNTOLD] if attribution.untold else []
    if doubtful := int((parts.flops != parts.at_least).sum()):
        notes.append(note_of("assumed", "flops-between-bounds", count=doubtful))
    if lost := int(attribution.has("lost").sum()):
        notes.append(note_of("missing", "kernels-of-ops-missing", count=lost))
    if phase.unconfirmed:
        notes.append(note_of("assumed", "recompute-rules-disagree", count=phase.unconfirmed))
    times, beside = compute_times(prepared, counted), outside(prepared, attribution, work)
    return Executed(cells, times, beside, tuple(notes), attribution, phase, work)


def parts_of(prepared: Prepared, attribution: Attribution) -> tuple[PartTable, Phases]:
    """Return the FLOPs of all executed ops by ledger line, and the phase of each op.

    An op computes logits, the input of a cross entropy, if one of these holds:

    1. It is a forward product of as many rows and columns as a loss's input, such as 512 x 32000.
    2. It is a gradient, and its forward op computes logits.
    3. It is inside a duplicate of the same work that computes logits.
    """
    trace, tree, work = prepared.trace, attribution.tree, attribution.work
    phase = phases(trace, attribution)
    roles = product_roles(trace, attribution, phase)
    dims = trace.ops["input_dims"]
    texts, matrices = names(dims), set[Shape]()
    is_loss = named(trace.ops, _LOSSES) & (codes(dims) >= 0)
    for code in distinct(codes(dims)[is_loss]).tolist():
        shape = (read_shapes(texts[code]) or ((),))[0]
        if not isinstance(shape, Shapes) and len(shape) == 2:
            matrices.add(shape)
    sizes = map(work.signature, range(len(work.works)))
    fits = [isinstance(size, Product) and (size.m, size.n) in matrices for size in sizes]
    # The work of wrappers counts in the ops inside them.
    is_forward = roles.is_a("forward") & ~attribution.has("wrapper", "none")
    logits: BoolArray = is_forward & np.array(fits, dtype=np.bool_)[work.place]
    has_forward = roles.forward >= 0
    logits[has_forward] = logits[roles.forward[has_forward]]
    rows = np.flatnonzero(attribution.has("executed") & roles.is_a("forward") & ~logits)
    around = taken(tree.nearest(attribution.has("duplicate")), tree.parent[rows])
    is_same = taken(work.place, around) == work.place[rows]
    logits[rows] = is_same & (taken(1 * logits, around, 0) > 0)
    return part_table(attribution, phase, roles, logits), phase


_NO_CPU: Final = 100_000
"""FLOP per ns (100 TFLOP/s). Vector units of the largest CPUs reach a quarter of it. Their matrix
units reach it, but only in large products, which then take far longer than smaller ones."""
_LESS: Final = 8  # a CPU takes less than half as long for so many times less work


class TooFast(NamedTuple):
    """An operator whose largest call takes hardly longer than calls of `times` times less work."""

    operator: str
    flops_per_ns: float
    times: int


def allocates_on_gpu(trace: Trace) -> bool:
    """Return whether most bytes that a program allocates and frees are of a GPU's memory."""
    name, value = trace.counters["name"], np.abs(numbers(trace.counters["value"], 0))
    of_host, of_device = (f"{place}_memory.change_bytes" for place in ("host", "device"))
    return bool(value[is_one_of(name, of_device)].sum() > value[is_one_of(name, of_host)].sum())


def too_fast(trace: Trace, attribution: Attribution) -> TooFast | None:
    """Return the operator of the highest rate that cannot have computed on the CPU; else None.

    Per operator, the call with the most FLOPs is compared with calls of far fewer: if a CPU
    computes, these take less than half as long. A call of 8e12 FLOPs takes 40 ms, calls of 1e12
    FLOPs take 35 ms: no CPU computed them. Calls of 0 ns have lost their time.
    """
    work, op = attribution.work, attribution.executed
    flops = work.of_ops(work.at_least)[op]
    name, dur_ns = codes(trace.ops["name"])[op], numbers(trace.ops["dur_ns"])[op]
    too_fast_ops, timed = [], np.flatnonzero(dur_ns > 0)
    for code, members in groups(name[timed]):
        rows = timed[members]
        largest = rows[np.argmax(flops[rows])]
        rate = float(flops[largest]) / int(dur_ns[largest])
        small = rows[flops[rows] <= flops[largest] // _LESS]
        if rate < _NO_CPU or not len(small):
            continue
        if 2 * np.median(dur_ns[small]) >= dur_ns[largest]:
            times = int(flops[largest] // flops[small].max())
            too_fast_ops.append(TooFast(names(trace.ops["name"])[code], rate, times))
    return max(too_fast_ops, key=lambda operator: operator.flops_per_ns, default=None)
