"""A step of each side of a comparison, one below the other on the same time axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.attribution.idle_classes import CLASSES
from traceflops.comparison.side import Side
from traceflops.drawing.lanes import TABLE_OF, Lane
from traceflops.drawing.timeline import Drawable, Span, drawable
from traceflops.reports.page.axes import axis_ticks
from traceflops.reports.page.overview import MOST_GAPS
from traceflops.reports.page.timeline import lane_groups, lane_labels
from traceflops.reports.page.timeline_still import IDLE, Rect, StillLane, letters, still
from traceflops.reports.view.figures import duration
from traceflops.reports.view.step_split import CULPRIT

_MOST_LANES: Final = 7  # rows of host threads, those with most in them
_MOST_DEEP: Final = 2
_LEAST_WAIT: Final = 0.003  # share of a step from which a wait has a box
_LEAST_BUSY: Final = 0.005


class _TimelineSide(Struct, frozen=True):
    """What is drawn of a side: a step, or the window if `step` is None, of its busiest device."""

    name: str
    analysis: Analysis
    drawn: Drawable
    step: int | None
    span: Span
    device: int

    @property
    def length_ns(self) -> int:
        return self.span.end_ns - self.span.start_ns


def pair(sides: Sequence[Side], names: Sequence[str]) -> dict[str, Any]:
    """Return a drawing of a step per side on a common axis: the used step nearest the median.

    If the sides have ranks in common, the same rank is drawn of each: that of the last side's
    busiest device, else the lowest. `lacking` has a sentence for each side that cannot be drawn;
    `looks` are those of all boxes.
    """
    recordings, lacking = list[_TimelineSide](), []
    for side, name in zip(sides, names, strict=True):
        if side.analysis is None:
            lacking.append(f"{name} is a report as JSON, which holds no timeline.")
            continue
        drawn = drawable(side.analysis.prepared, side.analysis.gaps(MOST_GAPS))
        if drawn is None:
            lacking.append(f"{name} has no times of single operations.")
            continue
        outline, typical = drawn.outline, drawn.outline.representative
        step, span = None, outline.window
        # The outline only has the steps of devices that are drawn.
        if typical is not None and typical.median in outline.steps:
            step, span = typical.median, outline.steps[typical.median]
        busiest = outline.chosen.busiest
        recordings.append(_TimelineSide(name, side.analysis, drawn, step, span, busiest))
    ranks = [{device.rank for device in r.analysis.devices} - {None} for r in recordings]
    common = set.intersection(*ranks) if ranks else set()
    rank = min((rank for rank in common if rank is not None), default=None)
    if common:
        last = recordings[-1]
        for device in last.analysis.devices:
            if device.device == last.device and device.rank in common:
                rank = device.rank
    length_ns = max((recording.length_ns for recording in recordings), default=1)
    shown = [_side(recording, length_ns, rank) for recording in recordings]
    lanes = (lane for side in shown for lane in side["still"].lanes)
    return {
        "sides": shown,
        "ticks": axis_ticks(0, length_ns),
        "lacking": lacking,
        "looks": {rect.look for lane in lanes for rect in lane.rects},
    }


def _side(side: _TimelineSide, length_ns: int, rank: int | None) -> dict[str, Any]:
    """Return the drawing of the device of `rank` or the busiest one, on an axis of `length_ns`."""
    reports, outline = side.analysis.devices, side.drawn.outline
    device_of = {report.rank: report.device for report in reports if report.rank is not None}
    device = device_of.get(rank, side.device) if rank is not None else side.device
    if device not in outline.chosen.devices:  # the timeline draws only some devices of many
        device = side.device
    labels = lane_labels(side.analysis, outline)
    # Draw the lanes of the device, and of threads of its process.
    process = {report.device: report.process for report in reports}.get(device)
    headed = []
    for group in lane_groups(side.analysis, outline):
        is_own_thread = group.is_host and group.process == process
        is_device = not group.is_host and outline.lanes[group.lanes[0]].device == device
        if is_own_thread or is_device:
            headed.append((group.label, group.lanes))
    trace = side.analysis.prepared.trace

    def name(lane: Lane, row: int) -> str:
        """Return the name of an event of a host thread, "" for device work."""
        if lane.kind == "stream":
            return ""
        return str(trace.table(TABLE_OF[lane.kind])["name"][row].as_py() or "")

    drawing = still(side.drawn, side.span, headed, labels, length_ns, name)
    waits, busiest = [*_waits(side, device, length_ns)], [*_busiest(drawing.lanes)]
    if waits and busiest:  # the row of waits comes first, so it takes the heading of the GPU
        gpu_heading, _ = headed[0]
        waits[0] = replace(waits[0], heading=gpu_heading)
        if busiest[0].heading == gpu_heading:
            busiest[0] = replace(busiest[0], heading=None)
    what = "the whole window" if side.step is None else f"step {side.step}"
    return {
        "name": side.name,
        "words": f"{what}, {duration(side.length_ns)}",
        "still": replace(drawing, lanes=[*waits, *busiest]),
        "is_step": side.step is not None,
    }


def _busiest(rows: Sequence[StillLane]) -> Iterator[StillLane]:
    """Yield busy streams and the busiest outer rows of host threads, with headings kept."""
    hosts = [row for row in rows if row.lane.kind != "stream" and row.lane.depth < _MOST_DEEP]
    kept = sorted(hosts, key=lambda row: -row.busy_share)[:_MOST_LANES]
    heading: str | None = None  # one whose own row is left out goes to the next row
    for row in rows:
        heading = row.heading or heading
        is_shown = row in kept or row.lane.kind == "stream"
        if is_shown and row.busy_share >= _LEAST_BUSY:
            yield replace(row, heading=heading)
            heading = None


def _waits(side: _TimelineSide, device: int, length_ns: int) -> Iterator[StillLane]:
    """Yield one row with what a GPU waited for, if any wait is long enough to draw."""
    report = next(report for report in side.analysis.devices if report.device == device)
    origin_ns = side.drawn.outline.origin_ns[report.process]
    span_start_ns, span_end_ns = origin_ns + side.span.start_ns, origin_ns + side.span.end_ns
    rects = []
    for gap in report.gaps:
        # From the start of the step, which may be inside a gap.
        start_ns = max(gap.start_ns - span_start_ns, 0)
        dur_ns = gap.start_ns + gap.dur_ns - span_start_ns - start_ns
        if gap.start_ns < span_end_ns and dur_ns >= _LEAST_WAIT * side.length_ns:
            x = round(100 * start_ns / length_ns, 2)
            width = min(round(100 * dur_ns / length_ns, 2), 100 - x)
            kind = CLASSES[gap.culprits[0].kind] if gap.culprits else "idle"
            texts = (f"{kind} {duration(dur_ns)}", duration(dur_ns))  # show the first that fits
            text = next((text for text in texts if len(text) <= letters(width)), "")
            look = CULPRIT if gap.culprits else "idle"
            rects.append(Rect(x, width, 100.0, look, True, text))
    if rects:
        # A row of the GPU, but of no stream, so it is added after `_busiest` chose the rows.
        lane = Lane("stream", report.process, device, None, 0)
        yield StillLane(None, IDLE, lane, rects, 1.0)
