"""Times: microseconds in any notation become integer nanoseconds, to the last digit."""

import json
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.parsers.documents import COMPACT, Token, anchored, codes, printed, read_bytes
from traceflops.parsers.pytorch.values import exact_nanoseconds, nanoseconds
from traceflops.table.columns import LIMIT_NS
from traceflops.table.trace import Trace

EPOCH_NS = 1_704_067_200_123_456_789
LOST_IN_A_DOUBLE = 2**43 * 1000


def trace_of(*times: Any, dur: Any = 1) -> Trace:
    drawn = [{"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": dur} for ts in times]
    return read_bytes(printed(anchored(drawn), COMPACT, {"schemaVersion": 1}).data)


def starts(*times: Any) -> list[int]:
    found: list[int] = trace_of(*times).activities["start_ns"].to_pylist()
    return found


def notations(ns: int) -> list[str]:
    """Return the ways to write a time in microseconds, the exact decimals last."""
    sign, digits = "-" if ns < 0 else "", str(abs(ns)).rjust(4, "0")
    three = f"{sign}{digits[:-3]}.{digits[-3:]}"
    short = three.rstrip("0").rstrip(".")
    exponent = f"{Decimal(ns).scaleb(-3):e}"
    return [three, short, three + "000", exponent, exponent.upper()]


@given(st.integers(-LIMIT_NS + 1000, LIMIT_NS - 1000))
def test_every_nanosecond_survives_every_notation(ns: int) -> None:
    for text in notations(ns):
        assert exact_nanoseconds(msgspec.Raw(text.encode())) == ns
        assert exact_nanoseconds(f" {text} ") == ns
        assert exact_nanoseconds(msgspec.Raw(json.dumps(text).encode())) == ns


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, LIMIT_NS - 1000) | st.integers(0, 10**13), min_size=1, max_size=9))
def test_every_nanosecond_survives_the_file(wanted: list[int]) -> None:
    tokens = [Token(notations(ns)[place % 4]) for place, ns in enumerate(wanted)]
    assert starts(*tokens) == sorted(wanted)
    texts = [str(token) for token in tokens]
    assert starts(*texts) == sorted(wanted)


@given(st.lists(st.integers(-LOST_IN_A_DOUBLE + 1, LOST_IN_A_DOUBLE - 1), min_size=1, max_size=50))
def test_a_double_keeps_thousandths_below_2_to_the_43(wanted: list[int]) -> None:
    doubles = [float(notations(ns)[0]) for ns in wanted]
    found, known = nanoseconds(doubles)
    assert found.tolist() == wanted
    assert known.all()


def test_a_double_keeps_thousandths_next_to_2_to_the_43() -> None:
    """The worst places: just below a power of two, where doubles are sparsest."""
    for power in range(30, 44):
        edge = 2**power * 1000
        wanted = [*range(edge - 2500, edge)]
        found, _ = nanoseconds([float(notations(ns)[0]) for ns in wanted])
        assert found.tolist() == wanted


def test_a_double_loses_thousandths_above() -> None:
    """The limit is not set too low by much: above 2^44 the digits are needed."""
    wanted = [2**44 * 1000 + n for n in range(1000)]
    rounded = [round(float(notations(ns)[0]) * 1000) for ns in wanted]
    assert rounded != wanted
    assert starts(*(Token(notations(ns)[0]) for ns in wanted)) == wanted


def test_integers_and_decimals_may_be_mixed() -> None:
    large = 4_503_599_627_370_497  # odd, 2^52 and a bit: as nanoseconds it needs 63 bits
    mixed = [large // 3, Token("0.001"), "7.5", large // 2]
    assert starts(*mixed) == [1, 7500, large // 3 * 1000, large // 2 * 1000]
    found, _ = nanoseconds([2**51 + 1, 0.5])
    assert found.tolist() == [(2**51 + 1) * 1000, 500]


@pytest.mark.parametrize(
    ("token", "ns"),
    [
        (Token("123.456"), 123_456),
        (Token("123.4"), 123_400),
        (Token("123"), 123_000),
        (Token("1.2e3"), 1_200_000),
        (Token("12E-1"), 1_200),
        ("123.456", 123_456),
        (Token("0.000"), 0),
        (Token("-0.001"), -1),
        (Token("-1.5"), -1_500),
        (Token("1704067200123456.789"), EPOCH_NS),
        ("1704067200123456.789", EPOCH_NS),
        (Token("1.704067200123456789e15"), EPOCH_NS),
        (1704067200123456, 1_704_067_200_123_456_000),
        (Token("9007199254740.993"), 9_007_199_254_740_993),
    ],
)
def test_notations(token: Any, ns: int) -> None:
    assert starts(token) == [ns]


def test_digits_are_kept_from_the_first_block_on() -> None:
    """Whether a double would do is found out by the block; no block may be read the wrong way."""
    drawn = [
        {"ph": "X", "cat": "kernel", "name": str(n), "ts": Token(f"{n}.001"), "dur": Token("1.001")}
        for n in (5, 1704067200123456, 1704067200123457, 6)
    ]
    for size in (1, 50, 1000):
        trace = read_bytes(printed(anchored(drawn), COMPACT, {}).data, size)
        assert trace.activities["start_ns"].to_pylist() == [
            5_001,
            6_001,
            1_704_067_200_123_456_001,
            1_704_067_200_123_457_001,
        ]
        assert set(trace.activities["dur_ns"].to_pylist()) == {1_001}


def test_a_long_duration_keeps_its_digits_too() -> None:
    assert trace_of(0, dur=Token("9007199254740.993")).activities["dur_ns"].to_pylist() == [
        9_007_199_254_740_993
    ]


@given(st.integers(0, 2**42), st.integers(0, 10**6 - 1))
def test_parts_of_a_nanosecond_are_rounded_alike_on_every_way(whole: int, parts: int) -> None:
    text = f"{whole}.{parts:06}"
    fast, _ = nanoseconds([float(text)])
    assert exact_nanoseconds(text) == fast[0]
    assert abs(Decimal(text) * 1000 - int(fast[0])) <= Decimal("0.989")


def test_parts_of_a_nanosecond_are_rounded() -> None:
    assert starts(Token("1.0004"), Token("2.0006"), "3.00051") == [1_000, 2_001, 3_001]


NO_TIME = [
    None,
    "",
    "soon",
    "nan",
    "inf",
    "-Infinity",
    True,
    [],
    [5],
    {},
    {"ts": 1},
    10**30,
    -(10**30),
    "1e400",
    "1e99999999999",
    Token("1e300"),
    Token("4611686018427387.905"),
    Token("9223372036854775807"),
]


@pytest.mark.parametrize("ts", NO_TIME, ids=repr)
def test_an_event_without_a_time_is_left_out_and_counted(ts: Any) -> None:
    trace = trace_of(7, ts)
    assert trace.activities["start_ns"].to_pylist() == [7_000]
    (note,) = [note for note in trace.notes if note.code == "no-time"]
    assert (note.kind, note.count) == ("dropped", 1)


def test_a_missing_time_is_counted_too() -> None:
    drawn = [{"ph": "X", "cat": "kernel", "name": "k", "dur": 1}] * 3
    trace = read_bytes(printed(anchored(drawn), COMPACT, {}).data)
    assert trace.activities.num_rows == 0
    assert [note.count for note in trace.notes if note.code == "no-time"] == [3]


def test_a_number_beyond_doubles_costs_only_its_event() -> None:
    trace = trace_of(7, Token("1e999"), 8)
    assert trace.activities["start_ns"].to_pylist() == [7_000, 8_000]
    assert [note.count for note in trace.notes if note.code == "no-time"] == [1]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "nan", "N/A"])
def test_bare_values_that_are_no_json_are_read_as_missing(value: str) -> None:
    trace = trace_of(7, Token(value), 8)
    assert trace.activities["start_ns"].to_pylist() == [7_000, 8_000]
    assert {"no-time", "json-repaired"} <= codes(trace)


@pytest.mark.parametrize("dur", [None, "long", [], Token("1e300"), True])
def test_an_event_without_a_duration_is_kept_and_counted(dur: Any) -> None:
    trace = trace_of(7, 8, dur=dur)
    assert trace.activities["dur_ns"].to_pylist() == [0, 0]
    (note,) = [note for note in trace.notes if note.code == "no-duration"]
    assert note.count == 2


def test_a_negative_duration_is_said() -> None:
    trace = trace_of(7, dur=Token("-0.001"))
    assert trace.activities["dur_ns"].to_pylist() == [0]
    assert [note.count for note in trace.notes if note.code == "negative-duration"] == [1]


def test_day_long_durations_and_zero_lengths_are_kept_as_they_are() -> None:
    days = 40 * 86_400 * 10**6
    assert trace_of(7, dur=days).activities["dur_ns"].to_pylist() == [days * 1000]
    trace = trace_of(Token("0.000"), Token("0.000"), dur=Token("0.000"))
    assert trace.activities["dur_ns"].to_pylist() == [0, 0]
    assert not codes(trace) & {"no-duration", "negative-duration"}


def test_an_event_without_phase_but_with_a_duration_is_a_range() -> None:
    drawn = [{"cat": "kernel", "name": "k", "ts": 1, "dur": 2}, {"cat": "kernel", "ts": 5}]
    trace = read_bytes(printed(anchored(drawn), COMPACT, {}).data)
    assert trace.activities["start_ns"].to_pylist() == [1_000]
    assert not codes(trace) & {"no-duration"}


def test_sums_of_times_fit_64_bits() -> None:
    most = Token(f"{LIMIT_NS // 1000}")
    table = trace_of(most, dur=most).activities
    start, dur = (np.int64(table[c][0].as_py()) for c in ("start_ns", "dur_ns"))
    assert int(start + dur) == 2 * (LIMIT_NS // 1000) * 1000


# The clock


def origin(base: Any, *times: Any) -> int | None:
    drawn = [{"ph": "X", "cat": "kernel", "name": "k", "ts": ts} for ts in times]
    metadata = {} if base is None else {"baseTimeNanoseconds": base}
    document = printed(drawn, COMPACT, metadata)
    return read_bytes(document.data).source.origin_unix_ns


def test_the_base_is_the_origin() -> None:
    assert origin(1_727_743_000_000_000_000, 5) == 1_727_743_000_000_000_000
    assert origin("1727743000000000000", 5) == 1_727_743_000_000_000_000


def test_without_a_base_epoch_times_tell_the_origin() -> None:
    assert origin(None, 1_704_067_200_123_456) == 0
    assert origin(None, 5) is None


@pytest.mark.parametrize("base", ["yesterday", 2**63, -(2**70), [], {}, True])
def test_an_odd_base_is_no_base(base: Any) -> None:
    assert origin(base, 5) is None
