"""Class and name of each slice of idle time: owner, call, and the names around it.

Also what CPU samples and scheduler switches tell about idle time without other host records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from traceflops.attribution.host_events import CALL, LABEL, OP, HostEvents, host_events
from traceflops.attribution.idle_classes import CLASSES, PLACES, class_of, owner_of
from traceflops.attribution.idle_slices import (
    HOST,
    GapParts,
    Slices,
    chosen_gaps,
    idle_slices,
    of_few_devices,
    starters,
)
from traceflops.characters import kernel_name
from traceflops.table.columns import (
    BoolArray,
    IntArray,
    SmallArray,
    WholeArray,
    codes,
    count_true,
    is_one_of,
    numbers,
    span_columns,
    texts_of,
    thread_columns,
)
from traceflops.table.grouping import group_rows, group_sums, groups, shared_codes
from traceflops.table.nesting import innermost, taken
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import NEVER, Intervals
from traceflops.windows.prepared import Prepared

_CALLS: Final = ("sync_call", "blocking_copy", "memory_alloc", "slow_driver_call")
_BY_WORK: Final = ("graph_gaps", "device_wait", "host_page_faults")
"""Classes that take their name from the work that ends the gap."""
_KINDS: Final = tuple(CLASSES)


class NamedSlices(Struct, frozen=True, dict=True):
    """Slices with class (`kind`, an index into CLASSES) and owner (a row of events, or -1)."""

    slices: Slices
    kind: SmallArray
    parts: GapParts
    events: HostEvents
    trace: Trace
    owner: IntArray

    @classmethod
    def of(cls, parts: GapParts, trace: Trace) -> NamedSlices:
        """Cut gap parts into slices, and find the class and the owner of each."""
        events = host_events(trace, Intervals.of(parts.start_ns, parts.end_ns))
        slices = idle_slices(parts, events, of_few_devices(parts, trace))
        kind = class_of(slices, parts, events, trace)
        return cls(slices, kind, parts, events, trace, owner_of(slices, kind, events))

    def culprits(self) -> Iterator[tuple[tuple[str, str], IntArray]]:
        """Yield ((class, name), rows of slices) for each name; unexplained slices are left out."""
        # Slices with equal codes have one name. Some classes are named by the call or the work.
        named, inner = (taken(self.events.name, event) for event in (self.owner, self.inner))
        for kind, table, row in (
            ("launch_latency", "calls", self.parts.call),
            *((kind, "activities", self.parts.activity) for kind in _BY_WORK),
        ):
            of_kind = np.flatnonzero(self.kind == PLACES[kind])
            labels = codes(self.trace.table(table)["name"])
            named[of_kind] = taken(labels, row[self.slices.part[of_kind]])
        # Different codes may still make the same name.
        by_name: defaultdict[tuple[str, str], list[IntArray]] = defaultdict(list)
        group, _ = group_rows((self.kind, named, inner))
        for _, rows in groups(group):
            if (kind := _KINDS[self.kind[rows[0]]]) != "unexplained":
                by_name[kind, self.name(int(rows[0]))].append(rows)
        for name, rows_of_name in by_name.items():
            yield name, np.concatenate(rows_of_name)

    def slices_by_name(self) -> tuple[tuple[tuple[str, str], ...], IntArray, IntArray]:
        """Return pairs of class and name, then rows of slices and the index of the pair of each."""
        rows = dict(self.culprits())
        row = np.concatenate([np.empty(0, dtype=np.int64), *rows.values()])
        return tuple(rows), row, np.repeat(np.arange(len(rows)), [*map(len, rows.values())])

    def name(self, row: int) -> str:
        """Return the name of a slice: its launch call, its work, "inner in owner", or its owner."""
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
        """Per slice, the call or function that its name has besides the owner, or -1.

        1. For classes of calls: the event itself.
        2. For the optimizer: none, as its step is name enough.
        3. If the owner is an annotation that does not load data: the event itself.
        4. The function around the event, if it is further inside than the owner.
        """
        event = self.slices.event
        is_call = np.isin(self.kind, [PLACES[name] for name in _CALLS])
        is_step, loads = (self.kind == PLACES[name] for name in ("optimizer_loop", "data_input"))
        in_annotation = self.events.is_kind(LABEL, self.owner) & ~loads
        function = taken(self.events.function, event)
        place = self.events.tree.place  # what is further inside comes later
        is_deeper = taken(place, function) > taken(place, self.owner)
        rules = [is_call, is_step, in_annotation, is_deeper]
        return np.select(rules, [event, -1, event, function], -1)

    def evidence(self, row: int) -> tuple[str, ...]:
        """Return the distinct names around a slice: event to launch, else its neighbours."""
        events, part = self.events, self.slices.part[row]
        around, event = [], int(self.slices.event[row])  # from the innermost on
        while event >= 0:
            around.append(event)
            event = int(events.tree.parent[event])
        # The innermost event, the outermost operator, the nearest function, the owner if it is
        # around the slice, and the label.
        ops = [event for event in around if events.kind[event] == OP]
        function = events.function[around[:1]].tolist()
        owner = [int(self.owner[row])] if self.owner[row] in around else []
        texts = [events.text(event) for event in (*around[:1], *ops[-1:], *function, *owner)]
        texts.append(events.text(self.slices.label[row]))
        # From the launch on, the call and the work that it starts are evidence, too.
        if self.slices.role[row] != HOST:
            call = self.parts.call[part]
            texts.append(self._text("calls", call) if call >= 0 else "")
            texts.append(self._text("activities", self.parts.activity[part]))
        return tuple(dict.fromkeys(filter(None, texts))) or (self._neighbours(row),)

    def _neighbours(self, row: int) -> str:
        """Return "between A and B": the last op or call before a slice, and the first after it."""
        part = self.slices.part[row]
        process_of_part, _ = starters(self.parts, self.events)
        before, after = [(NEVER, "the start")], [(NEVER, "the end")]  # (closeness, name)
        for table in (self.trace.ops, self.trace.calls):
            of_process = np.flatnonzero(numbers(table["process"]) == int(process_of_part[part]))
            start, end = span_columns(table, of_process)
            # On both sides the nearest neighbour has the largest value.
            ended = np.where(end <= self.slices.start_ns[row], end, NEVER)
            begun = np.where(start >= self.slices.end_ns[row], -start, NEVER)
            for neighbours, times in ((before, ended), (after, begun)):
                index = int(times.argmax()) if len(times) else -1
                if index >= 0 and times[index] > NEVER:
                    text = str(table["name"][int(of_process[index])])
                    neighbours.append((int(times[index]), text))
        last, following = (max(side, key=itemgetter(0))[1] for side in (before, after))
        return f"between {last} and {following}"

    def _text(self, table: str, row: int) -> str:
        text = self.trace.table(table)["name"][int(row)].as_py()
        return kernel_name(text) if table == "activities" else str(text)

    def blocked(self) -> BoolArray:
        """Return, per part, whether its gap began while the launching thread waited or copied."""
        events, parts = self.events, self.parts
        event = np.arange(len(events.kind))
        waits = events.has_fact("waits_for_device", event) | events.has_fact("copies", event)
        waits &= (events.kind == CALL) & events.is_work
        _, thread = starters(parts, events)
        waiting = np.flatnonzero(waits)
        columns = events.thread[waiting], events.start_ns[waiting], events.end_ns[waiting]
        return innermost(*columns, thread, parts.gap_start_ns) >= 0


def main_culprits(
    prepared: Prepared, parts: GapParts
) -> tuple[IntArray, tuple[tuple[str, str], ...]]:
    """Return the main culprit of each part of a gap as an index into names, -1 if it has none.

    Names are pairs of class and name. The main culprit has the most time of the class that has the
    most time.
    """
    main = np.full(len(parts.call), -1)
    if not len(main) or not prepared.knows_host_work:
        return main, ()
    naming = NamedSlices.of(parts, prepared.trace)
    names, row, name = naming.slices_by_name()
    part, ns = naming.slices.part[row], naming.slices.dur_ns[row]

    def time_of(key: WholeArray) -> IntArray:
        """Return, per slice, the time of all slices of its part with the same key."""
        group, first = group_rows((part, key))
        return group_sums(group, ns, len(first))[group]

    # Sorted by part, then time of the class, then time of the name. Of values assigned to one part
    # the last one stays: the largest.
    order = np.lexsort((time_of(name), time_of(naming.kind[row]), part))
    main[part[order]] = name[order]
    return main, names


def sampled_in(prepared: Prepared, kind: str) -> Counter[str]:
    """Count CPU samples of launching threads per function, in idle time of a class (`kind`)."""
    at_ns, inside = numbers(prepared.trace.marks["start_ns"]), [np.empty(0, dtype=np.int64)]
    for idle, samples in _in_idle_time(prepared, kind, "sample"):
        inside.append(samples[idle.contains(at_ns[samples])])
    return Counter(texts_of(prepared.trace.marks["name"], np.concatenate(inside)))


def _cpu_samples(trace: Trace) -> tuple[IntArray, BoolArray]:
    """Return the rows of CPU samples, and whether each is of a thread that calls the GPU."""
    row = np.flatnonzero(is_one_of(trace.marks["kind"], "sample"))
    calling, own = shared_codes(thread_columns(trace.calls), thread_columns(trace.marks, row))
    return row, np.isin(own, calling)


def sample_spacing_ns(trace: Trace) -> int:
    """Return the median time between two CPU samples of one thread, 0 without any.

    If there are some, it is that of threads that call the GPU: others may sleep between samples.
    """
    row, calls = _cpu_samples(trace)
    row = row[calls] if calls.any() else row
    process, thread = thread_columns(trace.marks, row)
    at_ns = numbers(trace.marks["start_ns"])[row]
    order = np.lexsort((at_ns, thread, process))
    spacing = np.diff(at_ns[order])
    same = (np.diff(thread[order]) == 0) & (np.diff(process[order]) == 0)
    return int(np.median(spacing[same])) if same.any() else 0


class Sampled(NamedTuple):
    """CPU samples per function, and `whose`: "callers" or "all" threads, "" if none are others."""

    counts: Counter[str]
    whose: str = ""


def sampled_outside(prepared: Prepared) -> tuple[Sampled, Sampled]:
    """Count CPU samples before the first work of the only GPU, and after the last.

    They are of the threads that call the GPU; of all threads if these are off the CPU for more than
    half of that time. Several GPUs work at different times: then both counts are empty.
    """
    if len(prepared.accounts) != 1:
        return Sampled(Counter()), Sampled(Counter())
    [(first_ns, last_ns)] = (account.rows.span for account in prepared.accounts.values())
    trace, spacing_ns = prepared.trace, sample_spacing_ns(prepared.trace)
    row, calls = _cpu_samples(trace)
    at_ns, label = numbers(trace.marks["start_ns"])[row], trace.marks["name"]

    def counted(is_outside: BoolArray) -> Sampled:
        """Return the samples of one side of the GPU work."""
        callers = is_outside & calls
        if not trace.calls.num_rows or count_true(callers) == count_true(is_outside):
            return Sampled(Counter(texts_of(label, row[is_outside])))
        on_cpu_ns = spacing_ns * count_true(callers)
        is_waiting = 2 * on_cpu_ns < np.ptp(at_ns[is_outside])
        chosen = is_outside if is_waiting else callers
        return Sampled(Counter(texts_of(label, row[chosen])), "all" if is_waiting else "callers")

    return counted(at_ns < first_ns), counted(at_ns >= last_ns)


def off_cpu_in(prepared: Prepared, kind: str) -> int:
    """Return the ns of idle time of one class in which the launching thread runs on no CPU."""
    return sum(
        Intervals.of(*span_columns(prepared.trace.marks, rows)).intersect(idle).length_ns
        for idle, rows in _in_idle_time(prepared, kind, "off_cpu")
    )


def _in_idle_time(
    prepared: Prepared, kind: str, of_marks: str
) -> Iterator[tuple[Intervals, IntArray]]:
    """Yield, per launching thread, its idle time of one class, and its marks of a kind.

    Where no launch ends idle time, all threads of the process that call the GPU count as one.
    """
    trace = prepared.trace
    row = np.flatnonzero(is_one_of(trace.marks["kind"], of_marks))
    if not len(row) or not prepared.accounts:
        return
    naming = NamedSlices.of(chosen_gaps(prepared), trace)
    call = naming.parts.call[naming.slices.part]  # that ended the gap
    of_kind = np.flatnonzero(naming.kind == PLACES[kind])
    is_launched = call[of_kind] >= 0
    of_kind = of_kind[is_launched] if is_launched.any() else of_kind
    slices = naming.slices.only(of_kind)
    # Number the threads, equally for the slices and the marks.
    if is_launched.any():
        callers = thread_columns(trace.calls, call[of_kind])
        thread_of_slice, thread_of_mark = shared_codes(callers, thread_columns(trace.marks, row))
    else:
        thread_of_slice = numbers(trace.activities["process"])[naming.parts.activity[slices.part]]
        calling, own = shared_codes(thread_columns(trace.calls), thread_columns(trace.marks, row))
        row = row[np.isin(own, calling)]
        thread_of_mark = numbers(trace.marks["process"])[row]
    slices_of = dict(groups(thread_of_slice))
    for thread, same in groups(thread_of_mark):
        own = slices_of.get(thread, of_kind[:0])
        yield Intervals.of(slices.start_ns[own], slices.end_ns[own]), row[same]
