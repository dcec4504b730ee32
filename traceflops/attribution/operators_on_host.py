"""Which operators take the time of the host: those of the threads that launch work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from traceflops.attribution.culprits import REST
from traceflops.attribution.host_events import host_span, host_time
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    codes,
    exact_sums,
    joint_codes,
    matching,
    names,
    numbers,
)
from traceflops.timeline import innermost_pieces, latest_end_before
from traceflops.windows import Prepared, is_step_label

_MOST: Final = 100
"""So many are named; the rest is one more."""


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
    ops = prepared.trace.ops
    thread, launches = _threads(prepared)
    is_step = matching(ops["name"], lambda label: is_step_label(label, None))
    inside = host_time(prepared, *host_span(ops)) > 0
    row = np.flatnonzero(launches & inside & ~is_step)
    process, start, end = (column[row] for column in host_span(ops))
    thread, name = thread[row], codes(ops["name"])[row]
    piece, *times = innermost_pieces(thread, start, end)
    begun = np.maximum(start, latest_end_before(joint_codes(name, thread), start, end))
    columns = (
        (name, np.ones_like(row)),
        (name[piece], host_time(prepared, process[piece], *times)),
        (name, host_time(prepared, process, begun, np.maximum(begun, end))),
    )
    labels = names(ops["name"])
    sums = (exact_sums(group, values, len(labels)) for group, values in columns)
    found = [HostOperator(*one) for one in zip(labels, *sums, strict=True) if one[1]]
    return _most_important(sorted(found, key=attrgetter("self_ns"), reverse=True))


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


def _most_important(ordered: Sequence[HostOperator]) -> tuple[HostOperator, ...]:
    """Return the first ones, and the others as one."""
    rest = ordered[_MOST:]
    count, self_ns = sum(one.count for one in rest), sum(one.self_ns for one in rest)
    others = (HostOperator(REST, count, self_ns, None),) if rest else ()
    return (*ordered[:_MOST], *others)
