"""The collectives of a trace: of its kernels, or of ranges that were projected on GPUs."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.ranks.collectives import kind_of
from traceflops.ranks.comm_groups import GroupFacts, Words, rank_labels
from traceflops.ranks.comm_records import KINDS, CommGroup, CommRecords, alone, comm_records
from traceflops.table.columns import ABSENT, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import group_least, group_rows
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

_COLLECTIVE: Final = re.compile(
    r"\bhlo_op=(all-(?:reduce|gather|to-all)|reduce-scatter|collective-broadcast)\b"
    r"|^(?:NCCL:nccl|nccl:_?)([A-Za-z_]+)$"
)
"""How XLA, NCCL and PyTorch name the range around a collective."""
_NO_NAME: Final[tuple[Words, ...]] = (("unknown", None, None, ABSENT),)
_NO_KIND: Final = len(KINDS)


def records_of(prepared: Prepared) -> CommRecords:
    """Return the collectives over everything recorded."""
    if not prepared.accounts:
        return _projected_records(prepared.trace)
    return comm_records(prepared.linked, prepared.accounts, prepared.windows)


def _innermost(kind: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, ...]:
    """Return index, kind (_NO_KIND for none), start and end of collectives and innermost ranges.

    Ranges of the same times count once, as a collective if one of them is.
    """
    # A group per start and end: groups are in the order of starts, of equal ones the longest first.
    # So a range that holds others is followed by one: [0, 9) [0, 4) [5, 8): holds_next [1 0 0].
    group, index = group_rows([start, -end])
    lowest_kind = group_least(group, np.where(kind < 0, _NO_KIND, kind), len(index))
    begin, stop = start[index], end[index]
    next_begins_inside = begin[1:] < stop[:-1]
    next_ends_inside = stop[1:] <= stop[:-1]
    holds_next = np.append(next_begins_inside & next_ends_inside, False)  # the last has no next
    kept = ~holds_next | (lowest_kind < _NO_KIND)
    return index[kept], lowest_kind[kept], begin[kept], stop[kept]


def _projected_records(trace: Trace) -> CommRecords:
    """Return the collectives of a trace that has ranges projected on GPUs instead of kernels.

    A range around one collective lasts as long as its kernel; all other innermost ranges are work.
    """
    marks = trace.marks
    rows = np.flatnonzero(is_one_of(marks["kind"], "gpu_annotation"))
    process = numbers(marks["process"])[rows]
    kinds = [-1] * (len(names(marks["name"])) + 1)  # the last entry is for code -1, without a name
    for code, label in enumerate(names(marks["name"])):
        if match := _COLLECTIVE.search(label):
            kinds[code] = kind_of(match[1] or match[2])
    kind = np.array(kinds)[codes(marks["name"])[rows]]
    start = numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    processes = np.unique(process).tolist()
    processes.sort(key=lambda number: (trace.ranks[number] or 0, number))
    ranks = [trace.ranks[number] for number in processes]
    # One rank per process, in order. The empty first part keeps the shape without any process.
    parts, alone_of_rank = [np.empty((6, 0), np.int64)], []
    for place, number in enumerate(processes):
        own = np.flatnonzero(process == number)
        index, kind_of_range, begin, stop = _innermost(kind[own], start[own], end[own])
        alone_of_rank.append(alone(begin, stop))
        is_work = kind_of_range == _NO_KIND
        busy = Intervals.of(begin[is_work], stop[is_work]).covered_before(stop)
        row = rows[own[index]]
        columns = (np.full_like(row, place), row, kind_of_range, begin, stop, busy)
        parts.append(np.stack(columns)[:, ~is_work])
    place, row, kind, start, end, busy = np.concatenate(parts, axis=1)
    unknown = np.full(len(row), ABSENT)
    return CommRecords(
        ranks=rank_labels([-1 if rank is None else rank for rank in ranks]),
        devices=(),
        groups=(CommGroup("unknown", None, None),),
        alone=tuple(alone_of_rank),
        place=place,
        row=row,
        kind=kind,
        group=np.zeros_like(row),
        peer=np.full(len(row), -1),
        sequence=unknown,
        elements=unknown,
        received=unknown,
        bytes=unknown,
        step=unknown,
        start_ns=start,
        end_ns=end,
        busy_ns=busy,
        told=GroupFacts(_NO_NAME, np.zeros_like(row), unknown, unknown, unknown),
    )
