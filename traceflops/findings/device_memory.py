"""Rules of memory: copies that nothing hides, room for a larger batch, calls of the allocator.

And the verdict on a memory snapshot, which has nothing but memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution.host_calls import memory_operations
from traceflops.categories.programs import of_ml
from traceflops.characters import function_name
from traceflops.facts import Fact, fact
from traceflops.findings.case import cause, limit, share_of_window
from traceflops.findings.finding import Cause, Gain, Row, Verdict, row_name, short_name
from traceflops.memory.usage import BETWEEN, StepFinder, fullest_gpu, holders, memory_use
from traceflops.table.columns import codes, floats, is_one_of, matching, names, numbers
from traceflops.table.grouping import group_sums, groups
from traceflops.table.trace import ranges
from traceflops.timeline.host_work import lacks_copies
from traceflops.timeline.intervals import Intervals
from traceflops.windows.records import chosen_time

if TYPE_CHECKING:
    from traceflops.attribution.host_calls import MemoryOperation
    from traceflops.findings.case import Case
    from traceflops.memory.usage import MemoryUse
    from traceflops.table.columns import BoolArray, IntArray
    from traceflops.table.trace import Trace
    from traceflops.windows.prepared import Prepared

_WAYS: Final = ("HtoD", "DtoH")
_PAGEABLE, _PINNED = "pageable", "pinned"
_MOST_ROWS: Final = 3
_FEW: Final = 10
"""Copies of one kind that take less than one part in so many of all are not told."""
_TAKES: Final = ("segment_alloc", "segment_map")
_GIVES: Final = ("segment_free", "segment_unmap")
"""Marks of a memory snapshot: calls that take memory of the GPU or give it back."""
_ALLOCATED: Final = re.compile(r"aten::empty(_strided)?$")
"""Operators that allocate, each once: others call these."""
_ASKED: Final = re.compile(r"(cuda|hip)Malloc(Async)?(_v\d+)?$|(cu|hip)MemAlloc(Async)?(_v2)?$")
_FREED: Final = re.compile(r"(cuda|hip|cuMem)Free(Async)?(_v\d+)?$")
_BURST_NS, _MANY = 10**9, 10
_LAUNCHING: Final = ("eager_overhead", "optimizer_loop", "launch_latency")


def host_copies(case: Case) -> Iterator[Cause]:
    """Give a cause where only copies between CPU and GPU run; pageable ones have own words."""
    if case.prepared is None:
        return
    # Which activities copy between CPU and GPU
    table = case.prepared.trace.activities
    ways = matching(table["direction"], lambda direction: direction in _WAYS)
    rows = is_one_of(table["kind"], "memcpy") & ways
    alone_ns, others_ns = _times_ns(case.prepared, rows)
    share = share_of_window(case, alone_ns)
    if share < limit(case, "host-copies", "least_share"):
        return
    copies = [copy for copy in memory_operations(case.prepared) if copy.name in _WAYS]
    copies.sort(key=attrgetter("sum_ns"), reverse=True)
    total_ns = sum(copy.sum_ns for copy in copies)
    copies = [copy for copy in copies if _FEW * copy.sum_ns >= total_ns]
    is_pageable = 2 * sum(copy.sum_ns for copy in copies if copy.memory == _PAGEABLE) > total_ns
    room = share_of_window(case, others_ns)
    is_little = room < share
    yield cause(
        case,
        "pageable-copies" if is_pageable else "host-copies",
        share,
        {"copies": tuple(map(_copied, copies))},
        (fact("host-copies.little-work", room=room),) * is_little,
        frozenset({"little-work"} if is_little else ()),
        rows=tuple(
            Row(
                f"{copy.name}, {copy.memory} memory" if copy.memory else copy.name,
                copy.sum_ns,
                copy.count,
            )
            for copy in copies
        ),
        gain=Gain(0, alone_ns // case.windows_used, None),
    )


def uploads_pinned(case: Case) -> bool:
    """Return whether copies to the GPU are mostly from pinned memory already."""
    if case.prepared is None:
        return False
    copies = [copy for copy in memory_operations(case.prepared) if copy.name == "HtoD"]
    pinned_ns = sum(copy.sum_ns for copy in copies if copy.memory == _PINNED)
    return 2 * pinned_ns > sum(copy.sum_ns for copy in copies)


def reads_back(case: Case) -> bool:
    """Return whether values are copied from the GPU, or may be as copies are not recorded."""
    if case.prepared is None or lacks_copies(case.prepared.trace):
        return True
    return bool(is_one_of(case.prepared.trace.activities["direction"], "DtoH").any())


def _times_ns(prepared: Prepared, copies: BoolArray) -> tuple[int, int]:
    """Return how long only these copies run in the chosen windows, and how long all else does."""
    alone = busy = 0
    for device, account in prepared.accounts.items():
        rows = account.rows
        is_copy = copies[rows.row]
        copying, others = (
            Intervals.of(rows.start_ns[some], rows.end_ns[some]) for some in (is_copy, ~is_copy)
        )
        chosen = chosen_time(prepared.windows[device])
        alone += copying.subtract(others).intersect(chosen).length_ns
        busy += others.intersect(chosen).length_ns
    return alone, busy


def _named(copies: MemoryOperation) -> str:
    return f"{copies.name}, {copies.memory} memory" if copies.memory else copies.name


def _copied(copies: MemoryOperation) -> Fact:
    """Return how many copies of a kind there are, and how fast."""
    rate = copies.bytes_per_ns or None
    return fact("host-copies.copies", count=copies.count, direction=_named(copies), rate=rate)


def memory_headroom(case: Case) -> Iterator[Cause]:
    """Give a cause where the host launches too slowly and a batch twice as large would fit."""
    pace, prepared = case.host_bound, case.prepared
    if prepared is None or pace is None or not pace.is_bound or prepared.plan.layout.are_passes:
        return
    if not of_ml(prepared.trace):
        return
    launching = [idle_class for idle_class in case.idle.by_class() if idle_class.kind in _LAUNCHING]
    share = share_of_window(case, sum(idle_class.idle_ns for idle_class in launching))
    used = [use.share_of_device for use in memory_use(prepared) if not use.on_host]
    known_uses = [use for use in used if use is not None]
    if (
        share < limit(case, "memory-headroom", "least_share")
        or not known_uses
        or len(known_uses) < len(used)
    ):
        return
    if max(known_uses) > limit(case, "memory-headroom", "most_used"):
        return
    yield cause(case, "memory-headroom", share, {"used": max(known_uses)})


def allocator_calls(case: Case) -> Iterator[Cause]:
    """Give a cause where the GPU is idle around calls that take or give back its memory."""
    prepared = case.prepared
    if prepared is None or not prepared.accounts:
        return
    calls = _times_of(prepared.trace, *_TAKES, *_GIVES)
    idle_ns, inside = 0, np.zeros(len(calls), dtype=np.bool_)
    for device, account in prepared.accounts.items() if len(calls) else ():
        busy = Intervals.of(account.rows.start_ns, account.rows.end_ns)
        idle = chosen_time(prepared.windows[device]).subtract(busy)
        gaps = np.searchsorted(idle.start_ns, calls, side="right") - 1
        gaps = np.unique(gaps[idle.contains(calls)])
        idle_ns += int((idle.end_ns[gaps] - idle.start_ns[gaps]).sum())
        inside |= chosen_time(prepared.windows[device]).contains(calls)
    share = share_of_window(case, idle_ns)
    if share < limit(case, "allocator-calls", "least_share"):
        return
    is_recorded = any(idle_class.kind == "memory_alloc" for idle_class in case.idle.by_class())
    calls = calls[inside]
    owner, finder = numbers(prepared.trace.devices["process"]), StepFinder(prepared)
    steps = {
        step
        for device in prepared.accounts
        for step in finder.of(int(owner[device]), device).numbers_at(calls).tolist()
    }
    listed_steps = ranges(steps) if steps else None
    yield cause(
        case,
        "allocator-calls",
        share,
        {"calls": len(calls), "count": len(steps), "steps": listed_steps},
        rows=tuple(_askers(prepared.trace, calls)),
        edits=("memory_alloc=0",) * is_recorded,
        doubts=(fact("doubt.other-host-work"),) * (not is_recorded),
        gain=None if is_recorded else Gain(0, idle_ns // case.windows_used, None),
    )


def allocator_state(case: Case) -> set[str]:
    """Return whether PyTorch's caching allocator is off, or CUDA's asynchronous one is used.

    Then nearly each operator that allocates asks the driver, which gets as much back: a cache asks
    for a size only once, and gives back in bursts.
    """
    prepared = case.prepared
    if prepared is None or "torch" not in case.program:
        return set()
    calls, ops = prepared.trace.calls, prepared.trace.ops
    asked, freed = (matching(calls["name"], name.match) for name in (_ASKED, _FREED))
    asks = matching(ops["name"], _ALLOCATED.match)
    holds = np.zeros(len(asks), dtype=np.bool_)
    op = prepared.linked.links.op_of_call[asked]
    holds[op[op >= 0]] = True
    least = limit(case, "memory-alloc", "uncached") * int(asks.sum())
    if asks.sum() < _MANY or (holds & asks).sum() < least or freed.sum() < least:
        return set()
    is_async = matching(calls["name"], lambda name: "Async" in name)
    is_mostly_async = 2 * (asked & is_async).sum() > asked.sum()
    return {"allocator-async" if is_mostly_async else "allocator-uncached"}


def _times_of(trace: Trace, *marks: str, process: int | None = None) -> IntArray:
    """Return when the allocator made such calls: in all processes, or in one."""
    wanted = is_one_of(trace.marks["kind"], "event") & is_one_of(trace.marks["name"], *marks)
    if process is not None:
        wanted &= numbers(trace.marks["process"]) == process
    return numbers(trace.marks["start_ns"])[wanted]


def _askers(trace: Trace, calls: IntArray) -> Iterator[Row]:
    """Yield who made most of some calls, by the stacks of a snapshot."""
    table = trace.counters
    rows = np.flatnonzero(
        is_one_of(table["name"], "device_memory.reserved_bytes")
        & np.isin(numbers(table["time_ns"]), calls)
        & (codes(table["stack"]) >= 0)
    )
    texts = names(table["stack"])
    stack = codes(table["stack"])[rows]
    for _, same in sorted(groups(stack), key=lambda pair: -len(pair[1]))[:_MOST_ROWS]:
        op, _, callers = texts[int(stack[same[0]])].partition(BETWEEN)
        yield Row(row_name(_asker(op, callers)), 0, len(same))


def _asker(op: str, callers: str) -> str:
    """Return an operator and the line that called it."""
    return " in ".join(map(function_name, filter(None, (op, callers.partition(BETWEEN)[0]))))


def memory_verdict(prepared: Prepared) -> Verdict | None:
    """Return what a memory snapshot says, None for what has a timeline or says nothing of it."""
    facts = () if prepared.accounts else memory_facts(prepared)
    return Verdict(facts, "memory-use") if facts else None


def memory_facts(prepared: Prepared) -> tuple[Fact, ...]:
    """Return what is to say of the memory of the fullest GPU, nothing where that is unknown."""
    used = memory_use(prepared)
    use = fullest_gpu(used)
    return tuple(_of_memory(prepared, use, used)) if use is not None else ()


def _of_memory(prepared: Prepared, use: MemoryUse, used: Sequence[MemoryUse]) -> Iterator[Fact]:
    """Yield the facts on the memory of one GPU: failures, peak, unused bytes, calls for more.

    `use` is of that GPU; `used` are all devices, of which those of its process share the calls.
    """
    trace = prepared.trace
    yield from _failed(trace, use.process)
    rank = use.rank if len(trace.ranks) > 1 else None
    named = "snapshot.gpu" if use.local_id is not None else "snapshot.gpu-of-unknown-number"
    most = next(
        (holder for holder in holders(prepared, use) if holder.recorded and holder.op), None
    )
    yield fact(
        "snapshot.peak",
        gpu=fact(named, number=use.local_id, rank=rank),
        bytes=use.allocated.peak,
        part=most.bytes if most else None,
        asker=_asker(most.op, most.scope) if most else None,
    )
    if use.unused_at_peak:
        largest = use.largest_free or None
        yield fact("snapshot.unused", bytes=use.unused_at_peak, largest=largest)
    times = _times_of(trace, *_TAKES, process=use.process)
    if len(times) >= _MANY:
        at_once = int((np.searchsorted(times, times + _BURST_NS) - np.arange(len(times))).max())
        is_all = at_once == len(times)
        burst = fact("snapshot.all") if is_all else fact("snapshot.of-them", count=at_once)
        gpus = {
            holder.device for holder in used if holder.process == use.process and not holder.on_host
        }
        yield fact(
            "snapshot.taken",
            whose=fact("snapshot.the-gpu" if len(gpus) < 2 else "snapshot.its-gpus"),
            count=len(times),
            burst=burst if trace.source.origin_unix_ns is not None else None,
        )


def _failed(trace: Trace, process: int) -> Iterator[Fact]:
    """Give how many allocations failed, how much the last asked for, and who it was."""
    table = trace.counters
    is_failure = is_one_of(table["name"], "device_memory.failed_bytes")
    rows = np.flatnonzero(is_failure & (numbers(table["process"]) == process))
    if not len(rows):
        return
    (size,), stack = floats(table["value"])[rows[-1:]], int(codes(table["stack"])[rows[-1]])
    op, _, callers = (names(table["stack"])[stack] if stack >= 0 else "").partition(BETWEEN)
    yield fact(
        "snapshot.failed",
        count=len(rows),
        which=fact("snapshot.last" if len(rows) > 1 else "snapshot.this"),
        bytes=int(size),
        asker=_asker(op, callers) if op else None,
    )


_UNIFIED: Final = "unified-memory"
_MIGRATION: Final = "migration"
_PREFETCH: Final = "prefetch"
_MOST_WAITING: Final = 3


def unified_memory(case: Case) -> Iterator[Cause]:
    """Give a cause where pages migrate on demand while kernels run."""
    if case.prepared is None:
        return
    inside_ns, kernels_ns, by_kernel = _migration_times(case.prepared)
    share = share_of_window(case, inside_ns)
    if share < limit(case, _UNIFIED, "least_share"):
        return
    waiting = by_kernel.most_common(_MOST_WAITING)
    high_ns = inside_ns // case.windows_used
    yield cause(
        case,
        _UNIFIED,
        share,
        {"migrating_ns": inside_ns, "kernels_ns": kernels_ns},
        (fact("part.largest", name=short_name(waiting[0][0])),),
        rows=tuple(Row(row_name(name), ns) for name, ns in waiting),
        gain=Gain(high_ns // 2, high_ns, None),
    )


def _migration_times(prepared: Prepared) -> tuple[int, int, Counter[str]]:
    """Return how long pages migrate while kernels run, how long these run; the first by kernel."""
    table, inside_ns, kernels_ns = prepared.trace.activities, 0, 0
    label, name = names(table["name"]), codes(table["name"])
    moves = matching(table["direction"], lambda direction: direction.startswith(_MIGRATION))
    moves &= ~matching(table["name"], lambda text: _PREFETCH in text)
    computes = is_one_of(table["kind"], "kernel")
    by_name = np.zeros(len(label), dtype=np.int64)
    for device, account in prepared.accounts.items() if moves.any() else ():
        rows, chosen = account.rows, chosen_time(prepared.windows[device])
        moving, running = (
            Intervals.of(rows.start_ns[some], rows.end_ns[some]).intersect(chosen)
            for some in (moves[rows.row], computes[rows.row])
        )
        inside_ns += moving.intersect(running).length_ns
        kernels_ns += running.length_ns
        is_kernel = computes[rows.row]
        each_ns = moving.length_within(rows.start_ns[is_kernel], rows.end_ns[is_kernel])
        by_name += group_sums(name[rows.row[is_kernel]], each_ns, len(label))
    return inside_ns, kernels_ns, Counter(dict(zip(label, by_name.tolist(), strict=True)))
