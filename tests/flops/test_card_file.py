"""TOML cards: every key does something, and what is wrong is one line that names its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traceflops.errors import InputError, TraceflopsError, UsageError
from traceflops.facts import fact, quoted
from traceflops.flops.model.blocks import Experts
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import CONV, EXPERTS, IMAGE, KEYS, MLA, build
from traceflops.flops.model.models import read_card

LLAMA = """
name = "my model"
hidden = 4096
layers = 32
heads = 32
kv_heads = 8
ffn = 14336
glu = true
vocab = 128256
"""


def card(tmp_path: Path, text: str) -> ModelCard:
    file = tmp_path / "card.toml"
    file.write_text(text, encoding="utf-8")
    return read_card(file)


def test_a_card(tmp_path: Path) -> None:
    found = card(tmp_path, LLAMA)
    assert (found.name, found.total, found.missing) == ("my model", 8_030_261_248, ())


def test_a_parameter_count_alone_is_exact_in_any_notation(tmp_path: Path) -> None:
    for text in ("405e9", "405_000_000_000", "4.05e11"):
        found = card(tmp_path, f"params = {text}")
        assert found.total == 405_000_000_000
        assert not found.complete


def test_a_parameter_count_that_is_not_the_one_described_is_doubted(tmp_path: Path) -> None:
    assert card(tmp_path, LLAMA + "params = 8.03e9").doubts == ()
    (doubt,) = card(tmp_path, LLAMA + "params = 7e9").doubts
    assert doubt == fact("described.parameters", stated=7 * 10**9, counted=8_030_261_248)


def test_a_part_of_a_description_with_a_count_lacks_only_the_rest(tmp_path: Path) -> None:
    text = "params = 8e9\nhidden = 4096\nlayers = 32"
    assert card(tmp_path, text).lacks == ("heads", "ffn", "glu", "vocab")
    assert card(tmp_path, "params = 8e9").lacks == (
        *("hidden", "layers", "heads", "ffn", "glu", "vocab"),
    )


def test_a_part_of_a_description_knows_what_it_lacks(tmp_path: Path) -> None:
    found = card(
        tmp_path, "params = 540.35e9\nlayers = 118\nhidden = 18432\nheads = 48\nhead_dim = 256"
    )
    assert found.missing == ("ffn", "glu", "vocab")
    assert sum(one.times * one.core.heads * one.core.score_dim for one in found.cores()) == (
        118 * 48 * 256
    )


@pytest.mark.parametrize(
    ("more", "parameters"),
    [
        ("tied = true", -128256 * 4096),
        ("bias = true", 32 * (6144 + 4096 + 2 * 14336 + 4096)),
        ('bias = ["qkv"]', 32 * 6144),
        ('bias = ["head"]', 128256),
        ('norm = "layernorm"', 65 * 4096),
        ("norms = 0", -4096),
        ("norms_per_block = 4", 64 * 4096),
        ("qk_norm = true", 32 * 256),
        ("sinks = true", 32 * 32),
        ("positions = 1024", 1024 * 4096),
        ("loose = 7", 7),
        ("head_dim = 64", -32 * (2 * 4096 * 2048 + 2 * 4096 * 512)),
        ("pooler = true", 4096 * 4096 + 4096),
        ("classes = 10", 10 * 4097),
        ("mtp = 1", (8_030_261_248 - 2 * 128256 * 4096 - 4096) // 32 + 2 * 4096**2 + 3 * 4096),
    ],
)
def test_what_a_key_adds(tmp_path: Path, more: str, parameters: int) -> None:
    assert card(tmp_path, LLAMA + more).total - 8_030_261_248 == parameters


@pytest.mark.parametrize(
    ("more", "masks"),
    [
        ('mask = "full"', [("full", 0, 32)]),
        ("window = 128", [("window", 128, 32)]),
        ("window = 128\nwindow_layers = 10", [("window", 128, 10), ("causal", 0, 22)]),
        ("chunk = 64", [("chunk", 64, 32)]),
        (
            'window = 8\nchunk = 64\nlayers = 4\npattern = ["window", "chunk", "full", "causal"]',
            [("window", 8, 1), ("chunk", 64, 1), ("full", 0, 1), ("causal", 0, 1)],
        ),
        (
            'window = 8\nlayers = 5\npattern = ["window", "causal"]',
            [("window", 8, 1), ("causal", 0, 1)] * 2 + [("window", 8, 1)],
        ),
    ],
)
def test_masks(tmp_path: Path, more: str, masks: list[tuple[str, int, int]]) -> None:
    base = LLAMA.replace("layers = 32\n", "") if "\nlayers" in more else LLAMA
    found = card(tmp_path, base + more)
    assert [(one.core.mask.kind, one.core.mask.size, one.times) for one in found.cores()] == masks


def test_experts_in_some_layers(tmp_path: Path) -> None:
    text = LLAMA + "[experts]\ncount = 8\ntopk = 2\nwidth = 100\nshared = 50\ncapacity = 1.25\n"
    first = card(tmp_path, text + "dense_layers = 3")
    assert [(n, isinstance(b.feed_forward, Experts)) for n, b in first.blocks] == [
        (3, False),
        (29, True),
    ]
    experts = first.blocks[1][1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.capacity == 5 / 4
    listed = card(tmp_path, text + "layers = [1, 31]")
    assert [(n, isinstance(b.feed_forward, Experts)) for n, b in listed.blocks] == [
        *((1, False), (1, True), (29, False), (1, True))
    ]


def test_experts_everywhere_need_no_dense_width(tmp_path: Path) -> None:
    text = LLAMA.replace("ffn = 14336\n", "") + "[experts]\ncount = 8\ntopk = 2\nwidth = 100"
    assert card(tmp_path, text).complete
    with pytest.raises(UsageError, match="'ffn' is missing"):
        card(tmp_path, text + "\ndense_layers = 1")


def test_a_dense_width_is_not_read_where_experts_are_everywhere(tmp_path: Path) -> None:
    experts = "[experts]\ncount = 8\ntopk = 2\nwidth = 100"
    without = card(tmp_path, LLAMA.replace("ffn = 14336\n", "") + experts)
    assert card(tmp_path, LLAMA.replace("14336", "0") + experts).total == without.total


def test_an_encoder_that_is_attended_to(tmp_path: Path) -> None:
    encoder = "[encoder]\nhidden = 512\nlayers = 2\nheads = 8\nffn = 2048\nglu = false\n"
    found = card(tmp_path, LLAMA + encoder)
    cross = [one for one in found.placed() if one.linear.group == "cross"]
    assert {(one.linear.name, one.linear.inputs, one.linear.reads) for one in cross} == {
        ("q", 4096, "token"),
        ("k", 512, "memory"),
        ("v", 512, "memory"),
        ("o", 4096, "token"),
    }
    assert [one.core.mask.kind for one in found.cores() if one.side == "encoder"] == ["full"]
    apart = card(tmp_path, "cross = false\n" + LLAMA + encoder)
    assert not [one for one in apart.placed() if one.linear.group == "cross"]


def test_convolutions_follow_each_other(tmp_path: Path) -> None:
    text = """
    [[conv]]
    channels = [3, 64]
    input = [224, 224]
    kernel = 7
    stride = 2
    padding = 3
    [[conv]]
    channels = [64, 128]
    kernel = [3, 3]
    groups = 2
    """
    first, second = card(tmp_path, text).convs
    assert (first.output, second.input, second.output) == ((112, 112), (112, 112), (110, 110))
    assert (first.stem, second.stem) == (True, False)
    assert card(tmp_path, text).seq == 1


def test_an_image_fixes_the_sequence(tmp_path: Path) -> None:
    text = LLAMA.replace("vocab = 128256", 'mask = "full"') + "[image]\nsize = 224\npatch = 16\n"
    assert card(tmp_path, text).seq == 197
    assert card(tmp_path, text + "class_token = false").seq == 196


def test_the_notes_say_where_a_card_comes_from(tmp_path: Path) -> None:
    found = card(tmp_path, LLAMA + 'source = "our own"')
    assert found.source == "our own"
    assert replace(found, notes=(quoted("x"),)).notes == (quoted("x"),)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (LLAMA + "kvheads = 8", "unknown key 'kvheads'", "did you mean 'kv_heads'?"),
        (LLAMA + "frobnicate = 1", "unknown key 'frobnicate'", "known: name, "),
        ("layers = 3", "'hidden' is missing", "add hidden, heads, ffn, glu, vocab"),
        (LLAMA.replace("glu = true\n", ""), "'glu' is missing", "add glu"),
        (LLAMA.replace("4096", "4100"), "32 heads do not divide the hidden width 4100", "head_dim"),
        (
            LLAMA.replace("kv_heads = 8", "kv_heads = 5"),
            "are not a multiple of 5 kv_heads",
            "divide heads",
        ),
        (LLAMA.replace("32", "32.5", 1), "'layers' is not a whole number: '32.5'", "docs"),
        (LLAMA.replace("= 14336", "= 0"), "'ffn' is 0, but must be at least 1", "docs"),
        (LLAMA.replace("= 14336", "= true"), "'ffn' is not a whole number", "docs"),
        (LLAMA.replace("= 14336", "= 1e400"), "'ffn' is 1E+400, which is too large", "docs"),
        (LLAMA.replace("= 14336", "= nan"), "'ffn' is not a whole number", "docs"),
        (LLAMA.replace("= 14336", "= inf"), "'ffn' is not a whole number", "docs"),
        (LLAMA.replace("= true", '= "yes"'), "'glu' must be true or false, not 'yes'", "docs"),
        (LLAMA + 'norm = "batch"', "'norm' is 'batch'", "rms, layernorm, layernorm-nobias"),
        (LLAMA + 'pattern = ["window"]', "'window' is missing", "add window"),
        (LLAMA + "window = 8\nchunk = 8", "'window' and 'chunk'", "pattern"),
        (LLAMA + "window = 8\nwindow_layers = 33", "window_layers 33 exceeds layers 32", ""),
        (LLAMA + "padded_vocab = 100", "padded_vocab 100 is less than vocab 128256", ""),
        (LLAMA + "cross = true", "'cross' needs an encoder", "add a table [encoder]"),
        (LLAMA + "bias = [1]", "'bias' is not a list of qkv, out", ""),
        (LLAMA + "mla = 3", "'mla' is not a table", ""),
        (LLAMA + "[mla]\nkv_rank = 5", "card 'card.toml', mla: 'nope_dim' is missing", ""),
        (
            LLAMA + "[experts]\ncount = 4\ntopk = 8\nwidth = 9",
            "topk 8 exceeds the 4 experts",
            "must not exceed",
        ),
        (
            LLAMA + "[experts]\ncount = 4\ntopk = 2\nwidth = 9\ndense_layers = 40",
            "it names layers beyond the 32 that exist",
            "",
        ),
        ("[[conv]]\nkernel = 3", "conv 1: 'input' is missing", ""),
        ("[[conv]]\ninput = 8\nchannels = 3", "'channels' must be a list of two", ""),
        (
            "[[conv]]\ninput = [8, 8]\nchannels = [3, 4]\nkernel = [1, 2, 3]",
            "'kernel' needs one number per dimension (2)",
            "",
        ),
        (
            LLAMA + "params = 405e9",
            "params 405,000,000,000 contradicts the sizes, which give 8,0",
            "params",
        ),
        (
            LLAMA + "params = 1e6",
            "params 1,000,000 contradicts the sizes, which give 8,030,261,248",
            "",
        ),
        (LLAMA + "params = 3.7e9", "params 3,700,000,000 contradicts", "includes unused experts"),
        (LLAMA + "window_layers = 4", "'window_layers' needs window", "add window"),
        (
            LLAMA + "window = 8\npattern = [" + '"window", ' * 33 + "]",
            "'pattern' has masks for 33 layers, but there are 32",
            "one mask per layer",
        ),
        (LLAMA + 'window = 8\npattern = ["causal"]', "'window' is set, but no layer of", ""),
        (LLAMA + 'mask = "full"\npattern = ["causal"]', "'pattern' and 'mask' exclude", "one"),
        (
            LLAMA + "[experts]\ncount = 4\ntopk = 2\nwidth = 9\nlayers = [0, 1]\ndense_layers = 2",
            "'layers' and 'dense_layers' exclude each other",
            "one of them",
        ),
        (LLAMA + "mtp = 1000000000", "1000000000 MTP modules exceed the limit of 100", "that run"),
        ("params = 8e9\nmtp = 1", "no layers for an MTP module to copy", "in the card"),
        (LLAMA.replace("4096", "1" + "0" * 30), "000000…, which is too large", "docs"),
        ("", "'hidden' is missing", "or give params"),
        ("params = 405", "405 parameters are too few for a model", "e.g. 405e9"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        card(tmp_path, text)
    assert caught.value.message.startswith("card 'card.toml'")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hidden = ", "invalid TOML"),
        (b"a = 1\na = 2", "invalid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (1 << 20) + b"#", "larger than 1024 KiB"),
        (b"x = " + b"[" * 100_000, "invalid TOML"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "card.toml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_card(file)
    assert "\n" not in caught.value.message


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    errors: list[TraceflopsError] = []
    for path in (tmp_path / "no.toml", tmp_path):
        with pytest.raises(InputError) as caught:
            read_card(path)
        errors.append(caught.value)
    assert "file not found" in errors[0].message
    assert "it is a folder" in errors[1].message


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 200),
    st.integers(),
    st.floats(),
    st.decimals(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 300), max_size=3),
)
inner = st.dictionaries(st.sampled_from([*MLA, *IMAGE, *EXPERTS]), plain, max_size=6)
convs = st.lists(st.dictionaries(st.sampled_from(CONV), plain, max_size=6), max_size=2)
START: dict[str, object] = {
    "hidden": 64,
    "layers": 3,
    "heads": 4,
    "ffn": 99,
    "glu": True,
    "vocab": 9,
}


@given(st.dictionaries(st.sampled_from(KEYS), st.one_of(plain, inner, convs), max_size=5))
def test_any_table_is_a_card_or_one_line(changes: dict[str, object]) -> None:
    try:
        found = build({**START, **changes}, "card")
    except TraceflopsError as error:
        assert error.message.startswith("card")
        assert "\n" not in error.message + error.hint
    else:
        assert found.weights() >= 0
