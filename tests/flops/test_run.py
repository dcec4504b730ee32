"""What a run says: shapes, numbers as people write them, and contradictions in one line."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.flops.analytic.run import Checkpoint, Lora, Run, RunShape, parse_checkpoint
from traceflops.flops.model.card import ModelCard
from traceflops.units import (
    decimal_thousands,
    parse_count,
    parse_lengths,
    parse_rate,
    parse_reported,
    parse_seconds,
)

CARD = ModelCard(name="m", params=10**9)


@pytest.mark.parametrize(
    ("run", "shape"),
    [
        (Run(batch=2, seq=8), RunShape(16, 16, ((8, 2),), ((8, 2),))),
        (Run(seq=8), RunShape(8, 8, ((8, 1),), ((8, 1),))),
        (Run(seq=8, tokens=24), RunShape(24, 24, ((8, 3),), ((8, 3),))),
        (Run(batch=3, tokens=24), RunShape(24, 24, ((8, 3),), ((8, 3),))),
        (Run(batch=3, seq=8, tokens=24), RunShape(24, 24, ((8, 3),), ((8, 3),))),
        (Run(tokens=24), RunShape(24, 24)),
        (Run(tokens=24, real_tokens=20), RunShape(20, 24)),
        (Run(batch=2, seq=8, real_tokens=11), RunShape(11, 16, ((5, 1), (6, 1)), ((8, 2),))),
        (Run(documents=(3, 5, 3)), RunShape(11, 11, ((3, 2), (5, 1)), ((3, 2), (5, 1)))),
        (Run(documents=(3, 5), batch=1, seq=9), RunShape(8, 9, ((3, 1), (5, 1)), ((9, 1),))),
    ],
)
def test_shapes(run: Run, shape: RunShape) -> None:
    assert run.shape(CARD) == shape


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "the number of tokens per step is unknown"),
        ({"batch": 4}, "the number of tokens per step is unknown"),
        ({"seq": 8, "tokens": 20}, "20 tokens per step are not a whole number of sequences of 8"),
        ({"batch": 3, "tokens": 20}, "20 tokens per step are not a whole number of batch 3"),
        ({"batch": 3, "seq": 8, "tokens": 20}, "20 tokens are not batch 3 x 8 = 24"),
        ({"batch": 3, "seq": 8, "real_tokens": 25}, "25 real tokens do not fit"),
        (
            {"documents": (3, 5), "tokens": 9},
            "9 tokens contradict the 8 tokens of the documents",
        ),
        ({"documents": (3, 5), "batch": 1, "seq": 7}, "documents of 8 tokens do not fit"),
        ({"documents": (9,), "batch": 2, "seq": 8}, "do not fit"),
    ],
)
def test_numbers_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Run(**settings).shape(CARD)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": 0}, "devices is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"documents": (3, 0)}, "a document has no tokens"),
        ({"step_seconds": Fraction(0)}, "step_seconds must be above 0"),
        (
            {"step_seconds": Fraction(1), "tokens_per_s": Fraction(5)},
            "step_seconds and tokens_per_s exclude each other",
        ),
        ({"frozen": frozenset({"heart"})}, "cannot freeze unknown part 'heart'"),
    ],
)
def test_a_run_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Run(**settings)


def test_adapters_and_checkpoints_that_cannot_be() -> None:
    for rank, params in ((None, None), (3, 4)):
        with pytest.raises(UsageError, match="LoRA needs a rank or a parameter count"):
            Lora(rank=rank, params=params)
    with pytest.raises(UsageError, match="a recomputed share is negative"):
        Checkpoint("c", Fraction(-1))


def test_checkpointing_by_name_or_shares() -> None:
    full = parse_checkpoint("--checkpoint", "Full")
    assert full.linear == full.attention == 1
    assert full.scope is None
    custom = parse_checkpoint("--checkpoint", "0.75, 100%")
    assert (custom.linear, custom.attention) == (Fraction(3, 4), Fraction(1))
    with pytest.raises(UsageError, match="10,000 % of the forward pass cannot be") as caught:
        parse_checkpoint("--checkpoint", "75,100")
    assert "75%,100%" in caught.value.hint
    assert parse_checkpoint("--checkpoint", "1,3").attention == 3
    for text in ("", "some", "0.5", "1,x", "1,2,3", "-1,1"):
        with pytest.raises(UsageError, match="unknown --checkpoint:"):
            parse_checkpoint("--checkpoint", text)


def test_a_rate_of_sequences_needs_their_number() -> None:
    run = Run(tokens=4_000_000, samples_per_s=Fraction(10))
    with pytest.raises(UsageError, match="needs the number of sequences") as caught:
        run.seconds(run.shape(CARD))
    assert "--batch or --seq" in caught.value.hint


def test_the_time_of_a_step_from_any_measure() -> None:
    base = Run(batch=2, seq=8)
    shape = base.shape(CARD)
    measured: list[tuple[dict[str, Any], Fraction | None]] = [
        ({"step_seconds": Fraction(3)}, Fraction(3)),
        ({"tokens_per_s": Fraction(4)}, Fraction(4)),
        ({"samples_per_s": Fraction(4)}, Fraction(1, 2)),
        ({"achieved": Fraction(4)}, None),
        ({}, None),
    ]
    for settings, seconds in measured:
        assert replace(base, **settings).seconds(shape) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1024", 1024),
        ("405e9", 405_000_000_000),
        ("405B", 405_000_000_000),
        ("8.03b", 8_030_000_000),
        ("16k", 16_000),
        ("1.5 T", 1_500_000_000_000),
        ("4_096", 4096),
        ("1,024", 1024),
        ("1e0", 1),
        ("8Ki", 8192),
        ("2mi", 2 * 1024**2),
        ("8,030,261,248", 8_030_261_248),
        ("1,234.5k", 1_234_500),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count("--params", text) == count


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "1.5", "x", "1e-3", "1e999", "٣", "1" * 31, "8 B B", "12,34,567", "1_2"]
)
def test_bad_counts(text: str) -> None:
    with pytest.raises(UsageError, match="--params is not"):
        parse_count("--params", text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", Fraction(30)),
        ("0.03", Fraction(3, 100)),
        ("30s", Fraction(30)),
        ("820 ms", Fraction(82, 100)),
        ("5us", Fraction(5, 10**6)),
        ("1.5min", Fraction(90)),
        ("1e-3", Fraction(1, 1000)),
    ],
)
def test_times(text: str, seconds: Fraction) -> None:
    assert parse_seconds("--step-time", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1 year", "nan", "inf", "30 s s"])
def test_bad_times(text: str) -> None:
    with pytest.raises(UsageError, match="--step-time is not a time above 0"):
        parse_seconds("--step-time", text)


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (parse_rate, "989,4", "989.4"),
        (parse_rate, "12,5", "12.5"),
        (parse_rate, "1,3e3", "1.3e3"),
        (parse_count, "8,03e9", "8.03e9"),
        (parse_count, "8,03B", "8.03B"),
        (parse_count, "1024,0", "1024.0"),
        (parse_seconds, "0,82 s", "0.82 s"),
        (parse_seconds, "820,5ms", "820.5ms"),
        (parse_reported, "46,2%", "46.2%"),
        (parse_reported, "0,462", "0.462"),
    ],
)
def test_a_decimal_comma_is_no_thousands_comma(
    parse: Callable[[str, str], object], text: str, meant: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse("--x", text)
    assert caught.value.message == f"--x has a misplaced thousands separator: {text!r}"
    assert caught.value.hint == f"write --x {meant} with a decimal point"


@pytest.mark.parametrize(
    ("option", "example"),
    [
        ("--gpus", "example: --gpus 8"),
        ("--params", "example: --params 8e9 or --params 8.03B"),
        ("--seq", "example: --seq 8192 or --seq 8Ki"),
        ("--batch", "example: --batch 1024"),
        ("lora_rank", "example: lora_rank 16"),
    ],
)
def test_the_hint_fits_the_option(option: str, example: str) -> None:
    for text in ("0", "8.5"):
        with pytest.raises(UsageError) as caught:
            parse_count(option, text)
        assert caught.value.hint == example


@pytest.mark.parametrize(
    ("text", "number"),
    [("8k", 8), ("128K", 128), ("1k", 1), ("10k", None), ("8Ki", None), ("8000", None), ("", None)],
)
def test_thousands_that_may_be_meant_as_powers_of_two(text: str, number: int | None) -> None:
    assert decimal_thousands(text) == number


def test_rates_and_lengths() -> None:
    assert parse_rate("--peak", "989.5") == Fraction(1979, 2)
    assert parse_lengths("--documents", "512, 1024,2x4096;7") == (512, 1024, 4096, 4096, 7)
    for text in ("", "a", "3x", "x3", "1,,2", "-3", "1,024"):
        with pytest.raises(UsageError, match="--documents is not a list of lengths"):
            parse_lengths("--documents", text)
    with pytest.raises(UsageError, match="more than"):
        parse_lengths("--documents", "99999999999x1")
    with pytest.raises(UsageError, match="--peak is not a number above 0"):
        parse_rate("--peak", "fast")


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [
        ("46.2%", Fraction(462, 1000), Fraction(5, 10_000)),
        ("46.2 %", Fraction(462, 1000), Fraction(5, 10_000)),
        ("46.2", Fraction(462, 1000), Fraction(5, 10_000)),
        ("0.462", Fraction(462, 1000), Fraction(5, 10_000)),
        ("0.5%", Fraction(5, 1000), Fraction(5, 10_000)),
        ("43%", Fraction(43, 100), Fraction(5, 1000)),
        ("120%", Fraction(12, 10), Fraction(5, 1000)),
    ],
)
def test_reported_shares(text: str, value: Fraction, half: Fraction) -> None:
    found = parse_reported("--reported", text)
    assert (found.value, found.half_unit) == (value, half)


@given(st.decimals(min_value="0.0001", max_value="1e20", places=4))
def test_decimals_are_exact(number: Any) -> None:
    assert parse_rate("--rate", f"{number:f}") == Fraction(number)
