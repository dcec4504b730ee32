"""The table of kernels: which rows, their work, and what launched them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from traceflops.reports.page.launch_sites import Launched, key_of, launched, missing, way
from traceflops.reports.page.section import DeepLinks, link_to
from traceflops.reports.page.work import (
    WorkShown,
    columns_remark,
    rates_sentence,
    work_columns,
    work_of,
)
from traceflops.reports.view import Label, duration, kernel_labels, numbered

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.analysis import Analysis

MOST_KERNELS: Final = 100
_MOST_PER_CATEGORY: Final = 3
_MOST_OF_CATEGORIES: Final = 60
_MOST_WAYS: Final = 300


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
    ways: Sequence[Mapping[str, Any]]
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
    remark: str
    counted: Set[str]
    launched: Launched
    missing: str
    ways_left_out: int


def kernels_page(analysis: Analysis, most: int = MOST_KERNELS) -> KernelsPage:
    """Return the kernels with the most time and the longest of each category."""
    table = analysis.kernels
    places = _places(table, most)
    rows = table.take(places).to_pylist() if places else []
    work = work_of(analysis.measured, analysis.measured.kernels, [row["name"] for row in rows])
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
        remark=columns_remark(counted, [one.work for one in shown]),
        counted=counted,
        launched=ways,
        missing=missing(ways),
        ways_left_out=left_out,
    )


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


def _share(table: pa.Table, rows: Sequence[Mapping[str, Any]]) -> float | None:
    shares: list[float | None] = table["share"].to_pylist()
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    return max(sum(known) - sum(float(row["share"]) for row in rows), 0.0)


def _shown(
    rows: Sequence[Mapping[str, Any]],
    work: dict[str, WorkShown],
    sites: Launched,
    categories: Sequence[Mapping[str, Any]],
) -> tuple[list[KernelShown], int]:
    """Return the rows with their work and ways, and of how many kernels the ways are left out."""
    links, shown, left_out, room = DeepLinks("kernel"), [], 0, _MOST_WAYS
    firsts = {
        (one["top"], one["sub"]): category_link(one["top"], one["sub"], categories)
        for one in categories
    }
    named = kernel_labels([row["name"] for row in rows])
    for row, label in zip(rows, named, strict=True):
        ways = sites.rows.get(key_of(row), [])
        if len(ways) > room:
            ways, left_out = [], left_out + 1
        room -= len(ways)
        # Work is known by name alone: of kernels of one name the one with most time shows it.
        mine = work.pop(row["name"], None)
        shown.append(
            KernelShown(
                row=row,
                label=label,
                link=links.of(row["name"]),
                category=f"{row['top']}/{row['sub']}",
                first_of=firsts.pop((row["top"], row["sub"]), ""),
                work=mine,
                ways=list(map(way, ways)),
                facts=list(_facts(row, mine)),
            )
        )
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
