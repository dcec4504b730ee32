"""The timeline on the page: the values of its template, and the header that its scripts read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.attribution.idle_classes import CLASSES
from traceflops.characters import function_name
from traceflops.drawing.lanes import Lane
from traceflops.drawing.timeline import (
    Drawable,
    Span,
    Timeline,
    around,
    drawable,
    drawn_devices,
    parts_ns,
    with_room,
)
from traceflops.mfu.traced.work_tables import activity_flops
from traceflops.reports.page.overview import MOST_GAPS
from traceflops.reports.page.timeline_data import LOOK_NAMES, packed
from traceflops.reports.page.timeline_still import still
from traceflops.reports.view.culprits import gap_culprits
from traceflops.reports.view.figures import UNKNOWN, count, duration
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.wording import numbered, process_label
from traceflops.table.columns import ABSENT
from traceflops.timeline.records import Gap

SCRIPTS: Final = (
    "timelinedata.js",
    "timelinewords.js",
    "timelinefigures.js",
    "timelinepaint.js",
    "timelinemarks.js",
    "timelineview.js",
    "timelinehands.js",
    "timelinesearch.js",
    "timelinepanel.js",
    "timelineshare.js",
    "timeline.js",
)
_BINS: Final = 480
_KIND_LABELS: Final = {"range": "annotations", "frame": "Python", "op": "ops", "call": "calls"}
_HOST_KINDS: Final = {
    "annotation": "range",
    "module": "frame",
    "python": "frame",
    "op": "op",
    "call": "call",
}
_WAIT_WIDTH: Final = 120
_MOST_STEPS_LISTED: Final = 60


class LaneGroup(Struct, frozen=True):
    """Lanes (by index) under one heading: those of a device, or of a thread of a host process."""

    label: str
    process: int
    is_host: bool
    lanes: list[int]


def timeline_content(analysis: Analysis) -> tuple[dict[str, Any], bytes] | None:
    """Return the values of the section and its boxes as bytes, None if no event has a time."""
    prepared = analysis.prepared
    gaps = analysis.gaps(MOST_GAPS)
    drawn = drawable(prepared, gaps)
    if drawn is None:
        return None
    groups = lane_groups(analysis, drawn.outline)
    labels = lane_labels(analysis, drawn.outline)
    replay, _ = analysis.replay_or_reason
    path = replay.places if replay is not None else None
    flops = np.maximum(activity_flops(analysis.measured.executed), 0)  # -1: unknown
    header = _header(analysis, drawn, groups, labels)
    timeline, content = packed(prepared, drawn, header, flops, path)
    drawn_parts = parts_ns(prepared, timeline, drawn.whole, 1)
    numbers = list(timeline.steps)
    is_many = len(numbers) > _MOST_STEPS_LISTED
    span, start_label = first_range(drawn.outline)
    # The drawing without scripts only has the first host process.
    first_host = drawn.outline.hosts[0] if drawn.outline.hosts else None
    headed = [(g.label, g.lanes) for g in groups if not g.is_host or g.process == first_host]
    # The legend explains ranges and Python frames by the kinds of marks that were recorded.
    lane_kinds = {lane.kind for lane in timeline.lanes}
    mark_kinds = set(prepared.trace.marks["kind"].unique().to_pylist())
    hosts = {group.process: group.label.rpartition(" · ")[0] for group in groups if group.is_host}
    values = {
        "hosts": list(hosts.items()),
        "places": list(places(analysis, timeline, gaps)),
        # Few steps are listed to choose from; of many, the reader enters a number.
        "steps": numbers if len(numbers) > 1 and not is_many else [],
        "asked": (numbers[0], numbers[-1]) if is_many else None,
        "sentences": list(sentences(analysis, timeline)),
        "left_out": list(left_out(timeline)),
        "aligned": timeline.aligned,
        "details": details(timeline),
        "still": still(drawn, span, headed, labels),
        "start_label": start_label,
        "zero": "operator" if analysis.on_host else "GPU operation",
        "has_path": path is not None,
        "present": [name for name, ns in drawn_parts.items() if ns.any()],
        "host_looks": [
            look
            for look, kind in _HOST_KINDS.items()
            if kind in lane_kinds and (kind in ("op", "call") or look in mark_kinds)
        ],
    }
    return values, content


def gap_links(analysis: Analysis) -> list[str | None]:
    """Return the link of each of the longest gaps, None if its device is not drawn."""
    gaps = analysis.gaps(MOST_GAPS)
    drawn = drawn_devices(analysis.prepared, gaps).devices if analysis.prepared.accounts else ()
    return [f"#gap={n}" if gap.device in drawn else None for n, gap in enumerate(gaps, 1)]


def lane_groups(analysis: Analysis, timeline: Timeline) -> list[LaneGroup]:
    """Return the lanes under their headings: devices by number, then host threads by process."""
    labels = {device.device: device.label for device in analysis.devices}
    # The keys sort the groups: whether they are of a host, device or process, thread.
    by_key: dict[tuple[bool, int, int], LaneGroup] = {}
    for index, lane in enumerate(timeline.lanes):
        if lane.device is not None:
            key = (False, lane.device, 0)
            label = labels.get(lane.device, f"device {lane.device}")
        else:
            thread = ABSENT if lane.track is None else lane.track
            key = (True, timeline.hosts.index(lane.process), thread)
            owner = process_label(analysis.devices, lane.process, f"process {lane.process}")
            label = f"{owner} CPU · thread {_number(lane.track)}".lstrip()  # owner may be ""
        group = by_key.setdefault(key, LaneGroup(label, lane.process, lane.device is None, []))
        group.lanes.append(index)
    groups = [by_key[key] for key in sorted(by_key)]
    short = short_labels([group.label for group in groups], LABEL_WIDTH)
    return [replace(group, label=label) for group, label in zip(groups, short, strict=True)]


def _number(track: int | None) -> str:
    return UNKNOWN if track is None else str(track)


def lane_labels(analysis: Analysis, timeline: Timeline) -> list[str]:
    """Return the label of each lane: its stream, thread or kind; "" for nested events."""
    on_cpu = {device.device for device in analysis.devices if device.type == "cpu"}

    def label(lane: Lane) -> str:
        if lane.kind == "stream":
            return f"{'thread' if lane.device in on_cpu else 'stream'} {_number(lane.track)}"
        return _KIND_LABELS[lane.kind]

    return ["" if lane.depth else label(lane) for lane in timeline.lanes]


def _header(
    analysis: Analysis, drawn: Drawable, groups: Sequence[LaneGroup], labels: Sequence[str]
) -> dict[str, Any]:
    """Return what the scripts need beside the boxes; times are ns since `origins`."""
    outline, whole = drawn.outline, drawn.whole
    # The overview: the share of each component in each bin, in 1/1000 of the time of all devices.
    bin_ns = max((whole.end_ns - whole.start_ns) * len(outline.chosen.devices) / _BINS, 1)
    overview = []
    for name, part_ns in parts_ns(analysis.prepared, outline, whole, _BINS).items():
        if part_ns.any():
            thousandths = [min(round(1000 * ns / bin_ns), 1000) for ns in part_ns.tolist()]
            overview.append([LOOK_NAMES.index(name), thousandths])
    process = {device.device: device.process for device in analysis.devices}
    looks = {
        name: [look.label, look.colour, look.pattern, look.ink, look.outline]
        for name, look in LOOKS.items()
    }
    return {
        "lanes": [
            [label, lane.kind == "stream"]
            for label, lane in zip(labels, outline.lanes, strict=True)
        ],
        # -1 for devices, as `process_of_device` has their processes.
        "groups": [[g.label, g.process if g.is_host else -1, g.lanes] for g in groups],
        "looks": [looks.get(name, [name, None, "", None, None]) for name in LOOK_NAMES],
        "overview": overview,
        "whole": _ends(whole),
        "start": _ends(first_range(outline)[0]),
        "zero": "operator" if analysis.on_host else "GPU operation",
        "steps": [[n, *_ends(span)] for n, span in outline.steps.items()],
        "gaps": [
            [*_ends(span), *_ends(around(span)), gap.device] if span else None
            for span, gap in zip(outline.gaps, analysis.gaps(MOST_GAPS), strict=True)
        ],
        "waits": list(_waits(analysis, outline)),
        # As text: JavaScript numbers are exact only up to 2^53.
        "origins": {d: str(outline.origin_ns[process[d]]) for d in outline.chosen.devices},
        "process_of_device": {d: process[d] for d in outline.chosen.devices},
        "device_of_group": [outline.lanes[g.lanes[0]].device for g in groups],
        "counted": list(drawn.counters),
    }


def _waits(analysis: Analysis, outline: Timeline) -> Iterator[list[Any]]:
    """Yield the longest gaps with a known cause: start and end in ns, device, cause, its class."""
    process = {device.device: device.process for device in analysis.devices}
    drawn = [gap for gap in analysis.gaps(MOST_GAPS) if gap.device in outline.chosen.devices]
    explained = [gap for gap in drawn if gap.waited_for or gap.culprits]
    causes = [gap.waited_for or function_name(gap.culprits[0].label) for gap in explained]
    for gap, name in zip(explained, short_labels(causes, _WAIT_WIDTH), strict=True):
        start_ns = gap.start_ns - outline.origin_ns[process[gap.device]]
        words = "stream wait" if gap.waited_for else CLASSES[gap.culprits[0].kind]
        yield [start_ns, start_ns + gap.dur_ns, gap.device, name, words]


def _ends(span: Span) -> list[int]:
    return [span.start_ns, span.end_ns]


LABEL_WIDTH: Final = 60
_MARK_LABELS: Final = {  # of kinds of marks that may not be drawn
    "python": "other Python frame",
    "module": "module call",
    "gpu_annotation": "GPU annotation",
    "gpu_step": "step on the GPU",
    "sync": "synchronization",
    "system": "system call",
    "instant": "instant event",
    "overhead": "profiler overhead event",
    "sample": "sample of a CPU",
    "off_cpu": "stretch off the CPU",
    "event": "event",
    "graph_node": "graph node creation",
}


def places(
    analysis: Analysis, timeline: Timeline, gaps: Sequence[Gap]
) -> Iterator[tuple[str, str]]:
    """Yield links and labels of ranges to look at: typical steps or the window, then gaps."""
    steps = timeline.representative
    if steps is not None:
        names = {steps.median: "median", steps.worst: "longest used"}
        if steps.median == steps.worst:
            names = {steps.median: "only step" if len(timeline.steps) == 1 else "median"}
        for number, name in names.items():
            if number in timeline.steps:
                length_ns = steps.median_ns if number == steps.median else steps.worst_ns
                yield f"step={number}", f"Step {number}, {name}, {duration(length_ns)}"
    else:
        length_ns = timeline.window.end_ns - timeline.window.start_ns
        yield "window", f"Window, {duration(length_ns)}"
    labels = _labels(analysis)
    has_devices = len(analysis.devices) > 1
    rows = zip(gaps, timeline.gaps, gap_culprits(gaps), strict=True)
    for number, (gap, span, (culprit_class, _)) in enumerate(rows, 1):
        if span is not None:
            cause = f", {culprit_class}" if culprit_class else ""
            where = f" on {labels[gap.device]}" if has_devices else ""
            yield f"gap={number}", f"Gap {number}, {duration(gap.dur_ns)}{cause}{where}"


def sentences(analysis: Analysis, timeline: Timeline) -> Iterator[str]:
    """Yield sentences on what is drawn: which devices, threads and clocks."""
    chosen, drawn = timeline.chosen, len(timeline.chosen.devices)
    if analysis.on_host:
        yield "Operators by CPU thread."
    elif drawn == chosen.of:
        yield f"GPU streams{'' if drawn == 1 else f' of all {count(drawn)} GPUs'}."
    else:
        yield f"GPU streams of {count(drawn)} of {count(chosen.of)} GPUs."
        labels = _labels(analysis)
        yield (
            f"These are the busiest ({labels[chosen.busiest]}), the median "
            f"({labels[chosen.median]}), the least busy, and those with the longest gaps."
        )
    if timeline.steps and drawn > 1:  # a single GPU is always the first
        yield "A step line marks the first GPU to start the step."
    if timeline.hosts:
        processes = len(timeline.hosts)
        whose = "" if processes == 1 else f" of {count(processes)} processes, one at a time"
        yield f"Below: CPU threads{whose}."
    if not timeline.aligned:
        yield (
            "The files' clocks are not aligned: each process starts at its own first event. "
            "Do not compare times across processes."
        )


def left_out(timeline: Timeline) -> Iterator[str]:
    """Yield the number and noun of each kind of thing that is not drawn."""
    left = timeline.left_out
    if left.hosts:
        yield f"CPU threads of {numbered(left.hosts, 'more process')}"
    if left.tracks:
        events = numbered(left.events_of_tracks, "event")
        yield f"{numbered(left.tracks, 'stream or thread')} with little time ({events})"
    if left.deep:
        yield f"{numbered(left.deep, 'event')} nested or overlapping too deeply"
    for kind, number in left.marks.items():
        yield numbered(number, _MARK_LABELS.get(kind, f"{kind} marker"))


def details(timeline: Timeline) -> str:
    """Return in which ranges each box is one event, "" if nowhere or everywhere."""
    single = [level.span for level in timeline.levels if level.is_single]
    if timeline.levels[0].is_single:  # the first level is of the whole timeline
        return ""
    steps = timeline.representative
    typical = sorted({steps.median, steps.worst}) if steps is not None else []
    drawn = [n for n in typical if n in timeline.steps]
    where = [f"in step {n}" for n in drawn if with_room(timeline.steps[n]) in single]
    if with_room(timeline.window) in single and not typical:
        where.append("in the window")
    is_gap_single = [around(gap) in single for gap in timeline.gaps if gap is not None]
    if any(is_gap_single):
        where.append(f"around {'the' if all(is_gap_single) else 'some of the'} longest gaps")
    return " and ".join(where)


def first_range(timeline: Timeline) -> tuple[Span, str]:
    """Return the range that is shown at first and its name: the median step, else the window."""
    steps = timeline.representative
    if steps is not None and steps.median in timeline.steps:
        return timeline.steps[steps.median], f"Step {steps.median} (median)"
    return timeline.window, "Window"


def _labels(analysis: Analysis) -> dict[int, str]:
    """Return the short labels of devices by number."""
    devices = analysis.devices
    labels = short_labels([device.label for device in devices], LABEL_WIDTH)
    return {device.device: label for device, label in zip(devices, labels, strict=True)}
