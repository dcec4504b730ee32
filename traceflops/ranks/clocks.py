"""By how much the clocks of ranks differ: all ranks leave a collective at the same time.

The end of collective c on rank r is t_c + offset_r + residual. Offsets come from median polish and
have mean 0; clocks that drift or are set are followed. What always ends later on one rank cannot be
told from an offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traceflops.ranks.collectives import kind_of
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.matching import Matches, is_rooted, running_medians
from traceflops.table import BoolArray, IntArray, by_code, groups, ranked

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


@dataclass(frozen=True, slots=True)
class Alignment:
    """Clocks of ranks: `offset_ns` is what each is ahead of their mean.

    `record_offset_ns` is the same by record; where clocks drift or are set, it differs with time.
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
    known = np.flatnonzero(matches.collective >= 0)
    known = known[~is_rooted(records.kind[known]) & ~records.is_pair[known]]  # a send leaves early
    enough = {
        basis: mine
        for basis in (*_BASES, UNNAMED)
        for mine in [known[records.kind[known] == kind_of(basis)]]
        if len(mine)
        and np.bincount(records.place[mine], minlength=len(records.ranks)).min() >= _LEAST
    }
    basis = next((basis for basis in _BASES if basis in enough), "")
    found = _aligned_on(records, matches, known, basis, enough.get(basis, known))
    if basis or (is_common and found.is_possible) or UNNAMED not in enough:
        return found
    by_ends = _aligned_on(records, matches, known, UNNAMED, enough[UNNAMED])
    is_sure = by_ends.is_possible and (by_ends.residual_p95_ns or 0) <= _TOGETHER_NS
    return by_ends if is_sure else found


def _aligned_on(
    records: CommRecords, matches: Matches, known: IntArray, basis: str, of_basis: IntArray
) -> Alignment:
    """Return the offsets that some matched records tell, 0 where these are no basis."""
    offset = np.zeros(len(records.ranks), dtype=np.int64)
    if basis:
        offset = _offsets(records, matches, _joined(records, matches, of_basis))
    own = _followed(records, matches, of_basis if basis else of_basis[:0], offset)
    start, end = records.start_ns - own, records.end_ns - own
    _, of_row = ranked(matches.collective[of_basis])
    residual = np.abs(end[of_basis] - medians(of_row, end[of_basis])[of_row])
    middle = float(np.median(residual)) if len(residual) else None
    high = float(np.quantile(residual, 0.95, method="nearest")) if len(residual) else None
    return Alignment(
        basis,
        offset,
        own,
        None if middle is None else round(middle),
        None if high is None else round(high),
        *_bounds(records, matches, known, start, end),
    )


def _joined(records: CommRecords, matches: Matches, rows: IntArray) -> IntArray:
    """Return the records, and sends and receives where these alone bring all ranks together."""
    place, collective = records.place[rows], matches.collective[rows]
    part, before = np.arange(len(records.ranks)), None
    while before is None or (part != before).any():
        before, lowest = part.copy(), np.full(matches.count, len(part))
        np.minimum.at(lowest, collective, part[place])
        np.minimum.at(part, place, lowest[collective])
    pairs = np.flatnonzero(records.is_pair & (matches.collective >= 0))
    return np.concatenate([rows, pairs]) if part.any() else rows


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
    """Return the offsets of which the residuals have the least squares, by conjugate gradients."""
    count = np.bincount(of_row)

    def apart(values: Values | IntArray) -> Values:
        mean = np.bincount(of_row, values) / count
        return np.asarray(np.bincount(place, values - mean[of_row], ranks), dtype=np.float64)

    offset: Values = np.zeros(ranks)
    left = way = apart(end)
    size = float(left @ left)
    for _ in range(_ROUNDS):
        if size < 1:
            break
        pushed = apart(way[place])
        step = size / float(way @ pushed)
        offset, left = offset + step * way, left - step * pushed
        before, size = size, float(left @ left)
        way = left + size / before * way
    return offset


def _followed(records: CommRecords, matches: Matches, rows: IntArray, offset: IntArray) -> IntArray:
    """Return the offset of each record: where clocks drift or are set, that of the time around it.

    They do if ends lie much closer together when each rank's offset is that of its neighbours.
    """
    fixed, moved = offset[records.place], np.zeros(len(records), dtype=np.int64)
    straight = _less(records, slice(None), fixed)
    moved[rows] = _moves(straight, matches, rows)
    before, after = (_apart(one, matches, rows) for one in (straight, _less(straight, rows, moved)))
    if not len(rows) or _LIKE * _high(after) > _high(before):
        return fixed
    sides = _beside(records, rows, moved)
    is_after = _is_closer(records, matches, straight.end_ns, *sides)
    is_basis = np.isin(np.arange(len(fixed)), rows)
    return fixed + np.where(is_basis, moved, np.where(is_after, sides[1], sides[0]))


def _less(records: CommRecords, rows: IntArray | slice, by_ns: IntArray) -> CommRecords:
    """Return the records, of which some end earlier by the times of all."""
    end = records.end_ns.copy()
    end[rows] -= by_ns[rows]
    return replace(records, end_ns=end)


def _apart(records: CommRecords, matches: Matches, rows: IntArray) -> IntArray:
    """Return how far each of some ends lies from the median of its collective."""
    _, of_row = ranked(matches.collective[rows])
    return records.end_ns[rows] - medians(of_row, records.end_ns[rows])[of_row]


def _moves(records: CommRecords, matches: Matches, rows: IntArray) -> IntArray:
    """Return by how much the clock is ahead at each of some ends, beyond the offset of its rank.

    A clock that is set parts the recording in two, each with its offsets. What remains is followed.
    """
    apart, place, ranks = _apart(records, matches, rows), records.place[rows], len(records.ranks)
    moved = np.zeros_like(records.end_ns)
    is_after = _is_after(matches.collective[rows], place, apart, records.end_ns[rows])
    sides = [rows[~is_after], rows[is_after]]
    if all(np.bincount(records.place[side], minlength=ranks).min() >= _LEAST for side in sides):
        for side in sides:
            offset = _offsets(records, matches, side)
            # Most clocks are not set.
            moved[side] = (offset - round(float(np.median(offset))))[records.place[side]]
        nearer = _less(records, rows, moved)
        if _LIKE * np.abs(_apart(nearer, matches, rows)).sum() <= np.abs(apart).sum():
            for side in sides:
                moved[side] += _moves(nearer, matches, side)
            return moved[rows]
    for _, mine in groups(place):
        apart[mine] = running_medians(apart[mine])
    return apart


def _is_after(collective: IntArray, place: IntArray, apart: IntArray, end: IntArray) -> BoolArray:
    """Return which ends are of collectives after that from which on a rank ends elsewhere."""
    _, of_row = ranked(collective)
    time, most = medians(of_row, end), 0.0
    found = np.zeros(len(time), dtype=np.bool_)
    for _, mine in groups(place):
        if len(mine) < 2:
            continue
        sums = np.abs(np.cumsum(apart[mine] - apart[mine].mean())[:-1])
        at = 1 + int(sums.argmax())
        before, after = mine[:at], mine[at:]
        inside = sum(float(np.abs(apart[p] - np.median(apart[p])).sum()) for p in (before, after))
        if sums[at - 1] > most and _LIKE * inside <= np.abs(apart[mine]).sum():
            most, found = float(sums[at - 1]), time >= time[of_row[after[0]]]
            found[of_row[before]], found[of_row[after]] = False, True
    return found[of_row]


def _beside(records: CommRecords, rows: IntArray, values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the values of the last of some rows of its rank up to each record, and the next."""
    before, after = np.zeros((2, len(records)), dtype=np.int64)
    of_rank = dict(groups(records.place[rows]))
    for place, mine in groups(records.place):
        known = rows[of_rank[place]]
        upto = np.searchsorted(records.end_ns[known], records.end_ns[mine], side="right") - 1
        before[mine] = values[known[upto.clip(0)]]
        after[mine] = values[known[(upto + 1).clip(0, len(known) - 1)]]
    return before, after


def _is_closer(
    records: CommRecords, matches: Matches, end: IntArray, before: IntArray, after: IntArray
) -> BoolArray:
    """Return for which records the offset after them brings their end closer to those of others."""
    found = np.zeros(len(records), dtype=np.bool_)
    rows = np.flatnonzero(matches.collective >= 0)
    _, of_row = ranked(matches.collective[rows])
    base = end[rows].min() if len(rows) else 0
    own = end[rows] - before[rows] - base
    others = (np.bincount(of_row, own)[of_row] - own) / (np.bincount(of_row)[of_row] - 1)
    later = own + before[rows] - after[rows]
    found[rows] = np.abs(later - others) < np.abs(own - others)
    return found


def _high(apart: IntArray) -> float:
    return float(np.quantile(np.abs(apart), 0.95)) if len(apart) else 0.0


def medians(group: IntArray, values_ns: IntArray) -> IntArray:
    """Return the median time of each group, numbered from 0 without a gap."""
    # A float has too few digits for the ns of the calendar.
    base = values_ns.min() if len(values_ns) else 0
    return np.asarray(base + np.round(_middles(group, values_ns - base)).astype(np.int64))


def _middles(group: IntArray, values: Values | IntArray) -> Values:
    order = np.argsort(values)
    order = order[by_code(group[order])]
    count = np.bincount(group)
    first = np.cumsum(count) - count
    ordered = values[order]
    return np.asarray((ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2)


def _bounds(
    records: CommRecords, matches: Matches, rows: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray]:
    """Return by how much each clock can at most be moved back and forth against all others."""
    far = np.iinfo(np.int64).max
    bounds = np.full((2, len(records.ranks)), far)
    group, place = matches.collective[rows], records.place[rows]
    # A rank moved forth must not start after another's end, moved back not end before its start.
    for side, own, others in ((0, end[rows], start[rows]), (1, -start[rows], -end[rows])):
        slack = own - _highest_of_others(group, others)
        np.minimum.at(bounds[side], place, slack)
    bounds[bounds == far] = 0
    return -bounds[0], bounds[1]


def _highest_of_others(group: IntArray, values: IntArray) -> IntArray:
    """Return, for each row, the highest value of the other rows of its group."""
    order = np.lexsort((-values, group))
    opens = np.flatnonzero(np.append(True, np.diff(group[order]) != 0)) if len(group) else order
    first = opens[np.cumsum(np.isin(np.arange(len(order)), opens)) - 1] if len(group) else order
    highest = values[order[first]]
    second = values[order[np.minimum(first + 1, len(order) - 1)]] if len(group) else highest
    found = np.empty_like(values)
    found[order] = np.where(np.arange(len(order)) == first, second, highest)
    return found
