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

from traceflops.flops import OpWork, Work, count_ops
from traceflops.table import (
    BoolArray,
    IntArray,
    OpTree,
    SmallArray,
    codes,
    distinct,
    is_one_of,
    matching,
    numbers,
    taken,
)
from traceflops.timeline import LinkedTrace, is_top, ran_on_cpu

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
    ghosts on the CPU cannot be told from executed ops.
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
        """Return the rows of the executed ops."""
        return np.flatnonzero(self.has("executed"))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the rules look at: the ops' names and, per activity, what it is.

    `known` says which ops have known matrix work, `nearest` the innermost of those around each op,
    itself included; `on_host` which ops are of processes without device work.
    """

    linked: LinkedTrace
    work: OpWork
    tree: OpTree
    known: BoolArray
    nearest: IntArray
    on_host: BoolArray
    op: IntArray
    compute: BoolArray
    unnamed: BoolArray

    @property
    def ops(self) -> pa.Table:
        """Return the table of ops."""
        return self.linked.trace.ops

    def named(self, *wanted: str) -> BoolArray:
        """Return, per op, whether it has one of these names."""
        return is_one_of(self.ops["name"], *wanted)

    def owning(self, activities: BoolArray) -> BoolArray:
        """Return, per op, whether it is the innermost known one around such an activity."""
        around = taken(self.nearest, self.op[activities])
        found = np.zeros(self.ops.num_rows, dtype=np.bool_)
        found[around[around >= 0]] = True
        return found


def attribute(linked: LinkedTrace) -> Attribution:
    """Return which ops of a linked trace were executed and who worked for them."""
    seen = _seen(linked)
    proven, untold = _proven(seen)
    owning = np.where(seen.on_host, proven, _with_kernels(seen)) & seen.known
    executed = owning & (seen.tree.below(owning) == 0)
    owner = taken(seen.tree.nearest(executed), seen.op)
    return Attribution(
        seen.work,
        seen.tree,
        _fates(seen, executed),
        seen.op,
        owner,
        _main(seen, owner),
        untold,
    )


def _seen(linked: LinkedTrace) -> _Seen:
    trace = linked.trace
    work = count_ops(trace.ops)
    activities = trace.activities
    device_work = distinct(numbers(activities["process"])[~ran_on_cpu(trace)])
    tree = linked.op_tree
    known = _known(work, tree)
    is_op = is_one_of(activities["kind"], "op")
    op = np.where(is_op, -1 - numbers(activities["correlation"], 0), linked.links.op_of_activity)
    kernel = is_one_of(activities["kind"], "kernel", "op")
    return _Seen(
        linked,
        work,
        tree,
        known,
        tree.nearest(known),
        ~np.isin(numbers(trace.ops["process"]), device_work),
        op,
        kernel & is_top(linked.categorised, "compute"),
        kernel & is_top(linked.categorised, "other"),
    )


def _known(work: OpWork, tree: OpTree) -> BoolArray:
    """Return which ops have known matrix work.

    One whose work lies between two bounds is passed over where the op around it is of the same
    kind and knows exactly: older schemas do not show the mask to the inner one.
    """
    does = np.array(
        [isinstance(a_work, Work) and a_work.flops > 0 for a_work in work.works], dtype=np.bool_
    )
    exact = np.array(
        [isinstance(a_work, Work) and a_work.exact for a_work in work.works], dtype=np.bool_
    )
    kinds = [a_work.kind if isinstance(a_work, Work) else "" for a_work in work.works]
    kind = np.array([kinds.index(a_kind) for a_kind in kinds], dtype=np.int64)[work.place]
    known: BoolArray = does[work.place]
    if exact[does].all():
        return known
    around = tree.around(known)
    better = known & (around >= 0) & exact[work.place][np.maximum(around, 0)]
    better &= kind[np.maximum(around, 0)] == kind
    return known & (exact[work.place] | ~better)


def _with_kernels(seen: _Seen) -> BoolArray:
    """Return which ops own a compute kernel, or are a lone op with a kernel no rule knows."""
    innermost = seen.tree.below(seen.known) == 0
    lone = innermost & ~seen.work.wrapper
    found: BoolArray = seen.owning(seen.compute) | (lone & seen.owning(seen.unnamed))
    return found


def _proven(seen: _Seen) -> tuple[BoolArray, bool]:
    """Return which ops on the CPU have left a proof, and whether there are no proofs to look for.

    Of ops that wrap others only one without a known op below it can own anything.
    """
    proven = ~seen.work.wrapper | (seen.tree.below(seen.known) == 0)
    untold = False
    for proof in dict.fromkeys(PROOFS.values()):
        wanted = seen.named(*(name for name, left in PROOFS.items() if left == proof))
        left = seen.tree.below(seen.named(proof)) > 0
        asked = wanted & seen.known & seen.on_host
        if proof == _CLEAR_PROOF and asked.any() and not (asked & left).any():
            untold = True  # an older version, or work of a device whose records are not there
            continue
        proven = np.where(wanted, left, proven)
    found: BoolArray = proven & ~_through_a_mode(seen)
    return found, untold


def _through_a_mode(seen: _Seen) -> BoolArray:
    """Return which ops were handed to a dispatch mode, which runs them again or not at all."""
    found = np.zeros(seen.ops.num_rows, dtype=np.bool_)
    parent = seen.tree.parent[seen.named(DISPATCH_MODE)]
    found[parent[parent >= 0]] = True
    return found


def _fates(seen: _Seen, executed: BoolArray) -> SmallArray:
    tree, known = seen.tree, seen.known
    inside = tree.below(executed) > 0
    bare = known & ~executed & ~inside & (tree.below(known) == 0)
    handed = _through_a_mode(seen)
    fate = np.zeros(len(known), dtype=np.int8)
    fate[known] = FATES.index("wrapper")
    fate[known & inside & _around_itself(seen)] = FATES.index("duplicate")
    fate[bare] = FATES.index("ghost")
    fate[bare & _launched(seen)] = FATES.index("lost")
    fate[bare & handed] = FATES.index("cached")
    fate[executed] = FATES.index("executed")
    return fate


def _around_itself(seen: _Seen) -> BoolArray:
    """Return which known ops have a known op of the same name as the next one below them."""
    found = np.zeros(len(seen.known), dtype=np.bool_)
    name = codes(seen.ops["name"])
    around = taken(seen.nearest, seen.tree.parent)
    rows = np.flatnonzero(seen.known & (around >= 0))
    same = rows[name[rows] == name[around[rows]]]
    found[around[same]] = True
    return found


def _launched(seen: _Seen) -> BoolArray:
    """Return which known ops have a launch below them whose activity is not in the trace.

    A call is a launch if one of its name launched something elsewhere in the trace.
    """
    found = np.zeros(len(seen.known), dtype=np.bool_)
    links, calls = seen.linked.links, seen.linked.trace.calls
    if not calls.num_rows:
        return found
    served = np.zeros(calls.num_rows, dtype=np.bool_)
    kernels = links.call_of_activity[seen.compute]
    launching = distinct(codes(calls["name"])[kernels[kernels >= 0]])
    served[links.call_of_activity[links.call_of_activity >= 0]] = True
    lost = np.isin(codes(calls["name"]), launching) & ~served
    around = taken(seen.nearest, links.op_of_call[lost])
    found[around[around >= 0]] = True
    return found


def _main(seen: _Seen, owner: IntArray) -> IntArray:
    """Return, per op, the longest compute kernel that it owns; of equal ones the first."""
    activities = seen.linked.trace.activities
    rows = np.flatnonzero(owner >= 0)
    start, dur = numbers(activities["start_ns"])[rows], numbers(activities["dur_ns"])[rows]
    rank = (
        2 * (seen.compute & ~matching(activities["name"], _is_auxiliary))[rows]
        + (seen.unnamed | seen.compute)[rows]
    )
    order = rows[np.lexsort((-start, dur, rank, owner[rows]))]
    found = np.full(seen.ops.num_rows, -1, dtype=np.int64)
    found[owner[order]] = order  # the last one of each op stays
    return found


def _is_auxiliary(label: str) -> bool:
    """Return whether such an activity only helps a product, whatever time it takes."""
    return _AUXILIARY.search(label[:_LONGEST_NAME].lower()) is not None


def named(table: pa.Table, wanted: frozenset[str]) -> BoolArray:
    """Return, per row of a table, whether its name is one of these."""
    return matching(table["name"], wanted.__contains__)
