"""What notebooks show of an analysis: a card of a few kB of HTML, and charts.

The card has no scripts, loads nothing, and takes its colours from the notebook. The charts are
HoloViews elements with the data that the page draws, which `element.dframe()` returns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.devices.peaks import PER_TERA
from traceflops.errors import UsageError
from traceflops.memory.usage import Curve, memory_use
from traceflops.reports.page.case import has_findings
from traceflops.reports.page.jinja import environment
from traceflops.reports.page.memory import use_label
from traceflops.reports.page.rank_map import own_time_rows
from traceflops.reports.page.roofline import placed_kernels
from traceflops.reports.page.steps import StepBar, drawn_bars, window_rows
from traceflops.reports.view.figures import TIME_UNITS, visible
from traceflops.reports.view.findings import causes, opening, other_findings, title_finding
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.step_split import step_parts
from traceflops.reports.view.utilisation import figure_of, roof
from traceflops.reports.view.wording import provenance
from traceflops.units import unit_for

_MOST_FINDINGS: Final = 4
_DIVERGING: Final = "RdBu_r"
_GIB: Final = 2**30
_BEYOND: Final = 4.0  # factor by which the roofs extend beyond the kernels on either side
_PALE: Final = 0.4  # opacity of unused steps
_EDGES: Final = ("left", "bottom", "right", "top")
_LEAST_PLACES: Final = 5
_MOST_TICKS: Final = 24
_SETTINGS: Final = {"HOME": os.devnull, "USERPROFILE": os.devnull, "HOLOVIEWSRC": ""}


def card(analysis: Analysis) -> str:
    """Return a card of HTML: what is wrong, where the time of a step goes, what to do."""
    opened = opening(analysis)
    # Without records of device work, findings cannot judge the program.
    shows_findings = has_findings(analysis)
    first_causes = causes(analysis)[:_MOST_FINDINGS] if shows_findings else []
    others = other_findings(analysis) if shows_findings else []
    values = {
        "title": opened.title,
        "rest": opened.rest,
        "figure": figure_of(analysis),
        "best": title_finding(analysis) if shows_findings else None,
        "parts": step_parts(analysis),
        "found": first_causes,
        "others": others[: _MOST_FINDINGS - len(first_causes)],
        "provenance": provenance(analysis, most_files=1),
    }
    return environment().get_template("notebook.html.j2").render(values)


class Plots(Struct, frozen=True):
    """The charts of one analysis. In a notebook, call `holoviews.extension("bokeh")` first.

    Charts raise UsageError if there is nothing to plot.
    """

    analysis: Analysis

    def steps(self) -> Any:
        """Return a stacked bar per step, or per window if there are no steps."""
        bars = drawn_bars(window_rows(self.analysis.devices))
        return _stacked(bars, "step" if self.analysis.steps.seen else "window")

    def components(self) -> Any:
        """Return a stacked bar per device: the time of its used windows by component."""
        devices = self.analysis.devices_used
        bars = [
            StepBar(visible(device.label), None, None, 1, True, device.chosen.components)
            for device in devices
        ]
        return _stacked(bars, "GPU")

    def roofline(self) -> Any:
        """Return kernels as points (FLOP per byte, TFLOP/s) below the roofs of their data types."""
        hv = _holoviews()
        measured = self.analysis.measured
        rows, peaks, _ = placed_kernels(measured)
        _, bandwidth = roof(measured)
        if not rows or not bandwidth:
            raise _missing("no kernel with FLOPs, bytes and a known peak")
        points: dict[str, list[Any]] = {
            "intensity": [float(row.measured.intensity or 0) for row in rows],
            "rate": [float(row.measured.flops_per_ns or 0) / PER_TERA for row in rows],
            "name": [visible(row.name) for row in rows],
            "time_ns": [row.sum_ns for row in rows],
        }
        ends = min(points["intensity"]) / _BEYOND, max(points["intensity"]) * _BEYOND
        intensity = np.geomspace(*ends, 200)  # evenly spaced on the logarithmic axis
        axes = ["intensity", "rate"]
        roofs = []
        for dtype, peak in peaks.items():
            rate = np.minimum(intensity * float(bandwidth), peak) / PER_TERA
            curve = hv.Curve((intensity, rate), *axes, label=dtype)
            roofs.append(curve.opts(backend="bokeh", line_width=1.5))
        kernels = hv.Points(points, axes, ["name", "time_ns"]).opts(
            backend="bokeh", size=8, color=LOOKS["compute"].colour, tools=["hover"]
        )
        return hv.Overlay([*roofs, kernels]).opts(
            **_SIZE,
            logx=True,
            logy=True,
            xlabel="FLOP per byte",
            ylabel="TFLOP/s",
            legend_position="bottom_right",
        )

    def memory(self) -> Any:
        """Return the allocated and the reserved memory of each device and host over time."""
        hv = _holoviews()
        uses = memory_use(self.analysis.prepared)
        if not uses:
            raise _missing("no memory events")
        first_ns = min(int(use.allocated.curve.time_ns[0]) for use in uses)

        def drawn(label: str, curve: Curve) -> Any:
            """Return a curve of GiB over ms; the exact ns and bytes are shown under the pointer."""
            columns = {
                "ms": (curve.time_ns - first_ns) / TIME_UNITS["ms"],
                "GiB": curve.value / _GIB,
                "time_ns": curve.time_ns,
                "bytes": curve.value,
            }
            return hv.Curve(columns, "ms", list(columns)[1:], label=label).opts(
                backend="bokeh", interpolation="steps-post", tools=["hover"]
            )

        curves = []
        for use in uses:
            label = visible(use_label(use, self.analysis.devices))
            amounts = filter(None, (use.allocated, use.reserved))
            curves += [drawn(f"{label}, {amount.what}", amount.curve) for amount in amounts]
        return hv.Overlay(curves).opts(**_SIZE, legend_position="bottom")

    def ranks(self) -> Any:
        """Return a heat map of ranks and steps: own time relative to the median of the step."""
        hv = _holoviews()
        times, labels, _ = own_time_rows(self.analysis)
        deviation = times.relative() - 1  # [ranks, steps], relative to the median of the step
        if deviation.shape[0] < 2 or not deviation.size:
            raise _missing("fewer than two ranks, or no steps")
        largest = float(np.nanmax(np.abs(deviation))) or 1.0  # a range of colours needs a length
        cells = [
            (str(step), visible(label), deviation[row, column], times.ns[row, column])
            for row, label in enumerate(labels)
            for column, step in enumerate(times.steps)
        ]
        return hv.HeatMap(cells, ["step", "rank"], ["off median", "own_ns"]).opts(
            **_SIZE,
            cmap=_DIVERGING,
            clim=(-largest, largest),
            colorbar=True,
            invert_yaxis=True,
            tools=["hover"],
        )

    def gaps(self) -> Any:
        """Return a histogram of gaps: the idle time in gaps of each length."""
        hv = _holoviews()
        lengths = sorted(self.analysis.idle.histogram, key=lambda length: length.from_ns)
        if not lengths:
            raise _missing("no idle time between work")
        columns = {
            "from_ns": [max(length.from_ns, 1) for length in lengths],  # the axis is logarithmic
            "bottom": [0] * len(lengths),
            "to_ns": [length.to_ns for length in lengths],
            "ms": [length.idle_ns / TIME_UNITS["ms"] for length in lengths],
            "idle_ns": [length.idle_ns for length in lengths],
            "gaps": [length.gaps for length in lengths],
        }
        return hv.Rectangles(columns, list(columns)[:4], list(columns)[4:]).opts(
            **_SIZE,
            logx=True,
            color=LOOKS["idle"].colour,
            line_color="white",
            xlabel="length of gaps (ns)",
            ylabel="idle time (ms)",
            tools=["hover"],
        )


_SIZE: Final[dict[str, Any]] = {"backend": "bokeh", "width": 800, "height": 320}


def _holoviews() -> Any:
    """Return HoloViews with its Bokeh backend, loaded without the user's settings."""
    with _without_settings("holoviews.plotting.bokeh"):
        import holoviews as hv
        import holoviews.plotting.bokeh
    return hv


def _stacked(bars: list[StepBar], axis: str) -> Any:
    """Return bars stacked by component; `axis` is the noun for what a bar stands for."""
    if not any(bar.components.window_ns for bar in bars):
        raise _missing("no device with recorded work")
    hv, boxes = _holoviews(), _boxes_of(bars)
    from bokeh.models import HoverTool

    values = [name for name in boxes.columns if name not in _EDGES]
    # Without `datatype` HoloViews would try pandas, whose import takes long.
    rectangles = hv.Rectangles(boxes.columns, list(_EDGES), values, datatype=["dictionary"])
    return rectangles.opts(
        backend="bokeh",
        color=hv.dim("colour"),
        alpha="opacity",
        line_width=0,
        default_tools=["xpan", "xwheel_zoom", "xbox_zoom", "reset"],
        tools=[HoverTool(tooltips=boxes.tooltips(axis), visible=False)],
        responsive=True,
        height=300,
        toolbar="above",
        show_legend=False,
        xlabel=axis,
        ylabel=f"time ({boxes.unit})",
        xlim=boxes.across,
        ylim=(0, boxes.highest),
        xticks=boxes.ticks,
    )


def _missing(what: str) -> UsageError:
    return UsageError(f"Nothing to plot: {what}.", "traceflops info FILE says what a trace holds.")


class _Boxes(Struct, frozen=True):
    """Bars stacked by component: a box per component with a time, a row of `columns` each.

    `across` are the ends of the axis of bars, whose places are 0, 1, ...; `highest` is that of the
    axis of time. `ticks` are the places that are labelled.
    """

    columns: dict[str, Any]
    unit: str
    across: tuple[float, float]
    highest: float
    ticks: list[tuple[int, str]]

    def tooltips(self, axis: str) -> list[tuple[str, str]]:
        """Return what is shown of a box under the pointer; `axis` says what a bar is."""
        return [
            (axis, "@label"),
            ("component", f"@component, @value{{0,0.00}} {self.unit} (@percent{{0.0}} %)"),
            ("total", f"@whole{{0,0.00}} {self.unit}"),
        ]


def _boxes_of(bars: list[StepBar]) -> _Boxes:
    """Return the boxes of bars, of which one at least has a time."""
    unit = unit_for(max(bar.components.window_ns for bar in bars))
    parts = np.array([list(bar.components.parts().values()) for bar in bars], dtype=np.float64)
    place, component = np.nonzero(parts)
    looks, value, unit_ns = list(LOOKS.values()), parts[place, component], TIME_UNITS[unit]
    top, total = parts.cumsum(axis=1)[place, component], np.maximum(parts.sum(axis=1)[place], 1)
    columns = {
        "left": place - 0.44,  # bars are 1 apart, with a space between them
        "bottom": (top - value) / unit_ns,
        "right": place + 0.44,
        "top": top / unit_ns,
        "value": value / unit_ns,
        "percent": 100 * value / total,
        "whole": total / unit_ns,
        "opacity": np.array([1.0 if bar.used else _PALE for bar in bars])[place],
        "label": np.array([bar.label for bar in bars])[place],
        "component": np.array([look.label for look in looks])[component],
        "colour": np.array([look.colour for look in looks])[component],
    }
    middle = (len(bars) - 1) / 2
    half = max(len(bars), _LEAST_PLACES) / 2 + 0.2  # few bars stand in the middle and stay slim
    return _Boxes(
        columns,
        unit,
        across=(middle - half, middle + half),
        highest=columns["top"].max() * 1.04,
        ticks=list(enumerate(bar.label for bar in bars))[:: -(-len(bars) // _MOST_TICKS)],
    )


@contextmanager
def _without_settings(module: str) -> Iterator[None]:
    """Let a module load without files of the home folder and the code that HOLOVIEWSRC names."""
    if module in sys.modules:
        yield
        return
    before = {name: os.environ.get(name) for name in _SETTINGS}
    os.environ.update(_SETTINGS)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
