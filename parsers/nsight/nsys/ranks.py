"""Which rank of the job each process of a report is, and what does not tell it.

A process's place in a communicator of NCCL is its rank only where that communicator is the job's:
the groups of tensor or pipeline parallelism have communicators of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from traceflops.parsers.io.notes import NoteTable
from traceflops.table.columns import ABSENT, numbers, with_column
from traceflops.table.grouping import distinct
from traceflops.table.trace import (
    RANK_UNKNOWN,
    Note,
    Trace,
    counted_note,
    rank_from_name,
    rank_unknown,
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
    """The ranks of processes and the world sizes of their jobs, by key, and notes on these."""

    ranks: Mapping[int, int] = field(default_factory=dict)
    worlds: Mapping[int, int] = field(default_factory=dict)
    notes: Sequence[Note] = ()


def settled(
    workers: Sequence[int],
    listed: Mapping[int, int],
    in_name: int | None,
    places: Mapping[int, RankPlace],
) -> Ranks:
    """Return the ranks of the processes that did work, the keys `workers`.

    Ranks that the report lists count before that in the name of the file, and that before `places`
    in communicators.
    """
    # ABSENT stands for work whose process is unknown.
    workers = [key for key in workers if key != ABSENT] or list(workers)
    own_places = {key: places[key] for key in workers if key in places}
    # The job's communicator is one that all may be in.
    size = None
    sizes = {place.ranks for place in own_places.values()}
    ids = {place.communicator for place in own_places.values()} - {None}
    are_apart = len({place.rank for place in own_places.values()}) == len(own_places)
    if len(sizes) == 1 and len(ids) < 2 and are_apart and min(sizes) >= len(workers):
        size = min(sizes)
    ranks = {key: listed[key] for key in workers if key in listed}
    notes: list[Note] = []
    if not ranks and in_name is not None and len(workers) == 1:
        ranks = {workers[0]: in_name}
        notes = [rank_from_name([in_name])]
        place = own_places.get(workers[0])
        if place is not None and place.rank != in_name < place.ranks:
            in_words = several(place.ranks, "rank")
            notes.append(_NOTES.note("rank-disputed", 1, ranks=in_words, rank=place.rank))
    elif not ranks and size is not None:
        ranks = {key: place.rank for key, place in own_places.items()}
        notes = [_NOTES.note(BY_COMMUNICATOR, len(ranks), ranks=several(size, "rank"))]
    agree = all(ranks.get(key) == place.rank for key, place in own_places.items())
    worlds = dict.fromkeys(own_places, size) if size is not None and agree else {}
    unknown = len(set(workers) - ranks.keys())
    if not notes and unknown and own_places and not worlds:
        notes = [_unknown_note(unknown)]
    return Ranks(ranks, worlds, notes)


def _unknown_note(unknown: int) -> Note:
    reason = " (NCCL's communicators cover only parts of the job)"
    return counted_note("missing", RANK_UNKNOWN, rank_unknown(reason), unknown)


def without_clashes(traces: Sequence[Trace]) -> list[Trace]:
    """Return reports of one job, without the ranks that communicators of parts of it gave.

    A communicator is of a part where two reports have the same rank, or there are more processes
    than ranks.
    """
    reports = [trace for trace in traces if trace.source.format.startswith(_FORMATS)]
    ranks = Counter(rank for trace in reports for rank in trace.ranks if rank is not None)
    processes = sum(map(_worker_count, reports))
    clash = len(reports) > 1 and any(count > 1 for count in ranks.values())
    highest = max(ranks, default=0)
    kept = []
    for trace in traces:
        if not trace.source.format.startswith(_FORMATS):
            kept.append(trace)
            continue
        sizes = [size for size in trace.processes["world_size"].to_pylist() if size is not None]
        is_small = bool(sizes) and (min(sizes) < processes or min(sizes) <= highest)
        by_communicator = any(note.code == BY_COMMUNICATOR for note in trace.notes)
        report = trace
        if is_small or (clash and by_communicator):
            report = _without(report, "world_size")
        if by_communicator and (is_small or clash):
            unknown = _unknown_note(_worker_count(trace))
            notes = (
                replace(unknown, file=note.file) if note.code == BY_COMMUNICATOR else note
                for note in trace.notes
            )
            report = replace(_without(report, "rank"), notes=tuple(notes))
        kept.append(report)
    return kept


def _worker_count(trace: Trace) -> int:
    return len(distinct(numbers(trace.activities["process"])))


def _without(trace: Trace, column: str) -> Trace:
    """Return a trace in which a column of the processes is unknown."""
    table = trace.processes
    unknown = pa.nulls(len(table), table.schema.field(column).type)
    changed = with_column(table, column, unknown)
    return replace(trace, tables={**trace.tables, "processes": changed})
