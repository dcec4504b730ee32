"""By how much the clocks of ranks differ: all ranks leave a collective at the same time.

The end of collective c on rank r is t_c + offset_r + residual. Offsets come from median polish and
have mean 0; clocks that drift are followed. A rank that always ends later seems to have an offset.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.ranks.collectives import kind_of
from traceflops.ranks.comm_groups import connected
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.matching import Matches, is_rooted, running_medians
from traceflops.table.columns import FloatArray, IntArray
from traceflops.table.grouping import by_code, differ_from_before, group_least, groups, ranked

_BASES: Final = ("all_reduce", "all_to_all")  # all ranks leave these together; the better first
UNNAMED: Final = "unnamed collectives"
"""They are a basis where the clocks as recorded are impossible, or not common, and ends agree."""
_TOGETHER_NS: Final = 10_000  # ends of collectives that ranks do not leave together differ by more
_LEAST: Final = 3  # collectives of each rank that are needed to tell its offset
_MOST: Final = 2_000  # collectives that are compared, evenly over the recording
_ROUNDS: Final = 50
_LIKE: Final = 2  # clocks drift if local offsets make the residual smaller by this factor


class Alignment(Struct, frozen=True):
    """By how much the clock of each rank is ahead of the mean clock of all ranks.

    `basis` is the kind of collective whose ends the clocks were aligned on; "" means that the
    offsets are assumed to be 0. `offset_ns` has one value per rank, `record_offset_ns` one per
    record: it follows clocks that drift.

    Residuals are the distances of aligned ends from the median end of their collective, over the
    collectives of the basis; None if there are none. `earliest_ns` and `latest_ns` bound the error
    of each rank's offset: outside them, a rank would end a collective before another starts it.
    """

    basis: str
    offset_ns: IntArray
    record_offset_ns: IntArray
    residual_median_ns: int | None
    residual_p95_ns: int | None
    earliest_ns: IntArray
    latest_ns: IntArray

    @property
    def is_possible(self) -> bool:
        """Return whether no rank ends a collective before another starts it on aligned clocks."""
        return bool((self.earliest_ns <= 0).all() and (self.latest_ns >= 0).all())


def aligned(records: CommRecords, matches: Matches, *, is_common: bool = True) -> Alignment:
    """Return the offsets of the clocks of all ranks, by the first of these rules that applies.

    1. Each rank has _LEAST all-reduces, or else all-to-alls: offsets come from their ends.
    2. `is_common` (the recorded clocks may be one clock) and no collective contradicts it: 0.
    3. Each rank has _LEAST collectives of unknown kind, and their ends agree: from their ends.
    4. Otherwise the offsets are taken to be 0.
    """
    # Ranks leave broadcasts and the like, and sends and receives, at different times.
    leaves_early = is_rooted(records.kind) | records.is_pair
    joint = np.flatnonzero((matches.collective >= 0) & ~leaves_early)
    rows_of_basis = {}
    for basis in (*_BASES, UNNAMED):
        rows = joint[records.kind[joint] == kind_of(basis)]  # -1, unknown, for UNNAMED
        counts = np.bincount(records.place[rows], minlength=len(records.ranks))
        if len(rows) and counts.min() >= _LEAST:
            rows_of_basis[basis] = rows
    for basis in _BASES:
        if basis in rows_of_basis:
            return _aligned_on(basis, rows_of_basis[basis], records, matches, joint)
    as_recorded = _aligned_on("", joint, records, matches, joint)
    if is_common and as_recorded.is_possible:
        return as_recorded
    if UNNAMED not in rows_of_basis:
        return as_recorded
    by_unnamed = _aligned_on(UNNAMED, rows_of_basis[UNNAMED], records, matches, joint)
    ends_agree = (by_unnamed.residual_p95_ns or 0) <= _TOGETHER_NS
    return by_unnamed if by_unnamed.is_possible and ends_agree else as_recorded


def _aligned_on(
    basis: str, rows: IntArray, records: CommRecords, matches: Matches, joint: IntArray
) -> Alignment:
    """Return the alignment on the ends of the records `rows`; without a basis, offsets of 0.

    `joint` are the records of all collectives that ranks leave together: they bound the offsets.
    """
    offset = np.zeros(len(records.ranks), dtype=np.int64)
    if basis:
        # If collectives connect all ranks, all have label 0. Else messages may connect them.
        label = connected(records.place[rows], matches.collective[rows], len(records.ranks))
        messages = np.flatnonzero(records.is_pair & (matches.collective >= 0))
        polished = np.append(rows, messages) if label.any() else rows
        offset = _offsets(records, matches, polished)
    record_offset = _followed(records, matches, rows if basis else rows[:0], offset)
    start, end = records.start_ns - record_offset, records.end_ns - record_offset
    distance = np.abs(_from_median_end(end, matches, rows))
    median = p95 = None
    if len(distance):
        median = round(float(np.median(distance)))
        p95 = round(float(np.quantile(distance, 0.95, method="nearest")))
    bounds = _bounds(records, matches, joint, start, end)
    return Alignment(basis, offset, record_offset, median, p95, *bounds)


def _offsets(records: CommRecords, matches: Matches, rows: IntArray) -> IntArray:
    """Return the clock offset of each rank, by median polish of the ends of the records `rows`.

    Median polish alternates two steps until nothing moves: the end of each collective is the median
    over its ranks, then the offset of each rank is the median over its collectives.
    """
    # Collectives 7 and 9 in rows [9 7 9]: collectives [7 9], of_row [1 0 1].
    collectives, of_row = ranked(matches.collective[rows])
    if len(collectives) > _MOST:
        taken = np.linspace(0, len(collectives) - 1, _MOST).astype(np.int64)
        rows = rows[np.isin(of_row, taken)]
        _, of_row = ranked(matches.collective[rows])
    place = records.place[rows]
    end = records.end_ns[rows] - records.end_ns[rows].min()
    offset: FloatArray = np.zeros(len(records.ranks))
    # If some collectives are of a part of the ranks only, median polish that starts from 0 stops
    # too early: it then starts from the least-squares offsets.
    if np.bincount(of_row).min() < len(records.ranks):
        offset = _least_squares(of_row, place, end, len(records.ranks))
    for _ in range(_ROUNDS):
        collective_end = _middles(of_row, end - offset[place])
        new_offset = _middles(place, end - collective_end[of_row])
        new_offset -= new_offset.mean()  # only differences between ranks mean something
        change = np.abs(new_offset - offset).max()
        offset = new_offset
        if change < 1:
            break
    return np.round(offset).astype(np.int64)


def _least_squares(of_row: IntArray, place: IntArray, end: IntArray, ranks: int) -> FloatArray:
    """Return the offsets of the ranks that bring the ends of each collective closest together.

    `of_row` and `place` are the collective and the rank of each end. These are least squares, by
    conjugate gradients (Hestenes and Stiefel, 1952).
    """
    count = np.bincount(of_row)

    def gradient(values: FloatArray | IntArray) -> FloatArray:
        """Return, per rank, the sum of the distances of its values from their collective's mean."""
        mean = np.bincount(of_row, values) / count
        return np.asarray(np.bincount(place, values - mean[of_row], ranks), dtype=np.float64)

    offset: FloatArray = np.zeros(ranks)
    residual = direction = gradient(end)
    squares = float(residual @ residual)
    for _ in range(_ROUNDS):
        if squares < 1:  # exact to the nanosecond
            break
        image = gradient(direction[place])
        step = squares / float(direction @ image)
        offset = offset + step * direction
        residual = residual - step * image
        squares_before = squares
        squares = float(residual @ residual)
        direction = residual + squares / squares_before * direction
    return offset


def _followed(records: CommRecords, matches: Matches, rows: IntArray, offset: IntArray) -> IntArray:
    """Return the clock offset in ns of each record: of its rank or, if clocks drift, a local one.

    Local offsets are running medians over the records of the basis (`rows`). Clocks drift if local
    offsets bring the ends of the basis much closer together than the constant `offset` per rank.
    """
    constant = offset[records.place]
    if not len(rows):
        return constant
    end = records.end_ns - constant
    residual = _from_median_end(end, matches, rows)  # per record of the basis
    # How far the clock of a record's rank has drifted, in ns; first for the records of the basis.
    drift = np.zeros(len(records), dtype=np.int64)
    for _, of_rank in groups(records.place[rows]):
        drift[rows[of_rank]] = running_medians(residual[of_rank])
    local_residual = _from_median_end(end - drift, matches, rows)
    constant_p95 = float(np.quantile(np.abs(residual), 0.95))
    local_p95 = float(np.quantile(np.abs(local_residual), 0.95))
    if _LIKE * local_p95 > constant_p95:
        return constant
    earlier, later = _drifts(records, rows, drift)
    # A record outside of the basis takes the earlier drift; the later one if that brings its end
    # closer to the mean end of the other ranks. The others' ends are taken with their earlier one.
    matched = np.flatnonzero(matches.collective >= 0)
    _, of_row = ranked(matches.collective[matched])
    # Counted from the first end, times are small enough for the floats of bincount.
    end_by_earlier = end[matched] - earlier[matched] - end[matched].min()
    end_by_later = end_by_earlier + earlier[matched] - later[matched]
    sum_of_others = np.bincount(of_row, end_by_earlier)[of_row] - end_by_earlier
    mean_of_others = sum_of_others / (np.bincount(of_row)[of_row] - 1)  # two ranks or more match
    is_closer = np.abs(end_by_later - mean_of_others) < np.abs(end_by_earlier - mean_of_others)
    local = earlier.copy()
    local[matched[is_closer]] = later[matched[is_closer]]
    local[rows] = drift[rows]
    return constant + local


def _drifts(records: CommRecords, rows: IntArray, drift: IntArray) -> tuple[IntArray, IntArray]:
    """Return, per record, the drift in ns of the last basis record of its rank, and of the next.

    `rows` are the basis records, whose `drift` is known. If one is missing, the other counts twice.
    """
    earlier, later = np.zeros((2, len(records)), dtype=np.int64)
    basis_of_rank = dict(groups(records.place[rows]))
    for place, of_rank in groups(records.place):
        basis = rows[basis_of_rank[place]]
        # Basis ends [10 20 30]; records end at [5 24 40]: last [-1 1 2], next [0 2 3].
        last = np.searchsorted(records.end_ns[basis], records.end_ns[of_rank], side="right") - 1
        earlier[of_rank] = drift[basis[last.clip(0)]]
        later[of_rank] = drift[basis[(last + 1).clip(0, len(basis) - 1)]]
    return earlier, later


def _from_median_end(end_ns: IntArray, matches: Matches, rows: IntArray) -> IntArray:
    """Return how much later each record of `rows` ends than the median of its collective, in ns."""
    _, of_row = ranked(matches.collective[rows])
    return end_ns[rows] - medians(of_row, end_ns[rows])[of_row]


def medians(group: IntArray, values_ns: IntArray) -> IntArray:
    """Return the median time of each group; groups are numbered from 0 without a gap."""
    # Subtract a base first: a float has too few digits for ns since 1970.
    base = values_ns.min() if len(values_ns) else 0
    return np.asarray(base + np.round(_middles(group, values_ns - base)).astype(np.int64))


def _middles(group: IntArray, values: FloatArray | IntArray) -> FloatArray:
    """Return the median value of each group; groups are numbered from 0 without a gap."""
    # Sort by group, and by value in each group.
    order = np.argsort(values)
    order = order[by_code(group[order])]
    ordered = values[order]
    # group [0 0 0 1 1], ordered [1 5 9 2 4]: count [3 2], first [0 3].
    count = np.bincount(group)
    first = np.cumsum(count) - count
    # The mean of the two middle values: of 5 and 5 (the count is odd), of 2 and 4.
    return np.asarray((ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2)


def _bounds(
    records: CommRecords, matches: Matches, rows: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the lowest and the highest error that each rank's clock offset can have, in ns.

    Beyond these bounds a rank would end a collective of `rows` before another rank starts it.
    `start` and `end` are of all records, on aligned clocks. A rank without collectives has 0 and 0.
    """
    _, of_row = ranked(matches.collective[rows])
    rows = rows[np.bincount(of_row)[of_row] > 1]  # a record alone in its collective bounds nothing
    collective, place = matches.collective[rows], records.place[rows]
    start, end = start[rows], end[rows]
    # A rank's times can move back until its end is at the latest start of the other ranks, and
    # forth until its start is at their earliest end.
    latest_start_of_others = _highest_of_others(collective, start)
    earliest_end_of_others = -_highest_of_others(collective, -end)
    ranks = len(records.ranks)
    room_back_ns = group_least(place, end - latest_start_of_others, ranks)
    room_forth_ns = group_least(place, earliest_end_of_others - start, ranks)
    has_none = np.bincount(place, minlength=ranks) == 0
    return np.where(has_none, 0, -room_back_ns), np.where(has_none, 0, room_forth_ns)


def _highest_of_others(collective: IntArray, values: IntArray) -> IntArray:
    """Return, per row, the highest value of the other rows of its collective."""
    order = np.lexsort((-values, collective))  # by collective, the highest value first
    # collective [4 4 4 7 7], values [9 5 3 8 6]: is_highest [1 0 0 1 0], highest [0 0 0 3 3],
    is_highest = differ_from_before(collective[order])
    highest = np.flatnonzero(is_highest)[np.cumsum(is_highest) - 1]
    # taken [1 0 0 4 3], the values [5 9 9 6 8]: a row that is the highest takes the second highest.
    taken = (highest + is_highest).clip(max=max(len(order) - 1, 0))
    of_others = np.empty_like(values)
    of_others[order] = values[order[taken]]
    return of_others
