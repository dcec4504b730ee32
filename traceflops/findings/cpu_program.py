"""Facts of a program on CPUs, on which the choice of remedies depends."""

from __future__ import annotations

import re
from math import prod
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.categories.programs import of_pytorch
from traceflops.facts import Fact, fact
from traceflops.findings.cpu_inputs import (
    embeds_all_again,
    in_attention,
    joins_what_was_joined,
)
from traceflops.findings.finding import short_name
from traceflops.findings.many_operators import op_of
from traceflops.findings.unrecorded_gpu import GPU_FREES
from traceflops.ranks.collectives import elements_of
from traceflops.remedies import GPUS_LISTED
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
    span_columns,
)
from traceflops.table.grouping import distinct, group_sums, groups
from traceflops.table.nesting import taken
from traceflops.table.patterns import started
from traceflops.table.trace import Trace
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import Account
from traceflops.windows.prepared import Prepared

_COMMUNICATION: Final = "communication"
_TIMES, _FEW_ELEMENTS = 3, 8_192  # elements: at most 64 KiB
_BY_CPU: Final = re.compile("gloo|mpi")
"""Communication that the CPU carries out; operators of NCCL only launch it."""
_OF_DDP: Final = re.compile("DistributedDataParallel")
_PRODUCTS: Final = ("gemm", "convolution", "attention")
_DOUBLE: Final = re.compile(r'\["double"')
_NARROW: Final = re.compile(r'\["c10::(BFloat16|Half)"')
_CASTS: Final = re.compile(r'\["([^"]+)", ?"(?!\1")[a-z]')
"""Types of aten::copy_(to, from) that differ."""
_SLICES: Final = re.compile(r"aten::(select|slice|narrow|diagonal)_backward")
_FORWARD: Final = 0.25  # products of a forward pass have at least this part of those of both
_SPARSE: Final = re.compile(r"aten::_?sparse_(?!dim)|Sparse\w*Backward")
_CONTIGUOUS: Final = "aten::contiguous"
_ROWS: Final = re.compile(r'\["", ?"", ?"(\d{1,12})"')
"""Values of aten::embedding_dense_backward(gradient, indices, rows of the table, ...)."""
_COMPILES: Final = {
    "torch": re.compile(r"\(dynamo_timed\)$"),
    "xla": re.compile(r"^(backend_compile(_and_load)?$|\w*Client::Compile)"),
}
"""Operators and ranges around compilations."""
_JITTED: Final = re.compile(r"PjitFunction\((.+)\)$")
"""Ranges around calls of functions that JAX compiles, when they are called with new shapes."""
_OFTEN: Final = 3  # so many compilations of one function are more than set-up
_RUNS: Final = re.compile(r"Executable::ExecuteHelper(OnSingleDevice)?$")
_MANY_RUNS, _SHORT_NS, _MOSTLY_IDLE = 100, 1_000_000, 0.75
"""JAX dispatches too much if it runs so many functions, one in so little time, mostly idle."""
_COMPILES_AGAIN: Final = re.compile(r"^dynamo_data: compile_id=\d+/[1-9]")
_DIMS: Final = re.compile(r"\[\[((?:\d{1,12}, ?)+)\d{1,12}\]")
"""Sizes of a first input of two dimensions or more, the last one apart: they are its rows."""
_NUMBER: Final = re.compile(r"\d+")
_SPARSELY: Final = 10  # a table has so many times the rows in use, or more


def cpu_facts(prepared: Prepared) -> frozenset[str]:
    """Return the facts of a program on CPUs, which choose what would help it.

    gpu      it launches work on a GPU that is not recorded
    emptied  most time of calls that free memory of a GPU is in no operator: by empty_cache()
    frames   Python functions are recorded
    listed   the profiler lists a GPU of the machine

    Further facts are of communication (`_of_exchanges`) and of most work of a kind (`_of_work`).
    """
    calls = prepared.trace.calls
    # Memory that is freed outside of operators is not freed for one that asks for memory.
    row = np.flatnonzero(matching(calls["name"], GPU_FREES.match))
    dur_ns, is_alone = numbers(calls["dur_ns"])[row], prepared.linked.links.op_of_call[row] < 0
    holds = {
        "gpu": started(calls).any(),
        "emptied": 2 * dur_ns[is_alone].sum() > dur_ns.sum(),
        "frames": is_one_of(prepared.trace.marks["kind"], "python").any(),
        "listed": prepared.trace.source.facts.get(GPUS_LISTED, "0") != "0",
    }
    told = {name for name, is_so in holds.items() if is_so}
    return frozenset(told | _of_exchanges(prepared) | _of_work(prepared))


def _of_work(prepared: Prepared) -> set[str]:
    """Return facts that hold for most of the time of operators of a kind.

    double        GEMMs, convolutions and elementwise operators compute in float64
    narrow        GEMMs and convolutions compute in bfloat16 or float16
    by-hand       GEMMs are those of attention, around a softmax
    recomputes    embeddings get more tokens from call to call
    sparse, coo   they have a sparse matrix, in COO format
    relayout      copies are made for contiguous()
    casts         copies convert data types
    slices        zeros are filled in for gradients of slices
    one-hot       zeros are filled in for one-hot vectors
    grows         concatenations append to what earlier ones returned
    dense-tables  elementwise work is on whole tables of embeddings with few rows in use
    """
    trace, tree, known = prepared.trace, prepared.linked.op_tree, prepared.linked.categorised
    ops, op, dur_ns = trace.ops, op_of(trace), numbers(trace.activities["dur_ns"])
    subs = np.array([*(own.sub for own in known.categories), ""])[known.category]

    def mostly(kinds: tuple[str, ...], is_so: BoolArray, part: float = 0.5) -> bool:
        """Return whether operators for which `is_so` have most of the time of some kinds."""
        own = np.isin(subs, kinds) & (op >= 0)
        holds = taken(is_so.astype(np.int8), op, 0) > 0
        return bool(dur_ns[own & holds].sum() > part * dur_ns[own].sum())

    def typed(pattern: re.Pattern[str]) -> BoolArray:
        return matching(ops["input_types"], pattern.match)

    in_sparse = tree.nearest(matching(ops["name"], _SPARSE.match)) >= 0
    sparse = mostly(_PRODUCTS, in_sparse)
    holds = {
        "double": mostly((*_PRODUCTS, "elementwise"), typed(_DOUBLE)),
        "narrow": mostly(_PRODUCTS, typed(_NARROW)),
        "by-hand": mostly(_PRODUCTS, in_attention(ops), _FORWARD),
        "recomputes": embeds_all_again(ops),
        "sparse": sparse,
        "coo": sparse and bool((in_sparse & is_one_of(ops["name"], "aten::_indices")).any()),
        "relayout": mostly(("copy",), tree.nearest(is_one_of(ops["name"], _CONTIGUOUS)) >= 0),
        "casts": mostly(("copy",), typed(_CASTS)),
        "slices": mostly(("memset",), tree.nearest(matching(ops["name"], _SLICES.match)) >= 0),
        "one-hot": mostly(("memset",), tree.nearest(is_one_of(ops["name"], "aten::one_hot")) >= 0),
        "grows": mostly(("layout",), joins_what_was_joined(ops)),
        "dense-tables": mostly(("elementwise",), _are_of_tables(ops)),
    }
    return {name for name, is_so in holds.items() if is_so}


def _are_of_tables(ops: pa.Table) -> BoolArray:
    """Return which operators have a whole table of an embedding as input, few of its rows in use.

    The backward pass of the embedding states the rows of the table; its input has those in use.
    """
    stated, dims = ([*names(ops[name]), ""] for name in ("concrete_inputs", "input_dims"))
    rows = np.flatnonzero(is_one_of(ops["name"], "aten::embedding_dense_backward"))
    inputs = (codes(ops[name])[rows].tolist() for name in ("concrete_inputs", "input_dims"))
    tables = set[int]()
    for values, sizes in set(zip(*inputs, strict=True)):
        of_table, used = _ROWS.match(stated[values]), _rows_of(dims[sizes])
        if of_table and used and int(of_table[1]) >= _SPARSELY * used:
            tables.add(int(of_table[1]))
    return np.array([_rows_of(text) in tables for text in dims])[codes(ops["input_dims"])]


def _rows_of(dims: str) -> int | None:
    """Return the rows of an operator's first input, all but its last dimension; None if unknown."""
    sizes = _DIMS.match(dims)
    return prod(map(int, _NUMBER.findall(sizes[1]))) if sizes else None


def _of_exchanges(prepared: Prepared) -> set[str]:
    """Return facts of communication: mostly waiting in first calls, small messages, gradients.

    A first call waits if it takes _TIMES as long as any of several later ones of its name.
    """
    works, ops = prepared.trace.activities, prepared.trace.ops
    communicates = is_top(prepared.linked.categorised, _COMMUNICATION)
    row = distinct(-1 - numbers(works["correlation"], 0)[communicates])
    start, dur_ns = (numbers(ops[name])[row] for name in ("start_ns", "dur_ns"))
    waits_ns = 0
    for _, own in groups(codes(ops["name"])[row]):
        first_ns, *later_ns = dur_ns[own[np.argsort(start[own], kind="stable")]].tolist()
        if len(later_ns) > 1 and first_ns >= _TIMES * max(later_ns):
            waits_ns += first_ns - max(later_ns)
    elements = np.array([*map(elements_of, names(ops["input_dims"])), ABSENT])
    sent = elements[codes(ops["input_dims"])[row]]
    is_small = (sent >= 0) & (sent <= _FEW_ELEMENTS) & matching(ops["name"], _BY_CPU.match)[row]
    are_small = 2 * is_small.sum() > len(row)
    holds = {
        "late-first": 2 * waits_ns >= dur_ns.sum() > 0,
        "small-messages": are_small,
        "gradients": matching(prepared.trace.marks["name"], _OF_DDP.search).any(),
    }
    return {name for name, is_so in holds.items() if is_so}


def compiling(trace: Trace) -> tuple[Fact, ...]:
    """Return a statement if torch.compile or XLA compiles in most of the recorded time."""
    host = (trace.ops, trace.marks)
    spans = [span_columns(table) for table in host]
    for tool, pattern in _COMPILES.items():
        is_timed = [matching(table["name"], pattern.search) for table in host]
        pieces = [[edge[own] for edge in span] for span, own in zip(spans, is_timed, strict=True)]
        times = Intervals.empty().union(*(Intervals.of(*piece) for piece in pieces))
        if not len(times):
            continue
        recorded_ns = int(np.ptp(np.concatenate([edge for span in spans for edge in span])))
        values = {"compile_ns": times.length_ns, "share": times.length_ns / recorded_ns}
        if 2 * times.length_ns < recorded_ns:
            continue
        again = int(matching(trace.marks["name"], _COMPILES_AGAIN.search).sum()) or None
        often = _compiled_often(trace, times) if tool == "xla" else None
        if often is not None:
            return (fact("verdict.cpu-compiles-often", name=often[0], count=often[1], **values),)
        if again is not None and again >= _OFTEN:
            return (fact("verdict.cpu-compiles-again", count=again, **values),)
        return (fact(f"verdict.cpu-compiles-{tool}", count=again, **values),)
    return ()


def _compiled_often(trace: Trace, times: Intervals) -> tuple[str, int] | None:
    """Return the function of JAX that is compiled for most of `times`, and how often, if often.

    It is the one whose call holds the compilation:

        PjitFunction(loss)    |---------------------------|
        compilation                 |-----------|
    """
    marks = trace.marks
    row = np.flatnonzero(matching(marks["name"], _JITTED.match))
    start, end = (edge[row] for edge in span_columns(marks))
    order = np.lexsort((-end, start))
    row, start, end = row[order], start[order], end[order]
    is_outer = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])[: len(row)]
    row, start, end = row[is_outer], start[is_outer], end[is_outer]
    around = np.searchsorted(start, times.start_ns, side="right") - 1
    is_inside = (around >= 0) & (times.end_ns <= taken(end, around, 0))
    label, name = names(marks["name"]), taken(codes(marks["name"])[row], around)[is_inside]
    if not len(name):
        return None
    sums = group_sums(name, (times.end_ns - times.start_ns)[is_inside], len(label))
    most = int(sums.argmax())
    function, count = _JITTED.match(label[most]), int((name == most).sum())
    is_often = count >= _OFTEN and 2 * sums[most] > times.length_ns
    return (short_name(function[1]), count) if function and is_often else None


def dispatching(trace: Trace, total: Account) -> tuple[Fact, ...]:
    """Return a statement if JAX runs many compiled functions that each compute for a short time."""
    idle, is_run = total.components.share("idle"), matching(trace.marks["name"], _RUNS.search)
    # A function on several devices runs on all of them at once, and one range may hold another.
    start = Intervals.of(*(edge[is_run] for edge in span_columns(trace.marks))).start_ns
    if of_pytorch(trace) or len(start) < _MANY_RUNS or idle is None or idle < _MOSTLY_IDLE:
        return ()
    each_ns = int(np.ptp(start)) // (len(start) - 1)
    if each_ns > _SHORT_NS:
        return ()
    return (fact("verdict.cpu-dispatches", count=len(start), each_ns=each_ns, busy=1 - idle),)
