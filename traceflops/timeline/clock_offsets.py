"""How far the clock of a GPU is from that of its host, where launches show that they disagree.

Records of one clock hold then; what compares times of both (launch latency, the causes of idle
time) is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.table import IntArray, Links, Trace, distinct, groups, numbers
from traceflops.timeline.idle import LONGEST_START_NS

_LONGEST_QUEUE_NS: Final = 10**9
"""A queue of 1,024 launches is empty before; a launch may wait longer only for other work."""
_NO_JITTER_NS: Final = 10**7
"""Clocks that agree do not differ by so much."""
_SHORT_GAP_NS: Final = 20_000
"""Queued work starts sooner after the work before it."""
_ENOUGH: Final = 8
_STEADY: Final = 10


@dataclass(frozen=True, slots=True)
class _Process:
    """The launched work of a process in order of its start, and its calls; times in ns.

    `called` is when each was launched, `stopped` when the last call returned. `waits` are the
    start and the end of the calls that wait for the GPU.
    """

    start: IntArray
    end: IntArray
    called: IntArray
    stopped: int
    waits: IntArray
    is_one_gpu: bool

    @property
    def offset(self) -> int:
        """Return how far the GPU's clock is ahead at least, below 0 behind; 0 if unknown."""
        lead = self.start - self.called
        least, most = int(lead.min()), int(lead.max())
        if most < -LONGEST_START_NS:
            return most
        begun, length = int(self.start[0]), int(self.end.max() - self.start[0])
        is_beyond = least > _LONGEST_QUEUE_NS and (begun >= self.stopped or least > length)
        is_steady = _STEADY * (most - least) <= least and self._starts_idle()
        is_ahead = is_beyond or (self.is_one_gpu and (is_steady or self._outlasts_waits()))
        return least if least > _NO_JITTER_NS and is_ahead else 0

    def _starts_idle(self) -> bool:
        """Return whether the GPU was idle before most of it, so that no queue held it back."""
        gap = self.start[1:] - np.maximum.accumulate(self.end)[:-1]
        return len(gap) >= _ENOUGH and bool(2 * (gap > _SHORT_GAP_NS).sum() > len(gap))

    def _outlasts_waits(self) -> bool:
        """Return whether work ends long after every call that waited for it."""
        begun, returned = self.waits
        order = np.argsort(self.called, kind="stable")
        place = np.searchsorted(self.called[order], begun, side="left")
        latest = np.maximum.accumulate(self.end[order])
        ended, known = latest[place[place > 0] - 1], returned[place > 0]
        return len(known) > 0 and bool((ended > known + _NO_JITTER_NS).all())


def clock_offsets(trace: Trace, links: Links, waits: Mapping[int, IntArray]) -> IntArray:
    """Return, by process, how far its GPU's clock is ahead at least, below 0 behind; 0 if unknown.

    Behind: all work starts before its launch. Ahead: all work starts long after its launch, and no
    queue explains it. It starts after more than a second, after the last call or later than all
    work takes; or always as late although the GPU is idle; or calls that wait for it return before.
    `waits` are starts and ends of these, by process.
    """
    activities, calls = trace.activities, trace.calls
    row = np.flatnonzero(links.call_of_activity >= 0)
    row = row[np.argsort(numbers(activities["start_ns"])[row], kind="stable")]
    process, device = (numbers(activities[name])[row] for name in ("process", "device"))
    start, call = numbers(activities["start_ns"])[row], links.call_of_activity[row]
    end, begun = start + numbers(activities["dur_ns"])[row], numbers(calls["start_ns"])
    owner, returned = numbers(calls["process"]), begun + numbers(calls["dur_ns"])
    offset = np.zeros(trace.processes.num_rows, dtype=np.int64)
    calls_of = dict(groups(owner))
    for one, mine in groups(process):
        offset[one] = _Process(
            start[mine],
            end[mine],
            begun[call[mine]],
            int(returned[calls_of[one]].max()),
            waits[one],
            len(distinct(device[mine])) == 1,
        ).offset
    return offset
