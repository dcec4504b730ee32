"""What a model does where nothing is fused: several kernels for attention, GELU and the optimizer.

Also layers computed again in the backward pass, and copies into another layout or type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from sample_traces.gpt import Gradient, Model, contiguous, scalar
from sample_traces.kernels import Kernels
from sample_traces.program import Block, Node, kernel, op, python
from sample_traces.records import Argument

_GELU: Final = ("pow", "mul", "add", "mul", "tanh", "add", "mul", "mul")
_BACK: Final = {"pow": ("pow", "mul"), "tanh": ("tanh_backward",)}
"""Operators of gradients, where they are not the same as forth."""
_UPDATE: Final = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")
_LAST_OF_LAYER: Final = "AddBackward0"


class EagerModel(Model):
    """A model whose config says what of it is not fused."""

    __slots__ = ("_again",)

    def forward(self) -> Block:
        """Return the forward pass; fills the tape."""
        self._again: dict[int, Block] = {}
        return super().forward()

    def again(self, gradient: Gradient) -> tuple[Block, ...]:
        """Return a piece of the backward pass, with what it computes again before."""
        layer = self._again.get(id(gradient))
        if layer is None:
            return (gradient.block,)
        frames = python(
            "torch/utils/checkpoint.py(1104): unpack_hook",
            python("torch/utils/checkpoint.py(1083): recompute_fn", layer),
        )
        (inner,) = gradient.block.children
        assert isinstance(inner, Block)
        inner = replace(inner, children=(frames, *inner.children))
        return (replace(gradient.block, children=(inner,)),)

    def _layer(self, index: int) -> Block:
        layer = super()._layer(index)
        if "checkpoint" in self.config.eager:
            first, kept = self.tape[-1], list(self.tape)
            self._again[id(first)] = super()._layer(index)
            self.tape[:] = kept  # what is computed again has no gradients of its own
        return layer

    def _linear(self, name: str, fan_in: int, fan_out: int) -> Block:
        linear = super()._linear(name, fan_in, fan_out)
        if "casts" not in self.config.eager:
            return linear
        return replace(linear, children=(*self._cast(fan_in * fan_out), *linear.children))

    def _cast(self, elements: int) -> Iterator[Block]:
        """Yield the conversion of a weight that is kept in FP32, on the tape that of its gradient.

        As an autocast without a cache does, in each forward pass.
        """
        own, kept = self._tensor(elements), contiguous((elements,), "float")

        def copy(to: Argument, of: Argument) -> Block:
            work = kernel(self.kernels.cast(elements))
            return op("aten::_to_copy", op("aten::copy_", work, inputs=(to, of)), inputs=(of,))

        made = self._differentiable(copy(own, kept), "ToCopyBackward0", copy(kept, own))
        yield op("aten::to", made, inputs=(kept,))

    def _attention(self) -> Block:
        is_fused = "attention" not in self.config.eager
        if "layout" not in self.config.eager:
            return super()._attention() if is_fused else self._products()
        before = self._copies(6)
        inner = super()._attention() if is_fused else self._products()
        return python("attention.py(40): forward", *before, inner, *self._copies(2))

    def _copies(self, count: int) -> tuple[Block, ...]:
        """Return copies into another layout, and on the tape as many back."""
        shape = self._tensor(*self.activation)

        def copy() -> Block:
            work = kernel(self.kernels.layout_copy(self._elements))
            return op(
                "aten::clone", op("aten::copy_", work, inputs=(shape, shape)), inputs=(shape,)
            )

        made = (self._differentiable(copy(), "CloneBackward0", copy()) for _ in range(count))
        return tuple(op("aten::contiguous", one, inputs=(shape,)) for one in made)

    def _products(self) -> Block:
        """Return attention as products of matrices around a softmax."""
        config = self.config
        count, length, size = config.batch * config.heads, config.sequence, config.head_size
        rows, scores = self._tensor(count, length, size), self._tensor(count, length, length)
        columns, elements = self._tensor(count, size, length), count * length * length
        return python(
            "attention.py(52): scores",
            self._bmm(rows, columns),
            self._pointwise("mul", scores, elements),
            op("aten::softmax", self._softmax(scores, elements), inputs=(scores, scalar("-1"))),
            self._bmm(scores, rows),
        )

    def _bmm(self, left: Argument, right: Argument) -> Block:
        (count, m, k), n = left.shape, right.shape[2]

        def product(m: int, n: int, k: int) -> Block:
            inputs = self._tensor(count, m, k), self._tensor(count, k, n)
            work = self.kernels.gemm(m, n, k, "NN", count=count)
            return op("aten::bmm", kernel(work), inputs=inputs)

        back = product(m, k, n), product(k, n, m)
        return self._differentiable(product(m, n, k), "BmmBackward0", *back)

    def _softmax(self, scores: Argument, elements: int) -> Block:
        forward, back = (self.kernels.softmax(elements, backward=one) for one in (False, True))
        flags = scalar("-1"), scalar("False")
        return self._differentiable(
            op("aten::_softmax", kernel(forward), inputs=(scores, *flags)),
            "SoftmaxBackward0",
            op("aten::_softmax_backward_data", kernel(back), inputs=(scores, scores, *flags)),
            saved_bytes=elements * self.config.element_bytes,
        )

    def _pointwise(self, name: str, shape: Argument, elements: int) -> Block:
        def one(name: str) -> Block:
            work = self.kernels.pointwise(name, elements)
            return op(f"aten::{name}", kernel(work), inputs=(shape,))

        back = f"{name.capitalize()}Backward0"
        return self._differentiable(one(name), back, *map(one, _BACK.get(name, (name,))))

    def _gelu(self) -> Block:
        if "gelu" not in self.config.eager:
            return super()._gelu()
        wide = 4 * self._elements
        shape = self._tensor(self.config.batch, self.config.sequence, 4 * self.config.hidden)
        ops = (self._pointwise(name, shape, wide) for name in _GELU)
        return python("activations.py(17): gelu", *ops)


def optimizer_loop(kernels: Kernels, tensors: Sequence[Argument]) -> Iterator[Node]:
    """Yield the operators of AdamW for one tensor after the other."""
    for tensor in tensors:
        for name in _UPDATE:
            work = kernel(kernels.pointwise(name.rstrip("_"), tensor.shape[0]))
            yield op(f"aten::{name}", work, inputs=(tensor, tensor))
