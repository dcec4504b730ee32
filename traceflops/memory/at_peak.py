"""Who allocated what a device holds at its peak: by stack, else by operator and module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution import launch_scopes
from traceflops.memory.usage import PARTS, AllocationRows, MemoryUse
from traceflops.table import (
    ABSENT,
    IntArray,
    codes,
    groups,
    joint_codes,
    names,
    numbers,
    taken,
)

if TYPE_CHECKING:
    from traceflops.table import Trace
    from traceflops.windows import Prepared

BETWEEN: Final = " < "
"""What stands between the frames of a stack."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who allocated `bytes` in so many `blocks` that are held at the peak.

    `op` is the operator on the host, `scope` the modules or the annotation around it, of backward
    those of forward; "" where that is not known. Of a memory snapshot they are the innermost frame
    and those that called it. Not `recorded` is what was there before.
    """

    op: str
    scope: str
    bytes: int
    blocks: int
    recorded: bool = True


def holders(prepared: Prepared, use: MemoryUse) -> tuple[Holder, ...]:
    """Return who allocated what a device holds at its peak, most first; the sum is the peak.

    None where blocks have no addresses, or where they contradict the total.
    """
    rows = AllocationRows.of(prepared.trace)
    key = (use.process, -1 if use.device is None else use.device, use.on_host)
    mine = next((mine for owner, mine in rows.by_owner() if owner == key), rows.kind[:0])
    part = rows.kind[mine] % len(PARTS)
    changes, totals = mine[part == 0], mine[part == PARTS.index("allocated")]
    if not use.is_total or len(changes) != len(totals):
        return ()
    changes = changes[: _peak_row(rows.time_ns[totals], rows.value[totals]) + 1]
    address = rows.address[changes]
    if (address == ABSENT).any():
        return ()
    last = len(changes) - 1 - np.unique(address[::-1], return_index=True)[1]
    held = changes[last[rows.value[changes[last]] > 0]]
    size = rows.value[held]
    before = use.allocated.peak - int(size.sum())
    if before < 0:
        return ()
    stack = rows.stack[held]
    found = list(_held_by_stack(prepared.trace, stack[stack >= 0], size[stack >= 0]))
    if (stack < 0).any():
        held, size = held[stack < 0], size[stack < 0]
        found += _held_by(prepared, use.process, rows.time_ns[held], size)
    found += [Holder("", "", before, 0, recorded=False)] if before else []
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _peak_row(time_ns: IntArray, total: IntArray) -> int:
    """Return the last row of the instant in which the total is highest for the first time."""
    first = int(total.argmax())
    return int(np.flatnonzero((total == total[first]) & (time_ns == time_ns[first]))[-1])


def _held_by_stack(trace: Trace, stack: IntArray, size: IntArray) -> Iterator[Holder]:
    """Yield blocks by who allocated them."""
    texts = names(trace.counters["stack"])
    for _, blocks in groups(stack):
        op, _, scope = texts[int(stack[blocks[0]])].partition(BETWEEN)
        yield Holder(op, scope, int(size[blocks].sum()), len(blocks))


def _held_by(prepared: Prepared, process: int, at_ns: IntArray, size: IntArray) -> Iterator[Holder]:
    """Yield blocks by operator and scope of their allocation."""
    linked = prepared.linked
    op = _op_at(prepared, process, at_ns)
    scopes = launch_scopes(linked, np.full(len(op), -1), op, prepared.selection.step_mark)
    name = taken(codes(linked.trace.ops["name"]), op)
    known = names(linked.trace.ops["name"])
    for _, blocks in groups(joint_codes(name, scopes.scope)):
        label, scope = int(name[blocks[0]]), int(scopes.scope[blocks[0]])
        yield Holder(
            known[label] if label >= 0 else "",
            scopes.texts[scope] if scope >= 0 else "",
            int(size[blocks].sum()),
            len(blocks),
        )


def _op_at(prepared: Prepared, process: int, at_ns: IntArray) -> IntArray:
    """Return the outermost operator at each time, -1 where there is none or several threads are."""
    ops, tree = prepared.trace.ops, prepared.linked.op_tree
    top = np.flatnonzero((tree.parent < 0) & (numbers(ops["process"]) == process))
    start, found, many = numbers(ops["start_ns"]), np.full(len(at_ns), -1), np.zeros(len(at_ns))
    for _, rows in groups(numbers(ops["thread"], ABSENT)[top]):
        mine = top[rows][np.argsort(start[top[rows]], kind="stable")]
        at = np.searchsorted(start[mine], at_ns, side="right") - 1
        row = mine[np.maximum(at, 0)]
        inside = (at >= 0) & (at_ns < start[row] + numbers(ops["dur_ns"])[row])
        found, many = np.where(inside, row, found), many + inside
    return np.where(many == 1, found, -1)
