"""The steps: windows in order of time, as means over devices, drawn as bars and as a table.

Few steps are rows of bars, more are columns side by side. The table compares each component with
its median over the used steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.reports.page.axes import Tick, time_ticks
from traceflops.reports.view.figures import UNKNOWN, signed_duration
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.texts import words
from traceflops.timeline.records import Components, Window
from traceflops.windows.records import DeviceReport
from traceflops.windows.step_times import counting, mean_components, median_of

MOST_BARS = 200  # with more steps, neighbours share a bar
MOST_SMALL = 40  # the same for small drawings
MOST_LISTED: Final = 20  # bars up to this number are rows with links; more stand side by side

_NAMES = {"step": "{}", "between": "before {}", "span": "whole span", "range": "chosen range"}
_ORDER = {"before": 0, "step": 1, "between": 1, "range": 1, "span": 1, "after": 2}
MOST_ROWS: Final = 200
_FIRST: Final = 50
_TIME: Final = "time"
_MOST_TICKS: Final = 24
_MOST_TIMES: Final = 5  # labels of the axis of time
_MOST_TEXTURED: Final = 60  # of more columns each is narrower than a texture
_FILLED: Final = 0.88  # share of a column's room that it takes


class StepRow(Struct, frozen=True):
    """A window as the mean over its devices; of a used step, over those that use it.

    `longest_ns` is of the slowest device; `activities` and `launches` are sums.
    """

    label: str
    role: str
    step: int | None
    devices: int
    used: bool
    left_out: str
    unfinished: bool
    components: Components
    longest_ns: int
    activities: int
    launches: int | None

    @property
    def dur_ns(self) -> int:
        """The mean length in ns."""
        return self.components.window_ns


class StepBar(Struct, frozen=True):
    """A bar: a row, or the mean of several neighbouring rows.

    `first` and `last` are the numbers of its steps, None for other windows.
    """

    label: str
    first: int | None
    last: int | None
    rows: int
    used: bool
    components: Components


class StepColumn(Struct, frozen=True):
    """A bar as a column: its left end, and component, top and height of its boxes, in percent."""

    bar: StepBar
    x: float
    boxes: list[tuple[str, float, float]]


class StepColumns(Struct, frozen=True):
    """Columns side by side, with ticks of time and labels below; all places are in percent."""

    columns: list[StepColumn]
    width: float
    is_textured: bool
    ticks: list[Tick]
    labels: list[Tick]


def window_rows(devices: Iterable[DeviceReport]) -> list[StepRow]:
    """Return a row per window in order of time: `before`, each step after its `between`, `after`.

    The reason why a window is left out is that of the first device that has one. The sum of
    launches is None if the launches of any device are unknown.
    """
    groups: dict[tuple[int, int, str], list[Window]] = {}
    for device in devices:
        step = -1  # for windows that belong to no step
        # Backwards, so that a window between two steps gets the number of the later one.
        for window in reversed(device.windows):
            if window.role != "between":
                step = -1 if window.step is None else window.step
            groups.setdefault((_ORDER[window.role], step, window.role), []).append(window)
    rows = []
    for (_, step, role), windows in sorted(groups.items(), key=lambda item: item[0]):
        counted = counting(windows)
        accounts = [window.account for window in counted]
        launches = [account.launches for account in accounts]
        row = StepRow(
            label=_NAMES.get(role, role).format(step),
            role=role,
            step=step if role == "step" else None,
            devices=len(counted),
            used=any(window.used for window in counted),
            left_out=words(next((w.left_out for w in windows if w.left_out), None)),
            unfinished=any(window.unfinished for window in windows),
            components=mean_components([account.components for account in accounts]),
            longest_ns=max(window.dur_ns for window in counted),
            activities=sum(account.activities for account in accounts),
            launches=None if None in launches else sum(n for n in launches if n is not None),
        )
        rows.append(row)
    return rows


def drawn_bars(all_rows: Sequence[StepRow], most: int = MOST_BARS) -> list[StepBar]:
    """Return at most `most` bars of one or more steps each; without steps, of the used window."""
    steps = [row for row in all_rows if row.role == "step"]
    chosen = steps or [row for row in all_rows if row.used]
    per_bar = max(-(-len(chosen) // most), 1)  # rounded up
    groups = [chosen[start : start + per_bar] for start in range(0, len(chosen), per_bar)]
    return [
        StepBar(
            label=rows[0].label if len(rows) == 1 else f"{rows[0].label}{UNKNOWN}{rows[-1].label}",
            first=rows[0].step,
            last=rows[-1].step,
            rows=len(rows),
            used=any(row.used for row in rows),
            components=mean_components([row.components for row in rows]),
        )
        for rows in groups
    ]


def steps_page(analysis: Analysis, rows: Sequence[StepRow]) -> dict[str, Any]:
    """Return the table of windows: `rows` of `total`, components, and their medians over steps.

    Of too many windows, the first `first` and the `worst` longest others are shown.
    """
    components = [name for name in LOOKS if any(row.components.parts()[name] for row in rows)]
    used = [row for row in rows if row.used and row.role == "step"]
    medians: dict[str, int] = {}
    slowest = None
    if len(used) > 1:
        medians = {_TIME: median_of([row.dur_ns for row in used])} | {
            name: median_of([row.components.parts()[name] for row in used]) for name in components
        }
        slowest = str(analysis.spread.longest.step) if analysis.spread is not None else None
    shown = []
    for row in chosen_rows(rows):
        is_step, parts = row.role == "step", row.components.parts()
        # Only steps are compared with the medians of steps.
        compared = medians if is_step else {}
        step_ns = compared.get(_TIME, 0)
        shown_row = {
            "row": row,
            "link": f"step={row.label}" if is_step else "",
            "time": _part(row.dur_ns, compared.get(_TIME), step_ns),
            "parts": [_part(parts[name], compared.get(name), step_ns) for name in components],
            "slowest": is_step and row.label == slowest,
        }
        shown.append(shown_row)
    return {
        "rows": shown,
        "total": len(rows),
        "components": components,
        "medians": medians,
        "first": _FIRST,
        "worst": len(shown) - _FIRST,
    }


def chosen_rows(rows: Sequence[StepRow]) -> list[StepRow]:
    """Return all rows, or of too many the first and the longest later ones, in order of time."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    by_length = sorted(range(_FIRST, len(rows)), key=lambda index: -rows[index].dur_ns)
    longest = sorted(by_length[: MOST_ROWS - _FIRST])
    return [rows[index] for index in (*range(_FIRST), *longest)]


def _part(ns: int, median_ns: int | None, median_step_ns: int) -> dict[str, Any]:
    """Return a time and how much it is above its median; much is over 1/20 of the median step."""
    if median_ns is None:
        return {"ns": ns, "more": "", "is_much": False}
    more_ns = ns - median_ns
    more = signed_duration(more_ns) if more_ns else "±0"
    return {"ns": ns, "more": more, "is_much": bool(more_ns) and 20 * more_ns > median_step_ns}


def columns_of(bars: Sequence[StepBar]) -> StepColumns:
    """Return many bars as columns side by side, each stacked by component from the bottom."""
    longest_ns = max(bar.components.window_ns for bar in bars)
    width = 100 / len(bars)
    drawn = []
    for number, bar in enumerate(bars):
        boxes, top_ns = [], 0
        for name, ns in bar.components.parts().items():
            if ns:
                top_ns += ns
                y, height = 100 - 100 * top_ns / longest_ns, 100 * ns / longest_ns
                boxes.append((name, round(y, 2), round(height, 2)))
        drawn.append(StepColumn(bar, round(width * number, 3), boxes))
    ticks = [
        Tick(round(100 - 100 * ns / longest_ns, 2), text)
        for ns, text in time_ticks(0, longest_ns, _MOST_TIMES)
        if ns
    ]
    labelled = range(0, len(bars), -(-len(bars) // _MOST_TICKS))
    # Of a bar of several steps, the first one is its label.
    texts = [bar.label if bar.first is None else str(bar.first) for bar in bars]
    labels = [Tick(round(width * (number + 0.5), 2), texts[number]) for number in labelled]
    return StepColumns(drawn, round(width * _FILLED, 3), len(bars) <= _MOST_TEXTURED, ticks, labels)
