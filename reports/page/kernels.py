"""The table of kernels: which rows, their work, and what launched them.

Of each way to launch one: op, modules, shapes and types, in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.attribution.launching_ops import launchers
from traceflops.reports.page.section import DeepLinks, link_to
from traceflops.reports.page.work import (
    WorkShown,
    columns_remark,
    rates_sentence,
    work_columns,
    work_of,
)
from traceflops.reports.view.figures import duration
from traceflops.reports.view.short_names import kernel_labels
from traceflops.reports.view.wording import listed, numbered, shape_words, type_words
from traceflops.table.columns import number_column

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.windows.prepared import Prepared

MOST_KERNELS: Final = 100
_MOST_PER_CATEGORY: Final = 3
_MOST_OF_CATEGORIES: Final = 60
_MOST_WAYS: Final = 300
Key = tuple[str, ...]
"""A row of a kernel table: name, kind, top, sub, rule."""
_KEY: Final = ("name", "kind", "top", "sub", "rule")
_COLUMNS: Final = ("op", "call", "scope", "shapes", "dtypes")


def kernels_page(analysis: Analysis, most: int = MOST_KERNELS) -> dict[str, Any]:
    """Return the kernels with the most time and the longest of each category, and what is hidden.

    `largest_ns` and `most_recoverable_ns` are what bars are relative to, None: unknown.
    `of_categories` counts the rows that are there only as the longest of their category. `rates`
    says what the columns of counted work, `counted`, are of; "" where there are none.
    """
    table = analysis.kernels
    places = _places(table, most)
    # From a list PyArrow would make an array with the help of pandas, whose import takes long.
    rows = table.take(number_column(np.array(places), pa.int64())).to_pylist()
    work = work_of(analysis.measured, analysis.measured.kernels, [row["name"] for row in rows])
    ways = launched(analysis.prepared)
    shown, left_out = _shown(rows, work, ways, analysis.categories.to_pylist())
    works = [kernel["work"] for kernel in shown]
    counted = work_columns(works)
    saved = [work.recoverable_ns for work in works if work is not None]
    shares = table["share"].to_pylist()
    shown_share = sum(row["share"] or 0 for row in rows)
    return {
        "rows": shown,
        "largest_ns": max((row["sum_ns"] for row in rows), default=0),
        "most_recoverable_ns": max((ns for ns in saved if ns is not None), default=None),
        "of_categories": sum(place >= most for place in places),
        "hidden": table.num_rows - len(rows),
        "hidden_ns": sum(table["sum_ns"].to_pylist()) - sum(row["sum_ns"] for row in rows),
        "hidden_share": None if None in shares else max(sum(shares) - shown_share, 0.0),
        "rates": rates_sentence(analysis.measured) if counted else "",
        "remark": columns_remark(counted, works),
        "counted": counted,
        "launched": ways,
        "missing": missing(ways),
        "ways_left_out": left_out,
    }


def category_link(top: str, sub: str, categories: Sequence[Mapping[str, Any]]) -> str:
    """Return what follows # in a link to the kernels of a category."""
    alone = sum(row["sub"] == sub for row in categories) == 1
    return link_to("category", sub if alone else f"{top}/{sub}")


def _places(table: pa.Table, most: int) -> list[int]:
    """Return the rows to show: the first ones, and some of each category that comes later."""
    counts: Counter[tuple[str, str]] = Counter()
    later = []
    pairs = zip(table["top"].to_pylist(), table["sub"].to_pylist(), strict=True)
    for place, pair in enumerate(pairs):
        counts[pair] += 1
        if place >= most and counts[pair] <= _MOST_PER_CATEGORY:
            later.append(place)
    return [*range(min(most, table.num_rows)), *later[:_MOST_OF_CATEGORIES]]


def kernel_places(table: pa.Table) -> dict[str, list[int]]:
    """Return the numbers of the rows of each kernel that is shown, from 1 on."""
    found: dict[str, list[int]] = {}
    labels = table["name"].to_pylist()
    for number, place in enumerate(_places(table, MOST_KERNELS), 1):
        found.setdefault(labels[place], []).append(number)
    return found


def _shown(
    rows: Sequence[Mapping[str, Any]],
    work: dict[str, WorkShown],
    sites: LaunchSites,
    categories: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows with their work and ways, and of how many kernels the ways are left out.

    `link` is what follows # in a link to a row, empty where it has none, `first_of` in a link to
    its category, in the first row of each. `facts` are what is said beside the columns.
    """
    links, shown, left_out, room = DeepLinks("kernel"), [], 0, _MOST_WAYS
    firsts = {
        (category["top"], category["sub"]): category_link(
            category["top"], category["sub"], categories
        )
        for category in categories
    }
    named = kernel_labels([row["name"] for row in rows])
    for row, label in zip(rows, named, strict=True):
        ways = sites.rows.get(key_of(row), [])
        if len(ways) > room:
            ways, left_out = [], left_out + 1
        room -= len(ways)
        # Work is known by name alone: of kernels of one name the one with most time shows it.
        own_work = work.pop(row["name"], None)
        facts = [("category", row["sub"].replace("_", " ")), ("kind", row["kind"])]
        facts += [("category rule", row["rule"])]
        facts += [("min", duration(row["min_ns"])), ("max", duration(row["max_ns"]))]
        if own_work is not None and own_work.intensity.value is not None:
            facts.append(("FLOP per byte", own_work.intensity.text))
        if own_work is not None and own_work.by:
            facts.append(("bound", f"{own_work.bound} by {own_work.by}"))
        if own_work is not None and own_work.flops.value is not None:
            launches = numbered(own_work.count, "launch")
            facts.append(("FLOPs known for", f"{launches}, {duration(own_work.time_ns)}"))
        shown.append(
            {
                "row": row,
                "label": label,
                "link": links.of(row["name"]),
                "category": f"{row['top']}/{row['sub']}",
                "first_of": firsts.pop((row["top"], row["sub"]), ""),
                "work": own_work,
                "ways": list(map(way, ways)),
                "facts": facts,
            }
        )
    return shown, left_out


class LaunchSites(Struct, frozen=True):
    """The ways to launch each kernel, which columns any of them fills, and what a scope is.

    `rows` are those of `launchers`; `way` puts one into words.
    """

    rows: Mapping[Key, list[dict[str, Any]]]
    knows: frozenset[str]
    scope_title: str


def launched(prepared: Prepared | None) -> LaunchSites:
    """Return what launched the kernels; nothing where the events were not kept."""
    if prepared is None:
        return LaunchSites({}, frozenset(), "")
    sites = launchers(prepared.as_launched)
    rows: dict[Key, list[dict[str, Any]]] = {}
    for row in sites.table.to_pylist():
        rows.setdefault(key_of(row), []).append(row)
    knows = frozenset(filter(sites.knows, _COLUMNS))
    are_modules = set(sites.table["is_module"].to_pylist())
    title = "Module" if True in are_modules else "Annotation"
    return LaunchSites(
        rows, knows, "Module or annotation" if are_modules >= {True, False} else title
    )


def key_of(row: Mapping[str, Any]) -> Key:
    """Return what names a row of a kernel table."""
    return tuple(row[column] for column in _KEY)


def missing(sites: LaunchSites) -> str:
    """Return what the trace does not tell of launches, as a sentence; empty where it tells all."""
    if not sites.rows:
        return ""
    if not sites.knows & {"op", "call"}:
        return "The trace does not record what launched them."
    columns = {"op": "operators", "scope": "modules", "shapes": "shapes"}
    lacks = [text for column, text in columns.items() if column not in sites.knows]
    return f"Not in the trace: {listed(lacks)} of the launches." if lacks else ""


def way(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one way to launch a kernel in words.

    `scope_more` says how many modules the scope counts for, and that it is that of the forward op.
    """
    modules = f"{row['modules']:,} modules" if (row["modules"] or 0) > 1 else ""
    return {
        **row,
        "scope_more": ", ".join(filter(None, (modules, "backward" if row["backward"] else ""))),
        "shapes": shape_words(row["shapes"] or ""),
        "dtypes": type_words(row["dtypes"] or ""),
    }
