"""Hardware counters of launches in rocprof's CSV: one value for each launch and counter.

The instances of a counter have numbers, or stand side by side in the rows of their launch: they
are added up. What stands there again is left out and counted: the first that was written counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from traceflops.parsers.io import Cut, Texts
from traceflops.parsers.rocprof.tables.parts import COUNTERS, ProcessPart
from traceflops.parsers.rocprof.tables.work import ids
from traceflops.parsers.shared import UNNAMED_KERNEL, chosen
from traceflops.table import ABSENT, Array, BoolArray, IntArray, TableBuilder, compact, group_rows

_KEYS: Final = ("process", "repetition", "dispatch", "name", "counter")
_MOST_HEADERS: Final = 1 << 20
"""More than a file can have: a text is read up to its 1000th header."""
_LARGEST_OF: Final = ("GRBM",)
"""Counters of the whole chip: its instances count the same, so the largest is the value."""


def takes_largest(counter: str) -> bool:
    """Return whether instances of a counter count the same, so that the largest is its value."""
    return counter.startswith(_LARGEST_OF)


def add_counters(cut: Cut, part: ProcessPart) -> None:
    """Add counters that stand in a row each."""
    value = cut.columns["value"]
    assert not isinstance(value, Texts)
    finite = np.isfinite(value)
    part.file.odd["no-value"] += int((~finite).sum())
    cut = cut.only(finite)
    if cut.count:
        names = part[COUNTERS].names["counter"]
        counter = cut.codes("counter", names, "(unnamed)")
        columns = _launch(cut, part) | {"repetition": cut["replay"], "counter": counter}
        _add(cut, part, columns | {"value": value[finite]})


def add_wide(cut: Cut, part: ProcessPart, counters: Mapping[str, tuple[str, ...]]) -> None:
    """Add counters that stand in a column each, or in one for each of their instances."""
    part.is_wide = True
    launch, names = _launch(cut, part), part[COUNTERS].names["counter"]
    for counter, words in counters.items():
        value = _joined(counter, np.stack([np.asarray(cut.columns[word]) for word in words]))
        known = np.isfinite(value)
        columns = {name: column[known] for name, column in launch.items()}
        _add(cut.only(known), part, columns | {"counter": names[counter], "value": value[known]})


def _joined(counter: str, instances: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the value of a counter by those of its instances; NaN where none has one."""
    known = np.isfinite(instances)
    if takes_largest(counter):
        value = np.where(known, instances, -np.inf).max(axis=0)
    else:
        value = np.where(known, instances, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), value, np.nan)


def _launch(cut: Cut, part: ProcessPart) -> dict[str, Array]:
    threads, block = cut["threads"], cut["block_threads"]
    # The rows of rocprof v1 are dispatches, and their places are all that links them.
    is_v1 = cut.has("dispatched")
    return {
        "device": cut.codes("agent", part.agents, ""),
        "name": cut.codes("kernel", part[COUNTERS].names["name"], UNNAMED_KERNEL),
        "dispatch": cut["dispatch"],
        "correlation": cut["dispatch"] if is_v1 else ids(cut, "correlation"),
        "threads": np.where(threads > 0, threads, ABSENT),
        "block_threads": np.where(block > 0, block, ABSENT),
    }


def _add(cut: Cut, part: ProcessPart, columns: Mapping[str, Array | int]) -> None:
    """Add rows, with the instance and the number of headers before them until they count once."""
    if cut.count:
        start = cut["start"]
        part.counting.cover(start[start > 0])
        table = part[COUNTERS]
        table.add(cut.count, **columns)
        headers = part.file.damage.repeated_headers
        table.pieces[-1][1].update(instance=compact(cut["instance"]), headers=headers)


def counted_once(parts: Sequence[ProcessPart], tally: Counter[str]) -> TableBuilder:
    """Return the counters of one run of a process, a row per launch and counter.

    `tally` counts the rows of instances, and those that stand there again.
    """
    table = TableBuilder(COUNTERS)
    instances: list[IntArray] = []
    sections: list[IntArray] = []
    for place, part in enumerate(parts):
        for count, piece in part[COUNTERS].pieces:
            instances.append(np.full(count, piece.pop("instance")))
            sections.append(np.full(count, _MOST_HEADERS * place + piece.pop("headers")))
        table.absorb(part.tables.pop(COUNTERS))
    instance = np.concatenate(instances)
    group, first = group_rows([*_keys(table), instance])
    if len(first) < table.count:
        is_first = _first_written(table, instance, np.concatenate(sections), first[group])
        tally["counters-written-twice"] += table.count - int(is_first.sum())
        table = chosen(table, is_first)
    elif (instance == ABSENT).all():
        return table
    table, merged = summed_instances(table)
    tally["instances"] += merged
    return table


def _keys(table: TableBuilder) -> list[IntArray]:
    return [table.column(name) for name in _KEYS]


def _first_written(
    table: TableBuilder, instance: IntArray, section: IntArray, first: IntArray
) -> BoolArray:
    """Return the rows that stand where their launch and counter, or their instance, first do.

    `first` is the first row with the same. Launches without a number all count: nothing tells that
    they are the same.
    """
    order = np.argsort(table.column("counter"), kind="stable")
    launch = group_rows([*_keys(table), section])[0][order]
    run = np.empty(table.count, np.int64)
    run[order] = np.cumsum(np.append(0, launch[1:] != launch[:-1]))
    written = np.where(instance == ABSENT, run, np.arange(table.count))
    return np.asarray((written == written[first]) | (table.column("dispatch") == ABSENT))


def summed_instances(table: TableBuilder) -> tuple[TableBuilder, int]:
    """Return kernel counters with one row per launch and counter, and how many rows that saved.

    The values of instances are added up; of a counter of the whole chip the largest counts.
    """
    unnumbered = np.where(table.column("dispatch") == ABSENT, np.arange(table.count), 0)
    group, first = group_rows([*_keys(table), unnumbered])
    if len(first) == table.count:
        return table, 0
    value, order = table.column("value"), np.argsort(first)
    largest = np.full(len(first), -np.inf)
    np.maximum.at(largest, group, value)
    takes = np.array([takes_largest(name) for name in table.names["counter"]])
    summed = np.where(takes[table.column("counter")[first]], largest, np.bincount(group, value))
    saved = table.count - len(first)
    out = chosen(table, np.isin(np.arange(table.count), first))
    out.replace("value", summed[order])
    return out, saved
