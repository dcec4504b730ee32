"""The description of a model: its weight matrices, attention cores and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceflops.facts import Fact, fact
from traceflops.flops.model.blocks import Block, Conv, Core, Experts, Linear, require

Norm = Literal["rms", "layernorm", "layernorm-nobias"]
Side = Literal["decoder", "encoder"]
"""Whose tokens a part processes: those of the model itself, or those of its encoder."""
NORM_VECTORS = {"rms": 1, "layernorm": 2, "layernorm-nobias": 1}
"""Vectors of the hidden width per norm."""
FEWEST_PARAMS = 1000
MOST_MTP = 100
FAR_APART, TOO_FAR_APART = Fraction(1, 10), 2
"""A parameter count this far from the counted one is in doubt (relative), or an error (factor)."""
ARCHITECTURE = ("hidden", "layers", "heads", "ffn", "glu", "vocab")
"""The keys of a card that a full description has."""
NORMS_OF_MTP = 3
"""Norms of an MTP module besides its block's: of the hidden state, the embedding and the head."""


class PlacedLinear(Struct, frozen=True):
    """A weight matrix in `times` layers, the first of which is `layer`, on the tokens of `side`.

    `in_blocks`: checkpointing of blocks recomputes it. `capacity`: rows computed per row needed.
    """

    linear: Linear
    times: int = 1
    layer: int | None = None
    in_blocks: bool = False
    side: Side = "decoder"
    capacity: Fraction = Fraction(1)

    @property
    def active(self) -> int:
        """Return the weights that one token is multiplied with, in all layers."""
        return self.times * self.linear.active


class PlacedCore(Struct, frozen=True):
    """An attention core in `times` layers, the first of which is `layer`."""

    core: Core
    times: int
    layer: int | None
    side: Side = "decoder"


class ModelCard(Struct, frozen=True, kw_only=True):
    """A model: its blocks in order, as (how many alike, block), and what is around them.

    Widths are in elements. `positions` is the number of learned embeddings beside those of tokens
    (token types included), `norms` the norms outside the blocks, `loose` other parameters. `mtp` is
    the number of multi-token-prediction modules, each a further block like the last. `encoder` is
    read by cross-attention, or puts tokens in front. `params` is the stated count, which wins over
    the counted one. `missing` are keys that are not described: conventions that need them cannot be
    computed. `seq` is a length that the architecture fixes, such as the patches of an image.
    """

    name: str
    hidden: int = 0
    vocab: int = 0
    padded_vocab: int | None = None
    blocks: tuple[tuple[int, Block], ...] = ()
    norm: Norm = "rms"
    norms: int = 1
    positions: int = 0
    tied: bool = False
    head: bool = True
    head_bias: bool = False
    extras: tuple[Linear, ...] = ()
    loose: int = 0
    mtp: int = 0
    encoder: ModelCard | None = None
    convs: tuple[Conv, ...] = ()
    params: int | None = None
    missing: tuple[str, ...] = ()
    seq: int | None = None
    source: str = ""
    notes: tuple[Fact, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a model without layers or parameters, with too few, or MTP without layers."""
        problem = f"model {self.name!r} has neither layers nor a parameter count"
        is_described = bool(self.blocks or self.convs or self.params)
        require(is_described, problem, "describe its layers, or give params")
        is_enough = self.params is None or self.params >= FEWEST_PARAMS
        hint = f"give the full count, e.g. {self.params}e9"
        require(is_enough, f"{self.params} parameters are too few for a model", hint)
        problem = f"{self.mtp} MTP modules exceed the limit of {MOST_MTP}"
        require(self.mtp <= MOST_MTP, problem, "give those that run")
        problem = f"{self.name} has no layers for an MTP module to copy"
        has_layers = not self.mtp or bool(self.blocks and self.complete)
        require(has_layers, problem, "describe the layers, with --model or in the card")

    @property
    def doubts(self) -> tuple[Fact, ...]:
        """Return a doubt if stated and counted parameters differ by more than 10 %."""
        if self.params is None or not self.complete:
            return ()
        if abs(self.params - self.counted) <= FAR_APART * self.counted:
            return ()
        return (fact("described.parameters", stated=self.params, counted=self.counted),)

    @property
    def complete(self) -> bool:
        """Return whether every weight matrix is described."""
        return not self.lacks

    @property
    def lacks(self) -> tuple[str, ...]:
        """Return the keys that are missing for a full description."""
        is_bare = not (self.blocks or self.convs or self.missing)
        return ARCHITECTURE if is_bare else self.missing

    @property
    def is_convolutional(self) -> bool:
        """Return whether the model is a convolutional net, which has no tokens."""
        return bool(self.convs) and not self.blocks

    @property
    def layers(self) -> int:
        """Return the number of blocks, MTP modules not counted."""
        return sum(count for count, _ in self.blocks)

    @property
    def embedding(self) -> int:
        """Return the weights of the token embedding."""
        return self.vocab * self.hidden

    @property
    def total(self) -> int:
        """Return N: all parameters, as stated or else as counted."""
        return self.params if self.params is not None else self.counted

    @property
    def active(self) -> int:
        """Return the parameters that a token uses: all except those of unused experts."""
        unused = (
            placed.times * linear.stored * max(linear.copies - linear.used, 0) // linear.copies
            for placed in self.placed()
            if (linear := placed.linear).copies
        )
        return self.total - sum(unused)

    @property
    def counted(self) -> int:
        """Return N counted from the description: matrices, vectors (norms, biases), embeddings."""
        # The encoder counts its own matrices.
        own = [placed for placed in self.placed() if placed.side == "decoder"]
        matrices = sum(placed.times * placed.linear.stored for placed in own)
        convs = sum(conv.stored for conv in self.convs)
        encoder = self.encoder.counted if self.encoder is not None else 0
        stacks = list(self._stacks())
        norms = self.norms + self.mtp * NORMS_OF_MTP
        norms += sum(count * block.norms for count, _, block in stacks)
        vectors = norms * NORM_VECTORS[self.norm] * self.hidden + self.positions * self.hidden
        attentions = ((n, a) for n, _, block in stacks for a in (block.attention, block.cross))
        vectors += sum(n * attention.vectors for n, attention in attentions if attention)
        return self.embedding + vectors + self.loose + matrices + convs + encoder

    def weights(self) -> int:
        """Return the weights that one token is multiplied with: with head, without embedding."""
        return sum(placed.active for placed in self.placed() if placed.linear.reads != "sequence")

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts that have weights, by their sub-names in the ledger."""
        groups = [placed.linear.group for placed in self.placed()]
        encoder = ["encoder"] * (self.encoder is not None)
        return tuple(dict.fromkeys((*encoder, *groups, *(["conv"] if self.convs else ()))))

    def placed(self) -> tuple[PlacedLinear, ...]:
        """Return every weight matrix, the encoder's first, then blocks, extras and heads."""
        encoder = self.encoder.placed() if self.encoder is not None else ()
        placed = [replace(matrix, side="encoder") for matrix in encoder]
        memory = self.encoder.hidden if self.encoder is not None else self.hidden
        for count, layer, block in self._stacks():
            for linear in block.linears(self.hidden, memory):
                # Only routed experts compute more rows than are needed.
                network, capacity = block.feed_forward, Fraction(1)
                if isinstance(network, Experts) and linear.copies > 1:
                    capacity = network.capacity
                named = linear if layer is not None else replace(linear, group="mtp")
                placed.append(PlacedLinear(named, count, layer, True, "decoder", capacity))
        # MTP modules (stacks without a layer) merge two hidden states, and use the head, too.
        if self.mtp:
            merge = Linear("mtp_merge", 2 * self.hidden, self.hidden, "mtp")
            placed.append(PlacedLinear(merge, self.mtp))
        placed += map(PlacedLinear, self.extras)
        if self.head and self.vocab:
            head = Linear("head", self.hidden, self.vocab, "head", bias=self.head_bias)
            placed.append(PlacedLinear(replace(head, copies=0) if self.tied else head))
            if self.mtp:
                placed.append(PlacedLinear(replace(head, copies=0), self.mtp))
        return tuple(placed)

    def cores(self) -> tuple[PlacedCore, ...]:
        """Return every attention core, the encoder's first."""
        encoder = self.encoder.cores() if self.encoder is not None else ()
        placed = [replace(core, side="encoder") for core in encoder]
        for count, layer, block in self._stacks():
            placed += [PlacedCore(core, count, layer) for core in block.cores]
        return tuple(placed)

    def _stacks(self) -> Iterator[tuple[int, int | None, Block]]:
        """Yield (number of equal blocks, first layer, block); the layer of MTP modules is None."""
        layer = 0
        for count, block in self.blocks:
            yield count, layer, block
            layer += count
        if self.mtp:
            yield self.mtp, None, self.blocks[-1][1]
