"""What one op computes and moves: FLOPs by named part, bytes, and the sizes of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from msgspec import Struct

from traceflops.flops.ops.arguments import Arguments, Shape, Tensor

MatrixKind = Literal[
    "gemm", "grouped_gemm", "convolution", "convolution_backward", "attention", "attention_backward"
]
"""The kinds that do matrix work; all others have vector work at most."""
VectorKind = Literal[
    "softmax", "norm", "elementwise", "reduction", "gather", "optimizer", "copy", "view"
]
Kind = MatrixKind | VectorKind
Role = Literal["op", "wrapper"]  # a wrapper counts only where no modelled op below it does
PartName = Literal[
    "product", "forward", "input_grad", "weight_grad", "backward", "algorithmic", "mask"
]
"""
product      one GEMM; its position in the trace tells whether it is of the forward or a gradient
forward      of a convolution or an attention core
input_grad, weight_grad    of a convolution
backward     the four products of an attention core's gradient
algorithmic  scores that a fused attention backward computes again
mask         products on pairs that the mask hides, which an unfused attention computes
"""
Reason = Literal[
    "not-modelled", "no-shapes", "odd-shapes", "no-values", "not-in-trace", "children", "too-large"
]
"""
not-modelled  no row of the table
no-shapes     the profiler did not record the shapes that are needed
odd-shapes    the shapes do not fit the op, or cannot be read
no-values     the profiler did not record the values (stride, padding) that are needed
not-in-trace  no profiler records what is needed, such as cached lengths of paged attention
children      a wrapper: the ops below it are counted instead
too-large     beyond 2^63 - 1
"""
NoteCode = Literal[
    "variable-lengths",
    "mask-not-recorded",
    "mask-tensor",
    "output-mask-not-recorded",
    "rows-of-groups-not-recorded",
    "output-from-gradient",
    "list-types-not-recorded",
]
Layout = Literal["row", "column"]


class FlopsPart(Struct, frozen=True):
    """FLOPs of one part: `flops` is the most, `at_least` the least; equal if known exactly."""

    name: PartName
    flops: int
    at_least: int

    @classmethod
    def exact(cls, name: PartName, flops: int) -> FlopsPart:
        """Return a part of exactly so many FLOPs."""
        return cls(name, flops, flops)


class Product(Struct, frozen=True):
    """The sizes of a GEMM: `batch` products M x K times K x N, and the layouts of the operands.

    The layout `column` is that of a transposed operand (such as a weight, stored as output x
    input); None if strides are not recorded or fit both layouts.
    """

    batch: int
    m: int
    n: int
    k: int
    left: Layout | None = None
    right: Layout | None = None

    @property
    def flops(self) -> int:
        """Return 2 b M N K: a multiply and an add each."""
        return 2 * self.batch * self.m * self.n * self.k


class Correlation(Struct, frozen=True):
    """The sizes of a convolution; `groups` is 0 if they are not known.

    `weight` is as stored: [out, in/groups, kernel...], or transposed [in, out/groups, kernel...].
    """

    batch: int
    input: Shape
    output: Shape
    weight: Shape
    groups: int
    transposed: bool


class Core(Struct, frozen=True):
    """The sizes of an attention core.

    `pairs` are (query, key) pairs per head, summed over the batch; `heads` are query heads.
    `queries` and `keys` are lengths, or totals of `documents` packed sequences if that is given.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d_qk: int
    d_v: int
    pairs: int
    pairs_at_least: int
    causal: bool | None
    documents: int | None = None

    def forward(self, pairs: int) -> int:
        """Return the FLOPs of scores and output for a number of pairs: 2 pairs H (d_qk + d_v)."""
        return 2 * pairs * self.heads * (self.d_qk + self.d_v)

    def scores(self, pairs: int) -> int:
        """Return the FLOPs of the scores alone: 2 pairs H d_qk."""
        return 2 * pairs * self.heads * self.d_qk


Signature = Product | Correlation | Core


class Work(Struct, frozen=True):
    """What an op computes, and the least bytes that it moves.

    `parts` are its matrix FLOPs, empty if it multiplies no matrices. `vector_flops` are other
    operations, which enter no utilisation, None if not counted. `min_bytes` is None if a type is
    not recorded. `dtype` is the data type of the matrix product, None if unknown.
    """

    kind: Kind
    parts: tuple[FlopsPart, ...] = ()
    min_bytes: int | None = None
    dtype: str | None = None
    signature: Signature | None = None
    vector_flops: int | None = None
    notes: tuple[NoteCode, ...] = ()

    @property
    def flops(self) -> int:
        """Return the matrix FLOPs of all parts; an upper bound where they are not exact."""
        return sum(part.flops for part in self.parts)

    @property
    def at_least(self) -> int:
        """Return the least the matrix FLOPs can be; equal to `flops` where they are exact."""
        return sum(part.at_least for part in self.parts)

    @property
    def exact(self) -> bool:
        """Return whether the FLOPs are known exactly."""
        return self.flops == self.at_least


class Unknown(Struct, frozen=True):
    """The work of an op is not known, and why."""

    reason: Reason


class CannotCount(Exception):
    """Raised by a formula that cannot compute the work of an op; carries the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


Result = Work | Unknown
Formula = Callable[[Kind, Arguments], Work]
"""A function that returns the work of a call of an op of a kind, or raises CannotCount."""


class Rule(Struct, frozen=True):
    """One row of the table: the kind of an op, its formula, and whether it is a wrapper."""

    kind: Kind
    formula: Formula
    role: Role = "op"

    @property
    def matrix(self) -> bool:
        """Return whether the op does matrix work."""
        return self.kind in get_args(MatrixKind)


class NeverCounted(Struct, frozen=True):
    """The formula of ops whose arguments never tell their work, for one reason."""

    reason: Reason

    def __call__(self, _kind: Kind, _args: Arguments) -> Work:
        """Raise the reason."""
        raise CannotCount(self.reason)


def operands(args: Arguments, *positions: int) -> list[Tensor]:
    """Return the tensors at these positions. Raises CannotCount if one has no shape."""
    tensors = args.given(*positions)
    if len(tensors) < len(positions):
        raise CannotCount("no-shapes")
    return tensors


def known_sum(*counts: int | None) -> int | None:
    """Return the sum, None if any is not known."""
    given = [count for count in counts if count is not None]
    return sum(given) if len(given) == len(counts) else None
