"""Messages of Protocol Buffers as columns: what an encoder of its own wrote is found again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_traces.messages import counted, fixed, number, part, varint
from tests.conftest import examples
from traceflops.parsers.io.messages import Block, Messages, fields, split
from traceflops.table.columns import ABSENT

NUMBERS = st.integers(-(2**63), 2**63 - 1).filter(lambda value: value != ABSENT)
FIELDS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 3), NUMBERS),
        st.tuples(st.integers(4, 6), st.binary(max_size=200)),
        st.tuples(st.integers(7, 2_000), NUMBERS | st.binary(max_size=9)),
    ),
    max_size=12,
)


def encoded(message: Sequence[tuple[int, int | bytes]]) -> bytes:
    return b"".join(number(n, v) if isinstance(v, int) else part(n, v) for n, v in message)


def messages_of(parts: Sequence[bytes]) -> Messages:
    ends = np.cumsum([len(one) for one in parts], dtype=np.int64)
    begins = ends - np.array([len(one) for one in parts], dtype=np.int64)
    return Messages(Block(b"".join(parts)), begins, ends)


@settings(max_examples=examples(300))
@given(messages=st.lists(FIELDS, min_size=1, max_size=6))
def test_every_field_of_every_message(messages: list[list[tuple[int, int | bytes]]]) -> None:
    found = messages_of([encoded(one) for one in messages]).columns((1, 2, 3), (4, 5, 6))
    assert found.sound.all()
    for row, message in enumerate(messages):
        said = dict(message)
        for one in (1, 2, 3):
            assert found.numbers[one][row] == said.get(one, ABSENT)
        for one in (4, 5, 6):
            (text,) = found.block.texts(found.begins[one][[row]], found.ends[one][[row]])
            assert text == said.get(one)


@settings(max_examples=examples(300))
@given(message=FIELDS)
def test_fields_of_one_message(message: list[tuple[int, int | bytes]]) -> None:
    expected = [(n, v % 2**64 if isinstance(v, int) else v) for n, v in message]
    assert list(fields(encoded(message))) == expected


@settings(max_examples=examples(300))
@given(parts=st.lists(st.binary(max_size=60), min_size=1, max_size=8))
def test_bytes_that_are_no_messages(parts: list[bytes]) -> None:
    """What is told of a message never depends on the others, and lies within it."""
    together = messages_of(parts).columns((1, 2), (3,))
    for row, one in enumerate(parts):
        alone = messages_of([one]).columns((1, 2), (3,))
        assert alone.sound[0] == together.sound[row]
        if alone.sound[0]:
            assert [alone.numbers[n][0] for n in (1, 2)] == [
                together.numbers[n][row] for n in (1, 2)
            ]
            begin, end = alone.begins[3][0], alone.ends[3][0]
            assert begin == end == ABSENT or 0 <= begin <= end <= len(one)


def test_a_message_cut_anywhere_is_not_sound() -> None:
    whole = encoded([(1, 300), (4, b"abc"), (2, -5)])
    cut = [whole[:at] for at in range(len(whole) + 1)]
    sound = messages_of(cut).columns((1, 2), (4,)).sound
    ends_of_fields = {0, 3, 8, len(whole)}
    assert {at for at in range(len(whole) + 1) if sound[at]} == ends_of_fields


def test_a_field_of_another_form_is_not_believed() -> None:
    swapped = [encoded([(1, b"x")]), encoded([(4, 7)]), encoded([(1, 7), (4, b"x")])]
    assert messages_of(swapped).columns((1,), (4,)).sound.tolist() == [False, False, True]


def test_a_message_of_too_many_fields_ends() -> None:
    found = messages_of([number(1, 5) * 100_000, number(1, 5)]).columns((1,))
    assert found.sound.tolist() == [False, True]


@settings(max_examples=examples(200))
@given(parts=st.lists(st.binary(max_size=300), max_size=9), between=st.booleans())
def test_a_field_that_repeats(parts: list[bytes], between: bool) -> None:
    other = number(2, 5) + part(3, b"other") if between else b""
    data = varint(7) + b"".join(part(1, one) + other for one in parts)
    begin, end, is_whole = split(data, 1, len(data), 1)
    assert is_whole
    assert [data[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)] == parts
    assert counted(b"abc") == b"\3abc"
    if data[1:]:
        assert not split(data, 1, len(data) - 1, 1)[2]


@settings(max_examples=examples(200))
@given(messages=st.lists(st.lists(st.binary(max_size=9), max_size=6), min_size=1, max_size=6))
def test_parts_that_repeat_and_numbers_of_fixed_size(messages: list[list[bytes]]) -> None:
    encoded_ones = [
        b"".join(part(4, one) for one in parts) + fixed(5, bytes(7) + bytes([row + 1]))
        for row, parts in enumerate(messages)
    ]
    found = messages_of(encoded_ones).columns((1,), (), (5,), repeated=4)
    texts = found.each.block.texts(found.each.begin, found.each.end)
    expected = [(row, one) for row, parts in enumerate(messages) for one in parts]
    assert list(zip(found.owner.tolist(), texts, strict=True)) == expected
    assert found.numbers[5].tolist() == [(row + 1) << 56 for row in range(len(messages))]
    names = [b"", b"a", b"ab", b"abcdefgh", b"12345678x"]
    known = found.each.block.known(found.each.begin, found.each.end, names)
    assert known.tolist() == [names.index(one) if one in names else ABSENT for _, one in expected]
