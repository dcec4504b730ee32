"""Which group each kernel of communication is of: by the recorded metadata, else by its stream.

Groups of one name, and streams, are told apart by all ranks together. The role of a group (what it
is for: dp, tp, pp, ep or cp) follows from words in its description, else in its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
"""The role of a group by whole words in its name; the first role that is found counts.

A group of two dimensions (TENSOR_AND_DATA_PARALLEL_GROUP) has no role.
"""
_OTHER: Final = "mesh dim default pg undefined group parallel model with global world size"
"""What else stands in names of groups."""
GROUP_WORDS: Final = frozenset(re.findall(r"[a-z]+", " ".join([_OTHER, *(w for _, w in _ROLES)])))
MOST_RANKS: Final = 1 << 31
"""Ranks that a group lists are numbers below this."""
_Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Runs = tuple[tuple[int, int, int], ...]
"""Numbers in their order, as arguments of `range`: 10,000 ranks in a row take as much room as 2."""
Words = tuple[str | None, Runs | str | None, str | None, int]
"""What is recorded of a group: name, listed ranks (text if cut), description, size or ABSENT."""


class CommGroup(Struct, frozen=True):
    """A group of ranks that communicate.

    `name` is the framework's, else that of the stream. `ranks` are the members that the trace
    lists. `ranks`, `size` and `role` (dp, tp, pp, ep or cp) are None if unknown.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int | None
    role: str | None = None


def role_in(text: str) -> str | None:
    """Return the role (dp, tp, pp, ep or cp) that the words of a text name, else None."""
    words = " ".join(re.findall(r"[a-z]+", text.lower()))
    return next((role for role, names in _ROLES if re.search(rf"\b(?:{names})\b", words)), None)


class GroupFacts(Struct, frozen=True):
    """What the trace says about the group of each kernel; ABSENT numbers are unknown.

    `known` is the distinct metadata, and `which` the index in `known`, per kernel. `call` is a
    number that the kernels of one collective share. `other_side` is the number, inside the group,
    of the rank that a kernel sends to or receives from.
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

        `place` is the place of each kernel's rank in `ranks`. A kernel without a named group is of
        the only named group on its stream, else of a group of all such kernels on the stream.
        """
        # Metadata that differs only in the description is of one group: it gets one code.
        codes: dict[tuple[object, ...], int] = {}
        keys = [(name, listed, size) for name, listed, _, size in self.known]
        code_of = [codes.setdefault(key, len(codes)) for key in keys]
        code = np.array(code_of, dtype=np.int64)[self.which]
        sizes = np.array([size for *_, size in self.known], dtype=np.int64)[self.which]
        is_named = np.array([name is not None for name, *_ in self.known], dtype=np.bool_)
        named, first_kernel = group_rows((code, self._namesakes(code, sizes, place, len(ranks))))
        group = np.where(is_named[self.which], named, -1)
        group = np.where(group >= 0, group, of_streams(group, place, self.stream))
        # Kernels without any named group have that of their stream, numbered after the named ones.
        streams, stream = ranked(_same_streams(place, self.stream))
        named_count = len(first_kernel)
        # Only the groups in use are numbered, from 0. Group [5 2 5]: used [2 5], number [1 0 1].
        used, number = ranked(np.where(group >= 0, group, named_count + stream))
        groups_of_job = []
        for old_number, (_, rows) in zip(used.tolist(), groups(number), strict=True):
            if old_number >= named_count:
                name = f"stream {streams[old_number - named_count]}"
                groups_of_job.append(CommGroup(name, None, None))
                continue
            name, listed, description, size = self.known[self.which[first_kernel[old_number]]]
            runs = listed if isinstance(listed, tuple) else ()
            members = tuple(chain.from_iterable(range(*run) for run in runs))
            recorded = tuple(ranks[number] for number in distinct(place[rows]).tolist())
            if not members and len(recorded) == size:  # without a list, if no rank is missing
                members = recorded
            role = role_in(description or "") or role_in(name or "")
            known_size = size if size > 0 else None
            groups_of_job.append(CommGroup(name or "", members or None, known_size, role))
        return number, tuple(groups_of_job)

    def _namesakes(self, named: IntArray, sizes: IntArray, place: IntArray, ranks: int) -> IntArray:
        """Return a number per kernel that tells apart different groups with the same name.

        `named` is a number per kernel for the name of its group, `sizes` the size of its group.
        Ranks 0 to 3 use the name "tp", of size 2: several groups have this name. Ranks 0 and 1 take
        part in the same calls, and so do 2 and 3: their groups have the numbers 0 and 2, that of
        the lowest rank. If no more ranks than its size use a name, its number is 0.
        """
        namesake = np.zeros_like(named)
        for _, rows in groups(named):
            if 0 < sizes[rows[0]] < len(distinct(place[rows])):
                # A kernel without a call number gets one that only kernels of its own rank have.
                call = self.call[rows]
                _, call = ranked(np.where(call == ABSENT, -1 - place[rows], call))
                namesake[rows] = connected(place[rows], call, ranks)[place[rows]]
        return namesake


_COLUMNS: Final = ("which", "call", "stream", "other_side")
NO_FACTS: Final = GroupFacts((), *[np.empty(0, dtype=np.int64)] * len(_COLUMNS))


def runs_in(text: str) -> Runs | str:
    """Return the ranks in a JSON list as runs; return a text that is no such list unchanged.

    A run is (begin, stop, step), as in `range`: [0, 2, 4, 9] becomes (0, 6, 2), (9, 10, 1).
    """
    try:
        ranks = msgspec.json.decode(text, type=list[_Rank])
    except msgspec.DecodeError:
        return text
    runs = []
    begin = 0
    while begin < len(ranks):
        end = begin + 1
        step = ranks[end] - ranks[begin] if end < len(ranks) else 1
        step = step or 1  # a rank that is listed twice: a run by itself
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
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
    """Return, per kernel, the only code on its rank's stream ([3 -1 3]: 3), else -1 ([3 -1 4])."""
    of_stream = np.full_like(codes, -1)
    for _, rows in groups(joint_codes(place, stream)):
        used = distinct(codes[rows][codes[rows] >= 0])
        if len(used) == 1:
            of_stream[rows] = used[0]
    return of_stream


def _same_streams(place: IntArray, stream: IntArray) -> IntArray:
    """Return, per kernel, a stream number that means the same on all ranks.

    If all ranks use the same stream ids, these are returned. Else the n-th stream that communicates
    on a rank gets the id of the n-th stream of the rank with most streams.
    """
    rows_by_rank = [rows for _, rows in groups(place)]
    # Each rank's streams, in the order in which they first communicate: [[7, 20], [13]].
    streams_by_rank = [list(dict.fromkeys(stream[rows].tolist())) for rows in rows_by_rank]
    if len({frozenset(streams) for streams in streams_by_rank}) <= 1:
        return stream
    most_streams = max(streams_by_rank, key=len)
    common = np.full_like(stream, ABSENT)
    for rows, streams in zip(rows_by_rank, streams_by_rank, strict=True):
        for own, number in zip(streams, most_streams, strict=False):
            common[rows[stream[rows] == own]] = number  # in the example, 13 becomes 7
    return common


def connected(place: IntArray, event: IntArray, count: int) -> IntArray:
    """Return, for each of `count` places, the lowest place that it is connected to.

    Each row says that a place takes part in an event. Places of the same event are connected, and
    so are places that share a third one.
    """
    label = np.arange(count)
    # Each event takes the lowest label of its places, each place that of its events, until all fit.
    # Event 0 of places 1 and 2, event 1 of 2 and 3: labels [0 1 2 3], [0 1 1 2], then [0 1 1 1].
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
    """Return the place of the rank that each message is to or from, its peer, -1 if unknown.

    Per message, `number` is that of the peer among the members of their group, `group` the place of
    the group in `known`, and `place` the place of the message's own rank in `ranks`.
    """
    peer_of = np.full(len(number), -1, dtype=np.int64)
    place_of_rank = {rank: place for place, rank in enumerate(ranks)}
    for code, rows in groups(group):
        # A group without a list of ranks is taken for all ranks if its size allows that.
        members: Sequence[int] = known[code].ranks or ()
        if not members and known[code].size in (None, len(ranks)):
            members = range(max(ranks) + 1)
        # Place of the peer by number: each number in use is looked up once, then spread to rows.
        used, which = ranked(number[rows])
        place_of_used = np.full(len(used), -1, dtype=np.int64)
        for index, member in enumerate(used.tolist()):
            if 0 <= member < len(members):
                place_of_used[index] = place_of_rank.get(members[member], -1)
        peer = place_of_used[which]
        peer[peer == place[rows]] = -1  # no rank sends to itself: the number means something else
        # In a group of two ranks, the peer is the other one: of places 3 and 5, 8 - 3 is 5.
        both = distinct(place[rows])
        if len(both) == 2 and known[code].size in (None, 2):
            peer = np.where(peer < 0, both.sum() - place[rows], peer)
        peer_of[rows] = peer
    return peer_of
