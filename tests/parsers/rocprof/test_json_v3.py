"""rocprofv3's JSON: every record in its table, every oddity in a note."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.conftest import every, shared_file
from tests.parsers.rocprof.jsonfile import (
    CPU,
    GPU,
    KINDS,
    OTHER_GPU,
    START,
    agents,
    axes,
    call,
    copy,
    counted,
    dispatch,
    document,
    notes,
    process,
    read,
    rows,
    source,
    symbols,
)
from traceflops.errors import InputError
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.parsers.recognise import recognise
from traceflops.parsers.rocprof.formats import ROCPROF_JSON
from traceflops.parsers.shared.formats import Reading

MI350X = "traces/rocprof/v3_json_mi350x_ddp_train.json.gz"


# The public file


@pytest.fixture(scope="module")
def mi350x() -> tf.Trace:
    return tf.read(shared_file(MI350X))


@pytest.fixture(scope="module")
def expected() -> Any:
    found = json.loads(shared_file("traces/expected.json").read_text())
    return found["traces"]["rocprof/v3_json_mi350x_ddp_train.json.gz"]


def test_every_figure_of_the_public_file(mi350x: tf.Trace, expected: Any) -> None:
    (device,) = tf.analyze(mi350x).devices
    (name,) = expected["devices"]
    found, whole = expected["devices"][name], device.whole
    assert mi350x.devices["local_id"].to_pylist() == [int(name)]
    assert {kind: sums.count for kind, sums in whole.kinds.items()} == found["activities"]
    assert whole.start_ns == found["first_start_ns"]
    assert whole.span_ns == found["span_ns"]
    assert whole.busy_ns == found["busy_ns"]
    assert whole.sum_ns == found["sum_of_durations_ns"]
    assert whole.kinds["kernel"].union_ns == found["union_by_kind_ns"]["kernel"]
    assert whole.communication.count == found["comm"]["n"]
    assert whole.communication.sum_ns == found["comm"]["sum_ns"]
    assert whole.communication.union_ns == found["comm"]["union_ns"]
    assert whole.exposed_communication_ns == found["comm"]["exposed_ns"]
    assert whole.hidden_communication_ns == found["comm"]["overlapped_ns"]
    assert whole.zero_length == found["zero_duration"]
    assert whole.streams == found["streams"]
    assert whole.same_stream_overlaps == found["same_stream_overlaps"]["n"]
    assert whole.same_stream_overlap_max_ns == found["same_stream_overlaps"]["max_ns"]
    assert whole.categories["compute/gemm"].sum_ns == 65_590_500


def test_the_kernels_of_the_public_file(mi350x: tf.Trace, expected: Any) -> None:
    found = expected["devices"]["2"]
    by_name: dict[str, tuple[int, int]] = {}
    for name, dur_ns in rows(mi350x, "activities", "name", "dur_ns"):
        count, sum_ns = by_name.get(name, (0, 0))
        by_name[name] = (count + 1, sum_ns + dur_ns)
    assert len(by_name) == found["distinct_kernel_names"]
    for kernel in found["top_kernels"]:
        assert by_name[kernel["name"]] == (kernel["n"], kernel["sum_ns"])
    blits = [figures for name, figures in by_name.items() if name.startswith("__amd_rocclr_")]
    assert sum(count for count, _ in blits) == found["blit_kernels"]["n"]
    assert sum(sum_ns for _, sum_ns in blits) == found["blit_kernels"]["sum_ns"]


def test_what_the_public_file_says_of_itself(mi350x: tf.Trace, expected: Any) -> None:
    meta, facts = expected["meta"], mi350x.source.facts
    assert facts["generation"] == "v3"
    assert facts["hip_streams"] == str(meta["hip_streams"])
    assert facts["process_lifetime_ns"] == str(meta["process_lifetime_ns"])
    assert mi350x.source.event_counts == {
        name: count for name, count in meta["records"].items() if count
    }
    (device,) = mi350x.devices.to_pylist()
    assert [device["product"]] == meta["product_names"]
    assert [device["architecture"]] == meta["gfx"]
    assert (device["sm_count"], device["dies"], device["clock_hz"]) == (256, 8, 2_200_000_000)
    assert device["memory_bytes"] == 309_220_868_096
    assert mi350x.processes["pid"].to_pylist() == [908]
    assert notes(mi350x).keys() == {"no-calls", "window"}


def test_the_public_file_says_nothing_of_its_owner(mi350x: tf.Trace) -> None:
    (host,) = mi350x.source.identities
    said = repr((mi350x.source.facts, mi350x.source.tool, mi350x.notes, mi350x.source.clock))
    assert host not in said
    tables = {name: table for name, table in mi350x.tables.items() if name != "processes"}
    texts = repr([table.to_pydict() for table in tables.values()])
    assert host not in texts
    assert "train.py" not in said + texts


def test_processes_help_and_change_nothing(mi350x: tf.Trace) -> None:
    with WorkerPool(2, worth_bytes=1) as pool:
        (found,) = ROCPROF_JSON.read([tf_source(shared_file(MI350X))], Reading(pool))
    assert found.tables["activities"].equals(mi350x.tables["activities"])


def tf_source(path: Path) -> Any:
    return source(path.read_bytes(), path.name)


# Device work


def test_a_dispatch() -> None:
    one = dispatch(
        START,
        START + 40,
        9,
        workgroup_size=axes(16, 16),
        grid_size=axes(100, 32),
        queue_id={"handle": 5},
        stream_id={"handle": 77},
        graph={"graph_exec_id": 4, "graph_node_id": 2},
    )
    (row,) = read(document(process(one))).activities.to_pylist()
    wanted = {
        "kind": "kernel",
        "name": "first(int)",
        "stream": 5,
        "start_ns": START,
        "dur_ns": 40,
        "correlation": 9,
        "graph": 4,
        "graph_node": 2,
        "grid": [7, 2, 1],
        "block": [16, 16, 1],
        "registers_per_thread": 24,
        "shared_memory_bytes": 512,
        "bytes": None,
        "external_id": None,
    }
    assert {name: row[name] for name in wanted} == wanted


def test_ids_of_graphs_may_be_handles_and_0_is_no_graph() -> None:
    none = dispatch(START, START + 1, graph={"graph_exec_id": 0, "graph_node_id": 0})
    one = dispatch(
        START + 2, START + 3, graph={"graph_exec_id": {"handle": 4}, "graph_node_id": {"handle": 2}}
    )
    trace = read(document(process(none, one)))
    assert rows(trace, "activities", "graph", "graph_node") == [(None, None), (4, 2)]


def test_names_are_those_that_rocprof_prints() -> None:
    mine = process(dispatch(START, START + 1), dispatch(START + 2, START + 3, kernel_id=2))
    mine["kernel_symbols"] = [
        {"kernel_id": 1, "kernel_name": "_Zq.kd", "demangled_kernel_name": "q() [clone .kd]"},
        {"kernel_id": 2, "kernel_name": "plain.kd"},
    ]
    assert rows(read(document(mine)), "activities", "name") == ["q() [clone .kd]", "plain.kd"]


def test_agents_with_dispatches_are_the_devices() -> None:
    """Quirks 20, 34, 35: unused agents are none; memory of the banks; the clock of the units."""
    (device,) = read(document(process(dispatch(START, START + 1)))).devices.to_pylist()
    assert device["local_id"] == 2
    assert device["clock_hz"] == 2_100_000_000
    assert device["memory_bytes"] == 206_141_652_992
    assert (device["sm_count"], device["dies"], device["warp_size"]) == (304, 8, 64)
    assert (device["architecture"], device["product"]) == ("gfx942", "AMD Instinct MI300X")
    assert (device["compute_major"], device["compute_minor"]) == (9, 4)


def test_partitions_and_dies_are_devices_of_their_own() -> None:
    """Quirk 46."""
    one = process(
        dispatch(START, START + 1), dispatch(START, START + 1, agent_id={"handle": OTHER_GPU})
    )
    trace = read(document(one))
    assert rows(trace, "devices", "local_id") == [2, 3]


def test_streams_of_hip_are_counted_and_queues_are_the_streams() -> None:
    """Quirk 21: hundreds of HIP streams share a few queues; 0 where they were not traced."""
    many = [
        dispatch(START + n, START + n, queue_id={"handle": n % 3}, stream_id={"handle": n})
        for n in range(500)
    ]
    trace = read(document(process(*many)))
    assert set(rows(trace, "activities", "stream")) == {0, 1, 2}
    assert trace.source.facts["hip_streams"] == "500"
    untraced = read(document(process(dispatch(START, START + 1))))
    assert "hip_streams" not in untraced.source.facts


def test_copies_belong_to_their_gpu() -> None:
    copies = [
        copy(START + 1, START + 5, "MEMORY_COPY_HOST_TO_DEVICE", CPU, OTHER_GPU),
        copy(START + 2, START + 5, "MEMORY_COPY_DEVICE_TO_HOST", GPU, CPU, bytes=8),
        copy(START + 3, START + 5, "MEMORY_COPY_DEVICE_TO_DEVICE", GPU, OTHER_GPU),
        copy(START + 4, START + 5, "MEMORY_COPY_DEVICE_TO_DEVICE", GPU, GPU),
        copy(START + 5, START + 6, "MEMORY_COPY_NONE", CPU, GPU),
        copy(START + 6, START + 7, "MEMORY_COPY_HOST_TO_HOST", CPU, CPU),
    ]
    trace = read(document(process(memory_copy=copies)))
    node = trace.devices["local_id"].to_pylist()
    found = [
        (node[device], *rest)
        for device, *rest in rows(trace, "activities", "device", "direction", "bytes", "stream")
    ]
    assert found == [
        (3, "HtoD", 4096, None),
        (2, "DtoH", 8, None),
        (3, "PtoP", 4096, None),
        (2, "DtoD", 4096, None),
        (2, "HtoD", 4096, None),
    ]
    assert rows(trace, "activities", "name")[0] == "MEMORY_COPY_HOST_TO_DEVICE"
    assert set(rows(trace, "activities", "kind")) == {"memcpy"}
    assert notes(trace)["host-copies"].count == 1


@pytest.mark.parametrize("as_list", [True, False])
def test_copies_done_by_kernels_have_the_size_of_their_call(as_list: bool) -> None:
    """Quirk 43: the kernel is the copy; a call that launched two does not say what each did."""
    size = {"dst": "0x1", "sizeBytes": "8192", "kind": "1"}
    listed = [{"type": "int", "name": name, "value": value} for name, value in size.items()]
    calls = [call(START, START + 1, "HIP_RUNTIME_API", "hipMemcpyAsync", n) for n in (1, 2, 3)]
    hip = [{**one, "args": listed if as_list else size} for one in calls[:2]]
    launches = (1, 2, 2, 3)
    work = [dispatch(START + 9 * n, START + 9 * n + 5, one) for n, one in enumerate(launches)]
    one = process(*work, hip_api=[*hip, calls[2]])
    one["kernel_symbols"] = symbols("__amd_rocclr_copyBufferAligned")
    trace = read(document(one))
    assert rows(trace, "activities", "kind", "bytes") == [
        ("kernel", 8192),
        ("kernel", None),
        ("kernel", None),
        ("kernel", None),
    ]


# The host


def test_calls_of_all_apis_and_their_links() -> None:
    """Quirk 44: one call, many dispatches."""
    hip = [call(START, START + 5, "HIP_RUNTIME_API", "hipGraphLaunch", 3)]
    hsa = [call(START + 1, START + 2, "HSA_CORE_API", "hsa_signal_create", 4)]
    work = [dispatch(START + 10 * n, START + 10 * n + 5, 3) for n in range(1, 6)]
    trace = read(document(process(*work, hip_api=hip, hsa_api=hsa)))
    assert rows(trace, "calls", "api", "name", "correlation", "thread") == [
        ("hip", "hipGraphLaunch", 3, 7),
        ("hsa", "hsa_signal_create", 4, 7),
    ]
    assert set(rows(trace, "activities", "correlation")) == {3}
    assert not {"no-calls", "calls-missing"} & notes(trace).keys()
    account = tf.analyze(trace).devices[0].whole.account
    assert (account.launched_activities, account.launches) == (5, 1)


def test_without_calls_links_are_not_available() -> None:
    """Quirk 41."""
    trace = read(document(process(dispatch(START, START + 1, 3))))
    assert "is unknown" in notes(trace)["no-calls"].text
    assert tf.analyze(trace).devices[0].whole.unlinked in (None, {})


def test_thinned_out_calls_are_reported() -> None:
    """Quirk 42."""
    work = [dispatch(START + n, START + n, n + 1) for n in range(20)]
    hip = [call(START, START + 1, "HIP_RUNTIME_API", "hipLaunchKernel", 20)]
    trace = read(document(process(*work, hip_api=hip)))
    note = notes(trace)["calls-missing"]
    assert note.count == 19
    assert "5.0 %" in note.text


def test_the_collective_is_that_of_the_call_around_the_launch() -> None:
    trace = read(
        document(
            process(
                dispatch(START + 9, START + 50, 2, kernel_id=3),
                hip_api=[call(START + 3, START + 4, "HIP_RUNTIME_API", "hipLaunchKernel", 2)],
                rccl_api=[call(START, START + 8, "RCCL_API", "ncclAllReduce", 1)],
            )
        )
    )
    assert rows(trace, "activities", "collective") == ["allreduce"]
    assert ("rccl", "ncclAllReduce") in rows(trace, "calls", "api", "name")


def test_markers_have_their_messages() -> None:
    markers = [
        call(START, START + 900, "MARKER_CORE_RANGE_API", "roctxThreadRangeA", 5),
        call(START + 7, START + 7, "MARKER_CORE_API", "roctxMarkA", 6),
        call(START + 9, START + 10, "MARKER_CORE_API", "roctxRangePushA", 8),
    ]
    messages = {5: 'step {"loss": 1, "lr": 2}', 6: "here"}
    trace = read(document(process(marker_api=markers, messages=messages)))
    assert rows(trace, "marks", "kind", "name", "dur_ns") == [
        ("annotation", 'step {"loss": 1, "lr": 2}', 900),
        ("instant", "here", 0),
        ("annotation", "roctxRangePushA", 1),
    ]
    assert trace.calls.num_rows == 0


def test_scratch_is_overhead_and_other_lists_are_counted() -> None:
    scratch = {
        **call(START, START + 30, "SCRATCH_MEMORY", "SCRATCH_MEMORY_ALLOC"),
        "agent_id": {"handle": GPU},
        "queue_id": {"handle": 3},
        "flags": 0,
    }
    one = process(
        dispatch(START, START + 1),
        scratch_memory=[scratch],
        memory_allocation=[{"size": 64, "address": "0x1"}] * 3,
        pc_sample_host_trap=[{"record": {"pc": 1}}],
        something_new=[{}, {}],
    )
    trace = read(document(one))
    assert rows(trace, "marks", "kind", "name", "device", "stream", "dur_ns") == [
        ("overhead", "SCRATCH_MEMORY_ALLOC", 0, 3, 30)
    ]
    assert trace.source.event_counts == {
        "kernel_dispatch": 1,
        "memory_allocation": 3,
        "pc_sample_host_trap": 1,
        "scratch_memory": 1,
        "something_new": 2,
    }


# Counters


COUNTERS = {1: "SQ_WAVES", 2: "GRBM_GUI_ACTIVE"}


def test_counters_are_summed_over_instances() -> None:
    """Quirk 8: the sum, of GRBM counters the largest. Quirk 27: no times, no timeline."""
    instances = [(1, 4.0), (2, 90.0), (1, 0.5), (2, 100.0), (1, None), (1, 8.0)]
    trace = read(
        document(process(countings=[counted(7, *instances)], counters=COUNTERS)), block_bytes=50
    )
    (waves, busy) = trace.kernel_counters.to_pylist()
    assert (waves["counter"], waves["value"]) == ("SQ_WAVES", 12.5)
    assert (busy["counter"], busy["value"]) == ("GRBM_GUI_ACTIVE", 100.0)
    assert (waves["name"], waves["dispatch"], waves["threads"]) == ("first(int)", 7, 1000)
    assert (waves["block_threads"], waves["repetition"]) == (256, None)
    assert trace.activities.num_rows == 0
    found = notes(trace)
    assert found.keys() == {"no-timeline", "instances-summed", "no-value"}
    assert (found["instances-summed"].count, found["no-value"].count) == (3, 1)


def test_a_value_that_is_not_a_number_is_missing() -> None:
    text = json.dumps(
        document(process(countings=[counted(7, (1, 4.0), (1, float("nan")))], counters=COUNTERS))
    )
    assert "NaN" in text
    trace = read(text)
    assert rows(trace, "kernel_counters", "counter", "value") == [("SQ_WAVES", 4.0)]
    assert notes(trace)["json-repaired"].kind == "repaired"


def test_counters_beside_times_are_said() -> None:
    one = process(dispatch(START, START + 5), countings=[counted(1, (1, 2.0))], counters=COUNTERS)
    trace = read(document(one))
    assert (trace.activities.num_rows, trace.kernel_counters.num_rows) == (1, 1)
    assert trace.kernel_counters["device"].to_pylist() == [0]
    assert "counted-while-timed" in notes(trace)


def test_passes_are_repetitions_of_one_run(tmp_path: Path) -> None:
    """Quirk 18."""
    for number, pid in ((1, 50), (2, 61)):
        folder = tmp_path / f"pass_{number}" / "node17"
        folder.mkdir(parents=True)
        one = process(
            dispatch(START + number, START + number + 5, 1),
            countings=[counted(1, (number, 2.0 * number))],
            counters=COUNTERS,
        )
        one["metadata"]["pid"] = pid
        (folder / f"{pid}_results.json").write_text(json.dumps(document(one)))
    trace = tf.read(tmp_path)
    assert trace.processes["pid"].to_pylist() == [50]
    assert rows(trace, "activities", "start_ns") == [START + 1]
    assert rows(trace, "kernel_counters", "counter", "value", "repetition", "correlation") == [
        ("SQ_WAVES", 2.0, 1, 1),
        ("GRBM_GUI_ACTIVE", 4.0, 2, None),
    ]
    assert "(pass 2)" in notes(trace)["repeated-passes"].text
    assert len(trace.source.files) == 2


def test_times_come_from_the_pass_that_counted_nothing(tmp_path: Path) -> None:
    """And what was lost of the others is said: their counters are used."""
    for number, countings in ((1, [counted(1, (1, 2.0))]), (2, [])):
        folder = tmp_path / f"pass_{number}"
        folder.mkdir()
        one = process(
            dispatch(START + number, START + 9, 1), countings=countings, counters=COUNTERS
        )
        text = json.dumps(document(one))
        (folder / "5_results.json").write_text(text if number == 2 else text[:-2])
    trace = tf.read(tmp_path)
    assert rows(trace, "activities", "start_ns") == [START + 2]
    assert rows(trace, "kernel_counters", "value", "repetition") == [(2.0, 1)]
    assert {"repeated-passes", "text-cut"} <= notes(trace).keys()


@pytest.mark.parametrize("count", [1, 2])
def test_a_rank_in_the_name_is_that_of_the_only_process(count: int) -> None:
    data = json.dumps(document(*[process(dispatch(START, START + 1))] * count)).encode()
    (trace,) = ROCPROF_JSON.read([source(data, "rank3_results.json")], Reading(WorkerPool()))
    assert trace.processes["rank"].to_pylist() == ([3] if count == 1 else [None, None])
    assert ("rank-from-name" in notes(trace)) == (count == 1)


# Numbers, strings, processes


def test_kinds_are_looked_up() -> None:
    """Quirk 33: the numbers of kinds move from release to release."""
    for kinds in (KINDS, KINDS[::-1], ["NEW", *KINDS]):
        one = process(
            memory_copy=[copy(START, START + 1, "MEMORY_COPY_DEVICE_TO_HOST", GPU, CPU)],
            hip_api=[call(START, START + 1, "HIP_RUNTIME_API", "hipMemcpyAsync", 1)],
            kinds=list(kinds),
        )
        one["buffer_records"]["memory_copy"][0]["kind"] = kinds.index("MEMORY_COPY")
        one["buffer_records"]["hip_api"][0]["kind"] = kinds.index("HIP_RUNTIME_API")
        trace = read(document(one))
        assert rows(trace, "activities", "name") == ["MEMORY_COPY_DEVICE_TO_HOST"]
        assert rows(trace, "calls", "name") == ["hipMemcpyAsync"]


def test_names_may_stand_behind_the_records() -> None:
    hip = [call(START, START + 1, "HIP_RUNTIME_API", "hipLaunchKernel", 1)]
    one = process(dispatch(START, START + 1), hip_api=hip)
    reversed_keys = dict(reversed(one.items()))
    first, second = read(document(one)), read(document(reversed_keys))
    assert list(one) != list(reversed_keys)
    assert first.activities.equals(second.activities)
    assert first.calls.equals(second.calls)
    assert first.devices.equals(second.devices)


def test_several_processes_share_the_machine_and_its_gpus() -> None:
    """Quirk 32: one list; agents have other handles in each process."""
    first, second = process(dispatch(START, START + 5, 1)), process(dispatch(START, START + 5, 1))
    second["metadata"] = {**second["metadata"], "pid": 4712}
    text = json.dumps(second).replace(f'{{"handle": {GPU}}}', '{"handle": 999}')
    trace = read(document(first, json.loads(text)))
    assert rows(trace, "processes", "pid", "host") == [(4711, "node17"), (4712, "node17")]
    assert rows(trace, "devices", "local_id", "process") == [(2, 0)]
    assert rows(trace, "activities", "process", "device") == [(0, 0), (1, 0)]


def test_the_same_pid_on_two_hosts_is_two_processes() -> None:
    """Quirk 17."""
    first, second = process(dispatch(START, START + 5)), process(dispatch(START, START + 5))
    second["metadata"] = {
        **second["metadata"],
        "node": {"machine_id": "cafe", "hostname": "node18"},
    }
    trace = read(document(first, second))
    assert rows(trace, "processes", "pid", "host") == [(4711, "node17"), (4711, "node18")]
    assert rows(trace, "devices", "local_id") == [2, 2]
    assert trace.source.clock is None


def test_files_of_one_machine_share_its_clock(tmp_path: Path) -> None:
    for pid in (1, 2):
        one = process(dispatch(START, START + 5))
        (tmp_path / f"{pid}_results.json").write_text(json.dumps(document(one)))
    trace = tf.read(tmp_path)
    assert trace.source.clock is not None
    assert "feedbeef" not in trace.source.clock
    assert "clocks-not-aligned" not in notes(trace)


def test_launchers_are_not_shown(tmp_path: Path) -> None:
    """Quirk 19."""
    trace = read(document(process(), process(dispatch(START, START + 1))))
    assert trace.processes.num_rows == 1
    assert notes(trace)["launcher"].count == 1
    for pid, one in ((1, process()), (2, process(dispatch(START, START + 1)))):
        (tmp_path / f"{pid}_results.json").write_text(json.dumps(document(one)))
    trace = tf.read(tmp_path)
    assert trace.processes.num_rows == 1
    assert notes(trace)["launcher"].count == 1


def test_a_file_of_a_launcher_alone() -> None:
    trace = read(document(process()))
    assert (trace.processes.num_rows, trace.activities.num_rows) == (1, 0)
    assert notes(trace).keys() == {"no-device-work"}


def test_releases_are_told_by_their_kinds_and_metadata() -> None:
    bare = {"pid": 1, "init_time": START, "fini_time": START + 9}
    old = [name for name in KINDS if name != "MARKER_CORE_RANGE_API"]
    for one, layout in (
        (process(dispatch(START, START + 1)), "ROCm 7.0 or later"),
        (process(dispatch(START, START + 1), kinds=old), "ROCm 6.3 or 6.4"),
        (process(dispatch(START, START + 1), kinds=old, metadata=bare), "ROCm 6.2 or 6.3"),
    ):
        assert read(document(one)).source.facts["layout"] == layout


def test_an_object_in_place_of_the_list() -> None:
    trace = read({"rocprofiler-sdk-tool": process(dispatch(START, START + 1))})
    assert rows(trace, "activities", "name") == ["first(int)"]


def test_owner_command_and_settings_stay_out() -> None:
    """Quirk 24."""
    trace = read(document(process(dispatch(START, START + 1))))
    said = repr([table.to_pydict() for table in trace.tables.values()])
    said += repr((trace.source, trace.notes))
    assert "secret" not in said
    assert "somebody" not in said
    assert "feedbeef" not in said
    assert trace.source.identities == ("node17",)


# Odd records


def test_times_that_cannot_be_durations() -> None:
    """Quirks 14 and 16: kept and flagged."""
    work = [
        dispatch(START + 900, START + 910),
        dispatch(START + 30, START + 30),
        dispatch(START + 40, START + 20),
        dispatch(START + 50, 0),
        dispatch(-1, START),
        dispatch(2**62, 2**62 + 1),
    ]
    trace = read(document(process(*work)))
    assert rows(trace, "activities", "start_ns", "dur_ns") == [
        (START + 30, 0),
        (START + 40, 0),
        (START + 50, 0),
        (START + 900, 10),
    ]
    found = notes(trace)
    assert found["negative-duration"].count == 1
    assert found["no-duration"].count == 1
    assert found["no-time"].count == 2


def test_times_after_104_days_are_exact() -> None:
    """Quirk 13."""
    late = 2**53 + 1
    trace = read(document(process(dispatch(late, late + 3), dispatch(late + 7, late + 8))))
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(late, 3), (late + 7, 1)]


def test_overlap_on_a_queue_stays() -> None:
    """Quirk 15."""
    trace = read(document(process(dispatch(START, START + 50), dispatch(START + 20, START + 70))))
    whole = tf.analyze(trace).devices[0].whole
    assert (whole.busy_ns, whole.sum_ns) == (70, 100)
    assert (whole.same_stream_overlaps, whole.same_stream_overlap_max_ns) == (1, 30)


def test_a_kernel_of_331_s_is_shown() -> None:
    """Quirk 45."""
    long = 331 * 10**9
    trace = read(document(process(dispatch(START, START + long), dispatch(START + 5, START + 9))))
    assert rows(trace, "activities", "dur_ns") == [long, 4]
    assert "very-long" in notes(trace)


def test_kernels_and_agents_that_are_not_listed() -> None:
    one = process(
        dispatch(START, START + 1, kernel_id=12),
        dispatch(START + 2, START + 3, kernel_id=0),
        dispatch(START + 4, START + 5, agent_id={"handle": 55}),
    )
    trace = read(document(one))
    assert rows(trace, "activities", "name") == [
        "(unknown kernel 12)",
        "(unknown kernel 0)",
        "first(int)",
    ]
    assert set(rows(trace, "devices", "local_id", "product")) == {
        (2, "AMD Instinct MI300X"),
        (55, None),
    }
    assert notes(trace)["kernels-unnamed"].count == 2
    assert notes(trace)["agents-missing"].count == 1


def test_a_kernel_number_with_two_names() -> None:
    one = process(dispatch(START, START + 1))
    one["kernel_symbols"] = [*symbols("old()"), *symbols("new()")]
    trace = read(document(one))
    assert rows(trace, "activities", "name") == ["new()"]
    assert notes(trace)["kernel-clash"].count == 1


def test_operations_without_strings() -> None:
    one = process(
        hip_api=[call(START, START + 1, "HIP_RUNTIME_API", "hipLaunchKernel", 1)],
        memory_copy=[copy(START, START + 1, "MEMORY_COPY_HOST_TO_DEVICE", GPU, CPU)],
    )
    del one["strings"]
    trace = read(document(one))
    assert rows(trace, "calls", "name") == ["(unknown hip call 1)"]
    assert rows(trace, "activities", "name", "direction") == [("(unknown copy 2)", "DtoH")]


def test_the_window_is_stated_where_it_is_a_part_of_the_process() -> None:
    """Quirk 22."""
    one = process(dispatch(START + 10**9, START + 2 * 10**9))
    one["metadata"]["init_time"] = START - 97 * 10**9
    one["metadata"]["fini_time"] = START + 2 * 10**9
    note = notes(read(document(one)))["window"]
    assert "ran for 99.000 s" in note.text
    assert "98.000 s and span 1.000 s" in note.text
    whole = process(dispatch(START, START + 90))
    whole["metadata"] |= {"init_time": START - 5, "fini_time": START + 95}
    assert "window" not in notes(read(document(whole)))


def test_numbers_as_text_and_records_of_another_kind() -> None:
    one = process(dispatch(START, START + 4, 3), dispatch(START + 5, START + 6))
    text = json.dumps(document(one)).replace(
        f'"start_timestamp": {START}', f'"start_timestamp": "{START}"'
    )
    trace = read(text.replace('"kernel_dispatch": [', '"kernel_dispatch": [17, null, '))
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(START, 4), (START + 5, 1)]
    assert notes(trace)["json-dropped"].count == 2


def test_names_with_bytes_that_are_no_text() -> None:
    """Quirk 12: invalid UTF-8 and NUL in names."""
    text = json.dumps(document(process(dispatch(START, START + 1)))).encode()
    data = text.replace(b'"first(int)"', b'"fi\xffrst\\u0000(int)"')
    trace = read(data)
    assert rows(trace, "activities", "name") == ["fi\ufffdrst\0(int)"]
    assert "UTF-8" in notes(trace)["json-repaired"].text
    assert tf.analyze(trace).to_json()


# The text


def lists(count: int = 30) -> bytes:
    work = [
        dispatch(START + 10 * n, START + 10 * n + 5, n + 1, kernel_id=1 + n % 2)
        for n in range(count)
    ]
    hip = [
        call(START + 10 * n - 5, START + 10 * n, "HIP_RUNTIME_API", "hipLaunchKernel", n + 1)
        for n in range(count)
    ]
    return json.dumps(document(process(*work, hip_api=hip))).encode()


@pytest.mark.parametrize("block_bytes", [1, 100, 3000])
def test_blocks_change_nothing(block_bytes: int) -> None:
    data = lists()
    whole, found = read(data), read(data, block_bytes)
    assert found.tables.keys() == whole.tables.keys()
    for name, table in whole.tables.items():
        assert found.tables[name].equals(table), name
    assert found.notes == whole.notes


@pytest.mark.parametrize("spaces", [None, 1, 4])
def test_layout_of_the_text_changes_nothing(spaces: int | None) -> None:
    text = json.dumps(json.loads(lists()), indent=spaces)
    for data in (text.encode(), b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"\r\n"):
        found = read(data)
        assert found.activities.equals(read(lists()).activities)
        assert notes(found).keys() <= {"window"}


def test_cut_anywhere() -> None:
    """Quirk 11: what is complete is used; a cut is always said."""
    data = lists(6)
    whole = rows(read(data), "activities", "start_ns", "dur_ns", "name")
    used = 0
    for end in (*range(0, len(data) - 1, every(23)), len(data) - 2):
        try:
            trace = read(data[:end])
        except InputError as error:
            assert not used or "cut off" in error.message
            continue
        found = rows(trace, "activities", "start_ns", "dur_ns", "name")
        assert found == whole[: len(found)]
        assert len(found) >= used
        used = len(found)
        assert "text-cut" in notes(trace) or data[end:].strip(b"}] \n") == b""
        assert "json-dropped" not in notes(trace)
    assert used == 6


def test_a_cut_download() -> None:
    packed = gzip.compress(lists(2000))
    trace = read(packed[: len(packed) // 3])
    assert 0 < trace.activities.num_rows < 2000
    assert {"input-cut", "text-cut"} <= notes(trace).keys()
    almost = read(packed[:-6])
    assert almost.activities.num_rows == 2000
    assert "no-checksum" in notes(almost)


@pytest.mark.parametrize(
    ("was", "becomes", "lost"),
    [
        (b'"dispatch_id": 1', b'"dispatch_id": xxx', 1),
        (b'"start_timestamp": ', b'"start_timestamp" ', 1),
        (b'"operation": 2,', b'"operation": 2, "a": "b" c",', 0),
        (b'"operation": 2,', b'"operation": NaN,', 0),
        (b"}}, {", b"}} {", 0),
        (b"}}, {", b"}},, {", 0),
        (b'"size": 184', b'"size": 184 "', 1),
        (b'{"size": 184', b'"size": 184', 1),
    ],
)
def test_damage_of_one_record_costs_no_other(was: bytes, becomes: bytes, lost: int) -> None:
    data = lists()
    at = data.index(was, data.index(b'"kernel_dispatch"') + 3000)
    trace = read(data[:at] + data[at:].replace(was, becomes, 1))
    assert trace.activities.num_rows == 30 - lost
    assert trace.calls.num_rows == 30
    assert ("json-dropped" in notes(trace)) == (lost > 0)
    assert "json-dropped" in notes(trace) or "json-repaired" in notes(trace)


def test_damage_between_the_lists() -> None:
    data = lists()
    for was, becomes in (
        (b'"pid": 4711', b'"pid": 47 11'),
        (b'"strings": {', b'"strings": {{'),
        (b'], "hip_api": [', b']], "hip_api": ['),
        (b'], "hip_api": [', b', "hip_api": ['),
        (b'"cu_count": 304', b'"cu_count": "'),
    ):
        trace = read(data.replace(was, becomes, 1))
        assert (trace.activities.num_rows, trace.calls.num_rows) == (30, 30)
        assert {"json-dropped", "json-repaired"} & notes(trace).keys()


def test_the_comma_behind_a_damaged_value_is_not_one_too_many() -> None:
    trace = read(lists().replace(b'"pid": 4711', b'"pid": 47 11', 1))
    assert [note.code for note in trace.notes if "json" in note.code] == ["json-dropped"]


def test_an_object_that_ends_early_is_said() -> None:
    """The lists behind the end are those of the process, by the look of it, and not known there."""
    trace = read(lists().replace(b'], "hip_api": [', b']}, "hip_api": [', 1))
    assert (trace.activities.num_rows, trace.calls.num_rows) == (30, 0)
    assert "text-cut" in notes(trace)


def test_damage_in_a_list_that_is_not_used_does_not_hide_a_key_of_two_objects() -> None:
    """Both the strings and the process have buffer_records."""
    data = lists()
    trace = read(data.replace(b'[{"kind": "NONE"', b'[{"kind": xNONE"', 1))
    assert (trace.activities.num_rows, trace.calls.num_rows) == (30, 30)
    assert [note.code for note in trace.notes if note.kind != "assumed"] == ["json-repaired"]


def test_text_behind_the_document() -> None:
    assert "tail-unread" in notes(read(lists() + b" and more"))
    assert "second-trace" in notes(read(lists() + lists()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"rocprofiler-sdk-tool": []}', "no process"),
        ('{"rocprofiler-sdk-tool": 5}', "no readable record|no process"),
        ('{"rocprofiler-sdk-tool": [{', "cut off before its first complete record"),
        ('{"rocprofiler-sdk-tool": [{}]}', "no process"),
        ('{"rocprofiler-sdk-tool": [[[[', "cut off"),
        ('{"rocprofiler-sdk-tool": ' + "[" * 100_000, "cut off|no readable record"),
        ('{"rocprofiler-sdk-tool": [nonsense]}', "no readable record|cut off"),
    ],
)
def test_documents_without_a_process_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(text)
    assert caught.value.hint


def test_one_file_of_a_folder_may_be_broken(tmp_path: Path) -> None:
    (tmp_path / "1_results.json").write_bytes(lists())
    (tmp_path / "2_results.json").write_text('{"rocprofiler-sdk-tool": [')
    trace = tf.read(tmp_path)
    assert trace.activities.num_rows == 30
    assert notes(trace)["file-not-read"].kind == "dropped"


def test_it_is_known_by_its_content() -> None:
    for text in (
        '{"rocprofiler-sdk-tool":[',
        '\n{\n  "rocprofiler-sdk-tool": [',
        '{"version": 3, "rocprofiler-sdk-tool" : [',
    ):
        assert recognise(source(text.encode() + lists())) is ROCPROF_JSON
    kineto = b'{"traceEvents": [{"name": "rocprofiler-sdk-tool"}], "rocprofiler-sdk-tool": []}'
    assert recognise(source(kineto)) is not ROCPROF_JSON


def test_unused_agents_need_no_care() -> None:
    """Agents whose caches look like further agents are still told apart."""
    one = process(dispatch(START, START + 1))
    for agent in agents():
        agent["caches"] = [{"size": 312, "id": {"handle": GPU}}] * 50
    assert read(document(one), 200).devices.num_rows == 1


def on(host: str, start: int, pid: int) -> dict[str, Any]:
    node = {"machine_id": "feedbeef", "hostname": host}
    metadata = {"node": node, "pid": pid, "init_time": START, "fini_time": START + 100}
    return process(dispatch(start, start + 50), metadata=metadata)


def test_a_gpu_that_processes_share_is_one_though_each_has_a_file(tmp_path: Path) -> None:
    for pid in (1, 2):
        text = json.dumps(document(on("node17", START + 20 * pid, pid)))
        (tmp_path / f"{pid}_results.json").write_text(text)
    trace = tf.read(tmp_path)
    together = read(document(on("node17", START + 20, 1), on("node17", START + 40, 2)))
    for one in (trace, together):
        assert rows(one, "devices", "local_id") == [2]
        assert rows(one, "activities", "device", "process") == [(0, 0), (0, 1)]
    assert "device-shared" in notes(trace)


def test_clocks_of_several_machines_in_one_file_are_said_to_differ() -> None:
    trace = read(document(on("node17", START, 1), on("node18", START, 2)))
    assert rows(trace, "devices", "local_id") == [2, 2]
    assert "clocks-not-aligned" in notes(trace)
    assert trace.source.clock is None
    assert "clocks-not-aligned" not in notes(read(document(on("node17", START, 1))))
