"""The timeline of the page in words: where one can go, what is drawn and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from traceflops.analysis.result import Analysis
from traceflops.drawing.timeline import Span, Timeline, around, with_room
from traceflops.reports.view.culprits import gap_culprits
from traceflops.reports.view.figures import count, duration
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.wording import numbered
from traceflops.timeline.records import Gap

LABEL_WIDTH: Final = 60
_MARK_LABELS: Final = {
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
    """Yield links and labels of where one can go: typical steps or the window, then gaps."""
    steps = timeline.representative
    if steps is not None:
        named = {steps.median: "median", steps.worst: "longest used"}
        if steps.median == steps.worst:
            named = {steps.median: "only step" if len(timeline.steps) == 1 else "median"}
        for number, name in named.items():
            if number in timeline.steps:
                length_ns = steps.median_ns if number == steps.median else steps.worst_ns
                yield f"step={number}", f"Step {number}, {name}, {duration(length_ns)}"
    else:
        length_ns = timeline.window.end_ns - timeline.window.start_ns
        yield "window", f"Window, {duration(length_ns)}"
    labels = _labels(analysis)
    many = len(analysis.devices) > 1
    rows = zip(gaps, timeline.gaps, gap_culprits(gaps), strict=True)
    for place, (gap, span, (words, _)) in enumerate(rows, 1):
        if span is not None:
            where = f" on {labels[gap.device]}" if many else ""
            due = f", {words}" if words else ""
            yield f"gap={place}", f"Gap {place}, {duration(gap.dur_ns)}{due}{where}"


def sentences(analysis: Analysis, timeline: Timeline) -> Iterator[str]:
    """Yield sentences on what is drawn: which devices, threads and clocks."""
    chosen, number = timeline.chosen, len(timeline.chosen.devices)
    labels = _labels(analysis)
    if analysis.on_host:
        yield "Operators by CPU thread."
    elif number == chosen.of:
        yield f"GPU streams{'' if number == 1 else f' of all {count(number)} GPUs'}."
    else:
        yield f"GPU streams of {count(number)} of {count(chosen.of)} GPUs."
        busiest, median = (labels[d] for d in (chosen.busiest, chosen.median))
        yield (
            f"These are the busiest ({busiest}), the median ({median}), the least busy, and those "
            "with the longest gaps."
        )
    if timeline.steps and number > 1:  # a single GPU is the first to start
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
    """Yield what is not drawn, each kind with its number."""
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
    """Return in which ranges single events are drawn, as the end of a sentence.

    "" if they are drawn nowhere, or everywhere, where it goes without saying.
    """
    single = [level.span for level in timeline.levels if level.is_single]
    if timeline.levels[0].is_single:
        return ""
    steps = timeline.representative
    typical = sorted({steps.median, steps.worst}) if steps is not None else []
    drawn = [n for n in typical if n in timeline.steps]
    where = [f"in step {n}" for n in drawn if with_room(timeline.steps[n]) in single]
    if with_room(timeline.window) in single and not typical:  # drawn in place of typical steps
        where.append("in the window")
    gaps = [around(gap) in single for gap in timeline.gaps if gap is not None]
    if any(gaps):
        where.append(f"around {'the' if all(gaps) else 'some of the'} longest gaps")
    return " and ".join(where)


def start(timeline: Timeline) -> tuple[Span, str]:
    """Return the range that is drawn first and its name: the median step, else the window."""
    steps = timeline.representative
    if steps is not None and steps.median in timeline.steps:
        return timeline.steps[steps.median], f"Step {steps.median} (median)"
    return timeline.window, "Window"


def _labels(analysis: Analysis) -> dict[int, str]:
    """Return the short labels of devices by number."""
    devices = analysis.devices
    labels = short_labels([device.label for device in devices], LABEL_WIDTH)
    return {one.device: label for one, label in zip(devices, labels, strict=True)}
