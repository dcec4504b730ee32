"""config.json of every family: the parameters of published checkpoints, and what is refused.

The counts are those of the checkpoints on the Hugging Face hub, as their safetensors index has them
(text part where a model also sees). They are exact, so every bias and norm must be right.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflops.errors import InputError, TraceflopsError, UsageError
from traceflops.facts import Fact, fact
from traceflops.flops.model.blocks import Experts
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.families import FAMILIES
from traceflops.flops.model.models import card_of_config, read_card

Config = dict[str, Any]


def usual(kind: str, *sizes: int, **more: Any) -> Config:
    names = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "vocab_size"),
    )
    return {"model_type": kind, **dict(zip(names, sizes, strict=True)), **more}


LLAMA3 = usual("llama", 4096, 32, 32, 8, 14336, 128256, tie_word_embeddings=False)
MIXTRAL = usual(
    "mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2
)
QWEN_MOE = {
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
}
A3B = {"head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V2_LITE = {
    **LATENT,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
}
V3 = {
    **LATENT,
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
}
KIMI = {**V3, "n_routed_experts": 384, "first_k_dense_replace": 1}
OSS = {"head_dim": 64, "sliding_window": 128, "num_experts_per_tok": 4}
SCOUT = {
    "head_dim": 128,
    "intermediate_size_mlp": 16384,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
FALCON = {"model_type": "falcon", "vocab_size": 65024, "multi_query": True, "bias": False}
BERT = usual("bert", 768, 12, 12, 12, 3072, 30522, max_position_embeddings=512, type_vocab_size=2)
VIT = usual("vit", 768, 12, 12, 12, 3072, 0, image_size=224, patch_size=16)
T5 = {"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6}
GEMMA3_4B = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}

PUBLISHED: list[tuple[str, int, Config]] = [
    ("Llama 3 8B", 8_030_261_248, LLAMA3),
    (
        "Mistral 7B v0.1",
        7_241_732_096,
        usual("mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096),
    ),
    ("Mixtral 8x7B", 46_702_792_704, MIXTRAL),
    ("Qwen2.5-7B", 7_615_616_512, usual("qwen2", 3584, 28, 28, 4, 18944, 152064)),
    (
        "Qwen2.5-0.5B",
        494_032_768,
        usual("qwen2", 896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True),
    ),
    (
        "Qwen1.5-MoE-A2.7B",
        14_315_784_192,
        usual("qwen2_moe", 2048, 24, 16, 16, 5632, 151936, **QWEN_MOE),
    ),
    ("Qwen3-8B", 8_190_735_360, usual("qwen3", 4096, 36, 32, 8, 12288, 151936)),
    ("Qwen3-30B-A3B", 30_532_122_624, usual("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, **A3B)),
    ("Gemma 7B", 8_537_680_896, usual("gemma", 3072, 28, 16, 16, 24576, 256000)),
    (
        "Gemma 2 9B",
        9_241_705_984,
        usual("gemma2", 3584, 42, 16, 8, 14336, 256000, sliding_window=4096),
    ),
    (
        "Gemma 3 1B",
        999_885_952,
        usual("gemma3_text", 1152, 26, 4, 1, 6912, 262144, sliding_window=512),
    ),
    (
        "Gemma 3 4B, text",
        3_880_263_168,
        {"model_type": "gemma3", "text_config": {**GEMMA3_4B, "model_type": "gemma3_text"}},
    ),
    ("GPT-2", 124_439_808, {**GPT2, "n_positions": 1024}),
    ("GPT-NeoX-20B", 20_554_567_680, usual("gpt_neox", 6144, 44, 64, 64, 24576, 50432)),
    (
        "Falcon 7B",
        6_921_720_704,
        {**FALCON, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71},
    ),
    (
        "Falcon 40B",
        41_303_293_952,
        {
            **FALCON,
            "hidden_size": 8192,
            "n_layer": 60,
            "n_head": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
        },
    ),
    ("Phi-2", 2_779_683_840, usual("phi", 2560, 32, 32, 32, 10240, 51200)),
    ("Phi-4", 14_659_507_200, usual("phi3", 5120, 40, 40, 10, 17920, 100352)),
    (
        "DeepSeek-V2-Lite",
        15_706_484_224,
        usual("deepseek_v2", 2048, 27, 16, 16, 10944, 102400, **V2_LITE),
    ),
    ("DeepSeek-V3", 671_026_419_200, usual("deepseek_v3", 7168, 61, 128, 128, 18432, 129280, **V3)),
    ("Kimi-K2", 1_026_408_232_448, usual("kimi_k2", 7168, 61, 64, 64, 18432, 163840, **KIMI)),
    (
        "gpt-oss-20b",
        20_914_757_184,
        usual("gpt_oss", 2880, 24, 64, 8, 2880, 201088, **OSS, num_local_experts=32),
    ),
    (
        "gpt-oss-120b",
        116_829_156_672,
        usual("gpt_oss", 2880, 36, 64, 8, 2880, 201088, **OSS, num_local_experts=128),
    ),
    (
        "Llama 4 Scout, text",
        107_769_861_120,
        usual("llama4_text", 5120, 48, 40, 8, 8192, 202048, **SCOUT),
    ),
    ("BERT base", 109_482_240, BERT),
    ("BERT base, masked", 109_514_298, {**BERT, "architectures": ["BertForMaskedLM"]}),
    ("BERT base, both heads", 110_106_428, {**BERT, "architectures": ["BertForPreTraining"]}),
    (
        "ViT-B/16",
        86_567_656,
        {
            **VIT,
            "architectures": ["ViTForImageClassification"],
            "id2label": {str(label): "" for label in range(1000)},
        },
    ),
    ("T5 small", 60_506_624, {**T5, "num_heads": 8, "vocab_size": 32128}),
]


@pytest.mark.parametrize(("name", "params", "config"), PUBLISHED, ids=[one[0] for one in PUBLISHED])
def test_parameters_of_published_checkpoints(name: str, params: int, config: Config) -> None:
    assert card_of_config(config, name).total == params


def test_every_family_has_a_checkpoint_to_prove_it() -> None:
    inner = [config.get("text_config", config)["model_type"] for _, _, config in PUBLISHED]
    assert set(inner) == set(FAMILIES)


def masks_of(card: ModelCard) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for one in card.cores():
        found[one.core.mask.kind, one.core.mask.size] += one.times
    return found


def test_sliding_windows_every_other_layer_beginning_with_a_window() -> None:
    card = card_of_config(config_of("gpt-oss-120b"), "c")
    assert masks_of(card) == {("window", 128): 18, ("causal", 0): 18}
    assert [block.cores[0].mask.kind for _, block in card.blocks[:3]] == [
        "window",
        "causal",
        "window",
    ]


def config_of(name: str) -> Config:
    return next(config for known, _, config in PUBLISHED if known == name)


def test_windows_and_chunks_of_other_families() -> None:
    assert masks_of(card_of_config(config_of("Gemma 3 1B"), "c")) == {
        ("window", 512): 22,
        ("causal", 0): 4,
    }
    assert masks_of(card_of_config(config_of("Mistral 7B v0.1"), "c")) == {("window", 4096): 32}
    assert masks_of(card_of_config(config_of("Llama 4 Scout, text"), "c")) == {
        ("chunk", 8192): 36,
        ("causal", 0): 12,
    }
    late = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert masks_of(card_of_config({**config_of("Qwen2.5-7B"), **late}, "c")) == {
        ("causal", 0): 20,
        ("window", 4096): 8,
    }


def test_layer_types_win_over_the_family() -> None:
    kinds = ["full_attention"] * 30 + ["sliding_attention"] * 6
    card = card_of_config({**config_of("gpt-oss-120b"), "layer_types": kinds}, "c")
    assert masks_of(card) == {("causal", 0): 30, ("window", 128): 6}


def mixed_layers(card: ModelCard) -> int:
    return sum(count for count, block in card.blocks if isinstance(block.feed_forward, Experts))


def test_dense_layers_among_experts() -> None:
    assert mixed_layers(card_of_config(config_of("DeepSeek-V3"), "c")) == 58
    sparse = {**config_of("Qwen3-30B-A3B"), "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    assert mixed_layers(card_of_config(sparse, "c")) == 23


def test_what_is_left_out_is_said() -> None:
    assert card_of_config(config_of("Gemma 3 4B, text"), "c").notes == (
        defaults_of(
            "gemma3_text",
            *("vocab_size 262208", "num_attention_heads 8", "num_key_value_heads 4"),
            *("head_dim 256", "sliding_window 4096"),
        ),
        fact("described.text-part", model="'gemma3'"),
    )
    (note,) = card_of_config(config_of("DeepSeek-V3"), "c").notes
    assert note == fact("described.prediction-modules", modules=1)


def defaults_of(kind: str, *sizes: str) -> Fact:
    """Return the note on sizes that a config leaves to its class."""
    return fact("described.defaults", kind=kind, sizes=sizes)


KV_HEADS: list[tuple[str, int | None]] = [
    # of the configuration classes of transformers; a class without a number has as many as heads
    *(("mistral", 8), ("mixtral", 8), ("qwen2", 32), ("qwen2_moe", 16), ("qwen3", 32)),
    *(("qwen3_moe", 4), ("gemma", 16), ("gemma2", 4), ("gpt_oss", 8), ("llama4_text", 8)),
    *(("llama", None), ("phi", None), ("phi3", None)),
]


@pytest.mark.parametrize(("kind", "default"), KV_HEADS)
def test_key_and_value_heads_that_a_config_lacks_are_those_of_its_class(
    kind: str, default: int | None
) -> None:
    config = next(one for _, _, one in PUBLISHED if one.get("model_type") == kind)
    config = {**config, "num_attention_heads": 32, "hidden_size": 4096, "head_dim": 128}
    without = {key: value for key, value in config.items() if key != "num_key_value_heads"}
    card = card_of_config(without, "c")
    kept = {one.linear.outputs for one in card.placed() if one.linear.name == "k"}
    assert kept == {128 * (default or 32)}
    said = defaults_of(kind, f"num_key_value_heads {default}")
    assert card.notes == ((said,) if default is not None else ())
    # A null is no default: it says that there are as many as heads.
    null = card_of_config({**config, "num_key_value_heads": None}, "c")
    assert {one.linear.outputs for one in null.placed() if one.linear.name == "k"} == {128 * 32}
    assert null.notes == ()


def without(name: str, *keys: str) -> Config:
    return {key: value for key, value in config_of(name).items() if key not in keys}


SLIDING = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("name", "kinds", "size", "layers"),
    [
        ("gpt-oss-20b", None, 128, 12),
        ("gpt-oss-20b", SLIDING * 12, 128, 12),
        ("Gemma 2 9B", None, 4096, 21),
        ("Gemma 3 1B", ["sliding_attention"] * 26, 4096, 26),
        ("Mistral 7B v0.1", None, 4096, 32),
    ],
)
def test_a_window_that_a_config_lacks_is_that_of_its_class(
    name: str, kinds: list[str] | None, size: int, layers: int
) -> None:
    config = without(name, "sliding_window") | ({"layer_types": kinds} if kinds else {})
    card = card_of_config(config, "c")
    assert masks_of(card)["window", size] == layers
    assert f"sliding_window {size}" in sizes_assumed(card)
    for whole in (name, "Qwen3-8B"):
        assert "sliding_window" not in " ".join(
            sizes_assumed(card_of_config(config_of(whole), "c"))
        )


def sizes_assumed(card: ModelCard) -> list[str]:
    """Return the sizes that a config leaves to its class."""
    notes = [note.values["sizes"] for note in card.notes if "sizes" in note.values]
    return [str(size) for sizes in notes if isinstance(sizes, tuple) for size in sizes]


MANY = 10**9
NO_TEXT: tuple[object, ...] = (["llama"], {}, 3, True)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt-oss-20b", {"sliding_window": None}, "'sliding_window' is missing, but some layers"),
        ("Gemma 3 1B", {"sliding_window": None}, "'sliding_window' is missing, but some layers"),
        (
            "Mixtral 8x7B",
            {"layer_types": SLIDING * 16},
            "'sliding_window' is missing, but some layers have sliding_attention",
        ),
        (
            "Llama 4 Scout, text",
            {"attention_chunk_size": None, "layer_types": ["chunked_attention"] * 48},
            "'attention_chunk_size' is missing, but some layers have chunked_attention",
        ),
        (
            "gpt-oss-20b",
            {"layer_types": ["full_attention"]},
            "'layer_types' has 1 entries, but num_hidden_layers is 24",
        ),
        (
            "Llama 4 Scout, text",
            {"no_rope_layers": [1, 1]},
            "'no_rope_layers' has 2 entries, but num_hidden_layers is 48",
        ),
        (
            "Qwen3-30B-A3B",
            {"mlp_only_layers": [0, 1, 99]},
            "'mlp_only_layers' has layer 99, but num_hidden_layers is 48",
        ),
        (
            "Llama 4 Scout, text",
            {"moe_layers": [48]},
            "'moe_layers' has layer 48, but num_hidden_layers is 48",
        ),
        (
            "DeepSeek-V3",
            {"first_k_dense_replace": 70},
            "'first_k_dense_replace' is 70, but num_hidden_layers is 61",
        ),
        *(
            (name, {"num_hidden_layers": MANY}, f"{MANY} layers exceed the limit of 10000")
            for name in (
                *("Mistral 7B v0.1", "Gemma 2 9B", "Gemma 3 1B", "Qwen3-30B-A3B", "Phi-4"),
                *("DeepSeek-V3", "gpt-oss-20b", "Llama 4 Scout, text", "Qwen1.5-MoE-A2.7B"),
            )
        ),
        *(("Llama 3 8B", {"model_type": kind}, "'model_type' is not text: ") for kind in NO_TEXT),
        ("Gemma 3 4B, text", {"text_config": {"model_type": [1]}}, "text_config: 'model_type' is"),
        (
            "Gemma 3 4B, text",
            {"model_type": "x", "text_config": {}},
            "text_config: model_type is missing",
        ),
        (
            "Gemma 3 4B, text",
            {"model_type": None, "text_config": {}},
            "text_config: model_type is mis",
        ),
        (
            "Llama 3 8B",
            {"hidden_size": 10**30},
            "100000000000000000000000…, which is too large",
        ),
        ("Llama 3 8B", {"hidden_size": None}, "'hidden_size' is missing"),
    ],
)
def test_what_a_config_cannot_mean_is_one_line(name: str, change: Config, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        card_of_config({**config_of(name), **change}, "config")
    assert caught.value.message.startswith("config")
    assert message in caught.value.message
    assert "\n" not in caught.value.message + caught.value.hint


def test_a_hint_has_the_words_of_a_config() -> None:
    for change, words in (
        ({"num_key_value_heads": 5}, "num_key_value_heads must divide num_attention_heads"),
        ({"hidden_size": 4100}, "correct num_attention_heads or hidden_size"),
        ({"hidden_size": None, "vocab_size": None}, "add hidden_size, vocab_size"),
    ):
        with pytest.raises(UsageError) as caught:
            card_of_config({**LLAMA3, **change}, "config")
        assert words in caught.value.hint
    with pytest.raises(UsageError, match="28 heads are not a multiple of 32 kv_heads") as caught:
        card_of_config(without("Qwen2.5-7B", "num_key_value_heads"), "config")
    assert "defaults of qwen2 apply: num_key_value_heads 32" in caught.value.hint


def test_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA3, "rope_theta": 500000.0, "torch_dtype": "bfloat16"}))
    assert read_card(file).total == 8_030_261_248


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", InputError, "invalid JSON"),
        ("[]", InputError, "not a JSON object"),
        ("{}", UsageError, "model_type is missing"),
        ('{"model_type": "mamba"}', UsageError, "unknown model_type 'mamba'"),
        ('{"model_type": "llama"}', UsageError, "'hidden_size' is missing"),
        (
            json.dumps({**LLAMA3, "num_key_value_heads": 5}),
            UsageError,
            "32 heads are not a multiple of 5 kv_heads",
        ),
        (json.dumps({**LLAMA3, "hidden_size": 4100}), UsageError, "32 heads do not divide"),
        (json.dumps({**LLAMA3, "hidden_size": "wide"}), UsageError, "not a whole number"),
        (json.dumps({**LLAMA3, "num_hidden_layers": -1}), UsageError, "at least 1"),
        (
            json.dumps({**LLAMA3, "num_hidden_layers": 10**9}),
            UsageError,
            "exceed the limit of 10000",
        ),
        (
            json.dumps({**MIXTRAL, "num_experts_per_tok": 9}),
            UsageError,
            "topk 9 exceeds the 8",
        ),
        (json.dumps({**MIXTRAL, "num_local_experts": None}), UsageError, "num_local_experts"),
        ("[" * 100_000, InputError, "invalid JSON"),
    ],
)
def test_a_bad_config_is_one_clear_line(
    tmp_path: Path, text: str, error: type[TraceflopsError], message: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(error, match=message) as caught:
        read_card(file)
    assert caught.value.message.startswith("config 'config.json'")
    assert "\n" not in caught.value.message


KEYS = sorted({key for _, _, config in PUBLISHED for key in config} - {"model_type"})
KEYS += ["layer_types", "moe_layers", "no_rope_layers", "mlp_only_layers", "attention_bias"]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 200),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 5), max_size=3),
    st.sampled_from([["sliding_attention"], ["full_attention", "chunked_attention"], {}, {"a": 1}]),
)


@given(
    st.sampled_from([config for _, _, config in PUBLISHED]),
    st.dictionaries(st.sampled_from(KEYS), values, max_size=4),
)
def test_any_config_is_a_card_or_one_line(config: Config, changes: Config) -> None:
    try:
        card = card_of_config({**config, **changes}, "config")
    except TraceflopsError as error:
        assert error.message.startswith("config")
        assert "\n" not in error.message + error.hint
    else:
        assert card.total > 0
        assert card.weights() >= 0
