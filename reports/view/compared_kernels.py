"""Two recordings of counters as a table: each kernel's time and nearest roof, before and after."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from traceflops.categories.kernel_names import from_own_word
from traceflops.comparison.counted import KernelChange
from traceflops.comparison.result import Comparison
from traceflops.mfu.counted.kernel_speeds import ROOFS, KernelSpeed
from traceflops.reports.view.figures import UNKNOWN, duration, percent, signed_percent
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, known_columns, table_of

_MOST: Final = 15
_NAME: Final = 46
_REMARK: Final = "Means per launch; times are serialized, mostly at locked clocks."


def counted_change(comparison: Comparison) -> ReportTable:
    """Return the kernels with counters on both sides, the largest change first."""
    changes = comparison.kernel_changes
    shown = changes[:_MOST]
    names = list(dict.fromkeys(name for change in shown for name in change.names))
    labels = dict(zip(names, short_labels(from_own_word(names), _NAME), strict=True))

    def name(change: KernelChange) -> Cell:
        """Return the name of a kernel, or both if it is named otherwise on the other side."""
        both = [Name(labels[whole], whole) for whole in change.names]
        return (both[0], "→", both[1]) if len(both) > 1 else both[0]

    def roof(speed: KernelSpeed) -> str:
        return f"{ROOFS[speed.roof[0]]} {percent(speed.roof[1])}" if speed.roof else UNKNOWN

    def both_sides(words: Callable[[KernelSpeed], str], change: KernelChange) -> str:
        """Return a figure before and after, only once if it is the same; `words` prints it."""
        sides = (change.before, change.after)
        texts = [words(side) if side is not None else UNKNOWN for side in sides]
        return " → ".join(dict.fromkeys(texts))

    def occupancy(speed: KernelSpeed) -> str:
        return percent(speed.achieved_occupancy)

    columns = (
        Column("Kernels by counters", name),
        Column.number("Before", lambda change: duration(change.before_ns)),
        Column.number("After", lambda change: duration(change.after_ns)),
        Column.number(
            "Change",
            lambda change: UNKNOWN if change.share is None else signed_percent(change.share),
        ),
        Column("Nearest roof", partial(both_sides, roof)),
        Column.number("Occupancy", partial(both_sides, occupancy)),
    )
    return table_of(known_columns(columns, shown), shown, len(changes), _REMARK if changes else "")
