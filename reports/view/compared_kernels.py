"""Two recordings of counters as a table: each kernel's time and nearest roof, before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from traceflops.categories import from_own_word
from traceflops.comparison import signed
from traceflops.mfu import ROOFS
from traceflops.reports.view.figures import UNKNOWN, duration, percent
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, table_of

if TYPE_CHECKING:
    from traceflops.comparison import Comparison
    from traceflops.mfu import KernelSpeed

    Pair = tuple[KernelSpeed | None, KernelSpeed | None]

_MOST: Final = 15
_NAME: Final = 46
_REMARK: Final = "Means per launch; times are serialized, mostly at locked clocks."
_TOLD: Final = ("Kernels by counters", "Before", "After", "Change", "Nearest roof")
_number = partial(Column, is_number=True)


def counted_change(comparison: Comparison) -> ReportTable:
    """Return the kernels of which counters of both sides tell the speed, largest change first.

    There are rows only where neither side has a timeline. A kernel of one side alone comes last.
    """
    sides = (comparison.before, comparison.after)
    known = [side.speeds for side in sides]
    is_apart = not any(side.windows for side in sides) and all(known)
    pairs = sorted(_pairs(*known), key=_weight) if is_apart else []
    shown = pairs[:_MOST]
    wholes = list(dict.fromkeys(one.name for pair in shown for one in pair if one is not None))
    labels = dict(zip(wholes, short_labels(from_own_word(wholes), _NAME), strict=True))
    columns = (
        Column(_TOLD[0], partial(_names, labels)),
        _number("Before", lambda pair: duration(_mean_ns(pair[0]))),
        _number("After", lambda pair: duration(_mean_ns(pair[1]))),
        _number("Change", _change),
        Column("Nearest roof", partial(_both, _roof)),
        _number("Occupancy", partial(_both, _occupancy)),
    )
    told = [one for one in columns if any(one.cell(pair) != UNKNOWN for pair in shown)]
    return table_of(told, shown, len(pairs), _REMARK if pairs else "")


def counted_sentence(comparison: Comparison) -> str:
    """Return the largest change of a kernel that counters of both sides tell, "" of none."""
    table = counted_change(comparison)
    heads = [column.head for column in table.columns]
    row = dict(zip(heads, next(iter(table.rows), ()), strict=False))
    name, before, after, change, roof = (row.get(head, UNKNOWN) for head in _TOLD)
    if UNKNOWN in (before, after):
        return ""
    words = " ".join(name) if isinstance(name, tuple) else name
    peak = f", {roof} of peak" if roof != UNKNOWN else ""
    return f"{words}: {before} → {after} per launch ({change}){peak}."


def _pairs(before: tuple[KernelSpeed, ...], after: tuple[KernelSpeed, ...]) -> Iterator[Pair]:
    """Yield kernels of the same name and size, else of the same name, else the only ones."""
    old, new = list(before), list(after)
    keys: tuple[Callable[[KernelSpeed], object], ...] = (
        lambda one: (one.name, one.grid, one.block),
        lambda one: one.name,
        lambda one: None,
    )
    for key in keys:
        for one in [*old]:
            mine = [each for each in old if key(each) == key(one)]
            others = [each for each in new if key(each) == key(one)]
            if len(mine) == len(others) == 1:
                old.remove(one)
                new.remove(others[0])
                yield one, others[0]
    yield from ((one, None) for one in old)
    yield from ((None, one) for one in new)


def _weight(pair: Pair) -> tuple[bool, float]:
    times = [_mean_ns(one) for one in pair]
    known = [ns for ns in times if ns is not None]
    return len(known) < len(times), -abs((times[0] or 0.0) - (times[1] or 0.0))


def _names(labels: Mapping[str, str], pair: Pair) -> Cell:
    """Return the name, or both where the only kernel of a side has another one."""
    wholes = list(dict.fromkeys(one.name for one in pair if one is not None))
    names = [Name(labels[whole], whole) for whole in wholes]
    return (names[0], "→", names[1]) if len(names) > 1 else names[0]


def _mean_ns(speed: KernelSpeed | None) -> float | None:
    if speed is None or speed.duration_ns is None:
        return None
    return speed.duration_ns / speed.launches


def _change(pair: Pair) -> str:
    old, new = map(_mean_ns, pair)
    if not old or new is None:
        return UNKNOWN
    share = new / old - 1
    return signed(percent(abs(share)), share)


def _both(words: Callable[[KernelSpeed], str], pair: Pair) -> str:
    shown = [words(one) if one is not None else UNKNOWN for one in pair]
    return shown[0] if shown[0] == shown[1] else " → ".join(shown)


def _roof(speed: KernelSpeed) -> str:
    roof = speed.roof
    return f"{ROOFS[roof[0]]} {percent(roof[1])}" if roof is not None else UNKNOWN


def _occupancy(speed: KernelSpeed) -> str:
    return percent(speed.achieved_occupancy)
