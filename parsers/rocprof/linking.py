"""Which share of the device work has the call that launched it, as notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.table import ABSENT, Note, joint_codes, numbers
from traceflops.units import does, percent, several

_NO_CALLS: Final = (
    "No API calls were recorded, so what launched the GPU operations is unknown. rocprofv3 "
    "--hip-trace --kernel-trace records them."
)


def link_notes(tables: Mapping[str, pa.Table], *, no_calls: str = _NO_CALLS) -> Iterator[Note]:
    """Say that no calls were recorded, or of how much work the call is missing."""
    activities, calls = tables["activities"], tables["calls"]
    total = activities.num_rows
    if not total:
        return
    if not calls.num_rows:
        yield Note("missing", "no-calls", no_calls)
        return
    linked = int(np.count_nonzero(_linked(activities, calls)))
    nameless = _of_unknown_process(tables)
    if linked < total and nameless:
        text = (
            f"{several(nameless, 'API call')} without a process, and several processes used GPUs: "
            f"what launched {several(total - linked, 'GPU operation')} is unknown."
        )
        yield Note("missing", "calls-of-unknown-process", text, nameless)
    elif linked < total:
        text = (
            f"{linked:,} of {several(total, 'GPU operation')} ({percent(linked / total)}) "
            f"{does(linked, 'have')} a launch call in the file. The other calls were not recorded "
            "or were removed; the cause of idle time before their work is unknown."
        )
        yield Note("missing", "calls-missing", text, total - linked)


def _of_unknown_process(tables: Mapping[str, pa.Table]) -> int:
    """Return how many calls are of a process without an id and without any device work."""
    pids = tables["processes"]["pid"].to_pylist()
    working = np.unique(numbers(tables["activities"]["process"]))
    idle = [row for row, pid in enumerate(pids) if pid is None and row not in working]
    return int(np.isin(numbers(tables["calls"]["process"]), idle).sum())


def _linked(activities: pa.Table, calls: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which activities have a call of their process with their correlation."""
    ids = [numbers(table["correlation"], ABSENT) for table in (activities, calls)]
    processes = [numbers(table["process"]) for table in (activities, calls)]
    keys = joint_codes(np.concatenate(processes), np.concatenate(ids))
    count = activities.num_rows
    found: np.ndarray[tuple[int], np.dtype[np.bool_]]
    found = np.isin(keys[:count], keys[count:]) & (ids[0] != ABSENT)
    return found
