"""Which group each kernel of communication is of: told by its words, else by its stream.

Groups that are called alike, and streams, are told apart by all ranks together. What a group is for
(dp, tp, pp, ep or cp) the words of its description tell, else those of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from traceflops.table.columns import ABSENT, IntArray
from traceflops.table.grouping import distinct, group_rows, groups, joint_codes, ranked

POINT_TO_POINT: Final = frozenset({"send", "recv", "send_recv"})
_ROLES: Final = (
    (None, "and"),
    ("dp", "expert data|edp|efsdp"),
    ("tp", "expert tensor|etp"),
    ("ep", "expert|experts|ep|moe"),
    ("dp", "data|dp|ddp|fsdp|hsdp|replicate|shard|batch|loss|zero"),
    ("pp", "pipeline|pipe|pp"),
    ("cp", "context|cp|dcp|pcp|sequence|sp|ulysses"),
    ("tp", "tensor|tp"),
)
"""Whole words of names and the role that they tell; the first that is found counts.

A group of two dimensions (TENSOR_AND_DATA_PARALLEL_GROUP) has no role.
"""
_OTHER: Final = "mesh dim default pg undefined group parallel model with global world size"
"""What else stands in names of groups."""
GROUP_WORDS: Final = frozenset(re.findall(r"[a-z]+", " ".join([_OTHER, *(w for _, w in _ROLES)])))
MOST_RANKS: Final = 1 << 31
"""Ranks that a group lists are numbers below this."""
_Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]


class CommGroup(Struct, frozen=True):
    """A group of ranks that communicate.

    `name` is the framework's, else that of the stream. `ranks` are as the trace lists them, None if
    it does not; `size` is None if it is not known. `role` is what the group is for (dp, tp, pp, ep
    or cp), None if that is not known.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int | None
    role: str | None = None


def role_in(text: str) -> str | None:
    """Return the role (dp, tp, pp, ep or cp) that a name or description tells, else None."""
    words = " ".join(re.findall(r"[a-z]+", text.lower()))
    return next((role for role, names in _ROLES if re.search(rf"\b(?:{names})\b", words)), None)


Runs = tuple[tuple[int, int, int], ...]
"""Numbers in their order, as arguments of `range`: 10,000 ranks in a row take as much room as 2."""
Words = tuple[str | None, Runs | str | None, str | None, int]
"""The name of a group, the ranks it lists, its description, and its size or ABSENT.

A list that is cut off is the text that is left of it.
"""
_NONE: Final = np.empty(0, dtype=np.int64)


class GroupFacts(Struct, frozen=True):
    """What the trace says about the group of each kernel; ABSENT numbers are unknown.

    `known` are the distinct words about groups, and `which` is the place in `known`, per kernel.
    `call` is a number that the kernels of one collective share. `other_side` is the number, inside
    the group, of the rank that a kernel sends to or receives from.
    """

    known: tuple[Words, ...]
    which: IntArray
    call: IntArray
    stream: IntArray
    other_side: IntArray

    def taken(self, rows: IntArray) -> GroupFacts:
        """Return the metadata of the chosen kernels."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    def groups(
        self, place: IntArray, ranks: Sequence[int]
    ) -> tuple[IntArray, tuple[CommGroup, ...]]:
        """Return the number of each kernel's group, and the groups by number.

        `place` is the place of each kernel's rank in `ranks`. A kernel of no named group belongs to
        the named group that its stream has, else to a group that is its stream.
        """
        # Words that differ only in the description are of one group.
        named_groups: dict[tuple[object, ...], int] = {}
        for name, listed, _, size in self.known:
            named_groups.setdefault((name, listed, size), len(named_groups))
        code_of = [named_groups[name, listed, size] for name, listed, _, size in self.known]
        named = np.array(code_of, dtype=np.int64)[self.which]
        sizes = np.array([size for *_, size in self.known], dtype=np.int64)[self.which]
        is_named = np.array([name is not None for name, *_ in self.known], dtype=np.bool_)
        named, first = group_rows((named, self._namesakes(named, sizes, place, len(ranks))))
        group = np.where(is_named[self.which], named, -1)
        group = np.where(group >= 0, group, of_streams(group, place, self.stream))
        # Number the groups in use: named ones by their code, streams after them.
        streams, stream = ranked(_same_streams(place, self.stream))
        used, number = ranked(np.where(group >= 0, group, len(first) + stream))
        groups_of_job = []
        for code, (_, rows) in zip(used.tolist(), groups(number), strict=True):
            if code >= len(first):
                name = f"stream {streams[code - len(first)]}"
                groups_of_job.append(CommGroup(name, None, None))
                continue
            name, listed, description, size = self.known[int(self.which[first[code]])]
            # Its ranks are the listed ones, else those seen if they are as many as the group has.
            seen = tuple(ranks[number] for number in distinct(place[rows]).tolist())
            members = tuple(in_runs(listed)) if isinstance(listed, tuple) else ()
            if not members and len(seen) == size:
                members = seen
            role = role_in(description or "") or role_in(name or "")
            group_size = size if size > 0 else None
            groups_of_job.append(CommGroup(name or "", members or None, group_size, role))
        return number, tuple(groups_of_job)

    def _namesakes(self, named: IntArray, sizes: IntArray, place: IntArray, ranks: int) -> IntArray:
        """Return a number per kernel that tells apart different groups with the same name.

        If more ranks use a name than its group has, several groups are called so. Ranks belong to
        the same one if they take part in the same calls.
        """
        namesake = np.zeros_like(named)
        for _, rows in groups(named):
            if 0 < sizes[rows[0]] < len(distinct(place[rows])):
                # Kernels without a call number connect no ranks: their rank stands for the call.
                call = self.call[rows]
                _, call = ranked(np.where(call == ABSENT, -1 - place[rows], call))
                namesake[rows] = connected(place[rows], call, ranks)[place[rows]]
        return namesake


_COLUMNS: Final = ("which", "call", "stream", "other_side")
NO_FACTS: Final = GroupFacts((), *[_NONE] * len(_COLUMNS))


def in_runs(runs: Runs) -> Iterator[int]:
    """Yield the numbers of runs."""
    return chain.from_iterable(range(*run) for run in runs)


def runs_in(text: str) -> Runs | str:
    """Return the ranks that a JSON list has as runs; a text that is no such list as it is."""
    try:
        ranks = msgspec.json.decode(text, type=list[_Rank])
    except msgspec.DecodeError:
        return text
    runs = []
    begin = 0
    while begin < len(ranks):
        step = ranks[begin + 1] - ranks[begin] if begin + 1 < len(ranks) else 1
        end = begin + 1
        while step and end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        step = step if end > begin + 1 else 1
        runs.append((ranks[begin], ranks[end - 1] + step, step))
        begin = end
    return tuple(runs)


def joined_facts(parts: Sequence[GroupFacts]) -> GroupFacts:
    """Return the group metadata of several recordings, concatenated."""
    place_of_words: dict[Words, int] = {}
    which = []
    for part in parts:
        codes = [place_of_words.setdefault(words, len(place_of_words)) for words in part.known]
        which.append(np.array(codes, dtype=np.int64)[part.which])
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS[1:]]
    return GroupFacts(tuple(place_of_words), np.concatenate(which), *columns)


def rank_labels(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks if all are different, else numbers from 0."""
    return tuple(ranks) if len(set(ranks)) == len(ranks) else tuple(range(len(ranks)))


def of_streams(codes: IntArray, place: IntArray, stream: IntArray) -> IntArray:
    """Return, per kernel, the only code that kernels on its rank's stream have, else -1."""
    of_stream = np.full_like(codes, -1)
    for _, rows in groups(joint_codes(place, stream)):
        used = distinct(codes[rows][codes[rows] >= 0])
        if len(used) == 1:
            of_stream[rows] = used[0]
    return of_stream


def _same_streams(place: IntArray, stream: IntArray) -> IntArray:
    """Return, per kernel, a stream number that means the same on all ranks.

    If all ranks use the same stream ids, these are it. Else the n-th stream that communicates on a
    rank gets the id of the n-th stream of the rank with most streams.
    """
    turns = [list(dict.fromkeys(stream[rows].tolist())) for _, rows in groups(place)]
    if len({frozenset(turn) for turn in turns}) <= 1:
        return stream
    longest = max(turns, key=len)
    same = np.full_like(stream, ABSENT)
    for (_, rows), turn in zip(groups(place), turns, strict=True):
        for number, own in zip(longest, turn, strict=False):
            same[rows[stream[rows] == own]] = number
    return same


def connected(place: IntArray, event: IntArray, count: int) -> IntArray:
    """Return, for each of `count` places, the lowest place that it is connected to.

    Each row says that a place takes part in an event. Places of the same event are connected, and
    so are places that share a third one.
    """
    label = np.arange(count)
    # Each event takes the lowest label of its places, then each place that of its events, until
    # nothing changes.
    while True:
        lowest = np.full(int(event.max(initial=-1)) + 1, count)
        np.minimum.at(lowest, event, label[place])
        new_label = label.copy()
        np.minimum.at(new_label, place, lowest[event])
        if (new_label == label).all():
            return label
        label = new_label


def peers(
    number: IntArray,
    group: IntArray,
    known: Sequence[CommGroup],
    place: IntArray,
    ranks: Sequence[int],
) -> IntArray:
    """Return the place of the rank that each message is to or from, -1 if that is not known.

    `number` is the peer's number inside its group, `group` the place of that group in `known`, and
    `place` the place of the message's own rank in `ranks`.
    """
    peer_of = np.full(len(number), -1, dtype=np.int64)
    place_of_rank = {rank: place for place, rank in enumerate(ranks)}
    for code, rows in groups(group):
        # A group without a list of ranks is taken for all ranks if its size allows that.
        may_be_all = known[code].size in (None, len(ranks))
        listed = known[code].ranks or (range(max(ranks) + 1) if may_be_all else ())
        used, which = ranked(number[rows])
        peers_of_used = [
            place_of_rank.get(listed[inside], -1) if 0 <= inside < len(listed) else -1
            for inside in used.tolist()
        ]
        peer = np.array(peers_of_used, dtype=np.int64)[which]
        peer[peer == place[rows]] = -1  # no rank sends to itself: the number means something else
        # In a group of two ranks, the peer is the other one.
        both = distinct(place[rows])
        is_pair = len(both) == 2 and known[code].size in (None, 2)
        peer_of[rows] = np.where((peer < 0) & is_pair, both.sum() - place[rows], peer)
    return peer_of
