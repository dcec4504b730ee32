"""Which matrix ops were really executed, and for which of them each activity worked.

An op counts if it is the innermost op with known matrix work that owns a compute kernel. Ops around
it are wrappers, or duplicates if a dispatch mode recorded the op twice. An op without any kernel is
a ghost: its result came from a cache, or a recomputation stopped before it. On the CPU there are no
kernels: there an executed product has an `aten::resolve_conj` inside it, and launches nothing.
"""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.flops.ops.count import OpWork, count_ops
from traceflops.flops.ops.work import Work
from traceflops.table.arrays import BoolArray, IntArray, SmallArray
from traceflops.table.columns import Names, codes, is_one_of, matching, numbers
from traceflops.table.grouping import distinct
from traceflops.table.nesting import OpTree, taken
from traceflops.table.patterns import started
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.host_work import ran_on_cpu

Fate = Literal["none", "executed", "wrapper", "duplicate", "cached", "ghost", "lost"]
FATES: Final[tuple[Fate, ...]] = get_args(Fate)
"""
none       no matrix work, or an unknown amount
executed   counted
wrapper    its work is counted inside it
duplicate  the same op, recorded a second time around the executed one by a dispatch mode
cached     a ghost whose result a dispatch mode took from a cache
ghost      recorded with shapes but never executed, e.g. since a recomputation stopped early
lost       launched, but none of its kernels is in the trace
"""
DISPATCH_MODE: Final = "PythonDispatchMode"
PROOFS: Final[dict[str, str]] = {
    **{f"aten::{name}": "aten::resolve_conj" for name in ("mm", "bmm", "addmm", "baddbmm")},
    **{f"aten::{name}_": "aten::resolve_conj" for name in ("addmm", "baddbmm")},
    **{f"aten::{name}": "aten::dot" for name in ("matmul", "linalg_matmul")},
    "aten::convolution": "aten::_convolution",
    "aten::mv": "aten::addmv_",
}
"""By op, the op inside it that proves on the CPU that it was executed (torch 2.13)."""
_AUXILIARY: Final = re.compile(r"splitk_?reduce|epilogue::impl|dot_do_o|convert_dq")
"""Kernels that add up, convert or prepare beside the one that does the work."""
_LONGEST_NAME: Final = 4096
_CLEAR_PROOF: Final = "aten::resolve_conj"


class Attribution(Struct, frozen=True):
    """The fate of every op, and the op for which every activity worked.

    `fate` is, per op, an index into FATES. `op` is, per activity, the innermost op around its
    launch and `owner` the executed op around that, -1 for none. `main` is, per op, its longest
    compute kernel, -1 for ops that are not executed. `untold`: on the CPU ghosts cannot be told
    from executed ops.
    """

    work: OpWork
    tree: OpTree
    fate: SmallArray
    op: IntArray
    owner: IntArray
    main: IntArray
    untold: bool

    def has(self, *fates: Fate) -> BoolArray:
        """Return, per op, whether its fate is one of these."""
        return np.isin(self.fate, [FATES.index(fate) for fate in fates])

    @property
    def executed(self) -> IntArray:
        """The rows of the executed ops."""
        return np.flatnonzero(self.has("executed"))


def attribute(linked: LinkedTrace) -> Attribution:
    """Return the fate of each op of a trace, and the executed op for which each activity worked."""
    trace, tree, activities = linked.trace, linked.op_tree, linked.trace.activities
    work = count_ops(trace.ops)
    known = _known(work, tree)
    nearest = tree.nearest(known)  # per op, the innermost known op around it, or itself
    is_op = is_one_of(activities["kind"], "op")  # of a CPU; -1 - row is their correlation
    op = np.where(is_op, -1 - numbers(activities["correlation"], 0), linked.links.op_of_activity)
    device_work = distinct(numbers(activities["process"])[~ran_on_cpu(trace)])
    on_host = ~np.isin(numbers(trace.ops["process"]), device_work)
    # A dispatch mode is recorded as an op inside the one that it intercepts, and may run it again.
    in_mode = _marked(tree.parent[is_one_of(trace.ops["name"], DISPATCH_MODE)], len(known))
    # Ops that launch work though their process has none on a device.
    launching = on_host
    if on_host.any():
        launches = _marked(linked.links.op_of_call[started(trace.calls)], len(known))
        launching = on_host & (launches | (tree.below(launches) > 0))
    # On a device, an op is executed if it owns a compute kernel, or if it owns a kernel of no
    # category and no other op with known work is inside it.
    is_kernel = is_one_of(activities["kind"], "kernel", "op")
    compute, unnamed = (is_kernel & is_top(linked.categorised, top) for top in ("compute", "other"))
    owns_compute, owns_unnamed = (
        _marked(taken(nearest, op[kernels]), len(known)) for kernels in (compute, unnamed)
    )
    is_alone = (tree.below(known) == 0) & ~work.wrapper
    with_kernels = owns_compute | (is_alone & owns_unnamed)
    proven, untold = _proven(trace.ops, tree, work, known & on_host, tree.below(known) == 0)
    owning = np.where(on_host, proven & ~in_mode & ~launching, with_kernels) & known
    executed = owning & (tree.below(owning) == 0)
    owner = taken(tree.nearest(executed), op)

    main = _main_kernels(activities, owner, compute, unnamed, len(known))
    fate = _fates(linked, known, nearest, executed, compute, in_mode, launching)
    return Attribution(work, tree, fate, op, owner, main, untold)


def _main_kernels(
    activities: pa.Table, owner: IntArray, compute: BoolArray, unnamed: BoolArray, ops: int
) -> IntArray:
    """Return, per op, the most important of its activities (rows), -1 without any.

    Compute kernels come first, then auxiliary ones and those of no category (`unnamed`), then all
    others. Of these the longest one counts, of equally long ones the first.
    """
    rows = np.flatnonzero(owner >= 0)
    start, dur = numbers(activities["start_ns"])[rows], numbers(activities["dur_ns"])[rows]
    helps = matching(activities["name"], lambda t: _AUXILIARY.search(t[:_LONGEST_NAME].lower()))
    rank = 2 * (compute & ~helps)[rows] + (unnamed | compute)[rows]
    # In order of importance: of values assigned to one op, the last one stays.
    order = rows[np.lexsort((-start, dur, rank, owner[rows]))]
    main = np.full(ops, -1, dtype=np.int64)
    main[owner[order]] = order
    return main


def _marked(op: IntArray, count: int) -> BoolArray:
    """Return, per op of `count`, whether its row is in `op`; -1 stands for none."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[op[op >= 0]] = True
    return mask


def _known(work: OpWork, tree: OpTree) -> BoolArray:
    """Return, per op, whether its matrix work is known and should be used.

    An op with bounds only is skipped if the op around it is of the same kind and has an exact
    figure: in older schemas the inner op lacks the attention mask.
    """
    works = [op_work if isinstance(op_work, Work) else None for op_work in work.works]
    has_flops = np.array([w is not None and w.flops > 0 for w in works], dtype=np.bool_)
    exact = np.array([w is not None and w.exact for w in works], dtype=np.bool_)
    has_work: BoolArray = has_flops[work.place]
    if exact[has_flops].all():
        return has_work
    kind = Names().codes(w.kind if w is not None else "" for w in works)[work.place]
    is_exact: BoolArray = exact[work.place]
    outer = tree.around(has_work)
    outer_row = np.maximum(outer, 0)  # any row where there is no outer op
    outer_is_better = (outer >= 0) & is_exact[outer_row] & (kind[outer_row] == kind)
    return np.asarray(has_work & (is_exact | ~outer_is_better))


def _proven(
    ops: pa.Table, tree: OpTree, work: OpWork, needs_proof: BoolArray, is_innermost: BoolArray
) -> tuple[BoolArray, bool]:
    """Return, per op, whether its execution on the CPU is proven; and whether proofs are missing.

    Ops without an entry in PROOFS need no proof. A wrapper counts as executed only if no op with
    known work is inside it (`is_innermost`).
    """
    proven, untold = ~work.wrapper | is_innermost, False
    for proof in dict.fromkeys(PROOFS.values()):
        proven_by = is_one_of(ops["name"], *(name for name, by in PROOFS.items() if by == proof))
        has_proof = tree.below(is_one_of(ops["name"], proof)) > 0
        required = proven_by & needs_proof
        # An executed mm always has this proof: if no op has it, proofs are not recorded.
        if proof == _CLEAR_PROOF and required.any() and not (required & has_proof).any():
            untold = True  # an older version, or the records of a device are missing
        else:
            proven = np.where(proven_by, has_proof, proven)
    return proven, untold


def _fates(
    linked: LinkedTrace,
    known: BoolArray,
    nearest: IntArray,
    executed: BoolArray,
    compute: BoolArray,
    in_mode: BoolArray,
    launching: BoolArray,
) -> SmallArray:
    """Return the fate of each op, an index into FATES; arguments are as in `attribute`."""
    tree, name = linked.op_tree, codes(linked.trace.ops["name"])
    # Ops that made a lost launch: a call without a recorded activity, of a name that launched
    # compute work elsewhere.
    calls, call = linked.trace.calls, linked.links.call_of_activity
    launched_compute = distinct(codes(calls["name"])[call[compute & (call >= 0)]])
    is_lost = np.isin(codes(calls["name"]), launched_compute) & started(calls)
    is_lost[call[call >= 0]] = False
    lost_launch = _marked(taken(nearest, linked.links.op_of_call[is_lost]), len(known))
    is_around_executed = tree.below(executed) > 0
    # Ops with known work directly around an op with known work and the same name.
    outer = taken(nearest, tree.parent)
    rows = np.flatnonzero(known & (outer >= 0))
    around_itself = _marked(outer[rows[name[rows] == name[outer[rows]]]], len(known))
    bare = known & ~executed & ~is_around_executed & (tree.below(known) == 0)
    fate = np.zeros(len(known), dtype=np.int8)  # "none"; later lines replace earlier ones
    fate[known] = FATES.index("wrapper")
    fate[known & is_around_executed & around_itself] = FATES.index("duplicate")
    fate[bare] = FATES.index("ghost")
    fate[bare & (lost_launch | launching)] = FATES.index("lost")
    fate[bare & in_mode] = FATES.index("cached")  # the mode had its result, and ran nothing
    fate[executed] = FATES.index("executed")
    return fate


def named(table: pa.Table, wanted: frozenset[str]) -> BoolArray:
    """Return, per row of a table, whether its name is one of these."""
    return matching(table["name"], wanted.__contains__)
