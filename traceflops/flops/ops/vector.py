"""Ops that multiply no matrices: the bytes they move, and their operations per element.

Each of + - * / max min, a comparison and a function such as exp is one operation; these enter no
utilisation. Every operand and result is moved once: the least, unless a cache has the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Literal

from msgspec import Struct

from traceflops.flops.ops.arguments import BOOL, FLOAT, Arguments, ElementType, Tensor, promoted
from traceflops.flops.ops.gemm import broadcast
from traceflops.flops.ops.work import CannotCount, Kind, Work, known_sum, operands

_OPTIMIZER_ELEMENT_BYTES = 2  # the smallest type that torch's fused optimizers take is of two bytes


def view(kind: Kind, _args: Arguments) -> Work:
    """Return work of no bytes: the op allocates, or returns another view of the same memory."""
    return Work(kind, min_bytes=0, vector_flops=0)


class Elementwise(Struct, frozen=True):
    """Operands that broadcast; `per_element` operations per element of the result.

    The type of the result is that of the promoted operands, or bool. If `in_place`, the first
    operand is the result; `reads_first` is whether it is also read.
    """

    per_element: int
    operands: tuple[int, ...] = (0, 1)
    result: Literal["promoted", "bool"] = "promoted"
    in_place: bool = False
    reads_first: bool = True

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if no operand has a shape."""
        tensors = args.given(*self.operands)
        if not tensors or (self.in_place and args.tensor(self.operands[0]) is None):
            raise CannotCount("no-shapes")
        shapes = (tensor.shape for tensor in tensors)
        shape = tensors[0].shape if self.in_place else broadcast(*shapes)
        if shape is None:
            raise CannotCount("odd-shapes")
        read = tensors if self.reads_first else tensors[1:]
        # The result has the promoted type of all operands, unknown if one of theirs is.
        types = [tensor.type for tensor in tensors if tensor.type is not None]
        result = promoted(types) if len(types) == len(tensors) else None
        # Scalars (without dimensions) promote the others only to a higher rank: integers to float.
        shaped = promoted([tensor.type for tensor in tensors if tensor.shape and tensor.type])
        if shaped and result and shaped.rank == result.rank:
            result = shaped
        if self.result == "bool":
            result = BOOL
        written = tensors[0] if self.in_place else Tensor(shape, None, result)
        return _moved(kind, (written, *read), self.per_element * prod(shape))


class Pass(Struct, frozen=True):
    """An op on whole tensors: reads those at `reads`, writes a tensor like each of `writes`.

    `per_element` is per element of the first tensor read. `mask` is the position of flags, one for
    each of `writes`: whether it is computed. `statistics` returns the number of further values
    written, in the type of the first. Results are float if `widened`, else of type `out_type`.
    """

    per_element: int
    reads: tuple[int, ...] = (0,)
    writes: tuple[int, ...] = (0,)
    mask: int | None = None
    statistics: Callable[[Arguments], int] | None = None
    out_type: int | None = None
    widened: int | None = None

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if the first tensor has no shape."""
        (first,) = operands(args, self.reads[0])
        extra = self.statistics(args) if self.statistics else 0
        # One flag per result: whether it is computed. Flags that are not recorded count as set.
        flags = args.value(self.mask)
        flags = flags if isinstance(flags, tuple) else (True,) * len(self.writes)
        flagged = zip(self.writes, flags, strict=False)
        outs = args.given(*(position for position, flag in flagged if flag is not False))
        out_type = FLOAT if args.boolean(self.widened) else args.type_at(self.out_type)
        written = [Tensor(out.shape, None, out_type or out.type) for out in outs]
        moved = (*args.given(*self.reads), *written, first.like((extra,)))
        return _moved(kind, moved, self.per_element * first.elements)


def rotary(kind: Kind, args: Arguments) -> Work:
    """Return the work of rotating query and key in place, at positions, by a table of angles."""
    positions, _, table = operands(args, 0, 1, 4)
    head_size, rotated = args.integer(3), args.given(1, 2)
    if not head_size:
        raise CannotCount("no-values")
    if len(table.shape) != 2:
        raise CannotCount("odd-shapes")
    rows = table.like((min(positions.elements, table.shape[0]), table.shape[1]))
    # The table may be for a part of a head. Two elements need four products and two sums.
    elements = sum(tensor.elements for tensor in rotated) * table.shape[1] // head_size
    return _moved(kind, (positions, rows, *rotated, *rotated), 3 * elements)  # read and written


def into_cache(kind: Kind, args: Arguments) -> Work:
    """Return the work of writing keys and values into slots of their caches."""
    key, value, *caches, slots = operands(args, 0, 1, 2, 3, 4)
    # Each row has a slot; padding may make either list longer, and the excess is not moved.
    rows = [t.like((min(slots.elements, t.shape[0]), *t.shape[1:])) for t in (key, value)]
    written = (cache.like(tensor.shape) for cache, tensor in zip(caches, rows, strict=True))
    return _moved(kind, (slots, *rows, *written), 0)


class Reduction(Struct, frozen=True):
    """One tensor reduced to `results` tensors, along the dimensions at `over` or all."""

    per_element: int
    over: int = 1
    results: int = 1
    result: ElementType | None = None

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if the tensor has no shape."""
        (tensor,) = operands(args, 0)
        # All dimensions are reduced if none are named, as in sum(tensor, dtype): two arguments.
        dims = args.value(self.over) if len(args.values) > 2 else None
        if type(dims) is int:
            dims = (dims,)
        elements = 1  # of one result
        if isinstance(dims, tuple) and dims and tensor.shape:
            reduced = {dim % len(tensor.shape) for dim in dims if type(dim) is int}
            elements = prod(size for dim, size in enumerate(tensor.shape) if dim not in reduced)
        written = Tensor((self.results * elements,), None, self.result or tensor.type)
        return _moved(kind, (tensor, written), self.per_element * tensor.elements)


def lookup(kind: Kind, args: Arguments) -> Work:
    """Return the work of copying rows of a table; each row is read at most once."""
    table, indices = operands(args, 0, 1)
    if len(table.shape) != 2:
        raise CannotCount("odd-shapes")
    rows, width = table.shape
    copied = table.like((indices.elements + min(indices.elements, rows), width))
    return _moved(kind, (copied, indices), 0)


def lookup_backward(kind: Kind, args: Arguments) -> Work:
    """Return the work of a lookup's gradient: its rows are added to those of the table's gradient.

    The third argument is the number of rows of the table. Another op fills the result with zeros.
    """
    gradient, indices = operands(args, 0, 1)
    if not gradient.shape:
        raise CannotCount("odd-shapes")
    rows = args.integer(2)
    # A row counts once; none does if their number is unknown: bytes are a lower bound.
    touched = 0 if rows is None else min(indices.elements, max(rows, 0))
    added = gradient.like((touched, gradient.shape[-1]))
    return _moved(kind, (gradient, indices, added), gradient.elements)


def selection(kind: Kind, args: Arguments) -> Work:
    """Return the work of copying slices of a tensor along a dimension, chosen by indices."""
    tensor, index = operands(args, 0, 2)
    along = args.integer(1)
    if along is None:
        raise CannotCount("no-values")
    if not -len(tensor.shape) <= along < len(tensor.shape):
        raise CannotCount("odd-shapes")
    sizes = list(tensor.shape)
    # A slice that is chosen several times is read once.
    slices = min(index.elements, sizes.pop(along)) + index.elements
    return _moved(kind, (tensor.like((slices, *sizes)), index), 0)


class OptimizerStep(Struct, frozen=True):
    """A fused optimizer: lists that are read and written (`updated`), and lists only read.

    fp32 Adam reads and writes a parameter and two averages, and reads the gradient: 28 bytes.
    """

    per_element: int
    updated: tuple[int, ...]
    reads: tuple[int, ...]

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if the shapes of lists are not recorded."""
        flops = self.per_element * _elements(args, self.updated[0], needed=True)
        # What is updated is read and written.
        moved = (*self.updated, *self.updated, *self.reads)
        elements = sum(_elements(args, position) for position in moved)
        least = _OPTIMIZER_ELEMENT_BYTES * elements
        return Work(kind, min_bytes=least, vector_flops=flops, notes=("list-types-not-recorded",))


class EachOfList(Struct, frozen=True):
    """The same op on every tensor of a list; bytes are unknown, as types are not recorded."""

    per_element: int

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if the shapes of lists are not recorded."""
        return Work(kind, vector_flops=self.per_element * _elements(args, 0, needed=True))


def rows_of_layer_norm(args: Arguments) -> int:
    """Return the number of values of a statistic of a layer norm, one per row; 0 if unknown."""
    tensor, inner = args.tensor(0), args.value(1)
    sizes = [size for size in inner if type(size) is int] if isinstance(inner, tuple) else []
    width = prod(sizes)
    return tensor.elements // width if tensor and sizes and width > 0 else 0


def two_per_channel(args: Arguments) -> int:
    """Return the number of values of a batch norm's mean and deviation; 0 if it does not train."""
    tensor, trains = args.tensor(0), args.boolean(5)
    return 2 * tensor.shape[1] if trains and tensor and len(tensor.shape) > 1 else 0


def two_per_group(args: Arguments) -> int:
    """Return the number of values of a group norm's mean and deviation, per sample and group."""
    samples, groups = args.integer(3), args.integer(6)
    return 2 * max(0, samples or 0) * max(0, groups or 0)


def _moved(kind: Kind, tensors: Iterable[Tensor], flops: int) -> Work:
    """Return the work of moving each of some tensors once."""
    moved = known_sum(*(tensor.bytes for tensor in tensors))
    return Work(kind, min_bytes=moved, vector_flops=flops)


def _elements(args: Arguments, position: int, *, needed: bool = False) -> int:
    """Return the elements of a list of tensors; without shapes 0, or CannotCount if `needed`."""
    tensors = args.tensors(position)
    if tensors is None and needed:
        raise CannotCount("no-shapes")
    return sum(tensor.elements for tensor in tensors or ())
