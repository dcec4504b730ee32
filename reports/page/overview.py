"""Limits, sentences and small records that several sections of the page use; no markup."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Generic, TypeVar

import pyarrow as pa
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.reports.view.figures import apportioned, percent
from traceflops.reports.view.palette import loss_label
from traceflops.reports.view.wording import products, some_files
from traceflops.timeline.records import Components
from traceflops.units import capitalized, several
from traceflops.windows.prepared import Origins, origins

T = TypeVar("T")

MOST_DEVICES = 32
MOST_GAPS = 10
MOST_NOTES = 200
MOST_JOBS = 100
MOST_COLLECTIVES = 200
BAR_UNITS = 1000
UNRECORDED: Final = {
    "missing": "No device records",
    "incomplete": "Incomplete device records",
    "capture": "Graph capture",
    "collectives": "Collectives only",
    "serialized": "Counted run",
}
"""Titles of recordings that cannot be judged, by what was recorded."""


class Few(Struct, Generic[T], frozen=True):
    """The first rows of `total`."""

    rows: Sequence[T]
    total: int

    @property
    def hidden(self) -> int:
        """The number of rows that are not shown."""
        return self.total - len(self.rows)


class Segment(Struct, frozen=True):
    """One part of a bar that is BAR_UNITS wide."""

    component: str
    start: int
    units: int
    share: float


def segments(components: Components) -> list[Segment]:
    """Return the parts of a bar, BAR_UNITS wide in all; their widths are whole numbers."""
    parts = components.parts()
    widths = apportioned(list(parts.values()), BAR_UNITS)
    starts = accumulate(widths, initial=0)
    return [
        Segment(component, start, width, ns / components.window_ns)
        for (component, ns), start, width in zip(parts.items(), starts, widths, strict=False)
        if width
    ]


def document_title(analysis: Analysis) -> str:
    """Return the title of the browser tab: the figure that matters most, then the files."""
    return f"{_headline(analysis)} · {recording(analysis)} · traceflops"


def recording(analysis: Analysis) -> str:
    """Return what the page calls the recording: its first file, and how many more it has."""
    return some_files([file.name for file in analysis.source.files], 1)


def _headline(analysis: Analysis) -> str:
    """Return why there are no figures, else the MFU, the largest loss, or how busy devices are."""
    verdict, figure = analysis.verdict, analysis.measured.figure
    if analysis.of_no_job:
        return several(len(analysis.jobs), "job")
    if analysis.recorded in UNRECORDED:
        return UNRECORDED[analysis.recorded]
    if analysis.untimed is not None:
        return "No timeline"
    if figure is not None:
        return figure
    if verdict.loss is not None and verdict.share is not None:
        return f"{percent(verdict.share)} {loss_label(verdict.loss)}"
    components = analysis.components
    if not analysis.devices:
        return capitalized(products(analysis))
    if not components.window_ns:
        return "Empty window"
    busy = percent((components.window_ns - components.idle_ns) / components.window_ns)
    if analysis.on_host:
        return f"CPU operators {busy}"
    return f"{busy} busy" if analysis.total.knows_idle else f"At least {busy} busy"


def clocks(analysis: Analysis) -> Origins:
    """Return the instants that positions in time count from; without events, the first start."""
    if analysis.has_events:
        return origins(analysis.prepared)
    first_ns = min((device.whole.start_ns for device in analysis.devices), default=0)
    of_process = {device.process: first_ns for device in analysis.devices}
    return Origins(of_process, {device.device: first_ns for device in analysis.devices}, True)


def counts_from(clocks: Origins, *, on_host: bool = False) -> str:
    """Return what positions in time count from, as the end of a sentence."""
    if clocks.aligned:
        return "the first operator" if on_host else "the first GPU operation"
    return "the first GPU operation of the same process (clocks are not aligned)"


def steps_sentence(analysis: Analysis) -> str:
    """Return a sentence on the source of the steps, or on why there are none; "" if unknown."""
    text = analysis.steps.text.strip()
    if analysis.steps.seen:
        text = f"Steps from {text}"
    return f"{capitalized(text)}." if text else ""


def other_share(categories: pa.Table) -> float | None:
    """Return the share of device time of kernels in no category, None if it is unknown."""
    rows = categories.to_pylist()
    if not rows or any(row["share"] is None for row in rows):
        return None
    return float(sum(row["share"] for row in rows if row["top"] == "other"))
