"""Conventions: named rules for counting model FLOPs, as data.

All count `a * 2 * W + b * A(ctx)` FLOPs per token. W is the weights that the convention counts, A
the forward pass of attention with `ctx` keys per query, a and b are numbers of passes (3: forward
and two gradients). `weights` selects W, `run_flops.py` adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.flops.model.blocks import ROUTING, Attention, Linear
from traceflops.flops.model.card import ModelCard, PlacedLinear

Context = Literal["none", "exact", "half", "half-window", "full"]
"""Keys per query: not counted; by the mask; T/2 for every causal mask; T/2, but by the mask in
windows and chunks; all T."""
Frozen = Literal["as-run", "all", "never"]
"""Which base weights have no weight gradient: those frozen in the run, all, or none."""


class Convention(Struct, frozen=True):
    """One rule for counting: which `weights`, and how many keys per query (`context`).

    `attention` is b, the passes of attention. `frozen` says which weights have no weight gradient;
    with `adapters`, adapters count, too. `real` counts real tokens and documents, else padded
    slots. The figure of an `executed` rule is an HFU. With `recompute_all`, checkpointing
    recomputes the head, too. `odd` rules are wrong, but explain figures that were computed so.
    """

    id: str
    weights: str
    context: Context
    attention: int = 3
    frozen: Frozen = "never"
    adapters: bool = False
    real: bool = False
    executed: bool = False
    recompute_all: bool = False
    convolutions: bool = False
    odd: bool = False


_RULES = (
    Convention(
        "exact-causal",
        "matmul+router",
        "exact",
        frozen="as-run",
        adapters=True,
        real=True,
        convolutions=True,
    ),
    Convention("megatron", "padded", "half-window", real=True),
    Convention("maxtext", "matmul+router", "half"),
    Convention("maxtext-full", "matmul+router", "full"),
    Convention("matmul-full", "matmul", "full"),
    Convention("korthikanti", "matmul", "full"),
    Convention("primus", "matmul", "full"),
    Convention("palm", "all", "full", recompute_all=True),
    Convention("nanogpt", "all-positions", "full", recompute_all=True),
    Convention("llm-foundry", "active", "full", recompute_all=True),
    Convention("llmc", "all", "half", recompute_all=True),
    Convention("torchtitan", "active-embedding", "full"),
    Convention("levanter", "square", "full"),
    Convention("verl", "matmul+embedding", "half", real=True),
    Convention("hf", "all-embeddings", "none"),
    Convention("6N", "all", "none", recompute_all=True),
    Convention("6N-active", "active", "none", recompute_all=True),
    Convention("4N", "all", "none", frozen="all", recompute_all=True),
    Convention("seed-matmul", "all", "none", frozen="as-run", recompute_all=True),
    Convention("lora-exact", "matmul+router", "exact", frozen="all", adapters=True, real=True),
    Convention("lora-matmul", "matmul-or-all", "none", frozen="all"),
    Convention("lora-full", "matmul-or-all", "full", frozen="all"),
    Convention("automodel-lora", "padded", "half-window", real=True, odd=True),
    Convention(
        "litgpt", "matmul-or-all", "full", attention=5, frozen="all", adapters=True, odd=True
    ),
    Convention("gptoss-pre2606", "two-matrix-experts", "half", odd=True),
    Convention("sc21", "matmul", "full", executed=True),
    Convention("flopcounter", "matmul+router", "full", executed=True, convolutions=True),
    Convention("deepspeed", "none", "none"),
    Convention("published-tflops", "none", "none"),
)
CONVENTIONS: Mapping[str, Convention] = {rule.id: rule for rule in _RULES}
"""Every convention, the default first."""
DEFAULT = "exact-causal"


def convention(name: str) -> Convention:
    """Return the convention with an id. Raises UsageError, naming the known ones."""
    rule = CONVENTIONS.get(name)
    if rule is None:
        raise UsageError(f"unknown convention {name[:60]!r}", f"known: {', '.join(CONVENTIONS)}")
    return rule


Matrices = tuple[PlacedLinear, ...]


def weights(rule: Convention, card: ModelCard) -> Matrices:
    """Return the matrices that a convention counts.

    A number of parameters is returned as two matrices: one in the blocks, and one outside.
    """
    if needs_matrices(rule, card):
        return _MATRICES.get(rule.weights, _matmul)(card)
    count = in_blocks = _PARAMETERS[rule.weights](card)
    if card.complete:  # else it is unknown which parameters are outside: all count as in blocks
        in_blocks = min(count, sum(m.active for m in card.placed() if m.in_blocks))
    return tuple(
        PlacedLinear(Linear("parameters", part, 1, "parameters"), in_blocks=within)
        for part, within in ((in_blocks, True), (count - in_blocks, False))
        if part
    )


def needs_matrices(rule: Convention, card: ModelCard) -> bool:
    """Return whether the convention counts single matrices, not a number of parameters."""
    return card.complete if rule.weights == "matmul-or-all" else rule.weights in _MATRICES


def _matmul(card: ModelCard) -> Matrices:
    return tuple(matrix for matrix in card.placed() if matrix.linear.name not in ROUTING)


def square(card: ModelCard) -> ModelCard:
    """Return the card with heads of hidden / heads elements. Raises UsageError if not divisible."""
    blocks = []
    for count, block in card.blocks:
        attention = block.attention  # latent attention has no such heads
        if not isinstance(attention, Attention) or card.hidden % attention.heads:
            problem = "its heads do not add up to the hidden width"
            raise UsageError(problem, "choose another convention")
        squared = replace(attention, head_dim=card.hidden // attention.heads)
        blocks.append((count, replace(block, attention=squared)))
    return replace(card, blocks=tuple(blocks))


_MATRICES: Mapping[str, Callable[[ModelCard], Matrices]] = {
    "matmul": _matmul,
    "matmul+router": ModelCard.placed,
    "padded": lambda card: tuple(
        replace(matrix, linear=replace(matrix.linear, outputs=card.padded_vocab or card.vocab))
        if matrix.linear.name == "head"
        else matrix
        for matrix in _matmul(card)
    ),
    "matmul+embedding": lambda card: (
        *card.placed(),
        PlacedLinear(Linear("embedding", card.vocab, card.hidden, "embedding")),
    ),
    "two-matrix-experts": lambda card: tuple(
        matrix for matrix in _matmul(card) if matrix.linear.name != "expert_gate"
    ),
    "square": lambda card: square(card).placed(),
}
WITHOUT_EMBEDDINGS: Mapping[str, Callable[[ModelCard], int]] = {
    "all-positions": lambda card: card.total - card.positions * card.hidden,
    "all-embeddings": lambda card: card.total - card.embedding - card.positions * card.hidden,
    "active-embedding": lambda card: card.active - (0 if card.tied else card.embedding),
}
"""Parameter counts that need more than the total number of parameters."""
_PARAMETERS: Mapping[str, Callable[[ModelCard], int]] = {
    **WITHOUT_EMBEDDINGS,
    "all": lambda card: card.total,
    "matmul-or-all": lambda card: card.total,
    "active": lambda card: card.active,
    "none": lambda card: 0,
}
