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
from traceflops.table.patterns import LAUNCH
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


class _Input(Struct, frozen=True):
    """The columns that the rules of `attribute` look at.

    Per op: `known`, whether its matrix work is known; `nearest`, the innermost known op around it,
    or itself; `on_host`, whether its process has no device work; `in_mode`, whether a dispatch mode
    intercepted it, which runs it again or not at all. Per activity: the `op` that launched it;
    whether it is a `compute` kernel; whether it is an `unnamed` kernel, without a category.
    """

    linked: LinkedTrace
    work: OpWork
    tree: OpTree
    known: BoolArray
    nearest: IntArray
    on_host: BoolArray
    in_mode: BoolArray
    op: IntArray
    compute: BoolArray
    unnamed: BoolArray

    def named(self, *wanted: str) -> BoolArray:
        """Return, per op, whether it has one of these names."""
        return is_one_of(self.linked.trace.ops["name"], *wanted)

    def marked(self, op: IntArray) -> BoolArray:
        """Return, per op, whether its row is in `op`; -1 stands for none."""
        mask = np.zeros(len(self.known), dtype=np.bool_)
        mask[op[op >= 0]] = True
        return mask

    def owning(self, activities: BoolArray) -> BoolArray:
        """Return, per op, whether it is the innermost known op of one of the marked activities."""
        return self.marked(taken(self.nearest, self.op[activities]))

    def launching(self) -> BoolArray:
        """Return, per op, whether it launches work though its process has none on a device."""
        if not self.on_host.any():
            return self.on_host
        launches = matching(self.linked.trace.calls["name"], LAUNCH.match)
        own = self.marked(self.linked.links.op_of_call[launches])
        return self.on_host & (own | (self.tree.below(own) > 0))


def attribute(linked: LinkedTrace) -> Attribution:
    """Return the fate of each op of a trace, and the executed op for which each activity worked."""
    trace, tree, activities = linked.trace, linked.op_tree, linked.trace.activities
    work = count_ops(trace.ops)
    has_work = _known(work, tree)
    is_op = is_one_of(activities["kind"], "op")  # of a CPU; -1 - row is their correlation
    op = np.where(is_op, -1 - numbers(activities["correlation"], 0), linked.links.op_of_activity)
    device_work = distinct(numbers(activities["process"])[~ran_on_cpu(trace)])
    on_host = ~np.isin(numbers(trace.ops["process"]), device_work)
    # A dispatch mode is recorded as an op inside the one that it intercepted.
    modes = tree.parent[is_one_of(trace.ops["name"], DISPATCH_MODE)]
    in_mode = np.zeros(len(has_work), dtype=np.bool_)
    in_mode[modes[modes >= 0]] = True
    is_kernel = is_one_of(activities["kind"], "kernel", "op")
    compute, unnamed = (is_kernel & is_top(linked.categorised, top) for top in ("compute", "other"))
    facts = _Input(
        linked, work, tree, has_work, tree.nearest(has_work), on_host, in_mode, op, compute, unnamed
    )
    # On a device an executed op owns a compute kernel, or owns a kernel of no category while no
    # other op with known work is inside it.
    is_alone = (tree.below(has_work) == 0) & ~work.wrapper
    with_kernels = facts.owning(compute) | (is_alone & facts.owning(unnamed))
    proven, untold = _proven(facts)
    owning = np.where(on_host, proven & ~facts.launching(), with_kernels) & has_work
    executed = owning & (tree.below(owning) == 0)
    owner = taken(tree.nearest(executed), op)

    # The longest compute kernel of each op, of equal ones the first. Kernels of no category come
    # after compute kernels, auxiliary ones last.
    rows = np.flatnonzero(owner >= 0)
    start, dur = numbers(activities["start_ns"])[rows], numbers(activities["dur_ns"])[rows]
    helps = matching(activities["name"], lambda t: _AUXILIARY.search(t[:_LONGEST_NAME].lower()))
    rank = 2 * (compute & ~helps)[rows] + (unnamed | compute)[rows]
    order = rows[np.lexsort((-start, dur, rank, owner[rows]))]
    main = np.full(len(has_work), -1, dtype=np.int64)
    main[owner[order]] = order  # the last activity of each op is kept
    return Attribution(work, tree, _fates(facts, executed), op, owner, main, untold)


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
    outer = tree.around(has_work)
    better = has_work & (outer >= 0) & exact[work.place][np.maximum(outer, 0)]
    better &= kind[np.maximum(outer, 0)] == kind
    return has_work & (exact[work.place] | ~better)


def _proven(facts: _Input) -> tuple[BoolArray, bool]:
    """Return, per op, whether its execution on the CPU is proven; and whether proofs are missing.

    Ops without an entry in PROOFS need no proof. A wrapper counts as executed only if no op with
    known work is inside it.
    """
    tree, proven, untold = facts.tree, ~facts.work.wrapper, False
    proven = proven | (tree.below(facts.known) == 0)
    for proof in dict.fromkeys(PROOFS.values()):
        proven_by = facts.named(*(name for name, has_proof in PROOFS.items() if has_proof == proof))
        has_proof = tree.below(facts.named(proof)) > 0
        required = proven_by & facts.known & facts.on_host
        # An executed mm always has this proof: if no op has it, proofs are not recorded.
        if proof == _CLEAR_PROOF and required.any() and not (required & has_proof).any():
            untold = True  # an older version, or the records of a device are missing
            continue
        proven = np.where(proven_by, has_proof, proven)
    return proven & ~facts.in_mode, untold


def _fates(facts: _Input, executed: BoolArray) -> SmallArray:
    """Return the fate of each op, an index into FATES; `executed` is per op."""
    tree, has_work, name = facts.tree, facts.known, codes(facts.linked.trace.ops["name"])
    # Ops with calls without a recorded activity, of a name that launched compute work elsewhere.
    calls, call = facts.linked.trace.calls, facts.linked.links.call_of_activity
    launching = distinct(codes(calls["name"])[call[facts.compute & (call >= 0)]])
    lost = np.isin(codes(calls["name"]), launching)
    lost[call[call >= 0]] = False
    launched = facts.marked(taken(facts.nearest, facts.linked.links.op_of_call[lost]))
    is_around_executed = tree.below(executed) > 0
    # Ops with known work directly around an op with known work and the same name.
    outer = taken(facts.nearest, tree.parent)
    rows = np.flatnonzero(has_work & (outer >= 0))
    around_itself = facts.marked(outer[rows[name[rows] == name[outer[rows]]]])
    bare = has_work & ~executed & ~is_around_executed & (tree.below(has_work) == 0)
    fate = np.zeros(len(has_work), dtype=np.int8)
    fate[has_work] = FATES.index("wrapper")
    fate[has_work & is_around_executed & around_itself] = FATES.index("duplicate")
    fate[bare] = FATES.index("ghost")
    fate[bare & (launched | facts.launching())] = FATES.index("lost")
    fate[bare & facts.in_mode] = FATES.index("cached")  # the mode had its result, and ran nothing
    fate[executed] = FATES.index("executed")
    return fate


def named(table: pa.Table, wanted: frozenset[str]) -> BoolArray:
    """Return, per row of a table, whether its name is one of these."""
    return matching(table["name"], wanted.__contains__)
