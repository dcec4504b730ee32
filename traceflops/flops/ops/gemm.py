"""Matrix products (GEMM): D = alpha A B + beta C, with A [b, M, K], B [b, K, N], C and D [b, M, N].

    FLOPs = 2 b M N K                a multiply and an add per term; 4 times that if complex
    bytes = |A| + |B| + |D| (+ |C|)  every operand moved once, |X| its elements x their size

The names are those of BLAS (netlib.org/blas, DGEMM). A grouped product has one B per group of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from traceflops.flops.ops import work
from traceflops.flops.ops.arguments import INT32, PACKED_FP4, Arguments, ElementType, Shape, Tensor
from traceflops.flops.ops.work import CannotCount, FlopsPart, Kind, Layout, Product, Work

_ROWS_OPEN: Final = "rows-of-groups-not-recorded"
Spelling = Literal["mm", "bmm", "matmul", "linear", "mv"]
"""How the shapes of operands are read: in `linear`, B is N x K."""
_RANKS = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1)}
"""The numbers of dimensions that operands must have; other spellings broadcast."""


class MatrixProduct(Struct, frozen=True):
    """One product, by the positions of its operands in the schema.

    `left` is A, `right` is B, `added` is C, which does not count as read if the value at `beta` is
    0 or not recorded; `others` are read, too (scales). The type of D is the one named at
    `out_type`, else that of the tensor at `out`, else `result`, else that of A. More than `most`
    arguments cannot be counted: TorchScript records some ops with its whole stack.
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
        """Return the work. Raises CannotCount if the shapes do not fit."""
        a, b = work.operands(args, self.left, self.right)
        sizes = product_of(self.spelling, a, b)
        if len(args.shapes) > self.most:  # TorchScript recorded its whole stack
            raise CannotCount("odd-shapes")
        out, beta = args.tensor(self.out), args.value(self.beta)
        # An op without a beta reads C. An unrecorded beta may be 0: bytes are a lower bound.
        adds_c = self.beta is None or (isinstance(beta, int | float) and beta != 0)
        read = args.given(*self.others, self.added if adds_c else None)
        written = args.type_at(self.out_type) or (out.type if out else None) or self.result
        d = Tensor((sizes.batch, sizes.m, sizes.n), None, written or a.type)
        moved = (tensor.bytes for tensor in (a, b, d, *read))
        return _work(kind, sizes, moved, matrix_type(a, b), factor(a, b))


class PackedWeight(Struct, frozen=True):
    """An activation times a weight that is packed in a special format.

    K and the type are those of the activation; N is the size at `columns`: (argument, dimension).
    """

    columns: tuple[int, int]

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if shapes are missing."""
        argument, dimension = self.columns
        a, weight, source = work.operands(args, 0, 1, argument)
        if not a.shape or len(source.shape) <= dimension:
            raise CannotCount("odd-shapes")
        *rows, k = a.shape
        sizes = Product(1, prod(rows), source.shape[dimension], k)
        moved = (a.bytes, weight.bytes, a.like((sizes.m, sizes.n)).bytes)
        return _work(kind, sizes, moved, a.type.matrix if a.type else None)


class GroupedProduct(Struct, frozen=True):
    """Products of groups of rows, each with its own matrix.

    By the dimensions of A and B, the FLOPs are: 2D x 3D 2 rows K N (rows of each expert); 2D x 2D
    2 M rows N (the weight gradient); 3D x 2D 2 M K rows; 3D x 3D one product per group.
    """

    out_type: int
    others: tuple[int, ...] = ()
    offsets: int = 2

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if the shapes do not fit."""
        left, right = work.operands(args, 0, 1)
        a, b, ranks = left.shape, right.shape, (len(left.shape), len(right.shape))
        is_stacked = ranks == (3, 3)
        if not {*ranks} <= {2, 3} or a[-1] != b[-2] or (is_stacked and a[0] != b[0]):
            raise CannotCount("odd-shapes")
        k = a[-1] * _packed(left, right)
        sizes = Product(a[0] if is_stacked else 1, a[-2], b[-1], k, layout(left), layout(right))
        matrices: int | None = sizes.batch
        if ranks == (2, 2):  # a matrix is written per group; the offsets have an element per group
            offsets = args.tensor(self.offsets)
            matrices = offsets.elements if offsets is not None else None
        written = None
        if matrices is not None:
            out_type = args.type_at(self.out_type) or left.type
            written = Tensor((matrices, sizes.m, sizes.n), None, out_type).bytes
        moved = [written, *(scale.bytes for scale in args.given(*self.others))]
        if is_stacked:
            moved += [left.bytes, right.bytes]
            return _work(kind, sizes, moved, matrix_type(left, right))
        # Matrices of empty groups are not read; others have at least one column or row each.
        moved += [_used(left, sizes.n), _used(right, sizes.m)]
        done = _work(kind, sizes, moved, matrix_type(left, right))
        return replace(done, notes=(_ROWS_OPEN,))


def fused_experts(kind: Kind, args: Arguments) -> Work:
    """Return the work of tokens (T x K) in experts: weights E x N x K up, E x K x N/2 (or N) down.

    N is twice the width of an expert if its activation is gated. The fifth argument has a row per
    token and a column per expert of a token.
    """
    tokens, up, down, _, chosen = work.operands(args, 0, 1, 2, 3, 4)
    ranks = [len(tensor.shape) for tensor in (tokens, up, down, chosen)]
    if ranks != [2, 3, 3, 2] or not up.elements:
        raise CannotCount("odd-shapes")
    hidden, up_columns, rows = tokens.shape[1], up.shape[1], chosen.elements
    packed, remainder = divmod(hidden, up.shape[2])  # values in one element of the weights
    width = down.shape[2] * packed
    fits = up_columns in (width, 2 * width) and down.shape[:2] == (up.shape[0], hidden)
    if remainder or not fits:
        raise CannotCount("odd-shapes")
    # Up and down have equal FLOPs per column: 2 x rows x hidden.
    sizes = Product(1, rows, up_columns + width, hidden)
    weight = up.type.matrix if up.type and packed == 1 else None
    # With fp8 weights the tokens become fp8, too; else both must have the same type already.
    dtype = weight if weight in ("fp8", matrix_type(tokens, up)) else None
    # The results are as large as the tokens.
    moved = (2 * (tokens.bytes or 0), _used(up, rows), _used(down, rows))
    # With a list that maps experts to devices, or counts tokens, others may compute all rows.
    tensors = args.given(*range(len(args.shapes)))
    may_be_elsewhere = any(tensor.type == INT32 and len(tensor.shape) == 1 for tensor in tensors)
    part = FlopsPart("product", sizes.flops, 0 if may_be_elsewhere else sizes.flops)
    return Work(kind, (part,), work.known_sum(*moved), dtype, sizes, notes=(_ROWS_OPEN,))


def _work(
    kind: Kind, sizes: Product, moved: Iterable[int | None], dtype: str | None, times: int = 1
) -> Work:
    """Return the work of a product with `times` the FLOPs of a real one (4 if complex)."""
    part = FlopsPart.exact("product", sizes.flops * times)
    return Work(kind, (part,), work.known_sum(*moved), dtype, sizes)


def product_of(spelling: Spelling, left: Tensor, right: Tensor) -> Product:
    """Return b, M, N and K of `left @ right`. Raises CannotCount if they do not fit together.

    A vector gets a second dimension; batches broadcast. If only A has a batch, M is all its rows.
    """
    a, b = left.shape, right.shape
    if spelling == "linear":
        b = (*b[:-2], *b[-2:][::-1])
    ranks = (len(a), len(b))
    fits = _RANKS.get(spelling, ranks) == ranks and (spelling != "bmm" or a[0] == b[0])
    if not (fits and a and b):
        raise CannotCount("odd-shapes")
    a = a if len(a) > 1 else (1, *a)
    b = b if len(b) > 1 else (*b, 1)
    batch = () if len(b) == 2 else broadcast(a[:-2], b[:-2])
    if a[-1] != b[-2] or batch is None:
        raise CannotCount("odd-shapes")
    m = prod(a[:-1]) if len(b) == 2 else a[-2]
    right_layout = layout(right)
    if spelling == "linear" and right_layout:
        right_layout = "column" if right_layout == "row" else "row"
    k = a[-1] * _packed(left, right)
    return Product(prod(batch), m, b[-1], k, layout(left), right_layout)


def broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape that shapes broadcast to, None if they are incompatible."""
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    out: list[int] = []
    for sizes in zip(*padded, strict=True):
        other_sizes = set(sizes) - {1}
        if len(other_sizes) > 1:
            return None
        out.append(other_sizes.pop() if other_sizes else 1)
    return tuple(out)


def layout(operand: Tensor) -> Layout | None:
    """Return which of rows and columns of a matrix are contiguous; None if both or neither."""
    if operand.strides is None or len(operand.shape) < 2:
        return None
    (rows, columns), (to_next_row, to_next_column) = operand.shape[-2:], operand.strides[-2:]
    by_row = to_next_column == 1 and to_next_row >= columns
    by_column = to_next_row == 1 and to_next_column >= rows
    if by_row == by_column:
        return None
    return "row" if by_row else "column"


def matrix_type(left: Tensor, right: Tensor) -> str | None:
    """Return the data type of a product, None if the operands' types differ or are unknown."""
    if left.type is None or right.type is None or left.type.matrix != right.type.matrix:
        return None
    return left.type.matrix


def factor(left: Tensor, right: Tensor) -> int:
    """Return the number of real products per multiply-add: 4 for complex operands, else 1."""
    both = left.type and right.type and left.type.complex and right.type.complex
    return 4 if both else 1


def _packed(left: Tensor, right: Tensor) -> int:
    """Return how many values along K each element of the operands holds."""
    names = {operand.type.name for operand in (left, right) if operand.type}
    return 2 if names == {PACKED_FP4} else 1


def _used(operand: Tensor, rows: int) -> int | None:
    """Return the bytes read of an operand; of a stack of matrices, at most one per row is read."""
    if len(operand.shape) != 3 or rows >= operand.shape[0]:
        return operand.bytes
    return operand.like((rows, *operand.shape[1:])).bytes
