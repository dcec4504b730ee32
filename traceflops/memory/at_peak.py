"""Who allocated what a device holds at its peak: by stack, else by operator and module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution.scopes import launch_scopes
from traceflops.memory.usage import PARTS, AllocationRows, MemoryUse
from traceflops.table.columns import IntArray, codes, names, numbers
from traceflops.table.grouping import groups, joint_codes
from traceflops.table.nesting import taken
from traceflops.table.rows import ABSENT

if TYPE_CHECKING:
    from traceflops.windows.prepared import Prepared

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
    # The last row of the instant in which the total is highest for the first time.
    time_ns, total = rows.time_ns[totals], rows.value[totals]
    first = int(total.argmax())
    peak = np.flatnonzero((total == total[first]) & (time_ns == time_ns[first]))[-1]
    changes = changes[: peak + 1]
    address = rows.address[changes]
    if (address == ABSENT).any():
        return ()
    last = len(changes) - 1 - np.unique(address[::-1], return_index=True)[1]
    held = changes[last[rows.value[changes[last]] > 0]]
    size, stack = rows.value[held], rows.stack[held]
    before = use.allocated.peak - int(size.sum())
    if before < 0:
        return ()
    held_by = []
    texts, of_stack = names(prepared.trace.counters["stack"]), np.flatnonzero(stack >= 0)
    for code, blocks in groups(stack[of_stack]):
        op, _, scope = texts[code].partition(BETWEEN)
        held_by.append(Holder(op, scope, int(size[of_stack[blocks]].sum()), len(blocks)))
    if (stack < 0).any():
        time_ns = rows.time_ns[held[stack < 0]]
        held_by += _held_by_op(prepared, use.process, time_ns, size[stack < 0])
    if before:
        held_by.append(Holder("", "", before, 0, recorded=False))
    return tuple(sorted(held_by, key=lambda holder: -holder.bytes))


def _held_by_op(
    prepared: Prepared, process: int, time_ns: IntArray, size: IntArray
) -> Iterator[Holder]:
    """Yield blocks by operator and scope of their allocation; times and sizes are per block."""
    linked, ops, tree = prepared.linked, prepared.trace.ops, prepared.linked.op_tree
    # The outermost operator at each time, -1 where there is none or several threads have one.
    top = np.flatnonzero((tree.parent < 0) & (numbers(ops["process"]) == process))
    start, op = numbers(ops["start_ns"]), np.full(len(time_ns), -1)
    open_ops = np.zeros(len(time_ns))
    for _, members in groups(numbers(ops["thread"], ABSENT)[top]):
        rows = top[members][np.argsort(start[top[members]], kind="stable")]
        last = np.searchsorted(start[rows], time_ns, side="right") - 1
        row = rows[np.maximum(last, 0)]
        inside = (last >= 0) & (time_ns < start[row] + numbers(ops["dur_ns"])[row])
        op, open_ops = np.where(inside, row, op), open_ops + inside
    op = np.where(open_ops == 1, op, -1)
    scopes = launch_scopes(linked, np.full(len(op), -1), op, prepared.selection.step_mark)
    name, labels = taken(codes(ops["name"]), op), [*names(ops["name"]), ""]
    for _, blocks in groups(joint_codes(name, scopes.scope)):
        label, scope = int(name[blocks[0]]), int(scopes.scope[blocks[0]])
        text = scopes.texts[scope] if scope >= 0 else ""
        yield Holder(labels[label], text, int(size[blocks].sum()), len(blocks))
