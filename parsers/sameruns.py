"""Several exports of one run, such as rocprof's CSV and JSON in one folder, count once.

Two traces of different tools or formats are of one run where their kernels have the same times:
by process, or all together where one does not tell processes apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from traceflops.columns import IntArray, codes, names, numbers
from traceflops.groups import groups
from traceflops.trace import Note, Trace


def without_other_exports(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces without those that hold what another one holds, too, with a note each.

    Of several exports the one is kept that names its devices, and of these the one with most rows.
    """
    if len({_writer(trace) for trace in traces}) < 2:
        return list(traces)
    runs = [frozenset(_runs(trace)) for trace in traces]
    kept: list[int] = []
    notes: dict[int, list[Note]] = {}
    for place in sorted(range(len(traces)), key=lambda place: _worth(traces[place])):
        twins = [
            other
            for other in kept
            if runs[place] & runs[other] and _writer(traces[place]) != _writer(traces[other])
        ]
        if _is_covered(traces[place], runs[place], [runs[other] for other in twins]):
            notes.setdefault(twins[0], []).append(_note(traces[place], traces[twins[0]]))
        else:
            kept.append(place)
    return [
        replace(traces[place], notes=(*notes.get(place, ()), *traces[place].notes))
        for place in sorted(kept)
    ]


def _writer(trace: Trace) -> tuple[str, str | None]:
    return trace.source.format, trace.source.tool


def _worth(trace: Trace) -> tuple[bool, int]:
    """Return what sorts the trace that says most before the others."""
    products = trace.devices["product"]
    unnamed = products.null_count == len(products)
    return unnamed, -sum(table.num_rows for table in trace.tables.values())


def _runs(trace: Trace) -> Iterator[str]:
    """Yield what tells the kernels of the trace, and those of each process; nothing without any."""
    activities = trace.activities
    kinds = names(activities["kind"]) if activities.num_rows else []
    if "kernel" not in kinds:
        return
    rows = np.flatnonzero(codes(activities["kind"]) == kinds.index("kernel"))
    if len(rows):
        yield _digest(activities, rows)
        for _, mine in groups(numbers(activities["process"])[rows]):
            yield _digest(activities, rows[mine])


def _digest(activities: pa.Table, rows: IntArray) -> str:
    start, length = (numbers(activities[name])[rows] for name in ("start_ns", "dur_ns"))
    order = np.lexsort((length, start))
    digest = hashlib.sha256(start[order].tobytes())
    digest.update(length[order].tobytes())
    return digest.hexdigest()


def _is_covered(trace: Trace, runs: frozenset[str], others: Sequence[frozenset[str]]) -> bool:
    """Return whether the kernels as a whole, or those of every process, are in the others."""
    if not others:
        return False
    known = frozenset[str]().union(*others)
    whole = next(_runs(trace))
    return whole in known or (runs - {whole} <= known and len(runs) > 1)


def _note(trace: Trace, kept: Trace) -> Note:
    left, stays = (", ".join(file.name for file in t.source.files[:3]) for t in (trace, kept))
    text = (
        f"{left} and {stays} hold the same kernels at the same times: they are exports of one run. "
        f"It counts once, from {stays}."
    )
    return Note("dropped", "same-run", text, len(trace.source.files))
