"""Many small operators of a CPU: a loop of the program, or operators that each launch GPU work.

And rules on totals by name: many kernels as short as a launch, and much elementwise work.

```text
ge lt and where | ge lt and where | ...      # the same 4 names again and again: turns of a loop
```
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from traceflops.attribution.kernels import kind_of
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, limit
from traceflops.findings.finding import MOST_ROWS, Finding, Row, row_name, short_name
from traceflops.findings.rules import advice_of, statement
from traceflops.table.columns import (
    ABSENT,
    IntArray,
    axes,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
    thread_columns,
)
from traceflops.table.grouping import (
    differ_from_before,
    group_rows,
    group_sums,
    groups,
    joint_codes,
)
from traceflops.table.nesting import OpTree
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals

_TURNS, _LONGEST = 100, 16  # the fewest turns of a loop, and the most operators in a turn
_MUCH: Final = 0.3
_MANY, _SMALL = 1_000, 0.01
"""Operators are many and small from this number on, if no call takes a larger share of the time."""
_SHORT_NS, _BRIEF_NS, _SEVERAL = 10_000_000, 5_000, 100
"""A recording shorter than the first is judged by nothing if it has at least the third number of
operators, of which most take no longer than the second: their time is overhead."""
_TRIFLE, _SOME = 0.001, 10
"""Operators below this share of the time say nothing of passes, nor do fewer than the second."""
_MUCH_LONGER: Final = 0.1
"""Share of the time from which that of first calls is told."""
_HAS_DIMS: Final = re.compile(r"\d")
_PRODUCTS: Final = ("gemm", "convolution", "attention")
_HELD_UP, _FEW = 10, 3
"""A call so many times as long as each of so many others with the same inputs was held up."""
_INPUTS: Final = ("name", "input_dims", "input_types", "concrete_inputs")
_HELD: Final = 2  # turns that one operator holds
_NAMED: Final = 5
_NODE: Final = "autograd::engine::evaluate_function: "
_WAITS: Final = ("aten::nonzero", "aten::_local_scalar_dense", "aten::masked_select")
"""Operators that bring a value or a size to the CPU: on a GPU they wait for all earlier work."""


class _Loop(NamedTuple):
    """Rows of outermost operators that repeat the names of the first `period` rows."""

    rows: IntArray
    period: int

    @property
    def turns(self) -> int:
        return len(self.rows) // self.period


def many_operators(
    trace: Trace,
    kernels: pa.Table,
    window_ns: int,
    of: Fact,
    loading: Mapping[tuple[int, int], Intervals],
    *,
    is_gpu: bool,
) -> tuple[Fact, ...]:
    """Return a statement on many operators: a loop with much of the time, or many small ones.

    The result is empty if neither is found. `kernels` are the operators by name, `of` is what
    shares are of. With `is_gpu`, operators launch work of a GPU. A loop that runs mostly within the
    time of a data loader of its thread (`loading`: by process and thread) is the loading itself.
    """
    ops = trace.ops
    if not ops.num_rows or not window_ns:
        return ()
    start = numbers(ops["start_ns"])
    end = start + numbers(ops["dur_ns"])
    loop = _longest_loop(ops)
    if loop is not None:
        first_ns, last_ns = int(start[loop.rows[0]]), int(end[loop.rows[-1]])
        share = (last_ns - first_ns) / window_ns
        own = Intervals.one(first_ns, last_ns)
        process, thread = (int(column[loop.rows[0]]) for column in thread_columns(ops))
        loads = loading.get((process, thread), Intervals.empty())
        is_loading = 2 * own.intersect(loads).length_ns > own.length_ns
        is_part = _is_part(ops, loop, start, end)
        if _MUCH <= share <= 1 and not is_loading and not is_part:  # above 1, it leaves the window
            in_loop = (start >= first_ns) & (end <= last_ns)
            in_loop &= _threads(ops) == _threads(ops)[loop.rows[0]]
            # Does an operator wait for the GPU in each turn? A value on the CPU is read at once.
            is_long = in_loop & (end - start > _BRIEF_NS)
            counts = {name: int((is_one_of(ops["name"], name) & is_long).sum()) for name in _WAITS}
            waiting = [name for name, count in counts.items() if is_gpu and count >= loop.turns]
            label, name = names(ops["name"]), codes(ops["name"])[loop.rows[: loop.period]]
            parts = tuple(
                dict.fromkeys(short_name(label[code].removeprefix(_NODE)) for code in name.tolist())
            )
            values = {"names": parts[:_NAMED], "waits": next(iter(waiting), None)}
            return (fact("verdict.cpu-loop", turns=loop.turns, share=share, of=of, **values),)
    longest = max(kernels["max_ns"].to_pylist(), default=0) / window_ns
    if is_gpu and ops.num_rows >= _MANY and longest <= _SMALL:
        each_ns = window_ns // ops.num_rows
        return (fact("verdict.cpu-many", count=ops.num_rows, each_ns=each_ns, longest=longest),)
    return ()


def little_on_cpu(trace: Trace, window_ns: int) -> tuple[Fact, ...]:
    """Return a statement if so little work of a CPU is recorded that it is all overhead."""
    count = trace.ops.num_rows
    if count < _SEVERAL or window_ns >= _SHORT_NS:
        return ()
    own_ns = OpTree.of(trace.ops).own(numbers(trace.ops["dur_ns"]))
    if np.median(own_ns) > _BRIEF_NS:
        return ()
    each_ns = window_ns // count
    return (fact("verdict.cpu-little", window_ns=window_ns, count=count, each_ns=each_ns),)


def small_on_cpu(trace: Trace) -> tuple[Fact, ...]:
    """Return a statement if most time of a CPU goes to so many operators that it is overhead."""
    ops, count = trace.ops, trace.ops.num_rows
    if count < _MANY:
        return ()
    start, dur_ns = (numbers(ops[name]) for name in ("start_ns", "dur_ns"))
    span_ns, own_ns = int((start + dur_ns).max() - start.min()), OpTree.of(ops).own(dur_ns)
    each_ns, long_ns = span_ns // count, own_ns[own_ns > _BRIEF_NS].sum()
    if not 0 < each_ns <= _BRIEF_NS or 2 * long_ns > span_ns:
        return ()
    return (fact("verdict.cpu-small", count=count, each_ns=each_ns),)


def one_pass(ops: pa.Table, tree: OpTree, window_ns: int) -> tuple[Fact, ...]:
    """Return a statement if the operators seem to be one pass of a model, perhaps its first.

    They are the outermost operators that are no trifle, with their shapes.
    """
    is_told = (tree.parent < 0) & matching(ops["input_dims"], _HAS_DIMS.search)
    is_told &= numbers(ops["dur_ns"]) >= _TRIFLE * window_ns
    rows = np.flatnonzero(is_told)
    rows = rows[np.argsort(numbers(ops["start_ns"])[rows], kind="stable")]
    columns = (codes(ops[column])[rows] for column in ("name", "input_dims"))
    return (fact("verdict.cpu-one-pass"),) if _runs_once(*columns) else ()


def is_one_pass(case: Case) -> bool:
    """Return whether operators or, without any, products on GPUs seem to be one pass of a model."""
    trace, window_ns = case.prepared.trace, case.total.components.window_ns
    if trace.ops.num_rows:
        return bool(one_pass(trace.ops, case.prepared.linked.op_tree, window_ns))
    known = case.prepared.linked.categorised
    is_product = np.array([*(own.sub in _PRODUCTS for own in known.categories), False])
    row = np.flatnonzero(is_product[known.category])  # of all time: other passes are recorded, too
    row = row[np.argsort(numbers(trace.activities["start_ns"])[row], kind="stable")]
    return _runs_once(codes(trace.activities["name"])[row], *axes(trace.activities["grid"])[row].T)


def _runs_once(*columns: IntArray) -> bool:
    """Return whether the first and the last row occur once: a second pass would repeat them."""
    if len(columns[0]) < _SOME:
        return False
    kind, _ = group_rows(columns)
    return bool((kind == kind[0]).sum() == (kind == kind[-1]).sum() == 1)


def op_of(trace: Trace) -> IntArray:
    """Return the operator (a row) of each activity that is work of a CPU, -1 of others."""
    # Work of a CPU has -1 - (row of its operator) as its correlation.
    works = trace.activities
    return np.where(is_one_of(works["kind"], "op"), -1 - numbers(works["correlation"], 0), -1)


def slow_first_calls(trace: Trace) -> frozenset[str]:
    """Return the names of operators whose first call took longest, by their own work on the CPU."""
    own_ns = group_sums(op_of(trace), numbers(trace.activities["dur_ns"]), len(trace.ops))
    label, name = names(trace.ops["name"]), codes(trace.ops["name"])
    order = np.lexsort((numbers(trace.ops["start_ns"]), name))
    by_name = ((code, order[own]) for code, own in groups(name[order]))
    return frozenset(label[code] for code, row in by_name if not np.argmax(own_ns[row]))


def first_calls(trace: Trace, window_ns: int) -> tuple[Fact, ...]:
    """Return a statement if first calls take much longer than later ones with the same inputs.

    First calls that are faster count against it: in steady rounds, the sum is about 0.
    """
    ops, works = trace.ops, trace.activities
    own_ns = group_sums(op_of(trace), numbers(works["dur_ns"]), len(ops))
    alike, _ = group_rows([codes(ops[column]) for column in _INPUTS])
    order = np.lexsort((numbers(ops["start_ns"]), alike))
    first = order[differ_from_before(alike[order])]
    count = np.bincount(alike)
    first_ns, later_ns = own_ns[first], group_sums(alike, own_ns, len(count)) - own_ns[first]
    told = (count > 1) & matching(ops["input_dims"], _HAS_DIMS.search)[first]
    more_ns = int((first_ns - later_ns / np.maximum(count - 1, 1))[told].sum())
    time_ns = max(window_ns, int(own_ns.sum()))  # threads work beside each other
    if more_ns <= _MUCH_LONGER * time_ns:
        return ()
    return (fact("verdict.cpu-first-calls", more_ns=more_ns, share=more_ns / time_ns),)


def held_up_ns(trace: Trace) -> dict[str, int]:
    """Return operators that something held up in one call, and the longest other one in ns.

    That call took far longer than several others of the same operator with the same inputs.
    """
    ops, found = trace.ops, dict[str, int]()
    own_ns = group_sums(op_of(trace), numbers(trace.activities["dur_ns"]), len(ops))
    label, has_sizes = names(ops["name"]), matching(ops["input_dims"], _HAS_DIMS.search)
    alike, _ = group_rows([codes(ops[column]) for column in _INPUTS])
    for code, row in groups(codes(ops["name"])):
        longest = row[np.argmax(own_ns[row])]
        others_ns = own_ns[row[(alike[row] == alike[longest]) & (row != longest)]]
        usual_ns = int(others_ns.max(initial=0))
        is_far_longer = own_ns[longest] > _HELD_UP * usual_ns > 0
        if has_sizes[longest] and len(others_ns) >= _FEW and is_far_longer:
            found[label[code]] = usual_ns
    return found


def _threads(ops: pa.Table) -> IntArray:
    """Return, per operator, a number of its process and thread."""
    return joint_codes(numbers(ops["process"]), numbers(ops["thread"], ABSENT))


def _is_part(ops: pa.Table, loop: _Loop, start: IntArray, end: IntArray) -> bool:
    """Return whether most turns run within operators of another thread that hold several each.

    These share out their work: the turns are not of the program's own loop.
    """
    process, thread = numbers(ops["process"]), _threads(ops)
    first, last = loop.rows[[0, -1]]
    others = (process == process[first]) & (thread != thread[first])
    others &= (end - start) * loop.turns >= _HELD * (end[last] - start[first])
    around = Intervals.of(start[others], end[others]).contains(start[loop.rows])
    return 2 * int(around.sum()) > len(loop.rows)


def _longest_loop(ops: pa.Table) -> _Loop | None:
    """Return the loop with most operators, None if no names repeat often enough.

    Operators count only if they are outermost in their thread. For each period, a loop is a stretch
    in which each name is the same as one period later.
    """
    tree = OpTree.of(ops)
    rows = tree.order[tree.parent[tree.order] < 0]
    thread = _threads(ops)[rows]
    name = codes(ops["name"])[rows]
    best: _Loop | None = None
    for period in range(1, min(_LONGEST, len(rows) // _TURNS) + 1):
        repeats = (name[period:] == name[:-period]) & (thread[period:] == thread[:-period])
        # Stretches of True, by their edges
        edges = np.flatnonzero(np.diff(np.concatenate([[False], repeats, [False]]).astype(np.int8)))
        if not len(edges):
            continue
        begins, ends = edges[::2], edges[1::2]
        longest = int(np.argmax(ends - begins))
        loop = _Loop(rows[begins[longest] : ends[longest] + period], period)
        if loop.turns >= _TURNS and (best is None or len(loop.rows) > len(best.rows)):
            best = loop
    return best


_TINY, _ELEMENTWISE = "tiny-kernels", "elementwise-kernels"
_MOST_KINDS, _PART = 2, 0.1
_KERNEL, _UNKNOWN = "kernel", "other"


def many_kernels(case: Case) -> Iterator[Finding]:
    """Give a finding on many kernels as short as their launch, else on much elementwise work.

    Shares are of the time of all work on GPUs, counts are of launches.
    """
    rows = case.untimed.rows.to_pylist() if case.untimed is not None else []
    # Totals of some tools lack shares or counts.
    rows = [row for row in rows if row["kind"] == _KERNEL and row["share"] and row["count"]]
    count = sum(row["count"] for row in rows)
    tiny = [row for row in rows if row["mean_ns"] < limit(case, _TINY, "most_ns")]
    tiny_count, share = sum(row["count"] for row in tiny), sum(row["share"] for row in tiny)
    least = max(limit(case, _TINY, "least_count"), limit(case, _TINY, "least_of_all") * count)
    if tiny_count >= least and share >= limit(case, _TINY, "least_share"):
        yield _of_kernels(case, _TINY, tiny, tiny_count / count)
        return
    elementwise = [row for row in rows if row["sub"] == "elementwise"]
    are_many = sum(row["count"] for row in elementwise) >= limit(case, _ELEMENTWISE, "least_count")
    share = sum(row["share"] for row in elementwise)
    if are_many and share >= limit(case, _ELEMENTWISE, "least_share"):
        yield _of_kernels(case, _ELEMENTWISE, elementwise, None)


def _of_kernels(
    case: Case, rule: str, rows: list[dict[str, Any]], of_count: float | None
) -> Finding:
    """Return a finding on some kernels; `of_count` is their share of all launches."""
    share, count = (sum(row[name] for row in rows) for name in ("share", "count"))
    kinds = Counter[str]()
    for row in rows:
        kinds[row["sub"]] += row["share"]
    main = kinds.most_common(_MOST_KINDS)
    large = [kind for kind, part in main if part >= _PART * share and kind != _UNKNOWN]
    large = large if 2 * sum(kinds[kind] for kind in large) >= share else []
    values: dict[str, Value] = {
        "count": count,
        "of_count": of_count,
        "mean_ns": sum(row["sum_ns"] for row in rows) // count,
        "kinds": tuple(
            fact("tiny-kernels.kind", kind=kind_of(kind), share=kinds[kind]) for kind in large
        )
        or None,
    }
    knows = {"products"} if 2 * kinds["gemm"] >= share else set()
    first = sorted(rows, key=lambda row: -row["sum_ns"])[:MOST_ROWS]
    return statement(
        rule,
        share,
        values,
        advice=advice_of(rule, case.program | knows),
        rows=tuple(Row(row_name(row["name"]), row["sum_ns"], row["count"]) for row in first),
    )
