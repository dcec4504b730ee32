"""Which kernels of different ranks are one collective.

By sequence number where the framework gives one; else in the order of start within the group, with
the shift between two ranks at which most kinds and sizes agree. A match is impossible if one rank's
end lies before another's start: then kernels match that overlap in time, in order. Sends match the
receives of the rank that they are to, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import sliding_window_view

from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import EXCHANGE, RECV, SEND, CommRecords
from traceflops.table.columns import ABSENT, BoolArray, IntArray
from traceflops.table.grouping import group_most, group_rows, groups, joint_codes

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
"""Rows of the records of one rank, and the row of another rank that each is paired with."""


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
    # Rows may match if they have one group and, if the peer is known, the same two ends. Rank 2
    # sends to 0, and 0 receives from 2: the ends are (2, 0). Ranks 2 and 0 exchange: (0, 2).
    own, peer = records.place, records.peer
    is_exchange = records.kind == EXCHANGE
    is_send = records.kind == SEND
    first = np.where(is_send, own, peer)
    second = np.where(is_send, peer, own)
    first[is_exchange] = np.minimum(own, peer)[is_exchange]
    second[is_exchange] = np.maximum(own, peer)[is_exchange]
    has_peer = peer >= 0
    first[~has_peer] = second[~has_peer] = -1
    is_other = ~(is_exchange & has_peer)  # exchanges match no sends
    key, _ = group_rows((records.group, is_other.astype(np.int64), first, second))
    lacks_peer = records.is_pair & ~has_peer
    for number, rows in groups(np.where(lacks_peer, -1, key)):
        if number < 0:
            continue  # sends and receives without a known peer match nothing
        members = [rows[places] for _, places in groups(records.place[rows])]
        if len(members) < 2:
            continue
        table, group_impossible = _of_group(records, members)
        impossible += group_impossible
        collective[table] = np.arange(count, count + len(table))[:, None]
        count += len(table)
    # Number the collectives in the order of their latest start.
    joined = np.flatnonzero(collective >= 0)
    latest = group_most(collective[joined], records.start_ns[joined], count)
    number_of = np.full(count + 1, -1, dtype=np.int64)  # the last entry is for -1, no match
    number_of[np.argsort(latest, kind="stable")] = np.arange(count)
    return Matches(number_of[collective], count, impossible)


def _of_group(records: CommRecords, members: Sequence[IntArray]) -> tuple[IntArray, int]:
    """Return the rows of each collective [collectives, ranks], and how many pairs are impossible.

    `members` has the rows of each rank. Each rank is paired with the one that has most rows; only
    collectives of all ranks are returned.
    """
    longest = max(members, key=len)
    # A line per row of `longest`; -1 where a rank has no row that matches it.
    table = np.full((len(longest), len(members)), -1, dtype=np.int64)
    impossible = 0
    for column, other in enumerate(members):
        if other is longest:
            table[:, column] = longest
            continue
        pairs = _by_sequence(records, longest, other)
        if pairs is None:
            pairs = _best(records, _candidates(records, longest, other))
        is_possible = _are_possible(records, pairs, _clock_offsets_ns(records, pairs))
        impossible += int((~is_possible).sum())
        of_longest, of_other = (rows[is_possible] for rows in pairs)
        table[np.searchsorted(longest, of_longest), column] = of_other
    table = table[(table >= 0).all(axis=1)]
    # An exchange does not say which ranks take part in it. Among more than two ranks, all take part
    # in each if nearly all exchanges match. Else only some take part, and no exchange is matched.
    is_exchange = records.kind[table[:, 0]] == EXCHANGE
    most_exchanges = max(int((records.kind[rows] == EXCHANGE).sum()) for rows in members)
    if len(members) > 2 and is_exchange.sum() < _MOST * most_exchanges:
        table = table[~is_exchange]
    return table, impossible


def _by_sequence(records: CommRecords, left: IntArray, other: IntArray) -> Pairs | None:
    """Return the pairs with equal sequence numbers and sizes; None if sequences do not rise."""
    if records.is_pair[left].any():  # a rank has one count for messages to all other ranks
        return None
    for numbers in (records.sequence[left], records.sequence[other]):
        if len(numbers) < 2 or numbers[0] < 0 or (np.diff(numbers) <= 0).any():
            return None
    _, left_index, other_index = np.intersect1d(
        records.sequence[left], records.sequence[other], assume_unique=True, return_indices=True
    )
    left, other = left[left_index], other[other_index]
    equal = _are_equal(records, left, other)
    return left[equal], other[equal]


def _candidates(records: CommRecords, left: IntArray, other: IntArray) -> Iterator[Pairs]:
    """Yield candidate pairings: in order, in shifted order, and by overlap in time.

    Overlap is tried with the clocks as recorded, then with those of `other` moved by the offset of
    the best shift. If the plain order fits in full, it is the only candidate.
    """
    in_order, unequal = _shifted(records, left, other, 0)
    yield in_order
    are_all_equal = len(left) == len(other) and not unequal
    possible = _are_possible(records, in_order, _clock_offsets_ns(records, in_order))
    if are_all_equal and possible.all() and _spread_ns(records, in_order) <= _CLOSE_NS:
        return
    shifted, offset_ns = most_alike(records, left, other, _CLOSE_NS)
    yield shifted
    yield _overlapping(records, left, other, 0)
    yield _overlapping(records, left, other, offset_ns)


def most_alike(
    records: CommRecords, left: IntArray, other: IntArray, near_ns: int
) -> tuple[Pairs, int]:
    """Return the pairs at the best shift, and the median of their largest cluster in ns.

    A shift of n pairs row i + n of `left` with row i of `other`. A cluster is pairs whose end
    differences lie within `near_ns`; the best shift has the largest cluster. If there are many
    rows, only some of the pairs, evenly spaced, decide which shift is the best.
    """
    longest = max(len(left), len(other))
    far = min(_LARGEST_SHIFT, longest)
    step = -(-longest // _MOST_SHIFTED)  # rounded up

    def cluster_at(shift: int, step: int) -> tuple[Pairs, IntArray]:
        """Return the pairs at a shift, and their largest cluster of end differences, sorted."""
        pairs, _ = _shifted(records, left, other, shift, step)
        ordered = np.sort(_end_differences_ns(records, pairs))
        if not len(ordered):
            return pairs, ordered
        # The cluster that begins with each difference ends before `stop`. Near 5: ordered
        # [0 4 7 8] has stop [2 4 4 4], sizes [2 3 2 1]: the largest is [4 7 8].
        stop = np.searchsorted(ordered, ordered + near_ns, side="right")
        first = int((stop - np.arange(len(ordered))).argmax())
        return pairs, ordered[first : stop[first]]

    # In a tie max() takes the first: the smallest shift, and of two opposite ones the positive.
    shifts = sorted(range(1 - far, far), key=lambda shift: (abs(shift), -shift))
    best = max(shifts, key=lambda shift: len(cluster_at(shift, step)[1]))
    pairs, cluster = cluster_at(best, 1)
    return pairs, int(np.median(cluster)) if len(cluster) else 0


class _Candidate(NamedTuple):
    """A pairing of two ranks' records, and how good it is.

    `matches` is the number of pairs that can be one collective, less those that cannot. In a right
    pairing, the ends of each pair differ by as much as the clocks, and that changes slowly:
    `spread_ns` is the median distance of end differences from those of neighbouring pairs,
    `unevenness_ns` their mean distance from the median of all pairs.
    """

    pairs: Pairs
    matches: int
    spread_ns: float
    unevenness_ns: float


def _scored(records: CommRecords, pairs: Pairs) -> _Candidate:
    """Return a candidate pairing with its scores."""
    difference_ns = _end_differences_ns(records, pairs)
    offset_ns = _clock_offsets_ns(records, pairs)
    is_near = np.abs(difference_ns - offset_ns) <= _APART_NS
    fits = _are_possible(records, pairs, offset_ns) & is_near
    matches = 2 * int(fits.sum()) - len(fits)
    unevenness_ns = 0.0
    if len(difference_ns):
        unevenness_ns = float(np.abs(difference_ns - np.median(difference_ns)).mean())
    return _Candidate(pairs, matches, _spread_ns(records, pairs), unevenness_ns)


def _best(records: CommRecords, candidates: Iterable[Pairs]) -> Pairs:
    """Return the candidate with most matches among those with a small spread of ends.

    A wrong pairing may match nearly as many kernels of equal size, but its ends are spread wide.
    Of candidates with equally many matches, the least uneven one is returned.
    """
    scored = [_scored(records, pairs) for pairs in candidates]
    # The ends of few matches are close by chance: only candidates with nearly the most compete.
    most = max(candidate.matches for candidate in scored)
    least = min(most, _NEARLY * most)  # `most` itself if negative: 0.8 times as much is above it
    enough = [candidate for candidate in scored if candidate.matches >= least]
    most_spread_ns = max(_CLOSE_NS, min(candidate.spread_ns for candidate in enough))
    close = (candidate for candidate in enough if candidate.spread_ns <= most_spread_ns)
    return max(close, key=lambda candidate: (candidate.matches, -candidate.unevenness_ns)).pairs


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


def _overlapping(records: CommRecords, left: IntArray, other: IntArray, offset_ns: int) -> Pairs:
    """Return the pairs of equal kind and size that overlap in time, in order.

    `offset_ns` is added to the times of `other`. A row is skipped if the next one of its side is
    equal and ends closer to the row on the other side.
    """
    both = np.concatenate([left, other])
    kind = records.kind[both]
    size = np.where(kind == _UNEVEN, ABSENT, records.elements[both])
    kind_and_size = joint_codes(_transfers(kind), size).tolist()
    left_codes, other_codes = kind_and_size[: len(left)], kind_and_size[len(left) :]
    left_starts, left_ends = records.start_ns[left].tolist(), records.end_ns[left].tolist()
    other_starts = (records.start_ns[other] + offset_ns).tolist()
    other_ends = (records.end_ns[other] + offset_ns).tolist()
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


def _end_differences_ns(records: CommRecords, pairs: Pairs) -> IntArray:
    """Return by how many ns the first row of each pair ends later than the second.

    Kernels of one collective end together, so that this is the difference of the two clocks, with
    some noise. Where a rank may leave early (broadcast, reduce, ...) ends tell nothing: such a pair
    gets the difference of the last pair before it that ends together, else of the first after it.
    """
    difference_ns = records.end_ns[pairs[0]] - records.end_ns[pairs[1]]
    together = np.flatnonzero(~is_rooted(records.kind[pairs[0]]))
    # Per pair, the last entry of `together` up to it; -1 becomes 0, the first after it. Pairs 1 and
    # 3 of 5 end together: last [-1 0 0 1 1], so the pairs get the differences of [1 1 1 3 3].
    last = np.searchsorted(together, np.arange(len(difference_ns)), side="right") - 1
    return difference_ns[together[last.clip(0)]] if len(together) else difference_ns


def _spread_ns(records: CommRecords, pairs: Pairs) -> float:
    """Return the median distance of the end differences of pairs from the clocks' difference."""
    apart_ns = np.abs(_end_differences_ns(records, pairs) - _clock_offsets_ns(records, pairs))
    return float(np.median(apart_ns)) if len(apart_ns) else 0.0


def _clock_offsets_ns(records: CommRecords, pairs: Pairs) -> IntArray:
    """Return by how much the clocks differ at each pair: the median over it and neighbours.

    The median removes the noise of single ends; with the neighbours alone it follows the drift.
    """
    difference_ns = _end_differences_ns(records, pairs)
    return running_medians(difference_ns) if len(difference_ns) > 1 else difference_ns


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
    may_leave = np.array([kind in _LEAVING for kind in KINDS] + [False])  # the last: code -1
    left_is_possible = (end[left] >= start[other] + offset) | may_leave[records.kind[left]]
    other_is_possible = (end[other] + offset >= start[left]) | may_leave[records.kind[other]]
    return np.asarray(left_is_possible & other_is_possible)


def is_rooted(kind: IntArray) -> BoolArray:
    """Return, per kind code, whether a rank may leave the collective before the last one comes."""
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
