"""What notebooks show of an analysis: the case in a few kB of HTML, and charts.

The HTML has no scripts, asks for nothing, and takes its colours from the notebook. The charts are
HoloViews elements of the rows that the page draws; their figures are in `element.dframe()`.
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
from traceflops.reports.view.utilisation import roof
from traceflops.reports.view.wording import provenance
from traceflops.units import unit_for

_MOST_FINDINGS: Final = 4
_DIVERGING: Final = "RdBu_r"
_GIB: Final = 2**30
_BEYOND: Final = 4.0  # by how much the roofs reach beyond the kernels on either side
_PALE: Final = 0.4
_EDGES: Final = ("left", "bottom", "right", "top")
_LEAST_PLACES: Final = 5
_MOST_TICKS: Final = 24
_SETTINGS: Final = {"HOME": os.devnull, "USERPROFILE": os.devnull, "HOLOVIEWSRC": ""}


def card(analysis: Analysis) -> str:
    """Return a card of HTML: what is wrong, where the time of a step goes, what to do."""
    opened = opening(analysis)
    # Without device work, or records of it, findings are no judgement of the program.
    found = causes(analysis) if has_findings(analysis) else []
    others = other_findings(analysis) if has_findings(analysis) else []
    values = {
        "title": opened.title,
        "rest": opened.rest,
        "figure": analysis.measured.figure or "",
        "best": title_finding(analysis) if has_findings(analysis) else None,
        "parts": step_parts(analysis),
        "found": found[:_MOST_FINDINGS],
        "others": others[: _MOST_FINDINGS - len(found[:_MOST_FINDINGS])],
        "provenance": provenance(analysis, most_files=1),
    }
    return environment().get_template("notebook.html.j2").render(values)


class Plots(Struct, frozen=True):
    """The charts of one analysis. In a notebook, first `holoviews.extension("bokeh")`."""

    analysis: Analysis

    def steps(self) -> Any:
        """Return a stacked bar per step, or per window if there are no steps."""
        bars = drawn_bars(window_rows(self.analysis.devices))
        return _stacked(bars, "step" if self.analysis.steps.seen else "window")

    def components(self) -> Any:
        """Return a stacked bar per device: its chosen windows by component."""
        devices = self.analysis.devices_used
        bars = [
            StepBar(visible(device.label), None, None, 1, True, device.chosen.components)
            for device in devices
        ]
        return _stacked(bars, "GPU")

    def roofline(self) -> Any:
        """Return kernels as points, FLOP per byte and TFLOP/s, below the roofs of their types."""
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
        across = np.geomspace(*ends, 200)  # FLOP per byte, evenly on the logarithmic axis
        roofs = [
            hv.Curve(
                (across, np.minimum(across * float(bandwidth), peak) / PER_TERA),
                "intensity",
                "rate",
                label=dtype,
            ).opts(backend="bokeh", line_width=1.5)
            for dtype, peak in peaks.items()
        ]
        kernels = hv.Points(points, ["intensity", "rate"], ["name", "time_ns"]).opts(
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
        prepared = self.analysis.prepared
        used = memory_use(prepared) if prepared is not None else ()
        if not used:
            raise _missing("no memory events")
        first = min(int(use.allocated.curve.time_ns[0]) for use in used)

        def curve(label: str, points: Curve) -> Any:
            """Return a curve of GiB over ms; the exact ns and bytes are shown under the pointer."""
            columns = {
                "ms": (points.time_ns - first) / TIME_UNITS["ms"],
                "GiB": points.value / _GIB,
                "time_ns": points.time_ns,
                "bytes": points.value,
            }
            return hv.Curve(columns, "ms", list(columns)[1:], label=label).opts(
                backend="bokeh", interpolation="steps-post", tools=["hover"]
            )

        return hv.Overlay(
            [
                curve(f"{visible(use_label(use, self.analysis.devices))}, {one.what}", one.curve)
                for use in used
                for one in filter(None, (use.allocated, use.reserved))
            ]
        ).opts(**_SIZE, legend_position="bottom")

    def ranks(self) -> Any:
        """Return a heat map of ranks and steps: own time relative to the median of the step."""
        hv = _holoviews()
        times, labels, _ = own_time_rows(self.analysis)
        off = times.relative() - 1
        if off.shape[0] < 2 or not off.size:
            raise _missing("fewer than two ranks, or no steps")
        far = float(np.nanmax(np.abs(off))) or 1.0  # a range of colours needs a length
        cells = [
            (str(step), visible(label), off[row, column], times.ns[row, column])
            for row, label in enumerate(labels)
            for column, step in enumerate(times.steps)
        ]
        return hv.HeatMap(cells, ["step", "rank"], ["off median", "own_ns"]).opts(
            **_SIZE,
            cmap=_DIVERGING,
            clim=(-far, far),
            colorbar=True,
            invert_yaxis=True,
            tools=["hover"],
        )

    def gaps(self) -> Any:
        """Return a histogram of gaps: the idle time in gaps of each length."""
        hv = _holoviews()
        lengths = sorted(self.analysis.idle.histogram, key=lambda one: one.from_ns)
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
    """Return bars stacked by component; `axis` says what a bar is."""
    if not any(bar.components.window_ns for bar in bars):
        raise _missing("no device with recorded work")
    hv, boxes = _holoviews(), _boxes_of(bars)
    from bokeh.models import HoverTool

    more = [name for name in boxes.columns if name not in _EDGES]
    # Without `datatype` HoloViews would try pandas, whose import takes long.
    rectangles = hv.Rectangles(boxes.columns, list(_EDGES), more, datatype=["dictionary"])
    return rectangles.opts(
        backend="bokeh",
        color=hv.dim("colour"),
        alpha="opacity",
        line_width=0,
        default_tools=[],
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
