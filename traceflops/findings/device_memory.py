"""Rules of memory: copies and fills beside no other work, small pieces, room for a larger batch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from traceflops.attribution.host_calls import MemoryOperation, memory_operations
from traceflops.attribution.host_events import has_fact
from traceflops.categories.programs import of_ml
from traceflops.facts import Fact, fact
from traceflops.findings import copy_sizes
from traceflops.findings.calls_alone import outermost
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.finding import Cause, Gain, Row, row_name
from traceflops.memory.usage import memory_use
from traceflops.table.columns import (
    BoolArray,
    codes,
    is_one_of,
    matching,
    names,
    numbers,
    thread_columns,
)
from traceflops.table.grouping import joint_codes, ranked
from traceflops.table.patterns import ASYNC_COPY
from traceflops.table.trace import Trace
from traceflops.timeline.host_work import lacks_copies
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

_MOSTLY: Final = 0.9
"""From this share of uploads on, copies are of input: offloaded data are copied both ways."""
_FEW: Final = 10
"""A kind with less than 1/_FEW of the time of copies is not told. Fewer copies are made once."""
_ALLOCATED: Final = re.compile(r"aten::empty(_strided)?$")
"""The operators that allocate: all others call one of these."""
_ASKED: Final = re.compile(r"(cuda|hip)Malloc(Async)?(_v\d+)?$|(cu|hip)MemAlloc(Async)?(_v2)?$")
_FREED: Final = re.compile(r"(cuda|hip|cuMem)Free(Async)?(_v\d+)?$")
_JOIN: Final = "host-copies.remedy.join"
_LOADER, _PIN = "DataLoader", "pin_memory=True"
_MANY: Final = 10  # so many operators that allocate tell whether the cache of memory is used
LAUNCHING_CLASSES: Final = ("other_calls", "eager_overhead", "optimizer_loop", "launch_latency")


def host_copies(case: Case) -> Iterator[Cause]:
    """Give a cause if the GPU does nothing but copy to or from the CPU for too long.

    Its rule is `pageable-copies` if most of the copying is of pageable memory, else `host-copies`.
    """
    is_copy = copy_sizes.between_host_and_device(case.prepared.trace)
    alone_ns, others_ns = times_alone_ns(case.prepared, is_copy)
    if share_of_window(case, alone_ns) >= limit(case, "host-copies", "least_share"):
        copies = _with_launches(case, _copies_alone(case, alone_ns, others_ns))
        yield copy_sizes.blamed_on_mpi(copies, case)


def _with_launches(case: Case, copies: Cause) -> Cause:
    """Return the cause of copies that are to be joined with the idle time of launching them."""
    late_ns = sum(
        own.idle_ns
        for own in case.idle.culprits
        if own.kind == "launch_latency" and ASYNC_COPY.match(own.label)
    )
    are_joined = copies.advice is not None and copies.advice.code == _JOIN
    late = share_of_window(case, late_ns)
    if not are_joined or copies.gain is None or late < limit(case, "host-copies", "least_share"):
        return copies
    gain = replace(copies.gain, high_ns=copies.gain.high_ns + late_ns // case.windows_used)
    details = (fact("host-copies.launches", share=late), *copies.details)
    return replace(copies, share=copies.share + late, gain=gain, details=details)


def _copies_alone(case: Case, alone_ns: int, others_ns: int) -> Cause:
    """Return the cause on copies beside no other work; `others_ns` is the time of other work."""
    share, room = share_of_window(case, alone_ns), share_of_window(case, others_ns)
    prepared = case.prepared
    copies, memory, are_uploads = _kinds_of_copies(prepared)
    is_pageable = memory == copy_sizes.PAGEABLE
    rule = "pageable-copies" if is_pageable else "host-copies"
    sizes, values = copy_sizes.small_copies(case)
    again = {} if sizes or "torch" in case.program else copy_sizes.same_uploads(case)
    # The speed of small copies tells nothing about pinning or the link.
    is_judged = not sizes and (is_pageable or not again)
    part, speeds = copy_sizes.part_of_speed(case, memory) if memory and is_judged else (None, {})
    is_slow = part is not None and part < limit(case, rule, "poor")
    # With little other work nothing hides copies; few copies are worth neither hiding nor pinning.
    is_little = room < share
    if again:
        again["other"] = copy_sizes.other_way(is_little=is_little, is_pinned=are_pinned(case))
    are_few = not case.steps.used and sum(copy.count for copy in copies) < _FEW
    hides_none = is_little or are_few
    is_told_else = bool(case.steps.used or are_few or again or is_slow)
    are_loading = not is_told_else and _come_first(prepared.trace)
    loads = _has_loader(prepared.trace)
    choosing = {
        "again": bool(again),
        "uploads": are_uploads,
        "little-work": is_little,
        "beside-nothing": hides_none,
        "once": are_few and is_pageable,
        "loading": are_loading,
        "fast": part is not None and not is_slow,
        "slow-link": is_slow and not is_pageable,
        "loader": loads,
        "one-memory": copy_sizes.in_one_memory(case.measured),
    }
    knows = sizes | {name for name, holds in choosing.items() if holds}
    back = any((copy.name, copy.memory) == ("DtoH", copy_sizes.PAGEABLE) for copy in copies)
    values |= {"loader": _PIN if loads else None, "back": _PIN if back else None}
    values |= again | (speeds if is_slow else {})
    # Pinning makes copies faster that nothing hides; others can be hidden or left out entirely.
    is_faster = is_slow and is_pageable and hides_none and not again
    gain_ns = alone_ns * (1 - part) if part is not None and is_faster else alone_ns
    # Without a kernel, copies are all that the program does: nobody knows what they are for.
    is_work = is_pageable or is_one_of(prepared.trace.activities["kind"], "kernel").any()
    is_gain = is_work and knows.isdisjoint({"once", "loading"})
    return cause(
        case,
        rule,
        share,
        {"copies": tuple(map(_copied, copies)), **values},
        (fact("host-copies.little-work", room=room),) * is_little,
        frozenset(knows),
        rows=tuple(Row(_named(copy), copy.sum_ns, copy.count) for copy in copies),
        gain=Gain(0, round(gain_ns) // case.windows_used, None) if is_gain else None,
    )


def _has_loader(trace: Trace) -> bool:
    """Return whether operators or ranges are those of a DataLoader."""
    tables = trace.ops, trace.marks
    return any(_LOADER in name for table in tables for name in names(table["name"]))


def _come_first(trace: Trace) -> bool:
    """Return whether copies between CPU and GPU come before the first kernel, by their time."""
    rows, is_kernel = trace.activities, is_one_of(trace.activities["kind"], "kernel")
    if not is_kernel.any():
        return False
    start, dur_ns = numbers(rows["start_ns"]), numbers(rows["dur_ns"])
    dur_ns = np.where(copy_sizes.between_host_and_device(trace), dur_ns, 0)
    before_ns = dur_ns[start < start[is_kernel].min()].sum()
    return bool(before_ns >= _MOSTLY * dur_ns.sum())


def _kinds_of_copies(prepared: Prepared) -> tuple[list[MemoryOperation], str | None, bool]:
    """Return the kinds of copies worth telling, the memory of most, and whether most are uploads.

    Kinds are sorted by time, the longest first. The memory is None if none has most of the time.
    """
    copies = [copy for copy in memory_operations(prepared) if copy.name in copy_sizes.WAYS]
    copies.sort(key=lambda copy: -copy.sum_ns)
    total_ns = sum(copy.sum_ns for copy in copies)
    copies = [copy for copy in copies if _FEW * copy.sum_ns >= total_ns]
    memory_ns = Counter[str | None]()
    for copy in copies:
        memory_ns[copy.memory] += copy.sum_ns
    memory = next((kind for kind, time_ns in memory_ns.items() if 2 * time_ns > total_ns), None)
    uploaded_ns = sum(copy.sum_ns for copy in copies if copy.name == "HtoD")
    return copies, memory, uploaded_ns >= _MOSTLY * total_ns


def are_pinned(case: Case, ways: Sequence[str] = ("HtoD",)) -> bool:
    """Return whether copies in these directions are mostly of pinned memory."""
    copies = [copy for copy in memory_operations(case.prepared) if copy.name in ways]
    pinned_ns = sum(copy.sum_ns for copy in copies if copy.memory == copy_sizes.PINNED)
    return 2 * pinned_ns > sum(copy.sum_ns for copy in copies)


def reads_back(case: Case) -> bool:
    """Return whether values are copied from the GPU, or may be because copies are not recorded."""
    trace = case.prepared.trace
    has_some = is_one_of(trace.activities["direction"], "DtoH").any()
    return bool(has_some or not case.has_events or lacks_copies(trace))


def times_alone_ns(prepared: Prepared, copies: BoolArray) -> tuple[int, int]:
    """Return two times in chosen windows: in which only `copies` run, and in which others run.

    `copies` is a mask of the activities. Both times are sums over the devices.
    """
    alone_ns = others_ns = 0
    for device, account in prepared.accounts.items():
        rows, is_copy = account.rows, copies[account.rows.row]
        copying, others = (
            Intervals.of(rows.start_ns[some], rows.end_ns[some]) for some in (is_copy, ~is_copy)
        )
        chosen = chosen_time(prepared.windows[device])
        alone_ns += copying.subtract(others).intersect(chosen).length_ns
        others_ns += others.intersect(chosen).length_ns
    return alone_ns, others_ns


def _named(copies: MemoryOperation) -> str:
    """Return the direction of copies, and the kind of memory if it is known."""
    return f"{copies.name}, {copies.memory} memory" if copies.memory else copies.name


def _copied(copies: MemoryOperation) -> Fact:
    """Return how many copies of a kind there are, and their rate unless launches limit it."""
    rate = None if copy_sizes.are_small(copies.bytes, copies.count) else copies.bytes_per_ns
    return fact("host-copies.copies", count=copies.count, direction=_named(copies), rate=rate)


def memory_headroom(case: Case) -> Iterator[Cause]:
    """Give a cause if launching is too slow, and memory has room for a batch twice as large.

    A larger batch does more work with as many launches.
    """
    pace = case.host_bound
    if pace is None or not pace.is_bound or case.prepared.plan.layout.are_passes:
        return  # the batch of a server's pass follows from the requests
    if not of_ml(case.prepared.trace):
        return  # only models have batches
    launching = [
        idle_class for idle_class in case.idle.by_class() if idle_class.kind in LAUNCHING_CLASSES
    ]
    share = share_of_window(case, sum(idle_class.idle_ns for idle_class in launching))
    is_enough = share >= limit(case, "memory-headroom", "least_share")
    if is_enough and (used := _has_room(case)):
        yield cause(case, "memory-headroom", share, {"used": used})


def _has_room(case: Case) -> float | None:
    """Return the share of memory used on the fullest GPU, None if it is much or unknown."""
    used = [use.share_of_device for use in memory_use(case.prepared) if not use.on_host]
    known = [share for share in used if share is not None]
    if not known or len(known) < len(used):
        return None
    return max(known) if max(known) <= limit(case, "memory-headroom", "most_used") else None


def allocator_state(case: Case) -> set[str]:
    """Return what is wrong with PyTorch's cache of GPU memory: the name of a remedy, or nothing.

    allocator-uncached  the cache is off: nearly each operator that allocates asks the driver for
                        memory, and gives it back
    allocator-async     the same, with CUDA's asynchronous allocator
    allocator-full      an operator gives several blocks back to the driver before it asks for one
    """
    prepared = case.prepared
    if "torch" not in case.program:
        return set()
    calls, ops = prepared.trace.calls, prepared.trace.ops
    asked, freed = (matching(calls["name"], name.match) for name in (_ASKED, _FREED))
    # Before that, cudaFree(0) creates the context, and cuDNN frees as it chooses algorithms.
    start_ns = numbers(calls["start_ns"])
    times = map(chosen_time, prepared.windows.values())
    freed &= np.any([time.contains(start_ns) for time in times], axis=0)
    allocates = matching(ops["name"], _ALLOCATED.match)
    op_of_call = prepared.linked.links.op_of_call
    frees_of_op, asks_of_op = (
        np.bincount(op_of_call[some & (op_of_call >= 0)], minlength=ops.num_rows)
        for some in (freed, asked)
    )
    count, asking = int(allocates.sum()), int((allocates & (asks_of_op > 0)).sum())
    least = limit(case, "memory-alloc", "uncached") * count
    if count < _MANY or asking < least or freed.sum() < least:
        is_full = ((frees_of_op > 1) & (asks_of_op > 0)).any() and not _has_room(case)
        return {"allocator-full"} if is_full else set()
    is_async = matching(calls["name"], lambda name: "Async" in name)
    is_mostly_async = 2 * (asked & is_async).sum() > asked.sum()
    return {"allocator-async" if is_mostly_async else "allocator-uncached"}


_FILLS: Final = "fills"
_FILL: Final = "memset"


def fills(case: Case) -> Iterator[Cause]:
    """Give a cause if the GPU does nothing but fill memory for too long, and has other work."""
    is_fill = is_one_of(case.prepared.trace.activities["kind"], _FILL)
    alone_ns, others_ns = times_alone_ns(case.prepared, is_fill)
    share = share_of_window(case, alone_ns)
    if share < limit(case, _FILLS, "least_share") or not others_ns:
        return
    kinds = [kind for kind in memory_operations(case.prepared) if kind.kind == _FILL]
    count = sum(kind.count for kind in kinds)
    # Rate and size are told of one kind of fills only.
    size, rate = (kinds[0].bytes, kinds[0].bytes_per_ns) if len(kinds) == 1 else (None, None)
    yield cause(
        case,
        _FILLS,
        share,
        {"count": count, "bytes": size, "rate": rate if size is not None else None},
        rows=tuple(
            Row(row_name(row.name), row.sum_ns, row.count)
            for row in case.measured.kernels
            if row.category.sub == _FILL
        ),
        gain=Gain(0, alone_ns // case.windows_used, None),
    )


_PIECES: Final = "small-pieces"
_MOVES: Final = frozenset({"copy", "memset"})


def small_pieces(case: Case) -> Iterator[Cause]:
    """Give a cause if a series of calls is repeated that allocates and copies a small piece.

        |alloc|  |fill| |copy| |wait|    |alloc|  |fill| |copy| |wait|    ...    # of one thread
        |<--------- a piece --------->|

    Nothing is given if kernels do more than fill memory: they may need each piece before the next.
    """
    subs = {row.category.sub for row in case.measured.kernels}
    if len(case.prepared.windows) != 1 or not subs or not subs <= _MOVES:
        return
    calls = case.prepared.trace.calls
    (windows,) = case.prepared.windows.values()
    inside = chosen_time(windows).contains(numbers(calls["start_ns"]))
    allocates = has_fact(calls["name"], "allocates")
    if not (allocates & inside).any():
        return
    # The calls of the thread that allocates most, in order, none nested
    _, thread = ranked(joint_codes(*thread_columns(calls)))
    busiest = np.bincount(thread[allocates & inside]).argmax()
    row = outermost(calls, np.flatnonzero(inside & (thread == busiest)))
    name = codes(calls["name"])[row]
    start_ns, dur_ns = (numbers(calls[column])[row] for column in ("start_ns", "dur_ns"))
    # A piece begins with an allocation, and has the most usual number of calls.
    begin = np.flatnonzero(allocates[row])
    distance = np.diff(begin)
    sizes, times = np.unique(distance, return_counts=True)
    if not len(sizes):
        return
    size = int(sizes[times.argmax()])
    begin = begin[:-1][distance == size]
    places = begin[:, np.newaxis] + np.arange(size)  # a row per piece, a column per call
    # Of these pieces, the most frequent series of names
    series, number, times = np.unique(name[places], axis=0, return_inverse=True, return_counts=True)
    usual, count = times.argmax(), int(times.max())
    is_usual = number.reshape(-1) == usual
    piece_ns = (start_ns[begin + size] - start_ns[begin])[is_usual]
    # A pause after a piece, which makes the mean longer, is not part of its time.
    each_ns = min(int(np.median(piece_ns)), int(piece_ns.sum()) // count)
    whole_ns = each_ns * count
    small, values = copy_sizes.small_copies(case)
    share, least = share_of_window(case, whole_ns), limit(case, _PIECES, "least_share")
    if count < limit(case, _PIECES, "least_pieces") or share < least or not small:
        return
    labels = names(calls["name"])
    of_piece = tuple(labels[code] for code in series[usual].tolist())
    values = {**values, "count": count, "each_ns": each_ns, "calls": of_piece}
    # At least the calls of all pieces but one are saved, at most all the time.
    called_ns = int(dur_ns[places[is_usual]].sum())
    called_ns -= called_ns // count
    gain = Gain(called_ns // case.windows_used, whole_ns // case.windows_used, None)
    yield cause(case, _PIECES, share, values, gain=gain)
