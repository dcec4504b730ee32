"""`traceflops mfu TRACE --model ...`: what a user sees of a description and a trace together."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.simulate import simulate
from tests.cli.test_commands import assert_refused, run
from tests.conftest import SAMPLES, shared_file, some
from tests.mfu.test_reconciliation import ONE, step_flops

SAMPLE = SAMPLES / "gpt_1rank.json.gz"
RANKS = SAMPLES / "gpt_ddp_4rank"
CARD = """
name = "sample"
hidden = {hidden}
layers = {layers}
heads = 16
ffn = {ffn}
glu = false
vocab = {vocab}
"""


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return cards of the two samples by the number of their ranks."""
    folder = tmp_path_factory.mktemp("cards")
    sizes = {"one": (1024, 3), "four": (2048, 2)}
    for name, (hidden, layers) in sizes.items():
        text = CARD.format(hidden=hidden, layers=layers, ffn=4 * hidden, vocab=16_384)
        (folder / f"{name}.toml").write_text(text)
    return {name: folder / f"{name}.toml" for name in sizes}


@pytest.fixture(scope="module")
def shapeless() -> Iterator[Path]:
    """Return a trace that was recorded without shapes."""
    with TemporaryDirectory() as folder:
        options = KinetoOptions(compression="none", shapes=False)
        write_pytorch(simulate(RunConfig(steps=4, layers=3)), Path(folder), options=options)
        yield Path(folder)


def printed(*words: str | Path) -> list[str]:
    done = run("mfu", *words)
    assert done.exit_code == 0, done.output
    return [line.rstrip() for line in done.stdout.splitlines()]


def content(*words: str | Path) -> Any:
    return json.loads("\n".join(printed(*words, "--json")))


def test_both_figures_stand_at_the_top(cards: dict[str, Path]) -> None:
    lines = printed(RANKS, "--model", cards["four"], "--batch", "8", "--seq", "2048")
    assert lines[:3] == [
        "MFU 35.0 % (from trace, bf16 dense 989.4 TFLOP/s)",
        "MFU 35.0 % (exact-causal, bf16 dense 989.4 TFLOP/s)",
        "Description and trace agree to the FLOP.",
    ]
    assert any(line.startswith("sample · 4 ") for line in lines[:8])
    assert any("world size in the trace" in line for line in lines)
    assert not any("outside the bar" in line for line in lines)


def test_a_mistake_is_told_in_plain_words(
    cards: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(SAMPLE, "--model", cards["one"], "--batch", "8", "--seq", "1024")
    text = " ".join(lines)
    assert "The description needs 2 times what the trace shows. Check its model" in text
    assert "described less shown        +30.4 %  outside the bar: exact-causal - trace" in text
    assert max(map(len, lines)) <= 80


def test_a_trace_that_describes_itself_needs_no_options(
    cards: dict[str, Path], tmp_path: Path
) -> None:
    sizes = {"hidden": 1024, "layers": 3, "ffn": 4096, "heads": 16, "glu": False, "vocab": 16_384}
    told = {"model": sizes, "batch": 4, "seq": 1024}
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes())) | {"traceflops": told}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    options = ("--batch", "4", "--seq", "1024")
    by_options = printed(SAMPLE, "--model", cards["one"], *options)
    assert printed(path)[:3] == by_options[:3]
    # An option wins over what the trace says.
    doubled = ("--batch", "8")
    assert (
        printed(path, *doubled)[:3]
        == printed(SAMPLE, "--model", cards["one"], *doubled, *options[2:])[:3]
    )
    path.write_text(json.dumps(trace | {"traceflops": {"model": "../../etc/passwd"}}))
    assert printed(path)[0].startswith("MFU 30.4 %")
    assert any("description" in line for line in printed(path))


SIZES = {"hidden": 1024, "layers": 3, "ffn": 4096, "heads": 16, "glu": False, "vocab": 16_384}


@pytest.fixture(scope="module")
def sample_trace() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    return found


LACKING = [
    ({"model": SIZES}, "the number of tokens per step is unknown"),
    ({"model": SIZES, "batch": -4, "seq": 1024}, "batch is not a whole number"),
    ({"model": SIZES, "batch": True, "seq": 1024}, "batch cannot be true"),
    ({"model": SIZES, "batch": None, "seq": 1024}, "batch: null there"),
    ({"model": "llama-99", "batch": 4, "seq": 1024}, "unknown model 'llama-99'"),
    ({"batch": 4, "seq": 1024}, "it names no model"),
    ({"model": SIZES, "seq_sum": 9, "seq_square_sum": 99}, "9 to 81, not 99"),
    ({"model": {**SIZES, "heads": 7}, "batch": 4}, "7 heads do not divide"),
]


@pytest.mark.parametrize(("said", "problem"), some(LACKING, 2))
def test_a_description_that_says_too_little_costs_nothing_else(
    sample_trace: dict[str, Any], tmp_path: Path, said: dict[str, Any], problem: str
) -> None:
    """The trace's own figures come all the same, and a note says what is missing."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceflops": said} | sample_trace))
    lines = printed(path)
    assert lines[0].startswith("MFU 30.4 %")
    assert problem in " ".join(" ".join(lines).split())
    assert content(path)["described"] is None
    # What is asked of a description needs one.
    refused = run("mfu", path, "--reported", "40%")
    assert refused.exit_code == 2
    # What the options add may be what was missing.
    if isinstance(said.get("model"), dict) and said["model"] == SIZES:
        whole = printed(path, "--batch", "4", "--seq", "1024")
        assert whole[2] == "Description and trace agree to the FLOP."


def test_words_that_contradict_each_other_are_not_used(
    sample_trace: dict[str, Any], tmp_path: Path
) -> None:
    said = {"model": SIZES, "batch": 4, "seq": 1024, "tokens": 100}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceflops": said} | sample_trace))
    text = " ".join(" ".join(printed(path)).split())
    assert "not compared with the executed work: 100 tokens are not batch 4 x 1024 = 4096" in text
    assert content(path)["described"] is None
    corrected = printed(path, "--batch", "4")
    assert corrected[2] == "Description and trace agree to the FLOP."


def test_a_description_can_be_ignored(
    cards: dict[str, Path], sample_trace: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    said = {"model": SIZES, "batch": 8, "seq": 1024, "real_tokens": 3000}
    path.write_text(json.dumps({"traceflops": said} | sample_trace))
    assert any("The description needs" in line for line in printed(path))
    bare = printed(path, "--ignore-description")
    assert bare[3:] == printed(SAMPLE)[3:]  # but for the name of the file
    options = ("--model", cards["one"], "--batch", "4", "--seq", "1024")
    assert printed(path, "--ignore-description", *options)[:3] == printed(SAMPLE, *options)[:3]
    refused = run("mfu", path, "--ignore-description", "--batch", "4")
    assert_refused(refused, 2, "--batch describes a run")


def test_options_that_describe_need_the_rest(sample_trace: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceflops": {"model": SIZES}} | sample_trace))
    assert_refused(run("mfu", path, "--seq", "1024"), 2, "the number of sequences per step")
    assert printed(path, "--dtype", "bf16")[0] == printed(SAMPLE)[0]
    assert_refused(run("mfu", path, "--lora-targets", "x"), 2, "--lora-targets")


def test_padding_is_in_the_figure_of_the_trace_alone(cards: dict[str, Path]) -> None:
    options = ("--model", cards["one"], "--batch", "4", "--seq", "1024", "--real-tokens", "3000")
    text = " ".join(" ".join(printed(SAMPLE, *options)).split())
    assert "agree to the FLOP. The figures from the trace include the described padding." in text
    assert "as model FLOPs, padding included" in text
    found = content(SAMPLE, *options)
    assert found["described"]["mfu"] < found["utilisation"]["mfu"]
    assert found["described"]["difference_of_mfu"] < 0


def test_a_claim_of_checkpointing_is_held_against_the_trace(cards: dict[str, Path]) -> None:
    options = ("--model", cards["one"], "--batch", "4", "--seq", "1024")
    lines = printed(SAMPLE, *options, "--checkpointing", "full")
    text = " ".join(" ".join(lines).split())
    assert "agree to the FLOP, but recomputation is missing: full checkpointing would" in text
    found = content(SAMPLE, *options, "--checkpointing", "full")["described"]
    assert found["recomputation"]["agree"] is False
    assert found["recomputation"]["counted_flops"] == 0
    assert found["recomputation"]["mismatch"]["code"] == "missing-recompute"
    plain = content(SAMPLE, *options)["described"]
    assert plain["recomputation"]["agree"] is True


def test_a_close_description_says_how_close(cards: dict[str, Path], tmp_path: Path) -> None:
    card = tmp_path / "card.toml"
    card.write_text(cards["one"].read_text().replace("16384", "16640"))
    lines = printed(SAMPLE, "--model", card, "--batch", "4", "--seq", "1024")
    # 256 rows more: 6 x 256 x 1024 of 346.0 M per token
    assert lines[2] == "Description and trace agree within 0.45 %."


def test_all_conventions_over_the_device_windows(cards: dict[str, Path]) -> None:
    options = ("--model", cards["one"], "--batch", "4", "--seq", "1024")
    lines = printed(SAMPLE, *options, "--all-conventions")
    assert lines[0] == "MFU 30.4 % (from trace, bf16 dense 989.4 TFLOP/s)"
    (row,) = [line for line in lines if line.startswith("matmul-full ")]
    # T^2 pairs in place of T(T+1)/2: twice the attention
    full = step_flops(ONE) + 3 * 4 * 3 * 1024 * 4 * (1024**2 - 1024 * 1025 // 2)
    described = content(SAMPLE, *options)["described"]
    budget = described["window_ns"] * 989_400
    assert f"{100 * full * described['step_windows'] / budget:.1f} %" in row
    by_id = {one["id"]: one for one in described["conventions"]}
    assert by_id["matmul-full"]["mfu"] == pytest.approx(full * 6 / budget, rel=1e-12)
    assert by_id["exact-causal"]["mfu"] == described["mfu"]


def test_a_convention_by_name(cards: dict[str, Path]) -> None:
    options = ("--model", cards["one"], "--batch", "4", "--seq", "1024", "--convention", "llmc")
    lines = printed(SAMPLE, *options)
    assert "(llmc, bf16 dense 989.4 TFLOP/s)" in lines[1]
    assert lines[2] == "Description and trace agree to the FLOP."
    assert content(SAMPLE, *options)["described"]["convention"] == "llmc"


def test_a_reported_figure_is_explained_with_the_traced_time(cards: dict[str, Path]) -> None:
    options = ("--model", cards["one"], "--batch", "4", "--seq", "1024")
    lines = printed(SAMPLE, *options, "--reported", "32.0%")
    text = " ".join(lines)
    assert text.startswith(
        "32.0 % could be maxtext-full (as matmul-full, korthikanti, primus and 2 more)"
    )
    assert "the honest figure is MFU 30.4 % (exact-causal, bf16 dense 989.4 TFLOP/s)" in text
    assert content(SAMPLE, *options, "--reported", "32.0%")["described"]["reported"]["candidates"]
    assert "Description" not in text
    twice = printed(SAMPLE, *options[:3], "8", *options[4:], "--reported", "32.0%")
    assert any(line.startswith("note The description needs 2 times") for line in twice)


def test_json_counts(cards: dict[str, Path]) -> None:
    options = ("--model", cards["one"], "--batch", "8", "--seq", "1024")
    found = content(SAMPLE, *options)["described"]
    assert found["expected_flops"] == 12 * step_flops(ONE)
    assert found["counted_flops_text"] == str(6 * step_flops(ONE))
    assert found["needed_flops"] == found["expected_flops"]
    assert (found["residual"], found["agree"]) == (1.0, False)
    assert found["run"]["devices"] == 1
    assert found["difference_of_mfu"] == pytest.approx(found["mfu"] / 2)


def test_without_a_description_nothing_changes() -> None:
    lines = printed(SAMPLE)
    assert lines[0] == "MFU 30.4 % (from trace, bf16 dense 989.4 TFLOP/s)"
    assert not any("described" in line or "Description" in line for line in lines)
    assert content(SAMPLE)["described"] is None


@pytest.mark.parametrize(
    ("trace", "over", "step"),
    [
        ("gpt_1rank.json.gz", "6 steps × 1 GPU", "4.71 ms"),
        ("gpt_ddp_4rank", "5 steps × 4 GPUs", "10.1 ms"),
    ],
)
def test_what_the_whole_bar_stands_for_is_said(trace: str, over: str, step: str) -> None:
    """Six steps of 4.71 ms on one GPU, and five of 10.12 ms on four."""
    said = f"Averages per step and GPU ({over}). 100 % is {step}."
    assert said in printed(SAMPLE.with_name(trace))


def test_without_shapes_the_description_counts(cards: dict[str, Path], shapeless: Path) -> None:
    config = RunConfig(steps=4, layers=3)
    options = ("--model", cards["one"], "--padded-vocab", "16384", "--batch", "4", "--seq", "1024")
    lines = printed(shapeless, *options)
    assert lines[0].startswith("No MFU from the description: the data type of the products is")
    assert not any("the operators have no shapes" in line for line in lines[:3])
    lines = printed(shapeless, *options, "--dtype", "bf16")
    assert any(line.startswith("MFU ") and "(exact-causal" in line for line in lines)
    assert any(line.startswith("From the description: useful work") for line in lines)
    assert any("useful work" in line for line in lines)
    fall = content(shapeless, *options, "--dtype", "bf16")["described"]["waterfall"]
    assert sum(int(line["amount_text"]) for line in fall["lines"]) == int(fall["budget_text"])
    assert config.layers == ONE.layers


REFUSED = [
    ("--batch 4", 2, "--batch describes a run", "--model"),
    ("--seq 1024", 2, "--seq describes a run", "--model"),
    ("--lora", 2, "--lora describes a run", "--model"),
    ("--gpus 8", 2, "--gpus describes a run", "--model"),
    ("--dtype bf16", 2, "--dtype describes a run", "--model"),
    ("--mtp 1", 2, "--mtp describes a run", "--model"),
    ("--convention 6N", 2, "--convention describes a run", "--model"),
    ("--all-conventions", 2, "--all-conventions describes a run", "--model"),
    ("--reported 40%", 2, "--reported describes a run", "--model"),
    ("--checkpointing full", 2, "--checkpointing describes a run", "--model"),
    ("--model CARD --step-time 3", 2, "--step-time and a trace are", "the trace provides the time"),
    ("--model CARD", 2, "the number of tokens per step", "--batch"),
    ("--model CARD --seq 1024", 2, "the number of sequences per step", "--batch"),
    ("--model CARD --params 8e9", 2, "mutually exclusive", "one of them"),
    ("--model CARD --batch 4 --seq 1024 --gpus 0", 2, "--gpus is not", "--gpus "),
    ("--model CARD --batch 4 --seq 1024 --convention x", 2, "convention", "exact-causal"),
    ("--model CARD --batch 4 --seq 1024 --convention deepspeed", 2, "deepspeed", "another"),
    ("--model nowhere.toml --batch 4 --seq 8", 3, "nowhere.toml", "card"),
    ("--model CARD --batch 4 --seq 8 --reported x", 2, "--reported", "46.2%"),
    (
        "--model CARD --batch 4 --seq 8 --reported 4% --reported-hfu 4%",
        2,
        "mutually exclusive",
        "one of them",
    ),
    (
        "--model CARD --batch 4 --seq 1024 --reported 4% --from 1ms --to 2ms",
        2,
        "needs more to explain: descriptions cover whole",
        "--steps",
    ),
]


@pytest.mark.parametrize(("options", "code", "problem", "hint"), REFUSED)
def test_what_cannot_be_is_refused(
    cards: dict[str, Path], options: str, code: int, problem: str, hint: str
) -> None:
    words = [str(cards["one"]) if word == "CARD" else word for word in options.split()]
    result = run("mfu", SAMPLE, *words)
    assert_refused(result, code, problem)
    assert hint in result.stderr.splitlines()[1]


def test_resnet18_by_its_preset() -> None:
    trace = shared_file("traces/pytorch/mi300x_resnet18_ddp_train.json.gz")
    lines = printed(trace, "--model", "resnet-18", "--batch", "80")
    assert "Description and trace agree to the FLOP, but recomputation is not as" in lines[2]
    found = content(trace, "--model", "resnet-18", "--batch", "80")["described"]
    assert found["counted_flops"] == 2 * 106_484_121_600
    assert (found["run"]["devices"], found["devices_shown"]) == (8, 1)
