"""GPUs that several processes used: runs one after the other, streams, steps, names."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from traceflops import Selection, Trace, UsageError, analyze
from traceflops.analysis.preparation import prepare
from traceflops.devices.merging import merge
from traceflops.mfu.checked.passes import job_size
from traceflops.recording.inventory import take_inventory
from traceflops.reports.view.wording import selected
from traceflops.table.trace import Note
from traceflops.windows.chosen_runs import restrict

MS = 10**6


def shared(*processes: dict[str, Any], **tables: Any) -> Trace:
    """Return a trace of one file in which processes with `works` (start, length) share a GPU."""
    rows = [
        {"name": "k", "start_ns": start, "dur_ns": dur, "process": at, "stream": 7}
        for at, process in enumerate(processes)
        for start, dur in process["works"]
    ]
    made = [
        {"process": at, "pid": process.get("pid"), "rank": process.get("rank"), "file": "run.db"}
        for at, process in enumerate(processes)
    ]
    rows.sort(key=lambda row: row["start_ns"])
    return merge([trace_of(activities=rows, processes=made, **tables)])


def codes(trace: Trace) -> set[str]:
    return {note.code for note in trace.notes}


def note_of(notes: tuple[Note, ...], code: str) -> Note:
    (found,) = [note for note in notes if note.code == code]
    return found


def test_the_time_between_two_runs_is_idle_in_none() -> None:
    one = {"pid": 11, "works": [(0, 10), (30, 10)]}
    two = {"pid": 12, "works": [(50 * MS, 10), (50 * MS + 15, 5)]}
    trace = shared(one, two)
    # [0, 10) [30, 40), and 50 ms later [0, 10) [15, 20).
    for run, figures in ((None, (40, 20, 20)), (1, (40, 20, 20)), (2, (20, 15, 5))):
        found = analyze(trace, Selection(run=run))
        (device,) = found.devices
        whole = device.whole
        assert (whole.span_ns, whole.busy_ns, whole.idle_ns) == figures
        assert found.components.idle_ns == figures[2]
        text = note_of(found.notes, "one-run-of-several").text
        number = run or 1
        assert f"gpu 0 run {number} of 2 (process {10 + number})" in text
        # Of 35 ns of work the other run has 15 or 20.
        assert note_of(found.notes, "one-run-of-several").share == (20 if run == 2 else 15) / 35
        assert selected(found) == ("selected runs" if run else "only run 1 of 2 (see --run)")
    text = note_of(trace.notes, "runs-on-one-gpu").text
    assert "run 1 process 11, 50.000 ms later run 2 process 12" in text
    assert "device-shared" not in codes(trace)


def test_the_runs_of_a_gpu_are_one_device_to_a_description() -> None:
    one, two = {"pid": 11, "works": [(0, 10)]}, {"pid": 12, "works": [(50 * MS, 10)]}
    trace = shared(one, two)
    size = job_size(prepare(trace))
    assert (size.devices, size.shown) == (1, 1)
    listed = take_inventory(trace).devices
    assert [(device.run, device.runs) for device in listed] == [(1, 2), (2, 2)]


def test_most_device_time_chooses_the_run_also_within_a_stretch() -> None:
    long = {"pid": 12, "works": [(50 * MS, 30)]}
    trace = shared({"pid": 11, "works": [(0, 10)]}, long)
    assert analyze(trace).devices[0].process == 1
    assert analyze(trace, Selection(to_ns=MS)).devices[0].process == 0
    assert restrict(trace, Selection(run=1)).activities["dur_ns"].to_pylist() == [10]
    assert restrict(trace, Selection(run=2)).activities["dur_ns"].to_pylist() == [30]


@pytest.mark.parametrize("run", [0, 3])
def test_a_run_that_is_not_there_is_refused(run: int) -> None:
    trace = shared({"pid": 11, "works": [(0, 10)]}, {"pid": 12, "works": [(50 * MS, 10)]})
    with pytest.raises(UsageError):
        analyze(trace, Selection(run=run))


def test_all_gpus_are_shown_in_one_run() -> None:
    """On gpu 0 the first run has more, on gpu 1 the second: 30 + 10 are less than 20 + 25."""
    lengths = {(0, 0): 30, (1, 0): 20, (2, 1): 10, (3, 1): 25}
    rows: list[dict[str, Any]] = [
        {"name": "k", "process": process, "device": gpu, "dur_ns": dur}
        | {"start_ns": 50 * MS * (process % 2)}
        for (process, gpu), dur in lengths.items()
    ]
    rows.sort(key=lambda row: row["start_ns"])
    processes = [{"process": p, "pid": p + 10} for p in range(4)]
    devices = [{"device": d, "local_id": d, "process": 2 * d} for d in (0, 1)]
    trace = merge([trace_of(activities=rows, processes=processes, devices=devices)])
    found = analyze(trace)
    assert [device.whole.busy_ns for device in found.devices] == [20, 25]
    assert note_of(found.notes, "one-run-of-several").count == 2


@pytest.mark.parametrize(("end", "runs"), [(49 * MS, 1), (40, 2)])
def test_the_end_of_a_range_shows_that_its_process_lived(end: int, runs: int) -> None:
    one, two = {"pid": 11, "works": [(0, 10)]}, {"pid": 12, "works": [(49 * MS + 500, 10)]}
    mark = {"process": 0, "name": "wait", "start_ns": 20, "dur_ns": end - 20}
    trace = shared(one, two, marks=[mark])
    assert max((run for _, run in trace.runs), default=1) == runs


def test_a_range_that_ends_with_the_recording_does_not_show_that() -> None:
    """It was still open, and got its end from the last work of the other process."""
    one, two = {"pid": 11, "works": [(0, 10)]}, {"pid": 12, "works": [(50 * MS, 10)]}
    mark = {"process": 0, "name": "open", "start_ns": 20, "dur_ns": 50 * MS - 10}
    assert shared(one, two, marks=[mark]).runs == ((0, 1), (0, 2))


def test_a_pause_of_which_another_record_shows_that_both_lived_is_idle() -> None:
    """The first still called while the second worked: it waited, and the GPU was idle."""
    one, two = {"pid": 11, "works": [(0, 10)]}, {"pid": 12, "works": [(50 * MS, 10)]}
    call = {"process": 0, "start_ns": 49 * MS, "dur_ns": 2 * MS, "correlation": 1}
    trace = shared(one, two, calls=[call])
    (device,) = analyze(trace).devices
    assert device.whole.idle_ns == 50 * MS - 10
    assert codes(trace) == {"device-shared", "streams-renumbered", "rank-unknown"}


def test_processes_side_by_side_are_one_run_whichever_came_last() -> None:
    runs = (
        {"pid": 11, "works": [(0, 100 * MS)]},
        {"pid": 12, "works": [(5, 10)]},  # ends long before the third begins
        {"pid": 13, "works": [(90 * MS, 20 * MS)]},
    )
    (device,) = analyze(shared(*runs)).devices
    assert device.whole.span_ns == 110 * MS


def test_rows_of_no_process_are_of_the_run_in_whose_time_they_are() -> None:
    one = {"pid": 11, "works": [(0, 10)]}
    two = {"pid": 12, "works": [(50 * MS, 10)]}
    nobody = {"pid": None, "works": [(20, 5), (50 * MS + 30, 5)]}
    trace = shared(one, two, nobody)
    spans = [analyze(trace, Selection(run=run)).devices[0].whole.span_ns for run in (1, 2)]
    assert spans == [25, 35]
    # And they are on the stream of that number: whose it is, they do not say.
    assert set(trace.activities["stream"].to_pylist()) == {7}


def test_counters_and_marks_go_with_their_run() -> None:
    tables = {
        "marks": [
            {"kind": "gpu_annotation", "name": "m", "device": 0, "process": p, "start_ns": s}
            for p, s in ((0, 1), (1, 50 * MS + 1))
        ],
        "kernel_counters": [
            {"process": p, "device": 0, "counter": "c", "value": 1.0} for p in (1, 0)
        ],
        "counters": [{"device": 0, "process": 1, "time_ns": 50 * MS + 2, "value": 1.0}],
    }
    one, two = {"pid": 11, "works": [(0, 10)]}, {"pid": 12, "works": [(50 * MS, 10)]}
    trace = shared(one, two, **tables)
    assert trace.marks["device"].to_pylist() == [0, 1]
    assert trace.kernel_counters["device"].to_pylist() == [1, 0]
    assert trace.counters["device"].to_pylist() == [1]
    assert trace.devices["process"].to_pylist() == [0, 1]


def test_streams_of_two_processes_are_two_though_both_are_number_7() -> None:
    one, two = {"pid": 11, "works": [(0, 10)]}, {"pid": 12, "works": [(5, 10)]}
    marks = [
        {"kind": "sync", "name": "w", "device": 0, "process": 1, "start_ns": 5, "stream": 7}
        | {"wait_stream": 7}
    ]
    trace = shared(one, two, marks=marks)
    assert trace.activities["stream"].to_pylist() == [7, 8]
    assert (trace.marks["stream"].to_pylist(), trace.marks["wait_stream"].to_pylist()) == ([8], [8])
    found = analyze(trace)
    (device,) = found.devices
    assert (device.whole.streams, device.whole.same_stream_overlaps) == (2, 0)
    assert note_of(found.notes, "streams-renumbered").count == 1
    assert "process 11, process 12" in note_of(found.notes, "device-shared").text


def test_processes_with_gpus_of_their_own_keep_their_streams() -> None:
    rows = [{"name": "k", "start_ns": p, "process": p, "device": p, "stream": 7} for p in (0, 1)]
    trace = merge(
        [
            trace_of(
                activities=rows,
                processes=[{"process": p} for p in (0, 1)],
                devices=[{"device": p, "process": p} for p in (0, 1)],
            )
        ]
    )
    assert trace.activities["stream"].to_pylist() == [7, 7]
    assert codes(trace) == {"rank-unknown"}


def stepping(process: int, first: int, lengths: list[int], number: int) -> dict[str, Any]:
    """Return marks, calls and kernels of steps, one kernel of the given length in each 100 ns."""
    tables: dict[str, Any] = {"marks": [], "calls": [], "activities": []}
    for at, length in enumerate(lengths):
        begin = first + 100 * at
        name = f"step {number + at}"
        tables["marks"].append({"name": name, "start_ns": begin, "dur_ns": 99, "process": process})
        launch = {"start_ns": begin + 5, "correlation": at + 1, "process": process}
        tables["calls"].append({**launch, "dur_ns": 1})
        work = launch | {"name": "k", "start_ns": begin + 10, "dur_ns": length, "stream": process}
        tables["activities"].append(work)
    return tables


@pytest.mark.parametrize("order", [1, -1])
def test_the_steps_of_a_shared_gpu_are_those_with_most_of_its_time(order: int) -> None:
    few: dict[str, Any] = {"pid": 11, "lengths": [30, 30], "number": 0}
    many: dict[str, Any] = {"pid": 12, "lengths": [60] * 7, "number": 100}
    tables: dict[str, Any] = {"marks": [], "calls": [], "activities": [], "processes": []}
    for place, one in enumerate([few, many][::order]):
        for name, rows in stepping(place, 7 * place, one["lengths"], one["number"]).items():
            tables[name] += rows
        tables["processes"].append({"process": place, "pid": one["pid"], "file": "a"})
    found = analyze(merge([trace_of(**tables)]))
    assert found.steps.seen == tuple(range(100, 107))
    note = note_of(found.notes, "steps-of-one-process")
    # 2 x 30 of 2 x 30 + 7 x 60 ns are the other's: 12.5 %.
    assert "gpu 0 process 12 (others 12.5 %)" in note.text


def test_the_steps_of_the_only_process_that_marks_any_are_said_to_be_its_own() -> None:
    tables = stepping(1, 0, [60] * 4, 0)
    tables["activities"].append({"name": "k", "start_ns": 20, "dur_ns": 240, "process": 0})
    tables["processes"] = [{"process": p, "pid": 11 + p, "file": "a"} for p in (0, 1)]
    found = analyze(merge([trace_of(**tables)]))
    assert found.steps.seen == (0, 1, 2, 3)
    assert "process 12 (others 50.0 %)" in note_of(found.notes, "steps-of-one-process").text


def of_rank(rank: int, start: int, place: str = "node 2") -> Trace:
    trace = trace_of(
        activities=[{"name": "k", "start_ns": start}],
        processes=[{"file": f"rank{rank}.db", "rank": rank}],
        devices=[{"local_id": 2}],
    )
    return replace(trace, source=replace(trace.source, clock="machine a"), places=(place,))


def test_a_shared_gpu_is_named_by_all_its_ranks_and_chosen_by_any() -> None:
    merged = merge([of_rank(0, 0), of_rank(3, 5)])
    for chosen in (None, frozenset({0}), frozenset({3})):
        (device,) = analyze(merged, Selection(ranks=chosen)).devices
        assert device.label == "ranks 0 and 3 · gpu 2"
        assert device.ranks == (0, 3)
    many = merge([of_rank(rank, rank) for rank in range(6)])
    assert analyze(many).devices[0].label == "ranks 0, 1, 2, 3, … · gpu 2"
    assert analyze(of_rank(4, 0)).devices[0].label == "GPU 2"


def test_a_number_of_several_gpus_chooses_all_and_says_so() -> None:
    merged = merge([of_rank(0, 0, "node 2"), of_rank(1, 5, "node 3")])
    found = analyze(merged, Selection(gpus=frozenset({2})))
    assert len(found.devices) == 2
    text = note_of(found.notes, "gpu-number-repeats").text
    assert "--gpu 2 selects 2 GPUs (rank 0 (gpu 2), rank 1 (gpu 2))" in text
    alone = analyze(of_rank(0, 0), Selection(gpus=frozenset({2})))
    assert "gpu-number-repeats" not in {note.code for note in alone.notes}
