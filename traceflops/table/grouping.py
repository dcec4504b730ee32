"""Groups of rows with equal numbers, by sorting or counting, and figures of each group.

Arrow's `group_by` does the same for tables, but loads pandas, a fifth of a second of start-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table.arrays import ABSENT, BoolArray, IntArray, WholeArray
from traceflops.table.columns import codes, dictionary_column, names

_GAPS, _FEW = 4, 1 << 10
"""Numbers are counted in a table of up to _GAPS cells per row and _FEW more; else sorted."""
_AT_ONCE: Final = 1 << 15
_MANY_PER_GROUP: Final = 64  # with more wanted instants per group each group is searched by itself


def in_order(*keys: IntArray) -> IntArray:
    """Return the stable order of rows by several keys (each per row): by the first, then the next.

    Rows that are sorted already, as most columns of times are, are only checked.
    """
    # Per pair of neighbours, whether they are in the wrong order by the last keys, then by more.
    # keys [1 1 2], [5 3 0]: by the last [1 1], then by both [1 0], as 1 < 2 decides
    falls = np.zeros(max(0, len(keys[0]) - 1), dtype=np.bool_)
    for key in reversed(keys):
        falls = (key[:-1] > key[1:]) | ((key[:-1] == key[1:]) & falls)
    return np.lexsort(keys[::-1]) if falls.any() else np.arange(len(keys[0]))


def by_code(code: IntArray) -> IntArray:
    """Return the stable order of rows by codes from 0, faster than by comparisons."""
    # numpy sorts 16 bits by radix: first by the low ones, then by the others if there are any.
    order = np.argsort(code.astype(np.uint16), kind="stable")
    if len(code) and not 0 <= int(code.min()) <= int(code.max()) < 1 << 16:
        order = order[np.argsort(code[order] >> 16, kind="stable")]
    return order


def slices(count: int) -> Iterator[slice]:
    """Yield slices that cover `count` rows, each so short that temporary arrays stay in cache."""
    for begin in range(0, count, _AT_ONCE):
        yield slice(begin, min(begin + _AT_ONCE, count))


def distinct(values: WholeArray) -> IntArray:
    """Return the distinct numbers in ascending order, much faster than `np.unique`."""
    table = _presence(values)
    if table is not None:
        return _present(*table)
    ordered = np.sort(values).astype(np.int64, copy=False)
    return ordered[differ_from_before(ordered)]


def without(values: WholeArray, others: WholeArray) -> IntArray:
    """Return the distinct numbers that are not among others, in ascending order."""
    own = distinct(values)
    return own[~is_among(own, others)]


def is_among(values: WholeArray, among: WholeArray) -> BoolArray:
    """Return, per number, whether it is among others; faster than `np.isin` for wide ranges."""
    _refuse_unsigned(values)
    others = distinct(among)
    if not len(others):
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(others, values), len(others) - 1)
    return np.asarray(others[place] == values)


def used_names(column: pa.ChunkedArray) -> set[str]:
    """Return the texts of a dictionary column that rows use."""
    texts = names(column)
    return {texts[code] for code in distinct(codes(column)).tolist() if code >= 0}


def without_unused(table: pa.Table) -> pa.Table:
    """Return a table without the texts that no row uses: those of removed rows may be private."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            code, texts = codes(table.column(index)), names(table.column(index))
            used = distinct(code[code >= 0])
            if len(used) < len(texts):
                new_code = np.where(code >= 0, np.searchsorted(used, code), -1)
                column = dictionary_column(new_code, [texts[number] for number in used.tolist()])
                table = table.set_column(index, field, column)
    return table


def groups(values: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each distinct number and the rows that have it, both in ascending order."""
    order = by_code(values)
    ordered = values[order]
    first = np.flatnonzero(differ_from_before(ordered))
    edges = [*first.tolist(), len(order)]
    for number, begin, end in zip(ordered[first].tolist(), edges[:-1], edges[1:], strict=True):
        yield number, order[begin:end]  # np.split takes ten times as long


def joint_codes(first: WholeArray, second: WholeArray) -> IntArray:
    """Return a number per row for its pair of values, in the order of the pairs.

    first [4 0 4], second [70 50 50]: ranks of second [1 0 0], of 2  ->  [4*2+1 0*2+0 4*2+0]
    """
    values, rank = ranked(second)
    return np.multiply(first, max(1, len(values)), dtype=np.int64) + rank


def shared_codes(*pairs: tuple[WholeArray, WholeArray]) -> list[IntArray]:
    """Return `joint_codes` of each pair of columns; equal pairs have one number in all."""
    first, second = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    ends = np.cumsum([len(column) for column, _ in pairs])
    return np.split(joint_codes(first, second), ends[:-1])


def ranked(values: WholeArray) -> tuple[IntArray, IntArray]:
    """Return the distinct numbers in ascending order, and per row the rank of its number.

    Numbers that lie close together (ABSENT aside) are counted in a table instead of sorted.
    """
    table = _presence(values)
    if table is None:
        numbers = distinct(values)
        if len(numbers) <= _FEW:  # a search among few is quicker than np.unique
            return numbers, np.searchsorted(numbers, values)
        unique, rank = np.unique(values, return_inverse=True)
        return unique.astype(np.int64, copy=False), rank.reshape(-1)
    is_present, low = table
    if len(is_present) == 2 and not is_present[0]:  # one number, as of the only process or device
        return _present(is_present, low), np.zeros(len(values), dtype=np.int64)
    rank_of_cell = np.cumsum(is_present, dtype=np.int32)
    rank_of_cell -= 1
    rank = np.empty(len(values), dtype=np.int64)
    for part in slices(len(values)):
        rank[part] = rank_of_cell[_cell(values[part], low, has_absent=bool(is_present[0]))]
    return _present(is_present, low), rank


def _presence(values: WholeArray) -> tuple[BoolArray, int] | None:
    """Return which numbers occur (cell 0: ABSENT, 1: `low`, ...), and `low`; None if far apart."""
    _refuse_unsigned(values)
    low, present = int(values.min()) if len(values) else 0, values
    if low == ABSENT:
        present = values[values != ABSENT]
        low = int(present.min()) if len(present) else 0
    high = int(present.max()) if len(present) else 0
    if high - low > _GAPS * len(present) + _FEW:
        return None
    is_present, has_absent = np.zeros(high - low + 2, dtype=np.bool_), present is not values
    if low == high and not has_absent:
        is_present[1] = len(values) > 0
        return is_present, low
    for part in slices(len(values)):
        is_present[_cell(values[part], low, has_absent=has_absent)] = True
    return is_present, low


def _refuse_unsigned(values: WholeArray) -> None:
    """Raise TypeError for numbers that may wrap as int64."""
    if not np.can_cast(values.dtype, np.int64):
        raise TypeError(f"{values.dtype} does not fit int64")


def _cell(values: WholeArray, low: int, *, has_absent: bool) -> IntArray:
    """Return the cells of numbers in a presence table; `has_absent`: ABSENT is among them."""
    cell = np.subtract(values, low - 1, dtype=np.int64)
    return np.where(values == ABSENT, 0, cell) if has_absent else cell


def _present(is_present: BoolArray, low: int) -> IntArray:
    """Return the numbers of a presence table in ascending order."""
    values = np.flatnonzero(is_present) + (low - 1)
    if is_present[0]:
        values[0] = ABSENT
    return values


def first_rows(group: IntArray, count: int) -> IntArray:
    """Return the first row of each of `count` groups, -1 for groups without rows."""
    # group [0 2 0]: rows are written backwards, so first[0] is 2, then 0
    first = np.full(count, -1, dtype=np.int64)
    first[group[::-1]] = np.arange(len(group) - 1, -1, -1)  # the first row is written last
    return first


def group_rows(columns: Sequence[WholeArray]) -> tuple[IntArray, IntArray]:
    """Return the group of each row (equal in all columns, in order), and their first rows."""
    rows = len(columns[0])
    # One number per row holds all columns so far; it is below `size`.
    # columns [5 6 6], [0 9 0]: joint [0 1 1] * 10 + [0 9 0] = [0 19 10], size 20; groups [0 2 1]
    joint, size = np.zeros(rows, dtype=np.int64), 1
    largest_table = _GAPS * rows + _FEW
    for column in columns if rows else ():
        low = int(column.min())
        width = int(column.max()) - low + 1
        if size * width > largest_table:
            # Ranks have no gaps: there are at most as many as rows, so the product stays small.
            unique, joint = ranked(joint)
            values, column = ranked(column)
            size, low, width = len(unique), 0, len(values)
        if width > 1:
            joint *= width
            joint += np.subtract(column, low, dtype=np.int64)
            size *= width
    unique, joint = ranked(joint)
    return joint, first_rows(joint, len(unique) if rows else 0)


def group_sums(group: WholeArray, values: IntArray, groups: int) -> IntArray:
    """Return the sum of the values of each of `groups` groups; group -1 is left out."""
    sums = np.zeros(groups + 1, dtype=np.int64)
    np.add.at(sums, group, values)  # -1 is the entry after the last group
    return sums[:groups]


def group_least(group: WholeArray, values: WholeArray, groups: int) -> IntArray:
    """Return the smallest value of each of `groups` groups, 2^63 - 1 for an empty one."""
    smallest = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(smallest, group, values)
    return smallest


def group_most(group: WholeArray, values: WholeArray, groups: int) -> IntArray:
    """Return the largest value of each of `groups` groups, -2^63 (ABSENT) for an empty one."""
    largest = np.full(groups, ABSENT)
    np.maximum.at(largest, group, values)
    return largest


def extremes(group: IntArray, values: WholeArray, groups: int) -> tuple[IntArray, IntArray]:
    """Return the largest and the smallest value per group; -1 and 2^63 - 1 for an empty group."""
    largest = np.full(groups, -1, dtype=np.int64)
    np.maximum.at(largest, group, values)
    return largest, group_least(group, values, groups)


def lower_medians(group: IntArray, values: IntArray) -> IntArray:
    """Return the lower median of the values of each group; no group from 0 on may be empty."""
    count = np.bincount(group)
    by_group_and_value = np.lexsort((values, group))
    begin = np.cumsum(count) - count  # of each group in that order
    medians: IntArray = values[by_group_and_value[begin + (count - 1) // 2]]
    return medians


def runs(first: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """Return the indices in several runs [first, stop), and per index the number of its run.

    first [3 8], stop [5 9]  ->  indices [3 4 8], runs [0 0 1]
    """
    counts = np.maximum(stop - first, 0)
    run = np.repeat(np.arange(len(first)), counts)
    # counts [2 1]: runs begin at [0 2] in the result  ->  place_in_run [0 1 2] - [0 0 2] = [0 1 0]
    place_in_run = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    return first[run] + place_in_run, run


def places_in_runs(values: IntArray) -> IntArray:
    """Return, per value, its place (from 0) in its run of equal neighbours."""
    # values [7 7 9 9 9]: index of the begin of each run [0 0 2 2 2]  ->  [0 1 0 1 2]
    index = np.arange(len(values))
    return index - np.maximum.accumulate(np.where(differ_from_before(values), index, 0))


def differ_from_before(values: IntArray) -> BoolArray:
    """Return, per value, whether it differs from the one before; True for the first."""
    differ = np.ones(len(values), dtype=np.bool_)
    differ[1:] = values[1:] != values[:-1]
    return differ


def exact_sums(group: WholeArray, values: IntArray, groups: int) -> list[int]:
    """Return the sum of the values of each group as Python integers.

    `group` holds numbers below `groups`, `values` counts from 0 to 2^63 - 1. Upper and lower 32
    bits are added separately, so that no sum of fewer than 2^31 values can wrap.
    """
    upper, lower = (group_sums(group, bits, groups) for bits in (values >> 32, values & 0xFFFFFFFF))
    return [(high << 32) + low for high, low in zip(upper.tolist(), lower.tolist(), strict=True)]


def exact_sum(values: IntArray) -> int:
    """Return the sum of counts as a Python integer."""
    return exact_sums(np.zeros(len(values), dtype=np.int64), values, 1)[0]


def places_in_groups(
    group: IntArray, at_ns: IntArray, wanted_group: IntArray, wanted_ns: IntArray
) -> IntArray:
    """Return, per wanted pair, how many of the sorted pairs (group, at_ns) are up to it."""
    if len(distinct(wanted_group)) * _MANY_PER_GROUP > len(wanted_ns):
        # With few wanted instants per group, one search in all groups is quicker. For this one
        # number holds a pair: the rank of its group, times `shift`, plus how many instants (of any
        # group) are before or equal to its time.
        # pairs (3, 10) (3, 20) (8, 15): shift 4, keys [1 3 6]; wanted (8, 18) is 4 + 2: 3 up to it
        opens, instants = differ_from_before(group), np.sort(at_ns)
        group_numbers, shift = group[opens], len(instants) + 1
        rank = np.searchsorted(group_numbers, wanted_group)
        # A group without pairs gets the rank of the next one: only the groups before count.
        has_pairs = np.append(group_numbers, ABSENT)[rank] == wanted_group
        until = np.where(has_pairs, np.searchsorted(instants, wanted_ns, side="right"), 0)
        keys = (np.cumsum(opens) - 1) * shift + np.searchsorted(instants, at_ns, side="right")
        return np.searchsorted(keys, rank * shift + until, side="right")
    count_before = np.empty(len(wanted_ns), dtype=np.int64)
    for number, rows in groups(wanted_group):
        first, stop = np.searchsorted(group, [number, number + 1])  # the pairs of this group
        inside = np.searchsorted(at_ns[first:stop], wanted_ns[rows], side="right")
        count_before[rows] = first + inside
    return count_before
