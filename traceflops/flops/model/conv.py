"""Convolutions: their sizes, weights and FLOPs; two FLOPs per weight and output position."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from traceflops.flops.model.blocks import positive, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """`count` convolutions alike, each of one sample; sizes are per spatial dimension.

    `stem` says that it reads the data itself: no input gradient is needed, and block checkpointing
    does not recompute it. `norm` adds a batch norm's two vectors to the parameters.
    """

    name: str
    channels: tuple[int, int]
    input: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    count: int = 1
    bias: bool = False
    norm: bool = False
    stem: bool = False

    def __post_init__(self) -> None:
        positive(self, "groups", "count")
        require(
            all(channels % self.groups == 0 for channels in self.channels),
            f"convolution {self.name!r}: {self.groups} groups do not divide {self.channels}",
            "groups must divide both input and output channels",
        )
        require(
            all(size >= 1 for size in (*self.output, *self.input)),
            f"convolution {self.name!r} has no output for input {self.input}",
            "check input, kernel, stride and padding",
        )

    @property
    def output(self) -> tuple[int, ...]:
        """Return the spatial size of the result."""
        extra = self.output_padding or (0,) * len(self.input)
        return tuple(
            (size - 1) * stride - 2 * pad + dil * (kernel - 1) + add + 1
            if self.transposed
            else (size + 2 * pad - dil * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, pad, dil, add in zip(
                self.input,
                self.kernel,
                self.stride,
                self.padding,
                self.dilation,
                extra,
                strict=True,
            )
        )

    @property
    def weights(self) -> int:
        """Return the weights of one: every output (input, transposed) sees its group's channels."""
        inside, outside = self.channels
        return inside * outside // self.groups * prod(self.kernel)

    @property
    def flops(self) -> int:
        """Return the forward FLOPs of all of them for one sample: two per weight and position."""
        positions = self.input if self.transposed else self.output
        return 2 * self.count * self.weights * prod(positions)

    @property
    def stored(self) -> int:
        """Return the parameters of all of them."""
        return self.count * (self.weights + self.channels[1] * (self.bias + 2 * self.norm))
