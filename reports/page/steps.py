"""The steps: windows in order of time as means over devices, bars to draw, and their table.

In the table each component stands against its median over the steps used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.reports.view import LOOKS, UNKNOWN, duration
from traceflops.timeline import Components, Window
from traceflops.windows import (
    DeviceReport,
    StepSpread,
    counting,
    mean_components,
    median_of,
    spread_of,
)

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

MOST_BARS = 200
"""How many steps are drawn one by one; beyond that, neighbours share a bar."""

_NAMES = {"step": "{}", "between": "before {}", "span": "whole span", "range": "chosen range"}
_ORDER = {"before": 0, "step": 1, "between": 1, "range": 1, "span": 1, "after": 2}
MOST_ROWS: Final = 200
_FIRST: Final = 50
_TIME: Final = "time"


@dataclass(frozen=True, slots=True)
class StepRow:
    """A window as the mean over the devices that have it; of a step used, over those that use it.

    `longest_ns` is the longest on any of them; counts are sums over them.
    """

    label: str
    role: str
    devices: int
    used: bool
    left_out: str | None
    unfinished: bool
    components: Components
    longest_ns: int
    activities: int
    launches: int | None

    @property
    def dur_ns(self) -> int:
        """Return the mean length."""
        return self.components.window_ns


@dataclass(frozen=True, slots=True)
class StepBar:
    """One drawn bar: a row, or the mean of several neighbouring rows."""

    label: str
    rows: int
    used: bool
    components: Components


def window_rows(devices: Iterable[DeviceReport]) -> list[StepRow]:
    """Return a row per window: `before`, the steps by number and what lies before each, `after`."""
    groups: dict[tuple[int, int, str], list[Window]] = {}
    for device in devices:
        step = -1
        for window in reversed(device.windows):
            if window.role != "between":
                step = -1 if window.step is None else window.step
            groups.setdefault((_ORDER[window.role], step, window.role), []).append(window)
    return [_window_row(groups[key], _label(key[1], key[2])) for key in sorted(groups)]


def drawn_bars(all_rows: Sequence[StepRow], most: int = MOST_BARS) -> list[StepBar]:
    """Return the bars of the plot: the steps, or the used window where there are no steps."""
    chosen = [row for row in all_rows if row.role == "step"]
    chosen = chosen or [row for row in all_rows if row.used]
    width = -(-len(chosen) // most)
    if width <= 1:
        return [StepBar(row.label, 1, row.used, row.components) for row in chosen]
    return [_joined(chosen[i : i + width]) for i in range(0, len(chosen), width)]


def _window_row(windows: Sequence[Window], label: str) -> StepRow:
    mine = counting(windows)
    accounts = [window.account for window in mine]
    launches = [account.launches for account in accounts]
    return StepRow(
        label=label,
        role=windows[0].role,
        devices=len(mine),
        used=any(window.used for window in mine),
        left_out=next((w.left_out for w in windows if w.left_out), None),
        unfinished=any(window.unfinished for window in windows),
        components=mean_components([account.components for account in accounts]),
        longest_ns=max(window.dur_ns for window in mine),
        activities=sum(account.activities for account in accounts),
        launches=None if None in launches else sum(n for n in launches if n is not None),
    )


def _label(step: int, role: str) -> str:
    return _NAMES.get(role, role).format(step)


def _joined(group: Sequence[StepRow]) -> StepBar:
    first, last = group[0].label, group[-1].label
    return StepBar(
        label=first if len(group) == 1 else f"{first}{UNKNOWN}{last}",
        rows=len(group),
        used=any(row.used for row in group),
        components=mean_components([row.components for row in group]),
    )


# The table of steps


@dataclass(frozen=True, slots=True)
class StepTimeShown:
    """The time of a component in one step, and how much more that is than the median.

    `more` is empty where there is nothing to compare with.
    """

    ns: int
    more: str
    is_much: bool


@dataclass(frozen=True, slots=True)
class StepShown:
    """A row of the table; `link` is what follows # in a link to it."""

    row: StepRow
    link: str
    time: StepTimeShown
    parts: list[StepTimeShown]
    slowest: bool


@dataclass(frozen=True, slots=True)
class StepsPage:
    """The rows that are shown of `total`, the medians, and the components that any row has.

    `spread` is how the steps used differ, None for fewer than two.
    """

    rows: list[StepShown]
    total: int
    components: list[str]
    medians: dict[str, int]
    compared: int
    spread: StepSpread | None

    @property
    def first(self) -> int:
        """Return how many rows are shown because they are the first."""
        return _FIRST

    @property
    def worst(self) -> int:
        """Return how many rows are shown because they are the longest."""
        return len(self.rows) - _FIRST


def steps_page(analysis: Analysis, rows: Sequence[StepRow]) -> StepsPage:
    """Return the table of the windows of an analysis."""
    components = [name for name in LOOKS if any(row.components.parts()[name] for row in rows)]
    used = [row for row in rows if row.used and row.role == "step"]
    medians = _medians(used, components) if len(used) > 1 else {}
    spread = spread_of(analysis.devices) if len(used) > 1 else None
    slowest = str(spread.longest.step) if spread is not None else None
    shown = [
        _shown(row, components, medians, row.role == "step" and row.label == slowest)
        for row in chosen_rows(rows)
    ]
    return StepsPage(shown, len(rows), components, medians, len(used), spread)


def _medians(used: Sequence[StepRow], components: Sequence[str]) -> dict[str, int]:
    parts = [row.components.parts() for row in used]
    medians = {name: median_of([part[name] for part in parts]) for name in components}
    return {_TIME: median_of([row.dur_ns for row in used])} | medians


def chosen_rows(rows: Sequence[StepRow]) -> list[StepRow]:
    """Return all rows, or where there are too many the first and the longest, in order of time."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    later = sorted(range(_FIRST, len(rows)), key=lambda place: -rows[place].dur_ns)
    return [rows[place] for place in (*range(_FIRST), *sorted(later[: MOST_ROWS - _FIRST]))]


def _shown(
    row: StepRow, components: Sequence[str], medians: dict[str, int], slowest: bool
) -> StepShown:
    parts = row.components.parts()
    # The stretches before and after the steps are no steps: nothing of them is too long.
    compared = medians if row.role == "step" else {}
    whole = compared.get(_TIME, 0)
    return StepShown(
        row,
        f"step={row.label}" if row.role == "step" else "",
        _part(row.dur_ns, compared.get(_TIME), whole),
        [_part(parts[name], compared.get(name), whole) for name in components],
        slowest,
    )


def _part(ns: int, usual: int | None, whole_ns: int) -> StepTimeShown:
    if usual is None:
        return StepTimeShown(ns, "", False)
    if ns == usual:
        return StepTimeShown(ns, "±0", False)
    sign = "+" if ns > usual else "\N{MINUS SIGN}"
    return StepTimeShown(ns, f"{sign}{duration(abs(ns - usual))}", 20 * (ns - usual) > whole_ns)
