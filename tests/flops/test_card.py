"""What a card counts: masks, weights and parameters against brute force and known models."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.flops.model.blocks import (
    Attention,
    Block,
    Conv,
    Experts,
    FeedForward,
    LatentAttention,
    Mask,
)
from traceflops.flops.model.card import ModelCard

lengths = st.integers(1, 60)
sizes = st.integers(1, 70)
masks = st.one_of(
    st.just(Mask("causal")),
    st.just(Mask("full")),
    sizes.map(lambda size: Mask("window", size)),
    sizes.map(lambda size: Mask("chunk", size)),
)


def sees(mask: Mask, query: int, key: int, total: int) -> bool:
    """Return whether a query attends to a key, by the definition of the mask."""
    if mask.kind == "full":
        return key < total
    if mask.kind == "window":
        return query - mask.size < key <= query
    if mask.kind == "chunk":
        return key <= query and key // mask.size == query // mask.size
    return key <= query


@given(masks, lengths, st.integers(0, 40))
def test_the_closed_forms_count_the_pairs_of_every_mask(
    mask: Mask, queries: int, cached: int
) -> None:
    total = cached + queries
    pairs = [
        (query, key)
        for query in range(cached, total)
        for key in range(total)
        if sees(mask, query, key, total)
    ]
    assert mask.pairs(queries, cached) == len(pairs)


@given(lengths, sizes)
def test_a_window_as_long_as_the_sequence_is_causal(length: int, more: int) -> None:
    causal = Mask().pairs(length)
    assert Mask("window", length + more - 1).pairs(length) == causal
    assert Mask("chunk", length + more - 1).pairs(length) == causal


def weights_of(attention: Attention | LatentAttention, hidden: int) -> int:
    return sum(linear.active for linear in attention.linears(hidden, hidden))


def test_attention_weights_by_kind() -> None:
    # h*H*d + 2*h*K*d + H*d*h
    assert weights_of(Attention(heads=8, kv_heads=8, head_dim=16), 128) == 4 * 128 * 128
    grouped = Attention(heads=8, kv_heads=2, head_dim=32)
    assert weights_of(grouped, 128) == 2 * 128 * 256 + 2 * 128 * 64
    single = Attention(heads=8, kv_heads=1, head_dim=16)
    assert weights_of(single, 128) == 2 * 128 * 128 + 2 * 128 * 16


def test_latent_attention_with_and_without_ranked_queries() -> None:
    latent = LatentAttention(heads=16, q_rank=24, kv_rank=32, nope_dim=8, rope_dim=4, value_dim=6)
    shared = 64 * (32 + 4) + 32 * 16 * (8 + 6) + 16 * 6 * 64
    assert weights_of(latent, 64) == 64 * 24 + 24 * 16 * 12 + shared
    assert weights_of(replace(latent, q_rank=None), 64) == 64 * 16 * 12 + shared
    assert (latent.core.score_dim, latent.core.value_dim) == (12, 6)


def test_experts_are_stored_all_and_used_in_part() -> None:
    experts = Experts(count=8, topk=2, width=10, glu=True, shared=20, shared_gate=True)
    linears = list(experts.linears(6))
    assert sum(one.stored for one in linears) == 6 * 8 + 8 * 3 * 60 + 3 * 120 + 6
    assert sum(one.active for one in linears) == 6 * 8 + 2 * 3 * 60 + 3 * 120 + 6


def test_latent_experts_work_on_a_narrower_width() -> None:
    linears = Experts(count=4, topk=1, width=10, glu=False, latent=3).linears(8)
    assert sum(one.active for one in linears) == 8 * 4 + 2 * 8 * 3 + 2 * 3 * 10


SMALL = ModelCard(
    name="small",
    hidden=64,
    vocab=100,
    blocks=(
        (
            2,
            Block(
                attention=Attention(heads=4, kv_heads=4, head_dim=16),
                feed_forward=FeedForward(width=256, glu=False, bias=True),
            ),
        ),
    ),
)


def test_a_small_model_by_hand() -> None:
    block = 4 * 64 * 64 + 2 * 64 * 256
    assert SMALL.weights() == 2 * block + 6400
    biases, norms = 2 * (256 + 64), 5 * 64
    assert SMALL.total == 2 * block + 2 * 6400 + biases + norms
    assert replace(SMALL, tied=True).total == SMALL.total - 6400
    assert replace(SMALL, params=7_000).total == 7_000


@given(st.integers(1, 50), st.integers(1, 50))
def test_layers_add_up(first: int, second: int) -> None:
    block = SMALL.blocks[0][1]
    empty = SMALL.total - 2 * one_block()
    both = replace(SMALL, blocks=((first, block), (second, block)))
    assert both.layers == first + second
    assert both.total == empty + (first + second) * one_block()


def one_block() -> int:
    block = SMALL.blocks[0][1]
    return replace(SMALL, blocks=((2, block),)).total - replace(SMALL, blocks=((1, block),)).total


def test_a_prediction_module_is_a_block_two_projections_and_a_head() -> None:
    with_module = replace(SMALL, mtp=1)
    block = 4 * 64 * 64 + 2 * 64 * 256
    assert with_module.weights() == SMALL.weights() + block + 2 * 64 * 64 + 6400
    assert with_module.total == SMALL.total + one_block() + 2 * 64 * 64 + 3 * 64
    assert sum(one.times for one in with_module.cores()) == 3


def conv(**settings: object) -> Conv:
    values: dict[str, object] = {
        "name": "c",
        "channels": (8, 16),
        "input": (10, 10),
        "kernel": (3, 3),
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
        **settings,
    }
    return Conv(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "flops"),
    [
        ({}, 460_800),
        ({"transposed": True}, 460_800),
        ({"groups": 4}, 115_200),
        ({"groups": 4, "transposed": True}, 115_200),
        (
            {"channels": (16, 8), "transposed": True, "stride": (2, 2), "output_padding": (1, 1)},
            460_800,
        ),
        (
            {
                "channels": (4, 6),
                "input": (9, 9, 9),
                "kernel": (3, 3, 2),
                "stride": (2, 1, 1),
                "padding": (1, 0, 1),
                "dilation": (1, 2, 1),
            },
            432_000,
        ),
    ],
)
def test_convolutions_of_two_samples(settings: dict[str, object], flops: int) -> None:
    """The figures were measured with torch 2.13 for a batch of two."""
    assert 2 * conv(**settings).flops == flops


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Attention(heads=8, kv_heads=3, head_dim=16),
            "8 heads are not a multiple of 3 kv_heads",
        ),
        (lambda: Experts(count=4, topk=5, width=1, glu=True), "topk 5 exceeds the 4 experts"),
        (
            lambda: Experts(count=4, topk=1, width=1, glu=True, capacity=Fraction(1, 2)),
            "capacity 0.5 is below 1",
        ),
        (lambda: conv(groups=3), "3 groups do not divide"),
        (lambda: conv(kernel=(20, 20)), "has no output"),
        (lambda: ModelCard(name="x"), "neither layers nor a parameter count"),
        (lambda: ModelCard(name="x", params=405), "405 parameters are too few"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in caught.value.message + caught.value.hint
