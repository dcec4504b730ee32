"""Convolutions: 2 N prod(out) Cout (Cin/groups) prod(kernel) FLOPs, and the same per gradient.

A transposed convolution visits every point of its input instead of its output; its weight is stored
as [Cin, Cout/groups, kernel...], so that both are

    2 * N * prod(visited points) * prod(weight)

and each gradient costs as much as the forward, whatever the groups.
"""

from __future__ import annotations

from math import prod

from msgspec import Struct
from msgspec.structs import replace

from traceflops.flops.ops import work
from traceflops.flops.ops.arguments import Arguments, Shape, Tensor
from traceflops.flops.ops.gemm import factor, matrix_type
from traceflops.flops.ops.work import CannotCount, Correlation, FlopsPart, Kind, Work, known_sum

Requested = tuple[bool, bool]  # whether the gradients of the input and of the weight are computed


class Convolution(Struct, frozen=True):
    """A forward convolution, by the positions of its arguments in the schema.

    `transposed` is the position of a flag, or the flag itself. An argument whose position is None
    has its default: dilation 1, output padding 0; groups by the channels, or 1 if transposed.
    """

    stride: int
    padding: int
    dilation: int | None
    groups: int | None
    transposed: int | bool = False
    output_padding: int | None = None
    bias: int | None = 2

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if the size of the output cannot be known."""
        x, w = work.operands(args, 0, 1)
        x = _batched(x, w)
        transposed = _flag(args, self.transposed)
        # Transposed ops without this argument have 1 group; for others the shapes tell them.
        groups = 1 if self.groups is None and transposed else args.integer(self.groups)
        # If `transposed` is not recorded, the shapes may fit both kinds of convolution.
        readings = _readings(x, w, transposed, groups)
        if len(readings) != 1:
            raise CannotCount("no-values" if readings else "odd-shapes")
        (sizes,) = readings
        output, is_recorded = self._output(args, w, sizes)
        if output is None or min(output) < 0:
            raise CannotCount("odd-shapes")
        sizes = replace(sizes, output=output)
        y, bias = None, args.tensor(self.bias)
        if sizes.groups or not sizes.transposed:  # else the channels of the output are unknown
            channels = w.shape[1] * sizes.groups if sizes.transposed else w.shape[0]
            y = x.like((sizes.batch, channels, *output)).bytes
        part = FlopsPart.exact("forward", flops(sizes) * factor(x, w))
        moved = known_sum(x.bytes, w.bytes, y, 0 if bias is None else bias.bytes)
        notes: tuple[work.NoteCode, ...] = () if is_recorded else ("output-from-gradient",)
        return Work(kind, (part,), moved, matrix_type(x, w), sizes, notes=notes)

    def _output(self, args: Arguments, w: Tensor, sizes: Correlation) -> tuple[Shape | None, bool]:
        """Return the spatial size of the output (or None), and whether recorded values tell it."""

        def steps_at(position: int | None, default: int) -> tuple[int, ...] | None:
            """Return the number per dimension of an argument, None if it is not recorded."""
            spatial = len(sizes.input)
            return (default,) * spatial if position is None else args.integers(position, spatial)

        stride, padding = steps_at(self.stride, 1), steps_at(self.padding, 0)
        dilation, extra = steps_at(self.dilation, 1), steps_at(self.output_padding, 0)
        if stride and padding is not None and dilation and extra is not None:
            if min(*stride, *dilation) < 1:  # impossible in PyTorch: the values were misread
                return None, True
            steps = (w.shape[2:], stride, padding, dilation, extra)
            return output_size(sizes.input, *steps, transposed=sizes.transposed), True
        if args.output is None:
            raise CannotCount("no-values")
        fits = len(args.output) == len(w.shape) and args.output[0] == sizes.batch
        return args.output[2:] if fits else None, False


class ConvolutionBackward(Struct, frozen=True):
    """The gradients of a convolution; the flags at `mask` request those of input, weight, bias."""

    gradient: int = 0
    input: int = 1
    weight: int = 2
    transposed: int | bool = 7
    groups: int | None = 9
    mask: int = 10

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if the three shapes do not fit together."""
        mask, requested = args.value(self.mask), None
        if isinstance(mask, tuple) and len(mask) >= 2:
            wants_input, wants_weight = mask[:2]
            if isinstance(wants_input, bool) and isinstance(wants_weight, bool):
                requested = wants_input, wants_weight
        return self.gradients(kind, args, requested)

    def gradients(self, kind: Kind, args: Arguments, requested: Requested | None) -> Work:
        """Return the work of the requested gradients; between none and both if unknown (None)."""
        dy, x, w = work.operands(args, self.gradient, self.input, self.weight)
        dy, x = _batched(dy, w), _batched(x, w)
        transposed = _flag(args, self.transposed)
        # The backward of a convolution is like the forward of a transposed one, and vice versa. So
        # read x with w, and dy with w as the opposite: either may decide which of both it is.
        count = args.integer(self.groups)
        by_input = _readings(x, w, transposed, count)
        by_gradient = _readings(dy, w, None if transposed is None else not transposed, count)
        if not by_input or not by_gradient or dy.shape[0] != x.shape[0]:
            raise CannotCount("odd-shapes")
        is_transposed, groups = set[bool](), 0
        for readings, is_opposite in ((by_input, False), (by_gradient, True)):
            if len(readings) == 1:
                is_transposed.add(readings[0].transposed != is_opposite)
                groups = max(groups, readings[0].groups)  # 0 if this reading does not tell them
        if len(is_transposed) != 1:
            raise CannotCount("odd-shapes" if is_transposed else "no-values")
        batch, inputs, outputs = x.shape[0], x.shape[2:], dy.shape[2:]
        geometry = Correlation(batch, inputs, outputs, w.shape, groups, is_transposed.pop())
        per_gradient = flops(geometry) * factor(x, w)
        moved = None
        if requested:  # dy and w read, dx written; dy and x read, dw written
            dx, dw = x.like(x.shape), w.like(w.shape)
            of_input = (w.bytes, dx.bytes) if requested[0] else ()
            of_weight = (x.bytes, dw.bytes) if requested[1] else ()
            moved = known_sum(dy.bytes, *of_input, *of_weight)
        names: tuple[work.PartName, work.PartName] = ("input_grad", "weight_grad")
        flags = zip(names, requested or (True, True), strict=True)
        computed = [name for name, is_computed in flags if is_computed]
        least = per_gradient if requested else 0
        parts = tuple(FlopsPart(name, per_gradient, least) for name in computed)
        notes: tuple[work.NoteCode, ...] = () if requested else ("output-mask-not-recorded",)
        return Work(kind, parts, moved, matrix_type(x, w), geometry, notes=notes)


class OneGradient(Struct, frozen=True):
    """One gradient, of the input or the weight, by the shapes of the op around it (`whole`)."""

    whole: ConvolutionBackward
    input: bool

    def __call__(self, kind: Kind, args: Arguments) -> Work:
        """Return the work. Raises CannotCount if the op around is not recorded."""
        if args.enclosing is None:
            raise CannotCount("no-shapes")
        return self.whole.gradients(kind, args.enclosing, (self.input, not self.input))


def flops(geometry: Correlation) -> int:
    """Return the FLOPs of the forward; each gradient has as many."""
    visited = geometry.input if geometry.transposed else geometry.output
    return 2 * geometry.batch * prod(visited) * prod(geometry.weight)


def output_size(input: Shape, *steps: Shape, transposed: bool) -> Shape:
    """Return the spatial size of the output, one number per dimension; below 0 if there is none.

    `steps` are kernel, stride, padding p, dilation and output padding, per dimension.

    forward     floor((in + 2 p - dilation (k - 1) - 1) / stride) + 1
    transposed  (in - 1) stride - 2 p + dilation (k - 1) + output padding + 1
    """
    sizes = zip(input, *steps, strict=True)
    if transposed:
        return tuple((n - 1) * s - 2 * p + d * (k - 1) + more + 1 for n, k, s, p, d, more in sizes)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes)


def _batched(x: Tensor, w: Tensor) -> Tensor:
    """Return a tensor with a batch dimension, which a single sample may lack."""
    if len(x.shape) != len(w.shape) - 1:
        return x
    return Tensor((1, *x.shape), (0, *x.strides) if x.strides else None, x.type)


def _flag(args: Arguments, flag: int | bool) -> bool | None:
    return flag if isinstance(flag, bool) else args.boolean(flag)


def _readings(
    x: Tensor, w: Tensor, transposed: bool | None, groups: int | None
) -> list[Correlation]:
    """Return the readings of the shapes that fit: as a convolution and as a transposed one."""
    if len(w.shape) < 3 or len(x.shape) != len(w.shape):
        return []
    readings = []
    for flag in (False, True) if transposed is None else (transposed,):
        count = _groups(x.shape[1], w.shape, flag, groups)
        if count is not None:
            readings.append(Correlation(x.shape[0], x.shape[2:], (), w.shape, count, flag))
    return readings


def _groups(channels: int, weight: Shape, transposed: bool, groups: int | None) -> int | None:
    """Return the groups, 0 if they are not known; None if the channels do not fit."""
    if transposed:
        fits = channels == weight[0] and (groups is None or (groups > 0 and channels % groups == 0))
        return (groups or 0) if fits else None  # the shapes do not tell the groups
    if groups is None:
        groups = channels // weight[1] if weight[1] else 1
    fits = groups > 0 and channels == weight[1] * groups and weight[0] % groups == 0
    return groups if fits else None
