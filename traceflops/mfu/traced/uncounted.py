"""What the ledger does not count: ghosts, duplicates, vector work, kernels without FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.op_kernels import Attribution, Fate
from traceflops.flops.ops.count import UNKNOWN
from traceflops.mfu.traced.coverage import HOW, chosen_activities, compute_kernels, on_chosen_device
from traceflops.table.columns import BoolArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import exact_sum, exact_sums, group_rows
from traceflops.table.nesting import taken
from traceflops.windows.device_records import graph_launches
from traceflops.windows.prepared import Prepared

if TYPE_CHECKING:
    from traceflops.mfu.counted.joins import MeasuredWork

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
    """Return what the ledger does not count; `work` has kernels without shapes."""
    ops, of_ops = prepared.trace.ops, attribution.work
    labels = names(ops["name"])
    not_counted: list[NotCounted] = []
    fates: tuple[Fate, ...] = ("cached", "ghost", "lost", "duplicate")
    for why in fates:
        rows = np.flatnonzero(attribution.has(why))
        code = codes(ops["name"])[rows]
        group, first = group_rows([code])
        flops = exact_sums(group, of_ops.of_ops(of_ops.flops)[rows], len(first))
        counts = np.bincount(group, minlength=len(first)).tolist()
        kernels = [labels[label] for label in code[first].tolist()]
        not_counted += map(NotCounted, [why] * len(first), kernels, counts, flops)
    vector_flops = None  # by shapes if any are known, else by `work` if all are
    if (of_ops.of_ops(of_ops.vector_flops) != UNKNOWN).any():
        vector_flops = of_ops.total(of_ops.vector_flops, vector_ops(prepared, attribution))
    elif work is not None:
        is_kernel = is_one_of(prepared.trace.activities["kind"], "kernel")
        counted = work.vector[is_kernel & on_chosen_device(prepared)]
        vector_flops = exact_sum(counted) if len(counted) and (counted >= 0).all() else None
    unattributed = _unattributed(prepared, attribution, work)
    return Outside(tuple(not_counted), tuple(unattributed), vector_flops)


def vector_ops(prepared: Prepared, attribution: Attribution) -> BoolArray:
    """Return, per op, whether it has known vector work and ran an activity of its own.

    Of the ops with vector work around an activity, only the innermost ran it.
    """
    work = attribution.work
    is_vector = (work.of_ops(work.vector_flops) != UNKNOWN) & ~work.matrix
    around = taken(attribution.tree.nearest(is_vector), attribution.op[on_chosen_device(prepared)])
    ran = np.zeros(len(is_vector), dtype=np.bool_)
    ran[around[around >= 0]] = True
    innermost: BoolArray = ran & (attribution.tree.below(ran) == 0)
    return innermost


def _unattributed(
    prepared: Prepared, attribution: Attribution, work: MeasuredWork | None
) -> list[Unattributed]:
    """Return the chosen compute kernels without counted FLOPs, by name and reason."""
    activities, of_ops = prepared.trace.activities, attribution.work
    uncounted = chosen_activities(prepared) & compute_kernels(prepared) & (attribution.owner < 0)
    if work is not None:
        uncounted &= work.kind < 0
    rows = np.flatnonzero(uncounted)
    # `reason` is an index of `reasons`, the first of which are those of the distinct works of ops.
    # Each assignment overrides the earlier ones.
    of_works = [getattr(done, "reason", _NO_MODELLED_OP) for done in of_ops.works]
    reasons = [*of_works, _NO_MODELLED_OP, "no-op", REPLAYED, *HOW]
    no_modelled_op, no_op, replayed, first_how = (len(of_works) + n for n in range(4))
    op = attribution.op[rows]
    modelled = taken(attribution.tree.nearest(of_ops.matrix), op)
    reason = np.where(modelled >= 0, taken(of_ops.place, modelled), no_modelled_op)
    reason = np.where(op < 0, no_op, reason)
    call = prepared.linked.links.call_of_activity[rows]
    is_replayed = taken(graph_launches(prepared.trace).astype(np.int64), call) > 0
    if prepared.replays is not None:
        is_replayed &= prepared.replays.captured[rows] < 0
    reason = np.where(is_replayed, replayed, reason)
    if work is not None:
        reason = np.where(work.how[rows] >= 0, first_how + work.how[rows], reason)
    name = codes(activities["name"])
    group, first = group_rows([name[rows], reason])
    counts = np.bincount(group, minlength=len(first)).tolist()
    sums = exact_sums(group, numbers(activities["dur_ns"])[rows], len(first))
    labels = names(activities["name"])
    kernels = [labels[code] for code in name[rows[first]].tolist()]
    whys = [reasons[code] for code in reason[first].tolist()]
    return sorted(map(Unattributed, kernels, whys, counts, sums), key=lambda row: -row.sum_ns)
