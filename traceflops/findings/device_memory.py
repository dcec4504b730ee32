"""Rules of memory: copies between CPU and GPU that nothing hides, and room for a larger batch."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from traceflops.attribution import memory_operations
from traceflops.findings.case import is_torch, limit, share_of_window
from traceflops.findings.finding import Candidate, Gain, Row
from traceflops.memory import memory_use
from traceflops.table import is_one_of, matching
from traceflops.timeline import Intervals
from traceflops.units import percent, several, significant
from traceflops.windows import chosen_time

if TYPE_CHECKING:
    from traceflops.attribution import MemoryOperation
    from traceflops.findings.case import Case
    from traceflops.table import BoolArray
    from traceflops.windows import Prepared

_WAYS: Final = ("HtoD", "DtoH")
_PAGEABLE: Final = "pageable"
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
