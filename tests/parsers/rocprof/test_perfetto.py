"""Perfetto traces of rocprofv3 and rocprof-sys: what no simulated run has, and hostile ones."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceflops as tf
from sample_traces.config import on_mi300x
from sample_traces.messages import fixed, number, part
from sample_traces.rocprof.formats import WRITERS
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.perfetto import SECRET
from sample_traces.simulate import simulate
from tests.conftest import examples
from tests.privacy.test_environment import outputs
from traceflops.errors import InputError, NotATrace

T0 = 1_520_000_000_000_000
PROCESS, MAIN, GPU, OTHER = 11, 12, 2**63 + 13, 14
PFTRACES = sorted(name for name in WRITERS if name.startswith("pftrace"))


def packet(content: bytes, sequence: int = 2) -> bytes:
    return part(1, content + number(10, sequence))


def track(uuid: int, name: str = "", rest: bytes = b"", parent: int = PROCESS) -> bytes:
    named = part(2, name.encode()) if name else b""
    return packet(part(60, number(1, uuid) + number(5, parent) + named + rest))


TRACKS = b"".join(
    (
        packet(part(60, number(1, PROCESS) + part(3, number(1, 77)))),
        track(MAIN, rest=part(4, number(1, 77) + number(2, 78))),
        track(GPU, "COMPUTE AGENT [4] STREAM [1] (GPU)"),
        track(OTHER, "COMPUTE AGENT [5] STREAM [3] (GPU)"),
    )
)


def said(**values: int | str) -> bytes:
    """Return annotations whose names stand in them."""
    return b"".join(
        part(
            4,
            part(10, name.encode())
            + (number(3, value) if isinstance(value, int) else part(6, value.encode())),
        )
        for name, value in values.items()
    )


def event(kind: int, at: int, uuid: int, rest: bytes = b"", time: bytes | None = None) -> bytes:
    when = number(8, at) + number(58, 6) if time is None else time
    return packet(when + part(11, number(9, kind) + number(11, uuid) + rest))


def begin(at: int, uuid: int, name: str, category: str = "kernel_dispatch", **values: Any) -> bytes:
    texts = part(23, name.encode()) + part(22, category.encode())
    return event(1, at, uuid, texts + said(**values))


def kernel(start: int, end: int, uuid: int = GPU, name: str = "k", **values: Any) -> bytes:
    return begin(T0 + start, uuid, name, **values) + event(2, T0 + end, uuid)


def read(*packets: bytes, name: str = "1_results.pftrace") -> tf.Trace:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(b"".join(packets))
        return tf.read(path)


def rows(trace: tf.Trace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = trace.table(table)
    return list(zip(*(found[name].to_pylist() for name in columns), strict=True))


def notes(trace: tf.Trace) -> dict[str, int | None]:
    return {note.code: note.count for note in trace.notes}


def times(trace: tf.Trace) -> list[tuple[Any, ...]]:
    return rows(trace, "activities", "name", "start_ns", "dur_ns")


def test_names_that_are_damaged_are_counted() -> None:
    name = part(2, number(1, 5) + part(2, b"matmul"))
    by_id = event(1, T0, GPU, number(10, 5) + part(22, b"kernel_dispatch"))
    trace = read(TRACKS, packet(part(12, name + b"\x0a\x7f")), by_id, event(2, T0 + 5, GPU))
    assert notes(trace)["rows-lost"] == 1
    assert times(trace) == [("matmul", T0, 5)]


def test_ranges_of_one_track_nest() -> None:
    inner = begin(T0 + 2, MAIN, "b", "marker_api") + event(2, T0 + 3, MAIN)
    outer = begin(T0, MAIN, "a", "marker_api") + inner + event(2, T0 + 9, MAIN)
    trace = read(TRACKS, kernel(0, 5), event(2, T0 + 1, MAIN), outer)
    assert rows(trace, "marks", "name", "start_ns", "dur_ns", "thread") == [
        ("a", T0, 9, 78),
        ("b", T0 + 2, 1, 78),
    ]
    assert notes(trace)["unpaired-ends"] == 1


@pytest.mark.parametrize("text", ["GPU ", "COMPUTE ", "QUEUE ", " "])
def test_long_names_take_no_longer(text: str) -> None:
    """Each would take minutes if looked through from every place on."""
    long = text * 100_000
    trace = read(TRACKS, track(99, long), kernel(0, 5, 99, name=long, agent=long), kernel(7, 9))
    assert rows(trace, "activities", "start_ns", "stream") == [(T0, None), (T0 + 7, 1)]


def test_a_begin_without_an_end_has_the_end_that_it_says() -> None:
    lost = begin(T0 + 20, GPU, "lost", begin_ns=T0 + 20, end_ns=T0 + 27)
    unsaid = begin(T0 + 30, OTHER, "open")
    trace = read(TRACKS, kernel(0, 5), lost, unsaid)
    assert times(trace) == [("k", T0, 5), ("lost", T0 + 20, 7), ("open", T0 + 30, 0)]
    assert notes(trace)["no-duration"] == 1


def test_clocks_that_count_on_and_are_set_again() -> None:
    def clocks(at: int, unit: int) -> bytes:
        own = number(1, 64) + number(2, 5) + number(3, 1) + number(4, unit)
        shown = part(1, number(1, 6) + number(2, at)) + part(1, own)
        return packet(number(13, 1) + part(6, shown) + part(59, number(58, 64)))

    def step(kind: int, by: int, rest: bytes = b"") -> bytes:
        return event(kind, 0, GPU, rest, number(8, by))

    texts = part(23, b"k") + part(22, b"kernel_dispatch")
    first = (
        clocks(T0, 1) + step(1, 10, texts) + step(2, 7) + kernel(3, 4, OTHER) + step(1, 1, texts)
    )
    trace = read(TRACKS, first, step(2, 2), clocks(T0 + 1_000, 10), step(1, 5, texts), step(2, 3))
    assert times(trace) == [
        ("k", T0 + 3, 1),
        ("k", T0 + 10, 7),
        ("k", T0 + 18, 2),
        ("k", T0 + 1_050, 30),
    ]


def test_clocks_of_other_kinds_are_led_back() -> None:
    shown = [(6, T0), (3, T0 - 500), (1, T0 + 9_000), (70, 40)]
    clocks = b"".join(part(1, number(1, clock) + number(2, at)) for clock, at in shown)
    texts = part(23, b"k") + part(22, b"kernel_dispatch")
    told = [number(8, T0 - 490) + number(58, 3), number(8, 60) + number(58, 70)]
    trace = read(
        TRACKS,
        packet(part(6, clocks)),
        event(1, 0, GPU, texts, told[0]) + event(2, 0, GPU, b"", told[1]),
        event(1, 0, GPU, texts, number(8, 7) + number(58, 99)),
    )
    assert times(trace) == [("k", T0 + 10, 10)]
    assert notes(trace)["no-time"] == 1


def test_ids_of_names_hold_until_the_sequence_is_cleared() -> None:
    def named(text: str) -> bytes:
        entries = (1, "kernel_dispatch"), (2, text), (3, "queue")
        return b"".join(part(n, number(1, 1) + part(2, t.encode())) for n, t in entries)

    ids = number(10, 1) + number(3, 1) + part(4, number(1, 1) + number(3, 9))
    pieces = [TRACKS]
    for at, (text, sequence) in enumerate((("a", 2), ("b", 3), ("c", 2))):
        pieces.append(packet(number(13, 1) + part(12, named(text)), sequence))
        start = number(8, T0 + at) + number(58, 6)
        pieces.append(packet(start + part(11, number(9, 1) + number(11, GPU) + ids), sequence))
        end = number(8, T0 + at + 1) + number(58, 6)
        pieces.append(packet(end + part(11, number(9, 2) + number(11, GPU)), sequence))
    found = rows(read(*pieces), "activities", "name", "stream", "dur_ns")
    assert found == [("a", 9, 1), ("b", 9, 1), ("c", 9, 1)]


@pytest.mark.parametrize("agent", [4, "GPU-4", "Agent 4"])
def test_agents_as_numbers_or_texts(agent: int | str) -> None:
    copied = {"src_agent": 0, "dst_agent": agent, "copy_bytes": 64}
    copy = begin(T0 + 9, OTHER, "MEMORY_COPY_HOST_TO_DEVICE", "memory_copy", **copied)
    trace = read(TRACKS, kernel(0, 5, agent=agent, queue=3), copy, event(2, T0 + 12, OTHER))
    assert trace.devices["local_id"].to_pylist() == [4]
    assert rows(trace, "activities", "device", "stream", "direction", "bytes") == [
        (0, 3, None, None),
        (0, None, "HtoD", 64),
    ]


def test_copies_between_gpus_and_within_the_host() -> None:
    def copy(at: int, name: str, source: str, target: str) -> bytes:
        ends = {"src_agent": source, "dst_agent": target}
        return begin(T0 + at, MAIN, name, "memory_copy", **ends) + event(2, T0 + at + 1, MAIN)

    trace = read(
        TRACKS,
        copy(1, "MEMORY_COPY_DEVICE_TO_DEVICE", "GPU-4", "GPU-5"),
        copy(3, "MEMORY_COPY_DEVICE_TO_DEVICE", "GPU-4", "GPU-4"),
        copy(5, "COPY", "CPU-0", "GPU-5"),
        copy(7, "MEMORY_COPY_HOST_TO_HOST", "CPU-0", "CPU-1"),
    )
    local = trace.devices["local_id"].to_pylist()
    found = rows(trace, "activities", "direction", "device")
    assert [(way, local[device]) for way, device in found] == [
        ("PtoP", 5),
        ("DtoD", 4),
        ("HtoD", 5),
    ]
    assert notes(trace)["host-copies"] == 1


def test_what_the_writer_bent_and_what_the_buffer_lost() -> None:
    lost = packet(number(42, 1) + number(8, T0) + number(58, 6))
    late = begin(T0 + 10**9, MAIN, "hipFree", "hip_api", corr_id=9) + event(2, T0 + 10**9 + 5, MAIN)
    early = begin(T0, MAIN, "hipMalloc", "hip_api", corr_id=8) + event(2, T0 + 5, MAIN)
    found = notes(read(TRACKS, early, lost, kernel(0, 5), kernel(5, 9), kernel(9, 9), late))
    assert found["packets-dropped"] == 1
    assert found["overlaps-trimmed"] == 1
    assert {"device-stopped", "perfetto-lacks"} <= found.keys()
    found = notes(read(TRACKS, early, kernel(0, 5), kernel(6, 9), kernel(9, 12, OTHER)))
    assert found.keys().isdisjoint({"packets-dropped", "overlaps-trimmed", "device-stopped"})


def test_the_first_packet_of_a_sequence_says_nothing_of_losses() -> None:
    first = packet(number(42, 1) + number(8, T0) + number(58, 6), sequence=3)
    assert "packets-dropped" not in notes(read(first, TRACKS, kernel(0, 5)))
    assert notes(read(first, TRACKS, first, kernel(0, 5)))["packets-dropped"] == 1


@pytest.mark.parametrize(("field", "lost"), [(3, True), (18, True), (19, True), (2, False)])
def test_statistics_of_a_buffer_say_what_it_lost(field: int, lost: bool) -> None:
    statistics = packet(part(35, part(1, number(field, 7) + number(12, 1 << 20))))
    assert ("packets-dropped" in notes(read(TRACKS, kernel(0, 5), statistics))) == lost


def test_what_rocprof_sys_samples_of_gpus() -> None:
    names = {21: "GPU [1] Power (S)", 22: "GPU Memory Usage [1] (S)", 23: "CPU Memory Usage (S)"}
    tracks = [track(uuid, name, part(8, b"")) for uuid, name in names.items()]
    values = [("device_power", 512.5), ("device_memory_usage", 2.5), ("process_page", 8.0)]
    counted = [
        event(4, T0 + 5, uuid, part(22, category.encode()) + fixed(44, struct.pack("<d", value)))
        for uuid, (category, value) in zip(names, values, strict=True)
    ]
    whole = event(4, T0 + 6, 21, part(22, b"device_power") + number(30, 400))
    queue = track(31, "GPU Kernel Dispatch [1] Queue 2")
    work = kernel(0, 9, 31, category="rocm_kernel_dispatch", grid_size="(512,2,1)",
                  workgroup_size="(256,1,1)")  # fmt: skip
    trace = read(TRACKS, queue, *tracks, work, *counted, whole)
    assert rows(trace, "counters", "name", "device", "time_ns", "value") == [
        ("gpu.power_w", 0, T0 + 5, 512.5),
        ("gpu.memory_used_bytes", 0, T0 + 5, 2.5e6),
        ("CPU Memory Usage (S)", None, T0 + 5, 8.0),
        ("gpu.power_w", 0, T0 + 6, 400.0),
    ]
    assert rows(trace, "activities", "stream", "grid", "block") == [(2, [2, 2, 1], [256, 1, 1])]
    assert trace.devices["local_id"].to_pylist() == [1]
    assert trace.source.tool == "rocprof-sys Perfetto trace"


def test_work_on_the_tracks_of_streams() -> None:
    """rocprof-sys by stream: only the name of an event tells kernels from copies."""
    stream = track(41, "HIP Activity Stream 6")
    work = kernel(0, 5, 41, category="rocm_hip_stream")
    ends = {"src_agent_id": 0, "dst_agent_id": 4}
    copy = kernel(6, 9, 41, "MEMORY_COPY_HOST_TO_DEVICE", category="rocm_hip_stream", **ends)
    trace = read(TRACKS, stream, work, copy)
    assert rows(trace, "activities", "kind", "stream") == [("kernel", 6), ("memcpy", None)]
    assert notes(trace)["device-unknown"] == 2


def test_a_trace_of_another_tool_is_refused_in_one_line() -> None:
    foreign = begin(T0, MAIN, "frame", "blink") + event(2, T0 + 5, MAIN)
    with pytest.raises(NotATrace, match="a Perfetto trace or another protobuf file") as refused:
        read(TRACKS, foreign)
    assert "pftrace" in refused.value.hint
    with pytest.raises(NotATrace):
        read(packet(number(8, 5)), packet(part(1, bytes(300))))


def test_packed_packets_are_counted() -> None:
    assert notes(read(TRACKS, packet(part(50, b"x\x9c")), kernel(0, 5)))["packets-packed"] == 1


def written(name: str) -> bytes:
    run = simulate(on_mi300x(layers=1, steps=1, ranks=1, vocab=256, copy_stream=True))
    with TemporaryDirectory() as folder:
        (path,) = WRITERS[name](run, Path(folder), RocprofOptions(markers="all"))
        return path.read_bytes()


def test_private_texts_are_not_read(tmp_path: Path) -> None:
    data = written("pftrace")
    assert SECRET.encode() in data
    path = tmp_path / "1_results.pftrace"
    path.write_bytes(data)
    for text in outputs(path, tmp_path):
        assert SECRET not in text


def test_a_cut_file_is_read_up_to_the_cut() -> None:
    data = written("pftrace")
    whole = times(read(data))
    for at in range(len(data) // 2, len(data), len(data) // 17):
        for cut, name in ((data[:at], "a.pftrace"), (gzip.compress(data)[: -at // 50], "a.gz")):
            try:
                trace = read(cut, name=name)
            except InputError:
                continue
            found = times(trace)
            assert set(found[:-1]) <= set(whole)
            assert "input-cut" in notes(trace) or data[at : at + 1] == b"\n"


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 2),
    places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=12),
)
def test_damaged_traces_are_read_or_refused(seed: int, places: Sequence[tuple[float, int]]) -> None:
    data = bytearray(SEEDS[seed])
    for place, value in places:
        data[int(place * (len(data) - 1))] = value
    try:
        trace = read(bytes(data))
    except InputError as refused:
        assert refused.hint
        return
    assert all(row >= 0 for (row,) in rows(trace, "activities", "dur_ns"))


SEEDS = [written(name) for name in PFTRACES]


@settings(max_examples=examples(100), deadline=None)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=30))
def test_ends_go_with_the_last_begin_that_is_open(steps: list[tuple[bool, int]]) -> None:
    tracks = [track(50 + n, f"THREAD {n} ({n})") for n in range(3)]
    pieces, stacks, expected, alone = [], [list[int]() for _ in range(3)], [], 0
    for at, (opens, whose) in enumerate(steps, start=1):
        if opens:
            pieces.append(begin(T0 + at, 50 + whose, str(at), "marker_api"))
            stacks[whose].append(at)
        else:
            pieces.append(event(2, T0 + at, 50 + whose))
            if stacks[whose]:
                start = stacks[whose].pop()
                expected.append((str(start), whose, T0 + start, at - start))
            else:
                alone += 1
    expected += [(str(at), n, T0 + at, 0) for n, stack in enumerate(stacks) for at in stack]
    trace = read(TRACKS, *tracks, kernel(0, 5), *pieces)
    assert sorted(rows(trace, "marks", "name", "thread", "start_ns", "dur_ns")) == sorted(expected)
    assert notes(trace).get("unpaired-ends", 0) == alone
