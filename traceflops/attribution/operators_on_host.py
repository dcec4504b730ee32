"""Which operators take the time of the host: those of the threads that launch work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution.culprits import REST
from traceflops.attribution.host_events import host_span, host_time, host_windows
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    group_sums,
    groups,
    joint_codes,
    matching,
    names,
    numbers,
)
from traceflops.timeline import innermost_pieces, latest_end_before
from traceflops.windows import Prepared, is_step_label

_MOST: Final = 100
"""So many are named; the rest is one more."""
_AT_ONCE: Final = 1 << 15
"""So many are looked at together, which takes less memory than all."""


@dataclass(frozen=True, slots=True)
class HostOperator:
    """Operators of one name on the launching threads in the chosen windows; times in ns.

    `count` are those that reach into the windows. `self_ns` is the time in which one is the
    innermost operator of its thread, `total_ns` that in which one runs; None for the rest, whose
    operators may lie in each other.
    """

    name: str
    count: int
    self_ns: int
    total_ns: int | None


def host_operators(prepared: Prepared) -> tuple[HostOperator, ...]:
    """Return the operators of the launching threads, those with most time of their own first.

    Marks of steps that old profilers wrote as operators are none of them.
    """
    ops, windows = prepared.trace.ops, host_windows(prepared)
    span, (thread, launches) = host_span(ops), _threads(prepared)
    is_step = matching(ops["name"], lambda label: is_step_label(label, None))
    row = np.flatnonzero(launches & ~is_step & (host_time(windows, *span) > 0))
    labels, name = names(ops["name"]), codes(ops["name"])
    count = group_sums(name[row], np.ones_like(row), len(labels))
    own, total = np.zeros_like(count), np.zeros_like(count)
    for place in _stretches(thread[row], *(times[row] for times in span[1:])):
        mine = row[place]
        process, start, end = (column[mine] for column in span)
        piece, *times = innermost_pieces(np.zeros_like(mine), start, end)
        own += group_sums(name[mine[piece]], host_time(windows, process[piece], *times), len(own))
        begun = np.maximum(start, latest_end_before(name[mine], start, end))
        first_ns = host_time(windows, process, begun, np.maximum(begun, end))
        total += group_sums(name[mine], first_ns, len(total))
    sums = zip(labels, count.tolist(), own.tolist(), total.tolist(), strict=True)
    found = [HostOperator(*one) for one in sums if one[1]]
    return most_important(found)


def _stretches(thread: IntArray, start: IntArray, end: IntArray) -> Iterator[IntArray]:
    """Yield the places of a thread's intervals, in parts between which none of them runs."""
    for _, mine in groups(thread):
        mine = mine[np.argsort(start[mine], kind="stable")]
        ended = start[mine][1:] >= np.maximum.accumulate(end[mine])[:-1]
        cuts = np.flatnonzero(ended) + 1
        wanted = np.searchsorted(cuts, np.arange(_AT_ONCE, len(mine), _AT_ONCE))
        yield from np.split(mine, cuts[np.unique(wanted[wanted < len(cuts)])])


def _threads(prepared: Prepared) -> tuple[IntArray, BoolArray]:
    """Return the thread of each op, a number, and whether it launched work of the windows."""
    tables = (prepared.trace.ops, prepared.trace.calls)
    process, thread = (
        np.concatenate([numbers(table[column], ABSENT) for table in tables])
        for column in ("process", "thread")
    )
    one, count = joint_codes(process, thread), tables[0].num_rows
    call = prepared.linked.links.call_of_activity[prepared.chosen.row]
    return one[:count], np.isin(one[:count], one[count:][call[call >= 0]])


def most_important(found: Sequence[HostOperator]) -> tuple[HostOperator, ...]:
    """Return those with most time of their own, and the others as one, the last."""
    ordered = sorted(found, key=lambda one: (one.name == REST, -one.self_ns))
    rest = ordered[_MOST:]
    count, self_ns = sum(one.count for one in rest), sum(one.self_ns for one in rest)
    others = (HostOperator(REST, count, self_ns, None),) if rest else ()
    return (*ordered[:_MOST], *others)
