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
from traceflops.table.grouping import by_code, differ_from_before, distinct, groups, ranked

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
    """Return the offsets of the clocks of all ranks.

    They come from the ends of the all-reduces, else the all-to-alls, of which each rank needs a
    few. Without these the offsets are 0, if `is_common` (the recorded clocks may be one clock) and
    no collective contradicts it; else they come from collectives of unknown kind whose ends agree.
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
    basis = next((basis for basis in _BASES if basis in rows_of_basis), "")
    alignment = _aligned_on(basis, rows_of_basis.get(basis, joint), records, matches, joint)
    if basis or (is_common and alignment.is_possible) or UNNAMED not in rows_of_basis:
        return alignment
    by_unnamed = _aligned_on(UNNAMED, rows_of_basis[UNNAMED], records, matches, joint)
    is_sure = by_unnamed.is_possible and (by_unnamed.residual_p95_ns or 0) <= _TOGETHER_NS
    return by_unnamed if is_sure else alignment


def _aligned_on(
    basis: str, rows: IntArray, records: CommRecords, matches: Matches, joint: IntArray
) -> Alignment:
    """Return the alignment on the ends of the records `rows`; without a basis, offsets of 0.

    `joint` are the records of all collectives that ranks leave together: they bound the offsets.
    """
    offset = np.zeros(len(records.ranks), dtype=np.int64)
    if basis:
        polished, collective = rows, matches.collective
        # If no collectives of the basis connect some ranks, sends and receives may do so.
        if connected(records.place[rows], collective[rows], len(records.ranks)).any():
            polished = np.append(rows, np.flatnonzero(records.is_pair & (collective >= 0)))
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
    collective, of_row = ranked(matches.collective[rows])
    if len(collective) > _MOST:
        taken = distinct(np.linspace(0, len(collective) - 1, _MOST).astype(np.int64))
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
    constant_p95, local_p95 = (
        float(np.quantile(np.abs(distance), 0.95)) for distance in (residual, local_residual)
    )
    if _LIKE * local_p95 > constant_p95:
        return constant
    # Any other record takes the drift of a record of the basis on its rank: of the last one that
    # ends before it (`earlier`), or of the next one (`later`).
    earlier, later = np.zeros((2, len(records)), dtype=np.int64)
    basis_of_rank = dict(groups(records.place[rows]))
    for place, of_rank in groups(records.place):
        basis = rows[basis_of_rank[place]]
        last = np.searchsorted(records.end_ns[basis], records.end_ns[of_rank], side="right") - 1
        earlier[of_rank] = drift[basis[last.clip(0)]]
        later[of_rank] = drift[basis[(last + 1).clip(0, len(basis) - 1)]]
    # It takes the one that brings its end closer to the mean end of the other ranks.
    matched = np.flatnonzero(matches.collective >= 0)
    _, of_row = ranked(matches.collective[matched])
    # Counted from the first end, times are small enough for the floats of bincount.
    end_by_earlier = end[matched] - earlier[matched] - end[matched].min()
    end_by_later = end_by_earlier + earlier[matched] - later[matched]
    sum_of_others = np.bincount(of_row, end_by_earlier)[of_row] - end_by_earlier
    mean_of_others = sum_of_others / (np.bincount(of_row)[of_row] - 1)  # two ranks or more match
    is_closer = np.abs(end_by_later - mean_of_others) < np.abs(end_by_earlier - mean_of_others)
    local = earlier
    local[matched[is_closer]] = later[matched[is_closer]]
    local[rows] = drift[rows]
    return constant + local


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
    count = np.bincount(group)
    first = np.cumsum(count) - count
    # The mean of the two middle values; they are the same one if the count is odd.
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
    room_back_ns = end - _highest_of_others(collective, start)
    room_forth_ns = -_highest_of_others(collective, -end) - start
    far = np.iinfo(np.int64).max
    bounds = np.full((2, len(records.ranks)), far)
    np.minimum.at(bounds[0], place, room_back_ns)
    np.minimum.at(bounds[1], place, room_forth_ns)
    bounds[bounds == far] = 0
    return -bounds[0], bounds[1]


def _highest_of_others(collective: IntArray, values: IntArray) -> IntArray:
    """Return, per row, the highest value of the other rows of its collective."""
    order = np.lexsort((-values, collective))  # by collective, the highest value first
    is_highest = differ_from_before(collective[order])
    highest = np.flatnonzero(is_highest)[np.cumsum(is_highest) - 1]
    # The row that has the highest value itself takes the next one.
    taken = (highest + is_highest).clip(max=max(len(order) - 1, 0))
    of_others = np.empty_like(values)
    of_others[order] = values[order[taken]]
    return of_others
