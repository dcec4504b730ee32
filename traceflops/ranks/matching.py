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
_MOST_SHIFTED: Final = 500
"""So many pairs tell which shift is the best."""
_NEIGHBOURS: Final = 15
"""Matches on either side whose ends tell the difference of two clocks at a place."""
_CLOSE_NS: Final = 50_000
"""Ends of one collective lie closer together than that, but for what clocks differ."""
_APART_NS: Final = 1_000_000
"""Ends that lie farther apart, beyond what the clocks around differ, are of no collective."""
_NEARLY: Final = 0.8
_ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})
_LEAVING: Final = _ROOTED | {"send"}
"""Kinds whose kernel may end before the last rank comes."""
_MOST: Final = 0.9
"""So many of the exchanges of more than two ranks match if all of these take part in each."""
_UNEVEN: Final = KINDS.index("all_to_all")
"""The kind in which ranks put in different amounts."""
Pairs = tuple[IntArray, IntArray]


class Matches(Struct, frozen=True):
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
    # What may match has one key: of one group, of sends and receives also from which rank to
    # which, and of exchanges with a known peer between which ranks.
    own, peer, many = records.place, records.peer, len(records.ranks)
    route = np.where(records.kind == SEND, own * many + peer, peer * many + own)
    both = np.minimum(own, peer) * many + np.maximum(own, peer)
    route = np.where(records.kind == EXCHANGE, both - many * many, route)  # apart from the others
    key = joint_codes(records.group, np.where(records.is_pair | (peer >= 0), route, -1))
    for number, rows in groups(np.where(records.is_pair & (peer < 0), -1, key)):
        members = [rows[places] for _, places in groups(records.place[rows])]
        if number < 0 or len(members) < 2:
            continue
        table, wrong = _of_group(records, members)
        impossible += wrong
        collective[table] = np.arange(count, count + len(table))[:, None]
        count += len(table)
    # They are numbered in the order of their latest start.
    latest = np.full(count, np.iinfo(np.int64).min)
    joined = np.flatnonzero(collective >= 0)
    np.maximum.at(latest, collective[joined], records.start_ns[joined])
    number_of = np.full(count + 1, -1, dtype=np.int64)
    number_of[np.argsort(latest, kind="stable")] = np.arange(count)
    return Matches(number_of[collective], count, impossible)


def _of_group(records: CommRecords, members: Sequence[IntArray]) -> tuple[IntArray, int]:
    """Return a row per collective and a column per rank, and how many pairs are impossible."""
    first = max(members, key=len)
    table = np.full((len(first), len(members)), -1, dtype=np.int64)
    wrong = 0
    for column, other in enumerate(members):
        if other is first:
            table[:, column] = first
            continue
        pairs = _by_sequence(records, first, other)
        if pairs is None:
            pairs = _best(records, _candidates(records, first, other))
        possible = _are_possible(records, pairs, _local_offsets(records, pairs))
        wrong += int((~possible).sum())
        table[np.searchsorted(first, pairs[0][possible]), column] = pairs[1][possible]
    table = table[(table >= 0).all(axis=1)]
    # Kernels of an exchange do not say whom it is with. It is of all of more than two ranks if
    # nearly all match, else between some of them.
    exchange = records.kind[table[:, 0]] == EXCHANGE
    most = max(int((records.kind[rows] == EXCHANGE).sum()) for rows in members)
    are_pairs = len(members) > 2 and exchange.sum() < _MOST * most
    return table[~exchange] if are_pairs else table, wrong


def _by_sequence(records: CommRecords, one: IntArray, other: IntArray) -> Pairs | None:
    """Return the pairs with equal sequence numbers, None where these do not number collectives."""
    first, second = records.sequence[one], records.sequence[other]
    if records.is_pair[one].any():  # each rank counts those to all others together
        return None
    for numbers in (first, second):
        if len(numbers) < 2 or numbers[0] < 0 or (np.diff(numbers) <= 0).any():
            return None
    _, left, right = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    same = _are_equal(records, one[left], other[right])
    return one[left[same]], other[right[same]]


def _candidates(records: CommRecords, left: IntArray, other: IntArray) -> Iterator[Pairs]:
    """Yield candidate pairings: by order, by shifted order, by overlap in time."""
    plain, unequal = _shifted(records, left, other, 0)
    yield plain
    whole = len(left) == len(other) and not unequal
    possible = _are_possible(records, plain, _local_offsets(records, plain))
    if whole and possible.all() and _spread_ns(records, plain) <= _CLOSE_NS:
        return
    shifted, _, ahead = most_alike(records, left, other, _CLOSE_NS)
    yield shifted
    for offset in (np.zeros_like(other), np.full_like(other, ahead)):
        yield _overlapping(records, left, other, offset)


def most_alike(
    records: CommRecords, left: IntArray, other: IntArray, near_ns: int
) -> tuple[Pairs, int, int]:
    """Return the pairs at the best shift, how many of their ends differ alike, and by what.

    Of many, some that lie evenly tell which is the best.
    """
    far = min(_LARGEST_SHIFT, max(len(left), len(other)))
    step = -(-max(len(left), len(other)) // _MOST_SHIFTED)

    def alike_at(shift: int, step: int) -> tuple[Pairs, IntArray]:
        """Return the pairs at a shift, and their largest cluster of end differences, sorted."""
        pairs, _ = _shifted(records, left, other, shift, step)
        ordered = np.sort(_end_difference(records, pairs))
        if not len(ordered):
            return pairs, ordered
        stop = np.searchsorted(ordered, ordered + near_ns, side="right")
        first = int((stop - np.arange(len(ordered))).argmax())
        return pairs, ordered[first : stop[first]]

    shifts = sorted(range(1 - far, far), key=lambda shift: (abs(shift), -shift))
    pairs, alike = alike_at(max(shifts, key=lambda shift: len(alike_at(shift, step)[1])), 1)
    return pairs, len(alike), int(np.median(alike)) if len(alike) else 0


def _best(records: CommRecords, candidates: Iterable[Pairs]) -> Pairs:
    """Return the candidate with most matches among those whose ends lie close together."""
    scored = []
    for pairs in candidates:
        offset, apart = _local_offsets(records, pairs), _end_difference(records, pairs)
        fits = _are_possible(records, pairs, offset) & (np.abs(apart - offset) <= _APART_NS)
        mean_ns = float(np.abs(apart - np.median(apart)).mean()) if len(apart) else 0.0
        score = 2 * int(fits.sum()) - len(fits), -mean_ns
        scored.append((score, _spread_ns(records, pairs), pairs))
    most = max(count for (count, _), *_ in scored)
    enough = [pair for pair in scored if pair[0][0] >= _NEARLY * most]
    closest = max(_CLOSE_NS, min(spread for _, spread, _ in enough))
    return max((pair for pair in enough if pair[1] <= closest), key=itemgetter(0))[-1]


def _shifted(
    records: CommRecords, one: IntArray, other: IntArray, shift: int, step: int = 1
) -> tuple[Pairs, int]:
    """Return equal pairs of one order against the other, and how many pairs are unequal."""
    left, right = one[max(shift, 0) :: step], other[max(-shift, 0) :: step]
    length = min(len(left), len(right))
    equal = _are_equal(records, left[:length], right[:length])
    return (left[:length][equal], right[:length][equal]), int((~equal).sum())


def _overlapping(records: CommRecords, left: IntArray, other: IntArray, offset: IntArray) -> Pairs:
    """Return the equal pairs that overlap in time, in order; `offset` is added to the other's.

    One that ends closer to another than to this is not its match.
    """
    both, moved = np.concatenate([left, other]), np.concatenate([np.zeros_like(left), offset])
    codes, starts, ends = (
        (values[: len(left)].tolist(), values[len(left) :].tolist())
        for values in (
            joint_codes(
                _transfers(records.kind[both]),
                np.where(records.kind[both] == _UNEVEN, ABSENT, records.elements[both]),
            ),
            records.start_ns[both] + moved,
            records.end_ns[both] + moved,
        )
    )
    pairs: list[tuple[int, int]] = []
    next_ = [0, 0]  # of each side, the first that is not decided yet

    def is_nearer(side: int) -> bool:
        """Return whether a side's next kernel is equal and ends nearer to the other side's."""
        this, (code, end), after = next_[side], (codes[side], ends[side]), next_[side] + 1
        far = ends[1 - side][next_[1 - side]]
        is_equal = after < len(end) and code[after] == code[this]
        return is_equal and abs(end[after] - far) < abs(end[this] - far)

    while next_[0] < len(left) and next_[1] < len(other):
        end, other_end = (ends[side][next_[side]] for side in (0, 1))
        apart = end < starts[1][next_[1]] or other_end < starts[0][next_[0]]
        if not apart and codes[0][next_[0]] == codes[1][next_[1]]:
            skips = is_nearer(0)
            passes = not skips and is_nearer(1)
            if not skips and not passes:
                pairs.append((next_[0], next_[1]))
            next_ = [next_[0] + (not passes), next_[1] + (not skips)]
        else:
            next_[end > other_end] += 1
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return left[rows[:, 0]], other[rows[:, 1]]


def _end_difference(records: CommRecords, pairs: Pairs) -> IntArray:
    """Return by how much the ends of pairs differ; that of the pair before where one may leave."""
    difference = records.end_ns[pairs[0]] - records.end_ns[pairs[1]]
    together = np.flatnonzero(~is_rooted(records.kind[pairs[0]]))
    before = np.searchsorted(together, np.arange(len(difference)), side="right") - 1
    return difference[together[before.clip(0)]] if len(together) else difference


def _spread_ns(records: CommRecords, pairs: Pairs) -> float:
    """Return how far the ends of pairs are apart: the median distance from those around."""
    apart = _end_difference(records, pairs)
    apart = apart - (apart[:1] if len(apart) == 1 else running_medians(apart))
    return float(np.median(np.abs(apart))) if len(apart) else 0.0


def _local_offsets(records: CommRecords, pairs: Pairs) -> IntArray:
    """Return by how much the clocks differ at each pair: the median over its neighbours.

    A pair that is alone has nothing to be judged by: its own ends tell.
    """
    difference = _end_difference(records, pairs)
    return running_medians(difference) if len(difference) > 1 else difference


def running_medians(values_ns: IntArray) -> IntArray:
    """Return the median of the times around each one; it steps where they do."""
    if len(values_ns) < 2:
        return np.zeros_like(values_ns)
    wings = min(_NEIGHBOURS, -(-len(values_ns) // 3))
    padded = np.pad(values_ns, wings, mode="reflect")
    middle = np.median(sliding_window_view(padded, 2 * wings + 1), axis=1)
    return np.asarray(middle.astype(np.int64))


def _are_possible(records: CommRecords, pairs: Pairs, offset: IntArray) -> BoolArray:
    """Return, per pair, whether neither kernel ended before the other started."""
    left, other = pairs
    start, end = records.start_ns, records.end_ns
    leaving = np.array([kind in _LEAVING for kind in KINDS] + [False])
    first = (end[left] >= start[other] + offset) | leaving[records.kind[left]]
    second = (end[other] + offset >= start[left]) | leaving[records.kind[other]]
    return np.asarray(first & second)


def is_rooted(kind: IntArray) -> BoolArray:
    """Return in which kinds of collectives a rank may leave before the last one comes."""
    return np.array([kind in _ROOTED for kind in KINDS] + [False])[kind]


def _transfers(kind: IntArray) -> IntArray:
    """Return the kinds with receives counted as sends."""
    return np.where(kind == RECV, SEND, kind)


def _are_equal(records: CommRecords, left: IntArray, other: IntArray) -> BoolArray:
    """Return which pairs are of one kind and size; what is not known is equal."""
    first, second, size = records.kind[left], records.kind[other], records.elements
    same_kind = (_transfers(first) == _transfers(second)) | (first < 0) | (second < 0)
    same_size = (size[left] == size[other]) | (size[left] < 0) | (size[other] < 0)
    return np.asarray(same_kind & (same_size | (first == _UNEVEN)))
