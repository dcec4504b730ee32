"""Which weights a convention counts: single matrices, or the parameters as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from traceflops.errors import UsageError
from traceflops.flops.analytic.conventions import Convention
from traceflops.flops.model.blocks import Attention, Block, Linear
from traceflops.flops.model.card import ModelCard, PlacedLinear

Matrices = tuple[PlacedLinear, ...]


def weights(rule: Convention, card: ModelCard) -> Matrices:
    """Return the matrices that a convention counts; parameters as one matrix where it takes N."""
    if needs_matrices(rule, card):
        return _MATRICES.get(rule.weights, _matmul)(card)
    return _lump(card, _PARAMETERS[rule.weights](card))


def needs_architecture(rule: Convention, card: ModelCard) -> bool:
    """Return whether a parameter count alone is not enough."""
    return needs_matrices(rule, card) or rule.weights in _WITHOUT_EMBEDDINGS


def needs_matrices(rule: Convention, card: ModelCard) -> bool:
    """Return whether the convention counts single matrices, not the parameters as one."""
    return card.complete if rule.weights == "matmul-or-all" else rule.weights in _MATRICES


def _matmul(card: ModelCard) -> Matrices:
    return tuple(one for one in card.placed() if not one.routes)


def _padded(card: ModelCard) -> Matrices:
    rows = card.padded_vocab or card.vocab
    return tuple(
        replace(one, linear=replace(one.linear, outputs=rows)) if one.linear.name == "head" else one
        for one in _matmul(card)
    )


def _with_embedding(card: ModelCard) -> Matrices:
    rows = Linear("embedding", card.vocab, card.hidden, "embedding")
    return (*card.placed(), PlacedLinear(rows))


def square(card: ModelCard) -> ModelCard:
    """Return the card with heads that share out the hidden width. Raises UsageError if none can."""
    blocks = tuple((count, _squared(block, card.hidden)) for count, block in card.blocks)
    return replace(card, blocks=blocks)


def _squared(block: Block, hidden: int) -> Block:
    attention = block.attention
    if not isinstance(attention, Attention) or hidden % attention.heads:
        raise UsageError("its heads do not add up to the hidden width", "choose another convention")
    return replace(block, attention=replace(attention, head_dim=hidden // attention.heads))


def _lump(card: ModelCard, count: int) -> Matrices:
    """Return parameters as one matrix in the blocks and one around them, as far as it is known."""
    inside = sum(one.active for one in card.placed() if one.in_blocks) if card.complete else count
    parts = ((min(inside, count), True), (count - min(inside, count), False))
    return tuple(
        PlacedLinear(Linear("parameters", part, 1, "parameters"), in_blocks=within)
        for part, within in parts
        if part
    )


_MATRICES: Mapping[str, Callable[[ModelCard], Matrices]] = {
    "matmul": _matmul,
    "matmul+router": ModelCard.placed,
    "padded": _padded,
    "matmul+embedding": _with_embedding,
    "two-matrix-experts": lambda card: tuple(
        one for one in _matmul(card) if one.linear.name != "expert_gate"
    ),
    "square": lambda card: square(card).placed(),
}
_WITHOUT_EMBEDDINGS: Mapping[str, Callable[[ModelCard], int]] = {
    "all-positions": lambda card: card.total - card.positions * card.hidden,
    "all-embeddings": lambda card: card.total - card.embedding - card.positions * card.hidden,
    "active-embedding": lambda card: card.active - (0 if card.tied else card.embedding),
}
_PARAMETERS: Mapping[str, Callable[[ModelCard], int]] = {
    **_WITHOUT_EMBEDDINGS,
    "all": lambda card: card.total,
    "matmul-or-all": lambda card: card.total,
    "active": lambda card: card.active,
    "none": lambda card: 0,
}
