"""Windows in order of time, the mean over devices, and how many of them to draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traceflops.reports.view import UNKNOWN
from traceflops.timeline import Components, Window
from traceflops.windows import DeviceReport, counting, mean_components

MOST_BARS = 200
"""How many steps are drawn one by one; beyond that, neighbours share a bar."""

_NAMES = {"step": "{}", "between": "before {}", "span": "whole span", "range": "chosen range"}
_ORDER = {"before": 0, "step": 1, "between": 1, "range": 1, "span": 1, "after": 2}


@dataclass(frozen=True, slots=True)
class Row:
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
class Bar:
    """One drawn bar: a row, or the mean of several neighbouring rows."""

    label: str
    rows: int
    used: bool
    components: Components


def rows(devices: Iterable[DeviceReport]) -> list[Row]:
    """Return a row per window: `before`, the steps by number and what lies before each, `after`."""
    groups: dict[tuple[int, int, str], list[Window]] = {}
    for device in devices:
        step = -1
        for window in reversed(device.windows):
            if window.role != "between":
                step = -1 if window.step is None else window.step
            groups.setdefault((_ORDER[window.role], step, window.role), []).append(window)
    return [_row(groups[key], _label(key[1], key[2])) for key in sorted(groups)]


def drawn(all_rows: Sequence[Row], most: int = MOST_BARS) -> list[Bar]:
    """Return the bars of the plot: the steps, or the used window where there are no steps."""
    chosen = [row for row in all_rows if row.role == "step"]
    chosen = chosen or [row for row in all_rows if row.used]
    width = -(-len(chosen) // most)
    if width <= 1:
        return [Bar(row.label, 1, row.used, row.components) for row in chosen]
    return [_joined(chosen[i : i + width]) for i in range(0, len(chosen), width)]


def _row(windows: Sequence[Window], label: str) -> Row:
    mine = counting(windows)
    accounts = [window.account for window in mine]
    launches = [account.launches for account in accounts]
    return Row(
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


def _joined(group: Sequence[Row]) -> Bar:
    first, last = group[0].label, group[-1].label
    return Bar(
        label=first if len(group) == 1 else f"{first}{UNKNOWN}{last}",
        rows=len(group),
        used=any(row.used for row in group),
        components=mean_components([row.components for row in group]),
    )
