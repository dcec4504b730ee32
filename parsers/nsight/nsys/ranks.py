"""Which rank of the job each process of a report is, and what does not tell it.

A process's place in a communicator of NCCL is its rank only where that communicator is the job's:
the groups of tensor or pipeline parallelism have communicators of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from traceflops.parsers.io import NoteTable
from traceflops.table import (
    ABSENT,
    RANK_UNKNOWN,
    Note,
    Trace,
    counted_note,
    distinct,
    numbers,
    rank_from_name,
    rank_unknown,
    with_column,
)
from traceflops.units import several

BY_COMMUNICATOR: Final = "ranks-by-communicator"
_FORMATS: Final = "nsys-"
_NOTES: Final = NoteTable(
    assumed={
        BY_COMMUNICATOR: (
            "Ranks are assumed from NCCL's largest communicator ({ranks}); nothing else names them."
        ),
        "rank-disputed": (
            "NCCL's largest communicator ({ranks}) gives rank {rank}, but the file name gives "
            "another. The file name counts; the communicator is taken for part of the job, whose "
            "world size is unknown."
        ),
    },
)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a process in a communicator: how many ranks that has, which one, its id."""

    ranks: int
    rank: int
    communicator: str | None = None


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of processes, by their keys, how many the job of each has, and what to say."""

    ranks: Mapping[int, int] = field(default_factory=dict)
    worlds: Mapping[int, int] = field(default_factory=dict)
    notes: Sequence[Note] = ()


def settled(
    workers: Sequence[int],
    told: Mapping[int, int],
    in_name: int | None,
    places: Mapping[int, RankPlace],
) -> Ranks:
    """Return the ranks of the processes that did work.

    What the report lists counts before the name of the file, and that before communicators.
    """
    workers = _named(workers)
    mine = {key: places[key] for key in workers if key in places}
    size = _size_of_job(list(mine.values()), len(workers))
    ranks = {key: told[key] for key in workers if key in told}
    notes: list[Note] = []
    if not ranks and in_name is not None and len(workers) == 1:
        ranks = {workers[0]: in_name}
        notes = [rank_from_name([in_name]), *_disputed(in_name, mine.get(workers[0]))]
    elif not ranks and size is not None:
        ranks = {key: place.rank for key, place in mine.items()}
        notes = [_NOTES.note(BY_COMMUNICATOR, len(ranks), ranks=several(size, "rank"))]
    agree = all(ranks.get(key) == place.rank for key, place in mine.items())
    worlds = dict.fromkeys(mine, size) if size is not None and agree else {}
    unknown = len(set(workers) - ranks.keys())
    if not notes and unknown and mine and not worlds:
        notes = [_unknown_note(unknown)]
    return Ranks(ranks, worlds, notes)


def _disputed(in_name: int, place: RankPlace | None) -> Iterator[Note]:
    """Say that the place in a communicator of as many ranks or more is another one."""
    if place is not None and place.rank != in_name < place.ranks:
        ranks = several(place.ranks, "rank")
        yield _NOTES.note("rank-disputed", 1, ranks=ranks, rank=place.rank)


def _named(workers: Sequence[int]) -> list[int]:
    """Return processes without the one that stands for work whose process is not known."""
    known = [key for key in workers if key != ABSENT]
    return known or list(workers)


def _size_of_job(places: Sequence[RankPlace], processes: int) -> int | None:
    """Return the size of a communicator that all may be in; None where there is no such one."""
    sizes = {place.ranks for place in places}
    ids = {place.communicator for place in places if place.communicator is not None}
    if len(sizes) != 1 or len(ids) > 1 or len({place.rank for place in places}) < len(places):
        return None
    size = sizes.pop()
    return size if size >= processes else None


def _unknown_note(unknown: int) -> Note:
    reason = " (NCCL's communicators cover only parts of the job)"
    return counted_note("missing", RANK_UNKNOWN, rank_unknown(reason), unknown)


def without_clashes(traces: Sequence[Trace]) -> list[Trace]:
    """Return reports of one job, without the ranks that communicators of parts of it gave.

    That they are of parts shows where two reports have the same rank, or there are more processes
    than ranks.
    """
    mine = [trace for trace in traces if trace.source.format.startswith(_FORMATS)]
    ranks = Counter(rank for trace in mine for rank in trace.ranks if rank is not None)
    processes = sum(_workers(trace) for trace in mine)
    clash = len(mine) > 1 and any(count > 1 for count in ranks.values())
    highest = max(ranks, default=0)
    kept = []
    for trace in traces:
        if not trace.source.format.startswith(_FORMATS):
            kept.append(trace)
            continue
        sizes = [size for size in trace.processes["world_size"].to_pylist() if size is not None]
        small = bool(sizes) and (min(sizes) < processes or min(sizes) <= highest)
        by_communicator = any(note.code == BY_COMMUNICATOR for note in trace.notes)
        one = _without(trace, "world_size") if small or (clash and by_communicator) else trace
        if by_communicator and (small or clash):
            unknown = _unknown_note(_workers(trace))
            notes = (
                replace(unknown, file=note.file) if note.code == BY_COMMUNICATOR else note
                for note in trace.notes
            )
            one = replace(_without(one, "rank"), notes=tuple(notes))
        kept.append(one)
    return kept


def _workers(trace: Trace) -> int:
    return len(distinct(numbers(trace.activities["process"])))


def _without(trace: Trace, column: str) -> Trace:
    """Return a trace whose processes do not say something."""
    table = trace.processes
    unknown = pa.nulls(len(table), table.schema.field(column).type)
    changed = with_column(table, column, unknown)
    return replace(trace, tables={**trace.tables, "processes": changed})
