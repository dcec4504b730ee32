"""Counters of a process as values: instances added up, what stands there again told apart.

The instances of a counter have numbers, or stand side by side in the rows of their launch. What
stands in a second table, or under the same number again, was read or written again: the same values
count once, others are a reading of their own. Rows without numbers that stand apart are instances
where their values differ. Where they are all the same and nothing else tells, they are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from traceflops.parsers.rocprof.tables.counts import takes_largest
from traceflops.parsers.rocprof.tables.repetitions import COUNTERS
from traceflops.parsers.rocprof.tables.sums import summed_instances, taken
from traceflops.parsers.shared import ProcessPart
from traceflops.table import ABSENT, BoolArray, IntArray, Names, TableBuilder, group_rows

Counted = tuple[int | None, bool, ProcessPart]


class Tally(Protocol):
    """What is counted: rows added to others, that stand there again, and that may be either."""

    instances: int
    counted_again: int
    untold: int


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Counters with one value for each launch and counter, and the rows that they are from."""

    part: ProcessPart
    table: TableBuilder


def readings(counted: Sequence[Counted], tally: Tally) -> Iterator[CounterReading]:
    """Yield the counters of a process."""
    last = max((number or 0 for number, _, _ in counted), default=0)
    runs: dict[tuple[int | None, bool], list[ProcessPart]] = {}
    for number, is_own, part in counted:
        runs.setdefault((number, is_own), []).append(part)
    for (number, is_own), parts in runs.items():
        levels: list[tuple[int | None, _Known]] = [(number, _Known())]
        for part in parts:
            for table in _rounds(part, tally):
                rest = table
                for repetition, known in levels:
                    new, other = known.compare(rest)
                    tally.counted_again += rest.count - int(new.sum()) - int(other.sum())
                    yield CounterReading(part, _of_run(taken(rest, new), repetition, is_own=is_own))
                    rest = taken(rest, other)
                if rest.count:
                    last = max(last, 1) + 1
                    levels.append((last, _Known()))
                    levels[-1][1].compare(rest)
                    yield CounterReading(part, _of_run(rest, last, is_own=is_own))


def _of_run(table: TableBuilder, repetition: int | None, *, is_own: bool) -> TableBuilder:
    """Say of which repetition counters are; ids of another than that of the times link nowhere."""
    for _, columns in table.pieces:
        if repetition is not None:
            columns["repetition"] = repetition
        if not is_own:
            columns["correlation"] = ABSENT
    return table


class _Known:
    """The counters of one reading, by launch and counter."""

    def __init__(self) -> None:
        self._names, self._counters = Names(), Names()
        self._keys = [np.empty(0, np.int64)] * 4
        self._values = np.empty(0)

    def compare(self, table: TableBuilder) -> tuple[BoolArray, BoolArray]:
        """Return which rows are new, and which have another value; others are there already.

        Launches without a number are new: nothing tells that they are the same.
        """
        keys, value = self._keys_of(table), table.column("value")
        joint, first = group_rows(
            [np.concatenate(both) for both in zip(self._keys, keys, strict=True)]
        )
        known, mine = joint[: len(self._values)], joint[len(self._values) :]
        value_of = np.full(len(first), np.nan)
        value_of[known] = self._values
        there = np.zeros(len(first), np.bool_)
        there[known] = True
        new = ~there[mine] | (keys[0] == ABSENT)
        self._keys = [
            np.concatenate((old, more[new])) for old, more in zip(self._keys, keys, strict=True)
        ]
        self._values = np.concatenate((self._values, value[new]))
        return new, ~new & (value_of[mine] != value)

    def _keys_of(self, table: TableBuilder) -> list[IntArray]:
        name = self._names.codes(table.names["name"])
        counter = self._counters.codes(table.names["counter"])
        return [
            table.column("dispatch"),
            name[table.column("name")].astype(np.int64),
            counter[table.column("counter")].astype(np.int64),
            table.column("repetition"),
        ]


def _rounds(part: ProcessPart, tally: Tally) -> list[TableBuilder]:
    """Return the counters of a part by how often they were written, instances added up."""
    table = part[COUNTERS]
    keys = [table.column(name) for name in ("dispatch", "name", "counter", "repetition")]
    instance = np.concatenate([one for one, _ in part.origins])
    section = np.concatenate([np.full(len(one), number) for one, number in part.origins])
    group, first = group_rows([*keys, instance])
    if len(first) == table.count:
        return [_summed(table, tally)]
    launch = np.zeros(table.count, np.int64)
    launch[1:] = np.cumsum(_differ(keys[0], keys[1], section))
    launch[keys[0] == ABSENT] = 0
    found: list[TableBuilder] = []
    for rows in _by_number(_nth_run(group, section)):
        run = np.where(instance == ABSENT, launch, np.arange(len(launch)))[rows]
        numbered = bool((instance[rows] != ABSENT).all())
        found += _of_section(taken(table, rows), group[rows], run, tally, numbered=numbered)
    return found


def _of_section(
    table: TableBuilder, group: IntArray, run: IntArray, tally: Tally, *, numbered: bool
) -> list[TableBuilder]:
    """Return the counters behind one header by how often they were written, instances added up.

    `group` is the launch, counter and instance of each row, `run` rows that were written together.
    What comes again in other runs are copies where instances have numbers, or stand side by side.
    Other values are of other instances. What else is the same may be either, and is left out.
    """
    number = _nth_run(group, run)
    found = [taken(table, rows) for rows in _by_number(number)]
    if len(found) == 1 or numbered:
        return [_summed(one, tally) for one in found]
    if not _are_the_same([summed_instances(one)[0] for one in found]):
        return [_summed(table, tally)]
    _, first = group_rows([group, number])
    if len(first) < table.count:
        return [_summed(one, tally) for one in found]
    told = _told_either_way(table, group[number > 0], group)
    tally.untold += table.count - int(told.sum())
    return [_summed(taken(table, told), tally)]


def _told_either_way(table: TableBuilder, repeated: IntArray, group: IntArray) -> BoolArray:
    """Return the rows of counters that are the same, be repeated groups instances or copies.

    These are such as count nothing there, and those of which the largest instance stands for all.
    """
    counter = table.column("counter")
    in_doubt = np.isin(group, repeated) & (table.column("value") != 0)
    largest = np.array([takes_largest(name) for name in table.names["counter"]])
    in_doubt &= ~largest[counter]
    return ~np.isin(counter, counter[in_doubt])


def _differ(*columns: IntArray) -> BoolArray:
    """Return which rows but the first differ from the one before."""
    found = np.zeros(max(0, len(columns[0]) - 1), np.bool_)
    for column in columns:
        found |= column[1:] != column[:-1]
    return found


def _nth_run(group: IntArray, run: IntArray) -> IntArray:
    """Return, per row, how many runs with rows of its group there were before its own."""
    order = np.lexsort((run, group))
    changes = np.append(0, np.cumsum(_differ(group[order], run[order])))
    opens = np.append(True, group[order][1:] != group[order][:-1])
    start = np.maximum.accumulate(np.where(opens, changes, 0))
    out = np.empty(len(group), np.int64)
    out[order] = changes - start
    return out


def _by_number(number: IntArray) -> Iterator[BoolArray]:
    """Yield which rows have each number, from 0 on."""
    for one in range(int(number.max(initial=0)) + 1):
        yield number == one


def _summed(table: TableBuilder, tally: Tally) -> TableBuilder:
    found, merged = summed_instances(table)
    tally.instances += merged
    return found


def _are_the_same(tables: Sequence[TableBuilder]) -> bool:
    """Return whether all that stands in later tables stands in the first."""
    known = _Known()
    known.compare(tables[0])
    return not any(column.any() for table in tables[1:] for column in known.compare(table))
