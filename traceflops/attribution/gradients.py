"""What a matrix product inside a backward node is: which gradient, or a forward computed again.

A forward product of M x K by K x N has the input gradient M x N by N x K and the weight gradient
K x M by M x N, or its transpose N x M by M x K. Where shapes leave a choice, how the operands lie
in memory decides: a weight gradient has a transposed left operand, an input gradient the right
operand of the forward the other way round, and a forward computed again both as in the forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from traceflops.flops import Layout, Product

Role = Literal["recompute", "input_grad", "weight_grad"]

ROLES: Final[tuple[Role, ...]] = ("recompute", "input_grad", "weight_grad")


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
        self._again: dict[tuple[int, ...], list[Product]] = {}
        self._input: dict[tuple[int, ...], list[Product]] = {}
        self._weight: dict[tuple[int, ...], list[Product]] = {}
        for one in products:
            b, m, k, n = one.batch, one.m, one.k, one.n
            self._again.setdefault((b, m, k, n), []).append(one)
            self._input.setdefault((b, m, n, k), []).append(one)
            for sizes in {(b, k, m, n), (b, n, m, k)}:
                self._weight.setdefault(sizes, []).append(one)

    def verdict(self, product: Product, *, again: bool = True) -> Verdict:
        """Return what a product can be; a forward computed again only if `again` is set."""
        found = self._found(product)
        left_out = frozenset[Role]() if again else frozenset[Role]({"recompute"})
        by_shape = frozenset(role for role in ROLES if found[role]) - left_out
        # A gradient may be formed from copies that lie otherwise, a recomputed forward is not.
        lies = self.lying(product) & by_shape
        return Verdict(lies or by_shape - {"recompute"}, by_shape)

    def lying(self, product: Product) -> frozenset[Role]:
        """Return the roles that fit the shapes and how the operands lie."""
        return frozenset(
            role
            for role, forwards in self._found(product).items()
            if any(_LIES[role](product, one) for one in forwards)
        )

    def _found(self, product: Product) -> Mapping[Role, list[Product]]:
        sizes = (product.batch, product.m, product.k, product.n)
        return {
            "recompute": self._again.get(sizes, []),
            "input_grad": self._input.get(sizes, []),
            "weight_grad": self._weight.get(sizes, []),
        }


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


_LIES: Final = {
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
