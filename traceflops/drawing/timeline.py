"""The timeline of a trace: lanes of devices and host threads, and their events as boxes.

A level is a range of time as boxes. The first level is the whole recording, with no more boxes than
a budget allows. If these stand for several events each, the representative steps and the
surroundings of the longest gaps are further levels, in more detail. Times count from the first
activity; if the clocks of processes cannot be compared, from the first activity of each process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from traceflops.drawing.coarsening import Boxes, Counter, Counts, LaneEvents, at_most, together
from traceflops.drawing.lanes import (
    CounterKey,
    Lane,
    activity_times,
    counters,
    device_lanes,
    host_lanes,
    marks_left_out,
)
from traceflops.table.columns import IntArray, numbers
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import WORK, Gap
from traceflops.windows.prepared import Prepared
from traceflops.windows.prepared import origins as origins_of
from traceflops.windows.step_times import step_spread

_MOST_DEVICES: Final = 8
_MOST_HOSTS: Final = 4
_ROOM: Final = 50


class Budget(Struct, frozen=True):
    """The most boxes of a timeline with a single level (`all`), or of each of its levels.

    These are the `overview`, and the details of each `step` and each `gap`. `counts` is the number
    of intervals for the values of all counters together.
    """

    all: int = 600_000
    overview: int = 120_000
    step: int = 60_000
    gap: int = 1_600
    counts: int = 20_000

    def times(self, share: float) -> Budget:
        """Return the budget multiplied by a share."""
        return Budget(*(max(round(most * share), 1) for most in astuple(self)))


class Span(Struct, frozen=True):
    """A range of the timeline's time."""

    start_ns: int
    end_ns: int


class Level(Struct, frozen=True):
    """The events in a range of time as boxes, and the counters of devices by CounterKey."""

    span: Span
    boxes: Boxes
    counters: Mapping[CounterKey, Counts]

    @property
    def is_single(self) -> bool:
        """Whether each box is one event."""
        return self.boxes.events == len(self.boxes)


class LeftOut(Struct, frozen=True):
    """What is not drawn: numbers of devices, hosts, tracks and their events, and marks by kind.

    `deep` is the number of events of drawn tracks that are nested too deeply. `work` is true if
    any of all these is device work.
    """

    devices: int
    hosts: int
    tracks: int
    events_of_tracks: int
    deep: int
    marks: Mapping[str, int]
    work: bool


class RepresentativeSteps(Struct, frozen=True):
    """The numbers of the used step of median length and of the longest, and their lengths."""

    median: int
    worst: int
    median_ns: int
    worst_ns: int


class ChosenDevices(Struct, frozen=True):
    """The devices that are drawn, by number, out of `of` devices.

    `busiest` has most work of its own in the chosen windows, so that others wait for it; `median`
    has the median amount.
    """

    devices: tuple[int, ...]
    busiest: int
    median: int
    of: int


class Timeline(Struct, frozen=True):
    """Lanes, those of devices first, and their boxes at one level or several.

    The first level is the whole recording. `steps` are the ranges of steps over the drawn devices,
    `gaps` those of the given gaps, None if their device is not drawn. `origin_ns` is the time that
    counts as 0, by process; it is the same for all if they are `aligned`.
    """

    lanes: tuple[Lane, ...]
    levels: tuple[Level, ...]
    chosen: ChosenDevices
    hosts: tuple[int, ...]
    origin_ns: Mapping[int, int]
    aligned: bool
    steps: Mapping[int, Span]
    representative: RepresentativeSteps | None
    window: Span
    gaps: tuple[Span | None, ...]
    left_out: LeftOut


class Drawable(Struct, frozen=True):
    """The lanes of a trace with all their events, from which timelines of any budget are made.

    `outline` is the timeline without levels. `groups` are the ranges (first, stop) of the lanes of
    a device, or of the host of a process.
    """

    outline: Timeline
    lanes: tuple[LaneEvents, ...]
    groups: tuple[tuple[int, int], ...]
    counters: Mapping[CounterKey, Counter]

    @property
    def whole(self) -> Span:
        """The range from the first start to the last end of all events."""
        return _hull([Span(*lane.span) for lane in self.lanes])

    def within(self, budget: Budget) -> Timeline:
        """Return the timeline with no more boxes than a budget allows."""
        whole = self.whole
        if sum(map(len, self.lanes)) <= budget.all:
            return replace(self.outline, levels=(self._level(whole, budget.all, budget),))
        # An overview, and details of representative steps (or the chosen window) and of gaps.
        typical, span_of_step = self.outline.representative, self.outline.steps
        details = [self.outline.window]
        if typical is not None:
            numbers = dict.fromkeys([typical.median, typical.worst])
            details = [span_of_step[number] for number in numbers if number in span_of_step]
        levels = [(whole, budget.overview)]
        levels += [(with_room(span), budget.step) for span in details]
        levels += [(around(gap), budget.gap) for gap in self.outline.gaps if gap is not None]
        return replace(self.outline, levels=tuple(self._level(*level, budget) for level in levels))

    def boxes(
        self,
        span: Span,
        most: int,
        groups: Sequence[tuple[int, int]] | None = None,
        cell_ns: int = 0,
    ) -> Boxes:
        """Return the events in a range of time as at most `most` boxes, but one per lane or more.

        `groups` are the ranges of lanes to draw (None: all). Events shorter than `cell_ns` that
        start in the same cell of that length are merged, however few there are.
        """
        lanes_of_group = [
            [lane.touching(span.start_ns, span.end_ns) for lane in self.lanes[slice(*lanes)]]
            for lanes in groups or self.groups
        ]
        sizes = [sum(map(len, lanes)) for lanes in lanes_of_group]
        # The first group may take half of all boxes. The others share the rest, the smallest first,
        # so that larger ones get what smaller ones do not need: of 100 boxes for 90, 50 and 10
        # events, at most 50, then 25 (10 are enough), then 40.
        order = [0, *sorted(range(1, len(sizes)), key=sizes.__getitem__)]
        boxes: list[Boxes] = []
        left = most
        for turn, index in enumerate(order):
            sharers = len(order) - turn
            if turn == 0:
                sharers = min(sharers, 2)
            boxes.append(at_most(lanes_of_group[index], max(left // sharers, 1), cell_ns))
            left -= len(boxes[-1])
        return together(boxes)

    def _level(self, span: Span, most: int, budget: Budget) -> Level:
        """Return the boxes and counters in a range of time."""
        share = max(min(budget.counts, most) // max(len(self.counters), 1), 1)
        counters = {
            key: counter.within(span.start_ns, span.end_ns, share)
            for key, counter in self.counters.items()
        }
        return Level(span, self.boxes(span, most), counters)


def drawable(prepared: Prepared, gaps: Sequence[Gap] = ()) -> Drawable | None:
    """Return what can be drawn of a trace, with details around `gaps`; None without device work."""
    if not prepared.accounts:
        return None
    chosen = drawn_devices(prepared, gaps)
    clocks = origins_of(prepared)
    process = numbers(prepared.trace.devices["process"]).tolist()
    origin_ns = {device: clocks.of_process[process[device]] for device in prepared.accounts}
    # Lanes of the busiest device come first, then those of other devices, then those of hosts:
    # first the hosts of the busiest and of the median device.
    devices = [chosen.busiest, *(d for d in chosen.devices if d != chosen.busiest)]
    hosts = list(dict.fromkeys(process[d] for d in (chosen.busiest, chosen.median, *devices)))
    times = activity_times(prepared)
    drawn = [device_lanes(prepared, d, origin_ns[d], len(devices), times) for d in devices]
    surroundings = [around(Span(gap.start_ns, gap.start_ns + gap.dur_ns)) for gap in gaps]
    near = Intervals.of(
        np.array([span.start_ns for span in surroundings], dtype=np.int64),
        np.array([span.end_ns for span in surroundings], dtype=np.int64),
    )
    host_origins = {host: clocks.of_process[host] for host in hosts[:_MOST_HOSTS]}
    drawn += (group for group in host_lanes(prepared, host_origins, near) if group.lanes)
    steps, window = _step_spans(prepared, chosen, origin_ns)
    gap_spans: list[Span | None] = []  # None: its device is not drawn
    for gap in gaps:
        span = None
        if gap.device in chosen.devices:
            start_ns = gap.start_ns - origin_ns[gap.device]
            span = Span(start_ns, start_ns + gap.dur_ns)
        gap_spans.append(span)
    outline = Timeline(
        lanes=tuple(lane for group in drawn for lane in group.lanes),
        levels=(),
        chosen=chosen,
        hosts=tuple(group.lanes[0].process for group in drawn[len(devices) :]),
        origin_ns=clocks.of_process,
        aligned=clocks.aligned,
        steps=steps,
        representative=representative_steps(prepared),
        window=window,
        gaps=tuple(gap_spans),
        left_out=LeftOut(
            devices=chosen.of - len(chosen.devices),
            hosts=max(len(hosts) - _MOST_HOSTS, 0),
            tracks=sum(group.tracks_left_out for group in drawn),
            events_of_tracks=sum(group.events_left_out for group in drawn),
            deep=sum(sum(group.too_deep.values()) for group in drawn),
            marks=marks_left_out(prepared.trace, drawn),
            work=any(group.tracks_left_out or group.too_deep for group in drawn[: len(devices)]),
        ),
    )
    # Groups of 3, 2 and 4 lanes -> ends [3 5 9] -> ranges (0, 3), (3, 5), (5, 9).
    ends = list(accumulate(len(group.lanes) for group in drawn))
    lanes = enumerate(events for group in drawn for events in group.events)
    return Drawable(
        outline,
        lanes=tuple(replace(events, lane=number) for number, events in lanes),
        groups=tuple(zip([0, *ends], ends, strict=False)),
        counters=dict(counters(prepared, {d: origin_ns[d] for d in chosen.devices})),
    )


def _step_spans(
    prepared: Prepared, chosen: ChosenDevices, origin_ns: Mapping[int, int]
) -> tuple[dict[int, Span], Span]:
    """Return the range of each step over the drawn devices, and that of the chosen windows."""
    steps: defaultdict[int, list[Span]] = defaultdict(list)
    used: list[Span] = []
    for device in chosen.devices:
        windows, origin = prepared.windows[device], origin_ns[device]
        has_used = any(window.used for window in windows)
        for window in windows:
            span = Span(window.start_ns - origin, window.end_ns - origin)
            if window.step is not None:
                steps[window.step].append(span)
            if window.used or not has_used:  # if none of a device is used, take all of them
                used.append(span)
    step_spans = {number: _hull(spans) for number, spans in sorted(steps.items())}
    return step_spans, _hull(used) if used else Span(0, 0)


def with_room(span: Span) -> Span:
    """Return a range extended by a fiftieth of its length on both sides."""
    room = -(-(span.end_ns - span.start_ns) // _ROOM)
    return Span(span.start_ns - room, span.end_ns + room)


def around(span: Span) -> Span:
    """Return a range extended by its own length on both sides."""
    length = span.end_ns - span.start_ns
    return Span(span.start_ns - length, span.end_ns + length)


def parts_ns(prepared: Prepared, timeline: Timeline, span: Span, bins: int) -> dict[str, IntArray]:
    """Return the time of each component in `bins` equal parts of a range, over drawn devices."""
    edges = np.linspace(span.start_ns, span.end_ns, bins + 1).astype(np.int64)
    process = numbers(prepared.trace.devices["process"]).tolist()
    sums = {name: np.zeros(bins, dtype=np.int64) for name in WORK}
    for device in timeline.chosen.devices:
        times = edges + timeline.origin_ns[process[device]]
        for name, instants in prepared.accounts[device].timeline.parts.items():
            sums[name] += instants.length_within(times[:-1], times[1:])
    return sums


def _hull(spans: Sequence[Span]) -> Span:
    """Return the range from the first start to the last end of some ranges."""
    return Span(min(span.start_ns for span in spans), max(span.end_ns for span in spans))


def representative_steps(prepared: Prepared) -> RepresentativeSteps | None:
    """Return the used steps of median length and of greatest length, None if no step is used.

    The length of a step is the mean of its windows over the devices. Of two steps in the middle,
    the shorter one is the median; of equal ones, the first.
    """
    spread = step_spread(prepared.windows)
    if spread is None:
        return None
    by_length = sorted(spread.used, key=attrgetter("ns"))
    middle, worst = by_length[(len(by_length) - 1) // 2], spread.longest
    return RepresentativeSteps(middle.step, worst.step, middle.ns, worst.ns)


def drawn_devices(prepared: Prepared, gaps: Sequence[Gap]) -> ChosenDevices:
    """Return the devices that a timeline with these gaps draws; there must be at least one.

    Of more than _MOST_DEVICES, these are the one with most work of its own, the median one, the one
    with least, and those of the longest gaps.
    """
    # Idle time and communication are no work of its own: a device may wait in them.
    work_ns = {}
    for device in prepared.accounts:
        used = [window.account.components for window in prepared.windows[device] if window.used]
        own_ns = (part.compute_ns + part.memory_ns + part.other_ns + part.graph_ns for part in used)
        work_ns[device] = sum(own_ns)
    ordered = sorted(work_ns, key=lambda device: (-work_ns[device], device))
    busiest = ordered[0]
    median = ordered[len(ordered) // 2]
    chosen = ordered
    if len(ordered) > _MOST_DEVICES:
        candidates = dict.fromkeys([busiest, median, ordered[-1], *(gap.device for gap in gaps)])
        chosen = [device for device in candidates if device in work_ns][:_MOST_DEVICES]
    return ChosenDevices(tuple(sorted(chosen)), busiest, median, of=len(ordered))
