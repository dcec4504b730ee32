"""Who communicates with whom where nothing names it: ranks whose kernels end together do.

Of a stream that several groups share, ranks of which nearly all ends differ alike are one group.
Sends and receives are between the two ranks that end at the same time, by aligned clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceflops.ranks.clocks import Alignment
from traceflops.ranks.comm_records import EXCHANGE, KINDS, RECV, SEND, CommRecords, with_roles_of
from traceflops.ranks.group_roles import CommGroup
from traceflops.ranks.matching import Matches, matched, most_alike
from traceflops.table import BoolArray, IntArray, groups, ranked

_CLOSE_NS: Final = 5_000
"""Ends of one collective lie closer together than that."""
_NEAR_NS: Final = 50_000
"""Ends of a send and its receive do."""
_NEARLY: Final = 0.9
"""So many of the kernels must fit."""
_RANKS: Final = 32
_KERNELS: Final = 200
"""So many ranks and kernels of each are compared at most."""
_SELDOM: Final = 4
"""Two ranks with this many times fewer messages than either has with another have none."""
_FAR: Final = int(np.iinfo(np.int64).max)
_SIDE: Final = {SEND: 1, RECV: -1}


def with_partners(records: CommRecords, matches: Matches, alignment: Alignment) -> CommRecords:
    """Return the records with the groups and peers that only their ends tell.

    Where messages contradict the clocks that other collectives tell, these are taken as recorded.
    """
    end = records.end_ns - alignment.record_offset_ns
    teams = _with_teams(records, matches, end)
    found = _with_peers(teams, matches, end)
    sent = matches if found is records else matched(found)
    messages = (found.is_pair | (found.kind == EXCHANGE)) & (sent.collective >= 0)
    rows = np.flatnonzero(messages)
    if _end_together(sent, end, rows) or not _end_together(sent, records.end_ns, rows):
        return found
    teams = _with_teams(teams, matches, records.end_ns, is_one_clock=True)
    return _with_peers(teams, matches, records.end_ns)


def _with_teams(
    records: CommRecords, matches: Matches, end: IntArray, *, is_one_clock: bool = False
) -> CommRecords:
    """Return the records, those of a stream that several groups share in these groups.

    Recordings of one clock tell more: then ends must also lie near each other.
    """
    group, known = records.group.copy(), list(records.groups)
    for code, mine in groups(records.group):
        members = [mine[at] for _, at in groups(records.place[mine])]
        is_told = known[code].ranks is not None or known[code].size is not None
        if is_told or not 2 < len(members) <= _RANKS or _end_together(matches, end, mine):
            continue
        for team in _teams(records, members, is_one_clock):
            places = records.place[[rows[0] for rows in team]].tolist()
            ranks = tuple(records.ranks[place] for place in places)
            group[np.concatenate(team)] = len(known)
            known.append(CommGroup(known[code].name, ranks, len(ranks)))
    if len(known) == len(records.groups):
        return records
    used, group = ranked(group)
    return replace(
        records,
        group=group,
        groups=with_roles_of(records.kind, group, [known[at] for at in used.tolist()]),
    )


def _end_together(matches: Matches, end: IntArray, mine: IntArray) -> bool:
    """Return whether nearly all of some kernels match and end together."""
    rows = mine[matches.collective[mine] >= 0]
    rows = rows[np.argsort(matches.collective[rows], kind="stable")]
    if len(rows) < _NEARLY * len(mine):
        return False
    first = np.flatnonzero(np.diff(matches.collective[rows], prepend=-1))
    if not len(rows):
        return True
    apart = np.maximum.reduceat(end[rows], first) - np.minimum.reduceat(end[rows], first)
    return bool((apart <= _NEAR_NS).mean() >= _NEARLY)


def _teams(
    records: CommRecords, members: Sequence[IntArray], is_one_clock: bool
) -> list[list[IntArray]]:
    """Return the kernels of the ranks of each group among some; none where it is not clear."""
    far_ns = _NEAR_NS if is_one_clock else _FAR
    for near_ns in (_CLOSE_NS, _NEAR_NS)[: 1 + is_one_clock]:
        left, teams = list(range(len(members))), []
        while left:
            mine = members[left[0]]
            team = [at for at in left if _end_alike(records, mine, members[at], near_ns, far_ns)]
            teams.append(team)
            left = [at for at in left if at not in team]
        sizes = {len(team) for team in teams}
        if len(sizes) == 1 and 1 < min(sizes) < len(members):
            return [[members[at] for at in team] for team in teams]
    return []


def _end_alike(
    records: CommRecords, one: IntArray, other: IntArray, near_ns: int, far_ns: int
) -> bool:
    """Return whether nearly all ends of two ranks differ by the same, which is not too far."""
    one, other = one[:_KERNELS], other[:_KERNELS]
    _, alike, best = most_alike(records, one, other, near_ns)
    count, offset = alike[best]
    return count >= _NEARLY * max(len(one), len(other)) and abs(offset) <= far_ns


def _with_peers(records: CommRecords, matches: Matches, end: IntArray) -> CommRecords:
    """Return the records with the peers of messages between pairs among more ranks."""
    peer = records.peer.copy()
    for code, mine in groups(records.group):
        places = np.unique(records.place[mine])
        message = (records.is_pair | (records.kind == EXCHANGE))[mine]
        rows = mine[message & (peer[mine] < 0)]
        if len(places) == 2 and records.groups[code].size == 2:
            rows = rows[records.is_pair[rows]]
            peer[rows] = places.sum() - records.place[rows]
        elif len(rows) and not _end_together(matches, end, rows):
            known = (_peers(records, rows, ends) for ends in (end, records.end_ns))
            peer[rows] = next((one for one in known if (one >= 0).any()), -1)
    return records if (peer == records.peer).all() else replace(records, peer=peer)


def _peers(records: CommRecords, rows: IntArray, end: IntArray) -> IntArray:
    """Return the place of the rank that each of some messages is with, -1 for all if unclear."""
    place, ranks = records.place[rows], len(records.ranks)
    allowed = ~np.eye(ranks, dtype=np.bool_)
    for _ in range(2):
        other = _nearest(records, rows, end, allowed)
        found = np.flatnonzero(other >= 0)
        often = np.bincount(place[found] * ranks + place[other[found]], minlength=ranks * ranks)
        often = often.reshape(ranks, ranks)
        most = often.max(axis=1)
        allowed = (often > 0) & (_SELDOM * often >= np.minimum(most[:, None], most))
    if len(found) < _NEARLY * len(rows):
        return np.full(len(rows), -1)
    return np.where(other >= 0, place[other], -1)


def _nearest(records: CommRecords, rows: IntArray, end: IntArray, allowed: BoolArray) -> IntArray:
    """Return which of some messages each one ends nearest to, where both do; -1 for none."""
    place, side = records.place[rows], np.array([_SIDE.get(k, 0) for k in range(len(KINDS))])
    sent, size = side[records.kind[rows]], records.elements[rows]
    order = np.argsort(end[rows], kind="stable")
    nearest, gap = np.full(len(rows), -1), np.full(len(rows), _NEAR_NS)
    for step in range(1, min(2 * len(records.ranks), _RANKS, len(rows))):
        one, other = order[:-step], order[step:]
        apart = end[rows[other]] - end[rows[one]]
        fits = allowed[place[one], place[other]] & (sent[one] == -sent[other])
        fits &= (size[one] == size[other]) & (apart <= records.dur_ns[rows[other]])
        for mine, its in ((one, other), (other, one)):
            better = fits & (apart < gap[mine])
            nearest[mine[better]], gap[mine[better]] = its[better], apart[better]
    mutual = (nearest >= 0) & (nearest[nearest] == np.arange(len(rows)))
    return np.where(mutual, nearest, -1)
