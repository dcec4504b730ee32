"""Which devices of several traces are one: a GPU that processes with files of their own shared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from traceflops.columns import IntArray, numbers
from traceflops.trace import Note, Trace
from traceflops.words import several

_PAUSE_NS = 10 * 10**9
"""What is further apart than this is of several recordings, between which nothing is known."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """The devices of several traces in one list.

    `of_traces` are the numbers of each trace's devices in it. `rows` says from where, of all
    devices one behind the other, each of the list comes, and `places` what names it.
    """

    of_traces: list[IntArray]
    rows: IntArray
    places: tuple[str | None, ...]
    shared: int

    def notes(self) -> Iterator[Note]:
        """Say how many devices are in several traces."""
        if self.shared:
            text = (
                f"{several(self.shared, 'device')} did work of several processes that were "
                "recorded apart. Each is one device here, known by its machine and its place there."
            )
            yield Note("assumed", "device-shared", text, self.shared)


@dataclass(frozen=True, slots=True)
class _Use:
    """A device of one trace: its row among all devices, and when it worked; None where it never."""

    row: int
    span_ns: tuple[int, int] | None


def number_devices(traces: Sequence[Trace]) -> Numbering:
    """Return numbers for the devices of all traces, the same one for the same device.

    Devices are the same where their traces have the same clock and name the same place, unless
    more than 10 s lie between their times.
    """
    counts = [trace.devices.num_rows for trace in traces]
    uses: defaultdict[tuple[str, str], list[_Use]] = defaultdict(list)
    places: list[str | None] = []
    for trace, count in zip(traces, counts, strict=True):
        named = trace.places or (None,) * count
        if trace.source.clock is not None and any(named):
            spans = _spans(trace)
            for device, place in enumerate(named):
                if place is not None:
                    use = _Use(len(places) + device, spans[device])
                    uses[trace.source.clock, place].append(use)
        places += named
    first = np.arange(len(places))
    for members in uses.values():
        for one, other in _joined(members):
            first[other] = one
    rows, number = np.unique(first, return_inverse=True)
    ends = np.cumsum(counts)
    shared = int(np.count_nonzero(np.bincount(number) > 1)) if len(number) else 0
    return Numbering(
        [number[end - count : end] for end, count in zip(ends, counts, strict=True)],
        rows,
        tuple(places[row] for row in rows.tolist()),
        shared,
    )


def _spans(trace: Trace) -> list[tuple[int, int] | None]:
    """Return the first start and the last end of each device of a trace."""
    activities = trace.activities
    device, start = (numbers(activities[name]) for name in ("device", "start_ns"))
    count = trace.devices.num_rows
    begin = np.full(count, np.iinfo(np.int64).max)
    finish = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(begin, device, start)
    np.maximum.at(finish, device, start + numbers(activities["dur_ns"]))
    pairs = zip(begin.tolist(), finish.tolist(), strict=True)
    return [(one, other) if one <= other else None for one, other in pairs]


def _joined(uses: Sequence[_Use]) -> Iterator[tuple[int, int]]:
    """Yield the row of a device, and that of the same device in another trace."""
    timed = sorted((one.span_ns, one.row) for one in uses if one.span_ns is not None)
    groups: list[list[int]] = []
    end_ns = 0
    for (start_ns, last_ns), row in timed:
        if not groups or start_ns - end_ns > _PAUSE_NS:
            groups.append([])
            end_ns = last_ns
        groups[-1].append(row)
        end_ns = max(end_ns, last_ns)
    untimed = [one.row for one in uses if one.span_ns is None]
    groups = groups or [[]]
    groups[0] += untimed
    for rows in groups:
        yield from ((min(rows), row) for row in rows if row != min(rows))
