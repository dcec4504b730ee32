"""Tables of single passes beside the one into which rocprof-compute merged them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from traceflops.parsers.rocprof.tables.processes import Placed
from traceflops.parsers.shared.csv_parts import TableFile, chosen
from traceflops.units.words import kernel_name

_COUNTERS = "kernel_counters"


def leave_out_merged(placed: Sequence[Placed]) -> int:
    """Leave out counters that the merged table of a workload holds, too; return of how many files.

    It is the one with the most counters; one that has some of them, of the same kernels, is a pass.
    """
    by_rank: defaultdict[int | None, list[TableFile]] = defaultdict(list)
    for one in placed:
        if any(part.has(_COUNTERS) for part in one.file.parts.values()):
            by_rank[one.place.rank].append(one.file)
    left_out = 0
    for files in by_rank.values():
        merged = max(files, key=lambda file: len(_names(file, "counter")))
        known, kernels = _names(merged, "counter"), _kernels(merged)
        for file in files:
            mine = _names(file, "counter")
            if file is merged or mine == known or not _kernels(file) <= kernels:
                continue
            if mine & known:
                _drop(file, known)
                left_out += 1
    return left_out


def _names(file: TableFile, column: str) -> set[str]:
    tables = [part[_COUNTERS] for part in file.parts.values() if part.has(_COUNTERS)]
    return {name for table in tables for name in table.names[column]}


def _kernels(file: TableFile) -> set[str]:
    return set(map(kernel_name, _names(file, "name")))


def _drop(file: TableFile, counters: set[str]) -> None:
    """Leave out the rows of some counters."""
    for part in file.parts.values():
        if part.has(_COUNTERS):
            table = part[_COUNTERS]
            names = list(table.names["counter"])
            wanted = np.array([name not in counters for name in names], dtype=np.bool_)
            rows = wanted[table.column("counter")]
            ends = np.cumsum([len(instance) for instance, _ in part.origins])[:-1]
            part.origins = [
                (instance[kept], section)
                for (instance, section), kept in zip(
                    part.origins, np.split(rows, ends), strict=True
                )
            ]
            part.tables[_COUNTERS] = chosen(table, rows)
