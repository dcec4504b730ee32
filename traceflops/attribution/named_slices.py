"""The names of slices of idle time: class, owner, call, and what lies around."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Final

import numpy as np

from traceflops.attribution.host_events import CALL, LABEL, OP, HostEvents, host_events
from traceflops.attribution.idle_classes import CLASSES, PLACES, class_of, owner_of
from traceflops.attribution.idle_slices import (
    HOST,
    GapParts,
    Slices,
    idle_slices,
    innermost_of,
    starters,
)
from traceflops.characters import kernel_name
from traceflops.table.columns import BoolArray, IntArray, SmallArray, codes, numbers
from traceflops.table.grouping import group_rows, groups
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals

_CALLS: Final = ("sync_call", "blocking_copy", "memory_alloc", "slow_driver_call")
_BY_WORK: Final = ("device_wait", "host_page_faults")
"""Classes that are named by the work that ends the gap."""
_KINDS: Final = tuple(CLASSES)
_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class NamedSlices:
    """Slices, the class and owner of each, and what their names are taken from."""

    slices: Slices
    kind: SmallArray
    parts: GapParts
    events: HostEvents
    trace: Trace
    owner: IntArray

    @classmethod
    def of(cls, parts: GapParts, trace: Trace) -> NamedSlices:
        """Return the slices of gap parts."""
        events = host_events(trace, Intervals.of(parts.start_ns, parts.end_ns))
        slices = idle_slices(parts, events)
        kind = class_of(slices, parts, events, trace)
        return cls(slices, kind, parts, events, trace, owner_of(slices, kind, events))

    def culprits(self) -> Iterator[tuple[tuple[str, str], IntArray]]:
        """Yield each class and name with its slices; idle time without a culprit has none."""
        named, inner = (taken(self.events.name, event) for event in (self.owner, self.inner))
        for kind, table, row in (
            ("launch_latency", "calls", self.parts.call),
            *((kind, "activities", self.parts.activity) for kind in _BY_WORK),
        ):
            own = np.flatnonzero(self.kind == PLACES[kind])
            labels = codes(self.trace.table(table)["name"])
            named[own] = taken(labels, row[self.slices.part[own]])
        by_name: defaultdict[tuple[str, str], list[IntArray]] = defaultdict(list)
        group, _ = group_rows((self.kind, named, inner))
        for _, rows in groups(group):
            if (kind := _KINDS[self.kind[rows[0]]]) != "unexplained":
                by_name[kind, self.name(int(rows[0]))].append(rows)
        for key, several in by_name.items():
            yield key, np.concatenate(several)

    def slices_by_name(self) -> tuple[tuple[tuple[str, str], ...], IntArray, IntArray]:
        """Return classes and names, the slices of these, and per slice the place of its name."""
        rows = dict(self.culprits())
        row = np.concatenate([np.empty(0, dtype=np.int64), *rows.values()])
        return tuple(rows), row, np.repeat(np.arange(len(rows)), [*map(len, rows.values())])

    def name(self, row: int) -> str:
        """Return the name of a slice."""
        part, kind = self.slices.part[row], _KINDS[self.kind[row]]
        if kind == "launch_latency":
            return self._text("calls", self.parts.call[part])
        if kind in _BY_WORK:
            return self._text("activities", self.parts.activity[part])
        owner = self.events.text(int(self.owner[row]))
        inner = self.events.text(int(self.inner[row]))
        return f"{inner} in {owner}" if inner and owner != inner else owner

    @cached_property
    def inner(self) -> IntArray:
        """Per slice, the call or function that it is named by besides its owner, or -1."""
        event, depth_order = self.slices.event, self.events.tree.place
        is_step = self.kind == PLACES["optimizer_loop"]
        in_call = np.isin(self.kind, [PLACES[name] for name in _CALLS])
        in_label = self.events.is_kind(LABEL, self.owner) & ~is_step
        in_call |= in_label & (self.kind != PLACES["data_input"])
        helper = taken(self.events.function, event)
        helps = ~is_step & (taken(depth_order, helper) > taken(depth_order, self.owner))
        return np.select([in_call, helps], [event, helper], -1)

    def evidence(self, row: int) -> tuple[str, ...]:
        """Return the names around a slice: innermost, operator, function, label, launch, work."""
        events, part = self.events, self.slices.part[row]
        around, event = [], int(self.slices.event[row])
        while event >= 0:
            around.append(event)
            event = int(events.tree.parent[event])
        ops = [event for event in around if events.kind[event] == OP]
        frames = [*events.function[around[:1]], *{self.owner[row]} & {*around}]
        texts = [events.text(int(event)) for event in (*around[:1], *ops[-1:], *frames)]
        texts.append(events.text(self.slices.label[row]))
        if self.slices.role[row] != HOST:
            call = self.parts.call[part]
            texts.append(self._text("calls", call) if call >= 0 else "")
            texts.append(self._text("activities", self.parts.activity[part]))
        return tuple(dict.fromkeys(filter(None, texts))) or (self._neighbours(row),)

    def _neighbours(self, row: int) -> str:
        """Return what the process did last before a slice and first after it, the outermost."""
        part = self.slices.part[row]
        process = int(starters(self.parts, self.events)[0][part])
        before, after = [(_NEVER, "the start")], [(_NEVER, "the end")]
        for table in (self.trace.ops, self.trace.calls):
            own = np.flatnonzero(numbers(table["process"]) == process)
            start = numbers(table["start_ns"])[own]
            end = start + numbers(table["dur_ns"])[own]
            ended = np.where(end <= self.slices.start_ns[row], end, _NEVER)
            begun = np.where(start >= self.slices.end_ns[row], -start, _NEVER)
            for neighbours, times in ((before, ended), (after, begun)):
                nearest = int(times.argmax()) if len(times) else -1
                if nearest >= 0 and times[nearest] > _NEVER:
                    text = str(table["name"][int(own[nearest])])
                    neighbours.append((int(times[nearest]), text))
        last, following = (max(side, key=itemgetter(0))[1] for side in (before, after))
        return f"between {last} and {following}"

    def _text(self, table: str, row: int) -> str:
        text = self.trace.table(table)["name"][int(row)].as_py()
        return kernel_name(text) if table == "activities" else str(text)

    def blocked(self) -> BoolArray:
        """Return which gaps began while the launching thread waited for the device or copied."""
        events, parts = self.events, self.parts
        event = np.arange(len(events.kind))
        waits = events.has_fact("waits_for_device", event) | events.has_fact("copies", event)
        waits &= (events.kind == CALL) & events.is_work
        _, thread = starters(parts, events)
        return innermost_of(events, waits, events.thread, thread, parts.gap_start_ns) >= 0
