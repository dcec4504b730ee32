"""The role of every matrix product: forward, which gradient, computed again, of an optimizer.

A derivative of one product (`MmBackward0` and its kin) is compared with the forward op that its
sequence number names. Other backward nodes (compiled graphs, functions of users) have no such
link: their products are compared with all forward products of the process (R3).

A forward product of M x K by K x N has the input gradient M x N by N x K and the weight gradient
K x M by M x N, or its transpose N x M by M x K. Where shapes leave a choice, how the operands lie
in memory decides: a weight gradient has a transposed left operand, an input gradient the right
operand of the forward the other way round, and a forward computed again both as in the forward.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa

from traceflops.attribution.op_kernels import Attribution
from traceflops.attribution.scopes import EVALUATE, Phases
from traceflops.flops import RULES, Layout, Product, Work
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Names,
    SmallArray,
    Trace,
    codes,
    groups,
    joint_codes,
    matching,
    names,
    numbers,
    taken,
)

Role = Literal["recompute", "input_grad", "weight_grad"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
ProductRole = Literal[
    "none", "forward", "recompute", "input_grad", "weight_grad", "gradient", "optimizer"
]
PRODUCT_ROLES: Final[tuple[ProductRole, ...]] = get_args(ProductRole)
"""`gradient` is one of the two, and nothing tells which."""

_ENDING: Final = re.compile(r"Backward[0-9]{0,3}$")
_LETTERS: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a product may be: by shapes and strides, and by shapes alone."""

    roles: frozenset[Role]
    by_shape: frozenset[Role]

    @property
    def role(self) -> Role | None:
        """Return the one role it can have, None where there are several or none."""
        return next(iter(self.roles)) if len(self.roles) == 1 else None


class Forwards:
    """The distinct products of a forward pass, found by what their gradients look like."""

    def __init__(self, products: Iterable[Product]) -> None:
        self._found: defaultdict[tuple[Role, tuple[int, ...]], list[Product]] = defaultdict(list)
        for product in products:
            b, m, k, n = product.batch, product.m, product.k, product.n
            self._found["recompute", (b, m, k, n)].append(product)
            self._found["input_grad", (b, m, n, k)].append(product)
            for sizes in {(b, k, m, n), (b, n, m, k)}:
                self._found["weight_grad", sizes].append(product)

    def verdict(self, product: Product, *, again: bool = True) -> Verdict:
        """Return what a product can be; a forward computed again only if `again` is set."""
        left_out = frozenset[Role]() if again else frozenset[Role]({"recompute"})
        by_shape = frozenset(role for role in ROLES if self._like(role, product)) - left_out
        # A gradient may be formed from copies that lie otherwise, a recomputed forward is not.
        lies = self.lying(product) & by_shape
        return Verdict(lies or by_shape - {"recompute"}, by_shape)

    def lying(self, product: Product) -> frozenset[Role]:
        """Return the roles that fit the shapes and how the operands lie."""
        return frozenset(
            role
            for role, lies in _LIES.items()
            if any(lies(product, one) for one in self._like(role, product))
        )

    def _like(self, role: Role, product: Product) -> list[Product]:
        return self._found.get((role, (product.batch, product.m, product.k, product.n)), [])


def _as_before(product: Product, forward: Product) -> bool:
    return _alike(product.left, forward.left) and _alike(product.right, forward.right)


def _turned_right(product: Product, forward: Product) -> bool:
    """Return whether the right operand is the forward's the other way round."""
    apart = None in (product.right, forward.right) or product.right != forward.right
    return apart and product.left != "column"


def _turned_left(product: Product, forward: Product) -> bool:
    """Return whether the left operand is a transposed one: of the gradient, or of the input."""
    of_input = (product.m, product.k) == (forward.k, forward.m) and forward.left == "column"
    return product.left in (None, "column") or of_input


_LIES: Final[Mapping[Role, Callable[[Product, Product], bool]]] = {
    "recompute": _as_before,
    "input_grad": _turned_right,
    "weight_grad": _turned_left,
}


def _alike(one: Layout | None, other: Layout | None) -> bool:
    return one is None or other is None or one == other


def usual_role(product: Product) -> Role | None:
    """Return what a gradient is by how its left operand lies, None where that is not known."""
    roles: dict[Layout | None, Role] = {"column": "weight_grad", "row": "input_grad"}
    return roles.get(product.left)


def surplus(product: Product, times: int, forward: Mapping[Product, int]) -> int:
    """Return how many of equal products are more than all gradients of the forward pass can be.

    `forward` says how often each product was formed in the forward pass.
    """
    slots = sum(
        count * len(Forwards([one]).lying(product) - {"recompute"})
        for one, count in forward.items()
    )
    return max(0, min(times, times - slots))


@dataclass(frozen=True, slots=True)
class ProductRoles:
    """What each matrix product is.

    `role` is, per op, a place in PRODUCT_ROLES. `forward` is, per op in a derivative of one
    product, the row of the forward op, -1 where none is known. `open` are, by role, the ops that
    may have it though another one is given (or have it though they may have another). `by_shapes`
    says which ops R3 decided.
    """

    role: SmallArray
    forward: IntArray
    open: dict[Role, BoolArray]
    by_shapes: BoolArray

    def is_a(self, *roles: ProductRole) -> BoolArray:
        """Return, per op, whether it has one of these roles."""
        return np.isin(self.role, [PRODUCT_ROLES.index(role) for role in roles])


def product_roles(trace: Trace, attribution: Attribution, phases: Phases) -> ProductRoles:
    """Return the role of every matrix product of a trace, executed or not."""
    return _Judge(trace, attribution, phases).roles()


class _Judge:
    def __init__(self, trace: Trace, attribution: Attribution, phases: Phases) -> None:
        self._ops = trace.ops
        self._work = attribution.work
        self._phases = phases
        self._executed = attribution.has("executed")
        self._process = numbers(trace.ops["process"])
        self._forward = np.full(trace.ops.num_rows, -1, dtype=np.int64)
        self._role = np.zeros(trace.ops.num_rows, dtype=np.int8)
        self._open: dict[Role, BoolArray] = {
            role: np.zeros(trace.ops.num_rows, dtype=np.bool_) for role in ROLES
        }

    @cached_property
    def _product(self) -> tuple[Product | None, ...]:
        """Return the sizes of each distinct work that is a product."""
        return tuple(
            work.signature
            if isinstance(work, Work) and isinstance(work.signature, Product) and work.flops
            else None
            for work in self._work.works
        )

    @cached_property
    def _same_product(self) -> IntArray:
        """Return, per distinct work, the first one that is the same product (with a bias, say)."""
        first: dict[Product | None, int] = {}
        places = [first.setdefault(one, place) for place, one in enumerate(self._product)]
        return np.array(places, dtype=np.int64)

    @cached_property
    def _is_product(self) -> BoolArray:
        chosen = np.array([one is not None for one in self._product], dtype=np.bool_)
        return chosen[self._work.place]

    def roles(self) -> ProductRoles:
        """Return the roles."""
        given: tuple[Literal["forward", "recompute", "optimizer"], ...] = (
            "forward",
            "recompute",
            "optimizer",
        )
        for role in given:
            self._role[self._phases.is_in(role) & self._is_product] = PRODUCT_ROLES.index(role)
        backward = np.flatnonzero(self._is_product & self._phases.is_in("backward"))
        derivative = self._derivatives(backward)
        linked, others = backward[derivative], backward[~derivative]
        self._forward[linked] = _forwards_of(self._ops, self._is_product, self._phases.root[linked])
        known = self._forward[linked] >= 0
        self._judge_linked(linked[known])
        self._judge_by_shapes(linked[~known], again=False)
        self._judge_by_shapes(others, again=True)
        by_shapes = np.zeros(self._ops.num_rows, dtype=np.bool_)
        by_shapes[others] = True
        return ProductRoles(self._role, self._forward, self._open, by_shapes)

    def _derivatives(self, rows: IntArray) -> BoolArray:
        """Return which ops are inside a node that is the derivative of one product."""
        root = self._phases.root[rows]
        of_product = matching(
            self._ops["name"], lambda label: _plain(label, node=True) in _PRODUCTS
        )
        return (root >= 0) & of_product[np.maximum(root, 0)]

    def _judge_linked(self, rows: IntArray) -> None:
        """Judge derivatives of one product whose forward op is known."""
        place = self._work.place
        pairs = joint_codes(place[rows], place[self._forward[rows]])
        for _, at in groups(pairs):
            mine = rows[at]
            product = self._product[int(place[mine[0]])]
            forward = self._product[int(place[self._forward[mine[0]]])]
            if product is None or forward is None:
                continue
            verdict = Forwards([forward]).verdict(product, again=False)
            role = verdict.role or usual_role(product)
            self._role[mine] = PRODUCT_ROLES.index(role or "gradient")
            if role is None:
                self._leave_open(self._without_pairs(mine), verdict.by_shape)

    def _without_pairs(self, rows: IntArray) -> IntArray:
        """Give two equal products of one node a role each; return the others.

        Which is which is not known, nor does it matter: they are equal.
        """
        root = self._phases.root[rows]
        order = np.lexsort((rows, root))
        _, first, count = np.unique(root[order], return_index=True, return_counts=True)
        first = first[count == 2]
        self._role[rows[order[first]]] = PRODUCT_ROLES.index("input_grad")
        self._role[rows[order[first + 1]]] = PRODUCT_ROLES.index("weight_grad")
        paired = np.concatenate([order[first], order[first + 1]])
        return np.delete(rows, paired)

    def _judge_by_shapes(self, rows: IntArray, *, again: bool) -> None:
        """Judge products by all forward products of their process (R3)."""
        for process, at in groups(self._process[rows]):
            mine = rows[at]
            forward = self._forward_products(process)
            forwards = Forwards(forward)
            for place, these in groups(self._same_product[self._work.place[mine]]):
                product = self._product[place]
                if product is not None:
                    verdict = forwards.verdict(product, again=again)
                    self._settle(mine[these], product, verdict, forward)

    def _forward_products(self, process: int) -> Counter[Product]:
        """Return how often each product was formed in the forward passes of a process."""
        rows = self._is_product & self._executed & self._phases.is_in("forward")
        places = self._work.place[rows & (self._process == process)]
        times = np.bincount(places, minlength=len(self._product)).tolist()
        found: Counter[Product] = Counter()
        for product, count in zip(self._product, times, strict=True):
            if product is not None and count:
                found[product] += count
        return found

    def _settle(
        self, rows: IntArray, product: Product, verdict: Verdict, forward: Counter[Product]
    ) -> None:
        """Give equal products their roles; where several fit, as many as can be are gradients."""
        role = verdict.role
        if role is None and "recompute" in verdict.roles:
            counted = rows[self._executed[rows]]
            extra = _spread(len(counted), surplus(product, len(counted), forward))
            rest = Verdict(verdict.roles - {"recompute"}, verdict.by_shape - {"recompute"})
            self._role[rows] = self._gradient(product, rest)
            self._role[counted[extra]] = PRODUCT_ROLES.index("recompute")
            self._leave_open(rows, verdict.roles)
            return
        self._role[rows] = self._gradient(product, verdict)
        if role != "recompute":
            self._leave_open(rows, verdict.by_shape - {"recompute"})

    def _gradient(self, product: Product, verdict: Verdict) -> int:
        return PRODUCT_ROLES.index(verdict.role or usual_role(product) or "gradient")

    def _leave_open(self, rows: IntArray, roles: frozenset[Role]) -> None:
        if len(roles) > 1:
            for role in roles:
                self._open[role][rows] = True


def _spread(count: int, chosen: int) -> BoolArray:
    """Return which of a number of equal things are chosen, spread evenly among them."""
    reached = np.arange(count + 1, dtype=np.int64) * chosen // max(count, 1)
    return np.asarray(np.diff(reached) > 0)


def _plain(label: str, *, node: bool) -> str:
    """Return the bare name of an op, or of what a backward node is of; "" for other nodes."""
    if node:
        label = label.removeprefix(EVALUATE)
        if _ENDING.search(label) is None:
            return ""
        label = _ENDING.sub("", label)
    return _LETTERS.sub("", label.removeprefix("aten::").lower())


_PRODUCTS: Final = frozenset(
    _plain(name, node=False)
    for name, rule in RULES.items()
    if rule.kind in ("gemm", "grouped_gemm")
)
"""Bare names of the ops that form one product."""


def _forwards_of(ops: pa.Table, wanted: BoolArray, roots: IntArray) -> IntArray:
    """Return the forward op of each backward node, -1 where it is not in the trace.

    That is the latest of the wanted ops before the node with the same process, sequence number and
    bare name: ops that need no gradient share the number of the next one that does.
    """
    sequence = numbers(ops["sequence"], ABSENT)
    rows = np.flatnonzero(wanted & (sequence != ABSENT))
    both = np.concatenate([rows, roots])
    name = Names().codes(map(_bare, names(ops["name"])))
    key = joint_codes(
        joint_codes(numbers(ops["process"])[both], sequence[both]), name[codes(ops["name"])[both]]
    )
    order = np.lexsort((numbers(ops["start_ns"])[both], key))
    is_forward = order < len(rows)
    last = np.maximum.accumulate(np.where(is_forward, np.arange(len(order)), -1))
    found = np.full(len(both), -1, dtype=np.int64)
    fits = (last >= 0) & (taken(key[order], last) == key[order])
    found[order] = np.where(fits, taken(both[order], last), -1)
    return found[len(rows) :]


def _bare(label: str) -> str:
    return _plain(label, node=_ENDING.search(label) is not None)
