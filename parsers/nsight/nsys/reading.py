"""What is at hand while a report is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from traceflops.parsers.nsight.nsys.process_registry import People
from traceflops.parsers.nsight.nsys.strings import NamesToCome
from traceflops.parsers.nsight.nsys.tables import Tables
from traceflops.parsers.shared import Gathered
from traceflops.table import ABSENT, IntArray


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
