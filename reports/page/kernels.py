"""The table of kernels: which rows, their work, and what launched them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from traceflops.reports.page.deeplinks import DeepLinks
from traceflops.reports.page.launch_sites import Launched, Way, key_of, launched, missing
from traceflops.reports.page.work import (
    WorkColumns,
    WorkShown,
    kernel_work,
    rates_sentence,
    work_columns,
)
from traceflops.reports.view import Label, duration, kernel_labels, numbered

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.analysis import Analysis

MOST_KERNELS: Final = 100
MOST_PER_CATEGORY: Final = 3
_MOST_OF_CATEGORIES: Final = 60
MOST_WAYS: Final = 300


@dataclass(frozen=True, slots=True)
class KernelShown:
    """A row of the table; `link` is what follows # in a link to it, empty where it has none.

    `first_of` is what follows # in a link to its category, in the first row of each. `facts` are
    what is said of it beside its columns: a word and a text.
    """

    row: Mapping[str, Any]
    label: Label
    link: str
    category: str
    first_of: str
    work: WorkShown | None
    ways: Sequence[Way]
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class KernelsPage:
    """The kernels that are shown, and the number, time and time share of those that are not.

    `of_categories` counts the rows that are there only as the longest of their category. `rates`
    says what the columns of counted work, `counted`, are of; "" where there are none.
    """

    rows: list[KernelShown]
    of_categories: int
    hidden: int
    hidden_ns: int
    hidden_share: float | None
    rates: str
    counted: WorkColumns
    launched: Launched
    missing: str
    ways_left_out: int


def kernels_page(analysis: Analysis, most: int = MOST_KERNELS) -> KernelsPage:
    """Return the kernels with the most time and the longest of each category."""
    table = analysis.kernels
    places = _places(table, most)
    rows = table.take(places).to_pylist() if places else []
    work = kernel_work(analysis.measured, [row["name"] for row in rows])
    ways = launched(analysis.prepared)
    shown, left_out = _shown(rows, work, ways, analysis.categories.to_pylist())
    counted = work_columns(one.work for one in shown)
    hidden_ns = sum(table["sum_ns"].to_pylist()) - sum(row["sum_ns"] for row in rows)
    return KernelsPage(
        rows=shown,
        of_categories=sum(place >= most for place in places),
        hidden=table.num_rows - len(rows),
        hidden_ns=hidden_ns,
        hidden_share=_share(table, rows),
        rates=rates_sentence(analysis.measured) if counted else "",
        counted=counted,
        launched=ways,
        missing=missing(ways),
        ways_left_out=left_out,
    )


def category_link(top: str, sub: str, categories: Sequence[Mapping[str, Any]]) -> str:
    """Return what follows # in a link to the kernels of a category."""
    alone = sum(row["sub"] == sub for row in categories) == 1
    return DeepLinks.text("category", sub if alone else f"{top}/{sub}")


def _places(table: pa.Table, most: int) -> list[int]:
    """Return the rows to show: the first ones, and some of each category that comes later."""
    found = list(range(min(most, table.num_rows)))
    seen: Counter[tuple[str, str]] = Counter()
    pairs = zip(table["top"].to_pylist(), table["sub"].to_pylist(), strict=True)
    extra = 0
    for place, pair in enumerate(pairs):
        seen[pair] += 1
        if place >= most and seen[pair] <= MOST_PER_CATEGORY and extra < _MOST_OF_CATEGORIES:
            found.append(place)
            extra += 1
    return found


def _share(table: pa.Table, rows: Sequence[Mapping[str, Any]]) -> float | None:
    shares: list[float | None] = table["share"].to_pylist()
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    return max(sum(known) - sum(float(row["share"]) for row in rows), 0.0)


def _shown(
    rows: Sequence[Mapping[str, Any]],
    work: dict[str, WorkShown],
    found: Launched,
    categories: Sequence[Mapping[str, Any]],
) -> tuple[list[KernelShown], int]:
    """Return the rows with their work and ways, and of how many kernels the ways are left out."""
    links, shown, left_out, room = DeepLinks("kernel"), [], 0, MOST_WAYS
    firsts = {
        (one["top"], one["sub"]): category_link(one["top"], one["sub"], categories)
        for one in categories
    }
    named = kernel_labels([row["name"] for row in rows])
    for row, label in zip(rows, named, strict=True):
        ways: list[Way] = []
        if found.number(key_of(row)) > room:
            left_out += 1
        else:
            ways = found.ways(key_of(row))
        room -= len(ways)
        # Work is known by name alone: of kernels of one name the one with most time shows it.
        mine = work.pop(row["name"], None)
        category = f"{row['top']}/{row['sub']}"
        facts = list(_facts(row, mine))
        first_of = firsts.pop((row["top"], row["sub"]), "")
        link = links.of(row["name"])
        shown.append(KernelShown(row, label, link, category, first_of, mine, ways, facts))
    return shown, left_out


def _facts(row: Mapping[str, Any], work: WorkShown | None) -> Iterator[tuple[str, str]]:
    yield "category", row["sub"].replace("_", " ")
    yield "kind", row["kind"]
    yield "category rule", row["rule"]
    yield "min", duration(row["min_ns"])
    yield "max", duration(row["max_ns"])
    if work is None:
        return
    if work.intensity.value is not None:
        yield "FLOP per byte", work.intensity.text
    if work.by:
        yield "bound", f"{work.bound} by {work.by}"
    if work.flops.value is not None:
        yield "FLOPs known for", f"{numbered(work.count, 'launch')}, {duration(work.time_ns)}"
