"""Reports of Nsight Compute themselves: the same rows as on their pages, however damaged they are.

The identity of figures with pages is in test_same_work.py.
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
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.messages import number, part
from sample_traces.nsight.ncu import launches, write_details, write_raw
from sample_traces.nsight.ncu_report import (
    RULE,
    RULE_TEXT,
    VERSION,
    block,
    counted,
    file_of,
    metric,
    report,
    rule,
    triple,
    value_of,
    write_report,
)
from sample_traces.nsight.report import SECRET
from sample_traces.records import Run
from sample_traces.simulate import simulate
from tests.build import trace_of
from tests.conftest import every, examples
from tests.findings.test_counted_kernels import ACTIVE, ALU, DRAM, ELAPSED, FP64, SM, TIME, WAVES
from tests.privacy.test_environment import outputs
from traceflops.errors import InputError, NotATrace
from traceflops.reports.view.findings import headline

NAMES = ["dram__bytes_read.sum", "launch__device_id", "launch__grid_size"]


@cache
def run_of() -> Run:
    return simulate(RunConfig(layers=1, steps=2, vocab=512, ranks=1))


@cache
def sample(kernels: int = 6) -> bytes:
    return report(run_of(), launches(run_of())[:kernels])


def read(data: bytes, folder: Path, name: str = "kernels.ncu-rep") -> tf.Trace:
    path = folder / name
    path.write_bytes(data)
    return tf.read(path)


def notes(trace: tf.Trace) -> dict[str, str]:
    return {note.code: note.text for note in trace.notes}


def counts(trace: tf.Trace) -> dict[str, int | None]:
    return {note.code: note.count for note in trace.notes}


def kernel(*metrics: bytes, name: str = "gemm", rules: tuple[bytes, ...] = ()) -> bytes:
    """Return a result of blocks of 64 threads, eight of them."""
    given = metrics or (metric(0, 5.0),)
    said = part(7, name.encode()) + part(10, triple((8, 1, 1))) + part(11, triple((64, 1, 1)))
    said += b"".join(part(13, one) for one in given)
    return said + b"".join(part(19, one) for one in rules)


def report_of(*kernels: bytes, version: int = 7, **more: Any) -> bytes:
    return file_of([block(results=kernels, texts=NAMES, **more)], version)


def gpu(place: int, product: str) -> bytes:
    attribute = part(1, b"device__attribute_display_name") + part(2, value_of(product))
    return block(session=part(6, number(1, place) + part(3, attribute)))


def test_the_tables_are_those_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    page = tf.read(write_raw(run_of(), tmp_path / "page" / "kernels.csv"))
    trace = tf.read(write_report(run_of(), tmp_path / "kernels.ncu-rep"))
    wanted = page.kernel_counters["counter"].unique().to_pylist()
    rows = [row for row in trace.kernel_counters.to_pylist() if row["counter"] in wanted]
    key = lambda row: (row["dispatch"], row["counter"])  # noqa: E731
    assert sorted(rows, key=key) == sorted(page.kernel_counters.to_pylist(), key=key)
    (device,), (theirs,) = trace.devices.to_pylist(), page.devices.to_pylist()
    assert device["product"] == "NVIDIA H100 80GB HBM3"
    assert device["sm_count"] == 132
    assert device["architecture"] == theirs["architecture"] == "sm90"
    assert trace.processes["pid"].to_pylist() == page.processes["pid"].to_pylist()


def test_the_rules_are_those_of_the_page(tmp_path: Path) -> None:
    said = "In @source:7f5e:line 12@ of a@b.c, see @section:Occupancy@ and @url:Docs:https://x.y/z@"
    rules = (
        rule("A", said, 2),
        rule("B", "fact", 1, (1, 12.5)),
        part(1, b"silent"),
        rule("C", "x", 9),
    )
    trace = read(report_of(kernel(rules=rules)), tmp_path)
    columns = (
        "rule",
        "section",
        "kind",
        "text",
        "speedup_share",
        "speedup_kind",
        "name",
        "dispatch",
    )
    found = [tuple(row[c] for c in columns) for row in trace.kernel_rules.to_pylist()]
    told = "In line 12 of a@b.c, see Occupancy and Docs (https://x.y/z)"
    assert sorted(found, key=str) == [
        ("A", "Occupancy", "WRN", told, None, None, "gemm", 0),
        ("B", "Occupancy", "INF", "fact", 0.125, "local", "gemm", 0),
        ("C", "Occupancy", None, "x", None, None, "gemm", 0),
    ]
    (row, *_) = read(sample(), tmp_path).kernel_rules.to_pylist()
    assert (row["rule"], row["text"], row["kind"]) == (RULE, RULE_TEXT, "OPT")
    assert (row["speedup_share"], row["speedup_kind"]) == (pytest.approx(0.8034), "global")


def test_the_writer_and_what_is_not_read(tmp_path: Path) -> None:
    trace = read(sample(), tmp_path)
    assert trace.source.format == "ncu report"
    assert trace.source.facts["tool_version"] == VERSION
    assert trace.source.facts["created"].endswith(" UTC")
    said = notes(trace)["raw-report"]
    assert f"written by Nsight Compute {VERSION}" in said
    assert "(12)" in said  # two opcodes of each of six kernels
    assert counts(trace)["not-available"] == counts(trace)["no-number"] == 6


@pytest.mark.parametrize(
    ("metrics", "grid"),
    [
        ([("launch__grid_size", 8), ("launch__thread_count", 512)], [8, 1, 1]),
        ([("launch__grid_size", 8.0), ("launch__thread_count", 8.0)], [8, 1, 1]),
        ([("launch__thread_count", 8)], None),  # no whole blocks of 64
        ([], None),  # nothing tells
        ([(f"launch__grid_dim_{axis}", 2) for axis in "xyz"], [2, 2, 2]),
    ],
)
def test_the_grid_of_a_report_without_a_version(
    tmp_path: Path, metrics: list[tuple[str, int]], grid: list[int] | None
) -> None:
    texts = ["x", *(name for name, _ in metrics)]
    own = [metric(place, value) for place, (_, value) in enumerate(metrics, 1)]
    data = file_of([block(results=[kernel(metric(0, 1.0), *own)], texts=texts)])
    row = read(data, tmp_path).kernel_counters.to_pylist()[0]
    assert row["grid"] == grid
    assert row["block"] == [64, 1, 1]


def test_of_a_metric_that_is_there_twice_the_last_counts(tmp_path: Path) -> None:
    trace = read(report_of(kernel(metric(0, 1.0), metric(0, 2.0))), tmp_path)
    assert trace.kernel_counters["value"].to_pylist() == [2.0]


def test_values_that_are_none(tmp_path: Path) -> None:
    odd = [metric(1, None, [(1, 2)]), metric(2, float("nan")), metric(3, "text"), metric(9, 1.0)]
    data = file_of([block(results=[kernel(metric(0, 5), *odd)], texts=[*"abcd"])])
    trace = read(data, tmp_path)
    assert trace.kernel_counters["counter"].to_pylist() == ["a"]
    found = counts(trace)
    for code in ("instances-unread", "not-available", "no-number", "names-lost"):
        assert found[code] == 1, code


def test_blocks_add_to_the_texts_of_the_file_also_after_results(tmp_path: Path) -> None:
    both = kernel(metric(0, 1.0), metric(1, 2.0))
    blocks = [block(results=[both], texts=["a"]), block(texts=["b"]), block(results=[both])]
    trace = read(file_of(blocks), tmp_path)
    assert trace.kernel_counters["counter"].to_pylist() == [*"abab"]


def test_processes_and_devices(tmp_path: Path) -> None:
    on = [kernel(metric(0, 1.0), metric(1, float(device))) for device in (1, 0)]
    blocks = [block(77, results=on[:1], texts=NAMES), block(78, results=on[1:])]
    trace = read(file_of([*blocks, gpu(0, "NVIDIA A"), gpu(1, "NVIDIA B")]), tmp_path)
    products, pids = trace.devices["product"].to_pylist(), trace.processes["pid"].to_pylist()
    rows = trace.kernel_counters.to_pylist()
    assert {(pids[r["process"]], products[r["device"]], r["dispatch"]) for r in rows} == {
        (77, "NVIDIA B", 0),
        (78, "NVIDIA A", 1),
    }


def test_a_device_is_known_by_its_kernels_where_the_session_is_lost(tmp_path: Path) -> None:
    facts: dict[str, int | str] = {"display_name": "NVIDIA H100", "compute_capability_major": 9}
    facts |= {"compute_capability_minor": 0}
    texts = ["x", *(f"device__attribute_{name}" for name in facts)]
    own = [metric(place, value) for place, value in enumerate(facts.values(), 1)]
    data = file_of([block(results=[kernel(metric(0, 1.0), *own)], texts=texts)])
    (device,) = read(data, tmp_path).devices.to_pylist()
    assert (device["product"], device["architecture"]) == ("NVIDIA H100", "sm90")


def test_results_of_ranges_are_counted(tmp_path: Path) -> None:
    trace = read(report_of(kernel(), ranges=[b"x", b"y"], sources=[b"z"]), tmp_path)
    assert counts(trace)["ranges-unread"] == 2
    assert trace.source.event_counts["launches"] == 1


def test_a_cut_report_is_read_up_to_the_cut(tmp_path: Path) -> None:
    blocks = [block(results=[kernel(name=name)], texts=NAMES) for name in "abcdef"]
    whole = file_of(blocks)
    ends = [len(file_of(blocks[:count])) for count in range(7)]
    around = {end + more for end in ends for more in (-1, 0, 1)} & {*range(ends[0], len(whole))}
    for at in sorted({*range(ends[0], len(whole), every(7)), *around}):
        kernels = sum(end <= at for end in ends) - 1
        if not kernels:
            with pytest.raises(InputError):
                read(whole[:at], tmp_path)
            continue
        trace = read(whole[:at], tmp_path)
        assert trace.kernel_counters["name"].to_pylist() == [*"abcdef"[:kernels]]
        assert counts(trace).get("input-cut") == (None if at in ends else kernels)
    with pytest.raises(InputError, match="cut off or damaged"):
        tf.read(tmp_path / "kernels.ncu-rep", strict=True)


def test_a_report_that_ends_in_zeros_is_cut(tmp_path: Path) -> None:
    for zeros in (report_of(kernel()) + bytes(10_000), report_of(kernel(), *[b""] * 999)):
        trace = read(zeros, tmp_path)
        assert trace.source.event_counts["launches"] == 1
        assert counts(trace)["input-cut"] == 1


def test_a_damaged_kernel_is_left_out(tmp_path: Path) -> None:
    trace = read(report_of(kernel(name="a"), b"\xff" * 9, kernel(name="c")), tmp_path)
    assert trace.kernel_counters["name"].to_pylist() == ["a", "c"]
    assert counts(trace)["rows-lost"] == 1
    with pytest.raises(InputError, match="damaged"):
        tf.read(tmp_path / "kernels.ncu-rep", strict=True)


@pytest.mark.parametrize("data", [report_of(kernel(), version=8), b"NVR\0", b"NVR\0" + bytes(99)])
def test_another_version_names_the_command(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(NotATrace, match="unknown layout") as caught:
        read(data, tmp_path, "two words.ncu-rep")
    path = tmp_path / "two words.ncu-rep"
    assert f"ncu --import '{path}' --csv --page raw" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (file_of([gpu(0, "NVIDIA A")]), "no rows"),
        (file_of([gpu(0, "NVIDIA A")])[:-1], "cut off or damaged before"),
        (report_of(b"\xff"), "no readable row"),
        (report_of(ranges=[b"x"]), "results of ranges only"),
        (report_of(kernel(metric(0, None))), "no metric has a value"),
    ],
)
def test_a_report_without_a_value(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(data, tmp_path)
    assert caught.value.hint


def test_packed_or_by_another_name_it_is_the_same(tmp_path: Path) -> None:
    plain = read(sample(), tmp_path)
    zstd = pa.Codec("zstd").compress(sample(), asbytes=True)
    for name, data in (
        ("a.ncu-repz", zstd),
        ("b.nsight-cuprof-report", sample()),
        ("c.csv.gz", gzip.compress(sample())),
    ):
        assert read(data, tmp_path, name).kernel_counters.equals(plain.kernel_counters)


@pytest.mark.parametrize("units", ["base", "auto"])
def test_beside_its_page_it_counts_once(tmp_path: Path, units: Any) -> None:
    alone = tf.read(write_report(run_of(), tmp_path / "kernels.ncu-rep"))
    write_raw(run_of(), tmp_path / "a.csv", units=units)
    both = tf.read(tmp_path)
    assert both.kernel_counters.equals(alone.kernel_counters)
    assert counts(both)["page-repeated"] == 1


def test_beside_its_details_rules_count_once(tmp_path: Path) -> None:
    write_details(run_of(), tmp_path / "details.csv", layout="rules")
    page = tf.read(tmp_path)
    write_report(run_of(), tmp_path / "kernels.ncu-rep")
    both = tf.read(tmp_path)
    assert both.processes.num_rows == 1
    assert both.kernel_rules.num_rows == 2 * page.kernel_rules.num_rows  # each has one of its own


def test_what_is_private_is_in_no_output(tmp_path: Path) -> None:
    assert sample().count(SECRET.encode()) > 9
    path = tmp_path / "kernels.ncu-rep"
    path.write_bytes(sample())
    trace = tf.read(path)
    assert SECRET not in repr([table.to_pylist() for table in trace.tables.values()])
    assert SECRET not in repr((trace.source, trace.notes))
    for name, text in outputs(path, tmp_path, "--include-environment").items():
        assert SECRET not in text, name


FIELD = st.tuples(st.integers(1, 28), st.integers(-(2**63), 2**64 - 1)).map(lambda f: number(*f))
SUB = st.lists(FIELD | st.binary(max_size=4), max_size=6).map(b"".join)
DEEP = st.builds(part, st.integers(1, 28), SUB | st.builds(part, st.integers(1, 28), SUB))
ODD = st.lists(DEEP | FIELD | st.binary(max_size=9), max_size=8).map(b"".join)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd=st.lists(ODD.filter(bool), max_size=4), session=ODD, head=ODD)
def test_any_number_in_any_field(
    tmp_path: Path, odd: list[bytes], session: bytes, head: bytes
) -> None:
    """Kernels that are whole are always there."""
    blocks = [block(session=session), block(results=[kernel(), *odd, kernel()], texts=NAMES)]
    trace = read(file_of([*blocks, counted(head)]), tmp_path)
    assert trace.kernel_counters["name"].to_pylist().count("gemm") >= 2
    tf.analyze(trace)


@pytest.mark.parametrize("seed", range(24))
def test_bytes_that_were_changed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(sample(3))
    for _ in range(chance.choice((1, 3, 20))):
        data[chance.randrange(4, len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        del data[chance.randrange(len(data)) :]
    try:
        tf.analyze(read(bytes(data), tmp_path))
    except InputError as error:
        assert error.hint


DEBUGGED = b"\0.nv_debug_info_reg_sass\0.debug_info"
SPEEDS = {SM: 80.0, DRAM: 5.0, TIME: 1e6, ELAPSED: 1e6, ACTIVE: 9e5, WAVES: 8.0, ALU: 80.0}


@pytest.mark.parametrize(
    ("sections", "said", "remedy"),
    [
        (b"\0.debug_line\0.nv_debug_line_sass\0.text.gemm\0", "gemm", "Spend fewer"),
        (DEBUGGED + b"\0.text.gemm\0", "The kernels were built for the debugger", ""),
        (DEBUGGED + b"\0.text.another\0", "gemm", "Spend fewer"),
    ],
)
def test_code_built_for_the_debugger_is_said_first_and_not_to_be_changed(
    sections: bytes, said: str, remedy: str, tmp_path: Path
) -> None:
    metrics = [metric(place, value) for place, value in enumerate(SPEEDS.values())]
    one = kernel(*metrics) + part(5, b"gemm")
    code = part(4, b"\x7fELF" + sections)
    trace = read(file_of([block(sources=[code], results=[one], texts=[*SPEEDS])]), tmp_path)
    analysis = tf.analyze(trace)
    assert headline(analysis).sentence.startswith(said)
    assert analysis.findings[0].remedy[:11] == remedy


def test_only_kernels_built_for_the_debugger_get_no_advice(tmp_path: Path) -> None:
    metrics = [metric(place, value) for place, value in enumerate(SPEEDS.values())]
    named = [kernel(*metrics, name=name) + part(5, name.encode()) for name in ("gemm", "other")]
    code = part(4, b"\x7fELF" + DEBUGGED + b"\0.text.gemm\0")
    trace = read(file_of([block(sources=[code], results=named, texts=[*SPEEDS])]), tmp_path)
    findings = [one for one in tf.analyze(trace).findings if one.rule == "counted-kernel"]
    told = {one.sentence.split(" ")[0]: one.remedy[:11] for one in findings}
    assert told == {"gemm": "", "other": "Spend fewer"}


TURING = {"product": "NVIDIA GeForce RTX 2080 Ti", "compute_major": 7, "compute_minor": 5}
VOLTA = {"product": "Tesla V100-SXM2-16GB", "compute_major": 7, "compute_minor": 0}


@pytest.mark.parametrize(
    ("device", "busy", "said"),
    [
        (TURING, 76.0, "gemm"),
        (TURING, 0.0, "The kernels were built for the debugger"),
        (VOLTA, 76.0, "The kernels were built for the debugger"),  # half as fast as at FP32
    ],
)
def test_fp64_is_said_before_the_debugger_where_the_gpu_is_slow_at_it(
    device: dict[str, Any], busy: float, said: str, tmp_path: Path
) -> None:
    counters = {**SPEEDS, FP64: busy}
    metrics = [metric(place, value) for place, value in enumerate(counters.values())]
    one = kernel(*metrics) + part(5, b"gemm")
    code = part(4, b"\x7fELF" + DEBUGGED + b"\0.text.gemm\0")
    trace = read(file_of([block(sources=[code], results=[one], texts=[*counters])]), tmp_path)
    trace = replace(trace, tables={**trace.tables, "devices": trace_of(devices=[device]).devices})
    analysis = tf.analyze(trace)
    assert headline(analysis).sentence.startswith(said)
    assert analysis.findings[0].remedy.startswith("Compute in FP32") == bool(busy)
    assert ("also built" in analysis.verdict.sentence) == (said == "gemm")
