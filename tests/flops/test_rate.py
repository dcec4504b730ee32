"""MFU and HFU by name: published figures end to end, the sentence, and what cannot be true."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from traceflops.devices.peaks import find
from traceflops.errors import InputError, UsageError
from traceflops.facts import fact
from traceflops.flops.analytic.rates import (
    Peak,
    check_speed,
    rate,
    raw_rate,
    reasons,
    work,
)
from traceflops.flops.analytic.run import Checkpoint, Lora, Run
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.models import preset
from traceflops.units import decimal, exact_percent

A100 = Peak(Fraction(312_000), "bf16 dense")
H100 = Peak(Fraction(989_500), "bf16 dense")
MI300X = Peak(Fraction(1_300_000), "given")

POST = ModelCard(name="Llama 3.1 405B", params=405_000_000_000)
ONE_NODE = Run(tokens=1024, devices=8, step_seconds=Fraction(30))


def test_a_bare_parameter_count() -> None:
    found = rate(POST, ONE_NODE, MI300X)
    assert (found.ledger.convention, exact_percent(found.mfu)) == ("6N", "0.80 %")
    assert found.mfu == Fraction(6 * 405 * 1024, 8 * 30 * 1_300_000)
    assert found.sentence == "MFU 0.80 % (6N, given 1,300 TFLOP/s)"
    assert found.flops_per_token == 6 * 405 * 10**9
    lora = rate(POST, replace(ONE_NODE, frozen=frozenset({"all"})), MI300X)
    assert (lora.ledger.convention, exact_percent(lora.mfu)) == ("4N", "0.53 %")
    assert 3 * lora.mfu == 2 * found.mfu


PUBLISHED: list[tuple[str, str, Run, Peak, str, str, float]] = [
    # model, convention, run, peak, metric, printed, tolerance in its units
    (
        "palm-540b",
        "palm",
        Run(seq=2048, devices=6144, tokens_per_s=Fraction(238_300)),
        Peak(Fraction(275_000), "bf16"),
        "mfu",
        "46.2",
        0.07,
    ),
    (
        "palm-540b",
        "palm",
        Run(
            seq=2048,
            devices=6144,
            tokens_per_s=Fraction(238_300),
            checkpoint=Checkpoint("PaLM", Fraction(3, 4), Fraction(1), "all"),
        ),
        Peak(Fraction(275_000), "bf16"),
        "hfu",
        "57.8",
        0.07,
    ),
    (
        "gpt-530b",
        "korthikanti",
        Run(seq=2048, batch=280, devices=280, step_seconds=Fraction("37.83")),
        A100,
        "mfu",
        "56.0",
        0.06,
    ),
    (
        "mpt-70b",
        "llm-foundry",
        Run(seq=2048, batch=4096, devices=512, tokens_per_s=Fraction(515_636)),
        H100,
        "mfu",
        "41.25",
        0.006,
    ),
    (
        "gpt2",
        "matmul-full",
        Run(seq=1024, batch=100, step_seconds=Fraction("0.755")),
        A100,
        "mfu",
        "37.14",
        0.006,
    ),
    (
        "llama-3-8b",
        "megatron",
        Run(seq=8192, batch=128, devices=8, tokens_per_s=Fraction(8 * 14079)),
        H100,
        "tflops",
        "725",
        0.6,
    ),
    (
        "deepseek-v3",
        "matmul-full",
        Run(seq=4096, devices=2048, tokens_per_s=Fraction("3154166.6667")),
        H100,
        "tflops",
        "432",
        0.6,
    ),
    (
        "qwen3-30b-a3b",
        "megatron",
        Run(seq=4096, batch=512, devices=16, tokens_per_s=Fraction(16 * 10494)),
        H100,
        "tflops",
        "241",
        0.6,
    ),
]
"""From PaLM (table 3, section 4.1), arXiv:2205.05198 (table 5), llm-foundry and nanoGPT (their own
tables), Megatron-Bridge's performance summary, and arXiv:2505.09343 (table 4)."""


@pytest.mark.parametrize(
    ("name", "convention", "run", "peak", "metric", "printed", "tolerance"),
    PUBLISHED,
    ids=[f"{one[0]} {one[4]}" for one in PUBLISHED],
)
def test_published_figures_from_a_preset(
    name: str, convention: str, run: Run, peak: Peak, metric: str, printed: str, tolerance: float
) -> None:
    found = rate(preset(name), run, peak, convention)
    values = {
        "mfu": 100 * found.mfu,
        "hfu": 100 * found.hfu,
        "tflops": found.tflops_per_device or 0,
    }
    assert abs(float(values[metric]) - float(printed)) < tolerance


def test_the_default_is_exact_and_says_so() -> None:
    run = Run(seq=8192, batch=128, devices=8, tokens_per_s=Fraction(8 * 14079))
    found = rate(preset("llama-3-8b"), run, H100)
    assert found.sentence == "MFU 73.2 % (exact-causal, bf16 dense 989.5 TFLOP/s)"
    assert found.mfu == found.hfu
    assert found.tokens == 128 * 8192
    assert found.doubt is None


def test_hfu_is_never_below_mfu() -> None:
    run = Run(seq=512, batch=8, step_seconds=Fraction(10), checkpoint=Checkpoint("c", Fraction(1)))
    found = rate(preset("llama-3-8b"), run, A100)
    assert found.hfu > found.mfu


def test_an_executed_convention_is_an_hfu() -> None:
    run = Run(seq=2048, batch=64, devices=64, step_seconds=Fraction(100))
    found = rate(preset("gpt-18.4b"), run, A100, "sc21")
    assert found.is_hfu
    assert found.figure == found.hfu
    assert found.sentence.startswith("HFU ")


def test_a_published_rate_is_only_divided() -> None:
    run = Run(achieved=Fraction(430) * 10**12, devices=8192)
    found = rate(POST, run, H100)
    assert found.sentence == "MFU 43.5 % (published-tflops, bf16 dense 989.5 TFLOP/s)"
    assert found.tflops_per_device == 430
    assert found.flops_per_token is None
    with pytest.raises(UsageError, match="published-tflops needs a published rate"):
        rate(POST, ONE_NODE, H100, "published-tflops")


def test_a_published_rate_turned_into_another_convention() -> None:
    run = Run(seq=2048, achieved=Fraction("24.6") * 10**12, achieved_basis="6N", devices=10_000)
    card = preset("gpt-3-175b")
    six, palm = (rate(card, run, Peak(Fraction(125_000)), name) for name in ("6N", "palm"))
    assert six.mfu == Fraction("24.6") / 125
    assert palm.mfu / six.mfu == Fraction(palm.ledger.model) / six.ledger.model


@pytest.mark.parametrize(
    ("card", "run", "reason"),
    [
        (POST, replace(ONE_NODE, step_seconds=Fraction("0.03")), "milliseconds"),
        (
            preset("llama-3-8b"),
            Run(seq=4096, batch=1, tokens_per_s=Fraction(22_000)),
            "frozen weights counted as trained",
        ),
        (
            preset("llama-3-8b"),
            Run(seq=4096, tokens_per_s=Fraction(8 * 14079)),
            "GPUs of one node",
        ),
    ],
)
def test_more_than_everything_is_refused_with_likely_reasons(
    card: ModelCard, run: Run, reason: str
) -> None:
    with pytest.raises(InputError, match="of peak is impossible") as caught:
        rate(card, run, H100)
    assert reason in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint
    assert raw_rate(card, run, H100).mfu > 1


def test_the_likeliest_reason_comes_first() -> None:
    card = preset("llama-3-8b")
    run = Run(seq=4096, step_seconds=Fraction(1))
    dense, a100 = Fraction(989_500), Fraction(312_000)
    post = reasons(Fraction(8), raw_rate(POST, ONE_NODE, MI300X, "6N"), POST, ONE_NODE)
    assert post[0].startswith("time or tokens off by 1,000")
    a_third = reasons(Fraction(13, 10), raw_rate(card, run, Peak(a100)), card, run)
    assert a_third[0] == "A100 peak used for an H100 or H200"
    node = reasons(Fraction(4), raw_rate(card, run, Peak(dense)), card, run)
    assert node[0] == "GPUs of one node instead of all"


@pytest.mark.parametrize(
    ("device", "flops_per_ns", "value", "first"),
    [
        # 104.9 % of an H100 cannot come from the peak of an A100; fp8 has twice the rate of bf16
        ("h100-sxm", 989_400, Fraction("1.049"), "bf16 peak used for an fp8 run"),
        ("a100-sxm-80", 312_000, Fraction("1.049"), "A100 peak used for an H100 or H200"),
        (
            "mi250x-gcd",
            191_500,
            Fraction("1.253"),
            "cards counted instead of GCDs: a card has two",
        ),
        (None, 1_300, Fraction("184.6"), "--peak is in TFLOP/s: 1.3 PFLOP/s is 1300"),
    ],
)
def test_the_first_reason_is_tied_to_the_run(
    device: str | None, flops_per_ns: int, value: Fraction, first: str
) -> None:
    run = Run(batch=8, seq=4096, devices=8, step_seconds=Fraction(1))
    spec = find(device) if device is not None else None
    card = preset("llama-3-8b")
    found = reasons(value, raw_rate(card, run, Peak(Fraction(flops_per_ns))), card, run, spec)
    assert found[0] == first
    assert ("A100" in " ".join(found)) == (device == "a100-sxm-80")
    assert "recomputation counted as model work" not in found


def test_what_is_more_than_any_device_can_do_needs_no_peak_to_be_refused() -> None:
    run = Run(tokens=4_000_000, step_seconds=Fraction(1, 100))
    check_speed(work(POST, replace(run, step_seconds=Fraction(10**5))))
    with pytest.raises(InputError, match="972,000,000 TFLOP/s per GPU is more than any GPU"):
        check_speed(work(POST, run))


def test_a_published_rate_above_the_peak_has_no_time() -> None:
    run = Run(achieved=Fraction(4000) * 10**12, devices=8)
    with pytest.raises(InputError, match=r"404\.2 % of peak") as caught:
        rate(POST, run, H100)
    assert "per step" not in caught.value.message
    assert "TFLOP/s of a node used for one GPU" in caught.value.hint
    small = rate(POST, replace(run, achieved=Fraction(10**11)), H100)
    assert small.doubt is not None and small.doubt.code == "described.low-published"


def test_hfu_above_everything_is_refused_too() -> None:
    run = Run(seq=4096, tokens_per_s=Fraction(16_000), checkpoint=Checkpoint("c", Fraction(1)))
    assert raw_rate(preset("llama-3-8b"), run, H100).mfu < 1
    with pytest.raises(
        InputError, match=r"1\d\d\.\d % of peak is impossible, .* not an HFU"
    ) as caught:
        rate(preset("llama-3-8b"), run, H100)
    mfu = exact_percent(raw_rate(preset("llama-3-8b"), run, H100).mfu)
    assert caught.value.message.endswith(f"; MFU would be {mfu}")
    assert caught.value.hint.startswith("likely: less recomputation than --checkpointing says")


def test_next_to_nothing_is_doubted() -> None:
    found = rate(POST, replace(ONE_NODE, step_seconds=Fraction(30_000)), MI300X)
    assert found.doubt == fact("described.low", share=found.figure, seconds="30,000")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 1024}, "the step time is unknown"),
        ({"step_seconds": Fraction(1)}, "6N cannot be computed: the number of tokens"),
        (
            {"seq": 8, "tokens": 20, "step_seconds": Fraction(1)},
            "20 tokens per step are not a whole number of sequences of 8",
        ),
    ],
)
def test_what_is_missing_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rate(POST, Run(**settings), H100)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        ("0.38249", "38.2 %"),
        ("0.38250001", "38.3 %"),
        ("0.1", "10.0 %"),
        ("0.007975", "0.80 %"),
        ("0.0531", "5.31 %"),
        ("0.0000123", "0.001 %"),
        ("0", "0.00 %"),
        ("7.97", "797.0 %"),
        ("12.3456", "1,234.6 %"),
    ],
)
def test_percentages(share: str, text: str) -> None:
    assert exact_percent(Fraction(share)) == text


def test_decimals() -> None:
    assert [decimal(Fraction(n), 1) for n in ("989.5", "1300", "0", "-2.25")] == [
        *("989.5", "1,300", "0", "-2.2")
    ]


def test_adapters_by_their_parameters() -> None:
    run = replace(ONE_NODE, seq=64, batch=16, lora=Lora(params=10**8))
    found = rate(preset("llama-3.1-405b"), run, MI300X)
    assert found.ledger.total("model.matmul.weight_grad") == 2 * 1024 * 10**8
