"""Rule on dropout and batch norm that work as in training, where nothing else is of training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.facts import fact
from traceflops.findings.case import cause, share_of_window
from traceflops.findings.finding import Cause, Gain
from traceflops.findings.kernel_facts import KernelFacts, largest_of, rows_of, takes_enough
from traceflops.findings.on_cpu import of_gpu
from traceflops.flops.ops.arguments import arguments_of
from traceflops.table.columns import BoolArray, codes, is_one_of, matching, take_rows
from traceflops.table.grouping import group_rows
from traceflops.windows.prepared import Prepared

_NORM_KERNEL: Final = re.compile(
    r"bn_fw_tr|batch_norm_collect_statistics|BatchNormFwdTrain", re.IGNORECASE
)
_NORM: Final = re.compile(r"aten::(native_|cudnn_|miopen_)?batch_norm$")
_RUNNING_MEAN, _TRAINING = 3, 5
"""Places of arguments of batch norm."""
_OF_SCALARS: Final = re.compile(r"\[\[\], ?\[\]")
_OF_INTEGERS: Final = re.compile(r"\[\"(__int64|long( int)?)\"")
"""Arguments of the addition by which a module counts its batches."""
_DROPOUT: Final = re.compile(r"aten::(feature_)?(alpha_)?dropout_?$")
_DRAWS: Final = ("aten::bernoulli_", "aten::bernoulli")
_DRAWS_ITSELF: Final = ("aten::native_dropout", "aten::_fused_dropout")
"""Dropout of GPUs, which is called only where numbers are drawn."""


def training_mode(facts: KernelFacts) -> Iterator[Cause]:
    """Yield a cause where dropout draws or batch norm computes statistics, and nothing trains.

    On a CPU it gains at most all of their time; what it leaves of kernels is unknown. No gain is
    told either where counted batches alone show the mode of a norm.
    """
    case = facts.case
    if "trains" in case.program:
        return
    recorded, counted = map(facts.within, _with_statistics(facts.prepared))
    op = facts.prepared.trace.ops["name"]
    draws = facts.prepared.linked.op_tree.below(is_one_of(op, *_DRAWS)) > 0
    drops_out = matching(op, _DROPOUT.match) & draws | is_one_of(op, *_DRAWS_ITSELF)
    is_kind = {
        "dropout": facts.within(drops_out),
        "norm": recorded | counted | facts.named(_NORM_KERNEL.search),
    }
    time = np.where(np.logical_or.reduce([*is_kind.values()]), facts.ns, 0.0)
    share = share_of_window(case, int(time.sum()))
    if not takes_enough(case, share):
        return
    kinds = [kind for kind, rows in is_kind.items() if time[rows].any()]
    largest, where = largest_of(facts, time)
    # Operators whose GPU work is not recorded only launch it: their time is not what goes.
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
    """Return, per op, whether it is batch norm in training that also keeps running statistics.

    Without these a norm computes its statistics in every mode. In the first array are norms whose
    mode is recorded. That of others is in the second: a module in training counts its batches.
    """
    ops = prepared.trace.ops
    # Each batch norm may come with an addition to an integer without dimensions.
    adds = is_one_of(ops["name"], "aten::add_")
    adds &= matching(ops["input_dims"], _OF_SCALARS.match)
    adds &= matching(ops["input_types"], _OF_INTEGERS.match)
    counts = 0 < int(is_one_of(ops["name"], "aten::batch_norm").sum()) <= int(adds.sum())
    is_norm = matching(ops["name"], _NORM.match)
    rows = np.flatnonzero(is_norm)
    kind, first = group_rows([codes(ops[name])[rows] for name in ("input_dims", "concrete_inputs")])
    calls = map(arguments_of, take_rows(ops, rows[first]).to_pylist())
    modes = [
        call.boolean(_TRAINING) if any(mean.shape for mean in call.given(_RUNNING_MEAN)) else False
        for call in calls
    ]
    by_mode = []
    for trains in (True, None):
        is_so = is_norm.copy()
        is_so[rows] = np.array([mode is trains for mode in modes], dtype=np.bool_)[kind]
        by_mode.append(is_so)
    return by_mode[0], by_mode[1] & counts
