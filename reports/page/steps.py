"""The steps: windows in order of time, as means over devices, drawn as bars and as a table.

Few steps are drawn as HTML, more as a chart that zooms. The table compares each component with its
median over the used steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.reports.view.figures import TIME_UNITS, UNKNOWN, signed_duration
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.texts import words
from traceflops.timeline.records import Components, Window
from traceflops.units import unit_for
from traceflops.windows.records import DeviceReport
from traceflops.windows.step_times import counting, mean_components, median_of

MOST_BARS = 200  # with more steps, neighbours share a bar
MOST_SMALL = 40  # the same for small drawings
MOST_STILL: Final = 20
"""Bars up to which no chart that zooms is needed, as it takes half a million bytes of a page."""

_NAMES = {"step": "{}", "between": "before {}", "span": "whole span", "range": "chosen range"}
_ORDER = {"before": 0, "step": 1, "between": 1, "range": 1, "span": 1, "after": 2}
MOST_ROWS: Final = 200
_FIRST: Final = 50
_TIME: Final = "time"
STEPS: Final = "steps"  # what the chart of steps is called in its document
_HATCH: Final = {  # Bokeh's names of patterns
    "horizontal": "horizontal_line",
    "cross": "cross",
    "double": "horizontal_wave",
    "vertical": "vertical_line",
    "diagonal": "right_diagonal_line",
    "dot": "dot",
}
_PALE: Final = 0.4  # opacity of unused steps
_MOST_TICKS: Final = 24
EDGES: Final = ("left", "bottom", "right", "top")  # columns of Boxes
_MOST_OUTLINED: Final = 60
_LEAST_PLACES: Final = 5


class StepRow(Struct, frozen=True):
    """A window as the mean over its devices; of a used step, over those that use it.

    `longest_ns` is of the slowest device; `activities` and `launches` are sums.
    """

    label: str
    role: str
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
    """A bar: a row, or the mean of several neighbouring rows."""

    label: str
    rows: int
    used: bool
    components: Components


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


def step_bars(bars: Sequence[StepBar], axis: str) -> Any:
    """Return a Bokeh figure with a bar per step or window; WebGL would cost 194 kB more."""
    import bokeh.models as bk
    from bokeh.plotting import figure

    boxes = boxes_of(bars)
    # draw.js also selects in the timeline what is selected here.
    select = bk.BoxSelectTool(dimensions="width", mode="replace")
    hover = bk.HoverTool(tooltips=boxes.tooltips(axis), visible=False)
    zooms = [bk.BoxZoomTool(dimensions="width"), bk.PanTool(dimensions="width")]
    drawn = figure(
        name=STEPS,
        height=300,
        sizing_mode="stretch_width",
        x_range=bk.Range1d(start=boxes.across[0], end=boxes.across[1]),
        y_range=bk.Range1d(start=0, end=boxes.highest),
        x_axis_label=axis,
        y_axis_label=f"time ({boxes.unit})",
        tools=[hover, select, *zooms, bk.ResetTool(), bk.SaveTool()],
        active_drag=select,
        toolbar_location="above",
    )
    is_outlined = len(bars) <= _MOST_OUTLINED
    quads = drawn.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        source=bk.ColumnDataSource(boxes.columns),
        fill_color="colour",
        fill_alpha="opacity",
        hatch_pattern="hatch",
        hatch_color="ink",
        hatch_alpha=0.22,
        hatch_scale=9,
        line_color="edge" if is_outlined else None,
        line_alpha="opacity",
        nonselection_fill_alpha=0.25,
        nonselection_hatch_alpha=0.06,
        nonselection_line_alpha=0.25,
    )
    # A copy without the texture would be painted over the box under the pointer.
    quads.hover_glyph = quads.selection_glyph = None
    drawn.subscribed_events.add("selectiongeometry")
    drawn.toolbar.logo = None
    drawn.toolbar.autohide = True
    drawn.background_fill_alpha = drawn.border_fill_alpha = 0
    drawn.xaxis.ticker = [place for place, _ in boxes.ticks]
    drawn.xaxis.major_label_overrides = dict(boxes.ticks)
    drawn.xaxis.major_label_policy = bk.NoOverlap(min_distance=6)
    drawn.outline_line_color = None
    # Lines that shall not show must be invisible: the style sheet overrules their colours.
    drawn.xgrid.visible = False
    drawn.axis.minor_tick_out = drawn.axis.major_tick_in = 0
    return drawn


class Boxes(Struct, frozen=True):
    """Bars stacked by component: a box (a row of `columns`) per component that has a time.

    Bars are at 0, 1, ... on an axis from `across[0]` to `across[1]`; `ticks` are those that have a
    label. The axis of time, in `unit`, ends at `highest`.
    """

    columns: dict[str, Any]
    unit: str
    across: tuple[float, float]
    highest: float
    ticks: list[tuple[int, str]]

    def tooltips(self, axis: str) -> list[tuple[str, str]]:
        """Return the tooltip of a box; `axis` is the noun for what a bar stands for."""
        return [
            (axis, "@label"),
            ("component", f"@component, @value{{0,0.00}} {self.unit} (@percent{{0.0}} %)"),
            ("total", f"@whole{{0,0.00}} {self.unit}"),
        ]


def boxes_of(bars: Sequence[StepBar]) -> Boxes:
    """Return the boxes of bars; at least one bar must have a time."""
    unit = unit_for(max(bar.components.window_ns for bar in bars))
    unit_ns, looks = TIME_UNITS[unit], list(LOOKS.values())
    parts = np.array([list(bar.components.parts().values()) for bar in bars], dtype=np.float64)
    bar_of, component = np.nonzero(parts)  # of each box
    value, top = parts[bar_of, component], parts.cumsum(axis=1)[bar_of, component]
    total = np.maximum(parts.sum(axis=1)[bar_of], 1)
    hatches = [_HATCH.get(look.pattern, "blank") for look in looks]
    columns = {
        "left": bar_of - 0.44,  # bars are 1 apart, with a space between them
        "bottom": (top - value) / unit_ns,
        "right": bar_of + 0.44,
        "top": top / unit_ns,
        "value": value / unit_ns,
        "percent": 100 * value / total,
        "whole": total / unit_ns,
        "opacity": np.array([1.0 if bar.used else _PALE for bar in bars])[bar_of],
        "label": np.array([bar.label for bar in bars])[bar_of],
        "component": np.array([look.label for look in looks])[component],
        "colour": np.array([look.colour for look in looks])[component],
        "ink": np.array([look.ink for look in looks])[component],
        "edge": np.array([look.outline or look.colour for look in looks])[component],
        "hatch": np.array(hatches)[component],
    }
    middle = (len(bars) - 1) / 2
    half = max(len(bars), _LEAST_PLACES) / 2 + 0.2  # few bars are in the middle and stay slim
    return Boxes(
        columns,
        unit,
        across=(middle - half, middle + half),
        highest=columns["top"].max() * 1.04,
        ticks=list(enumerate(bar.label for bar in bars))[:: -(-len(bars) // _MOST_TICKS)],
    )
