"""Rule `unified-memory`: pages of managed memory that migrate while kernels run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.devices.peaks import HostLink
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.copy_sizes import host_link
from traceflops.findings.finding import Cause, Gain, Row, row_name, short_name
from traceflops.table.columns import ABSENT, IntArray, codes, is_one_of, matching, names, numbers
from traceflops.table.grouping import group_sums
from traceflops.timeline.intervals import Intervals
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

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

    def add(self, moving: Intervals, begin: IntArray, end: IntArray, name: IntArray) -> None:
        """Add what moves while kernels of a device run; the arrays have a value per kernel."""
        self.inside_ns += moving.intersect(Intervals.of(begin, end)).length_ns
        each_ns = moving.length_within(begin, end)
        self.by_name += group_sums(name, each_ns, len(self.by_name))
        begin, end = begin[each_ns > 0], end[each_ns > 0]
        # The first and last stretch of migration that each kernel overlaps
        first = np.searchsorted(moving.end_ns, begin, side="right")
        last = np.searchsorted(moving.start_ns, end, side="left") - 1
        begin = np.maximum(begin, moving.start_ns[first])
        self.held_ns += Intervals.of(begin, np.minimum(end, moving.end_ns[last])).length_ns


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
    least_ns = _least_ns(case, link, found.fetched)
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


def _least_ns(case: Case, link: HostLink | None, fetched: int) -> int:
    """Return what so many bytes need at the peaks of link and memory; 0 for what is unknown."""
    bandwidths = {device.bandwidth for device in case.measured.devices}
    memory = bandwidths.pop() if len(bandwidths) == 1 else None
    rates = (link.bandwidth if link is not None else None, memory)
    return sum(int(fetched / rate) for rate in rates if rate)


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
        found.add(moving, rows.start_ns[runs], rows.end_ns[runs], name[rows.row[runs]])
    return found
