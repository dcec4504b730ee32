"""What a trace without a timeline says, in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from traceflops.reports.view import (
    LEAST_NAME,
    Look,
    columns,
    count,
    duration,
    look,
    percent,
    short_labels,
    size,
    spaced,
    wrapped,
)
from traceflops.table import DEVICE_KINDS
from traceflops.units import command_lines

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.timeline import Untimed

from collections.abc import Iterable
from typing import Final

from traceflops.analysis import Analysis
from traceflops.ranks import Collective
from traceflops.reports.view import UNKNOWN, collective_label, collective_rate, mean_message
from traceflops.units import several

_ROWS = 5
_NAME_WIDTH, _CATEGORY_WIDTH = 50, 20
_CELLS = {"time": 12, "share": 9, "count": 12}
_COUNTERS = 12
_TITLES = {
    DEVICE_KINDS: "Top kernels and copies",
    ("call",): "Top API calls",
    ("mark",): "Top annotations (nested count twice)",
    ("gpu_mark",): "Top GPU annotations (nested count twice)",
}
Cut = Callable[[Sequence[str], int], list[str]]
"""Returns the names of a table in exactly so many cells each."""
Drawn = Callable[[Look], Text]
"""Returns a cell of a component's colour and texture."""


def untimed_lines(found: Untimed, cut: Cut, drawn: Drawn, *, screen: int) -> Iterator[Text]:
    """Yield the totals by category and by name, what was counted, and how to record a timeline.

    `screen` is the width of the terminal.
    """
    if found.categories.num_rows:
        yield Text()
        yield Text("Totals by category (overlaps count twice)", "bold")
        rows = [row | {"name": spaced(row["sub"])} for row in found.categories.to_pylist()]
        yield from _sums(rows, _CATEGORY_WIDTH, cut, drawn, screen)
    for kinds, title in _TITLES.items():
        table = found.of_kind(*kinds)
        if table.num_rows:
            yield Text()
            yield _title(title, table.num_rows)
            yield from _sums(_rows(table), _NAME_WIDTH, cut, drawn, screen)
    yield from _counted(found, cut, screen)
    if found.record is not None:
        yield Text()
        yield Text("To record a timeline:", "bold")
        yield from map(Text, command_lines(found.record, screen))


def _title(title: str, rows: int) -> Text:
    return Text(f"{title} ({min(rows, _ROWS)} of {count(rows)})", "bold")


def _sums(
    rows: Sequence[dict[str, Any]], most: int, cut: Cut, drawn: Drawn, screen: int
) -> Iterator[Text]:
    """Yield rows with their sums, those columns that have room beside the names."""
    known = any(row.get("bytes") is not None for row in rows)
    widths = _CELLS | ({"bytes": 10} if known else {})
    widths = columns(widths, screen - 4 - LEAST_NAME, ("bytes", "count"))
    width = min(most, screen - 4 - sum(widths.values()))
    for row, name in zip(rows, cut([row["name"] for row in rows], width), strict=True):
        line = Text("  ")
        line.append_text(drawn(look(row["top"])) if row["top"] else Text(" "))
        line.append(f" {name}{duration(row['sum_ns']):>12}{percent(row['share']):>9}")
        times = f"{count(row['count'])} ×" if row["count"] is not None else ""  # noqa: RUF001
        line.append(f"{times:>12}" if "count" in widths else "", "dim")
        has_bytes = "bytes" in widths and row["bytes"] is not None
        yield line.append(f"{size(row['bytes']):>10}" if has_bytes else "", "dim")


def _counted(found: Untimed, cut: Cut, screen: int) -> Iterator[Text]:
    if not found.counted.num_rows:
        return
    yield Text()
    yield _title("Most counted kernels", found.counted.num_rows)
    rows, width = _rows(found.counted), min(_NAME_WIDTH, screen - 14)
    for row, name in zip(rows, cut([row["name"] for row in rows], width), strict=True):
        yield Text.assemble("  ", name, f"{count(row['launches']):>10} ×")  # noqa: RUF001
    more = len(found.counters) - _COUNTERS
    listed = ", ".join(short_labels(found.counters[:_COUNTERS], screen - 4)) + (
        f" and {more} more" if more > 0 else ""
    )
    text = "Launches ran serialized to be counted, so their times are not used."
    for line in wrapped(f"Counters: {listed}. {text}", screen - 2):
        yield Text(f"  {line}", "dim")


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.slice(0, _ROWS).to_pylist()
    return rows


# What collectives moved, as lines of the report in a terminal.


_SHOWN: Final = 2


_INDENT: Final = "  "


def collective_lines(
    analysis: Analysis, listed: Callable[[Iterable[str], int], str], width: int
) -> Iterator[Text]:
    """Yield a line for each of the longest kinds; `listed` joins as many texts as have room."""
    rows = analysis.collectives
    for place, row in enumerate(rows[:_SHOWN]):
        parts = list(_parts(row))
        if place == _SHOWN - 1 and len(rows) > _SHOWN:
            parts.append(f"{several(len(rows) - _SHOWN, 'kind')} more")
        yield Text(_INDENT + listed(parts, width - len(_INDENT)), "dim")


def _parts(row: Collective) -> Iterator[str]:
    message = mean_message(row)
    times = f"{count(row.count)} ×"  # noqa: RUF001
    yield f"{collective_label(row)}: {times}{'' if message == UNKNOWN else f' {message}'}"
    yield duration(row.sum_ns)
    yield f"{duration(row.exposed_ns)} exposed"
    rate = collective_rate(row)
    if rate != UNKNOWN:
        yield rate
