"""Samples join the recording that they are of: on its clock, in their zone, each GPU to its own."""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.build import trace_of
from tests.conftest import examples
from traceflops.devices.gpu_samples import LOCAL_TIME, TIME_OF_DAY, with_gpu_samples
from traceflops.devices.side_records import GPU_SAMPLES
from traceflops.errors import InputError, UsageError
from traceflops.table.trace import Trace

SECOND, HOUR = 10**9, 3_600 * 10**9
ORIGIN = 1_710_806_400 * SECOND + 12 * HOUR
"""Noon of a day, UTC: time 0 of the recording."""
BUSY = ((0, 5), (10, 15))
"""The seconds in which a GPU works in a recording of 15 s."""


def recording(*gpus: Sequence[tuple[int, int]], local: Sequence[int] | None = None) -> Trace:
    """Return a recording with a process per GPU, which works in some seconds."""
    places = range(len(gpus))
    trace = trace_of(
        processes=[{"process": at, "rank": at} for at in places],
        devices=[
            {"device": at, "process": at, "local_id": at if local is None else local[at]}
            for at in places
        ],
        activities=[
            {
                "process": at,
                "device": at,
                "name": "k",
                "start_ns": start * SECOND,
                "dur_ns": (end - start) * SECOND,
            }
            for at, spans in enumerate(gpus)
            for start, end in spans
        ],
    )
    return replace(trace, source=replace(trace.source, origin_unix_ns=ORIGIN))


def samples(
    *gpus: Sequence[tuple[int, int]], from_ns: int = ORIGIN, times: str = LOCAL_TIME, more: int = 20
) -> Trace:
    """Return a sample each second from 20 s before; GPUs work in some seconds of the recording."""
    rows: list[dict[str, Any]] = [
        {"device": gpu, "name": name, "time_ns": from_ns + second * SECOND, "value": value}
        for second in range(-more, 15 + more)
        for gpu, spans in enumerate(gpus)
        for is_busy in [any(start < second <= end for start, end in spans)]
        for name, value in (
            ("gpu.busy_percent", 100.0 * is_busy),
            ("gpu.sm_clock_mhz", 1000.0 + gpu),
        )
    ]
    devices = [{"device": gpu, "local_id": gpu} for gpu in range(len(gpus))]
    trace = trace_of(devices=devices, counters=rows)
    known = None if times in (LOCAL_TIME, TIME_OF_DAY) else 0
    source = replace(trace.source, format=GPU_SAMPLES, facts={"times": times}, origin_unix_ns=known)
    return replace(trace, source=source)


def clocks_alone(trace: Trace) -> Trace:
    is_clock = pc.equal(trace.counters["name"], "gpu.sm_clock_mhz")
    return replace(trace, tables={**trace.tables, "counters": trace.counters.filter(is_clock)})


def clocks(trace: Trace) -> dict[int, set[float]]:
    """Return the clocks of each device: they tell which sampled GPU it is."""
    found: dict[int, set[float]] = {}
    for row in trace.counters.to_pylist():
        if row["name"] == "gpu.sm_clock_mhz":
            found.setdefault(row["device"], set()).add(row["value"])
    return found


def codes(trace: Trace) -> list[str]:
    return [note.code for note in trace.notes]


@settings(max_examples=examples(50))
@given(st.integers(-24, 28))
def test_the_zone_is_found(half_hours: int) -> None:
    zone = half_hours * HOUR // 2
    joined = with_gpu_samples(recording(BUSY), samples(BUSY, from_ns=ORIGIN + zone))
    seconds = [row["time_ns"] / SECOND for row in joined.counters.to_pylist()]
    assert sorted(set(seconds)) == list(range(-1, 17))  # a second before and after it, no more
    assert codes(joined) == ["samples-zone"]
    sign = "-" if zone < 0 else "+"
    named = f"UTC{sign}{abs(half_hours) // 2:02}:{'30' if half_hours % 2 else '00'}"
    assert named in joined.notes[0].text


@pytest.mark.parametrize("zone", [0, 9 * HOUR, -11 * HOUR])
def test_times_of_the_day_find_theirs(zone: int) -> None:
    midnight = (ORIGIN + zone) // (24 * HOUR) * 24 * HOUR
    of_day = samples(BUSY, from_ns=ORIGIN + zone - midnight, times=TIME_OF_DAY)
    joined = with_gpu_samples(recording(BUSY), of_day)
    assert {row["time_ns"] // SECOND for row in joined.counters.to_pylist()} == set(range(-1, 17))


@pytest.mark.parametrize(
    ("sampled", "what"),
    [
        (samples(((0, 10),)), "none fits"),
        (samples(((-HOUR, HOUR),), more=3_600), "several fit: -01:00, -00:30, \\+00:00"),
        (samples(BUSY, from_ns=ORIGIN + 17 * 60 * SECOND), "in none are they of the time"),
        (samples(BUSY, from_ns=ORIGIN + 72 * HOUR), "in none are they of the time"),
        (clocks_alone(samples(BUSY)), "they have no utilisation"),
    ],
    ids=["contrary", "busy for hours", "no zone", "another day", "no utilisation"],
)
def test_a_zone_is_never_guessed(sampled: Trace, what: str) -> None:
    work = BUSY if "several" not in what else ((0, 15),)
    joined = with_gpu_samples(recording(work), sampled)
    (note,) = joined.notes
    assert note.code == "samples-zone-unknown"
    assert re.search(what, note.text)
    assert "--zone" in note.text
    assert not joined.counters.num_rows
    assert joined.activities.equals(recording(work).activities)


def test_a_recording_that_holds_local_and_utc_time_tells_the_zone() -> None:
    made = recording(((0, 15),))  # busy all the time: its use fits in any zone
    told = replace(made, source=replace(made.source, facts={"utc_offset": "-05:00"}))
    joined = with_gpu_samples(told, samples(((0, 15),), from_ns=ORIGIN - 5 * HOUR, more=3_600))
    assert codes(joined) == ["samples-zone"]
    assert "UTC-05:00, the time zone of the recording" in joined.notes[0].text
    assert joined.counters.num_rows
    given = with_gpu_samples(told, samples(BUSY, from_ns=ORIGIN + HOUR), "+01:00")
    assert codes(given) == ["samples-disagree"]


def test_a_given_zone_counts_and_is_doubted() -> None:
    of_other = samples(((0, 1), (6, 9)), from_ns=ORIGIN + 2 * HOUR)
    joined = with_gpu_samples(recording(BUSY), of_other, "+02:00")
    assert codes(joined) == ["samples-disagree"]
    assert clocks(joined) == {0: {1000.0}}
    assert codes(with_gpu_samples(recording(BUSY), of_other, "+05:30")) == ["samples-few"]
    ends = samples(BUSY, BUSY, from_ns=ORIGIN - 33 * SECOND)  # two of each GPU are inside
    few = with_gpu_samples(recording(BUSY, BUSY), ends, "+00:00")
    assert [note.text for note in few.notes] == [
        "made.json: 2 samples inside the recording: too few to judge. Check that both are of the "
        "same run, and the time zone (--zone)."
    ]
    late = samples(BUSY, from_ns=ORIGIN + 24 * HOUR, times="unix")
    (note,) = with_gpu_samples(recording(BUSY), late).notes
    assert "0 samples inside" in note.text
    assert "--zone" not in note.text  # seconds since 1970 have none
    with pytest.raises(UsageError, match="not a time zone: Berlin"):
        with_gpu_samples(recording(BUSY), of_other, "Berlin")


OTHER, THIRD, IDLE = ((0, 2), (6, 15)), ((0, 8), (14, 15)), ()


@pytest.mark.parametrize(
    ("trace", "gpus", "expected", "notes"),
    [
        (recording(BUSY, OTHER), (BUSY, OTHER), {0: 0, 1: 1}, []),
        (recording(BUSY), (BUSY, IDLE, OTHER), {0: 0}, []),
        # CUDA_VISIBLE_DEVICES=2,3: the process calls them 0 and 1
        (recording(BUSY, OTHER), (IDLE, IDLE, BUSY, OTHER), {0: 2, 1: 3}, ["samples-gpus"]),
        # each process sees its GPU alone
        (recording(BUSY, OTHER, local=(0, 0)), (BUSY, OTHER), {0: 0, 1: 1}, ["samples-gpus"]),
        (recording(BUSY, OTHER, local=(0, 0)), (THIRD, IDLE), {}, ["samples-unknown"]),
        (recording(BUSY, local=(7,)), (THIRD, IDLE), {}, ["samples-unknown"]),
    ],
)
def test_each_gpu_is_its_own(
    trace: Trace, gpus: Sequence[Any], expected: dict[int, int], notes: list[str]
) -> None:
    joined = with_gpu_samples(trace, samples(*gpus, times="unix"))
    assert clocks(joined) == {device: {1000.0 + gpu} for device, gpu in expected.items()}
    assert codes(joined) == notes


def test_a_trace_without_calendar_or_work_takes_no_samples() -> None:
    plain = recording(BUSY)
    undated = replace(plain, source=replace(plain.source, origin_unix_ns=None))
    with pytest.raises(InputError, match="no calendar time"):
        with_gpu_samples(undated, samples(BUSY))
    with pytest.raises(InputError, match="no work of a GPU"):
        with_gpu_samples(recording(), samples(BUSY))
    with pytest.raises(InputError, match="no samples"):
        with_gpu_samples(plain, samples())
