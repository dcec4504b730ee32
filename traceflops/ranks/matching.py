"""Which kernels of different ranks are one collective.

By sequence number where the framework gives one; else in the order of start within the group, with
the shift between two ranks at which most kinds and sizes agree. A match is impossible if one rank's
end lies before another's start: then kernels match that overlap in time, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from traceflops.ranks.comm_records import KINDS, CommRecords
from traceflops.table import ABSENT, BoolArray, IntArray, joint_codes

_LARGEST_SHIFT: Final = 64
_NEIGHBOURS: Final = 15
"""Matches on either side whose ends tell the difference of two clocks at a place."""
_CLOSE_NS: Final = 50_000
"""Ends of one collective lie closer together than that, but for what clocks differ."""
_NEARLY: Final = 0.8
_FAR: Final = 1 << 62
_ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Collectives in which a rank may leave before the last one comes."""
_UNEVEN: Final = KINDS.index("all_to_all")
"""The kind in which ranks put in different amounts."""
Pairs = tuple[IntArray, IntArray]


@dataclass(frozen=True, slots=True)
class Matches:
    """`collective` is the number of the collective of each record, -1 where it has no match.

    They are numbered in the order of their latest start. `impossible` counts pairs that the order
    or the sequence number joined though one had ended before the other began.
    """

    collective: IntArray
    count: int
    impossible: int


def matched(records: CommRecords) -> Matches:
    """Return which records are of one collective on all recorded ranks of its group."""
    collective = np.full(len(records), -1, dtype=np.int64)
    count = impossible = 0
    for group in range(len(records.groups)):
        members = records.members(group)
        if len(members) < 2:
            continue
        table, wrong = _of_group(records, members)
        impossible += wrong
        number = np.arange(count, count + len(table))
        collective[table] = number[:, None]
        count += len(table)
    return Matches(_in_time(records, collective, count), count, impossible)


def _in_time(records: CommRecords, collective: IntArray, count: int) -> IntArray:
    """Return the numbers of the collectives in the order of their latest start."""
    latest = np.full(count, np.iinfo(np.int64).min)
    known = np.flatnonzero(collective >= 0)
    np.maximum.at(latest, collective[known], records.start_ns[known])
    number = np.empty(count + 1, dtype=np.int64)
    number[np.argsort(latest, kind="stable")] = np.arange(count)
    number[-1] = -1
    return number[collective]


def _of_group(records: CommRecords, members: Sequence[IntArray]) -> tuple[IntArray, int]:
    """Return a row per collective and a column per rank, and how many pairs are impossible."""
    first = max(members, key=len)
    table = np.full((len(first), len(members)), -1, dtype=np.int64)
    wrong = 0
    for column, other in enumerate(members):
        if other is first:
            table[:, column] = first
            continue
        pairs, dropped = _of_two(records, first, other)
        wrong += dropped
        table[np.searchsorted(first, pairs[0]), column] = pairs[1]
    return table[(table >= 0).all(axis=1)], wrong


def _of_two(records: CommRecords, one: IntArray, other: IntArray) -> tuple[Pairs, int]:
    """Return the records of two ranks that match, and how many impossible pairs were dropped."""
    pairs = _by_sequence(records, one, other)
    if pairs is None:
        pairs = _best(records, _candidates(records, one, other))
    possible = _are_possible(records, pairs, _local_offsets(records, pairs))
    return (pairs[0][possible], pairs[1][possible]), int((~possible).sum())


def _by_sequence(records: CommRecords, one: IntArray, other: IntArray) -> Pairs | None:
    """Return the pairs with equal sequence numbers, None where these do not number collectives."""
    first, second = records.sequence[one], records.sequence[other]
    for numbers in (first, second):
        if len(numbers) < 2 or numbers[0] < 0 or (np.diff(numbers) <= 0).any():
            return None
    _, left, right = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    same = _are_equal(records, one[left], other[right])
    return one[left[same]], other[right[same]]


def _candidates(records: CommRecords, one: IntArray, other: IntArray) -> Iterator[Pairs]:
    """Yield ways to match: by order, shifted, and what overlaps on clocks that the order sets."""
    plain, unequal = _shifted(records, one, other, 0)
    yield plain
    whole = len(one) == len(other) and not unequal
    possible = _are_possible(records, plain, _local_offsets(records, plain))
    if whole and possible.all() and _spread_ns(records, plain) <= _CLOSE_NS:
        return
    shifts = range(1, min(_LARGEST_SHIFT, max(len(one), len(other))))
    every = [
        plain,
        *(_shifted(records, one, other, at * way)[0] for at in shifts for way in (1, -1)),
    ]
    alike = [_most_alike(_end_difference(records, pairs)) for pairs in every]
    best = max(range(len(every)), key=lambda at: alike[at][0])
    yield every[best]
    for offset in {0, alike[best][1]}:
        yield _overlapping(records, one, other, offset)


def _most_alike(differences: IntArray) -> tuple[int, int]:
    """Return how many differences lie within _CLOSE_NS of each other at most, and their middle."""
    if not len(differences):
        return 0, 0
    ordered = np.sort(differences)
    stop = np.searchsorted(ordered, ordered + _CLOSE_NS, side="right")
    first = int((stop - np.arange(len(ordered))).argmax())
    return int(stop[first]) - first, int(np.median(ordered[first : stop[first]]))


def _best(records: CommRecords, candidates: Iterable[Pairs]) -> Pairs:
    """Return the way that matches most, of those that match nearly as much with ends as close."""
    found = []
    for pairs in candidates:
        possible = _are_possible(records, pairs, _local_offsets(records, pairs))
        found.append((2 * int(possible.sum()) - len(possible), _spread_ns(records, pairs), pairs))
    most = max(count for count, *_ in found)
    enough = [way for way in found if way[0] >= _NEARLY * most]
    closest = max(_CLOSE_NS, min(spread for _, spread, _ in enough))
    return max((way for way in enough if way[1] <= closest), key=itemgetter(0))[-1]


def _shifted(records: CommRecords, one: IntArray, other: IntArray, shift: int) -> tuple[Pairs, int]:
    """Return the equal pairs of one order against the other, and how many pairs are unequal."""
    left, right = one[max(shift, 0) :], other[max(-shift, 0) :]
    length = min(len(left), len(right))
    equal = _are_equal(records, left[:length], right[:length])
    return (left[:length][equal], right[:length][equal]), int((~equal).sum())


def _overlapping(records: CommRecords, one: IntArray, other: IntArray, offset: int) -> Pairs:
    """Return the equal pairs that overlap in time, in order; `offset` is added to the other's.

    One whose end is closer to the end of the next one overlaps by an error of the clocks.
    """
    pairs: list[tuple[int, int]] = []
    left = right = 0
    equal, start, end = _signatures(records), records.start_ns, records.end_ns

    def apart(mine: int, its: int) -> int:
        known = mine < len(one) and its < len(other)
        return abs(int(end[one[mine]] - end[other[its]]) - offset) if known else _FAR

    while left < len(one) and right < len(other):
        mine, its = int(one[left]), int(other[right])
        before = end[mine] < start[its] + offset
        after = end[its] + offset < start[mine]
        closer = min(apart(left + 1, right), apart(left, right + 1)) < apart(left, right)
        if not (before or after or closer) and equal[mine] == equal[its]:
            pairs.append((mine, its))
            left, right = left + 1, right + 1
        elif end[mine] <= end[its] + offset:
            left += 1
        else:
            right += 1
    matched = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return matched[:, 0], matched[:, 1]


def _end_difference(records: CommRecords, pairs: Pairs) -> IntArray:
    return records.end_ns[pairs[0]] - records.end_ns[pairs[1]]


def _spread_ns(records: CommRecords, pairs: Pairs) -> float:
    """Return how far the ends of pairs are apart: the median distance from their median."""
    difference = _end_difference(records, pairs)
    return float(np.median(np.abs(difference - np.median(difference)))) if len(difference) else 0.0


def _local_offsets(records: CommRecords, pairs: Pairs) -> IntArray:
    """Return by how much the clocks differ at each pair: the median over its neighbours."""
    return running_medians(_end_difference(records, pairs))


def running_medians(values_ns: IntArray) -> IntArray:
    """Return the median of the times around each one; it steps where they do."""
    if len(values_ns) < 2:
        return np.zeros_like(values_ns)
    wings = min(_NEIGHBOURS, -(-len(values_ns) // 3))
    padded = np.pad(values_ns, wings, mode="reflect")
    middle = np.median(sliding_window_view(padded, 2 * wings + 1), axis=1)
    return np.asarray(middle.astype(np.int64))


def _are_possible(records: CommRecords, pairs: Pairs, offset: IntArray) -> BoolArray:
    """Return for which pairs neither ended before the other started."""
    one, other = pairs
    start, end = records.start_ns, records.end_ns
    rooted = np.array([kind in _ROOTED for kind in KINDS] + [False])[records.kind[one]]
    overlap = (end[one] >= start[other] + offset) & (end[other] + offset >= start[one])
    return np.asarray(overlap | rooted)


def _signatures(records: CommRecords) -> IntArray:
    """Return a number per record that is equal where kind and size are."""
    elements = np.where(records.kind == _UNEVEN, ABSENT, records.elements)
    return joint_codes(records.kind, elements)


def _are_equal(records: CommRecords, one: IntArray, other: IntArray) -> BoolArray:
    """Return which pairs are of one kind and size; what is not known is equal."""
    kind, size = records.kind, records.elements
    same_kind = (kind[one] == kind[other]) | (kind[one] < 0) | (kind[other] < 0)
    same_size = (size[one] == size[other]) | (size[one] < 0) | (size[other] < 0)
    return np.asarray(same_kind & (same_size | (kind[one] == _UNEVEN)))
