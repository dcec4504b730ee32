"""By how much the clocks of ranks differ: all ranks leave a collective at the same time.

The end of collective c on rank r is t_c + offset_r + residual. Offsets come from median polish and
have mean 0; clocks that drift are followed. What always ends later on one rank cannot be
told from an offset.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from traceflops.ranks.collectives import kind_of
from traceflops.ranks.comm_groups import connected
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.matching import Matches, is_rooted, running_medians
from traceflops.table.columns import IntArray
from traceflops.table.grouping import by_code, groups, ranked

Values = npt.NDArray[np.float64]
_BASES: Final = ("all_reduce", "all_to_all")
"""Kinds that all ranks leave together, the better one first."""
UNNAMED: Final = "unnamed collectives"
"""They are a basis where the clocks as recorded are impossible, or not common, and ends agree."""
_TOGETHER_NS: Final = 10_000
"""Ends of collectives that ranks do not leave together differ by more."""
_LEAST: Final = 3
"""So many collectives of a rank tell its offset."""
_MOST: Final = 2_000
"""So many are looked at, evenly over the recording."""
_ROUNDS: Final = 50
_LIKE: Final = 2
"""Clocks are followed where that makes the residual smaller by this factor."""


class Alignment(Struct, frozen=True):
    """Clocks of ranks: `offset_ns` is what each is ahead of their mean.

    `record_offset_ns` is the same by record; where clocks drift, it differs with time.
    `basis` is the kind of collective they were aligned on, "" where offsets are taken to be 0.
    Residuals are how far aligned ends lie from the median of their collective, None without any:
    of the basis, as ends of other kinds differ by more than clocks.
    `earliest_ns` and `latest_ns` bound the error of each offset against all other ranks together,
    whatever the ends are: no rank ends a collective before another has started it.
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
    """Return the offsets of the clocks of all ranks; `is_common` if they may be one as recorded."""
    # Records whose ranks leave together: not of broadcasts and the like, nor sends.
    leaves_early = is_rooted(records.kind) | records.is_pair
    joint = np.flatnonzero((matches.collective >= 0) & ~leaves_early)
    enough = {}
    for basis in (*_BASES, UNNAMED):
        of_basis = joint[records.kind[joint] == kind_of(basis)]
        counts = np.bincount(records.place[of_basis], minlength=len(records.ranks))
        if len(of_basis) and counts.min() >= _LEAST:
            enough[basis] = of_basis

    def aligned_on(basis: str, of_basis: IntArray) -> Alignment:
        """Return the alignment on some matched records; all offsets are 0 without a basis."""
        offset = np.zeros(len(records.ranks), dtype=np.int64)
        if basis:
            # Where the basis leaves ranks apart, sends and receives may bring them together.
            rows, collective = of_basis, matches.collective
            if connected(records.place[rows], collective[rows], len(records.ranks)).any():
                rows = np.append(rows, np.flatnonzero(records.is_pair & (collective >= 0)))
            offset = _offsets(records, matches, rows)
        own = _followed(records, matches, of_basis if basis else of_basis[:0], offset)
        moved = _less(records, slice(None), own)
        apart = np.abs(_apart(moved, matches, of_basis))
        residuals: tuple[int | None, int | None] = (None, None)
        if len(apart):
            high = float(np.quantile(apart, 0.95, method="nearest"))
            residuals = round(float(np.median(apart))), round(high)
        bounds = _bounds(records, matches, joint, records.start_ns - own, moved.end_ns)
        return Alignment(basis, offset, own, *residuals, *bounds)

    basis = next((basis for basis in _BASES if basis in enough), "")
    alignment = aligned_on(basis, enough.get(basis, joint))
    if basis or (is_common and alignment.is_possible) or UNNAMED not in enough:
        return alignment
    by_ends = aligned_on(UNNAMED, enough[UNNAMED])
    is_sure = by_ends.is_possible and (by_ends.residual_p95_ns or 0) <= _TOGETHER_NS
    return by_ends if is_sure else alignment


def _offsets(records: CommRecords, matches: Matches, rows: IntArray) -> IntArray:
    """Return the offsets by median polish over some records.

    Where groups have some ranks alone it stops too early, but for a start that is nearly right.
    """
    collective, of_row = ranked(matches.collective[rows])
    if len(collective) > _MOST:
        taken = np.unique(np.linspace(0, len(collective) - 1, _MOST).astype(np.int64))
        rows = rows[np.isin(of_row, taken)]
        _, of_row = ranked(matches.collective[rows])
    place = records.place[rows]
    end = records.end_ns[rows] - records.end_ns[rows].min()
    offset: Values = np.zeros(len(records.ranks))
    if np.bincount(of_row).min() < len(records.ranks):
        offset = _least_squares(of_row, place, end, len(records.ranks))
    for _ in range(_ROUNDS):
        middle = _middles(of_row, end - offset[place])
        better = _middles(place, end - middle[of_row])
        better -= better.mean()
        moved, offset = np.abs(better - offset).max(), better
        if moved < 1:
            break
    return np.round(offset).astype(np.int64)


def _least_squares(of_row: IntArray, place: IntArray, end: IntArray, ranks: int) -> Values:
    """Return the least-squares offsets of the ranks' clocks, by conjugate gradients.

    Hestenes and Stiefel (1952). `of_row` and `place` are the collective and the rank of each end.
    """
    count = np.bincount(of_row)

    def apart(values: Values | IntArray) -> Values:
        mean = np.bincount(of_row, values) / count
        return np.asarray(np.bincount(place, values - mean[of_row], ranks), dtype=np.float64)

    offset: Values = np.zeros(ranks)
    residual = direction = apart(end)
    size = float(residual @ residual)
    for _ in range(_ROUNDS):
        if size < 1:
            break
        pushed = apart(direction[place])
        step = size / float(direction @ pushed)
        offset, residual = offset + step * direction, residual - step * pushed
        before, size = size, float(residual @ residual)
        direction = residual + size / before * direction
    return offset


def _followed(records: CommRecords, matches: Matches, rows: IntArray, offset: IntArray) -> IntArray:
    """Return the offset of each record: where clocks drift, that of the time around it.

    They do if ends lie much closer together when each rank's offset is that of its neighbours.
    """
    fixed, moved = offset[records.place], np.zeros(len(records), dtype=np.int64)
    straight = _less(records, slice(None), fixed)
    if not len(rows):
        return fixed
    ahead = _apart(straight, matches, rows)
    for _, own in groups(records.place[rows]):
        ahead[own] = running_medians(ahead[own])
    moved[rows] = ahead
    before, after = (
        float(np.quantile(np.abs(_apart(line, matches, rows)), 0.95))
        for line in (straight, _less(straight, rows, moved))
    )
    if _LIKE * after > before:
        return fixed
    # Of the last basis up to each record and the next, that which brings its end closer to those
    # of the other ranks.
    earlier, later = np.zeros((2, len(records)), dtype=np.int64)
    of_rank = dict(groups(records.place[rows]))
    for place, records_of in groups(records.place):
        basis = rows[of_rank[place]]
        upto = np.searchsorted(records.end_ns[basis], records.end_ns[records_of], side="right") - 1
        earlier[records_of] = moved[basis[upto.clip(0)]]
        later[records_of] = moved[basis[(upto + 1).clip(0, len(basis) - 1)]]
    is_later = np.zeros(len(records), dtype=np.bool_)
    matched = np.flatnonzero(matches.collective >= 0)
    _, of_row = ranked(matches.collective[matched])
    base = straight.end_ns[matched].min() if len(matched) else 0
    own = straight.end_ns[matched] - earlier[matched] - base
    others = (np.bincount(of_row, own)[of_row] - own) / (np.bincount(of_row)[of_row] - 1)
    next_own = own + earlier[matched] - later[matched]
    is_later[matched] = np.abs(next_own - others) < np.abs(own - others)
    is_basis = np.isin(np.arange(len(fixed)), rows)
    return fixed + np.where(is_basis, moved, np.where(is_later, later, earlier))


def _less(records: CommRecords, rows: IntArray | slice, by_ns: IntArray) -> CommRecords:
    """Return the records with the chosen ends moved back; `by_ns` is per record."""
    end = records.end_ns.copy()
    end[rows] -= by_ns[rows]
    return replace(records, end_ns=end)


def _apart(records: CommRecords, matches: Matches, rows: IntArray) -> IntArray:
    """Return the distance of the chosen ends from the median end of their collective."""
    _, of_row = ranked(matches.collective[rows])
    return records.end_ns[rows] - medians(of_row, records.end_ns[rows])[of_row]


def medians(group: IntArray, values_ns: IntArray) -> IntArray:
    """Return the median time of each group, numbered from 0 without a gap."""
    # A float has too few digits for the ns of the calendar.
    base = values_ns.min() if len(values_ns) else 0
    return np.asarray(base + np.round(_middles(group, values_ns - base)).astype(np.int64))


def _middles(group: IntArray, values: Values | IntArray) -> Values:
    """Return the median value of each group, numbered from 0 without a gap."""
    order = np.argsort(values)
    order = order[by_code(group[order])]
    count = np.bincount(group)
    first = np.cumsum(count) - count
    ordered = values[order]
    return np.asarray((ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2)


def _bounds(
    records: CommRecords, matches: Matches, rows: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray]:
    """Return how far each clock can move back and forth without an impossible collective."""
    far = np.iinfo(np.int64).max
    bounds = np.full((2, len(records.ranks)), far)
    group, place = matches.collective[rows], records.place[rows]
    # A rank moved forth must not start after another's end, moved back not end before its start.
    for side, own, others in ((0, end[rows], start[rows]), (1, -start[rows], -end[rows])):
        # The highest of the others of a collective: for its highest one the second, if there is.
        order = np.lexsort((-others, group))
        opens = np.append(True, np.diff(group[order]) != 0)[: len(order)]
        first = np.flatnonzero(opens)[np.cumsum(opens) - 1]
        highest, second = others[order[first]], others[order[(first + 1).clip(0, len(order) - 1)]]
        of_others = np.empty_like(others)
        of_others[order] = np.where(opens, second, highest)
        np.minimum.at(bounds[side], place, own - of_others)
    bounds[bounds == far] = 0
    return -bounds[0], bounds[1]
