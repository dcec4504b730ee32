"""Pages of managed memory: what the host does between two pages that it brings back from a GPU.

And rule `unified-memory`: pages that migrate while kernels run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.culprits import IdleClass
from traceflops.attribution.idle_classes import is_prefetch, on_demand
from traceflops.attribution.named_slices import sample_spacing_ns
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.copy_sizes import host_link
from traceflops.findings.finding import Cause, Gain, Row, row_name, short_name
from traceflops.findings.host_samples import sampled
from traceflops.table.columns import ABSENT, IntArray, codes, is_one_of, matching, names, numbers
from traceflops.table.grouping import group_sums, joint_codes, ranked
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

_NEARLY_ALL: Final = 0.9
_LEAST_CORRELATION: Final = 0.9
"""With less correlation, the time after a page does not depend on its bytes alone."""
_LEAST_GAPS: Final = 20
_LITTLE: Final = 3  # a remedy is little that gains less than one part in so many of the time
_SURE_ERRORS: Final = 2  # standard errors by which a fixed time may be longer than fitted


def between_pages(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return facts on the time between pages, and values of texts; `gain_ns` is the most gained.

    "per-byte": the time grows with the bytes of a page, so it is work on the data except for a
    fixed time per page. Without faults that time would go, and pages would move as fast as the
    link. "own-work": both gain little. "sampled": samples of the CPU are at least half as many as
    when it is busy, so code runs between the pages.
    """
    values: dict[str, Value] = {"bytes": _fetched_twice(case.prepared.trace) or None}
    if (times := _times_after_pages(case.prepared.trace)) is not None:
        each_byte_ns, each_ns = times
        gaps = sum(culprit.gaps for culprit in idle.culprits)
        fixed_ns = min(round(gaps * each_ns), idle.idle_ns)
        moving_ns, least_ns = _times_to_host(case)
        most_ns = fixed_ns + moving_ns - least_ns
        values |= {"each_kib_ns": round(1024 * each_byte_ns), "each_ns": round(each_ns)}
        values |= {"moving_ns": moving_ns, "least_ns": least_ns or None}
        values["most_ns"] = most_ns // case.windows_used
        each = fact("host-page-faults.step" if case.steps.used else "host-page-faults.gpu")
        values["per"] = each if case.windows_used > 1 else None
        values["fixed_ns"] = fixed_ns
        if _LITTLE * most_ns < idle.idle_ns:
            return {"per-byte", "own-work"}, values
        return {"per-byte"}, {**values, "gain_ns": most_ns}
    samples = sampled(case, idle.kind)
    count = samples.get("samples")
    spacing_ns = sample_spacing_ns(case.prepared.trace)
    if isinstance(count, int) and 2 * count * spacing_ns >= idle.idle_ns:
        return {"sampled"}, {**values, **samples, "gain_ns": idle.idle_ns}
    return set(), values


def _times_to_host(case: Case) -> tuple[int, int]:
    """Return how many ns the pages take that the host brings back, and how many the link needs.

    If the link is unknown, it counts as fast as the fastest prefetch; without any, it needs 0 ns.
    """
    work, chosen = case.prepared.trace.activities, case.prepared.chosen
    size, dur_ns = numbers(work["bytes"], 0), numbers(work["dur_ns"])
    to_host = on_demand(work, "migration DtoH")[chosen.row]
    prefetched = is_prefetch(work, _MIGRATION) & (dur_ns > 0)
    link, reached = host_link(case.measured), size[prefetched] / dur_ns[prefetched]
    rate = float(link.bandwidth) if link is not None else reached.max(initial=0.0)
    moving_ns, moved = int(chosen.inside_ns[to_host].sum()), int(size[chosen.row[to_host]].sum())
    return moving_ns, min(round(moved / rate), moving_ns) if rate else 0


def _times_after_pages(trace: Trace) -> tuple[float, float] | None:
    """Return the ns from one page to the next: those per byte, and at most those per page.

    They are fitted to the pages that the host brings back. None if the pages are few or of one
    size, or if the time depends on something else.

        ns  |            ' .   slope: the host works on the bytes
            |        . '
            |    . '
            |' '               left at 0 bytes: a fault, whatever the size
            +--------------- bytes
    """
    work = trace.activities
    begin_ns, device = numbers(work["start_ns"]), numbers(work["device"])
    order = np.lexsort((begin_ns, device))
    begin_ns, device = begin_ns[order], device[order]
    end_ns = begin_ns + numbers(work["dur_ns"])[order]
    to_host = on_demand(work, "migration DtoH")[order]
    # Pages with another one right behind them on their device
    page = np.flatnonzero(to_host[:-1] & to_host[1:] & (device[1:] == device[:-1]))
    size = numbers(work["bytes"], 0)[order][page].astype(np.float64)
    gap_ns = (begin_ns[page + 1] - end_ns[page]).astype(np.float64)
    count = len(page)
    spread = ((size - size.mean()) ** 2).sum() if count else 0.0
    if count < _LEAST_GAPS or not spread or not gap_ns.std():
        return None
    slope, fixed_ns = np.polyfit(size, gap_ns, 1)
    if slope <= 0 or np.corrcoef(size, gap_ns)[0, 1] < _LEAST_CORRELATION:
        return None
    # The standard error of the intercept of a linear regression
    variance = ((gap_ns - slope * size - fixed_ns) ** 2).sum() / (count - 2)
    error_ns = np.sqrt(variance * (1 / count + size.mean() ** 2 / spread))
    return float(slope), float(max(fixed_ns, 0.0) + _SURE_ERRORS * error_ns)


def _fetched_twice(trace: Trace) -> int:
    """Return the bytes that are prefetched to a GPU in vain.

    The host takes nearly all of a prefetch back before the next kernel of that GPU begins, and as
    many bytes migrate to the GPU again during that kernel.
    """
    work = trace.activities
    is_kernel, device = is_one_of(work["kind"], "kernel"), numbers(work["device"])
    order = np.lexsort((numbers(work["start_ns"]), device))
    # A stretch is a kernel of a device with all that begins before the next kernel.
    stretch = np.cumsum(is_kernel[order].astype(np.int64))
    stretches, number = ranked(joint_codes(device[order], stretch))
    count, size = len(stretches), numbers(work["bytes"], 0)[order]
    is_prefetched = is_prefetch(work, "migration HtoD")[order]
    place, last_prefetch = np.arange(len(order)), np.full(count, len(order))
    last_prefetch[number[is_prefetched]] = place[is_prefetched]  # of several, the last stays
    is_back = on_demand(work, "migration DtoH")[order] & (place > last_prefetch[number])
    is_again = on_demand(work, "migration HtoD")[order]
    prefetched, back, again = (
        group_sums(number, np.where(some, size, 0), count)
        for some in (is_prefetched, is_back, is_again)
    )
    # What migrates again in the next stretch of the same device
    of_device = device[order][np.unique(number, return_index=True)[1]]
    has_next = np.append(of_device[1:] == of_device[:-1], False)[:count]
    again_next = np.where(has_next, np.append(again[1:], 0)[:count], 0)
    twice = np.minimum(np.minimum(prefetched, back), again_next)
    return int(twice[twice >= _NEARLY_ALL * prefetched].sum())


UNIFIED: Final = "unified-memory"
_MIGRATION: Final = "migration"
_PREFETCH: Final = "prefetch"
_EVICTION: Final = "eviction"
_MUCH: Final = 4  # memory is short if one in so many migrated bytes is moved out to make room
_NSYS: Final = "nsys"
_MOST_WAITING: Final = 3


class _Migrations(Struct):
    """Pages that migrate on demand, and page faults of GPUs, during kernels of chosen windows.

    `inside_ns` is their time, `by_name` that time by the code of the kernel's name, `held_ns` the
    time from the first to the last of them in each kernel. `faults` counts recorded page faults.
    `bytes` are all bytes that migrate, `evicted` those that are moved out to make room, `fetched`
    those that come to the GPU while kernels run. Of the kernels that pages hold up, `before` counts
    launches until the last that is held up, at `until_ns`, and `after` those that follow it.
    """

    by_name: IntArray
    inside_ns: int = 0
    held_ns: int = 0
    kernels_ns: int = 0
    faults: int = 0
    bytes: int = 0
    evicted: int = 0
    fetched: int = 0
    before: int = 0
    after: int = 0
    until_ns: int = 0


def unified_memory(case: Case) -> Iterator[Cause]:
    """Give a cause if pages migrate on demand, or are waited for, while kernels run.

    Between two migrations a kernel may wait for page faults: if these are not recorded, up to all
    time from the first migration to the last is gained. At least half of the time of migrations is
    gained. Not gained is the time in which bytes cross the link, and are used once in GPU memory.
    If data that makes room is followed by as many launches of the same kernels without migrations,
    it fits, and nothing is gained: that happens once.
    """
    found = _migrations(case.prepared)
    share = share_of_window(case, found.inside_ns)
    if share < limit(case, UNIFIED, "least_share"):
        return
    label = names(case.prepared.trace.activities["name"])
    times = Counter(dict(zip(label, found.by_name.tolist(), strict=True)))
    waiting = times.most_common(_MOST_WAITING)
    details = [fact("part.largest", name=short_name(waiting[0][0]))]
    evicts = _MUCH * found.evicted >= found.bytes > 0
    is_once = evicts and found.before <= found.after
    begin_ns = int(numbers(case.prepared.trace.activities["start_ns"]).min())
    if evicts:
        details.append(fact(f"{UNIFIED}.evicted", evicted=found.evicted))
    if not found.faults and found.held_ns > found.inside_ns:
        is_nsys = case.source.format.startswith(_NSYS)
        how = fact(f"{UNIFIED}.option") if is_nsys else None
        details.append(fact(f"{UNIFIED}.held", held_ns=found.held_ns, how=how))
    link = host_link(case.measured)
    bandwidths = {device.bandwidth for device in case.measured.devices}
    memory = bandwidths.pop() if len(bandwidths) == 1 else None
    rates = (link.bandwidth if link is not None else None, memory)
    least_ns = sum(int(found.fetched / rate) for rate in rates if rate)
    if link is not None and least_ns:
        values: dict[str, Value] = {"bytes": found.fetched, "least_ns": least_ns, "link": link.name}
        details.append(Fact(f"{UNIFIED}.least", values))
    longest_ns = max((found.inside_ns if found.faults else found.held_ns) - least_ns, 0)
    surely_ns = min(found.inside_ns // 2, longest_ns)
    gain = Gain(surely_ns // case.windows_used, longest_ns // case.windows_used, None)
    knows = {"once": is_once, "evicts": evicts}
    yield cause(
        case,
        UNIFIED,
        share,
        {
            "migrating_ns": found.inside_ns,
            "kernels_ns": found.kernels_ns,
            "faults": found.faults or None,
            "until_ns": found.until_ns - begin_ns,
            "after": found.after,
        },
        tuple(details),
        frozenset(name for name, holds in knows.items() if holds),
        rows=tuple(Row(row_name(name), ns) for name, ns in waiting),
        gain=None if is_once else gain,
        doubts=(fact(f"doubt.{'once' if is_once else 'half'}"),),
    )


def _migrations(prepared: Prepared) -> _Migrations:
    """Return what migrates on demand, so without prefetches, and page faults of GPUs."""
    table, marks = prepared.trace.activities, prepared.trace.marks
    found = _Migrations(np.zeros(len(names(table["name"])), dtype=np.int64))
    moves = matching(table["direction"], lambda direction: direction.startswith(_MIGRATION))
    moves &= ~matching(table["name"], lambda text: _PREFETCH in text)
    evicts = moves & matching(table["name"], lambda text: _EVICTION in text)
    to_gpu = is_one_of(table["direction"], f"{_MIGRATION} HtoD")
    size = numbers(table["bytes"], 0)
    faults = is_one_of(marks["kind"], "page_fault")
    if not (moves.any() or faults.any()):
        return found
    computes, name = is_one_of(table["kind"], "kernel"), codes(table["name"])
    fault_device, fault_start, fault_dur = (
        numbers(marks[column], ABSENT)[faults] for column in ("device", "start_ns", "dur_ns")
    )
    for device, account in prepared.accounts.items():
        rows, chosen = account.rows, chosen_time(prepared.windows[device])
        own, is_move, is_kernel = fault_device == device, moves[rows.row], computes[rows.row]
        moving = Intervals.of(
            np.concatenate([rows.start_ns[is_move], fault_start[own]]),
            np.concatenate([rows.end_ns[is_move], (fault_start + fault_dur)[own]]),
        ).intersect(chosen)
        found.faults += int(chosen.contains(fault_start[own]).sum())
        start, end = rows.start_ns[is_kernel], rows.end_ns[is_kernel]
        kernels = Intervals.of(start, end)
        found.bytes += int(size[rows.row[is_move]].sum())
        found.evicted += int(size[rows.row[evicts[rows.row]]].sum())
        comes = is_move & to_gpu[rows.row] & kernels.intersect(chosen).contains(rows.start_ns)
        found.fetched += int(size[rows.row[comes]].sum())
        found.kernels_ns += kernels.intersect(chosen).length_ns
        found.inside_ns += moving.intersect(kernels).length_ns
        of_kernel_ns = moving.length_within(start, end)
        found.by_name += group_sums(name[rows.row[is_kernel]], of_kernel_ns, len(found.by_name))
        is_held, named = of_kernel_ns > 0, name[rows.row[is_kernel]]
        if is_held.any():  # count launches of kernels with these names
            follows = start > start[is_held].max()
            held_and_like = np.isin(named, named[is_held])
            found.before += int((held_and_like & ~follows).sum())
            found.after += int((held_and_like & follows).sum())
            found.until_ns = max(found.until_ns, int(end[is_held].max()))
        # From the first stretch of migration that a kernel overlaps to the last one
        start, end = start[is_held], end[is_held]
        first = np.searchsorted(moving.end_ns, start, side="right")
        last = np.searchsorted(moving.start_ns, end, side="left") - 1
        held_from = np.maximum(start, moving.start_ns[first])
        found.held_ns += Intervals.of(held_from, np.minimum(end, moving.end_ns[last])).length_ns
    return found
