"""Rules of memory: copies that nothing hides, room for a larger batch, calls of the allocator.

And the verdict on a memory snapshot, which has nothing but memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution import memory_operations
from traceflops.categories import of_ml
from traceflops.characters import function_name
from traceflops.devices import gib
from traceflops.findings.case import is_amd, is_torch, limit, share_of_window
from traceflops.findings.finding import Candidate, Gain, Row, Verdict, row_name
from traceflops.findings.idle_remedies import ON_AMD
from traceflops.memory import BETWEEN, StepFinder, fullest_gpu, holders, memory_use
from traceflops.table import codes, floats, groups, is_one_of, matching, names, numbers, ranges
from traceflops.timeline import Intervals
from traceflops.units import percent, several, significant
from traceflops.windows import chosen_time

if TYPE_CHECKING:
    from traceflops.attribution import MemoryOperation
    from traceflops.findings.case import Case
    from traceflops.memory import MemoryUse
    from traceflops.table import BoolArray, IntArray, Trace
    from traceflops.windows import Prepared

_WAYS: Final = ("HtoD", "DtoH")
_PAGEABLE: Final = "pageable"
_MOST_ROWS: Final = 3
_FEW: Final = 10
"""Copies of one kind that take less than one part in so many of all are not told."""
_PIN: Final = (
    "Set pin_memory=True in the DataLoader, copy with .to(device, non_blocking=True), and start "
    "the copy of the next batch on a stream of its own."
)
_PREFETCH: Final = (
    "Start copies earlier, with non_blocking=True on a stream of their own, or keep the data on "
    "the GPU: offload fewer weights, optimizer states or activations."
)
_KEEP: Final = "Keep the data on the GPU, or copy less: there is little work to copy beside."
_ANY: Final = "Copy on a stream of its own while kernels run, or keep the data on the GPU."
_ANY_PIN: Final = f"Allocate host memory with cudaHostAlloc or hipHostMalloc. {_ANY}"
_TAKES: Final = ("segment_alloc", "segment_map")
_GIVES: Final = ("segment_free", "segment_unmap")
"""Marks of a memory snapshot: calls that take memory of the GPU or give it back."""
_KEEP_SEGMENTS: Final = (
    "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, warm up with the largest inputs before "
    "the loop, pad inputs to a few sizes, and remove torch.cuda.empty_cache() from the step."
)
_ALLOCATED: Final = re.compile(r"aten::empty(_strided)?$")
"""Operators that allocate, each once: others call these."""
_ASKED: Final = re.compile(r"(cuda|hip)Malloc(Async)?(_v\d+)?$|(cu|hip)MemAlloc(Async)?(_v2)?$")
_FREED: Final = re.compile(r"(cuda|hip|cuMem)Free(Async)?(_v\d+)?$")
_NO_CACHE: Final = (
    "Turn the caching allocator on: unset PYTORCH_NO_{}_MEMORY_CACHING. It calls the driver only "
    "for sizes that it has not seen before."
)
_ASYNC: Final = (
    "Use PyTorch's own caching allocator: remove backend:cudaMallocAsync from "
    "PYTORCH_CUDA_ALLOC_CONF."
)
_BURST_NS, _MANY = 10**9, 10
_LAUNCHING: Final = ("eager_overhead", "optimizer_loop", "launch_latency")


def host_copies(case: Case) -> Iterator[Candidate]:
    """Give a candidate where only copies between CPU and GPU run; pageable ones have own words."""
    if case.prepared is None:
        return
    rows = _between(case.prepared)
    alone_ns, others_ns = _times_ns(case.prepared, rows)
    share = share_of_window(case, alone_ns)
    if share < limit(case, "host-copies", "least_share"):
        return
    copies = [one for one in memory_operations(case.prepared) if one.name in _WAYS]
    copies.sort(key=attrgetter("sum_ns"), reverse=True)
    total_ns = sum(one.sum_ns for one in copies)
    copies = [one for one in copies if _FEW * one.sum_ns >= total_ns]
    is_pageable = 2 * sum(one.sum_ns for one in copies if one.memory == _PAGEABLE) > total_ns
    room = share_of_window(case, others_ns)
    little = f" Other GPU work takes {percent(room)}, and can hide no more of them."
    with_torch, usual = (_PIN, _ANY_PIN) if is_pageable else (_PREFETCH, _ANY)
    yield Candidate(
        rule="pageable-copies" if is_pageable else "host-copies",
        title="Pageable copies hold up the GPU" if is_pageable else "Copies hold up the GPU",
        sentence=(
            f"Only copies between CPU and GPU run for {percent(share)} of the time: "
            f"{'; '.join(map(_copied, copies))}.{little * (room < share)}"
        ),
        share=share,
        owner="yours",
        remedy=_KEEP if room < share else with_torch if is_torch(case) else usual,
        evidence=("categories", "host"),
        rows=tuple(Row(_name(one), one.sum_ns, one.count) for one in copies),
        gain=Gain(0, alone_ns // case.windows_used, None),
        doubts=("there may be nothing to hide copies under",),
    )


def _between(prepared: Prepared) -> BoolArray:
    """Return which activities copy between CPU and GPU."""
    table = prepared.trace.activities
    ways = matching(table["direction"], lambda way: way in _WAYS)
    return is_one_of(table["kind"], "memcpy") & ways


def _times_ns(prepared: Prepared, copies: BoolArray) -> tuple[int, int]:
    """Return how long only these copies run in the chosen windows, and how long all else does."""
    alone = busy = 0
    for device, account in prepared.accounts.items():
        rows = account.rows
        mine = copies[rows.row]
        copying, others = (
            Intervals.of(rows.start_ns[some], rows.end_ns[some]) for some in (mine, ~mine)
        )
        chosen = chosen_time(prepared.windows[device])
        alone += copying.subtract(others).intersect(chosen).length_ns
        busy += others.intersect(chosen).length_ns
    return alone, busy


def _name(one: MemoryOperation) -> str:
    return f"{one.name}, {one.memory} memory" if one.memory else one.name


def _copied(one: MemoryOperation) -> str:
    """Return how many copies of a kind there are, and how fast."""
    rate = f", {significant(one.bytes_per_ns, 3)} GB/s" if one.bytes_per_ns else ""
    return f"{several(one.count, 'copy')} {_name(one)}{rate}"


def memory_headroom(case: Case) -> Iterator[Candidate]:
    """Give a candidate where the host launches too slowly and a batch twice as large would fit."""
    pace, prepared = case.host_bound, case.prepared
    if prepared is None or pace is None or not pace.is_bound or prepared.plan.layout.are_passes:
        return
    if not of_ml(prepared.trace):
        return
    launching = [one for one in case.idle.by_class() if one.kind in _LAUNCHING]
    share = share_of_window(case, sum(one.idle_ns for one in launching))
    used = [one.share_of_device for one in memory_use(prepared) if not one.on_host]
    known = [one for one in used if one is not None]
    if share < limit(case, "memory-headroom", "least_share") or not known or len(known) < len(used):
        return
    if max(known) > limit(case, "memory-headroom", "most_used"):
        return
    yield Candidate(
        rule="memory-headroom",
        title="Memory for a larger batch",
        sentence=(
            f"At most {percent(max(known))} of GPU memory is in use, and the GPU is idle for "
            f"{percent(share)} of the time while work is launched."
        ),
        share=share,
        owner="yours",
        remedy=(
            "Raise the batch size, so that each launch has more work, and compare time per sample."
        ),
        evidence=("memory", "idle"),
        doubts=("how work grows with the batch is not recorded",),
    )


def allocator_calls(case: Case) -> Iterator[Candidate]:
    """Give a candidate where the GPU is idle around calls that take or give back its memory."""
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
    remedy = _KEEP_SEGMENTS
    for cuda, hip in ON_AMD.items() if is_amd(case) else ():
        remedy = remedy.replace(cuda, hip)
    is_recorded = any(one.kind == "memory_alloc" for one in case.idle.by_class())
    calls = calls[inside]
    yield Candidate(
        rule="allocator-calls",
        title="The allocator calls the driver inside the step",
        sentence=(
            f"The GPU is idle for {percent(share)} of the time around "
            f"{several(len(calls), 'call')} that take or give back its memory"
            f"{_in_steps(prepared, calls)}."
        ),
        share=share,
        owner="yours",
        remedy=remedy,
        evidence=("memory", "idle"),
        rows=tuple(_askers(prepared.trace, calls)),
        edits=("memory_alloc=0",) * is_recorded,
        doubts=("other work of the host may lie in the same gaps",) * (not is_recorded),
        gain=None if is_recorded else Gain(0, idle_ns // case.windows_used, None),
    )


def uncached(case: Case) -> str:
    """Return how to turn the caching allocator on where it is off, "" where it is not.

    Then nearly each operator that allocates asks the driver, which gets as much back: a cache asks
    for a size only once, and gives back in bursts.
    """
    prepared = case.prepared
    if prepared is None or not is_torch(case):
        return ""
    calls, ops = prepared.trace.calls, prepared.trace.ops
    asked, freed = (matching(calls["name"], one.match) for one in (_ASKED, _FREED))
    asks = matching(ops["name"], _ALLOCATED.match)
    holds = np.zeros(len(asks), dtype=np.bool_)
    op = prepared.linked.links.op_of_call[asked]
    holds[op[op >= 0]] = True
    least = limit(case, "memory-alloc", "uncached") * int(asks.sum())
    if asks.sum() < _MANY or (holds & asks).sum() < least or freed.sum() < least:
        return ""
    is_async = matching(calls["name"], lambda name: "Async" in name)
    return (
        _ASYNC
        if 2 * (asked & is_async).sum() > asked.sum()
        else _NO_CACHE.format("HIP" if is_amd(case) else "CUDA")
    )


def _times_of(trace: Trace, *marks: str, process: int | None = None) -> IntArray:
    """Return when the allocator made such calls: in all processes, or in one."""
    wanted = is_one_of(trace.marks["kind"], "event") & is_one_of(trace.marks["name"], *marks)
    if process is not None:
        wanted &= numbers(trace.marks["process"]) == process
    return numbers(trace.marks["start_ns"])[wanted]


def _in_steps(prepared: Prepared, calls: IntArray) -> str:
    """Return in which steps of the host some calls are, in words."""
    owner, finder = numbers(prepared.trace.devices["process"]), StepFinder(prepared)
    each = (finder.of(int(owner[device]), device) for device in prepared.accounts)
    found = {step for steps in each for step in steps.numbers_at(calls).tolist()}
    return f", in {'step' if len(found) == 1 else 'steps'} {ranges(found)}" if found else ""


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
    said = "" if prepared.accounts else memory_sentence(prepared)
    return Verdict(said) if said else None


def memory_sentence(prepared: Prepared) -> str:
    """Return what is to say of the memory of the fullest GPU, "" where that is unknown."""
    used = memory_use(prepared)
    use = fullest_gpu(used)
    return " ".join(_of_memory(prepared, use, used)) if use is not None else ""


def _of_memory(prepared: Prepared, use: MemoryUse, used: Sequence[MemoryUse]) -> Iterator[str]:
    trace = prepared.trace
    yield from _failed(trace, use.process)
    gpu = f"GPU {use.local_id}" if use.local_id is not None else "The GPU"
    gpu += f" of rank {use.rank}" * (use.rank is not None and len(trace.ranks) > 1)
    found = [one for one in holders(prepared, use) if one.recorded and one.op]
    most = f", {gib(found[0].bytes)} by {_asker(found[0].op, found[0].scope)}" if found else ""
    yield f"{gpu} has {gib(use.allocated.peak)} allocated at its peak{most}."
    if use.unused_at_peak:
        largest = f", in pieces of at most {gib(use.largest_free)}" if use.largest_free else ""
        yield f"Another {gib(use.unused_at_peak)} is reserved and unused then{largest}."
    times = _times_of(trace, *_TAKES, process=use.process)
    if len(times) >= _MANY:
        at_once = int((np.searchsorted(times, times + _BURST_NS) - np.arange(len(times))).max())
        most = "all" if at_once == len(times) else f"{at_once:,} of them"
        burst = f", {most} within a second" * (trace.source.origin_unix_ns is not None)
        its = {one.device for one in used if one.process == use.process and not one.on_host}
        whose = "the GPU" if len(its) < 2 else "its GPUs"
        yield f"The allocator took memory from {whose} {several(len(times), 'time')}{burst}."


def _failed(trace: Trace, process: int) -> Iterator[str]:
    """Yield how many allocations failed, how much the last asked for, and who it was."""
    table = trace.counters
    is_one = is_one_of(table["name"], "device_memory.failed_bytes")
    rows = np.flatnonzero(is_one & (numbers(table["process"]) == process))
    if not len(rows):
        return
    (size,), stack = floats(table["value"])[rows[-1:]], int(codes(table["stack"])[rows[-1]])
    op, _, callers = (names(table["stack"])[stack] if stack >= 0 else "").partition(BETWEEN)
    asked = f"{'the last' if len(rows) > 1 else 'it'} asked for {gib(int(size))}"
    who = f", by {_asker(op, callers)}" if op else ""
    yield f"{several(len(rows), 'allocation')} failed: out of memory; {asked}{who}."
