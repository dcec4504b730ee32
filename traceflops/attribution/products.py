"""The role of every matrix product: forward, which gradient, recomputed, or of an optimizer.

The derivative of one product (such as `MmBackward0`) is compared with the forward op that has its
sequence number. Other backward nodes (compiled graphs, functions of users) have no such link: their
products are compared with all forward products of the process (R3).

A forward product of M x K by K x N has the input gradient M x N by N x K and the weight gradient
K x M by M x N, or its transpose N x M by M x K. If shapes leave a choice, the memory layout of the
operands decides: a weight gradient has a transposed left operand, an input gradient the right
operand of the forward transposed, and a recomputed forward has the layouts of the forward.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.attribution.op_kernels import Attribution
from traceflops.attribution.scopes import EVALUATE, Phases
from traceflops.flops.ops.table import RULES
from traceflops.flops.ops.work import Layout, Product, Work
from traceflops.table.arrays import ABSENT, BoolArray, IntArray, SmallArray
from traceflops.table.columns import Names, codes, matching, names, numbers
from traceflops.table.grouping import groups, joint_codes
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace

Role = Literal["recompute", "input_grad", "weight_grad"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
ProductRole = Literal[
    "none", "forward", "recompute", "input_grad", "weight_grad", "gradient", "optimizer"
]
PRODUCT_ROLES: Final[tuple[ProductRole, ...]] = get_args(ProductRole)
"""`gradient` is one of the two gradients, but unknown which."""
_OfPhase = Literal["forward", "recompute", "optimizer"]
_BY_PHASE: Final[tuple[_OfPhase, ...]] = get_args(_OfPhase)
"""Roles that follow from the phase of the op."""
_ENDING: Final = re.compile(r"Backward[0-9]{0,3}$")
_LETTERS: Final = re.compile(r"[^a-z0-9]+")


class Verdict(Struct, frozen=True):
    """The roles that a product may have: by shapes and layouts, and by shapes alone."""

    roles: frozenset[Role]
    by_shape: frozenset[Role]

    @property
    def role(self) -> Role | None:
        """Return the only possible role, None if there are several or none."""
        return next(iter(self.roles)) if len(self.roles) == 1 else None


class Forwards:
    """The distinct products of a forward pass, indexed by the sizes of their gradients."""

    def __init__(self, products: Iterable[Product]) -> None:
        """Index products by role and sizes (batch, m, k, n) of what is formed from them."""
        self._by_sizes: defaultdict[tuple[Role, tuple[int, ...]], list[Product]] = defaultdict(list)
        for product in products:
            b, m, k, n = product.batch, product.m, product.k, product.n
            self._by_sizes["recompute", (b, m, k, n)].append(product)
            self._by_sizes["input_grad", (b, m, n, k)].append(product)
            for sizes in {(b, k, m, n), (b, n, m, k)}:
                self._by_sizes["weight_grad", sizes].append(product)

    def verdict(self, product: Product, *, again: bool = True) -> Verdict:
        """Return the possible roles of a product; `recompute` is one of them only if `again`."""
        roles = [role for role in ROLES if again or role != "recompute"]
        by_shape = frozenset(role for role in roles if self._like(role, product))
        by_layout = self.lying(product) & by_shape
        if by_layout:
            return Verdict(by_layout, by_shape)
        # No layout fits: it may still be a gradient, formed from copies with another layout, but
        # not a recomputed forward.
        return Verdict(by_shape - {"recompute"}, by_shape)

    def lying(self, product: Product) -> frozenset[Role]:
        """Return the roles whose shapes and layouts fit; the layout None (unknown) fits any."""
        m, k, left, right = product.m, product.k, product.left, product.right
        fits: dict[Role, Callable[[Product], bool]] = {
            "recompute": lambda forward: (
                (None in (left, forward.left) or left == forward.left)
                and (None in (right, forward.right) or right == forward.right)
            ),
            # The right operand is that of the forward, transposed.
            "input_grad": lambda forward: (
                (None in (right, forward.right) or right != forward.right) and left != "column"
            ),
            # The left operand is transposed: the gradient or the input.
            "weight_grad": lambda forward: (
                left in (None, "column")
                or ((m, k) == (forward.k, forward.m) and forward.left == "column")
            ),
        }
        return frozenset(role for role in ROLES if any(map(fits[role], self._like(role, product))))

    def _like(self, role: Role, product: Product) -> list[Product]:
        sizes = (product.batch, product.m, product.k, product.n)
        return self._by_sizes.get((role, sizes), [])


def usual_role(product: Product) -> Role | None:
    """Return the usual role of a gradient by the layout of its left operand, None if unknown."""
    roles: dict[Layout | None, Role] = {"column": "weight_grad", "row": "input_grad"}
    return roles.get(product.left)


def surplus(product: Product, times: int, forward: Mapping[Product, int]) -> int:
    """Return how many of `times` equal products cannot be gradients of the forward pass.

    `forward` counts how often each product was formed in the forward pass; each time it may have
    up to two gradients with the sizes of `product`.
    """
    possible_gradients = sum(
        count * len(Forwards([formed]).lying(product) - {"recompute"})
        for formed, count in forward.items()
    )
    return max(0, min(times, times - possible_gradients))


class ProductRoles(Struct, frozen=True):
    """The role of each op as a matrix product.

    `role` is, per op, an index into PRODUCT_ROLES. `forward` is, per op in a derivative of one
    product, the row of the forward op, else -1. `open` marks, by role, the ops that may have this
    role or another one, whichever was chosen. `by_shapes` marks the ops that R3 decided.
    """

    role: SmallArray
    forward: IntArray
    open: dict[Role, BoolArray]
    by_shapes: BoolArray

    def is_a(self, *roles: ProductRole) -> BoolArray:
        """Return, per op, whether it has one of these roles."""
        return np.isin(self.role, [PRODUCT_ROLES.index(role) for role in roles])


def product_roles(trace: Trace, attribution: Attribution, phases: Phases) -> ProductRoles:
    """Return the role of each matrix product of a trace, executed or not."""
    return _RoleFinder(trace, attribution, phases).roles()


class _RoleFinder:
    """Finds the roles of all products of a trace: by phase, by forward op, or by shapes."""

    def __init__(self, trace: Trace, attribution: Attribution, phases: Phases) -> None:
        """Find which ops run a matrix product, and of which sizes."""
        self._ops, count = trace.ops, trace.ops.num_rows
        self._place = attribution.work.place  # per op, the index of its work, modelled or not
        self._phases = phases
        self._executed = attribution.has("executed")  # per op; only these products count
        self._process = numbers(trace.ops["process"])
        # Per distinct work: its sizes if it is a product, and the index of the first work with
        # these sizes (works may differ in a bias only). Products without FLOPs are empty.
        self._product = tuple(
            work.signature
            if isinstance(work, Work) and isinstance(work.signature, Product) and work.flops
            else None
            for work in attribution.work.works
        )
        first_of_product: dict[Product | None, int] = {}
        first_index = [
            first_of_product.setdefault(product, index)
            for index, product in enumerate(self._product)
        ]
        self._same_product = np.array(first_index, dtype=np.int64)
        is_product = np.array([product is not None for product in self._product], dtype=np.bool_)
        self._is_product = is_product[self._place]
        # The result, per op, see ProductRoles: no forward op (-1), the role "none" (0), and by role
        # whether the op may have this role or another one.
        self._forward = np.full(count, -1, dtype=np.int64)
        self._role = np.zeros(count, dtype=np.int8)
        self._open: dict[Role, BoolArray] = {r: np.zeros(count, dtype=np.bool_) for r in ROLES}

    def roles(self) -> ProductRoles:
        """Return the roles: by phase, of linked derivatives, and of other backward products."""
        for phase in _BY_PHASE:
            rows = self._phases.is_in(phase) & self._is_product
            self._role[rows] = PRODUCT_ROLES.index(phase)
        backward = np.flatnonzero(self._is_product & self._phases.is_in("backward"))
        of_product = matching(
            self._ops["name"], lambda label: _plain(label, node=True) in _PRODUCTS
        )
        root = self._phases.root[backward]
        of_one_product = (root >= 0) & of_product[np.maximum(root, 0)]
        linked, unlinked = backward[of_one_product], backward[~of_one_product]
        self._forward[linked] = _forwards_of(self._ops, self._is_product, root[of_one_product])
        has_forward = self._forward[linked] >= 0
        self._find_linked(linked[has_forward])
        self._find_by_shapes(linked[~has_forward], again=False)
        self._find_by_shapes(unlinked, again=True)
        by_shapes = np.zeros(len(self._role), dtype=np.bool_)
        by_shapes[unlinked] = True
        return ProductRoles(self._role, self._forward, self._open, by_shapes)

    def _find_linked(self, rows: IntArray) -> None:
        """Set the roles of derivatives of one product whose forward op is known (`rows` of ops)."""
        index, root = self._place, self._phases.root
        # Equal pairs of backward and forward product get the same role.
        pairs = joint_codes(index[rows], index[self._forward[rows]])
        for _, members in groups(pairs):
            equal = rows[members]
            product = self._product[int(index[equal[0]])]
            forward = self._product[int(index[self._forward[equal[0]]])]
            if product is None or forward is None:
                continue  # without sizes there is nothing to compare
            verdict = Forwards([forward]).verdict(product, again=False)
            role = verdict.role or usual_role(product)
            self._role[equal] = PRODUCT_ROLES.index(role or "gradient")
            if role is None:
                # Two equal products of one node are the two gradients; it does not matter which is
                # which. A single one stays open.
                # Nodes (root) of `equal` [4 4 9]  ->  first [0 2], count [2 1]: pairs begin at [0]
                equal = equal[np.lexsort((equal, root[equal]))]
                _, first, count = np.unique(root[equal], return_index=True, return_counts=True)
                pair = first[count == 2]
                self._role[equal[pair]] = PRODUCT_ROLES.index("input_grad")
                self._role[equal[pair + 1]] = PRODUCT_ROLES.index("weight_grad")
                self._leave_open(np.delete(equal, [*pair, *pair + 1]), verdict.by_shape)

    def _find_by_shapes(self, rows: IntArray, *, again: bool) -> None:
        """Set the roles of products by comparison with all forward products of the process (R3).

        `rows` are ops; only with `again` they may be recomputed forward products. If equal products
        fit several roles, as many as possible become gradients.
        """
        executed_forward = self._is_product & self._executed & self._phases.is_in("forward")
        for process, members in groups(self._process[rows]):
            of_process = rows[members]
            # How often each product was formed in the forward passes of the process.
            formed = self._place[executed_forward & (self._process == process)]
            count_of_index = np.bincount(formed, minlength=len(self._product)).tolist()
            forward: Counter[Product] = Counter()
            for product, count in zip(self._product, count_of_index, strict=True):
                if product is not None and count:
                    forward[product] += count
            forwards = Forwards(forward)
            for index, equal in groups(self._same_product[self._place[of_process]]):
                product = self._product[index]
                if product is not None:
                    verdict = forwards.verdict(product, again=again)
                    self._settle(of_process[equal], product, verdict, forward)

    def _settle(
        self, rows: IntArray, product: Product, verdict: Verdict, forward: Counter[Product]
    ) -> None:
        """Set the role of ops that are one product: gradients, as far as `forward` allows them."""
        gradients = verdict.roles - {"recompute"}
        if verdict.role is None and "recompute" in verdict.roles:
            counted = rows[self._executed[rows]]
            # More products than the forward pass can have gradients of: so many are recomputed.
            # They are spread evenly among the equal products, where `recomputed` grows:
            # 2 of 4  ->  recomputed [0 0 1 1 2]: the second and the fourth
            count = surplus(product, len(counted), forward)
            recomputed = np.arange(len(counted) + 1, dtype=np.int64) * count // max(len(counted), 1)
            as_gradient = Verdict(gradients, verdict.by_shape - {"recompute"})
            role = as_gradient.role or usual_role(product) or "gradient"
            self._role[rows] = PRODUCT_ROLES.index(role)
            self._role[counted[np.diff(recomputed) > 0]] = PRODUCT_ROLES.index("recompute")
            self._leave_open(rows, verdict.roles)
            return
        self._role[rows] = PRODUCT_ROLES.index(verdict.role or usual_role(product) or "gradient")
        if verdict.role != "recompute":
            self._leave_open(rows, verdict.by_shape - {"recompute"})

    def _leave_open(self, rows: IntArray, roles: frozenset[Role]) -> None:
        if len(roles) > 1:
            for role in roles:
                self._open[role][rows] = True


def _plain(label: str, *, node: bool) -> str:
    """Return the bare name of an op; for a backward `node` that of its forward op, else ""."""
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


def _forwards_of(ops: pa.Table, is_product: BoolArray, roots: IntArray) -> IntArray:
    """Return the row of the forward op of each backward node in `roots`, -1 without one.

    That is the latest product op before the node with the same process, sequence number and bare
    name: an op that needs no gradient has the sequence number of the next one that does.
    """
    sequence = numbers(ops["sequence"], ABSENT)
    rows = np.flatnonzero(is_product & (sequence != ABSENT))
    candidates = np.concatenate([rows, roots])
    bare_names = (_plain(t, node=_ENDING.search(t) is not None) for t in names(ops["name"]))
    name = Names().codes(bare_names)[codes(ops["name"])[candidates]]
    process = numbers(ops["process"])[candidates]
    key = joint_codes(joint_codes(process, sequence[candidates]), name)
    # Sorted by key and time, the forward op of a node is the last product op before it.
    # is_forward [0 1 1 0 0]  ->  last_forward [-1 1 2 2 2]: places in `order`
    order = np.lexsort((numbers(ops["start_ns"])[candidates], key))
    is_forward = order < len(rows)
    last_forward = np.maximum.accumulate(np.where(is_forward, np.arange(len(order)), -1))
    forward = np.full(len(candidates), -1, dtype=np.int64)
    is_same_key = (last_forward >= 0) & (taken(key[order], last_forward) == key[order])
    forward[order] = np.where(is_same_key, taken(candidates[order], last_forward), -1)
    return forward[len(rows) :]
