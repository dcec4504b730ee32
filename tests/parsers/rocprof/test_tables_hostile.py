"""Files of rocprof that were damaged in any way give a trace or an error that says why."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import every, examples
from tests.parsers.rocprof.tablefiles import (
    V1_NEW,
    V1_TIMES,
    V2_60,
    agent,
    agents,
    call,
    calls,
    copies,
    copy,
    counter,
    counters,
    kernel,
    kernels,
    table,
    v1_row,
)
from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.parsers.recognise import recognise
from traceflops.parsers.rocprof.formats import ROCPROF_TABLES
from traceflops.parsers.rocprof.tables.read import read_tables
from traceflops.parsers.shared.formats import Reading
from traceflops.parsers.shared.sanity_checks import plausible
from traceflops.table.trace import Trace

WORK = [
    kernel(100 * i, 100 * i + 60, Correlation_Id=i, Agent_Id=f"Agent {4 + i % 2}") for i in range(9)
]
FILES: dict[str, str] = {
    "7_kernel_trace.csv": kernels(*WORK),
    "7_hip_api_trace.csv": calls(*(call(90 * i, 90 * i + 9, i, Process_Id=7) for i in range(9))),
    "7_marker_api_trace.csv": calls(
        call(5, 9, Domain="MARKER_CORE_API", Function='step {"n": 1}', Process_Id=7)
    ),
    "7_memory_copy_trace.csv": copies(copy(5, 9, "Agent 0", "Agent 4", "HOST_TO_DEVICE")),
    "7_counter_collection.csv": counters(*(counter(i, "SQ_WAVES", i) for i in range(5))),
    "7_agent_info.csv": agents(agent(0, "CPU"), agent(4), agent(5)),
    "results.csv": table(V1_NEW + V1_TIMES, [v1_row(i, 500 + i, 600 + i) for i in range(5)]),
    "wide.csv": table(V2_60 + " SQ_WAVES GRBM_COUNT", [{"GPU_ID": 1, "Kernel_Name": "k"}]),
    "roctx_trace_7.csv": table(
        "Domain ROCTX_ID Message Timestamp",
        [
            {"Domain": "ROCTX_DOMAIN", "ROCTX_ID": i % 3, "Timestamp": i, "Message": "m"}
            for i in range(9)
        ],
    ),
    "ops_trace_7.csv": table(
        "Domain Operation Kernel_Name Start_Timestamp Stop_Timestamp Correlation_ID",
        [{"Domain": "HIP_OPS_DOMAIN", "Operation": "COPY_OP", "Kernel_Name": "k"}],
    ),
    "7_kernel_stats.csv": table(
        "Name Calls TotalDurationNs AverageNs Percentage MinNs MaxNs StdDev", [{"Name": "k"}]
    ),
    "sysinfo.csv": "workload_name,gpu_arch,cu_per_gpu,max_sclk\nx,gfx942,304,2100\n",
}
PIECES = (
    *(b'"', b",", b"\n", b"\r", b"\0", b"\xff", b";", b"-", b'","', b'""', b"\n\n", b" "),
    *(b"9" * 19, b"1e99", b"0x", b"None", b"Agent ", b"\xef\xbb\xbf", b"18446744073709551615"),
)


def source_of(name: str, data: bytes, folder: str = "") -> ByteSource:
    return ByteSource(name, lambda: io.BytesIO(data), len(data), folder=folder)


def outcome(files: Mapping[str, bytes]) -> list[Trace]:
    """Return the traces of some files as the program reads them; none where it says why not."""
    sources = []
    for name, data in files.items():
        source = source_of(name.rpartition("/")[2], data, name.rpartition("/")[0])
        try:
            format_ = recognise(source)
        except InputError:
            continue
        if format_ is ROCPROF_TABLES:
            sources.append(source)
    if not sources:
        return []
    try:
        traces = read_tables(sources)
        return [plausible(trace) for trace in traces]
    except InputError as error:
        assert error.message.isprintable()
        assert error.hint
        return []


def check(trace: Trace) -> None:
    """Check what holds for every trace, however its files were damaged."""
    for table_name in trace.tables:
        trace.table(table_name).validate(full=True)
    devices, processes = trace.devices.num_rows, trace.processes.num_rows
    for name in ("activities", "calls", "marks", "kernel_counters", "totals"):
        found = trace.table(name)
        assert all(0 <= p < processes for p in found["process"].to_pylist())
        if "dur_ns" in found.schema.names:
            assert all(dur >= 0 for dur in found["dur_ns"].drop_null().to_pylist())
    assert all(0 <= d < devices for d in trace.activities["device"].to_pylist())
    assert all(note.text for note in trace.notes)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, bytes]:
    """Return files of which some were changed in some places."""
    names = draw(st.lists(st.sampled_from(sorted(FILES)), min_size=1, max_size=5, unique=True))
    files = {}
    for name in names:
        text = bytearray(FILES[name].encode())
        for _ in range(draw(st.integers(0, 4))):
            _damage(draw, text)
        folder = draw(st.sampled_from(("", "", "pmc_1/", "pass_2/node/", "rank_1/", "a/b/")))
        files[folder + name] = bytes(text)
    return files


def _damage(draw: st.DrawFn, text: bytearray) -> None:
    if not text:
        return
    at = draw(st.integers(0, len(text) - 1))
    what = draw(st.sampled_from(("flip", "cut", "insert", "line", "drop", "swap")))
    lines = bytes(text).split(b"\n")
    if what == "flip":
        text[at] = draw(st.integers(0, 255))
    elif what == "cut":
        del text[at + 1 :]
    elif what == "insert":
        text[at:at] = draw(st.sampled_from(PIECES))
    elif what == "drop":
        del text[at : at + draw(st.integers(1, 60))]
    elif what == "line":
        text += draw(st.sampled_from(lines)) + b"\n"
    else:
        text[:] = b"\n".join(draw(st.permutations(lines)))


@settings(max_examples=examples(300))
@given(damaged())
def test_damaged_files_give_a_trace_or_an_error(files: dict[str, bytes]) -> None:
    for trace in outcome(files):
        check(trace)


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_gives_a_trace_or_an_error(name: str) -> None:
    data = FILES[name].encode()
    for length in range(0, len(data), every(3) * 7):
        for trace in outcome({name: data[:length]}):
            check(trace)


@given(st.sampled_from(sorted(FILES)), st.binary(max_size=200))
def test_noise_behind_any_header(name: str, noise: bytes) -> None:
    header = FILES[name].encode().partition(b"\n")[0]
    for trace in outcome({name: header + b"\n" + noise}):
        check(trace)


@given(st.binary(max_size=300))
def test_noise_is_never_taken_for_a_table(noise: bytes) -> None:
    assert not ROCPROF_TABLES.recognises(noise)


def test_files_in_any_order_give_the_same_trace() -> None:
    data = {name: text.encode() for name, text in FILES.items()}
    first = outcome(data)
    other = outcome(dict(reversed(data.items())))
    assert [one.activities.to_pylist() for one in first] == [
        one.activities.to_pylist() for one in other
    ]
    assert [one.processes.to_pylist() for one in first] == [
        one.processes.to_pylist() for one in other
    ]


def test_as_many_processes_as_rows() -> None:
    many = calls(*(call(i, i + 1, i, Process_Id=i) for i in range(5_000)))
    (trace,) = outcome({"x.csv": many.encode()})
    assert trace.calls.num_rows == 5_000
    assert trace.processes.num_rows <= 4_097


def test_as_many_agents_as_rows() -> None:
    many = kernels(*(kernel(i, i + 1, Agent_Id=f"Agent {i}") for i in range(3_000)))
    (trace,) = outcome({"x.csv": many.encode()})
    assert trace.devices.num_rows == 3_000


def test_very_large_numbers_break_nothing() -> None:
    row = kernel(2**61 - 1, 2**63 - 1, Queue_Id=2**64 - 1, Correlation_Id=2**63, Grid_Size_X=2**62)
    other = kernel(5, 9, Workgroup_Size_X=0, VGPR_Count=-5, LDS_Block_Size=-1)
    (trace,) = read_tables([source_of("x.csv", kernels(row, other).encode())])
    check(trace)
    found = trace.activities.to_pylist()
    assert [(one["start_ns"], one["dur_ns"]) for one in found] == [(5, 4), (2**61 - 1, 0)]
    assert [one["grid"] for one in found] == [None, None]
    assert found[0]["registers_per_thread"] is None
    assert [one["correlation"] for one in found] == [None, None]


def test_all_files_broken_say_the_first_reason() -> None:
    def opener() -> io.BytesIO:
        raise InputError("cannot unpack: x.csv (bad)", "unpack it manually")

    with pytest.raises(InputError, match="cannot unpack"):
        read_tables([ByteSource("x.csv", opener)])
    good = source_of("7_kernel_trace.csv", FILES["7_kernel_trace.csv"].encode())
    (trace,) = read_tables([ByteSource("x.csv", opener), good])
    assert "file-not-read" in [note.code for note in trace.notes]


def test_the_format_reads_all_inputs_at_once() -> None:
    sources = [source_of(name, text.encode()) for name, text in FILES.items() if name[0] == "7"]
    (trace,) = ROCPROF_TABLES.read(sources, Reading(WorkerPool()))
    assert ROCPROF_TABLES.gathers
    assert trace.processes["pid"].to_pylist() == [7]
    system = source_of("sysinfo.csv", FILES["sysinfo.csv"].encode())
    with pytest.raises(NotATrace):
        ROCPROF_TABLES.read([system], Reading(WorkerPool()))
