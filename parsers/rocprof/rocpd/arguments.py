"""Arguments of calls in a rocpd database, of which only those are read that say something here."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.io.databases.lookup import Lookup
from traceflops.parsers.io.databases.query import Among, Between, Wanted
from traceflops.parsers.rocprof.blits import copies_in, fill_sizes
from traceflops.parsers.rocprof.rocpd.reading import RunReading
from traceflops.parsers.shared import rccl
from traceflops.table.columns import IntArray
from traceflops.table.rows import ABSENT

_OF_RCCL: Final = tuple(
    sorted(
        {
            "datatype",
            *rccl.MADE,
            *(name for name in rccl.SIZES.values() if name),
        }
        | {one.count for one in rccl.COLLECTIVES.values() if one.count}
    )
)
_LONGEST: Final = 200
_SIZE: Final = "sizeBytes"


def rccl_arguments(
    reading: RunReading, calls: list[tuple[IntArray, IntArray]]
) -> dict[int, dict[str, str]]:
    """Return by row of the calls the arguments of RCCL's calls, given their events and rows."""
    found: dict[int, dict[str, str]] = {}
    if not calls:
        return found
    events, rows = (np.concatenate(columns) for columns in zip(*calls, strict=True))
    row_of = Lookup(events, rows)
    conditions = (
        Between("event_id", int(events.min()), int(events.max())),
        Among("name", _OF_RCCL),
    )
    wanted = Wanted(integers=("event_id",), texts=("name", "value"))
    for batch in reading.run.batches("arg", wanted, *conditions):
        places = row_of(batch["event_id"])
        for at in np.flatnonzero(places != ABSENT).tolist():
            name, value = batch.texts["name"][at], batch.texts["value"][at]
            if name is not None and value is not None:
                found.setdefault(int(places[at]), {})[name] = value[:_LONGEST]
    return found


def fill_copies(reading: RunReading) -> None:
    """Give kernels that copy or fill memory the size that the call states that launched them."""
    activities = reading.gathered["activities"]
    if copies_in(activities) and reading.run.has_rows("arg"):
        fill_sizes(activities, 0, *_sizes(reading))


def _sizes(reading: RunReading) -> tuple[IntArray, IntArray]:
    """Return the correlations of calls that state a size, and the sizes."""
    wanted = Wanted(integers=("event_id", "value"))
    rows = reading.run.whole("arg", wanted, Among("name", (_SIZE,)))
    return reading.events.correlations(rows["event_id"]), rows["value"]
