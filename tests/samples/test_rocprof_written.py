"""Every format of rocprof that the simulator writes holds the run, and the places its table says.

Read back by plain code: the readers of traceflops have no part in this.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.records import Activity, RankRun, Run
from sample_traces.rocprof.agents import CPUS
from sample_traces.rocprof.capture import counted_bytes, counted_flops
from sample_traces.rocprof.formats import CARRIES, WRITERS, Carries, part_of
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from tests.conftest import some
from tests.samples.rocprof_back import Seen, files_of, read_back, rows_of, v1_arrows

FORMATS = sorted(WRITERS)
UPTIME_NS = 9_000_000_000_000_000
OPTIONS = RocprofOptions(markers="all", collectives=True, uptime_ns=UPTIME_NS)
_DIRECTIONS = {"HtoD": "HOST_TO_DEVICE", "DtoH": "DEVICE_TO_HOST"}


@cache
def small_run(**changes: Any) -> Run:
    settings: dict[str, Any] = {
        "ranks": 2,
        "layers": 1,
        "first_step": 5,
        "lead_in": True,
        "copy_stream": True,
        "sync_each_step": True,
        "zero_length_kernels": True,
        "clock_skew_ns": 777,
    }
    return simulate(on_mi300x(**(settings | changes)))


def clock(run: Run, rank: RankRun) -> int:
    """Return the machine's clock at a rank's time 0."""
    return UPTIME_NS + rank.origin_unix_ns - run.ranks[0].origin_unix_ns


def process_of(name: str, rank: RankRun) -> int | None:
    """Return the process as rows of kernels and copies give it."""
    return None if name == "v3 csv converted" else rank.process


def kernels(name: str, run: Run) -> Counter[tuple[Any, ...]]:
    """Return the kernels of a run as the format is to show them."""
    carries = CARRIES[name]
    sized = "calls" not in name and "operations" not in name
    found: Counter[tuple[Any, ...]] = Counter()
    for rank in part_of(run, carries).ranks:
        zero_ns = clock(run, rank)
        for one in rank.activities:
            if one.work.kind == "memcpy":
                continue
            threads = prod(one.work.block)
            sizes = (prod(one.work.grid) * threads, threads) if sized else (None, None)
            times = zero_ns + one.start_ns, zero_ns + one.end_ns
            found[process_of(name, rank), one.work.name, *times, *sizes] += 1
    return found


def copies(name: str, run: Run) -> Counter[tuple[Any, ...]]:
    """Return the copies of a run without their direction's exact word."""
    found: Counter[tuple[Any, ...]] = Counter()
    for rank in part_of(run, CARRIES[name]).ranks:
        zero_ns = clock(run, rank)
        for one in rank.activities:
            if one.work.kind == "memcpy":
                way = _DIRECTIONS[one.work.direction or ""]
                times = zero_ns + one.start_ns, zero_ns + one.end_ns
                found[process_of(name, rank), way, *times] += 1
    return found


def ranges(run: Run, what: str) -> Counter[tuple[Any, ...]]:
    """Return the calls or markers of a run."""
    found: Counter[tuple[Any, ...]] = Counter()
    for rank in run.ranks:
        zero_ns = clock(run, rank)
        named = rank.calls if what == "calls" else [m for m in rank.marks if m.kind != "python"]
        for one in named:
            found[rank.process, one.name, zero_ns + one.start_ns, zero_ns + one.end_ns] += 1
    return found


def plain_directions(seen: Seen) -> Counter[tuple[Any, ...]]:
    """Return the copies seen, CopyHostToDevice and MEMORY_COPY_HOST_TO_DEVICE alike."""
    found: Counter[tuple[Any, ...]] = Counter()
    words = {"CopyHostToDevice": "HOST_TO_DEVICE", "CopyDeviceToHost": "DEVICE_TO_HOST"}
    for (process, way, *times), count in seen.copies.items():
        word = words.get(way, way.removeprefix("MEMORY_COPY_"))
        found[process, word, *times] += count
    return found


def links(run: Run, carries: Carries) -> set[tuple[int, int]]:
    """Return (start of the work, start of its call, or its id where the call is not there)."""
    found = set()
    for rank in part_of(run, carries).ranks:
        zero_ns = clock(run, rank)
        for one in rank.activities:
            call_ns = None if one.call is None else zero_ns + rank.calls[one.call].start_ns
            found.add((zero_ns + one.start_ns, one.correlation if call_ns is None else call_ns))
    return found


def test_what_the_table_describes_is_what_can_be_written() -> None:
    assert sorted(CARRIES) == FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_everything_that_fits_is_there_to_the_nanosecond(name: str, tmp_path: Path) -> None:
    run, carries = small_run(), CARRIES[name]
    WRITERS[name](run, tmp_path, OPTIONS)
    seen = read_back(name, tmp_path)
    assert seen.kernels == kernels(name, run)
    assert plain_directions(seen) == copies(name, run)
    assert seen.calls == (ranges(run, "calls") if carries.calls else Counter())
    assert seen.markers == (ranges(run, "markers") if carries.markers else Counter())
    if carries.links and name != "v1 json of calls":
        assert seen.links == links(run, carries)
    if carries.bytes and carries.copies:
        moved = [a.work.bytes for r in run.ranks for a in r.activities if a.work.kind == "memcpy"]
        assert seen.bytes == Counter(moved)
    else:
        assert not seen.bytes
    assert not seen.counters


def test_arrows_lead_from_each_call_to_its_work(tmp_path: Path) -> None:
    run = small_run()
    paths = WRITERS["v1 json of calls"](run, tmp_path, OPTIONS)
    for rank, path in zip(run.ranks, paths, strict=True):
        zero_ns = clock(run, rank)
        expected: Counter[tuple[int, int, int]] = Counter()
        for one in rank.activities:
            if one.call is not None:
                call = rank.calls[one.call]
                begin_ns = zero_ns + call.start_ns
                middle = begin_ns // 1000 + call.dur_ns // 2000
                to = (zero_ns + one.start_ns) // 1000
                expected[call.thread, min(middle, to), to] += 1
        found = Counter((a["tid"], a["ts"], b["ts"]) for a, b in v1_arrows(path))
        assert found == expected
        assert {begin["pid"] for begin, _ in v1_arrows(path)} == {2}


@pytest.mark.parametrize("name", FORMATS)
def test_each_rank_has_a_device_of_its_own(name: str, tmp_path: Path) -> None:
    WRITERS[name](small_run(), tmp_path, OPTIONS)
    seen = read_back(name, tmp_path)
    expected = {
        "v3 csv": {"Agent 2", "Agent 3"},
        "v3 csv converted": {"Agent 2", "Agent 3"},
        "v3 csv by type": {"GPU 0", "GPU 1"},
        "v3 csv, ROCm 6.2": {"2", "3"},
        "v3 csv, ROCm 6.3": {"2", "3"},
        "pftrace of rocprof-sys": {0, 1},
    }
    if CARRIES[name].device:
        assert seen.devices == expected.get(name, {CPUS, CPUS + 1})
    else:
        assert not seen.devices
    # Compute and communication; on the third stream there are only copies.
    assert len(seen.streams) in ({2, 3} if CARRIES[name].streams else {0})


@pytest.mark.parametrize("name", [name for name in FORMATS if CARRIES[name].collectives])
def test_the_calls_of_rccl_lie_around_their_launches(name: str, tmp_path: Path) -> None:
    run = small_run()
    WRITERS[name](run, tmp_path, OPTIONS)
    seen = read_back(name, tmp_path)
    expected = [
        (rank.process, clock(run, rank) + rank.calls[one.call].start_ns)
        for rank in run.ranks
        for one in rank.activities
        if one.collective is not None and one.call is not None
    ]
    assert seen.collectives.total() == len(expected) > 0
    for process, name_, start_ns, end_ns in seen.collectives:
        assert name_ == "ncclAllReduce"
        inside = [at for own, at in expected if own == process and start_ns < at < end_ns]
        assert len(inside) == 1
        assert not any(
            own == process and start < end_ns and start_ns < end and not start_ns < start < end_ns
            for own, _, start, end in seen.calls
        )


@pytest.mark.parametrize(
    ("name", "dtype"),
    some(product((one for one in FORMATS if CARRIES[one].counters), ["bf16", "fp16", "fp32"]), 4),
)
def test_counters_say_the_flops_and_bytes_of_every_kernel(
    name: str, dtype: Any, tmp_path: Path
) -> None:
    run = small_run(dtype=dtype, ranks=1, steps=1)
    WRITERS[name](run, tmp_path, RocprofOptions(counters=True, uptime_ns=UPTIME_NS))
    seen = read_back(name, tmp_path)
    works = [a for r in run.ranks for a in r.activities if a.work.kind == "kernel"]
    works.sort(key=lambda one: (one.correlation, one.graph_node or 0))
    assert sorted(dispatch for _, dispatch in seen.counters) == list(range(1, len(works) + 1))
    for (_, dispatch), values in seen.counters.items():
        work = works[dispatch - 1].work
        matrix = sum(v for n, v in values.items() if n.startswith("SQ_INSTS_VALU_MFMA_MOPS_"))
        assert matrix * 512 == counted_flops(work)
        read = 64 * values["TCC_EA0_RDREQ_sum"] - 32 * values["TCC_EA0_RDREQ_32B_sum"]
        read += 64 * values["TCC_BUBBLE_sum"]
        written = 32 * (values["TCC_EA0_WRREQ_sum"] + values["TCC_EA0_WRREQ_64B_sum"])
        assert read + written == counted_bytes(work)
        assert abs(counted_flops(work) - work.flops) <= 256
        assert 0 <= counted_bytes(work) - work.bytes < 32
    products = [one.work for one in works if one.work.sub == "gemm"]
    # Products of this model are whole numbers of matrix operations: nothing is rounded.
    assert products
    assert all(counted_flops(work) == work.flops for work in products)


@pytest.mark.parametrize("name", FORMATS)
def test_without_asking_there_are_only_kernels(name: str, tmp_path: Path) -> None:
    options = RocprofOptions(calls=False, copies=False, markers="none", uptime_ns=UPTIME_NS)
    WRITERS[name](small_run(), tmp_path, options)
    seen = read_back(name, tmp_path)
    assert seen.kernels == kernels(name, small_run())
    assert not seen.copies
    assert not seen.calls
    assert not seen.markers
    assert not seen.collectives


@pytest.mark.parametrize("name", some(FORMATS, 4))
def test_the_same_run_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    first = WRITERS[name](small_run(), tmp_path / "first", OPTIONS)
    again = WRITERS[name](small_run(), tmp_path / "again", OPTIONS)
    assert [path.relative_to(tmp_path / "first") for path in first] == [
        path.relative_to(tmp_path / "again") for path in again
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert len(first) == len(set(first)) > 0


def test_a_trace_without_times_has_only_what_kernels_did(tmp_path: Path) -> None:
    options = RocprofOptions(times=False, counters=True)
    WRITERS["v1 csv"](small_run(), tmp_path, options)
    (row, *_) = rows_of(tmp_path / "rank0" / "results.csv")
    assert "BeginNs" not in row
    assert "TCC_BUBBLE_sum" in row
    WRITERS["v3 csv"](small_run(), tmp_path / "v3", options)
    assert not list(files_of(tmp_path / "v3", "kernel_trace.csv"))
    assert list(files_of(tmp_path / "v3", "counter_collection.csv"))


@pytest.mark.parametrize("name", ["v3 json, ROCm 7.13", "rocpd 3.0.2"])
def test_kernels_of_a_graph_share_one_call(name: str, tmp_path: Path) -> None:
    run = small_run(cuda_graph=True, ranks=1)
    WRITERS[name](run, tmp_path, OPTIONS)
    seen = read_back(name, tmp_path)
    (rank,) = run.ranks
    replayed = [a for a in rank.activities if a.graph_node is not None]
    calls = {start for start, _ in links_of(replayed, rank, clock(run, rank))}
    assert len(calls) == run.config.steps
    assert {call for _, call in seen.links} >= calls


def links_of(works: list[Activity], rank: RankRun, zero_ns: int) -> set[tuple[int, int]]:
    return {
        (zero_ns + rank.calls[one.call].start_ns, one.correlation)
        for one in works
        if one.call is not None
    }


def test_times_near_the_limit_of_doubles_stay_exact(tmp_path: Path) -> None:
    options = RocprofOptions(uptime_ns=2**53 - 1_000_000)
    for name in ("v1 json", "v1 database", "v3 csv", "v3 json", "rocpd 3.0.0"):
        WRITERS[name](small_run(), tmp_path / name, options)
        ends = {record[3] for record in read_back(name, tmp_path / name).kernels}
        assert max(ends) > 2**53
        assert any(end % 2 for end in ends if end > 2**53)


def test_only_devices_of_amd_can_be_profiled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on_mi300x"):
        WRITERS["v1 csv"](simulate(RunConfig(layers=1, steps=1)), tmp_path, OPTIONS)
    opaque = simulate(on_mi300x(layers=1, steps=1, cuda_graph=True, opaque_graph=True))
    with pytest.raises(ValueError, match="whole graph"):
        WRITERS["v1 csv"](opaque, tmp_path, OPTIONS)
