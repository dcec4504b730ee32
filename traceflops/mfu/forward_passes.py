"""The forward passes of a model as the host issued them, and whether each is prefill or decode.

A pass is an annotation of a serving engine. In a trace without annotations, a pass lasts from one
look-up in the largest embedding table to the next; a process without look-ups is a single pass. The
first rule of `_judged` that applies decides the kind. Without annotations only a pass that uses a
key-value cache is prefill or decode: vision towers, encoders and diffusion models have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.op_kernels import Attribution, named
from traceflops.facts import Fact, fact
from traceflops.flops.ops.arguments import Shape, read_shapes
from traceflops.flops.ops.work import Core, Product, Work
from traceflops.table.arrays import BoolArray, IntArray
from traceflops.table.columns import codes, is_one_of, matching, names, numbers, span_columns
from traceflops.table.grouping import differ_from_before, distinct
from traceflops.table.nesting import innermost, parents
from traceflops.table.trace import Trace
from traceflops.timeline.account import LinkedTrace
from traceflops.windows.engine_passes import Kind, serving_marks

ALWAYS: Final = 2**62  # farther in time than any event
BATCHED: Final = frozenset({"aten::bmm", "aten::baddbmm", "aten::baddbmm_"})
"""Products of two activations (unfused attention, rotary angles): neither operand is a weight."""
_LONGEST_NAME: Final = 4096
_LOOKUP: Final = frozenset({"aten::embedding"})
_CACHE: Final = re.compile(
    r"kv_?cache|_and_cache|paged|unified_attention|store_cache|kv_buffer|"
    r"cache_utils\.py\(\d+\): update",
    re.IGNORECASE,
)
"""Operators, kernels and Python frames that read or write a key-value cache."""
NO_RULE: Final = fact("pass.unknown")
NO_CACHE: Final = fact("pass.no-cache")


class JudgedPass(Struct, frozen=True):
    """The kind of a pass, and the rule that decided it.

    `queries` are the tokens computed, `keys` the tokens attended to per layer, `pairs` the (query,
    key) pairs under a causal mask, all summed over the `sequences`; None if unknown.
    """

    kind: Kind | None = None
    rule: Fact = NO_RULE
    sequences: int | None = None
    queries: int | None = None
    keys: int | None = None
    pairs: int | None = None


class ForwardPass(Struct, frozen=True):
    """One pass on the host: its process, its time, and its kind if judged."""

    process: int
    start_ns: int
    end_ns: int
    judged: JudgedPass = JudgedPass()


def _judged(
    cores: list[Core], products: list[Product], lookups: list[tuple[int, Shape]], names_cache: bool
) -> JudgedPass:
    """Return the kind of a pass by the first rule that applies.

    `cores` are the attentions of the pass, `products` its products with a weight. `lookups` has,
    per look-up in an embedding table, the rows of the table and the shape of the indices.
    `names_cache` is whether an operator, kernel or function named after a key-value cache ran.
    """
    tables = {rows for rows, _ in lookups}
    largest = max(tables, default=0)
    indices = [shape for rows, shape in lookups if rows == largest]
    # Per attention: its sequences, and its queries and keys summed over them.
    counts = set()
    for core in cores:
        if core.documents is not None:  # packed sequences: queries and keys are sums already
            counts.add((core.documents, core.queries, core.keys))
        else:
            counts.add((core.batch, core.queries * core.batch, core.keys * core.batch))
    # 1. Without a cache the kind is unknown. Keys beyond the queries come from one.
    has_older_keys = bool(counts) and all(keys > queries for _, queries, keys in counts)
    if not (names_cache or has_older_keys):
        return JudgedPass(None, NO_CACHE)
    # 2. Attentions of one query per sequence {True}: decode; of several {False}: prefill; or both.
    has_one_query = {queries == sequences for sequences, queries, _ in counts}
    if len(has_one_query) > 1:
        return JudgedPass("mixed", fact("pass.mixed"))
    common = next(iter(counts)) if len(counts) == 1 else (None, None, None)
    if has_one_query == {True}:
        return JudgedPass("decode", fact("pass.one-query"), *common)
    if has_one_query:
        return JudgedPass("prefill", fact("pass.several-queries"), *common)
    # 3. Without attention: the indices of tokens have the shape sequences x tokens.
    if len(set(indices)) == 1 and len(indices[0]) == 2:
        sequences, tokens = indices[0]
        rule = fact("pass.token-indices", sequences=sequences, tokens=tokens)
        kind: Kind = "decode" if tokens == 1 else "prefill"
        return JudgedPass(kind, rule, sequences, sequences * tokens)
    # 4. Logits are products as wide as a table. A prefill computes them for the last tokens alone,
    # so they have fewer rows (4 of 512) than all other products.
    logits = {product.m for product in products if product.n in tables}
    others = {product.m for product in products if product.n not in tables}
    if len(logits) == 1 and others and min(others) > max(logits):
        (rows,) = logits
        return JudgedPass("prefill", fact("pass.logits", rows=rows, others=min(others)), rows)
    if logits | others == {1}:  # 5. all products have one row: one token of one sequence
        return JudgedPass("decode", fact("pass.one-row"), 1, 1)
    return JudgedPass()


def places_in(passes: tuple[ForwardPass, ...], process: IntArray, at_ns: IntArray) -> IntArray:
    """Return, for each instant `at_ns` of a process, the index of the pass it lies in, or -1."""
    if not passes:
        return np.full(len(at_ns), -1, dtype=np.int64)
    spans = [(span.process, span.start_ns, span.end_ns) for span in passes]
    pass_process, start, end = np.array(spans, dtype=np.int64).T
    return innermost(pass_process, start, end, process, at_ns)


def annotated_passes(trace: Trace) -> tuple[ForwardPass, ...]:
    """Return the passes that a serving engine annotates, by process and start.

    Only the annotations of one engine count; of nested ones, the outermost.
    """
    table = trace.marks
    marks = serving_marks(names(table["name"]))
    chosen = np.isin(codes(table["name"]), list(marks)) & is_one_of(table["kind"], "annotation")
    rows = np.flatnonzero(chosen)
    name, process = codes(table["name"])[rows], numbers(table["process"])[rows]
    start, end = span_columns(table, rows)
    outermost = np.flatnonzero(parents(process, start, end) < 0)
    passes = []
    for row in outermost[np.lexsort((start[outermost], process[outermost]))].tolist():
        mark = marks[int(name[row])]
        rule = fact("pass.annotated" if mark.kind else "pass.kind-not-annotated")
        judged = JudgedPass(mark.kind, rule, mark.sequences, mark.queries, mark.keys, mark.pairs)
        passes.append(ForwardPass(int(process[row]), int(start[row]), int(end[row]), judged))
    return tuple(passes)


def _between(trace: Trace, attribution: Attribution) -> Iterator[ForwardPass]:
    """Yield, per process, a pass from each look-up in its largest embedding table to the next.

    A process without look-ups is one pass without beginning and end.
    """
    ops = trace.ops
    lookups = np.flatnonzero(named(ops, _LOOKUP))
    table_rows = np.array([_table(trace, op)[0] for op in lookups.tolist()], dtype=np.int64)
    lookups = lookups[table_rows == table_rows.max(initial=0)]
    process, start_ns = numbers(ops["process"]), numbers(ops["start_ns"])
    executed = attribution.executed
    for number in distinct(process).tolist():
        times = np.sort(start_ns[lookups[process[lookups] == number]])
        own_starts = np.sort(start_ns[executed[process[executed] == number]])
        # Several look-ups before the next product begin one pass: models may have several tables.
        products_before = np.searchsorted(own_starts, times)
        starts = times[differ_from_before(products_before)].tolist() or [-ALWAYS]
        for pass_start, pass_end in pairwise([*starts, ALWAYS]):
            yield ForwardPass(number, pass_start, pass_end)


def _table(trace: Trace, row: int) -> tuple[int, Shape]:
    """Return the rows of the table that an op looks up (0: unknown), and its indices' shape."""
    text = trace.ops["input_dims"][row].as_py()
    shapes = read_shapes(text) if text is not None else None
    table, indices = shapes[:2] if shapes is not None and len(shapes) > 1 else ((), ())
    sizes = tuple(size for size in indices if isinstance(size, int))
    rows = table[0] if len(table) == 2 and isinstance(table[0], int) else 0
    return rows, sizes


def forward_passes(linked: LinkedTrace, attribution: Attribution) -> tuple[ForwardPass, ...]:
    """Return the passes of a trace with their kinds: annotated ones, else those by look-ups."""
    trace, call, work = linked.trace, linked.links.call_of_activity, attribution.work
    if marked := annotated_passes(trace):
        return marked
    ops, passes = trace.ops, tuple(_between(trace, attribution))

    def passes_of(table: pa.Table, rows: IntArray | BoolArray | slice = slice(None)) -> IntArray:
        """Return the pass in which each row of a table starts, or -1."""
        return places_in(passes, *(numbers(table[key])[rows] for key in ("process", "start_ns")))

    # The passes with an op, a Python frame or a launched kernel that is named after a cache.
    launched = call[_named_after_cache(trace.activities) & (call >= 0)]
    with_cache = {*passes_of(trace.calls, launched).tolist()}
    for table in (ops, trace.marks):
        with_cache |= {*passes_of(table, _named_after_cache(table)).tolist()}
    # The executed ops of each pass, except batched products (without a weight), and the look-ups.
    pass_of_op, executed = passes_of(ops), attribution.executed
    with_weights = executed[~named(ops, BATCHED)[executed]]
    ops_of_passes = _by_pass(pass_of_op, with_weights, len(passes))
    lookups_of_passes = _by_pass(pass_of_op, np.flatnonzero(named(ops, _LOOKUP)), len(passes))
    judged_passes = []
    for number, one_pass in enumerate(passes):
        distinct_works = distinct(work.place[ops_of_passes[number]]).tolist()
        works = [work.works[index] for index in distinct_works]
        signatures = [done.signature for done in works if isinstance(done, Work)]
        cores = [sizes for sizes in signatures if isinstance(sizes, Core)]
        products = [size for size in signatures if isinstance(size, Product) and size.batch == 1]
        tables = [_table(trace, op) for op in lookups_of_passes[number].tolist()]
        judged = _judged(cores, products, tables, number in with_cache)
        judged_passes.append(replace(one_pass, judged=judged))
    return tuple(judged_passes)


def _named_after_cache(table: pa.Table) -> BoolArray:
    """Return, per row of a table, whether its name is one of a key-value cache."""
    return matching(table["name"], lambda label: _CACHE.search(label[:_LONGEST_NAME]))


def _by_pass(pass_of: IntArray, rows: IntArray, passes: int) -> list[IntArray]:
    """Return the rows of each pass; `pass_of` is the pass of each row of the table, or -1."""
    by_pass = rows[np.argsort(pass_of[rows], kind="stable")]
    edges = np.searchsorted(pass_of[by_pass], np.arange(passes + 1))
    return [by_pass[low:high] for low, high in pairwise(edges.tolist())]
