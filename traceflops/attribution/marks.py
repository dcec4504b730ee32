"""Which marks of the host are around an instant of a thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Trace,
    innermost,
    is_one_of,
    joint_codes,
    numbers,
    taken,
)


@dataclass(frozen=True, slots=True)
class Instants:
    """When and where on the host work was caused; `known` says for which."""

    process: IntArray
    thread: IntArray
    at_ns: IntArray
    known: BoolArray

    @classmethod
    def joined(cls, parts: Iterable[Instants]) -> Instants:
        """Return the instants of all parts in their order."""
        rows = ((one.process, one.thread, one.at_ns, one.known) for one in parts)
        columns = zip(*rows, strict=True)
        return cls(*map(np.concatenate, columns))


def instants(trace: Trace, call: IntArray, op: IntArray) -> Instants:
    """Return the starts of these rows of calls, or else of ops; -1 is none."""

    def of(column: str) -> IntArray:
        by_op = taken(numbers(trace.ops[column], ABSENT), op, ABSENT)
        return np.where(call >= 0, taken(numbers(trace.calls[column], ABSENT), call, ABSENT), by_op)

    thread = of("thread")
    known = ((call >= 0) | (op >= 0)) & (thread != ABSENT)
    return Instants(of("process"), thread, of("start_ns"), known)


def host_marks(trace: Trace, *kinds: str) -> IntArray:
    """Return the rows of the marks of some kinds that have a length and a thread."""
    marks = trace.marks
    wanted = is_one_of(marks["kind"], *kinds)
    wanted &= (numbers(marks["dur_ns"]) > 0) & (numbers(marks["thread"], ABSENT) != ABSENT)
    return np.flatnonzero(wanted)


def innermost_mark(trace: Trace, rows: IntArray, causes: Instants) -> IntArray:
    """Return, per instant, the place in `rows` of the innermost mark around it, or -1."""
    marks, asked = trace.marks, np.flatnonzero(causes.known)
    at, start = np.sort(causes.at_ns[asked]), numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    holds = np.flatnonzero(np.searchsorted(at, start) < np.searchsorted(at, end))
    mine, count = rows[holds], len(holds)
    thread = joint_codes(
        np.concatenate([numbers(marks["process"])[mine], causes.process[asked]]),
        np.concatenate([numbers(marks["thread"], ABSENT)[mine], causes.thread[asked]]),
    )
    inner = np.full(len(causes.known), -1, dtype=np.int64)
    if count:
        found = innermost(
            thread[:count], start[holds], end[holds], thread[count:], causes.at_ns[asked]
        )
        inner[asked] = taken(holds, found)
    return inner
