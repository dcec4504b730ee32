"""Collectives of a trace that has ranges projected on GPUs instead of kernels.

A range around one collective lasts as long as its kernel; what innermost ranges span is work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from traceflops.table import (
    ABSENT,
    IntArray,
    Trace,
    codes,
    distinct,
    group_rows,
    is_one_of,
    names,
    numbers,
)
from traceflops.timeline import Intervals

_COLLECTIVE: Final = re.compile(
    r"\bhlo_op=(all-(?:reduce|gather|to-all)|reduce-scatter|collective-broadcast)\b"
    r"|^(?:NCCL:nccl|nccl:_?)([A-Za-z_]+)$"
)
"""How XLA, NCCL and PyTorch name the range around a collective."""
_NO_NAME: Final[tuple[Words, ...]] = (("unknown", None, None, ABSENT),)
_Ranges = tuple[IntArray, IntArray, IntArray, IntArray]
"""A row of the marks for each of the ranges that end together, the kind, the start, the end."""


def projected_records(trace: Trace) -> CommRecords:
    """Return the collectives of all processes that have projected ranges."""
    marks = trace.marks
    rows = np.flatnonzero(is_one_of(marks["kind"], "gpu_annotation"))
    process = numbers(marks["process"])[rows]
    kinds = np.array([_kind(label) for label in names(marks["name"])] + [-1])
    kind, start = kinds[codes(marks["name"])[rows]], numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    processes = sorted(distinct(process).tolist(), key=lambda one: (trace.ranks[one] or 0, one))
    mine = [np.flatnonzero(process == one) for one in processes]
    parts = [_innermost(rows[at], kind[at], start[at], end[at]) for at in mine]
    ranks = [trace.ranks[one] for one in processes]
    return _records([-1 if rank is None else rank for rank in ranks], parts)


def _kind(label: str) -> int:
    found = _COLLECTIVE.search(label)
    return kind_of(found[1] or found[2]) if found else -1


def _innermost(row: IntArray, kind: IntArray, start: IntArray, end: IntArray) -> _Ranges:
    """Return the ranges that hold no other, in order; one for those that begin and end together."""
    group, first = group_rows([start, -end])
    known = np.full(len(first), len(KINDS))
    np.minimum.at(known, group, np.where(kind < 0, len(KINDS), kind))
    start, end = start[first], end[first]
    holds = np.append((start[1:] < end[:-1]) & (end[1:] <= end[:-1]), False)
    kept = ~holds | (known < len(KINDS))
    known[known == len(KINDS)] = -1
    return row[first][kept], known[kept], start[kept], end[kept]


def _records(ranks: Sequence[int], parts: Sequence[_Ranges]) -> CommRecords:
    found = [
        np.stack([*part, _work(part).covered_before(part[3])])[:, part[1] >= 0] for part in parts
    ]
    row, kind, start, end, busy = np.concatenate([np.empty((5, 0), np.int64), *found], axis=1)
    unknown = np.full(len(row), ABSENT)
    return CommRecords(
        ranks=rank_labels(ranks),
        devices=(),
        groups=(CommGroup("unknown", None, None),),
        alone=tuple(alone(part[2], part[3]) for part in parts),
        place=np.repeat(np.arange(len(parts)), [part.shape[1] for part in found]),
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


def _work(part: _Ranges) -> Intervals:
    _, kind, start, end = part
    return Intervals.of(start[kind < 0], end[kind < 0])
