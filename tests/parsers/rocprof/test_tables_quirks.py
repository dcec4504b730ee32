"""What rocprof's CSV is like in the wild: one small file for each quirk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.parsers.rocprof.tablefiles import V1_NEW as V1
from tests.parsers.rocprof.tablefiles import V1_TIMES as TIMES
from tests.parsers.rocprof.tablefiles import (
    V2_60,
    V3_KERNELS,
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
from traceflops.errors import InputError, NotATrace
from traceflops.recording.inventory import missing_from

ODD_NAMES = (
    'elementwise<lambda "(a, b)">(int, float)',
    'f(",")',
    'step {"loss": 1}',
    '"',
    "void at::native::{lambda(float)#1}::operator()(float) const, 4>",
)


# Names (1, 4, 12)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_quotes_and_commas_in_the_name_of_a_kernel(name: str, tmp_path: Path) -> None:
    odd = kernel(100, 150, Kernel_Name=name, Correlation_Id=7)
    trace = read(tmp_path, {"1_kernel_trace.csv": kernels(kernel(10, 20), odd, kernel(200, 210))})
    assert rows(trace, "activities", "name", "start_ns", "dur_ns", "correlation") == [
        ("gemm(float*)", 10, 10, None),
        (name, 100, 50, 7),
        ("gemm(float*)", 200, 10, None),
    ]
    assert rows(trace, "activities", "grid")[1] == [16, 4, 1]
    assert ("rows-repaired" in codes(trace)) == ('"' in name)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_quotes_and_commas_in_the_name_of_a_marker(name: str, tmp_path: Path) -> None:
    odd = call(5, 9, Domain="MARKER_CORE_RANGE_API", Function=name)
    trace = read(tmp_path, {"1_marker_api_trace.csv": calls(odd)})
    assert rows(trace, "marks", "name", "kind", "start_ns", "dur_ns") == [
        (name, "annotation", 5, 4)
    ]


def test_names_stand_as_they_are_written(tmp_path: Path) -> None:
    names = ["_Z4gemmPf.kd", "gemm(float*) [clone .kd]", "gemm(float*) (.kd)", "gemm", " gemm "]
    file = kernels(*(kernel(i, i + 1, Kernel_Name=name) for i, name in enumerate(names)))
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    assert rows(trace, "activities", "name") == names


def test_a_kernel_without_a_name_has_a_placeholder(tmp_path: Path) -> None:
    trace = read(tmp_path, {"1_kernel_trace.csv": kernels(kernel(1, 2, Kernel_Name=""))})
    assert rows(trace, "activities", "name") == ["(unnamed kernel)"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = kernels(kernel(1, 2, Kernel_Name="k@m"), kernel(3, 4, Kernel_Name="k#m")).encode()
    file = file.replace(b"@", b"\xff").replace(b"#", b"\0")
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    assert rows(trace, "activities", "name") == ["k\ufffdm"] * 2
    (note,) = [note for note in trace.notes if note.code == "invalid-utf8"]
    assert note.count == 2
    assert f"byte {file.index(bytes([255])):,}" in note.text


def test_numbers_of_dispatches_that_skip_leave_idle_time_unknown(tmp_path: Path) -> None:
    file = kernels(*(kernel(10 * n, 10 * n + 5, Dispatch_Id=n) for n in (3, 4, 9)))
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    (note,) = [note for note in trace.notes if note.code == "dispatches-missing"]
    assert note.count == 4, "5 to 8"
    first = tf.analyze(trace).verdict.parts[0]
    assert first.code == "verdict.records-incomplete"
    assert (first.values["lost"], first.values["calls"]) == (4, "7 launch calls")


@pytest.mark.parametrize(
    "rows",
    [
        [{"Dispatch_Id": 1}, {"Dispatch_Id": 2**62}],
        [{"Dispatch_Id": 1}, {"Dispatch_Id": "?"}, {"Dispatch_Id": 3}],
        [{"Dispatch_Id": 1}, {"Dispatch_Id": 2, "Start_Timestamp": "?"}, {"Dispatch_Id": 3}],
        [{"Dispatch_Id": 1}, {"Dispatch_Id": 7, "Guid": "0000ddb5-2"}],
    ],
    ids=["impossible", "unreadable", "no time", "two processes"],
)
def test_no_kernel_is_missing_where_numbers_of_dispatches_are_damaged_or_of_two_processes(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    made = (kernel(10 * n, 10 * n + 5) | row for n, row in enumerate(rows, 1))
    file = kernels(*made, release="converted")
    assert "dispatches-missing" not in codes(read(tmp_path, {"1_kernel_trace.csv": file}))


# Form (2, 3, 9, 10, 11, 13, 14, 16)


def test_an_empty_line_behind_the_header_of_rocprofv2(tmp_path: Path) -> None:
    row = {"GPU_ID": 1, "Kernel_Name": "k", "Start_Timestamp": 5, "End_Timestamp": 9}
    file = table(V2_60, [row], quoted=False).replace("\n", "\n\n", 1)
    trace = read(tmp_path, {"results_7.csv": file})
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(5, 4)]
    assert not {"rows-lost", "rows-repaired"} & set(codes(trace))


@pytest.mark.parametrize("empty", ["", "None", "none", "nan"])
def test_cells_without_a_value_are_null_and_not_zero(empty: str, tmp_path: Path) -> None:
    start = 2**53 + 1
    file = kernels(
        kernel(start, start + 3, Queue_Id="@", VGPR_Count="@", Correlation_Id="@"),
        kernel(start + 5, start + 6, Correlation_Id=3, LDS_Block_Size=512),
    )
    trace = read(tmp_path, {"1_kernel_trace.csv": file.replace('"@"', empty)})
    assert rows(trace, "activities", "start_ns", "stream", "registers_per_thread") == [
        (start, None, None),
        (start + 5, 1, 32),
    ]
    assert rows(trace, "activities", "correlation") == [None, 3]
    assert rows(trace, "activities", "shared_memory_bytes") == [0, 512]


@pytest.mark.parametrize("signal", ["0x0", '"0x0"', "None", ""])
def test_addresses_in_v1_may_be_quoted_or_missing(signal: str, tmp_path: Path) -> None:
    file = table(V1 + TIMES, [v1_row(0, 500, 600)], quoted=False)
    file = file.replace('"0x0"', signal).replace('"0x7f00"', signal)
    trace = read(tmp_path, {"results.csv": file})
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(500, 100)]


def test_columns_of_one_name_and_columns_of_joined_tables(tmp_path: Path) -> None:
    columns = V2_60.replace(
        " Kernel_Name", " Kernel_ID Kernel_ID_1 GPU_ID_1 Kernel_Name Kernel_Name"
    )
    row = {"GPU_ID": 1, "Kernel_Name": "k", "Start_Timestamp": 5, "End_Timestamp": 9}
    trace = read(tmp_path, {"results.csv": table(columns, [row])})
    assert rows(trace, "activities", "name", "start_ns") == [("k", 5)]


def clothes(file: str) -> dict[str, bytes]:
    """Return a table as other programs leave it."""
    head, _, body = file.partition("\n")
    fields = [line.split(",") for line in file.splitlines()]
    quoted = "\n".join(",".join(f'"{one.strip(chr(34))}"' for one in line) for line in fields)
    return {
        "carriage returns": file.replace("\n", "\r\n").encode(),
        "byte order mark": b"\xef\xbb\xbf" + file.encode(),
        "every number quoted": quoted.encode(),
        "nothing quoted": file.replace('"', "").encode(),
        "no line end at the end": file.rstrip().encode(),
        "semicolons": ";".join(file.split(",")).encode(),
        "tabs": "\t".join(file.split(",")).encode(),
        "the header twice": f"{head}\n{file}".encode(),
        "two files one after the other": f"{file}{head}\n".encode(),
        "other case": (head.upper() + "\n" + body).encode(),
        "more columns": f'{head},"Mine"\n{body.replace(chr(10), ",7" + chr(10))}'.encode(),
    }


PLAIN = kernels(kernel(10, 30, Kernel_Name="a"), kernel(40, 45, Kernel_Name="b"))


@pytest.mark.parametrize("kind", clothes(PLAIN))
def test_a_table_in_other_clothes_is_the_same(kind: str, tmp_path: Path) -> None:
    expected = read(tmp_path / "plain", {"1_kernel_trace.csv": PLAIN})
    trace = read(tmp_path / "other", {"1_kernel_trace.csv": clothes(PLAIN)[kind]})
    assert trace.activities.num_rows == 2
    assert trace.activities.to_pylist() == expected.activities.to_pylist()
    assert "rows-lost" not in codes(trace)


@pytest.mark.parametrize("domain", ["KERNEL_DISPATCH", "HIP_RUNTIME_API_EXT", "RCCL_API"])
def test_a_table_without_its_header_is_refused(domain: str, tmp_path: Path) -> None:
    rows = PLAIN.partition("\n")[2].replace("KERNEL_DISPATCH", domain)
    write(tmp_path, {"1_kernel_trace.csv": rows})
    with pytest.raises(InputError, match="lacks columns or its header"):
        tf.read(tmp_path / "1_kernel_trace.csv")


def test_times_that_a_spreadsheet_rounded_are_no_times(tmp_path: Path) -> None:
    file = PLAIN.replace(",10,30,", ",3.42331E+14,3.42331E+14,")
    trace = read(tmp_path / "one", {"1_kernel_trace.csv": file})
    assert rows(trace, "activities", "start_ns") == [40]
    assert {"times-rounded", "no-time"} <= set(codes(trace))
    write(tmp_path / "all", {"1_kernel_trace.csv": file.replace(",40,45,", ",3E+14,3E+14,")})
    with pytest.raises(InputError, match="no row has a valid time") as caught:
        tf.read(tmp_path / "all" / "1_kernel_trace.csv")
    assert "spreadsheet" in caught.value.hint


@pytest.mark.parametrize("lost", [1, 2, 3, 20, 40, 80])
def test_a_last_line_that_is_cut(lost: int, tmp_path: Path) -> None:
    boot = 1550151853029637
    file = calls(*(call(boot + i, boot + 1000 + i, i) for i in range(1, 5)))
    trace = read(tmp_path, {"1_hip_api_trace.csv": file[:-lost]})
    whole = lost == 1
    assert trace.calls.num_rows == (4 if whole else 3)
    assert ("text-cut" in codes(trace)) == (not whole)
    if not whole:
        with pytest.raises(InputError, match="damaged"):
            tf.read(tmp_path, strict=True)


def test_times_near_2_to_the_53_stay_exact(tmp_path: Path) -> None:
    times = [2**53 - 1, 2**53 + 1, 2**53 + 3]
    file = kernels(
        *(kernel(time, time + 1) for time in times), kernel(2**53 + 9, "", VGPR_Count="")
    )
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    assert rows(trace, "activities", "start_ns")[:3] == times
    assert rows(trace, "activities", "dur_ns") == [1, 1, 1, 0]


def test_rows_in_any_order_are_in_the_order_of_time(tmp_path: Path) -> None:
    file = kernels(*(kernel(t, t + 1, Dispatch_Id=d) for t, d in ((50, 2), (10, 9), (30, 1))))
    assert rows(read(tmp_path, {"1_kernel_trace.csv": file}), "activities", "start_ns") == [
        10,
        30,
        50,
    ]


def test_overlap_within_a_queue_stays_and_counts_once(tmp_path: Path) -> None:
    trace = read(tmp_path, {"1_kernel_trace.csv": kernels(kernel(10, 30), kernel(25, 40))})
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(10, 20), (25, 15)]
    (device,) = tf.analyze(trace).devices
    assert device.whole.busy_ns == 30


def test_odd_times_are_kept_and_flagged(tmp_path: Path) -> None:
    file = kernels(kernel(10, 10), kernel(20, 15), kernel(30, 0), kernel("", 50), kernel(60, 70))
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(10, 0), (20, 0), (30, 0), (60, 10)]
    counts = {note.code: note.count for note in trace.notes}
    assert counts["negative-duration"] == 1
    assert counts["no-duration"] == 1
    assert counts["no-time"] == 1


def test_a_kernel_of_331_seconds_is_shown_and_flagged(tmp_path: Path) -> None:
    long = 331 * 10**9
    file = kernels(kernel(10, 20), kernel(30, 30 + long), kernel(40 + long, 50 + long))
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    assert max(rows(trace, "activities", "dur_ns")) == long
    (note,) = [note for note in trace.notes if note.code == "very-long"]
    assert note.count == 1


# Devices (5, 6, 7, 20, 46)

MACHINE = agents(agent(0, "CPU"), agent(1, "CPU"), *(agent(node) for node in range(2, 6)))


@pytest.mark.parametrize("text", ["Agent 4", "4", "GPU 2", "agent-4", 4])
def test_all_ways_to_write_an_agent_are_the_same_device(text: object, tmp_path: Path) -> None:
    file = kernels(kernel(10, 20), kernel(30, 40, Agent_Id=text))
    trace = read(tmp_path, {"1_kernel_trace.csv": file, "1_agent_info.csv": MACHINE})
    (device,) = trace.devices.to_pylist()
    assert device["local_id"] == 4
    assert device["product"] == "AMD Instinct MI300X"
    assert device["architecture"] == "gfx942"
    assert (device["sm_count"], device["dies"], device["warp_size"]) == (304, 8, 64)
    assert device["clock_hz"] == 2_100_000_000
    assert (device["compute_major"], device["compute_minor"]) == (9, 4)


def test_agents_that_did_nothing_are_no_devices_of_the_run(tmp_path: Path) -> None:
    trace = read(
        tmp_path, {"1_kernel_trace.csv": kernels(kernel(1, 2)), "1_agent_info.csv": MACHINE}
    )
    assert trace.devices.num_rows == 1


@pytest.mark.parametrize(("text", "node"), [("Agent 1", 8), ("Agent 8", 8), ("8", 8), ("GPU 0", 8)])
def test_absolute_relative_and_typed_numbers_are_one_device(
    text: str, node: int, tmp_path: Path
) -> None:
    """The machine has one processor as node 0 and one GPU as node 8, the second of its list."""
    listed = agents(agent(0, "CPU"), agent(node, Logical_Node_Id=1, Product_Name="the GPU"))
    file = kernels(kernel(1, 2, Agent_Id=text))
    trace = read(tmp_path, {"1_kernel_trace.csv": file, "1_agent_info.csv": listed})
    (device,) = trace.devices.to_pylist()
    assert device["product"] == "the GPU"


def test_an_agent_that_is_not_listed_has_no_facts(tmp_path: Path) -> None:
    listed = agents(agent(0, "CPU"), agent(1))
    trace = read(
        tmp_path, {"1_kernel_trace.csv": kernels(kernel(1, 2)), "1_agent_info.csv": listed}
    )
    (device,) = trace.devices.to_pylist()
    assert (device["local_id"], device["product"]) == (4, None)


@pytest.mark.parametrize("number", [2, 8])
def test_the_number_of_a_gpu_in_v1_counts_processors_too(number: int, tmp_path: Path) -> None:
    file = table(V1 + TIMES, [v1_row(0, 500, 600, **{"gpu-id": number})], quoted=False)
    trace = read(tmp_path, {"results.csv": file})
    assert rows(trace, "devices", "local_id", "product") == [(number, None)]


def test_two_dies_are_two_devices_and_so_are_partitions(tmp_path: Path) -> None:
    die: dict[str, Any] = {"Cu_Count": 104, "Num_Xcc": 1, "Name": "gfx90a"}
    dies = [agent(node, **die) for node in (4, 5)]
    listed = agents(agent(0, "CPU"), *dies, agent(6, Cu_Count=38, Num_Xcc=1))
    file = kernels(*(kernel(n, n + 1, Agent_Id=f"Agent {n}") for n in (4, 5, 6)))
    trace = read(tmp_path, {"1_kernel_trace.csv": file, "1_agent_info.csv": listed})
    assert rows(trace, "devices", "local_id", "sm_count", "dies") == [
        (4, 104, 1),
        (5, 104, 1),
        (6, 38, 1),
    ]


def test_devices_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    file = kernels(*(kernel(n, n + 1, Agent_Id=f"Agent {9 - n}") for n in range(5)))
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    assert rows(trace, "devices", "local_id") == [5, 6, 7, 8, 9]
    assert rows(trace, "activities", "device") == [4, 3, 2, 1, 0]


# Queues, copies, counters, links (8, 15, 21, 26, 27, 41, 42, 43)


def test_hundreds_of_streams_on_few_queues(tmp_path: Path) -> None:
    file = kernels(*(kernel(i, i + 1, Stream_Id=i, Queue_Id=i % 5) for i in range(567)))
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    assert len(set(rows(trace, "activities", "stream"))) == 5


def test_streams_stand_for_queues_where_there_are_none(tmp_path: Path) -> None:
    columns = V3_KERNELS["7.0"].replace("Queue_Id ", "")
    file = table(columns, [kernel(1, 2, Stream_Id=3), kernel(3, 4, Stream_Id=0)])
    assert rows(read(tmp_path, {"1_kernel_trace.csv": file}), "activities", "stream") == [3, 0]


WAYS = {
    "HOST_TO_DEVICE": ("Agent 0", "Agent 4", "HtoD", 4),
    "DEVICE_TO_HOST": ("Agent 4", "Agent 0", "DtoH", 4),
    "DEVICE_TO_DEVICE": ("Agent 4", "Agent 5", "PtoP", 5),
    "device_to_device": ("Agent 4", "Agent 4", "DtoD", 4),
    "SOMEHOW": ("Agent 4", "Agent 0", "DtoH", 4),
}


@pytest.mark.parametrize("way", WAYS)
def test_copies_have_a_way_and_belong_to_their_gpu(way: str, tmp_path: Path) -> None:
    source, target, direction, device = WAYS[way]
    file = copies(copy(5, 9, source, target, way, Correlation_Id=3))
    trace = read(tmp_path, {"1_memory_copy_trace.csv": file, "1_agent_info.csv": MACHINE})
    assert rows(trace, "activities", "kind", "name", "direction", "dur_ns", "bytes", "stream") == [
        ("memcpy", f"MEMORY_COPY_{way}", direction, 4, None, None)
    ]
    assert rows(trace, "devices", "local_id") == [device]


def test_without_a_list_of_agents_the_way_tells_which_end_is_the_gpu(tmp_path: Path) -> None:
    found = {}
    for way in ("HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE"):
        source, target, *_ = WAYS[way]
        trace = read(
            tmp_path / way, {"1_memory_copy_trace.csv": copies(copy(5, 9, source, target, way))}
        )
        found[way] = (*rows(trace, "activities", "direction"), *rows(trace, "devices", "local_id"))
    assert found == {
        "HOST_TO_DEVICE": ("HtoD", 4),
        "DEVICE_TO_HOST": ("DtoH", 4),
        "DEVICE_TO_DEVICE": ("PtoP", 5),
    }


def test_copies_within_the_host_are_no_work_of_a_device(tmp_path: Path) -> None:
    file = copies(
        copy(5, 9, "Agent 0", "Agent 1", "HOST_TO_HOST"),
        copy(15, 19, "Agent 0", "Agent 4", "HOST_TO_DEVICE"),
    )
    trace = read(tmp_path, {"1_memory_copy_trace.csv": file, "1_agent_info.csv": MACHINE})
    assert rows(trace, "activities", "start_ns") == [15]
    assert "host-copies" in codes(trace)


def test_a_copy_by_a_kernel_is_a_kernel_and_counts_once(tmp_path: Path) -> None:
    file = kernels(kernel(10, 20, Kernel_Name="__amd_rocclr_copyBuffer"), kernel(30, 40))
    trace = read(tmp_path, {"1_kernel_trace.csv": file})
    assert rows(trace, "activities", "kind") == ["kernel", "kernel"]
    (device,) = tf.analyze(trace).devices
    assert device.whole.categories["memory/copy"].count == 1
    assert device.whole.busy_ns == 20


WIDE = V2_60 + " SQ_WAVES GRBM_COUNT TCC_HIT[0] TCC_HIT[1]"


def three_ways() -> dict[str, str]:
    """Return the same counters in a row each, in a column each, in a row for each instance."""
    long = [counter(1, "SQ_WAVES", 16), counter(1, "GRBM_COUNT", 900), counter(1, "TCC_HIT", 30)]
    wide = {
        "GPU_ID": 4,
        "Dispatch_ID": 1,
        "Grid_Size": 8000,
        "Workgroup_Size": 128,
        "Kernel_Name": "gemm(float*)",
        "SQ_WAVES": 16,
        "GRBM_COUNT": 900,
        "TCC_HIT[0]": 10,
        "TCC_HIT[1]": 20,
    }
    split = [(one, value) for one, values in INSTANCES.items() for value in values]
    each = [counter(1, name, value) for name, value in split]
    return {"long": counters(*long), "wide": table(WIDE, [wide]), "instances": counters(*each)}


INSTANCES = {"SQ_WAVES": (4, 12), "GRBM_COUNT": (900, 850), "TCC_HIT": (10, 20)}


@pytest.mark.parametrize("form", three_ways())
def test_counters_are_the_same_in_each_form(form: str, tmp_path: Path) -> None:
    trace = read(tmp_path, {"1_counter_collection.csv": three_ways()[form]})
    found = dict(rows(trace, "kernel_counters", "counter", "value"))
    assert found == {"SQ_WAVES": 16.0, "GRBM_COUNT": 900.0, "TCC_HIT": 30.0}
    assert set(rows(trace, "kernel_counters", "name", "dispatch", "threads", "block_threads")) == {
        ("gemm(float*)", 1, 8000, 128)
    }
    assert ("instances-summed" in codes(trace)) == (form == "instances")


def test_a_counter_keeps_its_decimals_and_what_has_none_is_left_out(tmp_path: Path) -> None:
    file = counters(counter(1, "L2CacheHit", 99.123456), counter(2, "L2CacheHit", 1))
    trace = read(tmp_path, {"1_counter_collection.csv": file.replace('"1.000000"', "nan")})
    assert rows(trace, "kernel_counters", "value") == [99.123456]
    assert "no-value" in codes(trace)


def test_counters_alone_have_no_timeline(tmp_path: Path) -> None:
    trace = read(tmp_path, {"1_counter_collection.csv": counters(counter(1, "SQ_WAVES", 4))})
    assert trace.activities.num_rows == trace.devices.num_rows == 0
    (note,) = trace.notes
    assert (note.kind, note.code) == ("missing", "no-timeline")
    assert "no timeline" in note.text


def test_times_of_v1_beside_its_counters_are_used_where_there_are_no_others(tmp_path: Path) -> None:
    counted = table(V1 + " SQ_WAVES" + TIMES, [v1_row(0, 500, 600, SQ_WAVES="16.0000000000")])
    trace = read(tmp_path / "alone", {"results.csv": counted})
    assert rows(trace, "activities", "start_ns", "dur_ns", "correlation") == [(500, 100, 0)]
    assert rows(trace, "kernel_counters", "counter", "value", "correlation") == [
        ("SQ_WAVES", 16.0, 0)
    ]
    assert codes(trace) == ["launch-is-queueing", "counted-while-timed"]
    timed = table(V1 + TIMES, [v1_row(0, 9500, 9530)])
    trace = read(tmp_path / "both", {"counted.csv": counted, "timed.csv": timed})
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(9500, 30)]
    assert rows(trace, "kernel_counters", "value", "correlation") == [(16.0, None)]
    assert codes(trace) == ["launch-is-queueing"]


@pytest.mark.parametrize(
    ("begin", "expected"),
    [("500.5", [(500, 100)]), ("500.3333333333", [(500, 100)]), ("3.42E+14", [])],
)
def test_times_that_are_means_of_passes_are_rounded_but_no_spreadsheets(
    begin: str, expected: list[tuple[int, int]], tmp_path: Path
) -> None:
    row = v1_row(0, 500, 600, SQ_WAVES=16) | {"BeginNs": begin}
    trace = read(tmp_path, {"results.csv": table(V1 + " SQ_WAVES" + TIMES, [row])})
    assert rows(trace, "activities", "start_ns", "dur_ns") == expected
    assert ("no-timeline" in codes(trace)) == (not expected)


@pytest.mark.parametrize("name", ["my_note", "Ms", "Run_Id", "TFLOPS", "Time_ms"])
def test_a_column_of_ones_own_is_no_counter(name: str, tmp_path: Path) -> None:
    file = table(f"{V1}{TIMES} {name}", [v1_row(0, 500, 600, **{name: 7})])
    trace = read(tmp_path, {"results.csv": file})
    assert trace.activities.num_rows == 1
    assert trace.kernel_counters.num_rows == 0
    assert codes(trace) == ["launch-is-queueing"]


@pytest.mark.parametrize(
    "name",
    [
        *("SQ_WAVES", "TCC_EA_RDREQ_sum", "TCC_HIT[3]", "GRBM_GUI_ACTIVE", "GL2C_EA_RDREQ_96B"),
        *("FETCH_SIZE", "WRITE_SIZE", "VALUUtilization", "L2CacheHit", "MfmaUtil", "Wavefronts"),
        *("MemUnitBusy", "LDSBankConflict", "TOTAL_16_OPS", "MfmaFlopsF16", "VALUInsts"),
    ],
)
def test_columns_named_like_counters_are_counters(name: str, tmp_path: Path) -> None:
    file = table(f"{V1} {name}", [v1_row(0, 500, 600, **{name: 7})])
    trace = read(tmp_path, {"results.csv": file})
    assert rows(trace, "kernel_counters", "counter", "value") == [(name.split("[")[0], 7.0)]


def test_a_last_row_cut_in_its_last_time_is_cut(tmp_path: Path) -> None:
    file = table(V1 + TIMES, [v1_row(0, 500, 600), v1_row(1, 7500, 7600)])
    whole = read(tmp_path / "whole", {"results.csv": file.rstrip("\n")})
    assert whole.activities.num_rows == 2
    trace = read(tmp_path / "cut", {"results.csv": file.rstrip("\n")[:-2]})
    assert rows(trace, "activities", "start_ns") == [500]
    assert "text-cut" in codes(trace)


STATS = "Name Calls TotalDurationNs AverageNs Percentage MinNs MaxNs StdDev"


def test_totals_alone_say_what_they_are_of(tmp_path: Path) -> None:
    names = {
        "gemm(float*)": "kernel",
        "hipLaunchKernel": "call",
        "__hipPushCallConfiguration": "call",
        "hsa_signal_wait_scacquire": "call",
        "ncclAllReduce": "call",
        "MEMORY_COPY_HOST_TO_DEVICE": "memcpy",
        "CopyHostToDevice": "memcpy",
    }
    file = table(STATS, [{"Name": n, "Calls": 2, "TotalDurationNs": 9, "MinNs": 4} for n in names])
    trace = read(tmp_path, {"1_kernel_stats.csv": file})
    assert dict(rows(trace, "totals", "name", "kind")) == names
    assert set(rows(trace, "totals", "count", "total_ns", "min_ns", "max_ns")) == {(2, 9, 4, 0)}
    (note,) = trace.notes
    assert note.code == "no-timeline"
    assert "--runtime-trace --rccl-trace --output-format rocpd" in note.text


def test_what_is_no_work_of_a_device_is_no_kernel(tmp_path: Path) -> None:
    kernel_sums = table(STATS, [{"Name": "ncclDevKernel_Generic_1(int)", "Calls": 1}])
    decoding = table(
        STATS, [{"Name": n, "Calls": 2} for n in ("rocDecCreateDecoder", "rocJpegDecode", "odd")]
    )
    collectives = table(STATS, [{"Name": n, "Calls": 2} for n in ("ncclSend", "mscclRunAlgo")])
    memory = table(STATS, [{"Name": n, "Calls": 2} for n in ("MEMORY_ALLOCATION_FREE", "odd one")])
    names = ("HIP_RUNTIME_API", "HSA_CORE_API_EXT", "ROCDECODE_API", "KERNEL_DISPATCH", "NEW_ONE")
    domains = table(STATS, [{"Name": n, "Calls": 2, "TotalDurationNs": 6_000} for n in names])
    files = {
        "1_kernel_stats.csv": kernel_sums,
        "1_rocdecode_api_stats.csv": decoding,
        "1_rccl_api_stats.csv": collectives,
        "1_memory_allocation_stats.csv": memory,
    }
    trace = read(tmp_path / "names", files)
    assert dict(rows(trace, "totals", "name", "kind")) == {
        "ncclDevKernel_Generic_1(int)": "kernel",
        "rocDecCreateDecoder": "call",
        "rocJpegDecode": "call",
        "odd": "call",
        "ncclSend": "call",
        "mscclRunAlgo": "call",
    }
    trace = read(tmp_path / "domains", {"table.csv": domains})
    assert dict(rows(trace, "totals", "name", "kind")) == dict.fromkeys(names[:-1], "domain")
    analysis = tf.analyze(trace)
    assert "KERNEL_DISPATCH takes 6.00 µs in 2 records" in analysis.verdict.sentence
    assert analysis.untimed is not None
    assert (analysis.untimed.device_ns, analysis.untimed.categories.num_rows) == (0, 0)


def test_totals_of_rocpd_summary(tmp_path: Path) -> None:
    head = "Name,Calls,DURATION (nsec),AVERAGE (nsec),PERCENT (INC),MIN (nsec),MAX (nsec),STD_DEV\n"
    files = {
        "kernels_summary.csv": head + '"f(int, int)",3,900,300.0,100.0,250,350,1.5\n',
        "hip_summary.csv": head + "hipMalloc,2,80,40.0,100.0,30,50,1.5\n",
        "memory_allocations_summary.csv": head + "ALLOC,2,80,40.0,100.0,30,50,1.5\n",
        "domain_summary.csv": head + "KERNELS,3,900,300.0,91.8,250,350,1.5\n",
    }
    trace = read(tmp_path, files)
    columns = ("kind", "name", "count", "total_ns", "min_ns", "max_ns")
    assert sorted(rows(trace, "totals", *columns)) == [
        ("call", "hipMalloc", 2, 80, 30, 50),
        ("kernel", "f(int, int)", 3, 900, 250, 350),
    ]


def test_totals_of_v1_lack_the_extremes(tmp_path: Path) -> None:
    file = 'Name,Calls,TotalDurationNs,AverageNs,Percentage\n"f(int, int)",3,900,300,100.0\n'
    trace = read(tmp_path, {"results.stats.csv": file})
    assert rows(trace, "totals", "name", "count", "total_ns", "min_ns") == [
        ("f(int, int)", 3, 900, None)
    ]


def test_barrier_packets_are_no_work_in_totals(tmp_path: Path) -> None:
    file = (
        "Name,Calls,TotalDurationNs,AverageNs,Percentage\n"
        '"<barrier packet>",70,9000,128,90.0\n"f(int, int)",3,900,300,9.0\n'
    )
    trace = read(tmp_path, {"results.stats.csv": file})
    assert rows(trace, "totals", "name", "total_ns") == [("f(int, int)", 900)]
    assert {note.code: note.count for note in trace.notes}["barrier-packets"] == 70


def test_totals_of_what_has_a_timeline_are_left_out(tmp_path: Path) -> None:
    stats = table(STATS, [{"Name": "gemm(float*)", "Calls": 2, "TotalDurationNs": 9}])
    apis = table(STATS, [{"Name": "hipFree", "Calls": 2, "TotalDurationNs": 9}])
    domains = table(
        STATS,
        [{"Name": n, "Calls": 1, "TotalDurationNs": 1} for n in ("HIP_API", "KERNEL_DISPATCH")],
    )
    trace = read(
        tmp_path,
        {
            "1_kernel_trace.csv": kernels(kernel(1, 2)),
            "1_kernel_stats.csv": stats,
            "1_hip_api_stats.csv": apis,
            "1_domain_stats.csv": domains,
        },
    )
    assert rows(trace, "totals", "kind", "name") == [("call", "hipFree")]


def test_kernels_without_calls_are_not_called_unlinked(tmp_path: Path) -> None:
    trace = read(tmp_path, {"1_kernel_trace.csv": kernels(kernel(1, 2, Correlation_Id=5))})
    assert "no-calls" in codes(trace)
    assert "calls-missing" not in codes(trace)
    assert tf.analyze(trace).devices[0].whole.unlinked is None


def test_kernels_are_linked_to_calls_of_their_process(tmp_path: Path) -> None:
    files = {}
    for pid in (77, 88):
        files[f"{pid}_kernel_trace.csv"] = kernels(kernel(10 * pid, 10 * pid + 5, Correlation_Id=1))
        files[f"{pid}_hip_api_trace.csv"] = calls(call(pid, pid + 1, 1, Process_Id=pid))
    trace = read(tmp_path, files)
    work = dict(rows(trace, "activities", "process", "start_ns"))
    launched = dict(rows(trace, "calls", "process", "start_ns"))
    assert work == {0: 770, 1: 880}
    assert launched == {0: 77, 1: 88}
    assert rows(trace, "processes", "pid") == [77, 88]
    assert "calls-missing" not in codes(trace)


def test_the_share_of_work_with_a_call_is_said(tmp_path: Path) -> None:
    work = kernels(*(kernel(10 * i, 10 * i + 5, Correlation_Id=i) for i in range(1, 11)))
    trace = read(
        tmp_path, {"77_kernel_trace.csv": work, "77_hip_api_trace.csv": calls(call(1, 2, 4))}
    )
    (note,) = [note for note in trace.notes if note.code == "calls-missing"]
    assert note.count == 9
    assert note.text.startswith("1 of 10 GPU operations (10.0 %) has a launch call in the file.")


def test_calls_of_an_unknown_process_link_to_nothing_and_that_is_said(tmp_path: Path) -> None:
    work = [
        {
            "Dispatch_ID": n,
            "GPU_ID": gpu,
            "PID": pid,
            "Kernel_Name": "f",
            "Start_Timestamp": 100 * n,
            "End_Timestamp": 100 * n + 50,
            "Correlation_ID": n,
        }
        for n, (pid, gpu) in enumerate([(10, 4), (11, 5)], 1)
    ]
    call_rows = "Domain,Function,Start_Timestamp,End_Timestamp,Correlation_ID\nHIP,hipX,10,20,1\n"
    trace = read(tmp_path, {"results_a.csv": table(V2_60, work), "hip_api_trace_a.csv": call_rows})
    (note,) = [note for note in trace.notes if "call" in note.code]
    assert (note.code, note.count) == ("calls-of-unknown-process", 1)
    analysis = tf.analyze(trace)
    assert [device.whole.unlinked for device in analysis.devices] == [None, None]
    assert not {"unlinked", "no-calls"} & {note.code for note in analysis.notes}


def test_a_kernel_has_one_row_whatever_its_ending(tmp_path: Path) -> None:
    names = ("f(int)", "f(int).kd", "f(int) [clone .kd]", "_Z1fi.kd", "_Z1fi", "f")
    work = [kernel(10 * n, 10 * n + 5, Kernel_Name=name) for n, name in enumerate(names)]
    trace = read(tmp_path, {"1_kernel_trace.csv": kernels(*work)})
    assert rows(trace, "activities", "name") == list(names)
    found = tf.analyze(trace).kernels
    counts = dict(zip(found["name"].to_pylist(), found["count"].to_pylist(), strict=True))
    assert counts == {"f(int)": 3, "_Z1fi": 2, "f": 1}


def test_many_kernels_of_one_launch_of_a_graph(tmp_path: Path) -> None:
    work = kernels(*(kernel(10 * i, 10 * i + 5, Correlation_Id=3) for i in range(1, 9)))
    launch = calls(call(1, 2, 3, Function="hipGraphLaunch"))
    trace = read(tmp_path, {"77_kernel_trace.csv": work, "77_hip_api_trace.csv": launch})
    assert "calls-missing" not in codes(trace)
    assert tf.analyze(trace).devices[0].whole.unlinked == {"kernel": 0}


def test_apis_are_told_apart_by_their_domain(tmp_path: Path) -> None:
    domains = {
        "HIP_RUNTIME_API": "hip",
        "HIP_COMPILER_API_EXT": "hip",
        "HSA_CORE_API": "hsa",
        "RCCL_API": "rccl",
        "ROCDECODE_API": "rocdecode",
    }
    file = calls(*(call(i, i + 1, Domain=domain) for i, domain in enumerate(domains)))
    trace = read(tmp_path, {"1_api_trace.csv": file})
    assert rows(trace, "calls", "api") == list(domains.values())
    assert trace.source.event_counts == dict.fromkeys(sorted(domains), 1)


# Launch times of v1


def test_what_v1_lacks_is_not_said_to_be_more_than_it_is(tmp_path: Path) -> None:
    """Idle time has causes where the moments of queueing are known."""
    timed = table(V1 + TIMES, [v1_row(0, 5000, 6000), v1_row(1, 9000, 9500)])
    trace = read(tmp_path / "queued", {"results.csv": timed})
    (found,) = [one for one in missing_from(trace) if one.code.startswith("calls")]
    assert found.code == "calls-but-moments"
    (device,) = tf.analyze(trace).devices
    assert device.whole.account.idle_causes.unknown_ns == 0
    without = table(V1 + TIMES, [v1_row(0, 5000, 6000, DispatchNs="None")])
    trace = read(tmp_path / "not", {"results.csv": without})
    (found,) = [one for one in missing_from(trace) if one.code.startswith("calls")]
    assert found.code == "calls"


def test_v1_has_the_moment_at_which_a_kernel_was_queued(tmp_path: Path) -> None:
    file = table(V1 + TIMES, [v1_row(7, 500, 600), v1_row(8, 700, 750, DispatchNs="None")])
    trace = read(tmp_path, {"results.csv": file})
    assert rows(trace, "calls", "name", "start_ns", "dur_ns", "correlation", "api") == [
        ("dispatch", 400, 0, 7, "hsa")
    ]
    assert rows(trace, "activities", "correlation") == [7, 8]
    assert codes(trace) == ["launch-is-queueing"]


# What is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "dispatch[0], gpu_id(1), queue_id(1), queue_index(0), pid(7)\n",
            "rocprofv2 text listing",
        ),
        (
            "hello\nRecord(1), Domain(HIP_API_DOMAIN), Function(hipMalloc)\n",
            "rocprofv2 text listing",
        ),
        ("Record [2], Domain(HSA_API_DOMAIN)\n", "rocprofv2 text listing"),
        ('"Kind","Agent_Id","Queue_Id"\n"KERNEL_DISPATCH",1,1\n', "rocprof table"),
        (table(V1, [v1_row(0, 1, 2)]), "without times or counters"),
        (kernels(), "no rows"),
        (kernels() + "a,b\n", "no readable row"),
        (kernels(kernel(-5, -3)), "no row has a valid time"),
        (kernels(kernel("None", "None")).replace("None", ""), "no row has a valid time"),
        (agents(agent(0)), "only a list of the machine's GPUs"),
    ],
)
def test_what_has_nothing_to_show_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        tf.read(path)
    assert caught.value.hint


def test_a_list_of_agents_is_no_damaged_trace(tmp_path: Path) -> None:
    path = tmp_path / "agent_info.csv"
    path.write_text(MACHINE)
    with pytest.raises(NotATrace):
        tf.read(path)


# The window (22) and what is not to be seen (24)


def test_the_window_is_that_of_the_work(tmp_path: Path) -> None:
    file = calls(call(1, 2, 9, Function="hipInit"), call(90_000, 90_010, 1))
    work = kernels(kernel(90_100, 90_200, Correlation_Id=1))
    trace = read(tmp_path, {"77_hip_api_trace.csv": file, "77_kernel_trace.csv": work})
    assert tf.analyze(trace).devices[0].whole.span_ns == 100


def test_nothing_of_the_machine_is_in_a_trace_of_one_folder(tmp_path: Path) -> None:
    trace = read(tmp_path / "node-17" / "run", {"77_kernel_trace.csv": kernels(kernel(1, 2))})
    assert rows(trace, "processes", "host") == [None]
    assert trace.source.identities == ()
    assert "node-17" not in repr(trace.source) + repr(trace.notes)


@pytest.mark.parametrize(
    ("scratch", "registers", "said"),
    [
        (16_416, 16, "Each thread has 16.4 kB of scratch memory (arrays on its stack"),
        (64, 256, "Each thread has 256 registers, the most it can have, and 64 B of scratch"),
        (64, 248, "What limits it is unknown"),
        (0, 256, "What limits it is unknown"),
    ],
)
def test_much_scratch_memory_of_the_main_kernel_or_spilled_registers_are_said(
    tmp_path: Path, scratch: int, registers: int, said: str
) -> None:
    """Of two kernels in turn the longer one keeps arrays on its stack, or spills registers."""
    ms = 1_000_000
    works = [
        v1_row(n, (2 * n + 1) * ms, (2 * n + 2) * ms + n % 2 * ms // 2, KernelName=name, **has)
        for n in range(10)
        for name, size in [[("loop_l71.kd", 0), ("loop_l92.kd", scratch)][n % 2]]
        for has in [{"scr": size, "arch_vgpr": registers}]
    ]
    trace = read(tmp_path, {"results.csv": table(f"{V1}{TIMES}", works)})
    expected = {"loop_l71.kd": 0, "loop_l92.kd": scratch}
    assert dict(rows(trace, "activities", "name", "scratch_bytes")) == expected
    assert tf.analyze(trace).findings[0].remedy.startswith(said)
