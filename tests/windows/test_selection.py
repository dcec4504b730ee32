"""What the user asks for, and the part of a trace that answers it."""

import pytest

from tests.build import launched, step_marks, trace_of
from traceflops import Selection, UsageError, analyze
from traceflops.table.columns import names
from traceflops.windows.chosen_runs import restrict
from traceflops.windows.selection import parse_duration, parse_numbers, parse_steps

_OF_THE_HOST = ("calls", "ops", "marks")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("3:5", (3, 5)), ("3:", (3, None)), (":5", (None, 5)), ("4", (4, 4)), ("-2:1", (-2, 1))),
        *(("3-5", (3, 5)), ("3\N{EN DASH}5", (3, 5))),  # as in reports
    ],
)
def test_steps(text: str, expected: tuple[int | None, int | None]) -> None:
    assert parse_steps(text) == expected


@pytest.mark.parametrize("text", ["", ":", "a:b", "1:2:3", "5:3", "1.5", "1--3", "1-"])
def test_bad_steps(text: str) -> None:
    with pytest.raises(UsageError):
        parse_steps(text)


def test_numbers() -> None:
    assert parse_numbers("--ranks", "0, 2,4-6") == {0, 2, 4, 5, 6}


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "0-9999999999"])
def test_bad_numbers(text: str) -> None:
    with pytest.raises(UsageError):
        parse_numbers("--ranks", text)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1.5s", 1_500_000_000),
        ("200ms", 200_000_000),
        ("30 us", 30_000),
        ("0.001µs", 1),
        ("7ns", 7),
        ("1752839462.723407001s", 1_752_839_462_723_407_001),
    ],
)
def test_durations_are_exact(text: str, ns: int) -> None:
    assert parse_duration("--from", text) == ns


@pytest.mark.parametrize("text", ["", "5", "1e3s", "-1s", "1h", "s", "1..2s"])
def test_a_duration_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration("--from", text)


def test_a_window_is_chosen_in_one_way_only() -> None:
    with pytest.raises(UsageError):
        Selection(steps=(1, 2), from_ns=3)
    with pytest.raises(UsageError):
        Selection(from_ns=5, to_ns=5)


def rows(selection: Selection) -> dict[str, int]:
    trace = trace_of(
        **launched(("a", 0, 100, 50), ("b", 210, 300, 50)),
        ops=[{"name": "x", "start_ns": 0, "dur_ns": 20}, {"name": "y", "start_ns": 205}],
        marks=step_marks(("ProfilerStep#0", 0, 50), ("ProfilerStep#1", 200, 50)),
        processes=[{"rank": 3}],
        counters=[{"time_ns": 10, "value": 1}, {"time_ns": 210, "value": 2}],
    )
    part = restrict(trace, selection)
    tables = ("activities", "calls", "ops", "marks", "counters")
    return {name: part.table(name).num_rows for name in tables}


def test_restricting_to_steps_follows_launches() -> None:
    found = rows(Selection(steps=(1, 1)))
    assert found == {"activities": 1, "calls": 1, "ops": 1, "marks": 1, "counters": 1}


def test_restricting_to_time_keeps_what_overlaps() -> None:
    # From the first activity at 100: [149, 300) and [150, 300).
    assert rows(Selection(from_ns=49, to_ns=200))["activities"] == 1
    assert rows(Selection(from_ns=50, to_ns=201))["activities"] == 1
    assert rows(Selection(from_ns=49, to_ns=201))["activities"] == 2


def test_what_caused_a_kept_activity_is_kept_with_it() -> None:
    trace = trace_of(
        activities=[{"name": "k", "start_ns": 500, "correlation": 1}, {"name": "j", "start_ns": 0}],
        calls=[{"start_ns": 50, "correlation": 1}, {"start_ns": 60, "correlation": 2}],
        ops=[{"name": "record_param_comms", "start_ns": 40, "dur_ns": 15}],
    )
    part = restrict(trace, Selection(from_ns=400))
    assert part.activities["name"].to_pylist() == ["k"]
    assert part.calls["start_ns"].to_pylist() == [50]
    assert part.ops["name"].to_pylist() == ["record_param_comms"]


def test_restricting_to_ranks_and_devices() -> None:
    assert rows(Selection(ranks=frozenset({3}), gpus=frozenset({0})))["activities"] == 2
    with pytest.raises(UsageError, match="selection is empty"):
        rows(Selection(ranks=frozenset({4})))


def test_a_gpu_comes_with_the_host_that_worked_for_it_alone() -> None:
    """Rows of other processes, and calls for other GPUs of its own, go with all their names."""
    device, process = [0, 1, 2], [0, 0, 1]
    trace = trace_of(
        activities=[
            {"name": f"k{d}", "device": d, "process": p, "start_ns": 100 + d, "correlation": d}
            for d, p in zip(device, process, strict=True)
        ],
        calls=[
            {"name": f"launch{d}", "process": p, "start_ns": d, "correlation": d}
            for d, p in zip(device, process, strict=True)
        ],
        ops=[{"name": f"op{p}", "process": p} for p in (0, 1)],
        marks=[{"name": f"mark{p}", "process": p} for p in (0, 1)],
        devices=[{"local_id": d, "process": p} for d, p in zip(device, process, strict=True)],
        processes=[{"rank": 0}, {"rank": 1}],
    )
    part = restrict(trace, Selection(gpus=frozenset({0})))
    held = {table: names(part.table(table)["name"]) for table in ("activities", *_OF_THE_HOST)}
    assert held == {"activities": ["k0"], "calls": ["launch0"], "ops": ["op0"], "marks": ["mark0"]}


def test_what_is_chosen_but_lasts_no_time_is_in_the_tables() -> None:
    at_once = [{"name": name, "start_ns": 5, "dur_ns": 0} for name in ("a", "b", "a")]
    found = analyze(trace_of(activities=at_once))
    assert found.total.activities == 3
    assert {row["name"]: row["count"] for row in found.kernels.to_pylist()} == {"a": 2, "b": 1}
