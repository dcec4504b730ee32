"""Rows that have a time. Times count from the start of the session and may lie before it."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from traceflops.parsers.io import Batch
from traceflops.table import ABSENT, IntArray

_LIMIT_NS: Final = 2**61
"""Sums of times below this stay in an int64."""


def timed(
    batch: Batch, odd: Counter[str], start: str = "start", end: str = "end"
) -> tuple[Batch, IntArray, IntArray]:
    """Return the rows that have a time, their starts and durations; what is odd is counted."""
    is_time = np.abs(batch[start]) < _LIMIT_NS  # ABSENT is its own absolute value, below 0
    is_time &= batch[start] != ABSENT
    odd["no-time"] += batch.count - int(np.count_nonzero(is_time))
    rows = batch.only(is_time)
    begins, ends = rows[start], rows[end]
    is_end = (np.abs(ends) < _LIMIT_NS) & (ends != ABSENT)
    late = is_end & (ends < begins)
    odd["no-duration"] += int(np.count_nonzero(~is_end))
    odd["negative-duration"] += int(np.count_nonzero(late))
    return rows, begins, np.where(is_end & ~late, ends, begins) - begins
