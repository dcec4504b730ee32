"""Several files are the ranks of one job: one clock, one numbering, nothing merged silently."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import launched, step_marks, trace_of
from traceflops import Trace, analyze
from traceflops.devices.merging import join, merge
from traceflops.table.trace import Note


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


def test_a_placeholder_of_different_kernels_has_no_rule() -> None:
    said = [{"name1": "attention", "name2": "norm"}, {"name1": "norm", "name2": "norm"}, {}]
    traces = [rank(number, 0) for number in range(3)]
    traces = [
        replace(trace, source=replace(trace.source, rules=rules))
        for trace, rules in zip(traces, said, strict=True)
    ]
    assert merge(traces).source.rules == {"name2": "norm"}


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


@pytest.mark.parametrize(
    ("ranks", "world", "missing", "beyond"),
    [
        ((0, 1, 3), None, 1, None),
        ((0, 1, 2), None, None, None),
        ((0, 1, 9), 4, 1, 1),
        ((0, 1, 2), 2, None, 1),
        ((5,), None, None, None),
        ((None, None), None, None, None),
    ],
)
def test_gaps_and_impossible_worlds_are_said(
    ranks: tuple[int | None, ...], world: int | None, missing: int | None, beyond: int | None
) -> None:
    counts = {
        note.code: note.count for note in merge([rank(n, 0, world_size=world) for n in ranks]).notes
    }
    found = (counts.get("ranks-missing"), counts.get("rank-beyond-world"))
    assert found == (missing, beyond)


def test_what_is_odd_about_ranks_is_said_of_one_file_that_holds_them_too() -> None:
    both = join([rank(0, 0), rank(7, 0)])
    one_file = replace(both, notes=())
    (note,) = [note for note in merge([one_file]).notes if note.code == "ranks-missing"]
    assert note.count == 6


def test_the_order_in_which_files_are_given_changes_nothing() -> None:
    traces = [rank(2, 0), rank(0, 5), rank(1, 9)]
    assert merge(traces).activities.equals(merge(traces[::-1]).activities)


def test_devices_of_files_that_claim_one_rank_are_told_apart() -> None:
    twins = analyze(merge([rank(0, 0), rank(0, 0, file="again.json")])).devices
    assert [d.label for d in twins] == [
        "rank 0 · gpu 0 · file0.json",
        "rank 0 · gpu 0 · again.json",
    ]
    assert [d.label for d in analyze(rank(0, 0)).devices] == ["GPU 0"]
    pair = analyze(merge([rank(0, 0), rank(1, 0)])).devices
    assert [d.label for d in pair] == ["rank 0 · gpu 0", "rank 1 · gpu 0"]


def test_devices_have_no_more_words_than_tell_them_apart() -> None:
    def labels(*traces: Trace) -> list[str]:
        return [device.label for device in analyze(merge(traces)).devices]

    assert labels(rank(0, 0, pid=7, file="a"), rank(0, 0, pid=8, file="a")) == [
        "GPU 0 · process 7",
        "GPU 0 · process 8",
    ]
    assert labels(rank(0, 0, pid=7, file="a"), rank(0, 0, pid=7, file="a")) == [
        "GPU 0 · no. 0",
        "GPU 0 · no. 1",
    ]
    assert labels(rank(None, 0, pid=7, file="a"), rank(None, 0, pid=8, file="a")) == [
        "process 7 · gpu 0",
        "process 8 · gpu 0",
    ]
    assert labels(rank(None, 0, pid=7, file="a"), rank(None, 0, pid=8, file="b")) == [
        "a · gpu 0",
        "b · gpu 0",
    ]


def test_a_host_keeps_its_number_where_the_first_one_has_no_device() -> None:
    run = launched(("k", 95, 100, 10), ("k", 195, 200, 10))
    run["devices"] = [{"device": place, "process": 1 + place} for place in (0, 1)]
    run["activities"][1]["device"] = 1
    hosts = [
        {"process": place, "rank": 0, "file": "a", "host": name}
        for place, name in enumerate(("one", "two", "three"))
    ]
    labels = [device.label for device in analyze(trace_of(**run, processes=hosts)).devices]
    assert labels == ["GPU 0 · host 2", "GPU 0 · host 3"]


SECOND = 10**9


def test_files_of_different_times_are_said() -> None:
    (note,) = [
        one
        for one in merge([rank(0, 0), rank(1, 3600 * SECOND)]).notes
        if one.code == "files-of-different-times"
    ]
    assert "3,600.000 s lie between the work in made.json and that in made.json" in note.text
    for origin in (0, 5, SECOND // 2, None):  # clocks of machines differ, and one is unknown
        assert "files-of-different-times" not in codes(merge([rank(0, 0), rank(1, origin)]))


def test_a_process_without_device_work_needs_no_rank() -> None:
    helper = trace_of(
        **launched(("k", 95, 100, 10)),
        processes=[{"rank": 1, "file": "a"}, {"rank": None, "file": "a"}],
    )
    assert "rank-unknown" not in codes(merge([rank(0, 0), helper]))


def test_what_is_said_of_several_files_is_said_once_and_losses_come_first() -> None:
    def one(rank: int, *notes: Note) -> Trace:
        trace = trace_of(processes=[{"rank": rank, "file": f"r{rank}.json"}])
        return replace(trace, notes=tuple(replace(n, file=f"r{rank}.json") for n in notes))

    missing = Note("missing", "no-shapes", "No shapes.")
    cut = Note("dropped", "text-cut", "Cut off.", 7)
    merged = merge([one(0, missing), one(1, missing, cut), one(2, missing)])
    said = [(note.code, note.text, note.count) for note in merged.notes]
    assert said[0] == ("text-cut", "r1.json: Cut off.", 7)
    assert ("no-shapes", "No shapes. (in 3 of 3 files)", None) in said
