"""Pages of managed memory: what the host does between those that it brings back.

And rule `unified-memory`: pages that migrate while kernels run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.cpu_samples import sample_spacing_ns
from traceflops.attribution.culprits import IdleClass
from traceflops.attribution.idle_classes import is_prefetch, on_demand
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
"""From here on the time after a page tells how much of it is work on its bytes."""
_LEAST_GAPS: Final = 20
_LITTLE: Final = 3
"""What takes over so many times as long as its remedy gains is mended elsewhere."""
_SURE_ERRORS: Final = 2
"""Standard errors by which a fixed time may be longer than fitted."""


def between_pages(case: Case, idle: IdleClass) -> tuple[set[str], dict[str, Value]]:
    """Return what is known of the time between pages, and values of its text; `gain_ns` at most.

    That is work on the data, but for a fixed time per page, where it grows with the bytes. Without
    faults the pages would also move as fast as the link: if both gain little, the work itself leads
    ("own-work"). Code runs then, rather than page faults, where the CPU is sampled at least half as
    often as while it is busy.
    """
    if case.prepared is None:
        return set(), {}
    values: dict[str, Value] = {"bytes": _fetched_twice(case.prepared.trace) or None}
    if (times := _times_after_pages(case.prepared.trace)) is not None:
        gaps, each_byte_ns, each_ns = sum(one.gaps for one in idle.culprits), *times
        fixed_ns = min(round(gaps * each_ns), idle.idle_ns)
        moving_ns, least_ns = _times_to_host(case, case.prepared)
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
        # Code runs then, whatever part of it is page faults.
        return {"sampled"}, {**values, **samples, "gain_ns": idle.idle_ns}
    return set(), values


def _times_to_host(case: Case, prepared: Prepared) -> tuple[int, int]:
    """Return how long pages that the host brings back take, and what the link needs for them.

    If the link is unknown, they may come as fast as the fastest prefetch; 0 without any.
    """
    work, chosen = prepared.trace.activities, prepared.chosen
    size, dur_ns = numbers(work["bytes"], 0), numbers(work["dur_ns"])
    own = on_demand(work, "migration DtoH")[chosen.row]
    asked = is_prefetch(work, _MIGRATION) & (dur_ns > 0)
    link, reached = host_link(case.measured), size[asked] / dur_ns[asked]
    rate = float(link.bandwidth) if link is not None else reached.max(initial=0.0)
    moving_ns, moved = int(chosen.inside_ns[own].sum()), int(size[chosen.row[own]].sum())
    return moving_ns, min(round(moved / rate), moving_ns) if rate else 0


def _times_after_pages(trace: Trace) -> tuple[float, float] | None:
    """Return ns per byte of a page, and at most ns per page, from one page to the next.

    Fitted to the pages that the host brings back; None where they are few, have one size, or where
    the time depends on something else.

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
    page = np.flatnonzero(to_host[:-1] & to_host[1:] & (device[1:] == device[:-1]))
    size = numbers(work["bytes"], 0)[order][page].astype(np.float64)
    gap_ns = (begin_ns[page + 1] - end_ns[page]).astype(np.float64)
    spread, count = ((size - size.mean()) ** 2).sum() if len(page) else 0.0, len(page)
    if count < _LEAST_GAPS or not spread or not gap_ns.std():
        return None
    slope, fixed_ns = np.polyfit(size, gap_ns, 1)
    if slope <= 0 or np.corrcoef(size, gap_ns)[0, 1] < _LEAST_CORRELATION:
        return None
    variance = ((gap_ns - slope * size - fixed_ns) ** 2).sum() / (count - 2)
    error_ns = np.sqrt(variance * (1 / count + size.mean() ** 2 / spread))
    return float(slope), float(max(fixed_ns, 0.0) + _SURE_ERRORS * error_ns)


def _fetched_twice(trace: Trace) -> int:
    """Return the bytes prefetched to a GPU that the host fetches before the next kernel there.

    They are as many as those that migrate to it again during that kernel; 0 where most do not.
    """
    work = trace.activities
    is_kernel, device = is_one_of(work["kind"], "kernel"), numbers(work["device"])
    order = np.lexsort((numbers(work["start_ns"]), device))
    # A stretch begins with each kernel of a device.
    stretch = np.cumsum(is_kernel[order].astype(np.int64))
    stretches, number = ranked(joint_codes(device[order], stretch))
    count, size = len(stretches), numbers(work["bytes"], 0)[order]
    asked = is_prefetch(work, "migration HtoD")[order]
    place, last = np.arange(len(order)), np.full(count, len(order))
    last[number[asked]] = place[asked]
    back = on_demand(work, "migration DtoH")[order] & (place > last[number])
    again = on_demand(work, "migration HtoD")[order]
    gone, come, more = (
        group_sums(number, np.where(some, size, 0), count) for some in (asked, back, again)
    )
    of_device = device[order][np.unique(number, return_index=True)[1]]
    is_next = np.append(of_device[1:] == of_device[:-1], False)[:count]
    more = np.where(is_next, np.append(more[1:], 0)[:count], 0)
    twice = np.minimum(np.minimum(gone, come), more)
    return int(twice[twice >= _NEARLY_ALL * gone].sum())


_UNIFIED: Final = "unified-memory"
_MIGRATION: Final = "migration"
_PREFETCH: Final = "prefetch"
_EVICTION: Final = "eviction"
_MUCH: Final = 4
"""Memory is short if one in so many migrated bytes is moved out to make room."""
_NSYS: Final = "nsys"
_MOST_WAITING: Final = 3


class _Migrations(Struct):
    """Pages that migrate on demand, and page faults of GPUs, during kernels of chosen windows.

    `inside_ns` is their time, `by_name` the same by the code of the kernel's name, `held_ns` the
    time from the first of them in a kernel to the last. `faults` counts recorded page faults.
    `bytes` is what migrates in all, `evicted` what of it is moved out to make room, `fetched` what
    comes to the GPU while kernels run.
    """

    by_name: IntArray
    inside_ns: int = 0
    held_ns: int = 0
    kernels_ns: int = 0
    faults: int = 0
    bytes: int = 0
    evicted: int = 0
    fetched: int = 0


def unified_memory(case: Case) -> Iterator[Cause]:
    """Give a cause if pages migrate on demand, or are waited for, while kernels run.

    Between two migrations a kernel may wait for page faults: if these are not recorded, all time
    from the first migration to the last may be gained. At least half of the time of migrations is.
    But what comes to the GPU must still cross the link, and be read or written once in its memory.
    """
    if case.prepared is None:
        return
    found = _migrations(case.prepared)
    share = share_of_window(case, found.inside_ns)
    if share < limit(case, _UNIFIED, "least_share"):
        return
    label = names(case.prepared.trace.activities["name"])
    times = Counter(dict(zip(label, found.by_name.tolist(), strict=True)))
    waiting = times.most_common(_MOST_WAITING)
    details = [fact("part.largest", name=short_name(waiting[0][0]))]
    evicts = _MUCH * found.evicted >= found.bytes > 0
    if evicts:
        details.append(fact(f"{_UNIFIED}.evicted", evicted=found.evicted))
    if not found.faults and found.held_ns > found.inside_ns:
        is_nsys = case.source.format.startswith(_NSYS)
        how = fact(f"{_UNIFIED}.option") if is_nsys else None
        details.append(fact(f"{_UNIFIED}.held", held_ns=found.held_ns, how=how))
    link = host_link(case.measured)
    bandwidths = {device.bandwidth for device in case.measured.devices}
    memory = bandwidths.pop() if len(bandwidths) == 1 else None
    rates = (link.bandwidth if link is not None else None, memory)
    least_ns = sum(int(found.fetched / rate) for rate in rates if rate)
    if link is not None and least_ns:
        values: dict[str, Value] = {"bytes": found.fetched, "least_ns": least_ns, "link": link.name}
        details.append(Fact(f"{_UNIFIED}.least", values))
    longest_ns = max((found.inside_ns if found.faults else found.held_ns) - least_ns, 0)
    surely_ns = min(found.inside_ns // 2, longest_ns)
    yield cause(
        case,
        _UNIFIED,
        share,
        {
            "migrating_ns": found.inside_ns,
            "kernels_ns": found.kernels_ns,
            "faults": found.faults or None,
        },
        tuple(details),
        frozenset({"evicts"} if evicts else ()),
        rows=tuple(Row(row_name(name), ns) for name, ns in waiting),
        gain=Gain(surely_ns // case.windows_used, longest_ns // case.windows_used, None),
    )


def _migrations(prepared: Prepared) -> _Migrations:
    """Return what migrates on demand while kernels run; prefetches are asked for, not on demand."""
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
    of_fault, begin, lasts = (
        numbers(marks[column], ABSENT)[faults] for column in ("device", "start_ns", "dur_ns")
    )
    for device, account in prepared.accounts.items():
        rows, chosen = account.rows, chosen_time(prepared.windows[device])
        own, moved, runs = of_fault == device, moves[rows.row], computes[rows.row]
        moving = Intervals.of(
            np.concatenate([rows.start_ns[moved], begin[own]]),
            np.concatenate([rows.end_ns[moved], (begin + lasts)[own]]),
        ).intersect(chosen)
        found.faults += int(chosen.contains(begin[own]).sum())
        kernels = Intervals.of(rows.start_ns[runs], rows.end_ns[runs])
        found.bytes += int(size[rows.row[moved]].sum())
        found.evicted += int(size[rows.row[evicts[rows.row]]].sum())
        comes = moved & to_gpu[rows.row] & kernels.intersect(chosen).contains(rows.start_ns)
        found.fetched += int(size[rows.row[comes]].sum())
        found.kernels_ns += kernels.intersect(chosen).length_ns
        found.inside_ns += moving.intersect(kernels).length_ns
        begin_ns, end_ns = rows.start_ns[runs], rows.end_ns[runs]
        each_ns = moving.length_within(begin_ns, end_ns)
        found.by_name += group_sums(name[rows.row[runs]], each_ns, len(found.by_name))
        begin_ns, end_ns = begin_ns[each_ns > 0], end_ns[each_ns > 0]
        # The first and last stretch of migration that each kernel overlaps
        first = np.searchsorted(moving.end_ns, begin_ns, side="right")
        last = np.searchsorted(moving.start_ns, end_ns, side="left") - 1
        begin_ns = np.maximum(begin_ns, moving.start_ns[first])
        found.held_ns += Intervals.of(begin_ns, np.minimum(end_ns, moving.end_ns[last])).length_ns
    return found
