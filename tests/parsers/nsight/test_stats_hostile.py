"""Tables of Nsight that were damaged in any way give a trace or an error that says why."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parsers.nsight.test_ncu import METRIC, NEW, RULES, header, launched, line
from tests.parsers.nsight.test_recipe import RANGES as RECIPE
from tests.parsers.nsight.test_stats import CALLS, RANGES, SUMS, TRACE, call, copy, kernel
from traceflops.errors import InputError
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.parsers.nsight.ncu_pages import read_ncu
from traceflops.parsers.nsight.ncu_trace import runs, trace_of
from traceflops.parsers.nsight.stats_read import read_stats
from traceflops.parsers.nsight.stats_trace import Assembly
from traceflops.parsers.recognise import recognise
from traceflops.parsers.shared.formats import Reading
from traceflops.parsers.shared.sanity_checks import plausible
from traceflops.table.trace import Trace


def _text(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _parquet() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(RECIPE), stream)
    return stream.getvalue()


FILES: Mapping[str, bytes] = {
    "x_cuda_gpu_trace.csv": _text(
        TRACE, *(kernel(100 * i, 60, i, '"f<1, 2>(int)"') for i in range(9)), copy(1, 2, 3, "1", "")
    ),
    "x_cuda_api_trace.csv": _text(CALLS, *(call(90 * i, "cudaLaunchKernel", i) for i in range(9))),
    "x_nvtx.csv": _text(RANGES, *(f"{i},9,9,0,9,r,42,43,0,0,{i},,:1,r" for i in range(9))),
    "x_sum.csv": _text(SUMS, "60.0,60,2,30.0,30.0,20,40,1.0,a", SUMS, "1,1,1,1,1,1,1,1,b"),
    "x.txt": _text(
        "Processing [x] with [y]",
        " Time (%)  Total Time (us)  Instances  Name",
        " --------  ---------------  ---------  ----",
        "     98,7      1.355.463,1      1.024  a",
        "      1,3         17.853,0         10  b",
    ),
    "x.ncu.csv": _text(
        header(NEW, METRIC, RULES),
        line(*launched(), "Occupancy", "Block Limit SM", "block", "24") + ",",
        line(*launched(), "Occupancy", "", "", "", "Limit", "OPT", "a", "global", "80.3"),
    ),
    "raw.csv": _text(
        header(NEW, "dram__bytes_read.sum|smsp__inst_executed.sum"),
        line(*[""] * 11, "Kbyte", "inst"),
        line(*launched(0), "32.77", "1,000"),
    ),
    "trace.parquet": _parquet(),
}
PIECES = (
    *(b'"', b",", b"\n", b"\r", b"\0", b"\xff", b";", b"-", b'","', b'""', b"\n\n", b"  ", b"|"),
    *(b"9" * 19, b"1e99", b"n/a", b"(", b")", b"\xef\xbb\xbf", b"----------", b"Gbyte", b"."),
    *(b"Time (%)", b"Name", b"(ns)", b"==PROF== x\n", b"Processing [x", b"9" * 400),
)


def source_of(name: str, data: bytes) -> ByteSource:
    return ByteSource(name, lambda: io.BytesIO(data), len(data))


def outcome(name: str, data: bytes) -> list[Trace]:
    """Return the traces in a file as the program reads it; none where it says why not."""
    source = source_of(name, data)
    try:
        found = recognise(source)
        return [plausible(trace) for trace in found.read([source], Reading(WorkerPool(1)))]
    except InputError as error:
        assert error.message
        assert error.hint
        return []


@pytest.mark.parametrize("name", FILES)
def test_whole_files_are_read(name: str) -> None:
    assert outcome(name, FILES[name])


@given(
    st.sampled_from(sorted(FILES)),
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(PIECES)),
        min_size=1,
        max_size=4,
    ),
)
def test_mutated_files(name: str, edits: list[tuple[float, int, bytes]]) -> None:
    data = FILES[name]
    for place, length, piece in edits:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + length :]
    outcome(name, data)


@given(st.sampled_from(sorted(FILES)), st.floats(0, 1))
def test_cut_files(name: str, place: float) -> None:
    outcome(name, FILES[name][: int(place * len(FILES[name]))])


@pytest.mark.parametrize("mark", [b"-", b"=", b" --", b"+-"])
def test_a_long_rule_that_is_none_takes_no_time(mark: bytes) -> None:
    """Dashes were tried in every way they can be cut in parts, which never ended."""
    outcome("log.txt", b" Time (%)  Total Time (ns)\n" + 2_000 * mark + b"x\n 1.0  2\n")


@given(st.sampled_from(sorted(FILES)), st.binary(max_size=200))
def test_noise_behind_a_beginning(name: str, noise: bytes) -> None:
    outcome(name, FILES[name][:200] + noise)


@given(st.integers(1, 400))
def test_the_size_of_blocks_changes_nothing(block: int) -> None:
    name = "x_cuda_gpu_trace.csv"
    whole, pieces = (
        Assembly(read_stats(source_of(name, FILES[name]), size)).trace()
        for size in (1 << 20, block)
    )
    assert whole is not None
    assert pieces is not None
    assert pieces.activities.to_pylist() == whole.activities.to_pylist()
    page = FILES["x.ncu.csv"]
    pages = [trace_of(runs([read_ncu(source_of("x", page), size)])[0]) for size in (1 << 20, block)]
    assert pages[0].kernel_counters.to_pylist() == pages[1].kernel_counters.to_pylist()
