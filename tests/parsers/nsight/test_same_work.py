"""What kernels did, by pages of Nsight Compute and by shapes: as the simulator's truth has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import traceflops as tf
from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.nsight.formats import PAGES, WRITERS
from sample_traces.nsight.names import bare, demangled
from sample_traces.nsight.ncu import Launch, launches, metrics_of, write_raw
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import Run
from sample_traces.simulate import simulate
from sample_traces.truth import truth
from tests.conftest import some
from traceflops.mfu.measurement import Measurement

pytestmark = pytest.mark.slow

PEAK: dict[str, int] = {"bf16": 989_400, "fp16": 989_400}
"""FLOP per ns of an H100 SXM, dense, on NVIDIA's data sheet."""
EXACT = ("raw", "details in base units", "report", "report of 2019")
TIMED = ("nsys 2020", "nsys 2023", "nsys 2026", "nsys parquetdir", "stats 2021", "stats in us")


@cache
def run_of(dtype: str = "bf16", *, graph: bool = False, ranks: int = 1) -> Run:
    settings: dict[str, Any] = {"dtype": dtype, "cuda_graph": graph, "ranks": ranks}
    settings |= {"lead_in": True, "sync_each_step": True, "copy_stream": True}
    return simulate(RunConfig(layers=2, steps=4, vocab=2048, **settings))


def timed(run: Run, name: str = "nsys 2026", **options: Any) -> tf.Trace:
    return _read(lambda folder: WRITERS[name](run, folder, NsightOptions(**options)))


def shaped(run: Run) -> tf.Trace:
    return _read(lambda folder: write_pytorch(run, folder, KinetoOptions(compression="none")))


def page(run: Run, name: str = "raw") -> tf.Trace:
    return _read(lambda folder: PAGES[name](run, folder / "kernels.ncu.csv"))


def _read(write: Callable[[Path], object]) -> tf.Trace:
    with TemporaryDirectory() as folder:
        write(Path(folder))
        return tf.read(folder)


def measured(trace: tf.Trace, pair: tf.Trace) -> Measurement:
    return tf.analyze(trace, pair=pair).measured


def in_used_steps(run: Run) -> Iterator[tuple[int, int]]:
    """Yield (FLOPs, length) of the steps that figures are taken of: all but the last."""
    for device in truth(run).ranks:
        yield from ((step.flops, step.length_ns) for step in device.steps()[:-1])


# The page by itself


@pytest.mark.parametrize(
    ("name", "dtype"), some(product(sorted(PAGES), ["bf16", "fp16", "fp32"]), 7)
)
def test_a_page_holds_the_metrics_of_every_launch(name: str, dtype: str) -> None:
    run = run_of(dtype)
    trace = page(run, name)
    found = {
        (row["dispatch"], row["name"], row["counter"]): row
        for row in trace.kernel_counters.to_pylist()
    }
    assert trace.activities.num_rows == 0
    for launch in launches(run):
        work = launch.activity.work
        size = work.block[0] * work.block[1] * work.block[2]
        grid = work.grid[0] * work.grid[1] * work.grid[2]
        for metric in metrics_of(work, run.config.dtype):
            key = launch.number, bare(work.name), metric.name
            if key not in found:  # a label of the details page that stands for it
                unit = {"hz": "Hz"}.get(metric.unit, metric.unit)
                key = (*key[:2], f"{metric.section}|{metric.label}|{unit}")
            row = found.pop(key)
            assert (row["threads"], row["block_threads"]) == (grid * size, size)
            rounded = name not in EXACT and metric.unit in ("byte", "ns")
            assert row["value"] == pytest.approx(metric.value, rel=0.005 if rounded else 0)
    assert {counter for _, _, counter in found} <= {
        "Launch Statistics|Grid Size|",
        "Launch Statistics|Block Size|",
        *(f"launch__{name}" for name in ("grid_size", "block_size", "thread_count", "device_id")),
    }
    assert {row["architecture"] for row in trace.devices.to_pylist()} <= {"sm90", None}


# Beside a timed run


@pytest.mark.parametrize(("name", "counted"), some(product(TIMED, sorted(PAGES)), 11))
def test_counters_of_all_launches_are_exact(name: str, counted: str) -> None:
    run = run_of()
    found = measured(timed(run, name), page(run, counted))
    flops, length_ns = (sum(column) for column in zip(*in_used_steps(run), strict=True))
    assert found.executed.executed_flops == flops
    assert found.is_exact
    assert found.hfu == Fraction(flops, length_ns * PEAK["bf16"])
    assert found.mfu is None
    work = found.executed.work
    assert work is not None
    (join,) = work.joins
    compute = sum(
        one.work.top == "compute" and one.step in run.config.step_numbers[:-1]
        for one in run.ranks[0].activities
    )
    assert (join.known, join.launches) == (compute, compute)


@pytest.mark.parametrize(("dtype", "graph"), [("fp16", False), ("bf16", True)])
def test_of_another_type_and_of_nodes_of_a_graph(dtype: str, graph: bool) -> None:
    run = run_of(dtype, graph=graph)
    found = measured(timed(run), page(run))
    flops, length_ns = (sum(column) for column in zip(*in_used_steps(run), strict=True))
    assert found.executed.executed_flops == flops
    assert found.hfu == Fraction(flops, length_ns * PEAK[dtype])


@pytest.mark.parametrize("counted", some(sorted(PAGES), 3))
def test_bytes_and_flops_of_each_kernel(counted: str) -> None:
    run = run_of()
    found = {row.name: row for row in measured(timed(run), page(run, counted)).kernels}
    flops: Counter[str] = Counter()
    bytes_: Counter[str] = Counter()
    for one in run.ranks[0].activities:
        if one.work.top == "compute" and one.step in run.config.step_numbers[:-1]:
            flops[demangled(one.work.name)] += one.work.flops
            bytes_[demangled(one.work.name)] += one.work.bytes
    for name, expected in flops.items():
        row = found[name]
        assert row.basis == "counters"
        assert row.measured.flops == expected
        rel = 0 if counted in EXACT else 0.005
        assert row.measured.min_bytes == pytest.approx(bytes_[name], rel=rel)


def test_products_by_threads_stand_beside_those_of_tensor_cores() -> None:
    run = run_of("fp32")
    found = {row.name: row for row in measured(timed(run), page(run)).kernels}
    flops: Counter[str] = Counter()
    for one in run.ranks[0].activities:
        if one.work.flops and one.step in run.config.step_numbers[:-1]:
            flops[demangled(one.work.name)] += one.work.flops
    assert {name: found[name].vector_flops for name in flops} == flops


def test_ranks_are_counted_alike_by_the_page_of_one() -> None:
    """Products of one tile and grid may differ in depth: each rank launches them in that order."""
    run = run_of(ranks=2)
    found = measured(timed(run), page(run))
    flops = sum(flops for flops, _ in in_used_steps(run))
    length_ns = sum(length_ns for _, length_ns in in_used_steps(run))
    assert found.hfu == Fraction(flops, length_ns * PEAK["bf16"])
    assert found.hfu_range is not None
    assert found.hfu_range.least == found.hfu_range.most == found.hfu


def test_one_launch_of_each_kernel_is_enough_where_all_do_the_same() -> None:
    run = run_of()
    first: dict[tuple[Any, ...], Launch] = {}
    kinds: dict[tuple[Any, ...], set[int]] = {}
    for launch in launches(run):
        work = launch.activity.work
        first.setdefault((work.name, work.grid, work.block), launch)
        kinds.setdefault((work.name, work.grid, work.block), set()).add(work.flops)
    steady = [launch for key, launch in first.items() if len(kinds[key]) == 1]
    pair = _read(lambda folder: write_raw(run, folder / "few.ncu.csv", steady))
    found = {row.name: row for row in measured(timed(run), pair).kernels}
    expected: Counter[str] = Counter()
    told = {launch.activity.work.name for launch in steady}
    told -= {key[0] for key, several in kinds.items() if len(several) > 1}
    for one in run.ranks[0].activities:
        if one.work.name in told and one.step in run.config.step_numbers[:-1]:
            expected[demangled(one.work.name)] += one.work.flops
    assert sum(expected.values()) > 0
    for name, flops in expected.items():
        if flops:
            assert found[name].measured.flops == flops


# Shapes instead of counters


@pytest.mark.parametrize(("name", "ranks"), some(product(TIMED, [2, 1]), 5))
def test_shapes_of_a_pytorch_trace_for_times_of_nsight(name: str, ranks: int) -> None:
    run = run_of(ranks=ranks)
    found = measured(timed(run, name), shaped(run))
    own = tf.analyze(shaped(run)).measured
    assert found.executed.executed_flops == own.executed.executed_flops
    assert (found.mfu, found.hfu) == (own.mfu, own.hfu)
    assert own.executed.executed_flops == sum(flops for flops, _ in in_used_steps(run))


def test_counters_agree_with_the_shapes_of_a_pytorch_trace() -> None:
    run = run_of()
    alone, paired = tf.analyze(shaped(run)).measured, measured(shaped(run), page(run))
    assert (paired.mfu, paired.hfu) == (alone.mfu, alone.hfu)
    codes = {note.code for note in paired.notes}
    assert "counters-joined" in codes
    assert not codes & {"counters-absent", "counters-differ-from-shapes"}


@pytest.mark.parametrize("name", ["nsys 2020", "nsys 2026", "nsys arrowdir"])
def test_sizes_in_ranges_of_emit_nvtx(name: str) -> None:
    """They lack what is no tensor: whether attention is causal, so FLOPs lie between bounds."""
    run = run_of()
    found = tf.analyze(timed(run, name, ops=True)).measured
    own = tf.analyze(shaped(run)).measured
    assert own.mfu is not None
    assert found.mfu_range is not None
    assert found.mfu_range.least <= own.mfu <= found.mfu_range.most
    products = [
        {row.name: row.measured.flops for row in one.kernels if "nvjet" in row.name}
        for one in (found, own)
    ]
    assert products[0] == products[1] != {}
