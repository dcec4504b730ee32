"""Which products are of frozen weights, of adapters on them, or the logits of the loss."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from traceflops.attribution.op_kernels import Attribution, named
from traceflops.attribution.products import ProductRoles
from traceflops.attribution.scopes import Phases, is_node
from traceflops.flops.ops.arguments import Shape, Shapes, read_shapes
from traceflops.flops.ops.work import Product
from traceflops.table.columns import ABSENT, BoolArray, SmallArray, codes, names, numbers
from traceflops.table.grouping import distinct, group_rows
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace

Subname = Literal["", "frozen", "adapter", "logits"]

SUBNAMES: Final[tuple[Subname, ...]] = ("", "frozen", "adapter", "logits")
"""
frozen   the backward pass went by, and nothing computed a gradient of this weight
adapter  two small products of trained weights beside a frozen one (LoRA)
logits   as wide as what the cross entropy takes
"""

LOSSES: Final = frozenset({"aten::cross_entropy_loss", "aten::_log_softmax"})
"""Ops that take logits first: rows x classes."""

LEAST_COMPRESSION: Final = 2
"""An adapter is at least so many times as narrow as the weight it is on."""

Sizes = tuple[int, int, int, int, int]
"""Process, batch, rows, columns of the left operand, columns of the right one."""


def subnames(
    trace: Trace, attribution: Attribution, phases: Phases, roles: ProductRoles
) -> SmallArray:
    """Return, per op, the place of its sub-name in SUBNAMES; 0 for ops that have none."""
    subname = np.zeros(trace.ops.num_rows, dtype=np.int8)
    tree, place = attribution.tree, attribution.work.place
    forward = roles.is_a("forward") & ~attribution.has("wrapper", "none")
    numbered = numbers(trace.ops["sequence"], ABSENT) != ABSENT
    # Sequence numbers grow with time: where the backward node of a later op is in the trace, that
    # of this op is, or there is none. Nodes inside others are of graphs made again on the backward
    # thread, which numbers on its own.
    sequence = numbers(trace.ops["sequence"], ABSENT)
    process = numbers(trace.ops["process"])
    node = is_node(trace.ops) & (sequence != ABSENT) & (phases.root < 0)
    latest = np.full(int(process.max()) + 1 if len(process) else 1, ABSENT, dtype=np.int64)
    np.maximum.at(latest, process[node], sequence[node])
    candidates = np.flatnonzero(forward)
    own = taken(sequence, attribution.tree.nearest(sequence != ABSENT)[candidates], ABSENT)
    gone_by = np.zeros(len(forward), dtype=np.bool_)
    gone_by[candidates] = (own != ABSENT) & (own <= latest[process[candidates]])
    # Forward ops that have a gradient, and one that is, or may be, of their weight.
    with_gradient, trained = np.zeros((2, len(forward)), dtype=np.bool_)
    with_gradient[roles.forward[roles.forward >= 0]] = True
    of_weight = roles.is_a("weight_grad", "gradient") & (roles.forward >= 0)
    trained[roles.forward[of_weight]] = True
    frozen = gone_by & numbered & ~trained
    frozen &= with_gradient | ~_trained_by_shape(trace, attribution, roles, forward)
    compiled, of_compiled = _frozen_by_shape(trace, attribution, roles, gone_by & ~numbered)
    frozen |= compiled
    subname[of_compiled] = SUBNAMES.index("frozen")
    dims = trace.ops["input_dims"]
    loss_rows = np.flatnonzero(named(trace.ops, LOSSES) & (codes(dims) >= 0))
    texts = names(dims)
    matrices: set[Shape] = set()
    for code in distinct(codes(dims)[loss_rows]).tolist():
        shapes = read_shapes(texts[code])
        first_shape = shapes[0] if shapes else ()
        if not isinstance(first_shape, Shapes) and len(first_shape) == 2:
            matrices.add(first_shape)
    is_loss = [one is not None and (one.m, one.n) in matrices for one in _products(attribution)]
    logits: BoolArray = np.array(is_loss, dtype=np.bool_)[attribution.work.place]
    subname[forward & logits] = SUBNAMES.index("logits")
    subname[frozen] = SUBNAMES.index("frozen")
    subname[_beside(trace, attribution, forward, frozen)] = SUBNAMES.index("adapter")
    gradient = np.flatnonzero(roles.forward >= 0)
    subname[gradient] = subname[roles.forward[gradient]]
    # Only the duplicates around ops have sequence numbers: their sub-names count inside, too.
    rows = np.flatnonzero(attribution.has("executed") & (subname == 0) & roles.is_a("forward"))
    around = taken(tree.nearest(attribution.has("duplicate")), tree.parent[rows])
    is_same = taken(place, around) == place[rows]
    subname[rows] = np.where(is_same, taken(subname, around, 0), np.int8(0))
    return subname


def _trained_by_shape(
    trace: Trace, attribution: Attribution, roles: ProductRoles, forward: BoolArray
) -> BoolArray:
    """Return which forward products have the shape of a weight gradient that R3 found.

    The gradients of a scripted function or one of C++ are in a node for all of it.
    """
    weights = _weight_gradients(roles)
    if not weights.any():
        return weights
    sizes = _SizesSeen(trace, attribution)
    return forward & sizes.having(_with_gradient(sizes.of(forward), sizes.of(weights)))


def _weight_gradients(roles: ProductRoles) -> BoolArray:
    """Return the products inside nodes of whole functions that may be weight gradients."""
    return roles.by_shapes & (roles.is_a("weight_grad", "gradient") | roles.open["weight_grad"])


def _with_gradient(forward: set[Sizes], weights: set[Sizes]) -> set[Sizes]:
    """Return the sizes of forward products whose weight gradient has one of these sizes."""
    return {
        (process, b, m, k, n)
        for process, b, m, k, n in forward
        if {(process, b, k, m, n), (process, b, n, m, k)} & weights
    }


def _frozen_by_shape(
    trace: Trace, attribution: Attribution, roles: ProductRoles, forward: BoolArray
) -> tuple[BoolArray, BoolArray]:
    """Return the frozen products of compiled forward passes, and their input gradients.

    There a product is frozen if no product of a compiled backward pass can be its weight gradient.
    One that is shaped as a trained one is not found.
    """
    gradients_of_weights = _weight_gradients(roles)
    inputs = roles.by_shapes & roles.is_a("input_grad")
    if not gradients_of_weights.any() and not inputs.any():
        return forward & False, forward & False
    sizes = _SizesSeen(trace, attribution)
    trained = _with_gradient(sizes.of(forward), sizes.of(gradients_of_weights))
    frozen = sizes.of(forward) - trained
    gradients, of_trained = (
        {(process, b, m, n, k) for process, b, m, k, n in some} for some in (frozen, trained)
    )
    return forward & sizes.having(frozen), inputs & sizes.having(gradients - of_trained)


class _SizesSeen:
    """The sizes of products by process."""

    def __init__(self, trace: Trace, attribution: Attribution) -> None:
        process, place = numbers(trace.ops["process"]), attribution.work.place
        self._group, first = group_rows([process, place])
        products = _products(attribution)
        self._sizes: list[Sizes | None] = [
            (int(process[at]), product.batch, product.m, product.k, product.n)
            if (product := products[int(place[at])])
            else None
            for at in first.tolist()
        ]

    def of(self, rows: BoolArray) -> set[Sizes]:
        """Return the distinct sizes of some ops."""
        found = (self._sizes[group] for group in distinct(self._group[rows]).tolist())
        return {one for one in found if one is not None}

    def having(self, wanted: set[Sizes]) -> BoolArray:
        """Return which ops have one of these sizes."""
        chosen = np.array([size in wanted for size in self._sizes], dtype=np.bool_)
        return chosen[self._group] if len(chosen) else np.zeros(0, dtype=np.bool_)


def _beside(
    trace: Trace, attribution: Attribution, forward: BoolArray, frozen: BoolArray
) -> BoolArray:
    """Return which products are half of an adapter: M x K x r and M x r x N beside M x K x N."""
    if not frozen.any():
        return frozen
    sizes, trained = _SizesSeen(trace, attribution), forward & ~frozen
    small, halves = sizes.of(trained), set()
    for process, _, rows, inputs, outputs in sizes.of(frozen):
        narrow = min(inputs, outputs) // LEAST_COMPRESSION
        beside = [size for size in small if (size[0], size[2]) == (process, rows)]
        down = [size for size in beside if size[3] == inputs and size[4] <= narrow]
        up = [size for size in beside if size[4] == outputs and size[3] <= narrow]
        halves |= {half for a in down for b in up if a[4] == b[3] for half in (a, b)}
    return trained & sizes.having(halves)


def _products(attribution: Attribution) -> list[Product | None]:
    signatures = attribution.work.signatures
    return [product if isinstance(product, Product) else None for product in signatures]
