"""A trace that describes its run gives the card and run that the same options give."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import traceflops
from tests.build import launched, step_marks, trace_of
from traceflops.analysis.preparation import prepare
from traceflops.cli.mfu_options import (
    AnswerOptions,
    DeviceOptions,
    ModelOptions,
    TimeOptions,
    TokenOptions,
    TrainingOptions,
    words_of,
)
from traceflops.cli.mfu_options import Description as Options
from traceflops.devices.merging import merge
from traceflops.errors import UsageError
from traceflops.flops.model.models import find_model
from traceflops.mfu.checked.run_marks import marked_tokens
from traceflops.mfu.checked.trace_description import (
    Description,
    NotDescribed,
    SelfDescribed,
    card_and_run,
    description_of,
    self_described,
    without_description,
)
from traceflops.table.trace import Trace
from traceflops.windows.selection import Selection

CARD = {"hidden": 64, "layers": 2, "heads": 4, "ffn": 96, "glu": True, "vocab": 100}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


def saying(said: dict[str, Any], trace: Trace | None = None) -> Trace:
    trace = trace or trace_of()
    return replace(trace, source=replace(trace.source, description=said))


def read(said: dict[str, Any]) -> Description:
    found = description_of(saying(said))
    assert found is not None
    return found


def by_options(**options: Any) -> tuple[Any, Any]:
    """Return what the command line makes of options, each group with its own."""

    def group(kind: Any) -> Any:
        return kind(**{k: v for k, v in options.items() if k in kind.__dataclass_fields__})

    kinds = (ModelOptions, TokenOptions, TimeOptions, DeviceOptions, TrainingOptions, AnswerOptions)
    return Options(*map(group, kinds)).card_and_run()


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"model": "meta-llama/Llama-3.1-8B", "batch": 128, "seq": 8192, "gpus": 8, "dtype": "bf16"},
        {"model": "llama-3-8b", "batch": "128", "seq": "8192", "gpus": "8", "dtype": "bf16"},
    ),
    ({"params": 405 * 10**9, "tokens": 1024}, {"params": "405e9", "tokens": "1024"}),
    (
        {"params": "405e9", "tokens": "1k", "lora": True},
        {"params": "405e9", "tokens": "1k", "lora": True},
    ),
    (
        {"model": "llama-3-8b", "documents": [512, 1024, 512], "frozen": ["head", "ffn"]},
        {"model": "llama-3-8b", "documents": "512,1024,512", "frozen": "head,ffn"},
    ),
    (
        {"model": "llama-3-8b", "seq": 9, "lora": {"rank": 8, "targets": ["q", "v"]}},
        {"model": "llama-3-8b", "seq": "9", "lora_rank": "8", "lora_targets": "q,v", "lora": True},
    ),
    (
        {"model": "llama-3-8b", "seq": 9, "lora": {"params": 10**6}, "frozen_layers": 3},
        {
            "model": "llama-3-8b",
            "seq": "9",
            "lora_params": "1e6",
            "frozen_layers": "3",
            "lora": True,
        },
    ),
    (
        {"model": "llama-3-8b", "seq": 9, "checkpointing": [0, 1], "attention_kernel": "flash"},
        {"model": "llama-3-8b", "seq": "9", "checkpointing": "0,1", "attention_kernel": "flash"},
    ),
    (
        {"model": "llama-3-8b", "seq_sum": 8, "seq_square_sum": 34, "sequences": 2},
        {"model": "llama-3-8b", "seq_sum": "8", "seq_square_sum": "34", "sequences": "2"},
    ),
    (
        {
            "model": "mixtral-8x7b",
            "batch": 2,
            "seq": 8,
            "expert_capacity": "1.25",
            "real_tokens": 9,
        },
        {
            "model": "mixtral-8x7b",
            "batch": "2",
            "seq": "8",
            "expert_capacity": "1.25",
            "real_tokens": "9",
        },
    ),
    (
        {"model": "t5-small", "batch": 2, "seq": 8, "encoder_seq": 5, "frozen": True},
        {"model": "t5-small", "batch": "2", "seq": "8", "encoder_seq": "5", "frozen": "all"},
    ),
    (
        {
            "model": "llama-3-8b",
            "seq": 1,
            "cached": 99,
            "forward_only": True,
            "padded_vocab": 131072,
        },
        {
            "model": "llama-3-8b",
            "seq": "1",
            "cached": "99",
            "forward_only": True,
            "padded_vocab": "131072",
        },
    ),
    (
        {"model": "llama-3-8b", "seq": 8, "lora": False, "mtp": 1},
        {"model": "llama-3-8b", "seq": "8", "mtp": "1"},
    ),
]


@pytest.mark.parametrize(("said", "options"), CASES)
def test_the_same_as_the_command_line(said: dict[str, Any], options: dict[str, Any]) -> None:
    found = read(said)
    assert found.notes == ()
    card, run = card_and_run(found)
    wanted, run_wanted = by_options(**options)
    # Notes name a word as it was written: "tokens 1k" or "--tokens 1k".
    assert (card, replace(run, notes=())) == (wanted, replace(run_wanted, notes=()))


def test_cards_and_configs_inside_the_trace(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    assert card_and_run(read({"model": CONFIG, "seq": 8}))[0] == find_model(str(config))
    toml = "\n".join(f"{k} = {str(v).lower()}" for k, v in CARD.items())
    card = tmp_path / "card.toml"
    card.write_text(toml)
    assert card_and_run(read({"model": CARD, "seq": 8}))[0] == find_model(str(card))


def test_no_file_is_opened_because_a_trace_says_so(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    found = read({"model": str(config), "batch": 3})
    assert found.card is None
    assert "unknown model" in found.notes[0].text
    with pytest.raises(UsageError, match="unknown model"):
        card_and_run(found)


NO_COUNTS: list[Any] = [
    *(0, -1, 1.5, True, [1], {}, "x", "\n", 2**64 * 10**9, 10**4000, "9" * 9999),
    *(Decimal("NaN"), Decimal("1e999999"), Decimal("1.5")),
]


@pytest.mark.parametrize(
    ("word", "value"),
    [("batch", value) for value in NO_COUNTS]
    + [
        ("documents", [1, "x"]),
        ("documents", [[1]]),
        ("documents", "9999999999x9"),
        ("lora", {"rank": 4, "colour": 1}),
        ("lora", [4]),
        ("lora", "yes"),
        ("forward_only", 1),
        ("frozen", "heart"),
        ("frozen", [None]),
        ("dtype", 16),
        ("checkpointing", "some"),
        ("checkpointing", [1]),
        ("attention_kernel", "fast"),
        ("model", 7),
        ("model", ["gpt2"]),
        ("model", {"hidden": 3}),
        ("model", {"model_type": "mamba"}),
        ("model", {"hidden": {"a": []}, "layers": 10**300}),
        ("expert_capacity", "much"),
        ("params", 1),
    ],
)
def test_what_cannot_be_meant_is_one_note_and_the_rest_is_used(word: str, value: Any) -> None:
    found = read({"seq": 64, word: value})
    assert found.words.values == {"seq": "64"}
    assert found.words.flags == frozenset()
    assert found.card is None
    (note,) = found.notes
    assert note.code == "description-words-left-out"
    assert word in note.text or "model" in note.text or "part" in note.text
    assert "\n" not in note.text
    assert len(note.text) < 600


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*traceflops.units.DESCRIPTION_WORDS]), JSON, max_size=5))
def test_nothing_that_a_trace_says_raises(said: dict[str, Any]) -> None:
    found = self_described(prepare(saying(said)))
    assert isinstance(found, SelfDescribed | NotDescribed)


# Options win


def test_options_win_word_by_word() -> None:
    said = read({"model": "gpt2", "batch": 4, "seq": 16, "gpus": 2, "checkpointing": "full"})
    options = words_of(TokenOptions(seq="32"), TrainingOptions(checkpointing="none"))
    card, run = card_and_run(said.with_options(None, options))
    assert (card, run) == by_options(
        model="gpt2", batch="4", seq="32", gpus="2", checkpointing="none"
    )


def test_another_model_puts_aside_all_of_the_traces_model() -> None:
    said = read({"model": CARD, "padded_vocab": 128, "seq": 16})
    model = ModelOptions(model="gpt2")
    found = said.with_options(model.card(), words_of(model, TokenOptions()))
    assert card_and_run(found) == by_options(model="gpt2", seq="16")


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ({"documents": [3, 5]}, {"batch": "2", "seq": "8"}),
        ({"seq_sum": 8, "seq_square_sum": 34}, {"batch": "2", "seq": "8"}),
        ({"batch": 2, "seq": 8, "real_tokens": 11}, {"tokens": "24", "seq": "8"}),
        ({"batch": 2, "seq": 8, "tokens": 16}, {"batch": "3", "seq": "8"}),
        ({"lora_rank": 4, "seq": 8}, {"lora_params": "400", "seq": "8"}),
    ],
)
def test_an_option_puts_aside_what_says_the_same_otherwise(
    said: dict[str, Any], options: dict[str, Any]
) -> None:
    found = read({"model": "gpt2", **said})
    groups = [
        kind(**{k: v for k, v in options.items() if k in kind.__dataclass_fields__})
        for kind in (TokenOptions, TrainingOptions)
    ]
    merged = found.with_options(None, words_of(*groups))
    assert card_and_run(merged)[1] == by_options(model="gpt2", **options)[1]


CONTRADICTIONS = [
    ({"lora_targets": "q"}, "lora_targets needs the rank"),
    ({"tokens": 100}, "100 tokens are not batch 2 x 8 = 16"),
    ({"real_tokens": 17}, "17 real tokens do not fit"),
    ({"frozen_layers": 99}, "99 exceeds the"),
    ({"encoder_seq": 9}, "has no encoder"),
    ({"cached": 9, "forward_only": False}, "is for decoding"),
    ({"forward_only": True, "checkpointing": "full"}, "exclude each other"),
]


@pytest.mark.parametrize(("said", "reason"), CONTRADICTIONS)
def test_words_that_contradict_each_other_are_not_used(said: dict[str, Any], reason: str) -> None:
    found = self_described(prepare(saying({"model": "gpt2", "seq": 8, "batch": 2, **said})))
    assert isinstance(found, NotDescribed)
    (note,) = found.notes
    assert note.code == "description-not-used"
    assert reason in note.text


TOO_LITTLE = [
    ({}, "the number of tokens per step is unknown"),
    ({"batch": 4}, "the number of tokens per step is unknown"),
    ({"seq": 8}, "the number of sequences per step is unknown"),
    ({"seq": 8, "batch": -4}, "the number of sequences per step is unknown"),
    ({"seq": 8, "batch": None}, "unknown (batch: null there)"),
    ({"tokens": 8}, "the sequence length is unknown"),
    ({"seq_sum": 8, "seq_square_sum": 99}, "the number of tokens per step is unknown"),
]


@pytest.mark.parametrize(("said", "problem"), TOO_LITTLE)
def test_what_a_description_lacks_is_said(said: dict[str, Any], problem: str) -> None:
    found = self_described(prepare(saying({"model": "gpt2", **said})))
    assert isinstance(found, NotDescribed)
    assert found.problem is not None
    assert found.notes[-1].code == "description-not-used"
    assert problem in found.notes[-1].text
    assert found.notes[-1].text.endswith(".")


def test_a_description_without_a_model_is_said() -> None:
    found = self_described(prepare(saying({"batch": 4, "seq": 8})))
    assert isinstance(found, NotDescribed)
    assert found.problem is None
    assert "it names no model" in found.notes[0].text


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"batch": True}, "batch cannot be true"),
        ({"batch": {}}, "batch cannot be an object"),
        ({"batch": [2]}, "batch cannot be a list"),
        ({"batch": -4}, "batch is not a whole number"),
        ({"model": "llama-99"}, "unknown model 'llama-99'"),
        ({"model": {"hidden": 64, "heads": 7}}, "model"),
        ({"frozen": "heart"}, "cannot freeze unknown part 'heart'"),
        ({"seq_sum": 8, "seq_square_sum": 99}, "seq_sum and seq_square_sum cannot be"),
    ],
)
def test_a_word_that_is_left_out_is_named_with_the_reason(said: dict[str, Any], words: str) -> None:
    (note,) = read(said).notes
    assert note.text.startswith("Ignored in the trace's description: ")
    assert words in note.text


def test_a_convention_may_need_less_than_the_usual_one() -> None:
    prepared = prepare(saying({"model": "gpt2", "tokens": 8}))
    assert isinstance(self_described(prepared), NotDescribed)
    assert isinstance(self_described(prepared, convention="6N"), SelfDescribed)


def test_without_its_description_a_trace_says_nothing() -> None:
    trace = saying({"model": "gpt2", "batch": 2}, steps((tokens(10), 0), ("mine", 7)))
    bare = without_description(trace)
    assert bare.source.description is None
    assert sorted(bare.marks["name"].to_pylist()) == [
        *(f"ProfilerStep#{number}" for number in range(4)),
        "mine",
    ]
    assert bare.activities == trace.activities
    assert self_described(prepare(bare)) == NotDescribed(())


def test_a_slip_in_the_options_is_an_error() -> None:
    model, training = ModelOptions(model="gpt2"), TrainingOptions(lora_targets="q")
    with pytest.raises(UsageError, match="--lora-targets needs the rank"):
        self_described(prepare(trace_of()), model.card(), words_of(model, training))


def test_a_trace_that_says_nothing() -> None:
    assert description_of(trace_of()) is None
    assert self_described(prepare(trace_of())) == NotDescribed(())


# Marks


def steps(*marks: tuple[str, int], number: int = 4, **tables: Any) -> Trace:
    """Return `number` steps of 100 ns, one kernel each, with marks at times."""
    named = [(f"ProfilerStep#{n}", 100 * n, 100) for n in range(number)]
    work = [("k", 100 * n + 10, 100 * n + 15, 80) for n in range(number)]
    told = [(name, start, 5) for name, start in marks]
    return trace_of(**launched(*work), marks=step_marks(*named, *told), **tables)


def tokens(real: int, padded: int | None = None) -> str:
    return f"traceflops.tokens|real={real}" + (f"|padded={padded}" if padded is not None else "")


def lengths(*each: int) -> str:
    squares = sum(length**2 for length in each)
    return f"traceflops.seqlens|sum={sum(each)}|sumsq={squares}|count={len(each)}"


def told(trace: Trace, **selection: Any) -> dict[str, Any]:
    found = marked_tokens(prepare(trace, Selection(**selection)))
    assert found is not None
    return {**found.values}


def test_marks_of_a_step_add_up_and_steps_are_averaged() -> None:
    # Micro-batches in steps 0 and 1; the last step of four is left out by default.
    trace = steps(*[(tokens(10, 16), 100 * n + at) for n in range(4) for at in (0, 50)])
    assert told(trace) == {"tokens.real": 20, "tokens.padded": 32}


def test_a_mark_belongs_to_the_step_in_which_it_begins() -> None:
    trace = steps((tokens(1), 99), (tokens(10), 100), (tokens(100), 299), (tokens(7), 300))
    assert told(trace, steps=(0, 0)) == {"tokens.real": 1}
    assert told(trace, steps=(1, 1)) == {"tokens.real": 10}
    assert told(trace, steps=(2, 2)) == {"tokens.real": 100}
    assert told(trace, steps=(0, 2)) == {"tokens.real": 37}


def test_the_repetition_on_the_device_is_not_counted() -> None:
    marks = step_marks(*[(f"ProfilerStep#{n}", 100 * n, 100) for n in range(4)])
    for n in range(4):
        marks.append({"name": tokens(10), "start_ns": 100 * n + 5, "dur_ns": 5})
        marks.append(marks[-1] | {"kind": "gpu_annotation", "device": 0, "stream": 7})
    work = [("k", 100 * n + 10, 100 * n + 15, 80) for n in range(4)]
    assert told(trace_of(**launched(*work), marks=marks)) == {"tokens.real": 10}


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=3, max_size=3))
def test_packed_sequences_of_steps(documents: list[list[int]]) -> None:
    from traceflops.flops.analytic.run_flops import model_flops

    trace = steps(*[(lengths(*each), 100 * n + 3) for n, each in enumerate(documents)])
    found = self_described(prepare(saying({"model": CARD}, trace), Selection(steps=(0, 2))))
    assert isinstance(found, SelfDescribed), found
    flops = [
        model_flops(
            found.card,
            replace(
                found.run,
                seq_sum=None,
                seq_square_sum=None,
                sequences=None,
                tokens=None,
                documents=tuple(each),
            ),
        ).figure
        for each in documents
    ]
    mean = Fraction(model_flops(found.card, found.run).figure)
    total, squares = sum(map(sum, documents)), sum(s * s for d in documents for s in d)
    if total % 3 == 0 and squares % 3 == 0:
        assert 3 * mean == sum(flops)
        assert [n.code for n in found.notes] == []
    else:
        assert abs(3 * mean / sum(flops) - 1) < 0.5
        assert [n.code for n in found.notes] == ["tokens-mean"]


def test_real_tokens_with_batch_and_length_of_the_description() -> None:
    trace = steps(*[(tokens(11, 16), 100 * n) for n in range(3)], number=3)
    found = self_described(prepare(saying({"model": "gpt2", "batch": 2, "seq": 8}, trace)))
    assert isinstance(found, SelfDescribed)
    assert found.run == by_options(model="gpt2", batch="2", seq="8", real_tokens="11")[1]
    fewer = steps(*[(tokens(11, 24), 100 * n) for n in range(3)], number=3)
    found = self_described(prepare(saying({"model": "gpt2", "batch": 2, "seq": 8}, fewer)))
    assert isinstance(found, SelfDescribed)
    assert found.run == by_options(model="gpt2", seq="8", tokens="24", real_tokens="11")[1]


def test_options_put_marks_aside() -> None:
    trace = saying({"model": "gpt2", "batch": 2, "seq": 8}, steps((tokens(11), 0)))
    found = self_described(prepare(trace), None, words_of(TokenOptions(real_tokens="9")))
    assert isinstance(found, SelfDescribed)
    assert found.run.real_tokens == 9


def test_ranks_each_tell_their_own() -> None:
    def rank(number: int, real: int) -> Trace:
        marks = [(tokens(real), 100 * n) for n in range(4)]
        return steps(*marks, processes=[{"rank": number, "world_size": 4}])

    both = prepare(merge([rank(0, 10), rank(1, 30)]))
    found = marked_tokens(both)
    assert found is not None
    assert found.values == {"tokens.real": 80}  # 10 + 30, and two ranks that are not here
    assert [note.code for note in found.notes] == ["tokens-of-some-ranks"]


@pytest.mark.parametrize(
    "name",
    [
        "traceflops.tokens",
        "traceflops.tokens|",
        "traceflops.tokens|real=",
        "traceflops.tokens|real=-1",
        "traceflops.tokens|real=1.5",
        "traceflops.tokens|real=1e3",
        "traceflops.tokens|real=1|real=2",
        "traceflops.tokens|real=1|colour=2",
        "traceflops.tokens|padded=9",
        "traceflops.tokens|real=9999999999999999999",
        "traceflops.tokens|real=٣",
        "traceflops.tokens|real=1" + "|" * 1000,
        "traceflops.seqlens|sum=3",
        "traceflops.seqlensx|sum=3|sumsq=9",
    ],
)
def test_marks_that_are_not_as_they_should_be(name: str) -> None:
    found = marked_tokens(prepare(steps((name, 0), (name, 110))))
    assert found is not None
    assert found.values == {}
    (note,) = found.notes
    assert (note.code, note.count) == ("token-marks-left-out", 2)
    others = told(steps((name, 0), *[(tokens(5), 100 * n) for n in range(4)]))
    assert others == {"tokens.real": 5}


def test_other_marks_are_none_of_ours() -> None:
    assert marked_tokens(prepare(steps(("traceflops.mine", 0), ("tokens|real=3", 5)))) is None


@pytest.mark.parametrize(
    "name", ["traceflops.foo|bar=8", "traceflops.toknes|real=5", "Traceflops.tokens|real=5"]
)
def test_a_misspelt_mark_is_named(name: str) -> None:
    found = marked_tokens(prepare(steps((name, 0), (name, 110), (tokens(5), 0))))
    assert found is not None
    assert found.values == {"tokens.real": 5}
    note = found.notes[0]
    assert (note.code, note.count) == ("token-marks-left-out", 2)
    assert f"'{name.split('|')[0]}'" in note.text
    assert "Known are traceflops.tokens|real=N|padded=N and traceflops.seqlens|" in note.text


IMPOSSIBLE = [
    ("traceflops.tokens|real=9000|padded=8192", "9,000 real tokens exceed the 8,192"),
    ("traceflops.seqlens|sum=8192|sumsq=134217728|count=4", "16,777,216 to 67,059,724, not 134"),
    ("traceflops.seqlens|sum=8192|sumsq=3|count=4", "16,777,216 to 67,059,724, not 3"),
    ("traceflops.seqlens|sum=8192|sumsq=67108866", "8,192 to 67,108,864, not 67,108,866"),
    ("traceflops.seqlens|sum=10|sumsq=33", "one is even, the other odd"),
    ("traceflops.seqlens|sum=3|sumsq=9|count=4", "4 sequences cannot have 3 tokens"),
    ("traceflops.seqlens|sum=3|sumsq=9|count=0", "0 sequences cannot have 3 tokens"),
    ("traceflops.seqlens|sum=5|sumsq=25|count=1", ""),
    ("traceflops.seqlens|sum=5|sumsq=13|count=2", ""),
    ("traceflops.seqlens|sum=0|sumsq=0|count=0", ""),
]


@pytest.mark.parametrize(("name", "reason"), IMPOSSIBLE)
def test_a_mark_that_cannot_be_true_is_left_out(name: str, reason: str) -> None:
    found = marked_tokens(prepare(steps((name, 0), (name, 110), (name, 210))))
    assert found is not None
    assert bool(found.values) is not bool(reason)
    if reason:
        (note,) = found.notes
        assert (note.code, note.count) == ("token-marks-left-out", 3)
        assert reason in note.text
    # The rest of the description stands without the mark.
    said = {"model": CARD, "batch": 2, "seq": 8}
    whole = self_described(prepare(saying(said, steps((name, 0)))))
    if reason:
        assert isinstance(whole, SelfDescribed)
        assert whole.run == by_options(model="gpt2", batch="2", seq="8")[1]


def test_without_steps_the_recording_is_one() -> None:
    trace = trace_of(
        **launched(("k", 0, 5, 10), ("j", 20, 25, 10)),
        marks=step_marks((tokens(3), 0, 1), (tokens(4), 20, 1)),
    )
    found = marked_tokens(prepare(trace))
    assert found is not None
    assert found.values == {"tokens.real": 7}


def test_a_stretch_of_time_has_no_tokens() -> None:
    assert marked_tokens(prepare(steps((tokens(3), 0)), Selection(from_ns=0, to_ns=50))) is None


def test_steps_without_a_mark_are_said() -> None:
    found = marked_tokens(prepare(steps((tokens(10), 0), (tokens(20), 100))))
    assert found is not None
    assert found.values == {"tokens.real": 15}
    assert [note.code for note in found.notes] == ["tokens-of-some-steps"]


# The real profiler


def test_what_torch_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    said = {"model": CARD, "gpus": 1, "dtype": "fp32", "checkpointing": "none"}
    file = tmp_path / "trace.json"
    layer, documents = torch.nn.Linear(64, 64), [(3, 5), (8,), (1, 2, 4)]
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(file)),
        record_shapes=True,
    ) as prof:
        for each in [(8, 8, 8), *documents]:
            prof.add_metadata_json("traceflops", json.dumps(said))
            with record_function(lengths(*each)), record_function(tokens(sum(each), 8)):
                layer(torch.ones(8, 64)).sum().backward()
            prof.step()
    trace = traceflops.read(file)
    assert trace.source.description == said
    prepared = prepare(trace, Selection(steps=(1, 3)))
    found = self_described(prepared)
    assert isinstance(found, SelfDescribed)
    # 8, 8 and 7 tokens; squares 34, 64 and 21: their means are 23/3 and 119/3.
    assert marked_tokens(prepared).values["seqlens.sumsq"] * 3 == 34 + 64 + 21  # type: ignore[union-attr]
    assert (found.run.seq_sum, found.run.seq_square_sum, found.run.tokens) == (8, 40, 8)
    assert [note.code for note in found.notes] == ["tokens-mean"]
    alone = self_described(prepare(trace, Selection(steps=(2, 2))))
    assert isinstance(alone, SelfDescribed)
    assert (alone.run.seq_sum, alone.run.seq_square_sum, alone.run.sequences) == (8, 64, 1)
