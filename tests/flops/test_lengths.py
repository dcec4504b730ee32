"""Packed sequences by sums give what their lengths give, to the FLOP."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cli.test_commands import assert_refused
from tests.cli.test_commands import run as command
from traceflops.errors import UsageError
from traceflops.flops.analytic.conventions import CONVENTIONS
from traceflops.flops.analytic.lengths import LengthSums, pairs, why_impossible
from traceflops.flops.analytic.run import Run
from traceflops.flops.analytic.run_flops import model_flops, obstacle
from traceflops.flops.model.blocks import Mask
from traceflops.flops.model.card_table import build

CARD = {"hidden": 64, "layers": 2, "heads": 4, "ffn": 96, "glu": True, "vocab": 100}
LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=12)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"forward_only": True},
    {"attention_kernel": "flash"},
    {"attention_kernel": "unfused"},
    {"frozen": frozenset({"all"})},
]


def by_sums(lengths: list[int], **settings: Any) -> Run:
    squares = sum(length**2 for length in lengths)
    return Run(seq_sum=sum(lengths), seq_square_sum=squares, **settings)


@given(LENGTHS, st.sampled_from(SETTINGS), st.sampled_from(["causal", "full"]), st.booleans())
def test_sums_say_as_much_as_the_lengths(
    lengths: list[int], settings: dict[str, Any], mask: str, counted: bool
) -> None:
    card = build(CARD | {"mask": mask}, "card")
    one = Run(documents=tuple(lengths), **settings)
    other = by_sums(lengths, sequences=len(lengths) if counted else None, **settings)
    for name in CONVENTIONS:
        problem = obstacle(card, one, name)
        assert obstacle(card, other, name) == problem
        if problem is None:
            assert model_flops(card, other, name) == model_flops(card, one, name)


@given(LENGTHS, st.integers(0, 9))
def test_pairs_are_those_counted_one_by_one(lengths: list[int], cached: int) -> None:
    sums = LengthSums(sum(lengths), sum(length**2 for length in lengths))
    causal = sum(1 + cached + query for length in lengths for query in range(length))
    full = sum(length * (length + cached) for length in lengths)
    assert pairs(Mask(), sums, cached) == causal
    assert pairs(Mask("full"), sums, cached) == full


def test_the_conventions_by_hand() -> None:
    # Documents of 3 and 5 tokens: sum 8, squares 34; one layer core forward is 2 * pairs * H * 2d.
    card = build(CARD | {"layers": 1}, "card")
    run = by_sums([3, 5], forward_only=True)
    wanted = {"exact-causal": 6 + 15, "matmul-full": 34, "megatron": 17}
    for name, count in wanted.items():
        assert model_flops(card, run, name).total("model.attention") == 2 * count * 4 * 2 * 16


@given(LENGTHS)
def test_padding_of_documents_in_slots_of_their_own(lengths: list[int]) -> None:
    card = build(CARD, "card")
    slots: dict[str, Any] = {"batch": len(lengths), "seq": 50}
    one = Run(documents=tuple(lengths), **slots)
    other = by_sums(lengths, sequences=len(lengths), **slots)
    assert model_flops(card, other) == model_flops(card, one)
    assert other.shape(card).padded == one.shape(card).padded


@pytest.mark.parametrize("mask", [{"window": 8}, {"chunk": 8}])
def test_windows_and_chunks_need_the_lengths_unless_none_is_longer(mask: dict[str, int]) -> None:
    card = build(CARD | mask, "card")
    run = by_sums([3, 5])
    with pytest.raises(UsageError, match="needs individual sequence lengths") as error:
        model_flops(card, run)
    assert "--documents" in error.value.hint
    assert obstacle(card, run, "exact-causal") == error.value.message.partition(": ")[2]
    short = replace(run, seq=8)
    assert model_flops(card, short) == model_flops(card, Run(documents=(3, 5)))
    assert model_flops(card, run, "matmul-full") == model_flops(
        card, Run(documents=(3, 5)), "matmul-full"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_sum": 8}, "need both sums"),
        ({"seq_square_sum": 8}, "need both sums"),
        ({"sequences": 2}, "needs the sums"),
        ({"seq_sum": 8, "seq_square_sum": 34, "documents": (3, 5)}, "not both"),
        ({"seq_sum": 8, "seq_square_sum": 33}, "one is even, the other odd"),
        ({"seq_sum": 8, "seq_square_sum": 6}, "sum to 8 to 64, not 6"),
        (
            {"seq_sum": 8, "seq_square_sum": 30, "sequences": 2},
            "2 lengths with sum 8 sum to 32 to 50, not 30",
        ),
        ({"seq_sum": 2, "seq_square_sum": 2, "sequences": 3}, "3 sequences cannot have 2 tokens"),
        ({"seq_sum": 0, "seq_square_sum": 0}, "seq_sum is 0"),
    ],
)
def test_sums_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Run(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 7}, "7 tokens contradict the 8"),
        ({"batch": 1, "seq": 7}, "documents of 8 tokens do not fit"),
        ({"batch": 2, "seq": 8, "tokens": 15}, "15 tokens are not batch 2 x 8"),
        ({"tokens": 12, "real_tokens": 9}, "9 tokens contradict the 8"),
    ],
)
def test_sums_that_contradict_the_slots(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        by_sums([3, 5], **settings).shape(build(CARD, "card"))


def test_more_tokens_may_be_computed_than_the_sum() -> None:
    shape = by_sums([3, 5], tokens=12).shape(build(CARD, "card"))
    assert (shape.tokens, shape.slot_tokens) == (8, 12)


def test_options() -> None:
    options = ["mfu", "--model", "llama-3-8b", "--json"]
    told = command(*options, "--documents", "3x700,1000")
    sums = ("--seq-sum", "3100", "--seq-square-sum", "2470000")
    summed = command(*options, *sums, "--sequences", "4")
    assert summed.exit_code == 0, summed.output
    key = '"flops'
    assert [line for line in summed.stdout.splitlines() if key in line] == [
        line for line in told.stdout.splitlines() if key in line
    ]
    assert command(*options[:-1], *sums).exit_code == 0
    wrong = command(*options, "--seq-sum", "10", "--seq-square-sum", "102")
    assert_refused(wrong, 2, "--seq-sum and --seq-square-sum cannot be right", "10 to 100, not 102")
    many = ("--seq-sum", "10", "--seq-square-sum", "100", "--sequences", "2")
    assert_refused(command(*options, *many), 2, "of 2 lengths", "50 to 82, not 100")


@given(LENGTHS, st.integers(0, 5000))
def test_sums_are_possible_if_some_lengths_have_them(lengths: list[int], other: int) -> None:
    tokens, count = sum(lengths), len(lengths)
    squares = sum(length**2 for length in lengths)
    assert why_impossible(tokens, squares, count) == ""
    assert why_impossible(tokens, squares) == ""
    every = (
        {
            sum(n * n for n in (*one, tokens - sum(one)))
            for one in product(range(1, tokens + 1), repeat=count - 1)
            if sum(one) < tokens
        }
        if count <= 2
        else None
    )
    if every is not None:
        refused = why_impossible(tokens, other, count) != ""
        between = min(every) <= other <= max(every) and (other - tokens) % 2 == 0
        assert refused is not between
