"""Rule on dropout and batch norm that work as in training, in a program that does not train."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.facts import fact
from traceflops.findings.case import cause, share_of_window
from traceflops.findings.finding import Cause, Gain
from traceflops.findings.kernel_facts import KernelFacts, largest_of, rows_of, takes_enough
from traceflops.findings.unrecorded_gpu import of_gpu
from traceflops.flops.ops.arguments import arguments_of
from traceflops.table.columns import BoolArray, IntArray, codes, is_one_of, matching, take_rows
from traceflops.table.grouping import group_rows
from traceflops.table.nesting import OpTree, taken
from traceflops.windows.prepared import Prepared

_NORM_KERNEL: Final = re.compile(
    r"bn_fw_tr|batch_norm_collect_statistics|BatchNormFwdTrain", re.IGNORECASE
)
_NORM: Final = re.compile(r"aten::(native_|cudnn_|miopen_)?batch_norm$")
_RUNNING_MEAN, _TRAINING = 3, 5
"""Positions of arguments of batch norm."""
_OF_SCALARS: Final = re.compile(r"\[\[\], ?\[\]")
_OF_INTEGERS: Final = re.compile(r"\[\"(__int64|long( int| long)?)\"")
"""Arguments of the addition by which a module counts its batches."""
_HAS_DIMS: Final = re.compile(r"\d")
_DROPOUT: Final = re.compile(r"aten::(feature_)?(alpha_)?dropout_?$")
_DRAWS: Final = ("aten::bernoulli_", "aten::bernoulli")
_DRAWS_ITSELF: Final = ("aten::native_dropout", "aten::_fused_dropout")
"""Dropout of GPUs, which is only called to draw numbers."""


def training_mode(facts: KernelFacts) -> Iterator[Cause]:
    """Yield a cause if dropout draws or batch norm computes statistics, and nothing trains.

    The gain is at most all of their time on a CPU. On a GPU it is unknown, as the remedy leaves
    some kernels. It is unknown, too, if only counted batches show the mode of a norm.
    """
    case = facts.case
    if "trains" in case.program:
        return
    recorded, counted = map(facts.within, _with_statistics(facts.prepared))
    op = facts.prepared.trace.ops["name"]
    has_draws = facts.prepared.linked.op_tree.below(is_one_of(op, *_DRAWS)) > 0
    is_dropout = matching(op, _DROPOUT.match) & has_draws
    is_kind = {
        "dropout": facts.within(is_dropout | is_one_of(op, *_DRAWS_ITSELF)),
        "norm": recorded | counted | facts.named(_NORM_KERNEL.search),
    }
    time = np.where(np.logical_or.reduce([*is_kind.values()]), facts.ns, 0.0)
    share = share_of_window(case, int(time.sum()))
    if not takes_enough(case, share):
        return
    kinds = [kind for kind, rows in is_kind.items() if time[rows].any()]
    largest, where = largest_of(facts, time)
    # Operators whose GPU work is not recorded only launch it: less work would not save their time.
    done = case.measured.executed
    gains = (
        not time[counted].any()
        and case.on_host
        and of_gpu(facts.prepared.trace, done.attribution).lacks is None
    )
    details = () if case.on_host else (largest,)
    named = tuple(fact(f"training-mode.kind-{kind}") for kind in kinds)
    yield cause(
        case,
        "training-mode",
        share,
        {"kinds": named, "many": len(kinds)},
        details,
        frozenset(kinds),
        rows=rows_of(facts, time),
        where=where,
        gain=Gain(0, int(time.sum()) // case.windows_used, None) if gains else None,
    )


def _with_statistics(prepared: Prepared) -> tuple[BoolArray, BoolArray]:
    """Return two masks of ops: batch norms in training that keep running statistics.

    Without running statistics a norm computes its statistics in every mode. The mode of norms in
    the first mask is recorded; those in the second seem to be in training, as they count batches.
    """
    ops = prepared.trace.ops
    adds, norms = (is_one_of(ops["name"], name) for name in ("aten::add_", "aten::batch_norm"))
    # Is there an addition to an integer without dimensions for each batch norm? Without shapes: is
    # there an addition in place right before each? No network adds before all of its norms.
    is_bare = not matching(ops["input_dims"], _HAS_DIMS.search).any()
    is_count = adds & matching(ops["input_dims"], _OF_SCALARS.match)
    is_count &= matching(ops["input_types"], _OF_INTEGERS.match)
    if is_bare:
        before = _before(prepared.linked.op_tree, np.flatnonzero(norms))
        is_count = taken(adds.astype(np.int8), before, 0) > 0
    counts_batches = 0 < int(norms.sum()) <= int(is_count.sum())
    # The mode of each norm: True in training, None if unknown. Equal arguments are read once.
    is_norm = matching(ops["name"], _NORM.match)
    rows = np.flatnonzero(is_norm)
    kind, first = group_rows([codes(ops[name])[rows] for name in ("input_dims", "concrete_inputs")])
    calls = map(arguments_of, take_rows(ops, rows[first]).to_pylist())
    modes = [
        call.boolean(_TRAINING)
        if is_bare or any(mean.shape for mean in call.given(_RUNNING_MEAN))
        else False
        for call in calls
    ]
    masks = []
    for wanted in (True, None):
        has_mode = is_norm.copy()
        has_mode[rows] = np.array([mode is wanted for mode in modes], dtype=np.bool_)[kind]
        masks.append(has_mode)
    return masks[0], masks[1] & counts_batches


def _before(tree: OpTree, rows: IntArray) -> IntArray:
    """Return, per row of ops, the op of the same parent that ended right before it, or -1."""
    place, parent = tree.place[rows], tree.parent[rows]
    before = np.where(place > 0, tree.order[place - 1], -1)
    while (inside := (before >= 0) & (taken(tree.parent, before) != parent)).any():
        before = np.where(inside, taken(tree.parent, before), before)
    return before
