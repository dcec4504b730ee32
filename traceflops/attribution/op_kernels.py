"""Which ops were really executed, and which of them each activity worked for.

A matrix op counts where it is the innermost one with known work that owns a compute kernel. Ops
around it are wrappers, or its duplicates where a dispatch mode recorded it twice. One without any
kernel is a ghost: its result came from a cache, or a recomputation stopped before it was formed.
Runs on the CPU have no kernels: there products leave `aten::resolve_conj` below themselves when
they are really formed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa

from traceflops.flops.ops.count import OpWork, count_ops
from traceflops.flops.ops.work import Work
from traceflops.table.columns import (
    BoolArray,
    IntArray,
    Names,
    SmallArray,
    codes,
    is_one_of,
    matching,
    numbers,
)
from traceflops.table.grouping import distinct
from traceflops.table.nesting import OpTree, taken
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.host_work import ran_on_cpu

Fate = Literal["none", "executed", "wrapper", "duplicate", "cached", "ghost", "lost"]
FATES: Final[tuple[Fate, ...]] = get_args(Fate)
"""
none       no matrix work, or not known how much
executed   counted
wrapper    what it does is counted below it
duplicate  the same op, recorded a second time around the executed one by a dispatch mode
cached     a ghost whose result a dispatch mode took from a cache
ghost      recorded with shapes and never executed, as where a recomputation stopped early
lost       launched, but no kernel of its is in the trace
"""

DISPATCH_MODE: Final = "PythonDispatchMode"

PROOFS: Final[dict[str, str]] = {
    **{f"aten::{name}": "aten::resolve_conj" for name in ("mm", "bmm", "addmm", "baddbmm")},
    **{f"aten::{name}_": "aten::resolve_conj" for name in ("addmm", "baddbmm")},
    **{f"aten::{name}": "aten::dot" for name in ("matmul", "linalg_matmul")},
    "aten::convolution": "aten::_convolution",
    "aten::mv": "aten::addmv_",
}
"""What runs below an op on the CPU if and only if it is executed itself (torch 2.13)."""

_AUXILIARY: Final = re.compile(r"splitk_?reduce|epilogue::impl|dot_do_o|convert_dq")
"""Kernels beside the one that does the work: they add up, convert, prepare."""

_LONGEST_NAME: Final = 4096

_CLEAR_PROOF: Final = "aten::resolve_conj"


@dataclass(frozen=True, slots=True)
class Attribution:
    """What became of every op, and what every activity worked for.

    `fate` is, per op, its place in FATES. `op` is, per activity, the innermost op it belongs to
    and `owner` the executed op around it, -1 for none. `main` is, per op, the activity that stands
    for it: its longest compute kernel (-1 for ops that are not executed). `untold` says that
    ghosts on the CPU cannot be distinguished from executed ops.
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


@dataclass(frozen=True, slots=True)
class _Input:
    """What the rules look at: ops and, per activity, what it is.

    Per op: `known` whether its matrix work is known, `nearest` the innermost known op around it,
    itself included, `on_host` whether its process has no device work, `in_mode` whether a dispatch
    mode got it, which runs it again or not at all. Per activity: `op` that launched it, whether
    it is a `compute` kernel, or an `unnamed` one that no rule knows.
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
        """Return a mask of ops (-1: none)."""
        mask = np.zeros(len(self.known), dtype=np.bool_)
        mask[op[op >= 0]] = True
        return mask

    def owning(self, activities: BoolArray) -> BoolArray:
        """Return, per op, whether it is the innermost known one around such an activity."""
        return self.marked(taken(self.nearest, self.op[activities]))


def attribute(linked: LinkedTrace) -> Attribution:
    """Return which ops of a linked trace were executed and what activities worked for them."""
    trace, tree, activities = linked.trace, linked.op_tree, linked.trace.activities
    work = count_ops(trace.ops)
    known = _known(work, tree)
    is_op = is_one_of(activities["kind"], "op")
    op = np.where(is_op, -1 - numbers(activities["correlation"], 0), linked.links.op_of_activity)
    device_work = distinct(numbers(activities["process"])[~ran_on_cpu(trace)])
    on_host = ~np.isin(numbers(trace.ops["process"]), device_work)
    modes = tree.parent[is_one_of(trace.ops["name"], DISPATCH_MODE)]
    in_mode = np.zeros(len(known), dtype=np.bool_)
    in_mode[modes[modes >= 0]] = True
    kernel = is_one_of(activities["kind"], "kernel", "op")
    compute, unnamed = (kernel & is_top(linked.categorised, top) for top in ("compute", "other"))
    given = _Input(
        linked, work, tree, known, tree.nearest(known), on_host, in_mode, op, compute, unnamed
    )
    # On a device ops own a compute kernel, or are a lone op with a kernel no rule knows.
    lone = (tree.below(known) == 0) & ~work.wrapper
    with_kernels = given.owning(compute) | (lone & given.owning(unnamed))
    proven, untold = _proven(given)
    owning = np.where(on_host, proven, with_kernels) & known
    executed = owning & (tree.below(owning) == 0)
    owner = taken(tree.nearest(executed), op)

    # The longest compute kernel of each op, of equal ones the first; helping kernels come last.
    rows = np.flatnonzero(owner >= 0)
    start, dur = numbers(activities["start_ns"])[rows], numbers(activities["dur_ns"])[rows]
    helps = matching(activities["name"], lambda t: _AUXILIARY.search(t[:_LONGEST_NAME].lower()))
    rank = 2 * (compute & ~helps)[rows] + (unnamed | compute)[rows]
    order = rows[np.lexsort((-start, dur, rank, owner[rows]))]
    main = np.full(len(known), -1, dtype=np.int64)
    main[owner[order]] = order  # the last one of each op stays
    return Attribution(work, tree, _fates(given, executed), op, owner, main, untold)


def _known(work: OpWork, tree: OpTree) -> BoolArray:
    """Return, per op, whether its matrix work is known.

    One whose work lies between two bounds is passed over where the op around it is of the same
    kind and knows exactly: older schemas do not show the mask to the inner one.
    """
    works = [a_work if isinstance(a_work, Work) else None for a_work in work.works]
    does = np.array([w is not None and w.flops > 0 for w in works], dtype=np.bool_)
    exact = np.array([w is not None and w.exact for w in works], dtype=np.bool_)
    known: BoolArray = does[work.place]
    if exact[does].all():
        return known
    kind = Names().codes(w.kind if w is not None else "" for w in works)[work.place]
    around = tree.around(known)
    better = known & (around >= 0) & exact[work.place][np.maximum(around, 0)]
    better &= kind[np.maximum(around, 0)] == kind
    return known & (exact[work.place] | ~better)


def _proven(given: _Input) -> tuple[BoolArray, bool]:
    """Return, per op, whether it has left a proof on the CPU; and whether proofs are not recorded.

    Of ops that wrap others only one without a known op below it can own anything.
    """
    tree, proven, untold = given.tree, ~given.work.wrapper, False
    proven = proven | (tree.below(given.known) == 0)
    for proof in dict.fromkeys(PROOFS.values()):
        wanted = given.named(*(name for name, left in PROOFS.items() if left == proof))
        left = tree.below(given.named(proof)) > 0
        required = wanted & given.known & given.on_host
        if proof == _CLEAR_PROOF and required.any() and not (required & left).any():
            untold = True  # an older version, or work of a device whose records are not there
            continue
        proven = np.where(wanted, left, proven)
    return proven & ~given.in_mode, untold


def _fates(given: _Input, executed: BoolArray) -> SmallArray:
    """Return the fate of each op, its place in FATES."""
    tree, known, name = given.tree, given.known, codes(given.linked.trace.ops["name"])
    # Calls whose activity is not recorded, of names that launched compute kernels elsewhere.
    calls, call = given.linked.trace.calls, given.linked.links.call_of_activity
    launching = distinct(codes(calls["name"])[call[given.compute & (call >= 0)]])
    lost = np.isin(codes(calls["name"]), launching)
    lost[call[call >= 0]] = False
    launched = given.marked(taken(given.nearest, given.linked.links.op_of_call[lost]))
    inside = tree.below(executed) > 0
    # Known ops with a known op of the same name as the next one below them.
    around = taken(given.nearest, tree.parent)
    rows = np.flatnonzero(known & (around >= 0))
    around_itself = given.marked(around[rows[name[rows] == name[around[rows]]]])
    bare = known & ~executed & ~inside & (tree.below(known) == 0)
    fate = np.zeros(len(known), dtype=np.int8)
    fate[known] = FATES.index("wrapper")
    fate[known & inside & around_itself] = FATES.index("duplicate")
    fate[bare] = FATES.index("ghost")
    fate[bare & launched] = FATES.index("lost")
    fate[bare & given.in_mode] = FATES.index("cached")
    fate[executed] = FATES.index("executed")
    return fate


def named(table: pa.Table, wanted: frozenset[str]) -> BoolArray:
    """Return, per row of a table, whether its name is one of these."""
    return matching(table["name"], wanted.__contains__)
