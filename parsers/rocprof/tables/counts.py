"""Hardware counters of launches in rocprof's CSV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceflops.parsers.io import Texts
from traceflops.parsers.rocprof.tables.work import ids
from traceflops.parsers.shared import UNNAMED_KERNEL, Cut, ProcessPart, Tally, compact
from traceflops.table import ABSENT, Array, Names

FloatArray = npt.NDArray[np.float64]

_LARGEST_OF: Final = ("GRBM",)
"""Counters of the whole chip: its instances count the same, so the largest is the value."""


def takes_largest(counter: str) -> bool:
    """Return whether instances of a counter count the same, so that the largest is its value."""
    return counter.startswith(_LARGEST_OF)


def add_counters(cut: Cut, part: ProcessPart, tally: Tally) -> None:
    """Add counters that stand in a row each."""
    value = cut.columns["value"]
    assert not isinstance(value, Texts)
    finite = np.isfinite(value)
    tally.odd["no-value"] += int((~finite).sum())
    cut = cut.only(finite)
    if not cut.count:
        return
    table = part["kernel_counters"]
    _cover(cut, part)
    part.origins.append((cut.numbers("instance"), part.section))
    table.add(
        cut.count,
        **_launch(cut, part, table.names["name"]),
        repetition=compact(cut.numbers("replay")),
        counter=cut.codes("counter", table.names["counter"], "(unnamed)"),
        value=value[finite],
    )


def add_wide(cut: Cut, part: ProcessPart, counters: Mapping[str, tuple[str, ...]]) -> None:
    """Add counters that stand in a column each, or in one for each of their instances."""
    table = part["kernel_counters"]
    launch = _launch(cut, part, table.names["name"])
    instance = cut.numbers("instance")
    part.is_wide = True
    _cover(cut, part)
    for counter, words in counters.items():
        columns = [cut.columns[word] for word in words]
        value = _joined(counter, np.stack([np.asarray(column) for column in columns]))
        known = np.flatnonzero(np.isfinite(value))
        if not len(known):
            continue
        part.origins.append((instance[known], part.section))
        table.add(
            len(known),
            **{name: c if isinstance(c, int) else c[known] for name, c in launch.items()},
            counter=table.names["counter"][counter],
            value=value[known],
        )


def _joined(counter: str, instances: FloatArray) -> FloatArray:
    """Return the value of a counter by those of its instances; NaN where none has one."""
    known = np.isfinite(instances)
    if takes_largest(counter):
        value = np.where(known, instances, -np.inf).max(axis=0)
    else:
        value = np.where(known, instances, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), value, np.nan)


def _cover(cut: Cut, part: ProcessPart) -> None:
    """Widen the stretch in which counters were read."""
    start = cut.numbers("start")
    part.counting.cover(start[start > 0])


def _launch(cut: Cut, part: ProcessPart, names: Names) -> dict[str, Array | int]:
    threads, block = cut.numbers("threads"), cut.numbers("block_threads")
    return {
        "device": compact(cut.codes("agent", part.agents, "")),
        "name": cut.codes("kernel", names, UNNAMED_KERNEL),
        "dispatch": cut.numbers("dispatch"),
        # The rows of rocprof v1 are dispatches, and their places are all that links them.
        "correlation": cut.numbers("dispatch")
        if cut.has("dispatched")
        else ids(cut, "correlation"),
        "threads": np.where(threads > 0, threads, ABSENT),
        "block_threads": compact(np.where(block > 0, block, ABSENT)),
    }
