"""Rows that share a number, found by sorting, never looked for number by number; sums by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table.columns import (
    BoolArray,
    IntArray,
    WholeArray,
    codes,
    dictionary_column,
    is_one_of,
    names,
    number_column,
    numbers,
)
from traceflops.table.rows import ABSENT
from traceflops.table.trace import Trace

_GAPS: Final = 4
_FEW: Final = 1 << 10
_AT_ONCE: Final = 1 << 15
_HALF: Final = 32
_LOW: Final = (1 << _HALF) - 1


def in_order(*keys: IntArray) -> IntArray:
    """Return the order of rows by some keys, of which the first counts most; ties stay as they are.

    What is in order already, as most columns of times are, is only looked at.
    """
    falls = np.zeros(max(0, len(keys[0]) - 1), dtype=np.bool_)
    for key in reversed(keys):
        falls = (key[:-1] > key[1:]) | ((key[:-1] == key[1:]) & falls)
    return np.lexsort(keys[::-1]) if falls.any() else np.arange(len(keys[0]))


def by_code(code: IntArray) -> IntArray:
    """Return the order of rows by codes, none of which is negative; ties stay as they are."""
    order = np.argsort(code.astype(np.uint16), kind="stable")  # few bits take no comparisons
    high = code >> 16
    if high.any():
        order = order[np.argsort(high[order], kind="stable")]
    return order


def slices(count: int) -> Iterator[slice]:
    """Yield parts of so many rows, each so small that what is made of it stays in the cache."""
    for begin in range(0, count, _AT_ONCE):
        yield slice(begin, min(begin + _AT_ONCE, count))


def distinct(values: WholeArray) -> IntArray:
    """Return the distinct numbers in order.

    `np.unique` looks each up in a table of hashes instead, several times as slow for many, and
    loads masked arrays for it.
    """
    close = _ticked(values)
    if close is not None:
        return _there(*close)
    ordered = np.sort(values).astype(np.int64, copy=False)
    return ordered[_opens(ordered)]


def used_names(column: pa.ChunkedArray) -> set[str]:
    """Return the texts of a dictionary column that some row has."""
    texts = names(column)
    return {texts[code] for code in distinct(codes(column)).tolist() if code >= 0}


def without_unused(table: pa.Table) -> pa.Table:
    """Return a table whose dictionaries hold only texts that some row has, in the order they had.

    Rows that are left out leave theirs behind, which none may see who gets the file.
    """
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            code, texts = codes(table.column(place)), names(table.column(place))
            used = distinct(code[code >= 0])
            if len(used) < len(texts):
                moved = np.where(code >= 0, np.searchsorted(used, code), -1)
                column = dictionary_column(moved, [texts[one] for one in used.tolist()])
                table = table.set_column(place, field, column)
    return table


def groups(values: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each distinct number and the rows that have it, both in order."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(_opens(ordered))
    if len(first):
        yield from zip(ordered[first].tolist(), np.split(order, first[1:]), strict=True)


def joint_codes(first: WholeArray, second: WholeArray) -> IntArray:
    """Return one number per distinct pair, in the order of the pairs."""
    values, code = ranked(second)
    return np.multiply(first, max(1, len(values)), dtype=np.int64) + code


def ranked(values: WholeArray) -> tuple[IntArray, IntArray]:
    """Return the distinct numbers in order, and for each row the place of its number among them.

    Numbers that lie close together, ABSENT aside, are ticked off in a table and not sorted.
    """
    close = _ticked(values)
    if close is None:
        found, places = np.unique(values, return_inverse=True)
        return found.astype(np.int64, copy=False), places.reshape(-1)
    ticked, low = close
    rank, places = np.cumsum(ticked) - 1, np.empty(len(values), dtype=np.int64)
    for some in slices(len(values)):
        places[some] = rank[_place(values[some], low)]
    return _there(ticked, low), places


def _ticked(values: WholeArray) -> tuple[BoolArray, int] | None:
    """Return whether there is ABSENT, `low`, and each number after it; and `low`.

    None where the numbers are so far apart that such a table would be large.
    """
    known = values[values != ABSENT] if len(values) and values.min() == ABSENT else values
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    if high - low > _GAPS * len(known) + _FEW:
        return None
    ticked = np.zeros(high - low + 2, dtype=np.bool_)
    for some in slices(len(values)):
        ticked[_place(values[some], low)] = True
    return ticked, low


def _place(values: WholeArray, low: int) -> IntArray:
    """Return the places of numbers in a table that begins with ABSENT and then `low`."""
    return np.where(values == ABSENT, 0, np.subtract(values, low - 1, dtype=np.int64))


def _there(ticked: BoolArray, low: int) -> IntArray:
    """Return the numbers that are ticked off in such a table."""
    found = np.flatnonzero(ticked) + (low - 1)
    if ticked[0]:
        found[0] = ABSENT
    return found


def first_rows(group: IntArray, count: int) -> IntArray:
    """Return the first row of each of `count` groups, -1 of one without rows."""
    found = np.full(count, -1, dtype=np.int64)
    found[group[::-1]] = np.arange(len(group) - 1, -1, -1)  # the first one is written last
    return found


def group_rows(columns: Sequence[WholeArray]) -> tuple[IntArray, IntArray]:
    """Return the group of each row (rows equal in all columns) and the first row of each group.

    Groups are in the order of the columns, of which the first counts most.
    """
    rows = len(columns[0])
    joint, size = np.zeros(rows, dtype=np.int64), 1
    most = _GAPS * rows + _FEW
    for column in columns if rows else ():
        low, width = int(column.min()), int(column.max()) - int(column.min()) + 1
        if size * width > most:
            # Made dense again, the product never grows beyond rows * codes.
            (known, joint), (values, column) = ranked(joint), ranked(column)
            size, low, width = len(known), 0, len(values)
        if width > 1:
            joint *= width
            joint += np.subtract(column, low, dtype=np.int64)
            size *= width
    found, joint = ranked(joint)
    return joint, first_rows(joint, len(found) if rows else 0)


def group_sums(group: WholeArray, values: IntArray, groups: int) -> IntArray:
    """Return the sum of the values of each group; what has a negative one is in none."""
    sums = np.zeros(groups + 1, dtype=np.int64)
    np.add.at(sums, group, values)  # -1 is the place behind the last group
    return sums[:groups]


def runs(first: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """Return all places of several runs [first, stop), and of which run each is."""
    counts = np.maximum(stop - first, 0)
    which = np.repeat(np.arange(len(first)), counts)
    offsets = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return first[which] + offsets, which


def _opens(ordered: IntArray) -> BoolArray:
    """Return which of sorted numbers differ from the one before them."""
    opens = np.ones(len(ordered), dtype=np.bool_)
    opens[1:] = ordered[1:] != ordered[:-1]
    return opens


def exact_sums(group: WholeArray, values: IntArray, groups: int) -> list[int]:
    """Return the sum of the values of each group as Python integers.

    `group` holds places below `groups`, `values` counts from 0 to 2^63 - 1. Both halves of the
    numbers are added apart, so that neither sum can wrap for fewer than 2^31 values.
    """
    high, low = (group_sums(group, one, groups) for one in (values >> _HALF, values & _LOW))
    return [(a << _HALF) + b for a, b in zip(high.tolist(), low.tolist(), strict=True)]


def exact_sum(values: IntArray) -> int:
    """Return the sum of counts as a Python integer."""
    return exact_sums(np.zeros(len(values), dtype=np.int64), values, 1)[0]


DEVICE_KINDS: Final = ("kernel", "memcpy", "memset")
HOST_TABLES: Final = {"call": "calls", "mark": "marks", "gpu_mark": "marks"}
"""Kinds that are summed up here where the source has the records and not their sums."""

_PROJECTED: Final = "gpu_annotation"
"""The kind of marks that are ranges of the host as they are seen on the device: gpu_mark here."""

_MOMENT: Final = "event"
"""The kind of marks that are moments, of which there is nothing to add up."""

_FIGURES: Final = {
    "count": np.add,
    "total_ns": np.add,
    "min_ns": np.minimum,
    "max_ns": np.maximum,
    "bytes": np.add,
}
_TOO_LARGE: Final = 2.0**62


@dataclass(frozen=True, slots=True)
class Total:
    """The records of one name and kind added up; None where the source does not say."""

    kind: str
    name: str
    count: int | None
    sum_ns: int | None
    min_ns: int | None
    max_ns: int | None
    bytes: int | None = None

    @property
    def side(self) -> str:
        """Return what this is a part of: device work, or all of its own kind."""
        return "device" if self.kind in DEVICE_KINDS else self.kind

    @property
    def mean_ns(self) -> int | None:
        """Return the mean in whole ns."""
        if not self.count or self.sum_ns is None:
            return None
        return (self.sum_ns + self.count // 2) // self.count


def totals_of(trace: Trace) -> list[Total]:
    """Return the sums of all processes together: device work first, then the longest first."""
    found = [*_given(trace.totals)]
    kinds = {one.kind for one in found}
    for kind, table in HOST_TABLES.items():
        if kind not in kinds:
            found += _added_up(kind, _of_kind(kind, trace.table(table)))
    place = {side: at for at, side in enumerate(("device", *HOST_TABLES))}
    return sorted(
        found, key=lambda item: (place.get(item.side, len(place)), -(item.sum_ns or 0), item.name)
    )


def side_sums(totals: list[Total]) -> dict[str, int]:
    """Return the sum of each side; one of which a part is not known has none."""
    unknown = {total.side for total in totals if total.sum_ns is None}
    sums: dict[str, int] = {}
    for total in totals:
        if total.side not in unknown:
            sums[total.side] = sums.get(total.side, 0) + (total.sum_ns or 0)
    return sums


def _given(table: pa.Table) -> Iterator[Total]:
    """Yield the sums that the source itself gives."""
    if not table.num_rows:
        return
    kinds, labels = names(table["kind"]), names(table["name"])
    kind, name = codes(table["kind"]), codes(table["name"])
    group, first = _grouped(joint_codes(kind, name))
    figures = [
        _combined(numbers(table[column], ABSENT), group, len(first), how)
        for column, how in _FIGURES.items()
    ]
    for k, n, *of in zip(kind[first].tolist(), name[first].tolist(), *figures, strict=True):
        yield Total(kinds[k], labels[n], *of)


def _of_kind(kind: str, records: pa.Table) -> pa.Table:
    if "kind" not in records.schema.names or not records.num_rows:
        return records
    projected = is_one_of(records["kind"], _PROJECTED) == (kind == "gpu_mark")
    rows = np.flatnonzero(projected & ~is_one_of(records["kind"], _MOMENT))
    if len(rows) == records.num_rows:
        return records
    return records.take(number_column(rows, pa.int64()))


def _added_up(kind: str, records: pa.Table) -> Iterator[Total]:
    """Yield the sums of what the source recorded one by one."""
    if not records.num_rows:
        return
    labels, duration = names(records["name"]), numbers(records["dur_ns"], 0)
    group, first = _grouped(codes(records["name"]))
    columns = (np.ones_like(duration), duration, duration, duration)
    figures = [
        _combined(values, group, len(first), how)
        for values, how in zip(columns, _FIGURES.values(), strict=False)
    ]
    for n, *of in zip(codes(records["name"])[first].tolist(), *figures, strict=True):
        yield Total(kind, labels[n], *of)


def _grouped(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Return the group of each row, and one row of each group."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return group, first


def _combined(values: IntArray, group: IntArray, groups: int, how: np.ufunc) -> list[int | None]:
    """Return the values of each group combined; None where one is not known, or it is too large."""
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], np.arange(groups))
    ordered = values[order]
    found = how.reduceat(ordered, first)
    known = np.minimum.reduceat(ordered, first) != ABSENT
    known &= np.abs(how.reduceat(ordered.astype(np.float64), first)) < _TOO_LARGE
    return [
        value if is_known else None
        for value, is_known in zip(found.tolist(), known.tolist(), strict=True)
    ]
