"""Links from device work to its cause: activity -> call -> innermost op."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.table.columns import ABSENT, BoolArray, IntArray, numbers, thread_columns
from traceflops.table.grouping import first_rows, in_order, is_among, ranked, shared_codes
from traceflops.table.nesting import innermost, taken
from traceflops.table.trace import Trace


def recorded_calls(trace: Trace) -> BoolArray:
    """Return, per call, whether an activity of its process has its correlation."""
    calls, activities = (
        (numbers(table["process"]), numbers(table["correlation"], ABSENT))
        for table in (trace.calls, trace.activities)
    )
    id_of_call, id_of_activity = shared_codes(calls, activities)
    _, correlation = calls
    return np.asarray(is_among(id_of_call, id_of_activity) & (correlation != ABSENT))


class Links(Struct, frozen=True):
    """The row of the call or op that caused each activity or call, -1 for none."""

    call_of_activity: IntArray
    op_of_call: IntArray
    op_of_activity: IntArray


def link(trace: Trace) -> Links:
    """Link activities to calls and calls to ops.

    An activity belongs to the earliest call of its process with the same correlation. A call
    belongs to the innermost op of its thread around its start. Calls without such an op and
    activities without a call belong to the op with their external id, if it began before them.
    """
    calls, ops = trace.calls, trace.ops
    op_of_call = np.full(calls.num_rows, -1, dtype=np.int64)
    if calls.num_rows and ops.num_rows:
        op_thread, call_thread = shared_codes(thread_columns(ops), thread_columns(calls))
        op_start, call_start = numbers(ops["start_ns"]), numbers(calls["start_ns"])
        op_end = op_start + numbers(ops["dur_ns"])
        op_of_call = innermost(op_thread, op_start, op_end, call_thread, call_start)
        _fill_by_external_id(trace, "calls", op_of_call, op_of_call < 0)
    call_of_activity = first_of_same(calls, "correlation", trace.activities)
    op_of_activity = taken(op_of_call, call_of_activity)
    # If no op is known, Kineto writes the correlation as the external id of activities.
    external = numbers(trace.activities["external_id"], ABSENT)
    is_correlation = external == numbers(trace.activities["correlation"], ABSENT)
    names_no_op = is_correlation & (call_of_activity < 0)
    is_open = (op_of_activity < 0) & ~names_no_op
    _fill_by_external_id(trace, "activities", op_of_activity, is_open)
    return Links(call_of_activity, op_of_call, op_of_activity)


def first_of_same(
    owners: pa.Table, column: str, rows: pa.Table, some: IntArray | slice = slice(None)
) -> IntArray:
    """Return, per row in `some`, the first-started owner of its process and `column`, or -1."""
    return first_match(
        numbers(owners["process"]),
        numbers(owners[column], ABSENT),
        numbers(owners["start_ns"]),
        numbers(rows["process"])[some],
        numbers(rows[column], ABSENT)[some],
    )


def _fill_by_external_id(trace: Trace, table: str, op: IntArray, is_open: BoolArray) -> None:
    """Set `op` in place, in the open rows of a table, to the op with their external id, or -1."""
    rows = np.flatnonzero(is_open)
    owner = first_of_same(trace.ops, "external_id", trace.table(table), rows)
    op_start, start = numbers(trace.ops["start_ns"]), numbers(trace.table(table)["start_ns"])
    op[rows] = np.where(taken(op_start, owner) <= start[rows], owner, -1)


def first_match(
    process: IntArray, ids: IntArray, start: IntArray, at_process: IntArray, at_ids: IntArray
) -> IntArray:
    """Return, per wanted pair, the first-started row with this process and id, or -1."""
    if not len(ids) or bool((at_ids == ABSENT).all()):
        return np.full(len(at_ids), -1, dtype=np.int64)
    pairs = shared_codes((process, ids), (at_process, at_ids))
    distinct_pairs, number = ranked(np.concatenate(pairs))
    of_row, wanted = np.split(number, [len(ids)])
    # Rows 0, 1, 2 have the pairs [7 4 7] and start at [30 10 20]  ->  by_start [1 2 0], and in that
    # order [4 7 7]: the first with 7 is at place 1, row 2.
    by_start = in_order(start)
    place = first_rows(of_row[by_start], len(distinct_pairs))[wanted]
    return np.where((at_ids != ABSENT) & (place >= 0), by_start[place], -1)
