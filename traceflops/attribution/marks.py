"""The host marks around an instant of a thread, or around the thread that started its work.

The program opens no ranges on autograd's own thread. The thread that started the backward pass
waits in `backward()`, so the ranges open there are around the work, too. Autograd's thread is
recognised by its backward nodes. If only calls are recorded, a range must name the backward pass,
or all launches must lie in ranges of one name while the other thread makes no call.

Also the names of ranges, without the numbers that count steps, but with those that are a size.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import Columns, codes, is_one_of, names, numbers, thread_columns
from traceflops.table.grouping import distinct, group_rows, groups, shared_codes, without
from traceflops.table.links import recorded_calls
from traceflops.table.nesting import innermost, taken
from traceflops.table.trace import Trace


class Instants(Columns, frozen=True):
    """Process, thread and time of launches, a row each; `known` is False if these are unknown."""

    process: IntArray
    thread: IntArray
    at_ns: IntArray
    known: BoolArray


def instants(trace: Trace, call: IntArray, op: IntArray) -> Instants:
    """Return, per pair of rows, the start of the call, or else of the op; -1 is no row."""

    def of(column: str) -> IntArray:
        by_op = taken(numbers(trace.ops[column], ABSENT), op, ABSENT)
        return np.where(call >= 0, taken(numbers(trace.calls[column], ABSENT), call, ABSENT), by_op)

    thread = of("thread")
    known = ((call >= 0) | (op >= 0)) & (thread != ABSENT)  # marks are of threads
    return Instants(of("process"), thread, of("start_ns"), known)


def host_marks(trace: Trace, *kinds: str) -> IntArray:
    """Return the rows of marks of these kinds that have a length and a thread."""
    marks = trace.marks
    wanted = is_one_of(marks["kind"], *kinds)
    wanted &= (numbers(marks["dur_ns"]) > 0) & (numbers(marks["thread"], ABSENT) != ABSENT)
    return np.flatnonzero(wanted)


def innermost_mark(trace: Trace, rows: IntArray, causes: Instants) -> IntArray:
    """Return, per instant, the innermost mark around it as an index into `rows` of marks, or -1."""
    marks, wanted = trace.marks, causes.only(causes.known)
    times, start = np.sort(wanted.at_ns), numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    # Only marks around some instant are searched.
    holding = np.flatnonzero(np.searchsorted(times, start) < np.searchsorted(times, end))
    thread_of_mark, thread = shared_codes(
        thread_columns(marks, rows[holding]), (wanted.process, wanted.thread)
    )
    inner = np.full(len(causes.known), -1, dtype=np.int64)
    if len(holding):
        span = thread_of_mark, start[holding], end[holding]
        inner[causes.known] = taken(holding, innermost(*span, thread, wanted.at_ns))
    return inner


_BACKWARD: Final = re.compile(r"backward|bwd|\bgrad", re.IGNORECASE)
_MANY_TIMES: Final = 10
"""A thread with fewer launches than another one by this factor did not start its backward pass."""


def starting_mark(trace: Trace, rows: IntArray, launch: Instants, nodes: BoolArray) -> IntArray:
    """Return, per launch in a backward pass, the innermost mark of the thread that started it.

    Marks are indices into `rows` of marks, -1 for none and for launches outside backward passes.
    `nodes` is, per op, whether it is a backward node.
    """
    starting = np.full(len(launch.known), -1, dtype=np.int64)
    launches_known = launch.only(launch.known)
    if not len(rows) or not len(launches_known.known):
        return starting
    threads = _Threads.of(trace, rows, np.flatnonzero(nodes), launches_known)
    mark = threads.starting_marks(trace, rows, threads.of_launch, launches_known.at_ns)
    label_of_mark, labels = codes(trace.marks["name"])[rows], names(trace.marks["name"])
    says_backward = np.array([_BACKWARD.search(text) is not None for text in labels], np.bool_)
    # A launch is of a backward pass if its thread runs backward nodes, if the thread that started
    # it waits for it, or if the mark there says so.
    is_backward = (threads.has_nodes | _waited_for(trace, rows, threads))[threads.of_launch]
    is_started = is_backward | says_backward[taken(label_of_mark, mark)]
    starting[launch.known] = np.where(is_started, mark, -1)
    return starting


class _Threads(Struct, frozen=True):
    """All threads, a row each: process, id, and whether they run backward nodes.

    `starter` is the other thread that may have started its work, -1 for none: of the threads of the
    process with marks and without backward nodes, the one with most calls. `of_call` is the thread
    of each call, `of_launch` that of each launch.
    """

    process: IntArray
    thread: IntArray
    has_nodes: BoolArray
    starter: IntArray
    of_call: IntArray
    of_launch: IntArray

    @classmethod
    def of(cls, trace: Trace, rows: IntArray, nodes: IntArray, launch: Instants) -> _Threads:
        """Return the threads of all calls, some marks (`rows`), backward `nodes`, and launches."""
        # Number all threads together, then take the numbers of each source apart. `process`,
        # `thread` and all that follows are per thread, in the order of these numbers.
        sources = (
            *(thread_columns(trace.calls), thread_columns(trace.marks, rows)),
            *(thread_columns(trace.ops, nodes), (launch.process, launch.thread)),
        )
        columns = [np.concatenate(column) for column in zip(*sources, strict=True)]
        code, first = group_rows(columns)
        ends = np.cumsum([len(process) for process, _ in sources])
        of_call, of_mark, of_node, of_launch = np.split(code, ends[:-1])
        process, thread = (column[first] for column in columns)
        candidates = without(of_mark, of_node)
        calls = np.bincount(of_call, minlength=len(first))[candidates]
        # Candidates sorted by process, those with most calls first; the last entry means none.
        order = np.lexsort((candidates, -calls, process[candidates]))
        starters = np.append(candidates[order], -1)
        owner = np.append(process[starters[:-1]], -1)
        # The first candidate of the process, or the second if the first is the thread itself.
        # process [7 7 8], starters [1 0 -1], owner [7 7 -1]: index [0 0 2], thread 1 takes the next
        # one: [0 1 2]  ->  starter [1 0 -1]
        index = np.searchsorted(owner[:-1], process)
        index += starters[index] == np.arange(len(first))
        starter = np.where(owner[index] == process, starters[index], -1)
        has_nodes = np.isin(np.arange(len(first)), of_node)
        return cls(process, thread, has_nodes, starter, of_call, of_launch)

    def starting_marks(
        self, trace: Trace, rows: IntArray, thread: IntArray, at_ns: IntArray
    ) -> IntArray:
        """Return, per thread and time, the innermost mark then on the thread's starter, or -1."""
        starter = self.starter[thread]
        instants = Instants(self.process[thread], self.thread[starter], at_ns, starter >= 0)
        return innermost_mark(trace, rows, instants)


def _waited_for(trace: Trace, rows: IntArray, threads: _Threads) -> BoolArray:
    """Return, per thread, whether its starter (see _Threads) started its launches and waits.

    That is so if 1. all its launches lie in ranges of one name of the starter, 2. the starter makes
    no call between most of them, and 3. it does not launch far more than the starter (_MANY_TIMES):
    then it would be the starter itself.
    """
    launching, start = recorded_calls(trace), numbers(trace.calls["start_ns"])
    order = np.argsort(start, kind="stable")
    called = {thread: start[order[index]] for thread, index in groups(threads.of_call[order])}
    launches = np.bincount(threads.of_call[launching], minlength=len(threads.thread))
    launch = order[launching[order]]
    around = threads.starting_marks(trace, rows, threads.of_call[launch], start[launch])
    label, labels = codes(trace.marks["name"])[rows], names(trace.marks["name"])
    is_waited_for = np.zeros(len(threads.thread), dtype=np.bool_)
    for thread, index in groups(threads.of_call[launch]):
        starter, mark = int(threads.starter[thread]), around[index]
        ranges = {numberless(labels[c]) for c in distinct(label[mark[mark >= 0]]).tolist()}
        is_helper = launches[starter] * _MANY_TIMES >= len(index)  # condition 3
        if starter >= 0 and len(ranges) == 1 and is_helper:
            # Starter's calls at [1 9], launches at [3 4 5 12]  ->  calls_before [1 1 1 2]: two of
            # the four follow the launch before without a call in between.
            calls_before = np.searchsorted(called.get(starter, start[:0]), start[launch[index]])
            without_calls = np.count_nonzero(np.diff(calls_before) == 0)
            is_waited_for[thread] = 2 * without_calls >= len(index)
    return is_waited_for


_NUMBER: Final = re.compile(r"#?\d+")
_SEPARATORS: Final = " #:_=.,/()[]-"
_ENDING: Final = f"{_SEPARATORS}0123456789"
_PAIRS: Final = ("()", "[]", "{}", '""', "''")


def names_by_process(trace: Trace) -> Callable[[str, int], str]:
    """Return a function of label and process: `range_names` for the labels of that process only."""

    @cache
    def rows_of() -> dict[int, IntArray]:
        rows = np.flatnonzero(is_one_of(trace.marks["kind"], "annotation"))
        by_process = groups(numbers(trace.marks["process"])[rows])
        return {process: rows[of_process] for process, of_process in by_process}

    @cache
    def name_of(process: int) -> Callable[[str], str]:
        rows = rows_of().get(process)
        return numberless if rows is None else _names_of(trace, rows)

    return lambda label, process: name_of(process)(label)


def range_names(trace: Trace) -> Callable[[str], str]:
    """Return a function that removes from a label the numbers in which similar labels differ.

    "IO 12" and "IO 13" become "IO"; in "moe[tokens=16]" the size stays if it is the same in all. A
    label without similar ones, seen once, loses only a number at its end, which is often a step's.
    """
    return _names_of(trace, np.flatnonzero(is_one_of(trace.marks["kind"], "annotation")))


def _names_of(trace: Trace, rows: IntArray) -> Callable[[str], str]:
    """Return a function that names a label of these marks; it is made when asked for."""
    texts, count_of = names(trace.marks["name"]), Counter(codes(trace.marks["name"])[rows].tolist())
    similar: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for code in count_of:
        similar[tuple(_NUMBER.split(texts[code]))].append(texts[code])
    times_seen = {texts[code]: count for code, count in count_of.items()}

    @cache
    def differs(between: tuple[str, ...]) -> list[bool]:
        """Return, per number between some texts, whether it differs in the labels with these."""
        values = zip(*map(_NUMBER.findall, similar[between]), strict=True)
        return [len({*column}) > 1 for column in values]

    @cache
    def name_of(label: str) -> str:
        if label not in times_seen:
            return numberless(label)
        between = tuple(_NUMBER.split(label))
        is_alone = len(similar[between]) == 1 and times_seen[label] == 1
        name = _begun(label) or label if is_alone else _without(label, differs(between))
        return name or numberless(label)

    return name_of


def numberless(label: str) -> str:
    """Return a label without its numbers, which often count steps: "IO 12" becomes "IO"."""
    return _without(label, [True] * len(_NUMBER.findall(label)))


def numbered(label: str) -> str:
    """Return an expression (RE2) of the labels that get this name; N stands for a number."""
    inner = re.escape(label).replace("N", rf"(?:N|{_NUMBER.pattern})")
    end = f"[{re.escape(_ENDING)}]*"
    # A digit after the last one would make another number of it.
    return f"{inner}(?:[{re.escape(_SEPARATORS)}]{end})?" if label[-1:].isdigit() else inner + end


def _begun(label: str, differs: Sequence[bool] | None = None) -> str:
    """Return a label cut at the first number that differs in its end of numbers and separators.

    `differs` is per number of the label, by default all differ. Numbers before the end that differ
    become N. Return "" if nothing is cut, or if that would leave a bracket or quotation mark open.
    """
    matches = [*_NUMBER.finditer(label)]
    flags = differs if differs is not None else [True] * len(matches)
    end = len(label.rstrip(_ENDING))  # only numbers and separators follow
    at_number = [m.start() for m, is_cut in zip(matches, flags, strict=True) if is_cut]
    cuts = (start for start in at_number if start >= end)
    short = label[: next(cuts, 0)].rstrip(_SEPARATORS)
    # Each bracket and quotation mark must have its partner.
    is_closed = all(
        short.count(opens) % 2 == 0 if opens == shuts else short.count(opens) == short.count(shuts)
        for opens, shuts in _PAIRS
    )
    if not is_closed:
        return ""
    return short if differs is None else _replaced(short, differs)


def _replaced(label: str, differs: Sequence[bool]) -> str:
    """Return a label with N in place of each number that differs."""
    differ = iter(differs)
    return _NUMBER.sub(lambda number: "N" if next(differ) else number[0], label)


def _without(label: str, differs: Sequence[bool]) -> str:
    """Return a label without the numbers that differ: its end is cut off, others become N."""
    return _begun(label, differs) or _replaced(label, differs)
