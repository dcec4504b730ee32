"""How large and fast copies between CPU and GPU are: whether pinning or joining them helps.

A copy of a few bytes takes as long as its launch, pinned or not; so does a copy of pageable memory
that fits into the driver's own buffer. Larger copies reach the speed of the link if pinned.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from traceflops.attribution.host_calls import memory_operations
from traceflops.attribution.host_events import has_fact
from traceflops.attribution.idle_slices import chosen_gaps
from traceflops.devices.peaks import HostLink
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, limit
from traceflops.findings.finding import Cause
from traceflops.findings.rules import thresholds
from traceflops.mfu.measurement import Measurement
from traceflops.table.columns import (
    ABSENT,
    BoolArray,
    is_one_of,
    matching,
    numbers,
    span_columns,
    texts_of,
    thread_columns,
)
from traceflops.table.grouping import (
    distinct,
    group_least,
    group_most,
    group_sums,
    ranked,
    shared_codes,
)
from traceflops.table.nesting import innermost, parents, taken
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

WAYS: Final = ("HtoD", "DtoH")
_NEARLY_ALL: Final = 0.9
PAGEABLE, PINNED = "pageable", "pinned"
_RULE: Final = "host-copies"
_PIECE: Final = 10
"""Data copied in pieces may end with a piece this many times smaller than the others."""
MANY: Final = 10  # fewer copies may happen only once, and need no mending


def between_host_and_device(trace: Trace) -> BoolArray:
    """Return which activities copy between CPU and GPU."""
    ways = matching(trace.activities["direction"], lambda direction: direction in WAYS)
    return np.asarray(is_one_of(trace.activities["kind"], "memcpy") & ways)


def are_small(size: int | None, count: int) -> bool:
    """Return whether `count` copies or fills of `size` bytes together are small on average."""
    return (size or 0) <= thresholds()[_RULE]["small_bytes"] * count


def small_copies(case: Case, *, by_calls: bool = False) -> tuple[set[str], dict[str, Value]]:
    """Return {"tiny"} or {"small"} if most time goes to such copies, and their median size.

    Tiny copies of which nearly all go to the GPU are {"tiny", "uploads-only"}.
    The time is that of the copies or, with `by_calls`, of the calls that start them. These calls
    are known to block, so then even a few copies matter. There must be several small copies per
    step, else there is nothing to join. Both results are empty if any size is unknown.
    """
    chosen, trace = case.prepared.chosen, case.prepared.trace
    is_copy = between_host_and_device(trace)[chosen.row]
    row, time_ns = chosen.row[is_copy], chosen.inside_ns[is_copy]
    if by_calls:
        called_ns = numbers(trace.calls["dur_ns"])
        time_ns = taken(called_ns, case.prepared.linked.links.call_of_activity[row], 0)
    size = numbers(trace.activities["bytes"], ABSENT)[row]
    if (len(row) < MANY and not by_calls) or (size < 0).any() or not time_ns.any():
        return set(), {}
    order = np.argsort(size, kind="stable")
    reached_ns = np.cumsum(time_ns[order])
    median = int(size[order][np.searchsorted(2 * reached_ns, reached_ns[-1])])  # weighted by time
    if median <= limit(case, _RULE, "tiny_bytes"):
        is_upload = is_one_of(trace.activities["direction"], "HtoD")[row]
        are_uploads = time_ns[is_upload].sum() >= _NEARLY_ALL * time_ns.sum()
        return {"tiny"} | ({"uploads-only"} if are_uploads else set()), {"bytes": median}
    is_small = median <= limit(case, _RULE, "small_bytes") and len(row) >= 2 * case.windows_used
    return ({"small"}, {"bytes": median}) if is_small else (set(), {})


class _OfMpi(NamedTuple):
    """A function of MPI that makes most copies between CPU and GPU.

    `share` is its part of the time of its threads, which is that of the chosen windows, or from its
    first call to its last if that is longer; `in_calls` is the part of its own time in calls to the
    GPU: if most is, it waits for copies, not for ranks.
    """

    name: str
    share: float
    in_calls: float


def _made_by_mpi(case: Case) -> _OfMpi | None:
    """Return which function of MPI makes most copies between CPU and GPU, None if none does."""
    trace, chosen = case.prepared.trace, case.prepared.chosen
    mark = np.flatnonzero(has_fact(trace.marks["name"], "waits_for_ranks"))
    is_copy = between_host_and_device(trace)[chosen.row]
    call = case.prepared.linked.links.call_of_activity[chosen.row[is_copy]]
    if not len(mark) or not (call >= 0).any():
        return None
    of_mark, of_call = shared_codes(thread_columns(trace.marks, mark), thread_columns(trace.calls))
    start_ns, end_ns = span_columns(trace.marks, mark)
    call_start_ns, call_end_ns = span_columns(trace.calls)
    around = innermost(of_mark, start_ns, end_ns, of_call, call_start_ns)
    names = texts_of(trace.marks["name"], mark)
    copy_ns = Counter[str]()
    of_copy = taken(around, call)
    for place, time_ns in zip(of_copy.tolist(), chosen.inside_ns[is_copy].tolist(), strict=True):
        copy_ns[names[place] if place >= 0 else ""] += time_ns
    name = max(copy_ns, key=copy_ns.__getitem__)
    if not name or 2 * copy_ns[name] <= copy_ns.total():
        return None
    is_own = np.array(names) == name
    is_outer = parents(of_mark[is_own], start_ns[is_own], end_ns[is_own]) < 0
    own_ns, count = int((end_ns - start_ns)[is_own][is_outer].sum()), int(of_mark.max()) + 1
    first_ns = group_least(of_mark[is_own], start_ns[is_own], count)
    last_ns = group_most(of_mark[is_own], end_ns[is_own], count)
    window_ns = case.total.components.window_ns // max(len(case.devices), 1)
    called_ns = (last_ns - first_ns)[distinct(of_mark[is_own])]
    threads_ns = int(np.maximum(called_ns, window_ns).sum())
    is_inside = (parents(of_call, call_start_ns, call_end_ns) < 0) & (around >= 0)
    is_inside[is_inside] = is_own[around[is_inside]]
    inside_ns = int((call_end_ns - call_start_ns)[is_inside].sum())
    return _OfMpi(name, own_ns / max(threads_ns, 1), inside_ns / max(own_ns, 1))


def blamed_on_mpi(made: Cause, case: Case) -> Cause:
    """Return a cause on copies with the function of MPI that makes them, if one does.

    If that waits for its copies, its time is what counts, and no copy can be hidden alone.
    """
    if (mpi := _made_by_mpi(case)) is None:
        return made
    told = fact(f"{_RULE}.by-mpi", name=mpi.name, share=mpi.share)
    advice = fact(f"{_RULE}.mpi")
    if 2 * mpi.in_calls <= 1:
        return replace(made, details=(told, *made.details), advice=advice, owner="library")
    return replace(
        made,
        share=max(made.share, mpi.share),
        name=fact(f"{_RULE}.title-mpi"),
        claim=told,
        details=(made.claim, *made.details),
        advice=advice,
        owner="library",
        gain=None,
        doubts=(),
    )


def same_uploads(case: Case) -> dict[str, Value]:
    """Return how `often` the same data seem to go to a GPU, by the sizes of copies, and their size.

    The data are the bytes of `each` time, copied in pieces. The result is empty if these copies
    are few or small, less than half of what is uploaded, or more than the memory of the GPU.
    """
    trace, row = case.prepared.trace, case.prepared.chosen.row
    is_upload = between_host_and_device(trace) & is_one_of(trace.activities["direction"], "HtoD")
    row = row[is_upload[row]]
    size, device = (numbers(trace.activities[name], ABSENT)[row] for name in ("bytes", "device"))
    if not (size > 0).any():
        return {}
    # Several GPUs may get the same data once each: look at the one that gets most.
    devices, device_place = ranked(device)
    gets_most = int(group_sums(device_place, np.maximum(size, 0), len(devices)).argmax())
    size = size[device_place == gets_most]
    memory = int(numbers(trace.devices["memory_bytes"], ABSENT)[devices[gets_most]])
    sizes, counts = np.unique(size[size > 0], return_counts=True)
    moved = sizes * counts
    # Each piece of the data is copied equally often, or several times as often: take the divisor.
    is_piece = _PIECE * sizes >= sizes[moved.argmax()]
    often, moved_again = int(np.gcd.reduce(counts[is_piece])), int(moved[is_piece].sum())
    each = moved_again // often
    is_most = 2 * moved_again >= int(moved.sum())
    if often < MANY or not is_most or not limit(case, _RULE, "small_bytes") < each <= memory:
        return {}
    return {"often": often, "each": each}


def other_way(*, is_little: bool, is_pinned: bool) -> Fact:
    """Return what to do with copies of other data; `is_little`: nothing is left to copy beside."""
    if is_little and is_pinned:
        return fact("host-copies.limit")
    beside = None if is_little else fact("host-copies.beside")
    return fact(
        "host-copies.other", memory=None if is_pinned else fact("host-copies.pinned"), beside=beside
    )


def host_link(measured: Measurement) -> HostLink | None:
    """Return the link between CPU and GPU, None if it is unknown or GPUs differ in it."""
    links = {device.match.host_link for device in measured.devices}
    return links.pop() if len(links) == 1 else None


def in_one_memory(measured: Measurement) -> bool:
    """Return whether all GPUs use the memory of the CPU: then nothing needs to be copied."""
    return bool(measured.devices) and all(dev.match.one_memory for dev in measured.devices)


def part_of_speed(case: Case, memory: str) -> tuple[float | None, dict[str, Value]]:
    """Return what part of the possible rate copies of a kind of memory reach, and values of texts.

    The possible rate is that of the link. If the link is unknown, pageable copies could be as fast
    as the pinned copies of this recording. Copies that run at once share the link. The part is None
    if a rate is unknown.
    """
    copies = [copy for copy in memory_operations(case.prepared) if copy.name in WAYS]
    rates = {}
    for kind in (PAGEABLE, PINNED):
        timed = [copy for copy in copies if copy.memory == kind and copy.bytes_per_ns]
        moved, took_ns = sum(copy.bytes or 0 for copy in timed), sum(copy.sum_ns for copy in timed)
        if moved and took_ns:
            rates[kind] = moved / took_ns
    rate, link = rates.get(memory), host_link(case.measured)
    best = rates.get(PINNED) if memory == PAGEABLE else None
    than = fact("pageable-copies.than-pinned", rate=best) if best is not None else None
    if link is not None:
        best = float(link.bandwidth)
        than = fact("pageable-copies.than-link", link=link.name, rate=best)
    if rate is None or best is None:
        return None, {"rate": rate, "than": than}
    return min(rate * _at_once(case.prepared) / best, 1.0), {"rate": rate, "than": than}


def _at_once(prepared: Prepared) -> float:
    """Return how many copies between CPU and GPU run at once, on average while any does."""
    is_copy = between_host_and_device(prepared.trace)
    sum_ns = any_ns = 0
    for account in prepared.accounts.values():
        start_ns, end_ns = (
            column[is_copy[account.rows.row]]
            for column in (account.rows.start_ns, account.rows.end_ns)
        )
        sum_ns += int((end_ns - start_ns).sum())
        any_ns += Intervals.of(start_ns, end_ns).length_ns
    return sum_ns / any_ns if any_ns else 1.0


def before_batches(case: Case, idle_ns: int) -> dict[str, int]:
    """Return the `count` of gaps that end in a large copy to the GPU, and the `bytes` of one.

    The copy is that after the longest gap. The result is empty if other gaps together have more
    than a quarter of `idle_ns`. After kernels, such copies bring new data, not weights in set-up.
    """
    gaps, works = chosen_gaps(case.prepared), case.prepared.trace.activities
    gap_ns = gaps.end_ns - gaps.start_ns
    size = np.where(is_one_of(works["direction"], "HtoD"), numbers(works["bytes"], 0), 0)
    size = taken(size, gaps.activity, 0)
    kernel_ns = numbers(works["start_ns"])[is_one_of(works["kind"], "kernel")]
    is_batch = size > limit(case, _RULE, "small_bytes")
    is_batch &= gaps.gap_start_ns > kernel_ns.min(initial=np.iinfo(np.int64).max)
    if not is_batch.any() or 4 * int(gap_ns[~is_batch].sum()) > idle_ns:
        return {}
    longest = np.argmax(np.where(is_batch, gap_ns, 0))
    return {"count": int(np.count_nonzero(is_batch)), "bytes": int(size[longest])}
