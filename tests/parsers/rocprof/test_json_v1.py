"""rocprof's (v1) JSON: both layouts of arguments, the arrows, the machine, the broken ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.conftest import every, shared_file
from tests.parsers.rocprof.jsonfile import notes, rows, source
from tests.parsers.rocprof.tablefiles import V1_NEW, V1_TIMES, v1_row
from tests.parsers.rocprof.tablefiles import table as csv_table
from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.parsers.recognise import recognise
from traceflops.parsers.rocprof.formats import ROCPROF_V1_JSON
from traceflops.parsers.rocprof.v1_read import read_v1_json
from traceflops.parsers.shared.formats import Reading

FOLDER = "traces/rocprof/v1_r9700_llamacpp"
AT = 769_537_350_099_688
GPU = 2


def event(name: str, section: int, lane: int, args: dict[str, Any]) -> str:
    """Return an event as rocprof writes it: every value text, the name as it is."""
    known = isinstance(args["BeginNs"], int)
    begin, took = (args["BeginNs"], args["EndNs"] - args["BeginNs"]) if known else (AT, 9)
    inner = ",\n    ".join(f'"{key}":"{value}"' for key, value in args.items())
    return (
        f',{{"ph":"X","name":"{name}","pid":{section},"tid":{lane},"ts":"{begin // 1000}",'
        f'"dur":"{took // 1000 or 1}",\n  "args":{{\n    {inner}\n  }}\n}}\n'
    )


def kernel(start: int, end: int, name: str = "k(int) [clone .kd]", **more: Any) -> str:
    """Return a row of results.csv; `more` has _ for - in its words."""
    args = {
        "KernelName": name,
        "gpu-id": GPU,
        "queue-id": 1,
        "queue-index": 0,
        "pid": 77,
        "tid": 78,
        "grd": 4096,
        "wgr": 256,
        "lds": 512,
        "scr": 0,
        "arch_vgpr": 16,
        "accum_vgpr": 0,
        "sgpr": 128,
        "wave_size": 32,
        "sig": "0x0",
        "obj": "0x709f0b65d740",
        "DispatchNs": start - 500,
        "BeginNs": start,
        "EndNs": end,
        "CompleteNs": end + 900,
        "DurationNs": end - start,
    } | {key.replace("_id", "-id"): value for key, value in more.items()}
    return event(name, 6 + GPU, 78, args)


def work(
    start: int, end: int, name: str, section: int = 6 + GPU, stream: int = 1, **more: Any
) -> str:
    args = {
        "BeginNs": start,
        "EndNs": end,
        "dev-id": GPU,
        "queue-id": 3,
        "Name": name,
        "pid": 77,
        "tid": 78,
        "stream-id": stream,
        "Data": "",
        "DurationNs": end - start,
    } | {key.replace("_id", "-id"): value for key, value in more.items()}
    return event(name, section, stream, {k: v for k, v in args.items() if v is not None})


def call(start: int, end: int, name: str, section: int = 2, **more: Any) -> str:
    args = {"BeginNs": start, "EndNs": end, "pid": 77, "tid": 78, "Name": name, "args": "( )"}
    return event(name, section, 78, args | more)


def arrow(number: int, begin: int, end: int, to: tuple[int, int], section: int = 2) -> str:
    """Return an arrow between two times in microseconds, to a section and a lane."""
    return (
        f',{{"ts":{begin},"ph":"s","cat":"DataFlow","id":{number},"pid":{section},"tid":78,'
        f'"name":"dep"}}\n,{{"ts":{end},"ph":"t","cat":"DataFlow","id":{number},"pid":{to[0]},'
        f'"tid":{to[1]},"name":"dep"}}\n'
    )


ROCMINFO = {
    "CMD": "rocminfo",
    "Agent1.Name": "AMDEPYC7763",
    "Agent1.MarketingName": "AMDEPYC7763",
    "Agent1.Node": "0",
    "Agent1.DeviceType": "CPU",
    "Agent1.ComputeUnit": "128",
    "Agent1.MaxClockFreq.(MHz)": "3500",
    "Agent2.Name": "AMDEPYC7763",
    "Agent2.Node": "1",
    "Agent2.DeviceType": "CPU",
    "Agent3.Name": "gfx90a",
    "Agent3.MarketingName": "AMDInstinctMI250X",
    "Agent3.Node": "2",
    "Agent3.DeviceType": "GPU",
    "Agent3.ComputeUnit": "110",
    "Agent3.MaxClockFreq.(MHz)": "1700",
    "Agent3.MemoryProperties.WavefrontSize": "64(0x40)",
    "Agent3.MemoryProperties.PoolInfo.Pool1.Segment": "GLOBAL",
    "Agent3.MemoryProperties.PoolInfo.Pool1.Size": "67092480(0x3ffc000)KB",
    "Agent3.MemoryProperties.PoolInfo.Pool2.Segment": "GROUP",
    "Agent3.MemoryProperties.PoolInfo.Pool2.Size": "64(0x40)KB",
}


def text(*events: str, machine: dict[str, str] | None = ROCMINFO) -> bytes:
    label = ',{"args":{"name":"COPY"},"ph":"M","pid":1,"name":"process_name","sort_index":0}\n'
    said = ",\n".join(f'    "{key}": "{value}"' for key, value in (machine or {}).items())
    end = f'],\n"otherData": {{\n{said}\n  }}\n}}'
    return ('{ "traceEvents":[{}\n' + label + "".join(events) + end).encode()


def read(*events: str, machine: dict[str, str] | None = ROCMINFO) -> tf.Trace:
    return read_text(text(*events, machine=machine))


def read_text(data: bytes, block_bytes: int = 1 << 22) -> tf.Trace:
    return read_v1_json(source(data, "results.json"), WorkerPool(), block_bytes)


# The public file


@pytest.fixture(scope="module")
def r9700() -> tf.Trace:
    return tf.read(shared_file(f"{FOLDER}/results.json"))


def test_every_figure_of_the_public_file(r9700: tf.Trace) -> None:
    expected = json.loads(shared_file("traces/expected.json").read_text())["traces"]
    whole = expected["rocprof/v1_r9700_llamacpp/results.json"]
    ((name, found),) = whole["devices"].items()
    (device,) = tf.analyze(r9700).devices
    seen = device.whole
    assert r9700.devices["local_id"].to_pylist() == [int(name)]
    assert {kind: sums.count for kind, sums in seen.kinds.items()} == found["activities"]
    assert (seen.start_ns, seen.span_ns) == (found["first_start_ns"], found["span_ns"])
    assert (seen.busy_ns, seen.sum_ns) == (found["busy_ns"], found["sum_of_durations_ns"])
    assert (seen.streams, seen.zero_length) == (found["streams"], found["zero_duration"])
    assert seen.same_stream_overlaps == found["same_stream_overlaps"]["n"]
    assert seen.communication.count == found["comm"]["n"]
    by_name: dict[str, tuple[int, int]] = {}
    for kernel_name, dur_ns in rows(r9700, "activities", "name", "dur_ns"):
        count, sum_ns = by_name.get(kernel_name, (0, 0))
        by_name[kernel_name] = (count + 1, sum_ns + dur_ns)
    assert len(by_name) == found["distinct_kernel_names"]
    for one in found["top_kernels"]:
        assert by_name[one["name"]] == (one["n"], one["sum_ns"])


def test_it_says_the_same_as_the_csv_of_the_run(r9700: tf.Trace) -> None:
    """Quirk 30."""
    csv = tf.read(shared_file(f"{FOLDER}/results.csv"))
    for table in ("activities", "calls"):
        wanted, found = csv.table(table).to_pydict(), r9700.table(table).to_pydict()
        assert found == wanted
    assert r9700.processes["pid"].to_pylist() == csv.processes["pid"].to_pylist()


def test_the_machine_of_the_public_file(r9700: tf.Trace) -> None:
    """The gpu-id counts the CPU: number 2 is the second of four GPUs."""
    (device,) = r9700.devices.to_pylist()
    assert device["product"] == "AMD Radeon AI PRO R9700"
    assert (device["architecture"], device["warp_size"]) == ("gfx1201", 32)
    assert (device["sm_count"], device["clock_hz"]) == (64, 2_350_000_000)
    assert device["memory_bytes"] == 31_309_824 * 1024
    assert notes(r9700).keys() == {"launch-is-queueing"}


# Layouts


def test_a_row_of_results_csv() -> None:
    """Quirk 29: the times are those of the arguments, not the whole microseconds beside them."""
    trace = read(kernel(AT, AT + 7_601), kernel(AT + 9_000, AT + 9_999, "other.kd", queue_id=0))
    wanted = [
        ("k(int) [clone .kd]", AT, 7_601, 1, 0, 16, 512),
        ("other.kd", AT + 9_000, 999, 0, 1, 16, 512),
    ]
    columns = ("name", "start_ns", "dur_ns", "stream", "correlation")
    more = ("registers_per_thread", "shared_memory_bytes")
    assert rows(trace, "activities", *columns, *more) == wanted
    assert rows(trace, "activities", "grid") == [None, None]
    assert rows(trace, "calls", "name", "start_ns", "correlation", "thread", "api") == [
        ("dispatch", AT - 500, 0, 78, "hsa"),
        ("dispatch", AT + 8_500, 1, 78, "hsa"),
    ]
    assert trace.processes["pid"].to_pylist() == [77]
    assert trace.source.facts == {"generation": "v1", "recorded": "kernel"}
    assert trace.source.origin_unix_ns is None


def test_operations_copies_fills_and_calls() -> None:
    """Quirk 29: the layout of runs that traced calls."""
    trace = read(
        work(AT, AT + 10, "CopyHostToDevice", 1, stream=0),
        work(AT + 20, AT + 30, "FillBuffer", 1),
        call(AT - 90, AT - 80, "hipMemcpyAsync"),
        call(AT - 70, AT - 60, "hsa_signal_create", 3),
        work(AT + 40, AT + 50, "gemm.kd"),
        work(AT + 60, AT + 70, "<barrier packet>"),
        event(
            "step 3",
            0,
            78,
            {"BeginNs": AT, "EndNs": AT + 500, "pid": 77, "tid": 78, "Name": "step 3"},
        ),
        event(
            "here", 0, 78, {"BeginNs": AT, "EndNs": AT + 1, "pid": 77, "tid": 78, "Name": "here"}
        ),
    )
    assert rows(trace, "activities", "kind", "name", "direction", "stream", "dur_ns") == [
        ("memcpy", "CopyHostToDevice", "HtoD", None, 10),
        ("memset", "FillBuffer", None, 3, 10),
        ("kernel", "gemm.kd", None, 3, 10),
    ]
    assert rows(trace, "calls", "api", "name") == [
        ("hip", "hipMemcpyAsync"),
        ("hsa", "hsa_signal_create"),
    ]
    assert sorted(rows(trace, "marks", "kind", "name", "dur_ns")) == [
        ("annotation", "step 3", 500),
        ("instant", "here", 0),
    ]
    assert rows(trace, "devices", "local_id") == [GPU]
    assert trace.source.event_counts["barrier"] == 1


def test_kernels_that_stand_in_both_layouts_count_once() -> None:
    trace = read(
        kernel(AT, AT + 10, Wavefronts="64.0000000000"), work(AT, AT + 10, "k(int) [clone .kd]")
    )
    assert trace.activities.num_rows == 1
    assert rows(trace, "kernel_counters", "counter", "value") == [("Wavefronts", 64.0)]


def test_empty_doubles_of_kernels_are_no_launches() -> None:
    """The arrow leads to the kernel; an empty kernel that stands alone is one."""
    trace = read(
        call(AT, AT + 4_000, "hipLaunchKernel"),
        work(AT + 9_000, AT + 9_000, "k"),
        work(AT + 9_000, AT + 12_000, "k"),
        work(AT + 20_000, AT + 20_000, "k"),
        arrow(1, AT // 1000 + 2, AT // 1000 + 9, (6 + GPU, 1)),
    )
    launch = dict(rows(trace, "calls", "name", "correlation"))["hipLaunchKernel"]
    work_ = rows(trace, "activities", "start_ns", "dur_ns", "correlation")
    assert work_ == [(AT + 9_000, 3_000, launch), (AT + 20_000, 0, None)]
    assert notes(trace)["empty-doubles"].count == 1


def test_copies_of_hsa_do_not_name_a_device() -> None:
    copy = work(AT, AT + 10, "async-copy", 1, dev_id=None, queue_id=None)
    trace = read(kernel(AT + 20, AT + 30), copy)
    assert rows(trace, "activities", "kind", "device", "direction") == [
        ("memcpy", 0, None),
        ("kernel", 0, None),
    ]
    assert notes(trace)["device-unknown"].count == 1


def test_counters_beside_the_kernels() -> None:
    named = {"SQ_WAVES": "16.0000000000", "GRBM_COUNT": "9.5", "TCC_HIT[0]": "1", "TCC_HIT[1]": "2"}
    trace = read(kernel(AT, AT + 10, **named), kernel(AT + 20, AT + 30, SQ_WAVES="None"))
    assert sorted(rows(trace, "kernel_counters", "counter", "value", "dispatch", "threads")) == [
        ("GRBM_COUNT", 9.5, 0, 4096),
        ("SQ_WAVES", 16.0, 0, 4096),
        ("TCC_HIT", 3.0, 0, 4096),
    ]


def test_a_counted_run_says_the_same_as_json_and_as_csv_and_counts_once(tmp_path: Path) -> None:
    times = [(AT, AT + 10_000), (AT + 20_000, AT + 50_000)]
    events = [kernel(*one, SQ_WAVES=n) for n, one in enumerate(times, 1)]
    begins = [
        v1_row(n - 1, *one, KernelName="k(int) [clone .kd]", pid=77, SQ_WAVES=n, grd=4096, wgr=256)
        | {"DispatchNs": one[0] - 500}
        for n, one in enumerate(times, 1)
    ]
    files = {
        "results.json": text(*events),
        "results.csv": csv_table(f"{V1_NEW} SQ_WAVES{V1_TIMES}", begins).encode(),
    }
    found = []
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        trace = tf.read(tmp_path / name)
        work = rows(trace, "activities", "name", "start_ns", "dur_ns", "correlation")
        values = rows(trace, "kernel_counters", "counter", "value", "dispatch", "correlation")
        found.append((work, values, notes(trace).keys()))
    assert found[0] == found[1]
    assert found[0][0] == [
        ("k(int) [clone .kd]", AT, 10_000, 0),
        ("k(int) [clone .kd]", AT + 20_000, 30_000, 1),
    ]
    assert found[0][2] == {"launch-is-queueing", "counted-while-timed"}
    both = tf.read(tmp_path)
    assert both.activities.num_rows == both.kernel_counters.num_rows == 2
    assert "same-run" in notes(both)


def test_several_processes() -> None:
    trace = read(
        kernel(AT, AT + 1), kernel(AT + 2, AT + 3, pid=99), kernel(AT + 4, AT + 5, pid="None")
    )
    assert set(rows(trace, "processes", "pid")) == {77, 99, None}


# Links


def test_arrows_lead_from_calls_to_work() -> None:
    asked = "( dst(0x1) src(0x2) sizeBytes(8192) kind(1) )"
    calls = [
        call(AT + 10_000, AT + 14_900, "hipLaunchKernel"),
        call(AT + 20_000, AT + 29_000, "hipMemcpyAsync", args=asked),
        call(AT + 30_000, AT + 30_100, "hipGetDevice"),
    ]
    middle = [AT // 1000 + 10 + 2, AT // 1000 + 20 + 4]
    begins = [(AT + 50_000) // 1000, (AT + 60_000) // 1000]
    trace = read(
        *calls,
        work(AT + 60_000, AT + 70_000, "CopyHostToDevice", 1, stream=0),
        work(AT + 50_000, AT + 55_000, "gemm.kd"),
        work(AT + 80_000, AT + 81_000, "unasked.kd"),
        arrow(0, middle[0], begins[0], (6 + GPU, 1)),
        arrow(1, middle[1], begins[1], (1, 0)),
    )
    by_id = dict(rows(trace, "calls", "correlation", "name"))
    found = rows(trace, "activities", "name", "correlation", "bytes")
    assert [(name, by_id.get(one), size) for name, one, size in found] == [
        ("gemm.kd", "hipLaunchKernel", None),
        ("CopyHostToDevice", "hipMemcpyAsync", 8192),
        ("unasked.kd", None, None),
    ]
    assert "loose-arrows" not in notes(trace)


def test_an_arrow_begins_with_the_work_that_began_before_the_middle_of_its_call() -> None:
    start = AT // 1000 * 1000
    trace = read(
        call(start, start + 90_000, "hipMemcpy"),
        call(start + 95_000, start + 96_000, "hipMemcpy"),
        work(start + 5_000, start + 80_000, "CopyHostToDevice", 1, stream=0),
        arrow(4, start // 1000 + 5, start // 1000 + 5, (1, 0)),
    )
    assert rows(trace, "activities", "correlation") == rows(trace, "calls", "correlation")[:1]


def test_work_that_began_before_its_call_is_not_of_the_call_that_ran_then() -> None:
    """Both copies are drawn from where they begin or from the middle of their call: 24 and 45."""
    start = AT // 1000 * 1000
    us = start // 1000
    trace = read(
        call(start, start + 48_000, "hipMemcpy"),
        call(start + 50_000, start + 90_000, "hipMemcpy"),
        call(start + 91_000, start + 99_000, "hipMemcpy"),
        work(start + 30_000, start + 40_000, "CopyHostToDevice", 1, stream=0),
        work(start + 45_000, start + 80_000, "CopyHostToDevice", 1, stream=0),
        arrow(0, us + 24, us + 30, (1, 0)),
        arrow(1, us + 45, us + 45, (1, 0)),
    )
    assert rows(trace, "activities", "correlation") == rows(trace, "calls", "correlation")[:2]


def test_a_call_yet_to_begin_has_at_most_one_arrow() -> None:
    start = AT // 1000 * 1000
    us = start // 1000
    trace = read(
        call(start + 50_000, start + 90_000, "hipMemcpy"),
        work(start + 10_000, start + 20_000, "CopyHostToDevice", 1, stream=0),
        work(start + 30_000, start + 40_000, "CopyHostToDevice", 1, stream=0),
        arrow(0, us + 10, us + 10, (1, 0)),
        arrow(1, us + 30, us + 30, (1, 0)),
    )
    assert rows(trace, "activities", "correlation") == [None, None]
    assert notes(trace)["loose-arrows"].count == 2


def test_work_that_begins_in_one_microsecond_is_told_apart_by_its_order() -> None:
    start = AT // 1000 * 1000
    trace = read(
        *(
            call(start - 9_000 + 2_000 * n, start - 8_000 + 2_000 * n, "hipLaunchKernel")
            for n in range(3)
        ),
        *(work(start + 300 * n, start + 300 * n + 200, f"k{n}.kd") for n in range(3)),
        *(arrow(n, start // 1000 - 9 + 2 * n, start // 1000, (6 + GPU, 1)) for n in range(3)),
    )
    assert rows(trace, "activities", "correlation") == rows(trace, "calls", "correlation")


def test_arrows_that_could_lead_to_either_lead_to_nothing() -> None:
    start = AT // 1000 * 1000
    trace = read(
        call(start - 9_000, start - 8_000, "hipLaunchKernel"),
        *(work(start + 300 * n, start + 300 * n + 200, f"k{n}.kd") for n in range(2)),
        arrow(0, start // 1000 - 9, start // 1000, (6 + GPU, 1)),
    )
    assert rows(trace, "activities", "correlation") == [None, None]
    assert notes(trace)["loose-arrows"].count == 1


def test_arrows_from_calls_that_are_missing_are_loose() -> None:
    us = AT // 1000
    trace = read(
        work(us * 1000, us * 1000 + 500, "k"),
        arrow(0, us - 9, us, (6 + GPU, 1)),
    )
    assert notes(trace)["loose-arrows"].count == 1
    assert rows(trace, "activities", "correlation") == [None]


def test_arrows_to_kernels_that_know_their_dispatch_are_not_loose() -> None:
    start = AT // 1000 * 1000
    us = start // 1000
    trace = read(
        kernel(start, start + 5_000),
        call(start - 9_000, start - 9_000, "hsa_dispatch", section=3),
        arrow(0, us - 9, us, (6 + GPU, 78), section=3),
    )
    assert "loose-arrows" not in notes(trace)


# The machine


def test_dies_are_devices() -> None:
    """Quirk 46: on gfx90a an agent is one die, never doubled. Quirk 7: CPUs count."""
    (device,) = read(kernel(AT, AT + 1)).devices.to_pylist()
    assert (device["local_id"], device["sm_count"]) == (2, 110)
    assert (device["product"], device["architecture"]) == ("AMD Instinct MI250X", "gfx90a")
    assert (device["compute_major"], device["compute_minor"]) == (9, 0)
    assert device["clock_hz"] == 1_700_000_000
    assert device["memory_bytes"] == 67_092_480 * 1024
    assert device["dies"] is None


def test_a_number_that_no_agent_has() -> None:
    alike = read(kernel(AT, AT + 1, gpu_id=8))
    assert rows(alike, "devices", "local_id", "product") == [(8, "AMD Instinct MI250X")]
    other = {"Agent4.Name": "gfx1100", "Agent4.Node": "3", "Agent4.DeviceType": "GPU"}
    trace = read(kernel(AT, AT + 1, gpu_id=8), machine=ROCMINFO | other)
    assert rows(trace, "devices", "local_id", "product") == [(8, None)]
    assert "8" in notes(trace)["device-ambiguous"].text


def test_without_rocminfo_the_product_is_not_known() -> None:
    trace = read(kernel(AT, AT + 1), machine=None)
    assert rows(trace, "devices", "local_id", "product", "sm_count") == [(GPU, None, None)]


# The text


def test_quotes_in_names() -> None:
    """Quirk 1: names are not escaped."""
    name = 'void f<"q">(char const*, int)'
    trace = read(kernel(AT, AT + 10, name), kernel(AT + 20, AT + 30))
    assert rows(trace, "activities", "name") == [name, "k(int) [clone .kd]"]
    assert notes(trace)["json-repaired"].kind == "repaired"


def test_blocks_change_nothing() -> None:
    events = [kernel(AT + 100 * n, AT + 100 * n + 50, f"k{n % 3}.kd") for n in range(40)]
    whole = read(*events)
    for block_bytes in (1, 700, 5000):
        found = read_text(text(*events), block_bytes)
        for name, table in whole.tables.items():
            assert found.tables[name].equals(table), (name, block_bytes)
        assert found.notes == whole.notes


def test_cut_anywhere() -> None:
    """Quirk 11."""
    data = text(*(kernel(AT + 100 * n, AT + 100 * n + 50) for n in range(3)))
    used = 0
    for end in (*range(30, len(data) - 1, every(17)), len(data) - 1):
        try:
            trace = read_text(data[:end])
        except InputError:
            assert not used
            continue
        assert trace.activities.num_rows >= used
        used = trace.activities.num_rows
        if end < len(data) - 1:
            assert {"text-cut", "tail-cut"} & notes(trace).keys()
    assert used == 3


def test_times_that_cannot_be_durations() -> None:
    """Quirk 16."""
    trace = read(
        kernel(AT, AT),
        kernel(AT + 10, AT + 5),
        kernel(AT + 20, 0),
        kernel(AT + 30, AT + 31, BeginNs="None"),
    )
    assert rows(trace, "activities", "start_ns", "dur_ns") == [(AT, 0), (AT + 10, 0), (AT + 20, 0)]
    found = notes(trace)
    assert (found["negative-duration"].count, found["no-duration"].count) == (1, 1)
    assert found["no-time"].count == 1


def test_the_published_fragment_is_refused() -> None:
    """Quirk 28."""
    with pytest.raises(NotATrace, match="known rocprof bug") as caught:
        tf.read(shared_file("traces/rocprof/v1_broken_results.json"))
    assert "results.csv or results.db" in caught.value.hint


@pytest.mark.parametrize(
    "begin", [',{"args":{"name":"COPY"}', '\n,{"ph":"X","name":"k"', ',{"ts":1']
)
def test_fragments_are_refused(begin: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(begin + ',"pid":1}\n')
    with pytest.raises(NotATrace, match="without its beginning") as caught:
        tf.read(path)
    assert "results.db" in caught.value.hint


def test_a_file_without_records_is_refused() -> None:
    with pytest.raises(InputError, match="no records") as caught:
        read()
    assert caught.value.hint
    with pytest.raises(InputError, match="cut off or damaged"):
        read_text(text(kernel(AT, AT + 1))[:200])


def test_the_plugin_of_rocprofv2_is_refused_with_a_way_out(tmp_path: Path) -> None:
    label = {"args": {"name": "CPU"}, "name": "process_name", "ph": "M", "pid": 1, "sort_index": 0}
    one = {"args": {"cid": 7}, "cat": "gpu", "dur": "3", "name": "k", "ph": "X", "pid": 2}
    for events in ([label, one], [one]):
        path = tmp_path / "77_output.json"
        path.write_text(json.dumps({"traceEvents": events}, indent=2))
        with pytest.raises(NotATrace, match=r"rocprofv2 plugin.*microseconds") as caught:
            tf.read(path)
        assert "--plugin file" in caught.value.hint


def test_it_is_known_by_its_content() -> None:
    assert recognise(source(text(kernel(AT, AT + 1)))) is ROCPROF_V1_JSON
    assert recognise(source(b'{"traceEvents": [ { } , {"ph": "X"}]}')) is ROCPROF_V1_JSON
    assert recognise(source(b'{"traceEvents": [{"ph": "X"}]}')) is not ROCPROF_V1_JSON


def test_the_rank_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "rank3"
    folder.mkdir()
    (folder / "results.json").write_bytes(text(kernel(AT, AT + 1)))
    trace = tf.read(folder)
    assert trace.ranks == (3,)
    assert "rank-from-name" in notes(trace)


def test_a_crew_changes_nothing() -> None:
    data = text(*(kernel(AT + 100 * n, AT + 100 * n + 50) for n in range(400)))
    with WorkerPool(2, worth_bytes=1) as pool:
        (found,) = ROCPROF_V1_JSON.read([source(data, "results.json")], Reading(pool))
    assert found.activities.equals(read_text(data).activities)


def test_tracks_and_arrows_of_rocm_3_and_4() -> None:
    """`pid` is the section, arrows begin where calls end, one leads to the last work of a call."""

    def lies(section: int, process: int | None = 4711) -> dict[str, Any]:
        return {"pid": section, "proc_id": process, "stream_id": None}

    trace = read(
        call(AT, AT + 40_000, "hipMemset", pid=2),
        call(AT + 50_000, AT + 54_000, "hipLaunchKernel", pid=2),
        call(AT + 90_000, AT + 99_000, "hipDeviceSynchronize", pid=2),
        work(AT + 10_000, AT + 15_000, "FillBuffer", 1, 0, **lies(1)),
        work(AT + 20_000, AT + 25_000, "FillBuffer", 1, 0, **lies(1)),
        work(AT + 60_000, AT + 80_000, "k", **lies(6 + GPU)),
        work(AT + 97_000, AT + 97_000, "Unknown command type", **lies(6 + GPU)),
        arrow(1, AT // 1000 + 20, AT // 1000 + 20, (1, 0)),
        arrow(2, AT // 1000 + 54, AT // 1000 + 60, (6 + GPU, 1)),
        arrow(3, AT // 1000 + 97, AT // 1000 + 97, (6 + GPU, 1)),
    )
    assert rows(trace, "processes", "pid") == [4711]
    launched = dict(rows(trace, "calls", "correlation", "name"))
    assert [
        (name, launched.get(id_)) for name, id_ in rows(trace, "activities", "name", "correlation")
    ] == [("FillBuffer", "hipMemset"), ("FillBuffer", "hipMemset"), ("k", "hipLaunchKernel")]
    assert not {note.code for note in trace.notes} & {"loose-arrows", "calls-missing"}
    assert trace.source.event_counts["barrier"] == 1


@pytest.mark.parametrize(
    ("file", "kinds"),
    [
        ("cases/pytorch_amd_jax/rocprof-v1-track-numbers/results.db", {"kernel": 6, "memcpy": 6}),
        ("verdicts/files/kokkos-db.db", {"kernel": 8, "memcpy": 24, "memset": 6}),
        ("verdicts/files/kokkos-json.json", {"kernel": 8, "memcpy": 24, "memset": 6}),
    ],
)
def test_public_runs_of_rocm_3_and_4(file: str, kinds: dict[str, int]) -> None:
    trace = tf.read(shared_file(file))
    assert Counter(rows(trace, "activities", "kind")) == kinds
    assert trace.processes.num_rows == 1
    calls = set(rows(trace, "calls", "correlation"))
    assert set(rows(trace, "activities", "correlation")) <= calls - {None}
