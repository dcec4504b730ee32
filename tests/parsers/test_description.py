"""The top-level key `traceflops`: what is kept of it, and what hostile ones do."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceflops as tf
from tests.conftest import examples
from tests.parsers.documents import COMPACT, printed, read_bytes
from traceflops.devices.merging import merge
from traceflops.mfu.checked.run_options import TOKEN_COUNTS
from traceflops.privacy.environment import redacted
from traceflops.table.trace import Trace
from traceflops.units import DESCRIPTION_WORDS

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 1}


def trace_of(said: Any, **metadata: Any) -> Trace:
    return read_bytes(printed([KERNEL], COMPACT, {"traceflops": said, **metadata}).data)


def raw(text: bytes) -> Trace:
    events = json.dumps([KERNEL]).encode()
    return read_bytes(
        b'{"traceflops":' + text + b',"schemaVersion":1,"traceEvents":' + events + b"}"
    )


def problem(trace: Trace) -> str:
    (text,) = [note.text for note in trace.notes if note.code == "description-left-out"]
    return text


def left_out(trace: Trace) -> bool:
    return any(note.code == "description-left-out" for note in trace.notes)


def test_words_are_kept_as_they_were_written() -> None:
    said = {"model": {"hidden": 64}, "batch": 2, "real-tokens": "16k", "lora": True, "seq": None}
    trace = trace_of(said)
    kept = {"model": {"hidden": 64}, "batch": 2, "real_tokens": "16k", "lora": True, "seq": None}
    assert trace.source.description == kept
    assert not left_out(trace)
    assert raw(b'{"expert_capacity":1.10}').source.description == {
        "expert_capacity": Decimal("1.10")
    }


def test_a_trace_without_it() -> None:
    trace = read_bytes(printed([KERNEL], COMPACT, {}).data)
    assert trace.source.description is None
    assert not left_out(trace)


def test_unknown_keys_are_named_once_and_never_kept() -> None:
    secret = "hunter2"
    others = {f"k{number}": {"env": secret} for number in range(8)}
    trace = trace_of({"batch": 2, "a\x1b[31m" + "b" * 90: 1, **others})
    assert trace.source.description == {"batch": 2}
    assert problem(trace).endswith(
        f"9 unknown keys ignored: a?[31m{'b' * 34}, k0, k1, k2, k3, k4, …."
    )
    assert secret not in repr(trace.source) + repr(trace.notes)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([1, 2], "not a JSON object"),
        ("llama-3-8b", "not a JSON object"),
        (7, "not a JSON object"),
        ({"model": "x" * 300_000}, "larger than 262,144"),
        ({"documents": [1] * 200_000}, "larger than 262,144"),
    ],
)
def test_what_is_no_description(said: Any, why: str) -> None:
    trace = trace_of(said)
    assert trace.source.description is None
    assert why in problem(trace)


def nested(levels: int, opening: bytes, closing: bytes) -> bytes:
    return opening * levels + b"1" + closing * levels


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"model":', b"}")])
def test_depth(opening: bytes, closing: bytes) -> None:
    inner = 10 if opening == b"[" else 11
    fits = raw(b'{"model":' + nested(inner, opening, closing) + b"}")
    assert fits.source.description is not None
    deep = raw(b'{"model":' + nested(13, opening, closing) + b"}")
    assert deep.source.description is None
    assert "nested more than 12 levels deep" in problem(deep)
    for levels in (5_000, 100_000):
        trace = raw(b'{"model":' + nested(levels, opening, closing) + b"}")
        assert trace.source.description is None
        assert trace.activities.num_rows == 1


@pytest.mark.parametrize(
    "text",
    [
        b'{"batch":NaN}',
        b'{"batch":Infinity}',
        b'{"batch":1e999999999}',
        b'{"batch":18446744073709551616}',
        b'{"batch":' + b"9" * 3_000 + b"}",
        b'{"batch":' + b"9" * 100_000 + b"}",
        b'{"batch":-9223372036854775809}',
        b'{"batch":1,"batch":2}',
        b'{"batch":"\\ud800"}',
        b'{"batch":"\xff"}',
        b'{"":1}',
        b"null",
    ],
)
def test_odd_values_never_stop_the_reading(text: bytes) -> None:
    trace = redacted(merge([raw(text), raw(text)]))
    assert trace.activities.num_rows == 2


@settings(max_examples=examples(200))
@given(st.binary(max_size=60))
def test_any_bytes(text: bytes) -> None:
    """A bracket that is never closed has all events in it."""
    try:
        trace = raw(b'{"model":' + text + b"}")
    except tf.InputError:
        assert text.count(b"{") > text.count(b"}")
        return
    assert trace.source.description is None or isinstance(trace.source.description, dict)


# Ranks


def of_rank(rank: int, said: Any) -> Trace:
    key = {"traceflops": said} if said is not None else {}
    metadata = {**key, "distributedInfo": {"rank": rank, "world_size": 2}}
    return read_bytes(printed([KERNEL], COMPACT, metadata).data, name=f"r{rank}.json")


def differ(trace: Trace) -> list[str]:
    return [note.text for note in trace.notes if note.code == "descriptions-differ"]


def test_ranks_that_agree_are_one() -> None:
    said = {"model": "gpt2", "batch": 4, "seq": 8}
    both = merge([of_rank(0, said), of_rank(1, dict(reversed(said.items())))])
    assert both.source.description == said
    assert differ(both) == []


def test_a_rank_that_says_nothing_agrees() -> None:
    both = merge([of_rank(0, None), of_rank(1, {"batch": 4})])
    assert both.source.description == {"batch": 4}
    assert differ(both) == []


def test_of_ranks_that_differ_only_what_they_agree_on_is_used() -> None:
    said = {"model": "gpt2", "seq": 8, "batch": 4}
    for traces in (
        [of_rank(0, said), of_rank(1, {"model": "gpt2", "batch": 5})],
        [of_rank(1, said), of_rank(0, {"model": "gpt2", "batch": 5})],
    ):
        both = merge(traces)
        assert both.source.description == {"model": "gpt2"}
        (text,) = differ(both)
        assert "(batch, seq)" in text
    assert merge([of_rank(0, {"seq": 1}), of_rank(1, {"seq": 2})]).source.description is None


# Privacy


def test_names_and_homes_are_taken_out_of_every_text() -> None:
    said = {"model": {"name": "/home/someone/m", "notes": ["on crunch-17", {"a": "someone"}]}}
    trace = trace_of({**said, "/home/someone/k": 1}, host_name="crunch-17", username="someone")
    shown = redacted(trace)
    assert shown.source.description == {
        "model": {"name": "m", "notes": ["on [name]", {"a": "[name]"}]}
    }
    assert "someone" not in repr(shown.source) + repr(shown.notes)
    assert "crunch-17" not in repr(shown.source) + repr(shown.notes)


def test_the_words_of_the_reader_are_those_of_the_options() -> None:
    from dataclasses import fields

    from traceflops.cli.mfu_options import ModelOptions, TokenOptions, TrainingOptions

    groups = (ModelOptions, TokenOptions, TrainingOptions)
    options = {one.name for group in groups for one in fields(group)}
    assert {*DESCRIPTION_WORDS} == options - {"list_models"} | {"gpus", "dtype"}
    assert {*TOKEN_COUNTS} <= {*DESCRIPTION_WORDS}
