"""Which files make one process, one run, one machine; passes are repetitions, not ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import traceflops as tf
from tests.parsers.rocprof.tablefiles import (
    API,
    V1_NEW,
    V1_TIMES,
    agent,
    agents,
    call,
    calls,
    codes,
    copies,
    copy,
    counter,
    counters,
    kernel,
    kernels,
    read,
    rows,
    table,
    v1_row,
    write,
)
from traceflops.errors import InputError
from traceflops.parsers.io.places import find_inputs
from traceflops.parsers.rocprof.tables.parts import key_of, place_of, same_run
from traceflops.parsers.rocprof.tables.read import read_tables

MACHINE = agents(agent(0, "CPU"), agent(4), agent(5))


def traces_in(folder: Path) -> list[tf.Trace]:
    """Return the traces of a folder before they are merged."""
    return read_tables(find_inputs(str(folder))[0])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("12345_kernel_trace.csv", "12345"),
        ("12345_memory_copy_trace.csv.gz", "12345"),
        ("decode_fetch_counter_collection.csv", "decode_fetch"),
        ("kernel_trace.csv", ""),
        ("hip_trace.csv", ""),
        ("out_hip_api_stats.csv", "out"),
        ("results.csv", ""),
        ("results.stats.csv", ""),
        ("results.hip_stats.csv", ""),
        ("results_77.csv", "77"),
        ("hip_api_trace_77.csv", "77"),
        ("rocpd-to-csv.csv", "rocpd-to-csv"),
        ("my_run.csv", "my_run"),
        ("", ""),
    ],
)
def test_what_the_name_of_a_file_tells(name: str, key: str) -> None:
    assert key_of(name) == key


def test_what_the_folders_of_a_file_tell() -> None:
    place = place_of("/data/out/pmc_2/node-a", "77_kernel_trace.csv")
    assert (place.root, place.run_pass, place.pid, place.rank) == ("/data/out/node-a", 2, 77, None)
    place = place_of("/data/rank_3/node-a", "77_kernel_trace.csv")
    assert (place.root, place.rank) == ("/data/node-a", 3)
    place = place_of("/data/rank_3", "kernel_trace.csv")
    assert (place.root, place.rank) == ("/data/rank_3", 3)
    assert place_of("", "rank7_kernel_trace.csv").rank == 7
    assert place_of("/frank_1", "franklin2.csv").rank is None


def test_files_of_one_prefix_are_one_process(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {
            "run_kernel_trace.csv": kernels(kernel(100, 200, Correlation_Id=1)),
            "run_hip_api_trace.csv": calls(call(50, 60, 1)),
            "run_memory_copy_trace.csv": copies(
                copy(10, 20, "Agent 0", "Agent 4", "HOST_TO_DEVICE")
            ),
            "run_marker_api_trace.csv": calls(
                call(5, 300, Domain="MARKER_CORE_API", Function="step")
            ),
            "run_agent_info.csv": MACHINE,
        },
    )
    assert rows(trace, "processes", "pid", "file") == [(77, "run_kernel_trace.csv")]
    for name in ("activities", "calls", "marks"):
        assert set(rows(trace, name, "process")) == {0}
    assert rows(trace, "devices", "local_id") == [4]
    assert tf.analyze(trace).devices[0].whole.unlinked == {"kernel": 0, "memcpy": 1}


def test_processes_of_one_folder_share_a_clock_and_its_devices(tmp_path: Path) -> None:
    files = {f"{pid}_kernel_trace.csv": kernels(kernel(pid, pid + 9)) for pid in (11, 12, 13)}
    (trace,) = read_without_merging(tmp_path, files)
    assert rows(trace, "processes", "pid") == [11, 12, 13]
    assert rows(trace, "devices", "local_id") == [4]
    assert sorted(rows(trace, "activities", "process", "device")) == [(0, 0), (1, 0), (2, 0)]
    assert trace.source.clock


def read_without_merging(folder: Path, files: dict[str, str]) -> list[tf.Trace]:
    write(folder, files)
    return traces_in(folder)


def test_the_same_process_id_on_two_hosts_is_two_processes(tmp_path: Path) -> None:
    files = {
        f"{host}/77_kernel_trace.csv": kernels(kernel(10, 20)) for host in ("node-a", "node-b")
    }
    first, second = read_without_merging(tmp_path, files)
    assert first.source.clock != second.source.clock
    assert [rows(one, "processes", "pid", "host") for one in (first, second)] == [
        [(77, "node-a")],
        [(77, "node-b")],
    ]
    assert first.source.identities == ("node-a",)
    trace = tf.read(tmp_path)
    assert trace.processes.num_rows == trace.devices.num_rows == 2
    assert "clocks-not-aligned" in codes(trace)


def test_ranks_are_from_folder_or_file(tmp_path: Path) -> None:
    files = {f"rank_{n}/node-a/7{n}_kernel_trace.csv": kernels(kernel(10, 20)) for n in (1, 0)}
    (trace,) = read_without_merging(tmp_path / "folders", files)
    assert rows(trace, "processes", "rank", "pid", "host") == [(0, 70, None), (1, 71, None)]
    (note,) = [one for one in trace.notes if one.code == "rank-from-name"]
    assert note.text == "Ranks 0, 1 were taken from file or folder names."
    files = {f"rank{n}_kernel_trace.csv": kernels(kernel(10, 20)) for n in (1, 0)}
    assert read(tmp_path / "files", files).ranks == (0, 1)


@pytest.mark.parametrize("word", ["pmc", "pass"])
def test_passes_are_repetitions_of_one_run(word: str, tmp_path: Path) -> None:
    files = {}
    for number, pid, name in ((1, 70, "SQ_WAVES"), (2, 90, "FETCH_SIZE")):
        folder = f"{word}_{number}/node-a/{pid}"
        files[f"{folder}_kernel_trace.csv"] = kernels(kernel(10 * pid, 10 * pid + number))
        files[f"{folder}_counter_collection.csv"] = counters(
            counter(1, name, 7, Process_Id=pid), counter(2, name, 8, Process_Id=pid)
        )
        files[f"{folder}_agent_info.csv"] = MACHINE
    trace = read(tmp_path, files)
    assert trace.processes.num_rows == 1
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(700, 1)]
    assert rows(trace, "kernel_counters", "process", "repetition", "dispatch", "counter") == [
        (0, 1, 1, "SQ_WAVES"),
        (0, 1, 2, "SQ_WAVES"),
        (0, 2, 1, "FETCH_SIZE"),
        (0, 2, 2, "FETCH_SIZE"),
    ]
    (note,) = [note for note in trace.notes if note.code == "repeated-passes"]
    assert "pass 2" in note.text


def test_a_pass_without_counters_gives_the_times(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {
            "pass_1/7_kernel_trace.csv": kernels(kernel(10, 99)),
            "pass_1/7_counter_collection.csv": counters(counter(1, "SQ_WAVES", 7, Process_Id=7)),
            "pass_2/8_kernel_trace.csv": kernels(kernel(20, 25)),
        },
    )
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(20, 5)]
    assert rows(trace, "kernel_counters", "repetition", "correlation") == [(1, None)]
    assert "counted-while-timed" not in codes(trace)


def test_processes_of_passes_are_matched_in_order(tmp_path: Path) -> None:
    files = {
        "7_kernel_trace.csv": kernels(kernel(1, 2)),
        "8_kernel_trace.csv": kernels(kernel(1, 2)),
    }
    for number, pids in ((1, (21, 22)), (2, (31, 32))):
        for pid in pids:
            name = f"pmc_{number}/{pid}_counter_collection.csv"
            files[name] = counters(counter(1, f"C{number}", pid, Process_Id=pid))
    trace = read(tmp_path, files)
    assert rows(trace, "processes", "pid") == [7, 8]
    assert sorted(rows(trace, "kernel_counters", "process", "repetition", "value")) == [
        (0, 1, 21.0),
        (0, 2, 31.0),
        (1, 1, 22.0),
        (1, 2, 32.0),
    ]


def test_counters_of_the_run_whose_times_are_used_link_and_are_said(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {
            "77_kernel_trace.csv": kernels(kernel(10, 20, Correlation_Id=1)),
            "77_counter_collection.csv": counters(counter(1, "SQ_WAVES", 7)),
        },
    )
    assert rows(trace, "kernel_counters", "repetition", "correlation", "device") == [(None, 1, 0)]
    assert "counted-while-timed" in codes(trace)


def test_a_process_that_only_launches_others_is_none_of_the_run(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {
            "10_agent_info.csv": MACHINE,
            "11_agent_info.csv": MACHINE,
            "11_kernel_trace.csv": kernels(kernel(1, 2)),
        },
    )
    assert rows(trace, "processes", "pid") == [11]
    (note,) = [note for note in trace.notes if note.code == "launcher"]
    assert note.count == 1


def test_several_counter_files_of_v1_are_one_run(tmp_path: Path) -> None:
    def counted(name: str, pid: int, kernel_name: str = "gemm(float*) [clone .kd]") -> str:
        body = [v1_row(i, 1, 2, pid=pid, KernelName=kernel_name, **{name: i}) for i in (0, 1)]
        return table(f"{V1_NEW} {name}", body)

    trace = read(
        tmp_path / "alike",
        {"a.csv": counted("SQ_WAVES", 7), "b.csv": counted("FETCH_SIZE", 8)},
    )
    assert trace.processes.num_rows == 1
    assert sorted(rows(trace, "kernel_counters", "repetition", "dispatch", "counter")) == [
        (1, 0, "SQ_WAVES"),
        (1, 1, "SQ_WAVES"),
        (2, 0, "FETCH_SIZE"),
        (2, 1, "FETCH_SIZE"),
    ]
    trace = read(
        tmp_path / "others",
        {"a.csv": counted("SQ_WAVES", 7), "b.csv": counted("FETCH_SIZE", 8, "other")},
    )
    assert trace.processes.num_rows == 2
    trace = read(
        tmp_path / "ranks",
        {"a.csv": counted("SQ_WAVES", 7), "b.csv": counted("SQ_WAVES", 8)},
    )
    assert trace.processes.num_rows == 2


def test_counters_of_v1_beside_its_times(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {
            "timestamps.csv": table(V1_NEW + V1_TIMES, [v1_row(0, 500, 600, pid=7)]),
            "pmc_perf.csv": table(
                f"{V1_NEW} SQ_WAVES{V1_TIMES}", [v1_row(0, 50, 20, pid=8, SQ_WAVES=3)]
            ),
        },
    )
    assert rows(trace, "activities", "start_ns") == [500]
    assert rows(trace, "kernel_counters", "process", "counter", "correlation") == [
        (0, "SQ_WAVES", None)
    ]


def test_runs_one_after_the_other_are_shown_apart(tmp_path: Path) -> None:
    minute = 60 * 10**9
    files = {
        f"{i}_kernel_trace.csv": kernels(kernel(i * minute, i * minute + 5)) for i in (1, 2, 3)
    }
    traces = read_without_merging(tmp_path, files)
    assert [rows(trace, "processes", "pid") for trace in traces] == [[1], [2], [3]]
    assert len({trace.source.clock for trace in traces}) == 1
    trace = tf.read(tmp_path)
    assert trace.devices.num_rows == 3
    assert "runs-apart" in codes(trace)
    assert "clocks-not-aligned" not in codes(trace)


def test_files_of_one_name_and_other_days_are_of_other_runs(tmp_path: Path) -> None:
    day = 86_400 * 10**9
    traces = read_without_merging(
        tmp_path,
        {
            "kernel_trace.csv": kernels(kernel(10 * day, 10 * day + 5)),
            "memory_copy_trace.csv": copies(
                copy(day, day + 5, "Agent 0", "Agent 4", "HOST_TO_DEVICE")
            ),
        },
    )
    assert [rows(trace, "activities", "kind") for trace in traces] == [["memcpy"], ["kernel"]]
    assert {trace.source.clock for trace in traces} == {None}


def test_a_converted_database_of_several_processes(tmp_path: Path) -> None:
    work = [kernel(10 * n, 10 * n + 5, Guid=f"000-{n % 2}", Correlation_Id=n) for n in (2, 3, 4)]
    api = [call(n, n + 1, n, Guid=f"000-{n % 2}", Process_Id=70 + n % 2) for n in (2, 3, 4)]
    columns = f"Guid {API}"
    trace = read(
        tmp_path,
        {
            "kernel_trace.csv": kernels(*work, release="converted"),
            "regions_trace.csv": table(columns, api),
        },
    )
    assert rows(trace, "processes", "pid") == [70, 71]
    assert sorted(rows(trace, "activities", "process", "start_ns")) == [(0, 20), (0, 40), (1, 30)]
    assert "calls-missing" not in codes(trace)


def test_siblings_of_a_file_that_was_named_are_said(tmp_path: Path) -> None:
    files = {
        "77_kernel_trace.csv": kernels(kernel(0, 1_000_000), kernel(8_000_000, 9_000_000)),
        "77_hip_api_trace.csv": calls(call(0, 1)),
        "77_kernel_stats.csv": "",
        "88_kernel_trace.csv": kernels(kernel(1, 2)),
        "notes.txt": "mine",
    }
    write(tmp_path / "mine", files)
    path = tmp_path / "mine" / "77_kernel_trace.csv"
    (note,) = [n for n in tf.read(path).notes if n.code == "siblings-not-read"]
    assert (note.kind, note.count) == ("missing", 1)
    assert "77_hip_api_trace.csv" in note.text
    assert "folder mine" in note.text
    assert str(tmp_path) not in note.text
    told = "1 other table of the same process lies beside the file: give the folder"
    assert told in tf.analyze(tf.read(path)).verdict.sentence
    both = [path, tmp_path / "mine" / "77_hip_api_trace.csv"]
    assert "siblings-not-read" not in codes(tf.read(both))
    assert "siblings-not-read" not in codes(tf.read(tmp_path / "mine"))
    assert same_run(["77_kernel_stats.csv", "77_domain_stats.csv", "77_x.csv"], "77") == []


def test_a_file_that_cannot_be_read_does_not_keep_the_others(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {
            "1_kernel_trace.csv": kernels(kernel(1, 2)),
            "2_kernel_trace.csv": kernels(),
            "3_kernel_trace.csv": kernels() + "broken\n",
            "readme.csv": "a,b\n1,2\n",
        },
    )
    assert rows(trace, "processes", "pid") == [1]
    found = {note.code: note for note in trace.notes}
    assert {"not-a-trace", "rows-lost"} <= found.keys()
    assert found["rows-lost"].file == "3_kernel_trace.csv"


def test_folders_without_work_beside_one_with_work_are_said(tmp_path: Path) -> None:
    trace = read(
        tmp_path, {"a/1_kernel_trace.csv": kernels(kernel(1, 2)), "b/2_kernel_trace.csv": kernels()}
    )
    assert trace.processes.num_rows == 1
    (note,) = [note for note in trace.notes if note.code == "no-rows"]
    assert note.file == "2_kernel_trace.csv"


def test_archives_and_compressed_files_are_folders_and_files(tmp_path: Path) -> None:
    import gzip
    import zipfile

    files = {
        "7_kernel_trace.csv": kernels(kernel(100, 200, Correlation_Id=1)),
        "7_hip_api_trace.csv": calls(call(50, 60, 1, Process_Id=7)),
    }
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        for name, text in files.items():
            archive.writestr(f"out/{name}", text)
    packed = {f"{name}.gz": gzip.compress(text.encode()) for name, text in files.items()}
    expected = read(tmp_path / "plain", files)
    for trace in (tf.read(tmp_path / "run.zip"), read(tmp_path / "packed", packed)):
        assert trace.activities.to_pylist() == expected.activities.to_pylist()
        assert trace.calls.to_pylist() == expected.calls.to_pylist()


def test_a_header_alone_in_a_folder_is_no_run(tmp_path: Path) -> None:
    write(tmp_path, {"1_kernel_trace.csv": kernels()})
    with pytest.raises(InputError, match="no rows"):
        tf.read(tmp_path / "1_kernel_trace.csv")
