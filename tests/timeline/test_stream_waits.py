"""Launch latency split at the end of the launch call, and what a stream waited for."""

from typing import Any

import pytest

from tests.build import launched, trace_of
from tests.conftest import shared_file
from traceflops import analyze
from traceflops.analysis.result import Analysis
from traceflops.parsers.reading import read
from traceflops.timeline.records import IdleCauses

US = 1_000
MS = 1_000_000


def causes(**tables: Any) -> IdleCauses:
    return analyze(trace_of(**tables)).total.idle_causes


def parts(**tables: Any) -> dict[str, int]:
    return causes(**tables).launch_latency_parts()


def in_us(in_call: int, waited: int, to_start: int) -> dict[str, int]:
    names = ("in_launch_call", "stream_wait", "launch_to_start")
    return {name: us * US for name, us in zip(names, (in_call, waited, to_start), strict=True)}


def two_streams(wait: str | None = None, start_us: int = 300) -> dict[str, list[dict[str, Any]]]:
    """Return `a`, then `b` on stream 8 launched from 210 to 215 us; a wait at 205 us before b."""
    run = launched(
        ("b0", 0, 100 * US, 10 * US),
        ("a", 1, 120 * US, 80 * US),
        ("b", 210 * US, start_us * US, 10 * US),
    )
    run["activities"][0]["stream"] = run["activities"][2]["stream"] = 8
    run["calls"][2]["dur_ns"] = 5 * US
    if wait is not None:
        run["calls"].append({"name": wait, "start_ns": 205 * US, "correlation": 9})
    return run


def waiting_mark(**facts: int) -> dict[str, Any]:
    """Return the mark of a profiler beside the call of a stream wait with correlation 9."""
    return {
        "kind": "sync",
        "name": "Stream Wait Event",
        "sync_kind": "Stream Wait Event",
        "start_ns": 205 * US,
        "dur_ns": 1,
        "correlation": 9,
        **facts,
    }


def test_a_kernel_that_starts_before_its_launch_call_returns_was_held_in_the_call() -> None:
    run = launched(("a", 0, 100, 50), ("b", 200, 4_000, 10))
    run["calls"][1]["dur_ns"] = 3_808
    assert causes(**run).parts() == {
        "host_late": 50,
        "queued": 0,
        "launch_latency": 3_800,
        "unknown": 0,
    }
    assert parts(**run) == {"in_launch_call": 3_800, "stream_wait": 0, "launch_to_start": 0}


def test_the_split_is_where_the_launch_call_returns() -> None:
    assert parts(**two_streams()) == in_us(5, 0, 85)


def test_a_call_that_returned_before_the_gap_takes_none_of_it() -> None:
    idle = parts(**launched(("a", 0, 100, 50), ("b", 10, 160, 10)))
    assert idle == {"in_launch_call": 0, "stream_wait": 0, "launch_to_start": 10}


@pytest.mark.parametrize(
    "name", ["cudaStreamWaitEvent", "cuStreamWaitEvent_ptsz", "hipStreamWaitEvent"]
)
def test_a_stream_wait_before_the_launch_holds_the_kernel_back(name: str) -> None:
    run = two_streams(name)
    assert parts(**run) == in_us(5, 85, 0)


def test_an_event_of_unknown_time_is_not_blamed_for_what_any_launch_takes() -> None:
    run = two_streams("cudaStreamWaitEvent", start_us=235)
    assert parts(**run) == in_us(5, 0, 20)


def test_a_stream_wait_of_another_thread_or_before_another_launch_does_not() -> None:
    for changed in ({"thread": 2}, {"start_ns": 0}):
        run = two_streams("cudaStreamWaitEvent")
        run["calls"][-1] |= changed
        assert parts(**run)["stream_wait"] == 0


def test_a_stream_wait_whose_stream_is_known_holds_back_that_stream_only() -> None:
    run = two_streams("cudaStreamWaitEvent")
    run["calls"][-1] |= {"thread": 2}
    assert parts(**run, marks=[waiting_mark(stream=8)])["stream_wait"] == 85 * US
    run["calls"][-1] |= {"thread": 1}
    assert parts(**run, marks=[waiting_mark(stream=7)])["stream_wait"] == 0


def on_another_device(end_us: int) -> dict[str, list[dict[str, Any]]]:
    """Return the same, where b waits for `peer` of another device, which ends at some time."""
    run = two_streams("cudaStreamWaitEvent")
    peer = launched(("peer", 2, 110 * US, (end_us - 110) * US), first=20)
    peer["activities"][0] |= {"device": 1, "stream": 9}
    record = {"name": "cudaEventRecord", "start_ns": 3, "correlation": 30}
    later = launched(("later", 4, 400 * US, 10), first=40)
    later["activities"][0] |= {"device": 1, "stream": 9}
    return {
        "devices": [{}, {"device": 1, "local_id": 1}],
        "activities": [*run["activities"], *peer["activities"], *later["activities"]],
        "calls": [*run["calls"], *peer["calls"], record, *later["calls"]],
        "marks": [waiting_mark(stream=8, wait_stream=9, wait_correlation=30)],
    }


def of_first_device(analysis: Analysis) -> dict[str, int]:
    return analysis.devices[0].chosen.idle_causes.launch_latency_parts()


def test_a_stream_wait_lasts_until_the_work_before_the_event_has_ended() -> None:
    analysis = analyze(trace_of(**on_another_device(end_us=290)))
    assert of_first_device(analysis) == in_us(5, 75, 10)
    assert analysis.devices[0].gaps[0].waited_for == "peer"


def test_a_stream_wait_for_what_had_ended_holds_nothing_back() -> None:
    analysis = analyze(trace_of(**on_another_device(end_us=212)))
    assert of_first_device(analysis) == in_us(5, 0, 85)
    assert analysis.devices[0].gaps[0].waited_for == ""


def first_of_a_queue(start_ns: int, **call: Any) -> dict[str, list[dict[str, Any]]]:
    """Return `b`, the first work of stream 8, launched at 200 while nothing runs."""
    run = launched(("a", 0, 100, 50), ("b", 200, start_ns, 10))
    run["activities"][1]["stream"] = 8
    run["calls"][1] |= {"dur_ns": 5, **call}
    return run


def test_why_the_first_known_work_of_a_queue_starts_late_is_unknown() -> None:
    idle = causes(**first_of_a_queue(50 * MS))
    assert idle.parts() == {
        "host_late": 50,
        "queued": 0,
        "launch_latency": 5,
        "unknown": 50 * MS - 205,
    }
    assert idle.unrecorded_ns == idle.unknown_ns


def test_the_first_known_work_of_a_queue_that_starts_soon_was_only_launched() -> None:
    idle = causes(**first_of_a_queue(900))
    assert (idle.launch_latency_ns, idle.unknown_ns) == (700, 0)


def test_an_unknown_event_does_not_explain_the_first_known_work_of_a_queue() -> None:
    run = first_of_a_queue(50 * MS)
    run["calls"].append({"name": "hipStreamWaitEvent", "start_ns": 190})
    assert causes(**run).unrecorded_ns == 50 * MS - 205


def test_a_first_copy_that_blocks_waited_for_what_is_not_in_the_trace() -> None:
    run = first_of_a_queue(50 * MS, name="cudaMemcpy", dur_ns=50 * MS)
    run["activities"][1]["kind"] = "memcpy"
    idle = causes(**run)
    assert (idle.launch_latency_ns, idle.unrecorded_ns) == (0, 50 * MS - 200)


def test_work_launched_long_before_on_a_queue_without_known_work_is_not_queued() -> None:
    run = first_of_a_queue(50 * MS)
    run["calls"][1]["start_ns"] = 1
    idle = causes(**run)
    assert (idle.queued_ns, idle.unrecorded_ns) == (0, 50 * MS - 150)


@pytest.mark.parametrize("wait", [None, "cudaStreamWaitEvent"])
def test_no_launch_takes_so_long_to_start_amid_a_queue(wait: str | None) -> None:
    """Work of stream 8 ran before; `b` was launched at 210 us and starts at 50 ms."""
    idle = causes(**two_streams(wait, start_us=50_000))
    late = 50 * MS - 215 * US
    expected = in_us(5, 0, 0) if wait is None else in_us(5, 49_785, 0)
    assert idle.launch_latency_parts() == expected
    assert idle.unrecorded_ns == (late if wait is None else 0)


def test_a_start_within_one_millisecond_of_the_call_is_only_a_start() -> None:
    assert parts(**two_streams(start_us=1_215)) == in_us(5, 0, 1_000)
    assert parts(**two_streams(start_us=1_216)) == in_us(5, 0, 0)


@pytest.mark.parametrize("wait", [None, "cudaStreamWaitEvent"])
def test_once_nothing_runs_work_is_not_queued_behind_the_device(wait: str | None) -> None:
    """`b` was launched while `a` ran until 200 us, and starts at 50 ms on a stream long free.

    `a` itself was queued for 10 us.
    """
    run = two_streams(wait, start_us=50_000)
    run["calls"][2]["start_ns"] = 150 * US
    if wait is not None:
        run["calls"][-1]["start_ns"] = 149 * US
    idle = causes(**run)
    late = 50 * MS - 200 * US
    queued, unrecorded = (0, late) if wait is None else (late, 0)
    assert (idle.queued_ns, idle.unrecorded_ns) == (queued + 10 * US, unrecorded)


def test_real_gaps_without_any_recorded_wait_are_unknown() -> None:
    """The two longest by the file's own times: 58,862 us, and 387 + 16 + 56,211 us."""
    analysis = analyze(read([shared_file("traces/pytorch/hta_sampled_rank0.json.gz")]))
    queued, late, *_ = [gap.causes for gap in analysis.gaps()]
    assert queued.detailed() == {
        **dict.fromkeys(queued.detailed(), 0),
        "unknown": 58_862 * US,
    }
    assert late.detailed() == {
        **dict.fromkeys(late.detailed(), 0),
        "host_late": 387 * US,
        "in_launch_call": 16 * US,
        "unknown": 56_211 * US,
    }
    assert analysis.verdict.loss == "idle"


def test_the_verdict_does_not_lead_with_idle_time_that_earlier_work_may_have_filled() -> None:
    analysis = analyze(trace_of(**first_of_a_queue(50 * MS)))
    assert analysis.verdict.loss is None
    assert analysis.verdict.sentence == (
        "The GPU is busy <0.1 % of the total time, mostly with uncategorized kernels. Time without "
        "recorded work takes 100.0 %; what held queued work back is not recorded."
    )
    assert not [finding for finding in analysis.losses if finding.rule == "loss-idle"]
    assert [note.count for note in analysis.notes if note.code == "earlier-work-missing"] == [1]


@pytest.mark.parametrize("calls", [["cuInit"], []])
def test_a_recording_did_not_begin_amid_work_if_it_has_the_beginning(calls: list[str]) -> None:
    """Either the program begins in it, or work that ran before in the stream is recorded."""
    run = first_of_a_queue(50 * MS)
    run["calls"] += [{"name": name, "start_ns": 10, "correlation": 2_000} for name in calls]
    if not calls:
        more = launched(("again", 101 * MS, 190 * MS, 10), first=500)
        run = {table: [*run[table], *rows] for table, rows in more.items()}
    codes = {note.code for note in analyze(trace_of(**run)).notes}
    assert codes & {"earlier-work-missing", "late-starts"} == {"late-starts"}


def test_work_is_not_said_to_start_late_where_lost_work_may_fill_the_time() -> None:
    run = first_of_a_queue(50 * MS)
    run["calls"] += [{"start_ns": 150, "correlation": 1_000 + at} for at in range(40)]
    run["calls"] = [{**call, "name": "cudaLaunchKernel"} for call in run["calls"]]
    analysis = analyze(trace_of(**run))
    assert analysis.recorded == "incomplete"
    assert "earlier-work-missing" not in [note.code for note in analysis.notes]


def test_idle_time_of_unknown_cause_is_still_a_loss_where_only_calls_are_missing() -> None:
    activities = launched(("a", 0, 100, 5 * MS), ("b", 0, 50 * MS, 10))["activities"]
    analysis = analyze(trace_of(activities=activities))
    assert analysis.verdict.loss == "idle"


def test_lazy_loading_in_a_real_trace_is_start_up_and_no_launch_latency() -> None:
    path = shared_file("traces/pytorch/a100_hta_simple_add.json.gz")
    longest = max(analyze(read([path]), from_=0).gaps(), key=lambda gap: gap.dur_ns)
    # The call lasts 4,219,264 us and its kernel begins 8 us before the call returns; all that other
    # launches do not take is start-up.
    assert longest.start_up_ns > 4_219_000_000
    assert longest.causes.launch_latency_parts()["in_launch_call"] < 100_000


def test_a_real_stream_wait_for_what_had_ended_is_no_stream_wait() -> None:
    path = shared_file("traces/pytorch/hta_event_sync_multi_stream.json.gz")
    # All gaps that its calls do not fill end within 5 us of them; the event was long reached.
    idle = analyze(read([path])).total.idle_causes.launch_latency_parts()
    assert idle == {"in_launch_call": 77_000, "stream_wait": 0, "launch_to_start": 12_000}


def test_a_real_capture_that_begins_amid_queued_work_does_not_lead_with_idle_time() -> None:
    path = shared_file("traces/pytorch/mi300x_sglang_qwen3_decode_graph.json.gz")
    analysis = analyze(read([path]))
    # Stream 3 had no record before; its first kernel was launched and began 463.25 ms later.
    assert analysis.devices[0].whole.account.idle_causes.unrecorded_ns == 463_251_758
    assert analysis.verdict.loss != "idle"
