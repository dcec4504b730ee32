"""Big traces, made column by column: so many ranks, steps, kernels and names as are asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.build import trace_of
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import IntArray
from traceflops.table.trace import Trace

_APART_NS = 10_000
_OPS = ("aten::linear", "aten::mm", "aten::add", "aten::gelu", "aten::copy_")
_MODULES = ("Block", "Linear", "LayerNorm")


def big_trace(
    ranks: int = 1,
    steps: int = 10,
    kernels: int = 1_000,
    *,
    names: int = 300,
    longest_name: int = 60,
    depth: int = 3,
    every: int = 50,
) -> Trace:
    """Return a trace of ranks with so many kernels per step, each in ops as deep as `depth`.

    Every 16 kernels are of a module, every step has a marker; one of so many kernels (`every`) is a
    collective on a stream of its own.
    """
    about = trace_of(
        processes=[{"process": rank, "rank": rank, "world_size": ranks} for rank in range(ranks)],
        devices=[{"device": rank, "process": rank} for rank in range(ranks)],
    )
    rank, place = (one.ravel() for one in np.indices((ranks, steps * kernels), dtype=np.int64))
    at_ns = place * _APART_NS + rank % 7
    number = place + 1
    tables = {
        "activities": _activities(rank, at_ns + 3_000, number, names, longest_name, every),
        "calls": _calls(rank, at_ns + 1_000, number),
        "ops": _ops(rank, at_ns, depth),
        "marks": _marks(ranks, steps, kernels),
    }
    return Trace(about.source, {**about.tables, **tables})


def _activities(
    rank: IntArray, start_ns: IntArray, number: IntArray, names: int, longest: int, every: int
) -> pa.Table:
    builder = TableBuilder("activities")
    texts = [f"void user::gemm_{n}<float, {n % 7}>(".ljust(longest - 7, "x") for n in range(names)]
    code = _codes(builder, "name", [f"{text}{n:06d})" for n, text in enumerate(texts)])
    collective = _codes(builder, "name", ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)"])
    is_collective = number % every == 0
    spread = number * 2_654_435_761 % 2**32
    builder.add(
        len(rank),
        process=rank,
        device=rank,
        stream=np.where(is_collective, 13, 7),
        kind=_codes(builder, "kind", ["kernel"])[0],
        name=np.where(is_collective, collective[0], code[number % names]),
        start_ns=start_ns,
        dur_ns=5_000 + spread % 4_000,
        correlation=number,
    )
    return builder.finish()


def _calls(rank: IntArray, start_ns: IntArray, number: IntArray) -> pa.Table:
    builder = TableBuilder("calls")
    builder.add(
        len(rank),
        process=rank,
        thread=1,
        name=_codes(builder, "name", ["cudaLaunchKernel"])[0],
        api=_codes(builder, "api", ["runtime"])[0],
        start_ns=start_ns,
        dur_ns=800,
        correlation=number,
    )
    return builder.finish()


def _ops(rank: IntArray, at_ns: IntArray, depth: int) -> pa.Table:
    """Return ops around the launches: `depth` of them, each inside the one before."""
    builder = TableBuilder("ops")
    level = np.tile(np.arange(depth), len(rank))
    rank, at_ns = (np.repeat(one, depth) for one in (rank, at_ns))
    place = np.arange(len(rank))
    dims = _codes(builder, "input_dims", [f"[[{n}, 4096], [4096, 64]]" for n in range(1, 33)])
    types = _codes(builder, "input_types", ['["c10::BFloat16", "c10::BFloat16"]'])
    builder.add(
        len(rank),
        process=rank,
        thread=1,
        name=_codes(builder, "name", list(_OPS))[place % len(_OPS)],
        start_ns=at_ns + level * 10,
        dur_ns=9_000 - level * 100,
        input_dims=dims[place % len(dims)],
        input_types=types[0],
        external_id=place,
    )
    return builder.finish()


def _marks(ranks: int, steps: int, kernels: int) -> pa.Table:
    builder = TableBuilder("marks")
    long_ns = kernels * _APART_NS
    rank, step = (one.ravel() for one in np.indices((ranks, steps), dtype=np.int64))
    kind = _codes(builder, "kind", ["annotation", "module"])
    name = _codes(builder, "name", [f"ProfilerStep#{number}" for number in range(steps)])
    builder.add(
        len(rank),
        process=rank,
        thread=1,
        kind=kind[0],
        name=name[step],
        start_ns=step * long_ns,
        dur_ns=long_ns - 100,
    )
    rank, place = (one.ravel() for one in np.indices((ranks, steps * kernels // 16)))
    texts = [f"nn.Module: {each}_{number}" for number in range(12) for each in _MODULES]
    name = _codes(builder, "name", texts)
    builder.add(
        len(rank),
        process=rank,
        thread=1,
        kind=kind[1],
        name=name[place % len(name)],
        start_ns=place * 16 * _APART_NS,
        dur_ns=16 * _APART_NS - 200,
    )
    return builder.finish()


def _codes(builder: TableBuilder, column: str, texts: list[str]) -> IntArray:
    found: IntArray = builder.names[column].codes(texts).astype(np.int64)
    return found
