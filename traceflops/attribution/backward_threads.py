"""Ranges around the call that started a backward pass, for what autograd's own thread launches.

That thread has no ranges of the program. The one that started it waits in `backward()`, so what it
has open at the time is around the work. Autograd's thread is known by its backward nodes. Where
only calls are recorded, a range has to say so, or all launches lie in ranges of one name while the
other thread makes no call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution.marks import Instants, innermost_mark
from traceflops.attribution.range_labels import numberless
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Trace,
    codes,
    distinct,
    group_rows,
    groups,
    names,
    numbers,
    recorded_calls,
    taken,
)

_BACKWARD: Final = re.compile(r"backward|bwd|\bgrad", re.IGNORECASE)

_FEWER: Final = 10
"""A thread that launches so many times less starts no backward pass of the other."""


def starting_mark(trace: Trace, rows: IntArray, launch: Instants, nodes: BoolArray) -> IntArray:
    """Return, per instant, the place in `rows` of the starting thread's innermost mark, or -1.

    `rows` are marks, `nodes` says which ops are backward nodes.
    """
    found = np.full(len(launch.known), -1, dtype=np.int64)
    asked = np.flatnonzero(launch.known)
    if not len(rows) or not len(asked):
        return found
    threads = _Threads.of(trace, rows, np.flatnonzero(nodes), launch, asked)
    mark = threads.starting_marks(trace, rows, threads.of_launch, launch.at_ns[asked])
    label, labels = codes(trace.marks["name"])[rows], names(trace.marks["name"])
    says_so = np.array([_BACKWARD.search(one) is not None for one in labels], dtype=np.bool_)
    is_backward = (threads.has_nodes | _waited_for(trace, rows, threads))[threads.of_launch]
    found[asked] = np.where(is_backward | says_so[taken(label, mark)], mark, -1)
    return found


@dataclass(frozen=True, slots=True)
class _Threads:
    """Threads by number: their process and id, and whether they have backward nodes.

    `starter` is the other thread that may have started what one launches, -1 for none: of those
    with marks and without backward nodes the one that makes most calls. `of_call` and `of_launch`
    are the threads of all calls and of the instants asked for.
    """

    process: IntArray
    thread: IntArray
    has_nodes: BoolArray
    starter: IntArray
    of_call: IntArray
    of_launch: IntArray

    @classmethod
    def of(
        cls, trace: Trace, rows: IntArray, nodes: IntArray, launch: Instants, asked: IntArray
    ) -> _Threads:
        """Return the threads of a trace; `asked` are places in `launch`."""
        parts = (trace.calls, slice(None)), (trace.marks, rows), (trace.ops, nodes)
        columns = [
            np.concatenate([*(numbers(table[name], ABSENT)[some] for table, some in parts), more])
            for name, more in (("process", launch.process[asked]), ("thread", launch.thread[asked]))
        ]
        code, first = group_rows(columns)
        sizes = trace.calls.num_rows, len(rows), len(nodes)
        of_call, of_mark, of_node, of_launch = np.split(code, np.cumsum(sizes))
        process, thread = (column[first] for column in columns)
        marked = np.setdiff1d(of_mark, of_node)
        calls = np.bincount(of_call, minlength=len(first))[marked]
        most = np.append(marked[np.lexsort((marked, -calls, process[marked]))], -1)
        owner = np.append(process[most[:-1]], -1)
        place = np.searchsorted(owner[:-1], process)
        place += most[place] == np.arange(len(first))  # no thread starts its own work
        return cls(
            process,
            thread,
            np.isin(np.arange(len(first)), of_node),
            np.where(owner[place] == process, most[place], -1),
            of_call,
            of_launch,
        )

    def starting_marks(
        self, trace: Trace, rows: IntArray, code: IntArray, at_ns: IntArray
    ) -> IntArray:
        """Return the starter's innermost mark at some times, of the threads in `code`; -1: none."""
        starter = self.starter[code]
        here = Instants(self.process[code], self.thread[starter], at_ns, starter >= 0)
        return innermost_mark(trace, rows, here)


def _waited_for(trace: Trace, rows: IntArray, threads: _Threads) -> BoolArray:
    """Return which threads launch in ranges of one name only, while their starter makes no call."""
    launching, start = recorded_calls(trace), numbers(trace.calls["start_ns"])
    order = np.argsort(start, kind="stable")
    called = {one: start[order[at]] for one, at in groups(threads.of_call[order])}
    launches = np.bincount(threads.of_call[launching], minlength=len(threads.thread))
    mine = order[launching[order]]
    around = threads.starting_marks(trace, rows, threads.of_call[mine], start[mine])
    label, labels = codes(trace.marks["name"])[rows], names(trace.marks["name"])
    found = np.zeros(len(threads.thread), dtype=np.bool_)
    for one, at in groups(threads.of_call[mine]):
        starter, inside = int(threads.starter[one]), around[at]
        kinds = {numberless(labels[code]) for code in distinct(label[inside[inside >= 0]]).tolist()}
        is_helped = launches[starter] * _FEWER >= len(at)  # else the other way round
        if starter >= 0 and len(kinds) == 1 and is_helped:
            found[one] = _mostly_alone(start[mine[at]], called.get(starter, start[:0]))
    return found


def _mostly_alone(launched: IntArray, called: IntArray) -> bool:
    """Return whether most launches follow another one without a call of the other thread."""
    between = np.searchsorted(called, launched)
    return bool(2 * np.count_nonzero(np.diff(between) == 0) >= len(launched))
