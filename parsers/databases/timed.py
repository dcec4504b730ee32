"""Rows of databases that have a time."""

from __future__ import annotations

from collections import Counter

from traceflops.columns import IntArray
from traceflops.parsers.databases.query import Batch
from traceflops.parsers.times import spans


def timed(
    rows: Batch, odd: Counter[str], start: str = "start", end: str = "end"
) -> tuple[Batch, IntArray, IntArray]:
    """Return the rows that have a time, their starts and durations; what is odd is counted."""
    found = spans(rows[start], rows[end], odd)
    return rows.only(found.rows), found.start, found.dur
