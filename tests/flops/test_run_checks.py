"""What is said of a run against its model: the impossible refused, the doubtful told."""

from __future__ import annotations

from typing import Any

import pytest

from traceflops.errors import UsageError
from traceflops.facts import Fact, fact, quoted
from traceflops.flops.analytic.run import PARTS, Lora, Run
from traceflops.flops.analytic.run_utilisation import check_claims, doubtful_claims
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build
from traceflops.flops.model.models import preset

LLAMA, MIXTRAL = preset("llama-3-8b"), preset("mixtral-8x7b")
BARE = ModelCard(name="model of 8,000,000,000 parameters", params=8_000_000_000)
NET = build({"conv": [{"channels": [3, 8], "input": [32, 32], "kernel": 3}], "name": "net"}, "card")
IMAGES = build(
    {
        "name": "images",
        "hidden": 64,
        "layers": 2,
        "heads": 4,
        "ffn": 128,
        "glu": False,
        "mask": "full",
        "positions": 197,
        "image": {"size": 224, "patch": 16},
    },
    "card",
)


@pytest.mark.parametrize(
    ("card", "part", "message", "hint"),
    [
        (
            LLAMA,
            "experts",
            "Llama 3 8B has no experts to freeze",
            "available: attention, ffn, head",
        ),
        *(
            (LLAMA, part, f"has no {part} to freeze", "available: attention, ffn, head")
            for part in ("encoder", "mtp", "conv", "patch", "shared", "router", "cross")
        ),
        (MIXTRAL, "ffn", "has no ffn to freeze", "available: attention, router, experts, head"),
        (BARE, "attention", "the weights in attention of model", "freeze all of them"),
        (NET, "head", "net has no head to freeze", "available: conv"),
    ],
)
def test_parts_that_there_are_not_cannot_be_frozen(
    card: ModelCard, part: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_claims(card, Run(seq=None, frozen=frozenset({part})))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_parts_that_there_are_can_be_frozen() -> None:
    for card in (LLAMA, MIXTRAL, BARE, NET, preset("t5-small"), preset("deepseek-v3")):
        check_claims(card, Run(frozen=frozenset({"all"})))
        if card.complete:
            check_claims(card, Run(frozen=frozenset(card.parts)))
    assert {*preset("t5-small").parts, *preset("deepseek-v3").parts} < {*PARTS}
    assert preset("t5-small").parts[0] == "encoder"


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (Lora(rank=10_000), "LoRA rank 10000 exceeds the width of every matrix (4096)"),
        (Lora(rank=10**18, targets=("q",)), "exceeds the width of every matrix (4096)"),
        (Lora(rank=2000, targets=("k", "v")), "exceeds the width of every matrix (1024)"),
        (
            Lora(params=9 * 10**9),
            "adapters with 9,000,000,000 parameters are larger than the model",
        ),
        (Lora(rank=8, targets=("zz",)), "no matrix 'zz' to adapt"),
    ],
)
def test_adapters_that_cannot_be(lora: Lora, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_claims(LLAMA, Run(lora=lora))
    assert message in caught.value.message


def test_a_convolutional_net_has_no_sequences() -> None:
    check_claims(NET, Run(batch=4))
    with pytest.raises(UsageError, match="net has no sequences of tokens"):
        check_claims(NET, Run(batch=4, seq=8))


def beyond_positions(longest: int) -> Fact:
    """Return the doubt about sequences of a model with 1,024 learned positions."""
    sizes = {"longest": longest, "positions": 1024}
    return fact("described.beyond-positions", model="GPT-2 124M", **sizes)


@pytest.mark.parametrize(
    ("card", "settings", "doubt"),
    [
        (LLAMA, {"seq": 10**6, "batch": 1}, None),
        (preset("gpt2"), {"seq": 1024, "batch": 1}, None),
        (
            preset("gpt2"),
            {"seq": 4096, "batch": 1},
            beyond_positions(4096),
        ),
        (preset("gpt2"), {"documents": (7, 1025)}, beyond_positions(1025)),
        (preset("gpt2"), {"seq": 2048, "batch": 1, "documents": (7, 9)}, None),
        (preset("gpt2"), {"seq": 1, "cached": 2000, "forward_only": True}, beyond_positions(2001)),
        (preset("gpt2"), {"tokens": 10**6}, None),
        (IMAGES, {"batch": 4}, None),
        (
            IMAGES,
            {"batch": 4, "seq": 512},
            fact("described.fixed-length", model="images", tokens=197, given=512),
        ),
        (LLAMA, {"lora": Lora(rank=64)}, None),
        (LLAMA, {"notes": (quoted("n"),)}, quoted("n")),
    ],
)
def test_what_is_doubtful_is_told(
    card: ModelCard, settings: dict[str, Any], doubt: Fact | None
) -> None:
    assert doubtful_claims(card, Run(**settings)) == ((doubt,) if doubt else ())
