"""How much memory was allocated and reserved over time, per device and on the host.

PyTorch records, with `profile_memory=True`, after each allocation and release what its allocator
holds on that device: all of it on a GPU; on the host what was allocated since the recording began.
Nsight Systems records changes alone, which add up from 0. A memory snapshot has what PyTorch's
events have, with sizes as requested, and also who allocated, and the largest free block.
The host allocates, ahead of the kernels that use the memory: so steps are those that it marks.

`holders` says who allocated what is held at the peak: by stack, else by operator and module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.scopes import launch_scopes
from traceflops.table.columns import ABSENT, IntArray, codes, floats, names, numbers, texts_of
from traceflops.table.grouping import differ_from_before, distinct, groups, joint_codes
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.windows.choice import REPEATED
from traceflops.windows.prepared import Prepared
from traceflops.windows.selection import HIDDEN
from traceflops.windows.step_times import Steps
from traceflops.windows.steps import find_marked_steps

What = Literal["allocated", "reserved"]
MOST_POINTS: Final = 1_000
_PER_BUCKET: Final = 4
PARTS: Final = ("change", "allocated", "reserved", "largest_free")
_LABELS: Final = tuple(
    f"{side}_memory.{part}_bytes" for side in ("host", "device") for part in PARTS
)


class Curve(Struct, frozen=True):
    """Bytes over time: each `value` holds from its `time_ns` until the next.

    `changes` is the number of values recorded. At most MOST_POINTS are kept: of each of equal
    intervals of time, the first, the last, the lowest and the highest value.
    """

    time_ns: IntArray
    value: IntArray
    changes: int


class StepUse(Struct, frozen=True):
    """The most bytes held in a step, from its start on, and those held at its end."""

    step: int
    start_ns: int
    most: int
    at_end: int


class Series(Struct, frozen=True):
    """Bytes allocated or reserved (`what`): the curve, first, last and peak value, and use by step.

    `peak_step` is None if the peak is outside of steps. `steps` are the chosen ones, in order.
    """

    what: What
    curve: Curve
    first: int
    last: int
    peak: int
    peak_ns: int
    peak_step: int | None
    steps: tuple[StepUse, ...]

    @property
    def is_state(self) -> bool:
        """Whether all values are of one time: a state without history, which has no known peak."""
        return bool(self.curve.time_ns[0] == self.curve.time_ns[-1])

    @property
    def growth(self) -> int | None:
        """Return how much more is held at the end of the last step than of the first, or None."""
        return self.steps[-1].at_end - self.steps[0].at_end if len(self.steps) > 1 else None


class MemoryUse(Struct, frozen=True):
    """The memory of one device, or of the host, as one process used it.

    `device` is the row of the devices table, None for the host and for a device without recorded
    work; `local_id` is its number as the process sees it. `is_total` is False if values count from
    0 since the recording did not tell what was allocated before it. `device_bytes` is the memory
    that the device has. `unused_at_peak` is what was reserved and not allocated when most was
    allocated, `largest_free` the largest undivided block of it. Unknown is None.
    """

    process: int
    rank: int | None
    file: str
    device: int | None
    on_host: bool
    is_total: bool
    device_bytes: int | None
    allocated: Series
    reserved: Series | None
    unused_at_peak: int | None
    largest_free: int | None = None
    local_id: int | None = None

    @property
    def share_of_device(self) -> float | None:
        """Return the peak as a share of the device's memory, None if either is unknown."""
        if not self.device_bytes or not self.is_total or self.on_host:
            return None
        return (self.reserved or self.allocated).peak / self.device_bytes


def memory_use(prepared: Prepared) -> tuple[MemoryUse, ...]:
    """Return how devices, then the host, used their memory, by process."""
    if not prepared.trace.counters.num_rows:
        return ()
    rows, finder = AllocationRows.of(prepared.trace), StepFinder(prepared)
    all_uses = (_use(prepared, rows, owner, own, finder) for owner, own in rows.by_owner())
    uses = [use for use in all_uses if use is not None]
    uses.sort(key=lambda u: (u.on_host, u.process, u.device is None, u.device or 0))
    return tuple(uses)


def fullest_gpu(used: Iterable[MemoryUse]) -> MemoryUse | None:
    """Return the GPU whose allocator held most at its peak, None if no total is known."""
    gpus = (use for use in used if use.is_total and not use.on_host)
    return max(gpus, key=lambda use: use.allocated.peak, default=None)


class AllocationRows(Struct, frozen=True):
    """The rows of the counters on memory, sorted by time; `kind` is an index of _LABELS."""

    process: IntArray
    device: IntArray
    time_ns: IntArray
    value: IntArray
    kind: IntArray
    address: IntArray
    stack: IntArray

    @classmethod
    def of(cls, trace: Trace) -> AllocationRows:
        """Return the memory rows of a trace's counters, by time."""
        table = trace.counters
        index = {label: kind for kind, label in enumerate(_LABELS)}
        kind_of = np.array([index.get(name, -1) for name in names(table["name"])], dtype=np.int64)
        kind = kind_of[codes(table["name"])]
        rows = np.flatnonzero(kind >= 0)
        rows = rows[np.argsort(numbers(table["time_ns"])[rows], kind="stable")]
        process, device, time_ns = (
            numbers(table[name])[rows] for name in ("process", "device", "time_ns")
        )
        value = floats(table["value"])[rows].astype(np.int64)
        address, stack = numbers(table["address"], ABSENT)[rows], codes(table["stack"])[rows]
        return cls(process, device, time_ns, value, kind[rows], address, stack)

    def by_owner(self) -> Iterator[tuple[tuple[int, int, bool], IntArray]]:
        """Yield owners (process, device, whether it is the host's memory) with their rows."""
        on_host = self.kind < len(PARTS)
        owner = joint_codes(joint_codes(self.process, self.device), on_host.astype(np.int64))
        for _, rows in groups(owner):
            row = int(rows[0])
            yield (int(self.process[row]), int(self.device[row]), bool(on_host[row])), rows


def _use(
    prepared: Prepared,
    rows: AllocationRows,
    owner: tuple[int, int, bool],
    own: IntArray,
    finder: StepFinder,
) -> MemoryUse | None:
    """Return the memory use of an owner, None if not chosen or not recorded.

    `owner` is process, device and whether it is the host's memory; `own` are its indices in `rows`.
    """
    process, device, on_host = owner
    # Accounts are of the chosen devices; without any, all memory is shown.
    if not on_host and device >= 0 and prepared.accounts and device not in prepared.accounts:
        return None
    rank = prepared.trace.ranks[process]
    if prepared.selection.ranks is not None and rank not in prepared.selection.ranks:
        return None
    device_row = prepared.trace.devices.slice(device, 1).to_pylist()[0] if device >= 0 else {}
    steps, part = finder.of(process, device), rows.kind[own] % len(PARTS)
    # The indices of changes, totals allocated, totals reserved and largest free blocks.
    changes, totals, held, largest = (own[part == number] for number in range(len(PARTS)))
    # Without totals, the changes add up from 0.
    counted = totals if len(totals) else changes
    if not len(counted):
        return None
    value = rows.value[counted] if len(totals) else np.cumsum(rows.value[counted])
    allocated = _series("allocated", rows.time_ns[counted], value, steps)
    reserved = unused = None
    if len(held) and rows.value[held].any():  # the host's allocator keeps nothing in reserve
        reserved = _series("reserved", rows.time_ns[held], rows.value[held], steps)
        at_peak = int(np.searchsorted(rows.time_ns[held], allocated.peak_ns, side="right")) - 1
        difference = int(rows.value[held[at_peak]]) - allocated.peak if at_peak >= 0 else -1
        unused = difference if difference >= 0 else None  # below 0, the records contradict
    return MemoryUse(
        process=process,
        rank=rank,
        file=str(prepared.trace.processes["file"][process].as_py()),
        device=device if device >= 0 else None,
        on_host=on_host,
        is_total=bool(len(totals)) and not on_host,  # the host's totals begin with the recording
        device_bytes=device_row.get("memory_bytes"),
        allocated=allocated,
        reserved=reserved,
        unused_at_peak=unused,
        local_id=device_row.get("local_id"),
        largest_free=int(rows.value[largest[-1]]) if len(largest) else None,
    )


def _series(what: What, time: IntArray, value: IntArray, steps: tuple[Steps, Steps]) -> Series:
    """Return the series of bytes held from each `time` (ns) on; `steps` are the chosen, and all."""
    chosen, all_steps = steps
    peak, kept = int(np.argmax(value)), np.arange(len(time))
    if len(time) > MOST_POINTS:
        # Of a long curve, keep edges and extremes of equal intervals of time (buckets).
        buckets, span = MOST_POINTS // _PER_BUCKET, int(time[-1] - time[0]) + 1
        bucket = ((time - time[0]) * buckets) // span
        opens = np.flatnonzero(differ_from_before(bucket))
        closes = np.append(opens[1:], len(bucket)) - 1
        # Sorted by value within each bucket, its first has the lowest value, its last the highest.
        by_value = np.lexsort((value, bucket))
        kept = distinct(np.concatenate([opens, closes, by_value[opens], by_value[closes]]))
    step_at_peak = int(all_steps.at(time[peak : peak + 1])[0])
    # A step has the values from `first` up to `stop`, and any value that holds as it begins.
    firsts = np.searchsorted(time, chosen.start_ns, side="left")
    stops = np.searchsorted(time, chosen.end_ns, side="left")
    uses, columns = [], (chosen.number, chosen.start_ns, firsts, stops)
    for number, start, first, stop in zip(*(column.tolist() for column in columns), strict=True):
        if stop:  # else nothing was recorded before the end of the step
            most = int(value[max(first - 1, 0) : stop].max())
            uses.append(StepUse(number, start, most=most, at_end=int(value[stop - 1])))
    return Series(
        what=what,
        curve=Curve(time[kept], value[kept], len(time)),
        first=int(value[0]),
        last=int(value[-1]),
        peak=int(value[peak]),
        peak_ns=int(time[peak]),
        peak_step=int(all_steps.number[step_at_peak]) if step_at_peak >= 0 else None,
        steps=tuple(uses),
    )


class StepFinder:
    """Finds the steps of a process: those of the host, else the windows of its device."""

    def __init__(self, prepared: Prepared) -> None:
        """Find the steps that the host marks, if the report's steps come from marks, too."""
        self._prepared = prepared
        mark, marked = prepared.selection.step_mark, None
        if prepared.plan.choice.source in ("markers", "annotation", "mark-regex"):
            # If the user's expression for step names was redacted (HIDDEN), use the usual names.
            marked = find_marked_steps(prepared.trace, None if mark == HIDDEN else mark)
        self._marked = marked.by_process if marked is not None else {}
        # If step numbers repeat, the report numbers the steps from 0: so do these.
        self._counted = any(note.code == REPEATED for note in prepared.plan.notes)

    def of(self, process: int, device: int) -> tuple[Steps, Steps]:
        """Return the chosen and all steps of a process; if the host marks none, of its device."""
        steps = self._marked.get(process)
        if steps is None:
            windows = self._prepared.windows.get(device, ())
            rows = [(w.step, w.start_ns, w.end_ns) for w in windows if w.step is not None]
            steps = Steps(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)
        elif self._counted:  # their own numbers repeat
            steps = replace(steps, number=np.arange(len(steps)))
        used = np.isin(steps.number, list(self._prepared.plan.used))
        return Steps(steps.number[used], steps.start_ns[used], steps.end_ns[used]), steps


BETWEEN: Final = " < "
"""What stands between the frames of a stack."""


class Holder(Struct, frozen=True):
    """Who allocated `bytes` in `blocks` blocks that are held at the peak.

    `op` is the operator on the host, `scope` the modules or the annotation around it (for backward,
    those of forward); "" if unknown. In a memory snapshot, they are the innermost frame and those
    that called it. If not `recorded`, the bytes were allocated before the recording.
    """

    op: str
    scope: str
    bytes: int
    blocks: int
    recorded: bool = True


def holders(prepared: Prepared, use: MemoryUse) -> tuple[Holder, ...]:
    """Return who allocated what a device holds at its peak, most first; the sum is the peak.

    A holder that is not `recorded` stands for what was allocated before the recording began. Empty
    if blocks have no addresses, or contradict the total. `use` is of `memory_use`.
    """
    rows = AllocationRows.of(prepared.trace)
    owner = (use.process, -1 if use.device is None else use.device, use.on_host)
    own = dict(rows.by_owner()).get(owner, rows.kind[:0])
    # Each event should tell the change and then the total, so event i has changes[i] and totals[i].
    part = rows.kind[own] % len(PARTS)
    changes, totals = (own[part == PARTS.index(name)] for name in ("change", "allocated"))
    if not use.is_total or len(changes) != len(totals):
        return ()
    # Only the events up to the peak count. Of several events at the first time at which the total
    # is highest, the last one with that total is the peak.
    time_ns, total = rows.time_ns[totals], rows.value[totals]
    first = int(total.argmax())
    peak = np.flatnonzero((total == total[first]) & (time_ns == time_ns[first]))[-1]
    changes = changes[: peak + 1]
    address = rows.address[changes]
    if (address == ABSENT).any():
        return ()
    # A block is held if the last change at its address is an allocation, above 0. `unique` returns
    # the first index of each address, so it is given the addresses in reverse order.
    _, from_the_end = np.unique(address[::-1], return_index=True)
    last_changes = changes[::-1][from_the_end]
    held = last_changes[rows.value[last_changes] > 0]
    size, stack = rows.value[held], rows.stack[held]
    held_before = use.allocated.peak - int(size.sum())  # since before the recording
    if held_before < 0:  # the blocks contradict the total
        return ()
    held_by = []  # by stack, else by operator
    texts, with_stack = names(prepared.trace.counters["stack"]), np.flatnonzero(stack >= 0)
    for code, blocks in groups(stack[with_stack]):
        op, _, scope = texts[code].partition(BETWEEN)
        held_by.append(Holder(op, scope, int(size[with_stack[blocks]].sum()), len(blocks)))
    if (stack < 0).any():
        time_ns = rows.time_ns[held[stack < 0]]
        held_by += _held_by_op(prepared, use.process, time_ns, size[stack < 0])
    if held_before:
        held_by.append(Holder("", "", held_before, 0, recorded=False))
    return tuple(sorted(held_by, key=lambda holder: -holder.bytes))


def _held_by_op(
    prepared: Prepared, process: int, time_ns: IntArray, size: IntArray
) -> Iterator[Holder]:
    """Yield who allocated blocks at some times, by operator and scope; `size` is in bytes."""
    linked, ops, tree = prepared.linked, prepared.trace.ops, prepared.linked.op_tree
    # The outermost operator at each time; -1 if there is none, or if several threads have one: then
    # it is unknown which of them allocated.
    outermost = np.flatnonzero((tree.parent < 0) & (numbers(ops["process"]) == process))
    start_ns, op = numbers(ops["start_ns"]), np.full(len(time_ns), -1)
    threads_inside = np.zeros(len(time_ns))
    for _, members in groups(numbers(ops["thread"], ABSENT)[outermost]):
        rows = outermost[members]
        rows = rows[np.argsort(start_ns[rows], kind="stable")]
        last = np.searchsorted(start_ns[rows], time_ns, side="right") - 1
        row = rows[np.maximum(last, 0)]
        is_inside = (last >= 0) & (time_ns < start_ns[row] + numbers(ops["dur_ns"])[row])
        op, threads_inside = np.where(is_inside, row, op), threads_inside + is_inside
    op = np.where(threads_inside == 1, op, -1)
    scopes = launch_scopes(linked, np.full(len(op), -1), op, prepared.selection.step_mark)
    labels, scope_texts = texts_of(ops["name"], op), [*scopes.texts, ""]  # -1 is the last one
    for _, blocks in groups(joint_codes(taken(codes(ops["name"]), op), scopes.scope)):
        label, scope = labels[blocks[0]], scope_texts[scopes.scope[blocks[0]]]
        yield Holder(label, scope, int(size[blocks].sum()), len(blocks))
