"""What the page shows, chosen and counted: rows, limits and sentences, no markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from traceflops.reports.page.peak import mfu_tile
from traceflops.reports.view import (
    CAUSE_LABELS,
    apportioned,
    component_label,
    count,
    duration,
    loss_label,
    percent,
    ratio,
    some_files,
    step_times,
)
from traceflops.timeline import COMPONENTS, Account, Components
from traceflops.units import capitalized, several
from traceflops.windows import DeviceReport, Origins, most_and_least, origins

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflops.analysis import Analysis

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
}
"""Titles by the state of launch calls where nothing is judged."""


@dataclass(frozen=True, slots=True)
class Few(Generic[T]):
    """The rows that are shown of `total`."""

    rows: Sequence[T]
    total: int

    @property
    def hidden(self) -> int:
        """Return how many rows are not shown."""
        return self.total - len(self.rows)


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure with its name and what belongs beside it."""

    label: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a bar of 1000 units."""

    component: str
    start: int
    units: int
    share: float

    @property
    def middle(self) -> float:
        """Return where its label is centred, in percent of the bar."""
        return (self.start + self.units / 2) * 100 / BAR_UNITS


def segments(components: Components) -> list[Segment]:
    """Return the parts of a 100 % bar; their widths are whole and sum to 1000."""
    total = components.window_ns
    parts = components.parts()
    widths = apportioned(list(parts.values()), BAR_UNITS)
    places = zip(parts, widths, accumulate(widths, initial=0), strict=False)
    return [
        Segment(component, start, units, parts[component] / total)
        for component, units, start in places
        if units
    ]


def document_title(analysis: Analysis) -> str:
    """Return the title of the window: the figure that matters most, then the files."""
    files = some_files([file.name for file in analysis.source.files], 1)
    return f"{_headline(analysis)} · {files} · traceflops"


def _headline(analysis: Analysis) -> str:
    """Return MFU or else the largest loss, or in a few words that there is neither."""
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
        return "No GPU operations"
    if not components.window_ns:
        return "Empty window"
    ran = components.window_ns - components.idle_ns
    if analysis.on_host:
        return f"CPU operators {percent(ran / components.window_ns)}"
    return f"{percent(ran / components.window_ns)} busy"


def clocks(analysis: Analysis) -> Origins:
    """Return from which instants the times of devices and processes are counted."""
    if analysis.prepared is not None:
        return origins(analysis.prepared)
    first = min((device.whole.start_ns for device in analysis.devices), default=0)
    of_process = {device.process: first for device in analysis.devices}
    return Origins(of_process, {device.device: first for device in analysis.devices}, True)


def counts_from(clocks: Origins, *, on_host: bool = False) -> str:
    """Return from where times count, as the end of a sentence."""
    if clocks.aligned:
        return "the first operator" if on_host else "the first GPU operation"
    return "the first GPU operation of the same process (clocks are not aligned)"


def steps_sentence(analysis: Analysis) -> str:
    """Return where the steps come from, as a sentence."""
    text = analysis.steps.text.strip()
    if analysis.steps.seen:
        text = f"Steps from {text}"
    return f"{capitalized(text)}." if text else ""


def tiles(analysis: Analysis) -> list[Tile]:
    """Return the figures under the bar."""
    if analysis.on_host:
        return _host_tiles(analysis)
    total = analysis.total
    exposed, idle = (percent(total.components.share(name)) for name in ("communication", "idle"))
    launched = ratio(total.activities_per_launch)
    return [
        Tile((analysis.measured.figure or "MFU")[:3], *mfu_tile(analysis.measured)),
        _time_tile(analysis),
        Tile("Exposed communication", exposed, _hidden(analysis)),
        Tile(capitalized(component_label("idle", total)), idle, _idle(analysis)),
        _compute_tile(total.components),
        Tile("GPU operations per launch call", launched, _launches(total)),
    ]


def _host_tiles(analysis: Analysis) -> list[Tile]:
    """Return the figures of a run of which there are only operators on the CPU."""
    components = analysis.components
    ran, idle = components.window_ns - components.idle_ns, percent(components.share("idle"))
    return [
        _time_tile(analysis),
        Tile("Operators ran", percent(ran / components.window_ns), duration(analysis.mean_ns(ran))),
        Tile("No operator ran", idle, _longest_gap(analysis) or "no gaps"),
        _compute_tile(components),
    ]


def _time_tile(analysis: Analysis) -> Tile:
    steps = analysis.steps
    if steps.typical_ns is not None:
        return Tile("Step time", duration(steps.typical_ns), _median_of(analysis))
    mean = analysis.mean_ns(analysis.components.window_ns)
    return Tile("Window", duration(mean), "no steps found")


def _median_of(analysis: Analysis) -> str:
    """Return what the step time is the median of, and how far the steps are from it."""
    steps = analysis.steps
    used = f"median of {count(len(steps.used))} of {several(len(steps.seen), 'step')}"
    return "; ".join(filter(None, (used, ", ".join(step_times(analysis)))))


def _hidden(analysis: Analysis) -> str:
    exposed = analysis.components.communication_ns
    hidden = analysis.total.hidden_communication_ns
    if not exposed + hidden:
        return "no communication"
    share = percent(hidden / (exposed + hidden))
    seen, unseen = (duration(analysis.mean_ns(ns)) for ns in (exposed, hidden))
    return f"{seen} exposed, {unseen} hidden ({share})"


def _idle(analysis: Analysis) -> str:
    causes = analysis.total.idle_causes
    if not causes.idle_ns:
        return "no idle time"
    share = percent(causes.detailed()[causes.largest] / causes.idle_ns)
    longest = _longest_gap(analysis)
    return "; ".join(filter(None, (f"{share} {CAUSE_LABELS[causes.largest]}", longest)))


def _longest_gap(analysis: Analysis) -> str:
    return "".join(f"longest gap {duration(gap.dur_ns)}" for gap in analysis.gaps(1))


def _compute_tile(components: Components) -> Tile:
    shares = [(name, components.share(name)) for name in ("memory", "other", "graph")]
    others = ", ".join(f"{name} {percent(share)}" for name, share in shares if share)
    beside = f"also {others}" if others else "no other work"
    return Tile("Compute", percent(components.share("compute")), beside)


def _launches(total: Account) -> str:
    if total.launches is None:
        return "no launch calls recorded"
    return f"{count(total.launched_activities)} from {several(total.launches, 'call')}"


def shown_devices(analysis: Analysis) -> Few[DeviceReport]:
    """Return all devices, or where there are too many those with most and least own time."""
    devices = analysis.devices
    return Few([devices[at] for at in most_and_least(devices, MOST_DEVICES)], len(devices))


def other_share(categories: pa.Table) -> float | None:
    """Return the share of device time of kernels whose name no rule knows, None without any."""
    rows = categories.to_pylist()
    if not rows or any(row["share"] is None for row in rows):
        return None
    return float(sum(row["share"] for row in rows if row["top"] == "other"))


def used_components(analysis: Analysis) -> tuple[list[str], list[str]]:
    """Return the components that have time in the window, and those that have none."""
    parts = analysis.components.parts()
    return [c for c in COMPONENTS if parts[c]], [c for c in COMPONENTS if not parts[c]]
