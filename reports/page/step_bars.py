"""The plot of the steps: a bar per step, stacked by component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceflops.reports.page import figures
from traceflops.reports.page.steps import StepBar
from traceflops.reports.view import LOOKS, unit_for

_HATCH = {
    "horizontal": "horizontal_line",
    "cross": "cross",
    "vertical": "vertical_line",
    "diagonal": "right_diagonal_line",
    "dot": "dot",
}
_SCALE = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_PALE = 0.4
_MOST_TICKS = 24
_MOST_OUTLINED = 60
_LEAST_PLACES = 5


def step_bars(bars: Sequence[StepBar], axis: str) -> Any:
    """Return the Bokeh figure with a bar per step, or per window where there are no steps."""
    import holoviews as hv

    unit = unit_for(max(bar.components.window_ns for bar in bars))
    shown = [name for name in LOOKS if any(bar.components.parts()[name] for bar in bars)]
    boxes = hv.Overlay([_boxes(bars, name, unit, axis) for name in shown or ["idle"]])
    top = max(bar.components.window_ns for bar in bars) / _SCALE[unit]
    boxes = boxes.opts(
        backend="bokeh",
        responsive=True,
        height=300,
        toolbar="above",
        show_legend=False,
        xlabel=axis,
        ylabel=f"time ({unit})",
        xlim=_ends(len(bars)),
        ylim=(0, top * 1.04 or 1),
        xticks=_ticks(bars),
    )
    figure = figures.state(boxes)
    _dress(figure, shown, outlined=len(bars) <= _MOST_OUTLINED)
    return figure


def _boxes(bars: Sequence[StepBar], component: str, unit: str, axis: str) -> Any:
    import holoviews as hv
    import numpy as np
    from bokeh.models import HoverTool

    parts = np.array([list(bar.components.parts().values()) for bar in bars], dtype=np.float64)
    place = list(LOOKS).index(component)
    top = parts[:, : place + 1].sum(axis=1) / _SCALE[unit]
    value = parts[:, place] / _SCALE[unit]
    total = np.maximum(parts.sum(axis=1), 1)
    x = np.arange(len(bars), dtype=np.float64)
    columns = {
        "left": x - 0.44,
        "bottom": top - value,
        "right": x + 0.44,
        "top": top,
        "value": value,
        "percent": 100 * parts[:, place] / total,
        "whole": total / _SCALE[unit],
        "opacity": np.array([1.0 if bar.used else _PALE for bar in bars]),
        "label": np.array([bar.label for bar in bars], dtype=object),
    }
    names = list(columns)
    return hv.Rectangles(columns, names[:4], names[4:]).opts(
        backend="bokeh",
        color=LOOKS[component].colour,
        alpha="opacity",
        line_width=0,
        default_tools=[],
        tools=[HoverTool(tooltips=_tooltips(component, unit, axis), visible=False)],
    )


def _tooltips(component: str, unit: str, axis: str) -> list[tuple[str, str]]:
    return [
        (axis, "@label"),
        (LOOKS[component].label, f"@value{{0,0.00}} {unit} (@percent{{0.0}} %)"),
        ("total", f"@whole{{0,0.00}} {unit}"),
    ]


def _ends(bars: int) -> tuple[float, float]:
    """Return the ends of the axis; few bars stand in the middle of it and stay slim."""
    half = max(bars, _LEAST_PLACES) / 2 + 0.2
    middle = (bars - 1) / 2
    return middle - half, middle + half


def _ticks(bars: Sequence[StepBar]) -> list[tuple[int, str]]:
    stride = -(-len(bars) // _MOST_TICKS)
    return [(i, bars[i].label) for i in range(0, len(bars), stride)]


def _dress(figure: Any, shown: Sequence[str], *, outlined: bool) -> None:
    """Set what HoloViews has no option for: textures, tools, a transparent ground."""
    from bokeh.models import BoxZoomTool, HoverTool, NoOverlap, PanTool, ResetTool, SaveTool

    for renderer, component in zip(figure.renderers, shown, strict=False):
        _dress_boxes(renderer, component, outlined=outlined)
    zoom = BoxZoomTool(dimensions="width")
    hovers = [tool for tool in figure.toolbar.tools if isinstance(tool, HoverTool)]
    figure.toolbar.tools = [*hovers, zoom, PanTool(dimensions="width"), ResetTool(), SaveTool()]
    figure.toolbar.active_drag = zoom
    figure.toolbar.logo = None
    figure.toolbar.autohide = True
    figure.background_fill_alpha = 0
    figure.border_fill_alpha = 0
    figure.xaxis.major_label_policy = NoOverlap(min_distance=6)
    figure.outline_line_color = None
    # Lines that shall not show must be invisible: the style sheet overrules their colours.
    figure.xgrid.visible = False
    figure.axis.minor_tick_out = 0
    figure.axis.major_tick_in = 0


def _dress_boxes(renderer: Any, component: str, *, outlined: bool) -> None:
    look = LOOKS[component]
    # A copy without the texture would be painted over the box under the pointer.
    renderer.hover_glyph = None
    glyph = renderer.glyph
    if look.pattern:
        glyph.hatch_pattern = _HATCH[look.pattern]
        glyph.hatch_color = look.ink
        glyph.hatch_alpha = 0.22
        glyph.hatch_scale = 9
    if outlined and look.outline:
        glyph.line_color = look.outline
        glyph.line_width = 1
