"""The parts of models: masks, weight matrices, attention, feed-forward, experts, convolutions.

Forward FLOPs are 2 per weight and token of a matrix, 2 per weight and output position of a
convolution, and 2 * pairs * heads * (score_dim + value_dim) of attention, where pairs are the
attended (query, key) pairs of one head. See docs/definitions.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import prod
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.flops.ops.attention import Band
from traceflops.flops.ops.convolution import output_size

MaskKind = Literal["causal", "full", "window", "chunk"]
Reads = Literal["token", "sequence", "patch", "memory"]
"""How often a matrix is used: per token, once per sequence, per image patch, per encoder token."""
ROUTING = ("router", "shared_router")  # names of the matrices that choose and weigh experts


class Mask(Struct, frozen=True):
    """Which keys a query attends to; `size` is the window (own token included) or the chunk."""

    kind: MaskKind = "causal"
    size: int = 0

    def pairs(self, queries: int, cached: int = 0) -> int:
        """Return the attended pairs of one head: `queries` tokens after `cached` earlier ones."""
        # `Band(right=0)` is causal: no key to the right of the query.
        if self.kind == "chunk":  # the pairs of all tokens less those of the cached ones
            per_chunk = Band(right=0).pairs(self.size, self.size)
            before, after = (
                chunks * per_chunk + Band(right=0).pairs(left_over, left_over)
                for chunks, left_over in (divmod(n, self.size) for n in (cached, cached + queries))
            )
            return after - before
        left = self.size - 1 if self.kind == "window" else None
        band = Band(left, None if self.kind == "full" else 0, bottom_right=True)
        return band.pairs(queries, cached + queries)


def require(holds: bool, problem: str, hint: str) -> None:
    """Raise a UsageError unless a condition holds."""
    if not holds:
        raise UsageError(problem, hint)


CAUSAL = Mask()


class Linear(Struct, frozen=True):
    """A weight matrix, or `copies` matrices of equal size of which a token uses `used`.

    `copies` is 0 for weights stored elsewhere (a tied head). `group` is the ledger's sub-name.
    """

    name: str
    inputs: int
    outputs: int
    group: str
    copies: int = 1
    used: int = 1
    bias: bool = False
    reads: Reads = "token"

    @property
    def active(self) -> int:
        """Return the weights one token is multiplied with."""
        return self.used * self.inputs * self.outputs

    @property
    def stored(self) -> int:
        """Return the parameters, biases included."""
        return self.copies * self.outputs * (self.inputs + self.bias)


class Core(Struct, frozen=True):
    """The products of queries with keys and of scores with values, for all heads of one layer."""

    heads: int
    score_dim: int
    value_dim: int
    mask: Mask
    cross: bool = False

    def flops(self, twice_pairs: int) -> int:
        """Return the forward FLOPs for twice the pairs of one head (so that T/2 stays whole)."""
        return twice_pairs * self.heads * (self.score_dim + self.value_dim)

    def scores(self, twice_pairs: int) -> int:
        """Return the FLOPs of the scores alone, which flash kernels compute again backward."""
        return twice_pairs * self.heads * self.score_dim


class Attention(Struct, frozen=True, kw_only=True):
    """Multi-head, grouped-query (kv_heads < heads) or multi-query (kv_heads = 1) attention.

    `heads * head_dim` need not be the hidden width. `vectors` are parameters outside matrices:
    norms of queries and keys, sinks, relative positions.
    """

    heads: int
    kv_heads: int
    head_dim: int
    mask: Mask = CAUSAL
    qkv_bias: bool = False
    out_bias: bool = False
    vectors: int = 0
    cross: bool = False

    def __post_init__(self) -> None:
        """Refuse heads that do not share the key heads evenly."""
        problem = f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads"
        hint = "kv_heads must divide heads (1 for multi-query, heads for multi-head attention)"
        require(self.heads % self.kv_heads == 0, problem, hint)

    def linears(self, hidden: int, memory: int) -> Iterator[Linear]:
        """Yield the projections; keys and values of cross-attention read the encoder."""
        group = "cross" if self.cross else "attention"
        reads: Reads = "memory" if self.cross else "token"
        source = memory if self.cross else hidden
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield Linear("q", hidden, width, group, bias=self.qkv_bias)
        for name in ("k", "v"):
            yield Linear(name, source, kv_width, group, bias=self.qkv_bias, reads=reads)
        yield Linear("o", width, hidden, group, bias=self.out_bias)

    @property
    def core(self) -> Core:
        """Return the attention core."""
        return Core(self.heads, self.head_dim, self.head_dim, self.mask, self.cross)


class LatentAttention(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (MLA) as trained; without `q_rank` queries are projected once."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    mask: Mask = CAUSAL
    bias: bool = False

    def linears(self, hidden: int, memory: int) -> Iterator[Linear]:
        """Yield the projections down to the ranks, up to the heads, and out.

        Projections down and out have biases. The rotary part of keys is shared by all heads and is
        not projected up, so it comes with `kv_down`. None reads an encoder's output (`memory`).
        """
        score_width = self.heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            yield self._linear("q", hidden, score_width)
        else:
            yield self._linear("q_down", hidden, self.q_rank, self.bias)
            yield self._linear("q_up", self.q_rank, score_width)
        yield self._linear("kv_down", hidden, self.kv_rank + self.rope_dim, self.bias)
        yield self._linear("kv_up", self.kv_rank, self.heads * (self.nope_dim + self.value_dim))
        yield self._linear("o", self.heads * self.value_dim, hidden, self.bias)

    def _linear(self, name: str, inputs: int, outputs: int, bias: bool = False) -> Linear:
        return Linear(name, inputs, outputs, "attention", bias=bias)

    @property
    def vectors(self) -> int:
        """Return the parameters of the norms on the latent vectors."""
        return (self.q_rank or 0) + self.kv_rank

    @property
    def core(self) -> Core:
        """Return the attention core: scores over nope + rope, values apart."""
        return Core(self.heads, self.nope_dim + self.rope_dim, self.value_dim, self.mask)


class FeedForward(Struct, frozen=True, kw_only=True):
    """A feed-forward network: three matrices where `glu`, else two."""

    width: int
    glu: bool
    bias: bool = False

    def linears(self, hidden: int) -> Iterator[Linear]:
        """Yield gate (if `glu`), up and down."""
        return _mlp(self, "ffn", "", hidden, self.width)


class Experts(Struct, frozen=True, kw_only=True):
    """A mixture: `topk` of `count` experts per token, and shared experts of total width `shared`.

    `latent` is the input width of the experts if it is not the hidden one. `capacity` is the number
    of rows computed per row needed (capacity factor, alignment), at least 1.
    """

    count: int
    topk: int
    width: int
    glu: bool
    shared: int = 0
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    latent: int | None = None
    capacity: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        """Refuse more chosen experts than there are, and fewer computed rows than needed."""
        problem = f"topk {self.topk} exceeds the {self.count} experts"
        require(self.topk <= self.count, problem, "topk must not exceed the number of experts")
        problem = f"capacity {float(self.capacity):g} is below 1 and would drop tokens"
        require(self.capacity >= 1, problem, "give computed rows per needed row, 1 or more")

    def linears(self, hidden: int) -> Iterator[Linear]:
        """Yield router, routed experts and shared experts."""
        yield Linear("router", hidden, self.count, "router", bias=self.router_bias)
        if self.latent is not None:
            yield Linear("latent_in", hidden, self.latent, "experts")
            yield Linear("latent_out", self.latent, hidden, "experts")
        inner = self.latent or hidden
        for linear in _mlp(self, "experts", "expert_", inner, self.width):
            yield replace(linear, copies=self.count, used=self.topk)
        if self.shared:
            yield from _mlp(self, "shared", "shared_", hidden, self.shared)
        if self.shared_gate:
            yield Linear("shared_router", hidden, 1, "router")


def _mlp(
    network: FeedForward | Experts, group: str, prefix: str, hidden: int, width: int
) -> Iterator[Linear]:
    """Yield the matrices gate (if the network is gated), up and down; `prefix` begins names."""
    for name in ("gate", "up") if network.glu else ("up",):
        yield Linear(f"{prefix}{name}", hidden, width, group, bias=network.bias)
    yield Linear(f"{prefix}down", width, hidden, group, bias=network.bias)


class Block(Struct, frozen=True, kw_only=True):
    """One layer. `feed_forward` is None if not described; `norms` are norms of the hidden width."""

    attention: Attention | LatentAttention | None = None
    cross: Attention | None = None
    feed_forward: FeedForward | Experts | None = None
    norms: int = 2

    def linears(self, hidden: int, memory: int) -> Iterator[Linear]:
        """Yield every weight matrix; `memory` is the width that cross-attention reads."""
        for attention in (self.attention, self.cross):
            if attention is not None:
                yield from attention.linears(hidden, memory)
        if self.feed_forward is not None:
            yield from self.feed_forward.linears(hidden)

    @property
    def cores(self) -> tuple[Core, ...]:
        """Return the attention cores."""
        return tuple(a.core for a in (self.attention, self.cross) if a is not None)


class Conv(Struct, frozen=True, kw_only=True):
    """`count` equal convolutions of one sample; sizes are per spatial dimension.

    A `stem` reads the data itself: it needs no input gradient, and block checkpointing does not
    recompute it. `norm` adds a batch norm's two vectors to the parameters.
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
        """Refuse groups that do not divide the channels, and an input or output without size."""
        named = f"convolution {self.name!r}"
        fits = all(channels % self.groups == 0 for channels in self.channels)
        problem = f"{named}: {self.groups} groups do not divide {self.channels}"
        require(fits, problem, "groups must divide both input and output channels")
        has_output = all(size >= 1 for size in (*self.output, *self.input))
        problem = f"{named} has no output for input {self.input}"
        require(has_output, problem, "check input, kernel, stride and padding")

    @property
    def output(self) -> tuple[int, ...]:
        """Return the spatial size of the result."""
        extra = self.output_padding or (0,) * len(self.input)
        steps = (self.stride, self.padding, self.dilation, extra)
        return output_size(self.input, self.kernel, *steps, transposed=self.transposed)

    @property
    def weights(self) -> int:
        """Return the weights of one convolution; an output channel only reads its own group."""
        inside, outside = self.channels
        return inside * outside // self.groups * prod(self.kernel)

    @property
    def flops(self) -> int:
        """Return the FLOPs of all `count`: 2 per weight and output (transposed: input) position."""
        positions = self.input if self.transposed else self.output
        return 2 * self.count * self.weights * prod(positions)

    @property
    def stored(self) -> int:
        """Return the parameters of all `count` convolutions."""
        return self.count * (self.weights + self.channels[1] * (self.bias + 2 * self.norm))
