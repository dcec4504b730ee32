"""Rules on memory kernels: unfused attention, optimizers and runs, casts, changes of layout.

A run is a row of kernels in a queue that could be fused into fewer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.facts import fact
from traceflops.findings.case import cause, limit, share_of_window
from traceflops.findings.finding import Cause
from traceflops.findings.kernel_facts import (
    KernelFacts,
    kernel_cause,
    largest_of,
    rows_of,
    takes_enough,
)
from traceflops.flops.ops.arguments import Shapes, read_shapes, read_types
from traceflops.flops.ops.work import Product, Work
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    FloatArray,
    IntArray,
    axes,
    is_one_of,
    matching,
    numbers,
)
from traceflops.table.grouping import group_rows, joint_codes
from traceflops.timeline.device_span import is_top

_FUSABLE: Final = tuple(
    f"memory/{sub}"
    for sub in ("elementwise", "norm", "softmax", "reduction", "rng_dropout", "copy", "layout")
)
_REDUCING: Final = ("memory/norm", "memory/softmax", "memory/reduction")
_NO_RUN: Final = re.compile(r"^(?:triton_|loop_|wrapped_|input_|SubTensorOp)")
"""Kernels that a compiler has fused, or that are a library's own."""
_GENERATES: Final = re.compile(r"distribution_elementwise|generate_seed_pseudo|gen_sequenced<")
"""Kernels that only make random numbers: arithmetic, and no input that another kernel wrote."""
_FIXED_NORM: Final = re.compile(
    r"bn_fw_inf|BatchNorm\w*FwdInfer|batch_norm_transform_input_kernel<.*(?:false|\(bool\)0)"
)
"""Kernels of batch norm in inference: convolutions before them can do the same."""
_FUSED_OPTIMIZER: Final = re.compile(
    r"[Ff]used|AdamFunctor|(^|[^A-Za-z])LAMB|SGDFunctor|NovoGrad|triton_"
)
_LISTS: Final = re.compile(r"multi_tensor_apply|foreach", re.IGNORECASE)
_OF_ADAM: Final = re.compile(r"multi_tensor_apply.*PointwiseOp\w*Functor.*divides")
"""The quotient by which Adam and its like change parameters, of lists of tensors."""
_CAST: Final = re.compile(
    r"(?:b?float\d+|half|float8\w{0,12}|bfloat16tofloat32|float16tofloat32)_copy_kernel"
    r"|^triton_poi_fused__to_copy_\d+$"
    r"|unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda.*(?:Load|Store)WithCast"
)
_CONVERTS_LAYOUT: Final = re.compile(
    r"nchw_?to_?nhwc|nhwc_?to_?nchw|batched_transpose_\d|TensorTransform", re.IGNORECASE
)
_OF_LOSS: Final = re.compile(r"log_?softmax|nll_?loss|cross_?entropy", re.IGNORECASE)
_OWN_SOFTMAX: Final = tuple(map(re.compile, ("MaxOps|MaxNan|amax", "exp_kernel", "sum_functor")))
"""Kernels of PyTorch that a softmax of its operators consists of: maximum, exponentials, sum."""
_LINEAR_LOSS: Final = re.compile(r"liger|linear_cross_entropy|^_?cce_", re.IGNORECASE)
"""Kernels of losses that are fused with the layer before them."""
_COPYING_OPS: Final = ("aten::copy_", "aten::_to_copy", "aten::to", "aten::type_as")
_SOFTMAX: Final = {
    1: ("aten::_softmax", "aten::_safe_softmax"),
    2: ("aten::_softmax_backward_data",),
}
"""Ops of softmax and of its gradient, by how many products come before it, and after it."""
_BMM: Final = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
_FLOATS: Final = ("float", "double", "c10::BFloat16", "c10::Half")


def memory_rules(facts: KernelFacts) -> Iterator[Cause]:
    """Yield causes in the memory kernels of the chosen windows; each kernel is in one at most."""
    rest = facts.is_sub(*_FUSABLE, "memory/optimizer")  # kernels that are in no cause so far
    if not rest.any():
        return
    nothing = np.zeros(len(facts.row))  # the time left of kernels that a remedy removes
    attention, kept = _attention(facts)
    yield from kernel_cause(facts, "unfused-attention", attention, kept)
    rest &= ~attention
    optimizer = _of_optimizer(facts) & ~facts.named(_FUSED_OPTIMIZER.search) & rest
    rest &= ~optimizer
    # The time that a fused optimizer leaves of kernels for lists of tensors, and for single tensors
    of_lists = limit(facts.case, "unfused-optimizer", "kept_lists")
    of_loop = limit(facts.case, "unfused-optimizer", "kept_loop")
    kept = np.where(facts.named(_LISTS.search), of_lists, of_loop)
    host = (f"optimizer_loop*{kept[optimizer].mean():.3f}",) if optimizer.any() else ()
    yield from kernel_cause(facts, "unfused-optimizer", optimizer, kept, host)
    layout = facts.named(_CONVERTS_LAYOUT.search) & rest
    rest &= ~layout
    yield from kernel_cause(facts, "convolution-layout", layout, nothing)
    rest &= facts.is_sub(*_FUSABLE) & ~facts.in_phase("optimizer")
    # Kernels that only convert types, by the types of their op or by their name
    ops = facts.prepared.trace.ops
    copying = is_one_of(ops["name"], *_COPYING_OPS) & matching(ops["input_types"], _converts)
    casts = facts.by_op(copying) | facts.named(_CAST.search)
    casts &= rest & facts.is_sub("memory/copy", "memory/elementwise")
    in_run, kept = _runs(facts, rest, casts)
    # The share of launches that is left if each run becomes one kernel
    left = 1 - np.count_nonzero(in_run[1:] & in_run[:-1]) / len(in_run)
    host = (f"eager_overhead*{left:.3f}",) if left < 1 else ()
    rule, is_norm = "fusable-kernels", in_run & _fixed_norm(facts)
    norm = share_of_window(facts.case, int(facts.ns[is_norm].sum()))
    knows = frozenset({"fixed-norm"} if takes_enough(facts.case, norm) else ())
    values = {"norm": norm if knows else None}
    causes = [*kernel_cause(facts, rule, in_run, kept, host, knows, values)]
    yield from causes
    if causes:  # if runs gain too little, their kernels may be told below
        rest &= ~in_run
    computes = is_top(facts.prepared.linked.categorised, "compute", facts.row).any()
    knows = frozenset({"model"} if computes else ())
    yield from kernel_cause(facts, "casts", casts & rest, nothing, (), knows)
    makes_dense = facts.within(is_one_of(ops["name"], "aten::contiguous", "aten::clone"))
    copies = rest & facts.is_sub("memory/copy") & ~casts & makes_dense
    yield from kernel_cause(facts, "layout-copies", copies, nothing)


def _of_optimizer(facts: KernelFacts) -> BoolArray:
    """Return the mask of kernels of the optimizer; names of Adam's tell where no operator does."""
    lists = facts.is_sub("memory/optimizer") & facts.named(_LISTS.search)
    is_told = not facts.prepared.trace.ops.num_rows and facts.named(_OF_ADAM.search).any()
    return lists if is_told else facts.in_phase("optimizer")


def loss_softmax(facts: KernelFacts) -> Iterator[Cause]:
    """Yield a cause if the softmax of the loss, on logits in memory, leads all memory work.

    Losses that are fused with the linear layer never write the logits. They save memory for sure,
    but not always time: https://arxiv.org/abs/2411.09009, table 1. So no gain is told.
    """
    if "trains" not in facts.case.program:
        return
    is_loss = facts.is_sub("memory/softmax") & facts.named(_OF_LOSS.search)
    is_loss &= ~facts.named(_LINEAR_LOSS.search)
    loss_ns = np.where(is_loss, facts.ns, 0.0)
    share = share_of_window(facts.case, int(loss_ns.sum()))
    is_memory = is_top(facts.prepared.linked.categorised, "memory", facts.row)
    by_name = np.bincount(facts.name, np.where(is_memory, facts.ns, 0))
    if not takes_enough(facts.case, share) or by_name[facts.name[is_loss]].max() < by_name.max():
        return
    largest, where = largest_of(facts, loss_ns)
    yield cause(
        facts.case,
        "loss-softmax",
        share,
        details=(largest,),
        rows=rows_of(facts, loss_ns),
        where=where,
        doubts=(fact("doubt.loss-fused"),),
    )


def _attention(facts: KernelFacts) -> tuple[BoolArray, FloatArray]:
    """Return the mask of kernels of unfused attention, and the share of time left of each.

    A fused kernel takes as long as the FLOPs of the products need at a part of the peak; the
    kernels between the products are saved. Products of unknown FLOPs or peak keep their time.
    """
    inside = np.zeros(facts.prepared.trace.ops.num_rows, dtype=np.bool_)
    for rows in _unfused(facts):
        inside[rows] = True
    of_attention = facts.by_op(inside) if len(inside) else _attention_by_name(facts)
    flops_ns = facts.flops / np.where(facts.own_rate > 0, facts.own_rate, np.nan)
    left = np.nan_to_num(
        flops_ns / limit(facts.case, "unfused-attention", "good") / facts.product_ns, nan=1.0
    )
    unknown = 1.0 * facts.is_sub("compute/gemm")
    return of_attention, np.where(facts.product >= 0, left, unknown)


def _attention_by_name(facts: KernelFacts) -> BoolArray:
    """Return the mask of kernels of unfused attention, where no operator is recorded.

    These are memory kernels between two products of equally many batches (the last side of their
    grids): one of them is a softmax or, in this order, a maximum, exponentials and a sum; or, for
    gradients of these, a sum. There are several such runs, and they have most of the memory work.
    """
    activities = facts.prepared.trace.activities
    device, stream = (numbers(activities[name], ABSENT)[facts.row] for name in ("device", "stream"))
    queue = joint_codes(device, stream)
    between = is_top(facts.prepared.linked.categorised, "memory", facts.row)
    run = _in_a_row(queue, between)
    first = np.flatnonzero(np.diff(run, prepend=-1))
    last, places = np.append(first[1:], len(run)) - 1, np.arange(len(run))
    before, after = np.maximum(first - 1, 0), np.minimum(last + 1, len(run) - 1)
    batches = np.where(facts.is_sub("compute/gemm"), axes(activities["grid"])[facts.row, 2], 0)
    is_inside = between[first] & (batches[before] > 1) & (batches[before] == batches[after])
    is_inside &= (queue[before] == queue[first]) & (queue[after] == queue[first])
    # The first maximum of each run, its last exponentials, the last sum
    maximum, powers, total = (facts.named(part.search) for part in _OWN_SOFTMAX)
    starts = np.minimum.reduceat(np.where(maximum, places, len(run)), first)
    middle, ends = (
        np.maximum.reduceat(np.where(which, places, -1), first) for which in (powers, total)
    )
    softmax = facts.is_sub("memory/softmax") & ~facts.named(_OF_LOSS.search)
    has_softmax = np.bincount(run, softmax) > 0
    is_forward = is_inside & (has_softmax | ((starts < middle) & (middle < ends)))
    # Gradients of a softmax of operators are sums, too, between products of as many batches.
    is_alike = np.isin(batches[before], batches[before[is_forward]])
    is_inside = is_forward | (is_inside & is_alike & (ends >= 0))
    is_inside &= np.count_nonzero(is_inside) > 1
    mask: BoolArray = is_inside[run]
    # If most memory work is elsewhere, its own remedies help more.
    if 2 * facts.ns[mask].sum() <= facts.ns[facts.is_sub(*_FUSABLE)].sum():
        return np.zeros_like(mask)
    mask[before[is_inside]] = mask[after[is_inside]] = True
    return mask


def _unfused(facts: KernelFacts) -> Iterator[IntArray]:
    """Yield the rows of ops of each attention: from a batched product to that after the softmax.

    In the backward pass there are two products before and two after the gradient of the softmax.
    The scores of which the softmax is taken must have the shape of a product's result.
    """
    ops, work = facts.prepared.trace.ops, facts.case.measured.executed.attribution.work
    order = facts.prepared.linked.op_tree.order
    most = limit(facts.case, "unfused-attention", "most_ops")
    product = is_one_of(ops["name"], *_BMM)
    softmax = {reach: is_one_of(ops["name"], *names) for reach, names in _SOFTMAX.items()}
    # Places in `order` of all products and softmaxes; a candidate is an index of `marks`.
    marks = np.flatnonzero(np.logical_or.reduce([product, *softmax.values()])[order])
    thread = joint_codes(numbers(ops["process"]), numbers(ops["thread"], ABSENT))
    for reach, is_softmax in softmax.items():
        candidates = np.flatnonzero(is_softmax[order[marks]])
        candidates = candidates[(candidates >= reach) & (candidates < len(marks) - reach)]
        # The `reach` neighbours on each side must be products of one thread, with few ops between.
        around = order[marks[candidates[:, None] + [*range(-reach, 0), *range(1, reach + 1)]]]
        are_products = product[around].all(axis=1)
        same_thread = (thread[around] == thread[around[:, :1]]).all(axis=1)
        are_near = marks[candidates + reach] - marks[candidates - reach] < most
        for candidate in candidates[are_products & same_thread & are_near].tolist():
            rows = order[marks[candidate - reach] : marks[candidate + reach] + 1]
            dims = ops["input_dims"][int(order[marks[candidate]])].as_py()
            shapes = read_shapes(dims or "[]")
            scores = list(shapes[0][-2:]) if shapes and not isinstance(shapes[0], Shapes) else []
            works = (work.works[work.place[row]] for row in rows)
            signatures = (done.signature for done in works if isinstance(done, Work))
            results = ([made.m, made.n] for made in signatures if isinstance(made, Product))
            if not scores or scores in results:
                yield rows


def _runs(facts: KernelFacts, fusable: BoolArray, casts: BoolArray) -> tuple[BoolArray, FloatArray]:
    """Return the mask of kernels in runs that can be fused, and the share of time left of each.

    Up to `most_fused` kernels of a run become one that takes a part of the longest of them, since
    results in between stay on chip. Kernels that reduce, or make random numbers, keep their time,
    in which the others can be done. Batch norm in inference reduces nothing, and any run with it
    can be fused. Rows of the same kernel, alone or in a run, or of little but casts, work on
    independent tensors: no runs.
    """
    limits, ops = facts.case.finding_rules.limits("fusable-kernels"), facts.prepared.trace.ops
    adds_gradients = matching(ops["name"], lambda name: name.endswith("::AccumulateGrad"))
    accumulates = facts.within(adds_gradients)  # each adds to a tensor of its own
    has_no_product = facts.product < 0  # kernels of products do more than move memory
    eligible = fusable & ~facts.named(_NO_RUN.search) & has_no_product & ~accumulates
    is_norm = _fixed_norm(facts)
    reduces = facts.is_sub(*_REDUCING) & ~is_norm | facts.named(_GENERATES.search)
    activities = facts.prepared.trace.activities
    device, stream = (numbers(activities[name], ABSENT)[facts.row] for name in ("device", "stream"))
    queue = joint_codes(device, stream)
    repeat = _in_a_row(joint_codes(queue, facts.name), eligible)
    eligible &= np.bincount(repeat)[repeat] < limits["least_run"]
    run = _in_a_row(queue, eligible)
    # Kernels of one name that take more time than all others of their run, and that on average take
    # many times as long as these, are no work on results in between: they end the run.
    same, _ = group_rows((run, facts.name))
    own_ns, count = np.bincount(same, facts.ns)[same], np.bincount(same)[same]
    others_ns, others = np.bincount(run, facts.ns)[run] - own_ns, np.bincount(run)[run] - count
    is_far_longer = own_ns * others > (limits["least_run"] - 1) * others_ns * count
    eligible &= reduces | ~((own_ns > others_ns) & is_far_longer)
    # Each run: is it long enough, of enough names, and not mostly casts?
    run = _in_a_row(queue, eligible)
    length = np.bincount(run)
    _, first_of_name = group_rows((run, facts.name))
    is_long = length >= limits["least_run"]
    has_names = np.bincount(run[first_of_name]) >= limits["least_names"]
    norms = np.bincount(run, is_norm)
    has_work = 2 * np.bincount(run, casts) <= length
    # What a fused run needs, beyond the time of the kernels that reduce
    reducing_ns = np.bincount(run, np.where(reduces, facts.ns, 0))
    others_ns = np.bincount(run, facts.ns) - reducing_ns
    longest_ns = np.maximum.reduceat(facts.ns, np.flatnonzero(np.diff(run, prepend=-1)))
    needed_ns = limits["kept_of_longest"] * longest_ns * np.ceil(length / limits["most_fused"])
    needed_ns[norms == length] = 0  # what is folded needs no kernel
    left = np.maximum(needed_ns - reducing_ns, 0) / np.maximum(others_ns, 1)
    return eligible & ((is_long & has_names & has_work) | (norms > 0))[run] & ~reduces, left[run]


def _fixed_norm(facts: KernelFacts) -> BoolArray:
    """Return which kernels are batch norm with fixed statistics, in a program that infers."""
    return facts.named(_FIXED_NORM.search) & ("trains" not in facts.case.program)


def _in_a_row(queue: IntArray, eligible: BoolArray) -> IntArray:
    """Return the number of the run of each kernel: a row of eligible ones, or one that is not."""
    opens = np.ones(len(eligible), dtype=np.bool_)
    opens[1:] = ~eligible[1:] | ~eligible[:-1] | (queue[1:] != queue[:-1])
    return np.cumsum(opens) - 1


def _converts(types: str) -> bool:
    """Return whether the first two arguments of an op are floats of different types."""
    dtypes = read_types(types)[:2]
    return len(dtypes) == 2 and dtypes[0] != dtypes[1] and all(dtype in _FLOATS for dtype in dtypes)
