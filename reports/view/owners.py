"""Whose work the GPUs did: tables by module, operator and the like, and what is attributed."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from operator import itemgetter
from typing import Final, NamedTuple

from traceflops.analysis.result import Analysis
from traceflops.attribution.device_work_tables import BY, HOST_OP, Owner
from traceflops.characters import function_name
from traceflops.reports.view.figures import count, duration, percent
from traceflops.reports.view.host import host_operators_table
from traceflops.reports.view.recorded_shapes import shape_words
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, Share, table_of
from traceflops.reports.view.wording import time_shared
from traceflops.units import capitalized

MOST_OWNERS: Final = 20
_NAME, _SHAPES = 90, 50


class _Words(NamedTuple):
    """What owners of a kind are called, and work without such an owner; what to record for them."""

    owners: str
    without: str
    lack: str


OWNER_WORDS: Final = {
    "layer": _Words("kinds of layers", "outside modules", "stacks"),
    "op": _Words("operators", "without operator", "operators"),
    "shape": _Words("operators by shape", "without operator", "shapes"),
    "source": _Words("functions", "outside your functions", "stacks"),
    "range": _Words("annotations", "outside annotations", "annotations"),
    "module": _Words("modules", "outside modules", "stacks"),
    HOST_OP: _Words("operators by CPU time", "", "operators"),
}
"""The tables in their order."""
_RULES: Final = {
    "module": "modules",
    "backward_module": "backward of modules",
    "gradient_accumulation": "gradient accumulation",
    "optimizer": "optimizer",
    "communication": "communication",
    "user_function": "functions",
    "annotation": "annotations",
    "compiled_region": "compiled code",
    "op": "operators",
    "call": "launch calls",
    "none": "nothing",
}
"""What the rules attribute work to, in words."""


def attribution_sentence(analysis: Analysis) -> str:
    """Return how much of the time of GPU operations each rule attributes, the most first."""
    work_of = analysis.attribution.by_rule if analysis.attribution else {}
    times = {_RULES[rule]: work.device_ns for rule, work in work_of.items() if work.device_ns}
    largest_first = sorted(times.items(), key=itemgetter(1), reverse=True)
    total_ns = sum(times.values())
    shares = " · ".join(f"{words} {percent(ns / total_ns)}" for words, ns in largest_first)
    time = "Time" if analysis.on_host else "GPU time"
    return f"{time} attributed to: {shares}" if shares else ""


def owner_tables(analysis: Analysis, most: int = MOST_OWNERS) -> Iterator[tuple[str, ReportTable]]:
    """Yield the tables of device work that have rows, each after its title."""
    # The table by shape has all operators, so there is none by operator alone.
    for by in (name for name in OWNER_WORDS if name not in ("op", HOST_OP)):
        table = owners_table(analysis, by, most)
        if table.rows:
            yield table.columns[0].head, table


def owners_table(analysis: Analysis, by: str, most: int = MOST_OWNERS) -> ReportTable:
    """Return the `most` owners with most time, and the work without an owner; no row if unknown.

    `by` is a kind of OWNER_WORDS. Figures are means per window. Owners keep the order of their
    table, which may be a tree.
    """
    if by == HOST_OP:
        return host_operators_table(analysis, most)
    prepared = analysis.prepared
    found = BY[by](prepared.as_launched) if prepared and analysis.attribution else None
    if found is None or not found.owners:
        return table_of((), ())
    if by == "shape" and not any(owner.shapes for owner in found.owners):
        by = "op"  # without recorded shapes the rows are operators
    words, every = OWNER_WORDS[by], range(len(found.owners))
    places = nlargest(most, every, key=lambda place: found.owners[place].work.device_ns)
    owners = [found.owners[place] for place in sorted(places)]
    pairs = [(function_name(owner.label), shape_words(owner.shapes, _SHAPES)) for owner in owners]
    texts = [" ".join(filter(None, pair)) for pair in pairs]
    names: dict[int, Cell] = {}  # by the owner's id; the whole name is a path from the root
    path: list[str] = []
    for owner, short in zip(owners, short_labels(texts, _NAME), strict=True):
        # Owners follow those that they are in: deeper entries are of the owner before.
        path[owner.depth :] = [f"{owner.label} {owner.shapes}".rstrip()]
        name = Name(short, "/".join(path))
        many = owner.instances > 1
        names[id(owner)] = (f"{count(owner.instances)} ×", name) if many else name
    rows, hidden = list(owners), len(found.owners) - len(owners)
    if found.rest.device_ns:
        rows.append(Owner("", found.rest))
        names[id(rows[-1])] = f"({words.without})"
    mean, window_ns = analysis.mean_ns, analysis.components.window_ns

    def share(row: Owner) -> Share:
        return Share(row.work.device_ns / window_ns if window_ns else None)

    def each(row: Owner) -> str:
        return duration(mean(row.work.device_ns) / row.instances) if row.instances > 1 else ""

    def slowest(row: Owner) -> str:
        """Return the number in the name of the slowest instance: "3" of "Block_3"."""
        return row.slowest.rpartition("_")[2] if row.instances > 1 else ""

    columns = [
        Column(capitalized(words.owners), lambda row: names[id(row)]),
        Column.number("Time", lambda row: duration(mean(row.work.device_ns))),
        Column.number(f"Of {time_shared(analysis)}", share),
        Column.number("Count", lambda row: count(round(mean(row.work.activities)))),
    ]
    # Rows of several instances also tell the time of one, and which is the slowest.
    if by == "layer" or (by == "module" and any(owner.instances > 1 for owner in owners)):
        columns += [Column.number("Each", each), Column.number("Slowest", slowest)]
    depths = [row.depth for row in rows]
    return table_of(columns, rows, hidden + len(rows), depths=depths)
