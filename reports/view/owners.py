"""Whose work the GPUs did: tables by module, operator and the like, and what is attributed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from traceflops.attribution.device_work_tables import HOST_OP, Owner, work_owners
from traceflops.characters import function_name
from traceflops.reports.view.figures import count, duration, percent
from traceflops.reports.view.host import host_operators_table
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, Share, table_of
from traceflops.reports.view.wording import shape_words, time_shared
from traceflops.units import capitalized

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis

MOST_OWNERS: Final = 20
_NAME, _SHAPES = 90, 50


class _Words(NamedTuple):
    """What owners of a kind are called, and the work that has none; what to record for them."""

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
    found = analysis.attribution.by_rule if analysis.attribution else {}
    total = sum(one.device_ns for one in found.values())
    times = [(_RULES[rule], one.device_ns) for rule, one in found.items() if one.device_ns]
    parts = sorted(times, key=itemgetter(1), reverse=True)
    shares = " · ".join(f"{words} {percent(ns / total)}" for words, ns in parts)
    time = "Time" if analysis.on_host else "GPU time"
    return f"{time} attributed to: {shares}" if shares else ""


def owner_tables(analysis: Analysis, most: int = MOST_OWNERS) -> Iterator[tuple[str, ReportTable]]:
    """Yield the tables that have rows, each after its title; by shape there are all operators."""
    for by in (name for name in OWNER_WORDS if name not in ("op", HOST_OP)):
        table = owners_table(analysis, by, most)
        if table.rows:
            yield table.columns[0].head, table


def owners_table(analysis: Analysis, by: str, most: int = MOST_OWNERS) -> ReportTable:
    """Return the owners with most time, a tree in its order; all figures are means per window."""
    if by == HOST_OP:
        return host_operators_table(analysis, most)
    prepared = analysis.prepared
    found = work_owners(prepared.as_launched, by) if prepared and analysis.attribution else None
    if found is None or not found.owners:
        return table_of((), ())
    if by == "shape" and not any(one.shapes for one in found.owners):
        by = "op"
    words, every = OWNER_WORDS[by], range(len(found.owners))
    places = nlargest(most, every, key=lambda place: found.owners[place].work.device_ns)
    owners = [found.owners[place] for place in sorted(places)]
    rows = list(map(_Row, _names(owners), owners))
    hidden = len(found.owners) - len(rows)
    if found.rest.device_ns:
        rows.append(_Row(f"({words.without})", Owner("", found.rest)))
    has_folds = by == "module" and any(one.instances > 1 for one in owners)
    folded = _folded(analysis, by, has_folds=has_folds)
    columns = (*_columns(analysis, capitalized(words.owners)), *folded)
    depths = [row.owner.depth for row in rows]
    return table_of(columns, rows, hidden + len(rows), depths=depths)


class _Row(NamedTuple):
    name: Cell
    owner: Owner


def _names(owners: Sequence[Owner]) -> Iterator[Cell]:
    """Yield what is shown of each owner; the whole of a name has the names around it."""
    texts = [" ".join(filter(None, _texts(one))) for one in owners]
    path: list[str] = []
    for one, short in zip(owners, short_labels(texts, _NAME), strict=True):
        path[one.depth :] = [f"{one.label} {one.shapes}".rstrip()]
        name = Name(short, "/".join(path))
        yield (f"{count(one.instances)} ×", name) if one.instances > 1 else name


def _texts(owner: Owner) -> tuple[str, str]:
    return function_name(owner.label), shape_words(owner.shapes, _SHAPES)


def _columns(analysis: Analysis, head: str) -> Iterator[Column]:
    mean, window_ns = analysis.mean_ns, analysis.components.window_ns or None
    yield Column(head, lambda row: row.name)
    yield Column("Time", lambda row: duration(mean(row.owner.work.device_ns)), is_number=True)
    yield Column(
        f"Of {time_shared(analysis)}",
        lambda row: Share(row.owner.work.device_ns / window_ns if window_ns else None),
        is_number=True,
    )
    yield Column("Count", lambda row: count(round(mean(row.owner.work.activities))), True)


def _folded(analysis: Analysis, by: str, *, has_folds: bool) -> Iterator[Column]:
    """Yield what is said of several instances."""

    def each(row: _Row) -> str:
        number = row.owner.instances
        mean_ns = analysis.mean_ns(row.owner.work.device_ns) / number
        return duration(mean_ns) if number > 1 else ""

    def slowest(row: _Row) -> str:
        return row.owner.slowest.rpartition("_")[2] if row.owner.instances > 1 else ""

    if by == "layer" or has_folds:
        yield Column("Each", each, is_number=True)
        yield Column("Slowest", slowest, is_number=True)
