"""A device that several processes used is one, though each process has a file of its own."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from traceflops import Selection, Trace, UsageError, analyze
from traceflops.devices.merging import merge
from traceflops.table.trace import Note

SECOND = 10**9


def process(
    *starts: int, clock: str | None = "machine a", place: str | None = "node 2", file: str = "1.db"
) -> Trace:
    """Return a trace whose device works for 10 ns at each start."""
    trace = trace_of(
        activities=[{"name": "k", "start_ns": start} for start in starts],
        processes=[{"file": file}],
        devices=[{"local_id": 2}],
    )
    return replace(trace, source=replace(trace.source, clock=clock), places=(place,))


def devices(*traces: Trace) -> list[int]:
    """Return the device of each activity of the merged traces."""
    found: list[int] = merge(traces).activities["device"].to_pylist()
    return found


def test_its_time_is_that_of_all_processes_and_counts_once() -> None:
    merged = merge([process(100, 200), process(105, 150, file="2.db")])
    (device,) = analyze(merged).devices
    # [100, 115) and [150, 160) and [200, 210): the processes overlap for 5 ns.
    assert (device.whole.span_ns, device.whole.busy_ns, device.whole.idle_ns) == (110, 35, 75)
    assert merged.devices["device"].to_pylist() == [0]
    assert merged.activities["process"].to_pylist() == [0, 0, 1, 1]
    (note,) = [note for note in merged.notes if note.code == "device-shared"]
    assert (note.kind, note.count) == ("assumed", 1)


@pytest.mark.parametrize(
    "other",
    [
        {"clock": "machine b"},
        {"clock": None},
        {"place": "node 3"},
        {"place": None},
    ],
)
def test_another_machine_or_place_is_another_device(other: dict[str, Any]) -> None:
    traces = process(100), process(105, file="2.db", **other)
    assert devices(*traces) == [0, 1]
    assert "device-shared" not in {note.code for note in merge(traces).notes}


@pytest.mark.parametrize(("pause_ns", "expected"), [(10**5, [0, 0, 0]), (2 * SECOND, [0, 1, 1])])
def test_recordings_one_after_the_other_have_no_idle_time_between_them(
    pause_ns: int, expected: list[int]
) -> None:
    later = 10 + pause_ns
    first, second, third = process(0), process(later, file="2.db"), process(later, file="3.db")
    assert devices(first, second, third) == expected


def test_some_devices_are_shared_and_others_not() -> None:
    def of_two(start: int, places: tuple[str, str], file: str) -> Trace:
        trace = trace_of(
            activities=[{"name": "k", "start_ns": start + n, "device": n} for n in range(2)],
            processes=[{"file": file}],
            devices=[{"device": n, "local_id": n} for n in range(2)],
        )
        source = replace(trace.source, clock="machine a")
        return replace(trace, source=source, places=places)

    one, two = of_two(0, ("node 1", "node 2"), "1.db"), of_two(50, ("node 2", "node 3"), "2.db")
    merged = merge([one, two])
    assert merged.activities["device"].to_pylist() == [0, 1, 1, 2]
    assert merged.devices["device"].to_pylist() == [0, 1, 2]
    assert merged.places == ("node 1", "node 2", "node 3")
    # What was merged can be merged again.
    assert devices(merged, process(60, place="node 3", file="3.db")) == [0, 1, 1, 2, 2]


def noted(number: int) -> Trace:
    trace = trace_of(processes=[{"file": f"{number}.db"}])
    note = Note("assumed", "window", f"It lived {number} ms.", 2, f"{number}.db")
    return replace(trace, notes=(note,))


def test_what_many_files_say_with_other_figures_is_said_once() -> None:
    for many, expected in ((3, 3), (4, 1)):
        notes = [n for n in merge([noted(n) for n in range(many)]).notes if n.code == "window"]
        assert len(notes) == expected
        assert sum(note.count or 0 for note in notes) == 2 * many
    assert "0.db: It lived 0 ms." in notes[0].text
    assert "in 3 more of 4 files: 1.db, 2.db, 3.db" in notes[0].text


def test_a_shared_device_is_one_of_each_rank_that_used_it() -> None:
    def of_rank(rank: int, start: int) -> Trace:
        trace = trace_of(
            activities=[{"name": "k", "start_ns": start}],
            processes=[{"file": f"rank{rank}.db", "rank": rank}],
        )
        return replace(trace, source=replace(trace.source, clock="machine a"), places=("node 2",))

    merged = merge([of_rank(0, 0), of_rank(1, 5)])
    for rank in (0, 1):
        (device,) = analyze(merged, Selection(ranks=frozenset({rank}))).devices
        assert device.whole.span_ns == 15
    with pytest.raises(UsageError):
        analyze(merged, Selection(ranks=frozenset({2})))
