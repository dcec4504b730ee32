"""Conventions: test vectors, the ledger's identities, and what each one takes and leaves.

`llama3_8b.csv` has FLOPs per token of Llama 3 8B at two lengths, counted by hand from the formula
of each convention's own source (the references are in the table of conventions).
"""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.flops.analytic.conventions import CONVENTIONS, DEFAULT
from traceflops.flops.analytic.run import FULL_CHECKPOINT, SELECTIVE, Checkpoint, Lora, Run
from traceflops.flops.analytic.run_flops import (
    default_convention,
    model_flops,
    obstacle,
)
from traceflops.flops.mfu_waterfall import Count, Ledger, Line
from traceflops.flops.model.blocks import CAUSAL, Attention, Block, Experts, FeedForward, Mask
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build
from traceflops.flops.model.models import preset

VECTORS = list(
    csv.DictReader(Path(__file__).with_name("llama3_8b.csv").read_text("utf-8").splitlines())
)
LLAMA = preset("llama-3-8b")
FROZEN = frozenset({"all"})


@pytest.mark.parametrize("row", VECTORS, ids=[row["convention"] for row in VECTORS])
@pytest.mark.parametrize("length", [8192, 131072])
def test_flops_per_token(row: dict[str, str], length: int) -> None:
    figure = model_flops(LLAMA, Run(batch=1, seq=length), row["convention"]).figure
    assert figure == int(row[str(length)]) * length


@pytest.mark.parametrize(
    ("length", "expected"), [(8192, 68_650_270_720), (131072, 213_605_416_960)]
)
def test_executed_with_flash_attention_and_all_blocks_recomputed(
    length: int, expected: int
) -> None:
    run = Run(batch=1, seq=length, checkpoint=FULL_CHECKPOINT, attention_kernel="flash")
    assert model_flops(LLAMA, run, "megatron").executed == expected * length


def small(**more: object) -> ModelCard:
    values = {"hidden": 64, "layers": 2, "heads": 4, "ffn": 256, "glu": False, "vocab": 100}
    return build({**values, **more}, "small")


def lines(ledger: Ledger, depth: int = 3) -> dict[str, Count]:
    sums: dict[str, Count] = {}
    for line in ledger.lines:
        name = ".".join(line.name.split(".")[:depth])
        sums[name] = sums.get(name, 0) + line.flops
    return sums


def test_a_small_step_as_it_was_measured() -> None:
    """Three sequences of 40 tokens, torch 2.13, blocks checkpointed (reentrant), flash backward."""
    run = Run(batch=3, seq=40, checkpoint=FULL_CHECKPOINT, attention_kernel="flash")
    ledger = model_flops(small(bias=["ffn"]), run)
    assert {
        name: sum(flops for n, flops in lines(ledger).items() if n.startswith(name))
        for name in (
            "model.matmul.forward",
            "model.matmul.input_grad",
            "model.matmul.weight_grad",
            "model.attention.forward",
            "model.attention.backward",
            "recompute.matmul",
            "recompute.attention",
            "algorithmic.attention",
        )
    } == {
        "model.matmul.forward": 25_128_960,
        "model.matmul.input_grad": 25_128_960,
        "model.matmul.weight_grad": 25_128_960,
        "model.attention.forward": 1_259_520,
        "model.attention.backward": 2_519_040,
        "recompute.matmul": 23_592_960,
        "recompute.attention": 1_259_520,
        "algorithmic.attention": 629_760,
    }
    assert (ledger.model, ledger.executed) == (79_165_440, 104_647_680)


def test_the_lines_of_a_step_by_name() -> None:
    ledger = model_flops(small(), Run(batch=1, seq=2))
    assert ledger.lines == (
        Line("model.matmul.forward.attention", 2 * 2 * 2 * 4 * 64 * 64),
        Line("model.matmul.input_grad.attention", 2 * 2 * 2 * 4 * 64 * 64),
        Line("model.matmul.weight_grad.attention", 2 * 2 * 2 * 4 * 64 * 64),
        Line("model.matmul.forward.ffn", 2 * 2 * 2 * 2 * 64 * 256),
        Line("model.matmul.input_grad.ffn", 2 * 2 * 2 * 2 * 64 * 256),
        Line("model.matmul.weight_grad.ffn", 2 * 2 * 2 * 2 * 64 * 256),
        Line("model.matmul.forward.head", 2 * 2 * 6400),
        Line("model.matmul.input_grad.head", 2 * 2 * 6400),
        Line("model.matmul.weight_grad.head", 2 * 2 * 6400),
        Line("model.attention.forward", 2 * 2 * 3 * 4 * 32),
        Line("model.attention.backward", 2 * 2 * 2 * 3 * 4 * 32),
    )


def test_resnet_18_as_it_was_measured() -> None:
    """One step of ten images, recomputed but for the stem, whose input gradient is never needed."""
    ledger = model_flops(preset("resnet-18"), Run(batch=10, checkpoint=FULL_CHECKPOINT))
    found = lines(ledger)
    assert found["model.conv.forward"] == found["model.conv.weight_grad"] == 36_271_226_880
    assert found["model.conv.input_grad"] == found["recompute.conv"] == 33_910_947_840
    assert ledger.total("model.matmul.forward") == 10_240_000
    assert ledger.model == 106_484_121_600
    assert ledger.executed == 140_395_069_440


def test_grouped_convolutions_and_the_bug_of_the_flop_counter() -> None:
    conv = {"channels": [8, 16], "input": [10, 10], "kernel": 3, "padding": 1, "groups": 4}
    card = build({"conv": [{**conv, "stem": False}]}, "card")
    right = model_flops(card, Run(batch=2))
    assert right.total("model.conv.forward") == 115_200
    assert right.model == 115_200 + 230_400
    assert model_flops(card, Run(batch=2), "flopcounter").model == 115_200 + 576_000


runs = st.builds(
    Run,
    batch=st.integers(1, 5),
    seq=st.integers(1, 300),
    checkpoint=st.sampled_from(
        [
            Checkpoint(),
            SELECTIVE,
            FULL_CHECKPOINT,
            Checkpoint("c", Fraction(3, 4), Fraction(1), "all"),
        ]
    ),
    attention_kernel=st.sampled_from([None, "flash", "unfused"]),
    forward_only=st.booleans(),
    frozen=st.sampled_from([frozenset(), FROZEN, frozenset({"ffn"}), frozenset({"attention"})]),
    lora=st.sampled_from([None, Lora(rank=4), Lora(params=1000)]),
)
names = st.sampled_from([name for name in CONVENTIONS if CONVENTIONS[name].weights != "none"])
MIXED = small(experts={"count": 8, "topk": 2, "width": 32, "shared": 16, "dense_layers": 1}, mtp=1)
WINDOWED = small(window=16, pattern=["window", "causal"], kv_heads=2, tied=True, positions=7)
cards = st.sampled_from([small(), MIXED, WINDOWED, LLAMA, preset("deepseek-v2-lite")])


@given(cards, runs, names)
def test_the_lines_sum_to_the_totals_and_are_exact(card: ModelCard, run: Run, name: str) -> None:
    if obstacle(card, run, name) is not None:
        return
    ledger = model_flops(card, run, name)
    assert all(isinstance(line.flops, int | Fraction) for line in ledger.lines)
    assert all(line.flops > 0 for line in ledger.lines)
    tops = ("model", "convention", "recompute", "algorithmic", "overcompute")
    assert sum(ledger.total(top) for top in tops) == ledger.executed
    assert sum(line.flops for line in ledger.lines) == ledger.executed
    assert ledger.model <= ledger.executed
    assert ledger.figure in (ledger.model, ledger.executed)


@given(runs, names, st.integers(1, 9), st.integers(1, 9))
def test_layers_add_up(run: Run, name: str, first: int, second: int) -> None:
    def flops(layers: int) -> Count:
        return model_flops(small(layers=layers), run, name).model

    if obstacle(small(), run, name) is None and name != "automodel-lora" and run.lora is None:
        assert flops(first) + flops(second) == flops(first + second) + flops(1) + flops(1) - flops(
            2
        )


@given(cards, names, st.integers(1, 400), st.integers(1, 50))
def test_more_tokens_never_cost_less(card: ModelCard, name: str, length: int, more: int) -> None:
    if obstacle(card, Run(batch=1, seq=1), name) is None:
        shorter = model_flops(card, Run(batch=2, seq=length), name).figure
        assert shorter < model_flops(card, Run(batch=2, seq=length + more), name).figure
        assert 3 * shorter == 2 * model_flops(card, Run(batch=3, seq=length), name).figure


@given(st.integers(1, 200), st.integers(0, 50), names)
def test_a_window_as_long_as_the_sequence_is_causal(length: int, more: int, name: str) -> None:
    run = Run(batch=1, seq=length)
    wide = small(window=length + more)
    assert model_flops(wide, run, name).lines == model_flops(small(), run, name).lines


@given(st.integers(1, 4000))
def test_frozen_weights_leave_two_thirds_of_the_matmuls(length: int) -> None:
    full = model_flops(LLAMA, Run(batch=1, seq=length))
    frozen = model_flops(LLAMA, Run(batch=1, seq=length, frozen=FROZEN))
    assert 3 * frozen.total("model.matmul") == 2 * full.total("model.matmul")
    assert frozen.total("model.attention") == full.total("model.attention")
    assert frozen.total("model.matmul.weight_grad") == 0


def test_adapters_cost_six_per_weight_and_are_a_line_of_their_own() -> None:
    run = Run(batch=1, seq=10, lora=Lora(rank=8, targets=("q", "v")))
    ledger = model_flops(LLAMA, run)
    adapters = 32 * 8 * (4096 + 4096 + 4096 + 1024)
    assert Lora(rank=8, targets=("q", "v")).parameters(LLAMA) == adapters
    found = {name: flops for name, flops in lines(ledger, 4).items() if "adapters" in name}
    assert found == {
        "model.matmul.forward.adapters": 20 * adapters,
        "model.matmul.input_grad.adapters": 20 * adapters,
        "model.matmul.weight_grad.adapters": 20 * adapters,
    }
    assert model_flops(LLAMA, run, "lora-exact").lines == tuple(
        replace(line) for line in ledger.lines
    )
    with pytest.raises(UsageError, match="no matrix 'wq' to adapt"):
        model_flops(LLAMA, replace(run, lora=Lora(rank=8, targets=("wq",))))


def test_only_what_is_frozen_has_no_weight_gradient() -> None:
    ledger = model_flops(small(), Run(batch=1, seq=4, frozen=frozenset({"ffn"})))
    gradients = {line.name for line in ledger.lines if "weight_grad" in line.name}
    assert gradients == {"model.matmul.weight_grad.attention", "model.matmul.weight_grad.head"}


def test_below_the_lowest_trained_layer_no_gradient_flows() -> None:
    run = Run(batch=1, seq=4)
    half = model_flops(small(layers=4), replace(run, frozen_layers=2, checkpoint=FULL_CHECKPOINT))
    two = model_flops(small(layers=2), replace(run, checkpoint=FULL_CHECKPOINT))
    forward = model_flops(small(layers=2), replace(run, forward_only=True))
    head = 2 * 4 * 6400
    assert half.executed == two.executed + forward.executed - head
    assert half.total("recompute") == two.total("recompute")


def test_a_forward_pass_is_a_third_and_decoding_attends_to_the_cache() -> None:
    run = Run(batch=2, seq=64)
    training = model_flops(small(), run)
    assert 3 * model_flops(small(), replace(run, forward_only=True)).model == training.model
    one = Run(batch=1, seq=1, cached=99, forward_only=True)
    assert model_flops(small(), one).model == 2 * small().weights() + 2 * 2 * 100 * 4 * 32


def test_packed_documents_attend_to_themselves_only() -> None:
    ledger = model_flops(small(), Run(documents=(3, 5), batch=1, seq=8))
    assert ledger.total("model.attention.forward") == 2 * 2 * (6 + 15) * 4 * 32
    megatron = model_flops(small(), Run(documents=(3, 5), batch=1, seq=8), "megatron")
    assert megatron.total("model.attention.forward") == 2 * (9 + 25) * 4 * 32
    whole = model_flops(small(), Run(documents=(3, 5), batch=1, seq=8), "matmul-full")
    assert whole.total("model.attention.forward") == 2 * 2 * 64 * 4 * 32
    assert ledger.total("overcompute") == 0


def test_padding_is_executed_and_no_model_work() -> None:
    padded = model_flops(small(), Run(batch=2, seq=8, documents=(3, 5)))
    real = model_flops(small(), Run(documents=(3, 5)))
    full = model_flops(small(), Run(batch=2, seq=8))
    assert padded.model == real.model
    assert padded.executed == full.executed
    assert padded.total("overcompute.padding") == full.model - real.model


@given(st.integers(1, 40), st.integers(1, 200))
def test_real_tokens_of_unknown_lengths_are_shared_out_evenly(batch: int, real: int) -> None:
    real = min(real, batch * 8)
    found = model_flops(small(), Run(batch=batch, seq=8, real_tokens=real))
    short, longer = divmod(real, batch)
    lengths = (short,) * (batch - longer) + (short + 1,) * longer
    even = model_flops(small(), Run(documents=tuple(length for length in lengths if length)))
    assert found.model == even.model


def test_capacity_and_padded_vocabulary_are_lines_of_their_own() -> None:
    experts = {"count": 8, "topk": 2, "width": 32}
    plain = model_flops(small(experts=experts), Run(batch=1, seq=16))
    card = small(experts={**experts, "capacity": 2}, padded_vocab=128)
    ledger = model_flops(card, Run(batch=1, seq=16))
    assert ledger.model == plain.model
    per_pass = 2 * 16 * 2 * 2 * 2 * 64 * 32
    assert ledger.total("overcompute.padding.experts") == 3 * per_pass
    assert ledger.total("overcompute.padding.vocab") == 3 * 2 * 16 * 64 * 28
    assert (
        model_flops(card, Run(batch=1, seq=16), "megatron").total("model.matmul.forward.head")
        == 2 * 16 * 64 * 128
    )


def test_unfused_attention_computes_masked_pairs() -> None:
    ledger = model_flops(small(), Run(batch=1, seq=10, attention_kernel="unfused"))
    attention = ledger.total("model.attention") + ledger.total("overcompute.mask")
    assert attention == 3 * 2 * 2 * 100 * 4 * 32


def test_router_in_or_out() -> None:
    run = Run(batch=1, seq=16)
    with_router = model_flops(MIXED, run, "maxtext").model
    router = 3 * 2 * 16 * 64 * 8 * 2  # one layer of two, and the prediction module
    assert with_router - model_flops(MIXED, run, "megatron").model == router


def test_cross_attention_reads_the_encoder() -> None:
    encoder = {"hidden": 32, "layers": 1, "heads": 2, "ffn": 64, "glu": False}
    card = small(encoder=encoder)
    run = Run(batch=2, seq=8, encoder_seq=5, forward_only=True)
    found = lines(model_flops(card, run), 4)
    assert found["model.matmul.forward.cross"] == 2 * 2 * (8 * 2 * 64 * 64 + 5 * 2 * 32 * 64) * 2
    tokens = 2 * 5
    assert found["model.matmul.forward.attention"] == (
        2 * 16 * 2 * 4 * 64 * 64 + 2 * tokens * 4 * 32 * 32
    )
    pairs = 2 * (2 * 36 * 4 * 32 + 2 * 40 * 4 * 32) + 2 * 25 * 2 * 32
    assert found["model.attention.forward"] == 2 * pairs
    with pytest.raises(UsageError, match="encoder's sequence length"):
        model_flops(card, Run(batch=2, seq=8))
    assert obstacle(card, run, "palm") == "encoder and decoder process different tokens"


def test_a_frozen_encoder_has_no_backward_pass() -> None:
    encoder = {"hidden": 32, "layers": 1, "heads": 2, "ffn": 64, "glu": False}
    run = Run(batch=2, seq=8, encoder_seq=5)
    card = small(encoder=encoder)
    trained = model_flops(card, run)
    frozen = model_flops(card, replace(run, frozen=frozenset({"encoder"})))
    forward = 2 * 10 * (4 * 32 * 32 + 2 * 32 * 64)
    attention = 2 * 2 * 25 * 2 * 32
    keys = 2 * 2 * 10 * 2 * 32 * 64  # no input gradient of keys and values in two layers
    assert trained.model - frozen.model == 2 * forward + 2 * attention + keys


def test_the_vision_transformer_works_on_patches() -> None:
    card = preset("vit-base-16")
    ledger = model_flops(card, Run(batch=4))
    assert ledger.total("model.matmul.forward.patch") == 2 * 4 * 196 * 768 * 768
    assert ledger.total("model.matmul.input_grad.patch") == 0
    assert ledger.total("model.matmul.forward.head") == 2 * 4 * 768 * 1000
    assert ledger.total("model.attention.forward") == 4 * 12 * 2 * 197**2 * 12 * 128


def test_the_two_matrix_rule_and_the_window_of_gpt_oss() -> None:
    run, card = Run(batch=1, seq=4096), preset("gpt-oss-120b")
    wrong = model_flops(card, run, "gptoss-pre2606")
    right = model_flops(card, run, "megatron")
    assert 3 * wrong.total("model.matmul.forward.experts") == 2 * right.total(
        "model.matmul.forward.experts"
    )
    assert wrong.total("model.attention") > right.total("model.attention")
    assert Fraction(83, 100) < Fraction(wrong.model) / right.model < Fraction(84, 100)


def test_sc21_is_its_closed_form() -> None:
    """96 B T L h^2 (1 + T/6h + V/16Lh), for a model of its own table."""
    card, batch, seq = preset("gpt-18.4b"), 3, 2048
    layers, hidden, vocab = 40, 6144, 51200
    form = 96 * batch * seq * layers * hidden**2
    total = form * (1 + Fraction(seq, 6 * hidden) + Fraction(vocab, 16 * layers * hidden))
    assert model_flops(card, Run(batch=batch, seq=seq), "sc21").figure == total


def test_recomputation_by_scope() -> None:
    run = Run(batch=1, seq=64, checkpoint=FULL_CHECKPOINT)
    exact = model_flops(small(), run)
    head = 2 * 64 * 6400
    assert exact.total("recompute") == exact.total("model") / 3 - head
    foundry = model_flops(small(), run, "llm-foundry")
    assert 3 * foundry.executed == 4 * foundry.model
    half = replace(run, checkpoint=Checkpoint("half", Fraction(1, 2), Fraction(1, 3)))
    assert model_flops(small(), half).total("recompute.matmul") * 2 == exact.total(
        "recompute.matmul"
    )


def test_the_whole_vector_says_what_cannot_be_computed() -> None:
    vector = {name: obstacle(LLAMA, Run(batch=1, seq=4096), name) for name in CONVENTIONS}
    without = [name for name, problem in vector.items() if problem is not None]
    assert without == ["deepspeed", "published-tflops"]
    card = ModelCard(name="m", params=10**9)
    problems = {name: obstacle(card, Run(tokens=1000), name) for name in CONVENTIONS}
    countable = [name for name, problem in problems.items() if problem is None]
    assert countable == ["6N", "6N-active", "4N", "seed-matmul", "lora-matmul"]
    assert all(model_flops(card, Run(tokens=1000), name).model for name in countable)
    assert (
        problems["exact-causal"] == "the description lacks hidden, layers, heads, ffn, glu, vocab"
    )
    assert problems["palm"] == "the description lacks layers, heads and head_dim"
    assert (
        "levanter" in CONVENTIONS
        and obstacle(preset("deepseek-v3"), Run(batch=1, seq=8), "levanter")
        == "its heads do not add up to the hidden width"
    )


def test_the_default_follows_what_is_known() -> None:
    bare = ModelCard(name="m", params=10**9)
    assert default_convention(LLAMA, Run(tokens=8)) == DEFAULT
    assert default_convention(bare, Run(tokens=8)) == "6N"
    assert default_convention(bare, Run(tokens=8, frozen=FROZEN)) == "4N"
    assert default_convention(bare, Run(tokens=8, lora=Lora(params=5))) == "4N"


def test_an_unknown_convention_and_a_missing_length() -> None:
    with pytest.raises(UsageError, match="unknown convention '8N'") as caught:
        model_flops(LLAMA, Run(tokens=8), "8N")
    assert caught.value.hint.startswith("known: exact-causal, ")
    with pytest.raises(UsageError, match="the sequence length is unknown"):
        model_flops(LLAMA, Run(tokens=8))


def test_attention_by_heads_not_by_key_heads() -> None:
    def attention(kv_heads: int) -> Count:
        block = Block(
            attention=Attention(heads=8, kv_heads=kv_heads, head_dim=16, mask=CAUSAL),
            feed_forward=FeedForward(width=8, glu=True),
        )
        card = ModelCard(name="c", hidden=32, vocab=9, blocks=((1, block),))
        return model_flops(card, Run(batch=1, seq=9)).total("model.attention")

    assert attention(8) == attention(2) == attention(1) == 3 * 2 * 45 * 8 * 32


def test_a_chunked_layer_counts_its_chunks() -> None:
    block = Block(
        attention=Attention(heads=1, kv_heads=1, head_dim=1, mask=Mask("chunk", 4)),
        feed_forward=Experts(count=2, topk=1, width=1, glu=False),
    )
    card = ModelCard(name="c", hidden=1, vocab=1, blocks=((1, block),))
    ledger = model_flops(card, Run(batch=1, seq=10, forward_only=True))
    assert ledger.total("model.attention") == 2 * (10 + 10 + 3) * 2
