"""Reports of Nsight Systems themselves: the same rows as in their export, however damaged they are.

The identity of figures with all other formats is in test_same_report.py.
"""

from __future__ import annotations

import gzip
import random
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.messages import counted, number, part
from sample_traces.nsight.nsys import write_sqlite
from sample_traces.nsight.report import (
    SECRET,
    block,
    event,
    file_of,
    message,
    write_reports,
)
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import Run
from sample_traces.simulate import simulate
from tests.conftest import examples, some
from tests.privacy.test_environment import outputs
from traceflops.errors import InputError, NotATrace

WRITERS = ("2023", "2026")
ALL = NsightOptions(ops=True, nccl="ranges", driver_calls=True, markers="all")
NOT_READ = {"graph_node", "graph"}
"""Columns of activities that a report is not read for."""
BEGIN = b"QDTEXT00"


@cache
def run_of(**changes: Any) -> Run:
    config = {"layers": 1, "steps": 2, "vocab": 512, "ranks": 2, "sync_each_step": True}
    return simulate(RunConfig(**(config | changes)))


@cache
def sample(writer: Any = "2026", *, stored: bool = False) -> bytes:
    """Return the report of a run; what is stored is not packed."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        (path,) = write_reports(run_of(), Path(folder), ALL, writer, True, stored)
        return path.read_bytes()


def read(data: bytes, folder: Path) -> tf.Trace:
    path = folder / "run.nsys-rep"
    path.write_bytes(data)
    return tf.read(path)


def codes(trace: tf.Trace) -> dict[str, str]:
    return {note.code: note.text for note in trace.notes}


def kernel(place: int = 1, **changes: int) -> bytes:
    """Return the event of a kernel that lasts 50 ns."""
    said = {"start": place * 100, "end": place * 100 + 50, "context": 1, "stream": 7, "name": 0}
    said |= {"process": 1 << 48 | 77 << 24} | changes
    place_of = {"start": 1, "end": 2, "context": 5, "stream": 6, "process": 8}
    own = message(said, {"name": 1, "gridX": 10, "blockX": 13})
    return event(79, 107, message(said, place_of) + part(101, own))


def report_of(*events: bytes, texts: tuple[str, ...] = ("kernel",), **more: Any) -> bytes:
    return file_of(events, texts, number(17, 1), b"", **more)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_row_is_that_of_the_export(tmp_path: Path, writer: Any) -> None:
    run = run_of()
    (export,) = write_sqlite(run, tmp_path / "export", ALL, together=True)
    (report,) = write_reports(run, tmp_path / "report", ALL, writer, together=True)
    theirs, ours = tf.read(export), tf.read(report)
    assert ours.source.origin_unix_ns == theirs.source.origin_unix_ns
    assert ours.source.event_counts == theirs.source.event_counts
    for name, table in theirs.tables.items():
        left_out = {"host", "file"} if name == "processes" else NOT_READ
        columns = [column for column in table.column_names if column not in left_out]
        assert ours.tables[name].select(columns).to_pylist() == (
            table.select(columns).to_pylist()
        ), name
    assert ours.activities.num_rows > 50 < ours.ops.num_rows


@pytest.mark.parametrize("writer", WRITERS)
def test_packed_or_piped_it_is_the_same(tmp_path: Path, writer: Any) -> None:
    plain = read(sample(writer), tmp_path)
    packed = tmp_path / "run.nsys-rep.gz"
    packed.write_bytes(gzip.compress(sample(writer)))
    assert tf.read(packed).activities.equals(plain.activities)


def test_the_writer_and_what_an_export_adds(tmp_path: Path) -> None:
    trace = read(sample(), tmp_path)
    assert trace.source.facts["tool_version"] == "2026.1.3.425"
    note = codes(trace)["raw-report"]
    assert "written by Nsight Systems 2026.1.3" in note
    assert "nsys export --type sqlite" in note
    assert "format 1" in codes(read(sample("2023"), tmp_path))["raw-report"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("profile --trace nvtx run -t SECRET", "was not traced (--trace=nvtx)"),
        ("profile -f true --trace=osrt,mpi run", "was not traced (--trace=osrt,mpi)"),
        ("profile -t nvtx,cuda run", "was traced but left no records"),
        ("profile run -t SECRET", "Whether CUDA was traced is unknown"),
        ("profile -o run", "Whether CUDA was traced is unknown"),
    ],
)
def test_the_command_line_tells_whether_cuda_was_traced(
    tmp_path: Path, command: str, words: str
) -> None:
    shown = part(24, b"host") + part(25, f"/opt/bin/nsys {command}".encode())
    trace = read(report_of(more={"UI Data": shown}), tmp_path)
    assert words in codes(trace)["no-device-work"]
    first = tf.analyze(trace).verdict.sentence
    assert first.startswith("CUDA was not traced") == ("not traced" in words)
    assert "SECRET" not in str((trace.source.facts, trace.notes, first))


def test_what_is_not_known_is_counted_by_its_number(tmp_path: Path) -> None:
    others = [event(130, 140, number(1, 5))] * 3 + [event(987, 99, b"")] * 2
    classes = [event(48, 108, number(6, 95))] * 4
    trace = read(report_of(kernel(), *others, *classes), tmp_path)
    note = codes(trace)["only-in-export"]
    assert note.startswith("9 records")
    for told in ("3 CUDA graph launches as a whole (type 130)", "2 of type 987", "4 of class 95"):
        assert told in note
    assert trace.activities.num_rows == 1


def test_what_openacc_and_the_driver_do_are_marks_of_their_thread(tmp_path: Path) -> None:
    thread = 1 << 48 | 77 << 24 | 78
    place = {"start": 1, "end": 2, "class": 6, "name": 7, "thread": 13}
    calls = [
        event(48, 108, message({"start": 9, "end": 12, "thread": thread, **one}, place))
        for one in ({"class": number, "name": at} for at, number in enumerate((1, 48, 103), 1))
    ]
    texts = ("kernel", "cuInit", "Wait", "Lazy Function Loading")
    trace = read(report_of(kernel(), *calls, texts=texts), tmp_path)
    marks = {one["name"]: (one["kind"], one["dur_ns"]) for one in trace.marks.to_pylist()}
    assert marks == {"Wait": ("system", 3), "Lazy Function Loading": ("overhead", 3)}


def test_page_faults_of_gpus_are_marks_of_their_device(tmp_path: Path) -> None:
    said = {"start": 120, "end": 150, "process": 1 << 48 | 77 << 24}
    fault = event(120, 125, message(said, {"start": 1, "end": 2, "process": 4}))
    trace = read(report_of(kernel(), fault), tmp_path)
    (mark,) = trace.marks.to_pylist()
    shown = [mark[name] for name in ("kind", "device", "start_ns", "dur_ns")]
    assert shown == ["page_fault", 0, 120, 30]
    assert "only-in-export" not in codes(trace)


def test_samples_have_the_innermost_frame_of_their_stack(tmp_path: Path) -> None:
    thread = 1 << 48 | 77 << 24 | 5
    call = {"start": 1, "end": 2, "correlation": 3, "name": 7, "thread": 13}
    launch = event(48, 108, message({"start": 5, "end": 9, "name": 0, "thread": thread}, call))
    frames = [part(4, number(1, symbol) + number(2, 3)) for symbol in (1, 2)]
    samples = [
        event(31, 104, message({"start": at, "thread": thread}, {"start": 1, "thread": 11}) + stack)
        for at, stack in ((150, frames[0] + frames[1]), (160, frames[1]), (170, b""))
    ]
    texts = ("cudaLaunchKernel", "inner", "outer", "/opt/libx.so")
    trace = read(report_of(kernel(), launch, *samples, texts=texts), tmp_path)
    assert trace.marks["name"].to_pylist() == ["libx.so!inner", "libx.so!outer"]
    assert trace.marks["start_ns"].to_pylist() == [150, 160]


def test_types_that_nothing_is_made_of_are_no_note(tmp_path: Path) -> None:
    passed = [event(kind, 113, number(1, 5)) for kind in (27, 28, 31, 41, 76)]
    assert "only-in-export" not in codes(read(report_of(kernel(), *passed), tmp_path))


SCHEMAS = counted(part(9, b"schema of somebody") + b"\xff\x07")
PACKED = block([b"a schema"] * 40)


@pytest.mark.parametrize("name", ["run.nsys-rep", "run.qdrep"])
@pytest.mark.parametrize(
    ("behind", "unknown"),
    [
        (SCHEMAS, 0),
        (PACKED, 0),
        (SCHEMAS + PACKED + counted(b"\xff" * 300), 2),
        (counted(b"") + SCHEMAS, 1),
        (PACKED + b"\xff" * 40, 1),
        (bytes(1 << 12), 1_000),
    ],
    ids=["plain", "packed", "three", "empty", "damaged", "too many to look at"],
)
def test_parts_behind_the_tail_are_skipped(
    tmp_path: Path, name: str, behind: bytes, unknown: int
) -> None:
    """A file is whole whatever stands there: its trailer, index and lengths say so."""
    gpu = part(1, part(2, part(7, number(1, 0) + part(2, b"NVIDIA H100 80GB HBM3"))))
    more = {"Data of Tomorrow": b"\xff" * 9, "Sampling Data": part(1, b"x")}
    path = tmp_path / name
    path.write_bytes(file_of([kernel()], ["kernel"], b"", gpu, behind=behind, more=more))
    trace = tf.read(path)
    assert trace.activities["name"].to_pylist() == ["kernel"]
    assert trace.devices["product"].to_pylist() == ["NVIDIA H100 80GB HBM3"]
    said = {"raw-report", "no-calls", *(["unknown-parts"] if unknown else [])}
    assert set(codes(trace)) == said
    assert all(note.count == unknown for note in trace.notes if note.code == "unknown-parts")


@pytest.mark.parametrize("lost", [1, len(SCHEMAS) // 2, len(SCHEMAS) + 3])
def test_cut_behind_the_texts_it_is_said_to_be_cut(tmp_path: Path, lost: int) -> None:
    gpu = part(1, part(2, part(7, number(1, 0) + part(2, b"NVIDIA H100 80GB HBM3"))))
    whole = file_of([kernel()], ["kernel"], b"", gpu, "2023", behind=SCHEMAS)
    end = whole.index(SCHEMAS) + len(SCHEMAS) - lost
    trace = read(whole[:end], tmp_path)
    assert trace.activities["name"].to_pylist() == ["kernel"]
    assert "input-cut" in codes(trace)
    assert not {"names-lost", "unknown-parts"} & codes(trace).keys()
    known = ["NVIDIA H100 80GB HBM3"] if lost <= len(SCHEMAS) else [None]
    assert trace.devices["product"].to_pylist() == known


def test_without_names_of_threads_the_tail_stands_alone(tmp_path: Path) -> None:
    gpu = part(1, part(2, part(7, number(1, 0) + part(2, b"NVIDIA H100 80GB HBM3"))))
    trace = read(file_of([kernel()], ["kernel"], b"", gpu, names_threads=False), tmp_path)
    assert trace.devices["product"].to_pylist() == ["NVIDIA H100 80GB HBM3"]
    assert set(codes(trace)) == {"raw-report", "no-calls"}


def test_a_damaged_tail_is_no_cut_and_costs_no_names(tmp_path: Path) -> None:
    whole = file_of([kernel()], ["kernel"], b"", part(1, b"GPUs"), behind=SCHEMAS)
    trace = read(whole.replace(part(1, b"GPUs"), b"\xff" * 6), tmp_path)
    assert trace.activities["name"].to_pylist() == ["kernel"]
    assert "rows-lost" in codes(trace)
    assert not {"input-cut", "names-lost"} & codes(trace).keys()


def test_graphs_recorded_as_a_whole(tmp_path: Path) -> None:
    """Their own part says which graph it is, and which executable one."""
    place = {"start": 1, "end": 2, "correlation": 3, "context": 5, "stream": 6, "process": 8}
    said = {"start": 400, "end": 1_000, "correlation": 9, "context": 1, "stream": 7}
    said["process"] = 1 << 48 | 77 << 24
    own = part(107, number(1, 3) + number(2, 4))
    replay = event(130, 107, message(said, place) + own)
    trace = read(report_of(kernel(), replay), tmp_path)
    columns = ("kind", "name", "start_ns", "dur_ns", "stream", "graph", "correlation")
    assert trace.activities.select(columns).to_pylist()[1] == dict(
        zip(columns, ("graph", "graph 3", 400, 600, 7, 3, 9), strict=True)
    )
    assert "only-in-export" not in codes(trace)
    assert tf.analyze(trace).devices[0].whole.account.components.graph_ns == 600


@pytest.mark.parametrize("tenth", range(2, 20, 3))
@pytest.mark.parametrize("writer", WRITERS)
def test_cut_anywhere_it_is_read_up_to_the_cut(tmp_path: Path, writer: Any, tenth: int) -> None:
    whole = read(sample(writer), tmp_path)
    cut = sample(writer)[: len(sample(writer)) * tenth // 20]
    try:
        trace = read(cut, tmp_path)
    except InputError as error:
        assert error.hint
        assert tenth < 12
        return
    assert "input-cut" in codes(trace)
    times = list(
        zip(*(whole.activities[c].to_pylist() for c in ("start_ns", "dur_ns")), strict=True)
    )
    for start_ns, dur_ns in zip(
        *(trace.activities[c].to_pylist() for c in ("start_ns", "dur_ns")), strict=True
    ):
        assert (start_ns, dur_ns) in times
    if trace.activities.num_rows < whole.activities.num_rows:
        assert "work-lost" in codes(trace)
    tf.analyze(trace)


@pytest.mark.parametrize("behind", [bytes(512), b"\n", b"\r\n"])
def test_zeros_or_a_line_feed_behind_the_end_are_no_cut(tmp_path: Path, behind: bytes) -> None:
    whole, padded = read(sample(), tmp_path), read(sample() + behind, tmp_path)
    assert codes(padded) == codes(whole)
    assert padded.activities.equals(whole.activities)


def test_without_its_last_bytes_nothing_is_missing(tmp_path: Path) -> None:
    whole, cut = read(sample(), tmp_path), read(sample()[:-5], tmp_path)
    assert cut.activities.equals(whole.activities)
    assert cut.devices.equals(whole.devices)
    assert set(codes(cut)) - set(codes(whole)) == {"input-cut"}


def test_a_damaged_block_is_left_out_and_counted(tmp_path: Path) -> None:
    data = bytearray(sample("2023"))
    at = data.index(BEGIN) + 500
    data[at : at + 40] = b"\xff" * 40
    whole = read(sample("2023"), tmp_path)
    trace = read(bytes(data), tmp_path)
    assert "rows-lost" in codes(trace)
    assert trace.calls.num_rows + trace.activities.num_rows > 0
    assert trace.activities.num_rows < whole.activities.num_rows
    with pytest.raises(InputError, match="damaged"):
        tf.read(tmp_path / "run.nsys-rep", strict=True)


def test_where_blocks_are_lost_the_names_of_others_are_not(tmp_path: Path) -> None:
    """The length of a block is wrong, so where the next one begins is not known."""
    many = [kernel(place) for place in range(1, 700)]
    data = report_of(*many)
    first, second = block(many[:500]), block(many[500:])
    assert first + second in data
    trace = read(data.replace(second, b"\xff\xff\x7f" + second[3:]), tmp_path)
    assert trace.activities["name"].to_pylist() == ["kernel"] * 500
    assert "199 events" in codes(trace)["rows-lost"]
    assert {"work-lost"} <= codes(trace).keys() - {"names-lost"}


def test_several_machines_are_told(tmp_path: Path) -> None:
    gpus = [part(1, part(2, part(7, number(1, 0) + part(2, name)))) for name in (b"A", b"B")]
    trace = read(file_of([kernel()], ["k"], b"", b"".join(gpus)), tmp_path)
    assert "2 machines" in codes(trace)["several-machines"]


def test_fewer_events_than_the_index_says(tmp_path: Path) -> None:
    whole = report_of(*map(kernel, range(1, 9)))
    index, other = number(1, 8), number(1, 11)
    trace = read(whole.replace(index + number(3, 1), other + number(3, 1), 1), tmp_path)
    assert trace.activities.num_rows == 8
    assert "3 events" in codes(trace)["rows-lost"]


def test_a_block_that_is_shorter_than_it_says_is_damaged(tmp_path: Path) -> None:
    """What would stand in the rest is whatever the memory held."""
    whole = report_of(kernel(1), kernel(2))
    plain = counted(part(1, kernel(1)) + part(1, kernel(2)))
    packed = pa.Codec("lz4_raw").compress(plain, asbytes=True)
    lie = whole.replace(bytes([len(plain)]) + packed, bytes([len(plain) + 9]) + packed)
    assert lie != whole
    with pytest.raises(NotATrace, match="unknown layout"):
        read(lie, tmp_path)


def test_without_the_section_of_offsets_its_counts_tell_where_texts_begin(tmp_path: Path) -> None:
    """As reports of 2020 are."""
    old = sample().replace(b"Sampling Data Offsets", b"Sampling Data Tidings")
    assert old != sample()
    made, whole = read(old, tmp_path), read(sample(), tmp_path)
    assert made.activities.equals(whole.activities)
    assert codes(made) == codes(whole)


@pytest.mark.parametrize(("version", "is_told"), [("0", True), ("11060", False)])
def test_a_system_without_a_driver_is_why_nothing_ran(
    tmp_path: Path, version: str, *, is_told: bool
) -> None:
    properties = b""
    for key, value in ((605, "Some Linux"), (611, version)):
        properties += part(1, number(1, key) + part(2, value.encode()))
    head = part(1, part(2, properties))
    trace = read(file_of([], ["text"], head, b""), tmp_path)
    said = tf.analyze(trace).verdict.sentence
    assert said.startswith("No GPU work is recorded: the system had no CUDA driver.") == is_told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (BEGIN, b"QDTEXT01"),
        (b"Raw Sampling Data", b"New Sampling Data"),
        (part(1, b"lz4"), part(1, b"zst")),
        (block([kernel()]), block([b"\xff" * 30])),
    ],
)
def test_another_layout_names_the_command(tmp_path: Path, old: bytes, new: bytes) -> None:
    data = report_of(kernel())
    assert old in data
    with pytest.raises(NotATrace, match="unknown layout") as caught:
        read(data.replace(old, new), tmp_path)
    assert "nsys export --type sqlite --include-json=true" in caught.value.hint


def test_one_of_several_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "bad.nsys-rep").write_bytes(sample()[:60])
    trace = read(sample(), tmp_path)
    both = tf.read(tmp_path)
    assert both.activities.num_rows == trace.activities.num_rows
    assert "bad.nsys-rep" in codes(both)["not-a-trace"]


def test_beside_its_export_the_export_counts(tmp_path: Path) -> None:
    write_reports(run_of(), tmp_path, ALL, together=True)
    (export,) = write_sqlite(run_of(), tmp_path, ALL, together=True)
    both = tf.read(tmp_path)
    assert [file.name for file in both.source.files] == [export.name]
    assert "counts once, from run.sqlite" in codes(both)["same-run"]


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_private_is_in_no_output(tmp_path: Path, writer: Any) -> None:
    assert sample(writer).count(SECRET.encode()) > 5
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(sample(writer))
    trace = tf.read(path)
    assert SECRET not in repr([table.to_pylist() for table in trace.tables.values()])
    if writer == "2023":
        for name, text in outputs(path, tmp_path, "--include-environment").items():
            assert SECRET not in text, name


def test_a_name_that_is_a_block_of_an_environment_is_none(tmp_path: Path) -> None:
    trace = read(report_of(kernel(), texts=(f"TOKEN={SECRET}\0HOME=/root",)), tmp_path)
    assert trace.activities["name"].to_pylist() == ["(unnamed kernel)"]


def test_numbers_of_gpus_that_differ_are_not_guessed(tmp_path: Path) -> None:
    pair = part(9, number(1, 1) + number(2, 0) + number(3, 77))
    tail = part(1, part(2, pair))
    trace = read(file_of([kernel()], ["k"], b"", tail), tmp_path)
    assert "gpu-numbers" in codes(trace)
    assert trace.devices["local_id"].to_pylist() == [0]


def test_numbers_of_gpus_that_are_the_same_both_ways_are_known(tmp_path: Path) -> None:
    pairs = ((3, 0), (0, 3), (1, 1))
    numbers = [part(9, number(1, a) + number(2, b) + number(3, 77)) for a, b in pairs]
    gpus = [part(7, number(1, gpu) + part(2, b"GPU %d" % gpu)) for gpu in range(4)]
    tail = part(1, part(2, b"".join((*gpus, *numbers))))
    trace = read(file_of([kernel()], ["k"], b"", tail), tmp_path)
    assert "gpu-numbers" not in codes(trace)
    (device,) = trace.devices.to_pylist()
    assert (device["local_id"], device["product"]) == (3, "GPU 3")


OLD_GPU = part(1, b"NVIDIA GeForce RTX 3080") + number(3, 10_495_524_864) + number(6, 32)
OLD_GPU += number(7, 1_740_000) + number(9, 68) + number(22, 8) + number(23, 6) + number(25, 77)
OF_ZEROS = number(1, 0) + part(2, b"NVIDIA GeForce RTX 3080")
WITH_ZEROS = OF_ZEROS + b"".join(number(field, 0) for field in (11, 13, 14, 30, 41, 42))
IN_PART = OF_ZEROS + number(14, 68) + number(30, 32)


@pytest.mark.parametrize(
    "gpus",
    [
        part(1, OLD_GPU) + part(7, OF_ZEROS),
        part(7, WITH_ZEROS) + part(1, OLD_GPU),
        part(1, OLD_GPU) + part(7, IN_PART),
        part(7, WITH_ZEROS) + part(7, IN_PART) + part(1, OLD_GPU),
        part(1, part(1, b"NVIDIA GeForce RTX 3080") + number(25, 77)) + part(1, OLD_GPU),
    ],
)
@pytest.mark.parametrize("name", ["run.nsys-rep", "run.qdrep"])
def test_zeros_hide_no_facts_of_a_gpu(tmp_path: Path, name: str, gpus: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(file_of([kernel()], ["k"], b"", part(1, part(2, gpus))))
    (device,) = tf.read(path).devices.to_pylist()
    assert device["product"] == "NVIDIA GeForce RTX 3080"
    assert (device["memory_bytes"], device["clock_hz"]) == (10_495_524_864, 1_740_000_000)
    assert (device["sm_count"], device["warp_size"]) == (68, 32)
    assert (device["compute_major"], device["compute_minor"]) == (8, 6)


def test_what_is_0_everywhere_is_not_known(tmp_path: Path) -> None:
    tail = part(1, part(2, part(7, WITH_ZEROS)))
    (device,) = read(file_of([kernel()], ["k"], b"", tail), tmp_path).devices.to_pylist()
    facts = ("memory_bytes", "clock_hz", "sm_count", "warp_size", "compute_major", "compute_minor")
    assert [device[fact] for fact in facts] == [None] * 6


def test_the_gpus_of_reports_of_2021(tmp_path: Path) -> None:
    """They are listed by process; memory is in MiB, the clock in kHz."""
    said = part(1, b"Tesla V100-PCIE-32GB") + number(3, 32_510) + number(6, 32)
    said += number(7, 1_380_000) + number(9, 80) + number(22, 7) + number(24, 0) + number(25, 77)
    trace = read(file_of([kernel()], ["k"], b"", part(1, part(2, part(1, said)))), tmp_path)
    (device,) = trace.devices.to_pylist()
    assert (device["product"], device["sm_count"]) == ("Tesla V100-PCIE-32GB", 80)
    assert (device["memory_bytes"], device["clock_hz"]) == (32_510 << 20, 1_380_000_000)
    assert (device["compute_major"], device["compute_minor"]) == (7, 0)


FIELD = st.tuples(st.integers(1, 24), st.integers(-(2**63), 2**64 - 1)).map(lambda f: number(*f))
SUB = st.lists(FIELD | st.binary(max_size=4), max_size=9).map(b"".join)
ODD = st.builds(
    lambda kind, payload, common, sub, own: event(kind, payload, common + part(sub, own)),
    st.sampled_from([34, 48, 49, 59, 60, 79, 80, 106, 127, 130]),
    st.sampled_from([102, 107, 108, 110]),
    SUB,
    st.sampled_from([7, 101, 102, 103, 105, 106]),
    SUB,
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(ODD | st.binary(max_size=30), max_size=12), tail=SUB, head=SUB)
def test_any_number_in_any_field(
    tmp_path: Path, events: list[bytes], tail: bytes, head: bytes
) -> None:
    """Kernels that are whole are always there; sums never break."""
    whole = [kernel(place) for place in range(1, 1 + len(events) * 2)]
    data = file_of([*whole, *events], ["kernel"], head, tail, "2023")
    if not events:
        return
    trace = read(data, tmp_path)
    assert trace.activities["name"].to_pylist().count("kernel") >= len(whole)
    for device in tf.analyze(trace).devices:
        account = device.whole.account
        assert sum(account.components.parts().values()) == device.whole.span_ns


def test_how_it_is_packed_does_not_matter(tmp_path: Path) -> None:
    packed, stored = (read(sample(stored=stored), tmp_path) for stored in (False, True))
    assert stored.activities.equals(packed.activities)


@pytest.mark.parametrize("seed", some(range(36), 3))
def test_bytes_that_were_changed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(sample(WRITERS[seed % 2], stored=seed % 3 > 0))
    first = chance.choice((0, data.index(BEGIN)))
    for _ in range(chance.choice((1, 3, 20))):
        data[chance.randrange(first, len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        del data[chance.randrange(len(data)) :]
    try:
        trace = read(bytes(data), tmp_path)
    except InputError as error:
        assert error.message
        assert error.hint
        return
    for device in tf.analyze(trace).devices:
        assert sum(device.whole.account.components.parts().values()) == device.whole.span_ns


@pytest.mark.parametrize("stored", [True, False])
def test_texts_may_be_packed_as_well_as_lz4_can(tmp_path: Path, stored: bool) -> None:
    """Names of nested templates repeat themselves: 3 MB become 12 kB."""
    name = "solve<" + "tile<" * 600_000
    trace = read(report_of(kernel(), texts=(name,), stored=stored), tmp_path)
    assert not {"rows-lost", "names-lost"} & codes(trace).keys()
    assert trace.activities["name"].to_pylist()[0].startswith("solve<tile<")
