"""Who communicates with whom where nothing names it: ranks whose kernels end together do.

Of a stream that several groups share, ranks are one group whose ends are clearly closest to each
other, if ends of such groups differ as their last starts do. Sends and receives are between the two
ranks that end at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np
from msgspec.structs import replace

from traceflops.ranks.clocks import Alignment, aligned
from traceflops.ranks.comm_groups import CommGroup
from traceflops.ranks.comm_records import EXCHANGE, KINDS, RECV, SEND, CommRecords
from traceflops.ranks.matching import Matches, matched, most_alike
from traceflops.table.columns import BoolArray, IntArray
from traceflops.table.grouping import groups, ranked

_CLOSE_NS: Final = 5_000
"""Ends of one collective lie closer together than that."""
_NEAR_NS: Final = 50_000
"""Ends of a send and its receive do."""
_NEARLY: Final = 0.9
"""So many of the kernels must fit."""
_CLEARLY: Final = 2
"""Ends of two groups are so many times farther apart than those of one."""
_LIKE: Final = 2
"""Ends of several groups differ less by this factor where each is counted from its last start."""
_LEAST: Final = 3
_RANKS: Final = 32
_KERNELS: Final = 200
"""So many ranks and kernels of each are compared at most."""
_FAR: Final = int(np.iinfo(np.int64).max)
_SIDE: Final = {SEND: 1, RECV: -1}


Partners = tuple[CommRecords, Matches, Alignment]
"""Records with their groups and peers, and what follows from these."""


def with_partners(records: CommRecords) -> Partners:
    """Return the matches of records, with groups and peers inferred from the ends of kernels.

    An inference counts if at least as many kernels end together with it. Of many kernels the first
    ones of each rank decide the groups, if nearly all kernels then end together.
    """
    unnamed, many = np.flatnonzero(_are_unnamed(records)), len(records.ranks)
    if len(unnamed) > _KERNELS * many:
        begun = records.first(_KERNELS)
        partners = _best_partners(begun)[0]
        if partners.groups is not begun.groups:
            new = (len(partners.groups) + np.arange(len(records.groups))).repeat(many)
            new[begun.group * many + begun.place] = partners.group
            group = new[records.group * many + records.place]
            whole = _in_groups(records, group, [*partners.groups, *records.groups])
            best = _best_partners(whole)
            if _share_together(best, unnamed) >= _NEARLY:
                return best
    return _best_partners(records)


def _in_groups(records: CommRecords, group: IntArray, of_job: Sequence[CommGroup]) -> CommRecords:
    """Return the records in other groups; `group` indexes `of_job`, unused groups go."""
    used, group = ranked(group)
    return replace(records, group=group, groups=tuple(of_job[number] for number in used.tolist()))


def _best_partners(records: CommRecords) -> Partners:
    """Return the partners with clocks as recorded, else as collectives tell, else unknown."""
    recorded = best = _matched(records)
    unnamed = np.flatnonzero(_are_unnamed(records))
    own = recorded[2].record_offset_ns
    most = _share_together(recorded, unnamed)
    for ahead, is_known in ((np.zeros_like(own), True), (own, True), (own, False)):
        if not len(unnamed) or (most >= _NEARLY and (best is not recorded or not is_known)):
            break
        by_recorded = _with_peers(records, recorded[1], ahead)
        # Messages that end together tell that clocks are right.
        teams = _with_teams(recorded, ahead, is_known, own if by_recorded is records else ahead)
        of_teams = recorded if teams is records else _matched(teams)
        partners = by_recorded if teams is records else _with_peers(teams, of_teams[1], ahead)
        candidate = of_teams if partners is teams else _matched(partners)
        if (share := _share_together(candidate, unnamed)) >= most:
            best, most = candidate, share
    return best


def _matched(records: CommRecords) -> Partners:
    matches = matched(records)
    return records, matches, aligned(records, matches)


def _are_unnamed(records: CommRecords) -> BoolArray:
    """Return which kernels are of a group or with a rank that nothing names."""
    is_named = np.array([_is_named(group) for group in records.groups], dtype=np.bool_)
    messages = (records.is_pair | (records.kind == EXCHANGE)) & (records.peer < 0)
    return np.asarray(messages | ~is_named[records.group])


def _is_named(group: CommGroup) -> bool:
    return group.ranks is not None or group.size is not None


def _share_together(partners: Partners, rows: IntArray) -> float:
    """Return the share of some kernels that match and end together on aligned clocks."""
    records, matches, alignment = partners
    end, is_matched = records.end_ns - alignment.record_offset_ns, matches.collective >= 0
    first, last = (np.full(matches.count, edge) for edge in (_FAR, -_FAR))
    np.minimum.at(first, matches.collective[is_matched], end[is_matched])
    np.maximum.at(last, matches.collective[is_matched], end[is_matched])
    near = np.append(last - first <= _NEAR_NS, False)
    return float(near[matches.collective[rows]].mean()) if len(rows) else 1.0


def _with_teams(
    recorded: Partners, ahead: IntArray, is_known: bool, likely: IntArray
) -> CommRecords:
    """Return the records with each shared stream split into the groups that use it.

    Clocks are ahead by so much if this is known, likely by so much.
    """
    records = recorded[0]
    group, of_job = records.group.copy(), list(records.groups)
    for code, rows in groups(records.group):
        members = [rows[own] for _, own in groups(records.place[rows])]
        is_small = 2 < len(members) <= _RANKS
        if _is_named(of_job[code]) or not is_small or records.is_pair[rows].any():
            continue
        # How far most ends of each two ranks are apart, of unknown clocks but for an offset
        apart = np.zeros((len(members), len(members)), dtype=np.int64)
        end = records.end_ns - ahead if is_known else records.end_ns
        for a, b in combinations(range(len(members)), 2):
            first, second = members[a][:_KERNELS], members[b][:_KERNELS]
            offset = 0 if is_known else most_alike(records, first, second, _CLOSE_NS)[-1]
            apart[a, b] = apart[b, a] = _distance(end[first], end[second] + offset)
        teams = _teams(apart)
        for team in teams if _are_apart(recorded, rows, teams, likely) else ():
            of_team = [members[number] for number in team]
            ranks = tuple(records.ranks[records.place[own[0]]] for own in of_team)
            group[np.concatenate(of_team)] = len(of_job)
            of_job.append(CommGroup(of_job[code].name, ranks, len(ranks)))
    return records if len(of_job) == len(records.groups) else _in_groups(records, group, of_job)


def _distance(ends_ns: IntArray, others_ns: IntArray) -> int:
    """Return the distance within which most ends have a counterpart; _FAR for few ends."""
    low = max(ends_ns.min(), others_ns.min()) - _NEAR_NS
    high = min(ends_ns.max(), others_ns.max()) + _NEAR_NS
    ours, theirs = (np.sort(ns[(ns >= low) & (ns <= high)]) for ns in (ends_ns, others_ns))
    if min(len(ours), len(theirs)) < _LEAST:
        return _FAR
    distances = []
    for times, among in ((ours, theirs), (theirs, ours)):
        after = np.searchsorted(among, times).clip(1, len(among) - 1)
        nearest = np.minimum(np.abs(times - among[after - 1]), np.abs(times - among[after]))
        distances.append(int(np.quantile(nearest, _NEARLY, method="lower")))
    return max(distances)


def _are_apart(
    recorded: Partners, of_group: IntArray, teams: Sequence[Sequence[int]], ahead: IntArray
) -> bool:
    """Return whether teams that match end far apart, or by as much as their last starts are.

    In one group all end together, however late some of them start.
    """
    records, matches, _ = recorded
    rows, ranks = of_group[matches.collective[of_group] >= 0], sum(map(len, teams))
    if not teams or len(rows) < _LEAST * ranks:
        return bool(teams)
    rows = rows[np.lexsort((records.place[rows], matches.collective[rows]))].reshape(-1, ranks)
    end, last = (
        np.array([ns[rows[:, team]].max(axis=1) for team in teams])
        for ns in (records.end_ns - ahead, records.start_ns - ahead)
    )
    apart = np.ptp(end, axis=0)
    is_far = float(np.median(apart)) > _NEAR_NS
    return is_far or bool(_LIKE * np.ptp(end - last, axis=0).sum() < apart.sum())


def _teams(apart: IntArray) -> list[list[int]]:
    """Return the smallest groups of one size that are clearly apart, none where there are none."""
    team = np.arange(len(apart))
    for near in np.unique(apart).tolist():
        for rank, other in np.argwhere(apart == near).tolist():
            team[team == team[other]] = team[rank]
        same = team[:, None] == team
        sizes = same.sum(axis=1)
        if same.all() or near > _NEAR_NS:
            break
        is_clear = apart[~same].min() > _CLEARLY * near
        if is_clear and sizes.min() == sizes.max() > 1:
            return [np.flatnonzero(team == number).tolist() for number in np.unique(team)]
    return []


def _with_peers(records: CommRecords, matches: Matches, ahead: IntArray) -> CommRecords:
    """Return the records with the inferred peers of sends, receives and exchanges."""
    peer = records.peer.copy()
    for code, of_group in groups(records.group):
        places = np.unique(records.place[of_group])
        message = (records.is_pair | (records.kind == EXCHANGE))[of_group]
        rows = of_group[message & (peer[of_group] < 0)]
        if len(places) == 2 and records.groups[code].size == 2:
            rows = rows[records.is_pair[rows]]
            peer[rows] = places.sum() - records.place[rows]
        elif len(rows) and (matches.collective[rows] < 0).mean() > 1 - _NEARLY:
            peer[rows] = _peers(records, rows, records.end_ns - ahead)
    return records if (peer == records.peer).all() else replace(records, peer=peer)


def _peers(records: CommRecords, rows: IntArray, end: IntArray) -> IntArray:
    """Return the place of the rank that each of some messages is with, -1 for all if unclear.

    Ranks that most messages are between come first; those all of whose messages have a partner by
    then are with no others, which may only work in step with them.
    """
    place, ranks = records.place[rows], len(records.ranks)
    anyone, allowed = ~np.eye(ranks, dtype=np.bool_), np.zeros((ranks, ranks), dtype=np.bool_)
    other = _nearest(records, rows, end, anyone)
    has_peer = other >= 0
    sides = np.sort([place[has_peer], place[other[has_peer]]], axis=0)
    often = np.bincount(sides[0] * ranks + sides[1], minlength=ranks * ranks)
    count = np.bincount(place, minlength=ranks)
    left, records_of = count.copy(), dict(groups(place))
    for pair in np.argsort(-often, kind="stable")[: np.count_nonzero(often)].tolist():
        two = np.array(divmod(pair, ranks))
        if (left[two] > (1 - _NEARLY) * count[two]).all():
            both = rows[np.concatenate([records_of[pair] for pair in two.tolist()])]
            left[two] -= (_nearest(records, both, end, anyone) >= 0).sum() // 2
            allowed[two, two[::-1]] = True
    other = _nearest(records, rows, end, allowed)
    if (other >= 0).sum() < _NEARLY * len(rows):
        return np.full(len(rows), -1)
    return np.where(other >= 0, place[other], -1)


def _nearest(records: CommRecords, rows: IntArray, end: IntArray, allowed: BoolArray) -> IntArray:
    """Return, per message, the one whose end is mutually nearest; -1 for none."""
    place, side = records.place[rows], np.array([_SIDE.get(k, 0) for k in range(len(KINDS))])
    sent, size = side[records.kind[rows]], records.elements[rows]
    order = np.argsort(end[rows], kind="stable")
    nearest, gap = np.full(len(rows), -1), np.full(len(rows), _NEAR_NS)
    for step in range(1, min(2 * len(records.ranks), _RANKS, len(rows))):
        earlier, other = order[:-step], order[step:]
        apart = end[rows[other]] - end[rows[earlier]]
        fits = allowed[place[earlier], place[other]] & (sent[earlier] == -sent[other])
        fits &= (size[earlier] == size[other]) & (apart <= records.dur_ns[rows[other]])
        for near, its in ((earlier, other), (other, earlier)):
            better = fits & (apart < gap[near])
            nearest[near[better]], gap[near[better]] = its[better], apart[better]
    mutual = (nearest >= 0) & (nearest[nearest] == np.arange(len(rows)))
    return np.where(mutual, nearest, -1)
