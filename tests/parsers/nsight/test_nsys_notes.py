"""Nsight Systems: what the notes on a report count, and what they do not blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceflops as tf
from tests.conftest import some
from tests.parsers.nsight.nsysfile import NsysFile, process, small, thread
from tests.parsers.nsight.test_nsys_quirks import codes, made, note, rows
from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.recording.inventory import how_to_record, missing_from
from traceflops.reports.view.findings import headline

LAUNCH = "cudaGraphLaunch_v10000"


def test_twins_of_a_launch_count_once(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    for number in (1, 2, 3, 4):
        export.call(number * 10, number * 10 + 9, number, name=LAUNCH)
        export.call(number * 10 + 1, number * 10 + 8, number, name="cuGraphLaunch", eventClass=1)
    assert note(made(tmp_path, export), "graph-launches-lost").count == 4


def test_work_of_another_process_is_not_what_a_launch_left(tmp_path: Path) -> None:
    export = NsysFile()
    for number in (1, 2, 3, 4):
        export.call(number * 10, number * 10 + 9, number, name=LAUNCH, globalTid=thread(1, 100))
        export.call(number * 10, number * 10 + 9, number, globalTid=thread(1, 200))
        export.kernel(number * 100, number * 100 + 9, globalPid=process(200), correlationId=number)
    assert note(made(tmp_path, export), "graph-launches-lost").count == 4


def test_lost_launches_of_graphs_are_told_once_and_how_to_record_them(tmp_path: Path) -> None:
    export = NsysFile()
    for start, correlation in ((1, 8), (100, 9)):
        export.call(start, start + 5, correlation)
        export.kernel(10 * start, 20 * start, correlationId=correlation)
    for number in (2, 3, 4, 5):
        export.call(number * 10, number * 10 + 9, number, name=LAUNCH)
    analysis = tf.analyze(made(tmp_path, export))
    found = [one.code for one in analysis.notes]
    assert "graph-launches-lost" not in found
    assert "device-records-missing" in found
    (lack,) = analysis.measured.lacks
    assert "--cuda-graph-trace=node" in lack.remedy
    assert "fewer steps" not in lack.remedy


def overhead(table: str, kind: Any, *, typed: bool = True) -> NsysFile:
    export = NsysFile()
    export.call(1, 2, 1)
    export.kernel(100, 200, correlationId=1)
    export.kernel(1_000, 1_100)
    more = {"overheadType": kind} if typed else {}
    name = export.string("something")
    export.row(table, start=300, end=500, globalTid=thread(), nameId=name, **more)
    return export


@pytest.mark.parametrize("kind", [0, 1, 2, 6, 7, 8, 99, None])
def test_what_is_not_the_profilers_is_not_blamed_on_it(tmp_path: Path, kind: int | None) -> None:
    trace = made(tmp_path, overhead("CUPTI_ACTIVITY_KIND_OVERHEAD", kind))
    assert rows(trace, "marks", "name") == ["something"]
    assert "profiler-overhead" not in {one.code for one in tf.analyze(trace).notes}


@pytest.mark.parametrize("kind", [3, 4, 5])
@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD"])
def test_what_is_the_profilers_is_said(tmp_path: Path, table: str, kind: int) -> None:
    trace = made(tmp_path, overhead(table, kind))
    assert rows(trace, "marks", "name") == ["profiler: something"]


def test_the_profilers_own_table_counts_unless_it_names_another_type(tmp_path: Path) -> None:
    for place, (typed, kind, mine) in enumerate(
        ((False, 0, True), (True, None, True), (True, 2, False))
    ):
        export = overhead("PROFILER_OVERHEAD", kind, typed=typed)
        trace = made(tmp_path, export, f"{place}.sqlite")
        assert rows(trace, "marks", "name") == ["profiler: something" if mine else "something"]


def test_idle_time_of_several_devices_is_no_more_than_the_profiler_worked(tmp_path: Path) -> None:
    """Four idle devices, and a profiler that worked for 200 ns."""
    export = overhead("PROFILER_OVERHEAD", 3)
    for device in (1, 2, 3):
        export.kernel(100, 200, deviceId=device)
        export.kernel(1_000, 1_100, deviceId=device)
    found = tf.analyze(made(tmp_path, export))
    (said,) = [one for one in found.notes if one.code == "profiler-overhead"]
    assert "200 ns total; at least one GPU of its process was idle for 200 ns" in said.text


def test_migrations_are_launched_by_no_call(tmp_path: Path) -> None:
    export = NsysFile()
    export.call(1, 2, 1)
    export.kernel(10, 20, correlationId=1)
    for place, kind in enumerate((11, 12, 13, 1)):
        export.copy(100 + place * 10, 105 + place * 10, kind)
    found = tf.analyze(made(tmp_path, export))
    assert found.devices[0].whole.unlinked == {"kernel": 0, "memcpy": 1}
    (said,) = [one for one in found.notes if one.code == "unlinked"]
    assert said.count == 1


def test_page_faults_of_gpus_are_marks_of_their_device(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 90)
    for start in (20, 50):
        where = {"globalPid": process(), "deviceId": 0, "numberOfPageFaults": 3}
        export.row("CUDA_UM_GPU_PAGE_FAULT_EVENTS", start=start, end=start + 20, **where)
    trace = made(tmp_path, export)
    assert rows(trace, "marks", "kind", "device", "stream", "start_ns", "dur_ns") == [
        ("page_fault", 0, None, 20, 20),
        ("page_fault", 0, None, 50, 20),
    ]
    assert rows(trace, "activities", "stream") == [7]
    (found,) = [one for one in tf.analyze(trace).findings if one.rule == "unified-memory"]
    assert "50.0 % of the time: 40 ns of the 80 ns" in found.sentence


@pytest.mark.parametrize(
    ("kind", "cause", "expected"),
    [
        (11, 1, "Unified memory prefetch HtoD"),
        (12, 1, "Unified memory prefetch DtoH"),
        (11, 2, "Unified memory HtoD"),
        (13, None, "Unified memory DtoD"),
        (1, 1, "Memcpy HtoD"),
    ],
)
def test_migrations_that_a_call_asked_for_are_told_apart(
    tmp_path: Path, kind: int, cause: int | None, expected: str
) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    export.copy(100, 105, kind, migrationCause=cause)
    assert [n for n in rows(made(tmp_path, export), "activities", "name") if expected in n]


def test_kernels_without_names_are_said(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(1, 2)
    export.kernel(3, 4, demangledName=99, shortName=98)
    assert note(made(tmp_path, export), "kernels-unnamed").count == 1
    assert "kernels-unnamed" not in codes(made(tmp_path, small(), "b.sqlite"))


def nccl(**more: Any) -> NsysFile:
    export = NsysFile()
    export.call(12, 13, 1)
    export.kernel(20, 30, "ncclDevKernel_AllReduce(x)", correlationId=1)
    name = export.string("ncclAllReduce")
    export.range(10, 15, None, textId=name, domainId=3, **more)
    return export


def test_payloads_as_bytes_are_there_and_not_read(tmp_path: Path) -> None:
    assert "only as bytes" in note(made(tmp_path, nccl(binaryData="0x01")), "nccl-sizes").text
    none = note(made(tmp_path, nccl(binaryData=None), "b.sqlite"), "nccl-sizes").text
    assert "not in the file" in none


def test_payloads_name_the_communicator(tmp_path: Path) -> None:
    text = '{"NCCL communicator ID": "0xabc", "Message size [bytes]": 512}'
    trace = made(tmp_path, nccl(jsonText=text))
    columns = ("collective_group", "collective_in_elements", "collective_dtype")
    assert rows(trace, "activities", *columns) == [("0xabc", 512, "Byte")]


def test_waits_of_cuda_show_that_it_was_traced(tmp_path: Path) -> None:
    export = NsysFile()
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process()}
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    export.row(table, start=1, end=2, correlationId=1, syncType=4, **place)
    text = note(made(tmp_path, export), "no-device-work").text
    assert "It has 1 CUDA record," in text
    assert "CUDA was not traced" not in text


def test_one_and_several_are_counted_in_their_words(tmp_path: Path) -> None:
    call, copies, replay = NsysFile(), NsysFile(), NsysFile()
    call.call(1, 2, 1)
    assert (
        "It has 1 CUDA API call," in note(made(tmp_path, call, "a.sqlite"), "no-device-work").text
    )
    for at in (10, 20, 30):
        copies.copy(at, at + 5, 99)
    assert "3 copies of" in note(made(tmp_path, copies, "b.sqlite"), "copy-kind").text
    replay.graph(10, 20, 5)
    text = note(made(tmp_path, replay, "c.sqlite"), "graphs-opaque").text
    assert "1 CUDA graph replay (10 ns) was recorded" in text


def test_operators_of_the_oldest_versions_have_their_namespace(tmp_path: Path) -> None:
    """Before PyTorch 1.7 names had no namespace and texts no id."""
    export = NsysFile()
    texts = (
        "mm, seq = 12, sizes = [[2, 3], [3, 4]]",
        "add_, seq = 13",
        "relu, sizes = [[2]]",
        "MmBackward, seq = 12, sizes = [[2, 4]]",
        "my_block, op_id = 3",
        "mm, seq = 14, op_id = 5",
        "mm",
    )
    for at, text in enumerate(texts):
        export.range(at, at + 1, text)
    trace = made(tmp_path, export)
    assert rows(trace, "ops", "name", "sequence") == [
        ("aten::mm", 12),
        ("aten::add_", 13),
        ("aten::relu", None),
        ("MmBackward", 12),
        ("mm", 14),
    ]
    assert rows(trace, "marks", "name") == ["my_block", "mm"]


def test_a_table_of_texts_alone_is_of_another_program(tmp_path: Path) -> None:
    foreign = NsysFile()
    foreign.row("StringIds", id=1, value="x")
    foreign.row("moz_places", start=1)
    with pytest.raises(InputError, match="unknown"):
        made(tmp_path, foreign)
    empty = NsysFile()
    empty.row("StringIds", id=1, value="x")
    empty.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1)
    assert "no-device-work" in codes(made(tmp_path, empty, "b.sqlite"))


def cut(tmp_path: Path, of: NsysFile, keep: float) -> Path:
    path = of.save(tmp_path / "whole.sqlite")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def many(*, calls_first: bool = False) -> NsysFile:
    """Return 2,000 kernels of 40 ns and their calls; the later table ends the file."""
    export = NsysFile()

    def calls() -> None:
        for number in range(2_000):
            export.call(number * 100, number * 100 + 9, number + 1)

    if calls_first:
        calls()
    for number in range(2_000):
        export.kernel(number * 100 + 50, number * 100 + 90, correlationId=number + 1)
    if not calls_first:
        calls()
    return export


@pytest.mark.parametrize("keep", some([0.31, 0.47, 0.613, 0.7, 0.83, 0.9, 0.971, 0.999], 5))
def test_a_cut_file_invents_nothing(tmp_path: Path, keep: float) -> None:
    """A page of which the end is missing holds rows of zeros: none of them is a row."""
    trace = read(cut(tmp_path, many(calls_first=keep > 0.5), keep))
    assert rows(trace, "processes", "pid") == [4242]
    assert set(rows(trace, "devices", "local_id")) <= {0}
    assert set(rows(trace, "activities", "name", "dur_ns", "stream")) <= {("k(int)", 40, 7)}
    starts = rows(trace, "activities", "start_ns")
    assert starts == [number * 100 + 50 for number in range(len(starts))]
    assert {"input-cut", "rows-lost"} <= codes(trace)


def test_what_lies_behind_the_cut_is_said(tmp_path: Path) -> None:
    trace = read(cut(tmp_path, many(calls_first=True), 0.8))
    assert 0 < trace.activities.num_rows < 2_000
    assert "their true idle time is unknown" in note(trace, "work-lost").text


def test_calls_that_were_cut_off_were_recorded(tmp_path: Path) -> None:
    whole = many()
    trace = read(cut(tmp_path, whole, 0.999))
    assert trace.activities.num_rows == 2_000
    assert "work-lost" not in codes(trace)
    del whole.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    (tmp_path / "whole.sqlite").unlink()
    kernels = whole.save(tmp_path / "kernels.sqlite").stat().st_size
    (tmp_path / "kernels.sqlite").unlink()
    path = many().save(tmp_path / "cut.sqlite")
    path.write_bytes(path.read_bytes()[: kernels + 100])
    trace = read(path)
    assert not trace.calls.num_rows
    text = note(trace, "no-calls").text
    assert "in the damaged part" in text
    assert "nsys profile" not in text


@pytest.mark.parametrize(
    ("asked", "words", "advised"),
    [
        (("true", "false"), "CUDA was traced but left no records", False),
        (("false",), "Whether CUDA was traced is unknown", True),  # newer versions write it anyway
        ((), "Whether CUDA was traced is unknown", True),
    ],
)
def test_a_report_without_any_cuda_says_whether_it_was_asked_for(
    tmp_path: Path, asked: tuple[str, ...], words: str, advised: bool
) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    for at, value in enumerate(asked):
        name = f"PROCESS_{at}:COLLECT_CUDA_TRACE"
        export.row("META_DATA_CAPTURE", name=name, value=value)
    trace = made(tmp_path, export)
    assert words in note(trace, "no-device-work").text
    lacking = {one.code: one.how.text for one in missing_from(trace)}
    assert ("--trace=cuda" in lacking["device-work"]) == advised
    assert ("calls" in lacking) == advised
    assert (how_to_record(trace) is not None) == advised


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("DIAGNOSTIC_EVENT", {"severity": 1, "text": "CUDA injection initialized successfully."}),
        ("TARGET_INFO_CUDA_CONTEXT_INFO", {"contextId": 1, "processId": 7}),
    ],
)
def test_what_tracing_of_cuda_leaves_tells_that_it_was_traced(
    tmp_path: Path, table: str, row: dict[str, Any]
) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    export.row("META_DATA_CAPTURE", name="PROCESS_0:COLLECT_CUDA_TRACE", value="false")
    export.row(table, **row)
    assert "CUDA was traced" in note(made(tmp_path, export), "no-device-work").text


def test_an_error_of_the_profiler_is_why_nothing_was_recorded(tmp_path: Path) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    text = (
        "Installed CUDA driver version (13.1) is not supported by this build of Nsight Systems. "
        "CUDA trace will be collected using libraries for driver version 12.8"
    )
    export.row("DIAGNOSTIC_EVENT", severity=2, text=text)
    export.row("DIAGNOSTIC_EVENT", severity=3, text="Flush returned 2: CUPTI_ERROR_INVALID_DEVICE")
    trace = made(tmp_path, export)
    said = tf.analyze(trace).verdict.sentence
    assert said.startswith(
        "GPU records are missing: the profiler could not trace CUDA (CUPTI_ERROR_INVALID_DEVICE); "
        "it knows drivers up to CUDA 12.8, and that of this system is newer. Record again with"
    )
    assert "made no CUDA calls" not in note(trace, "no-device-work").text


def test_a_tracer_that_did_not_begin_is_no_fault_of_the_program(tmp_path: Path) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    export.row("DIAGNOSTIC_EVENT", severity=2, text="CUDA injection initialization failed.")
    trace = made(tmp_path, export)
    assert tf.analyze(trace).verdict.sentence.startswith(
        "GPU records are missing: the profiler could not trace CUDA (CUDA injection initialization "
        "failed). Record again with the newest Nsight Systems"
    )


@pytest.mark.parametrize(
    ("versions", "gpus", "is_told"),
    [(["0"], 0, True), (["12040"], 0, False), (["0", "12040"], 0, False), (["0"], 1, False)],
)
def test_the_export_tells_that_the_system_had_no_driver(
    tmp_path: Path, versions: list[str], gpus: int, *, is_told: bool
) -> None:
    """With a GPU, or a driver on another of its machines, that is not known."""
    export = NsysFile()
    export.range(1, 2, "a")
    for version in versions:
        export.row("TARGET_INFO_SYSTEM_ENV", name="CudaDriverVersion", value=version)
    for gpu in range(gpus):
        export.row("TARGET_INFO_GPU", id=gpu, name="NVIDIA H100")
    said = tf.analyze(made(tmp_path, export)).verdict.sentence
    assert ("the system had no CUDA driver" in said) == is_told


def test_a_mode_of_the_gpu_that_forbids_tracing_is_told_without_names_too(tmp_path: Path) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    text = "The system is running in Protected Memory mode. CUDA tracing data was not collected."
    export.row("DIAGNOSTIC_EVENT", severity=3, text=text)
    trace = made(tmp_path, export)
    for said in (tf.analyze(trace, redact=redact).verdict.sentence for redact in (False, True)):
        assert "while the GPU is in Protected Memory mode" in said


_BEGUN = "CUDA injection initialized successfully."
_DRIVER = (
    "Installed CUDA driver version (13.1) is not supported by this build of Nsight Systems. CUDA "
    "trace will be collected using libraries for driver version 12.8"
)
_LOST_CUDA, _LOST_NVTX = (
    f"Not all {kind} events might have been collected." for kind in ("CUDA", "NVTX")
)
_TIMEOUT = "Timeout while waiting for injected process to stop recording. Starting reading files."
_NOT_STARTED = "CUDA profiling might have not been started correctly."


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("/usr/lib64/libcuda.so.470.82.01", "The program called CUDA, as CPU samples"),
        ("C:\\Windows\\System32\\nvcuda64.dll", "The program called CUDA, as CPU samples"),
        ("/home/x/libcudasurf.so", "no process was seen to use it"),
    ],
)
def test_samples_in_libraries_of_cuda_tell_that_the_program_called_it(
    tmp_path: Path, module: str, said: str
) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    export.row("DIAGNOSTIC_EVENT", severity=2, text=_NOT_STARTED)
    export.row("COMPOSITE_EVENTS", id=0, start=100, globalTid=5)
    symbol, library = map(export.string, ("0x7f00aa", module))
    export.row("SAMPLING_CALLCHAINS", id=0, symbol=symbol, module=library, stackDepth=0)
    assert said in tf.analyze(made(tmp_path, export)).verdict.sentence


@pytest.mark.parametrize("is_newer", [False, True])
def test_launches_without_records_under_a_newer_driver_need_a_newer_profiler(
    tmp_path: Path, *, is_newer: bool
) -> None:
    export = NsysFile()
    for at in range(1, 100, 10):
        export.call(at, at + 5, at)
    for text in (_BEGUN, *[_DRIVER] * is_newer):
        export.row("DIAGNOSTIC_EVENT", severity=2, text=text)
    sentence = tf.analyze(made(tmp_path, export)).verdict.sentence
    assert sentence.startswith("GPU records are missing")
    newer = "Record with the newest Nsight Systems: this one knows drivers up to CUDA 12.8"
    assert (newer in sentence) is is_newer


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ((_BEGUN, _LOST_CUDA, _LOST_NVTX), "missing: a process that used CUDA crashed, was killed"),
        (
            (_BEGUN, _DRIVER, _LOST_CUDA, _LOST_NVTX),
            "with the newest. If records are still missing, a process that used CUDA crashed",
        ),
        ((_BEGUN, _DRIVER, _TIMEOUT), "the program was still running when recording stopped"),
        ((_BEGUN, _DRIVER, _LOST_CUDA), "driver of this system is newer"),  # it may be all the same
        ((_BEGUN, _DRIVER), "another possible reason"),
        ((_NOT_STARTED,), "CUDA was traced, but no process was seen to use it"),
        ((_NOT_STARTED, _BEGUN), "This trace has no GPU operations, only annotations."),
    ],
)
def test_how_tracing_ended_tells_why_nothing_was_recorded(
    tmp_path: Path, messages: tuple[str, ...], said: str
) -> None:
    export = NsysFile()
    export.range(1, 2, "a")
    for text in messages:
        export.row("DIAGNOSTIC_EVENT", severity=2, text=text)
    sentence = tf.analyze(made(tmp_path, export)).verdict.sentence
    assert said in sentence
    assert ("save the records while it runs" in sentence) == (
        {_LOST_NVTX, _TIMEOUT} & {*messages} != set()
    )


@pytest.mark.parametrize(
    ("call", "is_lost"),
    [("cuModuleGetLoadingMode", True), ("cudaGetDevice", True), ("cuStreamCreate", False)],
)
def test_a_program_of_which_only_a_first_question_is_left_lost_its_records(
    tmp_path: Path, call: str, *, is_lost: bool
) -> None:
    export = NsysFile()
    export.call(1, 2, 1, nameId=export.string(call))
    for text in (_BEGUN, _LOST_CUDA, _LOST_NVTX):
        export.row("DIAGNOSTIC_EVENT", severity=2, text=text)
    sentence = tf.analyze(made(tmp_path, export)).verdict.sentence
    assert ("did not get its last records" in sentence) == is_lost
    assert ("built for the GPU" in sentence) != is_lost


def test_copies_that_were_not_made_are_not_missing(tmp_path: Path) -> None:
    export = NsysFile()
    export.kernel(10, 20)
    trace = made(tmp_path, export)
    assert "copies" not in {one.code for one in missing_from(trace)}


@pytest.mark.parametrize(("returned", "told"), [(719, " (error 719)"), (5_719, "")])
def test_an_error_that_tells_no_reason_gets_no_number(
    tmp_path: Path, returned: int, told: str
) -> None:
    export = NsysFile()
    export.call(10, 19, 1, returnValue=returned)
    sentence = headline(tf.analyze(made(tmp_path, export))).sentence
    assert sentence.startswith(f"1 of 1 launch of kernels failed{told}, so their work never ran.")


@pytest.mark.parametrize(
    ("ran", "said"),
    [
        (None, "3 of 3 launches of kernels failed (error 222: the code was compiled by a CUDA"),
        ("copy", "3 of 3 launches of kernels failed (error 222: the code was compiled by a CUDA"),
        ("kernel", "3 of 4 launches of kernels failed (error 222: the code was compiled by a CUDA"),
    ],
)
def test_launches_that_failed_are_said_first_and_have_lost_no_record(
    tmp_path: Path, ran: str | None, said: str
) -> None:
    export = NsysFile()
    driver = {"name": "cuLaunchKernel", "eventClass": 1}  # the same launch again
    for number in (1, 2, 3):
        export.call(number * 10, number * 10 + 9, number, returnValue=222)
        export.call(number * 10 + 1, number * 10 + 8, number, returnValue=222, **driver)
    if ran == "copy":
        export.call(100, 109, 9, name="cudaMemcpy_v3020", returnValue=0)
        export.copy(105, 108, 1, correlationId=9)
    if ran == "kernel":
        export.call(100, 109, 9, returnValue=0)
        export.kernel(150, 250, correlationId=9)
    analysis = tf.analyze(made(tmp_path, export))
    assert headline(analysis).sentence.startswith(said)
    assert "device-records-missing" not in [one.code for one in analysis.notes]
    assert ("then record again" in analysis.verdict.sentence) == (ran != "kernel")
