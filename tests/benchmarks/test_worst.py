"""The worst cases, small: what is counted and linked is what a plain look at the events gives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

import traceflops as tf
from tests.benchmarks.worst import CASES, Case
from traceflops.table.columns import numbers
from traceflops.table.links import link

SMALL = {"deep ops": 3, "deep ops, CPU only": 3, "deep frames": 3, "many ranks": 3}
"""Sizes of the cases that have many events for each of their size; of others it is 30."""


@dataclass(frozen=True)
class Event:
    """One event as the file has it, times in ns."""

    file: str
    category: str
    name: str
    thread: int
    start: int
    end: int
    device: int
    correlation: int | None
    external: int | None


def _written(path: Path) -> list[Event]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return [event for file in files for event in _in_file(file)]


def _in_file(file: Path) -> Iterable[Event]:
    for event in json.loads(file.read_text(), parse_float=str)["traceEvents"]:
        start, dur, args = _ns(event["ts"]), _ns(event["dur"]), event["args"]
        yield Event(
            file.name,
            event["cat"],
            event["name"],
            event["tid"],
            start,
            start + dur,
            args.get("device", 0),
            args.get("correlation"),
            args.get("External id"),
        )


def _ns(micros: str) -> int:
    return int(micros.replace(".", ""))


def _of(events: Iterable[Event], category: str) -> list[Event]:
    return [event for event in events if event.category == category]


def _union(events: Iterable[Event]) -> int:
    """Return the time that any of the events covers."""
    total, reach = 0, -(10**18)
    for event in sorted(events, key=lambda event: event.start):
        total += max(0, event.end - max(event.start, reach))
        reach = max(reach, event.end)
    return total


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[tf.Trace, list[Event]]:
    case: Case = request.param
    path = tmp_path / ("ranks" if case.ranks else "worst.json")
    count = case.write(path, SMALL.get(case.name, 30))
    events = _written(path)
    assert len(events) == count
    return tf.read(path), events


def test_every_activity_is_counted_once(made: tuple[tf.Trace, list[Event]]) -> None:
    trace, events = made
    kernels = _of(events, "kernel")
    # Without device work the ops of the CPU are what is shown, and there is one thread here.
    work = kernels or _of(events, "cpu_op")
    parts: dict[tuple[str, int], list[Event]] = {}
    for one in work:
        parts.setdefault((one.file, one.device), []).append(one)
    analysis = tf.analyze(trace)
    assert len(analysis.devices) == len(parts)
    for device in analysis.devices:
        mine = parts[device.file, device.local_id]
        whole = device.whole
        assert whole.busy_ns == _union(mine)
        assert whole.sum_ns == (sum(e.end - e.start for e in mine) if kernels else _union(mine))
        assert sum(sums.count for sums in whole.kinds.values()) == len(mine)
        windows = [window.account for window in device.windows]
        before_ns = whole.start_ns - device.windows[0].start_ns  # of a first step before its work
        assert sum(account.components.window_ns for account in windows) == whole.span_ns + before_ns
        assert sum(account.activities for account in windows) == len(mine)
        idle = sum(account.idle_causes.idle_ns for account in windows)
        assert idle == whole.span_ns + before_ns - whole.busy_ns


def test_names_and_steps_are_all_there(made: tuple[tf.Trace, list[Event]]) -> None:
    trace, events = made
    counts = Counter(event.category for event in events)
    assert {name: n for name, n in trace.source.event_counts.items() if n} == counts
    analysis = tf.analyze(trace)
    steps = {e.name for e in _of(events, "user_annotation") if e.name.startswith("ProfilerStep#")}
    assert {f"ProfilerStep#{number}" for number in analysis.steps.seen} == steps
    shown = sum(analysis.kernels["count"].to_pylist())
    assert shown == sum(device.chosen.activities for device in analysis.devices)


def test_launches_are_the_distinct_calls_of_a_window(made: tuple[tf.Trace, list[Event]]) -> None:
    trace, _ = made
    start, device = (numbers(trace.activities[name]) for name in ("start_ns", "device"))
    calls = link(trace).call_of_activity
    for report in tf.analyze(trace).devices if trace.calls.num_rows else ():
        last = report.whole.end_ns
        for window in report.windows:
            # What begins at the very end of the span is in the window that ends there.
            end = window.end_ns + (window.end_ns == last)
            inside = (device == report.device) & (start >= window.start_ns) & (start < end)
            assert window.account.launches == len(set(calls[inside].tolist()))


def test_links_are_those_of_a_plain_search(made: tuple[tf.Trace, list[Event]]) -> None:
    trace, events = made
    files = trace.processes["file"].to_pylist()
    calls, ops = _of(events, "cuda_runtime"), _of(events, "cpu_op")
    links = link(trace)
    call_start, op_start = numbers(trace.calls["start_ns"]), numbers(trace.ops["start_ns"])
    correlations = trace.activities["correlation"].to_pylist()
    externals = trace.activities["external_id"].to_pylist()
    for row, process in enumerate(numbers(trace.activities["process"]).tolist()):
        file = files[process]
        call = _launch([c for c in calls if c.file == file], correlations[row])
        assert call_start[links.call_of_activity[row]] == call.start
        op = _around([o for o in ops if o.file == file], call, externals[row])
        found = links.op_of_activity[row]
        assert (op_start[found] if found >= 0 else None) == (op.start if op else None)


def _launch(calls: list[Event], correlation: int) -> Event:
    same = [call for call in calls if call.correlation == correlation]
    return min(same, key=lambda call: call.start)


def _around(ops: list[Event], call: Event, external: int | None) -> Event | None:
    """Return the op that began last of those around a call, else the first with the id."""
    around = [op for op in ops if op.thread == call.thread and op.start <= call.start < op.end]
    if around:
        return max(around, key=lambda op: (op.start, -op.end))
    named = [op for op in ops if external is not None and op.external == external]
    return min(named, key=lambda op: op.start, default=None)
