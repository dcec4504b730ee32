"""Ranges around the call that started a backward pass, for what autograd's own thread launches.

That thread has no ranges of the program. The one that started it waits in `backward()`, so what it
has open at the time is around the work. Autograd's thread is known by its backward nodes. Where
only calls are recorded, a range has to say so, or all launches lie in ranges of one name while the
other thread makes no call.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.marks import Instants, innermost_mark
from traceflops.attribution.range_labels import numberless
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Trace,
    codes,
    distinct,
    names,
    numbers,
    recorded_calls,
)

_BACKWARD: Final = re.compile(r"backward|bwd|\bgrad", re.IGNORECASE)

_FEWER: Final = 10
"""A thread that launches so many times less starts no backward pass of the other."""


def starting_mark(trace: Trace, rows: IntArray, launch: Instants, nodes: BoolArray) -> IntArray:
    """Return, per instant, the place in `rows` of the starting thread's innermost mark, or -1.

    `rows` are marks, `nodes` says which ops are backward nodes.
    """
    found = np.full(len(launch.known), -1, dtype=np.int64)
    asked = np.flatnonzero(launch.known) if len(rows) else np.empty(0, dtype=np.int64)
    launching = recorded_calls(trace) if len(asked) else np.empty(0, dtype=np.bool_)
    for process in distinct(launch.process[asked]).tolist():
        mine = asked[launch.process[asked] == process]
        with_nodes = distinct(_of_process(trace.ops, "thread", process, nodes)).tolist()
        for thread in distinct(launch.thread[mine]).tolist():
            here = mine[launch.thread[mine] == thread]
            starter = _starter(trace, rows, process, {thread, *with_nodes})
            if starter == ABSENT:
                continue
            mark = _marks_of(trace, rows, process, starter, launch.at_ns[here])
            if thread not in with_nodes:
                mark = _if_backward(trace, rows, launching, (process, starter, thread), mark)
            found[here] = mark
    return found


def _starter(trace: Trace, rows: IntArray, process: int, others: set[int]) -> int:
    """Return the thread with marks that makes most calls and is none of the others, or ABSENT."""
    thread = numbers(trace.marks["thread"], ABSENT)[rows]
    marked = distinct(thread[numbers(trace.marks["process"])[rows] == process])
    calling = _of_process(trace.calls, "thread", process)
    known = [one for one in marked.tolist() if one not in others]
    return max(known, key=lambda one: int(np.count_nonzero(calling == one)), default=ABSENT)


def _marks_of(trace: Trace, rows: IntArray, process: int, thread: int, at_ns: IntArray) -> IntArray:
    """Return the place in `rows` of the innermost mark of a thread at some times, -1 for none."""
    same = np.ones_like(at_ns)
    here = Instants(process * same, thread * same, at_ns, same > 0)
    return innermost_mark(trace, rows, here)


def _if_backward(
    trace: Trace,
    rows: IntArray,
    launching: BoolArray,
    threads: tuple[int, int, int],
    mark: IntArray,
) -> IntArray:
    """Return the marks that are around a backward pass, -1 for the others.

    `launching` says which calls launched work; `threads` are a process, the thread with the marks
    and the one that launches.
    """
    process, starter, thread = threads
    label, labels = codes(trace.marks["name"])[rows], names(trace.marks["name"])
    says_so = np.array([_BACKWARD.search(one) is not None for one in labels], dtype=np.bool_)
    launched = _of_process(trace.calls, "start_ns", process, launching, thread)
    around = _marks_of(trace, rows, process, starter, launched)
    called = _of_process(trace.calls, "start_ns", process, None, starter)
    launches_too = len(_of_process(trace.calls, "thread", process, launching, starter))
    kinds = {numberless(labels[code]) for code in distinct(label[around[around >= 0]]).tolist()}
    is_helped = launches_too * _FEWER >= len(launched)  # else the other way round
    if len(kinds) == 1 and is_helped and _mostly_alone(launched, called):
        return mark
    return np.where((mark >= 0) & says_so[label[mark]], mark, -1)


def _mostly_alone(launched: IntArray, called: IntArray) -> bool:
    """Return whether most launches follow another one without a call of the other thread."""
    between = np.searchsorted(np.sort(called), np.sort(launched))
    return bool(2 * np.count_nonzero(np.diff(between) == 0) >= len(launched))


def _of_process(
    table: pa.Table,
    column: str,
    process: int,
    some: BoolArray | None = None,
    thread: int | None = None,
) -> IntArray:
    """Return a column of the rows of a process, or of one of its threads."""
    mine: BoolArray = numbers(table["process"]) == process
    if some is not None:
        mine &= some
    if thread is not None:
        mine &= numbers(table["thread"], ABSENT) == thread
    found: IntArray = numbers(table[column], ABSENT)[mine]
    return found
