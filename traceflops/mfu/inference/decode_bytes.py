"""The least bytes that decoding a described model moves: weights once per pass, and cached keys.

Of experts the least is what one token uses, as all sequences of a pass may choose the same ones.
Reading and writing activations adds little and is left out.
"""

from __future__ import annotations

from fractions import Fraction

from traceflops.errors import UsageError
from traceflops.flops.model.blocks import Attention, LatentAttention
from traceflops.flops.model.card import ModelCard

Bytes = int | Fraction
"""Bytes per element; a fraction for packed types, such as 1/2 for 4 bits."""


def decode_bytes(
    card: ModelCard,
    *,
    passes: int,
    keys: int,
    weight_bytes: Bytes = 2,
    cache_bytes: Bytes = 2,
) -> Fraction:
    """Return the least bytes of so many passes over `keys` cached tokens in all.

    `keys` are the tokens attended to, summed over sequences and passes. Raises UsageError for a
    model whose layers are not described, or that looks back only part of the way: how much each
    sequence has within reach is not known from the sum.
    """
    if not card.complete:
        lacks = ", ".join(card.lacks)
        raise UsageError(f"the model's {lacks} are unknown", "describe its layers")
    weights = passes * card.weights() * Fraction(weight_bytes)
    return weights + keys * cache_elements(card) * Fraction(cache_bytes)


def cache_elements(card: ModelCard) -> int:
    """Return the elements that one token has in the cache of all layers."""
    return sum(count * _elements(block.attention) for count, block in card.blocks)


def _elements(attention: Attention | LatentAttention | None) -> int:
    """Return the elements of keys and values; of the latent vector and its position for MLA."""
    if attention is None:
        return 0
    if attention.mask.kind in ("window", "chunk"):
        raise UsageError("it has layers with limited attention windows", "count them separately")
    if isinstance(attention, LatentAttention):
        return attention.kv_rank + attention.rope_dim
    return 2 * attention.kv_heads * attention.head_dim
