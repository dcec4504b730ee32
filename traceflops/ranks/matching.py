"""Which kernels of different ranks are one collective.

By sequence number where the framework gives one; else in the order of start within the group, with
the shift between two ranks at which most kinds and sizes agree. A match is impossible if one rank's
end lies before another's start: then kernels match that overlap in time, in order. Sends match the
receives of the rank that they are to, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import sliding_window_view

from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import EXCHANGE, RECV, SEND, CommRecords
from traceflops.table.columns import ABSENT, BoolArray, IntArray
from traceflops.table.grouping import groups, joint_codes

_LARGEST_SHIFT: Final = 64
_MOST_SHIFTED: Final = 500  # the most pairs that are compared to find the best shift
_NEIGHBOURS: Final = 15  # matches on either side whose ends tell the local difference of clocks
_CLOSE_NS: Final = 50_000  # ends of one collective on aligned clocks lie closer together than this
_APART_NS: Final = 1_000_000  # ends on aligned clocks that lie farther apart do not match
_NEARLY: Final = 0.8
_ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})
_LEAVING: Final = _ROOTED | {"send"}  # kinds whose kernel may end before the last rank comes
_MOST: Final = 0.9
"""So many of the exchanges of more than two ranks match if all of these take part in each."""
_UNEVEN: Final = KINDS.index("all_to_all")  # the kind in which ranks put in different amounts
Pairs = tuple[IntArray, IntArray]


class Matches(Struct, frozen=True):
    """Which records are of one collective.

    `collective` is the number of each record's collective, -1 without a match, in the order of
    their latest start. `impossible` counts pairs that order or sequence number joined, though one
    had ended before the other began; these are not matched.
    """

    collective: IntArray
    count: int
    impossible: int


def matched(records: CommRecords) -> Matches:
    """Return which records are of one collective on all recorded ranks of its group."""
    collective = np.full(len(records), -1, dtype=np.int64)
    count = impossible = 0
    # Rows may match if they are of one group, and of one route if the peer is known: from rank to
    # rank of a send or receive, between which ranks of an exchange. Exchanges get negative routes,
    # so that they match no sends. Sends and receives without a known peer are left out.
    own, peer, many = records.place, records.peer, len(records.ranks)
    route = np.where(records.kind == SEND, own * many + peer, peer * many + own)
    either_way = np.minimum(own, peer) * many + np.maximum(own, peer)
    route = np.where(records.kind == EXCHANGE, either_way - many * many, route)
    key = joint_codes(records.group, np.where(records.is_pair | (peer >= 0), route, -1))
    for number, rows in groups(np.where(records.is_pair & (peer < 0), -1, key)):
        if number < 0:
            continue
        members = [rows[places] for _, places in groups(records.place[rows])]
        if len(members) < 2:
            continue
        table, wrong = _of_group(records, members)
        impossible += wrong
        collective[table] = np.arange(count, count + len(table))[:, None]
        count += len(table)
    # Number the collectives in the order of their latest start.
    latest = np.full(count, np.iinfo(np.int64).min)
    joined = np.flatnonzero(collective >= 0)
    np.maximum.at(latest, collective[joined], records.start_ns[joined])
    number_of = np.full(count + 1, -1, dtype=np.int64)  # the last entry is for -1, no match
    number_of[np.argsort(latest, kind="stable")] = np.arange(count)
    return Matches(number_of[collective], count, impossible)


def _of_group(records: CommRecords, members: Sequence[IntArray]) -> tuple[IntArray, int]:
    """Return a table of rows, collective by rank, and how many pairs are impossible.

    `members` are the rows of each rank. Each rank is paired with the one that has most rows; only
    collectives of all ranks are returned.
    """
    longest = max(members, key=len)
    table = np.full((len(longest), len(members)), -1, dtype=np.int64)
    impossible = 0
    for column, other in enumerate(members):
        if other is longest:
            table[:, column] = longest
            continue
        pairs = _by_sequence(records, longest, other)
        if pairs is None:
            pairs = _best(records, _candidates(records, longest, other))
        possible = _are_possible(records, pairs, _local_offsets(records, pairs))
        impossible += int((~possible).sum())
        table[np.searchsorted(longest, pairs[0][possible]), column] = pairs[1][possible]
    table = table[(table >= 0).all(axis=1)]
    # Exchanges do not say with whom they are. If nearly all match among more than two ranks, all
    # take part in each; else they are between some of the ranks, and these matches are dropped.
    is_exchange = records.kind[table[:, 0]] == EXCHANGE
    most = max(int((records.kind[rows] == EXCHANGE).sum()) for rows in members)
    are_pairs = len(members) > 2 and is_exchange.sum() < _MOST * most
    return table[~is_exchange] if are_pairs else table, impossible


def _by_sequence(records: CommRecords, left: IntArray, other: IntArray) -> Pairs | None:
    """Return the pairs with equal sequence numbers and sizes; None if sequences do not rise."""
    if records.is_pair[left].any():  # a rank has one count for messages to all other ranks
        return None
    for numbers in (records.sequence[left], records.sequence[other]):
        if len(numbers) < 2 or numbers[0] < 0 or (np.diff(numbers) <= 0).any():
            return None
    _, at_left, at_other = np.intersect1d(
        records.sequence[left], records.sequence[other], assume_unique=True, return_indices=True
    )
    same = _are_equal(records, left[at_left], other[at_other])
    return left[at_left[same]], other[at_other[same]]


def _candidates(records: CommRecords, left: IntArray, other: IntArray) -> Iterator[Pairs]:
    """Yield candidate pairings: in order, in shifted order, and by overlap in time.

    Overlap is tried with the clocks as recorded and moved by the offset of the best shift. If the
    plain order fits in full, it is the only candidate.
    """
    plain, unequal = _shifted(records, left, other, 0)
    yield plain
    are_all_equal = len(left) == len(other) and not unequal
    possible = _are_possible(records, plain, _local_offsets(records, plain))
    if are_all_equal and possible.all() and _spread_ns(records, plain) <= _CLOSE_NS:
        return
    shifted, _, ahead = most_alike(records, left, other, _CLOSE_NS)
    yield shifted
    for offset in (np.zeros_like(other), np.full_like(other, ahead)):
        yield _overlapping(records, left, other, offset)


def most_alike(
    records: CommRecords, left: IntArray, other: IntArray, near_ns: int
) -> tuple[Pairs, int, int]:
    """Return the pairs at the best shift, the size of their largest cluster, and its median in ns.

    A cluster is end differences within `near_ns`; the best shift has the largest cluster. If there
    are many rows, evenly spaced ones decide which shift is the best.
    """
    far = min(_LARGEST_SHIFT, max(len(left), len(other)))
    step = -(-max(len(left), len(other)) // _MOST_SHIFTED)

    def cluster_at(shift: int, step: int) -> tuple[Pairs, IntArray]:
        """Return the pairs at a shift, and their largest cluster of end differences, sorted."""
        pairs, _ = _shifted(records, left, other, shift, step)
        ordered = np.sort(_end_difference(records, pairs))
        if not len(ordered):
            return pairs, ordered
        stop = np.searchsorted(ordered, ordered + near_ns, side="right")
        first = int((stop - np.arange(len(ordered))).argmax())
        return pairs, ordered[first : stop[first]]

    # In a tie max() takes the first: the smallest shift, and of two opposite ones the positive.
    shifts = sorted(range(1 - far, far), key=lambda shift: (abs(shift), -shift))
    best = max(shifts, key=lambda shift: len(cluster_at(shift, step)[1]))
    pairs, cluster = cluster_at(best, 1)
    return pairs, len(cluster), int(np.median(cluster)) if len(cluster) else 0


def _best(records: CommRecords, candidates: Iterable[Pairs]) -> Pairs:
    """Return the candidate with most matches among those whose ends lie close together.

    A wrong pairing may match nearly as many kernels of equal size, but its ends are spread wide.
    Of equally many matches, those with the evenest differences of ends count.
    """
    scored = []
    for pairs in candidates:
        offset, difference = _local_offsets(records, pairs), _end_difference(records, pairs)
        is_near = np.abs(difference - offset) <= _APART_NS
        fits = _are_possible(records, pairs, offset) & is_near
        matches = 2 * int(fits.sum()) - len(fits)  # a pair that does not fit cancels one that does
        centred = difference - np.median(difference) if len(difference) else np.zeros(1)
        score = matches, -float(np.abs(centred).mean())
        scored.append((score, _spread_ns(records, pairs), pairs))
    most = max(matches for (matches, _), *_ in scored)
    # Few matches lie close together by chance, so only candidates with nearly the most compete.
    enough = [entry for entry in scored if entry[0][0] >= _NEARLY * most]
    closest = max(_CLOSE_NS, min(spread for _, spread, _ in enough))
    return max((entry for entry in enough if entry[1] <= closest), key=itemgetter(0))[-1]


def _shifted(
    records: CommRecords, left: IntArray, other: IntArray, shift: int, step: int = 1
) -> tuple[Pairs, int]:
    """Return the pairs of equal kind and size at a shift of the order, and how many are unequal.

    A positive shift skips rows of `left`, a negative one of `other`; `step` takes every n-th pair.
    """
    left, other = left[max(shift, 0) :: step], other[max(-shift, 0) :: step]
    length = min(len(left), len(other))
    equal = _are_equal(records, left[:length], other[:length])
    return (left[:length][equal], other[:length][equal]), int((~equal).sum())


def _overlapping(records: CommRecords, left: IntArray, other: IntArray, offset: IntArray) -> Pairs:
    """Return the pairs of equal kind and size that overlap in time, in order.

    `offset` is added to the times of `other`. A row is skipped if the next one of its side is equal
    and ends closer to the row on the other side.
    """
    both, moved = np.concatenate([left, other]), np.concatenate([np.zeros_like(left), offset])
    kind_and_size = joint_codes(
        _transfers(records.kind[both]),
        np.where(records.kind[both] == _UNEVEN, ABSENT, records.elements[both]),
    )
    (left_codes, other_codes), (left_starts, other_starts), (left_ends, other_ends) = (
        (values[: len(left)].tolist(), values[len(left) :].tolist())
        for values in (kind_and_size, records.start_ns[both] + moved, records.end_ns[both] + moved)
    )
    pairs: list[tuple[int, int]] = []
    i = j = 0  # the first row of each side that is not decided yet
    while i < len(left) and j < len(other):
        are_apart = left_ends[i] < other_starts[j] or other_ends[j] < left_starts[i]
        if are_apart or left_codes[i] != other_codes[j]:
            if left_ends[i] > other_ends[j]:  # skip the row that ends first
                j += 1
            else:
                i += 1
        elif _is_next_nearer(left_codes, left_ends, i, other_ends[j]):
            i += 1
        elif _is_next_nearer(other_codes, other_ends, j, left_ends[i]):
            j += 1
        else:
            pairs.append((i, j))
            i, j = i + 1, j + 1
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return left[rows[:, 0]], other[rows[:, 1]]


def _is_next_nearer(codes: list[int], ends_ns: list[int], row: int, end_ns: int) -> bool:
    """Return whether the next row has the same code and ends nearer to `end_ns`."""
    is_equal = row + 1 < len(ends_ns) and codes[row + 1] == codes[row]
    return is_equal and abs(ends_ns[row + 1] - end_ns) < abs(ends_ns[row] - end_ns)


def _end_difference(records: CommRecords, pairs: Pairs) -> IntArray:
    """Return by how many ns the first row of each pair ends later than the second.

    Where a rank may leave early (broadcast, reduce, ...) the ends tell nothing about the clocks:
    such a pair gets the difference of the last pair before it that ends together.
    """
    difference = records.end_ns[pairs[0]] - records.end_ns[pairs[1]]
    together = np.flatnonzero(~is_rooted(records.kind[pairs[0]]))
    last = np.searchsorted(together, np.arange(len(difference)), side="right") - 1
    return difference[together[last.clip(0)]] if len(together) else difference


def _spread_ns(records: CommRecords, pairs: Pairs) -> float:
    """Return the median distance of the end differences of pairs from the running median."""
    apart = _end_difference(records, pairs)
    apart = apart - (apart[:1] if len(apart) == 1 else running_medians(apart))
    return float(np.median(np.abs(apart))) if len(apart) else 0.0


def _local_offsets(records: CommRecords, pairs: Pairs) -> IntArray:
    """Return by how much the clocks differ at each pair: the median over it and neighbours."""
    difference = _end_difference(records, pairs)
    return running_medians(difference) if len(difference) > 1 else difference


def running_medians(values_ns: IntArray) -> IntArray:
    """Return the median of each time and its neighbours on both sides; 0 for a single time."""
    if len(values_ns) < 2:
        return np.zeros_like(values_ns)
    wings = min(_NEIGHBOURS, -(-len(values_ns) // 3))  # short series: a third, rounded up
    padded = np.pad(values_ns, wings, mode="reflect")
    middle = np.median(sliding_window_view(padded, 2 * wings + 1), axis=1)
    return np.asarray(middle.astype(np.int64))


def _are_possible(records: CommRecords, pairs: Pairs, offset: IntArray) -> BoolArray:
    """Return, per pair, whether neither kernel ended before the other started.

    `offset` is added to the times of the second kernel. Kernels that may leave early may end first.
    """
    left, other = pairs
    start, end = records.start_ns, records.end_ns
    may_leave = np.array([kind in _LEAVING for kind in KINDS] + [False])
    left_is_possible = (end[left] >= start[other] + offset) | may_leave[records.kind[left]]
    other_is_possible = (end[other] + offset >= start[left]) | may_leave[records.kind[other]]
    return np.asarray(left_is_possible & other_is_possible)


def is_rooted(kind: IntArray) -> BoolArray:
    """Return, per kind, whether a rank may leave the collective before the last one comes."""
    return np.array([kind in _ROOTED for kind in KINDS] + [False])[kind]


def _transfers(kind: IntArray) -> IntArray:
    """Return the kinds with receives counted as sends."""
    return np.where(kind == RECV, SEND, kind)


def _are_equal(records: CommRecords, left: IntArray, other: IntArray) -> BoolArray:
    """Return which pairs are of one kind and size; unknown kinds and sizes equal all others.

    A send equals a receive. Sizes of all-to-alls are not compared, since they differ by rank.
    """
    first, second, size = records.kind[left], records.kind[other], records.elements
    same_kind = (_transfers(first) == _transfers(second)) | (first < 0) | (second < 0)
    same_size = (size[left] == size[other]) | (size[left] < 0) | (size[other] < 0)
    return np.asarray(same_kind & (same_size | (first == _UNEVEN)))
