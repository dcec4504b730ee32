"""From device work back to its cause: activity -> call -> innermost op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceflops.table.columns import BoolArray, IntArray, numbers
from traceflops.table.grouping import first_rows, in_order, joint_codes, ranked
from traceflops.table.nesting import innermost, taken
from traceflops.table.rows import ABSENT
from traceflops.table.trace import Trace


def recorded_calls(trace: Trace) -> BoolArray:
    """Return which calls some activity has the correlation of."""
    process, correlation = (
        np.concatenate([numbers(one[name], ABSENT) for one in (trace.calls, trace.activities)])
        for name in ("process", "correlation")
    )
    launch, count = joint_codes(process, correlation), trace.calls.num_rows
    return np.asarray(np.isin(launch[:count], launch[count:]) & (correlation[:count] != ABSENT))


@dataclass(frozen=True, slots=True)
class Links:
    """Rows of the causing records, -1 where there is none.

    `call_of_activity` are rows of calls, `op_of_call` and `op_of_activity` rows of ops.
    """

    call_of_activity: IntArray
    op_of_call: IntArray
    op_of_activity: IntArray


def link(trace: Trace) -> Links:
    """Return the links of a trace.

    An activity belongs to the earliest call of its process with the same correlation. A call
    belongs to the innermost op of its thread around its start; where there is none, to the op
    whose external id it carries, and so does an activity without a call.
    """
    call_of_activity = _owners(trace.calls, "correlation", trace.activities)
    op_of_call = _ops_around(trace)
    op_of_activity = taken(op_of_call, call_of_activity)
    _fill_by_external_id(trace, "activities", op_of_activity)
    return Links(call_of_activity, op_of_call, op_of_activity)


def _owners(
    owners: pa.Table, column: str, rows: pa.Table, some: IntArray | slice = slice(None)
) -> IntArray:
    """Return, per row, the first of the owners of its process with the same number, or -1."""
    return first_match(
        numbers(owners["process"]),
        numbers(owners[column], ABSENT),
        numbers(owners["start_ns"]),
        numbers(rows["process"])[some],
        numbers(rows[column], ABSENT)[some],
    )


def _ops_around(trace: Trace) -> IntArray:
    calls, ops = trace.calls, trace.ops
    if not calls.num_rows or not ops.num_rows:
        return np.full(calls.num_rows, -1, dtype=np.int64)
    start = numbers(ops["start_ns"])
    threads = joint_codes(
        np.concatenate([numbers(ops["process"]), numbers(calls["process"])]),
        np.concatenate([numbers(ops["thread"], ABSENT), numbers(calls["thread"], ABSENT)]),
    )
    around = innermost(
        threads[: ops.num_rows],
        start,
        start + numbers(ops["dur_ns"]),
        threads[ops.num_rows :],
        numbers(calls["start_ns"]),
    )
    _fill_by_external_id(trace, "calls", around)
    return around


def _fill_by_external_id(trace: Trace, table: str, op_of_row: IntArray) -> None:
    """Fill in, where no op is known yet, the op that carries the row's external id."""
    open_rows = np.flatnonzero(op_of_row < 0)
    op_of_row[open_rows] = _owners(trace.ops, "external_id", trace.table(table), open_rows)


def first_match(
    process: IntArray, ids: IntArray, start: IntArray, at_process: IntArray, at_ids: IntArray
) -> IntArray:
    """Return, per question, the row with the same process and id that starts first, or -1."""
    count = len(ids)
    if count == 0 or bool((at_ids == ABSENT).all()):
        return np.full(len(at_ids), -1, dtype=np.int64)
    joint = joint_codes(np.concatenate([process, at_process]), np.concatenate([ids, at_ids]))
    distinct, keys = ranked(joint)
    order = in_order(start)
    earliest = first_rows(keys[:count][order], len(distinct))
    place = earliest[keys[count:]]
    return np.where((at_ids != ABSENT) & (place >= 0), order[place], -1)
