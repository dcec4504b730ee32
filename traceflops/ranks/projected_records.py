"""Collectives of a trace that has ranges projected on GPUs instead of kernels.

A range around one collective lasts as long as its kernel; what innermost ranges span is work.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceflops.ranks.collectives import kind_of
from traceflops.ranks.comm_groups import GroupFacts, Words, rank_labels
from traceflops.ranks.comm_records import (
    KINDS,
    CommGroup,
    CommRecords,
    alone,
)
from traceflops.table.columns import ABSENT, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct, group_rows
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals

_COLLECTIVE: Final = re.compile(
    r"\bhlo_op=(all-(?:reduce|gather|to-all)|reduce-scatter|collective-broadcast)\b"
    r"|^(?:NCCL:nccl|nccl:_?)([A-Za-z_]+)$"
)
"""How XLA, NCCL and PyTorch name the range around a collective."""
_NO_NAME: Final[tuple[Words, ...]] = (("unknown", None, None, ABSENT),)


def projected_records(trace: Trace) -> CommRecords:
    """Return the collectives of all processes that have projected ranges."""
    marks = trace.marks
    rows = np.flatnonzero(is_one_of(marks["kind"], "gpu_annotation"))
    process = numbers(marks["process"])[rows]
    matches = [_COLLECTIVE.search(label) for label in names(marks["name"])]
    kinds = np.array([*(kind_of(match[1] or match[2]) if match else -1 for match in matches), -1])
    kind, start = kinds[codes(marks["name"])[rows]], numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    processes = sorted(distinct(process).tolist(), key=lambda one: (trace.ranks[one] or 0, one))
    ranks = [trace.ranks[number] for number in processes]
    parts, spans = [np.empty((6, 0), np.int64)], []
    for place, number in enumerate(processes):
        mine = np.flatnonzero(process == number)
        row, known, begun, ended = _innermost(rows[mine], kind[mine], start[mine], end[mine])
        spans.append(alone(begun, ended))
        busy = Intervals.of(begun[known < 0], ended[known < 0]).covered_before(ended)
        columns = (np.full_like(row, place), row, known, begun, ended, busy)
        parts.append(np.stack(columns)[:, known >= 0])
    place, row, kind, start, end, busy = np.concatenate(parts, axis=1)
    unknown = np.full(len(row), ABSENT)
    return CommRecords(
        ranks=rank_labels([-1 if rank is None else rank for rank in ranks]),
        devices=(),
        groups=(CommGroup("unknown", None, None),),
        alone=tuple(spans),
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


def _innermost(
    row: IntArray, kind: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the ranges that hold no other, in order; one for those that begin and end together.

    A row of the marks for each, the kind (-1: none), the start and the end.
    """
    group, first = group_rows([start, -end])
    known = np.full(len(first), len(KINDS))
    np.minimum.at(known, group, np.where(kind < 0, len(KINDS), kind))
    start, end = start[first], end[first]
    holds = np.append((start[1:] < end[:-1]) & (end[1:] <= end[:-1]), False)
    kept = ~holds | (known < len(KINDS))
    known[known == len(KINDS)] = -1
    return row[first][kept], known[kept], start[kept], end[kept]
