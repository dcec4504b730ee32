"""The activities of a recording with what was found out about each, as a table to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from traceflops.attribution import launch_scopes, ops_that_launched
from traceflops.ranks import KINDS, communication_kinds
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
from traceflops.windows import chosen_time

if TYPE_CHECKING:
    from traceflops.table import BoolArray, IntArray
    from traceflops.timeline import LinkedTrace, Window
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
    "collective": "collective by the framework (allreduce), else its kind (all_reduce)",
    "module": "nn.Modules around its launch or its forward operator, else the annotation",
}
"""What is found out about each activity, by column."""


def activity_table(prepared: Prepared) -> pa.Table:
    """Return the table `activities` with the columns of FOUND; unknown is null."""
    trace, linked = prepared.trace, prepared.as_launched.linked
    table = trace.activities
    rows = np.arange(table.num_rows)
    call, op = linked.links.call_of_activity, ops_that_launched(prepared.as_launched, rows)
    scopes = launch_scopes(linked, call, op, prepared.selection.step_mark)
    categorised = linked.categorised
    step, used = _windows(prepared)
    added = {
        "rank": ranks_of(table, trace.ranks),
        "step": known_numbers(step),
        "used": pa.array(used),
        "top": merged_column(categorised.category, categorised.top()),
        "sub": merged_column(categorised.category, [c.sub for c in categorised.categories]),
        "op_row": known_numbers(np.where(op >= 0, op, ABSENT)),
        "op": names_of(linked.trace.ops, op),
        "call": names_of(linked.trace.calls, call),
        "module": merged_column(scopes.scope, scopes.texts),
        "collective": _collectives(linked),
    }
    for name, column in added.items():
        field = pa.field(name, column.type, metadata={"meaning": FOUND[name]})
        at = table.schema.get_field_index(name)
        new = at < 0
        table = table.append_column(field, column) if new else table.set_column(at, field, column)
    return table


def _collectives(linked: LinkedTrace) -> pa.Array:
    """Return the collective of each activity as it was recorded, or else its kind."""
    told, kind = linked.trace.activities["collective"], communication_kinds(linked)
    texts, code = names(told), codes(told)
    found = np.where(kind >= 0, kind + len(texts), -1)
    return merged_column(np.where(code >= 0, code, found), [*texts, *KINDS])


def ranks_of(table: pa.Table, ranks: Sequence[int | None]) -> pa.Array:
    """Return the rank of the process of each row."""
    by_process = np.array([ABSENT if rank is None else rank for rank in ranks], np.int64)
    return known_numbers(taken(by_process, numbers(table["process"]), ABSENT))


def windows_at(windows: tuple[Window, ...], time_ns: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the step whose window holds each time, and whether a window that is used does.

    A selected range of time lies across the steps.
    """
    edges = [
        (one.start_ns, one.end_ns, ABSENT if one.step is None else one.step)
        for one in windows
        if one.role != "range"
    ]
    begin, end, number = np.array(edges, np.int64).reshape(-1, 3).T
    at = np.searchsorted(begin, time_ns, side="right") - 1
    step = np.where(time_ns < taken(end, at, ABSENT), taken(number, at, ABSENT), ABSENT)
    return step, chosen_time(windows).contains(time_ns)


def _windows(prepared: Prepared) -> tuple[IntArray, BoolArray]:
    """Return the step that each activity starts in, and whether its window is chosen."""
    count = prepared.trace.activities.num_rows
    step, used = np.full(count, ABSENT, np.int64), np.zeros(count, np.bool_)
    for device, account in prepared.accounts.items():
        row = account.rows.row
        step[row], used[row] = windows_at(prepared.windows[device], account.rows.start_ns)
    return step, used


def known_numbers(values: IntArray) -> pa.Array:
    """Return numbers as a column, null where they are ABSENT."""
    known = values != ABSENT
    return number_column(np.where(known, values, 0), pa.int64(), known)


def names_of(table: pa.Table, rows: IntArray) -> pa.Array:
    """Return the names in rows of a table, null where a row is -1."""
    return dictionary_column(taken(codes(table["name"]), rows), names(table["name"]))
