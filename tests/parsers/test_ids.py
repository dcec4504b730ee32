"""Ids, counts and names of any JSON type."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parsers.documents import COMPACT, Token, anchored, printed, read_bytes
from traceflops.parsers.pytorch.values import integer
from traceflops.table.trace import Trace


def trace_of(*events: dict[str, Any]) -> Trace:
    return read_bytes(printed(anchored(list(events)), COMPACT, {}).data)


def kernel(**fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1} | fields


def call(**fields: Any) -> dict[str, Any]:
    named = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
    return named | {"pid": 9, "tid": 9, "ts": 1, "dur": 1} | fields


IDS = [
    (5, 5),
    ("5", 5),
    (" 5 ", 5),
    (0, 0),
    ("0", 0),
    (-7, -7),
    ("-7", -7),
    (2**63 - 1, 2**63 - 1),
    (10159970886766084423, 10159970886766084423 - 2**64),
    ("10159970886766084423", 10159970886766084423 - 2**64),
    (2**64 - 1, -1),
    (2**64 + 5, 5),
    (-(2**63) + 1, -(2**63) + 1),
    (Token("5.0"), 5),
    (Token("5e3"), 5000),
    (Token("5.5"), None),
    (Token("1e30"), None),
    (True, None),
    (False, None),
    (None, None),
    ("", None),
    ("inf", None),
    ("0x10", None),
    ("--5", None),
    ("9" * 60, None),
    ([5], None),
    ({"id": 5}, None),
]


@pytest.mark.parametrize(("value", "wanted"), IDS, ids=repr)
def test_correlations(value: Any, wanted: int | None) -> None:
    trace = trace_of(kernel(args={"correlation": value}), call(args={"correlation": value}))
    assert trace.activities["correlation"].to_pylist() == [wanted]
    assert trace.calls["correlation"].to_pylist() == [wanted]


def test_one_odd_id_does_not_change_its_neighbours() -> None:
    values = [5, "6", None, 2**64 - 1, Token("7.5"), 8]
    trace = trace_of(*(kernel(ts=t, args={"correlation": v}) for t, v in enumerate(values)))
    assert trace.activities["correlation"].to_pylist() == [5, 6, None, -1, None, 8]


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_every_64_bit_id_survives(value: int) -> None:
    assert integer(value) == value
    assert integer(str(value)) == value
    assert integer(value % 2**64) == value


@pytest.mark.parametrize("args", [None, [], "text", 5, {}, {"other": 1}])
def test_arguments_may_be_anything(args: Any) -> None:
    trace = trace_of(kernel(args=args), kernel(ts=2, args={"correlation": 5}))
    assert trace.activities["correlation"].to_pylist() == [None, 5]
    told = [note.count for note in trace.notes if note.code == "bad-arguments"]
    assert told == ([] if args is None or isinstance(args, dict) else [1])


# Flows


def test_an_arrow_lends_its_id_where_there_is_no_correlation() -> None:
    trace = trace_of(
        call(ts=1),
        kernel(ts=Token("5.001")),
        kernel(ts=Token("9.5"), args={"correlation": 77}),
        {"ph": "s", "cat": "ac2g", "id": 31, "pid": 9, "tid": 9, "ts": 1},
        {"ph": "f", "cat": "ac2g", "id": 31, "pid": 0, "tid": 7, "ts": Token("5.001"), "bp": "e"},
        {"ph": "f", "cat": "ac2g", "id": 32, "pid": 0, "tid": 7, "ts": Token("9.5"), "bp": "e"},
    )
    assert trace.calls["correlation"].to_pylist() == [31]
    assert trace.activities["correlation"].to_pylist() == [31, 77]


def test_an_arrow_of_another_kind_or_time_lends_nothing() -> None:
    trace = trace_of(
        kernel(ts=5),
        {"ph": "f", "cat": "fwdbwd", "id": 31, "pid": 0, "tid": 7, "ts": 5},
        {"ph": "f", "cat": "ac2g", "id": 32, "pid": 0, "tid": 7, "ts": Token("5.001")},
        {"ph": "X", "cat": "ac2g", "id": 33, "pid": 0, "tid": 7, "ts": 5},
    )
    assert trace.activities["correlation"].to_pylist() == [None]


def test_arrows_that_meet_by_chance_lend_nothing() -> None:
    arrows = [{"ph": "f", "cat": "ac2g", "id": n, "tid": 7, "ts": 5} for n in (1, 2)]
    assert trace_of(kernel(ts=5), *arrows).activities["correlation"].to_pylist() == [None]


# Streams, devices, threads


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"tid": 7}, 7),
        ({"tid": "stream 7"}, 7),
        ({"tid": "7"}, 7),
        ({"tid": 7, "args": {"stream": 20}}, 20),
        ({"tid": 7, "args": {"stream": "20"}}, 20),
        ({"tid": "Spans", "args": {"sycl queue": 3}}, 3),
        ({"tid": 0}, 0),
        ({"tid": "Spans"}, None),
        ({"tid": None}, None),
    ],
)
def test_streams(fields: dict[str, Any], wanted: int | None) -> None:
    assert trace_of(kernel(**fields)).activities["stream"].to_pylist() == [wanted]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"pid": 0}, 0),
        ({"pid": "2"}, 2),
        ({"pid": "", "args": {"device": 3}}, 3),
        ({"pid": None, "args": {"device": "3"}}, 3),
        ({"pid": "Spans"}, -1),
    ],
)
def test_devices(fields: dict[str, Any], wanted: int) -> None:
    trace = trace_of(kernel(**fields))
    assert trace.devices["local_id"].to_pylist() == [wanted]
    assert trace.activities["device"].to_pylist() == [0]


def test_several_devices_are_numbered_in_their_order() -> None:
    trace = trace_of(*(kernel(pid=pid, ts=pid) for pid in (4, 2, 9, 2)))
    assert trace.devices["local_id"].to_pylist() == [2, 4, 9]
    assert trace.activities["device"].to_pylist() == [0, 0, 1, 2]


# Names


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("plain", "plain"),
        ("", ""),
        (None, ""),
        (5, "5"),
        (True, "True"),
        (["a"], "['a']"),
        ("日本\U0001f600\x00\u2028", "日本\U0001f600\x00\u2028"),
        ("]</script><script>%s{0}", "]</script><script>%s{0}"),
        ("x" * 5000, "x" * 5000),
    ],
)
@pytest.mark.parametrize(
    ("category", "table"), [("kernel", "activities"), ("cuda_runtime", "calls"), ("cpu_op", "ops")]
)
def test_names_are_kept_as_they_are(name: Any, wanted: str, category: str, table: str) -> None:
    document = printed([kernel(cat=category, name=name), kernel(cat=category)], COMPACT, {})
    assert read_bytes(document.data).table(table)["name"].to_pylist() == [wanted, "k"]


def test_a_missing_name_is_an_empty_one() -> None:
    nameless = {"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}
    assert trace_of(nameless).ops["name"].to_pylist() == ["first", ""]


def test_names_that_are_equal_as_python_values_stay_apart() -> None:
    names = [1, True, "1", 1]
    drawn = [kernel(cat="cpu_op", name=name, ts=1 + n) for n, name in enumerate(names)]
    assert trace_of(*drawn).ops["name"].to_pylist() == ["first", "1", "True", "1", "1"]


@pytest.mark.parametrize("category", [None, 5, [], {}, "", "unheard of"])
def test_an_event_of_no_known_category_is_counted(category: Any) -> None:
    trace = trace_of(kernel(cat=category), kernel(ts=2))
    assert trace.activities.num_rows == 1
    key = category if isinstance(category, str) and category else "phase X"
    assert trace.source.event_counts[key] == 1
    told = [note.count for note in trace.notes if note.code == "unknown-category"]
    assert told == ([1] if category == "unheard of" else [])


def test_a_category_is_printable_in_notes() -> None:
    trace = trace_of(kernel(cat="new\n\x1b[31mred" + "x" * 100))
    (note,) = [note for note in trace.notes if note.code == "unknown-category"]
    assert note.text.isprintable()
    assert "new??[31mred" in note.text
    assert len(note.text) < 200


def test_the_kernel_that_a_call_of_hip_names() -> None:
    named = {"kernel": "k<int>", "grid": [4, 1, 1], "block": [64, 2, 1], "correlation": 1}
    odd = {"kernel": 7, "grid": "4", "correlation": 2}
    calls = trace_of(call(args=named), call(args=odd), call(args={"correlation": 3})).calls
    rows = [[row[name] for name in ("kernel", "grid", "block")] for row in calls.to_pylist()]
    assert rows == [["k<int>", [4, 1, 1], [64, 2, 1]], ["7", None, None], [None, None, None]]
