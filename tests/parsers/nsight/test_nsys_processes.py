"""Nsight Systems: which process, rank, device and stream a row belongs to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.parsers.nsight.nsysfile import NsysFile, process, thread
from tests.parsers.nsight.test_nsys_quirks import codes, made, note, rows
from traceflops.parsers.reading import read
from traceflops.table.links import link
from traceflops.table.trace import Trace

Ranks = Sequence[tuple[int, int]]
"""Communicators that a process makes: how many ranks each has, and which it is."""


def worker(export: NsysFile, pid: int, communicators: Ranks = (), **more: Any) -> None:
    """Add a process with a kernel of 10 ns, and the communicators that it makes."""
    export.call(1, 2, 1, globalTid=thread(1, pid))
    export.kernel(10, 20, globalPid=process(pid), correlationId=1, **more)
    for at, (ranks, rank) in enumerate(communicators):
        payload = {"NCCL communicator ID": f"0x{ranks}", "No. of ranks": ranks, "Rank": rank}
        text = json.dumps(payload)
        name = export.string("ncclCommInitRank")
        more = {"textId": name, "domainId": 3, "globalTid": thread(1, pid), "jsonText": text}
        export.range(100 + at, 101 + at, None, **more)


def report(tmp_path: Path, members: dict[int, Ranks], name: str = "run.sqlite") -> Trace:
    export = NsysFile()
    for pid, communicators in members.items():
        worker(export, pid, communicators)
    return made(tmp_path, export, name)


def test_a_communicator_of_all_processes_tells_their_ranks(tmp_path: Path) -> None:
    trace = report(tmp_path, {100: [(4, 2), (2, 0)], 200: [(2, 1), (4, 1)]})
    assert rows(trace, "processes", "pid", "rank", "world_size") == [(200, 1, 4), (100, 2, 4)]
    assert note(trace, "ranks-by-communicator").kind == "assumed"


@pytest.mark.parametrize(
    "members",
    [
        {100: [(2, 0)], 200: [(2, 1)], 300: [(2, 0)], 400: [(2, 1)]},  # two groups of two
        {100: [(4, 0)], 200: [(4, 0)]},  # the first of two groups
        {100: [(4, 0)], 200: [(8, 1)]},
    ],
)
def test_communicators_of_parts_of_the_job_tell_no_rank(
    tmp_path: Path, members: dict[int, Ranks]
) -> None:
    trace = report(tmp_path, members)
    assert set(trace.ranks) == {None}
    assert rows(trace, "processes", "world_size") == [None] * len(members)
    found = note(trace, "rank-unknown")
    assert found.count == len(members)
    assert "parts of the job" in found.text


def test_ranks_that_the_report_lists_count_first(tmp_path: Path) -> None:
    export = NsysFile()
    for pid, rank in ((100, 7), (200, 3)):
        worker(export, pid, [(2, int(pid == 200))])
        export.row("MPI_RANKS", globalPid=process(pid), rank=rank)
    trace = made(tmp_path, export)
    assert rows(trace, "processes", "pid", "rank", "world_size") == [(200, 3, None), (100, 7, None)]


def test_files_of_tensor_parallel_ranks(tmp_path: Path) -> None:
    """Four files, whose names say 0 to 3; each has a communicator of two."""
    for rank in range(4):
        report(tmp_path, {100 + rank: [(2, rank % 2)]}, f"run_rank{rank}.sqlite")
    trace = read(tmp_path)
    assert trace.ranks == (0, 1, 2, 3)
    assert rows(trace, "processes", "world_size") == [None] * 4


def test_files_without_ranks_whose_communicators_clash(tmp_path: Path) -> None:
    for number in range(4):
        report(tmp_path, {100 + number: [(2, number % 2)]}, f"run_{number}.sqlite")
    trace = read(tmp_path)
    assert trace.ranks == (None,) * 4
    assert "ranks-by-communicator" not in codes(trace)
    (found,) = [one for one in trace.notes if one.code == "rank-unknown"]
    assert found.count == 4
    assert found.text.startswith("The ranks of 4 processes are unknown")
    assert found.text.endswith("(in 4 of 4 files)")
    labels = [device.label for device in tf.analyze(trace).devices]
    assert labels == [f"run_{number}.sqlite · gpu 0" for number in range(4)]


def test_files_of_one_communicator_have_its_ranks(tmp_path: Path) -> None:
    for number in range(2):
        report(tmp_path, {100 + number: [(2, 1 - number)]}, f"run_{number}.sqlite")
    trace = read(tmp_path)
    assert rows(trace, "processes", "pid", "rank", "world_size") == [(101, 0, 2), (100, 1, 2)]


def test_a_process_without_device_work_takes_no_rank_away(tmp_path: Path) -> None:
    export = NsysFile()
    worker(export, 100)
    export.call(1, 2, 1, name="cudaGetDeviceCount_v3020", globalTid=thread(1, 200))
    trace = made(tmp_path, export, "run_rank3.sqlite")
    assert rows(trace, "processes", "pid", "rank") == [(100, 3), (200, None)]
    assert "rank-unknown" not in codes(trace)
    assert tf.analyze(trace).devices[0].label == "GPU 0"


def test_work_of_no_known_process_takes_no_rank_away(tmp_path: Path) -> None:
    """The file's name says the rank of the one process that worked, and copies say no process."""
    export = NsysFile()
    worker(export, 100, [(8, 3)])
    export.call(1, 2, 1, name="cudaGetDeviceCount_v3020", globalTid=thread(1, 200))
    export.kernel(30, 40, globalPid=None)
    trace = made(tmp_path, export, "run_rank3.sqlite")
    found = dict(rows(trace, "processes", "pid", "rank"))
    assert found[100] == 3
    assert note(trace, "rank-from-name").text == "Rank 3 was taken from file or folder names."
    assert not {"ranks-by-communicator", "rank-disputed", "rank-unknown"} & set(codes(trace))


@pytest.mark.parametrize(
    ("place", "is_disputed"), [((8, 5), True), ((8, 3), False), ((2, 1), False)]
)
def test_a_communicator_that_disagrees_with_the_name_is_said(
    place: tuple[int, int], is_disputed: bool, tmp_path: Path
) -> None:
    trace = report(tmp_path, {100: [place]}, "run_rank3.sqlite")
    world = 8 if place == (8, 3) else None
    assert rows(trace, "processes", "rank", "world_size") == [(3, world)]
    assert ("rank-disputed" in codes(trace)) == is_disputed


def test_processes_of_unknown_rank_are_labelled_by_their_ids(tmp_path: Path) -> None:
    export = NsysFile()
    for pid in (100, 200):
        worker(export, pid)
    trace = made(tmp_path, export)
    assert "process ID" in note(trace, "rank-unknown").text
    labels = [device.label for device in tf.analyze(trace).devices]
    assert labels == ["process 100 · gpu 0", "process 200 · gpu 0"]


def test_copies_without_a_process_are_of_the_only_one_and_its_gpu(tmp_path: Path) -> None:
    export = NsysFile()
    export.gpu(3)
    export.row("TARGET_INFO_CUDA_DEVICE", gpuId=3, cudaId=0, pid=100)
    worker(export, 100)
    export.call(21, 22, 2, globalTid=thread(1, 100), name="cudaMemcpyAsync")
    export.copy(30, 40, 1, globalPid=None, correlationId=2)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "local_id") == [3]
    assert rows(trace, "processes", "pid") == [100]
    assert link(trace).call_of_activity.tolist() == [0, 1]
    (device,) = tf.analyze(trace).devices
    assert (device.whole.span_ns, device.whole.idle_ns) == (30, 10)


def test_rows_of_an_unknown_process_are_on_the_gpu_that_all_call_so(tmp_path: Path) -> None:
    export = NsysFile()
    for pid in (100, 200):
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=5, cudaId=0, pid=pid)
        worker(export, pid)
    export.copy(30, 40, 1, globalPid=None)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "local_id") == [5]
    assert rows(trace, "processes", "pid") == [100, 200, None]
    found = note(trace, "calls-of-unknown-process")
    assert found.count == 1
    assert "one of 2 processes" in found.text


def test_work_of_no_device_is_of_the_only_one_of_its_process(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    export.kernel(30, 40, deviceId=None)
    trace = made(tmp_path, export)
    assert rows(trace, "devices", "local_id") == [0]
    assert note(trace, "device-unknown").count == 1


def shared(tmp_path: Path, second: dict[str, Any]) -> tf.Analysis:
    """Return two kernels that overlap, on streams of one GPU that both have the number 7."""
    export = NsysFile()
    for pid in (100, 200):
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=pid)
    export.kernel(10, 30, globalPid=process(100), contextId=1)
    export.kernel(20, 40, **{"globalPid": process(100), "contextId": 1} | second)
    return tf.analyze(made(tmp_path, export))


@pytest.mark.parametrize("second", [{"globalPid": process(200)}, {"contextId": 2}])
def test_streams_of_two_processes_or_contexts_are_two(
    tmp_path: Path, second: dict[str, Any]
) -> None:
    found = shared(tmp_path, second)
    (device,) = found.devices
    assert (device.whole.streams, device.whole.same_stream_overlaps) == (2, 0)
    assert note_codes(found) >= {"streams-renumbered"}


def note_codes(found: tf.Analysis) -> set[str]:
    return {one.code for one in found.notes}


@pytest.mark.parametrize("second", [{"contextId": None}, {}])
def test_a_stream_of_an_unknown_context_is_the_known_one(
    tmp_path: Path, second: dict[str, Any]
) -> None:
    found = shared(tmp_path, second)
    (device,) = found.devices
    assert (device.whole.streams, device.whole.same_stream_overlaps) == (1, 1)
    assert "streams-renumbered" not in note_codes(found)


def test_work_held_back_by_a_stream_of_another_process_is_queued(tmp_path: Path) -> None:
    """Its own stream was free all along, whatever number the other one's has."""
    export = NsysFile()
    for pid, stream in ((100, 7), (200, 7)):
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=pid)
        late = 0 if pid == 100 else 2_000
        export.call(late and 100, (late and 100) + 1, 1, globalTid=thread(1, pid))
        export.kernel(
            200 + late,
            1_200 + late,
            globalPid=process(pid),
            streamId=stream,
            correlationId=1,
        )
    (device,) = tf.analyze(made(tmp_path, export)).devices
    assert device.whole.account.idle_causes.queued_ns == 1_000


def test_streams_keep_their_numbers_where_no_two_are_alike(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20, streamId=7, deviceId=0)
    export.kernel(10, 20, streamId=7, deviceId=1)
    export.kernel(10, 20, streamId=9, contextId=2)
    export.kernel(30, 40, streamId=4294967295)
    trace = made(tmp_path, export)
    assert sorted(rows(trace, "activities", "stream"), key=str) == [7, 7, 9, None]
    assert "streams-renumbered" not in codes(trace)


def test_metrics_of_several_gpus_keep_their_gpu(tmp_path: Path) -> None:
    export = NsysFile()
    export.row("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=100)
    worker(export, 100)
    for gpu in (0, 1):
        kind = 1 << 56 | gpu
        export.row(
            "TARGET_INFO_GPU_METRICS",
            typeId=kind,
            typeName=f"GPU Metrics [{gpu}]",
            metricId=2,
            metricName="SMs Active",
        )
        export.row("GPU_METRICS", timestamp=12 + gpu, typeId=kind, metricId=2, value=50 + gpu)
    trace = made(tmp_path, export)
    assert rows(trace, "counters", "name", "value", "device") == [
        ("SMs Active (GPU 0)", 50.0, None),
        ("SMs Active", 51.0, 0),
    ]


UUID = "GPU-1b2c3d4e-0000-1111-2222-333344445555"
BORN = 10**18


def one_gpu(pid: int, **gpu: Any) -> NsysFile:
    """Return an export of a process with a kernel of 10 ns on the GPU."""
    export = NsysFile()
    export.gpu(0, **gpu)
    export.row("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=pid)
    worker(export, pid)
    return export


def both(tmp_path: Path, *, born: tuple[int | None, int | None], gpus: list[Any]) -> Trace:
    for at, (begin, gpu) in enumerate(zip(born, gpus, strict=True)):
        export = one_gpu(100 + at, **gpu)
        if begin is not None:
            export.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=begin)
        export.save(tmp_path / f"run.rank{at}.sqlite")
    return read(tmp_path)


def test_a_gpu_of_one_uuid_is_one_in_all_reports(tmp_path: Path) -> None:
    trace = both(tmp_path, born=(BORN, BORN + 5), gpus=[{"uuid": UUID}] * 2)
    (device,) = tf.analyze(trace).devices
    assert (device.ranks, device.whole.span_ns, device.whole.busy_ns) == ((0, 1), 15, 15)
    assert "device-shared" in codes(trace)


def test_reports_of_one_gpu_one_after_the_other_are_its_runs(tmp_path: Path) -> None:
    trace = both(tmp_path, born=(BORN, BORN + 10**9), gpus=[{"uuid": UUID}] * 2)
    found = tf.analyze(trace)
    assert [device.whole.span_ns for device in found.devices] == [10]
    assert {"runs-on-one-gpu", "one-run-of-several"} <= {note.code for note in found.notes}


@pytest.mark.parametrize(
    ("born", "gpus"),
    [
        ((BORN, BORN), [{"uuid": UUID}, {"uuid": UUID.replace("1", "2")}]),
        ((None, None), [{"uuid": UUID}] * 2),  # times that cannot be compared
        ((BORN, BORN), [{"uuid": "GPU-00000000-0000"}] * 2),
        ((BORN, BORN), [{"uuid": None}] * 2),  # the slot, but not the machine
    ],
)
def test_gpus_that_nothing_tells_to_be_one_stay_apart(
    tmp_path: Path, born: tuple[int | None, int | None], gpus: list[Any]
) -> None:
    assert len(tf.analyze(both(tmp_path, born=born, gpus=gpus)).devices) == 2


def test_the_slot_of_a_machine_stands_for_a_uuid(tmp_path: Path) -> None:
    for at, host in enumerate(("a", "a", "b")):
        export = one_gpu(100 + at, uuid=None, busLocation="0000:1b:00.0")
        export.row("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=host)
        export.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=BORN)
        export.save(tmp_path / f"run.rank{at}.sqlite")
    assert [device.ranks for device in tf.analyze(read(tmp_path)).devices] == [(0, 1), (2,)]


@pytest.mark.parametrize(("listed", "devices"), [(1, 1), (2, 2)])
def test_without_a_table_of_numbers_the_only_gpu_is_everyones(
    tmp_path: Path, listed: int, devices: int
) -> None:
    export = NsysFile()
    for number in range(listed):
        export.gpu(number)
    for pid in (100, 200):
        worker(export, pid)
    trace = made(tmp_path, export)
    assert trace.devices.num_rows == devices
    assert ("device-shared" in codes(trace)) == (listed == 1)
