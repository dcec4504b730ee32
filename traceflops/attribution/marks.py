"""Which marks of the host are around an instant of a thread, or of the thread that started it.

Autograd's own thread has no ranges of the program. The one that started it waits in `backward()`,
so its open ranges at the time are around the work. Autograd's thread is recognised by its backward
nodes. Where only calls are recorded, a range must name the backward pass, or all launches lie in
ranges of one name while the other thread makes no call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution.range_labels import numberless
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    Columns,
    IntArray,
    codes,
    is_one_of,
    names,
    numbers,
)
from traceflops.table.grouping import distinct, group_rows, groups, joint_codes
from traceflops.table.nesting import innermost, recorded_calls, taken
from traceflops.table.trace import Trace


@dataclass(frozen=True, slots=True)
class Instants(Columns):
    """When and where on the host work was caused; `known` says for which."""

    process: IntArray
    thread: IntArray
    at_ns: IntArray
    known: BoolArray


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
    marks, asked = trace.marks, causes.only(causes.known)
    times, start = np.sort(asked.at_ns), numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    # Only marks that are around some instant are searched.
    holds = np.flatnonzero(np.searchsorted(times, start) < np.searchsorted(times, end))
    holding, count = rows[holds], len(holds)
    thread = joint_codes(
        np.concatenate([numbers(marks["process"])[holding], asked.process]),
        np.concatenate([numbers(marks["thread"], ABSENT)[holding], asked.thread]),
    )
    inner = np.full(len(causes.known), -1, dtype=np.int64)
    if count:
        span = thread[:count], start[holds], end[holds]
        inner[causes.known] = taken(holds, innermost(*span, thread[count:], asked.at_ns))
    return inner


_BACKWARD: Final = re.compile(r"backward|bwd|\bgrad", re.IGNORECASE)

_MANY_TIMES: Final = 10
"""A thread with so many times fewer launches than another did not start its backward pass."""


def starting_mark(trace: Trace, rows: IntArray, launch: Instants, nodes: BoolArray) -> IntArray:
    """Return, per instant, the place in `rows` of the starting thread's innermost mark, or -1.

    `rows` are marks; `nodes` is, per op, whether it is a backward node.
    """
    starting = np.full(len(launch.known), -1, dtype=np.int64)
    wanted = launch.only(launch.known)
    if not len(rows) or not len(wanted.known):
        return starting
    threads = _Threads.of(trace, rows, np.flatnonzero(nodes), wanted)
    mark = threads.starting_marks(trace, rows, threads.of_launch, wanted.at_ns)
    label, labels = codes(trace.marks["name"])[rows], names(trace.marks["name"])
    says_backward = np.array([_BACKWARD.search(text) is not None for text in labels], np.bool_)
    is_backward = (threads.has_nodes | _waited_for(trace, rows, threads))[threads.of_launch]
    is_started = is_backward | says_backward[taken(label, mark)]
    starting[launch.known] = np.where(is_started, mark, -1)
    return starting


@dataclass(frozen=True, slots=True)
class _Threads:
    """Threads by number: process and id of each, and whether it has backward nodes.

    `starter` is the other thread that may have started its work, -1 for none: of the threads of
    the process with marks and without backward nodes the one that makes most calls. `of_call` is
    the thread of each call, `of_launch` that of each wanted instant.
    """

    process: IntArray
    thread: IntArray
    has_nodes: BoolArray
    starter: IntArray
    of_call: IntArray
    of_launch: IntArray

    @classmethod
    def of(cls, trace: Trace, rows: IntArray, nodes: IntArray, launch: Instants) -> _Threads:
        """Return the threads of a trace; `rows` are marks, `nodes` rows of ops."""
        parts = (trace.calls, slice(None)), (trace.marks, rows), (trace.ops, nodes)
        columns = [
            np.concatenate([*(numbers(table[name], ABSENT)[some] for table, some in parts), more])
            for name, more in (("process", launch.process), ("thread", launch.thread))
        ]
        code, first = group_rows(columns)
        sizes = trace.calls.num_rows, len(rows), len(nodes)
        of_call, of_mark, of_node, of_launch = np.split(code, np.cumsum(sizes))
        process, thread = (column[first] for column in columns)
        marked = np.setdiff1d(of_mark, of_node)
        calls = np.bincount(of_call, minlength=len(first))[marked]
        # Candidates by process, of each the one with most calls first; the last is none.
        most = np.append(marked[np.lexsort((marked, -calls, process[marked]))], -1)
        owner = np.append(process[most[:-1]], -1)
        best = np.searchsorted(owner[:-1], process)
        best += most[best] == np.arange(len(first))  # no thread starts its own work
        starter = np.where(owner[best] == process, most[best], -1)
        has_nodes = np.isin(np.arange(len(first)), of_node)
        return cls(process, thread, has_nodes, starter, of_call, of_launch)

    def starting_marks(
        self, trace: Trace, rows: IntArray, thread: IntArray, at_ns: IntArray
    ) -> IntArray:
        """Return, per thread and time, the innermost mark of the thread's starter, or -1."""
        starter = self.starter[thread]
        instants = Instants(self.process[thread], self.thread[starter], at_ns, starter >= 0)
        return innermost_mark(trace, rows, instants)


def _waited_for(trace: Trace, rows: IntArray, threads: _Threads) -> BoolArray:
    """Return, per thread, whether it launches in ranges of one name while its starter is silent."""
    launching, start = recorded_calls(trace), numbers(trace.calls["start_ns"])
    order = np.argsort(start, kind="stable")
    called = {thread: start[order[own]] for thread, own in groups(threads.of_call[order])}
    launches = np.bincount(threads.of_call[launching], minlength=len(threads.thread))
    launch = order[launching[order]]
    around = threads.starting_marks(trace, rows, threads.of_call[launch], start[launch])
    label, labels = codes(trace.marks["name"])[rows], names(trace.marks["name"])
    is_waited_for = np.zeros(len(threads.thread), dtype=np.bool_)
    for thread, own in groups(threads.of_call[launch]):
        starter, inside = int(threads.starter[thread]), around[own]
        ranges = {numberless(labels[c]) for c in distinct(label[inside[inside >= 0]]).tolist()}
        is_helper = launches[starter] * _MANY_TIMES >= len(own)  # else the other way round
        if starter >= 0 and len(ranges) == 1 and is_helper:
            # Most launches follow another one without a call of the starter between them.
            calls_before = np.searchsorted(called.get(starter, start[:0]), start[launch[own]])
            alone = np.count_nonzero(np.diff(calls_before) == 0)
            is_waited_for[thread] = 2 * alone >= len(own)
    return is_waited_for
