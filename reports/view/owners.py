"""Device work by owner, such as a module or operator, as tables, and how it was attributed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Final, NamedTuple

from traceflops.analysis.result import Analysis
from traceflops.attribution.device_work_tables import BY, HOST_OP, Owner
from traceflops.characters import function_name
from traceflops.reports.view.figures import count, duration, mean_count, percent
from traceflops.reports.view.host import host_operators_table
from traceflops.reports.view.recorded_shapes import shape_words
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, Share, table_of
from traceflops.reports.view.wording import time_shared
from traceflops.units import capitalized

MOST_OWNERS: Final = 20
_NAME, _SHAPES = 90, 50


class _Words(NamedTuple):
    """What owners of a kind and work without one are called; the code of what else to record."""

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
"""Words by kind of owner, in the order of the tables."""
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
"""Rules of attribution: what each one attributes work to, in words."""


def attribution_sentence(analysis: Analysis) -> str:
    """Return the share of GPU time that each rule attributes, largest first; "" without any."""
    work_of = analysis.attribution.by_rule if analysis.attribution else {}
    times_ns = {_RULES[rule]: work.device_ns for rule, work in work_of.items() if work.device_ns}
    largest_first = sorted(times_ns.items(), key=itemgetter(1), reverse=True)
    total_ns = sum(times_ns.values())
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

    `by` is a key of OWNER_WORDS. Figures are means per window. Owners keep the order that they
    have in the attribution, which may be a tree.
    """
    if by == HOST_OP:
        return host_operators_table(analysis, most)
    work = BY[by](analysis.prepared.as_launched) if analysis.attribution else None
    if work is None or not work.owners:
        return table_of((), ())
    has_shapes = any(owner.shapes for owner in work.owners)
    words = OWNER_WORDS["op" if by == "shape" and not has_shapes else by]
    indices = range(len(work.owners))
    largest = nlargest(most, indices, key=lambda index: work.owners[index].work.device_ns)
    rows = [work.owners[index] for index in sorted(largest)]
    has_instances = any(owner.instances > 1 for owner in rows)
    hidden = len(work.owners) - len(rows)
    names = _owner_names(rows)
    if work.rest.device_ns:
        rows.append(Owner("", work.rest))
        names[id(rows[-1])] = f"({words.without})"
    mean, window_ns = analysis.mean_ns, analysis.components.window_ns

    def each(row: Owner) -> str:
        return duration(mean(row.work.device_ns) / row.instances) if row.instances > 1 else ""

    def slowest(row: Owner) -> str:
        """Return the number in the name of the slowest instance: "3" of "Block_3"."""
        return row.slowest.rpartition("_")[2] if row.instances > 1 else ""

    counted = "Calls" if analysis.on_host else "GPU operations"
    columns = [
        Column(capitalized(words.owners), lambda row: names[id(row)]),
        Column.number("Time", lambda row: duration(mean(row.work.device_ns))),
        Column.number(
            f"Of {time_shared(analysis)}",
            lambda row: Share(row.work.device_ns / window_ns if window_ns else None),
        ),
        Column.number(counted, lambda row: mean_count(mean(row.work.activities))),
    ]
    # An owner may stand for several instances: show the time of one, and which is the slowest.
    if by == "layer" or (by == "module" and has_instances):
        columns += [Column.number("Each", each), Column.number("Slowest", slowest)]
    depths = [row.depth for row in rows]
    return table_of(columns, rows, hidden + len(rows), depths=depths)


def _owner_names(owners: Sequence[Owner]) -> dict[int, Cell]:
    """Return the cell that names each owner, by its `id`; the whole name is a path from the root.

    `owners` are in the order of a tree, parents first.
    """
    pairs = [(function_name(owner.label), shape_words(owner.shapes, _SHAPES)) for owner in owners]
    short_texts = short_labels([" ".join(filter(None, pair)) for pair in pairs], _NAME)
    names: dict[int, Cell] = {}
    path: list[str] = []
    for owner, short in zip(owners, short_texts, strict=True):
        path[owner.depth :] = [f"{owner.label} {owner.shapes}".rstrip()]  # leaves its ancestors
        name = Name(short, "/".join(path))
        is_several = owner.instances > 1
        names[id(owner)] = (f"{count(owner.instances)} ×", name) if is_several else name
    return names
