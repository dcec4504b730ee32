"""Matrix products: 2 b M N K FLOPs, grouped ones included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Final, Literal

from traceflops.flops.ops.arguments import INT32, PACKED_FP4, Arguments, ElementType, Shape, Tensor
from traceflops.flops.ops.work import (
    CannotCount,
    FlopsPart,
    Kind,
    Layout,
    Product,
    Work,
    known_sum,
    operands,
)

_ROWS_OPEN: Final = "rows-of-groups-not-recorded"

_REAL_PRODUCTS_OF_A_COMPLEX_ONE = 4
"""4 multiplies and 4 adds for one complex multiply-add, where a real one takes 1 and 1."""

Spelling = Literal["mm", "bmm", "matmul", "linear", "mv"]
"""How the operands' shapes are read: `linear` has the weight as N x K."""

_RANKS = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1)}
"""The dimensions that operands must have; others broadcast."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """One product, by the places of its operands in the schema.

    `added` is what is added to it unless the value at `beta` is 0; `others` are operands that are
    read besides (scales). The type of the result is that at `out_type`, that of the tensor at
    `out`, what the op fixes (`result`), or that of the left operand.

    TorchScript records some ops with all that is on its stack: more than `most` arguments.
    """

    spelling: Spelling
    left: int = 0
    right: int = 1
    added: int | None = None
    beta: int | None = None
    out_type: int | None = None
    out: int | None = None
    result: ElementType | None = None
    others: tuple[int, ...] = ()
    most: int = 16

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work; not counted where the shapes are no such product's."""
        left, right = operands(args, self.left, self.right)
        signature = product_of(self.spelling, left, right)
        if len(args.shapes) > self.most:
            raise CannotCount("odd-shapes")
        result = self._result_type(args) or left.type
        out = Tensor((signature.batch, signature.m, signature.n), None, result)
        moved = (left.bytes, right.bytes, out.bytes, *self._others(args))
        return _work(kind, signature, moved, matrix_type(left, right), factor(left, right))

    def _result_type(self, args: Arguments) -> ElementType | None:
        out = args.tensor(self.out)
        return args.type_at(self.out_type) or (out.type if out else None) or self.result

    def _others(self, args: Arguments) -> list[int | None]:
        beta = args.value(self.beta)
        adds = isinstance(beta, int | float) and beta != 0
        places = (*self.others, self.added) if adds or self.beta is None else self.others
        return [tensor.bytes for tensor in args.given(*places)]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """An activation times a weight packed in a format of its own, by the K of one and the N given.

    `columns` is (argument, dimension) of the N; the activation's type is the product's.
    """

    columns: tuple[int, int]
    weight: int = 1

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work; not counted where shapes are missing."""
        argument, dimension = self.columns
        left, weight, source = operands(args, 0, self.weight, argument)
        if not left.shape or len(source.shape) <= dimension:
            raise CannotCount("odd-shapes")
        *rows, k = left.shape
        signature = Product(1, prod(rows), source.shape[dimension], k)
        out = left.like((signature.m, signature.n))
        moved = (left.bytes, weight.bytes, out.bytes)
        return _work(kind, signature, moved, left.type.matrix if left.type else None)


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """Products of groups of rows, each with a matrix of its own.

    2D x 3D: 2 rows K N (rows of a token by its expert); 2D x 2D: 2 M rows N (their weight
    gradient); 3D x 2D: 2 M K rows; 3D x 3D: one product per group. Offsets are not recorded.
    """

    out_type: int
    others: tuple[int, ...] = ()
    offsets: int = 2

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work; not counted where the shapes are no such product's."""
        left, right = operands(args, 0, 1)
        signature = _grouped_product(left, right)
        moved = [scale.bytes for scale in args.given(*self.others)]
        moved.append(self._written(args, left, right, signature))
        if len(left.shape) == len(right.shape) == 3:
            moved += [left.bytes, right.bytes]
            return _work(kind, signature, moved, matrix_type(left, right))
        moved += [_used(left, signature.n), _used(right, signature.m)]
        work = _work(kind, signature, moved, matrix_type(left, right))
        return replace(work, notes=(_ROWS_OPEN,))

    def _written(
        self, args: Arguments, left: Tensor, right: Tensor, signature: Product
    ) -> int | None:
        matrices = signature.batch
        if len(left.shape) == len(right.shape) == 2:
            offsets = args.tensor(self.offsets)
            if offsets is None:
                return None
            matrices = offsets.elements
        kind = args.type_at(self.out_type) or left.type
        return Tensor((matrices, signature.m, signature.n), None, kind).bytes


def fused_experts(kind: Kind, args: Arguments) -> Work:
    """Return the work of tokens in experts: weights E x N x K up, E x K x N/2 (or N) down.

    Each token goes to as many experts as the fifth argument has columns. One that maps all experts
    to those of this device, or counts its tokens, leaves open how many rows there are.
    """
    tokens, up, down, _, chosen = operands(args, 0, 1, 2, 3, 4)
    if [len(one.shape) for one in (tokens, up, down, chosen)] != [2, 3, 3, 2] or not up.elements:
        raise CannotCount("odd-shapes")
    hidden, columns, rows = tokens.shape[1], up.shape[1], chosen.elements
    packed, rest = divmod(hidden, up.shape[2])  # values in one element of the weights
    width = down.shape[2] * packed
    if rest or columns not in (width, 2 * width) or down.shape[:2] != (up.shape[0], hidden):
        raise CannotCount("odd-shapes")
    sizes = Product(1, rows, columns + width, hidden)
    weight = up.type.matrix if up.type and packed == 1 else None
    dtype = weight if weight in ("fp8", matrix_type(tokens, up)) else None
    moved = (2 * (tokens.bytes or 0), *(_used(one, rows) for one in (up, down)))
    part = FlopsPart("product", sizes.flops, 0 if _elsewhere(args) else sizes.flops)
    return Work(kind, (part,), known_sum(*moved), dtype, sizes, notes=(_ROWS_OPEN,))


def _elsewhere(args: Arguments) -> bool:
    """Return whether an argument is a list of integers: a map of experts, or a count of tokens."""
    tensors = args.given(*range(len(args.shapes)))
    return any(one.type == INT32 and len(one.shape) == 1 for one in tensors)


def _work(
    kind: Kind,
    signature: Product,
    moved: Iterable[int | None],
    dtype: str | None,
    real_products: int = 1,
) -> Work:
    part = FlopsPart.exact("product", signature.flops * real_products)
    return Work(kind, (part,), known_sum(*moved), dtype, signature)


def product_of(spelling: Spelling, left: Tensor, right: Tensor) -> Product:
    """Return the sizes of the product of two operands; not counted if they do not fit together."""
    a, b = left.shape, right.shape
    if spelling == "linear":
        b = (*b[:-2], *b[-2:][::-1])
    ranks = (len(a), len(b))
    fits = _RANKS.get(spelling, ranks) == ranks and (spelling != "bmm" or a[0] == b[0])
    sizes = _sizes(a, b) if fits else None
    if sizes is None:
        raise CannotCount("odd-shapes")
    batch, m, n, k = sizes
    right_layout = layout(right)
    if spelling == "linear" and right_layout:
        right_layout = "column" if right_layout == "row" else "row"
    return Product(batch, m, n, k * _packed(left, right), layout(left), right_layout)


def _sizes(a: Shape, b: Shape) -> tuple[int, int, int, int] | None:
    """Return the sizes of `a @ b`: vectors get a dimension, batches broadcast.

    Where only one side has a batch, its rows are those of one product.
    """
    if not a or not b:
        return None
    rows = a if len(a) > 1 else (1, *a)
    columns = b if len(b) > 1 else (*b, 1)
    if rows[-1] != columns[-2]:
        return None
    if len(columns) == 2:
        return 1, prod(rows[:-1]), columns[1], rows[-1]
    batch = broadcast(rows[:-2], columns[:-2])
    return None if batch is None else (prod(batch), rows[-2], columns[-1], rows[-1])


def broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape that shapes broadcast to, None if they do not."""
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    out: list[int] = []
    for sizes in zip(*padded, strict=True):
        different = set(sizes) - {1}
        if len(different) > 1:
            return None
        out.append(different.pop() if different else 1)
    return tuple(out)


def layout(operand: Tensor) -> Layout | None:
    """Return whether rows or columns of a matrix are contiguous; None if both or neither are."""
    if operand.strides is None or len(operand.shape) < 2:
        return None
    (rows, columns), (down, along) = operand.shape[-2:], operand.strides[-2:]
    by_row = along == 1 and down >= columns
    by_column = down == 1 and along >= rows
    if by_row == by_column:
        return None
    return "row" if by_row else "column"


def matrix_type(left: Tensor, right: Tensor) -> str | None:
    """Return the data type of a product, None where the operands' differ or are not recorded."""
    if left.type is None or right.type is None or left.type.matrix != right.type.matrix:
        return None
    return left.type.matrix


def factor(left: Tensor, right: Tensor) -> int:
    """Return how many real products one multiply-add of these operands takes."""
    both = left.type and right.type and left.type.complex and right.type.complex
    return _REAL_PRODUCTS_OF_A_COMPLEX_ONE if both else 1


def _packed(left: Tensor, right: Tensor) -> int:
    """Return how many values an element of both operands holds along K."""
    names = {operand.type.name for operand in (left, right) if operand.type}
    return 2 if names == {PACKED_FP4} else 1


def _grouped_product(left: Tensor, right: Tensor) -> Product:
    """Return the sizes of a grouped product as one product, or as one per group."""
    a, b = left.shape, right.shape
    stacked = len(a) == len(b) == 3
    if not {len(a), len(b)} <= {2, 3} or a[-1] != b[-2] or (stacked and a[0] != b[0]):
        raise CannotCount("odd-shapes")
    batch, k = a[0] if stacked else 1, a[-1] * _packed(left, right)
    return Product(batch, a[-2], b[-1], k, layout(left), layout(right))


def _used(operand: Tensor, rows: int) -> int | None:
    """Return the bytes read of one operand, a stack only of as many matrices as there are rows."""
    if len(operand.shape) != 3 or rows >= operand.shape[0]:
        return operand.bytes
    return operand.like((rows, *operand.shape[1:])).bytes
