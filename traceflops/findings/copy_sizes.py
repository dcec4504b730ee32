"""How large and fast copies between CPU and GPU are: whether pinning or joining them helps.

A copy of a few bytes takes as long as its launch, whatever its memory; so does a copy of pageable
memory that fits into the driver's own buffer. Larger ones reach the speed of the link if pinned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from traceflops.attribution.host_calls import MemoryOperation, memory_operations
from traceflops.devices.peaks import HostLink
from traceflops.facts import Value, fact
from traceflops.findings.case import Case, limit
from traceflops.findings.rules import thresholds
from traceflops.mfu.measurement import Measurement
from traceflops.table.columns import ABSENT, BoolArray, is_one_of, matching, numbers
from traceflops.table.grouping import group_sums, ranked
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared

WAYS: Final = ("HtoD", "DtoH")
PAGEABLE, PINNED = "pageable", "pinned"
_RULE: Final = "host-copies"
_PIECE: Final = 10
"""The last copy of some data may be so many times smaller than the others."""
_ALIKE: Final = 3
"""One way is slow if the other one is more than so many times as fast."""
_MANY: Final = 10
"""Fewer copies may be made once, and need no mending."""


def between_host_and_device(trace: Trace) -> BoolArray:
    """Return which activities copy between CPU and GPU."""
    ways = matching(trace.activities["direction"], lambda direction: direction in WAYS)
    return np.asarray(is_one_of(trace.activities["kind"], "memcpy") & ways)


def are_small(size: int | None, count: int) -> bool:
    """Return whether `count` copies or fills of `size` bytes together are small on average."""
    return (size or 0) <= thresholds()[_RULE]["small_bytes"] * count


def small_copies(case: Case, *, by_calls: bool = False) -> tuple[set[str], dict[str, Value]]:
    """Return {"tiny"} or {"small"} if most time goes to such copies, and their size for texts.

    The time is that of the copies or, `by_calls`, of the calls that start them: these are known to
    block, so then even a few copies matter. Small copies must be several per step, else there is
    nothing to join. Nothing is returned if any size is unknown.
    """
    if case.prepared is None:
        return set(), {}
    chosen, trace = case.prepared.chosen, case.prepared.trace
    own = between_host_and_device(trace)[chosen.row]
    row, time_ns = chosen.row[own], chosen.inside_ns[own]
    if by_calls:
        called_ns = numbers(trace.calls["dur_ns"])
        time_ns = taken(called_ns, case.prepared.linked.links.call_of_activity[row], 0)
    size = numbers(trace.activities["bytes"], ABSENT)[row]
    if (len(row) < _MANY and not by_calls) or (size < 0).any() or not time_ns.any():
        return set(), {}
    order = np.argsort(size, kind="stable")
    reached_ns = np.cumsum(time_ns[order])
    most = int(size[order][np.searchsorted(2 * reached_ns, reached_ns[-1])])  # weighted median
    if most <= limit(case, _RULE, "tiny_bytes"):
        return {"tiny"}, {"bytes": most}
    is_small = most <= limit(case, _RULE, "small_bytes") and len(row) >= 2 * case.windows_used
    return ({"small"}, {"bytes": most}) if is_small else (set(), {})


def same_uploads(case: Case) -> dict[str, Value]:
    """Return how `often` copies of the same sizes go to a GPU, and the bytes of `each` time.

    What is left of the data at the end is a copy of less than the usual size. Empty where that is
    not most of what is copied, not often, small, or more than the memory of the GPU.
    """
    if case.prepared is None:
        return {}
    trace, row = case.prepared.trace, case.prepared.chosen.row
    own = between_host_and_device(trace) & is_one_of(trace.activities["direction"], "HtoD")
    row = row[own[row]]
    size, device = (numbers(trace.activities[name], ABSENT)[row] for name in ("bytes", "device"))
    if not (size > 0).any():
        return {}
    # Several GPUs may get the same data once each: look at the one that gets most.
    number, of_device = ranked(device)
    gets_most = int(group_sums(of_device, np.maximum(size, 0), len(number)).argmax())
    size = size[of_device == gets_most]
    room = int(numbers(trace.devices["memory_bytes"], ABSENT)[number[gets_most]])
    sizes, counts = np.unique(size[size > 0], return_counts=True)
    moved = sizes * counts
    # The same data are copied as often as the counts of all its pieces allow.
    pieces = _PIECE * sizes >= sizes[moved.argmax()]
    often, moved_again = int(np.gcd.reduce(counts[pieces])), int(moved[pieces].sum())
    each = moved_again // often
    is_most = 2 * moved_again >= int(moved.sum())
    if often < _MANY or not is_most or not limit(case, _RULE, "small_bytes") < each <= room:
        return {}
    return {"often": often, "each": each}


def slower_way(copies: Sequence[MemoryOperation]) -> dict[str, Any]:
    """Return directions and rates (GB/s) of a `slow` way and a `fast` one, {} if none is slow.

    `copies` are those of large size by direction and memory, most time first. The way with most of
    the time is slow if it reaches less than a third of the other one, although a link is as fast
    both ways, and the kind of its host memory is not recorded.
    """
    slow, fast = copies[0], max(copies, key=lambda copy: copy.bytes_per_ns or 0.0)
    is_most = 2 * slow.sum_ns > sum(copy.sum_ns for copy in copies)
    if not is_most or slow.memory or not slow.bytes_per_ns or slow.name == fast.name:
        return {}
    if _ALIKE * slow.bytes_per_ns >= (fast.bytes_per_ns or 0.0):
        return {}
    ways = {"way": slow.name, "other": fast.name}
    return {**ways, "slow": slow.bytes_per_ns, "fast": fast.bytes_per_ns}


def host_link(measured: Measurement) -> HostLink | None:
    """Return the link between CPU and GPU, None if it is unknown or GPUs differ in it."""
    links = {device.match.host_link for device in measured.devices}
    return links.pop() if len(links) == 1 else None


def part_of_speed(case: Case, of: str) -> tuple[float | None, dict[str, Value]]:
    """Return which part of the speed there could be copies of a memory reach, and texts' values.

    That is the speed of the link; if that is unknown, pageable copies could be as fast as the
    pinned ones of this recording. Copies that run at once share the link. The part is None if
    neither is known.
    """
    if case.prepared is None:
        return None, {}
    copies = [copy for copy in memory_operations(case.prepared) if copy.name in WAYS]
    rates = {}
    for memory in (PAGEABLE, PINNED):
        own = [copy for copy in copies if copy.memory == memory and copy.bytes_per_ns]
        moved, took_ns = sum(copy.bytes or 0 for copy in own), sum(copy.sum_ns for copy in own)
        if moved and took_ns:
            rates[memory] = moved / took_ns
    rate, link = rates.get(of), host_link(case.measured)
    best = rates.get(PINNED) if of == PAGEABLE else None
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
