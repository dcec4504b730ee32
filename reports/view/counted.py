"""Kernels measured with hardware counters, as tables: their work, and how near limits they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from traceflops.categories.kernel_names import from_own_word
from traceflops.findings.counted_estimates import estimated, gains_nothing, rule_name
from traceflops.mfu.counted.counter_work import CountedKernel
from traceflops.mfu.counted.kernel_speeds import ROOFS, KernelSpeed
from traceflops.mfu.measurement import Measurement
from traceflops.reports.view.figures import (
    UNKNOWN,
    as_float,
    bandwidth,
    count,
    duration,
    flops,
    percent,
    signed_percent,
    significant,
    size,
)
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, known_columns, table_of
from traceflops.reports.view.texts import words
from traceflops.units import capitalized

if TYPE_CHECKING:
    from traceflops.comparison.counted import KernelChange
    from traceflops.comparison.result import Comparison

_NAME: Final = 46
_REASONS: Final = 2
_LEAST: Final = 0.1  # share of a warp's cycles; smaller reasons are only in the JSON
_HEADS: Final = {**ROOFS, "memory": "Memory"}
"""The head of the column of each roof."""
_SERIALIZED: Final = "Times: serialized, mostly at locked clocks."
_ABOUT: Final = "~"
_NO_SHARES: Final = "Speed of light: ncu --set full."


def counted_table(measured: Measurement, most: int) -> ReportTable:
    """Return the kernels of counted runs with their work, those with most FLOPs first.

    Figures are means per launch. Without any, there is no row if `speeds_table` has the kernels.
    """
    work = measured.executed.work
    if work is None:
        return table_of((), ())
    counted = [(row.flops, row.vector, row.read, row.written, row.busy) for row in work.counted]
    has_figures = any(value is not None for figures in counted for value in figures)
    rows = work.counted if has_figures or not work.speeds else ()
    peak = work.bandwidth

    def mean(field: str, text_of: Callable[[int], str], row: CountedKernel) -> str:
        """Return the mean of a field over launches, marked with _ABOUT if launches differ."""
        total = getattr(row, field)
        mark = _ABOUT if field in row.unequal else ""
        return UNKNOWN if total is None else mark + text_of(round(Fraction(total, row.launches)))

    def counter(name: str, row: CountedKernel) -> str:
        total = row.counters.get(name)
        return UNKNOWN if total is None else significant(total / row.launches, 3)

    def rate(row: CountedKernel) -> str:
        """Return how fast a kernel ran while counted: matrix work in TFLOP/s, other in GB/s."""
        if row.flops and row.time_ns:
            return f"{significant(Fraction(row.flops, 1000 * row.time_ns), 3)} TFLOP/s"
        return bandwidth(row.bytes_per_ns)

    def share(row: CountedKernel) -> str:
        rate = row.bytes_per_ns
        return UNKNOWN if rate is None or not peak else percent(float(rate / peak))

    def intensity(row: CountedKernel) -> str:
        moved = 0 if row.read is None or row.written is None else row.read + row.written
        per_byte = Fraction(row.flops, moved) if row.flops and moved else None
        return UNKNOWN if per_byte is None else significant(per_byte, zeros=True)

    columns = (
        Column.number("Launches", lambda row: count(row.launches)),
        Column.number("Matrix", partial(mean, "flops", flops)),
        Column.number("Vector", partial(mean, "vector", flops)),
        Column.number("Read", partial(mean, "read", size)),
        Column.number("Written", partial(mean, "written", size)),
        Column.number("Time", partial(mean, "time_ns", duration)),
        *(Column.number(name, partial(counter, name)) for row in rows[:1] for name in row.counters),
        Column.number("Rate", rate),
        Column.number("Of bandwidth", share),
        Column.number("Matrix busy", lambda row: percent(as_float(row.busy))),
        Column.number("FLOP/B", intensity),
    )
    has_bytes = any(row.read is not None or row.written is not None for row in rows)
    has_times = any(row.time_ns is not None for row in rows)
    remarks = (
        "Means of a launch.",
        f"{_ABOUT}: launches differ." if any(row.unequal for row in rows[:most]) else "",
        f"Bytes at {work.bytes_at}." if has_bytes else "",
        "Times: while counted, serialized." if has_times else "",
    )
    return _table("Kernels by counters", columns, rows, most, " ".join(filter(None, remarks)))


def speeds_table(measured: Measurement, most: int) -> ReportTable:
    """Return how near counted kernels are to their limits, those with most time first."""
    rows = measured.speeds

    def throughput(roof: str, row: KernelSpeed) -> str:
        return percent(row.shares.get(roof))

    blocks = defaultdict[tuple[object, ...], set[object]](set)
    for row in rows:
        if row.block is not None:
            blocks[_size(row)].add(tuple(row.block))

    def blocks_x_threads(row: KernelSpeed) -> str:
        if row.grid is None or row.block is None:
            return UNKNOWN
        threads = count(prod(row.block))
        if len(blocks[_size(row)]) > 1:  # as many threads in blocks of other shapes
            last = max((at for at, side in enumerate(row.block) if side != 1), default=0)
            threads = "×".join(map(str, row.block[: last + 1]))
        return f"{count(prod(row.grid))} x {threads}"

    def limiters(row: KernelSpeed) -> str:
        """Return what limits occupancy: too few blocks in the grid, or resources of a block."""
        grid = () if row.has_more_blocks else ("grid",)
        return ", ".join((*grid, *row.limiters)) or UNKNOWN

    columns = [
        Column.number("Time", _times),
        *(Column.number(head, partial(throughput, roof)) for roof, head in _HEADS.items()),
        Column.number("Occupancy", _occupancy),
        Column("Limited by", limiters),
        Column.number("Registers", lambda row: count(row.registers)),
        Column("Warps wait for", _waits),
    ]
    # A kernel has several rows if it was launched in several sizes, which distinguish them.
    shown = [row.name for row in rows[:most]]
    if len(set(shown)) < len(shown):
        columns.insert(0, Column.number("Blocks x threads", blocks_x_threads))
    is_timed = any(row.duration_ns is not None for row in rows)
    has_shares = any(row.throughputs for row in rows)
    title, remark = ("Speed of light", "") if has_shares else ("Counted kernels", f" {_NO_SHARES}")
    return _table(title, columns, rows, most, f"{_SERIALIZED}{remark}" if is_timed else "")


def _size(row: KernelSpeed) -> tuple[object, ...]:
    """Return the kernel, blocks and threads of a row."""
    return row.name, prod(row.grid or ()), prod(row.block or ())


def decisive_column(measured: Measurement) -> str:
    """Return the head of the column of the first kernel's nearest roof, "" if it is unknown."""
    roof = measured.speeds[0].roof if measured.speeds else None
    return _HEADS[roof[0]] if roof is not None else ""


def _table(
    title: str, columns: Sequence[Column], rows: Sequence[Any], most: int, remark: str
) -> ReportTable:
    """Return the first rows, with names under `title` and the columns that any of them knows."""
    shown = rows[:most]
    labels = short_labels(from_own_word([row.name for row in shown]), _NAME)
    names = {id(row): Name(label, row.name) for row, label in zip(shown, labels, strict=True)}
    known = (Column(title, lambda row: names[id(row)]), *known_columns(columns, shown))
    return table_of(known, shown, len(rows), remark)


def _times(row: KernelSpeed) -> str:
    """Return the number and mean time of launches, "4 × 72.5 µs"; of a single one its time."""
    if row.duration_ns is None or row.launches == 1:
        return duration(row.duration_ns)
    return f"{count(row.launches)} × {duration(row.duration_ns / row.launches)}"


def _occupancy(row: KernelSpeed) -> str:
    """Return the achieved and the theoretical occupancy: "35.1 of 50.0 %"."""
    achieved, possible = row.achieved_occupancy, row.theoretical_occupancy
    if possible is None:
        return percent(achieved)
    if achieved is None:
        return f"at most {percent(possible)}"
    return f"{percent(achieved).removesuffix(' %')} of {percent(possible)}"


def _waits(row: KernelSpeed) -> str:
    """Return the largest reasons why warps wait, each with its share of a warp's cycles."""
    reasons = (
        f"{reason.replace('_', ' ')} {percent(share)}"
        for reason, share in row.stalls[:_REASONS]
        if share >= _LEAST
    )
    return ", ".join(reasons) or UNKNOWN


_MOST: Final = 15

_REMARK: Final = "Means per launch; times are serialized, mostly at locked clocks."


def counted_change(comparison: Comparison) -> ReportTable:
    """Return the kernels with counters on both sides, the largest change first."""
    changes = comparison.kernel_changes
    shown = changes[:_MOST]
    names = list(dict.fromkeys(name for change in shown for name in change.names))
    labels = dict(zip(names, short_labels(from_own_word(names), _NAME), strict=True))

    def name(change: KernelChange) -> Cell:
        """Return the name of a kernel, or both names if they differ between the sides."""
        sides = [Name(labels[whole], whole) for whole in change.names]
        return (sides[0], "→", sides[1]) if len(sides) > 1 else sides[0]

    def roof(speed: KernelSpeed) -> str:
        return f"{ROOFS[speed.roof[0]]} {percent(speed.roof[1])}" if speed.roof else UNKNOWN

    def both_sides(text_of: Callable[[KernelSpeed], str], change: KernelChange) -> str:
        """Return a figure before and after, or once if both texts are the same."""
        sides = (change.before, change.after)
        texts = [text_of(side) if side is not None else UNKNOWN for side in sides]
        return " → ".join(dict.fromkeys(texts))

    columns = (
        Column("Kernels by counters", name),
        Column.number("Before", lambda change: duration(change.before_ns)),
        Column.number("After", lambda change: duration(change.after_ns)),
        Column.number(
            "Change",
            lambda change: UNKNOWN if change.share is None else signed_percent(change.share),
        ),
        Column("Nearest roof", partial(both_sides, roof)),
        Column.number(
            "Occupancy", partial(both_sides, lambda speed: percent(speed.achieved_occupancy))
        ),
    )
    return table_of(known_columns(columns, shown), shown, len(changes), _REMARK if changes else "")


SAYS: Final = "Nsight Compute says"

_LONGEST: Final = 2_000
_BOTTLENECK: Final = "bottleneck"
_INFORMATION: Final = frozenset({"inf", "ok"})  # kinds of messages that advise nothing


class RuleShown(Struct, frozen=True):
    """A message of the profiler: its rule and estimated gain in words, and its text."""

    head: str
    text: str


class RulesOfKernel(Struct, frozen=True):
    """The messages on one kernel: the bottleneck, then the others, largest estimate first."""

    name: Name
    rules: tuple[RuleShown, ...]


def rules_said(measured: Measurement, most: int) -> list[RulesOfKernel]:
    """Return what the profiler's rules advise for the `most` longest kernels with any rule."""
    rows = [row for row in measured.speeds if row.rules][:most]
    labels = short_labels(from_own_word([row.name for row in rows]), _NAME)
    kernels = []
    for label, row in zip(labels, rows, strict=True):
        # The sort is stable: the rules behind the bottleneck keep the order of their estimates.
        rules = sorted(row.rules, key=lambda rule: _BOTTLENECK not in rule_name(rule))
        shown = []
        for rule in rules:
            is_advice = (rule.kind or "").lower() not in _INFORMATION
            promises_nothing = rule.speedup_share and gains_nothing(row, rule)
            if is_advice and not promises_nothing:
                head = filter(None, (capitalized(rule_name(rule)), words(estimated(rule))))
                text = rule.text if len(rule.text) <= _LONGEST else f"{rule.text[:_LONGEST]}…"
                shown.append(RuleShown(", ".join(head), text))
        if shown:
            kernels.append(RulesOfKernel(Name(label, row.name), tuple(shown)))
    return kernels
