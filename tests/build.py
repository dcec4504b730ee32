"""Small traces made by hand, for tests that need to know every nanosecond."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from traceflops.table.builder import TableBuilder
from traceflops.table.schema import TABLES
from traceflops.table.trace import Source, SourceFile, Trace

_TEXT = {
    table: {c.name for c in columns if "dictionary" in str(c.type)}
    for table, columns in TABLES.items()
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "activities": {"process": 0, "device": 0, "stream": 7, "kind": "kernel", "dur_ns": 10},
    "calls": {"process": 0, "thread": 1, "dur_ns": 1, "api": "runtime", "name": "launch"},
    "ops": {"process": 0, "thread": 1},
    "marks": {"process": 0, "thread": 1, "kind": "annotation"},
    "counters": {"process": 0, "name": "x"},
    "kernel_counters": {"process": 0},
    "kernel_rules": {"process": 0},
    "totals": {"process": 0, "kind": "kernel"},
    "processes": {"process": 0, "file": "made.json"},
    "devices": {"device": 0, "process": 0, "local_id": 0, "type": "gpu"},
}


def table_of(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    """Return a declared table with these rows; what a row does not give is null."""
    builder = TableBuilder(name)
    for row in rows:
        columns: dict[str, Any] = {}
        for column, value in (_DEFAULTS[name] | row).items():
            if value is None:
                continue
            if column in _TEXT[name]:
                columns[column] = np.array([builder.names[column][value]])
            else:
                is_real = column == "value" or isinstance(value, float)
                columns[column] = np.array([value], None if is_real else np.int64)
        builder.add(1, **columns)
    return builder.finish()


def trace_of(**tables: Sequence[dict[str, Any]]) -> Trace:
    """Return a trace with these rows; a process and a device are there unless given."""
    tables = {"processes": [{}], "devices": [{}], **tables}
    return Trace(
        Source("pytorch", (SourceFile("made.json", None, None),)),
        {name: table_of(name, rows) for name, rows in tables.items()},
    )


def launched(*works: tuple[str, int, int, int], first: int = 1) -> dict[str, list[dict[str, Any]]]:
    """Return activities and the calls that launched them: (name, launch, start, duration)."""
    activities, calls = [], []
    for correlation, (name, launch, start, dur) in enumerate(works, first):
        calls.append({"start_ns": launch, "correlation": correlation})
        activities.append(
            {"name": name, "start_ns": start, "dur_ns": dur, "correlation": correlation}
        )
    return {"activities": activities, "calls": calls}


def step_marks(*windows: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Return host marks: (name, start, duration)."""
    return [{"name": n, "start_ns": s, "dur_ns": d} for n, s, d in windows]
