"""Which group each kernel of communication is of: told by its words, else by its stream.

Groups that are called alike, and streams, are told apart by all ranks together. What a group is for
(dp, tp, pp, ep or cp) the words of its description tell, else those of its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
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


class CommGroup(Struct, frozen=True):
    """Who communicates: `ranks` as the trace lists them, None where it does not.

    `size` is None where it is not known. `name` is the framework's, or the stream; `role` is what
    the group is for (dp, tp, pp, ep or cp), None where that is not known.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int | None
    role: str | None = None


def role_in(text: str) -> str | None:
    """Return the role that a name or description tells, None if it tells none."""
    words = " ".join(re.findall(r"[a-z]+", text.lower()))
    return next((role for role, told in _ROLES if re.search(rf"\b(?:{told})\b", words)), None)


Words = tuple[str | None, str | None, str | None, int]
"""The name of a group, the ranks it lists, its description, and its size or ABSENT."""
_NONE: Final = np.empty(0, dtype=np.int64)


class GroupFacts(Struct, frozen=True):
    """Group metadata of kernels: `which` indexes `known`, per kernel.

    `call` is the same for the kernels of one collective. `other_side` is the number in its group of
    the rank that a kernel sends to or receives from. Numbers that are absent are ABSENT.
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
        """Return the group of each kernel, and the groups; `ranks` are those of the places."""
        called: dict[tuple[object, ...], int] = {}
        for name, listed, _, many in self.known:
            called.setdefault((name, listed, many), len(called))
        code = [called[name, listed, many] for name, listed, _, many in self.known]
        named = np.array(code, dtype=np.int64)[self.which]
        size = np.array([many for *_, many in self.known], dtype=np.int64)[self.which]
        is_named = np.array([name is not None for name, *_ in self.known], dtype=np.bool_)
        # Groups may be called alike on different ranks. More ranks than a group has are of
        # several: of one are those that have calls in common.
        apart = np.zeros_like(named)
        for _, rows in groups(named):
            if 0 < size[rows[0]] < len(distinct(place[rows])):
                # Kernels without a call have none in common with other ranks.
                _, call = ranked(
                    np.where(self.call[rows] == ABSENT, -1 - place[rows], self.call[rows])
                )
                apart[rows] = connected(place[rows], call, len(ranks))[place[rows]]
        named, first = group_rows((named, apart))
        group = np.where(is_named[self.which], named, -1)
        group = np.where(group >= 0, group, of_streams(group, place, self.stream))
        streams, stream = ranked(_same_streams(place, self.stream))
        used, number = ranked(np.where(group >= 0, group, len(first) + stream))
        groups_of_job = []
        for group_code, places in zip(
            used.tolist(), places_of(number, place, len(used)), strict=True
        ):
            if group_code >= len(first):
                stream_id = streams[group_code - len(first)]
                groups_of_job.append(CommGroup(f"stream {stream_id}", None, None))
                continue
            name, listed, description, many = self.known[int(self.which[first[group_code]])]
            recorded = tuple(ranks[place] for place in places) if len(places) == many else None
            role = role_in(description or "") or role_in(name or "")
            try:
                members = msgspec.json.decode(listed or "", type=tuple[int, ...]) or recorded
            except msgspec.DecodeError:  # none are listed, or not all
                members = recorded
            groups_of_job.append(CommGroup(name or "", members, many if many > 0 else None, role))
        return number, tuple(groups_of_job)


_COLUMNS: Final = ("which", "call", "stream", "other_side")
NO_FACTS: Final = GroupFacts((), *[_NONE] * len(_COLUMNS))


def joined_facts(parts: Sequence[GroupFacts]) -> GroupFacts:
    """Return the group metadata of several recordings, concatenated."""
    known: dict[Words, int] = {}
    which = []
    for part in parts:
        codes = [known.setdefault(words, len(known)) for words in part.known]
        which.append(np.array(codes, dtype=np.int64)[part.which])
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS[1:]]
    return GroupFacts(tuple(known), np.concatenate(which), *columns)


def rank_labels(ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks, or the numbers of the devices where these do not tell them apart."""
    return tuple(ranks) if len(set(ranks)) == len(ranks) else tuple(range(len(ranks)))


def of_streams(codes: IntArray, place: IntArray, stream: IntArray) -> IntArray:
    """Return, per kernel, the only code on its stream; -1 for none or several."""
    of_stream = np.full_like(codes, -1)
    for _, rows in groups(joint_codes(place, stream)):
        used = np.unique(codes[rows][codes[rows] >= 0])
        if len(used) == 1:
            of_stream[rows] = used[0]
    return of_stream


def _same_streams(place: IntArray, stream: IntArray) -> IntArray:
    """Return a number per stream that is the same for the streams of one group on all ranks.

    That is the stream's own where all ranks have the same; else that of the stream of the first
    rank that began communicating as early in turn.
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
    """Return, for each of `count` places, the first one it is connected with, directly or not.

    Places are connected by an event (a number, per row) that both have.
    """
    label = np.arange(count)
    while True:
        lowest = np.full(int(event.max(initial=-1)) + 1, count)
        np.minimum.at(lowest, event, label[place])
        new = label.copy()
        np.minimum.at(new, place, lowest[event])
        if (new == label).all():
            return label
        label = new


def places_of(number: IntArray, place: IntArray, count: int) -> list[list[int]]:
    """Return, per group, the places of its ranks."""
    places: list[list[int]] = [[] for _ in range(count)]
    many = int(place.max(initial=0)) + 1
    for pair in distinct(number * many + place).tolist():
        places[pair // many].append(pair % many)
    return places


def peers(
    number: IntArray,
    group: IntArray,
    known: Sequence[CommGroup],
    place: IntArray,
    ranks: Sequence[int],
) -> IntArray:
    """Return the place of the rank with a number in its group, -1 where that is not known."""
    peer_of = np.full(len(number), -1, dtype=np.int64)
    place_of = {rank: place for place, rank in enumerate(ranks)}
    for code, rows in groups(group):
        # A group that lists none is taken for all ranks where it is as large.
        is_all = known[code].size in (None, len(ranks))
        listed = known[code].ranks or (range(max(ranks) + 1) if is_all else ())
        members = np.array([*(place_of.get(rank, -1) for rank in listed), -1], dtype=np.int64)
        inside = (number[rows] >= 0) & (number[rows] < len(members) - 1)
        peer = members[np.where(inside, number[rows], -1)]
        peer[peer == place[rows]] = -1
        both = np.unique(place[rows])
        is_pair = len(both) == 2 and known[code].size in (None, 2)
        peer_of[rows] = np.where((peer < 0) & is_pair, both.sum() - place[rows], peer)
    return peer_of
