"""What hardware counters say of kernels, by name: FLOPs, bytes, use of matrix units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.text import Text

from traceflops.reports.view.figures import (
    UNKNOWN,
    as_float,
    count,
    flop_count,
    flops,
    percent,
    significant,
    size,
)
from traceflops.reports.view.short_names import (
    LEAST_NAME,
    cells,
    columns,
    heading,
    short_labels,
    wrapped,
)

if TYPE_CHECKING:
    from traceflops.mfu import CountedKernel, Measurement

HEADS: Final = ("launches", "matrix FLOPs", "vector FLOPs", "read", "written", "busy", "FLOP/B")
"""Columns behind the name: sums over the launches; busy is the share of matrix units' time."""

_CELLS = {"launches": 9, "matrix": 13, "vector": 13, "read": 9, "written": 9, "busy": 8}
_LESS = ("vector", "written", "read", "launches")
_REMARK = "Totals over counted launches. Bytes at {place}. Busy: matrix units' share of time."
_ROWS = 8
_WIDEST = 44


@dataclass(frozen=True, slots=True)
class CountedShown:
    """One kernel in words; unknown is a dash."""

    name: str
    cells: tuple[str, ...]


def counted_rows(measured: Measurement) -> list[CountedShown]:
    """Return the kernels of counted runs, those with most FLOPs first."""
    work = measured.executed.work
    return [_shown(row) for row in work.counted] if work is not None else []


def counted_lines(measured: Measurement, width: int) -> Iterator[Text]:
    """Yield the table for a terminal."""
    rows = counted_rows(measured)
    if not rows:
        return
    widths = columns(_CELLS, width - LEAST_NAME, _LESS)
    name = min(_WIDEST, width - sum(widths.values()))
    yield Text()
    yield from heading("Kernels by counters", name, widths)
    shown = rows[:_ROWS]
    labels = short_labels([row.name for row in shown], name - 1)
    for row, label in zip(shown, labels, strict=True):
        texts = dict(zip(_CELLS, row.cells, strict=False))
        yield Text(f"{label}{' ' * (name - cell_len(label))}{cells(texts, widths)}")
    if len(rows) > _ROWS:
        yield Text(f"… {count(len(rows) - _ROWS)} more; --json has all", "dim")
    work = measured.executed.work
    place = work.bytes_at if work is not None else ""
    for line in wrapped(_REMARK.format(place=place), width):
        yield Text(line, "dim")


def counted_object(row: CountedKernel) -> dict[str, Any]:
    """Return one kernel as plain values."""
    return {
        "name": row.name,
        "launches": row.launches,
        **flop_count("flops", row.flops),
        "flops_by_type": dict(row.by_type),
        **flop_count("vector_flops", row.vector),
        "read_bytes": row.read,
        "written_bytes": row.written,
        "matrix_busy": as_float(row.busy),
    }


def _shown(row: CountedKernel) -> CountedShown:
    moved = row.read + row.written if row.read is not None and row.written is not None else None
    intensity = Fraction(row.flops, moved) if row.flops and moved else None
    return CountedShown(
        row.name,
        (
            count(row.launches),
            flops(row.flops) if row.flops is not None else UNKNOWN,
            flops(row.vector) if row.vector is not None else UNKNOWN,
            size(row.read),
            size(row.written),
            percent(float(row.busy)) if row.busy is not None else UNKNOWN,
            significant(intensity, zeros=True) if intensity is not None else UNKNOWN,
        ),
    )
