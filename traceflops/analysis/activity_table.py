"""The activities of a recording with what was found out about each, as a table to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from traceflops.attribution import launch_scopes, ops_that_launched
from traceflops.table import (
    ABSENT,
    codes,
    dictionary_column,
    merged_column,
    names,
    number_column,
    numbers,
    taken,
)

if TYPE_CHECKING:
    from traceflops.table import IntArray
    from traceflops.windows import Prepared


FOUND: Final = {
    "rank": "rank of its process",
    "step": "step of the window that it starts in",
    "used": "whether that window is part of the report",
    "top": "category",
    "sub": "category within `top`",
    "op_row": "row of the table ops that launched it",
    "op": "name of that operator",
    "call": "name of the call that launched it",
    "module": "nn.Modules around its launch or its forward operator, else the annotation",
}
"""What is found out about each activity, by column."""


def activity_table(prepared: Prepared) -> pa.Table:
    """Return the table `activities` with the columns of FOUND behind it; unknown is null."""
    trace, linked = prepared.trace, prepared.as_launched.linked
    table = trace.activities
    rows = np.arange(table.num_rows)
    call, op = linked.links.call_of_activity, ops_that_launched(prepared.as_launched, rows)
    scopes = launch_scopes(linked, call, op, prepared.selection.step_mark)
    categorised = linked.categorised
    ranks = np.array([ABSENT if rank is None else rank for rank in trace.ranks], np.int64)
    step, used = _windows(prepared)
    added = {
        "rank": _known(taken(ranks, numbers(table["process"]), ABSENT)),
        "step": _known(step),
        "used": pa.array(used),
        "top": merged_column(categorised.category, categorised.top()),
        "sub": merged_column(categorised.category, [c.sub for c in categorised.categories]),
        "op_row": _known(np.where(op >= 0, op, ABSENT)),
        "op": _names_of(linked.trace.ops, op),
        "call": _names_of(linked.trace.calls, call),
        "module": merged_column(scopes.scope, scopes.texts),
    }
    for name, column in added.items():
        field = pa.field(name, column.type, metadata={"meaning": FOUND[name]})
        table = table.append_column(field, column)
    return table


def numbered_ops(ops: pa.Table) -> pa.Table:
    """Return the table `ops` with the number of each row, to which `op_row` of activities leads."""
    field = pa.field("op_row", pa.int64(), metadata={"meaning": "row of this table"})
    return ops.append_column(field, pa.array(np.arange(ops.num_rows)))


def _windows(prepared: Prepared) -> tuple[IntArray, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return the step that each activity starts in, and whether its window is chosen."""
    count = prepared.trace.activities.num_rows
    step, used = np.full(count, ABSENT, np.int64), np.zeros(count, np.bool_)
    for device, account in prepared.accounts.items():
        windows = prepared.windows[device]
        if not windows:
            continue
        begin, end, number, chosen = np.array(
            [
                (one.start_ns, one.end_ns, ABSENT if one.step is None else one.step, one.used)
                for one in windows
            ],
            np.int64,
        ).T
        at = np.searchsorted(begin, account.rows.start_ns, side="right") - 1
        inside = (at >= 0) & (account.rows.start_ns < end[np.maximum(at, 0)])
        rows, at = account.rows.row[inside], at[inside]
        step[rows], used[rows] = number[at], chosen[at] != 0
    return step, used


def _known(values: IntArray) -> pa.Array:
    known = values != ABSENT
    return number_column(np.where(known, values, 0), pa.int64(), known)


def _names_of(table: pa.Table, rows: IntArray) -> pa.Array:
    return dictionary_column(taken(codes(table["name"]), rows), names(table["name"]))
