"""Counters of which each instance has a row: one value for each launch."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.rocprof.tables.counts import takes_largest
from traceflops.table import ABSENT, Array, BoolArray, TableBuilder

_KEYS: Final = ("process", "repetition", "dispatch", "name", "counter")


def summed_instances(table: TableBuilder) -> tuple[TableBuilder, int]:
    """Return kernel counters with one row per launch and counter, and how many rows that saved.

    The values of instances are added up; of a counter of the whole chip the largest counts.
    """
    if not table.count:
        return table, 0
    keys = {name: table.column(name) for name in _KEYS}
    order = np.lexsort([keys[name] for name in reversed(_KEYS)])
    opens = _opens({name: column[order] for name, column in keys.items()})
    first = np.flatnonzero(opens)
    if len(first) == table.count:
        return table, 0
    value = table.column("value")[order]
    counter = keys["counter"][order][first]
    largest = np.array([takes_largest(name) for name in table.names["counter"]])[counter]
    summed = np.where(largest, np.maximum.reduceat(value, first), np.add.reduceat(value, first))
    # In the order in which the launches stand in the files.
    place = np.argsort(np.minimum.reduceat(order, first), kind="stable")
    out = taken(table, order[first][place])
    out.replace("value", summed[place])
    return out, table.count - out.count


def taken(table: TableBuilder, rows: Array) -> TableBuilder:
    """Return some rows of a table, by their places or a mask, under the same codes of texts."""
    if rows.dtype == np.bool_ and rows.all():
        return table
    out = TableBuilder(table.table)
    for name, names in table.names.items():
        out.names[name].update(names)
        out.names[name].overflowed = names.overflowed
    columns: dict[str, Array | int] = {name: table.column(name)[rows] for name in table.types}
    count = np.count_nonzero(rows) if rows.dtype == np.bool_ else len(rows)
    out.add(int(count), **columns)
    return out


def _opens(keys: dict[str, Array]) -> BoolArray:
    """Return which of sorted rows differ from the one before; launches without number all do."""
    opens = np.ones(len(keys["dispatch"]), dtype=np.bool_)
    opens[1:] = keys["dispatch"][1:] == ABSENT
    for column in keys.values():
        opens[1:] |= column[1:] != column[:-1]
    return opens
