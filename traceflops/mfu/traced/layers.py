"""Which products are of frozen weights, of adapters on them, or the logits of the loss."""

from __future__ import annotations

from functools import cached_property
from typing import Final, Literal

import numpy as np

from traceflops.attribution.op_kernels import Attribution, named
from traceflops.attribution.products import ProductRoles
from traceflops.attribution.scopes import Phases, is_node
from traceflops.flops.ops.arguments import Shape, Shapes, read_shapes
from traceflops.flops.ops.work import Product
from traceflops.table.columns import ABSENT, BoolArray, IntArray, SmallArray, codes, names, numbers
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
    """Return, per op, the index of its sub-name in SUBNAMES; 0 for ops that have none."""
    subname = np.zeros(trace.ops.num_rows, dtype=np.int8)
    tree, work = attribution.tree, attribution.work
    forward = roles.is_a("forward") & ~attribution.has("wrapper", "none")
    # Sequence numbers grow with time: where the backward node of a later op is in the trace, that
    # of this op is, or there is none. Nodes inside others are of graphs made again on the backward
    # thread, which numbers on its own.
    sequence = numbers(trace.ops["sequence"], ABSENT)
    process = numbers(trace.ops["process"])
    node = is_node(trace.ops) & (sequence != ABSENT) & (phases.root < 0)
    latest = np.full(int(process.max()) + 1 if len(process) else 1, ABSENT, dtype=np.int64)
    np.maximum.at(latest, process[node], sequence[node])
    candidates = np.flatnonzero(forward)
    own = taken(sequence, tree.nearest(sequence != ABSENT)[candidates], ABSENT)
    gone_by, with_gradient, trained = np.zeros((3, len(forward)), dtype=np.bool_)
    gone_by[candidates] = (own != ABSENT) & (own <= latest[process[candidates]])
    # Forward ops that have a gradient, and one that is, or may be, of their weight.
    has_forward = roles.forward >= 0
    with_gradient[roles.forward[has_forward]] = True
    trained[roles.forward[roles.is_a("weight_grad", "gradient") & has_forward]] = True
    frozen = gone_by & (sequence != ABSENT) & ~trained
    products = [each if isinstance(each, Product) else None for each in work.signatures]
    sizes = _SizesSeen(process, work.place, products)
    # Gradients inside nodes of whole functions (compiled, scripted, C++) are told by shape (R3).
    weights = roles.by_shapes & (roles.is_a("weight_grad", "gradient") | roles.open["weight_grad"])
    inputs = roles.by_shapes & roles.is_a("input_grad")
    if (weights | inputs).any():
        compiled = gone_by & (sequence == ABSENT)
        gradients = sizes.of(weights)
        trained_sizes, with_weights = (
            {
                (number, b, m, k, n)
                for number, b, m, k, n in sizes.of(products_of)
                if {(number, b, k, m, n), (number, b, n, m, k)} & gradients
            }
            for products_of in (compiled, forward)
        )
        frozen &= with_gradient | ~(forward & sizes.having(with_weights))
        # Of a compiled pass a product is frozen if none of its gradients can be that of its weight;
        # one that is shaped as a trained one is missed.
        frozen_sizes = sizes.of(compiled) - trained_sizes
        frozen |= compiled & sizes.having(frozen_sizes)
        of_frozen, of_trained = (
            {(number, b, m, n, k) for number, b, m, k, n in some}
            for some in (frozen_sizes, trained_sizes)
        )
        subname[inputs & sizes.having(of_frozen - of_trained)] = SUBNAMES.index("frozen")
    logits = np.array(_are_logits(trace, products), dtype=np.bool_)[work.place]
    subname[forward & logits] = SUBNAMES.index("logits")
    subname[frozen] = SUBNAMES.index("frozen")
    if frozen.any():
        adapters = forward & ~frozen & sizes.having(sizes.beside(frozen, forward & ~frozen))
        subname[adapters] = SUBNAMES.index("adapter")
    subname[has_forward] = subname[roles.forward[has_forward]]
    # Only the duplicates around ops have sequence numbers: their sub-names count inside, too.
    rows = np.flatnonzero(attribution.has("executed") & (subname == 0) & roles.is_a("forward"))
    around = taken(tree.nearest(attribution.has("duplicate")), tree.parent[rows])
    is_same = taken(work.place, around) == work.place[rows]
    subname[rows] = np.where(is_same, taken(subname, around, 0), np.int8(0))
    return subname


def _are_logits(trace: Trace, products: list[Product | None]) -> list[bool]:
    """Return which products have the rows and columns of what a cross entropy takes."""
    dims = trace.ops["input_dims"]
    loss_rows = np.flatnonzero(named(trace.ops, LOSSES) & (codes(dims) >= 0))
    texts, matrices = names(dims), set[Shape]()
    for code in distinct(codes(dims)[loss_rows]).tolist():
        first_shape = (read_shapes(texts[code]) or ((),))[0]
        if not isinstance(first_shape, Shapes) and len(first_shape) == 2:
            matrices.add(first_shape)
    return [each is not None and (each.m, each.n) in matrices for each in products]


class _SizesSeen:
    """The distinct sizes of the products of a trace, by process; looked at when first asked for."""

    def __init__(
        self, process: IntArray, work_of_op: IntArray, products: list[Product | None]
    ) -> None:
        self._columns, self._products = [process, work_of_op], products

    @cached_property
    def _groups(self) -> tuple[IntArray, list[Sizes | None]]:
        """The group of each op, and the sizes of each group: None for what is no product."""
        group, first = group_rows(self._columns)
        process, work = (column[first].tolist() for column in self._columns)
        products = zip(process, (self._products[index] for index in work), strict=True)
        return group, [p and (number, p.batch, p.m, p.k, p.n) for number, p in products]

    def of(self, rows: BoolArray) -> set[Sizes]:
        """Return the distinct sizes of some ops."""
        group, sizes = self._groups
        seen = (sizes[number] for number in distinct(group[rows]).tolist())
        return {each for each in seen if each is not None}

    def having(self, wanted: set[Sizes]) -> BoolArray:
        """Return which ops have one of these sizes."""
        group, sizes = self._groups
        return np.array([each in wanted for each in sizes], dtype=np.bool_)[group]

    def beside(self, frozen: BoolArray, small: BoolArray) -> set[Sizes]:
        """Return the sizes of adapters: M x K x r and M x r x N beside a frozen M x K x N."""
        candidates, halves = self.of(small), set[Sizes]()
        for process, _, rows, inputs, outputs in self.of(frozen):
            narrow = min(inputs, outputs) // LEAST_COMPRESSION
            beside = [size for size in candidates if (size[0], size[2]) == (process, rows)]
            down = [size for size in beside if size[3] == inputs and size[4] <= narrow]
            up = [size for size in beside if size[4] == outputs and size[3] <= narrow]
            halves |= {half for a in down for b in up if a[4] == b[3] for half in (a, b)}
        return halves
