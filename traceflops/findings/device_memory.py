"""Rules of memory: copies between CPU and GPU that nothing hides, and room for a larger batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from traceflops.attribution import memory_operations
from traceflops.findings.case import limit, share_of_window
from traceflops.findings.finding import Candidate, Row
from traceflops.memory import memory_use
from traceflops.remedies import PYTORCH, family
from traceflops.table import codes, distinct, is_one_of, matching, names
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
_ANY: Final = "Copy on a stream of its own while kernels run, or keep the data on the GPU."
_ANY_PIN: Final = f"Allocate host memory with cudaHostAlloc or hipHostMalloc. {_ANY}"
_LAUNCHING: Final = ("eager_overhead", "optimizer_loop", "launch_latency")


def host_copies(case: Case) -> Iterator[Candidate]:
    """Give a candidate where only copies between CPU and GPU run; pageable ones have own words."""
    if case.prepared is None:
        return
    rows = _between(case.prepared)
    share = share_of_window(case, _alone_ns(case.prepared, rows))
    if share < limit(case, "host-copies", "least_share"):
        return
    copies = [one for one in memory_operations(case.prepared) if one.name in _WAYS]
    copies.sort(key=attrgetter("sum_ns"), reverse=True)
    total_ns = sum(one.sum_ns for one in copies)
    copies = [one for one in copies if _FEW * one.sum_ns >= total_ns]
    is_pageable = 2 * sum(one.sum_ns for one in copies if one.memory == _PAGEABLE) > total_ns
    labels = names(case.prepared.trace.activities["name"])
    used = distinct(codes(case.prepared.trace.activities["name"])[rows]).tolist()
    edit = f"kernel:^({'|'.join(re.escape(labels[one]) for one in used)})$"
    is_torch = family(case.source.format) == PYTORCH
    with_torch, usual = (_PIN, _ANY_PIN) if is_pageable else (_PREFETCH, _ANY)
    yield Candidate(
        rule="pageable-copies" if is_pageable else "host-copies",
        title="Pageable copies hold up the GPU" if is_pageable else "Copies hold up the GPU",
        sentence=(
            f"Only copies between CPU and GPU run for {percent(share)} of the time: "
            f"{'; '.join(map(_copied, copies))}."
        ),
        share=share,
        owner="yours",
        remedy=with_torch if is_torch else usual,
        evidence=("categories", "host"),
        rows=tuple(Row(_name(one), one.sum_ns, one.count) for one in copies),
        edits=(f"{edit}=0",),
        on_path=frozenset({"memory"}),
        partly=(f"{edit}*1",),
        doubts=("there may be nothing to hide copies under",),
    )


def _between(prepared: Prepared) -> BoolArray:
    """Return which activities copy between CPU and GPU."""
    table = prepared.trace.activities
    ways = matching(table["direction"], lambda way: way in _WAYS)
    return is_one_of(table["kind"], "memcpy") & ways


def _alone_ns(prepared: Prepared, copies: BoolArray) -> int:
    """Return how long some activities run in the chosen windows while nothing else does."""
    total = 0
    for device, account in prepared.accounts.items():
        rows = account.rows
        mine = copies[rows.row]
        copying, others = (
            Intervals.of(rows.start_ns[some], rows.end_ns[some]) for some in (mine, ~mine)
        )
        chosen = chosen_time(prepared.windows[device])
        total += copying.subtract(others).intersect(chosen).length_ns
    return total


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
