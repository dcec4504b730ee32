"""Time accounting of one device: every nanosecond in exactly one component.

Each nanosecond goes to the first that applies: compute, memory, other, graph, communication,
idle. Communication counted here is therefore exposed; what another component covers is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflops.table import BoolArray, IntArray
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import COMPONENTS, Components

WORK = COMPONENTS[:-1]
"""The components that are work, in their order of precedence."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The components of one device as disjoint sets of instants.

    `parts` excludes what an earlier component covers; `communication` is all communication,
    exposed or not; `busy` is the union of all work.
    """

    parts: dict[str, Intervals]
    communication: Intervals
    busy: Intervals

    def components(self, start_ns: IntArray, end_ns: IntArray) -> list[Components]:
        """Return the components of windows [start, end); they sum to their lengths exactly."""
        lengths = [self.parts[name].length_within(start_ns, end_ns) for name in WORK]
        idle = end_ns - start_ns - sum(lengths)
        return [Components(*row) for row in np.stack([*lengths, idle], axis=1).tolist()]

    def hidden_communication_ns(self, start_ns: IntArray, end_ns: IntArray) -> IntArray:
        """Return the communication of windows during which something else ran."""
        exposed = self.parts["communication"].length_within(start_ns, end_ns)
        return self.communication.length_within(start_ns, end_ns) - exposed


def timeline(start_ns: IntArray, end_ns: IntArray, is_part: dict[str, BoolArray]) -> Timeline:
    """Return the components of one device; `is_part` tells which activities are of which."""
    busy = Intervals.empty()
    parts: dict[str, Intervals] = {}
    communication = Intervals.empty()
    for name in WORK:
        rows = is_part[name]
        whole = Intervals.of(start_ns[rows], end_ns[rows])
        if name == "communication":
            communication = whole
        parts[name] = whole.subtract(busy)
        busy = busy.union(whole) if len(busy) else whole
    return Timeline(parts, communication, busy)
