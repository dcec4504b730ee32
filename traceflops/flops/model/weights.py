"""Which weights a convention counts: single matrices, or the parameters as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from traceflops.errors import UsageError
from traceflops.flops.analytic.conventions import Convention
from traceflops.flops.model.blocks import Attention, Block, Linear
from traceflops.flops.model.card import ModelCard, PlacedLinear


def weights(rule: Convention, card: ModelCard) -> tuple[PlacedLinear, ...]:
    """Return the matrices that a convention counts; parameters as one matrix where it takes N."""
    return _WEIGHTS[rule.weights](card)


def needs_architecture(rule: Convention, card: ModelCard) -> bool:
    """Return whether a parameter count alone is not enough."""
    return needs_matrices(rule, card) or rule.weights in _WITHOUT_EMBEDDINGS


def needs_matrices(rule: Convention, card: ModelCard) -> bool:
    """Return whether the convention counts single matrices, not the parameters as one."""
    if rule.weights == "matmul-or-all":
        return card.complete
    return rule.weights in _BY_MATRIX


def _matmul(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return tuple(one for one in card.placed() if not one.routes)


def _with_router(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return card.placed()


def _padded(card: ModelCard) -> tuple[PlacedLinear, ...]:
    rows = card.padded_vocab or card.vocab
    return tuple(
        replace(one, linear=replace(one.linear, outputs=rows)) if _is_head(one) else one
        for one in _matmul(card)
    )


def _is_head(placed: PlacedLinear) -> bool:
    return placed.linear.name == "head"


def _with_embedding(card: ModelCard) -> tuple[PlacedLinear, ...]:
    rows = Linear(name="embedding", inputs=card.vocab, outputs=card.hidden, group="embedding")
    return (*card.placed(), PlacedLinear(rows))


def _two_matrices(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return tuple(one for one in _matmul(card) if one.linear.name != "expert_gate")


def _square(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return square(card).placed()


def square(card: ModelCard) -> ModelCard:
    """Return the card with heads that share out the hidden width. Raises UsageError if none can."""
    blocks = tuple((count, _squared(block, card.hidden)) for count, block in card.blocks)
    return replace(card, blocks=blocks)


def _squared(block: Block, hidden: int) -> Block:
    attention = block.attention
    if not isinstance(attention, Attention) or hidden % attention.heads:
        raise UsageError("its heads do not add up to the hidden width", "choose another convention")
    return replace(block, attention=replace(attention, head_dim=hidden // attention.heads))


def _lump(card: ModelCard, count: int) -> tuple[PlacedLinear, ...]:
    """Return parameters as one matrix in the blocks and one around them, as far as it is known."""
    inside = sum(one.active for one in card.placed() if one.in_blocks) if card.complete else count
    parts = ((min(inside, count), True), (count - min(inside, count), False))
    return tuple(
        PlacedLinear(
            Linear(name="parameters", inputs=part, outputs=1, group="parameters"), in_blocks=within
        )
        for part, within in parts
        if part
    )


def _all(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return _lump(card, card.total)


def _all_but_positions(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return _lump(card, card.total - card.positions * card.hidden)


def _all_but_embeddings(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return _lump(card, card.total - card.embedding - card.positions * card.hidden)


def _active(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return _lump(card, card.active)


def _active_but_embedding(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return _lump(card, card.active - (0 if card.tied else card.embedding))


def _matmul_or_all(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return _matmul(card) if card.complete else _all(card)


def _nothing(card: ModelCard) -> tuple[PlacedLinear, ...]:
    return ()


_BY_MATRIX: Mapping[str, Callable[[ModelCard], tuple[PlacedLinear, ...]]] = {
    "matmul": _matmul,
    "matmul+router": _with_router,
    "padded": _padded,
    "matmul+embedding": _with_embedding,
    "two-matrix-experts": _two_matrices,
    "square": _square,
}
_WITHOUT_EMBEDDINGS: Mapping[str, Callable[[ModelCard], tuple[PlacedLinear, ...]]] = {
    "all-positions": _all_but_positions,
    "all-embeddings": _all_but_embeddings,
    "active-embedding": _active_but_embedding,
}
_WEIGHTS: Mapping[str, Callable[[ModelCard], tuple[PlacedLinear, ...]]] = {
    **_BY_MATRIX,
    **_WITHOUT_EMBEDDINGS,
    "all": _all,
    "active": _active,
    "matmul-or-all": _matmul_or_all,
    "none": _nothing,
}
