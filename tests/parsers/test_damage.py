"""Damage inside the text: the damaged event is mended or counted as lost, all others stay."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.parsers.documents import (
    COMPACT,
    LAYOUTS,
    METADATA,
    PRETTY,
    Layout,
    codes,
    printed,
    read_bytes,
)
from traceflops.analysis.recipe import analyze
from traceflops.errors import InputError
from traceflops.parsers.io.json_text import REPAIRS, first_value
from traceflops.table.trace import Trace

NAMES = ("gemm", "a}, {b", "]", "x: 5, y", "é", '"quoted"', "C:\\new", "")
WRONG = (
    b'"',
    b'""',
    b'"""',
    b' "quoted" ',
    b'"x',
    b"\\",
    b"\\q",
    b"\\u12",
    b"\\ud800",
    b"\t",
    b"\n",
    b"\x00",
    b"\xff",
    b"\xe9",
    b'"]',
    b'"]]',
    b'"}',
    b'"}}',
    b'"]}',
    b'"}]',
    b'"}]}',
    b'": NaN, "',
    b'", ',
    b'" : ',
)


def kernels(count: int) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"{n} {NAMES[n % len(NAMES)]}",
            "pid": 0,
            "tid": 7,
            "ts": n,
            "dur": 1,
            "args": {"stream": 7, "correlation": n, "list": [{"a": 1}, {"b": "}, {"}]},
        }
        for n in range(count)
    ]


def names(trace: Trace) -> list[str]:
    found: list[str] = trace.activities["name"].to_pylist()
    return found


@settings(max_examples=examples(400), suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(st.integers(0, 11), st.sampled_from(WRONG), min_size=1, max_size=3),
    st.sampled_from(LAYOUTS),
    st.sampled_from([5, 60, 500, 1 << 20]),
)
def test_damage_in_a_name_costs_at_most_that_event(
    wrong: dict[int, bytes], layout: Layout, size: int
) -> None:
    """Names are hit right behind their number; the last event is left whole."""
    drawn = kernels(13)
    if layout.sort_keys:  # there an event that was lost is found again by its first key
        drawn = [{key: event[key] for key in sorted(event)} for event in drawn]
    data = printed(drawn, layout, METADATA).data
    for place, piece in wrong.items():
        mark = f'"{place} '.encode()
        assert data.count(mark) == 1
        data = data.replace(mark, mark + piece)
    trace = read_bytes(data, size)
    hit = set(wrong)
    kept = [event["name"] for n, event in enumerate(drawn) if n not in hit]
    found = names(trace)
    assert [name for name in found if name in kept] == kept
    others = [name for name in found if name not in kept]
    assert {int(name.split(" ")[0]) for name in others} <= hit
    if len(others) < len(hit) or not is_json(data):
        assert codes(trace) & {"json-dropped", "json-repaired", "no-time", "no-duration"}
    if layout.metadata != "none" and layout.metadata != "list":
        assert trace.ranks == (3,)


def is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode("utf-8-sig"))
    except ValueError:
        return False
    return True


MENDED = [
    ('an "inner" name', 'an "inner" name', "quotes"),
    ('5" disk', '5" disk', "quotes"),
    ("C:\\Users\\x", "C:\\Users\\x", "backslashes"),
    ("tab\there", "tab here", "control"),
    ("line\nbreak", "line break", "control"),
    ("half \\ud800 pair", "half \ufffd pair", "surrogate"),
    ("\\\\ud800 is text", "\\ud800 is text", None),
    ("pair \\ud83d\\ude00", "pair \U0001f600", None),
    ('both "q" and \t', 'both "q" and  ', "quotes"),
]


@pytest.mark.parametrize(("written", "wanted", "word"), MENDED)
@pytest.mark.parametrize("spaced", [True, False])
def test_what_is_mended(written: str, wanted: str, word: str | None, spaced: bool) -> None:
    first, second, third = ((PRETTY if spaced else COMPACT).printed(event) for event in kernels(3))
    second = second.replace("1 a}, {b", written)
    trace = read_bytes(f"[{first},{second},{third}]".encode())
    assert names(trace) == ["0 gemm", wanted, "2 ]"]
    told = [note for note in trace.notes if note.code == "json-repaired"]
    assert any(word in note.text for note in told) if word else not told


def test_a_repair_is_counted_once_per_event() -> None:
    data = printed(kernels(6), COMPACT, {}).data
    for n in (1, 3, 4):
        data = data.replace(f'"{n} '.encode(), f'"{n} "quoted" '.encode())
    (note,) = [note for note in read_bytes(data).notes if note.code == "json-repaired"]
    assert (note.kind, note.count) == ("repaired", 3)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=8,
    ),
    st.booleans(),
    st.sampled_from([None, 2, "\t"]),
)
def test_repairs_leave_sound_json_alone(value: Any, ascii_only: bool, indent: Any) -> None:
    try:
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        return
    for repair in REPAIRS:
        assert repair.change(text) == text, repair.words


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text()), max_size=4))
def test_a_beginning_violates_nothing(values: list[Any]) -> None:
    text = json.dumps(values)[:-1].encode()
    assert all(first_value(text[:cut]) == (False, cut) for cut in range(1, len(text) + 1))


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (b'{"a": "x" y"}', 10),
        (b'{"a": NaN}', 6),
        (b'{"a": 1]', 7),
        (b'{"a": 1}, ]', 10),
        (b'{"a": 01, "b"', 7),
    ],
)
def test_a_violation_is_found_where_it_is(text: bytes, at: int) -> None:
    whole, length = first_value(b"[" + text)
    assert not whole
    assert abs(length - 1 - at) <= 1


DOUBTFUL_ENDS = [
    b'{"ph":"X","cat":"kernel","name":"a"]], "ts": 1}',
    b'{"ph":"X","cat":"kernel","args":{"l":[{"ph":NaN"},{"ph":1}]}}',
    b'{"ph":"X","cat":"kernel","args":{"l":[{"ph":NaN"},{"ph":1}]},"ts":1}',
    b'{"ph":"X"}}',
    b"]",
    b"}",
    b"[}",
]
LIKE_TRUE_ENDS = [b'{"ph":"X","cat":"kernel","name":"a"}], "x": "}']


def with_wrong(wrong: bytes) -> bytes:
    before, *after = (COMPACT.printed(event).encode() for event in kernels(4))
    return b'{"traceEvents":[' + b",".join([before, wrong, *after]) + b"]}"


@pytest.mark.parametrize("wrong", DOUBTFUL_ENDS)
def test_a_bracket_too_many_does_not_end_the_list(wrong: bytes) -> None:
    trace = read_bytes(with_wrong(wrong))
    assert names(trace)[-3:] == ["1 a}, {b", "2 ]", "3 x: 5, y"]
    assert "json-dropped" in codes(trace)


@pytest.mark.parametrize("wrong", LIKE_TRUE_ENDS)
def test_a_true_looking_end_is_none_where_events_follow(wrong: bytes) -> None:
    trace = read_bytes(with_wrong(wrong))
    assert names(trace) == ["0 gemm", "1 a}, {b", "2 ]", "3 x: 5, y"]
    assert {"json-dropped", "no-time"} <= codes(trace)


def test_commas_before_closing_brackets_are_left_out() -> None:
    event = b'{"ph":"X","cat":"kernel","name":"a,]","ts":1,"dur":2,"args":{"grid":[1,2,3,],},}'
    found = read_bytes(b'{"traceEvents":[' + event + b"," + event + b"]}")
    assert found.activities["name"].to_pylist() == ["a,]", "a,]"]
    assert found.activities["grid"].to_pylist() == [[1, 2, 3]] * 2
    assert [n.count for n in found.notes if n.code == "json-repaired"] == [2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"schemaVersion":1,"traceEvents":[{"ph" "X"},{"ph" "X"}]}', "no readable event"),
        (b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":17e17,"dur":5}]}', "has a valid time"),
    ],
)
def test_a_file_of_which_nothing_is_left_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_bytes(text)


def test_what_was_lost_is_not_said_to_be_unrecorded() -> None:
    op = b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":2}'
    whole = read_bytes(b'{"traceEvents":[' + op + b"]}")
    cut = read_bytes(b'{"traceEvents":[' + op + b',{"ph":"X","cat":"ker')
    texts = [n.text for trace in (whole, cut) for n in trace.notes if n.code == "no-device-work"]
    assert ["record with" in text for text in texts] == [True, False]
    assert "in the part that was lost" in texts[1]
    remedies = [one.remedy for one in analyze(cut).findings]
    assert "Copy the file again, or let the program end before it is copied." in remedies
    assert not any("part that was lost" in text for text in remedies)
