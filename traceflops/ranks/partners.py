"""Who communicates with whom if no metadata says so: ranks whose kernels end together.

Several groups may share a stream. Ranks are one group if their ends are clearly closest to each
other, and if the ends of such groups differ as their last starts do. Sends and receives are between
the two ranks that end at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from traceflops.ranks.clocks import Alignment, aligned
from traceflops.ranks.comm_groups import CommGroup
from traceflops.ranks.comm_records import EXCHANGE, KINDS, RECV, SEND, CommRecords
from traceflops.ranks.matching import Matches, matched, most_alike
from traceflops.table.columns import BoolArray, IntArray
from traceflops.table.grouping import distinct, group_least, group_most, groups, ranked

_CLOSE_NS: Final = 5_000  # ends of one collective lie closer together than this
_NEAR_NS: Final = 50_000  # ends of a send and its receive lie closer together than this
_NEARLY: Final = 0.9  # the share of the kernels that must fit
_CLEARLY: Final = 2  # ends of two groups are so many times farther apart than ends of one group
_LIKE: Final = 2
"""Ends of several groups differ less by this factor where each is counted from its last start."""
_LEAST: Final = 3
_RANKS: Final = 32
_KERNELS: Final = 200  # the most kernels of each rank that are compared, of at most _RANKS ranks
_FAR: Final = int(np.iinfo(np.int64).max)
_SIDE: Final = {SEND: 1, RECV: -1}


class Partners(NamedTuple):
    """Records with their groups and peers, and what follows from these."""

    records: CommRecords
    matches: Matches
    alignment: Alignment


def with_partners(records: CommRecords) -> Partners:
    """Return the matches of records, with groups and peers inferred from the ends of kernels.

    An inference counts if at least as many kernels end together with it. Of very many kernels, the
    first ones of each rank decide the groups, if nearly all kernels then end together.
    """
    unnamed = np.flatnonzero(_are_unnamed(records))
    if len(unnamed) > _KERNELS * len(records.ranks):
        regrouped = _in_groups_of_first(records)
        if regrouped is not records:
            best = _best_partners(regrouped)
            if _share_together(best, unnamed) >= _NEARLY:
                return best
    return _best_partners(records)


def _in_groups_of_first(records: CommRecords) -> CommRecords:
    """Return the records in the groups inferred for their first kernels; `records` if for none.

    Kernels take the new group of the first kernels of their rank and old group, if there are any.
    """
    begun = records.first(_KERNELS)
    partners = _best_partners(begun).records
    if partners.groups is begun.groups:
        return records
    # The new group by old group (rows) and rank. Group 0 is split into 0 and 1; group 1 becomes 2
    # where it has first kernels, else 4, after the three new ones: [[0 0 1 1] [2 2 4 4]].
    old_groups = len(partners.groups) + np.arange(len(records.groups))
    new_group = np.repeat(old_groups[:, None], len(records.ranks), axis=1)
    new_group[begun.group, begun.place] = partners.group
    group = new_group[records.group, records.place]
    return _in_groups(records, group, [*partners.groups, *records.groups])


def _in_groups(records: CommRecords, group: IntArray, of_job: Sequence[CommGroup]) -> CommRecords:
    """Return the records with the groups `group` (places in `of_job`); unused ones are dropped."""
    used, group = ranked(group)
    return replace(records, group=group, groups=tuple(of_job[number] for number in used.tolist()))


def _best_partners(records: CommRecords) -> Partners:
    """Return the inferred partners with which most unnamed kernels end together.

    Three states of the clocks are tried: as recorded, as aligned on collectives, and unknown.
    """
    recorded = best = _matched(records)
    unnamed = np.flatnonzero(_are_unnamed(records))
    if not len(unnamed):
        return recorded
    aligned_ns = recorded.alignment.record_offset_ns
    as_recorded_ns = np.zeros_like(aligned_ns)
    most = _share_together(recorded, unnamed)
    clocks = ((as_recorded_ns, True), (aligned_ns, True), (aligned_ns, False))
    for offset_ns, is_known in clocks:
        # An inference by which nearly all end together is good enough. So is none, but known clocks
        # are tried before: if as many fit by an inference, it says more than none.
        is_inferred = best is not recorded
        if most >= _NEARLY and (is_inferred or not is_known):
            break
        candidate = _inferred(recorded, offset_ns, is_known)
        share = _share_together(candidate, unnamed)
        if share >= most:
            best, most = candidate, share
    return best


def _inferred(recorded: Partners, offset_ns: IntArray, is_known: bool) -> Partners:
    """Return partners inferred by clocks (as in `_with_teams`), `recorded` if there are none."""
    records = recorded.records
    with_peers = _with_peers(records, recorded.matches, offset_ns)
    # If messages get peers since they end together by these clocks, the clocks are right.
    likely_ns = recorded.alignment.record_offset_ns if with_peers is records else offset_ns
    with_teams = _with_teams(recorded, offset_ns, is_known, likely_ns)
    matched_teams = recorded
    if with_teams is not records:  # in the new groups, messages may have other peers
        matched_teams = _matched(with_teams)
        with_peers = _with_peers(with_teams, matched_teams.matches, offset_ns)
    return matched_teams if with_peers is with_teams else _matched(with_peers)


def _matched(records: CommRecords) -> Partners:
    matches = matched(records)
    return Partners(records, matches, aligned(records, matches))


def _are_unnamed(records: CommRecords) -> BoolArray:
    """Return which kernels are of a group that nothing names, or messages without a known peer."""
    named = [group.ranks is not None or group.size is not None for group in records.groups]
    is_named = np.array(named, dtype=np.bool_)
    messages = (records.is_pair | (records.kind == EXCHANGE)) & (records.peer < 0)
    return np.asarray(messages | ~is_named[records.group])


def _share_together(partners: Partners, rows: IntArray) -> float:
    """Return the share of some kernels that match and end together on aligned clocks."""
    records, matches, alignment = partners
    if not len(rows):
        return 1.0
    is_matched = matches.collective >= 0
    collective = matches.collective[is_matched]
    end = (records.end_ns - alignment.record_offset_ns)[is_matched]
    first, last = (find(collective, end, matches.count) for find in (group_least, group_most))
    # The last entry is for collective -1: a kernel without a match ends alone.
    is_near = np.append(last - first <= _NEAR_NS, False)
    return float(is_near[matches.collective[rows]].mean())


def _with_teams(
    recorded: Partners, offset_ns: IntArray, is_known: bool, likely_ns: IntArray
) -> CommRecords:
    """Return the records with each unnamed stream split into the groups of ranks that share it.

    `offset_ns` is the clock offset of each record if `is_known`; else any constant offset between
    two ranks is possible. By the offsets `likely_ns` it is judged whether teams end apart.
    """
    records = recorded.records
    group, of_job = records.group.copy(), list(records.groups)
    for code, rows in groups(records.group):
        members = [rows[own] for _, own in groups(records.place[rows])]
        # Two ranks are one team. Messages tell nothing: only the two ranks of one end together.
        is_splittable = 2 < len(members) <= _RANKS
        is_named = of_job[code].ranks is not None or of_job[code].size is not None
        if is_named or not is_splittable or records.is_pair[rows].any():
            continue
        # How far apart most ends of each two ranks are, in ns.
        distance = np.zeros((len(members), len(members)), dtype=np.int64)
        end = records.end_ns - offset_ns if is_known else records.end_ns
        for a, b in combinations(range(len(members)), 2):
            first, second = members[a][:_KERNELS], members[b][:_KERNELS]
            offset = 0 if is_known else most_alike(records, first, second, _CLOSE_NS)[1]
            distance[a, b] = distance[b, a] = _distance(end[first], end[second] + offset)
        teams = _teams(distance)
        if not _are_apart(recorded, rows, teams, likely_ns):
            continue
        for team in teams:
            of_team = [members[number] for number in team]
            ranks = tuple(records.ranks[records.place[own[0]]] for own in of_team)
            group[np.concatenate(of_team)] = len(of_job)
            of_job.append(CommGroup(of_job[code].name, ranks, len(ranks)))
    return records if len(of_job) == len(records.groups) else _in_groups(records, group, of_job)


def _distance(ends_ns: IntArray, others_ns: IntArray) -> int:
    """Return the distance within which most common ends have a counterpart; _FAR for few."""
    # Ends before the other rank's first one or after its last one can have no counterpart.
    low = max(ends_ns.min(), others_ns.min()) - _NEAR_NS
    high = min(ends_ns.max(), others_ns.max()) + _NEAR_NS
    first, second = (np.sort(ns[(ns >= low) & (ns <= high)]) for ns in (ends_ns, others_ns))
    if min(len(first), len(second)) < _LEAST:
        return _FAR
    distances = []
    for times, among in ((first, second), (second, first)):
        # A time of 17 among [5 10 20]: `after` is 2, the neighbours are 10 and 20, the nearest 3.
        after = np.searchsorted(among, times).clip(1, len(among) - 1)
        nearest = np.minimum(np.abs(times - among[after - 1]), np.abs(times - among[after]))
        distances.append(int(np.quantile(nearest, _NEARLY, method="lower")))
    return max(distances)


def _are_apart(
    recorded: Partners, of_group: IntArray, teams: Sequence[Sequence[int]], offset_ns: IntArray
) -> bool:
    """Return whether teams are separate groups: each collective ends at other times in each team.

    They are if their ends lie far apart, or differ by as much as the last starts in the teams do:
    in one group all ranks end together, however late some of them start. If few rows match, any
    teams are separate. `of_group` are the rows of the stream, `offset_ns` is per record.
    Team 1 starts last at 100 and ends at 150, team 2 at 130 and at 180. Ends differ by 30, but by 0
    if counted from the last starts: each team waits only for its own ranks.
    """
    records, matches, _ = recorded
    if not teams:
        return False
    ranks = sum(map(len, teams))
    rows = of_group[matches.collective[of_group] >= 0]
    if len(rows) < _LEAST * ranks:
        return True
    # All ranks take part in each matched collective: a table [collectives, ranks].
    rows = rows[np.lexsort((records.place[rows], matches.collective[rows]))].reshape(-1, ranks)
    # [teams, collectives]
    last_end, last_start = (
        np.array([ns[rows[:, team]].max(axis=1) for team in teams])
        for ns in (records.end_ns - offset_ns, records.start_ns - offset_ns)
    )
    # Per collective: how far the ends of teams lie apart, also if counted from their last starts.
    apart_ns = np.ptp(last_end, axis=0)
    apart_from_start_ns = np.ptp(last_end - last_start, axis=0)
    is_far = float(np.median(apart_ns)) > _NEAR_NS
    return is_far or bool(_LIKE * apart_from_start_ns.sum() < apart_ns.sum())


def _teams(distance: IntArray) -> list[list[int]]:
    """Return the smallest teams of ranks, all of one size, that are clearly apart; else no team.

    `distance` is by rank and rank. Ranks at a distance of up to `near` join one team; `near` grows
    until the teams are clear, or all ranks are in one. Ranks 0 and 1 are 2 us apart, ranks 2 and 3
    3 us, all others 90 us: at 2 us the teams are [0 1] [2] [3], at 3 us [0 1] [2 3], and clear.
    """
    team = np.arange(len(distance))  # the number of each rank's team
    for near in distinct(distance.ravel()).tolist():
        for rank, other in np.argwhere(distance == near).tolist():
            team[team == team[other]] = team[rank]  # the two teams become one
        same = team[:, None] == team  # by rank and rank
        sizes = same.sum(axis=1)  # of the team of each rank
        if same.all() or near > _NEAR_NS:
            break
        is_clear = distance[~same].min() > _CLEARLY * near
        if is_clear and sizes.min() == sizes.max() > 1:
            return [np.flatnonzero(team == number).tolist() for number in distinct(team)]
    return []


def _with_peers(records: CommRecords, matches: Matches, offset_ns: IntArray) -> CommRecords:
    """Return the records with inferred peers of sends, receives and exchanges that have none.

    `offset_ns` is the clock offset of each record. If nothing is inferred, `records` is returned.
    """
    peer = records.peer.copy()
    for code, of_group in groups(records.group):
        places = distinct(records.place[of_group])
        is_message = (records.is_pair | (records.kind == EXCHANGE))[of_group]
        rows = of_group[is_message & (peer[of_group] < 0)]
        if len(places) == 2 and records.groups[code].size == 2:
            rows = rows[records.is_pair[rows]]
            peer[rows] = places.sum() - records.place[rows]  # of places 3 and 5, 8 - 3 is 5
        # Messages that nearly all match need no inference.
        elif (matches.collective[rows] < 0).sum() > (1 - _NEARLY) * len(rows):
            peer[rows] = _peers(records, rows, records.end_ns - offset_ns)
    return records if (peer == records.peer).all() else replace(records, peer=peer)


def _peers(records: CommRecords, rows: IntArray, end: IntArray) -> IntArray:
    """Return the place of the rank that each message of `rows` is with, -1 for all if unclear.

    First, pairs of ranks are chosen, those with most messages between them first. Then each message
    gets the nearest partner in the chosen pairs. A rank whose messages nearly all have a partner
    takes part in no further pair: others that end at the same times just work in step with it.
    """
    place, ranks = records.place[rows], len(records.ranks)
    all_pairs = ~np.eye(ranks, dtype=np.bool_)
    partner = _nearest(records, rows, end, all_pairs)
    has_partner = partner >= 0
    # The number of messages between two ranks: a cell per lower and higher place. Those between
    # places 1 and 3 of 4 ranks are in cell 1 * 4 + 3 = 7, and divmod(7, 4) is (1, 3).
    sides = np.sort([place[has_partner], place[partner[has_partner]]], axis=0)
    messages = np.bincount(sides[0] * ranks + sides[1], minlength=ranks * ranks)
    most_first = np.argsort(-messages, kind="stable")[: np.count_nonzero(messages)]
    chosen_pairs = np.zeros_like(all_pairs)
    count = np.bincount(place, minlength=ranks)  # of messages, by rank
    without_partner = count.copy()
    rows_of_rank = dict(groups(place))
    for cell in most_first.tolist():
        pair = np.array(divmod(cell, ranks))
        lack_partners = without_partner[pair] > (1 - _NEARLY) * count[pair]
        if lack_partners.all():
            of_pair = rows[np.concatenate([rows_of_rank[rank] for rank in pair.tolist()])]
            with_partner = (_nearest(records, of_pair, end, all_pairs) >= 0).sum()
            without_partner[pair] -= with_partner // 2  # half of them are of each rank
            chosen_pairs[pair, pair[::-1]] = True  # in both directions
    partner = _nearest(records, rows, end, chosen_pairs)
    if (partner >= 0).sum() < _NEARLY * len(rows):
        return np.full(len(rows), -1)
    return np.where(partner >= 0, place[partner], -1)


def _nearest(records: CommRecords, rows: IntArray, end: IntArray, allowed: BoolArray) -> IntArray:
    """Return, per message of `rows`, the index in `rows` of its partner, -1 for none.

    Partners are messages whose ends are nearest to each other (`end` is of all records). They have
    one size, are between `allowed` ranks (rank by rank), and are send and receive or two exchanges.
    """
    direction_of_kind = np.array([_SIDE.get(kind, 0) for kind in range(len(KINDS))])
    direction = direction_of_kind[records.kind[rows]]  # 1 send, -1 receive, 0 exchange
    place, size = records.place[rows], records.elements[rows]
    order = np.argsort(end[rows], kind="stable")
    nearest = np.full(len(rows), -1)
    least_gap_ns = np.full(len(rows), _NEAR_NS)
    # In the order of ends, compare all messages with the next one, then with the next but one, ...
    for distance in range(1, min(2 * len(records.ranks), _RANKS, len(rows))):
        earlier, later = order[:-distance], order[distance:]
        gap_ns = end[rows[later]] - end[rows[earlier]]
        fits = allowed[place[earlier], place[later]] & (direction[earlier] == -direction[later])
        # Partners run at once: the later one has begun when the earlier one ends.
        fits &= (size[earlier] == size[later]) & (gap_ns <= records.dur_ns[rows[later]])
        for message, partner in ((earlier, later), (later, earlier)):
            is_nearer = fits & (gap_ns < least_gap_ns[message])
            nearest[message[is_nearer]] = partner[is_nearer]
            least_gap_ns[message[is_nearer]] = gap_ns[is_nearer]
    # nearest [1 0 1]: 0 and 1 are partners; 2 has none, since the nearest of 1 is 0.
    is_mutual = (nearest >= 0) & (nearest[nearest] == np.arange(len(rows)))
    return np.where(is_mutual, nearest, -1)
