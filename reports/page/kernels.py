"""The table of kernels: its rows, their work, and the ways in which each was launched.

A way is an operator or call with its module, shapes and data types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.analysis.result import Analysis
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
from traceflops.reports.view.recorded_shapes import shape_words, type_words
from traceflops.reports.view.short_names import kernel_labels
from traceflops.reports.view.wording import listed, numbered
from traceflops.table.columns import take_rows
from traceflops.windows.prepared import Prepared

MOST_KERNELS: Final = 100
_MOST_PER_CATEGORY: Final = 3
_MOST_OF_CATEGORIES: Final = 60
_MOST_WAYS: Final = 300  # of all kernels together
Key = tuple[str, ...]
_key_of: Final = itemgetter("name", "kind", "top", "sub", "rule")
"""Returns the columns that identify a row of a kernel table."""
_COLUMNS: Final = ("op", "call", "scope", "shapes", "dtypes")


def kernels_page(analysis: Analysis) -> dict[str, Any]:
    """Return the values of the table of kernels: its rows, sums, and what is not shown.

    Its rows are the MOST_KERNELS with the most time, and the longest of other categories, of
    which `of_categories` is the number. Bars are relative to `largest_ns` and
    `most_recoverable_ns` (None: unknown). `rates` explains the `counted` columns.
    """
    table = analysis.kernels
    indices = _shown_rows(table)
    # A list of ints would make PyArrow import pandas, which takes long.
    rows = take_rows(table, np.array(indices)).to_pylist()
    work = work_of(analysis.measured, analysis.measured.kernels, [row["name"] for row in rows])
    sites = launched(analysis.prepared)
    shown, left_out = _shown(rows, work, sites, analysis.categories.to_pylist())
    works = [kernel["work"] for kernel in shown]
    counted = work_columns(works)
    saved = [work.recoverable_ns for work in works if work is not None]
    shares = table["share"].to_pylist()
    shown_share = sum(row["share"] or 0 for row in rows)
    return {
        "rows": shown,
        "largest_ns": max((row["sum_ns"] for row in rows), default=0),
        "most_recoverable_ns": max((ns for ns in saved if ns is not None), default=None),
        "of_categories": sum(index >= MOST_KERNELS for index in indices),
        "hidden": table.num_rows - len(rows),
        "hidden_ns": sum(table["sum_ns"].to_pylist()) - sum(row["sum_ns"] for row in rows),
        # Rounding may make the rest a little less than 0.
        "hidden_share": None if None in shares else max(sum(shares) - shown_share, 0.0),
        "rates": rates_sentence(analysis.measured) if counted else "",
        "remark": columns_remark(counted, works),
        "counted": counted,
        "launched": sites,
        "missing": missing(sites),
        "ways_left_out": left_out,
    }


def category_link(top: str, sub: str, categories: Sequence[Mapping[str, Any]]) -> str:
    """Return the link (without #) to the kernels of a category, by `sub` alone if it is unique."""
    is_unique = sum(row["sub"] == sub for row in categories) == 1
    return link_to("category", sub if is_unique else f"{top}/{sub}")


def _shown_rows(table: pa.Table) -> list[int]:
    """Return the first MOST_KERNELS rows, then later ones, so that each category has a few."""
    counts: Counter[tuple[str, str]] = Counter()
    later = []
    categories = zip(table["top"].to_pylist(), table["sub"].to_pylist(), strict=True)
    for index, category in enumerate(categories):
        counts[category] += 1
        if index >= MOST_KERNELS and counts[category] <= _MOST_PER_CATEGORY:
            later.append(index)
    return [*range(min(MOST_KERNELS, table.num_rows)), *later[:_MOST_OF_CATEGORIES]]


def kernel_places(table: pa.Table) -> dict[str, list[int]]:
    """Return the row numbers of each kernel in the table on the page, from 1 on, by name."""
    numbers: dict[str, list[int]] = {}
    names = table["name"].to_pylist()
    for number, index in enumerate(_shown_rows(table), 1):
        numbers.setdefault(names[index], []).append(number)
    return numbers


def _shown(
    rows: Sequence[Mapping[str, Any]],
    work: dict[str, WorkShown],
    sites: LaunchSites,
    categories: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows with their work and ways, and how many kernels have no room for their ways.

    `link` leads to a row, without # ("" for none); `first_of` leads to the category, for its first
    row. `facts` are shown when a row unfolds. `work` is emptied.
    """
    links, shown, left_out, room = DeepLinks("kernel"), [], 0, _MOST_WAYS
    pairs = [(category["top"], category["sub"]) for category in categories]
    category_links = {(top, sub): category_link(top, sub, categories) for top, sub in pairs}
    labels = kernel_labels([row["name"] for row in rows])
    for row, label in zip(rows, labels, strict=True):
        ways = sites.rows.get(_key_of(row), [])
        if len(ways) > room:
            ways, left_out = [], left_out + 1
        room -= len(ways)
        # Work is known by name alone: the first row of a name, which has the most time, gets it.
        own_work = work.pop(row["name"], None)
        kernel = {
            "row": row,
            "label": label,
            "link": links.of(row["name"]),
            "category": f"{row['top']}/{row['sub']}",
            "first_of": category_links.pop((row["top"], row["sub"]), ""),
            "work": own_work,
            "ways": list(map(way, ways)),
            "facts": _facts(row, own_work),
        }
        shown.append(kernel)
    return shown, left_out


def _facts(row: Mapping[str, Any], work: WorkShown | None) -> list[tuple[str, str]]:
    """Return the figures of a kernel that have no column, each after its label."""
    facts = [
        ("category", row["sub"].replace("_", " ")),
        ("kind", row["kind"]),
        ("category rule", row["rule"]),
        ("min", duration(row["min_ns"])),
        ("max", duration(row["max_ns"])),
    ]
    if work is None:
        return facts
    if work.intensity.value is not None:
        facts.append(("FLOP per byte", work.intensity.text))
    if work.by:
        facts.append(("bound", f"{work.bound} by {work.by}"))
    if work.flops.value is not None:
        launches = numbered(work.count, "launch")
        facts.append(("FLOPs known for", f"{launches}, {duration(work.time_ns)}"))
    return facts


class LaunchSites(Struct, frozen=True):
    """The ways in which each kernel was launched, the columns known of any, the title of scopes."""

    rows: Mapping[Key, list[dict[str, Any]]]
    knows: frozenset[str]
    scope_title: str


def launched(prepared: Prepared) -> LaunchSites:
    """Return the ways in which each kernel was launched; none without events."""
    sites = launchers(prepared.as_launched)
    rows: dict[Key, list[dict[str, Any]]] = {}
    for row in sites.to_pylist():
        rows.setdefault(_key_of(row), []).append(row)
    known = frozenset(name for name in _COLUMNS if sites[name].null_count < sites.num_rows)
    are_modules = set(sites["is_module"].to_pylist())  # of True, False and None
    title = "Module" if True in are_modules else "Annotation"
    if are_modules >= {True, False}:
        title = "Module or annotation"
    return LaunchSites(rows, known, title)


def missing(sites: LaunchSites) -> str:
    """Return a sentence on what the trace does not record of launches, "" if all or no launches."""
    if not sites.rows:
        return ""
    if not sites.knows & {"op", "call"}:
        return "The trace does not record what launched them."
    columns = {"op": "operators", "scope": "modules", "shapes": "shapes"}
    lacks = [text for column, text in columns.items() if column not in sites.knows]
    return f"Not in the trace: {listed(lacks)} of the launches." if lacks else ""


def way(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a way to launch a kernel in words; a backward pass has the scope of its forward."""
    modules = f"{row['modules']:,} modules" if (row["modules"] or 0) > 1 else ""
    return {
        **row,
        "scope_more": ", ".join(filter(None, (modules, "backward" if row["backward"] else ""))),
        "shapes": shape_words(row["shapes"] or ""),
        "dtypes": type_words(row["dtypes"] or ""),
    }
