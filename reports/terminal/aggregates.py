"""What is summed by name in a terminal: hardware counters, and a trace without a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from traceflops.reports.terminal.lines import (
    LEAST_NAME,
    Style,
    columns,
    cut_to,
    headline,
    named_table,
    paragraph,
)
from traceflops.reports.view import (
    count,
    counted_rows,
    duration,
    look,
    percent,
    short_labels,
    size,
    spaced,
)
from traceflops.table import DEVICE_KINDS
from traceflops.units import command_lines

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.mfu import Measurement
    from traceflops.timeline import Untimed

_ROWS: Final = 5
_NAME_WIDTH, _CATEGORY_WIDTH = 50, 20
_CELLS: Final = {"time": 12, "share": 9, "count": 12}
_COUNTERS: Final = 12
_TITLES: Final = {
    DEVICE_KINDS: "Top kernels and copies",
    ("call",): "Top API calls",
    ("mark",): "Top annotations (nested count twice)",
    ("gpu_mark",): "Top GPU annotations (nested count twice)",
}
_COUNTED_ROWS: Final = 8
_COUNTED_WIDTH: Final = 44
_COUNTED: Final = {
    "launches": 9,
    "matrix": 13,
    "vector": 13,
    "read": 9,
    "written": 9,
    "busy": 8,
}
_LESS_COUNTED: Final = ("vector", "written", "read", "launches")


def counted_lines(measured: Measurement, width: int) -> Iterator[Text]:
    """Yield what hardware counters say of kernels."""
    rows, work = counted_rows(measured), measured.executed.work
    if not rows or work is None:
        return
    shown = [(row.name, row.cells[: len(_COUNTED)]) for row in rows[:_COUNTED_ROWS]]
    title = "Kernels by counters"
    yield from named_table(title, shown, _COUNTED, _LESS_COUNTED, _COUNTED_WIDTH, width)
    if len(rows) > _COUNTED_ROWS:
        yield Text(f"… {count(len(rows) - _COUNTED_ROWS)} more; --json has all", "dim")
    yield from paragraph(
        f"Totals over counted launches. Bytes at {work.bytes_at}. Busy: matrix units' share of "
        "time.",
        width,
    )


def untimed_lines(untimed: Untimed, style: Style) -> Iterator[Text]:
    """Yield the totals by category and by name, what was counted, and how to record a timeline."""
    if untimed.categories.num_rows:
        yield from headline("Totals by category (overlaps count twice)")
        rows = [row | {"name": spaced(row["sub"])} for row in untimed.categories.to_pylist()]
        yield from _sums(rows, _CATEGORY_WIDTH, style)
    for kinds, title in _TITLES.items():
        table = untimed.of_kind(*kinds)
        if table.num_rows:
            yield from _headline(title, table)
            yield from _sums(_rows(table), _NAME_WIDTH, style)
    if untimed.counted.num_rows:
        yield from _launches(untimed, style.width)
    if untimed.record is not None:
        yield from headline("To record a timeline:")
        yield from map(Text, command_lines(untimed.record, style.width))


def _headline(title: str, table: pa.Table) -> tuple[Text, Text]:
    return headline(f"{title} ({min(table.num_rows, _ROWS)} of {count(table.num_rows)})")


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.slice(0, _ROWS).to_pylist()
    return rows


def _sums(rows: Sequence[dict[str, Any]], most: int, style: Style) -> Iterator[Text]:
    """Yield rows with their sums, those columns that have room beside the names."""
    known = any(row.get("bytes") is not None for row in rows)
    widths = _CELLS | ({"bytes": 10} if known else {})
    widths = columns(widths, style.width - 4 - LEAST_NAME, ("bytes", "count"))
    width = min(most, style.width - 4 - sum(widths.values()))
    for row, name in zip(rows, cut_to([row["name"] for row in rows], width), strict=True):
        line = Text("  ")
        line.append_text(style.drawn(look(row["top"])) if row["top"] else Text(" "))
        line.append(f" {name}{duration(row['sum_ns']):>12}{percent(row['share']):>9}")
        times = f"{count(row['count'])} ×" if row["count"] is not None else ""  # noqa: RUF001
        line.append(f"{times:>12}" if "count" in widths else "", "dim")
        has_bytes = "bytes" in widths and row["bytes"] is not None
        yield line.append(f"{size(row['bytes']):>10}" if has_bytes else "", "dim")


def _launches(untimed: Untimed, width: int) -> Iterator[Text]:
    """Yield how often kernels were launched to be counted, and by which counters."""
    yield from _headline("Most counted kernels", untimed.counted)
    rows, name_width = _rows(untimed.counted), min(_NAME_WIDTH, width - 14)
    for row, name in zip(rows, cut_to([row["name"] for row in rows], name_width), strict=True):
        yield Text.assemble("  ", name, f"{count(row['launches']):>10} ×")  # noqa: RUF001
    more = len(untimed.counters) - _COUNTERS
    counters = ", ".join(short_labels(untimed.counters[:_COUNTERS], width - 4))
    text = f"Counters: {counters}{f' and {more} more' if more > 0 else ''}."
    serial = "Launches ran serialized to be counted, so their times are not used."
    yield from paragraph(f"{text} {serial}", width, indent="  ")
