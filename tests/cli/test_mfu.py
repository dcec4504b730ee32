"""`traceflops mfu` as a user meets it: figures, names, what is missing, what is refused."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.test_commands import assert_refused, run, shell
from tests.conftest import examples
from tests.schemas import VALIDATORS
from traceflops.flops.analytic.conventions import CONVENTIONS
from traceflops.units import parse_reported

VALIDATOR = VALIDATORS["traceflops.mfu/1"]

POST = "--params 405e9 --tokens 1024 --step-time 30 --gpus 8 --peak 1300"
LLAMA = "--model llama-3-8b --batch 128 --seq 8192"
H100 = "--gpus 8 --device h100-sxm --dtype bf16"
PALM = "--model palm-540b --seq 2048 --tokens-per-s 238300 --gpus 6144 --device tpu-v4 --dtype bf16"
TIMED = f"{LLAMA} --step-time 9.31 {H100}"

EXACT_8192 = 51_471_187_968
"""FLOPs per token of Llama 3 8B, exact-causal, from the reference's table of test vectors."""


def printed(options: str, *more: str | Path) -> str:
    result = run("mfu", *options.split(), *more)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert "\x1b" not in result.stdout
    return result.stdout


def content(options: str, *more: str | Path) -> Any:
    return json.loads(printed(options, *more, "--json"))


def entry(found: Any, convention: str) -> Any:
    return next(one for one in found["conventions"] if one["id"] == convention)


def test_full_fine_tuning_and_lora_from_a_parameter_count_alone() -> None:
    full, lora = content(POST), content(f"{POST} --lora")
    assert full["mfu"] == pytest.approx(6 * 405e9 * 1024 / (8 * 30 * 1300e12), rel=1e-15)
    assert lora["mfu"] == pytest.approx(4 * 405e9 * 1024 / (8 * 30 * 1300e12), rel=1e-15)
    assert printed(POST).startswith("MFU 0.80 % (6N, given 1,300 TFLOP/s)\n")
    assert printed(f"{POST} --lora").startswith("MFU 0.53 % (4N, given 1,300 TFLOP/s)\n")


def test_frozen_weights_have_no_weight_gradient() -> None:
    one = 2 * 405 * 10**9 * 1024
    names = [f"model.matmul.{name}.parameters" for name in ("forward", "input_grad", "weight_grad")]
    lines = {line["line"]: line["flops"] for line in content(POST)["ledger"]}
    assert lines == dict.fromkeys(names, one)
    lines = {line["line"]: line["flops"] for line in content(f"{POST} --lora")["ledger"]}
    assert lines == dict.fromkeys(names[:2], one)


def test_a_preset_is_counted_exactly() -> None:
    found = content(TIMED)
    tokens = 128 * 8192
    assert found["convention"] == "exact-causal"
    assert (found["model_flops"], found["unit"]) == (tokens * EXACT_8192, "step")
    assert found["mfu"] == pytest.approx(tokens * EXACT_8192 / (8 * 9.31 * 989.4e12), rel=1e-12)
    assert found["hfu"] == found["mfu"]
    assert found["tflops_per_device"] == pytest.approx(tokens * EXACT_8192 / (8e12 * 9.31))
    assert found["metric"] == "MFU 73.2 % (exact-causal, bf16 dense 989.4 TFLOP/s)"
    assert sum(int(line["flops_text"]) for line in found["ledger"]) == found["executed_flops"]
    assert found["model"]["parameters"] == 8_030_261_248
    text = printed(TIMED)
    assert text.splitlines()[0] == found["metric"]
    assert "Llama 3 8B · 8 × H100 SXM 80 GB HBM3 · 128 × 8,192 tokens · step 9.31 s" in text
    assert "51.47 GFLOP" in text


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("--step-time 9.31", 9.31),
        ("--step-time 9310ms", 9.31),
        ("--tokens-per-s 112630", 1_048_576 / 112_630),
        ("--tokens-per-s-per-gpu 14079", 1_048_576 / (8 * 14_079)),
        ("--samples-per-s 13.75", 128 / 13.75),
        ("--achieved 500 --achieved-convention exact-causal", 1_048_576 * EXACT_8192 / (8 * 5e14)),
    ],
)
def test_every_way_to_say_how_long_it_took(time: str, seconds: float) -> None:
    found = content(f"{LLAMA} {time} {H100}")
    assert found["run"]["seconds"] == pytest.approx(seconds, rel=1e-12)
    assert found["mfu"] * found["run"]["seconds"] == pytest.approx(
        1_048_576 * EXACT_8192 / (8 * 989.4e12)
    )


def test_checkpointing_raises_hfu_and_not_mfu() -> None:
    plain, full = content(TIMED), content(f"{TIMED} --checkpointing full")
    assert plain["mfu"] == full["mfu"]
    # Executed per token with causal flash attention (T/2 keys per query) and the blocks
    # recomputed: the reference's table of test vectors.
    flash = content(f"{TIMED} --checkpointing full --attention-kernel flash --convention megatron")
    assert flash["executed_flops"] == 68_650_270_720 * 128 * 8192
    assert plain["hfu"] < full["hfu"] < flash["hfu"]
    half = content(f"{TIMED} --checkpointing 0.5,0.5")
    assert half["hfu"] - plain["hfu"] == pytest.approx((full["hfu"] - plain["hfu"]) / 2)


def test_padding_and_packing_by_hand(tmp_path: Path) -> None:
    card = tmp_path / "tiny.toml"
    card.write_text(
        "hidden = 64\nlayers = 2\nheads = 4\nffn = 128\nglu = false\nvocab = 100\n",
        encoding="utf-8",
    )
    weights = 2 * (4 * 64 * 64 + 2 * 64 * 128) + 64 * 100

    def expected(*lengths: int) -> int:
        pairs = sum(length * (length + 1) // 2 for length in lengths)
        return 6 * weights * sum(lengths) + 3 * 2 * 2 * pairs * 2 * 64

    packed = content("--documents 10,2x30 --batch 1 --seq 100 --model", card)
    assert packed["model_flops"] == expected(10, 30, 30)
    padded = content("--batch 2 --seq 100 --real-tokens 120 --model", card)
    assert padded["model_flops"] == expected(60, 60)
    assert padded["executed_flops"] == expected(100, 100)
    adapters = 2 * (4 * 8 * (64 + 64) + 2 * 8 * (64 + 128))
    lora = content("--batch 1 --seq 100 --lora-rank 8 --model", card)
    assert lora["run"]["lora_parameters"] == adapters
    assert lora["model_flops"] == expected(100) - 2 * weights * 100 + 6 * adapters * 100
    some = content("--batch 1 --seq 100 --lora-rank 8 --lora-targets q,v --model", card)
    assert some["run"]["lora_parameters"] == 2 * 2 * 8 * 128
    padded_vocab = content("--batch 1 --seq 100 --padded-vocab 128 --model", card)
    assert padded_vocab["model_flops"] == expected(100)
    assert padded_vocab["executed_flops"] - expected(100) == 6 * 100 * 28 * 64
    decoding = content("--batch 1 --seq 1 --cached 99 --forward-only --model", card)
    assert decoding["model_flops"] == 2 * weights + 2 * 2 * 100 * 2 * 64
    assert content("--batch 1 --seq 1 --cached 99 --model", card) == decoding


def test_packed_documents_leave_padding_where_it_is_said_how_much_was_computed() -> None:
    """13,824 of 16,384 tokens are real; the rows of the others are computed for nothing."""
    llama = "--model llama-3-8b --batch 2 --seq 8192"
    packed = content(f"{llama} --documents 512,3x4096,1024")
    even = content(f"{llama} --real-tokens 13824")

    def line(found: Any, name: str) -> int:
        return sum(one["flops"] for one in found["ledger"] if one["line"] == name)

    rows = 6 * 7_504_658_432 * 2_560
    assert line(packed, "overcompute.padding.tokens") == rows
    assert line(even, "overcompute.padding.tokens") == rows
    assert packed["executed_flops"] - packed["model_flops"] == rows
    assert "padding: tokens" in printed(f"{llama} --documents 512,3x4096,1024")
    full = content(f"{llama} --documents 2x8192")
    assert full["executed_flops"] == full["model_flops"]


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ("--model llama-3-8b --seq 8k", "--seq 8k is 8,000; 8Ki is 8,192"),
        ("--model llama-3-8b --seq 8Ki", None),
        ("--model gpt2 --seq 4096", "exceed the 1,024 learned positions of GPT-2 124M"),
        (f"{LLAMA} --achieved 430 {H100}", "a published rate is only divided by peak"),
        (f"{TIMED} --peak 9894", "--peak 9894 is 10 times the dense bf16 rate of h100-sxm"),
        (f"{TIMED} --peak 800", None),
        (
            f"{TIMED} --peak 1979".replace(" --dtype bf16", ""),
            "--peak 1979 is the dense fp8 rate of h100-sxm, or twice the bf16 one",
        ),
        (
            "--params 8e9 --tokens-per-s 9 --peak 989 --dtype zz",
            "'zz' is not in the table: the peak stands for it",
        ),
    ],
)
def test_what_is_doubtful_gets_a_note(options: str, note: str | None) -> None:
    notes = " ".join(content(options)["notes"])
    assert (note or "") in notes
    assert note is not None or notes == ""
    assert "zz" not in printed(options).splitlines()[0]


@pytest.mark.parametrize(
    ("peak", "reason"), [("1.3", "--peak is in TFLOP/s"), ("1.9", "--peak is in TFLOP/s")]
)
def test_petaflops_for_teraflops_is_the_first_reason(peak: str, reason: str) -> None:
    result = run("mfu", *f"{LLAMA} --step-time 9.31 --gpus 8 --peak {peak}".split())
    assert_refused(result, 3, f"hint: likely: {reason}")


def test_a_convolutional_net_has_samples(tmp_path: Path) -> None:
    card = tmp_path / "net.toml"
    card.write_text("[[conv]]\nchannels = [3, 8]\ninput = [32, 32]\nkernel = 3\n")
    for options, unit, size in (("", "sample", "1 sample"), ("--batch 64", "step", "64 samples")):
        text = printed(f"{options} --samples-per-s 10e6 --peak 10 --model", card)
        assert f"FLOPs per {unit}" in text
        assert f" · {size}" in text
        assert "10,000,000 samples/s" in text
        assert "token" not in text and "sequence" not in text and "each" not in text
    assert_refused(run("mfu", "--seq", "8", "--model", card), 2, "has no sequences of tokens")


def test_what_a_sequence_meets_once_is_no_weight_of_a_token(tmp_path: Path) -> None:
    card = tmp_path / "encoder.toml"
    text = "hidden = 64\nlayers = 2\nheads = 4\nffn = 128\nglu = false\nhead = false\n"
    card.write_text(text)
    plain = content("--seq 8 --model", card)["model"]["weights_per_token"]
    card.write_text(f"{text}pooler = true\nclasses = 10\n")
    assert content("--seq 8 --model", card)["model"]["weights_per_token"] == plain
    card.write_text(f"{text}transform = true\n")
    assert content("--seq 8 --model", card)["model"]["weights_per_token"] == plain + 64 * 64


@pytest.mark.parametrize("width", [60, 72, 80])
def test_lines_are_no_wider_than_asked(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for options in (
        f"{TIMED} --checkpointing full",
        f"{TIMED} --all-conventions",
        f"{TIMED} --reported 41%",
        "--model mixtral-8x7b --seq 4096",
    ):
        lines = printed(options).splitlines()
        assert max(map(len, lines)) <= width
        assert not [
            line for line in lines if line.startswith(("MFU", "executed")) and "%" not in line
        ]


def test_experts_computed_for_nothing_and_prediction_modules(tmp_path: Path) -> None:
    card = tmp_path / "mixture.toml"
    card.write_text(
        "hidden = 64\nlayers = 2\nheads = 4\nglu = true\nvocab = 100\n"
        "[experts]\ncount = 8\ntopk = 2\nwidth = 32\n",
        encoding="utf-8",
    )
    plain = content("--tokens 50 --seq 50 --model", card)
    roomy = content("--tokens 50 --seq 50 --expert-capacity 1.5 --model", card)
    routed = 6 * 50 * 2 * (2 * 3 * 64 * 32)
    assert plain["executed_flops"] == plain["model_flops"] == roomy["model_flops"]
    assert roomy["executed_flops"] - plain["executed_flops"] == routed // 2
    more = content("--tokens 50 --seq 50 --mtp 1 --model", card)
    block = 4 * 64 * 64 + 64 * 8 + 2 * 3 * 64 * 32
    core = 3 * 2 * (50 * 51 // 2) * 2 * 64
    extra = 6 * 50 * (block + 2 * 64 * 64 + 64 * 100) + core
    assert more["model_flops"] - plain["model_flops"] == extra


def test_the_default_convention_and_another() -> None:
    assert content(POST)["convention"] == "6N"
    assert content(f"{POST} --lora")["convention"] == "4N"
    assert content(f"{POST} --frozen all")["convention"] == "4N"
    assert content(TIMED)["convention"] == "exact-causal"
    assert content(f"{TIMED} --lora")["convention"] == "exact-causal"
    found = content(f"{TIMED} --convention palm")
    assert found["metric"] == "MFU 86.9 % (palm, bf16 dense 989.4 TFLOP/s)"
    assert found["flops_per_token"] == 61_066_469_376


def test_all_conventions_side_by_side() -> None:
    lines = printed(f"{TIMED} --all-conventions").splitlines()
    assert lines[0] == "MFU 73.2 % (exact-causal, bf16 dense 989.4 TFLOP/s)"
    rows = {line.split()[0]: line for line in lines[4:] if line[:1].isalnum()}
    assert [*rows][: len(CONVENTIONS) - 2] == [
        name for name in CONVENTIONS if name not in ("deepspeed", "published-tflops")
    ]
    assert "not computed: deepspeed, published-tflops" in lines[-1]
    # 6 N per token, N = 8,030,261,248: 68.6 % of 8 x 9.31 s x 989.4 TFLOP/s
    assert re.search(r"^6N +68\.6 % +68\.6 % +678\.3 +48\.18 GFLOP", rows["6N"])
    assert re.search(r"^sc21 +– +> 100 %", rows["sc21"])
    found = content(TIMED)
    assert [one["id"] for one in found["conventions"]] == [*CONVENTIONS]
    assert entry(found, "sc21")["problem"] == "more than the devices can do"
    assert entry(found, "sc21")["hfu"] is None


def test_without_a_time_the_flops_are_there() -> None:
    text = printed(f"{LLAMA} {H100}")
    assert text.startswith("No MFU: the step time is unknown. To get one: set --step-time")
    assert "FLOPs per step      53.97 PFLOP" in text
    assert "attention core" in text
    found = content(f"{LLAMA} {H100}")
    assert (found["mfu"], found["tflops_per_device"]) == (None, None)
    assert found["model_flops"] == 128 * 8192 * EXACT_8192
    assert [one["problem"] for one in found["lacks"]] == ["the step time is unknown"]


@pytest.mark.parametrize(
    ("device", "problem", "option"),
    [
        ("", "no GPU is named", "--peak TFLOPS"),
        ("--device h100-sxm", "the data type is not set", "bf16 (989.4)"),
        ("--device h100-sxm --dtype fp4", "the dense 'fp4' rate of h100-sxm", "--peak TFLOPS"),
        ("--device h100-sxm --dtype int8", "the dense 'int8' rate of h100-sxm", "--peak TFLOPS"),
        ("--device h100-sxm --dtype [bold]", "the dense '[bold]' rate", "--peak TFLOPS"),
        ("--device mi308x --dtype bf16", "the rates of mi308x", "--peak TFLOPS"),
    ],
)
def test_without_a_peak_the_rate_is_there(device: str, problem: str, option: str) -> None:
    options = f"{LLAMA} --step-time 9.31 --gpus 8 {device}"
    text = " ".join(printed(options).split())
    assert text.startswith("No MFU: ")
    assert problem in text
    assert option in text
    assert "model rate 724.6 TFLOP/s per device" in text
    found = content(options)
    assert (found["mfu"], found["peak"], found["metric"]) == (None, None, None)
    assert found["tflops_per_device"] == pytest.approx(1_048_576 * EXACT_8192 / (8e12 * 9.31))
    assert problem in found["lacks"][0]["problem"]


def test_peaks_are_dense_and_a_sparse_one_is_noted() -> None:
    found = content(f"{LLAMA} --step-time 9.31 --gpus 8 --device h100-sxm --dtype torch.bfloat16")
    assert (found["peak"]["tflops"], found["peak"]["dtype"]) == (989.4, "bf16")
    text = printed(f"{TIMED} --peak 1979")
    assert "--peak 1979 is twice the dense bf16 rate of h100-sxm (989.4)" in text
    assert "(exact-causal, bf16 given 1,979 TFLOP/s)" in text
    assert "twice" not in printed(f"{TIMED} --peak 1000")


def test_figures_per_sequence_and_per_token() -> None:
    assert content("--model llama-3-8b --seq 8192")["model_flops"] == 8192 * EXACT_8192
    assert content("--model llama-3-8b --seq 8192")["unit"] == "sequence"
    token = content("--params 8e9 --tokens-per-s 1000 --peak 100")
    assert (token["unit"], token["model_flops"]) == ("token", 48_000_000_000)
    assert token["mfu"] == pytest.approx(48e9 * 1000 / 100e12)


def test_a_published_rate_is_only_divided() -> None:
    found = content(f"--params 405e9 --achieved 430 {H100}")
    assert found["mfu"] == pytest.approx(430 / 989.4)
    assert (found["unit"], found["hfu"], found["executed_flops"]) == ("second", None, None)
    assert "published-tflops" in found["metric"]
    assert "--achieved-convention" in entry(found, "6N")["problem"]
    assert "HFU" not in printed(f"--params 405e9 --achieved 430 {H100}")


def test_a_reported_figure_is_explained() -> None:
    text = " ".join(printed(f"{PALM} --reported 46.2%").split())
    assert text.startswith("46.2 % could be palm (as nanogpt, llm-foundry, torchtitan and 5 more)")
    assert "; the honest figure is MFU 46.0 % (exact-causal, bf16 dense 275 TFLOP/s)." in text
    found = content(f"{PALM} --reported 46.2%")["reported"]
    assert (found["text"], found["share"]) == ("46.2%", 0.462)
    assert found["candidates"][0]["reproduces"]
    assert "palm" in found["candidates"][0]["conventions"]
    hfu = content(f"{PALM} --reported-hfu 57.8% --checkpointing 0.75,1")["reported"]
    assert "palm" in hfu["candidates"][0]["conventions"]
    assert hfu["candidates"][0]["treatment"] == "with its recomputation (custom 0.75,1)"


def test_a_reported_figure_of_another_peak_is_found() -> None:
    flops = 128 * 8192 * EXACT_8192 / (8 * 9.31)
    for tflops, label in ((1978.8, "bf16 sparse"), (312, "a100"), (1978.9, "fp8 dense")):
        found = content(f"{TIMED} --reported {100 * flops / (tflops * 1e12):.4f}%")["reported"]
        fitting = [one["peak_label"] for one in found["candidates"] if one["reproduces"]]
        assert any(label in one for one in fitting), (tflops, fitting)


def test_a_reported_figure_of_an_impossible_run() -> None:
    options = f"{LLAMA} --step-time 9.31ms {H100} --reported 40%"
    assert "is impossible: check time, tokens, GPUs and peak" in " ".join(printed(options).split())
    found = content(options)
    assert (found["mfu"], found["metric"]) == (None, None)


def test_after_an_hfu_the_honest_figure_is_an_hfu() -> None:
    options = TIMED.replace("9.31", "14.2")
    text = " ".join(printed(f"{options} --checkpointing selective --reported-hfu 49.5%").split())
    assert text.startswith("No known method gives 49.5 %; ")
    assert "with its recomputation (selective), of bf16 dense 989.4 TFLOP/s gives 50.0 %" in text
    assert "the honest figure is HFU 50.0 % (exact-causal" in text
    assert ", beside MFU 48.0 %." in text


def test_a_bare_percentage_below_one_is_read_as_what_fits() -> None:
    found = content(f"{POST} --lora --reported 0.53")["reported"]
    assert found["share"] == 0.0053
    assert found["sentence"].startswith("0.53 (read as 0.53 %) is 4N")
    assert content(f"{PALM} --reported 0.462")["reported"]["share"] == 0.462


@pytest.mark.parametrize("text", ["46.2%", "46.2", "0.462", " 46.2 % "])
def test_ways_to_write_a_share(text: str) -> None:
    assert parse_reported("--reported", text).value == Fraction(462, 1000)


def test_seconds_for_milliseconds_are_refused_with_the_reason() -> None:
    result = run("mfu", *POST.replace("30", "0.03", 1).split())
    assert_refused(result, 3, "of peak is impossible", "off by 1,000: milliseconds")
    assert "MFU 7" not in result.stderr
    assert_refused(run("mfu", *POST.replace("30", "0.03", 1).split(), "--json"), 3)
    doubted = printed(POST.replace("30", "30000", 1))
    assert "is very low: are 30,000 s" in " ".join(doubted.split())


def test_hfu_above_everything_is_refused_too() -> None:
    result = run("mfu", *LLAMA.split(), "--step-time", "8", *H100.split(), "--checkpointing", "1,1")
    assert_refused(result, 3, "not an HFU", "likely: ")
    assert "milliseconds" not in result.stderr


@given(
    seconds=st.integers(min_value=10, max_value=10**6),
    factor=st.integers(min_value=2, max_value=50),
    devices=st.integers(min_value=1, max_value=10**4),
)
@settings(max_examples=examples(15))
def test_mfu_falls_with_time_and_devices(seconds: int, factor: int, devices: int) -> None:
    def mfu(seconds: int, devices: int, tokens: int) -> float:
        options = f"--params 1e9 --tokens {tokens} --step-time {seconds} --gpus {devices}"
        return float(content(f"{options} --peak 100 --lora")["mfu"])

    one = mfu(seconds, devices, 1000)
    assert mfu(factor * seconds, devices, 1000) == pytest.approx(one / factor)
    assert mfu(seconds, factor * devices, 1000) == pytest.approx(one / factor)
    assert mfu(seconds, devices, factor * 1000) == pytest.approx(one * factor)


VIEWS = (
    TIMED,
    f"{TIMED} --all-conventions",
    f"{PALM} --reported 46.2%",
    f"{POST} --lora",
    "--model deepseek-v3 --seq 4096 --mtp 1 --attention-kernel unfused --checkpointing full",
    f"{LLAMA} --documents 100,200 --achieved 430 --achieved-convention 6N {H100} --lora-rank 8",
    "--params 1e18 --tokens 1e18",
)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(view: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(len(line) for line in printed(view).splitlines()) <= width


@pytest.mark.parametrize("view", VIEWS)
def test_json_follows_its_schema(view: str) -> None:
    found = content(view)
    for one in [*found["ledger"], *found["conventions"]]:
        name = "flops" if "line" in one else "model_flops"
        if one[name] is not None and "/" not in one[f"{name}_text"]:
            assert one[name] == int(one[f"{name}_text"])


def test_counts_beyond_64_bits_are_exact() -> None:
    text = printed("--params 405e9 --tokens 1e18", "--json")
    assert f'"model_flops": {6 * 405 * 10**27},' in text
    assert f'"model_flops_text": "{6 * 405 * 10**27}"' in text


def test_the_schema_would_notice() -> None:
    found = content(POST)
    for change in ({"mfu": 1.2}, {"unit": "day"}, {"more": 1}, {"model_flops_text": "1.5e3"}):
        assert list(VALIDATOR.iter_errors(found | change)) != []


def test_colour_only_where_it_is_wanted_and_characters_the_terminal_has() -> None:
    done = shell(f"$TF mfu {POST} | head -1; exit ${{PIPESTATUS[0]}}", NO_COLOR="", FORCE_COLOR="1")
    assert "\x1b[1m" in done.stdout
    assert done.returncode == 0
    plain = shell(f"$TF mfu {TIMED}", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert plain.stdout.isascii()
    assert "8 x H100" in plain.stdout


def test_the_presets_are_listed() -> None:
    lines = printed("--list-models").splitlines()
    assert re.search(r"^llama-3-8b +Llama 3 8B$", "\n".join(lines), re.M)
    found = json.loads(printed("--list-models --json"))
    assert found["schema"] == "traceflops.models/1"
    assert len(found["models"]) == len(lines)
    (llama,) = [one for one in found["models"] if one["id"] == "llama-3-8b"]
    assert llama["parameters"] == 8_030_261_248


def test_help_groups_the_options() -> None:
    text = run("mfu", "--help").stdout
    headings = re.findall(r"^(\w.*):$", text, re.M)
    assert headings == [
        "Arguments",
        "Model",
        "Tokens per step, all devices together",
        "Time (choose one)",
        "Devices and their peak",
        "Training",
        "Input",
        "Select",
        "MFU",
        "Output",
        "Privacy",
        "Options",
        "Examples",
    ]
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "-\n" not in text
