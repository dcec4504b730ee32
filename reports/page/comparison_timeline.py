"""One step of each side of a comparison, one under the other: both begin at 0, on one time axis."""

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
    """What is drawn of a side: one step, or the window if `step` is None, and a device."""

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
    """Return a drawing of one step per side on a common axis: the used step nearest the median.

    Both are of the rank of the last side's device, else of the lowest in common. `lacking` has a
    sentence for each side that cannot be drawn; `looks` are those of all boxes.
    """
    recordings, lacking = list[_TimelineSide](), []
    for side, name in zip(sides, names, strict=True):
        prepared = side.analysis.prepared if side.analysis is not None else None
        if side.analysis is None:
            lacking.append(f"{name} is a report as JSON, which holds no timeline.")
            continue
        gaps = side.analysis.gaps(MOST_GAPS)
        drawn = drawable(prepared, gaps) if prepared is not None else None
        if drawn is None:
            lacking.append(f"{name} has no times of single operations.")
            continue
        outline, middle = drawn.outline, drawn.outline.representative
        # The outline has only the steps of devices that are drawn.
        step = middle.median if middle is not None and middle.median in outline.steps else None
        span = outline.window if step is None else outline.steps[step]
        busiest = outline.chosen.busiest
        recordings.append(_TimelineSide(name, side.analysis, drawn, step, span, busiest))
    ranks = [{device.rank for device in r.analysis.devices} - {None} for r in recordings]
    common = set.intersection(*ranks) if ranks else set()
    rank = min((rank for rank in common if rank is not None), default=None)
    for device in recordings[-1].analysis.devices if common else ():
        if device.device == recordings[-1].device and device.rank in common:
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


def _side(one: _TimelineSide, length_ns: int, rank: int | None) -> dict[str, Any]:
    """Return the drawing of the device of `rank` or the busiest one, on an axis of `length_ns`."""
    devices = {
        device.rank: device.device for device in one.analysis.devices if device.rank is not None
    }
    outline = one.drawn.outline
    # The timeline draws only some devices of many.
    wanted = devices.get(rank, one.device) if rank is not None else one.device
    device = wanted if wanted in outline.chosen.devices else one.device
    labels = lane_labels(one.analysis, outline)
    process = {each.device: each.process for each in one.analysis.devices}
    headed = [  # the lanes of the device, and of threads of its process
        (group.label, group.lanes)
        for group in lane_groups(one.analysis, outline)
        if (
            group.process == process.get(device)
            if group.is_host
            else outline.lanes[group.lanes[0]].device == device
        )
    ]
    trace = one.analysis.prepared.trace if one.analysis.prepared is not None else None

    def name(lane: Lane, row: int) -> str:
        """Return the name of an event of a host thread, "" for device work."""
        if trace is None or lane.kind == "stream":
            return ""
        return str(trace.table(TABLE_OF[lane.kind])["name"][row].as_py() or "")

    drawing = still(one.drawn, one.span, headed, labels, length_ns, name)
    waits, busiest = [*_waits(one, device, length_ns)], [*_busiest(drawing.lanes)]
    if waits and busiest:  # the row of waits comes first, so it takes the GPU's heading
        waits[0] = replace(waits[0], heading=headed[0][0])
        of_gpu = busiest[0].heading == headed[0][0]
        busiest[0] = replace(busiest[0], heading=None) if of_gpu else busiest[0]
    lanes = [*waits, *busiest]
    what = "the whole window" if one.step is None else f"step {one.step}"
    words = f"{what}, {duration(one.length_ns)}"
    return {
        "name": one.name,
        "words": words,
        "still": replace(drawing, lanes=lanes),
        "is_step": one.step is not None,
    }


def _busiest(lanes: Sequence[StillLane]) -> Iterator[StillLane]:
    """Yield busy streams, and the busiest outer rows of host threads; the first has the heading."""
    hosts = [lane for lane in lanes if lane.lane.kind != "stream" and lane.lane.depth < _MOST_DEEP]
    kept = sorted(hosts, key=lambda one: -one.busy_share)[:_MOST_LANES]
    heading: str | None = None
    for one in lanes:
        heading = one.heading or heading
        shows = one in kept or one.lane.kind == "stream"
        if shows and one.busy_share >= _LEAST_BUSY:
            yield replace(one, heading=heading)
            heading = None


def _waits(one: _TimelineSide, device: int, length_ns: int) -> Iterator[StillLane]:
    """Yield one lane with what a GPU waited for, if any wait is long enough to draw."""
    report = next(each for each in one.analysis.devices if each.device == device)
    origin = one.drawn.outline.origin_ns[report.process]
    least_ns, begin_ns = _LEAST_WAIT * one.length_ns, origin + one.span.start_ns
    # Start and end in ns from the begin of the step, which may lie inside a gap.
    inside = [
        (gap, max(gap.start_ns - begin_ns, 0), gap.start_ns + gap.dur_ns - begin_ns)
        for gap in report.gaps
        if gap.start_ns < origin + one.span.end_ns
    ]
    rects = []
    for gap, start_ns, end_ns in inside:
        if (dur_ns := end_ns - start_ns) >= least_ns:
            x = round(100 * start_ns / length_ns, 2)
            width = min(round(100 * dur_ns / length_ns, 2), 100 - x)
            kind = CLASSES[gap.culprits[0].kind] if gap.culprits else "idle"
            texts = (f"{kind} {duration(dur_ns)}", duration(dur_ns))  # the longest that fits
            text = next((text for text in texts if len(text) <= letters(width)), "")
            look = CULPRIT if gap.culprits else "idle"
            rects.append(Rect(x, width, 100.0, look, True, text))
    if rects:
        # A row of the GPU, but of no stream; `_busiest` does not see it.
        lane = Lane("stream", report.process, device, None, 0)
        yield StillLane(None, IDLE, lane, rects, 1.0)
