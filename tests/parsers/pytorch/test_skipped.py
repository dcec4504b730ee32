"""Events that cannot be used are counted: odd categories, phases and times."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.parsers.documents import read_bytes
from traceflops.errors import InputError
from traceflops.table.trace import Trace

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 5, "pid": 0, "tid": 7}


def read(*events: dict[str, Any]) -> Trace:
    return read_bytes(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def skipped(trace: Trace) -> dict[str, int | None]:
    return {note.code: note.count for note in trace.notes if note.kind == "dropped"}


@pytest.mark.parametrize("value", [5, 1.5, [1], {"a": 1}, True, None])
def test_a_category_that_is_no_text_is_counted(value: Any) -> None:
    trace = read(KERNEL, KERNEL | {"cat": value, "ts": 9}, KERNEL | {"cat": value, "ts": 19})
    assert trace.activities.num_rows == 1
    assert skipped(trace) == {"no-category": 2}


@pytest.mark.parametrize("value", [5, 1.5, [1], {"a": 1}, True, "B"])
def test_a_phase_that_is_not_one_of_events_is_counted(value: Any) -> None:
    trace = read(KERNEL, KERNEL | {"ph": value, "ts": 9}, KERNEL | {"ph": value, "ts": 19})
    assert trace.activities.num_rows == 1
    assert skipped(trace) == {"odd-phase": 2}


def test_an_event_with_a_duration_needs_no_phase() -> None:
    trace = read(KERNEL, KERNEL | {"ph": None, "ts": 9})
    assert (trace.activities.num_rows, skipped(trace)) == (2, {})


def test_arrows_and_what_is_not_read_anyway_are_not_counted() -> None:
    arrow = {"cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 1, "id": 1}
    others = ({"ph": "M", "name": "process_name", "pid": 0}, KERNEL | {"cat": "Trace", "ph": "B"})
    assert skipped(read(KERNEL, *(arrow | {"ph": phase} for phase in "stf"), *others)) == {}


TOO_LARGE = ("1e400", "-1e400", "1e300", "9" * 5_000, f"{'9' * 400}.5")


@pytest.mark.parametrize("time", TOO_LARGE)
@pytest.mark.parametrize(
    "document", ['{{"traceEvents": {}}}'.format, "{}".format], ids=["object", "list"]
)
def test_times_too_large_for_a_number_are_the_reason_that_is_told(
    time: str, document: Callable[[str], str]
) -> None:
    event = json.dumps(KERNEL | {"ts": 0}).replace('"ts": 0', f'"ts": {time}')
    with pytest.raises(InputError, match="no event has a valid time"):
        read_bytes(document(f"[{event}, {event}]").encode())


@pytest.mark.parametrize("time", TOO_LARGE)
def test_a_time_too_large_costs_only_its_own_event(time: str) -> None:
    event = json.dumps(KERNEL | {"ts": 0}).replace('"ts": 0', f'"ts": {time}')
    trace = read_bytes(f'{{"traceEvents": [{json.dumps(KERNEL)}, {event}]}}'.encode())
    assert (trace.activities.num_rows, skipped(trace)) == (1, {"no-time": 1})
