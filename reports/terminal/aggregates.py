"""Sums by name in a terminal: hardware counters, traces without a timeline, held memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from traceflops.characters import function_name
from traceflops.findings.held_memory import memory_facts
from traceflops.memory.usage import fullest_gpu, holders, memory_use
from traceflops.mfu.measurement import Measurement
from traceflops.reports.terminal import lines
from traceflops.reports.view import counted
from traceflops.reports.view.figures import bandwidth, count, duration, percent, size
from traceflops.reports.view.palette import look
from traceflops.reports.view.tables import ReportTable, spaced
from traceflops.reports.view.texts import words
from traceflops.table.schema import DEVICE_KINDS
from traceflops.timeline.aggregates import Untimed
from traceflops.units import command_lines
from traceflops.windows.prepared import Prepared

_ROWS: Final = 5
_NAME_WIDTH, _CATEGORY_WIDTH = 50, 20
_CELLS: Final = {"time": 12, "share": 9, "count": 12}
_RATE_WIDTH: Final = 15
_TITLES: Final = {
    DEVICE_KINDS: "Top kernels and copies",
    ("domain",): "Domains",
    ("call",): "Top API calls",
    ("mark",): "Top annotations (share of the time in any; some are nested)",
    ("python",): "Top Python functions (own time)",
    ("system",): "Top system calls and waits (share of the time in any)",
    ("gpu_mark",): "Top GPU annotations (share of the time in any; some are nested)",
}
_COUNTED_ROWS: Final = 8
_RULES, _RULE = 2, 240
_COUNTED_CELL, _COUNTED_NAME = 9, 44
_LESS_COUNTED: Final = ("FLOP/B", "Vector", "Written", "Read", "Launches")
_LESS_OF_SPEEDS: Final = (
    *("Registers", "Memory", "Launches", "L1", "Warps wait for", "L2", "LDS", "Limited by"),
    *("Blocks x threads", "Occupancy", "Time", "VALU", "DRAM"),
)


def counted_lines(measured: Measurement, width: int) -> Iterator[Text]:
    """Yield the kernels measured with counters: how near to their limits, and their work."""
    yield from speeds_lines(measured, _COUNTED_ROWS, width)
    yield from _counted(counted.counted_table(measured, _COUNTED_ROWS), _LESS_COUNTED, width)


def speeds_lines(measured: Measurement, most: int, width: int) -> Iterator[Text]:
    """Yield how near counted kernels are to their limits, and messages on the first kernel."""
    # The nearest roof of the first kernel keeps its column.
    decisive = counted.decisive_column(measured)
    less = [head for head in _LESS_OF_SPEEDS if head != decisive]
    yield from _counted(counted.speeds_table(measured, most), less, width)
    for kernel in counted.rules_said(measured, 1):
        yield from lines.headline(f"{counted.SAYS} of {kernel.name}")
        for rule in kernel.rules[:_RULES]:
            is_short = len(rule.text) <= _RULE
            text = rule.text if is_short else f"{rule.text[:_RULE].rpartition(' ')[0]} …"
            yield from lines.hanging("  ", ": ".join(filter(None, (rule.head, text))), width)


def _counted(table: ReportTable, less: Sequence[str], width: int) -> Iterator[Text]:
    """Yield a table of counted work with its remark; columns of `less` are left out first."""
    if not table.rows:
        return
    yield from lines.view_table(table, _COUNTED_CELL, less, _COUNTED_NAME, width)
    if table.total > len(table.rows):
        yield Text(f"… {count(table.total - len(table.rows))} more; --json has all", "dim")
    yield from lines.paragraph(table.remark, width)


def untimed_lines(untimed: Untimed, style: lines.Style) -> Iterator[Text]:
    """Yield totals by category and by name, and the command that records a timeline."""
    if untimed.categories.num_rows:
        yield from lines.headline("Totals by category (overlaps count twice)")
        rows = [row | {"name": spaced(row["sub"])} for row in untimed.categories.to_pylist()]
        yield from _sums(rows, _CATEGORY_WIDTH, style)
    for kinds, title in _TITLES.items():
        table = untimed.of_kind(*kinds)
        if table.num_rows:
            yield from lines.headline(
                f"{title} ({min(table.num_rows, _ROWS)} of {count(table.num_rows)})"
            )
            yield from _sums(table.slice(0, _ROWS).to_pylist(), _NAME_WIDTH, style)
    if untimed.record is not None:
        yield from lines.headline("To record a timeline:")
        yield from map(Text, command_lines(untimed.record, style.width))


def memory_lines(prepared: Prepared, width: int) -> Iterator[Text]:
    """Yield what holds most memory at the peak of the GPU with the highest peak."""
    use = fullest_gpu(memory_use(prepared))
    at_peak = holders(prepared, use) if use is not None else ()
    if use is None or not at_peak:
        return
    shown = at_peak[:_ROWS]
    when = "as the snapshot is taken" if use.allocated.is_state else "at the peak"
    yield from lines.headline(f"Held {when} ({len(shown)} of {count(len(at_peak))})")
    for holder in shown:
        share = percent(holder.bytes / use.allocated.peak)
        head = f"  {size(holder.bytes, binary=True):>9} {share:>7}  "
        calls = " < ".join(filter(None, (function_name(holder.op), function_name(holder.scope))))
        who = (calls or "not recorded") if holder.recorded else "before the recording"
        yield from lines.hanging(head, who, width)


def snapshot_lines(prepared: Prepared, width: int) -> Iterator[Text]:
    """Yield what a memory snapshot says, if there is one: only it has the largest free block."""
    if any(use.largest_free is not None for use in memory_use(prepared)):
        yield Text()
        yield from lines.paragraph(" ".join(map(words, memory_facts(prepared))), width)
        yield from memory_lines(prepared, width)


def _sums(rows: Sequence[dict[str, Any]], most: int, style: lines.Style) -> Iterator[Text]:
    """Yield rows with their sums; without room, rates go first, then bytes, then counts."""
    has_sizes = any(row.get("bytes") is not None for row in rows)
    rates = [_rate(row) for row in rows]
    all_widths = (
        _CELLS
        | ({"bytes": 10} if has_sizes else {})
        | ({"rate": _RATE_WIDTH} if any(rates) else {})
    )
    room = style.width - 4  # without the indent, the coloured mark, and the space after it
    widths = lines.columns(all_widths, room - lines.LEAST_NAME, ("rate", "bytes", "count"))
    name_width = min(most, room - sum(widths.values()))
    names = lines.cut_to([row["name"] for row in rows], name_width)
    for row, name, rate in zip(rows, names, rates, strict=True):
        line = Text("  ")
        line.append_text(style.drawn(look(row["top"])) if row["top"] else Text(" "))
        line.append(f" {name}{duration(row['sum_ns']):>12}{percent(row['share']):>9}")
        if "count" in widths:
            times = f"{count(row['count'])} ×" if row["count"] is not None else ""
            line.append(f"{times:>12}", "dim")
        if "bytes" in widths and row["bytes"] is not None:
            line.append(f"{size(row['bytes']):>10}", "dim")
        if "rate" in widths and rate:
            line.append(f"{rate:>{_RATE_WIDTH}}", "dim")
        yield line


def _rate(row: Mapping[str, Any]) -> str:
    """Return the rate of copies, "" for other rows and unless their bytes and time are known.

    Rates that are too small or too large to be true are left out, as they have no room.
    """
    if row.get("kind") != "memcpy" or not row.get("bytes") or not row["sum_ns"]:
        return ""
    rate = bandwidth(row["bytes"] / row["sum_ns"])
    return rate if len(rate) < _RATE_WIDTH else ""
