"""Several files are the ranks of one job: one clock, one numbering, nothing merged silently."""

from dataclasses import replace
from typing import Any

from tests.core.build import launched, step_marks, trace_of
from traceflops import Trace, analyze
from traceflops.merge import merge
from traceflops.trace import Note


def rank(number: int | None, origin: int | None, start: int = 100, **process: Any) -> Trace:
    trace = trace_of(
        **launched(("k", start - 5, start, 10)),
        marks=step_marks(("ProfilerStep#0", start - 10, 9)),
        processes=[{"rank": number, "file": f"file{number}.json"} | process],
    )
    return replace(trace, source=replace(trace.source, origin_unix_ns=origin))


def codes(trace: Trace) -> list[str]:
    return [note.code for note in trace.notes]


def test_times_of_different_bases_meet_on_one_clock() -> None:
    merged = merge([rank(1, 2_000, start=150), rank(0, 1_000, start=100)])
    assert merged.ranks == (0, 1)
    assert merged.source.origin_unix_ns == 1_000
    assert merged.activities["start_ns"].to_pylist() == [100, 1_150]
    assert merged.calls["start_ns"].to_pylist() == [95, 1_145]
    assert merged.activities["device"].to_pylist() == [0, 1]
    assert merged.devices["process"].to_pylist() == [0, 1]


def test_links_do_not_cross_ranks() -> None:
    analysis = analyze(merge([rank(0, 0), rank(1, 0)]))
    assert [d.whole.unlinked for d in analysis.devices] == [{"kernel": 0}, {"kernel": 0}]
    assert analysis.total.activities == 2
    assert analysis.components.compute_ns + analysis.components.other_ns == 20


def test_a_clock_that_is_not_tied_to_the_calendar_is_said() -> None:
    merged = merge([rank(0, 1_000), rank(1, None)])
    assert merged.activities["start_ns"].to_pylist() == [100, 100]
    assert "clocks-not-aligned" in codes(merged)


def test_two_files_of_one_rank_stay_apart_and_are_said() -> None:
    merged = merge([rank(0, 0), rank(0, 0)])
    assert merged.ranks == (0, 0)
    assert merged.devices.num_rows == 2
    assert "rank-clash" in codes(merged)


def test_missing_and_unknown_ranks_are_said() -> None:
    merged = merge([rank(0, 0, world_size=8), rank(5, 0, world_size=8)])
    (note,) = [n for n in merged.notes if n.code == "ranks-missing"]
    assert note.count == 6
    assert "rank-unknown" in codes(merge([rank(None, 0), rank(None, 0)]))


def test_the_order_in_which_files_are_given_changes_nothing() -> None:
    traces = [rank(2, 0), rank(0, 5), rank(1, 9)]
    assert merge(traces).activities.equals(merge(traces[::-1]).activities)


def test_devices_of_files_that_claim_one_rank_are_told_apart() -> None:
    twins = analyze(merge([rank(0, 0), rank(0, 0, file="again.json")])).devices
    assert [d.label for d in twins] == [
        "rank 0 · gpu 0 · file0.json",
        "rank 0 · gpu 0 · again.json",
    ]
    assert [d.label for d in analyze(rank(0, 0)).devices] == ["rank 0 · gpu 0"]


def test_what_is_said_of_several_files_is_said_once_and_losses_come_first() -> None:
    def one(rank: int, *notes: Note) -> Trace:
        trace = trace_of(processes=[{"rank": rank, "file": f"r{rank}.json"}])
        return replace(trace, notes=tuple(replace(n, file=f"r{rank}.json") for n in notes))

    missing = Note("missing", "no-shapes", "No shapes.")
    cut = Note("dropped", "text-cut", "Cut off.", 7)
    merged = merge([one(0, missing), one(1, missing, cut), one(2, missing)])
    said = [(note.code, note.text, note.count) for note in merged.notes]
    assert said[0] == ("text-cut", "r1.json: Cut off.", 7)
    assert ("no-shapes", "No shapes. (3 files)", None) in said
