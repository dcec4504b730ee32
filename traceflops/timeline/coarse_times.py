"""Device work whose times tell no idle time, or not for sure.

Two kinds become sums by name (see `aggregates`), whatever the tool: where only copies were
recorded, kernels may have run between them; and where starts are coarser than the work lasts, its
place in time is not known. Where only kernels were recorded, idle time may include copies: a note
says so.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.remedies import remedy
from traceflops.table import (
    ABSENT,
    Note,
    TableBuilder,
    Trace,
    codes,
    empty_table,
    groups,
    joint_codes,
    names,
    numbers,
    used_names,
)
from traceflops.units import time_amount

_COPIES: Final = frozenset({"memcpy", "memset"})
_LAUNCH: Final = re.compile(r"(?i)launch(?!HostFunc)")
_COPY: Final = re.compile(r"(?i)copy|cpy")

_COPIES_ONLY: Final = (
    "Only copies are recorded, no kernels: idle time is unknown and only totals are shown. Add "
    "the table of kernels."
)
_NO_COPIES: Final = (
    "No memory copies are in the trace, so idle time may include copies. Add the table of copies"
)
COPIES_MISSING: Final = "copies-missing"
"""The note that says that idle time may include copies."""


def with_known_idle(trace: Trace) -> Trace:
    """Return the trace, its device work as sums where that is copies alone.

    Idle time is known where kernels are recorded, or would be: by a tool that records both at once,
    or with calls that show that none was launched. Kernels alone keep their timeline, with a note.
    """
    if lacks_copies(trace):
        how = remedy(trace.source.format, "copies")
        text = f"{_NO_COPIES}, or record it: {how}." if how else f"{_NO_COPIES}."
        return replace(trace, notes=(*trace.notes, Note("missing", COPIES_MISSING, text)))
    kinds = _kinds(trace)
    if not kinds or not kinds <= _COPIES or trace.ops.num_rows:
        return trace
    calls = used_names(trace.calls["name"])
    if calls and not any(map(_LAUNCH.search, calls)):
        return trace
    return _as_sums(trace, Note("missing", "copies-only", _COPIES_ONLY))


def lacks_copies(trace: Trace) -> bool:
    """Return whether kernels are recorded, and copies may have run that are not.

    Calls show that there were none if they launch kernels and copy nothing.
    """
    kinds = _kinds(trace)
    if not kinds - _COPIES or "memcpy" in kinds:
        return False
    calls = used_names(trace.calls["name"])
    return any(map(_COPY.search, calls)) or not any(map(_LAUNCH.search, calls))


def _kinds(trace: Trace) -> set[str]:
    """Return the kinds of device work, where those that are missing could have been recorded."""
    return used_names(trace.activities["kind"]) if trace.source.kinds_apart else set()


def with_fine_times(trace: Trace) -> Trace:
    """Return the trace, its device work as sums where its times are too coarse for it.

    That is so where half of the work is shorter than the steps in which its starts are written.
    """
    resolution, activities = trace.source.resolution_ns, trace.activities
    if resolution == 1 or activities.num_rows < 2:
        return trace
    if np.median(numbers(activities["dur_ns"])) >= resolution:
        return trace
    step = time_amount(resolution).replace(".000", "")
    text = (
        f"Start times have a resolution of {step}, longer than the median GPU "
        "operation: idle time is unknown and only totals are shown. Export the times in ns."
    )
    return _as_sums(trace, Note("missing", "times-too-coarse", text, activities.num_rows))


def _as_sums(trace: Trace, note: Note) -> Trace:
    sums = pa.concat_tables([trace.totals, _sums(trace.activities)])
    tables = {
        **trace.tables,
        "totals": sums.unify_dictionaries().combine_chunks(),
        "activities": empty_table("activities"),
    }
    return replace(trace, tables=tables, notes=(*trace.notes, note))


def _sums(activities: pa.Table) -> pa.Table:
    """Return the sums of device work by process, kind and name, a graph as one kernel."""
    table = TableBuilder("totals")
    process = numbers(activities["process"])
    kind, name = codes(activities["kind"]), codes(activities["name"])
    length, size = numbers(activities["dur_ns"]), numbers(activities["bytes"], ABSENT)
    kinds, labels = names(activities["kind"]), names(activities["name"])
    for _, rows in groups(joint_codes(joint_codes(process, kind), name)):
        first = rows[0]
        known = kinds[kind[first]]
        table.add(
            1,
            process=int(process[first]),
            kind=np.array([table.names["kind"][known if known in _COPIES else "kernel"]]),
            name=np.array([table.names["name"][labels[name[first]]]]),
            count=len(rows),
            total_ns=int(length[rows].sum()),
            min_ns=int(length[rows].min()),
            max_ns=int(length[rows].max()),
            bytes=ABSENT if (size[rows] == ABSENT).any() else int(size[rows].sum()),
        )
    return table.finish()
