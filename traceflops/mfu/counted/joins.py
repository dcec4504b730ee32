"""How much of a run got its FLOPs from another recording, and in which way."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from traceflops.flops.int_sums import exact_sum
from traceflops.mfu.counted.kernel_matching import HOW, KNOWN, How, Matched
from traceflops.mfu.counted.launch_work import Origin
from traceflops.table.columns import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class JoinedPart:
    """Launches that were joined in one way, or could not be; the time of them added up, in ns."""

    how: How
    launches: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Join:
    """The compute kernels of the chosen windows, by how another recording tells their FLOPs.

    `file` is the recording, None for the trace's own counters.
    """

    origin: Origin
    file: str | None
    parts: tuple[JoinedPart, ...]

    @property
    def launches(self) -> int:
        """Return all of them."""
        return sum(part.launches for part in self.parts)

    @property
    def known(self) -> int:
        """Return those whose FLOPs are known."""
        return sum(part.launches for part in self.parts if part.how in KNOWN)

    @property
    def share(self) -> Fraction | None:
        """Return the share of their time with known FLOPs, None without any time."""
        total = sum(part.time_ns for part in self.parts)
        known = sum(part.time_ns for part in self.parts if part.how in KNOWN)
        return Fraction(known, total) if total else None

    def count(self, *how: How) -> int:
        """Return the launches that were joined in one of these ways."""
        return sum(part.launches for part in self.parts if part.how in how)


def join_of(
    origin: Origin, file: str | None, matched: Matched, wanted: BoolArray, dur_ns: IntArray
) -> Join:
    """Return the summary of wanted launches; the columns are by launch."""
    parts = []
    for place, how in enumerate(HOW):
        rows = wanted & (matched.how == place)
        launches = int(np.count_nonzero(rows))
        if launches:
            parts.append(JoinedPart(how, launches, exact_sum(dur_ns[rows])))
    return Join(origin, file, tuple(parts))
