"""Which products are of frozen weights, of adapters on them, or the logits of the loss."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from traceflops.attribution import Attribution, Phases, ProductRoles, is_node, named
from traceflops.flops import Product, Shapes, read_shapes
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    SmallArray,
    Trace,
    codes,
    distinct,
    group_rows,
    names,
    numbers,
    taken,
)

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
    found = np.zeros(trace.ops.num_rows, dtype=np.int8)
    forward = roles.is_a("forward") & ~attribution.has("wrapper", "none")
    numbered = numbers(trace.ops["sequence"], ABSENT) != ABSENT
    gone_by = _gone_by(trace, attribution, phases, forward)
    trained = _forward_of(roles, roles.is_a("weight_grad", "gradient"))  # or may be
    frozen = gone_by & numbered & ~trained
    frozen &= _forward_of(roles, roles.forward >= 0) | ~_trained_by_shape(
        trace, attribution, roles, forward
    )
    compiled, of_compiled = _frozen_by_shape(trace, attribution, roles, gone_by & ~numbered)
    frozen |= compiled
    found[of_compiled] = SUBNAMES.index("frozen")
    found[forward & _logits(trace, attribution)] = SUBNAMES.index("logits")
    found[frozen] = SUBNAMES.index("frozen")
    found[_beside(trace, attribution, forward, frozen)] = SUBNAMES.index("adapter")
    gradient = np.flatnonzero(roles.forward >= 0)
    found[gradient] = found[roles.forward[gradient]]
    inner = np.flatnonzero(attribution.has("executed") & (found == 0) & roles.is_a("forward"))
    found[inner] = _from_duplicate(attribution, found, inner)
    return found


def _from_duplicate(attribution: Attribution, found: SmallArray, rows: IntArray) -> SmallArray:
    """Return the sub-names of the duplicates around ops; only those have sequence numbers."""
    tree, place = attribution.tree, attribution.work.place
    around = taken(tree.nearest(attribution.has("duplicate")), tree.parent[rows])
    return np.where(taken(place, around) == place[rows], taken(found, around, 0), np.int8(0))


def _gone_by(trace: Trace, attribution: Attribution, phases: Phases, some: BoolArray) -> BoolArray:
    """Return which of some ops ran with gradients on and have the backward pass of their time.

    Such an op has a sequence number, or is inside one that has, and these grow with time: where a
    later op's backward node is in the trace, this op's is, or there is none. Nodes inside others
    are of graphs made again on the backward thread, which numbers on its own.
    """
    sequence = numbers(trace.ops["sequence"], ABSENT)
    process = numbers(trace.ops["process"])
    node = is_node(trace.ops) & (sequence != ABSENT) & (phases.root < 0)
    latest = np.full(int(process.max()) + 1 if len(process) else 1, ABSENT, dtype=np.int64)
    np.maximum.at(latest, process[node], sequence[node])
    rows = np.flatnonzero(some)
    own = taken(sequence, attribution.tree.nearest(sequence != ABSENT)[rows], ABSENT)
    gone_by = np.zeros(len(some), dtype=np.bool_)
    gone_by[rows] = (own != ABSENT) & (own <= latest[process[rows]])
    return gone_by


def _forward_of(roles: ProductRoles, gradients: BoolArray) -> BoolArray:
    """Return which forward ops are those of some gradients."""
    forward = np.zeros(len(roles.role), dtype=np.bool_)
    forward[roles.forward[gradients & (roles.forward >= 0)]] = True
    return forward


def _trained_by_shape(
    trace: Trace, attribution: Attribution, roles: ProductRoles, forward: BoolArray
) -> BoolArray:
    """Return which forward products have the shape of a weight gradient that R3 found.

    The gradients of a scripted function or one of C++ are in a node for all of it.
    """
    weights = _weight_gradients(roles)
    if not weights.any():
        return weights
    seen = _SizesSeen(trace, attribution)
    return forward & seen.having(_with_gradient(seen.of(forward), seen.of(weights)))


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
    seen = _SizesSeen(trace, attribution)
    weights = seen.of(gradients_of_weights)
    trained = _with_gradient(seen.of(forward), weights)
    frozen = seen.of(forward) - trained
    gradients = {(process, b, m, n, k) for process, b, m, k, n in frozen} - {
        (process, b, m, n, k) for process, b, m, k, n in trained
    }
    return forward & seen.having(frozen), inputs & seen.having(gradients)


class _SizesSeen:
    """The sizes of products by process."""

    def __init__(self, trace: Trace, attribution: Attribution) -> None:
        process = numbers(trace.ops["process"])
        group, first = group_rows([process, attribution.work.place])
        sizes = _sizes(attribution)
        self._group = group
        self._sizes: list[Sizes | None] = [
            (int(process[at]), one.batch, one.m, one.k, one.n)
            if (one := sizes[int(attribution.work.place[at])])
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


def _logits(trace: Trace, attribution: Attribution) -> BoolArray:
    """Return which products have the rows and columns that a cross entropy takes."""
    ops = trace.ops
    shapes = names(ops["input_dims"])
    rows = np.flatnonzero(named(ops, LOSSES) & (codes(ops["input_dims"]) >= 0))
    texts = distinct(codes(ops["input_dims"])[rows]).tolist()
    taken_in = {size for text in texts if (size := _matrix(shapes[text])) is not None}
    sizes = _sizes(attribution)
    is_taken = [size is not None and (size.m, size.n) in taken_in for size in sizes]
    logits: BoolArray = np.array(is_taken, dtype=np.bool_)[attribution.work.place]
    return logits


def _matrix(text: str) -> tuple[int, int] | None:
    """Return rows and columns of the first tensor of recorded shapes."""
    shapes = read_shapes(text)
    first = shapes[0] if shapes else ()
    if isinstance(first, Shapes) or len(first) != 2:
        return None
    return first[0], first[1]


def _beside(
    trace: Trace, attribution: Attribution, forward: BoolArray, frozen: BoolArray
) -> BoolArray:
    """Return which products are half of an adapter: M x K x r and M x r x N beside M x K x N."""
    if not frozen.any():
        return frozen
    seen, trained = _SizesSeen(trace, attribution), forward & ~frozen
    small = seen.of(trained)
    halves = {half for whole in seen.of(frozen) for half in _halves(whole, small)}
    return trained & seen.having(halves)


def _halves(whole: Sizes, trained: set[Sizes]) -> list[Sizes]:
    """Return both halves of each adapter on a frozen product."""
    process, _, rows, inputs, outputs = whole
    narrow = min(inputs, outputs) // LEAST_COMPRESSION
    beside = [size for size in trained if (size[0], size[2]) == (process, rows)]
    down = [size for size in beside if size[3] == inputs and size[4] <= narrow]
    up = [size for size in beside if size[4] == outputs and size[3] <= narrow]
    return [half for a in down for b in up if a[4] == b[3] for half in (a, b)]


def _sizes(attribution: Attribution) -> list[Product | None]:
    return [one if isinstance(one, Product) else None for one in attribution.work.signatures]
