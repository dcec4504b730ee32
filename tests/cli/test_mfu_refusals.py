"""What `traceflops mfu` refuses: always one error line and one hint line, and the right code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.test_commands import assert_refused, run
from tests.conftest import examples

CARD = "hidden = 64\nlayers = 2\nheads = 4\nffn = 128\nglu = true\nvocab = 100\n"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
SMALL = "--model llama-3-8b --seq 8"

REFUSED = [
    # options, words of the error, words of the hint
    ("", "no model given", "--model"),
    ("--params nan", "--params is not a whole number", "--params 8e9"),
    ("--params 1e400", "--params is not a whole number", "--params 8e9"),
    ("--params -5", "--params is not a whole number", "--params 8e9"),
    ("--params 405", "too few for a model", "405e9"),
    ("--params 8e9 --tokens 0", "--tokens is not a whole number from 1", "--tokens 1024"),
    ("--params 8e9 --tokens 1e19", "--tokens is not a whole number from 1", "--tokens 1024"),
    (
        "--params 8e9 --tokens 9 --gpus 0",
        "--gpus is not a whole number from 1",
        "example: --gpus 8",
    ),
    (
        "--params 8e9 --tokens 9 --gpus -3",
        "--gpus is not a whole number from 1",
        "example: --gpus 8",
    ),
    ("--params 8e9 --tokens 9 --peak nan", "--peak is not a number above 0", "--peak 989.4"),
    ("--params 8e9 --tokens 9 --peak inf", "--peak is not a number above 0", "--peak 989.4"),
    ("--params 8e9 --tokens 9 --peak 1e400", "--peak is not a number above 0", "--peak 989.4"),
    ("--params 8e9 --tokens 9 --peak -1", "--peak is not a number above 0", "--peak 989.4"),
    ("--params 8e9 --tokens 9 --peak 989e12", "too large for a GPU", "--peak 989"),
    ("--params 8e9 --tokens 9 --peak 0.9", "too small for a GPU", "--peak 900"),
    ("--params 8e9 --tokens 9 --step-time 0", "--step-time is not a time", "820ms"),
    ("--params 8e9 --tokens 9 --step-time -1", "--step-time is not a time", "820ms"),
    ("--params 8e9 --tokens 9 --step-time nan", "--step-time is not a time", "820ms"),
    ("--params 8e9 --tokens 9 --step-time 1e40", "--step-time is not a time", "820ms"),
    ("--params 8e9 --step-time 3", "the number of tokens per step", "--batch and --seq"),
    ("--params 8e9 --tokens 9 --lora-rank 4", "--lora-rank is not enough", "--lora-params"),
    ("--params 8e9 --tokens 9 --mtp 1", "no layers for an MTP module", "--model"),
    ("--params 8e9 --tokens 9 --padded-vocab 9", "vocabulary of model of", "--model"),
    ("--params 8e9 --tokens 9 --convention exact-causal", "lacks hidden, layers", "describe"),
    ("--params 8e9 --tokens 9 --peak 989,4", "a misplaced thousands separator", "--peak 989.4"),
    ("--params 8,03e9 --tokens 9", "a misplaced thousands separator", "--params 8.03e9"),
    ("--params 8,03B --tokens 9", "a misplaced thousands separator", "--params 8.03B"),
    ("--params 8e9 --tokens-per-s 12,5", "a misplaced thousands", "--tokens-per-s 12.5"),
    ("--params 8e9 --tokens 9 --gpus 8.5", "--gpus is not a whole number", "example: --gpus 8"),
    ("--params 8e9 --tokens 9 --frozen attention", "are unknown", "freeze all of them"),
    (
        "--params 8e9 --tokens 9 --samples-per-s 3",
        "needs the number of sequences",
        "--batch or --seq",
    ),
    ("--params 8e9 --achieved 400e12", "too large for a GPU", "use --achieved 400"),
    ("--params 8e9 --achieved 0.24", "too small for a GPU", "use --achieved 240"),
    (f"{SMALL} --frozen experts", "has no experts to freeze", "attention, ffn, head"),
    ("--model mixtral-8x7b --seq 8 --frozen ffn", "has no ffn to freeze", "router, experts"),
    (f"{SMALL} --lora-rank 10000", "exceeds the width of every matrix (4096)", "8 to 256"),
    (f"{SMALL} --lora-rank 1e18", "exceeds the width of every matrix (4096)", "8 to 256"),
    (f"{SMALL} --checkpointing 75,100", "cannot be recomputed", "75%,100%"),
    (f"{SMALL} --mtp 101", "101 MTP modules exceed the limit of 100", "those that run"),
    (f"{SMALL} --device h100-sxmm", "similar: h100-sxm", "traceflops devices"),
    (f"{SMALL} --device h100-sxmm --peak 900", "similar: h100-sxm", "traceflops devices"),
    (f"{SMALL} --bogus", "no such option: --bogus", "traceflops mfu --help"),
    (f"{SMALL} --pramas 8e9", "no such option: --pramas", "did you mean --params"),
    ("--params 8e9 --model gpt2", "mutually exclusive", "one of them"),
    ("--model llama-3-8b --tokens 99", "the sequence length is unknown", "--seq"),
    ("--model llama-3-8b --batch 3", "the number of tokens per step", "--batch and --seq"),
    (f"{SMALL} --step-time 3", "the number of sequences per step", "--batch"),
    (f"{SMALL} --batch 3 --tokens 20", "20 tokens are not batch 3 x 8 = 24", "correct"),
    (f"{SMALL} --step-time 1 --tokens-per-s 3", "mutually exclusive", "one of them"),
    (f"{SMALL} --tokens-per-s 3 --samples-per-s 3", "mutually exclusive", "one of them"),
    (f"{SMALL} --documents 5,x", "--documents is not a list", "512,1024,3x4096"),
    (f"{SMALL} --cached 5 --lora", "--cached is for decoding", "--forward-only"),
    (f"{SMALL} --cached 5 --no-forward-only", "--cached is for decoding", "--forward-only"),
    (f"{SMALL} --forward-only --checkpointing full", "exclude each other", "remove one"),
    (f"{SMALL} --encoder-seq 5", "has no encoder", "--encoder-seq"),
    ("--model t5-small --seq 8", "the encoder's sequence length", "--encoder-seq"),
    (f"{SMALL} --achieved-convention 6N", "--achieved-convention needs --achieved", "TFLOPS"),
    (f"{SMALL} --achieved 4 --achieved-convention x", "unknown convention 'x'", "6N"),
    (f"{SMALL} --convention x", "unknown convention 'x'", "6N"),
    (f"{SMALL} --convention deepspeed", "it needs measurements", "another"),
    (f"{SMALL} --convention published-tflops", "needs a published rate", "--achieved"),
    (f"{SMALL} --lora-rank 3 --lora-params 4", "mutually exclusive", "one of them"),
    (f"{SMALL} --lora-targets q", "needs the rank", "--lora-rank"),
    (f"{SMALL} --lora-rank 3 --lora-targets q,zz", "no matrix 'zz' to adapt", "down, gate"),
    (f"{SMALL} --frozen heart", "cannot freeze unknown part 'heart'", "attention"),
    (f"{SMALL} --frozen-layers 99", "exceeds the 32 known layers", "at most"),
    (f"{SMALL} --checkpointing some", "unknown --checkpointing", "selective"),
    (f"{SMALL} --checkpointing -1,1", "unknown --checkpointing", "selective"),
    (f"{SMALL} --attention-kernel x", "--attention-kernel is 'x'", "flash or unfused"),
    (f"{SMALL} --expert-capacity 1.2", "has no experts", "--expert-capacity"),
    (f"{SMALL} --padded-vocab 10", "less than the 128256", "padding adds rows"),
    ("--model mixtral-8x7b --seq 8 --expert-capacity 0.2", "below 1", "1 or more"),
    (f"{SMALL} --reported 46%", "the step time is unknown", "--step-time"),
    (f"{SMALL} --tokens-per-s 1000 --reported 46%", "no GPU is named", "--peak"),
    (f"{SMALL} --tokens-per-s 1000 --peak 99 --reported 0", "not a percentage", "46.2%"),
    (f"{SMALL} --tokens-per-s 1000 --peak 99 --reported -4%", "not a percentage", "46.2%"),
    (f"{SMALL} --tokens-per-s 1000 --peak 99 --reported 4 --reported-hfu 4", "exclusive", "one of"),
]


@pytest.mark.parametrize(("options", "error", "hint"), REFUSED, ids=[one[0] for one in REFUSED])
def test_options_that_cannot_be_meant(options: str, error: str, hint: str) -> None:
    result = run("mfu", *options.split())
    assert_refused(result, 2, error)
    assert hint in result.stderr.splitlines()[1]


CARDS = [
    # text of a TOML card, words of the error
    ("hidden = 64", "'layers' is missing"),
    (f"{CARD}colour = 3", "unknown key 'colour'"),
    (f"{CARD}kv_head = 2", "unknown key 'kv_head'"),
    (CARD.replace("heads = 4", "heads = 5"), "5 heads do not divide the hidden width 64"),
    (f"{CARD}kv_heads = 3", "4 heads are not a multiple of 3 kv_heads"),
    (f"{CARD}[experts]\ncount = 4\ntopk = 5\nwidth = 8", "topk 5 exceeds the 4 experts"),
    (CARD.replace("= 64", "= -64"), "'hidden' is -64"),
    (CARD.replace("= 64", "= nan"), "'hidden' is not a whole number"),
    (CARD.replace("= 64", "= 1e400"), "'hidden' is 1E+400, which is too large"),
    (CARD.replace("= 64", "= 'wide'"), "'hidden' is not a whole number"),
    (CARD.replace("layers = 2", "layers = 1000000"), "exceed the limit of 10000"),
    (f"{CARD}name = 'a\\u001b[31m'\n".replace("'", '"'), "'name' must be one line of text"),
    (f'{CARD}name = "\\u202Eevil"', "'name' must be one line of text"),
    ("[" * 100_000, "invalid TOML"),
    ("hidden = ", "invalid TOML"),
    ("", "is missing"),
]


@pytest.mark.parametrize(("text", "error"), CARDS, ids=[one[1] for one in CARDS])
def test_cards_that_are_wrong(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "card.toml"
    path.write_text(text, encoding="utf-8")
    result = run("mfu", "--seq", "8", "--model", path)
    assert_refused(result, 3, error, "card 'card.toml'")
    assert str(tmp_path) not in result.stderr


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_attention_heads": 5}, "5 heads do not divide"),
        ({"hidden_size": "wide"}, "not a whole number"),
        ({"model_type": "mamba"}, "unknown model_type 'mamba'"),
        ({"model_type": None}, "model_type is missing"),
        ({"vocab_size": None}, "'vocab_size' is missing"),
        ({"model_type": ["llama"]}, "'model_type' is not text"),
        ({"model_type": {}}, "'model_type' is not text"),
        (
            {"model_type": "mistral", "num_hidden_layers": 10**9},
            "1000000000 layers exceed the limit of",
        ),
        (
            {"model_type": "gemma2", "num_hidden_layers": 10**9},
            "1000000000 layers exceed the limit of",
        ),
        ({"model_type": "llava", "text_config": {}}, "text_config: model_type is missing"),
    ],
)
def test_configs_that_are_wrong(tmp_path: Path, change: dict[str, object], error: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | change), encoding="utf-8")
    assert_refused(run("mfu", "--seq", "8", "--model", path), 3, error)
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    assert run("mfu", "--seq", "8", "--model", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (("--bogus",), "no such option: --bogus", "traceflops --help"),
        (("nonsense",), "no such command 'nonsense'", "traceflops --help"),
        (
            ("devices", "a", "b"),
            "got unexpected extra argument(s) (b)",
            "traceflops devices --help",
        ),
        (("summary",), "missing argument 'TRACE...'", "traceflops summary --help"),
        (
            ("summary", "x", "--jobs", "0"),
            "invalid value for '--jobs'",
            "traceflops summary --help",
        ),
        (("summary", "x", "--peak", "989,4"), "invalid value for '--peak'", "summary --help"),
        (("mfu", "--seq"), "option '--seq' requires an argument", "--help"),
    ],
)
def test_wrong_usage_is_two_lines_too(words: tuple[str, ...], error: str, hint: str) -> None:
    result = run(*words)
    assert_refused(result, 2, error)
    assert hint in result.stderr.splitlines()[1]


def test_a_rate_that_no_device_has_is_refused_without_a_peak() -> None:
    described = ["mfu", "--params", "8e9", "--tokens", "4M"]
    result = run(*described, "--step-time", "10ms")
    assert_refused(result, 3, "19,200,000 TFLOP/s per GPU is more than any GPU can do")
    slower = run(*described, "--step-time", "10s", "--dtype", "bf16")
    assert slower.exit_code == 0
    text = " ".join(slower.stdout.split())
    assert "19,200 TFLOP/s per GPU exceeds the highest dense bf16 rate" in text


def test_above_everything_the_conventions_are_shown_all_the_same() -> None:
    options = "--model llama-3-8b --batch 128 --seq 8192 --gpus 8 --device h100-sxm --dtype bf16"
    words = [*options.split(), "--step-time", "5", "--all-conventions"]
    result = run("mfu", *words)
    assert result.exit_code == 3
    assert result.stdout.startswith("No MFU: 136.4 % of peak is impossible")
    assert re.search(r"^6N-active +> 100 %", result.stdout, re.M)
    assert re.search(r"^4N +85\.1 %", result.stdout, re.M)
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]
    told = run("mfu", *words, "--json")
    assert told.exit_code == 3
    assert json.loads(told.stdout)["mfu"] is None


def test_a_refused_hfu_shows_the_mfu() -> None:
    options = "--model llama-3-8b --batch 128 --seq 8192 --gpus 8 --device h100-sxm --dtype bf16"
    result = run("mfu", *options.split(), "--step-time", "8", "--checkpointing", "full")
    assert_refused(result, 3, "so it is not an HFU", "; MFU would be 85.2 %")
    assert "likely: less recomputation than --checkpointing says" in result.stderr


def test_files_that_are_none(tmp_path: Path) -> None:
    def refused(path: object, *words: str) -> None:
        assert_refused(run("mfu", "--seq", "8", "--model", str(path)), 3, *words)

    refused("no-such-model", "unknown model 'no-such-model'", "config.json")
    refused("lama-3-8b", "did you mean llama-3-8b")
    refused("", "unknown model ''")
    refused(tmp_path, "it is a folder")
    refused(tmp_path / "absent.json", "file not found")
    refused("./absent", "file not found")
    refused("/dev/zero", "not a regular file")
    refused("x" * 5000, "unknown model")
    binary = tmp_path / "weights.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    refused(binary, "not UTF-8 text")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    refused(huge, "larger than 1024 KiB")
    broken = tmp_path / "config.json"
    for text in ("{", "[]", "", '{"model_type": "llama", "a": ' + "[" * 100_000):
        broken.write_text(text, encoding="utf-8")
        refused(broken, "config 'config.json'")
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    refused(loop, "file not found")


def test_a_name_that_is_markup_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    name = "[bold red]x[/] [link=http://a]y[/link] :smile: " + "n" * 300
    path.write_text(f"{CARD}name = '{name}'", encoding="utf-8")
    result = run("mfu", "--seq", "8", "--model", path)
    assert result.exit_code == 0
    assert "[bold red]x[/] [link=http://a]" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 100
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG | {"_name_or_path": "a\x1b[31m\u202e"}), encoding="utf-8")
    result = run("mfu", "--seq", "8", "--model", config)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert result.stdout.splitlines()[-1] != ""


OPTIONS = ("params", "tokens", "batch", "seq", "step-time", "tokens-per-s", "gpus", "peak")


@given(
    values=st.dictionaries(
        st.sampled_from(OPTIONS),
        st.one_of(
            st.text(max_size=12),
            st.floats().map(str),
            st.integers().map(str),
            st.sampled_from(["8e9", "1024", "1e-9", "9e99", "0", "1e18", "٣", "1/0", "--", "-"]),
        ),
        max_size=6,
    )
)
@settings(max_examples=examples(60))
def test_whatever_is_given_there_is_no_fault(values: dict[str, str]) -> None:
    words = [f"--{name}={text}" for name, text in ({"params": "8e9"} | values).items()]
    for view in ((), ("--json",), ("--all-conventions",)):
        result = run("mfu", *words, *view)
        assert result.exit_code in (0, 2, 3), result.output
        assert "Traceback" not in result.output
