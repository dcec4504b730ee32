"""What is at hand while a report is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch
from traceflops.parsers.nsight.nsys.process_registry import People
from traceflops.parsers.nsight.nsys.strings import NamesToCome
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.parsers.shared import Gathered
from traceflops.table import ABSENT, IntArray

_LIMIT_NS: Final = 2**61
"""Sums of times below this stay in an int64."""


@dataclass(slots=True)
class ReportReading:
    """A report, what was gathered of it, and what was counted: records, and odd ones of them.

    `callers` are the ids of threads that call CUDA, `latest_ns` is the latest time that was seen.
    """

    tables: Tables
    people: People
    gathered: Gathered = field(default_factory=Gathered)
    names: NamesToCome = field(default_factory=NamesToCome)
    odd: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    callers: list[IntArray] = field(default_factory=list)
    latest_ns: int = ABSENT

    def timed(
        self, batch: Batch, start: str = "start", end: str = "end"
    ) -> tuple[Batch, IntArray, IntArray]:
        """Return the rows that have a time, their starts and durations; what is odd is counted.

        Times count from the start of the session and may lie before it.
        """
        is_time = np.abs(batch[start]) < _LIMIT_NS  # ABSENT is its own absolute value, below 0
        is_time &= batch[start] != ABSENT
        self.odd["no-time"] += batch.count - int(np.count_nonzero(is_time))
        rows = batch.only(is_time)
        begins, ends = rows[start], rows[end]
        is_end = (np.abs(ends) < _LIMIT_NS) & (ends != ABSENT)
        late = is_end & (ends < begins)
        self.odd["no-duration"] += int(np.count_nonzero(~is_end))
        self.odd["negative-duration"] += int(np.count_nonzero(late))
        return rows, begins, np.where(is_end & ~late, ends, begins) - begins
