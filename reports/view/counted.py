"""Kernels of counted runs as tables: their work, and how near they came to their limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

from traceflops.categories.kernel_names import from_own_word
from traceflops.mfu.counted.kernel_speeds import ROOFS
from traceflops.reports.view.figures import (
    UNKNOWN,
    as_float,
    bandwidth,
    count,
    duration,
    flops,
    percent,
    significant,
    size,
)
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Column, Name, ReportTable, known_columns, table_of

if TYPE_CHECKING:
    from traceflops.mfu.counted.counter_work import CountedKernel
    from traceflops.mfu.counted.kernel_speeds import KernelSpeed
    from traceflops.mfu.measurement import Measurement

_NAME: Final = 46
_REASONS: Final = 2
_LEAST: Final = 0.1
"""Of the cycles of a warp; smaller reasons are only in the JSON."""
_SERIALIZED: Final = "Times: serialized, mostly at locked clocks."
_ABOUT: Final = "~"
_NO_SHARES: Final = "Speed of light: ncu --set full."


def counted_table(measured: Measurement, most: int) -> ReportTable:
    """Return the kernels of counted runs with their work, those with most FLOPs first.

    Figures are of a launch, means where launches differ. Columns of what was never counted are left
    out; so is all where only launches are known and stand in the other table. Busy is the share of
    matrix units' time.
    """
    work = measured.executed.work
    rows = work.counted if work is not None else ()
    figures = ((row.flops, row.vector, row.read, row.written, row.busy) for row in rows)
    if work is not None and work.speeds and all(known == (None,) * 5 for known in figures):
        rows = ()
    peak = work.bandwidth if work is not None else None

    def share(row: CountedKernel) -> str:
        known = row.bytes_per_ns is not None and peak
        return percent(float((row.bytes_per_ns or 0) / (peak or 1))) if known else UNKNOWN

    def mean(figure: str, text: Callable[[int], str], row: CountedKernel) -> str:
        total = getattr(row, figure)
        about = _ABOUT if figure in row.unequal else ""
        return UNKNOWN if total is None else about + text(round(Fraction(total, row.launches)))

    def counter(name: str, row: CountedKernel) -> str:
        total = row.counters.get(name)
        return UNKNOWN if total is None else significant(total / row.launches, 3)

    def intensity(row: CountedKernel) -> str:
        moved = 0 if row.read is None or row.written is None else row.read + row.written
        is_known = row.flops and moved
        return significant(Fraction(row.flops or 0, moved), zeros=True) if is_known else UNKNOWN

    columns = (
        Column.number("Launches", lambda row: count(row.launches)),
        Column.number("Matrix", partial(mean, "flops", flops)),
        Column.number("Vector", partial(mean, "vector", flops)),
        Column.number("Read", partial(mean, "read", size)),
        Column.number("Written", partial(mean, "written", size)),
        Column.number("Time", partial(mean, "time_ns", duration)),
        *(
            Column.number(name, partial(counter, name))
            for name in (rows[0].counters if rows else ())
        ),
        Column.number("Rate", _rate),
        Column.number("Of bandwidth", share),
        Column.number("Busy", lambda row: percent(as_float(row.busy))),
        Column.number("FLOP/B", intensity),
    )
    has_bytes = any(row.read is not None or row.written is not None for row in rows)
    where = f" Bytes at {work.bytes_at}." if work is not None and has_bytes else ""
    has_times = any(row.time_ns is not None for row in rows)
    times = " Times: while counted, serialized." if has_times else ""
    differ = f" {_ABOUT}: launches differ." if any(row.unequal for row in rows[:most]) else ""
    remark = f"Means of a launch.{differ}{where}{times}"
    return _table("Kernels by counters", columns, rows, most, remark)


def speeds_table(measured: Measurement, most: int) -> ReportTable:
    """Return how near counted kernels came to their limits, those first that take most time."""
    work = measured.executed.work
    rows = work.speeds if work is not None else ()

    def launch_size(row: KernelSpeed) -> str:
        if row.grid is None or row.block is None:
            return UNKNOWN
        return f"{count(prod(row.grid))} x {count(prod(row.block))}"

    def throughput(roof: str, row: KernelSpeed) -> str:
        return percent(row.shares.get(roof))

    columns = (
        Column.number("Blocks x threads", launch_size),
        Column.number("Time", _times),
        *(Column.number(_heads(roof), partial(throughput, roof)) for roof in ROOFS),
        Column.number("Occupancy", _occupancy),
        Column(
            "Limited by",
            lambda row: (
                ", ".join((*("grid",) * (not row.has_more_blocks), *row.limiters)) or UNKNOWN
            ),
        ),
        Column.number("Registers", lambda row: count(row.registers)),
        Column("Warps wait for", _waits),
    )
    without = {"Blocks x threads"} if len({row.name for row in rows}) == len(rows) else set()
    columns = tuple(column for column in columns if column.head not in without)
    is_timed = any(row.duration_ns is not None for row in rows)
    has_shares = any(
        row.throughputs or (row.achieved_occupancy, row.theoretical_occupancy) != (None, None)
        for row in rows
    )
    said = (
        _SERIALIZED if is_timed else "",
        _NO_SHARES if is_timed and not has_shares else "",
    )
    title = "Speed of light" if has_shares else "Counted kernels"
    return _table(title, columns, rows, most, " ".join(filter(None, said)))


def decisive_column(measured: Measurement) -> str:
    """Return the head of the column that has the nearest roof of the first kernel, or ""."""
    work = measured.executed.work
    roof = next((row.roof for row in (work.speeds if work is not None else ())), None)
    return _heads(roof[0]) if roof is not None else ""


def _table(
    title: str, columns: Sequence[Column], rows: Sequence[Any], most: int, remark: str
) -> ReportTable:
    """Return a table of the first rows, with the columns in which anything is known of these."""
    shown = rows[:most]
    labels = short_labels(from_own_word([row.name for row in shown]), _NAME)
    names = {id(row): Name(label, row.name) for row, label in zip(shown, labels, strict=True)}
    known = (Column(title, lambda row: names[id(row)]), *known_columns(columns, shown))
    return table_of(known, shown, len(rows), remark)


def _times(row: KernelSpeed) -> str:
    """Return how long launches took: "4 × 72.5 µs", of one its time."""
    if row.duration_ns is None or row.launches == 1:
        return duration(row.duration_ns)
    return f"{count(row.launches)} × {duration(row.duration_ns / row.launches)}"


def _rate(row: CountedKernel) -> str:
    """Return how fast a kernel ran while it was counted: products in TFLOP/s, others in GB/s."""
    if row.flops and row.time_ns:
        return f"{significant(Fraction(row.flops, 1000 * row.time_ns), 3)} TFLOP/s"
    return bandwidth(row.bytes_per_ns)


def _heads(roof: str) -> str:
    return "Memory" if roof == "memory" else ROOFS[roof]


def _occupancy(row: KernelSpeed) -> str:
    achieved, fits = percent(row.achieved_occupancy), row.theoretical_occupancy
    if row.achieved_occupancy is None and fits is not None:
        return f"at most {percent(fits)}"
    return achieved if fits is None else f"{achieved} of {percent(fits)}".replace(" % of", " of")


def _waits(row: KernelSpeed) -> str:
    largest = [stall for stall in row.stalls[:_REASONS] if stall[1] >= _LEAST]
    words = (f"{reason.replace('_', ' ')} {percent(share)}" for reason, share in largest)
    return ", ".join(words) or UNKNOWN
